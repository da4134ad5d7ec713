"""Operations that draw a program for each image: on the CPU the engine runs it, elsewhere torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.core.modes import parse_mode
from packstore.images.programs import Code, Program
from packstore.training.augment.base import Operation, Size
from packstore.training.random_draws import Draws


class ProgramOperation(Operation):
    """Operation on the pixels of single images that keeps their size.

    numpy draws its random numbers on the host, into a program. The program runs on a batch with torch, on any device,
    or image by image in the engine.

    Attributes:
        draws_on_host: False if the operation draws on the device of a batch, and runs there without a program.
    """

    draws_on_host: ClassVar[bool] = True

    @property
    def depends_on_size(self) -> bool:
        """True if programs depend on the size of the images. By default True."""
        return True

    @property
    def possible_steps(self) -> Collection[tuple[Code, int]]:
        """Code and flags of each possible step that some images do not support.

        By default empty: then :func:`run_program` raises the error, in the first batch with such a step.
        """
        return ()

    @abstractmethod
    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws the random parameters of this operation for each image.

        Args:
            draws: Draws of B records, numpy.
            size: Height and width of all their images.

        Returns:
            A program ``(B, n)``: ``n`` steps for each image. Some may do nothing. ``n`` does not depend on the draws.
        """

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        from packstore.training.augment.interpreter import run_program

        program = self.draw_program(draws.on_host(), (images.shape[-2], images.shape[-1]))
        return run_program(images, program, operation_name(self), self.image_units)


def operation_name(operation: Any) -> str:
    """Returns the name of an operation's class and of the operations in it: ``RandomApply([ColorJitter])``."""
    parts = getattr(operation, "transforms", ())
    return type(operation).__name__ + (f"([{', '.join(map(operation_name, parts))}])" if parts else "")


def list_possible_steps(part: Any) -> Collection[tuple[Code, int]]:
    """Returns :attr:`ProgramOperation.possible_steps`. Empty for other operations, and for a probability of 0."""
    return () if getattr(part, "p", None) == 0 else getattr(part, "possible_steps", ())


def refuse_unsupported(operations: Sequence[Any], dtype: torch.dtype, channels: int, mode: str) -> None:
    """Raises :class:`UsageError` for operations and colours that images do not support.

    Refuses an operation even if it rarely draws an unsupported step. Stops at the first user function, which may
    convert the images.

    Args:
        operations: The user's list.
        dtype: Dtype of the images.
        channels: Their number of channels.
        mode: Name of their mode, for the message.
    """
    for operation in operations:
        if not type(operation).__module__.startswith("packstore.") or hasattr(operation, "fn"):
            return
        for code, flags in list_possible_steps(operation):
            from packstore.training.augment.interpreter import check_pixels

            check_pixels(dtype, channels, code, flags, operation_name(operation), mode, operation.image_units)
        check_colours(operation, channels, mode)


def check_colours(operation: Any, channels: int, mode: str) -> None:
    """Raises :class:`UsageError` if a colour of an operation, or of one inside it, does not fit images of a mode.

    It should be a number, or one for each channel, within 0 … 255 (0 … 65,535 for 16 bits).
    """
    white = parse_mode(mode).white
    for part in getattr(operation, "transforms", ()):
        check_colours(part, channels, mode)
    for name in ("fill", "value"):
        colour = getattr(operation, name, None)
        numbers = colour if isinstance(colour, list | tuple) else [colour]
        if white > 1 and any(isinstance(n, int | float) and not 0 <= n <= white for n in numbers):
            raise UsageError(
                f"{type(operation).__name__}: {name} should be 0 … {white:g} for these images, got {colour!r}; it is a "
                "colour of the image, also where a store or normalize= normalises it"
            )
        rounds = isinstance(operation, ProgramOperation) and operation.moves_pixels
        if hasattr(operation, name) and colour is None and not rounds:
            raise UsageError(
                f"{type(operation).__name__}: {name} should be a number, or one for each channel, got None"
            )
        if mode == "F" and rounds and any(isinstance(n, float) and not n.is_integer() for n in numbers):
            raise UsageError(f"{type(operation).__name__}: {name} should be a whole number, got {colour!r}")
        if isinstance(colour, list | tuple) and len(colour) != channels and len({*colour}) > 1:
            raise UsageError(
                f"{type(operation).__name__}: {name}={colour!r} has {len(colour)} channels, and the images have "
                f"{channels} (mode {mode}): give one number"
            )


def can_draw_program(part: Any) -> bool:
    """Tells if an entry of a user's list can draw a program.

    True for flips, and for a :class:`ProgramOperation` without crops and resizes in it.
    """
    return isinstance(part, Operation) and callable(getattr(part, "draw_program", None)) and not contains_geometry(part)


def contains_geometry(part: Any) -> bool:
    """Tells if an operation contains a crop, a resize or another operation that cannot draw programs."""
    parts = part.transforms if isinstance(part, ProgramOperation) and hasattr(part, "transforms") else ()
    return any(not can_draw_program(each) for each in parts)
