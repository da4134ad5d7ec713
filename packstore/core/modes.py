"""Modes: number, dtype and meaning of the channels of an image column's pixels.

Names are Pillow's where Pillow has one (https://pillow.readthedocs.io/en/stable/handbook/concepts.html#modes).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from packstore.core.errors import ManifestError

_KNOWN = {
    "L": (1, "uint8"),
    "LA": (2, "uint8"),
    "RGB": (3, "uint8"),
    "RGBA": (4, "uint8"),
    "I;16": (1, "uint16"),
    "LA;16": (2, "uint16"),
    "RGB;16": (3, "uint16"),
    "RGBA;16": (4, "uint16"),
    "I;16S": (1, "int16"),
    "I": (1, "int32"),
    "F": (1, "float32"),
}
DTYPES = ("uint8", "uint16", "int16", "int32", "float32")
"""Element types of pixels."""
MAX_CHANNELS = 4096
_MULTI = re.compile(rf"multi:([1-9][0-9]{{0,3}}):({'|'.join(DTYPES)})")
_WHITE = {"uint8": 255.0, "uint16": 65535.0}


@dataclass(frozen=True, slots=True)
class Mode:
    """Channels, dtype and meaning of pixels. Created by :func:`parse_mode` and :func:`mode_of`.

    Attributes:
        name: ``L``, ``LA``, ``RGB``, ``RGBA`` (8 bits); ``I;16``, ``LA;16``, ``RGB;16``, ``RGBA;16`` (16 bits);
            ``I;16S``, ``I`` (one channel, int16 and int32); ``F`` (one, float32); ``multi:C:DTYPE`` for any others.
        channels: 1 … 4,096.
        dtype: One of :data:`DTYPES`.
    """

    name: str
    channels: int
    dtype: str

    @property
    def has_alpha(self) -> bool:
        """True if the last channel is the opacity."""
        return "A" in self.name

    @property
    def has_colour(self) -> bool:
        """True for RGB, with and without alpha."""
        return self.name.startswith("RGB")

    @property
    def white(self) -> float:
        """Value that becomes 1.0 in floating point: 255 for uint8, 65,535 for uint16, 1 for all other dtypes."""
        return _WHITE.get(self.dtype, 1.0)

    @property
    def pixel_bytes(self) -> int:
        """Bytes of a pixel."""
        return self.channels * int(re.sub(r"\D", "", self.dtype)) // 8

    def __str__(self) -> str:
        shown = "1 channel" if self.channels == 1 else f"{self.channels} channels"
        return self.name if self.name.startswith("multi") else f"{self.name} ({shown}, {self.dtype})"


@lru_cache(64)
def parse_mode(name: str) -> Mode:
    """Parses the name of a mode; caches 64 modes. Raises :class:`ManifestError` for an unknown name."""
    if name in _KNOWN:
        return Mode(name, *_KNOWN[name])
    match = _MULTI.fullmatch(name)
    if match is not None and int(match[1]) <= MAX_CHANNELS:
        return Mode(name, int(match[1]), match[2])
    raise ManifestError(f"unknown mode {name!r:.60}; modes: {', '.join(_KNOWN)}, multi:CHANNELS:DTYPE")


def mode_of(channels: int, dtype: str) -> Mode:
    """Returns the mode of pixels with this number of channels and dtype.

    Prefers gray, gray with alpha, RGB and RGBA to ``multi:…``. Raises :class:`ManifestError` if no mode has them.
    """
    for name, known in _KNOWN.items():
        if known == (channels, dtype):
            return Mode(name, *known)
    return parse_mode(f"multi:{channels}:{dtype}")


def with_dtype(mode: Mode, dtype: str) -> Mode:
    """Returns a mode with another dtype. If the usual one would add or lose alpha, returns a ``multi`` mode instead."""
    usual = mode if dtype == mode.dtype else mode_of(mode.channels, dtype)
    return usual if usual.has_alpha == mode.has_alpha else parse_mode(f"multi:{mode.channels}:{dtype}")


RGB = parse_mode("RGB")
GRAY = parse_mode("L")


def is_reading_option(option: str) -> bool:
    """Tells if an option of a manifest says how image files are read: ``depth``, ``alpha``, ``frames`` or ``pixels``.

    The option may be for a single column: ``NAME.depth``.
    """
    return option.rpartition(".")[2] in ("depth", "alpha", "frames", "pixels")
