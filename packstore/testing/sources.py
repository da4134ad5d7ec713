"""The contract of a source as tests. Each kind inherits :class:`SourceSuite` and adds tests of its own."""

from __future__ import annotations

import pickle
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import pytest

from packstore.checking.verification import verify
from packstore.core.errors import CorruptRecordError, PackstoreError, SampleError, UsageError
from packstore.core.progress import Progress
from packstore.packing import batches as record_packing
from packstore.packing.conversion import convert
from packstore.sources import Source, open_source
from packstore.stores.places import resuming as journal
from packstore.testing.records import copy_damaged, open_files
from packstore.testing.source_listing import FEW, SourceListingSuite, copy_image, is_same_image

_LONG = 2000


class SourceSuite(SourceListingSuite):
    """Tests of one kind of source: of its listing, its images, damage, and conversions.

    A subclass makes a source and damages it, see :class:`packstore.testing.source_listing.SourceFixtures`.
    """

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
