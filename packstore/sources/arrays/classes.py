"""Names of classes for arrays: from an array of texts, from attributes, or from labels that are texts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import printable
from packstore.sources.arrays.choosing import ArrayRoles, SplitArrays, unused_column_name
from packstore.sources.arrays.stored import BlockCache, ColumnArray, decode_text
from packstore.sources.columns import LabelTexts, is_label_name, name_words
from packstore.sources.splits import SPLIT_ORDER

_MAX_CLASSES = 1 << 20
_TEXTS = 4096
_log = logging.getLogger(__name__)


def parse_class_names(value: Any) -> tuple[str, ...] | None:
    """Parses an attribute with names of classes; None for any other value, for no names, and for repeated names.

    - a list or an array
    - a mapping from numbers to names, or from names to numbers
    - JSON of one of these
    """
    if isinstance(value, (str, bytes)):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if isinstance(value, np.ndarray):
        value = value.reshape(-1).tolist()
    if isinstance(value, Mapping):
        numbered = {str(number): name for number, name in value.items()}
        if not all(str(number) in numbered for number in range(len(numbered))):
            numbered = {str(number): name for name, number in value.items()}
        value = [numbered.get(str(number)) for number in range(len(value))]
    if not isinstance(value, list) or not value:
        return None
    names = tuple(_decode_name(name) for name in value)
    return names if all(isinstance(name, str) and name for name in names) and len({*names}) == len(names) else None


def assign_text_labels(roles: ArrayRoles, blocks: BlockCache) -> tuple[ArrayRoles, tuple[str, ...] | None]:
    """Makes an array of texts the labels, if no array has class numbers. In its part it must be the only one with a
    name for labels, and its texts must certainly be classes. Reads all its texts; unreadable texts are no labels.

    Returns the new roles, and the names of the classes. The names are None if no texts become the labels. Before that,
    an array of names of classes becomes a column, as :func:`_add_repeated_names` decides. Raises :class:`OSError` or
    :class:`ValueError` if the names of classes cannot be read.
    """
    roles = _add_repeated_names(roles, blocks)
    if any("label" in part.columns for part in roles.parts):
        return roles, None
    texts, parts = LabelTexts(), []
    for part in roles.parts:
        names = [name for name, chosen in part.columns.items() if name != "image" and _may_be_labels(chosen)]
        if len(names) > 1:
            return roles, None
        if not names:
            parts.append(part)
            continue
        label = part.columns[names[0]]
        try:
            for some in _read_texts(blocks, label):
                texts.add_texts(set(some), len(some))
        except (OSError, ValueError):
            return roles, None
        rest = {name: chosen for name, chosen in part.columns.items() if name not in ("image", names[0])}
        parts.append(replace(part, columns={"image": part.columns["image"], "label": label, **rest}))
    order: list[str] = []
    if roles.classes is not None:
        file, info = roles.classes
        order = list(chain.from_iterable(_read_texts(blocks, ColumnArray(file, info))))
    classes = texts.decide_classes(order=order if len({*order}) == len(order) else ())
    return (roles, None) if classes is None else (replace(roles, parts=tuple(parts), classes=None), classes)


def _add_repeated_names(roles: ArrayRoles, blocks: BlockCache) -> ArrayRoles:
    """Makes the array of names of classes a column if it names the class of each sample.

    It does if it has as many texts as there are samples, and some are equal. If it does not, or if there are several
    parts, the roles are returned unchanged. Raises :class:`OSError` or :class:`ValueError` if the texts cannot be read.
    """
    if roles.classes is None or len(roles.parts) != 1:
        return roles
    (file, info), part = roles.classes, roles.parts[0]
    if info.shape[0] != part.length:
        return roles
    names = list(chain.from_iterable(_read_texts(blocks, ColumnArray(file, info))))
    if len({*names}) == len(names):
        return roles
    columns = {
        **part.columns,
        unused_column_name("_".join(name_words(info.name)), part.columns): ColumnArray(file, info),
    }
    return replace(roles, parts=(replace(part, columns=columns),), classes=None)


def _may_be_labels(chosen: ColumnArray) -> bool:
    """Tells if an array has a text for each sample, and a name for labels."""
    words = [word for word in name_words(chosen.info.name) if word not in SPLIT_ORDER]
    return chosen.info.content == "texts" and len(chosen.info.shape) == 1 and is_label_name(words)


def find_class_names(shown: str, roles: ArrayRoles, blocks: BlockCache) -> tuple[str, ...] | None:
    """Finds the names of the classes of numeric labels: in an array of texts, else in attributes.

    Attributes may be those of the labels, the images or a group above them. Reads all labels. Tries the first names
    alone, and returns None if these do not fit the labels. If these certainly are names of classes, also logs a
    warning; ``shown`` is the source's path in it. Raises :class:`OSError` or :class:`ValueError` if labels or texts
    cannot be read.
    """
    labels = (_read_labels(part, blocks) for part in roles.parts)
    most = max((int(each[np.isfinite(each)].max(initial=0)) for each in labels), default=0)
    for origin, names, is_certain in _list_possible_names(roles, blocks):
        if names is not None and most < len(names) and (is_certain or most + 1 == len(names)):
            return names
        if is_certain:
            _log.warning("%s: %s does not name the classes of the labels; they are packed as numbers alone", shown,
                         origin)  # fmt: skip
            return None
    return None


def _list_possible_names(roles: ArrayRoles, blocks: BlockCache) -> Iterator[tuple[str, tuple[str, ...] | None, bool]]:
    """Yields possible names of classes, each with three values:

    - their origin, for messages
    - the names, None if unusable
    - True if they certainly are classes

    Yields nothing for an array of more than 1,048,576 texts. Raises :class:`OSError` or :class:`ValueError` if texts
    cannot be read.
    """
    if roles.classes is not None:
        file, info = roles.classes
        if not 0 < info.shape[0] <= _MAX_CLASSES:
            return
        texts = list(chain.from_iterable(_read_texts(blocks, ColumnArray(file, info))))
        yield info.shown, tuple(texts) if all(texts) and len({*texts}) == len(texts) else None, True
        return
    for part in roles.parts:
        for role in ("label", "image"):
            if (chosen := part.columns.get(role)) is None or "label" not in part.columns:
                continue
            place: str | None = chosen.info.name
            while place is not None:
                attributes = blocks.open_file(chosen.file).read_attributes(place)
                for name, value in attributes.items():
                    origin = printable(f"the attribute {name} of {place or 'the file'}")
                    names = parse_class_names(value)
                    is_certain = names is not None and (name != "names" or place == part.columns["label"].info.name)
                    yield origin, names, is_certain
                place = place.rpartition("/")[0] if place else None


def _read_texts(blocks: BlockCache, chosen: ColumnArray) -> Iterator[list[str]]:
    """Yields all texts of an array, in lists of up to 4096. Raises :class:`OSError` or :class:`ValueError` if they
    cannot be read or decoded."""
    array, length = blocks.open_file(chosen.file).arrays[chosen.info.name], chosen.info.shape[0]
    for start in range(0, length, _TEXTS):
        yield [decode_text(text) for text in array.read_rows(0, start, min(start + _TEXTS, length))]


def _read_labels(part: SplitArrays, blocks: BlockCache) -> NDArray[Any]:
    """Reads all class numbers of a part, a group of arrays that belong together; empty without labels. Raises
    :class:`OSError` or :class:`ValueError` if they cannot be read."""
    chosen = part.columns.get("label")
    if chosen is None or not chosen.length:
        return np.zeros(0, np.int64)
    return blocks.open_file(chosen.file).arrays[chosen.info.name].read_all()


def _decode_name(value: Any) -> Any:
    """Decodes bytes as UTF-8, with a replacement for invalid ones; returns any other value unchanged."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
