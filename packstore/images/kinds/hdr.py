"""Radiance HDR: colours of 32 bits with a common exponent, as floating point. Written after G. Ward's description of
the format in the Radiance file formats document.

A value is ``mantissa * 2 ** (exponent - 136)``; exposure and colour correction in the header are not applied.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from packstore.core.modes import Mode, mode_of
from packstore.images.header import HeaderError, ImageInfo
from packstore.images.kinds.base import OwnFile

_END = re.compile(rb"\n\r?\n")
_SIZE = re.compile(rb"([+-])([XY]) +(\d{1,9}) +([+-])([XY]) +(\d{1,9})\r?\n")
_FORMAT = re.compile(rb"^FORMAT=\s*(\S+)", re.M)
_SHORTEST, _LONGEST = 8, 0x7FFF
"""Widths of scanlines for which the newer run-length coding is defined."""


def _match_size(data: bytes) -> re.Match[bytes]:
    """Finds and matches the line with the size."""
    end = _END.search(data)
    if end is None:
        raise IndexError  # a truncated header
    line = _FORMAT.search(data, 0, end.start())
    if line is not None and line[1] != b"32-bit_rle_rgbe":
        raise HeaderError(f"is a Radiance image of {line[1][:40]!r}, and packstore reads 32-bit_rle_rgbe")
    size = _SIZE.match(data, end.end())
    if size is None and len(data) - end.end() < 40:
        raise IndexError  # a truncated header
    if size is None or size[2] == size[5]:
        raise HeaderError("is damaged: a Radiance image without a size")
    return size


def _read_new_rle(data: bytes, at: int, row: NDArray[np.uint8]) -> int:
    """Reads a scanline in the newer run-length coding into ``row`` and returns the end of its bytes."""
    width = len(row)
    # The coding has one byte plane after the other.
    for plane in range(4):
        done = 0
        while done < width:
            # Truncated data raise IndexError, or ValueError in frombuffer.
            count = data[at]
            run = count > 128
            count -= 128 * run
            if not count or done + count > width:
                raise HeaderError(f"is damaged: a Radiance run of {count} at byte {at}")
            if run:
                row[done : done + count, plane] = data[at + 1]
                at += 2
            else:
                row[done : done + count, plane] = np.frombuffer(data, np.uint8, count, at + 1)
                at += 1 + count
            done += count
    return at


def _read_old_rle(data: bytes, at: int, row: NDArray[np.uint8]) -> int:
    """Reads a scanline in the older coding, of whole pixels, into ``row`` and returns the end of its bytes."""
    width, done, shift = len(row), 0, 0
    plain = data[at : at + 4 * width]
    if len(plain) == 4 * width and b"\1\1\1" not in plain:
        row[:] = np.frombuffer(plain, np.uint8).reshape(width, 4)
        return at + 4 * width
    while done < width:
        pixel = data[at : at + 4]
        if len(pixel) < 4:
            raise HeaderError("is truncated: Radiance ends in a scanline")
        at += 4
        # 1 1 1 n repeats the last pixel n times. Runs directly after it repeat n << 8, n << 16, n << 24 times.
        if pixel[:3] == b"\1\1\1":
            count = pixel[3] << shift
            if not done or done + count > width or shift > 24:
                raise HeaderError(f"is damaged: a Radiance run of {count} at byte {at - 4}")
            row[done : done + count] = row[done - 1]
            done, shift = done + count, shift + 8
        else:
            row[done] = np.frombuffer(pixel, np.uint8)
            done, shift = done + 1, 0
    return at


def _orient_scanlines(values: NDArray[np.float32], size: re.Match[bytes]) -> NDArray[np.float32]:
    """Flips or transposes the image so that rows go down and columns to the right."""
    rows_fall, columns_rise = (
        size[1] == (b"-" if size[2] == b"Y" else b"+"),
        size[4] == (b"+" if size[5] == b"X" else b"-"),
    )
    values = values[:: 1 if rows_fall else -1, :: 1 if columns_rise else -1]
    return values if size[2] == b"Y" else values.transpose(1, 0, 2)


class Radiance(OwnFile):
    """A Radiance HDR file. Only decoding finds its end."""

    @staticmethod
    def read_header(data: bytes, whole: bool) -> ImageInfo:
        size = _match_size(data)
        columns, rows = int(size[6]), int(size[3])
        width, height = (columns, rows) if size[2] == b"Y" else (rows, columns)
        return ImageInfo("hdr", width, height, 3, 32)

    def find_mode(self) -> Mode:
        return mode_of(3, "float32")

    def decode(self, frame: int) -> NDArray[np.float32]:
        data, size = self.content, _match_size(self.content)
        rows, columns, at = int(size[3]), int(size[6]), size.end()
        # Four bytes code at most 127 of each of a pixel's four.
        if rows * columns > 64 * (len(data) - at):
            raise HeaderError(f"is truncated: {len(data) - at} bytes for {rows} x {columns} pixels")
        coded = np.empty((rows, columns, 4), np.uint8)
        for row in range(rows):
            start = data[at : at + 4]
            if len(start) < 4:
                raise HeaderError(f"is truncated: Radiance ends in scanline {row} of {rows}")
            if _SHORTEST <= columns <= _LONGEST and start[:2] == b"\2\2" and start[2] << 8 | start[3] == columns:
                at = _read_new_rle(data, at + 4, coded[row])
            else:
                at = _read_old_rle(data, at, coded[row])
        values = np.ldexp(coded[..., :3].astype(np.float32), coded[..., 3:].astype(np.int32) - 136)
        values[coded[..., 3] == 0] = 0
        return np.ascontiguousarray(_orient_scanlines(values, size), dtype=np.float32)
