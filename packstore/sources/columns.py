"""Names and fields of columns: one rule for values whose names and types a format states."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.errors import SourceError, printable
from packstore.core.fields import RESERVED, Array, Bytes, Field, Image, Json, Label, Text
from packstore.images.sniff import begins_like_image
from packstore.sources.values import LABEL_NAMES, infer_field, names_an_image

FILE, PIXELS, BYTES, TEXT, JSON, ANY = "file", "pixels", "bytes", "text", "json", "any"
"""Kinds of :class:`ValueType` that are no dtypes. The values of ``any`` decide their column."""
_PLAIN: dict[str, Field] = {FILE: Image(), PIXELS: Image("uint8"), TEXT: Text(), JSON: Json()}
FILE_COLUMNS = (
    *("file", "filename", "file_name", "image", "image_name", "img"),
    *("path", "filepath", "file_path", "image_path"),
)
LABEL_COLUMNS = ("label", "class", "category", "target", "class_name", "label_name", "classname", "labels", "y")
CAPTION_COLUMNS = ("caption", "captions", "text", "comment", "description", "sentence")
_LONGEST = 60
_WORDS = frozenset(["y", "label", "labels", "class", "category", "target", "targets"])
_MAX_CLASSES, _LONGEST_NAME = 1 << 16, 200


class ValueType(NamedTuple):
    """Type of a value, as its format states it.

    Attributes:
        kind: ``file`` of an image, ``pixels``, ``bytes``, ``text``, ``json``, ``any``; or the dtype of numbers.
        shape: Shape of the numbers; -1 for any length.
        encoding: The format's own name for the type.
    """

    kind: str
    shape: tuple[int, ...] = ()
    encoding: Any = None


def guess_field(name: str, type: ValueType, samples: Sequence[Any] = ()) -> Field:
    """Chooses the field of a value by its type, and by ``samples``, its values in the first samples.

    - Files and pixels are images, also bytes whose first sample begins like an image.
    - A single whole number with the name of a label is a label.
    - Numbers whose shape varies in more than the first axis are JSON.
    - For ``any``, the samples decide, see :func:`~packstore.sources.values.infer_field`.

    Raises :class:`ValueError` for ``any`` without samples, and for samples that no field holds.
    """
    if type.kind == BYTES:
        return Image() if len(samples) and begins_like_image(bytes(samples[0][:16])) else Bytes()
    if type.kind == ANY:
        if not len(samples):
            raise ValueError("no value can be read")
        return infer_field(name, samples)
    if type.kind in _PLAIN:
        return _PLAIN[type.kind]
    if -1 in type.shape[1:]:
        return Json()
    if type.shape[:1] == (-1,):
        return Array(type.kind, type.shape[1:], ragged=True)
    if not type.shape and "int" in type.kind and name.lower() in LABEL_NAMES:
        return Label()
    return Array(type.kind, type.shape)


def choose_main_image(path: Path, images: Sequence[str], names: Iterable[str]) -> str:
    """Returns the main image among the names of images: the first with a usual name, else the first. Raises
    :class:`SourceError`, with the ``names`` of all values, if there are no images."""
    if not images:
        raise SourceError(f"{printable(str(path))} holds no images, but {', '.join(map(printable, names))}")
    return next((name for name in images if names_an_image(name)), images[0])


def name_columns(path: Path, names: Iterable[str], main: str) -> dict[str, str]:
    """Returns the column of each value; ``image`` for the main image. Raises :class:`SourceError` if another value is
    called ``image``."""
    columns = make_column_names(names)
    if "image" in columns.values() and columns[main] != "image":
        raise SourceError(f"{printable(str(path))}: 'image' is not an image, but {printable(main)} is")
    return {**columns, main: "image"}


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

        Returns None if there are no texts, if a text cannot be a class, or if more than half of the rows have different
        texts. Any share may differ if the texts are ``coded``: stored as numbers of a dictionary's entries.
        """
        if not self._names or (2 * len(self._names) > self.rows and not coded):
            return None
        return tuple(order) if self._names.issubset(order) else tuple(sorted(self._names))
