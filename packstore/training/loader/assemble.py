"""Assembles records as rows of a batch buffer in worker threads: reads, decodes, crops and resizes.

Everything here except decoding and resizing runs under the GIL, so it is kept short: whatever can be computed for a
whole batch at once is, before slices go to the threads. Less Python also means fewer waits between threads, and fewer
cache lines that move between cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.column import SEEK_INDEX
from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import CorruptRecordError, DecodeError, PackstoreError, UsageError
from packstore.core.manifest import Column
from packstore.images.decoders import Box, Decoder
from packstore.images.decoders.orientation import read_orientation, stored_box, swaps_sides, upright
from packstore.images.engine import MODES, Form, Places, Requests, get_engine
from packstore.images.sniff import HeaderError, sniff, too_many_pixels
from packstore.stores.base import Reader, as_image_array
from packstore.training.augment.base import Crops, GeometricOperation
from packstore.training.augment.operations import output_size, plan_each
from packstore.training.dataset import image_array
from packstore.training.loader.checks import Checks, Images
from packstore.training.loader.finish import Finish
from packstore.training.loader.kernel import Kernel, engine_supports
from packstore.training.loader.prepared import Header, Prepared
from packstore.training.loader.programs import NO_PROGRAMS, Programs
from packstore.training.loader.rows import RowWriter, SizeError, as_numpy
from packstore.training.loader.stats import Stats
from packstore.training.pictures import TENSOR_DTYPES, for_torch, locate_error, stored_bytes
from packstore.training.random_draws import MASK, Draws

_HEAD = 2048  # where nearly every frame header is
_UNREADABLE = b"\0"  # in place of a seek index

# Waiting for each page of a record in turn, a cold store is read at a third of the speed; asking for records beforehand
# halves that of a warm one. So it is done for a while where pages were waited for.
_COLD_BATCHES = 4
try:
    import resource

    _THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)  # Linux
except ImportError:  # Windows
    _THREAD = None


class Assembler:
    """Writes records into rows of batch buffers. Thread-safe.

    Attributes:
        shape: Shape of a row: ``(H, W, C)``, ``(C, H, W)`` for a floating point store, or the shape of the final
            format.
        dtype: Dtype of a row.
        planes: Rows have the channels first.
    """

    def __init__(
        self,
        reader: Reader,
        column: Column,
        decoder: Decoder,
        operations: Sequence[GeometricOperation],
        stats: Stats,
        exif_transpose: bool = False,
        alone: bool = True,
        checks: Checks | None = None,
        finish: Finish | None = None,
        programs: Programs = NO_PROGRAMS,
    ) -> None:
        """
        Args:
            reader: The open store.
            column: Its column of images.
            decoder: Decoder of image files.
            operations: First operations of the user's list, which run here.
            stats: Collects the seconds of each stage.
            exif_transpose: Apply the EXIF orientation of image files before the operations.
            alone: No other column is cropped with the images. Else a file must have the size of its header, by which
                crops are planned.
            checks: Policy of checksum verification; None for none.
            finish: Final format of cropped pixels; None for none.
            programs: Operations after the crops.

        Raises:
            UsageError: The images have different sizes, and no operation makes them equal.
        """
        self._reader = reader
        self._column = column
        self._main = column.name == "image"
        self._alone = alone
        self._views = reader.unchecked if self._main else reader  # the main images are checked in fill, by all threads
        self._checks = checks
        self._decoder = decoder
        self._operations = operations
        self._stats = stats
        self._exif_transpose = exif_transpose
        self._encoded = column.layout is None
        self._engine_decodes = self._encoded and decoder.has_engine
        self._has_indexes = (
            self._engine_decodes
            and self._main
            and reader.manifest.has_column(SEEK_INDEX.name)
            and reader.manifest.column(SEEK_INDEX.name).nbytes > 0
        )
        self._has_shapes = not self._encoded and column.kind == "ragged"
        self._mode = column.pixels if not self._encoded else decoder.reading.pixels
        self._for_engine = self._mode in MODES or (column.layout == "CHW" and engine_supports(column))
        self._view: Callable[[int], Any] = self._views.view if self._main else partial(stored_bytes, reader, column)
        self._own_sizes = False
        self._finish = finish
        self._programs = programs
        self.planes = column.layout == "CHW" if finish is None else finish.planes
        floats, channels = column.layout == "CHW", self._mode.channels
        dtype = getattr(torch, column.dtype) if floats else TENSOR_DTYPES[self._mode.dtype]
        stored = Finish(dtype, floats, channels=channels)
        self._kernel: Kernel | None = None
        if engine_supports(column) and (operations or programs or finish is not None):
            size = column.shape[1:] if column.layout == "CHW" else column.shape[:2]
            self._kernel = Kernel((size[0], size[1]), operations, finish or stored, programs)
        self.shape = self._row(column)
        if finish is not None:
            self.shape = finish.shape(self.shape[:2]) if self._kernel is None else self._kernel.shape
        self.dtype = (finish or stored).dtype
        self._cold = _COLD_BATCHES  # batches for which the system is asked to fetch all records beforehand
        # Without the engine, rows that operations make are made one by one.
        as_one = self._main and (self._kernel is not None or not operations)
        self._whole = image_array(self._views) if as_one else None

    def _row(self, image: Column) -> tuple[int, ...]:
        """Returns the shape of a row before the final format."""
        if image.layout == "CHW":
            return image.shape if self._kernel is None else self._kernel.shape
        size = image.shape[:2] if image.kind == "fixed" else None
        height_width = output_size(self._operations, (size[0], size[1]) if size else None)
        self._own_sizes = height_width is None
        if height_width is None and any(not operation.mirrors for operation in self._operations):
            names = ", ".join(type(operation).__name__ for operation in self._operations)
            raise UsageError(
                f"the images differ in size after {names}, and other operations work on whole batches: begin with "
                "RandomResizedCrop, or with Resize and then CenterCrop or RandomCrop (no padding, or pad_if_needed)"
            )
        if height_width is None:
            # Nothing brings them to one size; they may have one all the same, which every image is held to.
            view = self._view(0)
            if self._has_shapes:
                height_width = self._pixels(0, view, None).shape[:2]
            else:
                first = self._sizes([0], [view], self._find_orientations([view]))[0][0].tolist()
                reason = too_many_pixels(first[1], first[0], self._decoder.max_pixels)
                if reason is not None:
                    raise locate_error(DecodeError(reason), self._reader, 0, image.name)
                height_width = max(1, first[0]), max(1, first[1])
        return *height_width, self._mode.channels

    def shape_for(self, records: NDArray[np.int64]) -> tuple[int, ...]:
        """Returns the shape of a row of a batch of ``records``: :attr:`shape`; the image's own shape for a single
        record whose size may differ.

        Reads that from the image's header; if the header is damaged or too large, decoding raises.
        """
        if not self._own_sizes or len(records) != 1:
            return self.shape
        number = int(records[0])
        try:
            views = [self._view(number)]
            height, width = self._sizes([number], views, self._find_orientations(views))[0][0].tolist()
        except PackstoreError:
            return self.shape
        unfit = not height or too_many_pixels(width, height, self._decoder.max_pixels) is not None
        if unfit:
            return self.shape
        if self._finish is None:
            return height, width, self._mode.channels
        return self._finish.shape((height, width))

    def as_images(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns rows of a buffer as ``(B, C, H, W)``: a view, channels last if pixels are stored like that."""
        return rows if self.planes else rows.permute(0, 3, 1, 2)

    def sizes(self, prepared: Prepared) -> NDArray[np.int64]:
        """Returns height and width of each image of a prepared batch, ``(B, 2)``."""
        if self._whole is None:
            return prepared.sizes
        height_width = self._whole.shape[2:] if self._column.layout == "CHW" else self._whole.shape[1:3]
        return np.tile(np.array(height_width, np.int64), (len(prepared.ids), 1))

    def bytes_made(self, prepared: Prepared) -> int:
        """Estimates the bytes of pixels of a prepared batch."""
        return prepared.out.nbytes

    def prepare(
        self,
        out: torch.Tensor,
        ids: NDArray[np.int64],
        seed: int,
        epoch: int,
        errors: dict[int, Exception] | None,
        absent: Set[int] = frozenset(),
        check_all: bool = False,
    ) -> Prepared:
        """Reads the records of ``ids`` and plans their rows. Decodes nothing.

        Args:
            out: Rows of a batch buffer, ``(B, *shape)``.
            ids: Ids of the records, from :class:`Epochs`, ``(B,)``.
            seed: Seed of random operations.
            epoch: Epoch of random operations.
            errors: Receives failed records with their errors; None raises the first.
            absent: Rows without an image, which are not written.
            check_all: Verify all images, of arrays too.

        Raises:
            CorruptRecordError: A record is damaged; names the record and its key.
        """
        start = perf_counter()
        records = ids & MASK
        prepared = Prepared(out, ids, seed, epoch, records.tolist(), failed=[*absent], finish=self._finish)
        if self._checks is not None:
            prepared.suspects = self._checks.choose(records, epoch, check_all)
            if prepared.suspects.faults:
                self._note_faults(prepared, errors)
        if self._whole is not None:
            if self._kernel is not None:
                draws = Draws(seed, epoch, ids)
                planned = self._kernel.plan(draws)
                prepared.first_crops = planned[min(1, len(planned) - 1)] if self._operations else None
                prepared.requests = self._kernel.make_requests(self._whole, records, planned[-1], out, draws)
            self._stats.add("read", perf_counter() - start)
            return prepared
        fetch = self._cold > 0
        self._cold -= fetch
        if fetch or prepared.failed or not self._main or not self._try_view_all(prepared, records):
            self._view_each(prepared, errors, fetch=fetch and self._main)
        read = perf_counter()
        prepared.turned = turned = self._find_orientations(prepared.views)
        requests = None
        if self._engine_decodes:
            files: Sequence[Any] = prepared.views
            if turned:
                files = [b"" if row in turned else view for row, view in enumerate(files)]
            requests = Requests(files, indexes=self._indexes(prepared) if self._has_indexes else None)
        prepared.sizes, prepared.headers = self._sizes(prepared.numbers, prepared.views, turned, requests)
        unread = prepared.sizes[:, 0] == 0
        if unread.any():  # planned like others, so that no operation finds them too small; decoding tells
            prepared.sizes[unread] = np.maximum(prepared.sizes.max(0), self.shape[:2])
        crops = None
        if self._operations:
            planned = self._plan(prepared.sizes, ids, seed, epoch)
            prepared.first_crops, crops = planned[1], planned[-1]
        prepared.crops = crops
        height, width = out.shape[2:] if self.planes else out.shape[1:3]
        prepared.program = self._programs.draw(Draws(seed, epoch, ids), (height, width))
        prepared.requests = self._want(prepared, requests, crops)
        self._stats.add("read", read - start)
        self._stats.add("decode", perf_counter() - read)
        return prepared

    def _try_view_all(self, prepared: Prepared, records: NDArray[np.int64]) -> bool:
        """Views all records of the batch at once; False if any fails, which :meth:`_view_each` then finds."""
        try:
            prepared.views = self._views.views(records)
        except PackstoreError:
            return False  # one by one it shows which
        return True

    def _view_each(self, prepared: Prepared, errors: dict[int, Exception] | None, *, fetch: bool) -> None:
        """Views the records one by one; notes those that fail. ``fetch`` may fetch shards."""
        left_out = {*prepared.failed}
        for row, record in enumerate(prepared.numbers):
            if row in left_out:
                prepared.views.append(b"")
                continue
            try:
                view = self._view(record)
                if fetch:
                    self._views.will_need(record, view)
                prepared.views.append(view)
            except PackstoreError as error:
                prepared.failed.append(self._note(errors, row, record, error))
                prepared.views.append(b"")

    def fill(
        self,
        prepared: Prepared,
        first: int,
        stop: int,
        errors: dict[int, Exception] | None,
        skip: Set[int] = frozenset(),
    ) -> list[int]:
        """Decodes and writes rows ``first`` … ``stop - 1`` of a prepared batch; may leave out rows in ``skip``.

        Returns:
            Rows that failed here, not those that failed while preparing.

        Raises:
            CorruptRecordError: A record is damaged; names the record and its key.
            DecodeError: A record cannot be decoded; likewise.
        """
        start = perf_counter()
        if self._whole is not None:
            failed = self._fill_from_array(prepared, first, stop, errors)
            self._stats.add("read" if prepared.requests is None else "decode", perf_counter() - start)
            return failed
        faults = _major_faults()
        failed = self._damaged(prepared, first, prepared.views[first:stop], errors)
        for row in self._run_engine(prepared, first, stop):
            if row in prepared.failed or row in failed or row in skip:
                continue
            try:
                self._write(prepared, row)
                if prepared.program is not None:
                    self._programs.run(prepared.rows.array[row : row + 1], prepared.program[row : row + 1])
                if self._finish is not None:
                    self._finish.rows(prepared.rows.pixels[row : row + 1], prepared.out[row : row + 1])
            except SizeError:
                raise
            except PackstoreError as error:
                failed.append(self._note(errors, row, prepared.numbers[row], error))
        if self._encoded:
            left_out = {*failed, *prepared.failed, *skip}
            self._stats.add_decoded(stop - first - sum(first <= row < stop for row in left_out))
        if _major_faults() - faults > stop - first:
            self._cold = _COLD_BATCHES
        self._stats.add("decode", perf_counter() - start)
        return failed

    def _fill_from_array(
        self, prepared: Prepared, first: int, stop: int, errors: dict[int, Exception] | None
    ) -> list[int]:
        """Does :meth:`fill` for images that are one mapped array."""
        assert self._whole is not None
        records = prepared.ids[first:stop] & MASK
        if prepared.requests is not None:
            failed = self._damaged(prepared, first, _Images(self._whole, records), errors)
            if get_engine().run(prepared.requests, first, stop, self._decoder.max_pixels).any():
                raise MemoryError(f"the engine has no memory for images of {self._whole.shape[1:]}")
            return failed
        out = prepared.out[first:stop] if self._finish is None else prepared.rows.pixels[first:stop]
        copies = as_numpy(out)
        if copies.dtype == self._whole.dtype:
            np.take(self._whole, records, axis=0, out=copies, mode="clip")
        else:  # torch has no such dtype
            stored = np.take(self._whole, records, axis=0)
            copies[:], copies = stored, stored
        failed = self._damaged(prepared, first, copies, errors)  # the copies, which nothing changes any more
        if self._finish is not None:
            self._finish.rows(out, prepared.out[first:stop])
        return failed

    def _damaged(
        self,
        prepared: Prepared,
        first: int,
        images: Images,
        errors: dict[int, Exception] | None,
    ) -> list[int]:
        """Verifies checksums of ``images``, which belong to the rows from ``first`` on; returns the damaged rows."""
        if prepared.suspects is None:
            return []
        damaged = prepared.suspects.damaged(first, images, prepared.failed)
        return [self._note(errors, row, prepared.numbers[row], error) for row, error in damaged]

    def _note_faults(self, prepared: Prepared, errors: dict[int, Exception] | None) -> None:
        """Notes errors in other columns; or raises the first error of the batch, images included."""
        assert prepared.suspects is not None
        faults = prepared.suspects.faults
        if errors is None:
            self._damaged(prepared, 0, [self._views.view(i) for i in prepared.numbers[: min(faults)]], errors)
        for row, error in sorted(faults.items()):
            prepared.failed.append(self._note(errors, row, prepared.numbers[row], error))

    def _run_engine(self, prepared: Prepared, first: int, stop: int) -> Sequence[int]:
        """Lets the engine write the rows; returns the rows that it has refused."""
        if prepared.requests is None:
            return range(first, stop)
        engine = get_engine()
        refused = engine.run(prepared.requests, first, stop, self._decoder.max_pixels)
        if engine.unindexed:
            self._stats.add_unindexed(engine.unindexed)
        return (first + np.flatnonzero(refused)).tolist()

    def _write(self, prepared: Prepared, row: int) -> None:
        rows, view, header = prepared.rows, prepared.views[row], prepared.headers[row]
        if header is None and self._encoded:
            header = self._header(view)
        if self._operations and self._crops(header):
            rows.write_box(row, self._crop(prepared, row, header))
            return
        pixels = upright(self._pixels(prepared.numbers[row], view, header), prepared.turned.get(row, 1))
        if self._kernel is not None and prepared.requests is not None:  # refused, but its shape is right
            raise MemoryError(f"the engine has no memory for an image of {pixels.shape}")
        if not self._operations:
            if pixels.shape != rows.array.shape[1:]:
                raise SizeError.between(pixels.shape, rows.array.shape[1:])
            rows.array[row] = pixels
        elif pixels.shape[:2] == tuple(prepared.sizes[row].tolist()):
            rows.write_image(row, pixels)
        elif not self._alone:
            raise wrong_header_error(prepared.sizes[row].tolist(), pixels.shape)
        else:
            # Its header says another size than it has: planned again, by what it has.
            found = np.array([pixels.shape[:2]], np.int64)
            alone = self._plan(found, prepared.ids[row : row + 1], prepared.seed, prepared.epoch)[-1]
            RowWriter(rows.pixels[row : row + 1], alone).write_image(0, pixels)

    def _note(self, errors: dict[int, Exception] | None, row: int, record: int, error: PackstoreError) -> int:
        if isinstance(error, CorruptRecordError):  # it names the record itself
            if errors is None:
                raise error
            errors[record] = error
            return row
        named = locate_error(error, self._reader, record, self._column.name)
        if errors is None:
            raise named from error
        errors[record] = named
        return row

    def _crops(self, header: Header) -> bool:
        """Tells if only a part of the image may be decoded."""
        return header is not None and self._decoder.decodes_parts(header)

    def _crop(self, prepared: Prepared, row: int, header: Header) -> NDArray[Any]:
        orientation = prepared.turned.get(row, 1)
        pixels = self._decoder.decode_crop(
            prepared.views[row],
            _stored_crop_box(prepared, row),
            info=header,
        )
        return for_torch(upright(pixels, orientation), self._column)

    def _indexes(self, prepared: Prepared) -> list[Any] | Places:
        """Returns the seek index of each image. An unreadable index is replaced by an invalid one, which the engine
        counts."""
        value = self._views.value
        try:
            column = self._views.mapped_ragged(SEEK_INDEX.name)
            if column is not None:
                return Places(column.places(prepared.ids & MASK), column)
            return [value(SEEK_INDEX.name, record) for record in prepared.numbers]
        except PackstoreError:
            return [_UNREADABLE] * len(prepared.numbers)

    def _find_orientations(self, views: Sequence[Any]) -> dict[int, int]:
        """Returns the EXIF orientations to apply, by row."""
        found = enumerate(map(read_orientation, views)) if self._exif_transpose else ()
        return {row: orientation for row, orientation in found if orientation != 1}

    def _sizes(
        self,
        records: Sequence[int],
        views: Sequence[Any],
        turned: Mapping[int, int],
        requests: Requests | None = None,
    ) -> tuple[NDArray[np.int64], Sequence[Header]]:
        """Returns height and width of each image, and the headers of files that the engine refuses. 0 x 0 and None
        for an unreadable header: decoding will raise."""
        headers: list[Header] = [None] * len(records)
        if self._has_shapes:
            # A store may say anything: decoding tells, as with headers.
            shapes = self._reader.values(self._column.shape_name, np.asarray(records))
            return np.maximum(shapes[:, :2].astype(np.int64), 1), headers
        if not self._encoded:
            shape = self._column.shape
            height_width = shape[1:] if self._column.layout == "CHW" else shape[:2]
            return np.tile(np.array(height_width, np.int64), (len(records), 1)), headers
        sizes = np.zeros((len(records), 2), np.int64) if requests is None else requests.sizes()
        for row in np.flatnonzero(sizes[:, 0] == 0).tolist():
            header = headers[row] = self._header(views[row])
            sizes[row] = (0, 0) if header is None else (header.height, header.width)
        if swapped := [row for row, orientation in turned.items() if swaps_sides(orientation)]:
            sizes[swapped] = sizes[swapped, ::-1]
        return sizes, headers

    def _header(self, view: Any) -> Header:
        """Parses the header of an image file; None if it cannot be read."""
        try:
            return sniff(bytes(view[:_HEAD]))
        except HeaderError:
            try:
                return sniff(view)
            except HeaderError:
                return None

    def _want(self, prepared: Prepared, requests: Requests | None, crops: Crops | None) -> Requests | None:
        """Fills in the requests to the engine; None if it cannot do them."""
        sizes, out = prepared.sizes, as_numpy(prepared.out)
        window = out.shape[2:] if self.planes else out.shape[1:3]
        if requests is None and (self._encoded or not self._for_engine):
            return None
        if crops is None:
            crops = Crops.full(sizes)
        if (crops.window[:, 2:] != window).any():
            return None  # the row that has another size says so
        if requests is None:
            requests = Requests(prepared.views, sizes, NUMPY_DTYPE[self._column.dtype])
        form = Form(self.planes, crops.pads, crops.fill) if self._finish is None else self._finish.form(crops)
        requests.want(crops.box, crops.size, crops.window, crops.flip, out, form, prepared.program, crops.sampling)
        return requests

    def _plan(self, sizes: NDArray[np.int64], ids: NDArray[np.int64], seed: int, epoch: int) -> list[Crops]:
        return plan_each(self._operations, sizes, Draws(seed, epoch, ids))

    def _pixels(self, record: int, view: Any, header: Header) -> NDArray[Any]:
        if self._encoded:
            return for_torch(self._decoder.decode(view, info=header), self._column)
        image = self._column
        shape = tuple(self._reader.value(image.shape_name, record).tolist()) if self._has_shapes else image.shape
        return for_torch(as_image_array(view, image, shape, "it"), image)


class _Images:
    """Some images of an array, each looked up on access."""

    def __init__(self, images: NDArray[Any], places: NDArray[np.int64]) -> None:
        self._images = images
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> NDArray[Any]:
        image: NDArray[Any] = self._images[self._places[number]]
        return image


def wrong_header_error(said: Sequence[int], found: Sequence[int]) -> DecodeError:
    """Returns the error for an image whose size differs from its header."""
    return DecodeError(f"its header says {said[0]}x{said[1]}, and it is {found[0]}x{found[1]}")


def _stored_crop_box(prepared: Prepared, row: int) -> Box:
    """Returns the crop box of a row in its image as stored, before EXIF orientation."""
    box, orientation = prepared.rows.boxes[row], prepared.turned.get(row, 1)
    return box if orientation == 1 else stored_box(box, orientation, *prepared.sizes[row].tolist())


def _major_faults() -> int:
    """Returns how often this thread has waited for a page from disk."""
    return resource.getrusage(_THREAD).ru_majflt if _THREAD is not None else 0
