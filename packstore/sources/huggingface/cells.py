"""Converts the values of Arrow's arrays to the form of a field.

Cells are a function of a row number, which returns the converted value of this row. A cell reader makes the cells of an
array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np

from packstore.core.errors import printable
from packstore.sources.huggingface.arrow_types import is_file_struct, is_list, load_pyarrow

Cells = Callable[[int], Any]
"""Function that returns the converted value of a row."""
CellReader = Callable[[Any], Cells]
"""Function that makes the cells of an array."""


class TableFile(NamedTuple):
    """Image or other file in a table.

    Attributes:
        data: Its bytes; None if the table holds only its path.
        path: Its path; None if it has none.
        address: Address of the bytes in memory, in the table's buffers; 0 if unknown.
    """

    data: bytes | None
    path: str | None
    address: int = 0


class ArrayCells:
    """Callable that takes a row's number, and converts the row of an array by a function of its Arrow scalar.

    Attributes:
        rows: Number of rows.
    """

    def __init__(self, array: Any, convert: Callable[[Any], Any]) -> None:
        self.rows = len(array)
        self._array, self._convert = array, convert

    def __call__(self, row: int) -> Any:
        return self._convert(self._array[row])


def python_cells(array: Any) -> Cells:
    """Returns a function of a row number: it reads the row as a plain Python value."""
    return ArrayCells(array, lambda scalar: scalar.as_py())


def label_cells(array: Any) -> Cells:
    """Returns a function of a row number: it reads the row as a class number.

    A number below 0 becomes None: an unknown class, as in test splits.
    """

    def number(scalar: Any) -> Any:
        value = scalar.as_py()
        return None if value is None or value < 0 else value

    return ArrayCells(array, number)


def class_name_reader(names: Sequence[str]) -> CellReader:
    """Returns a function of an array, which returns a function of a row number.

    The inner function converts the class name in the row to its number, and keeps None. It raises :class:`ValueError`
    for another name.
    """
    numbers: dict[str | None, int | None] = {name: number for number, name in enumerate(names)}
    numbers[None] = None

    def number(scalar: Any) -> int | None:
        name = scalar.as_py()
        if name not in numbers:
            raise ValueError(f"{printable(str(name))!r} is not one of the classes: its table has changed")
        return numbers[name]

    return lambda array: ArrayCells(array, number)


def converting_reader(convert: Callable[[Any], Any]) -> CellReader:
    """Returns a function of an array, which returns a function of a row number. The inner function reads the row as
    a value of JSON, and applies ``convert`` to it."""
    return lambda array: ArrayCells(array, lambda scalar: convert(_to_json(scalar)))


def json_cells(array: Any) -> Cells:
    """Returns a function of a row number: it reads the row as a value of JSON. Dates, times and decimals become
    texts."""
    return ArrayCells(array, _to_json)


def text_cells(array: Any) -> Cells:
    """Returns a function of a row number: it reads the row as a text. Dates and times have ISO format; null becomes
    None."""

    def text(scalar: Any) -> str | None:
        return None if (value := _to_json(scalar)) is None else str(value)

    return ArrayCells(array, text)


def vector_cells(array: Any) -> Cells:
    """Returns a function of a row number: it reads the list of numbers in the row as a NumPy array. Null becomes None.

    The function raises :class:`ValueError` for a null in a list.
    """

    def numbers(scalar: Any) -> Any:
        values = scalar.values
        if values is None:
            return None
        if values.null_count:
            raise ValueError(f"{values.null_count} of the {len(values)} numbers in a list are null")
        return values.to_numpy(zero_copy_only=False)

    return ArrayCells(array, numbers)


def array_reader(shape: Sequence[int], dtype: str) -> CellReader:
    """Returns a function that makes :class:`ArrayCells` of an Arrow array of nested lists.

    A cell is a NumPy array of ``shape`` and ``dtype``, or None for a null. Reading the cell raises :class:`ValueError`
    for lists of another size, for values of another type, and for a null in a list.
    """

    def numbers(scalar: Any) -> Any:
        value = scalar.as_py()
        try:
            cell = None if value is None else np.array(value, dtype).reshape(shape)
        except TypeError:
            raise ValueError(f"its lists hold a null, or other values than {dtype}") from None
        if cell is not None and cell.dtype.kind == "f" and np.isnan(cell).any() and _has_null(value):
            raise ValueError("its lists hold a null")  # of which NumPy makes NaN
        return cell

    return lambda array: ArrayCells(array, numbers)


def _has_null(values: Sequence[Any]) -> bool:
    """Tells if nested lists hold None."""
    return any(_has_null(each) if isinstance(each, list) else each is None for each in values)


def file_cells(array: Any) -> Cells:
    """Returns a function of a row number: it reads the row as a :class:`TableFile`. Callers give an ``array`` of the
    type of ``datasets.Image``; the type is not checked."""
    return _FileCells(array)


def file_list_cells(array: Any) -> Cells:
    """Returns a function of a row number: it reads the row as a list of :class:`TableFile`. Null becomes None.

    If the files are plain bytes, the list holds bytes.
    """

    def read_list(scalar: Any) -> list[Any] | None:
        if not scalar.is_valid:
            return None
        cells = file_cells(scalar.values) if is_file_struct(scalar.values.type) else python_cells(scalar.values)
        return [cells(row) for row in range(len(scalar.values))]

    return ArrayCells(array, read_list)


def first_file_cells(array: Any) -> Cells:
    """Returns a function of a row number: it reads the first file of the list in the row. An empty list and null
    become None."""
    cells = file_list_cells(array)
    return lambda row: next(iter(cells(row) or ()), None)


def later_files_cells(array: Any) -> Cells:
    """Returns a function of a row number: it reads the files after the first of the list in the row. Null becomes
    None."""
    cells = file_list_cells(array)
    return lambda row: None if (files := cells(row)) is None else files[1:]


class _FileCells(ArrayCells):
    """Callable that takes a row's number, and returns the row's :class:`TableFile`.

    Its address in memory tells linked stores the place of the bytes in the source.
    """

    def __init__(self, array: Any) -> None:
        super().__init__(array, lambda scalar: scalar)
        parts = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        self._data, self._paths = parts["bytes"], parts.get("path")
        width = {"binary": np.int32, "large_binary": np.int64}.get(str(self._data.type))
        _, offsets, data = self._data.buffers() if width is not None else (None, None, None)
        self._offsets = None if offsets is None or data is None else np.frombuffer(offsets, width)
        self._start = 0 if data is None else data.address

    def __call__(self, row: int) -> TableFile:
        path = None if self._paths is None else self._paths[row].as_py()
        data = self._data[row].as_py()
        if data is None or self._offsets is None:
            return TableFile(data, path)
        return TableFile(data, path, self._start + int(self._offsets[self._data.offset + row]))


def _to_json(scalar: Any) -> Any:
    """Converts an Arrow scalar to a value of JSON. Dates, times, decimals and UUIDs become texts.

    Raises :class:`ValueError` for a struct with a field twice.
    """
    try:
        return _plain_to_json(scalar.as_py())
    except ValueError:  # nanoseconds, which Python's dates and times lack
        types = load_pyarrow("pyarrow.types")
        if types.is_map(scalar.type):
            return [[_to_json(item[0]), _to_json(item[1])] for item in scalar.values]
        if is_list(scalar.type):
            return [_to_json(item) for item in scalar.values]
        if not types.is_struct(scalar.type):
            plain = str(scalar.cast("string"))
            return f"{plain} ns" if plain.lstrip("-").isdigit() else plain.replace(" ", "T")
        if len({*(names := [field.name for field in scalar.type])}) < len(names):
            raise
        return {name: _to_json(scalar[name]) for name in names}


def _plain_to_json(value: Any) -> Any:
    """Converts a plain Python value of Arrow to JSON. Dates and times get ISO format.

    Durations, decimals and UUIDs become texts. Keeps other values.
    """
    if isinstance(value, dict):
        return {str(name): _plain_to_json(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_to_json(each) for each in value]
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    return str(value) if isinstance(value, (timedelta, Decimal, UUID)) else value
