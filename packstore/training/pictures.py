"""Reads images of a store one by one, as a dataset returns them: tensors, arrays, PIL images or bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.columns import SEEK_INDEX, Buffer
from packstore.core.errors import CorruptRecordError, DecodeError, PackstoreError, StoreError, UsageError, printable
from packstore.core.manifest import Column, Normalization
from packstore.core.modes import Mode
from packstore.images.decoders import Decoder
from packstore.images.engine import BufferAddresses
from packstore.stores import Reader

if TYPE_CHECKING:
    from PIL.Image import Image

    from packstore.images.reading import Window

_UNREADABLE = b"\0"  # in place of a seek index
_TOGETHER = 16
"""Number of image files that are read before they are decoded together."""


TENSOR_DTYPES = {
    "uint8": torch.uint8,
    "uint16": torch.int32,
    "int16": torch.int32,
    "int32": torch.int32,
    "float32": torch.float32,
}
"""Dtype of tensors by the dtype of pixels: torch's own uint16 lacks most operations."""
_PIL_MODES = ("L", "LA", "RGB", "RGBA", "I;16", "I", "F")
"""Modes that Pillow supports."""


def widen_for_torch(pixels: NDArray[Any], column: Column) -> NDArray[Any]:
    """Converts pixels of 16 bits to int32, because torch has few operations for uint16.

    Returns other dtypes, and pixels of ``CHW`` columns, unchanged.
    """
    wide = pixels.dtype.char in "Hh" and column.layout != "CHW"
    return pixels.astype(np.int32) if wide else pixels


@dataclass(frozen=True, eq=False)
class ImageReader:
    """Reads the images of one column.

    Attributes:
        column: The column.
        decoder: Decoder of image files.
        exif_transpose: Apply the EXIF orientation of files.
        normalization: Normalisation of floating point images; undone for ``pil``.
        dtype: Dtype of tensors that the user wants; None for the store's.
        device: Device of tensors.
    """

    column: Column
    decoder: Decoder
    exif_transpose: bool
    normalization: Normalization | None
    dtype: torch.dtype | None
    device: torch.device

    def read(self, output: str, reader: Reader, record: int) -> Any:
        """Reads the image of a record as ``output``: ``"tensor"``, ``"numpy"``, ``"pil"`` or ``"bytes"``.

        Returns None for a missing image. Raises :class:`DecodeError`, which names the record and its key, if the image
        cannot be decoded.
        """
        if self.column.nullable and not reader.has_value(self.column.name, record):
            return None
        if output == "bytes":
            return bytes(read_stored_bytes(reader, self.column, record))
        if output == "pil":
            return self.read_pil(reader, record)
        if output == "numpy":
            return self.read_numpy(reader, record)
        return self.convert_pixels(torch.from_numpy(widen_for_torch(self.read_pixels(reader, record), self.column)))

    def read_each(self, output: str, reader: Reader, records: Sequence[int]) -> Iterator[Any]:
        """Yields several images as :meth:`read`. Decodes up to 16 files together, which is faster.

        Raises the :class:`DecodeError` of a damaged file after it has yielded the images before it.
        """
        if self.column.layout is not None or self.column.nullable or output == "bytes":
            yield from (self.read(output, reader, record) for record in records)
            return
        for first in range(0, len(records), _TOGETHER):
            some = records[first : first + _TOGETHER]
            files = [read_stored_bytes(reader, self.column, record) for record in some]
            images = self.decoder.decode_each(files, exif_transpose=self.exif_transpose)
            for record, image in zip(some, images, strict=True):
                if isinstance(image, DecodeError):
                    raise locate_error(image, reader, record, self.column.name)
                yield self.convert_decoded(output, image)

    def convert_decoded(self, output: str, image: NDArray[Any]) -> Any:
        """Converts the pixels of a decoded file to ``output``: ``"tensor"``, ``"numpy"`` or ``"pil"``."""
        if output == "pil":
            return _to_pil(image, self.mode)
        return (
            image if output == "numpy" else self.convert_pixels(torch.from_numpy(widen_for_torch(image, self.column)))
        )

    @property
    def mode(self) -> Mode:
        """Mode of the images as they are read."""
        return self.decoder.mode if self.column.layout is None else self.column.pixels

    @property
    def floats(self) -> bool:
        """True if images are arrays of normalised floating point values."""
        return self.column.layout == "CHW"

    def convert_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        """Converts stored pixels, an image or a batch, to the layout, dtype and device of the user.

        A floating point dtype scales integer pixels to 0 … 1. ``uint8`` leaves their dtype unchanged. Normalised images
        are float32 by default. May return the same memory.
        """
        if self.floats:
            if self.column.dtype == "bfloat16":
                pixels = pixels.view(torch.bfloat16)
            return pixels.to(device=self.device, dtype=self.dtype or torch.float32)
        pixels = pixels.to(self.device).movedim(-1, -3)
        if self.dtype is None or self.dtype == torch.uint8:
            return pixels
        wide = pixels.to(torch.float64 if self.mode.dtype == "int32" else torch.float32)
        return wide.div_(self.mode.white).to(self.dtype)

    def read_pixels(self, reader: Reader, record: int) -> NDArray[Any]:
        """Reads an image as an array in the store's layout and dtype, in memory of its own. bfloat16 comes as uint16.

        Raises:
            DecodeError: The image cannot be decoded. Names the record and its key.
        """
        if self.column.layout is None:
            try:
                return self.decoder.decode(
                    read_stored_bytes(reader, self.column, record), exif_transpose=self.exif_transpose
                )
            except DecodeError as error:
                raise locate_error(error, reader, record, self.column.name) from None
        return np.array(read_stored_array(reader, self.column, record))

    def read_numpy(self, reader: Reader, record: int) -> NDArray[Any]:
        """Reads an image as an array in the store's layout and dtype. bfloat16 becomes float32."""
        pixels = self.read_pixels(reader, record)
        if self.column.dtype == "bfloat16":
            # The upper half of a float32 is a bfloat16.
            return (pixels.astype(np.uint32) << 16).view(np.float32)
        return pixels

    def read_pil(self, reader: Reader, record: int) -> Image:
        """Reads an image as a PIL image, without normalisation, in a mode that passes :func:`check_pil_mode`."""
        return _to_pil(self.read_stored_pixels(reader, record), self.mode)

    def read_stored_pixels(self, reader: Reader, record: int) -> NDArray[Any]:
        """Reads an image as pixels ``(H, W, C)`` of its mode. Undoes normalisation."""
        pixels = self.read_pixels(reader, record)
        if not self.floats:
            return pixels
        from packstore.images.reading import denormalize

        return denormalize(pixels, self.column, self.normalization)

    def read_for_display(self, reader: Reader, record: int, window: Window | None = None) -> Image:
        """Reads an image as RGB for display, see :func:`packstore.images.reading.to_display`."""
        from PIL.Image import fromarray

        from packstore.images.reading import to_display

        return fromarray(to_display(self.read_stored_pixels(reader, record), self.mode, window))


@dataclass(frozen=True, eq=False)
class ImageListReader:
    """Reads a column whose values are lists of image files.

    Attributes:
        pictures: Reader that decodes each file and converts its pixels.
    """

    pictures: ImageReader

    def read(self, output: str, reader: Reader, record: int) -> list[Any] | None:
        """Reads the images of a record as a list, as :meth:`ImageReader.read` returns each; None for a missing list.

        Raises:
            DecodeError: An image cannot be decoded. Names the record, its key and the image's number.
            StoreError: The list is damaged. Names the record and its key.
        """
        column = self.pictures.column
        if column.nullable and not reader.has_value(column.name, record):
            return None
        try:
            files = read_stored_files(reader, column, record)
        except CorruptRecordError:  # it names the record itself
            raise
        except StoreError as error:
            raise StoreError(f"{describe_record(reader, record)}: {error}") from None
        if output == "bytes":
            return [bytes(file) for file in files]
        images = []
        for number, image in enumerate(self.decode_files(files)):
            if isinstance(image, DecodeError):
                raise locate_error(DecodeError(f"image {number}: {image}"), reader, record, column.name)
            images.append(self.pictures.convert_decoded(output, image))
        return images

    def decode_files(self, files: Sequence[Buffer]) -> list[Any]:
        """Decodes files to arrays. In place of a file that cannot be decoded, returns its :class:`DecodeError`."""
        return list(self.pictures.decoder.decode_each(list(files), exif_transpose=self.pictures.exif_transpose))


def read_stored_files(reader: Reader, column: Column, record: int) -> Sequence[Buffer]:
    """Reads a record's list of image files. Returns the encoded bytes of each file.

    Raises :class:`StoreError` if the value is damaged.
    """
    return column.traits.files(column, reader.value(column.name, record))


def has_pil_mode(mode: Mode) -> bool:
    """Tells if Pillow has images of the mode."""
    return mode.name in _PIL_MODES


def check_pil_mode(mode: Mode) -> None:
    """Raises :class:`UsageError` if Pillow has no images of the mode."""
    if not has_pil_mode(mode):
        raise UsageError(f"output='pil' gives Pillow's images, which has none of mode {mode}; use 'tensor' or 'numpy'")


def _to_pil(pixels: NDArray[Any], mode: Mode) -> Image:
    """Converts pixels ``(H, W, C)`` to a PIL image."""
    from PIL.Image import fromarray

    return fromarray(pixels[..., 0] if mode.channels == 1 else pixels)


def read_stored_bytes(reader: Reader, column: Column, record: int) -> Buffer:
    """Reads the stored bytes of a record's image or mask, without a copy if possible."""
    if column.name == "image":
        return reader.view(record)
    value = reader.value(column.name, record)
    return value if column.kind == "ragged" else np.ascontiguousarray(value).data.cast("B")


def read_seek_indexes(reader: Reader, column: Column, records: NDArray[np.int64]) -> list[Any] | BufferAddresses | None:
    """Reads the seek index of each image file of a column: positions in the file from which a crop can be decoded.

    If the index of any file cannot be read, all are replaced by invalid ones. The engine counts and ignores these.
    Returns None if the store has no indexes of this column.
    """
    name = SEEK_INDEX.name
    if column.name != "image" or not any(each.name == name and each.nbytes for each in reader.manifest.columns):
        return None
    try:
        mapped = reader.mapped_ragged_column(name)
        if mapped is not None:
            return BufferAddresses(mapped.places(records), mapped)
        return [reader.value(name, record) for record in records.tolist()]
    except PackstoreError:
        return [_UNREADABLE] * len(records)


def read_stored_array(reader: Reader, column: Column, record: int) -> NDArray[Any]:
    """Reads the stored array of a record's image or mask, read-only and without a copy."""
    if column.name == "image":
        return reader.array(record)
    array: NDArray[Any] = reader.item(column.name, record)
    return array


def describe_key(reader: Reader, record: int) -> str:
    """Returns the key of a record for a message. If the key cannot be read, returns "its key is damaged, too"."""
    try:
        return printable(reader.key(record))
    except (StoreError, IndexError):
        return "its key is damaged, too"


def describe_record(reader: Reader, record: int) -> str:
    """Describes a record for a message: its number and key, and the store."""
    return f"record {record} ({describe_key(reader, record)}) of {printable(str(reader.path))}"


def locate_error(error: PackstoreError, reader: Reader, record: int, column: str) -> DecodeError:
    """Returns a :class:`DecodeError` that puts number, key and store of the record before the text of ``error``.

    Also names the column, unless it is ``image``.
    """
    where = "" if column == "image" else f"column {column!r}: "
    return DecodeError(f"record {record} ({describe_key(reader, record)}) of {reader.path}: {where}{error}")
