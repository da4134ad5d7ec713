"""Types of numbers: class numbers, boxes, keypoints, and arrays of any kind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index as as_index
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.column_types.base import Column, ColumnType, Field, unfit_error
from packstore.core.column_types.forms import NUMPY_DTYPE, RowFaults, bfloat16_bits
from packstore.core.errors import ManifestError, StoreError


class ArrayType(ColumnType):
    """Numbers of any dtype. All records have the same shape, or each has any number of rows. Base of the types of
    numbers."""

    name = "array"
    stored: ClassVar[tuple[str, str, tuple[int, ...]] | None] = None

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
        # An empty list has no second dimension.
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
        # A value may begin at any byte of a memory map.
        return (flat if flat.flags.aligned else flat.copy()).reshape(wanted)


@dataclass(frozen=True, slots=True)
class Label(Field):
    """A class, as number or name.

    Attributes:
        classes: Class names by number; None if the numbers have no names.
        optional: A sample may have no label.
    """

    classes: Sequence[str] | None = None
    optional: bool = False

    def column(self, name: str) -> Column:
        classes = _class_names(self.classes)
        return Column(name, "fixed", "int64", classes=classes, type="label", nullable=self.optional)


class _ClassesType(ArrayType):
    """Base of types of class numbers, which refuse a number without a class."""

    has_classes = True

    def check_values(self, column: Column, array: NDArray[Any]) -> None:
        """Raises :class:`ValueError` for a number without a class. Allows any number if the classes have no names."""
        if column.classes is not None and array.size:
            least, most = int(array.min()), int(array.max())
            if least < 0 or most >= len(column.classes):
                number = least if least < 0 else most
                raise ValueError(
                    f"column {column.name!r} has {len(column.classes)} classes, numbered from 0; got {number}"
                )


class LabelType(_ClassesType):
    """A class number."""

    name = "label"
    stored = ("fixed", "int64", ())
    field = Label
    meaning = "numbers, without class names"
    extension = "cls"

    def from_stored(self, column: Column, raw: Any, shape: tuple[int, ...] | None) -> Any:
        """Returns the class number as an ``int``."""
        return int(raw)

    def show(self, column: Column, value: Any) -> dict[str, Any]:
        """Returns the class number as ``value``."""
        return {"as": "classes", "value": int(value)}


@dataclass(frozen=True, slots=True)
class Labels(Field):
    """A list of classes, as numbers or names.

    Attributes:
        classes: Class names by number, as in :class:`Label`.
        of: Name of the boxes column, if there is one class for each box; False if the classes do not describe boxes.
            None decides by the first samples. If each has as many classes as boxes, the classes describe the boxes,
            provided that there is only one boxes column. If only some have as many, that is an error.
        optional: A sample may have no list.
    """

    classes: Sequence[str] | None = None
    of: str | bool | None = None
    optional: bool = False

    def column(self, name: str) -> Column:
        return Column(
            name, "ragged", "int64", classes=_class_names(self.classes), type="labels", nullable=self.optional,
            parallel=boxes_name(self.of),
        )  # fmt: skip


class LabelsType(_ClassesType):
    """Any number of class numbers."""

    name = "labels"
    stored = ("ragged", "int64", ())
    field = Labels
    goes_with_boxes = True
    meaning = "class numbers"

    def show(self, column: Column, value: Any) -> dict[str, Any]:
        """Returns the class numbers as ``value``."""
        return super().show(column, value) | {"as": "classes"}


@dataclass(frozen=True, slots=True)
class Boxes(Field):
    """Boxes: float32 ``(n, 4)`` in pixels of the image.

    Attributes:
        coordinates: ``xyxy``: left, top, right, bottom.
        optional: A sample may have no value. This differs from a value without boxes.
    """

    coordinates: str = "xyxy"
    optional: bool = False

    def column(self, name: str) -> Column:
        optional, coordinates = self.optional, self.coordinates
        return Column(name, "ragged", "float32", (4,), type="boxes", nullable=optional, coordinates=coordinates)


_OUTSIDE = 1.0
"""Pixels by which a box may extend beyond its image: conventions differ by that much."""


class BoxesType(ArrayType):
    """Boxes: left, top, right, bottom.

    Refuses numbers that are not finite, and boxes with left > right or top > bottom.
    """

    name = "boxes"
    stored = ("ragged", "float32", (4,))
    field = Boxes
    moves = True
    rows_are_objects = True
    coordinates = ("xyxy",)
    meaning = "left, top, right, bottom in pixels"
    drawn_as = "boxes"
    drawn_by_default = True
    layer = 1
    faults: ClassVar[Mapping[str, str]] = {
        "box_empty": "a box without area",
        "box_inverted": "a box that ends before it begins, or is not finite",
        "box_outside": "a box that extends beyond its image",
    }

    def check_values(self, column: Column, array: NDArray[Any]) -> None:
        """Raises :class:`ValueError` for an impossible box. Allows boxes without area, and boxes outside the image."""
        good = np.isfinite(array).all(1) & (array[:, :2] <= array[:, 2:]).all(1)
        if not good.all():
            row = int(good.argmin())
            expected = "finite numbers" if not np.isfinite(array[row]).all() else "left <= right and top <= bottom"
            raise ValueError(f"column {column.name!r}: box {row} is {array[row].tolist()}; expected {expected} (xyxy)")

    def name_checks(self, sizes_known: bool) -> str:
        """Names the check of boxes, and the part of the check that needs sizes of images."""
        return "boxes" if sizes_known else "boxes (not their right and lower ends: no image was read)"

    def find_faults(self, column: Column, rows: NDArray[Any], sizes: NDArray[np.int32] | None) -> Iterator[RowFaults]:
        """Yields boxes that are inverted or not finite, empty, or more than a pixel outside their image.

        Right and lower ends are compared with the size of the image if that is known.
        """
        low, high = rows[:, :2], rows[:, 2:]
        finite = np.isfinite(rows).all(1)
        inverted = ~finite | (low > high).any(1)
        outside = finite & (low < -_OUTSIDE).any(1)
        if sizes is not None and len(rows):
            limits = sizes[:, ::-1].astype(np.float32)
            # Zeros are sizes that are unknown.
            outside |= finite & (limits > 0).all(1) & (high > limits + _OUTSIDE).any(1)
        yield RowFaults("box_inverted", inverted)
        yield RowFaults("box_empty", ~inverted & (low == high).any(1))
        yield RowFaults("box_outside", outside, depends_on_size=True)


@dataclass(frozen=True, slots=True)
class Keypoints(Field):
    """Points: float32 ``(n, k)`` in pixels of the image.

    Attributes:
        k: 2 for x, y; 3 for x, y and visibility.
        of: Name of the boxes column to which the points belong, as in :class:`Labels`.
        points: Number of points of each object, for arrays ``(n, points, k)``; None for ``(n, k)``.
        optional: A sample may have no value.
    """

    k: int = 2
    of: str | bool | None = None
    points: int | None = None
    optional: bool = False

    def column(self, name: str) -> Column:
        coordinates = {2: "xy", 3: "xyv"}.get(self.k, "")
        shape = (self.k,) if self.points is None else (as_index(self.points), self.k)
        return Column(
            name, "ragged", "float32", shape, type="keypoints", nullable=self.optional,
            coordinates=coordinates, parallel=boxes_name(self.of),
        )  # fmt: skip


class KeypointsType(ArrayType):
    """Points: x, y, and perhaps visibility. Allows any numbers."""

    name = "keypoints"
    field = Keypoints
    moves = True
    goes_with_boxes = True
    coordinates = ("xy", "xyv")
    meaning = "points"
    drawn_as = "points"
    layer = 2

    def fits(self, column: Column) -> bool:
        """Allows float32 rows whose last dimension is 2 or 3."""
        good = 1 <= len(column.shape) <= 2 and column.shape[-1] in (2, 3)
        return good and (column.kind, column.dtype, column.layout) == ("ragged", "float32", None)


def _class_names(classes: Sequence[str] | None) -> tuple[str, ...] | None:
    """Returns class names as a tuple; None if classes have no names."""
    if classes is None:
        return None
    if isinstance(classes, str):
        raise ManifestError("classes should be a list of names, got one string")
    return tuple(classes)


def boxes_name(of: str | bool | None) -> str | None:
    """Returns the name of the boxes column in ``of``; None for False and None."""
    if of is True:
        raise ManifestError("of should be the name of the boxes")
    return of or None


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
            # These are the infinities.
            lost = (array & 0x7FFF) == 0x7F80
        else:
            array = np.ascontiguousarray(given, dtype)
            # Rounding is no loss, but a value that becomes infinite or another integer is.
            lost = np.isinf(array) if kind == "f" else array != given
        if given.size and bool((lost & np.isfinite(given)).any()):
            raise ValueError(f"column {column.name!r} has dtype {column.dtype}: some values are out of its range")
    return array.reshape(given.shape)  # ascontiguousarray makes a scalar one-dimensional


ARRAY, LABEL, LABELS, BOXES, KEYPOINTS = ArrayType(), LabelType(), LabelsType(), BoxesType(), KeypointsType()
