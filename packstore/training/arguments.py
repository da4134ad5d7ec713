"""Errors for unknown arguments, which name the argument of this library for names from torch, torchvision and
others."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from typing import Any, Self

from packstore.core.arguments import show_value
from packstore.core.errors import UnknownArgumentError, UsageError
from packstore.core.options import check_option_numbers

_THREADS = "workers= says how many threads read and decode"
_DEVICE_MEMORY = "its memory is page-locked wherever the device is a GPU"
_OF_LOADER = "PackedLoader has it, for whole batches"
_OF_DATASET = "the dataset has it: PackedDataset(path, {}=…)"

_LOADS = (
    "augment", "batch_size", "collate", "drop_last", "normalize", "prefetch", "rank", "seed", "shuffle", "workers",
    "world_size",
)  # fmt: skip

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
        "exif_transpose": "the dataset has it: PackedDataset(..., exif_transpose=True)",
        **{name: _OF_DATASET.format(name) for name in ("decoder", "device", "split", "columns")},
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
        "cache_dir": "the variable PACKSTORE_CACHE names the cache",
        **dict.fromkeys(_LOADS, _OF_LOADER),
    },
}  # fmt: skip

_OF_OPERATIONS = {
    "fill": "augment=[...] pads with black, or padding_mode= says with what; mask_fill= of the loader is for masks",
    "pad_if_needed": "padding= says how much",
    "prob": "it is p=",
    "height": "it is size=(height, width)",
    "width": "it is size=(height, width)",
    "max_size": "size=(height, width) gives one size",
}


_MOST_NUMBER = (1 << 31) - 1
"""Largest number in an argument of an operation: sizes are 32-bit, and programs have float32."""

_MOST_TEXT = 1000


class CheckedArguments:
    """Base of packstore's operations and mixers. Checks names and numbers of arguments before anything uses them.

    Raises :class:`UnknownArgumentError`, with advice, for an unknown argument, and :class:`UsageError` for numbers as
    :func:`packstore.core.options.check_option_numbers` does. Checks nothing for classes outside packstore.
    """

    def __new__(cls, *args: Any, **named: Any) -> Self:
        if dataclasses.is_dataclass(cls) and cls.__module__.startswith("packstore."):
            names = [each.name for each in dataclasses.fields(cls)]
            unknown = named.keys() - {*names}
            if unknown:
                raise unknown_operation_argument(cls, min(unknown))
            given = {**dict(zip(names, args, strict=False)), **named}
            for name, value in given.items():
                if isinstance(value, str) and len(value) > _MOST_TEXT:
                    raise UsageError(f"{cls.__name__}: {name} should be a short text, got {show_value(value)}")
            check_option_numbers(cls, given, f"{cls.__name__}: ", _MOST_NUMBER)
        return super().__new__(cls)


def unknown_operation_argument(called: type, name: str) -> UnknownArgumentError:
    """Returns the error for an unknown argument ``name`` of an operation of :mod:`packstore.augment`.

    The error proposes the argument that ``name`` is in other libraries, or an argument of similar spelling.
    """
    return _unknown_argument(called, name, f"augment.{called.__name__}", _OF_OPERATIONS.get(name))


def unknown_argument(called: type, name: str) -> UnknownArgumentError:
    """Returns the error for an unknown argument ``name`` of ``PackedLoader`` or ``PackedDataset``.

    The error proposes the argument that ``name`` is in other libraries, or an argument of similar spelling.
    """
    meant = _MEANT[called.__name__].get(name)
    if meant is None and called.__name__ == "PackedDataset" and name in _MEANT["PackedLoader"]:
        meant = f"PackedLoader loads batches: {_MEANT['PackedLoader'][name]}"
    return _unknown_argument(called, name, called.__name__, meant)


def _unknown_argument(called: type, name: str, title: str, meant: str | None) -> UnknownArgumentError:
    """Returns the error for an unknown argument, with ``meant`` as its advice. ``title`` names what was called.

    If ``meant`` is None, advises the argument of most similar spelling, or else ``help()``.
    """
    if meant is None:
        taken = inspect.signature(vars(called)["__init__"]).parameters
        known = [each for each in taken if each not in ("self", "unknown")]
        alike = difflib.get_close_matches(name, known, 1)
        meant = f"it is {alike[0]}=" if alike else f"help(packstore.{title}) lists its arguments"
    return UnknownArgumentError(f"{title} has no argument {name}: {meant}")
