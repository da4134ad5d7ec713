"""Pixels of a frame of a DICOM file: as stored, rescaled (PS3.3 C.11.1) or through a window (C.11.2). Stacks the slices
of a series to a volume: order, spacing and affine after C.7.6.2."""

from __future__ import annotations

import importlib
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import error_line, printable
from packstore.core.modes import Mode
from packstore.images.sniff import excess_pixels_message
from packstore.sources.medical.dicom_files import (
    OFFSETS,
    USED,
    clamp_int64,
    compute_plane_position,
    find_element,
    has_places,
    load_pydicom,
    raise_as_damaged_file,
    read_floats,
    silence_warnings,
)

BY_POSITION, BY_INSTANCE = "position", "instance"
_ANGLE = 1e-3
"""Largest difference of direction cosines of slices that count as parallel."""
_UNEVEN = 0.02
"""Largest difference between two steps from slice to slice, as a share of the usual one."""
_GAPS = "pack it with --column image=volumes:gaps, or leave files out with --ignore"
_NOT_ONE = "a volume takes one size and one orientation; leave the others out with --ignore"
_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
"""Converts DICOM's patient axes (left, posterior, superior) to those of NIfTI (right, anterior, superior)."""
_AXES = ("LR", "PA", "IS")


def read_frame(dataset: Any, frame: int, image: str, mode: Mode, max_pixels: int) -> NDArray[Any]:
    """Reads the pixels of a frame in the dtype of a mode, ``(H, W, C)``. C is that of the frame: 1 or 3. A palette
    becomes colours.

    Args:
        dataset: The parsed file.
        frame: Number of the frame, from 0.
        image: Form of gray values: ``stored``; ``rescaled`` by slope and intercept, or by a table; or ``window``, 8
            bits through the file's first window or table. Colours stay as stored.
        mode: Mode of the result. Rescaled values are rounded to float32.
        max_pixels: Limit for height times width.

    Raises:
        ValueError: The frame is damaged or too large. No installed library reads its compression. The mode does not
            hold its values.
    """
    processing = load_pydicom().pixels.processing
    with silence_warnings():
        try:
            reason = excess_pixels_message(int(dataset.Columns), int(dataset.Rows), max_pixels)
            if reason is not None:
                raise ValueError(reason)
            _refuse_large_codestream(dataset, frame)
            values = load_pydicom().pixels.pixel_array(dataset, index=frame)
            if dataset.get("PhotometricInterpretation") == "PALETTE COLOR":
                values = processing.apply_color_lut(values, dataset)
            elif values.ndim == 2 and image != "stored":
                values = _rescale(values, dataset, frame, through_window=image == "window")
        except MemoryError:
            raise
        except Exception as error:
            raise ValueError(f"its pixels cannot be read: {error_line(error)}") from error
    pixels = values.reshape(*values.shape[:2], -1)
    held = pixels.astype(mode.dtype)
    is_rounded = image == "rescaled" and mode.dtype == "float32"
    if held.dtype != pixels.dtype and not (
        is_rounded or np.array_equal(held, pixels, equal_nan=pixels.dtype.kind == "f")
    ):
        raise ValueError(f"found {pixels.dtype} from {pixels.min()} to {pixels.max()}, which {mode} does not hold")
    return np.ascontiguousarray(held)


def _refuse_large_codestream(dataset: Any, frame: int) -> None:
    """Raises :class:`ValueError` for a compressed frame with more pixels than the file's header states. Decoding it
    could fill the memory."""
    if not dataset.file_meta.TransferSyntaxUID.is_encapsulated:
        return
    offsets = dataset.get("ExtendedOffsetTable"), dataset.get("ExtendedOffsetTableLengths")
    data = importlib.import_module("pydicom.encaps").get_frame(
        dataset.PixelData, frame, number_of_frames=int(dataset.get("NumberOfFrames") or 1),
        extended_offsets=offsets if None not in offsets else None,
    )  # fmt: skip
    width, height = _read_codestream_size(bytes(data))
    if width * height > int(dataset.Rows) * int(dataset.Columns):
        raise ValueError(f"the compressed image has {width} x {height} pixels, the file {dataset.Columns} x "
                         f"{dataset.Rows}")  # fmt: skip


def _read_codestream_size(data: bytes) -> tuple[int, int]:
    """Reads width and height from the header of a JPEG, JPEG-LS or JPEG 2000; (0, 0) for other or truncated data."""
    at = data.find(b"\xff\x4f\xff\x51")
    if 0 <= at <= len(data) - 24 and data[:3] != b"\xff\xd8\xff":
        right, bottom, left, top = struct.unpack_from(">IIII", data, at + 8)
        return right - left, bottom - top
    at = 2
    while data[:2] == b"\xff\xd8" and at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xF7 or (0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 1 if marker == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4])
    return 0, 0


def _rescale(values: NDArray[Any], dataset: Any, frame: int, *, through_window: bool) -> NDArray[Any]:
    """Rescales stored gray values by slope and intercept, or a table.

    With ``through_window``, maps the result to 8 bits by the file's table, else by its first window, and inverts
    MONOCHROME1. Raises :class:`ValueError` then if the file has no window.
    """
    processing, view = load_pydicom().pixels.processing, load_pydicom().dataset.Dataset()
    view.file_meta = dataset.file_meta
    view.PhotometricInterpretation, view.PixelRepresentation, view.BitsStored = "MONOCHROME2", 0, 8
    for keyword in USED:
        value = find_element(dataset, frame, keyword)
        if value is not None and value != "":
            setattr(view, keyword, value)
    values = processing.apply_modality_lut(values, view)
    if not through_window:
        return values
    for keyword in ("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence"):
        view.pop(keyword, None)
    if "VOILUTSequence" in view:
        top = (1 << int(view.VOILUTSequence[0].LUTDescriptor[2])) - 1
        shown = processing.apply_voi(np.rint(values).astype(np.int32), view) * (255 / top)
    elif "WindowCenter" in view and "WindowWidth" in view:
        shown = processing.apply_windowing(values, view)
    else:
        raise ValueError("it names no window")
    whole: NDArray[np.uint8] = np.rint(shown).astype(np.uint8)
    return 255 - whole if dataset.PhotometricInterpretation == "MONOCHROME1" else whole


class Slice(NamedTuple):
    """Facts about a slice.

    Attributes:
        name: File, with the number of the frame if it has several.
        shape: ``(H, W, C)``.
        place: Position of the centre of the first pixel; empty if unknown.
        axes: Directions of rows and columns, six cosines; empty if unknown.
        spacing: Distance of rows and of columns; empty if unknown.
        thickness: Thickness of the slice.
        instance: Number in the series.
        scale: Slope and intercept.
    """

    name: str
    shape: tuple[int, int, int]
    place: tuple[float, ...]
    axes: tuple[float, ...]
    spacing: tuple[float, ...]
    thickness: float
    instance: int
    scale: tuple[float | None, float | None]


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
    if is_placed and frames > 1 and (offsets := read_floats(dataset, frame, OFFSETS)):
        normal = np.cross(axes[:3], axes[3:])
        place = (np.array(place) + (offsets[frame] - offsets[0]) * normal).tolist()
    return Slice(
        name, shape, tuple(place) if is_placed else (), tuple(axes) if is_placed else (),
        tuple(spacing) if len(spacing) == 2 else (), thickness[0] if thickness else 0.0, number,
        (slope[0] if slope else None, intercept[0] if intercept else None),
    )  # fmt: skip


class Stack(NamedTuple):
    """Order and geometry of a volume.

    Attributes:
        order: Numbers of the slices in their order.
        by: The quantity that orders the slices: ``position`` or ``instance``.
        positions: Place of each slice along the normal, in mm, or its instance number, in this order.
        affine: Matrix from indices (column, row, slice) to millimetres, as NIfTI has it. None if unknown, or if steps
            from slice to slice differ.
        spacing: Distance of slices, rows and columns, in mm. None if unknown, or if steps from slice to slice differ.
    """

    order: list[int]
    by: str
    positions: list[float]
    affine: NDArray[np.float64] | None = None
    spacing: NDArray[np.float64] | None = None

    @property
    def orientation(self) -> str | None:
        """Letters of the directions in which columns, rows and slices grow, such as ``LPS``; None without an affine."""
        if self.affine is None:
            return None
        letters = ["???"] * 3
        columns = self.affine[:3, :3] / np.maximum(np.linalg.norm(self.affine[:3, :3], axis=0), 1e-30)
        free = {0, 1, 2}
        for at in np.argsort(-np.abs(columns).max(axis=0), kind="stable").tolist():
            axis = max(free, key=lambda row: abs(columns[row, at]))
            free.remove(axis)
            letters[at] = _AXES[axis][int(columns[axis, at] > 0)]
        return "".join(letters)


def stack_slices(slices: Sequence[Slice], allow_gaps: bool) -> Stack:
    """Orders the slices of a series by their positions, and computes spacing and affine.

    If a slice has no position or directions, orders by instance numbers, without spacing and affine. The spacing of a
    single slice is its thickness, or 1 mm.

    Raises :class:`ValueError` if the slices are not one volume: two differ in size, orientation or distance of pixels,
    or are at one place. Raises it also for unequal distances, unless ``allow_gaps``. The error names two slices.
    """
    first = slices[0]
    for other in slices[1:]:
        for what, one, two in (
            ("size", first.shape, other.shape),
            ("distance of pixels", first.spacing, other.spacing),
        ):
            if len(one) != len(two) or not np.allclose(one, two, rtol=1e-4):
                raise _make_difference_error(what, first, other, one, two)
    if not all(each.place and each.axes for each in slices):
        return _stack_by_instance(slices, allow_gaps)
    for other in slices[1:]:
        if not np.allclose(first.axes, other.axes, rtol=0, atol=_ANGLE):
            raise _make_difference_error("orientation", first, other, first.axes, other.axes)
    axes = np.array(first.axes).reshape(2, 3)
    normal, places = np.cross(*axes), np.array([each.place for each in slices])
    along = places @ normal
    order = np.argsort(along, kind="stable").tolist()
    is_even = _compare_steps(slices, order, places[order], allow_gaps, "at one position", "mm")
    steps = len(slices) - 1
    step = (places[order[-1]] - places[order[0]]) / steps if steps else normal * (first.thickness or 1.0)
    if not first.spacing or not is_even:
        return Stack(order, BY_POSITION, along[order].tolist())
    rows, columns = first.spacing
    affine = np.eye(4)
    affine[:3] = np.column_stack([axes[0] * columns, axes[1] * rows, step, places[order[0]]])
    spacing = np.array([np.linalg.norm(step), rows, columns])
    return Stack(order, BY_POSITION, along[order].tolist(), _RAS @ affine, spacing)


def _stack_by_instance(slices: Sequence[Slice], allow_gaps: bool) -> Stack:
    """Orders slices by their instance numbers, without spacing and affine. Raises :class:`ValueError` for equal
    numbers, and for gaps unless ``allow_gaps``."""
    order = sorted(range(len(slices)), key=lambda at: slices[at].instance)
    numbers = np.array([[slices[at].instance] for at in order], np.float64)
    _compare_steps(slices, order, numbers, allow_gaps, "without a position, and of one InstanceNumber", "")
    return Stack(order, BY_INSTANCE, numbers[:, 0].tolist())


def _compare_steps(
    slices: Sequence[Slice], order: Sequence[int], places: NDArray[np.float64], allow_gaps: bool, same: str, unit: str
) -> bool:
    """Tells if the steps between sorted places are equal, within 2% of their median.

    Raises :class:`ValueError` for two slices that are closer than 2% of the median. Raises it also for unequal steps,
    unless ``allow_gaps``.

    Args:
        slices: The slices.
        order: Their numbers, sorted by place.
        places: Their places, in this order.
        allow_gaps: Steps may be unequal.
        same: Property of two close slices, for the message.
        unit: Unit of the steps, for the message.
    """
    steps = np.diff(places, axis=0)
    lengths = np.linalg.norm(steps, axis=1)
    if not len(steps):
        return True
    by_length = [at for at in lengths.argsort(kind="stable").tolist() if lengths[at] > 0]
    step = steps[by_length[(len(by_length) - 1) // 2]] if by_length else steps[0]  # of two the lesser
    usual = float(np.linalg.norm(step))
    names = [printable(slices[at].name) for at in order]
    if (at := int(lengths.argmin())) >= 0 and lengths[at] <= _UNEVEN * usual:
        raise ValueError(
            f"is a series of which {names[at]} and {names[at + 1]} are {same}: several volumes, or a copy; leave some "
            "out with --ignore, or pack slices"
        )
    uneven = np.linalg.norm(steps - step, axis=1) > _UNEVEN * usual
    if uneven.any() and not allow_gaps:
        at = int(uneven.argmax())
        raise ValueError(
            f"is a series of which slices are missing or uneven: {lengths[at]:g} {unit}".rstrip()
            + f" from {names[at]} to {names[at + 1]}, {usual:g} elsewhere; {_GAPS}"
        )
    return not uneven.any()


def _make_difference_error(what: str, first: Slice, other: Slice, one: Any, two: Any) -> ValueError:
    """Returns the error for two slices that differ: ``what`` is the property, ``one`` and ``two`` its values."""
    return ValueError(
        f"is a series of more than one {what}: {printable(first.name)} has {_format_numbers(one)}, "
        f"{printable(other.name)} {_format_numbers(two)}; {_NOT_ONE}"
    )


def _format_numbers(values: Sequence[float]) -> str:
    """Formats numbers for messages; ``none`` for none."""
    return ", ".join(f"{value:g}" for value in values) or "none"
