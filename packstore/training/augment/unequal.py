"""Operations after which images differ in size: they are drawn for a batch at once, and run image by image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.images.programs import Program
from packstore.images.sniff import MAX_PIXELS
from packstore.training.augment.base import Crops, GeometricOperation, Operation, Size, Step, Units
from packstore.training.augment.cut import Cut
from packstore.training.augment.interpreter import run_program
from packstore.training.augment.program_operation import ProgramOperation, contains_geometry, operation_name
from packstore.training.augment.resample import check_area
from packstore.training.augment.sizes import BatchBoxes, RandomIoUCrop
from packstore.training.augment.steps import is_per_image, may_resize
from packstore.training.augment.targets import Move, Placement, Warp, draw_program_by_size, find_warps, move_boxes
from packstore.training.random_draws import Draws


@dataclass(frozen=True, eq=False)
class DrawnOperation:
    """One operation, drawn for a batch. One of ``move``, ``program`` and ``call`` is set.

    Attributes:
        move: Crops of the images.
        program: Program of the images.
        call: A function or operation to call.
        draws: Random numbers for ``call``.
        name: Name of the program for messages.
        units: Units of the images, for the program.
    """

    move: Move | None = None
    program: Program | None = None
    call: Step | None = None
    draws: Draws | None = None
    name: str = ""
    units: Units | None = None

    @cached_property
    def cuts(self) -> list[Cut]:
        """Cut of each image by :attr:`move`. Asserts that there is a move."""
        assert self.move is not None
        return Cut.of_rows(self.move.crops, self.move.pads)

    def run_on_image(self, row: int, image: Tensor) -> Tensor:
        """Runs the program or function on the image of ``row``, ``(1, C, H, W)``, and returns the result.

        Raises :class:`UsageError` if a function returns anything but one image.
        """
        if self.program is not None:
            return run_program(image, self.program[row : row + 1], self.name, self.units)
        assert self.call is not None
        assert self.draws is not None
        if is_per_image(self.call) and self.call.runs_in_threads:
            draws = self.draws[row : row + 1]
            result = self.call.stack_results(self.call.call_each([image[0]], draws))
        elif isinstance(self.call, Operation):
            result = self.call(image, self.draws[row : row + 1])
        else:
            result = self.call(image)
        if not isinstance(result, Tensor) or result.ndim != 4 or len(result) != 1:
            shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise UsageError(f"{self.call!r} should give one image (1, C, H, W) for one, and gave {shape}")
        return result


class DrawnOperations:
    """All operations of a list, drawn for the images of a batch.

    If a function changes the size of its image, :meth:`run_on_image` refuses operations of packstore after it.

    Attributes:
        placement: Moves of the pixels by all operations, for masks, boxes and keypoints.
    """

    def __init__(
        self,
        sizes: NDArray[np.int64],
        ops: Sequence[Step],
        draws: Draws,
        boxes: BatchBoxes | None = None,
        most_pixels: int | None = None,
        redraws: bool = False,
        first: int = 0,
    ) -> None:
        """
        Args:
            sizes: int64 ``(B, 2)``: heights and widths of the images.
            ops: The user's whole list, or the end of it.
            draws: Random numbers of the records, numpy. Operation ``i`` draws from stream ``i`` of them.
            boxes: Boxes of the images, if an operation chooses crops by them.
            most_pixels: Most pixels of an image after any operation; None for no limit.
            redraws: Draw the operations after a user's function for the sizes of its results, image by image. Then
                nothing else, such as masks, can follow the images.
            first: Index of ``ops[0]`` in the user's list.

        Raises:
            UsageError: As :meth:`GeometricOperation.plan_crops`. Or an operation needs boxes, and there are none. Or an
                operation would make an image of more than ``most_pixels``.
        """
        self._stages: list[DrawnOperation] = []
        self._sizes, self._first = sizes, sizes
        self._boxes, self._most_pixels = boxes, most_pixels
        self._moves: list[Move | Warp] = []
        everywhere = np.ones(len(sizes), np.bool_)
        self._draws, self._rest, self._first_of_rest = draws, ops[len(ops) :], first + len(ops)
        for number, op in enumerate(ops, 1):
            self._draw_operation(op, draws.replace(stream=first + number - 1), everywhere)
            if redraws and may_resize(op):
                self._rest, self._first_of_rest = ops[number:], first + number
                break
        self.placement = Placement(tuple(self._moves), self._sizes)

    def _draw_operation(self, op: Any, draws: Draws, rows: NDArray[np.bool_]) -> None:
        """Draws an operation for the images with true ``rows``, and appends it to the drawn operations."""
        if contains_geometry(op):
            # A group draws which images get which of its operations.
            for part, own, mine in op.assign_rows(draws, rows):
                self._draw_operation(part, own, mine)
        elif isinstance(op, GeometricOperation):
            self._draw_move(op, draws, rows)
        elif isinstance(op, ProgramOperation):
            program = draw_program_by_size(op, draws, self._sizes)
            program[~rows] = 0
            self._stages.append(DrawnOperation(program=program, name=operation_name(op), units=op.image_units))
            for warp in find_warps(program, self._sizes) if op.moves_pixels else ():
                self._append_move(warp)
        else:
            self._stages.append(DrawnOperation(call=op, draws=draws))

    def _draw_move(self, op: GeometricOperation, draws: Draws, rows: NDArray[np.bool_]) -> None:
        """Draws the crops of the images with true ``rows``, appends them, and updates the sizes."""
        chosen = np.flatnonzero(rows)
        if not len(chosen):
            return
        sizes, own = self._sizes[chosen], draws[chosen]
        drops = None
        if isinstance(op, RandomIoUCrop) and self._boxes is not None:
            # It chooses crops by the boxes, and drops boxes whose centres are outside.
            mine = rows[self._boxes.rows]
            numbers = np.cumsum(rows) - 1
            part = op.plan_around(sizes, BatchBoxes(self._boxes.corners[mine], numbers[self._boxes.rows[mine]]), own)
            drops = np.zeros(len(rows), np.bool_)
            drops[chosen] = (part.window != part.box).any(1)
        else:
            part = op.plan_whole_images(sizes, own)
        if self._most_pixels is not None:
            for height, width in np.concatenate([part.size, part.window[:, 2:]]).tolist():
                if height * width > self._most_pixels:
                    raise UsageError(
                        f"{repr(op)[:200]} would make an image of {height:,} x {width:,} pixels, more than "
                        f"{self._most_pixels:,}; use a smaller size"
                    )
        # Images without true ``rows`` stay whole.
        move = Move(part if len(chosen) == len(rows) else _scatter_crops(part, self._sizes, chosen), op.pads, drops)
        self._stages.append(DrawnOperation(move=move))
        self._append_move(move)
        self._sizes = move.crops.window[:, 2:]

    def _append_move(self, move: Move | Warp) -> None:
        """Appends a move for masks, boxes and keypoints."""
        self._moves.append(move)
        # Later operations choose their crops by the moved boxes.
        if self._boxes is not None:
            corners, rows = self._boxes
            self._boxes = BatchBoxes(move_boxes(Placement((move,), self._sizes), corners, rows, clip=True), rows)

    def find_large_rows(self) -> dict[int, Size]:
        """Returns the images that operations would make too large: their rows, with the excessive height and width.

        Too large means more pixels than an image may have, and than the image itself has.
        """
        moved = [stage.move.crops for stage in self._stages if stage.move is not None]
        areas = [sizes.prod(1) for crops in moved for sizes in (crops.size, crops.window[:, 2:])]
        limits = np.maximum(MAX_PIXELS, self._first.prod(1))
        rows = np.flatnonzero(np.any([area > limits for area in areas], 0)).tolist() if areas else []
        large = ((row, self._find_large_cut(row, int(limits[row]))) for row in rows)
        return {row: cut.size if cut.resizes else cut.window[2:] for row, cut in large if cut is not None}

    def _find_large_cut(self, row: int, limit: int) -> Cut | None:
        """Returns the first cut of :meth:`run_on_image` with more than ``limit`` pixels, or None."""
        cut = Cut.full(*self._first[row].tolist())
        for stage in (*self._stages, DrawnOperation()):
            joined = None if stage.move is None else cut.compose(stage.cuts[row])
            if joined is None:
                if cut.area > limit:
                    return cut
                joined = stage.cuts[row] if stage.move is not None else Cut.full(*cut.window[2:])
            cut = joined
        return None

    def first_cut(self, row: int) -> tuple[Cut, int]:
        """Combines the first operations into one cut of the image of ``row``, which the engine can do while decoding.

        Stops before an operation other than a crop, a crop that cannot be joined, and padding with anything but 0.

        Returns the cut, and the number of operations in it.
        """
        cut, done = Cut.full(*self._first[row].tolist()), 0
        for stage in self._stages:
            joined = None if stage.move is None else cut.compose(stage.cuts[row])
            if joined is None or (joined.reaches_out and (joined.pads != "constant" or joined.fill != 0)):
                break
            cut, done = joined, done + 1
        return cut, done

    def run_on_image(self, row: int, image: Tensor, done: int = 0) -> Tensor:
        """Runs all operations but the first ``done`` on the image of ``row``, ``(1, C, H, W)``, and returns the result.

        Raises :class:`UsageError` if a user's function changes the size, although later operations were drawn for the
        old size. Raises :class:`DecodeError` if an operation after it would make too many pixels.
        """
        image = self._run_stages(row, image, done)
        if not self._rest:
            return image
        height, width = image.shape[-2:]
        sizes = np.array([[height, width]], np.int64)
        rest = DrawnOperations(sizes, self._rest, self._draws[row : row + 1], redraws=True, first=self._first_of_rest)
        for large in rest.find_large_rows().values():
            check_area(height, width, large)
        return rest.run_on_image(0, image)

    def _run_stages(self, row: int, image: Tensor, done: int) -> Tensor:
        """Runs the drawn operations after the first ``done`` on the image of ``row``."""
        cut = Cut.full(image.shape[-2], image.shape[-1])
        for place, stage in enumerate(self._stages[done:], done + 1):
            if stage.move is None:
                image = cut(image)
                size, image = image.shape[-2:], stage.run_on_image(row, image)
                if image.shape[-2:] != size and any(later.call is None for later in self._stages[place:]):
                    raise UsageError(
                        f"{stage.call!r} changed the size of an image, and operations after it were drawn for the size "
                        "that it had: put it last"
                    )
                cut = Cut.full(image.shape[-2], image.shape[-1])
                continue
            joined = cut.compose(stage.cuts[row])
            if joined is None:
                image, joined = cut(image), stage.cuts[row]
            cut = joined
        return cut(image)


def _scatter_crops(part: Crops, sizes: NDArray[np.int64], chosen: NDArray[np.int64]) -> Crops:
    """Returns crops for all images: ``part`` for the images ``chosen``, and whole images for others."""
    crops = Crops.full(sizes)
    box, size, window = crops.box.copy(), crops.size.copy(), crops.window.copy()
    box[chosen], size[chosen], window[chosen] = part.box, part.size, part.window
    flip, sampling = np.zeros(len(sizes), np.bool_), np.zeros(len(sizes), np.int64)
    flip[chosen] = False if part.flip is None else part.flip
    sampling[chosen] = 0 if part.sampling is None else part.sampling
    return Crops(box, size, window, flip, part.pads, part.fill, sampling)
