"""Makes the readers of a loader's columns besides the main image, and refuses columns that its options do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from packstore.core.errors import StoreError, UsageError
from packstore.core.manifest import Column
from packstore.training.augment.base import Operation
from packstore.training.augment.operations import ONE_SIZE
from packstore.training.augment.steps import check_targets
from packstore.training.dataset import PackedDataset
from packstore.training.loader.assembler import Assembler
from packstore.training.loader.columns import (
    ColumnReader,
    ColumnReaders,
    NumberReader,
    ObjectReader,
    missing_value_error,
)
from packstore.training.loader.options import LoaderOptions
from packstore.training.pictures import describe_record

_LOOKED_UP_AT_ONCE = 1 << 20
_SAMPLES = 1000
"""Most records that are searched for hidden boxes."""


def make_column_readers(
    dataset: PackedDataset,
    options: LoaderOptions,
    new_assembler: Callable[[Column], Assembler],
    finish: Callable[..., torch.Tensor],
    names: Sequence[str] | None = None,
    one_by_one: bool = False,
    form: str | None = None,
) -> ColumnReaders:
    """Makes the readers of a loader's columns besides the main image.

    If labels or keypoints of boxes are read, reads their boxes, too: it drops the rows of dropped boxes.

    Args:
        dataset: The dataset.
        options: Options of the loader.
        new_assembler: Makes the assembler of a further column of images.
        finish: See :class:`ImageColumnReader`.
        names: Names of the columns; None for all columns of the dataset.
        one_by_one: Images are augmented one by one.
        form: Form of the main images if they differ in size, ``"list"`` or ``"padded"``. Masks, and volumes of one
            shape, have the same form.

    Raises:
        UsageError: Columns that the operations cannot move, or that do not support the form in ``collate``. An
            unknown column in ``collate``. Further images, if ``one_by_one``. Boxes in a JSON column of the first
            record, if operations move pixels.
    """
    column = dataset.manifest.column
    asked = [name for name in (dataset.columns if names is None else names) if name != "image"]
    columns = [column(name) for name in asked]
    moving = any(isinstance(op, Operation) and op.moves_pixels for op in options.augment)
    # Labels are dropped with their boxes, so the boxes are read too.
    hidden = {c.parallel for c in columns if c.parallel is not None} - {*asked} if moving else set()
    columns += [column(name) for name in sorted(hidden)]
    called = options.augment if options.transform is None else (*options.augment, options.transform)
    check_targets(called, [c.type for c in columns])
    if moving:
        refuse_hidden_boxes(dataset, columns)
    images = [c.name for c in columns if c.holds_one_image]
    if one_by_one and images:
        raise UsageError(
            f"images that differ in size on their way are augmented one by one, and {', '.join(images)} cannot "
            "follow: begin augment= with operations that give one size, " + ONE_SIZE
        )
    collate = options.collate or {}
    if moving:
        refuse_lists(columns, collate)
    carried = [c.name for c in columns if c.traits.moves or c.traits.is_picture]
    check_collate(columns[: len(asked)], collate)

    def reader(column: Column) -> ColumnReader:
        asked_form: str = collate.get(column.name, "list")
        optional = asked_form == "optional" or column.name in hidden
        match column.collation:
            case "image_lists":
                from packstore.training.loader.decoded_columns import ImageListColumnReader

                return ImageListColumnReader(dataset.list_reader(column), optional or asked_form == "list")
            case "images":
                from packstore.training.loader.decoded_columns import ImageColumnReader

                return ImageColumnReader(column, optional, new_assembler, finish)
            case "planes":
                from packstore.training.loader.decoded_columns import MaskReader

                ragged = None if column.layout in (None, "HW") or column.kind == "fixed" else asked_form
                ragged = "list" if ragged == "optional" else ragged
                return MaskReader(column, optional, options.mask_fill, dataset.max_pixels, ragged or form)
            case "objects":
                return ObjectReader(column, optional)
            case "stack":
                return NumberReader(column, optional)
            case "segments":
                from packstore.training.loader.segments import SegmentsReader

                return SegmentsReader(column, options.segments, optional)
            case "rows":
                from packstore.training.loader.ragged_columns import RaggedReader

                least = options.min_area, options.min_visible
                return RaggedReader(column, "list" if asked_form == "optional" else asked_form, optional, *least)

    # Objects first: they decide which rows of other columns are kept.
    readers = [reader(c) for c in sorted(columns, key=lambda c: not c.traits.rows_are_objects)]
    return ColumnReaders(dataset, options.augment, readers, asked, carried, places=moving and bool(carried))


def refuse_lists(columns: Sequence[Column], collate: Mapping[str, Any]) -> None:
    """Raises :class:`UsageError` if ``columns`` have lists of images for which ``collate`` does not ask: they cannot
    follow operations that move pixels."""
    lists = [c.name for c in columns if c.form == "files" and collate.get(c.name) != "list"]
    if lists:
        names = ", ".join(lists)
        raise UsageError(
            f"augment= moves the pixels of the column 'image', and the lists of images in {names} would stay as they "
            f"are: leave {names} out of columns=, or ask for the images as they are with "
            f"collate={{{', '.join(f'{name!r}: {chr(39)}list{chr(39)}' for name in lists)}}}"
        )


def check_collate(columns: list[Column], collate: Mapping[str, Any]) -> None:
    """Raises :class:`UsageError` if ``collate`` names an unknown column, or a form that a column does not have.

    - ``"padded"`` and ``"list"`` are for images, and for columns of many rows. ``"list"`` is also for lists of files.
    - ``"multi_hot"`` is for several labels with classes.
    - ``"optional"`` is for any column but the images.
    """
    known = {column.name: column for column in columns}
    for name, form in collate.items():
        if name == "image":
            if form not in ("list", "padded"):
                raise UsageError(f"collate={{'image': {form!r}}}: images are a list, or padded")
            continue
        if name not in known:
            raise UsageError(
                f"collate names the column {name!r}; the dataset gives {', '.join(known) or 'only images'}"
            )
        column = known[name]
        single = column.kind == "fixed" or column.traits.is_picture or column.traits.is_object
        if form in ("padded", "list") and single and (form, column.form) != ("list", "files"):
            raise UsageError(f"collate={{{name!r}: {form!r}}}: column {name!r} ({column.type}) is not of many rows")
        if form == "multi_hot" and (column.collation != "rows" or column.shape or column.classes is None):
            raise UsageError(f"collate={{{name!r}: 'multi_hot'}} is for several labels with classes, not {column.type}")


def refuse_missing_values(dataset: PackedDataset, collate: Mapping[str, Any], items: Sequence[int]) -> None:
    """Raises :class:`UsageError` if one of the ``items`` has no value in a column that needs one. Skips stores at a
    URL, whose shards it would have to fetch."""
    reader = dataset.reader
    start = reader.split(dataset.split).start
    for name in dataset.columns if reader.table.cache is None else ():
        column = dataset.manifest.column(name)
        if not column.nullable or collate.get(name) == "optional" or column.collation == "image_lists":
            continue
        for first in range(0, len(items), _LOOKED_UP_AT_ONCE):
            records = np.array(items[first : first + _LOOKED_UP_AT_ONCE], np.int64) + start
            missing = records[~reader.values(column.valid_name, records)]
            if len(missing):
                raise missing_value_error(describe_record(reader, int(missing[0])), name)


def resident_obstacle(dataset: PackedDataset, collate: Mapping[str, Any]) -> str | None:
    """Returns the reason why a dataset's columns cannot be kept in device memory. Returns None if they can.

    The columns that can be kept are the main image, the keys, and numbers of one shape. Missing values are an
    obstacle. So is a form in ``collate``, except one of ``image``."""
    for name in dataset.columns:
        column = dataset.manifest.column(name)
        plain = name in ("image", "key") or column.collation == "stack"
        if not plain or column.nullable or (name in collate and name != "image"):
            return f"the column {name!r} is read as it is needed (columns= of the dataset can leave it out)"
    return None


def refuse_hidden_boxes(dataset: PackedDataset, columns: Sequence[Column]) -> None:
    """Raises :class:`UsageError` if one of the ``columns`` holds boxes that no operation moves, as JSON may.

    The manifest tells. For a store whose manifest does not, looks at up to 1,000 records.
    """
    for column in columns:
        hides = column.hides_boxes
        if hides is None:
            hides = column.traits.find_hidden_boxes(column, _read_samples(dataset, column))
        if hides:
            raise UsageError(
                f"the column {column.name!r} ({column.type}) holds boxes, which would stay where they are while their "
                "image is moved; leave it out of columns=, or pack the boxes as a column of type boxes "
                "(packstore guide loading)"
            )


def _read_samples(dataset: PackedDataset, column: Column) -> Iterator[Any]:
    """Yields stored values of up to 1,000 of the dataset's records, evenly spaced, of local files and the first."""
    records = dataset._record_of_item(0) + np.linspace(0, len(dataset) - 1, min(len(dataset), _SAMPLES), dtype=np.int64)
    reader = dataset.reader.unchecked_reader
    local = reader.table.are_local(reader.table.find(records))
    local[0] = True
    for record in records[local].tolist():
        with suppress(StoreError):  # the loader raises for the record, or skips it, when it is its turn
            yield reader.value(column.name, record)
