"""Sources that change the samples of another source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from packstore.core.errors import SourceError, UsageError, printable
from packstore.core.progress import ProgressCallback, no_progress
from packstore.sources.base import Entry, Source, SourceOptions, Survey, round_up_size
from packstore.sources.ledger import Claims, Role
from packstore.sources.listing import key_size
from packstore.sources.splits import UNASSIGNED, SplitPatterns, lower_known_split


class _OfWrapped:
    """Attribute or method of the wrapped source."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, wrapper: Any, owner: type) -> Any:
        return self if wrapper is None else getattr(wrapper._source, self._name)


class WrappedSource(Source):
    """Base of sources that wrap another source. The names here are those of the wrapped source; a subclass changes
    some. Methods that are not named here are those of :class:`Source`, not of the wrapped source."""

    survey: Any = _OfWrapped()
    entries: Any = _OfWrapped()
    fetch: Any = _OfWrapped()
    read: Any = _OfWrapped()
    locate: Any = _OfWrapped()
    pick_entries: Any = _OfWrapped()
    workers: Any = _OfWrapped()
    stamp: Any = _OfWrapped()
    close: Any = _OfWrapped()
    follow_store: Any = _OfWrapped()
    store_manifest: Any = _OfWrapped()
    annotation_frame: Any = _OfWrapped()
    further_file_name: Any = _OfWrapped()
    list_all_files: Any = _OfWrapped()
    expects_left: Any = _OfWrapped()
    count_left_parts: Any = _OfWrapped()
    asks_about_left: ClassVar[Any] = _OfWrapped()
    left_images: ClassVar[Any] = _OfWrapped()

    def __init__(self, source: Source, options: SourceOptions) -> None:
        super().__init__(source.path, options)
        self._source = source
        self.kind, self.normalization, self.evidence = source.kind, source.normalization, source.evidence

    @property
    def tree(self) -> Any:
        """Tree of the wrapped source; None if it has none."""
        return getattr(self._source, "tree", None)


class ChosenSplitsSource(WrappedSource):
    """Wraps a source, and assigns its samples to splits by patterns that match their keys: paths in the source.

    Samples without a match are in the split ``unassigned``, and a note says how many. Lists the wrapped source once for
    each split, and keeps its order within a split. A source that is a store is refused.
    """

    pick_entries = Source.pick_entries
    read_together: Any = _OfWrapped()
    nbytes: Any = _OfWrapped()
    claim_files: Any = _OfWrapped()
    reason_to_leave_out: Any = _OfWrapped()

    def __init__(self, source: Source, splits: Sequence[str]) -> None:
        super().__init__(source, replace(source.options, splits=tuple(splits)))
        self._patterns = SplitPatterns(splits)
        if source.store_manifest is not None:
            raise UsageError(
                f"{printable(str(self.path))} is a store, whose samples have their splits: leave splits out"
            )

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Surveys the wrapped source, and counts the samples of each split.

        Raises :class:`SourceError` for a pattern that no sample matches, and :class:`NotInSourceError` for an unknown
        ``split``.
        """
        survey = self._source.survey(None, progress)
        self.evidence = self._source.evidence  # which some sources know after their survey
        wanted = None if split is None else lower_known_split(split)
        counts, sizes, used = Counter[str](), Counter[int](), set[int | None]()
        size_bytes = key_bytes = 0
        claims = Claims()
        for entry in self._source.entries():
            used.add(self._patterns.find_number(entry.key))
            name = self._name(entry)
            counts[name] += 1
            if name == wanted:
                size_bytes += entry.size_bytes
                sizes[round_up_size(entry.size_bytes)] += 1
                key_bytes += key_size(entry.key)
                claims.claim(entry.key)
        unused = [each for number, each in enumerate(self._patterns.given) if number not in used]
        if unused:
            raise SourceError(
                f"{printable(str(self.path))}: no sample matches {printable(unused[0])!r} of splits; patterns match "
                f"paths from the top of the source, such as {printable(next(iter(self._source.entries())).key)}"
            )
        splits = {name: counts[name] for name in (*self._patterns.names, UNASSIGNED) if counts[name]}
        if rest := counts[UNASSIGNED]:
            note = f"no pattern of splits matches {rest:,} of the samples: their split is {UNASSIGNED}"
            survey = replace(survey, notes=(*survey.notes, note))
        if wanted is None:
            return replace(survey, splits=splits)
        if wanted not in splits:
            raise self.unknown_split_error(wanted, splits)
        for path in survey.ledger.names(Role.ANNOTATION):
            claims.claim(path, Role.ANNOTATION)
        share = splits[wanted] / max(1, survey.records)
        return replace(
            survey,
            splits={wanted: splits[wanted]},
            size_bytes=size_bytes,
            size_counts=sizes,
            key_bytes=key_bytes,
            value_bytes=int(survey.value_bytes * share),
            further_bytes=int(survey.further_bytes * share),
            ledger=self.ledger(claims, split),
        )

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """Yields the entries of one split, or of all, split after split."""
        names = (*self._patterns.names, UNASSIGNED)
        chosen = [name for name in names if split is None or name == lower_known_split(split)]
        if not chosen:
            raise self.unknown_split_error(split or "", names)
        return (
            entry._replace(split=name)
            for name in chosen
            for entry in self._source.entries()
            if self._name(entry) == name
        )

    def _name(self, entry: Entry) -> str:
        """Returns the split of an entry."""
        return self._patterns.find_split(entry.key) or UNASSIGNED
