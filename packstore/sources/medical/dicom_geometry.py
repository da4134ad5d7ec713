"""Places of the frames of a DICOM file: positions, axes and distances of their planes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from packstore.sources.medical.dicom_files import clamp_int64, raise_as_damaged_file, read_floats
from packstore.sources.medical.dicom_volumes import Slice

_OFFSETS = "GridFrameOffsetVector"
"""Distances of the frames of a dose from the first (PS3.3 C.8.8.3.2)."""
_LENGTH = 0.01
"""Largest error of the length of an axis."""


def read_slice(dataset: Any, frame: int, name: str, shape: tuple[int, int, int]) -> Slice:
    """Reads the facts about a frame that place it in a volume: position, axes, distances, scale and number.

    Position and axes are empty if the file does not place each frame. The number is InstanceNumber plus that of the
    frame. Offsets of frames, as in doses, are added to the position.

    Raises :class:`ValueError` for damaged elements.
    """
    with raise_as_damaged_file():
        place, axes, spacing, thickness, slope, intercept = (
            read_floats(dataset, frame, keyword)
            for keyword in ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SliceThickness",
                            "RescaleSlope", "RescaleIntercept")
        )  # fmt: skip
        number = clamp_int64(dataset.get("InstanceNumber")) + frame
    frames = int(dataset.get("NumberOfFrames") or 1)
    is_placed = math.isfinite(compute_plane_position(dataset, frame)) and has_places(dataset, frames)
    if is_placed and frames > 1 and (offsets := read_floats(dataset, frame, _OFFSETS)):
        normal = np.cross(axes[:3], axes[3:])
        place = (np.array(place) + (offsets[frame] - offsets[0]) * normal).tolist()
    return Slice(
        name, shape, tuple(place) if is_placed else (), tuple(axes) if is_placed else (),
        tuple(spacing) if len(spacing) == 2 else (), thickness[0] if thickness else 0.0, number,
        (slope[0] if slope else None, intercept[0] if intercept else None),
    )  # fmt: skip


def has_places(dataset: Any, frames: int) -> bool:
    """Tells if the file can state a position for each of its frames.

    True for one frame, and for a file with groups per frame; neither is read here. Otherwise, there must be an offset
    for each frame.
    """
    if frames == 1 or "PerFrameFunctionalGroupsSequence" in dataset:
        return True
    return len(read_floats(dataset, 0, _OFFSETS)) == frames


def compute_plane_position(dataset: Any, frame: int) -> float:
    """Computes the position of a frame's plane along the plane's normal, in mm.

    Returns infinity if the file lacks position or axes. Returns infinity also if the axes are not perpendicular and of
    length 1.
    """
    place = read_floats(dataset, frame, "ImagePositionPatient")
    axes = read_floats(dataset, frame, "ImageOrientationPatient")
    if len(place) != 3 or len(axes) != 6:
        return math.inf
    normal = np.cross(axes[:3], axes[3:])
    lengths = np.linalg.norm(np.array([axes[:3], axes[3:], normal]), axis=1)
    position = float(np.dot(normal, place))
    return position if math.isfinite(position) and (np.abs(lengths - 1) < _LENGTH).all() else math.inf
