"""Requests to the engine: source, crop, size and destination of each image."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core import compiled
from packstore.core.columns import MappedValues
from packstore.core.modes import GRAY, RGB
from packstore.images.programs import Program, check_programs

_WORDS = compiled.find_words("request")
_FIELDS = _WORDS["sampling"].stop
"""Numbers of a request, 8 bytes each."""
_BOX, _RESIZED, _WINDOW = (_WORDS[name] for name in ("box", "size", "window"))
_TO, _MIRRORED, _SAMPLING = (_WORDS[name].start for name in ("to", "mirrored", "sampling"))
_SOURCE, _SIZE, _INDEX, _PROGRAM = (
    slice(_WORDS[first].start, _WORDS[last].stop)
    for first, last in (
        *(("source", "nbytes"), ("height", "width"), ("checkpoints", "checkpoint_bytes"), ("program", "steps")),
    )
)

MODES = (RGB, GRAY)
"""Modes of the pixels that the engine makes, of bytes."""
_CHANNELS = tuple(mode.channels for mode in MODES)
_KINDS: list[Any] = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint16), np.dtype(np.uint8)]
"""Dtypes of pixels in the order of ``core/base.h``; uint16 stands for bfloat16."""
_PADDING = ("constant", "edge", "reflect", "symmetric")


class _Form(ctypes.Structure):
    """``struct form`` of ``core/requests.h``: dtypes and layout of source and output, padding, conversion."""

    _fields_ = compiled.list_fields("form")


@dataclass(frozen=True)
class OutputFormat:
    """Layout, padding and scaling of all output images of a call.

    Attributes:
        planes: Rows are ``(C, h, w)``; else ``(h, w, C)``.
        padding: Padding around sources that are pixels and not resized: ``"constant"`` (``fill``), ``"edge"``,
            ``"reflect"`` or ``"symmetric"``. All other sources are padded with zeros.
        fill: Constant of the padding, in the units of the source: of each channel, or one for all.
        scale: Factor of bytes on conversion to floating point: of each channel, or one for all.
        shift: Summand after the factor: of each channel, or one for all. Product and sum are each rounded to
            float32.
        table: Value of each byte on conversion to floating point, instead of scale and shift: ``(C, 256)``, contiguous,
            in the dtype of the rows.
    """

    planes: bool = False
    padding: str = "constant"
    fill: float | tuple[float, ...] = 0
    scale: tuple[float, ...] = (1,)
    shift: tuple[float, ...] = (0,)
    table: NDArray[Any] | None = None


class Requests:
    """Requests to the engine: source, crop and destination of each image. Several threads may run ranges of them.

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
            sources: ``N`` JPEG files, or pixels of images. Pixels are ``(H, W, C)``, or planes ``(C, H, W)`` with a
                floating point ``dtype``; C is 3 or 1, as in the output.
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
            self._fields[:, _SOURCE] = sources.places if isinstance(sources, MappedValues) else list_addresses(sources)
        if pixels is not None:
            self._fields[:, _SIZE] = pixels
        if indexes is not None and len(sources):
            places = indexes.at if isinstance(indexes, BufferAddresses) else list_addresses(indexes)
            self._fields[:, _INDEX] = places
            self._fields[places[:, 1] == 0, _INDEX] = 0  # an empty buffer has an address, too

    @classmethod
    def of_array(cls, images: NDArray[Any], places: NDArray[np.int64]) -> Requests:
        """Creates requests for the images at ``places``, ``(N,)``, of an array of images.

        ``images`` is uint8 ``(M, H, W, C)`` or floating point ``(M, C, H, W)``, with 3 channels or 1. Raises
        :class:`ValueError` for an array that is not contiguous or of another shape, :class:`IndexError` for a place
        outside it.
        """
        size = images.shape[1:3] if images.dtype == np.uint8 else images.shape[2:]
        channels = images.shape[3] if images.dtype == np.uint8 else images.shape[1]
        if not images.flags.c_contiguous or channels not in _CHANNELS or len(size) != 2:
            raise ValueError(f"images of {images.shape}, {images.dtype}, that are not contiguous")
        if len(places) and not 0 <= places.min() <= places.max() < len(images):
            raise IndexError(f"places up to {places.max()} of {len(images)} images")
        requests = cls(())
        requests._kind = _KINDS.index(images.dtype)
        requests._kept = [images]
        fields = requests._fields = np.zeros((len(places), _FIELDS), np.int64)
        fields[:, 0] = images.ctypes.data + places * images.strides[0]
        fields[:, 1] = images.strides[0]
        fields[:, _SIZE] = size
        return requests

    def __len__(self) -> int:
        return len(self._fields)

    def repeat(self, count: int) -> Requests:
        """Returns requests for the same sources, each ``count`` times in a row. They have no crops and destinations
        yet."""
        requests = Requests(())
        requests._kind, requests._kept = self._kind, self._kept[:1]
        requests._fields = np.repeat(self._fields, count, 0)
        return requests

    @classmethod
    def interleave(cls, parts: Sequence[Requests], counts: Sequence[int]) -> Requests:
        """Joins requests whose outputs have one format: the first ``counts[0]`` of the first part, the first
        ``counts[1]`` of the second, and so on, then the next of each.

        Consecutive requests for one JPEG file share its pixels, which are decoded once."""
        if len(parts) == 1:
            return parts[0]
        joined = cls(())
        joined.__dict__.update(parts[0].__dict__, _kept=[kept for part in parts for kept in part._kept])
        fields = [part._fields.reshape(-1, count, _FIELDS) for part, count in zip(parts, counts, strict=True)]
        joined._fields = np.concatenate(fields, 1).reshape(-1, _FIELDS)
        return joined

    def select_rows(self, first: int, stop: int) -> Requests:
        """Returns the requests ``first`` … ``stop - 1``. They share memory with these."""
        requests = Requests(())
        requests.__dict__.update(self.__dict__, _kept=[*self._kept], _fields=self._fields[first:stop])
        return requests

    def take_rows(self, rows: Sequence[int]) -> Requests:
        """Returns the requests ``rows``, in this order, in memory of their own."""
        requests = Requests(())
        requests.__dict__.update(self.__dict__, _kept=[*self._kept], _fields=self._fields[rows])
        return requests

    @property
    def pixel_sizes(self) -> NDArray[np.int64]:
        """Height and width of sources that are pixels, ``(N, 2)``; zeros for files."""
        return self._fields[:, _SIZE]

    def read_sizes(self) -> NDArray[np.int64]:
        """Reads height and width of each JPEG file, ``(N, 2)``. Both are 0 for a file that the engine refuses."""
        library = compiled.load_once()[0]
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
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        """Sets crops, sizes and destination of all images. Raises :class:`ValueError` for rows and programs that do not
        fit.

        Does not check that boxes lie within the images, nor the lengths of ``boxes`` and ``sizes``.

        Args:
            boxes: As in :class:`packstore.training.augment.base.Crops`, as are ``sizes``, ``windows`` and ``mirrored``.
            sizes: Sizes to which boxes are resized.
            windows: Windows of the resized boxes.
            mirrored: Images to mirror; None for none.
            out: Rows to write, of the windows' size: uint8, float32, float16, or uint16 for bfloat16. Their shape is
                ``(N, h, w, C)``, or ``(N, C, h, w)`` with planes; C is 3, or 1 for gray. If ``out`` is empty
                (0 rows), :meth:`write_to` must set the rows later.
            form: Format of the rows.
            programs: Steps ``(N, n)`` to run on the windows' bytes before their conversion; only for RGB bytes.
            sampling: Filter of each image's resizing, ``(N,)``, for bytes: 0 bilinear, 1 nearest, 2 bicubic, 3 box, 4
                Lanczos, 7 and 8 Pillow's bilinear and bicubic. The engine refuses images with another number.
            rows: Index in ``out`` of each image's row; None if the rows are in the order of the requests.
        """
        fields = self._fields
        channels, size = (out.shape[1:2], out.shape[2:]) if form.planes else (out.shape[3:], out.shape[1:3])
        count = len(out) if rows is None else len(rows)
        if count not in (len(fields), 0) or (windows[:, 2:] != size).any() or channels not in ((3,), (1,)):
            raise ValueError(f"rows of {out.shape} for {len(fields)} windows")
        if out.dtype not in _KINDS or (out.dtype == np.uint8 and self._kind != 3) or not out.flags.c_contiguous:
            raise ValueError(f"rows of {out.dtype} that are not contiguous, or cannot hold what is wanted")
        self._form = _Form(
            *(self._kind, _KINDS.index(out.dtype), form.planes, _PADDING.index(form.padding)),
            *_pack_factors(form, channels[0]),
            None if form.table is None else _check_table(form.table, channels[0], out.dtype).ctypes.data,
        )
        self._kept.append(form.table)
        self.channels = channels[0]
        fields[:, _BOX], fields[:, _RESIZED], fields[:, _WINDOW] = boxes, sizes, windows
        fields[:, _MIRRORED] = 0 if mirrored is None else mirrored
        self._row = out.shape[1:], out.dtype
        if count == len(fields):
            self.write_to(out, rows)
        fields[:, _PROGRAM] = 0
        fields[:, _SAMPLING] = 0 if sampling is None else sampling
        if programs is not None and programs.size:
            if self._kind != 3 or self.channels != 3:
                raise ValueError("programs work on bytes of three channels, and these are others")
            programs = check_programs(programs, len(fields))
            fields[:, _PROGRAM][:, 0] = programs.ctypes.data + np.arange(len(fields)) * programs.strides[0]
            # Leave out trailing identity steps.
            used = programs["code"] != 0
            fields[:, _PROGRAM][:, 1] = np.where(used.any(1), used.shape[1] - used[:, ::-1].argmax(1), 0)
            self._kept.append(programs)

    def write_to(self, out: NDArray[Any], rows: NDArray[np.int64] | None = None) -> None:
        """Sets the rows to write, after :meth:`set_outputs` has set their format. ``rows``: as there.

        Raises :class:`ValueError` for rows of another format or number, and for rows that are not contiguous."""
        places = np.arange(len(out)) if rows is None else rows
        if self._row != (out.shape[1:], out.dtype) or len(places) != len(self) or not out.flags.c_contiguous:
            raise ValueError(
                f"{len(places)} rows of {out.shape[1:]}, {out.dtype}; {len(self)} of {self._row} are expected"
            )
        if len(places) and not 0 <= places.min() <= places.max() < len(out):
            raise ValueError(f"rows up to {places.max()} of {len(out)}")
        self._fields[:, _TO] = out.ctypes.data + places * out.strides[0]
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
        """Sets crop and size of each JPEG file as :meth:`set_outputs` does. One of ``images`` is its destination.

        An image is a uint8 array ``(h, w, C)`` of the size of the file's window. Raises :class:`ValueError` if number,
        size, dtype or channels do not fit, or an image is not contiguous."""
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
        """Sets an image as destination of each whole JPEG file, from file ``first`` on.

        Does not check the images' sizes: each must have the size of its file. Releases the images that were set before.
        Raises :class:`ValueError` for images of different channels."""
        self._form = _Form(_KINDS.index(np.uint8), _KINDS.index(np.uint8), factors=(ctypes.c_float * 6)())
        self.channels = _channels_of(images)
        fields = self._fields[first : first + len(images)]
        sizes = np.array([image.shape[:2] for image in images], np.int64)
        fields[:, _BOX][:, 2:] = fields[:, _RESIZED] = fields[:, _WINDOW][:, 2:] = sizes
        fields[:, _TO] = [image.ctypes.data for image in images]
        self._kept[1:] = [images]

    def locate(self, first: int, stop: int) -> tuple[int, int, Any]:
        """Returns the address of request ``first``, the number of requests before ``stop``, and their output format.

        The format is a reference for :mod:`ctypes`. Raises :class:`IndexError` for numbers out of range,
        :class:`ValueError` if the destinations are not set."""
        if not 0 <= first <= stop <= len(self):
            raise IndexError(f"requests {first} to {stop} of {len(self)}")
        if self._form is None:
            raise ValueError("nothing is wanted of these requests yet")
        if self._row is not None:
            raise ValueError("these requests have no rows to write yet")
        return self._fields.ctypes.data + first * self._fields.strides[0], stop - first, ctypes.byref(self._form)


def _pack_factors(form: OutputFormat, channels: int) -> Any:
    """Builds the fields of ``struct form`` for scale and shift, and for fill."""
    fill = form.fill if isinstance(form.fill, tuple) else (form.fill,)
    if not {len(form.scale), len(form.shift), len(fill)} <= {1, channels}:
        raise ValueError(f"{form} for rows of {channels} channels")
    # The engine takes three numbers of each.
    scale, shift, fill = (values * (3 // len(values)) for values in (form.scale, form.shift, fill))
    return (ctypes.c_float * 6)(*scale, *shift), (ctypes.c_float * 3)(*fill)


def _check_table(table: NDArray[Any], channels: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Checks shape and dtype of a table of conversion, and returns it."""
    if table.shape != (channels, 256) or table.dtype != dtype or not table.flags.c_contiguous:
        raise ValueError(f"a table of {table.shape}, {table.dtype}, for rows of {channels} channels, {dtype}")
    return table


def _channels_of(images: Sequence[NDArray[np.uint8]]) -> int:
    """Returns the number of channels that all images ``(h, w, C)`` have: 1 or 3."""
    channels = {image.shape[2] for image in images} or {3}
    if len(channels) > 1 or not channels <= {*_CHANNELS}:
        raise ValueError(f"images of {sorted(channels)} channels")
    return int(channels.pop())


class BufferAddresses(NamedTuple):
    """Addresses of buffers in memory.

    Attributes:
        at: Address and number of bytes of each buffer, int64 ``(N, 2)``.
        kept: Object that keeps the buffers alive.
    """

    at: NDArray[np.int64]
    kept: Any


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


def list_addresses(sources: Sequence[Any]) -> NDArray[np.int64]:
    """Returns address and number of bytes of each contiguous buffer, ``(N, 2)``. The caller keeps the buffers alive.

    numpy would take three times as long, under the GIL. Raises :class:`BufferError` for a buffer that is not
    contiguous."""
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


def find_address(data: Any) -> int:
    """Returns the address of the first byte of ``data``, which the caller keeps alive."""
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address
