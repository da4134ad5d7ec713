"""Reads chunks of LitData that are compressed by Zstandard: as a whole, by batches of items, or item by item
(``litdata/streaming/framed_zstd.py``). Writes them to temporary files in the layout of uncompressed ones.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from packstore.core.errors import printable
from packstore.sources.archives.index import OpenFile
from packstore.sources.archives.tar import ZSTANDARD, detect_compression, load_zstandard, write_temporary
from packstore.sources.records.files import OpenFiles

_FRAMED = b"LDFZ01\0\0"
_HEAD, _FRAME = struct.Struct("<8sHHIII"), struct.Struct("<IIQII")
_STEP = 1 << 20


class ChunkFiles(OpenFiles):
    """Opens chunks of LitData. Decompresses compressed chunks to temporary files."""

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__(paths, detect_compression)

    def _open_file(self, path: Path) -> OpenFile:
        """Opens a chunk. Decompresses it to a temporary file if it is compressed as a whole, by batches or by items.
        Raises :class:`SourceError` if it cannot be read, or is damaged."""
        file, name = super()._open_file(path), printable(str(path))
        size = os.fstat(file.descriptor).st_size
        count = int.from_bytes(file.read(4, 0), "little")
        if file.read(len(_FRAMED), 0) == _FRAMED:
            pieces = _inflate_frames(file, size, name)
        elif file.read(4, 4 * (count + 2)) == ZSTANDARD:  # otherwise the size of a value is there
            pieces = _inflate_items(file, size, count, name)
        else:
            return file
        with write_temporary(pieces, size, name) as whole:
            return OpenFile(os.dup(whole.fileno()))


def _inflate_frames(file: OpenFile, size: int, name: str) -> Iterator[bytes]:
    """Yields the uncompressed content of a chunk that is compressed by batches.

    Raises :class:`ValueError` if it is inconsistent, or larger than 4 GB. Also raises the errors of
    :func:`_inflate_frame`."""
    head = file.read(_HEAD.size, 0)
    if len(head) < _HEAD.size:
        raise ValueError("it ends within its header")
    _, version, _, count, _, frames = _HEAD.unpack(head)
    table = _HEAD.size + 4 * (count + 1)
    if version != 1 or table + _FRAME.size * frames > size:
        raise ValueError(f"its header says version {version}, {count} items and {frames} frames")
    offsets = np.frombuffer(file.read(4 * (count + 1), _HEAD.size), "<u4").astype(np.int64) + 4 * (count + 2)
    if offsets[-1] >= 1 << 32:
        raise ValueError("it has more than 4 GB")
    yield np.uint32(count).tobytes() + offsets.astype("<u4").tobytes()
    first = total = 0
    for number in range(frames):
        said, items, at, packed, nbytes = _FRAME.unpack(file.read(_FRAME.size, table + _FRAME.size * number))
        if said != first or at + packed > size:
            raise ValueError(f"frame {number} is not where it should be")
        yield from _inflate_frame(file.read(packed, at), nbytes, name, exactly=True)
        first, total = first + items, total + nbytes
    if first != count or total != offsets[-1] - offsets[0]:
        raise ValueError(f"its frames hold {first} items of {total} bytes")


def _inflate_items(file: OpenFile, size: int, count: int, name: str) -> Iterator[bytes]:
    """Yields the uncompressed content of a chunk whose items are compressed one by one.

    Raises :class:`ValueError` if it is inconsistent, or larger than 4 GB. Also raises the errors of
    :func:`_inflate_frame`."""
    places = np.frombuffer(file.read(4 * (count + 1), 4), "<u4").tolist()
    if len(places) != count + 1 or places != sorted(places) or places[-1] > size:
        raise ValueError("its items are not where they should be")
    # Sizes come before items: inflating all items twice keeps only one in memory.
    offsets = [4 * (count + 2)]
    for start, stop in pairwise(places):
        offsets.append(offsets[-1] + sum(map(len, _inflate_frame(file.read(stop - start, start), 1 << 32, name))))
        if offsets[-1] >= 1 << 32:
            raise ValueError("it has more than 4 GB")
    yield np.array([count, *offsets], "<u4").tobytes()
    for start, stop in pairwise(places):
        yield from _inflate_frame(file.read(stop - start, start), 1 << 32, name)


def _inflate_frame(data: bytes, most: int, name: str, *, exactly: bool = False) -> Iterator[bytes]:
    """Yields the uncompressed content of a Zstandard frame in pieces, at most ``most`` bytes.

    Raises :class:`ValueError` if the frame has more bytes; with ``exactly``, also if it has fewer. Raises the library's
    errors for damage, and :class:`SourceError` without the library."""
    nbytes = 0
    with load_zstandard(name).ZstdDecompressor().stream_reader(data) as stream:
        while piece := stream.read(_STEP):
            nbytes += len(piece)
            if nbytes > most:
                break
            yield piece
    if nbytes > most or (exactly and nbytes != most):
        raise ValueError(f"a frame has {nbytes} bytes or more, where it should have {most}")
