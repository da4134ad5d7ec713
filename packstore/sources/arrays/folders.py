"""Base of sources whose arrays are folders of chunk files: Zarr and N5."""

from __future__ import annotations

import math
import os
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import xxhash

from packstore.core.errors import SourceError, printable
from packstore.core.files import read_bounded
from packstore.core.plainjson import load_json
from packstore.sources.arrays.classes import ATTRIBUTES
from packstore.sources.arrays.source import ArraySource
from packstore.sources.arrays.stored import ArrayInfo, OpenArrays, Unwritten, count_unwritten, may_be_written
from packstore.sources.base import stamp_files
from packstore.sources.ignoring import visible_paths
from packstore.sources.ledger import Claims, Role

_MAX_JSON, _MAX_FOLDERS = 1 << 24, 1000
MAX_CHUNK_BYTES = 1 << 30
_GROUP_FILES = ("zarr.json", ".zgroup", ".zattrs", ".zmetadata", "attributes.json")
_METADATA = ("zarr.json", ".zarray", ".zattrs", "attributes.json")
_CHUNK = re.compile(r"c|(c[./])?[0-9]+([./][0-9]+)*")
_NUMBER = re.compile("0|[1-9][0-9]{0,15}")


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


class OpenFolder(OpenArrays):
    """Arrays that are folders of chunk files below a folder. Opening reads the metadata of all arrays. It raises
    :class:`SourceError` for damaged metadata, more than 1,000 folders, and if the files cannot hold an array's bytes.

    Attributes:
        title: Name of the format.
        grids: Shape of each array, and of its files (chunks or shards), by name.
    """

    title: ClassVar[str]

    def __init__(self, path: Path) -> None:
        self.path, self.shown = path, printable(str(path))
        self.grids: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.infos: dict[str, ArrayInfo] = {}
        for name, folder, metadata in self._walk_arrays():
            self.infos[name] = info = self.describe_array(name, metadata)
            nbytes = info.dtype.itemsize * math.prod(info.shape)
            if info.content == "numbers" and not may_be_written(nbytes, _list_sizes(folder)):
                raise SourceError(
                    f"{self.shown}: {info.shown} should have {nbytes:,} bytes, more than its files can hold"
                )

    @abstractmethod
    def read_folder_metadata(self, folder: Path) -> dict[str, Any] | None:
        """Reads the metadata of the array or group in a folder; None if there are none. Raises :class:`SourceError` for
        a damaged file."""

    @abstractmethod
    def is_array(self, metadata: dict[str, Any]) -> bool:
        """Tells if metadata are those of an array."""

    @abstractmethod
    def describe_array(self, name: str, metadata: dict[str, Any]) -> ArrayInfo:
        """Describes an array by its metadata, and adds its grid to :attr:`grids`. Raises :class:`SourceError` for
        damaged metadata and too large chunks."""

    def list_arrays(self) -> list[ArrayInfo]:
        """Describes all arrays, as read at opening."""
        return list(self.infos.values())

    def find_unwritten(self, name: str, axis: int) -> Unwritten | None:
        """Finds the chunks or shards without a file; None if all have one. Does not look into shards."""
        shape, grid = self.grids[name]
        return count_unwritten(shape, grid, axis, self.find_chunks(name))

    def find_chunks(self, name: str) -> Iterator[tuple[int, ...]]:
        """Yields the grid positions of the chunk files of an array: ``c/0/1``, ``0.1`` or ``0/1``."""
        folder, axes = self.path / name, len(self.grids[name][0])
        for file in _walk_files(folder):
            parts = re.split("[./]", file.relative_to(folder).as_posix().removeprefix("c/").removeprefix("c."))
            if len(parts) == axes and all(_NUMBER.fullmatch(part) for part in parts):
                yield tuple(map(int, parts))

    def parse_shapes(self, name: str, shape: Any, *grids: Any) -> list[tuple[int, ...]]:
        """Parses the shape of an array, and shapes of its chunks. Raises :class:`SourceError` for anything but lists of
        as many whole numbers."""
        shapes = [_parse_shape(shape, 0), *(_parse_shape(grid, 1) for grid in grids)]
        parsed = [each for each in shapes if each is not None]
        if len({len(each) for each in parsed}) != 1 or len(parsed) != len(shapes):
            name = printable(name) or "its array"
            raise SourceError(f"{self.shown}: {name} is no {self.title} array, or it is damaged")
        return parsed

    def check_chunk_bytes(self, name: str, nbytes: int) -> None:
        """Raises :class:`SourceError` for chunks of more than 1 GiB."""
        if nbytes > MAX_CHUNK_BYTES:
            raise SourceError(f"{self.shown}: the chunks of {printable(name)} have more than {MAX_CHUNK_BYTES:,} bytes")

    def _walk_arrays(self) -> Iterator[tuple[str, Path, dict[str, Any]]]:
        """Yields name, folder and metadata of each array, and of the root if it is one. Skips hidden and ignored
        folders, and folders without metadata. Raises :class:`SourceError` for more than 1,000 folders."""
        waiting, count = [("", self.path)], 0
        while waiting:
            name, folder = waiting.pop(0)
            metadata = self.read_folder_metadata(folder)
            count += 1
            if count > _MAX_FOLDERS:
                raise SourceError(f"{self.shown} holds more than {_MAX_FOLDERS:,} arrays and groups")
            if metadata is not None and self.is_array(metadata):
                yield name, folder, metadata
            elif metadata is not None:
                inside = sorted(each.name for each in visible_paths(folder) if each.is_dir() and each.name[0] != ".")
                waiting += [(f"{name}/{each}" if name else each, folder / each) for each in inside]

    def close(self) -> None:
        """Does nothing: no file is open."""


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


def _list_sizes(folder: Path) -> Iterator[int]:
    """Yields the sizes of all files at and below a folder."""
    return (file.stat().st_size for file in _walk_files(folder))


def pick_class_attributes(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Picks the values of metadata that may name classes; returns ``{}`` for None."""
    return {name: attributes[name] for name in ATTRIBUTES if name in attributes} if attributes else {}


def _parse_shape(value: Any, least: int) -> tuple[int, ...] | None:
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
