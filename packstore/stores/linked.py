"""Linked stores: all columns but the images, which stay in the files that they were packed from.

Each record says where its image lies, see :data:`packstore.core.column.LINK_COLUMNS`. Images are read by ``pread`` and
not through maps: a file that others truncate meanwhile is then an error and no crash, and the bytes that were checked
are those that are decoded.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.checksums import image_checksum
from packstore.core.columns import ColumnData
from packstore.core.errors import StoreError, UsageError, printable
from packstore.core.files import open_regular
from packstore.core.manifest import Manifest
from packstore.core.progress import ProgressCallback, no_progress
from packstore.stores.base import Problem, Reader

_OPEN_FILES = 128
_READ_STEP = 1 << 30  # one read returns at most 0x7ffff000 bytes on Linux


class Location(NamedTuple):
    """Where the bytes of an image lie, uncompressed.

    Attributes:
        path: Absolute path of the file.
        offset: Where they begin in it, in bytes.
    """

    path: str
    offset: int


class OpenedFile:
    """A file that is read by its places, from any thread; closed with its last reference."""

    def __init__(self, path: str) -> None:
        """Raises :class:`OSError`, and :class:`ValueError` for a path that no file can have."""
        self.descriptor = -1
        self.descriptor = open_regular(Path(path))

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def state(self) -> tuple[int, int]:
        """Size in bytes and time of modification in nanoseconds."""
        found = os.fstat(self.descriptor)
        return found.st_size, found.st_mtime_ns

    def read(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset`` on, or as many as there are."""
        data = os.pread(self.descriptor, min(length, _READ_STEP), offset)
        if len(data) == length or not data:
            return data
        parts, done = [data], len(data)
        while done < length and (data := os.pread(self.descriptor, min(length - done, _READ_STEP), offset + done)):
            parts.append(data)
            done += len(data)
        return b"".join(parts)


class LinkedReader(Reader):
    """Wraps the reader of a linked store's file, and reads the images where they lie.

    An image whose file has another size or time of modification than when it was packed is compared with its checksum:
    what differs raises :class:`StoreError`. The manifest's image column has the bytes of the images.
    """

    def __init__(self, reader: Reader) -> None:
        """Raises :class:`StoreError` for links that no store can have; closes ``reader`` then."""
        try:
            super().__init__(reader.path, _with_image_bytes(reader))
            self._offsets, self._lengths, self._sizes, self._times = (
                reader.fixed(f"link_{name}") for name in ("offset", "length", "file_bytes", "file_modified")
            )
        except BaseException:
            reader.close()
            raise
        self.nbytes = reader.nbytes
        self._reader = reader
        self._open = lru_cache(_OPEN_FILES)(OpenedFile)

    def read(self, index: int) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        path = bytes(self._reader.value("link_file", index)).decode("utf-8", "surrogateescape")
        offset, length, size = int(self._offsets[index]), int(self._lengths[index]), int(self._sizes[index])
        if offset < 0 or length < 0 or offset + length > size:
            raise StoreError(
                f"record {index} of {printable(str(self.path))} is linked to bytes {offset} to {offset + length} of "
                f"{size} of {printable(path)}: its link is damaged"
            )
        try:
            # A file of many images stays open.
            file = self._open(path) if length < size else OpenedFile(path)
            state = file.state()
            data = file.read(offset, length) if offset + length <= state[0] else b""
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise self._error(index, path, f"cannot be read ({reason}); bring it back, or link again") from None
        expected = size, int(self._times[index])
        if len(data) != length:
            raise self._error(
                index, path, f"has {state[0]} bytes, {size} when it was linked, and ends before the image does"
            )
        if state != expected and image_checksum(data) != int(self._reader.value("checksum", index)):
            self._open.cache_clear()
            raise self._error(index, path, "has changed since it was linked: the image's checksum is another")
        return data

    def column(self, name: str) -> ColumnData:
        if name == "image":
            raise StoreError("a linked store has no array of all images; read them one by one")
        return self._reader.column(name)

    def value(self, name: str, index: int) -> Any:
        return self._reader.value(name, index)

    def values(self, name: str, records: NDArray[np.int64]) -> NDArray[Any]:
        return self._reader.values(name, records)

    def check_files(self) -> None:
        self._reader.check_files()

    def check_structure(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        return self._reader.check_structure(quick=quick, progress=progress)

    def close(self) -> None:
        self._open.cache_clear()
        self._reader.close()

    def _error(self, index: int, path: str, reason: str) -> StoreError:
        return StoreError(f"record {index} ({printable(self.key(index))}): its file {printable(path)} {reason}")


def refuse_linked(manifest: Manifest, path: Path, command: str, instead: str) -> None:
    """Raises :class:`UsageError` for a linked store."""
    if manifest.is_linked:
        raise UsageError(
            f"{printable(str(path))} is linked to its images, and {command} needs a store that holds them; {instead}"
        )


def file_state(path: str) -> tuple[int, int]:
    """Size in bytes and time of modification in nanoseconds of a regular file. Raises :class:`OSError`."""
    found = os.stat(path)  # noqa: PTH116 - one call for each of many files
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{printable(path)} is no file")
    return found.st_size, found.st_mtime_ns


def link_values(reader: Reader, records: NDArray[np.int64]) -> dict[str, Any]:
    """The values of :data:`LINK_COLUMNS` of some records, as a builder takes them."""
    values: dict[str, Any] = {"link_file": [bytes(reader.value("link_file", i)) for i in records.tolist()]}
    for name in ("link_offset", "link_length", "link_file_bytes", "link_file_modified"):
        values[name] = reader.values(name, records)
    return values


def _with_image_bytes(reader: Reader) -> Manifest:
    """The manifest with the bytes of the linked images, and with the digest that it has at rest."""
    manifest = reader.manifest
    lengths = reader.fixed("link_length")
    if len(lengths) and (int(lengths.min()) < 0 or int(lengths.max()) >= 1 << 40):
        raise StoreError(f"{printable(str(reader.path))} is damaged: it has links of impossible lengths")
    image = dataclasses.replace(manifest.image, nbytes=int(lengths.sum()))
    found = dataclasses.replace(manifest, columns=(image, *manifest.columns[1:]))
    found.__dict__["digest"] = manifest.digest
    return found
