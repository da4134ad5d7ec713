"""Masks of objects from their stored segments, filled by the engine with the same pixels as pycocotools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core import compiled
from packstore.core.column_types.base import Column
from packstore.core.columns import to_stored
from packstore.images.annotations import encode_run_lengths
from packstore.images.engine.requests import find_address

PIXELS = Column("segments", "ragged", "uint8", type="segments", coordinates="pixels")
"""A column of segments in pixels, to convert shapes."""


def fill_segments(
    value: Any,
    kept: NDArray[np.bool_],
    image_size: Sequence[int],
    out: NDArray[np.uint8],
    view: Sequence[int] | None = None,
    move: Sequence[float] = (1, 1, 0, 0),
    rows: NDArray[np.int64] | None = None,
    columns: NDArray[np.int64] | None = None,
) -> bool:
    """Sets the pixels of a record's kept objects to 1, without the GIL. Returns False if the value is damaged, or if
    run lengths do not have the image's size.

    Args:
        value: A stored value of segments.
        kept: Which objects to fill, ``(n,)``. Not checked against the value.
        image_size: Height and width of the image.
        out: Zeros, contiguous ``(kept.sum(), h, w)``.
        view: Top, left, height and width of the part of the moved image that the masks show; whether it is mirrored;
            and its top and left in the masks. None: the masks show the whole image.
        move: Factors of x and y, and then offsets, that move polygons to the scale of the masks.
        rows: Row of the image that each row of the masks shows, for run lengths; negative for none. None for all.
        columns: Likewise.

    Raises:
        EngineError: There is no engine.
    """
    height, width = out.shape[1:]
    rows = np.arange(height) if rows is None else np.ascontiguousarray(rows)
    columns = np.arange(width) if columns is None else np.ascontiguousarray(columns)
    top, left, visible, across, mirrored, down, right = (0, 0, height, width, 0, 0, 0) if view is None else view
    views = np.array([top, left, visible, across, width, mirrored, down, right], np.int64)
    shown = np.array([rows.ctypes.data, columns.ctypes.data, height, width, *image_size], np.int64)
    moves = np.array(move, np.float64)
    raw = bytes(value) or bytes(8)
    outcome = compiled.require_library().packstore_engine_segments(
        find_address(raw),
        len(raw),
        kept.ctypes.data,
        views.ctypes.data,
        moves.ctypes.data,
        shown.ctypes.data,
        out.ctypes.data,
        height * width,
    )
    return bool(outcome == compiled.DONE)


def fill_shapes(column: Column, shapes: Any, height: int, width: int) -> NDArray[np.uint8]:
    """Makes a mask for each shape of a value of segments, uint8 ``(n, height, width)``: 1 inside, else 0.

    Raises :class:`ValueError` for a value that is none, or does not fit the image.
    """
    masks = np.zeros((len(shapes), height, width), np.uint8)
    move = (width, height, 0, 0) if column.coordinates == "fractions" else (1, 1, 0, 0)
    if not fill_segments(to_stored(column, shapes), np.ones(len(shapes), np.bool_), (height, width), masks, move=move):
        raise ValueError(f"run lengths do not fill an image of {height} x {width} pixels")
    return masks


def encode_shape(shape: Any, height: int, width: int) -> dict[str, Any]:
    """Converts a shape in pixels to run lengths of an image. Raises as :func:`fill_shapes`."""
    return {"size": [height, width], "counts": encode_run_lengths(fill_shapes(PIXELS, [shape], height, width)[0] != 0)}
