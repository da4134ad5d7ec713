"""A function of which the user says that it leaves pixels in their places."""

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
    """Says of a function that it leaves every pixel in its place, so that masks, boxes and keypoints need not follow.

    A loader of such columns refuses functions that it does not know, in ``augment=``, in ``transform=`` and in
    ``PerImage``, unless they stand in this.

    Args:
        fn: The function, or an :class:`Operation` of your own.

    Raises:
        UsageError: ``fn`` is not callable; (while iterating) what it returns has another height or width.
    """

    fn: Callable[..., Any]

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise UsageError(f"InPlace takes a function, got {self.fn!r}")

    def __repr__(self) -> str:
        return f"InPlace({named(self.fn)})"

    def __call__(self, images: Tensor, draws: Draws | None = None, **options: Any) -> Any:
        """What the function gives for ``images``, or for one image, or for whatever it is called with."""
        draws_too = (draws,) if isinstance(self.fn, Operation) and draws is not None else ()
        found = self.fn(images, *draws_too, **options)
        if isinstance(found, Tensor) and found.ndim >= 2 and found.shape[-2:] != images.shape[-2:]:
            (height, width), (tall, wide) = found.shape[-2:], images.shape[-2:]
            raise UsageError(f"{self!r} made {height}x{width} pixels of {tall}x{wide}: it does not leave them in place")
        return found


def named(fn: Any) -> str:
    """A function's ``repr``, the same in each process."""
    text = repr(fn)
    if " at 0x" in text:  # an address, which another process would not have
        where: Any = fn if hasattr(fn, "__qualname__") else type(fn)
        text = f"{where.__module__}.{where.__qualname__}"
    return text
