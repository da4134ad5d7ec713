"""Reads the rows of tables: CSV, TSV, lines of text, JSON Lines, JSON and Parquet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from packstore.core.errors import SourceError, error_line, printable
from packstore.core.fields import Field
from packstore.core.plainjson import load_json, parse_float64
from packstore.sources.beside import read_whole
from packstore.sources.contents import suffix_of
from packstore.sources.encodings import try_utf8
from packstore.sources.huggingface import load_pyarrow, pyarrow_errors, read_features
from packstore.sources.huggingface.columns import declare_plain_column, refuse_bytes, to_json
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.splits import find_split_of_file
from packstore.sources.tree import Tree

TEXT = (".csv", ".tsv", ".txt", ".lst")
"""Suffixes of tables whose cells are all texts, and whose columns have names only in a header."""
SUFFIXES = (*TEXT, ".jsonl", ".ndjson", ".json", ".parquet")
MAX_BYTES, _MAX_COLUMNS, _MAX_LINE = 1 << 30, 1 << 16, 1 << 20
_BLOCK = 4096
# Line of text: an image, whose name may have blanks, and the rest.
_NAMED = re.compile(rf"(.+?(?:{'|'.join(map(re.escape, IMAGE_SUFFIXES))}))(?:[ \t]+(.*))?", re.I)


class TableRow(NamedTuple):
    """Row of a table.

    Attributes:
        place: File, and line or number of the row, for messages.
        cells: Values by column.
    """

    place: str
    cells: dict[str, Any]


def read_table(
    tree: Tree, file: str, header: bool, data: bytes | None = None, strip: bool = True
) -> Iterator[TableRow]:
    """Yields all rows of a table in any format. Reads the file whole.

    Columns of text without a ``header`` are named ``1``, ``2`` …. Raises :class:`SourceError` for a file over 1 GiB,
    and, with file and line, for a malformed row. Raises :class:`AmbiguousSourceError` for an unknown encoding only
    after the last row. By then the caller knows if the rows name images.

    Args:
        tree: The tree of the table.
        file: Path of the table.
        header: The first line of a text names the columns.
        data: The first bytes of the file; None reads all of it.
        strip: Removes white space around the cells of a text.
    """
    shown, suffix = tree.name(file), suffix_of(file)
    if suffix not in TEXT:
        yield from _read_converted(tree, file, _read_parquet if suffix == ".parquet" else _read_objects, data)
        return
    names: list[str] = []
    for number, cells in read_cells(tree, file, data, strip):
        place = f"{shown}, line {number}"
        if not names:
            names = name_columns(cells) if header else [str(n) for n in range(1, len(cells) + 1)]
            if len(set(names)) < len(names):
                raise SourceError(f"{place}: the header has a column twice")
            if len(names) > _MAX_COLUMNS:
                raise SourceError(f"{place}: {len(names):,} columns; at most {_MAX_COLUMNS:,} are read")
            if header:
                continue
        if len(cells) != len(names):
            raise SourceError(f"{place}: {len(cells)} fields, the first line has {len(names)}")
        yield TableRow(place, dict(zip(names, cells, strict=True)))


def read_cells(tree: Tree, file: str, data: bytes | None = None, strip: bool = True) -> Iterator[tuple[int, list[str]]]:
    """Yields line number and cells of each row of a table of text, including the header. See :func:`read_table` for
    arguments and errors."""
    return _read_converted(tree, file, partial(_split_lines, strip), data)


def declare_parquet(tree: Tree, file: str, features: Mapping[str, Any]) -> dict[str, Field]:
    """Returns the field of each column of a Parquet file, by its type and its feature. ``features``: those of columns
    that have none in the file. Raises :class:`SourceError` for a damaged file, and for a type that no field holds."""
    with _open_parquet(read_whole(tree, file, MAX_BYTES), tree.name(file)) as parquet:
        schema = parquet.schema_arrow
        own = {**features, **read_features(schema)}
        return {each.name: declare_plain_column(each.name, each.type, own.get(each.name)) for each in schema}


def _read_converted(
    tree: Tree, file: str, reader: Callable[[bytes, str], Iterator[Any]], data: bytes | None
) -> Iterator[Any]:
    """Yields what ``reader`` reads from a file that is converted to UTF-8."""
    shown, fault = tree.name(file), None
    data = read_whole(tree, file, MAX_BYTES) if data is None else data
    if suffix_of(file) != ".parquet":
        data, fault = try_utf8(data, tree.encoding, shown)
    yield from reader(data, shown)
    # Raised last: the file may turn out to be no table.
    if fault is not None:
        raise fault


def batch_rows(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Yields lists of 4096 rows; the last list is shorter. If reading raises :class:`SourceError`, first yields the
    rows that were read."""
    failures: list[SourceError] = []

    def read_good() -> Iterator[Any]:
        try:
            yield from rows
        except SourceError as error:
            failures.append(error)

    good = read_good()
    while block := list(islice(good, _BLOCK)):
        yield block
    if failures:
        raise failures[0]


def name_columns(cells: Sequence[str]) -> list[str]:
    """Names the columns of a header. A column without a name, such as the index of pandas, becomes ``column 1``."""
    return [name or f"column {number}" for number, name in enumerate(cells, 1)]


def _read_objects(data: bytes, shown: str) -> Iterator[TableRow]:
    """Yields each object of JSON Lines, or of a JSON list."""
    values: Iterable[tuple[str, Any]]
    if suffix_of(shown) == ".json":
        items = _parse_json(data, shown)
        if not isinstance(items, list):
            raise SourceError(f"{shown} is not a list of objects")
        values = ((f"{shown}, item {number}", value) for number, value in enumerate(items))
    else:
        lines = ((f"{shown}, line {n}", line) for n, line in enumerate(io.BytesIO(data), 1) if line.strip())
        values = ((place, _parse_json(line, place)) for place, line in lines)
    for place, value in values:
        if not isinstance(value, dict):
            raise SourceError(f"{place}: no object of values by name")
        yield TableRow(place, value)


def _parse_json(data: bytes, place: str) -> Any:
    """Parses JSON."""
    try:
        return load_json(data, "not JSON", parse_float=parse_float64)
    except ValueError as error:
        raise SourceError(f"{place}: {printable(str(error))}") from None


def _read_parquet(data: bytes, shown: str) -> Iterator[TableRow]:
    """Yields the rows of a Parquet file as values of JSON."""
    number = 0
    with _open_parquet(data, shown) as file:
        for type in file.schema_arrow.types:
            refuse_bytes(type)
        for batch in file.iter_batches(1024):
            for cells in zip(*(map(to_json, column) for column in batch.columns), strict=True):
                yield TableRow(f"{shown}, row {number}", dict(zip(batch.schema.names, cells, strict=True)))
                number += 1


@contextmanager
def _open_parquet(data: bytes, shown: str) -> Iterator[Any]:
    """Opens the bytes of a Parquet file; pyarrow's errors in the block become :class:`SourceError`."""
    parquet = load_pyarrow("pyarrow.parquet")
    try:
        with closing(parquet.ParquetFile(load_pyarrow().BufferReader(data))) as file:
            yield file
    except pyarrow_errors() as error:
        raise SourceError(f"{shown} cannot be read: {error_line(error)}") from error


def _split_lines(strip: bool, data: bytes, shown: str) -> Iterator[tuple[int, list[str]]]:
    """Yields line number and cells of each row that is not blank."""
    suffix = suffix_of(shown)
    first = data[:_MAX_LINE].lstrip(b"\xef\xbb\xbf\r\n \t").split(b"\n", 1)[0].decode("utf-8", "replace")
    delimiter = "\t" if suffix == ".tsv" else max(",;\t", key=first.count)  # a comma if there is none
    lines = _decode_lines(data, shown)
    # Blanks divide the cells.
    if suffix not in (".tsv", ".csv") and (delimiter == "\t" or delimiter not in first):
        numbered = suffix == ".lst" or bool(find_split_of_file(shown.rpartition("/")[2]))  # 0 a.png basic
        for number, line in enumerate(lines, 1):
            if text := line.strip():
                words = text.split()
                match = None if numbered and words[0].isdecimal() else _NAMED.fullmatch(text)
                yield number, [match[1], *(match[2] or "").split()] if match else words
        return
    reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=strip)
    begin = 1
    try:
        for cells in reader:
            if any(map(str.strip, cells)):
                yield begin, [*map(str.strip, cells)] if strip else cells
            begin = reader.line_num + 1
    except csv.Error as error:
        reason = "a quote is not closed" if "unexpected end" in str(error) else printable(str(error))
        raise SourceError(f"{shown}, line {begin}: not CSV: {reason}") from None


def _decode_lines(data: bytes, shown: str) -> Iterator[str]:
    """Yields the text of each line."""
    for number, raw in enumerate(io.BytesIO(data.removeprefix(b"\xef\xbb\xbf")), 1):
        where = f"{shown}, line {number}"
        if len(raw) > _MAX_LINE:
            raise SourceError(f"{where}: {len(raw):,} bytes in a line; at most {_MAX_LINE:,} are read")
        if b"\0" in raw:
            raise SourceError(f"{where}: has a NUL byte, so this is not a text (or --column encoding=utf-16-le)")
        yield raw.decode()
