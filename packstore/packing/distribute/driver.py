"""The driver of a run: hands out tasks, collects receipts, and commits the store."""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from packstore.core.errors import SampleError, SourceError, StoreError, UsageError, printable
from packstore.core.manifest import Manifest
from packstore.core.parallel import default_workers
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.core.tally import sum_tallies
from packstore.objects import ObjectStore, open_objects
from packstore.packing.distribute.cluster_run import (
    SharedPlan,
    TaskReceipt,
    identify_run,
    join_run,
    source_changed_error,
    sum_counts,
)
from packstore.packing.distribute.commit import commit_run
from packstore.packing.distribute.on_ray import RayRunner
from packstore.packing.distribute.runners import LocalRunner, ProcessRunner, Runner
from packstore.packing.distribute.task import ClusterJob
from packstore.packing.plan import Plan
from packstore.packing.report import ConvertReport, make_report
from packstore.sources.base import Entry
from packstore.stores.base import encode_manifest
from packstore.stores.places.remote import check_url
from packstore.stores.remote.head import find_newest_version, read_head
from packstore.stores.remote.objects import SHARDS, shard_object_name

FACTOR = 3.0
"""A straggler has run this many times as long as the median task."""
LEAST_SECONDS = 30.0
"""A straggler has run at least this long."""
COPIES = 3


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
        """Returns stragglers to copy to idle workers, at most one for each idle worker.

        Leaves out stragglers with three copies. Returns none before any task has ended. If all tasks are stragglers,
        every worker may hang: one straggler may then be copied without an idle worker.

        ``at_once``: number of workers.
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
        """Returns the seconds after which a task is a straggler: three times the median duration, at least 30.

        None before any task has ended.
        """
        return max(LEAST_SECONDS, FACTOR * self._seconds[len(self._seconds) // 2]) if self._seconds else None


def run_on_cluster(plan: Plan, progress: ProgressCallback = no_progress, started: float | None = None) -> ConvertReport:
    """Runs a plan whose destination is a URL, as :func:`packstore.convert` does.

    ``started``: ``time.monotonic`` at the start, for the report. None for now.
    """
    return Driver(plan, open_objects(plan.destination), progress).run(time.monotonic() if started is None else started)


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

    def run(self, started: float) -> ConvertReport:
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
            return self._make_report(published, started, published.records)
        previous = check_url(self._objects, overwrite=options.overwrite)
        if options.restart:
            run.remove_objects()
        plan, shared = join_run(self._plan, run, self._progress)
        self._plan = plan
        self._receipts = self._read_reusable_receipts(shared)
        resumed = sum(receipt.records for receipt in self._receipts.values())
        self._report_progress()
        try:
            with make_runner(ClusterJob(plan, run), len(shared.cuts)) as runner:
                self._run_tasks(shared, runner)
        except BaseException as stopped:
            if not isinstance(stopped, Exception):  # a signal
                stopped.add_note(
                    "what is packed so far is kept there: the same command resumes from it, and --restart starts again"
                )
            raise
        if plan.source.stamp() != self._stamp:
            raise source_changed_error(plan, "its stamp is another one")
        receipts = [self._receipts[number] for number in range(len(shared.cuts))]
        self._refuse_skipped(receipts)
        manifest = commit_run(plan, run, receipts, previous)
        run.remove_objects()
        return self._make_report(manifest, started, resumed)

    def _read_reusable_receipts(self, shared: SharedPlan) -> dict[int, TaskReceipt]:
        """Reads all receipts of the run. Returns, by task, the receipts that still hold. Their tasks need not run
        again.

        A receipt holds if its shard exists with the right number of bytes, or if it has no shard.

        Raises :class:`StoreError` for a receipt that is damaged or does not fit the plan.
        """
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
        """Returns the store's manifest if this run has published it: if it equals ``head.json``. Else returns None."""
        head = self._run.read_object(self._run.head_name)
        if head is None or not find_newest_version(self._objects):
            return None
        manifest = read_head(self._objects).manifest
        return manifest if encode_manifest(manifest) == head else None

    def _run_tasks(self, shared: SharedPlan, runner: Runner) -> None:
        """Runs all tasks without a receipt, and keeps their receipts in this driver.

        If a task fails, begins no further tasks and waits for the tasks before it. Raises the error of the failed task
        with the lowest number.

        Raises :class:`SourceError` if the source lists other numbers of samples than the plan.
        """
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
            raise self._failed[min(self._failed)]
        if number + 1 != len(shared.cuts):
            raise source_changed_error(plan, f"{len(shared.cuts):,} shards at first, {number + 1:,} in the end")

    def _collect_outcomes(self, runner: Runner, pending: PendingTasks) -> None:
        """Waits until a task ends or becomes a straggler. Keeps the receipts or errors of tasks that ended.

        First submits copies of the present stragglers. The first outcome of a task counts: drops its other copies. At
        last reports progress.
        """
        for number, entries in pending.choose_stragglers(runner.at_once):
            runner.submit(number, entries)
            pending.add_copy(number, entries)
        for number, result in runner.wait(pending.seconds_to_straggler()):
            if number not in pending:
                continue
            if pending.remove_task(number):
                runner.drop(number)
            if isinstance(result, TaskReceipt):
                self._receipts[number] = result
            else:
                self._failed[number] = result
        self._report_progress()

    def _report_progress(self) -> None:
        """Reports the entries and bytes of all tasks with a receipt."""
        done = [receipt.tally for receipt in self._receipts.values()]
        nbytes = sum(tally.source_bytes for tally in done)
        self._progress(Progress("pack", sum(t.entries for t in done), self._plan.survey.records, nbytes))

    def _refuse_skipped(self, receipts: Sequence[TaskReceipt]) -> None:
        """Raises :class:`SampleError` for the first skipped sample if ``on_error`` is ``"raise"``.

        Raises :class:`SourceError` if all samples were skipped.
        """
        tally = sum_tallies(receipt.tally for receipt in receipts)
        skipped = tally.skipped
        if skipped and self._plan.options.on_error == "raise":
            raise SampleError(skipped[0].key, skipped[0].reason)
        if len(skipped) == tally.entries:
            raise SourceError(
                f"{printable(str(self._plan.source.path))}: all {len(skipped)} images were skipped, so there is "
                "nothing to pack"
            )

    def _make_report(self, manifest: Manifest, started: float, resumed: int) -> ConvertReport:
        """Makes the report of the conversion from the manifest and the receipts."""
        receipts, table = list(self._receipts.values()), manifest.shards
        assert table is not None
        return make_report(
            self._plan,
            manifest,
            sum_tallies(receipt.tally for receipt in receipts),
            started,
            resumed,
            nbytes=int(table.table["nbytes"].sum()) + table.nbytes + len(manifest.to_json()),
            labels=sum_counts(receipt.labels for receipt in receipts),
        )


def make_runner(job: ClusterJob, tasks: int) -> Runner:
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
        return ProcessRunner(_set_threads(job, max(1, default_workers() // count)), count)
    return LocalRunner(job)


def _set_threads(job: ClusterJob, threads: int) -> ClusterJob:
    """Returns the job with ``threads`` threads a task, unless the user has chosen a number."""
    options = replace(job.plan.options, workers=job.plan.options.workers or threads)
    return replace(job, plan=replace(job.plan, options=options))
