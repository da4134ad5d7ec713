"""Masks, boxes and keypoints go where torchvision's transforms of tv_tensors put them for the same parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from packstore import augment as A  # noqa: N812
from tests.internals import (
    Crops,
    Draws,
    GeometricOperation,
    Move,
    Placement,
    UsageError,
    apply_operations,
    check_target_options,
    check_targets,
    place_boxes,
    place_mask,
    place_points,
    plan_each,
    plan_targets,
)
from tests.makers.torchvision import make_any, transforms_of

DTYPES = (np.uint8, np.uint16, np.int32)


@dataclasses.dataclass
class Record:
    """An image, and what goes with it; boxes lie within the image."""

    image: NDArray[np.uint8]  # (H, W, 3)
    mask: NDArray[Any]
    boxes: NDArray[np.float32]
    points: NDArray[np.float32]

    @property
    def size(self) -> tuple[int, int]:
        return self.mask.shape[0], self.mask.shape[1]


def record(height: int, width: int, seed: int, step: float = 0, count: int = 7, dtype: Any = np.uint8) -> Record:
    """Coordinates are multiples of ``step``, or any float32."""
    random = np.random.default_rng(seed)

    def some(high: float, *shape: int) -> NDArray[np.float32]:
        values = random.uniform(0, high, shape).astype(np.float32)
        return np.float32(step) * np.floor(values / np.float32(step)) if step else values

    x, y = np.sort(some(width, count, 2), 1), np.sort(some(height, count, 2), 1)
    image = random.integers(0, 256, (height, width, 3), np.uint8)
    mask = random.integers(0, 256, (height, width)).astype(dtype)
    boxes = np.stack([x[:, 0], y[:, 0], x[:, 1], y[:, 1]], 1)
    return Record(image, mask, boxes, np.stack([some(width, count), some(height, count)], 1))


def theirs(tv: Any, one: Record) -> dict[str, Any]:
    """The record as torchvision's types."""
    t, size = tv.tv_tensors, one.size
    if not hasattr(t, "KeyPoints"):
        pytest.skip("this torchvision has no KeyPoints")
    return {
        "image": t.Image(torch.from_numpy(one.image).permute(2, 0, 1)),
        "mask": t.Mask(torch.from_numpy(one.mask.astype(np.int32) if one.mask.dtype == np.uint16 else one.mask)),
        "boxes": t.BoundingBoxes(torch.from_numpy(one.boxes), format="XYXY", canvas_size=size),
        "points": t.KeyPoints(torch.from_numpy(one.points), canvas_size=size),
    }


def one_crop(box: Sequence[int], size: Sequence[int], window: Sequence[int], flip: bool | None = None) -> Placement:
    box, size, window = (np.array([a], np.int64) for a in (box, size, window))
    crops = Crops(box, size, window, None if flip is None else np.array([flip]))
    return Placement((Move(crops),), crops.window[:, 2:])


def assert_same(tv: Any, placement: Placement, one: Record, expected: dict[str, Any], row: int = 0) -> None:
    """Masks are equal, and boxes and keypoints to the last bit."""
    rows = np.full(len(one.boxes), row)
    mask = place_mask(placement, row, one.mask)
    assert mask.dtype == one.mask.dtype
    assert np.array_equal(mask, expected["mask"].numpy())
    boxes, keep = place_boxes(placement, one.boxes, rows, 0, 0)
    assert keep.all()
    assert np.array_equal(boxes, tv.transforms.v2.functional.clamp_bounding_boxes(expected["boxes"]).numpy())
    assert np.array_equal(place_points(placement, one.points, rows), expected["points"].numpy())


# Single functions -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_nearest_is_torchs(dtype: torch.dtype) -> None:
    cases = [(a, b) for a in range(1, 40) for b in range(1, 40)]
    cases += np.random.default_rng(3).integers(1, 3000, (300, 2)).tolist()
    for source, target in cases:
        by_torch = torch.nn.functional.interpolate(torch.arange(source).float()[None, None], target, mode="nearest")
        placement = one_crop((0, 0, 1, source), (1, target), (0, 0, 1, target))
        assert placement.columns[0].tolist() == by_torch[0, 0].tolist(), (source, target)
        if source < 256:  # by another kernel
            small = torch.arange(source, dtype=dtype)[None, None, None]
            small = torch.nn.functional.interpolate(small, (1, target), mode="nearest")
            assert placement.columns[0].tolist() == small[0, 0, 0].tolist(), (source, target)


sides = st.integers(1, 60)


@given(sides, sides, st.integers(-70, 70), st.integers(-70, 70), sides, sides, st.sampled_from(DTYPES))
def test_crop(tv: Any, height: int, width: int, top: int, left: int, rows: int, columns: int, dtype: Any) -> None:
    """Also beyond the image, on any side, and wholly."""
    one = record(height, width, height, dtype=dtype)
    placement = one_crop((0, 0, height, width), (height, width), (top, left, rows, columns))
    crop = tv.transforms.v2.functional.crop
    if -top < rows and -left < columns and top < height and left < width:  # else torchvision fails for images
        assert_same(tv, placement, one, {k: crop(v, top, left, rows, columns) for k, v in theirs(tv, one).items()})
    else:
        assert (place_mask(placement, 0, one.mask, fill=7) == 7).all()
        assert not place_boxes(placement, one.boxes, np.zeros(7, int))[1].any()


# Our operations, with the parameters that they drew -----------------------------------------------------------------


def replayed(
    tv: Any, ops: Sequence[Any], values: dict[str, Any], size: Any, draws: Draws, pad_first: bool = False
) -> dict[str, Any]:
    """One record by torchvision's functions, with the parameters that ``ops`` draw for it, operation by operation.

    Padding is a crop beyond the image, which rounds coordinates once; with ``pad_first`` it is what torchvision's
    RandomCrop makes of it, which is padding (of which only that of images and masks is not zeros) and then a crop.
    """
    f = tv.transforms.v2.functional
    for stream, op in enumerate(ops):
        here = draws.replace(stream=stream)
        if isinstance(op, A.RandomHorizontalFlip):
            values = {k: f.horizontal_flip(v) if op.flip_mask(here)[0] else v for k, v in values.items()}
        elif isinstance(op, A.RandomResizedCrop):
            box = op.plan_crops(Crops.full(np.array([size])), here).box[0].tolist()
            values = {k: f.resized_crop(v, *box, list(op._size_pair)) for k, v in values.items()}
        elif isinstance(op, A.Resize):
            values = {k: f.resize(v, op.size if isinstance(op.size, int) else list(op.size)) for k, v in values.items()}
        elif isinstance(op, A.CenterCrop):
            values = {k: f.center_crop(v, list(op._size_pair)) for k, v in values.items()}
        elif isinstance(op, A.RandomCrop):
            (rows, columns), padding = op._size_pair, op.padding
            top = int(here.integers(size[0] + 2 * padding - rows + 1, 0)[0])
            left = int(here.integers(size[1] + 2 * padding - columns + 1, 1)[0])
            if pad_first:
                values = {k: f.pad(v, padding, 0, op.padding_mode) for k, v in values.items()}
            else:
                top, left = top - padding, left - padding
            values = {k: f.crop(v, top, left, rows, columns) for k, v in values.items()}
        size = tuple(values["image"].shape[-2:])
    return values


LISTS: list[list[Any]] = [
    [A.RandomResizedCrop((30, 26)), A.RandomHorizontalFlip()],
    [A.Resize(40), A.CenterCrop(36), A.RandomHorizontalFlip()],
    [A.Resize((50, 33)), A.RandomCrop(30)],
    [A.RandomCrop(20, padding=4), A.RandomHorizontalFlip()],
    [A.RandomHorizontalFlip(), A.CenterCrop((30, 28)), A.RandomCrop((25, 9)), A.RandomHorizontalFlip(0.8)],
    [A.RandomHorizontalFlip(), A.RandomResizedCrop(21), A.RandomResizedCrop((40, 33)), A.Cutout(9), A.Resize(17)],
    [A.CenterCrop(64), A.RandomHorizontalFlip(), A.RandomCrop(60, 2), A.Resize(90)],  # beyond the image
    [A.RandomResizedCrop(24, (0.001, 0.01), (0.1, 10)), A.Cutout(3), A.RandomCrop(24, 8), A.RandomHorizontalFlip()],
    [
        A.Cutout(5),
        lambda images: 255 - images,
        A.RandomResizedCrop(24),
        A.PerImage(lambda image: image),
        A.RandomCrop(9),
    ],
    [A.Cutout(5)],
    [],
]


@pytest.mark.slow
@pytest.mark.parametrize("ops", LISTS, ids=lambda ops: " ".join(type(op).__name__ for op in ops))
@given(st.integers(34, 70), st.integers(34, 70), st.integers(0, 10_000), st.integers(0, 3))
def test_operations(tv: Any, ops: list[Any], height: int, width: int, seed: int, epoch: int) -> None:
    if isinstance(next(iter(ops), None), A.CenterCrop):
        # Of an odd number of missing columns torchvision gives its images (n - 1) / 2 on the left, and to boxes
        # round(n / 2): a pixel apart for 3, 7, 11 … Ours are where the image is.
        height, width = height - (64 - height) % 2, width - (64 - width) % 2
    one = record(height, width, seed, dtype=DTYPES[seed % 3])
    ids = np.array([seed + 1, seed, seed + 2])
    draws = Draws(5, epoch, ids)
    sizes = np.array([(80, 90), (height, width), (34, 34)])
    placement = plan_targets(sizes, ops, draws)
    if isinstance(next(iter(ops), None), GeometricOperation) and not getattr(ops[0], "padding", 0):
        first = plan_each(ops[:1], sizes, draws)[1]  # as the loader has planned it for the images
        again = plan_targets(sizes, ops, draws, first)
        for one_move, other in zip(placement.moves, again.moves, strict=True):
            for name in ("box", "size", "window", "flip"):
                assert np.array_equal(getattr(one_move.crops, name), getattr(other.crops, name))
    geometric = [op for op in ops if not isinstance(op, A.Cutout) and hasattr(op, "plan_crops")]
    expected = replayed(tv, [op if op in geometric else None for op in ops], theirs(tv, one), one.size, draws[1:2])
    assert placement.sizes[1].tolist() == list(expected["image"].shape[-2:])
    assert_same(tv, placement, one, expected, row=1)
    if len(geometric) == len(ops):
        image = torch.from_numpy(one.image).permute(2, 0, 1)[None].contiguous()
        found = apply_operations(ops, image, Draws(5, epoch, torch.from_numpy(ids[1:2])))[0]
        once = sum(isinstance(op, A.Resize | A.RandomResizedCrop) for op in ops) <= 1
        assert (found.int() - expected["image"].int()).abs().max() <= (1 if once else 2)


@pytest.mark.slow
@given(st.integers(34, 70), st.integers(34, 70), st.integers(0, 10_000))
def test_any_coordinates_beside_padding(tv: Any, height: int, width: int, seed: int) -> None:
    """torchvision adds the padding first, which rounds to float32 once more: by 2**-24 of what is below 128."""
    one, draws, ops = record(height, width, seed), Draws(5, 0, np.array([seed])), [A.RandomCrop(30, padding=9)]
    placement, rows = plan_targets(np.array([one.size]), ops, draws), np.zeros(len(one.boxes), int)
    expected = replayed(tv, ops, theirs(tv, one), one.size, draws, pad_first=True)
    boxes, _ = place_boxes(placement, one.boxes, rows)
    assert np.abs(boxes - expected["boxes"].numpy()).max() <= 2.0**-17
    assert np.abs(place_points(placement, one.points, rows) - expected["points"].numpy()).max() <= 2.0**-17


@pytest.mark.parametrize("ops", LISTS, ids=lambda ops: " ".join(type(op).__name__ for op in ops))
def test_a_record_gets_the_same_in_any_batch(ops: list[Any]) -> None:
    records = [record(64 - n, 40 + n, n) for n in range(9)]
    sizes, draws = np.array([one.size for one in records]), Draws(1, 2, np.arange(50, 59))
    whole = plan_targets(sizes, ops, draws)
    for row, one in enumerate(records):
        alone, zeros, rows = plan_targets(sizes[row : row + 1], ops, draws[row : row + 1]), np.zeros(7, int), [row] * 7
        assert np.array_equal(place_mask(alone, 0, one.mask), place_mask(whole, row, one.mask))
        for ours, others in zip(
            place_boxes(alone, one.boxes, zeros, 4, 0.3),
            place_boxes(whole, one.boxes, np.array(rows), 4, 0.3),
            strict=True,
        ):
            assert np.array_equal(ours, others)
        assert np.array_equal(place_points(alone, one.points, zeros), place_points(whole, one.points, np.array(rows)))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_masks_are_padded_as_images(tv: Any, mode: Any) -> None:
    ops, draws = [A.RandomCrop(30, 6, mode), A.RandomHorizontalFlip()], Draws(0, 0, np.arange(20))
    records = [record(28, 25, n) for n in range(20)]
    placement = plan_targets(np.array([one.size for one in records]), ops, draws)
    images = torch.stack([torch.from_numpy(one.mask)[None] for one in records])
    expected = apply_operations(ops, images, Draws(0, 0, torch.arange(20)))
    for row, one in enumerate(records):
        assert np.array_equal(place_mask(placement, row, one.mask), expected[row, 0].numpy())
        values = {k: theirs(tv, one)[k] for k in ("image", "mask")}
        by_torchvision = replayed(tv, ops, values, one.size, draws[row : row + 1], pad_first=True)
        assert np.array_equal(place_mask(placement, row, one.mask), by_torchvision["mask"].numpy())


def test_a_mask_needs_no_rows_below_its_crop() -> None:
    one = record(40, 30, 1)
    placement = one_crop((5, 6, 20, 20), (10, 10), (0, 0, 10, 10))
    expected = place_mask(placement, 0, one.mask)
    assert np.array_equal(place_mask(placement, 0, one.mask[:24]), expected)
    out = np.empty((10, 10), np.uint8)
    assert place_mask(placement, 0, one.mask, out=out) is out
    assert np.array_equal(out, expected)
    for mask in (one.mask[:20], one.mask[:, :20], one.image):
        with pytest.raises(ValueError, match=r"the mask has shape .*, and its image shows 24x25 pixels of it"):
            place_mask(placement, 0, mask)


def test_a_center_crop_beyond_the_image_keeps_boxes_on_their_objects() -> None:
    """torchvision puts an image of 5 columns into the middle of 8 from column 1 on, and its boxes from column 2 on."""
    one = Record(np.zeros((5, 5, 3), np.uint8), np.ones((5, 5), np.uint8), np.array([[0, 0, 5, 5]], np.float32), None)
    placement = plan_targets(np.array([(5, 5)]), [A.CenterCrop(8)], Draws(0, 0, np.arange(1)))
    mask = place_mask(placement, 0, one.mask)
    boxes, _ = place_boxes(placement, one.boxes, np.zeros(1, int))
    assert boxes.tolist() == [[1, 1, 6, 6]]
    assert np.array_equal(np.argwhere(mask)[[0, -1]], [(1, 1), (5, 5)])


# What is kept -----------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 10_000),
    st.sampled_from([0, 0.5, 1, 30, 400]),
    st.sampled_from([0, 0.1, 0.5, 0.999, 1.0]),
    st.sampled_from(LISTS[:8]),
)
def test_boxes_that_are_dropped(seed: int, min_area: float, min_visible: float, ops: list[Any]) -> None:
    one, draws = record(50, 60, seed, count=20), Draws(0, 0, np.array([seed]))
    placement, rows = plan_targets(np.array([(50, 60)]), ops, draws), np.zeros(20, int)
    boxes, keep = place_boxes(placement, one.boxes, rows, min_area, min_visible)
    height, width = placement.sizes[0].tolist()
    assert (boxes >= 0).all()
    assert (boxes[:, ::2] <= width).all()
    assert (boxes[:, 1::2] <= height).all()
    scale = 1.0
    for move in placement.moves:
        scale *= float((move.crops.size / move.crops.box[:, 2:]).prod())
    for before, (left, top, right, bottom), kept in zip(one.boxes.tolist(), boxes.tolist(), keep, strict=True):
        area = (right - left) * (bottom - top)
        whole = (before[2] - before[0]) * (before[3] - before[1]) * scale
        if abs(area - min_area) > 1e-3 and abs(area - min_visible * whole) > 1e-3 * whole:
            assert kept == (area >= min_area and area >= min_visible * whole)


def test_a_whole_box_is_visible_to_the_last_bit() -> None:
    one, rows = record(300, 400, 5, count=2000), np.zeros(2000, int)
    placement = plan_targets(
        np.array([(300, 400)]), [A.Resize(77), A.RandomHorizontalFlip(1)], Draws(0, 0, np.arange(1))
    )
    assert place_boxes(placement, one.boxes, rows, 0, 1.0)[1].all()


def test_boxes_that_are_none() -> None:
    placement = plan_targets(np.array([(10, 10)]), [A.CenterCrop(4)], Draws(0, 0, np.arange(1)))
    boxes = np.array([(6, 6, 4, 4), (4, 4, 4, 4), (5, 5, np.nan, 9), (0, 0, 3, 3), (-9, -9, 99, 99)], np.float32)
    found, keep = place_boxes(placement, boxes, np.zeros(5, int))
    assert keep.tolist() == [False, False, False, False, True]
    assert found[4].tolist() == [0, 0, 4, 4]
    found, keep = place_boxes(placement, np.zeros((0, 4), np.float32), np.zeros(0, int))
    assert (found.shape, found.dtype, keep.shape, keep.dtype) == ((0, 4), np.float32, (0,), np.bool_)
    assert place_points(placement, np.zeros((0, 17, 3), np.float32), np.zeros(0, int)).shape == (0, 17, 3)


def test_where_nothing_moves_boxes_stay_as_they_are() -> None:
    placement = plan_targets(np.array([(10, 10)]), [A.Cutout(3)], Draws(0, 0, np.arange(1)))
    boxes = np.array([(-3, 5, 20, 5.1)], np.float32)
    found, keep = place_boxes(placement, boxes, np.zeros(1, int))
    assert placement.moves == ()
    assert np.array_equal(found, boxes)
    assert keep.all()


def test_visibility_of_points() -> None:
    placement = plan_targets(np.array([(10, 10)]), [A.CenterCrop(4)], Draws(0, 0, np.arange(1)))
    points = np.array([[(5, 6, 2), (0, 0, 0), (5, 5, 0)], [(5, 2, 2), (2.5, 6.5, 1), (7, 2, 1)]], np.float32)
    expected = [[(2, 3, 2), (0, 0, 0), (0, 0, 0)], [(0, 0, 0), (-0.5, 3.5, 1), (0, 0, 0)]]
    assert np.array_equal(place_points(placement, points, np.zeros(2, int)), expected)
    # Without visibility they are moved, however far.
    assert place_points(placement, points[..., :2], np.zeros(2, int))[1].tolist() == [[2, -1], [-0.5, 3.5], [4, -1]]


def test_a_visible_point_stays_visible_when_it_is_mirrored() -> None:
    """The last column, made smaller, lies beyond W - 1; mirrored, below 0."""
    ops = [A.Resize((8, 8)), A.RandomHorizontalFlip(1), A.Resize((40, 40)), A.CenterCrop(40)]
    placement = plan_targets(np.array([(80, 80)]), ops, Draws(0, 0, np.arange(1)))
    corners = np.array([(0, 0, 2), (79, 79, 2)], np.float32)
    found = place_points(placement, corners, np.zeros(2, int))
    assert found[:, 2].tolist() == [2, 2]
    assert np.abs(found[:, :2] - [(35, 0), (-4.5, 39.5)]).max() < 1e-5


def test_masks_and_boxes_of_rectangles_agree() -> None:
    """A mask of a rectangle shows what is left of its box, where nothing is resized."""
    random, ops = np.random.default_rng(0), [A.RandomHorizontalFlip(), A.RandomCrop(30, 6), A.CenterCrop(26)]
    placement = plan_targets(np.tile([[40, 50]], (60, 1)), ops, Draws(0, 0, np.arange(60)))
    for row in range(60):
        (left, right), (top, bottom) = np.sort(random.choice(50, 2, False)), np.sort(random.choice(40, 2, False))
        mask = np.zeros((40, 50), np.int32)
        mask[top:bottom, left:right] = 1
        places = np.argwhere(place_mask(placement, row, mask))
        boxes, keep = place_boxes(placement, np.array([(left, top, right, bottom)], np.float32), np.array([row]))
        assert keep[0] == (len(places) > 0)
        if keep[0]:
            (y0, x0), (y1, x1) = places.min(0), places.max(0) + 1
            assert boxes[0].tolist() == [x0, y0, x1, y1]


# What is refused --------------------------------------------------------------------------------------------------


def test_a_crop_that_is_too_large_names_the_record() -> None:
    with pytest.raises(UsageError, match="record 12 is 8x9 there, smaller than the crop of 13x13"):
        plan_targets(np.array([(9, 9), (8, 9)]), [A.RandomCrop(13, 2)], Draws(0, 0, np.array([11, 12])))


def geometric_of_torchvision(tv: Any) -> dict[str, type]:
    """Classes of both versions that move pixels: all of v2's modules of geometry and policies, and their elders."""
    modules = [tv.transforms.v2._geometry, tv.transforms.v2._auto_augment]
    names = {
        name
        for each in modules
        for name, kind in vars(each).items()
        if getattr(kind, "__module__", "") == each.__name__
    }
    return {name: kind for name, kind in transforms_of(tv).items() if kind.__name__ in names}


def test_torchvisions_geometry_would_leave_targets_behind(tv: Any) -> None:
    found = geometric_of_torchvision(tv)
    assert {"torchvision.transforms.v2._geometry.Pad", "torchvision.transforms.transforms.RandomRotation"} <= {*found}
    v2 = tv.transforms.v2
    for kind in found.values():
        op = make_any(kind)
        for wrapped in (op, A.PerImage(op), A.PerImage(v2.Compose([v2.RandomApply([op])]))):
            words = f"torchvision's {kind.__name__} would move the images, and leave mask"
            with pytest.raises(UsageError, match=words):
                check_targets([A.Cutout(2), wrapped], ["image", "mask", "label"])
            check_targets([wrapped], ["image", "label"])


def test_what_keeps_pixels_in_their_places_passes(tv: Any) -> None:
    v1, v2 = tv.transforms, tv.transforms.v2
    pixels = [v2.Normalize([0.5], [0.5]), v2.ToDtype(torch.float32), A.PerImage(v2.ColorJitter(0.5)), v1.Grayscale(3)]
    ours = [A.RandomCrop(5, 2), A.RandomResizedCrop(9), A.Cutout(2), A.PerImage(A.InPlace(lambda image: image))]
    said = [A.InPlace(abs), A.InPlace(A.PerImage(abs)), A.PerImage(torch.nn.Sequential(v2.Grayscale(3)))]
    said += [A.PerImage(v2.Compose([v2.RandomApply([A.InPlace(abs)])])), A.InPlace(v2.Lambda(abs))]
    check_targets([*pixels, *ours, *said], ["image", "mask", "boxes", "keypoints"])


class Own(A.Operation):
    """An operation of a user's, which may do anything."""

    def __call__(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        return images


def test_functions_that_nobody_knows_are_refused(tv: Any) -> None:
    """Beside targets, unless the user says that they leave pixels in their places."""
    v2 = tv.transforms.v2

    class Subclass(v2.Normalize):
        """Of torchvision's, and with anything in it."""

    unknown = [abs, lambda images: images, torch.nn.ReLU(), Own(), v2.Lambda(abs), Subclass([0.5], [0.5])]
    for op in unknown:
        held = [op, A.PerImage(op), A.PerImage(torch.nn.Sequential(op))] if isinstance(op, torch.nn.Module) else [op]
        for wrapped in (*held, A.PerImage(v2.Compose([op])), v2.Compose([A.InPlace(abs), op])):
            for types in (["boxes"], ["mask"], ["keypoints"]):
                with pytest.raises(UsageError, match=rf"might move the images, and would leave {types[0]} .*InPlace\("):
                    check_targets([A.Cutout(2), wrapped], ["image", *types])
            check_targets([wrapped], ["image", "label"])
        check_targets([A.InPlace(op)], ["mask"])
    for moving in (A.InPlace(v2.RandomRotation(9)), A.PerImage(A.InPlace(v2.RandomRotation(9)))):
        with pytest.raises(UsageError, match="torchvision's RandomRotation would move the images"):
            check_targets([moving], ["mask"])


def test_in_place() -> None:
    images = torch.arange(48).reshape(1, 3, 4, 4)
    assert A.InPlace(torch.neg)(images).tolist() == (-images).tolist()
    assert A.InPlace(Own())(images, Draws(0, 0, torch.zeros(1))) is images
    assert A.InPlace(lambda images: {"images": images})(images) == {"images": images}  # for transform=
    with pytest.raises(UsageError, match=r"InPlace\(.*\) made 2x4 pixels of 4x4: it does not leave them in place"):
        A.InPlace(lambda images: images[..., ::2, :])(images)
    for wrong, message in (
        (3, "InPlace: fn should be a function, got 3"),
        ("neg", "InPlace takes a function, got 'neg'"),
    ):
        with pytest.raises(UsageError, match=message):
            A.InPlace(wrong)
    assert A.InPlace(torch.nn.ReLU()).size_after((3, 4)) == (3, 4)


def test_boxes_and_mirrored_padding() -> None:
    crop = A.RandomCrop(9, 2, "reflect")
    check_targets([crop], ["mask", "label"])
    for types, what in ((["boxes"], "boxes"), (["mask", "keypoints"], "keypoints")):
        with pytest.raises(UsageError, match=f"padding_mode 'reflect' shows parts of the image again, .* no {what}"):
            check_targets([crop], types)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((0.5, 1, 0), "mask_fill should be a whole number, got 0.5"),
        ((2**31, 1, 0), "mask_fill should be an int32, got 2147483648"),
        ((True, 1, 0), "mask_fill should be a whole number, got True"),
        ((0, -1, 0), "min_area should be a number of square pixels, at least 0, got -1"),
        ((0, "1", 0), "min_area should be .* got '1'"),
        ((0, float("nan"), 0), "min_area should be .* got nan"),
        ((0, 1, 1.5), "min_visible should be a share of a box's area, 0 … 1, got 1.5"),
        ((0, 1, None), "min_visible should be .* got None"),
    ],
)
def test_options_that_cannot_be(options: Any, message: str) -> None:
    check_target_options(255, 0, 0.5)
    with pytest.raises(UsageError, match=message):
        check_target_options(*options)


@pytest.mark.filterwarnings("error")
def test_boxes_without_numbers_or_near_the_end_of_float32_are_dropped_in_silence() -> None:
    ops = [A.RandomResizedCrop(16), A.RandomHorizontalFlip()]
    placement = plan_targets(np.array([[24, 32]]), ops, Draws(0, 0, np.arange(1)))
    boxes = [[np.nan, 1, 5, 6], [1e30, 1e30, 3e38, 3e38], [np.inf, 0, np.inf, 9], [-np.inf, -np.inf, np.inf, np.inf]]
    _, keep = place_boxes(placement, np.array(boxes, np.float32), np.zeros(4, np.int64), min_visible=0.5)
    assert keep.tolist()[:3] == [False] * 3
    place_boxes(placement, -np.array(boxes, np.float32), np.zeros(4, np.int64), min_visible=0.5)
