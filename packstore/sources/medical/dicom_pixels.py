"""Pixels of a frame of a DICOM file: as stored, rescaled (PS3.3 C.11.1) or through a window (C.11.2). Stacks the slices
of a series to a volume: order, spacing and affine after C.7.6.2."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import printable
from packstore.core.modes import Mode
from packstore.images.sniff import HeaderError, excess_pixels_message, sniff
from packstore.sources.medical.dicom_files import (
    USED,
    Plane,
    count_frames,
    find_element,
    load_pydicom,
    raise_as_damaged,
)

_ANGLE = 1e-3
"""Largest difference of direction cosines of slices that count as parallel."""
_UNEVEN = 0.02
"""Largest difference between two steps from slice to slice, as a share of the usual one."""
_JPEG_LS, _LOSSLESS = b"\xff\xf7", b"\xff\xc3"
"""Markers of the frame header, which is the same in JPEG-LS and in lossless JPEG."""
_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
"""Converts DICOM's patient axes (left, posterior, superior) to those of NIfTI (right, anterior, superior)."""


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
    with raise_as_damaged("its pixels cannot be read"):
        reason = excess_pixels_message(int(dataset.Columns), int(dataset.Rows), max_pixels)
        if reason is not None:
            raise ValueError(reason)
        _refuse_large_codestream(dataset, frame)
        values = load_pydicom().pixels.pixel_array(dataset, index=frame)
        if dataset.get("PhotometricInterpretation") == "PALETTE COLOR":
            values = processing.apply_color_lut(values, dataset)
        elif values.ndim == 2 and image != "stored":
            values = _rescale(values, dataset, frame, through_window=image == "window")
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
        dataset.PixelData,
        frame,
        number_of_frames=count_frames(dataset),
        extended_offsets=offsets if None not in offsets else None,
    )
    with suppress(HeaderError):  # RLE, or damage, which the decoder finds
        found = sniff(data.replace(_JPEG_LS, _LOSSLESS, 1))
        if found.width * found.height > int(dataset.Rows) * int(dataset.Columns):
            raise ValueError(f"the compressed image has {found.width} x {found.height} pixels, more than the file says")


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
    """Frame of a series.

    Attributes:
        name: File, with the number of the frame if it has several.
        pixels: ``(H, W, C)``.
        plane: Its position, directions, distances and scale.
        instance: Number in the series.
        elements: Kept elements by keyword.
    """

    name: str
    pixels: NDArray[Any]
    plane: Plane
    instance: int
    elements: Mapping[str, Any]


class Stack(NamedTuple):
    """Slices and geometry of a volume.

    Attributes:
        slices: The slices in their order.
        by: The quantity that orders the slices: ``position`` or ``instance``.
        positions: Place of each slice along the normal, in mm, or its instance number.
        affine: Matrix from indices (column, row, slice) to millimetres, as NIfTI has it. None if unknown, or if steps
            from slice to slice differ.
        spacing: Distance of slices, rows and columns, in mm. None if unknown, or if steps from slice to slice differ.
    """

    slices: Sequence[Slice]
    by: str
    positions: NDArray[np.float64]
    affine: NDArray[np.float64] | None = None
    spacing: NDArray[np.float64] | None = None

    @property
    def orientation(self) -> str | None:
        """Letters of the directions in which columns, rows and slices grow, such as ``LPS``; None without an affine."""
        if self.affine is None:
            return None
        return "".join(code or "?" for code in importlib.import_module("nibabel").aff2axcodes(self.affine))


def stack_slices(slices: Sequence[Slice], allow_gaps: bool) -> Stack:
    """Orders the slices of a series by their positions, and computes spacing and affine.

    If a slice has no position or directions, orders by instance numbers, without spacing and affine. The spacing of a
    single slice is its thickness, or 1 mm.

    Raises :class:`ValueError` if the slices are not one volume: two differ in size, orientation or distance of pixels,
    or are at one place. Raises it also for unequal distances, unless ``allow_gaps``. The error names two slices.
    """
    first, is_placed = slices[0], all(each.plane.place for each in slices)
    for other in slices[1:]:
        for what, one, two, tolerance in (
            ("size", first.pixels.shape, other.pixels.shape, 0),
            ("distance of pixels", first.plane.spacing, other.plane.spacing, 0),
            ("orientation", first.plane.axes, other.plane.axes, _ANGLE),
        ):
            if (what != "orientation" or is_placed) and (
                len(one) != len(two) or not np.allclose(one, two, rtol=1e-4, atol=tolerance)
            ):
                raise ValueError(
                    f"is a series of more than one {what}: {printable(first.name)} has {one}, "
                    f"{printable(other.name)} {two}; leave the others out with --ignore"
                )
    if is_placed:
        axes = np.array(first.plane.axes).reshape(2, 3)
        places = np.array([each.plane.place for each in slices])
        along = places @ np.cross(*axes)
    else:
        along = np.array([each.instance for each in slices], np.float64)
        places = along[:, None]
    order = np.argsort(along, kind="stable")
    ordered, places, along = [slices[at] for at in order], places[order], along[order]
    is_even = _compare_steps(ordered, places, allow_gaps)
    if not is_placed:
        return Stack(ordered, "instance", along)
    if not first.plane.spacing or not is_even:
        return Stack(ordered, "position", along)
    steps = len(slices) - 1
    step = (places[-1] - places[0]) / steps if steps else np.cross(*axes) * (first.plane.thickness or 1.0)
    rows, columns = first.plane.spacing
    affine = np.eye(4)
    affine[:3] = np.column_stack([axes[0] * columns, axes[1] * rows, step, places[0]])
    return Stack(ordered, "position", along, _RAS @ affine, np.array([np.linalg.norm(step), rows, columns]))


def _compare_steps(slices: Sequence[Slice], places: NDArray[np.float64], allow_gaps: bool) -> bool:
    """Tells if the steps between sorted places are equal, within 2% of their median.

    Raises :class:`ValueError` for two slices that are closer than 2% of the median. Raises it also for unequal steps,
    unless ``allow_gaps``.
    """
    steps = np.diff(places, axis=0)
    if not len(steps):
        return True
    lengths = np.linalg.norm(steps, axis=1)
    step = steps[lengths.argsort(kind="stable")[(len(steps) - 1) // 2]]
    usual = float(np.linalg.norm(step))
    names = [printable(each.name) for each in slices]
    at = int(lengths.argmin())
    if lengths[at] <= _UNEVEN * usual:
        raise ValueError(
            f"is a series of which {names[at]} and {names[at + 1]} are at one place: several volumes, or a copy; leave "
            "some out with --ignore, or pack slices"
        )
    uneven = np.linalg.norm(steps - step, axis=1) > _UNEVEN * usual
    if uneven.any() and not allow_gaps:
        at = int(uneven.argmax())
        raise ValueError(
            f"is a series of which slices are missing or uneven: {lengths[at]:g} from {names[at]} to {names[at + 1]}, "
            f"{usual:g} elsewhere; pack it with --column image=volumes:gaps, or leave files out with --ignore"
        )
    return not uneven.any()
