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
        find_mode: Returns the mode that can represent all values.
        decode: Returns the pixels ``(H, W, C)`` of a frame, from 0, in the mode's dtype. Raises :class:`DecodeError`,
            also if there is no such frame. For damaged files, raises :class:`HeaderError` or the errors of its library.
        count_frames: Counts the frames. Raises :class:`DecodeError` for a damaged file or if a library is missing.
        import_library: Imports the library that decodes, if any. If it is missing, raises :class:`DecodeError`, which
            says what to install.
    """

    magics: tuple[bytes, ...]
    read_header: Callable[[bytes, bool], ImageInfo]
    find_mode: Callable[[bytes, ImageInfo], Mode]
    decode: Callable[[bytes, ImageInfo, int], NDArray[Any]]
    count_frames: Callable[[bytes], int] = lambda data: 1
    import_library: Callable[[], object] = lambda: None


def _refuse_further_frames(
    decode: Callable[[bytes, ImageInfo], NDArray[Any]],
) -> Callable[[bytes, ImageInfo, int], NDArray[Any]]:
    """Wraps the decoder of a kind with one frame: any frame but 0 raises :class:`DecodeError`."""

    def decode_frame(data: bytes, info: ImageInfo, frame: int) -> NDArray[Any]:
        """Decodes frame 0. Raises :class:`DecodeError` for any other."""
        if frame:
            from packstore.core.errors import DecodeError

            raise DecodeError(f"the image has 1 frame, but no frame {frame} (from 0)")
        return decode(data, info)

    return decode_frame


KINDS = {
    "jxl": FileKind(jxl.MAGICS, jxl.read_header, jxl.find_mode, jxl.decode, jxl.count_frames, jxl.import_library),
    "exr": FileKind(
        exr.MAGICS,
        exr.read_header,
        exr.find_mode,
        _refuse_further_frames(exr.decode),
        import_library=exr.import_library,
    ),
    "hdr": FileKind(radiance.MAGICS, radiance.read_header, radiance.find_mode, _refuse_further_frames(radiance.decode)),
    "npy": FileKind(npy.MAGICS, npy.read_header, npy.find_mode, _refuse_further_frames(npy.decode)),
}
"""Kinds by :attr:`packstore.images.header.ImageInfo.kind`."""
