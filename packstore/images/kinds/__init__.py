"""Kinds of image files that neither Pillow nor the engine reads: a module each, and a line in :data:`KINDS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from packstore.images.header import ImageInfo
from packstore.images.kinds import exr, jxl, npy, radiance

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from packstore.core.modes import Mode


class FileKind(NamedTuple):
    """Functions for a kind of image file.

    Attributes:
        magics: First bytes of such files.
        read_header: Parses the header of a whole file. With True it also checks that the file is not truncated, as far
            as that needs no decoding. Raises :class:`HeaderError`, :class:`struct.error` and :class:`IndexError`.
        mode: Returns the mode that can represent all values.
        decode: Returns the pixels ``(H, W, C)`` in the mode's dtype. Raises :class:`DecodeError`, and the errors of its
            library for damaged files.
        frames: Returns 1 for a single frame, 2 for several; only the first is read.
        load: Imports the library that decodes, if any. Raises :class:`DecodeError` that says what to install.
    """

    magics: tuple[bytes, ...]
    read_header: Callable[[bytes, bool], ImageInfo]
    mode: Callable[[bytes, ImageInfo], Mode]
    decode: Callable[[bytes, ImageInfo], NDArray[Any]]
    frames: Callable[[bytes], int] = lambda data: 1
    load: Callable[[], object] = lambda: None


KINDS = {
    "jxl": FileKind(jxl.MAGICS, jxl.read_header, jxl.mode, jxl.decode, jxl.frames, jxl.library),
    "exr": FileKind(exr.MAGICS, exr.read_header, exr.mode, exr.decode, load=exr.library),
    "hdr": FileKind(radiance.MAGICS, radiance.read_header, radiance.mode, radiance.decode),
    "npy": FileKind(npy.MAGICS, npy.read_header, npy.mode, npy.decode),
}
"""By :attr:`packstore.images.header.ImageInfo.kind`."""
