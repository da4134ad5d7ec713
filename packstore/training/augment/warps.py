"""Operations that rotate, shear and distort images under torchvision's names; masks, boxes and keypoints follow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.images.programs import INTERPOLATIONS, Code, Program, pack_warp_flags, step
from packstore.training.augment.base import Size, check_number, parse_range
from packstore.training.augment.program_operation import ProgramOperation
from packstore.training.random_draws import Draws, chance, uniform

Fill = float | tuple[float, float, float] | None
Range = tuple[float, float]

Matrices = NDArray[np.float64]
"""``(B, 6)``: a, b, c, d, e, f. The pixel (x, y) of the result shows the source at (ax + by + c, dx + ey + f)."""


def inverse_affine(
    count: int,
    angle: Any = 0.0,
    translate: tuple[Any, Any] = (0.0, 0.0),
    scale: Any = 1.0,
    shear: tuple[Any, Any] = (0.0, 0.0),
    centre: tuple[Any, Any] = (0.0, 0.0),
) -> Matrices:
    """Computes matrices ``(count, 6)`` that map pixels of the result to the source.

    The arguments describe the opposite map, from source to result. The arithmetic is that of torchvision's
    ``_get_inverse_affine_matrix``.

    Args:
        count: Number of images. All other arguments are numbers, or arrays ``(count,)``.
        angle: In degrees, clockwise.
        translate: To the right and down, in pixels.
        scale: Factor.
        shear: Across and down, in degrees.
        centre: Centre of rotation and shear, in pixels from the centre of the image.
    """
    rotation, across, down = (np.radians(np.asarray(each, np.float64)) for each in (angle, *shear))
    (cx, cy), (tx, ty) = centre, translate
    a = np.cos(rotation - down) / np.cos(down)
    b = -(a * np.tan(across) + np.sin(rotation))
    c = np.sin(rotation - down) / np.cos(down)
    d = np.cos(rotation) - c * np.tan(across)
    m0, m1, m3, m4 = d / scale, -b / scale, -c / scale, a / scale
    matrix = np.empty((count, 6))
    matrix[:, 0], matrix[:, 1], matrix[:, 3], matrix[:, 4] = m0, m1, m3, m4
    matrix[:, 2] = cx - m0 * (cx + tx) - m1 * (cy + ty)
    matrix[:, 5] = cy - m3 * (cx + tx) - m4 * (cy + ty)
    return matrix


def inverse_rotation(count: int, angle: Any, centre: tuple[Any, Any] = (0.0, 0.0)) -> Matrices:
    """Computes matrices for counterclockwise rotations by ``angle`` degrees, as torchvision's ``rotate``.

    The matrices map pixels of the result to the source, as in :func:`inverse_affine`.

    ``centre``: centre of rotation, in pixels from the centre of the image.
    """
    return inverse_affine(count, -(np.asarray(angle, np.float64) % 360), centre=centre)


@dataclass(frozen=True)
class RandomVerticalFlip(ProgramOperation):
    """Mirrors images top to bottom with probability ``p``, as torchvision's ``RandomVerticalFlip``.

    Raises:
        UsageError: ``p`` is not a probability.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_number(self, "p", 0, 1)

    @property
    def moves_pixels(self) -> bool:
        return True

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws which images to mirror top to bottom."""
        return step(len(draws), Code.FLIP, where=chance(draws, self.p, 0))


class WarpOperation(ProgramOperation):
    """Operation that samples an image at transformed positions.

    Attributes:
        interpolations: Accepted values of the option ``interpolation``.
        has_deep_fills: ``fill`` may also be one signed number of 24 bits, for images of more than 8 bits.
    """

    interpolations: ClassVar[tuple[str, ...]] = INTERPOLATIONS[:2]
    has_deep_fills: ClassVar[bool] = True
    interpolation: str
    fill: Any

    def __post_init__(self) -> None:
        if self.interpolation not in self.interpolations:
            raise UsageError(
                f"{type(self).__name__}: interpolation should be one of {', '.join(self.interpolations)}, got "
                f"{self.interpolation!r}"
            )
        self.parse_fill()

    @property
    def moves_pixels(self) -> bool:
        return True

    @property
    def warp_flags(self) -> int:
        """Interpolation and fill colour, packed into the ``flags`` of a warp."""
        return int(pack_warp_flags(INTERPOLATIONS.index(self.interpolation), self.parse_fill()))

    def parse_fill(self) -> tuple[int, int, int] | None:
        """Converts ``fill``, a number or three, to three rounded bytes; None stays None.

        Raises :class:`UsageError` for other values.
        """
        values = (self.fill,) * 3 if isinstance(self.fill, int | float) else self.fill
        if values is None:
            return None
        try:
            red, green, blue = (round(value) for value in values)
        except (TypeError, ValueError, OverflowError):
            red, green, blue = -1, -1, 0
        is_deep = self.has_deep_fills and red == green == blue and abs(red) < 1 << 23
        if not is_deep and not (min(red, green, blue) >= 0 and max(red, green, blue) <= 255):
            expected = "one number, or three bytes" if self.has_deep_fills else "a byte, 0 … 255, or three of them"
            raise UsageError(f"{type(self).__name__}: fill should be {expected}, got {self.fill!r}")
        return red, green, blue

    def _parse_angles(self, name: str, value: Any) -> Range:
        """Returns the range of a user's angles in degrees."""
        # A single number n stands for -n … n.
        pair = (-value, value) if isinstance(value, int | float) and value >= 0 else value
        return parse_range(self, name, pair, -3600, 3600)

    def _relative_centre(self, centre: Any, size: Size) -> Range:
        """Converts ``centre``, x and y from the upper left corner, to coordinates from the image's centre."""
        if centre is None:
            return 0.0, 0.0
        return centre[0] - size[1] * 0.5, centre[1] - size[0] * 0.5

    def _check_centre(self, centre: Any) -> None:
        """Raises :class:`UsageError` unless ``centre`` is None or two numbers."""
        numbers = isinstance(centre, list | tuple) and len(centre) == 2
        if centre is not None and not (numbers and all(isinstance(n, int | float) for n in centre)):
            raise UsageError(f"{type(self).__name__}: center should be (x, y) in pixels, got {centre!r}")


@dataclass(frozen=True)
class RandomRotation(WarpOperation):
    """Rotates images by a random angle, as torchvision's ``RandomRotation`` without ``expand``.

    Args:
        degrees: A number d draws angles from -d to d. A pair is the range of the angles. Counterclockwise.
        interpolation: ``"nearest"`` or ``"bilinear"``.
        center: Centre of the rotation, x and y in pixels from the upper left corner; None for the image's centre.
        fill: Colour of pixels outside the image, as for :class:`RandomCrop`: one whole number, or three bytes.

    Raises:
        UsageError: A range that is not ascending, an unknown interpolation, an invalid centre or fill.
    """

    degrees: float | Range
    interpolation: str = "nearest"
    center: Range | None = None
    fill: Fill = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._parse_angles("degrees", self.degrees)
        self._check_centre(self.center)

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws an angle for each image."""
        low, high = self._parse_angles("degrees", self.degrees)
        matrix = inverse_rotation(len(draws), uniform(draws, low, high, 0), self._relative_centre(self.center, size))
        return step(len(draws), Code.AFFINE, *matrix.T, flags=self.warp_flags)


@dataclass(frozen=True)
class RandomAffine(WarpOperation):
    """Rotates, translates, scales and shears images, as torchvision's ``RandomAffine``.

    Args:
        degrees: A number d draws angles from -d to d. A pair is the range of the angles. Clockwise.
        translate: Largest translation, as fractions of width and height; None for no translation.
        scale: Range of factors; None for 1.
        shear: Degrees. A number s shears from -s to s across. A pair is the range across; four numbers are the ranges
            across and down. None for no shear.
        interpolation: ``"nearest"`` or ``"bilinear"``.
        fill: Colour of pixels outside the image, as for :class:`RandomCrop`: one whole number, or three bytes.
        center: Centre of the rotation, x and y in pixels from the upper left corner; None for the image's centre.

    Raises:
        UsageError: Numbers out of range, an unknown interpolation, an invalid centre or fill.
    """

    degrees: float | Range
    translate: Range | None = None
    scale: Range | None = None
    shear: float | Range | tuple[float, float, float, float] | None = None
    interpolation: str = "nearest"
    fill: Fill = 0
    center: Range | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._parse_angles("degrees", self.degrees)
        self._check_centre(self.center)
        self._shear_ranges()
        if self.translate is not None:
            for share in self.translate if isinstance(self.translate, list | tuple) else (None,):
                parse_range(self, "translate", (0, share), 0, 1)
            if len(self.translate) != 2:
                raise UsageError(f"RandomAffine: translate should be two shares, got {self.translate!r}")
        if self.scale is not None:
            parse_range(self, "scale", self.scale, 1e-6, 1e6)

    def _shear_ranges(self) -> tuple[Range, Range]:
        """Returns the ranges of degrees by which to shear in x and in y."""
        if self.shear is None:
            return (0.0, 0.0), (0.0, 0.0)
        if isinstance(self.shear, list | tuple) and len(self.shear) == 4:
            return self._parse_angles("shear", self.shear[:2]), self._parse_angles("shear", self.shear[2:])
        return self._parse_angles("shear", self.shear), (0.0, 0.0)

    def _draw_shift(self, draws: Draws, most: float, draw: int) -> NDArray[np.float64]:
        """Draws a translation in whole pixels, uniform from ``-most`` to ``most``."""
        return np.rint(uniform(draws, -most, most, draw))

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws angle, translation in whole pixels, scale and shear for each image."""
        height, width = size
        across, down = self._shear_ranges()
        shares = (0.0, 0.0) if self.translate is None else self.translate
        low, high = self._parse_angles("degrees", self.degrees)
        matrix = inverse_affine(
            len(draws),
            uniform(draws, low, high, 0),
            (self._draw_shift(draws, shares[0] * width, 1), self._draw_shift(draws, shares[1] * height, 2)),
            1.0 if self.scale is None else uniform(draws, self.scale[0], self.scale[1], 3),
            (uniform(draws, *across, 4), uniform(draws, *down, 5)),
            self._relative_centre(self.center, size),
        )
        return step(len(draws), Code.AFFINE, *matrix.T, flags=self.warp_flags)


@dataclass(frozen=True)
class RandomPerspective(WarpOperation):
    """Distorts images with probability ``p`` by moving their corners inwards, as torchvision's
    ``RandomPerspective``.

    Args:
        distortion_scale: Largest movement of a corner as a fraction of half a side, 0 … 1.
        p: Probability of a distortion.
        interpolation: ``"bilinear"`` or ``"nearest"``.
        fill: Colour of pixels outside the image, as for :class:`RandomCrop`: one whole number, or three bytes.

    Raises:
        UsageError: Numbers out of range, an unknown interpolation, an invalid fill.
    """

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: str = "bilinear"
    fill: Fill = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "p", 0, 1)
        parse_range(self, "distortion_scale", (0, self.distortion_scale), 0, 1)

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws which images are distorted, and the movement of their corners."""
        height, width = size
        moved = np.stack([self._draw_corner_shifts(draws, width, 1), self._draw_corner_shifts(draws, height, 5)], 2)
        corners = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]])
        ends = np.where([[0, 0], [1, 0], [1, 1], [0, 1]], corners - moved, corners + moved)
        return step(
            *(len(draws), Code.PERSPECTIVE, *_perspective_coefficients(corners, ends).T),
            flags=self.warp_flags,
            where=chance(draws, self.p, 0),
        )

    def _draw_corner_shifts(self, draws: Draws, length: int, draw: int) -> NDArray[np.int64]:
        """Draws how far each corner moves inwards along a side of ``length`` pixels: int64 ``(B, 4)``."""
        moved: NDArray[np.int64] = draws.integers(int(self.distortion_scale * (length // 2)) + 1, draw, 4).T
        return moved


def _perspective_coefficients(starts: NDArray[Any], ends: NDArray[Any]) -> NDArray[np.float64]:
    """Computes coefficients ``(B, 8)`` that map ``ends`` ``(B, 4, 2)`` to ``starts`` ``(4, 2)``."""
    count = len(ends)
    x, y = (ends[..., n].astype(np.float64) for n in range(2))
    u, v = (np.broadcast_to(starts[:, n].astype(np.float64), x.shape) for n in range(2))
    ones, none = np.ones_like(x), np.zeros_like(x)
    matrix = np.empty((count, 8, 8))
    matrix[:, 0::2] = np.stack([x, y, ones, none, none, none, -u * x, -u * y], 2)
    matrix[:, 1::2] = np.stack([none, none, none, x, y, ones, -v * x, -v * y], 2)
    target = np.stack([u, v], 2).reshape(count, 8, 1)
    # By least squares in float64, as torchvision's _get_perspective_coeffs.
    coefficients: NDArray[np.float64] = (np.linalg.pinv(matrix) @ target)[..., 0]
    # Corners of a side of one pixel coincide, so there is no solution: the image stays unchanged.
    degenerate = not math.isfinite(float(coefficients.sum())) or (starts.max(0) == 0).any()
    return np.tile(np.array([1.0, 0, 0, 0, 1, 0, 0, 0]), (count, 1)) if degenerate else coefficients
