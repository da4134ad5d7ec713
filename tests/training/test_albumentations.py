"""``Albumentations`` at the end of ``augment=``, and functions in ``PerImage`` that hold generators of their own."""

from __future__ import annotations

import contextlib
import functools
import gc
import pickle
import random
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packstore import PackedDataset, PackedLoader, UsageError
from packstore.augment import Albumentations, CenterCrop, Mosaic, PerImage, RandomHorizontalFlip, RandomResizedCrop
from tests.conftest import Stores
from tests.internals import Padded
from tests.makers.batches import check_order, go_on, same
from tests.makers.typed import Typed, make_typed

COLUMNS = ("image", "mask", "boxes", "labels", "points", "image_id")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alb() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import albumentations

        return albumentations


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Typed:
    """Records of different sizes with mask, boxes, their labels, and points."""
    names = [*COLUMNS[1:], "label", "corners", "depth", "caption", "right"]
    return make_typed(tmp_path_factory.mktemp("albumentations") / "sizes.lmdb", names, 12)


def load(made: Typed, pipeline: Any, columns: Any = COLUMNS, batch_size: int = 4, **options: Any) -> PackedLoader:
    dataset = PackedDataset(made.path, columns=columns, output="dict")
    return PackedLoader(dataset, batch_size, augment=Albumentations(pipeline), **options)


def test_image_mask_boxes_and_points_move_together(alb: Any, made: Typed) -> None:
    """As packstore's own flip moves them."""
    found = list(load(made, alb.HorizontalFlip(p=1), collate={"image": "list"}))
    dataset = PackedDataset(made.path, columns=COLUMNS, output="dict")
    own = PackedLoader(dataset, 4, augment=[RandomHorizontalFlip(p=1)], collate={"image": "list"})
    # albumentations divides coordinates by the size, and multiplies them again
    assert same(found, own, 2e-4)
    assert sum(len(boxes) for batch in found for boxes in batch["boxes"]) > 10


def test_a_crop_drops_boxes_with_what_describes_them(alb: Any, made: Typed) -> None:
    """As albumentations itself, called with the same values and the same generators."""
    params = alb.BboxParams("coco", ["other"], min_visibility=0.3)  # the format and the fields are the user's own
    steps = [alb.RandomSizedBBoxSafeCrop(32, 32), alb.VerticalFlip(p=0.5), alb.RandomBrightnessContrast(p=1)]
    pipeline = alb.Compose([*steps, alb.CenterCrop(20, 20)], bbox_params=params)
    loader = load(made, pipeline, seed=5)
    kept = 0
    for batch in loader:
        assert batch["image"].shape == (len(batch["image_id"]), 3, 20, 20)
        assert batch["mask"].shape == (len(batch["image_id"]), 20, 20)
        for row, record in enumerate((batch["image_id"] - 1000).tolist()):
            boxes, labels, points = (batch[name][row] for name in ("boxes", "labels", "points"))
            assert len(boxes) == len(labels) == len(points)
            assert ((boxes >= 0) & (boxes <= 20)).all()
            known = made.values[record]["labels"].tolist()
            assert all(label in known for label in labels.tolist())
            shown = points[points[..., 2] > 0]
            assert ((shown[:, :2] > -1) & (shown[:, :2] < 20)).all()
            kept += len(boxes)
    assert 0 < kept < sum(len(each["boxes"]) for each in made.values)


RANDOM = ("HorizontalFlip", "RandomBrightnessContrast", "GaussNoise", "CoarseDropout")


@pytest.mark.parametrize("own_seed", [None, 3])
def test_draws_follow_from_seed_epoch_and_record(alb: Any, made: Typed, own_seed: int | None) -> None:
    def make(batch_size: int = 4, seed: int = 1, **options: Any) -> PackedLoader:
        steps = [alb.RandomCrop(24, 24), alb.OneOf([alb.GaussNoise(p=1), alb.Blur(p=1)], p=0.9), alb.VerticalFlip()]
        pipeline = alb.Compose([alb.HorizontalFlip(), *steps], seed=own_seed)
        return load(made, pipeline, COLUMNS, batch_size, seed=seed, shuffle=True, **options)

    check_order(make, 4, (2,))
    whole = make()
    epochs = [list(whole) for _ in range(2)]
    assert not same(*epochs)
    assert not same(make(seed=2), epochs[0])
    for loader in (make(workers=5, prefetch=1), pickle.loads(pickle.dumps(make()))):
        resumed = go_on(loader, make(workers=3))
        assert same(resumed, epochs[0][1:])
        assert same(resumed, epochs[1])


def test_flips_that_draw_from_one_seed_are_independent(alb: Any, made: Typed) -> None:
    """A seed that all transforms of a pipeline share would turn each image by 180 degrees or leave it."""
    pipeline = alb.Compose([alb.HorizontalFlip(p=0.5), alb.VerticalFlip(p=0.5)])
    loader, plain = (load(made, each, ("image",), collate={"image": "list"}) for each in (pipeline, alb.NoOp()))
    kinds, images = set(), [image for batch in plain for image in batch["image"]]
    for _ in range(4):
        for image, old in zip((image for batch in loader for image in batch["image"]), images, strict=True):
            turned = {"": old, "h": old.flip(-1), "v": old.flip(-2), "hv": old.flip(-1, -2)}
            kinds.add(next(name for name, each in turned.items() if torch.equal(each, image)))
    assert kinds == {"", "h", "v", "hv"}


def test_normalisation_and_operations_before(alb: Any, made: Typed) -> None:
    crop = [RandomResizedCrop(16)]
    dataset = PackedDataset(made.path, columns=("image", "label"))
    own = list(PackedLoader(dataset, 4, augment=crop, normalize="imagenet", channels_last=True))
    augment = [*crop, Albumentations(alb.NoOp())]
    found = list(PackedLoader(dataset, 4, augment=augment, normalize="imagenet", channels_last=True))
    for (images, labels), (wanted, others) in zip(found, own, strict=True):
        torch.testing.assert_close(images, wanted, atol=1e-5, rtol=0)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert same(labels, others)
    augment = [*crop, Albumentations(alb.Compose([alb.Normalize(), alb.ToTensorV2()]))]
    for (images, _), (wanted, _) in zip(PackedLoader(dataset, 4, augment=augment), own, strict=True):
        torch.testing.assert_close(images, wanted, atol=1e-4, rtol=0)
    doubled = PackedLoader(dataset, 4, augment=augment, transform=lambda images: 2 * images, output="numpy")
    assert isinstance(next(iter(doubled))[0], np.ndarray)


@pytest.mark.parametrize("name", ["cifar.h5", "floats.pth", "bfloats.pth", "shards.h5", "pixels.lmdb", "files.h5"])
def test_stores_of_every_encoding(alb: Any, stores: Stores, name: str) -> None:
    """Cropped and mirrored by albumentations as by packstore, in the dtype of the store."""
    dataset, last = PackedDataset(stores(name), "train", columns=("image",)), [RandomHorizontalFlip(p=1)]
    of_one_size = name not in ("pixels.lmdb", "files.h5")
    for before in [[CenterCrop(16)], *([[]] if of_one_size else [])]:
        own = list(PackedLoader(dataset, 8, augment=[*before, *last]))
        found = list(PackedLoader(dataset, 8, augment=[*before, Albumentations(alb.HorizontalFlip(p=1))]))
        assert [(a.dtype, torch.equal(a, b)) for a, b in zip(found, own, strict=True)] == [(b.dtype, True) for b in own]


@pytest.mark.parametrize("form", ["list", "padded"])
def test_images_of_different_sizes(alb: Any, made: Typed, form: str) -> None:
    for batch in load(made, alb.Transpose(p=1), collate={"image": form}, mask_fill=7):
        images, masks = batch["image"], batch["mask"]
        if form == "padded":
            assert isinstance(images, Padded)
            assert isinstance(masks, Padded)
            assert images.lengths.tolist() == masks.lengths.tolist()
            images, masks = list(images.values), list(masks.values)
        assert [image.shape[1:] for image in images] == [mask.shape for mask in masks]
    with pytest.raises(UsageError, match=r"image of different shapes.*collate="):
        list(load(made, alb.Transpose(p=1)))


def test_missing_masks_and_other_columns(alb: Any, made: Typed) -> None:
    collate = {"depth": "optional", "caption": "optional", "image": "list"}
    loader = load(made, alb.HorizontalFlip(p=1), ("image", "depth", "caption", "key"), collate=collate)
    masks = [mask for batch in loader for mask in batch["depth"]]
    assert None in masks
    assert any(mask is not None for mask in masks)


def test_what_it_cannot_do_is_refused(alb: Any, made: Typed) -> None:
    dataset = PackedDataset(made.path, columns=("image", "boxes", "labels"))
    flip = Albumentations(alb.HorizontalFlip())
    for options, words in (
        ({"augment": [flip, CenterCrop(8)]}, "put it last"),
        ({"augment": [flip, flip]}, "put it last"),
        ({"augment": [flip], "mix": Mosaic(64)}, "runs on finished records, and mix= before"),
        ({"augment": [flip], "collate": {"boxes": "padded"}}, "gives a list of 'boxes'"),
    ):
        with pytest.raises(UsageError, match=words):
            PackedLoader(dataset, 4, **options)
    with pytest.raises(UsageError, match="not the column 'right'"):
        load(made, alb.HorizontalFlip(), ("image", "right"))
    for wrong in (lambda image: image, 3):
        with pytest.raises(UsageError, match="Albumentations takes a Compose or a transform of albumentations 2"):
            Albumentations(wrong)


@pytest.mark.parametrize("ending", ["all batches", "dropped", "loader dropped", "exception"])
def test_an_iterator_has_one_set_of_threads(alb: Any, made: Typed, ending: str) -> None:
    """They run the pipeline for all of its batches, and end with it."""
    calls: list[int] = []

    def note(image: Any, **_: Any) -> Any:
        calls.append(threading.get_ident())
        if ending == "exception" and len(calls) > 9:
            raise ValueError
        return image

    loader = load(made, alb.Compose([alb.Lambda(image=note)]), ("image",), workers=2, collate={"image": "list"})
    batches, threads = iter(loader), []
    with contextlib.suppress(ValueError):
        for _ in batches:
            threads.append({thread for thread in threading.enumerate() if thread.ident in calls})
            if "dropped" in ending and len(threads) == 2:
                break
    assert threads[0]
    assert threads[0] <= threads[-1]
    assert len(threads) == (3 if ending == "all batches" else 2)
    assert len({*calls}) <= 2
    if ending == "loader dropped":
        del loader
    del batches
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread in threads[-1]]


def test_an_exception_in_a_pipeline_names_the_record(alb: Any, made: Typed) -> None:
    with pytest.raises(Exception, match=r".") as raised:
        list(load(made, alb.RandomCrop(5000, 5000), ("image",)))
    assert "Albumentations of record 0 (" in "".join(raised.value.__notes__)


# Functions that hold generators ---------------------------------------------------------------------------------------

_NUMPY, _OLD, _PYTHON = np.random.default_rng(), np.random.RandomState(), random.Random()
_TORCH = torch.Generator()


def _of_module(image: torch.Tensor) -> torch.Tensor:
    return image + int(_NUMPY.integers(50)) + _OLD.randint(50) + _PYTHON.randrange(50)


def _of_torch(image: torch.Tensor) -> torch.Tensor:
    return (image + torch.randint(200, (1,), generator=_TORCH)).to(image.dtype)


class _Callable:
    def __init__(self, generator: Any) -> None:
        self.parts = [{"generator": generator}]

    def __call__(self, image: torch.Tensor, most: int = 200) -> torch.Tensor:
        return image + int(self.parts[0]["generator"].integers(most))

    def method(self, image: torch.Tensor) -> torch.Tensor:
        return self(image)


def _list_functions(alb: Any) -> dict[str, Callable[..., torch.Tensor]]:
    """Functions with generators in their module, closure, attributes and defaults."""
    noise = alb.Compose([alb.OneOf([alb.GaussNoise(p=1.0), alb.RandomBrightnessContrast(p=1.0)], p=1)])

    def in_closure(image: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(noise(image=image.permute(1, 2, 0).numpy())["image"]).permute(2, 0, 1)

    def in_default(image: torch.Tensor, generator: Any = np.random.default_rng()) -> torch.Tensor:  # noqa: B008
        return image + int(generator.integers(200))

    return {
        "closure": in_closure,
        "inner": lambda image: [in_closure(each) for each in (image,)][0],  # noqa: RUF015
        "default": in_default,
        "module": _of_module,
        "torch": _of_torch,
        "object": _Callable(np.random.default_rng()),
        "method": _Callable(np.random.default_rng()).method,
        "partial": functools.partial(_Callable(np.random.default_rng()), most=100),
    }


@pytest.mark.parametrize("kind", ["closure", "inner", "default", "module", "torch", "object", "method", "partial"])
def test_a_generator_that_a_function_holds_is_seeded(alb: Any, made: Typed, kind: str) -> None:
    function = _list_functions(alb)[kind]

    def make(seed: int = 0) -> PackedLoader:
        dataset = PackedDataset(made.path, columns=("image", "key"), output="dict")
        return PackedLoader(dataset, 4, seed=seed, augment=[CenterCrop(8), PerImage(function)])

    whole = make()
    epochs = [list(whole) for _ in range(2)]
    assert len({str(batch["image"].tolist()) for epoch in epochs for batch in epoch}) == 6
    resumed = go_on(make(), make())
    assert same(resumed, epochs[0][1:])
    assert same(resumed, epochs[1])
    assert not same(make(1), epochs[0])
    with pytest.raises(UsageError, match=r"holds generators of its own.*Albumentations"):
        PerImage(function, threads=True)


def test_the_generators_of_the_process_are_not_taken_for_the_functions_own(made: Typed, tmp_path: Path) -> None:
    """They are restored after the last call, and may be drawn from in functions with ``threads=True``."""
    drawn = random.random  # a method of Python's own generator

    def function(image: torch.Tensor) -> torch.Tensor:
        return image + int(50 * drawn()) + np.random.randint(50) + int(torch.randint(50, ()))

    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    dataset = PackedDataset(made.path, columns=("image",))
    list(PackedLoader(dataset, 4, augment=[CenterCrop(8), PerImage(function)]))
    assert states[:2] == (random.getstate(), np.random.get_state()[1].tolist())
    assert torch.equal(states[2], torch.get_rng_state())
    PerImage(function, threads=True)
