"""The splits of the records that a builder has appended."""

from __future__ import annotations

from packstore.core.errors import StoreError
from packstore.core.manifest import Split


class SplitRanges:
    """Consecutive ranges of records, one for each split. Either all records have a split or none.

    :meth:`refuse_split` checks this before records are added; :meth:`extend` checks nothing.

    Attributes:
        ranges: The splits so far, in order.
    """

    def __init__(self) -> None:
        self.ranges: list[Split] = []
        self._splitless = False

    @property
    def last_name(self) -> str | None:
        """Name of the split of the last record. None if no record has a split."""
        return self.ranges[-1].name if self.ranges else None

    def refuse_split(self, split: str) -> None:
        """Raises :class:`StoreError` if the next records cannot have this split, which may be ``""``.

        They cannot if the split has ended, or if only some records would have a split.
        """
        if split and not self._splitless:
            if any(each.name == split for each in self.ranges[:-1]):
                raise StoreError(f"records of split {split!r} must follow each other; {self.last_name!r} began")
        elif split or self.ranges:
            raise StoreError("either all records have a split or none")

    def extend(self, split: str, start: int, stop: int) -> None:
        """Adds the records ``start`` to ``stop - 1`` to a split, which may be ``""``. Call :meth:`refuse_split` before.

        A split without records is left out.
        """
        if not split:
            self._splitless = self._splitless or stop > start
        elif self.last_name == split:
            self.ranges[-1] = Split(split, self.ranges[-1].start, stop)
        elif stop > start:
            self.ranges.append(Split(split, start, stop))

    def ranges_within(self, start: int, stop: int) -> tuple[Split, ...]:
        """Returns the splits among the records ``start`` to ``stop - 1``, counted from ``start``."""
        return tuple(
            Split(each.name, max(each.start, start) - start, min(each.stop, stop) - start)
            for each in self.ranges
            if each.start < stop and each.stop > start
        )
