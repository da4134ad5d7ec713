"""Types of values other than numbers: text, JSON, bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from packstore.core.column_types.base import Column, ColumnType, Field, unfit_error
from packstore.core.column_types.forms import Buffer, Form
from packstore.core.errors import StoreError
from packstore.core.plainjson import load_json


@dataclass(frozen=True, slots=True)
class Bytes(Field):
    """Bytes of any length."""

    optional: bool = False


class BytesType(ColumnType):
    """Bytes of any length. Base of all types whose values are Python objects instead of numbers."""

    name = "bytes"
    field: ClassVar[type[Field] | None] = Bytes
    form: ClassVar[Form] = "bytes"
    large = True
    is_object = True
    meaning = "bytes"
    extension = "bin"

    def to_stored(self, column: Column, value: Any) -> bytes:
        """Returns the bytes. Raises :class:`ValueError` for a value that is not bytes-like."""
        return to_bytes(column, value)

    def from_stored(self, column: Column, raw: Any, shape: tuple[int, ...] | None) -> Any:
        """Returns the bytes, copied."""
        return bytes(raw)

    def show(self, column: Column, value: Any) -> dict[str, Any]:
        """Returns the first 64 bytes in hexadecimal as ``value``, and the number of bytes as ``nbytes``."""
        return {"as": "bytes", "value": value[:64].hex(" "), "nbytes": len(value)}


@dataclass(frozen=True, slots=True)
class Text(Field):
    """A string."""

    optional: bool = False


class TextType(BytesType):
    """A string in UTF-8. Bytes that are not UTF-8 are kept as surrogates."""

    name = "text"
    field = Text
    form = "text"
    large = False
    meaning = "text"
    extension = "txt"

    def to_stored(self, column: Column, value: Any) -> bytes:
        """Encodes a string as UTF-8; a surrogate becomes the byte that it stands for.

        Raises :class:`ValueError` for other types, and for surrogates that stand for no byte.
        """
        if not isinstance(value, str):
            raise unfit_error(column, "a str", value)
        try:
            return value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise ValueError(f"a value of column {column.name!r} cannot be stored: {error}") from None

    def from_stored(self, column: Column, raw: Any, shape: tuple[int, ...] | None) -> str:
        """Decodes UTF-8; other bytes become surrogates."""
        return bytes(raw).decode("utf-8", "surrogateescape")

    def show(self, column: Column, value: Any) -> dict[str, Any]:
        """Returns the first 16,000 characters as ``value``."""
        from packstore.core.column_types.shown import show_text

        return {"as": "text", **show_text(value)}


@dataclass(frozen=True, slots=True)
class Json(Field):
    """Any JSON value.

    Attributes:
        optional: A sample may have no value.
        shapes: The value has shapes in pixels of the image, which turn with it: COCO's annotations or segmentations. In
            a column ``polygons``: YOLO's polygons, in fractions of the sides.
    """

    optional: bool = False
    shapes: bool = False

    def column(self, name: str) -> Column:
        """Creates the field's column. With ``shapes``, it has a frame."""
        frame = "stored" if self.shapes else None
        return Column(name, "ragged", "uint8", type="json", nullable=self.optional, frame=frame)


class JsonType(BytesType):
    """A JSON value in UTF-8. None is a value like any other."""

    name = "json"
    field = Json
    form = "text"
    large = False
    none_is_value = True
    meaning = "JSON"
    extension = "json"

    def to_stored(self, column: Column, value: Any) -> bytes:
        """Formats a value as JSON. Raises :class:`ValueError` for a value that JSON cannot hold, such as NaN."""
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"a value of column {column.name!r} cannot be JSON: {error}") from None

    def from_stored(self, column: Column, raw: Any, shape: tuple[int, ...] | None) -> Any:
        """Parses JSON. Raises :class:`StoreError` if the JSON is damaged."""
        try:
            return load_json(bytes(raw), "is not JSON")
        except ValueError as error:
            raise StoreError(f"a value of column {column.name!r} {error}") from None

    def show(self, column: Column, value: Any) -> dict[str, Any]:
        """Returns the first 16,000 characters of indented JSON as ``value``."""
        from packstore.core.column_types.shown import show_text

        return {"as": "json", **show_text(json.dumps(value, ensure_ascii=False, indent=1))}

    def find_hidden_boxes(self, column: Column, values: Iterable[Buffer]) -> bool:
        """Tells if a value has boxes or points under a usual key, such as ``bbox`` or ``xmin``, at any depth."""
        from packstore.core.column_types.hidden_boxes import find_hidden_boxes

        return find_hidden_boxes(column.name, values)


def to_bytes(column: Column, value: Any) -> bytes:
    """Returns a bytes-like value as ``bytes``. Raises :class:`ValueError` for another type."""
    if not isinstance(value, Buffer):
        raise unfit_error(column, "bytes", value)
    return bytes(value)


TEXT, JSON, BYTES = TextType(), JsonType(), BytesType()
