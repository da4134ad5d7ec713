"""Reads the images of a column for batches: stored bytes, sizes and pixels, and requests to the engine for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE
from packstore.core.manifest import Column
from packstore.core.modes import Mode
from packstore.images.decoders import Box, Decoder
from packstore.images.engine import MODES, Requests
from packstore.images.orientation import read_orientation, swaps_sides
from packstore.images.sniff import HeaderError, sniff
from packstore.stores import Reader
from packstore.stores.parts import as_image_array, read_ahead
from packstore.training.loader.batch_plan import BatchPlan, Header
from packstore.training.loader.looks import engine_supports, find_stored_format, height_width
from packstore.training.pictures import read_seek_indexes, read_stored_bytes, widen_for_torch

_HEAD = 2048  # where nearly every frame header is

# Waiting for each page of a record in turn, a cold store is read at a third of the speed; asking for records beforehand
# halves that of a warm one. So it is done for a while where pages were waited for.
COLD_BATCHES = 4


class StoredImages(ABC):
    """Reads the images of one column by record number.

    Attributes:
        reader: The open store.
        column: The column.
        mode: Mode of the pixels.
        stored: Format of rows that hold pixels as stored, without normalisation or conversion.
        cold: Number of next batches whose records the operating system is asked to read ahead.
        are_files: They are image files, not arrays.
        is_main: They are the main images.
    """

    are_files: ClassVar[bool]

    def __init__(self, reader: Reader, column: Column, mode: Mode) -> None:
        self.reader = reader
        self.column = column
        self.mode = mode
        self.stored = find_stored_format(column, mode)
        self.is_main = column.name == "image"
        self._unchecked = reader.unchecked_reader
        self.cold = COLD_BATCHES

    def view(self, record: int, ahead: bool = False) -> Any:
        """Returns the stored bytes of a record. Checksums of the main images are verified later, by all threads.

        ``ahead``: ask the operating system to read a main image's bytes ahead; those of other columns are read."""
        if not self.is_main:
            return read_stored_bytes(self.reader, self.column, record)
        view = self._unchecked.rows.view(record)
        if ahead:
            read_ahead(view)
        return view

    def view_all(self, records: NDArray[np.int64]) -> Sequence[Any]:
        """Returns the stored bytes of each of ``records``, without copies.

        Raises :class:`PackstoreError` if any read fails. Does not verify the bytes of main images: a later stage does.
        """
        return (
            self._unchecked.rows.views(records) if self.is_main else [self.view(record) for record in records.tolist()]
        )

    @abstractmethod
    def make_requests(self, plan: BatchPlan) -> Requests | None:
        """Builds requests to the engine for a batch's images; None if the engine does not know them.

        Reads the sizes of the images into ``plan``, their EXIF orientations, and the headers of files that the engine
        refuses. If a header is unreadable, its size is 0 x 0 and the header None; decoding raises later."""

    @abstractmethod
    def read_pixels(self, record: int, view: Any, header: Header) -> NDArray[Any]:
        """Decodes an image to pixels, without EXIF rotation. Raises :class:`PackstoreError` if that fails.

        16 bits become int32, for which torch has more operations; a mapped array keeps its dtype."""

    def read_header(self, view: Any) -> Header:
        """Parses the header of an image file. Returns None for an array, or if the header cannot be read."""
        return None

    def can_decode_part(self, header: Header) -> bool:
        """Tells if :meth:`decode_crop` decodes less than the whole of an image with this header."""
        return False

    def decode_crop(self, view: Any, box: Box, header: Header) -> NDArray[Any]:
        """Decodes a box of an image file, without EXIF rotation. Raises :class:`NotImplementedError` for arrays."""
        raise NotImplementedError


class FileImages(StoredImages):
    """Reads image files by a decoder, and builds requests to the engine for whole batches of files."""

    are_files = True

    def __init__(self, reader: Reader, column: Column, decoder: Decoder, exif_transpose: bool) -> None:
        """``exif_transpose`` applies the EXIF orientation of files."""
        super().__init__(reader, column, decoder.mode)
        self._decoder = decoder
        self._exif_transpose = exif_transpose

    def make_requests(self, plan: BatchPlan) -> Requests | None:
        """Builds the requests, with seek indexes if the store has them; None without the engine. If EXIF rotates a
        file, the engine gets an empty one, which it refuses.

        Swaps height and width if the EXIF orientation does. Parses the headers of files that the engine refuses;
        without the engine, of all."""
        orientations = enumerate(map(read_orientation, plan.buffers)) if self._exif_transpose else ()
        plan.turned = {row: orientation for row, orientation in orientations if orientation != 1}
        requests: Requests | None = None
        if self._decoder.has_engine:
            views: Sequence[Any] = plan.buffers
            if plan.turned:
                views = [b"" if row in plan.turned else view for row, view in enumerate(views)]
            requests = Requests(views, indexes=read_seek_indexes(self._unchecked, self.column, plan.records))
        headers: list[Header] = [None] * len(plan.records)
        sizes = np.zeros((len(plan.records), 2), np.int64) if requests is None else requests.read_sizes()
        for row in np.flatnonzero(sizes[:, 0] == 0).tolist():
            header = headers[row] = self.read_header(plan.buffers[row])
            sizes[row] = (0, 0) if header is None else (header.height, header.width)
        if swapped := [row for row, orientation in plan.turned.items() if swaps_sides(orientation)]:
            sizes[swapped] = sizes[swapped, ::-1]
        plan.sizes, plan.headers = sizes, headers
        return requests

    def read_header(self, view: Any) -> Header:
        """Parses the first 2,048 bytes, then if necessary the whole file; None if that fails."""
        try:
            return sniff(bytes(view[:_HEAD]))
        except HeaderError:
            try:
                return sniff(view)
            except HeaderError:
                return None

    def read_pixels(self, record: int, view: Any, header: Header) -> NDArray[Any]:
        """Decodes the file by the decoder; 16 bits become int32."""
        return widen_for_torch(self._decoder.decode(view, info=header), self.column)

    def can_decode_part(self, header: Header) -> bool:
        """Tells if the decoder can decode a part of such a file. False for an unreadable header."""
        return header is not None and self._decoder.decodes_parts(header)

    def decode_crop(self, view: Any, box: Box, header: Header) -> NDArray[Any]:
        """Decodes the box by the decoder; 16 bits become int32."""
        return widen_for_torch(self._decoder.decode_crop(view, box, info=header), self.column)


class ArrayImages(StoredImages):
    """Reads stored arrays of pixels one by one. The arrays may differ in size."""

    are_files = False

    def __init__(self, reader: Reader, column: Column) -> None:
        super().__init__(reader, column, column.pixels)
        self._has_shapes = column.kind == "ragged"
        self._for_engine = column.pixels in MODES or (column.layout == "CHW" and engine_supports(column))

    def make_requests(self, plan: BatchPlan) -> Requests | None:
        """Builds the requests; None for pixels of a mode that the engine does not know.

        Reads the shapes of arrays, or repeats their common size. A stored height or width below 1 counts as 1."""
        records = plan.records
        plan.headers = [None] * len(records)
        if self._has_shapes:
            # A store may say anything: decoding tells, as with headers.
            shapes = self.reader.values(self.column.shape_name, records)
            plan.sizes = np.maximum(shapes[:, :2].astype(np.int64), 1)
        else:
            plan.sizes = np.tile(np.array(height_width(self.column), np.int64), (len(records), 1))
        return self._request_arrays(plan) if self._for_engine else None

    def _request_arrays(self, plan: BatchPlan) -> Requests:
        """Builds the requests for a batch whose sizes are known."""
        return Requests(plan.buffers, plan.sizes, NUMPY_DTYPE[self.column.dtype])

    def read_pixels(self, record: int, view: Any, header: Header) -> NDArray[Any]:
        """Views the stored bytes as an array of the record's shape; copies 16 bits to int32. Raises
        :class:`StoreError` if the bytes do not fit the shape."""
        column = self.column
        shape = tuple(self.reader.value(column.shape_name, record).tolist()) if self._has_shapes else column.shape
        return widen_for_torch(as_image_array(view, column, shape, lambda: "it"), column)


class MappedImages(ArrayImages):
    """Reads stored pixels of one size from one memory-mapped array of all images.

    Never asks the operating system to read ahead.

    Attributes:
        array: All images, ``(N, …)``.
    """

    def __init__(self, reader: Reader, column: Column, array: NDArray[Any]) -> None:
        super().__init__(reader, column)
        self.array = array
        self.cold = 0

    def view_all(self, records: NDArray[np.int64]) -> Sequence[Any]:
        """Returns each of ``records`` as an array, a view of :attr:`array`, which is made on access."""
        return _SelectedImages(self.array, records)

    def _request_arrays(self, plan: BatchPlan) -> Requests:
        return Requests.of_array(self.array, plan.records)

    def read_pixels(self, record: int, view: Any, header: Header) -> NDArray[Any]:
        """Returns the image as a view of :attr:`array`, in the stored dtype; ignores ``view``."""
        pixels: NDArray[Any] = self.array[record]
        return pixels


class _SelectedImages(Sequence[Any]):
    """Images at some indices of an array, each looked up on access."""

    def __init__(self, images: NDArray[Any], places: NDArray[np.int64]) -> None:
        self._images = images
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return _SelectedImages(self._images, self._places[number])
        return self._images[self._places[number]]
