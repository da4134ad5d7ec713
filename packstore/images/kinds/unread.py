"""Recognises images that packstore does not read, by suffix and first bytes. Messages can then name their kind."""

from __future__ import annotations

from typing import Literal

from packstore.images.kinds import RADIANCE

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

_MAGICS = (
    (b"DDS ", "a DirectDraw surface"),
    (b"8BPS", "a Photoshop"),
    (b"qoif", "a QOI"),
    (b"FUJIFILMCCD-RAW", _RAW),
    (b"IIRO", _RAW),
    (b"IIU\0", _RAW),
)
_SOURCES = {"a DICOM": "dicom", "a NIfTI": "nifti"}
"""Names of the sources that read a kind."""
_DICOM = b"DICM"
"""Follows 128 arbitrary bytes, which may be the header of a TIFF."""
_ORDERS: tuple[Literal["little", "big"], ...] = ("little", "big")
_NIFTI_SIZES = (348, 540)
UNREAD_BYTES = 348
"""Number of first bytes that identify a kind."""
_STARTS = tuple(magic for magic, _ in _MAGICS)


def find_unread_kind(start: bytes) -> str | None:
    """Returns the kind of an image that packstore does not read, such as ``a Photoshop``.

    Looks at the first bytes of its file. Returns None for anything else."""
    if start[128:132] == _DICOM:
        return "a DICOM"
    if not start.startswith(_STARTS):  # one call for nearly all
        return None
    return next(kind for magic, kind in _MAGICS if start.startswith(magic))


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
    if (source := _SOURCES.get(kind)) is not None:
        return f"is {kind} image: pack a folder of them with --source {source}, and other images by themselves"
    return f"is {kind} image, which packstore does not read: convert it to PNG, TIFF or JPEG"
