"""Parses DICOM files through pydicom, and finds the elements of their frames.

Names of elements are the keywords of DICOM PS3.6. Functional groups of frames are PS3.3 C.7.6.16, identifying
elements PS3.15 E.1.
"""

from __future__ import annotations

import importlib
import io
import math
import threading
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from packstore.core.errors import SourceError, error_line

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


_MAX_RATIO = 1032  # of Deflate (https://zlib.net/zlib_tech.html)


class NoPixelsError(ValueError):
    """Raised for a DICOM file that is no image: a report, a plan, a directory."""


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

    Passes on :class:`NoPixelsError`, :class:`MemoryError` and :class:`SourceError`.
    """
    with silence_warnings():
        try:
            yield
        except (NoPixelsError, MemoryError, SourceError):
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
