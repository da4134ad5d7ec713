"""Operations after which images differ in size equal torchvision's for the same parameters, and draw as its do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResize,
    RandomShortestSize,
    ScaleJitter,
)
from tests.internals import (
    Crops,
    Draws,
    GeometricOperation,
    UsageError,
    apply_operations,
    place_boxes,
    place_mask,
    plan_operations,
    plan_targets,
    write_crop,
)
from tests.makers.jpegs import jpeg
from tests.makers.torchvision import import_torchvision, skip_before

RESIZES = [
    RandomResize(20, 60),
    RandomResize(20, 60, "bicubic"),
    RandomShortestSize([24, 40, 17], max_size=50),
    RandomShortestSize(30),
    ScaleJitter((40, 50)),
    ScaleJitter(64, (0.5, 1.0), "nearest"),
]


@pytest.fixture(scope="module")
def tv() -> Any:
    return import_torchvision()


def ours(op: GeometricOperation, image: np.ndarray[Any, Any], draws: Draws) -> np.ndarray[Any, Any]:
    """An image ``(H, W, 3)`` after an operation that is planned."""
    crops = plan_operations([op], np.array([image.shape[:2]]), draws)
    out = np.empty((*crops.window[0, 2:].tolist(), 3), np.uint8)
    write_crop(image, crops, 0, out)
    return out


@pytest.mark.parametrize("op", RESIZES, ids=repr)
@pytest.mark.parametrize("size", [(1, 1), (33, 47), (80, 31), (64, 64)])
def test_drawn_sizes_resize_as_torchvision(tv: Any, op: Any, size: tuple[int, int]) -> None:
    image = np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8)
    mode = {"bilinear": 2, "bicubic": 3, "nearest": 0}[op.interpolation]
    for record in range(6):
        draws = Draws(3, 0, np.array([record]))
        found = ours(op, image, draws)
        planes = torch.from_numpy(image).permute(2, 0, 1)
        expected = tv.transforms.v2.functional.resize(planes, list(found.shape[:2]), mode, antialias=True)
        assert np.array_equal(found, expected.permute(1, 2, 0).numpy())
        alone = op(planes[None], Draws(3, 0, torch.tensor([record])))
        assert np.array_equal(alone[0].permute(1, 2, 0).numpy(), found)


@pytest.mark.slow
@pytest.mark.parametrize("op", RESIZES, ids=repr)
@pytest.mark.parametrize("size", [(100, 60), (50, 90)])
def test_sizes_are_drawn_as_torchvision_draws_them(tv: Any, op: Any, size: tuple[int, int]) -> None:
    """The shares of each height, by many draws of both."""
    skip_before(21)
    v2, count = tv.transforms.v2, 4000
    theirs = {
        RandomResize: lambda: v2.RandomResize(op.min_size, op.max_size),
        RandomShortestSize: lambda: v2.RandomShortestSize(list(op.min_size), op.max_size),
        ScaleJitter: lambda: v2.ScaleJitter(op.target_size, op.scale_range),
    }[type(op)]()
    torch.manual_seed(0)
    blank = torch.zeros(3, *size, dtype=torch.uint8)
    heights = []
    for _ in range(count):
        found = theirs.make_params([blank])["size"]
        pair = found if len(found) == 2 else v2.functional.get_size(v2.functional.resize(blank, found))
        heights.append(int(pair[0]))
    sizes = op.plan_crops(Crops.full(np.tile(np.array([size]), (count, 1))), Draws(1, 0, np.arange(count))).size
    edges = np.quantile(heights, np.linspace(0, 1, 9))
    a, b = (np.searchsorted(edges, each, "right").astype(float) for each in (np.array(heights), sizes[:, 0]))
    shares = np.array([np.bincount(each.astype(int), minlength=10) for each in (a, b)])
    filled = shares.sum(0) > 0
    expected = shares.sum(0)[filled] / 2
    chi_square = float((((shares[:, filled] - expected) ** 2) / expected).sum())
    assert chi_square < 40  # p < 1e-4 for 9 degrees of freedom
    assert set(np.unique(heights)) >= set(np.unique(sizes[:, 0])) or isinstance(op, ScaleJitter)


@pytest.mark.parametrize("padding", [3, (2, 5), (1, 2, 3, 4), 0])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_pad_is_that_of_torchvision(tv: Any, padding: Any, mode: str) -> None:
    images = torch.randint(0, 256, (2, 3, 9, 7), dtype=torch.uint8)
    fill = 7 if mode == "constant" else 0
    found = Pad(padding, fill, mode)(images, Draws(0, 0, torch.arange(2)))  # type: ignore[arg-type]
    sides = list(padding) if isinstance(padding, tuple) else padding
    assert torch.equal(found, tv.transforms.v2.functional.pad(images, sides, fill=fill, padding_mode=mode))
    assert Pad(padding).size_after((9, 7)) == found.shape[-2:]


@given(st.data())
def test_images_masks_and_boxes_move_together(data: st.DataObject) -> None:
    """A resize, padding or a mirroring, and a crop that pads: as torchvision's functions with the same parameters."""
    v2 = import_torchvision().transforms.v2.functional
    types = import_torchvision().tv_tensors
    size = data.draw(st.integers(2, 40)), data.draw(st.integers(2, 40))
    ops: list[Any] = [
        data.draw(st.sampled_from([RandomResize(8, 40), RandomShortestSize([9, 21], 33), ScaleJitter(30)]))
    ]
    pad = data.draw(st.sampled_from([None, Pad((1, 2, 3, 4)), Pad(2)]))
    flip = data.draw(st.booleans())
    ops += [pad] * (pad is not None) + [RandomHorizontalFlip(1.0)] * flip + [RandomCrop(24, pad_if_needed=True)]
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    image = random.integers(0, 256, (*size, 3), np.uint8)
    mask = random.integers(0, 9, size, np.uint8)
    corners = np.sort(random.uniform(0, 1, (4, 2, 2)) * np.array(size[::-1]), 1).astype(np.float32)
    boxes = np.concatenate([corners[:, 0], corners[:, 1]], 1)
    draws = Draws(5, 1, np.array([data.draw(st.integers(0, 10**6))]))
    crops = plan_operations(ops, np.array([size]), draws)
    out = np.empty((24, 24, 3), np.uint8)
    write_crop(image, crops, 0, out)
    placement = plan_targets(np.array([size]), ops, draws)
    # The same by torchvision's functions.
    given_: dict[str, Any] = {
        "image": types.Image(torch.from_numpy(image).permute(2, 0, 1)),
        "mask": types.Mask(torch.from_numpy(mask)),
        "boxes": types.BoundingBoxes(torch.from_numpy(boxes), format="XYXY", canvas_size=size),
    }
    resized = ops[0].plan_crops(Crops.full(np.array([size])), draws.replace(stream=0)).size[0].tolist()
    assume(resized[1] > 1)  # to images one pixel wide torch 2.13 resizes wrongly
    expected = {name: v2.resize(value, resized, antialias=True) for name, value in given_.items()}
    if pad is not None:
        expected = {name: v2.pad(value, list(pad.padding)) for name, value in expected.items()}
    if flip:
        expected = {name: v2.horizontal_flip(value) for name, value in expected.items()}
    now = v2.get_size(expected["image"])
    last = ops[-1].plan_crops(Crops.full(np.array([now])), draws.replace(stream=len(ops) - 1)).window[0].tolist()
    expected = {name: v2.crop(value, *last) for name, value in expected.items()}
    assert np.array_equal(out, expected["image"].permute(1, 2, 0).numpy())
    assert np.array_equal(place_mask(placement, 0, mask), expected["mask"].numpy())
    shown, _ = place_boxes(placement, boxes, np.zeros(4, np.int64), 0, 0)
    assert np.allclose(shown, v2.clamp_bounding_boxes(expected["boxes"]).numpy(), atol=1e-4)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sizes")
    for number in range(10):
        file = folder / "files" / f"class{number % 2}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(90 + 17 * number, 260 - 11 * number, "420", seed=number))
    packstore.convert(folder / "files", folder / "a.lmdb")
    return folder / "a.lmdb"


@pytest.mark.parametrize(
    "augment",
    [
        [RandomResize(60, 240), RandomHorizontalFlip(), RandomCrop(120, pad_if_needed=True)],
        [ScaleJitter(128), Pad(4), CenterCrop(100)],
        [RandomShortestSize([64, 96, 128], 200), RandomCrop((70, 160), pad_if_needed=True)],
    ],
    ids=repr,
)
def test_loader_gives_what_the_operations_give(store: Path, augment: list[Any]) -> None:
    batches = []
    for workers in (1, 3):
        loader = PackedLoader(PackedDataset(store), 4, shuffle=True, seed=2, augment=augment, workers=workers)
        batches.append([(images.clone(), labels.clone()) for images, labels in loader])
    for (a, x), (b, y) in zip(*batches, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(x, y)
    order = PackedLoader(PackedDataset(store, output="dict"), 10, shuffle=False, seed=2, augment=augment)
    whole = next(iter(order))["image"]
    plain = PackedDataset(store)
    for record in range(10):
        image = plain[record][0][None]
        expected = apply_operations(augment, image, Draws(2, 0, torch.tensor([record])))
        assert torch.equal(whole[record], expected[0]), record


def test_images_that_come_in_different_sizes_make_no_batch(store: Path) -> None:
    with pytest.raises(UsageError, match="differ in size"):
        next(iter(PackedLoader(PackedDataset(store), 4, augment=[RandomResize(20, 60)])))
    with pytest.raises(UsageError, match="size of its own"):
        RandomResize(20, 60)(torch.zeros(8, 3, 30, 30, dtype=torch.uint8), Draws(0, 0, torch.arange(8)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomResize(0, 5), lambda: RandomResize(5, 5), lambda: RandomShortestSize([]),
        lambda: RandomShortestSize([3, 0]), lambda: ScaleJitter(8, (0, 1)), lambda: ScaleJitter(0), lambda: Pad(-1),
        lambda: Pad((1, 2, 3)), lambda: Pad(1, padding_mode="wrap"), lambda: RandomResize(3, 9, "linear"),
        lambda: RandomCrop(8, 2, pad_if_needed=True), lambda: Pad(9, padding_mode="reflect")(
            torch.zeros(1, 3, 4, 4), Draws(0, 0, torch.arange(1))),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(make: Any) -> None:
    with pytest.raises(UsageError):
        make()
