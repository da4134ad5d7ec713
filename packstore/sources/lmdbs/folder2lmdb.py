"""LMDBs of folder2lmdb (https://github.com/Lyken17/Efficient-PyTorch, ``tools/folder2lmdb.py``).

The keys ``0``, ``1`` … have pickles of ``(file, label)``; ``__len__`` has their number. Pickles are read by
:mod:`packstore.core.pickle_machine`, and never run.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Image, Label
from packstore.core.pickle_machine import PickleError, UnsupportedPickleError, interpret_pickle
from packstore.sources.base import Kind
from packstore.sources.dataset import index_key
from packstore.sources.lmdbs.base import Database, LmdbSource, RefusedLmdbError
from packstore.sources.rows import Row

_LENGTH, _KEYS = b"__len__", b"__keys__"
_MAX_OPERATIONS = 1000
_MISSING = -1


class Folder2LmdbSource(LmdbSource):
    """Source of folder2lmdb's LMDBs; samples are in the order of their numbers. A missing number is a bad sample.
    Listing raises :class:`SourceError` for other keys and a wrong ``__len__``."""

    kind = "folder2lmdb"

    @classmethod
    def is_of_kind(cls, database: Database) -> bool:
        """Tells if the keys ``__len__`` and ``__keys__`` exist. Raises :class:`RefusedLmdbError` if ``__len__`` does
        not begin like a pickle: pyarrow wrote it."""
        length = database.read_value(_LENGTH)
        if length is None or database.read_value(_KEYS) is None:
            return False
        if length[:1] != b"\x80":
            raise RefusedLmdbError(
                f"{printable(str(database.path))} was written by folder2lmdb with pyarrow.serialize, which newer "
                "pyarrow lacks: pack the folder of images instead, or write the LMDB again with pickle"
            )
        return True

    @cached_property
    def _sizes(self) -> list[array[int]]:
        """Sizes of the values by number, for each database; -1 for a missing value. Raises as :func:`_read_sizes`
        does."""
        return [_read_sizes(database) for database in self.databases]

    def fields(self) -> Mapping[str, Field]:
        """Declares image and label, without names of classes."""
        return {"image": Image(), "label": Label()}

    def rows(self, split: str) -> Iterator[Row]:
        """Yields a row for each number, also for a missing one. The row's size is that of the pickle, 0 if it is
        missing. Raises :class:`SourceError` for other keys, or a wrong number of samples."""
        for number, _ in self.list_databases(split):
            for index, size in enumerate(self._sizes[number]):
                yield Row(index_key(split, index), (number, index), max(0, size), 8)

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads image file and label from the pickle, without running it. Raises :class:`ValueError` if it is missing,
        has other content, or is too large for an image within ``max_pixels``."""
        number, index = ref
        data = self.databases[number].read_value(b"%d" % index)
        if data is None:
            raise ValueError(f"number {index} is missing")
        value = load_pickle(self.check_size(data))
        if type(value) not in (tuple, list) or len(value) != 2:
            raise ValueError("its pickle is no pair of a file and a label")
        image, label = value
        if type(image) is not bytes or type(label) is not int:
            raise ValueError(
                f"its pickle holds {type(image).__name__} and {type(label).__name__}, expected bytes and int"
            )
        return {"image": image, "label": label}


def load_pickle(data: bytes) -> Any:
    """Parses a pickle of plain values and bytes; runs nothing from it.

    Raises :class:`ValueError` for a damaged pickle, and one of more than 1,000 operations. Also raises it for a pickle
    that calls any function but ``_codecs.encode``, by which Python 3 writes bytes.
    """
    left = len(data)

    def encode(text: Any, encoding: Any = "latin1") -> bytes:
        """Stands for ``_codecs.encode``, by which Python 3 writes bytes in protocol 2. All results together are no
        longer than the pickle, so that a hostile one cannot fill the memory."""
        nonlocal left
        left -= len(text) if isinstance(text, str) else 0
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1") or left < 0:
            raise UnsupportedPickleError("a pickle that calls _codecs.encode for anything but bytes")
        try:
            return text.encode("latin-1")
        except UnicodeEncodeError:
            raise UnsupportedPickleError("a pickle that encodes characters beyond Latin-1 as bytes") from None

    def find(module: str, name: str) -> Callable[..., Any]:
        if (module, name) == ("_codecs", "encode"):
            return encode
        raise UnsupportedPickleError(
            f"a pickle that asks for {printable(f'{module[:60]}.{name[:60]}')}, which is not run"
        )

    try:
        return interpret_pickle(data, find, _MAX_OPERATIONS)
    except PickleError as error:
        raise ValueError(f"it is {error}") from None


def _read_sizes(database: Database) -> array[int]:
    """Reads the sizes of the values by number; -1 for a missing value. Raises :class:`SourceError` for other keys, and
    if ``__len__`` is not the number of samples."""
    shown = printable(str(database.path))
    try:
        count = load_pickle(database.read_value(_LENGTH) or b"")
    except ValueError as error:
        raise SourceError(f"{shown}: __len__: {error}") from None
    if type(count) is not int or count != database.entries - 2:
        raise SourceError(f"{shown}: __len__ should be {database.entries - 2:,}, the number of samples")
    sizes = array("q", [_MISSING]) * count
    for key, size in database.walk_entries():
        if key in (_LENGTH, _KEYS):
            continue
        number = int(key) if key.isdigit() and len(key) < 19 else -1
        if not 0 <= number < count or key != b"%d" % number:
            raise SourceError(f"{shown}: the key {printable(repr(key)[1:])} is not a number from 0 to {count - 1}")
        sizes[number] = size
    return sizes


KIND = Kind(Folder2LmdbSource.kind, "an LMDB of folder2lmdb", Folder2LmdbSource.recognise, Folder2LmdbSource)
