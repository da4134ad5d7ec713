"""The report of a repair."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from packstore.stores.base import Problem


class ShardCounts(NamedTuple):
    """What a repair at a URL did.

    Attributes:
        replaced: Number of shards that were replaced in place.
        lost: Number of shards that could not be replaced.
        lost_records: Number of their records.
    """

    replaced: int
    lost: int
    lost_records: int


@dataclass(frozen=True, slots=True, repr=False)
class RepairReport:
    """Report of a repair.

    Attributes:
        damaged: The damaged store.
        destination: The new store. None if none was written: nothing was damaged, or some records are lost. At a URL,
            the damaged store itself, if all its shards are intact now.
        problem_count: Number of problems that ``verify`` finds in the damaged store. At a URL, number of damaged
            shards.
        copied: Number of records that are unchanged. At a URL, number of records in undamaged shards.
        replaced: Records with values from the source, and which values. At a URL also whole shards, without a record.
        lost: Records that could not be replaced, and why. At a URL, shards.
        identical: Whether the new store's manifest has the digest that the damaged one's has.
        shards: Numbers of shards, at a URL; else None.
    """

    damaged: Path
    destination: Path | None
    problem_count: int
    copied: int
    replaced: tuple[Problem, ...]
    lost: tuple[Problem, ...]
    identical: bool
    shards: ShardCounts | None = None

    def __repr__(self) -> str:
        if self.shards is not None:
            counts = f"{self.shards.replaced:,} shards replaced, {self.shards.lost:,} lost"
            return f"<RepairReport of {str(self.damaged)!r}: {counts}>"
        written = "nothing written" if self.destination is None else f"written to {str(self.destination)!r}"
        return (
            f"<RepairReport of {str(self.damaged)!r}: {self.copied:,} copied, {len(self.replaced):,} replaced, "
            f"{len(self.lost):,} lost, {written}>"
        )
