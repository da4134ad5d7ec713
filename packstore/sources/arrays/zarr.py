"""Zarr 2 and 3 (https://zarr-specs.readthedocs.io): arrays in a folder, read by the library ``zarr``.

What is there is read from the JSON itself, so that nothing is opened whose codecs could run something: the format knows
a codec of pickles.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.sources.arrays.exported import ExportedArrays
from packstore.sources.arrays.folders import (
    ChunkFolderSource,
    array_folders,
    chunk_places,
    metadata,
    named_attributes,
    refuse_unwritten,
    sizes,
)
from packstore.sources.arrays.source import recognise_arrays
from packstore.sources.arrays.stored import ArrayInfo, OpenArrays, Unwritten, find_unwritten
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.exported_rows import open_with

_FILES = (".zarray", "zarr.json", ".zgroup")
_V3_DTYPES = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
)
_CODECS = frozenset(
    ["bytes", "transpose", "blosc", "gzip", "zstd", "crc32c", "sharding_indexed", "vlen-utf8", "vlen-bytes", "zlib",
     "lz4", "lzma", "bz2", "delta", "shuffle", "adler32", "crc32"]
)  # fmt: skip
"""Codecs that turn bytes into bytes or numbers."""
_MAX_CHUNK_BYTES = 1 << 30
_MAX_FILE_BYTES = 2 << 30
_MAX_SAMPLE_CHUNKS = 1024
"""The library takes some kilobytes for each chunk that is read."""


class ZarrSource(ChunkFolderSource):
    """Arrays of a Zarr group."""

    kind = "zarr"
    what = "Zarr arrays"

    @classmethod
    def open_file(cls, path: Path, folder: Path) -> OpenArrays:
        return _OpenZarr(path)


class _OpenZarr(OpenArrays):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._shown = printable(str(path))
        try:
            import zarr
        except ImportError:
            raise SourceError(f"{self._shown} is Zarr; read it with: pip install 'packstore[zarr]'") from None
        self._zarr = zarr
        self._arrays: dict[str, Any] = {}
        self._grids: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        """Shape of each array, and of what is a file of it: a chunk or a shard."""

    def infos(self) -> list[ArrayInfo]:
        found = []
        for name, folder, plain in array_folders(self._path, _metadata, _is_array, groups=False):
            info = self._third(name, plain) if "node_type" in plain else self._second(name, plain)
            if info.what == "numbers":
                refuse_unwritten(self._shown, info, folder)
            found.append(info)
        return found

    def _second(self, name: str, plain: dict[str, Any]) -> ArrayInfo:
        shape, chunks = sizes(plain.get("shape"), 0), sizes(plain.get("chunks"), 1)
        filters = plain.get("filters") or []
        codecs = [*filters, plain["compressor"]] if plain.get("compressor") else filters
        if shape is None or chunks is None or len(shape) != len(chunks) or not isinstance(codecs, list):
            raise self._damaged(name)
        ids = [each.get("id") if isinstance(each, dict) else None for each in codecs]
        if plain.get("dtype") == "|O":
            what = {"vlen-utf8": "texts", "vlen-bytes": "files"}.get(str(ids[0]) if ids else "")
        else:
            what = "numbers"
        self._grids[name] = shape, chunks
        return self._info(name, shape, chunks, plain.get("dtype"), what, ids)

    def _third(self, name: str, plain: dict[str, Any]) -> ArrayInfo:
        try:
            shape = sizes(plain["shape"], 0)
            grid = chunks = sizes(plain["chunk_grid"]["configuration"]["chunk_shape"], 1)
            ids = [each["name"] for each in _all_codecs(plain["codecs"])]
            for codec in plain["codecs"]:
                if codec["name"] == "sharding_indexed":
                    chunks = sizes(codec["configuration"]["chunk_shape"], 1)
        except (KeyError, TypeError, RecursionError):
            raise self._damaged(name) from None
        if shape is None or chunks is None or grid is None or not len(shape) == len(chunks) == len(grid):
            raise self._damaged(name)
        self._grids[name] = shape, grid
        named = plain.get("data_type")
        what = {"string": "texts", "variable_length_bytes": "files", "bytes": "files"}.get(str(named), "numbers")
        dtype = named if isinstance(named, str) and named in _V3_DTYPES else None
        return self._info(name, shape, chunks, dtype, what if dtype is None else "numbers", ids)

    def _info(
        self, name: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any, what: str | None, ids: list[Any]
    ) -> ArrayInfo:
        unknown = next((each for each in ids if each not in _CODECS), None)
        if unknown is not None:
            why = f"{printable(name)} is kept by the codec {printable(str(unknown)[:40])}, which is not run"
            return _nothing(name, shape, why)
        if what in ("texts", "files"):
            return ArrayInfo("", name, shape, np.dtype("u1"), "texts" if what == "texts" else "files")
        try:
            made = np.dtype(dtype) if isinstance(dtype, str) else None
        except TypeError:
            made = None
        if made is None or made.kind not in "uifb" or made.itemsize > 8:
            return _nothing(
                name, shape, f"{printable(name)} holds {printable(str(dtype)[:40])}, of which there are no columns"
            )
        if math.prod(chunks) * made.itemsize > _MAX_CHUNK_BYTES:
            raise SourceError(
                f"{self._shown}: the chunks of {printable(name)} have more than {_MAX_CHUNK_BYTES:,} bytes"
            )
        counts = [-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True)]
        if math.prod(counts) > _MAX_SAMPLE_CHUNKS * max(counts, default=1):
            raise SourceError(
                f"{self._shown}: a sample of {printable(name)} lies in more than {_MAX_SAMPLE_CHUNKS:,} chunks"
            )
        return ArrayInfo("", name, shape, made, "numbers", chunks[0] if chunks else 1)

    def _damaged(self, name: str) -> SourceError:
        return SourceError(f"{self._shown}: {printable(name) or 'its array'} is no Zarr array, or it is damaged")

    def read(self, name: str, axis: int, start: int, stop: int) -> NDArray[Any]:
        try:
            array = self._arrays.get(name)
            if array is None:
                store = _bounded_store()(self._path / name, read_only=True)
                array = self._arrays[name] = self._zarr.open_array(store, mode="r")
            found = np.asarray(array[(slice(None),) * axis + (slice(start, stop),)])
        except Exception as error:  # each codec has errors of its own
            raise ValueError(f"{name} cannot be read: {type(error).__name__}: {str(error)[:200]}") from error
        if found.dtype.kind in "TUSO":
            made = np.empty(len(found), object)
            made[:] = [item if isinstance(item, (str, bytes)) else bytes(item) for item in found.tolist()]
            return made
        return found

    def attributes(self, name: str) -> dict[str, Any]:
        third = (metadata(self._path / name / "zarr.json") or {}).get("attributes")
        return named_attributes(third if isinstance(third, dict) else metadata(self._path / name / ".zattrs"))

    def unwritten(self, name: str, axis: int) -> Unwritten | None:
        """Finds missing chunks, except within a shard file."""
        shape, grid = self._grids[name]
        return find_unwritten(shape, grid, axis, chunk_places(self._path / name, len(shape)))

    def close(self) -> None:
        self._arrays.clear()


@cache
def _bounded_store() -> Any:
    """The library's store of a folder, but what is no file, or too large for a chunk, is not read."""
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


def _metadata(folder: Path) -> dict[str, Any] | None:
    """Of the array or group in a folder: an array of version 2, or else what there is of version 3, or 2."""
    found = (metadata(folder / name) for name in _FILES)
    return next((plain for plain in found if plain is not None), None)


def _is_array(plain: dict[str, Any]) -> bool:
    return plain.get("node_type") == "array" or ("node_type" not in plain and "chunks" in plain)


def _all_codecs(codecs: Any) -> Iterator[dict[str, Any]]:
    """Codecs, and those within them."""
    for codec in codecs:
        yield codec
        inner = codec.get("configuration") or {}
        for name in ("codecs", "index_codecs"):
            yield from _all_codecs(inner.get(name) or ())


def _nothing(name: str, shape: tuple[int, ...], why: str) -> ArrayInfo:
    return ArrayInfo("", name, shape, np.dtype("u1"), "nothing", why=why)


class ExportedZarr(ExportedArrays, ZarrSource):
    """An export of packstore."""


_open = open_with(ZarrSource, ExportedZarr)


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """A folder with Zarr's files whose arrays are clear."""
    if not path.is_dir() or not any((path / name).is_file() for name in _FILES):
        return Certainty.NO
    return recognise_arrays(_open, path, options)


KIND = Kind(ZarrSource.kind, "Zarr arrays of images", _recognise, _open, takes_arrays=True)
