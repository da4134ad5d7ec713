"""Operations that the engine runs on each image right after decoding, while the image is in the CPU cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.images.engine import get_engine
from packstore.images.programs import Program, join_programs
from packstore.training.augment.base import Size, Step
from packstore.training.augment.program_operation import can_draw_program
from packstore.training.random_draws import Draws


@dataclass(frozen=True)
class Programs:
    """Consecutive operations of a user's list that the engine runs as programs, right after the crops.

    A program is an array of pixel operations with their parameters, a row for each image.

    Attributes:
        operations: The operations, in order.
        first: Index of the first operation in the user's list.
    """

    operations: tuple[Any, ...] = ()
    first: int = 0

    @classmethod
    def select(cls, operations: Sequence[Step], first: int) -> Programs:
        """Takes the operations from index ``first`` on, up to the first that has no program."""
        return cls(tuple(takewhile(can_draw_program, operations[first:])), first)

    def __len__(self) -> int:
        return len(self.operations)

    def draw_program(self, draws: Draws, size: Size) -> Program | None:
        """Draws the random parameters of all operations for records whose images have ``size``. Returns None if there
        are no operations."""
        if not self.operations:
            return None
        parts = [op.draw_program(draws.replace(stream=self.first + n), size) for n, op in enumerate(self.operations)]
        return join_programs(parts, len(draws))

    def run_on_image(self, pixels: NDArray[np.uint8], program: Program) -> None:
        """Runs the program of one image, ``(1, n)``, on its pixels ``(1, h, w, 3)``, which it overwrites."""
        get_engine().augment(pixels, program)


NO_PROGRAMS = Programs()
