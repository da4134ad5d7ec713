"""JPEG files of every kind, made by ``cjpeg``; for tests that decode parts of them. And their segments."""

from __future__ import annotations

import subprocess
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from packstore.images.decoders import Box
from tests.makers.datasets import pixels

USUAL = ("gray", "1x1,1x1,1x1", "2x1,1x1,1x1", "2x2,1x1,1x1", "1x2,1x1,1x1", "4x1,1x1,1x1")
SAMPLINGS = (*USUAL, "2x2,1x2,2x1", "1x4,1x2,1x1")  # of the others, TurboJPEG wants to know nothing
SAMPLING_FACTORS = {
    "gray": "gray",
    "444": "1x1,1x1,1x1",
    "422": "2x1,1x1,1x1",
    "420": "2x2,1x1,1x1",
    "440": "1x2,1x1,1x1",
    "411": "4x1,1x1,1x1",
    "410": "4x2,1x1,1x1",
    "large MCUs": "2x1,2x1,2x1",
    "chroma of two kinds": "2x2,1x2,2x1",
}
"""What ``cjpeg`` takes, by name."""


class Segment(NamedTuple):
    """A marker segment: ``data[start:stop]``, from its 0xFF to its last byte."""

    marker: int
    start: int
    stop: int


def segments(data: bytes) -> list[Segment]:
    """The segments up to and including the first start of scan."""
    found: list[Segment] = []
    at = 2
    while not found or found[-1].marker != 0xDA:
        assert data[at] == 0xFF
        stop = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        found.append(Segment(data[at + 1], at, stop))
        at = stop
    return found


def noisy(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """Neighbouring pixels differ much, so that a wrong neighbour shows."""
    rng = np.random.default_rng(seed)
    return pixels(height, width, seed) // 2 + rng.integers(0, 120, (height, width, 3), np.uint8)


def cjpeg(image: NDArray[np.uint8], sampling: str, *options: str) -> bytes:
    """Takes factors or a name of :data:`SAMPLING_FACTORS`."""
    how = ["-grayscale"] if sampling == "gray" else ["-sample", SAMPLING_FACTORS.get(sampling, sampling)]
    height, width, _ = image.shape
    ppm = b"P6 %d %d 255\n" % (width, height) + image.tobytes()
    return subprocess.run(["cjpeg", *how, *options], input=ppm, check=True, capture_output=True).stdout


def jpeg(height: int, width: int, sampling: str, *options: str, seed: int = 0) -> bytes:
    return cjpeg(noisy(height, width, seed), sampling, *options)


def cut(image: NDArray[np.uint8], box: Box) -> NDArray[np.uint8]:
    top, left, height, width = box
    return image[top : top + height, left : left + width]


@st.composite
def boxes(draw: st.DrawFn, height: int, width: int) -> Box:
    rows, columns = draw(st.integers(1, height)), draw(st.integers(1, width))
    return draw(st.integers(0, height - rows)), draw(st.integers(0, width - columns)), rows, columns
