"""Types of numbers: class numbers, boxes, keypoints, and arrays of any kind."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.column_types.base import Column, ColumnType, unfit_error
from packstore.core.dtypes import NUMPY_DTYPE, bfloat16_bits
from packstore.core.errors import StoreError


class ArrayType(ColumnType):
    """Numbers of any dtype. All records have the same shape, or each has any number of rows. Base of the types of
    numbers."""

    name = "array"

    def fits(self, column: Column) -> bool:
        """Allows any kind, dtype and shape without a layout."""
        return column.layout is None

    def to_stored(self, column: Column, value: Any) -> bytes | NDArray[Any]:
        """Converts numbers to an array of the column's dtype, or to its bytes if the column is ragged.

        Raises :class:`ValueError` for a wrong type or shape, and for values that the column does not allow.
        """
        array = to_numbers(column, value)
        if column.kind == "fixed":
            if array.shape != column.shape:
                raise unfit_error(column, f"shape {column.shape}", value)
        else:
            array = self.check_shape(column, array, value)
        self.check_values(column, array)
        return array.tobytes() if column.kind == "ragged" else array

    def check_shape(self, column: Column, array: NDArray[Any], value: Any) -> NDArray[Any]:
        """Returns the array of a ragged value if its shape is ``(n, *column.shape)``, else raises :class:`ValueError`.

        Gives an empty array the shape ``(0, *column.shape)``.
        """
        array = array.reshape(0, *column.shape) if array.shape == (0,) else array
        if array.ndim != 1 + len(column.shape) or array.shape[1:] != column.shape:
            raise unfit_error(column, f"shape (n, {', '.join(map(str, column.shape))})", value)
        return array

    def check_values(self, column: Column, array: NDArray[Any]) -> None:
        """Raises :class:`ValueError` if the numbers of a value are impossible for the type. By default allows all."""

    def from_stored(self, column: Column, raw: Any, shape: tuple[int, ...] | None) -> Any:
        """Returns the array of a stored value, read-only if it shares memory with ``raw``.

        Raises :class:`StoreError` if the bytes of a ragged value do not fit the shape.
        """
        if column.kind == "fixed":
            return np.asarray(raw)
        if len(raw) % column.record_nbytes:
            raise StoreError(
                f"a value of column {column.name!r} has {len(raw)} bytes, not a multiple of {column.record_nbytes}"
            )
        flat: NDArray[Any] = np.frombuffer(raw, NUMPY_DTYPE[column.dtype])
        wanted = (len(raw) // column.record_nbytes, *column.shape) if shape is None else shape
        if math.prod(wanted) != flat.size or min(wanted) < 0:
            raise StoreError(f"a value of column {column.name!r} has {flat.size} elements, not {wanted}")
        return (flat if flat.flags.aligned else flat.copy()).reshape(wanted)


class LabelType(ArrayType):
    """A class number. If the classes have names, refuses a number without a class."""

    name = "label"
    has_classes = True
    meaning = "numbers, without class names"
    extension = "cls"

    def fits(self, column: Column) -> bool:
        """Allows one int64 a record."""
        return (column.kind, column.dtype, column.shape, column.layout) == ("fixed", "int64", (), None)

    def check_values(self, column: Column, array: NDArray[Any]) -> None:
        """Raises :class:`ValueError` for a number without a class. Allows any number if the classes have no names."""
        _check_classes(column, array)

    def from_stored(self, column: Column, raw: Any, shape: tuple[int, ...] | None) -> Any:
        """Returns the class number as an ``int``."""
        return int(raw)


class LabelsType(ArrayType):
    """Any number of class numbers. If the classes have names, refuses a number without a class."""

    name = "labels"
    has_classes = True
    goes_with_boxes = True
    meaning = "class numbers"

    def fits(self, column: Column) -> bool:
        """Allows any number of int64 a record."""
        return (column.kind, column.dtype, column.shape, column.layout) == ("ragged", "int64", (), None)

    def check_values(self, column: Column, array: NDArray[Any]) -> None:
        """Raises :class:`ValueError` for a number without a class. Allows any number if the classes have no names."""
        _check_classes(column, array)


class BoxesType(ArrayType):
    """Boxes: left, top, right, bottom.

    Refuses numbers that are not finite, and boxes with left > right or top > bottom.
    """

    name = "boxes"
    moves = True
    rows_are_objects = True
    coordinates = ("xyxy",)
    meaning = "left, top, right, bottom in pixels"

    def fits(self, column: Column) -> bool:
        """Allows any number of rows of four float32."""
        return (column.kind, column.dtype, column.shape, column.layout) == ("ragged", "float32", (4,), None)

    def check_values(self, column: Column, array: NDArray[Any]) -> None:
        """Raises :class:`ValueError` for an impossible box. Allows boxes without area, and boxes outside the image."""
        good = np.isfinite(array).all(1) & (array[:, :2] <= array[:, 2:]).all(1)
        if not good.all():
            row = int(good.argmin())
            expected = "finite numbers" if not np.isfinite(array[row]).all() else "left <= right and top <= bottom"
            raise ValueError(f"column {column.name!r}: box {row} is {array[row].tolist()}; expected {expected} (xyxy)")


class KeypointsType(ArrayType):
    """Points: x, y, and perhaps visibility. Allows any numbers."""

    name = "keypoints"
    moves = True
    goes_with_boxes = True
    coordinates = ("xy", "xyv")
    meaning = "points"

    def fits(self, column: Column) -> bool:
        """Allows float32 rows whose last dimension is 2 or 3."""
        good = 1 <= len(column.shape) <= 2 and column.shape[-1] in (2, 3)
        return good and (column.kind, column.dtype, column.layout) == ("ragged", "float32", None)


def _check_classes(column: Column, array: NDArray[Any]) -> None:
    """Raises :class:`ValueError` for a class number without a class. Allows any number if classes have no names."""
    if column.classes is not None and array.size:
        least, most = int(array.min()), int(array.max())
        if least < 0 or most >= len(column.classes):
            found = least if least < 0 else most
            raise ValueError(f"column {column.name!r} has {len(column.classes)} classes, numbered from 0; got {found}")


def to_numbers(column: Column, value: Any) -> NDArray[Any]:
    """Converts ``value`` to a contiguous array of the column's dtype, of any shape. Rounds floats to a smaller dtype.

    Raises :class:`ValueError` for values that are no numbers, and for numbers out of the dtype's range. Integer columns
    take no floats.
    """
    if hasattr(value, "detach"):  # a tensor of torch, which is not imported here
        value = value.detach().cpu()
        value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
    dtype = NUMPY_DTYPE[column.dtype]
    try:
        given = np.asarray(value)
    except (ValueError, TypeError, OverflowError):
        raise unfit_error(column, f"numbers of {column.dtype}", value) from None
    kind = "f" if column.dtype == "bfloat16" else dtype.kind
    taken = {"b": "b", "i": "biu", "u": "biu", "f": "biuf"}[kind]
    if given.size and given.dtype.kind not in taken:
        raise unfit_error(column, f"numbers of {column.dtype}", value)
    with np.errstate(over="ignore", invalid="ignore"):
        if column.dtype == "bfloat16" and given.dtype != dtype:
            array = bfloat16_bits(given.astype(np.float32))
            lost = (array & 0x7FFF) == 0x7F80
        else:
            array = np.ascontiguousarray(given, dtype)
            lost = np.isinf(array) if kind == "f" else array != given
        if given.size and bool((lost & np.isfinite(given)).any()):
            raise ValueError(f"column {column.name!r} has dtype {column.dtype}: some values are out of its range")
    return array.reshape(given.shape)  # ascontiguousarray makes a scalar one-dimensional


ARRAY, LABEL, LABELS, BOXES, KEYPOINTS = ArrayType(), LabelType(), LabelsType(), BoxesType(), KeypointsType()
