"""Operations that run other operations, chosen per image: torchvision's ``RandomApply``, ``RandomChoice``, ….

If their operations keep the size of images, they draw one program. With crops and resizes among them, images of one
batch get different sizes: :mod:`packstore.training.augment.unequal` then runs them image by image.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.images.programs import Code, Program, join_programs, pad_program
from packstore.training.arguments import parse_numbers
from packstore.training.augment.base import GeometricOperation, Operation, Size, check_number
from packstore.training.augment.program_operation import (
    ProgramOperation,
    can_draw_program,
    contains_geometry,
    list_possible_steps,
)
from packstore.training.random_draws import Draws, chance, permutation


def parse_operations(operation: Operation, parts: Any, geometric: bool = True) -> tuple[Any, ...]:
    """Returns ``parts``, the operations inside ``operation``, as a tuple.

    Raises :class:`UsageError` unless ``parts`` is a list of operations that draw programs. With ``geometric``, crops,
    resizes and groups of these are allowed, too.
    """
    name = type(operation).__name__
    if isinstance(parts, Operation) or not isinstance(parts, Sequence) or isinstance(parts, str):
        raise UsageError(f"{name} takes a list of operations, got {parts!r}")
    for part in parts:
        if geometric and isinstance(part, Compose):
            parse_operations(operation, part.transforms)
        elif not can_draw_program(part) and not (
            geometric and (isinstance(part, GeometricOperation | _OperationGroup))
        ):
            also = "" if geometric else " that leave the size of an image as it is"
            raise UsageError(
                f"{name} takes packstore.augment's operations{also}, got {part!r}; put it into the list itself"
            )
    return tuple(parts)


def draw_programs(parts: Sequence[Any], draws: Draws, size: Size) -> list[Program]:
    """Draws the program of each operation in ``parts``, each with independent random numbers."""
    return [part.draw_program(draws.child(number), size) for number, part in enumerate(parts)]


class _OperationGroup(ProgramOperation):
    """Operation that runs other operations, its ``transforms``, on all or some of the images."""

    transforms: Sequence[Any]

    @property
    def moves_pixels(self) -> bool:
        """True if any of the operations moves pixels."""
        return any(part.moves_pixels for part in self.transforms)

    @property
    def depends_on_size(self) -> bool:
        """True if the program of any of the operations depends on the size."""
        return any(getattr(part, "depends_on_size", False) for part in self.transforms)

    @property
    def possible_steps(self) -> Collection[tuple[Code, int]]:
        """Steps of all operations."""
        return [each for part in self.transforms for each in list_possible_steps(part)]

    @abstractmethod
    def choose_rows(self, draws: Draws) -> Sequence[NDArray[np.bool_]]:
        """Draws the records that each of ``transforms`` runs for: a bool ``(B,)`` for each operation."""

    def assign_rows(self, draws: Draws, rows: NDArray[np.bool_]) -> Iterator[tuple[Any, Draws, NDArray[np.bool_]]]:
        """Yields each operation of ``transforms`` with its draws and the records it runs for, bool ``(B,)``.

        Args:
            draws: Draws of the records, numpy.
            rows: bool ``(B,)``: the records that this group runs for.
        """
        for number, (part, mine) in enumerate(zip(self.transforms, self.choose_rows(draws), strict=True)):
            yield part, draws.child(number), rows & mine

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        """Runs the group on a batch. Raises :class:`UsageError` if it contains crops or resizes."""
        if contains_geometry(self):
            raise UsageError(f"{self!r} gives images different sizes, so a loader has to run it image by image")
        return super().__call__(images, draws)


@dataclass(frozen=True)
class Compose(_OperationGroup):
    """Runs operations one after the other. In a loader's list it is replaced by its operations.

    Raises:
        UsageError: ``transforms`` is not a list. Its entries are checked where it is used.
    """

    transforms: Sequence[Any]

    def __post_init__(self) -> None:
        if isinstance(self.transforms, Operation | str) or not isinstance(self.transforms, Sequence):
            raise UsageError(f"Compose takes a list of operations, got {self.transforms!r}")
        object.__setattr__(self, "transforms", tuple(self.transforms))

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Joins the programs of all operations. Raises :class:`UsageError` for an operation without a program."""
        return join_programs(draw_programs(parse_operations(self, self.transforms, False), draws, size), len(draws))

    def choose_rows(self, draws: Draws) -> Sequence[NDArray[np.bool_]]:
        """Chooses all records for each operation."""
        return [np.ones(len(draws), np.bool_)] * len(self.transforms)

    def size_after(self, size: Size | None) -> Size | None:
        """Returns the size after all operations, one after the other; None if results may differ in size."""
        return _compose_sizes(self.transforms, size)


@dataclass(frozen=True)
class RandomApply(_OperationGroup):
    """Runs all operations of a list with probability ``p``, as torchvision's ``RandomApply``. Otherwise runs none.

    Raises:
        UsageError: ``p`` is not a probability, or an operation is not packstore's own.
    """

    transforms: Sequence[Any]
    p: float = 0.5

    def __post_init__(self) -> None:
        check_number(self, "p", 0, 1)
        object.__setattr__(self, "transforms", parse_operations(self, self.transforms))

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Joins the programs of all operations."""
        program = join_programs(draw_programs(self.transforms, draws, size), len(draws))
        program[~chance(draws, self.p, 0)] = 0  # images without them
        return program

    def choose_rows(self, draws: Draws) -> Sequence[NDArray[np.bool_]]:
        """Draws the same records for all operations, with probability ``p``."""
        return [chance(draws, self.p, 0)] * len(self.transforms)

    def size_after(self, size: Size | None) -> Size | None:
        """Returns ``size`` if all operations keep it. Else returns None, because they may not run."""
        return size if _compose_sizes(self.transforms, size) == size else None


@dataclass(frozen=True)
class RandomChoice(_OperationGroup):
    """Runs one operation of a list, as torchvision's ``RandomChoice``.

    Args:
        transforms: The operations.
        p: Probabilities of the operations, or numbers in proportion. None for equal probabilities.

    Raises:
        UsageError: An empty list, an operation that is not packstore's own, or probabilities that do not match.
    """

    transforms: Sequence[Any]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", parts := parse_operations(self, self.transforms))
        if not parts:
            raise UsageError("RandomChoice takes at least one operation, got none")
        if self.p is not None:
            shares = parse_numbers("RandomChoice: p", self.p)
            if len(shares) != len(parts) or not all(n >= 0 for n in shares) or sum(shares) <= 0:
                raise UsageError(f"RandomChoice: p should be a number of at least 0 for each operation, got {self.p!r}")
            object.__setattr__(self, "p", tuple(self.p))

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws the programs of all operations, and takes one of them for each image."""
        programs = draw_programs(self.transforms, draws, size)
        steps = max(program.shape[1] for program in programs)
        chosen = draw_choice(draws, len(programs), self.p, 0)
        padded = np.stack([pad_program(program, steps) for program in programs])
        program: Program = padded[chosen, np.arange(len(draws))]
        return program

    def choose_rows(self, draws: Draws) -> Sequence[NDArray[np.bool_]]:
        """Draws one operation for each record."""
        number = draw_choice(draws, len(self.transforms), self.p, 0)
        return [number == part for part in range(len(self.transforms))]

    def size_after(self, size: Size | None) -> Size | None:
        """Returns the size that all operations give; None if they give different sizes."""
        after = {part.size_after(size) for part in self.transforms}
        return after.pop() if len(after) == 1 else None


@dataclass(frozen=True)
class RandomOrder(_OperationGroup):
    """Runs the operations of a list in a random order, as torchvision's ``RandomOrder``.

    Raises:
        UsageError: An operation is not packstore's own, or changes the size of images.
    """

    transforms: Sequence[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", parse_operations(self, self.transforms, False))

    def choose_rows(self, draws: Draws) -> Sequence[NDArray[np.bool_]]:
        """Raises :class:`NotImplementedError`: operations that change sizes have no random order."""
        raise NotImplementedError("its operations leave the size of an image as it is")

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws the programs of all operations, and joins them in another random order for each image."""
        programs = draw_programs(self.transforms, draws, size)
        steps = max((program.shape[1] for program in programs), default=0)
        if not steps:
            return join_programs([], len(draws))
        padded = np.stack([pad_program(program, steps) for program in programs], 1)  # (B, parts, steps)
        order = permutation(draws, len(programs), 0)
        return padded[np.arange(len(draws))[:, None], order].reshape(len(draws), -1)


def _compose_sizes(parts: Sequence[Any], size: Size | None) -> Size | None:
    """Returns the size of images after all ``parts``; None if results may differ in size."""
    for part in parts:
        size = part.size_after(size)
    return size


def draw_choice(draws: Draws, count: int, weights: Sequence[float] | None, draw: int) -> Any:
    """Draws a number below ``count`` per record, int64 ``(B,)``, with probabilities in proportion to ``weights``."""
    if weights is None:
        return draws.integers(count, draw)
    limits = np.cumsum(np.asarray(weights, np.float64))
    return np.searchsorted(limits / limits[-1], draws.uniform(draw), "right").clip(max=count - 1)
