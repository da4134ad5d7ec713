"""Seek indexes of JPEG files that are stored unchanged: checkpoints from which a crop can be decoded.

The engine writes and reads them (``engine/checkpoints.c``); the guide's page *formats* describes the layout. An index
depends on the file alone, so it is recomputed whenever a record is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from packstore.core.column import SEEK_INDEX
from packstore.core.errors import UsageError
from packstore.core.manifest import Column
from packstore.images.engine import engine_problem, get_engine


def wants_index(asked: bool | None, encoding: str) -> bool:
    """Tells if a store of this encoding gets a seek index.

    ``asked``: the user's wish. None: image files get one if the engine is available.

    Raises:
        UsageError: ``asked`` is True, and the encoding has no index.
        EngineError: ``asked`` is True, and the engine is missing.
    """
    if asked and encoding != "original":
        raise UsageError(f"a seek index is for the encoding original, not {encoding}; leave the index out")
    if asked:
        get_engine()
    return asked if asked is not None else encoding == "original" and engine_problem() is None


def make_indexes(files: Sequence[Any]) -> list[bytes]:
    """Computes the seek index of each image file; empty bytes for a file without one.

    Raises:
        EngineError: The engine is missing.
    """
    return get_engine().make_indexes(files)


def index_values(columns: Iterable[Column], files: Sequence[Any]) -> dict[str, list[bytes]]:
    """Computes the values of the seek index column, by its name. Empty if ``columns`` have no seek index.

    Raises:
        EngineError: The engine is missing.
    """
    return {SEEK_INDEX.name: make_indexes(files)} if any(c.name == SEEK_INDEX.name for c in columns) else {}
