"""Checks that the values of a batch's columns fit each other and their types, before any of it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import StoreError
from packstore.core.manifest import Column


def check_batch(columns: Sequence[Column], values: Mapping[str, Any], image_sizes: Sequence[int], first: int) -> None:
    """Checks that the values of each record fit together:

    - Ragged values fit their shape or width.
    - Class numbers of a ragged column have a class.
    - A missing value is empty or zero.
    - Parallel columns, such as boxes and their labels, have equally many rows.

    Raises :class:`StoreError` naming the first record that does not fit. For a class number without a class, it names
    only the column.

    Args:
        columns: Columns of the store, ``image`` first.
        values: Values by column, as :meth:`packstore.stores.builder.spools.ColumnSpool.convert_values` returns them.
        image_sizes: Bytes of each image.
        first: Number of the first record, for messages.
    """
    by_name = {column.name: column for column in columns}
    parallel = {column.parallel for column in columns}
    sizes: dict[str, NDArray[np.int64]] = {}
    for column in columns:
        if column.kind == "ragged" and (_restricts_bytes(column) or column.name in parallel):
            given = image_sizes if column.name == "image" else list(map(len, values[column.name]))
            sizes[column.name] = np.array(given, np.int64)
    for column in columns:
        if column.name in sizes:
            _check_ragged(column, values, sizes[column.name], first)
        if column.nullable:
            filled = sizes[column.name] > 0 if column.kind == "ragged" else _nonzero_mask(values[column.name])
            what = f"has a value of {column.name!r}, which {column.valid_name!r} says is missing"
            _raise_for_first(filled & ~values[column.valid_name], first, what)
        if column.parallel is not None:
            boxes = by_name[column.parallel]
            rows, wanted = (sizes[c.name] // c.record_nbytes for c in (column, boxes))
            what = f"has {{}} rows of {column.name!r}, and {{}} of {boxes.name!r}"
            _raise_for_first(rows != wanted, first, what, rows, wanted)


def _restricts_bytes(column: Column) -> bool:
    """Returns whether :func:`check_batch` has something to check in a ragged column: layout, width, classes or missing
    values.

    False for keys and image files.
    """
    return column.layout is not None or column.record_nbytes > 1 or column.classes is not None or column.nullable


def _check_ragged(column: Column, values: Mapping[str, Any], sizes: NDArray[np.int64], first: int) -> None:
    """Raises :class:`StoreError` if values of a ragged column do not fit their shapes, widths or classes."""
    where = "" if column.name == "image" else f" of {column.name!r}"
    width = column.record_nbytes
    if column.layout is not None:
        shapes = values[column.shape_name]
        wrong = (shapes.astype(np.int64).prod(axis=1) * width != sizes) | (shapes < 0).any(axis=1)
        wrong |= shapes.astype(np.float64).prod(axis=1) > 2**62  # the int64 product may have overflowed
        _raise_for_first(wrong, first, f"has {{}} bytes{where}, not shape {{}}", sizes, shapes)
    elif width > 1:
        _raise_for_first(sizes % width != 0, first, f"has {{}} bytes{where}, not a multiple of {width}", sizes)
    if column.classes is not None:
        numbers: NDArray[np.int64] = np.frombuffer(b"".join(values[column.name]), NUMPY_DTYPE[column.dtype])
        check_classes(column, numbers)


def check_classes(column: Column, numbers: NDArray[Any]) -> None:
    """Raises :class:`StoreError` if one of ``numbers`` is negative, or not below the column's number of classes."""
    count = len(column.classes or ())
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < count:
        raise StoreError(
            f"column {column.name!r} has {count} classes (0 to {count - 1}), "
            f"got labels from {numbers.min()} to {numbers.max()}"
        )


def _nonzero_mask(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Returns a mask of the values of a fixed column that have a nonzero byte."""
    flat = values.reshape(len(values), -1)
    return np.any(flat.view(np.uint8), axis=1) if flat.size else np.zeros(len(values), np.bool_)


def _raise_for_first(wrong: NDArray[np.bool_], first: int, what: str, *values: NDArray[Any]) -> None:
    """Raises :class:`StoreError` for the first record that is ``wrong``, if any.

    ``what``: template of the message, formatted with the record's ``values``.
    """
    places = np.flatnonzero(wrong)
    if len(places):
        i = int(places[0])
        raise StoreError(f"record {first + i} {what.format(*(each[i] for each in values))}")
