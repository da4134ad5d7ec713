"""Parses the header of an image file in microseconds: kind, size, and details for decoders. Can also check the file's
end.

:func:`sniff` parses the header, :func:`check_header` also searches for the end of the image, which a truncated file
lacks. Neither decodes anything. Written after T.800 (JPEG 2000), the PNG and GIF89a specifications, RFC 9649 (WebP),
Microsoft's BITMAPINFOHEADER and netpbm's format pages; JPEG and TIFF have modules of their own.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from packstore.images.header import Data, HeaderError, ImageInfo, is_heif
from packstore.images.jpeg_header import parse_jpeg_header
from packstore.images.kinds import KINDS
from packstore.images.unread import find_unread_kind, unread_kind_message

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
    "excess_pixels_message",
    "max_file_bytes",
    "sniff",
    "unread_bits_message",
]

MAX_PIXELS = 178_956_970
"""Largest image, in pixels; a larger one is refused as a decompression bomb. Pillow's default limit."""

LFS_POINTER = b"version https://git-lfs"
"""First bytes of a Git LFS pointer: a small file in place of a large one that the clone did not fetch."""
IS_LFS_POINTER = "is a pointer of Git LFS without the file itself: run git lfs pull in its folder"


def excess_pixels_message(width: int, height: int, max_pixels: int) -> str | None:
    """Returns the error text for an image with too many pixels, to follow a file's name. Returns None if it has at most
    ``max_pixels``."""
    if width * height <= max_pixels:
        return None
    return (
        f"is an image of {width} x {height} pixels, more than the limit of {max_pixels} that guards against "
        "decompression bombs; raise max_pixels (--max-pixels) if it is genuine"
    )


_MOST_VALUES = 16


def too_many_values(what: str, values: int, max_pixels: int) -> str | None:
    """Returns the error text for an array with too many values, to follow a file's name.

    Returns None for at most 16 values per pixel of ``max_pixels``. ``what``: description of the array, for the text."""
    if values <= _MOST_VALUES * max_pixels:
        return None
    return (
        f"is {what}, more than {_MOST_VALUES} times the limit of {max_pixels} that guards against decompression bombs; "
        "raise max_pixels (--max-pixels) if it is genuine"
    )


def unread_bits_message(info: ImageInfo) -> str | None:
    """Returns the error text for a JPEG or TIFF with bits per sample that packstore does not read.

    The text follows a file's name. Returns None for other bits, and for other kinds."""
    if info.kind == "tiff":
        from packstore.images.tiff_header import READABLE_TIFF_BITS

        readable = info.precision in READABLE_TIFF_BITS
    else:
        readable = info.kind != "jpeg" or info.precision == 8
    if readable:
        return None
    return (
        f"is a {info.kind.upper()} of {info.precision} bits a sample, which packstore does not read: convert it to 8 "
        "bits, or to a PNG or TIFF of 16"
    )


def max_file_bytes(max_pixels: int) -> int:
    """Returns the largest accepted size of a file with an image of ``max_pixels`` pixels, in bytes.

    That is 8 bytes per pixel (16 bits RGBA, not compressed), and 64 MiB for everything else in the file.
    """
    return 8 * max_pixels + (64 << 20)


def sniff(data: Data) -> ImageInfo:
    """Parses the header of ``data``, a whole file.

    Raises :class:`HeaderError`, and nothing else, if ``data`` is no image or of a kind that packstore does not read.
    Raises it also for a broken header, and for an image without pixels."""
    return _parse_header(data if type(data) is bytes else bytes(data), False)


def check_header(data: Data) -> ImageInfo:
    """Parses the header as :func:`sniff`. Raises :class:`HeaderError` also if the end of the image is missing.

    Bytes after the end are allowed, as many files on the web have them.
    """
    return _parse_header(data if type(data) is bytes else bytes(data), True)


def begins_like_image(start: bytes) -> bool:
    """Tells if the first 16 bytes of a file identify an image. The image may be of a kind that packstore does not read.

    False for ``.npy``, which may hold any array. False for BMP, netpbm and BigTIFF, too: other files may begin with the
    same bytes."""
    if start.startswith(_SURE):
        return True
    return start[:4] + start[8:12] == b"RIFFWEBP" or is_heif(start) or find_unread_kind(start) is not None


def _parse_header(data: bytes, whole: bool) -> ImageInfo:
    """Finds the parser of a file by its first bytes and calls it. With ``whole``, also checks the end.

    Raises :class:`HeaderError`, also for an empty file, an unread kind and a Git LFS pointer."""
    try:
        if data[:3] == b"\xff\xd8\xff":
            return parse_jpeg_header(data, whole)
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
    kind = find_unread_kind(data[:132])
    if kind is not None:
        raise HeaderError(unread_kind_message(kind))
    if bytes(data[: len(LFS_POINTER)]) == LFS_POINTER:
        raise HeaderError(IS_LFS_POINTER)
    raise HeaderError(f"is not an image (begins with {data[:8]!r})")


def _parse_png(data: bytes, whole: bool) -> ImageInfo:
    """Parses IHDR. With ``whole``, also walks the chunks to IEND, and checks those on which pixels depend.

    Raises :class:`HeaderError` for damage; a truncated header raises :class:`struct.error`."""
    length, name, width, height, depth, color = struct.unpack_from(">I4sIIBB", data, 8)
    if name != b"IHDR" or length != 13 or color not in _PNG_COMPONENTS:
        raise HeaderError(f"is damaged: a PNG that begins with {name!r} of {length} bytes and color type {color}")
    if depth not in _PNG_DEPTHS[color]:
        raise HeaderError(f"is damaged: a PNG of {depth} bits and color type {color}")
    if whole:
        _check_png_chunks(data, color == _PALETTE)
    return ImageInfo("png", width, height, _PNG_COMPONENTS[color], depth)


def _check_png_chunks(data: bytes, palette: bool) -> None:
    """Raises :class:`HeaderError` unless a PNG has all chunks up to IEND, with pixels and ``palette``.

    Checks the sums of all chunks on which pixels depend but IDAT, which only decoding proves."""
    from packstore.images.metadata import is_sound_chunk

    at, name, names = 8, b"", set()
    view = memoryview(data)
    while name != b"IEND":
        if at + 12 > len(data):
            raise HeaderError(f"is truncated: PNG without {'IDAT and ' if b'IDAT' not in names else ''}IEND")
        length, name = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        if not name.isalpha():
            raise HeaderError(f"is damaged: a PNG chunk {name!r} at byte {at}")
        if end > len(data):
            raise HeaderError(f"is truncated: a PNG chunk {name!r} that ends at byte {end}, the file has {len(data)}")
        if name in _PNG_CHECKED and not is_sound_chunk(view, at, end):
            raise HeaderError(f"is damaged: the checksum of a PNG's chunk {name!r} at byte {at} is wrong")
        names.add(name)
        at = end
    missing = {b"IDAT", *([b"PLTE"] if palette else [])} - names
    if missing:
        raise HeaderError(f"is damaged: a PNG without {' and '.join(sorted(each.decode() for each in missing))}")


_PALETTE = 3
_PNG_CHECKED = frozenset((b"IHDR", b"PLTE", b"tRNS"))
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PNG_COMPONENTS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def _parse_gif(data: bytes, whole: bool) -> ImageInfo:
    """Parses the screen descriptor. With ``whole``, also walks the blocks to the trailer.

    Raises :class:`HeaderError` for damage and without an image; a truncated header raises :class:`struct.error`."""
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
    """Parses the file and bitmap headers. With ``whole``, also checks the size of the pixels.

    Raises :class:`HeaderError` for damage; a truncated header raises :class:`struct.error`."""
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
    """Parses the first chunk of a WebP.

    With ``whole``, also checks the size of RIFF and of the image. An extended file (VP8X) need only have an image.

    Raises :class:`HeaderError` for damage; a truncated header raises :class:`struct.error` or :class:`IndexError`."""
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


def _parse_tiff(data: bytes, whole: bool) -> ImageInfo:
    """Parses the first page, see :func:`packstore.images.tiff_header.parse_tiff_header`."""
    from packstore.images.tiff_header import parse_tiff_header

    return parse_tiff_header(data, whole)


def _parse_heif(data: bytes, whole: bool) -> ImageInfo:
    """Parses the boxes of HEIF or AVIF. With ``whole``, also checks that the file has all of them, and image data.

    The size of a HEIF image is that after cropping and turning, of an AVIF the coded size.

    Raises :class:`HeaderError` for damage and for an image without pixels; a truncated header raises
    :class:`IndexError`."""
    from packstore.images.heif import BadBoxesError, parse_heif_header

    try:
        header = parse_heif_header(data)
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
    """Reads a little-endian number of 3 bytes."""
    return data[at] | data[at + 1] << 8 | data[at + 2] << 16


def _parse_jp2(data: bytes, whole: bool) -> ImageInfo:
    """Finds the codestream (T.800 Annex A) and parses its size marker. With ``whole``, also searches for its end.

    In a JP2 file (Annex I) the codestream lies in a box. Raises :class:`HeaderError` for damage; a truncated header
    raises :class:`struct.error`."""
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


def _parse_pnm(data: bytes, whole: bool) -> ImageInfo:
    """Parses the text header of a netpbm image (P1 to P6). With ``whole``, also counts its bytes or values.

    Raises :class:`HeaderError` for damage; a truncated header raises :class:`IndexError`."""
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
