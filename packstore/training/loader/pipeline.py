"""Sets up all steps of a loader, from records to the batches that a model gets.

The images are streamed, or resident in device memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.core.manifest import Column
from packstore.images.decoders import Decoder
from packstore.stores.records import FetchCounts
from packstore.training.augment.base import GeometricOperation, Step, Units, with_units
from packstore.training.augment.program_operation import check_colours, refuse_unsupported
from packstore.training.augment.steps import is_per_image
from packstore.training.dataset import PackedDataset
from packstore.training.items import map_images
from packstore.training.loader.assembler import Assembler
from packstore.training.loader.batch_plan import ChecksumPolicy
from packstore.training.loader.column_readers import make_column_readers
from packstore.training.loader.columns import ColumnReaders
from packstore.training.loader.device_steps import DeviceSteps, DrawnForBatch
from packstore.training.loader.division import (
    SMALL_IMAGE_BYTES,
    choose_image_form,
    divide_loader,
    final_image_size,
    operations_at_decoding,
)
from packstore.training.loader.looks import Look, RowFormat, engine_takes, final_format, find_stored_format
from packstore.training.loader.normalizer import Normalizer
from packstore.training.loader.options import LoaderOptions
from packstore.training.loader.stats import Stats
from packstore.training.loader.stored_images import ArrayImages, FileImages, MappedImages, StoredImages

if TYPE_CHECKING:
    from packstore.training.loader.views import ViewColumnReader, ViewSteps

_NOTHING = DrawnForBatch()


class LoadedBatch(NamedTuple):
    """Finished batch.

    Attributes:
        item: Tensor, tuple or dict that the user gets.
        images: Number of its records.
        skipped: Number of records that were left out because they failed.
        ids: Ids of its records, of a streamed batch.
    """

    item: Any
    images: int
    skipped: int = 0
    ids: NDArray[np.int64] | None = None


class Pipeline:
    """Assembles records into rows, runs steps on the device, and builds the user's item.

    Each process creates the assembler at its first use.

    Attributes:
        dataset: The dataset.
        options: Options of the loader.
        seed: Seed of all random numbers except the order.
        stats: Collects the seconds of each stage.
        division: Where all operations run.
        device_steps: All other steps.
        resident_look: Look by which the engine crops and finishes images that are resident on the CPU; None if torch
            does.
        views: Steps of several views; None without views.
        calls_user_code: Batches of images go through functions of the user. Leaves out ``target_transform``, and
            functions that decoding threads call.
        form: ``"list"`` or ``"padded"`` if images differ in size in the end; ``"stacked"`` if functions per image
            have to give them one; None if they make a batch.
        columns: Readers of the other columns.

    Raises:
        UsageError: Options that do not fit the columns, such as ``mix`` without labels.
    """

    def __init__(self, dataset: PackedDataset, options: LoaderOptions, resident: bool) -> None:
        self.dataset = dataset
        self.options = options
        self.seed = options.draws_seed
        self.stats = Stats(self.fetches)
        self._resident = resident
        self._image = image = dataset.manifest.image
        mode = dataset.reading.pixels
        stored = find_stored_format(image, mode)
        lists = [options.augment] if options.views is None else [view.operations for view in options.views.parts]
        for operations in lists if options.pre_transform is None else ():  # a function that may convert the images
            refuse_unsupported(operations, stored.dtype, stored.channels, mode.name)
        check_colours(options.mix, stored.channels, mode.name)
        self.form = choose_image_form(dataset, options)
        normalizer = Normalizer.for_loader(options, dataset.manifest, mode)
        final = final_format(dataset.manifest, normalizer, options.channels_last, mode)
        self.division = divide_loader(dataset, options, resident, final)
        self.device_steps = DeviceSteps(dataset.manifest, options, self.stats, self.division, normalizer, mode)
        self.resident_look = self._make_resident_look(image) if self.division.by_engine else None
        self.views: ViewSteps | None = None
        self.columns: ColumnReaders | ViewColumnReader
        of_columns = dataset, options, self._new_further_assembler, self._convert_further_images
        if options.views is None:
            self.columns = make_column_readers(*of_columns, one_by_one=self.division.one_by_one, form=self.form)
        else:
            from packstore.training.loader.views import ViewColumnReader, ViewSteps

            self.views = ViewSteps(dataset, options, self.stats, self.division.whole_views)
            self.columns = ViewColumnReader(*of_columns)
        deferred = self.division.one_by_one and any(
            is_per_image(op) and not op.runs_in_threads for op in options.augment
        )
        of_views = self.views is not None and self.views.calls_user_code
        self.calls_user_code = deferred or of_views or self.device_steps.calls_user_code
        self._classified = _columns_to_mix(dataset, options) if options.mix is not None else []
        self._assembler: Assembler | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the assembler, which belongs to this process."""
        return self.__dict__ | {"_assembler": None}

    @property
    def fetches(self) -> list[FetchCounts]:
        """Fetch counts of each remote store that the dataset reads; empty for local ones."""
        return self.dataset.reader.table.all_counts

    @property
    def assembler(self) -> Assembler:
        """Writes the main images into batch buffers; created on first use."""
        if self._assembler is None:
            self._assembler = self._new_main_assembler()
        return self._assembler

    def _new_main_assembler(self) -> Assembler:
        """Creates the assembler of the column ``image``. Its class depends on the store, the views and the sizes of
        images."""
        image, division, alone = self._image, self.division, not self.columns.carried
        decoder = self.dataset.decoder
        checks = ChecksumPolicy(self.dataset.reader, self.dataset.checksums, self.dataset.columns)
        if self.views is not None and self.views.looks:
            images = self._make_image_reader(image, decoder, mapped=True)
            return Assembler(images, self.views.looks, decoder.max_pixels, self.stats, alone, checks)
        if division.one_by_one:
            from packstore.training.loader.unequal_look import UnequalLook

            assert isinstance(self.columns, ColumnReaders)
            images = self._make_image_reader(image, decoder)
            look = UnequalLook(
                division.form or images.stored,
                images=images,
                steps=self.options.augment,
                size=None if self.form is not None else final_image_size(self.dataset, self.options),
                objects=self.columns.objects,
                alone=alone,
                stats=self.stats,
            )
            return Assembler(images, [look], decoder.max_pixels, self.stats, alone, checks)
        if self._resident:
            return self._new_assembler(image, decoder, (), alone, checks)
        return self._new_assembler(image, decoder, division.crops, alone, checks, division.form, division.programs)

    def _at_decoding(self, image: Column) -> tuple[GeometricOperation, ...]:
        """Returns the first operations of ``augment`` that run as crops while images of this column are decoded."""
        return operations_at_decoding(self.dataset, self._operations_for(image), image)

    def _operations_for(self, column: Column) -> tuple[Step, ...]:
        """Returns the operations of ``augment``, with the units of a column of images."""
        return with_units(self.options.augment, Units.of_column(column, self.dataset.manifest.normalization))

    def _make_resident_look(self, image: Column) -> Look | None:
        """Returns the look of resident images. Returns None for small images that only have to be gathered, which torch
        does faster."""
        crops, programs, form = self.division.crops, self.division.programs, self.division.form
        floats = image.layout == "CHW"
        stored = RowFormat(getattr(torch, image.dtype), floats, channels=image.shape[0 if floats else 2])
        converts = form is not None and (form.normalizer is not None or form.dtype != stored.dtype)
        # Batches of large images need new memory each, whose page faults take torch four times as long as the engine.
        if not (crops or programs or converts) and image.record_nbytes <= SMALL_IMAGE_BYTES:
            return None
        return Look(form or stored, crops, programs)

    def _new_assembler(
        self,
        column: Column,
        decoder: Decoder,
        operations: tuple[GeometricOperation, ...],
        alone: bool,
        checks: ChecksumPolicy | None = None,
        form: RowFormat | None = None,
        programs: tuple[Any, ...] = (),
    ) -> Assembler:
        """Creates the assembler of a column of images that come out in one size."""
        stats = self.stats
        made = bool(operations or programs or form is not None) and engine_takes(column, operations)
        # Columns beside the main one are read record by record.
        images = self._make_image_reader(column, decoder, mapped=column.name == "image" and (made or not operations))
        if isinstance(images, MappedImages) and not made:
            from packstore.training.loader.copy_assembler import CopyAssembler

            return CopyAssembler(images, decoder.max_pixels, stats, checks, form or images.stored)
        look = Look(form or images.stored, operations, programs)
        return Assembler(images, [look], decoder.max_pixels, stats, alone, checks)

    def _make_image_reader(self, column: Column, decoder: Decoder, mapped: bool = False) -> StoredImages:
        """Returns the reader of a column's stored images.

        ``mapped``: read arrays from the memory-mapped array of all main images, if the store has one."""
        reader = self.dataset.reader
        if column.layout is None:
            return FileImages(reader, column, decoder, self.dataset.exif_transpose)
        array = map_images(reader.unchecked_reader) if mapped else None
        return ArrayImages(reader, column) if array is None else MappedImages(reader, column, array)

    def _new_further_assembler(self, column: Column) -> Assembler:
        """Creates the assembler of a column of images beside the main one."""
        return self._new_assembler(column, self.dataset.decoder_of(column), self._at_decoding(column), alone=False)

    def _convert_further_images(
        self, column: Column, images: torch.Tensor, ids: torch.Tensor, epoch: int
    ) -> torch.Tensor:
        """Augments and normalises the images of a column beside the main one, on the device."""
        operations, first = self._operations_for(column), len(self._at_decoding(column))
        # Images of another mode are scaled to 0 … 1 instead of normalised.
        other = column.layout != "CHW" and column.pixels != self.dataset.reading.pixels
        moved = self.device_steps.move_images(images, ids, epoch, operations, first)
        return self.device_steps.convert_batch(moved, column.pixels if other else None)

    def make_batch(self, images: Any, columns: Mapping[str, Any], drawn: DrawnForBatch = _NOTHING) -> Any:
        """Builds the user's batch, a tensor, tuple or dict, from its images and other columns.

        Mixes labels and builds mosaics of the columns as of the images, and calls ``target_transform`` with the column
        ``label``. If hidden patches were drawn, they come last, as ``masking``.

        Args:
            images: The finished images.
            columns: Values of the other columns, on the device.
            drawn: Draws by which the images were mixed.
        """
        values = {name: images if name == "image" else columns[name] for name in self.dataset.columns}
        if drawn.mixed is not None and (mixer := self.options.mixer) is not None:
            for name in self._classified:
                classes = self.dataset.manifest.column(name).classes
                count = None if classes is None else len(classes)
                values[name] = mixer.mix_labels(values[name], drawn.mixed, count)
        if drawn.tiles is not None:
            options = self.options
            given = {name: self.dataset.manifest.column(name) for name in values if name != "image"}
            values = drawn.tiles.build_columns(values, given, options.mask_fill, options.min_area, options.min_visible)
        if self.options.target_transform is not None and "label" in values:
            values["label"] = self.options.target_transform(values["label"])
        if drawn.masks is not None:
            values["masking"] = drawn.masks
        if self.dataset.output == "dict":
            return values
        return next(iter(values.values())) if len(values) == 1 else tuple(values.values())


def _columns_to_mix(dataset: PackedDataset, options: LoaderOptions) -> list[str]:
    """Returns the columns of labels that ``mix=`` mixes with their images; empty for mosaics."""
    collate, names = options.collate or {}, []
    if options.mosaic is not None:
        from packstore.training.augment.mosaic import check_columns

        check_columns([dataset.manifest.column(name) for name in dataset.columns], collate)
        return []
    for name in dataset.columns:
        column = dataset.manifest.column(name)
        if (column.traits.moves or column.traits.has_images) and name != "image":
            raise UsageError(
                f"mix= mixes images with labels, and would leave the column {name!r} ({column.type}) as it is"
            )
        if (column.holds_class and not column.nullable) or collate.get(name) == "multi_hot":
            names.append(name)
    if not names:
        raise UsageError(
            "mix= needs labels to mix: a column of type label, or of labels with collate={name: 'multi_hot'}; the "
            f"dataset gives {', '.join(dataset.columns)}"
        )
    return names
