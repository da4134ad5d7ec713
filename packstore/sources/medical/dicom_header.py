"""Header of a DICOM file: size and range of its pixels, its place in a series, and the elements of its frames.

Rescaling is PS3.3 C.11.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from packstore.sources.medical.dicom_files import (
    MAGIC,
    MAGIC_AT,
    PIXEL_TAGS,
    USED,
    NoPixelsError,
    clamp_int64,
    find_element,
    find_max_size,
    parse_file,
    raise_as_damaged_file,
    read_floats,
)
from packstore.sources.medical.dicom_geometry import compute_plane_position, has_places

_FIRST_BYTES, _GROWTH = 1 << 16, 16
_ITEM_BYTES = 8  # least size of an encapsulated frame
_MAX_FRAMES = 1 << 24


class DicomHeader(NamedTuple):
    """Header of a file with pixels.

    Attributes:
        height: Height in pixels.
        width: Width in pixels.
        channels: 1 or 3.
        low: Least possible value of a stored pixel.
        high: Greatest possible value of a stored pixel.
        is_float: The pixels are floating point.
        frames: Number of frames.
        rescaled: Least and greatest possible value of a rescaled pixel; None if some are no whole numbers.
        series: Instance UID of its series.
        study: Instance UID of its study.
        patient: Id of the patient, else the name, else the study.
        position: Position of its plane along the normal of the planes, in mm; infinity if unknown.
        instance: Its number in the series.
        left: Number of elements that no column keeps.
    """

    height: int
    width: int
    channels: int
    low: int
    high: int
    is_float: bool
    frames: int
    rescaled: tuple[int, int] | None
    series: str
    study: str
    patient: str
    position: float
    instance: int
    left: int


def read_header(read_start: Callable[[int], bytes], size: int, max_bytes: int, kept: Sequence[str]) -> DicomHeader:
    """Reads the header of a file, in growing steps until the pixels begin.

    Args:
        read_start: Returns the first bytes of the file, as many as its argument says.
        size: Bytes of the whole file.
        max_bytes: Limit for the bytes of a deflated file when inflated.
        kept: Keywords of the elements that columns keep.

    Raises:
        NoPixelsError: The file is DICOM without pixels.
        ValueError: The file is damaged, or is not DICOM.
        SourceError: pydicom is not installed.
    """
    length = min(size, _FIRST_BYTES)
    while True:
        data = read_start(length)
        pixels: list[tuple[int, int]] = []
        try:
            dataset = parse_file(data, max_bytes, pixels)
            if pixels or length >= size:
                return _convert_dataset_header(dataset, pixels, data, size, kept)
        except ValueError:
            if pixels or length >= size:
                raise
        length = min(size, _GROWTH * length)


def _convert_dataset_header(
    dataset: Any, pixels: list[tuple[int, int]], data: bytes, size: int, kept: Sequence[str]
) -> DicomHeader:
    """Converts a parsed data set to a header. Raises as :func:`read_header` does, also for more frames than the file
    has bytes for.

    Args:
        dataset: The data set, read up to its pixels.
        pixels: Tag and length of the pixels; empty if there are none.
        data: First bytes of the file.
        size: Bytes of the whole file.
        kept: Keywords of the elements that columns keep.
    """
    with raise_as_damaged_file():
        if not pixels:
            if "Rows" in dataset:
                raise ValueError("ends before its pixels")
            if data[MAGIC_AT : MAGIC_AT + 4] != MAGIC and "SOPClassUID" not in dataset:
                raise ValueError("no DICOM header")
            raise NoPixelsError
        (tag, length), height, width = pixels[0], int(dataset.Rows), int(dataset.Columns)
        channels, low, high = _find_stored_range(dataset)
        frames = int(dataset.get("NumberOfFrames") or 1)
        bits = height * width * int(dataset.get("SamplesPerPixel", 1)) * int(dataset.get("BitsAllocated", 32))
        held = min(length, find_max_size(data, size))
        most = size // _ITEM_BYTES if length == 0xFFFFFFFF else (8 * held + 7) // max(1, bits)
        if height < 1 or width < 1:
            raise ValueError(f"{width} x {height} pixels")
        if not 1 <= frames <= min(max(1, most), _MAX_FRAMES):
            raise ValueError(f"{frames:,} frames, but bytes for {most:,}")
        groups = range(frames if "PerFrameFunctionalGroupsSequence" in dataset else 1)
        scaled = [_find_rescaled_range(dataset, frame, low, high) for frame in groups]
        is_float = PIXEL_TAGS[tag] is not None
        whole = None if is_float or None in scaled else [each for pair in scaled if pair for each in pair]
        left = sum(element.keyword not in (*kept, *USED) and element.tag.group >= 8 for element in dataset)
        series, study, patient, name = (
            str(dataset.get(keyword) or "")
            for keyword in ("SeriesInstanceUID", "StudyInstanceUID", "PatientID", "PatientName")
        )
        return DicomHeader(
            height, width, channels, low, high, is_float, frames, (min(whole), max(whole)) if whole else None,
            series, study, patient or name or study,
            compute_plane_position(dataset, 0) if has_places(dataset, frames) else math.inf,
            clamp_int64(dataset.get("InstanceNumber")), left,
        )  # fmt: skip


def _find_stored_range(dataset: Any) -> tuple[int, int, int]:
    """Returns (channels, least value, greatest value) that stored pixels may have. A palette has 3 channels.

    Raises :class:`ValueError` for other than 1 to 64 bits, and for other than 1 or 3 channels.
    """
    if dataset.get("PhotometricInterpretation") == "PALETTE COLOR":
        return 3, 0, (1 << int(dataset.RedPaletteColorLookupTableDescriptor[2])) - 1
    bits = int(dataset.get("BitsStored") or dataset.get("BitsAllocated") or 32)
    if not 1 <= bits <= 64:
        raise ValueError(f"{bits} bits a pixel")
    channels = int(dataset.get("SamplesPerPixel") or 1)
    if channels not in (1, 3):
        raise ValueError(f"{channels} samples a pixel")
    signed = bool(dataset.get("PixelRepresentation")) and channels == 1
    return channels, -(1 << bits - 1) if signed else 0, (1 << bits - signed) - 1


def _find_rescaled_range(dataset: Any, frame: int, low: int, high: int) -> tuple[int, int] | None:
    """Returns the least and greatest possible value of rescaled pixels. A table for this in the file precedes slope and
    intercept. ``low`` and ``high`` are those of stored pixels.

    If the file has no scale, returns these. Returns None if slope or intercept is no whole number.
    """
    table = find_element(dataset, frame, "ModalityLUTSequence")
    if table:
        return 0, (1 << int(table[0].LUTDescriptor[2])) - 1
    slope, intercept = (read_floats(dataset, frame, keyword) for keyword in ("RescaleSlope", "RescaleIntercept"))
    if not slope or not intercept:
        return low, high
    if not (slope[0].is_integer() and intercept[0].is_integer()):
        return None
    ends = sorted(int(slope[0]) * each + int(intercept[0]) for each in (low, high))
    return ends[0], ends[1]


def read_frame_columns(dataset: Any, frame: int, kept: Sequence[str]) -> dict[str, Any]:
    """Reads the columns of a frame. Raises :class:`ValueError` for damaged elements. The columns:

    - ``slope``, ``intercept`` and ``position``: numbers, or None if unknown.
    - ``window``: centres and widths, ``(n, 2)``.
    - ``dicom``: the kept elements that the file has, as JSON.
    """
    with raise_as_damaged_file():
        centers, widths, slope, intercept = (
            read_floats(dataset, frame, keyword)
            for keyword in ("WindowCenter", "WindowWidth", "RescaleSlope", "RescaleIntercept")
        )
        elements = {keyword: find_element(dataset, frame, keyword) for keyword in kept}
        values = {keyword: _to_json(value) for keyword, value in elements.items() if value is not None}
        position = compute_plane_position(dataset, frame)
    return {
        "slope": slope[0] if slope else None,
        "intercept": intercept[0] if intercept else None,
        "window": np.array([*zip(centers, widths, strict=False)], np.float64).reshape(-1, 2),
        "position": position if math.isfinite(position) else None,
        "dicom": values,
    }


def _to_json(value: Any) -> Any:
    """Converts the value of an element to JSON.

    - Bytes: hexadecimal text.
    - Numbers: numbers. NaN and infinity become null, and booleans 0 or 1.
    - Data sets: objects by keyword. An element without a keyword gets its tag as key.
    - Sequences: lists.
    - Others: text. None becomes ``"None"``.
    """
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping) or hasattr(value, "elements"):
        return {element.keyword or str(element.tag): _to_json(element.value) for element in value}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_to_json(each) for each in value]
    return str(value)
