"""Converts values of samples to the form in which stores keep them, and checks image files beside the main image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from packstore.core.columns import NUMPY_DTYPE, Column, find_file_columns, shape_to_stored, to_stored
from packstore.core.errors import DecodeError, SampleError, UsageError, printable
from packstore.core.modes import RGB
from packstore.core.registry import ENCODINGS
from packstore.images.encode import EncodeOptions, SourceImages
from packstore.images.image_files import examine_losses
from packstore.images.reading import Reading
from packstore.images.sniff import HeaderError, ImageInfo, check_header
from packstore.packing import ConvertOptions
from packstore.packing.frames import FrameAligner, list_sampled_columns
from packstore.packing.source_arguments import KEEP, format_answers
from packstore.sources.base import Entry, Sample, Source, Survey
from packstore.sources.values import nbytes_of


class ValueConverter:
    """Converts a sample's values to stored form: bytes, numbers and their companion columns. Thread-safe.

    Calling it raises :class:`SampleError` for values that do not fit their columns.

    Attributes:
        masks: The columns of masks, volumes and clips.
        align: Moves the annotations of a sample, with its key, to the frame of its image, see
            :meth:`FrameAligner.align`. Call it before the sample is converted.
    """

    def __init__(
        self,
        source: Source,
        survey: Survey,
        check_files: Callable[[str, Mapping[str, Any], Entry | None], None] | None = None,
        aligner: FrameAligner | None = None,
    ) -> None:
        """
        Args:
            source: The source of the samples, which names their files in messages.
            survey: Its survey.
            check_files: Called with the key, the stored values and the entry of each sample. May raise.
            aligner: Moves annotations to the frame of the images; None leaves them.
        """
        self.align: Callable[[str, Sample], Sample] = (lambda _, sample: sample) if aligner is None else aligner.align
        # Each with its number of classes; 0 if a value is no class number.
        self._columns = [
            (column, len(column.classes or range(1 << 62)) if column.holds_class else 0)
            for column in list_sampled_columns(survey)
        ]
        self._images = [column.name for column, _ in self._columns if column.holds_images]
        self._source, self._check_files = source, check_files
        self.masks = [column for column, _ in self._columns if column.traits.lies_on_image]

    def count_further_bytes(self, sample: Sample) -> int:
        """Sums the bytes of a sample's images, except the main one. Masks do not count."""
        values = (sample.values[name] for name in self._images)
        lists = (value if isinstance(value, list) else [value] for value in values if value is not None)
        return sum(nbytes_of(each) for value in lists for each in value)

    def __call__(self, key: str, sample: Sample, entry: Entry | None = None) -> Mapping[str, Any]:
        """Returns the stored values of all columns, of their companion columns (validity, shape) and of ``key``.

        Returns the values of a sample in stored form unchanged. Calls ``check_files`` in both cases. Errors name the
        file of a value if ``entry``, the sample's, is given.

        Raises :class:`SampleError` if a value does not fit its column, or if boxes and a column that describes them
        differ in rows.
        """
        if sample.at_rest:
            if self._check_files is not None:
                self._check_files(key, sample.values, entry)
            return sample.values
        stored: dict[str, Any] = {"key": key}
        for column, classes in self._columns:
            value = sample.values[column.name]
            if type(value) is int and 0 <= value < classes:
                stored[column.name] = value  # a label, as most are
                if column.nullable:
                    stored[column.valid_name] = True
                continue
            try:
                stored[column.name] = to_stored(column, value)
                if column.kind == "ragged" and column.layout is not None:
                    stored[column.shape_name] = shape_to_stored(column, value)
            except ValueError as error:
                raise self._make_unfit_error(key, str(error), entry, column) from error
            if column.nullable:
                stored[column.valid_name] = value is not None
        for column, _ in self._columns:
            if column.parallel is not None:
                self._check_row_count(key, column, stored)
        if self._check_files is not None:
            self._check_files(key, stored, entry)
        return stored

    def check_masks(
        self, key: str, sample: Sample, sizes: Sequence[tuple[int, int]], max_pixels: int, entry: Entry
    ) -> None:
        """Raises :class:`SampleError` if a mask, volume or clip cannot be read, or differs in size from its image.

        Skips samples in stored form, and missing values.

        Args:
            key: Key of the sample, for messages.
            sample: The sample.
            sizes: Allowed (height, width) pairs; empty if the image's size is not known.
            max_pixels: Size limit of a mask file.
            entry: Its entry, for messages.
        """
        for column in () if sample.at_rest else self.masks:
            value = sample.values[column.name]
            if value is None:
                continue
            try:
                size = _read_mask_size(column, value, max_pixels)
            except DecodeError as error:
                raise self._make_unfit_error(key, f"{column.name}: {error}", entry, column) from error
            if sizes and size not in sizes:
                (height, width), (tall, wide) = size, sizes[0]
                what = f"the {column.type} is {height}x{width}, and its image {tall}x{wide}"
                raise self._make_unfit_error(key, f"{column.name}: {what}", entry, column)

    def _make_unfit_error(self, key: str, reason: str, entry: Entry | None, column: Column) -> SampleError:
        """Returns the error for a value that does not fit its column, with the name of the value's file."""
        file = None if entry is None else self._source.further_file_name(entry, column.name, 0)
        return SampleError(key, reason if file is None else f"its {printable(file)}: {reason}")

    def _check_row_count(self, key: str, column: Column, stored: Mapping[str, Any]) -> None:
        """Raises :class:`SampleError` if a column that describes boxes does not have one row for each box."""
        boxes = next(each for each, _ in self._columns if each.name == column.parallel)
        rows, expected = (each.traits.count_rows(each, stored[each.name]) for each in (column, boxes))
        if rows != expected:
            raise SampleError(
                key, f"{column.name!r} has {rows} rows and {boxes.name!r} has {expected}; expected as many"
            )


def _read_mask_size(column: Column, value: Any, max_pixels: int) -> tuple[int, int]:
    """Returns height and width of a mask, which is an array or the bytes of a file."""
    if column.layout is not None:
        shape = np.shape(value)
        return shape[-2], shape[-1]
    from packstore.images.masks import read_mask_header

    header = read_mask_header(value, max_pixels)
    try:
        check_header(value)
    except HeaderError as error:
        raise DecodeError(f"the mask {error.reason}") from None
    return header.height, header.width


def count_stored_bytes(values: Mapping[str, Any]) -> int:
    """Sums the bytes of a sample's stored values. Counts 8 for a plain number or a text."""
    return sum(len(value) if type(value) is bytes else getattr(value, "nbytes", 8) for value in values.values())


def stack_values(columns: Sequence[Column], values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Collects the values of several records by column. Ragged columns become lists, fixed ones arrays.

    Leaves out columns that the first record lacks. Empty without records.
    """
    stacked: dict[str, Any] = {}
    for column in columns:
        if values and column.name in values[0]:
            name = column.name
            column_values = [each[name] for each in values]
            stacked[name] = (
                column_values if column.kind == "ragged" else np.array(column_values, NUMPY_DTYPE[column.dtype])
            )
    return stacked


_EIGHT_BITS = "--depth scale, clip or window:LO,HI (8 bits, of all columns)"


class FileChecks:
    """Checks image files in columns beside the main image. Call it with a sample's values. Thread-safe.

    Finds files with a damaged header or end, and files that would lose something (depth, channels, alpha, frames)
    without an option that allows it. Checks nothing if ``check`` is ``none``, and no files of a store that will be read
    in the same mode.
    """

    def __init__(self, source: Source, survey: Survey, encode: EncodeOptions, options: ConvertOptions) -> None:
        store, self._source = survey.store, source
        self._options = options
        self._counted = survey.counted
        self._columns = []
        for column in find_file_columns(survey.columns) if encode.check != "none" else ():
            if column.name not in survey.sampled:
                continue
            if store is not None and store.column(column.name).mode == column.mode:
                continue  # do not ask again about files of a store, unless they will be read in another way
            recorded = encode.reading.answers() | format_answers(options.column_answers)
            own = options.column_answers.get(column.name, {}).get("mode")
            named = own if own is not None else options.mode
            chosen = named == column.pixels.name if own is not None else named == RGB.name and column.mode is None
            reading = replace(Reading.of_column(column, recorded), chosen=chosen)
            only_header = EncodeOptions(max_pixels=encode.max_pixels, reading=reading)
            self._columns.append((column, reading, SourceImages(only_header, ENCODINGS["original"])))

    def __call__(self, key: str, stored: Mapping[str, Any], entry: Entry | None) -> None:
        """Checks the files in the stored values of a sample. ``entry``: its entry, for messages.

        Raises:
            SampleError: A file is damaged.
            UsageError: A file would lose something, and no option allows it.
        """
        for column, reading, images in self._columns:
            if column.nullable and not stored[column.valid_name]:
                continue
            for number, data in enumerate(column.traits.files(column, stored[column.name])):
                where = f"column {column.name!r}" + (f": image {number}" if column.form == "files" else "")
                try:
                    _, info = images.check_file(key, data if isinstance(data, bytes) else memoryview(data))
                    losses = examine_losses(data, info, reading).losses if info is not None else {}
                except (HeaderError, DecodeError) as error:
                    raise SampleError(key, f"{where}: {getattr(error, 'reason', error)}") from error
                if losses and info is not None:
                    file = None if entry is None else self._source.further_file_name(entry, column.name, number)
                    named = "" if file is None else f" ({printable(file)})"
                    what = self._describe_loss(column, reading, losses, data, info)
                    raise UsageError(f"{printable(key)}: {where}{named}: {what}")

    def _describe_loss(
        self, column: Column, reading: Reading, losses: Mapping[str, str], data: Any, info: ImageInfo
    ) -> str:
        """Returns the message for a file that would lose something, with the options that help."""
        from packstore.images import image_files

        described = image_files.describe_image(memoryview(data), info, reading.frame)
        mode = "" if described is None else described.mode.name
        has = f"it has {'; and '.join(losses.values())}. The images of this column are read as {reading.pixels}. "
        own = f"--column {column.name}"
        eight = f"{own}.depth=scale, clip or window:LO,HI (8 bits)" if self._counted else _EIGHT_BITS
        answers = self._options.answers_for(column.name)
        kept = KEEP in (answers.mode, answers.depth)
        if ("depth" in losses or "channels" in losses) and (kept or column.mode is not None):
            instead = f", or {eight}" if kept or reading.pixels.dtype == "uint8" else ""
            return (
                f"{has}A column has one mode, here that of its first file or of its declaration: leave such files out "
                f"with --ignore{instead if 'depth' in losses else ''}"
            )
        declared = f"fields={{…, {column.name!r}: packstore.{'Images' if column.form == 'files' else 'Image'}"
        keep = f"{declared}(mode={mode!r})}} (values as they are)"
        offered = {
            "depth": f"{keep}, or {eight}",
            "frames": "--frames first",
            "channels": f"{keep}, or --mode RGB",
            "alpha": f"{keep}, or --alpha drop or over:COLOUR",
        }
        if self._counted:
            offered = {
                "depth": f"{own}.depth=keep (values as they are), or {eight}",
                "frames": f"{own}.frames=first, or the number of a frame from 0",
                "channels": f"{own}.mode=keep (all channels), or {own}.mode=RGB",
                "alpha": f"{own}.alpha=keep, or {own}.alpha=drop or over:COLOUR",
            }
        return (
            f"{has}To pack this file and those like it: {'; '.join(offered[name] for name in losses)}; or leave them "
            "out with --ignore"
        )
