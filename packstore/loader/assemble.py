"""From records to rows of a batch buffer: read, decode, crop and resize, in worker threads.

Everything here runs under the GIL except the decoding and resizing itself, so it is kept short: work comes in slices of
a batch, and what can be computed for a whole slice at once is.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.augment import Frames, Geometry, output_size, plan_ops, render
from packstore.counter import Draws
from packstore.decoders import Decoder
from packstore.errors import CorruptRecordError, DecodeError, PackstoreError, UsageError, printable
from packstore.loader.alone import is_alone
from packstore.loader.stats import Stats
from packstore.manifest import ENCODED, Manifest
from packstore.seekable import Index, read_index
from packstore.sniff import HeaderError, ImageInfo, sniff, too_many_pixels
from packstore.stores.base import Reader, shaped

# The kernel behind interpolate(antialias=True), with an output to write into and without interpolate's checks, which
# under the GIL cost more than this call.
_resize: Any = torch._C._nn._upsample_bilinear2d_aa
_HEAD = 2048  # where nearly every frame header is
SERIAL_ELEMENTS = 32768
"""torch shares work out to its threads from this many elements on, see :mod:`packstore.loader.alone`. Where a thread
does not work alone, pieces are kept smaller."""

# Waiting for each page of a record in turn, a cold store is read at a third of the speed; asking for records beforehand
# halves that of a warm one. So it is done for a while where pages were waited for.
_COLD_SLICES = 32
try:
    import resource

    _THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)  # Linux
except ImportError:  # Windows
    _THREAD = None

_TORCH_DTYPE = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


Header = Index | ImageInfo | None


class SizeError(UsageError):
    """Images of differing sizes that no operation brings to one."""


class Assembler:
    """Writes records into rows of batch buffers; used from many threads.

    Attributes:
        shape: Shape of a row: ``(H, W, 3)`` uint8, or ``(3, H, W)`` of a floating point store.
        dtype: Its dtype.
    """

    def __init__(
        self,
        reader: Reader,
        decoder: Decoder,
        operations: Sequence[Geometry],
        stats: Stats,
        dct_scaling: bool = False,
    ) -> None:
        """
        Args:
            reader: The open store.
            decoder: For stores of image files.
            operations: The first operations of the user's list, to be run here.
            stats: Where the time goes.
            dct_scaling: See :class:`packstore.loader.options.LoaderOptions`.

        Raises:
            UsageError: The images have no common size, and the operations give them none.
        """
        manifest = reader.manifest
        self._reader = reader
        self._decoder = decoder
        self._operations = operations
        self._stats = stats
        self._dct_scaling = dct_scaling
        self._encoded = manifest.encoding in ENCODED
        self._shapes = None if self._encoded or manifest.image.kind == "fixed" else reader.fixed("shape")
        self.shape, self.dtype = self._row(manifest)
        self._cold = 0  # slices for which the system is asked to fetch all records beforehand
        self._whole: NDArray[Any] | None = None
        apart = manifest.format == "lmdb" or bool(manifest.shards) or reader.checks_records
        if not operations and manifest.image.kind == "fixed" and not apart:
            self._whole = reader.fixed("image")

    def _row(self, manifest: Manifest) -> tuple[tuple[int, ...], torch.dtype]:
        image = manifest.image
        if image.layout == "CHW":
            return image.shape, _TORCH_DTYPE[image.dtype]
        size = image.shape[:2] if image.kind == "fixed" else None
        height_width = output_size(self._operations, (size[0], size[1]) if size else None)
        if height_width is None and any(not operation.mirrors for operation in self._operations):
            raise UsageError(
                "the first operations do not bring the images to one size: end them with RandomResizedCrop, CenterCrop "
                "or RandomCrop"
            )
        if height_width is None:
            # Nothing brings them to one size; they may have one all the same, which every image is held to.
            view = self._reader.view(0)
            if self._shapes is not None:
                height_width = self._pixels(0, view, None).shape[:2]
            else:
                first = self._sizes([0], [view])[0][0].tolist()
                reason = too_many_pixels(first[1], first[0], self._decoder.max_pixels)
                if reason is not None:
                    raise DecodeError(f"record 0 ({self._key(0)}) of {self._reader.path}: {reason}")
                height_width = first[0], first[1]
        return (*height_width, 3), torch.uint8

    def fill(
        self, out: torch.Tensor, records: NDArray[np.int64], seed: int, epoch: int, errors: dict[int, Exception] | None
    ) -> list[int]:
        """Writes ``records`` into the rows of ``out``.

        Args:
            out: Rows of a batch buffer, ``(B, *shape)``.
            records: Record numbers, ``(B,)``.
            seed: For random operations.
            epoch: Likewise.
            errors: Where failed records are noted with their errors; None to raise the first.

        Returns:
            The rows that failed.

        Raises:
            DecodeError: A record cannot be decoded; names the record and its key.
        """
        start = perf_counter()
        if self._whole is not None:
            np.take(self._whole, records, axis=0, out=_numpy(out), mode="clip")
            self._stats.add("read", perf_counter() - start)
            return []
        numbers = records.tolist()
        faults = _major_faults()
        fetch = self._cold > 0
        self._cold -= fetch
        failed: list[int] = []
        views: list[Any] = []
        for row, record in enumerate(numbers):
            try:
                view = self._reader.view(record)
                if fetch:
                    self._reader.will_need(record, view)
                views.append(view)
            except PackstoreError as error:
                failed.append(self._note(errors, row, record, error))
                views.append(b"")
        read = perf_counter()
        sizes, headers = self._sizes(numbers, views)
        frames = self._plan(sizes, records, seed, epoch) if self._operations else None
        rows = _numpy(out)
        for row, record in enumerate(numbers):
            if row in failed:
                continue
            try:
                header = headers[row]
                if frames is not None and self._crops(header):
                    place_box(self._crop(views[row], header, frames, row), frames, row, rows[row])
                    continue
                pixels = self._pixels(record, views[row], header)
                if frames is None:
                    if pixels.shape != self.shape:
                        raise self._other_size(pixels.shape)
                    rows[row] = pixels
                elif pixels.shape[:2] == tuple(sizes[row].tolist()):
                    place(pixels, frames, row, rows[row])
                else:
                    # Its header says another size than it has: planned again, by what it has.
                    found = np.array([pixels.shape[:2]], np.int64)
                    alone = self._plan(found, records[row : row + 1], seed, epoch)
                    place(pixels, alone, 0, rows[row])
            except SizeError:
                raise
            except PackstoreError as error:
                failed.append(self._note(errors, row, record, error))
        if _major_faults() - faults > len(numbers):
            self._cold = _COLD_SLICES
        self._stats.add("read", read - start)
        self._stats.add("decode", perf_counter() - read)
        return failed

    def _note(self, errors: dict[int, Exception] | None, row: int, record: int, error: PackstoreError) -> int:
        if isinstance(error, CorruptRecordError):  # it names the record itself
            if errors is None:
                raise error
            errors[record] = error
            return row
        named = DecodeError(f"record {record} ({self._key(record)}) of {self._reader.path}: {error}")
        if errors is None:
            raise named from error
        errors[record] = named
        return row

    def _key(self, record: int) -> str:
        try:
            return printable(self._reader.key(record))
        except PackstoreError:
            return "its key is damaged, too"

    def _crops(self, header: Header) -> bool:
        """Whether a part of the image may be all that is decoded."""
        return isinstance(header, Index) or (
            isinstance(header, ImageInfo)
            and (self._decoder.decodes_parts(header) or (self._dct_scaling and header.kind == "jpeg"))
        )

    def _crop(self, view: Any, header: Header, frames: Frames, row: int) -> NDArray[np.uint8]:
        top, left, height, width = frames.box[row].tolist()
        rows, columns = frames.size[row].tolist()
        return self._decoder.decode_crop(
            view,
            (top, left, height, width),
            index=header if isinstance(header, Index) else None,
            info=header if isinstance(header, ImageInfo) else None,
            target=(rows, columns) if self._dct_scaling else None,
        )

    def _sizes(self, records: Sequence[int], views: Sequence[Any]) -> tuple[NDArray[np.int64], Sequence[Header]]:
        """Height and width of each image, and of image files the seek index or else the header. Where a header cannot
        be read, 1 x 1 and None: decoding will tell."""
        headers: list[Header] = [None] * len(records)
        if self._shapes is not None:
            # A store may say anything: decoding tells, as with headers.
            return np.maximum(self._shapes[np.asarray(records), :2].astype(np.int64), 1), headers
        if not self._encoded:
            height, width, _ = self._reader.manifest.image.shape
            return np.tile(np.array([height, width], np.int64), (len(records), 1)), headers
        sizes = [(1, 1)] * len(records)
        for row, view in enumerate(views):
            index = headers[row] = read_index(view)
            if index is not None:
                sizes[row] = index.height, index.width
                continue
            try:
                info = headers[row] = sniff(bytes(view[:_HEAD]))
            except HeaderError:
                try:
                    info = headers[row] = sniff(view)
                except HeaderError:
                    continue
            sizes[row] = info.height, info.width
        return np.array(sizes, np.int64), headers

    def _plan(self, sizes: NDArray[np.int64], records: NDArray[np.int64], seed: int, epoch: int) -> Frames:
        return plan_ops(self._operations, sizes, Draws(seed, epoch, records))

    def _pixels(self, record: int, view: Any, header: Header) -> NDArray[Any]:
        if self._encoded:
            return self._decoder.decode(view, info=header if isinstance(header, ImageInfo) else None)
        image = self._reader.manifest.image
        shape = image.shape if self._shapes is None else tuple(self._shapes[record].tolist())
        return shaped(view, image, shape, "it")

    def _other_size(self, shape: tuple[int, ...]) -> SizeError:
        return SizeError(
            f"images differ in size ({shape[0]}x{shape[1]}, {self.shape[0]}x{self.shape[1]}), so they make no batch: "
            "add an operation that gives them one, for example augment=[RandomResizedCrop(224)]"
        )


def _major_faults() -> int:
    """Pages that this thread has waited for the disk for."""
    return resource.getrusage(_THREAD).ru_majflt if _THREAD is not None else 0


def place(pixels: NDArray[Any], frames: Frames, index: int, row: NDArray[Any]) -> None:
    """Cuts an image as frame ``index`` says and writes it into ``row``.

    Every torch operation, views too, gives the GIL away and has to get it back, for which threads wait in turn; so
    views are made with numpy.

    Args:
        pixels: The whole image, uint8 ``(H, W, 3)``.
        frames: numpy frames.
        index: Which of them.
        row: uint8 ``(h, w, 3)``, contiguous.
    """
    top, left, height, width = frames.box[index].tolist()
    place_box(pixels[top : top + height, left : left + width], frames, index, row)


def place_box(pixels: NDArray[Any], frames: Frames, index: int, row: NDArray[Any]) -> None:
    """:func:`place`, of the pixels of the frame's box alone; they may be scaled down already."""
    size = frames.size[index].tolist()
    if size == frames.box[index, 2:].tolist() or frames.window[index].tolist() != [0, 0, *size]:
        render(np.ascontiguousarray(pixels), frames, index, row)
        return
    flip = frames.flip is not None and bool(frames.flip[index])
    if is_alone():
        # To mirror before resizing or after gives the same bytes. Here it is no more than the copy that resizing makes
        # of what is not contiguous.
        source = _planes(pixels)
        _resize(torch.flip(source, (3,)) if flip else source, size, False, None, None, out=_planes(row))
        return
    # To mirror before resizing or after gives the same bytes; so the smaller of the two is mirrored.
    flip_first = flip and pixels.size < row.size
    # torch would copy what is not contiguous with all its threads; numpy does it on this one.
    crop = np.array(pixels, order="C") if flip_first else np.ascontiguousarray(pixels)
    if flip_first:
        mirror_row(crop)
    _resize(_planes(crop), size, False, None, None, out=_planes(row))
    if flip and not flip_first:
        mirror_row(row)


def mirror_row(row: NDArray[Any]) -> None:
    """Mirrors ``row``, uint8 ``(H, W, 3)``, left to right in place."""
    lines = max(1, SERIAL_ELEMENTS // (row.shape[1] * row.shape[2]))
    for first in range(0, row.shape[0], lines):
        part = torch.from_numpy(row[first : first + lines])
        part.copy_(torch.flip(part, (1,)))


def _planes(pixels: NDArray[Any]) -> torch.Tensor:
    """uint8 ``(h, w, 3)`` as a tensor ``(1, 3, h, w)``, channels last, over the same memory; not to be written to where
    ``pixels`` is not."""
    # from_numpy warns of arrays that cannot be written to.
    return torch.from_numpy((pixels if pixels.flags.writeable else pixels.copy()).transpose(2, 0, 1)[None])


def _numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor's memory as numpy has it (bfloat16 as bits)."""
    array: NDArray[Any] = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array
