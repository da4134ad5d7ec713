"""Files of a DICOM source together: their order in series, and the mode that holds their pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from packstore.core.errors import SourceError, printable
from packstore.core.modes import Mode, mode_of
from packstore.sources.medical.dicom_header import DicomHeader

_DTYPES = ("uint8", "uint16", "int16", "int32")


class DicomFile(NamedTuple):
    """DICOM file with pixels, or a damaged file.

    Attributes:
        modified_ns: Time of its last modification, in nanoseconds.
        changed_ns: Time of its last change, contents or attributes, in nanoseconds.
        header: Its header; None if the file is damaged.
        error: Reason why it cannot be read; ``""`` for a good header.
        numbers: Numbers of its patient, study and series, from 0; -1 for a damaged file.
    """

    path: str
    size: int
    modified_ns: int
    changed_ns: int
    header: DicomHeader | None
    error: str
    numbers: tuple[int, int, int] = (-1, -1, -1)


def sort_files(files: Sequence[DicomFile]) -> list[DicomFile]:
    """Returns copies of files with their numbers, sorted by series and plane; damaged files come last.

    Patients, studies and series are numbered from 0 in the order in which ``files`` has them.
    """
    known: list[dict[str, int]] = [{}, {}, {}]
    copies = []
    for file in files:
        header = file.header
        if header is not None:
            patient, study, series = (
                numbers.setdefault(name, len(numbers))
                for numbers, name in zip(known, (header.patient, header.study, header.series), strict=True)
            )
            file = file._replace(numbers=(patient, study, series))
        copies.append(file)
    return sorted(copies, key=_sort_key)


def group_by_series(files: Sequence[DicomFile]) -> list[list[DicomFile]]:
    """Groups readable files by series, in their order. A file without the UID of a series is a series of its own."""
    groups: dict[Any, list[DicomFile]] = {}
    for file in files:
        if file.header is not None:
            groups.setdefault(file.numbers if file.header.series else file.path, []).append(file)
    return list(groups.values())


def choose_mode(where: str, files: Sequence[DicomFile], form: str) -> Mode:
    """Chooses the mode that holds the pixels of all images.

    float32 if some images are floating point. int32 if no integer type holds all possible values; reading an image with
    a larger value then fails.

    ``where``: the source, for messages. ``form``: the pixels are ``stored``, ``rescaled`` or through a ``window``.
    Raises :class:`SourceError` if some images are gray of more than 8 bits, and others have colours.
    """
    ranges = {_pixel_range(file.header, form) for file in files if file.header is not None}
    channels = max((each for each, *_ in ranges), default=1)
    floating = any(is_float for _, _, _, is_float in ranges)
    low, high = min((low for _, low, _, _ in ranges), default=0), max((high for _, _, high, _ in ranges), default=0)
    fitting = (name for name in _DTYPES if np.iinfo(name).min <= low and high <= np.iinfo(name).max)
    dtype = "float32" if floating else next(fitting, "int32")  # a larger value is a bad sample
    if len({each for each, *_ in ranges}) > 1 and dtype != "uint8":
        gray, colour = (
            next(f.path for f in files if f.header is not None and f.header.channels == count)
            for count in (1, channels)
        )
        raise SourceError(
            f"{where}: {printable(gray)} is gray of many bits and {printable(colour)} has "
            "colours, and a store has one mode; leave one kind out with --ignore, or take 8 bits with --column "
            "image=window"
        )
    return mode_of(channels, dtype)


def find_value_range(files: Sequence[DicomFile], form: str) -> tuple[int, int] | None:
    """Returns the least and greatest value that pixels can have by the headers. None for floating point, and without
    readable files.

    ``form``: as for :func:`choose_mode`.
    """
    ranges = {_pixel_range(file.header, form) for file in files if file.header is not None}
    if not ranges or any(is_float for *_, is_float in ranges):
        return None
    return min(low for _, low, _, _ in ranges), max(high for _, _, high, _ in ranges)


def _pixel_range(header: DicomHeader, form: str) -> tuple[int, int, int, bool]:
    """Returns (channels, least value, greatest value, True for floating point) of the pixels of an image.

    ``form``: the pixels are ``stored``, ``rescaled`` or through a ``window``. Colours stay as stored.
    """
    if form == "window" and header.channels == 1:
        return 1, 0, 255, False
    if form == "rescaled" and header.channels == 1:
        return (1, 0, 0, True) if header.rescaled is None else (1, *header.rescaled, False)
    return header.channels, header.low, header.high, header.is_float


def _sort_key(file: DicomFile) -> tuple[Any, ...]:
    """Returns the key that sorts files by series, plane, instance number and path; damaged files last."""
    if file.header is None:
        return 1, 0, 0.0, 0, file.path
    return 0, file.numbers[2], file.header.position, file.header.instance, file.path


def are_placed(files: Sequence[DicomFile]) -> bool:
    """Tells if the first slice in each file of a series has a position."""
    return all(file.header is not None and math.isfinite(file.header.position) for file in files)
