"""The result of reading the header of an image file, and the error for a broken one."""

from __future__ import annotations

from typing import NamedTuple

Data = bytes | bytearray | memoryview
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
AVIF_BRANDS = (b"avif", b"avis")
HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


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
        kind: ``jpeg``, ``png``, ``gif``, ``bmp``, ``webp``, ``tiff``, ``pnm``, ``avif``, ``heif``, ``jp2`` (JPEG 2000),
            ``jxl`` (JPEG XL), ``exr``, ``hdr`` (Radiance) or ``npy``.
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
        mpf_at: Offset of the index of further pictures in a JPEG, see :mod:`packstore.images.mpf`; 0 without one.
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


def is_heif(start: bytes) -> bool:
    """Tells if a file that begins with ``start`` (at least 12 bytes) is HEIF or AVIF."""
    return start[4:8] == b"ftyp" and start[8:12] in (*AVIF_BRANDS, *HEIF_BRANDS)
