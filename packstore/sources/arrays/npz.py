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
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.core.npy_header import parse_npy_header
from packstore.sources.arrays.exported import ExportedArrays
from packstore.sources.arrays.source import ArraySource, recognise_arrays
from packstore.sources.arrays.stored import ArrayInfo, OpenArrays, object_array, read_at
from packstore.sources.base import Certainty, Kind, SourceOptions
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

    @classmethod
    def open_file(cls, path: Path, folder: Path) -> OpenArrays:
        """Opens an ``.npz`` if the file is a zip, else an ``.npy``. Ignores ``folder``. Raises :class:`SourceError` for
        damaged headers or sizes."""
        return _OpenNpz(path) if first_bytes(path, 4) == _ZIP else _OpenNpy(path)


@dataclass(frozen=True, slots=True)
class _StoredArray:
    """Array in a file.

    Attributes:
        read: Reads bytes of its values, given size and offset.
        info: Description of the array.
        fortran: The values are in Fortran order, with the first axis the fastest.
    """

    read: Callable[[int, int], bytes]
    info: ArrayInfo
    fortran: bool


class _OpenNumpyArrays(OpenArrays):
    """Base of open ``.npy`` and ``.npz`` files."""

    _contents: dict[str, _StoredArray]

    def list_arrays(self) -> list[ArrayInfo]:
        """Describes all arrays, as read at opening."""
        return [content.info for content in self._contents.values()]

    def read_rows(self, name: str, axis: int, start: int, stop: int) -> NDArray[Any]:
        """Reads rows ``start`` to ``stop`` along ``axis``; the result has the array's axes in their order. Texts become
        an array of Python objects: ``str`` or ``bytes``. Raises :class:`ValueError` for damaged bytes."""
        content = self._contents[name]
        info = content.info
        shape = info.shape[::-1] if content.fortran else info.shape
        axis = len(shape) - 1 - axis if content.fortran else axis
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :]) * info.dtype.itemsize
        size = (stop - start) * inner
        parts = [content.read(size, (row * shape[axis] + start) * inner) for row in range(outer)]
        values = np.frombuffer(b"".join(parts), info.dtype).reshape(*shape[:axis], stop - start, *shape[axis + 1 :])
        if info.content == "texts":
            return object_array([str(item) if values.dtype.kind == "U" else bytes(item) for item in values])
        return values.T if content.fortran else values


class _OpenNpy(_OpenNumpyArrays):
    """Open ``.npy`` file: one array with the name of the file. Opening raises :class:`SourceError` for a damaged
    header, and if the file has another size than its array."""

    def __init__(self, path: Path) -> None:
        self._shown = printable(str(path))
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            start = os.pread(self._descriptor, _HEADER_BYTES, 0)
            left = os.fstat(self._descriptor).st_size
            info, fortran, place = _parse_header(self._shown, path.stem, start, left)
        except BaseException:
            os.close(self._descriptor)
            raise
        info = replace(info, alone=True)
        self._contents = {
            path.stem: _StoredArray(lambda size, at: read_at(self._descriptor, size, place + at), info, fortran)
        }

    def close(self) -> None:
        """Closes the file. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _OpenNpz(_OpenNumpyArrays):
    """Open ``.npz`` file: a zip of ``.npy`` files. Bytes ``x`` with ``x_offsets`` become one array of files.

    Opening raises :class:`SourceError`:

    - for a damaged directory or header, and encryption; the first read verifies the content
    - for more than 10,000 members
    - for a member that is no array, and two members of one name
    """

    def __init__(self, path: Path) -> None:
        self._shown = printable(str(path))
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._readers: list[GzipReader] = []
        self._contents = {}
        self._ragged: dict[str, _StoredArray] = {}
        self._offsets: dict[str, _StoredArray] = {}
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
            if len(members) > _MAX_ARRAYS:
                raise SourceError(f"{self._shown} holds more than {_MAX_ARRAYS:,} arrays")
            for member in members:
                name = member.filename.removesuffix(".npy")
                if name == member.filename or name in self._contents:
                    raise SourceError(f"{self._shown}: {printable(member.filename)} is no array, or is in it twice")
                self._contents[name] = self._open_member(name, member)
            self._join_offsets()
        except (zipfile.BadZipFile, struct.error, zlib.error, EOFError, NotImplementedError, ValueError) as error:
            self.close()
            if isinstance(error, SourceError):
                raise
            raise SourceError(f"{self._shown} is a damaged npz: {printable(str(error))[:200]}") from None
        except BaseException:
            self.close()
            raise

    def _join_offsets(self) -> None:
        """Replaces each pair of arrays ``x`` (uint8) and ``x_offsets`` (int64) by one array of files.

        Both arrays must be one-dimensional, and the offsets not empty."""
        for name, content in list(self._contents.items()):
            offsets = self._contents.get(f"{name}_offsets")
            if offsets is None or content.info.shape[1:] or content.info.dtype != np.uint8:
                continue
            if len(offsets.info.shape) == 1 and offsets.info.dtype == np.int64 and offsets.info.shape[0]:
                count = offsets.info.shape[0] - 1
                self._contents[name] = replace(content, info=replace(content.info, shape=(count,), content="files"))
                self._ragged[name] = content
                del self._contents[f"{name}_offsets"]
                self._offsets[name] = offsets

    def read_rows(self, name: str, axis: int, start: int, stop: int) -> NDArray[Any]:
        """Reads rows along an axis; of joined arrays, files by their offsets. Raises :class:`ValueError` for damage,
        and for an offset outside of the array."""
        content = self._ragged.get(name)
        if content is None:
            return super().read_rows(name, axis, start, stop)
        data = self._offsets[name].read(8 * (stop - start + 1), 8 * start)
        edges = np.frombuffer(data, np.int64).tolist()
        values = np.empty(stop - start, object)
        for number, (first, last) in enumerate(itertools.pairwise(edges)):
            if not 0 <= first <= last <= content.info.shape[0]:
                raise ValueError(f"{name}_offsets has a value from byte {first} to {last}, which is not in the array")
            values[number] = content.read(last - first, first)
        return values

    def _open_member(self, name: str, member: zipfile.ZipInfo) -> _StoredArray:
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
            read = _ZipMemberReader(lambda size, place: read_at(self._descriptor, size, at + place), member)
        elif member.compress_type == zipfile.ZIP_DEFLATED:
            reader = GzipReader(self._path, (at, member.compress_size))
            self._readers.append(reader)
            read = _ZipMemberReader(reader.read_at, member)
        else:
            raise ValueError(f"{name} is compressed by method {member.compress_type}, which numpy does not write")
        start = read.unchecked(min(_HEADER_BYTES, member.file_size), 0)
        info, fortran, place = _parse_header(self._shown, name, start, member.file_size)
        return _StoredArray(lambda size, offset: read(size, place + offset), info, fortran)

    def close(self) -> None:
        """Closes the file, and all decompressors. Idempotent."""
        for reader in self._readers:
            reader.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _ZipMemberReader:
    """Reads bytes of a file in a zip, by size and offset. The first read checks the whole file, and raises
    :class:`ValueError` if its CRC-32 differs. ``unchecked`` reads without that check."""

    def __init__(self, read: Callable[[int, int], bytes], member: zipfile.ZipInfo) -> None:
        self.unchecked = read
        self._member = member
        self._checked = False

    def __call__(self, size: int, place: int) -> bytes:
        if not self._checked:
            crc, total = 0, self._member.file_size
            for start in range(0, total, _CHUNK):
                crc = zlib.crc32(self.unchecked(min(_CHUNK, total - start), start), crc)
            if crc != self._member.CRC:
                name, expected = printable(self._member.filename), self._member.CRC
                raise ValueError(f"{name} is damaged: CRC-32 {crc:08x}, expected {expected:08x}")
            self._checked = True
        return self.unchecked(size, place)


def _parse_header(shown: str, name: str, start: bytes, nbytes: int) -> tuple[ArrayInfo, bool, int]:
    """Parses the header of an ``.npy``; returns the array, True for Fortran order, and the offset of its values.

    Arrays of Python objects, and of dtypes without a type of column, are described as unreadable.

    Args:
        shown: Name of the file, for messages.
        name: Name of the array.
        start: First bytes of the ``.npy``.
        nbytes: Size of the ``.npy``.

    Raises:
        SourceError: The header is damaged, or the size is not that of its array.
    """
    try:
        shape, fortran, dtype, place = parse_npy_header(start)
    except ValueError as error:
        raise SourceError(f"{shown}: {printable(name)} {printable(str(error))}") from None
    if any(size < 0 for size in shape):
        raise SourceError(f"{shown}: {printable(name)} has the shape {shape}")
    if dtype.hasobject:
        why = (
            f"{printable(name)} holds Python objects, which numpy pickles, and packstore runs no pickles: write it "
            "as an array of numbers"
        )
        return ArrayInfo.unreadable(name, shape, why), False, place
    size = math.prod(shape) * dtype.itemsize
    if place + size != nbytes:
        raise SourceError(
            f"{shown}: {printable(name)} should have {place + size:,} bytes, and has {nbytes:,}: it was cut off or "
            "overwritten"
        )
    if dtype.kind in "SU":
        return ArrayInfo("", name, shape, dtype, "texts"), fortran, place
    if dtype.kind not in "uifb" or dtype.itemsize > 8:
        why = f"{printable(name)} holds {dtype}, for which there is no type of column"
        return ArrayInfo.unreadable(name, shape, why), fortran, place
    return ArrayInfo("", name, shape, dtype), fortran, place


class ExportedNpz(ExportedArrays, NpzSource):
    """Samples of an npz export of packstore."""


_open = open_with(NpzSource, ExportedNpz)


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Returns ``CERTAIN`` for an npz or npy by its first bytes, and for a folder of such suffixes. Else returns ``NO``.
    Opens the arrays before it returns ``CERTAIN``, and raises the errors of opening."""
    if path.is_dir():
        if NpzSource.recognise_folder(path) is Certainty.NO:
            return Certainty.NO
    elif not _is_npz(path) and first_bytes(path, len(_MAGIC)) != _MAGIC:
        return Certainty.NO
    return recognise_arrays(_open, path, options)


def _is_npz(path: Path) -> bool:
    """Tells if a file is a zip of numpy arrays. The suffix ``.npz`` of a zip suffices. With any other suffix but
    ``.zip``, the first file in the zip has to be an ``.npy``."""
    start = first_bytes(path, 512)
    name = start[30 : 30 + int.from_bytes(start[26:28], "little")]
    suffix = path.suffix.lower()
    return start.startswith(_ZIP) and (suffix == ".npz" or (name.endswith(b".npy") and suffix != ".zip"))


KIND = Kind(NpzSource.kind, "numpy's npz or npy files with arrays of images", _recognise, _open, takes_arrays=True)
