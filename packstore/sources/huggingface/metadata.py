"""Metadata of image folders: ``metadata.csv``, ``.jsonl`` or ``.parquet``, with paths of images and further columns."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from packstore.core.errors import SourceError, error_line, printable
from packstore.core.fields import Array, Field, Json, Label, Text
from packstore.core.plainjson import load_json, parse_float64
from packstore.sources.beside import clean_path, join, read_text, read_whole
from packstore.sources.huggingface.columns import declare_column
from packstore.sources.huggingface.features import class_names, load_pyarrow, pyarrow_errors, read_features
from packstore.sources.tree import Tree

FILES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_FILE = "file_name"
_MAX_BYTES = 1 << 31
_MAX_COLUMNS, _MAX_CLASSES = 4096, 1 << 20
_INTEGER = re.compile(r"[+-]?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf)", re.IGNORECASE)
MISSING = frozenset(
    {"", "#N/A", "N/A", "n/a", "NA", "<NA>", "#NA", "NULL", "null", "None", "NaN", "nan", "-nan", "-NaN"}
)
"""Texts that pandas reads as a missing number."""
_BOOLEANS = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}


@dataclass(frozen=True, slots=True)
class MetadataRow:
    """Row of a metadata file.

    Attributes:
        place: File and line, or number of the row, for messages.
        folder: Folder of the file.
        values: Values by column as in the file: strings of CSV, values of JSON, plain values of Arrow.
    """

    place: str
    folder: str
    values: Mapping[str, Any]

    def first_path(self, name: str) -> str | None:
        """Returns the first path of :meth:`list_paths`, or None if the cell is empty. Raises the same errors."""
        return next(iter(self.list_paths(name)), None)

    def list_paths(self, name: str) -> list[str]:
        """Returns the paths in the tree of all files that a cell names; none for an empty cell.

        Raises :class:`SourceError` for a URL, and for a value that is no path within the source. Cells of a column of
        lists must hold lists of paths.
        """
        value = self.values.get(name)
        if value is None or value == "":
            return []
        if names_lists(name) and not isinstance(value, list):
            raise SourceError(f"{self.place}: {printable(name)} is {printable(repr(value)[:80])}, expected a list")
        paths = []
        for each in value if names_lists(name) else [value]:
            if not isinstance(each, str) or "://" in each:
                raise SourceError(f"{self.place}: {printable(name)} is {printable(repr(each)[:80])}, expected a path")
            try:
                paths.append(join(self.folder, clean_path(each)))
            except ValueError as error:
                raise SourceError(f"{self.place}: {printable(name)} {error}") from None
        return paths


@dataclass
class Metadata:
    """Metadata files of a dataset, all of one format; reads and converts their rows.

    Attributes:
        tree: Tree of the files.
        files: Their paths, sorted.
        images: Columns that name images, each with the name of its images; columns of lists come last.
        fields: Fields of the other columns.
        convert: Converts a value in the file to the value of its field, by column.
    """

    tree: Tree
    files: tuple[str, ...]
    images: dict[str, str] = field(default_factory=dict)
    fields: dict[str, Field] = field(default_factory=dict)
    convert: dict[str, Callable[[Any], Any]] = field(default_factory=dict)

    def rows(self) -> Iterator[MetadataRow]:
        """Yields all rows in order; reads each file as a whole. Raises :class:`SourceError` for a damaged file, and
        for a file over 2 GiB."""
        for file in self.files:
            folder, _, name = file.rpartition("/")
            shown = self.tree.name(file)
            data = (read_whole if name.endswith(".parquet") else read_text)(self.tree, file, _MAX_BYTES)
            reader = {"csv": _read_csv, "jsonl": read_json_lines, "parquet": read_parquet_rows}[name.rpartition(".")[2]]
            for number, values in reader(data, shown):
                yield MetadataRow(f"{shown}, {number}", folder, values)

    def convert_values(self, row: MetadataRow) -> dict[str, Any]:
        """Converts the values of a row, except images. Raises :class:`SourceError` for a value that does not fit its
        field."""
        values = {}
        for name, convert in self.convert.items():
            try:
                values[name] = convert(row.values.get(name))
            except ValueError as error:
                raise SourceError(f"{row.place}: {printable(name)}: {error}") from None
        return values


def read_metadata(tree: Tree, files: Iterable[str], features: Mapping[str, Any]) -> Metadata:
    """Reads all rows once, and chooses the fields of columns by their values. ``features``: those in the dataset card.

    A column is optional if a row lacks its value. Raises :class:`SourceError` for files of several formats, for no
    rows, and for no column that names files. Raises it also for more than 4096 columns.
    """
    files = tuple(sorted(files))
    kinds = sorted({file.rpartition(".")[2] for file in files})
    if len(kinds) > 1:
        raise SourceError(
            f"{tree.name()} has metadata in several formats (.{', .'.join(kinds)}), which may contradict each other: "
            "keep the files of one format"
        )
    metadata = Metadata(tree, files)
    seen: dict[str, ColumnValues] = {}
    rows = 0
    for row in metadata.rows():
        rows += 1
        for name, value in row.values.items():
            if name not in seen:
                if len(seen) >= _MAX_COLUMNS:
                    raise SourceError(f"{row.place}: more than {_MAX_COLUMNS} columns")
                seen[name] = ColumnValues()
            seen[name].add_value(value, text=kinds == ["csv"])
    if not rows:
        raise SourceError(f"{tree.name()}: its metadata files have no rows, so there is nothing to pack")
    naming = sorted((name for name in seen if _names_files(name)), key=names_lists)
    metadata.images = {name: _derive_image_name(name) for name in naming}
    if not metadata.images:
        columns = ", ".join(map(printable, list(seen)[:20]))
        raise SourceError(
            f"{tree.name(files[0])} has no column file_name, *_file_name or *_file_names; columns: {columns}"
        )
    typed = _declare_parquet_columns(tree, files, features) if kinds == ["parquet"] else {}
    for name, its in seen.items():
        if name not in metadata.images:
            declared, convert = typed.get(name) or its.declare_field(name, features.get(name))
            missing = its.count < rows or its.missing > 0 or (isinstance(declared, Label) and its.negative)
            optional = missing and not isinstance(declared, Json)
            metadata.fields[name] = replace(declared, optional=True) if optional else declared
            metadata.convert[name] = convert
    return metadata


def has_file_names(tree: Tree, file: str) -> bool:
    """Tells if a metadata file has a column that names files, and a row. Reads only its beginning.

    For Parquet, only tells if the text ``file_name`` occurs in the first 64 MiB.
    """
    if file.endswith(".parquet"):
        return _FILE.encode() in tree.first_bytes(file, 64 << 20)
    start = tree.first_bytes(file, 1 << 16)
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
    """Summary of a column's values, from which :meth:`declare_field` chooses the column's type and converter.

    Attributes:
        count: Number of values.
        missing: Number of missing values among them.
        kinds: Kinds of the others: ``int``, ``float``, ``bool``, ``text``, ``document``; of lists, ``ints``,
            ``numbers``, ``empty``.
        names: Different texts; None if there are more than 1,048,576.
        negative: An ``int`` is below 0.
        text: The file stores every value as text, as CSV does. ``kinds`` then say what the texts look like.
    """

    count: int = 0
    missing: int = 0
    kinds: set[str] = field(default_factory=set)
    names: set[str] | None = field(default_factory=set)
    negative: bool = False
    text: bool = False

    def add_value(self, value: Any, *, text: bool) -> None:
        """Adds a value to the summary. ``text``: the file stores every value as text. Numbers are parsed then."""
        self.count += 1
        self.text = text
        kind = classify_text(value) if text and value is not None else _classify_value(value)
        if kind == "missing":
            self.missing += 1
            return
        self.kinds.add(kind)
        self.negative = self.negative or (kind == "int" and int(value) < 0)
        if isinstance(value, str) and self.names is not None:
            self.names.add(value)
            if len(self.names) > _MAX_CLASSES:
                self.names = None

    def declare_field(self, name: str, feature: Any) -> tuple[Field, Callable[[Any], Any]]:
        """Returns the field that fits all values added, and the function that converts a value.

        - Numbers, and booleans: :class:`Array`.
        - Texts: :class:`Text`. In a file of texts, they may include numbers and booleans.
        - Lists of numbers: a ragged :class:`Array`.
        - Anything else, and no values: :class:`Json`.

        Whole numbers and texts are classes if ``feature`` names the classes, or if the column's ``name`` is ``label``.
        """
        if self.text and self.kinds & {"text", "bool"} and self.kinds != {"bool"}:
            self.kinds = {"text"}
        if self.kinds == {"int"}:
            names = class_names(feature)
            if names is not None or name == "label":
                return Label(names), _to_class_number
            return Array("int64"), _make_number_parser(int) if self.text else _keep_value
        if self.kinds and self.kinds <= {"int", "float"}:
            return Array("float64"), _make_number_parser(float) if self.text else _keep_value
        if self.kinds == {"bool"}:
            return Array("bool"), _BOOLEANS.get if self.text else _keep_value
        if self.kinds == {"text"}:
            classes = class_names(feature) or (tuple(sorted(self.names)) if name == "label" and self.names else None)
            return (Text() if classes is None else Label(classes)), _to_text
        if self.kinds and self.kinds <= {"ints", "numbers", "empty"} and self.kinds != {"empty"}:
            return Array("int64" if "numbers" not in self.kinds else "float64", ragged=True), _keep_value
        return Json(), _keep_value


def classify_text(value: str) -> str:
    """Returns the kind of a text in CSV by its form: ``int``, ``float``, ``bool`` or ``text``.

    An empty text is ``missing``. ``NA`` and the like are ``text``, and so are numbers with leading zeros, and those too
    large for float64.
    """
    if value in MISSING:
        return "text" if value else "missing"
    if _INTEGER.fullmatch(value):
        return "int"
    if value in _BOOLEANS:
        return "bool"
    if not _NUMBER.fullmatch(value) or re.match(r"[+-]?0\d", value):
        return "text"
    return "text" if math.isinf(float(value)) and value[-1] not in "fF" else "float"  # an explicit inf is a number


def _classify_value(value: Any) -> str:
    """Returns the kind of a value of JSON or Arrow.

    - None: ``missing``.
    - Single values: ``int``, ``float``, ``bool`` or ``text``.
    - Lists: ``ints``, ``numbers`` or ``empty``.
    - Anything else, and integers beyond 64 bits: ``document``.
    """
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else "document"
    if isinstance(value, (float, str)):
        return "float" if isinstance(value, float) else "text"
    if isinstance(value, list):
        kinds = {"document" if isinstance(each, list) else _classify_value(each) for each in value}
        if kinds <= {"int", "float"}:
            return "empty" if not kinds else "ints" if kinds == {"int"} else "numbers"
    return "document"


def _keep_value(value: Any) -> Any:
    """Returns a value unchanged."""
    return value


def _to_class_number(value: Any) -> int | None:
    """Converts a value to a class number. A missing value, and a number below 0, which is an unknown class, become
    None."""
    number = -1 if value is None or value in MISSING else int(value)
    return None if number < 0 else number


def _to_text(value: Any) -> str | None:
    """Converts a value to a text. Returns None if it is missing or empty."""
    return None if value is None or value == "" else str(value)


def _make_number_parser(kind: type[int] | type[float]) -> Callable[[Any], Any]:
    """Returns a function that parses texts as numbers of a type. The function returns None for a missing number, and
    raises :class:`ValueError` for other texts."""
    return lambda value: None if value is None or value in MISSING else kind(value)


def _names_files(name: str) -> bool:
    """Tells if a column names files: ``file_name``, ``mask_file_name``, ``frames_file_names``."""
    single = name.removesuffix("s")
    return single == _FILE or single.endswith(f"_{_FILE}")


def names_lists(name: str) -> bool:
    """Tells if a column that names files has a list of them in each row: ``file_names``, ``frames_file_names``."""
    return name.endswith(f"{_FILE}s")


def _derive_image_name(name: str) -> str:
    """Returns the name of the images that a column names: ``mask`` for ``mask_file_name``. Columns without such a
    name have ``image``, or ``images`` for lists."""
    before = name.removesuffix("s")[: -len(_FILE) - 1]
    return before or ("images" if names_lists(name) else "image")


def _read_csv(data: bytes, shown: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields line and values of each row. Skips blank lines; a short row lacks the last columns.

    Raises :class:`SourceError` for a repeated column, too many fields, and malformed CSV.
    """
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


def read_json_lines(data: bytes, shown: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields line and values of each object in JSON Lines. Skips blank lines. Raises :class:`SourceError` for a line
    that is no object."""
    for number, line in enumerate(io.BytesIO(data), 1):
        if not line.strip():
            continue
        try:
            row = load_json(line, "not JSON", parse_float=parse_float64)
        except ValueError as error:
            raise SourceError(f"{shown}, line {number}: {printable(str(error))}") from None
        if not isinstance(row, dict):
            raise SourceError(f"{shown}, line {number}: no object of values by name")
        yield f"line {number}", row


def read_parquet_rows(data: bytes, shown: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields number and values of each row of a Parquet file. Raises :class:`SourceError` for a damaged file, and for a
    column that no field holds."""
    number = 0
    with _open_parquet(data, shown) as file:
        for batch in file.iter_batches(1024):
            cells = {name: declare_column(name, batch.column(name))[1] for name in batch.schema.names}
            for row in range(len(batch)):
                yield f"row {number}", {name: its(row) for name, its in cells.items()}
                number += 1


def _declare_parquet_columns(
    tree: Tree, files: Iterable[str], features: Mapping[str, Any]
) -> dict[str, tuple[Field, Callable[[Any], Any]]]:
    """Chooses the fields of Parquet columns by the first 1,024 rows of the first file that has any.

    Returns each column's field, and the function that converts its values; ``{}`` if no file has rows. Raises
    :class:`SourceError` for a damaged file, and for a column that no field holds.
    """
    for file in files:
        with _open_parquet(read_whole(tree, file, _MAX_BYTES), tree.name(file)) as parquet:
            for batch in islice(parquet.iter_batches(1024), 1):
                own = {**features, **read_features(batch.schema)}
                names = batch.schema.names
                fields = {name: declare_column(name, batch.column(name), own.get(name))[0] for name in names}
                return {
                    name: (each, _to_class_number if isinstance(each, Label) else _keep_value)
                    for name, each in fields.items()
                }
    return {}


@contextmanager
def _open_parquet(data: bytes, shown: str) -> Iterator[Any]:
    """Opens the bytes of a Parquet file. Converts pyarrow's errors in the block to :class:`SourceError`, which it also
    raises if pyarrow is not installed."""
    parquet = load_pyarrow("pyarrow.parquet")
    try:
        with closing(parquet.ParquetFile(load_pyarrow().BufferReader(data))) as file:
            yield file
    except pyarrow_errors() as error:
        raise SourceError(f"{shown} cannot be read: {error_line(error)}") from error
