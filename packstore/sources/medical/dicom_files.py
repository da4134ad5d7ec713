"""Parses DICOM files through pydicom: headers, elements of frames, and the order of files in series.

Names of elements are the keywords of DICOM PS3.6. Functional groups of frames are PS3.3 C.7.6.16, identifying
elements PS3.15 E.1, rescaling PS3.3 C.11.1.
"""

from __future__ import annotations

import importlib
import io
import math
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from packstore.core.errors import SourceError, error_line, printable
from packstore.core.modes import Mode, mode_of
from packstore.sources.medical.scan import ScannedFile

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
OFFSETS = "GridFrameOffsetVector"
"""Distances of the frames of a dose from the first (PS3.3 C.8.8.3.2)."""
_LENGTH = 0.01
"""Largest error of the length of an axis."""
_DTYPES = ("uint8", "uint16", "int16", "int32")
_MAX_RATIO = 1032  # of Deflate (https://zlib.net/zlib_tech.html)


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

    with raise_as_damaged_file():
        data = _inflate(data, max_bytes)
        return load_pydicom().filereader.read_partial(io.BytesIO(data), stop_when=is_pixels, force=True)


def find_element(dataset: Any, frame: int, keyword: str) -> Any:
    """Returns the value of an element for a frame: from its own functional groups, the shared ones, or the file.
    None if the element is absent."""
    for group in _functional_groups(dataset, frame):
        for element in group:
            if element.VR == "SQ" and element.value and keyword in element.value[0]:
                return element.value[0].get(keyword)
    return dataset.get(keyword)


def _functional_groups(dataset: Any, frame: int) -> list[Any]:
    """Returns the functional groups of a frame: its own, then the shared ones."""
    own = dataset.get("PerFrameFunctionalGroupsSequence") or ()
    return [*own[frame : frame + 1], *(dataset.get("SharedFunctionalGroupsSequence") or ())[:1]]


def read_floats(dataset: Any, frame: int, keyword: str) -> list[float]:
    """Reads the number or numbers of an element. Returns an empty list if the element is absent or a text.

    Returns an empty list also if a number is not finite.
    """
    value = find_element(dataset, frame, keyword)
    if value is None or isinstance(value, (str, bytes)):
        return []
    numbers = [float(each) for each in (value if isinstance(value, Sequence) else [value]) if each is not None]
    return numbers if all(map(math.isfinite, numbers)) else []


def clamp_int64(value: Any) -> int:
    """Converts a number to an int, clamped to 64 bits. Returns 0 for None and an empty text."""
    return 0 if value in (None, "") else max(-(1 << 63), min(int(value), (1 << 63) - 1))


def _inflate(data: bytes, max_bytes: int) -> bytes:
    """Inflates a file of deflated transfer syntax, with a limit, which pydicom lacks. Returns other files unchanged.

    The new header names the syntax without compression. Raises :class:`ValueError` for more than ``max_bytes``, and for
    a malformed header.
    """
    at = data.find(_DEFLATED, MAGIC_AT, MAGIC_AT + 1024)
    if at < 0:
        return data
    end = MAGIC_AT + 16 + int.from_bytes(data[MAGIC_AT + 12 : MAGIC_AT + 16], "little")
    if data[MAGIC_AT : MAGIC_AT + 8] != b"DICM\x02\0\0\0" or not at < end <= len(data):
        raise ValueError("deflated, without the length of its header")
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    rest = inflater.decompress(data[end:], max_bytes)
    if inflater.unconsumed_tail:
        raise ValueError(f"deflated, and more than {max_bytes} bytes when inflated")
    return data[:end].replace(_DEFLATED, _EXPLICIT) + rest


def find_max_size(data: bytes, size: int) -> int:
    """Returns the most bytes to which a file of ``size`` bytes that begins with ``data`` inflates; ``size`` if it is
    not deflated."""
    return size * _MAX_RATIO if data.find(_DEFLATED, MAGIC_AT, MAGIC_AT + 1024) >= 0 else size


def load_pydicom() -> Any:
    """Imports pydicom. Raises :class:`SourceError` if it is not installed."""
    try:
        pydicom = importlib.import_module("pydicom")
        importlib.import_module("pydicom.pixels.processing")
    except ImportError as error:
        raise SourceError(f"DICOM is read by pydicom 3 or newer: pip install 'packstore[dicom]' ({error})") from None
    return pydicom


@contextmanager
def raise_as_damaged_file() -> Iterator[None]:
    """Silences the warnings of pydicom, and raises errors in the block as :class:`ValueError`.

    Passes on :class:`MemoryError` and :class:`SourceError`.
    """
    with silence_warnings():
        try:
            yield
        except (MemoryError, SourceError):
            raise
        except Exception as error:  # pydicom raises almost anything on damaged files
            raise ValueError(f"is a damaged DICOM file: {error_line(error)}") from error


@contextmanager
def silence_warnings() -> Iterator[None]:
    """Silences the warnings of pydicom and its decoders in the whole process, while any thread is inside."""
    with _silence.lock:
        if not _silence.threads:
            _silence.filters = warnings.catch_warnings()
            _silence.filters.__enter__()
            warnings.filterwarnings("ignore", module=r"pydicom|pylibjpeg|libjpeg|openjpeg")
        _silence.threads += 1
    try:
        yield
    finally:
        with _silence.lock:
            _silence.threads -= 1
            if not _silence.threads:
                _silence.filters.__exit__(None, None, None)


class _SilenceState:
    """Number of threads in :func:`silence_warnings`, and the warning filters to restore."""

    def __init__(self) -> None:
        self.lock, self.threads = threading.Lock(), 0
        self.filters: Any = None


_silence = _SilenceState()


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
        numbers: Numbers of its patient, study and series, from 0; set by :func:`sort_files`.
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
    with raise_as_damaged_file():
        if not pixels:
            if "Rows" in dataset:
                raise ValueError("ends before its pixels")
            if data[MAGIC_AT : MAGIC_AT + 4] != MAGIC and "SOPClassUID" not in dataset:
                raise ValueError("no DICOM header")
            return None
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


def sort_files(files: Sequence[ScannedFile]) -> list[ScannedFile]:
    """Returns copies of files with their numbers, sorted by series and plane; damaged files come last.

    Patients, studies and series are numbered from 0 in the order in which ``files`` has them.
    """
    known: list[dict[str, int]] = [{}, {}, {}]
    copies = []
    for file in files:
        if header := file.header:
            uids = (header.patient, header.study, header.series)
            numbers = tuple(each.setdefault(uid, len(each)) for each, uid in zip(known, uids, strict=True))
            file = file._replace(header=header._replace(numbers=numbers))
        copies.append(file)
    return sorted(copies, key=_sort_key)


def group_by_series(files: Sequence[ScannedFile]) -> list[list[ScannedFile]]:
    """Groups readable files by series, in their order. A file without the UID of a series is a series of its own."""
    groups: dict[Any, list[ScannedFile]] = {}
    for file in files:
        if file.header is not None:
            groups.setdefault(file.header.numbers if file.header.series else file.path, []).append(file)
    return list(groups.values())


def choose_mode(where: str, files: Sequence[ScannedFile], form: str) -> Mode:
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


def find_value_range(files: Sequence[ScannedFile], form: str) -> tuple[int, int] | None:
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


def _sort_key(file: ScannedFile) -> tuple[Any, ...]:
    """Returns the key that sorts files by series, plane, instance number and path; damaged files last."""
    if file.header is None:
        return 1, 0, 0.0, 0, file.path
    return 0, file.header.numbers[2], file.header.position, file.header.instance, file.path


def are_placed(files: Sequence[ScannedFile]) -> bool:
    """Tells if the first slice in each file of a series has a position."""
    return all(file.header is not None and math.isfinite(file.header.position) for file in files)


def has_places(dataset: Any, frames: int) -> bool:
    """Tells if the file can state a position for each of its frames.

    True for one frame, and for a file with groups per frame; neither is read here. Otherwise, there must be an offset
    for each frame.
    """
    if frames == 1 or "PerFrameFunctionalGroupsSequence" in dataset:
        return True
    return len(read_floats(dataset, 0, OFFSETS)) == frames


def compute_plane_position(dataset: Any, frame: int) -> float:
    """Computes the position of a frame's plane along the plane's normal, in mm.

    Returns infinity if the file lacks position or axes. Returns infinity also if the axes are not perpendicular and of
    length 1.
    """
    place = read_floats(dataset, frame, "ImagePositionPatient")
    axes = read_floats(dataset, frame, "ImageOrientationPatient")
    if len(place) != 3 or len(axes) != 6:
        return math.inf
    normal = np.cross(axes[:3], axes[3:])
    lengths = np.linalg.norm(np.array([axes[:3], axes[3:], normal]), axis=1)
    position = float(np.dot(normal, place))
    return position if math.isfinite(position) and (np.abs(lengths - 1) < _LENGTH).all() else math.inf
