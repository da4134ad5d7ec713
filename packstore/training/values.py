"""Reads values of columns other than images, record by record, in the form that a dataset returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import CorruptRecordError, DecodeError, StoreError, printable
from packstore.core.manifest import Column
from packstore.images.masks import decode_mask, open_mask, read_mask_header
from packstore.images.sniff import MAX_PIXELS
from packstore.stores.base import Reader
from packstore.training.pictures import key_of, locate_error, stored_array, stored_bytes


def as_tensor(column: Column, values: NDArray[Any]) -> torch.Tensor:
    """Converts values of a column, in memory of their own, to a tensor of the column's dtype.

    Masks, volumes and clips of 16 bits become int32, since torch has few operations for uint16. uint64 becomes int64 of
    the same bits.
    """
    if column.dtype == "bfloat16":
        return torch.from_numpy(values).view(torch.bfloat16)
    if column.traits.lies_on_image and values.dtype in (np.uint16, np.int16):
        return torch.from_numpy(values.astype(np.int32))
    return torch.from_numpy(values.view(np.int64) if values.dtype == np.uint64 else values)


@dataclass(frozen=True, eq=False)
class ValueReader:
    """Reads values of a column that contains neither images nor keys.

    Attributes:
        column: The column.
        device: Device of tensors.
        max_pixels: Limit of a mask's pixels.
    """

    column: Column
    device: torch.device
    max_pixels: int = MAX_PIXELS

    def of(self, output: str, reader: Reader, record: int) -> Any:
        """Reads the value of a record in the form that ``output`` names, or returns None if it is missing."""
        column = self.column
        if column.kind == "fixed" and column.traits.has_classes and not column.nullable:
            return int(reader.value(column.name, record))
        if column.traits.is_picture:
            return self._read_mask(output, reader, record) if reader.has_value(column.name, record) else None
        try:
            value = reader.item(column.name, record)
        except CorruptRecordError:  # it names the record itself
            raise
        except StoreError as error:
            where = f"record {record} ({key_of(reader, record)}) of {printable(str(reader.path))}"
            raise StoreError(f"{where}: {error}") from None
        if value is None or column.traits.is_object:
            return value
        if isinstance(value, int) or (value.ndim == 0 and value.dtype.kind in "iu" and column.dtype != "bfloat16"):
            return int(value)
        array = np.array(value)  # memory of its own
        return array if output == "numpy" else as_tensor(column, array).to(self.device)

    def _read_mask(self, output: str, reader: Reader, record: int) -> Any:
        """Reads a record's mask in the form of ``output``."""
        column = self.column
        if output == "bytes":
            return bytes(stored_bytes(reader, column, record))
        if column.layout is None:
            data = reader.value(column.name, record)
            try:
                header = read_mask_header(data, self.max_pixels)
                if output == "pil":
                    return open_mask(data, header)
                values: NDArray[Any] = decode_mask(data, header)
            except DecodeError as error:
                raise locate_error(error, reader, record, column.name) from None
        else:
            values = stored_array(reader, column, record)
        if output == "pil":
            from PIL.Image import fromarray

            return fromarray(np.array(values))
        values = np.array(values)
        return values if output == "numpy" else as_tensor(column, values).to(self.device)
