"""Makes names of columns from names in other formats."""

from __future__ import annotations

import re
from collections.abc import Iterable

from packstore.core.fields import RESERVED

_LONGEST = 60


def make_column_name(name: str) -> str:
    """Converts ``name`` to the name of a column, in lower case and with ``_`` for other than letters and digits:
    ``fine_label`` for ``Fine label``, ``key_`` for the reserved ``key``, ``x1`` for ``1``. Cuts names at 60
    characters."""
    name = re.sub(r"[^a-z0-9_]", "_", name.lower())[:_LONGEST]
    name = name if name[:1].isalpha() else f"x{name}"
    return f"{name}_" if name in RESERVED else name


def make_column_names(names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Makes a column name for each of ``names``, all different from each other and from those ``taken``. Returns them
    by the original names."""
    found: dict[str, str] = {}
    used = set(taken)
    for name in names:
        own = make_column_name(name)
        while own in used:
            own += "_"
        used.add(own)
        found[name] = own
    return found
