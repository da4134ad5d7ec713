"""Decodes image files without loss: all channels, bits and alpha, any frame.

Pillow reads most files. Netpbm of 16 bits is read here, since Pillow rescales it. If Pillow has no mode for a TIFF,
tifffile reads it. TIFF tags are those of TIFF 6.0.
"""

from __future__ import annotations

import importlib
import io
import re
import struct
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError
from packstore.core.modes import Mode, mode_of, parse_mode
from packstore.images.decoders import pillow
from packstore.images.decoders.png import decode_png, split_transparent_colour
from packstore.images.decoders.tiff import (
    TiffPages,
    find_tiff_colours,
    find_tiff_dtype,
    find_tiff_mode,
    import_tifffile,
    is_premultiplied,
    is_stored_inverted,
    pillow_reads_all,
)
from packstore.images.frames import list_tiff_pages
from packstore.images.kinds import KINDS
from packstore.images.mode_dtypes import EXACT
from packstore.images.mpf import find_pictures
from packstore.images.sniff import JPEG_2000, MAX_PIXELS, HeaderError, ImageInfo, sniff, too_many_values

_PILLOW = {
    "1": "L", "L": "L", "LA": "LA", "La": "LA", "P": "RGB", "PA": "RGBA", "RGB": "RGB", "RGBX": "RGB", "RGBA": "RGBA",
    "RGBa": "RGBA", "CMYK": "RGB", "YCbCr": "RGB", "LAB": "RGB", "HSV": "RGB", "I;16": "I;16", "I;16L": "I;16",
    "I;16B": "I;16", "I;16N": "I;16", "I": "I", "F": "F",
}  # fmt: skip
"""The mode as which an image of Pillow's mode is read."""
CONVERTED = {"CMYK": "cmyk_to_rgb", "LAB": "lab_to_rgb", "YCbCr": "ycbcr_to_rgb", "HSV": "hsv_to_rgb"}
"""Name in :data:`packstore.images.losses.UNIFIED` of the conversion of an image of Pillow's mode to RGB."""
_INVERTED = "white_is_zero"
_WITH_ALPHA = {"L": "LA", "RGB": "RGBA"}
_COMPRESSION = 259
_PLAIN_TIFF = (1, 8, 32946)
"""Compressions that tifffile reads by itself: none, and Deflate."""
_HEIF = ("avif", "heif")
_JP2_CHANNELS = 4  # that Pillow reads
_DEEP_AVIF = "an AVIF with more bits than Pillow reads"
_DEEP_JP2 = "a JPEG 2000 with more bits or channels than Pillow reads"
_NETPBM = re.compile(rb"P([2356])((?:\s|#[^\r\n]*[\r\n])+)(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})\s")


class ImageDescription(NamedTuple):
    """Mode, frames and transparency of an image file.

    Attributes:
        mode: Mode that can represent the whole image.
        frames: Number of frames; for a TIFF, of its pages without smaller versions of other pages.
        transparent: Some pixel of the described frame is not opaque.
        is_certain: The mode can represent every value. If False, the caller must compare the values after decoding.
        converted: Name in :data:`packstore.images.losses.UNIFIED` of what a report mentions; None for nothing. It is a
            conversion to RGB of colours that no mode has, inverted gray, colours multiplied by alpha, or further
            pictures that are not read.
        colours: Name of colours that are not RGB and are not converted, such as ``Lab``; None for RGB and gray.
    """

    mode: Mode
    frames: int = 1
    transparent: bool = False
    is_certain: bool = True
    converted: str | None = None
    colours: str | None = None


def describe_image(data: memoryview, info: ImageInfo, frame: int = 0) -> ImageDescription | None:
    """Reads mode and frames from the header of a file. Decodes its alpha if it has one.

    ``frame``: number of the frame or page that is described.

    Returns None for a file that Pillow cannot open, perhaps because a plugin is missing, and for a TIFF that no mode
    fits. Raises :class:`DecodeError` if another library for the file is missing.
    """
    if info.kind == "jpeg":
        pictures = find_pictures(data, info)
        if 0 < frame < len(pictures.views):
            view = data[slice(*pictures.views[frame])]
            return describe_image(view, sniff(view))
        converted = "further_pictures" if pictures.others else CONVERTED["CMYK"] if info.components == 4 else None
        mode = parse_mode("L" if info.components == 1 else "RGB")
        return ImageDescription(mode, len(pictures.views), converted=converted)
    if info.kind in KINDS:
        return _describe_special_kind(bytes(data), info, frame)
    if info.kind == "png" and not frame and (rest := split_transparent_colour(data)) is not None:
        plain = describe_image(rest[0], info)
        if plain is None:
            return None
        try:
            pixels, with_alpha = decode(data, MAX_PIXELS)
        except DecodeError:
            return None
        return ImageDescription(with_alpha, plain.frames, bool((pixels[..., -1] < with_alpha.white).any()))
    if info.kind == "tiff":
        return _describe_tiff(data, info, frame)
    description = pillow.describe_file(data, frame)
    if info.kind == "avif" and info.precision > 8:
        _import_imagecodecs(_DEEP_AVIF)
    if info.kind == "jp2" and not _pillow_reads_jp2(data, info):
        _import_imagecodecs(_DEEP_JP2)
        mode = _find_jp2_mode(data, info, description)
        return ImageDescription(mode, transparent=_has_transparent_pixels(data, mode, 0))
    if description is None:
        return None
    mode = _find_pillow_mode(description.mode, description.has_alpha, info)
    return ImageDescription(mode, description.frames, description.transparent)


def decode(data: memoryview, max_pixels: int, frame: int = 0, *, gray: bool = False) -> tuple[NDArray[Any], Mode]:
    """Decodes an image in the mode that represents it exactly. Returns new pixels ``(H, W, C)``, and the mode.

    Values stay as coded, with two exceptions. Fewer than 8 bits are scaled to 8. With alpha, 9 to 15 bits are scaled to
    16, because 65,535 is opaque.

    Args:
        data: The bytes of the file.
        max_pixels: Limit of the image's pixels.
        frame: Number of a frame or page, from 0. A PNG of 16 bits in colour or with alpha has frame 0 only.
        gray: Return only the luma of a colour JPEG, as libjpeg does.

    Raises:
        DecodeError: The image is damaged, too large, has no such frame, or needs a library that is missing.
    """
    return FrameReader(data, max_pixels).read_frame(frame, gray=gray)


class FrameReader:
    """Decodes frames of one file as :func:`decode`, and keeps the file open. Not thread-safe.

    Reading frames in order is fastest: a frame of a GIF, PNG or WebP is drawn over the frames before it."""

    def __init__(self, data: memoryview, max_pixels: int) -> None:
        """Raises :class:`DecodeError` for a damaged header and a file of too many pixels."""
        self.data, self._max_pixels = data, max_pixels
        try:
            self._info = info = sniff(data)
        except HeaderError as error:
            raise DecodeError(error.reason) from None
        pillow.check_cost(data, info.width, info.height, max_pixels)
        shown = f"an image of {info.width} x {info.height} pixels with {info.components} channels"
        reason = too_many_values(shown, info.width * info.height * info.components, max_pixels)
        if reason is not None:
            raise DecodeError(reason)
        self._tiff = TiffPages(data)

    @property
    def bits(self) -> int:
        """Bits a sample, as the header says."""
        return self._info.precision

    def read_frame(self, frame: int = 0, *, gray: bool = False) -> tuple[NDArray[Any], Mode]:
        """Decodes a frame and returns its pixels and mode, see :func:`decode`.

        Raises :class:`DecodeError`, also for a frame that does not exist.
        """
        data, info = self.data, self._info
        if info.kind in KINDS:
            return _scale_to_dtype(*_decode_special_kind(bytes(data), info, frame), info)
        if info.kind == "jpeg" and frame:
            views = find_pictures(data, info).views
            if frame >= len(views):
                raise DecodeError(f"the image has {len(views)} frames, but no frame {frame} (from 0)")
            return decode(data[slice(*views[frame])], self._max_pixels, gray=gray)
        if info.kind == "png" and not frame and (rest := split_transparent_colour(data)) is not None:
            colours, mode = decode(rest[0], self._max_pixels)
            mode = mode_of(mode.channels + 1, mode.dtype)
            alpha = (colours != rest[1]).any(-1, keepdims=True) * np.array(mode.white, mode.dtype)
            return np.concatenate([colours, alpha.astype(mode.dtype)], -1), mode
        if info.kind == "png" and info.precision == 16 and info.components > 1:
            if frame:
                raise DecodeError("a PNG of 16 bits a channel, of which packstore reads the first frame")
            pixels = decode_png(data)
            return pixels, mode_of(pixels.shape[2], "uint16")
        if info.kind == "pnm" and info.precision > 8 and not frame:
            return _read_netpbm(bytes(data), info)
        if info.kind == "avif" and info.precision > 8:
            if frame >= len(self._deep_avif):
                raise DecodeError(f"the image has {len(self._deep_avif)} frames, but no frame {frame} (from 0)")
            pixels = self._deep_avif[frame].copy()
            return _scale_to_dtype(pixels, mode_of(pixels.shape[2], "uint16"), info)
        if info.kind in _HEIF and info.precision > 8:
            return _scale_to_dtype(*_decode_deep_heif(data, info, frame), info)
        if info.kind == "jp2" and not frame and not _pillow_reads_jp2(data, info):
            return _scale_to_dtype(*_decode_jp2(data, info), info)
        if info.kind == "tiff" and not pillow_reads_all(self._pillow_file.read_tags(self._map_frame_to_pillow(frame))):
            return self._tiff.decode_page(frame, self._max_pixels)

        def convert(image: Any) -> tuple[NDArray[Any], Mode]:
            """Converts Pillow's frame to pixels, and returns them with their mode."""
            mode = _find_pillow_mode(image.mode, pillow.has_alpha(image), info)
            array = np.array(image if image.mode == mode.name else _convert_mode(image, mode))
            if mode.dtype == "uint16":
                array = array.astype(np.uint16)
            return array.reshape(*array.shape[:2], mode.channels), mode

        return self._pillow_file.load_frame(self._map_frame_to_pillow(frame), self._max_pixels, gray, convert)

    @cached_property
    def _deep_avif(self) -> NDArray[Any]:
        """All frames of an AVIF of more than 8 bits, decoded at the first use. Raises :class:`DecodeError`."""
        return _decode_deep_avif(self.data, self._info, self._max_pixels)

    @cached_property
    def _pillow_file(self) -> pillow.OpenImage:
        """The file in Pillow, opened at the first use. Raises :class:`DecodeError`."""
        return pillow.OpenImage(self.data)

    def _map_frame_to_pillow(self, frame: int) -> int:
        """Returns Pillow's number of a frame: in a TIFF, Pillow also counts smaller versions of pages.

        Raises :class:`DecodeError` for a page of a TIFF that does not exist."""
        if not frame or self._info.kind != "tiff":
            return frame
        if frame >= len(self._pages):
            raise DecodeError(f"the image has {len(self._pages)} frames, but no frame {frame} (from 0)")
        return self._pages[frame]

    @cached_property
    def _pages(self) -> list[int]:
        """Pillow's numbers of the pages of a TIFF, without smaller versions. Raises :class:`DecodeError` if they cannot
        be counted."""
        try:
            return [place for place, _ in list_tiff_pages(self.data)]
        except (HeaderError, struct.error, IndexError):
            raise DecodeError("damaged image: its pages cannot be counted") from None


def _describe_tiff(data: memoryview, info: ImageInfo, frame: int) -> ImageDescription | None:
    """Describes page ``frame`` of a TIFF. Returns None if no mode fits.

    Raises :class:`DecodeError` if a library is missing. Ignores damage, which decoding reports.
    """
    try:
        pages = [place for place, _ in list_tiff_pages(data)]
    except (HeaderError, struct.error, IndexError):
        pages = []  # decoding the file reports the fault
    description = pillow.describe_file(data, pages[frame] if frame < len(pages) else frame)
    frames = max(1, len(pages))
    if description is not None and pillow_reads_all(description.tags):
        mode = _find_pillow_mode(description.mode, description.has_alpha, info)
        converted = CONVERTED.get(description.mode, _INVERTED if is_stored_inverted(description.tags) else None)
        return ImageDescription(mode, frames, description.transparent, converted=converted)
    tags = description.tags if description is not None else TiffPages(data).read_tags(frame)
    import_tifffile()
    if tags.get(_COMPRESSION, 1) not in _PLAIN_TIFF:
        _import_imagecodecs("a TIFF of this compression")
    wide, dtype = find_tiff_mode(tags), find_tiff_dtype(tags)
    if wide is None or dtype is None:
        return None
    transparent = _has_transparent_pixels(data, wide, frame)
    converted = _INVERTED if is_stored_inverted(tags) else None
    if wide.has_alpha and is_premultiplied(tags):
        converted = "premultiplied"
    certain = dtype.name in EXACT
    return ImageDescription(wide, frames, transparent, certain, converted, find_tiff_colours(tags))


def _has_transparent_pixels(data: memoryview, mode: Mode, frame: int) -> bool:
    """Decodes a frame whose mode has alpha, and tells if a pixel is not opaque. False for a damaged file, and over the
    limit of pixels: decoding reports both."""
    if not mode.has_alpha:
        return False
    try:
        pixels, pixel_mode = decode(data, MAX_PIXELS, frame)
    except DecodeError:
        return False
    return pixel_mode.has_alpha and bool((pixels[..., -1] < pixel_mode.white).any())


def _scale_to_dtype(pixels: NDArray[Any], mode: Mode, info: ImageInfo) -> tuple[NDArray[Any], Mode]:
    """Scales integers that use only some bits of their dtype to its whole range.

    Returns 9 to 15 bits without alpha unchanged."""
    unused = 0 if mode.dtype not in ("uint8", "uint16") else 8 * pixels.itemsize - info.precision
    if unused <= 0 or (mode.dtype == "uint16" and not mode.has_alpha):
        return pixels, mode
    most, white = (1 << info.precision) - 1, int(mode.white)
    return ((pixels.astype(np.uint32) * white + most // 2) // most).astype(mode.dtype), mode


def _describe_special_kind(data: bytes, info: ImageInfo, frame: int) -> ImageDescription:
    """Describes a frame of a file of :data:`KINDS`; decodes the frame if it has alpha.

    Raises :class:`DecodeError` if decoding or counting its frames fails."""
    kind = KINDS[info.kind]
    mode, frames = kind.find_mode(data, info), kind.count_frames(data)
    if not mode.has_alpha:
        return ImageDescription(mode, frames)
    pixels, _ = _scale_to_dtype(*_decode_special_kind(data, info, frame), info)
    return ImageDescription(mode, frames, bool((pixels[..., -1] < mode.white).any()))


def _decode_special_kind(data: bytes, info: ImageInfo, frame: int) -> tuple[NDArray[Any], Mode]:
    """Decodes a frame of a file of :data:`KINDS`. Returns pixels and mode.

    Raises :class:`DecodeError` for damage, a missing library, and values of another dtype than the header says."""
    kind = KINDS[info.kind]
    kind.import_library()
    try:
        mode, pixels = kind.find_mode(data, info), kind.decode(data, info, frame)
    except (DecodeError, MemoryError):
        raise
    except HeaderError as error:
        raise DecodeError(error.reason) from None
    except Exception as error:  # libraries raise almost anything on damaged files
        raise DecodeError(f"damaged image: {' '.join(str(error).split())[:200] or type(error).__name__}") from error
    if pixels.dtype != mode.dtype:
        raise DecodeError(f"damaged image: {pixels.dtype} values, and its header says {mode.dtype}")
    return pixels, mode


def pixels_of_pillow(image: Any) -> NDArray[Any]:
    """Converts a Pillow image to pixels, ``(H, W, C)``, in the mode that represents it completely.

    CMYK, and other colours for which there is no mode, become RGB."""
    equivalent = _PILLOW.get(image.mode, "RGB")
    mode = parse_mode(_WITH_ALPHA.get(equivalent, equivalent) if pillow.has_alpha(image) else equivalent)
    array = np.array(image if image.mode == mode.name else _convert_mode(image, mode), mode.dtype)
    return array.reshape(*array.shape[:2], mode.channels)


def pillow_conversions(image: Any) -> tuple[str, ...]:
    """Returns the names in :data:`packstore.images.losses.UNIFIED` of what :func:`pixels_of_pillow` does to a Pillow
    image: a conversion of colours, and further frames that it leaves out. Empty for most images."""
    conversions = [CONVERTED[image.mode]] if image.mode in CONVERTED else []
    with suppress(Exception):  # of a damaged file: it has no further frames to read
        if getattr(image, "n_frames", 1) > 1:
            conversions.append("current_frame")
    return tuple(conversions)


def _convert_mode(image: Any, mode: Mode) -> Any:
    """Converts a Pillow image to ``mode``. Returns it unchanged for 16 bits, which Pillow would reduce."""
    return image if mode.dtype == "uint16" else image.convert(mode.name)


def _find_pillow_mode(name: str, has_alpha: bool, info: ImageInfo) -> Mode:
    """Returns the mode for an image of Pillow's mode ``name``: RGB for modes without an equivalent.

    Pillow's mode may hide more than 8 bits. If the header of a PNG, netpbm or HEIF image has more, returns a mode of 16
    bits."""
    if info.kind in ("png", "pnm") and info.precision > 8:
        return mode_of(info.components, "uint16")
    equivalent = _PILLOW.get(name, "RGB")
    mode = parse_mode(_WITH_ALPHA.get(equivalent, equivalent) if has_alpha else equivalent)
    return mode_of(mode.channels, "uint16") if info.kind in _HEIF and info.precision > 8 else mode


def _read_netpbm(data: bytes, info: ImageInfo) -> tuple[NDArray[Any], Mode]:
    """Reads the samples of a netpbm file of more than 8 bits as stored. Pillow would scale them to 16 bits.

    Raises :class:`DecodeError` if they are damaged, or the header has comments between its numbers."""
    match, count = _NETPBM.match(data), info.width * info.height * info.components
    if match is None:
        raise DecodeError("damaged image: a netpbm header with comments between its numbers; write it without them")
    try:
        if match[1] in b"56":
            values = np.frombuffer(data, ">u2", count, match.end()).astype(np.uint16)
        else:
            values = np.array(data[match.end() :].split()[:count], np.uint16)
        return values.reshape(info.height, info.width, info.components), mode_of(info.components, "uint16")
    except (ValueError, OverflowError) as error:
        raise DecodeError(f"damaged image: {error}") from None


def _decode_deep_heif(data: memoryview, info: ImageInfo, frame: int) -> tuple[NDArray[Any], Mode]:
    """Decodes a frame of a HEIF of more than 8 bits to uint16; Pillow would reduce it to 8.

    Raises :class:`DecodeError` if it is damaged, has no such frame, or a library is missing."""
    pillow.load_heif_plugin(info.kind)
    try:
        opened = importlib.import_module("pillow_heif").open_heif(io.BytesIO(data), convert_hdr_to_8bit=False)
        pixels = np.asarray(opened[frame]) >> 16 - info.precision  # which it shifts to the left
        pixels = pixels.reshape(*pixels.shape[:2], -1)
    except MemoryError:
        raise
    except Exception as error:  # pillow_heif raises almost anything on damaged files
        raise DecodeError(f"damaged image: {' '.join(str(error).split())[:200]}") from error
    _check_deep_pixels(pixels, info, any_size=frame > 0)
    return np.ascontiguousarray(pixels), mode_of(pixels.shape[2], "uint16")


def _decode_deep_avif(data: memoryview, info: ImageInfo, max_pixels: int) -> NDArray[Any]:
    """Decodes all frames of an AVIF of more than 8 bits to uint16, ``(frames, H, W, C)``. Pillow would reduce them to
    8.

    Raises :class:`DecodeError` if the file is damaged or too large, or a library is missing."""
    library, description = _import_imagecodecs(_DEEP_AVIF), pillow.describe_file(data)
    frames = 1 if description is None else description.frames
    shown = f"an AVIF of {frames:,} frames of {info.width} x {info.height} pixels"
    reason = too_many_values(shown, frames * info.width * info.height * info.components, max_pixels)
    if reason is not None:
        raise DecodeError(reason)
    try:
        pixels = np.asarray(library.avif_decode(bytes(data)))
        pixels = pixels.reshape(frames, *pixels.shape[frames > 1 :][:2], -1)
    except MemoryError:
        raise
    except Exception as error:  # imagecodecs raises almost anything on damaged files
        raise DecodeError(f"damaged image: {' '.join(str(error).split())[:200]}") from error
    _check_deep_pixels(pixels[0], info)
    return pixels


def _check_deep_pixels(pixels: NDArray[Any], info: ImageInfo, any_size: bool = False) -> None:
    """Raises :class:`DecodeError` unless pixels are uint16 and have the size that the header states.

    ``any_size``: do not check the size."""
    if pixels.dtype != np.uint16 or not (any_size or pixels.shape[:2] == (info.height, info.width)):
        raise DecodeError(
            f"damaged image: {pixels.shape[0]} x {pixels.shape[1]} pixels of {pixels.dtype}, and its header says "
            f"{info.height} x {info.width} of {info.precision} bits"
        )


def _jp2_is_signed(data: memoryview, info: ImageInfo) -> bool:
    """Tells if a component of a JPEG 2000 is signed (T.800 A.5.1)."""
    at = bytes(data).find(JPEG_2000[0]) + 42
    return any(depth & 0x80 for depth in data[at : at + 3 * info.components : 3])


def _pillow_reads_jp2(data: memoryview, info: ImageInfo) -> bool:
    """Tells if Pillow has a mode for every bit and channel of a JPEG 2000."""
    return info.precision <= 8 and info.components <= _JP2_CHANNELS and not _jp2_is_signed(data, info)


def _find_jp2_mode(data: memoryview, info: ImageInfo, found: pillow.PillowDescription | None) -> Mode:
    """Returns the mode of a JPEG 2000 that Pillow cannot represent, by its bits, signs and channels.

    A last channel that is not known to be alpha gives a ``multi`` mode."""
    signed, bits = _jp2_is_signed(data, info), info.precision
    dtypes = (8, "int16" if signed else "uint8"), (16, "int16" if signed else "uint16"), (38, "int32")
    dtype = next(name for most, name in dtypes if bits <= most)
    usual = mode_of(info.components, dtype)
    return (
        usual
        if usual.has_alpha <= (found is not None and found.has_alpha)
        else parse_mode(f"multi:{info.components}:{dtype}")
    )


def _decode_jp2(data: memoryview, info: ImageInfo) -> tuple[NDArray[Any], Mode]:
    """Decodes a JPEG 2000 that Pillow cannot represent (more bits or components, signed values), by imagecodecs.

    Raises :class:`DecodeError` if it is damaged, a value does not fit the mode, or imagecodecs is missing."""
    mode = _find_jp2_mode(data, info, pillow.describe_file(data))
    try:
        array = np.asarray(_import_imagecodecs(_DEEP_JP2).jpeg2k_decode(bytes(data)))
        array = array.reshape(info.height, info.width, info.components)
    except (DecodeError, MemoryError):
        raise
    except Exception as error:  # imagecodecs raises almost anything on damaged files
        raise DecodeError(f"damaged image: {' '.join(str(error).split())[:200]}") from error
    values = array.astype(mode.dtype)
    if not np.array_equal(values, array):
        raise DecodeError(f"a JPEG 2000 of {array.dtype} values that {mode.dtype} does not hold")
    return np.ascontiguousarray(values), mode


def _import_imagecodecs(what: str) -> Any:
    """Imports imagecodecs. Raises :class:`DecodeError` if it is missing.

    ``what``: begins the error text, with the image that needs it."""
    try:
        return importlib.import_module("imagecodecs")
    except ImportError:
        raise DecodeError(f"{what}, which takes imagecodecs: pip install 'packstore[tiff]'") from None
