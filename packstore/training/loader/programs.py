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
from packstore.training.augment.program_operation import draws_program
from packstore.training.random_draws import Draws


@dataclass(frozen=True)
class Programs:
    """Operations of a user's list that run in the decoding threads, after the crops.

    Attributes:
        operations: The operations, in order.
        first: Index of the first one in the user's list.
    """

    operations: tuple[Any, ...] = ()
    first: int = 0

    @classmethod
    def select(cls, operations: Sequence[Step], first: int) -> Programs:
        """Selects the operations from index ``first`` on that the engine can run, up to the first that it cannot."""
        return cls(tuple(takewhile(draws_program, operations[first:])), first)

    def __len__(self) -> int:
        return len(self.operations)

    def draw(self, draws: Draws, size: Size) -> Program | None:
        """Draws the program of records whose images have ``size``; None without operations."""
        if not self.operations:
            return None
        parts = [op.program(draws.replace(stream=self.first + n), size) for n, op in enumerate(self.operations)]
        return join_programs(parts, len(draws))

    def run(self, pixels: NDArray[np.uint8], program: Program) -> None:
        """Runs the program of one image, ``(1, n)``, on its bytes ``(1, h, w, 3)`` in place."""
        get_engine().augment(pixels, program)


NO_PROGRAMS = Programs()
