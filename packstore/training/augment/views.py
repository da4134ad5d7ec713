"""Several augmentations of a record.

Views (``views=`` of a loader) are crops of it in one batch, each view with its own list of operations.
:class:`RASampler` repeats records within an epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from packstore.core.errors import UsageError
from packstore.core.options import show_value, whole_number
from packstore.training.arguments import KnownArguments
from packstore.training.augment.base import Step, Units, join_columns, with_units
from packstore.training.augment.operations import output_size, split_operations
from packstore.training.augment.steps import as_operations, may_resize
from packstore.training.random_draws import Array, Draws, derive_key

_MOST = 1 << 12
_COPY = 48
"""First bit of a crop's number in an id; the bits below hold the record and its occurrence in the epoch."""


@dataclass(frozen=True)
class View:
    """One view of the records: a number of random crops of each record by one list of operations.

    Attributes:
        name: Name in the batch.
        count: Number of crops per record.
        operations: Operations, as for ``augment=``.
    """

    name: str
    count: int
    operations: tuple[Step, ...]

    def derive_seed(self, seed: int) -> int:
        """Derives the seed of this view's random numbers from the loader's ``seed`` and the view's name."""
        # Not hash(), which differs between processes.
        return derive_key(seed, int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "big"))

    def all_crop_ids(self, ids: Array) -> Array:
        """Returns a distinct id for each crop of the records ``ids`` ``(B,)``: ``(B * count,)``, record by record."""
        return join_columns([self.crop_ids(ids, number) for number in range(self.count)]).reshape(-1)

    def crop_ids(self, ids: Array, number: int) -> Array:
        """Returns the id of crop ``number`` of each record in ``ids``, of the same shape."""
        return ids + (number << _COPY)


@dataclass(frozen=True)
class Views:
    """All views of a loader.

    Attributes:
        parts: The views, in the user's order.
        as_list: Batches contain a list of ``(B, 3, H, W)``, not a dict of ``(B, count, 3, H, W)``.
    """

    parts: tuple[View, ...]
    as_list: bool = False

    def __repr__(self) -> str:
        return f"Views({', '.join(f'{p.name!r}: ({p.count}, {list(p.operations)!r})' for p in self.parts)})"


def parse_views(views: Any, units: Units | None = None) -> Views | None:
    """Converts a user's ``views=``. Views of a list are named by their index.

    Returns None and :class:`Views` unchanged. ``units``: of the images, see :func:`.base.with_units`.

    Raises:
        UsageError: ``views`` is neither a dict of ``(count, operations)`` nor a list of lists of operations. Or it is
            empty, a count is not 1 … 4096, or a view's crops have no common size. Also as :func:`as_operations`.
    """
    if views is None or isinstance(views, Views):
        return views
    if isinstance(views, Mapping):
        pairs = [(name, *_parse_view(name, value)) for name, value in views.items()]
    elif isinstance(views, Sequence) and not isinstance(views, str) and all(isinstance(v, list | tuple) for v in views):
        pairs = [(str(number), 1, operations) for number, operations in enumerate(views)]
    else:
        raise UsageError(
            'views should be a dict such as {"global": (2, [...]), "local": (8, [...])}, or a list of lists of '
            f"operations, got {views!r}"
        )
    if not pairs:
        raise UsageError("views should name at least one view, and is empty")
    parts = tuple(View(name, count, with_units(as_operations(operations), units)) for name, count, operations in pairs)
    for view in parts:
        split_operations(view.operations)
        if output_size(split_operations(view.operations, flip=True)[0]) is None:
            functions = [operation for operation in view.operations if may_resize(operation)]
            raise UsageError(
                f"the crops of view {view.name!r} have no common size: begin with RandomResizedCrop, or with Resize "
                "and then CenterCrop or RandomCrop (without padding)"
                + (
                    f"; {functions[0]!r} may follow. If it is to see whole images of any size, return the views from "
                    "transform= of the PackedDataset, and use a DataLoader"
                    if functions
                    else ""
                )
            )
    return Views(parts, not isinstance(views, Mapping))


def _parse_view(name: Any, value: Any) -> tuple[int, Any]:
    """Returns the number of crops and the operations of a view's value."""
    if not isinstance(name, str):
        raise UsageError(f"a view should have a text as its name, got {name!r}")
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], int):
        if not 0 < value[0] <= _MOST:
            raise UsageError(f"view {name!r} should have 1 … {_MOST} crops of a record, got {value[0]}")
        return value
    if isinstance(value, list):
        return 1, value  # operations alone
    raise UsageError(f"view {name!r} should be (count, [operations]), got {value!r}")


class RASampler(KnownArguments):
    """Yields indices of a dataset in random order, each ``repeats`` times in a row.

    For ``sampler=`` of a loader. An epoch has as many items as the dataset, and shows ``1 / repeats`` of the records.
    The loader augments each repetition differently, and divides the indices among ranks. Give each rank a
    sampler with the same arguments.

    Source: Hoffer et al., "Augment your batch", 2019; DeiT, ``samplers.py``.

    Args:
        dataset: Anything with a length.
        repeats: Number of repetitions of a record.
        seed: Seed of the order, which also depends on the epoch.

    Raises:
        UsageError: ``dataset`` has no length. ``repeats`` is not a positive whole number, or ``seed`` not a whole
            number.
    """

    def __init__(self, dataset: Any, repeats: int = 3, seed: int = 0) -> None:
        if not isinstance(dataset, Sized):
            raise UsageError(f"RASampler takes a dataset, got {show_value(dataset)}")
        self.length = len(dataset)
        self.repeats = whole_number("repeats", repeats)
        self.seed = whole_number("seed", seed, None)
        self.epoch = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        draws = Draws(self.seed, self.epoch, np.arange(self.length))
        order = np.argsort(draws.bits(0), kind="stable")[: -(-self.length // self.repeats)]
        yield from np.repeat(order, self.repeats)[: self.length].tolist()

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, which determines the order of the next iteration."""
        self.epoch = epoch
