"""Image files in columns beside the main image: chooses the mode of each column, and checks file by file that nothing
is lost unasked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from packstore.core.column import Column, file_columns
from packstore.core.errors import DecodeError, SampleError, SourceError, UsageError, printable
from packstore.core.modes import RGB, Mode
from packstore.core.registry import ENCODINGS
from packstore.images.decoders import native
from packstore.images.encode import EncodeOptions, SourceImages
from packstore.images.losses import examine
from packstore.images.reading import Reading
from packstore.images.sniff import HeaderError, ImageInfo, check_header
from packstore.packing.options import KEEP, ConvertOptions
from packstore.sources.base import Sample, Source, Survey

_LOOKED_FOR = 1000
"""Number of samples among which the first file of a column is looked for."""
_EIGHT_BITS = "--depth scale, clip or window:LO,HI (8 bits, of all columns)"


def keep_modes(source: Source, survey: Survey, options: ConvertOptions) -> Survey:
    """Returns the survey with the mode of the first file in each column of image files, as far as options say ``keep``.

    Reads samples until each column had a file, 1,000 at most. A column that is declared with a mode keeps that mode.

    Raises:
        SourceError: The first file of a column cannot be read.
    """
    from packstore.packing.modes import mode_to_keep

    wanted = {column.name: column for column in file_columns(survey.columns) if column.mode is None}
    if not wanted or not survey.counted or KEEP not in (options.mode, options.depth, options.alpha):
        return survey
    modes: dict[str, str] = {}
    for entry in islice(source.fetch(source.entries(options.split)), _LOOKED_FOR):
        try:
            found = source.read(entry)
        except SampleError:
            continue  # packing reports it
        if not isinstance(found, Sample):
            break
        for name in wanted.keys() - modes.keys():
            value = found.values[name]
            if files := _files_of(wanted[name], value, found.at_rest):
                modes[name] = mode_to_keep(_mode_of(files[0], entry.key, name), options).name
        if len(modes) == len(wanted):
            break
    kept = {name: mode for name, mode in modes.items() if mode != RGB.name}
    return replace(
        survey, columns=tuple(replace(c, mode=kept[c.name]) if c.name in kept else c for c in survey.columns)
    )


def _files_of(column: Column, value: Any, at_rest: bool) -> Sequence[Any]:
    if at_rest and value:
        return column.traits.files(column, value)
    return value if isinstance(value, list) else [value] if value else []


def _mode_of(data: Any, key: str, column: str) -> Mode:
    """The mode of a file. Raises :class:`SourceError` if it cannot be read."""
    where = f"{printable(key)}: column {column!r}"
    try:
        described = native.describe(memoryview(data), check_header(data))
    except HeaderError as error:
        raise SourceError(f"{where}: {error.reason}, and its mode is to be kept") from None
    except DecodeError as error:
        raise SourceError(f"{where}: {error}; its mode is to be kept") from None
    if described is None:
        raise SourceError(f"{where}: its mode cannot be read")
    return described.mode


class FileLossError(UsageError):
    """A file in a column beside the main image would lose something, and no option allows it.

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
    """Checks the files in columns beside the main image as those of the main image are checked. Thread-safe."""

    def __init__(self, survey: Survey, encode: EncodeOptions, options: ConvertOptions) -> None:
        store = survey.store
        checked = [
            column
            for column in file_columns(survey.columns)
            if column.name in survey.sampled
            and encode.check != "none"
            # Of files in a store nothing is asked again, unless they are to be read in another way.
            and (store is None or store.column(column.name).mode != column.mode)
        ]
        self._kept = KEEP in (options.mode, options.depth)
        self._counted = survey.counted
        self._columns = []
        for column in checked:
            reading = Reading.of_column(column, encode.reading.answers())
            reading = replace(reading, chosen=options.mode == RGB.name and column.mode is None)
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
                    _, info = images.file(key, data if isinstance(data, bytes) else memoryview(data))
                    losses = examine(data, info, reading).losses if info is not None else {}
                except HeaderError as error:
                    raise SampleError(key, f"{where}: {error.reason}") from error
                except DecodeError as error:
                    raise SampleError(key, f"{where}: {error}") from error
                if losses and info is not None:
                    raise FileLossError(key, column, number, self._question(column, reading, losses, data, info))

    def _question(self, column: Column, reading: Reading, losses: Mapping[str, str], data: Any, info: ImageInfo) -> str:
        """Returns the question about a file that would lose something, with the options that answer it."""
        described = native.describe(memoryview(data), info)
        mode = "" if described is None else described.mode.name
        has = f"it has {'; and '.join(losses.values())}. The images of this column are read as "
        has += f"{reading.pixels}. "
        if ("depth" in losses or "channels" in losses) and (self._kept or column.mode is not None):
            eight = f", or {_EIGHT_BITS}" if self._kept or reading.pixels.dtype == "uint8" else ""
            return (
                f"{has}A column has one mode, here that of its first file or of its declaration: leave such files out "
                f"with --ignore{eight if 'depth' in losses else ''}"
            )
        declared = f"fields={{…, {column.name!r}: packstore.{'Images' if column.form == 'files' else 'Image'}"
        keep = f"{declared}(mode={mode!r})}} (values as they are)"
        answers = {
            "depth": f"{'--depth keep (values as they are)' if self._counted else keep}, or {_EIGHT_BITS}",
            "frames": "--frames first",
            "channels": f"{'--mode keep (all channels)' if self._counted else keep}, or --mode RGB",
            "alpha": f"{'--alpha keep' if self._counted else keep}, or --alpha drop or over:COLOUR",
        }
        return (
            f"{has}To pack this file and those like it: {'; '.join(answers[name] for name in losses)}; or leave them "
            "out with --ignore"
        )
