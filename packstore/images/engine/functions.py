"""Calls functions of the compiled engine that keep no state.

They read PNG rows, headers of JPEG files and tars, and files of a directory, permute numbers, and compute a hash.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from packstore.core import compiled
from packstore.images.engine.addresses import find_address

_NAMES_ROOM = 1 << 15  # bytes for the names in a directory, before their size is known
_HEADERS = 1 << 9  # of a tar, read by one call
_TAR_NAME = 257  # bytes of the longest name in a header, and a zero byte


def png_rows(packed: bytes, rows: int, nbytes: int, step: int, is_all: bool = False) -> NDArray[np.uint8] | None:
    """Inflates the first rows of a PNG file and undoes their filters, without the GIL.

    Args:
        packed: Content of its IDAT chunks.
        rows: Number of rows.
        nbytes: Bytes of a row.
        step: Bytes of a pixel.
        is_all: There are no other rows: the stream must end after them, with the right checksum.

    Returns:
        uint8 ``(rows, nbytes)``. None without an engine, or if the engine refuses the stream.
    """
    library = compiled.load_once()[0]
    if library is None:
        return None
    lines = np.empty((rows + 1, nbytes + 1), np.uint8)
    data, to = find_address(packed), lines.ctypes.data
    outcome = library.packstore_engine_png(data, len(packed), to, rows, nbytes, step, is_all)
    return lines[1:, 1:] if outcome == compiled.DONE else None


def permute_in_place(values: NDArray[np.int64], length: int, shift: int, radix: int, keys: Sequence[int]) -> bool:
    """Permutes contiguous values by a Feistel network, without the GIL. See :mod:`packstore.training.permutation`.

    Returns False without an engine, with the values unchanged."""
    library = compiled.load_once()[0]
    if library is None:
        return False
    words = np.array(keys, np.uint32)
    library.packstore_engine_permute(values.ctypes.data, values.size, length, shift, radix, words.ctypes.data)
    return True


def read_files(
    directory: int, names: Sequence[bytes], sizes: Sequence[int], modified_ns: Sequence[int]
) -> list[bytes | None]:
    """Reads files of an open directory, without the GIL.

    Args:
        directory: Descriptor of the directory.
        names: Names of the files.
        sizes: Expected size of each, in bytes.
        modified_ns: Expected ``st_mtime_ns`` of each.

    Returns:
        The bytes of each file; None for one that is missing, differs from what is expected, or cannot be read. None for
        all without an engine, or if a name has a null byte.
    """
    library, joined = compiled.load_once()[0], b"\0".join((*names, b""))
    wrong = joined.count(b"\0") != len(names) or min(sizes, default=-1) < 0
    if library is None or wrong:
        return [None] * len(names)
    expected, ends = np.array((sizes, modified_ns), np.int64), np.cumsum(sizes).tolist()
    data, refused = np.empty(ends[-1], np.uint8), np.empty(len(names), np.bool_)
    library.packstore_engine_read_files(
        directory,
        joined,
        len(names),
        expected[0].ctypes.data,
        expected[1].ctypes.data,
        data.ctypes.data,
        refused.ctypes.data,
    )
    view = data.data
    return [
        None if unknown else bytes(view[end - size : end])
        for end, size, unknown in zip(ends, sizes, refused.tolist(), strict=True)
    ]


def is_plain_jpeg(file: bytes, max_pixels: int) -> bool:
    """Tells if a file is certainly a plain JPEG. It is whole, has three components of 8 bits, and no EXIF, XMP or
    further pictures.

    Looks at its segments and its end, and decodes nothing. False for more than ``max_pixels`` pixels, and without an
    engine."""
    library = compiled.load_with_gil()
    return library is not None and library.packstore_engine_is_plain(file, len(file), max_pixels) != 0


def scan_tar(file: int, at: int, end: int) -> tuple[list[bytes], NDArray[np.int64]]:
    """Reads the headers of plain files and directories that follow one another in a tar, without the GIL.

    Ends before the first header of another kind or form, and after 512 members. Finds none without an engine.

    Args:
        file: Descriptor of the tar.
        at: Offset of the first header.
        end: Offset at which no header is read any more.

    Returns:
        The names, and int64 ``(N, 3)``: offset and size of the data (-1 for a directory), and time of modification in
        seconds.
    """
    library = compiled.load_once()[0]
    if library is None:
        return [], np.empty((0, 3), np.int64)
    facts, names = np.empty((_HEADERS, 3), np.int64), np.empty(_HEADERS * _TAR_NAME, np.uint8)
    count = library.packstore_engine_scan_tar(file, at, end, _HEADERS, facts.ctypes.data, names.ctypes.data)
    return names.tobytes().split(b"\0", count)[:count], facts[:count]


def stat_files(directory: int, names: Sequence[str]) -> list[list[int]] | None:
    """Returns sizes, times of modification and times of change (nanoseconds) of files in an open directory: three
    lists.

    Reads without the GIL, and follows links. The size is 0 if the name does not exist and -1 if it is not a file; its
    times are 0. Returns None without an engine."""
    library = compiled.load_once()[0]
    if library is None:
        return None
    facts = np.empty((len(names), 3), np.int64)
    joined = "\0".join((*names, "")).encode(sys.getfilesystemencoding(), "surrogateescape")
    library.packstore_engine_stat_files(directory, joined, len(names), facts.ctypes.data)
    return facts.T.tolist()


def list_names(directory: int) -> tuple[str, str] | None:
    """Lists the names in an open directory, unordered, without the GIL.

    Returns two texts: the names of files; the names of folders and of links to folders. A null character follows each
    name. Returns None without an engine.

    Raises :class:`OSError` if the directory cannot be read."""
    library = compiled.load_once()[0]
    if library is None:
        return None
    buffers = _name_buffers
    while True:
        error = library.packstore_engine_list_names(directory, buffers.room, *buffers.addresses)
        if error:
            raise OSError(error, os.strerror(error))
        files, folders = buffers.sizes
        if max(files, folders) <= buffers.room:
            break
        buffers = _NameBuffers(2 * max(files, folders))
    encoding = sys.getfilesystemencoding()
    return (
        str(buffers.files[:files], encoding, "surrogateescape"),
        str(buffers.folders[:folders], encoding, "surrogateescape"),
    )


class _NameBuffers(threading.local):
    """Buffers of a thread for :func:`list_names`: allocating them takes as long as listing a small directory.

    Attributes:
        room: Bytes for the names of files, and of folders.
        sizes: Bytes that the last listing needed for the names of files, and of folders.
        addresses: Addresses of both buffers and of ``sizes``.
    """

    def __init__(self, room: int = _NAMES_ROOM) -> None:
        self.room = room
        files, folders = (ctypes.create_string_buffer(room) for _ in range(2))
        self.sizes = (ctypes.c_int64 * 2)()
        self.files, self.folders = memoryview(files), memoryview(folders)
        self.addresses = ctypes.addressof(files), ctypes.addressof(folders), ctypes.addressof(self.sizes)


_name_buffers = _NameBuffers()
