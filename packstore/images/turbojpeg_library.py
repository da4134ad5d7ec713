"""TurboJPEG's shared library, for what its version 3 has beyond the one that Python packages know.

The environment variable ``PACKSTORE_TURBOJPEG`` names a library file to be used; empty, none is, and only PyTurboJPEG
finds its own.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

from packstore.core.errors import UsageError, printable

_VARIABLE = "PACKSTORE_TURBOJPEG"
_NAME = {"darwin": "libturbojpeg.dylib", "win32": "turbojpeg.dll"}.get(sys.platform, "libturbojpeg.so.0")
_IN_ALL = "tjInitDecompress"
_ADVICE = "correct it or unset it"


def wanted_library() -> str | None:
    """The library file that is asked for; empty where none is to be used, None where nobody asks."""
    return os.environ.get(_VARIABLE)


def find_library(*symbols: str) -> str | None:
    """What to load, by :mod:`ctypes`, for a library that has all functions ``symbols``; None where there is none.

    Raises:
        UsageError: The library that was asked for cannot be loaded, or is not TurboJPEG's.
    """
    return _find(wanted_library(), symbols)


@functools.cache
def _find(wanted: str | None, symbols: tuple[str, ...]) -> str | None:
    if wanted == "":
        return None
    name = wanted or _NAME
    try:
        library = ctypes.CDLL(name)
    except (OSError, UnicodeDecodeError) as error:  # the latter of a message that names a file not named in UTF-8
        if wanted is None:
            return None
        reason = error if isinstance(error, OSError) else wanted
        raise UsageError(
            f"{_VARIABLE} names a library that cannot be loaded: {printable(str(reason))}; {_ADVICE}"
        ) from None
    if not hasattr(library, _IN_ALL):
        if wanted is None:
            return None
        raise UsageError(f"{_VARIABLE} names {printable(wanted)}, which is not TurboJPEG's library; {_ADVICE}")
    return name if all(hasattr(library, symbol) for symbol in symbols) else None
