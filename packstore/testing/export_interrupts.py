"""Part of :class:`ExportSuite`: tests of exports that are interrupted or killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from packstore.core.progress import Progress
from packstore.exports import run
from packstore.exports.staging import ExportStaging
from packstore.packing.conversion import convert
from packstore.stores.places.leftovers import find_leftovers, remove_leftover
from packstore.stores.places.work import WorkDirectory, work_path
from packstore.testing.export_base import ExportFixtures, contents, files_of, picture
from packstore.testing.records import listing


class ExportInterruptsSuite(ExportFixtures):
    """Tests of interrupted runs of one kind of export."""

    @property
    def small_shards(self) -> dict[str, Any]:
        """Options that divide the 12 images into several shards. Empty for a kind without ``shard_size``."""
        sized = self.export_class.shard_bytes is not None and not self.export_class.one_file
        return {"shard_size": 1500} if sized else {}

    @pytest.mark.slow
    def test_an_interrupted_run_is_gone_on_with(
        self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A run that is interrupted several times resumes. The export equals the export of a whole run."""
        whole, out = self.destination(tmp_path, "whole"), self.destination(tmp_path)
        options = self.small_shards
        monkeypatch.setattr(run, "_CHUNK_RECORDS", 2)
        self.export(store, whole, **options)
        for stop in (0, 5, 9):
            with pytest.raises(KeyboardInterrupt):
                self.export(store, out, progress=Stop(stop), **options)
            assert not out.exists()
        assert self.export(store, out, **options).resumed > 0
        assert not work_path(out).exists()
        assert contents(out) == contents(whole)

    def test_a_run_that_was_killed_before_publishing_is_gone_on_with(
        self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A run killed before publishing resumes. The export equals the export of a whole run."""
        whole, out = self.destination(tmp_path, "whole"), self.destination(tmp_path)
        self.export(store, whole)
        monkeypatch.setattr(ExportStaging, "publish", kill)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt) as caught:
                self.export(store, out)
            assert "the same command goes on" in "".join(caught.value.__notes__)
        monkeypatch.undo()
        assert self.export(store, out).resumed > 0
        assert contents(out) == contents(whole)

    def test_a_damaged_receipt_is_not_believed(
        self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A run does not resume after a shard whose receipt is damaged. The export equals the export of a whole
        run."""
        whole, out = self.destination(tmp_path, "whole"), self.destination(tmp_path)
        self.export(store, whole)
        monkeypatch.setattr(ExportStaging, "publish", kill)
        with pytest.raises(KeyboardInterrupt):
            self.export(store, out)
        monkeypatch.undo()
        receipt = min(work_path(out).glob("*/parts/*.json"))
        receipt.write_bytes(receipt.read_bytes().replace(b'"records":', b'"records":1', 1))
        assert self.export(store, out).resumed == 0
        assert contents(out) == contents(whole)

    def test_a_run_that_was_killed_after_publishing_is_complete(
        self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The next run finds the published export, removes the work directory and changes nothing."""
        out = self.destination(tmp_path)
        monkeypatch.setattr(WorkDirectory, "remove", kill)
        with pytest.raises(KeyboardInterrupt):
            self.export(store, out)
        monkeypatch.undo()
        before = contents(out)
        assert work_path(out).exists()
        report = self.export(store, out)
        assert (report.resumed, report.manifest.records) == (12, 12)
        assert not work_path(out).exists()
        assert contents(out) == before

    def test_a_run_that_was_killed_after_replacing_another_export_is_complete(
        self, store: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The next run keeps the new export, and not the replaced export, which lies in the work directory."""
        out, whole = self.destination(tmp_path), self.destination(tmp_path, "whole")
        self.export(store, whole)
        for number, path in enumerate(sorted(file for file in folder.rglob("*") if file.is_file())):
            path.write_bytes(picture(50 + number, 20, 30, "PNG" if path.suffix == ".png" else "JPEG"))
        convert(folder, tmp_path / "old.lmdb", encoding=self.stored_encoding)
        self.export(tmp_path / "old.lmdb", out)
        monkeypatch.setattr(WorkDirectory, "remove", kill)
        with pytest.raises(KeyboardInterrupt):
            self.export(store, out, overwrite=True)
        monkeypatch.undo()
        for _ in range(2):
            assert contents(out) == contents(whole)
            assert self.export(store, out, overwrite=True).manifest.records == 12

    def test_a_published_export_that_is_gone_is_made_again(
        self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The next run exports everything again, if the published export was moved away."""
        out = self.destination(tmp_path)
        monkeypatch.setattr(WorkDirectory, "remove", kill)
        with pytest.raises(KeyboardInterrupt):
            self.export(store, out)
        monkeypatch.undo()
        out.rename(tmp_path / "elsewhere")
        assert self.export(store, out).resumed == 0
        assert {file.relative_to(out) for file in files_of(out)} == {
            file.relative_to(tmp_path / "elsewhere") for file in files_of(tmp_path / "elsewhere")
        }

    def test_what_an_interrupted_run_leaves_is_cleaned(
        self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """``clean`` finds and removes all leftovers of an interrupted run."""
        monkeypatch.setattr(run, "_CHUNK_RECORDS", 2)
        options = self.small_shards
        before = listing(tmp_path)
        with pytest.raises(KeyboardInterrupt):
            self.export(store, self.destination(tmp_path), progress=Stop(9), **options)
        (leftover,) = find_leftovers(tmp_path)
        remove_leftover(leftover)
        assert listing(tmp_path) == before


class Stop:
    """Progress callback that raises :class:`KeyboardInterrupt` as soon as more than ``done`` records are done."""

    def __init__(self, done: int) -> None:
        self.done = done

    def __call__(self, report: Progress) -> None:
        if report.done > self.done:
            raise KeyboardInterrupt


def kill(at: WorkDirectory | ExportStaging, *_: object) -> None:
    """Releases the lock of a work directory and raises :class:`KeyboardInterrupt`. Replaces a method that publishes or
    removes the directory."""
    (at.work if isinstance(at, ExportStaging) else at).release()
    raise KeyboardInterrupt
