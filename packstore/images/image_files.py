"""Opens image files: description, frames, and pixels without loss: all channels, bits and alpha, any frame."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError
from packstore.core.modes import Mode
from packstore.images.header import MAX_PIXELS, check_size
from packstore.images.kinds.base import Frames, ImageDescription, ImageFile
from packstore.images.pillow import (
    ORIENTATION,
    OpenImage,
    as_orientation,
    has_alpha,
    ignoring_damage,
)
from packstore.images.sniff import HeaderError, ImageInfo, find_kind, get_kind, sniff

if TYPE_CHECKING:
    from PIL import Image


def open_file(data: memoryview, max_pixels: int) -> ImageFile:
    """Parses the header of a file, and returns an object that reads its frames.

    Raises :class:`DecodeError` for a damaged header and a file of too many pixels."""
    try:
        info = sniff(data)
    except HeaderError as error:
        raise DecodeError(error.reason) from None
    file = get_kind(info.kind)(data, info, max_pixels)
    file.check_limits()
    return file


def decode(data: memoryview, max_pixels: int, frame: int = 0, *, gray: bool = False) -> tuple[NDArray[Any], Mode]:
    """Decodes a frame of a file of at most ``max_pixels`` pixels, see :meth:`ImageFile.read_frame`. Returns its pixels
    and mode.

    Raises :class:`DecodeError` as :func:`open_file` and that method."""
    return open_file(data, max_pixels).read_frame(frame, gray=gray)


def describe_image(data: memoryview, info: ImageInfo, frame: int = 0) -> ImageDescription | None:
    """Describes a frame of a file with the header ``info``, see :meth:`ImageFile.describe`."""
    return get_kind(info.kind)(data, info).describe(frame)


def count_frames(data: bytes, info: ImageInfo) -> Frames:
    """Counts the frames of a GIF, PNG, WebP or TIFF, and the views of a JPEG. Returns one frame for any other kind,
    also AVIF and HEIF.

    The numbers agree with Pillow's, except that smaller versions of pages of a TIFF are not counted. Raises
    :class:`HeaderError` for damaged headers.
    """
    try:
        return get_kind(info.kind)(memoryview(data), info).count_frames()
    except (struct.error, IndexError):
        raise HeaderError("is truncated: its frames cannot be counted") from None


def decode_rgb(data: memoryview, max_pixels: int, side: int | None = None) -> NDArray[np.uint8]:
    """Decodes an image to the pixels of ``Image.open(...).convert("RGB")``: uint8 ``(H, W, 3)``, a new array.

    With ``side``, a JPEG is scaled by 1/2, 1/4 or 1/8 while it is decoded; both sides keep at least ``side`` pixels.

    Raises:
        DecodeError: An unknown kind, a damaged or truncated file, more than ``max_pixels`` pixels, or too many scans.
    """
    kind = find_kind(bytes(data[:16]))
    data = strip_metadata(data)
    if kind is not None and kind.decodes_at_opening:
        with suppress(HeaderError):
            header = sniff(data)
            check_size(header.width, header.height, max_pixels)

    def convert(image: Image.Image) -> NDArray[np.uint8]:
        """Converts an image to RGB."""
        # Irrelevant to RGB, but Pillow would convert it, with a warning.
        image.info.pop("transparency", None)
        return np.array(image if image.mode == "RGB" else image.convert("RGB"))

    draft = None if side is None else (None, (side, side))
    return OpenImage(data, open_image).load_frame(0, max_pixels, convert, draft)


def any_frame_has_alpha(data: memoryview) -> bool:
    """Tells if any frame of a file has alpha in Pillow. Decodes frames until one has.

    Returns False for a damaged file: reading its frames reports the damage."""
    with ignoring_damage(Warning), open_image(strip_metadata(data)) as image:
        check_size(*image.size, MAX_PIXELS)
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            image.load()
            if has_alpha(image):
                return True
    return False


def read_pillow_orientation(data: memoryview) -> int:
    """Reads the EXIF orientation with Pillow, 1 … 8.

    Returns 1 if it is missing or unreadable, and for too many pixels."""
    # Viewers ignore unreadable EXIF, too.
    with ignoring_damage(UserWarning), open_image(strip_metadata(data, texts=True)) as image:
        check_size(*image.size, MAX_PIXELS)
        return as_orientation(image.getexif().get(ORIENTATION, 1))  # of a PNG, this decodes everything
    return 1


def strip_metadata(data: memoryview, *, texts: bool = False) -> memoryview:
    """Does :meth:`ImageFile.strip_metadata` for a file of any kind."""
    kind = find_kind(bytes(data[:16]))
    return data if kind is None else kind.strip_metadata(data, texts=texts)


def open_image(data: memoryview) -> Image.Image:
    """Opens an image file with the plugin of Pillow that its first bytes call for.

    Raises :class:`DecodeError` for an unknown kind or a missing plugin, and the plugin's errors."""
    # Only these plugins ever see a stranger's bytes (not EPS, which would start ghostscript). Image.open would import
    # all plugins, and check the image against a limit of the whole process, with a warning.
    head = bytes(data[:16])
    kind = find_kind(head)
    if kind is not None and kind.plugin[0] and (head[:4] != b"RIFF" or head[8:12] == b"WEBP"):
        return kind.open_plugin(data)
    raise DecodeError(
        "not an image of a kind that packstore reads (JPEG, PNG, GIF, WebP, TIFF, PNM, BMP, AVIF, HEIF, "
        "JPEG 2000, JPEG XL, OpenEXR, Radiance HDR, .npy): "
        f"{len(data)} bytes that begin with {repr(head[:8])[1:]}"
    )
