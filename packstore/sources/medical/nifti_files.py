"""NIfTI files: reads a header, and the stored values of a volume.

Header fields are those of nifti1.h (https://nifti.nimh.nih.gov/nifti-1) and NIfTI-2; nibabel parses them.
"""

from __future__ import annotations

import gzip
import importlib
import io
import math
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, error_line
from packstore.core.modes import Mode
from packstore.sources.medical.scan import MAX_RATIO

HEAD_BYTES = 8192
"""Enough of the beginning of a file, compressed or not, for its header."""
_LONGEST_HEADER = 544
_GZIP_MAGIC = b"\x1f\x8b"
PACKED_DTYPES = {
    "uint8": "uint8",
    "uint16": "uint16",
    **dict.fromkeys(("int8", "int16"), "int16"),
    **dict.fromkeys(("int32", "uint32", "int64", "uint64"), "int32"),
    **dict.fromkeys(("float16", "float32", "float64"), "float32"),
}
"""Dtype in which values of a stored dtype are packed. A volume with values beyond it is a bad sample."""
_COLOURS = (tuple("RGB"), tuple("RGBA"))
_TEXTS = ("descrip", "aux_file", "intent_name")


class NiftiHeader(NamedTuple):
    """Header of a volume.

    Attributes:
        shape: (I, J, K, T); T is the product of all dimensions after the third.
        dtype: Stored dtype with its byte order; a struct for colours.
        offset: Position of the first value, in bytes.
        affine: Matrix from indices (i, j, k) to millimetres.
        slope: Factor from stored to real values; 1 if the file states none.
        intercept: Number that is added after the factor; 0 if the file states none.
        left: Number of texts and extensions that no column keeps.
    """

    shape: tuple[int, int, int, int]
    dtype: np.dtype[Any]
    offset: int
    affine: NDArray[np.float64]
    slope: float
    intercept: float
    left: int

    @property
    def end(self) -> int:
        """Position after the last value, in bytes."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize

    @property
    def channels(self) -> int:
        """Number of channels."""
        return len(self.dtype.names or "x")

    @property
    def channel_dtype(self) -> str:
        """Stored dtype of a channel."""
        return "uint8" if self.dtype.names else self.dtype.name


def read_header(data: bytes, size: int, max_bytes: int) -> NiftiHeader:
    """Reads the header from the first 8 KiB of a file of ``size`` bytes, compressed or not.

    Raises :class:`ValueError` for a damaged header, a dtype that packstore does not read, and values that exceed
    ``max_bytes`` or the file. Raises :class:`SourceError` if nibabel is not installed.
    """
    library = load_nibabel()
    try:
        start = inflate(data[:HEAD_BYTES], _LONGEST_HEADER)
        kinds = (library.Nifti1Header, library.Nifti2Header)
        kind = next((each for each in kinds if each.may_contain_header(start)), None)
        if kind is None:
            raise ValueError(f"it begins with {start[:4]!r}")
        header = _convert_nibabel_header(kind(start[: kind.sizeof_hdr], check=False))
    except MemoryError:
        raise
    except Exception as error:  # nibabel raises almost anything on damaged headers
        raise ValueError(f"is no NIfTI file that packstore reads: {error_line(error)}") from error
    if header.offset < kind.sizeof_hdr or header.end > max_bytes:
        raise ValueError(f"has values to byte {header.end:,}, more than the {max_bytes:,} of a file within max_pixels")
    # A small file could otherwise claim millions of slices, each of them a bad sample.
    most = size * MAX_RATIO if data[:2] == _GZIP_MAGIC else size
    if header.end > most:
        raise ValueError(f"is truncated: its values end at byte {header.end:,}, and it has at most {most:,}")
    return header


def _convert_nibabel_header(header: Any) -> NiftiHeader:
    """Converts nibabel's header. Raises nibabel's errors, of any type, for a damaged header.

    Raises :class:`ValueError` for a dtype that packstore does not read, and for a pair of ``.hdr`` and ``.img``.
    """
    if not bytes(header["magic"]).startswith(b"n+"):
        raise ValueError("a pair of .hdr and .img; write it as .nii")
    shape, dtype = tuple(map(int, header.get_data_shape())), header.get_data_dtype()
    if not shape or min(shape) < 1 or (dtype.name not in PACKED_DTYPES and dtype.names not in _COLOURS):
        raise ValueError(f"values of {dtype} in the shape {shape}, which packstore does not read")
    width, height, depth, *rest = (*shape, 1, 1)[: max(3, len(shape))]
    slope, intercept = header.get_slope_inter()
    offset = int(header.get_data_offset())
    return NiftiHeader(
        (width, height, depth, math.prod(rest)),
        dtype,
        offset,
        np.array(header.get_best_affine(), np.float64),
        1.0 if slope is None else float(slope),
        0.0 if intercept is None else float(intercept),
        sum(bool(bytes(header[name]).rstrip(b"\0 ")) for name in _TEXTS) + (offset > header.sizeof_hdr + 4),
    )


def read_volume(data: bytes, max_bytes: int) -> tuple[NiftiHeader, NDArray[Any]]:
    """Reads the header and the stored values ``(I, J, K, T, C)`` of a file. C is 1, or the number of colours.

    Raises as :func:`read_header` does.
    """
    header = read_header(data, len(data), max_bytes)
    inflated = inflate(data, header.end)
    if len(inflated) < header.end:
        raise ValueError(f"is truncated: its values end at byte {header.end:,}, and it has {len(inflated):,}")
    values = np.frombuffer(inflated, header.dtype, math.prod(header.shape), header.offset)
    channels = [values[name] for name in header.dtype.names] if header.dtype.names else [values]
    return header, np.stack([channel.reshape(header.shape, order="F") for channel in channels], -1)


def inflate(data: bytes, limit: int) -> bytes:
    """Returns the first ``limit`` bytes of the decompressed content of gzip ``data``, fewer at its end. Returns other
    ``data`` as a whole. Raises :class:`ValueError` for damaged gzip."""
    if data[:2] != _GZIP_MAGIC:
        return data
    try:
        with gzip.open(io.BytesIO(data)) as file:
            content = file.read(limit)
            file.read(1)  # verifies the checksum at the end
            return content
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"is damaged: {error}") from None


def cast_to_mode(values: NDArray[Any], mode: Mode) -> NDArray[Any]:
    """Converts values to the dtype and the channels of a mode. Repeats gray for each channel.

    Raises :class:`ValueError` if a value would change.
    """
    cast = values.astype(mode.dtype)
    if cast.dtype != values.dtype.newbyteorder("=") and not np.array_equal(
        cast.astype(values.dtype), values, equal_nan=values.dtype.kind == "f"
    ):
        raise ValueError(f"has values of {values.dtype.name} that {mode.dtype} does not hold")
    return cast if cast.shape[-1] == mode.channels else np.repeat(cast, mode.channels, -1)


def load_nibabel() -> Any:
    """Imports nibabel. Raises :class:`SourceError` if it is not installed."""
    try:
        return importlib.import_module("nibabel")
    except ImportError as error:
        raise SourceError(f"NIfTI is read by nibabel: pip install 'packstore[nifti]' ({error})") from None
