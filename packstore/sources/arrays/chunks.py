"""Arrays that are folders of chunk files: Zarr 2 and 3 (https://zarr-specs.readthedocs.io), and N5 version 2 to 4
(https://github.com/saalfeldlab/n5).

The library ``zarr`` reads Zarr; arrays with unknown codecs are not opened: the format has a codec for pickles. The
first axis of N5 is the fastest, so its axes are reversed here, as in other Python libraries. A block of N5 that was not
written holds zeros.
"""

from __future__ import annotations

import bz2
import itertools
import lzma
import math
import os
import re
import struct
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.core.files import read_bounded
from packstore.core.plainjson import load_json
from packstore.sources.arrays import make_array_kind
from packstore.sources.arrays.source import ArraySource
from packstore.sources.arrays.stored import (
    ATTRIBUTES,
    ArrayInfo,
    FileArray,
    OpenArrays,
    may_be_written,
    object_array,
)
from packstore.sources.base import stamp_files
from packstore.sources.ignoring import visible_paths

_MAX_JSON, _MAX_FOLDERS = 1 << 24, 1000
_MAX_CHUNK_BYTES = 1 << 30
_METADATA = (".zarray", "zarr.json", ".zgroup", ".zattrs", ".zmetadata", "attributes.json")
_CHUNK = re.compile(r"c|(?:c[./])?((?:0|[1-9][0-9]{0,15})(?:[./](?:0|[1-9][0-9]{0,15}))*)")

_ZARR_FILES = (".zarray", "zarr.json", ".zgroup")
_CODECS = frozenset(
    ["bytes", "transpose", "blosc", "gzip", "zstd", "crc32c", "sharding_indexed", "vlen-utf8", "vlen-bytes", "zlib",
     "lz4", "lzma", "bz2", "delta", "shuffle", "adler32", "crc32"]
)  # fmt: skip
"""Codecs that yield bytes, texts or numbers, and run nothing."""
_MAX_FILE_BYTES = 2 << 30
_MAX_SAMPLE_CHUNKS = 1024
"""Limit, since the library takes some kilobytes for each chunk that is read."""

_N5_FILE = "attributes.json"
_N5_DTYPES = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {"float32", "float64"}
_DECOMPRESSORS: Mapping[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(zlib.MAX_WBITS | 32),  # gzip or zlib, by its header
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=1 << 30),
}


class _ChunkFolderSource(ArraySource):
    """Source in one folder, whose arrays are folders in it. Its files are those of the arrays that are read, and the
    metadata of groups above them. Other files are left out."""

    suffixes = ()
    grouped = True

    @classmethod
    def find_files(cls, path: Path) -> list[Path]:
        """Returns the folder itself, which is opened as one file."""
        return [path]

    def files(self) -> Iterator[Path]:  # type: ignore[override]
        """Yields the metadata and chunk files of the arrays that are read, and the metadata of groups above them."""
        names = {chosen.info.name for part in self._roles.parts for chosen in part.columns.values()}
        groups = {parent for name in names if name for parent in (self.path / name).parents}
        for group in sorted(each for each in groups if each.is_relative_to(self.path)):
            yield from (file for name in _METADATA if (file := group / name).is_file())
        for name in sorted(names):
            yield from _list_array_files(self.path / name)

    def stamp(self) -> str:
        """Returns a digest of size and times of all files, which may be too many for a text. Raises
        :class:`SourceError` if a file is missing."""
        digest = xxhash.xxh3_128()
        for file in self.files():
            digest.update(f"{file}\0{stamp_files([file])}\0".encode("utf-8", "surrogateescape"))
        return f"files {digest.hexdigest()}"

    def open_arrays(self, opened: OpenArrays, path: Path) -> None:
        """Reads the metadata of all arrays and groups, at most 1,000, from the top down. Raises one of ``FAULTS`` for
        damaged metadata, too large chunks, and if the files cannot hold an array's bytes."""
        waiting, count = [("", path)], 0
        while waiting:
            name, folder = waiting.pop(0)
            metadata = self.read_metadata(folder)
            if metadata is None:
                continue
            count += 1
            if count > _MAX_FOLDERS:
                raise ValueError(f"it holds more than {_MAX_FOLDERS:,} arrays and groups")
            attributes = self.find_attributes(folder, metadata)
            opened.attributes[name] = {each: attributes[each] for each in ATTRIBUTES if each in attributes}
            array = self.open_array(name, folder, metadata)
            if array is None:
                inside = sorted(each.name for each in visible_paths(folder) if each.is_dir() and each.name[0] != ".")
                waiting += [(f"{name}/{each}".lstrip("/"), folder / each) for each in inside]
                continue
            opened.arrays[name], info = array, array.info
            nbytes = info.dtype.itemsize * math.prod(info.shape) if info.content == "numbers" else 0
            if nbytes and math.prod(array.chunks) * info.dtype.itemsize > _MAX_CHUNK_BYTES:
                raise ValueError(f"the chunks of {name} have more than {_MAX_CHUNK_BYTES:,} bytes")
            if not may_be_written(nbytes, (file.stat().st_size for file in _walk_files(folder))):
                raise ValueError(f"{info.shown} should have {nbytes:,} bytes, more than its files can hold")

    @abstractmethod
    def read_metadata(self, folder: Path) -> dict[str, Any] | None:
        """Reads the metadata of the array or group in a folder; None if there are none. Raises :class:`ValueError` for
        a damaged file."""

    def find_attributes(self, folder: Path, metadata: dict[str, Any]) -> Mapping[str, Any]:
        """Returns the attributes of an array or group: its metadata in this base."""
        return metadata

    @abstractmethod
    def open_array(self, name: str, folder: Path, metadata: dict[str, Any]) -> _ChunkArray | None:
        """Opens an array by its metadata; None for those of a group. Raises one of ``FAULTS`` for damaged metadata."""


@dataclass(slots=True)
class _ChunkArray(FileArray):
    """Array in a folder.

    Attributes:
        folder: The folder.
        grid: Shape of its files, which are chunks or shards.
        chunks: Shape of the chunks in them.
    """

    folder: Path
    grid: tuple[int, ...]
    chunks: tuple[int, ...]

    def list_written(self) -> tuple[Sequence[int], Iterable[Sequence[int]]]:
        """Lists the chunk files ``c/0/1``, ``0.1`` or ``0/1`` by their positions. Does not look into shards."""
        names = (file.relative_to(self.folder).as_posix() for file in _walk_files(self.folder))
        places = (re.split("[./]", match[1] or "") for name in names if (match := _CHUNK.fullmatch(name)))
        return self.grid, (tuple(map(int, place)) for place in places if len(place) == len(self.grid) and all(place))


def _read_object(path: Path) -> dict[str, Any] | None:
    """Reads a JSON object from a file of at most 16 MiB; None if there is no file. Raises :class:`OSError` or
    :class:`ValueError` for any other content."""
    if not path.is_file():
        return None
    metadata = load_json(read_bounded(path, _MAX_JSON))
    if not isinstance(metadata, dict):
        raise ValueError(f"{path.name} holds no object")
    return metadata


def _list_array_files(folder: Path) -> Iterator[Path]:
    """Yields the metadata and chunk files of an array."""
    for file in _walk_files(folder):
        if file.name in _METADATA or _CHUNK.fullmatch(file.relative_to(folder).as_posix()):
            yield file


def _refuse_odd_files(folder: Path, most: float) -> None:
    """Raises :class:`ValueError` for a pipe or a device among the files of an array, or a file of more than ``most``
    bytes: the library would read all of it."""
    for file in _list_array_files(folder):
        if not file.is_file() or file.stat().st_size > most:
            raise ValueError(f"{file.name} is no file, or has more than {most:,} bytes")


def _walk_files(folder: Path) -> Iterator[Path]:
    """Yields all files at and below a folder, sorted in each folder. Does not follow links to folders."""
    for directory, inside, names in os.walk(folder):
        inside.sort()
        for name in sorted(names):
            yield Path(directory, name)


class ZarrSource(_ChunkFolderSource):
    """Samples of the arrays in a Zarr group. Arrays with unknown codecs are not opened."""

    kind = "zarr"
    files_name = "Zarr arrays"

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Tells if a path is a folder with a metadata file of Zarr."""
        return path.is_dir() and any((path / name).is_file() for name in _ZARR_FILES)

    def read_metadata(self, folder: Path) -> dict[str, Any] | None:
        """Reads the metadata of the array or group in a folder. Prefers an array of version 2 to version 3, and these
        to a group of version 2."""
        metadata = (_read_object(folder / name) for name in _ZARR_FILES)
        return next((plain for plain in metadata if plain is not None), None)

    def find_attributes(self, folder: Path, metadata: dict[str, Any]) -> Mapping[str, Any]:
        """Returns the attributes of version 3, or reads those of version 2."""
        return metadata.get("attributes") or _read_object(folder / ".zattrs") or {}

    def open_array(self, name: str, folder: Path, metadata: dict[str, Any]) -> _ChunkArray | None:
        """Opens an array. What the library cannot open, or must not, is unreadable. Also raises :class:`ValueError` for
        samples in more than 1,024 chunks, and :class:`SourceError` without the library ``zarr``."""
        if metadata.get("node_type", "array") != "array" or not {"node_type", "chunks"} & metadata.keys():
            return None
        try:
            import zarr
        except ImportError:
            raise SourceError(f"{printable(str(self.path))} is Zarr: pip install 'packstore[zarr]'") from None
        try:
            codecs = [*_walk_codecs(metadata)]
            unknown = next((each for each in codecs if each not in _CODECS), None)
            if unknown is not None:
                raise ValueError(f"the codec {unknown[:40]} is not run")
            _refuse_odd_files(folder, math.inf if "sharding_indexed" in codecs else _MAX_FILE_BYTES)
            opened = zarr.open_array(str(folder), mode="r")
            shape, chunks, dtype = opened.shape, opened.chunks, opened.dtype
            if len(chunks) != len(shape) or min(chunks, default=1) < 1 or min(shape, default=0) < 0:
                raise ValueError(f"the shape {shape} in chunks of {chunks}")
        except Exception as error:  # the library has many
            why = printable(f"{name or 'its array'} cannot be read by zarr: {type(error).__name__}: {str(error)[:200]}")
            return _ZarrArray(ArrayInfo.unreadable(name, (), why), folder, (), ())
        if "vlen-utf8" in codecs or "vlen-bytes" in codecs:
            info = ArrayInfo(name, shape, content="texts" if "vlen-utf8" in codecs else "files")
        else:
            info = ArrayInfo.of_numbers(name, shape, dtype, str(dtype), (*chunks, 1)[0])
        counts = [-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True)]
        if info.content == "numbers" and math.prod(counts) > _MAX_SAMPLE_CHUNKS * max(counts, default=1):
            raise ValueError(f"a sample of {name} is spread over more than {_MAX_SAMPLE_CHUNKS:,} chunks")
        return _ZarrArray(info, folder, opened.shards or chunks, chunks, opened)


@dataclass(slots=True)
class _ZarrArray(_ChunkArray):
    """Zarr array that the library ``zarr`` reads; it keeps no file open."""

    opened: Any = None

    def read_rows(self, axis: int, start: int, stop: int) -> NDArray[Any]:
        """Reads rows along ``axis``; texts and files become Python objects. Raises :class:`ValueError` for any error of
        the library."""
        try:
            values = np.asarray(self.opened[(slice(None),) * axis + (slice(start, stop),)])
        except Exception as error:  # each codec has errors of its own
            name = self.info.name
            raise ValueError(f"{name} cannot be read: {type(error).__name__}: {str(error)[:200]}") from error
        if values.dtype.kind in "TUSO":
            return object_array([item if isinstance(item, (str, bytes)) else bytes(item) for item in values.tolist()])
        return values


def _walk_codecs(metadata: dict[str, Any]) -> Iterator[str]:
    """Yields the names of the codecs of an array, and of those nested in them."""
    for key in ("filters", "compressor", "codecs", "index_codecs"):
        found = metadata.get(key) or []
        for codec in found if isinstance(found, list) else [found]:
            yield str(codec.get("name", codec.get("id")))
            yield from _walk_codecs(codec.get("configuration") or {})


class N5Source(_ChunkFolderSource):
    """Samples of the arrays in an N5 container; missing blocks are zeros."""

    kind = "n5"
    files_name = "N5 arrays"

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Tells if a path is a folder whose ``attributes.json`` is that of an N5 container or array. False if that file
        is damaged."""
        try:
            plain = _read_object(path / _N5_FILE) if path.is_dir() else None
        except (OSError, ValueError):
            return False
        return plain is not None and ("n5" in plain or {"dimensions", "blockSize", "dataType"} <= plain.keys())

    def read_metadata(self, folder: Path) -> dict[str, Any]:
        """Reads ``attributes.json``; a group may have none."""
        return _read_object(folder / _N5_FILE) or {}

    def open_array(self, name: str, folder: Path, metadata: dict[str, Any]) -> _ChunkArray | None:
        """Opens an array, with its axes in numpy's order. One of another dtype or compression is unreadable."""
        if "dimensions" not in metadata:
            return None
        shape, blocks = _parse_shape(metadata["dimensions"], 0), _parse_shape(metadata.get("blockSize"), 1)
        if len(shape) != len(blocks) or not shape:
            raise ValueError(f"{name or 'its array'} is no N5 array")
        compression = metadata.get("compression", metadata.get("compressionType"))
        packer = str(compression.get("type") if isinstance(compression, dict) else compression)
        dtype = str(metadata.get("dataType"))
        if dtype in _N5_DTYPES and packer in ("raw", *_DECOMPRESSORS):
            info = ArrayInfo(name, shape, np.dtype(dtype).newbyteorder(">"), "numbers", blocks[0])
        else:
            why = printable(f"{name} holds {dtype} compressed by {packer}"[:200])
            info = ArrayInfo.unreadable(name, shape, why)
        return _N5Array(info, folder, blocks, blocks, packer)


def _parse_shape(value: Any, least: int) -> tuple[int, ...]:
    """Converts a list of at most 16 whole numbers, from ``least`` to 2**48, to a shape in numpy's order. Raises
    :class:`ValueError` for any other value."""
    fits = isinstance(value, list) and len(value) <= 16 and all(type(n) is int and least <= n < 1 << 48 for n in value)
    if not fits:
        raise ValueError(f"its array is no N5 array: it has the shape {str(value)[:80]}")
    return tuple(reversed(value))


@dataclass(slots=True)
class _N5Array(_ChunkArray):
    """Array of an N5 container, and its compression."""

    compression: str

    def list_written(self) -> tuple[Sequence[int], Iterable[Sequence[int]]]:
        """Lists the blocks that were written, in numpy's order."""
        grid, places = _ChunkArray.list_written(self)
        return grid, (place[::-1] for place in places)

    def read_rows(self, axis: int, start: int, stop: int) -> NDArray[Any]:
        """Reads rows along ``axis`` from all blocks that hold them. Blocks that were not written are zeros. Raises
        :class:`ValueError` for a damaged block."""
        low, high = [0] * len(self.grid), list(self.info.shape)
        low[axis], high[axis] = start, stop
        values = np.zeros([b - a for a, b in zip(low, high, strict=True)], self.info.dtype)
        ranges = [range(a // size, -(-b // size)) for a, b, size in zip(low, high, self.grid, strict=True)]
        for place in itertools.product(*ranges):
            data = self._read_block(place)
            into, of = [], []
            for number, step, size, a, b in zip(place, self.grid, data.shape, low, high, strict=True):
                first = number * step
                begin, end = max(first, a), max(first, a, min(first + size, b))
                into.append(slice(begin - a, end - a))
                of.append(slice(begin - first, end - first))
            values[tuple(into)] = data[tuple(of)]
        return values

    def _read_block(self, place: tuple[int, ...]) -> NDArray[Any]:
        """Reads a block by its grid position; one that was not written is empty. Raises :class:`ValueError` for a
        damaged or too large block, and one that is no file."""
        path, dtype = self.folder.joinpath(*map(str, reversed(place))), self.info.dtype
        if not os.path.lexists(path):
            return np.zeros([0] * len(place), dtype)
        try:
            raw = read_bounded(path, 2 * _MAX_CHUNK_BYTES)
            mode, axes = struct.unpack_from(">HH", raw)
            shape = struct.unpack_from(f">{axes}I", raw, 4)[::-1]
            if mode != 0 or len(shape) != len(self.grid) or any(a > b for a, b in zip(shape, self.grid, strict=True)):
                raise ValueError(f"it has mode {mode} and the shape {shape}")
            data, size = raw[4 + 4 * axes :], math.prod(shape) * dtype.itemsize
            if self.compression in _DECOMPRESSORS:
                packed = _DECOMPRESSORS[self.compression]()
                data = packed.decompress(data, size + 1)
                if not packed.eof:
                    raise ValueError("it is cut off, or too long")
            return np.frombuffer(data, dtype).reshape(shape)
        except (struct.error, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError) as error:
            raise ValueError(f"block {printable(str(path))} is damaged: {error}") from None


ZARR = make_array_kind(ZarrSource, "Zarr arrays of images", exported=True)
N5 = make_array_kind(N5Source, "N5 arrays of images")
