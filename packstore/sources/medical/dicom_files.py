"""Reads DICOM files through pydicom: headers, elements, and the pixels of frames.

Names of elements are the keywords of DICOM PS3.6. Functional groups of frames are PS3.3 C.7.6.16, identifying
elements PS3.15 E.1, planes PS3.3 C.7.6.2, rescaling C.11.1, windows C.11.2.
"""

from __future__ import annotations

import importlib
import io
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, error_line
from packstore.core.modes import Mode
from packstore.images.sniff import HeaderError, excess_pixels_message, sniff
from packstore.sources.medical.scan import load_library

MAGIC, MAGIC_AT = b"DICM", 128
# Forms of gray values: as stored, rescaled by slope and intercept, or 8 bits through the file's window.
FORMS = ("stored", "rescaled", "window")
KEPT = (
    *("Modality", "SOPClassUID", "BodyPartExamined", "ViewPosition", "Laterality", "ImageLaterality"),
    *("PatientPosition", "PhotometricInterpretation", "BitsStored", "PixelSpacing", "ImagerPixelSpacing"),
    *("SliceThickness", "SpacingBetweenSlices", "ImagePositionPatient", "ImageOrientationPatient"),
    *("ImageType", "RescaleType", "Units", "KVP", "ConvolutionKernel", "EchoTime", "RepetitionTime", "FlipAngle"),
    *("MagneticFieldStrength", "Manufacturer", "ManufacturerModelName", "BurnedInAnnotation"),
    *("LossyImageCompression", "LossyImageCompressionRatio", "PixelAspectRatio"),
)
"""Elements in the column ``dicom``. They describe how an image was made, and do not identify the patient."""
_SCALE = ("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence")
# Elements that have columns of their own, or change the pixels that are read.
_USED = (*_SCALE, "WindowCenter", "WindowWidth", "VOILUTFunction")

_PIXEL_DATA = 0x7FE00010
_DEFLATED = b"1.2.840.10008.1.2.1.99"
_FIRST_BYTES = 1 << 16
_UNDEFINED_LENGTH = 0xFFFFFFFF  # length of compressed pixels
_ITEM_BYTES = 8  # least size of a compressed frame
_MAX_FRAMES = 1 << 24
_COSINE_ERROR = 0.01  # largest error of the length of an axis
# Markers of the frame header, which is the same in JPEG-LS and in lossless JPEG.
_JPEG_LS, _LOSSLESS = b"\xff\xf7", b"\xff\xc3"


def load_pydicom() -> Any:
    """Imports pydicom, and silences the warnings of pydicom and its decoders. Raises :class:`SourceError` if it is not
    installed."""
    pydicom = load_library("pydicom", "dicom")
    load_library("pydicom.pixels.processing", "dicom")  # only pydicom 3 has it
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


def parse_file(data: bytes, until_pixels: bool = False) -> tuple[Any, int | None]:
    """Parses a file, as a whole or ``until_pixels``. Returns pydicom's data set, and the stated length of its pixels;
    None if they are missing. Raises :class:`ValueError` for a damaged file."""
    pixel_bytes: int | None = None

    def stops_at(tag: int, _vr: str | None, length: int) -> bool:
        nonlocal pixel_bytes
        if tag == _PIXEL_DATA:
            pixel_bytes = length
        return pixel_bytes is not None and until_pixels

    with raise_as_damaged():
        if _DEFLATED in data:  # pydicom inflates without a limit
            raise ValueError("its transfer syntax is deflated, which packstore does not read")
        dataset = load_pydicom().filereader.read_partial(io.BytesIO(data), stop_when=stops_at, force=True)
    return dataset, pixel_bytes


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
    """Reads the numbers of an element; none if it is absent, a text, or not finite."""
    value = find_element(dataset, frame, keyword)
    if value is None or isinstance(value, (str, bytes)):
        return []
    numbers = [float(each) for each in (value if isinstance(value, Sequence) else [value]) if each is not None]
    return numbers if all(map(math.isfinite, numbers)) else []


def _read_number(dataset: Any, frame: int, keyword: str) -> float | None:
    """Reads the first number of an element; None if it is absent."""
    numbers = _read_floats(dataset, frame, keyword)
    return numbers[0] if numbers else None


def _read_position(dataset: Any, frame: int) -> float | None:
    """Reads the position of a frame along the normal of its plane, in mm; None if the file does not say it."""
    place = _read_floats(dataset, frame, "ImagePositionPatient")
    axes = _read_floats(dataset, frame, "ImageOrientationPatient")
    if (len(place), len(axes)) != (3, 6):
        return None
    vectors = np.array([axes[:3], axes[3:], np.cross(axes[:3], axes[3:])])
    # The directions of rows and columns have to be perpendicular and of length 1.
    is_square = bool((np.abs(np.linalg.norm(vectors, axis=1) - 1) < _COSINE_ERROR).all())
    is_placed = count_frames(dataset) == 1 or "PerFrameFunctionalGroupsSequence" in dataset
    return float(vectors[2] @ place) if is_square and is_placed else None


def read_columns(dataset: Any, frame: int, kept: Sequence[str]) -> dict[str, Any]:
    """Reads the columns of a frame: ``position``, ``slope``, ``intercept``, ``window`` and the ``kept`` elements as
    ``dicom``. Unknown numbers are None; ``window`` has pairs of centre and width.
    """
    centers, widths = (_read_floats(dataset, frame, keyword) for keyword in ("WindowCenter", "WindowWidth"))
    elements = {keyword: find_element(dataset, frame, keyword) for keyword in kept}
    return {
        "position": _read_position(dataset, frame),
        "slope": _read_number(dataset, frame, "RescaleSlope"),
        "intercept": _read_number(dataset, frame, "RescaleIntercept"),
        "window": np.array([*zip(centers, widths, strict=False)], np.float64).reshape(-1, 2),
        "dicom": {keyword: _to_json(value) for keyword, value in elements.items() if value is not None},
    }


def count_frames(dataset: Any) -> int:
    """Returns the number of frames of a file."""
    return int(dataset.get("NumberOfFrames") or 1)


class DicomHeader(NamedTuple):
    """Header of a file with pixels.

    Attributes:
        height: Height in pixels.
        width: Width in pixels.
        channels: 1 or 3.
        frames: Number of frames.
        ranges: Least and greatest possible value of a pixel by its form, see :data:`FORMS`. None for fractions.
            Colours stay as stored.
        uids: Id of its patient (else the name, else the study), and UIDs of its study and series.
        position: Position of its first frame, in mm; None if unknown.
        instance: Its number in the series, within 64 bits; 0 for none.
        left: Number of elements that no column keeps.
    """

    height: int
    width: int
    channels: int
    frames: int
    ranges: Mapping[str, tuple[int, int] | None]
    uids: tuple[str, str, str]
    position: float | None
    instance: int
    left: int


def read_header(
    read_start: Callable[[int], bytes], size: int, max_bytes: int, kept: Sequence[str]
) -> DicomHeader | None:
    """Reads the header of a file from its first 64 KiB, or from all of it if the pixels begin later. Returns None
    for DICOM without pixels: a report, a plan, a directory.

    Args:
        read_start: Returns the first bytes of the file, as many as its argument says.
        size: Bytes of the whole file.
        max_bytes: Maximum bytes to read.
        kept: Keywords of the elements that columns keep.

    Raises:
        ValueError: The file is damaged, or is not DICOM.
        SourceError: pydicom is not installed.
    """
    data = read_start(_FIRST_BYTES)
    dataset, pixel_bytes = None, None
    with suppress(ValueError):  # the header may be cut off
        dataset, pixel_bytes = parse_file(data, until_pixels=True)
    if dataset is None or pixel_bytes is None:
        data = read_start(min(size, max_bytes))
        dataset, pixel_bytes = parse_file(data, until_pixels=True)
    with raise_as_damaged():
        if pixel_bytes is None and "Rows" in dataset:
            raise ValueError("ends before its pixels, or has pixels of floating point")
        if pixel_bytes is None and data[MAGIC_AT : MAGIC_AT + 4] != MAGIC and "SOPClassUID" not in dataset:
            raise ValueError("no DICOM header")
        return None if pixel_bytes is None else _convert_dataset_header(dataset, pixel_bytes, size, kept)


def _convert_dataset_header(dataset: Any, pixel_bytes: int, size: int, kept: Sequence[str]) -> DicomHeader:
    """Converts a data set that was read up to its pixels, in a file of ``size`` bytes."""
    height, width, frames = int(dataset.Rows), int(dataset.Columns), count_frames(dataset)
    if height < 1 or width < 1:
        raise ValueError(f"{width} x {height} pixels")
    bits = height * width * int(dataset.get("SamplesPerPixel", 1)) * int(dataset.get("BitsAllocated", 32))
    most = size // _ITEM_BYTES if pixel_bytes == _UNDEFINED_LENGTH else 8 * size // max(1, bits)
    if not 1 <= frames <= min(max(1, most), _MAX_FRAMES):
        raise ValueError(f"{frames:,} frames, but bytes for {most:,}")
    series, study, patient, name = (
        str(dataset.get(keyword) or "")
        for keyword in ("SeriesInstanceUID", "StudyInstanceUID", "PatientID", "PatientName")
    )
    channels, ranges = _find_ranges(dataset, frames)
    return DicomHeader(
        height,
        width,
        channels,
        frames,
        ranges,
        uids=(patient or name or study, study, series),
        position=_read_position(dataset, 0),
        instance=max(-(1 << 63), min(int(dataset.get("InstanceNumber") or 0), (1 << 63) - 1)),
        left=sum(element.keyword not in (*kept, *_USED) and element.tag.group >= 8 for element in dataset),
    )


def _find_ranges(dataset: Any, frames: int) -> tuple[int, dict[str, tuple[int, int] | None]]:
    """Returns the number of channels, and :attr:`DicomHeader.ranges`."""
    bits = int(dataset.get("BitsStored") or dataset.get("BitsAllocated") or 32)
    channels = int(dataset.get("SamplesPerPixel") or 1)
    if dataset.get("PhotometricInterpretation") == "PALETTE COLOR":
        channels, bits = 3, int(dataset.RedPaletteColorLookupTableDescriptor[2])
    if not 1 <= bits <= 64 or channels not in (1, 3):
        raise ValueError(f"{channels} samples of {bits} bits a pixel")
    signed = bool(dataset.get("PixelRepresentation")) and channels == 1
    low, high = -(1 << bits - 1) if signed else 0, (1 << bits - signed) - 1
    ranges: dict[str, tuple[int, int] | None] = dict.fromkeys(FORMS, (low, high))
    if channels == 1:
        scales = []
        groups = len(dataset.get("PerFrameFunctionalGroupsSequence") or ())
        for each in range(min(frames, groups + 1)):  # frames without a group of their own are scaled alike
            slope, intercept = (_read_number(dataset, each, f"Rescale{name}") for name in ("Slope", "Intercept"))
            scales.append((1.0, 0.0) if slope is None or intercept is None else (slope, intercept))
        has_table = bool(find_element(dataset, 0, "ModalityLUTSequence"))
        is_whole = not has_table and all(number.is_integer() for scale in scales for number in scale)
        ends = [slope * each + intercept for slope, intercept in scales for each in (low, high)]
        ranges["window"] = (0, 255)
        ranges["rescaled"] = (int(min(ends)), int(max(ends))) if is_whole else None
    return channels, ranges


def _to_json(value: Any) -> Any:
    """Converts the value of an element to JSON; bytes become hexadecimal, unknown values text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, float):
        # JSON has no NaN.
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "to_json_dict"):
        # DICOM's JSON model (PS3.18 F).
        return value.to_json_dict()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_to_json(each) for each in value]
    return str(value)


def read_frame(dataset: Any, frame: int, form: str, mode: Mode, max_pixels: int) -> NDArray[Any]:
    """Reads the pixels of a frame in the dtype of a mode, ``(H, W, C)``. C is that of the frame: 1 or 3. A palette
    becomes colours.

    Rescaled values are rounded to float32. Raises :class:`ValueError` for a frame that is damaged or too large, a
    compression that no installed library reads, and values that the mode does not hold.
    """
    pydicom = load_pydicom()
    with raise_as_damaged("its pixels cannot be read"):
        reason = excess_pixels_message(int(dataset.Columns), int(dataset.Rows), max_pixels)
        if reason is not None:
            raise ValueError(reason)
        if dataset.file_meta.TransferSyntaxUID.is_encapsulated:
            _refuse_large_codestream(dataset, frame)
        values = pydicom.pixels.pixel_array(dataset, index=frame)
        if dataset.get("PhotometricInterpretation") == "PALETTE COLOR":
            if "SegmentedRedPaletteColorLookupTableData" in dataset:  # some hundred bytes may expand without a limit
                raise ValueError("its palette is segmented, which packstore does not read")
            values = pydicom.pixels.apply_color_lut(values, dataset)
        elif values.ndim == 2 and form != "stored":
            values = _rescale(values, dataset, frame, through_window=form == "window")
    pixels = values.reshape(*values.shape[:2], -1)
    held = pixels.astype(mode.dtype)
    is_rounded = form == "rescaled" and mode.dtype == "float32"
    if held.dtype != pixels.dtype and not (is_rounded or np.array_equal(held, pixels)):
        raise ValueError(f"found {pixels.dtype} from {pixels.min()} to {pixels.max()}, which {mode} does not hold")
    return np.ascontiguousarray(held)


def _refuse_large_codestream(dataset: Any, frame: int) -> None:
    """Raises :class:`ValueError` for a compressed frame with more pixels than the file's header states."""
    encaps = importlib.import_module("pydicom.encaps")
    data = encaps.get_frame(dataset.PixelData, frame, number_of_frames=count_frames(dataset))
    with suppress(HeaderError):  # RLE, or damage, which the decoder finds
        found = sniff(data.replace(_JPEG_LS, _LOSSLESS, 1))
        # Decoding it could fill the memory.
        if found.width * found.height > int(dataset.Rows) * int(dataset.Columns):
            raise ValueError(f"the compressed image has {found.width} x {found.height} pixels, more than the file says")


def _rescale(values: NDArray[Any], dataset: Any, frame: int, *, through_window: bool) -> NDArray[Any]:
    """Rescales stored gray values by slope and intercept or a table; ``through_window`` maps them to 8 bits."""
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
    if "WindowCenter" not in view or "WindowWidth" not in view:
        raise ValueError("it names no window")
    for keyword in _SCALE:
        view.pop(keyword, None)
    whole: NDArray[np.uint8] = np.rint(processing.apply_windowing(values, view)).astype(np.uint8)
    # In MONOCHROME1, low values are bright.
    return 255 - whole if dataset.PhotometricInterpretation == "MONOCHROME1" else whole
