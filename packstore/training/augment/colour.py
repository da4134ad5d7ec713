"""Colour operations under torchvision's names, drawn for each image by itself."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from packstore.core.errors import UsageError
from packstore.images.programs import MOST_FACTOR, MOST_KERNEL, Code, Program, join_programs, new_program, step
from packstore.training.augment.base import Size, check_number, parse_range
from packstore.training.augment.program_operation import ProgramOperation
from packstore.training.random_draws import Draws, chance, permutation, uniform

Range = tuple[float, float]

_FACTORS = {"brightness": Code.BRIGHTNESS, "contrast": Code.CONTRAST, "saturation": Code.SATURATION, "hue": Code.HUE}


class _ColourOperation(ProgramOperation):
    """Operation on pixel values, independent of their position, so that its programs fit images of any size.

    Attributes:
        codes: Codes of its steps.
    """

    codes: ClassVar[tuple[Code, ...]]

    @property
    def possible_steps(self) -> Collection[tuple[Code, int]]:
        """All of :attr:`codes`."""
        return [(code, 0) for code in self.codes]

    @property
    def depends_on_size(self) -> bool:
        """False: the programs are the same for images of any size."""
        return False


@dataclass(frozen=True)
class ColorJitter(_ColourOperation):
    """Changes brightness, contrast, saturation and hue in a random order, as torchvision's ``ColorJitter``.

    Args:
        brightness: A number b draws factors from 1 - b (at least 0) to 1 + b. A pair is the range of the factors.
        contrast: As ``brightness``.
        saturation: As ``brightness``.
        hue: A number h, at most 0.5, draws shifts from -h to h. A pair is the range of the shifts.

    Raises:
        UsageError: A number or range below 0 or above a million, a hue beyond 0.5, or a range that is not ascending.
    """

    brightness: float | Range = 0
    contrast: float | Range = 0
    saturation: float | Range = 0
    hue: float | Range = 0

    def __post_init__(self) -> None:
        self._factor_ranges()

    def _factor_ranges(self) -> list[tuple[Code, float, float]]:
        """Returns code, lowest and highest factor of each change that has an effect."""
        ranges = []
        for name, code in _FACTORS.items():
            value, centre = getattr(self, name), 0.0 if code == Code.HUE else 1.0
            bounds = (-0.5, 0.5) if code == Code.HUE else (0.0, MOST_FACTOR)
            if isinstance(value, int | float):
                if value < 0:
                    raise UsageError(f"ColorJitter: {name} should be at least 0, got {value!r}")
                value = (centre - value if code == Code.HUE else max(0.0, centre - value), centre + value)
            low, high = parse_range(self, name, value, *bounds)
            if (low, high) != (centre, centre):
                ranges.append((code, low, high))
        return ranges

    @property
    def possible_steps(self) -> Collection[tuple[Code, int]]:
        """A step for each change that has an effect."""
        return [(code, 0) for code, _, _ in self._factor_ranges()]

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws a factor for each change, and the order of the changes, for each image."""
        ranges = self._factor_ranges()
        program = new_program(len(draws), len(ranges))
        places = np.argsort(permutation(draws, len(ranges), 4), 1)
        rows = np.arange(len(draws))
        for number, (code, low, high) in enumerate(ranges):
            program["code"][rows, places[:, number]] = code
            program["p"][rows, places[:, number], 0] = uniform(draws, low, high, code - Code.BRIGHTNESS)
        return program


@dataclass(frozen=True)
class Grayscale(_ColourOperation):
    """Makes images gray, in all three channels, as torchvision's ``Grayscale(3)``.

    Raises:
        UsageError: ``num_output_channels`` is not 3.
    """

    codes = (Code.GRAY,)
    num_output_channels: int = 3

    def __post_init__(self) -> None:
        if self.num_output_channels != 3:
            raise UsageError(f"Grayscale: a batch keeps its 3 channels, got {self.num_output_channels!r}")

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Returns a step that makes all images gray. Draws nothing."""
        return step(len(draws), Code.GRAY)


class _WithProbability(_ColourOperation):
    """Colour operation that runs with probability ``p``."""

    p: float

    def __post_init__(self) -> None:
        check_number(self, "p", 0, 1)

    @property
    def parameters(self) -> tuple[float, ...]:
        """Parameters of the step. By default none."""
        return ()

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws which images the step runs on."""
        return step(len(draws), self.codes[0], *self.parameters, where=chance(draws, self.p, 0))


@dataclass(frozen=True)
class RandomGrayscale(_WithProbability):
    """Makes images gray with probability ``p``, as torchvision's ``RandomGrayscale``.

    Raises:
        UsageError: ``p`` is not a probability.
    """

    codes = (Code.GRAY,)
    p: float = 0.1


@dataclass(frozen=True)
class RandomInvert(_WithProbability):
    """Inverts values with probability ``p``, as torchvision's ``RandomInvert``.

    Raises:
        UsageError: ``p`` is not a probability.
    """

    codes = (Code.INVERT,)
    p: float = 0.5


@dataclass(frozen=True)
class RandomPosterize(_WithProbability):
    """Keeps the highest ``bits`` of each value with probability ``p``, as torchvision's ``RandomPosterize``.

    Raises:
        UsageError: ``bits`` is not 0 … 8, or ``p`` not a probability.
    """

    codes = (Code.POSTERIZE,)
    bits: int
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "bits", 0, 8, whole=True)

    @property
    def parameters(self) -> tuple[float, ...]:
        return (self.bits,)


@dataclass(frozen=True)
class RandomSolarize(_WithProbability):
    """Inverts values of at least ``threshold`` with probability ``p``, as torchvision's ``RandomSolarize``.

    Raises:
        UsageError: ``threshold`` is not 0 … 255, or ``p`` not a probability.
    """

    codes = (Code.SOLARIZE,)
    threshold: float
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "threshold", 0, 255)

    @property
    def parameters(self) -> tuple[float, ...]:
        return (self.threshold,)


@dataclass(frozen=True)
class RandomAutocontrast(_WithProbability):
    """Stretches each channel to 0 … 255 with probability ``p``, as torchvision's ``RandomAutocontrast``.

    Raises:
        UsageError: ``p`` is not a probability.
    """

    codes = (Code.AUTOCONTRAST,)
    p: float = 0.5


@dataclass(frozen=True)
class RandomEqualize(_WithProbability):
    """Equalizes the histogram of each channel with probability ``p``, as torchvision's ``RandomEqualize``.

    Raises:
        UsageError: ``p`` is not a probability.
    """

    codes = (Code.EQUALIZE,)
    p: float = 0.5


@dataclass(frozen=True)
class RandomAdjustSharpness(_WithProbability):
    """Sharpens (factor above 1) or smooths images with probability ``p``, as torchvision's ``RandomAdjustSharpness``.

    Raises:
        UsageError: ``sharpness_factor`` is below 0, or ``p`` not a probability.
    """

    codes = (Code.SHARPNESS,)
    sharpness_factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "sharpness_factor", 0, MOST_FACTOR)

    @property
    def parameters(self) -> tuple[float, ...]:
        return (self.sharpness_factor,)


@dataclass(frozen=True)
class RandomChannelPermutation(_ColourOperation):
    """Permutes the channels at random, as torchvision's ``RandomChannelPermutation``."""

    codes = (Code.PERMUTE,)

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws an order of the three channels for each image."""
        return step(len(draws), Code.PERMUTE, *permutation(draws, 3, 0).T)


@dataclass(frozen=True)
class RandomPhotometricDistort(_ColourOperation):
    """Changes brightness, contrast, saturation, hue and the order of channels, each with probability ``p``.

    Equals torchvision's ``RandomPhotometricDistort`` (Liu et al., "SSD: Single Shot MultiBox Detector", 2016). Contrast
    comes before saturation and hue or after them, at random.

    Raises:
        UsageError: ``p`` is not a probability, or a range is not ascending. A factor is below 0, or a hue beyond 0.5.
    """

    codes = (*_FACTORS.values(), Code.PERMUTE)
    brightness: Range = (0.875, 1.125)
    contrast: Range = (0.5, 1.5)
    saturation: Range = (0.5, 1.5)
    hue: Range = (-0.05, 0.05)
    p: float = 0.5

    def __post_init__(self) -> None:
        check_number(self, "p", 0, 1)
        for name in _FACTORS:
            bounds = (-0.5, 0.5) if name == "hue" else (0.0, MOST_FACTOR)
            object.__setattr__(self, name, parse_range(self, name, getattr(self, name), *bounds))

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws the changes of each image, their factors and their order."""
        count = len(draws)
        first = chance(draws, 0.5, 8)
        steps = {}
        for number, (name, code) in enumerate(_FACTORS.items()):
            low, high = getattr(self, name)
            factor = uniform(draws, low, high, 2 * number)
            steps[code] = step(count, code, factor, where=chance(draws, self.p, 2 * number + 1))
        # Contrast comes first or last: the other of its two steps does nothing.
        before, after = steps[Code.CONTRAST].copy(), steps[Code.CONTRAST].copy()
        before[~first], after[first] = 0, 0
        order = step(count, Code.PERMUTE, *permutation(draws, 3, 10).T, where=chance(draws, self.p, 9))
        chain = [steps[Code.BRIGHTNESS], before, steps[Code.SATURATION], steps[Code.HUE], after, order]
        return join_programs(chain, count)


@dataclass(frozen=True)
class GaussianBlur(_ColourOperation):
    """Blurs images with a Gaussian kernel, as torchvision's ``GaussianBlur``.

    Args:
        kernel_size: Side of the kernel, or ``(width, height)``. Odd.
        sigma: Standard deviation in pixels. A pair is the range from which it is drawn for each image.

    Raises:
        UsageError: A kernel that is even or above 255, a deviation outside 0.001 … 1000, a range not ascending.
    """

    codes = (Code.BLUR,)
    kernel_size: int | tuple[int, int]
    sigma: float | Range = (0.1, 2.0)

    def __post_init__(self) -> None:
        if (
            not all(isinstance(n, int) and 0 < n <= MOST_KERNEL and n % 2 for n in self._kernel_size)
            or len(self._kernel_size) != 2
        ):
            raise UsageError(f"GaussianBlur: kernel_size should be odd, up to {MOST_KERNEL}, got {self.kernel_size!r}")
        self._sigma_range()

    @property
    def _kernel_size(self) -> tuple[int, ...]:
        """Width and height of the kernel."""
        return tuple(self.kernel_size) if isinstance(self.kernel_size, list | tuple) else (self.kernel_size,) * 2

    def _sigma_range(self) -> Range:
        """Returns the smallest and largest standard deviation."""
        pair = (self.sigma, self.sigma) if isinstance(self.sigma, int | float) else self.sigma
        return parse_range(self, "sigma", pair, 1e-3, 1e3)

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws the deviation for each image, equal across and down."""
        low, high = self._sigma_range()
        sigma = uniform(draws, low, high, 0)
        return step(len(draws), Code.BLUR, *self._kernel_size, sigma, sigma)


_MOST_NOISE = 1000
"""Largest mean and deviation of noise; times 255 they are below :data:`MOST_FACTOR`."""


@dataclass(frozen=True)
class GaussianNoise(_ColourOperation):
    """Adds noise to every value, as torchvision's ``GaussianNoise``.

    The noise is a sum of four uniform bytes. It is nearly normal, but never beyond 3.45 standard deviations.

    Args:
        mean: Mean of the noise, as a fraction of 255.
        sigma: Standard deviation of the noise, as a fraction of 255.
        clip: Clip results to 0 … 255. Without it, they wrap around.

    Raises:
        UsageError: ``sigma`` is below 0, or ``mean`` is not a finite number.
    """

    codes = (Code.NOISE,)
    mean: float = 0.0
    sigma: float = 0.1
    clip: bool = True

    def __post_init__(self) -> None:
        check_number(self, "sigma", 0, _MOST_NOISE)
        check_number(self, "mean", -_MOST_NOISE, _MOST_NOISE)

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws a seed for each image, from which the kernels compute the noise."""
        return step(
            len(draws),
            Code.NOISE,
            255 * self.mean,
            255 * self.sigma,
            *seed_parameters(draws.bits(0)),
            flags=int(self.clip),
        )


def seed_parameters(bits: Any) -> tuple[Any, Any]:
    """Splits 32-bit seeds into lower and upper 16 bits, which the float32 parameters of a program store exactly."""
    return bits & 0xFFFF, bits >> 16
