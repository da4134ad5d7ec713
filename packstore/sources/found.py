"""What a generator of a format yields: one image of the source, its split and its values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

_NO_VALUES: Mapping[str, Any] = MappingProxyType({})


class Found(NamedTuple):
    """One image that a format found in a source. The engine derives splits, classes, columns and the ledger.

    Attributes:
        image: Path of the image, relative to the folder of the dataset.
        split: Name of its split; ``""`` in a source without splits.
        values: Its other values by column; a missing value is left out. A class may be a name or a number. A value that
            is a file is an :class:`~packstore.sources.file_rows.InTree`.
        key: Key of the sample; None for the path of the image.
    """

    image: str
    split: str = ""
    values: Mapping[str, Any] = _NO_VALUES
    key: str | None = None
