"""The seek index: where each restart segment of a JPEG begins, in an APP11 segment of the file itself.

Layout (big-endian), after the marker and the length of the APP11 segment:

==========  ============================================================================================
10 bytes    ``packstore`` and a zero byte
u8, u8, u8  version (1); number of this part, from 0; number of parts
==========  ============================================================================================

The parts' contents behind that, joined, are a head and the lengths of all segments:

=====  =================================================================================================
u32    CRC-32 of the rest of the head, the lengths, and the bytes from the tables to the scan
u32    where the tables (quantisation, frame, Huffman, restart interval, scan header) begin in the file
u32    where the scan's coded bytes begin
u32    their number, end marker included
u16    where the frame header begins, counted from the tables
u16    how many bytes of the file, from its beginning, decide on colours (SOI, JFIF and Adobe segments)
u16    width; then u16 height, of the image in pixels
u16    MCUs in a segment (the restart interval)
u16    segments in a row of MCUs; then u16 rows
u8     MCU height; then u8 MCU width, in pixels
u8     rows (high four bits) and columns of pixels around a box that its pixels depend on
u8     bits of the high parts: 0, 1, 2, 4, 8 or 16
...    low byte of each segment's length, which counts the marker at its end too
...    high part of each length, packed from the highest bit on
=====  =================================================================================================
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.images.seekable.markers import (
    APP0,
    APP11,
    APP14,
    COM,
    DRI,
    EOI,
    RST0,
    SOF0,
    SOF1,
    Data,
    FrameHeader,
    NotSeekableError,
    Segment,
    frame_header,
    is_scan_whole,
    restart_interval,
    segments,
)

_NAME = b"packstore\0"
_VERSION = 1
_OPENING = struct.Struct(">BBH10sBBB")  # marker and length of the segment included
_HEAD = struct.Struct(">IIIIHHHHHHHBBBB")
_PART_BYTES = 65533 - (_OPENING.size - 4)
_APPS = range(APP0, APP0 + 16)
_HIGH_BITS = (0, 1, 2, 4, 8, 16)
_STEPS = 4  # segments before the index at most: JFIF, its extension, Adobe, EXIF


class Index(NamedTuple):
    """A seek index whose checksum is right, with the fields of the head.

    Attributes:
        lengths_at: Where the lengths begin in ``lengths_in``.
        lengths_in: The file, or the joined parts.
    """

    crc: int
    tables_at: int
    scan_at: int
    scan_bytes: int
    frame_at: int
    prefix_bytes: int
    width: int
    height: int
    interval: int
    across: int
    rows: int
    mcu_height: int
    mcu_width: int
    margins: int
    high_bits: int
    lengths_at: int
    lengths_in: Data


def read_index(data: Data) -> Index | None:
    """The seek index of a JPEG file; None where there is none, or it does not match the file.

    The checks take 3 µs: the checksum over index and tables; size, MCUs and interval against the frame header and the
    restart interval, so that even a forged index is right about these; the end of the image where the index has it.
    :func:`packstore.images.seekable.splice` checks the boundaries of segments.
    """
    try:
        at = prefix = 2
        for _ in range(_STEPS):
            opening, marker, length, name, version, part, parts = _OPENING.unpack_from(data, at)
            if opening != 0xFF:
                return None
            if marker == APP11 and name == _NAME:
                break
            at += 2 + length
            if marker in (APP0, APP14):
                prefix = at
        if name != _NAME or version != _VERSION or part or not parts:
            return None
        start, stop = at + _OPENING.size, at + 2 + length
        body: Data = data if parts == 1 else _join(data, at, parts)
        if body is not data:
            start, stop = 0, len(body)
        head = _HEAD.unpack_from(body, start)
        crc, tables_at, scan_at, scan_bytes, frame_at, prefix_bytes, width, height, interval, across, rows = head[:11]
        mcu_height, mcu_width, margins, high_bits = head[11:]
        view = memoryview(body)
        found = zlib.crc32(view[start + 4 : stop])
        found = zlib.crc32(memoryview(data)[tables_at:scan_at], found)
        count = across * rows
        frame_start = tables_at + frame_at
        marker, _, precision, frame_height, frame_width, components = _FRAME.unpack_from(data, frame_start)
        sampling = bytes(data[frame_start + 11 : frame_start + 9 + 3 * components : 3])
        restart = _RESTART.unpack_from(data, scan_at - 8 - 2 * components - _RESTART.size)
        end = scan_at + scan_bytes
        if (
            found != crc
            or stop - start != _HEAD.size + count + (count * high_bits + 7 >> 3)
            or high_bits not in _HIGH_BITS
            or marker not in (0xFF00 | SOF0, 0xFF00 | SOF1)
            or (precision, frame_height, frame_width) != (8, height, width)
            or (mcu_height, mcu_width, margins) != _geometry(sampling)
            or restart != (0xFF00 | DRI, 4, interval)
            or rows != -(-height // mcu_height)
            or interval * across != -(-width // mcu_width)
            or not count
            or prefix_bytes != prefix
            or tables_at > scan_at - frame_at - 9
            or scan_bytes < 2
            or data[end - 1] != EOI
            or data[end - 2] != 0xFF
        ):
            return None
    except (struct.error, IndexError):  # cut off, or pointing out of the file
        return None
    return Index._make((*head, start + _HEAD.size, body))


_FRAME = struct.Struct(">HHBHHB")  # marker and length included
_RESTART = struct.Struct(">HHH")


@functools.lru_cache
def _geometry(sampling: bytes) -> tuple[int, int, int] | None:
    """MCU height, width and margins, as the head has them, for the sampling factors of the frame header; None for
    factors that there are not."""
    frame = FrameHeader(SOF0, 8, 1, 1, tuple((factors >> 4, factors & 15) for factors in sampling))
    if len(sampling) not in (1, 3) or not all(1 <= h <= 4 and 1 <= v <= 4 for h, v in frame.sampling):
        return None
    return *frame.mcu, frame.margin[0] << 4 | frame.margin[1]


def _join(data: Data, at: int, parts: int) -> bytes:
    joined = []
    for expected in range(parts):
        opening, marker, length, name, version, part, count = _OPENING.unpack_from(data, at)
        if (opening, marker, name, version, part, count) != (0xFF, APP11, _NAME, _VERSION, expected, parts):
            raise IndexError("the parts of the index do not follow each other")
        joined.append(bytes(data[at + _OPENING.size : at + 2 + length]))
        at += 2 + length
    return b"".join(joined)


def lengths(indexes: Sequence[Index]) -> NDArray[np.int64]:
    """Bytes of all segments of all images, one image after the other, markers at the end included."""
    counts = np.array([index.across * index.rows for index in indexes])
    each = np.frombuffer(_bytes_of(indexes, [0] * len(indexes), counts.tolist()), np.uint8).astype(np.int64)
    own = np.cumsum(counts) - counts
    bits = np.array([index.high_bits for index in indexes])
    for width in _HIGH_BITS[1:]:
        chosen = np.flatnonzero(bits == width)
        if not len(chosen):
            continue
        count = counts[chosen]
        nbytes = count * width + 7 >> 3
        packed = _bytes_of([indexes[n] for n in chosen.tolist()], count.tolist(), nbytes.tolist())
        if width < 8:
            high = _UNPACKED[width][np.frombuffer(packed, np.uint8)].reshape(-1)
        else:
            high = np.frombuffer(packed, f">u{width // 8}").astype(np.int64) << 8
        held = nbytes * 8 // width  # an image's begin on a whole byte
        order = np.arange(count.sum())
        before = np.cumsum(count) - count
        each[order + np.repeat(own[chosen] - before, count)] += high[
            order + np.repeat(np.cumsum(held) - held - before, count)
        ]
    return each


def _bytes_of(indexes: Sequence[Index], starts: Sequence[int], nbytes: Sequence[int]) -> bytes:
    """Some bytes of each index; ``starts`` are offsets from its first length."""
    return b"".join(
        [
            index.lengths_in[index.lengths_at + start : index.lengths_at + start + n]
            for index, start, n in zip(indexes, starts, nbytes, strict=True)
        ]
    )


def _unpacked(bits: int) -> NDArray[np.int32]:
    """The high parts that each byte holds, times 256: ``(256, 8 // bits)``."""
    shifts = np.arange(8 - bits, -1, -bits)
    return ((np.arange(256)[:, None] >> shifts & (1 << bits) - 1) << 8).astype(np.int32)


_UNPACKED = {bits: _unpacked(bits) for bits in (1, 2, 4)}


def _pack(values: NDArray[np.int64], bits: int) -> bytes:
    """The low ``bits`` bits of each, from the highest bit of each byte on."""
    if bits >= 8:
        return values.astype(f">u{bits // 8}").tobytes()
    if not bits:
        return b""
    shifts = np.arange(8 - bits, -1, -bits, dtype=np.uint8)
    padded = np.zeros((-(-len(values) // len(shifts)), len(shifts)), np.uint8)
    padded.reshape(-1)[: len(values)] = values
    packed: NDArray[np.uint8] = np.bitwise_or.reduce(padded << shifts, axis=1)
    return packed.tobytes()


def add_index(data: Data) -> bytes:
    """The JPEG file ``data`` with a seek index; one that it has already is replaced.

    Everything else stays, in this order: what decides on colours, EXIF where it is first, the index, the other
    metadata, the tables, the scan, what follows the end. The engine writes the same (``assemble.c``).

    Raises:
        NotSeekableError: It is not a baseline JPEG of one scan, with restart markers at an interval that divides the
            rows of MCUs; or it is too large for an index.
    """
    found = segments(data)
    frame = frame_header(data, found)
    check_frame_header(frame)
    if frame.sof not in (SOF0, SOF1) or not is_scan_whole(data, found, len(frame.sampling)):
        raise NotSeekableError("is not a baseline JPEG of one scan")
    rows, columns = frame.mcus
    interval = restart_interval(data, found)
    if not interval or columns % interval:
        raise NotSeekableError(f"has restart markers every {interval} MCUs, with {columns} in a row")
    across = columns // interval
    scan_at = found[-1].stop
    ends = segment_ends(data, scan_at, across * rows)
    prefix, exif, others, tables = _sorted([bytes(data[segment.start : segment.stop]) for segment in found])
    metadata = b"".join(others)
    tables_bytes = b"".join(tables)
    frame_at = sum(map(len, tables[: next(i for i, t in enumerate(tables) if t[1] in (SOF0, SOF1))]))
    each = ends.copy()
    each[1:] -= ends[:-1]
    longest = int(np.maximum.reduce(each))
    bits = next((bits for bits in _HIGH_BITS if longest < 256 << bits), None)
    if bits is None or frame_at > 65535 or len(prefix) > 65535:
        raise NotSeekableError("is too large for an index")
    each_packed = each.astype(np.uint8).tobytes() + _pack(each >> 8, bits)  # the low byte of each, then the others
    size = _HEAD.size + len(each_packed)
    parts = -(-size // _PART_BYTES)
    if parts > 255:
        raise NotSeekableError(f"has {across * rows} segments, too many for an index")
    tables_at = len(prefix) + len(exif) + size + parts * _OPENING.size + len(metadata)
    geometry = _geometry(bytes(h << 4 | v for h, v in frame.sampling))
    assert geometry is not None
    head = _HEAD.pack(
        0,
        tables_at,
        tables_at + len(tables_bytes),
        int(ends[-1]),
        frame_at,
        len(prefix),
        frame.width,
        frame.height,
        interval,
        across,
        rows,
        *geometry,
        bits,
    )
    body = head[4:] + each_packed
    body = zlib.crc32(tables_bytes, zlib.crc32(body)).to_bytes(4, "big") + body
    index = []
    for part, start in enumerate(range(0, size, _PART_BYTES)):
        piece = body[start : start + _PART_BYTES]
        opening = _OPENING.pack(0xFF, APP11, len(piece) + _OPENING.size - 2, _NAME, _VERSION, part, parts)
        index += [opening, piece]
    return b"".join((prefix, exif, *index, metadata, tables_bytes, memoryview(data)[scan_at:]))


def without_index(data: Data) -> bytes:
    """``data`` without its seek index. Raises :class:`NotSeekableError` where it is no JPEG."""
    found = segments(data)
    view = memoryview(data)
    kept = [view[segment.start : segment.stop] for segment in found if not _is_index(data, segment)]
    return b"".join((view[: found[0].start], *kept, view[found[-1].stop :]))


def check_frame_header(frame: FrameHeader) -> None:
    """Raises :class:`NotSeekableError` for a kind of JPEG of which packstore cannot decode parts."""
    if frame.sof > 0xC8:
        raise NotSeekableError("has arithmetic coding")
    if frame.sof not in (SOF0, SOF1, 0xC2):
        raise NotSeekableError("is a lossless or hierarchical JPEG")
    if frame.precision != 8:
        raise NotSeekableError(f"has {frame.precision} bits a sample")
    if len(frame.sampling) not in (1, 3):
        raise NotSeekableError(f"has {len(frame.sampling)} colour components")


def segment_ends(data: Data, scan_at: int, count: int) -> NDArray[np.int64]:
    """Offsets, from the first byte of a scan, at which its ``count`` restart segments end, markers included.

    Reads every byte. Raises :class:`NotSeekableError` unless there are so many, numbered in order, and then the end."""
    scan = np.frombuffer(data, np.uint8, offset=scan_at)
    at = np.flatnonzero(scan[:-1] == 0xFF)
    found = scan[at + 1]
    at, found = at[found != 0], found[found != 0]  # 0xFF and 0 are a coded 0xFF
    expected = RST0 + np.arange(count, dtype=np.uint8) % 8
    expected[-1] = EOI
    right = found[:count] == expected[: len(found)]
    if not right.all():
        first = int(right.argmin())
        raise NotSeekableError(
            f"has the marker {found[first]:#04x} after segment {first + 1} of {count}, expected {expected[first]:#04x}"
        )
    if len(right) < count:
        raise NotSeekableError(f"ends after {len(right)} of {count} segments")
    return np.asarray(at[:count] + 2, np.int64)


def check_index(data: Data) -> str | None:
    """What is wrong with the seek index of a file; None for a right index, or none at all. Reads the whole file."""
    try:
        found = segments(data)
    except NotSeekableError as error:
        return None if read_index(data) is None else f"its seek index is that of another file: it {error.reason}"
    if not any(_is_index(data, segment) for segment in found):
        return None
    index = read_index(data)
    if index is None:
        return "its seek index does not match the file"
    try:
        expected = add_index(data)
    except NotSeekableError as error:
        return f"it has a seek index, but {error.reason}"
    return None if expected == data else "its seek index does not match the segments of the scan"


def _is_index(data: Data, segment: Segment) -> bool:
    start = segment.start + 4
    return segment.marker == APP11 and bytes(data[start : start + len(_NAME)]) == _NAME


def _sorted(contents: Sequence[bytes]) -> tuple[bytes, bytes, list[bytes], list[bytes]]:
    """Segments in four groups: the start marker and what decides on colours; EXIF, if it comes first of the rest; the
    rest of the metadata, without a seek index; the tables."""
    prefix, others, tables, interval = [b"\xff\xd8"], [], [], b""
    for content in contents:
        marker = content[1]
        if marker in (APP0, APP14):
            prefix.append(content)
        elif marker in _APPS or marker == COM:
            if marker != APP11 or not content.startswith(_NAME, 4):
                others.append(content)
        elif marker == DRI:
            interval = content
        else:
            tables.append(content)
    # Readers of EXIF expect it at the beginning.
    exif = others.pop(0) if others and others[0][4:10] == b"Exif\0\0" else b""
    if len(prefix) > _STEPS - 1:
        raise NotSeekableError("has more JFIF and Adobe segments than it should")
    tables.insert(-1, interval)  # right before the scan header, where libjpeg has it and read_index looks for it
    return b"".join(prefix), exif, others, tables
