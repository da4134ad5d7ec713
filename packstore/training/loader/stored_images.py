"""Images of a column as they are stored: their views, sizes and pixels, and requests to the engine for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.column import SEEK_INDEX
from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import PackstoreError
from packstore.core.manifest import Column
from packstore.core.modes import Mode
from packstore.images.decoders import Box, Decoder
from packstore.images.decoders.orientation import read_orientation, swaps_sides
from packstore.images.engine import MODES, BufferAddresses, Requests
from packstore.images.sniff import HeaderError, sniff
from packstore.stores.base import Reader, as_image_array
from packstore.training.loader.finish import stored_format
from packstore.training.loader.kernel import engine_supports, height_width
from packstore.training.loader.prepared import Header, Prepared
from packstore.training.pictures import for_torch, stored_bytes

_HEAD = 2048  # where nearly every frame header is
_UNREADABLE = b"\0"  # in place of a seek index

# Waiting for each page of a record in turn, a cold store is read at a third of the speed; asking for records beforehand
# halves that of a warm one. So it is done for a while where pages were waited for.
COLD_BATCHES = 4


class StoredImages(ABC):
    """Images of one column by record.

    Attributes:
        reader: The open store.
        column: The column.
        mode: Mode of the pixels.
        stored: Format of rows whose pixels stay as they are.
        view: Returns the stored bytes of a record. Checksums of the main images are verified later, by all threads.
        will_need: Asks the system to fetch all of a record's view at once.
        cold: Number of batches for which the system is asked to fetch all records beforehand.
        are_files: They are image files, not arrays.
        is_main: They are the main images.
    """

    are_files: ClassVar[bool]

    def __init__(self, reader: Reader, column: Column, mode: Mode) -> None:
        self.reader = reader
        self.column = column
        self.mode = mode
        self.stored = stored_format(column, mode)
        self.is_main = column.name == "image"
        self._unchecked = reader.unchecked_reader
        self.view = self._unchecked.view if self.is_main else partial(stored_bytes, reader, column)
        self.will_need = self._unchecked.will_need if self.is_main else _do_not_prefetch
        self.cold = COLD_BATCHES

    def views(self, records: NDArray[np.int64]) -> Sequence[Any]:
        """Returns the views of ``records``; raises if any fails."""
        return self._unchecked.views(records) if self.is_main else [self.view(record) for record in records.tolist()]

    @abstractmethod
    def measure(self, records: NDArray[np.int64], prepared: Prepared, requests: Requests | None = None) -> None:
        """Sets the sizes of the images of a batch, and the headers of files that the engine refuses: 0 x 0 and None
        for an unreadable header, since decoding will raise."""

    @abstractmethod
    def pixels(self, record: int, view: Any, header: Header) -> NDArray[Any]:
        """Returns the pixels of an image in a dtype of torch, not turned. Raises :class:`PackstoreError`."""

    @abstractmethod
    def pixels_of_each(self, records: Sequence[int], views: Sequence[Any]) -> Iterator[NDArray[Any] | PackstoreError]:
        """Yields the pixels of each image ``(H, W, C)``, turned upright, or its error."""

    def orientations(self, views: Sequence[Any]) -> dict[int, int]:
        """Returns the EXIF orientations to apply, by row."""
        return {}

    def header(self, view: Any) -> Header:
        """Parses the header of an image file, or returns None for an array, or if it cannot be read."""
        return None

    def decodes_part(self, header: Header) -> bool:
        """Tells if :meth:`crop` decodes less than the whole image."""
        return False

    def crop(self, view: Any, box: Box, header: Header) -> NDArray[Any]:
        """Decodes a box of an image file, not turned."""
        raise NotImplementedError

    def file_requests(self, records: NDArray[np.int64], prepared: Prepared) -> Requests | None:
        """Returns requests to the engine to decode image files; None for others. It refuses those to turn."""
        return None

    def array_requests(self, views: Sequence[Any], sizes: NDArray[np.int64]) -> Requests | None:
        """Returns requests to the engine to process stored pixels, or None if it cannot."""
        return None


class FileImages(StoredImages):
    """Image files, decoded by the engine if it can, else by ``decoder``."""

    are_files = True

    def __init__(self, reader: Reader, column: Column, decoder: Decoder, exif_transpose: bool) -> None:
        """``exif_transpose`` applies the EXIF orientation of files."""
        super().__init__(reader, column, decoder.reading.pixels)
        self._decoder = decoder
        self._exif_transpose = exif_transpose
        manifest = reader.manifest
        self._has_indexes = (
            self.is_main and manifest.has_column(SEEK_INDEX.name) and manifest.column(SEEK_INDEX.name).nbytes > 0
        )

    def measure(self, records: NDArray[np.int64], prepared: Prepared, requests: Requests | None = None) -> None:
        headers: list[Header] = [None] * len(records)
        sizes = np.zeros((len(records), 2), np.int64) if requests is None else requests.sizes()
        for row in np.flatnonzero(sizes[:, 0] == 0).tolist():
            header = headers[row] = self.header(prepared.views[row])
            sizes[row] = (0, 0) if header is None else (header.height, header.width)
        if swapped := [row for row, orientation in prepared.turned.items() if swaps_sides(orientation)]:
            sizes[swapped] = sizes[swapped, ::-1]
        prepared.sizes, prepared.headers = sizes, headers

    def header(self, view: Any) -> Header:
        try:
            return sniff(bytes(view[:_HEAD]))
        except HeaderError:
            try:
                return sniff(view)
            except HeaderError:
                return None

    def pixels(self, record: int, view: Any, header: Header) -> NDArray[Any]:
        return for_torch(self._decoder.decode(view, info=header), self.column)

    def pixels_of_each(self, records: Sequence[int], views: Sequence[Any]) -> Iterator[NDArray[Any] | PackstoreError]:
        return iter(self._decoder.decode_each(views, exif_transpose=self._exif_transpose))

    def orientations(self, views: Sequence[Any]) -> dict[int, int]:
        found = enumerate(map(read_orientation, views)) if self._exif_transpose else ()
        return {row: orientation for row, orientation in found if orientation != 1}

    def decodes_part(self, header: Header) -> bool:
        return header is not None and self._decoder.decodes_parts(header)

    def crop(self, view: Any, box: Box, header: Header) -> NDArray[Any]:
        return for_torch(self._decoder.decode_crop(view, box, info=header), self.column)

    def file_requests(self, records: NDArray[np.int64], prepared: Prepared) -> Requests | None:
        if not self._decoder.has_engine:
            return None
        views, turned = prepared.views, prepared.turned
        if turned:
            views = [b"" if row in turned else view for row, view in enumerate(views)]
        return Requests(views, indexes=self._seek_indexes(records) if self._has_indexes else None)

    def _seek_indexes(self, records: NDArray[np.int64]) -> list[Any] | BufferAddresses:
        """Returns the seek index of each image. An unreadable index is replaced by an invalid one, which the engine
        counts."""
        try:
            column = self._unchecked.mapped_ragged_column(SEEK_INDEX.name)
            if column is not None:
                return BufferAddresses(column.places(records), column)
            return [self._unchecked.value(SEEK_INDEX.name, record) for record in records.tolist()]
        except PackstoreError:
            return [_UNREADABLE] * len(records)


class ArrayImages(StoredImages):
    """Stored pixels, which may differ in size."""

    are_files = False

    def __init__(self, reader: Reader, column: Column) -> None:
        super().__init__(reader, column, column.pixels)
        self._has_shapes = column.kind == "ragged"
        self._for_engine = column.pixels in MODES or (column.layout == "CHW" and engine_supports(column))

    def measure(self, records: NDArray[np.int64], prepared: Prepared, requests: Requests | None = None) -> None:
        prepared.headers = [None] * len(records)
        if self._has_shapes:
            # A store may say anything: decoding tells, as with headers.
            shapes = self.reader.values(self.column.shape_name, records)
            prepared.sizes = np.maximum(shapes[:, :2].astype(np.int64), 1)
        else:
            prepared.sizes = np.tile(np.array(height_width(self.column), np.int64), (len(records), 1))

    def pixels(self, record: int, view: Any, header: Header) -> NDArray[Any]:
        column = self.column
        shape = tuple(self.reader.value(column.shape_name, record).tolist()) if self._has_shapes else column.shape
        return for_torch(as_image_array(view, column, shape, "it"), column)

    def pixels_of_each(self, records: Sequence[int], views: Sequence[Any]) -> Iterator[NDArray[Any] | PackstoreError]:
        for record, view in zip(records, views, strict=True):
            try:
                yield self.pixels(record, view, None)
            except PackstoreError as error:
                yield error

    def array_requests(self, views: Sequence[Any], sizes: NDArray[np.int64]) -> Requests | None:
        return Requests(views, sizes, NUMPY_DTYPE[self.column.dtype]) if self._for_engine else None


class MappedImages(ArrayImages):
    """Stored pixels of one size in one mapped array: a view is an image of it.

    Attributes:
        array: All images, ``(N, …)``.
    """

    def __init__(self, reader: Reader, column: Column, array: NDArray[Any]) -> None:
        super().__init__(reader, column)
        self.array = array
        self.cold = 0

    def views(self, records: NDArray[np.int64]) -> Sequence[Any]:
        return [self.array[record] for record in records.tolist()]

    def pixels(self, record: int, view: Any, header: Header) -> NDArray[Any]:
        found: NDArray[Any] = self.array[record]
        return found


def _do_not_prefetch(record: int, view: Any) -> None:
    """Does nothing, in place of :meth:`Reader.will_need`, for columns beside the main image."""
