"""numpy's ``.npy`` as an image.

An array of two axes is gray. One of three axes has its channels last. If the first axis alone is short enough for
channels, they are first.
"""

from __future__ import annotations

import io
import math
import tokenize
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from packstore.core.modes import Mode, mode_of, parse_mode
from packstore.images.header import HeaderError, ImageInfo
from packstore.images.kinds.base import OwnFile, find_mode_dtype, to_mode_dtype

_FEW = 4
"""Largest length of an axis that is taken for channels."""
_LONGEST = 10_000
"""Bytes of a header: numpy's own limit."""


def _parse_header(data: bytes) -> tuple[tuple[int, ...], Any, int, bool]:
    """Returns shape, dtype, offset of the values, and if they are in Fortran order."""
    place = 10 if data[6:7] == b"\1" else 12
    if len(data) < place + int.from_bytes(data[8:place], "little"):
        raise IndexError  # truncated
    try:
        shape, fortran, dtype, size = parse_npy_header(data[:_LONGEST])
    except ValueError as error:
        raise HeaderError(str(error)) from None
    if dtype.hasobject:
        raise HeaderError("holds Python objects, which numpy keeps as a pickle, and packstore runs none")
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise HeaderError(f"is an array of shape {shape}; an image has height and width, or channels besides")
    if find_mode_dtype(dtype) is None:
        raise HeaderError(f"is an array of {dtype}, which is no type of pixels")
    _channels_first(shape)
    return shape, dtype, size, fortran


def _channels_first(shape: tuple[int, ...]) -> bool:
    """Tells if the first axis is that of channels."""
    if len(shape) == 2 or shape[0] > _FEW:
        return False
    if shape[2] <= _FEW:
        raise HeaderError(f"is an array of shape {shape}, of which the first or the last axis may be channels")
    return True


class NpyHeader(NamedTuple):
    """Header of an array.

    Attributes:
        shape: Shape of the array.
        is_fortran: Whether its first axis is the fastest.
        dtype: Its dtype, which may be the dtype of Python objects.
        size: Bytes of the header, after which the values begin.
    """

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    size: int


def parse_npy_header(start: bytes) -> NpyHeader:
    """Parses the header at the beginning of an ``.npy`` file.

    Raises :class:`ValueError` if the header is damaged, cut off, or of a version other than 1 and 2.
    """
    stream = io.BytesIO(start)
    try:
        version = npy.read_magic(stream)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"version {version} of the format, expected 1 or 2")
        shape, is_fortran, dtype = read(stream)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise ValueError(
            f"is no array of numpy's: {' '.join(str(error).partition(chr(10))[0].split())[:200]}"
        ) from None
    return NpyHeader(shape, is_fortran, dtype, stream.tell())


class Npy(OwnFile):
    """An array. Two channels give a ``multi`` mode, without alpha; True becomes 255."""

    @staticmethod
    def read_header(data: bytes, whole: bool) -> ImageInfo:
        shape, dtype, at, _ = _parse_header(data)
        nbytes = math.prod(shape) * dtype.itemsize
        if whole and len(data) - at != nbytes:
            what = "truncated" if len(data) - at < nbytes else "damaged"
            raise HeaderError(f"is {what}: an array of {nbytes} bytes, the file has {len(data) - at} for it")
        first = _channels_first(shape)
        height, width = shape[1:] if first else shape[:2]
        channels = 1 if len(shape) == 2 else shape[0 if first else 2]
        return ImageInfo("npy", width, height, channels, 8 * dtype.itemsize)

    def find_mode(self) -> Mode:
        dtype = find_mode_dtype(_parse_header(self.content)[1]) or ""
        usual = mode_of(self.info.components, dtype)
        is_multi = usual.has_alpha and self.info.components == 2
        return parse_mode(f"multi:{self.info.components}:{dtype}") if is_multi else usual

    def decode(self, frame: int) -> NDArray[Any]:
        shape, dtype, at, fortran = _parse_header(self.content)
        array = np.frombuffer(self.content, dtype, math.prod(shape), at).reshape(shape, order="F" if fortran else "C")
        if len(shape) == 2:
            array = array[..., None]
        elif _channels_first(shape):
            array = array.transpose(1, 2, 0)
        return np.ascontiguousarray(to_mode_dtype(array, "an array"))
