"""Values of columns other than images, as a dataset returns them; conversions between tensors and arrays."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import CorruptRecordError, DecodeError, StoreError
from packstore.core.manifest import Column
from packstore.images.masks import decode_mask, open_mask, read_mask_header
from packstore.images.sniff import MAX_PIXELS
from packstore.stores import Reader
from packstore.training.pictures import describe_record, locate_error, read_stored_array, read_stored_bytes


def as_tensor(column: Column, values: NDArray[Any]) -> torch.Tensor:
    """Converts values of a column to a tensor, over the same memory if possible.

    - Masks, volumes and clips of 16 bits become int32: torch has few operations for uint16.
    - uint64 becomes int64 of the same bits.
    - bfloat16, stored as uint16, becomes bfloat16.
    - Others keep their dtype.
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

    @cached_property
    def _is_label(self) -> bool:
        """True if each record has one class number."""
        return self.column.holds_class and not self.column.nullable

    def read(self, output: str, reader: Reader, record: int) -> Any:
        """Reads the value of a record; None for a missing value.

        - Masks: as ``output``: ``"tensor"``, ``"numpy"``, ``"pil"`` or ``"bytes"``.
        - Single whole numbers: ``int``.
        - Text, JSON and bytes: Python objects.
        - Others: a copy as an array for ``"numpy"``, else as a tensor.

        Raises:
            StoreError: The value is damaged. Names the record and its key.
            DecodeError: The mask cannot be decoded. Names the record and its key.
        """
        column = self.column
        if self._is_label:
            return int(reader.value(column.name, record))
        if column.traits.is_picture:
            return self._read_mask(output, reader, record) if reader.has_value(column.name, record) else None
        try:
            value = reader.item(column.name, record)
        except CorruptRecordError:  # it names the record itself
            raise
        except StoreError as error:
            raise StoreError(f"{describe_record(reader, record)}: {error}") from None
        if value is None or column.traits.is_object:
            return value
        if isinstance(value, int) or (value.ndim == 0 and value.dtype.kind in "iu" and column.dtype != "bfloat16"):
            return int(value)
        array = np.array(value)  # memory of its own
        return array if output == "numpy" else as_tensor(column, array).to(self.device)

    def _read_mask(self, output: str, reader: Reader, record: int) -> Any:
        """Reads a record's mask as a tensor, an array, a PIL image or bytes."""
        column = self.column
        if output == "bytes":
            return bytes(read_stored_bytes(reader, column, record))
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
            values = read_stored_array(reader, column, record)
        if output == "pil":
            from PIL.Image import fromarray

            return fromarray(np.array(values))
        values = np.array(values)
        return values if output == "numpy" else as_tensor(column, values).to(self.device)


def as_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Returns a CPU tensor as numpy array over the same memory; bfloat16 as uint16 of the same bits."""
    array: NDArray[Any] = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def as_arrays(item: Any, columns: Collection[str], images: Collection[str], as_dict: bool, channels_last: bool) -> Any:
    """Replaces the tensors of a batch by arrays over the same memory.

    The memory lives as long as an array does. Only bfloat16 is copied, to float32. Raises :class:`TypeError`
    for tensors that are not on the CPU.

    Args:
        item: The batch, from :meth:`packstore.training.loader.pipeline.Pipeline.make_batch`.
        columns: Names of the batch's columns, in order.
        images: Names of the image columns: with ``channels_last`` they become ``(B, H, W, 3)``. A single column that
            is no dict counts as images.
        as_dict: The batch is a dict; else a tuple, or with one column the value itself.
        channels_last: See :class:`packstore.PackedLoader`.
    """
    if as_dict:
        return {name: _to_numpy(value, channels_last and name in images) for name, value in item.items()}
    if len(columns) == 1:
        return _to_numpy(item, channels_last)
    return tuple(_to_numpy(value, channels_last and name in images) for name, value in zip(columns, item, strict=True))


def _to_numpy(value: Any, channels_last: bool) -> Any:
    """Converts the tensors in nested tuples, lists and dicts to numpy arrays, and leaves other values as they are."""
    if isinstance(value, torch.Tensor):
        tensor = value.detach()
        tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        return (tensor.movedim(-3, -1) if channels_last and tensor.ndim >= 3 else tensor).numpy()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_to_numpy(part, channels_last) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(_to_numpy(part, channels_last) for part in value)
    if isinstance(value, dict):
        return {key: _to_numpy(part, channels_last) for key, part in value.items()}
    return value
