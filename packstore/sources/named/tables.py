"""Text files whose lines say something of an image each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NoReturn

import numpy as np
import xxhash
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable

_SHOWN = 80


class Table:
    """The lines of a text file, in fields. In memory are the text and, once a line is looked up, 16 bytes a line."""

    def __init__(self, name: str, data: bytes, separator: str | None = None, skip: int = 0) -> None:
        """
        Args:
            name: Of the file, for messages.
            data: Its content.
            separator: What parts the fields of a line; None for any white space.
            skip: Number of lines at its beginning that are passed over.
        """
        self.name = name
        self._data = data
        self._separator = separator
        self._skip = skip

    def __iter__(self) -> Iterator[list[str]]:
        """The fields of each line that is not empty."""
        for start in self._starts():
            if fields := self._fields(start):
                yield fields

    def get(self, key: str) -> list[str] | None:
        """The first line whose first field is ``key``; None where there is none."""
        return next(self.all(key), None)

    def all(self, key: str) -> Iterator[list[str]]:
        """All lines whose first field is ``key``."""
        hashes, starts = self._index
        first, last = np.searchsorted(hashes, np.uint64(_hash(key)), "left"), len(hashes)
        wanted = _hash(key)
        while first < last and int(hashes[first]) == wanted:
            fields = self._fields(int(starts[first]))
            if fields[:1] == [key]:
                yield fields
            first += 1

    def whole(self, text: str, what: str, line: Sequence[str]) -> int:
        """The number that a field holds. Raises :class:`SourceError`."""
        try:
            return int(text)
        except ValueError:
            self.refuse(line, what)

    def refuse(self, line: Sequence[str], expected: str) -> NoReturn:
        """Raises :class:`SourceError` for a line."""
        shown = printable(" ".join(line)[:_SHOWN])
        raise SourceError(f"{self.name} has the line {shown!r}; expected {printable(expected)}")

    @cached_property
    def _index(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        starts = np.fromiter(self._starts(), np.int64)
        keys = (self._fields(start)[:1] for start in starts.tolist())
        hashes = np.fromiter((_hash(key[0]) if key else 0 for key in keys), np.uint64, len(starts))
        order = np.argsort(hashes, kind="stable")
        return hashes[order], starts[order]

    def _starts(self) -> Iterator[int]:
        """Where each line begins."""
        start = 0
        for _ in range(self._skip):
            start = self._data.find(b"\n", start) + 1
            if not start:
                return
        while start < len(self._data):
            yield start
            end = self._data.find(b"\n", start)
            if end < 0:
                return
            start = end + 1

    def _fields(self, start: int) -> list[str]:
        end = self._data.find(b"\n", start)
        line = self._data[start : end if end >= 0 else None].decode("utf-8", "surrogateescape").rstrip("\r")
        if not line.strip():
            return []
        fields = [field.strip() for field in line.split(self._separator)]
        if "\0" in line or (".." in line and any(".." in field.split("/") for field in fields)):
            self.refuse(fields, "no path out of the source")
        return fields


def _hash(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogateescape"))
