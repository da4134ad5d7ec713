"""Tables in text files: a line for each image, with fields divided by white space, commas or the like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NoReturn

import numpy as np
import xxhash
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable

_SHOWN = 80


class TextTable:
    """Lines of a text file, in fields; finds lines by their first field. Skips blank lines.

    Reading a line raises :class:`SourceError` for a null character, and for a path out of the source. Memory holds the
    text and, after the first look-up, 16 bytes a line.
    """

    def __init__(self, name: str, data: bytes, separator: str | None = None, skip: int = 0) -> None:
        """Keeps the content of a file; parses nothing yet.

        Args:
            name: Name of the file, for messages.
            data: Its content.
            separator: Divides the fields of a line; None for any white space.
            skip: Number of lines to skip at the beginning.
        """
        self.name = name
        self._data = data
        self._separator = separator
        self._skip = skip

    def __iter__(self) -> Iterator[list[str]]:
        """Yields the fields of each line that is not blank."""
        for start in self._walk_line_starts():
            if fields := self._split_line(start):
                yield fields

    def find_lines(self, key: str) -> Iterator[list[str]]:
        """Yields the fields of all lines whose first field is ``key``. The first call reads all lines to index them.

        Raises :class:`SourceError` for a line with a null character or a path out of the source.
        """
        hashes, starts = self._line_index
        wanted = _hash_key(key)
        first, last = np.searchsorted(hashes, np.uint64(wanted), "left"), len(hashes)
        while first < last and int(hashes[first]) == wanted:
            fields = self._split_line(int(starts[first]))
            if fields[:1] == [key]:
                yield fields
            first += 1

    def parse_int(self, text: str, expected: str, line: Sequence[str]) -> int:
        """Parses a field as a whole number. Raises :class:`SourceError` with the line and the ``expected`` format."""
        try:
            return int(text)
        except ValueError:
            self.refuse_line(line, expected)

    def refuse_line(self, line: Sequence[str], expected: str) -> NoReturn:
        """Raises :class:`SourceError` with the first 80 characters of the line, and the ``expected`` format."""
        shown = printable(" ".join(line)[:_SHOWN])
        raise SourceError(f"{self.name} has the line {shown!r}; expected {printable(expected)}")

    @cached_property
    def _line_index(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Hashes of the first fields, sorted, and the offsets of their lines. Reads all lines."""
        starts = np.fromiter(self._walk_line_starts(), np.int64)
        keys = (self._split_line(start)[:1] for start in starts.tolist())
        hashes = np.fromiter((_hash_key(key[0]) if key else 0 for key in keys), np.uint64, len(starts))
        order = np.argsort(hashes, kind="stable")
        return hashes[order], starts[order]

    def _walk_line_starts(self) -> Iterator[int]:
        """Yields the offset of each line, also of blank ones, after the ``skip`` lines at the beginning."""
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

    def _split_line(self, start: int) -> list[str]:
        """Splits the line at an offset into fields without white space around them. Returns ``[]`` for a blank line.

        Raises :class:`SourceError` for a null character, and for a path out of the source.
        """
        end = self._data.find(b"\n", start)
        line = self._data[start : end if end >= 0 else None].decode("utf-8", "surrogateescape").rstrip("\r")
        if not line.strip():
            return []
        fields = line.split()
        if self._separator is not None:
            fields = [field.strip() for field in line.split(self._separator)]
        if "\0" in line or (".." in line and any(".." in field.split("/") for field in fields)):
            self.refuse_line(fields, "paths within the source")
        return fields


def _hash_key(key: str) -> int:
    """Hashes a field to 64 bits."""
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogateescape"))
