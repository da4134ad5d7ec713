"""``merge``: combines several stores into one."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import islice
from pathlib import Path

from packstore.core.columns import LINK_COLUMNS
from packstore.core.errors import StoreError, UsageError, join_names, printable
from packstore.core.files import refuse_nested_paths
from packstore.core.manifest import Column, Manifest
from packstore.core.options import argument, progress_option, takes
from packstore.core.progress import ProgressCallback, progress_callback
from packstore.core.urls import location
from packstore.packing.composing import (
    NO_LIMIT,
    Composition,
    Piece,
    copy_split,
    describe_stores_origin,
    largest_shard_bytes,
    link_whole_shards,
    list_linkable_shards,
)
from packstore.packing.encoding import record_counts, same_encoding_options
from packstore.packing.options import MergeOptions
from packstore.packing.plan import resolve_format
from packstore.stores import Reader
from packstore.stores.keys import find_repeated_keys
from packstore.stores.lenses import join_answers, join_columns
from packstore.stores.opening import open_reader


@dataclass(frozen=True, slots=True, repr=False)
class MergeReport:
    """Result of ``merge`` or ``select``.

    Attributes:
        destination: The new store.
        manifest: Its manifest.
        linked: Number of shards that were hard-linked unchanged; on another disk, copied.
        copied: Number of records that were copied.
        duplicates: Number of records left out because another store has their keys.
        seconds: How long it took.
        moved: Number of records that ``select`` moved, by (old split, new split).
    """

    destination: Path
    manifest: Manifest
    linked: int
    copied: int
    duplicates: int
    seconds: float
    moved: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"<MergeReport of {str(self.destination)!r}: {self.manifest.records:,} records, {self.linked:,} shards "
            f"reused, {self.copied:,} records copied, {self.seconds:.1f} s>"
        )


@dataclass(frozen=True)
class MergeArguments(MergeOptions):
    """Arguments of :func:`packstore.merge`."""

    stores: Sequence[str | os.PathLike[str]] = field(
        metadata=argument(
            "Paths or URLs of two or more stores with the same encoding and columns. The new store has the columns in "
            "the first store's order."
        )
    )
    destination: str | os.PathLike[str] = field(
        metadata=argument("Path or URL of the new store; its suffix chooses the format.")
    )
    _: KW_ONLY
    progress: bool | ProgressCallback = progress_option()


@takes(MergeArguments)
def merge(arguments: MergeArguments) -> MergeReport:
    """Combines several stores into one new store. In each split, the records of the first store come first, then those
    of the second, and so on.

    The new store is a directory of shards. Shards that have its format and class numbers are hard-linked into it; the
    remaining records are copied unchanged.

    Returns:
        The report.

    Raises:
        StoreError: A store does not open, or the stores differ in encoding or columns; :class:`CorruptRecordError` for
            a bad record.
        DestinationError: The destination exists, is in one of the stores, or cannot be written.
        UsageError: There are fewer than two stores, or an argument is wrong.
    """
    started = time.monotonic()
    if isinstance(arguments.stores, str | os.PathLike):
        raise UsageError(f"merge takes a list of stores, got {os.fspath(arguments.stores)!r}")
    with progress_callback(arguments.progress) as report, ExitStack() as stack:
        plan = plan_merge([*map(location, arguments.stores)], location(arguments.destination), arguments, stack)
        return write_composition(plan, report, started)


def write_composition(plan: Composition, progress: ProgressCallback, started: float) -> MergeReport:
    """Writes and publishes the store of a composition; returns the report."""
    manifest = plan.write_store(progress)
    seconds = time.monotonic() - started
    linked, copied = plan.linked_shard_count, plan.copied_count
    return MergeReport(plan.destination, manifest, linked, copied, plan.duplicates, seconds, plan.moved)


def plan_merge(paths: Sequence[Path], destination: Path, options: MergeOptions, stack: ExitStack) -> Composition:
    """Plans a merge.

    The new manifest keeps the options that all stores share, and all options of reading image files. Adds up the
    counts of records. Opens the stores, which ``stack`` closes; writes nothing. Raises the errors of :func:`merge`.
    """
    if len(paths) < 2:
        raise UsageError("merge takes two stores or more")
    for path in paths:
        refuse_nested_paths(destination, path)
    format = resolve_format(destination, options.format)
    readers = [stack.enter_context(open_reader(path)) for path in paths]
    columns = _merge_columns(readers, options.classes)
    left_out = _find_duplicates(readers, options.on_duplicate)
    first = readers[0].manifest
    names = list(dict.fromkeys(split.name for reader in readers for split in reader.manifest.splits)) or [""]
    linkable = [
        # A shard with records to leave out cannot be linked.
        None if gone else list_linkable_shards(reader, format, columns)
        for reader, gone in zip(readers, left_out, strict=True)
    ]
    pieces: list[Piece] = []
    for name in names:
        for reader, shards, gone in zip(readers, linkable, left_out, strict=True):
            if not name or any(split.name == name for split in reader.manifest.splits):
                pieces += link_whole_shards(copy_split(reader, name, name, columns, gone), shards)
    counts = Counter[str]()
    for reader in readers:
        counts.update(record_counts(reader.manifest))
    answers = join_answers([(str(reader.path), reader.manifest) for reader in readers])
    # The new manifest only states options that hold for all records.
    same = {k: v for k, v in first.options.items() if all(r.manifest.options.get(k) == v for r in readers)}
    skipped = tuple(s for reader in readers for s in reader.manifest.skipped)
    base = replace(
        first, format=format, origin=describe_stores_origin(readers), options=same | answers | counts, skipped=skipped
    )
    size = largest_shard_bytes(first) or NO_LIMIT
    return Composition(
        destination,
        base,
        columns,
        pieces,
        shard_size=size,
        overwrite=options.overwrite,
        duplicates=sum(map(len, left_out)),
    )


def _merge_columns(readers: Sequence[Reader], classes: Sequence[str] | None) -> tuple[Column, ...]:
    """Joins the columns of all stores in the order of the first store, with the classes of all."""
    first = readers[0]
    for reader in readers[1:]:
        mine, other = first.manifest, reader.manifest
        # Files keep their own sizes; pixels of one store should be alike.
        if mine.encoding == other.encoding and not mine.holds_files and not same_encoding_options(mine, other):
            both = f"{printable(str(first.path))} and {printable(str(reader.path))}"
            raise StoreError(f"the images of {both} were resized in different ways; convert one of them first")
    columns = join_columns(readers)
    if all(reader.manifest.is_linked for reader in readers):
        columns = (*columns, *LINK_COLUMNS)
    if classes is None:
        return columns
    if not first.manifest.has_column("label"):
        raise UsageError("classes gives the order of the classes of 'label', and the stores have no column 'label'")
    return tuple(
        replace(c, classes=_check_class_order(c.classes, classes)) if c.name == "label" else c for c in columns
    )


def _check_class_order(merged: tuple[str, ...] | None, classes: Sequence[str]) -> tuple[str, ...]:
    """Returns ``classes`` as a tuple if it names every class of ``merged`` once; it may name further classes."""
    if merged is None:
        raise UsageError("classes gives the order of names, and the labels of the stores are plain numbers")
    repeated = next((name for i, name in enumerate(classes) if name in classes[:i]), None)
    if repeated is not None:
        raise UsageError(f"classes names {printable(repeated)!r} twice")
    missing = [name for name in merged if name not in set(classes)]
    if missing:
        lacking = f"{len(missing):,} ({join_names(missing)})"
        raise UsageError(f"classes should name every class of the stores; it lacks {lacking}")
    return tuple(classes)


def _find_duplicates(readers: Sequence[Reader], policy: str) -> list[set[str]]:
    """Returns for each store the keys to leave out because an earlier store has them."""
    left_out: list[set[str]] = [set() for _ in readers]
    if policy == "unchecked":
        return left_out
    repeated = find_repeated_keys(readers)
    if policy == "raise":
        # Millions of keys are counted, not kept.
        some = [key for _, key in islice(repeated, 3)]
        count = len(some) + sum(1 for _ in repeated)
        if count:
            names = ", ".join(map(printable, some)) + (", …" if count > len(some) else "")
            raise StoreError(
                f"{count:,} keys are in more than one store ({names}); --on-duplicate skip keeps the first"
            )
    for number, key in repeated:
        left_out[number].add(key)
    return left_out
