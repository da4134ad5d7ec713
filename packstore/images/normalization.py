"""Parses normalisations: a name, means and standard deviations as text, or numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from packstore.core.errors import ManifestError, UsageError
from packstore.core.manifest import NORMALIZATIONS, Normalization
from packstore.core.modes import RGB, Mode

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
