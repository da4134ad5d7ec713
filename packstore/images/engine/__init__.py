"""The compiled engine: decodes baseline JPEG files, and crops, resizes, mirrors and augments images, RGB or gray.

Its pixels are bit-exact with libjpeg-turbo's decoding and torch's resizing. It refuses every image with an unknown
feature or a flaw; :mod:`packstore.images.decoders` then decodes the image to the same pixels, or reports the flaw.

Functions that keep no state read PNG rows, headers of JPEG files and tars, and files of a directory, and permute
numbers.

The seek index of a JPEG that is stored unchanged has checkpoints from which a crop can be decoded. The engine writes
and reads it (``jpeg/checkpoints.c``); the guide's page *formats* describes the layout. An index depends on the file
alone, so it is recomputed whenever a record is written.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core import compiled
from packstore.core.columns import SEEK_INDEX, Column
from packstore.core.compiled import DONE, require_library
from packstore.core.compiled import engine_problem as engine_problem
from packstore.core.errors import UsageError
from packstore.images.engine.requests import MODES as MODES
from packstore.images.engine.requests import BufferAddresses as BufferAddresses
from packstore.images.engine.requests import OutputFormat as OutputFormat
from packstore.images.engine.requests import Requests as Requests
from packstore.images.engine.requests import find_address, list_addresses
from packstore.images.programs import Program, check_programs

MOST_SIDE = 65500  # pixels, the limit of ``core/requests.h``
_INDEX_SHARE, _INDEX_SPARE = 16, 64
"""Maximum size of an index: the file's bytes divided by the first number, plus the second number of bytes."""

_TOGETHER, _PIXELS_TOGETHER = 16, 1 << 24
"""Limits of a call that decodes several whole images: number of images, and of their pixels."""

_thread = threading.local()


class Engine:
    """Decodes and augments images and computes seek indexes, for a single thread. :func:`get_engine` returns one.

    Attributes:
        unindexed: Number of files in the latest :meth:`run` whose seek index was invalid.
    """

    def __init__(self, library: ctypes.CDLL, vectors: bool = True) -> None:
        """``vectors`` False uses plain code only, with equal results; for tests."""
        self._library = library
        self._decoder = library.packstore_engine_new(not vectors)
        if not self._decoder:
            raise MemoryError
        weakref.finalize(self, library.packstore_engine_free, self._decoder).atexit = False
        self._size = np.empty(2, np.int64)
        self._size_at = self._size.ctypes.data
        self.unindexed = 0

    def run(self, requests: Requests, first: int, stop: int, max_pixels: int) -> NDArray[np.bool_]:
        """Executes requests ``first`` … ``stop - 1`` without the GIL. Writes into their arrays and sets
        :attr:`unindexed`.

        Raises as :meth:`Requests.locate`.

        Returns:
            bool ``(stop - first,)``: requests that the engine refused. Their arrays contain garbage: the caller decodes
                these images otherwise.
        """
        refused = np.empty(stop - first, np.bool_)
        part = requests.locate(first, stop)
        self.unindexed = self._library.packstore_engine_run(
            self._decoder, *part, requests.channels, max_pixels, refused.ctypes.data
        )
        return refused

    def augment(self, images: NDArray[np.uint8], programs: Program) -> None:
        """Runs the program of each image on the image, in place, without the GIL.

        Args:
            images: uint8 ``(B, H, W, 3)``, contiguous.
            programs: ``(B, n)``, of :data:`packstore.images.programs.STEP`.

        Raises:
            ValueError: Images or programs of another shape. Images that are read-only or have a side above the engine's
                limit. A step whose parameters are out of range; earlier images have changed already.
        """
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or not images.flags.c_contiguous:
            raise ValueError(f"images of {images.shape}, {images.dtype}, and not contiguous bytes (B, H, W, 3)")
        if not images.flags.writeable:
            raise ValueError("images that cannot be written to")
        programs = check_programs(programs, len(images))
        if not images.size or not programs.size:
            return
        if max(images.shape[1:3]) > MOST_SIDE:
            raise ValueError(f"images of {images.shape[1:3]}, and the limit is {MOST_SIDE} pixels a side")
        done = self._library.packstore_engine_augment(
            self._decoder, images.ctypes.data, *images.shape[:3], programs.ctypes.data, programs.shape[1]
        )
        if done < len(images):
            raise ValueError(f"image {done}: a step of its program is out of range: {programs[done]}")

    def make_indexes(self, files: Sequence[Any], gray: bool = False) -> list[bytes]:
        """Computes the seek index of each file, without the GIL: checkpoints from which crops can be decoded.

        Returns:
            The indexes. Empty for a file that the engine does not decode, or that is too small to skip anything. Empty
                also if the index would take more than 64 bytes and 1/16 of the file's bytes.
        """
        count = len(files)
        if not count:
            return []
        places = list_addresses(files)
        addresses, nbytes = (np.ascontiguousarray(places[:, i]) for i in range(2))
        rooms = _INDEX_SPARE + nbytes // _INDEX_SHARE
        stops = np.cumsum(rooms)
        made, sizes = np.empty(int(stops[-1]), np.uint8), np.empty(count, np.int64)
        to = made.ctypes.data + stops - rooms
        self._library.packstore_engine_checkpoints(
            self._decoder,
            *(addresses.ctypes.data, nbytes.ctypes.data, count, gray),
            *(to.ctypes.data, rooms.ctypes.data, sizes.ctypes.data),
        )
        view = made.data
        starts = (stops - rooms).tolist()
        return [bytes(view[start : start + size]) for start, size in zip(starts, sizes.tolist(), strict=True)]

    def decode_each(
        self, files: Sequence[Any], max_pixels: int, channels: int = 3
    ) -> Iterator[NDArray[np.uint8] | None]:
        """Yields the pixels of each JPEG file, or None, as :meth:`decode`.

        Faster than one by one: the symbols of two files without restart markers are decoded in turn."""
        requests = Requests(files)
        sizes = requests.read_sizes()
        pixels = sizes.prod(1)
        sizes[pixels > max_pixels] = 0
        first = 0
        while first < len(files):
            most = int(np.searchsorted(pixels[first : first + _TOGETHER].cumsum(), _PIXELS_TOGETHER, "right"))
            stop = min(first + max(most, 1), len(files))
            images = [np.empty((*size, channels), np.uint8) for size in sizes[first:stop].tolist()]
            requests.set_whole_images(first, images)
            refused = self.run(requests, first, stop, max_pixels)
            for image, unknown in zip(images, refused.tolist(), strict=True):
                yield None if unknown else image
            first = stop

    def decode(
        self, data: Any, max_pixels: int, box: tuple[int, int, int, int] | None = None, channels: int = 3
    ) -> NDArray[np.uint8] | None:
        """Decodes a JPEG file, or a box of it, to uint8 ``(h, w, 3)``, RGB. With ``channels=1``, decodes only its luma,
        ``(h, w, 1)``.

        Returns None if the engine refuses the file, or the box does not lie within the image. Returns None also if the
        file or the box has more than ``max_pixels`` pixels."""
        if box is None and channels != 3:
            return next(self.decode_each([data], max_pixels, channels))
        if box is None:
            address, size, library = find_address(data), self._size, self._library
            if library.packstore_engine_size(address, len(data), max_pixels, self._size_at) != DONE:
                return None
            height, width = size.tolist()
            whole = np.empty((height, width, 3), np.uint8)
            outcome = library.packstore_engine_whole(
                self._decoder, address, len(data), height, width, max_pixels, whole.ctypes.data
            )
            return whole if outcome == DONE else None
        if min(box[2:]) < 1 or box[2] * box[3] > max_pixels:
            return None
        requests, boxes = Requests([data]), np.array([box])
        out = np.empty((1, box[2], box[3], channels), np.uint8)
        requests.set_outputs(boxes, boxes[:, 2:], np.array([(0, 0, *box[2:])]), None, out)
        return None if self.run(requests, 0, 1, max_pixels)[0] else out[0]


def get_engine() -> Engine:
    """Returns the calling thread's engine; creates it at the first call. Raises :class:`EngineError` if it cannot be
    loaded."""
    engine: Engine | None = getattr(_thread, "engine", None)
    library = require_library()
    if engine is None or engine._library is not library:
        engine = _thread.engine = Engine(library)
    return engine


def augment(images: NDArray[np.uint8], programs: Program, threads: int = 1) -> None:
    """Runs the program of each image in place, in ``threads`` threads; see :meth:`Engine.augment`.

    Raises :class:`ValueError` as that method does, and for another number of programs."""
    bounds = np.linspace(0, len(images), max(1, threads) + 1).astype(int).tolist()
    parts = [(images[a:b], programs[a:b]) for a, b in itertools.pairwise(bounds) if a < b]

    def run(part: tuple[NDArray[np.uint8], Program]) -> None:
        """Augments a part of the batch with the thread's own engine."""
        get_engine().augment(*part)

    if len(programs) != len(images):
        raise ValueError(f"{len(programs)} programs for {len(images)} images")
    if len(parts) < 2:
        for part in parts:
            run(part)
    else:
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(run, parts))


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


def wants_index(asked: bool | None, encoding: str) -> bool:
    """Tells if a store of this encoding gets a seek index.

    ``asked``: the user's wish. None: image files get one if the engine is available.

    Raises:
        UsageError: ``asked`` is True, and the encoding has no index.
        EngineError: ``asked`` is True, and the engine is missing.
    """
    if asked and encoding != "original":
        raise UsageError(f"a seek index is for the encoding original, not {encoding}; leave the index out")
    if asked:
        get_engine()
    return asked if asked is not None else encoding == "original" and engine_problem() is None


def reads_gray(columns: Iterable[Column]) -> bool:
    """Tells if the files of the column ``image`` are read as gray. Then their indexes also have lengths of chroma."""
    return any(column.name == "image" and column.pixels.channels == 1 for column in columns)


def make_indexes(files: Sequence[Any], columns: Iterable[Column]) -> list[bytes]:
    """Computes the seek index of each image file of a store with these columns; empty bytes for a file without one.

    Raises:
        EngineError: The engine is missing.
    """
    return get_engine().make_indexes(files, reads_gray(columns))


def index_values(columns: Iterable[Column], files: Sequence[Any]) -> dict[str, list[bytes]]:
    """Computes the values of the seek index column, by its name. Empty if ``columns`` have no seek index.

    Raises:
        EngineError: The engine is missing.
    """
    columns = tuple(columns)
    has_index = any(column.name == SEEK_INDEX.name for column in columns)
    return {SEEK_INDEX.name: make_indexes(files, columns)} if has_index else {}
