"""An exception in a user's function has one note, which names the store and the records."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from packstore import PackedDataset, PackedLoader, UsageError, concat
from packstore.augment import InPlace, Operation, PerImage, RandomHorizontalFlip, RandomResizedCrop
from tests.conftest import Stores

ITEM = 7


def fail(*values: Any, **options: Any) -> Any:
    raise ZeroDivisionError("mine")


class Fails(Operation):
    def __call__(self, images: Any, draws: Any) -> Any:
        raise ZeroDivisionError("mine")


class FailsOn:
    """Fails for one image alone."""

    def __init__(self, image: torch.Tensor) -> None:
        self.image = image

    def __call__(self, image: torch.Tensor, generator: Any = None) -> torch.Tensor:
        if torch.equal(image, self.image):
            raise ZeroDivisionError("mine")
        return image


def check_note(dataset: PackedDataset, load: Callable[[], Any], count: int | None = 1) -> list[int]:
    """Checks the note of the exception that ``load`` raises, and returns its records. ``count``: how many there are."""
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        load()
    (note,) = [each for each in caught.value.__notes__ if each.startswith("This happened")]
    assert f"of {dataset.path}" in note
    named = re.findall(r"(\d+) \((.*?)\)", note)
    assert named
    assert all(dataset.reader.key(int(record)) == key for record, key in named), note
    assert count in (None, len(named))
    return [int(record) for record, _ in named]


@pytest.mark.parametrize("option", ["transform", "target_transform", "transforms"])
@pytest.mark.parametrize("output", ["tensor", "pil", "numpy", "dict", "bytes"])
@pytest.mark.parametrize("name", ["files.lmdb", "cifar.h5"])
def test_an_item_names_its_record(stores: Stores, name: str, output: Any, option: str) -> None:
    options: dict[str, Any] = {option: fail}
    dataset = PackedDataset(stores(name), "val" if name == "files.lmdb" else "test", output=output, **options)
    start = dataset.reader.split(dataset.split).start
    assert start
    for wanted in (ITEM, ITEM - len(dataset), slice(ITEM, ITEM + 2), [ITEM, 0]):
        assert check_note(dataset, lambda wanted=wanted: dataset[wanted]) == [start + ITEM]
    assert check_note(dataset, lambda: dataset.__getitems__([ITEM])) == [start + ITEM]


def test_torchvisions_types_and_several_stores(stores: Stores) -> None:
    from tests.makers.torchvision import import_torchvision

    import_torchvision()
    dataset = PackedDataset(stores("cifar.h5"), "train", output="tv_tensors", transform=fail)
    assert check_note(dataset, lambda: dataset[ITEM]) == [ITEM]
    both = concat([stores("cifar.h5"), stores("shards.lmdb")], "train", transform=fail)
    assert check_note(both, lambda: both[3]) == [3]


@pytest.mark.slow
def test_a_worker_of_dataloader_passes_the_note_on(stores: Stores) -> None:
    dataset = PackedDataset(stores("cifar.h5"), "train", transform=fail)
    with pytest.raises(ZeroDivisionError, match=r"This happened with record 0 \("):
        next(iter(DataLoader(dataset, 2, num_workers=1)))


def test_the_hint_on_pil_images_is_still_there(stores: Stores) -> None:
    dataset = PackedDataset(stores("cifar.h5"), "train", transform=len)
    with pytest.raises(AttributeError) as caught:
        PackedDataset(stores("cifar.h5"), "train", transform=lambda image: image.size.width)[0]
    assert [note.split()[0] for note in caught.value.__notes__] == ["This", "The"]
    assert dataset[0][0] == 3


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("how", [{}, {"threads": True}, {"generator": True}])
@pytest.mark.parametrize("begins", [[], [RandomHorizontalFlip(0.0)]])
def test_a_function_per_image_names_its_record(stores: Stores, resident: bool, how: Any, begins: list[Any]) -> None:
    dataset = PackedDataset(stores("cifar.h5"), "test")
    per_image = PerImage(FailsOn(dataset[ITEM][0]), **how)
    start = dataset.reader.split("test").start
    for augment in ([*begins, per_image], [InPlace(per_image)]):
        loader = PackedLoader(dataset, 5, resident=resident, augment=augment)
        assert check_note(dataset, lambda loader=loader: list(loader)) == [start + ITEM]


@pytest.mark.parametrize("form", ["list", "padded"])
@pytest.mark.parametrize("augment", [PerImage(fail, threads=True), Fails(), fail])
def test_images_of_any_size_name_their_record(stores: Stores, augment: Any, form: Any) -> None:
    dataset = PackedDataset(stores("files.lmdb"), "val")
    loader = PackedLoader(dataset, 4, augment=[RandomHorizontalFlip(), augment], collate={"image": form})
    records = check_note(dataset, lambda: list(loader))
    assert records[0] in range(*dataset.reader.split("val").start + np.array([0, 4]))


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"transform": fail},
        {"target_transform": fail},
        {"augment": [fail]},
        {"augment": [RandomHorizontalFlip(), Fails()]},
        {"views": {"a": (2, [RandomResizedCrop(8)])}, "transform": fail},
        {"views": {"a": (2, [RandomResizedCrop(8), fail])}},
        {"pre_transform": fail},
    ],
    ids=["transform", "target", "function", "operation", "views", "function in views", "pre_transform"],
)
def test_a_function_of_batches_names_the_batch(stores: Stores, options: dict[str, Any], resident: bool) -> None:
    dataset = PackedDataset(stores("cifar.h5"), "test")
    if "pre_transform" in options:
        options = {**options, "indices": None}
    loader = PackedLoader(dataset, 3, **({} if "pre_transform" in options else {"resident": resident}), **options)
    start = dataset.reader.split("test").start
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        list(loader)
    (note,) = caught.value.__notes__
    assert note.startswith(f"This happened with a batch of records of {dataset.path}: {start}")
    if "transform" in options or "target_transform" in options:
        assert note.endswith(": " + ", ".join(f"{start + i} ({dataset.keys[i]})" for i in range(3)) + ".")


def test_a_crop_of_a_view_names_its_record(stores: Stores) -> None:
    dataset = PackedDataset(stores("cifar.h5"), "test")
    for how in ({}, {"threads": True}):
        views = {"a": (3, [RandomResizedCrop(8), PerImage(fail, **how)])}
        loader = PackedLoader(dataset, 4, resident=False, views=views)
        records = check_note(dataset, lambda loader=loader: list(loader))
        assert 0 <= records[0] - dataset.reader.split("test").start < 4


def test_a_long_batch_has_numbers_alone(stores: Stores) -> None:
    loader = PackedLoader(PackedDataset(stores("cifar.h5"), "train"), 40, transform=fail)
    with pytest.raises(ZeroDivisionError) as caught:
        list(loader)
    assert caught.value.__notes__[0].endswith(f": {', '.join(map(str, range(40)))}.")


def test_errors_of_packstore_have_no_note(stores: Stores) -> None:
    loader = PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 4)
    with pytest.raises(UsageError) as caught:
        list(loader)
    assert "This happened" not in "".join(traceback.format_exception(caught.value))
