"""Parses the header of an image file in microseconds: kind, size, and details for decoders. Can also check the file's
end.

:func:`sniff` parses the header, :func:`check_header` also searches for the end of the image, which a truncated file
lacks. Neither decodes anything. :mod:`packstore.images.kinds` has a parser for each kind.
"""

from __future__ import annotations

import struct

from packstore.images.header import (
    MAX_PIXELS,
    Data,
    HeaderError,
    ImageInfo,
    check_size,
    excess_pixels_message,
    too_many_values,
)
from packstore.images.kinds import SUFFIXES, begins_surely, find_kind, get_kind

__all__ = [
    "IS_LFS_POINTER",
    "LFS_POINTER",
    "MAX_PIXELS",
    "Data",
    "HeaderError",
    "ImageInfo",
    "begins_like_image",
    "check_header",
    "check_size",
    "excess_pixels_message",
    "image_suffix",
    "max_file_bytes",
    "sniff",
    "too_many_values",
    "unread_bits_message",
]

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
    if begins_surely(start):
        return True
    from packstore.images.kinds.unread import find_unread_kind

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
    from packstore.images.kinds.unread import find_unread_kind, unread_kind_message

    if not data:
        return "is empty"
    if (unread := find_unread_kind(data[:132])) is not None:
        return unread_kind_message(unread)
    return IS_LFS_POINTER if data.startswith(LFS_POINTER) else f"is not an image (begins with {data[:8]!r})"
