"""Opens image files: description, frames, and pixels without loss: all channels, bits and alpha, any frame.

Also finds what a file would lose if it is read in a store's mode: bits, frames, channels, alpha. The header decides for
nearly all files in a microsecond. For the others, Pillow or another library opens the file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError, UsageError, printable
from packstore.core.modes import MAX_CHANNELS, RGB, Mode, mode_of
from packstore.images.header import MAX_PIXELS, check_size
from packstore.images.kinds.base import Frames, ImageDescription, ImageFile
from packstore.images.pillow import ORIENTATION, OpenImage, as_orientation, has_alpha, ignoring_damage
from packstore.images.reading import Reading
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


_ANSWERS = {
    "depth": "--depth keep (values as they are, if all images have this type), scale, clip or window:LO,HI (from LO to "
    "HI)",
    "frames": "--frames first, the number of a frame from 0, all (each is a record), or clips (each file is a record, "
    "with an array of its frames)",
    "channels": "--mode keep (all channels, if all images have them){fewer}",
    "alpha": "--alpha {keep}drop or over:COLOUR",
}
"""Command-line options that answer the question about each loss."""


UNIFIED = {
    "gray_to_colour": ("gray image", "gray images", "all channels are equal"),
    "cmyk_to_rgb": ("CMYK image", "CMYK images", "the colours are converted"),
    "lab_to_rgb": ("Lab image", "Lab images", "the colours are converted"),
    "ycbcr_to_rgb": ("YCbCr image", "YCbCr images", "the colours are converted"),
    "hsv_to_rgb": ("HSV image", "HSV images", "the colours are converted"),
    "current_frame": ("image of several frames", "images of several frames", "the current frame is packed"),
    "further_pictures": (
        "JPEG file with further pictures (previews, gain maps)",
        "JPEG files with further pictures (previews, gain maps)",
        "the first is read",
    ),
    "premultiplied": ("image of premultiplied colours", "images of premultiplied colours", "the values are as stored"),
    "white_is_zero": ("image in which 0 is white", "images in which 0 is white", "the values are as stored"),
    "opaque_alpha_dropped": ("image with opaque alpha", "images with opaque alpha", "the alpha is left out"),
    "depth_by_pillow": (
        "image of more than 8 bits",
        "images of more than 8 bits",
        "read as 8 bits, as Pillow converts them",
    ),
    "frames_by_pillow": ("file of several frames", "files of several frames", "the first is read, as Pillow does"),
    "channels_by_pillow": (
        "image of other channels",
        "images of other channels",
        "read as RGB, as Pillow converts them",
    ),
    "alpha_by_pillow": ("image with transparent pixels", "images with transparent pixels", "Pillow drops the alpha"),
}
"""Conversions by name: singular and plural of such an image, and what happens. Those by Pillow lose something, and the
user has asked for them; the others lose nothing."""


class LossReport(NamedTuple):
    """Losses of an image file when it is read in a mode.

    Attributes:
        losses: See :func:`find_losses`.
        unified: Conversions to the mode, names in :data:`UNIFIED`; empty if the file has the mode, or loses something
            that no option allows.
        is_certain: The mode can represent every value. If False, only decoding tells.
    """

    losses: dict[str, str]
    unified: tuple[str, ...] = ()
    is_certain: bool = True


def find_losses(data: bytes | bytearray | memoryview, info: ImageInfo, reading: Reading) -> dict[str, str]:
    """Finds what a file loses if it is read by ``reading``. A loss that an option allows does not count.

    Args:
        data: The file.
        info: Its header.
        reading: Mode and options with which it is read.

    Returns:
        By name (``depth``, ``frames``, ``channels``, ``alpha``) a text that follows "it has". These lose nothing: CMYK
            and Lab, whose colours are converted; alpha that is opaque everywhere; files that cannot be opened.

    Raises:
        HeaderError: As :func:`examine_losses`.
        DecodeError: A library that the file needs is missing.
    """
    return examine_losses(data, info, reading).losses


def examine_losses(data: bytes | bytearray | memoryview, info: ImageInfo, reading: Reading) -> LossReport:
    """Finds losses as :func:`find_losses`, and the lossless conversion of a file of another mode.

    Finds no losses in a file that cannot be opened. For a TIFF and for a further frame, that is not certain.

    Raises:
        HeaderError: The frame to read does not exist; or it is a further frame of a PNG of 16 bits in colour.
        DecodeError: A library that the file needs is missing.
    """
    kind = get_kind(info.kind)
    if reading.mode == RGB.name and not reading.frame:
        conversions = kind.find_conversion_to_rgb(data, info)
        if conversions is not None:
            return LossReport({}, conversions)
    file = kind(memoryview(data), info)
    description = file.describe()
    if description is None:
        return LossReport({}, is_certain=kind.plugin_reads_all)
    if reading.frame >= description.frames:
        several = "1 frame" if description.frames == 1 else f"{description.frames:,} frames"
        raise HeaderError(f"has {several}, but no frame {reading.frame} (from 0)")
    if reading.frame:  # frames of a file may differ in depth, channels and alpha
        if (reason := file.refuse_further_frames()) is not None:
            raise HeaderError(f"is {reason}")
        description = file.describe(reading.frame)
        if description is None:
            return LossReport({}, is_certain=False)
    mode, wanted, losses = description.mode, reading.pixels, {}
    if mode.dtype != wanted.dtype and (wanted.dtype != "uint8" or reading.depth is None):
        losses["depth"] = f"values of {mode.dtype} (mode {mode.name}), and {wanted.dtype} is read"
    if description.frames > 1 and reading.frames is None:
        losses["frames"] = f"{description.frames:,} frames or pages, and the first is read"
    if lost := _describe_lost_channels(mode, wanted, reading.chosen):
        losses["channels"] = lost
    elif not reading.chosen and _has_other_colours(description, wanted):
        losses["channels"] = f"channels of {description.colours or mode.name}, and {wanted.name} is read"
    if description.transparent and not wanted.has_alpha and reading.alpha is None:
        losses["alpha"] = "transparent pixels, and no alpha is read"
    if reading.by_pillow and losses:
        return LossReport({}, tuple(f"{name}_by_pillow" for name in losses))
    return LossReport(losses, () if losses else _find_conversion(description, wanted), description.is_certain)


def _find_conversion(found: ImageDescription, wanted: Mode) -> tuple[str, ...]:
    """Returns the name in :data:`UNIFIED` of the conversion to ``wanted``, empty if there is none to report."""
    mode = found.mode
    if found.converted is not None:
        return (found.converted,)
    if wanted.has_colour and mode.channels - mode.has_alpha == 1:
        return ("gray_to_colour",)
    return ("opaque_alpha_dropped",) if mode.has_alpha and not wanted.has_alpha and not found.transparent else ()


class PixelLossError(UsageError):
    """Error for an image: reading it would lose something, and no option allows that.

    Attributes:
        key: The sample's key.
        losses: The losses in words, by name.
    """

    def __init__(self, message: str, key: str = "", losses: Mapping[str, str] | None = None) -> None:
        super().__init__(message)  # the attributes are pickled beside the arguments
        self.key = key
        self.losses = dict(losses or {})


def losses_error(key: str, losses: Mapping[str, str], reading: Reading) -> PixelLossError:
    """Returns the error about losses of a file. The text names the losses, and the options that allow them."""
    has = f"{printable(key)}: it has {'; and '.join(losses.values())}. The images are read as {reading.pixels}. "
    if "depth" in losses and reading.pixels.dtype != "uint8":
        return PixelLossError(
            f"{has}Values of different types do not compare: leave such files out with --ignore, or pack all images as "
            "8 bits with --mode RGB or L and --depth scale, clip or window:LO,HI",
            key,
            losses,
        )
    with_alpha = mode_of(min(reading.pixels.channels + 1, MAX_CHANNELS), reading.pixels.dtype)
    keep = (
        f"keep (if the first image has alpha; else --mode {quote(with_alpha.name)}), " if with_alpha.has_alpha else ""
    )
    colour = quote((reading.pixels if reading.pixels.has_colour else RGB).name)
    fewer = "" if reading.chosen else f", --mode {colour} or --mode L"
    answers = "; ".join(_ANSWERS[name].format(keep=keep, fewer=fewer) for name in losses)
    pillow = "; or --pixels pillow (what Pillow makes of them, counted)" if reading.mode == RGB.name else ""
    return PixelLossError(
        f"{has}To pack this file and those like it: {answers}{pillow} (the run resumes, unless its records change); or "
        "leave them out with --ignore or --on-error skip",
        key,
        losses,
    )


def _describe_lost_channels(found: Mode, wanted: Mode, may_lose: bool) -> str | None:
    """Describes why the colour channels of ``found`` do not fit ``wanted``; None if they fit."""
    colours, room = (mode.channels - mode.has_alpha for mode in (found, wanted))
    if colours > room:
        if may_lose:
            return None
        return f"{colours} channels, and {room} {'is' if room == 1 else 'are'} read"
    if colours < room and not (colours == 1 and wanted.has_colour):  # gray may become colour
        return f"{colours} channels, and {room} are expected"
    return None


def _has_other_colours(found: ImageDescription, wanted: Mode) -> bool:
    """Tells if three channels would change their meaning: only one of the modes is RGB."""
    if found.mode.dtype != wanted.dtype:  # 16 bits of Lab become no RGB of 8 bits; floating point RGB has no name
        return found.colours is not None  # such as Lab
    three = all(mode.channels - mode.has_alpha == RGB.channels for mode in (found.mode, wanted))
    return three and found.mode.has_colour != wanted.has_colour


def exceeds_rgb(data: bytes, info: ImageInfo) -> bool:
    """Tells by the header if a file may have more than 8-bit RGB: more bits, alpha or frames.

    ``data`` is the file, or its beginning. True for kinds whose header does not tell."""
    return get_kind(info.kind).find_conversion_to_rgb(data, info) is None
