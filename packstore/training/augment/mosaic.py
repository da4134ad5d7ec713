"""Mosaics: four images of a batch around a point, with their boxes, keypoints and masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.core.manifest import Column
from packstore.training.arguments import CheckedArguments
from packstore.training.augment.base import Size, Units, Values, check_number, convert_colour, parse_range, parse_size
from packstore.training.augment.crop import fill_like
from packstore.training.augment.sizes import box_areas
from packstore.training.random_draws import Draws, chance

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Mosaic(CheckedArguments):
    """Combines each image of a batch with three others around a random point of a canvas.

    For ``mix=`` of a loader. The three are drawn from the batch; an image may occur twice. Images keep the size that
    ``augment`` gives them, and are clipped to the canvas. Boxes, columns parallel to boxes, keypoints and masks follow.

    It is the mosaic of ultralytics and MMDetection, without their later crop (first: YOLOv4, Bochkovskiy et al., 2020).

    Args:
        size: Height and width of the canvas: ``S`` for a square, or ``(height, width)``.
        center_range: Smallest and largest position of the point, as fractions of the canvas.
        fill: Colour of free pixels, a number or one for each channel: 0 … 255, also for normalised images.
        p: Probability of a mosaic. Otherwise the image is alone in the middle of the canvas.

    Raises:
        UsageError: A size that is not positive, an invalid range or probability. In a loader also the columns that
            :func:`check_columns` refuses.
    """

    size: int | Size
    center_range: tuple[float, float] = (0.25, 0.75)
    fill: float | Sequence[float] = 0
    p: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", parse_size(self.size, "Mosaic"))
        object.__setattr__(self, "center_range", parse_range(self, "center_range", self.center_range, 0, 1))
        check_number(self, "p", 0, 1)

    def draw_tiles(self, draws: Draws, sizes: NDArray[np.int64]) -> Tiles:
        """Draws which images of a batch each mosaic shows, and their positions.

        With probability ``p``, a mosaic has four tiles around the point. The record's own image is above and left of
        it. Other mosaics have only the own image, centred.

        Args:
            draws: Draws of the batch's records, numpy.
            sizes: int64 ``(B, 2)``: heights and widths of the images.
        """
        assert not isinstance(self.size, int)
        count, (low, high) = len(draws), self.center_range
        happens = chance(draws, self.p, 0)
        points = [
            (length * (draws.uniform(1 + n) * (high - low) + low)).astype(np.int64)
            for n, length in enumerate(self.size)
        ]
        others = draws.integers(max(1, count), 3, 3).T
        tiles = []
        for row in range(count):
            if not happens[row]:
                # The image alone, in the middle.
                height, width = sizes[row].tolist()
                tiles.append([(row, (self.size[0] - height) // 2, (self.size[1] - width) // 2)])
                continue
            y, x = int(points[0][row]), int(points[1][row])
            sources = [row, *others[row].tolist()]
            # Above and left of the point an image ends at it, below and right an image begins at it.
            corners = ((above, before) for above in (True, False) for before in (True, False))
            tiles.append(
                [
                    (source, y - sizes[source, 0] * above, x - sizes[source, 1] * before)
                    for source, (above, before) in zip(sources, corners, strict=True)
                ]
            )
        return Tiles(self.size, self.fill, [[(s, int(y), int(x)) for s, y, x in row] for row in tiles])


@dataclass(frozen=True, eq=False)
class Tiles:
    """Positions of a batch's images in its mosaics, one mosaic for each record. Builds all columns of the mosaics.

    Attributes:
        size: Height and width of the mosaics.
        fill: Colour of free pixels.
        tiles: For each mosaic: row in the batch, top and left of each of its images.
    """

    size: Size
    fill: float | Sequence[float]
    tiles: Sequence[Sequence[tuple[int, int, int]]]

    def arrange_tiles(self, values: Any, fill: Values) -> Tensor:
        """Copies images or masks ``(…, h, w)``, a tensor or a list, into new mosaics ``(B, …, *size)``.

        Cuts off pixels outside a mosaic. Free pixels become ``fill``.
        """
        like = values[0]
        result: Tensor = like.new_empty((len(self.tiles), *like.shape[:-2], *self.size))
        result[:] = fill_like(fill, like)
        for canvas, tiles in zip(result, self.tiles, strict=True):
            for source, top, left in tiles:
                value = values[source]
                y, x = max(0, top), max(0, left)
                bottom, right = min(self.size[0], top + value.shape[-2]), min(self.size[1], left + value.shape[-1])
                if y < bottom and x < right:
                    canvas[..., y:bottom, x:right] = value[..., y - top : bottom - top, x - left : right - left]
        return result

    def build_images(self, images: Any, channels_last: bool, units: Units | None = None) -> Tensor:
        """Builds the mosaics of a batch's images in ``units``, ``(B, C, *size)``, channels last or contiguous."""
        layout = torch.channels_last if channels_last else torch.contiguous_format
        return self.arrange_tiles(images, convert_colour(self.fill, units)).contiguous(memory_format=layout)

    def build_columns(
        self,
        values: Mapping[str, Any],
        columns: Mapping[str, Column],
        mask_fill: int,
        min_area: float,
        min_visible: float,
    ) -> dict[str, Any]:
        """Builds the other columns of the mosaics.

        - Masks: a tensor, ``mask_fill`` outside the images.
        - Boxes and other objects, columns that describe them, keypoints: a list with the joined rows of each mosaic.
        - Others: unchanged.

        Drops objects smaller than ``min_area`` or ``min_visible``, and the rows that describe them.
        """
        results = dict(values)
        moves = _TileMoves(self, min_area, min_visible)
        kept: dict[str | None, NDArray[np.bool_] | None] = {}
        # Objects first: they decide which rows of other columns are kept.
        for name, column in sorted(columns.items(), key=lambda item: not item[1].traits.rows_are_objects):
            if column.traits.lies_on_image:
                results[name] = self.arrange_tiles(values[name], mask_fill)
            elif column.collation == "segments":
                from packstore.training.augment.outlines import join_tiles

                results[name] = join_tiles(values[name], self.tiles, self.size, kept.get(column.parallel))
            elif column.traits.moves or column.parallel in kept:
                results[name], keep = self._join_rows(column, values[name], kept.get(column.parallel), moves)
                if column.traits.rows_are_objects:
                    kept[name] = keep
        return results

    def _join_rows(
        self, column: Column, values: Any, kept: NDArray[np.bool_] | None, moves: _TileMoves
    ) -> tuple[list[Tensor], NDArray[np.bool_] | None]:
        """Returns the rows of a column for each mosaic, and which rows of all tiles were kept; None for all."""
        if not self.tiles:
            return [], None
        of_tiles = [values[source] for tiles in self.tiles for source, _, _ in tiles]
        joined = torch.cat(of_tiles)
        tiles = np.repeat(np.arange(len(of_tiles)), [len(rows) for rows in of_tiles])
        # A row is kept unless ``kept`` or its own new place drops it.
        if column.traits.moves:
            moved, own = column.traits.move_rows(column, joined.cpu().numpy(), tiles, moves)
            joined = torch.from_numpy(moved).to(joined.device)
            kept = own if kept is None else kept if own is None else kept & own
        if kept is not None:
            tiles = tiles[kept]
            joined = joined[torch.from_numpy(np.flatnonzero(kept)).to(joined.device)]
        mosaics = np.repeat(np.arange(len(self.tiles)), [len(each) for each in self.tiles])
        ends = np.cumsum(np.bincount(mosaics[tiles], minlength=len(self.tiles))).tolist()
        return [joined[start:stop] for start, stop in zip([0, *ends], ends, strict=False)], kept


class _TileMoves:
    """Moves rows of columns with the tiles of mosaics, see :class:`~packstore.core.column_types.forms.RowMoves`.

    Its ``images`` are tiles, counted through all mosaics.
    """

    def __init__(self, mosaics: Tiles, min_area: float, min_visible: float) -> None:
        """Takes the limits of kept boxes, as :func:`packstore.training.augment.targets.place_boxes` does."""
        height, width = mosaics.size
        self._limit = np.array([width, height], np.float32)
        self._shift = np.array([(left, top) for tiles in mosaics.tiles for _, top, left in tiles], np.float32)
        self._min_area = min_area
        self._min_visible = min_visible

    def move_boxes(self, boxes: Floats, images: Numbers) -> tuple[Floats, NDArray[np.bool_]]:
        """Moves boxes and clips them to their mosaics. Tells which of them reach the limits."""
        shift, limit = np.tile(self._shift[images], 2), np.tile(self._limit, 2)
        with np.errstate(over="ignore", invalid="ignore"):  # of boxes near the limit of float32, or with NaN
            moved = (boxes + shift).clip(0, limit)
            area = box_areas(moved)
            return moved, (area >= self._min_area) & (area >= self._min_visible * box_areas(boxes))

    def move_points(self, points: Floats, images: Numbers) -> Floats:
        """Moves points; with visibility, hidden points and points outside the mosaic become zeros."""
        moved = points.copy()
        moved[..., :2] += self._shift[images].reshape(-1, *(1,) * (points.ndim - 2), 2)
        if points.shape[-1] == 3:
            places = moved[..., :2]
            # As in place_points.
            shown = ((places > -1) & (places < self._limit)).all(-1) & (points[..., 2] != 0)
            moved[~shown] = 0
        return moved


def check_columns(columns: Sequence[Column], collate: Mapping[str, Any]) -> None:
    """Raises :class:`UsageError` for columns that mosaics cannot join.

    - Labels and other images of a whole record. - Volumes and clips. - Columns that mosaics join to lists, if
    ``collate`` names them.
    """
    objects = {column.name for column in columns if column.traits.rows_are_objects}
    for column in columns:
        moves = column.traits.moves or column.parallel in objects
        of_one = column.traits.has_classes or column.traits.has_images
        if of_one and column.name != "image" and not moves:
            raise UsageError(
                f"Mosaic shows four images, and the column {column.name!r} ({column.type}) is of one: load labels that "
                "belong to boxes, with the boxes"
            )
        if column.traits.lies_on_image and column.layout not in (None, "HW"):
            raise UsageError(f"Mosaic joins images, not volumes and clips: leave {column.name!r} out of columns=")
        if moves and column.name in collate:
            raise UsageError(f"Mosaic joins lists: leave {column.name!r} out of collate=")
