"""Parses the meanings that a user gives to columns of a table: ``--column image=COL``."""

from __future__ import annotations

from collections.abc import Sequence

from packstore.core.errors import UsageError, printable
from packstore.sources.encodings import find_encoding

ROLES = ("image", "label", "labels", "boxes", "split", "keypoints", "keep", "encoding", "key")
GEO = "keep=geo"
"""Value of ``--column`` that adds the position of images on the ground, see :class:`.wrapped.GeoSource`."""
KEY = "key="
"""Beginning of the option that says which dot ends keys of WebDataset: ``--column key=last-dot``."""


def check_columns(given: object) -> tuple[str, ...]:
    """Checks the option ``columns``, a text or several, and returns a tuple. Raises :class:`UsageError` for other
    types, for an unknown encoding, and where :func:`parse_columns` does."""
    texts = (given,) if isinstance(given, str) else given
    if not isinstance(texts, (tuple, list)) or not all(isinstance(each, str) for each in texts):
        raise UsageError(f"columns should be texts such as 'image=photo', got {given!r:.80}")
    parse_columns(texts)
    find_encoding(texts)
    return tuple(texts)


def parse_columns(given: Sequence[str]) -> dict[str, list[str]]:
    """Parses texts of ``--column``, such as ``image=COL`` or ``boxes=X1,Y1,X2,Y2``; returns the columns by role. Raises
    :class:`UsageError` for an unknown or repeated role, and for a wrong number of columns."""
    by_role: dict[str, list[str]] = {}
    for each in given:
        role, equals, columns = each.partition("=")
        names = [name.strip() for name in columns.split(",")]
        if role not in ROLES or not equals or not all(names) or role in by_role:
            raise UsageError(
                f"--column {printable(each)!r}: expected {', '.join(f'{role}=COL' for role in ROLES)}, each once; "
                "boxes=X1,Y1,X2,Y2 and keypoints=X1,Y1,X2,Y2,… have several columns"
            )
        if role in ("image", "label", "split", "encoding", "key") and len(names) > 1:
            raise UsageError(f"--column {printable(each)!r}: {role} is one column")
        if (role == "boxes" and len(names) not in (1, 4)) or (role == "keypoints" and len(names) % 2):
            raise UsageError(f"--column {printable(each)!r}: boxes are one column or four, keypoints pairs of x and y")
        by_role[role] = names
    return by_role
