"""Parses DICOM files through pydicom: headers, elements of frames, and the order of files in series.

Names of elements are the keywords of DICOM PS3.6. Functional groups of frames are PS3.3 C.7.6.16, identifying
elements PS3.15 E.1, rescaling PS3.3 C.11.1.
"""

from __future__ import annotations

import importlib
import io
import math
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from packstore.core.errors import SourceError, error_line, printable
from packstore.core.modes import Mode, mode_of
from packstore.sources.medical.scan import MAX_RATIO, ScannedFile

MAGIC, MAGIC_AT = b"DICM", 128
_DEFLATED, _EXPLICIT = b"1.2.840.10008.1.2.1.99", b"1.2.840.10008.1.2.1\0\0\0"
PIXEL_TAGS = {0x7FE00008: "float32", 0x7FE00009: "float64", 0x7FE00010: None}
"""Tags of the elements with pixels; dtype of those with floating point pixels."""
KEPT = (
    *("Modality", "SOPClassUID", "BodyPartExamined", "ViewPosition", "Laterality", "ImageLaterality"),
    *("PatientPosition", "PhotometricInterpretation", "BitsStored", "PixelSpacing", "ImagerPixelSpacing"),
    *("SliceThickness", "SpacingBetweenSlices", "ImagePositionPatient", "ImageOrientationPatient"),
    *("ImageType", "RescaleType", "Units", "KVP", "ConvolutionKernel", "EchoTime", "RepetitionTime", "FlipAngle"),
    *("MagneticFieldStrength", "Manufacturer", "ManufacturerModelName", "BurnedInAnnotation"),
    *("LossyImageCompression", "LossyImageCompressionRatio", "PixelAspectRatio"),
)
"""Elements in the column ``dicom``. They describe how an image was made, and do not identify the patient."""
USED = ("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "WindowCenter", "WindowWidth", "VOILUTFunction",
         "VOILUTSequence")  # fmt: skip
"""Elements that have columns of their own, or change the pixels that are read."""


_FIRST_BYTES, _GROWTH = 1 << 16, 16
_ITEM_BYTES = 8  # least size of an encapsulated frame
_MAX_FRAMES = 1 << 24
_PLACING = (
    *("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SliceThickness", "RescaleSlope"),
    *("RescaleIntercept", "WindowCenter", "WindowWidth", "GridFrameOffsetVector"),
)
"""Elements of :class:`Plane`, in this order. The last has the distances of the frames of a dose (PS3.3 C.8.8.3.2)."""
_LENGTH = 0.01
"""Largest error of the length of an axis."""
_DTYPES = ("uint8", "uint16", "int16", "int32")


def parse_file(data: bytes, max_bytes: int, pixels: list[tuple[int, int]] | None = None) -> Any:
    """Parses a file to pydicom's data set. Raises :class:`ValueError` for a damaged file, and if it inflates to more
    than ``max_bytes``.

    ``pixels``: a list stops the parser at the pixels, and receives their tag and length. Raises :class:`SourceError` if
    pydicom is not installed.
    """

    def is_pixels(tag: int, _vr: str | None, length: int) -> bool:
        if pixels is not None and tag in PIXEL_TAGS:
            pixels.append((int(tag), length))
        return bool(pixels)

    with raise_as_damaged():
        data = _inflate(data, max_bytes)
        return load_pydicom().filereader.read_partial(io.BytesIO(data), stop_when=is_pixels, force=True)


def find_element(dataset: Any, frame: int, keyword: str) -> Any:
    """Returns the value of an element for a frame: from its own functional groups, the shared ones, or the file.
    None if the element is absent."""
    own = dataset.get("PerFrameFunctionalGroupsSequence") or ()
    for group in (*own[frame : frame + 1], *(dataset.get("SharedFunctionalGroupsSequence") or ())[:1]):
        for element in group:
            if element.VR == "SQ" and element.value and keyword in element.value[0]:
                return element.value[0].get(keyword)
    return dataset.get(keyword)


def _read_floats(dataset: Any, frame: int, keyword: str) -> list[float]:
    """Reads the number or numbers of an element. Returns an empty list if the element is absent or a text.

    Returns an empty list also if a number is not finite.
    """
    value = find_element(dataset, frame, keyword)
    if value is None or isinstance(value, (str, bytes)):
        return []
    numbers = [float(each) for each in (value if isinstance(value, Sequence) else [value]) if each is not None]
    return numbers if all(map(math.isfinite, numbers)) else []


def _is_deflated(data: bytes) -> bool:
    """Tells if a file has the deflated transfer syntax."""
    return data.find(_DEFLATED, MAGIC_AT, MAGIC_AT + 1024) >= 0


def _inflate(data: bytes, max_bytes: int) -> bytes:
    """Inflates a file of deflated transfer syntax, with a limit, which pydicom lacks. Returns other files unchanged.

    The new header names the syntax without compression. Raises :class:`ValueError` for more than ``max_bytes``, and for
    a malformed header.
    """
    if not _is_deflated(data):
        return data
    end = MAGIC_AT + 16 + int.from_bytes(data[MAGIC_AT + 12 : MAGIC_AT + 16], "little")
    if data[MAGIC_AT : MAGIC_AT + 8] != b"DICM\x02\0\0\0" or _DEFLATED not in data[:end]:
        raise ValueError("deflated, without the length of its header")
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    rest = inflater.decompress(data[end:], max_bytes)
    if inflater.unconsumed_tail:
        raise ValueError(f"deflated, and more than {max_bytes} bytes when inflated")
    return data[:end].replace(_DEFLATED, _EXPLICIT) + rest


def load_pydicom() -> Any:
    """Imports pydicom, and silences the warnings of pydicom and its decoders. Raises :class:`SourceError` if it is not
    installed."""
    try:
        pydicom = importlib.import_module("pydicom")
        importlib.import_module("pydicom.pixels.processing")
    except ImportError as error:
        raise SourceError(f"DICOM is read by pydicom 3 or newer: pip install 'packstore[dicom]' ({error})") from None
    warnings.filterwarnings("ignore", module=r"pydicom|pylibjpeg|libjpeg|openjpeg")
    return pydicom


@contextmanager
def raise_as_damaged(what: str = "is a damaged DICOM file") -> Iterator[None]:
    """Raises errors in the block as :class:`ValueError`. Passes on :class:`MemoryError` and :class:`SourceError`."""
    try:
        yield
    except (MemoryError, SourceError):
        raise
    except Exception as error:  # pydicom raises almost anything on damaged files
        raise ValueError(f"{what}: {error_line(error)}") from error


class Plane(NamedTuple):
    """Numbers of a frame.

    Attributes:
        place: Position of the centre of the first pixel; empty if unknown.
        axes: Directions of rows and columns, six cosines; empty if unknown.
        spacing: Distance of rows and of columns; empty if unknown.
        thickness: Thickness of the slice.
        scale: Slope and intercept.
        windows: Pairs of centre and width.
    """

    place: tuple[float, ...]
    axes: tuple[float, ...]
    spacing: tuple[float, ...]
    thickness: float
    scale: tuple[float | None, float | None]
    windows: tuple[tuple[float, float], ...]

    @property
    def columns(self) -> dict[str, Any]:
        """Columns of the frame: ``slope``, ``intercept`` and ``position``, None if unknown, and ``window``."""
        slope, intercept = self.scale
        position = self.position if self.place else None
        window = np.array(self.windows, np.float64).reshape(-1, 2)
        return {"slope": slope, "intercept": intercept, "position": position, "window": window}

    @property
    def position(self) -> float:
        """Position along the normal of the plane, in mm; infinity if unknown."""
        return float(np.dot(np.cross(self.axes[:3], self.axes[3:]), self.place)) if self.place else math.inf


def read_plane(dataset: Any, frame: int) -> Plane:
    """Reads the numbers of a frame.

    Position and axes are empty if the axes are not perpendicular and of length 1, and if the file does not place each
    of its frames. Offsets of frames, as in doses, are added to the position.
    """
    place, axes, spacing, thickness, slope, intercept, centers, widths, offsets = (
        _read_floats(dataset, frame, keyword) for keyword in _PLACING
    )
    is_placed = len(place) == 3 and len(axes) == 6
    if is_placed:
        normal = np.cross(axes[:3], axes[3:])
        lengths = np.linalg.norm(np.array([axes[:3], axes[3:], normal]), axis=1)
        is_placed = bool((np.abs(lengths - 1) < _LENGTH).all())
        if (frames := count_frames(dataset)) > 1 and "PerFrameFunctionalGroupsSequence" not in dataset:
            is_placed &= len(offsets) == frames
            place = (np.array(place) + (offsets[frame] - offsets[0]) * normal).tolist() if is_placed else []
    return Plane(
        tuple(place) if is_placed else (),
        tuple(axes) if is_placed else (),
        tuple(spacing) if len(spacing) == 2 else (),
        thickness[0] if thickness else 0.0,
        (slope[0] if slope else None, intercept[0] if intercept else None),
        tuple(zip(centers, widths, strict=False)),
    )


def count_frames(dataset: Any) -> int:
    """Returns the number of frames of a file."""
    return int(dataset.get("NumberOfFrames") or 1)


def read_instance(dataset: Any) -> int:
    """Returns the number of a file in its series, within 64 bits; 0 for none."""
    return max(-(1 << 63), min(int(dataset.get("InstanceNumber") or 0), (1 << 63) - 1))


class DicomHeader(NamedTuple):
    """Header of a file with pixels.

    Attributes:
        height: Height in pixels.
        width: Width in pixels.
        channels: 1 or 3.
        frames: Number of frames.
        ranges: Least and greatest possible value of a pixel by its form, ``stored``, ``rescaled`` or ``window``. None
            for floating point. Colours stay as stored.
        uids: Id of its patient (else the name, else the study), and UIDs of its study and series.
        position: Position of its plane along the normal of the planes, in mm; infinity if unknown.
        instance: Its number in the series.
        left: Number of elements that no column keeps.
        numbers: Numbers of its patient, study and series, from 0; set by :func:`sort_files`.
    """

    height: int
    width: int
    channels: int
    frames: int
    ranges: Mapping[str, tuple[int, int] | None]
    uids: tuple[str, str, str]
    position: float
    instance: int
    left: int
    numbers: tuple[int, int, int] = (-1, -1, -1)


def read_header(
    read_start: Callable[[int], bytes], size: int, max_bytes: int, kept: Sequence[str]
) -> DicomHeader | None:
    """Reads the header of a file, in growing steps until the pixels begin. Returns None for DICOM without pixels: a
    report, a plan, a directory.

    Args:
        read_start: Returns the first bytes of the file, as many as its argument says.
        size: Bytes of the whole file.
        max_bytes: Limit for the bytes of a deflated file when inflated.
        kept: Keywords of the elements that columns keep.

    Raises:
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
) -> DicomHeader | None:
    """Converts a parsed data set to a header; None without pixels. Raises as :func:`read_header` does, also for more
    frames than the file has bytes for.

    Args:
        dataset: The data set, read up to its pixels.
        pixels: Tag and length of the pixels; empty if there are none.
        data: First bytes of the file.
        size: Bytes of the whole file.
        kept: Keywords of the elements that columns keep.
    """
    with raise_as_damaged():
        if not pixels:
            if "Rows" in dataset:
                raise ValueError("ends before its pixels")
            if data[MAGIC_AT : MAGIC_AT + 4] != MAGIC and "SOPClassUID" not in dataset:
                raise ValueError("no DICOM header")
            return None
        (tag, length), height, width = pixels[0], int(dataset.Rows), int(dataset.Columns)
        frames = count_frames(dataset)
        bits = height * width * int(dataset.get("SamplesPerPixel", 1)) * int(dataset.get("BitsAllocated", 32))
        held = min(length, size * MAX_RATIO if _is_deflated(data) else size)
        most = size // _ITEM_BYTES if length == 0xFFFFFFFF else (8 * held + 7) // max(1, bits)
        if height < 1 or width < 1:
            raise ValueError(f"{width} x {height} pixels")
        if not 1 <= frames <= min(max(1, most), _MAX_FRAMES):
            raise ValueError(f"{frames:,} frames, but bytes for {most:,}")
        left = sum(element.keyword not in (*kept, *USED) and element.tag.group >= 8 for element in dataset)
        series, study, patient, name = (
            str(dataset.get(keyword) or "")
            for keyword in ("SeriesInstanceUID", "StudyInstanceUID", "PatientID", "PatientName")
        )
        channels, ranges = _find_ranges(dataset, frames, is_float=PIXEL_TAGS[tag] is not None)
        return DicomHeader(
            height, width, channels, frames, ranges, (patient or name or study, study, series),
            read_plane(dataset, 0).position, read_instance(dataset), left,
        )  # fmt: skip


def _find_ranges(dataset: Any, frames: int, *, is_float: bool) -> tuple[int, dict[str, tuple[int, int] | None]]:
    """Returns the number of channels, and :attr:`DicomHeader.ranges`."""
    channels, low, high = _find_stored_range(dataset)
    stored = None if is_float else (low, high)
    if channels == 3:
        return channels, dict.fromkeys(("stored", "rescaled", "window"), stored)
    groups = range(frames if "PerFrameFunctionalGroupsSequence" in dataset else 1)
    scaled = [_find_rescaled_range(dataset, frame, low, high) for frame in groups]
    ends = [end for pair in scaled if pair for end in pair]
    rescaled = None if is_float or None in scaled else (min(ends), max(ends))
    return channels, {"stored": stored, "rescaled": rescaled, "window": (0, 255)}


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
    slope, intercept = read_plane(dataset, frame).scale
    if slope is None or intercept is None:
        return low, high
    if not (slope.is_integer() and intercept.is_integer()):
        return None
    ends = sorted(int(slope) * each + int(intercept) for each in (low, high))
    return ends[0], ends[1]


def read_elements(dataset: Any, frame: int, kept: Sequence[str]) -> dict[str, Any]:
    """Reads the kept elements that a frame has, as JSON by keyword."""
    values = {keyword: find_element(dataset, frame, keyword) for keyword in kept}
    return {keyword: _to_json(value) for keyword, value in values.items() if value is not None}


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


def sort_files(files: Sequence[ScannedFile]) -> list[ScannedFile]:
    """Returns copies of files with their numbers, sorted by series and plane; damaged files come last.

    Patients, studies and series are numbered from 0 in the order in which ``files`` has them.
    """
    known: list[dict[str, int]] = [{}, {}, {}]
    copies = []
    for file in files:
        if header := file.header:
            numbers = tuple(each.setdefault(uid, len(each)) for each, uid in zip(known, header.uids, strict=True))
            file = file._replace(header=header._replace(numbers=numbers))
        copies.append(file)
    return sorted(copies, key=_sort_key)


def group_by_series(files: Sequence[ScannedFile]) -> list[list[ScannedFile]]:
    """Groups readable files by series, in their order. A file without the UID of a series is a series of its own."""
    groups: dict[Any, list[ScannedFile]] = {}
    for file in files:
        if file.header is not None:
            groups.setdefault(file.header.numbers if file.header.uids[2] else file.path, []).append(file)
    return list(groups.values())


def choose_mode(where: str, files: Sequence[ScannedFile], form: str) -> Mode:
    """Chooses the mode that holds the pixels of all images in a ``form`` of :attr:`DicomHeader.ranges`.

    float32 if some images are floating point. int32 if no integer type holds all possible values; reading an image with
    a larger value then fails. ``where``: the source, for messages. Raises :class:`SourceError` if some images are gray
    of more than 8 bits, and others have colours.
    """
    found = find_value_range(files, form)
    fitting = (name for name in _DTYPES if found and np.iinfo(name).min <= found[0] and found[1] <= np.iinfo(name).max)
    dtype = next(fitting, "int32") if found else "float32"
    examples = {file.header.channels: printable(file.path) for file in files if file.header is not None}
    if len(examples) > 1 and dtype != "uint8":
        raise SourceError(
            f"{where}: {examples[1]} is gray of many bits and {examples[3]} has colours, and a store has one mode; "
            "leave one kind out with --ignore, or take 8 bits with --column image=window"
        )
    return mode_of(max(examples, default=1), dtype)


def find_value_range(files: Sequence[ScannedFile], form: str) -> tuple[int, int] | None:
    """Returns the least and greatest value that pixels can have in a ``form`` of :attr:`DicomHeader.ranges`. None for
    floating point, and without readable files."""
    ranges = [file.header.ranges[form] for file in files if file.header is not None]
    if not ranges or None in ranges:
        return None
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _sort_key(file: ScannedFile) -> tuple[Any, ...]:
    """Returns the key that sorts files by series, plane, instance number and path; damaged files last."""
    if file.header is None:
        return 1, 0, 0.0, 0, file.path
    return 0, file.header.numbers[2], file.header.position, file.header.instance, file.path
