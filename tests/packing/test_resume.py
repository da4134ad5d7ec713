"""A conversion that was cut short goes on from where it was, or starts afresh and says why; the store is the same."""

from __future__ import annotations

import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from PIL import Image

import packstore
from tests.internals import (
    RECEIPT,
    STORE,
    DestinationError,
    find_leftovers,
    list_runs,
    read_receipt,
    remove_leftover,
    work_path,
)
from tests.internals import builder_publish as publish
from tests.internals import journal as receipts
from tests.internals import work_directory as work
from tests.makers.command import run as run_command
from tests.makers.datasets import make_folder, write_image
from tests.makers.interrupted import CutError, cut_short, take_small_steps
from tests.makers.stores import content

SUFFIXES = (".lmdb", ".h5", ".pth")


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    take_small_steps(monkeypatch)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "photos")  # 24 images, 12 of them in train


def cut(source: Path, destination: Path, after: int, **options: Any) -> Path:
    """Runs a conversion until ``after`` images are packed; returns the directory of that run."""
    error = cut_short(packstore.convert, source, destination, after=after, **options)
    assert "goes on from there" in error.__notes__[0]
    assert not destination.exists()
    return list_runs(work_path(destination))[-1]


def die_when_done(monkeypatch: pytest.MonkeyPatch, source: Path, destination: Path, **options: Any) -> None:
    """Runs a conversion that is killed between the name and the cleaning up."""

    def killed(self: work.WorkDirectory) -> None:
        self.release()
        raise CutError

    with monkeypatch.context() as patch:
        patch.setattr(work.WorkDirectory, "remove", killed)
        with pytest.raises(CutError):
            packstore.convert(source, destination, **options)


@pytest.fixture
def reference(photos: Path, tmp_path: Path) -> Any:
    def convert(suffix: str, **options: Any) -> dict[str, bytes]:
        path = tmp_path / f"reference{suffix}"
        if path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        packstore.convert(photos, path, **options)
        return content(path)

    return convert


@pytest.mark.slow
@pytest.mark.sampled(2, per="suffix")
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "options",
    [
        {"encoding": "original"},
        {"encoding": "original", "shard_size": 2000},
        {"encoding": "uint8"},
        {"encoding": "jpeg", "shard_size": 2000},
        {"encoding": "float16", "size": 16},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
@pytest.mark.parametrize("after", [3, 17, 24])
def test_it_goes_on_and_ends_with_the_same_bytes(
    photos: Path, tmp_path: Path, reference: Any, suffix: str, options: dict[str, Any], after: int
) -> None:
    expected = reference(suffix, **options)
    out = tmp_path / f"out{suffix}"
    cut(photos, out, after, **options)
    report = packstore.convert(photos, out, **options)
    assert content(out) == expected
    # LMDB has what the last transaction of 4 MiB has; all this is less.
    unsharded_lmdb = suffix == ".lmdb" and "shard_size" not in options
    assert (report.resumed == 0) if unsharded_lmdb else (0 < report.resumed <= after + 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["photos", f"reference{suffix}", out.name])


@pytest.mark.slow
def test_lmdb_goes_on_from_its_last_transaction(
    photos: Path, tmp_path: Path, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.internals import writer as lmdb_writer

    monkeypatch.setattr(lmdb_writer, "_TXN_BYTES", 1)
    expected = reference(".lmdb")
    cut(photos, tmp_path / "out.lmdb", 12)
    report = packstore.convert(photos, tmp_path / "out.lmdb")
    assert report.resumed >= 12
    assert content(tmp_path / "out.lmdb") == expected


@pytest.mark.slow
def test_cut_short_again_and_again(photos: Path, tmp_path: Path, reference: Any) -> None:
    expected, out = reference(".h5"), tmp_path / "out.h5"
    for after in (6, 3, 12, 9, 18):
        run = cut(photos, out, after)
        # The run that got furthest is kept, whichever that was.
        found = [read_receipt(r) for r in list_runs(run.parent)]
        assert max(r.records for r in found if r is not None) >= max(6, after)
    assert packstore.convert(photos, out).resumed >= 18
    assert content(out) == expected


@pytest.mark.slow
def test_shards_are_taken_over_as_they_are(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.pth"
    run = cut(photos, out, 20, encoding="original", shard_size=2000)
    receipt = read_receipt(run)
    assert receipt is not None
    assert len(receipt.shards or ()) > 2
    inodes = [(run / STORE / shard.name).stat().st_ino for shard in receipt.shards or ()]
    report = packstore.convert(photos, out, encoding="original", shard_size=2000)
    assert [(out / shard.name).stat().st_ino for shard in report.manifest.shards[: len(inodes)]] == inodes


def warning(caplog: pytest.LogCaptureFixture) -> str:
    return " ".join(r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)


@pytest.mark.slow
@pytest.mark.sampled(fast=3)
@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ({"encoding": "jpeg", "quality": 80}, {"encoding": "jpeg", "quality": 90}, "options: quality was 80, is 90"),
        ({"encoding": "uint8", "size": 16}, {"encoding": "uint8", "size": 24}, "options: size was 16, is 24"),
        ({}, {"encoding": "jpeg"}, "encoding was original, is jpeg"),
        ({}, {"shard_size": 2000}, "shard size was None, is 2000"),
        ({}, {"split": "val"}, "samples of the source: train was 12, is None"),
        ({"check": "none"}, {"check": "decode"}, "check was none, is decode"),
        ({}, {"restart": True}, "--restart was given"),
    ],
)
def test_other_options_start_afresh_and_say_why(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, first: Any, second: Any, reason: str
) -> None:
    out = tmp_path / "out.h5"
    run = cut(photos, out, 6, **first)
    run.with_name("run-00009").mkdir()  # a later run that was ended before its first receipt
    report = packstore.convert(photos, out, **second)
    assert report.resumed == 0
    assert "starting afresh" in warning(caplog)
    assert re.search(reason, warning(caplog))
    assert not work_path(out).exists()


@pytest.mark.slow
@pytest.mark.parametrize("second", [{"workers": 1}, {"on_error": "skip"}, {"overwrite": True}])
def test_what_does_not_change_the_store_goes_on(photos: Path, tmp_path: Path, second: Any) -> None:
    cut(photos, tmp_path / "out.h5", 6)
    assert packstore.convert(photos, tmp_path / "out.h5", **second).resumed >= 6


def change(folder: Path, what: str) -> None:
    first = folder / "train" / "ant" / sorted(p.name for p in (folder / "train" / "ant").iterdir())[0]
    if what == "touched":
        os.utime(first, ns=(1, 1))
    elif what == "grown":
        first.write_bytes(first.read_bytes() + b"\0")
    elif what == "added":
        write_image(folder / "train" / "ant" / "aaa.png", 9, 9, 99)
    elif what == "removed":
        first.unlink()
    else:
        first.rename(first.with_name(f"zzz{first.suffix}"))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["touched", "grown", "added", "removed", "renamed"])
def test_a_changed_source_starts_afresh_and_says_why(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str, reference: Any
) -> None:
    out = tmp_path / "out.pth"
    cut(photos, out, 6, encoding="original")
    change(photos, what)
    report = packstore.convert(photos, out, encoding="original")
    assert report.resumed == 0
    assert "source" in warning(caplog)
    assert content(out) == reference(".pth", encoding="original")


@pytest.mark.slow
def test_files_of_one_size_and_age_that_were_exchanged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As bitmaps out of an archive are: neither their sizes nor their times of modification tell them apart."""
    folder = make_folder(tmp_path / "data", size=(20, 20), suffixes=(".bmp",))
    for path in folder.rglob("*.bmp"):
        os.utime(path, ns=(1, 1))
    for out in (tmp_path / "out.h5", tmp_path / "out.lmdb"):
        cut(folder, out, 6)
        one, other = folder / "train" / "ant" / "000.bmp", folder / "train" / "bee" / "000.bmp"
        aside = one.rename(tmp_path / "aside")
        other.rename(one)
        aside.rename(other)
        assert packstore.convert(folder, out).resumed == 0
        assert "changed" in warning(caplog)
        with packstore.open(out) as reader:
            assert bytes(reader.read(0)) == one.read_bytes()


@pytest.mark.slow
def test_a_change_behind_what_was_packed_does_not_matter(photos: Path, tmp_path: Path, reference: Any) -> None:
    cut(photos, tmp_path / "out.h5", 6)
    last = sorted(p for p in (photos / "val").rglob("*") if p.is_file())[-1]
    os.utime(last, ns=(1, 1))
    assert packstore.convert(photos, tmp_path / "out.h5").resumed >= 6
    assert content(tmp_path / "out.h5") == reference(".h5")


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["journal", "receipt", "owner"])
def test_damaged_notes_are_not_believed(photos: Path, tmp_path: Path, name: str, reference: Any) -> None:
    out = tmp_path / "out.h5"
    run = cut(photos, out, 12)
    path = run.parent / name if name == "owner" else run / name
    if name == "owner":
        path.write_bytes(b"")  # killed between making it and writing to it
        shutil.rmtree(run)
    else:
        flip(path, path.stat().st_size // 2)
    assert packstore.convert(photos, out).resumed == 0
    assert content(out) == reference(".h5")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".h5", ".pth"])
def test_a_damaged_record_ends_what_is_taken_over(
    photos: Path, tmp_path: Path, suffix: str, reference: Any, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / f"out{suffix}"
    expected = reference(suffix, encoding="original")
    run = cut(photos, out, 12, encoding="original")
    image = sorted(p for p in (photos / "train").rglob("*") if p.is_file())[4].read_bytes()
    flip(run / STORE, (run / STORE).read_bytes().index(image) + 100)
    caplog.set_level(logging.INFO)
    assert packstore.convert(photos, out, encoding="original").resumed == 4
    assert "going on from record 4" in caplog.text
    assert content(out) == expected


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_damaged_shard_ends_what_is_taken_over(photos: Path, tmp_path: Path, suffix: str, reference: Any) -> None:
    out, options = tmp_path / f"out{suffix}", {"encoding": "original", "shard_size": 2000}
    expected = reference(suffix, **options)
    run = cut(photos, out, 20, **options)
    receipt = read_receipt(run)
    assert receipt is not None
    path = run / STORE / receipt.shards[1].name
    flip(path / "data.mdb" if path.is_dir() else path, -1)
    assert packstore.convert(photos, out, **options).resumed == receipt.shards[0].records
    assert content(out) == expected


@pytest.mark.slow
def test_a_shard_of_another_run_is_closed(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(photos, tmp_path / "out.pth", 20, encoding="original", shard_size=2000)
    other = Mock()
    monkeypatch.setattr(receipts, "open_reader", lambda path: other)
    assert packstore.convert(photos, tmp_path / "out.pth", encoding="original", shard_size=2000).resumed == 0
    other.close.assert_called_once_with()


@pytest.mark.slow
def test_skipped_samples_stay_skipped(photos: Path, tmp_path: Path) -> None:
    names = sorted(p for p in (photos / "train").rglob("*") if p.is_file())
    names[1].write_bytes(b"no image")
    names[7].write_bytes(b"")
    expected = packstore.convert(photos, tmp_path / "reference.h5", on_error="skip")
    cut(photos, tmp_path / "out.h5", 12, on_error="skip")
    report = packstore.convert(photos, tmp_path / "out.h5", on_error="skip")
    assert report.resumed >= 10
    assert report.skipped == expected.skipped
    assert len(report.skipped) == 2
    assert content(tmp_path / "out.h5") == content(tmp_path / "reference.h5")


@pytest.mark.slow
def test_with_skipped_samples_and_another_policy_it_starts_afresh(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sorted(p for p in (photos / "train").rglob("*") if p.is_file())[1].write_bytes(b"no image")
    cut(photos, tmp_path / "out.h5", 12, on_error="skip")
    with pytest.raises(packstore.SampleError):
        packstore.convert(photos, tmp_path / "out.h5")
    assert "skipped 1 bad sample" in warning(caplog)


@pytest.mark.slow
@pytest.mark.sampled(fast=2)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("overwrite", [False, True])
def test_killed_between_the_name_and_the_cleaning_up(
    photos: Path, tmp_path: Path, suffix: str, overwrite: bool, monkeypatch: pytest.MonkeyPatch, reference: Any
) -> None:
    out = tmp_path / f"out{suffix}"
    if overwrite:
        packstore.convert(photos, out, encoding="jpeg")

    die_when_done(monkeypatch, photos, out, encoding="original", overwrite=overwrite)
    assert (list_runs(work_path(out))[-1] / RECEIPT).exists()
    before = out.stat().st_ino
    with pytest.raises(DestinationError, match="made by another conversion"):
        packstore.convert(photos, out, encoding="uint8")
    report = packstore.convert(photos, out, encoding="original", overwrite=overwrite)
    assert report.resumed == 24
    assert out.stat().st_ino == before
    assert not work_path(out).exists()
    assert content(out) == reference(suffix, encoding="original")


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True])
def test_complete_is_only_what_the_source_still_gives(
    photos: Path, tmp_path: Path, overwrite: bool, monkeypatch: pytest.MonkeyPatch, reference: Any
) -> None:
    out = tmp_path / "out.h5"
    die_when_done(monkeypatch, photos, out)
    change(photos, "touched")  # of the same size
    if overwrite:
        assert packstore.convert(photos, out, overwrite=True).resumed == 0
        assert content(out) == reference(".h5")
    else:
        with pytest.raises(DestinationError, match="files of the source have changed since"):
            packstore.convert(photos, out)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_damaged_store_is_not_taken_for_the_one_that_replaces_it(
    photos: Path, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch, reference: Any
) -> None:
    """The run that was to replace it was killed with its receipt written and its own, equal store not yet in place."""
    out = tmp_path / f"out{suffix}"
    packstore.convert(photos, out, encoding="original")
    data = out / "data.mdb" if out.is_dir() else out
    record = packstore.open(out).read(5)
    flip(data, data.read_bytes().index(bytes(record)) + len(record) // 2)

    def killed(*_: object, **__: object) -> None:
        raise CutError

    with monkeypatch.context() as patch:
        patch.setattr(publish.Staging, "publish", killed)
        patch.setattr(publish.Staging, "discard", publish.Staging.keep)
        with pytest.raises(CutError):
            packstore.convert(photos, out, encoding="original", overwrite=True)
    assert read_receipt(list_runs(work_path(out))[-1]).sealed is not None  # type: ignore[union-attr]
    packstore.convert(photos, out, encoding="original", overwrite=True)
    assert content(out) == reference(suffix, encoding="original")


@pytest.mark.slow
@pytest.mark.sampled(fast=2)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("by", ["clean", "convert"])
def test_a_store_that_was_set_aside_comes_back(
    photos: Path, tmp_path: Path, suffix: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where two names cannot be exchanged in one step, the old store is nowhere else for a moment."""
    out = tmp_path / f"out{suffix}"
    packstore.convert(photos, out, encoding="jpeg")
    before = content(out)
    left = cut(photos, tmp_path / f"other{suffix}", 12, encoding="original")
    run = left.parent.rename(work_path(out)) / left.name
    owner = (run.parent / "owner").read_text("ascii")
    (run.parent / "owner").write_text(owner.replace(f"other{suffix}", out.name).ljust(len(owner)), "ascii")
    out.rename(run / "store-old")
    if by == "clean":
        (found,) = find_leftovers(tmp_path)
        remove_leftover(found)
        assert content(out) == before
    else:
        with pytest.raises(DestinationError, match="exists already"):
            packstore.convert(photos, out, encoding="original")
        assert content(out) == before
    assert not (run / "store-old").exists()


def test_a_short_run_that_fails_leaves_nothing(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "EVERY_SECONDS", 3600.0)

    error = cut_short(packstore.convert, photos, tmp_path / "out.h5", after=12)
    assert not hasattr(error, "__notes__")
    assert [p.name for p in tmp_path.iterdir()] == ["photos"]


def test_leftovers_are_found_and_nothing_else(photos: Path, tmp_path: Path) -> None:
    run = cut(photos, tmp_path / "out.lmdb", 12)
    (tmp_path / ".mine.packstore").mkdir()
    (tmp_path / ".other.lmdb.packstore").mkdir()
    shutil.copy(run.parent / "owner", tmp_path / ".other.lmdb.packstore" / "owner")  # the owner of another name
    (tmp_path / ".link.h5.packstore").symlink_to(run.parent)
    empty, found = find_leftovers(tmp_path)
    assert (empty.path.name, found.path) == (".mine.packstore", run.parent)
    assert found.owner is not None
    assert found.owner.pid == os.getpid()
    (run / "notes.txt").write_text("mine")
    with pytest.raises(DestinationError, match="also holds files that packstore did not write"):
        remove_leftover(found)
    assert (run / "notes.txt").read_text() == "mine"
    (run / "notes.txt").unlink()
    remove_leftover(found)
    assert not run.parent.exists()
    assert (tmp_path / ".other.lmdb.packstore" / "owner").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "value"),
    [("destination", r'"\ud800"'), ("pid", "1e999"), ("started", "1e999"), ("started", "NaN"), ("started", "1e300")],
)
def test_an_owner_that_packstore_cannot_have_written(photos: Path, tmp_path: Path, field: str, value: str) -> None:
    """Somebody else's directory under such a name hinders neither the cleaning up of others nor the packing."""
    fields = {"what": '"packstore work directory"', "destination": '"a.h5"', "pid": "1", "host": '"x"', "started": "1"}
    (tmp_path / ".a.h5.packstore").mkdir()
    text = ", ".join(f'"{name}": {each}' for name, each in (fields | {field: value}).items())
    (tmp_path / ".a.h5.packstore" / "owner").write_text(f"{{{text}}}")
    cut(photos, tmp_path / "out.h5", 6)
    assert [found.path.name for found in find_leftovers(tmp_path)] == [".out.h5.packstore"]
    assert run_command("clean", "--yes", tmp_path).returncode == 0
    assert not (tmp_path / ".out.h5.packstore").exists()
    with pytest.raises(packstore.DestinationError, match="holds files that packstore did not write"):
        packstore.convert(photos, tmp_path / "a.h5")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["original", "uint8"])
@pytest.mark.parametrize("suffix", [".h5", ".lmdb"])
def test_images_with_a_palette_are_counted_once(tmp_path: Path, suffix: str, encoding: str) -> None:
    for name in ("ant", "bee"):
        for number in range(9):
            path = tmp_path / "set" / name / f"{number}.png"
            write_image(path, 20, 20, number)
            if name == "ant" or number:
                Image.open(path).quantize(8).save(path)
    options = {"encoding": encoding}
    cut(tmp_path / "set", tmp_path / f"a{suffix}", 5, **options)
    cut(tmp_path / "set", tmp_path / f"a{suffix}", 13, **options)
    report = packstore.convert(tmp_path / "set", tmp_path / f"a{suffix}", **options)
    assert report.palette == ("ant",)
