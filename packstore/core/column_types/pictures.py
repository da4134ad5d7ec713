"""Types of pixels: images and masks, as files or arrays; lists of image files; volumes and clips.

A stored value of the type ``images`` is a frame: the number of files as little-endian ``uint64``, the size of each in
bytes in the same form, then the files one after the other. ``numpy.frombuffer(value, "<u8", 1 + n)`` reads its head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.column_types.base import Column, ColumnType, Field, unfit_error
from packstore.core.column_types.forms import Buffer, Canvas, Collation, Form, RowClasses
from packstore.core.column_types.numbers import ArrayType
from packstore.core.column_types.objects import to_bytes
from packstore.core.errors import StoreError
from packstore.core.modes import RGB, parse_mode

MASK_DTYPES = ("uint8", "uint16", "int32", "float32")
"""Dtypes of masks that are arrays; float32 for values measured at each pixel, such as depth."""
VOLUME_DTYPES = ("uint8", "uint16", "int16", "int32", "float32")
_SIZE = np.dtype("<u8")
_NO_CLASS = 255
"""Value that means "no class" in masks by convention."""


class PictureField(Field):
    """Base of declarations of images and masks, whose values are files or pixels."""

    __slots__ = ()

    def make_column(self, name: str, files: bool, dtype: str) -> Column:
        """Creates the field's column.

        Args:
            name: Name of the column.
            files: Whether values are files.
            dtype: dtype of a mask that is an array.
        """
        raise NotImplementedError

    def column(self, name: str) -> Column:
        """Creates the field's column of files."""
        return self.make_column(name, True, "uint8")


@dataclass(frozen=True, slots=True)
class Image(PictureField):
    """An image of a sample.

    A path, the bytes of a file, a PIL image, an array ``(H, W)`` or ``(H, W, C)``, or a tensor ``(C, H, W)``.
    Packing checks the attributes, not this class.

    Attributes:
        encoding: Encoding of the stored image; None stores files unchanged. An image that is not a file needs
            ``uint8``, the name of another dtype, or ``jpeg``. The main image may have any of
            :data:`packstore.core.registry.ENCODINGS`; other images ``original``, ``uint8`` or ``jpeg``.
        optional: A sample may have no image; not allowed for the main image.
        mode: The :mod:`mode <packstore.core.modes>`, such as ``L``, ``I;16``, ``multi:5:float32``. Pixels have it;
            files beside the main image are converted to it when they are read. None for pixels: the mode of the first
            samples. None for files: gray if they become ``uint16``, ``int16`` or ``int32``, else RGB.
    """

    encoding: str | None = None
    optional: bool = False
    mode: str | None = None

    def make_column(self, name: str, files: bool, dtype: str) -> Column:
        mode = None if self.mode in (None, RGB.name) else self.mode
        stored = "uint8" if mode is None or files else parse_mode(mode).dtype
        layout = None if files else "HWC"
        return Column(name, "ragged", stored, (), layout, type="image", nullable=self.optional, mode=mode)


@dataclass(frozen=True, slots=True)
class Mask(PictureField):
    """A mask with a class number for each pixel.

    A PNG file, as a path or bytes, is stored unchanged; the indices of a palette are its values. A PIL image or array
    ``(H, W)`` is stored as an array.

    Attributes:
        dtype: ``uint8``, ``uint16`` or ``int32`` for arrays; None for the dtype of the first sample.
        optional: A sample may have no mask.
    """

    dtype: str | None = None
    optional: bool = False

    def make_column(self, name: str, files: bool, dtype: str) -> Column:
        stored, layout = ("uint8", None) if files else (dtype, "HW")
        return Column(name, "ragged", stored, (), layout, type="mask", nullable=self.optional)


class PictureType(ArrayType):
    """Base of images and masks. Values are files, or arrays if the column has a layout: the order of the axes, such as
    ``HWC``."""

    stored = ("ragged", "uint8", ())
    form = "file"
    large = True
    is_picture = True

    def to_stored(self, column: Column, value: Any) -> bytes | NDArray[Any]:
        """Returns the bytes of a file; if the column has a layout, converts an array.

        Raises :class:`ValueError` for other values, and for an array that does not fit the layout.
        """
        return to_bytes(column, value) if column.layout is None else super().to_stored(column, value)

    def check_shape(self, column: Column, array: NDArray[Any], value: Any) -> NDArray[Any]:
        """Returns the array if it has the layout's dimensions and channels, else raises :class:`ValueError`."""
        dimensions = len(column.layout or "")
        if array.ndim != dimensions or (dimensions == 3 and array.shape[2] != column.pixels.channels):
            raise unfit_error(column, f"an array {column.layout}", value)
        return array

    def from_stored(self, column: Column, raw: Any, shape: tuple[int, ...] | None) -> Any:
        """Returns the bytes of a file, or the array if the column has a layout."""
        return bytes(raw) if column.layout is None else super().from_stored(column, raw, shape)

    def show(self, column: Column, value: Any) -> dict[str, Any]:
        """Returns only the size as ``nbytes``: the page loads pictures by address."""
        nbytes = len(value) if isinstance(value, bytes) else int(np.asarray(value).nbytes)
        return {"as": "image" if self.has_images else "mask", "nbytes": nbytes}


class ImageType(PictureType):
    """An image: a file, ``HWC`` whole numbers, or ``CHW`` floating point numbers."""

    name = "image"
    has_images = True
    field = Image
    meaning = "another image"

    def collation(self, column: Column) -> Collation:
        return "images"

    def fits(self, column: Column) -> bool:
        """Allows ragged bytes, ``HWC`` whole numbers, and fixed ``CHW`` floats, with the channels of the mode."""
        dtype, shape, mode = column.dtype, column.shape, column.pixels
        if column.layout == "HWC":
            whole = dtype == mode.dtype and dtype != "float32"
            return whole and (shape == () if column.kind == "ragged" else len(shape) == 3 and shape[2] == mode.channels)
        if column.layout is not None:
            floats = column.kind == "fixed" and dtype in ("float16", "bfloat16", "float32")
            return column.layout == "CHW" and floats and len(shape) == 3 and shape[0] == mode.channels
        return ColumnType.fits(self, column)


class MaskType(PictureType):
    """A mask: PNG files, or ``HW`` arrays."""

    name = "mask"
    field = Mask
    moves = True
    lies_on_image = True
    meaning = "a value a pixel"
    drawn_as = "masks"
    layer = 0
    faults: ClassVar[Mapping[str, str]] = {
        "mask_size": "a mask of another size than its image",
        "mask_value": "a mask with values beyond its classes",
    }

    def collation(self, column: Column) -> Collation:
        return "planes"

    def fits(self, column: Column) -> bool:
        """Allows ragged bytes, or ``HW`` arrays of the dtypes of masks."""
        if column.layout is None:
            return ColumnType.fits(self, column)
        dimensions = 2 if column.kind == "fixed" else 0
        return column.layout == "HW" and column.dtype in MASK_DTYPES and len(column.shape) == dimensions

    def draws(self, column: Column) -> bool:
        """Tells if the values are class numbers. Values of floating point, such as depth, are not drawn."""
        return column.dtype != "float32"

    def draw(self, canvas: Canvas, column: Column, value: Any, classes: RowClasses | None) -> None:
        """Draws each class in its own colour."""
        canvas.draw_mask(value)

    def find_pixel_faults(
        self,
        column: Column,
        shape: tuple[int, ...],
        values: NDArray[Any] | None,
        size: tuple[int, ...],
        classes: int | None,
    ) -> Iterator[tuple[str, str]]:
        """Yields another size than the image's, and the first value beyond the classes.

        The value 255 for "no class" is allowed.
        """
        name = column.name
        if shape != size:
            yield "mask_size", f"{name!r} has {shape[1]} x {shape[0]} pixels, its image {size[1]} x {size[0]}"
        if values is not None and classes is not None:
            wrong = values[(values < 0) | ((values >= classes) & (values != _NO_CLASS))]
            if wrong.size:
                text = f"{name!r} has {int(wrong.flat[0])}; there are {classes} classes, numbered from 0"
                yield "mask_value", text


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
        data, damaged = memoryview(raw), f"a value of column {column.name!r} is no list of files: it"
        # A hostile value may claim any number of files, so all is checked against its length.
        count = int(np.frombuffer(data, _SIZE, 1)[0]) if data.nbytes >= _SIZE.itemsize else -1
        head = (1 + count) * _SIZE.itemsize
        if count < 0 or head > data.nbytes:
            raise StoreError(f"{damaged}s {data.nbytes} bytes are fewer than the sizes of {max(count, 0)} files")
        ends = list(accumulate(np.frombuffer(data, _SIZE, count, _SIZE.itemsize).tolist(), initial=head))
        if ends[-1] != data.nbytes:
            raise StoreError(f"{damaged} has {data.nbytes} bytes, and its {count} files end at {ends[-1]}")
        return [data[start:stop] for start, stop in pairwise(ends)]

    def show(self, column: Column, value: Any) -> dict[str, Any]:
        """Returns the size of each file as ``value``, and the sum as ``nbytes``."""
        return {"as": "images", "value": [len(file) for file in value], "nbytes": sum(map(len, value))}


def frame(files: Sequence[Buffer]) -> bytes:
    """Joins files to one stored value: their number, the size of each, then the files."""
    sizes = [memoryview(file).nbytes for file in files]
    return b"".join([np.array([len(files), *sizes], _SIZE).tobytes(), *files])


class VolumeType(ArrayType):
    """An array ``CHW`` or ``DCHW`` with the height and width of the image. Resizing takes its nearest values, never a
    mean."""

    name = "volume"
    large = True
    moves = True
    lies_on_image = True
    meaning = "values a pixel"

    def fits(self, column: Column) -> bool:
        """Allows ``CHW`` and ``DCHW`` arrays of the dtypes of volumes, fixed or ragged."""
        axes = len(column.shape) or len(column.layout or "")
        known = column.layout in ("CHW", "DCHW") and column.dtype in VOLUME_DTYPES
        return known and axes == len(column.layout or "") and bool(column.shape) == (column.kind == "fixed")

    def collation(self, column: Column) -> Collation:
        return "planes"

    def check_shape(self, column: Column, array: NDArray[Any], value: Any) -> NDArray[Any]:
        """Returns the array if it has the layout's dimensions, else raises :class:`ValueError`."""
        if array.ndim != len(column.layout or ""):
            raise unfit_error(column, f"an array {column.layout}", value)
        return array


class ClipType(VolumeType):
    """A volume of pixels. Resizing blends its values like the image's."""

    name = "clip"
    meaning = "frames or planes"
    blends = True


IMAGE, MASK, IMAGES, VOLUME, CLIP = ImageType(), MaskType(), ImagesType(), VolumeType(), ClipType()
