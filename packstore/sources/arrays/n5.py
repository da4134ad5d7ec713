"""N5 (https://github.com/saalfeldlab/n5, version 2 to 4): arrays in a folder, a file for each block of numbers.

The first axis of N5 is the fastest, so axes are reversed here, as in other Python libraries. A block that was not
written holds zeros.
"""

from __future__ import annotations

import bz2
import itertools
import lzma
import math
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.sources.arrays.folders import (
    MAX_CHUNK_BYTES,
    ChunkFolderSource,
    OpenFolder,
    pick_class_attributes,
    read_metadata,
)
from packstore.sources.arrays.source import make_array_kind
from packstore.sources.arrays.stored import ArrayInfo, OpenArrays

_FILE = "attributes.json"
_DTYPES = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {"float32", "float64"}
_COMPRESSIONS = ("raw", "gzip", "bzip2", "xz")


class N5Source(ChunkFolderSource):
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
            plain = read_metadata(path / _FILE) if path.is_dir() else None
        except SourceError:
            return False
        return plain is not None and ("n5" in plain or {"dimensions", "blockSize", "dataType"} <= plain.keys())


class _OpenN5(OpenFolder):
    """Arrays of an N5 container, with their axes in numpy's order."""

    title = "N5"

    def __init__(self, path: Path) -> None:
        self._compressions: dict[str, str] = {}
        super().__init__(path)

    def read_folder_metadata(self, folder: Path) -> dict[str, Any]:
        """Reads ``attributes.json``; a group may have none."""
        return read_metadata(folder / _FILE) or {}

    def is_array(self, metadata: dict[str, Any]) -> bool:
        """Tells if metadata have dimensions."""
        return "dimensions" in metadata

    def describe_array(self, name: str, metadata: dict[str, Any]) -> ArrayInfo:
        """Describes an array. An array of another dtype or compression is unreadable."""
        shape, blocks = self.parse_shapes(name, metadata.get("dimensions") or None, metadata.get("blockSize"))
        compression = metadata.get("compression", metadata.get("compressionType"))
        kind = compression.get("type") if isinstance(compression, dict) else compression
        dtype = metadata.get("dataType")
        if not isinstance(dtype, str) or dtype not in _DTYPES or kind not in _COMPRESSIONS:
            found = printable(f"{dtype} compressed by {kind}"[:80])
            why = f"{printable(name)} holds {found}; packstore reads numbers, compressed by {', '.join(_COMPRESSIONS)}"
            return ArrayInfo.unreadable(name, shape[::-1], why)
        made = np.dtype(dtype).newbyteorder(">")
        self.check_chunk_bytes(name, math.prod(blocks) * made.itemsize)
        self.grids[name], self._compressions[name] = (shape[::-1], blocks[::-1]), str(kind)
        return ArrayInfo(name, shape[::-1], made, "numbers", blocks[-1])

    def find_chunks(self, name: str) -> Iterator[tuple[int, ...]]:
        """Yields the grid positions of the files of an array, in numpy's order."""
        return (place[::-1] for place in super().find_chunks(name))

    def read_rows(self, name: str, axis: int, start: int, stop: int) -> NDArray[Any]:
        """Reads rows ``start`` to ``stop`` along ``axis`` from all blocks that hold them. Blocks that were not written
        are zeros. Raises :class:`ValueError` for a damaged block."""
        info, block = self.infos[name], self.grids[name][1]
        low, high = [0] * len(block), list(info.shape)
        low[axis], high[axis] = start, stop
        values = np.zeros([b - a for a, b in zip(low, high, strict=True)], info.dtype)
        ranges = [range(a // size, -(-b // size)) for a, b, size in zip(low, high, block, strict=True)]
        for place in itertools.product(*ranges):
            data = self._read_block(name, place)
            if data is None:
                continue
            firsts = [number * size for number, size in zip(place, block, strict=True)]
            into, of = [], []
            for first, size, a, b in zip(firsts, data.shape, low, high, strict=True):
                begin, end = max(first, a), min(first + size, b)
                into.append(slice(begin - a, max(begin, end) - a))
                of.append(slice(begin - first, max(begin, end) - first))
            values[tuple(into)] = data[tuple(of)]
        return values

    def read_attributes(self, name: str) -> dict[str, Any]:
        """Reads from ``attributes.json`` the attributes of an array or group that may name classes, by name."""
        return pick_class_attributes(read_metadata(self.path / name / _FILE))

    def _read_block(self, name: str, place: tuple[int, ...]) -> NDArray[Any] | None:
        """Reads a block by its grid position; returns None if it was not written. Raises :class:`ValueError` for a
        damaged or too large block, and one that is no file."""
        path = (self.path / name).joinpath(*map(str, reversed(place)))
        shown = printable(str(path.relative_to(self.path)))
        if not path.is_file():
            if os.path.lexists(path):
                raise ValueError(f"block {shown} is no file")
            return None
        if path.stat().st_size > 2 * MAX_CHUNK_BYTES:
            raise ValueError(f"block {shown} has {path.stat().st_size:,} bytes, more than a block can have")
        raw, info, block = path.read_bytes(), self.infos[name], self.grids[name][1]
        try:
            mode, axes = struct.unpack_from(">HH", raw)
            shape = struct.unpack_from(f">{axes}I", raw, 4)[::-1]
            if mode != 0 or len(shape) != len(block) or any(a > b for a, b in zip(shape, block, strict=True)):
                raise ValueError(f"block {shown} has mode {mode} and the shape {shape}")
            data = _decompress(self._compressions[name], raw[4 + 4 * axes :], math.prod(shape) * info.dtype.itemsize)
        except (struct.error, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
            raise ValueError(f"block {shown} is damaged: {error}") from None
        return np.frombuffer(data, info.dtype).reshape(shape)


def _decompress(compression: str, data: bytes, size: int) -> bytes:
    """Decompresses gzip, bzip2 or xz to exactly ``size`` bytes; returns uncompressed data unchanged. Raises
    :class:`ValueError` for more or fewer bytes, and the libraries' errors for damaged data."""
    made: Any = None
    if compression == "gzip":
        made = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, by its header
        data = made.decompress(data, size + 1)
    elif compression == "bzip2":
        made = bz2.BZ2Decompressor()
        data = made.decompress(data, size + 1)
    elif compression == "xz":
        made = lzma.LZMADecompressor(memlimit=1 << 30)
        data = made.decompress(data, size + 1)
    if len(data) != size or not (made is None or made.eof):
        raise ValueError(f"a block has {len(data)} bytes or is cut off; expected {size}")
    return data


KIND = make_array_kind(N5Source, "N5 arrays of images")
