"""Pixels as a PNG file, without loss."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray


def encode_png(pixels: NDArray[Any]) -> bytes:
    """``pixels``, uint8 ``(H, W, 3)`` RGB, as a PNG file, by Pillow."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(out, "PNG")
    return out.getvalue()
