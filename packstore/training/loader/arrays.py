"""Converts batches to NumPy arrays over the memory of their tensors."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch


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
