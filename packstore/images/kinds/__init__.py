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
        decode: Returns the pixels ``(H, W, C)`` of a frame, from 0, in the mode's dtype. Raises :class:`DecodeError`,
            also if there is no such frame, and the errors of its library for damaged files.
        frames: Counts the frames. Raises :class:`DecodeError` for a damaged file or if a library is missing.
        load: Imports the library that decodes, if any. Raises :class:`DecodeError` that says what to install.
    """

    magics: tuple[bytes, ...]
    read_header: Callable[[bytes, bool], ImageInfo]
    mode: Callable[[bytes, ImageInfo], Mode]
    decode: Callable[[bytes, ImageInfo, int], NDArray[Any]]
    frames: Callable[[bytes], int] = lambda data: 1
    load: Callable[[], object] = lambda: None


def _single(decode: Callable[[bytes, ImageInfo], NDArray[Any]]) -> Callable[[bytes, ImageInfo, int], NDArray[Any]]:
    """Adds the number of a frame to a decoder of files that have one."""

    def decode_frame(data: bytes, info: ImageInfo, frame: int) -> NDArray[Any]:
        if frame:
            from packstore.core.errors import DecodeError

            raise DecodeError(f"the image has 1 frame, and frame {frame} is read (from 0)")
        return decode(data, info)

    return decode_frame


KINDS = {
    "jxl": FileKind(jxl.MAGICS, jxl.read_header, jxl.mode, jxl.decode, jxl.frames, jxl.library),
    "exr": FileKind(exr.MAGICS, exr.read_header, exr.mode, _single(exr.decode), load=exr.library),
    "hdr": FileKind(radiance.MAGICS, radiance.read_header, radiance.mode, _single(radiance.decode)),
    "npy": FileKind(npy.MAGICS, npy.read_header, npy.mode, _single(npy.decode)),
}
"""By :attr:`packstore.images.header.ImageInfo.kind`."""
