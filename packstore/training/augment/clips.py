"""Moves clips with their augmented images: all frames alike, with the interpolation and the fill of the image."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from packstore.images.programs import Code
from packstore.training.augment.cut import Cut
from packstore.training.augment.targets import Placement
from packstore.training.augment.warp_kernels import warp_affine, warp_perspective
from packstore.training.augment.warp_targets import Warp


def place_clip(placement: Placement, row: int, clip: Tensor) -> Tensor:
    """Applies the crops, resizes, flips and warps of image ``row`` to all frames of a clip, ``(…, C, H, W)``.

    Consecutive crops and resizes are joined if possible, to interpolate pixels once. May return a view of ``clip``.
    """
    frames = clip.reshape(-1, *clip.shape[-3:])
    cut = Cut.full(frames.shape[-2], frames.shape[-1])
    for move in placement.moves:
        if isinstance(move, Warp):
            frames = _warp_frames(move, row, cut(frames))
            cut = Cut.full(frames.shape[-2], frames.shape[-1])
            continue
        own = Cut.of_row(move.crops, row, move.pads)
        joined = cut.compose(own)
        if joined is None:
            frames, joined = cut(frames), own
        cut = joined
    frames = cut(frames)
    return frames.reshape(*clip.shape[:-2], *frames.shape[-2:])


def _warp_frames(warp: Warp, row: int, frames: Tensor) -> Tensor:
    """Applies the warp or flip of image ``row`` to ``frames``."""
    code = Code(int(warp.codes[row]))
    if code in (Code.MIRROR, Code.FLIP):
        return frames.flip(-1 if code == Code.MIRROR else -2)
    if code == Code.IDENTITY or not len(frames):
        return frames
    kernel, count = (warp_affine, 6) if code == Code.AFFINE else (warp_perspective, 8)
    parameters = np.tile(warp.parameters[row, :count], (len(frames), 1))
    return kernel(frames, parameters, np.tile(warp.flags[row], len(frames)))
