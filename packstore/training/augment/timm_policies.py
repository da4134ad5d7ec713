"""Policies in timm's notation, such as ``rand-m9-mstd0.5-inc1``.

Source of names, levels and tables: timm 1.0, ``data/auto_augment.py``. timm calls Pillow; the arithmetic here is
torchvision's, but for warps, whose edges and fills are Pillow's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.images.programs import INTERPOLATIONS, Code, Program, new_program, warp_flags
from packstore.training.augment.auto_augment_tables import TIMM_POLICIES
from packstore.training.augment.base import Size
from packstore.training.augment.distributions import normal
from packstore.training.augment.matrices import inverse_affine, rotation
from packstore.training.augment.policies import chain_weights, mixed_program
from packstore.training.augment.program_operation import ProgramOperation, as_fill, check_interpolation
from packstore.training.random_draws import Draws

Floats = NDArray[np.float64]

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
"""Operations of the sets that ``t`` names, and their weights."""

_BLUR_KERNEL = 15
"""Side of the kernel that stands for Pillow's blur, of a deviation of at most 2."""

_LEVELS = 10.0


@dataclass(frozen=True)
class TimmAugment(ProgramOperation):
    """A policy of timm's, by its notation: ``rand-…`` (RandAugment), ``augmix-…``, or a learned one: ``original``, ….

    In a loader's list the text alone is enough.

    Args:
        config: ``rand``, ``augmix``, or ``original``, ``originalr``, ``v0``, ``v0r``, ``3a``; then parts after dashes:
            ``m`` magnitude (10; augmix 3), ``mstd`` standard deviation of the magnitude (0; above 100, and unsaid for
            augmix, it is uniform up to it). Of rand also ``n`` operations (2), ``p`` probability of each (0.5),
            ``mmax`` largest magnitude (10), ``inc1`` for operations that grow with the magnitude, ``t`` set of
            operations: ``weights``, ``3a`` or ``3aw``. Of augmix ``w`` chains (3), ``d`` operations in each (1 … 3),
            ``a`` of the distributions of weights (1), and ``b1``, which gives the same sum.
        fill: Bytes where a warp shows what lies outside; timm's are the mean of ImageNet.
        interpolation: Of warps; ``"random"`` for bilinear or bicubic.

    Raises:
        UsageError: Text that timm does not know, or an unknown interpolation.
    """

    config: str
    fill: tuple[int, int, int] = (124, 116, 104)
    interpolation: str = "random"

    def __post_init__(self) -> None:
        check_interpolation(self, self.interpolation, (*INTERPOLATIONS, "random"))
        as_fill(self, self.fill)
        _parse(self.config)

    @property
    def moves_pixels(self) -> bool:
        return True

    def program(self, draws: Draws, size: Size) -> Program:
        plan = _parse(self.config)
        if not plan.chains:
            return self._chain(plan, draws, size)
        mixed = draws.child(2)
        chains = [self._chain(plan, mixed.child(number), size) for number in range(plan.chains)]
        return mixed_program(chains, chain_weights(draws, plan.alpha, plan.chains))

    def _chain(self, plan: _Plan, draws: Draws, size: Size) -> Program:
        program = new_program(len(draws), plan.steps)
        names, chosen, shares, levels = plan.choose(draws)
        for step in range(plan.steps):
            own = draws.child(step)
            happens = own.uniform(0) <= shares[:, step]
            level = _spread(own, levels[:, step], plan)
            flags, signs = self._flags(own), np.where(own.uniform(5) > 0.5, -1.0, 1.0)
            for number in np.unique(chosen[:, step]).tolist():
                rows = np.flatnonzero((chosen[:, step] == number) & happens)
                if len(rows):
                    program[rows, step] = _steps(names[number], level[rows], own, rows, size, flags[rows], signs[rows])
        if plan.random_depth:
            program[np.arange(plan.steps) > draws.child(plan.steps).integers(plan.steps, 0)[:, None]] = 0
        return program

    def _flags(self, draws: Draws) -> NDArray[np.int32]:
        if self.interpolation == "random":
            way: Any = 1 + draws.integers(2, 4)
        else:
            way = np.full(len(draws), INTERPOLATIONS.index(self.interpolation))
        flags: NDArray[np.int32] = np.asarray(warp_flags(way.astype(np.int32), as_fill(self, self.fill), "edge"))
        return flags.astype(np.int32)


@dataclass
class _Plan:
    """What a text says.

    Attributes:
        steps: Operations an image.
        names: Operations to choose from, or pairs of (name, probability, magnitude) in lists.
        weights: Of names; None for equal ones, with replacement.
        chains: How many chains of them are mixed; 0 for one that is not.
        random_depth: Whether any number of steps is taken, from 1 on.
        alpha: Of the distributions of the chains' shares.
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

    def choose(self, draws: Draws) -> tuple[list[str], NDArray[np.int64], Floats, Floats]:
        """Names of operations; and of each image and step, ``(B, steps)``: which, its probability, its magnitude."""
        count = len(draws)
        if self.learned:
            chosen = draws.integers(len(self.learned), 0)
            names = sorted({name for pair in self.learned for name, _, _ in pair})
            table = [[(names.index(name), share, level) for name, share, level in pair] for pair in self.learned]
            found = np.array(table, np.float64)[chosen]
            return names, found[..., 0].astype(np.int64), found[..., 1], found[..., 2]
        if self.weights is None:
            which = draws.integers(len(self.names), 0, self.steps).T
        else:  # without replacement: the shortest of waiting times
            waits = -np.log1p(-draws.uniform(0, len(self.names)).T) / np.array(self.weights)
            which = np.argsort(waits, 1)[:, : self.steps]
        shape = (count, self.steps)
        return list(self.names), which, np.full(shape, self.share), np.full(shape, self.magnitude)


_RAND_PARTS = {"m": "magnitude", "n": "steps", "p": "share", "mstd": "deviation", "mmax": "most", "inc": ""}
_AUGMIX_PARTS = {"m": "magnitude", "mstd": "deviation", "w": "chains", "d": "steps", "a": "alpha", "b": ""}
_PARTS: dict[str, dict[str, str]] = {
    "rand": _RAND_PARTS,
    "augmix": _AUGMIX_PARTS,
    **{key: {"mstd": "deviation"} for key in TIMM_POLICIES},
}
"""What the letters of a text stand for: attributes of :class:`_Plan`."""


def _parse(config: str) -> _Plan:
    first, *parts = config.split("-") if isinstance(config, str) else [""]
    plan, chosen, increasing = _Plan(), "", False
    if first in TIMM_POLICIES:
        plan.learned = TIMM_POLICIES[first]
        plan.steps = len(plan.learned[0])
    elif first == "augmix":
        plan = _Plan(3, _AUGMIX, magnitude=3, share=1.0, deviation=math.inf, chains=3, random_depth=True)
    elif first != "rand":
        raise UsageError(
            f"a policy in timm's notation begins with rand, augmix, {', '.join(TIMM_POLICIES)}, got {config!r}"
        )
    for part in parts:
        found = re.fullmatch(r"([a-z]+)(.*)", part)
        key, value = found.groups() if found else (part, "")
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
    if plan.chains and not (1 <= plan.chains <= 20 and 1 <= plan.steps <= 20 and plan.alpha > 0):
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


def _spread(draws: Draws, level: Floats, plan: _Plan) -> Floats:
    if plan.deviation > 100:
        level = level * draws.uniform(1)
    elif plan.deviation:
        level = level + plan.deviation * normal(draws, 1)
    return level.clip(0, plan.most)


def _steps(
    name: str,
    level: Floats,
    draws: Draws,
    rows: NDArray[np.int64],
    size: Size,
    flags: NDArray[np.int32],
    sign: Floats,
) -> Program:
    """The steps of an operation at ``level``, of those ``rows`` of the batch; ``sign`` is -1 or 1, as the level."""
    steps = new_program(len(rows))[:, 0]
    part = level / _LEVELS
    base = name.removesuffix("Increasing").removesuffix("Original")
    if base in _FACTORS:
        factor = part * 1.8 + 0.1 if base == name else np.maximum(0.1, 1 + sign * part * 0.9)
        steps["code"], steps["p"][:, 0] = _FACTORS[base], factor
    elif base in _PLAIN:
        steps["code"] = _PLAIN[base]
    elif base in ("Posterize", "Solarize"):
        kept = np.trunc(part * 4) if base == "Posterize" else np.trunc(part * 256).clip(max=256)
        if name.endswith("Increasing"):
            kept = (4 if base == "Posterize" else 256) - kept
        elif name.endswith("Original"):
            kept = kept + 4
        steps["code"] = Code.POSTERIZE if base == "Posterize" else Code.SOLARIZE
        steps["p"][:, 0] = kept.clip(0, 8) if base == "Posterize" else kept
    elif base == "SolarizeAdd":
        steps["code"], steps["p"][:, 0], steps["p"][:, 1] = Code.SOLARIZE_ADD, np.trunc(part * 110).clip(max=128), 128
    elif base == "Desaturate":
        steps["code"], steps["p"][:, 0] = Code.SATURATION, (0.5 - 0.5 * part).clip(0, 1)
    elif base.startswith("GaussianBlur"):
        most = (0.1 + 1.9 * part).clip(0.1, 2.0)
        if base == "GaussianBlurRand":
            most = 0.1 + (2.0 * part.clip(0, 1) - 0.1) * draws.uniform(6)[rows]
        steps["code"], steps["p"][:, :2], steps["p"][:, 2:4] = Code.BLUR, _BLUR_KERNEL, most.clip(0.01)[:, None]
    else:
        steps["code"], steps["flags"], steps["p"][:, :6] = Code.AFFINE, flags, _WARPS[base](sign * part, size)
    return steps


_FACTORS = {
    "Color": Code.SATURATION,
    "Contrast": Code.CONTRAST,
    "Brightness": Code.BRIGHTNESS,
    "Sharpness": Code.SHARPNESS,
}
_PLAIN = {"AutoContrast": Code.AUTOCONTRAST, "Equalize": Code.EQUALIZE, "Invert": Code.INVERT}


def _sheared(factor: Floats, size: Size, across: bool) -> Floats:
    """Pillow's matrix (1, factor, 0, 0, 1, 0), or its like for columns, counted from the centre."""
    matrix = np.tile(np.array([1.0, 0, 0, 0, 1, 0]), (len(factor), 1))
    if across:
        matrix[:, 1], matrix[:, 2] = factor, factor * size[0] / 2
    else:
        matrix[:, 3], matrix[:, 5] = factor, factor * size[1] / 2
    return matrix


def _moved(pixels: Floats, across: bool) -> Floats:
    """Shows what lies so many pixels further right, or down."""
    return inverse_affine(len(pixels), translate=(-pixels, 0.0) if across else (0.0, -pixels))


_WARPS: dict[str, Callable[[Floats, Size], Floats]] = {
    "Rotate": lambda part, size: rotation(len(part), part * 30.0),
    "ShearX": lambda part, size: _sheared(part * 0.3, size, True),
    "ShearY": lambda part, size: _sheared(part * 0.3, size, False),
    "TranslateXRel": lambda part, size: _moved(part * 0.45 * size[1], True),
    "TranslateYRel": lambda part, size: _moved(part * 0.45 * size[0], False),
}
"""Matrices by the signed share of the largest magnitude."""
