"""Crop-seekable JPEG files, whole and forged."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from packstore.images.decoders import Box
from packstore.images.seekable import Index, add_index, frame_header, read_index, segments
from packstore.images.seekable.index import _HEAD, _OPENING
from tests.makers.jpegs import SAMPLING_FACTORS, boxes, cjpeg, noisy


def save(image: NDArray[np.uint8] | Image.Image, **options: Any) -> bytes:
    out = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(out, "JPEG", **options)
    return out.getvalue()


def seekable(height: int, width: int, sampling: str = "420", interval: int = 1, seed: int = 0) -> bytes:
    return add_index(cjpeg(noisy(height, width, seed), sampling, "-restart", f"{interval}B"))


def index_of(data: bytes) -> Index:
    index = read_index(data)
    assert index is not None
    return index


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, list[Box]]:
    sampling = draw(st.sampled_from(list(SAMPLING_FACTORS)))
    height, width = draw(st.integers(1, 120)), draw(st.integers(1, 160))
    image = noisy(height, width, draw(st.integers(0, 3)))
    whole = cjpeg(image, sampling, "-quality", str(draw(st.sampled_from([20, 75, 95]))))
    columns = frame_header(whole, segments(whole)).mcus[1]
    interval = draw(st.sampled_from([n for n in range(1, columns + 1) if columns % n == 0]))
    data = add_index(cjpeg(image, sampling, "-restart", f"{interval}B"))
    return data, draw(st.lists(boxes(height, width), min_size=1, max_size=6))


def with_checksum(data: bytes) -> bytes:
    """The file with the right checksum in its index, where that is still in its place."""
    start = data.find(b"packstore\0") - 4 + _OPENING.size
    if start < _OPENING.size or len(data) < start + _HEAD.size:
        return data
    tables_at, scan_at = _HEAD.unpack_from(data, start)[1:3]
    crc = zlib.crc32(
        data[tables_at:scan_at], zlib.crc32(data[start + 4 : start - _OPENING.size + 2 + _length(data, start)])
    )
    return data[:start] + crc.to_bytes(4, "big") + data[start + 4 :]


def forged(data: bytes, change: Callable[[NDArray[np.uint8], list[int]], None]) -> bytes:
    """A file whose index is other than it should be, with a right checksum."""
    start = data.index(b"packstore\0") - 4 + _OPENING.size
    index = index_of(data)
    head = list(_HEAD.unpack_from(data, start))
    low = np.frombuffer(data, np.uint8, index.across * index.rows, index.lengths_at).copy()
    change(low, head)
    rest = data[index.lengths_at + len(low) : start - _OPENING.size + 2 + _length(data, start)]
    body = _HEAD.pack(*head) + low.tobytes() + rest
    return with_checksum(data[:start] + body + data[start + len(body) :])


def _length(data: bytes, start: int) -> int:
    return int.from_bytes(data[start - _OPENING.size + 2 : start - _OPENING.size + 4], "big")
