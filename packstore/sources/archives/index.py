"""Index of an archive: some 40 bytes a file, and its name."""

from __future__ import annotations

import bisect
import os
import posixpath
import re
from array import array
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.sources.folder_names import NameCache

NOWHERE = -1
"""Offset of a file without data: a link out of the archive or to nothing, or no plain file."""
_SHOWN = 100
_LISTED = 1 << 14
_READ_STEP = 1 << 30
_ODD_NAMES = re.compile(rb"[\0/]\.{0,2}[\0/]")
"""Finds empty parts, ``.`` and ``..`` in names between zero bytes."""


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
        parts: list[bytes] = []
        while size > 0:
            part = os.pread(self.descriptor, min(size, _READ_STEP), place)
            if not part:
                break
            if len(part) == size and not parts:
                return part
            parts.append(part)
            size, place = size - len(part), place + len(part)
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
    """Builds the index of an archive from its members, added in their order. Refuses paths that lead out of the
    archive, and two spellings of one path.

    Attributes:
        replaces: A file replaces an earlier one of the same name, as in a tar. If False, a repeated name is an error.
    """

    replaces: bool = True
    _files: dict[bytes, int | str] = field(default_factory=dict)
    """Number of a member, or target of a symbolic link, by name."""
    replaced: int = 0
    """Number of files that a later one of the same name has replaced."""
    _numbers: array[int] = field(default_factory=lambda: array("q"))
    _dotted: dict[str, bool] = field(default_factory=dict)
    _spelled: dict[bytes, str] = field(default_factory=dict)
    _stated: set[bytes] = field(default_factory=set)
    """Names beyond ASCII that are UTF-8 for sure."""

    def add_file(self, name: str, member: Member, folder: str = "", *, stated: bool = False) -> None:
        """Adds the file ``name`` in ``folder``; ignores an empty name. ``stated``: the name is UTF-8 for sure.

        Raises :class:`SourceError` for a path that leads out of the archive or has two spellings. Without
        :attr:`replaces`, also raises it for a repeated path.
        """
        if plain := self._register_name(name, folder):
            self._files[plain] = self._append_member(member)
            if stated and not plain.isascii() and folder.isascii():
                self._stated.add(plain)

    def has_file(self, name: str) -> bool:
        """Tells if a file has been added."""
        return name.encode() in self._files

    def add_plain_files(self, names: Sequence[bytes], members: NDArray[np.int64], folder: str = "") -> bool:
        """Adds many files in ``folder``; ``members`` has a :class:`Member` in each row.

        Returns False, and adds none of them, if a name is repeated or not in its normal form. The caller then uses
        :meth:`add_file`.
        """
        joined, prefix = b"\0".join((b"", *names, b"")), folder.encode("utf-8", "surrogateescape")
        if self._dotted.setdefault(folder, joined.startswith(b"\0./")):
            dotted, joined = joined, joined.replace(b"\0./", b"\0")
            if len(dotted) - len(joined) != 2 * len(names):
                return False
        if _ODD_NAMES.search(joined):
            return False
        added = [prefix + name for name in joined[1:-1].split(b"\0")]
        if len(set(added)) != len(added) or not self._files.keys().isdisjoint(added):
            return False
        first = len(self._numbers) // len(Member._fields)
        self._files.update(zip(added, range(first, first + len(added)), strict=True))
        self._numbers.frombytes(members.tobytes())
        return True

    def add_hard_link(self, name: str, target: str, folder: str = "") -> None:
        """Adds the name ``name`` for the content that the file ``target`` in ``folder`` has now. A later file of the
        name ``target`` does not change it. If there is no such file, adds a file without data. Ignores an empty name.
        Raises :class:`SourceError` for a name that :meth:`add_file` refuses."""
        plain, to = self._register_name(name, folder), normalise_member_name(folder + target)
        if plain:
            entry = None if to is None else self._files.get(to)
            self._files[plain] = self._append_member(Member(0, NOWHERE, 0)) if entry is None else entry

    def add_symbolic_link(self, name: str, target: str, folder: str = "") -> None:
        """Adds a link to ``target``, relative to the directory of ``name``; :meth:`build` follows it. Ignores an empty
        name. Raises :class:`SourceError` for a name that :meth:`add_file` refuses."""
        if plain := self._register_name(name, folder):
            self._files[plain] = target

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
        fields = len(Member._fields)
        table = np.frombuffer(self._numbers, np.int64).reshape(-1, fields)
        nowhere = np.array([[0, NOWHERE, *[0] * (fields - 2)]], np.int64)
        stored = sorted(self._files)
        names = stored if decode is None else decode(stored, self._stated)
        if names is not stored:
            pairs = sorted(zip(names, stored, strict=True))
            names, stored = [name for name, _ in pairs], [name for _, name in pairs]
        files = self._files
        numbers = (number if type(number := files[name]) is int else self._resolve_number(name) for name in stored)
        rows = np.fromiter(numbers, np.int64, len(names))
        ends = array("q", accumulate(map(len, names), initial=0))
        return ArchiveIndex(b"".join(names), ends, np.concatenate([table, nowhere])[rows], file, zipped, self.replaced)

    def _append_member(self, member: Member) -> int:
        """Appends a member to the table; returns its number."""
        self._numbers.extend(member)
        return len(self._numbers) // len(Member._fields) - 1

    def _register_name(self, name: str, folder: str) -> bytes:
        """Returns the normalised path of a file, ``b""`` if ``name`` has no parts. Adds 1 to :attr:`replaced` if the
        path is known.

        Raises :class:`SourceError` for a path out of the archive, and, without :attr:`replaces`, for a repeated path.
        Also raises it for two spellings of one path, such as ``a//x.jpg`` and ``a/x.jpg``: one of the files would
        vanish.
        """
        spelled = folder + name
        plain = normalise_member_name(spelled)
        if plain is None:
            raise SourceError(f"{printable(spelled[:_SHOWN])} leads out of the archive: such archives are refused")
        # In a tar of a whole folder, all names begin with ./
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

    def _resolve_number(self, name: bytes) -> int:
        """Follows symbolic links from a name to a member; returns the number of the member. Returns -1 if there is no
        such member. Also returns -1 if a link is absolute, leads out of the archive, or leads back to itself."""
        seen = set()
        entry = self._files.get(name)
        while isinstance(entry, str):
            directory = name.rpartition(b"/")[0].decode("utf-8", "surrogateescape")
            to = (
                None
                if entry.startswith("/")
                else normalise_member_name(posixpath.normpath(posixpath.join(directory, entry)))
            )
            if to is None or to in seen:
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
        listed: Cache of :meth:`list_children`, since each kind of source lists the same directories.
        names: Cache of the names in each directory, for the same reason.
    """

    blob: bytes
    ends: array[int]
    table: NDArray[np.int64]
    file: OpenFile | None = None
    zipped: bool = False
    replaced: int = 0
    listed: dict[bytes, list[tuple[bytes, int | None]]] = field(default_factory=dict)
    names: NameCache = field(default_factory=NameCache)

    def __len__(self) -> int:
        return len(self.table)

    def get_name(self, number: int) -> bytes:
        """Returns the path of file ``number`` in the archive."""
        return self.blob[self.ends[number] : self.ends[number + 1]]

    def get_member(self, number: int) -> Member:
        """Returns the description of file ``number``."""
        return Member._make(self.table[number].tolist())

    def find_number(self, name: bytes) -> int | None:
        """Finds the number of the file with the path ``name``; returns None if there is none."""
        number = self._bisect(name)
        return number if number < len(self) and self.get_name(number) == name else None

    def list_children(self, directory: bytes) -> Iterator[tuple[bytes, int | None]]:
        """Yields the names in a directory (``b""``: the top), sorted. Each name comes with the number of the file, or
        None for a directory.

        Caches the names if at most 16,384 files are below the directory. A cache with more names than that is emptied
        first.
        """
        known = self.listed.get(directory)
        if known is not None:
            return iter(known)
        prefix = directory + b"/" if directory else b""
        first = self._bisect(prefix)
        stop = self._bisect(directory + b"0") if directory else len(self)  # the byte after the slash
        pairs = self._walk_children(prefix, first, stop)
        if stop - first > _LISTED:
            return pairs
        children = list(pairs)
        if sum(map(len, self.listed.values())) + len(children) > _LISTED:
            self.listed.clear()
        self.listed[directory] = children
        return iter(children)

    def _walk_children(self, prefix: bytes, number: int, stop: int) -> Iterator[tuple[bytes, int | None]]:
        """Yields the children of ``prefix`` among the files ``number`` to ``stop``. Each has its name, and the number
        of the file, or None for a directory. Skips the files in each directory by bisection."""
        last = None
        while number < stop:
            first, slash, _ = self.get_name(number)[len(prefix) :].partition(b"/")
            if not slash:
                yield first, number
                number += 1
                continue
            if first != last:
                yield first, None
                last = first
            number = self._bisect(prefix + first + b"0")

    def _bisect(self, name: bytes) -> int:
        """Returns the number of the first file whose name is not less than ``name``."""
        key: Callable[[int], bytes] = self.get_name
        return bisect.bisect_left(range(len(self)), name, key=key)


def normalise_member_name(name: str) -> bytes | None:
    """Removes empty parts and ``.`` from the path of a member. Returns None for a path with ``..`` or a null character:
    it may lead out of the archive."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return None if ".." in parts or "\0" in name else "/".join(parts).encode("utf-8", "surrogateescape")
