"""Names of classes of arrays: in an array of texts, in attributes, or as the labels themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from packstore.sources.arrays.choosing import Choice, Chosen, column_name
from packstore.sources.base import SPLIT_ORDER
from packstore.sources.text_labels import LabelTexts, is_label_name, name_words

ATTRIBUTES = ("classes", "class_names", "label_names", "names")
"""Attributes that name classes."""

Texts = Callable[[Chosen], Iterator[list[str]]]
"""The texts of an array, some at a time. Raises :class:`OSError` or :class:`ValueError`."""


def parse_names(value: Any) -> tuple[str, ...] | None:
    """The names of classes that an attribute lists, or maps to numbers from 0 on; None for anything else."""
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
    names = tuple(_text(name) for name in value)
    return names if all(isinstance(name, str) and name for name in names) and len({*names}) == len(names) else None


def with_text_labels(choice: Choice, texts: Texts) -> tuple[Choice, tuple[str, ...] | None]:
    """A choice whose labels are an array of texts, where such an array certainly names classes; and their names.

    An array that is called as if it named classes, and names one a sample, is a column."""
    choice = _with_repeated_names(choice, texts)
    if any("label" in part.columns for part in choice.parts):
        return choice, None
    found, parts = LabelTexts(), []
    for part in choice.parts:
        names = [name for name, chosen in part.columns.items() if name != "image" and _may_label(chosen)]
        if len(names) > 1:
            return choice, None
        if not names:
            parts.append(part)
            continue
        label = part.columns[names[0]]
        try:
            for some in texts(label):
                found.add(set(some), len(some))
        except (OSError, ValueError):
            return choice, None
        rest = {name: chosen for name, chosen in part.columns.items() if name not in ("image", names[0])}
        parts.append(replace(part, columns={"image": part.columns["image"], "label": label, **rest}))
    order: list[str] = []
    if choice.classes is not None:
        file, info = choice.classes
        order = list(chain.from_iterable(texts(Chosen(file, info))))
    classes = found.classes(order=order if len({*order}) == len(order) else ())
    return (choice, None) if classes is None else (replace(choice, parts=tuple(parts), classes=None), classes)


def _with_repeated_names(choice: Choice, texts: Texts) -> Choice:
    if choice.classes is None or len(choice.parts) != 1:
        return choice
    (file, info), part = choice.classes, choice.parts[0]
    if info.shape[0] != part.length:
        return choice
    names = list(chain.from_iterable(texts(Chosen(file, info))))
    if len({*names}) == len(names):
        return choice
    columns = {**part.columns, column_name("_".join(name_words(info.name)), part.columns): Chosen(file, info)}
    return replace(choice, parts=(replace(part, columns=columns),), classes=None)


def _may_label(chosen: Chosen) -> bool:
    words = [word for word in name_words(chosen.info.name) if word not in SPLIT_ORDER]
    return chosen.info.what == "texts" and len(chosen.info.shape) == 1 and is_label_name(words)


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
