"""What all batches of a loader share: the way from records to the items that a model gets."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.manifest import Manifest
from packstore.images.decoders import get_decoder
from packstore.training.augment.base import GeometricOperation
from packstore.training.augment.operations import split_operations
from packstore.training.dataset import PackedDataset
from packstore.training.loader.assemble import Assembler
from packstore.training.loader.device_steps import DeviceSteps
from packstore.training.loader.options import LoaderOptions
from packstore.training.loader.stats import Stats


class Batch(NamedTuple):
    """A finished batch: the item for the user, and how many images it has and how many were skipped."""

    item: Any
    images: int
    skipped: int = 0


class Pipeline:
    """Records to rows of a buffer, steps on the device, and the item for the user.

    Attributes:
        dataset: Where the records come from.
        options: The loader's.
        stats: Where its time goes.
        operations_at_decoding: The first operations of ``options.augment``, where they run while images are decoded.
        device_steps: All other steps.
    """

    def __init__(self, dataset: PackedDataset, options: LoaderOptions, resident: bool) -> None:
        self.dataset = dataset
        self.options = options
        self.stats = Stats()
        planned, _ = split_operations(options.augment, flip=True)
        self.operations_at_decoding = () if resident else _at_decoding(dataset.manifest, planned)
        self.device_steps = DeviceSteps(
            dataset.manifest,
            options,
            len(self.operations_at_decoding),
            in_threads=not resident and dataset.device.type == "cpu",
        )
        self._assembler: Assembler | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process."""
        return self.__dict__ | {"_assembler": None}

    @property
    def assembler(self) -> Assembler:
        """Writes records into rows of buffers."""
        if self._assembler is None:
            decoder = self.dataset.decoder
            # All decoders give the same pixels; of those beside the engine, this one costs the least under the GIL.
            if self.dataset.decoder_name == "auto" and not decoder.has_engine:
                decoder = get_decoder("simplejpeg", max_pixels=decoder.max_pixels)
            self._assembler = Assembler(
                self.dataset.reader,
                decoder,
                self.operations_at_decoding,
                self.stats,
                self.options.dct_scaling,
                self.dataset.exif_transpose,
            )
        return self._assembler

    def as_images(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of a buffer as ``(B, 3, H, W)``: a view with channels last where pixels are stored like that."""
        assembler = self.assembler
        return rows.permute(0, 3, 1, 2) if assembler.shape[-1] == 3 and assembler.dtype == torch.uint8 else rows

    def numbers(self, records: NDArray[np.int64]) -> dict[str, torch.Tensor]:
        """The dataset's columns of numbers, on the CPU: ``(B,)`` each."""
        return {name: self._numbers(name, records) for name in self.dataset.columns if name not in ("image", "key")}

    def _numbers(self, name: str, records: NDArray[np.int64]) -> torch.Tensor:
        values = self.dataset.reader.values(name, records)
        return torch.from_numpy(values.view(np.int64) if values.dtype == np.uint64 else values)

    def item(self, images: Any, records: NDArray[np.int64], numbers: dict[str, torch.Tensor]) -> Any:
        """A batch as the user gets it; ``numbers`` are on the device."""
        values: list[Any] = []
        for name in self.dataset.columns:
            if name == "image":
                values.append(images)
            elif name == "key":
                values.append([self.dataset.reader.key(int(record)) for record in records])
            else:
                values.append(self.device_steps.labels(numbers[name]) if name == "label" else numbers[name])
        return values[0] if len(values) == 1 else tuple(values)


def _at_decoding(manifest: Manifest, planned: tuple[GeometricOperation, ...]) -> tuple[GeometricOperation, ...]:
    """The operations of ``planned`` that run while images are decoded. Images that already have one size are augmented
    in whole batches, unless they are resized, since that is done image by image anyway."""
    if manifest.image.layout == "CHW":
        return ()
    if manifest.image.kind == "ragged" or any(op.resizes for op in planned):
        return planned
    return ()
