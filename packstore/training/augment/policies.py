"""Augmentation policies under torchvision's names: operations and magnitudes drawn per image from a table."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.images.programs import Code, Program, new_program
from packstore.training.augment.base import Size, check_number
from packstore.training.augment.colour import GaussianBlur, Grayscale, RandomSolarize
from packstore.training.augment.logic import RandomChoice
from packstore.training.augment.policy_tables import POLICIES
from packstore.training.augment.program_operation import ProgramOperation
from packstore.training.augment.warps import Fill, WarpOperation, inverse_affine, inverse_rotation
from packstore.training.random_draws import GAMMA_DRAWS, Draws, chance, dirichlet

Magnitudes = NDArray[np.float64]

_SIGNED = {*("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness")}
"""Operations whose magnitude changes sign with probability 1/2."""

_FACTORS = {
    "Brightness": Code.BRIGHTNESS,
    "Color": Code.SATURATION,
    "Contrast": Code.CONTRAST,
    "Sharpness": Code.SHARPNESS,
}
_PLAIN = {"AutoContrast": Code.AUTOCONTRAST, "Equalize": Code.EQUALIZE, "Invert": Code.INVERT}

_WIDE = {
    **dict.fromkeys(("ShearX", "ShearY", "Brightness", "Color", "Contrast", "Sharpness"), 0.99),
    **dict.fromkeys(("TranslateX", "TranslateY"), 32.0),
    "Rotate": 135.0,
}
"""Largest magnitudes of TrivialAugmentWide (Müller and Hutter, 2021)."""


@lru_cache(256)
def compute_magnitudes(name: str, bins: int, size: Size, policy: str) -> Magnitudes | None:
    """Computes the ``bins`` magnitudes of an operation for images of ``size``; None if it has no magnitudes.

    Computed in float32 as in torchvision, returned as float64. Cached.

    Args:
        name: Torchvision's name.
        bins: Number of magnitudes.
        size: Height and width. Only translations depend on them.
        policy: ``"auto"`` (AutoAugment and RandAugment), ``"wide"`` or ``"mix"`` (AugMix).
    """
    if name in _PLAIN or name == "Identity":
        return None
    if name == "Posterize":
        bits = 8 - (torch.arange(bins) / ((bins - 1) / {"wide": 6, "auto": 4, "mix": 4}[policy])).round()
        # AugMix keeps at most 4 bits.
        return (bits - 4 if policy == "mix" else bits).double().numpy()
    if name == "Solarize":
        return torch.linspace(1.0, 0.0, bins, dtype=torch.float32).double().numpy()
    length = size[0] if name == "TranslateY" else size[1]
    most = _WIDE[name] if policy == "wide" else _largest_magnitude(name, length, policy)
    return torch.linspace(0.0, most, bins, dtype=torch.float32).double().numpy()


def _largest_magnitude(name: str, length: int, policy: str) -> float:
    """Returns the largest magnitude of an operation, for other policies than ``"wide"``."""
    if name.startswith("Translate"):
        return length / 3.0 if policy == "mix" else 150.0 / 331.0 * length  # pixels
    # Rotations are in degrees, others are shares.
    return {"ShearX": 0.3, "ShearY": 0.3, "Rotate": 30.0}.get(name, 0.9)


def write_steps(
    program: Program, rows: NDArray[np.int64], column: int, name: str, magnitude: Any, size: Size, flags: int
) -> None:
    """Writes the step of an operation into ``column`` of the given rows of a program.

    Args:
        program: ``(B, n)``.
        rows: int64 ``(k,)``.
        column: Index of the step.
        name: Torchvision's name.
        magnitude: float64 ``(k,)``, signed. Operations without magnitudes ignore it.
        size: Height and width of the images.
        flags: Interpolation and fill of warps, encoded.
    """
    steps = np.zeros(len(rows), program.dtype)
    if name in _FACTORS:
        steps["code"], steps["p"][:, 0] = _FACTORS[name], 1.0 + magnitude
    elif name in _PLAIN:
        steps["code"] = _PLAIN[name]
    elif name == "Posterize":
        steps["code"], steps["p"][:, 0] = Code.POSTERIZE, magnitude
    elif name == "Solarize":
        steps["code"], steps["p"][:, 0] = Code.SOLARIZE, 255.0 * magnitude
    elif name != "Identity":
        steps["code"], steps["flags"] = Code.AFFINE, flags
        steps["p"][:, :6] = _warp_matrix(name, magnitude, size)
    program[rows, column] = steps


def _warp_matrix(name: str, magnitude: Any, size: Size) -> NDArray[np.float64]:
    """Computes matrices ``(k, 6)`` of an operation that moves pixels, from the result to the source."""
    count, (height, width) = len(magnitude), size
    if name == "Rotate":
        return inverse_rotation(count, magnitude)
    if name.startswith("Translate"):
        pixels = np.trunc(magnitude)
        return inverse_affine(count, translate=(pixels, 0.0) if name[-1] == "X" else (0.0, pixels))
    degrees = np.degrees(np.arctan(magnitude))  # the tables have the share, torchvision's affine takes degrees
    corner = (-0.5 * width, -0.5 * height)
    return inverse_affine(count, shear=(degrees, 0.0) if name[-1] == "X" else (0.0, degrees), centre=corner)


class Policy(WarpOperation):
    """Base of policies, which contain warps."""

    has_deep_fills = False

    @property
    def possible_steps(self) -> Collection[tuple[Code, int]]:
        """Saturation, which stands for all steps: it is refused for all images that a policy does not support."""
        return [(Code.SATURATION, 0)]

    def _select_steps(
        self,
        names: Sequence[str],
        policy: tuple[str, int],  # name, number of magnitudes
        size: Size,
        chosen: NDArray[np.int64],  # indices in names
        level: NDArray[np.int64] | int,  # numbers of magnitudes
        negative: NDArray[np.bool_],
    ) -> Program:
        """Looks up the steps of the ``chosen`` operations in a table by magnitude and sign."""
        table = tabulate_steps(tuple(names), policy, size, self.warp_flags)
        steps: Program = table[chosen, level, negative.astype(np.int64)]
        return steps


@lru_cache(32)
def tabulate_steps(names: tuple[str, ...], policy: tuple[str, int], size: Size, flags: int) -> Program:
    """Builds the steps of operations by name, magnitude and sign: ``(names, bins, 2)``, positive first. Cached.

    Args:
        names: Torchvision's names.
        policy: Policy as for :func:`compute_magnitudes`, and the number of bins.
        size: Height and width of the images.
        flags: Interpolation and fill of warps, encoded.
    """
    kind, bins = policy
    table = np.empty((len(names), bins, 2), new_program(0).dtype)
    for name, steps in zip(names, table, strict=True):
        magnitudes = compute_magnitudes(name, bins, size, kind)
        magnitude = np.zeros(bins) if magnitudes is None else magnitudes
        for column, sign in enumerate((1, -1 if name in _SIGNED else 1)):
            write_steps(steps, np.arange(bins), column, name, sign * magnitude, size, flags)
    return table


RAND_AUGMENT = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast"),
    *("Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)
"""Operations of RandAugment and TrivialAugmentWide."""

_AUG_MIX = (
    *("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Posterize", "Solarize", "AutoContrast", "Equalize"),
    *("Brightness", "Color", "Contrast", "Sharpness"),
)
_PARTIAL = 9
"""Number of operations that AugMix uses without ``all_ops``."""


@dataclass(frozen=True)
class RandAugment(Policy):
    """Runs ``num_ops`` random operations of one magnitude, as torchvision's ``RandAugment`` (Cubuk et al., 2019).

    Args:
        num_ops: Number of operations, at most 20.
        magnitude: Magnitude of all operations, below ``num_magnitude_bins``.
        num_magnitude_bins: Number of magnitudes, 2 … 1000.
        interpolation: Interpolation of warps: ``"nearest"`` or ``"bilinear"``.
        fill: Byte, or three, for pixels outside a warped image; None for black.

    Raises:
        UsageError: A number out of range, an unknown interpolation, an invalid fill.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: Fill = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "num_magnitude_bins", 2, 1000, whole=True)
        check_number(self, "num_ops", 0, 20, whole=True)
        check_number(self, "magnitude", 0, self.num_magnitude_bins - 1, whole=True)

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws ``num_ops`` operations of the one magnitude for each image, with replacement."""
        if not self.num_ops:
            return new_program(len(draws), 0)
        chosen = draws.integers(len(RAND_AUGMENT), 0, self.num_ops).T
        negative = draws.bits(self.num_ops, self.num_ops).T < 1 << 31
        return self._select_steps(
            RAND_AUGMENT, ("auto", self.num_magnitude_bins), size, chosen, self.magnitude, negative
        )


@dataclass(frozen=True)
class TrivialAugmentWide(Policy):
    """Runs one random operation of a random magnitude, as torchvision's ``TrivialAugmentWide``.

    Args:
        num_magnitude_bins: Number of magnitudes, 2 … 1000.
        interpolation: As for :class:`RandAugment`.
        fill: As for :class:`RandAugment`.

    Raises:
        UsageError: A number out of range, an unknown interpolation, an invalid fill.
    """

    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: Fill = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "num_magnitude_bins", 2, 1000, whole=True)

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws one operation and its magnitude for each image."""
        policy, chosen = ("wide", self.num_magnitude_bins), draws.integers(len(RAND_AUGMENT), 0)
        level = draws.integers(self.num_magnitude_bins, 1)
        return self._select_steps(RAND_AUGMENT, policy, size, chosen, level, chance(draws, 0.5, 2))[:, None]


@dataclass(frozen=True)
class AutoAugment(Policy):
    """Runs a random pair of operations of a learned policy, as torchvision's ``AutoAugment`` (Cubuk et al., 2018).

    Args:
        policy: ``"imagenet"``, ``"cifar10"`` or ``"svhn"``.
        interpolation: As for :class:`RandAugment`.
        fill: As for :class:`RandAugment`.

    Raises:
        UsageError: An unknown policy or interpolation, an invalid fill.
    """

    policy: str = "imagenet"
    interpolation: str = "nearest"
    fill: Fill = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy not in (*POLICIES,):
            raise UsageError(f"AutoAugment: policy should be one of {', '.join(POLICIES)}, got {self.policy!r}")

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws a pair of the policy for each image, and which of its two operations run."""
        pairs = POLICIES[self.policy]
        program = new_program(len(draws), 2)
        chosen = draws.integers(len(pairs), 0)
        for place in range(2):
            names, shares, levels = (list(each) for each in zip(*(pair[place] for pair in pairs), strict=True))
            happens = draws.uniform(1 + place) <= np.array(shares)[chosen]
            level, negative = np.array(levels)[chosen], chance(draws, 0.5, 3 + place)
            steps = self._select_steps(names, ("auto", 10), size, chosen, level, negative)
            program[happens, place] = steps[happens]
        return program


@dataclass(frozen=True)
class AugMix(Policy):
    """Mixes an image with several chains of random operations on it, as torchvision's ``AugMix`` (Hendrycks, 2019).

    Args:
        severity: How many of the ten magnitudes are used, from the weakest on: 1 … 10.
        mixture_width: Number of chains, at most 20.
        chain_depth: Number of operations in each chain, at most 20. Below 1, it is random for each chain: 1 … 3.
        alpha: Parameter of the distributions of weights.
        all_ops: Include brightness, contrast, colour and sharpness.
        interpolation: As for :class:`RandAugment`.
        fill: As for :class:`RandAugment`.

    Raises:
        UsageError: A number out of range, an unknown interpolation, an invalid fill.
    """

    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: str = "bilinear"
    fill: Fill = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "severity", 1, 10, whole=True)
        check_number(self, "mixture_width", 1, 20, whole=True)
        if not isinstance(self.chain_depth, int) or self.chain_depth > 20:
            raise UsageError(f"AugMix: chain_depth should be at most 20, got {self.chain_depth!r}")
        if not isinstance(self.alpha, int | float) or not 0 < self.alpha < 1e6:
            raise UsageError(f"AugMix: alpha should be positive, got {self.alpha!r}")

    @property
    def mixes_places(self) -> bool:
        """True: the chains warp an image in different ways."""
        return True

    def draw_chains(self, draws: Draws, size: Size) -> tuple[list[Program], NDArray[np.float32]]:
        """Draws the program of each chain of operations, and the weights for :func:`mix_chains`."""
        names = _AUG_MIX if self.all_ops else _AUG_MIX[:_PARTIAL]
        own, most, chains = draws.child(2), max(self.chain_depth, 0) or 3, self.mixture_width
        count = chains * most
        bits = own.bits(0, 3 * count + chains).T  # all at once: numpy takes microseconds a call
        chosen, level = bits[:, :count] * len(names) >> 32, bits[:, count : 2 * count] * self.severity >> 32
        negative = bits[:, 2 * count : 3 * count] < 1 << 31
        program = self._select_steps(names, ("mix", 10), size, chosen, level, negative).reshape(
            len(draws), chains, most
        )
        if self.chain_depth < 1:
            depth = 1 + (bits[:, 3 * count :] * 3 >> 32)
            program[np.arange(most) >= depth[..., None]] = 0
        weights = draw_chain_weights(draws, self.alpha, chains)
        return [program[:, number] for number in range(chains)], weights

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws all chains, and joins them to one program that mixes their results."""
        return mix_chains(*self.draw_chains(draws, size))


def draw_chain_weights(draws: Draws, alpha: float, chains: int) -> NDArray[np.float32]:
    """Draws AugMix's weights, float32 ``(B, 1 + chains)``, which sum to 1.

    The first is the weight of the image itself. The others are those of the chains' results.
    """
    own = dirichlet(draws, alpha, 2, 0)
    shares = dirichlet(draws, alpha, chains, 2 * GAMMA_DRAWS)
    return np.concatenate([own[:, :1], shares * own[:, 1:]], 1).astype(np.float32)


def mix_chains(chains: Sequence[Program], weights: NDArray[np.float32]) -> Program:
    """Joins the programs of ``chains`` to one that sums the image and the results of all chains on it.

    ``weights``: weights of the sum, as from :func:`draw_chain_weights`.
    """
    program = new_program(len(weights), 2 + sum(chain.shape[1] + 1 for chain in chains))
    codes, shares, place = program["code"], program["p"][..., 0], 1
    codes[:, 0], shares[:, 0], codes[:, -1] = Code.KEEP, weights[:, 0], Code.MIX
    for number, chain in enumerate(chains, 1):
        program[:, place : place + chain.shape[1]] = chain
        place += chain.shape[1]
        codes[:, place], shares[:, place] = Code.ADD, weights[:, number]
        place += 1
    return program


@dataclass(frozen=True)
class ThreeAugment(ProgramOperation):
    """Makes each image gray, solarised or blurred, with equal probabilities, as 3-Augment of DeiT III.

    Source: facebookresearch/deit, augment.py. Its blur by Pillow has a radius of 0.1 to 2, which is the deviation here.
    """

    @property
    def possible_steps(self) -> Collection[tuple[Code, int]]:
        """Steps of the three operations."""
        return _THREE.possible_steps

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws one of the three operations for each image."""
        return _THREE.draw_program(draws, size)


_THREE = RandomChoice([Grayscale(), RandomSolarize(128, p=1.0), GaussianBlur(15, (0.1, 2.0))])
