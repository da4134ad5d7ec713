"""Names of columns, of what other formats call them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from packstore.core.fields import RESERVED

_LONGEST = 60


def make_column_name(name: str) -> str:
    """``name`` as the name of a column: ``fine_label`` for ``fine label``, ``key_`` for ``key``."""
    name = re.sub(r"[^a-z0-9_]", "_", name.lower())[:_LONGEST]
    name = name if name[:1].isalpha() else f"x{name}"
    return f"{name}_" if name in RESERVED else name


def make_column_names(names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """A name of a column for each of ``names``, no two the same and none of ``taken``."""
    found: dict[str, str] = {}
    used = set(taken)
    for name in names:
        own = make_column_name(name)
        while own in used:
            own += "_"
        used.add(own)
        found[name] = own
    return found
