"""Chooses the columns of values whose names and types a format states: one rule for all formats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Array, Bytes, Field, Image, Json, Label, Text
from packstore.images.sniff import begins_like_image
from packstore.sources.names import make_column_names
from packstore.sources.values import LABEL_NAMES, infer_field, names_an_image

FILE, PIXELS, BYTES, TEXT, JSON, ANY = "file", "pixels", "bytes", "text", "json", "any"
"""Kinds of :class:`ValueType` that are no dtypes. The values of ``any`` decide their column."""
_PLAIN: dict[str, Field] = {FILE: Image(), PIXELS: Image("uint8"), TEXT: Text(), JSON: Json()}


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


def guess(name: str, type: ValueType, samples: Sequence[Any] = ()) -> Field:
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
