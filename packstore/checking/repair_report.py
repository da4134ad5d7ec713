"""The report of a repair."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packstore.stores.base import Problem


@dataclass(frozen=True, slots=True, repr=False)
class RepairReport:
    """Report of a repair.

    Attributes:
        damaged: The damaged store.
        destination: The new store. None if none was written: nothing was damaged, or some records are lost. At a URL,
            the damaged store itself, if all its shards are intact now.
        problem_count: Number of problems that ``verify`` finds in the damaged store. At a URL, number of damaged
            shards.
        copied: Number of records that are unchanged.
        replaced: Records with values from the source, and which values.
        lost: Records that could not be replaced, and why.
        identical: Whether the new store's manifest has the digest that the damaged one's has.
    """

    damaged: Path
    destination: Path | None
    problem_count: int
    copied: int
    replaced: tuple[Problem, ...]
    lost: tuple[Problem, ...]
    identical: bool

    def __repr__(self) -> str:
        written = "nothing written" if self.destination is None else f"written to {str(self.destination)!r}"
        return (
            f"<RepairReport of {str(self.damaged)!r}: {self.copied:,} copied, {len(self.replaced):,} replaced, "
            f"{len(self.lost):,} lost, {written}>"
        )
