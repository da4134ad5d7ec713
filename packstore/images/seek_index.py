"""Seek indexes of JPEG files that are stored unchanged: checkpoints from which a crop can be decoded.

The engine writes and reads them (``engine/checkpoints.c``); the guide's page *formats* describes the layout. An index
depends on the file alone, so it is recomputed whenever a record is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from packstore.core.columns import SEEK_INDEX
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


def reads_gray(columns: Iterable[Column]) -> bool:
    """Tells if the files of the column ``image`` are read as gray. Then their indexes also have lengths of chroma."""
    return any(column.name == "image" and column.pixels.channels == 1 for column in columns)


def make_indexes(files: Sequence[Any], columns: Iterable[Column]) -> list[bytes]:
    """Computes the seek index of each image file of a store with these columns; empty bytes for a file without one.

    Raises:
        EngineError: The engine is missing.
    """
    return get_engine().make_indexes(files, reads_gray(columns))


def index_values(columns: Iterable[Column], files: Sequence[Any]) -> dict[str, list[bytes]]:
    """Computes the values of the seek index column, by its name. Empty if ``columns`` have no seek index.

    Raises:
        EngineError: The engine is missing.
    """
    columns = tuple(columns)
    has_index = any(column.name == SEEK_INDEX.name for column in columns)
    return {SEEK_INDEX.name: make_indexes(files, columns)} if has_index else {}
