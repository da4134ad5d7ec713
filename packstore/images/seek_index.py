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
from packstore.images.engine import engine_problem, get_engine


def has_index(asked: bool | None, encoding: str) -> bool:
    """Whether a store of this encoding is packed with a seek index; ``asked`` None for yes if the engine is there.

    Raises:
        UsageError: One was asked for, of an encoding that has none.
        EngineError: One was asked for, and the engine is missing.
    """
    if asked and encoding != "original":
        raise UsageError(f"a seek index is for the encoding original, not {encoding}; leave the index out")
    if asked:
        get_engine()
    return asked if asked is not None else encoding == "original" and engine_problem() is None


def make_indexes(files: Sequence[Any]) -> list[bytes]:
    """Makes the seek index of each image file, empty for one that has none.

    Raises:
        EngineError: The engine is missing.
    """
    return get_engine().make_indexes(files)


def index_values(columns: Iterable[Column], files: Sequence[Any]) -> dict[str, list[bytes]]:
    """Makes the values of the hidden column for records with these files; nothing if a store has no such column."""
    return {SEEK_INDEX.name: make_indexes(files)} if any(c.name == SEEK_INDEX.name for c in columns) else {}
