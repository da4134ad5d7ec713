"""What packstore does with an image file. A kind of file subclasses :class:`ImageFile` and overrides what differs."""

from __future__ import annotations

import importlib
import io
import struct
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError
from packstore.core.modes import Mode, mode_of
from packstore.images.header import MAX_PIXELS, Data, HeaderError, ImageInfo, check_size, no_such_frame, too_many_values

if TYPE_CHECKING:
    from PIL import Image

    from packstore.images.pillow import OpenImage

GRAY_TO_COLOUR = ("gray_to_colour",)
"""Conversions, names in :data:`packstore.images.image_files.UNIFIED`, of a gray file that is read as RGB."""


class Frames(NamedTuple):
    """Number and layouts of a file's frames.

    Attributes:
        total: Number of frames, at least 1.
        layouts: The first frame of each layout (bits, channels) in the file, by its number.
        transparent: Later frames may have transparent pixels, even if the first has none.
    """

    total: int = 1
    layouts: tuple[int, ...] = (0,)
    transparent: bool = False


class ImageDescription(NamedTuple):
    """Mode, frames and transparency of an image file.

    Attributes:
        mode: Mode that can represent the whole image.
        frames: Number of frames; for a TIFF, of its pages without smaller versions of other pages.
        transparent: Some pixel of the described frame is not opaque.
        is_certain: The mode can represent every value. If False, the caller must compare the values after decoding.
        converted: Name in :data:`packstore.images.image_files.UNIFIED` of what a report mentions; None for nothing. It
            is a conversion to RGB of colours that no mode has, inverted gray, colours multiplied by alpha, or further
            pictures that are not read.
        colours: Name of colours that are not RGB and are not converted, such as ``Lab``; None for RGB and gray.
    """

    mode: Mode
    frames: int = 1
    transparent: bool = False
    is_certain: bool = True
    converted: str | None = None
    colours: str | None = None


class UnusualError(Exception):
    """Error for metadata that ordinary writers of files do not produce; Pillow parses the file instead."""


class ImageFile(ABC):
    """An image file, decoded without loss: all channels, bits and alpha, any frame. Not thread-safe.

    This class reads a file by Pillow. Static methods need no whole file, and know nothing of others.

    Attributes:
        plugin: Module and class of Pillow's plugin; empty for a kind that Pillow does not read.
        plugin_reads_all: False: if Pillow refuses a file, the kind's own reader may decode it.
        hides_depth: Pillow's mode may hide more than 8 bits; the header tells bits and channels.
        decodes_at_opening: The plugin takes the memory of two images when it opens a file.
        readable_bits: Bits per sample that packstore reads; None for all.
        data: The file.
        info: Its header.
        max_pixels: Limit of an image's pixels.
    """

    plugin: ClassVar[tuple[str, str]] = ("", "")
    plugin_reads_all: ClassVar[bool] = True
    hides_depth: ClassVar[bool] = False
    decodes_at_opening: ClassVar[bool] = False
    readable_bits: ClassVar[Container[int] | None] = None

    def __init__(self, data: memoryview, info: ImageInfo, max_pixels: int = MAX_PIXELS) -> None:
        self.data, self.info, self.max_pixels = data, info, max_pixels

    @staticmethod
    @abstractmethod
    def read_header(data: bytes, whole: bool) -> ImageInfo:
        """Parses the header of a whole file. With ``whole`` it also checks that the file is not truncated, as far as
        that needs no decoding. Raises :class:`HeaderError`, :class:`struct.error` and :class:`IndexError`."""

    @staticmethod
    def find_conversion_to_rgb(data: Data, info: ImageInfo) -> tuple[str, ...] | None:
        """Returns the conversions of a file that is read as RGB: names in
        :data:`packstore.images.image_files.UNIFIED`.

        Returns None if the file may have more bits, alpha or frames, and if the header does not tell. ``data`` is the
        file, or its beginning."""
        return None

    @staticmethod
    def find_exif(data: Data, info: ImageInfo | None) -> tuple[bytes, bytes]:
        """Returns EXIF and XMP of a file, empty if missing. Raises :class:`UnusualError`, :class:`struct.error` or
        :class:`IndexError` if Pillow has to read its orientation."""
        return b"", b""

    @staticmethod
    def strip(data: memoryview) -> bytes | bytearray | memoryview:
        """Returns a file without data on which no pixel depends, or ``data`` itself. Raises :class:`HeaderError`,
        :class:`struct.error` or :class:`IndexError` for a damaged structure."""
        return data

    @staticmethod
    def strip_to_texts(data: memoryview) -> bytes | bytearray | memoryview:
        """Does :meth:`strip`, and keeps what may hold an orientation."""
        return data

    @classmethod
    def strip_metadata(cls, data: memoryview, *, texts: bool = False) -> memoryview:
        """Returns a file without profiles, texts, EXIF, comments and other data on which no pixel depends: decoders
        then neither fail at damaged metadata, nor spend memory on it.

        Returns ``data`` itself if it has none of these, and if its structure is damaged: a decoder reports that.

        ``texts``: keep the texts and EXIF of a PNG, which may hold an orientation, and the metadata of all other kinds.
        """
        try:
            stripped = cls.strip_to_texts(data) if texts else cls.strip(data)
        except (struct.error, IndexError, HeaderError):
            return data
        return data if stripped is data else memoryview(stripped)

    @classmethod
    def import_library(cls) -> Any:
        """Imports the library that decodes, if Pillow does not. If it is missing, raises :class:`DecodeError`, which
        says what to install."""
        return None

    @classmethod
    def open_plugin(cls, data: memoryview) -> Image.Image:
        """Opens a file by its plugin of Pillow. Raises the plugin's errors."""
        module, name = cls.plugin
        image: Image.Image = getattr(importlib.import_module(f"PIL.{module}"), name)(io.BytesIO(data))
        return image

    @cached_property
    def pillow(self) -> OpenImage:
        """The file in Pillow, opened at the first use. Raises :class:`DecodeError`."""
        from packstore.images.pillow import OpenImage

        return OpenImage(self.strip_metadata(self.data), self.open_plugin)

    def refuse_further_frames(self) -> str | None:
        """Returns what a file is, if frames after the first cannot be read; else None."""
        return None

    def check_limits(self) -> None:
        """Raises :class:`DecodeError` if decoding would take too much memory or time."""
        info = self.info
        check_size(info.width, info.height, self.max_pixels)
        shown = f"an image of {info.width} x {info.height} pixels with {info.components} channels"
        reason = too_many_values(shown, info.width * info.height * info.components, self.max_pixels)
        if reason is not None:
            raise DecodeError(reason)

    def count_frames(self) -> Frames:
        """Returns the frames by the file's structure; one if only a library can count them.

        Raises :class:`HeaderError`, :class:`struct.error` or :class:`IndexError` for a damaged file."""
        return Frames()

    def describe(self, frame: int = 0) -> ImageDescription | None:
        """Reads mode and frames from the header of a file. Decodes its alpha if it has one.

        ``frame``: number of the frame or page that is described.

        Returns None for a file that Pillow cannot open, perhaps because a plugin is missing, and for a TIFF that no
        mode fits. Raises :class:`DecodeError` if another library for the file is missing.
        """
        found = self.pillow.describe(frame)
        if found is None:
            return None
        mode = self.find_pillow_mode(found.mode, found.has_alpha)
        return ImageDescription(mode, found.frames, found.transparent)

    def read_frame(self, frame: int = 0, *, gray: bool = False) -> tuple[NDArray[Any], Mode]:
        """Decodes a frame in the mode that represents it exactly. Returns new pixels ``(H, W, C)``, and the mode.

        Values stay as coded, with two exceptions. Fewer than 8 bits are scaled to 8. With alpha, 9 to 15 bits are
        scaled to 16, because 65,535 is opaque. Reading frames in order is fastest: a frame of a GIF, PNG or WebP is
        drawn over the frames before it.

        ``gray``: return only the luma of a colour JPEG, as libjpeg does. Raises :class:`DecodeError` for a damaged
        image, a frame that does not exist, and a missing library.
        """
        return self.read_pillow_frame(frame, gray)

    def read_pillow_frame(self, frame: int, gray: bool = False) -> tuple[NDArray[Any], Mode]:
        """Decodes a frame, numbered as Pillow does, by Pillow."""
        from packstore.images import pillow

        def convert(image: Image.Image) -> tuple[NDArray[Any], Mode]:
            """Converts Pillow's frame to pixels, and returns them with their mode."""
            mode = self.find_pillow_mode(image.mode, pillow.has_alpha(image))
            return pillow.to_array(image, mode), mode

        return self.pillow.load_frame(frame, self.max_pixels, convert, ("L", None) if gray else None)

    def find_pillow_mode(self, name: str, has_alpha: bool) -> Mode:
        """Returns the mode for a frame of Pillow's mode ``name``: RGB for modes without an equivalent."""
        from packstore.images.pillow import find_equivalent_mode

        mode = find_equivalent_mode(name, has_alpha)
        return mode_of(self.info.components, "uint16") if self.hides_depth and self.info.precision > 8 else mode

    def has_transparent_pixels(self, mode: Mode, frame: int = 0) -> bool:
        """Decodes a frame whose mode has alpha, and tells if a pixel is not opaque. False for a damaged file, and over
        the limit of pixels: decoding reports both."""
        if not mode.has_alpha:
            return False
        file = type(self)(self.data, self.info)
        try:
            file.check_limits()
            pixels, pixel_mode = file.read_frame(frame)
        except DecodeError:
            return False
        return pixel_mode.has_alpha and bool((pixels[..., -1] < pixel_mode.white).any())

    def scale(self, pixels: NDArray[Any], mode: Mode) -> tuple[NDArray[Any], Mode]:
        """Scales integers that use only some bits of their dtype to its whole range.

        Returns 9 to 15 bits without alpha unchanged."""
        bits = self.info.precision
        unused = 0 if mode.dtype not in ("uint8", "uint16") else 8 * pixels.itemsize - bits
        if unused <= 0 or (mode.dtype == "uint16" and not mode.has_alpha):
            return pixels, mode
        most, white = (1 << bits) - 1, int(mode.white)
        return ((pixels.astype(np.uint32) * white + most // 2) // most).astype(mode.dtype), mode


class OwnFile(ImageFile):
    """An image file of a kind that Pillow does not read."""

    has_frames: ClassVar[bool] = False

    @cached_property
    def content(self) -> bytes:
        """The file's bytes."""
        return bytes(self.data)

    @abstractmethod
    def find_mode(self) -> Mode:
        """Returns the mode that can represent all values, by the header."""

    @abstractmethod
    def decode(self, frame: int) -> NDArray[Any]:
        """Returns the pixels ``(H, W, C)`` of a frame, in the mode's dtype. Raises :class:`DecodeError`. For damaged
        files, raises :class:`HeaderError` or the errors of its library."""

    def count(self) -> int:
        """Counts the frames, if need be by decoding them. Raises :class:`DecodeError` for a damaged file or if a
        library is missing."""
        return 1

    def describe(self, frame: int = 0) -> ImageDescription:
        mode, frames = self.find_mode(), self.count()
        if not mode.has_alpha:
            return ImageDescription(mode, frames)
        pixels, _ = self.read_frame(frame)
        return ImageDescription(mode, frames, bool((pixels[..., -1] < mode.white).any()))

    def read_frame(self, frame: int = 0, *, gray: bool = False) -> tuple[NDArray[Any], Mode]:
        self.import_library()
        with damaged_image():
            mode = self.find_mode()
            if frame and not self.has_frames:
                raise no_such_frame(1, frame)
            pixels = self.decode(frame)
        if pixels.dtype != mode.dtype:
            raise DecodeError(f"damaged image: {pixels.dtype} values, and its header says {mode.dtype}")
        return self.scale(pixels, mode)


@contextmanager
def damaged_image() -> Iterator[None]:
    """Raises the errors of libraries as :class:`DecodeError`, for a damaged image."""
    try:
        yield
    except (DecodeError, MemoryError):
        raise
    except HeaderError as error:
        raise DecodeError(error.reason) from None
    except Exception as error:  # libraries raise almost anything on damaged files
        raise DecodeError(f"damaged image: {' '.join(str(error).split())[:200] or type(error).__name__}") from error


def import_extra(library: str, extra: str, what: str) -> Any:
    """Imports a library of an extra of packstore. If it is missing, raises :class:`DecodeError`, which says what to
    install.

    ``what``: begins the error text, with the image that needs it."""
    try:
        return importlib.import_module(library)
    except ImportError:
        raise DecodeError(f"{what}, which takes {library}: pip install 'packstore[{extra}]'") from None


EXACT = {"uint8": "uint8", "bool": "uint8", "int8": "int16", "uint16": "uint16", "int16": "int16", "int32": "int32",
         "float16": "float32", "float32": "float32"}  # fmt: skip
"""Dtype of a mode that can represent every value of a dtype."""
_IF_SMALL = {"uint32": "int32", "int64": "int32", "uint64": "int32", "float64": "float32"}
"""Dtype of a mode that can represent small values of a dtype; each value is compared after the conversion."""


def find_mode_dtype(dtype: np.dtype[Any]) -> str | None:
    """Returns the dtype of a mode that can represent values of ``dtype``. Returns None if no mode has one.

    For integers of 32 bits without sign or of 64 bits, and for float64, it represents small values only."""
    name = dtype.newbyteorder("=").name
    return EXACT.get(name) or _IF_SMALL.get(name)


def to_mode_dtype(array: NDArray[Any], what: str) -> NDArray[Any]:
    """Converts an array to the dtype of a mode; True becomes 255.

    Raises :class:`DecodeError` if a value would change, or no mode fits. ``what``: subject of the error text."""
    name, target = array.dtype.newbyteorder("=").name, find_mode_dtype(array.dtype)
    if target is None:
        raise DecodeError(f"{what} of {name} values, which packstore does not read")
    values = array.astype(target)
    if name not in EXACT and not np.array_equal(values, array, equal_nan=target == "float32"):
        raise DecodeError(f"{what} of {name} values that {target} does not hold; write it as {target} first")
    return values * 255 if name == "bool" else values
