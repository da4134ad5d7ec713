"""Describes a loader's options for its ``repr``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import torch

from packstore.training.augment.in_place import repr_on_one_line
from packstore.training.loader.epochs import Epochs
from packstore.training.loader.options import LoaderOptions

_SHOWN_OTHERWISE = ("sampler", "shuffle", "indices", "resident", "rank", "world_size", "dtype")


def describe_options(options: LoaderOptions, epochs: Epochs, records: int, dtype: torch.dtype) -> Iterator[str]:
    """Yields lines on the order and the images, and on each option that is not the default.

    ``records``: number of records of the dataset. ``dtype``: that of the images.
    """
    if epochs.subset_digest is not None:
        yield f"records: {epochs.order.length:,} of {records:,}"
    if options.sampler is None:
        yield f"shuffle: {epochs.shuffle or False}"
    else:
        yield f"sampler: {type(options.sampler).__name__}"
    yield f"images: {dtype}"
    for each in fields(options):
        value = getattr(options, each.name)
        if each.name not in _SHOWN_OTHERWISE and value is not None and (each.default is None or value != each.default):
            yield f"{each.name}: {repr_on_one_line(value)}"
