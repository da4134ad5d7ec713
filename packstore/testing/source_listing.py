"""Part of :class:`SourceSuite`: tests of the listing of a source: entries, survey, splits, ledger, keys."""

from __future__ import annotations

import tracemalloc
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packstore.core.errors import NotInSourceError, PackstoreError, UsageError
from packstore.core.progress import Progress
from packstore.core.registry import SOURCES
from packstore.sources import Entry, Source, open_source
from packstore.sources.ledger import Role
from packstore.testing.source_base import FEW, SourceFixtures, files_at

_STRANGE = ("notes.odd", ".hidden", "Thumbs.db", "copy of it.odd", "LICENSE")


class SourceListingSuite(SourceFixtures):
    """Tests of the listing of a source; none reads an image."""

    def test_the_kind_is_recognised_and_can_be_named(self, path: Path) -> None:
        """Opening the path, with and without the kind's name, gives this kind."""
        kinds = [None, self.kind] if self.recognised else [self.kind]
        for kind in kinds:
            with closing(open_source(path, kind=kind, **self.options(path))) as source:
                assert (source.kind, source.path) == (self.kind, path)

    def test_the_kind_says_what_it_is(self, path: Path) -> None:
        """The kind has a help text, and refuses arguments for labels or arrays that it does not take."""
        kind = SOURCES[self.kind]
        assert kind.name == self.kind
        assert kind.help
        assert kind.help.isprintable()
        if not kind.takes_labels:
            with pytest.raises(UsageError, match="does not use labels"):
                open_source(path, kind=self.kind, labels=path)
        if not kind.takes_arrays:
            with pytest.raises(UsageError, match="does not use image_key"):
                open_source(path, kind=self.kind, image_key="x")

    def test_the_order_is_the_same_at_each_call(self, path: Path, source: Source) -> None:
        """Each listing has the same entries in the same order, also after opening the source again."""
        entries = list(source.entries())
        assert len(entries) >= 6
        assert list(source.entries()) == entries
        both = zip(source.entries(), source.entries(), strict=True)
        assert all(one == other for one, other in both)
        with closing(self.open(path)) as another:
            assert list(another.entries()) == entries

    def test_entries_need_no_survey_and_a_survey_no_entries(self, path: Path, source: Source) -> None:
        """Entries and survey do not depend on the order of the calls. A survey during a listing does not disturb the
        listing."""
        entries = list(source.entries())
        survey = source.survey()
        with closing(self.open(path)) as another:
            assert another.survey() == survey
            assert list(another.entries()) == entries
        for split in survey.splits:
            with closing(self.open(path)) as another:
                assert another.survey(split or None) == source.survey(split or None)
                listed = another.entries()
                begun = [next(listed)]
                another.survey()
                assert [*begun, *listed] == entries

    def test_a_survey_counts_the_entries(self, source: Source) -> None:
        """Numbers, sizes, splits, key bytes and labels of the survey agree with the entries."""
        survey, entries = source.survey(), list(source.entries())
        assert survey.records == len(entries)
        runs = [entries[i].split for i in range(len(entries)) if i == 0 or entries[i].split != entries[i - 1].split]
        assert runs == list(survey.splits)
        for split, count in survey.splits.items():
            assert sum(entry.split == split for entry in entries) == count
        if self.exact_sizes:
            assert sum(entry.size_bytes for entry in entries) == survey.size_bytes
        counted = sum(size * count for size, count in survey.size_counts.items())
        assert survey.size_bytes <= counted <= survey.size_bytes + 64 * survey.records
        assert sum(len(entry.key.encode("utf-8", "surrogateescape")) for entry in entries) == survey.key_bytes
        for number, column in enumerate(survey.labels):
            assert (column.kind, column.dtype, column.shape) == ("fixed", "int64", ())
            limit = 1 << 63 if column.classes is None else len(column.classes)
            assert all(0 <= entry.labels[number] < limit for entry in entries)
        assert {len(entry.labels) for entry in entries} == {len(survey.labels)}

    def test_the_ledger_adds_up(self, path: Path, source: Source) -> None:
        """The ledger counts every file once. Opening the source again gives the same ledger. The ledger of a source
        without files is empty."""
        if not self.has_files:
            assert source.survey().ledger.total == 0
            return
        ledger = source.survey().ledger
        assert ledger.count(Role.PACKED) > 0
        assert ledger.total == sum(ledger.suffixes.values())
        assert ledger.total in ({1, len(files_at(path))} if path.is_file() else {len(files_at(path))})
        assert sum(ledger.left.values()) == ledger.count(Role.LEFT)
        for role in (Role.ANNOTATION, Role.EVIDENCE, Role.LEFT):
            assert len(list(ledger.names(role))) == ledger.count(role)
        with closing(self.open(path)) as another:
            assert another.survey().ledger == ledger

    @pytest.mark.hypothesis
    def test_the_ledger_shows_what_comes_and_goes(self, path: Path, source: Source) -> None:
        """Removes files of the source and adds strange files. The ledger then has exactly the existing files, and
        leaves out the strange ones.

        If files were removed, opening may raise an error instead. Skipped for a source that is no folder of files.
        """
        if not self.has_files or not path.is_dir():
            pytest.skip("no files can be put beside it")
        before = source.survey().ledger
        left = {*before.names(Role.LEFT)}
        files = [file.relative_to(path) for file in files_at(path)]
        folders = sorted({file.parent for file in files})
        strange = st.tuples(st.sampled_from(folders), st.sampled_from(_STRANGE))

        @settings(max_examples=max(2, settings().max_examples // 4), suppress_health_check=list(HealthCheck))
        @given(st.sets(st.sampled_from(files), max_size=3), st.sets(strange, max_size=3))
        def check(gone: set[Path], put: set[tuple[Path, str]]) -> None:
            """Removes and adds files, compares the ledger, and restores the source."""
            added = {folder / name for folder, name in put} - set(files)
            with ExitStack() as undone:
                for number, file in enumerate(gone):
                    (path / file).rename(path.parent / f"away {number}")
                    undone.callback((path.parent / f"away {number}").rename, path / file)
                for file in added:
                    (path / file).write_text("strange")
                    undone.callback((path / file).unlink)
                try:
                    with closing(self.open(path)) as another:
                        ledger = another.survey().ledger
                except PackstoreError:
                    assert gone
                    return
            lies = {str(file) for file in (*files, *added) if file not in gone}
            named = [name for role in (Role.ANNOTATION, Role.EVIDENCE, Role.LEFT) for name in ledger.names(role)]
            assert len(set(named)) == len(named)
            assert {*named} <= lies
            assert ledger.total == len(lies) == ledger.count(Role.PACKED) + len(named)
            assert {*map(str, added)} <= {*ledger.names(Role.LEFT)}
            assert (ledger.used == before.used) == ({*map(str, gone)} <= left)
            assert (ledger.others == before.others) == (not added and left == {*ledger.names(Role.LEFT)})

        check()

    def test_a_survey_reports_its_progress(self, source: Source) -> None:
        """Progress of a survey never goes back, and ends with all records."""
        seen: list[Progress] = []
        survey = source.survey(progress=seen.append)
        assert {report.stage for report in seen} <= {"scan"}
        done = [report.done for report in seen]
        assert done == sorted(done)
        assert done[-1:] in ([], [survey.records])

    def test_one_split(self, source: Source) -> None:
        """Survey and entries of one split equal those of the whole source for this split."""
        survey, entries = source.survey(), list(source.entries())
        for split in filter(None, survey.splits):
            one = source.survey(split)
            assert dict(one.splits) == {split: survey.splits[split]}
            assert one.columns == survey.columns
            assert list(source.entries(split)) == [entry for entry in entries if entry.split == split]

    def test_an_unknown_split_is_refused_with_those_there_are(self, source: Source) -> None:
        """An unknown split raises :class:`NotInSourceError` that names the known ones."""
        known = ", ".join(filter(None, source.survey().splits)) or "it has none"
        for split in ("no such", ""):
            with pytest.raises(NotInSourceError, match=f"splits: {known}$"):
                source.survey(split)
            with pytest.raises(NotInSourceError, match=f"splits: {known}$"):
                source.entries(split)  # at once, not with the first entry

    def test_keys_are_unique_and_survive_bytes(self, source: Source) -> None:
        """Keys are unique, and converting them to bytes and back keeps them."""
        keys = [entry.key for entry in source.entries()]
        assert len(set(keys)) == len(keys)
        raw = [key.encode("utf-8", "surrogateescape") for key in keys]
        assert [data.decode("utf-8", "surrogateescape") for data in raw] == keys
        if self.undecodable_keys:
            assert any("\udc80" <= character <= "\udcff" for key in keys for character in key)

    def test_stamp_and_entries_show_a_change(self, path: Path) -> None:
        """An unchanged source has the same stamp and entries. A changed source has another stamp or other entries."""

        def state() -> tuple[str, list[Entry]]:
            """Returns stamp and entries of a new opening."""
            with closing(self.open(path)) as source:
                assert source.stamp() == source.stamp()
                return source.stamp(), list(source.entries())

        before = state()
        assert state() == before
        self.change(path)
        assert state() != before

    def test_entries_are_listed_lazily_in_bounded_memory(self, tmp_path: Path) -> None:
        """The memory of a listing grows by less than :attr:`bytes_per_sample` for each sample."""
        peaks = []
        for samples in (FEW, self.many):
            folder = tmp_path / f"{samples}"
            folder.mkdir()
            with closing(self.open(self.make(folder, samples))) as source:
                records = source.survey().records
                assert sum(1 for _ in source.entries()) == records  # fills the interpreter's caches first
                entries = source.entries()
                assert iter(entries) is entries
                tracemalloc.start()
                try:
                    assert sum(1 for _ in entries) == records
                    peaks.append(tracemalloc.get_traced_memory()[1])
                finally:
                    tracemalloc.stop()
        assert peaks[1] - peaks[0] < self.bytes_per_sample * self.many + (32 << 10)
