"""Finds and loads the compiled engine, a shared library, and tells :mod:`ctypes` the types of its functions."""

from __future__ import annotations

import ctypes
import functools
import re
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, TypeVar

from packstore.core.errors import EngineError

Library = TypeVar("Library", bound=ctypes.CDLL)

_INTERFACE = 22
"""Version of the interface in ``api.c``, to detect an engine that an older version compiled here."""

FOLDER = Path(__file__).parents[1] / "images" / "engine"
"""Where the engine is compiled, beside its C sources."""

DONE = 0
"""The outcome in ``core/base.h`` for success."""
_AGAIN = "install packstore again on this machine (in a clone: pip install -v .), which compiles it"

_TYPES: dict[str, Any] = {
    "p": ctypes.c_void_p, "n": ctypes.c_int64, "q": ctypes.c_uint64, "i": ctypes.c_int, "u": ctypes.c_uint32,
    "f": ctypes.c_float, "c": ctypes.c_char, "s": ctypes.c_char_p, "-": None,
}  # fmt: skip
STRUCTURES = {
    "form": "from:n to:n planes:n padding:n factors:6f fill:3f table:p",
    "request": (
        "source:p nbytes:n height:n width:n box:4n size:2n window:4n mirrored:n to:p checkpoints:p checkpoint_bytes:n"
        " program:p steps:n sampling:n"
    ),
    "step": "code:i flags:i p:8f",
    "lmdb_tree": "address:p page_size:n depth:n last_page:q root:q",
    "lmdb_lookup": "tree:lmdb_tree prefix_size:n prefix:72c",
    "lmdb_value": "start:n size:n page:q where:n code:n",
    "lmdb_column": "prefix:s prefix_size:n width:n next:n nbytes:n",
    "lmdb_step": "page:q next:n nodes:n",
    "lmdb_walk": (
        "tree:lmdb_tree seen:p columns:p column_count:n records:n overflow:n ended:n level:n entries:n column:n last:n"
        " lowest:n path:32lmdb_step"
    ),
    "lmdb_row": "code:q a:q b:q c:q",
    "view": "top:n left:n height:n width:n stride:n mirrored:n top_of_mask:n left_of_mask:n",
    "shown": "rows:p columns:p height:n width:n image_height:n image_width:n",
}
"""Fields of the structures that Python and the engine share: each a name, and a letter of ``_TYPES`` or a structure,
after the number of elements of an array. In the order of ``packstore_engine_layout`` in ``api.c``."""
_FUNCTIONS = {
    "new": "i p",
    "free": "p -",
    "sizes": "ppnp -",
    "size": "pnnp i",
    "whole": "ppnnnnp i",
    "run": "ppnpnnp n",
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
    "segments": "pnpppppn i",
}
"""Types of the arguments and, after a space, of the result of each exported function: letters of ``_TYPES``."""
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
        library = ctypes.CDLL(str(path))
        # Its functions may take other arguments, and a wrong call would crash the process.
        if library.packstore_engine_interface() != _INTERFACE:
            return None, f"{path} is of another version of packstore: delete it and install packstore again"
        if (difference := _compare_layouts(library)) is not None:
            return None, f"{path} does not fit this packstore: {difference}; delete it and install packstore again"
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


def list_fields(name: str, **own: type[ctypes.Structure]) -> list[tuple[str, Any]]:
    """Returns the fields of a structure for :mod:`ctypes`. ``own`` are classes for structures inside it."""
    fields = []
    for label, count, kind in re.findall(r"(\w+):(\d*)(\w+)", STRUCTURES[name]):
        type_ = _TYPES.get(kind) or own.get(kind) or _make_structure(kind)
        fields.append((label, type_ * int(count) if count else type_))
    return fields


def find_words(name: str) -> dict[str, slice]:
    """Returns the words of 8 bytes that each field of a structure takes."""
    structure = _make_structure(name)
    fields = {label: getattr(structure, label) for label, _ in list_fields(name)}
    return {label: slice(at.offset // 8, (at.offset + at.size) // 8) for label, at in fields.items()}


@functools.cache
def _make_structure(name: str) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list_fields(name)})


def _compare_layouts(library: ctypes.CDLL) -> str | None:
    """Compares size and last field of each structure with the engine's; returns the first difference."""
    found = iter((ctypes.c_int64 * (2 * len(STRUCTURES))).in_dll(library, "packstore_engine_layout"))
    for name, size, last in zip(STRUCTURES, found, found, strict=True):
        structure = _make_structure(name)
        own = ctypes.sizeof(structure), getattr(structure, list_fields(name)[-1][0]).offset
        if (size, last) != own:
            return f"its struct {name} has {size} bytes, the last field at {last}, and here {own[0]}, at {own[1]}"
    return None


def _declare(library: Library, functions: dict[str, str]) -> Library:
    """Sets the types of arguments and results of a library's functions, and returns the library."""
    for name, types in functions.items():
        function = getattr(library, f"packstore_engine_{name}")
        *function.argtypes, function.restype = (_TYPES[letter] for letter in types if letter != " ")
    return library
