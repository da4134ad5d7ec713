"""Operations after which images differ in size, and ways of resizing: torchvision's and Pillow's pixels and draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

from packstore import PackedDataset, PackedLoader
from packstore import augment as A  # noqa: N812
from tests.internals import (
    SAMPLINGS,
    Crops,
    Draws,
    GeometricOperation,
    UsageError,
    place_boxes,
    place_mask,
    plan_operations,
    plan_targets,
    resize_by_products,
    write_crop,
)
from tests.internals import resample_images as resize
from tests.makers.torchvision import import_torchvision, skip_before

RESIZES = [
    A.RandomResize(20, 60),
    A.RandomResize(20, 60, "bicubic"),
    A.RandomShortestSize([24, 40, 17], max_size=50),
    A.RandomShortestSize(30),
    A.ScaleJitter((40, 50)),
    A.ScaleJitter(64, (0.5, 1.0), "nearest"),
]


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
        A.RandomResize: lambda: v2.RandomResize(op.min_size, op.max_size),
        A.RandomShortestSize: lambda: v2.RandomShortestSize(list(op.min_size), op.max_size),
        A.ScaleJitter: lambda: v2.ScaleJitter(op.target_size, op.scale_range),
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
    assert set(np.unique(heights)) >= set(np.unique(sizes[:, 0])) or isinstance(op, A.ScaleJitter)


@pytest.mark.parametrize("padding", [3, (2, 5), (1, 2, 3, 4), 0])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_pad_is_that_of_torchvision(tv: Any, padding: Any, mode: str) -> None:
    images = torch.randint(0, 256, (2, 3, 9, 7), dtype=torch.uint8)
    fill = 7 if mode == "constant" else 0
    found = A.Pad(padding, fill, mode)(images, Draws(0, 0, torch.arange(2)))
    sides = list(padding) if isinstance(padding, tuple) else padding
    assert torch.equal(found, tv.transforms.v2.functional.pad(images, sides, fill=fill, padding_mode=mode))
    assert A.Pad(padding).size_after((9, 7)) == found.shape[-2:]


@given(st.data())
def test_images_masks_and_boxes_move_together(data: st.DataObject) -> None:
    """A resize, padding or a mirroring, and a crop that pads: as torchvision's functions with the same parameters."""
    v2 = import_torchvision().transforms.v2.functional
    types = import_torchvision().tv_tensors
    size = data.draw(st.integers(2, 40)), data.draw(st.integers(2, 40))
    ops: list[Any] = [
        data.draw(st.sampled_from([A.RandomResize(8, 40), A.RandomShortestSize([9, 21], 33), A.ScaleJitter(30)]))
    ]
    pad = data.draw(st.sampled_from([None, A.Pad((1, 2, 3, 4)), A.Pad(2)]))
    flip = data.draw(st.booleans())
    ops += [pad] * (pad is not None) + [A.RandomHorizontalFlip(1.0)] * flip + [A.RandomCrop(24, pad_if_needed=True)]
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


def test_images_that_come_in_different_sizes_make_no_batch(stores: Any) -> None:
    with pytest.raises(UsageError, match="differ in size"):
        next(iter(PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 4, augment=[A.RandomResize(20, 60)])))
    with pytest.raises(UsageError, match="size of its own"):
        A.RandomResize(20, 60)(torch.zeros(8, 3, 30, 30, dtype=torch.uint8), Draws(0, 0, torch.arange(8)))


def test_a_reflection_needs_enough_pixels() -> None:
    with pytest.raises(UsageError):
        A.Pad(9, padding_mode="reflect")(torch.zeros(1, 3, 4, 4), Draws(0, 0, torch.arange(1)))


# Ways of resizing -------------------------------------------------------------------------------------------------

SIZES = [((50, 70), (20, 24)), ((20, 24), (50, 70)), ((33, 9), (7, 31)), ((5, 5), (5, 1)), ((1, 1), (4, 3))]


def photos(count: int, height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, height, width), generator=generator).to(torch.uint8)


@pytest.mark.parametrize(("source", "target"), SIZES, ids=str)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_bytes_are_those_of_torchvision(tv: Any, sampling: str, source: Any, target: Any) -> None:
    images = photos(2, *source)
    found = resize(images, target, sampling)
    if sampling in ("box", "lanczos"):
        way = Image.Resampling[sampling.upper()]
        for one, image in zip(found, images, strict=True):
            picture = Image.fromarray(image.permute(1, 2, 0).numpy())
            # Rows first: Pillow 13 chooses the order by the sizes.
            expected = np.asarray(picture.resize((target[1], picture.height), way).resize(target[::-1], way))
            assert np.abs(one.permute(1, 2, 0).numpy().astype(int) - expected).max() <= (target[1] == 1)
        return
    mode = tv.transforms.InterpolationMode(sampling.removeprefix("plain "))
    if target[1] == 1 and not sampling.startswith("plain"):
        return  # torch fails there, or gives wrong values
    expected = tv.transforms.v2.functional.resize(images, target, mode, antialias=not sampling.startswith("plain"))
    if sampling == "plain bilinear" and not tv.transforms.v2.functional._geometry._do_native_uint8_resize_on_cpu(mode):
        # torchvision 0.19 with AVX-512 does it in float, and rounds otherwise
        assert (found.int() - expected.int()).abs().max() <= 1
        return
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("source", "target"), SIZES, ids=str)
@pytest.mark.parametrize("sampling", ["bilinear", "bicubic"])
def test_products_are_within_one_of_it(sampling: str, source: Any, target: Any) -> None:
    images = photos(2, *source)
    box = torch.tensor([(0, 0, *source)])
    difference = resize_by_products(images, box, target, sampling).int() - resize(images, target, sampling).int()
    # Weights of 16 bits, and of noise: some are off by two.
    assert difference.abs().max() <= (2 if sampling == "bicubic" else 1)
    assert (difference != 0).float().mean() < 0.3


def test_random_is_bilinear_or_bicubic() -> None:
    op = A.RandomResizedCrop(24, interpolation="random")
    crops = op.plan_crops(Crops.full(np.array([[40, 52]] * 4000)), Draws(3, 0, np.arange(4000)))
    found, counts = np.unique(crops.sampling, return_counts=True)
    assert [SAMPLINGS[n] for n in found] == ["bilinear", "bicubic"]
    assert abs(counts[0] - 2000) < 150
