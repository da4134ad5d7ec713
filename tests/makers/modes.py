"""Samples of any mode: as image files, or as pixels."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

MODES = {"L": 1, "I;16": 1, "F": 1, "multi:5:uint16": 5, "RGBA": 4}
"""Channels by mode."""
ENCODINGS = {
    "L": ("original", "uint8"),
    "I;16": ("original", "uint16", "float32"),
    "F": ("original", "float32"),
    "multi:5:uint16": ("original", "uint16"),
    "RGBA": ("original", "uint8"),
}
"""Encodings that hold all values of a mode."""


def make_samples(mode: str, encoding: str, count: int, size: tuple[int, int] = (5, 4)) -> list[dict[str, Any]]:
    """Samples with image and label: files if the encoding is ``original``, else arrays."""
    random = np.random.default_rng(len(mode))
    found = []
    for number in range(count):
        shape = (*size, MODES[mode])
        dtype = np.uint16 if "16" in mode else np.uint8
        pixels: Any = random.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)
        if mode == "RGBA":
            pixels[..., 3] |= 1
        if mode == "F":
            pixels = random.normal(size=shape).astype(np.float32)
        image = _file(pixels, mode) if encoding == "original" else pixels
        found.append({"key": f"{number:03}", "image": image, "label": number % 2})
    return found


def convert_options(mode: str, encoding: str) -> dict[str, Any]:
    """Options of :func:`packstore.convert` for the samples."""
    from packstore.core.fields import Image as ImageField

    fields = {"image": ImageField(encoding, mode=None if encoding == "original" else mode), "label": "label"}
    return {"fields": fields, **({"mode": mode} if encoding == "original" else {})}


def _file(pixels: Any, mode: str) -> bytes:
    stream = io.BytesIO()
    if mode.startswith("multi"):
        np.save(stream, pixels)
    else:
        image = Image.fromarray(pixels if mode == "RGBA" else pixels[..., 0])
        image.save(stream, "TIFF" if mode == "F" else "PNG")
    return stream.getvalue()
