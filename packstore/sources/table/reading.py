"""Reads rows of tables: CSV, TSV, JSON Lines, lists of objects in JSON, Parquet, and text lines ``path label``."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from packstore.core.errors import SourceError, printable
from packstore.core.plainjson import load_json, parse_float64
from packstore.sources.beside import read_whole
from packstore.sources.contents import suffix_of
from packstore.sources.encodings import try_utf8
from packstore.sources.huggingface.metadata import read_json_lines, read_parquet_rows
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.tree import Tree

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".txt", ".lst")
TEXT = (".csv", ".tsv", ".txt", ".lst")
"""Suffixes of tables whose columns have names only in a header."""
_BLOCK = 4096
MAX_BYTES, _MAX_COLUMNS, _MAX_LINE = 1 << 30, 1 << 14, 1 << 20
_NAMED = re.compile(rf"(.+?(?:{'|'.join(map(re.escape, IMAGE_SUFFIXES))}))(?:[ \t]+(.*))?", re.I)
"""Line of text: an image, whose name may have blanks, and the rest."""


class TableRow(NamedTuple):
    """Row of a table.

    Attributes:
        place: File, and line or number of the row, for messages.
        cells: Values by column.
    """

    place: str
    cells: dict[str, Any]


def read_table(tree: Tree, file: str, header: bool) -> Iterator[TableRow]:
    """Yields all rows of a table in any format. Reads the file whole.

    Columns of text without a ``header`` are named ``1``, ``2`` …; cells of text are stripped strings. Raises
    :class:`SourceError` for a file over 1 GiB, and, with file and line, for a malformed row.

    Raises :class:`AmbiguousSourceError` for an unknown encoding only after the last row. By then the caller knows if
    the rows name images.
    """
    shown, suffix = tree.name(file), suffix_of(file)
    data = read_whole(tree, file, MAX_BYTES)
    fault = None
    if suffix != ".parquet":
        data, fault = try_utf8(data, tree.encoding, shown)
    yield from _read_rows(data, shown, suffix, header)
    if fault is not None:
        raise fault


def _read_rows(data: bytes, shown: str, suffix: str, header: bool) -> Iterator[TableRow]:
    """Yields rows with named cells; the suffix of the file tells its format.

    Raises :class:`SourceError` for a malformed row, and for another number of cells than in the first line. Raises it
    also for a column twice, and for more than 16,384 columns.
    """
    if suffix not in TEXT:
        reader = {".json": _read_json_list, ".parquet": read_parquet_rows}.get(suffix, read_json_lines)
        for place, values in reader(data, shown):
            yield TableRow(f"{shown}, {place}", values)
        return
    names: list[str] = []
    for number, cells in _split_lines(data, shown, suffix):
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


def batch_rows(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Yields lists of 4096 rows; the last list is shorter. If reading raises :class:`SourceError`, first yields the
    rows that were read."""
    block: list[Any] = []
    try:
        for row in rows:
            block.append(row)
            if len(block) == _BLOCK:
                yield block
                block = []
    except SourceError:
        if block:
            yield block
        raise
    if block:
        yield block


def name_columns(cells: Sequence[str]) -> list[str]:
    """Names the columns of a header. A column without a name gets its number.

    If another column has this name, it is ``index``, or ``column NUMBER`` if that is taken, too.
    """
    taken = set(cells)
    return [
        name or next(free for free in (str(n), "index", f"column {n}") if free not in taken)
        for n, name in enumerate(cells, 1)
    ]


def read_cells(tree: Tree, file: str, data: bytes | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yields line number and cells of each row of a table of text, including the header.

    ``data``: the first bytes of the file; None reads all of it. Raises :class:`SourceError` for a malformed row. Raises
    :class:`AmbiguousSourceError` for an unknown encoding after the last row.
    """
    whole = read_whole(tree, file, MAX_BYTES) if data is None else data
    text, fault = try_utf8(whole, tree.encoding, tree.name(file))
    yield from _split_lines(text, tree.name(file), suffix_of(file))
    if fault is not None:
        raise fault


def _read_json_list(data: bytes, shown: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields place and values of each object in a JSON list. Raises :class:`SourceError` for any other content."""
    try:
        items = load_json(data, "is no JSON", parse_float=parse_float64)
    except ValueError as error:
        raise SourceError(f"{shown}: {printable(str(error))}") from None
    if not isinstance(items, list):
        raise SourceError(f"{shown} is not a list of objects")
    for number, value in enumerate(items):
        if not isinstance(value, dict):
            raise SourceError(f"{shown}, item {number}: no object of values by name")
        yield f"item {number}", value


def _split_lines(data: bytes, shown: str, suffix: str) -> Iterator[tuple[int, list[str]]]:
    """Yields line number and stripped cells of each row that is not blank.

    Suffix and first line tell if the text is CSV, or if blanks divide the cells. Raises :class:`SourceError` for
    malformed CSV.
    """
    first = data[:_MAX_LINE].lstrip(b"\xef\xbb\xbf\r\n \t").split(b"\n", 1)[0].decode("utf-8", "replace")
    delimiter = _find_delimiter(first, suffix)
    if not delimiter:
        yield from _split_at_blanks(_decode_lines(data, shown))
        return
    last = 0

    def track_lines() -> Iterator[str]:
        nonlocal last
        for number, line in _decode_lines(data, shown):
            last = number
            yield line

    reader = csv.reader(track_lines(), delimiter=delimiter, strict=True, skipinitialspace=True)
    begin = 1
    try:
        for cells in reader:
            if any(map(str.strip, cells)):
                yield begin, [cell.strip() for cell in cells]
            begin = last + 1
    except csv.Error as error:
        reason = "a quote is not closed" if "unexpected end" in str(error) else printable(str(error))
        raise SourceError(f"{shown}, line {begin}: not CSV: {reason}") from None


def _find_delimiter(first: str, suffix: str) -> str:
    """Finds the delimiter of cells by the file's suffix and first line. Returns ``""`` if blanks divide the cells.

    - ``.tsv``: a tab.
    - ``.csv``: the most frequent of ``,``, ``;`` and tab; ``,`` if there is none.
    - Other files: the most frequent of the three. If that is the tab, or there is none, blanks divide the cells.
    """
    if suffix == ".tsv":
        return "\t"
    counts = {each: first.count(each) for each in ",;\t"}
    best = max(counts, key=counts.__getitem__)
    if suffix == ".csv":
        return best if counts[best] else ","
    return best if counts[best] and best != "\t" else ""


def _split_at_blanks(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    """Yields number and cells of each line, split at blanks. The first cell may contain blanks if it ends like an
    image."""
    for number, line in lines:
        text = line.strip()
        if text:
            match = _NAMED.fullmatch(text)
            yield number, [match[1], *(match[2] or "").split()] if match else text.split()


def _decode_lines(data: bytes, shown: str) -> Iterator[tuple[int, str]]:
    """Yields number and text of each line. Raises :class:`SourceError` for a line that is too long or not text."""
    for number, raw in enumerate(io.BytesIO(data.removeprefix(b"\xef\xbb\xbf")), 1):
        where = f"{shown}, line {number}"
        if len(raw) > _MAX_LINE:
            raise SourceError(f"{where}: {len(raw):,} bytes in a line; at most {_MAX_LINE:,} are read")
        if b"\0" in raw:
            raise SourceError(f"{where}: has a NUL byte, so this is not a text (or --column encoding=utf-16-le)")
        yield number, raw.decode()
