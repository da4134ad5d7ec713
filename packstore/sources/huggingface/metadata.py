"""``metadata.csv``, ``metadata.jsonl`` and ``metadata.parquet``: values of image files that they name."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Array, Field, Json, Label, Text
from packstore.sources.beside import clean_path, join, read_text, read_whole
from packstore.sources.huggingface.features import class_names, features_of, load_pyarrow, plain_column
from packstore.sources.huggingface.tables import faults
from packstore.sources.tree import Tree

FILES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_FILE = "file_name"
_MAX_BYTES = 1 << 31
_MAX_COLUMNS, _MAX_CLASSES = 4096, 1 << 20
_WHOLE = re.compile(r"[+-]?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf)", re.IGNORECASE)
_NOTHING = frozenset(
    {"", "#N/A", "N/A", "n/a", "NA", "<NA>", "#NA", "NULL", "null", "None", "NaN", "nan", "-nan", "-NaN"}
)
"""What pandas takes for a missing number."""
_BOOLEANS = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a metadata file.

    Attributes:
        place: Its file and line or row, for messages.
        folder: The folder of its file.
        values: As they are in the file: strings of a CSV file, what JSON holds, values of Arrow.
    """

    place: str
    folder: str
    values: Mapping[str, Any]

    def path(self, name: str) -> str | None:
        """The file that a column names, the first of a list, by its path in the tree. Raises :class:`SourceError`."""
        return next(iter(self.paths(name)), None)

    def paths(self, name: str) -> list[str]:
        """The files that a column names, by their paths in the tree. Raises :class:`SourceError`."""
        value = self.values.get(name)
        if value is None or value == "":
            return []
        if not names_several(name):
            return [self._path(name, value)]
        if not isinstance(value, list):
            raise SourceError(f"{self.place}: {printable(name)} is {printable(repr(value)[:80])}, and should be a list")
        return [self._path(name, each) for each in value]

    def _path(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or "://" in value:
            raise SourceError(f"{self.place}: {printable(name)} is {printable(repr(value)[:80])}, and should be a path")
        try:
            return join(self.folder, clean_path(value))
        except ValueError as error:
            raise SourceError(f"{self.place}: {printable(name)} {error}") from None


@dataclass
class Metadata:
    """The metadata files of a dataset, all of one kind.

    Attributes:
        tree: Where they lie.
        files: Their paths in it, sorted.
        images: The columns that name images, those of lists last, and what these are called.
        fields: The other columns.
        convert: Makes of what is in a column of the files the value of its field.
    """

    tree: Tree
    files: tuple[str, ...]
    images: dict[str, str] = field(default_factory=dict)
    fields: dict[str, Field] = field(default_factory=dict)
    convert: dict[str, Callable[[Any], Any]] = field(default_factory=dict)

    def lines(self) -> Iterator[Line]:
        """All rows in order. Raises :class:`SourceError` for a file that cannot be read as what it is."""
        for file in self.files:
            folder, _, name = file.rpartition("/")
            shown = self.tree.name(file)
            data = (read_whole if name.endswith(".parquet") else read_text)(self.tree, file, _MAX_BYTES)
            reader = {"csv": _csv, "jsonl": read_json_lines, "parquet": read_parquet_rows}[name.rpartition(".")[2]]
            for number, values in reader(data, shown):
                yield Line(f"{shown}, {number}", folder, values)

    def others(self, line: Line) -> dict[str, Any]:
        """The values of a row but the images. Raises :class:`SourceError`."""
        found = {}
        for name, convert in self.convert.items():
            try:
                found[name] = convert(line.values.get(name))
            except ValueError as error:
                raise SourceError(f"{line.place}: {printable(name)}: {error}") from None
        return found


def read_metadata(tree: Tree, files: Iterable[str], features: Mapping[str, Any]) -> Metadata:
    """What the metadata files say of their columns, by one pass over all rows.

    ``features`` are those of the card. Raises :class:`SourceError` for files of several kinds, without a column that
    names files, or with other columns than the first."""
    files = tuple(sorted(files))
    kinds = sorted({file.rpartition(".")[2] for file in files})
    if len(kinds) > 1:
        raise SourceError(
            f"{tree.name()} has metadata in several kinds of files (.{', .'.join(kinds)}), which contradict each other "
            "where they differ: keep those of one kind"
        )
    found = Metadata(tree, files)
    seen: dict[str, ColumnValues] = {}
    rows = 0
    for line in found.lines():
        rows += 1
        for name, value in line.values.items():
            if name not in seen:
                if len(seen) >= _MAX_COLUMNS:
                    raise SourceError(f"{line.place}: more than {_MAX_COLUMNS} columns")
                seen[name] = ColumnValues()
            seen[name].add(value, text=kinds == ["csv"])
    if not rows:
        raise SourceError(f"{tree.name()}: its metadata files have no rows, so there is nothing to pack")
    naming = sorted((name for name in seen if _names_files(name)), key=names_several)
    found.images = {name: _called(name) for name in naming}
    if not found.images:
        columns = ", ".join(map(printable, list(seen)[:20]))
        raise SourceError(
            f"{tree.name(files[0])} has no column file_name, *_file_name or *_file_names; columns: {columns}"
        )
    typed = _parquet_fields(tree, files[0], features) if kinds == ["parquet"] else {}
    for name, its in seen.items():
        if name not in found.images:
            declared, convert = typed.get(name) or its.field(name, features.get(name))
            missing = its.count < rows or its.missing > 0 or (isinstance(declared, Label) and its.negative)
            optional = missing and not isinstance(declared, Json)
            found.fields[name] = _optional(declared) if optional else declared
            found.convert[name] = convert
    return found


def has_file_names(tree: Tree, file: str) -> bool:
    """Whether the beginning of a metadata file has a column that names files, and a row."""
    if file.endswith(".parquet"):
        return _FILE.encode() in tree.start(file, 64 << 20)
    start = tree.start(file, 1 << 16)
    try:
        if file.endswith(".csv"):
            header, *rows = islice(csv.reader(io.StringIO(start.decode("utf-8-sig", "replace"))), 2)
            return bool(rows) and any(map(_names_files, header))
        first = json.loads(start.lstrip().split(b"\n", 1)[0])
    except (csv.Error, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and any(map(_names_files, first))


@dataclass
class ColumnValues:
    """What values a column has."""

    count: int = 0
    missing: int = 0
    kinds: set[str] = field(default_factory=set)
    names: set[str] | None = field(default_factory=set)
    negative: bool = False
    text: bool = False

    def add(self, value: Any, *, text: bool) -> None:
        self.count += 1
        self.text = text
        kind = _kind_of_text(value) if text and value is not None else _kind_of(value)
        if kind == "missing":
            self.missing += 1
            return
        self.kinds.add(kind)
        self.negative = self.negative or (kind == "int" and int(value) < 0)
        if isinstance(value, str) and self.names is not None:
            self.names.add(value)
            if len(self.names) > _MAX_CLASSES:
                self.names = None

    def field(self, name: str, feature: Any) -> tuple[Field, Callable[[Any], Any]]:
        if self.text and self.kinds & {"text", "bool"} and self.kinds != {"bool"}:
            self.kinds = {"text"}
        if self.kinds == {"int"}:
            names = class_names(feature)
            if names is not None or name == "label":
                return Label(names), _class_number
            return Array("int64"), _text_to(int) if self.text else _as_it_is
        if self.kinds and self.kinds <= {"int", "float"}:
            return Array("float64"), _text_to(float) if self.text else _as_it_is
        if self.kinds == {"bool"}:
            return Array("bool"), _BOOLEANS.get if self.text else _as_it_is
        if self.kinds == {"text"}:
            classes = class_names(feature) or (tuple(sorted(self.names)) if name == "label" and self.names else None)
            return (Text() if classes is None else Label(classes)), _text_or_none
        if self.kinds and self.kinds <= {"ints", "numbers", "empty"} and self.kinds != {"empty"}:
            return Array("int64" if "numbers" not in self.kinds else "float64", ragged=True), _as_it_is
        return Json(), _as_it_is


def _kind_of_text(value: str) -> str:
    if value in _NOTHING:
        return "text" if value else "missing"
    if _WHOLE.fullmatch(value):
        return "int"
    if value in _BOOLEANS:
        return "bool"
    return "float" if _NUMBER.fullmatch(value) and not re.match(r"[+-]?0\d", value) else "text"


def _kind_of(value: Any) -> str:
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else "document"
    if isinstance(value, (float, str)):
        return "float" if isinstance(value, float) else "text"
    if isinstance(value, list):
        kinds = {_kind_of(each) for each in value}
        if kinds <= {"int", "float"}:
            return "empty" if not kinds else "ints" if kinds == {"int"} else "numbers"
    return "document"


def _as_it_is(value: Any) -> Any:
    return value


def _class_number(value: Any) -> int | None:
    """A number below 0 stands for an unknown class."""
    number = -1 if value is None or value in _NOTHING else int(value)
    return None if number < 0 else number


def _text_or_none(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


def _text_to(kind: type[int] | type[float]) -> Callable[[Any], Any]:
    return lambda value: None if value is None or value in _NOTHING else kind(value)


def _optional(declared: Field) -> Field:
    return replace(declared, optional=True)


def _names_files(name: str) -> bool:
    single = name.removesuffix("s")
    return single == _FILE or single.endswith(f"_{_FILE}")


def names_several(name: str) -> bool:
    """Whether a column that names files has a list of them in each row: ``file_names``, ``frames_file_names``."""
    return name.endswith(f"{_FILE}s")


def _called(name: str) -> str:
    """What the images are called that a column names."""
    before = name.removesuffix("s")[: -len(_FILE) - 1]
    return before or ("images" if names_several(name) else "image")


def _csv(data: bytes, shown: str) -> Iterator[tuple[str, dict[str, Any]]]:
    reader = csv.reader(io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline=""), strict=True)
    try:
        header = next(reader, [])
        if len(set(header)) < len(header):
            raise SourceError(f"{shown}: its header has a column twice")
        for cells in reader:
            if len(cells) > len(header):
                raise SourceError(f"{shown}, line {reader.line_num}: {len(cells)} fields, the header has {len(header)}")
            if cells:
                yield f"line {reader.line_num}", dict(zip(header, cells, strict=False))
    except csv.Error as error:
        raise SourceError(f"{shown}, line {reader.line_num}: not CSV: {printable(str(error))}") from None
    except UnicodeDecodeError:
        # Lines are decoded many at a time: the reader's number is of one before.
        line = next(n for n, line in enumerate(io.BytesIO(data), 1) if not _is_utf8(line))
        raise SourceError(f"{shown}, line {line}: not UTF-8; write it again in that encoding") from None


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_json_lines(data: bytes, shown: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields line and values of each object. Raises :class:`SourceError`."""
    for number, line in enumerate(io.BytesIO(data), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{shown}, line {number}: not JSON: {printable(str(error))}") from None
        if not isinstance(found, dict):
            raise SourceError(f"{shown}, line {number}: no object of values by name")
        yield f"line {number}", found


def read_parquet_rows(data: bytes, shown: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields number and values of each row. Raises :class:`SourceError`."""
    number = 0
    try:
        with closing(_open_parquet(data)) as file:
            for batch in file.iter_batches(1024):
                cells = {name: plain_column(name, batch.column(name))[1] for name in batch.schema.names}
                for row in range(len(batch)):
                    yield f"row {number}", {name: its(row) for name, its in cells.items()}
                    number += 1
    except faults() as error:
        raise SourceError(f"{shown} cannot be read: {printable(' '.join(str(error).split())[:300])}") from error


def _parquet_fields(
    tree: Tree, file: str, features: Mapping[str, Any]
) -> dict[str, tuple[Field, Callable[[Any], Any]]]:
    try:
        with closing(_open_parquet(read_whole(tree, file, _MAX_BYTES))) as parquet:
            batch = next(parquet.iter_batches(1024))
            features = {**features, **features_of(batch.schema)}
            fields = {
                name: plain_column(name, batch.column(name), features.get(name))[0] for name in batch.schema.names
            }
    except faults() as error:
        raise SourceError(f"{tree.name(file)} cannot be read: {printable(str(error))}") from error
    return {name: (each, _class_number if isinstance(each, Label) else _as_it_is) for name, each in fields.items()}


def _open_parquet(data: bytes) -> Any:
    return load_pyarrow("pyarrow.parquet").ParquetFile(load_pyarrow().BufferReader(data))
