"""Shapes of objects: polygons and run lengths.

A stored value is one record's objects, in little-endian numbers without gaps:

====================  ================================================================================================
``uint32``            number n of objects
``uint32``            decimals d of the coordinates; 255 if they are float64
``uint32 (n, 2)``     form and number of parts of each object, see :data:`FORMS`
``uint32``            for each ring its number of coordinates; for each mask of run lengths its height and width
``int32``, float64    all coordinates x, y, x, y …; an int32 is the coordinate times 10^d
``uint8``             run lengths, one mask after another: COCO's text, or ``uint32``
====================  ================================================================================================

Decimals keep coordinates as they were written: a whole number divided by 10^d is the float64 nearest to that decimal
fraction, so 510.66 takes four bytes, and comes back as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, islice
from operator import index as as_index
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.column_types.base import Column, Field, unfit_error
from packstore.core.column_types.forms import MOST_ROWS, Buffer, Canvas, Collation, RowClasses, show_text
from packstore.core.column_types.numbers import boxes_name
from packstore.core.column_types.objects import BytesType
from packstore.core.errors import StoreError

FORMS = ("none", "polygons", "even_odd", "text", "counts")
"""Form of an object by number. ``none``: it has no shape. ``polygons``: parts are rings, whose areas are joined, as
COCO means them. ``even_odd``: rings inside others are holes. ``text``, ``counts``: run lengths as COCO's text, or as
numbers; parts are their bytes."""
_NONE, _POLYGONS, _EVEN_ODD, _TEXT, _COUNTS = range(5)
_FLOAT64 = 255
_MOST_DECIMALS = 7
MOST = 1e8
"""Largest absolute coordinate, in pixels."""


@dataclass(frozen=True, eq=False, slots=True)
class Shapes:
    """The shapes of a record's objects.

    Attributes:
        forms: Number of each object's form in :data:`FORMS`, ``(n,)``.
        parts: Number of each object's rings, or bytes of its run lengths, int64 ``(n,)``.
        counts: Number of corners of each ring, int64.
        corners: x and y of all rings, float64 ``(N, 2)``.
        sizes: Height and width of each mask of run lengths, int64 ``(m, 2)``.
        runs: Run lengths of each: COCO's text, or uint32.
    """

    forms: NDArray[np.int64]
    parts: NDArray[np.int64]
    counts: NDArray[np.int64]
    corners: NDArray[np.float64]
    sizes: NDArray[np.int64]
    runs: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Segments(Field):
    """Shapes of objects. A value is a list with an entry for each object, in COCO's form. It is one of these:

    - a list of rings, ``[x, y, x, y, …]`` in pixels of the image, whose areas are joined
    - ``{"even_odd": rings}``: rings inside others are holes
    - ``{"size": [height, width], "counts": …}``: run lengths, as a list or as COCO's text
    - None: the object has no shape

    Attributes:
        of: Name of the boxes column to which the objects belong, as in :class:`Labels`.
        fractions: Coordinates are fractions of the sides of the image, not pixels.
        optional: A sample may have no value.
    """

    of: str | bool | None = None
    fractions: bool = False
    optional: bool = False

    def column(self, name: str) -> Column:
        return Column(
            name, "ragged", "uint8", type="segments", nullable=self.optional, parallel=boxes_name(self.of),
            coordinates="fractions" if self.fractions else "pixels",
        )  # fmt: skip


class SegmentsType(BytesType):
    """Polygons and run lengths of objects, as they were given. Refuses coordinates beyond 100 million."""

    name = "segments"
    field = Segments
    large = False
    moves = True
    goes_with_boxes = True
    coordinates: ClassVar[tuple[str | None, ...]] = ("pixels", "fractions")
    meaning = "polygons or run lengths of objects"
    drawn_as = "segments"
    layer = 1

    def to_stored(self, column: Column, value: Any) -> bytes:
        """Packs a list of shapes, see :class:`Segments`. Raises :class:`ValueError` for anything else."""
        if not isinstance(value, (list, tuple)):
            raise unfit_error(column, "a list of shapes", value)
        table, sizes, rings, runs = [], [], [], []
        for number, shape in enumerate(value):
            try:
                form, parts, content = _parse_shape(shape)
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"column {column.name!r}: shape {number}: {error}") from None
            table.append((form, len(content)))
            sizes += parts
            if form < _TEXT:
                rings += content
            else:
                runs.append(content)
        flat = np.concatenate(rings) if rings else np.zeros(0)
        decimals, coordinates = _shorten(flat)
        numbers = np.array([len(table), decimals, *chain.from_iterable(table), *sizes], "<u4")
        return b"".join((numbers.tobytes(), coordinates.tobytes(), *runs))

    def from_stored(self, column: Column, raw: Any, shape: tuple[int, ...] | None) -> Any:
        """Returns the list of shapes. Raises :class:`StoreError` if the value is damaged."""
        return list_shapes(parse_shapes(column, raw))

    def count_rows(self, column: Column, raw: Buffer) -> int:
        """Returns the number of shapes; 0 for a missing value, or one that is too short for them."""
        count = int.from_bytes(raw[:4], "little")
        return count if 8 + 8 * count <= len(raw) else 0

    def keep_rows(self, column: Column, raw: Buffer, kept: NDArray[np.bool_]) -> Buffer:
        """Packs the shapes ``kept`` alone."""
        if self.count_rows(column, raw) != len(kept):
            return raw
        return self.to_stored(column, list(compress(self.from_stored(column, raw, None), kept.tolist())))

    def draw(self, canvas: Canvas, column: Column, value: Any, classes: RowClasses | None) -> None:
        """Draws the shapes, each in the colour of its class."""
        outlined, holed, objects = [], [], list[list[list[float]]]()
        for shape in value:
            outlined.append(not (isinstance(shape, dict) and "counts" in shape))
            holed.append(isinstance(shape, dict) and "even_odd" in shape)
            try:
                objects.append(list_rings(shape))
            except ValueError:  # run lengths that are damaged
                objects.append([])
        canvas.draw_rings(objects, outlined, holed, column.coordinates == "fractions", classes)

    def show(self, column: Column, value: Any) -> dict[str, Any]:
        """Returns the first 16,000 characters of JSON as ``value``."""
        return {"as": "json", **show_text(json.dumps(value, ensure_ascii=False))}

    def collation(self, column: Column) -> Collation:
        """Returns ``segments``."""
        return "segments"


def list_shapes(shapes: Shapes) -> list[Any]:
    """Returns shapes in the form of :class:`Segments`."""
    ends = 2 * np.cumsum(shapes.counts)
    flat, sizes = shapes.corners.ravel().tolist(), iter(shapes.sizes.tolist())
    rings = iter(
        [flat[end - 2 * count : end] for end, count in zip(ends.tolist(), shapes.counts.tolist(), strict=True)]
    )
    runs, found = iter(shapes.runs), list[Any]()
    for form, parts in zip(shapes.forms.tolist(), shapes.parts.tolist(), strict=True):
        if form >= _TEXT:
            data = next(runs)
            counts = data.decode("latin-1") if form == _TEXT else np.frombuffer(data, "<u4").tolist()
            found.append({"size": next(sizes), "counts": counts})
        else:
            outlines = list(islice(rings, parts))
            found.append(None if form == _NONE else outlines if form == _POLYGONS else {"even_odd": outlines})
    return found


def parse_shapes(column: Column, raw: Any) -> Shapes:
    """Reads a stored value, without making lists. Raises :class:`StoreError` if it is damaged.

    A missing value has no objects.
    """
    damaged = StoreError(f"a value of column {column.name!r} is damaged: {len(raw)} bytes are no shapes of objects")
    if not len(raw):
        raw = bytes(8)
    try:
        count, decimals = np.frombuffer(raw, "<u4", 2).tolist()
        table = np.frombuffer(raw, "<u4", 2 * count, 8).reshape(-1, 2).astype(np.int64)
        forms, parts = table.T
        sizes_at, is_run = 8 + 8 * count, forms >= _TEXT
        # Each ring has one number, each mask two.
        numbers = np.where(is_run, 2, parts)
        listed = np.frombuffer(raw, "<u4", int(numbers.sum()), sizes_at).astype(np.int64)
        of_runs = np.repeat(is_run, numbers)
        lengths, sizes = listed[~of_runs], listed[of_runs].reshape(-1, 2)
        at = sizes_at + 4 * len(listed)
        dtype = np.dtype("<f8" if decimals == _FLOAT64 else "<i4")
        coordinates = np.frombuffer(raw, dtype, int(lengths.sum()), at).astype(np.float64)
    except ValueError:
        raise damaged from None
    if decimals <= _MOST_DECIMALS:
        coordinates /= 10.0**decimals
    ends = at + dtype.itemsize * len(coordinates) + np.cumsum(parts[is_run])
    end = ends[-1] if len(ends) else at + dtype.itemsize * len(coordinates)
    good = (
        end == len(raw)
        and (decimals <= _MOST_DECIMALS or decimals == _FLOAT64)
        and forms.max(initial=0) <= _COUNTS
        and (np.abs(coordinates) <= MOST).all()
        and ((sizes > 0) & (sizes < 1 << 31)).all()
        and not (lengths % 2).any()
        and not parts[forms == _NONE].any()
        and not (parts[forms == _COUNTS] % 4).any()
    )
    if not good:
        raise damaged
    runs = [bytes(raw[end - size : end]) for end, size in zip(ends.tolist(), parts[is_run].tolist(), strict=True)]
    return Shapes(forms, parts, lengths // 2, coordinates.reshape(-1, 2), sizes, runs)


def is_shape(value: Any) -> bool:
    """Tells if a value is a shape that :class:`Segments` can hold."""
    try:
        _parse_shape(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _parse_shape(shape: Any) -> tuple[int, list[int], Any]:
    """Returns the form of a shape, its sizes, and its rings or the bytes of its run lengths."""
    if shape is None:
        return _NONE, [], []
    if isinstance(shape, Mapping) and {*shape} == {"size", "counts"}:
        height, width = (as_index(int(side)) if side == int(side) else as_index(side) for side in shape["size"])
        if not (0 < height < 1 << 31 and 0 < width < 1 << 31):
            raise ValueError(f"run lengths of an image of {height} x {width} pixels")
        counts = shape["counts"]
        if isinstance(counts, str):
            counts = counts.encode("latin-1")
        if isinstance(counts, bytes):
            return _TEXT, [height, width], counts
        runs = np.asarray(counts if len(counts) else np.zeros(0, np.int64))
        if runs.ndim != 1 or runs.dtype.kind not in "iu" or (runs < 0).any() or (runs >= 1 << 32).any():
            raise ValueError("run lengths are neither a text nor whole numbers")
        return _COUNTS, [height, width], runs.astype("<u4").tobytes()
    rings, form = shape, _POLYGONS
    if isinstance(shape, Mapping) and {*shape} == {"even_odd"}:
        rings, form = shape["even_odd"], _EVEN_ODD
    if not isinstance(rings, (list, tuple)):
        raise ValueError(f"expected rings, run lengths or None, got {rings!r:.60}")
    outlines = [np.asarray(ring) for ring in rings]
    for ring in outlines:
        if ring.ndim != 1 or ring.dtype.kind not in "iuf" or len(ring) % 2 or not (np.abs(ring) <= MOST).all():
            raise ValueError(f"expected x, y, x, y … up to {MOST:.0f}, got {ring.tolist()!r:.60}")
    outlines = [ring.astype(np.float64) for ring in outlines]
    return form, [len(ring) for ring in outlines], outlines


def _shorten(values: NDArray[np.float64]) -> tuple[int, NDArray[Any]]:
    """Returns the fewest decimals that keep all values exactly, and the values times that power of ten, int32. Returns
    255 and the values if 7 decimals are not enough.
    """
    for decimals in range(_MOST_DECIMALS + 1):
        scaled = np.rint(values * 10.0**decimals)
        if np.abs(scaled).max(initial=0) >= 1 << 31:
            break
        if np.array_equal(scaled / 10.0**decimals, values):
            return decimals, scaled.astype("<i4")
    return _FLOAT64, values.astype("<f8")


def decode_run_lengths(text: bytes) -> list[int]:
    """Decodes COCO's string of run lengths. Each character has five bits.

    From the fourth on, a length is stored as its difference to the length two before it. Raises :class:`ValueError` for
    any other text.
    """
    counts: list[int] = []
    value = bits = 0
    for character in text:
        part = character - 48
        if not 0 <= part < 64 or bits > 60:
            raise ValueError("run lengths are not COCO's string")
        value |= (part & 0x1F) << bits
        bits += 5
        if part & 0x20:
            continue
        if part & 0x10:
            value -= 1 << bits
        counts.append(value + counts[-2] if len(counts) > 2 else value)
        if not 0 <= counts[-1] < 1 << 40:
            raise ValueError("run lengths are not COCO's string: one is out of range")
        value = bits = 0
    if bits:
        raise ValueError("run lengths end within a number")
    return counts


def list_rings(shape: Any) -> list[list[float]]:
    """Returns the rings of a shape; of run lengths, a rectangle for each run in a column, at most 2,000."""
    if shape is None:
        return []
    if isinstance(shape, list):
        return shape
    if "even_odd" in shape:
        return list(shape["even_odd"])
    counts = shape["counts"]
    lengths = decode_run_lengths(counts.encode("latin-1")) if isinstance(counts, str) else counts
    ends, height, rings = np.cumsum(lengths).tolist(), max(1, shape["size"][0]), list[list[float]]()
    for start, end in zip(ends[::2], ends[1::2], strict=False):
        while start < end and len(rings) < MOST_ROWS:
            x, top = divmod(start, height)
            bottom = min(height, top + end - start)
            rings.append([x, top, x + 1, top, x + 1, bottom, x, bottom])
            start += bottom - top
    return rings


SEGMENTS = SegmentsType()
