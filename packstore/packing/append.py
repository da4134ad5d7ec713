"""``append``: adds the records of a source to an existing store, as new shards beside the old ones."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path

from packstore.core.errors import DestinationError, StoreError, printable
from packstore.core.files import check_space
from packstore.core.manifest import Manifest, Skipped
from packstore.core.options import argument, progress_option, takes
from packstore.core.progress import Progress, ProgressCallback, progress_callback
from packstore.core.proof import file_digest
from packstore.core.registry import FORMATS
from packstore.core.urls import check_paths, location
from packstore.packing import AppendOptions
from packstore.packing.append_plan import AppendPlan, new_classes, plan_append, read_request
from packstore.packing.composing import Composition, LinkedShards, copy_shards, sum_columns
from packstore.packing.conversion import run_plan
from packstore.packing.encoding import drop_record_counts, record_counts
from packstore.packing.plan import Plan
from packstore.stores.assembly import ShardList, build_sharded_manifest, list_shards
from packstore.stores.format import Format
from packstore.stores.lenses import join_answers
from packstore.stores.opening import open_reader, read_manifest
from packstore.stores.places import Growth, LostRaceError, place_of
from packstore.stores.places.owned import remove_unfinished

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
    added: Mapping[str, int] = field(default_factory=dict)
    duplicates: int = 0
    skipped: tuple[Skipped, ...] = ()
    linked: int = 0
    rewritten: int = 0
    seconds: float = 0
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


@dataclass(frozen=True, slots=True)
class _Added:
    """Shards to add to a store, with the samples that were left out as bad when this run packed them."""

    shards: LinkedShards
    skipped: tuple[Skipped, ...]


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
    check_paths(arguments.labels)
    with progress_callback(arguments.progress) as report:
        return append_source(location(arguments.store), location(arguments.source), arguments, report, started)


def append_source(
    store: Path, source: Path, options: AppendOptions, progress: ProgressCallback, started: float | None = None
) -> AppendReport:
    """Runs :func:`append` with its options: plans, packs and publishes.

    Resumes an interrupted run. If that run had published already, returns a report without new records. If this run
    fails, its work directory keeps the packed records for the next run. At a URL, plans again if others publish first.
    ``started``: ``time.monotonic`` at the start; None for now.
    """
    started = time.monotonic() if started is None else started
    with place_of(store).grow() as growth:
        finished = growth.find_finished(lambda: read_request(source, options, store))
        if finished is not None:
            return AppendReport(store, finished, seconds=time.monotonic() - started)
        before: tuple[AppendPlan, _Added | None] | None = None
        for _ in range(growth.tries):
            manifest = growth.read_manifest()
            plan = plan_append(store, source, options, progress, growth.added)
            with closing(plan.source):
                if plan.manifest.digest != manifest.digest:
                    continue
                packed = before[1] if before is not None and _packs_same_records(before[0], plan) else None
                packed = packed or _make_shards(plan, growth, progress)
                before = plan, packed
                try:
                    return _publish(plan, packed, growth, progress, started)
                except LostRaceError as error:
                    if growth.tries == 1:
                        raise
                    _log.info("%s: what is there now is read first", error)
    raise DestinationError(
        f"{printable(str(store))} was changed by others {growth.tries} times while this was appended; append again"
    )


def _packs_same_records(plan: AppendPlan, other: AppendPlan) -> bool:
    """Tells if two plans, for two versions of the store, pack the same records."""
    # Then the shards of the first plan can be used for the second.
    columns = [[column.declaration for column in each.columns] for each in (plan, other)]
    # Links are made again instead.
    same = not plan.linked and not other.linked and type(plan.addition) is type(other.addition)
    same = same and plan.source.left_out == other.source.left_out and plan.added == other.added
    return same and columns[0] == columns[1]


def _make_shards(plan: AppendPlan, growth: Growth, progress: ProgressCallback) -> _Added | None:
    """Converts or copies the new records to shards, or links shards; returns None if nothing is added."""
    addition, path = plan.addition, growth.added
    remove_unfinished(growth.kept)
    converts = isinstance(addition, Plan)
    # ``run_plan`` resumes an unfinished store. A complete one is kept only if its run can still be finished.
    if os.path.lexists(path) and not (converts and place_of(path).was_killed_after_publishing() and _is_whole(path)):
        if converts:
            _log.warning("starting afresh: an interrupted run had packed all samples, and not put them into the store")
        remove_unfinished(path)
    if addition is None:
        return None
    if isinstance(addition, Plan):
        report = run_plan(addition, progress)
        return _Added(LinkedShards(list_shards(path, report.manifest), None, report.manifest), report.skipped)
    check_space(plan.store, plan.estimate_bytes)
    parts, manifest = addition.make_shards(path, progress)
    return _Added(LinkedShards(parts, None, manifest or addition.base), addition.base.skipped)


def _is_whole(path: Path) -> bool:
    """Tells if every shard of a store has the size and the SHA-256 in the store's table; True without shards."""
    try:
        manifest = read_manifest(path)
        format: Format = FORMATS[manifest.format]
        shards = [] if manifest.shards is None else list(manifest.shards)
        digests = (file_digest(format.data_file(path / shard.name)) for shard in shards)
        return all((shard.nbytes, shard.digest) == found for shard, found in zip(shards, digests, strict=True))
    except (OSError, StoreError):
        return False


def _publish(
    plan: AppendPlan, added: _Added | None, growth: Growth, progress: ProgressCallback, started: float
) -> AppendReport:
    """Adds the new shards to the store, publishes it, and returns the report."""
    manifest, store = plan.manifest, plan.store
    # Nothing to add: the store stays as it is.
    if added is None:
        return AppendReport(store, manifest, duplicates=plan.duplicates, seconds=time.monotonic() - started)
    parts, rewritten = _join_shards(plan, growth.list_shards(), added.shards.parts, growth.kept, progress)
    grown = _build_manifest(plan, parts, added)
    progress(Progress("publish", 0, 1, 0))
    growth.publish(grown, parts, plan.request, progress)
    counts = Counter[str]()
    for name, count in (run for runs in added.shards.parts.runs for run in runs):
        counts[name] += count
    return AppendReport(
        store,
        grown,
        dict(counts),
        plan.duplicates,
        added.skipped,
        plan.linked,
        rewritten,
        time.monotonic() - started,
        new_classes(manifest.columns, plan.columns),
    )


def _join_shards(
    plan: AppendPlan, own: ShardList, added: ShardList, path: Path, progress: ProgressCallback
) -> tuple[ShardList, int]:
    """Lists the store's shards and the added ones, split by split, and counts the rewritten records."""
    # The store's own shards keep their numbers; added ones are numbered after them.
    order = [split.name for split in plan.manifest.splits]

    def join(own: ShardList) -> ShardList | None:
        first = _next_number(own)
        renumbered = added.renumber(range(first, first + len(added)))
        return ShardList.join(own, renumbered).group_by_split(order)

    parts, rewritten = join(own), 0
    # A shard with several splits is in the way: rewrite each such shard as one shard per split.
    if parts is None:
        own, rewritten = _rewrite_mixed_shards(plan, own, path, progress)
        parts = join(own)
        assert parts is not None
    return parts, rewritten


def _next_number(shards: ShardList) -> int:
    """Returns the number after the highest of some shards, at least one."""
    return int(shards.rows["number"].max()) + 1


def _rewrite_mixed_shards(
    plan: AppendPlan, own: ShardList, path: Path, progress: ProgressCallback
) -> tuple[ShardList, int]:
    """Splits up shards with several splits; returns the new shard list and the number of copied records."""
    manifest = plan.manifest
    with open_reader(plan.store) as reader:
        if reader.manifest.digest != manifest.digest:
            raise LostRaceError(f"{printable(str(plan.store))} was changed by somebody else meanwhile; append again")
        base = replace(manifest, options=drop_record_counts(manifest), skipped=())
        composition = Composition(plan.store, base, manifest.columns, copy_shards(reader, own))
        # The new shards are in a store of their own at ``path``.
        parts, _ = composition.make_shards(path, progress, _next_number(own))
    return parts, composition.copied_count


def _build_manifest(plan: AppendPlan, parts: ShardList, added: _Added) -> Manifest:
    """Builds the manifest of the grown store with all its shards ``parts``."""
    manifest, other = plan.manifest, added.shards.manifest
    options = {**manifest.options, **join_answers([(str(plan.store), manifest), (str(plan.source.path), other)])}
    if added.shards.count == other.records:  # else nobody has counted its part
        for name, count in record_counts(other).items():
            options[name] = int(options.get(name) or 0) + count
    versions = {name: dict.fromkeys(version.split(", ")) for name, version in manifest.versions.items()}
    for name, version in other.versions.items():
        versions.setdefault(name, {})[version] = None
    return build_sharded_manifest(
        manifest,
        parts,
        sum_columns(plan.columns, [added.shards], [manifest]),
        options=options,
        skipped=(*manifest.skipped, *other.skipped),  # of this run, and of a source that is a store
        versions={name: ", ".join(known) for name, known in versions.items()},
    )
