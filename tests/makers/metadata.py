"""Image files with odd, damaged or huge metadata, which no pixel depends on."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

from tests.makers.images import encode as encode_image

_HUGE = zlib.compress(bytes(3 << 20))


def make_pixels(mode: str) -> Image.Image:
    """Makes a picture of 21 x 34 pixels."""
    values = np.random.default_rng(5).integers(0, 256, (21, 34, 4), np.uint8)
    values[..., 3] |= 0xF0
    if mode == "I;16":
        return Image.fromarray(values[..., 0].astype(np.uint16) * 257)
    return Image.fromarray(values).convert(mode)


def encode(mode: str, format: str, **options: Any) -> bytes:
    """Encodes the picture."""
    return encode_image(make_pixels(mode), format, **options)


def png_chunk(name: bytes, data: bytes, checksum: int | None = None) -> bytes:
    """Makes a chunk of a PNG."""
    crc = zlib.crc32(name + data) if checksum is None else checksum
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", crc)


def deep_png() -> bytes:
    """Makes a PNG of 16 bits in RGB."""
    rows = np.random.default_rng(6).integers(0, 256, (21, 34 * 6), np.uint8)
    raw = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", 34, 21, 16, 2, 0, 0, 0)
    chunks = png_chunk(b"IHDR", header), png_chunk(b"IDAT", zlib.compress(raw)), png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


_CHUNKS = {
    "large profile": (b"iCCP", b"p\0\0" + _HUGE),
    "profile that does not inflate": (b"iCCP", b"p\0\0garbage"),
    "profile of another method": (b"iCCP", b"p\0\x07garbage"),
    "empty profile": (b"iCCP", b""),
    "large zTXt": (b"zTXt", b"Comment\0\0" + _HUGE),
    "zTXt that does not inflate": (b"zTXt", b"Comment\0\0garbage"),
    "zTXt of another method": (b"zTXt", b"Comment\0\x07" + _HUGE),
    "large iTXt": (b"iTXt", b"Comment\0\1\0en\0\0" + _HUGE),
    "iTXt that does not inflate": (b"iTXt", b"Comment\0\1\0en\0\0garbage"),
    "iTXt that is no UTF-8": (b"iTXt", b"\xff\xfe\0\0\0\xff\0\xff\0\xff\xff"),
    "huge tEXt": (b"tEXt", b"Comment\0" + b"x" * (70 << 20)),
    "text without a keyword": (b"tEXt", b""),
    "gamma of another length": (b"gAMA", b"\0\1"),
    "chromaticities of another length": (b"cHRM", b"\0" * 31),
    "pixel size of another length": (b"pHYs", b"\0\1"),
    "intent of another length": (b"sRGB", b""),
    "EXIF that is none": (b"eXIf", b"garbage"),
    "empty EXIF": (b"eXIf", b""),
    "time of another length": (b"tIME", b"\0"),
    "private chunk": (b"prVt", b"\0" * 100),
    "histogram of another length": (b"hIST", b"\0"),
    "significant bits of another length": (b"sBIT", b"\0" * 9),
    "animation of another length": (b"acTL", b"\0"),
    "background of another length": (b"bKGD", b"\0" * 9),
}  # fmt: skip


def _vary_png(clean: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields files with an odd chunk before the pixels and behind them, and with a wrong checksum."""
    first = clean.index(b"IDAT") - 4
    last = clean.rindex(b"IEND") - 4
    for name, (kind, data) in _CHUNKS.items():
        if "huge" in name and clean[24:26] != b"\x08\x02":  # 70 MB: once is enough
            continue
        at = first if kind in (b"eXIf", b"tIME", b"tEXt") else 33  # some belong before the palette
        chunk = png_chunk(kind, data)
        yield name, clean[:at] + chunk + clean[at:]
        if kind != b"acTL" and "huge" not in name:
            yield f"{name}, behind the pixels", clean[:last] + chunk + clean[last:]
    for kind in (b"tEXt", b"eXIf", b"gAMA", b"prVt", b"iCCP", b"pHYs"):
        chunk = png_chunk(kind, b"Comment\0abc", 1)
        yield f"{kind.decode()} with a wrong checksum", clean[:33] + chunk + clean[33:]
        yield f"{kind.decode()} with a wrong checksum, behind", clean[:last] + chunk + clean[last:]
    twice = png_chunk(b"eXIf", b"Exif") + png_chunk(b"eXIf", b"MM\0*garbage")
    yield "two EXIF", clean[:33] + twice + clean[33:]


def _segment(marker: int, data: bytes, length: int | None = None) -> bytes:
    """Makes a segment of a JPEG."""
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2 if length is None else length) + data


def _vary_jpeg(clean: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields files with odd segments before the first table."""
    icc = b"ICC_PROFILE\0"
    odd = {
        "EXIF that is none": _segment(0xE1, b"Exif\0\0garbage"),
        "empty EXIF": _segment(0xE1, b"Exif\0\0"),
        "EXIF of an impossible directory": _segment(0xE1, b"Exif\0\0MM\0*\xff\xff\xff\xff"),
        "XMP that is none": _segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0\xff\xfe"),
        "500 profiles": _segment(0xE2, icc + b"\1\xff" + bytes(2000)) * 500,
        "profile without a number": _segment(0xE2, icc),
        "an index of pictures that is none": _segment(0xE2, b"MPF\0garbage"),
        "an index of pictures that is cut off": _segment(0xE2, b"MPF\0MM\0*\0\0\0\x08"),
        "Photoshop's resources that are none": _segment(0xED, b"Photoshop 3.0\08BIM\xff\xff\xff\xff"),
        "empty comment": _segment(0xFE, b""),
        "100 large comments": _segment(0xFE, b"x" * 65000) * 100,
        "a short APP14": _segment(0xEE, b"Adobe"),
        "an unknown segment": _segment(0xEB, b"\xff\xd9\xff\xda" * 10),
        "a JFIF cut off": _segment(0xE0, b"JFIF\0"),
        "an extension of JFIF": _segment(0xE0, b"JFXX\0\x10\xff"),
        "FlashPix that is none": _segment(0xE2, b"FPXR\0"),
    }
    for name, segment in odd.items():
        at = 20 if clean[2:4] == b"\xff\xe0" else 2  # behind JFIF
        yield name, clean[:at] + segment + clean[at:]


def _vary_webp(clean: bytes, width: int, height: int) -> Iterator[tuple[str, bytes]]:
    """Yields extended files with odd profile, EXIF and XMP."""
    image = clean[12:]
    alpha = 0x10 if image[:4] == b"VP8L" else 0
    if image[:4] == b"VP8X":
        alpha, image = image[8] & 0x10, image[18:]

    def extend(flags: int, before: bytes, after: bytes) -> bytes:
        size = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
        body = b"WEBPVP8X" + struct.pack("<IB3x", 10, flags | alpha) + size + before + image + after
        return b"RIFF" + struct.pack("<I", len(body)) + body

    def chunk(name: bytes, data: bytes, length: int | None = None) -> bytes:
        return name + struct.pack("<I", len(data) if length is None else length) + data + b"\0" * (len(data) & 1)

    yield "a profile that is none", extend(0x20, chunk(b"ICCP", b"garbage"), b"")
    yield "a profile that is missing", extend(0x20, b"", b"")
    yield "an empty profile", extend(0x20, chunk(b"ICCP", b""), b"")
    yield "a profile behind the pixels", extend(0x20, b"", chunk(b"ICCP", b"garbage"))
    yield "EXIF that is none", extend(0x08, b"", chunk(b"EXIF", b"garbage"))
    yield "empty EXIF", extend(0x08, b"", chunk(b"EXIF", b""))
    yield "EXIF before the pixels", extend(0x08, chunk(b"EXIF", b"garbage"), b"")
    yield "EXIF beyond the end", extend(0x08, b"", chunk(b"EXIF", b"garbage!", 1000))
    yield "XMP that is none", extend(0x04, b"", chunk(b"XMP ", b"\xff\xfe\0"))
    yield "an unknown chunk", extend(0, chunk(b"QQQQ", bytes(99)), chunk(b"QQQQ", bytes(99)))
    yield "a large profile", extend(0x20, chunk(b"ICCP", bytes(3 << 20)), b"")


def _vary_gif(clean: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields files with odd comments and extensions before the first image."""
    at = 13 + (3 << (clean[10] & 7) + 1)

    def blocks(data: bytes) -> bytes:
        parts = (data[start : start + 255] for start in range(0, len(data), 255))
        return b"".join(bytes([len(part)]) + part for part in parts) + b"\0"

    odd = {
        "an empty comment": b"!\xfe\0",
        "a large comment": b"!\xfe" + blocks(b"x" * (1 << 20)),
        "1,000 comments": b"!\xfe\3\xff\xfe\xfd\0" * 1000,
        "an unknown application": b"!\xff" + blocks(b"\xff" * 300),
        "an empty application": b"!\xff\0",
        "a short count of loops": b"!\xff\x0bNETSCAPE2.0\1\1\0",
        "XMP that is none": b"!\xff\x0bXMP DataXMP" + blocks(b"\xff" * 20),
        "a profile that is none": b"!\xff\x0bICCRGBG1012" + blocks(b"\xff" * 20),
        "an empty text": b"!\x01\0",
        "an unknown extension": b"!\x77\2ab\0",
    }
    for name, block in odd.items():
        yield name, clean[:at] + block + clean[at:]


def _vary_tiff(clean: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields little-endian files with an odd entry in the directory, which moves to the end."""
    (start,) = struct.unpack_from("<I", clean, 4)
    (count,) = struct.unpack_from("<H", clean, start)
    entries = [clean[start + 2 + 12 * i : start + 14 + 12 * i] for i in range(count)]

    def extend(tag: int, kind: int, values: int, at: int) -> bytes:
        given = sorted([*entries, struct.pack("<HHII", tag, kind, values, at)])
        given.sort(key=lambda entry: struct.unpack_from("<H", entry)[0])
        data = clean + b"\0" * (len(clean) & 1)
        directory = struct.pack("<H", len(given)) + b"".join(given) + bytes(4)
        return data[:4] + struct.pack("<I", len(data)) + data[8:] + directory

    yield "a private tag beyond the end", extend(65000, 1, 1000, 0xFFFFFF)
    yield "a private tag of an unknown type", extend(65000, 99, 3, 8)
    yield "a private tag of type 0", extend(65000, 0, 3, 8)
    yield "a huge private tag", extend(65000, 2, 0xFFFFFFFF, 8)
    yield "an empty private tag", extend(65000, 2, 0, 0)
    yield "a profile beyond the end", extend(34675, 7, 5000, 0xFFFFFF)
    yield "a profile of an odd type", extend(34675, 4, 3, 8)
    yield "XMP beyond the end", extend(700, 1, 5000, 0xFFFFFF)
    yield "XMP of floats", extend(700, 12, 2, 8)
    yield "EXIF beyond the end", extend(34665, 4, 1, 0xFFFFFF)
    yield "EXIF that points at itself", extend(34665, 4, 1, start)
    yield "text beyond the end", extend(270, 2, 5000, 0xFFFFFF)
    yield "text of another type", extend(305, 3, 2, 8)
    yield "a resolution beyond the end", extend(282, 5, 1, 0xFFFFFF)
    yield "a unit of resolution as text", extend(296, 2, 4, 0x41414141)
    yield "Photoshop's resources beyond the end", extend(34377, 1, 5000, 0xFFFFFF)
    yield "IPTC of longs", extend(33723, 4, 3, 8)


def _vary_avif(clean: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields the file with EXIF that is none, and with an impossible directory."""
    exif = Image.Exif()
    exif[271] = "maker"
    whole = encode("RGB", "AVIF", exif=exif)
    at = whole.rindex(b"MM\0*")
    for name, start in (("EXIF that is none", b"garbage!"), ("EXIF cut off", b"MM\0*\xff\xff\xff\xff")):
        yield name, whole[:at] + start + whole[at + 8 :]


_MAKERS = {"png": _vary_png, "jpe": _vary_jpeg, "gif": _vary_gif, "tif": _vary_tiff, "avi": _vary_avif}


@cache
def list_odd_files() -> dict[str, tuple[bytes, bytes]]:
    """Returns by name a file with odd metadata, and the same file without it."""
    clean = {
        "png": encode("RGB", "PNG"),
        "png palette": encode("P", "PNG", transparency=3),
        "png gray": encode("L", "PNG"),
        "png alpha": encode("RGBA", "PNG"),
        "png gray 16": encode("I;16", "PNG"),
        "png deep": deep_png(),
        "jpeg": encode("RGB", "JPEG", quality=90),
        "jpeg gray": encode("L", "JPEG", quality=90),
        "jpeg cmyk": encode("CMYK", "JPEG", quality=90),
        "jpeg progressive": encode("RGB", "JPEG", quality=90, progressive=True),
        "webp": encode("RGB", "WEBP", quality=90),
        "webp lossless": encode("RGBA", "WEBP", lossless=True),
        "gif": encode("P", "GIF"),
        "tiff": encode("RGB", "TIFF"),
        "tiff lzw": encode("L", "TIFF", compression="tiff_lzw"),
        "tiff 16": encode("I;16", "TIFF"),
        "avif": encode("RGB", "AVIF"),
    }
    files = {}
    for kind, data in clean.items():
        vary: Any = _MAKERS.get(kind[:3])
        odd = _vary_webp(data, 34, 21) if vary is None else vary(data)
        files |= {f"{kind}: {name}": (each, data) for name, each in odd}
    return files
