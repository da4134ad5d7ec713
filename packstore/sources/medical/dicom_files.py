"""DICOM files: reads the header, the frames and the elements that are kept, through pydicom.

Names of elements are the keywords of DICOM PS3.6. Rescaling is PS3.3 C.11.1, windows C.11.2, functional groups of
frames C.7.6.16, identifying elements PS3.15 E.1.
"""

from __future__ import annotations

import importlib
import io
import math
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, error_line
from packstore.core.modes import Mode
from packstore.images.sniff import excess_pixels_message
from packstore.sources.medical.dicom_volumes import Slice

MAGIC, MAGIC_AT = b"DICM", 128
_DEFLATED, _EXPLICIT = b"1.2.840.10008.1.2.1.99", b"1.2.840.10008.1.2.1\0\0\0"
_PIXELS = {0x7FE00008: "float32", 0x7FE00009: "float64", 0x7FE00010: None}
_FIRST_BYTES, _GROWTH = 1 << 16, 16
_OFFSETS = "GridFrameOffsetVector"
"""Distances of the frames of a dose from the first (PS3.3 C.8.8.3.2)."""
_LENGTH = 0.01
"""Largest error of the length of an axis."""
_ITEM_BYTES = 8  # least size of an encapsulated frame
_MAX_FRAMES = 1 << 24
KEPT = (
    *("Modality", "SOPClassUID", "BodyPartExamined", "ViewPosition", "Laterality", "ImageLaterality"),
    *("PatientPosition", "PhotometricInterpretation", "BitsStored", "PixelSpacing", "ImagerPixelSpacing"),
    *("SliceThickness", "SpacingBetweenSlices", "ImagePositionPatient", "ImageOrientationPatient"),
    *("ImageType", "RescaleType", "Units", "KVP", "ConvolutionKernel", "EchoTime", "RepetitionTime", "FlipAngle"),
    *("MagneticFieldStrength", "Manufacturer", "ManufacturerModelName", "BurnedInAnnotation"),
    *("LossyImageCompression", "LossyImageCompressionRatio", "PixelAspectRatio"),
)
"""Elements in the column ``dicom``. They describe how an image was made, and do not identify the patient."""
_USED = ("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "WindowCenter", "WindowWidth", "VOILUTFunction",
         "VOILUTSequence")  # fmt: skip


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


class NoPixelsError(ValueError):
    """Raised for a DICOM file that is no image: a report, a plan, a directory."""


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
        found: list[tuple[int, int]] = []
        try:
            dataset = parse_file(data, max_bytes, found)
            if found or length >= size:
                return _convert_dataset_header(dataset, found, data, size, kept)
        except ValueError:
            if found or length >= size:
                raise
        length = min(size, _GROWTH * length)


def parse_file(data: bytes, max_bytes: int, found: list[tuple[int, int]] | None = None) -> Any:
    """Parses a file to pydicom's data set. With the list ``found``, stops at the pixels and appends their tag and
    length to the list. Raises :class:`ValueError` for a damaged file, and :class:`SourceError` if pydicom is not
    installed."""

    def is_pixels(tag: int, _vr: str | None, length: int) -> bool:
        if found is not None and tag in _PIXELS:
            found.append((int(tag), length))
        return bool(found)

    with silence_warnings():
        try:
            data = _inflate(data, max_bytes)
            return load_pydicom().filereader.read_partial(io.BytesIO(data), stop_when=is_pixels, force=True)
        except (MemoryError, SourceError):
            raise
        except Exception as error:  # pydicom raises almost anything on damaged files
            raise ValueError(f"is a damaged DICOM file: {error_line(error)}") from error


def _convert_dataset_header(
    dataset: Any, found: list[tuple[int, int]], data: bytes, size: int, kept: Sequence[str]
) -> DicomHeader:
    """Converts a parsed data set to a header; ``found`` has tag and length of the pixels, ``data`` the first bytes of
    the file of ``size`` bytes. Raises as :func:`read_header` does, also for more frames than the file has bytes for."""
    try:
        with silence_warnings():
            if not found:
                if "Rows" in dataset:
                    raise ValueError("ends before its pixels")
                if data[MAGIC_AT : MAGIC_AT + 4] != MAGIC and "SOPClassUID" not in dataset:
                    raise ValueError("no DICOM header")
                raise NoPixelsError
            (tag, length), height, width = found[0], int(dataset.Rows), int(dataset.Columns)
            channels, low, high = _find_stored_range(dataset)
            frames = int(dataset.get("NumberOfFrames") or 1)
            bits = height * width * int(dataset.get("SamplesPerPixel", 1)) * int(dataset.get("BitsAllocated", 32))
            most = size // _ITEM_BYTES if length == 0xFFFFFFFF else (8 * length + 7) // max(1, bits)
            if height < 1 or width < 1:
                raise ValueError(f"{width} x {height} pixels")
            if not 1 <= frames <= min(max(1, most), _MAX_FRAMES):
                raise ValueError(f"{frames:,} frames, but bytes for {most:,}")
            groups = range(frames if "PerFrameFunctionalGroupsSequence" in dataset else 1)
            scaled = [_find_rescaled_range(dataset, frame, low, high) for frame in groups]
            is_float = _PIXELS[tag] is not None
            whole = None if is_float or None in scaled else [each for pair in scaled if pair for each in pair]
            left = sum(element.keyword not in (*kept, *_USED) and element.tag.group >= 8 for element in dataset)
            series, study, patient, name = (
                str(dataset.get(keyword) or "")
                for keyword in ("SeriesInstanceUID", "StudyInstanceUID", "PatientID", "PatientName")
            )
            return DicomHeader(
                height, width, channels, low, high, is_float, frames, (min(whole), max(whole)) if whole else None,
                series, study, patient or name or study,
                compute_plane_position(dataset, 0) if _has_places(dataset, frames) else math.inf,
                _clamp_int64(dataset.get("InstanceNumber")), left,
            )  # fmt: skip
    except (NoPixelsError, MemoryError, SourceError):
        raise
    except Exception as error:
        raise ValueError(f"is a damaged DICOM file: {error_line(error)}") from error


def _find_stored_range(dataset: Any) -> tuple[int, int, int]:
    """Returns channels (3 for a palette), least and greatest possible value of stored pixels. Raises
    :class:`ValueError` for other than 1 to 64 bits, or other than 1 or 3 channels."""
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


def read_frame(dataset: Any, frame: int, image: str, mode: Mode, max_pixels: int) -> NDArray[Any]:
    """Reads the pixels of a frame in the dtype of a mode, ``(H, W, C)``; C is that of the frame, 1 or 3. A palette
    becomes colours.

    Args:
        dataset: The parsed file.
        frame: Number of the frame, from 0.
        image: Form of gray values: ``stored``, ``rescaled`` (by slope and intercept, or by a table; rounded to
            float32) or ``window`` (8 bits, through the file's first window or table). Colours stay as stored.
        mode: Mode of the result.
        max_pixels: Limit for height times width.

    Raises:
        ValueError: The frame is damaged, too large, in a compression that no installed library reads, or has values
            that the mode does not hold.
    """
    processing = load_pydicom().pixels.processing
    with silence_warnings():
        try:
            reason = excess_pixels_message(int(dataset.Columns), int(dataset.Rows), max_pixels)
            if reason is not None:
                raise ValueError(reason)
            _refuse_large_codestream(dataset, frame)
            values = load_pydicom().pixels.pixel_array(dataset, index=frame)
            if dataset.get("PhotometricInterpretation") == "PALETTE COLOR":
                values = processing.apply_color_lut(values, dataset)
            elif values.ndim == 2 and image != "stored":
                values = _rescale(values, dataset, frame, through_window=image == "window")
        except MemoryError:
            raise
        except Exception as error:
            raise ValueError(f"its pixels cannot be read: {error_line(error)}") from error
    pixels = values.reshape(*values.shape[:2], -1)
    held = pixels.astype(mode.dtype)
    is_rounded = image == "rescaled" and mode.dtype == "float32"
    if held.dtype != pixels.dtype and not (
        is_rounded or np.array_equal(held, pixels, equal_nan=pixels.dtype.kind == "f")
    ):
        raise ValueError(f"found {pixels.dtype} from {pixels.min()} to {pixels.max()}, which {mode} does not hold")
    return np.ascontiguousarray(held)


def _refuse_large_codestream(dataset: Any, frame: int) -> None:
    """Raises :class:`ValueError` for a compressed frame with more pixels than the file's header states: it could fill
    the memory."""
    if not dataset.file_meta.TransferSyntaxUID.is_encapsulated:
        return
    offsets = dataset.get("ExtendedOffsetTable"), dataset.get("ExtendedOffsetTableLengths")
    data = importlib.import_module("pydicom.encaps").get_frame(
        dataset.PixelData, frame, number_of_frames=int(dataset.get("NumberOfFrames") or 1),
        extended_offsets=offsets if None not in offsets else None,
    )  # fmt: skip
    width, height = _read_codestream_size(bytes(data))
    if width * height > int(dataset.Rows) * int(dataset.Columns):
        raise ValueError(f"the compressed image has {width} x {height} pixels, the file {dataset.Columns} x "
                         f"{dataset.Rows}")  # fmt: skip


def _read_codestream_size(data: bytes) -> tuple[int, int]:
    """Reads width and height from the header of a JPEG, JPEG-LS or JPEG 2000; (0, 0) for other data."""
    at = data.find(b"\xff\x4f\xff\x51")
    if at >= 0 and data[:3] != b"\xff\xd8\xff":
        right, bottom, left, top = struct.unpack_from(">IIII", data, at + 8)
        return right - left, bottom - top
    at = 2
    while data[:2] == b"\xff\xd8" and at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xF7 or (0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 1 if marker == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4])
    return 0, 0


def _rescale(values: NDArray[Any], dataset: Any, frame: int, *, through_window: bool) -> NDArray[Any]:
    """Rescales stored gray values by slope and intercept, or a table. With ``through_window``, maps the result to 8
    bits, and inverts MONOCHROME1; raises :class:`ValueError` if the file has no window."""
    processing, view = load_pydicom().pixels.processing, load_pydicom().dataset.Dataset()
    view.file_meta = dataset.file_meta
    view.PhotometricInterpretation, view.PixelRepresentation, view.BitsStored = "MONOCHROME2", 0, 8
    for keyword in _USED:
        value = find_element(dataset, frame, keyword)
        if value is not None and value != "":
            setattr(view, keyword, value)
    values = processing.apply_modality_lut(values, view)
    if not through_window:
        return values
    for keyword in ("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence"):
        view.pop(keyword, None)
    if "VOILUTSequence" in view:
        top = (1 << int(view.VOILUTSequence[0].LUTDescriptor[2])) - 1
        shown = processing.apply_voi(np.rint(values).astype(np.int32), view) * (255 / top)
    elif "WindowCenter" in view and "WindowWidth" in view:
        shown = processing.apply_windowing(values, view)
    else:
        raise ValueError("it names no window")
    whole: NDArray[np.uint8] = np.rint(shown).astype(np.uint8)
    return 255 - whole if dataset.PhotometricInterpretation == "MONOCHROME1" else whole


def read_frame_columns(dataset: Any, frame: int, kept: Sequence[str]) -> dict[str, Any]:
    """Reads the columns of a frame: ``slope``, ``intercept`` and ``position``, None if unknown; ``window``, centres and
    widths ``(n, 2)``; and ``dicom``, the kept elements that the file has, as JSON. Raises :class:`ValueError` for
    damaged elements."""
    try:
        with silence_warnings():
            centers, widths, slope, intercept = (
                _read_floats(dataset, frame, keyword)
                for keyword in ("WindowCenter", "WindowWidth", "RescaleSlope", "RescaleIntercept")
            )
            elements = {keyword: find_element(dataset, frame, keyword) for keyword in kept}
            found = {keyword: _to_json(value) for keyword, value in elements.items() if value is not None}
            position = compute_plane_position(dataset, frame)
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(f"is a damaged DICOM file: {error_line(error)}") from error
    return {
        "slope": slope[0] if slope else None,
        "intercept": intercept[0] if intercept else None,
        "window": np.array([*zip(centers, widths, strict=False)], np.float64).reshape(-1, 2),
        "position": position if math.isfinite(position) else None,
        "dicom": found,
    }


def read_slice(dataset: Any, frame: int, name: str, shape: tuple[int, int, int]) -> Slice:
    """Reads the facts about a frame that place it in a volume: position, axes, distances, scale and number. The number
    is InstanceNumber plus the frame's; frames of a dose are placed by their offsets. Raises :class:`ValueError` for
    damaged elements."""
    try:
        with silence_warnings():
            place, axes, spacing, thickness, slope, intercept = (
                _read_floats(dataset, frame, keyword)
                for keyword in ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SliceThickness",
                                "RescaleSlope", "RescaleIntercept")
            )  # fmt: skip
            number = _clamp_int64(dataset.get("InstanceNumber")) + frame
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(f"is a damaged DICOM file: {error_line(error)}") from error
    frames = int(dataset.get("NumberOfFrames") or 1)
    is_placed = math.isfinite(compute_plane_position(dataset, frame)) and _has_places(dataset, frames)
    if is_placed and frames > 1 and (offsets := _read_floats(dataset, frame, _OFFSETS)):
        normal = np.cross(axes[:3], axes[3:])
        place = (np.array(place) + (offsets[frame] - offsets[0]) * normal).tolist()
    return Slice(
        name, shape, tuple(place) if is_placed else (), tuple(axes) if is_placed else (),
        tuple(spacing) if len(spacing) == 2 else (), thickness[0] if thickness else 0.0, number,
        (slope[0] if slope else None, intercept[0] if intercept else None),
    )  # fmt: skip


def _has_places(dataset: Any, frames: int) -> bool:
    """Tells if the file can state a position for each of its frames."""
    if frames == 1 or "PerFrameFunctionalGroupsSequence" in dataset:
        return True
    return len(_read_floats(dataset, 0, _OFFSETS)) == frames


def find_element(dataset: Any, frame: int, keyword: str) -> Any:
    """Returns the value of an element for a frame: from its own functional groups, the shared ones, or the file.
    None if it is in none."""
    for group in _functional_groups(dataset, frame):
        for element in group:
            if element.VR == "SQ" and element.value and keyword in element.value[0]:
                return element.value[0].get(keyword)
    return dataset.get(keyword)


def compute_plane_position(dataset: Any, frame: int) -> float:
    """Computes the position of a frame's plane along the normal of the planes, in mm; infinity if the file does not
    state it, or states axes that are not perpendicular and of length 1."""
    place = _read_floats(dataset, frame, "ImagePositionPatient")
    axes = _read_floats(dataset, frame, "ImageOrientationPatient")
    if len(place) != 3 or len(axes) != 6:
        return math.inf
    normal = np.cross(axes[:3], axes[3:])
    lengths = np.linalg.norm(np.array([axes[:3], axes[3:], normal]), axis=1)
    found = float(np.dot(normal, place))
    return found if math.isfinite(found) and (np.abs(lengths - 1) < _LENGTH).all() else math.inf


def _functional_groups(dataset: Any, frame: int) -> list[Any]:
    """Returns the functional groups of a frame: its own, then the shared ones."""
    own = dataset.get("PerFrameFunctionalGroupsSequence") or ()
    return [*own[frame : frame + 1], *(dataset.get("SharedFunctionalGroupsSequence") or ())[:1]]


def _find_rescaled_range(dataset: Any, frame: int, low: int, high: int) -> tuple[int, int] | None:
    """Returns the least and greatest possible value of rescaled pixels, those of stored ones if the file has no scale,
    or None if some are no whole numbers."""
    table = find_element(dataset, frame, "ModalityLUTSequence")
    if table:
        return 0, (1 << int(table[0].LUTDescriptor[2])) - 1
    slope, intercept = (_read_floats(dataset, frame, keyword) for keyword in ("RescaleSlope", "RescaleIntercept"))
    if not slope or not intercept:
        return low, high
    if not (slope[0].is_integer() and intercept[0].is_integer()):
        return None
    ends = sorted(int(slope[0]) * each + int(intercept[0]) for each in (low, high))
    return ends[0], ends[1]


def _read_floats(dataset: Any, frame: int, keyword: str) -> list[float]:
    """Reads the number or numbers of an element; empty if it is absent, no number, or if one is not finite."""
    value = find_element(dataset, frame, keyword)
    if value is None or isinstance(value, (str, bytes)):
        return []
    found = [float(each) for each in (value if isinstance(value, Sequence) else [value]) if each is not None]
    return found if all(map(math.isfinite, found)) else []


def _clamp_int64(value: Any) -> int:
    """Converts a number to an int, clamped to 64 bits; 0 for None and an empty text."""
    return 0 if value in (None, "") else max(-(1 << 63), min(int(value), (1 << 63) - 1))


def _to_json(value: Any) -> Any:
    """Converts the value of an element to JSON: bytes as hex, sequences as lists, NaN and infinity as null."""
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


def _inflate(data: bytes, max_bytes: int) -> bytes:
    """Inflates a file of deflated transfer syntax, with a limit, which pydicom lacks, and names the syntax without
    compression in its header. Returns other files unchanged. Raises :class:`ValueError` for more than ``max_bytes``,
    and for a malformed header."""
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


def load_pydicom() -> Any:
    """Imports pydicom. Raises :class:`SourceError` if it is not installed."""
    try:
        found = importlib.import_module("pydicom")
        importlib.import_module("pydicom.pixels.processing")
    except ImportError as error:
        raise SourceError(f"DICOM is read by pydicom 3 or newer: pip install 'packstore[dicom]' ({error})") from None
    return found


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
