"""Receipts of tasks: objects that prove to every driver that a shard is packed and uploaded."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import ManifestError, StoreError, printable
from packstore.core.plainjson import encode_with_digest, from_plain, parse_with_digest, to_plain
from packstore.core.shards import Shard
from packstore.core.tally import Tally
from packstore.objects import ConflictError, ObjectStore


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
