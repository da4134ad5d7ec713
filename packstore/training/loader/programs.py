"""Operations that draw programs, run by the engine on each image while it is in the cache."""

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
    """Operations of a user's list that run in the threads that decode, after the crops.

    Attributes:
        operations: They, one after the other.
        first: Place of the first in the list.
    """

    operations: tuple[Any, ...] = ()
    first: int = 0

    @classmethod
    def after(cls, operations: Sequence[Step], first: int) -> Programs:
        """As many operations from place ``first`` on as the engine can run."""
        return cls(tuple(takewhile(draws_program, operations[first:])), first)

    def __len__(self) -> int:
        return len(self.operations)

    def draw(self, draws: Draws, size: Size) -> Program | None:
        """The program of records whose images have ``size``; None where there are no operations."""
        if not self.operations:
            return None
        parts = [op.program(draws.replace(stream=self.first + n), size) for n, op in enumerate(self.operations)]
        return join_programs(parts, len(draws))

    def run(self, pixels: NDArray[np.uint8], program: Program) -> None:
        """Runs the program of one image, ``(1, n)``, on its bytes ``(1, h, w, 3)`` in place."""
        get_engine().augment(pixels, program)


NO_PROGRAMS = Programs()
