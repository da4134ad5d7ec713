"""Random masks of patches, for masked autoencoders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.training.arguments import CheckedArguments
from packstore.training.random_draws import Draws


class Masking(NamedTuple):
    """Shown and hidden patches of each image of a batch. Patches are numbered row by row.

    Attributes:
        keep: int64 ``(B, kept)``: the patches that are shown, in random order.
        mask: bool ``(B, patches)``: True for hidden patches.
        restore: int64 ``(B, patches)``: position of each patch in the list of the kept patches and, after them, the
            hidden ones.
    """

    keep: Tensor
    mask: Tensor
    restore: Tensor


@dataclass(frozen=True)
class RandomMasking(CheckedArguments):
    """Hides a random part of the patches of each image (He et al., "Masked autoencoders …", 2021).

    With ``masking=`` of a loader, each batch has a :class:`Masking` as its last value, or as ``"masking"`` of a dict.

    Args:
        ratio: Fraction of the patches that are hidden. The number of shown patches is rounded down.
        patch: Side of a patch in pixels. It must divide height and width of the images.

    Raises:
        UsageError: ``ratio`` is not from 0 to below 1, or ``patch`` is not positive. When called: ``patch`` does not
            divide the images.
    """

    ratio: float = 0.75
    patch: int = 16

    def __post_init__(self) -> None:
        if isinstance(self.ratio, bool) or not isinstance(self.ratio, int | float) or not 0 <= self.ratio < 1:
            raise UsageError(f"RandomMasking: ratio should be from 0 to below 1, got {self.ratio!r}")
        if not isinstance(self.patch, int) or self.patch < 1:
            raise UsageError(f"RandomMasking: patch should be a positive number of pixels, got {self.patch!r}")

    def __call__(self, draws: Draws, size: tuple[int, int]) -> Masking:
        """Draws the masks of records.

        Args:
            draws: Draws of the records, numpy or torch.
            size: Height and width of their images. Raises :class:`UsageError` if the patch does not divide them.
        """
        if size[0] % self.patch or size[1] % self.patch:
            raise UsageError(
                f"RandomMasking: images of {size[0]}x{size[1]} are no whole number of patches of {self.patch}"
            )
        patches = size[0] // self.patch * (size[1] // self.patch)
        noise = torch.as_tensor(draws.bits(0, patches)).T
        order = noise.argsort(dim=1, stable=True)
        restore = order.argsort(1)
        kept = int(patches * (1 - self.ratio))
        return Masking(order[:, :kept].contiguous(), restore >= kept, restore)
