"""Index of an archive: some 40 bytes a file, and its name."""

from __future__ import annotations

import bisect
import os
import posixpath
import re
from array import array
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate, compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.sources.folder_names import NameCache

# Offset of a file without data: a link out of the archive or to nothing, or no plain file.
NOWHERE = -1
_SHOWN = 100
_READ_STEP = 1 << 30
# Finds empty parts, ``.`` and ``..`` in names between zero bytes.
_ODD_NAMES = re.compile(rb"[\0/]\.{0,2}[\0/]")


class OpenFile:
    """Open file descriptor. Dropping the last reference to the object closes it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self.descriptor).st_size

    def read(self, size: int, place: int) -> bytes:
        """Reads ``size`` bytes from offset ``place`` on; returns fewer at the end of the file. Thread-safe."""
        parts = [os.pread(self.descriptor, min(size, _READ_STEP), place)]
        while parts[-1] and (size := size - len(parts[-1])):
            place += len(parts[-1])
            parts.append(os.pread(self.descriptor, min(size, _READ_STEP), place))
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Member(NamedTuple):
    """File in an archive.

    Attributes:
        size: Bytes of its content.
        place: Offset of its data in a tar, of its header in a zip. :data:`NOWHERE` for a file without data.
        stored: Size of the data in the archive, in bytes.
        method: Compression method, as numbered in zip; 0 if it is not compressed.
        check: CRC-32 of its content; 0 if the archive has none.
        modified_ns: Time of modification; 0 if unknown.
    """

    size: int
    place: int
    stored: int
    method: int = 0
    check: int = 0
    modified_ns: int = 0


@dataclass(slots=True)
class IndexBuilder:
    """Builds the index of an archive from its members, added in their order. A file replaces an earlier one of the same
    path, as unpacking does. Refuses paths that lead out of the archive."""

    # Number of a member, or target of a symbolic link, by path.
    _files: dict[bytes, int | str] = field(default_factory=dict)
    replaced: int = 0
    """Number of files that a later one of the same path has replaced."""
    _numbers: array[int] = field(default_factory=lambda: array("q"))
    # Paths beyond ASCII that are UTF-8 for sure.
    _stated: set[bytes] = field(default_factory=set)

    def add_file(self, name: str, member: Member, *, stated: bool = False) -> None:
        """Adds a file; ignores an empty name. ``stated``: the name is UTF-8 for sure. Raises :class:`SourceError` for a
        path that leads out of the archive."""
        self._add(name, self._append_member(member))
        if stated and not name.isascii():
            self._stated.add(_normalise_path(name) or b"")

    def has_file(self, name: str) -> bool:
        """Tells if a file has been added."""
        return name.encode() in self._files

    def add_run(
        self, names: Sequence[bytes], facts: NDArray[np.int64], folder: str = "", except_for: bytes | None = None
    ) -> bool:
        """Adds many members of :func:`packstore.images.engine.scan_tar` in ``folder``; leaves out directories.

        Returns False, and adds none of them, if a name is repeated, not in its normal form, or ends with
        ``except_for``. The caller then uses :meth:`add_file`.
        """
        is_file = facts[:, 1] >= 0
        names, facts = [*compress(names, is_file.tolist())], facts[is_file]
        if not names:
            return True
        joined, prefix = b"\0".join((b"", *names, b"")), folder.encode("utf-8", "surrogateescape")
        joined = joined.replace(b"\0./", b"\0")  # as in a tar of a whole folder
        if _ODD_NAMES.search(joined) or (except_for is not None and except_for + b"\0" in joined):
            return False
        added = [prefix + name for name in joined[1:-1].split(b"\0")]
        if len(set(added)) != len(added) or not self._files.keys().isdisjoint(added):
            return False
        first = len(self._numbers) // len(Member._fields)
        self._files.update(zip(added, range(first, first + len(added)), strict=True))
        places, sizes, times = facts.T
        none = np.zeros_like(sizes)
        members = np.stack(Member(sizes, places, sizes, none, none, times * 10**9), 1)
        self._numbers.frombytes(members.tobytes())
        return True

    def add_link(self, name: str, target: str, *, hard: bool) -> None:
        """Adds a link. Raises as :meth:`add_file`.

        - A hard link has the content that the file ``target`` has now. A later file of the name ``target`` does not
          change it. If there is no such file, adds a file without data.
        - Another is relative to the directory of ``name``; :meth:`build` follows it.
        """
        entry = self._files.get(_normalise_path(target) or b"") if hard else target
        self._add(name, self._append_member(Member(0, NOWHERE, 0)) if entry is None else entry)

    def build(
        self,
        file: OpenFile | None = None,
        *,
        zipped: bool = False,
        decode: Callable[[list[bytes], Set[bytes]], list[bytes]] | None = None,
    ) -> ArchiveIndex:
        """Builds the index, sorted by name. Links become the files they lead to; a link to no file, or in a circle,
        becomes a file without data.

        Args:
            file: File with the data, if the archive itself does not have them.
            zipped: Each file has a header before its data.
            decode: Converts all names to UTF-8; the second argument has those that are UTF-8 for sure. None leaves
                them as they are.
        """
        self._numbers.extend(Member(0, NOWHERE, 0))  # the last, -1, is that of links to nothing
        table = np.frombuffer(self._numbers, np.int64).reshape(-1, len(Member._fields))
        stored = sorted(self._files)
        names = stored if decode is None else decode(stored, self._stated)
        if names is not stored:
            pairs = sorted(zip(names, stored, strict=True))
            names, stored = [name for name, _ in pairs], [name for _, name in pairs]
        rows = np.fromiter(map(self._resolve_number, stored), np.int64, len(names))
        ends = array("q", accumulate(map(len, names), initial=0))
        return ArchiveIndex(b"".join(names), ends, table[rows], file, zipped, self.replaced)

    def _append_member(self, member: Member) -> int:
        """Appends a member to the table; returns its number."""
        self._numbers.extend(member)
        return len(self._numbers) // len(Member._fields) - 1

    def _add(self, name: str, entry: int | str) -> None:
        """Adds an entry by its normalised path; ignores an empty path."""
        path = _normalise_path(name)
        if path is None:
            raise SourceError(f"{printable(name[:_SHOWN])} leads out of the archive: such archives are refused")
        self.replaced += path in self._files
        if path:
            self._files[path] = entry

    def _resolve_number(self, name: bytes) -> int:
        """Follows symbolic links from a name to a member, and returns its number; -1 if there is none."""
        seen = set()
        entry = self._files.get(name)
        while isinstance(entry, str):
            directory = name.rpartition(b"/")[0].decode("utf-8", "surrogateescape")
            to = _normalise_path(posixpath.normpath(posixpath.join(directory, entry)))
            # The link is absolute, leads out of the archive, or leads back to itself.
            if entry.startswith("/") or to is None or to in seen:
                return -1
            seen.add(to)
            name, entry = to, self._files.get(to)
        return -1 if entry is None else entry


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ArchiveIndex:
    """Sorted index of the files in an archive.

    Attributes:
        blob: All names, one after the other, sorted by their bytes.
        ends: N + 1 offsets of the names in ``blob``.
        table: int64 ``(N, 6)``: a :class:`Member` a row.
        file: File with the data, if the archive itself does not have them.
        zipped: Each file has a header before its data, as in a zip.
        replaced: Number of files that a later one of the same name has replaced.
        names: Cache of the names in each directory, since each kind of source lists the same directories.
    """

    blob: bytes
    ends: array[int]
    table: NDArray[np.int64]
    file: OpenFile | None = None
    zipped: bool = False
    replaced: int = 0
    names: NameCache = field(default_factory=NameCache)

    def __len__(self) -> int:
        return len(self.table)

    def get_name(self, number: int) -> bytes:
        """Returns the path of file ``number`` in the archive."""
        return self.blob[self.ends[number] : self.ends[number + 1]]

    def find_member(self, name: str) -> Member | None:
        """Finds the file with the path ``name``; returns None if there is none."""
        raw = name.encode("utf-8", "surrogateescape")
        number = self._bisect(raw)
        is_there = number < len(self) and self.get_name(number) == raw
        return Member._make(self.table[number].tolist()) if is_there else None

    def list_children(self, directory: str) -> Iterator[tuple[str, int | None]]:
        """Yields the names in a directory (``""``: the top), sorted by their bytes. Each name comes with the number of
        the file, or None for a directory. Skips the files in each directory by bisection."""
        place = directory.encode("utf-8", "surrogateescape")
        prefix = place + b"/" if place else b""
        number = self._bisect(prefix)
        stop = self._bisect(place + b"0") if place else len(self)  # the byte after the slash
        last = None
        while number < stop:
            first, slash, _ = self.get_name(number)[len(prefix) :].partition(b"/")
            if not slash or first != last:
                yield first.decode("utf-8", "surrogateescape"), None if slash else number
            last = first if slash else last
            number = self._bisect(prefix + first + b"0") if slash else number + 1

    def _bisect(self, name: bytes) -> int:
        """Returns the number of the first file whose name is not less than ``name``."""
        key: Callable[[int], bytes] = self.get_name
        return bisect.bisect_left(range(len(self)), name, key=key)


def _normalise_path(name: str) -> bytes | None:
    """Removes empty parts and ``.`` from the path of a member; None if it may lead out of the archive."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return None if ".." in parts or "\0" in name else "/".join(parts).encode("utf-8", "surrogateescape")
