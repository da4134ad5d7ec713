"""The driver of a run: hands out tasks, collects receipts, and commits the store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from packstore.cluster.commit import commit_run
from packstore.cluster.on_ray import OnRay
from packstore.cluster.receipts import Receipt, total
from packstore.cluster.run import SharedPlan, changed, run_of, settle
from packstore.cluster.runners import InThisProcess, Processes, Runner
from packstore.cluster.task import Job
from packstore.cluster.under_way import UnderWay
from packstore.core.errors import SampleError, SourceError, StoreError, UsageError, printable
from packstore.core.manifest import Manifest
from packstore.core.parallel import default_workers
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.objects import ObjectStore, open_objects
from packstore.packing.plan import Plan
from packstore.packing.report import ConvertReport, palette_classes
from packstore.stores.base import encode_manifest
from packstore.stores.remote.head import find_newest_version, read_head
from packstore.stores.remote.names import SHARDS, shard_object
from packstore.stores.remote.publish import check_destination


def run_on_cluster(plan: Plan, progress: ProgressCallback = no_progress, started: float | None = None) -> ConvertReport:
    """Runs a plan whose destination is a URL; see :func:`packstore.convert`."""
    return Driver(plan, open_objects(plan.destination), progress).run(time.monotonic() if started is None else started)


class Driver:
    """Runs a plan. Several drivers may run the same one at once; each gives the same store.

    Args:
        plan: Its destination is a URL.
        objects: What lies there.
        progress: Called when a task has ended.
    """

    def __init__(self, plan: Plan, objects: ObjectStore, progress: ProgressCallback) -> None:
        if not plan.survey.resumable:
            raise UsageError(
                "an iterable can be read once, and a conversion to a URL lists it several times; pack it to a local "
                "path, or give a map-style dataset"
            )
        self._plan = plan
        self._objects = objects
        self._progress = progress
        self._stamp = plan.source.stamp()
        self._run = run_of(plan, objects)
        self._receipts: dict[int, Receipt] = {}
        self._failed: dict[int, BaseException] = {}

    def run(self, started: float) -> ConvertReport:
        """Packs what has no receipt yet, and publishes the store.

        Raises:
            DestinationError: There is a store already, or a run that was begun otherwise.
            SourceError: The source changed meanwhile, or has a bad sample.
            StoreError: A task failed, or two gave different shards.
        """
        run, options = self._run, self._plan.options
        if (published := self._published()) is not None:  # a driver was killed before it had removed the run
            run.remove()
            return self._report(published, started, published.records)
        previous = check_destination(self._objects, overwrite=options.overwrite)
        if options.restart:
            run.remove()
        plan, shared = settle(self._plan, run, self._progress)
        self._plan = plan
        self._receipts = self._kept(shared)
        resumed = sum(receipt.records for receipt in self._receipts.values())
        self._tell()
        try:
            with runner_of(Job(plan, run), len(shared.cuts)) as runner:
                self._pack(shared, runner)
        except BaseException as stopped:
            if not isinstance(stopped, Exception):  # a signal
                stopped.add_note(
                    "what is packed so far is kept there: the same command goes on, with --restart from the start"
                )
            raise
        if plan.source.stamp() != self._stamp:
            raise changed(plan, "its stamp is another one")
        receipts = [self._receipts[number] for number in range(len(shared.cuts))]
        self._refuse_skipped(receipts)
        manifest = commit_run(plan, run, receipts, previous)
        run.remove()
        return self._report(manifest, started, resumed)

    def _kept(self, shared: SharedPlan) -> dict[int, Receipt]:
        """The receipts of tasks that need not run again: those whose shards are still there."""
        receipts = [*self._run.receipts()]
        for receipt in receipts:
            if receipt.number >= len(shared.cuts) or receipt.entries != shared.cuts[receipt.number]:
                raise StoreError(
                    f"{self._objects.url}/{self._run.receipt(receipt.number)} does not fit the plan; use --restart"
                )
        there = {info.name: info.nbytes for info in self._objects.list(SHARDS)} if receipts else {}
        return {
            receipt.number: receipt
            for receipt in receipts
            if receipt.shard is None or there.get(shard_object(receipt.shard)) == receipt.shard.nbytes
        }

    def _published(self) -> Manifest | None:
        """The manifest of the store, where this very run has published it."""
        head = self._run.read(self._run.head)
        if head is None or not find_newest_version(self._objects):
            return None
        found = read_head(self._objects).manifest
        return found if encode_manifest(found) == head else None

    def _pack(self, shared: SharedPlan, runner: Runner) -> None:
        """Runs all tasks that have no receipt. Raises what the first of those that fail raised."""
        plan, under_way = self._plan, UnderWay()
        assert plan.shards is not None
        number = -1
        for number, entries in enumerate(plan.shards.shards(plan.source.entries(plan.options.split))):
            if number >= len(shared.cuts) or len(entries) != shared.cuts[number]:
                raise changed(plan, f"shard {number} has other samples now")
            if number in self._receipts:
                continue
            while len(under_way) >= runner.slots:
                self._collect(runner, under_way)
            if self._failed:
                break
            runner.submit(number, entries)
            under_way.begin(number, entries)
        # What a machine alone would have raised: that of the first.
        while any(not self._failed or task < min(self._failed) for task in under_way):
            self._collect(runner, under_way)
        if self._failed:
            raise self._failed[min(self._failed)]
        if number + 1 != len(shared.cuts):
            raise changed(plan, f"{len(shared.cuts):,} shards at first, {number + 1:,} in the end")

    def _collect(self, runner: Runner, under_way: UnderWay) -> None:
        """Waits for an outcome. Of a task that is late a second copy begins; the first outcome of one counts."""
        for number, entries in under_way.late(runner.at_once):
            runner.submit(number, entries)
            under_way.begin(number, entries)
        for number, result in runner.wait(under_way.seconds_to_late()):
            if number not in under_way:
                continue
            if under_way.end(number):
                runner.drop(number)
            if isinstance(result, Receipt):
                self._receipts[number] = result
            else:
                self._failed[number] = result
        self._tell()

    def _tell(self) -> None:
        done = self._receipts.values()
        nbytes = sum(receipt.source_bytes for receipt in done)
        self._progress(Progress("pack", sum(r.entries for r in done), self._plan.survey.records, nbytes))

    def _refuse_skipped(self, receipts: Sequence[Receipt]) -> None:
        skipped = [skipped for receipt in receipts for skipped in receipt.skipped]
        if skipped and self._plan.options.on_error == "raise":
            raise SampleError(skipped[0].key, skipped[0].reason)
        if len(skipped) == sum(receipt.entries for receipt in receipts):
            raise SourceError(
                f"{printable(str(self._plan.source.path))}: all {len(skipped)} images were skipped, so there is "
                "nothing to pack"
            )

    def _report(self, manifest: Manifest, started: float, resumed: int) -> ConvertReport:
        receipts = list(self._receipts.values())
        table = manifest.shards
        assert table is not None
        labels, palette = (_by_label(total(getattr(r, name) for r in receipts)) for name in ("labels", "palette"))
        report = ConvertReport(
            destination=self._plan.destination,
            manifest=manifest,
            source_bytes=sum(receipt.source_bytes for receipt in receipts),
            disk_bytes=int(table.table["nbytes"].sum()) + table.nbytes + len(manifest.to_json()),
            seconds=time.monotonic() - started,
            skipped=tuple(skipped for receipt in receipts for skipped in receipt.skipped),
            ledger=self._plan.survey.ledger,
            resumed=resumed,
            oriented=int(manifest.options.get("exif_oriented") or 0),
        )
        return replace(
            report,
            kept=dict(total(receipt.kept for receipt in receipts)),
            palette=palette_classes(self._plan, manifest, palette, lambda: labels),
        )


def _by_label(counts: Counter[str]) -> Counter[int]:
    return Counter({int(label): count for label, count in counts.items()})


def runner_of(job: Job, tasks: int) -> Runner:
    """Where the tasks of a job run, as its option ``cluster`` says."""
    name, _, detail = (job.plan.options.cluster or "").partition(":")
    if name == "ray":
        return OnRay(job, tasks, detail)
    if name == "processes":
        count = min(int(detail), max(1, tasks))
        return Processes(_with_threads(job, max(1, default_workers() // count)), count)
    return InThisProcess(job)


def _with_threads(job: Job, threads: int) -> Job:
    """The job with so many threads a task, unless the user has said how many."""
    options = replace(job.plan.options, workers=job.plan.options.workers or threads)
    return replace(job, plan=replace(job.plan, options=options))
