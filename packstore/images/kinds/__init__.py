"""Kinds of image files that neither Pillow nor the engine reads: a module each, and a line in :data:`KINDS`.

The module of a kind is imported at the first file of that kind.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from packstore.images.header import ImageInfo
from packstore.images.unread import RADIANCE

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

    from packstore.core.modes import Mode


class FileKind(NamedTuple):
    """Kind of image file.

    Attributes:
        name: Name of its module in this package.
        magics: First bytes of such files.
        has_frames: Such a file may have several frames: the module then has ``count_frames``, and its ``decode`` takes
            the number of a frame.
    """

    name: str
    magics: tuple[bytes, ...]
    has_frames: bool = False

    @property
    def module(self) -> ModuleType:
        """Module that reads such files."""
        return import_module(f"{__name__}.{self.name}")

    def read_header(self, data: bytes, whole: bool) -> ImageInfo:
        """Parses the header of a whole file. With ``whole`` it also checks that the file is not truncated, as far as
        that needs no decoding. Raises :class:`HeaderError`, :class:`struct.error` and :class:`IndexError`."""
        info: ImageInfo = self.module.read_header(data, whole)
        return info

    def find_mode(self, data: bytes, info: ImageInfo) -> Mode:
        """Returns the mode that can represent all values."""
        mode: Mode = self.module.find_mode(data, info)
        return mode

    def decode(self, data: bytes, info: ImageInfo, frame: int) -> NDArray[Any]:
        """Returns the pixels ``(H, W, C)`` of a frame, from 0, in the mode's dtype. Raises :class:`DecodeError`, also
        if there is no such frame. For damaged files, raises :class:`HeaderError` or the errors of its library."""
        if not self.has_frames and frame:
            from packstore.core.errors import DecodeError

            raise DecodeError(f"the image has 1 frame, but no frame {frame} (from 0)")
        pixels: NDArray[Any] = self.module.decode(data, info, *([frame] if self.has_frames else []))
        return pixels

    def count_frames(self, data: bytes) -> int:
        """Counts the frames. Raises :class:`DecodeError` for a damaged file or if a library is missing."""
        return int(self.module.count_frames(data)) if self.has_frames else 1

    def import_library(self) -> None:
        """Imports the library that decodes, if any. If it is missing, raises :class:`DecodeError`, which says what to
        install."""
        if hasattr(self.module, "import_library"):
            self.module.import_library()


KINDS = {
    "jxl": FileKind("jxl", (b"\0\0\0\x0cJXL \r\n\x87\n", b"\xff\x0a"), has_frames=True),
    "exr": FileKind("exr", (b"\x76\x2f\x31\x01",)),
    "hdr": FileKind("radiance", RADIANCE),
    "npy": FileKind("npy", (b"\x93NUMPY",)),
}
"""Kinds by :attr:`packstore.images.header.ImageInfo.kind`."""
