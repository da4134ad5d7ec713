"""Batches as NumPy arrays, over the memory of the tensors that they were made as."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch


def as_arrays(item: Any, columns: Collection[str], images: Collection[str], as_dict: bool, channels_last: bool) -> Any:
    """A batch with arrays instead of tensors, without a copy: an array keeps the memory that it lies in.

    Args:
        item: The batch, as :meth:`packstore.training.loader.pipeline.Pipeline.item` makes it.
        columns: Names of its columns, in order.
        images: Those that are images: with ``channels_last`` they become ``(B, H, W, 3)``.
        as_dict: Whether it is a dict; else a tuple, or of one column the value itself.
        channels_last: See :class:`packstore.PackedLoader`.
    """
    if as_dict:
        return {name: _convert(value, channels_last and name in images) for name, value in item.items()}
    if len(columns) == 1:
        return _convert(item, channels_last)
    return tuple(_convert(value, channels_last and name in images) for name, value in zip(columns, item, strict=True))


def _convert(value: Any, channels_last: bool) -> Any:
    if isinstance(value, torch.Tensor):
        tensor = value.detach()
        tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        return (tensor.movedim(-3, -1) if channels_last and tensor.ndim >= 3 else tensor).numpy()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_convert(part, channels_last) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(_convert(part, channels_last) for part in value)
    if isinstance(value, dict):
        return {key: _convert(part, channels_last) for key, part in value.items()}
    return value
