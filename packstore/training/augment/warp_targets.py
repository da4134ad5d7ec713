"""Moves masks, boxes and keypoints with the warps and flips of programs, in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.images.programs import GEOMETRIC, Code, Program

Numbers = NDArray[np.int64]
Matrices = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Warp:
    """Affine or perspective warp, or flip, of each image of a batch. Made from one column of a program.

    Attributes:
        codes: int ``(B,)``: :class:`Code`; ``IDENTITY`` if the image does not move.
        parameters: float32 ``(B, 8)``: parameters of the code.
        flags: int32 ``(B,)``: interpolation and fill of images.
        sizes: int64 ``(B, 2)``: heights and widths, which do not change.
        forward: float64 ``(B, 3, 3)``: maps points of the image to points of the result, from the upper left corner.
    """

    codes: NDArray[np.int32]
    parameters: NDArray[np.float32]
    flags: NDArray[np.int32]
    sizes: Numbers
    forward: Matrices

    @classmethod
    def from_steps(cls, steps: Any, sizes: Numbers) -> Warp | None:
        """Builds the warp of one column of a program. ``steps``: the column, a step for each image.

        Returns None if the column moves no pixels.
        """
        codes = np.where(np.isin(steps["code"], GEOMETRIC), steps["code"], 0)
        if not codes.any():
            return None
        return cls(
            codes, steps["p"], steps["flags"], sizes, _forward_matrices(codes, steps["p"].astype(np.float64), sizes)
        )

    def move_points(self, points: Any, rows: Numbers, last: int = 0) -> Any:
        """Moves ``points`` float32 ``(N, m, 2)``, x and y, with images ``rows`` ``(N,)``. Returns a new array.

        Mirroring maps x to ``width - last - x``, and flipping maps y alike.
        """
        codes, forward = self.codes[rows], self.forward[rows]
        wide = points.astype(np.float64)
        moved = np.concatenate([wide, np.ones_like(wide[..., :1])], -1) @ forward.transpose(0, 2, 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = moved[..., :2] / moved[..., 2:]
        moved[codes == Code.MIRROR, :, 0] -= last
        moved[codes == Code.FLIP, :, 1] -= last
        return np.where((codes != 0)[:, None, None], moved, wide).astype(np.float32)

    def move_boxes(self, corners: Any, rows: Numbers, clip: bool) -> Any:
        """Moves boxes ``(N, 2, 2)``, first and last corners, with images ``rows``. Returns upright boxes around the
        results.

        ``clip`` clips them to the images. Boxes of images that do not move stay exact.
        """
        left, top, right, bottom = corners.reshape(-1, 4).T
        four = np.stack([left, top, right, top, right, bottom, left, bottom], 1).reshape(-1, 4, 2)
        moved = self.move_points(four, rows)
        boxes = np.stack([moved.min(1), moved.max(1)], 1)
        boxes = np.where((self.codes[rows] != 0)[:, None, None], boxes, corners)
        return np.clip(boxes, 0, self.sizes[rows, None, ::-1].astype(np.float32)) if clip else boxes

    def move_mask(self, row: int, mask: NDArray[Any], fill: float) -> NDArray[Any]:
        """Warps the mask of image ``row``, ``(…, H, W)``, without interpolation. Pixels from outside get ``fill``.

        Returns ``mask`` itself if the image does not move, and a view of it for flips.
        """
        code, p = self.codes[row], self.parameters[row]
        if code == Code.MIRROR:
            return mask[..., ::-1]
        if code == Code.FLIP:
            return mask[..., ::-1, :]
        if code == Code.IDENTITY:
            return mask
        height, width = mask.shape[-2:]
        across, down = _sampling_grid(Code(int(code)), p, height, width)
        # Positions and rounding as in torch's grid_sample.
        x, y = (np.rint(((each + 1) * n - 1) / 2) for each, n in ((across, width), (down, height)))
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        result = np.full(mask.shape, fill, mask.dtype)
        result[..., inside] = mask[..., y[inside].astype(np.int64), x[inside].astype(np.int64)]
        return result


def find_warps(program: Program, sizes: Numbers) -> list[Warp]:
    """Returns a warp for each column of a program that moves pixels, in order."""
    warps = (Warp.from_steps(program[:, column], sizes) for column in range(program.shape[1]))
    return [warp for warp in warps if warp is not None]


def _forward_matrices(codes: NDArray[np.int32], p: Any, sizes: Numbers) -> Matrices:
    """Computes the matrices ``(B, 3, 3)`` from image to result, as inverses of the warps' parameters."""
    count = len(codes)
    height, width = sizes[:, 0].astype(np.float64), sizes[:, 1].astype(np.float64)
    inverse = np.tile(np.eye(3), (count, 1, 1))
    affine, projected = codes == Code.AFFINE, codes == Code.PERSPECTIVE
    x, y = width / 2, height / 2
    a, b, c, d, e, f = p[:, :6].T
    # Parameters are relative to the centres, and matrices to the upper left corner.
    centred = np.stack([a, b, c + x - a * x - b * y, d, e, f + y - d * x - e * y], 1).reshape(-1, 2, 3)
    inverse[affine, :2] = centred[affine]
    inverse[projected] = np.concatenate([p, np.ones((count, 1))], 1).reshape(-1, 3, 3)[projected]
    mirrored, flipped = codes == Code.MIRROR, codes == Code.FLIP
    inverse[mirrored, 0, 0], inverse[mirrored, 0, 2] = -1, width[mirrored]
    inverse[flipped, 1, 1], inverse[flipped, 1, 2] = -1, height[flipped]
    # A scale close to 0 cannot be inverted in float64.
    invert = np.linalg.pinv if np.any(np.linalg.det(inverse) == 0) else np.linalg.inv
    return np.asarray(invert(inverse), np.float64)


def _sampling_grid(code: Code, p: NDArray[np.float32], height: int, width: int) -> tuple[Any, Any]:
    """Computes x and y of the source for each pixel of the result, as for torch's ``grid_sample``."""
    # In float32, and in the order of warp_kernels, to agree with it exactly.
    half = np.array([0.5 * width] * 3 + [0.5 * height] * 3, np.float32)
    m = p[:6] / half
    if code == Code.AFFINE:
        x = np.arange(width, dtype=np.float32) - np.float32((width - 1.0) * 0.5)
        y = (np.arange(height, dtype=np.float32) - np.float32((height - 1.0) * 0.5))[:, None]
        return x * m[0] + y * m[1] + m[2], x * m[3] + y * m[4] + m[5]
    x = np.arange(width, dtype=np.float32) + np.float32(0.5)
    y = (np.arange(height, dtype=np.float32) + np.float32(0.5))[:, None]
    below = x * p[6] + y * p[7] + 1
    return (x * m[0] + y * m[1] + m[2]) / below - 1, (x * m[3] + y * m[4] + m[5]) / below - 1
