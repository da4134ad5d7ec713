"""Decodes and augments images with the compiled engine."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.compiled import DONE, require_library
from packstore.images.engine.addresses import find_address, list_addresses
from packstore.images.engine.requests import Requests
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
        self._size = np.empty(2, np.int64)
        self._size_at = self._size.ctypes.data
        self.unindexed = 0

    def __del__(self) -> None:
        if getattr(self, "_decoder", None):
            self._library.packstore_engine_free(self._decoder)
            self._decoder = None

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
