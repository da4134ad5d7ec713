"""Operations of operations, chosen for each image by itself: torchvision's ``RandomApply``, ``RandomChoice``, ….

They take operations that leave the size of an image as it is, and draw one program out of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packstore.core.errors import UsageError
from packstore.images.programs import Program, join_programs, pad_program
from packstore.training.augment.base import Operation, Size
from packstore.training.augment.distributions import chance, permutation
from packstore.training.augment.program_operation import ProgramOperation, check_probability, draws_program
from packstore.training.random_draws import Draws


def check_parts(operation: Operation, parts: Any) -> tuple[Any, ...]:
    """``parts`` as a tuple. Raises :class:`UsageError` unless all of them draw programs."""
    name = type(operation).__name__
    if isinstance(parts, Operation) or not isinstance(parts, Sequence) or isinstance(parts, str):
        raise UsageError(f"{name} takes a list of operations, got {parts!r}")
    for part in parts:
        if not draws_program(part):
            raise UsageError(
                f"{name} takes packstore.augment's operations that leave the size of an image as it is, got {part!r}; "
                "crops, resizes and functions go into the list itself"
            )
    return tuple(parts)


def part_programs(parts: Sequence[Any], draws: Draws, size: Size) -> list[Program]:
    """The program of each part, with random numbers of its own."""
    return [part.program(draws.child(number), size) for number, part in enumerate(parts)]


class _Logic(ProgramOperation):
    """An operation of operations."""

    transforms: Sequence[Any]

    @property
    def moves_pixels(self) -> bool:
        return any(part.moves_pixels for part in self.transforms)


@dataclass(frozen=True)
class Compose(_Logic):
    """Runs operations one after the other. In a loader's list it stands for what it holds."""

    transforms: Sequence[Any]

    def __post_init__(self) -> None:
        if isinstance(self.transforms, Operation | str) or not isinstance(self.transforms, Sequence):
            raise UsageError(f"Compose takes a list of operations, got {self.transforms!r}")
        object.__setattr__(self, "transforms", tuple(self.transforms))

    def program(self, draws: Draws, size: Size) -> Program:
        return join_programs(part_programs(check_parts(self, self.transforms), draws, size), len(draws))


@dataclass(frozen=True)
class RandomApply(_Logic):
    """Runs all operations of a list with probability ``p``, or none, as torchvision's ``RandomApply``."""

    transforms: Sequence[Any]
    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability(self, self.p)
        object.__setattr__(self, "transforms", check_parts(self, self.transforms))

    def program(self, draws: Draws, size: Size) -> Program:
        program = join_programs(part_programs(self.transforms, draws, size), len(draws))
        program[~chance(draws, self.p, 0)] = 0
        return program


@dataclass(frozen=True)
class RandomChoice(_Logic):
    """Runs one operation of a list, as torchvision's ``RandomChoice``.

    Args:
        transforms: The operations.
        p: Their probabilities, or numbers in proportion to them; None for equal ones.

    Raises:
        UsageError: An empty list, or probabilities that do not go with it.
    """

    transforms: Sequence[Any]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", parts := check_parts(self, self.transforms))
        if not parts:
            raise UsageError("RandomChoice takes at least one operation, got none")
        if self.p is not None:
            if len(self.p) != len(parts) or not all(n >= 0 for n in self.p) or sum(self.p) <= 0:
                raise UsageError(f"RandomChoice: p should be a number of at least 0 for each operation, got {self.p!r}")
            object.__setattr__(self, "p", tuple(self.p))

    def program(self, draws: Draws, size: Size) -> Program:
        programs = part_programs(self.transforms, draws, size)
        steps = max(program.shape[1] for program in programs)
        chosen = choose(draws, len(programs), self.p, 0)
        padded = np.stack([pad_program(program, steps) for program in programs])
        program: Program = padded[chosen, np.arange(len(draws))]
        return program


@dataclass(frozen=True)
class RandomOrder(_Logic):
    """Runs the operations of a list in a random order, as torchvision's ``RandomOrder``."""

    transforms: Sequence[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", check_parts(self, self.transforms))

    def program(self, draws: Draws, size: Size) -> Program:
        programs = part_programs(self.transforms, draws, size)
        steps = max((program.shape[1] for program in programs), default=0)
        if not steps:
            return join_programs([], len(draws))
        padded = np.stack([pad_program(program, steps) for program in programs], 1)  # (B, parts, steps)
        order = permutation(draws, len(programs), 0)
        return padded[np.arange(len(draws))[:, None], order].reshape(len(draws), -1)


def choose(draws: Draws, count: int, weights: Sequence[float] | None, draw: int) -> Any:
    """One of ``count`` things for each record, int64 ``(B,)``, all alike or by ``weights``."""
    if weights is None:
        return draws.integers(count, draw)
    limits = np.cumsum(np.asarray(weights, np.float64))
    return np.searchsorted(limits / limits[-1], draws.uniform(draw), "right").clip(max=count - 1)
