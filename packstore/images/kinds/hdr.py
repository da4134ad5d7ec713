"""Images of high dynamic range: Radiance HDR and OpenEXR, as floating point."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.modes import Mode, mode_of
from packstore.images.header import HeaderError, ImageInfo
from packstore.images.kinds.base import OwnFile, import_extra, to_mode_dtype

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
    """A Radiance HDR file: colours of 32 bits with a common exponent. Only decoding finds its end.

    Written after G. Ward's description in the Radiance file formats document. A value is ``mantissa * 2 ** (exponent -
    136)``; exposure and colour correction in the header are not applied.
    """

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


_TILED, _DEEP, _PARTS = 0x200, 0x800, 0x1000
_TYPES = {0: "uint32", 1: "float16", 2: "float32"}
_LINES = {0: 1, 1: 1, 2: 1, 3: 16, 4: 32, 5: 16, 6: 32, 7: 32, 8: 32, 9: 256, 10: 256, 11: 32}
"""Scanlines of a chunk by compression."""
_RIPMAP = 2
_USUAL = (("Y",), ("Z",), ("Y", "A"), ("R", "G", "B"), ("R", "G", "B", "A"))
"""Usual sets of channels, in the order of the result; files list channels by name."""


class _ExrHeader(NamedTuple):
    """Header of an OpenEXR file.

    Attributes:
        width: Width of the data window.
        height: Height of the data window.
        channels: Dtype of each channel by name, in the order of the pixels.
        chunks: Number of chunks.
        end: Offset of the table of chunks.
    """

    width: int
    height: int
    channels: dict[str, str]
    chunks: int
    end: int


def _parse_header(data: bytes) -> _ExrHeader:
    """Parses the attributes of the header and counts the chunks."""
    version, flags = data[4], int.from_bytes(data[4:8], "little")
    if version != 2:
        raise HeaderError(f"is an OpenEXR image of version {version}, and packstore reads version 2")
    for flag, what in ((_DEEP, "deep pixels"), (_PARTS, "several parts")):
        if flags & flag:
            raise HeaderError(f"is an OpenEXR image of {what}, which packstore does not read: write it as a plain one")
    attributes: dict[str, bytes] = {}
    at = 8
    while data[at]:
        end = _find_null_byte(data, at)
        name, at = data[at:end], _find_null_byte(data, end + 1) + 1
        (size,) = struct.unpack_from("<I", data, at)
        if at + 4 + size > len(data):
            raise IndexError  # truncated
        attributes[name.decode("latin-1")] = data[at + 4 : at + 4 + size]
        at += 4 + size
    if not {"channels", "dataWindow", "compression"} <= attributes.keys():
        raise HeaderError("is damaged: an OpenEXR image without channels, data window or compression")
    left, top, right, bottom = struct.unpack("<4i", attributes["dataWindow"])
    width, height = right - left + 1, bottom - top + 1
    names = dict(_parse_channels(attributes["channels"]))
    if width < 1 or height < 1 or not names:
        raise HeaderError(f"has no pixels: its header says {width} x {height} with {len(names)} channels")
    if attributes["compression"][0] not in _LINES:
        raise HeaderError(
            f"is an OpenEXR image of compression {attributes['compression'][0]}, which packstore does not read"
        )
    order = next((each for each in _USUAL if {*each} == {*names}), tuple(names))
    if flags & _TILED:
        chunks = _count_tiles(width, height, attributes.get("tiles", b""))
    else:
        chunks = -(-height // _LINES[attributes["compression"][0]])
    return _ExrHeader(width, height, {name: names[name] for name in order}, chunks, at + 1)


def _find_null_byte(data: bytes, at: int) -> int:
    """Returns the position of the next null byte."""
    end = data.find(b"\0", at)
    if end < 0:
        raise IndexError  # truncated
    return end


def _parse_channels(data: bytes) -> Iterator[tuple[str, str]]:
    """Yields name and dtype of each channel."""
    at = 0
    while data[at]:
        end = _find_null_byte(data, at)
        kind, _, across, down = struct.unpack_from("<4I", data, end + 1)
        name = data[at:end].decode("latin-1")
        if kind not in _TYPES:
            raise HeaderError(f"is damaged: an OpenEXR channel {name[:40]!r} of type {kind}")
        if (across, down) != (1, 1):
            raise HeaderError(
                f"is an OpenEXR image with less of {name[:40]!r} than of others, which packstore does not read"
            )
        yield name, _TYPES[kind]
        at = end + 17


def _count_tiles(width: int, height: int, description: bytes) -> int:
    """Counts the tiles of all resolution levels; ``description`` is the attribute ``tiles``."""
    across: int
    down: int
    across, down, levels = struct.unpack("<IIB", description)  # struct.error for another length
    if not across or not down:
        raise HeaderError(f"is damaged: OpenEXR tiles of {across} x {down}")
    kind, up = levels & 15, levels >> 4
    if kind > _RIPMAP or up > 1:
        raise HeaderError(f"is damaged: OpenEXR tiles of level mode {kind} and rounding {up}")

    def sides(side: int) -> list[int]:
        """Returns a side's lengths at all levels, down to 1."""
        lengths = [side]
        while lengths[-1] > 1:
            lengths.append((lengths[-1] + up) // 2)
        return lengths

    def tiles(wide: int, high: int) -> int:
        """Counts the tiles of a level."""
        return (-wide // across) * (-high // down)

    if kind == 0:
        return tiles(width, height)
    if kind == _RIPMAP:
        return sum(tiles(wide, high) for wide in sides(width) for high in sides(height))
    wides, highs = sides(width), sides(height)
    count = max(len(wides), len(highs))
    return sum(tiles(wides[min(n, len(wides) - 1)], highs[min(n, len(highs) - 1)]) for n in range(count))


class OpenExr(OwnFile):
    """An OpenEXR file. Refuses deep pixels, several parts, subsampled channels and unknown compressions.

    The header is parsed here, after "OpenEXR File Layout" of its documentation; the library of that name decodes the
    pixels of the data window, of the largest level.
    """

    @staticmethod
    def read_header(data: bytes, whole: bool) -> ImageInfo:
        header = _parse_header(data)
        if whole:
            if header.end + 8 * header.chunks > len(data):
                raise HeaderError(
                    f"is truncated: a table of {header.chunks:,} chunks, the file has {len(data):,} bytes"
                )
            last = int(np.frombuffer(data, "<u8", header.chunks, header.end).max())
            # Header of a chunk: coordinates (four for a tile), and the size of the pixels.
            place = last + (16 if int.from_bytes(data[4:8], "little") & _TILED else 4)
            end = place + 4 + int.from_bytes(data[place : place + 4], "little")
            if end > len(data):
                raise HeaderError(f"is truncated: its last chunk ends at byte {end}, the file has {len(data)}")
        bits = max(16 if dtype == "float16" else 32 for dtype in header.channels.values())
        return ImageInfo("exr", header.width, header.height, len(header.channels), bits)

    @classmethod
    def import_library(cls) -> Any:
        return import_extra("OpenEXR", "exr", "an OpenEXR image")

    def find_mode(self) -> Mode:
        is_whole = {*_parse_header(self.content).channels.values()} == {"uint32"}
        return mode_of(self.info.components, "int32" if is_whole else "float32")

    def decode(self, frame: int) -> NDArray[Any]:
        channels = _parse_header(self.content).channels
        planes = self.import_library().InputFile(io.BytesIO(self.content)).channels([*channels])
        shape = self.info.height, self.info.width
        pixels = np.stack(
            [
                np.frombuffer(plane, dtype).reshape(shape)
                for plane, dtype in zip(planes, channels.values(), strict=True)
            ],
            axis=-1,
        )
        # Mixed with whole numbers, numpy converts floating point to float64: compare all values.
        return np.ascontiguousarray(to_mode_dtype(pixels, "an OpenEXR image"))
