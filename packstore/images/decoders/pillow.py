"""Decodes every kind of image with Pillow: the reference for the fast decoders."""

from __future__ import annotations

import importlib
import io
import logging
import re
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError
from packstore.images.header import TIFF, is_heif
from packstore.images.heif import parse_heif_header
from packstore.images.jpeg import excess_scans_message
from packstore.images.metadata import strip_metadata
from packstore.images.pillow_tags import ORIENTATION, as_orientation, without_warnings
from packstore.images.sniff import JPEG_2000, MAX_PIXELS, HeaderError, excess_pixels_message, sniff

if TYPE_CHECKING:
    from collections.abc import Callable

    from PIL import Image

_T = TypeVar("_T")
# Only these plugins ever see a stranger's bytes (not EPS, which would start ghostscript). Image.open would import all
# plugins, and check the image against a limit of the whole process, with a warning.
_PLUGINS: tuple[tuple[str, str, tuple[bytes, ...]], ...] = (
    ("JpegImagePlugin", "JpegImageFile", (b"\xff\xd8\xff",)),
    ("PngImagePlugin", "PngImageFile", (b"\x89PNG\r\n\x1a\n",)),
    ("GifImagePlugin", "GifImageFile", (b"GIF87a", b"GIF89a")),
    ("WebPImagePlugin", "WebPImageFile", (b"RIFF",)),
    ("TiffImagePlugin", "TiffImageFile", TIFF),
    ("PpmImagePlugin", "PpmImageFile", (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6")),
    ("BmpImagePlugin", "BmpImageFile", (b"BM",)),
    ("Jpeg2KImagePlugin", "Jpeg2KImageFile", JPEG_2000),
)
_AVIF = "PIL.AvifImagePlugin", "AvifImageFile"
_HEIF = "pillow_heif.as_plugin", "HeifImageFile"

logging.getLogger("PIL").addHandler(logging.NullHandler())  # else Pillow prints what it cannot open; tifffile may


def find_version() -> str:
    """Returns the versions of Pillow and its JPEG library. Raises :class:`ImportError` without Pillow."""
    features = importlib.import_module("PIL.features")
    pillow = importlib.import_module("PIL").__version__
    return f"Pillow {pillow}, libjpeg-turbo {features.version('libjpeg_turbo') or 'absent'}"


def decode(data: memoryview, max_pixels: int, side: int | None = None) -> NDArray[np.uint8]:
    """Decodes an image to the pixels of ``Image.open(...).convert("RGB")``: uint8 ``(H, W, 3)``, a new array.

    With ``side``, a JPEG is scaled by 1/2, 1/4 or 1/8 while it is decoded; both sides keep at least ``side`` pixels.

    Raises:
        DecodeError: An unknown kind, a damaged or truncated file, more than ``max_pixels`` pixels, or too many scans.
    """
    data = strip_metadata(data)
    if bytes(data[:4]) == b"RIFF" or is_heif(bytes(data[:12])):
        # Opening such a file already takes the memory of two images.
        with suppress(HeaderError):
            header = sniff(bytes(data[:64] if bytes(data[:4]) == b"RIFF" else data))
            check_size(header.width, header.height, max_pixels)
    try:
        with _open_image(data) as image:
            width, height = image.size
            check_cost(data, width, height, max_pixels)
            if side is not None:
                image.draft(None, (side, side))
            with _ignore_size_warnings(width * height):
                image.load()
            # Irrelevant to RGB, but Pillow would convert it, with a warning.
            image.info.pop("transparency", None)
            return np.array(image if image.mode == "RGB" else image.convert("RGB"))
    except (DecodeError, MemoryError):
        raise
    except Exception as error:  # plugins raise almost anything on damaged files: OSError, SyntaxError, struct.error ...
        raise DecodeError(f"damaged image: {_format_error(error)}") from error


class PillowDescription(NamedTuple):
    """Mode, frames, transparency and TIFF tags of an image file.

    Attributes:
        mode: Pillow's mode of the first frame.
        frames: Number of frames; 1 for a TIFF.
        has_alpha: The file has an alpha channel, or a transparent colour.
        transparent: A pixel of the first frame is not opaque.
        tags: Tags of a TIFF; else None.
    """

    mode: str
    frames: int
    has_alpha: bool
    transparent: bool
    tags: Any = None


def describe_file(data: memoryview, page: int = 0) -> PillowDescription | None:
    """Opens an image file with Pillow and describes it; decodes it if it has alpha.

    ``page``: number of a frame; for a TIFF, of a page as Pillow counts: with smaller versions of pages.

    Returns None if Pillow cannot open or decode the file, or lacks its plugin. Returns None also for too many pixels.
    """
    try:
        with without_warnings(Warning), _open_image(strip_metadata(data)) as image:
            check_size(*image.size, MAX_PIXELS)
            is_tiff = hasattr(image, "tag_v2")
            frames = 1 if is_tiff else getattr(image, "n_frames", 1)
            if page or is_tiff:
                image.seek(page)
            tags = getattr(image, "tag_v2", None)
            mode = image.mode
            alpha = has_alpha(image) and not mode.startswith("I;16")
            lowest = image.convert("RGBA").getchannel("A").getextrema()[0] if alpha else 255
            return PillowDescription(mode, frames, alpha, lowest < 255, tags)  # type: ignore[operator] # of one band
    except MemoryError:
        raise
    except Exception:  # plugins raise almost anything; decoding the file reports the fault
        return None


def has_alpha(image: Image.Image) -> bool:
    """Tells if a Pillow image has an alpha channel or a transparent colour. The band A of Lab is a colour."""
    return image.getbands()[-1] == "A" or "transparency" in image.info


def any_frame_has_alpha(data: memoryview) -> bool:
    """Tells if any frame of a file has alpha in Pillow. Decodes frames until one has.

    Returns False for a damaged file: reading its frames reports the damage."""
    try:
        with without_warnings(Warning), _open_image(strip_metadata(data)) as image:
            check_size(*image.size, MAX_PIXELS)
            for number in range(getattr(image, "n_frames", 1)):
                image.seek(number)
                image.load()
                if has_alpha(image):
                    return True
    except MemoryError:
        raise
    except Exception:  # as in decode
        return False
    return False


class OpenImage:
    """Image file that Pillow opens once, at the first use, and reads frame by frame.

    Reading frames in their order is fastest."""

    def __init__(self, data: memoryview) -> None:
        self._data = strip_metadata(data)
        self._image: Image.Image | None = None

    def load_frame(self, frame: int, max_pixels: int, gray: bool, convert: Callable[[Image.Image], _T]) -> _T:
        """Loads a frame and returns ``convert(frame)``. With ``gray``, decodes only the luma of a JPEG.

        Raises :class:`DecodeError` as :func:`decode`, and for a frame that does not exist.
        """
        try:
            image = self._seek_frame(frame)
            check_cost(self._data, *image.size, max_pixels)
            if gray:
                image.draft("L", None)
            with _ignore_size_warnings(image.size[0] * image.size[1]):
                image.load()
            return convert(image)
        except (DecodeError, MemoryError):
            raise
        except Exception as error:  # as in decode
            self._image = None  # in an unknown state
            raise DecodeError(f"damaged image: {_format_error(error)}") from error

    def read_tags(self, page: int) -> Any:
        """Returns the tags of a TIFF page, numbered as Pillow does. Decodes a page that has alpha or a transparent
        colour.

        Returns None for files other than TIFF, if Pillow cannot read the page, and for a page with alpha over the limit
        of pixels."""
        try:
            with without_warnings(Warning):
                image = self._seek_frame(page)
                if has_alpha(image):
                    check_size(*image.size, MAX_PIXELS)
                    image.load()
                return getattr(image, "tag_v2", None)
        except MemoryError:
            raise
        except Exception:  # as in describe
            self._image = None
            return None

    def _seek_frame(self, frame: int) -> Image.Image:
        """Opens the file if needed and moves to a frame. Raises :class:`DecodeError` if the frame does not exist, and
        the plugin's errors."""
        image = self._image = self._image or _open_image(self._data)
        if frame:
            count = getattr(image, "n_frames", 1)
            if frame >= count:
                raise DecodeError(f"the image has {count} frames, but no frame {frame} (from 0)")
        if frame != image.tell():
            image.seek(frame)
        return image


def read_orientation(data: memoryview) -> int:
    """Reads the EXIF orientation with Pillow, 1 … 8.

    Returns 1 if it is missing or unreadable, and for too many pixels. Returns 1 also for TIFF, whose orientation Pillow
    applies itself."""
    if bytes(data[:4]) in TIFF:
        return 1
    try:
        with without_warnings(UserWarning), _open_image(strip_metadata(data, texts=True)) as image:
            check_size(*image.size, MAX_PIXELS)  # of a PNG, this decodes everything
            value = image.getexif().get(ORIENTATION, 1)
    except MemoryError:
        raise
    except Exception:  # as in decode; viewers ignore unreadable EXIF, too
        return 1
    return as_orientation(value)


def check_size(width: int, height: int, max_pixels: int) -> None:
    """Raises :class:`DecodeError` for more than ``max_pixels`` pixels."""
    reason = excess_pixels_message(width, height, max_pixels)
    if reason is not None:
        raise DecodeError(reason)


def check_cost(data: memoryview, width: int, height: int, max_pixels: int) -> None:
    """Raises :class:`DecodeError` for more than ``max_pixels`` pixels. Raises it for a JPEG, too, with more scans than
    can be decoded in seconds."""
    check_size(width, height, max_pixels)
    reason = excess_scans_message(data, width * height)
    if reason is not None:
        raise DecodeError(reason)


def _open_image(data: memoryview) -> Image.Image:
    """Opens an image file with the plugin of Pillow that its first bytes call for.

    Raises :class:`DecodeError` for an unknown kind or a missing plugin, and the plugin's errors."""
    head = bytes(data[:16])
    if is_heif(head):
        return _open_heif(data)
    for module, name, prefixes in _PLUGINS:
        if head.startswith(prefixes) and (head[:4] != b"RIFF" or head[8:12] == b"WEBP"):
            plugin = importlib.import_module(f"PIL.{module}")
            image: Image.Image = getattr(plugin, name)(io.BytesIO(data))
            return image
    raise DecodeError(
        "not an image of a kind that packstore reads (JPEG, PNG, GIF, WebP, TIFF, PNM, BMP, AVIF, HEIF, "
        "JPEG 2000, JPEG XL, OpenEXR, Radiance HDR, .npy): "
        f"{len(data)} bytes that begin with {repr(head[:8])[1:]}"
    )


def _open_heif(data: memoryview) -> Image.Image:
    """Opens an AVIF or HEIF file. Raises :class:`DecodeError` if its plugin is missing, :class:`HeaderError` for a
    damaged header."""
    image: Image.Image = load_heif_plugin(parse_heif_header(bytes(data)).kind)(io.BytesIO(data))
    return image


def load_heif_plugin(kind: str) -> Any:
    """Returns Pillow's plugin for ``heif`` or ``avif``. If it is missing, raises :class:`DecodeError`, which says what
    to install."""
    avif = kind == "avif"
    module, name = _AVIF if avif else _HEIF
    try:
        plugin = getattr(importlib.import_module(module), name)
        if avif and not importlib.import_module("PIL.features").check("avif"):
            raise ImportError("this Pillow was built without AVIF")
    except (ImportError, AttributeError) as error:
        need = "Pillow 11.3 or newer, from a wheel" if avif else "pip install pillow-heif"
        raise DecodeError(f"{'an AVIF' if avif else 'a HEIF'} image, which takes {need} ({error})") from None
    return plugin


def _ignore_size_warnings(pixels: int) -> AbstractContextManager[None]:
    """Returns a context in which Pillow does not warn of a large image.

    Callers check a limit of their own. For an image that Pillow would not warn of, the context does nothing."""
    pil = importlib.import_module("PIL.Image")
    if pil.MAX_IMAGE_PIXELS is None or pixels <= pil.MAX_IMAGE_PIXELS:
        return nullcontext()
    return without_warnings(pil.DecompressionBombWarning)


def _format_error(error: Exception) -> str:
    """Returns the text of an error in one line of at most 200 characters. Removes Python's ``b`` before quoted
    bytes."""
    text = str(error) or type(error).__name__
    # Pillow quotes bytes as Python spells them: "broken PNG file (chunk b'IDAT')".
    text = _BYTES_PREFIX.sub("", text)
    return " ".join(text.split())[:200]


_BYTES_PREFIX = re.compile(r"\bb(?=['\"])")
