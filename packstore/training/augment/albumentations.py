"""``Albumentations``: a pipeline of albumentations as the last operation of a loader."""

from __future__ import annotations

import copy
import random
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.core.manifest import Column
from packstore.training.augment.base import Operation, Size
from packstore.training.augment.steps import stable_repr
from packstore.training.random_draws import Draws, derive_key

_ROWS, _POINTS = "packstore_rows", "packstore_points"
"""Names under which the numbers of boxes and points go through a pipeline."""


@dataclass(frozen=True, repr=False)
class Albumentations(Operation):
    """Runs a pipeline of albumentations on each record: its image, masks, boxes and keypoints together.

    The last operation of ``augment=``. Its draws depend only on seed, epoch and record: not on the ``seed`` of the
    pipeline, on threads or on resuming. Threads work on copies of the pipeline.

    Boxes and keypoints keep the loader's format; the pipeline's ``format`` is ignored. Other fields of ``bbox_params``
    are used. Without ``bbox_params``, boxes are clipped, and the loader's ``min_area`` and ``min_visible`` drop boxes.
    Rows that describe boxes, such as labels, are dropped with them, so ``label_fields`` are not needed. Keypoints
    outside the image are kept; with visibility, they become zeros.

    ``normalize`` and ``dtype`` of the loader follow, unless the pipeline gives floating point images. Images of
    different sizes need ``collate={"image": "list"}`` or ``"padded"``.

    Args:
        pipeline: A ``Compose``, or a single transform. Of albumentations 2 or later.

    Raises:
        UsageError: ``pipeline`` is not of albumentations, or of a version without ``set_random_state``. In a loader: it
            is not the last operation, or options and columns that it does not support.
    """

    pipeline: Any

    def __post_init__(self) -> None:
        if not (callable(self.pipeline) and hasattr(self.pipeline, "set_random_state")):
            raise UsageError(
                "Albumentations takes a Compose or a transform of albumentations 2 or later, got "
                f"{stable_repr(self.pipeline)}"
            )

    works_on_records: ClassVar[bool] = True

    def __repr__(self) -> str:
        return f"Albumentations({stable_repr(self.pipeline)})"

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the copies of the pipeline."""
        return {"pipeline": self.pipeline}

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        """Raises :class:`UsageError`: a loader runs this operation on records."""
        raise UsageError("Albumentations works on whole records: put it last in augment= of a PackedLoader")

    @property
    def moves_pixels(self) -> bool:
        """True: the pipeline may move pixels."""
        return True

    def size_after(self, size: Size | None) -> Size | None:
        """Returns None: the pipeline may give any size."""
        return None

    @cached_property
    def _idle_pipelines(self) -> deque[Any]:
        """Copies of the pipeline that no thread uses."""
        return deque()

    def run_on_record(
        self, values: Mapping[str, Any], columns: Mapping[str, Column], seed: int, limits: Mapping[str, float]
    ) -> dict[str, Any]:
        """Runs the pipeline on the values of a record. Thread-safe.

        Args:
            values: ``image``, a tensor ``(C, h, w)``, and the values of other columns on the CPU, by name. None for a
                missing value.
            columns: The columns of these values.
            seed: Seed of the draws, 32 bits.
            limits: ``min_area`` and ``min_visibility`` of boxes.

        Returns:
            All values by name; unchanged values are the same objects.
        """
        given, results = _Record(values, columns), dict(values)
        try:
            # Threads share the deque, whose pop and append are atomic.
            pipeline = self._idle_pipelines.pop()
        except IndexError:
            pipeline = _copy_with_targets(self.pipeline, columns, limits)
        generator = np.random.default_rng(derive_key(seed, 0))
        pipeline.set_random_state(generator, random.Random(derive_key(seed, 1)))
        done = pipeline(**given.make_arguments())
        self._idle_pipelines.append(pipeline)
        return results | given.read_results(done)


class _Record:
    """The values of a record as albumentations takes them."""

    def __init__(self, values: Mapping[str, Any], columns: Mapping[str, Column]) -> None:
        by_type = {kind: [name for name, column in columns.items() if column.type == kind] for kind in _TARGETS}
        self._values, self._columns = values, columns
        self._masks = [name for name in by_type["mask"] if values[name] is not None]
        self._boxes = next((name for name in by_type["boxes"] if values[name] is not None), None)
        self._points = next((name for name in by_type["keypoints"] if values[name] is not None), None)

    def make_arguments(self) -> dict[str, Any]:
        """Returns the arguments for a call of the pipeline."""
        values, image = self._values, self._values["image"].permute(1, 2, 0)
        image = image.float() if image.is_floating_point() else image  # OpenCV has no other floats
        arguments = {"image": np.ascontiguousarray(image.numpy())}
        arguments |= {name: np.ascontiguousarray(values[name].numpy()) for name in self._masks}
        if any(column.type == "boxes" for column in self._columns.values()):
            boxes = values[self._boxes].numpy() if self._boxes else np.empty((0, 4), np.float32)
            arguments |= {"bboxes": boxes, _ROWS: np.arange(len(boxes))}  # numbers show which rows are left
        if any(column.type == "keypoints" for column in self._columns.values()):
            points = values[self._points].numpy() if self._points else np.empty((0, 2), np.float32)
            points = points.reshape(-1, points.shape[-1])[:, :2]
            arguments |= {"keypoints": points, _POINTS: np.arange(len(points))}
        return arguments

    def read_results(self, done: Mapping[str, Any]) -> dict[str, Any]:
        """Converts the results of a pipeline to values of the record, by name."""
        image = done["image"]
        image = image if isinstance(image, Tensor) else torch.from_numpy(_to_channels_first(image))
        given: Tensor = self._values["image"]
        results: dict[str, Any] = {"image": image.to(given.dtype) if given.is_floating_point() else image}
        for name in self._masks:
            mask = torch.as_tensor(done[name])
            results[name] = mask.to(self._values[name].dtype)
        kept = None
        if self._boxes is not None:
            kept = torch.from_numpy(np.asarray(done[_ROWS], np.int64).reshape(-1))
            results[self._boxes] = torch.from_numpy(np.array(done["bboxes"], np.float32).reshape(-1, 4))
        if self._points is not None:
            results[self._points] = self._place_points(done, image.shape[-2:])
        for name, column in self._columns.items():
            if kept is not None and column.parallel == self._boxes and self._values[name] is not None:
                results[name] = results.get(name, self._values[name])[kept]
        return results

    def _place_points(self, done: Mapping[str, Any], size: Any) -> Tensor:
        """Returns the keypoints at their new places."""
        assert self._points is not None
        old: Tensor = self._values[self._points]
        new = old.clone().reshape(-1, old.shape[-1])
        rows = torch.from_numpy(np.asarray(done[_POINTS], np.int64).reshape(-1))
        places = torch.from_numpy(np.array(done["keypoints"], np.float32).reshape(-1, 2))
        new[rows, :2] = places
        if old.shape[-1] == 3:
            # With visibility, points outside the image become zeros.
            lost = torch.ones(len(new), dtype=torch.bool)
            limit = torch.tensor([size[1], size[0]])
            lost[rows] = ~((places > -1) & (places < limit)).all(1)  # as in place_points: a point is a pixel
            new[lost | (new[:, 2] == 0)] = 0
        return new.reshape(old.shape)


_TARGETS = ("mask", "boxes", "keypoints")


def refuse_columns(columns: Mapping[str, Column], collate: Mapping[str, Any]) -> None:
    """Raises :class:`UsageError` for columns and ``collate`` options that no pipeline supports."""
    for kind in ("boxes", "keypoints"):
        names = [name for name, column in columns.items() if column.type == kind]
        if len(names) > 1:
            raise UsageError(f"Albumentations moves one column of {kind}, got {', '.join(names)}: leave some out")
    for name, column in columns.items():
        moved = column.traits.moves or column.traits.has_images
        if moved and name != "image" and column.type not in _TARGETS:
            raise UsageError(
                f"Albumentations moves masks, boxes and keypoints, and not the column {name!r} ({column.type}): leave "
                "it out of columns="
            )
        if (moved or column.parallel is not None) and name != "image" and collate.get(name, "optional") != "optional":
            raise UsageError(f"Albumentations gives a list of {name!r}: leave it out of collate=")


def _copy_with_targets(pipeline: Any, columns: Mapping[str, Column], limits: Mapping[str, float]) -> Any:
    """Returns a copy of a pipeline that takes the masks, boxes and keypoints of these columns."""
    albumentations: Any = sys.modules["albumentations"]  # whose pipeline this is
    types = {column.type for column in columns.values()}
    steps = copy.deepcopy(pipeline)
    given = steps.processors if isinstance(steps, albumentations.Compose) else {}
    options: dict[str, Any] = {}
    if "boxes" in types:
        # The loader gives boxes in one format, so only other fields of the user's bbox_params are kept.
        own = vars(given["bboxes"].params) if "bboxes" in given else {"clip": True, **limits}
        chosen = {name: own[name] for name in _BOX_OPTIONS if name in own}
        options["bbox_params"] = albumentations.BboxParams("pascal_voc", [_ROWS], **chosen)
    if "keypoints" in types:
        options["keypoint_params"] = albumentations.KeypointParams("xy", [_POINTS], remove_invisible=False)
    masks = {name: "mask" for name, column in columns.items() if column.type == "mask"}
    if isinstance(steps, albumentations.Compose):
        parts, options["p"] = steps.transforms, steps.p
    else:
        parts = [steps]
    return albumentations.Compose(parts, additional_targets=masks, **options)


_BOX_OPTIONS = (
    *("min_area", "min_visibility", "min_width", "min_height", "check_each_transform", "clip"),
    *("filter_invalid_bboxes", "max_accept_ratio"),
)


def _to_channels_first(image: Any) -> Any:
    """Returns an image ``(h, w, C)`` or ``(h, w)`` as a contiguous array ``(C, h, w)``."""
    image = image[..., None] if image.ndim == 2 else image
    return np.ascontiguousarray(image.transpose(2, 0, 1))
