"""numpy's files of others: arrays in an ``.npz`` (``x_train``, ``y_train`` …), or ``.npy`` files side by side.

The format is that of numpy's ``NEP 1``. Nothing is unpickled: arrays of objects are refused. What is not compressed is
read in place, and what is, is decompressed on the way; so memory does not grow with the file.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.sources.arrays.exported import ExportedArrays
from packstore.sources.arrays.source import ArraySource, recognise_arrays
from packstore.sources.arrays.stored import ArrayInfo, OpenArrays, read_at
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
    """``.npz`` or ``.npy`` files."""

    kind = "npz"
    suffixes = (".npz", ".npy")
    what = "npz or npy files"

    @classmethod
    def open_file(cls, path: Path, folder: Path) -> OpenArrays:
        return _OpenNpz(path) if first_bytes(path, 4) == _ZIP else _OpenNpy(path)


@dataclass(frozen=True, slots=True)
class _Content:
    """How the bytes of an array are read.

    Attributes:
        read: Given a size and a position among the array's numbers: so many bytes.
        info: The array.
        fortran: Its first axis is the fastest in the file.
    """

    read: Callable[[int, int], bytes]
    info: ArrayInfo
    fortran: bool


class _OpenArraysOfNumpy(OpenArrays):
    _contents: dict[str, _Content]

    def infos(self) -> list[ArrayInfo]:
        return [content.info for content in self._contents.values()]

    def read(self, name: str, axis: int, start: int, stop: int) -> NDArray[Any]:
        content = self._contents[name]
        info = content.info
        shape = info.shape[::-1] if content.fortran else info.shape
        axis = len(shape) - 1 - axis if content.fortran else axis
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :]) * info.dtype.itemsize
        size = (stop - start) * inner
        parts = [content.read(size, (row * shape[axis] + start) * inner) for row in range(outer)]
        found = np.frombuffer(b"".join(parts), info.dtype).reshape(*shape[:axis], stop - start, *shape[axis + 1 :])
        if info.what == "texts":
            return _texts(found)
        return found.T if content.fortran else found


class _OpenNpy(_OpenArraysOfNumpy):
    def __init__(self, path: Path) -> None:
        self._shown = printable(str(path))
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            start = os.pread(self._descriptor, _HEADER_BYTES, 0)
            left = os.fstat(self._descriptor).st_size
            info, fortran, place = _info(self._shown, path.stem, start, left)
        except BaseException:
            os.close(self._descriptor)
            raise
        info = _alone(info)
        self._contents = {
            path.stem: _Content(lambda size, at: read_at(self._descriptor, size, place + at), info, fortran)
        }

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _OpenNpz(_OpenArraysOfNumpy):
    def __init__(self, path: Path) -> None:
        self._shown = printable(str(path))
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._readers: list[GzipReader] = []
        self._contents = {}
        self._ragged: dict[str, _Content] = {}
        self._offsets: dict[str, _Content] = {}
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
            if len(members) > _MAX_ARRAYS:
                raise SourceError(f"{self._shown} holds more than {_MAX_ARRAYS:,} arrays")
            for member in members:
                name = member.filename.removesuffix(".npy")
                if name == member.filename or name in self._contents:
                    raise SourceError(f"{self._shown}: {printable(member.filename)} is no array, or is there twice")
                self._contents[name] = self._content(name, member)
            self._join()
        except (zipfile.BadZipFile, struct.error, zlib.error, EOFError, NotImplementedError, ValueError) as error:
            self.close()
            if isinstance(error, SourceError):
                raise
            raise SourceError(f"{self._shown} is a damaged npz: {printable(str(error))[:200]}") from None
        except BaseException:
            self.close()
            raise

    def _join(self) -> None:
        """Makes ``x`` and ``x_offsets`` one array of values of any length."""
        for name, content in list(self._contents.items()):
            offsets = self._contents.get(f"{name}_offsets")
            if offsets is None or content.info.shape[1:] or content.info.dtype != np.uint8:
                continue
            if len(offsets.info.shape) == 1 and offsets.info.dtype == np.int64 and offsets.info.shape[0]:
                count = offsets.info.shape[0] - 1
                self._contents[name] = replace(content, info=replace(content.info, shape=(count,), what="files"))
                self._ragged[name] = content
                del self._contents[f"{name}_offsets"]
                self._offsets[name] = offsets

    def read(self, name: str, axis: int, start: int, stop: int) -> NDArray[Any]:
        content = self._ragged.get(name)
        if content is None:
            return super().read(name, axis, start, stop)
        data = self._offsets[name].read(8 * (stop - start + 1), 8 * start)
        edges = np.frombuffer(data, np.int64).tolist()
        found = np.empty(stop - start, object)
        for number, (first, last) in enumerate(itertools.pairwise(edges)):
            if not 0 <= first <= last <= content.info.shape[0]:
                raise ValueError(f"{name}_offsets says that a value lies from byte {first} to {last}")
            found[number] = content.read(last - first, first)
        return found

    def _content(self, name: str, member: zipfile.ZipInfo) -> _Content:
        header = read_at(self._descriptor, _LOCAL.size, member.header_offset)
        magic, *_, name_size, extra_size = _LOCAL.unpack(header)
        if magic != _ZIP or member.flag_bits & 1:
            raise ValueError(f"{name} is encrypted, or is not where the directory says")
        at = member.header_offset + _LOCAL.size + name_size + extra_size
        if at + member.compress_size > os.fstat(self._descriptor).st_size:
            raise ValueError(f"{name} ends after the file")
        if member.compress_type == zipfile.ZIP_STORED:
            if member.compress_size != member.file_size:
                raise ValueError(f"{name} has two sizes")
            read = _Checked(lambda size, place: read_at(self._descriptor, size, at + place), member)
        elif member.compress_type == zipfile.ZIP_DEFLATED:
            reader = GzipReader(self._path, (at, member.compress_size))
            self._readers.append(reader)
            read = _Checked(lambda size, place: _inflated(reader, size, place), member)
        else:
            raise ValueError(f"{name} is compressed by method {member.compress_type}, which numpy does not write")
        start = read.unchecked(min(_HEADER_BYTES, member.file_size), 0)
        info, fortran, place = _info(self._shown, name, start, member.file_size)
        return _Content(lambda size, offset: read(size, place + offset), info, fortran)

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _Checked:
    """Reads a file of a zip, and checks its CRC-32 before the first byte is used."""

    def __init__(self, read: Callable[[int, int], bytes], member: zipfile.ZipInfo) -> None:
        self.unchecked = read
        self._member = member
        self._checked = False

    def __call__(self, size: int, place: int) -> bytes:
        if not self._checked:
            found, total = 0, self._member.file_size
            for start in range(0, total, _CHUNK):
                found = zlib.crc32(self.unchecked(min(_CHUNK, total - start), start), found)
            if found != self._member.CRC:
                name, expected = printable(self._member.filename), self._member.CRC
                raise ValueError(f"{name} is damaged: CRC-32 {found:08x}, expected {expected:08x}")
            self._checked = True
        return self.unchecked(size, place)


def _inflated(reader: GzipReader, size: int, place: int) -> bytes:
    try:
        reader.seek(place)
        data = reader.read(size)
    except (zlib.error, EOFError) as error:
        raise ValueError(f"it is damaged: {error}") from None
    if len(data) != size:
        raise ValueError("it is cut off")
    return data


def _info(shown: str, name: str, start: bytes, nbytes: int) -> tuple[ArrayInfo, bool, int]:
    """What the header of an ``.npy`` says, whether its axes are in Fortran's order, and where its numbers begin.

    Args:
        shown: The file, for messages.
        name: The array.
        start: The first bytes.
        nbytes: Bytes of all of it.
    """
    stream = io.BytesIO(start)
    try:
        version = npy.read_magic(stream)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"version {version} of the format, expected 1 or 2")
        shape, fortran, dtype = read(stream)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise SourceError(
            f"{shown}: {printable(name)} is no array of numpy's: {printable(str(error).partition(chr(10))[0])[:200]}"
        ) from None
    place = stream.tell()
    if any(size < 0 for size in shape):
        raise SourceError(f"{shown}: {printable(name)} has the shape {shape}")
    if dtype.hasobject:
        why = (
            f"{printable(name)} holds Python objects, which numpy keeps as a pickle, and packstore runs none: write it "
            "as an array of numbers"
        )
        return _nothing(name, shape, why), False, place
    size = math.prod(shape) * dtype.itemsize
    if place + size != nbytes:
        raise SourceError(
            f"{shown}: {printable(name)} should have {place + size:,} bytes, and has {nbytes:,}: it was cut off or "
            "written to"
        )
    if dtype.kind in "SU":
        return ArrayInfo("", name, shape, dtype, "texts"), fortran, place
    if dtype.kind not in "uifb" or dtype.itemsize > 8:
        why = f"{printable(name)} holds {dtype}, of which packstore makes no columns"
        return _nothing(name, shape, why), fortran, place
    return ArrayInfo("", name, shape, dtype), fortran, place


def _nothing(name: str, shape: tuple[int, ...], why: str) -> ArrayInfo:
    return ArrayInfo("", name, shape, np.dtype("u1"), "nothing", why=why)


def _alone(info: ArrayInfo) -> ArrayInfo:
    return ArrayInfo("", info.name, info.shape, info.dtype, info.what, alone=True, why=info.why)


def _texts(array: NDArray[Any]) -> NDArray[Any]:
    found = np.empty(len(array), object)
    found[:] = [str(item) if array.dtype.kind == "U" else bytes(item) for item in array]
    return found


class ExportedNpz(ExportedArrays, NpzSource):
    """An export of packstore."""


_open = open_with(NpzSource, ExportedNpz)


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """A file whose arrays are clear, or a folder of such files."""
    if path.is_dir():
        if NpzSource.recognise_folder(path) is Certainty.NO:
            return Certainty.NO
    elif not _is_npz(path) and first_bytes(path, len(_MAGIC)) != _MAGIC:
        return Certainty.NO
    return recognise_arrays(_open, path, options)


def _is_npz(path: Path) -> bool:
    """Whether a file is a zip that is called an npz, or begins with an ``.npy`` under another name than a zip's."""
    start = first_bytes(path, 512)
    name = start[30 : 30 + int.from_bytes(start[26:28], "little")]
    suffix = path.suffix.lower()
    return start.startswith(_ZIP) and (suffix == ".npz" or (name.endswith(b".npy") and suffix != ".zip"))


KIND = Kind(NpzSource.kind, "numpy's npz or npy files with arrays of images", _recognise, _open, takes_arrays=True)
