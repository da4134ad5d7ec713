"""The run that many machines share: its name, its plan, and which of its tasks are done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from packstore.cluster.receipts import Receipt
from packstore.core.errors import DestinationError, ManifestError, SourceError, StoreError, printable
from packstore.core.manifest import Normalization
from packstore.core.parallel import default_workers
from packstore.core.plainjson import Schemas, canonical, from_plain, sha256_json, to_plain
from packstore.core.progress import Progress, ProgressCallback
from packstore.objects import ConflictError, MissingObjectError, ObjectStore
from packstore.packing.plan import Plan
from packstore.packing.records import columns_of
from packstore.packing.resume import PositionTracker, fingerprint_of
from packstore.packing.statistics import normalized
from packstore.stores.builder.journal import describe_difference

WORK = "_work/"
_AT_ONCE = 16
"""Receipts that are read at once: each is a request, and waiting is nearly all of it."""
_LISTED_AT_ONCE = 4096
_ASKED = ("source", "kind of source", "format", "encoding", "options", "check", "max pixels", "shard size")
"""What of a fingerprint the user asks for: it names the run. The rest is what a run may find changed."""


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """What ``plan.json`` holds.

    Attributes:
        fingerprint: The source, the options and the versions of the software, see
            :func:`packstore.packing.resume.fingerprint_of`; and ``entries``, the digest of all entries.
        cuts: How many entries each shard has.
        normalization: By which floating point records are normalised.
    """

    fingerprint: dict[str, Any]
    cuts: tuple[int, ...]
    normalization: Normalization | None

    def to_json(self) -> bytes:
        """Canonical JSON with the digest of everything else in ``digest``."""
        plain = to_plain(self)
        return canonical(plain | {"digest": sha256_json(plain)}).encode("ascii")

    @classmethod
    def from_json(cls, data: bytes, where: str) -> SharedPlan:
        """Raises :class:`StoreError` for what :meth:`to_json` cannot have written."""
        try:
            plain = json.loads(data)
            if plain.pop("digest") != sha256_json(plain):
                raise ManifestError("its SHA-256 differs")
            fingerprint = plain.pop("fingerprint")
            if not isinstance(fingerprint, dict):
                raise TypeError("fingerprint is no object")
            rest = from_plain(_SCHEMA, _Rest, plain, "plan")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ManifestError) as error:
            raise StoreError(f"{where} is no plan of a conversion ({printable(str(error))}); use --restart") from None
        return cls(fingerprint, rest.cuts, rest.normalization)


@dataclass(frozen=True, slots=True)
class _Rest:
    cuts: tuple[int, ...]
    normalization: Normalization | None


_SCHEMA: Schemas = {
    _Rest: {"cuts": [int], "normalization": (Normalization, None)},
    Normalization: {"mean": [float], "std": [float]},
}


@dataclass(frozen=True, slots=True)
class Run:
    """The objects of a run, under ``_work/<name>/``."""

    objects: ObjectStore
    name: str

    def object(self, part: str) -> str:
        """The name of an object of the run."""
        return f"{WORK}{self.name}/{part}"

    @property
    def plan(self) -> str:
        return self.object("plan.json")

    @property
    def head(self) -> str:
        """The name of the object that holds the head that is about to be published."""
        return self.object("head.json")

    def receipt(self, number: int) -> str:
        """The name of the object that holds the receipt of a task."""
        return self.object(f"done/{number:06d}.json")

    def read(self, name: str) -> bytes | None:
        """An object's bytes; None where there is none."""
        try:
            return self.objects.get(name)
        except MissingObjectError:
            return None

    def receipts(self) -> Iterator[Receipt]:
        """The receipts that are there, in any order."""
        names = [info.name for info in self.objects.list(self.object("done/"))]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="packstore-receipts") as pool:
            for start in range(0, len(names), _LISTED_AT_ONCE):
                some = names[start : start + _LISTED_AT_ONCE]
                for name, data in zip(some, pool.map(self.read, some), strict=True):
                    if data is not None:  # another driver has just ended the run
                        receipt = Receipt.from_json(data, f"{self.objects.url}/{name}")
                        if name != self.receipt(receipt.number):
                            raise StoreError(f"{self.objects.url}/{name} is another shard's receipt; delete it")
                        yield receipt

    def remove(self) -> None:
        """Deletes all objects of the run, the plan last: as long as it is there, the receipts are its own."""
        names = [info.name for info in self.objects.list(self.object(""))]
        self.objects.delete([name for name in names if name != self.plan])
        self.objects.delete([name for name in names if name == self.plan])


def run_of(plan: Plan, objects: ObjectStore) -> Run:
    """The run of a plan: the same for each driver that is asked for the same."""
    asked = _fingerprint(plan)
    chosen: dict[str, Any] = {name: asked[name] for name in _ASKED}
    chosen["normalize"] = "auto" if plan.auto_normalize else to_plain(plan.encode.normalization)
    return Run(objects, f"convert-{sha256_json(chosen)[:12]}")


def settle(plan: Plan, run: Run, progress: ProgressCallback) -> tuple[Plan, SharedPlan]:
    """The plan with all that was open in it as the run has it, which it begins if it has not begun.

    Raises:
        DestinationError: The run was begun with another source or other software.
        SourceError: The source changed while it was listed.
    """
    mine = SharedPlan(*_listed(plan, progress), None)
    found = run.read(run.plan)
    if found is None:
        measured = normalized(plan, plan.options.workers or default_workers(), progress)
        mine = replace(mine, normalization=measured.encode.normalization)
        try:
            run.objects.create(run.plan, mine.to_json())
            return measured, mine
        except ConflictError:
            found = run.objects.get(run.plan)  # another driver was faster
    theirs = SharedPlan.from_json(found, f"{run.objects.url}/{run.plan}")
    differs = describe_difference(theirs.fingerprint, mine.fingerprint)
    if differs is None and theirs.cuts != mine.cuts:
        differs = "cuts differ"
    if differs is not None:
        raise DestinationError(
            f"{run.objects.url}: a conversion to it was begun otherwise ({printable(differs)}), and its shards would "
            "not fit together with new ones; go on with what it was begun with, or drop what it has with --restart"
        )
    encode = replace(plan.encode, normalization=theirs.normalization)
    return replace(plan, encode=encode, auto_normalize=False), theirs


def _fingerprint(plan: Plan) -> dict[str, Any]:
    encoder = plan.encoder()
    found: dict[str, Any] = to_plain(fingerprint_of(plan, encoder, columns_of(plan, encoder)))
    del found["normalization"]  # it may have to be computed, and is what the options and the source make it
    return found


def _listed(plan: Plan, progress: ProgressCallback) -> tuple[dict[str, Any], tuple[int, ...]]:
    """The fingerprint with the digest of all entries, and how many each shard has."""
    assert plan.shards is not None
    entries, cuts, total = PositionTracker(), [], plan.survey.records
    for shard in plan.shards.shards(plan.source.entries(plan.options.split)):
        entries.add(shard)
        entries.digest()  # which lets them go
        cuts.append(len(shard))
        progress(Progress("plan", entries.consumed, total, 0))
    if entries.consumed != total:
        raise changed(plan, f"{total} images at first, {entries.consumed} then")
    return _fingerprint(plan) | {"entries": entries.digest()}, tuple(cuts)


def changed(plan: Plan, how: str) -> SourceError:
    """What to raise where a source is not what it was."""
    return SourceError(
        f"{printable(str(plan.source.path))} changed while it was packed: {how}; run the conversion again with "
        "--restart when nothing writes to it"
    )
