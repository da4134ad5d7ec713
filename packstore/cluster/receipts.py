"""What a task has done, as the object that proves it to every driver."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import ManifestError, StoreError, printable
from packstore.core.manifest import Skipped
from packstore.core.plainjson import Schemas, canonical, from_plain, sha256_json, to_plain
from packstore.core.shards import Shard
from packstore.objects import ConflictError, ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A shard that is packed and uploaded. Equal work gives equal receipts: nothing in it tells who did it, or when.

    Attributes:
        number: Of the task, from 0.
        entries: How many entries the shard was made of.
        split: The split that they are of; ``""`` in a source without splits.
        shard: What was uploaded; None where all samples were skipped.
        columns: Bytes of the values of each column but ``image``.
        keys: The XXH3-64 of each key, little-endian, in base64.
        labels: How many records have which first label.
        skipped: Samples left out by policy.
        counted: See :class:`packstore.packing.records.PackedShard`, as all that follows.
        kept: Likewise.
        palette: Likewise.
        oriented: Likewise.
        source_bytes: Likewise.
    """

    number: int
    entries: int
    split: str
    shard: Shard | None
    columns: Mapping[str, int] = field(default_factory=dict)
    keys: str = ""
    labels: Mapping[str, int] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    counted: Mapping[str, int] = field(default_factory=dict)
    kept: Mapping[str, int] = field(default_factory=dict)
    palette: Mapping[str, int] = field(default_factory=dict)
    oriented: int = 0
    source_bytes: int = 0

    @property
    def records(self) -> int:
        return 0 if self.shard is None else self.shard.records

    def key_hashes(self) -> NDArray[np.uint64]:
        """``uint64``, one a record."""
        return np.frombuffer(base64.b64decode(self.keys), "<u8")

    def to_json(self) -> bytes:
        """Canonical JSON with the digest of everything else in ``digest``."""
        plain = to_plain(self)
        return canonical(plain | {"digest": sha256_json(plain)}).encode("ascii")

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Receipt:
        """Raises :class:`StoreError` for what :meth:`to_json` cannot have written."""
        try:
            plain = json.loads(data)
            digest = plain.pop("digest")
            if digest != sha256_json(plain):
                raise ManifestError("its SHA-256 differs")
            receipt: Receipt = from_plain(_SCHEMA, cls, plain, "receipt")
            if len(receipt.key_hashes()) != receipt.records:
                raise ManifestError("it has not one key a record")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ManifestError) as error:
            raise StoreError(
                f"{where} is damaged ({printable(str(error))}); delete it, and the conversion packs this shard again"
            ) from None
        return receipt


_COUNTS = {"*": int}
_SCHEMA: Schemas = {
    Shard: {
        "name": str,
        "records": int,
        "nbytes": int,
        "image_nbytes": int,
        "records_digest": str,
        "digest": str,
        "manifest_digest": str,
    },
    Skipped: {"key": str, "reason": str},
    Receipt: {
        "number": int,
        "entries": int,
        "split": str,
        "shard": (Shard, None),
        "columns": _COUNTS,
        "keys": str,
        "labels": _COUNTS,
        "skipped": [Skipped],
        "counted": _COUNTS,
        "kept": _COUNTS,
        "palette": _COUNTS,
        "oriented": int,
        "source_bytes": int,
    },
}


def encoded_keys(hashes: NDArray[np.uint64]) -> str:
    """:attr:`Receipt.keys` of ``uint64`` hashes."""
    return base64.b64encode(hashes.astype("<u8", copy=False).tobytes()).decode("ascii")


def create_receipt(objects: ObjectStore, name: str, receipt: Receipt) -> None:
    """Creates the object of a receipt; one that says the same may be there already.

    Raises:
        StoreError: The one that is there says something else, for another machine has computed otherwise."""
    try:
        objects.create(name, receipt.to_json())
    except ConflictError:
        other = Receipt.from_json(objects.get(name), f"{objects.url}/{name}")
        raise StoreError(
            f"shard {receipt.number} of {objects.url} came out differently on two machines: {_said(receipt)} here, "
            f"{_said(other)} by the receipt {name}. One of them computes otherwise: compare their processors, memory "
            "and libraries, then drop the run with --restart"
        ) from None


def _said(receipt: Receipt) -> str:
    if receipt.shard is None:
        return f"no record of {receipt.entries} samples"
    return f"SHA-256 {receipt.shard.digest} ({receipt.records:,} records)"


def total(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """The sums of counts by name."""
    added: Counter[str] = Counter()
    for each in counts:
        added.update(each)
    return added


def shards_in_order(receipts: Sequence[Receipt]) -> list[Receipt]:
    """The receipts of shards with records, in order of their tasks."""
    return [receipt for receipt in sorted(receipts, key=lambda r: r.number) if receipt.shard is not None]
