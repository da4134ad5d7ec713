"""Parses the header of an image file in microseconds: kind, size, and details for decoders. Can also check the file's
end.

:func:`sniff` parses the header, :func:`check_header` also searches for the end of the image, which a truncated file
lacks. Neither decodes anything. A kind of image file is a line in :data:`KINDS` and a class in
:mod:`packstore.images.kinds`, which is imported at the first file of the kind. Kinds that packstore does not read are
recognised, too, so that messages can name them.
"""

from __future__ import annotations

import struct
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple

from packstore.images.header import MAX_PIXELS as MAX_PIXELS
from packstore.images.header import Data
from packstore.images.header import HeaderError as HeaderError
from packstore.images.header import ImageInfo as ImageInfo
from packstore.images.header import excess_pixels_message as excess_pixels_message
from packstore.images.header import too_many_values as too_many_values

if TYPE_CHECKING:
    from packstore.images.kinds.base import ImageFile


class Kind(NamedTuple):
    """Module and first bytes of a kind of image files.

    Attributes:
        place: Module in :mod:`packstore.images.kinds` and subclass of :class:`packstore.images.kinds.base.ImageFile`.
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
    "gif": Kind("by_pillow:Gif", (b"GIF87a", b"GIF89a")),
    "webp": Kind("by_pillow:WebP", (), (b"RIFF",)),
    "bmp": Kind("by_pillow:Bmp", (), (b"BM",)),
    "tiff": Kind("tiff:Tiff", (b"II*\0", b"MM\0*"), (b"II+\0", b"MM\0+")),
    "jp2": Kind("jp2_jxl:Jpeg2000", (CODESTREAM, b"\0\0\0\x0cjP  \r\n\x87\n")),
    "pnm": Kind("by_pillow:Netpbm", (), (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6")),
    "avif": Kind("heif:Avif", (b"ftypavif", b"ftypavis"), at=4),
    # An AVIF may begin like a HEIF; its further brands tell.
    "heif": Kind("heif:Heif", tuple(b"ftyp" + brand for brand in _HEIF), at=4),
    "jxl": Kind("jp2_jxl:JpegXl", (b"\0\0\0\x0cJXL \r\n\x87\n", b"\xff\x0a")),
    "exr": Kind("hdr:OpenExr", (b"\x76\x2f\x31\x01",)),
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
    kind: type[ImageFile] = getattr(import_module(f"packstore.images.kinds.{module}"), attribute)
    return kind


def find_kind(start: bytes) -> type[ImageFile] | None:
    """Returns the class for a file by its first 16 bytes or more. Returns None for a file of no known kind."""
    for name, at, magics in _STARTS:
        if start.startswith(magics, at):
            return get_kind(name)
    return None


_RAW = "a camera raw"
UNREAD_SUFFIXES = {
    **dict.fromkeys((".tga", ".icb", ".vda"), "a Targa"),
    ".dds": "a DirectDraw surface",
    ".psd": "a Photoshop",
    ".qoi": "a QOI",
    ".ico": "an icon",
    **dict.fromkeys((".dcm", ".dicom"), "a DICOM"),
    **dict.fromkeys((".nii", ".nii.gz"), "a NIfTI"),
    **dict.fromkeys((".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".sr2", ".srf", ".raf"), _RAW),
    **dict.fromkeys((".orf", ".rw2", ".pef", ".srw", ".x3f", ".3fr", ".erf", ".kdc", ".mrw", ".iiq"), _RAW),
}
"""Kinds of files by suffix, in lower case."""

_UNREAD_MAGICS = (
    (b"DDS ", "a DirectDraw surface"),
    (b"8BPS", "a Photoshop"),
    (b"qoif", "a QOI"),
    (b"FUJIFILMCCD-RAW", _RAW),
    (b"IIRO", _RAW),
    (b"IIU\0", _RAW),
)
_SOURCES_OF_UNREAD = {"a DICOM": "dicom", "a NIfTI": "nifti"}
"""Names of the sources that read a kind."""
_DICOM = b"DICM"
"""Follows 128 arbitrary bytes, which may be the header of a TIFF."""
_ORDERS: tuple[Literal["little", "big"], ...] = ("little", "big")
_NIFTI_SIZES = (348, 540)
UNREAD_BYTES = 348
"""Number of first bytes that identify a kind."""
_UNREAD_STARTS = tuple(magic for magic, _ in _UNREAD_MAGICS)


def find_unread_kind(start: bytes) -> str | None:
    """Returns the kind of an image that packstore does not read, such as ``a Photoshop``.

    Looks at the first bytes of its file. Returns None for anything else."""
    if start[128:132] == _DICOM:
        return "a DICOM"
    if not start.startswith(_UNREAD_STARTS):  # one call for nearly all
        return None
    return next(kind for magic, kind in _UNREAD_MAGICS if start.startswith(magic))


def find_unread_file_kind(name: str, start: bytes) -> str | None:
    """Returns the kind of an image that packstore does not read, by name and first :data:`UNREAD_BYTES` bytes.

    Returns None for images that packstore reads and for anything unknown. A ``.hdr`` file that is not Radiance is named
    by its header, such as ``the header of a NIfTI``."""
    lower = name.lower()
    if lower.endswith(".hdr"):
        radiance = start.startswith(RADIANCE)
        return None if radiance else find_unread_kind(start) or f"the header of {_name_hdr_format(start)}"
    by_name = next((kind for suffix, kind in UNREAD_SUFFIXES.items() if lower.endswith(suffix)), None)
    return by_name or find_unread_kind(start)


def _name_hdr_format(start: bytes) -> str:
    """Returns the format of the header in a ``.hdr`` file by its first bytes."""
    if any(int.from_bytes(start[:4], order) in _NIFTI_SIZES for order in _ORDERS):
        return "a NIfTI"
    return "an ENVI" if start.startswith(b"ENVI") else "an unknown"


def unread_kind_message(kind: str) -> str:
    """Returns the error text for a file of ``kind``, to follow its name. It names the source that reads the kind, if
    there is one."""
    if (source := _SOURCES_OF_UNREAD.get(kind)) is not None:
        return f"is {kind} image: pack a folder of them with --source {source}, and other images by themselves"
    return f"is {kind} image, which packstore does not read: convert it to PNG, TIFF or JPEG"


LFS_POINTER = b"version https://git-lfs"
"""First bytes of a Git LFS pointer: a small file in place of a large one that the clone did not fetch."""
IS_LFS_POINTER = "is a pointer of Git LFS without the file itself: run git lfs pull in its folder"


def unread_bits_message(info: ImageInfo) -> str | None:
    """Returns the error text for a JPEG or TIFF with bits per sample that packstore does not read.

    The text follows a file's name. Returns None for other bits, and for other kinds."""
    readable = get_kind(info.kind).readable_bits
    if readable is None or info.precision in readable:
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


def image_suffix(data: Data, unknown: str = "bin") -> str:
    """Returns the usual file suffix of an image by its content, such as ``jpg``; ``unknown`` for no image."""
    try:
        return SUFFIXES[sniff(data).kind]
    except HeaderError:
        return unknown


def begins_like_image(start: bytes) -> bool:
    """Tells if the first 16 bytes of a file identify an image. The image may be of a kind that packstore does not read.

    False for ``.npy``, which may hold any array. False for BMP, netpbm and BigTIFF, too: other files may begin with the
    same bytes."""
    if start.startswith(_SURE[0]) or start.startswith(_SURE[4], 4) or start[:4] + start[8:12] == b"RIFFWEBP":
        return True
    return find_unread_kind(start) is not None


def _parse_header(data: bytes, whole: bool) -> ImageInfo:
    """Parses the header of an image of any kind; with ``whole``, also checks the end."""
    kind = find_kind(data)
    if kind is None:
        raise HeaderError(_describe_unknown(data))
    try:
        info = kind.read_header(data, whole)
    except (IndexError, struct.error):
        raise HeaderError(f"is truncated: its header is cut off after {len(data)} bytes") from None
    if info.width < 1 or info.height < 1:
        raise HeaderError(f"has no pixels: its header says {info.width} x {info.height}")
    return info


def _describe_unknown(data: bytes) -> str:
    """Returns the error text for a file of no kind that packstore reads."""
    if not data:
        return "is empty"
    if (unread := find_unread_kind(data[:132])) is not None:
        return unread_kind_message(unread)
    return IS_LFS_POINTER if data.startswith(LFS_POINTER) else f"is not an image (begins with {data[:8]!r})"
