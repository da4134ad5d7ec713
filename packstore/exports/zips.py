"""Writes a zip of uncompressed files in bounded memory (APPNOTE.TXT of PKWARE, 4.3.6 to 4.3.16).

:mod:`zipfile` keeps some 600 bytes of memory for each file until the end, a gigabyte for ImageNet. This module keeps
the central directory in a temporary file. All files have the same date and mode, so the same files give the same zip.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from packstore.core.files import drop

_LOCAL, _CENTRAL = struct.Struct("<4s5H3L2H"), struct.Struct("<4s6H3L5H2L")
_END64, _LOCATOR, _END = struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL"), struct.Struct("<4s4H2LH")
_SIZES = struct.Struct("<2H2Q")
_UTF8, _MADE_BY_UNIX, _VERSION, _VERSION64 = 1 << 11, 3 << 8, 20, 45
_FIRST_DAY = 1 << 5 | 1  # 1980-01-01, the earliest date of a zip
_MODE = 0o100644 << 16
_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF  # mean that the number is in the fields of zip64
_LARGE, _MANY = _MAX32, _MAX16
_STEP = 1 << 20


class ZipWriter:
    """Writes a zip to an open file, at its beginning or after the files of an interrupted writer.

    Files are not compressed, and have the mode 644 and the date 1980-01-01. Creating the writer creates a temporary
    file, and reads the headers of the files before the present position of ``out``.
    """

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._directory = tempfile.TemporaryFile()  # noqa: SIM115 - until the end
        self._count = 0
        self._at = 0
        end = out.tell()
        if end:
            self._restore_directory(end)
            out.seek(end)

    def add(self, name: str, data: bytes) -> None:
        """Adds a file with the content ``data``."""
        self._write_header(name, zlib.crc32(data), len(data))
        self._write_output(data)

    def add_file(self, name: str, file: IO[bytes], size: int) -> None:
        """Adds a file with the rest of ``file``, which must have ``size`` bytes; this is not checked.

        Reads ``file`` twice: it must be seekable.
        """
        start, check = file.tell(), 0
        while piece := file.read(_STEP):
            check = zlib.crc32(piece, check)
        file.seek(start)
        self._write_header(name, check, size)
        while piece := file.read(_STEP):
            self._write_output(piece)

    def close(self) -> None:
        """Writes the central directory and deletes the temporary file. Leaves the output file open."""
        start = self._at
        size = self._directory.tell()
        self._directory.seek(0)
        shutil.copyfileobj(self._directory, self._out)
        self._directory.close()
        at = start + size
        end = (self._count, self._count, size, start)
        if self._count >= _MANY or start >= _LARGE or size >= _LARGE:
            version = (_MADE_BY_UNIX | _VERSION64, _VERSION64)
            self._out.write(_END64.pack(b"PK\6\6", _END64.size - 12, *version, 0, 0, *end))
            self._out.write(_LOCATOR.pack(b"PK\6\7", 0, at, 1))
            end = (_MAX16, _MAX16, _MAX32, _MAX32)
        self._out.write(_END.pack(b"PK\5\6", 0, 0, *end, 0))

    def abort(self) -> None:
        """Deletes the temporary file. Leaves the output file open, without a directory."""
        drop(self._directory)

    def _write_header(self, name: str, check: int, size: int) -> None:
        """Writes the local header of a file and adds its entry to the directory. ``check`` is its CRC-32."""
        raw, place = name.encode("utf-8"), self._at
        large = size >= _LARGE
        local = _SIZES.pack(1, 16, size, size) if large else b""
        sizes = (_MAX32, _MAX32) if large else (size, size)
        head = (_VERSION64 if large else _VERSION, _UTF8, 0, 0, _FIRST_DAY, check, *sizes, len(raw))
        self._write_output(_LOCAL.pack(b"PK\3\4", *head, len(local)) + raw + local)
        self._add_entry(raw, place, size, head)

    def _restore_directory(self, end: int) -> None:
        """Reads the local headers of the files that the output has already, up to offset ``end``. Adds their entries to
        the directory."""
        self._out.seek(0)
        while self._at < end:
            _, *head, extra = _LOCAL.unpack(self._out.read(_LOCAL.size))
            raw = self._out.read(head[-1])
            size = _SIZES.unpack(self._out.read(extra))[2] if extra else head[-2]
            self._add_entry(raw, self._at, size, head)
            self._at = self._out.seek(size, os.SEEK_CUR)

    def _add_entry(self, raw: bytes, place: int, size: int, head: Sequence[int]) -> None:
        """Adds the entry of a file to the directory.

        Args:
            raw: The file's name in UTF-8.
            place: Offset of its local header.
            size: Its bytes.
            head: Values of its local header.
        """
        large = size >= _LARGE
        values = [size, size] if large else []
        values += [place] if place >= _LARGE else []
        extra = struct.pack(f"<2H{len(values)}Q", 1, 8 * len(values), *values) if values else b""
        version = (_MADE_BY_UNIX | _VERSION64, _VERSION64 if values else _VERSION, *head[1:])
        self._directory.write(
            _CENTRAL.pack(b"PK\1\2", *version, len(extra), 0, 0, 0, _MODE, _MAX32 if place >= _LARGE else place)
            + raw
            + extra
        )
        self._count += 1

    def _write_output(self, data: bytes) -> None:
        """Writes ``data`` and counts its bytes."""
        self._out.write(data)
        self._at += len(data)


_MAX_MANIFEST_BYTES = 256 << 20


def read_zip_file(path: Path, name: str) -> bytes | None:
    """Reads the file ``name`` from a zip.

    Returns None if the zip is damaged or has no such file, or the file has over 256 MiB.
    """
    try:
        with path.open("rb") as whole, zipfile.ZipFile(whole) as opened, opened.open(name) as file:
            data = file.read(_MAX_MANIFEST_BYTES + 1)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError, RuntimeError):
        return None  # damaged, encrypted, or compressed in a way that packstore does not write
    return data if len(data) <= _MAX_MANIFEST_BYTES else None
