"""Decodes a region of any JPEG, by TurboJPEG's ``tj3SetCroppingRegion``, in libjpeg-turbo from 3.0 on.

The library still entropy-decodes everything down to the region's last row, and all of a progressive file. It skips
inverse DCT, upsampling and colour conversion of other pixels, and everything below. Called by ctypes: PyTurboJPEG has
the function from version 2 on, which refuses the library of version 2.1.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from packstore.images.turbojpeg_library import find_library

_FUNCTIONS = (
    "tj3SetCroppingRegion",
    *("tj3Init", "tj3DecompressHeader", "tj3Get"),
    *("tj3Decompress8", "tj3GetErrorStr", "tj3Destroy"),
)
# From turbojpeg.h.
_DECOMPRESS, _RGB = 1, 0
_SUBSAMPLING, _WIDTH, _HEIGHT = 4, 5, 6
_MCU_WIDTHS = {0: 8, 1: 16, 2: 16, 3: 8, 4: 8, 5: 32, 6: 8}  # 4:4:4, 4:2:2, 4:2:0, gray, 4:4:0, 4:1:1, 4:4:1
_MARGIN = 2
"""Extra columns that are decoded at both sides of a region: fancy upsampling mixes neighbouring columns of chroma, up
to two pixels wide, and would treat the region's edge as the image's. The library itself handles rows."""


class DecodeRegion(Protocol):
    """Function that decodes ``box`` (top, left, height, width) of a JPEG of ``height`` by ``width`` pixels.

    Returns uint8 ``(h, w, 3)``, a view of a wider array. Does not notice flaws below the box.

    Raises :class:`ValueError` for any other flaw, another size, and chroma subsampling unknown to TurboJPEG."""

    def __call__(
        self, data: memoryview, height: int, width: int, box: tuple[int, int, int, int], /
    ) -> NDArray[np.uint8]: ...


class _Region(ctypes.Structure):
    """``tjregion`` of turbojpeg.h."""

    _fields_ = [(name, ctypes.c_int) for name in ("x", "y", "w", "h")]


def find_region_library() -> str | None:
    """Returns the library that decodes regions, for :mod:`ctypes`. Returns None if there is none.

    Raises as :func:`packstore.images.turbojpeg_library.find_library`.
    """
    return find_library(*_FUNCTIONS)


def load_region() -> DecodeRegion | None:
    """Loads the function that decodes regions. Returns None without libjpeg-turbo 3. Raises as
    :func:`find_region_library`."""
    name = find_region_library()
    return None if name is None else _load_function(name)


@functools.cache
def _load_function(name: str) -> DecodeRegion:
    """Loads the library ``name`` once, and returns a function that decodes regions with it."""
    size, handle, data = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p
    # Calls of a microsecond keep the GIL: releasing it and waiting for it again takes longer when threads compete.
    brief = ctypes.PyDLL(name)
    brief.tj3Init.argtypes, brief.tj3Init.restype = (ctypes.c_int,), handle
    brief.tj3DecompressHeader.argtypes = (handle, data, size)
    brief.tj3Get.argtypes = (handle, ctypes.c_int)
    brief.tj3SetCroppingRegion.argtypes = (handle, _Region)
    brief.tj3GetErrorStr.argtypes, brief.tj3GetErrorStr.restype = (handle,), ctypes.c_char_p
    brief.tj3Destroy.argtypes, brief.tj3Destroy.restype = (handle,), None
    decompress = ctypes.CDLL(name).tj3Decompress8
    decompress.argtypes = (handle, data, size, data, ctypes.c_int, ctypes.c_int)

    def decode(data: memoryview, height: int, width: int, box: tuple[int, int, int, int], /) -> NDArray[np.uint8]:
        """Decodes a box; raises :class:`ValueError` with libjpeg's message for any flaw."""
        top, left, rows, columns = box
        source = np.frombuffer(data, np.uint8)
        address = source.ctypes.data
        handle = brief.tj3Init(_DECOMPRESS)  # one a call, so that threads share nothing
        if not handle:
            raise MemoryError
        try:
            if brief.tj3DecompressHeader(handle, address, source.size):
                raise ValueError(brief.tj3GetErrorStr(handle))
            if (brief.tj3Get(handle, _HEIGHT), brief.tj3Get(handle, _WIDTH)) != (height, width):
                raise ValueError("the image has another size than its header")
            mcu = _MCU_WIDTHS.get(brief.tj3Get(handle, _SUBSAMPLING))
            if mcu is None:
                raise ValueError("unknown subsampling")
            first = max(0, left - _MARGIN) // mcu * mcu  # as the library demands
            end = min(width, left + columns + _MARGIN)
            region = _Region(first, top, end - first, rows)
            if brief.tj3SetCroppingRegion(handle, region):
                raise ValueError(brief.tj3GetErrorStr(handle))
            image = np.empty((rows, end - first, 3), np.uint8)
            # Fails for mere warnings of libjpeg, too.
            if decompress(handle, address, source.size, image.ctypes.data, 0, _RGB):
                raise ValueError(brief.tj3GetErrorStr(handle))
        finally:
            brief.tj3Destroy(handle)
        return image[:, left - first : left - first + columns]

    return decode
