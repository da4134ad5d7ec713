"""Kinds of image files: a line in :data:`KINDS`, and a module that is imported at the first file of the kind."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from packstore.images.kinds.base import ImageFile


class Kind(NamedTuple):
    """Where a kind of image file is implemented, and how its files begin.

    Attributes:
        place: Module in this package and subclass of :class:`packstore.images.kinds.base.ImageFile`.
        magics: First bytes that only such files have.
        unsure: First bytes that files other than images may have, too.
        at: Offset of these bytes.
    """

    place: str
    magics: tuple[bytes, ...]
    unsure: tuple[bytes, ...] = ()
    at: int = 0


RADIANCE = (b"#?RADIANCE", b"#?RGBE")
"""First bytes of Radiance HDR, the images among the many kinds of headers that end in ``.hdr``."""
CODESTREAM = b"\xff\x4f\xff\x51"
"""First bytes of a codestream of JPEG 2000."""
_HEIF = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")

KINDS = {
    "jpeg": Kind("jpeg:Jpeg", (b"\xff\xd8\xff",)),
    "png": Kind("png:Png", (b"\x89PNG\r\n\x1a\n",)),
    "gif": Kind("gif:Gif", (b"GIF87a", b"GIF89a")),
    "webp": Kind("webp:WebP", (), (b"RIFF",)),
    "bmp": Kind("bmp:Bmp", (), (b"BM",)),
    "tiff": Kind("tiff:Tiff", (b"II*\0", b"MM\0*"), (b"II+\0", b"MM\0+")),
    "jp2": Kind("jp2:Jpeg2000", (CODESTREAM, b"\0\0\0\x0cjP  \r\n\x87\n")),
    "pnm": Kind("pnm:Netpbm", (), (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6")),
    "avif": Kind("heif:Avif", (b"ftypavif", b"ftypavis"), at=4),
    # An AVIF may begin like a HEIF; its further brands tell.
    "heif": Kind("heif:Heif", tuple(b"ftyp" + brand for brand in _HEIF), at=4),
    "jxl": Kind("jxl:JpegXl", (b"\0\0\0\x0cJXL \r\n\x87\n", b"\xff\x0a")),
    "exr": Kind("exr:OpenExr", (b"\x76\x2f\x31\x01",)),
    "hdr": Kind("hdr:Radiance", RADIANCE),
    "npy": Kind("npy:Npy", (), (b"\x93NUMPY",)),
}
"""Kinds by :attr:`packstore.images.header.ImageInfo.kind`."""
SUFFIXES = {**{name: name for name in KINDS}, "jpeg": "jpg", "tiff": "tif", "pnm": "ppm", "heif": "heic"}
"""The usual suffix of the files of each kind."""
_STARTS = tuple((name, kind.at, kind.magics + kind.unsure) for name, kind in KINDS.items())
_SURE = {at: sum((kind.magics for kind in KINDS.values() if kind.at == at), ()) for at in (0, 4)}


@cache
def get_kind(name: str) -> type[ImageFile]:
    """Imports the class of a kind."""
    module, _, attribute = KINDS[name].place.partition(":")
    kind: type[ImageFile] = getattr(import_module(f"{__name__}.{module}"), attribute)
    return kind


def find_kind(start: bytes) -> type[ImageFile] | None:
    """Returns the class for a file by its first 16 bytes or more. Returns None for a file of no known kind."""
    for name, at, magics in _STARTS:
        if start.startswith(magics, at):
            return get_kind(name)
    return None


def begins_surely(start: bytes) -> bool:
    """Tells if the first 16 bytes of a file are those of a known kind, and of no files other than images."""
    return start.startswith(_SURE[0]) or start.startswith(_SURE[4], 4) or start[:4] + start[8:12] == b"RIFFWEBP"
