"""The seek index of JPEG files that are kept as they are: checkpoints from which crops can begin to decode.

The engine makes it and uses it (``engine/checkpoints.c``); the page *formats* of the guide has its layout. It follows
from the file alone, so whoever writes a record makes it anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from packstore.core.column import SEEK_INDEX
from packstore.core.errors import UsageError
from packstore.core.manifest import Column
from packstore.images.engine import Engine, engine_problem, get_engine


def has_index(asked: bool | None, encoding: str) -> bool:
    """Whether a store of this encoding is packed with a seek index; ``asked`` None for yes wherever the engine is.

    Raises:
        UsageError: One was asked for, of an encoding that has none, or without the engine.
    """
    if asked and encoding != "original":
        raise UsageError(f"a seek index is for the encoding original, not {encoding}; leave the index out")
    if asked:
        _need_engine()
    return asked if asked is not None else encoding == "original" and get_engine() is not None


def make_indexes(files: Sequence[Any]) -> list[bytes]:
    """Makes the seek index of each image file, empty for one that has none.

    Raises:
        UsageError: There is no engine.
    """
    return _need_engine().make_indexes(files)


def index_values(columns: Iterable[Column], files: Sequence[Any]) -> dict[str, list[bytes]]:
    """Makes the values of the hidden column for records with these files; nothing if a store has no such column."""
    return {SEEK_INDEX.name: make_indexes(files)} if any(c.name == SEEK_INDEX.name for c in columns) else {}


def _need_engine() -> Engine:
    engine = get_engine()
    if engine is None:
        raise UsageError(f"a store with a seek index needs packstore's JPEG engine: {engine_problem()}")
    return engine
