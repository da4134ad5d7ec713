"""Zarr 2 and 3 (https://zarr-specs.readthedocs.io): arrays in a folder, read by the library ``zarr``.

Arrays are found and checked by their JSON files alone, and those with unknown codecs are not opened: the format has a
codec for pickles.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.sources.arrays.exported import ExportedArrays
from packstore.sources.arrays.folders import (
    ChunkFolderSource,
    OpenFolder,
    pick_class_attributes,
    read_metadata,
)
from packstore.sources.arrays.source import make_array_kind
from packstore.sources.arrays.stored import ArrayInfo, OpenArrays, object_array
from packstore.sources.exported_rows import open_with

_FILES = (".zarray", "zarr.json", ".zgroup")
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


class ZarrSource(ChunkFolderSource):
    """Samples of the arrays in a Zarr group. Arrays with unknown codecs are not opened."""

    kind = "zarr"
    files_name = "Zarr arrays"

    def open_file(self, path: Path) -> OpenArrays:
        """Opens a Zarr group. Raises :class:`SourceError` without the library ``zarr``."""
        return _OpenZarr(path)

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Tells if a path is a folder with a metadata file of Zarr."""
        return path.is_dir() and any((path / name).is_file() for name in _FILES)


class _OpenZarr(OpenFolder):
    """Arrays of a Zarr group, read by the library ``zarr``. Opening raises :class:`SourceError` if the library is not
    installed."""

    title = "Zarr"

    def __init__(self, path: Path) -> None:
        try:
            import zarr
        except ImportError:
            raise SourceError(f"{printable(str(path))} is Zarr; to read it: pip install 'packstore[zarr]'") from None
        self._zarr = zarr
        self._arrays: dict[str, Any] = {}
        super().__init__(path)

    def read_folder_metadata(self, folder: Path) -> dict[str, Any] | None:
        """Reads the metadata of the array or group in a folder. Prefers an array of version 2 to version 3, and these
        to a group of version 2."""
        metadata = (read_metadata(folder / name) for name in _FILES)
        return next((plain for plain in metadata if plain is not None), None)

    def is_array(self, metadata: dict[str, Any]) -> bool:
        """Tells if metadata are those of an array."""
        return metadata.get("node_type") == "array" or ("node_type" not in metadata and "chunks" in metadata)

    def describe_array(self, name: str, metadata: dict[str, Any]) -> ArrayInfo:
        """Describes an array by its JSON files alone."""
        describe = self._describe_version_3 if "node_type" in metadata else self._describe_version_2
        return describe(name, metadata)

    def _describe_version_2(self, name: str, plain: dict[str, Any]) -> ArrayInfo:
        """Describes an array by its metadata of version 2."""
        filters = plain.get("filters") or []
        fits = isinstance(filters, list)
        shape, chunks = self.parse_shapes(name, plain.get("shape") if fits else None, plain.get("chunks"))
        codecs = [*filters, plain["compressor"]] if plain.get("compressor") else filters
        ids = [str(each.get("id") if isinstance(each, dict) else None) for each in codecs]
        if plain.get("dtype") == "|O":
            what = {"vlen-utf8": "texts", "vlen-bytes": "files"}.get(ids[0] if ids else "")
        else:
            what = "numbers"
        self.grids[name] = shape, chunks
        return self._describe_array(name, shape, chunks, plain.get("dtype"), what, ids)

    def _describe_version_3(self, name: str, plain: dict[str, Any]) -> ArrayInfo:
        """Describes an array by its metadata of version 3, which may have shards of chunks."""
        found: tuple[Any, Any, Any] = (None, None, None)
        try:
            grid = inner = plain["chunk_grid"]["configuration"]["chunk_shape"]
            ids = [str(each["name"]) for each in _walk_codecs(plain["codecs"])]
            for codec in plain["codecs"]:
                if codec["name"] == "sharding_indexed":
                    inner = codec["configuration"]["chunk_shape"]
            found = plain["shape"], grid, inner
        except (KeyError, TypeError, AttributeError, RecursionError):
            ids = []
        shape, grid, chunks = self.parse_shapes(name, *found)
        self.grids[name] = shape, grid
        named = plain.get("data_type")
        what = {"string": "texts", "variable_length_bytes": "files", "bytes": "files"}.get(str(named), "numbers")
        dtype = named if isinstance(named, str) and named in _V3_DTYPES else None
        return self._describe_array(name, shape, chunks, dtype, what if dtype is None else "numbers", ids)

    def _describe_array(
        self, name: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any, what: str | None, ids: list[str]
    ) -> ArrayInfo:
        """Describes an array by dtype, content and ids of codecs. An array with an unknown codec or dtype is
        unreadable. For arrays of numbers, raises :class:`SourceError` for chunks over 1 GiB, and for samples in more
        than 1024 chunks."""
        unknown = next((each for each in ids if each not in _CODECS), None)
        if unknown is not None:
            why = f"{printable(name)} has the codec {printable(unknown[:40])}, which is not run"
            return ArrayInfo.unreadable(name, shape, why)
        if what in ("texts", "files"):
            return ArrayInfo(name, shape, content="texts" if what == "texts" else "files")
        made = None
        with suppress(TypeError):
            made = np.dtype(dtype) if isinstance(dtype, str) else None
        info = ArrayInfo.of_numbers(name, shape, made, printable(str(dtype)[:40]), chunks[0] if chunks else 1)
        if info.content == "unreadable":
            return info
        self.check_chunk_bytes(name, math.prod(chunks) * info.dtype.itemsize)
        counts = [-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True)]
        if math.prod(counts) > _MAX_SAMPLE_CHUNKS * max(counts, default=1):
            raise SourceError(
                f"{self.shown}: a sample of {printable(name)} is spread over more than {_MAX_SAMPLE_CHUNKS:,} chunks"
            )
        return info

    def read_rows(self, name: str, axis: int, start: int, stop: int) -> NDArray[Any]:
        """Reads rows ``start`` to ``stop`` along ``axis``; texts and files become Python objects. Raises
        :class:`ValueError` for any error of the library."""
        try:
            array = self._arrays.get(name)
            if array is None:
                store = _bounded_store_class()(self.path / name, read_only=True)
                array = self._arrays[name] = self._zarr.open_array(store, mode="r")
            values = np.asarray(array[(slice(None),) * axis + (slice(start, stop),)])
        except Exception as error:  # each codec has errors of its own
            raise ValueError(f"{name} cannot be read: {type(error).__name__}: {str(error)[:200]}") from error
        if values.dtype.kind in "TUSO":
            return object_array([item if isinstance(item, (str, bytes)) else bytes(item) for item in values.tolist()])
        return values

    def read_attributes(self, name: str) -> dict[str, Any]:
        """Reads the attributes of an array or group that may name classes, by name. Prefers those of version 3 to
        version 2."""
        third = (read_metadata(self.path / name / "zarr.json") or {}).get("attributes")
        return pick_class_attributes(third if isinstance(third, dict) else read_metadata(self.path / name / ".zattrs"))

    def close(self) -> None:
        """Drops the arrays; none of them keeps a file open."""
        self._arrays.clear()


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


class ExportedZarr(ExportedArrays, ZarrSource):
    """Samples of a Zarr export of packstore."""


KIND = make_array_kind(ZarrSource, "Zarr arrays of images", open_with(ZarrSource, ExportedZarr))
