"""DICOM files for tests."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tests.makers.medical import noise

CT, EXPLICIT = "1.2.840.10008.5.1.4.1.1.2", "1.2.840.10008.1.2.1"


def make_dataset(pixels: NDArray[Any], **elements: Any) -> Any:
    """A CT of some pixels: ``(H, W)``, or ``(frames, H, W)``."""
    pydicom = importlib.import_module("pydicom")
    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = EXPLICIT
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID = CT
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID = "1.2.3"
    dataset.PatientName, dataset.PatientID, dataset.PatientAge = "Secret^Name", "secret-id", "042Y"
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID, dataset.Modality = "1.2.9", "1.2.8", "CT"
    dataset.Rows, dataset.Columns = pixels.shape[-2:]
    bits = 8 * pixels.itemsize
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = bits, bits, bits - 1
    dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
    if pixels.ndim == 3:
        dataset.NumberOfFrames = len(pixels)
    dataset.PixelData = pixels.tobytes()
    for name, value in elements.items():
        setattr(dataset, name, value)
    return dataset


def save(dataset: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path, enforce_file_format=True)
    return path


def pixels_of(number: int, dtype: str = "int16", shape: tuple[int, ...] = (6, 5)) -> NDArray[Any]:
    return noise(number, dtype, shape)
