"""Arrays that are folders of chunk files: Zarr 2 and 3 (https://zarr-specs.readthedocs.io), and N5 version 2 to 4
(https://github.com/saalfeldlab/n5).

Arrays are found and checked by their JSON files alone. The library ``zarr`` reads Zarr; arrays with unknown codecs are
not opened: the format has a codec for pickles. The first axis of N5 is the fastest, so its axes are reversed here, as
in other Python libraries. A block of N5 that was not written holds zeros.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

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
    Unwritten,
    count_unwritten,
    may_be_written,
    object_array,
)
from packstore.sources.base import stamp_files
from packstore.sources.ignoring import visible_paths
from packstore.sources.ledger import Claims, Role

_MAX_JSON, _MAX_FOLDERS = 1 << 24, 1000
_MAX_CHUNK_BYTES = 1 << 30
_GROUP_FILES = ("zarr.json", ".zgroup", ".zattrs", ".zmetadata", "attributes.json")
_METADATA = ("zarr.json", ".zarray", ".zattrs", "attributes.json")
_CHUNK = re.compile(r"c|(c[./])?[0-9]+([./][0-9]+)*")
_NUMBER = re.compile("0|[1-9][0-9]{0,15}")

_ZARR_FILES = (".zarray", "zarr.json", ".zgroup")
_V3_DTYPES = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
)
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
_DECOMPRESSORS: Mapping[str, Callable[[], Any] | None] = {
    "raw": None,
    "gzip": lambda: zlib.decompressobj(zlib.MAX_WBITS | 32),  # gzip or zlib, by its header
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=1 << 30),
}


class _ChunkFolderSource(ArraySource):
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


@dataclass(slots=True)
class _ChunkArray(FileArray):
    """Array in a folder.

    Attributes:
        folder: The folder.
        grid: Shape of its files, which are chunks or shards.
    """

    folder: Path
    grid: tuple[int, ...]

    def find_unwritten(self, axis: int) -> Unwritten | None:
        """Finds the chunks or shards without a file; None if all have one. Does not look into shards."""
        return count_unwritten(self.info.shape, self.grid, axis, self.find_chunks())

    def find_chunks(self) -> Iterator[tuple[int, ...]]:
        """Yields the grid positions of the chunk files: ``c/0/1``, ``0.1`` or ``0/1``."""
        for file in _walk_files(self.folder):
            parts = re.split("[./]", file.relative_to(self.folder).as_posix().removeprefix("c/").removeprefix("c."))
            if len(parts) == len(self.grid) and all(_NUMBER.fullmatch(part) for part in parts):
                yield tuple(map(int, parts))


class _OpenFolder(OpenArrays):
    """Arrays that are folders of chunk files below a folder. Opening reads the metadata of all arrays. It raises
    :class:`SourceError` for damaged metadata, more than 1,000 folders, and if the files cannot hold an array's bytes.

    Attributes:
        title: Name of the format.
    """

    title: ClassVar[str]

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.shown = path, printable(str(path))
        waiting, count = [("", path)], 0
        while waiting:
            name, folder = waiting.pop(0)
            metadata = self.read_folder_metadata(folder)
            count += 1
            if count > _MAX_FOLDERS:
                raise SourceError(f"{self.shown} holds more than {_MAX_FOLDERS:,} arrays and groups")
            array = None if metadata is None else self.open_array(name, metadata)
            if array is not None:
                self.arrays[name] = array
            elif metadata is not None:
                inside = sorted(each.name for each in visible_paths(folder) if each.is_dir() and each.name[0] != ".")
                waiting += [(f"{name}/{each}" if name else each, folder / each) for each in inside]

    @abstractmethod
    def read_folder_metadata(self, folder: Path) -> dict[str, Any] | None:
        """Reads the metadata of the array or group in a folder; None if there are none. Raises :class:`SourceError` for
        a damaged file."""

    @abstractmethod
    def open_array(self, name: str, metadata: dict[str, Any]) -> FileArray | None:
        """Opens an array by its metadata; None for those of a group. Raises :class:`SourceError` for damaged metadata
        and too large chunks."""

    def parse_shapes(self, name: str, shape: Any, *grids: Any) -> list[tuple[int, ...]]:
        """Parses the shape of an array, and shapes of its chunks. Raises :class:`SourceError` for anything but lists of
        as many whole numbers."""
        shapes = [_parse_shape(shape, 0), *(_parse_shape(grid, 1) for grid in grids)]
        parsed = [each for each in shapes if each is not None]
        if len({len(each) for each in parsed}) != 1 or len(parsed) != len(shapes):
            name = printable(name) or "its array"
            raise SourceError(f"{self.shown}: {name} is no {self.title} array, or it is damaged")
        return parsed

    def check_bytes(self, info: ArrayInfo, chunks: tuple[int, ...]) -> None:
        """Raises :class:`SourceError` for chunks of more than 1 GiB, and for an array whose files cannot hold its
        numbers."""
        if math.prod(chunks) * info.dtype.itemsize > _MAX_CHUNK_BYTES:
            name = printable(info.name)
            raise SourceError(f"{self.shown}: the chunks of {name} have more than {_MAX_CHUNK_BYTES:,} bytes")
        nbytes = info.dtype.itemsize * math.prod(info.shape)
        if not may_be_written(nbytes, (file.stat().st_size for file in _walk_files(self.path / info.name))):
            raise SourceError(f"{self.shown}: {info.shown} should have {nbytes:,} bytes, more than its files can hold")


def _read_metadata(path: Path) -> dict[str, Any] | None:
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


def _pick_class_attributes(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
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


class ZarrSource(_ChunkFolderSource):
    """Samples of the arrays in a Zarr group. Arrays with unknown codecs are not opened."""

    kind = "zarr"
    files_name = "Zarr arrays"

    def open_file(self, path: Path) -> OpenArrays:
        """Opens a Zarr group. Raises :class:`SourceError` without the library ``zarr``."""
        return _OpenZarr(path)

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Tells if a path is a folder with a metadata file of Zarr."""
        return path.is_dir() and any((path / name).is_file() for name in _ZARR_FILES)


class _ZarrMetadata(NamedTuple):
    """Metadata of a Zarr array, as its JSON has them. ``grid`` is the shape of its files, ``chunks`` that of the chunks
    in them."""

    shape: Any
    grid: Any
    chunks: Any
    dtype: Any
    content: Literal["numbers", "texts", "files"]
    codecs: Sequence[str]


class _OpenZarr(_OpenFolder):
    """Arrays of a Zarr group. Opening raises :class:`SourceError` if the library ``zarr`` is not installed."""

    title = "Zarr"

    def __init__(self, path: Path) -> None:
        try:
            import zarr  # noqa: F401
        except ImportError:
            raise SourceError(f"{printable(str(path))} is Zarr; to read it: pip install 'packstore[zarr]'") from None
        super().__init__(path)

    def read_folder_metadata(self, folder: Path) -> dict[str, Any] | None:
        """Reads the metadata of the array or group in a folder. Prefers an array of version 2 to version 3, and these
        to a group of version 2."""
        metadata = (_read_metadata(folder / name) for name in _ZARR_FILES)
        return next((plain for plain in metadata if plain is not None), None)

    def open_array(self, name: str, metadata: dict[str, Any]) -> FileArray | None:
        """Opens an array. Unknown codecs and dtypes make it unreadable. Also raises :class:`SourceError` for samples
        in more than 1,024 chunks."""
        if metadata.get("node_type", "array") != "array" or not {"node_type", "chunks"} & metadata.keys():
            return None
        found = _parse_version_3(metadata) if "node_type" in metadata else _parse_version_2(metadata)
        shape, grid, chunks = self.parse_shapes(name, *found[:3])
        unknown = next((each for each in found.codecs if each not in _CODECS), None)
        if unknown is not None:
            why = f"{printable(name)} has the codec {printable(unknown[:40])}, which is not run"
            info = ArrayInfo.unreadable(name, shape, why)
        elif found.content != "numbers":
            info = ArrayInfo(name, shape, content=found.content)
        else:
            dtype = None
            with suppress(TypeError):
                dtype = np.dtype(found.dtype) if isinstance(found.dtype, str) else None
            info = ArrayInfo.of_numbers(name, shape, dtype, printable(str(found.dtype)[:40]), (*chunks, 1)[0])
        if info.content == "numbers":
            self.check_bytes(info, chunks)
            counts = [-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True)]
            if math.prod(counts) > _MAX_SAMPLE_CHUNKS * max(counts, default=1):
                raise SourceError(
                    f"{self.shown}: a sample of {printable(name)} is spread over more than {_MAX_SAMPLE_CHUNKS:,} "
                    "chunks"
                )
        return _ZarrArray(info, self.path / name, grid)

    def read_attributes(self, name: str) -> dict[str, Any]:
        """Reads the attributes of an array or group that may name classes, by name. Prefers those of version 3 to
        version 2."""
        third = (_read_metadata(self.path / name / "zarr.json") or {}).get("attributes")
        second = None if isinstance(third, dict) else _read_metadata(self.path / name / ".zattrs")
        return _pick_class_attributes(third if second is None else second)


def _parse_version_2(plain: dict[str, Any]) -> _ZarrMetadata:
    """Parses the metadata of an array of version 2."""
    filters, chunks, shape = plain.get("filters") or [], plain.get("chunks"), plain.get("shape")
    if not isinstance(filters, list):
        filters, shape = [], None  # refused
    codecs = [*filters, plain["compressor"]] if plain.get("compressor") else filters
    ids = [str(each.get("id") if isinstance(each, dict) else None) for each in codecs]
    content: Any = "numbers"
    if plain.get("dtype") == "|O":
        content = {"vlen-utf8": "texts", "vlen-bytes": "files"}.get(ids[0] if ids else "", "numbers")
    return _ZarrMetadata(shape, chunks, chunks, plain.get("dtype"), content, ids)


def _parse_version_3(plain: dict[str, Any]) -> _ZarrMetadata:
    """Parses the metadata of an array of version 3, which may have shards of chunks. Shapes are None if damaged."""
    named = plain.get("data_type")
    dtype = named if isinstance(named, str) and named in _V3_DTYPES else None
    content: Any = {"string": "texts", "variable_length_bytes": "files", "bytes": "files"}.get(str(named), "numbers")
    try:
        grid = inner = plain["chunk_grid"]["configuration"]["chunk_shape"]
        ids = [str(each["name"]) for each in _walk_codecs(plain["codecs"])]
        for codec in plain["codecs"]:
            if codec["name"] == "sharding_indexed":
                inner = codec["configuration"]["chunk_shape"]
        return _ZarrMetadata(plain["shape"], grid, inner, dtype, content, ids)
    except (KeyError, TypeError, AttributeError, RecursionError):
        return _ZarrMetadata(None, None, None, dtype, content, ())


@dataclass(slots=True)
class _ZarrArray(_ChunkArray):
    """Zarr array that the library ``zarr`` reads; it keeps no file open."""

    opened: Any = None

    def read_rows(self, axis: int, start: int, stop: int) -> NDArray[Any]:
        """Reads rows along ``axis``; texts and files become Python objects. Raises :class:`ValueError` for any error of
        the library."""
        try:
            if self.opened is None:
                import zarr

                self.opened = zarr.open_array(_bounded_store_class()(self.folder, read_only=True), mode="r")
            values = np.asarray(self.opened[(slice(None),) * axis + (slice(start, stop),)])
        except Exception as error:  # each codec has errors of its own
            name = self.info.name
            raise ValueError(f"{name} cannot be read: {type(error).__name__}: {str(error)[:200]}") from error
        if values.dtype.kind in "TUSO":
            return object_array([item if isinstance(item, (str, bytes)) else bytes(item) for item in values.tolist()])
        return values


@cache
def _bounded_store_class() -> Any:
    """Makes a subclass of the library's ``LocalStore``, once. Reading a whole file over 2 GiB, a pipe or a device by it
    raises :class:`ValueError`."""
    from zarr.storage import LocalStore

    class BoundedStore(LocalStore):
        async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
            file = self.root / key
            if file.is_file():
                size = file.stat().st_size
                if byte_range is None and size > _MAX_FILE_BYTES:
                    raise ValueError(f"{key} has {size:,} bytes, more than {_MAX_FILE_BYTES:,}")
            elif os.path.lexists(file):
                raise ValueError(f"{key} is no file")  # a pipe or a device would be read without end
            return await super().get(key, prototype, byte_range)

    return BoundedStore


def _walk_codecs(codecs: Any) -> Iterator[dict[str, Any]]:
    """Yields codecs, and those nested in them."""
    for codec in codecs:
        yield codec
        inner = codec.get("configuration") or {}
        for name in ("codecs", "index_codecs"):
            yield from _walk_codecs(inner.get(name) or ())


class N5Source(_ChunkFolderSource):
    """Samples of the arrays in an N5 container; missing blocks are zeros."""

    kind = "n5"
    files_name = "N5 arrays"

    def open_file(self, path: Path) -> OpenArrays:
        """Opens an N5 container, and reads the metadata of its arrays. Raises :class:`SourceError` if the metadata are
        damaged."""
        return _OpenN5(path)

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Tells if a path is a folder whose ``attributes.json`` is that of an N5 container or array. False if that file
        is damaged."""
        try:
            plain = _read_metadata(path / _N5_FILE) if path.is_dir() else None
        except SourceError:
            return False
        return plain is not None and ("n5" in plain or {"dimensions", "blockSize", "dataType"} <= plain.keys())


class _OpenN5(_OpenFolder):
    """Arrays of an N5 container, with their axes in numpy's order."""

    title = "N5"

    def read_folder_metadata(self, folder: Path) -> dict[str, Any]:
        """Reads ``attributes.json``; a group may have none."""
        return _read_metadata(folder / _N5_FILE) or {}

    def open_array(self, name: str, metadata: dict[str, Any]) -> FileArray | None:
        """Opens an array. One of another dtype or compression is unreadable."""
        if "dimensions" not in metadata:
            return None
        shape, blocks = self.parse_shapes(name, metadata["dimensions"] or None, metadata.get("blockSize"))
        compression = metadata.get("compression", metadata.get("compressionType"))
        kind = str(compression.get("type") if isinstance(compression, dict) else compression)
        dtype = metadata.get("dataType")
        if not isinstance(dtype, str) or dtype not in _N5_DTYPES or kind not in _DECOMPRESSORS:
            found = printable(f"{dtype} compressed by {kind}"[:80])
            why = f"{printable(name)} holds {found}; packstore reads numbers, compressed by {', '.join(_DECOMPRESSORS)}"
            info = ArrayInfo.unreadable(name, shape[::-1], why)
        else:
            info = ArrayInfo(name, shape[::-1], np.dtype(dtype).newbyteorder(">"), "numbers", blocks[-1])
            self.check_bytes(info, blocks)
        return _N5Array(info, self.path / name, blocks[::-1], kind)

    def read_attributes(self, name: str) -> dict[str, Any]:
        """Reads from ``attributes.json`` the attributes of an array or group that may name classes, by name."""
        return _pick_class_attributes(_read_metadata(self.path / name / _N5_FILE))


@dataclass(slots=True)
class _N5Array(_ChunkArray):
    """Array of an N5 container, and its compression."""

    compression: str

    def find_chunks(self) -> Iterator[tuple[int, ...]]:
        """Yields the grid positions of the files, in numpy's order."""
        return (place[::-1] for place in _ChunkArray.find_chunks(self))

    def read_rows(self, axis: int, start: int, stop: int) -> NDArray[Any]:
        """Reads rows along ``axis`` from all blocks that hold them. Blocks that were not written are zeros. Raises
        :class:`ValueError` for a damaged block."""
        low, high = [0] * len(self.grid), list(self.info.shape)
        low[axis], high[axis] = start, stop
        values = np.zeros([b - a for a, b in zip(low, high, strict=True)], self.info.dtype)
        ranges = [range(a // size, -(-b // size)) for a, b, size in zip(low, high, self.grid, strict=True)]
        for place in itertools.product(*ranges):
            data = self._read_block(place)
            if data is None:
                continue
            firsts = [number * size for number, size in zip(place, self.grid, strict=True)]
            into, of = [], []
            for first, size, a, b in zip(firsts, data.shape, low, high, strict=True):
                begin, end = max(first, a), min(first + size, b)
                into.append(slice(begin - a, max(begin, end) - a))
                of.append(slice(begin - first, max(begin, end) - first))
            values[tuple(into)] = data[tuple(of)]
        return values

    def _read_block(self, place: tuple[int, ...]) -> NDArray[Any] | None:
        """Reads a block by its grid position; returns None if it was not written. Raises :class:`ValueError` for a
        damaged or too large block, and one that is no file."""
        inside = "/".join(map(str, reversed(place)))
        path, shown = self.folder / inside, printable(f"{self.info.name}/{inside}")
        if not path.is_file():
            if os.path.lexists(path):
                raise ValueError(f"block {shown} is no file")
            return None
        if path.stat().st_size > 2 * _MAX_CHUNK_BYTES:
            raise ValueError(f"block {shown} has {path.stat().st_size:,} bytes, more than a block can have")
        raw, dtype = path.read_bytes(), self.info.dtype
        try:
            mode, axes = struct.unpack_from(">HH", raw)
            shape = struct.unpack_from(f">{axes}I", raw, 4)[::-1]
            if mode != 0 or len(shape) != len(self.grid) or any(a > b for a, b in zip(shape, self.grid, strict=True)):
                raise ValueError(f"block {shown} has mode {mode} and the shape {shape}")
            data = _decompress(self.compression, raw[4 + 4 * axes :], math.prod(shape) * dtype.itemsize)
        except (struct.error, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
            raise ValueError(f"block {shown} is damaged: {error}") from None
        return np.frombuffer(data, dtype).reshape(shape)


def _decompress(compression: str, data: bytes, size: int) -> bytes:
    """Decompresses gzip, bzip2 or xz to exactly ``size`` bytes; returns uncompressed data unchanged. Raises
    :class:`ValueError` for more or fewer bytes, and the libraries' errors for damaged data."""
    make = _DECOMPRESSORS[compression]
    made = None if make is None else make()
    if made is not None:
        data = made.decompress(data, size + 1)
    if len(data) != size or not (made is None or made.eof):
        raise ValueError(f"a block has {len(data)} bytes or is cut off; expected {size}")
    return data


ZARR = make_array_kind(ZarrSource, "Zarr arrays of images", exported=True)
N5 = make_array_kind(N5Source, "N5 arrays of images")
