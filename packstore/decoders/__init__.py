"""Image bytes to pixels: TurboJPEG, simplejpeg, jpeg4py and OpenCV for ordinary JPEG files, Pillow for everything.

All decoders accept and reject the same files, because Pillow has the last word: it gets whatever is not an 8-bit JPEG
with 1 or 3 components (CMYK, 12-bit, arithmetic coding, lossless, PNG, WebP ...), and every JPEG at which the fast
library finds anything to complain about. Importing this module loads no image library.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from packstore.decoders import backends
from packstore.decoders import pillow as _pillow
from packstore.decoders.jpeg import is_whole
from packstore.errors import UsageError
from packstore.sniff import HeaderError, ImageInfo, sniff

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["DECODERS", "MAX_PIXELS", "TOLERANCE", "Buffer", "Decoder", "available_decoders", "get_decoder"]

Buffer = bytes | bytearray | memoryview
"""Bytes of an image file."""

DECODERS = ("turbojpeg", "simplejpeg", "jpeg4py", "opencv", "pillow")
"""Names of the decoders, in order of preference."""

TOLERANCE = 0
"""Largest difference of a pixel value (of 255) between any decoder and Pillow.

All are libjpeg-turbo (2.1 of the system, 3.1 in simplejpeg's and OpenCV's wheels, 3.2 in Pillow's) with the accurate
DCT and fancy upsampling. Measured 0 for each of them on 600 ImageNet files and on generated 4:4:4, 4:2:2, 4:2:0, 4:4:0,
4:1:1, grayscale, progressive and odd-sized ones."""

MAX_PIXELS = 178_956_970
"""Pixels from which on an image is refused as a decompression bomb: where Pillow, too, refuses by default."""

UNAVAILABLE = "not available: "
"""How :func:`available_decoders` begins the reason why a decoder cannot be used."""

_HUFFMAN = frozenset((0xC0, 0xC1, 0xC2))  # frames: baseline, extended sequential, progressive
_HEADER_BYTES = 16384

_lock = threading.Lock()
_loaded: dict[str, tuple[backends.Decode | None, str]] = {}
_reasons: dict[str, str] = {}


class Decoder:
    """Turns image bytes into pixels. Safe to use from many threads at once; pickles as its name and options.

    Attributes:
        name: One of :data:`DECODERS`.
        max_pixels: Images of more pixels are refused.
        version: Name and version of the library behind it.
    """

    def __init__(self, name: str, max_pixels: int = MAX_PIXELS) -> None:
        """Use :func:`get_decoder`. Raises :class:`UsageError` when the library is not available here."""
        self.name = name
        self.max_pixels = max_pixels
        self._fast, self.version = _load(name)

    def decode(self, data: Buffer, *, exif_transpose: bool = False, info: ImageInfo | None = None) -> NDArray[np.uint8]:
        """The image in ``data`` as Pillow's ``convert("RGB")`` sees it, within :data:`TOLERANCE`.

        An animation gives its first frame.

        Args:
            data: The bytes of one image file.
            exif_transpose: Turn the image as its EXIF orientation says; otherwise that is left alone. (Pillow turns
                TIFF files in any case.)
            info: What :func:`packstore.sniff.sniff` says of ``data``, where the caller knows it already.

        Returns:
            uint8, shape ``(H, W, 3)``, RGB, C-contiguous, writable, owned by the caller.

        Raises:
            DecodeError: Not an image, of an unknown kind, damaged, truncated, or of more than ``max_pixels`` pixels.
        """
        view = memoryview(data).cast("B")
        image = self._decode(view, info)
        return _pillow.upright(image, _pillow.orientation(view)) if exif_transpose else image

    def _decode(self, data: memoryview, info: ImageInfo | None) -> NDArray[np.uint8]:
        header = _fast_header(data, info) if self._fast is not None else None
        if self._fast is None or header is None:
            return _pillow.decode(data, self.max_pixels)
        _pillow.check_size(header.width, header.height, self.max_pixels)
        try:
            image = self._fast(data)
        except MemoryError:
            raise
        except Exception:  # whatever the library dislikes (each has its own exceptions), Pillow decides
            return _pillow.decode(data, self.max_pixels)
        if image.shape != (header.height, header.width, 3):
            return _pillow.decode(data, self.max_pixels)
        return image

    def __reduce__(self) -> tuple[type[Decoder], tuple[str, int]]:
        return Decoder, (self.name, self.max_pixels)

    def __repr__(self) -> str:
        return f"<Decoder {self.name!r}: {self.version}>"


def get_decoder(name: str = "auto", *, max_pixels: int = MAX_PIXELS) -> Decoder:
    """The decoder called ``name``, or for ``"auto"`` the first of :data:`DECODERS` that is available.

    Raises:
        UsageError: An unknown name, or a decoder that is not available here (with the reason).
    """
    if max_pixels < 1:
        raise UsageError(f"max_pixels should be at least 1, got {max_pixels}")
    if name != "auto":
        return Decoder(name, max_pixels)
    for candidate in DECODERS:
        try:
            return Decoder(candidate, max_pixels)
        except UsageError:
            continue
    attempts = "; ".join(f"{candidate}: {reason}" for candidate, reason in available_decoders().items())
    raise UsageError(f"no decoder is available: {attempts}")


def available_decoders() -> dict[str, str]:
    """Every decoder in order of preference, with its version, or ``"not available: "`` and the reason. Loads all."""
    found = {}
    for name in DECODERS:
        try:
            found[name] = _load(name)[1]
        except UsageError:
            found[name] = UNAVAILABLE + _reasons[name]
    return found


def _fast_header(data: memoryview, info: ImageInfo | None) -> ImageInfo | None:
    """The header when ``data`` is a JPEG that all libraries decode alike: 8 bits, Huffman coding, 1 or 3 components."""
    header = info
    if header is None:
        if bytes(data[:2]) != b"\xff\xd8":
            return None
        try:
            # sniff copies what is not bytes already, and the frame header is nearly always among the first of them.
            header = sniff(data[:_HEADER_BYTES])
        except HeaderError:
            try:
                header = sniff(data)
            except HeaderError:
                return None  # Pillow will say what is wrong, or know better
    if header.sof not in _HUFFMAN or header.precision != 8 or header.components not in (1, 3):
        return None
    if header.progressive and not is_whole(data):
        return None  # libjpeg smooths what is missing, from version to version otherwise, and does not call it damage
    return header


def _load(name: str) -> tuple[backends.Decode | None, str]:
    if name not in DECODERS:
        raise UsageError(f"unknown decoder {name!r}; decoders: auto, {', '.join(DECODERS)}")
    with _lock:
        if name not in _loaded and name not in _reasons:
            try:
                _loaded[name] = (None, _pillow.version()) if name == "pillow" else backends.load(name)
            except (backends.UnavailableError, ImportError) as error:
                _reasons[name] = str(error)
        if name in _loaded:
            return _loaded[name]
    raise UsageError(f"the decoder {name!r} is not available: {_reasons[name]}; use --decoder auto, or install it")
