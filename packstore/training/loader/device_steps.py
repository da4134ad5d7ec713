"""Processes a batch on its device: operations, normalisation, dtype, memory format, user transforms."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.core.manifest import Manifest
from packstore.core.modes import RGB, Mode
from packstore.images.programs import GEOMETRIC
from packstore.training.augment.base import GeometricOperation, Operation, Size, Step, Units
from packstore.training.augment.operations import HOW_TO_COLLATE, apply_operations, output_size
from packstore.training.augment.program_operation import ProgramOperation
from packstore.training.augment.steps import InPlace, is_per_image
from packstore.training.loader.division import WorkDivision
from packstore.training.loader.looks import find_stored_format
from packstore.training.loader.normalizer import Normalizer
from packstore.training.loader.options import LoaderOptions
from packstore.training.loader.stats import Stats
from packstore.training.pictures import TENSOR_DTYPES
from packstore.training.random_draws import Draws

if TYPE_CHECKING:
    from packstore.training.augment.erasing import Masking
    from packstore.training.augment.mixing import DrawnMix
    from packstore.training.augment.mosaic import Tiles
    from packstore.training.augment.per_image import PerImage


MIXING_STREAM, MASKING_STREAM = -1, -2
"""Streams of random numbers of ``mix`` and ``masking``. Those of operations are their indices in the list."""


class DrawnForBatch(NamedTuple):
    """Random choices that concern a whole batch. They apply to its other columns as to its images.

    Attributes:
        mixed: How records are mixed; None if they are not.
        masks: Hidden patches; None without masking.
        tiles: Positions in mosaics; None without mosaics.
    """

    mixed: DrawnMix | None = None
    masks: Masking | None = None
    tiles: Tiles | None = None


class DeviceSteps:
    """Converts a batch of stored images on the device to the model's input.

    Its steps are operations, normalisation, mixing and the user's transform.

    Attributes:
        in_decoding: Operations that are left out here, because decoding threads call them image by image.
    """

    def __init__(
        self,
        manifest: Manifest,
        options: LoaderOptions,
        stats: Stats,
        division: WorkDivision,
        normalizer: Normalizer | None,
        mode: Mode = RGB,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            manifest: Manifest of the store.
            options: Options of the loader.
            stats: Collects the seconds of each stage.
            division: Where the operations run.
            normalizer: Normalizer of the images; None if they keep their dtype.
            mode: Mode of the images.
            seed: Seed of the operations; None for that of the options.
        """
        self._options = options
        self._seed = options.draws_seed if seed is None else seed
        self._draws_for_batches = options.draws_for_batches
        self._stats = stats
        self.in_decoding = division.per_image
        self._first = division.first_on_batches
        self._operations = tuple(map(self._with_timing, division.on_batches))
        self._floats = manifest.holds_floats
        self._stored = TENSOR_DTYPES[mode.dtype]
        stored = find_stored_format(manifest.image, mode)
        self._example = torch.empty((1, stored.channels, 0, 0), dtype=stored.dtype, device="cpu")
        self._normalizer = normalizer
        self._units = Units.of_column(manifest.image, manifest.normalization)
        if normalizer is not None and not self._floats:
            self._units = normalizer.units

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the converted images, which ``transform`` gets."""
        return self._example.dtype if self._normalizer is None else self._normalizer.dtype

    @property
    def works_on_batches(self) -> bool:
        """True if there are operations that run on whole batches."""
        return bool(self._operations)

    @property
    def draws_on_host(self) -> bool:
        """True if operations on batches draw on the host, which then needs the ids of the records."""
        return any(isinstance(op, ProgramOperation) and op.draws_on_host for op in self._operations)

    @property
    def calls_user_code(self) -> bool:
        """True if functions of the user run here on whole batches of images. Leaves out :attr:`in_decoding`, and
        ``target_transform``."""
        return self._options.transform is not None or any(
            not isinstance(op, Operation) or isinstance(op, InPlace | _TimedOperation) or is_per_image(op)
            for op in self._operations
        )

    def _with_timing(self, operation: Step) -> Step:
        """Wraps a :class:`PerImage` so that its seconds are measured; returns other operations unchanged."""
        return _TimedOperation(operation, self._stats) if is_per_image(operation) else operation

    def call_per_image(
        self, images: torch.Tensor, records: NDArray[np.int64], epoch: int, skip: Collection[int]
    ) -> list[torch.Tensor | None]:
        """Calls the functions of :attr:`in_decoding` with each image. Thread-safe.

        Returns the results, with None for rows in ``skip``. ``records``: ids of the records, ``(B,)``."""
        rows = [row for row in range(len(images)) if row not in skip]
        results, first = [images[row] for row in rows], self._first - len(self.in_decoding)
        with self._stats.measure("per_image"):
            for stream, operation in enumerate(self.in_decoding, first):
                draws = Draws(self._seed, epoch, records[rows], stream)
                results = operation.call_each(results, draws)
        by_row: list[torch.Tensor | None] = [None] * len(images)
        for row, result in zip(rows, results, strict=True):
            by_row[row] = result
        return by_row

    def largest_pixels(self, images: torch.Tensor) -> int:
        """Estimates the largest number of pixels that an image has, as it is or after any operation.

        A user's function is assumed to double both sides. ``pre_transform`` may have made tensors of other shapes: of
        these, three values count as a pixel."""
        size = (images.shape[2], images.shape[3]) if images.ndim == 4 else (1, -(-images[:1].numel() // 3))
        after = [output_size(self._operations[:n], size) for n in range(1, len(self._operations) + 1)]
        return max(1, *(h * w for h, w in (size, *(s or (2 * size[0], 2 * size[1]) for s in after))))

    def augment_batch(
        self, images: torch.Tensor, records: torch.Tensor, epoch: int, ids: NDArray[np.int64] | None = None
    ) -> torch.Tensor:
        """Applies the operations that run on batches; returns the augmented images.

        Args:
            images: ``(B, 3, H, W)`` on the device.
            records: Ids of the records, int64 ``(B,)``, on the same device.
            epoch: Epoch of random operations.
            ids: The same ids on the host, if they are known there: some operations need them, and wait without.
        """
        if not self._operations:  # they run while decoding
            return images
        draws = Draws(self._seed, epoch, records, on_cpu=ids)
        return apply_operations(self._operations, images, draws, self._first)

    def move_images(
        self, images: torch.Tensor, records: torch.Tensor, epoch: int, operations: Sequence[Step], first: int
    ) -> torch.Tensor:
        """Moves images of another column as the main images, by the same draws.

        Applies crops, resizes, flips and warps alone. ``records``: ids of the records. ``first``: index of the first
        of ``operations`` to apply."""
        moving = [_moving_part(op) for op in operations[first:]]
        return apply_operations(moving, images, Draws(self._seed, epoch, records), first)

    def convert_batch(self, images: torch.Tensor, mode: Mode | None = None) -> torch.Tensor:
        """Converts images to the final memory format, normalisation and dtype.

        Without ``normalize`` and ``dtype``, changes the memory format alone, and makes images of a floating point store
        float32. Images of another dtype than stored pixels, such as floating point, are not normalised. If ``dtype`` or
        ``normalize`` is given, they get the final dtype all the same.

        ``mode``: for images of another mode than the main images. Their values are scaled to 0 … 1, without
        normalisation."""
        wanted = torch.channels_last if self._options.channels_last else torch.contiguous_format
        images = images.contiguous(memory_format=wanted)  # first, while a pixel is a byte; the rest keeps the format
        default = self._floats and self._options.dtype is None
        if self._normalizer is None or (default and images.dtype != self._example.dtype):
            return images
        if mode is not None:
            return Normalizer(None, self._normalizer.dtype, mode)(images)
        pixels = images.dtype == self._stored and not self._floats  # else normalised, or made by a user's function
        return self._normalizer(images) if pixels else images.to(self._normalizer.dtype)

    def __call__(
        self, images: torch.Tensor, records: torch.Tensor, epoch: int, ids: NDArray[np.int64]
    ) -> tuple[Any, DrawnForBatch]:
        """Applies all steps in order, the user's ``transform`` last.

        Args:
            images: As for :meth:`augment_batch`.
            records: As for :meth:`augment_batch`.
            epoch: As for :meth:`augment_batch`.
            ids: The same ids on the host.

        Returns:
            As :meth:`mix_batch`.
        """
        with self._stats.measure("augment"):
            return self.mix_batch(self.convert_batch(self.augment_batch(images, records, epoch, ids)), ids, epoch)

    def convert_unequal(
        self, images: Sequence[torch.Tensor], sizes: torch.Tensor, form: str, ids: NDArray[np.int64], epoch: int
    ) -> tuple[Any, DrawnForBatch]:
        """Converts augmented images ``(3, h, w)`` that differ in size, and calls the user's ``transform``.

        The images become mosaics with ``mix``, else by ``form`` a list, :class:`Padded` or a batch. Without images,
        mosaics and batches have height and width 0. Returns the result of ``transform``, and the draws of the batch.

        Raises :class:`UsageError` if images of a batch differ in shape or dtype.

        Args:
            images: The images.
            sizes: Their heights and widths, int64 ``(B, 2)``.
            form: ``"list"``, ``"padded"`` or ``"stacked"``.
            ids: Ids of the records, on the host.
            epoch: Epoch of random operations.
        """
        from packstore.training.loader.decoded_columns import pad_to_largest

        mosaic = self._options.mosaic
        with self._stats.measure("augment"):
            if form == "stacked":
                return self.mix_batch(self.convert_batch(self._stack_images(images, sizes.device)), ids, epoch)
            outputs: Any = [self.convert_batch(image[None])[0] for image in images]
            empty = None if outputs else self.convert_batch(self._example.to(sizes.device))
            tiles = None
            if mosaic is not None and empty is not None:
                outputs = empty[:0]
            elif mosaic is not None:
                host_sizes = np.array([image.shape[-2:] for image in outputs], np.int64)
                tiles = mosaic.draw_tiles(Draws(self._seed, epoch, ids, MIXING_STREAM), host_sizes)
                outputs = tiles.build_images(outputs, self._options.channels_last, self._units)
            elif form == "padded":
                outputs = pad_to_largest(outputs, sizes, outputs[0] if empty is None else empty[0])
            return self.call_transform(outputs), DrawnForBatch(tiles=tiles)

    def _stack_images(self, images: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
        """Stacks images ``(C, h, w)``. Raises :class:`UsageError` if they differ in shape or dtype."""
        if not images:
            return self._example.to(device)[:0]
        for image in images:
            if image.shape != images[0].shape or image.dtype != images[0].dtype:
                found, expected = (f"{tuple(each.shape)} {each.dtype}" for each in (image, images[0]))
                raise UsageError(f"images differ after augment= ({found}; {expected}): {HOW_TO_COLLATE}")
        return torch.stack(list(images))

    def mix_batch(self, images: torch.Tensor, ids: NDArray[np.int64], epoch: int) -> tuple[Any, DrawnForBatch]:
        """Mixes a batch with itself or builds mosaics, draws its hidden patches, and calls the user's ``transform``.

        Returns the result of ``transform``, and the draws. Does only what the options ask for. Builds no mosaics of a
        batch without images."""
        if not self._draws_for_batches:  # results of pre_transform need not be images
            return self.call_transform(images), DrawnForBatch()
        masking, mosaic, mixer = self._options.masking, self._options.mosaic, self._options.mixer
        draws, size = Draws(self._seed, epoch, ids), (images.shape[-2], images.shape[-1])
        mixed = masks = tiles = None
        if masking is not None:
            from packstore.training.augment.erasing import Masking

            patches = masking(draws.replace(stream=MASKING_STREAM), size)
            masks = Masking(*(each.to(images.device, non_blocking=True) for each in patches))
        if mosaic is not None and len(images):
            tiles = mosaic.draw_tiles(draws.replace(stream=MIXING_STREAM), np.tile(np.array(size), (len(images), 1)))
            images = tiles.build_images(images, self._options.channels_last, self._units)
        elif mixer is not None:
            mixed = mixer.draw_mix(draws.replace(stream=MIXING_STREAM), size)
            images = mixed.mix_images(images)
        return self.call_transform(images), DrawnForBatch(mixed, masks, tiles)

    def call_transform(self, images: Any) -> Any:
        """Calls the user's ``transform`` with a batch's images, or with all of its views. Without a transform, returns
        the images unchanged."""
        return images if self._options.transform is None else self._options.transform(images)


class ImageSet(NamedTuple):
    """Images of a batch, or of one view, on which decoding threads call the user's functions.

    Attributes:
        steps: Operations, among them the functions.
        images: ``(B * per_record, 3, H, W)``; those of a record are adjacent.
        ids: Ids of the records, or of their crops, ``(B * per_record,)``.
        per_record: Number of images of each record.
    """

    steps: DeviceSteps
    images: torch.Tensor
    ids: NDArray[np.int64]
    per_record: int = 1

    def call_per_image(self, first: int, stop: int, epoch: int, skip: Collection[int]) -> list[torch.Tensor | None]:
        """Does :meth:`DeviceSteps.call_per_image` for records ``first`` … ``stop - 1``, except those in ``skip``."""
        rows = slice(first * self.per_record, stop * self.per_record)
        left_out = {(row - first) * self.per_record + number for row in skip for number in range(self.per_record)}
        return self.steps.call_per_image(self.images[rows], self.ids[rows], epoch, left_out)


@dataclass(frozen=True, repr=False)
class _TimedOperation(Operation):
    """Runs a :class:`PerImage`, and adds its seconds to the stats."""

    operation: PerImage
    stats: Stats

    def __call__(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        with self.stats.measure("per_image"):
            return self.operation(images, draws)

    def size_after(self, size: Size | None) -> Size | None:
        """Returns None: the size after a :class:`PerImage` is unknown."""
        return self.operation.size_after(size)


@dataclass(frozen=True, repr=False)
class _MovingOperation(Operation):
    """Runs only the steps of an operation's program that move pixels."""

    operation: ProgramOperation

    def __call__(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        from packstore.training.augment.interpreter import run_program

        program = self.operation.draw_program(draws.on_host(), (images.shape[-2], images.shape[-1]))
        program[~np.isin(program["code"], GEOMETRIC)] = 0
        return run_program(images, program, units=self.operation.image_units)


def _moving_part(operation: Step) -> Step:
    """Returns an operation that moves pixels like ``operation`` and changes nothing else."""
    if isinstance(operation, ProgramOperation):
        return _MovingOperation(operation) if operation.moves_pixels else _keep_images
    return operation if isinstance(operation, GeometricOperation) else _keep_images


def _keep_images(images: torch.Tensor) -> torch.Tensor:
    """Returns the images unchanged."""
    return images
