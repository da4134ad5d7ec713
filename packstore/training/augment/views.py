"""Views: several crops of the same record in a batch, each augmented by a list of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packstore.core.errors import UsageError
from packstore.training.augment.base import Step, join
from packstore.training.augment.operations import output_size, split_operations
from packstore.training.augment.per_image import as_operations
from packstore.training.random_draws import Array, key

_MOST = 1 << 12
_COPY = 48
"""Bits of an id that stand below the number of a view: the record, and how often the epoch had it before."""


@dataclass(frozen=True)
class View:
    """Crops of one kind.

    Attributes:
        name: Under which a batch has them.
        count: How many of each record.
        operations: What is done with them, as of ``augment=``.
    """

    name: str
    count: int
    operations: tuple[Step, ...]

    def seed(self, seed: int) -> int:
        """Seed of the random numbers of these crops."""
        return key(seed, int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "big"))

    def ids(self, ids: Array) -> Array:
        """Ids of all crops of records ``ids`` ``(B,)``, those of a record together: ``(B * count,)``, all different."""
        return join([self.crop_ids(ids, number) for number in range(self.count)]).reshape(-1)

    def crop_ids(self, ids: Array, number: int) -> Array:
        """Ids of crop ``number`` of each of records ``ids``."""
        return ids + (number << _COPY)


@dataclass(frozen=True)
class Views:
    """All views of a loader.

    Attributes:
        parts: They, by kind.
        as_list: Whether batches have them as a list, ``(B, 3, H, W)`` each, and not as a dict of
            ``(B, count, 3, H, W)``.
    """

    parts: tuple[View, ...]
    as_list: bool = False

    def __repr__(self) -> str:
        return f"Views({', '.join(f'{p.name!r}: ({p.count}, {list(p.operations)!r})' for p in self.parts)})"


def as_views(views: Any) -> Views | None:
    """A user's ``views=``.

    Raises:
        UsageError: It is no dict of ``(count, operations)`` and no list of lists, or a view has no size of its own.
    """
    if views is None or isinstance(views, Views):
        return views
    if isinstance(views, Mapping):
        pairs = [(name, *_counted(name, value)) for name, value in views.items()]
    elif isinstance(views, Sequence) and not isinstance(views, str) and all(isinstance(v, list | tuple) for v in views):
        pairs = [(str(number), 1, operations) for number, operations in enumerate(views)]
    else:
        raise UsageError(
            'views should be a dict such as {"global": (2, [...]), "local": (8, [...])}, or a list of lists of '
            f"operations, got {views!r}"
        )
    if not pairs:
        raise UsageError("views should name at least one view, and is empty")
    parts = tuple(View(name, count, as_operations(operations)) for name, count, operations in pairs)
    for view in parts:
        split_operations(view.operations)
        if output_size(split_operations(view.operations, flip=True)[0]) is None:
            raise UsageError(
                f"the crops of view {view.name!r} have no common size: begin with RandomResizedCrop, or with Resize "
                "and then CenterCrop or RandomCrop (without padding)"
            )
    return Views(parts, not isinstance(views, Mapping))


def _counted(name: Any, value: Any) -> tuple[int, Any]:
    if not isinstance(name, str):
        raise UsageError(f"a view should have a text as its name, got {name!r}")
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], int):
        if not 0 < value[0] <= _MOST:
            raise UsageError(f"view {name!r} should have 1 … {_MOST} crops of a record, got {value[0]}")
        return value
    if isinstance(value, list):
        return 1, value
    raise UsageError(f"view {name!r} should be (count, [operations]), got {value!r}")
