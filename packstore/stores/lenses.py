"""Reads several open stores as one, through lenses that make them alike: joined classes, and images of one encoding.

Image files stay as they are. Beside them, 8-bit pixels are read as netpbm files, which hold the same pixels. Floating
point images of one normalisation are read as float32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import DERIVED, NUMPY_DTYPE, SEEK_INDEX, Buffer, ColumnData, Ragged, join_hidden_boxes
from packstore.core.errors import StoreError, printable
from packstore.core.manifest import Column, Manifest, Split
from packstore.core.modes import is_reading_option
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.proof import join_records_digests
from packstore.core.urls import ShardPlace
from packstore.stores.assembly import merge_classes
from packstore.stores.parts import Lens, Part, Problem, Rows
from packstore.stores.records import Chain, PartTable, Records

_NETPBM = {1: b"P5", 3: b"P6"}
_EXIF = "exif_transpose"
_SIZES = ("size", "resize", "max_side")


class _Converted(Lens):
    """Reads images in another form than they are stored in. Parts and checksums are those of the stored images."""

    def __init__(self, rows: Rows, manifest: Manifest) -> None:
        super().__init__(rows, manifest)
        self.converts_images, self.has_image_array = True, False

    def views(self, records: NDArray[np.int64]) -> Sequence[Buffer]:
        return Rows.views(self, records)


class AsNetpbm(_Converted):
    """Reads 8-bit pixels as PGM or PPM files, which hold the same pixels."""

    def view(self, index: int) -> Buffer:
        image = self.rows.manifest.image
        shape = image.shape if image.kind == "fixed" else tuple(self.rows.value(image.shape_name, index).tolist())
        height, width, channels = shape
        return b"%s %d %d 255\n" % (_NETPBM[channels], width, height) + bytes(self.rows.view(index))


class AsFloat32(_Converted):
    """Reads floating point images as float32."""

    def view(self, index: int) -> Buffer:
        column = self.rows.manifest.image
        stored = np.frombuffer(self.rows.view(index), NUMPY_DTYPE[column.dtype])
        if column.dtype == "bfloat16":  # the upper half of a float32
            return (stored.astype(np.uint32) << 16).tobytes()
        return stored.astype(np.float32).tobytes()


class Renumbered(Lens):
    """Reads the class numbers of a store as those of the joined store. A number without a class becomes -1."""

    def __init__(self, rows: Rows, columns: Sequence[Column]) -> None:
        """``columns``: those of the joined store."""
        super().__init__(rows)
        pairs = ((c, map_class_numbers(rows.manifest.column(c.name), c)) for c in columns)
        # -1 for a number without a class; the store that has it reports it.
        self._numbers = {c.name: np.append(numbers, -1) for c, numbers in pairs if numbers is not None}

    def value(self, name: str, index: int) -> Any:
        """Returns the stored value. The class numbers of a ragged column are returned as bytes."""
        value = self.rows.value(name, index)
        if name not in self._numbers:
            return value
        if self.manifest.column(name).kind == "ragged":
            return self._map(name, np.frombuffer(value, "<i8")).tobytes()
        return self._map(name, np.asarray(value))

    def values(self, name: str, records: NDArray[np.int64]) -> NDArray[Any]:
        values = self.rows.values(name, records)
        return self._map(name, values) if name in self._numbers else values

    def column(self, name: str) -> ColumnData:
        data = self.rows.column(name)
        if name not in self._numbers:
            return data
        if isinstance(data, Ragged):
            return Ragged(data.offsets, self._map(name, np.frombuffer(data.data, "<i8")).view(np.uint8))
        return self._map(name, data[:])

    def _map(self, name: str, labels: NDArray[Any]) -> NDArray[Any]:
        """Maps the class numbers of a column."""
        numbers = self._numbers[name]
        return numbers[np.where((labels >= 0) & (labels < len(numbers) - 1), labels, len(numbers) - 1)]


def join_columns(readers: Sequence[Records]) -> tuple[Column, ...]:
    """Checks that stores fit together, and returns the columns of the joined store.

    The columns have the first store's order and the classes of all stores. Left out are links to image files, and the
    seek index unless all stores have one. Sizes and digests are still those of the first store.

    Raises:
        StoreError: The stores differ in encoding, normalisation, rotation or columns, or only some have splits or names
            of classes.
    """
    first = readers[0]
    for reader in readers[1:]:
        mine, other = first.manifest, reader.manifest
        both = _name_both(first, reader)
        if mine.encoding != other.encoding:
            raise StoreError(f"{both} differ in encoding: {mine.encoding}, {other.encoding}; convert one of them first")
        if (mine.normalization, bool(mine.options.get(_EXIF))) != (other.normalization, bool(other.options.get(_EXIF))):
            raise StoreError(f"the images of {both} differ in normalisation or EXIF rotation; convert one of them")
        if bool(mine.splits) != bool(other.splits):
            raise StoreError(f"one of {both} has splits and the other has none; give it some with packstore select")
        names, other_names = ([column.name for column in _list_underived(each)] for each in (mine, other))
        if odd := ", ".join(name for name in (*names, *other_names) if (name in names) != (name in other_names)):
            raise StoreError(f"{both} have different columns: only one of them has {odd}")
        for a in _list_underived(mine):
            b = other.column(a.name)
            if replace(a, classes=None).declaration != replace(b, classes=None).declaration:
                raise StoreError(
                    f"column {a.name!r} of {both} differs in its declaration: {a.declaration}; {b.declaration}"
                )
    columns = []
    indexed = all(reader.manifest.has_column(SEEK_INDEX.name) for reader in readers)
    kept = {column.name for column in _list_underived(first.manifest)} | ({SEEK_INDEX.name} if indexed else set())
    for column in first.manifest.columns:
        if column.name not in kept:
            continue
        given = [(str(reader.path), reader.manifest.column(column.name)) for reader in readers]
        frames = {other.frame for _, other in given}
        frame = column.frame if len(frames) == 1 else None  # a store of an earlier version does not tell
        columns.append(replace(column, classes=merge_classes(column.name, given), frame=frame))
    return tuple(columns)


def _list_underived(manifest: Manifest) -> list[Column]:
    """Returns all columns but the links to image files and the seek index."""
    return [column for column in manifest.columns if column.name not in DERIVED]


def map_class_numbers(column: Column, merged: Column) -> NDArray[np.int64] | None:
    """Returns an array that maps each class number of ``column`` to its number in ``merged``.

    Returns None if no number changes, or if one of the columns has no classes. ``merged`` has all classes of
    ``column``.
    """
    if column.classes is None or merged.classes is None or merged.classes[: len(column.classes)] == column.classes:
        return None
    places = {name: i for i, name in enumerate(merged.classes)}
    return np.array([places[name] for name in column.classes], np.int64)


def unify_encodings(readers: Sequence[Records]) -> list[Records]:
    """Returns readers of the same stores whose images have one encoding.

    - Images are stored alike, and image files are read with the same options: the same readers.
    - All images are floating point: reads them as float32. Does not compare normalisations.
    - Others: image files stay, and 8-bit pixels are read as PGM or PPM files.

    Raises:
        StoreError: The images differ in mode. Only some are floating point. Pixels beside files are not 8-bit gray or
            RGB. Options of reading image files contradict each other.
    """
    manifests = [reader.manifest for reader in readers]
    alike = len({(m.encoding, m.image.declaration) for m in manifests}) == 1
    answers = {option for m in manifests for option in filter(is_reading_option, m.options)}
    if alike and len({tuple(m.options.get(name) for name in answers) for m in manifests}) == 1:
        return [*readers]
    if alike and not manifests[0].holds_files:
        return [*readers]
    modes = {m.image.pixels.name: reader for m, reader in zip(manifests, readers, strict=True)}
    if len(modes) > 1:
        (one, first), (other, second), *_ = modes.items()
        raise StoreError(
            f"{_name_both(first, second)} hold images of modes {one} and {other}; convert one of them with --mode"
        )
    floats = [reader for reader in readers if reader.manifest.holds_floats]
    others = [reader for reader in readers if not reader.manifest.holds_floats]
    if floats and others:
        raise StoreError(
            f"{_name_both(floats[0], others[0])} hold {floats[0].manifest.encoding} and {others[0].manifest.encoding}: "
            "the images of the first are normalised floating point values, those of the second are not; convert the "
            "second with the encoding, size and normalisation of the first"
        )
    if floats:
        return [_wrap_as_float32(reader) for reader in readers]
    options = _join_options(readers)
    return [_wrap_as_files(reader, options) for reader in readers]


def _name_both(first: Records, second: Records) -> str:
    """Returns ``PATH and PATH`` for messages."""
    return f"{printable(str(first.path))} and {printable(str(second.path))}"


def _join_options(readers: Sequence[Records]) -> dict[str, Any]:
    """Joins the options of stores: one store's, without sizes, and the common ones of reading image files."""
    files = [reader for reader in readers if reader.manifest.holds_files] or [*readers]
    # Prefers the encoding original, then image files of any encoding.
    lead = next((reader for reader in files if reader.manifest.encoding == "original"), files[0])
    options = {
        name: value for name, value in lead.manifest.options.items() if not (is_reading_option(name) or name in _SIZES)
    }
    for reader in readers[1:]:
        if bool(reader.manifest.options.get(_EXIF)) != bool(readers[0].manifest.options.get(_EXIF)):
            raise StoreError(
                f"the images of {_name_both(readers[0], reader)} differ in EXIF rotation; convert one of them"
            )
    return options | join_answers([(str(reader.path), reader.manifest) for reader in files])


def join_answers(manifests: Iterable[tuple[str, Manifest]]) -> dict[str, Any]:
    """Joins the stores' options of reading image files, in the main column and in others.

    Leaves out options that are None, and the main column's options if the store holds arrays.

    Args:
        manifests: Path and manifest of each store.

    Raises:
        StoreError: Two stores have different values of an option.
    """
    answers: dict[str, tuple[Any, str]] = {}
    for path, manifest in manifests:
        for name, value in manifest.options.items():
            if value is None or not is_reading_option(name) or not ("." in name or manifest.holds_files):
                continue
            before, owner = answers.setdefault(name, (value, path))
            if value != before:
                both = f"{printable(owner)} and {printable(path)}"
                raise StoreError(f"{both} are read with {name} {before} and {value}; convert one of them")
    if "pixels" in answers and len(mixed := answers.keys() & {"pixels", "depth", "alpha", "frames"}) > 1:
        both = " and ".join(printable(owner) for owner in dict.fromkeys(answers[name][1] for name in sorted(mixed)))
        raise StoreError(f"{both} are read with {' and '.join(sorted(mixed))}; convert one of them")
    return {name: value for name, (value, _) in answers.items()}


def _wrap_as_files(reader: Records, options: Mapping[str, Any]) -> Records:
    """Wraps a store as one of image files, with the encoding ``original`` and other options."""
    manifest, image = reader.manifest, reader.manifest.image
    if manifest.holds_files:
        described = replace(manifest, encoding="original", options=options, shards=None)
        return reader.through(lambda rows: Lens(rows, described))
    # Pixels become PGM or PPM files: AsNetpbm writes only 8-bit gray and RGB.
    if image.dtype != "uint8" or image.pixels.channels not in _NETPBM:
        raise StoreError(
            f"{printable(str(reader.path))} holds {manifest.encoding} pixels of mode {image.pixels.name}, which "
            "cannot be read together with images of another encoding or size; convert one of the stores"
        )
    columns = (
        Column("image", "ragged", "uint8", nbytes=image.nbytes, type="image", mode=image.mode),
        *(column for column in manifest.columns[1:] if image.kind == "fixed" or column.name != image.shape_name),
    )
    described = replace(manifest, encoding="original", columns=columns, options=options, shards=None)
    return reader.through(lambda rows: AsNetpbm(rows, described))


def _wrap_as_float32(reader: Records) -> Records:
    """Wraps a store of floating point arrays as one of float32, unless it is one already."""
    image = reader.manifest.image
    if image.dtype == "float32":
        return reader
    nbytes = image.nbytes * 4 // NUMPY_DTYPE[image.dtype].itemsize
    columns = (replace(image, dtype="float32", nbytes=nbytes), *reader.manifest.columns[1:])
    described = replace(reader.manifest, encoding="float32", columns=columns, shards=None)
    return reader.through(lambda rows: AsFloat32(rows, described))


class RecordRange(NamedTuple):
    """Consecutive records of one of the joined stores.

    Attributes:
        store: Number of the store.
        first: Number of the first record in that store.
        start: Number of the first record in the joined store.
        length: Number of records.
    """

    store: int
    first: int
    start: int
    length: int


class JoinedTable(PartTable):
    """The files of several stores that are read as one. A file with several splits is listed several times.

    Attributes:
        ranges: The ranges of records, in order.
        stores: The table of each store.
    """

    def __init__(self, path: Path, manifest: Manifest, stores: Sequence[PartTable], ranges: list[RecordRange]) -> None:
        self.stores = stores
        self.ranges = ranges
        self._origins: list[tuple[int, int]] = []  # number of the store, number of the file in it
        starts: list[int] = []
        for run in ranges:
            own = stores[run.store].starts
            first, last = stores[run.store].find([run.first, run.first + run.length - 1]).tolist()
            for number in range(first, last + 1):
                starts.append(run.start + max(0, int(own[number]) - run.first))
                self._origins.append((run.store, number))
        super().__init__(path, manifest, np.array(starts, np.int64))
        self.can_refetch = any(store.can_refetch for store in stores)
        self.cache = next((store.cache for store in stores if store.cache is not None), None)
        self.all_counts = [counts for store in stores for counts in store.all_counts]
        sizes = [stores[store].part_nbytes[number] for store, number in self._origins]
        self.part_nbytes = np.array(sizes, np.int64)

    def open(self, number: int) -> Part:
        store, local = self._origins[number]
        return self.stores[store].open(local)

    def places(self) -> list[ShardPlace]:
        places = [store.places() for store in self.stores]
        return [places[store][local] for store, local in self._origins]

    def check_files(self) -> None:
        for store in self.stores:
            store.check_files()

    def disk_bytes(self) -> int:
        return sum(store.disk_bytes() for store in self.stores)

    def mark_suspect(self, number: int) -> None:
        store, local = self._origins[number]
        self.stores[store].mark_suspect(local)

    def are_local(self, numbers: Iterable[int]) -> NDArray[np.bool_]:
        chosen = [*numbers]
        local = np.ones(len(chosen), np.bool_)
        for store, (places, own) in self._group(chosen).items():
            local[places] = self.stores[store].are_local(own)
        return local

    def prefetch(self, number: int) -> None:
        store, local = self._origins[number]
        self.stores[store].prefetch(local)

    def release(self, numbers: Collection[int]) -> None:
        for store, (_, own) in self._group(numbers).items():
            self.stores[store].release(own)

    @contextmanager
    def refuse_requests(self) -> Iterator[None]:
        with ExitStack() as refused:
            for store in self.stores:
                refused.enter_context(store.refuse_requests())
            yield

    def faults(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Yields the faults of all stores. Record numbers count within each store, not within the joined store."""
        for store in self.stores:
            yield from store.faults(quick=quick, progress=progress)

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def _group(self, numbers: Iterable[int]) -> dict[int, tuple[list[int], list[int]]]:
        """Groups files by store: their positions in ``numbers``, and their numbers in the store."""
        groups: dict[int, tuple[list[int], list[int]]] = {}
        for place, number in enumerate(numbers):
            store, local = self._origins[number]
            places, own = groups.setdefault(store, ([], []))
            places.append(place)
            own.append(local)
        return groups


class _Joined(Chain):
    """Reads the splits of several stores one after the other. Each store checks its own records."""

    def __init__(self, table: JoinedTable, stores: Sequence[Rows]) -> None:
        ranges = table.ranges
        starts, firsts = [run.start for run in ranges], [run.first for run in ranges]
        super().__init__(table.path, table.manifest, (starts, firsts), lambda number: stores[ranges[number].store])
        self._stores = stores
        self.converts_images = any(rows.converts_images for rows in stores)

    def read_stored_image(self, index: int) -> Buffer:
        return self._read(index, lambda rows, local: rows.read_stored_image(local))

    def find_faults(self, records: NDArray[np.int64], names: Iterable[str]) -> dict[int, StoreError]:
        errors: dict[int, StoreError] = {}
        names = [*names]
        for number, _, found in self._read_groups(records, lambda rows, local: rows.find_faults(local, names)):
            for record, error in found.items():
                self._renumber(error, self._shifts[number])
                errors[record + self._shifts[number]] = error
        return errors

    def check_fields(self, index: int) -> None:
        self._read(index, lambda rows, local: rows.check_fields(local))

    def verify_column(self, name: str) -> None:
        for rows in self._stores:
            rows.verify_column(name)


def join_stores(readers: Sequence[Records]) -> Records:
    """Reads open stores as one: each split has the records of the first store, then those of the second, and so on.

    Columns are joined as by ``merge``: classes are matched by name, and class numbers are those of the joined classes.
    A number without a class becomes -1. The manifest has the first store's options and skipped samples. Closing the
    result closes all stores.

    Raises:
        StoreError: The stores do not fit together.
    """
    columns = join_columns(readers)
    ranges = [*_list_ranges(readers)]
    path = Path(" + ".join(str(reader.path) for reader in readers))
    manifest = _join_manifests([reader.manifest for reader in readers], columns, ranges)
    table = JoinedTable(path, manifest, [reader.table for reader in readers], ranges)

    def join(stores: Sequence[Records]) -> Rows:
        return _Joined(table, [Renumbered(store.rows, columns) for store in stores])

    unchecked = [reader.unchecked_reader for reader in readers]
    checks = any(plain is not reader for plain, reader in zip(unchecked, readers, strict=True))
    return Records(table, join(readers), Records(table, join(unchecked)) if checks else None)


def _join_manifests(
    manifests: Sequence[Manifest], columns: Sequence[Column], ranges: Sequence[RecordRange]
) -> Manifest:
    """Builds the manifest of the joined store."""
    splits: dict[str, Split] = {}
    if manifests[0].splits:
        for run in ranges:
            name = next(s.name for s in manifests[run.store].splits if s.start == run.first and len(s))
            start = splits[name].start if name in splits else run.start
            splits[name] = Split(name, start, run.start + run.length)
    given = [(column, [manifest.column(column.name) for manifest in manifests]) for column in columns]
    whole = (
        replace(column, nbytes=sum(each.nbytes for each in parts), hides_boxes=join_hidden_boxes(parts))
        for column, parts in given
    )
    # all else, such as options and skipped samples, is the first store's
    return replace(
        manifests[0],
        records=sum(manifest.records for manifest in manifests),
        columns=tuple(whole),
        splits=tuple(splits.values()),
        records_digest=join_records_digests((m.records_digest, m.records) for m in manifests),
        shards=None,
    )


def _list_ranges(readers: Sequence[Records]) -> Iterator[RecordRange]:
    """Yields the nonempty ranges of the joined store: split by split, then store by store."""
    names = dict.fromkeys(split.name for reader in readers for split in reader.manifest.splits)
    start = 0
    for name in names or (None,):
        for number, reader in enumerate(readers):
            if name is None or any(split.name == name for split in reader.manifest.splits):
                split = reader.split(name)
                if len(split):
                    yield RecordRange(number, split.start, start, len(split))
                    start += len(split)
