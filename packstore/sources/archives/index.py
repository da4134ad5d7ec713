"""What an archive holds, in some 40 bytes a file and its name."""

from __future__ import annotations

import bisect
import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable

NOWHERE = -1
"""Stands for where a file lies that is a link out of its archive, or to nothing."""
_SHOWN = 100
_LISTED = 1 << 14
_READ_STEP = 1 << 30


class OpenFile:
    """An open file, closed with its last reference."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)

    def read(self, size: int, place: int) -> bytes:
        """``size`` bytes from ``place`` on, or as many as there are."""
        parts = []
        while size > 0:
            part = os.pread(self.descriptor, min(size, _READ_STEP), place)
            if not part:
                break
            parts.append(part)
            size, place = size - len(part), place + len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Member(NamedTuple):
    """A file of an archive.

    Attributes:
        size: Bytes of its content.
        place: Where its data lie in the archive, in bytes from the beginning; for zip its header; :data:`NOWHERE`.
        stored: Bytes that it takes there.
        method: How it is compressed, as zip numbers it; 0 where it is not.
        check: CRC-32 of its content; 0 where the archive has none.
        modified_ns: Time of modification.
    """

    size: int
    place: int
    stored: int
    method: int = 0
    check: int = 0
    modified_ns: int = 0


@dataclass(slots=True)
class IndexBuilder:
    """Collects the members of an archive in any order."""

    names: list[bytes] = field(default_factory=list)
    numbers: array[int] = field(default_factory=lambda: array("q"))
    links: dict[bytes, bytes] = field(default_factory=dict)

    def add(self, name: str, member: Member) -> None:
        """Adds a file. Names that lead out of the archive keep their files from being read; see :func:`plain_name`."""
        plain = plain_name(name)
        if plain is None:
            raise SourceError(f"{printable(name[:_SHOWN])} leads out of the archive: it is not what it seems")
        if plain:
            self.names.append(plain)
            self.numbers.extend(member)

    def link(self, name: str, target: str) -> None:
        """Adds a link to a file of the archive, by that file's name."""
        plain, to = plain_name(name), plain_name(target)
        if plain:
            self.links[plain] = b"" if to is None else to

    def index(self, file: OpenFile | None = None, *, zipped: bool = False) -> Index:
        """The finished index; a name that comes twice is the later file, as when an archive is unpacked.

        ``file`` has the data where that is not the archive itself."""
        last = {name: number for number, name in enumerate(self.names)}
        fields = len(Member._fields)
        table = np.frombuffer(self.numbers, np.int64).reshape(-1, fields)
        nowhere = np.array([[0, NOWHERE, *[0] * (fields - 2)]], np.int64)
        linked = {name: self._target(name, last) for name in self.links if name not in last}
        names = sorted([*last, *linked])
        rows = [last.get(name, linked.get(name)) for name in names]
        out = np.concatenate([table, nowhere])[np.array([-1 if row is None else row for row in rows], np.int64)]
        ends = np.cumsum([0, *map(len, names)], dtype=np.int64)
        return Index(b"".join(names), ends, out, file, zipped)

    def _target(self, name: bytes, last: dict[bytes, int]) -> int | None:
        seen = set()
        while name in self.links and name not in last:
            if name in seen:
                return None
            seen.add(name)
            name = self.links[name]
        return last.get(name)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Index:
    """The files of an archive, sorted by the bytes of their names.

    Attributes:
        blob: All names.
        ends: int64 ``(N + 1,)``: where each begins in it.
        table: int64 ``(N, 6)``: a :class:`Member` each.
        file: The data, where they are not in the archive itself.
        zipped: Each file has a header of its own before its data, as in a zip.
        listed: What :meth:`children` found in the last directories: each kind of source asks for the same ones.
    """

    blob: bytes
    ends: NDArray[np.int64]
    table: NDArray[np.int64]
    file: OpenFile | None = None
    zipped: bool = False
    listed: dict[bytes, list[tuple[bytes, int | None]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.table)

    def name(self, number: int) -> bytes:
        """The path of a file in the archive."""
        return self.blob[self.ends[number] : self.ends[number + 1]]

    def member(self, number: int) -> Member:
        """What is known of a file."""
        return Member(*self.table[number].tolist())

    def find(self, name: bytes) -> int | None:
        """The number of the file of that name."""
        number = self._first(name)
        return number if number < len(self) and self.name(number) == name else None

    def children(self, directory: bytes) -> Iterator[tuple[bytes, int | None]]:
        """What lies in a directory (``b""``: the top), sorted by name; the number of a file, None for a directory."""
        known = self.listed.get(directory)
        if known is not None:
            return iter(known)
        prefix = directory + b"/" if directory else b""
        first = self._first(prefix)
        stop = self._first(directory + b"0") if directory else len(self)  # the byte after the slash
        found = self._children(prefix, first, stop)
        if stop - first > _LISTED:
            return found
        children = list(found)
        if sum(map(len, self.listed.values())) + len(children) > _LISTED:
            self.listed.clear()
        self.listed[directory] = children
        return iter(children)

    def _children(self, prefix: bytes, number: int, stop: int) -> Iterator[tuple[bytes, int | None]]:
        last = None
        while number < stop:
            first, slash, _ = self.name(number)[len(prefix) :].partition(b"/")
            if not slash:
                yield first, number
                number += 1
                continue
            if first != last:
                yield first, None
                last = first
            number = self._first(prefix + first + b"0")

    def _first(self, name: bytes) -> int:
        key: Callable[[int], bytes] = self.name
        return bisect.bisect_left(range(len(self)), name, key=key)


def plain_name(name: str) -> bytes | None:
    """A member's name without empty parts and ``.``, as bytes; None where it leads out of the archive."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return None if ".." in parts or "\0" in name else "/".join(parts).encode("utf-8", "surrogateescape")
