"""What a repair did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packstore.stores.base import Problem


@dataclass(frozen=True, slots=True, repr=False)
class RepairReport:
    """What a repair did.

    Attributes:
        damaged: The damaged store.
        destination: The new store, or None when none was written: nothing was damaged, or some records are lost. At a
            URL, the damaged store itself, if all its shards are whole now.
        problem_count: What ``verify`` finds in the damaged store, at a URL its damaged shards; 0 when it is whole.
        copied: Records that are as they were.
        replaced: Records of which something was taken from the source, and what.
        lost: Records that could not be replaced, and why.
        identical: The new store is what the damaged one was, to the digest of its manifest.
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
