"""Colours of classes. ``record.js`` of the page computes the same colours."""

from __future__ import annotations

import colorsys


def class_color(number: int) -> tuple[int, int, int]:
    """Returns the RGB colour of a class number. Neighbouring numbers get different hues."""
    hue = number * 0.618033988749895 % 1
    red, green, blue = colorsys.hsv_to_rgb(hue, (0.85, 0.6)[number // 8 % 2], (1.0, 0.8)[number // 16 % 2])
    return round(red * 255), round(green * 255), round(blue * 255)


def text_color_on(color: tuple[int, int, int]) -> tuple[int, int, int]:
    """Returns black or white, whichever has more contrast on the RGB ``color``. The contrast is at least 4.5 to 1
    (WCAG)."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (c / 255 for c in color)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)
