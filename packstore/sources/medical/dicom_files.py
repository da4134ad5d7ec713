"""Reads DICOM files through pydicom: headers, elements, and the pixels of frames. Stacks the slices of a series.

Names of elements are the keywords of DICOM PS3.6. Functional groups of frames are PS3.3 C.7.6.16, identifying
elements PS3.15 E.1, planes PS3.3 C.7.6.2, rescaling C.11.1, windows C.11.2.
"""

from __future__ import annotations

import importlib
import io
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, error_line, printable
from packstore.core.modes import Mode
from packstore.images.sniff import HeaderError, excess_pixels_message, sniff
from packstore.sources.medical.scan import load_library, name_axes

MAGIC, MAGIC_AT = b"DICM", 128
FORMS = ("stored", "rescaled", "window")
"""Forms of gray values: as stored, rescaled by slope and intercept, or 8 bits through the file's window."""
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
"""Elements that have columns of their own, or change the pixels that are read."""

_PIXEL_DATA = 0x7FE00010
_DEFLATED = b"1.2.840.10008.1.2.1.99"
_FIRST_BYTES = 1 << 16
_UNDEFINED_LENGTH = 0xFFFFFFFF  # length of compressed pixels
_ITEM_BYTES = 8  # least size of a compressed frame
_MAX_FRAMES = 1 << 24
_COSINE_ERROR = 0.01  # largest error of the length of an axis
_PARALLEL = 1e-3  # largest difference of direction cosines of parallel slices, and of distances in mm
_UNEVEN = 0.02  # largest difference between two steps from slice to slice, as a share of the usual one
_JPEG_LS, _LOSSLESS = b"\xff\xf7", b"\xff\xc3"
"""Markers of the frame header, which is the same in JPEG-LS and in lossless JPEG."""
_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
"""Converts DICOM's patient axes (left, posterior, superior) to those of NIfTI (right, anterior, superior)."""


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
    """Reads the finite numbers of an element. Returns an empty list for an absent element, a text, NaN and infinity."""
    value = find_element(dataset, frame, keyword)
    if value is None or isinstance(value, (str, bytes)):
        return []
    numbers = [float(each) for each in (value if isinstance(value, Sequence) else [value]) if each is not None]
    return numbers if all(map(math.isfinite, numbers)) else []


class Plane(NamedTuple):
    """Numbers of a frame.

    Attributes:
        place: Position of the centre of the first pixel; empty if unknown.
        axes: Directions of rows and columns, six cosines; empty if unknown.
        spacing: Distance of rows and of columns; empty if unknown.
        thickness: Thickness of the slice.
        scale: Slope and intercept.
        windows: Pairs of centre and width, ``(N, 2)``.
    """

    place: tuple[float, ...]
    axes: tuple[float, ...]
    spacing: tuple[float, ...]
    thickness: float
    scale: tuple[float | None, float | None]
    windows: NDArray[np.float64]

    @property
    def position(self) -> float:
        """Position along the normal of the plane, in mm; infinity if unknown."""
        return float(np.dot(np.cross(self.axes[:3], self.axes[3:]), self.place)) if self.place else math.inf


def read_plane(dataset: Any, frame: int) -> Plane:
    """Reads the numbers of a frame. Position and axes are empty if the axes are not perpendicular and of length 1, and
    if the file does not place each of its frames."""

    def read(keyword: str) -> tuple[float, ...]:
        return tuple(_read_floats(dataset, frame, keyword))

    place, axes, spacing = read("ImagePositionPatient"), read("ImageOrientationPatient"), read("PixelSpacing")
    is_placed = len(place) == 3 and len(axes) == 6
    if is_placed:
        vectors = np.array([axes[:3], axes[3:], np.cross(axes[:3], axes[3:])])
        is_placed = bool((np.abs(np.linalg.norm(vectors, axis=1) - 1) < _COSINE_ERROR).all())
        is_placed &= count_frames(dataset) == 1 or "PerFrameFunctionalGroupsSequence" in dataset
    slope, intercept = ((*read(keyword), None)[0] for keyword in ("RescaleSlope", "RescaleIntercept"))
    return Plane(
        place if is_placed else (),
        axes if is_placed else (),
        spacing if len(spacing) == 2 else (),
        (*read("SliceThickness"), 0.0)[0],
        (slope, intercept),
        np.array([*zip(read("WindowCenter"), read("WindowWidth"), strict=False)], np.float64).reshape(-1, 2),
    )


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
        position: Position of its plane along the normal of the planes, in mm; infinity if unknown.
        instance: Its number in the series, within 64 bits; 0 for none.
        left: Number of elements that no column keeps.
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


def read_header(
    read_start: Callable[[int], bytes], size: int, max_bytes: int, kept: Sequence[str]
) -> DicomHeader | None:
    """Reads the header of a file: from its first 64 KiB, or from all of it if the pixels begin later. Returns None for
    DICOM without pixels: a report, a plan, a directory.

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
    """Converts a data set that was read up to its pixels. Raises :class:`ValueError` for impossible numbers, such as
    more frames than a file of ``size`` bytes can have."""
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
        position=read_plane(dataset, 0).position,
        instance=max(-(1 << 63), min(int(dataset.get("InstanceNumber") or 0), (1 << 63) - 1)),
        left=sum(element.keyword not in (*kept, *_USED) and element.tag.group >= 8 for element in dataset),
    )


def _find_ranges(dataset: Any, frames: int) -> tuple[int, dict[str, tuple[int, int] | None]]:
    """Returns the number of channels, and :attr:`DicomHeader.ranges`. Raises :class:`ValueError` for other than 1 to 64
    bits, and for other than 1 or 3 channels."""
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
        for each in range(frames if "PerFrameFunctionalGroupsSequence" in dataset else 1):
            slope, intercept = read_plane(dataset, each).scale
            scales.append((1.0, 0.0) if slope is None or intercept is None else (slope, intercept))
        has_table = bool(find_element(dataset, 0, "ModalityLUTSequence"))
        is_whole = not has_table and all(number.is_integer() for scale in scales for number in scale)
        ends = [slope * each + intercept for slope, intercept in scales for each in (low, high)]
        ranges["window"] = (0, 255)
        ranges["rescaled"] = (int(min(ends)), int(max(ends))) if is_whole else None
    return channels, ranges


def _to_json(value: Any) -> Any:
    """Converts the value of an element to JSON: numbers (null for NaN), hexadecimal bytes, lists, data sets in DICOM's
    JSON model (PS3.18 F), and text for anything else."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "to_json_dict"):
        return value.to_json_dict()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_to_json(each) for each in value]
    return str(value)


class Slice(NamedTuple):
    """Frame of a series.

    Attributes:
        name: File, with the number of the frame if it has several.
        pixels: ``(H, W, C)``.
        plane: Its position, directions, distances and scale.
        elements: Kept elements by keyword.
    """

    name: str
    pixels: NDArray[Any]
    plane: Plane
    elements: Mapping[str, Any]


def read_slices(
    name: str,
    dataset: Any,
    frames: Iterable[int] | None,
    form: str,
    mode: Mode,
    max_pixels: int,
    kept: Sequence[str],
) -> Iterator[Slice]:
    """Reads frames of a parsed file; all of them if ``frames`` is None. Raises :class:`ValueError` for damage.

    Args:
        name: Path of the file.
        dataset: The parsed file.
        frames: Numbers of the frames, from 0.
        form: One of :data:`FORMS`. Colours stay as stored.
        mode: Mode of the pixels.
        max_pixels: Limit for the pixels of a frame.
        kept: Keywords of elements.
    """
    with raise_as_damaged():
        count = count_frames(dataset)
    for frame in range(count) if frames is None else frames:
        with raise_as_damaged():
            plane = read_plane(dataset, frame)
            values = {keyword: find_element(dataset, frame, keyword) for keyword in kept}
            elements = {keyword: _to_json(value) for keyword, value in values.items() if value is not None}
        pixels = _read_frame(dataset, frame, form, mode, max_pixels)
        yield Slice(name if count == 1 else f"{name}#{frame}", pixels, plane, elements)


def _read_frame(dataset: Any, frame: int, form: str, mode: Mode, max_pixels: int) -> NDArray[Any]:
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
    """Raises :class:`ValueError` for a compressed frame with more pixels than the file's header states. Decoding it
    could fill the memory."""
    encaps = importlib.import_module("pydicom.encaps")
    data = encaps.get_frame(dataset.PixelData, frame, number_of_frames=count_frames(dataset))
    with suppress(HeaderError):  # RLE, or damage, which the decoder finds
        found = sniff(data.replace(_JPEG_LS, _LOSSLESS, 1))
        if found.width * found.height > int(dataset.Rows) * int(dataset.Columns):
            raise ValueError(f"the compressed image has {found.width} x {found.height} pixels, more than the file says")


def _rescale(values: NDArray[Any], dataset: Any, frame: int, *, through_window: bool) -> NDArray[Any]:
    """Rescales stored gray values by slope and intercept, or a table.

    With ``through_window``, maps the result to 8 bits by the file's table, else by its first window, and inverts
    MONOCHROME1. Raises :class:`ValueError` then if the file has no window.
    """
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


def stack_slices(slices: Sequence[Slice]) -> tuple[list[Slice], dict[str, Any]]:
    """Sorts the slices of a series by their positions. Returns them with the columns of the volume's geometry:

    - ``positions``: place of each slice along the normal, in mm.
    - ``spacing``: distance of slices, rows and columns, in mm. That of a single slice is its thickness, or 1 mm.
    - ``affine``: matrix from indices (column, row, slice) to millimetres, as NIfTI has it.
    - ``orientation``: letters of the directions in which columns, rows and slices grow, such as ``LPS``.

    Raises :class:`ValueError`, with the names of two files, if the slices are not one volume: two differ in size,
    orientation or distance of pixels; a step from slice to slice is more than 2% off the usual one, or there is none.
    """
    slices = sorted(slices, key=lambda each: each.plane.position)
    first, names = slices[0], [printable(each.name) for each in slices]
    for name, other in zip(names, slices, strict=True):
        if not (other.plane.place and other.plane.spacing):
            raise ValueError(f"is no volume: {name} has no position, or no distance of pixels")
        one, two = ((*each.pixels.shape, *each.plane.spacing, *each.plane.axes) for each in (first, other))
        if not np.allclose(one, two, rtol=1e-4, atol=_PARALLEL):
            raise ValueError(
                f"is no volume: {names[0]} and {name} differ in size, distance of pixels or orientation; leave one out "
                "with --ignore"
            )
    axes = np.array(first.plane.axes).reshape(2, 3)
    normal = np.cross(*axes)
    places = np.array([each.plane.place for each in slices])
    step, steps = normal * (first.plane.thickness or 1.0), np.diff(places, axis=0)
    if len(steps):
        usual = np.quantile(steps, 0.5, axis=0, method="lower")
        errors, length = np.linalg.norm(steps - usual, axis=1), float(np.linalg.norm(usual))
        if errors.max() >= _UNEVEN * length:
            at = int(errors.argmax())
            raise ValueError(
                f"is a series whose slices are missing, uneven or twice: {np.linalg.norm(steps[at]):g} mm from "
                f"{names[at]} to {names[at + 1]}, {length:g} elsewhere; leave files out with --ignore, or pack slices"
            )
        step = steps.mean(axis=0)
    rows, columns = first.plane.spacing
    affine = np.eye(4)
    affine[:3] = np.column_stack([axes[0] * columns, axes[1] * rows, step, places[0]])
    return slices, {
        "positions": places @ normal,
        "spacing": np.array([np.linalg.norm(step), rows, columns]),
        "affine": _RAS @ affine,
        "orientation": name_axes(_RAS @ affine, "dicom"),
    }
