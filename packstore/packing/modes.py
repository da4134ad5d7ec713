"""Chooses the mode (channels and dtype) of each image column: the requested one, the source's, or that of the first
image.

An option of a single column, such as ``--column NAME.depth=scale``, answers a question about the files of that column.
So these options are called answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from packstore.core.column import Column, find_file_columns
from packstore.core.columns import Buffer
from packstore.core.errors import DecodeError, SampleError, SourceError, UsageError, printable
from packstore.core.modes import RGB, Mode, mode_of, parse_mode, with_dtype
from packstore.core.registry import ENCODINGS
from packstore.images.reading import OF_SOURCES, Reading
from packstore.images.sniff import HeaderError, check_header
from packstore.packing.options import ConvertOptions
from packstore.packing.source_arguments import KEEP, Answers
from packstore.sources.base import Sample, Source, Survey

_LOOKED_FOR = 1000
"""Number of samples among which the first file of a column is looked for."""


def resolve_reading(source: Source, survey: Survey, options: ConvertOptions) -> Reading:
    """Resolves how to read the images of a source: their mode, and the options for depth, alpha and frames.

    Reads image files as RGB unless an option says otherwise; with ``keep``, opens the first image to learn its mode.
    Arrays and stores have a mode of their own.

    Raises:
        UsageError: An option does not apply to this source.
        SourceError: The first image cannot be read.
    """
    store = survey.store
    base = Reading(survey.mode or RGB.name) if store is None else Reading.restore(store.image.mode, store.options)
    answers = {name: getattr(options, name) for name in ("depth", "alpha", "frames")}
    given = {name: str(value) for name, value in answers.items() if value not in (None, KEEP)}
    if given.get("frames") in OF_SOURCES:
        del given["frames"]
    if options.pixels is not None or (base.by_pillow and not given and options.mode in (None, RGB.name)):
        if options.pixels is not None and ENCODINGS[survey.encoding].layout is not None:
            raise UsageError(
                f"{printable(str(source.path))} ({source.kind}) holds pixels of mode {base.pixels}, not image files: "
                "leave pixels out"
            )
        return Reading(chosen=store is not None, by_pillow=True)
    reading = replace(Reading.restore(base.mode, base.answers() | given), chosen=store is not None)
    holds_arrays = ENCODINGS[survey.encoding].layout == "HWC" and not find_file_columns(survey.columns)
    if holds_arrays and not source.read_like_store:
        _refuse_unused_options(base, options, str(source.path), source.kind)
        _refuse_wide_scale(base, options, survey, str(source.path))
    is_raw = survey.encoding == base.pixels.dtype and (store is None or store.normalization is None)
    if ENCODINGS[survey.encoding].layout == "CHW" and not (is_raw and options.depth not in (None, KEEP)):
        _refuse_other_mode(base, options, is_raw)
        return base
    if options.mode not in (None, KEEP):
        _refuse_narrower_mode(reading, survey, options.mode)
        return replace(reading, mode=options.mode, chosen=True)
    if ENCODINGS[survey.encoding].layout is not None:
        return _resolve_array_reading(reading, given)
    if KEEP not in (options.mode, options.depth, options.alpha):
        return reading
    return replace(
        reading, mode=resolve_kept_mode(_read_first_mode(source, survey, options, reading.frame), options).name
    )


def _refuse_other_mode(base: Reading, options: ConvertOptions, is_raw: bool) -> None:
    """Raises :class:`UsageError` for options that would change the mode of floating point values."""
    given = {name: getattr(options, name) for name in ("mode", "depth", "alpha", "frames")}
    named = [name for name, value in given.items() if value not in (None, KEEP, base.mode, *OF_SOURCES)]
    if named:
        # The values are the source's own, not normalised, so a window can make them 8 bits.
        if is_raw and "mode" in named:
            raise UsageError(
                f"the source holds floating point values of mode {base.pixels}; say how they become 8 bits with "
                "--depth window:LO,HI, or scale if they are 0 … 1"
            )
        raise UsageError(
            f"the source holds floating point values of mode {base.pixels}, so {', '.join(named)} cannot apply; leave "
            f"{'it' if len(named) == 1 else 'them'} out, or pack from the images"
        )


def _refuse_unused_options(base: Reading, options: ConvertOptions, path: str, kind: str) -> None:
    """Raises :class:`UsageError` for options that have no effect on the source's arrays."""
    given = {
        "frames": options.frames is not None and options.frames not in OF_SOURCES,  # those apply when it is opened
        "depth": options.depth not in (None, KEEP) and base.pixels.dtype == "uint8",
        "alpha": options.alpha not in (None, KEEP) and not base.pixels.has_alpha,
    }
    if idle := [name for name, is_idle in given.items() if is_idle]:
        raise UsageError(
            f"{printable(path)} ({kind}) holds pixels of mode {base.pixels}, so {', '.join(idle)} cannot apply; leave "
            f"{'it' if len(idle) == 1 else 'them'} out"
        )


def _refuse_wide_scale(base: Reading, options: ConvertOptions, survey: Survey, path: str) -> None:
    """Raises :class:`UsageError` for ``depth="scale"`` if whole numbers may not use the full range of their dtype."""
    dtype, ends = base.pixels.dtype, survey.value_range
    if options.depth != "scale" or dtype == "float32":
        return
    # Such images would become almost black, or gray.
    if not survey.uses_all_bits:
        limits = np.iinfo(dtype)
        raise UsageError(
            f"{printable(path)} holds values of {dtype}, of which scans use an unknown part; --depth scale would take "
            f"all, {limits.min} to {limits.max}; give --depth window:LO,HI, the values of black and white"
        )
    if ends is not None and ends != (np.iinfo(dtype).min, np.iinfo(dtype).max):
        raise UsageError(
            f"{printable(path)} holds values from {ends[0]} to {ends[1]}; --depth scale takes the range of {dtype}; "
            f"give --depth window:{ends[0]},{ends[1]}, or a narrower window"
        )


def _refuse_narrower_mode(reading: Reading, survey: Survey, mode: str) -> None:
    """Raises :class:`UsageError` if ``mode`` would take bits or alpha from arrays, and no option says how."""
    found, wanted = reading.pixels, parse_mode(mode)
    if ENCODINGS[survey.encoding].layout is None:
        return
    if found.has_alpha and not wanted.has_alpha and reading.alpha is None:
        raise UsageError(
            f"the source holds images of mode {found}, and mode {wanted} has no alpha: say with --alpha drop or "
            "over:COLOUR what becomes of it, or leave --mode out"
        )
    if found.dtype != wanted.dtype and (reading.depth is None or wanted.dtype != "uint8"):
        raise UsageError(
            f"the source holds images of mode {found}, from which mode {wanted} cannot be made: "
            "say with --depth scale, clip or window:LO,HI how values become 8 bits, or leave --mode out"
        )


def _resolve_array_reading(reading: Reading, given: Mapping[str, str]) -> Reading:
    """Returns how to read arrays: in their own mode, reduced as ``given`` says."""
    mode = reading.pixels
    # Only given options count: a store's recorded options were applied when it was packed.
    if "depth" in given and mode.dtype != "uint8":
        mode = with_dtype(mode, "uint8")
    if "alpha" in given and mode.has_alpha:
        mode = mode_of(mode.channels - 1, mode.dtype)
    return replace(reading, mode=mode.name)


def resolve_kept_mode(found: Mode, options: ConvertOptions | Answers) -> Mode:
    """Returns the mode of images for options of which one is ``keep``.

    - ``mode`` is ``keep``: the mode ``found``.
    - Else ``found`` with 8 bits unless ``depth`` is ``keep``, and without alpha unless ``alpha`` is ``keep``. Gray of 8
      bits becomes RGB.
    """
    if options.mode == KEEP:
        return found
    dtype = found.dtype if options.depth == KEEP else "uint8"
    mode = found if options.alpha == KEEP or not found.has_alpha else mode_of(found.channels - 1, found.dtype)
    if dtype == "uint8" and mode.channels - mode.has_alpha == 1:
        return mode_of(RGB.channels + mode.has_alpha, dtype)  # as files are read unless they are asked to be gray
    return with_dtype(mode, dtype)


def _read_first_mode(source: Source, survey: Survey, options: ConvertOptions, frame: int) -> Mode:
    """Reads the first image and returns the mode of its frame ``frame``."""
    if not survey.counted:
        raise UsageError("keep reads the first image beforehand, and an iterable can be read once; name the mode")
    for entry in islice(source.pick_entries(options.split, survey.records, 1), 1):
        content = source.image(entry)
        data = getattr(content, "image", content)
        if isinstance(data, np.ndarray):
            return mode_of(data.shape[2], str(data.dtype))
        return read_file_mode(data, printable(entry.key), options.max_pixels, frame)
    raise SourceError(f"{printable(str(source.path))}: there is no image whose mode could be kept")


def read_file_mode(data: Buffer, where: str, max_pixels: int, frame: int = 0) -> Mode:
    """Reads the mode of a frame of an image file; that of the first frame if ``frame`` does not exist.

    Raises :class:`SourceError` for a damaged or unknown file; the message begins with ``where``.
    """
    from packstore.images import image_files

    try:
        info = check_header(data)
        described = image_files.describe_image(memoryview(data), info)
        if described is not None and 0 < frame < described.frames:
            described = image_files.describe_image(memoryview(data), info, frame)
        if described is None:
            image_files.decode(memoryview(data), max_pixels)  # raises with the reason
    except HeaderError as error:
        raise SourceError(f"{where}: {error.reason}, and its mode is to be kept") from None
    except DecodeError as error:
        raise SourceError(f"{where}: {error}; its mode is to be kept") from None
    if described is None:
        raise SourceError(f"{where}: its mode cannot be read; name the mode instead of keep")
    return described.mode


def _refuse_other_columns(files: Mapping[str, Column], options: ConvertOptions) -> None:
    """Raises :class:`UsageError` if ``--column NAME.OPTION=…`` names no column of image files."""
    for name, own in options.column_answers.items():
        if name not in files:
            known = ", ".join(files) or "none"
            raise UsageError(
                f"--column {printable(name)}.{next(iter(own))}: there is no column of image files {printable(name)!r} "
                f"beside the main image; there are: {known}"
            )


def resolve_column_modes(source: Source, survey: Survey, options: ConvertOptions) -> Survey:
    """Returns the survey with the mode of each column of image files.

    - An option names the mode: that mode.
    - ``keep``: the mode of the column's first file, or the declared mode if ``keep`` is for all columns.
    - Only ``depth`` is given for the column: RGB.
    - Else the mode stays.

    For ``keep`` reads samples until each such column had a file, 1,000 at most, and skips bad samples. Samples that can
    be read only once are not read: a ``keep`` for all columns has no effect on them.

    Raises:
        SourceError: The first file of a column cannot be read.
        UsageError: An option names a column that does not exist, or a single column has ``keep`` and the samples can be
            read only once.
    """
    files = {column.name: column for column in find_file_columns(survey.columns)}
    _refuse_other_columns(files, options)
    modes: dict[str, str] = {}
    wanted: dict[str, Column] = {}
    for name, column in files.items():
        own, answers = options.column_answers.get(name, {}), options.answers_for(name)
        if own.get("mode") not in (None, KEEP):
            modes[name] = own["mode"]
        elif KEEP in answers and (column.mode is None or KEEP in own.values()):
            wanted[name] = column
        elif "depth" in own:
            modes[name] = RGB.name
    if wanted and not survey.counted:
        if any(KEEP in options.column_answers.get(name, {}).values() for name in wanted):
            raise UsageError(
                "keep reads the first file of a column beforehand, and an iterable can be read once; name the mode"
            )
        wanted = {}
    for entry in islice(source.fetch(source.entries(options.split)), _LOOKED_FOR) if wanted else ():
        try:
            content = source.read(entry)
        except SampleError:
            continue  # packing reports it
        if not isinstance(content, Sample):
            break
        for name in wanted.keys() - modes.keys():
            value = content.values[name]
            if found_files := _extract_files(wanted[name], value, content.at_rest):
                where = f"{printable(entry.key)}: column {name!r}"
                answers = options.answers_for(name)
                frame = Reading(frames=answers.frames).frame
                mode = read_file_mode(found_files[0], where, options.max_pixels, frame)
                modes[name] = resolve_kept_mode(mode, answers).name
        if modes.keys() >= wanted.keys():
            break
    kept = {name: None if mode == RGB.name else mode for name, mode in modes.items()}
    return replace(
        survey, columns=tuple(replace(c, mode=kept[c.name]) if c.name in kept else c for c in survey.columns)
    )


def _extract_files(column: Column, value: Any, at_rest: bool) -> Sequence[Any]:
    """Returns the image files in a sample's value, none if the value is missing."""
    if at_rest and value:  # it has the stored form
        return column.traits.files(column, value)
    return value if isinstance(value, list) else [value] if value else []
