"""``Tally``: counts of the samples that a run has read, in its receipts and its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from packstore.core.manifest import Skipped


@dataclass(slots=True)
class Tally:
    """Counts of samples. :meth:`add` adds up the tallies of batches, shards and interrupted runs.

    Attributes:
        entries: Number of entries that were read, including the skipped ones.
        source_bytes: Their bytes in the source.
        skipped: Samples left out by policy.
        counted: Number of records by option of the manifest: ``exif_oriented``, or a conversion from another mode
            without loss (:data:`packstore.images.losses.UNIFIED`).
        palette: Number of PNG files with a palette, by class number as text; class 0 without labels.
        kept: Number of progressive JPEG files that could not be made baseline and were kept unchanged, by reason.
    """

    entries: int = 0
    source_bytes: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    palette: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        # Read back from JSON, they are a tuple and dicts.
        self.skipped = list(self.skipped)
        self.counted, self.palette, self.kept = Counter(self.counted), Counter(self.palette), Counter(self.kept)

    def add(self, other: Tally) -> None:
        """Adds the counts of ``other``, whose samples come after those of this tally."""
        self.entries += other.entries
        self.source_bytes += other.source_bytes
        self.skipped += other.skipped
        self.counted.update(other.counted)
        self.palette.update(other.palette)
        self.kept.update(other.kept)


def sum_tallies(tallies: Iterable[Tally]) -> Tally:
    """Returns the sum of tallies, in their order."""
    total = Tally()
    for each in tallies:
        total.add(each)
    return total
