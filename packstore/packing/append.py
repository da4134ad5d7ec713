"""``append``: adds the records of a source to an existing store, as new shards beside the old ones."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path

from packstore.core.errors import DestinationError, printable
from packstore.core.files import check_paths, check_space, refuse_empty
from packstore.core.manifest import Manifest, Skipped
from packstore.core.options import argument, progress_option, takes
from packstore.core.progress import Progress, ProgressCallback, progress_callback
from packstore.core.urls import location
from packstore.packing.append_conversion import max_shard_bytes
from packstore.packing.append_plan import (
    new_classes,
    plan_append,
    read_request,
)
from packstore.packing.composing import Composition, copy_split
from packstore.packing.conversion import run_plan
from packstore.packing.growing import AddedShards, AppendPlan, build_grown_manifest, join_shards
from packstore.packing.options import AppendOptions
from packstore.packing.recorded_options import drop_record_counts
from packstore.sources.store import StoreSource
from packstore.stores.base import Reader
from packstore.stores.builder.assembly import list_shards
from packstore.stores.linked import read_link_values, relative_link_folder
from packstore.stores.places import Growth, place_of
from packstore.stores.places.owned import remove_unfinished
from packstore.stores.places.remote import LostRaceError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class AppendReport:
    """Result of an append.

    Attributes:
        store: The store.
        manifest: Its new manifest.
        added: Number of new records by split; ``""`` in a store without splits.
        duplicates: Number of samples left out because the store has their keys.
        skipped: Bad samples left out by policy.
        linked: Number of shards that were hard-linked unchanged; on another disk, copied.
        rewritten: Number of the store's records that were rewritten, because their shard contained several splits.
        seconds: How long it took.
        new_classes: Classes that the store did not have, by column.
    """

    store: Path
    manifest: Manifest
    added: Mapping[str, int]
    duplicates: int
    skipped: tuple[Skipped, ...]
    linked: int
    rewritten: int
    seconds: float
    new_classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"<AppendReport of {str(self.store)!r}: {sum(self.added.values()):,} records added, "
            f"{self.manifest.records:,} now, {self.seconds:.1f} s>"
        )


@dataclass(frozen=True)
class AppendArguments(AppendOptions):
    """Arguments of :func:`packstore.append`."""

    store: str | os.PathLike[str] = field(
        metadata=argument(
            "Path or URL of the store. If several processes append to a URL at once, one publishes first. The others "
            "read the store again and append to that."
        )
    )
    source: str | os.PathLike[str] = field(
        metadata=argument(
            "Path or URL, as for :func:`packstore.convert`. Shards of a store with the same encoding are linked."
        )
    )
    _: KW_ONLY
    progress: bool | ProgressCallback = progress_option()


@takes(AppendArguments)
def append(arguments: AppendArguments) -> AppendReport:
    """Adds the records of ``source`` to ``store`` as new shards, encoded like the store's records.

    Readers see the old store until the append is complete. A store of one file becomes a directory whose first shard is
    that file. New classes get the next numbers. Without ``depth``, ``alpha`` or ``frames``, the store's own apply.

    Returns:
        The report.

    Raises:
        UsageError: An argument is wrong, or does not say how the source's splits map to the store's.
        StoreError: The store does not open, or the source's columns or classes do not fit it.
        SourceError: The source cannot be read, or has keys that the store has.
        DestinationError: The store cannot be written, or another process writes to it.
    """
    started = time.monotonic()
    refuse_empty(arguments.store, arguments.source, arguments.labels)
    check_paths(arguments.labels)
    with progress_callback(arguments.progress) as report:
        return append_source(location(arguments.store), location(arguments.source), arguments, report, started)


def append_source(
    store: Path, source: Path, options: AppendOptions, progress: ProgressCallback, started: float | None = None
) -> AppendReport:
    """Runs :func:`append` with its options: plans, packs and publishes. Resumes an interrupted run.

    If an interrupted run of the same request had published, returns a report without new records. If this run fails on
    a local store, the work directory keeps its packed records for the next run. At a URL, plans again if others publish
    first.

    Raises the errors of :func:`append`, and :class:`DestinationError` if ``store`` is a symbolic link. ``started``:
    ``time.monotonic`` at the start; None for now.
    """
    started = time.monotonic() if started is None else started
    with place_of(store).grow() as growth:
        finished = growth.find_finished(lambda: read_request(source, options, store))
        if finished is not None:
            return AppendReport(store, finished, {}, 0, (), 0, 0, time.monotonic() - started)
        before: tuple[AppendPlan, AddedShards | None] | None = None
        for _ in range(growth.tries):
            manifest = growth.read_manifest()
            plan = plan_append(store, source, options, progress, growth.added)
            with closing(plan.source):
                if plan.manifest.digest != manifest.digest:
                    continue
                packed = before[1] if before is not None and _packs_same_records(before[0], plan) else None
                packed = packed or _prepare_shards(plan, growth, progress)
                before = plan, packed
                try:
                    return _publish_shards(plan, packed, growth, progress, started)
                except LostRaceError as error:
                    _log.info("%s: what is there now is read first", error)
    raise DestinationError(
        f"{printable(str(store))} was changed by others {growth.tries} times while this was appended; append again"
    )


def _packs_same_records(plan: AppendPlan, other: AppendPlan) -> bool:
    """Tells if two plans, for two versions of the store, pack the same records, which can then be used again.

    Compares columns, the keys left out, and the number of records of each split.

    False for shards that are linked.
    """
    columns = [[column.declaration for column in each.columns] for each in (plan, other)]
    same = plan.linked is other.linked is None and (plan.conversion is None) is (other.conversion is None)
    return same and columns[0] == columns[1] and (plan.left_out, plan.added) == (other.left_out, other.added)


def _prepare_shards(plan: AppendPlan, growth: Growth, progress: ProgressCallback) -> AddedShards | None:
    """Converts samples to new shards, copies records to new shards, or takes the shards to link. Returns None if
    nothing is added.

    First deletes what an interrupted run left; warns if that run had packed all samples. Raises
    :class:`DestinationError` if the disk has no room for copies.
    """
    remove_unfinished(growth.kept)
    if os.path.lexists(growth.added):
        if plan.conversion is not None:
            _log.warning("starting afresh: an interrupted run had packed all samples, and not put them into the store")
        remove_unfinished(growth.added)
    if plan.conversion is not None:
        report = run_plan(plan.conversion, progress)
        parts = list_shards(growth.added, report.manifest)
        return AddedShards(parts, report.manifest, report.manifest, report.skipped)
    if not plan.added or not isinstance(plan.source, StoreSource):
        return None
    origin = plan.source.manifest
    if plan.linked is not None:
        return AddedShards(plan.linked, origin, origin, origin.skipped)
    copied = _copy_records(plan, plan.source.reader)
    check_space(plan.store, copied.estimate_bytes)
    links = partial(read_link_values, folder=relative_link_folder(plan.manifest, plan.store))
    parts, manifest = copied.make_shards(growth.added, progress, links=links)
    return AddedShards(parts, manifest or origin, origin, ())


def _copy_records(plan: AppendPlan, reader: Reader) -> Composition:
    """Plans copies of the records to add to new shards. ``reader``: the source, a store with equal columns.

    Maps class numbers to the destination's. Leaves out the keys in ``plan.left_out``, and splits that are not
    requested. Drops counts of records, and the list of skipped samples.
    """
    other, size = reader.manifest, max_shard_bytes(plan)
    names = [split.name for split in other.splits if plan.options.split in (None, split.name)] or [""]
    pieces = [copy_split(reader, name, plan.split_of(name), plan.columns, plan.left_out) for name in names]
    base = replace(other, format=plan.manifest.format, options=drop_record_counts(other), skipped=())
    return Composition(plan.store, base, plan.columns, tuple(pieces), True, size, False)


def _publish_shards(
    plan: AppendPlan,
    added: AddedShards | None,
    growth: Growth,
    progress: ProgressCallback,
    started: float,
) -> AppendReport:
    """Adds shards to the store, publishes it, and returns the report. Without shards, publishes nothing.

    Raises :class:`LostRaceError` if another process published first. ``added``: the shards to add; None for none.
    """
    manifest, store = plan.manifest, plan.store
    if added is None:
        return AppendReport(store, manifest, {}, plan.duplicates, (), 0, 0, time.monotonic() - started)
    parts, rewritten = join_shards(plan, growth.list_shards(), added.parts, growth.kept, progress)
    head = build_grown_manifest(plan, parts, added)
    progress(Progress("publish", 0, 1, 0))
    growth.publish(head, parts, plan.request, progress)
    counts = Counter[str]()
    for name, count in (run for runs in added.parts.runs for run in runs):
        counts[name] += count
    return AppendReport(
        store,
        head,
        dict(counts),
        plan.duplicates,
        added.skipped,
        0 if plan.linked is None else len(plan.linked),
        rewritten,
        time.monotonic() - started,
        new_classes(manifest.columns, plan.columns),
    )
