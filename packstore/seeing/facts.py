"""Facts about many records, read in one pass: labels, matching keys, sizes and kinds of images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import FLAGS, Ragged, list_user_columns
from packstore.core.errors import CacheError, PackstoreError, UnreachableError
from packstore.core.manifest import Column, Manifest
from packstore.images.orientation import read_orientation, readers_transpose, swaps_sides
from packstore.images.sniff import HeaderError, ImageInfo, sniff
from packstore.stores import Reader

MISSING, UNREADABLE, UNREAD = -1, -2, -3
"""Labels of records without a label, with an unreadable label, and with a label that was not fetched."""
SAMPLE = 20_000
"""Number of headers that are read by default from a large store, evenly spread."""
AT_ONCE = 100_000
"""Most records of a store of which all headers are read by default."""

Report = Callable[[int], None]
"""A background job calls it with the number of records done. It raises an error to stop the job."""

_HEADER_BYTES = 1 << 16
_REPORTED = 512
_UNKNOWN = "unreadable"
_MODES = {1: "grey", 2: "grey and alpha", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True, eq=False)
class ImageHeaders:
    """Facts from image headers, one row for each image.

    Attributes:
        records: Record numbers, int64, ascending.
        width: In pixels, uint32; 0 if the header cannot be read.
        height: In pixels, uint32; 0 if the header cannot be read.
        nbytes: Bytes of the stored image, int64.
        kind: Index into ``kinds``, uint8.
        kinds: Kinds of images, such as ``jpeg RGB``.
    """

    records: NDArray[np.int64]
    width: NDArray[np.uint32]
    height: NDArray[np.uint32]
    nbytes: NDArray[np.int64]
    kind: NDArray[np.uint8]
    kinds: tuple[str, ...]

    def get_measure(self, name: str) -> NDArray[np.float64]:
        """Returns a measure of each image, named by :data:`packstore.seeing.view.query.MEASURES`. An unreadable image
        has 0 ``bytes``, and NaN for other measures."""
        if name == "bytes":
            return self.nbytes.astype(np.float64)
        width, height = self.width.astype(np.float64), self.height.astype(np.float64)
        known = (width > 0) & (height > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = {"width": width, "height": height, "pixels": width * height, "aspect": width / height}[name]
        return np.where(known, values, np.nan)


def find_class_column(manifest: Manifest) -> Column | None:
    """Returns the column whose classes the grid shows and filters by.

    This is ``label``, else the first column of classes or lists of classes. Returns None if there is none.
    """
    columns = [column for column in manifest.columns if column.traits.has_classes and column.name not in FLAGS]
    return next((column for column in columns if column.name == "label"), columns[0] if columns else None)


def shown_columns(manifest: Manifest) -> list[Column]:
    """Returns the columns that the page shows: all except internal ones and companions."""
    return [manifest.image, *list_user_columns(manifest.columns)]


def locate_in_split(manifest: Manifest, record: int) -> tuple[str | None, int]:
    """Returns the split of a record, and the record's number in it. Without splits, returns None and ``record``."""
    for split in manifest.splits:
        if split.start <= record < split.stop:
            return split.name, record - split.start
    return None, record


def iterate_parts(reader: Reader, numbers: Iterable[int] | None = None) -> Iterator[tuple[int, int, Reader | None]]:
    """Yields first record, end and reader of parts (shards) of a store. The reader is None for a part that cannot be
    opened.

    ``numbers``: the parts; None for all.
    """
    starts = [*reader.table.starts.tolist(), len(reader)]
    for number in range(len(starts) - 1) if numbers is None else numbers:
        try:
            part: Reader | None = reader.part(number)
        except PackstoreError:
            part = None
        yield starts[number], starts[number + 1], part


def find_parts_of(reader: Reader, records: NDArray[np.int64]) -> list[int]:
    """Returns the numbers of the store's parts that hold ``records``."""
    numbers: list[int] = np.unique(reader.table.find(records)).tolist()
    return numbers


def read_labels(reader: Reader, column: Column, report: Report, fetch: bool = True) -> NDArray[np.int32]:
    """Reads the labels of all records, int32 ``(N,)``. Records without a label have one of these numbers:

    - :data:`MISSING`: the record has no label.
    - :data:`UNREADABLE`: the label is damaged, negative or too large.
    - :data:`UNREAD`: the label is not on this machine, and ``fetch`` is False.
    """
    labels = np.full(len(reader), UNREAD, np.int32)
    numbers = range(len(reader.table.starts))
    here = None if fetch else np.flatnonzero(reader.table.are_local(numbers)).tolist()
    for start, stop, part in iterate_parts(reader, here):
        report(start)
        labels[start:stop] = UNREADABLE
        if part is None:
            continue
        try:
            labelled = part.fixed_column(column.name)
            missing = ~part.fixed_column(column.valid_name) if column.nullable else None
        except (PackstoreError, KeyError):
            continue
        fits = (labelled >= 0) & (labelled < np.iinfo(np.int32).max)
        labels[start:stop] = np.where(fits, labelled, UNREADABLE)
        if missing is not None:
            labels[start:stop][missing] = MISSING
    return labels


def find_class(reader: Reader, column: Column, number: int, report: Report) -> NDArray[np.bool_]:
    """Finds the records that have the class ``number`` in a column of lists of classes: bool ``(N,)``.

    :data:`MISSING` finds records with an empty list. Leaves out records of parts that cannot be read.
    """
    having = np.zeros(len(reader), np.bool_)
    for start, stop, part in iterate_parts(reader):
        report(start)
        if part is None:
            continue
        try:
            rows = part.ragged_column(column.name)
            offsets, values = rows.offsets, rows.data[: rows.offsets[-1] // 8 * 8].view("<i8")
        except PackstoreError:
            continue
        if number == MISSING:
            having[start:stop] = np.diff(offsets) == 0
        else:
            places = np.flatnonzero(values == number) * 8
            having[start + np.searchsorted(offsets, places, "right") - 1] = True
    return having


def find_keys(reader: Reader, text: str, report: Report) -> NDArray[np.bool_]:
    """Finds the records with ``text`` in their keys, ignoring ASCII case: bool ``(N,)``. Leaves out records whose keys
    cannot be read."""
    wanted = text.encode("utf-8", "surrogateescape").lower()
    matches = np.zeros(len(reader), np.bool_)
    for start, stop, part in iterate_parts(reader):
        report(start)
        if part is None:
            continue
        try:
            keys = part.ragged_column("key")
            if type(keys) is Ragged:
                matches[start + _find_in_keys(keys, wanted)] = True
            else:
                for i in range(stop - start):
                    matches[start + i] = wanted in bytes(keys[i]).lower()
        except PackstoreError:
            continue
    return matches


def _find_in_keys(keys: Ragged, wanted: bytes) -> NDArray[np.int64]:
    """Returns the numbers of ``keys`` that contain ``wanted`` (lower case), ignoring ASCII case."""
    offsets, data = keys.offsets, keys.data
    places: list[int] = []
    step = 65_536  # keys searched at once
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
            else:  # the match extends into the next key
                at = text.find(wanted, at + 1)
    return np.array(places, np.int64)


def sort_by_key(reader: Reader, records: NDArray[np.int64], report: Report) -> NDArray[np.int64]:
    """Sorts ``records`` by their keys. Equal keys keep their order. Unreadable keys come last."""
    keys: list[tuple[bool, bytes]] = []
    for number, record in enumerate(records.tolist()):
        if number % _REPORTED == 0:
            report(number)
        try:
            keys.append((False, bytes(reader.value("key", record))))
        except PackstoreError:
            keys.append((True, b""))
    return records[np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)]


def read_headers(reader: Reader, records: NDArray[np.int64] | None, report: Report) -> ImageHeaders:
    """Reads the headers of the images of ``records``, which are ascending. None reads those of all records. Fetches
    their shards.

    Unreadable images have size 0 and the kind ``unreadable``. After 255 kinds, further kinds count as ``unreadable``,
    too.
    """
    chosen = np.arange(len(reader), dtype=np.int64) if records is None else records
    count = len(chosen)
    width, height = np.zeros(count, np.uint32), np.zeros(count, np.uint32)
    nbytes, kind = np.zeros(count, np.int64), np.zeros(count, np.uint8)
    kinds: dict[str, int] = {_UNKNOWN: 0}
    done = 0
    for start, stop, part in iterate_parts(reader, find_parts_of(reader, chosen)):
        first, last = np.searchsorted(chosen, (start, stop)).tolist()
        for row in range(first, last):
            if done % _REPORTED == 0:
                report(done)
            done += 1
            if part is None:
                continue
            try:
                size, name, nbytes[row] = read_image_facts(part, int(chosen[row]) - start)
            except (PackstoreError, IndexError, HeaderError):
                continue
            height[row], width[row] = size
            kind[row] = kinds.setdefault(name, len(kinds)) if len(kinds) < 255 else 0
    return ImageHeaders(chosen, width, height, nbytes, kind, tuple(kinds))


def read_image_facts(reader: Reader, record: int) -> tuple[tuple[int, int], str, int]:
    """Returns (height, width), kind and stored bytes of a record's image. Reads only headers and shapes. The size is
    that of the upright image if readers turn the store's images.

    The kind is such as ``jpeg RGB``, or ``uint8 pixels`` for stored pixels. Raises :class:`HeaderError` if it is no
    image, and :class:`StoreError` if it cannot be read.
    """
    column = reader.manifest.image
    if column.layout is not None:
        shape = column.shape if column.kind == "fixed" else tuple(reader.value("shape", record).tolist())
        sides = shape[1:] if column.layout == "CHW" else shape[:2]
        nbytes = column.record_nbytes if column.kind == "fixed" else memoryview(reader.view(record)).nbytes
        return (max(0, sides[0]), max(0, sides[1])), f"{column.dtype} pixels", nbytes
    data = memoryview(reader.view(record)).cast("B")
    info = parse_header(data)
    size = (info.height, info.width)
    if readers_transpose(reader.manifest) and swaps_sides(read_orientation(data, info)):
        size = size[::-1]
    return size, f"{info.kind} {describe_channels(info)}", len(data)


def parse_header(data: memoryview) -> ImageInfo:
    """Parses the header of an image file. Copies only its first 64 KiB if that is enough. Raises :class:`HeaderError`
    if it is no image."""
    try:
        return sniff(bytes(data[:_HEADER_BYTES]))
    except HeaderError:
        if len(data) <= _HEADER_BYTES:
            raise
        return sniff(data)


def describe_channels(info: ImageInfo) -> str:
    """Describes channels and bits of an image file, such as ``RGB``, ``CMYK`` or ``grey of 16 bits``."""
    if info.kind == "jpeg" and info.components == 4:
        return "CMYK"
    mode = _MODES.get(info.components, f"{info.components} channels")
    return mode if info.precision in (1, 8) else f"{mode} of {info.precision} bits"


def choose_sample(reader: Reader, fetch: bool = True) -> NDArray[np.int64] | None:
    """Chooses the records whose headers are read by default. Returns None for all, if the store has at most
    :data:`AT_ONCE`.

    Of a larger store, chooses :data:`SAMPLE` evenly spread records. Without ``fetch``, a store with absent shards gets
    at most :data:`SAMPLE` records on this machine.
    """
    count = len(reader)
    if fetch or reader.table.are_local(find_parts_within(reader, 0, count)).all():
        return None if count <= AT_ONCE else np.unique(np.linspace(0, count - 1, SAMPLE).astype(np.int64))
    return spread_local_records(reader, 0, count, SAMPLE)


def find_parts_within(reader: Reader, start: int, stop: int) -> range:
    """Returns the numbers of the store's parts (shards) that hold records from ``start`` to ``stop - 1``.
    Empty for an empty range."""
    if start >= stop:
        return range(0)
    first, last = np.searchsorted(reader.table.starts, (start, stop - 1), "right").tolist()
    return range(first - 1, last)


def spread_local_records(reader: Reader, start: int, stop: int, most: int) -> NDArray[np.int64]:
    """Returns at most ``most`` record numbers from ``start`` to ``stop - 1``, evenly spread, ascending. Takes only
    records on this machine; empty if there are none."""
    parts = find_parts_within(reader, start, stop)
    edges = np.clip([*reader.table.starts[parts.start : parts.stop].tolist(), stop], start, stop)
    here = [
        range(*ends)
        for ends, there in zip(pairwise(edges.tolist()), reader.table.are_local(parts), strict=True)
        if there
    ]
    ends = np.cumsum([0, *map(len, here)])
    count = int(ends[-1])
    places = np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))
    which = np.searchsorted(ends, places, "right") - 1
    first = np.array([records.start for records in here], np.int64)
    numbers: NDArray[np.int64] = first[which] + places - ends[which] if count else places
    return numbers


def is_damage(error: PackstoreError) -> bool:
    """Tells if an error means damage. False if data cannot be fetched or cached now."""
    return not isinstance(error, (UnreachableError, CacheError))
