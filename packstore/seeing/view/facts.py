"""Facts of all records, read in one pass when somebody asks: labels, sizes of images, their kinds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import Ragged
from packstore.core.errors import PackstoreError
from packstore.core.manifest import Column, Manifest
from packstore.images.sniff import HeaderError, ImageInfo, sniff
from packstore.seeing.nearby import parts_within, spread_at_hand
from packstore.seeing.view.jobs import Report
from packstore.stores.base import Reader

MISSING, UNREADABLE, UNREAD = -1, -2, -3
"""Labels of records that have none, of those whose label cannot be read, and of those that nobody fetched."""
SAMPLE = 20_000
"""How many images' headers are read unasked, spread evenly over the store."""
AT_ONCE = 100_000
"""Up to how many records all headers are read unasked."""

_HEADER_BYTES = 1 << 16
_REPORTED = 512
_UNKNOWN = "unreadable"
_MODES = {1: "grey", 2: "grey and alpha", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True, eq=False)
class Headers:
    """What the headers of images say; one row an image.

    Attributes:
        records: int64, their numbers, ascending.
        width: uint32, in pixels; 0 where the header cannot be read.
        height: Likewise.
        nbytes: int64, of the image at rest.
        kind: uint8, a place in ``kinds``.
        kinds: Such as ``jpeg RGB``.
    """

    records: NDArray[np.int64]
    width: NDArray[np.uint32]
    height: NDArray[np.uint32]
    nbytes: NDArray[np.int64]
    kind: NDArray[np.uint8]
    kinds: tuple[str, ...]

    def measure(self, name: str) -> NDArray[np.float64]:
        """One of :data:`packstore.seeing.view.query.MEASURES` of each image; not a number where it is unknown."""
        if name == "bytes":
            return self.nbytes.astype(np.float64)
        width, height = self.width.astype(np.float64), self.height.astype(np.float64)
        known = (width > 0) & (height > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = {"width": width, "height": height, "pixels": width * height, "aspect": width / height}[name]
        return np.where(known, values, np.nan)


def class_column(manifest: Manifest) -> Column | None:
    """The column whose classes the grid shows and filters by: the label, or the first column of class numbers."""
    if manifest.has_column("label"):
        return manifest.column("label")
    return next((column for column in manifest.columns if column.type in ("label", "labels")), None)


def parts(reader: Reader, fetch: bool = True) -> Iterator[tuple[int, int, Reader | None]]:
    """First record, one after the last, and reader of each file of a store; None for one that does not open.

    Without ``fetch`` those that do not lie on this machine are left out."""
    starts = [*reader.part_starts.tolist(), len(reader)]
    here = None if fetch else reader.at_hand(range(len(starts) - 1))
    for number, (start, stop) in enumerate(pairwise(starts)):
        if here is not None and not here[number]:
            continue
        try:
            part: Reader | None = reader.part(number)
        except PackstoreError:
            part = None
        yield start, stop, part


def read_labels(reader: Reader, column: Column, report: Report, fetch: bool = True) -> NDArray[np.int32]:
    """The label of every record: int32 ``(N,)``, with :data:`MISSING` and :data:`UNREADABLE`; without ``fetch``, with
    :data:`UNREAD` where it does not lie on this machine."""
    labels = np.full(len(reader), UNREAD, np.int32)
    for start, stop, part in parts(reader, fetch):
        report(start)
        labels[start:stop] = UNREADABLE
        if part is None:
            continue
        try:
            found = part.fixed(column.name)
            missing = ~part.fixed(column.valid_name) if column.nullable else None
        except (PackstoreError, KeyError):
            continue
        fits = (found >= 0) & (found < np.iinfo(np.int32).max)
        labels[start:stop] = np.where(fits, found, UNREADABLE)
        if missing is not None:
            labels[start:stop][missing] = MISSING
    return labels


def having_class(reader: Reader, column: Column, number: int, report: Report) -> NDArray[np.bool_]:
    """Which records have the class ``number``, or with :data:`MISSING` none, in a column of several: bool ``(N,)``."""
    having = np.zeros(len(reader), np.bool_)
    for start, stop, part in parts(reader):
        report(start)
        if part is None:
            continue
        try:
            rows = part.ragged(column.name)
            offsets, values = rows.offsets, rows.data[: rows.offsets[-1] // 8 * 8].view("<i8")
        except PackstoreError:
            continue
        if number == MISSING:
            having[start:stop] = np.diff(offsets) == 0
        else:
            places = np.flatnonzero(values == number) * 8
            having[start + np.searchsorted(offsets, places, "right") - 1] = True
    return having


def matching_keys(reader: Reader, text: str, report: Report) -> NDArray[np.bool_]:
    """Which records have ``text`` in their keys, in capitals or not (ASCII): bool ``(N,)``."""
    wanted = text.encode("utf-8", "surrogateescape").lower()
    found = np.zeros(len(reader), np.bool_)
    for start, stop, part in parts(reader):
        report(start)
        if part is None:
            continue
        try:
            keys = part.ragged("key")
            if type(keys) is Ragged:
                found[start + _places(keys, wanted)] = True
            else:
                for i in range(stop - start):
                    found[start + i] = wanted in bytes(keys[i]).lower()
        except PackstoreError:
            continue
    return found


def _places(keys: Ragged, wanted: bytes) -> NDArray[np.int64]:
    """Values of ``keys`` that contain ``wanted``; searches many at once instead of one by one."""
    offsets, data = keys.offsets, keys.data
    places: list[int] = []
    step = 65_536
    for first in range(0, len(keys), step):
        ends = offsets[first : first + step + 1]
        text = data[ends[0] : ends[-1]].tobytes().lower()
        ends = ends - ends[0]
        at = text.find(wanted)
        while at >= 0:
            value = int(np.searchsorted(ends, at, "right")) - 1
            if at + len(wanted) <= int(ends[value + 1]):
                places.append(first + value)
                at = text.find(wanted, int(ends[value + 1]))
            else:  # it reaches into the next key
                at = text.find(wanted, at + 1)
    return np.array(places, np.int64)


def sorted_keys(reader: Reader, records: NDArray[np.int64], report: Report) -> NDArray[np.int64]:
    """``records`` in the order of their keys; those with equal keys, or without one that can be read, as they come."""
    keys: list[bytes] = []
    for number, record in enumerate(records.tolist()):
        if number % _REPORTED == 0:
            report(number)
        try:
            keys.append(bytes(reader.value("key", record)))
        except PackstoreError:
            keys.append(b"\xff")
    return records[np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)]


def read_headers(reader: Reader, records: NDArray[np.int64] | None, report: Report) -> Headers:
    """The headers of the images of ``records``, ascending; None for all."""
    chosen = np.arange(len(reader), dtype=np.int64) if records is None else records
    count = len(chosen)
    width, height = np.zeros(count, np.uint32), np.zeros(count, np.uint32)
    nbytes, kind = np.zeros(count, np.int64), np.zeros(count, np.uint8)
    kinds: dict[str, int] = {_UNKNOWN: 0}
    done = 0
    for start, stop, part in parts_with(reader, chosen):
        first, last = np.searchsorted(chosen, (start, stop)).tolist()
        for row in range(first, last):
            if done % _REPORTED == 0:
                report(done)
            done += 1
            if part is None:
                continue
            try:
                size, name, nbytes[row] = header_of(part, int(chosen[row]) - start)
            except (PackstoreError, IndexError, HeaderError):
                continue
            height[row], width[row] = size
            kind[row] = kinds.setdefault(name, len(kinds)) if len(kinds) < 255 else 0
    return Headers(chosen, width, height, nbytes, kind, tuple(kinds))


def parts_with(reader: Reader, records: NDArray[np.int64]) -> Iterator[tuple[int, int, Reader | None]]:
    """As :func:`parts`, only those that hold some of ``records``."""
    starts = [*reader.part_starts.tolist(), len(reader)]
    numbers: Iterable[int] = np.unique(np.searchsorted(reader.part_starts, records, "right") - 1).tolist()
    for number in numbers:
        try:
            part: Reader | None = reader.part(number)
        except PackstoreError:
            part = None
        yield starts[number], starts[number + 1], part


def header_of(reader: Reader, record: int) -> tuple[tuple[int, int], str, int]:
    """Height and width, kind, and bytes at rest of a record's image, without decoding it.

    Raises :class:`HeaderError` where it is no image, and :class:`StoreError` where it cannot be read."""
    column = reader.manifest.image
    if column.layout is not None:
        shape = column.shape if column.kind == "fixed" else tuple(reader.value("shape", record).tolist())
        sides = shape[1:] if column.layout == "CHW" else shape[:2]
        nbytes = column.record_nbytes if column.kind == "fixed" else memoryview(reader.view(record)).nbytes
        return (max(0, sides[0]), max(0, sides[1])), f"{column.dtype} pixels", nbytes
    data = memoryview(reader.view(record)).cast("B")
    info = header_in(data)
    return (info.height, info.width), f"{info.kind} {mode_of(info)}", len(data)


def header_in(data: memoryview) -> ImageInfo:
    """The header of an image file, of which as little is read as will do. Raises :class:`HeaderError`."""
    try:
        return sniff(bytes(data[:_HEADER_BYTES]))
    except HeaderError:
        if len(data) <= _HEADER_BYTES:
            raise
        return sniff(data)


def mode_of(info: ImageInfo) -> str:
    """The colours of an image file, in words."""
    if info.kind == "jpeg" and info.components == 4:
        return "CMYK"
    mode = _MODES.get(info.components, f"{info.components} channels")
    return mode if info.precision in (1, 8) else f"{mode} of {info.precision} bits"


def sample_of(reader: Reader, fetch: bool = True) -> NDArray[np.int64] | None:
    """Records whose headers are read unasked: None for all, else :data:`SAMPLE` of them, evenly spread; without
    ``fetch``, over those that lie on this machine."""
    count = len(reader)
    if fetch or reader.at_hand(parts_within(reader, 0, count)).all():
        return None if count <= AT_ONCE else np.unique(np.linspace(0, count - 1, SAMPLE).astype(np.int64))
    return spread_at_hand(reader, 0, count, SAMPLE)
