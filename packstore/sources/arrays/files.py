"""Files whose arrays are ranges of bytes: numpy's ``.npz`` and ``.npy``, and MATLAB's ``.mat``.

Nothing is unpickled: arrays of objects are refused. Uncompressed arrays are read in place, compressed ones are
decompressed in blocks, so memory does not grow with the file. MATLAB's arrays of images are ``H x W x N`` or
``H x W x C x N``, or flat in a matrix. Its files of version 7.3 are HDF5. Cells, structs and texts are left out, and
counted.
"""

from __future__ import annotations

import itertools
import math
import struct
import zipfile
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import printable
from packstore.images.kinds.npy import parse_npy_header
from packstore.sources.arrays import make_array_kind
from packstore.sources.arrays.source import ArraySource
from packstore.sources.arrays.stored import ArrayInfo, FileArray, OpenArrays, ReadRange, StoredArray, verify_first
from packstore.sources.inflating import ZLIB, GzipReader
from packstore.sources.named.mat import COMPRESSED, HEADER_BYTES, parse_array_start, read_byte_order
from packstore.sources.refusals import first_bytes

_NPY, _ZIP, _MAT = b"\x93NUMPY", b"PK\x03\x04", b"MATLAB 5.0"
# Bytes of the header of a file in a zip, and place of the lengths of the two fields that follow it.
_LOCAL_BYTES, _LENGTHS_AT = 30, 26
_HEADER_BYTES = 1 << 16
_MAT_START = 1024
_MAX_ARRAYS = 10_000
_CHUNK = 1 << 20


class NpzSource(ArraySource):
    """Samples of ``.npz`` or ``.npy`` files. Arrays of Python objects are never unpickled: as images or labels they
    raise :class:`SourceError` at opening, other ones are left out."""

    kind = "npz"
    suffixes = (".npz", ".npy")
    files_name = "npz or npy files"

    def open_arrays(self, opened: OpenArrays, path: Path) -> None:
        open_numpy_file(opened, path)

    @classmethod
    def reads_file(cls, path: Path) -> bool:
        """Tells if a file is an ``.npy``, or a zip with the suffix ``.npz``."""
        start = first_bytes(path)
        return start.startswith(_NPY) or (start.startswith(_ZIP) and path.suffix.lower() == ".npz")


def open_numpy_file(opened: OpenArrays, path: Path) -> None:
    """Adds the arrays of an ``.npz``, or the one of an ``.npy`` under the name of the file. Bytes ``x`` with
    ``x_offsets`` become one array of files. The first read verifies the CRC-32 of an array in a zip.

    Raises one of ``FAULTS`` for damaged headers or sizes, encryption, more than 10,000 arrays, a member of a zip that
    is no array, and two of one name.
    """
    plain = opened.open_plain(path)
    if first_bytes(path, 4) != _ZIP:
        array = _parse_array(path.stem, path.stat().st_size, plain)
        opened.put(path.stem, array, alone=True)
        return
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > _MAX_ARRAYS:
            raise ValueError(f"it holds more than {_MAX_ARRAYS:,} arrays")
        for member in members:
            name, place = member.filename.removesuffix(".npy"), member.header_offset
            if name == member.filename or name in opened.arrays:
                raise ValueError(f"{printable(member.filename)} is no array, or is in it twice")
            archive.open(member).close()  # raises for a damaged header, encryption and an unknown compression
            start = place + _LOCAL_BYTES + sum(struct.unpack("<2H", plain(4, place + _LENGTHS_AT)))
            if member.compress_type == zipfile.ZIP_STORED:
                read: ReadRange = lambda size, at, start=start: plain(size, start + at)  # type: ignore[misc]  # noqa: E731
            elif member.compress_type == zipfile.ZIP_DEFLATED:
                read = opened.enter_context(closing(GzipReader(path, (start, member.compress_size)))).read_at
            else:
                raise ValueError(f"{name} is compressed by method {member.compress_type}, which numpy does not write")
            array = _parse_array(name, member.file_size, read)
            opened.arrays[name] = replace(array, read=verify_first(member.filename, read, member.file_size, member.CRC))
    _join_offsets(opened)


def _join_offsets(opened: OpenArrays) -> None:
    """Replaces each pair of arrays ``x`` (uint8) and ``x_offsets`` (int64) by one array of files."""
    for name, content in list(opened.arrays.items()):
        offsets = opened.arrays.get(f"{name}_offsets")
        if offsets is None or content.info.shape[1:] or content.info.dtype != np.uint8:
            continue
        if len(offsets.info.shape) == 1 and offsets.info.dtype == np.int64 and offsets.info.shape[0]:
            info = replace(content.info, shape=(offsets.info.shape[0] - 1,), content="files")
            opened.arrays[name] = _RaggedArray(info, content, opened.arrays.pop(f"{name}_offsets"))


@dataclass(slots=True)
class _RaggedArray(FileArray):
    """Array of files: the parts of one array of bytes between offsets in another."""

    content: FileArray
    offsets: FileArray

    def read_rows(self, axis: int, start: int, stop: int) -> NDArray[Any]:
        edges = self.offsets.read_rows(0, start, stop + 1).tolist()
        values = np.empty(stop - start, object)
        for number, (first, last) in enumerate(itertools.pairwise(edges)):
            if not 0 <= first <= last <= self.content.info.shape[0]:
                name = self.info.name
                raise ValueError(f"{name}_offsets has a value from byte {first} to {last}, which is not in the array")
            values[number] = self.content.read_rows(0, first, last).tobytes()
        return values


def _parse_array(name: str, nbytes: int, read: ReadRange) -> StoredArray:
    """Parses the header of an ``.npy`` of ``nbytes`` bytes, and returns its array."""
    shape, fortran, dtype, place = parse_npy_header(read(min(_HEADER_BYTES, nbytes), 0))
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or (place + size != nbytes and not dtype.hasobject):
        raise ValueError(f"{name} {shape} has {nbytes:,} bytes, expected {place + size:,}: cut off or overwritten")
    if dtype.hasobject:
        why = f"{printable(name)} holds Python objects, which numpy pickles, and packstore runs no pickles"
        info = ArrayInfo.unreadable(name, shape, why)
    elif dtype.kind in "SU":
        info = ArrayInfo(name, shape, dtype, "texts")
    else:
        info = ArrayInfo.of_numbers(name, shape, dtype)
    return StoredArray(info, read, place, fortran)


class MatSource(ArraySource):
    """Samples of ``.mat`` files of versions 5 to 7. Opening reads all compressed arrays, to verify their checksums;
    others have none."""

    kind = "mat"
    suffixes = (".mat",)
    files_name = "MATLAB files"

    def open_arrays(self, opened: OpenArrays, path: Path) -> None:
        open_mat(opened, path)

    @classmethod
    def reads_file(cls, path: Path) -> bool:
        """Tells if a path is a MATLAB file by its first bytes."""
        return first_bytes(path, len(_MAT)) == _MAT


def open_mat(opened: OpenArrays, path: Path) -> None:
    """Adds the arrays of numbers in a ``.mat`` file of any size; vectors have one axis, as labels need. Skips variables
    of other types, complex numbers included. Raises one of ``FAULTS`` for damage, and for another format."""
    plain, size = opened.open_plain(path), path.stat().st_size
    order, position = read_byte_order(plain(HEADER_BYTES, 0)), HEADER_BYTES
    while position < size:
        kind, length = struct.unpack(f"{order}II", plain(8, position))
        end = position + 8 + length
        if end > size:
            raise ValueError(f"it ends {end - size} bytes too early")
        if len(opened.arrays) > _MAX_ARRAYS:
            raise ValueError(f"it holds more than {_MAX_ARRAYS:,} arrays")
        read: ReadRange = plain
        start, begin = plain(min(_MAT_START, size - position), position), position
        if kind == COMPRESSED:
            reader = opened.enter_context(closing(GzipReader(path, (position + 8, length), ZLIB)))
            read, start, begin = reader.read_at, reader.read(_MAT_START), 0
            while reader.read(_CHUNK):
                continue  # the end has a checksum
        name, found = parse_array_start(start, order)
        if found is not None:
            shape, dtype, offset = found
            if len(shape) == 2 and min(shape) == 1:
                shape = (math.prod(shape),)
            info = ArrayInfo(name, shape, dtype, by_columns=True)
            opened.arrays[name] = StoredArray(info, read, begin + offset, fortran=True)
        position = end


NPZ = make_array_kind(NpzSource, "numpy's npz or npy files with arrays of images", exported=True)
MAT = make_array_kind(MatSource, "MATLAB files with arrays of images")
