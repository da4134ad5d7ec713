"""Finds and loads the compiled engine, a shared library, and tells :mod:`ctypes` the types of its functions."""

from __future__ import annotations

import ctypes
import functools
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TypeVar

from packstore.core.errors import EngineError

Library = TypeVar("Library", bound=ctypes.CDLL)

_INTERFACE = 20
"""Version of the interface of ``api.c``, to detect an engine that an older version compiled here."""

FOLDER = Path(__file__).parents[1] / "images" / "engine"
"""Where the engine is compiled, beside its C sources."""

DONE = 0
"""The outcome in ``core/base.h`` for success."""
_AGAIN = "install packstore again on this machine (in a clone: pip install -v .), which compiles it"

_TYPES = {
    "p": ctypes.c_void_p, "n": ctypes.c_int64, "i": ctypes.c_int, "u": ctypes.c_uint32, "s": ctypes.c_char_p, "-": None,
}  # fmt: skip
_FUNCTIONS = {
    "new": "i p",
    "free": "p -",
    "sizes": "ppnp -",
    "size": "pnnp i",
    "whole": "ppnnnnp i",
    "run": "ppnpnp n",
    "run_gray": "ppnpnp n",
    "augment": "ppnnnpn n",
    "checkpoints": "pppnippp -",
    "read_files": "isnpppp -",
    "scan_tar": "innnpp n",
    "stat_files": "isnp -",
    "list_names": "inppp i",
    "permute": "pnuiup -",
    "find_lmdb_value": "psnp -",
    "locate_lmdb_records": "ppnppp n",
    "walk_lmdb": "ppnn n",
    "png": "pnpnnni i",
}
"""Types of the arguments and, after a space, of the result of each function of ``api.c``: letters of ``_TYPES``."""
_WITH_GIL = {"is_plain": "snn i", "locate_lmdb_record": "pnp n"}


def engine_problem() -> str | None:
    """Loads the engine. Returns None, or the reason why it cannot be loaded, with the remedy."""
    return load_once()[1]


def require_library() -> ctypes.CDLL:
    """Returns the compiled engine. Raises :class:`EngineError` if it cannot be loaded."""
    library, problem = load_once()
    if library is None:
        raise EngineError(f"packstore's engine cannot be used here: {problem}")
    return library


@functools.cache
def load_once() -> tuple[ctypes.CDLL | None, str | None]:
    """Loads the compiled engine at the first call.

    Returns the engine and None. If it cannot be loaded, returns None and the reason, with the remedy."""
    path = next((path for suffix in EXTENSION_SUFFIXES if (path := FOLDER / f"_engine{suffix}").exists()), None)
    if path is None:
        return None, f"it is not compiled in {FOLDER}; {_AGAIN}"
    try:
        # Its functions may take other arguments, and a wrong call would crash the process.
        if ctypes.CDLL(str(path)).packstore_engine_interface() != _INTERFACE:
            return None, f"{path} is of another version of packstore: delete it and install packstore again"
        return load_library(str(path)), None
    except (OSError, AttributeError) as error:
        return None, f"{path.name} cannot be loaded: {' '.join(str(error).split())}; {_AGAIN}"


@functools.cache
def load_with_gil() -> ctypes.PyDLL | None:
    """Loads the functions that keep the GIL, since releasing it would take longer than they do. Returns None without
    an engine."""
    library = load_once()[0]
    return None if library is None else _declare(ctypes.PyDLL(library._name), _WITH_GIL)


def load_library(path: str) -> ctypes.CDLL:
    """Loads a compiled engine from a file, and sets the types of arguments and results of its functions. Raises
    :class:`OSError`, and :class:`AttributeError` for a missing function."""
    return _declare(ctypes.CDLL(path), _FUNCTIONS)


def _declare(library: Library, functions: dict[str, str]) -> Library:
    """Sets the types of arguments and results of a library's functions, and returns the library."""
    for name, types in functions.items():
        function = getattr(library, f"packstore_engine_{name}")
        *function.argtypes, function.restype = (_TYPES[letter] for letter in types if letter != " ")
    return library
