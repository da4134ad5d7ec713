"""Makes names of columns from names in other formats."""

from __future__ import annotations

import re
from collections.abc import Iterable

from packstore.core.fields import RESERVED

_LONGEST = 60


def make_column_name(name: str) -> str:
    """Converts ``name`` to the name of a column: ``fine_label`` for ``Fine label``.

    - Letters become lower case. Characters other than ASCII letters and digits become ``_``.
    - ``1`` becomes ``x1``, since a name begins with a letter.
    - A reserved name gets ``_`` at its end: ``key_``.
    - Names are cut at 60 characters.
    """
    name = re.sub(r"[^a-z0-9_]", "_", name.lower())[:_LONGEST]
    name = name if name[:1].isalpha() else f"x{name}"
    return f"{name}_" if name in RESERVED else name


def make_column_names(names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Makes a different column name for each of ``names``, and none that is in ``taken``. Returns the column names by
    the original names."""
    columns: dict[str, str] = {}
    used = set(taken)
    for name in names:
        own = make_column_name(name)
        while own in used:
            own += "_"
        used.add(own)
        columns[name] = own
    return columns
