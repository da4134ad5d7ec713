"""Errors for unknown arguments, which name the argument of this library for names from torch, torchvision and
others; checks of arguments that only training has."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, Self

from packstore.core.errors import UnknownArgumentError, UsageError
from packstore.core.options import check_option_numbers, show_value

_THREADS = "workers= says how many threads read and decode"
_DEVICE_MEMORY = "its memory is page-locked wherever the device is a GPU"

_IN_OPERATIONS = "operations have it, such as augment=[RandomResizedCrop(224), RandomHorizontalFlip()]"

_MEANT = {
    "PackedLoader": {
        "num_workers": _THREADS,
        "num_threads": _THREADS,
        "n_workers": _THREADS,
        "nthreads": _THREADS,
        "threads": _THREADS,
        "pin_memory": _DEVICE_MEMORY,
        "pin_memory_device": _DEVICE_MEMORY,
        "prefetch_factor": "prefetch= says how many batches are under way",
        "prefetch_size": "prefetch= says how many batches are under way",
        "persistent_workers": "its threads are made for each epoch, which takes microseconds",
        "multiprocessing_context": "it has threads, and no processes",
        "worker_init_fn": "it has threads, and no processes; seed= seeds all random numbers",
        "timeout": "its threads pass on their errors; none has to be waited for",
        "generator": "seed= seeds the order and all random numbers",
        "in_order": "batches come in order",
        "collate_fn": "batches are made at once; collate= chooses forms of columns, transform= works on batches",
        "batch_sampler": "pass the sampler within as sampler=, and batch_size=",
        "bs": "it is batch_size=",
        "order": "it is shuffle=True, 'full', 'lanes' or False",
        "memory_format": "it is channels_last=True",
        "num_replicas": "it is world_size=",
        "num_shards": "it is world_size=",
        "shard_id": "it is rank=",
        "distributed": "ranks are those of torch.distributed, or rank= and world_size=",
        "transforms": "augment= takes operations on image batches, and moves boxes and masks with them",
        "augmentations": "it is augment=",
        "interpolation": "operations have it, such as RandomResizedCrop(224, interpolation='bicubic')",
        "mean": "it is normalize=, such as 'imagenet' or (mean, std)",
        "std": "it is normalize=, such as 'imagenet' or (mean, std)",
        "ignore_index": "mask_fill= is the value of masks outside of the image",
        **dict.fromkeys(("crop_pct", "image_size", "imgsz", "img_size", "input_size", "size"), _IN_OPERATIONS),
        **dict.fromkeys(("color_jitter", "hflip", "ratio", "re_count", "re_mode", "scale", "vflip"), _IN_OPERATIONS),
        "auto_augment": "augment= takes a policy of timm, such as augment=[RandomResizedCrop(224), 'rand-m9-mstd0.5']",
        "no_aug": "without augment= images stay as they are",
        "re_prob": "operations have it, such as augment=[RandomResizedCrop(224), RandomErasing(0.25)]",
        "is_training": "shuffle= and augment= are for training",
        "num_aug_repeats": "it is sampler=RASampler(dataset, 3)",
        "use_prefetcher": "prefetch= says how many batches are under way",
        "worker_seeding": "seed= seeds all random numbers, whatever the thread",
        "epochs": "each for over the loader is an epoch",
        **dict.fromkeys(("mixup", "mixup_alpha", "cutmix", "cutmix_alpha"), "it is mix=, such as mix=MixUp(0.8)"),
        "mosaic": "it is mix=, such as mix=Mosaic(640)",
    },
    "PackedDataset": {
        "root": "its first argument is the path of a store",
        "train": "it is split=, such as split='train'",
        "image_set": "it is split=",
        "download": "packstore convert packs what was downloaded",
        "is_valid_file": "packstore convert --on-error skip leaves out bad files",
        "loader": "it is decoder=, and output= for the form of images",
        "return_key": "it is columns=, such as ('image', 'label', 'key')",
        "fields": "it is columns=",
        "features": "it is columns=",
        "target_type": "it is columns=",
        "format": "it is output=",
        "return_type": "it is output=",
        "map_location": "it is device=",
        "is_training": "it is split=, such as split='train'",
        "img_mode": "it is mode=, such as mode='RGB'",
        "input_img_mode": "it is mode=, such as mode='RGB'",
        "class_map": "packstore convert numbers the classes; target_transform= changes them",
        "return_keys": "it is columns=, such as ('image', 'label', 'key')",
        "cache_dir": "the variable PACKSTORE_CACHE names the cache",
    },
}  # fmt: skip

_ONLY = {
    "PackedLoader": (
        "augment batch_size block channels_last collate drop_last indices mask_fill masking min_area"
        " min_visible mix normalize on_error pre_transform prefetch rank resident sampler seed segments shuffle"
        " stream views window workers world_size"
    ),
    "PackedDataset": (
        "alpha checksums columns decoder denormalize depth device exif_transpose frames keep_crowds"
        " max_pixels mode split transforms"
    ),
}
"""Arguments that only one of the two classes has, as text."""

_OTHER = {
    "PackedLoader": ("PackedDataset", "PackedDataset(path, {}=…)"),
    "PackedDataset": ("PackedLoader", "PackedLoader(dataset, {}=…)"),
}
"""The other class, and how it takes an argument."""

_SPELLINGS = {
    "beta": "alpha=",
    "blur_limit": "kernel_size=",
    "brightness_limit": "brightness=",
    "contrast_limit": "contrast=",
    "length": "size=",
    "limit": "degrees=",
    "m": "magnitude=",
    "n": "num_ops=",
    "probabilities": "p=",
    "always_apply": "p=, where 1 applies it always",
    "crop_size": "size=",
    "cutmix_alpha": "alpha=",
    "fill": "value=",
    "fill_value": "fill=",
    "fillcolor": "fill=",
    "height": "size=(height, width)",
    "img_scale": "size=(height, width)",
    "img_size": "size=",
    "imgsz": "size=",
    "mask_ratio": "ratio=",
    "max_area": "scale=(least, most)",
    "max_aspect": "ratio=(least, most)",
    "max_count": "count=(least, most)",
    "min_area": "scale=(least, most)",
    "min_aspect": "ratio=(least, most)",
    "min_count": "count=(least, most)",
    "mixup_alpha": "alpha=",
    "mode": "value=, a number, 'random' or 'color'",
    "num_repeats": "repeats=",
    "pad_val": "fill=",
    "patch_size": "patch=",
    "prob": "p=",
    "probability": "p=",
    "repetitions": "repeats=",
    "resample": "interpolation=",
    "sigma_limit": "sigma=",
    "std": "sigma=",
    "switch_prob": "weights=, such as (0.7, 0.3) for a switch_prob of 0.3",
    "width": "size=(height, width)",
}
"""Our arguments by their names in other libraries, for classes that have the argument before ``=``."""

_BY_RANK = "the loader divides the indices among ranks; give each rank the same sampler"
_MIXES = "BatchMixer has it: mix=BatchMixer([MixUp(0.8), CutMix(1.0)], {}=…)"
_OF_TIMM = {
    "correct_lam": "the share always grows by what the border cuts off",
    "cutmix_minmax": "boxes have the sizes that alpha gives",
    "labels_getter": "it mixes the labels that the dataset's columns= names",
    "multi_label": "it mixes single labels, and those of collate={'labels': 'multi_hot'}",
}
_OF_MIXERS = {
    "prob": _MIXES.format("p"),
    "switch_prob": _MIXES.format("weights"),
    **{name: _MIXES.format(name) for name in ("label_smoothing", "labels", "mode", "num_classes", "p", "weights")},
}
_EITHER_MIXER = "each mixer has its own alpha: [MixUp(0.8), CutMix(1.0)]"

_REASONS = {
    "": {
        "device": "operations work on the device of the dataset",
        "dtype": "the loader's dtype= is that of the images",
        "inplace": "the loader takes care of the memory",
    },
    "BatchMixer": {**_OF_TIMM, "cutmix_alpha": _EITHER_MIXER, "mixup_alpha": _EITHER_MIXER},
    "CutMix": {**_OF_TIMM, **_OF_MIXERS, "mixup_alpha": _EITHER_MIXER},
    "MixUp": {**_OF_TIMM, **_OF_MIXERS, "cutmix_alpha": _EITHER_MIXER},
    "RASampler": {
        "num_replicas": _BY_RANK,
        "rank": _BY_RANK,
        "selected_ratio": "an epoch has as many items as the dataset",
        "selected_round": "an epoch has as many items as the dataset",
        "shuffle": "its order is always random, by seed= and the epoch",
    },
    "Compose": {
        "bbox_params": "boxes move with the images; Albumentations(pipeline) takes a pipeline of albumentations",
        "p": "RandomApply has it: RandomApply([RandomHorizontalFlip()], p=0.5)",
    },
    "RandAugment": {"magnitude_std": "TimmAugment has it: TimmAugment('rand-m9-mstd0.5')"},
    "RandomRotation": {"expand": "images keep their size"},
    "RandomErasing": {"num_splits": "for a part of the batch, use views= of the loader"},
    "Resize": {"max_size": "RandomShortestSize has it: RandomShortestSize(800, max_size=1333)"},
    "recipe": {"size": "a recipe is a list of operations: replace the one that crops"},
}  # fmt: skip
"""Why a class lacks an argument of other libraries, by its name; under ``""`` why all lack it."""


_MOST_NUMBER = (1 << 31) - 1
"""Largest number in an argument of an operation: sizes are 32-bit, and programs have float32."""

_MOST_TEXT = 1000


class KnownArguments:
    """Base of the classes of :mod:`packstore.augment`. Raises :class:`UnknownArgumentError`, with advice, for an
    unknown argument of a class of packstore."""

    def __new__(cls, *args: Any, **named: Any) -> Self:
        if named and cls.__module__.startswith("packstore."):
            unknown = named.keys() - {*_list_arguments(cls)}  # type: ignore[arg-type]  # of mypy, for type[Self]
            if unknown:
                raise unknown_operation_argument(cls, min(unknown))
        return super().__new__(cls)


class CheckedArguments(KnownArguments):
    """Base of packstore's operations and mixers. Checks names and numbers of arguments before anything uses them.

    Raises :class:`UsageError` for numbers as :func:`packstore.core.options.check_option_numbers` does. Checks nothing
    for classes outside packstore.
    """

    def __new__(cls, *args: Any, **named: Any) -> Self:
        made = super().__new__(cls, *args, **named)
        if dataclasses.is_dataclass(cls) and cls.__module__.startswith("packstore."):
            given = {**dict(zip(_list_arguments(cls), args, strict=False)), **named}
            for name, value in given.items():
                if isinstance(value, str) and len(value) > _MOST_TEXT:
                    raise UsageError(f"{cls.__name__}: {name} should be a short text, got {show_value(value)}")
            check_option_numbers(cls, given, f"{cls.__name__}: ", _MOST_NUMBER)
        return made


def unknown_operation_argument(called: Callable[..., Any], name: str) -> UnknownArgumentError:
    """Returns the error for an unknown argument ``name`` of a class or function of :mod:`packstore.augment`.

    It names the argument that ``name`` means in other libraries, or proposes one of similar spelling.
    """
    title, meant = called.__name__, None
    spelling = _SPELLINGS.get(name, "")
    if spelling.partition("=")[0] in _list_arguments(called):
        meant = f"it is {spelling}"
    meant = _REASONS.get(title, {}).get(name) or meant or _REASONS[""].get(name)
    return _unknown_argument(called, name, f"augment.{title}", meant)


def unknown_argument(called: type, name: str) -> UnknownArgumentError:
    """Returns the error for an unknown argument ``name`` of ``PackedLoader`` or ``PackedDataset``.

    It names the argument that ``name`` means in other libraries. Failing that, it names the other class if that has the
    argument, or proposes an argument of similar spelling.
    """
    title, meant = called.__name__, _MEANT[called.__name__].get(name)
    other, example = _OTHER[title]
    if meant is None and name in _ONLY[other].split():
        meant = f"{other} has it: {example.format(name)}"
    if meant is None and name in _MEANT[other]:
        meant = f"for {other}, {_MEANT[other][name]}"
    return _unknown_argument(called, name, title, meant)


@functools.cache
def _list_arguments(called: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the names of the arguments of a class or a function."""
    function = called.__init__ if isinstance(called, type) else called  # type: ignore[misc]
    taken = inspect.signature(function).parameters
    return tuple(name for name in taken if name not in ("self", "unknown"))


def _unknown_argument(called: Callable[..., Any], name: str, title: str, meant: str | None) -> UnknownArgumentError:
    """Returns the error for an unknown argument of the class or function ``title``, with ``meant`` as its advice."""
    # No advice yet: propose the argument of most similar spelling.
    if meant is None:
        alike = difflib.get_close_matches(name, _list_arguments(called), 1)
        meant = f"did you mean {alike[0]}=?" if alike else f"help(packstore.{title}) lists its arguments"
    return UnknownArgumentError(f"{title} has no argument {name}: {meant}")


def parse_numbers(name: str, values: Any) -> tuple[float, ...]:
    """Converts numbers in a list, tuple or array to floats.

    Accepts infinity, and texts of numbers in a list. Raises :class:`UsageError` for no numbers, for NaN, and for
    anything else.
    """
    try:
        numbers = () if isinstance(values, str | bytes) else tuple(map(float, values))
    except (TypeError, ValueError, OverflowError):
        numbers = ()
    if not numbers or any(map(math.isnan, numbers)):
        raise UsageError(f"{name} should be a list of numbers, got {show_value(values)}")
    return numbers


def refuse_class(name: str, value: Any) -> None:
    """Raises :class:`UsageError` for a class in place of one of its callable objects."""
    if isinstance(value, type) and any("__call__" in vars(base) for base in value.__mro__):
        title = value.__name__
        raise UsageError(f"{name} should be a function, got the class {title}: make an object of it, {title}(...)")


def check_callables(**values: Any) -> None:
    """Raises :class:`UsageError` unless each value is callable or None, and for a class of callable objects."""
    for name, value in values.items():
        refuse_class(name, value)
        if value is not None and not callable(value):
            raise UsageError(f"{name} should be a function or None, got {show_value(value)}")
