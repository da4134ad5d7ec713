"""Calls the compiled engine through :mod:`ctypes`."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import MappedValues
from packstore.core.errors import EngineError
from packstore.core.modes import GRAY, RGB
from packstore.images.programs import STEP, Program

_INTERFACE = 16
"""Version of the interface of ``batch.c``, to detect an engine that an older version compiled here."""
_DONE = 0
"""The outcome in ``engine.h`` for success."""
_FIELDS = 21
"""Numbers of a request in ``batch.c``, 8 bytes each."""
_SOURCE, _SIZE, _TO = slice(0, 2), slice(2, 4), 15
_BOX, _RESIZED, _WINDOW, _MIRRORED = slice(4, 8), slice(8, 10), slice(10, 14), 14
_INDEX, _PROGRAM, _SAMPLING = slice(16, 18), slice(18, 20), 20

MODES = (RGB, GRAY)
"""Modes of the pixels that it makes, of bytes."""
_CHANNELS = tuple(mode.channels for mode in MODES)
_KINDS: list[Any] = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint16), np.dtype(np.uint8)]
"""Dtypes of pixels in the order of ``engine.h``; uint16 stands for bfloat16."""
_AGAIN = "install packstore again on this machine (in a clone: pip install -v .), which compiles it"
_PADDING = ("constant", "edge", "reflect", "symmetric")

_MOST_SIDE = 65500  # pixels, the limit of ``engine.h``
_NAMES_ROOM = 1 << 15  # bytes for the names in a directory, before their size is known
_INDEX_SHARE, _INDEX_SPARE = 16, 64
"""An index has at most this share of its file's bytes, and so many more; others are not worth their bytes."""

_TOGETHER, _PIXELS_TOGETHER = 16, 1 << 24
"""Limits of a call that decodes several whole images: number of images, and of their pixels."""

_thread = threading.local()


class _Form(ctypes.Structure):
    """``struct form`` of ``engine.h``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("source", "to", "planes", "padding")),
        ("factors", ctypes.c_float * 6),
        ("fill", ctypes.c_float),
    )


@dataclass(frozen=True)
class OutputFormat:
    """Output format of all images of a call.

    Attributes:
        planes: Rows are ``(C, h, w)``; else ``(h, w, C)``.
        padding: Padding around sources that are pixels and not resized: ``"constant"`` (``fill``), ``"edge"``,
            ``"reflect"`` or ``"symmetric"``. All other sources are padded with zeros.
        fill: Constant of the padding, in the units of the source.
        scale: Factor of bytes of each channel on conversion to floating point; or one factor for all channels.
        shift: Summand after the factor, likewise. Both operations are rounded in float32.
    """

    planes: bool = False
    padding: str = "constant"
    fill: float = 0
    scale: tuple[float, ...] = (1,)
    shift: tuple[float, ...] = (0,)


class BufferAddresses(NamedTuple):
    """Addresses of buffers in memory.

    Attributes:
        at: Address and number of bytes of each, int64 ``(N, 2)``.
        kept: Object that keeps the buffers alive.
    """

    at: NDArray[np.int64]
    kept: Any


class Requests:
    """Requests to the engine: source, crop and destination of each image. Several threads may run parts of them.

    Attributes:
        channels: Channels of the output: 3, or 1 for gray, which is the luma of JPEG files.
    """

    def __init__(
        self,
        sources: Sequence[Any],
        pixels: NDArray[np.int64] | None = None,
        dtype: Any = np.uint8,
        indexes: Sequence[Any] | BufferAddresses | None = None,
    ) -> None:
        """
        Args:
            sources: ``N`` JPEG files; or pixels of images, ``(H, W, C)``, or with a floating point ``dtype`` planes,
                ``(C, H, W)``, with the channels of the output, 3 or 1.
            pixels: Height and width of each image, ``(N, 2)``; None for JPEG files.
            dtype: uint8, float32, float16, or uint16 for bfloat16.
            indexes: Seek index of each JPEG file (:meth:`Engine.make_indexes`), empty bytes for none. An index of
                another file is counted in :attr:`Engine.unindexed`, and the file decoded without it.
        """
        self._kept: list[Any] = [(sources, indexes)]  # owners of the addresses
        self._kind = _KINDS.index(dtype)
        self._form: _Form | None = None
        self._row: tuple[tuple[int, ...], Any] | None = None  # shape and dtype, if rows are set by write_to()
        self.channels = 3
        self._fields = np.zeros((len(sources), _FIELDS), np.int64)
        if len(sources):
            self._fields[:, _SOURCE] = sources.places if isinstance(sources, MappedValues) else _addresses_of(sources)
        if pixels is not None:
            self._fields[:, _SIZE] = pixels
        if indexes is not None and len(sources):
            places = indexes.at if isinstance(indexes, BufferAddresses) else _addresses_of(indexes)
            self._fields[:, _INDEX] = places
            self._fields[places[:, 1] == 0, _INDEX] = 0  # an empty buffer has an address, too

    @classmethod
    def of_array(cls, images: NDArray[Any], places: NDArray[np.int64]) -> Requests:
        """Creates requests for the images at ``places``, ``(N,)``, of uint8 ``(M, H, W, C)``, or of floating point
        ``(M, C, H, W)``, with 3 channels or 1."""
        size = images.shape[1:3] if images.dtype == np.uint8 else images.shape[2:]
        channels = images.shape[3] if images.dtype == np.uint8 else images.shape[1]
        if not images.flags.c_contiguous or channels not in _CHANNELS or len(size) != 2:
            raise ValueError(f"images of {images.shape}, {images.dtype}, that are not contiguous")
        if len(places) and not 0 <= places.min() <= places.max() < len(images):
            raise IndexError(f"places up to {places.max()} of {len(images)} images")
        requests = cls(())
        requests._kind = _KINDS.index(images.dtype)
        requests._kept.append(images)
        fields = requests._fields = np.zeros((len(places), _FIELDS), np.int64)
        fields[:, 0] = images.ctypes.data + places * images.strides[0]
        fields[:, 1] = images.strides[0]
        fields[:, _SIZE] = size
        return requests

    def __len__(self) -> int:
        return len(self._fields)

    def repeat(self, count: int) -> Requests:
        """Returns requests for the same sources, each ``count`` times in a row, without crops and destinations."""
        requests = Requests(())
        requests._kind, requests._kept = self._kind, self._kept[:1]
        requests._fields = np.repeat(self._fields, count, 0)
        return requests

    def rows(self, first: int, stop: int) -> Requests:
        """Returns the requests ``first`` … ``stop - 1``, which share memory with these."""
        requests = Requests(())
        requests.__dict__.update(self.__dict__, _kept=[*self._kept], _fields=self._fields[first:stop])
        return requests

    def sizes(self) -> NDArray[np.int64]:
        """Reads height and width of each JPEG file, ``(N, 2)``; zeros for files that the engine refuses."""
        library = _library()[0]
        assert library is not None
        files, nbytes = (np.ascontiguousarray(self._fields[:, i]) for i in range(2))
        sizes = np.empty((len(self), 2), np.int64)
        library.packstore_engine_sizes(files.ctypes.data, nbytes.ctypes.data, len(self), sizes.ctypes.data)
        return sizes

    def set_outputs(
        self,
        boxes: NDArray[np.int64],
        sizes: NDArray[np.int64],
        windows: NDArray[np.int64],
        mirrored: NDArray[np.bool_] | None,
        out: NDArray[Any],
        form: OutputFormat = OutputFormat(),
        programs: Program | None = None,
        sampling: NDArray[np.int64] | None = None,
    ) -> None:
        """Sets crops, sizes and destination of all images.

        Args:
            boxes: As in :class:`packstore.training.augment.base.Crops`, as are ``sizes``, ``windows`` and ``mirrored``.
            sizes: Sizes to which boxes are resized.
            windows: Windows of the resized boxes.
            mirrored: Images to mirror; None for none.
            out: Rows to write: uint8, float32, float16 or uint16 for bfloat16, ``(N, h, w, C)`` or in the layout of
                ``form``, of the windows' size; C is 3, or 1 for gray. ``(0, h, w, C)`` gives the format of rows that
                :meth:`write_to` sets.
            form: Format of the rows.
            programs: Steps ``(N, n)`` to run on the windows' bytes before their conversion; only for RGB bytes.
            sampling: Filter of each image's resizing, ``(N,)``, for bytes: 0 bilinear, 1 nearest, 2 bicubic, 3 box,
                4 Lanczos; images with others are refused.
        """
        fields = self._fields
        channels, size = (out.shape[1:2], out.shape[2:]) if form.planes else (out.shape[3:], out.shape[1:3])
        if out.shape[0] not in (len(fields), 0) or (windows[:, 2:] != size).any() or channels not in ((3,), (1,)):
            raise ValueError(f"rows of {out.shape} for {len(fields)} windows")
        if out.dtype not in _KINDS or (out.dtype == np.uint8 and self._kind != 3) or not out.flags.c_contiguous:
            raise ValueError(f"rows of {out.dtype} that are not contiguous, or cannot hold what is wanted")
        self._form = _Form(
            *(self._kind, _KINDS.index(out.dtype), form.planes, _PADDING.index(form.padding)),
            *(_pack_factors(form, channels[0]), form.fill),
        )
        self.channels = channels[0]
        fields[:, _BOX], fields[:, _RESIZED], fields[:, _WINDOW] = boxes, sizes, windows
        fields[:, _MIRRORED] = 0 if mirrored is None else mirrored
        self._row = out.shape[1:], out.dtype
        if len(out) == len(fields):
            self.write_to(out)
        fields[:, _PROGRAM] = 0
        fields[:, _SAMPLING] = 0 if sampling is None else sampling
        if programs is not None and programs.size:
            if self._kind != 3 or self.channels != 3:
                raise ValueError("programs work on bytes of three channels, and these are others")
            programs = _check_programs(programs, len(fields))
            fields[:, _PROGRAM][:, 0] = programs.ctypes.data + np.arange(len(fields)) * programs.strides[0]
            # Leave out trailing identity steps.
            used = programs["code"] != 0
            fields[:, _PROGRAM][:, 1] = np.where(used.any(1), used.shape[1] - used[:, ::-1].argmax(1), 0)
            self._kept.append(programs)

    def write_to(self, out: NDArray[Any]) -> None:
        """Sets the rows to write, in the format of :meth:`set_outputs`."""
        if self._row != (out.shape[1:], out.dtype) or len(out) != len(self) or not out.flags.c_contiguous:
            raise ValueError(
                f"{len(out)} rows of {out.shape[1:]}, {out.dtype}; {len(self)} of {self._row} are expected"
            )
        self._fields[:, _TO] = out.ctypes.data + np.arange(len(out)) * out.strides[0]
        self._kept.append(out)
        self._row = None

    def set_output_images(
        self,
        boxes: NDArray[np.int64],
        sizes: NDArray[np.int64],
        windows: NDArray[np.int64],
        mirrored: NDArray[np.bool_],
        sampling: NDArray[np.int64],
        images: Sequence[NDArray[np.uint8]],
    ) -> None:
        """Sets crops and sizes of JPEG files as :meth:`set_outputs` does, and as the destination of each an image
        ``(h, w, C)``, uint8, of its window's size."""
        fields = self._fields
        if self._kind != 3 or len(images) != len(fields):
            raise ValueError(f"{len(images)} images for {len(fields)} files")
        self.channels = _channels_of(images)
        for image, window in zip(images, windows, strict=True):
            if image.shape != (*window[2:], self.channels) or image.dtype != np.uint8 or not image.flags.c_contiguous:
                raise ValueError(f"{image.dtype} of {image.shape} for a window of {window[2:]}")
        self._form = _Form(_KINDS.index(np.uint8), _KINDS.index(np.uint8), factors=(ctypes.c_float * 6)())
        fields[:, _BOX], fields[:, _RESIZED], fields[:, _WINDOW] = boxes, sizes, windows
        fields[:, _MIRRORED], fields[:, _SAMPLING], fields[:, _PROGRAM] = mirrored, sampling, 0
        fields[:, _TO] = [image.ctypes.data for image in images]
        self._kept.append(images)

    def set_whole_images(self, first: int, images: Sequence[NDArray[np.uint8]]) -> None:
        """Sets destinations of whole images for the JPEG files from ``first`` on."""
        self._form = _Form(_KINDS.index(np.uint8), _KINDS.index(np.uint8), factors=(ctypes.c_float * 6)())
        self.channels = _channels_of(images)
        fields = self._fields[first : first + len(images)]
        sizes = np.array([image.shape[:2] for image in images], np.int64)
        fields[:, _BOX][:, 2:] = fields[:, _RESIZED] = fields[:, _WINDOW][:, 2:] = sizes
        fields[:, _TO] = [image.ctypes.data for image in images]
        self._kept[1:] = [images]

    def part(self, first: int, stop: int) -> tuple[int, int, Any]:
        """Returns address and number of some requests, and their form."""
        if not 0 <= first <= stop <= len(self):
            raise IndexError(f"requests {first} to {stop} of {len(self)}")
        if self._form is None:
            raise ValueError("nothing is wanted of these requests yet")
        if self._row is not None:
            raise ValueError("these requests have no rows to write yet")
        return self._fields.ctypes.data + first * self._fields.strides[0], stop - first, ctypes.byref(self._form)


class Engine:
    """Decoder of a single thread, from :func:`get_engine`.

    Attributes:
        unindexed: Number of files in the latest :meth:`run` whose seek index was invalid.
    """

    def __init__(self, library: ctypes.CDLL, vectors: bool = True) -> None:
        """``vectors`` False uses plain code only, with equal results; for tests."""
        self._library = library
        self._decoder = library.packstore_engine_new(not vectors)
        if not self._decoder:
            raise MemoryError
        self._size = np.empty(2, np.int64)
        self._size_at = self._size.ctypes.data
        self.unindexed = 0

    def __del__(self) -> None:
        if getattr(self, "_decoder", None):
            self._library.packstore_engine_free(self._decoder)
            self._decoder = None

    def run(self, requests: Requests, first: int, stop: int, max_pixels: int) -> NDArray[np.bool_]:
        """Executes requests ``first`` … ``stop - 1``, without the GIL; writes into their arrays.

        Returns:
            bool ``(stop - first,)``: which were refused and must be answered otherwise; their arrays contain garbage.
        """
        refused = np.empty(stop - first, np.bool_)
        part = requests.part(first, stop)
        run = self._library.packstore_engine_run if requests.channels == 3 else self._library.packstore_engine_run_gray
        self.unindexed = run(self._decoder, *part, max_pixels, refused.ctypes.data)
        return refused

    def augment(self, images: NDArray[np.uint8], programs: Program) -> None:
        """Runs the program of each image, in place, without the GIL.

        Args:
            images: uint8 ``(B, H, W, 3)``, contiguous.
            programs: ``(B, n)``, of :data:`packstore.images.programs.STEP`.

        Raises:
            ValueError: Images or programs of another shape, or a step whose parameters are out of range.
        """
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or not images.flags.c_contiguous:
            raise ValueError(f"images of {images.shape}, {images.dtype}, and not contiguous bytes (B, H, W, 3)")
        if not images.flags.writeable:
            raise ValueError("images that cannot be written to")
        programs = _check_programs(programs, len(images))
        if not images.size or not programs.size:
            return
        if max(images.shape[1:3]) > _MOST_SIDE:
            raise ValueError(f"images of {images.shape[1:3]}, and the limit is {_MOST_SIDE} pixels a side")
        done = self._library.packstore_engine_augment(
            self._decoder, images.ctypes.data, *images.shape[:3], programs.ctypes.data, programs.shape[1]
        )
        if done < len(images):
            raise ValueError(f"image {done}: a step of its program is out of range: {programs[done]}")

    def make_indexes(self, files: Sequence[Any]) -> list[bytes]:
        """Computes the seek index of each file, without the GIL: checkpoints from which crops can be decoded.

        Returns:
            The indexes; empty for a file that the engine does not decode, or too small to skip anything.
        """
        count = len(files)
        if not count:
            return []
        places = _addresses_of(files)
        addresses, nbytes = (np.ascontiguousarray(places[:, i]) for i in range(2))
        rooms = _INDEX_SPARE + nbytes // _INDEX_SHARE
        stops = np.cumsum(rooms)
        made, sizes = np.empty(int(stops[-1]), np.uint8), np.empty(count, np.int64)
        to = made.ctypes.data + stops - rooms
        self._library.packstore_engine_checkpoints(
            self._decoder,
            *(addresses.ctypes.data, nbytes.ctypes.data, count),
            *(to.ctypes.data, rooms.ctypes.data, sizes.ctypes.data),
        )
        view = made.data
        starts = (stops - rooms).tolist()
        return [bytes(view[start : start + size]) for start, size in zip(starts, sizes.tolist(), strict=True)]

    def decode_each(
        self, files: Sequence[Any], max_pixels: int, channels: int = 3
    ) -> Iterator[NDArray[np.uint8] | None]:
        """Decodes some JPEG files as :meth:`decode`, faster than one by one: the symbols of two files without
        restart markers are decoded in turn."""
        requests = Requests(files)
        sizes = requests.sizes()
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
        """Decodes a JPEG file, or a box of it: uint8 ``(h, w, 3)``, RGB; with ``channels=1`` only its luma, ``(h, w,
        1)``. None if the engine refuses the file."""
        if box is None and channels != 3:
            return next(self.decode_each([data], max_pixels, channels))
        if box is None:
            address, size, library = _address_of(data), self._size, self._library
            if not library.packstore_engine_size(address, len(data), max_pixels, self._size_at):
                return None
            height, width = size.tolist()
            whole = np.empty((height, width, 3), np.uint8)
            outcome = library.packstore_engine_whole(
                self._decoder, address, len(data), height, width, max_pixels, whole.ctypes.data
            )
            return whole if outcome == _DONE else None
        if min(box[2:]) < 1 or box[2] * box[3] > max_pixels:
            return None
        requests, boxes = Requests([data]), np.array([box])
        out = np.empty((1, box[2], box[3], channels), np.uint8)
        requests.set_outputs(boxes, boxes[:, 2:], np.array([(0, 0, *box[2:])]), None, out)
        return None if self.run(requests, 0, 1, max_pixels)[0] else out[0]


def augment(images: NDArray[np.uint8], programs: Program, threads: int = 1) -> None:
    """Runs the program of each image in place, with some threads; see :meth:`Engine.augment`."""
    bounds = np.linspace(0, len(images), max(1, threads) + 1).astype(int).tolist()
    parts = [(images[a:b], programs[a:b]) for a, b in itertools.pairwise(bounds) if a < b]

    def run(part: tuple[NDArray[np.uint8], Program]) -> None:
        get_engine().augment(*part)

    if len(programs) != len(images):
        raise ValueError(f"{len(programs)} programs for {len(images)} images")
    if len(parts) < 2:
        for part in parts:
            run(part)
    else:
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(run, parts))


def png_rows(packed: bytes, rows: int, nbytes: int, step: int, is_all: bool = False) -> NDArray[np.uint8] | None:
    """Inflates the first rows of a PNG file of one channel and undoes their filters, without the GIL.

    Args:
        packed: Content of its IDAT chunks.
        rows: Number of rows.
        nbytes: Bytes of a row.
        step: Bytes of a pixel.
        is_all: There are no other rows: the stream must end after them, with the right checksum.

    Returns:
        uint8 ``(rows, nbytes)``; None without an engine, or if it refuses the file.
    """
    library = _library()[0]
    if library is None:
        return None
    lines = np.empty((rows + 1, nbytes + 1), np.uint8)
    data, to = _address_of(packed), lines.ctypes.data
    outcome = library.packstore_engine_png(data, len(packed), to, rows, nbytes, step, is_all)
    return lines[1:, 1:] if outcome == _DONE else None


def highway_hash(data: bytes) -> int:
    """Computes the 64-bit HighwayHash with Riegeli's key, without the GIL. Raises :class:`EngineError`."""
    return int(_need_library().packstore_engine_highway_hash(_address_of(data), len(data)))


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
    library, joined = _library()[0], b"\0".join((*names, b""))
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


def stat_files(directory: int, names: Sequence[str]) -> list[list[int]] | None:
    """Returns sizes and times of modification and of change (nanoseconds) of files in an open directory, without the
    GIL.

    Follows links. The size is 0 if the name does not exist and -1 if it is not a file, with times of 0. None without an
    engine.
    """
    library = _library()[0]
    if library is None:
        return None
    facts = np.empty((len(names), 3), np.int64)
    joined = "\0".join((*names, "")).encode(sys.getfilesystemencoding(), "surrogateescape")
    library.packstore_engine_stat_files(directory, joined, len(names), facts.ctypes.data)
    return facts.T.tolist()


def list_names(directory: int) -> tuple[str, str] | None:
    """Lists the names in an open directory, unordered, without the GIL: of files, and of folders and links to
    folders.

    Each name ends with a null character. None without an engine. Raises :class:`OSError`.
    """
    library = _library()[0]
    if library is None:
        return None
    sizes, room = np.empty(2, np.int64), _NAMES_ROOM
    while True:
        names = np.empty((2, room), np.uint8)
        places = (names[0].ctypes.data, names[1].ctypes.data, sizes.ctypes.data)
        error = library.packstore_engine_list_names(directory, room, *places)
        if error:
            raise OSError(error, os.strerror(error))
        files, folders = sizes.tolist()
        if max(files, folders) <= room:
            break
        room = 2 * max(files, folders)
    encoding = sys.getfilesystemencoding()
    return (
        names[0, :files].tobytes().decode(encoding, "surrogateescape"),
        names[1, :folders].tobytes().decode(encoding, "surrogateescape"),
    )


def get_engine() -> Engine:
    """Returns the calling thread's engine. Raises :class:`EngineError` if it cannot be loaded."""
    engine: Engine | None = getattr(_thread, "engine", None)
    library = _need_library()
    if engine is None or engine._library is not library:
        engine = _thread.engine = Engine(library)
    return engine


def _need_library() -> ctypes.CDLL:
    library, problem = _library()
    if library is None:
        raise EngineError(f"packstore's engine cannot be used here: {problem}")
    return library


def engine_problem() -> str | None:
    """Returns why the engine cannot be loaded, with the remedy, or None if it can be loaded."""
    return _library()[1]


@functools.cache
def _library() -> tuple[ctypes.CDLL | None, str | None]:
    """Loads the compiled engine; None and the reason if that fails."""
    here = Path(__file__)
    path = next((path for suffix in EXTENSION_SUFFIXES if (path := here.with_name("_engine" + suffix)).exists()), None)
    if path is None:
        return None, f"it is not compiled in {here.parent}; {_AGAIN}"
    try:
        if ctypes.CDLL(str(path)).packstore_engine_interface() != _INTERFACE:
            return None, f"{path} is of another version of packstore: delete it and install packstore again"
        return load_library(str(path)), None
    except (OSError, AttributeError) as error:
        return None, f"{path.name} cannot be loaded: {' '.join(str(error).split())}; {_AGAIN}"


def load_library(path: str) -> ctypes.CDLL:
    """Loads a compiled engine from a file, and declares its functions. Raises the errors of :mod:`ctypes`."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library = ctypes.CDLL(path)
    library.packstore_engine_new.argtypes, library.packstore_engine_new.restype = (ctypes.c_int,), pointer
    library.packstore_engine_free.argtypes, library.packstore_engine_free.restype = (pointer,), None
    library.packstore_engine_sizes.argtypes = (pointer, pointer, number, pointer)
    library.packstore_engine_sizes.restype = None
    library.packstore_engine_size.argtypes = (pointer, number, number, pointer)
    library.packstore_engine_size.restype = ctypes.c_int
    library.packstore_engine_whole.argtypes = (pointer, pointer, number, number, number, number, pointer)
    library.packstore_engine_whole.restype = ctypes.c_int
    library.packstore_engine_run.argtypes = (pointer, pointer, number, pointer, number, pointer)
    library.packstore_engine_run.restype = number
    library.packstore_engine_run_gray.argtypes = library.packstore_engine_run.argtypes
    library.packstore_engine_run_gray.restype = number
    library.packstore_engine_augment.argtypes = (*(pointer, pointer, number, number), *(number, pointer, number))
    library.packstore_engine_augment.restype = number
    library.packstore_engine_checkpoints.argtypes = (*(pointer, pointer, pointer, number), *(pointer, pointer, pointer))
    library.packstore_engine_checkpoints.restype = None
    library.packstore_engine_highway_hash.argtypes = (pointer, ctypes.c_uint64)
    library.packstore_engine_highway_hash.restype = ctypes.c_uint64
    library.packstore_engine_read_files.argtypes = (
        *(ctypes.c_int, ctypes.c_char_p, number),
        *(pointer, pointer, pointer, pointer),
    )
    library.packstore_engine_read_files.restype = None
    library.packstore_engine_stat_files.argtypes = (ctypes.c_int, ctypes.c_char_p, number, pointer)
    library.packstore_engine_stat_files.restype = None
    library.packstore_engine_list_names.argtypes = (ctypes.c_int, number, pointer, pointer, pointer)
    library.packstore_engine_list_names.restype = ctypes.c_int
    library.packstore_engine_png.argtypes = (pointer, number, pointer, number, number, number, ctypes.c_int)
    library.packstore_engine_png.restype = ctypes.c_int
    return library


class _Buffer(ctypes.Structure):
    """``Py_buffer`` of Python's C interface."""

    _fields_ = (
        *(
            ("buf", ctypes.c_void_p),
            ("obj", ctypes.c_void_p),
            ("len", ctypes.c_ssize_t),
            ("itemsize", ctypes.c_ssize_t),
        ),
        *(("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_void_p), ("shape", ctypes.c_void_p)),
        *(("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)),
    )


_get_buffer, _release_buffer = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
_get_buffer.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
_release_buffer.argtypes, _release_buffer.restype = (ctypes.c_void_p,), None


def _addresses_of(sources: Sequence[Any]) -> NDArray[np.int64]:
    """Returns address and number of bytes of contiguous buffers, ``(N, 2)``. numpy would take three times as long,
    under the GIL."""
    buffers = (_Buffer * len(sources))()
    step = ctypes.sizeof(_Buffer)
    at = range(ctypes.addressof(buffers), ctypes.addressof(buffers) + step * len(sources), step)
    try:
        deque(map(_get_buffer, sources, at, repeat(0)), 0)
        words = np.frombuffer(memoryview(buffers).cast("B"), np.int64).reshape(len(sources), step // 8)
        return words[:, [0, 2]]
    finally:
        deque(
            map(_release_buffer, at), 0
        )  # does nothing for a buffer that was not acquired; the caller keeps the sources alive


def _pack_factors(form: OutputFormat, channels: int) -> Any:
    """Builds the fields of ``struct form`` for scale and shift: three numbers each."""
    if not {len(form.scale), len(form.shift)} <= {1, channels}:
        raise ValueError(f"{form} for rows of {channels} channels")
    scale, shift = (factors * (3 // len(factors)) for factors in (form.scale, form.shift))
    return (ctypes.c_float * 6)(*scale, *shift)


def _channels_of(images: Sequence[NDArray[np.uint8]]) -> int:
    """Returns the number of channels of images ``(h, w, C)``. Raises :class:`ValueError` if they differ, or the
    engine does not support it."""
    found = {image.shape[2] for image in images} or {3}
    if len(found) > 1 or not found <= {*_CHANNELS}:
        raise ValueError(f"images of {sorted(found)} channels")
    return int(found.pop())


def _check_programs(programs: Program, count: int) -> Program:
    """Returns ``programs`` as a contiguous array. Raises :class:`ValueError` unless they are ``(count, n)`` steps."""
    if programs.dtype != STEP or programs.ndim != 2 or len(programs) != count:
        raise ValueError(f"programs of {programs.shape}, {programs.dtype}, for {count} images")
    return np.ascontiguousarray(programs)


def _address_of(data: Any) -> int:
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address
