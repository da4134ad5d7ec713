"""How a loader loads: options that are validated once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.core.manifest import Normalization
from packstore.training.dataset import PackedDataset

BatchCallable = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderOptions:
    """Options of :class:`packstore.PackedLoader`, which takes them as keyword arguments.

    Attributes:
        shuffle: A new order every epoch.
        seed: The order, and all random numbers of ``augment``, are a function of it.
        drop_last: Leave out a last batch that is not full.
        block: Shuffle for disks that cannot seek: blocks of this many consecutive records.
        sampler: Iterable of dataset indices, one an item (a torch ``Sampler``), instead of ``shuffle``.
        indices: Use only these items of the dataset.
        augment: Operations of :mod:`packstore.training.augment`, or callables on image batches, in order.
        normalize: ``imagenet``, ``cifar10``, ``cifar100``, a :class:`packstore.core.manifest.Normalization`, or None.
            Gives floating point images, ``(x / 255 - mean) / std``.
        dtype: Floating point type of the images; None for float32 where they are normalised, and else as stored.
            Without ``normalize``, pixels are scaled to 0 … 1.
        channels_last: Memory format of image batches: True or False, or None for the one that costs nothing, which
            depends on the store, the mode and the operations (so reshape batches, view may refuse).
        transform: Called with each batch of images, last.
        target_transform: Called with each batch of labels.
        pre_transform: Resident only: called once with images ``(M, 3, H, W)`` when they are loaded.
        resident: Hold everything in device memory: True, False, or ``"auto"`` where it fits.
        threads: Threads that read and decode; None for one a core. (DataLoader's ``num_workers``, without processes.)
        prefetch: Batches under way at a time.
        rank: Which of ``world_size`` equal parts of each global batch this process takes; None for what
            ``torch.distributed`` says, or 0 of 1.
        world_size: See ``rank``.
        dct_scaling: Scale JPEG files by 1/2 or 1/4 while they are decoded, where a crop is at least so many times the
            size that it is resized to: faster for large photos, and other pixels, by 1 to 3 of 255 on average (see
            :data:`packstore.images.decoders.SCALED_TOLERANCE`). With TurboJPEG, simplejpeg and OpenCV only.
        on_error: ``raise``, or ``skip`` to leave records out that cannot be decoded; ``stats()`` counts them.
    """

    shuffle: bool = False
    seed: int = 0
    drop_last: bool = False
    block: int | None = None
    sampler: Iterable[int] | None = None
    indices: Any = None
    augment: Sequence[Any] = ()
    normalize: str | Normalization | None = None
    dtype: torch.dtype | None = None
    channels_last: bool | None = None
    transform: BatchCallable | None = None
    target_transform: BatchCallable | None = None
    pre_transform: BatchCallable | None = None
    resident: bool | Literal["auto"] = "auto"
    threads: int | None = None
    prefetch: int = 3
    rank: int | None = None
    world_size: int | None = None
    dct_scaling: bool = False
    on_error: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:
        if self.prefetch < 1:
            raise UsageError(f"prefetch should be at least 1 batch, got {self.prefetch}")
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"threads should be at least 1, got {self.threads}")
        if self.resident not in (True, False, "auto"):
            raise UsageError(f"resident should be True, False or 'auto', got {self.resident!r}")
        if self.on_error not in ("raise", "skip"):
            raise UsageError(f"on_error should be 'raise' or 'skip', got {self.on_error!r}")
        if self.dtype is not None and not isinstance(self.dtype, torch.dtype):
            raise UsageError(f"dtype should be one of torch's, such as torch.float16, got {self.dtype!r}")
        if self.dtype is not None and not self.dtype.is_floating_point:
            raise UsageError(f"dtype should be a floating point type, got {self.dtype}; leave it out for uint8")
        if self.sampler is not None and (self.shuffle or self.indices is not None or self.block is not None):
            raise UsageError("a sampler decides on the order alone: leave out shuffle, indices and block")
        if self.block is not None and not self.shuffle:
            raise UsageError("block is a way of shuffling: add shuffle=True")
        if (self.rank is None) != (self.world_size is None):
            raise UsageError("rank and world_size go together")


def ranks(options: LoaderOptions) -> tuple[int, int]:
    """``(rank, world size)``: as given, or what ``torch.distributed`` says when it is initialised, or ``(0, 1)``."""
    if options.rank is not None and options.world_size is not None:
        if not 0 <= options.rank < options.world_size:
            raise UsageError(f"rank should be from 0 to {options.world_size - 1}, got {options.rank}")
        return options.rank, options.world_size
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


OF_DATALOADER = {
    "num_workers": "threads= says how many threads read and decode",
    "pin_memory": "its memory is page-locked wherever the device is a GPU",
    "prefetch_factor": "prefetch= says how many batches are under way",
    "persistent_workers": "its threads are made for each epoch, which takes microseconds",
    "collate_fn": "batches are made at once; transform= works on them",
    "batch_sampler": "sampler= and batch_size= make the batches",
}
"""What to use instead of options of torch's ``DataLoader``."""


def check_dataset(dataset: PackedDataset) -> None:
    """Raises :class:`UsageError` for what cannot be loaded in batches."""
    if not isinstance(dataset, PackedDataset):
        raise UsageError(
            f"PackedLoader loads a PackedDataset, got {type(dataset).__name__}; indices= takes a part of one, and "
            "packstore.prefetch brings any other loader's batches to the device"
        )
    if dataset.transform is not None or dataset.target_transform is not None:
        raise UsageError("the dataset has a transform, which works item by item: give it to the loader, for batches")
    if dataset.output != "tensor" or dataset.dtype is not None:
        raise UsageError("the loader makes tensors: leave output and dtype of the dataset alone, and give it dtype=")
    if "image" not in dataset.columns:
        raise UsageError(f"the dataset's columns are {', '.join(dataset.columns)}: there is no image to load")
    if len(dataset) == 0:
        raise UsageError(f"{dataset.path} has no records to load")


def as_indices(values: Any, length: int, what: str = "indices") -> NDArray[np.int64]:
    """``values`` as int64, negative ones counted from the end. Raises :class:`UsageError` for what is none."""
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UsageError(f"{what} should be a list of whole numbers, got {array.dtype} of shape {array.shape}")
    array = array.astype(np.int64)
    array = np.where(array < 0, array + length, array)
    if len(array) and not 0 <= array.min() <= array.max() < length:
        raise UsageError(f"{what} should be from 0 to {length - 1}, got {array.min()} to {array.max()}")
    return array
