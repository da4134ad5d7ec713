"""Seek indexes of JPEG files, taken apart by their documented layout."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from packstore.stores import StoreBuilder, open_store
from tests.makers.jpegs import segments

HEAD = 20
_CRC_AT = 16


def repaired(index: bytes, data: bytes) -> bytes:
    """``index`` with the checksum of what it says, for the file ``data``."""
    crc = zlib.crc32(index[HEAD:], zlib.crc32(index[:_CRC_AT], zlib.crc32(_facts(data))))
    return index[:_CRC_AT] + crc.to_bytes(4, "little") + index[HEAD:]


class Piece(NamedTuple):
    """A piece of a scan, from bit ``start`` of the file to bit ``stop``, which is before any marker behind it."""

    row: int
    column: int
    count: int
    start: int
    stop: int


def pieces(index: bytes, data: bytes) -> list[Piece]:
    """The pieces that the index of a file says there are, ``column`` and ``count`` in MCUs."""
    frame = _frame(data)
    rows, across = -(-frame.height // frame.mcu[0]), -(-frame.width // frame.mcu[1])
    bits, least = index[2:6], int.from_bytes(index[6:10], "little")
    body = int.from_bytes(index[HEAD:], "little")
    found, mcu, position = [], 0, 8 * frame.scan
    while mcu < rows * across:
        row, column = divmod(mcu, across)
        left = frame.interval - mcu % frame.interval if frame.interval else across
        count = min(index[1] - column % index[1], across - column, left)
        mcu += count
        start, position = position, position + least + (body & (1 << bits[0]) - 1)
        body >>= sum(bits)
        marker = mcu < rows * across and frame.interval and mcu % frame.interval == 0
        found.append(Piece(row, column, count, start, position - 16 * bool(marker)))
    return found


def lengths(index: bytes, data: bytes) -> tuple[list[int], int]:
    """What an index of version 2 stores of each MCU's chroma: lengths less the least, and their number of bits."""
    frame, width = _frame(data), index[-4]
    count = -(-frame.height // frame.mcu[0]) * -(-frame.width // frame.mcu[1])
    packed = int.from_bytes(index[-4 - (count * width + 7) // 8 : -4], "little")
    return [packed >> i * width & (1 << width) - 1 for i in range(count)], width


def with_lengths(index: bytes, data: bytes, values: list[int]) -> bytes:
    """The index with other stored lengths, and the checksum of these."""
    nbytes = (len(values) * index[-4] + 7) // 8
    packed = sum(value << i * index[-4] for i, value in enumerate(values))
    return repaired(index[: -4 - nbytes] + packed.to_bytes(nbytes, "little") + index[-4:], data)


def outside(index: bytes, data: bytes, box: tuple[int, int, int, int]) -> bytes:
    """The file with all coded bytes zero of the pieces that a box does not need, as far as these have whole bytes."""
    top, left, height, width = box
    changed, mcu = bytearray(data), _frame(data).mcu
    for piece in pieces(index, data):
        y, x = piece.row * mcu[0], piece.column * mcu[1]
        near_y = y - 1 <= top + height and y + mcu[0] >= top - 1
        near_x = x - 1 <= left + width and x + piece.count * mcu[1] >= left - 1
        start, stop = -(-piece.start // 8), piece.stop // 8
        if not (near_y and near_x) and start < stop:
            changed[start:stop] = bytes(stop - start)
    return bytes(changed)


def with_changes(store: Path, copy: Path, change: Callable[[bytes, bytes], tuple[bytes, bytes]]) -> None:
    """Writes a copy of a store with other files and indexes; ``change`` gets and returns a file and its index."""
    with open_store(store) as reader:
        numbers = range(len(reader))
        changed = [change(bytes(reader.read(i)), bytes(reader.value("seek_index", i))) for i in numbers]
        labels = np.array([reader.value("label", i) for i in numbers])
        values = {"key": [bytes(reader.key(i).encode()) for i in numbers], "label": labels}
        manifest = reader.manifest
        with StoreBuilder(copy, replace(manifest, encoding="original", normalization=None, versions={})) as builder:
            files, indexes = ([*each] for each in zip(*changed, strict=True))
            builder.append(files, values | {"seek_index": indexes}, "")
            builder.commit()


class _Frame(NamedTuple):
    height: int
    width: int
    components: int
    mcu: tuple[int, int]  # height and width in pixels
    interval: int
    scan: int  # place of the first coded byte
    tables: bytes  # of the scan's components


def _frame(data: bytes) -> _Frame:
    tables: dict[int, bytes] = {}
    interval = 0
    for segment in segments(data):
        content = data[segment.start + 4 : segment.stop]
        if segment.marker == 0xC4:
            while content:
                size = 17 + sum(content[1:17])
                tables[content[0]], content = content[1:size], content[size:]
        elif segment.marker == 0xDD:
            interval = int.from_bytes(content, "big")
        elif segment.marker in (0xC0, 0xC1):
            height, width, components = struct.unpack(">HHB", content[1:6])
            factors = content[7] if components == 3 else 0x11
        elif segment.marker == 0xDA:
            chosen = [content[2 + 2 * i] for i in range(content[0])]
            scan = segment.stop
    of_scan = b"".join(tables[number >> 4] + tables[16 | number & 15] for number in chosen)
    return _Frame(height, width, components, (8 * (factors & 15), 8 * (factors >> 4)), interval, scan, of_scan)


def _facts(data: bytes) -> bytes:
    """What of the file's length and headers goes into the checksum."""
    frame = _frame(data)
    numbers = (len(data), frame.scan, frame.height, frame.width, frame.interval, frame.components, *frame.mcu)
    return struct.pack("<8q", *numbers) + frame.tables
