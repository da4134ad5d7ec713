"""Image files in columns beside the main image.

Chooses the mode (channels and dtype) of each column, and checks each file for losses that no option allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from packstore.core.column import Column, find_file_columns
from packstore.core.errors import DecodeError, SampleError, UsageError, printable
from packstore.core.modes import RGB
from packstore.core.registry import ENCODINGS
from packstore.images.encode import EncodeOptions, SourceImages
from packstore.images.losses import examine_losses
from packstore.images.reading import Reading
from packstore.images.sniff import HeaderError, ImageInfo
from packstore.packing.column_answers import KEEP, format_answers
from packstore.packing.modes import read_file_mode, resolve_kept_mode
from packstore.packing.options import ConvertOptions
from packstore.sources.base import Sample, Source, Survey

_LOOKED_FOR = 1000
"""Number of samples among which the first file of a column is looked for."""
_EIGHT_BITS = "--depth scale, clip or window:LO,HI (8 bits, of all columns)"


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
    """Returns the image files in a sample's value, none if the value is missing. ``at_rest``: whether it has the stored
    form."""
    if at_rest and value:
        return column.traits.files(column, value)
    return value if isinstance(value, list) else [value] if value else []


class FileLossError(UsageError):
    """Error for a file beside the main image: reading it would lose something, and no option allows that.

    Attributes:
        column: The column.
        number: Number of the file in the value.
    """

    def __init__(self, key: str, column: Column, number: int, what: str, file: str | None = None) -> None:
        which = f": image {number}" if column.form == "files" else ""
        named = "" if file is None else f" ({printable(file)})"
        super().__init__(f"{printable(key)}: column {column.name!r}{which}{named}: {what}")
        self.column = column
        self.number = number
        self._parts = key, column, number, what

    def with_file(self, file: str | None) -> FileLossError:
        """Returns this error with the name of the file."""
        return FileLossError(*self._parts, file)


class FileChecks:
    """Checks image files in columns beside the main image. Call it with a sample's values. Thread-safe.

    Finds files with a damaged header or end. Finds files that would lose something (depth, channels, alpha, frames)
    without an option that allows it.

    It is false as a condition if there is nothing to check:
    - No column has files, or ``check`` is ``none``.
    - The source is a store, and its files will be read in the same mode.
    """

    def __init__(self, survey: Survey, encode: EncodeOptions, options: ConvertOptions) -> None:
        store = survey.store
        checked = [
            column
            for column in find_file_columns(survey.columns)
            if column.name in survey.sampled
            and encode.check != "none"
            # Do not ask again about files of a store, unless they will be read in another way.
            and (store is None or store.column(column.name).mode != column.mode)
        ]
        self._options = options
        self._counted = survey.counted
        self._columns = []
        for column in checked:
            recorded = encode.reading.answers() | format_answers(options.column_answers)
            own = options.column_answers.get(column.name, {}).get("mode")
            named = own if own is not None else options.mode
            chosen = named == column.pixels.name if own is not None else named == RGB.name and column.mode is None
            reading = replace(Reading.of_column(column, recorded), chosen=chosen)
            only_header = EncodeOptions(max_pixels=encode.max_pixels, reading=reading)
            self._columns.append((column, reading, SourceImages(only_header, ENCODINGS["original"])))

    def __bool__(self) -> bool:
        return bool(self._columns)

    def __call__(self, key: str, stored: Mapping[str, Any]) -> None:
        """Checks the files in the stored values of a sample.

        Raises:
            SampleError: A file is damaged.
            FileLossError: A file would lose something, and no option allows it.
        """
        for column, reading, images in self._columns:
            if column.nullable and not stored[column.valid_name]:
                continue
            for number, data in enumerate(column.traits.files(column, stored[column.name])):
                where = f"column {column.name!r}" + (f": image {number}" if column.form == "files" else "")
                try:
                    _, info = images.check_file(key, data if isinstance(data, bytes) else memoryview(data))
                    losses = examine_losses(data, info, reading).losses if info is not None else {}
                except HeaderError as error:
                    raise SampleError(key, f"{where}: {error.reason}") from error
                except DecodeError as error:
                    raise SampleError(key, f"{where}: {error}") from error
                if losses and info is not None:
                    raise FileLossError(key, column, number, self._describe_loss(column, reading, losses, data, info))

    def _describe_loss(
        self, column: Column, reading: Reading, losses: Mapping[str, str], data: Any, info: ImageInfo
    ) -> str:
        """Returns the text about a file that would lose something. It names the options that allow or avoid the
        loss."""
        from packstore.images.decoders import native

        described = native.describe_image(memoryview(data), info, reading.frame)
        mode = "" if described is None else described.mode.name
        has = f"it has {'; and '.join(losses.values())}. The images of this column are read as "
        has += f"{reading.pixels}. "
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
            "depth": f"{f'{own}.depth=keep (values as they are)' if self._counted else keep}, or {eight}",
            "frames": f"{own}.frames=first, or the number of a frame from 0" if self._counted else "--frames first",
            "channels": f"{f'{own}.mode=keep (all channels)' if self._counted else keep}, or {own}.mode=RGB",
            "alpha": f"{f'{own}.alpha=keep' if self._counted else keep}, or {own}.alpha=drop or over:COLOUR",
        }
        if not self._counted:
            offered |= {"channels": f"{keep}, or --mode RGB", "alpha": f"{keep}, or --alpha drop or over:COLOUR"}
        return (
            f"{has}To pack this file and those like it: {'; '.join(offered[name] for name in losses)}; or leave them "
            "out with --ignore"
        )
