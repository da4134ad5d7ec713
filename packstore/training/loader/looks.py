"""Looks: what is made of a record while it is decoded. A loader has one look, or one for each of its views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.manifest import Column
from packstore.images.engine import MOST_SIDE, Requests, get_engine
from packstore.images.programs import Program, join_programs
from packstore.training.augment.base import Crops, GeometricOperation, Size, Step
from packstore.training.augment.operations import output_size, plan_each, write_crop
from packstore.training.augment.program_operation import can_draw_program
from packstore.training.loader.rows import RowFormat, SizeError, engine_supports, height_width
from packstore.training.random_draws import Draws
from packstore.training.values import as_numpy

if TYPE_CHECKING:
    from packstore.training.augment.views import View


@dataclass(frozen=True, eq=False)
class Look:
    """One or more crops of each record by one list of operations, which the engine makes in one pass.

    Attributes:
        form: Format of the crops in a buffer.
        operations: First operations of the user's list, which become crops.
        programs: Next operations, which the engine runs on the crops while they are in the CPU cache.
        view: The view; None for the look of a loader without views.
    """

    form: RowFormat
    operations: Sequence[GeometricOperation] = ()
    programs: Sequence[Any] = ()
    view: View | None = None

    @property
    def count(self) -> int:
        """Number of crops of a record."""
        return 1 if self.view is None else self.view.count

    def row_shape(self, size: Size | None = None) -> tuple[int, ...]:
        """Returns the shape of a crop in a buffer, of images of ``size``; None for any."""
        after = output_size(self.operations, size)
        assert after is not None
        return self.form.row_shape(after)

    def crop_places(self, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the numbers of all crops of the records ``records``."""
        return (records[:, None] * self.count + np.arange(self.count)).reshape(-1)

    def elements(self) -> int:
        """Returns the number of values of all crops of a record, if operations set their size."""
        return self.count * int(np.prod(self.row_shape()))

    def draw(
        self, sizes: NDArray[np.int64], ids: NDArray[np.int64], seed: int, epoch: int, out: torch.Tensor
    ) -> tuple[DrawnLook, Crops | None]:
        """Draws the operations for records whose images have ``sizes``, int64 ``(B, 2)``.

        ``out``: the look's rows of a batch buffer, or no rows.

        Returns the drawn look, and the crops after the first operation; None without operations. Raises
        :class:`UsageError` for an image too small for its crop."""
        if self.view is not None:
            seed, ids = self.view.derive_seed(seed), self.view.all_crop_ids(ids)
            sizes = np.repeat(sizes.clip(1), self.count, 0)
        draws = Draws(seed, epoch, ids)
        planned = plan_each(self.operations, sizes, draws)
        program = draw_program(self.programs, len(self.operations), draws, self.form.image_size(out.shape[1:]))
        return DrawnLook(self, planned[-1], program, out), planned[1] if self.operations else None


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


@dataclass(frozen=True, eq=False)
class DrawnLook:
    """A look whose operations are drawn for the records of a batch. The crops of a record are adjacent.

    Attributes:
        look: The look.
        crops: Crops of all records, ``(B * count)``.
        program: Pixel operations on each crop, ``(B * count, n)``; None for none.
        out: Rows of a batch buffer, ``(B * count, *row)``; none for the plan of several batches.
    """

    look: Look
    crops: Crops
    program: Program | None
    out: torch.Tensor

    @property
    def size(self) -> Size:
        """Height and width of a row."""
        return self.look.form.image_size(self.out.shape[1:])

    def select_records(self, first: int, stop: int, out: torch.Tensor | None = None) -> DrawnLook:
        """Returns the drawn look of the records ``first`` … ``stop - 1``; ``out``: their rows, by default those that
        they have."""
        rows = slice(first * self.look.count, stop * self.look.count)
        program = None if self.program is None else self.program[rows]
        return DrawnLook(self.look, self.crops.select_rows(rows), program, self.out[rows] if out is None else out)

    def has_other_sizes(self) -> bool:
        """Tells if a crop has another size than the rows."""
        return bool((self.crops.window[:, 2:] != self.size).any())

    def set_outputs(self, requests: Requests, rows: NDArray[np.int64] | None = None) -> None:
        """Adds crops, programs and destinations to requests to the engine. ``rows``: rows of the requests; None for
        all."""
        crops, program = self.crops, self.program
        if rows is not None:
            crops, program = crops.select_rows(rows), None if program is None else program[rows]
        fields = (crops.box, crops.size, crops.window, crops.flip)
        form = self.look.form.engine_format(crops)
        requests.set_outputs(*fields, as_numpy(self.out), form, program, crops.sampling, rows)

    def write_without_engine(self, row: int, pixels: NDArray[Any]) -> None:
        """Cuts the crop of a row out of an image, ``(H, W, C)``, and writes it into the row.

        Raises :class:`DecodeError` as :func:`~packstore.training.augment.resample.resize`."""
        top, left, height, width = self.crops.box[row].tolist()
        made = np.empty((1, *self.size, pixels.shape[2]), pixels.dtype)
        box = np.ascontiguousarray(pixels[top : top + height, left : left + width])
        write_crop(box, self.crops, row, made[0])
        if self.program is not None:
            get_engine().augment(made, self.program[row : row + 1])
        self.look.form.write_rows(torch.from_numpy(made), self.out[row : row + 1])

    def check_sizes(self) -> None:
        """Raises :class:`SizeError` if a crop has another size than the rows."""
        if self.has_other_sizes():
            wrong = (self.crops.window[:, 2:] != self.size).any(1)
            raise SizeError.between(self.crops.window[int(wrong.argmax()), 2:].tolist(), self.size)
