"""Base of sources whose samples are rows of tables. Decodes groups of rows once if samples are read in order.

A kind finds the tables of each split, and decodes their groups (row groups of Parquet, record batches of Arrow). Of a
large group only a part is in memory at a time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.errors import SourceError, error_line, printable
from packstore.core.fields import Boxes, Bytes, Field, Image, Images, Json, Mask, Text
from packstore.core.parallel import ordered_flat_map
from packstore.images.sniff import max_file_bytes
from packstore.sources.base import Entry, SourceOptions
from packstore.sources.boxes import to_corners
from packstore.sources.huggingface.card import CARD
from packstore.sources.huggingface.cells import Cells, TableFile
from packstore.sources.huggingface.columns import TableColumn
from packstore.sources.huggingface.open_table import OpenTable, pyarrow_errors
from packstore.sources.huggingface.scanned_tables import ScannedTables
from packstore.sources.huggingface.splits import list_folder_files
from packstore.sources.ledger import Claims, Role
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.rows import PROBED, Row
from packstore.sources.schema import RELATIVE
from packstore.sources.values import nbytes_of
from packstore.sources.workers import FailedSample
from packstore.stores.link_files import Location

_PIECE_BYTES = 4 << 20
_AHEAD_BYTES = 32 << 20
_MAX_OPEN, _RECENT_BLOCKS = 4, 4


class _RowValues(dict[str, Any]):
    """Values of a row.

    Attributes:
        location: Place of the main image; None if it is no plain range of a file.
    """

    location: Location | None = None


class _Block(NamedTuple):
    """Decoded rows ``first`` up to ``stop`` of a row group.

    Attributes:
        place: Numbers of the file and of the group.
        first: Number of the first row in the group.
        stop: Number behind the last row.
        cells: Functions that return the value of a row, by column.
        require_readable: :meth:`OpenTable.require_readable` of the file.
        locate: :meth:`OpenTable.locate` of the file.
    """

    place: tuple[int, int]
    first: int
    stop: int
    cells: tuple[Cells, ...]
    require_readable: Callable[[], None]
    locate: Callable[[int], Location | None]

    def contains(self, file: int, group: int, row: int) -> bool:
        """Tells if a row of a group is among the decoded rows."""
        return self.place == (file, group) and self.first <= row < self.stop


_NO_BLOCK = _Block((-1, -1), 0, 0, (), lambda: None, lambda _: None)


class HfTableSource(ScannedTables):
    """Base of sources whose samples are rows of tables, with keys of split and number.

    Keeps image files unchanged. The paths beside their bytes in the cells become further columns. If a cell has only a
    path, the file is read from the table's folder; a path out of this folder is a bad sample. A class number below 0 is
    a missing label.

    Opening raises :class:`SourceError` if there are no tables, or none with images.
    """

    def __init__(self, path: Path, options: SourceOptions) -> None:
        """Lists the files of tables and finds their column of images. Raises :class:`SourceError` if the path has no
        files of this kind."""
        super().__init__(path, options)
        self.shards = self.list_shards()
        if not self.shards:
            raise SourceError(f"{printable(str(path))} holds no files of kind {self.kind}")
        self._max_bytes = max_file_bytes(options.max_pixels)
        self._open_tables: OrderedDict[int, OpenTable] = OrderedDict()
        self._recent: deque[_Block] = deque(maxlen=_RECENT_BLOCKS)
        self._lock = threading.Lock()
        main = next(column.column for column in self._probed_columns if column.name == "image")
        files = "1 file" if len(self.shards) == 1 else f"{len(self.shards)} files"
        self.evidence = f"{files} of kind {self.kind}, with images in the column {printable(main)!r}"

    @property
    def has_images_by_path(self) -> bool:
        """True if tables may hold only the path of some image, not its bytes. Scans all files on first use."""
        return any(each.column in self._facts.optional for each in self._columns if each.path is not None)

    def claim_files(self, claims: Claims) -> None:
        """Claims the tables and the card. If some table holds a path instead of bytes, claims all images beside the
        tables."""
        super().claim_files(claims)
        claims.claim(CARD, Role.EVIDENCE)
        if self.path.is_dir() and self.has_images_by_path:
            for name in list_folder_files(self.path):
                if name.lower().endswith(IMAGE_SUFFIXES):
                    claims.claim(name)

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns the reason for Parquet files of no split, and for images that are no samples. None for other
        files."""
        return "Parquet files of no split" if name.endswith(".parquet") else super().reason_to_leave_out(folder, name)

    def fields(self) -> dict[str, Field]:
        """Returns the field of each column, and one for the paths of its files. Scans all files first."""
        columns: dict[str, Field] = {}
        for column in self._columns:
            columns[column.name] = column.field
            if column.path is not None:
                columns[column.path] = Json(optional=True) if isinstance(column.field, Images) else Text(optional=True)
        return columns

    def shard_rows(self, number: int, keys: Iterator[str]) -> Iterator[Row]:
        """Yields the rows of a file, each with the next of ``keys``. Their sizes are means of their row group."""
        file = self._file_sizes[number]
        for group, (count, image, rest) in enumerate(zip(file.rows, file.image, file.rest, strict=True)):
            sizes = {name: each[group] for name, each in file.further.items()}
            for row, key in enumerate(islice(keys, count)):
                yield Row(key, (number, group, row), image, rest, sizes=sizes)

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Returns the values of a row. Reads the row unless :meth:`fetch` has read it.

        Keeps the last four decoded blocks of rows. Raises :class:`ValueError` for a bad row.
        """
        if isinstance(ref, dict):
            return ref
        if isinstance(ref, FailedSample):
            raise ValueError(ref.reason)
        number, group, row = ref
        with self._lock:
            block = next((each for each in self._recent if each.contains(number, group, row)), None)
            if block is None:
                few = PROBED if row < PROBED else None  # the first rows are often read alone, to probe the source
                block = _find_block(self._decode_group(self._open_shard_table(number), number, group, few), row)
                self._recent.append(block)
        return self._read_row(block, row)

    def locate_row(self, ref: Any) -> Location | None:
        """Locates the image of a row that :meth:`fetch` has read, or returns None for other rows."""
        return ref.location if isinstance(ref, _RowValues) else None

    def fetch(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """Reads the rows some 32 MB ahead, in a thread. ``Entry.ref`` then has the values, or a :class:`FailedSample`
        for a bad row."""
        pieces = ordered_flat_map(lambda _: self._read_pieces(entries), [None], 1, lambda piece: piece[1], _AHEAD_BYTES)
        return chain.from_iterable(piece for piece, _ in pieces)

    def nbytes(self, entry: Entry) -> int:
        """Returns the bytes of the values that :meth:`fetch` has read. Estimates them for a row that it has not
        read."""
        ref = self._row_ref(entry)
        return sum(map(nbytes_of, ref.values())) if isinstance(ref, dict) else entry.size_bytes

    def close(self) -> None:
        """Closes all tables, and drops decoded rows."""
        with self._lock:
            self._recent.clear()
            while self._open_tables:
                self._open_tables.popitem()[1].close()

    def _read_pieces(self, entries: Iterator[Entry]) -> Iterator[tuple[list[Entry], int]]:
        """Yields lists of entries, of some 4 MB each, with the size of each list. The last list may be empty.

        An entry's reference becomes its values, or a :class:`FailedSample` for a bad row.
        """
        piece: list[Entry] = []
        size = 0
        for number, run in groupby(entries, lambda entry: int(self._row_ref(entry)[0])):
            with closing(_RowReader(self, number)) as cursor:
                for entry in run:
                    entry = self._replace_ref(entry, cursor.read(*self._row_ref(entry)[1:]))
                    piece.append(entry)
                    size += self.nbytes(entry)
                    if size >= _PIECE_BYTES:
                        yield piece, size
                        piece, size = [], 0
        yield piece, size

    def _row_ref(self, entry: Entry) -> Any:
        """Returns the reference of an entry's row."""
        return entry.ref

    def _replace_ref(self, entry: Entry, values: Any) -> Entry:
        """Replaces the reference of an entry's row by its values."""
        return entry._replace(ref=values)

    def _open_shard_table(self, number: int) -> OpenTable:
        """Returns the open table of a shard; opens it if necessary. Closes the least recently used table if more
        than four are open."""
        table = self._open_tables.pop(number, None) or self.open_shard(number)
        self._open_tables[number] = table
        while len(self._open_tables) > _MAX_OPEN:
            self._open_tables.popitem(last=False)[1].close()
        return table

    def _decode_group(self, table: OpenTable, number: int, group: int, rows: int | None = None) -> Iterator[_Block]:
        """Decodes the rows of a group block by block. ``rows``: rows of a block; None lets the table choose.

        Raises :class:`ValueError` for a damaged group.
        """
        first = 0
        columns = self._columns
        try:
            for batch in table.read_group(group, rows):
                cells = tuple(column.cells(batch.column(column.column)) for column in columns)
                yield _Block((number, group), first, first + len(batch), cells, table.require_readable, table.locate)
                first += len(batch)
        except pyarrow_errors() as error:
            raise ValueError(f"its rows cannot be read: {error_line(error)}") from error

    def _read_row(self, block: _Block, row: int) -> dict[str, Any]:
        """Reads the values of a row of a block, and the image's location. Paths of files become values of their own.

        Converts boxes to corners. Raises :class:`ValueError` for a bad value.
        """
        values = _RowValues()
        block.require_readable()
        for column, cells in zip(self._columns, block.cells, strict=True):
            try:
                value = cells(row - block.first)
            except pyarrow_errors() as error:
                raise ValueError(f"{column.name}: {error_line(error)}") from error
            if column.path is not None:
                values[column.path] = _collect_paths(value)
            if column.name == "image" and isinstance(value, TableFile) and value.address:
                values.location = block.locate(value.address)
            values[column.name] = self._read_content(column, block, value)
        objects = self._facts.objects
        if objects is not None:
            self._convert_boxes(values, objects.convention)
            values[RELATIVE] = objects.convention.endswith("n")
        return values

    def _read_content(self, column: TableColumn, block: _Block, value: Any) -> Any:
        """Reads the file in a cell, or each file of a list; see :meth:`_read_file`. Returns other values unchanged.

        Raises :class:`ValueError` for a missing image in a list, too.
        """
        if isinstance(column.field, Images) and value is not None:
            files = [self._read_file(column, block, each) for each in value]
            if None in files:
                raise ValueError(f"{column.name}: image {files.index(None)} of the list is null")
            return files
        return self._read_file(column, block, value)

    def _read_file(self, column: TableColumn, block: _Block, value: Any) -> Any:
        """Returns the bytes of a file, or the file's path if the table lacks the bytes. Returns other values unchanged.

        Raises :class:`ValueError` for too many bytes, and for a path that leads out of the table's folder.
        """
        if isinstance(value, TableFile):
            value = value.data if value.data is not None else self._resolve_path(block.place[0], value.path)
        holds_files = isinstance(column.field, (Image, Images, Mask, Bytes))
        if holds_files and type(value) is bytes and len(value) > self._max_bytes:
            raise ValueError(
                f"{column.name} has {len(value)} bytes, more than the {self._max_bytes} that an image within "
                "max_pixels can have"
            )
        return value

    def _resolve_path(self, number: int, path: str | None) -> Path | None:
        """Returns the path of a file that a table only names, in the table's folder; None for None.

        Raises :class:`ValueError` for an absolute path, for ``..`` in it, and for a null character. Does not look if
        the file exists.
        """
        if path is None:
            return None
        named = Path(path)
        if named.is_absolute() or ".." in named.parts or "\0" in path:
            raise ValueError(
                f"the table holds only the path {printable(path)!r}; expected one within the table's folder"
            )
        return self.shards[number][1].parent / named

    def _convert_boxes(self, values: dict[str, Any], convention: str) -> None:
        """Converts the boxes of a row to corners in pixels, in place; keeps None. Reads the image's file if boxes are
        fractions.

        Raises :class:`ValueError` for boxes of other than four numbers. Raises it also for fractions of an image whose
        size cannot be read.
        """
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


class _RowReader:
    """Reads rows of one file in order, and decodes each block once; does not decode a damaged group again.

    If the file cannot be opened, every row is a :class:`FailedSample`. To read a row that comes before the last one,
    decodes its group again.
    """

    def __init__(self, source: HfTableSource, number: int) -> None:
        self._source, self._number = source, number
        self._table: OpenTable | None = None
        self._error = ""
        self._failed_group: tuple[int, str] = (-1, "")
        self._block = _NO_BLOCK
        self._blocks: Iterator[_Block] = iter(())
        try:
            self._table = source.open_shard(number)
        except ValueError as error:
            self._error = str(error)

    def read(self, group: int, row: int) -> Any:
        """Reads the values of a row; returns a :class:`FailedSample` if they cannot be read."""
        try:
            return self._source._read_row(self._decode_to(group, row), row)
        except ValueError as error:
            return FailedSample(str(error))

    def close(self) -> None:
        """Closes the file, if it could be opened."""
        if self._table is not None:
            self._table.close()

    def _decode_to(self, group: int, row: int) -> _Block:
        """Decodes the blocks up to that of a row, and returns this block. Raises :class:`ValueError` for each row of
        a damaged group, or of a file that cannot be opened."""
        if self._table is None:
            raise ValueError(self._error)
        if group == self._failed_group[0]:
            raise ValueError(self._failed_group[1])
        if not self._block.contains(self._number, group, row):
            if self._block.place != (self._number, group) or row < self._block.first:
                self._blocks = self._source._decode_group(self._table, self._number, group)
            try:
                self._block = _find_block(self._blocks, row)
            except ValueError as error:
                self._block, self._failed_group = _NO_BLOCK, (group, str(error))
                raise
        return self._block


def _find_block(blocks: Iterator[_Block], row: int) -> _Block:
    """Decodes the blocks up to that of a row, and returns this block. Raises :class:`ValueError` if no block has the
    row."""
    block = next((each for each in blocks if each.first <= row < each.stop), None)
    if block is None:
        raise ValueError("its table has fewer rows than it says")
    return block


def _collect_paths(value: Any) -> Any:
    """Returns the path of a file, or the list of paths of a list of files. Any other value has None."""
    return [getattr(each, "path", None) for each in value] if isinstance(value, list) else getattr(value, "path", None)
