"""The run that many machines share: its name, its plan, and the receipts of its tasks.

A receipt proves to every driver that a shard is packed and uploaded.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DestinationError, ManifestError, SourceError, StoreError, printable
from packstore.core.manifest import Normalization
from packstore.core.parallel import default_workers
from packstore.core.plainjson import encode_with_digest, from_plain, parse_with_digest, sha256_json, to_plain
from packstore.core.progress import Progress, ProgressCallback
from packstore.core.shards import Shard
from packstore.core.tally import Tally
from packstore.objects import ConflictError, MissingObjectError, ObjectStore
from packstore.packing.plan import Plan
from packstore.packing.run import EntriesDigest, Run, with_statistics
from packstore.stores.places.resuming import describe_difference

WORK = "_work/"
_AT_ONCE = 16
"""Receipts read at once: each takes a request, which is mostly waiting."""
_LISTED_AT_ONCE = 4096
_CHOSEN_BY_USER = ("source", "kind of source", "format", "encoding", "options", "check", "max pixels", "shard size")
"""Parts of a fingerprint that the user chooses: they name the run. The other parts may change between runs."""


@dataclass(frozen=True, slots=True)
class SharedPlan:
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

    def to_json(self) -> bytes:
        """Returns canonical JSON. Its field ``digest`` is the digest of all other fields."""
        return encode_with_digest(to_plain(self))

    @classmethod
    def from_json(cls, data: bytes, where: str) -> SharedPlan:
        """Parses a plan. ``where`` names it in messages. Raises :class:`StoreError` if its digest or its fields are
        wrong."""
        try:
            return from_plain(cls, parse_with_digest(data), "plan")
        except (ValueError, TypeError, KeyError, ManifestError) as error:
            raise StoreError(f"{where} is not a conversion's plan ({printable(str(error))}); use --restart") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReceipt:
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

    @property
    def records(self) -> int:
        """Number of records in the shard; 0 if there is none."""
        return 0 if self.shard is None else self.shard.records

    def key_hashes(self) -> NDArray[np.uint64]:
        """Returns the hashes of the keys: ``uint64``, one a record."""
        return np.frombuffer(base64.b64decode(self.keys), "<u8")

    def to_json(self) -> bytes:
        """Returns canonical JSON. Its field ``digest`` is the digest of all other fields."""
        return encode_with_digest(to_plain(self))

    @classmethod
    def from_json(cls, data: bytes, where: str) -> TaskReceipt:
        """Parses a receipt. ``where`` names it in messages.

        Raises :class:`StoreError` if its digest, its fields or its number of keys are wrong.
        """
        try:
            receipt = from_plain(cls, parse_with_digest(data), "receipt")
            if len(receipt.key_hashes()) != receipt.records:
                raise ManifestError("its number of keys is not that of its records")
        except (ValueError, TypeError, KeyError, ManifestError) as error:
            raise StoreError(
                f"{where} is damaged ({printable(str(error))}); delete it, and the conversion packs this shard again"
            ) from None
        return receipt


def encode_keys(hashes: NDArray[np.uint64]) -> str:
    """Encodes ``uint64`` hashes as :attr:`TaskReceipt.keys`."""
    return base64.b64encode(hashes.astype("<u8", copy=False).tobytes()).decode("ascii")


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
    """Returns the shard's SHA-256 and number of records, or "no record of N samples". For messages."""
    if receipt.shard is None:
        return f"no record of {receipt.tally.entries} samples"
    return f"SHA-256 {receipt.shard.digest} ({receipt.records:,} records)"


def sum_counts(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Adds up counts by name."""
    added: Counter[str] = Counter()
    for each in counts:
        added.update(each)
    return added


def select_receipts_with_records(receipts: Sequence[TaskReceipt]) -> list[TaskReceipt]:
    """Returns the receipts of shards with records, sorted by number."""
    return [receipt for receipt in sorted(receipts, key=lambda r: r.number) if receipt.shard is not None]


@dataclass(frozen=True, slots=True)
class ClusterRun:
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

    @property
    def head_name(self) -> str:
        """Name of the object with the manifest that is about to be published."""
        return self.object_name("head.json")

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


def identify_run(plan: Plan, objects: ObjectStore) -> ClusterRun:
    """Returns the run of a plan. Requests nothing.

    Its name is a digest of the source and the options that users choose. Drivers with equal ones share a run.
    """
    fingerprint = _plan_fingerprint(plan)
    chosen: dict[str, Any] = {name: fingerprint[name] for name in _CHOSEN_BY_USER}
    chosen["normalize"] = "auto" if plan.auto_normalize else to_plain(plan.encode.normalization)
    return ClusterRun(objects, f"convert-{sha256_json(chosen)[:12]}")


def join_run(plan: Plan, run: ClusterRun, progress: ProgressCallback) -> tuple[Plan, SharedPlan]:
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
    return replace(plan, encode=encode, auto_normalize=False), theirs


def _plan_fingerprint(plan: Plan) -> dict[str, Any]:
    """Returns the fingerprint of a plan without its normalisation."""
    fingerprint: dict[str, Any] = to_plain(Run(plan).fingerprint)
    del fingerprint["normalization"]  # it may not be computed yet, and follows from options and source
    return fingerprint


def _list_shards(plan: Plan, progress: ProgressCallback) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Lists the source. Returns the fingerprint with the digest of all entries, and each shard's number of entries.

    Raises :class:`SourceError` if the number of entries changed.
    """
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


def source_changed_error(plan: Plan, how: str) -> SourceError:
    """Returns the error for a source that changed while it was packed. ``how`` says what changed."""
    return SourceError(
        f"{printable(str(plan.source.path))} changed while it was packed: {how}; run the conversion again with "
        "--restart when nothing writes to it"
    )
