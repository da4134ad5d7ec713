"""Conversions by many processes or machines: a shared plan, a task for each shard, a receipt for each task, one commit.

The protocol, under ``_work/<run>/`` at the destination:

1. The driver writes ``plan.json`` if there is none. It refuses a different plan.
2. A task packs one shard, uploads it under its digest, and creates its receipt ``done/000042.json``. A task may run any
   number of times. Shard and receipt have the same bytes each time; if not, the run fails and names both digests.
3. A restarted driver runs the tasks without a receipt.
4. When all receipts exist, the driver checks for duplicate keys, writes ``head.json`` and the table, and creates the
   next version of the store. At last it deletes the receipts, and after them the plan.

Here is the run that all machines share: its name, its plan, its tasks and their receipts, by which every driver knows
that a shard is packed and uploaded.
"""

from __future__ import annotations

import base64
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DestinationError, ManifestError, StoreError, printable
from packstore.core.files import scratch_folder
from packstore.core.manifest import Manifest, Normalization
from packstore.core.parallel import default_workers
from packstore.core.plainjson import encode_with_digest, from_plain, parse_with_digest, sha256_json, to_plain
from packstore.core.progress import Progress, ProgressCallback
from packstore.core.proof import file_digest
from packstore.core.registry import FORMATS
from packstore.core.shards import Shard
from packstore.objects import ConflictError, MissingObjectError, ObjectStore
from packstore.packing.batches import first_label
from packstore.packing.plan import Plan
from packstore.packing.run import EntriesDigest, Run, pack_shard, source_changed_error, with_statistics
from packstore.sources import open_source
from packstore.sources.base import Entry, Source, SourceOptions
from packstore.stores.format import Format
from packstore.stores.keys import hash_keys
from packstore.stores.opening import open_reader
from packstore.stores.places.receipts import Tally, describe_difference
from packstore.stores.places.remote import upload_shard

WORK = "_work/"
_AT_ONCE = 16
"""Receipts read at once: each takes a request, which is mostly waiting."""
_LISTED_AT_ONCE = 4096
_CHOSEN_BY_USER = ("source", "kind of source", "format", "encoding", "options", "check", "max pixels", "shard size")
"""Parts of a fingerprint that the user chooses: they name the run. The other parts may change between runs."""


class _Note:
    """An object of a run: a dataclass as JSON.

    Attributes:
        fault: Message for a damaged note, with a place for the reason.
    """

    __slots__ = ()
    fault: ClassVar[str]

    def to_json(self) -> bytes:
        """Returns canonical JSON. Its field ``digest`` is the digest of all other fields."""
        return encode_with_digest(to_plain(self))

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Parses a note. ``where`` names it in messages. Raises :class:`StoreError` if its digest or its fields are
        wrong."""
        try:
            return from_plain(cls, parse_with_digest(data), "note")
        except (ValueError, TypeError, KeyError, ManifestError) as error:
            raise StoreError(f"{where} {cls.fault.format(printable(str(error)))}") from None


@dataclass(frozen=True, slots=True)
class SharedPlan(_Note):
    """The plan that all drivers of a run share, content of ``plan.json``.

    Attributes:
        fingerprint: The fields of :func:`packstore.packing.run.Run.fingerprint`: source, options, versions of
            the software. Besides, ``entries`` has the digest of all entries.
        cuts: Number of entries of each shard.
        normalization: Normalisation of floating-point records; None for records without one.
    """

    fingerprint: dict[str, Any]
    cuts: tuple[int, ...]
    normalization: Normalization | None
    fault = "is not a conversion's plan ({}); use --restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReceipt(_Note):
    """Receipt of a shard that is packed and uploaded. Equal work gives equal receipts.

    Attributes:
        number: Number of the task, from 0.
        split: Split of its entries; ``""`` in a source without splits.
        tally: Counts of its samples.
        shard: The uploaded shard; None if all samples were skipped.
        columns: Bytes of the values of each column but ``image``.
        hidden_boxes: :attr:`Column.hides_boxes` of the columns that may hide boxes.
        keys: The XXH3-64 of each key, little-endian, in base64.
        labels: Number of records by first label, as text; class 0 without labels.
    """

    number: int
    split: str
    tally: Tally
    shard: Shard | None = None
    columns: Mapping[str, int] = field(default_factory=dict)
    hidden_boxes: Mapping[str, bool] = field(default_factory=dict)
    keys: str = ""
    labels: Mapping[str, int] = field(default_factory=dict)
    fault = "is damaged ({}); delete it, and the conversion packs this shard again"

    def __post_init__(self) -> None:
        if len(self.key_hashes()) != self.records:
            raise ManifestError("its number of keys is not that of its records")

    @property
    def records(self) -> int:
        """Number of records in the shard; 0 if there is none."""
        return 0 if self.shard is None else self.shard.records

    def key_hashes(self) -> NDArray[np.uint64]:
        """Returns the hashes of the keys: ``uint64``, one a record."""
        return np.frombuffer(base64.b64decode(self.keys), "<u8")


def create_receipt(objects: ObjectStore, name: str, receipt: TaskReceipt) -> None:
    """Creates the object of a receipt. Accepts an existing object with the same content.

    Raises:
        StoreError: The existing object is damaged. Or it differs, because another machine computed a different shard.
    """
    try:
        objects.create(name, receipt.to_json())
    except ConflictError:
        other = TaskReceipt.from_json(objects.get(name), f"{objects.url}/{name}")
        raise StoreError(
            f"shard {receipt.number} of {objects.url} came out differently on two machines: "
            f"{_describe_receipt(receipt)} here, {_describe_receipt(other)} by the receipt {name}. One of them "
            "computes differently: compare their processors, memory and libraries, then drop the run with --restart"
        ) from None


def _describe_receipt(receipt: TaskReceipt) -> str:
    """Describes what a task has packed, for a message."""
    if receipt.shard is None:
        return f"no record of {receipt.tally.entries} samples"
    return f"SHA-256 {receipt.shard.digest} ({receipt.records:,} records)"


@dataclass(frozen=True, slots=True)
class SharedRun:
    """Names, reads and deletes the objects of a run, under ``_work/<name>/`` at the destination."""

    objects: ObjectStore
    name: str

    def object_name(self, part: str) -> str:
        """Returns the name of the run's object ``part``: ``_work/<run>/<part>``."""
        return f"{WORK}{self.name}/{part}"

    @property
    def plan_name(self) -> str:
        """Name of the object with the shared plan."""
        return self.object_name("plan.json")

    def receipt_name(self, number: int) -> str:
        """Returns the name of the object with a task's receipt."""
        return self.object_name(f"done/{number:06d}.json")

    def read_object(self, name: str) -> bytes | None:
        """Returns an object's bytes, or None if it does not exist."""
        try:
            return self.objects.get(name)
        except MissingObjectError:
            return None

    def read_receipts(self) -> Iterator[TaskReceipt]:
        """Reads and yields all existing receipts, in any order. Leaves out receipts that another driver removes
        meanwhile.

        Raises :class:`StoreError` if a receipt is damaged, or under another task's name.
        """
        names = [info.name for info in self.objects.list(self.object_name("done/"))]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="packstore-receipts") as pool:
            for start in range(0, len(names), _LISTED_AT_ONCE):
                some = names[start : start + _LISTED_AT_ONCE]
                for name, data in zip(some, pool.map(self.read_object, some), strict=True):
                    if data is not None:  # else another driver has just removed the run
                        receipt = TaskReceipt.from_json(data, f"{self.objects.url}/{name}")
                        if name != self.receipt_name(receipt.number):
                            raise StoreError(f"{self.objects.url}/{name} is another shard's receipt; delete it")
                        yield receipt

    def remove_objects(self) -> None:
        """Deletes all objects of the run. The plan goes last, because it identifies the receipts."""
        names = [info.name for info in self.objects.list(self.object_name(""))]
        self.objects.delete([name for name in names if name != self.plan_name])
        self.objects.delete([name for name in names if name == self.plan_name])


def identify_run(plan: Plan, objects: ObjectStore) -> SharedRun:
    """Returns the run of a plan. Requests nothing.

    Its name is a digest of the source and the options that users choose. Drivers with equal ones share a run.
    """
    fingerprint = _plan_fingerprint(plan)
    chosen: dict[str, Any] = {name: fingerprint[name] for name in _CHOSEN_BY_USER}
    chosen["normalize"] = "auto" if plan.auto_normalize else to_plain(plan.encode.normalization)
    return SharedRun(objects, f"convert-{sha256_json(chosen)[:12]}")


def join_run(plan: Plan, run: SharedRun, progress: ProgressCallback) -> tuple[Plan, SharedPlan]:
    """Joins the run that other drivers began, or begins it by creating its plan.

    Lists the source. Computes the normalisation if this driver begins the run and the plan asks for it.

    Returns:
        The plan with the run's normalisation, and the shared plan.

    Raises:
        DestinationError: The run was begun with another source or other software.
        SourceError: The number of entries changed while the source was listed.
        StoreError: The stored plan is damaged.
    """
    mine = SharedPlan(*_list_shards(plan, progress), None)
    stored = run.read_object(run.plan_name)
    if stored is None:
        measured = with_statistics(plan, plan.options.workers or default_workers(), progress)
        mine = replace(mine, normalization=measured.encode.normalization)
        try:
            run.objects.create(run.plan_name, mine.to_json())
            return measured, mine
        except ConflictError:
            stored = run.objects.get(run.plan_name)  # another driver was faster
    theirs = SharedPlan.from_json(stored, f"{run.objects.url}/{run.plan_name}")
    differs = describe_difference(theirs.fingerprint, mine.fingerprint)
    if differs is None and theirs.cuts != mine.cuts:
        differs = "cuts differ"
    if differs is not None:
        raise DestinationError(
            f"{run.objects.url}: another conversion to it was begun ({printable(differs)}), and its shards would not "
            "fit new ones; resume it with the source and software it was begun with, or drop it with --restart"
        )
    encode = replace(plan.encode, normalization=theirs.normalization)
    return replace(plan, encode=encode), theirs


def _plan_fingerprint(plan: Plan) -> dict[str, Any]:
    """Returns the fingerprint of a plan without its normalisation."""
    fingerprint: dict[str, Any] = to_plain(Run(plan).fingerprint)
    del fingerprint["normalization"]  # it may not be computed yet, and follows from options and source
    return fingerprint


def _list_shards(plan: Plan, progress: ProgressCallback) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Lists the source; returns the fingerprint with the digest of all entries, and each shard's number of entries."""
    assert plan.shards is not None
    digest, cuts, total = EntriesDigest(), [], plan.survey.records
    for shard in plan.shards.split_entries(plan.source.entries(plan.options.split)):
        digest.add(shard)
        digest.hexdigest()  # frees the entries
        cuts.append(len(shard))
        progress(Progress("plan", sum(cuts), total, 0))
    if sum(cuts) != total:
        raise source_changed_error(plan, f"{total} images at first, {sum(cuts)} then")
    return _plan_fingerprint(plan) | {"entries": digest.hexdigest()}, tuple(cuts)


_sources: dict[tuple[str, str], Source] = {}
"""Sources that this process has opened, by destination and run."""


@dataclass(frozen=True)
class SharedJob:
    """Data that all tasks of a run need.

    It pickles without the opened source. Each process opens the source itself. Unpickling raises :class:`StoreError`
    if versions of the software differ.

    Attributes:
        plan: The plan, with the run's normalisation.
        run: The run, which gets the receipts.
    """

    plan: Plan
    run: SharedRun

    def __reduce__(self) -> tuple[Any, ...]:
        """Replaces the source by its options, with which :func:`_rebuild_job` opens it again."""
        source, plan = self.plan.source, replace(self.plan, source=cast("Source", None))
        return _rebuild_job, (plan, self.run, source.path, source.kind, source.options, self.plan.list_versions())


def _rebuild_job(
    plan: Plan, run: SharedRun, path: Path, kind: str, options: SourceOptions, versions: dict[str, str]
) -> SharedJob:
    """Rebuilds a job in another process, with the source of the run opened."""
    mine = plan.list_versions()
    # Records might differ with other versions.
    if mine != versions:
        differs = ", ".join(
            f"{name} {mine.get(name, 'none')} instead of {versions.get(name, 'none')}"
            for name in sorted({*mine, *versions})
            if mine.get(name) != versions.get(name)
        )
        raise StoreError(
            f"the machine {platform.node()} would pack with other software than the plan: {differs}; install the same "
            "versions on all machines"
        )
    key = run.objects.url, run.name
    # A process opens the source of a run once, and keeps it.
    if key not in _sources:
        source = _sources[key] = open_source(path, options, kind=kind)
        source.read_as(plan.encode.reading)
    return SharedJob(replace(plan, source=_sources[key]), run)


def run_task(job: SharedJob, number: int, entries: Sequence[Entry]) -> TaskReceipt:
    """Packs shard ``number`` from its entries, uploads it, and creates its receipt. Returns the receipt.

    If all samples were skipped, uploads no shard.

    Raises:
        SampleError: A sample is bad, and bad ones are not to be skipped.
        StoreError: The shard cannot be written, or a receipt of it exists and differs.
    """
    plan, objects = job.plan, job.run.objects
    with scratch_folder(job.run.name) as folder:
        path = folder / FORMATS[plan.format].shard_name(number)
        manifest, tally = pack_shard(plan, entries, path)
        skipped = {each.key for each in tally.skipped}
        labels = Counter(str(first_label(entry)) for entry in entries if entry.key not in skipped)
        receipt = TaskReceipt(number=number, split=entries[0].split, tally=tally, labels=labels)
        if manifest is not None:
            receipt = _upload_shard(receipt, manifest, path, objects)
    create_receipt(objects, job.run.receipt_name(number), receipt)
    return receipt


def _upload_shard(receipt: TaskReceipt, manifest: Manifest, path: Path, objects: ObjectStore) -> TaskReceipt:
    """Uploads the finished shard at ``path``, and returns the receipt with facts about the shard added."""
    format: Format = FORMATS[manifest.format]
    nbytes, digest = file_digest(format.data_file(path))
    sizes = manifest.records, nbytes, manifest.image.nbytes
    shard = Shard(path.name, *sizes, manifest.records_digest, digest, manifest.digest)
    with open_reader(path) as reader:
        keys = base64.b64encode(hash_keys([reader]).astype("<u8", copy=False).tobytes()).decode("ascii")
    upload_shard(objects, shard, format.data_file(path))
    columns = {column.name: column.nbytes for column in manifest.columns[1:]}
    hidden = {column.name: column.hides_boxes for column in manifest.columns if column.hides_boxes is not None}
    return replace(receipt, shard=shard, columns=columns, hidden_boxes=hidden, keys=keys)
