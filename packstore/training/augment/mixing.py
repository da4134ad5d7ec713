"""Mixes records of a batch: two images become one, and labels become shares of classes.

The draws depend on the records of the rank's batch: on the first record for a whole batch, on the first of each pair,
or on each record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.training.arguments import CheckedArguments
from packstore.training.augment.base import check_number, is_channels_last
from packstore.training.augment.logic import draw_choice
from packstore.training.augment.mosaic import Mosaic
from packstore.training.random_draws import GAMMA_DRAWS, Draws, beta, chance


class MixedLabels(NamedTuple):
    """Labels of a mixed batch, for a loss of ``share * loss(x, first) + (1 - share) * loss(x, second)``.

    Attributes:
        first: Labels of the records.
        second: Labels of the records that were mixed in.
        share: float32 ``(B,)``: weight of each image's own record.
    """

    first: Tensor
    second: Tensor
    share: Tensor


class _Mixer(CheckedArguments):
    """Method of mixing two images, with a positive ``alpha``."""

    alpha: float

    def __post_init__(self) -> None:
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float) or not 0 < self.alpha < math.inf:
            raise UsageError(f"{type(self).__name__}: alpha should be positive, got {self.alpha!r}")


@dataclass(frozen=True)
class MixUp(_Mixer):
    """Blends two images, as torchvision's ``MixUp`` (Zhang et al., "mixup: Beyond Empirical Risk Minimization",
    2017).

    Args:
        alpha: The share of the first image has the distribution Beta(alpha, alpha).

    Raises:
        UsageError: ``alpha`` is not positive.
    """

    alpha: float = 1.0


@dataclass(frozen=True)
class CutMix(_Mixer):
    """Pastes a box of one image into another, as torchvision's ``CutMix`` (Yun et al., 2019).

    Args:
        alpha: The share of the first image has the distribution Beta(alpha, alpha). If the box exceeds the image, it is
            cut off, and the share grows.

    Raises:
        UsageError: ``alpha`` is not positive.
    """

    alpha: float = 1.0


_MOST_CLASSES = 1 << 24
"""Each record gets a float32 for each class."""


@dataclass(frozen=True)
class BatchMixer(CheckedArguments):
    """Mixes the records of a batch by mixers that are drawn per batch, pair or record.

    Args:
        mixers: :class:`MixUp` and :class:`CutMix` to draw from.
        p: Probability of mixing, for each draw.
        weights: Probabilities of ``mixers``, or numbers in proportion. None for equal probabilities. timm's
            ``switch_prob`` of 0.3 is ``(0.7, 0.3)`` for ``[MixUp(…), CutMix(…)]``.
        mode: Which records are mixed, and how often mixers are drawn. ``"batch"``: records with their predecessors, by
            one draw, as in torchvision. ``"pair"``: the first record with the last, the second with the second to
            last, …. Each pair has a draw, as in timm. ``"elem"``: the same pairs, by a draw for each record.
        labels: ``"dense"``: labels become shares of classes, float32 ``(B, C)``; ``"pairs"``: :class:`MixedLabels`.
        label_smoothing: Weight distributed over all classes, before mixing. It pulls multi-hot labels towards 0.5.
            Not with ``labels="pairs"``.
        num_classes: Number of classes; None for the store's.

    Raises:
        UsageError: Invalid options. While iterating: the number of classes is unknown; or, on the CPU, a label is
            negative or not below it.
    """

    mixers: Sequence[MixUp | CutMix]
    p: float = 1.0
    weights: Sequence[float] | None = None
    mode: Literal["batch", "pair", "elem"] = "batch"
    labels: Literal["dense", "pairs"] = "dense"
    label_smoothing: float = 0.0
    num_classes: int | None = None

    def __post_init__(self) -> None:
        known = isinstance(self.mixers, Sequence) and all(isinstance(each, MixUp | CutMix) for each in self.mixers)
        if not known or not self.mixers:
            raise UsageError(f"mix= takes MixUp, CutMix, a list of them or BatchMixer, got {self.mixers!r}")
        object.__setattr__(self, "mixers", tuple(self.mixers))
        check_number(self, "p", 0, 1)
        check_number(self, "label_smoothing", 0, 1)
        if self.mode not in ("batch", "pair", "elem"):
            raise UsageError(f"BatchMixer: mode should be 'batch', 'pair' or 'elem', got {self.mode!r}")
        if self.labels not in ("dense", "pairs"):
            raise UsageError(f"BatchMixer: labels should be 'dense' or 'pairs', got {self.labels!r}")
        if self.labels == "pairs" and self.label_smoothing:
            raise UsageError(
                "BatchMixer: label_smoothing is for labels='dense'; a loss has an option of its own for it"
            )
        if self.num_classes is not None:
            check_number(self, "num_classes", 1, _MOST_CLASSES, whole=True)
        if self.weights is not None:
            if not isinstance(self.weights, Sequence) or isinstance(self.weights, str):
                raise UsageError(f"BatchMixer: weights should be a list of numbers, got {self.weights!r}")
            if len(self.weights) != len(self.mixers) or min(self.weights) < 0 or sum(self.weights) <= 0:
                raise UsageError(
                    f"BatchMixer: weights should be a number of at least 0 for each mixer, got {self.weights!r}"
                )
            object.__setattr__(self, "weights", tuple(self.weights))

    def draw_mix(self, draws: Draws, size: tuple[int, int]) -> DrawnMix:
        """Draws how a batch is mixed. Rows that are not mixed get the share 1.

        A box is cut off at the border of the image, and the share grows accordingly.

        Args:
            draws: Draws of the batch's records, numpy.
            size: Height and width of the batch's images.
        """
        (height, width), rows = size, np.arange(len(draws))
        # The records whose draws count, and their partners.
        if self.mode == "batch":
            deciding, partners, draws = rows * 0, (rows - 1) % max(1, len(draws)), draws[:1]
        else:
            partners = len(draws) - 1 - rows
            deciding = np.minimum(rows, partners) if self.mode == "pair" else rows
        chosen = draw_choice(draws, len(self.mixers), self.weights, 0)
        share = np.ones(len(draws))
        for number, mixer in enumerate(self.mixers):
            mine = chosen == number
            if mine.any():
                share[mine] = beta(draws, mixer.alpha, 8)[mine]
        share = np.where(chance(draws, self.p, 1), share, 1.0)
        cuts = np.array([isinstance(mixer, CutMix) for mixer in self.mixers])[chosen] & (share < 1)
        # The box has the area 1 - share before it is cut off at the border.
        half = 0.5 * np.sqrt(1.0 - share)
        sides = [(half * length).astype(np.int64) for length in size]
        middle = [draws.integers(length, 8 + 2 * GAMMA_DRAWS + n) for n, length in enumerate(size)]
        first = [np.clip(m - s, 0, None) for m, s in zip(middle, sides, strict=True)]
        stop = [np.clip(m + s, None, length) for m, s, length in zip(middle, sides, size, strict=True)]
        box = np.stack([*first, *stop], 1)
        area = (stop[0] - first[0]) * (stop[1] - first[1])
        share = np.where(cuts, 1.0 - area / (height * width), share)
        return DrawnMix(partners, share[deciding], cuts[deciding], box[deciding])

    def mix_labels(self, labels: Tensor, drawn: DrawnMix, classes: int | None) -> Any:
        """Mixes the labels of a batch, as its images were mixed: to shares of classes, or :class:`MixedLabels`.

        Args:
            labels: int64 ``(B,)``, or shares of classes ``(B, C)``.
            drawn: Draws of the batch.
            classes: Number of classes of the store, if known.

        Raises:
            UsageError: The number of classes is unknown. On the CPU also: a label is no class.
        """
        share = torch.from_numpy(drawn.share.astype(np.float32)).to(labels.device, non_blocking=True)
        partners = torch.from_numpy(drawn.partners).to(labels.device, non_blocking=True)
        if self.labels == "pairs":
            return MixedLabels(labels, labels[partners], share)
        if labels.ndim == 1:
            labels = self._one_hot(labels, self.num_classes if self.num_classes is not None else classes)
        elif self.label_smoothing:
            labels = labels.float() * (1 - self.label_smoothing) + 0.5 * self.label_smoothing
        rest = torch.from_numpy((1.0 - drawn.share).astype(np.float32)).to(labels.device, non_blocking=True)
        labels = labels.float()
        return labels[partners].mul_(rest[:, None]).add_(labels.mul(share[:, None]))

    def _one_hot(self, labels: Tensor, classes: int | None) -> Tensor:
        """Converts labels to smoothed probabilities of classes, float32 ``(B, classes)``."""
        if classes is None:
            raise UsageError("mix=: the store has no class names to count; say BatchMixer([...], num_classes=…)")
        off = self.label_smoothing / classes
        result = torch.full((len(labels), classes), off, device=labels.device, dtype=torch.float32)
        known = (labels >= 0) & (labels < classes)
        # On a device, a check would make the host wait.
        if labels.device.type == "cpu" and not bool(known.all()):
            raise UsageError(f"mix=: a label is {int(labels[~known][0])}, and there are {classes} classes")
        return result.scatter_(1, labels[:, None], 1.0 - self.label_smoothing + off)


@dataclass(frozen=True, eq=False)
class DrawnMix:
    """Says how each record of a batch is mixed with another record.

    Attributes:
        partners: int64 ``(B,)``: row that each record is mixed with.
        share: float64 ``(B,)``: weight of each record's own image.
        cuts: bool ``(B,)``: rows that get a box; the others are blended.
        box: int64 ``(B, 4)``: top, left, bottom and right of the box, the last two exclusive.
    """

    partners: NDArray[np.int64]
    share: NDArray[np.float64]
    cuts: NDArray[np.bool_]
    box: NDArray[np.int64]

    def mix_images(self, images: Tensor) -> Tensor:
        """Mixes ``images`` ``(B, C, H, W)`` into a new batch. Rounds integers to the nearest.

        Returns ``images`` themselves if nothing is mixed.
        """
        if not (self.share < 1).any():
            return images
        device, layout = images.device, torch.channels_last if is_channels_last(images) else torch.contiguous_format
        partners = images[torch.from_numpy(self.partners).to(device, non_blocking=True)]
        result = partners
        if not self.cuts.all():
            # Rows that get a box, or are not mixed, take no share of the partner here.
            share = np.where(self.cuts, 1.0, self.share)
            shares = torch.from_numpy(np.stack([share, 1 - share]).astype(np.float32)).to(device, non_blocking=True)
            own, rest = shares[:, :, None, None, None]
            wide = partners if partners.dtype in (torch.float32, torch.float64) else partners.float()
            result = wide.mul(rest).add_(images * own)
            result = (result if images.dtype.is_floating_point else result.round_()).to(images.dtype)
        if self.cuts.any():
            y, x = (torch.arange(length, device=device) for length in images.shape[-2:])
            box = torch.from_numpy(np.ascontiguousarray(self.box.T)).to(device, non_blocking=True)
            top, left, bottom, right = box[:, :, None]
            rows, columns = (y >= top) & (y < bottom), (x >= left) & (x < right)
            cuts = torch.from_numpy(self.cuts).to(device, non_blocking=True)[:, None, None]
            inside = (rows[:, :, None] & columns[:, None, :] & cuts)[:, None]
            result = torch.where(inside, partners, images if self.cuts.all() else result)
        return result.contiguous(memory_format=layout)


def parse_mix(mix: Any) -> BatchMixer | Mosaic | None:
    """Converts a user's ``mix=`` to a :class:`BatchMixer`. None, :class:`BatchMixer` and :class:`Mosaic` stay
    unchanged.

    An empty list becomes None. Raises :class:`UsageError` for anything else, with the counterpart of a mixer of
    torchvision or timm.
    """
    if mix is None or isinstance(mix, BatchMixer | Mosaic):
        return mix
    mixers = [mix] if isinstance(mix, MixUp | CutMix) else mix
    if isinstance(mixers, Sequence) and not mixers:
        return None
    try:
        return BatchMixer(mixers)
    except UsageError as error:
        ours = describe_mix(mix)
        if ours is None:
            raise
        raise UsageError(f"{error}; write {ours}") from None


def describe_mix(mixer: Any) -> str | None:
    """Returns the ``mix=`` for one or more mixers of packstore, torchvision or timm; None for anything else."""
    if isinstance(mixer, list | tuple) and len(mixer) == 1:
        return describe_mix(mixer[0])
    if isinstance(mixer, BatchMixer | Mosaic):
        return f"mix={mixer!r}"
    alphas, options = _read_mixer(mixer)
    mixers = ", ".join(f"packstore.augment.{name}({alpha!r})" for name, alpha in alphas)
    given = "".join(f", {name}={value!r}" for name, value in options.items() if value is not None)
    if not mixers:
        return None
    return f"mix={mixers}" if len(alphas) == 1 and not given else f"mix=packstore.augment.BatchMixer([{mixers}]{given})"


def _read_mixer(mixer: Any) -> tuple[list[tuple[str, float]], dict[str, Any]]:
    """Returns names and alphas of the mixers that ``mixer`` draws from, and options of :class:`BatchMixer`."""
    libraries = ("packstore.training.augment.mixing", "torchvision.transforms", "timm.data.mixup")
    names = {kind.__name__ for kind in type(mixer).__mro__ if kind.__module__.startswith(libraries)}
    # Names of classes are compared, because neither library needs to be installed.
    if own := names & {"MixUp", "CutMix"}:
        return [(own.pop(), mixer.alpha)], {"num_classes": getattr(mixer, "num_classes", None)}
    if "Mixup" in names:
        both = [("MixUp", mixer.mixup_alpha), ("CutMix", mixer.cutmix_alpha)]
        alphas, share = [(name, alpha) for name, alpha in both if alpha > 0], mixer.switch_prob
        return alphas, {
            "p": mixer.mix_prob if mixer.mix_prob != 1 else None,
            "weights": (round(1 - share, 9), share) if len(alphas) == 2 and share != 0.5 else None,
            "mode": mixer.mode if mixer.mode in ("pair", "elem") else None,
            "label_smoothing": mixer.label_smoothing or None,
            "num_classes": mixer.num_classes,
        }
    is_choice = "RandomChoice" in names
    chosen = getattr(mixer, "transforms", ()) if is_choice else mixer if isinstance(mixer, list | tuple) else ()
    found = [_read_mixer(each) for each in chosen]
    if not found or any(len(alphas) != 1 for alphas, _ in found):
        # No mixer, or a choice of something else.
        return [], {}
    weights = getattr(mixer, "p", None)
    classes = (options.get("num_classes") for _, options in found)
    return [alphas[0] for alphas, _ in found], {
        "weights": tuple(weights) if weights and len(set(weights)) > 1 else None,
        "num_classes": next((each for each in classes if each is not None), None),
    }
