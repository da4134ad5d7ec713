"""torchvision's ``tv_tensors``, by which its transforms know images from boxes. Only here is torchvision imported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from packstore.core.errors import UsageError
from packstore.core.manifest import Column


class TVTensors:
    """Wraps the values of an item. Pickles without the module, which each process imports for itself."""

    def __init__(self, columns: Iterable[Column]) -> None:
        """
        Args:
            columns: Those that will be wrapped.

        Raises:
            UsageError: torchvision cannot be imported, or has no kind of tensor for a column."""
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
            if column.type != "keypoints":
                continue
            if column.coordinates == "xyv":
                raise UsageError(
                    f"column {column.name!r} holds keypoints with their visibility, and torchvision's transforms know "
                    "no such: use output='dict', or leave the column out"
                )
            if not hasattr(tv_tensors, "KeyPoints"):
                raise UsageError(f"column {column.name!r} holds keypoints, which need torchvision 0.23 or later")

    def wrap(self, column: Column, value: Any, size: tuple[int, int]) -> Any:
        """``value`` of ``column`` as torchvision's type for it, or as it is where there is none.

        Args:
            column: Its column.
            value: As ``output="tensor"`` gives it.
            size: Height and width of the record's image."""
        if isinstance(value, list) and column.form == "files":
            return [self._kinds.Image(image) for image in value]
        if not isinstance(value, torch.Tensor):
            return value
        match column.type:
            case "image":
                return self._kinds.Image(value)
            case "mask":
                return self._kinds.Mask(value)
            case "boxes":
                return self._kinds.BoundingBoxes(value, format="XYXY", canvas_size=size)
            case "keypoints":
                return self._kinds.KeyPoints(value, canvas_size=size)
        return value

    def __reduce__(self) -> tuple[type[TVTensors], tuple[tuple[()]]]:
        return TVTensors, ((),)
