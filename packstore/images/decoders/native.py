"""Pixels as image files have them: all channels, bits and alpha, any frame.

Pillow reads most; netpbm of 16 bits is read here, since Pillow rescales it; TIFF that Pillow has no mode for is
tifffile's. TIFF tags are those of TIFF 6.0.
"""

from __future__ import annotations

import importlib
import io
import math
import re
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError
from packstore.core.modes import MAX_CHANNELS, Mode, mode_of, parse_mode
from packstore.images.decoders import pillow
from packstore.images.decoders.png import decode_png, split_transparent_colour
from packstore.images.frames import tiff_pages
from packstore.images.kinds import KINDS
from packstore.images.mode_dtypes import EXACT, mode_dtype, to_mode_dtype
from packstore.images.sniff import JPEG_2000, MAX_PIXELS, HeaderError, ImageInfo, sniff

_PILLOW = {
    "1": "L", "L": "L", "LA": "LA", "La": "LA", "P": "RGB", "PA": "RGBA", "RGB": "RGB", "RGBX": "RGB", "RGBA": "RGBA",
    "RGBa": "RGBA", "CMYK": "RGB", "YCbCr": "RGB", "LAB": "RGB", "HSV": "RGB", "I;16": "I;16", "I;16L": "I;16",
    "I;16B": "I;16", "I;16N": "I;16", "I": "I", "F": "F",
}  # fmt: skip
"""The mode as which an image of Pillow's mode is read."""
_WITH_ALPHA = {"L": "LA", "RGB": "RGBA"}
_TIFF_KINDS = {1: "u", 2: "i", 3: "f"}  # SampleFormat
_VALUES = 16
"""Limit of an image's values, per pixel of the limit of pixels: a large image has few channels, a small one many."""
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
        frames: Number of frames, or of pages of a TIFF without smaller versions of others.
        transparent: Some pixel of the first frame is not opaque.
        is_certain: The mode can represent every value; else each value must be compared after decoding.
    """

    mode: Mode
    frames: int = 1
    transparent: bool = False
    is_certain: bool = True


def describe(data: memoryview, info: ImageInfo, frame: int = 0) -> ImageDescription | None:
    """Reads mode and frames from the header of a file, and decodes its alpha if it has one; of a TIFF, those of one
    page. None for a file that cannot be opened. Raises :class:`DecodeError` if its library is missing."""
    if info.kind == "jpeg":
        return ImageDescription(parse_mode("L" if info.components == 1 else "RGB"))
    if info.kind in KINDS:
        return _describe_kind(bytes(data), info)
    if info.kind == "png" and not frame and (rest := split_transparent_colour(data)) is not None:
        plain = describe(rest[0], info)
        if plain is None:
            return None
        try:
            pixels, with_alpha = decode(data, MAX_PIXELS)
        except DecodeError:
            return None
        return ImageDescription(with_alpha, plain.frames, bool((pixels[..., -1] < with_alpha.white).any()))
    found = pillow.describe(data, _pillow_frame(data, info, frame))
    if info.kind == "tiff" and (found is None or not _pillow_reads_all(found.tags)):
        _import_tifffile()
        tags = found.tags if found is not None else _page_tags(data, frame)
        if tags.get(_COMPRESSION, 1) not in _PLAIN_TIFF:
            _import_imagecodecs("a TIFF of this compression")
        mode, dtype = _tiff_mode(tags), _tiff_dtype(tags)
        if mode is None or dtype is None:
            return None
        return ImageDescription(mode, 1 if found is None else found.frames, is_certain=dtype.name in EXACT)
    if info.kind == "avif" and info.precision > 8:
        _import_imagecodecs(_DEEP_AVIF)
    if info.kind == "jp2" and not _pillow_reads_jp2(data, info):
        _import_imagecodecs(_DEEP_JP2)
        return ImageDescription(_jp2_mode(data, info, found))
    if found is None:
        return None
    mode = _mode_of_pillow(found.mode, found.has_alpha, info)
    return ImageDescription(mode, found.frames, found.transparent)


def decode(data: memoryview, max_pixels: int, frame: int = 0, *, gray: bool = False) -> tuple[NDArray[Any], Mode]:
    """Decodes an image in the mode that represents it exactly; returns its pixels, ``(H, W, C)``, freshly allocated,
    and the mode.

    Values stay as coded, except that 65,535 is opaque: with alpha, 9 to 15 bits are scaled to 16.

    Args:
        data: The bytes of the file.
        max_pixels: Limit of the image's pixels.
        frame: Number of a frame or page, from 0.
        gray: Return only the luma of a colour JPEG, as libjpeg does.

    Raises:
        DecodeError: The image is damaged, too large, has no such frame, or needs a library that is missing.
    """
    try:
        info = sniff(data)
    except HeaderError as error:
        raise DecodeError(error.reason) from None
    pillow.check_cost(data, info.width, info.height, max_pixels)
    _check_values(info, max_pixels)
    if info.kind in KINDS:
        return _stretch(*_decode_kind(bytes(data), info, frame), info)
    if info.kind == "png" and not frame and (rest := split_transparent_colour(data)) is not None:
        colours, mode = decode(rest[0], max_pixels)
        mode = mode_of(mode.channels + 1, mode.dtype)
        alpha = (colours != rest[1]).any(-1, keepdims=True) * np.array(mode.white, mode.dtype)
        return np.concatenate([colours, alpha.astype(mode.dtype)], -1), mode
    if info.kind == "png" and info.precision == 16 and info.components > 1 and not frame:
        pixels = decode_png(data)
        return pixels, mode_of(pixels.shape[2], "uint16")
    if info.kind == "pnm" and info.precision > 8 and not frame:
        return _read_netpbm(bytes(data), info)
    if info.kind in _HEIF and info.precision > 8:
        return _stretch(*_decode_deep_heif(data, info, frame), info)
    if info.kind == "jp2" and not frame and not _pillow_reads_jp2(data, info):
        return _stretch(*_decode_jp2(data, info), info)
    if info.kind == "tiff":
        found = pillow.describe(data, _pillow_frame(data, info, frame))
        if found is None or not _pillow_reads_all(found.tags):
            return _decode_tiff(data, frame, max_pixels)

    def convert(image: Any) -> tuple[NDArray[Any], Mode]:
        has_alpha = "A" in image.getbands() or "transparency" in image.info
        mode = _mode_of_pillow(image.mode, has_alpha, info)
        array = np.array(image if image.mode == mode.name else _convert_mode(image, mode))
        if mode.dtype == "uint16":
            array = array.astype(np.uint16)
        return array.reshape(*array.shape[:2], mode.channels), mode

    return pillow.read(data, max_pixels, _pillow_frame(data, info, frame), gray, convert)


def _check_values(info: ImageInfo, max_pixels: int) -> None:
    """Raises :class:`DecodeError` if an image has more than :data:`_VALUES` values per allowed pixel."""
    values = info.width * info.height * info.components
    if values > _VALUES * max_pixels:
        raise DecodeError(
            f"is an image of {info.width} x {info.height} pixels with {info.components} channels, more than "
            f"{_VALUES} times the limit of {max_pixels} that guards against decompression bombs; raise max_pixels "
            "(--max-pixels) if it is genuine"
        )


def _stretch(pixels: NDArray[Any], mode: Mode, info: ImageInfo) -> tuple[NDArray[Any], Mode]:
    """Scales values of fewer bits than the dtype to its range: those with alpha, and those below 8 bits."""
    unused = 0 if mode.dtype not in ("uint8", "uint16") else 8 * pixels.itemsize - info.precision
    if unused <= 0 or (mode.dtype == "uint16" and not mode.has_alpha):
        return pixels, mode
    most, white = (1 << info.precision) - 1, int(mode.white)
    return ((pixels.astype(np.uint32) * white + most // 2) // most).astype(mode.dtype), mode


def _describe_kind(data: bytes, info: ImageInfo) -> ImageDescription:
    kind = KINDS[info.kind]
    mode, frames = kind.mode(data, info), kind.frames(data)
    if not mode.has_alpha:
        return ImageDescription(mode, frames)
    pixels, _ = _stretch(*_decode_kind(data, info, 0), info)
    return ImageDescription(mode, frames, bool((pixels[..., -1] < mode.white).any()))


def _decode_kind(data: bytes, info: ImageInfo, frame: int) -> tuple[NDArray[Any], Mode]:
    kind = KINDS[info.kind]
    if frame:
        raise DecodeError(f"frame {frame} is read (from 0), and of {info.kind.upper()} files packstore reads the first")
    kind.load()
    try:
        mode, pixels = kind.mode(data, info), kind.decode(data, info)
    except (DecodeError, MemoryError):
        raise
    except HeaderError as error:
        raise DecodeError(error.reason) from None
    except Exception as error:  # libraries raise almost anything on damaged files
        raise DecodeError(f"damaged image: {' '.join(str(error).split())[:200] or type(error).__name__}") from error
    if pixels.dtype != mode.dtype:
        raise DecodeError(f"damaged image: {pixels.dtype} values, and its header says {mode.dtype}")
    return pixels, mode


def _pillow_frame(data: memoryview, info: ImageInfo, frame: int) -> int:
    """Returns Pillow's number of a frame: in a TIFF, Pillow also counts smaller versions."""
    if not frame or info.kind != "tiff":
        return frame
    try:
        places = [place for place, _ in tiff_pages(data)]
    except (HeaderError, struct.error, IndexError):
        raise DecodeError("damaged image: its pages cannot be counted") from None
    if frame >= len(places):
        raise DecodeError(f"the image has {len(places)} frames, and frame {frame} is read (from 0)")
    return places[frame]


def pixels_of_pillow(image: Any) -> NDArray[Any]:
    """Converts a Pillow image to pixels, ``(H, W, C)``, in the mode that represents it completely."""
    has_alpha = "A" in image.getbands() or "transparency" in image.info
    found = _PILLOW.get(image.mode, "RGB")
    mode = parse_mode(_WITH_ALPHA.get(found, found) if has_alpha else found)
    array = np.array(image if image.mode == mode.name else _convert_mode(image, mode), mode.dtype)
    return array.reshape(*array.shape[:2], mode.channels)


def _convert_mode(image: Any, mode: Mode) -> Any:
    return image if mode.dtype == "uint16" else image.convert(mode.name)


def _mode_of_pillow(name: str, has_alpha: bool, info: ImageInfo) -> Mode:
    if info.kind in ("png", "pnm") and info.precision > 8:
        return mode_of(info.components, "uint16")
    found = _PILLOW.get(name, "RGB")
    mode = parse_mode(_WITH_ALPHA.get(found, found) if has_alpha else found)
    return mode_of(mode.channels, "uint16") if info.kind in _HEIF and info.precision > 8 else mode


def _read_netpbm(data: bytes, info: ImageInfo) -> tuple[NDArray[Any], Mode]:
    """Reads the samples as stored: Pillow would scale a maximum below 65,535 to it."""
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
    """Decodes an AVIF or HEIF of more than 8 bits without reducing it to 8, as Pillow would."""
    try:
        if info.kind == "avif":
            pixels = np.asarray(_import_imagecodecs(_DEEP_AVIF).avif_decode(bytes(data), index=frame))
        else:
            pillow.heif_plugin(info.kind)
            opened = importlib.import_module("pillow_heif").open_heif(io.BytesIO(data), convert_hdr_to_8bit=False)
            pixels = np.asarray(opened[frame]) >> 16 - info.precision  # which it shifts to the left
        pixels = pixels.reshape(*pixels.shape[:2], -1)
    except (DecodeError, MemoryError):
        raise
    except Exception as error:  # both libraries raise almost anything on damaged files
        raise DecodeError(f"damaged image: {' '.join(str(error).split())[:200]}") from error
    if pixels.dtype != np.uint16 or (not frame and pixels.shape[:2] != (info.height, info.width)):
        raise DecodeError(
            f"damaged image: {pixels.shape[0]} x {pixels.shape[1]} pixels of {pixels.dtype}, and its header says "
            f"{info.height} x {info.width} of {info.precision} bits"
        )
    return np.ascontiguousarray(pixels), mode_of(pixels.shape[2], "uint16")


def _jp2_is_signed(data: memoryview, info: ImageInfo) -> bool:
    """Tells if a component of a JPEG 2000 is signed (T.800 A.5.1)."""
    at = bytes(data).find(JPEG_2000[0]) + 42
    return any(depth & 0x80 for depth in data[at : at + 3 * info.components : 3])


def _pillow_reads_jp2(data: memoryview, info: ImageInfo) -> bool:
    """Tells if Pillow has a mode for every bit and channel of a JPEG 2000."""
    return info.precision <= 8 and info.components <= _JP2_CHANNELS and not _jp2_is_signed(data, info)


def _jp2_mode(data: memoryview, info: ImageInfo, found: pillow.PillowDescription | None) -> Mode:
    """Returns the mode of a JPEG 2000 that Pillow cannot represent."""
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
    """Decodes a JPEG 2000 of more than 8 bits or four components, by imagecodecs."""
    mode = _jp2_mode(data, info, pillow.describe(data))
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
    try:
        return importlib.import_module("imagecodecs")
    except ImportError:
        raise DecodeError(f"{what}, which takes imagecodecs: pip install 'packstore[tiff]'") from None


def _pillow_reads_all(tags: Any) -> bool:
    """Tells if Pillow has a mode for every bit and channel of a TIFF."""
    if tags is None:
        return False
    bits, samples, kind = tags.get(258, (1,)), int(tags.get(277, 1)), tags.get(339, (1,))
    bits, kind = (each if isinstance(each, tuple) else (each,) for each in (bits, kind))
    if max(bits) <= 8:
        inks, extra = tags.get(262) == 5, tags.get(338, ())
        alpha = samples in (2, 4) and tuple(extra if isinstance(extra, tuple) else (extra,)) in ((1,), (2,))
        return kind[0] == 1 and (samples in (1, 3) or alpha or (inks and samples == 4))
    return samples == 1 and (bits[0], kind[0]) in ((16, 1), (32, 2), (32, 3))


def _tiff_mode(tags: Any) -> Mode | None:
    """Returns the mode that can represent all values of a TIFF; None for a dtype that no mode represents."""
    dtype = _tiff_dtype(tags)
    try:
        return (
            None if dtype is None else _mode_of_channels(int(tags.get(277, 1)), mode_dtype(dtype) or "", tags.get(338))
        )
    except (TypeError, ValueError):
        return None


def _tiff_dtype(tags: Any) -> np.dtype[Any] | None:
    try:
        bits, kind = (np.atleast_1d(tags.get(number, 1)).tolist()[0] for number in (258, 339))
        return np.dtype(f"{_TIFF_KINDS[kind]}{max(8, bits) // 8}")
    except (KeyError, TypeError, ValueError):
        return None


def _mode_of_channels(channels: int, dtype: str, extra: Any) -> Mode | None:
    if not 1 <= channels <= MAX_CHANNELS or dtype not in EXACT.values():
        return None
    alpha = extra is not None and any(number in (1, 2) for number in np.atleast_1d(extra).tolist())
    usual = mode_of(channels, dtype)
    return usual if usual.has_alpha <= alpha else parse_mode(f"multi:{channels}:{dtype}")


def _page_tags(data: memoryview, frame: int) -> dict[int, Any]:
    try:
        with _import_tifffile().TiffFile(io.BytesIO(data)) as file:
            return {tag.code: tag.value for tag in [page for page in file.pages if not page.is_reduced][frame].tags}
    except MemoryError:
        raise
    except Exception:  # decoding the file reports the fault
        return {}


def _decode_tiff(data: memoryview, frame: int, max_pixels: int) -> tuple[NDArray[Any], Mode]:
    library = _import_tifffile()
    try:
        with library.TiffFile(io.BytesIO(data)) as file:
            pages = [page for page in file.pages if not page.is_reduced]
            if frame >= len(pages):
                raise DecodeError(f"the image has {len(pages)} pages, and page {frame} is read (from 0)")
            page = pages[frame]
            height, width, channels = page.imagelength, page.imagewidth, page.samplesperpixel
            pillow.check_size(width, height, max_pixels)
            if math.prod(page.shape) != height * width * channels:
                raise DecodeError(f"a TIFF page of shape {page.shape}; expected {height} x {width} x {channels}")
            array = page.asarray(maxworkers=1)
            if channels > 1 and page.planarconfig == 2:
                array = array.reshape(channels, height, width).transpose(1, 2, 0)
            extra = None if not page.extrasamples else [int(each) for each in page.extrasamples]
    except (DecodeError, MemoryError):
        raise
    except Exception as error:  # tifffile and imagecodecs raise almost anything on damaged files
        raise DecodeError(f"damaged image: {' '.join(str(error).split())[:200]}") from error
    array = to_mode_dtype(array.reshape(height, width, channels), "a TIFF")
    mode = _mode_of_channels(channels, str(array.dtype), extra)
    if mode is None:
        raise DecodeError(f"a TIFF of {channels} channels of {array.dtype}, which packstore does not read")
    return np.ascontiguousarray(array), mode


def _import_tifffile() -> Any:
    try:
        return importlib.import_module("tifffile")
    except ImportError:
        raise DecodeError(
            "a TIFF with more bits or channels than Pillow reads, which takes tifffile: pip install 'packstore[tiff]'"
        ) from None
