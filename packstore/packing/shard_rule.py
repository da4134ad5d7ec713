"""Decides which samples of a conversion go into which shard, before any of them is read.

A cut therefore does not depend on records: not on their size, and not on whether a bad sample was skipped. Any machine
can make any shard of a plan, and makes the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from packstore.sources.base import Entry


@dataclass(frozen=True, slots=True)
class ShardRule:
    """Limit on the samples of a shard. A shard contains samples of one split.

    Attributes:
        by: Unit of the limit: ``samples``, or ``bytes`` of samples in the source.
        limit: Maximum per shard. A single sample that is larger gets a shard of its own.
    """

    by: Literal["samples", "bytes"]
    limit: int

    @classmethod
    def for_size(cls, shard_size: int, record_nbytes: int | None, sampled: Sequence[tuple[int, int]]) -> ShardRule:
        """Returns the rule that gives shards about ``shard_size`` bytes of images.

        It limits samples if all records have the same size, else bytes in the source.

        Args:
            shard_size: Bytes.
            record_nbytes: Bytes of each record if all have the same size, else None.
            sampled: (bytes in the source, bytes as a record) of some samples; empty if records are the source's bytes.
        """
        if record_nbytes is not None:
            return cls("samples", max(1, shard_size // max(1, record_nbytes)))
        before, after = (sum(sizes) for sizes in zip(*sampled, strict=True)) if sampled else (1, 1)
        return cls("bytes", max(1, shard_size * max(1, before) // max(1, after)))

    def split_entries(self, entries: Iterable[Entry]) -> Iterator[list[Entry]]:
        """Splits the entries of a source, in order, into one list per shard."""
        cuts = ShardCuts(self)
        shard: list[Entry] = []
        for entry in entries:
            if cuts.begins_shard(entry) and shard:
                yield shard
                shard = []
            shard.append(entry)
        if shard:
            yield shard


class ShardCuts:
    """Tells which entries of a source begin a shard. Takes the entries in order."""

    def __init__(self, rule: ShardRule) -> None:
        self._rule = rule
        self._split: str | None = None
        self._filled = 0

    def begins_shard(self, entry: Entry) -> bool:
        """Counts ``entry``, and tells if it begins a shard. Call it once for each entry, in order."""
        weight = entry.size_bytes if self._rule.by == "bytes" else 1
        begins = entry.split != self._split or self._filled + weight > self._rule.limit
        self._filled = weight + (0 if begins else self._filled)
        self._split = entry.split
        return begins
