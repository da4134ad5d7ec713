"""Writes several crops of each record (``views=``) into batch buffers. Decodes a record once, and cuts all of its crops
from the pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import DecodeError, PackstoreError
from packstore.core.modes import RGB, Mode
from packstore.images.engine import MODES, Requests, get_engine
from packstore.images.programs import Program
from packstore.training.augment.base import Crops, GeometricOperation
from packstore.training.augment.operations import output_size, plan_operations
from packstore.training.augment.views import View
from packstore.training.loader.assemble import wrong_header_error
from packstore.training.loader.fields import Failures
from packstore.training.loader.finish import RowFormat
from packstore.training.loader.prepared import PreparedBatch
from packstore.training.loader.programs import Programs
from packstore.training.loader.record_assembler import RecordAssembler
from packstore.training.loader.rows import RowWriter, as_numpy
from packstore.training.pictures import TENSOR_DTYPES, widen_for_torch
from packstore.training.random_draws import Draws


@dataclass(frozen=True)
class ViewPlan:
    """Tells which operations of one view run in the decoding threads, and the final format that they write.

    Attributes:
        view: The user's view.
        operations: First operations, which become crops.
        programs: Next operations, which run in the decoding threads.
        finish: Final format that the threads write; None if crops stay as decoded.
        mode: Mode of the pixels.
    """

    view: View
    operations: tuple[GeometricOperation, ...]
    programs: Programs
    finish: RowFormat | None
    mode: Mode = RGB

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of each of the view's crops."""
        crop_size = output_size(self.operations)
        assert crop_size is not None
        return crop_size

    @property
    def row_format(self) -> RowFormat:
        """Format of the crops in a buffer: :attr:`finish`, or the decoded pixels."""
        stored = RowFormat(TENSOR_DTYPES[self.mode.dtype], False, channels=self.mode.channels)
        return self.finish or stored

    @property
    def elements(self) -> int:
        """Number of values that the crops of one record take."""
        return self.view.count * self.mode.channels * self.size[0] * self.size[1]


@dataclass(frozen=True, eq=False)
class _PlannedView:
    """Drawn crops of one view for all records of a batch; crops of a record are adjacent.

    Attributes:
        plan: Operations and format of the view.
        crops: The crops.
        program: Pixel operations on each crop; None for none.
        out: The view's part of the batch buffer.
    """

    plan: ViewPlan
    crops: Crops
    program: Program | None
    out: torch.Tensor


class ViewAssembler(RecordAssembler):
    """Decodes records once, and writes the crops of all views into a batch buffer ``(B, elements)``.

    All crops of the first view come first, and so on."""

    _plans_groups = False

    def __init__(self, plans: Sequence[ViewPlan], *arguments: Any, **named: Any) -> None:
        """``plans`` are the views; the other arguments are those of a :class:`RecordAssembler` without operations."""
        self._plans = plans
        super().__init__(*arguments, **named)
        self.dtype = plans[0].row_format.dtype

    def _row_shape(self) -> tuple[int, ...]:
        """Returns the shape of a record in the buffer: one axis, with the values of all its crops."""
        return (sum(plan.elements for plan in self._plans),)

    def split_buffer(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Divides a buffer of B records by view, without copies.

        Returns one tensor for each view: ``(B * count, *row)``, with ``count`` crops of each record."""
        flat, sections, start = buffer.view(-1), [], 0
        for plan in self._plans:
            stop = start + len(buffer) * plan.elements
            sections.append(flat[start:stop].view(len(buffer) * plan.view.count, *plan.row_format.row_shape(plan.size)))
            start = stop
        return sections

    def select_sections(self, buffer: torch.Tensor, kept: NDArray[np.int64] | None) -> list[torch.Tensor]:
        """Divides a buffer like :meth:`split_buffer`, and copies the crops of the records ``kept``.

        If ``kept`` is None, returns all crops without a copy."""
        sections = self.split_buffer(buffer)
        if kept is None:
            return sections
        counts = [plan.view.count for plan in self._plans]
        places = [torch.from_numpy((kept[:, None] * count + np.arange(count)).reshape(-1)) for count in counts]
        return [section[rows] for section, rows in zip(sections, places, strict=True)]

    def _request_rows(self, prepared: PreparedBatch, requests: Requests | None) -> None:
        """Draws the crops of all views into ``prepared``, for :meth:`fill_rows`. Makes no requests: returns None.

        Raises :class:`UsageError` for an image too small for its crop."""
        sizes, planned = prepared.sizes.clip(1), []
        for plan, section in zip(self._plans, self.split_buffer(prepared.out), strict=True):
            draws = Draws(plan.view.derive_seed(prepared.seed), prepared.epoch, plan.view.all_crop_ids(prepared.ids))
            crops = plan_operations(plan.operations, np.repeat(sizes, plan.view.count, 0), draws)
            planned.append(_PlannedView(plan, crops, plan.programs.draw_program(draws, plan.size), section))
        prepared.views_planned = planned

    def _write_rows(
        self, prepared: PreparedBatch, first: int, stop: int, errors: Failures, skip: Set[int]
    ) -> list[int]:
        """Decodes the images, and writes their crops. Does not leave out ``skip``.

        Returns the rows that failed, with errors in ``errors``. Raises the first error instead if ``errors`` is None.
        """
        failed: list[int] = []
        pixels: dict[int, NDArray[Any]] = {}
        for row, result in self._decode_rows(prepared, first, stop, errors, failed):
            if isinstance(result, PackstoreError):
                failed.append(self._note_error(errors, row, prepared.numbers[row], result))
            else:
                pixels[row] = result
        for rows in _split_runs(sorted(pixels)):
            images = [widen_for_torch(np.ascontiguousarray(pixels[row]), self._images.column) for row in rows]
            requests = None
            if self._images.mode in MODES:
                requests = Requests(images, np.array([image.shape[:2] for image in images], np.int64))
            for planned in prepared.views_planned:
                for row, error in self._write_crops(planned, rows, images, requests).items():
                    if row not in failed:
                        failed.append(self._note_error(errors, row, prepared.numbers[row], error))
        return failed

    def _decode_rows(
        self, prepared: PreparedBatch, first: int, stop: int, errors: Failures, failed: list[int]
    ) -> Iterator[tuple[int, NDArray[Any] | PackstoreError]]:
        """Verifies and decodes the images of rows. Yields the pixels ``(H, W, C)`` of each row, or its error. Counts
        the decoded files.

        Appends rows with a wrong checksum to ``failed``, or raises the error if ``errors`` is None.

        If an image has another size than its header says, draws its crops again. But if other columns were cropped by
        the header, yields an error."""
        images, views = self._images, prepared.views[first:stop]
        failed += self._verify_images(prepared, first, views, errors)
        sound = [row for row in range(first, stop) if row not in failed and row not in prepared.failed]
        numbers, files = [prepared.numbers[row] for row in sound], [views[row - first] for row in sound]
        decoded = 0
        for row, result in zip(sound, images.read_pixels_of_each(numbers, files), strict=True):
            if isinstance(result, PackstoreError) or not images.are_files:
                yield row, result
                continue
            decoded += 1
            said = tuple(prepared.sizes[row].tolist())
            if result.shape[:2] == said:
                yield row, result
            elif self._alone:
                self._replan_crops(prepared, row, result.shape[:2])
                yield row, result
            else:
                yield row, wrong_header_error(said, result.shape)
        self._stats.add_decoded(decoded)

    def _replan_crops(self, prepared: PreparedBatch, row: int, size: Sequence[int]) -> None:
        """Draws the crops of a record again by the image's real ``size``, and overwrites them in ``prepared``.

        Raises :class:`UsageError` if the image is too small for its crop."""
        for planned in prepared.views_planned:
            view = planned.plan.view
            draws = Draws(
                view.derive_seed(prepared.seed), prepared.epoch, view.all_crop_ids(prepared.ids[row : row + 1])
            )
            crops = plan_operations(planned.plan.operations, np.tile(np.array(size, np.int64), (view.count, 1)), draws)
            part = slice(row * view.count, (row + 1) * view.count)
            for name in ("box", "size", "window"):
                getattr(planned.crops, name)[part] = getattr(crops, name)

    def _write_crops(
        self,
        planned: _PlannedView,
        rows: Sequence[int],
        pixels: Sequence[NDArray[Any]],
        sources: Requests | None,
    ) -> dict[int, DecodeError]:
        """Writes all crops of one view for consecutive rows of the batch. The engine writes them; crops that it refuses
        are written one by one.

        Returns the errors of crops that would need too many pixels, by row.

        ``sources``: the rows' pixels as requests to the engine; None if the engine does not support their mode."""
        plan, count = planned.plan, planned.plan.view.count
        part = slice(rows[0] * count, (rows[-1] + 1) * count)
        crops, out = planned.crops.select_rows(part), planned.out[part]
        program = None if planned.program is None else planned.program[part]
        left = np.arange(len(out))
        if sources is not None:
            requests = sources.repeat(count)
            array, form = as_numpy(out), plan.row_format.engine_format(crops)
            requests.set_outputs(crops.box, crops.size, crops.window, crops.flip, array, form, program, crops.sampling)
            left = np.flatnonzero(get_engine().run(requests, 0, len(out), self._max_pixels))
        large: dict[int, DecodeError] = {}
        if not len(left):
            return large
        bytes_of = (
            out
            if plan.finish is None
            else torch.empty((len(out), *plan.size, plan.mode.channels), dtype=torch.uint8, device="cpu")
        )
        placed = RowWriter(bytes_of, crops)
        for crop in left.tolist():
            try:
                placed.write_image(crop, pixels[crop // count])
            except DecodeError as error:
                large[rows[crop // count]] = error
                continue
            if program is not None:
                plan.programs.run_on_image(placed.array[crop : crop + 1], program[crop : crop + 1])
            if plan.finish is not None:
                plan.finish.write_rows(bytes_of[crop : crop + 1], out[crop : crop + 1])
        return large


def _split_runs(rows: Sequence[int]) -> Iterator[Sequence[int]]:
    """Splits ascending ``rows`` into runs of consecutive numbers."""
    start = 0
    for place in range(1, len(rows) + 1):
        if place == len(rows) or rows[place] != rows[place - 1] + 1:
            yield rows[start:place]
            start = place
