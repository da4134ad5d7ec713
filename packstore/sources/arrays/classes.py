"""Names of classes for arrays: from an array of texts, from attributes, or from labels that are texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from packstore.sources.arrays.choosing import ArrayRoles, ColumnArray, unused_column_name
from packstore.sources.base import SPLIT_ORDER
from packstore.sources.text_labels import LabelTexts, is_label_name, name_words

ATTRIBUTES = ("classes", "class_names", "label_names", "names")
"""Attributes that name classes."""

TextReader = Callable[[ColumnArray], Iterator[list[str]]]
"""Reads the texts of an array, some at a time. Raises :class:`OSError` or :class:`ValueError`."""


def parse_class_names(value: Any) -> tuple[str, ...] | None:
    """Parses an attribute with names of classes: a list, an array, a mapping from numbers to names or back, or JSON of
    these. Returns None for any other value, for empty and for repeated names."""
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


def assign_text_labels(roles: ArrayRoles, texts: TextReader) -> tuple[ArrayRoles, tuple[str, ...] | None]:
    """Makes an array of texts the labels, if no array has class numbers, and the texts are certainly classes.

    Returns the new roles and the names of the classes. Returns None instead of names if no array becomes the labels, or
    its texts cannot be read. An array with a name for classes becomes a column if it has a text for each sample, and
    texts repeat. Raises :class:`OSError` or :class:`ValueError` if such an array cannot be read.
    """
    roles = _add_repeated_names(roles, texts)
    if any("label" in part.columns for part in roles.parts):
        return roles, None
    found, parts = LabelTexts(), []
    for part in roles.parts:
        names = [name for name, chosen in part.columns.items() if name != "image" and _may_be_labels(chosen)]
        if len(names) > 1:
            return roles, None
        if not names:
            parts.append(part)
            continue
        label = part.columns[names[0]]
        try:
            for some in texts(label):
                found.add_texts(set(some), len(some))
        except (OSError, ValueError):
            return roles, None
        rest = {name: chosen for name, chosen in part.columns.items() if name not in ("image", names[0])}
        parts.append(replace(part, columns={"image": part.columns["image"], "label": label, **rest}))
    order: list[str] = []
    if roles.classes is not None:
        file, info = roles.classes
        order = list(chain.from_iterable(texts(ColumnArray(file, info))))
    classes = found.decide_classes(order=order if len({*order}) == len(order) else ())
    return (roles, None) if classes is None else (replace(roles, parts=tuple(parts), classes=None), classes)


def _add_repeated_names(roles: ArrayRoles, texts: TextReader) -> ArrayRoles:
    """Makes the array of names of classes a column instead, if it has a text for each sample and texts repeat; else
    returns the roles unchanged. Raises :class:`OSError` or :class:`ValueError` if the texts cannot be read."""
    if roles.classes is None or len(roles.parts) != 1:
        return roles
    (file, info), part = roles.classes, roles.parts[0]
    if info.shape[0] != part.length:
        return roles
    names = list(chain.from_iterable(texts(ColumnArray(file, info))))
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


def _decode_name(value: Any) -> Any:
    """Decodes bytes as UTF-8, replacing undecodable ones; returns any other value unchanged."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
