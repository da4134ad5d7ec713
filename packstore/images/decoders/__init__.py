"""Decodes image files: ordinary JPEG files with our engine, TurboJPEG, simplejpeg, jpeg4py or OpenCV, all others with
Pillow.

All decoders accept and reject the same files, because Pillow decides. It decodes:

- whatever is not an 8-bit JPEG with 1 or 3 components: CMYK, 12-bit, arithmetic coding, lossless, PNG, WebP …
- every JPEG in which the fast library finds a flaw

Importing this module loads no image library.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import repeat
from typing import TYPE_CHECKING, Any

from packstore.core.errors import DecodeError, UsageError, printable
from packstore.images.decoders import backends
from packstore.images.engine import get_engine
from packstore.images.header import check_cost
from packstore.images.kinds.jpeg import is_complete_jpeg
from packstore.images.orientation import read_orientation, upright
from packstore.images.reading import DECODERS as DECODERS
from packstore.images.reading import PLAIN, Reading, convert_pixels
from packstore.images.sniff import MAX_PIXELS, HeaderError, ImageInfo, find_kind, sniff

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Buffer = bytes | bytearray | memoryview
"""Bytes of an image file."""

Box = tuple[int, int, int, int]
"""Top, left, height and width of a part of an image, in pixels."""

TOLERANCE = 0
"""Largest difference of a pixel value (of 255) between any decoder and Pillow.

All are libjpeg-turbo (2.1 of the system, 3.1 in simplejpeg's and OpenCV's wheels, 3.2 in Pillow's) with the accurate
DCT and fancy upsampling. Measured 0 for each of them on 600 ImageNet files and on generated 4:4:4, 4:2:2, 4:2:0, 4:4:0,
4:1:1, grayscale, progressive and odd-sized ones."""

UNAVAILABLE = "not available: "
"""Prefix of the reason why a decoder cannot be used, in :func:`available_decoders`."""

_WORTH = 0.95
"""Largest fraction of an image's rows, or columns, for which decoding a region is faster than decoding the image."""
_HUFFMAN = frozenset((0xC0, 0xC1, 0xC2))  # frames: baseline, extended sequential, progressive
_HEADER_BYTES = 16384
_END = b"\xff\xd9"
_WITH_TURBOJPEG = ("engine", "turbojpeg", "simplejpeg")
"""Decoders that use TurboJPEG's library for crops, if it supports them; users choose the others by name."""

_lock = threading.Lock()
_loaded: dict[str, backends.DecoderLibrary | backends.UnavailableError] = {}


class Decoder:
    """Decodes image files to pixels. Thread-safe; pickles as its name and options.

    Attributes:
        name: One of :data:`DECODERS`.
        max_pixels: Limit of an image's pixels.
        reading: Mode of the pixels; what becomes of more than 8 bits, of alpha and of further frames.
        mode: The same mode, parsed.
        version: Name and version of its library.
        has_engine: True if our engine decodes first: for 8-bit RGB, and for the mode ``L``. A library decodes the files
            that the engine refuses.
    """

    def __init__(self, name: str, max_pixels: int = MAX_PIXELS, reading: Reading = PLAIN) -> None:
        """Loads the decoder's library. Raises :class:`UsageError` for ``auto`` and any other unknown name, and for a
        library that is not available.

        Call :func:`get_decoder` instead, which also knows ``auto`` and checks ``max_pixels``."""
        self.name = name
        self.max_pixels = max_pixels
        self.reading = reading
        self.mode = mode = reading.pixels
        self._fast, self.version = _load_library(name)
        self._region = backends.load_region() if name in _WITH_TURBOJPEG else None
        gray = mode.channels == 1 and mode.dtype == "uint8" and not reading.frame
        self._channels = 1 if gray else 3
        self.has_engine = name == "engine" and (reading.is_plain or gray)

    def decode(self, data: Buffer, *, exif_transpose: bool = False, info: ImageInfo | None = None) -> NDArray[Any]:
        """Decodes an image to pixels of the mode that :attr:`reading` states.

        RGB pixels are within :data:`TOLERANCE` of Pillow's ``convert("RGB")``. An animation gives the frame that
        :attr:`reading` states, or else its first frame.

        Args:
            data: The bytes of one image file.
            exif_transpose: Apply the EXIF orientation. TIFF files come upright in any case.
            info: Header of ``data`` by :func:`packstore.images.sniff.sniff`; None parses it.

        Returns:
            Shape ``(H, W, C)`` with the channels and dtype of the mode (RGB: uint8, three), C-contiguous, writable,
                owned by the caller.

        Raises:
            DecodeError: Not an image, of an unknown kind, damaged, truncated, or of more than ``max_pixels`` pixels.
        """
        view = memoryview(data).cast("B")
        image = self._decode_whole(view, info)
        return upright(image, read_orientation(view, info)) if exif_transpose else image

    def decode_each(
        self, files: Sequence[Buffer], *, exif_transpose: bool = False
    ) -> Iterator[NDArray[Any] | DecodeError]:
        """Decodes several files. Yields the pixels of each, as :meth:`decode` returns them.

        If a file cannot be decoded, yields the :class:`DecodeError` in place of its pixels. The engine decodes files
        faster together."""
        views = [memoryview(data).cast("B") for data in files]
        known = get_engine().decode_each(views, self.max_pixels, self._channels) if self.has_engine else repeat(None)
        for view, pixels in zip(views, known, strict=False):
            try:
                image = self._decode_without_engine(view, None) if pixels is None else pixels
                yield upright(image, read_orientation(view, None)) if exif_transpose else image
            except DecodeError as error:
                yield error

    def decode_small(self, data: Buffer, side: int, *, exif_transpose: bool = False) -> NDArray[Any]:
        """Decodes a small version of an image, for display.

        A JPEG is scaled by 1/2, 1/4 or 1/8 while it is decoded; both sides keep at least ``side`` pixels. Other files,
        and all files for a reading other than 8-bit RGB, are decoded in full size.

        Returns and raises as :meth:`decode`."""
        view = memoryview(data).cast("B")
        header = _parse_ordinary_jpeg(view, None) if self.reading.is_plain else None
        if header is None or min(header.height, header.width) < 2 * side:
            return self.decode(view, exif_transpose=exif_transpose)
        image = _decode_by_pillow(view, self.max_pixels, side)
        return upright(image, read_orientation(view)) if exif_transpose else image

    def describe_flaw(self, data: Buffer) -> str | None:
        """Describes a flaw in a JPEG that :meth:`decode` accepts. Its missing or damaged data decode to grey or wrong
        pixels.

        Returns None for a JPEG without a flaw, for other kinds of files, and if only Pillow decodes. A broken header
        gives None, too.

        Raises :class:`DecodeError` for too many pixels or scans."""
        view = memoryview(data).cast("B")
        if self._fast is None or (self.has_engine and get_engine().decode(view, self.max_pixels) is not None):
            return None
        header = _parse_ordinary_jpeg(view, None)
        if header is None:
            with suppress(HeaderError):
                if sniff(view).progressive and not is_complete_jpeg(view):
                    return "a progressive JPEG without all of its scans"
            return None
        try:
            check_cost(view, header.width, header.height, self.max_pixels)
            self._fast(view)
        except MemoryError:
            raise
        except Exception as error:  # each library has its own
            return printable(str(error))[:200]
        return None

    def decode_crop(
        self,
        data: Buffer,
        box: Box,
        *,
        info: ImageInfo | None = None,
    ) -> NDArray[Any]:
        """Decodes the pixels of a box, bit-exact with :meth:`decode`. Ignores EXIF orientation: the box is one of the
        stored image.

        Decodes as little as possible, so damage elsewhere goes unnoticed:

        - JPEG files that our engine accepts: only the box;
        - other JPEG files, by TurboJPEG's library of version 3: the box. The library reads the compressed data of
          everything above and beside the box, or all data of a progressive file;
        - other files: everything.

        Args:
            data: The bytes of one image file.
            box: Box within the image.
            info: The header of ``data`` by :func:`packstore.images.sniff.sniff`, if the caller has it.

        Returns:
            As :meth:`decode` does, shape ``(h, w, C)``; may be a view of a larger array.

        Raises:
            DecodeError: As :meth:`decode`; or the box exceeds the image.
        """
        view = memoryview(data).cast("B")
        pixels = get_engine().decode(view, self.max_pixels, box, self._channels) if self.has_engine else None
        if pixels is not None:
            return pixels
        top, left, height, width = box
        image = self._decode_region(view, box, info)
        if image is not None:
            return image
        image = self._decode_without_engine(view, info)
        if not _is_within(box, *image.shape[:2]):
            raise DecodeError(f"the image has {image.shape[0]} x {image.shape[1]} pixels, the box wanted is {box}")
        return image[top : top + height, left : left + width]

    @property
    def has_regions(self) -> bool:
        """True if libjpeg-turbo 3 is there to decode a box of a JPEG without the rest.

        False for jpeg4py, OpenCV and Pillow: users choose these by name."""
        return self._region is not None

    def decodes_parts(self, info: ImageInfo) -> bool:
        """Tells if libjpeg-turbo 3 may decode just a box of a file with this header. Does not count our engine."""
        return self.has_regions and info.sof > 0

    def _decode_region(self, data: memoryview, box: Box, info: ImageInfo | None) -> NDArray[np.uint8] | None:
        """Decodes ``box`` of an ordinary JPEG to RGB; None if the caller must decode everything."""
        # Check the end marker: a truncated file may have all rows of the box.
        known = self._region is not None and self.reading.is_plain and data[-2:] == _END
        header = _parse_ordinary_jpeg(data, info) if known else None
        if header is None or not _is_within(box, header.height, header.width):
            return None
        # Decoding everything is faster than decoding nearly everything.
        if box[2] > _WORTH * header.height and box[3] > _WORTH * header.width:
            return None
        check_cost(data, header.width, header.height, self.max_pixels)
        # Decoding everything reports the damage.
        return _attempt(self._region, (*box[2:], 3), data, header.height, header.width, box)

    def _decode_whole(self, data: memoryview, info: ImageInfo | None) -> NDArray[Any]:
        """Decodes a whole file, by the engine unless it refuses the file, ignoring EXIF orientation."""
        pixels = get_engine().decode(data, self.max_pixels, None, self._channels) if self.has_engine else None
        return self._decode_without_engine(data, info) if pixels is None else pixels

    def _decode_without_engine(self, data: memoryview, info: ImageInfo | None) -> NDArray[Any]:
        """Decodes a whole file to the reading's mode without the engine, ignoring EXIF orientation."""
        if not self.reading.is_plain:
            wanted = self.mode
            gray = wanted.channels == 1 and wanted.dtype == "uint8"
            # simplejpeg decodes the luma of a JPEG in mode L; Pillow and tifffile decode everything else.
            luma = self._decode_ordinary(backends.decode_luma, 1, data, info) if self._channels == 1 else None
            if luma is not None:
                return luma
            from packstore.images.image_files import decode

            pixels, mode = decode(data, self.max_pixels, self.reading.frame, gray=gray)
            has_bits = self.reading.depth == "scale" and not mode.has_alpha
            return convert_pixels(pixels, mode, self.reading, sniff(data).precision if has_bits else None)
        # The fast library decodes ordinary JPEG files; _decode_other decodes the rest, and those where it fails.
        image = None if self._fast is None else self._decode_ordinary(self._fast, 3, data, info)
        return self._decode_other(data) if image is None else image

    def _decode_other(self, data: memoryview) -> NDArray[Any]:
        """Decodes a file to 8-bit RGB by Pillow, or by a library for its kind."""
        kind = find_kind(bytes(data[:16]))
        # Pillow does not read kinds without a plugin.
        if kind is None or kind.plugin[0]:
            try:
                return _decode_by_pillow(data, self.max_pixels)
            except DecodeError:
                # Another library may read a TIFF that Pillow refuses, such as one with WebP compression.
                if kind is None or kind.plugin_reads_all:
                    raise
        from packstore.images.image_files import decode

        return convert_pixels(*decode(data, self.max_pixels), self.reading)

    def _decode_ordinary(
        self, decode: backends.Decode, channels: int, data: memoryview, info: ImageInfo | None
    ) -> NDArray[np.uint8] | None:
        """Decodes an ordinary JPEG by a library's function to ``(H, W, channels)``; None if this fails."""
        header = _parse_ordinary_jpeg(data, info)
        if header is None:
            return None
        check_cost(data, header.width, header.height, self.max_pixels)
        # None for a damaged file, and without the library.
        return _attempt(decode, (header.height, header.width, channels), data)

    def __reduce__(self) -> tuple[type[Decoder], tuple[str, int, Reading]]:
        return Decoder, (self.name, self.max_pixels, self.reading)

    def __repr__(self) -> str:
        return f"<Decoder {self.name!r}: {self.version}>"


def get_decoder(name: str = "auto", *, max_pixels: int = MAX_PIXELS, reading: Reading = PLAIN) -> Decoder:
    """Returns the decoder called ``name``, or for ``"auto"`` the first of :data:`DECODERS` that is available.

    For a ``reading`` other than 8-bit RGB, Pillow and tifffile decode, whatever the name. JPEG files in mode ``L`` are
    different: the decoder ``engine`` decodes them itself, other decoders use simplejpeg if it is installed.

    Raises:
        UsageError: An unknown name; ``max_pixels`` below 1; a decoder, or for ``"auto"`` any decoder, that is not
            available here (with the reason). An environment variable ``PACKSTORE_TURBOJPEG`` that does not name
            TurboJPEG's library.
    """
    if max_pixels < 1:
        raise UsageError(f"max_pixels should be at least 1, got {max_pixels}")
    if name != "auto":
        return Decoder(name, max_pixels, reading)
    for candidate in DECODERS:
        try:
            _load_library(candidate)
        except UsageError:
            continue
        return Decoder(candidate, max_pixels, reading)
    attempts = "; ".join(f"{candidate}: {reason}" for candidate, reason in available_decoders().items())
    raise UsageError(f"no decoder is available: {attempts}")


def available_decoders() -> dict[str, str]:
    """Returns the version of every decoder, in order of preference. Loads all libraries.

    A decoder that cannot be used has ``"not available: "`` and the reason instead."""
    versions = {}
    for name in DECODERS:
        try:
            versions[name] = _load_library(name).version
        except UsageError:
            versions[name] = f"{UNAVAILABLE}{_loaded[name]}"
    return versions


def _parse_ordinary_jpeg(data: memoryview, info: ImageInfo | None) -> ImageInfo | None:
    """Returns the header if ``data`` is a JPEG that all libraries decode alike, else None."""
    header = info
    if header is None:
        if bytes(data[:2]) != b"\xff\xd8":
            return None
        try:
            # sniff copies a memoryview to bytes, and the first 16 KiB nearly always hold the frame header.
            header = sniff(data[:_HEADER_BYTES])
        except HeaderError:
            try:
                header = sniff(data)
            except HeaderError:
                return None  # Pillow reports the flaw, or accepts the file
    if header.sof not in _HUFFMAN or header.precision != 8 or header.components not in (1, 3):
        return None
    if header.progressive and not is_complete_jpeg(data):
        return None  # libjpeg fills in missing scans silently, and each version differently
    return header


def _attempt(decode: Any, shape: tuple[int, ...], *arguments: Any) -> NDArray[np.uint8] | None:
    """Returns ``decode(*arguments)`` if it has the shape, or None if the library fails."""
    try:
        image: NDArray[np.uint8] = decode(*arguments)
    except MemoryError:
        raise
    except Exception:  # each library has its own
        return None
    return image if image.shape == shape else None


def _decode_by_pillow(data: memoryview, max_pixels: int, side: int | None = None) -> NDArray[np.uint8]:
    """Decodes an image to RGB, see :func:`packstore.images.image_files.decode_rgb`."""
    from packstore.images import image_files

    return image_files.decode_rgb(data, max_pixels, side)


def _is_within(box: Box, height: int, width: int) -> bool:
    """Tells if a box has pixels and lies within an image of ``height`` x ``width``."""
    top, left, rows, columns = box
    return min(top, left) >= 0 and min(rows, columns) > 0 and top + rows <= height and left + columns <= width


def _load_library(name: str) -> backends.DecoderLibrary:
    """Loads a decoder's library once, and remembers it or the reason for its absence."""
    if name not in DECODERS:
        raise UsageError(f"unknown decoder {name!r}; decoders: auto, {', '.join(DECODERS)}")
    with _lock:
        if name not in _loaded:
            try:
                _loaded[name] = backends.load_decoder_library(name)
            except backends.UnavailableError as error:
                _loaded[name] = error  # available_decoders shows this reason
        found = _loaded[name]
    if isinstance(found, backends.DecoderLibrary):
        return found
    raise UsageError(f"the decoder {name!r} is not available: {found}; use --decoder auto, or install it")
