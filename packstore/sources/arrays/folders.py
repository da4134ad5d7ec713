"""Sources whose arrays are folders of chunk files: what Zarr and N5 have in common."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import xxhash

from packstore.core.errors import SourceError, printable
from packstore.sources.arrays.classes import ATTRIBUTES
from packstore.sources.arrays.source import ArraySource
from packstore.sources.arrays.stored import ArrayInfo
from packstore.sources.base import stamp_files
from packstore.sources.ignoring import visible_paths
from packstore.sources.ledger import Claims, Role

_MAX_JSON, _MAX_FOLDERS, _MAX_DEPTH = 1 << 24, 1000, 8
_GROUP_FILES = ("zarr.json", ".zgroup", ".zattrs", ".zmetadata", "attributes.json")
_METADATA = ("zarr.json", ".zarray", ".zattrs", "attributes.json")
_CHUNK = re.compile(r"c|(c[./])?[0-9]+([./][0-9]+)*")
_NUMBER = re.compile("0|[1-9][0-9]{0,15}")
_MAX_RATIO = 1100
_UNWRITTEN = 1 << 28
"""Bytes that need not have been written, because all of them are the fill value."""


class ChunkFolderSource(ArraySource):
    """One folder whose arrays are folders in it, at any depth."""

    suffixes = ()
    grouped = True

    @classmethod
    def find(cls, path: Path) -> list[Path]:
        return [path]

    def files(self) -> Iterator[Path]:  # type: ignore[override]
        """Yields the metadata and chunk files of the arrays that are read."""
        names = {chosen.info.name for part in self._choice.parts for chosen in part.columns.values()}
        return (file for name in sorted(names) for file in _array_files(self.path / name))

    def claim_files(self, claims: Claims) -> None:
        super().claim_files(claims)
        self.claim_paths(claims, self._group_files(), Role.EVIDENCE)

    def _group_files(self) -> list[Path]:
        """The metadata of the groups in which the arrays lie that are read."""
        names = {chosen.info.name for part in self._choice.parts for chosen in part.columns.values()}
        groups = {parent for name in names if name for parent in (self.path / name).parents}
        inside = sorted(group for group in groups if group.is_relative_to(self.path))
        return [file for group in inside for name in _GROUP_FILES if (file := group / name).is_file()]

    def stamp(self) -> str:
        """Returns a digest, since there may be any number of files."""
        digest = xxhash.xxh3_128()
        for file in chain(self.files(), self._group_files()):
            digest.update(f"{file}\0{stamp_files([file])}\0".encode("utf-8", "surrogateescape"))
        return f"files {digest.hexdigest()}"


def metadata(path: Path) -> dict[str, Any] | None:
    """A JSON object in a file; None where there is no file. Raises :class:`SourceError`."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_JSON)
        found = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{printable(str(path))} is damaged: {printable(str(error))[:200]}") from None
    if not isinstance(found, dict):
        raise SourceError(f"{printable(str(path))} is damaged: it holds no object")
    return found


def array_folders(
    root: Path,
    read: Callable[[Path], dict[str, Any] | None],
    is_array: Callable[[dict[str, Any]], bool],
    *,
    groups: bool,
) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """The arrays from ``root`` on: name, folder and metadata.

    Args:
        root: An array, or a group.
        read: The metadata of a folder; None where it has none.
        is_array: Whether metadata are those of an array.
        groups: A folder without metadata is a group.
    """
    waiting, count = [("", root, 0)], 0
    while waiting:
        name, folder, depth = waiting.pop(0)
        found = read(folder)
        count += 1
        if count > _MAX_FOLDERS:
            raise SourceError(f"{printable(str(root))} holds more than {_MAX_FOLDERS:,} arrays and groups")
        if found is not None and is_array(found):
            yield name, folder, found
        elif (found is not None or groups) and depth < _MAX_DEPTH:
            inside = sorted(each.name for each in visible_paths(folder) if each.is_dir() and each.name[0] != ".")
            waiting += [(f"{name}/{each}" if name else each, folder / each, depth + 1) for each in inside]


def refuse_unwritten(shown: str, info: ArrayInfo, folder: Path) -> None:
    """Raises :class:`SourceError` for an array that claims more than its files can hold."""
    nbytes, stored = info.dtype.itemsize, _UNWRITTEN
    for size in info.shape:
        nbytes *= size
    for file in _files_in(folder):
        if stored >= nbytes:
            break
        stored += file.stat().st_size * _MAX_RATIO
    if stored < nbytes:
        raise SourceError(f"{shown}: {info.shown} should have {nbytes:,} bytes, which were not written")


def named_attributes(found: Mapping[str, Any] | None) -> dict[str, Any]:
    """Those of a folder's metadata that may name classes."""
    return {name: found[name] for name in ATTRIBUTES if name in found} if found else {}


def chunk_places(folder: Path, axes: int) -> Iterator[tuple[int, ...]]:
    """The chunks of an array of files, by their places in the grid: of names as ``c/0/1``, ``0.1`` and ``0/1``."""
    for file in _files_in(folder):
        parts = re.split("[./]", file.relative_to(folder).as_posix().removeprefix("c/").removeprefix("c."))
        if len(parts) == axes and all(_NUMBER.fullmatch(part) for part in parts):
            yield tuple(map(int, parts))


def sizes(value: Any, least: int) -> tuple[int, ...] | None:
    """A list of whole numbers from ``least`` on as a shape; None for anything else."""
    fits = isinstance(value, list) and len(value) <= 16 and all(type(n) is int and least <= n < 1 << 48 for n in value)
    return tuple(value) if fits else None


def _array_files(folder: Path) -> Iterator[Path]:
    for file in _files_in(folder):
        if file.name in _METADATA or _CHUNK.fullmatch(file.relative_to(folder).as_posix()):
            yield file


def _files_in(folder: Path) -> Iterator[Path]:
    for directory, inside, names in os.walk(folder):
        inside.sort()
        for name in sorted(names):
            yield Path(directory, name)
