"""JPEG 2000 and JPEG XL: headers here, pixels by ``imagecodecs``, or by Pillow for most JPEG 2000.

Written after T.800 (JPEG 2000: the codestream in annex A, the boxes of a JP2 file in annex I), and ISO/IEC 18181-1
(JPEG XL: the codestream, annexes C and D) and 18181-2 (boxes).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError
from packstore.core.modes import Mode, mode_of, parse_mode
from packstore.images.header import HeaderError, ImageInfo, no_such_frame
from packstore.images.kinds.base import ImageDescription, ImageFile, OwnFile, damaged_image, import_extra
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
        """Tells if the image has at most 8 unsigned bits and 4 channels, which Pillow reads without loss."""
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


_CODESTREAM = b"\xff\x0a"
_HEAD = 1 << 16
"""Maximum bytes of a codestream's header: names of extra channels are short."""
_RATIOS = ((1, 1), (1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
_GRAY, _ALPHA, _SPOT, _FILTER = 1, 0, 2, 5
_MOST_JXL_BITS = {True: 32, False: 16}


class _JxlHeader(NamedTuple):
    """Header of a JPEG XL.

    Attributes:
        width: Width of the displayed image.
        height: Height of the displayed image.
        colours: Number of colour channels: 1 or 3.
        has_alpha: It has an alpha channel.
        bits: Bits per sample.
        is_float: Samples are floating point.
        animated: It may have several frames.
    """

    width: int
    height: int
    colours: int
    has_alpha: bool
    bits: int
    is_float: bool
    animated: bool


class _Bits:
    """Reads numbers from a codestream bit by bit, the lowest bit of a byte first. Raises :class:`HeaderError` past its
    end."""

    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data, "little"), 8 * len(data)

    def read(self, bits: int) -> int:
        """Reads a number of ``bits`` bits."""
        if bits > self._left:
            raise HeaderError("is truncated: its JPEG XL header is cut off")
        number = self._value & (1 << bits) - 1
        self._value >>= bits
        self._left -= bits
        return number

    def read_u32(self, *choices: tuple[int, int]) -> int:
        """Reads a number in the coding U32: an offset plus a number of some bits.

        ``choices``: four pairs (offset, bits). Two bits choose one of them."""
        offset, bits = choices[self.read(2)]
        return offset + self.read(bits)

    def read_enum(self) -> int:
        """Reads a number in the coding of enumerations."""
        return self.read_u32((0, 0), (1, 0), (2, 4), (18, 6))


def _parse_header(data: bytes, whole: bool) -> _JxlHeader:
    """Parses the codestream's header; with ``whole``, also checks the sizes of boxes."""
    head = data[:_HEAD] if data.startswith(_CODESTREAM) else b"".join(_list_codestream_parts(data, whole))[:_HEAD]
    if head[:2] != _CODESTREAM:
        raise HeaderError("is damaged: a JPEG XL file without a codestream")
    bits = _Bits(head[2:])
    width, height = _parse_size(bits)
    if bits.read(1):  # all default
        return _JxlHeader(width, height, 3, False, 8, False, False)
    animated = False
    if bits.read(1):
        if bits.read(3) >= 4:  # orientation; libjxl applies it
            width, height = height, width
        if bits.read(1):
            _parse_size(bits)  # intrinsic size, for display
        if bits.read(1):
            _skip_preview(bits)
        if animated := bool(bits.read(1)):
            bits.read_u32((100, 0), (1000, 0), (1, 10), (1, 30))
            bits.read_u32((1, 0), (1001, 0), (1, 8), (1, 10))
            bits.read_u32((0, 0), (0, 3), (0, 16), (0, 32))
            bits.read(1)
    is_float, depth = _parse_depth(bits)
    bits.read(1)
    extra = bits.read_u32((0, 0), (1, 0), (2, 4), (1, 12))
    kinds = [_parse_extra_channel(bits) for _ in range(extra)]
    if kinds not in ([], [_ALPHA]):
        raise HeaderError(f"is a JPEG XL of {extra} channels beside its colours; packstore reads alpha alone")
    bits.read(1)
    gray = not bits.read(1) and (bits.read(1), bits.read_enum())[1] == _GRAY  # follows the flag of an ICC profile
    if depth > _MOST_JXL_BITS[is_float]:
        raise HeaderError(f"is a JPEG XL of {depth} bits a sample, which packstore does not read")
    return _JxlHeader(width, height, 1 if gray else 3, extra > 0, depth, is_float, animated)


def _parse_size(bits: _Bits) -> tuple[int, int]:
    """Parses the size at the start of a codestream. Returns width and height."""
    small = bits.read(1)

    def side() -> int:
        """Reads a side in pixels."""
        return 8 * (1 + bits.read(5)) if small else bits.read_u32((1, 9), (1, 13), (1, 18), (1, 30))

    height = side()
    ratio = bits.read(3)
    if not ratio:
        return side(), height
    across, down = _RATIOS[ratio]
    return height * across // down, height


def _skip_preview(bits: _Bits) -> None:
    """Reads past the size of a preview."""
    eighths = bits.read(1)
    choices = ((16, 0), (32, 0), (1, 5), (33, 9)) if eighths else ((1, 6), (65, 8), (321, 10), (1345, 12))
    bits.read_u32(*choices)
    if not bits.read(3):
        bits.read_u32(*choices)


def _parse_depth(bits: _Bits) -> tuple[bool, int]:
    """Parses the bit depth. Returns if samples are floating point, and their bits."""
    if bits.read(1):
        depth = bits.read_u32((32, 0), (16, 0), (24, 0), (1, 6))
        bits.read(4)
        return True, depth
    return False, bits.read_u32((8, 0), (10, 0), (12, 0), (1, 6))


def _parse_extra_channel(bits: _Bits) -> int:
    """Reads past an extra channel's description and returns its type, such as alpha."""
    if bits.read(1):
        return _ALPHA
    kind = bits.read_enum()
    _parse_depth(bits)
    bits.read_u32((0, 0), (3, 0), (4, 0), (1, 3))
    for _ in range(bits.read_u32((0, 0), (0, 4), (16, 5), (48, 10))):
        bits.read(8)
    if kind == _ALPHA:
        bits.read(1)
    elif kind == _SPOT:
        bits.read(64)
    elif kind == _FILTER:
        bits.read_u32((1, 0), (0, 2), (3, 4), (19, 8))
    return kind


def _list_codestream_parts(data: bytes, whole: bool) -> Iterator[bytes]:
    """Yields the beginning of each codestream part in a file of boxes; without ``whole``, only the first."""
    at = 0
    while at + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, at)
        start, end = at + 8, at + length
        if length == 1:
            (length,) = struct.unpack_from(">Q", data, start)
            start, end = start + 8, at + length
        elif length == 0:
            end = len(data)
        if end < start:
            raise HeaderError(f"is damaged: a JPEG XL box of {length} bytes at byte {at}")
        if whole and end > len(data):
            raise HeaderError(f"is truncated: JPEG XL boxes end at byte {end}, the file has {len(data)}")
        if name in (b"jxlc", b"jxlp"):
            start += 4 if name == b"jxlp" else 0  # its number
            yield data[start : min(end, start + _HEAD)]
            if not whole:
                return
        at = end


class JpegXl(OwnFile):
    """A JPEG XL file."""

    has_frames = True

    @staticmethod
    def read_header(data: bytes, whole: bool) -> ImageInfo:
        header = _parse_header(data, whole)
        return ImageInfo("jxl", header.width, header.height, header.colours + header.has_alpha, header.bits)

    @classmethod
    def import_library(cls) -> Any:
        return import_extra("imagecodecs", "tiff", "a JPEG XL image")

    def find_mode(self) -> Mode:
        header = _parse_header(self.content, False)
        dtype = "float32" if header.is_float else "uint8" if header.bits <= 8 else "uint16"
        return mode_of(self.info.components, dtype)

    def decode(self, frame: int) -> NDArray[Any]:
        pixels = self._find_frame(frame)
        if pixels is None:
            raise no_such_frame(self.count(), frame)
        return pixels.astype(np.float32) if pixels.dtype == np.float16 else pixels

    def count(self) -> int:
        # imagecodecs has no function for it, so this searches for the first frame that is missing.
        if not _parse_header(self.content, False).animated:
            return 1
        low, high = 1, 2
        with damaged_image():
            while self._find_frame(high - 1) is not None:
                low, high = high, 2 * high
            while low + 1 < high:  # frame low - 1 exists, frame high - 1 does not
                middle = (low + high) // 2
                low, high = (low, middle) if self._find_frame(middle - 1) is None else (middle, high)
        return low

    def _find_frame(self, frame: int) -> NDArray[Any] | None:
        """Decodes a frame to ``(H, W, C)``; None if it does not exist."""
        header = _parse_header(self.content, False)
        dtype = np.dtype(f"{'f' if header.is_float else 'u'}{-(-header.bits // 8)}")
        channels = header.colours + header.has_alpha
        # For a frame that does not exist, imagecodecs leaves the memory as it was; only damage raises errors.
        for filler in (0, 1):  # a frame may be all zeros
            pixels = np.full((header.height, header.width, channels), filler, dtype)
            self.import_library().jpegxl_decode(
                self.content, index=frame, out=pixels if channels > 1 else pixels[..., 0]
            )
            if (pixels != filler).any():
                return pixels
        return None
