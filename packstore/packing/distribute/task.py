"""A task: packs one shard, uploads it, and creates its receipt, with the same bytes wherever and however often it
runs.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import packstore
from packstore.core.errors import StoreError
from packstore.core.files import scratch_folder
from packstore.core.manifest import Manifest
from packstore.core.proof import file_digest
from packstore.core.registry import FORMATS
from packstore.core.shards import Shard
from packstore.objects import ObjectStore
from packstore.packing.batches import first_label
from packstore.packing.distribute.cluster_run import ClusterRun, TaskReceipt, create_receipt, encode_keys
from packstore.packing.plan import Plan
from packstore.packing.run import pack_shard
from packstore.sources import open_source
from packstore.sources.base import Entry, Source, SourceOptions
from packstore.stores.format import Format
from packstore.stores.keys import hash_keys
from packstore.stores.opening import open_reader
from packstore.stores.places.remote import upload_shard

_sources: dict[tuple[str, str], Source] = {}
"""Sources that this process has opened, by destination and run."""


@dataclass(frozen=True)
class ClusterJob:
    """Data that all tasks of a run need.

    It pickles without the opened source. Each process opens the source itself. Unpickling raises :class:`StoreError`
    if versions of the software differ.

    Attributes:
        plan: The plan, with the run's normalisation.
        run: The run, which gets the receipts.
    """

    plan: Plan
    run: ClusterRun

    def __reduce__(self) -> tuple[Any, ...]:
        """Replaces the source by its options, with which :func:`_rebuild_job` opens it again."""
        source, plan = self.plan.source, replace(self.plan, source=cast("Source", None))
        versions = list_library_versions(self.plan)
        return _rebuild_job, (plan, self.run, source.path, source.kind, source.options, versions)


def list_library_versions(plan: Plan) -> dict[str, str]:
    """Returns the versions of the software that makes the records."""
    return {"packstore": packstore.__version__} | plan.make_encoder().versions()


def _rebuild_job(
    plan: Plan, run: ClusterRun, path: Path, kind: str, options: SourceOptions, versions: dict[str, str]
) -> ClusterJob:
    """Unpickles a job in another process, and opens its source. A process opens the source of a run once, and keeps it.

    Raises :class:`StoreError` if versions of the software differ from the driver's: records might differ too. Errors of
    opening the source pass through.
    """
    mine = list_library_versions(plan)
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
    if key not in _sources:
        source = _sources[key] = open_source(path, options, kind=kind)
        source.read_as(plan.encode.reading)
    return ClusterJob(replace(plan, source=_sources[key]), run)


def run_task(job: ClusterJob, number: int, entries: Sequence[Entry]) -> TaskReceipt:
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
    """Uploads the shard at ``path``, which was sealed and read back.

    Returns the receipt with these facts added: the shard, hashes of its keys, and for each column except the main image
    its bytes and whether it hides boxes.
    """
    format: Format = FORMATS[manifest.format]
    nbytes, digest = file_digest(format.data_file(path))
    sizes = manifest.records, nbytes, manifest.image.nbytes
    shard = Shard(path.name, *sizes, manifest.records_digest, digest, manifest.digest)
    with open_reader(path) as reader:
        keys = encode_keys(hash_keys([reader]))
    upload_shard(objects, shard, format.data_file(path))
    columns = {column.name: column.nbytes for column in manifest.columns[1:]}
    hidden = {column.name: column.hides_boxes for column in manifest.columns if column.hides_boxes is not None}
    return replace(receipt, shard=shard, columns=columns, hidden_boxes=hidden, keys=keys)
