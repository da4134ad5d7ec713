"""Options of a loader, and their checks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.arguments import check_bools, check_callables, check_texts, whole_number
from packstore.core.errors import UsageError
from packstore.core.manifest import Normalization
from packstore.images.normalization import MeanAndStd
from packstore.training.augment.masking import RandomMasking
from packstore.training.augment.mixing import BatchMixer
from packstore.training.augment.mosaic import Mosaic
from packstore.training.augment.per_image import refuse_drawing_functions
from packstore.training.augment.targets import check_target_options
from packstore.training.augment.views import Views
from packstore.training.dataset import PackedDataset
from packstore.training.random_draws import derive_key

BatchCallable = Callable[[Any], Any]

Shuffle = Literal["full", "lanes"]
"""Orders of a shuffled epoch, see :class:`packstore.PackedLoader`."""

Collate = Literal["padded", "multi_hot", "optional", "list"]
"""Forms of a column in a batch, see :class:`packstore.PackedLoader`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderOptions:
    """Keyword arguments of :class:`packstore.PackedLoader`, which describes them. Converts whole numbers to ``int``.

    Raises :class:`UsageError` for invalid values, and for options that contradict each other. Does not check
    the values of ``augment``, ``mix``, ``views``, ``indices`` and ``normalize``, nor if ``rank`` is below
    ``world_size``."""

    shuffle: bool | Shuffle = False
    seed: int = 0
    stream: str | None = None
    drop_last: bool = False
    block: int | None = None
    window: int | None = None
    sampler: Iterable[int] | None = None
    indices: Any = None
    augment: tuple[Any, ...] = ()
    mix: BatchMixer | Mosaic | None = None
    views: Views | None = None
    masking: RandomMasking | None = None
    normalize: str | Normalization | MeanAndStd | None = None
    dtype: torch.dtype | None = None
    channels_last: bool = False
    output: Literal["tensor", "numpy"] = "tensor"
    transform: BatchCallable | None = None
    target_transform: BatchCallable | None = None
    pre_transform: BatchCallable | None = None
    resident: bool | Literal["auto"] = "auto"
    workers: int | None = None
    prefetch: int = 3
    rank: int | None = None
    world_size: int | None = None
    on_error: Literal["raise", "skip"] = "raise"
    collate: Mapping[str, Collate] | None = None
    mask_fill: int = 0
    min_area: float = 1.0
    min_visible: float = 0.0

    def __post_init__(self) -> None:
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
        check_bools(drop_last=self.drop_last, channels_last=self.channels_last)
        if self.shuffle not in (True, False, *get_args(Shuffle)):
            raise UsageError(f"shuffle should be True, False, 'full' or 'lanes', got {self.shuffle!r}")
        check_callables(
            transform=self.transform, target_transform=self.target_transform, pre_transform=self.pre_transform
        )
        refuse_drawing_functions(transform=self.transform, pre_transform=self.pre_transform)
        check_texts(stream=self.stream)
        if self.sampler is not None and not isinstance(self.sampler, Iterable):
            raise UsageError(f"sampler should give one index after another, got {self.sampler!r}")
        if self.resident not in (True, False, "auto"):
            raise UsageError(f"resident should be True, False or 'auto', got {self.resident!r}")
        if self.output not in ("tensor", "numpy"):
            raise UsageError(f"output should be 'tensor' or 'numpy', got {self.output!r}")
        if self.on_error not in ("raise", "skip"):
            raise UsageError(f"on_error should be 'raise' or 'skip', got {self.on_error!r}")
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
        if self.masking is not None and not isinstance(self.masking, RandomMasking):
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
    def draws_for_batches(self) -> bool:
        """True if options draw for whole batches (``mix``, ``masking``). The host then needs the record numbers."""
        return self.mix is not None or self.masking is not None

    @property
    def draws_seed(self) -> int:
        """Seed of all random numbers except the order: ``seed``, combined with the name ``stream`` if there is one."""
        if self.stream is None:
            return self.seed
        return derive_key(self.seed, int.from_bytes(hashlib.sha256(self.stream.encode()).digest()[:8], "big"))


def resolve_ranks(options: LoaderOptions) -> tuple[int, int]:
    """Returns ``(rank, world size)`` of this process.

    They come from the first of these that has them:

    - the options;
    - ``torch.distributed``, if it is initialised;
    - torchrun's ``RANK`` and ``WORLD_SIZE``, if both are set;
    - ``(0, 1)``.

    Raises :class:`UsageError` if the rank is not below the world size, or a variable is no number.
    """
    if options.rank is not None and options.world_size is not None:
        if not 0 <= options.rank < options.world_size:
            raise UsageError(f"rank should be from 0 to {options.world_size - 1}, got {options.rank}")
        return options.rank, options.world_size
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    found = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    if not all(found):  # Lightning sets WORLD_SIZE alone before it starts the other ranks
        return 0, 1
    if not all(text.isdecimal() for text in found) or int(found[0]) >= int(found[1]):
        raise UsageError(
            f"the environment has RANK={found[0]!r} and WORLD_SIZE={found[1]!r}, which is no rank of several: unset "
            "them, or say rank= and world_size="
        )
    return int(found[0]), int(found[1])


def check_dataset(dataset: PackedDataset) -> None:
    """Raises :class:`UsageError` for a dataset that a loader cannot use.

    - another class;
    - a transform or dtype, or another output than tensors and dicts;
    - no column of images, or no records.
    """
    if not isinstance(dataset, PackedDataset):
        raise UsageError(
            f"PackedLoader loads a PackedDataset, got {type(dataset).__name__}; indices= takes a part of one, and "
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
    """Converts whole numbers to int64 indices of ``length`` items. Negative ones count from the end.

    Raises :class:`UsageError` for other values, an empty list, and indices out of range.

    ``what``: name of the indices in error texts."""
    array = np.asarray(values)
    if array.shape == (0,):
        raise UsageError(f"{what} should be a list of whole numbers, and is empty: there is nothing to load")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UsageError(f"{what} should be a list of whole numbers, got {array.dtype} of shape {array.shape}")
    array = array.astype(np.int64)
    array = np.where(array < 0, array + length, array)
    if len(array) and not 0 <= array.min() <= array.max() < length:
        raise UsageError(f"{what} should be from 0 to {length - 1}, got {array.min()} to {array.max()}")
    return array
