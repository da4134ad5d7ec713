"""Finds TurboJPEG's shared library, for functions that Python packages do not offer.

The environment variable ``PACKSTORE_TURBOJPEG`` names the library file. If it is empty, packstore uses none, and only
PyTurboJPEG finds its own.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
import re
import sys
from pathlib import Path

from packstore.core.errors import UsageError, printable

_VARIABLE = "PACKSTORE_TURBOJPEG"
_NAME = {"darwin": "libturbojpeg.dylib", "win32": "turbojpeg.dll"}.get(sys.platform, "libturbojpeg.so.0")
_IN_ALL = "tjInitDecompress"
_ADVICE = "correct it or unset it"


def library_from_environment() -> str | None:
    """Returns the value of ``PACKSTORE_TURBOJPEG``, or None if it is not set. An empty value means: no library."""
    return os.environ.get(_VARIABLE)


def find_library(*symbols: str) -> str | None:
    """Returns name or path, for :mod:`ctypes`, of a library that has all functions ``symbols``. Returns None if there
    is none.

    The library is the one that ``PACKSTORE_TURBOJPEG`` names, else the system's. An empty variable gives None.

    Raises:
        UsageError: ``PACKSTORE_TURBOJPEG`` names a file that cannot be loaded, or is not TurboJPEG's.
    """
    return _find_with_symbols(library_from_environment(), symbols)


@functools.cache
def _find_with_symbols(wanted: str | None, symbols: tuple[str, ...]) -> str | None:
    """Does :func:`find_library` for the library ``wanted``; None means the system's. Caches the result."""
    if wanted == "":
        return None
    name = wanted or _NAME
    try:
        library = ctypes.CDLL(name)
    except (OSError, UnicodeDecodeError) as error:  # the latter for a file not named in UTF-8
        if wanted is None:
            return None
        reason = error if str(error) and isinstance(error, OSError) else wanted  # Python 3.11.2 says nothing
        raise UsageError(
            f"{_VARIABLE} names a library that cannot be loaded: {printable(str(reason))}; {_ADVICE}"
        ) from None
    if not hasattr(library, _IN_ALL):
        if wanted is None:
            return None
        raise UsageError(f"{_VARIABLE} names {printable(wanted)}, which is not TurboJPEG's library; {_ADVICE}")
    return name if all(hasattr(library, symbol) for symbol in symbols) else None


def turbo_version(name: str | None = None) -> str | None:
    """Reads the version of a libturbojpeg, by default the system's. Returns None if it is unknown.

    Loads the library, and searches for the text in its file. If the file is not found, searches the files of any
    libturbojpeg in this process. Raises :class:`OSError` if the library does not load."""
    name = name or ctypes.util.find_library("turbojpeg")
    if name is None:
        return None
    maps = Path("/proc/self/maps")
    ctypes.CDLL(name)
    paths = re.findall(r"(/\S*libturbojpeg\S*)", maps.read_text("utf-8", "surrogateescape")) if maps.exists() else []
    # The named file first; several libraries may be loaded, such as one of a wheel.
    own = [path for path in paths if Path(path).name.startswith(Path(name).name)]
    for path in dict.fromkeys([name, *own, *paths]):
        try:
            match = re.search(rb"libjpeg-turbo version (\d+(?:\.\d+)+)", Path(path).read_bytes())
        except OSError:
            continue
        if match is not None:
            return match[1].decode()
    return None
