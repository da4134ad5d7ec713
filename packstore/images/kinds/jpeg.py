"""JPEG: its segments up to the first scan, further pictures, completeness, metadata. Markers are those of ITU-T T.81,
annex B; the index of further pictures is that of the Multi-Picture Format (CIPA DC-007).

Stereo cameras and panoramas write several views; phones and cameras add gain maps and previews.
"""

from __future__ import annotations

import re
import struct
from functools import cached_property
from typing import Any, NamedTuple

from numpy.typing import NDArray

from packstore.core.modes import Mode, parse_mode
from packstore.images.header import Data, HeaderError, ImageInfo, check_cost, no_such_frame
from packstore.images.kinds.base import GRAY_TO_COLOUR, Frames, ImageDescription, ImageFile, UnusualError, damaged_image

_REMEMBERED_BYTES = 4096
_latest: tuple[bytes, ImageInfo] | None = None
"""The latest JPEG header, up to the first byte of its scan, and its result. One object, so that threads never see half
of it."""
_FRAME = struct.Struct(">BHHB")
_NO_SEGMENT = frozenset((0x00, 0x01, *range(0xD0, 0xDA), 0xFF))
_SKIPPED = frozenset((0xDC, *range(0xE0, 0xF0), 0xFE))
_SEGMENT = struct.Struct(">BBH")
_CONVERSIONS = {1: GRAY_TO_COLOUR, 4: ("cmyk_to_rgb",)}
_EXIF, _XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
_ENTRIES, _ENTRY_BYTES = 0xB002, 16
_VIEWS = (0x020001, 0x020002, 0x020003)
"""Types of pictures that are views: panorama, stereo, several angles. Others are previews; gain maps have no type."""
_PROGRESSIVE, _EOI, _SOS, _COM = 0xC2, 0xD9, 0xDA, 0xFE
# APP0 (JFIF) and APP14 (Adobe) tell the colour space; the others (EXIF, MPF, ICC, XMP ...) do not touch pixels.
_METADATA = frozenset((_COM, *range(0xE1, 0xEE), 0xEF))
_SIGNED = {0xE0: (b"JFIF\0", 14), 0xEE: (b"Adobe", 12)}
"""First bytes and shortest content of segments that tell the colour space."""
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # ends a scan: neither a data byte 0xFF nor a restart


def parse_jpeg_header(data: bytes, whole: bool) -> ImageInfo:
    """Parses the segments up to the first scan. With ``whole``, also searches for the end-of-image marker after it.

    An earlier end marker belongs to a thumbnail. Caches the latest header with its result.

    Raises :class:`HeaderError`, and :class:`IndexError` or :class:`struct.error` for a truncated header."""
    global _latest
    # The result depends on the bytes up to the scan alone, which are often the same in images of one size and encoder.
    known = _latest
    if known is not None and data.startswith(known[0]):
        _check_end(data, len(known[0]), whole)
        return known[1]
    width = height = components = precision = sof = frames = app1_at = app1s = mpf_at = 0
    orderly = True
    adobe: int | None = None
    at = 2
    while True:
        marker = data[at + 1]
        if data[at] != 0xFF or marker in _NO_SEGMENT:
            at = _skip_to_marker(data, at)
            orderly = False
            continue
        length = data[at + 2] << 8 | data[at + 3]
        if length < 2:
            if marker not in _SKIPPED:
                raise HeaderError(f"is damaged: a JPEG segment of {length} bytes at byte {at}")
            length, orderly = 2, False  # libjpeg continues after the length
        if marker == 0xDA:
            break
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            precision, height, width, components = _FRAME.unpack_from(data, at + 4)
            if not sof and length < 8 + 3 * components:
                raise HeaderError(f"is damaged: a JPEG frame header of {length} bytes for {components} components")
            sof = marker
            frames += 1
        elif marker == 0xEE and length >= 14 and data[at + 4 : at + 9] == b"Adobe":
            adobe = data[at + 15]
        elif marker == 0xE1:
            app1_at = app1_at or at
            app1s += 1
        elif marker == 0xE2 and data[at + 4 : at + 8] == b"MPF\0":
            mpf_at = mpf_at or at + 8
        elif marker < 0xC0:
            orderly = False
        at += 2 + length
    if not sof:
        raise HeaderError("is damaged: a JPEG without a frame header before its first scan")
    if not width or not height or not components:
        raise HeaderError(f"has no pixels: its header says {width} x {height} with {components} components")
    end = at + 2 + length
    _check_end(data, end, whole)
    if end > len(data):
        raise IndexError
    alone = orderly and app1s == 1
    info = ImageInfo("jpeg", width, height, components, precision, sof, adobe, app1_at, alone, mpf_at)
    # In other segments the values may be beyond the segment's end.
    if end <= _REMEMBERED_BYTES and frames == 1 and length >= 6:
        _latest = data[:end], info
    return info


def _check_end(data: bytes, scan: int, whole: bool) -> None:
    """Raises :class:`HeaderError` if ``whole`` is true and no end-of-image marker follows the byte ``scan``."""
    # Inside a scan, 0xFF is always followed by 0x00 or a restart marker: the pair cannot occur by chance.
    if whole and data[-2:] != b"\xff\xd9" and data.rfind(b"\xff\xd9", scan) < 0:
        raise HeaderError("is truncated: no end-of-image marker")


def _skip_to_marker(data: bytes, at: int) -> int:
    """Skips bytes that are no segment and returns the next position to look at."""
    marker = data[at + 1]
    if data[at : at + 4] == b"\xff\xd9\xff\xd8":  # tables end, and the image that uses them begins: T.81, B.4
        return at + 4
    if data[at] == 0xFF and marker in (0xD8, 0xD9):
        what = "a second start" if marker == 0xD8 else "the end"
        raise HeaderError(f"is damaged: {what} of the image at byte {at}, before any scan")
    if data[at] == 0xFF and marker != 0xFF:
        return at + 2  # a marker without a segment
    # Skips a fill byte, or stray bytes, which libjpeg skips with a warning.
    place = data.find(b"\xff", at + 1)
    if place < 0:
        raise IndexError  # truncated
    return place


def _find_metadata(data: bytes | bytearray | memoryview, at: int, alone: bool) -> tuple[bytes, bytes]:
    """Returns EXIF and XMP, empty if missing, of the JPEG segments from ``at`` on."""
    exif = xmp = b""
    while True:
        mark, marker, length = _SEGMENT.unpack_from(data, at)
        if marker == 0xDA and mark == 0xFF:
            return exif, xmp
        if mark != 0xFF or length < 2 or marker < 0xC0 or 0xD0 <= marker <= 0xD9 or marker == 0xFF:
            raise UnusualError  # stray bytes
        if marker == 0xE1:
            content = bytes(data[at + 4 : at + 2 + length])
            if content.startswith(_EXIF):
                if exif:
                    raise UnusualError  # a second EXIF
                exif = content
            elif content.startswith(_XMP):
                xmp = content
        if alone:  # no other segment has to be read
            return exif, xmp
        at += 2 + length


class Pictures(NamedTuple):
    """Pictures of a JPEG file.

    Attributes:
        views: Offset and end of each picture that is a view; the first picture is one, and ends with the file.
        others: Number of other pictures, such as previews and gain maps.
    """

    views: tuple[tuple[int, int], ...]
    others: int = 0


def find_pictures(data: bytes | memoryview, info: ImageInfo) -> Pictures:
    """Returns the pictures of a JPEG file with the header ``info``. A damaged index names no further pictures.

    Views that lie outside of the file, or are no JPEG, count as other pictures."""
    views, others, start = [(0, len(data))], 0, info.mpf_at
    try:
        entries = _read_entries(data, start) if start else []
    except struct.error:
        entries = []
    for attributes, size, offset in entries[1:]:
        at = start + offset
        is_view = attributes & 0xFFFFFF in _VIEWS and at + size <= len(data) and data[at : at + 3] == b"\xff\xd8\xff"
        if is_view:
            views.append((at, at + size))
        others += not is_view
    return Pictures(tuple(views), others)


def _read_entries(data: bytes | memoryview, start: int) -> list[tuple[int, int, int]]:
    """Returns attributes, size and offset of each picture."""
    order = "<" if data[start : start + 2] == b"II" else ">"
    at = start + struct.unpack_from(order + "I", data, start + 4)[0]
    (count,) = struct.unpack_from(order + "H", data, at)
    for place in range(at + 2, at + 2 + 12 * count, 12):
        tag, _, size, value = struct.unpack_from(order + "HHII", data, place)
        if tag == _ENTRIES:
            first = start + value
            places = range(first, first + min(size, len(data)) // _ENTRY_BYTES * _ENTRY_BYTES, _ENTRY_BYTES)
            return [struct.unpack_from(order + "III", data, each) for each in places]
    return []


def without_metadata(data: memoryview) -> bytes | memoryview:
    """Returns a JPEG without metadata: EXIF, MPF, ICC, XMP, comments, and stray bytes between segments. Also drops
    segments of JFIF and Adobe that are too short, which libjpeg ignores.

    Returns ``data`` itself if it has none of these, or no scan."""
    kept: list[memoryview] = [data[:2]]
    size, at, dropped = len(data), 2, False
    while at + 4 <= size:
        marker, stop = data[at + 1], at + 2 + (data[at + 2] << 8 | data[at + 3])
        stray = data[at] != 0xFF
        if stray or marker in _NO_SEGMENT:
            match = _MARKER.search(data, at + 1)
            if match is None:
                return data
            marker, stop = 0, match.start()
        if marker == _SOS:
            return b"".join((*kept, data[at:])) if dropped else data
        if marker in _METADATA or (marker in _SIGNED and not _is_signed(data[at + 4 : stop], marker)):
            dropped = True
        elif not stray:  # libjpeg skips stray bytes, but Pillow wants a marker behind the start of the image
            kept.append(data[at:stop])
        at = stop
    return data


def _is_signed(content: memoryview, marker: int) -> bool:
    """Tells if an APP0 segment is one of JFIF, or an APP14 segment one of Adobe."""
    name, least = _SIGNED[marker]
    return len(content) >= least and bytes(content[: len(name)]) == name


def is_complete_jpeg(data: memoryview) -> bool:
    """Tells if a JPEG is complete: its segments and scans follow each other without gaps up to the end marker.

    A progressive file must have every bit of every coefficient.

    Does not parse scans. Costs a search for 0xFF: about 1 GB/s."""
    try:
        return _check_segments(data)
    except (IndexError, KeyError):  # a segment that is too short, or a scan of an unknown component
        return False


def _check_segments(data: memoryview) -> bool:
    """Tells if a JPEG is complete, see :func:`is_complete_jpeg`."""
    unfinished: dict[int, bytearray] = {}  # by component: the lowest bit so far of each coefficient; 1 for none
    scans, at = 0, 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if marker == _EOI:
            return scans > 0 and not any(map(any, unfinished.values()))
        if marker in _NO_SEGMENT:
            return False
        stop = at + 2 + (data[at + 2] << 8 | data[at + 3])
        if marker == _PROGRESSIVE:
            unfinished = {data[at + 10 + 3 * i]: bytearray(b"\1" * 64) for i in range(data[at + 9])}
        elif marker == _SOS:
            scans += 1
            first, last, low = data[stop - 3], data[stop - 2], data[stop - 1] & 15
            if unfinished:
                for i in range(data[at + 4]):
                    unfinished[data[at + 5 + 2 * i]][first : last + 1] = bytes([low]) * (last + 1 - first)
            match = _MARKER.search(data, stop)
            if match is None:
                return False
            stop = match.start()
        at = stop
    return False


class Jpeg(ImageFile):
    """A JPEG file. Its frames are its views."""

    plugin = "JpegImagePlugin", "JpegImageFile"
    readable_bits = (8,)
    read_header = staticmethod(parse_jpeg_header)
    strip = staticmethod(without_metadata)

    @staticmethod
    def find_conversion_to_rgb(data: Data, info: ImageInfo) -> tuple[str, ...] | None:
        return None if info.mpf_at else _CONVERSIONS.get(info.components, ())

    @staticmethod
    def find_exif(data: Data, info: ImageInfo | None) -> tuple[bytes, bytes]:
        if info is None:
            return _find_metadata(data, 2, False)
        return _find_metadata(data, info.app1_at, info.app1_alone) if info.app1_at else (b"", b"")

    @cached_property
    def _pictures(self) -> Pictures:
        """The pictures of the file."""
        return find_pictures(self.data, self.info)

    def _open_view(self, number: int) -> ImageFile:
        """Opens a view as a file of its own."""
        from packstore.images.sniff import sniff

        view = self.data[slice(*self._pictures.views[number])]
        return Jpeg(view, sniff(view), self.max_pixels)

    def check_limits(self) -> None:
        check_cost(self.data, self.info.width, self.info.height, self.max_pixels)
        super().check_limits()

    def count_frames(self) -> Frames:
        views = len(self._pictures.views)
        return Frames(views, tuple(range(views)))

    def describe(self, frame: int = 0) -> ImageDescription | None:
        pictures, components = self._pictures, self.info.components
        if 0 < frame < len(pictures.views):
            return self._open_view(frame).describe()
        converted = "further_pictures" if pictures.others else "cmyk_to_rgb" if components == 4 else None
        return ImageDescription(parse_mode("L" if components == 1 else "RGB"), len(pictures.views), converted=converted)

    def read_frame(self, frame: int = 0, *, gray: bool = False) -> tuple[NDArray[Any], Mode]:
        if not frame:
            return self.read_pillow_frame(0, gray)
        count = len(self._pictures.views)
        if frame >= count:
            raise no_such_frame(count, frame)
        with damaged_image():
            view = self._open_view(frame)
        view.check_limits()
        return view.read_frame(gray=gray)
