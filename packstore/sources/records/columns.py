"""Names of columns for what others call their fields."""

from __future__ import annotations

import re

from packstore.core.fields import RESERVED


def identifier(name: str) -> str:
    """The name of a column: lower case, with ``_`` for all but letters and digits."""
    name = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:56]
    name = name if name[:1].isalpha() else f"x{name}"
    return f"{name}_" if name in RESERVED else name
