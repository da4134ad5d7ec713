"""Reads segments of objects for batches, and moves them with the images: as masks, or as polygons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.column_types.segments import list_shapes, parse_shapes
from packstore.core.errors import PackstoreError, StoreError
from packstore.core.manifest import Column
from packstore.images.annotations import clip_ring, encode_run_lengths
from packstore.images.segment_masks import fill_segments
from packstore.training.augment.outlines import pad_masks
from packstore.training.augment.targets import Move, Placement, Warp, place_mask
from packstore.training.loader.columns import (
    ColumnContext,
    ColumnReader,
    ColumnRows,
    NewBuffer,
    Padded,
    fill_missing,
    select_rows,
)
from packstore.training.loader.looks import split_flat

_MOST_BYTES = 1 << 32
"""Most bytes of a record's masks."""


@dataclass(frozen=True, eq=False)
class Fold:
    """All moves of a batch that are crops, resizes and flips, as one scale, offset and flip of each image.

    Attributes:
        scale: Factors of y and x, float64 ``(B, 2)``.
        offset: Offsets of y and x after scaling, from the corner of the result before it is mirrored.
        mirrored: bool ``(B,)``: whether the result is mirrored.
        visible: Top, left, bottom and right of the image's part in the result before it is mirrored, int64 ``(B, 4)``.
    """

    scale: NDArray[np.float64]
    offset: NDArray[np.float64]
    mirrored: NDArray[np.bool_]
    visible: NDArray[np.int64]


def fold_moves(moves: tuple[Move | Warp, ...], sizes: NDArray[np.int64]) -> Fold | None:
    """Folds moves of images of ``sizes``, int64 ``(B, 2)``. Returns None if one is a warp."""
    scale, offset = np.ones((len(sizes), 2)), np.zeros((len(sizes), 2))
    visible = np.concatenate([np.zeros_like(scale), sizes], 1)
    width = sizes[:, 1]
    for move in moves:
        if isinstance(move, Warp):
            return None
        box, window = move.crops.box, move.crops.window
        ratio = move.crops.size / np.maximum(box[:, 2:], 1)
        scale, offset = scale * ratio, (offset - box[:, :2]) * ratio - window[:, :2]
        edges = np.clip(visible.reshape(-1, 2, 2) - box[:, None, :2], 0, box[:, None, 2:])
        edges = np.clip(edges * ratio[:, None] - window[:, None, :2], 0, window[:, None, 2:])
        visible, width = edges.reshape(-1, 4), window[:, 3]
        if move.crops.flip is not None:
            _mirror(np.asarray(move.crops.flip, np.bool_), width, scale, offset, visible)
    mirrored = scale[:, 1] < 0
    _mirror(mirrored, width, scale, offset, visible)
    return Fold(scale, offset, mirrored, np.rint(visible).astype(np.int64))


def _mirror(these: NDArray[np.bool_], width: NDArray[np.int64], scale: Any, offset: Any, visible: Any) -> None:
    """Mirrors the moves of images ``these`` of a result of ``width``, in place."""
    scale[these, 1] *= -1
    offset[these, 1] = width[these] - offset[these, 1]
    visible[these, 1::2] = width[these, None] - visible[these, :0:-2]


@dataclass(eq=False)
class SegmentRows(ColumnRows):
    """Segments of a batch.

    Attributes:
        column: The column.
        values: Stored value of each record; empty for failed and missing ones.
        kept: Which objects of each record are kept.
        sizes: Height and width of each image.
        placement: Moves of the images; None without operations.
        fold: They as one move; None if they are none.
        form: ``polygons``, ``masks`` or ``padded`` masks.
        missing: True for records without a value; None if the column is not optional.
        shapes: Number of masks, height and width of each record's result, int64 ``(B, 3)``.
        host: Memory of all masks, one after another; None for polygons.
    """

    in_ring = True

    column: Column
    values: list[bytes]
    kept: list[NDArray[np.bool_]]
    sizes: NDArray[np.int64]
    placement: Placement | None
    fold: Fold | None
    form: str
    missing: NDArray[np.bool_] | None
    shapes: NDArray[np.int64]
    host: torch.Tensor | None
    _made: list[Any] = field(init=False)
    _steps: list[tuple[Warp | Fold, NDArray[np.int64]]] = field(init=False)

    def __post_init__(self) -> None:
        self._made = [None] * len(self.values) if self.host is None else split_flat(self.host, self.shapes.tolist())
        self._steps = []
        if self.placement is None:
            return
        self.placement.prepare_masks()
        sizes = self.sizes
        for part in self.placement.parts if self.form == "polygons" else ():
            step = part if isinstance(part, Warp) else fold_moves(part.moves, sizes)
            assert step is not None
            sizes = part.sizes
            self._steps.append((step, sizes))

    def fill_rows(self, context: ColumnContext, first: int, stop: int, skip: Set[int]) -> list[int]:
        """Makes masks or moved polygons, see :meth:`ColumnRows.fill_rows`."""
        failed = []
        for row in range(first, stop):
            if row in skip:
                continue
            try:
                if self.host is None:
                    self._made[row] = self._list_polygons(row)
                else:
                    self._fill_masks(row, self._made[row], self.kept[row])
            except PackstoreError as error:
                context.note_failure(row, error, self.column.name)
                failed.append(row)
        return failed

    def host_tensors(self, kept: NDArray[np.int64] | None) -> list[torch.Tensor]:
        """Returns all masks in one flat tensor, and the number of each record's. Polygons have no tensors."""
        if self.host is None:
            return []
        host = self.host
        if kept is not None:
            host = torch.cat([self._made[row].reshape(-1) for row in kept.tolist()] or [host[:0]])
        return [host, torch.from_numpy(select_rows(self.shapes[:, 0], kept))]

    def build_value(self, there: Iterator[torch.Tensor], kept: NDArray[np.int64] | None, ids: torch.Tensor) -> Any:
        """Builds a list of ``(n, H, W)`` bool tensors, a :class:`Padded`, or a list of lists of polygons."""
        if self.host is None:
            return fill_missing(select_rows(self._made, kept), self.missing, kept)
        flat, counts = next(there), next(there)
        masks = split_flat(flat, select_rows(self.shapes, kept).tolist())
        return Padded(pad_masks(masks), counts) if self.form == "padded" else fill_missing(masks, self.missing, kept)

    def _fill_masks(self, row: int, out: torch.Tensor, kept: NDArray[np.bool_]) -> torch.Tensor:
        """Rasterises the objects ``kept`` of a record into ``out``, bool ``(n, h, w)``, and returns it."""
        size, placement, fold = self.sizes[row].tolist(), self.placement, self.fold
        unit = size[::-1] if self.column.coordinates == "fractions" else (1, 1)
        if placement is None:
            return self._fill(row, out, kept, move=(*unit, 0, 0))
        if fold is None:
            whole = torch.empty((len(out), *size), dtype=torch.bool)
            place_mask(placement, row, self._fill(row, whole, kept, move=(*unit, 0, 0)).numpy(), 0, out.numpy())
            return out
        height, width = placement.sizes[row].tolist()
        (down, across), (y, x) = fold.scale[row].tolist(), fold.offset[row].tolist()
        top, left, bottom, right = fold.visible[row].tolist()
        mirrored = bool(fold.mirrored[row])
        # The engine adds whole pixels after it has followed the outlines: so a crop shows exactly what the whole shows.
        down_by, right_by = round(y), round(x)
        place = (top, width - right if mirrored else left)
        return self._fill(
            row,
            out,
            kept,
            view=(top - down_by, left - right_by, bottom - top, right - left, mirrored, *place),
            move=(unit[0] * across, unit[1] * down, x - right_by, y - down_by),
            rows=placement.rows[row, :height],
            columns=placement.columns[row, :width],
        )

    def _fill(self, row: int, out: torch.Tensor, kept: NDArray[np.bool_], **place: Any) -> torch.Tensor:
        """Fills masks ``out``, see :func:`fill_segments`; raises :class:`StoreError` if it refuses the value."""
        size = self.sizes[row].tolist()
        if not fill_segments(self.values[row], kept, size, out.zero_().view(torch.uint8).numpy(), **place):
            shapes = parse_shapes(self.column, self.values[row])  # raises the right error for a damaged value
            found = f"{shapes.sizes.tolist()!r:.60}"
            raise StoreError(f"its run lengths, of sizes {found}, do not fill an image of {size[0]} x {size[1]}")
        return out

    def _list_polygons(self, row: int) -> list[Any]:
        """Returns the shapes of the kept objects, as items have them, moved and clipped, in pixels of the result."""
        shapes, kept, placement = parse_shapes(self.column, self.values[row]), self.kept[row], self.placement
        if self.column.coordinates == "fractions":
            shapes = replace(shapes, corners=shapes.corners * self.sizes[row, ::-1])
        found = [shape for shape, keep in zip(list_shapes(shapes), kept.tolist(), strict=True) if keep]
        if placement is None:
            return found
        is_run = [isinstance(shape, dict) and "counts" in shape for shape in found]
        if any(is_run):
            size, kept = self.shapes[row, 1:].tolist(), kept.copy()
            kept[kept] = is_run
            masks = iter(self._fill_masks(row, torch.empty((sum(is_run), *size), dtype=torch.bool), kept).numpy())
        for number, shape in enumerate(found):
            if is_run[number]:
                mask = next(masks)
                found[number] = {"size": [*mask.shape], "counts": encode_run_lengths(mask)}
            elif isinstance(shape, dict):
                found[number] = {name: self._move_rings(row, rings) for name, rings in shape.items()}
            elif shape is not None:
                found[number] = self._move_rings(row, shape)
        return found

    def _move_rings(self, row: int, rings: Sequence[Sequence[float]]) -> list[list[float]]:
        """Moves rings with the image ``row``. Leaves out those outside the result."""
        moved = []
        for ring in rings:
            points = clip_ring(np.reshape(ring, (-1, 2)), (0, 0, *self.sizes[row].tolist()))
            for step, sizes in self._steps:
                height, width = sizes[row].tolist()
                if isinstance(step, Warp):
                    points = np.asarray(step.move_points(points[:, None], np.full(len(points), row))[:, 0], np.float64)
                    points = clip_ring(points, (0, 0, height, width))
                    continue
                points = clip_ring(points * step.scale[row, ::-1] + step.offset[row, ::-1], step.visible[row].tolist())
                if step.mirrored[row]:
                    points = np.array([width, 0]) + points * (-1, 1)
            if len(points):
                moved.append(points.ravel().tolist())
        return moved


class SegmentsReader(ColumnReader):
    """Reads a column of segments for batches."""

    def __init__(self, column: Column, form: str, optional: bool) -> None:
        """``form``: ``polygons``, ``masks`` or ``padded``. ``optional``: records may have no value."""
        super().__init__(column, optional)
        self._form = form

    def read_batch(self, context: ColumnContext, new_buffer: NewBuffer) -> SegmentRows:
        """Reads the stored values, and drops objects that the column's boxes drop. The boxes must be read before.

        Raises as :meth:`ColumnReader.read_batch`.
        """
        column, missing = self.column, self.find_missing(context)
        values: list[bytes] = []
        for row, record in enumerate(context.numbers):
            value = b""
            if row not in context.failed:
                try:
                    value = bytes(context.reader.value(column.name, record))
                except PackstoreError as error:
                    context.note_failure(row, error, column.name)
            values.append(value)
        counts = np.array([column.traits.count_rows(column, value) for value in values])
        kept = self._find_kept(context, counts)
        sizes, placement = context.plan.sizes, context.placement
        fold = None if placement is None else fold_moves(placement.moves, sizes)
        shown = sizes if placement is None else placement.sizes
        shapes = np.column_stack([[np.count_nonzero(each) for each in kept], shown]).astype(np.int64).reshape(-1, 3)
        too_many = shapes.prod(1) > _MOST_BYTES if self._form != "polygons" else ()
        for row in np.flatnonzero(too_many).tolist():
            count, height, width = shapes[row].tolist()
            pixels = f"{count:,} masks of {height} x {width} pixels"
            context.note_failure(row, StoreError(f"its {pixels} have more than {_MOST_BYTES:,} bytes"), column.name)
            shapes[row, 0], kept[row] = 0, np.zeros(len(kept[row]), np.bool_)
        host = None if self._form == "polygons" else new_buffer((int(shapes.prod(1).sum()),), torch.bool)
        return SegmentRows(column, values, kept, sizes, placement, fold, self._form, missing, shapes, host)

    def _find_kept(self, context: ColumnContext, counts: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
        """Returns which objects of each record are kept. A record with another number of objects than boxes fails."""
        if self.column.parallel not in context.objects:
            return [np.ones(count, np.bool_) for count in counts.tolist()]
        keep, expected = context.objects[self.column.parallel]
        context.compare_counts(self.column, counts, expected)
        ends = np.cumsum(expected).tolist()
        return [np.ascontiguousarray(keep[end - n : end]) for end, n in zip(ends, expected.tolist(), strict=True)]
