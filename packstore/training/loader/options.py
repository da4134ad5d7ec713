"""Options of a loader, and their checks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset

from packstore.core.errors import UsageError
from packstore.core.manifest import Normalization
from packstore.core.options import argument, check_options, option, show_value, whole_number
from packstore.images.reading import MeanAndStd
from packstore.training.arguments import check_callables
from packstore.training.augment.base import Step
from packstore.training.augment.steps import check_target_options, refuse_drawing_functions
from packstore.training.dataset import PackedDataset
from packstore.training.random_draws import derive_key

if TYPE_CHECKING:
    from packstore.training.augment.erasing import RandomMasking
    from packstore.training.augment.mixing import BatchMixer, CutMix, MixUp
    from packstore.training.augment.mosaic import Mosaic
    from packstore.training.augment.views import Views

BatchCallable = Callable[[Any], Any]

Shuffle = Literal["full", "lanes"]
"""Orders of a shuffled epoch, see :class:`packstore.PackedLoader`."""

Collate = Literal["padded", "multi_hot", "optional", "list"]
"""Forms of a column in a batch, see :class:`packstore.PackedLoader`."""


def shuffle_option() -> bool | Shuffle:
    """Makes the argument ``shuffle``."""
    return option(
        False,
        'A new order every epoch. ``"full"`` permutes all records. ``"lanes"`` is for shards that must be fetched: '
        "each rank reads its own shards, and shuffles within a window of them. True: lanes for a store at a URL, else "
        '``"full"``.',
    )


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """Options of :class:`packstore.PackedLoader` that are used as they are given."""

    seed: int = option(0, "Seed of the order and of all random numbers of ``augment``.")
    stream: str | None = option(
        None,
        "Name of the random numbers of ``augment``. Two loaders of one seed give the same records. With one name, they "
        'also crop and flip the records alike. With different names, such as ``"global"`` and ``"local"``, each does '
        "so in its own way.",
    )
    drop_last: bool = option(False, "Drop a last batch that is not full.")
    block: int | None = option(
        None,
        "For disks that seek slowly: shuffle blocks of this many consecutive records. Needs ``shuffle=True``.",
        least=1,
        most=1 << 40,
    )
    window: int | None = option(
        None,
        'Number of shards mixed at a time with ``"lanes"``, over all ranks, or of blocks with ``block``. With a '
        ":class:`packstore.Mix`, number of shards of each store at a URL. None: 64 shards or 16 blocks; a single rank "
        "takes fewer shards if the cache has less room.",
    )
    sampler: Iterable[int] | None = option(
        None,
        "Iterable of dataset indices, one an item (a torch ``Sampler``); it may be endless. Not with ``shuffle``, "
        "``indices`` or ``block``. "
        "Ranks divide its indices among them, so it must yield the same on all ranks: torch's random samplers need a "
        "``generator``; only its absence is noticed. A sampler with ``num_replicas`` and ``rank``, such as "
        "``DistributedSampler``, divides them itself: each rank takes all that its own sampler yields. Not if ``rank`` "
        "is given.",
    )
    masking: RandomMasking | None = option(
        None, "A :class:`packstore.augment.RandomMasking`; adds the hidden patches of each image to batches."
    )
    normalize: str | Normalization | MeanAndStd | None = option(
        None,
        "``imagenet``, ``cifar10``, ``cifar100``, a :class:`packstore.core.manifest.Normalization`, or None. Makes "
        "images floating point, ``(x / 255 - mean) / std``.",
    )
    dtype: torch.dtype | None = option(
        None,
        "Floating point type of the images. None for float32 if they are normalised, by the loader or in the store, as "
        "in items of a dataset; other images stay whole numbers. Without ``normalize``, pixels are scaled to 0 … 1.",
    )
    channels_last: bool = option(
        False,
        "Memory format of image batches. True for a model that was moved to ``torch.channels_last``, which is faster "
        "on most devices. False for other models: their gradients would have other strides than the weights, and "
        "``DistributedDataParallel`` would copy each, with a warning.",
    )
    output: Literal["tensor", "numpy"] = option(
        "tensor",
        '``"numpy"`` for arrays instead of tensors, on the CPU, without copies. The memory of a batch is not used '
        "again while one of its arrays lives. Images are ``(B, 3, H, W)``, with ``channels_last`` ``(B, H, W, 3)``; "
        "bfloat16 becomes float32. ``augment`` and the transforms work on tensors all the same.",
    )
    transform: BatchCallable | None = option(None, "Called with each batch of images, last.")
    target_transform: BatchCallable | None = option(None, "Called with each batch of the column ``label``.")
    pre_transform: BatchCallable | None = option(
        None, "Resident only: called with parts of the images, ``(M, 3, H, W)``, once when they are loaded."
    )
    resident: bool | Literal["auto"] = option(
        "auto",
        'Keep everything in device memory: True, False, or ``"auto"``: if it fits and, on the CPU, is faster than '
        "streaming (images up to 12 KiB).",
    )
    workers: int | None = option(
        None,
        "Number of threads that read and decode; None for one per core. (DataLoader's ``num_workers``, without "
        "processes.)",
        least=1,
        most=1000,
    )
    prefetch: int = option(3, "Number of batches in progress at a time.", least=1, most=1000)
    rank: int | None = option(
        None,
        "Number of this process among ``world_size`` processes, each of which takes an equal part of every global "
        "batch. None, when an epoch begins: that of ``torch.distributed``, else ``RANK`` and ``WORLD_SIZE`` of the "
        "environment, else 0 of 1.",
    )
    world_size: int | None = option(None, "See ``rank``.")
    on_error: Literal["raise", "skip"] = option(
        "raise",
        "``raise``, or ``skip`` to leave out records that are damaged or cannot be decoded. A batch is then smaller, "
        "or empty; ``stats()`` counts the skipped records.",
    )
    collate: Mapping[str, Collate] | None = option(
        None,
        'Forms of columns, by name. ``"padded"``: :class:`Padded` ``(values, lengths)`` instead of a list; for images, '
        'all have the largest height and width, and the lengths are the heights and widths. ``"list"``: images of '
        'different sizes as a list of ``(3, h, w)``; masks have the form of the images. ``"multi_hot"``: see above. '
        '``"optional"``: records may have no value, and the value of the batch is a list with None for these. Without '
        "it a missing value is an error.",
    )
    segments: Literal["polygons", "masks", "padded"] = option(
        "polygons",
        "Form of segments. ``polygons``: lists as items have them, moved and clipped, in pixels. ``masks``: a bool "
        "``(n, H, W)`` for each record, with a mask for each object. ``padded``: :class:`Padded` of all masks, "
        "``(B, n, H, W)``, and the numbers of objects.",
    )
    mask_fill: int = option(
        0,
        "Value of masks outside the image, if a crop exceeds it; masks become int32 for values that uint8 lacks, such "
        "as -1.",
    )
    min_area: float = option(1.0, "Boxes whose remaining area, in square pixels of the result, is smaller are dropped.")
    min_visible: float = option(0.0, "Boxes whose remaining fraction of area is smaller are dropped.")


@dataclass(frozen=True)
class LoaderArguments(BatchOptions):
    """Arguments of :class:`packstore.PackedLoader`."""

    dataset: PackedDataset | Subset[Any] = field(
        metadata=argument(
            "Dataset to load, or torch's ``Subset`` of one, such as ``random_split`` makes. The dataset's ``columns`` "
            "and ``device`` are used; its ``transform``, ``output`` and ``dtype`` must be the defaults, since they "
            "work item by item."
        )
    )
    batch_size: int = option(1, "Images per batch and rank.")
    shuffle: bool | Shuffle = shuffle_option()
    _: KW_ONLY
    indices: Sequence[int] | Sequence[bool] | NDArray[np.int64] | NDArray[np.bool_] | torch.Tensor | None = option(
        None, "Use only these items of the dataset: their indices, or a mask with a bool for each item."
    )
    augment: Sequence[Any] | Step | str = option(
        (),
        "Operations of :mod:`packstore.training.augment`, or callables on image batches, in order. Or a single "
        "operation, or the name of a recipe (:func:`packstore.augment.recipe`). A random callable draws once a batch: "
        "put it in ``PerImage``. The steps of torchvision's ``Compose`` are applied one by one.",
    )
    mix: BatchMixer | Mosaic | Sequence[MixUp | CutMix] | MixUp | CutMix | None = option(
        None,
        ":class:`packstore.augment.MixUp`, :class:`packstore.augment.CutMix`, a list from which each batch draws one, "
        "or a :class:`packstore.augment.BatchMixer` with more options. Mixes each batch with itself, after operations "
        "and normalisation; labels become shares of classes, float32 ``(B, C)``. Or :class:`packstore.augment.Mosaic` "
        "for detection. The mixed rows are a function of the rank's batch.",
    )
    views: Mapping[str, Any] | Sequence[Sequence[Any]] | None = option(
        None,
        'Several crops of each record, instead of ``augment``, as ``{"global": (2, [...]), "local": (8, [...])}``. The '
        "images of a batch are then a dict of ``(B, n, 3, H, W)``. With a list of lists of operations, they are a list "
        "of ``(B, 3, H, W)``. Each crop has its own draws, and a record is decoded once for all of them. Masks, boxes "
        "and keypoints become dicts or lists as the images are, and so do labels of boxes: ``(B, n, H, W)``, or for "
        "each record a list of ``n`` values. Not with ``augment``, ``mix``, ``masking`` or ``pre_transform``.",
    )


@dataclass(frozen=True, kw_only=True)
class LoaderOptions(BatchOptions):
    """Options of a loader, with operations in place of what the user gives for them. Converts whole numbers to ``int``.

    Raises :class:`UsageError` for invalid values, and for these combinations:

    - ``sampler`` with ``shuffle``, ``indices`` or ``block``.
    - ``block`` without ``shuffle=True``.
    - ``views`` with ``augment``, ``mix``, ``masking`` or ``pre_transform``.
    - ``rank`` without ``world_size``, or the reverse.

    Does not check the values of ``augment``, ``mix``, ``views``, ``indices`` and ``normalize``, nor if ``rank`` is
    below ``world_size``."""

    shuffle: bool | Shuffle = shuffle_option()
    indices: Any = None
    augment: tuple[Any, ...] = ()
    mix: BatchMixer | Mosaic | None = None
    views: Views | None = None

    def __post_init__(self) -> None:
        check_options(self)
        for name, least in (
            ("prefetch", 1),
            ("workers", 1),
            ("block", 1),
            ("window", 1),
            ("world_size", 1),
            ("rank", 0),
            ("seed", None),
        ):
            value = getattr(self, name)
            if value is not None or name in ("prefetch", "seed"):
                object.__setattr__(self, name, whole_number(name, value, least))
        check_callables(
            transform=self.transform, target_transform=self.target_transform, pre_transform=self.pre_transform
        )
        refuse_drawing_functions(transform=self.transform, pre_transform=self.pre_transform)
        if self.sampler is not None and not isinstance(self.sampler, Iterable):
            raise UsageError(f"sampler should give one index after another, got {self.sampler!r}")
        if self.dtype is not None and not isinstance(self.dtype, torch.dtype):
            raise UsageError(f"dtype should be one of torch's, such as torch.float16, got {self.dtype!r}")
        if self.dtype is not None and not self.dtype.is_floating_point:
            raise UsageError(f"dtype should be a floating point type, got {self.dtype}; leave it out for uint8")
        if self.sampler is not None and (self.shuffle or self.indices is not None or self.block is not None):
            raise UsageError("a sampler decides on the order alone: leave out shuffle, indices and block")
        if self.block is not None and isinstance(self.shuffle, str):
            raise UsageError(f"block is another way of shuffling than {self.shuffle!r}: leave one out")
        if self.block is not None and not self.shuffle:
            raise UsageError("block is a way of shuffling: add shuffle=True")
        if self.masking is not None:
            from packstore.training.augment.erasing import RandomMasking

            if not isinstance(self.masking, RandomMasking):
                raise UsageError(f"masking should be a RandomMasking, got {self.masking!r}")
        if self.views is not None:
            for name in ("augment", "mix", "masking", "pre_transform"):
                if getattr(self, name):
                    raise UsageError(f"views= has operations of its own for each view: leave out {name}=")
        check_target_options(self.mask_fill, self.min_area, self.min_visible)
        forms = get_args(Collate)
        if self.collate is not None and not (
            isinstance(self.collate, Mapping) and all(form in forms for form in self.collate.values())
        ):
            raise UsageError(f"collate should say by column one of {', '.join(forms)}, got {self.collate!r}")
        if (self.rank is None) != (self.world_size is None):
            raise UsageError("rank and world_size go together")

    @property
    def form_of_images(self) -> str | None:
        """``"list"`` or ``"padded"`` as ``collate`` says for images; None if it names no form for them."""
        return None if self.collate is None else self.collate.get("image")

    @property
    def mosaic(self) -> Mosaic | None:
        """``mix`` if it builds mosaics, else None."""
        if self.mix is None:
            return None
        from packstore.training.augment.mosaic import Mosaic

        return self.mix if isinstance(self.mix, Mosaic) else None

    @property
    def mixer(self) -> BatchMixer | None:
        """``mix`` if it mixes records with labels, else None."""
        if self.mix is None:
            return None
        from packstore.training.augment.mixing import BatchMixer

        return self.mix if isinstance(self.mix, BatchMixer) else None

    @property
    def draws_for_batches(self) -> bool:
        """True if options draw for whole batches (``mix``, ``masking``). The host then needs the record numbers."""
        return self.mix is not None or self.masking is not None

    @property
    def draws_seed(self) -> int:
        """Seed of all random numbers except the order: ``seed``, combined with the name ``stream`` if there is one."""
        if self.stream is None:
            return self.seed
        return derive_key(self.seed, int.from_bytes(hashlib.sha256(self.stream.encode()).digest()[:8], "big"))


def unwrap_subset(dataset: Any) -> tuple[Any, NDArray[np.int64] | None]:
    """Returns the dataset in a ``Subset``, also in a nested one, and the indices of the items in it. Without a
    ``Subset``, the indices are None. Raises :class:`UsageError` for wrong indices."""
    chosen = None
    while isinstance(dataset, Subset):
        indices = parse_indices(dataset.indices, len(dataset.dataset), "indices of a Subset")  # type: ignore[arg-type]
        chosen = indices if chosen is None else indices[chosen]
        dataset = dataset.dataset
    return dataset, chosen


def check_dataset(dataset: Any, in_subset: bool = False) -> None:
    """Raises :class:`UsageError` for a dataset that a loader cannot use. ``in_subset``: it was in a ``Subset``.

    - another class;
    - a transform or dtype, or another output than tensors and dicts;
    - no column of images, or no records.
    """
    if not isinstance(dataset, PackedDataset):
        raise UsageError(
            f"PackedLoader loads a PackedDataset or a Subset of one, got {'a Subset of ' if in_subset else ''}"
            f"{type(dataset).__name__}; packstore.concat joins several stores to a PackedDataset, and "
            "packstore.prefetch brings any other loader's batches to the device"
        )
    if not (dataset.transform is None and dataset.target_transform is None and dataset.transforms is None):
        raise UsageError("the dataset has a transform, which works item by item: give it to the loader, for batches")
    if dataset.output not in ("tensor", "dict") or dataset.dtype is not None:
        raise UsageError(
            "the loader makes batches: give it dtype=, and output='numpy' for arrays, instead of the dataset, whose "
            "output is 'tensor' or 'dict'"
        )
    if "image" not in dataset.columns:
        raise UsageError(f"the dataset's columns are {', '.join(dataset.columns)}: there is no image to load")
    if len(dataset) == 0:
        raise UsageError(f"{dataset.path} has no records to load")


def parse_indices(values: Any, length: int, what: str = "indices") -> NDArray[np.int64]:
    """Converts whole numbers, or a mask of ``length`` bools, to int64 indices of ``length`` items. Negative numbers
    count from the end.

    Raises :class:`UsageError` for other values, an empty list, and indices out of range.

    ``what``: name of the indices in error texts."""
    array = np.asarray(values)
    if array.dtype != np.bool_ and isinstance(values, list | tuple) and bool in map(type, values):
        raise UsageError(
            f"{what} should be a list of whole numbers, or a mask of bools alone, got {show_value(values)}"
        )
    if array.dtype == np.bool_ and array.ndim == 1 and len(array):
        if len(array) != length:
            raise UsageError(f"{what} should be a mask with a bool for each of {length} items, got {len(array)}")
        array = np.flatnonzero(array)
    if array.shape == (0,):
        raise UsageError(f"{what} should be a list of whole numbers, and is empty: there is nothing to load")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UsageError(f"{what} should be a list of whole numbers, got {array.dtype} of shape {array.shape}")
    array = array.astype(np.int64)
    array = np.where(array < 0, array + length, array)
    if len(array) and not 0 <= array.min() <= array.max() < length:
        raise UsageError(f"{what} should be from 0 to {length - 1}, got {array.min()} to {array.max()}")
    return array
