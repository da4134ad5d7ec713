"""Columns of tables that packstore exported; its ``packstore.json`` declares them."""

from __future__ import annotations

from typing import Any

import numpy as np

from packstore.core.column import Column
from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import SourceError
from packstore.core.export_manifest import MANIFEST_FILE, ExportManifest, StoredBytes
from packstore.core.fields import Bytes, Image, Images
from packstore.sources.base import Entry
from packstore.sources.exported_rows import ExportedRows
from packstore.sources.huggingface.arrow_types import load_pyarrow
from packstore.sources.huggingface.cells import ArrayCells, CellReader, Cells, file_cells, file_list_cells, python_cells
from packstore.sources.huggingface.columns import TableColumn, TableFacts
from packstore.sources.huggingface.tables import HfTableSource


class ExportedTables(ExportedRows, HfTableSource):
    """Tables that packstore exported. The export manifest, ``packstore.json``, lists their columns."""

    def _row_ref(self, entry: Entry) -> Any:
        """Returns the table's own ``ref``, without the record's number."""
        return entry.ref[1]

    def _replace_ref(self, entry: Entry, values: Any) -> Entry:
        """Replaces the table's own ``ref`` by values; keeps the record's number."""
        return entry._replace(ref=(entry.ref[0], values))

    def _choose_columns(self, facts: TableFacts) -> list[TableColumn]:
        """Returns the image and the columns that the export manifest lists as held by the tables. Ignores ``facts``.
        Raises :class:`SourceError` if one is missing."""
        return _declare_held_columns(self._first_batch.schema, self.export_manifest)

    def _find_text_classes(self) -> None:
        """Returns None: the export manifest has the classes."""

    def _find_objects(self) -> None:
        """Returns None: the export manifest has the columns of boxes."""


def _declare_held_columns(schema: Any, export_manifest: ExportManifest) -> list[TableColumn]:
    """Returns the image and all columns that the tables should hold. Raises :class:`SourceError` if one is missing."""
    held = [column for column in export_manifest.columns if column.name in export_manifest.held]
    missing = next((name for name in ("image", *export_manifest.held) if name not in schema.names), None)
    if missing is not None:
        raise SourceError(f"the tables have no column {missing!r}, which {MANIFEST_FILE} names")
    return [TableColumn("image", "image", Image(), file_cells)] + [
        TableColumn(
            column.name, column.name, Images() if column.form == "files" else Bytes(), _choose_cell_reader(column)
        )
        for column in held
    ]


def _choose_cell_reader(column: Column) -> CellReader:
    """Returns a function of an array, which returns a function of a row number. The inner function returns the row's
    value as the store holds it."""
    if column.form == "file":
        return file_cells
    if column.form == "files":
        return file_list_cells
    if column.form in ("text", "bytes"):
        return _raw_cells
    dtype = NUMPY_DTYPE[column.dtype]
    if column.kind == "fixed" and not column.shape:
        return lambda array: _number_cells(array, dtype)
    return lambda array: _array_cells(array, column)


def _raw_cells(array: Any) -> Cells:
    """Returns a function of a row number: it reads the bytes of the row, texts included. Null becomes None."""
    return ArrayCells(array, lambda scalar: StoredBytes(scalar.as_buffer()) if scalar.is_valid else None)


def _number_cells(array: Any, dtype: np.dtype[Any]) -> Cells:
    """Returns a function of a row number: it reads the row as a number. Null becomes None.

    If the array has this dtype, the number is NumPy's and keeps all bits. Otherwise it is Python's.
    """
    if dtype == np.bool_ or array.type != load_pyarrow().from_numpy_dtype(dtype):
        return python_cells(array)
    # Conversion to Python's numbers would change the bits of a NaN.
    values = np.frombuffer(array.buffers()[1], dtype)[array.offset :]
    return lambda row: values[row] if array[row].is_valid else None


def _array_cells(array: Any, column: Column) -> Cells:
    """Returns a function of a row number: it reads the nested lists in the row as a NumPy array. Null becomes None.

    A ragged column without classes becomes stored bytes, if the lists have the column's dtype. The function raises
    :class:`ValueError` for nulls in a list, and for lists of another shape.
    """
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
        cell = values.to_numpy(zero_copy_only=False).reshape(shape)
        # Boxes are kept unchecked, as they were in the store.
        is_stored_form = ragged and column.classes is None and cell.dtype == NUMPY_DTYPE[column.dtype]
        return StoredBytes(cell.tobytes()) if is_stored_form else cell

    return ArrayCells(array, numbers)
