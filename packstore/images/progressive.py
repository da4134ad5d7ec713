"""Progressive JPEG files as baseline ones of the same coefficients, by TurboJPEG's ``tjTransform``.

The function is in all of its versions; from 3.0 on it also makes optimal Huffman tables, which take some 4% less.
:mod:`packstore.images.turbojpeg_library` chooses the library.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from packstore.core.errors import UsageError, printable
from packstore.images.turbojpeg_library import find_library, turbo_version

_FUNCTIONS = ("tjInitTransform", "tjTransform", "tjGetErrorStr2", "tjFree", "tjDestroy")
_OPTIMIZE = 256  # TJXOPT_OPTIMIZE of turbojpeg.h; older versions know nothing of it


class NotBaselineError(Exception):
    """A file cannot be made baseline; the message says why."""


class _Transform(ctypes.Structure):
    """``tjtransform``; all zeros changes nothing and keeps all markers."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("x", "y", "w", "h", "operation", "options")),
        *((name, ctypes.c_void_p) for name in ("data", "filter")),
    )


def make_baseline(data: bytes) -> bytes:
    """The JPEG file ``data`` with one scan: the same coefficients and markers, without what follows the image's end.

    Raises:
        NotBaselineError: The library says that the file is damaged.
        UsageError: There is no such library.
    """
    library = _load()
    handle = library.tjInitTransform()  # one a call, so that threads share nothing
    if not handle:
        raise MemoryError
    result, size = ctypes.c_void_p(), ctypes.c_ulong()
    try:
        wanted = _Transform(options=_OPTIMIZE)
        # Fails for mere warnings of libjpeg, too.
        if library.tjTransform(
            *(handle, data, len(data), 1),
            *(ctypes.byref(result), ctypes.byref(size), ctypes.byref(wanted), 0),
        ):
            raise NotBaselineError(
                f"is damaged: {printable(library.tjGetErrorStr2(handle).decode('utf-8', 'replace'))}"
            )
        return ctypes.string_at(result, size.value)
    finally:
        library.tjFree(result)
        library.tjDestroy(handle)


def baseline_version() -> str:
    """Version of the library, on which the bytes depend. Raises :class:`UsageError` as :func:`make_baseline`."""
    _load()
    return f"libjpeg-turbo {turbo_version(find_library(*_FUNCTIONS)) or 'of unknown version'}"


@functools.cache
def _load() -> Any:
    name = find_library(*_FUNCTIONS)
    if name is None:
        raise UsageError(
            "making progressive files baseline takes TurboJPEG's library, which is not here: on Debian and Ubuntu, "
            "apt install libturbojpeg0; or leave --progressive out, and the files stay as they are"
        )
    library, pointer, size = ctypes.CDLL(name), ctypes.c_void_p, ctypes.c_ulong
    library.tjInitTransform.argtypes, library.tjInitTransform.restype = (), pointer
    library.tjTransform.argtypes = (
        *(pointer, ctypes.c_char_p, size, ctypes.c_int),
        *(ctypes.POINTER(pointer), ctypes.POINTER(size), ctypes.POINTER(_Transform), ctypes.c_int),
    )
    library.tjGetErrorStr2.argtypes, library.tjGetErrorStr2.restype = (pointer,), ctypes.c_char_p
    library.tjFree.argtypes, library.tjFree.restype = (pointer,), None
    library.tjDestroy.argtypes, library.tjDestroy.restype = (pointer,), None
    return library
