"""Where a conversion ends its shards: by what is known of the samples before the first one is read.

So a cut depends on no record: not on how large it came out, and not on whether a bad sample was left out. Any machine
can make any shard of a plan, and makes the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from packstore.sources.base import Entry


@dataclass(frozen=True, slots=True)
class ShardRule:
    """How many samples go into a shard. A shard holds samples of one split.

    Attributes:
        by: What is counted: ``samples``, or their ``bytes`` in the source.
        limit: The most of these in a shard; a sample that is larger has a shard to itself.
    """

    by: Literal["samples", "bytes"]
    limit: int

    @classmethod
    def of(cls, shard_size: int, record_nbytes: int | None, sampled: Sequence[tuple[int, int]]) -> ShardRule:
        """The rule by which shards have about ``shard_size`` bytes of images.

        Args:
            shard_size: Bytes.
            record_nbytes: Bytes of each record, where all have the same.
            sampled: Bytes in the source and bytes as a record, of some samples; empty where records are the source's
                bytes.
        """
        if record_nbytes is not None:
            return cls("samples", max(1, shard_size // max(1, record_nbytes)))
        before, after = (sum(sizes) for sizes in zip(*sampled, strict=True)) if sampled else (1, 1)
        return cls("bytes", max(1, shard_size * max(1, before) // max(1, after)))

    def cuts(self) -> ShardCuts:
        """What follows the entries of a source and says where shards begin."""
        return ShardCuts(self)

    def shards(self, entries: Iterable[Entry]) -> Iterator[list[Entry]]:
        """``entries``, which are all of a source, as those of each shard."""
        cuts = self.cuts()
        shard: list[Entry] = []
        for entry in entries:
            if cuts.begins(entry) and shard:
                yield shard
                shard = []
            shard.append(entry)
        if shard:
            yield shard


class ShardCuts:
    """Follows the entries of a source in order."""

    def __init__(self, rule: ShardRule) -> None:
        self._rule = rule
        self._split: str | None = None
        self._held = 0

    def begins(self, entry: Entry) -> bool:
        """Whether a shard begins with ``entry``, the next one."""
        weight = entry.size_bytes if self._rule.by == "bytes" else 1
        begins = entry.split != self._split or self._held + weight > self._rule.limit
        self._held = weight + (0 if begins else self._held)
        self._split = entry.split
        return begins
