"""Recognises columns of texts that name the class of each sample, in tables and arrays."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

_WORDS = frozenset(["y", "label", "labels", "class", "category", "target", "targets"])
_MAX_CLASSES, _LONGEST_NAME = 1 << 16, 200


def name_words(name: str) -> list[str]:
    """Splits a name into words and numbers, in lower case: ``trainX_2`` into ``train``, ``x``, ``2``."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return [word.lower() for word in re.findall(r"[A-Za-z]+|\d+", parted)]


def is_label_name(words: Sequence[str]) -> bool:
    """Tells if the words of a column's name say that it has labels: ``label``, ``class_name`` …"""
    return not _WORDS.isdisjoint(words) and _WORDS.union(["name"]).issuperset(words)


class LabelTexts:
    """Collects the different texts of a column, counts rows, and decides if the texts are classes. Classes are at most
    65,536 texts of 1 to 200 characters each."""

    def __init__(self) -> None:
        self.rows = 0
        self._names: set[str] | None = set()

    def add_texts(self, texts: Iterable[str], rows: int) -> None:
        """Adds the different texts of ``rows`` rows. If a text cannot be a class, or there are too many, drops all
        texts and ignores further ones."""
        self.rows += rows
        if self._names is not None:
            self._names.update(texts)
            if len(self._names) > _MAX_CLASSES or not all(0 < len(name) <= _LONGEST_NAME for name in self._names):
                self._names = None

    def decide_classes(self, *, coded: bool = False, order: Collection[str] = ()) -> tuple[str, ...] | None:
        """Returns the names of the classes: all of ``order`` if it contains every text, else the sorted texts.

        Returns None if there are no texts, or if a text cannot be a class. Also returns None if more than half of the
        rows have different texts. If ``coded``, any share may differ: the texts are stored as numbers of a
        dictionary's entries.
        """
        if not self._names or (2 * len(self._names) > self.rows and not coded):
            return None
        return tuple(order) if self._names.issubset(order) else tuple(sorted(self._names))
