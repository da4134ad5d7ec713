"""``append``: puts the records of a source into a store that is there, as new shards beside the old ones."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from packstore.core.errors import DestinationError, printable
from packstore.core.files import check_paths, refuse_empty
from packstore.core.manifest import Column, Manifest, Skipped
from packstore.core.progress import Progress, ProgressCallback, progress_callback
from packstore.core.urls import UrlPath, location
from packstore.images.sniff import MAX_PIXELS
from packstore.objects import open_objects
from packstore.packing.append_plan import (
    AppendOptions,
    AppendPlan,
    OnDuplicate,
    linked_parts,
    new_classes,
    plan_append,
    request_of,
    shard_bytes,
)
from packstore.packing.composing import manifests_of
from packstore.packing.conversion import run_plan
from packstore.packing.copying import copy_records
from packstore.packing.merge import renumbering
from packstore.packing.plan import counted_options
from packstore.packing.stand_in import NOTE, note_publishing, published_by, stand_in
from packstore.sources.store import StoreSource
from packstore.stores import create_store, open_store
from packstore.stores.base import Reader
from packstore.stores.builder.assembly import ShardList, build_head, empty_shard_list, list_shards
from packstore.stores.builder.growth import grow
from packstore.stores.builder.work_directory import ADDED, KEPT, WorkDirectory, work_path
from packstore.stores.linked import link_values, links_from
from packstore.stores.opening import read_manifest
from packstore.stores.ownership import remove_unfinished
from packstore.stores.remote.head import RemoteHead, read_writable_head
from packstore.stores.remote.publish import LostRaceError, publish

_log = logging.getLogger(__name__)

_TRIES = 20
"""How often an append to a URL is planned anew because others appended meanwhile."""


@dataclass(frozen=True, slots=True, repr=False)
class AppendReport:
    """What was put into a store.

    Attributes:
        store: The store.
        manifest: Its manifest now.
        added: How many records it has more, by split; ``""`` where it has no splits.
        duplicates: Samples left out because the store has their keys.
        skipped: Bad samples left out by policy.
        linked: Shards that were taken over as they are; no byte of them was read or written.
        rewritten: Records of the store that had to be written again, because their shard held several splits.
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
            f"<AppendReport of {str(self.store)!r}: {sum(self.added.values()):,} records more, "
            f"{self.manifest.records:,} now, {self.seconds:.1f} s>"
        )


def append(
    store: str | os.PathLike[str],
    source: str | os.PathLike[str],
    *,
    split: str | None = None,
    source_kind: str | None = None,
    labels: str | os.PathLike[str] | None = None,
    image_key: str | None = None,
    label_key: str | None = None,
    layout: str | None = None,
    ignore: str | Sequence[str] = (),
    columns: str | Sequence[str] = (),
    on_duplicate: OnDuplicate = "raise",
    key_prefix: str = "",
    no_new_classes: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    check: Literal["header", "decode", "none"] = "header",
    shard_size: int | str | None = None,
    restart: bool = False,
    workers: int | None = None,
    decoder: str = "auto",
    max_pixels: int = MAX_PIXELS,
    depth: str | None = None,
    alpha: str | None = None,
    frames: int | str | None = None,
    progress: bool | ProgressCallback = False,
) -> AppendReport:
    """Puts the records of ``source`` into ``store``, encoded as those that it has, as new shards beside the old ones.

    Who opens the store meanwhile sees the old one, and afterwards the new one. A store of one file becomes a directory
    whose first shard is that file. Classes that the store does not have get the next numbers.

    Args:
        store: The store, or its URL. Of several that append to a URL at once, one is first, and the others read the
            store again and go on behind it.
        source: What :func:`packstore.convert` takes. The shards of a store with the same encoding are linked.
        split: Only this split of ``source``; where that has no splits, the split of the store that its records go to.
        source_kind: Kind of the source instead of recognising it.
        labels: CSV with the columns ``file,label`` and optionally ``split``.
        image_key: As for :func:`packstore.convert`.
        label_key: Likewise.
        layout: Likewise.
        ignore: Likewise.
        columns: Likewise.
        on_duplicate: What to do with a key that the store has: ``raise``, or ``skip`` the sample. ``unchecked`` reads
            no keys, for a caller who knows that all differ.
        key_prefix: Put before each key of the source, such as ``week-48/``.
        no_new_classes: Refuse a source with a class that the store lacks.
        on_error: ``raise`` stops at a bad sample, ``skip`` leaves it out and notes it in the manifest.
        check: ``header``, ``decode`` or ``none``: how thoroughly each file is checked.
        shard_size: About how many bytes of images a new shard has, as for :func:`packstore.convert`; None for as many
            as the store's largest shard, and for a store of one file a shard for each split.
        restart: Do not go on from an interrupted run.
        workers: Threads; None for one a core, and for 32 where the source is a URL.
        decoder: Name of the decoder.
        max_pixels: As for :func:`packstore.convert`.
        depth: As for :func:`packstore.convert`; None for what was said when the store was packed.
        alpha: Likewise.
        frames: Likewise.
        progress: True for a bar, in a terminal or a notebook; or a function that is called after each batch.

    Returns:
        What was added.

    Raises:
        StoreError: The store does not open, or the columns or classes of the source do not fit it.
        SourceError: The source cannot be read, or has keys that the store has.
        DestinationError: The store cannot be written, or another process writes to it.
    """
    options = AppendOptions(
        split=split,
        source_kind=source_kind,
        labels=labels,
        image_key=image_key,
        label_key=label_key,
        layout=layout,
        ignore=ignore,
        columns=columns,
        on_duplicate=on_duplicate,
        key_prefix=key_prefix,
        no_new_classes=no_new_classes,
        on_error=on_error,
        check=check,
        shard_size=shard_size,
        restart=restart,
        workers=workers,
        decoder=decoder,
        max_pixels=max_pixels,
        depth=depth,
        alpha=alpha,
        frames=frames,
    )
    started = time.monotonic()
    refuse_empty(store, source, labels)
    check_paths(labels)
    with progress_callback(progress) as report:
        return append_source(location(store), location(source), options, report, started)


def append_source(
    store: Path, source: Path, options: AppendOptions, progress: ProgressCallback, started: float | None = None
) -> AppendReport:
    started = time.monotonic() if started is None else started
    refuse_empty(store, source)
    if isinstance(store, UrlPath):
        return _append_at_url(store, source, options, progress, started)
    read_manifest(store)  # so that nothing is made where there is no store
    if store.is_symlink():  # by its two names, two processes would write to it at once
        raise DestinationError(f"{printable(str(store))} is a symbolic link; name the path that it points to")
    work = WorkDirectory(store)
    try:
        finished = work.find_finished_growth()
        work.undo_swap()
        if finished is not None and finished == request_of(source, options):
            return AppendReport(store, read_manifest(store), {}, 0, (), 0, 0, time.monotonic() - started)
        plan = plan_append(store, source, options, progress, work.path / ADDED)
        with closing(plan.source):
            report = _run(plan, _pack(plan, work, progress), work, progress, started)
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
    """As :func:`append_source`. What is to be added is packed on this machine; of all else, only the keys are read."""
    with stand_in(url) as (place, work):
        note = place.parent / NOTE
        if (there := published_by(url, note)) is not None and there[0] == request_of(source, options):
            note.unlink()
            return AppendReport(url, there[1], {}, 0, (), 0, 0, time.monotonic() - started)
        before: tuple[AppendPlan, _Packed] | None = None
        for _ in range(_TRIES):
            head = read_writable_head(url)
            plan = plan_append(url, source, options, progress, work.path / ADDED)
            with closing(plan.source):
                if plan.manifest.digest != head.manifest.digest:
                    continue
                packed = before[1] if before is not None and _packs_alike(before[0], plan) else None
                packed = packed or _pack(plan, work, progress)
                before = plan, packed
                try:
                    report = _run(plan, packed, work, progress, started, head, note)
                except LostRaceError as error:
                    _log.info("%s: what is there now is read first", error)
                else:
                    note.unlink(missing_ok=True)
                    return report
    raise DestinationError(f"{url} was changed by others {_TRIES} times while this was appended; append again")


def _packs_alike(plan: AppendPlan, other: AppendPlan) -> bool:
    """Whether what was packed for a plan is what another, for a later version of the store, would pack."""
    columns = [[column.declared for column in each.columns] for each in (plan, other)]
    same = plan.way == other.way != "link" and columns[0] == columns[1]
    return same and (plan.left_out, plan.added) == (other.left_out, other.added)


@dataclass(frozen=True, slots=True)
class _Packed:
    """What is added to a store, packed as a store of its own: its shards, its manifest, and what was left out. None
    where nothing is added."""

    parts: ShardList | None
    manifest: Manifest | None
    skipped: tuple[Skipped, ...] = ()


def _pack(plan: AppendPlan, work: WorkDirectory, progress: ProgressCallback) -> _Packed:
    remove_unfinished(work.path / KEPT)
    if os.path.lexists(work.path / ADDED):
        if plan.conversion is not None:
            _log.warning("starting afresh: an interrupted run had packed all samples, and not put them into the store")
        remove_unfinished(work.path / ADDED)
    if plan.conversion is not None:
        report = run_plan(plan.conversion, progress)
        return _Packed(list_shards(work.path / ADDED, report.manifest), report.manifest, report.skipped)
    if not plan.added or not isinstance(plan.source, StoreSource):
        return _Packed(None, None)
    other = plan.source.manifest
    if plan.way == "link":
        return _Packed(linked_parts(plan, other), other, other.skipped)
    other = _copy(plan, plan.source.reader, work.path / ADDED, progress)
    return _Packed(list_shards(work.path / ADDED, other), other, other.skipped)


def _run(
    plan: AppendPlan,
    packed: _Packed,
    work: WorkDirectory,
    progress: ProgressCallback,
    started: float,
    there: RemoteHead | None = None,
    note: Path | None = None,
) -> AppendReport:
    """Puts what is packed into the store. ``there`` is the store's head, where it is at a URL; ``note`` then a file
    that says what is about to be published."""
    manifest, store = plan.manifest, plan.store
    added, other, skipped = packed.parts, packed.manifest, packed.skipped
    if added is None or other is None:
        return AppendReport(store, manifest, {}, plan.duplicates, (), 0, 0, time.monotonic() - started)
    own = list_shards(store, manifest, None if there is None else [f"{store}/{name}" for name in there.shards])
    first_new = int(own.rows["number"].max()) + 1
    order = [split.name for split in manifest.splits]
    parts, rewritten = _joined(own, added, first_new).group_by_split(order), 0
    if parts is None:
        rewritten, again = _write_again(plan, own, work, progress)
        parts = _joined(again, added, first_new).group_by_split(order)
        assert parts is not None
    totals = [replace(c, nbytes=c.nbytes + _nbytes(other, c, added, plan)) for c in plan.columns]
    options = dict(manifest.options)
    whole = int(added.rows["records"].sum()) == other.records  # else nobody has counted its part
    for name, count in counted_options(other).items() if whole else ():
        options[name] = int(options.get(name) or 0) + count
    head = build_head(
        manifest,
        parts,
        totals,
        options=options,
        skipped=(*manifest.skipped, *skipped),
        versions=_versions(manifest, other),
    )
    progress(Progress("publish", 0, 1, 0))
    if there is None:
        grow(work, store, manifest, head, parts, first_new, plan.request)
    else:
        assert note is not None
        version = there.version or 0
        note_publishing(note, plan.request, version + 1, head)
        publish(open_objects(store), head, parts, version, progress)
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


def _copy(plan: AppendPlan, reader: Reader, path: Path, progress: ProgressCallback) -> Manifest:
    """Copies the records of a store that is like this one to new shards, with this one's numbers of classes."""
    other, total = reader.manifest, sum(plan.added.values())
    done = done_bytes = 0

    def copied(records: int, nbytes: int) -> None:
        nonlocal done, done_bytes
        done, done_bytes = done + records, done_bytes + nbytes
        progress(Progress("copy", done, total, done_bytes))

    labels = renumbering(other.columns, plan.columns)
    links = partial(link_values, folder=links_from(plan.manifest, plan.store))
    with create_store(
        path,
        format=plan.manifest.format,
        encoding=other.encoding,
        columns=[replace(column, nbytes=0, digest=None) for column in plan.columns],
        shard_size=shard_bytes(plan),
    ) as builder:
        options = {k: v for k, v in other.options.items() if k not in counted_options(other)}
        builder.describe(
            origin=other.origin, normalization=other.normalization, options=options, versions=other.versions
        )
        ranges = [(s.name, s.start, s.stop) for s in other.splits if plan.options.split in (None, s.name)]
        for name, start, stop in ranges or [("", 0, other.records)]:
            records = np.arange(start, stop)
            if plan.left_out:
                records = records[[reader.key(i) not in plan.left_out for i in records.tolist()]]
            copy_records(reader, records, builder, plan.split_of(name), labels, copied, links)
        return builder.commit(counted=counted_options(other) if total == other.records else {})


def _joined(own: ShardList, added: ShardList, first_new: int) -> ShardList:
    """The store's own shards, and those that are added under the numbers that follow."""
    own_numbers = own.rows["number"].tolist()
    first = max(first_new, max(own_numbers) + 1)
    return own + added.renumber(range(first, first + len(added)))


def _write_again(
    plan: AppendPlan, own: ShardList, work: WorkDirectory, progress: ProgressCallback
) -> tuple[int, ShardList]:  # fmt: skip
    """Writes the shards that hold several splits again, one for each. Returns how many records that were, and all
    shards of the store as they are then."""
    manifest = plan.manifest
    mixed = [number for number, runs in enumerate(own.runs) if len(runs) > 1]
    ends = own.rows["records"].cumsum().tolist()
    total = sum(int(own.rows["records"][number]) for number in mixed)
    done, links = 0, partial(link_values, folder=links_from(manifest, plan.store))

    def copied(records: int, nbytes: int) -> None:
        nonlocal done
        done += records
        progress(Progress("copy", done, total, nbytes))

    with (
        open_store(plan.store) as reader,
        create_store(
            work.path / KEPT,
            format=manifest.format,
            encoding=manifest.encoding,
            columns=[replace(c, nbytes=0, digest=None) for c in manifest.columns],
            sharded=True,
        ) as builder,
    ):
        if reader.manifest.digest != manifest.digest:
            raise LostRaceError(f"{printable(str(plan.store))} was changed by somebody else meanwhile; append again")
        for number in mixed:
            start = ends[number] - int(own.rows["records"][number])
            for name, count in own.runs[number]:
                builder.cut()
                records = np.arange(start, start + count)
                copy_records(reader, records, builder, name, copied=copied, links=links)
                start += count
        written = builder.commit(
            origin=manifest.origin,
            normalization=manifest.normalization,
            options={k: v for k, v in manifest.options.items() if k not in counted_options(manifest)},
            versions=manifest.versions,
        )
    fresh = list_shards(work.path / KEPT, written)
    first = int(own.rows["number"].max()) + 1
    fresh = fresh.renumber(range(first, first + len(fresh)))
    parts, place = empty_shard_list(), 0
    for number in range(len(own)):
        if number in mixed:
            count = len(own.runs[number])
            parts += fresh.take(range(place, place + count))
            place += count
        else:
            parts += own.take([number])
    return total, parts


def _nbytes(other: Manifest, column: Column, added: ShardList, plan: AppendPlan) -> int:
    """Bytes of the values of a column in what is added."""
    whole = other.column(column.name).nbytes
    if column.kind == "fixed":
        return column.record_nbytes * int(added.rows["records"].sum())
    if column.name == "image":
        return int(added.rows["image_nbytes"].sum())
    if int(added.rows["records"].sum()) == other.records:
        return whole
    assert isinstance(plan.source, StoreSource)
    return sum(part.column(column.name).nbytes for part in manifests_of(added, other.format))


def _versions(manifest: Manifest, other: Manifest) -> dict[str, str]:
    """Of both; where they differ, one after the other."""
    versions = dict(manifest.versions)
    for name, version in other.versions.items():
        known = versions.setdefault(name, version).split(", ")
        if version not in known:
            versions[name] = ", ".join([*known, version])
    return versions
