"""Base of sources whose arrays are folders of chunk files: Zarr and N5."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import xxhash

from packstore.core.errors import SourceError, printable
from packstore.core.files import read_bounded
from packstore.core.plainjson import load_json
from packstore.sources.arrays.classes import ATTRIBUTES
from packstore.sources.arrays.source import ArraySource
from packstore.sources.arrays.stored import ArrayInfo
from packstore.sources.base import stamp_files
from packstore.sources.ignoring import visible_paths
from packstore.sources.ledger import Claims, Role

_MAX_JSON, _MAX_FOLDERS = 1 << 24, 1000
_GROUP_FILES = ("zarr.json", ".zgroup", ".zattrs", ".zmetadata", "attributes.json")
_METADATA = ("zarr.json", ".zarray", ".zattrs", "attributes.json")
_CHUNK = re.compile(r"c|(c[./])?[0-9]+([./][0-9]+)*")
_NUMBER = re.compile("0|[1-9][0-9]{0,15}")
_MAX_RATIO = 1100
_UNWRITTEN = 1 << 28
"""Most bytes of an array that may be missing because all of them are fill values."""


class ChunkFolderSource(ArraySource):
    """Source in one folder, whose arrays are folders in it. Its stamp covers the files of the arrays that are read, and
    the metadata of groups above them. Other files are left out."""

    suffixes = ()
    grouped = True

    @classmethod
    def find_files(cls, path: Path) -> list[Path]:
        """Returns the folder itself, which is opened as one file."""
        return [path]

    def files(self) -> Iterator[Path]:  # type: ignore[override]
        """Yields the metadata and chunk files of the arrays that are read."""
        names = {chosen.info.name for part in self._roles.parts for chosen in part.columns.values()}
        return (file for name in sorted(names) for file in _list_array_files(self.path / name))

    def claim_files(self, claims: Claims) -> None:
        """Claims the files of the arrays that are read. Claims the metadata of the groups above them as evidence."""
        super().claim_files(claims)
        self.claim_paths(claims, self._list_group_files(), Role.EVIDENCE)

    def _list_group_files(self) -> list[Path]:
        """Lists the metadata files of the groups above the arrays that are read."""
        names = {chosen.info.name for part in self._roles.parts for chosen in part.columns.values()}
        groups = {parent for name in names if name for parent in (self.path / name).parents}
        inside = sorted(group for group in groups if group.is_relative_to(self.path))
        return [file for group in inside for name in _GROUP_FILES if (file := group / name).is_file()]

    def stamp(self) -> str:
        """Returns a digest of size and times of all files, which may be too many for a text. Raises
        :class:`SourceError` if a file is missing."""
        digest = xxhash.xxh3_128()
        for file in chain(self.files(), self._list_group_files()):
            digest.update(f"{file}\0{stamp_files([file])}\0".encode("utf-8", "surrogateescape"))
        return f"files {digest.hexdigest()}"


def read_metadata(path: Path) -> dict[str, Any] | None:
    """Reads a JSON object from a file; returns None if there is no file.

    Raises :class:`SourceError` if the file cannot be read, has no JSON object, or has more than 16 MiB.
    """
    if not path.is_file():
        return None
    try:
        metadata = load_json(read_bounded(path, _MAX_JSON), "it is not valid JSON")
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{printable(str(path))} is damaged: {printable(str(error))[:200]}") from None
    if not isinstance(metadata, dict):
        raise SourceError(f"{printable(str(path))} is damaged: it holds no object")
    return metadata


def walk_arrays(
    root: Path,
    read: Callable[[Path], dict[str, Any] | None],
    is_array: Callable[[dict[str, Any]], bool],
    *,
    groups: bool,
) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Yields name, folder and metadata of each array at and below ``root``. Skips hidden and ignored folders.

    Args:
        root: Folder of an array or a group.
        read: Reads the metadata of a folder; returns None if it has none.
        is_array: Tells if metadata are those of an array.
        groups: Folders without metadata may hold arrays, too.

    Raises:
        SourceError: There are more than 1,000 folders.
        OSError: A folder cannot be listed.
    """
    waiting, count = [("", root)], 0
    while waiting:
        name, folder = waiting.pop(0)
        metadata = read(folder)
        count += 1
        if count > _MAX_FOLDERS:
            raise SourceError(f"{printable(str(root))} holds more than {_MAX_FOLDERS:,} arrays and groups")
        if metadata is not None and is_array(metadata):
            yield name, folder, metadata
        elif metadata is not None or groups:
            inside = sorted(each.name for each in visible_paths(folder) if each.is_dir() and each.name[0] != ".")
            waiting += [(f"{name}/{each}" if name else each, folder / each) for each in inside]


def refuse_unwritten(shown: str, info: ArrayInfo, folder: Path) -> None:
    """Raises :class:`SourceError` if the files in ``folder`` cannot hold the array's bytes.

    Compression saves at most a factor of 1,100. Further 256 MiB may be missing: parts that equal the fill value need no
    file.
    """
    nbytes, stored = info.dtype.itemsize, _UNWRITTEN
    for size in info.shape:
        nbytes *= size
    for file in _walk_files(folder):
        if stored >= nbytes:
            break
        stored += file.stat().st_size * _MAX_RATIO
    if stored < nbytes:
        raise SourceError(f"{shown}: {info.shown} should have {nbytes:,} bytes, more than its files can hold")


def pick_class_attributes(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Picks the values of metadata that may name classes; returns ``{}`` for None."""
    return {name: attributes[name] for name in ATTRIBUTES if name in attributes} if attributes else {}


def find_chunks(folder: Path, axes: int) -> Iterator[tuple[int, ...]]:
    """Yields the grid positions of the chunk files in the folder of an array: ``c/0/1``, ``0.1`` or ``0/1``."""
    for file in _walk_files(folder):
        parts = re.split("[./]", file.relative_to(folder).as_posix().removeprefix("c/").removeprefix("c."))
        if len(parts) == axes and all(_NUMBER.fullmatch(part) for part in parts):
            yield tuple(map(int, parts))


def parse_array_shape(value: Any, least: int) -> tuple[int, ...] | None:
    """Converts a list of at most 16 whole numbers, from ``least`` to 2**48, to a shape. Returns None for any other
    value."""
    fits = isinstance(value, list) and len(value) <= 16 and all(type(n) is int and least <= n < 1 << 48 for n in value)
    return tuple(value) if fits else None


def _list_array_files(folder: Path) -> Iterator[Path]:
    """Yields the metadata and chunk files in the folder of an array."""
    for file in _walk_files(folder):
        if file.name in _METADATA or _CHUNK.fullmatch(file.relative_to(folder).as_posix()):
            yield file


def _walk_files(folder: Path) -> Iterator[Path]:
    """Yields all files at and below a folder, sorted in each folder. Does not follow links to folders."""
    for directory, inside, names in os.walk(folder):
        inside.sort()
        for name in sorted(names):
            yield Path(directory, name)
