"""Matches the ids by which annotations name their images and classes."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import islice
from typing import Any

from packstore.core.errors import SourceError, printable

_NUMBER = re.compile(r"(-?(?:0|[1-9]\d{0,17}))(?:\.0+)?", re.ASCII)
_LARGEST_FLOAT = 1 << 53
_SHOWN = 3


def parse_id(value: Any) -> int | str | None:
    """Returns an id in the one form in which equal ids are equal: ``1`` for 1, 1.0, ``"1"`` and ``"1.0"``.

    Other texts stay, such as ``"007"``. Returns None for any other value.
    """
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        return int(match[1]) if match else value
    if isinstance(value, float):  # larger ones may have been rounded to the id of another image
        return int(value) if value.is_integer() and abs(value) <= _LARGEST_FLOAT else None
    return value if type(value) is int else None


def parse_image_id(where: str, value: Any, annotation: Any) -> int | str:
    """Returns the id of an annotation's image, as :func:`parse_id`. Raises :class:`SourceError` if it is no id.

    Args:
        where: The file, for the message.
        value: The value of ``image_id``.
        annotation: The annotation's own id, for the message.
    """
    image_id = parse_id(value)
    if image_id is None:
        raise SourceError(
            f"{where}: annotation {printable(f'{annotation!r:.40}')} has the image_id {printable(f'{value!r:.40}')}; "
            "expected a whole number or a text. Correct it, or remove this annotation"
        )
    return image_id


def check_most_match(where: str, name: str, unmatched: Collection[Any], total: int, known: Collection[Any]) -> None:
    """Raises :class:`SourceError` if most annotations of a file match nothing: their ids are then written differently.

    Args:
        where: The file, for the message.
        name: Name of the value with the id, ``image_id``.
        unmatched: The value of each annotation that matches nothing.
        total: Number of all annotations.
        known: All ids that exist.
    """
    if 2 * len(unmatched) <= total:
        return
    noun = name.removesuffix("_id")
    some = ", ".join(printable(f"{each!r:.40}") for each in islice(known, _SHOWN))
    there = f"the ids are {some}{', …' if len(known) > _SHOWN else ''}" if known else "there are none"
    raise SourceError(
        f"{where}: {len(unmatched):,} of {total:,} annotations have the {name} of no {noun}, such as "
        f"{printable(f'{next(iter(unmatched))!r:.40}')}; {there}. Correct the ids, or remove these annotations"
    )
