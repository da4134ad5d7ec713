"""A format as a generator: it yields images with their values; splits, classes, columns and the ledger follow.

A generator reads the files of a dataset through :class:`Files`. Each file that it reads is an annotation, each image
that it yields is packed, and the rest is left out.
"""

from __future__ import annotations

import csv
import fnmatch
import io
import math
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from packstore.core.errors import PackstoreError, SourceError, printable
from packstore.core.fields import Array, Boxes, Field, Image, Json, Label, Labels, Text
from packstore.core.plainjson import load_json
from packstore.sources.base import SourceOptions
from packstore.sources.beside import (
    TextTable,
    find_file,
    infer_mask_field,
    is_file,
    join,
    read_json,
    read_text,
    read_whole,
)
from packstore.sources.ledger import Claims, Role
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.rows import FileRow, FileRowSource, InTree, in_packing_order
from packstore.sources.tree import Tree

_NO_VALUES: Mapping[str, Any] = MappingProxyType({})
_MAX_LIST_BYTES = 1 << 30
_SHOWN, _PROBED, _MOST_FOLDERS = 80, 32, 64
_MASKS = ("mask", "vessels", "field_of_view", "panoptic")
_JSON = (".json", ".geojson")
_FAULTS = (ValueError, LookupError, TypeError, AttributeError, csv.Error)


class Found(NamedTuple):
    """Image that a generator found, or a folder of images.

    Attributes:
        image: Path of the image, relative to the folder of the dataset.
        split: Name of its split; ``""`` in a source without splits.
        values: Its other values by column; a missing value is None, or left out. A class is a name or a number. A value
            that is a file is an :class:`~packstore.sources.rows.InTree`.
        key: Key of the sample; None for the path of the image.
        is_folder: ``image`` is a folder, and stands for all images below it, in torchvision's order.
    """

    image: str
    split: str = ""
    values: Mapping[str, Any] = _NO_VALUES
    key: str | None = None
    is_folder: bool = False


class Files:
    """Files of a dataset, as the generator of its format reads them.

    Names are relative to the folder of the dataset; ``a|b`` is the first of the two that exists. Reading a file raises
    :class:`SourceError` if it is missing or damaged, or has more than 1 GiB.

    Attributes:
        columns: Fields that the generator declares, by column, in order. They are declared before the first image.
        splits: Names of the splits in packing order; None if they follow from the images.
        wanted: The only split that is needed; None for all.
    """

    def __init__(self, source: FoundSource, wanted: str | None = None) -> None:
        self.columns: dict[str, Field] = {}
        self.splits: tuple[str, ...] | None = None
        self.wanted = wanted
        self._source, self._tree = source, source.tree
        self._place: tuple[str, Sequence[str] | None] = (source.tree.name(source.base), None)

    def each_split(self, *names: str | None) -> Iterator[str]:
        """Declares all splits, and yields those that are needed. Ignores None."""
        self.splits = tuple(name for name in names if name is not None)
        return (name for name in self.splits if self.wanted in (None, name))

    def exists(self, name: str) -> bool:
        """Tells if a file or folder exists."""
        return has_path(self._tree, self._source.base, name)

    def choose(self, name: str) -> str:
        """Returns the first of the names in ``a|b`` that exists; the last if none does."""
        return next((each for each in name.split("|") if self.exists(each)), name.rpartition("|")[2])

    def path(self, name: str) -> str:
        """Returns the path of a file in the tree, for :class:`~packstore.sources.rows.InTree`."""
        return join(self._source.base, name)

    def images(self, folder: str) -> Iterator[str]:
        """Yields the paths of all images below a folder, relative to it, in torchvision's order."""
        return walk_images(self._tree, self.path(folder), self._source.options.skip_bad)

    def folders(self, folder: str) -> list[str]:
        """Lists the names of the folders in a folder, sorted, without hidden ones."""
        return sorted(self._tree.list(self.path(folder)).directories)

    def lines(self, name: str, separator: str | None = None, skip: int = 0, comment: str = "\n") -> Iterator[list[str]]:
        """Yields the fields of each line of a text file, without ``skip`` lines, blank ones, and those that begin
        with ``comment``.
        """
        table = self._read_table(name, separator, skip)
        shown = table.name
        for line in table:
            if not line[0].startswith(comment):
                self._place = shown, line
                yield line

    def by_key(self, name: str, separator: str | None = None, skip: int = 0) -> LinesByKey:
        """Finds lines of a text file by their first field. Without the file, the result is empty and false."""
        return LinesByKey(self, self._read_table(name, separator, skip) if self.exists(name) else None)

    def csv(self, name: str, *columns: str, separator: str = ",") -> Iterator[list[str]]:
        """Yields the lines of a table with a header. Raises :class:`ValueError` for other columns."""
        file = self._open(name)
        text = io.TextIOWrapper(io.BytesIO(read_text(self._tree, file, _MAX_LIST_BYTES)), "utf-8-sig", newline="")
        lines = csv.reader(text, delimiter=separator, strict=True)
        expected, shown = ValueError(f"expected the columns {separator.join(columns)}"), self._tree.name(file)
        if self.note_line(shown, next(lines, [])) != [*columns]:
            raise expected
        for line in lines:
            if len(self.note_line(shown, line)) not in (0, len(columns)):
                raise expected
            if line:
                yield line

    def json(self, name: str) -> Any:
        """Reads a JSON file, once for each source."""
        return self._read_once(name, lambda file: read_json(self._tree, file, _MAX_LIST_BYTES))

    def mat(self, name: str, variable: str) -> tuple[str, Any]:
        """Reads a variable of a MAT file. Returns the name of the file for messages, and the value."""
        from packstore.sources.named.mat import load_mat

        variables = self._read_once(
            name, lambda file: load_mat(self._tree.name(file), read_whole(self._tree, file, _MAX_LIST_BYTES))
        )
        shown = self._tree.name(self.path(self.choose(name)))
        if variable not in variables:
            raise SourceError(f"{shown} has no variable {variable!r}")
        return shown, variables[variable]

    def note_line(self, file: str, line: list[str]) -> list[str]:
        """Returns a line, and keeps it for the message about an error."""
        self._place = file, line
        return line

    def make_error(self, error: Exception) -> SourceError:
        """Makes the error about the last line or file that was read."""
        (name, line), reason = self._place, str(error)
        if isinstance(error, KeyError):
            reason = f"{error.args[0]!r:.80} is unknown"
        shown = "" if line is None else f" has the line {' '.join(line)[:_SHOWN]!r}"
        return SourceError(f"{name}{printable(shown)}: {printable(reason[:200])}")

    def _open(self, name: str) -> str:
        """Returns the path of a file that is about to be read, and notes it as an annotation."""
        file = self.path(self.choose(name))
        self._source.opened[file] = None
        self._place = self._tree.name(file), None
        return file

    def _read_table(self, name: str, separator: str | None, skip: int) -> TextTable:
        """Reads a text file as a table, once for each source."""

        def make(file: str) -> TextTable:
            return TextTable(self._tree.name(file), read_text(self._tree, file, _MAX_LIST_BYTES), separator, skip)

        table: TextTable = self._read_once(name, make, separator, skip)
        return table

    def _read_once(self, name: str, read: Callable[[str], Any], *options: Any) -> Any:
        """Reads a file by its path in the tree, once for each source and further ``options``."""
        file, cache = self._open(name), self._source.cache
        # The generator runs again for each split, and reads the same files.
        if (file, *options) not in cache:
            cache[file, *options] = read(file)
        return cache[file, *options]


class LinesByKey:
    """Lines of a text file by their first field. False without the file."""

    def __init__(self, files: Files, table: TextTable | None) -> None:
        self._files = files
        self._table = table

    def __bool__(self) -> bool:
        return self._table is not None

    def __getitem__(self, key: str) -> list[str]:
        """Returns the fields behind a key in its first line. Raises :class:`SourceError` if no line has the key."""
        line = next(self.all(key), None)
        if line is None:
            name = "the source" if self._table is None else self._table.name
            raise SourceError(f"{name} has no line of {printable(key[:_SHOWN])!r}")
        return line

    def get(self, key: str, default: list[str] | None = None) -> list[str] | None:
        """Returns the fields behind a key in its first line; ``default`` if no line has the key."""
        return next(self.all(key), default)

    def numbers(self, key: str, *shape: int, parse: Callable[[str], Any] = int) -> Any:
        """Parses the fields behind a key to a number, or to lists of a shape. Returns None without the file.

        Raises :class:`SourceError` if no line has the key, and :class:`ValueError` for another number of fields.
        """
        if self._table is None:
            return None
        values: list[Any] = parse_numbers(self[key], math.prod(shape), parse)
        for size in shape[:0:-1]:
            values = [values[n : n + size] for n in range(0, len(values), size)]
        return values if shape else values[0]

    def all(self, key: str) -> Iterator[list[str]]:
        """Yields the fields behind a key in each of its lines."""
        if self._table is not None:
            for line in self._table.find_lines(key):
                yield self._files.note_line(self._table.name, line)[1:]


@dataclass(frozen=True, slots=True)
class _Seen:
    """Facts about the images that a generator yields.

    Attributes:
        splits: Names of the splits.
        fields: Field of each column.
        absent: Columns whose files do not exist.
        files: Files that were read meanwhile.
    """

    splits: tuple[str, ...]
    fields: Mapping[str, Field]
    absent: tuple[str, ...]
    files: tuple[str, ...]


class FoundSource(FileRowSource):
    """Source whose images a generator yields.

    A column exists if the first image of a split has a value for it, or if its declared field is optional. Classes
    without names get those of the values, sorted. A column that is not declared is ``label``, ``boxes``, a whole
    number, a text or a file.

    Listing raises :class:`SourceError` for a line that the generator cannot read, and for an unknown class.

    Attributes:
        base: Folder of the dataset in the tree.
        opened: Files that were read, by path in the tree.
        cache: Tables and MAT files that were read.
        parsers: Parser of the file of a column; returns values by column.
    """

    base = ""
    parsers: Mapping[str, Callable[[bytes], Mapping[str, Any]]] = MappingProxyType({})

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.opened: dict[str, None] = {}
        self.cache: dict[Any, Any] = {}

    @abstractmethod
    def generate(self, files: Files) -> Iterator[Found]:
        """Yields the images, the same at each call. Any error of its lists may be raised as :class:`ValueError` or
        :class:`LookupError`; the engine adds the file and the line."""

    def splits(self) -> Sequence[str]:
        return self._seen.splits

    def fields(self) -> Mapping[str, Field]:
        return self._seen.fields

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each image of a split, with class numbers. An image that a list repeats is yielded once."""
        columns = {name: getattr(field, "classes", None) for name, field in self._seen.fields.items()}
        numbers = {name: _ClassNumbers(names) for name, names in columns.items() if names is not None}
        absent, prefix = self._seen.absent, join(self.base, "")

        def make_row(found: Found) -> FileRow:
            image, _, values, key, is_folder = found
            kept = {}
            for name, value in values.items():
                if value is not None and name not in absent:
                    known = numbers.get(name)
                    if known is not None:
                        value = _number_classes(value, known) if type(value) is list else known[value]
                    kept[name] = value
            return FileRow(prefix + image, kept, key, is_folder)

        return self.skip_repeated(split, self._find(Files(self, split), make_row))

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads the files of a row: by :attr:`parsers`, JSON and texts by the fields of their columns.

        Raises :class:`ValueError` for an invalid file.
        """
        values = dict(super().read_values(ref))
        for name, content in [(name, value) for name, value in values.items() if isinstance(value, bytes)]:
            field = self._seen.fields.get(name)
            if name in self.parsers:
                with self.name_annotation_file(ref):
                    values |= self.parsers[name](content)
            elif isinstance(field, Json):
                try:
                    values[name] = load_json(content, "is no JSON")
                except ValueError as error:
                    raise ValueError(f"its {name} {error}") from None
            elif isinstance(field, Text):
                values[name] = content.decode("utf-8-sig")
        return values

    def describing_files(self) -> Iterable[str]:
        """Returns the files that are read to find the first image of each split, or all images if classes follow from
        them."""
        return self._seen.files

    def claim_files(self, claims: Claims) -> None:
        """Claims all files that were read."""
        super().claim_files(claims)
        for file in self.opened.keys() - {*self._seen.files}:
            claims.claim(file, Role.ANNOTATION)

    def _find(self, files: Files, make: Callable[[Found], Any] = lambda found: found) -> Iterator[Any]:
        """Yields what ``make`` returns for each needed image."""
        try:
            for found in self.generate(files):
                if files.wanted is None or files.wanted == found.split:
                    yield make(found)
        # It names its file already.
        except PackstoreError:
            raise
        except _FAULTS as error:
            raise files.make_error(error) from error

    @cached_property
    def _seen(self) -> _Seen:
        """Splits, fields and files, from the first image of each split."""
        files = Files(self)
        found = [*islice(self._find(files), 1)]
        if files.splits is not None:
            found = [each for split in files.splits for each in islice(self._find(Files(self, split)), 1)]
        columns = _Columns(self.tree, files.columns)
        # Splits or classes that are not declared follow from all images.
        whole = files.splits is None or any(map(columns.has_new_classes, found))
        splits = {columns.add(each) for each in (self._find(Files(self)) if whole else found)}
        fields, absent = columns.make_fields()
        return _Seen(files.splits or in_packing_order(splits), fields, absent, tuple(sorted(self.opened)))


class _Columns:
    """Fields of columns, from declared fields and from values."""

    def __init__(self, tree: Tree, declared: Mapping[str, Field]) -> None:
        self._tree = tree
        self._declared = declared if "label" in declared else {"label": Label(), **declared}
        self._images = 0
        self._counts: Counter[str] = Counter()
        self._firsts: dict[str, Any] = {}
        self._names: dict[str, set[str]] = {
            name: set()
            for name, field in self._declared.items()
            if isinstance(field, Label | Labels) and field.classes is None
        }
        self._files: dict[str, list[str]] = {}

    def has_new_classes(self, found: Found) -> bool:
        """Tells if an image has names of classes that are not declared."""
        return any(not isinstance(found.values.get(name), int | None) for name in self._names)

    def add(self, found: Found) -> str:
        """Takes the values of an image. Returns its split."""
        self._images += 1
        for name, value in found.values.items():
            if value is None:
                continue
            self._counts[name] += 1
            self._firsts.setdefault(name, value)
            names = self._names.get(name)
            if names is None:
                if name not in self._declared and isinstance(value, InTree):
                    files = self._files.setdefault(name, [])
                    if len(files) < _PROBED and is_file(self._tree, file := find_file(self._tree, value.file)):
                        files.append(file)
            elif isinstance(value, str):
                names.add(value)
            elif not isinstance(value, int):
                names.update(value)
        return found.split

    def make_fields(self) -> tuple[dict[str, Field], tuple[str, ...]]:
        """Makes the field of each column that exists, and lists the columns whose files do not exist."""
        fields: dict[str, Field] = {"image": Image()}
        for name in dict.fromkeys((*self._declared, *self._firsts)):
            field: Any = self._declared.get(name) or self._guess(name)
            if field is None or (name not in self._firsts and not field.optional):
                continue
            if self._names.get(name):
                texts = self._names[name]
                # Numbers as names sort by value: 2 before 10.
                field = replace(field, classes=sorted(texts, key=int if all(map(str.isdecimal, texts)) else None))
            first = self._firsts.get(name)
            lacking = self._counts[name] < self._images or (isinstance(first, InTree) and first.optional)
            fields[name] = replace(field, optional=True) if lacking else field
        return fields, tuple(name for name in self._files if name not in fields)

    def _guess(self, name: str) -> Field | None:
        """Returns the field of a column that is not declared, by its values; None for files that do not exist."""
        first, files = self._firsts[name], self._files.get(name)
        if not isinstance(first, InTree):
            return Boxes() if name == "boxes" else Text() if isinstance(first, str) else Array("int64")
        if not files:
            return None
        suffix = files[0][files[0].rfind(".") :].lower()
        if suffix in IMAGE_SUFFIXES:
            masks = any(word in name for word in _MASKS)
            return infer_mask_field(self._tree, files) if masks else Image(optional=True)
        return Json(optional=True) if suffix in _JSON else Text(optional=True)


class _ClassNumbers(dict[Any, int]):
    """Numbers of classes, by name and by number."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__({key: number for number, name in enumerate(names) for key in (name, number)})

    def __missing__(self, key: Any) -> int:
        raise KeyError(key) if isinstance(key, str) else IndexError(f"{key} is none of {len(self) // 2} classes")


def _number_classes(value: Any, numbers: Mapping[Any, int]) -> Any:
    """Returns the number of a class, or the numbers of a list of classes."""
    return [_number_classes(each, numbers) for each in value] if isinstance(value, list) else numbers[value]


def parse_numbers(texts: Sequence[str], count: int, parse: Callable[[str], Any] = float) -> list[Any]:
    """Parses exactly ``count`` numbers. Raises :class:`ValueError` for anything else."""
    if len(texts) != count:
        raise ValueError(f"expected {count} numbers")
    return [parse(text) for text in texts]


def parse_text(text: str, pattern: str) -> tuple[str, ...]:
    """Matches a whole text with a pattern, and returns its groups. Raises :class:`ValueError` for any other text."""
    match = re.fullmatch(pattern, text)
    if match is None:
        raise ValueError(f"{text} does not match {pattern}")
    return match.groups()


def walk_images(tree: Tree, folder: str, skip_cycles: bool = True) -> Iterator[str]:
    """Yields the paths of all images below a folder of a tree, relative to it, in torchvision's order."""
    begin = len(join(folder, ""))
    for place, listing in tree.walk(folder, tree.above, None, skip_cycles):
        yield from (join(place, name)[begin:] for name in listing.images)


def has_path(tree: Tree, base: str, name: str, *, check_content: bool = False) -> bool:
    """Tells if the folder ``base`` of a tree holds a file or folder; ``a|b`` is either, and ``*`` any text in a name.

    A path that cannot be reached is missing, and so is ``*/a`` among more than 64 folders. With ``check_content``, a
    ``.mat`` file only counts if it begins like one.
    """
    for each in name.split("|"):
        path, (top, _, rest) = join(base, each), each.partition("/")
        if "*" in each:
            names = tree.names(base)
            fitting = fnmatch.filter((*names.folders, *names.files), top)
            # A folder of many classes would need a request for each at a URL.
            below = fitting if len(fitting) <= _MOST_FOLDERS else ()
            if any(has_path(tree, join(base, place), rest) for place in below) if rest else fitting:
                return True
            continue
        try:
            folder = tree.stat(path).is_directory
        except OSError:
            continue
        if folder or not check_content or not path.endswith(".mat") or tree.first_bytes(path, 6) == b"MATLAB":
            return True
    return False
