"""Reads exports of packstore as TFRecord (:mod:`packstore.exports.tfds`), by the ``packstore.json`` beside them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.column import Column
from packstore.core.columns import NUMPY_DTYPE
from packstore.core.export_manifest import StoredBytes
from packstore.core.protobuf import PACKED, Message
from packstore.sources.base import SourceOptions
from packstore.sources.exported_rows import ExportedRows
from packstore.sources.records.examples import Example, ExampleSource, measure_largest_value


class ExportedTfds(ExportedRows, ExampleSource):
    """Source of TFRecord shards that packstore exported; the feature ``key`` has the keys."""

    kind = "tfds"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self.path = path  # for the export manifest
        super().__init__(path, options, self.list_shards())

    def index_record(self, number: int, place: int, message: Message) -> tuple[int, str | None]:
        """Returns the size of the image and the key. For an invalid record, returns the size of the record and None.
        Counts the example, but collects no facts: the export manifest has the columns."""
        try:
            example = Example(message)
            self.facts.parsed += 1
            key = example.only_bytes("key").decode("utf-8", "surrogateescape")
            return measure_largest_value(example.features), key
        except ValueError:
            return message.size, None

    @cached_property
    def has_keys(self) -> bool:
        """Always True: every exported record has a key."""
        return True

    @cached_property
    def _held_columns(self) -> Sequence[Column]:
        """Columns whose values are in the examples, not in other files of the export."""
        return [column for column in self.columns_at_rest if column.name in self.export_manifest.held]

    def decode_example(self, example: Example) -> dict[str, Any]:
        """Decodes the image and the values of the exported columns; leaves out values that are missing. Raises
        :class:`ValueError` for a missing image, and for a value that does not fit its column."""
        image = self.export_manifest.manifest.image
        files = image.layout is None or self.export_manifest.image == "png"
        values = {"image": example.only_bytes("image") if files else _decode_array(image, example)}
        for column in self._held_columns:
            valid = example.features.get(column.valid_name) if column.nullable else None
            if valid is None or valid.numbers(example.message).any():
                try:
                    values[column.name] = _decode_column(column, example)
                except ValueError as error:
                    raise ValueError(f"{column.name}: {error}") from error
        return values


def _decode_column(column: Column, example: Example) -> Any:
    """Decodes the value of a column to an array, a list of files, or :class:`StoredBytes`. Raises :class:`ValueError`
    for a missing feature, or another type of values."""
    if column.layout is not None or column.kind == "fixed":
        return _decode_array(column, example)
    if column.form == "numbers":
        return StoredBytes(_decode_numbers(column, example).tobytes())
    return example.byte_values(column.name) if column.form == "files" else StoredBytes(example.only_bytes(column.name))


def _decode_array(column: Column, example: Example) -> NDArray[Any]:
    """Decodes the array of a column. Raises :class:`ValueError` if its numbers do not fit its dtype or shape."""
    if column.kind == "ragged":
        shape = [int(n) for n in example.numbers(f"{column.name}/shape").tolist()]
        return np.frombuffer(example.only_bytes(f"{column.name}/value"), NUMPY_DTYPE[column.dtype]).reshape(shape)
    if column.layout is not None:
        return np.frombuffer(example.only_bytes(column.name), NUMPY_DTYPE[column.dtype]).reshape(column.shape)
    return _decode_numbers(column, example).reshape(column.shape)


def _decode_numbers(column: Column, example: Example) -> NDArray[Any]:
    """Decodes the numbers of a column to its dtype. A dtype in :data:`PACKED` has bytes in the example. Raises
    :class:`ValueError` for another type of values, and for numbers beyond an integer dtype."""
    if column.dtype in PACKED:
        return np.frombuffer(example.only_bytes(column.name), NUMPY_DTYPE[column.dtype])
    return example.numbers(column.name, NUMPY_DTYPE[column.dtype].name)
