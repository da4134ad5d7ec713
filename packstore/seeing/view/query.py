"""A query of the page, parsed from the parameters of an address: conditions on records, and their order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from packstore.core.errors import UsageError

SORTS = ("record", "key", "pixels", "bytes", "aspect", "width", "height")
"""Orders of records."""
MEASURES = ("width", "height", "pixels", "aspect", "bytes")
"""Measures that can be filtered by a range; both ends are included."""
NO_CLASS = -1
"""Class number that means records without a label."""

_LONGEST_TEXT = 200
_MOST_DIGITS = 18


@dataclass(frozen=True)
class Query:
    """Conditions that a record must all meet, and the order of the records. Only :meth:`parse` checks them.

    Attributes:
        split: Name of the split; None for all records.
        label: Class number, :data:`NO_CLASS` for no class; None for any.
        text: Text in the key, ignoring ASCII case; empty for any key.
        ranges: Measures to filter by: name from :data:`MEASURES`, lowest and highest value of each.
        kind: Kind of image, such as ``jpeg RGB``; None for any.
        mark: Finding, such as ``damaged``; None for any.
        sort: One of :data:`SORTS`.
        descending: Reverse the order.
    """

    split: str | None = None
    label: int | None = None
    text: str = ""
    ranges: tuple[tuple[str, float, float], ...] = ()
    kind: str | None = None
    mark: str | None = None
    sort: str = "record"
    descending: bool = False

    @property
    def needs_headers(self) -> bool:
        """True if the query needs the header of every image: for a range, a kind, or an order by size."""
        return bool(self.ranges) or self.kind is not None or self.sort not in ("record", "key")

    @property
    def needs_all(self) -> bool:
        """True if the query needs a value of every record: a header, a label or a key."""
        return self.needs_headers or self.label is not None or bool(self.text) or self.sort == "key"

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Query:
        """Parses the parameters of an address; ignores unknown ones.

        Raises :class:`UsageError` for an unknown order, a wrong number or range, and a text of more than 200 letters.
        """
        sort = given.get("sort") or "record"
        if sort not in SORTS:
            raise UsageError(f"sort should be one of {', '.join(SORTS)}, got {sort!r}")
        text = given.get("q", "")
        if len(text) > _LONGEST_TEXT:
            raise UsageError(f"a search should have at most {_LONGEST_TEXT} letters, got {len(text)}")
        ranges = tuple((name, *_parse_range(name, given[name])) for name in MEASURES if given.get(name))
        return cls(
            split=given.get("split") or None,
            label=parse_number("class", given["class"], least=NO_CLASS) if given.get("class") else None,
            text=text,
            ranges=ranges,
            kind=given.get("kind") or None,
            mark=given.get("mark") or None,
            sort=sort,
            descending=given.get("desc") == "1",
        )


def parse_number(name: str, text: str, least: int = 0) -> int:
    """Parses a whole number in an address. Raises :class:`UsageError` for other text, a number below ``least``, and
    more than 18 digits."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS) or int(text) < least:
        raise UsageError(f"{name} should be a whole number from {least}, got {text[:40]!r}")
    return int(text)


def _parse_range(name: str, text: str) -> tuple[float, float]:
    """Parses a range such as ``"10:20"``. A missing end is infinite. Raises :class:`UsageError` for other text.

    A range with its ends in the wrong order is accepted, and matches nothing.
    """
    low, colon, high = text.partition(":")
    try:
        ends = float(low or "-inf"), float(high or "inf")
    except ValueError:
        ends = math.nan, math.nan
    if not colon or len(text) > 2 * _MOST_DIGITS + 12 or any(map(math.isnan, ends)):
        raise UsageError(f"{name} should be from:to, such as 10:200, got {text[:40]!r}")
    return ends
