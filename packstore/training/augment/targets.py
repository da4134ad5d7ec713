"""Masks, boxes and keypoints of images that were augmented: moved as the images were, by the same random numbers.

The geometric operations of a list are planned once more, as :class:`Crops` of sizes alone, whether they run while
images are decoded or on batches. The arithmetic is that of torchvision's ``transforms.v2`` for ``tv_tensors`` (v0.28,
``transforms/v2/functional/_geometry.py``), in the same order and in float32, for all boxes of a batch at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.images.programs import Program
from packstore.training.augment.base import Crops, GeometricOperation, PaddingMode, Step
from packstore.training.augment.crop import source_index
from packstore.training.augment.detection import centres_inside
from packstore.training.augment.in_place import InPlace, named
from packstore.training.augment.per_image import PerImage, is_of_torchvision, parts_of
from packstore.training.augment.policies import AugMix
from packstore.training.augment.program_operation import ProgramOperation
from packstore.training.augment.timm_policies import TimmAugment
from packstore.training.augment.warp_targets import Warp, warps_of
from packstore.training.random_draws import Draws

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Move:
    """What one operation makes of the images of a batch.

    Attributes:
        crops: numpy crops of what it is given.
        pads: What it shows where a window reaches out of the resized box.
        drops: bool ``(B,)``: images of which it drops boxes whose centres lie outside of the window; None for none.
    """

    crops: Crops
    pads: PaddingMode = "constant"
    drops: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class Placement:
    """Where the pixels of a batch come from, operation by operation.

    Attributes:
        moves: Of the operations that move pixels, in order; none where there are no such operations.
        sizes: int64 ``(B, 2)``: heights and widths of the results.
    """

    moves: tuple[Move | Warp, ...]
    sizes: Numbers

    @cached_property
    def warped(self) -> bool:
        """Whether rows and columns do not stay rows and columns."""
        return any(isinstance(move, Warp) for move in self.moves)

    @cached_property
    def parts(self) -> tuple[Placement | Warp, ...]:
        """Placements without warps, and the warps between them, in order."""
        parts: list[Placement | Warp] = []
        for move in self.moves:
            parts.append(Placement((move,), move.crops.window[:, 2:]) if isinstance(move, Move) else move)
        return tuple(parts)

    def rows_needed(self, row: int) -> int | None:
        """How many rows of the mask of image ``row`` are needed from the top on; None for all."""
        return None if self.warped else int(self.rows[row, : self.sizes[row, 0]].max(initial=-1)) + 1

    def prepare_masks(self) -> None:
        """Works out what masks need, once and not in every thread."""
        for part in self.parts if self.warped else (self,):
            if isinstance(part, Placement):
                _ = part.rows, part.columns

    @cached_property
    def rows(self) -> Numbers:
        """The row of the source that each row of the results shows, int64 ``(B, h)``, -1 for none.

        ``h`` is the largest height; of a lower result only its own rows count. Not for images that are warped.
        """
        return self._sources(0)

    @cached_property
    def columns(self) -> Numbers:
        """As :attr:`rows`, for columns: ``(B, w)``."""
        return self._sources(1)

    def _sources(self, axis: int) -> Numbers:
        found = None
        for move in self.moves:
            assert isinstance(move, Move)
            source = _sources(move, axis)
            if found is not None:
                earlier = np.take_along_axis(found, source.clip(0), 1)
                source = np.where(source < 0, -1, earlier)
            found = source
        if found is None:
            length = int(self.sizes[:, axis].max(initial=0))
            return np.broadcast_to(np.arange(length), (len(self.sizes), length))
        return found


def plan_targets(sizes: Numbers, ops: Sequence[Step], draws: Draws, first: Crops | None = None) -> Placement:
    """Where ``ops`` put the pixels of images of ``sizes``.

    Each operation is planned by itself, also where several are one while images are decoded: rounding to float32, and
    to the nearest pixel of a mask, is then that of torchvision, and the same wherever an operation runs.

    Args:
        sizes: int64 ``(B, 2)``: heights and widths of the images.
        ops: The user's list, whole. What is no geometric operation leaves every pixel in its place.
        draws: Of the records, numpy; the streams are set here.
        first: What the first operation makes of them, where that is planned already.

    Raises:
        UsageError: As :meth:`GeometricOperation.plan`.
    """
    moves: list[Move | Warp] = []
    for stream, op in enumerate(ops):
        if isinstance(op, GeometricOperation):
            crops = first if stream == 0 else None
            if crops is None:
                crops = op.crops_of_whole(sizes, draws.replace(stream=stream))
            moves.append(Move(crops, op.pads))
            sizes = crops.window[:, 2:]
        elif isinstance(op, ProgramOperation) and op.moves_pixels:
            moves += warps_of(program_of(op, draws.replace(stream=stream), sizes), sizes)
    return Placement(tuple(moves), sizes)


def program_of(op: ProgramOperation, draws: Draws, sizes: Numbers) -> Program:
    """The program of images of ``sizes``, which may differ where each is a batch by itself."""
    same = np.unique(sizes, axis=0)
    if len(same) == 1 or not op.depends_on_size:
        drawn: Program = op.program(draws, (int(same[0, 0]), int(same[0, 1])))
        return drawn
    each = [op.program(draws[n : n + 1], (int(h), int(w))) for n, (h, w) in enumerate(sizes.tolist())]
    return np.concatenate(each) if each else op.program(draws, (1, 1))


def place_mask(
    placement: Placement, row: int, mask: NDArray[Any], fill: float = 0, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """The mask of image ``row``, resized without interpolation (nearest), cropped and mirrored as the image.

    Args:
        placement: Of the batch.
        row: Which of its images.
        mask: ``(H, W)`` of any dtype, with the height and width of the image. Rows below the lowest that is shown may
            be left out.
        fill: Its value where the result reaches out of the image.
        out: ``(h, w)`` of the mask's dtype to write to, with the height and width of the result; None for a new array.

    Raises:
        ValueError: The mask has less rows or columns than are shown.
    """
    if placement.warped:
        for part in placement.parts:
            mask = part.move_mask(row, mask, fill) if isinstance(part, Warp) else place_mask(part, row, mask, fill)
        if out is None:
            return np.ascontiguousarray(mask)
        out[:] = mask
        return out
    height, width = placement.sizes[row].tolist()
    rows, columns = placement.rows[row, :height], placement.columns[row, :width]
    needed = int(rows.max()) + 1, int(columns.max()) + 1
    if mask.ndim != 2 or mask.shape[0] < needed[0] or mask.shape[1] < needed[1]:
        raise ValueError(f"the mask has shape {mask.shape}, and its image shows {needed[0]}x{needed[1]} pixels of it")
    if out is None:
        out = np.empty((height, width), mask.dtype)
    if 0 in needed:
        out[:] = fill
        return out
    # Whole rows first, which is a copy of memory each: 4 times as fast as one index of rows and columns. Modes other
    # than "clip" would go through a buffer.
    np.take(mask.take(rows, 0, mode="clip"), columns, 1, out=out, mode="clip")
    out[rows < 0] = fill
    out[:, columns < 0] = fill
    return out


def place_boxes(
    placement: Placement, boxes: Floats, rows: Numbers, min_area: float = 1.0, min_visible: float = 0.0
) -> tuple[Floats, NDArray[np.bool_]]:
    """Boxes of a batch, moved as their images and clipped to the results.

    Args:
        placement: Of the batch.
        boxes: float32 ``(N, 4)``: left, top, right, bottom, in pixels of the images.
        rows: int64 ``(N,)``: the image of each box.
        min_area: Least area of a box that is kept, in square pixels of the result.
        min_visible: Least share of its area that is left of a box that is kept. With both 0, all are.

    Returns:
        All boxes, ``(N, 4)``, and which of them are to be kept, bool ``(N,)``. Where nothing moves all are, as they
        were.
    """
    boxes = np.asarray(boxes, np.float32).reshape(-1, 4)
    if not placement.moves:
        return boxes, np.ones(len(boxes), np.bool_)
    with np.errstate(over="ignore", invalid="ignore"):  # of boxes near the end of float32, or without numbers
        shown = move_boxes(placement, boxes, rows, clip=True)
        area = _area(shown)
        keep = area >= min_area
        if min_visible > 0:
            # Both by the same rounded arithmetic, so that a box of which nothing is cut off has all of its area.
            keep &= area >= min_visible * _area(move_boxes(placement, boxes, rows, clip=False))
    return shown, keep


def place_points(placement: Placement, points: Floats, rows: Numbers) -> Floats:
    """Keypoints of a batch, moved as their images; they are not clipped.

    As in torchvision, a point of an image of width W that is mirrored goes from x to W - 1 - x (a box: W - x), and what
    is left of a body does not become right: exchanging such points is up to the user.

    Args:
        placement: Of the batch.
        points: float32 ``(N, ..., k)``: x and y, and where k is 3 also v, the visibility, as COCO has it. Points with
            v = 0, not labelled, come out as zeros; so do those of which the result shows nothing, where a point is the
            pixel from (x, y) to (x + 1, y + 1).
        rows: int64 ``(N,)``: the image of each.

    Returns:
        float32 of the same shape.
    """
    points = np.asarray(points, np.float32)
    if not placement.moves:
        return points
    count = int(np.prod(points.shape[1:-1]))
    flat, rows = points.reshape(-1, points.shape[-1]), np.repeat(rows, count)
    places = flat[:, None, :2]
    for move in placement.moves:
        if isinstance(move, Warp):
            places = move.move(places, rows, last=1)
        else:
            places = _move_points(move.crops, places, rows, clip=False, last=1)
    result = np.concatenate([places[:, 0], flat[:, 2:]], 1)
    if points.shape[-1] == 3:
        # As a box of one pixel, which tells right through any resizing and mirroring whether some of it is left.
        pixels = np.concatenate([flat[:, :2], flat[:, :2] + 1], 1)
        shown = _area(move_boxes(placement, pixels, rows, clip=True)) > 0
        result[~shown | (flat[:, 2] == 0)] = 0
    return result.reshape(points.shape)


def _sources(move: Move, axis: int) -> Numbers:
    """The rows (``axis`` 0) or columns that each row or column shows of what ``move`` is given; -1 for none."""
    crops = move.crops
    start, length = crops.box[:, [axis]], crops.box[:, [2 + axis]]
    resized, window = crops.size[:, [axis]], crops.window[:, [2 + axis]]
    place = np.arange(int(window.max(initial=0)))
    if axis == 1 and crops.flip is not None:
        place = np.where(crops.flip[:, None], window - 1 - place, place)
    place = place + crops.window[:, [axis]]
    inner = source_index(place, resized, move.pads).clip(0, resized - 1)
    # torch's "nearest" (nearest_idx in ATen/native/UpSample.h): both operations in float32.
    scale = length.astype(np.float32) / resized.astype(np.float32)
    source = start + np.minimum((inner.astype(np.float32) * scale).astype(np.int64), length - 1)
    return np.where(place == inner, source, -1) if move.pads == "constant" else source


def move_boxes(placement: Placement, boxes: Floats, rows: Numbers, clip: bool) -> Floats:
    """Boxes float32 ``(N, 4)`` of images ``rows``, moved as these, and perhaps clipped to the results."""
    corners = boxes.reshape(-1, 2, 2)
    for move in placement.moves:
        if isinstance(move, Warp):
            corners = move.move_boxes(corners, rows, clip)
            continue
        outside = None
        if move.drops is not None:
            shown = np.concatenate([(w := move.crops.window[rows])[:, 1::-1], w[:, 1::-1] + w[:, :1:-1]], 1)
            outside = move.drops[rows] & ~centres_inside(corners.reshape(-1, 4), shown)
        corners = _move_points(move.crops, corners, rows, clip)
        if outside is not None:
            corners[outside] = 0
        if move.crops.flip is not None:
            flipped = move.crops.flip[rows]
            corners[flipped, :, 0] = corners[flipped, ::-1, 0]
    return corners.reshape(-1, 4)


def _move_points(crops: Crops, points: Floats, rows: Numbers, clip: bool, last: int = 0) -> Floats:
    """``points`` ``(N, m, 2)``, x and y, of images ``rows``, after ``crops``.

    Args:
        crops: numpy crops.
        points: float32.
        rows: int64 ``(N,)``.
        clip: Clip to the box of the source and to the window.
        last: By how much the x to which 0 is mirrored is less than the width.

    Returns:
        float32 of the same shape, in new memory.
    """
    box, size, window = crops.box[rows, None], crops.size[rows, None], crops.window[rows, None]

    def cut(points: Floats, part: Numbers) -> Floats:
        points = points - part[..., 1::-1].astype(np.float32)
        return np.clip(points, 0, part[..., :1:-1].astype(np.float32)) if clip else points

    ratio = (size / box[..., 2:])[..., ::-1].astype(np.float32)
    points = cut(cut(points, box) * ratio, window)
    if crops.flip is not None:
        flipped = crops.flip[rows]
        points[flipped, :, 0] = (window[flipped, :, 3] - last).astype(np.float32) - points[flipped, :, 0]
    return points


def _area(boxes: Floats) -> NDArray[np.float64]:
    sides = (boxes[:, 2:] - boxes[:, :2]).clip(0).astype(np.float64)
    area: NDArray[np.float64] = sides[:, 0] * sides[:, 1]
    return area


# What users ask for ----------------------------------------------------------------------------------------------


def check_target_options(mask_fill: int, min_area: float, min_visible: float) -> None:
    """Raises :class:`UsageError` where options of :func:`place_mask` and :func:`place_boxes` cannot be."""
    if not isinstance(mask_fill, int) or isinstance(mask_fill, bool):
        raise UsageError(f"mask_fill should be a whole number, got {mask_fill!r}")
    if not -(2**31) <= mask_fill < 2**31:
        raise UsageError(f"mask_fill should be an int32, got {mask_fill}")
    if not isinstance(min_area, int | float) or not 0 <= min_area < float("inf"):
        raise UsageError(f"min_area should be a number of square pixels, at least 0, got {min_area!r}")
    if not isinstance(min_visible, int | float) or not 0 <= min_visible <= 1:
        raise UsageError(f"min_visible should be a share of a box's area, 0 … 1, got {min_visible!r}")


_INSTEAD = "packstore.augment's operations, or a DataLoader with output='tv_tensors'"


def check_targets(ops: Sequence[Step], types: Sequence[str], instead: str = _INSTEAD) -> None:
    """Raises :class:`UsageError` for operations that targets cannot follow, and for functions that might be such.

    Args:
        ops: The user's list, whole, and what else is called with images.
        types: Types of the columns that are loaded: of ``mask``, ``boxes`` and ``keypoints`` (others are passed over).
        instead: What moves images and targets together, for messages.
    """
    moved = [name for name in ("mask", "boxes", "keypoints") if name in types]
    if any(map(_mixes, ops)) and (moved or "image" in types):
        others = " and ".join([*moved, *(["further images"] if "image" in types else [])])
        raise UsageError(f"AugMix mixes images that lie in different places, and {others} cannot follow")
    if not moved:
        return
    for op in ops:
        for part, stays in _all_parts(op):
            if kind := next(filter(_moves, type(part).__mro__), None):
                raise UsageError(
                    f"torchvision's {kind.__name__} would move the images, and leave {' and '.join(moved)} where they "
                    f"are; use {instead}"
                )
            if not (stays or _is_known(part)):
                raise UsageError(
                    f"{named(part)} might move the images, and would leave {' and '.join(moved)} where they are; if it "
                    "leaves every pixel in its place, say so: packstore.augment.InPlace(…) around it; else use "
                    f"{instead}"
                )
        if isinstance(op, GeometricOperation) and op.pads != "constant" and moved != ["mask"]:
            raise UsageError(
                f"{op!r}: padding_mode {op.pads!r} shows parts of the image again, which have no {moved[-1]}; use "
                "padding_mode='constant'"
            )


def _mixes(op: Any) -> bool:
    """Whether an operation is AugMix, timm's too, or holds it."""
    timm = isinstance(op, TimmAugment) and op.config.startswith("augmix")
    return timm or isinstance(op, AugMix) or any(map(_mixes, getattr(op, "transforms", ())))


def _all_parts(op: Any, stays: bool = False) -> Iterator[tuple[Any, bool]]:
    """All that an entry of a list holds, each with whether the user says that it leaves pixels in their places."""
    for part in parts_of(op):
        stays = stays or isinstance(part, InPlace)
        yield part, stays
        inner = [part.fn] if isinstance(part, PerImage) else part if type(part) is torch.nn.Sequential else ()
        for each in inner:
            yield from _all_parts(each, stays)


def _is_known(part: Any) -> bool:
    """Whether packstore knows where a step leaves pixels; of torchvision's, those that move them are refused before."""
    kind = type(part)
    if is_of_torchvision(kind):
        return kind.__name__ != "Lambda"
    return kind.__module__.startswith("packstore.") or kind is torch.nn.Sequential


def _moves(kind: type) -> bool:
    """Whether a class is one of torchvision's that move pixels."""
    if not is_of_torchvision(kind):
        return False
    return kind.__module__.endswith(("_geometry", "_auto_augment")) or kind.__name__ in _V1_GEOMETRY


_V1_GEOMETRY = {
    *("AugMix", "AutoAugment", "CenterCrop", "ElasticTransform", "FiveCrop", "Pad", "RandAugment", "RandomAffine"),
    *("RandomCrop", "RandomHorizontalFlip", "RandomPerspective", "RandomResizedCrop", "RandomRotation"),
    *("RandomVerticalFlip", "Resize", "TenCrop", "TrivialAugmentWide"),
}
