"""``InPlace``: wraps a function that does not move pixels. Loaders then accept the function beside masks and boxes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from packstore.core.errors import UsageError
from packstore.training.augment.base import Operation
from packstore.training.random_draws import Draws


@dataclass(frozen=True, repr=False)
class InPlace(Operation):
    """Wraps a function that leaves every pixel in its place. Masks, boxes and keypoints then need not follow.

    A loader of such columns refuses unknown functions in ``augment=``, in ``transform=`` and in ``PerImage``, unless
    they are in an ``InPlace``.

    Args:
        fn: The function, or an :class:`Operation` of your own.

    Raises:
        UsageError: ``fn`` is not callable. When called: its result has another height or width.
    """

    fn: Callable[..., Any]

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise UsageError(f"InPlace takes a function, got {self.fn!r}")

    def __repr__(self) -> str:
        return f"InPlace({stable_repr(self.fn)})"

    def __call__(self, images: Tensor, draws: Draws | None = None, **options: Any) -> Any:
        """Calls the function with ``images``. Only an :class:`Operation` gets ``draws``, too.

        Raises :class:`UsageError` if the result has another height or width."""
        draws_too = (draws,) if isinstance(self.fn, Operation) and draws is not None else ()
        result = self.fn(images, *draws_too, **options)
        if isinstance(result, Tensor) and result.ndim >= 2 and result.shape[-2:] != images.shape[-2:]:
            (height, width), (tall, wide) = result.shape[-2:], images.shape[-2:]
            raise UsageError(f"{self!r} made {height}x{width} pixels of {tall}x{wide}: it does not leave them in place")
        return result


def stable_repr(fn: Any) -> str:
    """Returns the ``repr`` of a function, or its module and name if the ``repr`` contains a memory address."""
    text = repr(fn)
    if " at 0x" in text:  # an address, which another process would not have
        where: Any = fn if hasattr(fn, "__qualname__") else type(fn)
        text = f"{where.__module__}.{where.__qualname__}"
    return text


def repr_on_one_line(value: Any) -> str:
    """Returns the ``repr`` of a value, or of a tuple's values, on one line without memory addresses."""
    text = ", ".join(map(stable_repr, value)) if isinstance(value, tuple) else stable_repr(value)
    return " ".join(text.split())
