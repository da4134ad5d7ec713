"""The segments of a JPEG file, and the geometry of its frame: ITU-T T.81, B.1 for markers, A.1 and A.2 for geometry."""

from __future__ import annotations

import struct
from typing import NamedTuple

Data = bytes | bytearray | memoryview

SOF0, SOF1, SOF2, DHT, RST0, EOI, SOS, DQT, DRI = 0xC0, 0xC1, 0xC2, 0xC4, 0xD0, 0xD9, 0xDA, 0xDB, 0xDD
APP0, APP2, APP11, APP14, COM = 0xE0, 0xE2, 0xEB, 0xEE, 0xFE
_WITHOUT_LENGTH = frozenset((0x00, 0x01, *range(0xD0, 0xDA), 0xFF))
_SOFS = frozenset(range(0xC0, 0xD0)) - {DHT, 0xC8, 0xCC}
_FRAME = struct.Struct(">BHHB")
_OPENING = struct.Struct(">BBH")


class NotSeekableError(ValueError):
    """A file is not seekable, or cannot be made so.

    Attributes:
        reason: Why, to follow the name of a file: ``"has arithmetic coding"``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Segment(NamedTuple):
    """A marker segment: ``data[start:stop]``, from its 0xFF to its last byte."""

    marker: int
    start: int
    stop: int


class FrameHeader(NamedTuple):
    """The frame header of a JPEG.

    Attributes:
        sof: Marker of the header: 0xC0 baseline, 0xC2 progressive …
        precision: Bits a sample.
        width: In pixels.
        height: In pixels.
        sampling: Horizontal and vertical factor of each component.
    """

    sof: int
    precision: int
    width: int
    height: int
    sampling: tuple[tuple[int, int], ...]

    @property
    def mcu(self) -> tuple[int, int]:
        """Height and width of an MCU in pixels, in a scan of all components."""
        if len(self.sampling) == 1:  # such a scan is not interleaved: one block at a time, whatever the factors
            return 8, 8
        return 8 * max(v for _, v in self.sampling), 8 * max(h for h, _ in self.sampling)

    @property
    def mcus(self) -> tuple[int, int]:
        """MCU rows, and MCUs a row."""
        height, width = self.mcu
        return -(-self.height // height), -(-self.width // width)

    @property
    def margin(self) -> tuple[int, int]:
        """Rows and columns around a box that its pixels depend on.

        Along an axis on which chroma is subsampled, fancy upsampling blends each chroma sample with its neighbours; for
        a pixel of the box these lie under the next pixel at most. Without subsampling, pixels are independent.
        """
        if len(self.sampling) == 1:
            return 0, 0
        columns, rows = (int(len(set(factors)) > 1) for factors in zip(*self.sampling, strict=True))
        return rows, columns


def segments(data: Data) -> list[Segment]:
    """The segments up to and including the first start of scan. Raises :class:`NotSeekableError` for anything unusual:
    bytes between segments, fill bytes, a segment that is cut off, no scan."""
    if bytes(data[:2]) != b"\xff\xd8":
        raise NotSeekableError("is not a JPEG")
    found: list[Segment] = []
    at, size = 2, len(data)
    while True:
        ff, marker, length = _OPENING.unpack_from(data, at) if at + 4 <= size else (0, 0, 0)
        if ff != 0xFF or marker in _WITHOUT_LENGTH:
            raise NotSeekableError(f"has no marker where one should be, at byte {at}")
        stop = at + 2 + length
        if length < 2 or stop > size:
            raise NotSeekableError(f"has a segment of impossible length at byte {at}")
        found.append(Segment(marker, at, stop))
        if marker == SOS:
            return found
        at = stop


def frame_header(data: Data, found: list[Segment]) -> FrameHeader:
    """The frame header among ``found``. Raises :class:`NotSeekableError` unless there is exactly one, and whole."""
    headers = [segment for segment in found if segment.marker in _SOFS]
    if len(headers) != 1:
        raise NotSeekableError(f"has {len(headers)} frame headers")
    marker, start, stop = headers[0]
    if stop - start < 10 or stop - start < 10 + 3 * data[start + 9]:
        raise NotSeekableError("has a frame header that is too short")
    precision, height, width, components = _FRAME.unpack_from(data, start + 4)
    factors = (data[start + 11 + 3 * i] for i in range(components))
    sampling = tuple((factor >> 4, factor & 15) for factor in factors)
    if not (height and width and sampling and all(1 <= h <= 4 and 1 <= v <= 4 for h, v in sampling)):
        raise NotSeekableError("has an impossible frame header")
    return FrameHeader(marker, precision, width, height, sampling)


def restart_interval(data: Data, found: list[Segment]) -> int:
    """MCUs between restart markers; 0 for none."""
    intervals = [data[s.start + 4] << 8 | data[s.start + 5] for s in found if s.marker == DRI and s.stop - s.start == 6]
    return intervals[-1] if intervals else 0


def is_scan_whole(data: Data, found: list[Segment], components: int) -> bool:
    """Whether the first scan has all components and all coefficients, as in a baseline file."""
    start, stop = found[-1].start, found[-1].stop
    count = data[start + 4] if stop - start > 4 else 0
    return count == components and stop - start == 8 + 2 * count and bytes(data[stop - 3 : stop]) == b"\0\x3f\0"
