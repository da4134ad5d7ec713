"""What the page asks for: which records, in which order. Parsed from the parameters of an address."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from packstore.core.errors import UsageError

SORTS = ("record", "key", "pixels", "bytes", "aspect", "width", "height")
"""What records can be sorted by."""
MEASURES = ("width", "height", "pixels", "aspect", "bytes")
"""What records can be filtered by, as a range from and to, both included."""
NO_CLASS = -1
"""The class number that asks for records without a label."""

_LONGEST_TEXT = 200
_MOST_DIGITS = 18


@dataclass(frozen=True)
class Query:
    """Records, by conditions that all hold.

    Attributes:
        split: Of this split; None for all.
        label: With this class number, :data:`NO_CLASS` for none; None for any.
        text: With this in their keys, in capitals or not.
        ranges: By name of :data:`MEASURES`, from and to.
        kind: With images of this kind, such as ``jpeg RGB``.
        mark: With this finding, such as ``damaged``.
        sort: One of :data:`SORTS`.
        descending: Largest first.
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
        """Whether every image's header has to be read for it."""
        return bool(self.ranges) or self.kind is not None or self.sort not in ("record", "key")

    @property
    def needs_all(self) -> bool:
        """Whether something of every record has to be read for it."""
        return self.needs_headers or self.label is not None or bool(self.text) or self.sort == "key"

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Query:
        """The query in the parameters of an address. Raises :class:`UsageError` for values that cannot be."""
        sort = given.get("sort") or "record"
        if sort not in SORTS:
            raise UsageError(f"sort should be one of {', '.join(SORTS)}, got {sort!r}")
        text = given.get("q", "")
        if len(text) > _LONGEST_TEXT:
            raise UsageError(f"a search should have at most {_LONGEST_TEXT} letters, got {len(text)}")
        ranges = tuple((name, *_range(name, given[name])) for name in MEASURES if given.get(name))
        return cls(
            split=given.get("split") or None,
            label=whole("class", given["class"], least=NO_CLASS) if given.get("class") else None,
            text=text,
            ranges=ranges,
            kind=given.get("kind") or None,
            mark=given.get("mark") or None,
            sort=sort,
            descending=given.get("desc") == "1",
        )


def whole(name: str, text: str, least: int = 0) -> int:
    """A whole number in an address. Raises :class:`UsageError` for anything else, and for one that is too large."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS) or int(text) < least:
        raise UsageError(f"{name} should be a whole number from {least}, got {text[:40]!r}")
    return int(text)


def _range(name: str, text: str) -> tuple[float, float]:
    """``"10:20"``; either end may be left out."""
    low, colon, high = text.partition(":")
    try:
        ends = float(low or "-inf"), float(high or "inf")
    except ValueError:
        ends = math.nan, math.nan
    if not colon or len(text) > 2 * _MOST_DIGITS + 12 or any(map(math.isnan, ends)):
        raise UsageError(f"{name} should be from:to, such as 10:200, got {text[:40]!r}")
    return ends
