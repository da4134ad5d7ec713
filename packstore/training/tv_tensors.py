"""Wraps values in torchvision's ``tv_tensors``, whose types tell its transforms images from boxes. The only import
of torchvision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from packstore.core.errors import UsageError
from packstore.core.manifest import Column
from packstore.images.segment_masks import fill_shapes


class TVTensors:
    """Wraps the values of an item in torchvision's types.

    Raises :class:`UsageError` if torchvision is missing, or lacks a type for a column. Pickles without its module: each
    process imports that again.
    """

    def __init__(self, columns: Iterable[Column]) -> None:
        """
        Args:
            columns: Columns that will be wrapped.

        Raises:
            UsageError: torchvision cannot be imported, or has no type for a column."""
        try:
            from torchvision import tv_tensors
        except (ImportError, OSError, RuntimeError) as error:
            first = str(error).partition("\n")[0]
            missing = isinstance(error, ModuleNotFoundError)
            advice = "install it" if missing else "see packstore guide troubleshooting"
            raise UsageError(
                f"output='tv_tensors' needs torchvision, which cannot be imported here ({first}); {advice}, or use "
                "output='dict'"
            ) from error
        self._kinds: Any = tv_tensors
        for column in columns:
            traits = column.traits
            if traits.moves and not traits.lies_on_image and column.coordinates is None:
                raise UsageError(
                    f"column {column.name!r} ({column.type}) moves with the image, and torchvision has no type for it: "
                    "use output='dict', or leave the column out"
                )
            if column.coordinates not in ("xy", "xyv"):
                continue
            if column.coordinates == "xyv":
                raise UsageError(
                    f"column {column.name!r} holds keypoints with their visibility, and torchvision's transforms know "
                    "no such: use output='dict', or leave the column out"
                )
            if not hasattr(tv_tensors, "KeyPoints"):
                raise UsageError(f"column {column.name!r} holds keypoints, which need torchvision 0.23 or later")

    def wrap_value(self, column: Column, value: Any, size: tuple[int, int]) -> Any:
        """Wraps ``value`` in torchvision's type for its column. Wraps each image of a list. Returns other values
        unchanged. Segments become masks, uint8 ``(n, H, W)``.

        Args:
            column: Column of the value.
            value: Value as with ``output="tensor"``.
            size: Height and width of the record's image.
        """
        if value is not None and column.collation == "segments":
            return self._kinds.Mask(torch.from_numpy(fill_shapes(column, value, *size)))
        if isinstance(value, list) and column.form == "files":
            return [self._kinds.Image(image) for image in value]
        if not isinstance(value, torch.Tensor):
            return value
        if column.holds_one_image:
            return self._kinds.Image(value)
        if column.traits.blends:
            return self._kinds.Video(value) if value.ndim == 4 else self._kinds.Image(value)
        if column.traits.lies_on_image:
            return self._kinds.Mask(value)
        if column.coordinates is None:
            return value
        if column.coordinates == "xyxy":
            return self._kinds.BoundingBoxes(value, format="XYXY", canvas_size=size)
        return self._kinds.KeyPoints(value, canvas_size=size)

    def __reduce__(self) -> tuple[type[TVTensors], tuple[tuple[()]]]:
        return TVTensors, ((),)
