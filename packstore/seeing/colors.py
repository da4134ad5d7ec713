"""Colours of classes. Loads nothing heavy; ``record.js`` of the page computes the same."""

from __future__ import annotations

import colorsys


def color_of(number: int) -> tuple[int, int, int]:
    """The colour of a class, RGB: neighbouring numbers look unlike."""
    hue = number * 0.618033988749895 % 1
    red, green, blue = colorsys.hsv_to_rgb(hue, (0.85, 0.6)[number // 8 % 2], (1.0, 0.8)[number // 16 % 2])
    return round(red * 255), round(green * 255), round(blue * 255)
