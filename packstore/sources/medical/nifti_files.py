"""NIfTI files: reads a header, and the stored values of a volume.

Header fields are those of nifti1.h (https://nifti.nimh.nih.gov/nifti-1) and NIfTI-2; nibabel parses them.
"""

from __future__ import annotations

import importlib
import math
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError
from packstore.core.modes import Mode

_HEADERS = {348: "Nifti1Header", 540: "Nifti2Header"}
"""nibabel's classes by the size of a header, which is its first field."""
HEAD_BYTES = 8192
"""Enough of the beginning of a file, compressed or not, for its header."""
_GZIP, _GZIP_MAGIC = 31, b"\x1f\x8b"
_MAX_RATIO = 1032  # of Deflate (https://zlib.net/zlib_tech.html)
PACKED_DTYPES = {
    **dict.fromkeys(("uint8",), "uint8"),
    **dict.fromkeys(("int8", "int16"), "int16"),
    **dict.fromkeys(("uint16",), "uint16"),
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
    def nbytes(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def channels(self) -> int:
        """Number of channels."""
        return len(self.dtype.names or "x")

    @property
    def channel_dtype(self) -> str:
        """Stored dtype of a channel."""
        return "uint8" if self.dtype.names else self.dtype.name


def read_header(data: bytes, max_bytes: int) -> NiftiHeader:
    """Reads the header from the first 8 KiB of a file, compressed or not.

    Raises :class:`ValueError` for a damaged header, a dtype that packstore does not read, and values that exceed
    ``max_bytes``. Raises :class:`SourceError` if nibabel is not installed.
    """
    library = load_nibabel()
    try:
        start = inflate(data[:HEAD_BYTES], max(_HEADERS) + 4)
        sizes = {int.from_bytes(start[:4], "little"), int.from_bytes(start[:4], "big")}
        size = next((size for size in _HEADERS if size in sizes), 0)
        if not size:
            raise ValueError(f"it begins with {start[:4]!r}")
        header = _convert_nibabel_header(getattr(library, _HEADERS[size])(start[:size], check=False), size)
    except (MemoryError, SourceError):
        raise
    except Exception as error:  # nibabel raises almost anything on damaged headers
        raise ValueError(f"is no NIfTI file that packstore reads: {' '.join(str(error).split())[:200]}") from error
    if header.offset < size or header.offset + header.nbytes > max_bytes:
        raise ValueError(
            f"has {header.nbytes:,} bytes of values from byte {header.offset:,}, more than the {max_bytes:,} of a file "
            "within max_pixels"
        )
    return header


def _convert_nibabel_header(header: Any, size: int) -> NiftiHeader:
    """Converts nibabel's header of ``size`` bytes. Raises nibabel's errors, of any type, for a damaged header.

    Raises :class:`ValueError` for a dtype that packstore does not read, and for a pair of ``.hdr`` and ``.img``.
    """
    if bytes(header["magic"]).rstrip(b"\0")[:2] != b"n+":
        raise ValueError("a pair of .hdr and .img, or no NIfTI; write it as .nii")
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
        sum(bool(bytes(header[name]).rstrip(b"\0 ")) for name in _TEXTS) + (offset > size + 4),
    )


def read_volume(data: bytes, max_bytes: int) -> tuple[NiftiHeader, NDArray[Any]]:
    """Reads the header and the stored values ``(I, J, K, T, C)`` of a file. C is 1, or the number of colours.

    Raises :class:`ValueError` for a damaged or truncated file. Otherwise raises as :func:`read_header` does.
    """
    header = read_header(data, max_bytes)
    end = header.offset + header.nbytes
    inflated = inflate(data, end)
    if len(inflated) < end:
        raise ValueError(f"is truncated: its values end at byte {end:,}, and it has {len(inflated):,}")
    values = np.frombuffer(inflated, header.dtype, math.prod(header.shape), header.offset)
    if not header.dtype.names:
        return header, values.reshape(header.shape, order="F")[..., None]
    return header, np.stack([values[name].reshape(header.shape, order="F") for name in header.dtype.names], -1)


def check_file_size(header: NiftiHeader, data: bytes, size: int) -> None:
    """Raises :class:`ValueError` if a file of ``size`` bytes that begins with ``data`` is too small for its values.

    A small file could otherwise claim millions of slices, each of them a bad sample.
    """
    most = size * _MAX_RATIO if data[:2] == _GZIP_MAGIC else size
    if (end := header.offset + header.nbytes) > most:
        raise ValueError(f"is truncated: its values end at byte {end:,}, and it has at most {most:,}")


def inflate(data: bytes, limit: int) -> bytes:
    """Returns the first ``limit`` bytes of the decompressed content of gzip ``data``. Returns fewer if the content ends
    earlier.

    Returns other ``data`` unchanged, as a whole. Raises :class:`ValueError` for damaged gzip, and for a wrong checksum
    if the content ends within the limit.
    """
    if data[:2] != _GZIP_MAGIC:
        return data
    content = b""
    while data[:2] == _GZIP_MAGIC and len(content) < limit:
        inflater = zlib.decompressobj(_GZIP)
        try:
            content += inflater.decompress(data, limit - len(content))
            inflater.decompress(inflater.unconsumed_tail, 1)
        except zlib.error as error:
            raise ValueError(f"is damaged: {error}") from None
        data = inflater.unused_data
    return content


def cast_to_mode(values: NDArray[Any], mode: Mode) -> NDArray[Any]:
    """Converts values to the dtype and the channels of a mode. Repeats gray for each channel.

    Raises :class:`ValueError` if a value would change.
    """
    cast = values.astype(mode.dtype)
    if cast.dtype != values.dtype.newbyteorder("=") and not np.array_equal(
        cast.astype(values.dtype), values, equal_nan=values.dtype.kind == "f"
    ):
        raise ValueError(
            f"values of {values.dtype.name} that {mode.dtype} does not hold; write it as {mode.dtype} first"
        )
    return cast if cast.shape[-1] == mode.channels else np.repeat(cast, mode.channels, -1)


def load_nibabel() -> Any:
    """Imports nibabel. Raises :class:`SourceError` if it is not installed."""
    try:
        return importlib.import_module("nibabel")
    except ImportError as error:
        raise SourceError(f"NIfTI is read by nibabel: pip install 'packstore[nifti]' ({error})") from None


class RecentCache:
    """Keeps the ``size`` most recently used values by key. Only one thread makes a value; others that need the value
    wait."""

    def __init__(self, size: int = 3) -> None:
        self._size, self._lock = size, threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[threading.Lock, list[Any]]] = OrderedDict()

    def get_or_make(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Returns the value of a key; calls ``make`` if the cache has none. If ``make`` raises, passes the error on
        and keeps nothing."""
        with self._lock:
            lock, made = self._kept.setdefault(key, (threading.Lock(), []))
            self._kept.move_to_end(key)
            if len(self._kept) > self._size:
                self._kept.popitem(last=False)
        with lock:
            if not made:
                made.append(make())
            return made[0]
