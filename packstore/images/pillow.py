"""Reads image files with Pillow, the reference for the fast decoders. Imports it on first use."""

from __future__ import annotations

import importlib
import io
import logging
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError
from packstore.core.modes import Mode, parse_mode
from packstore.images.header import MAX_PIXELS, check_cost, check_size, no_such_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from PIL import Image

_T = TypeVar("_T")
Draft = tuple[str | None, tuple[int, int] | None]
_PILLOW = {
    "1": "L", "L": "L", "LA": "LA", "La": "LA", "P": "RGB", "PA": "RGBA", "RGB": "RGB", "RGBX": "RGB", "RGBA": "RGBA",
    "RGBa": "RGBA", "CMYK": "RGB", "YCbCr": "RGB", "LAB": "RGB", "HSV": "RGB", "I;16": "I;16", "I;16L": "I;16",
    "I;16B": "I;16", "I;16N": "I;16", "I": "I", "F": "F",
}  # fmt: skip
"""The mode as which an image of Pillow's mode is read."""
CONVERTED = {"CMYK": "cmyk_to_rgb", "LAB": "lab_to_rgb", "YCbCr": "ycbcr_to_rgb", "HSV": "hsv_to_rgb"}
"""Name in :data:`packstore.images.image_files.UNIFIED` of the conversion of an image of Pillow's mode to RGB."""
_WITH_ALPHA = {"L": "LA", "RGB": "RGBA"}
ORIENTATION = 274
_warnings_lock = threading.Lock()

logging.getLogger("PIL").addHandler(logging.NullHandler())  # else Pillow prints what it cannot open; tifffile may


def find_version() -> str:
    """Returns the versions of Pillow and its JPEG library. Raises :class:`ImportError` without Pillow."""
    features = importlib.import_module("PIL.features")
    pillow = importlib.import_module("PIL").__version__
    return f"Pillow {pillow}, libjpeg-turbo {features.version('libjpeg_turbo') or 'absent'}"


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


def has_alpha(image: Image.Image) -> bool:
    """Tells if a Pillow image has an alpha channel or a transparent colour. The band A of Lab is a colour."""
    return image.getbands()[-1] == "A" or "transparency" in image.info


class OpenImage:
    """Image file that Pillow opens once, at the first use, and reads frame by frame.

    Reading frames in their order is fastest."""

    def __init__(self, data: memoryview, open_plugin: Callable[[memoryview], Image.Image]) -> None:
        self._data, self._open = data, open_plugin
        self._image: Image.Image | None = None

    def describe(self, page: int = 0) -> PillowDescription | None:
        """Opens the file again and describes it; decodes it if it has alpha.

        ``page``: number of a frame; for a TIFF, of a page as Pillow counts: with smaller versions of pages.

        Returns None if Pillow cannot open or decode the file, or lacks its plugin, and for too many pixels.
        """
        with ignoring_damage(Warning), self._open(self._data) as image:
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
        return None

    def load_frame(
        self, frame: int, max_pixels: int, convert: Callable[[Image.Image], _T], draft: Draft | None = None
    ) -> _T:
        """Loads a frame and returns ``convert(frame)``. ``draft``: mode or size in which a JPEG may be decoded faster.

        Raises :class:`DecodeError` as :func:`decode`, and for a frame that does not exist.
        """
        try:
            image = self._seek_frame(frame)
            check_cost(self._data, *image.size, max_pixels)
            if draft is not None:
                image.draft(*draft)
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
        with ignoring_damage(Warning):
            image = self._seek_frame(page)
            if has_alpha(image):
                check_size(*image.size, MAX_PIXELS)
                image.load()
            return getattr(image, "tag_v2", None)
        self._image = None  # in an unknown state
        return None

    def _seek_frame(self, frame: int) -> Image.Image:
        """Opens the file if needed and moves to a frame."""
        image = self._image = self._image or self._open(self._data)
        if frame:
            count = getattr(image, "n_frames", 1)
            if frame >= count:
                raise no_such_frame(count, frame)
        if frame != image.tell():
            image.seek(frame)
        return image


def read_tiff_orientation(data: memoryview, at: int) -> int:
    """Reads the orientation, 1 … 8, that Pillow applies to the TIFF page whose directory begins at byte ``at``.

    Returns 1 if it is missing or unreadable."""
    from PIL.Image import Image
    from PIL.TiffImagePlugin import XMP, ImageFileDirectory_v2

    with ignoring_damage(UserWarning):
        tags = ImageFileDirectory_v2(bytes(data[: 16 if 43 in data[2:4] else 8]))  # of a BigTIFF, or not
        file = io.BytesIO(data)
        file.seek(at)
        tags.load(file)
        if ORIENTATION in tags:
            return as_orientation(tags[ORIENTATION])
        image, xmp = Image(), tags.get(XMP)
        image.info["xmp"] = xmp[0] if isinstance(xmp, tuple) else xmp
        return as_orientation(image.getexif().get(ORIENTATION, 1))  # versions before 11 ignore XMP, as in a TIFF
    return 1


def parse_exif_orientation(exif: bytes) -> int | None:
    """Reads the orientation from EXIF data as Pillow does, 1 … 8. Returns None if it is missing.

    Returns 1 for an invalid value or damaged data."""
    from PIL.Image import Exif

    with ignoring_damage(UserWarning):
        tags = Exif()
        tags.load(exif)
        return as_orientation(tags[ORIENTATION]) if ORIENTATION in tags else None
    return 1


def as_orientation(value: Any) -> int:
    """Returns a tag's value if it is an orientation, 1 … 8, else 1."""
    return int(value) if value in range(1, 9) else 1


@contextmanager
def ignoring_damage(category: type[Warning]) -> Iterator[None]:
    """Ignores all errors but :class:`MemoryError`, and warnings as :func:`without_warnings`."""
    with without_warnings(category):
        try:
            yield
        except MemoryError:
            raise
        except Exception:  # Pillow raises almost any class for a damaged file; decoding reports the fault
            return


@contextmanager
def without_warnings(category: type[Warning]) -> Iterator[None]:
    """Ignores warnings of ``category`` in the whole process. Only one thread at a time can be in this context."""
    # catch_warnings changes the process's filters: one thread at a time, and never around ordinary decoding.
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", category)
        yield


def pixels_of_pillow(image: Any) -> NDArray[Any]:
    """Converts a Pillow image to pixels, ``(H, W, C)``, in the mode that represents it completely.

    CMYK, and other colours for which there is no mode, become RGB."""
    return to_array(image, find_equivalent_mode(image.mode, has_alpha(image)))


def to_array(image: Image.Image, mode: Mode) -> NDArray[Any]:
    """Converts a Pillow image to pixels ``(H, W, C)`` of a mode. Keeps 16 bits, which Pillow would reduce."""
    is_same = image.mode == mode.name or mode.dtype == "uint16"
    array = np.array(image if is_same else image.convert(mode.name), mode.dtype)
    return array.reshape(*array.shape[:2], mode.channels)


def find_equivalent_mode(name: str, has_alpha: bool) -> Mode:
    """Returns the mode for an image of Pillow's mode ``name``: RGB for modes without an equivalent."""
    equivalent = _PILLOW.get(name, "RGB")
    return parse_mode(_WITH_ALPHA.get(equivalent, equivalent) if has_alpha else equivalent)


def pillow_conversions(image: Any) -> tuple[str, ...]:
    """Names what :func:`pixels_of_pillow` does to a Pillow image: converted colours, and further frames left out.

    The names are those of :data:`packstore.images.image_files.UNIFIED`. Empty for most images."""
    conversions = [CONVERTED[image.mode]] if image.mode in CONVERTED else []
    with suppress(Exception):  # of a damaged file: it has no further frames to read
        if getattr(image, "n_frames", 1) > 1:
            conversions.append("current_frame")
    return tuple(conversions)


def _ignore_size_warnings(pixels: int) -> AbstractContextManager[None]:
    """Returns a context in which Pillow does not warn of a large image."""
    pil = importlib.import_module("PIL.Image")
    if pil.MAX_IMAGE_PIXELS is None or pixels <= pil.MAX_IMAGE_PIXELS:
        return nullcontext()  # Pillow would not warn
    # Callers check a limit of their own.
    return without_warnings(pil.DecompressionBombWarning)


def _format_error(error: Exception) -> str:
    """Returns the text of an error in one line of at most 200 characters."""
    text = str(error) or type(error).__name__
    # Pillow quotes bytes as Python spells them: "broken PNG file (chunk b'IDAT')".
    text = _BYTES_PREFIX.sub("", text)
    return " ".join(text.split())[:200]


_BYTES_PREFIX = re.compile(r"\bb(?=['\"])")
