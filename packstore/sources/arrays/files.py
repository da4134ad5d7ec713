"""Files whose arrays are ranges of bytes: numpy's ``.npz`` and ``.npy``, and MATLAB's ``.mat``.

Nothing is unpickled: arrays of objects are refused. Uncompressed arrays are read in place, compressed ones are
decompressed in blocks, so memory does not grow with the file. MATLAB's arrays of images are ``H x W x N`` or
``H x W x C x N``, or flat in a matrix. Its files of version 7.3 are HDF5. Cells, structs and texts are left out, and
counted.
"""

from __future__ import annotations

import itertools
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.core.npy_header import parse_npy_header
from packstore.sources.arrays import make_array_kind
from packstore.sources.arrays.source import ArraySource
from packstore.sources.arrays.stored import (
    ArrayInfo,
    FileArray,
    OpenArrays,
    ReadRange,
    StoredArray,
    read_at,
    verify_first,
)
from packstore.sources.inflating import GzipReader
from packstore.sources.named.mat import (
    COMPRESSED,
    FAULTS,
    HEADER_BYTES,
    MatError,
    damage_error,
    parse_array_start,
    read_byte_order,
)
from packstore.sources.refusals import first_bytes

_NPY, _ZIP, _MAT = b"\x93NUMPY", b"PK\x03\x04", b"MATLAB 5.0"
_LOCAL = struct.Struct("<4s5H3L2H")
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

    def open_file(self, path: Path) -> OpenArrays:
        return open_numpy_file(path)

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Tells if a path is an npz or npy by its first bytes, or a folder of such suffixes alone."""
        return cls.holds_only_arrays(path) if path.is_dir() else cls.reads_file(path)

    @classmethod
    def reads_file(cls, path: Path) -> bool:
        """Tells if a file is an ``.npy``, or a zip of numpy arrays. The suffix ``.npz`` of a zip suffices. With any
        other suffix but ``.zip``, the first file in the zip has to be an ``.npy``."""
        start = first_bytes(path, 512)
        name = start[30 : 30 + int.from_bytes(start[26:28], "little")]
        suffix = path.suffix.lower()
        is_npz = suffix == ".npz" or (name.endswith(b".npy") and suffix != ".zip")
        return start.startswith(_NPY) or (start.startswith(_ZIP) and is_npz)


def open_numpy_file(path: Path) -> OpenArrays:
    """Opens an ``.npz`` if the file is a zip, else an ``.npy``: one array with the name of the file. Raises
    :class:`SourceError` for damaged headers or sizes."""
    if first_bytes(path, 4) == _ZIP:
        return _OpenNpz(path)
    with OpenArrays() as opened:
        descriptor = opened.open_descriptor(path)
        start, size = os.pread(descriptor, _HEADER_BYTES, 0), os.fstat(descriptor).st_size
        array = _parse_array(printable(str(path)), path.stem, start, size, partial(read_at, descriptor))
        opened.put(path.stem, array, alone=True)
        return opened


class _OpenNpz(OpenArrays):
    """Open ``.npz`` file: a zip of ``.npy`` files. Bytes ``x`` with ``x_offsets`` become one array of files.

    Opening raises :class:`SourceError`:

    - for a damaged directory or header, and encryption; the first read verifies the content
    - for more than 10,000 members
    - for a member that is no array, and two members of one name
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._shown = printable(str(path))
        self._path = path
        self._descriptor = self.open_descriptor(path)
        try:
            with self, zipfile.ZipFile(path) as archive:
                self._open_members(archive.infolist())
        except SourceError:
            raise
        except (zipfile.BadZipFile, struct.error, zlib.error, EOFError, NotImplementedError, ValueError) as error:
            raise SourceError(f"{self._shown} is a damaged npz: {printable(str(error))[:200]}") from None

    def _open_members(self, members: Sequence[zipfile.ZipInfo]) -> None:
        """Opens all arrays. Raises :class:`SourceError` for more than 10,000, for a member that is no array, and two of
        one name."""
        if len(members) > _MAX_ARRAYS:
            raise SourceError(f"{self._shown} holds more than {_MAX_ARRAYS:,} arrays")
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name == member.filename or name in self.arrays:
                raise SourceError(f"{self._shown}: {printable(member.filename)} is no array, or is in it twice")
            self.arrays[name] = self._open_member(name, member)
        self._join_offsets()

    def _join_offsets(self) -> None:
        """Replaces each pair of arrays ``x`` (uint8) and ``x_offsets`` (int64) by one array of files.

        Both arrays must be one-dimensional, and the offsets not empty."""
        for name, content in list(self.arrays.items()):
            offsets = self.arrays.get(f"{name}_offsets")
            if offsets is None or content.info.shape[1:] or content.info.dtype != np.uint8:
                continue
            if len(offsets.info.shape) == 1 and offsets.info.dtype == np.int64 and offsets.info.shape[0]:
                info = replace(content.info, shape=(offsets.info.shape[0] - 1,), content="files")
                self.arrays[name] = _RaggedArray(info, content, self.arrays.pop(f"{name}_offsets"))

    def _open_member(self, name: str, member: zipfile.ZipInfo) -> StoredArray:
        """Opens an array of the zip, stored or deflated. Raises :class:`ValueError` for another compression, encryption
        or damage, and :class:`SourceError` for a damaged header of the array."""
        header = read_at(self._descriptor, _LOCAL.size, member.header_offset)
        magic, *_, name_size, extra_size = _LOCAL.unpack(header)
        if magic != _ZIP or member.flag_bits & 1:
            raise ValueError(f"{name} is encrypted, or has no header at the place that the directory gives")
        at = member.header_offset + _LOCAL.size + name_size + extra_size
        if at + member.compress_size > os.fstat(self._descriptor).st_size:
            raise ValueError(f"{name} is cut off")
        if member.compress_type == zipfile.ZIP_STORED:
            if member.compress_size != member.file_size:
                raise ValueError(f"{name} has two sizes")
            read: ReadRange = lambda size, place: read_at(self._descriptor, size, at + place)  # noqa: E731
        elif member.compress_type == zipfile.ZIP_DEFLATED:
            reader = GzipReader(self._path, (at, member.compress_size))
            self.closing.callback(reader.close)
            read = reader.read_at
        else:
            raise ValueError(f"{name} is compressed by method {member.compress_type}, which numpy does not write")
        start = read(min(_HEADER_BYTES, member.file_size), 0)
        verified = verify_first(read, partial(_check_crc, read, member))
        return _parse_array(self._shown, name, start, member.file_size, verified)


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


def _check_crc(read: ReadRange, member: zipfile.ZipInfo) -> None:
    """Reads a whole file of a zip. Raises :class:`ValueError` if its CRC-32 differs from that of the directory."""
    crc, total = 0, member.file_size
    for start in range(0, total, _CHUNK):
        crc = zlib.crc32(read(min(_CHUNK, total - start), start), crc)
    if crc != member.CRC:
        raise ValueError(f"{printable(member.filename)} is damaged: CRC-32 {crc:08x}, expected {member.CRC:08x}")


def _parse_array(shown: str, name: str, start: bytes, nbytes: int, read: ReadRange) -> StoredArray:
    """Parses the header of an ``.npy``, and returns its array. Arrays of Python objects, and of dtypes without a type
    of column, are described as unreadable.

    Args:
        shown: Name of the file, for messages.
        name: Name of the array.
        start: First bytes of the ``.npy``.
        nbytes: Size of the ``.npy``.
        read: Reads bytes of the ``.npy``, given size and offset.

    Raises:
        SourceError: The header is damaged, or the size is not that of its array.
    """
    try:
        shape, fortran, dtype, place = parse_npy_header(start)
    except ValueError as error:
        raise SourceError(f"{shown}: {printable(name)} {printable(str(error))}") from None
    if any(size < 0 for size in shape):
        raise SourceError(f"{shown}: {printable(name)} has the shape {shape}")
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        why = (
            f"{printable(name)} holds Python objects, which numpy pickles, and packstore runs no pickles: write it "
            "as an array of numbers"
        )
        info = ArrayInfo.unreadable(name, shape, why)
    elif place + size != nbytes:
        raise SourceError(
            f"{shown}: {printable(name)} should have {place + size:,} bytes, and has {nbytes:,}: it was cut off or "
            "overwritten"
        )
    elif dtype.kind in "SU":
        info = ArrayInfo(name, shape, dtype, "texts")
    else:
        info = ArrayInfo.of_numbers(name, shape, dtype, str(dtype))
    return StoredArray(info, read, place, fortran)


class MatSource(ArraySource):
    """Samples of ``.mat`` files of versions 5 to 7. Opening reads all compressed arrays, to verify their checksums;
    others have none."""

    kind = "mat"
    suffixes = (".mat",)
    files_name = "MATLAB files"

    def open_file(self, path: Path) -> OpenArrays:
        return OpenMat(path)

    @classmethod
    def reads_file(cls, path: Path) -> bool:
        """Tells if a path is a MATLAB file by its first bytes."""
        return first_bytes(path, len(_MAT)) == _MAT


class OpenMat(OpenArrays):
    """Arrays of numbers in a ``.mat`` file of any size; vectors have one axis, as labels need. Skips variables of other
    types, complex numbers included.

    Opening reads the headers, and verifies the checksums of compressed arrays. It raises :class:`SourceError` for
    damage, and for another format.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, shown = path, printable(str(path))
        if not MatSource.reads_file(path):
            raise SourceError(f"{shown} is no MATLAB file of versions 5 to 7; save it again with -v7")
        try:
            with self, path.open("rb") as file:
                self._find_arrays(file, path.stat().st_size)
        except OSError as error:
            raise SourceError(f"{shown} cannot be read: {error.strerror or error}") from None
        except FAULTS as error:
            raise damage_error(shown, error) from None

    def _find_arrays(self, file: IO[bytes], size: int) -> None:
        """Adds all arrays of numbers, by the first bytes of each element. Raises one of ``FAULTS`` for damage."""
        order, position = read_byte_order(file.read(HEADER_BYTES)), HEADER_BYTES
        plain = partial(read_at, self.open_descriptor(self._path))
        while position < size:
            file.seek(position)
            start = file.read(_MAT_START)
            kind, length = struct.unpack_from(f"{order}II", start)
            end = position + 8 + length
            if end > size:
                raise MatError(f"it ends {end - size} bytes too early")
            if kind == COMPRESSED:
                start = zlib.decompressobj().decompress(start[8:], _MAT_START)
            name, found = parse_array_start(start, order)
            if found is not None:
                shape, dtype, offset = found
                if len(shape) == 2 and min(shape) == 1:
                    shape = (math.prod(shape),)
                read = self._open_compressed(file, position + 8, end) if kind == COMPRESSED else plain
                place = offset if kind == COMPRESSED else position + offset
                info = ArrayInfo(name, shape, dtype, by_columns=True)
                self.arrays[name] = StoredArray(info, read, place, fortran=True)
            position = end

    def _open_compressed(self, file: IO[bytes], start: int, end: int) -> ReadRange:
        """Opens a compressed element between two offsets, and verifies its Adler-32 checksum (RFC 1950). Raises one of
        ``FAULTS`` for damage."""
        reader = GzipReader(self._path, (start + 2, end - start - 2))  # without zlib's header
        self.closing.callback(reader.close)
        checksum = 1
        while data := reader.read(_CHUNK):
            checksum = zlib.adler32(data, checksum)
        file.seek(end - 4)
        expected = int.from_bytes(file.read(4), "big")
        if checksum != expected:
            raise MatError(f"Adler-32 {checksum:08x}, expected {expected:08x}")
        return reader.read_at


NPZ = make_array_kind(NpzSource, "numpy's npz or npy files with arrays of images", exported=True)
MAT = make_array_kind(MatSource, "MATLAB files with arrays of images")
