"""The driver of a run: hands out tasks, collects receipts, and publishes the shards as the next version of a store."""

from __future__ import annotations

import bisect
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from packstore.core.errors import ManifestError, SampleError, StoreError, UsageError
from packstore.core.manifest import Manifest
from packstore.core.parallel import default_workers
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.core.registry import FORMATS
from packstore.core.shards import Shard, shards_to_rows
from packstore.objects import ObjectStore, open_objects
from packstore.packing.distribute import SharedJob, SharedPlan, SharedRun, TaskReceipt, identify_run, join_run
from packstore.packing.distribute.runners import LocalRunner, ProcessRunner, RayRunner, Runner
from packstore.packing.plan import Plan
from packstore.packing.run import Packed, Run, refuse_changed_source, source_changed_error
from packstore.sources.base import Entry
from packstore.stores.assembly import ShardList, build_sharded_manifest
from packstore.stores.format import Format
from packstore.stores.keys import refuse_duplicates
from packstore.stores.places.receipts import Receipt, sum_tallies
from packstore.stores.places.remote import check_url, publish_version, read_published, upload_shard
from packstore.stores.remote_objects import SHARDS, find_newest_version, shard_object_name, shard_object_names

FACTOR = 3.0
"""A straggler has run this many times as long as the median task."""
LEAST_SECONDS = 30.0
"""A straggler has run at least this long."""
COPIES = 3
_HEAD = "head.json"
"""Object of a run with the receipt of the version that is about to be published."""


@dataclass(slots=True)
class _Task:
    """A pending task: its entries, the start of its newest copy, and its number of copies."""

    entries: Sequence[Entry]
    began: float
    copies: int = 1


class PendingTasks:
    """The tasks of a run that have begun and not ended.

    Iterating yields their numbers. The length is the number of running copies of all tasks. Keeps the durations of
    ended tasks, and chooses stragglers by them.
    """

    def __init__(self) -> None:
        self._tasks: dict[int, _Task] = {}
        self._seconds: list[float] = []  # durations of ended tasks, sorted

    def __iter__(self) -> Iterator[int]:
        return iter(self._tasks)

    def __len__(self) -> int:
        """Number of running copies."""
        return sum(task.copies for task in self._tasks.values())

    def __contains__(self, number: int) -> bool:
        return number in self._tasks

    def add_copy(self, number: int, entries: Sequence[Entry]) -> None:
        """Adds a task, or counts another copy of it. Its time starts now, also for a copy."""
        copies = self._tasks[number].copies + 1 if number in self._tasks else 1
        self._tasks[number] = _Task(entries, time.monotonic(), copies)

    def remove_task(self, number: int) -> int:
        """Removes a task when one copy of it has ended. Returns how many other copies still run.

        Keeps the time since its newest copy began, for the median of :meth:`_straggler_limit`.
        """
        task = self._tasks.pop(number)
        bisect.insort(self._seconds, time.monotonic() - task.began)
        return task.copies - 1

    def choose_stragglers(self, at_once: int) -> list[tuple[int, Sequence[Entry]]]:
        """Returns stragglers to copy to idle workers, at most one for each of the ``at_once`` workers that is idle.

        Leaves out stragglers with three copies. Returns none before any task has ended. If all tasks are stragglers,
        every worker may hang: one straggler may then be copied without an idle worker.
        """
        limit = self._straggler_limit()
        if limit is None:
            return []
        now = time.monotonic()
        slow = {number: task for number, task in self._tasks.items() if now - task.began > limit}
        idle = at_once - len(self)
        if slow and len(slow) == len(self._tasks):
            idle = max(idle, 1)
        some = [(number, task.entries) for number, task in slow.items() if task.copies < COPIES]
        return some[: max(idle, 0)]

    def seconds_to_straggler(self) -> float | None:
        """Returns the seconds until the next task becomes a straggler.

        None if no task has ended yet, or if all pending tasks are stragglers already.
        """
        limit, now = self._straggler_limit(), time.monotonic()
        if limit is None:
            return None
        left = [task.began + limit - now for task in self._tasks.values()]
        return min((seconds for seconds in left if seconds > 0), default=None)

    def _straggler_limit(self) -> float | None:
        """Returns the seconds after which a task is a straggler, or None before any task has ended."""
        # A multiple of the median duration.
        return max(LEAST_SECONDS, FACTOR * self._seconds[len(self._seconds) // 2]) if self._seconds else None


def run_on_cluster(plan: Plan, progress: ProgressCallback = no_progress) -> Packed:
    """Runs a plan whose destination is a URL."""
    return Driver(plan, open_objects(plan.destination), progress).run()


class Driver:
    """Runs a plan. Several drivers may run the same plan at once; all produce the same store.

    The constructor takes the source's stamp, by which :meth:`run` detects a change. Raises :class:`UsageError` for a
    source that can be read only once.

    Args:
        plan: A plan whose destination is a URL.
        objects: The object store at that URL.
        progress: Called while the source is listed and measured, and whenever tasks have ended.
    """

    def __init__(self, plan: Plan, objects: ObjectStore, progress: ProgressCallback) -> None:
        if not plan.survey.resumable:
            raise UsageError(
                "an iterable can be read only once, but a conversion to a URL lists it several times; pack it to a "
                "local path, or give a map-style dataset"
            )
        self._plan = plan
        self._objects = objects
        self._progress = progress
        self._stamp = plan.source.stamp()
        self._run = identify_run(plan, objects)
        self._receipts: dict[int, TaskReceipt] = {}
        self._failed: dict[int, BaseException] = {}

    def run(self) -> Packed:
        """Packs the shards that lack a receipt, publishes the store, and removes the run's objects.

        If an earlier driver has published the store, only removes the run's objects. The option ``restart`` removes the
        objects of an unfinished run first.

        Raises:
            DestinationError: There is a store already, or a run that was begun with another source or other software.
                :class:`LostRaceError`: somebody else published a store meanwhile.
            SampleError: A sample is bad, and ``on_error`` is ``"raise"``.
            SourceError: The source changed meanwhile, or all samples were skipped.
            StoreError: A task failed, two drivers made different shards, or two records have the same key.
        """
        run, options = self._run, self._plan.options
        if (published := self._find_published()) is not None:  # a driver was killed before it removed the run
            run.remove_objects()
            return self._make_outcome(published, published.records)
        previous = check_url(self._objects, overwrite=options.overwrite)
        if options.restart:
            run.remove_objects()
        plan, shared = join_run(self._plan, run, self._progress)
        self._plan = plan
        self._receipts = self._read_reusable_receipts(shared)
        resumed = sum(receipt.records for receipt in self._receipts.values())
        self._report_progress()
        try:
            with make_runner(SharedJob(plan, run), len(shared.cuts)) as runner:
                self._run_tasks(shared, runner)
        except BaseException as stopped:
            if not isinstance(stopped, Exception):  # a signal
                stopped.add_note(
                    "what is packed so far is kept there: the same command resumes from it, and --restart starts again"
                )
            raise
        receipts = [self._receipts[number] for number in range(len(shared.cuts))]
        tally = sum_tallies(receipt.tally for receipt in receipts)
        if tally.skipped and options.on_error == "raise":
            raise SampleError(tally.skipped[0].key, tally.skipped[0].reason)
        refuse_changed_source(plan, self._stamp, tally)
        manifest = commit_run(plan, run, receipts, previous)
        run.remove_objects()
        return self._make_outcome(manifest, resumed)

    def _read_reusable_receipts(self, shared: SharedPlan) -> dict[int, TaskReceipt]:
        """Returns by task number the receipts whose shards still exist, so that their tasks need not run again."""
        receipts = [*self._run.read_receipts()]
        for receipt in receipts:
            if receipt.number >= len(shared.cuts) or receipt.tally.entries != shared.cuts[receipt.number]:
                raise StoreError(
                    f"{self._objects.url}/{self._run.receipt_name(receipt.number)} does not fit the plan; use --restart"
                )
        there = {info.name: info.nbytes for info in self._objects.list(SHARDS)} if receipts else {}
        return {
            receipt.number: receipt
            for receipt in receipts
            if receipt.shard is None or there.get(shard_object_name(receipt.shard)) == receipt.shard.nbytes
        }

    def _find_published(self) -> Manifest | None:
        """Returns the store's manifest if this run has published it, else None."""
        head = self._run.read_object(self._run.object_name(_HEAD))
        try:
            receipt = None if head is None else Receipt.parse(head)
        except ManifestError:
            return None
        # Another run may have published since.
        if receipt is None or receipt.version != find_newest_version(self._objects):
            return None
        return read_published(self._objects, receipt)

    def _run_tasks(self, shared: SharedPlan, runner: Runner) -> None:
        """Runs all tasks without a receipt, and keeps their receipts in this driver."""
        plan, pending = self._plan, PendingTasks()
        assert plan.shards is not None
        number = -1
        for number, entries in enumerate(plan.shards.split_entries(plan.source.entries(plan.options.split))):
            if number >= len(shared.cuts) or len(entries) != shared.cuts[number]:
                raise source_changed_error(plan, f"shard {number} has other samples now")
            if number in self._receipts:
                continue
            while len(pending) >= runner.slots:
                self._collect_outcomes(runner, pending)
            if self._failed:
                break
            runner.submit(number, entries)
            pending.add_copy(number, entries)
        # A single machine would have raised the first task's error: wait for all tasks before the failed one.
        while any(not self._failed or task < min(self._failed) for task in pending):
            self._collect_outcomes(runner, pending)
        if self._failed:
            raise self._failed[min(self._failed)]  # the first task's error
        if number + 1 != len(shared.cuts):
            raise source_changed_error(plan, f"{len(shared.cuts):,} shards at first, {number + 1:,} in the end")

    def _collect_outcomes(self, runner: Runner, pending: PendingTasks) -> None:
        """Waits until a task ends or becomes a straggler, and keeps the receipts or errors of ended tasks."""
        for number, entries in pending.choose_stragglers(runner.at_once):
            runner.submit(number, entries)
            pending.add_copy(number, entries)
        for number, result in runner.wait(pending.seconds_to_straggler()):
            if number not in pending:
                continue  # another copy of the task was faster
            if pending.remove_task(number):
                runner.drop(number)  # its other copies
            if isinstance(result, TaskReceipt):
                self._receipts[number] = result
            else:
                self._failed[number] = result
        self._report_progress()

    def _report_progress(self) -> None:
        """Reports the entries and bytes of all tasks with a receipt."""
        done = sum_tallies(receipt.tally for receipt in self._receipts.values())
        self._progress(Progress("pack", done.entries, self._plan.survey.records, done.source_bytes))

    def _make_outcome(self, manifest: Manifest, resumed: int) -> Packed:
        """Makes the outcome of the conversion from the manifest and the receipts."""
        receipts, table = list(self._receipts.values()), manifest.shards
        assert table is not None
        return Packed(
            manifest,
            sum_tallies(receipt.tally for receipt in receipts),
            resumed,
            nbytes=int(table.table["nbytes"].sum()) + table.nbytes + len(manifest.to_json()),
            labels=sum((Counter(receipt.labels) for receipt in receipts), Counter[str]()),
        )


def make_runner(job: SharedJob, tasks: int) -> Runner:
    """Starts the runner that the option ``cluster`` names.

    - ``ray:ADDRESS``: :class:`RayRunner`.
    - ``processes:COUNT``: :class:`ProcessRunner`, with at most one process for each task. They share the cores, unless
      the user has chosen the threads of a task.
    - None: :class:`LocalRunner`, which runs tasks in this process.
    """
    name, _, detail = (job.plan.options.cluster or "").partition(":")
    if name == "ray":
        return RayRunner(job, tasks, detail)
    if name == "processes":
        count = min(int(detail), max(1, tasks))
        threads = job.plan.options.workers or max(1, default_workers() // count)
        plan = replace(job.plan, options=replace(job.plan.options, workers=threads))
        return ProcessRunner(replace(job, plan=plan), count)
    return LocalRunner(job)


def commit_run(plan: Plan, run: SharedRun, receipts: Sequence[TaskReceipt], previous: int) -> Manifest:
    """Publishes the shards in the receipts as version ``previous + 1`` of the store. Returns its manifest.

    First writes the receipt of the run, ``head.json``. Closes gaps in the shards' numbers: uploads shards under their
    new numbers, and in the end deletes the old objects.

    Raises:
        StoreError: There are no records, two records have the same key, or a shard no longer exists.
        LostRaceError: Somebody else has published another store meanwhile.
    """
    filled, objects = [receipt for receipt in receipts if receipt.shard is not None], run.objects
    _refuse_duplicates(filled, FORMATS[plan.format], objects)
    shards = _renumber_shards(filled, objects)
    manifest = _build_manifest(plan, receipts, filled, shards)
    assert manifest.shards is not None
    receipt = Receipt(run.name, sealed=manifest.digest, version=previous + 1)
    objects.put(run.object_name(_HEAD), receipt.encode())
    publish_version(objects, manifest, previous)
    names = set(shard_object_names(manifest.shards))
    uploaded = [shard_object_name(receipt.shard) for receipt in filled if receipt.shard is not None]
    objects.delete([name for name in uploaded if name not in names])
    return manifest


def _build_manifest(
    plan: Plan, receipts: Sequence[TaskReceipt], filled: Sequence[TaskReceipt], shards: Sequence[Shard]
) -> Manifest:
    """Builds the manifest of the store from the plan and the receipts."""
    run = Run(plan)
    # If the source is a store, its columns have the sizes and digests of all its records.
    columns = [replace(column, nbytes=0, digest=None, hides_boxes=None) for column in run.columns]
    nbytes = sum((Counter(receipt.columns) for receipt in filled), Counter[str]())
    image = replace(columns[0], nbytes=sum(shard.image_nbytes for shard in shards))
    tally, store = sum_tallies(receipt.tally for receipt in receipts), plan.survey.store
    skipped = [*(store.skipped if store else ()), *tally.skipped]
    base = run.base.blank(columns)
    parts = ShardList(
        shards_to_rows(shards), [""] * len(shards), [((receipt.split, receipt.records),) for receipt in filled]
    )
    others = [
        replace(column, nbytes=nbytes[column.name], hides_boxes=_find_hidden_boxes(filled, column.name))
        for column in columns[1:]
    ]
    options = {**base.options, **tally.counted}
    return build_sharded_manifest(base, parts, [image, *others], options=options, skipped=skipped)


def _find_hidden_boxes(filled: Sequence[TaskReceipt], name: str) -> bool | None:
    """Returns :attr:`Column.hides_boxes` of a column in all shards."""
    facts = [receipt.hidden_boxes.get(name) for receipt in filled]
    return True if True in facts else None if None in facts else False


def _renumber_shards(filled: Sequence[TaskReceipt], objects: ObjectStore) -> list[Shard]:
    """Numbers the shards consecutively, copying each whose number changes, and returns them."""
    shards = []
    for number, receipt in enumerate(filled):
        assert receipt.shard is not None
        shard = receipt.shard
        # All samples of an earlier task were skipped. The object under the old number stays.
        if number != receipt.number:
            _, _, suffix = shard.name.partition(".")
            shard = replace(shard, name=f"shard-{number:05d}.{suffix}")
            with tempfile.NamedTemporaryFile(prefix="packstore-") as copy:
                copy.writelines(objects.stream(shard_object_name(receipt.shard)))
                copy.flush()
                upload_shard(objects, shard, Path(copy.name))
        shards.append(shard)
    return shards


class _RemoteKeys:
    """Keys of the receipts' shards, by record number. Fetches a whole shard for a key, and remembers the last shard's
    keys."""

    def __init__(self, filled: Sequence[TaskReceipt], format: Format, objects: ObjectStore) -> None:
        self._filled, self._format, self._objects = filled, format, objects
        self._ends = np.cumsum([receipt.records for receipt in filled])
        self._held: tuple[int, list[bytes]] = -1, []

    def __getitem__(self, record: int) -> bytes:
        place = int(np.searchsorted(self._ends, record, "right"))
        if self._held[0] != place:
            self._held = place, self._fetch_keys(place)
        return self._held[1][record - int(self._ends[place]) + self._filled[place].records]

    def _fetch_keys(self, place: int) -> list[bytes]:
        """Downloads a shard to a temporary file and returns its keys."""
        shard = self._filled[place].shard
        assert shard is not None
        with tempfile.TemporaryFile() as file:
            file.writelines(self._objects.stream(shard_object_name(shard)))
            file.flush()
            with closing(self._format.open(Path(shard.name), file.fileno())) as part:
                return [bytes(key) for key in part.ragged_column("key")]


def _refuse_duplicates(filled: Sequence[TaskReceipt], format: Format, objects: ObjectStore) -> None:
    """Raises :class:`StoreError` if there are no records, or if two records have the same key."""
    records = sum(receipt.records for receipt in filled)
    if not records:
        raise StoreError("no records to put into the store")
    # Memory is bounded: hashes go to a file, and keys are fetched only if hashes are equal.
    with tempfile.TemporaryFile() as file:
        for receipt in filled:
            file.write(receipt.key_hashes().tobytes())
        file.flush()
        hashes = np.memmap(file, np.dtype("<u8"), "r", shape=(records,))
        refuse_duplicates(hashes, _RemoteKeys(filled, format, objects).__getitem__)
