"""What shapes a record: :class:`EncodeOptions`, and how a command line spells sizes and normalisations."""

from __future__ import annotations

from dataclasses import dataclass

from packstore.decoders import DECODERS
from packstore.errors import ManifestError, UsageError
from packstore.manifest import ENCODINGS, FLOAT_ENCODINGS, NORMALIZATIONS, Normalization
from packstore.resize import FITS, Size

CHECKS = ("header", "decode", "none")
MAX_SIDE = 65_535
"""Largest side that a size option accepts, in pixels (a JPEG has no larger one)."""


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """How samples become records. Raises :class:`UsageError` for values that are impossible or exclude each other.

    Attributes:
        encoding: One of :data:`packstore.manifest.ENCODINGS`. ``original`` and ``seekable`` keep the bytes.
        size: ``S`` for a square or ``(height, width)``: every image is brought to it.
        fit: How an image of another aspect ratio comes to ``size``: ``crop``, ``pad`` or ``squash``.
        resize: Shrinks so that the shorter side has at most this many pixels.
        max_side: Shrinks so that the longer side has at most this many pixels.
        quality: JPEG quality, 1 … 100.
        normalization: Mean and standard deviation for floating point encodings; None gives plain 0 … 1.
        exif_transpose: Turns images as their EXIF orientation says.
        check: How thoroughly files that are kept as they are get checked: ``header``, ``decode`` or ``none``. A file
            that is decoded anyway is always checked in full.
        decoder: ``auto`` or the name of a decoder.
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

    def __post_init__(self) -> None:
        check_choice("encoding", self.encoding, ENCODINGS)
        check_choice("fit", self.fit, FITS)
        check_choice("check", self.check, CHECKS)
        check_choice("decoder", self.decoder, ("auto", *DECODERS))
        if self.size is not None:
            for side in self.size if isinstance(self.size, tuple) and len(self.size) == 2 else (self.size,):
                _check_range("size", side, MAX_SIDE)
        if self.resize is not None:
            _check_range("resize", self.resize, MAX_SIDE)
        if self.max_side is not None:
            _check_range("max_side", self.max_side, MAX_SIDE)
        _check_range("quality", self.quality, 100)
        if self.size is not None and (self.resize is not None or self.max_side is not None):
            raise UsageError(
                "size fixes height and width, so resize and max_side have nothing to say; give one of them"
            )
        if self.encoding in ("original", "seekable") and self.changes_pixels:
            raise UsageError(
                f"the encoding {self.encoding!r} keeps files as they are, so size, resize, max_side and exif_transpose "
                "cannot apply; use the encoding jpeg or uint8"
            )
        if self.normalization is not None and self.encoding not in FLOAT_ENCODINGS:
            raise UsageError(f"normalization is for {', '.join(FLOAT_ENCODINGS)}, not for {self.encoding}")

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
    mean, _, std = text.partition("/")
    try:
        return Normalization(tuple(map(float, mean.split(","))), tuple(map(float, std.split(","))))
    except (ValueError, ManifestError):
        raise UsageError(
            f"a normalisation should be one of {', '.join(NORMALIZATIONS)}, none, or M,M,M/S,S,S with three means and "
            f"three standard deviations above 0, got {text!r}"
        ) from None


def check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises :class:`UsageError` that lists the choices when ``value`` is none of them."""
    if value not in choices:
        raise UsageError(f"{what} should be one of {', '.join(choices)}, got {value!r}")


def _check_range(what: str, value: object, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise UsageError(f"{what} should be a whole number from 1 to {most}, got {value!r}")
