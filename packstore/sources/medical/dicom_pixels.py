"""Pixels of a frame of a DICOM file: as stored, rescaled (PS3.3 C.11.1) or through a window (C.11.2)."""

from __future__ import annotations

import importlib
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import error_line
from packstore.core.modes import Mode
from packstore.images.sniff import excess_pixels_message
from packstore.sources.medical.dicom_files import USED, find_element, load_pydicom, silence_warnings


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
