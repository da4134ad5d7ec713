"""Rewrites progressive JPEG files as baseline files with the same coefficients, by TurboJPEG's ``tjTransform``.

All versions of the library have the function; from 3.0 on it also makes optimal Huffman tables, which save some 4%.
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
    """Raised if a file cannot be rewritten as baseline; the message says why."""


class _Transform(ctypes.Structure):
    """``tjtransform`` of turbojpeg.h; all zeros changes nothing and keeps all markers."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("x", "y", "w", "h", "operation", "options")),
        *((name, ctypes.c_void_p) for name in ("data", "filter")),
    )


def make_baseline(data: bytes) -> bytes:
    """Rewrites the JPEG file ``data`` with one scan: same coefficients and markers.

    Bytes after the image's end are left out.

    Raises:
        NotBaselineError: The library finds the file damaged.
        UsageError: The library is missing.
    """
    library = _load_transform()
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


def find_baseline_version() -> str:
    """Returns name and version of the library, on which the bytes depend. Raises :class:`UsageError` if it is
    missing."""
    _load_transform()
    return f"libjpeg-turbo {turbo_version(find_library(*_FUNCTIONS)) or 'of unknown version'}"


@functools.cache
def _load_transform() -> Any:
    """Loads TurboJPEG's transformation once. If the library is missing, raises :class:`UsageError`, which says what to
    install."""
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
