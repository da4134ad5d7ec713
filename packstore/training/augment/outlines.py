"""Pads masks of objects, and joins the segments of images that become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.images.annotations import clip_ring, encode_run_lengths, fill_run_lengths


def pad_masks(masks: Sequence[torch.Tensor]) -> torch.Tensor:
    """Pads masks ``(n, h, w)`` to the largest number of objects, height and width: ``(B, n, h, w)``."""
    sides = [max((each.shape[axis] for each in masks), default=0) for axis in range(3)]
    values = torch.zeros((len(masks), *sides), dtype=torch.bool, device=masks[0].device if masks else None)
    for value, each in zip(values, masks, strict=True):
        value[: each.shape[0], : each.shape[1], : each.shape[2]] = each
    return values


def join_tiles(
    values: Any,
    mosaics: Sequence[Sequence[tuple[int, int, int]]],
    size: tuple[int, int],
    kept: NDArray[np.bool_] | None,
) -> Any:
    """Joins the segments of the tiles of each mosaic, in the form that they have.

    Args:
        values: Segments of a batch: lists of shapes, masks, or padded masks.
        mosaics: For each mosaic: row in the batch, top and left of each of its images.
        size: Height and width of the mosaics.
        kept: Which objects of all tiles stay; None for all.
    """
    padded: Any = type(values) if isinstance(values, tuple) else None  # Padded
    if padded:
        values = [masks[:count] for masks, count in zip(values.values, values.lengths.tolist(), strict=True)]
    (height, width), first, joined = size, 0, list[Any]()
    for tiles in mosaics:
        objects: list[Any] = []
        for source, top, left in tiles:
            value = values[source]
            keep = range(len(value)) if kept is None else np.flatnonzero(kept[first : first + len(value)]).tolist()
            first += len(value)
            if isinstance(value, torch.Tensor):
                objects.append(_place(value[list(keep)], top, left, height, width))
            else:
                objects += (_shift(value[number], top, left, height, width) for number in keep)
        joined.append(torch.cat(objects) if isinstance(value, torch.Tensor) else objects)
    if not padded:
        return joined
    masks = pad_masks(joined)
    return padded(masks, torch.tensor([len(each) for each in joined], device=masks.device))


def _place(masks: torch.Tensor, top: int, left: int, height: int, width: int) -> torch.Tensor:
    """Puts masks ``(n, h, w)`` on zeros of another size."""
    result = masks.new_zeros((len(masks), height, width))
    y, x = max(0, top), max(0, left)
    bottom, right = min(height, top + masks.shape[1]), min(width, left + masks.shape[2])
    if y < bottom and x < right:
        result[:, y:bottom, x:right] = masks[:, y - top : bottom - top, x - left : right - left]
    return result


def _shift(shape: Any, top: int, left: int, height: int, width: int) -> Any:
    """Moves a shape in pixels, and clips it to an image of another size."""
    if isinstance(shape, dict) and "counts" in shape:
        mask = np.zeros(shape["size"], np.uint8)
        fill_run_lengths(shape, mask)
        placed = _place(torch.from_numpy(mask)[None], top, left, height, width)[0]
        return {"size": [height, width], "counts": encode_run_lengths(placed.numpy() != 0)}
    if isinstance(shape, dict):
        return {name: _shift(rings, top, left, height, width) for name, rings in shape.items()}
    if shape is None:
        return None
    moved = [clip_ring(np.reshape(ring, (-1, 2)) + np.array([left, top]), (0, 0, height, width)) for ring in shape]
    return [ring.ravel().tolist() for ring in moved if len(ring)]
