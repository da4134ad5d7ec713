"""Inverse matrices of affine maps, for batches of images."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
