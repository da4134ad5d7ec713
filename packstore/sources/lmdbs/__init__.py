"""LMDBs of other programs: a reader, and the base of sources with one or several of them. The formats are in
:mod:`packstore.sources.lmdbs.formats`."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Field, Image, Label
from packstore.images.sniff import max_file_bytes
from packstore.sources.base import Certainty, SourceOptions
from packstore.sources.folder_names import is_directory
from packstore.sources.ignoring import is_ignored
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.refusals import first_bytes
from packstore.sources.rows import Row, RowSource, in_packing_order
from packstore.sources.splits import find_split
from packstore.stores.lmdb.pages import DATA_FILE, PageError, Pages, TreeEntry

_MAGIC = b"\xde\xc0\xef\xbe\x01\0\0\0"
_MAGIC_AT = 16
_OWN = (b"manifest", b"row_checksum")
"""Keys that tell a packstore store from a foreign LMDB."""
_LOOKED_AT = 4


class Database:
    """Open LMDB of another program. Opening raises :class:`SourceError` for any other file, and for damaged header
    pages. Other pages are checked when they are read.

    Attributes:
        path: Path as given: a directory with ``data.mdb``, or the file itself.
        file: Path of the file.
        entries: Number of entries.
    """

    def __init__(self, path: Path) -> None:
        """Opens the file. Raises :class:`SourceError` if ``path`` is no LMDB, or its header pages are damaged."""
        self.path = path
        self.file = path / DATA_FILE if path.is_dir() else path
        try:
            descriptor = os.open(self.file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._pages = Pages(descriptor)
            finally:
                os.close(descriptor)
        except PageError as error:
            raise self._damage_error(str(error)) from None
        except OSError as error:
            raise SourceError(f"{printable(str(path))} cannot be opened: {error.strerror or error}") from None
        self.entries = self._pages.entries

    def walk_entries(self) -> Iterator[TreeEntry]:
        """Yields the keys in sorted order, each with the size of its value. Raises :class:`SourceError` for a damaged
        page."""
        for item in self._pages.walk_entries(overflow=False):
            if isinstance(item, str):
                raise self._damage_error(item)
            yield item

    def has_mostly(self, test: Callable[[bytes], bool]) -> bool:
        """Tells if more than half of the first 4 values, in the order of keys, pass a test. Raises
        :class:`SourceError` or :class:`ValueError` for a damaged page."""
        passed = [test(self.read_value(key) or b"") for key, _ in islice(self.walk_entries(), _LOOKED_AT)]
        return 2 * sum(passed) > len(passed)

    def read_value(self, key: bytes) -> bytes | None:
        """Reads the value of a key; returns None if the key is missing. Raises :class:`ValueError` for a damaged
        page."""
        try:
            value = self._pages.find_value(key)
        except PageError as error:
            raise ValueError(f"{printable(str(self.path))} is damaged: {error}") from None
        return None if value is None else value.tobytes()

    def _damage_error(self, what: str) -> SourceError:
        """Returns the error for a database with the damage ``what``."""
        return SourceError(f"{printable(str(self.path))} is not a readable LMDB, or is damaged: {what}")


class LmdbSource(RowSource):
    """Base of sources with one LMDB of another program, or several in a folder. Several are named by split:
    ``train.lmdb``, ``ilsvrc12_val_lmdb``.

    A format recognises a database, walks its samples and reads one. Opening raises :class:`SourceError` if there is no
    LMDB, and for an LMDB of another kind. Also raises it for damage in the header pages and first entries. Opening
    raises :class:`AmbiguousSourceError` if the names of several do not have one split each.

    Attributes:
        columns: The fields, by name.
    """

    columns: ClassVar[Mapping[str, Field]] = {"image": Image(), "label": Label()}

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        found = self.find_databases(path)
        if not found:
            raise SourceError(f"{printable(str(path))} holds no LMDB")
        self._splits = [split for split, _ in found]
        self.databases = [Database(each) for _, each in found]
        wrong = next((d.path for d in self.databases if not self.is_of_kind(d)), None)
        if wrong is not None:
            raise SourceError(f"{printable(str(wrong))} is no LMDB of {self.kind}")
        self.evidence = f"keys such as {printable(repr(next(self.databases[0].walk_entries()).key)[1:])}"
        self.max_bytes = max_file_bytes(options.max_pixels)

    @classmethod
    @abstractmethod
    def is_of_kind(cls, database: Database) -> bool:
        """Tells by its first entries if a database is of this kind."""

    def fields(self) -> Mapping[str, Field]:
        """Declares :attr:`columns`."""
        return self.columns

    def walk_samples(self, database: Database, split: str) -> Iterator[tuple[str, Any, int, int]]:
        """Yields key, reference, size of the image and size of the other values of each sample of a database. In this
        base, each entry is a sample. Raises :class:`SourceError` for entries that the format does not have."""
        for key, size in database.walk_entries():
            yield self.make_key(database, split, decode_key(key)), key, size, 8

    @abstractmethod
    def read_sample_values(self, database: Database, ref: Any) -> dict[str, Any]:
        """Reads the values of a sample. Raises :class:`ValueError` if it is missing, damaged or too large."""

    @classmethod
    def find_databases(cls, path: Path) -> list[tuple[str, Path]]:
        """Finds split and path of the LMDBs at a path, in packing order; returns ``[]`` if there are none. A path that
        is an LMDB itself has the split ``""``. Of several LMDBs, each must have a split of its own in its name: else
        raises :class:`AmbiguousSourceError`."""
        if is_lmdb(path):
            return [("", path)]
        databases = [(find_split(each.name), each) for each in find_lmdbs(path)]
        if len(databases) > 1 and len({split for split, _ in databases} - {""}) != len(databases):
            raise AmbiguousSourceError(
                f"{printable(str(path))} holds several LMDBs, whose names do not have one split each",
                [Answer(source=each) for _, each in databases],
                lists_answers=True,
            )
        order = in_packing_order(split for split, _ in databases)
        return sorted(databases, key=lambda each: order.index(each[0]))

    @classmethod
    def recognise(cls, path: Path, options: SourceOptions) -> Certainty:
        """Returns ``CERTAIN`` if all LMDBs at ``path`` are of this kind and none is a packstore store. Returns ``NO``
        for anything else, damaged LMDBs and folders that cannot be listed.

        Raises :class:`AmbiguousSourceError` for several LMDBs unless each is named after a split of its own, and
        :class:`SourceError` for a file that cannot be read.
        """
        try:
            places = [path] if is_lmdb(path) else find_lmdbs(path)
        except PermissionError:
            return Certainty.NO  # the general kinds name the folder that cannot be listed
        try:
            for database in map(Database, places):
                if any(database.read_value(key) is not None for key in _OWN) or not cls.is_of_kind(database):
                    return Certainty.NO
        except (SourceError, ValueError):
            return Certainty.NO  # if it is a store, opening it tells the fault
        return Certainty.CERTAIN if places and cls.find_databases(path) else Certainty.NO

    def splits(self) -> Sequence[str]:
        """Returns the splits of the databases, in packing order; ``[""]`` for a single database without split."""
        return list(dict.fromkeys(self._splits))

    def rows(self, split: str) -> Iterator[Row]:
        """Yields a row for each sample of the databases of a split. Raises the errors of :meth:`walk_samples`."""
        for number, database in enumerate(self.databases):
            if self._splits[number] == split:
                for key, ref, size, rest in self.walk_samples(database, split):
                    yield Row(key, (number, ref), size, rest)

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads the values of a row by :meth:`read_sample_values`."""
        number, own = ref
        return self.read_sample_values(self.databases[number], own)

    def make_key(self, database: Database, split: str, key: str) -> str:
        """Makes the key of a sample from the key in its LMDB. If there are several LMDBs, whose keys may be equal, the
        key begins with the split."""
        return f"{split}/{key}" if len(self.databases) > 1 else key

    def read_image(self, database: Database, key: bytes) -> bytes:
        """Reads a value that is an image file. Raises :class:`ValueError` if it is missing, damaged or too large."""
        data = database.read_value(key)
        if data is None:
            raise ValueError(f"{printable(repr(key)[1:])} is not in the LMDB")
        return self.check_size(data)

    def check_size(self, data: bytes) -> bytes:
        """Returns ``data`` unchanged. Raises :class:`ValueError` if it is too large for an image within
        ``max_pixels``."""
        if len(data) > self.max_bytes:
            raise ValueError(f"has {len(data)} bytes, more than the {self.max_bytes} of an image within max_pixels")
        return data

    def files(self) -> list[Path]:
        """Lists the LMDB files."""
        return [each.file for each in self.databases]


def is_lmdb(path: Path) -> bool:
    """Tells by the magic number if a path is an LMDB: the file itself, or a directory with it as ``data.mdb``. Raises
    :class:`SourceError` if the file cannot be read."""
    file = path / DATA_FILE if path.is_dir() else path
    return first_bytes(file, _MAGIC_AT + len(_MAGIC))[_MAGIC_AT:] == _MAGIC


def find_lmdbs(path: Path) -> list[Path]:
    """Lists the LMDBs in a folder, sorted. An LMDB is a folder, or a file whose name ends in ``.lmdb``, ``.mdb`` or
    ``_lmdb``.

    Passes over hidden and ignored names. Returns ``[]`` if ``path`` is no folder, or has images or other folders in it.
    Raises :class:`OSError` if it cannot be listed, and :class:`SourceError` for a file that cannot be read.
    """
    if not path.is_dir():
        return []
    paths = []
    with os.scandir(path) as entries:
        for entry in entries:
            name = entry.name.lower()
            if name.startswith(".") or is_ignored(path / entry.name):
                continue
            if name.endswith(IMAGE_SUFFIXES):
                return []
            if (is_directory(entry) or name.endswith((".lmdb", ".mdb", "_lmdb"))) and is_lmdb(path / entry.name):
                paths.append(path / entry.name)
            elif is_directory(entry):
                return []
    return sorted(paths)


def decode_key(key: bytes) -> str:
    """Decodes a key of an LMDB to text; undecodable bytes become surrogates."""
    return key.decode("utf-8", "surrogateescape")
