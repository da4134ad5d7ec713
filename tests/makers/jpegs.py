"""JPEG files of every kind, made by ``cjpeg``; for tests that decode parts of them."""

from __future__ import annotations

import subprocess

import numpy as np
from numpy.typing import NDArray

from packstore.images.decoders import Box
from tests.makers.datasets import pixels

USUAL = ("gray", "1x1,1x1,1x1", "2x1,1x1,1x1", "2x2,1x1,1x1", "1x2,1x1,1x1", "4x1,1x1,1x1")
SAMPLINGS = (*USUAL, "2x2,1x2,2x1", "1x4,1x2,1x1")  # of the others, TurboJPEG wants to know nothing


def jpeg(height: int, width: int, sampling: str, *options: str, seed: int = 0) -> bytes:
    """Neighbouring pixels differ much, so that a wrong neighbour shows."""
    rng = np.random.default_rng(seed)
    image = pixels(height, width, seed) // 2 + rng.integers(0, 120, (height, width, 3), np.uint8)
    ppm = b"P6 %d %d 255\n" % (width, height) + image.tobytes()
    how = ["-grayscale"] if sampling == "gray" else ["-sample", sampling]
    return subprocess.run(["cjpeg", *how, *options], input=ppm, check=True, capture_output=True).stdout


def cut(image: NDArray[np.uint8], box: Box) -> NDArray[np.uint8]:
    top, left, height, width = box
    return image[top : top + height, left : left + width]
