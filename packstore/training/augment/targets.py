"""Moves masks, boxes and keypoints with their augmented images, by the same random numbers.

Plans the geometric operations of a list again, as :class:`Crops` of sizes alone, whether they run while decoding or on
batches. The arithmetic equals torchvision's ``transforms.v2`` for ``tv_tensors`` (v0.28,
``transforms/v2/functional/_geometry.py``), in the same order and in float32, for all boxes of a batch at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.images.programs import Program
from packstore.training.augment.base import Crops, GeometricOperation, PaddingMode, Step
from packstore.training.augment.crop import source_index
from packstore.training.augment.detection import box_areas, centres_inside
from packstore.training.augment.program_operation import ProgramOperation
from packstore.training.augment.warp_targets import Warp, find_warps
from packstore.training.random_draws import Draws

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Move:
    """One operation's crops, resizes or flips of a batch, for moving masks, boxes and keypoints.

    Attributes:
        crops: numpy crops of the images before this operation.
        pads: Padding outside the resized box.
        drops: bool ``(B,)``: drop the boxes of these images if their centres are outside the window. None for no image.
    """

    crops: Crops
    pads: PaddingMode = "constant"
    drops: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class Placement:
    """All moves of a batch's pixels by the operations of a list. Masks, boxes and keypoints follow them.

    Attributes:
        moves: Moves and warps of the operations that move pixels, in order.
        sizes: int64 ``(B, 2)``: heights and widths of the images after all operations.
    """

    moves: tuple[Move | Warp, ...]
    sizes: Numbers

    @cached_property
    def has_warps(self) -> bool:
        """True if there are warps, which do not map rows to rows and columns to columns."""
        return any(isinstance(move, Warp) for move in self.moves)

    @cached_property
    def parts(self) -> tuple[Placement | Warp, ...]:
        """The moves in order, each as a placement of its own. Warps are as in :attr:`moves`."""
        parts: list[Placement | Warp] = []
        for move in self.moves:
            parts.append(Placement((move,), move.crops.window[:, 2:]) if isinstance(move, Move) else move)
        return tuple(parts)

    def rows_needed(self, row: int) -> int | None:
        """Returns how many rows of the mask of image ``row`` the result needs; None with warps, which may need all."""
        return None if self.has_warps else int(self.rows[row, : self.sizes[row, 0]].max(initial=-1)) + 1

    def prepare_masks(self) -> None:
        """Computes and caches the tables of rows and columns that :func:`place_mask` needs, before threads use them."""
        for part in self.parts if self.has_warps else (self,):
            if isinstance(part, Placement):
                _ = part.rows, part.columns

    @cached_property
    def rows(self) -> Numbers:
        """Source row of each row of the results, int64 ``(B, h)``; -1 for constant padding.

        ``h`` is the largest height. The last entries of a lower result are meaningless. Asserts that there are no
        warps.
        """
        return self._trace_axis(0)

    @cached_property
    def columns(self) -> Numbers:
        """Source column of each column of the results, ``(B, w)``, like :attr:`rows`."""
        return self._trace_axis(1)

    def _trace_axis(self, axis: int) -> Numbers:
        """Maps rows (``axis`` 0) or columns (1) of the results to those of the images; -1 for constant padding."""
        length = int(self.sizes[:, axis].max(initial=0))
        places = np.broadcast_to(np.arange(length), (len(self.sizes), length))
        # From the last move to the first: between them an image may be far larger than the result shows.
        for move in reversed(self.moves):
            assert isinstance(move, Move)
            places = np.where(places < 0, -1, _trace_move(move, axis, places))
        return places


def plan_targets(sizes: Numbers, ops: Sequence[Step], draws: Draws, first: Crops | None = None) -> Placement:
    """Draws how the operations ``ops`` move the pixels of images of ``sizes``.

    Plans each operation by itself, even if several run as one while decoding. This rounds coordinates as torchvision
    does, wherever an operation runs.

    Args:
        sizes: int64 ``(B, 2)``: heights and widths of the images.
        ops: The user's whole list. Operations that move no pixels, and foreign functions, are passed over.
        draws: Random numbers of the records, numpy. Operation ``i`` draws from stream ``i`` of them.
        first: Crops of the first operation, if it is geometric and drawn already.

    Raises:
        UsageError: As :meth:`GeometricOperation.plan_crops`.
    """
    moves: list[Move | Warp] = []
    for stream, op in enumerate(ops):
        if isinstance(op, GeometricOperation):
            crops = first if stream == 0 else None
            if crops is None:
                crops = op.plan_whole_images(sizes, draws.replace(stream=stream))
            moves.append(Move(crops, op.pads))
            sizes = crops.window[:, 2:]
        elif isinstance(op, ProgramOperation) and op.moves_pixels:
            moves += find_warps(draw_program_by_size(op, draws.replace(stream=stream), sizes), sizes)
    return Placement(tuple(moves), sizes)


def draw_program_by_size(op: ProgramOperation, draws: Draws, sizes: Numbers) -> Program:
    """Draws the program of images of ``sizes``, for all images at once.

    Draws image by image if sizes differ and the operation depends on them.
    """
    same = np.unique(sizes, axis=0)
    if len(same) == 1 or not op.depends_on_size:
        drawn: Program = op.draw_program(draws, (int(same[0, 0]), int(same[0, 1])))
        return drawn
    each = [op.draw_program(draws[n : n + 1], (int(h), int(w))) for n, (h, w) in enumerate(sizes.tolist())]
    return np.concatenate(each) if each else op.draw_program(draws, (1, 1))


def place_mask(
    placement: Placement, row: int, mask: NDArray[Any], fill: float = 0, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Moves the mask with its image ``row``: resizes (nearest pixel), crops, mirrors and warps it. Returns ``out``.

    Args:
        placement: Placement of the batch.
        row: Index of the image.
        mask: ``(…, H, W)`` of any dtype, with the height and width of the image. Rows below the lowest visible one may
            be missing.
        fill: Value outside the image.
        out: ``(…, h, w)`` to write to, with the mask's dtype, and height and width of the result. None for a new array.

    Raises:
        ValueError: The mask lacks visible rows or columns.
    """
    if placement.has_warps:
        for part in placement.parts:
            mask = part.move_mask(row, mask, fill) if isinstance(part, Warp) else place_mask(part, row, mask, fill)
        if out is None:
            return np.ascontiguousarray(mask)
        out[:] = mask
        return out
    height, width = placement.sizes[row].tolist()
    rows, columns = placement.rows[row, :height], placement.columns[row, :width]
    needed = int(rows.max()) + 1, int(columns.max()) + 1
    if mask.shape[-2] < needed[0] or mask.shape[-1] < needed[1]:
        raise ValueError(f"the mask has shape {mask.shape}, and its image shows {needed[0]}x{needed[1]} pixels of it")
    if out is None:
        out = np.empty((*mask.shape[:-2], height, width), mask.dtype)
    if 0 in needed:
        out[:] = fill
        return out
    # Whole rows first, which is a copy of memory each: 4 times as fast as one index of rows and columns. Modes other
    # than "clip" would go through a buffer.
    np.take(mask.take(rows, -2, mode="clip"), columns, -1, out=out, mode="clip")
    out[..., rows < 0, :] = fill
    out[..., columns < 0] = fill
    return out


def place_boxes(
    placement: Placement, boxes: Floats, rows: Numbers, min_area: float = 1.0, min_visible: float = 0.0
) -> tuple[Floats, NDArray[np.bool_]]:
    """Moves boxes of a batch with their images, and clips them to the results.

    Args:
        placement: Placement of the batch.
        boxes: float32 ``(N, 4)``: left, top, right, bottom, in pixels of the images.
        rows: int64 ``(N,)``: the image of each box.
        min_area: Minimum area of a kept box, in square pixels of the result.
        min_visible: Minimum fraction of a kept box's area that the result shows.

    Returns:
        All boxes, ``(N, 4)``, and which to keep, bool ``(N,)``. A kept box satisfies both limits. Without moves, boxes
        are unchanged, and all are kept.
    """
    boxes = np.asarray(boxes, np.float32).reshape(-1, 4)
    if not placement.moves:
        return boxes, np.ones(len(boxes), np.bool_)
    with np.errstate(over="ignore", invalid="ignore"):  # of boxes near the limit of float32, or with NaN
        shown = move_boxes(placement, boxes, rows, clip=True)
        area = box_areas(shown)
        keep = area >= min_area
        if min_visible > 0:
            # Both by the same rounded arithmetic, so that a box that is not cut has exactly its whole area.
            keep &= area >= min_visible * box_areas(move_boxes(placement, boxes, rows, clip=False))
    return shown, keep


def place_points(placement: Placement, points: Floats, rows: Numbers) -> Floats:
    """Moves keypoints of a batch with their images. Does not clip them.

    - Mirroring an image of width W maps x to W - 1 - x, as in torchvision. It does not swap left and right points of a
      body: users have to.
    - With visibility v, a point becomes zeros if v is 0. It also becomes zeros if its pixel is outside the result; the
      pixel reaches from (x, y) to (x + 1, y + 1).
    - Points without v keep coordinates outside the result.
    - Without moves, points are returned unchanged.

    Args:
        placement: Placement of the batch.
        points: float32 ``(N, ..., k)``: x and y; if k is 3 also COCO's visibility v.
        rows: int64 ``(N,)``: the image of each point.

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
            places = move.move_points(places, rows, last=1)
        else:
            places = _move_points(move.crops, places, rows, clip=False, last=1)
    result = np.concatenate([places[:, 0], flat[:, 2:]], 1)
    if points.shape[-1] == 3:
        # Move it as a box of one pixel: after any resizing and mirroring, its area shows if it is visible.
        pixels = np.concatenate([flat[:, :2], flat[:, :2] + 1], 1)
        shown = box_areas(move_boxes(placement, pixels, rows, clip=True)) > 0
        result[~shown | (flat[:, 2] == 0)] = 0
    return result.reshape(points.shape)


def _trace_move(move: Move, axis: int, place: Numbers) -> Numbers:
    """Maps rows (``axis`` 0) or columns (1) after a move to those before it; -1 for constant padding."""
    crops = move.crops
    start, length = crops.box[:, [axis]], crops.box[:, [2 + axis]]
    resized, window = crops.size[:, [axis]], crops.window[:, [2 + axis]]
    if axis == 1 and crops.flip is not None:
        place = np.where(crops.flip[:, None], window - 1 - place, place)
    place = place + crops.window[:, [axis]]
    inner = source_index(place, resized, move.pads).clip(0, resized - 1)
    # torch's "nearest" (nearest_idx in ATen/native/UpSample.h): both operations in float32.
    scale = length.astype(np.float32) / resized.astype(np.float32)
    source = start + np.minimum((inner.astype(np.float32) * scale).astype(np.int64), length - 1)
    return np.where(place == inner, source, -1) if move.pads == "constant" else source


def move_boxes(placement: Placement, boxes: Floats, rows: Numbers, clip: bool) -> Floats:
    """Moves boxes float32 ``(N, 4)`` with images ``rows``. Clips them to the results if ``clip``.

    Boxes that :attr:`Move.drops` drops become zeros.
    """
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
    """Moves points x, y, float32 ``(N, m, 2)``, with images ``rows``, by numpy crops."""
    box, size, window = crops.box[rows, None], crops.size[rows, None], crops.window[rows, None]

    def cut(points: Floats, part: Numbers) -> Floats:
        points = points - part[..., 1::-1].astype(np.float32)
        return np.clip(points, 0, part[..., :1:-1].astype(np.float32)) if clip else points

    ratio = (size / box[..., 2:])[..., ::-1].astype(np.float32)
    points = cut(cut(points, box) * ratio, window)
    # Mirroring maps x to width - last - x: last is 1 for pixels, 0 for corners of boxes.
    if crops.flip is not None:
        flipped = crops.flip[rows]
        points[flipped, :, 0] = (window[flipped, :, 3] - last).astype(np.float32) - points[flipped, :, 0]
    return points


@dataclass(frozen=True, eq=False)
class RowPlacement:
    """Moves rows of columns by a placement, see :class:`~packstore.core.column_types.forms.RowMoves`.

    Attributes:
        placement: Placement of the batch.
        min_area: See :func:`place_boxes`.
        min_visible: See there.
    """

    placement: Placement
    min_area: float = 1.0
    min_visible: float = 0.0

    def move_boxes(self, boxes: Floats, images: Numbers) -> tuple[Floats, NDArray[np.bool_]]:
        """Calls :func:`place_boxes`."""
        return place_boxes(self.placement, boxes, images, self.min_area, self.min_visible)

    def move_points(self, points: Floats, images: Numbers) -> Floats:
        """Calls :func:`place_points`."""
        return place_points(self.placement, points, images)
