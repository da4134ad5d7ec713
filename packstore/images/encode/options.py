""":class:`EncodeOptions`, which shape records; parsing of sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packstore.core.errors import UsageError
from packstore.core.manifest import Normalization
from packstore.core.registry import ENCODINGS
from packstore.images.reading import DECODERS, PLAIN, Reading
from packstore.images.resize import FITS, Size, target_size
from packstore.images.sniff import MAX_PIXELS

CHECKS = ("header", "decode", "none")
PROGRESSIVE = ("baseline",)
MAX_SIDE = 65_535
"""Largest side that a size option accepts, in pixels (a JPEG has no larger one)."""
_CHANGES_PIXELS = ("size", "resize", "max_side", "exif_transpose")
GEOMETRY = frozenset({*_CHANGES_PIXELS, "fit"})
"""Options that most encodings accept: resizing and EXIF transposition."""


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """Options that shape records. Raises :class:`UsageError` for impossible or contradicting values.

    Does not check ``reading``, ``asks``, ``skips_losses`` and ``max_pixels``, nor if the encoding uses ``quality``.
    Messages name the options as the command line does, without its leading dashes.

    Attributes:
        encoding: One of :data:`packstore.core.registry.ENCODINGS`; ``original`` keeps files unchanged.
        size: Size of all images: ``S`` for a square, or ``(height, width)``.
        fit: How an image of another aspect ratio is made to fit ``size``: ``crop``, ``pad`` or ``squash``.
        resize: Shrinks so that the shorter side has at most this many pixels.
        max_side: Shrinks so that the longer side has at most this many pixels.
        quality: JPEG quality, 1 … 100.
        normalization: Mean and standard deviation for floating point encodings; None gives plain 0 … 1.
        exif_transpose: Applies the EXIF orientation: to pixels now, to unchanged files when they are read.
        check: Check of the files. ``header`` checks the header, ``decode`` also decodes all pixels, ``none`` checks
            nothing. If the encoding decodes files, the decoder checks them in any case.
        decoder: ``auto`` or the name of a decoder.
        progressive: ``baseline`` rewrites progressive JPEG files as baseline files, without loss; None keeps them.
        reading: Mode of the images, and the conversion of more bits, alpha and further frames.
        asks: Raise :class:`UsageError` for a file that would lose something by ``reading``.
        skips_losses: With ``asks``, such a file is a bad sample, and no :class:`UsageError` is raised.
        max_pixels: Limit of an image's pixels; an image whose header says more is refused.
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
    progressive: str | None = None
    reading: Reading = PLAIN
    asks: bool = False
    skips_losses: bool = False

    def __post_init__(self) -> None:
        check_encoding("encoding", self.encoding)
        check_choice("fit", self.fit, FITS)
        check_choice("check", self.check, CHECKS)
        check_choice("decoder", self.decoder, ("auto", *DECODERS))
        if self.progressive is not None:
            check_choice("progressive", self.progressive, PROGRESSIVE)
            if "progressive" not in ENCODINGS[self.encoding].accepts:
                raise UsageError(f"progressive is for the encoding original, not {self.encoding}; leave it out")
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
                "size fixes height and width, so resize and max-side have no effect; give size alone, or leave it out"
            )
        accepts = ENCODINGS[self.encoding].accepts
        if any(getattr(self, name) and name not in accepts for name in _CHANGES_PIXELS):
            *names, last = (name.replace("_", "-") for name in _CHANGES_PIXELS if name not in accepts)
            listed = f"{', '.join(names)} and {last}" if names else last
            raise UsageError(
                f"the encoding {self.encoding} keeps files as they are, so {listed} cannot apply; use the encoding "
                "jpeg or uint8"
            )
        if self.normalization is None:
            return
        if not isinstance(self.normalization, Normalization):
            raise UsageError(f"normalization should be a Normalization or None, got {self.normalization!r}")
        if "normalization" not in accepts:
            others = ", ".join(encodings_that_accept("normalization"))
            raise UsageError(f"a normalisation is for {others}, not for {self.encoding}")

    @property
    def resizes(self) -> bool:
        """True if images may change their size."""
        return not (self.size is None and self.resize is None and self.max_side is None)

    @property
    def changes_pixels(self) -> bool:
        """True if pixels may change before they are encoded, by resizing or EXIF transposition.

        An encoding that keeps EXIF transposes nothing."""
        return self.resizes or (self.exif_transpose and not ENCODINGS[self.encoding].keeps_exif)


def parse_size(text: str) -> Size:
    """Parses ``"224"`` to 224, ``"32x48"`` to ``(32, 48)``: height x width.

    Raises :class:`UsageError` for other texts, and for sides that are 0 or above 65,535."""
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() and 1 <= int(part) <= MAX_SIDE for part in parts):
        raise UsageError(f"a size should be like 224 or 32x48 (height x width, 1 to {MAX_SIDE}), got {text!r}")
    return int(parts[0]) if len(parts) == 1 else (int(parts[0]), int(parts[1]))


def encodings_that_accept(option: str) -> list[str]:
    """Returns the names of the built-in encodings that accept an option, for messages."""
    return [name for name in ENCODINGS.built_in if option in ENCODINGS[name].accepts]


def check_encoding(what: str, value: object) -> None:
    """Raises :class:`UsageError` unless ``value`` names an encoding. The text lists the encodings.

    ``what``: name of the argument."""
    if not isinstance(value, str) or value not in ENCODINGS:
        check_choice(what, value, tuple(ENCODINGS))


def check_choice(what: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises :class:`UsageError` unless ``value`` is one of ``choices``. The text lists the choices.

    ``what``: name of the argument."""
    if not isinstance(value, str) or value not in choices:
        raise UsageError(f"{what} should be one of {', '.join(choices)}, got {value!r}")


def _check_size(size: Any) -> None:
    """Raises :class:`UsageError` for an invalid size."""
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
    """Raises :class:`UsageError` unless ``value`` is a whole number (not a bool) from 1 to ``most``."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise UsageError(f"{what} should be a whole number from 1 to {most}, got {value!r}")
