"""PIL images that are cropped, resized and mirrored before they are decoded: the engine makes only the final pixels.

torchvision's transforms call methods of a PIL image with the parameters that they have drawn. A :class:`PlannedImage`
notes crops, resizes and flips as a :class:`Cut`; whatever else needs its pixels gets them, as from any image of Pillow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from PIL.Image import Resampling, Transform, Transpose

from packstore.core.errors import DecodeError
from packstore.images.engine import MODES, OutputFormat, Requests, get_engine
from packstore.images.orientation import read_orientation
from packstore.images.programs import GEOMETRIC, Code, Program, new_program, step, warp_as_pillow
from packstore.stores import Reader
from packstore.training.augment.cut import Cut
from packstore.training.pictures import ImageReader, read_seek_indexes
from packstore.training.record_notes import note_records
from packstore.training.values import as_numpy
from packstore.training.worker_memory import allocate

_PILLOW_FILTERS: dict[int, int] = {
    Resampling.BILINEAR: 7,
    Resampling.BICUBIC: 8,
    Resampling.BOX: 3,
    Resampling.LANCZOS: 4,
}
"""Samplings of the engine that equal Pillow's, for images."""
_TORCH_FILTERS: dict[int, int] = {Resampling.BILINEAR: 0, Resampling.BICUBIC: 2}
"""Samplings of the engine that equal torch's with antialias, for tensors."""
_COLUMNS_FIRST = 16
"""Added to a sampling: vertically before horizontally."""
_MODE = "_mode" if isinstance(getattr(Image.Image, "mode", None), property) else "mode"
"""Pillow's attribute of an image's mode; Pillow before 10.1 has no property beside it."""
_BYTES = OutputFormat()
_MOST_PADDED = 8192
"""Longest side of an image that is planned with padding. Pillow makes larger ones, and warns of some."""


class PlannedImage(Image.Image):
    """Image of bytes whose crops, resizes and flips are planned. Its pixels are made when they are first needed.

    Attributes:
        source: Source of the pixels.
        cut: Crop, resize and mirroring, planned so far.
        is_upside_down: Mirrored top to bottom as the last step.
        is_tensor: It stands for a tensor: resizes then are torch's.
        colours: Steps after the cut: operations on colours, and warps that keep the size.
    """

    def __init__(
        self,
        source: PixelSource,
        cut: Cut,
        *,
        is_upside_down: bool = False,
        is_tensor: bool = False,
        colours: tuple[Program, ...] = (),
    ) -> None:
        super().__init__()
        self.source, self.cut, self.colours = source, cut, colours
        self.is_upside_down, self.is_tensor = is_upside_down, is_tensor
        setattr(self, _MODE, "RGB" if source.channels == 3 else "L")
        _, _, height, width = cut.window
        self._size = width, height

    def _add_cut(self, cut: Cut) -> PlannedImage:
        """Returns this image after a further cut."""
        moves = self.colours and cut != self._whole_cut
        own = cut
        if self.is_upside_down:
            # Mirroring top to bottom comes last, so the cut moves to the other side.
            (top, left, height, width), (row, column, rows, columns) = cut.box, cut.window
            own = cut._replace(
                box=(self.height - top - height, left, height, width),
                window=(cut.size[0] - row - rows, column, rows, columns),
            )
        composed = None if moves else self.cut.compose(own)
        # One cut cannot do both.
        if composed is None:
            return self._restart_from_pixels()._add_cut(cut)
        return self._copy_with(cut=composed)

    def _copy_with(self, **changes: Any) -> PlannedImage:
        """Returns a copy with some attributes replaced, without pixels."""
        image = PlannedImage.__new__(PlannedImage)  # several times an image, so without __init__
        vars(image).update(vars(self), _im=None, info={}, **changes)
        _, _, height, width = image.cut.window
        image._size = width, height
        return image

    def _restart_from_pixels(self) -> PlannedImage:
        """Returns an image that begins with the pixels of this one."""
        return PlannedImage(
            PixelSource(self.source.channels, self.make_pixels()), self._whole_cut, is_tensor=self.is_tensor
        )

    @property
    def is_made(self) -> bool:
        """True if the pixels were made. They may have been changed since."""
        return self._im is not None

    @property
    def _whole_cut(self) -> Cut:
        """Cut that shows the whole image as it is."""
        return Cut.full(self.height, self.width)

    def as_tensor(self) -> PlannedImage:
        """Returns this image as one that stands for a tensor."""
        return self._copy_with(is_tensor=True)

    def recolour(self, code: Code, *parameters: float, flags: int = 0) -> PlannedImage:
        """Returns this image, of 3 channels, after an operation on its colours."""
        return self.run_steps(step(1, code, *parameters, flags=flags))

    def run_steps(self, *steps: Program) -> PlannedImage:
        """Returns this image, of 3 channels, after steps."""
        return self._copy_with(colours=(*self.colours, *steps))

    def turn_upright(self) -> PlannedImage:
        """Returns this image, of 3 channels, with its mirroring top to bottom as one of the steps."""
        return self._copy_with(is_upside_down=False).recolour(Code.FLIP) if self.is_upside_down else self

    def make_pixels(self) -> NDArray[np.uint8]:
        """Makes the pixels, ``(H, W, C)``."""
        if self.is_made:
            made: NDArray[np.uint8] = np.asarray(self).reshape(self.height, self.width, self.source.channels)
            return made
        pixels: NDArray[np.uint8] = as_numpy(make_rows([self]))[0]
        return pixels

    def load(self) -> Any:
        """Makes the pixels unless they are there, as Pillow's image files do."""
        if self._im is None:
            pixels = self.make_pixels()
            self._im = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0]).im
        return super().load()

    @property
    def im(self) -> Any:
        """Pillow's own image, made when it is first needed."""
        if self._im is None:
            self.load()
        return self._im

    @im.setter
    def im(self, im: Any) -> None:
        self._im = im

    def copy(self) -> Image.Image:
        return super().copy() if self.is_made else self._copy_with()

    def convert(self, mode: str | None = None, *values: Any, **options: Any) -> Image.Image:
        changes = mode != self.mode or values or options
        return super().convert(mode, *values, **options) if changes else self.copy()

    def crop(self, box: tuple[float, float, float, float] | None = None) -> Image.Image:
        width, height = self.size
        if box is None or self.is_made or any(int(edge) != edge for edge in box):
            return super().crop(box)
        left, top, right, bottom = map(int, box)
        size = bottom - top, right - left
        if 0 <= left < right <= width and 0 <= top < bottom <= height:
            return self._add_cut(Cut((top, left, *size), size, (0, 0, *size)))
        if not 0 < min(size) <= max(size) <= _MOST_PADDED:
            return super().crop(box)
        return self._add_cut(self._whole_cut._replace(window=(top, left, *size)))  # zeros surround the image

    def resize_crop(self, top: int, left: int, height: int, width: int, size: tuple[int, int], resample: int) -> Any:
        """Crops, and resizes to a height and width, in one step."""
        sampling = None if self.is_tensor or self.is_made else self._find_sampling(height, width, size, resample)
        if sampling is None or resample == Resampling.BOX or min(top, left) < 0 or (height, width) == size:
            return self.crop((left, top, left + width, top + height)).resize(size[::-1], resample)
        return self._add_cut(Cut((top, left, height, width), size, (0, 0, *size), sampling=sampling))

    def _find_sampling(self, height: int, width: int, target: tuple[int, int], resample: int) -> int | None:
        """Returns the engine's sampling that resizes as Pillow or torch do; None if it has none."""
        filters = _TORCH_FILTERS if self.is_tensor else _PILLOW_FILTERS
        columns_first = None if self.is_tensor else find_order()
        if resample not in filters or (columns_first is None and not self.is_tensor):
            return None
        extra = _COLUMNS_FIRST if columns_first is not None and columns_first(height, width, target) else 0
        return filters[resample] + extra

    def resize(
        self,
        size: Any,
        resample: int | None = None,
        box: tuple[float, float, float, float] | None = None,
        reducing_gap: float | None = None,
    ) -> Image.Image:
        resample = Resampling.BICUBIC if resample is None else resample
        width, height = self.size
        target = int(size[1]), int(size[0])
        sampling = self._find_sampling(height, width, target, resample)
        if self.is_made or sampling is None or box is not None or reducing_gap is not None or min(size) < 1:
            return super().resize(size, resample, box, reducing_gap)
        if target == (height, width):
            return self.copy()
        cut = Cut((0, 0, height, width), target, (0, 0, *target), sampling=sampling)
        # Pillow's box is not symmetric: mirroring must come first.
        first = resample == Resampling.BOX and (self.cut.flip or self.is_upside_down)
        return (self._restart_from_pixels() if first else self)._add_cut(cut)

    def transpose(self, method: Any) -> Image.Image:
        if not self.is_made and method == Transpose.ROTATE_180:
            return self.transpose(Transpose.FLIP_LEFT_RIGHT).transpose(Transpose.FLIP_TOP_BOTTOM)
        side = self.width if self.width == self.height and not self.is_made else 0
        quarters = {Transpose.ROTATE_90: (0, -1, side, 1, 0, 0), Transpose.ROTATE_270: (0, 1, 0, -1, 0, side)}
        if side and method in quarters:
            return self.transform(self.size, Transform.AFFINE, quarters[method])
        if self.is_made or method not in (Transpose.FLIP_LEFT_RIGHT, Transpose.FLIP_TOP_BOTTOM):
            return super().transpose(method)
        if any(one["code"][0, 0] in GEOMETRIC for one in self.colours):  # mirroring before them gives other pixels
            return self.recolour(Code.MIRROR if method == Transpose.FLIP_LEFT_RIGHT else Code.FLIP)
        if method == Transpose.FLIP_TOP_BOTTOM:
            return self._copy_with(is_upside_down=not self.is_upside_down)
        return self._copy_with(cut=self.cut._replace(flip=not self.cut.flip))

    def transform(
        self,
        size: Any,
        method: Any,
        data: Any = None,
        resample: int = Resampling.NEAREST,
        fill: int = 1,
        fillcolor: Any = None,
    ) -> Image.Image:
        nearest = method == Transform.AFFINE and resample == Resampling.NEAREST and data is not None and len(data) == 6
        colour = (0, 0, 0) if fillcolor is None else fillcolor
        keeps = tuple(size) == self.size and self.mode == "RGB" and not self.is_made
        if nearest and keeps and _is_colour(colour) and warps_like_pillow():
            warp = warp_as_pillow(data, self.height, self.width, colour)
            if warp is not None:
                return self.turn_upright().run_steps(warp)
        return super().transform(size, method, data, resample, fill, fillcolor)


class PixelSource(NamedTuple):
    """Image from which the engine cuts.

    Attributes:
        channels: 3, or 1 for gray.
        pixels: All pixels, ``(H, W, C)`` and contiguous, if they are in memory.
        requests: Otherwise requests to the engine for several images, among them this one.
        row: Index of this image's request.
        max_pixels: Most pixels of an image file.
        read_whole: Reads all pixels, if the engine refuses a file.
    """

    channels: int
    pixels: NDArray[np.uint8] | None = None
    requests: Requests | None = None
    row: int = 0
    max_pixels: int = 0
    read_whole: Callable[[], NDArray[np.uint8]] | None = None


def plan_pixels(pixels: NDArray[np.uint8]) -> PlannedImage:
    """Returns an image whose pixels are in memory, ``(H, W)`` or ``(H, W, C)``."""
    pixels = np.ascontiguousarray(pixels if pixels.ndim == 3 else pixels[..., None])
    height, width, channels = pixels.shape
    return PlannedImage(PixelSource(channels, pixels), Cut.full(height, width))


class PlannedBatch:
    """Images of several records of a store, to be planned.

    Attributes:
        sizes: Height and width of each image; 0 and 0 if the engine does not know them.
    """

    def __init__(self, pictures: ImageReader, reader: Reader, records: NDArray[np.int64], max_pixels: int) -> None:
        """
        Args:
            pictures: Reader of whole images.
            reader: The store.
            records: Numbers of the records.
            max_pixels: Most pixels of an image file.

        Raises:
            PackstoreError: A record cannot be read.
        """
        self._pictures, self._reader, self._records, self._max_pixels = pictures, reader, records.tolist(), max_pixels
        self._requests: Requests | None = None
        self.sizes = np.zeros((len(records), 2), np.int64)
        column = pictures.column
        if not can_plan(pictures) or not len(records):
            return
        views = [reader.view(record) for record in self._records]
        if column.layout is not None:
            shapes = (
                reader.values(column.shape_name, records)
                if column.kind == "ragged"
                else np.tile(np.array(column.shape, np.int64), (len(records), 1))
            )
            self.sizes = shapes[:, :2].astype(np.int64)
            self._requests = Requests(views, self.sizes)
            return
        if pictures.exif_transpose:  # the engine turns no images
            views = [view if read_orientation(view) == 1 else b"" for view in views]
        self._requests = Requests(views, indexes=read_seek_indexes(reader.unchecked_reader, column, records))
        self.sizes = self._requests.read_sizes()
        self.sizes[self.sizes.prod(1) > max_pixels] = 0

    def open(self, row: int) -> Any:
        """Returns the image in ``row`` as a PIL image, planned if possible. None for a missing image.

        Raises :class:`DecodeError` for an image that must be decoded first, and cannot be.
        """
        if self._requests is None:
            return self._pictures.read("pil", self._reader, self._records[row])
        height, width = self.sizes[row].tolist()
        if not height:
            return plan_pixels(self._read_pixels(row))
        channels, read_whole = self._pictures.mode.channels, partial(self._read_pixels, row)
        source = PixelSource(channels, None, self._requests, row, self._max_pixels, read_whole)
        return PlannedImage(source, Cut.full(height, width))

    def note_record(self, error: Exception, row: int) -> None:
        """Adds a note that names the record in ``row`` to an exception of a user's function."""
        note_records(error, self._reader, np.array([self._records[row]]))

    def _read_pixels(self, row: int) -> NDArray[np.uint8]:
        """Reads the whole image in ``row`` by the dataset's decoder."""
        pixels: NDArray[np.uint8] = self._pictures.read_stored_pixels(self._reader, self._records[row])
        return pixels


def can_plan(pictures: ImageReader) -> bool:
    """Tells if the engine can make parts of a column's images: they have 8 bits, RGB or gray, in all records."""
    column = pictures.column
    by_engine = column.layout == "HWC" or (column.layout is None and pictures.decoder.has_engine)
    return by_engine and not column.nullable and pictures.mode in MODES


def make_rows(
    images: Sequence[PlannedImage], form: OutputFormat = _BYTES, dtype: torch.dtype = torch.uint8
) -> torch.Tensor:
    """Makes the pixels of images of one size and number of channels as rows of one tensor, in the format ``form``.

    The engine makes the images of a batch in one call without the GIL. Raises :class:`DecodeError` for an image that
    cannot be decoded.
    """
    height, width = images[0].cut.window[2:]
    channels = images[0].source.channels
    shape = (channels, height, width) if form.planes else (height, width, channels)
    rows = allocate((len(images), *shape), dtype)
    array = as_numpy(rows)
    together: dict[int, list[int]] = {}
    for number, image in enumerate(images):
        together.setdefault(id(image.source.requests), []).append(number)
    for numbers in together.values():
        _make_rows_together([images[number] for number in numbers], array, numbers, form)
    for number, image in enumerate(images):
        if image.is_upside_down:
            array[number] = np.flip(array[number], 1 if form.planes else 0).copy()
    return rows


def _make_rows_together(
    images: Sequence[PlannedImage], array: NDArray[Any], numbers: list[int], form: OutputFormat
) -> None:
    """Makes the rows ``numbers`` of ``array``, of images whose requests belong together."""
    everything = len(numbers) == len(array)
    out = array if everything else np.empty((len(numbers), *array.shape[1:]), array.dtype)
    sources = [image.source for image in images]
    shared = sources[0].requests
    if shared is not None:
        requests = shared.take_rows([source.row for source in sources])
    else:
        pixels: list[Any] = [source.pixels for source in sources]
        requests = Requests(pixels, np.array([each.shape[:2] for each in pixels]))
    boxes, sizes, windows, flips, samplings = (
        np.array([getattr(image.cut, name) for image in images])
        for name in ("box", "size", "window", "flip", "sampling")
    )
    requests.set_outputs(boxes, sizes, windows, flips, out, form, _write_program(images), samplings)
    refused = get_engine().run(requests, 0, len(images), images[0].source.max_pixels)
    # The engine refuses some files. The dataset's decoder reads them whole.
    for number in np.flatnonzero(refused).tolist():
        source = images[number].source
        if source.read_whole is None:
            height, width = images[number].cut.size
            raise DecodeError(f"an image of {height}x{width} pixels cannot be made: it is too large, or memory is full")
        whole = images[number]._copy_with(source=plan_pixels(source.read_whole()).source)
        _make_rows_together([whole], out[number : number + 1], [0], form)
    if not everything:
        array[numbers] = out


def _write_program(images: Sequence[PlannedImage]) -> Program | None:
    """Returns the program of images, padded to the longest; None if no colours change."""
    longest = max(len(image.colours) for image in images)
    if not longest:
        return None
    program = new_program(len(images), longest)
    for row, image in zip(program, images, strict=True):
        for number, one in enumerate(image.colours):
            row[number] = one[0, 0]
    return program


def _is_colour(fill: Any) -> bool:
    """Tells if a fill of Pillow is three bytes."""
    return isinstance(fill, tuple) and len(fill) == 3 and all(type(v) is int and 0 <= v <= 255 for v in fill)


@functools.cache
def warps_like_pillow() -> bool:
    """Tells if the engine moves pixels by a matrix as this Pillow does."""
    # By trial: builds of Pillow differ.
    noise = np.random.default_rng(0).integers(0, 256, (61, 83, 3), np.uint8)
    image, planned = Image.fromarray(noise), plan_pixels(noise)
    for matrix in ((0.83, 0.21, 2.3, -0.37, 1.19, 4.9), (0.7, 0, -5.2, 0, 1 / 0.9, 3.7)):
        warp = warp_as_pillow(matrix, 61, 83, (7, 8, 9))
        expected = image.transform(image.size, Transform.AFFINE, matrix, fillcolor=(7, 8, 9))
        if warp is None or (planned.run_steps(warp).make_pixels() != np.asarray(expected)).any():
            return False
    return True


@functools.cache
def find_order() -> Callable[[int, int, tuple[int, int]], bool] | None:
    """Returns a function of height, width and new size that tells if Pillow resizes vertically first.

    Returns None if this Pillow resizes otherwise than the engine, as its variant for SIMD does.
    """
    # By trial: builds of Pillow differ.
    noise = np.random.default_rng(0).integers(0, 256, (64, 9, 3), np.uint8)
    expected = np.asarray(Image.fromarray(noise).resize((7, 8), Resampling.BILINEAR))
    for extra, order in ((_COLUMNS_FIRST, _is_columns_first), (0, _is_never_columns_first)):
        cut = Cut((0, 0, 64, 9), (8, 7), (0, 0, 8, 7), sampling=_PILLOW_FILTERS[Resampling.BILINEAR] + extra)
        if (as_numpy(make_rows([plan_pixels(noise)._add_cut(cut)]))[0] == expected).all():
            return order
    return None


def _is_columns_first(height: int, width: int, size: tuple[int, int]) -> bool:
    """Tells if Pillow 13 resizes vertically first: if many more rows than columns are dropped."""
    return height > size[0] and height - size[0] > 2 * (width - size[1])


def _is_never_columns_first(height: int, width: int, size: tuple[int, int]) -> bool:
    """Returns False: Pillow before 13 resizes horizontally first."""
    return False
