"""Base of sources whose samples are rows of tables. Decodes groups of rows once if samples are read in order.

A kind finds the tables of each split, and decodes their groups (row groups of Parquet, record batches of Arrow). Of a
large group only a part is in memory at a time.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.errors import SourceError, error_line, printable
from packstore.core.fields import Boxes, Bytes, Field, Image, Images, Mask, Text
from packstore.images.sniff import IS_LFS_POINTER, LFS_POINTER, max_file_bytes
from packstore.sources import huggingface as hf
from packstore.sources.archives import open_required_tree
from packstore.sources.base import SourceOptions
from packstore.sources.boxes import NOT_CONVERTED, to_corners
from packstore.sources.columns import LabelTexts
from packstore.sources.huggingface import ObjectColumn, load_pyarrow, pyarrow_errors
from packstore.sources.huggingface import columns as hf_columns
from packstore.sources.huggingface.columns import Cells, TableColumn, TableFacts, TableFile
from packstore.sources.huggingface.splits import CARD, Card, list_files
from packstore.sources.ledger import Claims, Role
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.records import ShardSource
from packstore.sources.refusals import first_bytes
from packstore.sources.rows import PROBED, Row
from packstore.sources.schema import RELATIVE
from packstore.sources.splits import lower_known_split
from packstore.sources.table.boxes import MalformedBoxError, find_convention
from packstore.stores.export_manifest import stays_in_folder

# Number of decoded blocks that are kept, since threads read rows only roughly in order.
_KEPT = 4


class RowGroup(NamedTuple):
    """Group of rows in a table.

    Attributes:
        rows: Number of rows.
        nbytes: Uncompressed bytes of each column, by name.
    """

    rows: int
    nbytes: Mapping[str, int]


class OpenTable(ABC):
    """An open table, for one thread: rows in groups. Its methods raise the exceptions in :func:`pyarrow_errors`.

    Attributes:
        schema: Its Arrow schema.
    """

    schema: Any

    @abstractmethod
    def read_groups(self, facts: TableFacts) -> list[RowGroup]:
        """Returns the groups by the table's metadata, or by reading all rows. Adds to ``facts``."""

    @abstractmethod
    def read_group(self, group: int) -> Iterator[Any]:
        """Yields the record batches of a group in order."""

    @abstractmethod
    def read_column(self, name: str) -> Iterator[Any]:
        """Yields the arrays of one column, in order."""

    def require_readable(self) -> None:
        """Raises :class:`ValueError` if its rows cannot be read safely any more. The base never raises.

        Called before each row, maybe after :meth:`close`.
        """
        return

    @abstractmethod
    def close(self) -> None:
        """Closes its file. Arrays that were read stay valid."""


class Block(NamedTuple):
    """Decoded rows ``first`` up to ``stop`` of a row group.

    Attributes:
        place: Numbers of the file and of the group.
        first: Number of the first row in the group.
        stop: Number behind the last row.
        cells: Functions that return the value of a row, by column.
        table: The table; it may be closed.
    """

    place: tuple[int, int]
    first: int
    stop: int
    cells: tuple[Cells, ...]
    table: OpenTable


class HfTableSource(ShardSource):
    """Base of sources whose samples are rows of tables, with keys of split and number.

    Keeps image files unchanged. The paths beside their bytes in the cells become further columns. If a cell has only a
    path, the file is read from the table's folder; a path out of this folder is a bad sample. A class number below 0 is
    a missing label.

    Opening raises :class:`SourceError` if there are no tables, or none with images. The first use of the columns scans
    all files, and raises it for a file with other columns or classes than the first.
    """

    _card = Card()

    def __init__(self, path: Path, options: SourceOptions) -> None:
        """Lists the files of tables and finds their column of images. Raises :class:`SourceError` if the path has no
        files of this kind."""
        self.unit = f"{self.kind} file"
        super().__init__(path, options)
        self._max_bytes = max_file_bytes(options.max_pixels)
        self._lock = threading.Lock()
        self._recent: deque[Block] = deque(maxlen=_KEPT)
        self._open: tuple[int, OpenTable] | None = None
        self._blocks: Iterator[Block] = iter(())
        self._place, self._next_row, self._error = (-1, -1), 0, ""
        main = next(column.column for column in self._probed_columns if column.name == "image")
        self.evidence += f" with images in the column {printable(main)!r}"

    @abstractmethod
    def find_tables(self) -> Iterable[tuple[str, Path]]:
        """Yields split and path of each file; the files of a split come in order. Raises :class:`SourceError` for
        damaged lists of files."""

    @abstractmethod
    def open_table(self, path: Path) -> OpenTable:
        """Opens a file. Raises one of the exceptions in :func:`pyarrow_errors` if it is damaged."""

    def list_shards(self) -> list[tuple[str, Path]]:
        """Lists split and path of each file. Known names of splits are in lower case."""
        return [(lower_known_split(split), file) for split, file in self.find_tables()]

    def open_shard(self, number: int) -> OpenTable:
        """Opens the table of a shard. Raises one of the exceptions in :func:`pyarrow_errors` if it is missing or
        damaged."""
        path = self.shards[number][1]
        if not path.is_file():  # pyarrow would wait for a pipe
            raise ValueError(f"{printable(str(path))} is not a file")
        return self.open_table(path)

    def claim_files(self, claims: Claims) -> None:
        """Claims the tables and the card. If some table holds a path instead of bytes, claims all images beside the
        tables."""
        super().claim_files(claims)
        claims.claim(CARD, Role.EVIDENCE)
        if self.path.is_dir() and any(each.column in self._facts.optional for each in self.columns if each.path):
            for name in list_files(open_required_tree(self.path), *IMAGE_SUFFIXES):
                claims.claim(name)

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns the reason for Parquet files of no split, and for images that are no samples. None for other
        files."""
        return "Parquet files of no split" if name.endswith(".parquet") else super().reason_to_leave_out(folder, name)

    def fields(self) -> dict[str, Field]:
        """Returns the field of each column, and one for the paths of its files. Scans all files first."""
        columns: dict[str, Field] = {}
        for column in self.columns:
            columns[column.name] = column.field
            if column.path is not None:
                columns[column.path] = Text(optional=True)
        return columns

    def shard_rows(self, number: int, keys: Iterator[str]) -> Iterator[Row]:
        """Yields the rows of a file, each with the next of ``keys``. Their sizes are means of their row group."""
        images = {each.name: each.column for each in self._probed_columns if isinstance(each.field, (Image, Images))}
        main = images.pop("image")
        for group, (count, nbytes) in enumerate(self._scan_result[0][number]):
            means = {name: max(0, size) // max(1, count) for name, size in nbytes.items()}
            further = {name: means.get(column, 0) for name, column in images.items()}
            image = means.pop(main, 0)
            rest = sum(means.values())
            for row, key in enumerate(islice(keys, count)):
                yield Row(key, (number, group, row), image, rest, sizes=further)

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads the values of a row. Paths of files become values of their own, and boxes corners.

        Keeps the last four decoded blocks of rows. Raises :class:`ValueError` for a bad row.
        """
        block = self.find_block(ref)
        values: dict[str, Any] = {}
        for column, cells in zip(self.columns, block.cells, strict=True):
            try:
                value = cells(ref[2] - block.first)
            except pyarrow_errors() as error:
                raise ValueError(f"{column.name}: {error_line(error)}") from error
            if column.path is not None:
                values[column.path] = getattr(value, "path", None)
            if isinstance(column.field, Images) and value is not None:
                value = [self._read_file(column, ref[0], each) for each in value]
                if None in value:
                    raise ValueError(f"{column.name}: image {value.index(None)} of the list is null")
            values[column.name] = value if isinstance(value, list) else self._read_file(column, ref[0], value)
        if (objects := self._facts.objects) is not None:
            values[RELATIVE] = objects.convention.endswith("n")
            name = next(column.name for column in self.columns if isinstance(column.field, Boxes))
            if values[name] is not None:
                image = values["image"]
                # Fractions need the size of the image.
                image = image.read_bytes() if values[RELATIVE] and isinstance(image, Path) else image
                values[name] = to_corners(values[name], objects.convention, image)
        return values

    def find_block(self, ref: Any) -> Block:
        """Returns the decoded rows among which a row is.

        Rows in order need each block decoded once. A row before the last block, and not in a kept one, needs its group
        decoded again. Raises :class:`ValueError` for each row of a damaged group, which is decoded only once.
        """
        number, group, row = ref
        with self._lock:
            for block in chain([*self._recent], self._decode_up_to((number, group), row)):
                if block.place == (number, group) and block.first <= row < block.stop:
                    block.table.require_readable()
                    return block
            raise ValueError(self._error)

    def _decode_up_to(self, place: tuple[int, int], row: int) -> Iterator[Block]:
        """Yields the next blocks of a group, up to the one with the row."""
        try:
            if self._place != place or row < self._next_row:
                # Another group, or an earlier row: the group is decoded from its beginning.
                self._place, self._next_row, self._error = place, 0, "its table has fewer rows than it says"
                self._blocks = self._decode_group(place)
            for block in self._blocks:
                self._next_row = block.stop
                self._recent.append(block)
                yield block
        except pyarrow_errors() as error:
            # A damaged group has no more blocks.
            self._error = f"{printable(str(self.shards[place[0]][1]))} cannot be read: {error_line(error)}"
        self._next_row = 0

    def _decode_group(self, place: tuple[int, int]) -> Iterator[Block]:
        """Decodes the rows of a group block by block; only one table is open at a time."""
        if self._open is None or self._open[0] != place[0]:
            self._close_table()
            self._open = (place[0], self.open_shard(place[0]))
        first, table, columns = 0, self._open[1], self.columns
        for batch in table.read_group(place[1]):
            cells = tuple(column.cells(batch.column(column.column)) for column in columns)
            yield Block(place, first, first + len(batch), cells, table)
            first += len(batch)

    def _close_table(self) -> None:
        """Closes the open table; blocks that were read stay valid."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def close(self) -> None:
        """Closes the open table, and drops decoded rows."""
        with self._lock:
            self._recent.clear()
            self._place, self._blocks = (-1, -1), iter(())
            self._close_table()

    @contextmanager
    def _open_for_scan(self, number: int) -> Iterator[OpenTable]:
        """Opens the table of a shard within the block; errors get the name of the file."""
        path = self.shards[number][1]
        try:
            with closing(self.open_shard(number)) as table:
                yield table
        except pyarrow_errors() as error:
            is_pointer = path.is_file() and first_bytes(path, len(LFS_POINTER)) == LFS_POINTER
            reason = IS_LFS_POINTER if is_pointer else f"cannot be read: {error_line(error)}"
            raise SourceError(f"{printable(str(path))} {reason}") from error

    @property
    def _facts(self) -> TableFacts:
        """Facts about the columns of all files; scans them on first use."""
        return self._scan_result[1]

    @cached_property
    def columns(self) -> list[TableColumn]:
        """Columns, declared by all facts; scans all files on first use."""
        return self._declare_columns(self._facts)

    @cached_property
    def _probed_columns(self) -> list[TableColumn]:
        """Columns, declared by the first rows alone, without a scan."""
        return self._declare_columns(TableFacts(with_paths={*self._first_batch.schema.names}))

    def _declare_columns(self, facts: TableFacts) -> list[TableColumn]:
        """Chooses the columns by the first rows and ``facts``."""
        try:
            return hf_columns.declare_columns(self._first_batch, self._features, facts)
        except ValueError as error:
            raise SourceError(f"{printable(str(self.path))}: {error}") from error

    @cached_property
    def _first_batch(self) -> Any:
        """Record batch of the first rows, in the first file that has any."""
        for number in range(len(self.shards)):
            with self._open_for_scan(number) as table:
                for group, rows in enumerate(table.read_groups(TableFacts())):
                    if rows.rows:
                        return next(table.read_group(group)).slice(0, PROBED)
        raise SourceError(f"{printable(str(self.path))} holds no samples, so there is nothing to pack")

    @cached_property
    def _features(self) -> Mapping[str, Any]:
        """Features in the schema of the first rows, or else in the card."""
        with self._open_for_scan(0) as table:
            return hf.read_features(table.schema) or self._card.features

    @cached_property
    def _scan_result(self) -> tuple[list[list[RowGroup]], TableFacts]:
        """All groups by file, and facts about the columns of all files."""
        facts = TableFacts()
        groups: list[list[RowGroup]] = []
        for number, (_, path) in enumerate(self.shards):
            with self._open_for_scan(number) as table:
                groups.append(table.read_groups(facts))
                self._refuse_other_columns(table.schema)
                file_bytes = path.stat().st_size
            if any(not 0 <= rows <= file_bytes for rows, _ in groups[-1]):
                raise SourceError(f"{printable(str(path))} says that it has more rows than its {file_bytes} bytes")
        # These two read whole columns: possible classes and boxes.
        facts.classes, facts.objects = self._find_text_classes(), self._find_objects()
        return groups, facts

    def _find_text_classes(self) -> tuple[str, tuple[str, ...]] | None:
        """Returns name and classes of the only column of texts that certainly names the class of each row, or None."""
        schema = self._first_batch.schema
        columns = [(name, schema.field(name).type, self._features.get(name)) for name in schema.names]
        named = [name for name, type, feature in columns if hf.is_text_label(name, type, feature)]
        if len(named) != 1 or any(hf.is_label(*each) for each in columns):
            return None
        texts, compute = LabelTexts(), load_pyarrow("pyarrow.compute")
        for number in range(len(self.shards)):
            with self._open_for_scan(number) as table:
                for values in table.read_column(named[0]):
                    texts.add_texts(compute.unique(values.drop_null()).to_pylist(), len(values) - values.null_count)
        coded = load_pyarrow("pyarrow.types").is_dictionary(schema.field(named[0]).type)
        classes = texts.decide_classes(coded=coded)
        return None if classes is None else (named[0], classes)

    def _find_objects(self) -> ObjectColumn | None:
        """Finds the column that holds boxes, and decides their convention; None without such a column."""
        objects, layout = hf_columns.find_box_column(self._first_batch.schema, self._features), self.options.layout
        # Otherwise the whole column has to be read.
        if objects is None or (objects.convention and layout is None and not objects.named):
            return objects
        names: set[str] = set()
        try:
            convention = find_convention(
                *(printable(str(self.path)), [objects.box_name], "", self._read_objects(objects, names), {}),
                layout or objects.convention or None,
            )
        except MalformedBoxError:
            convention = NOT_CONVERTED
        if convention == NOT_CONVERTED:
            # The boxes stay JSON.
            return None
        return replace(
            objects, convention=convention, classes=tuple(sorted(names)) if objects.named else objects.classes
        )

    def _read_objects(self, objects: ObjectColumn, names: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields path and cells of each row with its objects, and adds the names of classes to ``names``."""
        # Width and height of the image help to decide the convention.
        wanted = (objects.column, objects.labels if not objects.boxes else "", "width", "height")
        columns = [name for name in self._first_batch.schema.names if name in wanted]
        for number, (_, path) in enumerate(self.shards):
            with self._open_for_scan(number) as table:
                read = [map(hf_columns.to_json, chain.from_iterable(table.read_column(name))) for name in columns]
                for values in zip(*read, strict=True):
                    cells = objects.expand(dict(zip(columns, values, strict=True)))
                    labels = cells.get(objects.label_name) or ()
                    if objects.labels and len(labels) != len(cells.get(objects.box_name) or ()):
                        raise MalformedBoxError(f"{printable(str(path))}: boxes and labels differ in number")
                    if objects.named:
                        names.update(filter(None, labels))
                    yield str(path), cells

    def _refuse_other_columns(self, schema: Any) -> None:
        """Raises :class:`ValueError` if a schema has other columns or classes than that of the first file."""
        first, first_name = self._first_batch.schema, self.shards[0][1].name
        differing = {(each.name, each.type) for each in schema} ^ {(each.name, each.type) for each in first}
        if differing:
            columns = ", ".join(map(printable, sorted({name for name, _ in differing})))
            raise ValueError(f"its columns are not those of {first_name} ({columns}): pack them apart")
        for name, feature in hf.read_features(schema).items():
            if name in self._features and hf.class_names(feature) != hf.class_names(self._features[name]):
                raise ValueError(f"the classes of {printable(name)!r} are not those of {first_name}")

    def _read_file(self, column: TableColumn, number: int, value: Any) -> Any:
        """Returns the bytes of a file in table ``number``, or its path if there are none; other values unchanged."""
        if isinstance(value, TableFile):
            if value.data is None and value.path is not None:
                if not stays_in_folder(value.path):
                    raise ValueError(
                        f"the table holds only the path {printable(value.path)!r}; expected one within the table's "
                        "folder"
                    )
                return self.shards[number][1].parent / value.path
            value = value.data
        holds_files = isinstance(column.field, (Image, Images, Mask, Bytes))
        if holds_files and type(value) is bytes and len(value) > self._max_bytes:
            raise ValueError(
                f"{column.name} has {len(value)} bytes, more than the {self._max_bytes} that an image within "
                "max_pixels can have"
            )
        return value
