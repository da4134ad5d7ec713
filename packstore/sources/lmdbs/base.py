"""A foreign LMDB, and sources of one or several."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.images.sniff import max_file_bytes
from packstore.sources.base import SPLIT_ORDER, Certainty, SourceOptions
from packstore.sources.folder_names import is_directory
from packstore.sources.ignoring import is_ignored
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.refusals import first_bytes
from packstore.sources.rows import RowSource, in_packing_order
from packstore.stores.lmdb.pages import DATA_FILE, Entry, PageError, Pages

_MAGIC = b"\xde\xc0\xef\xbe\x01\0\0\0"
_MAGIC_AT = 16
_OWN = (b"manifest", b"row_checksum")
"""Keys of a packstore store, which is none of others."""
_LOOKED_AT = 4


class Database:
    """A foreign LMDB.

    Attributes:
        path: As it was named: a directory with ``data.mdb``, or the file itself.
        file: The file.
        entries: How many entries it has.
    """

    def __init__(self, path: Path) -> None:
        """Raises :class:`SourceError` for what is no LMDB, or damaged."""
        self.path = path
        self.file = path / DATA_FILE if path.is_dir() else path
        try:
            descriptor = os.open(self.file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._pages = Pages(descriptor)
            finally:
                os.close(descriptor)
        except PageError as error:
            raise self._damaged(str(error)) from None
        except OSError as error:
            raise SourceError(f"{printable(str(path))} cannot be opened: {error.strerror or error}") from None
        self.entries = self._pages.entries

    def walk(self) -> Iterator[Entry]:
        """Keys in their order and the sizes of values. Raises :class:`SourceError`."""
        for item in self._pages.walk(overflow=False):
            if isinstance(item, str):
                raise self._damaged(item)
            yield item

    def first(self) -> list[tuple[bytes, bytes]]:
        """The first entries."""
        found = []
        for key, _ in islice(self.walk(), _LOOKED_AT):
            found.append((key, self.get(key) or b""))
        return found

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, None where there is none. Raises :class:`ValueError` for a damaged page."""
        try:
            found = self._pages.find(key)
        except PageError as error:
            raise ValueError(f"{printable(str(self.path))} is damaged: {error}") from None
        return None if found is None else found.tobytes()

    def text(self, key: bytes) -> str | None:
        """The value of a key as text; None where there is none, or it is no text."""
        found = self.get(key)
        try:
            return None if found is None else found.decode("utf-8")
        except UnicodeDecodeError:
            return None

    def _damaged(self, what: str) -> SourceError:
        return SourceError(f"{printable(str(self.path))} is no LMDB that can be read, or it is damaged: {what}")


class Found(NamedTuple):
    """A database of a source.

    Attributes:
        split: Its split; ``""`` for none.
        path: Where it lies.
    """

    split: str
    path: Path


class LmdbSource(RowSource):
    """One foreign LMDB, or those in a folder, whose names are splits (``train.lmdb``, ``ilsvrc12_val_lmdb``).

    A reference begins with the number of the database.
    """

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._found = self.find(path)
        if not self._found:
            raise SourceError(f"{printable(str(path))} holds no LMDB")
        self.databases = [Database(each.path) for each in self._found]
        wrong = next((d.path for d in self.databases if not self.is_one(d)), None)
        if wrong is not None:
            raise SourceError(f"{printable(str(wrong))} is no LMDB of {self.kind}")
        self.evidence = f"keys such as {printable(repr(next(self.databases[0].walk()).key)[1:])}"
        self.max_bytes = max_file_bytes(options.max_pixels)

    @classmethod
    @abstractmethod
    def is_one(cls, database: Database) -> bool:
        """Whether the first entries are those of this kind. Raises :class:`SourceError` where it is sure that they are,
        and cannot be read."""

    @classmethod
    def find(cls, path: Path) -> list[Found]:
        """The LMDBs at a path, in packing order."""
        if is_lmdb(path):
            return [Found("", path)]
        found = [Found(_split_of(each), each) for each in lmdbs_in(path)]
        if len(found) > 1 and len({each.split for each in found} - {""}) != len(found):
            names = ", ".join(printable(each.path.name) for each in found)
            raise AmbiguousSourceError(
                f"{printable(str(path))} holds several LMDBs ({names}), whose names are not one split each: give one",
                [Answer(source=each.path) for each in found],
            )
        order = in_packing_order(each.split for each in found)
        return sorted(found, key=lambda each: order.index(each.split))

    @classmethod
    def recognise(cls, path: Path, options: SourceOptions) -> Certainty:
        """For :class:`Kind`."""
        try:
            places = [path] if is_lmdb(path) else lmdbs_in(path)
        except PermissionError:
            return Certainty.NO  # the general kinds say which folder cannot be listed
        try:
            for place in places:
                database = Database(place)
                if any(database.get(key) is not None for key in _OWN) or not cls.is_one(database):
                    return Certainty.NO
        except (SourceError, ValueError) as error:
            if isinstance(error, AmbiguousSourceError | RefusedLmdbError):
                raise
            return Certainty.NO  # a store, or what opening it as one says
        if not places:
            return Certainty.NO
        cls.find(path)
        return Certainty.CERTAIN

    def splits(self) -> Sequence[str]:
        return list(dict.fromkeys(each.split for each in self._found))

    def numbered(self, split: str) -> list[tuple[int, Database]]:
        """The databases of a split, with their numbers."""
        return [(n, self.databases[n]) for n, each in enumerate(self._found) if each.split == split]

    def file(self, database: int, key: bytes) -> bytes:
        """A value that is an image file. Raises :class:`ValueError`."""
        data = self.databases[database].get(key)
        if data is None:
            raise ValueError(f"{printable(repr(key)[1:])} is not in the LMDB")
        return self.limited(data)

    def limited(self, data: bytes) -> bytes:
        """``data``, unless it is too large for an image within ``max_pixels``. Raises :class:`ValueError`."""
        if len(data) > self.max_bytes:
            raise ValueError(f"has {len(data)} bytes, more than the {self.max_bytes} of an image within max_pixels")
        return data

    def files(self) -> list[Path]:
        return [each.file for each in self.databases]


class RefusedLmdbError(SourceError):
    """An LMDB that is surely of a kind, which cannot be read."""


def is_lmdb(path: Path) -> bool:
    """Whether an LMDB lies at a path: a directory with ``data.mdb``, or the file itself."""
    file = path / DATA_FILE if path.is_dir() else path
    return first_bytes(file, _MAGIC_AT + len(_MAGIC))[_MAGIC_AT:] == _MAGIC


def lmdbs_in(path: Path) -> list[Path]:
    """The LMDBs in a folder that holds nothing else but other files; none where there are images or other folders."""
    if not path.is_dir():
        return []
    found = []
    with os.scandir(path) as entries:
        for entry in entries:
            name = entry.name.lower()
            if name.startswith(".") or is_ignored(path / entry.name):
                continue
            if name.endswith(IMAGE_SUFFIXES):
                return []
            if (is_directory(entry) or name.endswith((".lmdb", ".mdb", "_lmdb"))) and is_lmdb(path / entry.name):
                found.append(path / entry.name)
            elif is_directory(entry):
                return []
    return sorted(found)


def _split_of(path: Path) -> str:
    name = path.name.lower().removesuffix(".lmdb").removesuffix("_lmdb").removesuffix(".mdb")
    words = name.replace("-", "_").replace(".", "_").split("_")
    return next((word for word in words if word in SPLIT_ORDER), "")


def key_text(key: bytes) -> str:
    """A key of LMDB as the key of a sample."""
    return key.decode("utf-8", "surrogateescape")
