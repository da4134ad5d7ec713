"""Reads exports of packstore as TFRecord (:mod:`packstore.exports.tfds`), by the ``packstore.json`` beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.column import Column
from packstore.core.columns import NUMPY_DTYPE
from packstore.core.export_manifest import StoredBytes
from packstore.core.protobuf import PACKED, Feature, Message, read_example
from packstore.sources.base import SourceOptions
from packstore.sources.exported_rows import ExportedRows
from packstore.sources.records.examples import ExampleSource, measure_largest_value


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
            features = read_example(message)
            self.facts.parsed += 1
            return measure_largest_value(features), _get_bytes("key", features, message).decode(
                "utf-8", "surrogateescape"
            )
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

    def decode_example(self, features: Mapping[str, Feature], message: Message) -> dict[str, Any]:
        """Decodes the image and the values of the exported columns; leaves out values that are missing. Raises
        :class:`ValueError` for a missing image, and for a value that does not fit its column."""
        image = self.export_manifest.manifest.image
        files = image.layout is None or self.export_manifest.image == "png"
        values = {"image": _get_bytes("image", features, message) if files else _decode_array(image, features, message)}
        for column in self._held_columns:
            valid = features.get(column.valid_name) if column.nullable else None
            if valid is None or valid.numbers(message).any():
                values[column.name] = _decode_column(column, features, message)
        return values


def _decode_column(column: Column, features: Mapping[str, Feature], message: Message) -> Any:
    """Decodes the value of a column to an array, a list of files, or :class:`StoredBytes`. Raises :class:`ValueError`
    for a missing feature, or another type of values."""
    if column.layout is not None or column.kind == "fixed":
        return _decode_array(column, features, message)
    if column.form == "numbers":
        return StoredBytes(_decode_numbers(column, features, message).tobytes())
    if column.form == "files":
        feature = _get_feature(column.name, features)
        if feature.kind not in ("bytes", ""):
            raise ValueError(f"{column.name}: found numbers, expected files")
        return feature.bytes(message) if feature.kind else []
    return StoredBytes(_get_bytes(column.name, features, message))


def _decode_array(column: Column, features: Mapping[str, Feature], message: Message) -> Any:
    """Decodes the array of a column. Raises :class:`ValueError` if its numbers do not fit its dtype or shape."""
    if column.kind == "ragged":
        shape = _get_feature(f"{column.name}/shape", features).numbers(message).tolist()
        values = np.frombuffer(_get_bytes(f"{column.name}/value", features, message), NUMPY_DTYPE[column.dtype])
        return values.reshape([int(n) for n in shape])
    if column.layout is not None:
        values = np.frombuffer(_get_bytes(column.name, features, message), NUMPY_DTYPE[column.dtype])
    else:
        values = _decode_numbers(column, features, message)
    return values.reshape(column.shape)


def _decode_numbers(column: Column, features: Mapping[str, Feature], message: Message) -> Any:
    """Decodes the numbers of a column to its dtype. A dtype in :data:`PACKED` has bytes in the example. Raises
    :class:`ValueError` for another type of values, and for numbers beyond an integer dtype."""
    feature, dtype = _get_feature(column.name, features), NUMPY_DTYPE[column.dtype]
    if column.dtype in PACKED:
        return np.frombuffer(_get_bytes(column.name, features, message), dtype)
    if feature.kind == "bytes":
        raise ValueError(f"{column.name}: found bytes, expected numbers")
    numbers = feature.numbers(message)
    values = numbers.view(dtype) if column.dtype == "uint64" and numbers.dtype == np.int64 else numbers.astype(dtype)
    if column.dtype != "uint64" and dtype.kind in "biu" and not np.array_equal(values, numbers):
        raise ValueError(f"{column.name}: found numbers beyond {column.dtype}")
    return values


def _get_feature(name: str, features: Mapping[str, Feature]) -> Feature:
    """Returns a feature by name. Raises :class:`ValueError` if it is missing."""
    if name not in features:
        raise ValueError(f"it has no feature {name}")
    return features[name]


def _get_bytes(name: str, features: Mapping[str, Feature], message: Message) -> bytes:
    """Returns the only value of a feature of bytes. Raises :class:`ValueError` for any other number or type of
    values."""
    feature = _get_feature(name, features)
    values = feature.bytes(message) if feature.kind == "bytes" else []
    if len(values) != 1:
        raise ValueError(f"{name}: found {len(values)} values, expected one of bytes")
    return values[0]
