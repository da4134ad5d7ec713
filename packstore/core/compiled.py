"""Finds and loads the compiled engine, a shared library, and tells :mod:`ctypes` the types of its functions."""

from __future__ import annotations

import ctypes
import functools
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from packstore.core.errors import EngineError

_INTERFACE = 20
"""Version of the interface of ``batch.c``, to detect an engine that an older version compiled here."""

FOLDER = Path(__file__).parents[1] / "images" / "engine"
"""Where the engine is compiled, beside its C sources."""

DONE = 0
"""The outcome in ``engine.h`` for success."""
_AGAIN = "install packstore again on this machine (in a clone: pip install -v .), which compiles it"


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
    if library is None:
        return None
    number, kept = ctypes.c_int64, ctypes.PyDLL(library._name)
    kept.packstore_engine_is_plain.argtypes = (ctypes.c_char_p, number, number)
    kept.packstore_engine_is_plain.restype = ctypes.c_int
    kept.packstore_engine_locate_lmdb_record.argtypes = (ctypes.c_void_p, number, ctypes.c_void_p)
    kept.packstore_engine_locate_lmdb_record.restype = number
    return kept


def load_library(path: str) -> ctypes.CDLL:
    """Loads a compiled engine from a file, and sets the types of arguments and results of its functions. Raises
    :class:`OSError`, and :class:`AttributeError` for a missing function."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library = ctypes.CDLL(path)
    library.packstore_engine_new.argtypes, library.packstore_engine_new.restype = (ctypes.c_int,), pointer
    library.packstore_engine_free.argtypes, library.packstore_engine_free.restype = (pointer,), None
    library.packstore_engine_sizes.argtypes = (pointer, pointer, number, pointer)
    library.packstore_engine_sizes.restype = None
    library.packstore_engine_size.argtypes = (pointer, number, number, pointer)
    library.packstore_engine_size.restype = ctypes.c_int
    library.packstore_engine_whole.argtypes = (pointer, pointer, number, number, number, number, pointer)
    library.packstore_engine_whole.restype = ctypes.c_int
    library.packstore_engine_run.argtypes = (pointer, pointer, number, pointer, number, pointer)
    library.packstore_engine_run.restype = number
    library.packstore_engine_run_gray.argtypes = library.packstore_engine_run.argtypes
    library.packstore_engine_run_gray.restype = number
    library.packstore_engine_augment.argtypes = (*(pointer, pointer, number, number), *(number, pointer, number))
    library.packstore_engine_augment.restype = number
    library.packstore_engine_checkpoints.argtypes = (
        *(pointer, pointer, pointer, number, ctypes.c_int),
        *(pointer, pointer, pointer),
    )
    library.packstore_engine_checkpoints.restype = None
    library.packstore_engine_read_files.argtypes = (
        *(ctypes.c_int, ctypes.c_char_p, number),
        *(pointer, pointer, pointer, pointer),
    )
    library.packstore_engine_read_files.restype = None
    library.packstore_engine_scan_tar.argtypes = (ctypes.c_int, number, number, number, pointer, pointer)
    library.packstore_engine_scan_tar.restype = number
    library.packstore_engine_stat_files.argtypes = (ctypes.c_int, ctypes.c_char_p, number, pointer)
    library.packstore_engine_stat_files.restype = None
    library.packstore_engine_list_names.argtypes = (ctypes.c_int, number, pointer, pointer, pointer)
    library.packstore_engine_list_names.restype = ctypes.c_int
    library.packstore_engine_permute.argtypes = (
        *(pointer, number, ctypes.c_uint32),
        *(ctypes.c_int, ctypes.c_uint32, pointer),
    )
    library.packstore_engine_permute.restype = None
    library.packstore_engine_find_lmdb_value.argtypes = (pointer, ctypes.c_char_p, number, pointer)
    library.packstore_engine_find_lmdb_value.restype = None
    library.packstore_engine_locate_lmdb_records.argtypes = (pointer, pointer, number, pointer, pointer, pointer)
    library.packstore_engine_locate_lmdb_records.restype = number
    library.packstore_engine_walk_lmdb.argtypes = (pointer, pointer, number, number)
    library.packstore_engine_walk_lmdb.restype = number
    library.packstore_engine_png.argtypes = (pointer, number, pointer, number, number, number, ctypes.c_int)
    library.packstore_engine_png.restype = ctypes.c_int
    return library
