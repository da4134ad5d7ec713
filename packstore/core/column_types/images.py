"""The type ``images``: any number of image files a record.

A stored value is a frame: the number of files as little-endian ``uint64``, the size of each in bytes in the same form,
then the files one after the other. ``numpy.frombuffer(value, "<u8", 1 + n)`` reads its head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import numpy as np

from packstore.core.column_types.base import Column, ColumnType, Field, unfit_error
from packstore.core.column_types.forms import Buffer, Collation, Form
from packstore.core.errors import StoreError
from packstore.core.modes import RGB

_SIZE = np.dtype("<u8")


@dataclass(frozen=True, slots=True)
class Images(Field):
    """A list of image files, each a path or the bytes of a file. Stores the files unchanged. The list may be empty.

    Attributes:
        optional: A sample may have no list.
        mode: The :mod:`mode <packstore.core.modes>` to which readers convert the files; None for RGB of 8 bits.
    """

    optional: bool = False
    mode: str | None = None

    def column(self, name: str) -> Column:
        """Creates the column. The column's mode is None if the field's is RGB."""
        return replace(Field.column(self, name), mode=None if self.mode == RGB.name else self.mode)


class ImagesType(ColumnType):
    """Any number of image files, joined by :func:`frame`."""

    name = "images"
    form: ClassVar[Form] = "files"
    large = True
    is_object = True
    has_images = True
    field = Images
    meaning = "any number of images"

    def collation(self, column: Column) -> Collation:
        return "image_lists"

    def to_stored(self, column: Column, value: Any) -> bytes:
        """Joins a list of files to one value. Raises :class:`ValueError` for anything but a list or tuple of bytes."""
        if not isinstance(value, (list, tuple)) or not all(isinstance(file, Buffer) for file in value):
            raise unfit_error(column, "a list of bytes", value)
        return frame(value)

    def from_stored(self, column: Column, raw: Any, shape: tuple[int, ...] | None) -> list[bytes]:
        """Splits a stored value into the bytes of its files. Raises :class:`StoreError` if it is damaged."""
        return [bytes(file) for file in self.files(column, raw)]

    def files(self, column: Column, raw: Buffer) -> Sequence[memoryview]:
        """Splits a stored value into its files, without copying. Raises :class:`StoreError` if it is damaged."""
        try:
            return split_files(memoryview(raw))
        except ValueError as error:
            raise StoreError(f"a value of column {column.name!r} is no list of files: {error}") from None

    def show(self, column: Column, value: Any) -> dict[str, Any]:
        """Returns the size of each file as ``value``, and the sum as ``nbytes``."""
        return {"as": "images", "value": [len(file) for file in value], "nbytes": sum(map(len, value))}


def frame(files: Sequence[Buffer]) -> bytes:
    """Joins files to one stored value: their number, the size of each, then the files."""
    sizes = [memoryview(file).nbytes for file in files]
    return b"".join([np.array([len(files), *sizes], _SIZE).tobytes(), *files])


def split_files(data: memoryview) -> list[memoryview]:
    """Splits a stored value into its files, without copying. Raises :class:`ValueError` if the sizes do not add up."""
    count = int(np.frombuffer(data, _SIZE, 1)[0]) if data.nbytes >= _SIZE.itemsize else -1
    head = (1 + count) * _SIZE.itemsize
    if count < 0 or head > data.nbytes:
        raise ValueError(f"its {data.nbytes} bytes are fewer than the sizes of {max(count, 0)} files")
    ends = list(accumulate(np.frombuffer(data, _SIZE, count, _SIZE.itemsize).tolist(), initial=head))
    if ends[-1] != data.nbytes:
        raise ValueError(f"it has {data.nbytes} bytes, and its {count} files end at {ends[-1]}")
    return [data[start:stop] for start, stop in pairwise(ends)]


IMAGES = ImagesType()
