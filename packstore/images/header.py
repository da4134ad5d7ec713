"""The result of reading the header of an image file, the error for a broken one, and limits of sizes."""

from __future__ import annotations

from typing import NamedTuple

from packstore.core.errors import DecodeError

Data = bytes | bytearray | memoryview

MAX_PIXELS = 178_956_970
"""Largest image, in pixels; a larger one is refused as a decompression bomb. Pillow's default limit."""
_MOST_VALUES = 16
_MOST_SCANS, _SCANS_OF_LARGE, _SCAN_BYTES = 500, 24, 8
_SCANNED_PIXELS = 1 << 31
"""Limit of pixels times scans: some seconds of decoding."""


class HeaderError(ValueError):
    """Error for bytes that are no image, or an incomplete one.

    Attributes:
        reason: Text to follow a file's name in messages: ``"is empty"``, ``"is truncated: …"``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ImageInfo(NamedTuple):
    """Parsed header of an image file.

    Attributes:
        kind: Name in :data:`packstore.images.sniff.KINDS`: ``jpeg``, ``png``, ``jp2`` (JPEG 2000), ``hdr`` (Radiance) …
        width: Width in pixels as decoded, at least 1. EXIF is not applied; a TIFF's own orientation is.
        height: Height in pixels as decoded, at least 1.
        components: Samples per pixel as stored. 1: gray, or a palette. 2: gray with alpha. 3: colours. 4: CMYK in a
            JPEG, elsewhere colours with alpha.
        precision: Bits per sample. A palette index counts as a sample; 24-bit BMP says 8.
        sof: The frame marker of a JPEG: 0xC0 baseline, 0xC1 extended, 0xC2 progressive, 0xC3 lossless, 0xC9 and 0xCA
            arithmetic-coded …; 0 for other kinds.
        adobe: The colour transform in a JPEG's Adobe marker (0 none, 1 YCbCr, 2 YCCK), or None without that marker.
        app1_at: Offset of the first APP1 segment of a JPEG, which may hold EXIF or XMP; 0 without one.
        app1_alone: That segment is the only APP1, and no stray bytes lie between segments.
        mpf_at: Offset of the index of further pictures in a JPEG, see :mod:`packstore.images.kinds.jpeg`;
            0 without one.
        tiff_orientation: Orientation of a TIFF, 1 … 8, which every decoder applies; 1 for other kinds.
    """

    kind: str
    width: int
    height: int
    components: int
    precision: int = 8
    sof: int = 0
    adobe: int | None = None
    app1_at: int = 0
    app1_alone: bool = False
    mpf_at: int = 0
    tiff_orientation: int = 1

    @property
    def progressive(self) -> bool:
        """True for a progressive JPEG."""
        return self.sof in (0xC2, 0xC6, 0xCA, 0xCE)


def excess_pixels_message(width: int, height: int, max_pixels: int) -> str | None:
    """Returns the error text for an image with too many pixels, to follow a file's name. Returns None if it has at most
    ``max_pixels``."""
    if width * height <= max_pixels:
        return None
    return (
        f"is an image of {width} x {height} pixels, more than the limit of {max_pixels} that guards against "
        "decompression bombs; raise max_pixels (--max-pixels) if it is genuine"
    )


def too_many_values(what: str, values: int, max_pixels: int) -> str | None:
    """Returns the error text for an array with too many values, to follow a file's name.

    Returns None for at most 16 values per pixel of ``max_pixels``. ``what``: description of the array, for the text."""
    if values <= _MOST_VALUES * max_pixels:
        return None
    return (
        f"is {what}, more than {_MOST_VALUES} times the limit of {max_pixels} that guards against decompression bombs; "
        "raise max_pixels (--max-pixels) if it is genuine"
    )


def check_size(width: int, height: int, max_pixels: int) -> None:
    """Raises :class:`DecodeError` for more than ``max_pixels`` pixels."""
    reason = excess_pixels_message(width, height, max_pixels)
    if reason is not None:
        raise DecodeError(reason)


def check_cost(data: memoryview, width: int, height: int, max_pixels: int) -> None:
    """Raises :class:`DecodeError` for more than ``max_pixels`` pixels. Raises it for a JPEG, too, with more scans than
    can be decoded in seconds."""
    check_size(width, height, max_pixels)
    # Each scan goes through all pixels, even with hardly a byte.
    most = min(_MOST_SCANS, max(_SCANS_OF_LARGE, _SCANNED_PIXELS // max(1, width * height)))
    if bytes(data[:2]) != b"\xff\xd8" or len(data) < most * _SCAN_BYTES:
        return
    scans = bytes(data).count(b"\xff\xda")  # these two bytes do not occur within a scan
    if scans > most:
        raise DecodeError(f"a JPEG of {scans:,} scans, of at most {most} that an image of its size may have")


def no_such_frame(count: int, frame: int) -> DecodeError:
    """Returns the error about a frame that a file does not have."""
    return DecodeError(f"the image has {count} frame{'s' if count > 1 else ''}, but no frame {frame} (from 0)")
