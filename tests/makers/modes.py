"""Samples of any mode: as image files, or as pixels."""

from __future__ import annotations

import importlib
import io
from typing import Any

import numpy as np
from PIL import Image

from tests.internals import encode_png, parse_mode

ENCODINGS = {
    "L": ("original", "uint8"),
    "LA": ("original", "uint8"),
    "I;16": ("original", "uint16", "float32"),
    "I;16S": ("original", "int16", "float32"),
    "I": ("original", "int32"),
    "F": ("original", "float32"),
    "multi:5:uint16": ("original", "uint16"),
    "RGB;16": ("original", "uint16"),
    "RGBA": ("original", "uint8"),
}
"""Encodings that hold all values of a mode."""


def make_samples(mode: str, encoding: str, count: int, size: tuple[int, int] = (5, 4)) -> list[dict[str, Any]]:
    """Samples with image and label: files if the encoding is ``original``, else arrays."""
    random = np.random.default_rng(len(mode))
    found = []
    for number in range(count):
        known = parse_mode(mode)
        shape = (*size, known.channels)
        if known.dtype == "float32":
            pixels: Any = random.normal(size=shape).astype(np.float32)
        else:
            info = np.iinfo(known.dtype)
            pixels = random.integers(info.min, info.max, shape, info.dtype, endpoint=True)
        if known.has_alpha:
            pixels[..., -1] |= 1
        image = _file(pixels, mode) if encoding == "original" else pixels
        found.append({"key": f"{number:03}", "image": image, "label": number % 2})
    return found


def convert_options(mode: str, encoding: str) -> dict[str, Any]:
    """Options of :func:`packstore.convert` for the samples."""
    from tests.internals import Image as ImageField

    fields = {"image": ImageField(encoding, mode=None if encoding == "original" else mode), "label": "label"}
    return {"fields": fields, **({"mode": mode} if encoding == "original" else {})}


def _file(pixels: Any, mode: str) -> bytes:
    stream = io.BytesIO()
    if mode.startswith("multi"):
        np.save(stream, pixels)
    elif mode == "I;16S":
        importlib.import_module("tifffile").imwrite(stream, pixels[..., 0])
    elif mode == "RGB;16":
        return encode_png(pixels)
    else:
        image = Image.fromarray(pixels.squeeze())
        image.save(stream, "TIFF" if mode in ("I", "F") else "PNG")
    return stream.getvalue()
