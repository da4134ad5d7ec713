"""The contract of a source as tests. Each kind inherits :class:`SourceSuite` and adds tests of its own."""

from __future__ import annotations

import os
import pickle
import shutil
import tarfile
import tempfile
import threading
import tracemalloc
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packstore.checking.verification import verify
from packstore.core.errors import CorruptRecordError, NotInSourceError, PackstoreError, SampleError, UsageError
from packstore.core.progress import Progress
from packstore.core.registry import SOURCES
from packstore.packing import batches as record_packing
from packstore.packing.conversion import convert
from packstore.sources import Entry, Source, open_source
from packstore.sources.ledger import Role
from packstore.stores.places import resuming as journal
from packstore.testing.records import copy_damaged, open_files

FEW = 12
_STRANGE = ("notes.odd", ".hidden", "Thumbs.db", "copy of it.odd", "LICENSE")
_LONG = 2000


def files_at(path: Path) -> list[Path]:
    """Lists all files at or below a path without packstore's code. Members of a tar or zip are paths within the
    archive. Follows links."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return [path / info.filename for info in archive.infolist() if not info.is_dir()]
    if path.is_file() and tarfile.is_tarfile(path):
        with tarfile.open(path, ignore_zeros=True) as tar:
            return [path / info.name for info in tar if not info.isdir()]
    if path.is_file():
        return [path]
    walked = os.walk(path, followlinks=True)
    return sorted(Path(folder, name) for folder, _, names in walked for name in names)


def copy_image(image: Any) -> Any:
    """Returns a copy of an image that does not depend on its source."""
    return image.copy() if isinstance(image, np.ndarray) else bytes(image)


def is_same_image(one: Any, other: Any) -> bool:
    """Tells if two images of a source are equal: bytes, or arrays of one shape and dtype."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and bytes(one) == bytes(other)


class SourceSuite:
    """Tests of one kind of source: of its listing, its images, damage, and conversions. A subclass makes a source and
    damages it.

    Attributes:
        kind: The name of the kind in the registry.
        recognised: The kind is recognised by its path; False if ``--source`` has to name it.
        exact_sizes: ``Entry.size_bytes`` is the exact size of each image, and the survey has their sum.
        undecodable_keys: Keys can have bytes that are not UTF-8, and :meth:`make` makes at least one such key.
        has_files: The source consists of files that its ledger lists; False for a store.
        many: Number of samples for measuring the memory of listing.
        bytes_per_sample: Most memory that listing may take for each sample; a list of all entries takes 300 or more.
        damages: Number of random damages to test.
    """

    kind: ClassVar[str]
    recognised: ClassVar[bool] = True
    exact_sizes: ClassVar[bool] = True
    undecodable_keys: ClassVar[bool] = True
    has_files: ClassVar[bool] = True
    many: ClassVar[int] = 2000
    bytes_per_sample: ClassVar[int] = 100
    damages: ClassVar[int] = 30

    def make(self, folder: Path, samples: int) -> Path:
        """Makes a source of about ``samples`` samples, at least six, in the empty ``folder``. Returns the path to open.

        All images must be decodable and different. A subclass must define this method.
        """
        raise NotImplementedError

    def options(self, path: Path) -> Mapping[str, Any]:
        """Returns further arguments of :func:`open_source`, such as ``labels``. By default none."""
        return {}

    def change(self, path: Path) -> None:
        """Changes an image, a label or a key of the source on disk. A subclass must define this method."""
        raise NotImplementedError

    def spoil(self, path: Path, entry: Entry) -> bool:
        """Makes the image of one sample unreadable without changing the listing. By default returns False: that is
        impossible."""
        return False

    def enlarge(self, path: Path, entry: Entry) -> bool:
        """Makes the file of one sample larger than ``max_file_bytes(1)``. By default returns False: images are not
        files."""
        return False

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """Path of a source with few samples."""
        folder = tmp_path / "source"
        folder.mkdir()
        return self.make(folder, FEW)

    @pytest.fixture
    def source(self, path: Path) -> Iterator[Source]:
        """Open source with few samples; closed after the test."""
        with closing(self.open(path)) as source:
            yield source

    def open(self, path: Path, **more: Any) -> Source:
        """Opens the source. Names its kind only if the kind is not recognised."""
        return open_source(path, kind=None if self.recognised else self.kind, **self.options(path), **more)

    # The listing

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

    # Reading and packing

    def test_images_are_what_the_survey_says(self, source: Source) -> None:
        """Images have the encoding, shape and size that survey and entries state, and are all different."""
        survey = source.survey()
        images = set()
        for entry in source.entries():
            image = source.image(entry)
            if isinstance(image, np.ndarray):
                assert survey.encoding not in ("original", "jpeg")
                assert survey.shape in (None, image.shape)
                assert image.flags.c_contiguous
                images.add(image.tobytes())
            else:
                assert survey.encoding in ("original", "jpeg")
                assert not self.exact_sizes or len(image) == entry.size_bytes
                images.add(bytes(image))
        assert len(images) == survey.records

    def test_an_entry_is_read_by_any_opening(self, path: Path, source: Source) -> None:
        """Another opening reads the same image for a pickled entry."""
        entries = list(source.entries())
        with closing(self.open(path)) as another:
            for entry in reversed(entries):
                assert is_same_image(another.image(pickle.loads(pickle.dumps(entry))), source.image(entry))

    def test_what_is_read_together_is_what_is_read(self, source: Source) -> None:
        """``read_together`` returns for each entry the image that ``image`` returns, or None."""
        entries = list(source.fetch(source.entries()))
        together = source.read_together(entries)
        assert len(together) == len(entries)
        for entry, image in zip(entries, together, strict=True):
            assert image is None or is_same_image(image, source.image(entry))

    def test_what_is_located_is_what_is_read(self, path: Path, source: Source) -> None:
        """The file and offset of ``locate`` hold the bytes of the image. Ignores images without a place."""
        for entry in source.fetch(islice(source.entries(), FEW)):
            place, image = source.locate(entry), source.image(entry)
            if place is None or not isinstance(image, bytes):
                continue
            assert place.state is not None or Path(place.path).is_absolute()
            with Path(place.path).open("rb") as file:
                file.seek(place.offset)
                data = file.read(len(image) if place.within is None else place.within)
            # Linking refuses an image that lies beyond the file's end.
            assert data == image if place.within is None else len(data) == place.within

    def test_several_threads_read_at_once(self, source: Source) -> None:
        """Four threads that read all images in random order get the right ones."""
        entries = list(source.entries())
        expected = [copy_image(source.image(entry)) for entry in entries]
        start = threading.Barrier(4)

        def read_all(thread: int) -> bool:
            """Tells if all images, read in random order, are right."""
            start.wait()
            order = np.random.default_rng(thread).permutation(len(entries)).tolist()
            return all(is_same_image(source.image(entries[i]), expected[i]) for i in order)

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(read_all, range(4)))

    def test_closing_twice_and_reading_after_it(self, source: Source) -> None:
        """A second close does nothing. An image outlives its source. Reading after closing returns the image or raises
        :class:`PackstoreError`."""
        entry = next(source.entries())
        image = source.image(entry)
        expected = copy_image(image)
        source.close()
        source.close()
        assert is_same_image(image, expected)  # an image outlives its source
        with suppress(PackstoreError):
            assert is_same_image(source.image(entry), expected)

    def test_nothing_stays_open(self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A closed source leaves no open files."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        source = self.open(path)
        with closing(source):
            source.survey()
            for entry in source.entries():
                source.image(entry)
        del source
        assert open_files(tmp_path) == []

    def test_a_sample_that_cannot_be_read_is_named(self, path: Path) -> None:
        """Reading a spoiled sample raises an error with its key. Other samples are still read.

        Skipped if :meth:`spoil` returns False.
        """
        with closing(self.open(path)) as source:
            good = {entry.key: copy_image(source.image(entry)) for entry in source.entries()}
            spoiled = list(source.entries())[2]
        if not self.spoil(path, spoiled):
            pytest.skip("a single sample cannot be spoiled")
        with closing(self.open(path)) as source:
            entries = list(source.entries())
            assert [entry.key for entry in entries] == list(good)
            assert source.survey().records == len(entries)
            for entry in entries:
                if entry.key != spoiled.key:
                    assert is_same_image(source.image(entry), good[entry.key])
                    continue
                with pytest.raises(PackstoreError) as caught:
                    source.image(entry)
                assert isinstance(caught.value, SampleError | CorruptRecordError)
                assert caught.value.key == spoiled.key
                assert str(caught.value).isprintable()

    def test_damage_is_said_in_one_line(self, path: Path, tmp_path: Path) -> None:
        """Random damage to a file raises no other errors than packstore's, each of one line. Reading does not wait for
        a pipe."""
        random = Random(self.kind)
        for number in range(self.damages):
            copy = tmp_path / f"damaged {number}"
            what = copy_damaged(tmp_path / "source", copy, random)
            for kind in (None, self.kind):
                said = ""
                try:
                    self.use(copy / path.relative_to(tmp_path / "source"), kind)
                except PackstoreError as error:
                    said = str(error)
                except Exception as error:
                    error.add_note(f"{kind}, {what}")
                    raise
                assert not said or (said.isprintable() and len(said) < _LONG), (what, said)
            shutil.rmtree(copy)

    def use(self, path: Path, kind: str | None) -> None:
        """Reads up to 120 samples of the source as a conversion does, skipping bad ones. Raises :class:`PackstoreError`
        if the source is damaged."""
        with closing(open_source(path, kind=kind, **self.options(path))) as source:
            source.survey()
            for entry in islice(source.entries(), 10 * FEW):
                with suppress(SampleError, CorruptRecordError):
                    source.read(entry)
            source.stamp()

    def test_a_file_too_large_for_its_pixels_is_not_read(self, path: Path) -> None:
        """A file larger than ``max_pixels`` allows raises :class:`SampleError` with its key. Skipped if :meth:`enlarge`
        returns False."""
        with closing(self.open(path)) as source:
            large = list(source.entries())[2]
        if not self.enlarge(path, large):
            pytest.skip("its images are no files")
        with closing(self.open(path, max_pixels=1)) as source:
            for entry in source.entries():
                if entry.key == large.key:
                    with pytest.raises(SampleError, match="max_pixels") as caught:
                        source.image(entry)
                    assert caught.value.key == large.key
                else:
                    source.image(entry)

    def test_a_number_of_pixels_that_is_none(self, path: Path) -> None:
        """Values of ``max_pixels`` that are no positive whole numbers raise :class:`UsageError`."""
        for wrong in (0, -1, 1.5, True):
            with pytest.raises(UsageError, match="max_pixels"):
                self.open(path, max_pixels=wrong)

    def test_it_packs_and_the_store_holds_it(self, path: Path, tmp_path: Path) -> None:
        """Converting the source works, and verifying the store against it finds no problem."""
        options = {"source_kind": None if self.recognised else self.kind, **self.options(path)}
        report = convert(path, tmp_path / "packed.h5", **options)
        assert report.manifest.origin.kind == self.kind
        with closing(self.open(path)) as source:
            assert report.manifest.records == source.survey().records
        checked = verify(tmp_path / "packed.h5", decode=True, against=path, **options)
        assert checked.problems == ()

    def test_an_interrupted_conversion_goes_on_to_the_same_bytes(
        self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A conversion that was interrupted halfway resumes. Its store equals the store of a whole run.

        Skipped if the conversion ends before it can be interrupted.
        """
        options = {"source_kind": None if self.recognised else self.kind, **self.options(path)}
        monkeypatch.setattr(journal, "EVERY_SECONDS", 0.0)
        monkeypatch.setattr(record_packing, "PASS_RECORDS", 2)
        whole = convert(path, tmp_path / "whole.h5", **options).manifest

        def cut(report: Progress) -> None:
            """Interrupts the conversion after half of the records."""
            if report.stage == "pack" and report.done >= whole.records // 2:
                raise _InterruptionError

        with suppress(_InterruptionError):
            convert(path, tmp_path / "cut.h5", progress=cut, **options)
            pytest.skip("it was packed before it could be interrupted")
        convert(path, tmp_path / "cut.h5", **options)
        assert (tmp_path / "cut.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()


class _InterruptionError(BaseException):
    """Error that interrupts a run. No handler of :class:`Exception` catches it."""
