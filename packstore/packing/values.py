"""The values of samples as they lie at rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from packstore.core.column import Column
from packstore.core.columns import NUMPY_DTYPE, shape_to_stored, to_stored
from packstore.core.errors import DecodeError, SampleError
from packstore.images.masks import read_mask_header
from packstore.sources.base import Sample, Survey


class AtRest:
    """Brings the values of samples to rest, for the columns whose values come with samples; for any thread.

    Attributes:
        masks: The columns of masks among them.
    """

    def __init__(self, survey: Survey) -> None:
        sampled = [column for column in survey.columns if column.name in survey.sampled]
        companions = {each.name for column in sampled for each in column.companions}
        # Each with the number of its classes, and 0 where it is no label.
        self._columns = [
            (column, len(column.classes or range(1 << 62)) if column.type == "label" else 0)
            for column in sampled
            if column.name not in companions
        ]
        self.masks = [column for column, _ in self._columns if column.type == "mask"]

    def __call__(self, key: str, sample: Sample) -> Mapping[str, Any]:
        """The value of every column, companions among them, and of ``key``.

        Raises :class:`SampleError` where one does not fit."""
        if sample.at_rest:
            return sample.values
        found: dict[str, Any] = {"key": key}
        for column, classes in self._columns:
            value = sample.values[column.name]
            if type(value) is int and 0 <= value < classes:
                found[column.name] = value  # a label, as most are
                if column.nullable:
                    found[column.valid_name] = True
                continue
            try:
                found[column.name] = to_stored(column, value)
                if column.kind == "ragged" and column.layout is not None:
                    found[column.shape_name] = shape_to_stored(column, value)
            except ValueError as error:
                raise SampleError(key, str(error)) from error
            if column.nullable:
                found[column.valid_name] = value is not None
        for column, _ in self._columns:
            if column.parallel is not None:
                self._check_parallel(key, column, found)
        return found

    def check_masks(self, key: str, sample: Sample, sizes: Sequence[tuple[int, int]], max_pixels: int) -> None:
        """Raises :class:`SampleError` where a mask has another size than its image.

        Args:
            key: The sample's, for messages.
            sample: It.
            sizes: Heights and widths with which the image may be shown; empty where nothing is known.
            max_pixels: Of the largest mask that is taken.
        """
        for column in () if sample.at_rest else self.masks:
            value = sample.values[column.name]
            if value is None:
                continue
            try:
                size = _mask_size(column, value, max_pixels)
            except DecodeError as error:
                raise SampleError(key, f"{column.name}: {error}") from error
            if sizes and size not in sizes:
                (height, width), (tall, wide) = size, sizes[0]
                raise SampleError(key, f"{column.name}: the mask is {height}x{width}, and its image {tall}x{wide}")

    def _check_parallel(self, key: str, column: Column, found: Mapping[str, Any]) -> None:
        boxes = next(each for each, _ in self._columns if each.name == column.parallel)
        rows = len(found[column.name]) // column.record_nbytes
        expected = len(found[boxes.name]) // boxes.record_nbytes
        if rows != expected:
            raise SampleError(
                key, f"{column.name!r} has {rows} rows and {boxes.name!r} has {expected}; expected as many"
            )


def _mask_size(column: Column, value: Any, max_pixels: int) -> tuple[int, int]:
    if column.layout is not None:
        height, width = np.shape(value)
        return height, width
    header = read_mask_header(value, max_pixels)
    return header.height, header.width


def nbytes_at_rest(values: Mapping[str, Any]) -> int:
    """Bytes of the values of a sample at rest."""
    return sum(len(value) if type(value) is bytes else getattr(value, "nbytes", 8) for value in values.values())


def as_columns(columns: Sequence[Column], values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The values of several records, column by column."""
    found: dict[str, Any] = {}
    for column in columns:
        if values and column.name in values[0]:
            name = column.name
            given = [each[name] for each in values]
            found[name] = given if column.kind == "ragged" else np.array(given, NUMPY_DTYPE[column.dtype])
    return found
