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
from torch import Tensor

from packstore.images.programs import GEOMETRIC, Code, Program
from packstore.training.augment.base import Crops, GeometricOperation, PaddingMode, Step
from packstore.training.augment.crop import source_index
from packstore.training.augment.cut import Cut
from packstore.training.augment.kernels import warp_affine, warp_perspective
from packstore.training.augment.program_operation import ProgramOperation
from packstore.training.augment.sizes import box_areas, centres_inside
from packstore.training.random_draws import Draws

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]
Matrices = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Warp:
    """Affine or perspective warp, or flip, of each image of a batch. Made from one column of a program.

    Attributes:
        codes: int ``(B,)``: :class:`Code`; ``IDENTITY`` if the image does not move.
        parameters: float32 ``(B, 8)``: parameters of the code.
        flags: int32 ``(B,)``: interpolation and fill of images.
        sizes: int64 ``(B, 2)``: heights and widths, which do not change.
        forward: float64 ``(B, 3, 3)``: maps points of the image to points of the result, from the upper left corner.
    """

    codes: NDArray[np.int32]
    parameters: NDArray[np.float32]
    flags: NDArray[np.int32]
    sizes: Numbers
    forward: Matrices

    @classmethod
    def from_steps(cls, steps: Any, sizes: Numbers) -> Warp | None:
        """Builds the warp of one column of a program. ``steps``: the column, a step for each image.

        Returns None if the column moves no pixels.
        """
        codes = np.where(np.isin(steps["code"], GEOMETRIC), steps["code"], 0)
        if not codes.any():
            return None
        return cls(
            codes, steps["p"], steps["flags"], sizes, _forward_matrices(codes, steps["p"].astype(np.float64), sizes)
        )

    def move_points(self, points: Any, rows: Numbers, last: int = 0) -> Any:
        """Moves ``points`` float32 ``(N, m, 2)``, x and y, with images ``rows`` ``(N,)``. Returns a new array.

        Mirroring maps x to ``width - last - x``, and flipping maps y alike.
        """
        codes, forward = self.codes[rows], self.forward[rows]
        wide = points.astype(np.float64)
        moved = np.concatenate([wide, np.ones_like(wide[..., :1])], -1) @ forward.transpose(0, 2, 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = moved[..., :2] / moved[..., 2:]
        moved[codes == Code.MIRROR, :, 0] -= last
        moved[codes == Code.FLIP, :, 1] -= last
        return np.where((codes != 0)[:, None, None], moved, wide).astype(np.float32)

    def move_boxes(self, corners: Any, rows: Numbers, clip: bool) -> Any:
        """Moves boxes ``(N, 2, 2)``, first and last corners, with images ``rows``. Returns upright boxes around the
        results.

        ``clip`` clips them to the images. Boxes of images that do not move stay exact.
        """
        left, top, right, bottom = corners.reshape(-1, 4).T
        four = np.stack([left, top, right, top, right, bottom, left, bottom], 1).reshape(-1, 4, 2)
        moved = self.move_points(four, rows)
        boxes = np.stack([moved.min(1), moved.max(1)], 1)
        boxes = np.where((self.codes[rows] != 0)[:, None, None], boxes, corners)
        return np.clip(boxes, 0, self.sizes[rows, None, ::-1].astype(np.float32)) if clip else boxes

    def move_mask(self, row: int, mask: NDArray[Any], fill: float) -> NDArray[Any]:
        """Warps the mask of image ``row``, ``(…, H, W)``, without interpolation. Pixels from outside get ``fill``.

        Returns ``mask`` itself if the image does not move, and a view of it for flips.
        """
        code, p = self.codes[row], self.parameters[row]
        if code == Code.MIRROR:
            return mask[..., ::-1]
        if code == Code.FLIP:
            return mask[..., ::-1, :]
        if code == Code.IDENTITY:
            return mask
        height, width = mask.shape[-2:]
        across, down = _sampling_grid(Code(int(code)), p, height, width)
        # Positions and rounding as in torch's grid_sample.
        x, y = (np.rint(((each + 1) * n - 1) / 2) for each, n in ((across, width), (down, height)))
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        result = np.full(mask.shape, fill, mask.dtype)
        result[..., inside] = mask[..., y[inside].astype(np.int64), x[inside].astype(np.int64)]
        return result


def find_warps(program: Program, sizes: Numbers) -> list[Warp]:
    """Returns a warp for each column of a program that moves pixels, in order."""
    warps = (Warp.from_steps(program[:, column], sizes) for column in range(program.shape[1]))
    return [warp for warp in warps if warp is not None]


def _forward_matrices(codes: NDArray[np.int32], p: Any, sizes: Numbers) -> Matrices:
    """Computes the matrices ``(B, 3, 3)`` from image to result, as inverses of the warps' parameters."""
    count = len(codes)
    height, width = sizes[:, 0].astype(np.float64), sizes[:, 1].astype(np.float64)
    inverse = np.tile(np.eye(3), (count, 1, 1))
    affine, projected = codes == Code.AFFINE, codes == Code.PERSPECTIVE
    x, y = width / 2, height / 2
    a, b, c, d, e, f = p[:, :6].T
    # Parameters are relative to the centres, and matrices to the upper left corner.
    centred = np.stack([a, b, c + x - a * x - b * y, d, e, f + y - d * x - e * y], 1).reshape(-1, 2, 3)
    inverse[affine, :2] = centred[affine]
    inverse[projected] = np.concatenate([p, np.ones((count, 1))], 1).reshape(-1, 3, 3)[projected]
    mirrored, flipped = codes == Code.MIRROR, codes == Code.FLIP
    inverse[mirrored, 0, 0], inverse[mirrored, 0, 2] = -1, width[mirrored]
    inverse[flipped, 1, 1], inverse[flipped, 1, 2] = -1, height[flipped]
    # A scale close to 0 cannot be inverted in float64.
    invert = np.linalg.pinv if np.any(np.linalg.det(inverse) == 0) else np.linalg.inv
    return np.asarray(invert(inverse), np.float64)


def _sampling_grid(code: Code, p: NDArray[np.float32], height: int, width: int) -> tuple[Any, Any]:
    """Computes x and y of the source for each pixel of the result, as for torch's ``grid_sample``."""
    # In float32, and in the order of kernels, to agree with it exactly.
    half = np.array([0.5 * width] * 3 + [0.5 * height] * 3, np.float32)
    m = p[:6] / half
    if code == Code.AFFINE:
        x = np.arange(width, dtype=np.float32) - np.float32((width - 1.0) * 0.5)
        y = (np.arange(height, dtype=np.float32) - np.float32((height - 1.0) * 0.5))[:, None]
        return x * m[0] + y * m[1] + m[2], x * m[3] + y * m[4] + m[5]
    x = np.arange(width, dtype=np.float32) + np.float32(0.5)
    y = (np.arange(height, dtype=np.float32) + np.float32(0.5))[:, None]
    below = x * p[6] + y * p[7] + 1
    return (x * m[0] + y * m[1] + m[2]) / below - 1, (x * m[3] + y * m[4] + m[5]) / below - 1


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


def place_clip(placement: Placement, row: int, clip: Tensor) -> Tensor:
    """Applies the crops, resizes, flips and warps of image ``row`` to all frames of a clip, ``(…, C, H, W)``.

    Consecutive crops and resizes are joined if possible, to interpolate pixels once. May return a view of ``clip``.
    """
    frames = clip.reshape(-1, *clip.shape[-3:])
    cut = Cut.full(frames.shape[-2], frames.shape[-1])
    for move in placement.moves:
        if isinstance(move, Warp):
            frames = _warp_frames(move, row, cut(frames))
            cut = Cut.full(frames.shape[-2], frames.shape[-1])
            continue
        own = Cut.of_row(move.crops, row, move.pads)
        joined = cut.compose(own)
        if joined is None:
            frames, joined = cut(frames), own
        cut = joined
    frames = cut(frames)
    return frames.reshape(*clip.shape[:-2], *frames.shape[-2:])


def _warp_frames(warp: Warp, row: int, frames: Tensor) -> Tensor:
    """Applies the warp or flip of image ``row`` to ``frames``."""
    code = Code(int(warp.codes[row]))
    if code in (Code.MIRROR, Code.FLIP):
        return frames.flip(-1 if code == Code.MIRROR else -2)
    if code == Code.IDENTITY or not len(frames):
        return frames
    kernel, count = (warp_affine, 6) if code == Code.AFFINE else (warp_perspective, 8)
    parameters = np.tile(warp.parameters[row, :count], (len(frames), 1))
    return kernel(frames, parameters, np.tile(warp.flags[row], len(frames)))


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
