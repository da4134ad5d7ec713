"""Looks: what is made of a record while it is decoded. A loader has one look, or one for each of its views."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import DecodeError, PackstoreError, UsageError
from packstore.core.manifest import Column, Manifest
from packstore.core.modes import Mode
from packstore.images.engine import MODES, MOST_SIDE, OutputFormat, Requests, get_engine
from packstore.images.programs import Program, join_programs
from packstore.training.augment.base import Crops, GeometricOperation, Size, Step
from packstore.training.augment.operations import ONE_SIZE, output_size, plan_each
from packstore.training.augment.program_operation import can_draw_program
from packstore.training.loader.normalizer import Normalizer
from packstore.training.pictures import TENSOR_DTYPES
from packstore.training.random_draws import Draws
from packstore.training.values import as_numpy

if TYPE_CHECKING:
    from packstore.training.augment.targets import Placement
    from packstore.training.augment.views import View

ANY_SIZE = 4096
"""Least height and width with which unreadable images are planned, if rows have none."""

OfRecord = tuple[NDArray[np.int64], int, int]
"""Id of a record, ``(1,)``, seed and epoch of its random numbers."""


@dataclass(frozen=True, eq=False)
class Look:
    """One or more crops of each record by one list of operations, which the engine makes in one pass.

    Attributes:
        form: Format of the crops in a buffer.
        operations: First operations of the user's list, which become crops.
        programs: Next operations, which the engine runs on the crops while they are in the CPU cache.
        view: The view; None for the look of a loader without views.
        count: Number of crops of a record.
    """

    form: RowFormat
    operations: Sequence[GeometricOperation] = ()
    programs: Sequence[Any] = ()
    view: View | None = None
    count: int = 1

    one_by_one: ClassVar[bool] = False
    """Operations run image by image, since they give images different sizes."""

    def row_shape(self, size: Size | None = None) -> tuple[int, ...]:
        """Returns the shape of a crop in a buffer.

        ``size``: common size of all images; None if the operations set one."""
        after = output_size(self.operations, size)
        assert after is not None
        return self.form.row_shape(after)

    def crop_places(self, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the numbers of all crops of the records ``records``."""
        return (records[:, None] * self.count + np.arange(self.count)).reshape(-1)

    def elements(self) -> int:
        """Returns the number of values of all crops of a record, if operations set their size."""
        return self.count * int(np.prod(self.row_shape()))

    def draw(self, sizes: NDArray[np.int64], ids: NDArray[np.int64], seed: int, epoch: int, out: torch.Tensor) -> Drawn:
        """Draws the operations for records whose images have ``sizes``, int64 ``(B, 2)``.

        ``out``: the look's rows of a batch buffer, or no rows.

        Raises :class:`UsageError` for an image too small for its crop."""
        if self.view is not None:
            seed, ids = self.view.derive_seed(seed), self.view.all_crop_ids(ids)
            sizes = np.repeat(sizes.clip(1), self.count, 0)
        draws = Draws(seed, epoch, ids)
        planned = plan_each(self.operations, sizes, draws)
        program = draw_program(self.programs, len(self.operations), draws, self.form.image_size(out.shape[1:]))
        return DrawnLook(self, planned[-1], program, out, planned[1] if self.operations else None)


def take_programs(operations: Sequence[Step], first: int) -> tuple[Any, ...]:
    """Returns the operations from index ``first`` on, up to the first that has no program."""
    return tuple(takewhile(can_draw_program, operations[first:]))


def draw_program(operations: Sequence[Any], first: int, draws: Draws, size: Size) -> Program | None:
    """Draws the random parameters of operations for records whose images have ``size``; None without operations.

    ``first``: index of the first one in the user's list, by which it draws."""
    if not operations:
        return None
    parts = [op.draw_program(draws.replace(stream=first + n), size) for n, op in enumerate(operations)]
    return join_programs(parts, len(draws))


def engine_takes(image: Column, operations: Sequence[GeometricOperation]) -> bool:
    """Tells if the engine can crop a column's arrays of one size by ``operations``."""
    if not engine_supports(image):
        return False
    sizes: list[Size | None] = [height_width(image)]
    for operation in operations:
        sizes.append(operation.size_after(sizes[-1]))
    return all(size is None or max(size) <= MOST_SIDE for size in sizes)


class Drawn(ABC):
    """A look whose operations are drawn for the records of a batch.

    Attributes:
        look: The look.
        out: Rows of a batch buffer, ``(B * count, *row)``; none for the plan of several batches.
        images: Each image, if images get memory of their own.
        first: Crops after the first operation; None without operations, and if there is :attr:`placement`.
        placement: Moves of the pixels by all operations; None if other columns plan them again.
        decoded_nbytes: Bytes of decoded images that get memory of their own.
        too_large: Errors of rows whose images cannot be made.
    """

    look: Look
    out: torch.Tensor
    images: Sequence[torch.Tensor | None] = ()
    first: Crops | None = None
    placement: Placement | None = None
    decoded_nbytes: int = 0
    too_large: Mapping[int, PackstoreError] = MappingProxyType({})

    @abstractmethod
    def set_outputs(self, requests: Requests) -> bool:
        """Adds crops, programs and destinations to requests to the engine, one for each image to write. Returns False
        if the engine cannot write all images."""

    @abstractmethod
    def write_pixels(self, decoded: Mapping[int, NDArray[Any]], column: Column, mode: Mode) -> dict[int, DecodeError]:
        """Writes what is made of decoded images, by row, that have the planned sizes.

        ``column``, ``mode``: of the pixels. Returns the errors of crops that would need too many pixels, by row."""

    @abstractmethod
    def write_alone(
        self, row: int, pixels: NDArray[Any], of_record: OfRecord | None, column: Column, mode: Mode
    ) -> None:
        """Writes what is made of one decoded image, as :meth:`write_pixels`.

        ``of_record``: what it is drawn by, if the image has another size than planned; None for as planned.

        Raises the error of :meth:`write_pixels`, and :class:`SizeError` for a crop of another size than its row."""

    def finish_rows(self, first: int, stop: int, skip: Collection[int]) -> Iterable[tuple[int, PackstoreError]]:
        """Runs what is left on the images of rows ``first`` … ``stop - 1`` except those in ``skip``, if
        :attr:`Look.one_by_one`. Yields the rows that fail with their errors."""
        raise NotImplementedError

    def run_deferred(self) -> None:
        """Runs operations that wait for the thread that asks for the batch, if :attr:`Look.one_by_one`."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class DrawnLook(Drawn):
    """A drawn look whose crops the engine makes. The crops of a record are adjacent.

    Attributes:
        crops: Crops of all records, ``(B * count)``.
        program: Pixel operations on each crop, ``(B * count, n)``; None for none.
    """

    look: Look
    crops: Crops
    program: Program | None
    out: torch.Tensor
    first: Crops | None = None

    @property
    def size(self) -> Size:
        """Height and width of a row."""
        return self.look.form.image_size(self.out.shape[1:])

    def select_records(self, first: int, stop: int, out: torch.Tensor | None = None) -> DrawnLook:
        """Returns the drawn look of the records ``first`` … ``stop - 1``; ``out``: their rows, by default those that
        they have."""
        rows = slice(first * self.look.count, stop * self.look.count)
        program = None if self.program is None else self.program[rows]
        first_crops = None if self.first is None else self.first.select_rows(rows)
        return DrawnLook(
            self.look, self.crops.select_rows(rows), program, self.out[rows] if out is None else out, first_crops
        )

    @property
    def _differs(self) -> NDArray[np.bool_]:
        """True for each crop that has another size than the rows."""
        differs: NDArray[np.bool_] = (self.crops.window[:, 2:] != self.size).any(1)
        return differs

    def write_pixels(self, decoded: Mapping[int, NDArray[Any]], column: Column, mode: Mode) -> dict[int, DecodeError]:
        """Writes all crops of decoded images: by the engine if it knows their mode, else by torch."""
        errors: dict[int, DecodeError] = {}
        places = self.look.crop_places(np.array([*decoded]))
        if column.layout == "CHW":  # only whole arrays come here
            for place, pixels in zip(places.tolist(), decoded.values(), strict=True):
                as_numpy(self.out)[place] = pixels
            return errors
        count, refused = self.look.count, np.ones(len(places), np.bool_)
        if mode in MODES:
            images = [np.ascontiguousarray(pixels) for pixels in decoded.values()]
            requests = Requests(images, np.array([pixels.shape[:2] for pixels in images], np.int64)).repeat(count)
            self.set_outputs(requests, places)
            refused = get_engine().run(requests, 0, len(places), 0)
        rows = [*decoded]
        for number in np.flatnonzero(refused).tolist():
            row = rows[number // count]
            try:
                self.write_without_engine(int(places[number]), decoded[row])
            except DecodeError as error:
                errors[row] = error
        return errors

    def write_alone(
        self, row: int, pixels: NDArray[Any], of_record: OfRecord | None, column: Column, mode: Mode
    ) -> None:
        """Writes all crops of one decoded image; draws them again for its size with ``of_record``."""
        alone: Drawn = self.select_records(row, row + 1)
        if of_record is not None:
            found = pixels.shape[1:] if column.layout == "CHW" else pixels.shape[:2]
            alone = self.look.draw(np.array([found]), *of_record, alone.out)
        assert isinstance(alone, DrawnLook)
        if alone._differs.any():
            raise SizeError.between(alone.crops.window[int(alone._differs.argmax()), 2:].tolist(), alone.size)
        for error in alone.write_pixels({0: pixels}, column, mode).values():
            raise error

    def set_outputs(self, requests: Requests, rows: NDArray[np.int64] | None = None) -> bool:
        """Adds crops, programs and destinations to requests to the engine, if all crops have the size of the rows.

        ``rows``: rows of the requests; None for all."""
        if self._differs.any():
            return False
        crops, program = self.crops, self.program
        if rows is not None:
            crops, program = crops.select_rows(rows), None if program is None else program[rows]
        fields = (crops.box, crops.size, crops.window, crops.flip)
        form = self.look.form.engine_format(crops)
        requests.set_outputs(*fields, as_numpy(self.out), form, program, crops.sampling, rows)
        return True

    def write_without_engine(self, row: int, pixels: NDArray[Any]) -> None:
        """Cuts the crop of a row out of an image, ``(H, W, C)``, and writes it into the row.

        Raises :class:`DecodeError` as :func:`~packstore.training.augment.resample.resize`."""
        from packstore.training.augment.cut import write_crop

        top, left, height, width = self.crops.box[row].tolist()
        made = np.empty((1, *self.size, pixels.shape[2]), pixels.dtype)
        box = np.ascontiguousarray(pixels[top : top + height, left : left + width])
        write_crop(box, self.crops, row, made[0])
        if self.program is not None:
            get_engine().augment(made, self.program[row : row + 1])
        self.look.form.write_rows(torch.from_numpy(made), self.out[row : row + 1])


BY_ENGINE = (torch.float32, torch.float16, torch.bfloat16)
"""Floating point types that the engine can write."""


@dataclass(frozen=True, eq=False)
class RowFormat:
    """Format of the rows of a batch buffer; a row is an image.

    Attributes:
        dtype: Dtype of the rows.
        planes: Rows are ``(C, h, w)``, not ``(h, w, C)``.
        normalizer: Converts bytes to floating point; None for uint8 rows, and for floating point stores.
        channels: Channels of a pixel.
    """

    dtype: torch.dtype
    planes: bool
    normalizer: Normalizer | None = None
    channels: int = 3

    def row_shape(self, size: Sequence[int]) -> tuple[int, int, int]:
        """Returns the shape of a row whose image has height and width ``size``."""
        height, width = size
        return (self.channels, height, width) if self.planes else (height, width, self.channels)

    def image_size(self, shape: Sequence[int]) -> tuple[int, int]:
        """Returns height and width of the image in a row of this shape."""
        height, width = shape[1:] if self.planes else shape[:2]
        return height, width

    def engine_format(self, crops: Crops) -> OutputFormat:
        """Describes this format for the engine: layout, normalisation, and the padding that ``crops`` need."""
        form = OutputFormat(self.planes, crops.pads, crops.fill)
        return form if self.normalizer is None else self.normalizer.add_to_format(form)

    def write_rows(self, pixels: torch.Tensor, out: torch.Tensor) -> None:
        """Normalises uint8 ``(B, h, w, C)`` on the CPU into ``out``, which has this format. Uses no other thread.

        Without a normalizer, copies pixels of any dtype."""
        target = out.permute(0, 2, 3, 1) if self.planes else out
        if self.normalizer is None:
            target.copy_(pixels)
        elif target.is_contiguous():
            self.normalizer.write_rows(pixels, target)
        else:
            values = torch.empty(pixels.shape, dtype=self.dtype, device="cpu")
            self.normalizer.write_rows(pixels, values)
            target.copy_(values)

    def as_images(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns rows as ``(B, C, h, w)``, a view."""
        return rows if self.planes else rows.permute(0, 3, 1, 2)


def final_format(
    manifest: Manifest, normalizer: Normalizer | None, channels_last: bool, mode: Mode
) -> RowFormat | None:
    """Returns the final format of a loader's images if the decoding threads can write it.

    Returns None if they cannot, or if the stored pixels are in that format already."""
    floats = manifest.holds_floats
    stored = getattr(torch, manifest.image.dtype) if floats else torch.uint8
    dtype = stored if normalizer is None else normalizer.dtype
    if mode not in MODES or dtype not in (torch.uint8, *BY_ENGINE) or (dtype == stored and channels_last != floats):
        return None
    return RowFormat(dtype, not channels_last, None if floats else normalizer, mode.channels)


def find_stored_format(column: Column, mode: Mode) -> RowFormat:
    """Returns the format of rows that hold pixels as stored. Image files are decoded to ``mode``."""
    floats = column.layout == "CHW"
    dtype = getattr(torch, column.dtype) if floats else TENSOR_DTYPES[mode.dtype]
    return RowFormat(dtype, floats, channels=mode.channels)


_CHANNELS = [mode.channels for mode in MODES]


def engine_supports(image: Column) -> bool:
    """Tells if the engine can process a column's stored pixels. They must be arrays of one shape, with 1 or 3 channels;
    whole numbers must be uint8."""
    if image.kind != "fixed" or image.layout is None or len(image.shape) != 3:
        return False
    return image.pixels in MODES if image.layout == "HWC" else image.shape[0] in _CHANNELS


def height_width(image: Column) -> Size:
    """Returns height and width of the images of a column whose arrays have one shape."""
    height, width = image.shape[1:] if image.layout == "CHW" else image.shape[:2]
    return height, width


def split_flat(values: torch.Tensor, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Returns consecutive parts of one-dimensional ``values`` as views of ``shapes``."""
    ends = np.cumsum([math.prod(shape) for shape in shapes]).tolist()
    return [values[start:stop].view(*shape) for start, stop, shape in zip([0, *ends], ends, shapes, strict=False)]


class SizeError(UsageError):
    """Error for images of different sizes in one batch."""

    @classmethod
    def between(cls, found: Sequence[int], expected: Sequence[int]) -> SizeError:
        """Returns the error for two unequal shapes that begin with height and width. It advises to crop or resize."""
        return cls(
            f"images differ in size ({found[0]}x{found[1]}, {expected[0]}x{expected[1]}), so they make no batch: "
            f"begin augment= with operations that give them one, {ONE_SIZE}; or put a function for images of any size "
            "into PerImage"
        )
