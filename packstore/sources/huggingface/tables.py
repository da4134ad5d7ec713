"""Tables in files as a source: rows in groups, each decoded once where samples are read in order.

A kind finds the tables of each split and decodes their groups (row groups of Parquet, record batches of Arrow). Of a
large group only a part is in memory at a time.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Boxes, Bytes, Field, Image, Images, Json, Mask, Text
from packstore.core.parallel import ordered_flat_map
from packstore.images.sniff import IS_LFS_POINTER, LFS_POINTER, max_file_bytes
from packstore.sources.base import Entry, SourceOptions
from packstore.sources.boxes import NOT_CONVERTED, to_corners
from packstore.sources.huggingface.card import CARD
from packstore.sources.huggingface.features import (
    Cells,
    Facts,
    File,
    TableColumn,
    class_names,
    columns_of,
    features_of,
    is_label,
    is_text_label,
    load_pyarrow,
    objects_in,
    warn_of_names,
)
from packstore.sources.huggingface.objects import ObjectColumn, Objects
from packstore.sources.huggingface.splits import folder_files
from packstore.sources.labels import lower_known_split
from packstore.sources.ledger import Claims, Role
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.records.shards import ShardSource
from packstore.sources.refusals import first_bytes
from packstore.sources.rows import PROBED, Row
from packstore.sources.text_labels import LabelTexts
from packstore.sources.values import nbytes_of
from packstore.sources.workers import FailedSample
from packstore.stores.link_files import Location

STEP_BYTES = 16 << 20
"""About how much of a group is decoded at a time."""
_PIECE_BYTES = 4 << 20
_AHEAD_BYTES = 32 << 20
_OPEN, _NEAR = 4, 4


class Group(NamedTuple):
    """Rows of a table that lie together.

    Attributes:
        rows: How many there are.
        nbytes: Bytes of each column, by its name.
    """

    rows: int
    nbytes: Mapping[str, int]


@dataclass(slots=True)
class Overview:
    """What a table says of itself.

    Attributes:
        schema: Its schema, as Arrow has it.
        groups: Its groups, in order.
        optional: See :class:`packstore.sources.huggingface.features.Facts`.
        negative: Likewise.
        with_paths: Columns of files some of which may have a path.
    """

    schema: Any
    groups: list[Group] = field(default_factory=list)
    optional: set[str] = field(default_factory=set)
    negative: set[str] = field(default_factory=set)
    with_paths: set[str] = field(default_factory=set)


class Table(ABC):
    """An open table, for one thread. Its methods raise what pyarrow raises; see :func:`faults`."""

    @abstractmethod
    def overview(self) -> Overview:
        """What it says of itself."""

    @abstractmethod
    def batches(self, group: int, rows: int | None = None) -> Iterator[Any]:
        """The record batches of a group, in order; of ``rows`` each where that can be, so that the first rows do not
        cost all of them."""

    @abstractmethod
    def column(self, name: str) -> Iterator[Any]:
        """The arrays of one column, in order."""

    def check(self) -> None:
        """Raises :class:`ValueError` where its rows cannot be touched any more; before each row, and maybe after
        :meth:`close`."""
        return

    def locate(self, address: int) -> Location | None:
        """Where in its file lies what is at an address in memory; None where that is no map of the file."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Closes its file. Arrays that were read stay valid."""


@dataclass(slots=True)
class _File:
    """A file of a source, in some 24 bytes a group.

    Attributes:
        rows: Rows of each group.
        image: Bytes of the main image on average, for each group.
        rest: Bytes of the other values, likewise.
        further: Bytes of each further column of images, likewise, by name.
    """

    rows: array[int] = field(default_factory=lambda: array("q"))
    image: array[int] = field(default_factory=lambda: array("q"))
    rest: array[int] = field(default_factory=lambda: array("q"))
    further: dict[str, array[int]] = field(default_factory=dict)


class _Values(dict[str, Any]):
    """The values of a row.

    Attributes:
        location: Where the main image lies; None where it is no plain range of a file.
    """

    location: Location | None = None


class _Block(NamedTuple):
    """Rows that are decoded: ``first`` up to ``stop`` of a group of a file."""

    place: tuple[int, int]
    first: int
    stop: int
    cells: tuple[Cells, ...]
    check: Callable[[], None]
    locate: Callable[[int], Location | None]

    def holds(self, file: int, group: int, row: int) -> bool:
        return self.place == (file, group) and self.first <= row < self.stop


class TableSource(ShardSource):
    """A source whose samples are rows of tables in files, under keys of split and number.

    Image files are kept as they are. A class number below 0 is a missing label.
    """

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.shards = self.list_shards()
        if not self.shards:
            raise SourceError(f"{printable(str(path))} holds no files of kind {self.kind}")
        self._max_bytes = max_file_bytes(options.max_pixels)
        self._open: OrderedDict[int, Table] = OrderedDict()
        self._near: deque[_Block] = deque(maxlen=_NEAR)
        self._lock = threading.Lock()
        main = next(column.column for column in self._probed if column.name == "image")
        files = "1 file" if len(self.shards) == 1 else f"{len(self.shards)} files"
        self.evidence = f"{files} of kind {self.kind}, with images in the column {printable(main)!r}"

    @abstractmethod
    def find(self) -> Iterable[tuple[str, Path]]:
        """The files with their splits; those of a split in their order."""

    @abstractmethod
    def open_table(self, path: Path) -> Table:
        """Opens a file. Raises what pyarrow raises."""

    def list_shards(self) -> list[tuple[str, Path]]:
        """Lists split and path of each file."""
        return [(lower_known_split(split), file) for split, file in self.find()]

    def features(self) -> Mapping[str, Any]:
        """Features by column, for tables whose schema has none."""
        return {}

    def claim_files(self, claims: Claims) -> None:
        """Claims the tables, the card, and images beside tables that hold paths instead of bytes."""
        super().claim_files(claims)
        claims.claim(CARD, Role.EVIDENCE)
        if self.path.is_dir() and self.names_images:
            for name in folder_files(self.path):
                if name.lower().endswith(IMAGE_SUFFIXES):
                    claims.claim(name)

    def left_reason(self, folder: str, name: str) -> str | None:
        return "Parquet files of no split" if name.endswith(".parquet") else super().left_reason(folder, name)

    def fields(self) -> dict[str, Field]:
        found: dict[str, Field] = {}
        for column in self._columns:
            found[column.name] = column.field
            if column.path is not None:
                several = isinstance(column.field, Images)
                found[column.path] = Json(optional=True) if several else Text(optional=True)
        return found

    def shard_rows(self, number: int, keys: Iterator[str]) -> Iterator[Row]:
        """Yields the rows; sizes are means of each row group."""
        file = self._files[number]
        for group, (count, image, rest) in enumerate(zip(file.rows, file.image, file.rest, strict=True)):
            sizes = {name: each[group] for name, each in file.further.items()}
            for row, key in enumerate(islice(keys, count)):
                yield Row(key, (number, group, row), image, rest, sizes=sizes)

    def values(self, ref: Any) -> Mapping[str, Any]:
        if isinstance(ref, dict):
            return ref
        if isinstance(ref, FailedSample):
            raise ValueError(ref.reason)
        number, group, row = ref
        with self._lock:
            block = next((each for each in self._near if each.holds(number, group, row)), None)
            if block is None:
                few = PROBED if row < PROBED else None  # most likely to see what the first rows are
                block = _reach(self._blocks(self._table(number), number, group, few), row)
                self._near.append(block)
        return self._row(block, row)

    def locate_row(self, ref: Any) -> Location | None:
        """Locates an image of a row that :meth:`fetch` has read; None for other rows."""
        return ref.location if isinstance(ref, _Values) else None

    def fetch(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """Reads the rows, in a thread of its own, some 32 MB ahead. Their values lie in ``Entry.ref`` then."""
        pieces = ordered_flat_map(lambda _: self._pieces(entries), [None], 1, lambda piece: piece[1], _AHEAD_BYTES)
        return chain.from_iterable(piece for piece, _ in pieces)

    def nbytes(self, entry: Entry) -> int:
        ref = self._ref_of(entry)
        return sum(map(nbytes_of, ref.values())) if isinstance(ref, dict) else entry.size_bytes

    def close(self) -> None:
        with self._lock:
            self._near.clear()
            while self._open:
                self._open.popitem()[1].close()

    def _pieces(self, entries: Iterator[Entry]) -> Iterator[tuple[list[Entry], int]]:
        """The entries with their values, in pieces of some 4 MB, and the size of each piece."""
        piece: list[Entry] = []
        size = 0
        for number, run in groupby(entries, lambda entry: int(self._ref_of(entry)[0])):
            with closing(self._cursor(number)) as cursor:
                next(cursor)
                for entry in run:
                    entry = self._with_values(entry, cursor.send(self._ref_of(entry)))
                    piece.append(entry)
                    size += self.nbytes(entry)
                    if size >= _PIECE_BYTES:
                        yield piece, size
                        piece, size = [], 0
        yield piece, size

    def _ref_of(self, entry: Entry) -> Any:
        """Returns the reference of an entry's row."""
        return entry.ref

    def _with_values(self, entry: Entry, values: Any) -> Entry:
        """Replaces the reference of an entry's row by its values."""
        return entry._replace(ref=values)

    def _cursor(self, number: int) -> Generator[Any, Any, None]:
        """Takes references to rows of a file in their order; gives the values of each, or why there are none."""
        found: Any = None
        try:
            table = self._opened(number)
        except ValueError as error:
            while True:
                yield FailedSample(str(error))
        with closing(table):
            block, failed = _NO_BLOCK, (-1, "")
            blocks: Iterator[_Block] = iter(())
            while True:
                _, group, row = yield found
                try:
                    if group == failed[0]:
                        raise ValueError(failed[1])
                    if not block.holds(number, group, row):
                        if block.place != (number, group) or row < block.first:
                            blocks = self._blocks(table, number, group)
                        block = _reach(blocks, row)
                except ValueError as error:
                    block, failed, found = _NO_BLOCK, (group, str(error)), FailedSample(str(error))
                    continue
                try:
                    found = self._row(block, row)
                except ValueError as error:
                    found = FailedSample(str(error))

    def _blocks(self, table: Table, number: int, group: int, rows: int | None = None) -> Iterator[_Block]:
        """The rows of a group, decoded part by part. Raises :class:`ValueError`."""
        first = 0
        columns = self._columns
        try:
            for batch in table.batches(group, rows):
                cells = tuple(column.cells(batch.column(column.column)) for column in columns)
                yield _Block((number, group), first, first + len(batch), cells, table.check, table.locate)
                first += len(batch)
        except faults() as error:
            raise ValueError(f"its rows cannot be read: {_line(error)}") from error

    def _row(self, block: _Block, row: int) -> dict[str, Any]:
        """The values of a row. Raises :class:`ValueError`."""
        found = _Values()
        block.check()
        for column, cells in zip(self._columns, block.cells, strict=True):
            try:
                value = cells(row - block.first)
            except faults() as error:
                raise ValueError(f"{column.name}: {_line(error)}") from error
            several = isinstance(column.field, Images)
            if column.path is not None and several:
                found[column.path] = None if value is None else [getattr(each, "path", None) for each in value]
            elif column.path is not None:
                found[column.path] = value.path if isinstance(value, File) else None
            if column.name == "image" and isinstance(value, File) and value.address:
                found.location = block.locate(value.address)
            if several and value is not None:
                found[column.name] = [self._content(column, block, each) for each in value]
                if None in found[column.name]:
                    raise ValueError(f"{column.name}: image {found[column.name].index(None)} of the list is null")
            else:
                found[column.name] = self._content(column, block, value)
        objects = self._facts.objects
        if objects is not None:
            self._convert_boxes(found, objects.convention)
        return found

    def _content(self, column: TableColumn, block: _Block, value: Any) -> Any:
        """The bytes or the path of a file; another value as it is. Raises :class:`ValueError`."""
        if isinstance(value, File):
            value = value.data if value.data is not None else self._beside(block.place[0], value.path)
        holds_files = isinstance(column.field, (Image, Images, Mask, Bytes))
        if holds_files and type(value) is bytes and len(value) > self._max_bytes:
            raise ValueError(
                f"{column.name} has {len(value)} bytes, more than the {self._max_bytes} that an image within "
                "max_pixels can have"
            )
        return value

    def _convert_boxes(self, values: dict[str, Any], convention: str) -> None:
        """Makes boxes of a row corners in pixels. Raises :class:`ValueError`."""
        image = values["image"]
        for column in self._columns:
            boxes = values[column.name] if isinstance(column.field, Boxes) else None
            if boxes is None:
                continue
            if convention.endswith("n") and isinstance(image, Path):
                image = image.read_bytes()
            try:
                values[column.name] = to_corners(boxes, convention, image)
            except ValueError as error:
                raise ValueError(f"{column.name}: {error}") from error

    def _beside(self, number: int, path: str | None) -> Path | None:
        """The file that a table names and does not hold. Raises :class:`ValueError` unless it is named from the
        table's folder on."""
        if path is None:
            return None
        named = Path(path)
        if named.is_absolute() or ".." in named.parts or "\0" in path:
            raise ValueError(f"the table holds only the path {printable(path)!r}, which is none from its folder on")
        return self.shards[number][1].parent / named

    def _table(self, number: int) -> Table:
        """An open table; few are kept."""
        table = self._open.pop(number, None) or self._opened(number)
        self._open[number] = table
        while len(self._open) > _OPEN:
            self._open.popitem(last=False)[1].close()
        return table

    def _opened(self, number: int) -> Table:
        """A table, opened. Raises :class:`ValueError`."""
        path = self.shards[number][1]
        if not path.is_file():
            raise ValueError(f"{printable(str(path))} is not a file")
        try:
            return self.open_table(path)
        except faults() as error:
            raise ValueError(f"{printable(str(path))} cannot be read: {_line(error)}") from error

    @cached_property
    def _probed(self) -> list[TableColumn]:
        """The columns, by the first rows that there are; without what only all tables say."""
        return self._columns_by(Facts())

    @property
    def names_images(self) -> bool:
        """Whether the bytes of some images are null, so that they lie where their paths say."""
        assert self._files
        return any(each.column in self._facts.optional for each in self._columns if each.path is not None)

    @cached_property
    def _columns(self) -> list[TableColumn]:
        assert self._files
        return self._columns_by(self._facts)

    def _columns_by(self, facts: Facts) -> list[TableColumn]:
        try:
            return self._choose_columns(facts)
        except SourceError as error:
            raise SourceError(f"{printable(str(self.path))}: {error}") from error

    def _choose_columns(self, facts: Facts) -> list[TableColumn]:
        """Chooses the columns by the first rows and ``facts``. Raises :class:`SourceError`."""
        return columns_of(self._first, self._features, facts)

    @cached_property
    def _first(self) -> Any:
        """The first rows that there are."""
        empty = None
        for number in range(len(self.shards)):
            try:
                with closing(self._opened(number)) as table:
                    overview = table.overview()
                    empty = empty or overview.schema.empty_table().combine_chunks().to_batches()
                    for group, its in enumerate(overview.groups):
                        if its.rows:
                            return next(table.batches(group, PROBED))
            except faults() as error:
                raise SourceError(_named(self.shards[number][1], error)) from error
        raise SourceError(f"{printable(str(self.path))} holds no samples, so there is nothing to pack")

    @cached_property
    def _features(self) -> Mapping[str, Any]:
        try:
            return features_of(self._first.schema) or self.features()
        except ValueError as error:
            raise SourceError(_named(self.shards[0][1], error)) from error

    @cached_property
    def _files(self) -> list[_File]:
        """What all files say of themselves. Raises :class:`SourceError` where one is not like the first."""
        main = next(column.column for column in self._probed if column.name == "image")
        further = {each.name: each.column for each in self._probed if isinstance(each.field, (Image, Images))}
        further.pop("image")
        schema = self._first.schema
        optional: set[str] = set()
        negative: set[str] = set()
        with_paths: set[str] = set()
        found = []
        for number, (_, path) in enumerate(self.shards):
            try:
                with closing(self._opened(number)) as table:
                    overview = table.overview()
                self._check_like_first(overview.schema)
                size = path.stat().st_size
            except faults() as error:
                raise SourceError(_named(path, error)) from error
            file = _File()
            for rows, nbytes in overview.groups:
                if not 0 <= rows <= size:
                    raise SourceError(f"{printable(str(path))} says that {size} bytes hold {rows} rows")
                image = max(0, nbytes.get(main, 0))
                file.rows.append(rows)
                file.image.append(image // max(1, rows))
                for name, column in further.items():
                    file.further.setdefault(name, array("q")).append(max(0, nbytes.get(column, 0)) // max(1, rows))
                file.rest.append(max(0, sum(nbytes.values()) - image) // max(1, rows))
            found.append(file)
            optional |= overview.optional
            negative |= overview.negative
            with_paths |= overview.with_paths
        pathless = set(schema.names) - with_paths
        self._facts = Facts(optional, negative, pathless, self._text_classes(), self._objects())
        return found

    def _text_classes(self) -> tuple[str, tuple[str, ...]] | None:
        """The only column of texts that surely names the class of each row, unless numbers do; and the names. Raises
        :class:`SourceError`."""
        schema = self._first.schema
        features = [(name, schema.field(name).type, self._features.get(name)) for name in schema.names]
        named = [name for name, type, feature in features if is_text_label(name, type, feature)]
        if len(named) != 1 or any(is_label(*each) for each in features):
            return None
        texts, compute = LabelTexts(), load_pyarrow("pyarrow.compute")
        for number, (_, path) in enumerate(self.shards):
            try:
                with closing(self._opened(number)) as table:
                    for some in table.column(named[0]):
                        different = compute.unique(some.drop_null())
                        texts.add(different.to_pylist(), len(some) - some.null_count)
            except faults() as error:
                raise SourceError(_named(path, error)) from error
        coded = load_pyarrow("pyarrow.types").is_dictionary(schema.field(named[0]).type)
        classes = texts.classes(coded=coded)
        return None if classes is None else (named[0], classes)

    def _objects(self) -> ObjectColumn | None:
        """The column that holds boxes, with their convention. Reads all of it, unless that is said. Raises
        :class:`SourceError`."""
        schema, said = self._first.schema, self.options.layout
        found = objects_in(schema, self._features)
        if found is not None and said == NOT_CONVERTED:
            warn_of_names(found.column, self._features.get(found.column))
            return None
        if found is None or (found.convention and said is None and not found.named):
            return found
        sides = [name for name in ("width", "height") if name in schema.names]
        names = [found.column, found.labels if found.labels and not found.boxes else found.column, *sides]
        objects = Objects(found)
        for number, (_, path) in enumerate(self.shards):
            try:
                with closing(self._opened(number)) as table:
                    columns = [chain.from_iterable(some.to_pylist() for some in table.column(name)) for name in names]
                    for values, labels, *size in zip(*columns, strict=True):
                        objects.add(values, labels, (size[0], size[1]) if len(size) == 2 else None)
            except faults() as error:
                raise SourceError(_named(path, error)) from error
        settled = objects.settle(said or found.convention or None, printable(str(self.path)), self.path)
        if settled is None:
            warn_of_names(found.column, self._features.get(found.column))
        return settled

    def _check_like_first(self, schema: Any) -> None:
        first = self._first.schema
        if dict(zip(schema.names, schema.types, strict=True)) != dict(zip(first.names, first.types, strict=True)):
            differing = sorted({*schema.names} ^ {*first.names}) or [
                name for name in first.names if schema.field(name).type != first.field(name).type
            ]
            columns = ", ".join(map(printable, differing))
            raise ValueError(f"its columns are not those of {self.shards[0][1].name} ({columns}): pack them apart")
        features = features_of(schema)
        for name, feature in features.items():
            if name in self._features and class_names(feature) != class_names(self._features[name]):
                raise ValueError(f"the classes of {printable(name)!r} are not those of {self.shards[0][1].name}")


_NO_BLOCK = _Block((-1, -1), 0, 0, (), lambda: None, lambda _: None)


def _reach(blocks: Iterator[_Block], row: int) -> _Block:
    """The part that holds a row. Raises :class:`ValueError`."""
    found = next((block for block in blocks if block.first <= row < block.stop), None)
    if found is None:
        raise ValueError("its table has fewer rows than it says")
    return found


def faults() -> tuple[type[Exception], ...]:
    """What pyarrow raises for files that are damaged, or gone."""
    return (
        OSError,
        ValueError,
        KeyError,
        NotImplementedError,
        MemoryError,
        OverflowError,
        load_pyarrow().ArrowException,
    )


def _named(path: Path, error: Exception) -> str:
    if first_bytes(path, len(LFS_POINTER)) == LFS_POINTER:
        return f"{printable(str(path))} {IS_LFS_POINTER}"
    text = _line(error)
    return text if text.startswith(printable(str(path))) else f"{printable(str(path))} cannot be read: {text}"


def _line(error: Exception) -> str:
    """What an error says, in one line."""
    return printable(" ".join(str(error).split())[:300]) or type(error).__name__
