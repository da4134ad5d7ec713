"""Augmentation policies in timm's notation, such as ``rand-m9-mstd0.5-inc1``.

Names, levels and tables are from timm 1.0, ``data/auto_augment.py``. timm calls Pillow; the arithmetic here is
torchvision's, except for warps, whose edges and fills are Pillow's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.images.programs import INTERPOLATIONS, Code, Program, new_program, pack_warp_flags
from packstore.training.augment.base import Size
from packstore.training.augment.policies import Policy, draw_chain_weights, mix_chains
from packstore.training.augment.policy_tables import TIMM_BEGINNINGS, TIMM_POLICIES
from packstore.training.augment.warps import inverse_rotation
from packstore.training.random_draws import Draws, box_muller

_RAND = (
    *("AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd", "Color", "Contrast"),
    *("Brightness", "Sharpness", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel"),
)
_INCREASING = ("Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness")
_AUGMIX = (
    *("AutoContrast", "ColorIncreasing", "ContrastIncreasing", "BrightnessIncreasing", "SharpnessIncreasing"),
    *("Equalize", "Rotate", "PosterizeIncreasing", "SolarizeIncreasing", "ShearX", "ShearY", "TranslateXRel"),
    "TranslateYRel",
)
_WEIGHTED: dict[str, dict[str, float | None]] = {
    "weights": {
        "Rotate": 3,
        "ShearX": 2,
        "ShearY": 2,
        "TranslateXRel": 1,
        "TranslateYRel": 1,
        **dict.fromkeys(("ColorIncreasing", "SharpnessIncreasing", "AutoContrast"), 0.25),
        **dict.fromkeys(("SolarizeIncreasing", "SolarizeAdd", "ContrastIncreasing", "BrightnessIncreasing"), 0.05),
        **dict.fromkeys(("Equalize", "PosterizeIncreasing", "Invert"), 0.05),
    },
    "3aw": {
        **dict.fromkeys(("SolarizeIncreasing", "Desaturate", "GaussianBlur"), 6),
        "Rotate": 3,
        "ShearX": 2,
        "ShearY": 2,
        **dict.fromkeys(("PosterizeIncreasing", "AutoContrast", "ColorIncreasing", "SharpnessIncreasing"), 1),
        **dict.fromkeys(("ContrastIncreasing", "BrightnessIncreasing", "Equalize", "Invert"), 1),
    },
    "3a": dict.fromkeys(("SolarizeIncreasing", "Desaturate", "GaussianBlur"), None),
}
"""Operations and weights of the sets that ``t`` selects."""

_LEVELS = 10.0

Floats = NDArray[np.float64]

_BLUR_KERNEL = 15
"""Side of the kernel that approximates Pillow's blur, of a deviation of at most 2."""


class Magnitudes(NamedTuple):
    """Magnitudes of N steps, which decide their parameters.

    Attributes:
        part: Magnitudes as shares of 10, ``(N,)``.
        signed: The same times -1 or 1.
        size: Height and width of the images.
        uniform: Uniform numbers, ``(N,)``.
    """

    part: Floats
    signed: Floats
    size: Size
    uniform: Floats


Formula = Callable[[Magnitudes], Iterable[Any]]
"""Computes the first parameters of steps, each a number or ``(N,)``; None for 0."""


def _factor(m: Magnitudes) -> Iterable[Any]:
    """Returns factors that grow with the magnitude from 0.1 to 1.9."""
    return (m.part * 1.8 + 0.1,)  # timm ignores the sign, too


def _growing_factor(m: Magnitudes) -> Iterable[Any]:
    """Returns factors ``1 ± 0.9 * magnitude``, but none below 0.1."""
    return (np.maximum(0.1, 1 + m.signed * 0.9),)


def _nothing(m: Magnitudes) -> Iterable[Any]:
    """Returns no parameters."""
    return ()


def _blur(deviation: Floats) -> Sequence[Any]:
    """Returns width and height of the kernel, and its deviation across and down."""
    return _BLUR_KERNEL, _BLUR_KERNEL, deviation, deviation


# Matrices map the result to the source: positive pixels move the picture left (third place) or up (last place).
OPERATIONS: dict[str, tuple[Code, Formula]] = {
    **{
        name + suffix: (code, formula)
        for name, code in (
            ("Color", Code.SATURATION),
            ("Contrast", Code.CONTRAST),
            ("Brightness", Code.BRIGHTNESS),
            ("Sharpness", Code.SHARPNESS),
        )
        for suffix, formula in (("", _factor), ("Increasing", _growing_factor))
    },
    "AutoContrast": (Code.AUTOCONTRAST, _nothing),
    "Equalize": (Code.EQUALIZE, _nothing),
    "Invert": (Code.INVERT, _nothing),
    # Kept bits: from 0 up for larger magnitudes, from 4 down, and from 4 up as in AutoAugment's paper.
    "Posterize": (Code.POSTERIZE, lambda m: (np.trunc(m.part * 4).clip(0, 8),)),
    "PosterizeIncreasing": (Code.POSTERIZE, lambda m: ((4 - np.trunc(m.part * 4)).clip(0, 8),)),
    "PosterizeOriginal": (Code.POSTERIZE, lambda m: ((4 + np.trunc(m.part * 4)).clip(0, 8),)),
    # Thresholds: larger magnitudes invert fewer values, or more.
    "Solarize": (Code.SOLARIZE, lambda m: (np.trunc(m.part * 256).clip(max=256),)),
    "SolarizeIncreasing": (Code.SOLARIZE, lambda m: (256 - np.trunc(m.part * 256).clip(max=256),)),
    # Numbers to add below the threshold 128.
    "SolarizeAdd": (Code.SOLARIZE_ADD, lambda m: (np.trunc(m.part * 110).clip(max=128), 128)),
    "Desaturate": (Code.SATURATION, lambda m: ((0.5 - 0.5 * m.part).clip(0, 1),)),
    "GaussianBlur": (Code.BLUR, lambda m: _blur((0.1 + 1.9 * m.part).clip(0.1, 2.0))),
    # Between 0.1 and a limit, which is below 0.1 for magnitudes below 0.5.
    "GaussianBlurRand": (
        Code.BLUR,
        lambda m: _blur((0.1 + (2.0 * m.part.clip(0, 1) - 0.1) * m.uniform).clip(0.01)),
    ),
    "Rotate": (Code.AFFINE, lambda m: inverse_rotation(len(m.part), m.signed * 30.0).T),  # degrees
    # About the centre.
    "ShearX": (Code.AFFINE, lambda m: (1, m.signed * 0.3, m.signed * 0.3 * m.size[0] / 2, None, 1)),
    "ShearY": (Code.AFFINE, lambda m: (1, None, None, m.signed * 0.3, 1, m.signed * 0.3 * m.size[1] / 2)),
    "TranslateXRel": (Code.AFFINE, lambda m: (1, None, m.signed * 0.45 * m.size[1], None, 1)),
    "TranslateYRel": (Code.AFFINE, lambda m: (1, None, None, None, 1, m.signed * 0.45 * m.size[0])),
}
"""Code of each of timm's operations, and the formula of its parameters."""


@dataclass(frozen=True)
class TimmAugment(Policy):
    """Policy of timm in its notation, such as ``rand-m9-mstd0.5-inc1``. In a loader's list the text alone is enough.

    The notation begins with ``rand`` (RandAugment), ``augmix``, or a learned policy: ``original``, ``originalr``,
    ``v0``, ``v0r``, ``3a``. Parts follow after dashes; their defaults are in parentheses. For all policies:

    - ``mstd``: standard deviation of the magnitude (0). Above 100, the magnitude is uniform from 0 to ``m``; for augmix
      that is the default.

    For rand and augmix:

    - ``m``: magnitude (10; augmix 3).

    For rand:

    - ``n``: number of operations (2).
    - ``p``: probability of each (0.5).
    - ``mmax``: largest magnitude (10).
    - ``inc1``: use operations that grow with the magnitude. Without effect with ``t``.
    - ``t``: set of operations: ``tweights``, ``t3a`` or ``t3aw``. No operation of ``tweights`` and ``t3aw`` is drawn
      twice.

    For augmix:

    - ``w``: number of chains that are mixed (3).
    - ``d``: number of operations in each chain (1 to 3, at random).
    - ``a``: parameter of the distributions of the chains' weights (1).
    - ``b1``: accepted, without effect on the result.

    Args:
        config: The notation.
        fill: Byte of each channel for pixels outside a warped image. The default is timm's, the mean of ImageNet.
        interpolation: Interpolation of warps. ``"random"`` draws bilinear or bicubic for each warp.

    Raises:
        UsageError: Text that timm does not know, numbers out of range, an unknown interpolation, or an invalid fill.
    """

    interpolations = (*INTERPOLATIONS, "random")
    config: str
    fill: tuple[int, int, int] = (124, 116, 104)
    interpolation: str = "random"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.config, str):
            raise UsageError(f"TimmAugment: config should be a policy in timm's notation, got {self.config!r}")
        _parse_notation(self.config)

    @property
    def mixes_places(self) -> bool:
        """True for augmix, whose chains warp an image in different ways."""
        return self.config.startswith("augmix")

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws a chain of operations for each image; for augmix several chains, which are mixed."""
        plan = _parse_notation(self.config)
        if not plan.chains:
            return self._draw_chain(plan, draws, size)
        mixed = draws.child(2)
        chains = [self._draw_chain(plan, mixed.child(number), size) for number in range(plan.chains)]
        return mix_chains(chains, draw_chain_weights(draws, plan.alpha, plan.chains))

    def _draw_chain(self, plan: _PolicyPlan, draws: Draws, size: Size) -> Program:
        """Draws the program of one chain of operations for each image."""
        steps = plan.steps  # all at once below, because each call of numpy takes microseconds
        program = new_program(len(draws), steps)
        if not steps:
            return program
        chosen, shares, levels = plan.draw_operations(draws)
        own = draws.child(0)
        bits = own.bits(0, 7 * steps).reshape(7, steps, -1).transpose(0, 2, 1)
        happens = shares >= bits[0] * 2.0**-32
        if plan.random_depth:
            happens &= np.arange(steps) <= (bits[1, :, :1] * steps >> 32)
        kinds = np.where(happens, plan.kinds[chosen], -1).reshape(-1)
        order = np.argsort(kinds, kind="stable")  # by kind, so that each kind is written at once
        order = order[np.searchsorted(kinds, 0, sorter=order) :]
        level = _draw_magnitudes(bits[2:4] * 2.0**-32, levels, plan).reshape(-1)[order] / _LEVELS
        signs, ways, drawn = bits[4:].reshape(3, -1)[:, order]
        signed, uniform = np.where(signs >= 1 << 31, -level, level), drawn * 2.0**-32
        kinds = kinds[order]
        cells = new_program(len(order), 1)[:, 0]
        cells["code"] = plan.codes[chosen.reshape(-1)[order]]
        cells["flags"] = self._draw_warp_flags(ways) * (cells["code"] == Code.AFFINE)
        ends = np.searchsorted(kinds, np.arange(len(plan.formulas)), "right").tolist()
        for formula, start, stop in zip(plan.formulas, [0, *ends], ends, strict=False):
            if start < stop:
                rows = slice(start, stop)
                parameters = cells["p"][rows]
                for place, values in enumerate(formula(Magnitudes(level[rows], signed[rows], size, uniform[rows]))):
                    if values is not None:
                        parameters[:, place] = values
        program.reshape(-1)[order] = cells
        return program

    def _draw_warp_flags(self, bits: NDArray[np.int64]) -> Any:
        """Packs interpolation and fill colour into the ``flags`` of warps; ``bits`` are 32 random bits for each."""
        # The highest bit chooses bilinear or bicubic.
        way = 1 + (bits >> 31) if self.interpolation == "random" else INTERPOLATIONS.index(self.interpolation)
        return pack_warp_flags(way, self.parse_fill(), "edge")


@dataclass(eq=False)
class _PolicyPlan:
    """Parsed notation of a policy, from which operations are drawn.

    Attributes:
        steps: Number of operations per image and chain.
        names: Operations to choose from. Empty for learned policies.
        weights: Weights of the names, which are drawn without replacement. None draws equally, with replacement.
        magnitude: Magnitude of operations.
        share: Probability that a drawn operation runs.
        deviation: Standard deviation of the magnitude. Above 100, the magnitude is uniform.
        most: Largest magnitude.
        chains: Number of chains that are mixed; 0 for a single chain without mixing.
        random_depth: Draw the number of steps, 1 to ``steps``.
        alpha: Parameter of the distributions of the chains' weights.
        learned: Learned lists of operations to choose from, of equal length. Each operation has name, probability and
            magnitude.
    """

    steps: int = 2
    names: Sequence[Any] = ()
    weights: Sequence[float] | None = None
    magnitude: float = _LEVELS
    share: float = 0.5
    deviation: float = 0.0
    most: float = _LEVELS
    chains: int = 0
    random_depth: bool = False
    alpha: float = 1.0
    learned: list[list[tuple[str, float, int]]] = field(default_factory=list)

    @cached_property
    def formulas(self) -> list[Formula]:
        """Formulas of the parameters of this policy's operations, each listed once."""
        return list(dict.fromkeys(OPERATIONS[name][1] for name in self.operations))

    @cached_property
    def kinds(self) -> NDArray[np.int64]:
        """Index in :attr:`formulas` for each of :attr:`operations`."""
        return np.array([self.formulas.index(OPERATIONS[name][1]) for name in self.operations])

    @cached_property
    def codes(self) -> NDArray[np.int32]:
        """The :class:`Code` of each of :attr:`operations`."""
        return np.array([OPERATIONS[name][0] for name in self.operations], np.int32)

    @cached_property
    def operations(self) -> list[str]:
        """Names of all operations that may be drawn."""
        if self.learned:
            return sorted({name for pair in self.learned for name, _, _ in pair})
        return list(self.names)

    @cached_property
    def _pair_table(self) -> Floats:
        """Learned lists as ``(lists, steps, 3)``: index in :attr:`operations`, probability and magnitude."""
        names = self.operations
        pairs = [[(names.index(name), share, level) for name, share, level in pair] for pair in self.learned]
        return np.array(pairs, np.float64)

    def draw_operations(self, draws: Draws) -> tuple[NDArray[np.int64], Any, Any]:
        """Draws an operation for each image and step.

        Returns the operations as indices in :attr:`operations`, ``(B, steps)``, their probabilities and their
        magnitudes. The probabilities of operations that are not learned are a single number.
        """
        if self.learned:
            pairs = self._pair_table[draws.integers(len(self.learned), 0)]
            return pairs[..., 0].astype(np.int64), pairs[..., 1], pairs[..., 2]
        if self.weights is None:
            which = draws.integers(len(self.names), 0, self.steps).T
        else:  # without replacement: those with the shortest waiting times
            waits = -np.log1p(-draws.uniform(0, len(self.names)).T) / np.array(self.weights)
            which = np.argsort(waits, 1)[:, : self.steps]
        return which, self.share, np.full(which.shape, float(self.magnitude))


_RAND_PARTS = {"m": "magnitude", "n": "steps", "p": "share", "mstd": "deviation", "mmax": "most", "inc": ""}
_AUGMIX_PARTS = {"m": "magnitude", "mstd": "deviation", "w": "chains", "d": "steps", "a": "alpha", "b": ""}
_PARTS: dict[str, dict[str, str]] = {
    "rand": _RAND_PARTS,
    "augmix": _AUGMIX_PARTS,
    **{key: {"mstd": "deviation"} for key in TIMM_POLICIES},
}
"""Attributes of :class:`_PolicyPlan` by the letters of the notation."""


# Cached: nobody changes the plan.
@lru_cache(64)
def _parse_notation(config: str) -> _PolicyPlan:
    """Parses a policy in timm's notation, such as ``rand-m9-mstd0.5``."""
    first, *parts = config.split("-")
    plan, chosen, increasing = _PolicyPlan(), "", False
    if first in TIMM_POLICIES:
        plan.learned = TIMM_POLICIES[first]
        plan.steps = len(plan.learned[0])
    elif first == "augmix":
        plan = _PolicyPlan(3, _AUGMIX, magnitude=3, share=1.0, deviation=math.inf, chains=3, random_depth=True)
    elif first != "rand":
        raise UsageError(f"a policy in timm's notation begins with {', '.join(TIMM_BEGINNINGS)}, got {config!r}")
    for part in parts:
        match = re.fullmatch(r"([a-z]+)(.*)", part)
        key, value = match.groups() if match else (part, "")
        known = set(_PARTS[first])
        if first == "rand" and part[1:] in _WEIGHTED and part[0] == "t":
            chosen = part[1:]
            continue
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if key not in known or not 0 <= number < 1e6:
            raise UsageError(f"{part!r} in {config!r} is no part of timm's notation, such as rand-m9-mstd0.5-inc1")
        if key == "inc":
            increasing = bool(number)
        elif key != "b":
            setattr(plan, _PARTS[first][key], int(number) if key in ("m", "n", "w", "d") else number)
            plan.random_depth &= key != "d"
    if first == "augmix" and not (1 <= plan.chains <= 20 and 1 <= plan.steps <= 20 and plan.alpha > 0):
        raise UsageError(f"{config!r}: w and d should be 1 … 20, and a above 0")
    if first == "rand":
        table = _WEIGHTED.get(chosen)
        names = _RAND if table is None else tuple(table)
        if increasing and table is None:
            names = tuple(name + "Increasing" if name in _INCREASING else name for name in names)
        plan.names = names
        if table is not None and chosen != "3a":
            plan.weights = [float(weight) for weight in table.values() if weight is not None]
        if not 0 <= plan.steps <= (len(names) if plan.weights else 20):
            raise UsageError(f"{config!r}: n should be at most {len(names) if plan.weights else 20}, got {plan.steps}")
    return plan


def _draw_magnitudes(uniform: Floats, level: Floats, plan: _PolicyPlan) -> Floats:
    """Draws magnitudes ``(B, steps)`` around ``level`` from uniform numbers ``(2, B, steps)``."""
    if plan.deviation > 100:
        level = level * uniform[0]  # uniform from 0
    elif plan.deviation:
        level = level + plan.deviation * box_muller(*uniform)  # normally distributed
    return level.clip(0, plan.most)
