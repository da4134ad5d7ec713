"""Options of ``merge`` and ``select``. Imports nothing heavy: the help of these commands reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from packstore.core.errors import UsageError
from packstore.core.findings import DEFAULT_DROP
from packstore.core.options import (
    check_numbers,
    check_options,
    convert_size,
    format_option,
    option,
    overwrite_option,
    show_value,
)


@dataclass(frozen=True, kw_only=True)
class MergeOptions:
    """Options of :func:`packstore.merge`. Raises :class:`UsageError` for invalid values; planning checks ``format``."""

    format: str | None = format_option()
    on_duplicate: Literal["raise", "skip", "unchecked"] = option(
        "raise",
        "What to do with a key that an earlier store has: ``raise``, or ``skip`` the record. ``unchecked`` reads no "
        "keys; the caller knows that all differ.",
        "For a key that an earlier store has: stop, or skip the record. unchecked: do not compare keys.",
    )
    classes: Sequence[str] | None = option(
        None,
        "All class names of the column ``label``, in the order of their numbers.",
        "All classes in the order of their numbers: cat,dog, or a file with one a line.",
        none="those of the first store, then new ones of the others",
        metavar="NAMES",
    )
    overwrite: bool = overwrite_option()

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class SelectOptions:
    """Options of :func:`packstore.select`.

    Raises :class:`UsageError` for invalid values, and in these cases:

    - ``whole_shards`` with options other than ``where``, ``splits``, ``seed``, ``format`` and ``overwrite``.
    - ``stratify`` without ``splits`` or ``sample``.
    - ``drop_kinds`` other than the default without ``drop``.

    Planning checks ``where``, ``drop``, ``drop_columns``, ``relabel``, ``shard_size`` and ``format``.
    """

    where: str | None = option(
        None,
        "Condition on the records, see :mod:`packstore.packing.where`: ``label in (cat, dog) and split == train``.",
        "Records to take, e.g. 'label in (cat, dog) and split == train'.",
        metavar="CONDITION",
    )
    per_class: int | None = option(
        None,
        "Maximum per class, drawn at random before ``sample``. Records without a label are one class.",
        "At most N records of each class, at random.",
        metavar="N",
        least=1,
    )
    sample: int | None = option(
        None, "Number of records to draw at random.", "N records at random.", metavar="N", least=1
    )
    splits: Mapping[str, float] | None = option(
        None,
        'New splits and their shares, ``{"train": 0.9, "val": 0.1}``, drawn at random from all chosen records. The '
        "report counts in ``moved`` the records that change their split. None keeps the splits.",
        "New splits at random: train=0.9,val=0.1.",
        flag="--split",
        metavar="SHARES",
    )
    stratify: bool = option(
        False,
        "The sample, and each new split, has the same share of every class.",
        "Give sample and splits the same share of every class.",
    )
    seed: int = option(
        0,
        "Seed of all draws. The same seed draws the same records from equal stores.",
        "Seed of all random choices.",
        metavar="N",
        least=0,
    )
    whole_shards: bool = option(
        False,
        "Draw whole shards: nothing is copied, and no shard is opened.",
        "Choose whole shards instead of records, so nothing is copied.",
    )
    drop: str | os.PathLike[str] | None = option(
        None,
        "Report of :func:`packstore.audit` as JSON. The records that its findings name are left out before anything is "
        "drawn.",
        "Leave out the findings of packstore audit --json JSON.",
        metavar="JSON",
    )
    drop_kinds: Sequence[str] = option(
        DEFAULT_DROP, "Kinds of findings whose records ``drop`` leaves out.", metavar="KINDS"
    )
    drop_columns: Sequence[str] = option(
        (), "Columns to leave out.", "Leave out a column. Repeatable.", flag="--drop-column", metavar="NAME"
    )
    relabel: str | os.PathLike[str] | Mapping[str, str] | None = option(
        None,
        "New names of classes: a mapping, or a CSV file with the columns ``old,new``. Two classes with one new name "
        "are joined; an empty name leaves the records out.",
        "Rename or merge classes: columns old,new.",
        metavar="CSV",
    )
    format: str | None = format_option()
    shard_size: int | str | None = option(
        None,
        "Approximate bytes of images in a shard.",
        "Approximate size of shards.",
        none="as in the store",
        group="Store",
    )
    overwrite: bool = overwrite_option()

    def __post_init__(self) -> None:
        check_options(self)
        if self.drop is None and tuple(self.drop_kinds) != DEFAULT_DROP:
            raise UsageError("drop_kinds chooses findings of an audit: give its report, too, as drop")
        if self.splits is not None:
            if not isinstance(self.splits, Mapping):
                shown = show_value(self.splits)
                raise UsageError(f"splits should give the share of each split by its name, got {shown}")
            shares = list(self.splits.values())
            check_numbers("splits", shares, texts=False)
            shown = show_value(dict(self.splits))
            if "" in self.splits:
                raise UsageError(f"each split needs a name, got {shown}")
            if shares and min(shares) <= 0:
                raise UsageError(f"each share of a split should be above 0, got {shown}")
            if abs(sum(shares) - 1) > 1e-6:
                raise UsageError(f"the shares of the splits should add up to 1, got {shown}")
        if self.stratify and self.splits is None and self.sample is None:
            raise UsageError("stratify says how splits or a sample are drawn: give one of them")
        if self.whole_shards:
            others = (self.sample, self.per_class, self.relabel, self.shard_size, self.stratify, *self.drop_columns)
            if self.drop is not None or any(other not in (None, False) for other in others):
                raise UsageError("whole_shards takes shards as they are: only where, splits and seed go with it")

    @property
    def shard_bytes(self) -> int | None:
        """:attr:`shard_size` in bytes; None if it is not set. Raises :class:`UsageError` if it is no size."""
        return convert_size(self.shard_size)
