"""What shapes a record: :class:`EncodeOptions`, and how a command line spells sizes and normalisations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from packstore.core.errors import ManifestError, UsageError
from packstore.core.manifest import ENCODINGS, FLOAT_ENCODINGS, NORMALIZATIONS, Normalization
from packstore.images.decoders import DECODERS, MAX_PIXELS
from packstore.images.resize import FITS, Size, target_size

CHECKS = ("header", "decode", "none")
MAX_SIDE = 65_535
"""Largest side that a size option accepts, in pixels (a JPEG has no larger one)."""


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """How samples become records. Raises :class:`UsageError` for values that are impossible or exclude each other.

    Messages name the options as the command line does, without its leading dashes.

    Attributes:
        encoding: One of :data:`packstore.core.manifest.ENCODINGS`. ``original`` keeps the bytes, ``seekable`` the
            pixels and metadata of JPEG files that are not resized.
        size: ``S`` for a square or ``(height, width)``: every image is brought to it.
        fit: How an image of another aspect ratio comes to ``size``: ``crop``, ``pad`` or ``squash``.
        resize: Shrinks so that the shorter side has at most this many pixels.
        max_side: Shrinks so that the longer side has at most this many pixels.
        quality: JPEG quality, 1 … 100.
        normalization: Mean and standard deviation for floating point encodings; None gives plain 0 … 1.
        exif_transpose: Turns images as their EXIF orientation says.
        check: How thoroughly files are checked: ``header``, ``decode`` or ``none``. A file that is decoded anyway is
            always checked in full; ``none`` then leaves it to the decoder to say what is wrong.
        decoder: ``auto`` or the name of a decoder.
        max_pixels: An image of more pixels is refused, by its header.
    """

    encoding: str = "original"
    size: Size | None = None
    fit: str = "crop"
    resize: int | None = None
    max_side: int | None = None
    quality: int = 90
    normalization: Normalization | None = None
    exif_transpose: bool = False
    check: str = "header"
    decoder: str = "auto"
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        check_choice("encoding", self.encoding, ENCODINGS)
        check_choice("fit", self.fit, FITS)
        check_choice("check", self.check, CHECKS)
        check_choice("decoder", self.decoder, ("auto", *DECODERS))
        if self.size is not None:
            _check_size(self.size)
        if self.resize is not None:
            _check_range("resize", self.resize, MAX_SIDE)
        if self.max_side is not None:
            _check_range("max-side", self.max_side, MAX_SIDE)
        _check_range("quality", self.quality, 100)
        if not isinstance(self.exif_transpose, bool):
            raise UsageError(f"exif-transpose should be True or False, got {self.exif_transpose!r}")
        if self.size is not None and (self.resize is not None or self.max_side is not None):
            raise UsageError(
                "size fixes height and width, so resize and max-side have nothing to say; give size alone, or leave "
                "it out"
            )
        if self.encoding == "original" and self.changes_pixels:
            raise UsageError(
                "the encoding original keeps files as they are, so size, resize, max-side and exif-transpose "
                "cannot apply; use the encoding jpeg, seekable or uint8"
            )
        if self.normalization is None:
            return
        if not isinstance(self.normalization, Normalization):
            raise UsageError(f"normalization should be a Normalization or None, got {self.normalization!r}")
        if self.encoding not in FLOAT_ENCODINGS:
            raise UsageError(f"a normalisation is for {', '.join(FLOAT_ENCODINGS)}, not for {self.encoding}")

    @property
    def resizes(self) -> bool:
        """Whether images may change their size."""
        return not (self.size is None and self.resize is None and self.max_side is None)

    @property
    def changes_pixels(self) -> bool:
        """Whether an image may come out as other pixels than it went in, before it is encoded."""
        return self.resizes or self.exif_transpose


def parse_size(text: str) -> Size:
    """``"224"`` as 224, ``"32x48"`` as ``(32, 48)``: height x width. Raises :class:`UsageError`."""
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() and 1 <= int(part) <= MAX_SIDE for part in parts):
        raise UsageError(f"a size should be like 224 or 32x48 (height x width, 1 to {MAX_SIDE}), got {text!r}")
    return int(parts[0]) if len(parts) == 1 else (int(parts[0]), int(parts[1]))


def parse_normalize(text: str) -> Normalization | None:
    """A name of :data:`NORMALIZATIONS`, ``"none"`` (as None), or ``"M,M,M/S,S,S"``: means and standard deviations of
    pixels scaled to 0 … 1, in the order R, G, B. Raises :class:`UsageError`."""
    if text == "none":
        return None
    if text in NORMALIZATIONS:
        return NORMALIZATIONS[text]
    if text == "auto":
        raise UsageError("the normalisation auto is computed from a dataset, and there is none here; give the values")
    mean, _, std = text.partition("/")
    try:
        found = _from_numbers(mean.split(","), std.split(","))
    except (ValueError, ManifestError):
        raise UsageError(f"{_NORMALIZATION_EXPECTED}, got {text!r}") from None
    return _scaled(found)


def as_normalization(value: object) -> Normalization | None:
    """The normalisation that a caller means by ``value``; None for ``"none"``.

    Args:
        value: Text as for :func:`parse_normalize`, a :class:`Normalization`, or means and standard deviations:
            ``((m, m, m), (s, s, s))``, of pixels scaled to 0 … 1.

    Raises:
        UsageError: Anything else, or values that are not of that scale.
    """
    if isinstance(value, str):
        return parse_normalize(value)
    if isinstance(value, Normalization):
        return _scaled(value)
    try:
        pair: Any = value  # what cannot be unpacked is refused below
        mean, std = pair
        found = _from_numbers(mean, std)
    except (TypeError, ValueError, ManifestError):
        raise UsageError(
            f"{_NORMALIZATION_EXPECTED} (in Python also a Normalization, or ((M, M, M), (S, S, S))), got {value!r}"
        ) from None
    return _scaled(found)


_NORMALIZATION_EXPECTED = (
    f"a normalisation should be one of {', '.join(NORMALIZATIONS)}, auto, none, or M,M,M/S,S,S with three means and "
    "three standard deviations above 0, of pixels scaled to 0…1"
)


def _from_numbers(mean: Iterable[Any], std: Iterable[Any]) -> Normalization:
    return Normalization(tuple(map(float, mean)), tuple(map(float, std)))


def _scaled(normalization: Normalization) -> Normalization:
    """``normalization``, when it can be that of values from 0 to 1; else raises :class:`UsageError`."""
    values = (*normalization.mean, *normalization.std)
    if min(values) < 0 or max(values) > 1:
        hint = "these look like 0…255; divide by 255" if max(values) > 1 else "pixels are scaled to 0…1 first"
        raise UsageError(
            "a normalisation should have means from 0 to 1 and standard deviations above 0 and up to 1, got "
            f"{_listed(normalization.mean)}/{_listed(normalization.std)}: {hint}"
        )
    return normalization


def _listed(values: tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in values)


def check_choice(what: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises :class:`UsageError` that lists the choices when ``value`` is none of them."""
    if not isinstance(value, str) or value not in choices:
        raise UsageError(f"{what} should be one of {', '.join(choices)}, got {value!r}")


def _check_size(size: Any) -> None:
    if isinstance(size, tuple) and len(size) == 2:
        for side in size:
            _check_range("size", side, MAX_SIDE)
    elif isinstance(size, int):
        _check_range("size", size, MAX_SIDE)
    else:
        raise UsageError(
            f"size should be a whole number from 1 to {MAX_SIDE}, or (height, width) of two of them, got {size!r}"
        )
    height, width = target_size(size)
    if height * width > MAX_PIXELS:
        raise UsageError(f"size should have at most {MAX_PIXELS} pixels, got {height} x {width}")


def _check_range(what: str, value: object, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise UsageError(f"{what} should be a whole number from 1 to {most}, got {value!r}")
