"""JPEG 2000, after T.800: the codestream in annex A, the boxes of a JP2 file in annex I."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError
from packstore.core.modes import Mode, mode_of, parse_mode
from packstore.images.header import HeaderError, ImageInfo
from packstore.images.kinds.base import ImageDescription, ImageFile, damaged_image, import_extra
from packstore.images.sniff import CODESTREAM

_MOST_BITS = 38  # T.800, table A.11
_MOST_CHANNELS = 4  # that Pillow reads


class Jpeg2000(ImageFile):
    """A JPEG 2000 file. imagecodecs decodes what Pillow has no mode for: over 8 bits or 4 channels, signed values."""

    plugin = "Jpeg2KImagePlugin", "Jpeg2KImageFile"

    @staticmethod
    def read_header(data: bytes, whole: bool) -> ImageInfo:
        at = 0
        while data[at : at + 4] != CODESTREAM:
            length, name = struct.unpack_from(">I4s", data, at)
            start = at + 8
            if length == 1:
                (length,) = struct.unpack_from(">Q", data, start)
                start += 8
            if name == b"jp2c":
                at = start
                break
            if length < 8:
                raise HeaderError(
                    f"is damaged: a JPEG 2000 box {name!r} of {length} bytes without a codestream before it"
                )
            at += length
        if data[at : at + 4] != CODESTREAM:
            raise HeaderError("is damaged: a JPEG 2000 file without a codestream")
        right, bottom, left, top = struct.unpack_from(">4I", data, at + 8)
        (components,) = struct.unpack_from(">H", data, at + 40)
        depths = struct.unpack_from(">" + "B2x" * components, data, at + 42)
        if not components or right <= left or bottom <= top:
            raise HeaderError(
                f"has no pixels: its header says {right - left} x {bottom - top} with {components} components"
            )
        precision = max(depth & 0x7F for depth in depths) + 1
        if precision > _MOST_BITS:
            raise HeaderError(f"is damaged: a JPEG 2000 of {precision} bits a sample")
        # Packets hold no pair of bytes above FF8F, so that this end is that of the image.
        if whole and data.rfind(b"\xff\xd9", at) < 0:
            raise HeaderError("is truncated: no end of its codestream")
        return ImageInfo("jp2", right - left, bottom - top, components, precision)

    def describe(self, frame: int = 0) -> ImageDescription | None:
        if self._is_read_by_pillow():
            return super().describe(frame)
        self._import_imagecodecs()
        mode = self._find_mode()
        return ImageDescription(mode, transparent=self.has_transparent_pixels(mode))

    def read_frame(self, frame: int = 0, *, gray: bool = False) -> tuple[NDArray[Any], Mode]:
        if frame or self._is_read_by_pillow():
            return super().read_frame(frame, gray=gray)
        info, mode = self.info, self._find_mode()
        library = self._import_imagecodecs()
        with damaged_image():
            array = np.asarray(library.jpeg2k_decode(bytes(self.data)))
            array = array.reshape(info.height, info.width, info.components)
        values = array.astype(mode.dtype)
        if not np.array_equal(values, array):
            raise DecodeError(f"a JPEG 2000 of {array.dtype} values that {mode.dtype} does not hold")
        return self.scale(np.ascontiguousarray(values), mode)

    def _import_imagecodecs(self) -> Any:
        """Imports imagecodecs. Raises :class:`DecodeError` if it is missing."""
        return import_extra("imagecodecs", "tiff", "a JPEG 2000 with more bits or channels than Pillow reads")

    def _is_signed(self) -> bool:
        """Tells if a component is signed (T.800 A.5.1)."""
        at = bytes(self.data).find(CODESTREAM) + 42
        return any(depth & 0x80 for depth in self.data[at : at + 3 * self.info.components : 3])

    def _is_read_by_pillow(self) -> bool:
        """Tells if Pillow has a mode for every bit and channel."""
        return self.info.precision <= 8 and self.info.components <= _MOST_CHANNELS and not self._is_signed()

    def _find_mode(self) -> Mode:
        """Returns the mode by bits, signs and channels."""
        signed, bits, found = self._is_signed(), self.info.precision, self.pillow.describe()
        dtypes = (8, "int16" if signed else "uint8"), (16, "int16" if signed else "uint16"), (38, "int32")
        dtype = next(name for most, name in dtypes if bits <= most)
        usual = mode_of(self.info.components, dtype)
        # A last channel that is not known to be alpha gives a multi mode.
        is_usual = usual.has_alpha <= (found is not None and found.has_alpha)
        return usual if is_usual else parse_mode(f"multi:{self.info.components}:{dtype}")
