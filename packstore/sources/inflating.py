"""Reads a gzip file, or a compressed file in a zip, at any position without unpacking it to disk.

Python's ``gzip`` starts again for each step back. :class:`GzipReader` keeps the decompressor's state every 16 MiB, and
resumes from there.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import IO, Any

_CHUNK = 1 << 18
_STEP = 16 << 20
_MAX_READ = 1 << 28
_MAX_PADDING = 1 << 26
_GZIP, ZLIB = 31, zlib.MAX_WBITS  # zlib's window bits for gzip headers and trailers, and for its own


class InflatedFile:
    """Content of a gzip file (RFC 1952), a zlib stream (RFC 1950) or a deflate stream (RFC 1951), read in order.

    A gzip file may have several members. Reading raises :class:`EOFError` for truncated data, and :class:`zlib.error`
    for damaged data. The checksum of a member is verified at its end.
    """

    def __init__(self, file: IO[bytes], bits: int = _GZIP, end: int | None = None) -> None:
        """``bits``: window bits of zlib. ``end``: position in the file at which a stream without its own end stops."""
        self._file, self._bits, self._end = file, bits, end
        self._inflate = zlib.decompressobj(bits)

    def read(self, size: int) -> bytes:
        """Reads the next ``size`` bytes; fewer only at the end. Raises :class:`ValueError` for more than 256 MiB."""
        # tarfile takes any shorter read for the end, and asks for the size in a broken header.
        if size > _MAX_READ:
            raise ValueError(f"a header asks for {size} bytes")
        parts: list[bytes] = []
        while size and (part := self._inflate_next(min(size, _CHUNK * 4))):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _inflate_next(self, size: int) -> bytes:
        """Inflates the next bytes, at most ``size``; returns ``b""`` at the end."""
        while True:
            pending = self._inflate.unconsumed_tail
            if self._inflate.eof:
                pending = self._find_next_member()
                if not pending:
                    return b""
                self._inflate = zlib.decompressobj(self._bits)
            if not pending:
                pending = self._file.read(_CHUNK if self._end is None else min(_CHUNK, self._end - self._file.tell()))
            data = self._inflate.decompress(pending, size)
            if data:
                return data
            if not pending and not self._inflate.eof:
                raise EOFError("the compressed data is cut off")

    def _find_next_member(self) -> bytes:
        """Returns the first bytes of the next member of a gzip file, behind zeros; ``b""`` at the end."""
        pending, zeros = self._inflate.unused_data.lstrip(b"\0"), 0
        while self._bits == _GZIP and not pending and (data := self._file.read(_CHUNK)):
            zeros += len(data)
            if zeros > _MAX_PADDING:
                raise zlib.error(f"more than {_MAX_PADDING >> 20} MiB of zeros follow the compressed data")
            pending = data.lstrip(b"\0")
        return pending if self._bits == _GZIP else b""


class GzipReader(InflatedFile):
    """Content of a gzip file or deflate stream, readable at any position. Keeps some 50 KB for every 16 MiB that it has
    read. Not thread-safe."""

    def __init__(self, path: Path, deflated: tuple[int, int] | None = None, window_bits: int = -ZLIB) -> None:
        """Opens the file. ``deflated``: start and size in bytes of a bare deflate stream (RFC 1951), if the file
        contains that instead; ``window_bits`` of ``ZLIB``: of a zlib stream (RFC 1950)."""
        start, size = deflated or (0, 0)
        bits, end = (_GZIP, None) if deflated is None else (window_bits, start + size)
        super().__init__(path.open("rb"), bits, end)
        self._file.seek(start)
        self._position = 0
        # (position in the content, position in the file, state) of points to resume from, about 50 KB each
        self._points: list[tuple[int, int, Any]] = [(0, start, self._inflate.copy())]

    def close(self) -> None:
        """Closes the compressed file."""
        self._file.close()

    def seek(self, offset: int) -> int:
        """Seeks from the start, and returns the new position. Stops at the end. May inflate all content before the
        position."""
        point = max((p for p in self._points if p[0] <= offset), key=lambda p: p[0])
        if offset < self._position or point[0] > self._position:
            self._position, at, state = point
            self._file.seek(at)
            self._inflate = state.copy()
        while self._position < offset and self._inflate_next(min(offset - self._position, _CHUNK)):
            continue
        return self._position

    def read_at(self, size: int, offset: int, name: str = "it") -> bytes:
        """Reads exactly ``size`` bytes at an offset of the decompressed content. Raises :class:`ValueError`, with
        ``name``, if they are damaged or missing."""
        try:
            self.seek(offset)
            data = self.read(size)
        except (zlib.error, EOFError) as error:
            raise ValueError(f"{name} is damaged: {error}") from None
        if len(data) != size:
            raise ValueError(f"{name} is cut off")
        return data

    def _inflate_next(self, size: int) -> bytes:
        """Inflates the next bytes as the base does, and keeps the state every 16 MiB."""
        data = super()._inflate_next(size)
        self._position += len(data)
        if self._position >= self._points[-1][0] + _STEP and not self._inflate.eof:
            self._points.append((self._position, self._file.tell(), self._inflate.copy()))
        return data
