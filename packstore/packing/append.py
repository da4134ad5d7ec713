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

import numpy as np

from packstore.core.errors import DestinationError, printable
from packstore.core.files import check_paths, refuse_empty
from packstore.core.manifest import Column, Manifest, Skipped
from packstore.core.options import argument, progress_option, takes
from packstore.core.progress import Progress, ProgressCallback, progress_callback
from packstore.core.urls import UrlPath, location
from packstore.objects import open_objects
from packstore.packing.append_plan import (
    AppendPlan,
    list_linkable_shards,
    max_shard_bytes,
    new_classes,
    plan_append,
    read_request,
)
from packstore.packing.composing import read_shard_manifests
from packstore.packing.conversion import run_plan
from packstore.packing.copying import RecordCopier, create_store_like
from packstore.packing.merge import map_changed_classes
from packstore.packing.options import AppendOptions
from packstore.packing.recorded_options import record_counts
from packstore.packing.upload_folder import NOTE, lock_upload_folder, note_publishing, read_published_note
from packstore.sources.store import StoreSource
from packstore.stores.base import Reader
from packstore.stores.builder.assembly import ShardList, build_sharded_manifest, empty_shard_list, list_shards
from packstore.stores.builder.growth import publish_growth
from packstore.stores.builder.work_directory import ADDED, KEPT, WorkDirectory, work_path
from packstore.stores.linked import read_link_values, relative_link_folder
from packstore.stores.opening import open_reader, read_manifest
from packstore.stores.ownership import remove_unfinished
from packstore.stores.remote.head import RemoteHead, read_writable_head
from packstore.stores.remote.publish import LostRaceError, upload_and_publish
from packstore.stores.unify import join_answers

_log = logging.getLogger(__name__)

_TRIES = 20
"""Maximum number of times that an append to a URL is planned again after others have changed the store."""


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
    that file. New classes get the next numbers. ``depth``, ``alpha`` and ``frames`` that are not given are
    those with which the store was packed.

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

    If an interrupted run of the same request had published, returns a report without new records. If this run fails,
    the work directory keeps its packed records for the next run. If it succeeds, the work directory is deleted.

    Raises the errors of :func:`append`, and :class:`DestinationError` if ``store`` is a symbolic link. ``started``:
    ``time.monotonic`` at the start; None for now.
    """
    started = time.monotonic() if started is None else started
    if isinstance(store, UrlPath):
        return _append_at_url(store, source, options, progress, started)
    read_manifest(store)  # raises before anything is made if there is no store
    if store.is_symlink():  # else two processes could write to it at once, by different names
        raise DestinationError(f"{printable(str(store))} is a symbolic link; name the path that it points to")
    work = WorkDirectory(store)
    try:
        finished = work.find_finished_growth()
        work.undo_interrupted_publish()
        if finished is not None and finished == read_request(source, options, store):
            return AppendReport(store, read_manifest(store), {}, 0, (), 0, 0, time.monotonic() - started)
        plan = plan_append(store, source, options, progress, work.path / ADDED)
        with closing(plan.source):
            report = _publish_shards(plan, _prepare_shards(plan, work, progress), work, progress, started)
    except BaseException:
        if work_path(work.path / ADDED).exists():  # another run can go on from there
            work.release()
        raise
    finally:
        work.remove()
    return report


def _append_at_url(
    url: UrlPath, source: Path, options: AppendOptions, progress: ProgressCallback, started: float
) -> AppendReport:
    """Appends to a store at a URL: packs on this machine, uploads the new shards and publishes a new version.

    Reads the store's keys. Reads its images only to rewrite shards with several splits, or to compare samples with
    equal keys. If an interrupted run of the same request had published, returns a report without new records.

    If others publish first, plans again. Raises :class:`DestinationError` after 20 tries.
    """
    with lock_upload_folder(url) as (place, work):
        note = place.parent / NOTE
        if (there := read_published_note(url, note)) is not None and there[0] == read_request(source, options, url):
            note.unlink()
            return AppendReport(url, there[1], {}, 0, (), 0, 0, time.monotonic() - started)
        before: tuple[AppendPlan, _AddedShards] | None = None
        for _ in range(_TRIES):
            head = read_writable_head(url)
            plan = plan_append(url, source, options, progress, work.path / ADDED)
            with closing(plan.source):
                if plan.manifest.digest != head.manifest.digest:
                    continue
                packed = before[1] if before is not None and _packs_same_records(before[0], plan) else None
                packed = packed or _prepare_shards(plan, work, progress)
                before = plan, packed
                try:
                    report = _publish_shards(plan, packed, work, progress, started, head, note)
                except LostRaceError as error:
                    _log.info("%s: what is there now is read first", error)
                else:
                    note.unlink(missing_ok=True)
                    return report
    raise DestinationError(f"{url} was changed by others {_TRIES} times while this was appended; append again")


def _packs_same_records(plan: AppendPlan, other: AppendPlan) -> bool:
    """Tells if two plans, for two versions of the store, pack the same records. Then the packed records can be used
    again.

    False for shards that are linked.
    """
    columns = [[column.declaration for column in each.columns] for each in (plan, other)]
    same = plan.way == other.way != "link" and columns[0] == columns[1]
    return same and (plan.left_out, plan.added) == (other.left_out, other.added)


@dataclass(frozen=True, slots=True)
class _AddedShards:
    """Shards to add to a store, packed or linked.

    Attributes:
        parts: The shards; None if nothing is added.
        manifest: Manifest of the store that they belong to; None if nothing is added.
        skipped: Bad samples left out by policy.
    """

    parts: ShardList | None
    manifest: Manifest | None
    skipped: tuple[Skipped, ...] = ()


def _prepare_shards(plan: AppendPlan, work: WorkDirectory, progress: ProgressCallback) -> _AddedShards:
    """Makes the shards to add: converts samples, copies records, or lists shards to link.

    First deletes what an interrupted run left; warns if that run had packed all samples.
    """
    remove_unfinished(work.path / KEPT)
    if os.path.lexists(work.path / ADDED):
        if plan.conversion is not None:
            _log.warning("starting afresh: an interrupted run had packed all samples, and not put them into the store")
        remove_unfinished(work.path / ADDED)
    if plan.conversion is not None:
        report = run_plan(plan.conversion, progress)
        return _AddedShards(list_shards(work.path / ADDED, report.manifest), report.manifest, report.skipped)
    if not plan.added or not isinstance(plan.source, StoreSource):
        return _AddedShards(None, None)
    other = plan.source.manifest
    if plan.way == "link":
        return _AddedShards(list_linkable_shards(plan, other), other, other.skipped)
    other = _copy_records(plan, plan.source.reader, work.path / ADDED, progress)
    return _AddedShards(list_shards(work.path / ADDED, other), other, other.skipped)


def _publish_shards(
    plan: AppendPlan,
    packed: _AddedShards,
    work: WorkDirectory,
    progress: ProgressCallback,
    started: float,
    there: RemoteHead | None = None,
    note: Path | None = None,
) -> AppendReport:
    """Adds the packed shards to the store, publishes it, and returns the report. Does nothing if there is no shard to
    add.

    The records of each split must stay together. If that needs it, rewrites the store's shards that contain several
    splits. Raises :class:`LostRaceError` if another process published first.

    Args:
        plan: The plan.
        packed: The shards to add.
        work: The store's work directory.
        progress: Called for each step.
        started: ``time.monotonic`` at the start.
        there: Head of a store at a URL; None for a local store.
        note: File in which the version of a store at a URL is noted before it is published.
    """
    manifest, store = plan.manifest, plan.store
    added, other, skipped = packed.parts, packed.manifest, packed.skipped
    if added is None or other is None:
        return AppendReport(store, manifest, {}, plan.duplicates, (), 0, 0, time.monotonic() - started)
    own = list_shards(store, manifest, None if there is None else [UrlPath(store) / name for name in there.shards])
    first_new = int(own.rows["number"].max()) + 1
    order = [split.name for split in manifest.splits]
    parts, rewritten = _join_shards(own, added, first_new).group_by_split(order), 0
    if parts is None:
        rewritten, again = _split_mixed_shards(plan, own, work, progress)
        parts = _join_shards(again, added, first_new).group_by_split(order)
        assert parts is not None
    totals = [replace(c, nbytes=c.nbytes + _count_added_bytes(other, c, added, plan)) for c in plan.columns]
    options = {**manifest.options, **join_answers([(str(store), manifest), (str(plan.source.path), other)])}
    whole = int(added.rows["records"].sum()) == other.records  # else nobody has counted its part
    for name, count in record_counts(other).items() if whole else ():
        options[name] = int(options.get(name) or 0) + count
    head = build_sharded_manifest(
        manifest,
        parts,
        totals,
        options=options,
        skipped=(*manifest.skipped, *skipped),
        versions=_merge_versions(manifest, other),
    )
    progress(Progress("publish", 0, 1, 0))
    if there is None:
        publish_growth(work, store, manifest, head, parts, first_new, plan.request)
    else:
        assert note is not None
        version = there.version or 0
        note_publishing(note, plan.request, version + 1, head)
        upload_and_publish(open_objects(store), head, parts, version, progress)
    counts = Counter[str]()
    for name, count in (run for runs in added.runs for run in runs):
        counts[name] += count
    linked = len(added) if plan.way == "link" else 0
    return AppendReport(
        store,
        head,
        dict(counts),
        plan.duplicates,
        skipped,
        linked,
        rewritten,
        time.monotonic() - started,
        new_classes(manifest.columns, plan.columns),
    )


def _copy_records(plan: AppendPlan, reader: Reader, path: Path, progress: ProgressCallback) -> Manifest:
    """Copies records of the source, a store with equal columns, to new shards at ``path``. Returns the shards'
    manifest.

    Maps class numbers to the destination's. Leaves out the keys in ``plan.left_out``, and splits that are not
    requested.
    """
    other, total = reader.manifest, sum(plan.added.values())
    labels = map_changed_classes(other.columns, plan.columns)
    links = partial(read_link_values, folder=relative_link_folder(plan.manifest, plan.store))
    size = max_shard_bytes(plan)
    with create_store_like(path, other, plan.columns, format=plan.manifest.format, shard_size=size) as builder:
        copier = RecordCopier(builder, total, progress, links)
        ranges = [(s.name, s.start, s.stop) for s in other.splits if plan.options.split in (None, s.name)]
        for name, start, stop in ranges or [("", 0, other.records)]:
            records = np.arange(start, stop)
            if plan.left_out:
                records = records[[reader.key(i) not in plan.left_out for i in records.tolist()]]
            copier.copy_records(reader, records, plan.split_of(name), labels)
        return builder.commit(counted=record_counts(other) if total == other.records else {})


def _join_shards(own: ShardList, added: ShardList, first_new: int) -> ShardList:
    """Returns the store's own shards, and then the added ones. The added shards get the next numbers, from
    ``first_new`` on."""
    own_numbers = own.rows["number"].tolist()
    first = max(first_new, max(own_numbers) + 1)
    return own + added.renumber(range(first, first + len(added)))


def _split_mixed_shards(
    plan: AppendPlan, own: ShardList, work: WorkDirectory, progress: ProgressCallback
) -> tuple[int, ShardList]:  # fmt: skip
    """Rewrites each shard that contains several splits as one shard per split.

    Returns the number of rewritten records, and the list of all shards with the new ones in place. Raises
    :class:`LostRaceError` if the store has changed since it was planned.
    """
    manifest = plan.manifest
    mixed = [number for number, runs in enumerate(own.runs) if len(runs) > 1]
    ends = own.rows["records"].cumsum().tolist()
    total = sum(int(own.rows["records"][number]) for number in mixed)
    links = partial(read_link_values, folder=relative_link_folder(manifest, plan.store))
    with (
        open_reader(plan.store) as reader,
        create_store_like(work.path / KEPT, manifest, manifest.columns, sharded=True) as builder,
    ):
        if reader.manifest.digest != manifest.digest:
            raise LostRaceError(f"{printable(str(plan.store))} was changed by somebody else meanwhile; append again")
        copier = RecordCopier(builder, total, progress, links)
        for number in mixed:
            start = ends[number] - int(own.rows["records"][number])
            for name, count in own.runs[number]:
                builder.cut()
                records = np.arange(start, start + count)
                copier.copy_records(reader, records, name)
                start += count
        written = builder.commit()
    fresh = list_shards(work.path / KEPT, written)
    first = int(own.rows["number"].max()) + 1
    fresh = fresh.renumber(range(first, first + len(fresh)))
    parts, place = empty_shard_list(), 0
    for number in range(len(own)):
        if number in mixed:
            count = len(own.runs[number])
            parts += fresh.take_shards(range(place, place + count))
            place += count
        else:
            parts += own.take_shards([number])
    return total, parts


def _count_added_bytes(other: Manifest, column: Column, added: ShardList, plan: AppendPlan) -> int:
    """Counts the bytes of a column in the added shards.

    Reads the shards' manifests for a ragged column if only some of the source's shards are added.
    """
    whole = other.column(column.name).nbytes
    if column.kind == "fixed":
        return column.record_nbytes * int(added.rows["records"].sum())
    if column.name == "image":
        return int(added.rows["image_nbytes"].sum())
    if int(added.rows["records"].sum()) == other.records:
        return whole
    assert isinstance(plan.source, StoreSource)
    return sum(part.column(column.name).nbytes for part in read_shard_manifests(added, other.format))


def _merge_versions(manifest: Manifest, other: Manifest) -> dict[str, str]:
    """Joins the libraries' versions of two manifests. Different versions of one library are separated by commas."""
    versions = dict(manifest.versions)
    for name, version in other.versions.items():
        known = versions.setdefault(name, version).split(", ")
        if version not in known:
            versions[name] = ", ".join([*known, version])
    return versions
