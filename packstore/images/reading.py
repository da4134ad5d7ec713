"""Converts pixels of image files to one mode, or to 8-bit RGB for display.

Options choose the conversion of more bits, alpha and further frames. A store has one mode per column. :class:`Reading`
holds the mode and the options; :func:`convert_pixels` converts the pixels of a file or an array. :func:`to_display`
shows any mode as 8-bit RGB: deep values through a window, alpha over white. :func:`parse_normalization` parses a name,
text or numbers to a normalisation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError, ManifestError, UsageError
from packstore.core.manifest import NORMALIZATIONS, Column, Normalization
from packstore.core.modes import RGB, Mode, mode_of, parse_mode
from packstore.core.options import check_numbers

DECODERS = ("engine", "turbojpeg", "simplejpeg", "jpeg4py", "opencv", "pillow")
"""Names of the decoders, in order of preference."""

_NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_DEPTH = re.compile(rf"scale|clip|window:({_NUMBER}),({_NUMBER})")
_OVER = re.compile(r"over:(black|white|#[0-9a-fA-F]{6})")
_FRAMES = re.compile(r"first|0|[1-9][0-9]{0,5}")
_COLOURS = {"black": "#000000", "white": "#ffffff"}
_LUMA = np.array([19595, 38470, 7471], np.int64)
"""Pillow's weights of RGB for gray (ITU-R 601-2), in units of 2**-16."""
_NAMED_DTYPES = ("uint8", "uint16")
"""Dtypes of which modes tell RGB from other three channels. Of others, three channels become gray as RGB does."""
ALL_FRAMES = "all"
"""The value of ``frames`` for which each frame is a record: then no file has several."""
CLIPS = "clips"
"""The value of ``frames`` for which each file of frames, or each folder of numbered frames, is a record."""
FILE_CLIPS = "clips:files"
"""The value of ``frames`` for which each file is a record with its frames, even if all files have one."""
PILLOW = "pillow"
"""The only value of the option ``pixels``, see :attr:`Reading.by_pillow`."""
OF_SOURCES = (ALL_FRAMES, CLIPS, FILE_CLIPS)
"""Values of ``frames`` that say what a source's samples are, and not how a file is read."""
EXPECTED = {
    "depth": "scale, clip or window:LO,HI",
    "alpha": "drop or over:COLOUR with black, white or #rrggbb",
    "frames": "first, the number of a frame from 0, all or clips",
}
"""Allowed answers, for messages."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Mode in which images are read, and how other images are converted to it. Raises :class:`UsageError` for an
    unknown value.

    Attributes:
        mode: Name of the mode of all images.
        depth: Conversion of values of more bits to 8 bits; None if the user gave none. ``scale``: from the range of the
            file's bits, or of their dtype; floating point from 0 … 1. ``clip``: values above 255 become 255.
            ``window:LO,HI``: from LO … HI.
        alpha: For a mode without alpha: ``drop`` or ``over:COLOUR``. None: the user gave none, and alpha is dropped.
        frames: ``first``, or the number of a frame from 0. None: the user gave none, and the first is read.
        chosen: The user named the mode. If False, it is that of the first image, and other images may not lose
            channels.
        by_pillow: The user accepts what Pillow's ``convert("RGB")`` gives for every file. Only for 8-bit RGB without
            other options.
    """

    mode: str = RGB.name
    depth: str | None = None
    alpha: str | None = None
    frames: str | None = None
    chosen: bool = False
    by_pillow: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.mode, str):
            raise UsageError(f"mode should be the name of a mode, such as 'L' or 'I;16', got {self.mode!r:.80}")
        try:
            parse_mode(self.mode)
        except ManifestError as error:
            raise UsageError(str(error)) from None
        if self.by_pillow and (self.mode, self.depth, self.alpha, self.frames) != (RGB.name, None, None, None):
            raise UsageError("pixels=pillow makes 8-bit RGB of every image: leave mode, depth, alpha and frames out")
        for name, pattern in (("depth", _DEPTH), ("alpha", re.compile(rf"drop|{_OVER.pattern}")), ("frames", _FRAMES)):
            value = getattr(self, name)
            if name == "frames" and value in OF_SOURCES:
                raise UsageError(
                    f"frames={value} says what becomes a record, when images are packed; here, frames should be first, "
                    "or the number of a frame from 0"
                )
            if value is not None and (not isinstance(value, str) or pattern.fullmatch(value) is None):
                raise UsageError(f"{name} should be {EXPECTED[name]}, got {value!r}")
        if self.depth is not None and self.window is not None:
            check_numbers("depth", self.window)
            if not self.window[0] < self.window[1]:
                raise UsageError(f"depth should be a window from a lower to a higher value, got {self.depth!r}")

    @property
    def pixels(self) -> Mode:
        """:attr:`mode`, parsed."""
        return parse_mode(self.mode)

    @property
    def window(self) -> tuple[float, float] | None:
        """The two values of a ``window`` in :attr:`depth`, which become 0 and 255. None for any other depth."""
        match = None if self.depth is None else _DEPTH.fullmatch(self.depth)
        return None if match is None or match[1] is None else (float(match[1]), float(match[2]))

    @property
    def frame(self) -> int:
        """Number of the frame to read, from 0."""
        return int(self.frames) if self.frames is not None and self.frames.isdigit() else 0

    @property
    def is_plain(self) -> bool:
        """True if images are read as 8-bit RGB, without further conversions."""
        return self.mode == RGB.name and self.depth is None and self.alpha in (None, "drop") and not self.frame

    def answers(self) -> dict[str, str]:
        """Returns the options that are set (depth, alpha, frames, pixels) by name, as a manifest stores them."""
        given = {name: getattr(self, name) for name in EXPECTED} | {"pixels": PILLOW if self.by_pillow else None}
        return {name: value for name, value in given.items() if value is not None}

    @classmethod
    def restore(cls, mode: str | None, options: Mapping[str, Any]) -> Reading:
        """Restores the reading of a store from its column's mode (None for RGB) and its manifest's options.

        If ``frames`` says what a record is, such as ``all``, the reading's ``frames`` is None. Raises as the class."""
        texts = {name: value for name in EXPECTED if isinstance(value := options.get(name), str)}
        given = {name: value for name, value in texts.items() if name != "frames" or value not in OF_SOURCES}
        if options.get("pixels") == PILLOW and mode in (None, RGB.name) and not given:
            return cls(by_pillow=True)
        return cls(mode or RGB.name, given.get("depth"), given.get("alpha"), given.get("frames"))

    @classmethod
    def of_column(cls, column: Column, options: Mapping[str, Any]) -> Reading:
        """Restores the reading of any column of image files: by its own options, else by those of all columns.

        The frame's number in the options of all columns counts for the main image alone."""
        reading = cls.restore(column.mode, options)
        if column.name != "image":
            own = {name: options.get(f"{column.name}.{name}") for name in EXPECTED}
            depth, alpha, frames = (value if isinstance(value, str) else None for value in own.values())
            shared = None if reading.frame else reading.frames
            reading = replace(
                reading, depth=depth or reading.depth, alpha=alpha or reading.alpha, frames=frames or shared
            )
        return reading


PLAIN = Reading()
"""Reading as 8-bit RGB, without further conversions."""


def convert_pixels(pixels: NDArray[Any], found: Mode, reading: Reading, bits: int | None = None) -> NDArray[Any]:
    """Converts pixels to the mode of a reading. Returns ``pixels`` itself if they have that mode.

    Alpha that the mode lacks is dropped, or blended with the reading's colour. Of surplus channels the first ones are
    kept. Colours become gray by Pillow's weights.

    Args:
        pixels: ``(H, W, C)`` of the mode ``found``.
        found: Their mode.
        reading: Wanted mode and conversions.
        bits: Number of the dtype's bits that the file uses; None for all.

    Raises:
        DecodeError: The dtype must change, and the reading has no depth or its mode is not of uint8. Or there are too
            few channels.
    """
    wanted = reading.pixels
    if found == wanted:
        return pixels
    if found.has_alpha and not wanted.has_alpha:
        pixels = _drop_alpha(pixels, found, reading)
        found = mode_of(found.channels - 1, found.dtype)
    if found.dtype != wanted.dtype:
        pixels = _convert_dtype(pixels, found, wanted, reading, bits)
    return np.ascontiguousarray(_convert_channels(pixels, found, wanted))


def _drop_alpha(pixels: NDArray[Any], found: Mode, reading: Reading) -> NDArray[Any]:
    """Returns the colours without alpha; blends them over the reading's colour if it names one."""
    colours, match = pixels[..., :-1], _OVER.fullmatch(reading.alpha or "")
    if match is None:
        return colours
    text = _COLOURS.get(match[1], match[1])
    below = np.array([int(text[at : at + 2], 16) for at in (1, 3, 5)], np.float64) * (found.white / 255)
    if colours.shape[-1] == 1:
        below = below @ _LUMA / (1 << 16) * np.ones(1)
    share = pixels[..., -1:].astype(np.float64) / found.white
    blended: NDArray[Any] = np.rint(colours * share + below * (1 - share)).astype(pixels.dtype)
    return blended


def _convert_dtype(pixels: NDArray[Any], found: Mode, wanted: Mode, reading: Reading, bits: int | None) -> NDArray[Any]:
    """Converts values to uint8 as the reading's depth says."""
    if wanted.dtype != "uint8" or reading.depth is None:
        raise DecodeError(
            f"an image of mode {found}, and {wanted} is read; depth says how values become 8 bits: {EXPECTED['depth']}"
        )
    low, high = reading.window or (0.0, 255.0)
    if reading.depth == "scale":
        limits = np.iinfo(found.dtype) if found.dtype != "float32" else None
        unused = 0 if limits is None or bits is None else max(0, limits.bits - bits)
        low, high = (0.0, 1.0) if limits is None else (float(limits.min >> unused), float(limits.max >> unused))
    scaled = (pixels.astype(np.float64) - low) * (255 / (high - low))
    # Values that are not numbers become 0.
    whole: NDArray[np.uint8] = np.rint(np.clip(np.nan_to_num(scaled), 0, 255)).astype(np.uint8)
    return whole


def _convert_channels(pixels: NDArray[Any], found: Mode, wanted: Mode) -> NDArray[Any]:
    """Repeats a single channel, drops or mixes colours, and adds opaque alpha, as the wanted mode needs."""
    colours, alpha = wanted.channels - wanted.has_alpha, pixels[..., found.channels - 1 :] if found.has_alpha else None
    given = pixels[..., : found.channels - found.has_alpha]
    if given.shape[-1] < colours and given.shape[-1] != 1:
        raise DecodeError(f"an image of mode {found}, from which {wanted} cannot be made")
    if given.shape[-1] == 1 and colours > 1:
        if not wanted.has_colour:  # a single channel is repeated only to become colours
            raise DecodeError(f"an image of mode {found}, from which {wanted} cannot be made")
        given = np.repeat(given, colours, axis=-1)
    elif colours == 1 and (found.has_colour or (found.channels == 3 and found.dtype not in _NAMED_DTYPES)):
        given = _mix_luma(given)[..., None]
    given = given[..., :colours]
    if not wanted.has_alpha:
        return given
    if alpha is None:
        alpha = np.full((*given.shape[:-1], 1), wanted.white, given.dtype)
    return np.concatenate([given, alpha], axis=-1)


def _mix_luma(colours: NDArray[Any]) -> NDArray[Any]:
    """Returns the luma (ITU-R 601) of colours ``(H, W, 3)``, in their dtype: ``(H, W)``."""
    if colours.dtype.kind == "f":
        return (colours.astype(np.float64) @ (_LUMA / (1 << 16))).astype(colours.dtype)
    return ((colours @ _LUMA + (1 << 15)) >> 16).astype(colours.dtype)


Window = tuple[float, float]
"""Values that are shown as black and as white."""

PERCENTILES = (1.0, 99.0)
"""Percentiles of an image's values that become the window by default."""
_GRAY_OR_COLOUR = (1, 3)


def check_window(window: Window | None) -> None:
    """Raises :class:`UsageError` if the value shown as black is not below the value shown as white."""
    if window is not None and not window[0] < window[1]:
        raise UsageError(f"window should be a lower and a higher value, got {window[0]:g} and {window[1]:g}")


def find_window(pixels: NDArray[Any], mode: Mode) -> Window | None:
    """Computes the display window of an image: its 1st and 99th percentile. Ignores values that are not finite.

    Returns None for 8 bits, which need no window. If no value is finite, returns ``(0, 1)``. If both percentiles are
    equal, the upper bound is 1 more."""
    if mode.dtype == "uint8":
        return None
    values = pixels[np.isfinite(pixels)] if pixels.dtype.kind == "f" else pixels
    if not values.size:
        return (0.0, 1.0)
    low, high = (float(each) for each in np.percentile(values, PERCENTILES))
    return (low, high) if low < high else (low, low + 1.0)


def to_display(pixels: NDArray[Any], mode: Mode, window: Window | None = None) -> NDArray[np.uint8]:
    """Converts an image to uint8 ``(H, W, 3)``, RGB.

    Alpha of uint8 images is blended over white. Alpha of other dtypes is dropped.

    Args:
        pixels: ``(H, W, C)`` of the mode.
        mode: Mode of the pixels. ``multi`` shows its first three channels as red, green and blue. With fewer channels,
            it shows the first as gray.
        window: Window of values other than uint8; None for :func:`find_window`.
    """
    if mode.name.startswith("multi"):
        count = 3 if mode.channels >= _GRAY_OR_COLOUR[1] else 1
        pixels, mode = pixels[..., :count], mode_of(count, mode.dtype)
    if mode.dtype != "uint8":
        low, high = window or find_window(pixels, mode) or (0.0, 1.0)
        return convert_pixels(pixels, mode, Reading("RGB", f"window:{low!r},{high!r}", "drop"))
    shown: NDArray[np.uint8] = convert_pixels(pixels, mode, Reading("RGB", alpha="over:white"))
    return shown


def denormalize(array: NDArray[Any], column: Column, normalization: Normalization | None) -> NDArray[Any]:
    """Undoes the normalisation of a floating point image. Returns ``(H, W, C)`` in the dtype of its mode.

    Values of a mode of whole numbers are scaled to its range, rounded and clipped. Values that are not numbers become
    0.

    Args:
        array: ``(C, H, W)`` as stored; bfloat16 as uint16.
        column: Column of the image.
        normalization: Normalisation of the store; None for pixels that were only scaled.
    """
    if column.dtype == "bfloat16":  # the upper half of a float32
        array = (array.astype(np.uint32) << 16).view(np.float32)
    mode, pixels = column.pixels, array.astype(np.float32).transpose(1, 2, 0)
    if normalization is not None:
        pixels = pixels * np.array(normalization.std, np.float32) + np.array(normalization.mean, np.float32)
    if mode.dtype == "float32":
        return pixels
    limits = np.iinfo(mode.dtype)
    scaled = np.nan_to_num(pixels * np.float32(mode.white)).round()
    whole: NDArray[Any] = scaled.astype(np.float64).clip(limits.min, limits.max).astype(mode.dtype)
    return whole


MeanAndStd = tuple[Sequence[float], Sequence[float]]
"""Means and standard deviations of pixels scaled to 0 … 1, in the order R, G, B."""


def parse_normalization(value: object, mode: Mode = RGB) -> Normalization | None:
    """Converts a name, text or numbers to a normalisation. Returns None for ``"none"``: pixels are not normalised.

    Args:
        value: A name of :data:`NORMALIZATIONS`, or a mean and a standard deviation for each channel, of pixels scaled
            to 0 … 1. These are text, ``"M,M,M/S,S,S"``, or ``((m, m, m), (s, s, s))``, or a :class:`Normalization`.
        mode: Mode of the images. If its values have no upper bound, pixels are not scaled, and any means are accepted.

    Raises:
        UsageError: ``value`` is none of these, or of pixels of another scale, such as 0 … 255. The number of channels
            is not checked.
    """
    if isinstance(value, str):
        return _parse_text(value, mode)
    if isinstance(value, Normalization):
        return _check_scale(value, mode)
    try:
        pair: Any = value  # values that cannot be unpacked are refused below
        mean, std = pair
        normalization = _convert_numbers(mean, std)
    except (TypeError, ValueError, ManifestError):
        raise UsageError(
            f"{_NORMALIZATION_EXPECTED} (in Python also a Normalization, or ((M, M, M), (S, S, S))), got {value!r}"
        ) from None
    return _check_scale(normalization, mode)


def _parse_text(text: str, mode: Mode) -> Normalization | None:
    """Parses a name or ``"M,M,M/S,S,S"``; None for ``"none"``."""
    if text == "none":
        return None
    if text in NORMALIZATIONS:
        return NORMALIZATIONS[text]
    if text == "auto":  # only packing can compute it
        raise UsageError(
            "'auto' is computed while packing: packstore convert STORE normalised.pth --size 224 --normalize auto; "
            "then packstore info normalised.pth shows mean and std: give these numbers here, as (mean, std)"
        )
    mean, _, std = text.partition("/")
    try:
        normalization = _convert_numbers(mean.split(","), std.split(","))
    except (ValueError, ManifestError):
        raise UsageError(f"{_NORMALIZATION_EXPECTED}, got {text!r}") from None
    return _check_scale(normalization, mode)


_NORMALIZATION_EXPECTED = (
    f"a normalisation should be one of {', '.join(NORMALIZATIONS)}, auto, none, or M,M,M/S,S,S with a mean and a "
    "standard deviation above 0 for each channel, of pixels scaled to 0…1"
)


def _convert_numbers(mean: Iterable[Any], std: Iterable[Any]) -> Normalization:
    """Makes a normalisation from numbers or texts."""
    # ValueError or TypeError for what is no number, ManifestError for wrong numbers.
    return Normalization(tuple(map(float, mean)), tuple(map(float, std)))


def _check_scale(normalization: Normalization, mode: Mode) -> Normalization:
    """Checks that values are for pixels scaled to 0 … 1, and returns the normalisation."""
    values = (*normalization.mean, *normalization.std)
    # A mode without an upper bound accepts any.
    if mode.white > 1 and (min(values) < 0 or max(values) > 1):
        hint = "these look like 0…255; divide by 255" if max(values) > 1 else "pixels are scaled to 0…1 first"
        raise UsageError(
            "a normalisation should have means from 0 to 1 and standard deviations above 0 and up to 1, got "
            f"{_format_values(normalization.mean)}/{_format_values(normalization.std)}: {hint}"
        )
    return normalization


def _format_values(values: tuple[float, ...]) -> str:
    """Joins numbers with commas, for messages."""
    return ",".join(f"{value:g}" for value in values)
