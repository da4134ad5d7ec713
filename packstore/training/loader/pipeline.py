"""What all batches of a loader share: the way from records to the items that a model gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.manifest import Column
from packstore.images.decoders import get_decoder
from packstore.training.augment.base import GeometricOperation
from packstore.training.augment.operations import split_operations
from packstore.training.dataset import PackedDataset
from packstore.training.loader.assemble import Assembler
from packstore.training.loader.checks import Checks
from packstore.training.loader.columns import Fields
from packstore.training.loader.device_steps import DeviceSteps
from packstore.training.loader.options import LoaderOptions
from packstore.training.loader.stats import Stats
from packstore.training.values import as_tensor


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
        fields: The other columns.
    """

    def __init__(self, dataset: PackedDataset, options: LoaderOptions, resident: bool) -> None:
        self.dataset = dataset
        self.options = options
        self.stats = Stats()
        self._planned, _ = split_operations(options.augment, flip=True)
        self.operations_at_decoding = () if resident else _at_decoding(dataset.manifest.image, self._planned)
        self.device_steps = DeviceSteps(
            dataset.manifest,
            options,
            len(self.operations_at_decoding),
            in_threads=not resident and dataset.device.type == "cpu",
        )
        self.fields = Fields(dataset, options, self._further_assembler, self._further_images)
        self._assembler: Assembler | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process."""
        return self.__dict__ | {"_assembler": None}

    @property
    def assembler(self) -> Assembler:
        """Writes records into rows of buffers."""
        if self._assembler is None:
            self._assembler = self._new_assembler(
                self.dataset.manifest.image, self.operations_at_decoding, not self.fields.carried, self.checks
            )
        return self._assembler

    def _new_assembler(
        self, column: Column, operations: tuple[GeometricOperation, ...], alone: bool, checks: Checks | None = None
    ) -> Assembler:
        dataset, decoder = self.dataset, self.dataset.decoder
        # All decoders give the same pixels; of those beside the engine, this one costs the least under the GIL.
        if dataset.decoder_name == "auto" and not decoder.has_engine:
            decoder = get_decoder("simplejpeg", max_pixels=decoder.max_pixels)
        scaling, turned = self.options.dct_scaling, dataset.exif_transpose
        return Assembler(dataset.reader, column, decoder, operations, self.stats, scaling, turned, alone, checks)

    def _further_assembler(self, column: Column) -> Assembler:
        return self._new_assembler(column, _at_decoding(column, self._planned), alone=False)

    def _further_images(self, column: Column, images: torch.Tensor, ids: torch.Tensor, epoch: int) -> torch.Tensor:
        """Images of a further column on the device: through the geometric operations, normalised."""
        first = len(_at_decoding(column, self._planned))
        return self.device_steps.convert(self.device_steps.move(images, ids, epoch, first))

    @property
    def checks(self) -> Checks:
        """What of the records is compared with checksums."""
        return Checks(self.dataset.reader, self.dataset.checksums, self.dataset.columns)

    def numbers(self, records: NDArray[np.int64]) -> dict[str, torch.Tensor]:
        """The dataset's columns of numbers, on the CPU: ``(B,)`` each."""
        names = [name for name in self.dataset.columns if name not in ("image", "key")]
        manifest, reader = self.dataset.manifest, self.dataset.reader
        return {name: as_tensor(manifest.column(name), reader.values(name, records)) for name in names}

    def item(self, images: Any, columns: Mapping[str, Any]) -> Any:
        """A batch as the user gets it; ``columns`` are its others, on the device."""
        values = {name: images if name == "image" else columns[name] for name in self.dataset.columns}
        if "label" in values:
            values["label"] = self.device_steps.labels(values["label"])
        if self.dataset.output == "dict":
            return values
        return next(iter(values.values())) if len(values) == 1 else tuple(values.values())


def _at_decoding(image: Column, planned: tuple[GeometricOperation, ...]) -> tuple[GeometricOperation, ...]:
    """The operations of ``planned`` that run while images are decoded. Images that already have one size are augmented
    in whole batches, unless they are resized, since that is done image by image anyway."""
    if image.layout == "CHW":
        return ()
    if image.kind == "ragged" or any(op.resizes for op in planned):
        return planned
    return ()
