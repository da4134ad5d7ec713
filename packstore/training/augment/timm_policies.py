"""Augmentation policies in timm's notation, such as ``rand-m9-mstd0.5-inc1``.

Names, levels and tables are from timm 1.0, ``data/auto_augment.py``. timm calls Pillow; the arithmetic here is
torchvision's, except for warps, whose edges and fills are Pillow's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.images.programs import INTERPOLATIONS, Code, Program, new_program, pack_warp_flags
from packstore.training.augment.base import Size, check_interpolation, parse_fill
from packstore.training.augment.policies import draw_chain_weights, mix_chains
from packstore.training.augment.policy_tables import TIMM_BEGINNINGS, TIMM_POLICIES
from packstore.training.augment.program_operation import ProgramOperation
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

ParameterWriter = Callable[[Any, Floats, Floats, Size, NDArray[np.int32], Floats], None]
"""Writes parameters into steps ``(N,)``.

Arguments: the steps; magnitudes as shares of 10; signs, -1 or 1; height and width of the images; flags of warps;
uniform numbers."""


def _write_factor(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes factors that grow with the magnitude from 0.1 to 1.9."""
    steps["p"][:, 0] = part * 1.8 + 0.1  # timm ignores the sign, too


def _write_growing_factor(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes factors ``1 ± 0.9 * magnitude``, but none below 0.1."""
    steps["p"][:, 0] = np.maximum(0.1, 1 + sign * part * 0.9)


def _write_nothing(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes nothing, for operations without parameters."""


def _write_posterize(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes numbers of kept bits, from 0 up for larger magnitudes."""
    steps["p"][:, 0] = np.trunc(part * 4).clip(0, 8)


def _write_growing_posterize(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes numbers of kept bits, from 4 down for larger magnitudes."""
    steps["p"][:, 0] = (4 - np.trunc(part * 4)).clip(0, 8)


def _write_original_posterize(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes numbers of kept bits, from 4 up for larger magnitudes, as in AutoAugment's paper."""
    steps["p"][:, 0] = (4 + np.trunc(part * 4)).clip(0, 8)


def _write_solarize(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes thresholds, higher for larger magnitudes, which invert fewer values."""
    steps["p"][:, 0] = np.trunc(part * 256).clip(max=256)


def _write_growing_solarize(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes thresholds, lower for larger magnitudes, which invert more values."""
    steps["p"][:, 0] = 256 - np.trunc(part * 256).clip(max=256)


def _write_solarize_add(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes numbers to add, which grow with the magnitude, and the threshold 128."""
    steps["p"][:, 0], steps["p"][:, 1] = np.trunc(part * 110).clip(max=128), 128


def _write_desaturation(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes factors of saturation, from 0.5 down to 0 for larger magnitudes."""
    steps["p"][:, 0] = (0.5 - 0.5 * part).clip(0, 1)


def _write_blur(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes the kernel's side, and deviations that grow with the magnitude from 0.1 to 2."""
    most = (0.1 + 1.9 * part).clip(0.1, 2.0)
    steps["p"][:, :2], steps["p"][:, 2:4] = _BLUR_KERNEL, most[:, None]


def _write_random_blur(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes the kernel's side, and random deviations up to a limit that grows with the magnitude."""
    # Between 0.1 and the limit, which is below 0.1 for magnitudes below 0.5.
    most = 0.1 + (2.0 * part.clip(0, 1) - 0.1) * uniform
    steps["p"][:, :2], steps["p"][:, 2:4] = _BLUR_KERNEL, most.clip(0.01)[:, None]


def _write_rotation(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes matrices of rotations by up to 30 degrees in either direction, and the flags of the warp."""
    steps["flags"], steps["p"][:, :6] = flags, inverse_rotation(len(part), sign * part * 30.0)


def _write_shear_x(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes matrices that shear rows by up to 0.3 in either direction."""
    _write_shear(steps, sign * part * 0.3, flags, 1, size[0])


def _write_shear_y(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes matrices that shear columns by up to 0.3 in either direction."""
    _write_shear(steps, sign * part * 0.3, flags, 3, size[1])


def _write_shear(steps: Any, factor: Floats, flags: Any, place: int, length: int) -> None:
    """Writes matrices that shear about the centre, and the flags of the warp."""
    p = steps["p"]
    # Matrices map the result to the source. Place 1 shears rows, and length is the height; place 3 columns, the width.
    p[:, 0] = p[:, 4] = 1
    p[:, place], p[:, 2 if place == 1 else 5] = factor, factor * length / 2
    steps["flags"] = flags


def _write_translation_x(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes translations by up to 0.45 of the width in either direction."""
    _write_translation(steps, sign * part * 0.45 * size[1], flags, 2)


def _write_translation_y(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes translations by up to 0.45 of the height in either direction."""
    _write_translation(steps, sign * part * 0.45 * size[0], flags, 5)


def _write_translation(steps: Any, pixels: Floats, flags: Any, place: int) -> None:
    """Writes matrices that translate by ``pixels``, and the flags of the warp."""
    p = steps["p"]
    # Matrices map the result to the source: positive pixels move the picture left (place 2) or up (place 5).
    p[:, 0] = p[:, 4] = 1
    p[:, place], steps["flags"] = pixels, flags


OPERATIONS: dict[str, tuple[Code, ParameterWriter]] = {
    **{
        name + suffix: (code, make)
        for name, code in (
            ("Color", Code.SATURATION),
            ("Contrast", Code.CONTRAST),
            ("Brightness", Code.BRIGHTNESS),
            ("Sharpness", Code.SHARPNESS),
        )
        for suffix, make in (("", _write_factor), ("Increasing", _write_growing_factor))
    },
    "AutoContrast": (Code.AUTOCONTRAST, _write_nothing),
    "Equalize": (Code.EQUALIZE, _write_nothing),
    "Invert": (Code.INVERT, _write_nothing),
    "Posterize": (Code.POSTERIZE, _write_posterize),
    "PosterizeIncreasing": (Code.POSTERIZE, _write_growing_posterize),
    "PosterizeOriginal": (Code.POSTERIZE, _write_original_posterize),
    "Solarize": (Code.SOLARIZE, _write_solarize),
    "SolarizeIncreasing": (Code.SOLARIZE, _write_growing_solarize),
    "SolarizeAdd": (Code.SOLARIZE_ADD, _write_solarize_add),
    "Desaturate": (Code.SATURATION, _write_desaturation),
    "GaussianBlur": (Code.BLUR, _write_blur),
    "GaussianBlurRand": (Code.BLUR, _write_random_blur),
    "Rotate": (Code.AFFINE, _write_rotation),
    "ShearX": (Code.AFFINE, _write_shear_x),
    "ShearY": (Code.AFFINE, _write_shear_y),
    "TranslateXRel": (Code.AFFINE, _write_translation_x),
    "TranslateYRel": (Code.AFFINE, _write_translation_y),
}
"""Code of each of timm's operations, and the function that computes its parameters from the magnitude."""


@dataclass(frozen=True)
class TimmAugment(ProgramOperation):
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

    config: str
    fill: tuple[int, int, int] = (124, 116, 104)
    interpolation: str = "random"

    def __post_init__(self) -> None:
        check_interpolation(self, self.interpolation, (*INTERPOLATIONS, "random"))
        parse_fill(self, self.fill)
        if not isinstance(self.config, str):
            raise UsageError(f"TimmAugment: config should be a policy in timm's notation, got {self.config!r}")
        _parse_notation(self.config)

    @property
    def moves_pixels(self) -> bool:
        """True: policies may contain shears, translations and rotations."""
        return True

    @property
    def mixes_places(self) -> bool:
        """True for augmix, whose chains warp an image in different ways."""
        return self.config.startswith("augmix")

    @property
    def possible_steps(self) -> Collection[tuple[Code, int]]:
        """Saturation, which stands for all steps: it is refused for all images that a policy does not support."""
        return [(Code.SATURATION, 0)]

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
        sign = np.where(bits[4] >= 1 << 31, -1.0, 1.0).reshape(-1)[order]
        flags, drawn = self._draw_warp_flags(bits[5]).reshape(-1)[order], (bits[6] * 2.0**-32).reshape(-1)[order]
        kinds = kinds[order]
        cells = new_program(len(order), 1)[:, 0]
        cells["code"] = plan.codes[chosen.reshape(-1)[order]]
        ends = np.searchsorted(kinds, np.arange(len(plan.writers)), "right").tolist()
        for make, start, stop in zip(plan.writers, [0, *ends], ends, strict=False):
            if start < stop:
                rows = slice(start, stop)
                make(cells[rows], level[rows], sign[rows], size, flags[rows], drawn[rows])
        program.reshape(-1)[order] = cells
        return program

    def _draw_warp_flags(self, bits: NDArray[np.int64]) -> NDArray[np.int32]:
        """Packs interpolation and fill colour into the ``flags`` of warps, int32 in the shape of ``bits``."""
        if self.interpolation == "random":
            way: Any = 1 + (bits >> 31)  # the highest of 32 random bits: bilinear or bicubic
        else:
            way = np.full(bits.shape, INTERPOLATIONS.index(self.interpolation))
        flags: NDArray[np.int32] = np.asarray(
            pack_warp_flags(way.astype(np.int32), parse_fill(self, self.fill), "edge")
        )
        return flags.astype(np.int32)


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
    def writers(self) -> list[ParameterWriter]:
        """Functions that write the parameters of this policy's operations, each listed once."""
        return list(dict.fromkeys(OPERATIONS[name][1] for name in self.operations))

    @cached_property
    def kinds(self) -> NDArray[np.int64]:
        """Index in :attr:`writers` for each of :attr:`operations`."""
        return np.array([self.writers.index(OPERATIONS[name][1]) for name in self.operations])

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
