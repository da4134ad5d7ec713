"""What an archive holds, in some 40 bytes a file and its name."""

from __future__ import annotations

import bisect
import os
import posixpath
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.sources.folder_names import NameCache

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
    """Collects the members of an archive in their order, as unpacking it does.

    Attributes:
        replaces: A file replaces an earlier one of its name, as in a tar; else a name that comes twice is an error.
    """

    replaces: bool = True
    _files: dict[bytes, int | str] = field(default_factory=dict)
    """By name: the number of a member, or what a symbolic link says."""
    replaced: int = 0
    """Number of files that a later one of the same name has replaced."""
    _numbers: array[int] = field(default_factory=lambda: array("q"))
    _dotted: dict[str, bool] = field(default_factory=dict)
    _spelled: dict[bytes, str] = field(default_factory=dict)

    def add(self, name: str, member: Member, folder: str = "") -> None:
        """Adds the file ``name`` of ``folder``; see :meth:`_place`."""
        if plain := self._place(name, folder):
            self._files[plain] = self._append(member)

    def hard_link(self, name: str, target: str, folder: str = "") -> None:
        """Adds a second name of what the file ``target`` of ``folder`` is now; replacing that one changes nothing."""
        plain, to = self._place(name, folder), plain_name(folder + target)
        if plain:
            found = None if to is None else self._files.get(to)
            self._files[plain] = self._append(Member(0, NOWHERE, 0)) if found is None else found

    def symbolic_link(self, name: str, target: str, folder: str = "") -> None:
        """Adds a link to what ``target`` is in the end, relative to the directory of ``name``."""
        if plain := self._place(name, folder):
            self._files[plain] = target

    def index(self, file: OpenFile | None = None, *, zipped: bool = False) -> Index:
        """The finished index. ``file`` has the data where that is not the archive itself."""
        fields = len(Member._fields)
        table = np.frombuffer(self._numbers, np.int64).reshape(-1, fields)
        nowhere = np.array([[0, NOWHERE, *[0] * (fields - 2)]], np.int64)
        names = sorted(self._files)
        rows = np.array([self._number(name) for name in names], np.int64)
        ends = np.cumsum([0, *map(len, names)], dtype=np.int64)
        return Index(b"".join(names), ends, np.concatenate([table, nowhere])[rows], file, zipped, self.replaced)

    def _append(self, member: Member) -> int:
        self._numbers.extend(member)
        return len(self._numbers) // len(Member._fields) - 1

    def _place(self, name: str, folder: str) -> bytes:
        """The path of a file in the archive; empty for a name that has none.

        Raises :class:`SourceError` for one that leads out of the archive, and for the path of an earlier file that is
        spelled otherwise, as ``a//x.jpg`` beside ``a/x.jpg``: one of them would vanish."""
        spelled = folder + name
        plain = plain_name(spelled)
        if plain is None:
            raise SourceError(f"{printable(spelled[:_SHOWN])} leads out of the archive: it is not what it seems")
        # Tars of a whole folder spell all names with ./ before them.
        dotted = self._dotted.setdefault(folder, name.startswith("./"))
        text = plain.decode("utf-8", "surrogateescape")
        usual = f"{folder}./{text[len(folder) :]}" if dotted else text
        if plain in self._files:
            before = self._spelled.get(plain, usual)
            if before != spelled:
                raise SourceError(
                    f"{printable(before[:_SHOWN])} and {printable(spelled[:_SHOWN])} are one path, so that one of them "
                    "would replace the other: rename one, or unpack the archive and give the folder"
                )
            if not self.replaces:
                raise SourceError(f"{printable(spelled[:_SHOWN])} is there twice: unpack it, and give the folder")
            self.replaced += 1
        elif spelled != usual:
            self._spelled[plain] = spelled
        return plain

    def _number(self, name: bytes) -> int:
        """The number of the member that a name leads to; -1 for none."""
        seen = set()
        found = self._files.get(name)
        while isinstance(found, str):
            directory = name.rpartition(b"/")[0].decode("utf-8", "surrogateescape")
            to = None if found.startswith("/") else plain_name(posixpath.normpath(posixpath.join(directory, found)))
            if to is None or to in seen:
                return -1
            seen.add(to)
            name, found = to, self._files.get(to)
        return -1 if found is None else found


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Index:
    """The files of an archive, sorted by the bytes of their names.

    Attributes:
        blob: All names.
        ends: int64 ``(N + 1,)``: where each begins in it.
        table: int64 ``(N, 6)``: a :class:`Member` each.
        file: The data, where they are not in the archive itself.
        zipped: Each file has a header of its own before its data, as in a zip.
        replaced: Number of files that a later one of the same name has replaced.
        listed: What :meth:`children` found in the last directories: each kind of source asks for the same ones.
        names: The names in each directory that was listed, for the same reason.
    """

    blob: bytes
    ends: NDArray[np.int64]
    table: NDArray[np.int64]
    file: OpenFile | None = None
    zipped: bool = False
    replaced: int = 0
    listed: dict[bytes, list[tuple[bytes, int | None]]] = field(default_factory=dict)
    names: NameCache = field(default_factory=NameCache)

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
