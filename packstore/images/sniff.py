"""Parses the header of an image file in microseconds: kind, size, and details for decoders; checks its end.

:func:`sniff` parses the header, :func:`check_header` also searches for the end of the image, which a truncated file
lacks. Neither decodes anything. Written after ITU-T T.81 (JPEG) and T.800 (JPEG 2000), the PNG and GIF89a
specifications, RFC 9649 (WebP), TIFF 6.0 with BigTIFF, Microsoft's BITMAPINFOHEADER and netpbm's format pages.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from packstore.images.header import Data, HeaderError, ImageInfo
from packstore.images.heif import BadBoxesError, heif_header, is_heif
from packstore.images.kinds import KINDS
from packstore.images.unread import unread_kind, unread_reason

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "IS_LFS_POINTER",
    "JPEG_2000",
    "LFS_POINTER",
    "MAX_PIXELS",
    "Data",
    "HeaderError",
    "ImageInfo",
    "begins_like_image",
    "check_header",
    "max_file_bytes",
    "sniff",
    "too_many_pixels",
    "unread_bits",
]

MAX_PIXELS = 178_956_970
"""Largest image, in pixels; a larger one is refused as a decompression bomb. Pillow's default limit."""

LFS_POINTER = b"version https://git-lfs"
"""First bytes of a Git LFS pointer: a small file in place of a large one that the clone did not fetch."""
IS_LFS_POINTER = "is a pointer of Git LFS without the file itself: run git lfs pull in its folder"


def too_many_pixels(width: int, height: int, max_pixels: int) -> str | None:
    """Returns why an image of this size is refused, as a text to follow a file's name, or None if it is accepted."""
    if width * height <= max_pixels:
        return None
    return (
        f"is an image of {width} x {height} pixels, more than the limit of {max_pixels} that guards against "
        "decompression bombs; raise max_pixels (--max-pixels) if it is genuine"
    )


_MOST_VALUES = 16


def too_many_values(what: str, values: int, max_pixels: int) -> str | None:
    """Returns why an array of channels or frames is refused, as a text to follow a file's name, or None if it is
    accepted: each pixel of the limit allows 16 values."""
    if values <= _MOST_VALUES * max_pixels:
        return None
    return (
        f"is {what}, more than {_MOST_VALUES} times the limit of {max_pixels} that guards against decompression bombs; "
        "raise max_pixels (--max-pixels) if it is genuine"
    )


def unread_bits(info: ImageInfo) -> str | None:
    """Returns why an image of so many bits per sample is refused, as a text to follow a file's name, or None if it is
    accepted."""
    if info.precision in _READABLE_BITS.get(info.kind, (info.precision,)):
        return None
    return (
        f"is a {info.kind.upper()} of {info.precision} bits a sample, which packstore does not read: convert it to 8 "
        "bits, or to a PNG or TIFF of 16"
    )


def max_file_bytes(max_pixels: int) -> int:
    """Returns the largest accepted size of a file with an image of ``max_pixels``: 8 bytes per pixel (16 bits RGBA,
    not compressed), and 64 MiB for everything else in it."""
    return 8 * max_pixels + (64 << 20)


def sniff(data: Data) -> ImageInfo:
    """Parses the header of ``data``, a whole file. Raises :class:`HeaderError`, and nothing else, if ``data`` is no
    image or its header is broken."""
    return _parse(data if type(data) is bytes else bytes(data), False)


def check_header(data: Data) -> ImageInfo:
    """Parses the header as :func:`sniff`, and raises :class:`HeaderError` also if the end of the image is missing.

    Bytes after the end are allowed, as many files on the web have them.
    """
    return _parse(data if type(data) is bytes else bytes(data), True)


def begins_like_image(start: bytes) -> bool:
    """Tells if the first 16 bytes of a file identify an image, of a kind that packstore reads or not."""
    if start.startswith(_SURE):
        return True
    return start[:4] + start[8:12] == b"RIFFWEBP" or is_heif(start) or unread_kind(start) is not None


def _parse(data: bytes, whole: bool) -> ImageInfo:
    try:
        if data[:3] == b"\xff\xd8\xff":
            return _parse_jpeg(data, whole)
        if is_heif(data[:12]):
            return _parse_heif(data, whole)
        for magic, look in _KINDS:
            if data.startswith(magic):
                info = look(data, whole)
                if info.width < 1 or info.height < 1:
                    raise HeaderError(f"has no pixels: its header says {info.width} x {info.height}")
                return info
    except (IndexError, struct.error):
        raise HeaderError(f"is truncated: its header is cut off after {len(data)} bytes") from None
    if not data:
        raise HeaderError("is empty")
    kind = unread_kind(data[:132])
    if kind is not None:
        raise HeaderError(unread_reason(kind))
    if bytes(data[: len(LFS_POINTER)]) == LFS_POINTER:
        raise HeaderError(IS_LFS_POINTER)
    raise HeaderError(f"is not an image (begins with {data[:8]!r})")


def _parse_jpeg(data: bytes, whole: bool) -> ImageInfo:
    """Parses the segments up to the first scan: an earlier end-of-image marker belongs to a thumbnail."""
    global _latest
    # The result depends on the bytes up to the scan alone, which are often the same in images of one size and encoder.
    known = _latest
    if known is not None and data.startswith(known[0]):
        _check_end(data, len(known[0]), whole)
        return known[1]
    width = height = components = precision = sof = frames = app1_at = app1s = 0
    orderly = True
    adobe: int | None = None
    at = 2
    while True:
        marker = data[at + 1]
        if data[at] != 0xFF or marker in _NO_SEGMENT:
            at = _next_marker(data, at)
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
    info = ImageInfo("jpeg", width, height, components, precision, sof, adobe, app1_at, alone)
    # In other segments the values may be beyond the segment's end.
    if end <= _REMEMBERED_BYTES and frames == 1 and length >= 6:
        _latest = data[:end], info
    return info


def _check_end(data: bytes, scan: int, whole: bool) -> None:
    # Inside a scan, 0xFF is always followed by 0x00 or a restart marker: the pair cannot occur by chance.
    if whole and data[-2:] != b"\xff\xd9" and data.rfind(b"\xff\xd9", scan) < 0:
        raise HeaderError("is truncated: no end-of-image marker")


_REMEMBERED_BYTES = 4096
_latest: tuple[bytes, ImageInfo] | None = None
"""The latest JPEG header, up to the first byte of its scan, and its result. One object, so that threads never see half
of it."""
_FRAME = struct.Struct(">BHHB")
_NO_SEGMENT = frozenset((0x00, 0x01, *range(0xD0, 0xDA), 0xFF))
_SKIPPED = frozenset((0xDC, *range(0xE0, 0xF0), 0xFE))


def _next_marker(data: bytes, at: int) -> int:
    """Returns the next position to look at for a segment: skips one fill byte, one marker without a segment, or stray
    bytes (which libjpeg skips with a warning). Raises :class:`HeaderError` at a marker that may not be there."""
    marker = data[at + 1]
    if data[at : at + 4] == b"\xff\xd9\xff\xd8":  # tables end, and the image that uses them begins: T.81, B.4
        return at + 4
    if data[at] == 0xFF and marker in (0xD8, 0xD9):
        what = "a second start" if marker == 0xD8 else "the end"
        raise HeaderError(f"is damaged: {what} of the image at byte {at}, before any scan")
    if data[at] == 0xFF and marker != 0xFF:
        return at + 2
    found = data.find(b"\xff", at + 1)
    if found < 0:
        raise IndexError
    return found


def _parse_png(data: bytes, whole: bool) -> ImageInfo:
    length, name, width, height, depth, color = struct.unpack_from(">I4sIIBB", data, 8)
    if name != b"IHDR" or length != 13 or color not in _PNG_COMPONENTS:
        raise HeaderError(f"is damaged: a PNG that begins with {name!r} of {length} bytes and color type {color}")
    if whole and data[-12:] != b"\0\0\0\0IEND\xaeB`\x82":
        at = 8
        while name != b"IEND":
            if at + 12 > len(data):
                raise HeaderError("is truncated: PNG without IEND")
            length, name = struct.unpack_from(">I4s", data, at)
            at += 12 + length
        if at > len(data):
            raise HeaderError("is truncated: PNG that ends inside IEND")
    return ImageInfo("png", width, height, _PNG_COMPONENTS[color], depth)


_PNG_COMPONENTS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def _parse_gif(data: bytes, whole: bool) -> ImageInfo:
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    info = ImageInfo("gif", width, height, 1, (flags & 7) + 1 if flags & 0x80 else 8)
    if not whole:
        return info
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    images = 0
    try:
        while (block := data[at]) != 0x3B:
            if block == 0x2C:  # an image: its own palette, the code size, then sub-blocks
                images += 1
                flags = data[at + 9]
                at += 11 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
            elif block == 0x21:  # an extension: its label, then sub-blocks
                at += 2
            else:
                raise HeaderError(f"is damaged: a GIF with a block of unknown kind 0x{block:02x} at byte {at}")
            while size := data[at]:
                at += 1 + size
            at += 1
    except IndexError:
        raise HeaderError("is truncated: GIF without trailer") from None
    if not images:
        raise HeaderError("is damaged: a GIF without any image")
    return info


def _parse_bmp(data: bytes, whole: bool) -> ImageInfo:
    start, header = struct.unpack_from("<II", data, 10)
    compression = image_bytes = 0
    if header == 12:
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
    elif 16 <= header <= 124:
        width, height, _, bits = struct.unpack_from("<iiHH", data, 18)
        if header >= 40:
            compression, image_bytes = struct.unpack_from("<II", data, 30)
    else:
        raise HeaderError(f"is not an image (begins with {data[:2]!r}, but its BMP header would have {header} bytes)")
    if bits not in (0, 1, 2, 4, 8, 16, 24, 32):
        raise HeaderError(f"is damaged: a BMP of {bits} bits a pixel")
    height = abs(height)  # negative: rows from the top
    if compression in (0, 3, 6):  # plain, and plain with bit masks
        image_bytes = (width * bits + 31) // 32 * 4 * height
    if whole and start + image_bytes > len(data):
        raise HeaderError(f"is truncated: BMP pixels end at byte {start + image_bytes}, the file has {len(data)}")
    return ImageInfo("bmp", width, height, *((bits // 8, 8) if bits in (24, 32) else (1, bits)))


def _parse_webp(data: bytes, whole: bool) -> ImageInfo:
    size, form, name, length = struct.unpack_from("<I4s4sI", data, 4)
    if form != b"WEBP":
        raise HeaderError(f"is not an image (a RIFF file of kind {form!r})")
    if whole and size + 8 > len(data):
        raise HeaderError(f"is truncated: RIFF says {size + 8} bytes, the file has {len(data)}")
    if name == b"VP8X":
        alpha, width, height = data[20] & 0x10, _read_u24(data, 24) + 1, _read_u24(data, 27) + 1
        at = 12
        while whole and name not in (b"VP8 ", b"VP8L", b"ANMF"):
            at += 8 + length + (length & 1)
            if at + 8 > size + 8:
                raise HeaderError("is damaged: a WebP without any image")
            name, length = struct.unpack_from("<4sI", data, at)
        return ImageInfo("webp", width, height, 4 if alpha else 3)
    if whole and 12 + 8 + length > size + 8:
        raise HeaderError(f"is truncated: a WebP image of {length} bytes in {size + 8} bytes of RIFF")
    if name == b"VP8L" and data[20] == 0x2F:
        bits = struct.unpack_from("<I", data, 21)[0]
        return ImageInfo("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, 4 if bits >> 28 & 1 else 3)
    if name == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return ImageInfo("webp", width & 0x3FFF, height & 0x3FFF, 3)
    if len(data) < 30:
        raise IndexError
    raise HeaderError(f"is damaged: a WebP whose first chunk is {name!r}, without an image header")


def _parse_heif(data: bytes, whole: bool) -> ImageInfo:
    try:
        header = heif_header(data)
    except BadBoxesError as error:
        raise HeaderError(f"is damaged: {error}") from None
    if whole and header.end > len(data):
        raise HeaderError(f"is truncated: HEIF boxes end at byte {header.end}, the file has {len(data)}")
    if whole and not header.has_data:
        raise HeaderError("is truncated: HEIF without the data of its images")
    # libheif crops and turns by itself; Pillow's AVIF does neither, and gives the turn as an orientation.
    width, height = header.shown if header.kind == "heif" else (header.width, header.height)
    if width < 1 or height < 1:
        raise HeaderError(f"has no pixels: its header says {width} x {height}")
    return ImageInfo(header.kind, width, height, 3, header.bits)


def _read_u24(data: bytes, at: int) -> int:
    return data[at] | data[at + 1] << 8 | data[at + 2] << 16


def _parse_tiff(data: bytes, whole: bool) -> ImageInfo:
    order = "<" if data[:2] == b"II" else ">"
    big = 43 in data[2:4]
    at = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)[0]
    count_format, size, inline = (order + "Q", 20, 8) if big else (order + "H", 12, 4)
    if at + struct.calcsize(count_format) > len(data):
        raise HeaderError(f"is truncated: TIFF directory at byte {at}, the file has {len(data)}")
    count = struct.unpack_from(count_format, data, at)[0]
    at += struct.calcsize(count_format)
    if at + count * size > len(data):
        raise HeaderError(f"is truncated: TIFF directory of {count} entries at byte {at}, the file has {len(data)}")
    if count > _MAX_TIFF_TAGS:
        raise HeaderError(f"is damaged: a TIFF directory of {count} entries")
    tags: dict[int, tuple[str, int, int]] = {}  # type, number of values, offset of the values
    for entry in range(at, at + count * size, size):
        tag, kind, length = struct.unpack_from(order + ("HHQ" if big else "HHI"), data, entry)
        if kind not in _TIFF_WIDTHS or not length or not (whole or tag in _TIFF_TAGS):
            continue
        value = entry + size - inline
        width = _TIFF_WIDTHS[kind]
        if length * width > inline:
            value = struct.unpack_from(order + ("Q" if big else "I"), data, value)[0]
            if value + length * width > len(data):  # of any tag: a decoder may need the values, such as JPEG tables
                end = value + length * width
                raise HeaderError(f"is truncated: TIFF values end at byte {end}, the file has {len(data)}")
        if tag in _TIFF_TAGS and kind in _TIFF_NUMBERS:
            tags.setdefault(tag, (order + _TIFF_NUMBERS[kind], length, value))

    def first(tag: int, default: int | None = None) -> int:
        if tag in tags:
            letter, _, value = tags[tag]
            number: int = struct.unpack_from(letter, data, value)[0]
            return number
        if default is None:
            raise HeaderError("is damaged: a TIFF without width and height")
        return default

    bits = [1]
    if 258 in tags:
        letter, length, value = tags[258]
        bits = list(struct.unpack_from(f"{letter[0]}{min(length, _MAX_SAMPLES)}{letter[1]}", data, value))
    precision = next((each for each in bits if each not in _READABLE_BITS["tiff"]), bits[0])
    info = ImageInfo("tiff", first(256), first(257), first(277, 1), precision)
    if whole:
        for offsets, counts in ((273, 279), (324, 325)):  # strips, tiles
            if offsets in tags and counts in tags:
                _check_tiff_pixels(data, tags[offsets], tags[counts])
        if 273 not in tags and 324 not in tags:
            raise HeaderError("is damaged: a TIFF without pixels")
    return info


def _check_tiff_pixels(data: bytes, offsets: tuple[str, int, int], counts: tuple[str, int, int]) -> None:
    """Raises :class:`HeaderError` if strips or tiles lie beyond the end of the file. They may be as many as the file
    has bytes, so numpy counts them, in uint64 without overflow."""
    import numpy as np

    length, size = min(offsets[1], counts[1]), np.uint64(len(data))
    starts, sizes = (_read_tiff_numbers(data, letter, length, value) for letter, _, value in (offsets, counts))
    beyond = np.flatnonzero((starts > size) | (sizes > size - np.minimum(starts, size)))
    if len(beyond):
        end = int(starts[beyond[-1]]) + int(sizes[beyond[-1]])
        raise HeaderError(f"is truncated: TIFF pixels end at byte {end}, the file has {len(data)}")


def _read_tiff_numbers(data: bytes, letter: str, length: int, at: int) -> NDArray[np.uint64]:
    import numpy as np

    return np.frombuffer(data, letter, length, at).astype(np.uint64)


def _parse_jp2(data: bytes, whole: bool) -> ImageInfo:
    """Finds the codestream (T.800 Annex A) and parses its size marker; in a JP2 file (Annex I) the codestream lies
    in a box."""
    at = 0
    while data[at : at + 4] != _CODESTREAM:
        length, name = struct.unpack_from(">I4s", data, at)
        start = at + 8
        if length == 1:
            (length,) = struct.unpack_from(">Q", data, start)
            start += 8
        if name == b"jp2c":
            at = start
            break
        if length < 8:
            raise HeaderError(f"is damaged: a JPEG 2000 box {name!r} of {length} bytes without a codestream before it")
        at += length
    if data[at : at + 4] != _CODESTREAM:
        raise HeaderError("is damaged: a JPEG 2000 file without a codestream")
    right, bottom, left, top = struct.unpack_from(">4I", data, at + 8)
    (components,) = struct.unpack_from(">H", data, at + 40)
    depths = struct.unpack_from(">" + "B2x" * components, data, at + 42)
    if not components or right <= left or bottom <= top:
        raise HeaderError(
            f"has no pixels: its header says {right - left} x {bottom - top} with {components} components"
        )
    precision = max(depth & 0x7F for depth in depths) + 1
    if precision > _MOST_JP2_BITS:
        raise HeaderError(f"is damaged: a JPEG 2000 of {precision} bits a sample")
    # Packets hold no pair of bytes above FF8F, so that this end is that of the image.
    if whole and data.rfind(b"\xff\xd9", at) < 0:
        raise HeaderError("is truncated: no end of its codestream")
    return ImageInfo("jp2", right - left, bottom - top, components, precision)


_MOST_JP2_BITS = 38  # T.800, table A.11
_CODESTREAM = b"\xff\x4f\xff\x51"
JPEG_2000 = (_CODESTREAM, b"\0\0\0\x0cjP  \r\n\x87\n")
"""First bytes of JPEG 2000 files: of a plain codestream, and of a JP2 file."""
_READABLE_BITS = {"jpeg": (8,), "tiff": (1, 2, 4, 8, 16, 32, 64)}
_MAX_SAMPLES = 16
_TIFF_TAGS = frozenset((256, 257, 258, 273, 277, 279, 324, 325))
_MAX_TIFF_TAGS = 0xFFFF  # the maximum of a TIFF; a BigTIFF could claim more
_TIFF_WIDTHS = {**dict(enumerate((1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4), 1)), 16: 8, 17: 8, 18: 8}  # bytes a value
_TIFF_NUMBERS = {1: "B", 3: "H", 4: "I", 16: "Q"}  # unsigned integers, for struct and numpy alike


def _parse_pnm(data: bytes, whole: bool) -> ImageInfo:
    form = data[1] - 0x30
    header = (_PBM if form in (1, 4) else _PGM).match(data)
    if header is None:
        if len(data) < 4096 and len(data.split()) < 5:
            raise IndexError
        raise HeaderError(f"is not an image (begins with {data[:8]!r}, but has no netpbm header)")
    width, height = int(header[1]), int(header[2])
    limit = 1 if form in (1, 4) else int(header[3])
    if not 1 <= limit <= 65535:
        raise HeaderError(f"is damaged: a netpbm image with the maximum {limit}")
    components = 3 if form in (3, 6) else 1
    samples = width * height * components
    if whole:
        found = len(data) - header.end()
        if form == 4:
            need = (width + 7) // 8 * height
        elif form >= 5:
            need = samples * (1 if limit < 256 else 2)
        else:  # plain text: values between blanks, or in P1 digits that need none
            need, rest = samples, data[header.end() :]
            found = sum(map(len, rest.split())) if form == 1 else len(rest.split())
        if found < need:
            unit = "bytes" if form >= 4 else "values"
            raise HeaderError(f"is truncated: netpbm pixels take {need} {unit}, the file has {found}")
    return ImageInfo("pnm", width, height, components, limit.bit_length())


# Numbers of at most nine digits after blanks or comments; one blank ends the header.
_GAP = rb"(?:\s|#[^\r\n]*[\r\n])+"
_PBM = re.compile(rb"P[14]%s(\d{1,9})%s(\d{1,9})\s" % (_GAP, _GAP))
_PGM = re.compile(rb"P[2356]%s(\d{1,9})%s(\d{1,9})%s(\d{1,9})\s" % (_GAP, _GAP, _GAP))

_KINDS: tuple[tuple[bytes | tuple[bytes, ...], Callable[[bytes, bool], ImageInfo]], ...] = (
    (b"\x89PNG\r\n\x1a\n", _parse_png),
    ((b"GIF87a", b"GIF89a"), _parse_gif),
    (b"RIFF", _parse_webp),
    (b"BM", _parse_bmp),
    ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), _parse_tiff),
    (JPEG_2000, _parse_jp2),
    ((b"P1", b"P2", b"P3", b"P4", b"P5", b"P6"), _parse_pnm),
    *((kind.magics, kind.read_header) for kind in KINDS.values()),
)
_SURE = (
    *(b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*", *JPEG_2000),
    *(
        magic for name, kind in KINDS.items() if name != "npy" for magic in kind.magics
    ),  # an npy file may be an array other than an image
)
"""First bytes that only image files have."""
