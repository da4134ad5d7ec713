"""A conversion of a dataset, or of a store with columns of every type, that was cut short goes on by index."""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packstore
from tests.internals import DestinationError, Progress, WorkDirectory
from tests.internals import base as column_module
from tests.internals import batches as record_packing
from tests.internals import journal as receipts
from tests.internals import writer as lmdb_writer
from tests.makers.datasets import pixels
from tests.makers.samples import Voc, coco
from tests.makers.stores import content
from tests.makers.tools import load_tool

SUFFIXES = (".lmdb", ".h5", ".pth")
killing: Any = load_tool("killing.py")


class CutError(BaseException):
    """What ends a run: not an Exception, as an interrupt is none."""


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receipt after each batch, three samples a batch, and small transactions."""
    monkeypatch.setattr(receipts, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(record_packing, "PASS_RECORDS", 3)
    monkeypatch.setattr(record_packing, "DECODE_RECORDS", 3)
    monkeypatch.setattr(lmdb_writer, "_TXN_BYTES", 1)


class Counted:
    """A map-style dataset that counts which samples were asked for."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return self.samples[index]


def cut_short(source: Any, destination: Path, after: int, **options: Any) -> BaseException:
    """Runs a conversion until ``after`` samples are packed; returns what ended it."""

    def progress(report: Progress) -> None:
        if report.stage == "pack" and report.done >= after:
            raise CutError

    with pytest.raises(CutError) as caught:
        packstore.convert(source, destination, progress=progress, **options)
    assert not destination.exists()
    return caught.value


@pytest.mark.sampled(1, per="suffix", fast=1)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("shard_size", [None, pytest.param(4000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("after", [15, pytest.param(30, marks=pytest.mark.slow), 40])
def test_a_map_style_dataset_goes_on_by_index(tmp_path: Path, suffix: str, shard_size: int | None, after: int) -> None:
    options: dict[str, Any] = {"split": "train", "shard_size": shard_size, "encoding": "original"}
    packstore.convert(coco(40), tmp_path / f"reference{suffix}", **options)
    out = tmp_path / f"out{suffix}"
    cut_short(Counted(coco(40)), out, after, **options)
    data = Counted(coco(40))
    report = packstore.convert(data, out, **options)
    assert 0 < report.resumed <= after + 3
    with packstore.open(out) as found, packstore.open(tmp_path / f"reference{suffix}") as wanted:
        assert found.manifest.dataset_digest == wanted.manifest.dataset_digest
        assert found.key(39) == wanted.key(39)
    probed = len(data.asked) - (40 - report.resumed)  # looked at first, to learn what the samples are
    assert data.asked[probed:] == list(range(report.resumed, 40))
    assert probed < 40
    assert packstore.verify(out).ok
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([out.name, f"reference{suffix}"])


@pytest.mark.parametrize("encoding", ["uint8", "jpeg"])
def test_encoded_images_go_on(tmp_path: Path, encoding: str) -> None:
    samples = [{"image": pixels(8 + i % 3, 9, i), "label": i} for i in range(40)]
    expected = packstore.convert(samples, tmp_path / "reference.h5", encoding=encoding).manifest.dataset_digest
    cut_short(samples, tmp_path / "out.h5", 20, encoding=encoding)
    report = packstore.convert(samples, tmp_path / "out.h5", encoding=encoding)
    assert 0 < report.resumed <= 24
    assert report.manifest.dataset_digest == expected


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_store_of_every_type_goes_on(tmp_path: Path, suffix: str) -> None:
    expected = packstore.convert(coco(40), tmp_path / "coco.h5", split="train").manifest.dataset_digest
    out = tmp_path / f"out{suffix}"
    cut_short(tmp_path / "coco.h5", out, 20, encoding="original")
    report = packstore.convert(tmp_path / "coco.h5", out, encoding="original")
    assert 0 < report.resumed <= 24
    assert report.manifest.dataset_digest == expected


@pytest.mark.slow
@pytest.mark.parametrize("shard_size", [None, 4000])
def test_large_arrays_go_on_to_the_byte(
    tmp_path: Path, shard_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an LMDB keeps them record by record."""
    monkeypatch.setattr(column_module, "_WHOLE_BYTES", 200)
    samples = [sample | {"array": np.full((4, 5), i, np.float32)} for i, sample in enumerate(coco(40))]
    options: dict[str, Any] = {"split": "train", "shard_size": shard_size}
    packstore.convert(samples, tmp_path / "reference.lmdb", **options)
    out = tmp_path / "out.lmdb"
    cut_short(samples, out, 20, **options)
    assert 0 < packstore.convert(samples, out, **options).resumed <= 24
    with packstore.open(out) as store:
        assert next(store.parts()).manifest.column("array").one_by_one
        assert (store.item("array", 39) == 39).all()
    assert content(out) == content(tmp_path / "reference.lmdb")


def test_keys_go_on_where_samples_have_nothing_else(tmp_path: Path) -> None:
    samples = [{key: sample[key] for key in ("key", "image")} for sample in coco(40)]
    cut_short(samples, tmp_path / "out.h5", 20)
    report = packstore.convert(samples, tmp_path / "out.h5")
    assert 0 < report.resumed <= 24
    with packstore.open(tmp_path / "out.h5") as store:
        assert [store.key(i) for i in range(40)] == [sample["key"] for sample in samples]


def test_skipped_samples_stay_skipped(tmp_path: Path) -> None:
    samples = coco(40)
    samples[5]["image"] = b"bad"
    samples[30]["image"] = b"bad"
    expected = packstore.convert(samples, tmp_path / "reference.h5", on_error="skip").manifest
    cut_short(samples, tmp_path / "out.h5", 20, on_error="skip")
    report = packstore.convert(samples, tmp_path / "out.h5", on_error="skip")
    assert report.resumed > 0
    assert [skipped.key for skipped in report.skipped] == ["0000000005", "0000000030"]
    assert report.manifest.dataset_digest == expected.dataset_digest


def test_an_iterable_starts_afresh_and_says_so(tmp_path: Path) -> None:
    error = cut_short(iter(coco(40)), tmp_path / "out.h5", 20)
    assert list(tmp_path.iterdir()) == []
    assert error.__notes__ == [
        "an iterable cannot be read from the middle: nothing is kept, and the same call starts afresh"
    ]
    assert packstore.convert(iter(coco(40)), tmp_path / "out.h5").resumed == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda samples: samples[:-1], "samples of the source"),
        (lambda samples: [samples[1], samples[0], *samples[2:]], "content of the source"),
        (lambda samples: [*samples[:-1], samples[-1] | {"image_id": 9}], "content of the source"),
        (lambda samples: [sample | {"more": 1} for sample in samples], "content of the source|columns"),
    ],
)
def test_a_dataset_that_changed_starts_afresh_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Any, message: str
) -> None:
    cut_short(coco(40), tmp_path / "out.h5", 20)
    with caplog.at_level(logging.WARNING, "packstore"):
        report = packstore.convert(change(coco(40)), tmp_path / "out.h5")
    assert report.resumed == 0
    assert "starting afresh" in caplog.text
    assert any(part in caplog.text for part in message.split("|"))


def test_a_forked_process_does_not_hold_the_lock(tmp_path: Path) -> None:
    """A worker that outlives a killed conversion for a moment does not keep the next one waiting."""
    work = WorkDirectory(tmp_path / "a.lmdb")
    ready, up = os.pipe()
    waits, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(up, b"x")
        os.read(waits, 1)
        os._exit(0)
    try:
        os.read(ready, 1)
        with pytest.raises(DestinationError, match="is being written by"):
            WorkDirectory(tmp_path / "a.lmdb")
        work.release()
        WorkDirectory(tmp_path / "a.lmdb").remove()
    finally:
        os.write(go, b"x")
        os.waitpid(child, 0)
        for descriptor in (ready, up, waits, go):
            os.close(descriptor)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_conversions_go_on(tmp_path: Path, rng: random.Random, suffix: str, workers: int) -> None:
    """Each killed at a random moment; then the same call completes the store."""
    data = Voc(tmp_path / "voc", 60)
    started = time.monotonic()
    expected = packstore.convert(data, tmp_path / f"reference{suffix}", split="train", encoding="original").manifest
    seconds = time.monotonic() - started
    out = tmp_path / f"out{suffix}"
    for _ in range(4):
        child = killing.in_child(
            lambda: packstore.convert(data, out, split="train", encoding="original", workers=workers)
        )
        time.sleep(rng.random() * 1.3 * seconds)
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        killing.wait_for_lock(out)
        if out.exists():
            break
    if not (complete := out.exists()):
        packstore.convert(data, out, split="train", encoding="original", workers=workers)
    with packstore.open(out) as store:
        assert store.manifest.dataset_digest == expected.dataset_digest
        assert np.array_equal(store.item("boxes", 59), data[59]["boxes"])
    assert packstore.verify(out).ok
    if not complete:
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["voc", out.name, f"reference{suffix}"])
