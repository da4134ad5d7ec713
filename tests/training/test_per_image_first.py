"""Functions per image on images of any size: first in the list, in threads or not, among other operations."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import packstore
from packstore import PackedDataset, PackedLoader
from packstore import augment as A  # noqa: N812
from tests.internals import Draws, UsageError, apply_operations
from tests.makers.batches import go_on, images_of, same
from tests.makers.images import encode, picture
from tests.makers.torchvision import import_torchvision


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of any sizes as files and as pixels; and files of one size, with masks."""
    path = tmp_path_factory.mktemp("first")
    samples = [
        {"key": str(n), "image": encode(picture("RGB", 60 + 7 * n, 50 + 5 * (n % 3), n), "JPEG"), "label": n % 2}
        for n in range(9)
    ]
    packstore.convert(samples, path / "files.lmdb")
    packstore.convert(samples, path / "pixels.h5", encoding="uint8")
    packstore.convert(samples, path / "floats.pth", encoding="float16", size=50, normalize="imagenet")
    fields = {"image": packstore.Image(), "mask": "mask", "boxes": "boxes"}
    with packstore.Writer(path / "masks.lmdb", fields, annotation_frame="stored") as writer:
        for n in range(4):
            image = encode(picture("RGB", 60 + 7 * n, 50, n), "PNG")
            writer.add(key=str(n), image=image, mask=np.eye(50, 60 + 7 * n, dtype=np.uint8), boxes=[[5, 5, 30, 30]])
    return path


def cut(image: Tensor) -> Tensor:
    """A crop of one size, of an image of any."""
    return image[:, 3:43, 2:42]


def drawing_from_python(image: Tensor) -> Tensor:
    top, left = random.randrange(5), int(np.random.randint(5))
    return image[:, top : top + 40, left : left + 40] // (1 + random.randrange(2))


def drawing_from_generator(image: Tensor, generator: torch.Generator) -> Tensor:
    top = int(torch.randint(5, (), generator=generator))
    return image[:, top : top + 40, :40]


FUNCTIONS: dict[str, Any] = {
    "plain": A.PerImage(cut),
    "threads": A.PerImage(cut, threads=True),
    "python": A.PerImage(drawing_from_python),
    "generator": A.PerImage(drawing_from_generator, generator=True),
}
STORES = ("files.lmdb", "pixels.h5")


def load(dataset: PackedDataset, operations: Any, batch_size: int = 4, **options: Any) -> list[Any]:
    return list(PackedLoader(dataset, batch_size, seed=3, augment=operations, **options))


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_of_one_size_are_a_batch(root: Path, store: str, name: str) -> None:
    dataset = PackedDataset(root / store)
    batches = load(dataset, FUNCTIONS[name])
    assert [images.shape for images, _ in batches] == [(4, 3, 40, 40), (4, 3, 40, 40), (1, 3, 40, 40)]
    images = images_of(batches)
    assert images.dtype == torch.uint8
    if "generator" not in name and name != "python":
        assert torch.equal(images, torch.stack([cut(image) for image, _ in dataset]))
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    for options in ({"workers": 1}, {"workers": 3, "prefetch": 1}, {"channels_last": True}, {"batch_size": 2}):
        assert torch.equal(images, images_of(load(dataset, FUNCTIONS[name], **options)))
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert after == states


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations_follow(root: Path, store: str, name: str) -> None:
    """They are drawn for what the function gives: it has enough pixels, where the image had too few."""
    large = A.PerImage(lambda image: torch.nn.functional.interpolate(image[None], (130, 120))[0])
    dataset = PackedDataset(root / store)
    rest = [A.RandomCrop(100), A.RandomHorizontalFlip(), A.ColorJitter(0.4), A.RandomErasing(1)]
    images = torch.cat([images for images, _ in load(dataset, [large, *rest])])
    assert images.shape == (9, 3, 100, 100)
    whole = torch.stack([large.fn(image) for image, _ in dataset])
    assert torch.equal(images, apply_operations(rest, whole, Draws(3, 0, torch.arange(9)), 1))
    both = [FUNCTIONS[name], A.RandomHorizontalFlip(), large, A.Resize(32)]
    assert load(dataset, both)[0][0].shape == (4, 3, 34, 32)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("before", [A.ColorJitter(0.4), A.RandomHorizontalFlip(), A.Resize(45), A.Pad(3)], ids=repr)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations_precede(root: Path, store: str, name: str, before: Any) -> None:
    images = load(PackedDataset(root / store), [before, FUNCTIONS[name]])[0][0]
    assert images.shape == (4, 3, 40, 40)


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_torchvision_comes_first(root: Path, store: str) -> None:
    import_torchvision()
    from torchvision.transforms import v2

    steps = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
    images = load(PackedDataset(root / store), A.PerImage(steps))[0][0]
    assert (images.shape, images.dtype) == ((4, 3, 24, 24), torch.float32)
    assert 0 < images.max() <= 1
    validation = v2.Compose([v2.Resize(32), v2.CenterCrop(24), v2.ToDtype(torch.float32, scale=True)])
    dataset = PackedDataset(root / store)
    images = torch.cat([images for images, _ in load(dataset, A.PerImage(validation))])
    assert torch.equal(images, torch.stack([validation(image) for image, _ in dataset]))


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_normalisation_dtype_and_mixing_follow(root: Path, store: str, name: str) -> None:
    dataset = PackedDataset(root / store)
    plain = load(dataset, FUNCTIONS[name])[0][0]
    mean, std = (torch.tensor(each)[:, None, None] for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    images = load(dataset, FUNCTIONS[name], normalize="imagenet")[0][0]
    assert torch.allclose(images, (plain / 255 - mean) / std, atol=1e-5)
    mixed, labels = load(dataset, FUNCTIONS[name], mix=A.BatchMixer([A.MixUp()], num_classes=2), dtype=torch.float16)[0]
    assert (mixed.shape, mixed.dtype, labels.shape) == ((4, 3, 40, 40), torch.float16, (4, 2))
    floats = A.PerImage(lambda image: image[:, :8, :8].double())
    assert load(dataset, floats)[0][0].dtype == torch.float64
    assert load(dataset, floats, dtype=torch.float32)[0][0].dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("threads", [False, True])
def test_results_of_other_sizes_need_a_form(root: Path, store: str, threads: bool) -> None:
    dataset, same = PackedDataset(root / store), A.PerImage(lambda image: 255 - image, threads=threads)
    with pytest.raises(UsageError, match=r"differ after augment=.*Resize.*'list'"):
        load(dataset, same)
    expected = [255 - image for image, _ in dataset]
    found = [image for images, _ in load(dataset, same, collate={"image": "list"}) for image in images]
    assert all(map(torch.equal, found, expected))
    (_, sizes), _ = load(dataset, same, collate={"image": "padded"})[0]
    assert sizes.tolist() == [list(image.shape[1:]) for image in expected[:4]]
    assert load(dataset, same, batch_size=1)[3][0].shape[1:] == expected[3].shape
    alone = PackedDataset(root / store, columns=("image",))
    assert load(alone, same, mix=A.Mosaic(64))[0].shape == (4, 3, 64, 64)


@pytest.mark.parametrize("threads", [False, True])
def test_masks_stay_beside_functions_in_place(root: Path, threads: bool) -> None:
    dataset = PackedDataset(root / "masks.lmdb")
    same = A.PerImage(A.InPlace(lambda image: 255 - image), threads=threads)
    images, masks, boxes = load(dataset, [same, A.CenterCrop(30), A.RandomHorizontalFlip()])[0]
    assert (images.shape, masks.shape, len(boxes)) == ((4, 3, 30, 30), (4, 30, 30), 4)
    expected = load(dataset, [A.CenterCrop(30), A.RandomCrop(30), A.RandomHorizontalFlip()])[0]
    assert images.shape == expected[0].shape
    images, masks, _ = load(dataset, same, collate={"image": "list"})[0]
    assert [image.shape[1:] for image in images] == [mask.shape for mask in masks]
    with pytest.raises(UsageError, match="might move the images"):
        load(dataset, A.PerImage(cut))


def test_a_fixed_store_is_as_before(root: Path) -> None:
    dataset = PackedDataset(root / "floats.pth")
    for name, function in FUNCTIONS.items():
        if name != "python":
            assert load(dataset, function, resident=True)[0][0].shape == (4, 3, 40, 40)
            assert load(dataset, function, resident=False)[0][0].shape == (4, 3, 40, 40)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_resume_continues(root: Path, name: str) -> None:
    def make() -> PackedLoader:
        return PackedLoader(PackedDataset(root / "files.lmdb"), 2, shuffle=True, seed=4, augment=FUNCTIONS[name])

    assert same(go_on(make(), make(), 2), list(make())[2:])


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_on_a_device(root: Path, name: str, cuda: torch.device) -> None:
    ops = [FUNCTIONS[name], A.RandomHorizontalFlip()]
    here, there = (PackedDataset(root / "files.lmdb", device=device) for device in ("cpu", cuda))
    assert same(load(there, ops), load(here, ops))


@pytest.mark.parametrize("store", STORES)
def test_views_say_how_a_function_gets_whole_images(root: Path, store: str) -> None:
    """Views need one size before a function. The ways that the message names work."""
    dataset = PackedDataset(root / store, columns=("image",))
    for views in ({"a": (2, [A.PerImage(cut)])}, [[A.ColorJitter(0.3), cut, A.RandomCrop(30)], [A.RandomCrop(30)]]):
        with pytest.raises(UsageError, match=r"view '[a0]' have no common size.*cut.* may follow.* DataLoader"):
            PackedLoader(dataset, 4, views=views)
    batch = load(dataset, [], views={"a": (2, [A.RandomResizedCrop(50), A.PerImage(cut)])})[0]
    assert batch["a"].shape == (4, 2, 3, 40, 40)
    dataset = PackedDataset(root / store, columns=("image",), transform=lambda image: [cut(image), image[:, :20, :20]])
    large, small = next(iter(DataLoader(dataset, 4)))
    assert (large.shape, small.shape) == ((4, 3, 40, 40), (4, 3, 20, 20))


MESSAGES: list[list[Any]] = [
    [], [A.RandomHorizontalFlip()], [A.ColorJitter(0.3)], [torch.neg], [A.Resize(30)], [A.Pad(2)],
]  # fmt: skip


@pytest.mark.parametrize("operations", MESSAGES)
def test_advice_names_validation_too(root: Path, operations: list[Any]) -> None:
    with pytest.raises(UsageError, match="CenterCrop"):
        load(PackedDataset(root / "files.lmdb"), operations)
    load(PackedDataset(root / "files.lmdb"), [A.Resize(30), A.CenterCrop(24)], normalize="imagenet")
