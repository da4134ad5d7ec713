"""numpy's files: arrays in an ``.npz`` (``x_train``, ``y_train`` …), or ``.npy`` files side by side.

Nothing is unpickled: arrays of objects are refused. Uncompressed arrays are read in place, compressed ones are
decompressed in blocks, so memory does not grow with the file.
"""

from __future__ import annotations

import itertools
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.core.npy_header import parse_npy_header
from packstore.sources.arrays.exported import ExportedArrays
from packstore.sources.arrays.source import ArraySource, make_array_kind
from packstore.sources.arrays.stored import ArrayInfo, ReadRange, StoredArray, StoredArrays, VerifiedReader, read_at
from packstore.sources.exported_rows import open_with
from packstore.sources.inflating import GzipReader
from packstore.sources.refusals import first_bytes

_MAGIC = b"\x93NUMPY"
_ZIP = b"PK\x03\x04"
_LOCAL = struct.Struct("<4s5H3L2H")
_HEADER_BYTES = 1 << 16
_MAX_ARRAYS = 10_000
_CHUNK = 1 << 20


class NpzSource(ArraySource):
    """Samples of ``.npz`` or ``.npy`` files. Arrays of Python objects are never unpickled: as images or labels they
    raise :class:`SourceError` at opening, other ones are left out."""

    kind = "npz"
    suffixes = (".npz", ".npy")
    files_name = "npz or npy files"

    def open_file(self, path: Path) -> StoredArrays:
        """Opens an ``.npz`` or ``.npy``, see :func:`open_numpy_file`."""
        return open_numpy_file(path)

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Tells if a path is an npz or npy by its first bytes, or a folder of such suffixes alone."""
        if path.is_dir():
            return cls.holds_only_arrays(path)
        return _is_npz(path) or first_bytes(path, len(_MAGIC)) == _MAGIC


def open_numpy_file(path: Path) -> StoredArrays:
    """Opens an ``.npz`` if the file is a zip, else an ``.npy``. Raises :class:`SourceError` for damaged headers or
    sizes."""
    return _OpenNpz(path) if first_bytes(path, 4) == _ZIP else _OpenNpy(path)


class _OpenNpy(StoredArrays):
    """Open ``.npy`` file: one array with the name of the file. Opening raises :class:`SourceError` for a damaged
    header, and if the file has another size than its array."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        descriptor = self.open_descriptor(path)
        with self:
            start, size = os.pread(descriptor, _HEADER_BYTES, 0), os.fstat(descriptor).st_size
            array = _parse_array(printable(str(path)), path.stem, start, size, partial(read_at, descriptor))
        self.arrays[path.stem] = replace(array, info=replace(array.info, alone=True))


class _OpenNpz(StoredArrays):
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
        self._ragged: dict[str, tuple[StoredArray, StoredArray]] = {}
        """Bytes and offsets of each array of files, by name."""
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
                count = offsets.info.shape[0] - 1
                self.arrays[name] = replace(content, info=replace(content.info, shape=(count,), content="files"))
                self._ragged[name] = content, self.arrays.pop(f"{name}_offsets")

    def read_rows(self, name: str, axis: int, start: int, stop: int) -> NDArray[Any]:
        """Reads rows along an axis; of joined arrays, files by their offsets. Raises :class:`ValueError` for damage,
        and for an offset outside of the array."""
        if name not in self._ragged:
            return super().read_rows(name, axis, start, stop)
        content, offsets = self._ragged[name]
        edges = np.frombuffer(offsets.read(8 * (stop - start + 1), offsets.offset + 8 * start), np.int64).tolist()
        values = np.empty(stop - start, object)
        for number, (first, last) in enumerate(itertools.pairwise(edges)):
            if not 0 <= first <= last <= content.info.shape[0]:
                raise ValueError(f"{name}_offsets has a value from byte {first} to {last}, which is not in the array")
            values[number] = content.read(last - first, content.offset + first)
        return values

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
        verified = VerifiedReader(read, partial(_check_crc, read, member))
        return _parse_array(self._shown, name, start, member.file_size, verified)


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


class ExportedNpz(ExportedArrays, NpzSource):
    """Samples of an npz export of packstore."""


def _is_npz(path: Path) -> bool:
    """Tells if a file is a zip of numpy arrays. The suffix ``.npz`` of a zip suffices. With any other suffix but
    ``.zip``, the first file in the zip has to be an ``.npy``."""
    start = first_bytes(path, 512)
    name = start[30 : 30 + int.from_bytes(start[26:28], "little")]
    suffix = path.suffix.lower()
    return start.startswith(_ZIP) and (suffix == ".npz" or (name.endswith(b".npy") and suffix != ".zip"))


KIND = make_array_kind(NpzSource, "numpy's npz or npy files with arrays of images", open_with(NpzSource, ExportedNpz))
