"""MATLAB files: images ``H x W x N`` or ``H x W x C x N``, or flat in a matrix, and their labels.

Files of version 7.3 are HDF5. Cells, structs and texts are left out, and counted.
"""

from __future__ import annotations

import math
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import IO

from packstore.core.errors import SourceError, printable
from packstore.sources.arrays.source import ArraySource, make_array_kind
from packstore.sources.arrays.stored import ArrayInfo, ReadRange, StoredArray, StoredArrays, read_at
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

_MAGIC = b"MATLAB 5.0"
_START = 1024
_STEP = 1 << 20


class MatSource(ArraySource):
    """Samples of ``.mat`` files of versions 5 to 7. Opening reads all compressed arrays, to verify their checksums;
    others have none."""

    kind = "mat"
    suffixes = (".mat",)
    files_name = "MATLAB files"

    def open_file(self, path: Path) -> StoredArrays:
        """Opens a ``.mat`` file. Raises :class:`SourceError` for damage, and for another format."""
        return OpenMat(path)

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Tells if a path is a MATLAB file by its first bytes, or a folder of such files alone."""
        files = [path] if not path.is_dir() else cls.find_files(path) if cls.holds_only_arrays(path) else []
        return bool(files) and all(first_bytes(file, len(_MAGIC)) == _MAGIC for file in files)


class OpenMat(StoredArrays):
    """Arrays of numbers in a ``.mat`` file of any size; vectors have one axis, as labels need. Skips variables of other
    types, complex numbers included.

    Opening reads the headers, and verifies the checksums of compressed arrays. It raises :class:`SourceError` for
    damage, and for another format.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, shown = path, printable(str(path))
        if first_bytes(path, len(_MAGIC)) != _MAGIC:
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
            start = file.read(_START)
            kind, length = struct.unpack_from(f"{order}II", start)
            end = position + 8 + length
            if end > size:
                raise MatError(f"it ends {end - size} bytes too early")
            if kind == COMPRESSED:
                start = zlib.decompressobj().decompress(start[8:], _START)
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
        while data := reader.read(_STEP):
            checksum = zlib.adler32(data, checksum)
        file.seek(end - 4)
        expected = int.from_bytes(file.read(4), "big")
        if checksum != expected:
            raise MatError(f"Adler-32 {checksum:08x}, expected {expected:08x}")
        return reader.read_at


KIND = make_array_kind(MatSource, "MATLAB files with arrays of images")
