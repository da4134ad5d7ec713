"""The columns of tables that packstore exported, whose ``packstore.json`` says what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from packstore.core.column import Column
from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import SourceError
from packstore.core.export_manifest import MANIFEST_FILE, ExportManifest, StoredBytes
from packstore.core.fields import Bytes, Image, Images
from packstore.sources.base import Entry
from packstore.sources.exported_rows import ExportedRows
from packstore.sources.huggingface.features import (
    ArrayCells,
    Cells,
    Facts,
    TableColumn,
    file_lists,
    files,
    load_pyarrow,
)
from packstore.sources.huggingface.tables import TableSource


class ExportedTables(ExportedRows, TableSource):
    """Tables whose columns the export manifest gives."""

    def _ref_of(self, entry: Entry) -> Any:
        return entry.ref[1]

    def _with_values(self, entry: Entry, values: Any) -> Entry:
        return entry._replace(ref=(entry.ref[0], values))

    def _choose_columns(self, facts: Facts) -> list[TableColumn]:
        return _columns(self._first.schema, self.export_manifest)

    def _text_classes(self) -> None:
        return None

    def _objects(self) -> None:
        return None


def _columns(schema: Any, export_manifest: ExportManifest) -> list[TableColumn]:
    """The image and all columns that the tables hold. Raises :class:`SourceError` where one is not there."""
    held = [column for column in export_manifest.columns if column.name in export_manifest.held]
    missing = next((name for name in ("image", *export_manifest.held) if name not in schema.names), None)
    if missing is not None:
        raise SourceError(f"the tables have no column {missing!r}, which {MANIFEST_FILE} names")
    return [TableColumn("image", "image", Image(), files)] + [
        TableColumn(column.name, column.name, Images() if column.form == "files" else Bytes(), _cells_of(column))
        for column in held
    ]


def _cells_of(column: Column) -> Callable[[Any], Cells]:
    if column.form == "file":
        return files
    if column.form == "files":
        return file_lists
    if column.form in ("text", "bytes"):
        return _raw
    dtype = NUMPY_DTYPE[column.dtype]
    if column.kind == "fixed" and not column.shape:
        return lambda array: _numbers(array, dtype)
    return lambda array: _arrays(array, column)


def _raw(array: Any) -> Cells:
    """Bytes as they are, of text as well."""
    return ArrayCells(array, lambda scalar: StoredBytes(scalar.as_buffer()) if scalar.is_valid else None)


def _numbers(array: Any, dtype: np.dtype[Any]) -> Cells:
    if dtype == np.bool_ or array.type != _arrow(dtype):
        return ArrayCells(array, lambda scalar: scalar.as_py())
    # Not by way of Python's numbers, which change the bits of a NaN.
    values = np.frombuffer(array.buffers()[1], dtype)[array.offset :]
    return lambda row: values[row] if array[row].is_valid else None


def _arrow(dtype: np.dtype[Any]) -> Any:
    return load_pyarrow().from_numpy_dtype(dtype)


def _arrays(array: Any, column: Column) -> Cells:
    ragged = column.kind == "ragged"
    shape = (-1, *column.shape) if ragged else column.shape

    def numbers(scalar: Any) -> Any:
        values = scalar.values
        if values is None:
            return None
        while values.type.num_fields:
            values = values.flatten()
        if values.null_count:
            raise ValueError(f"{column.name}: {values.null_count} numbers of a list are null")
        found = values.to_numpy(zero_copy_only=False).reshape(shape)
        # Boxes are kept whatever they are, as they were in the store.
        as_it_lies = ragged and column.classes is None and found.dtype == NUMPY_DTYPE[column.dtype]
        return StoredBytes(found.tobytes()) if as_it_lies else found

    return ArrayCells(array, numbers)
