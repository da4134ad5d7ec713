"""A conversion of a dataset, or of a store with columns of every type, that was cut short resumes by index."""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packstore
from tests.internals import (
    COLUMNS,
    DestinationError,
    WorkDirectory,
    find_leftovers,
    list_runs,
    remove_leftover,
    work_path,
)
from tests.internals import base as column_module
from tests.internals import writer as lmdb_writer
from tests.makers.datasets import pixels
from tests.makers.interrupted import cut_short, take_small_steps
from tests.makers.samples import Voc, coco
from tests.makers.stores import content
from tests.makers.tools import load_tool

SUFFIXES = (".lmdb", ".h5", ".pth")
killing: Any = load_tool("killing.py")


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    take_small_steps(monkeypatch)
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


def cut(source: Any, destination: Path, after: int = 20, **options: Any) -> BaseException:
    error = cut_short(packstore.convert, source, destination, after=after, workers=1, **options)
    assert not destination.exists()
    return error


@pytest.mark.slow
@pytest.mark.sampled(1, per="suffix", fast=1)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("options", [{}, {"shard_size": 4000}, {"encoding": "uint8", "shard_size": 8000}])
@pytest.mark.parametrize("after", [15, 30, 40])
def test_a_map_style_dataset_goes_on_by_index(tmp_path: Path, suffix: str, options: dict[str, Any], after: int) -> None:
    """The store has the bytes of one that was never interrupted."""
    options = {"split": "train", "encoding": "original", "workers": 1} | options
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    packstore.convert(Counted(coco(40)), whole, **options)
    cut_short(packstore.convert, Counted(coco(40)), out, after=after, **options)
    data = Counted(coco(40))
    report = packstore.convert(data, out, **options)
    assert 0 < report.resumed <= after + 3
    assert content(out) == content(whole)
    probed = len(data.asked) - (40 - report.resumed)  # looked at first, to learn what the samples are
    assert data.asked[probed:] == list(range(report.resumed, 40))
    assert probed < 40
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([out.name, whole.name])


def keep_keys(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: sample[key] for key in ("key", "image")} for sample in samples]


def spoil(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    samples[5]["image"] = samples[30]["image"] = b"bad"
    return samples


SAMPLES: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "arrays as pixels": (lambda _: [{"image": pixels(8 + i % 3, 9, i)} for i in range(40)], {"encoding": "uint8"}),
    "arrays as JPEG": (lambda _: [{"image": pixels(8 + i % 3, 9, i)} for i in range(40)], {"encoding": "jpeg"}),
    "keys alone": (lambda _: keep_keys(coco(40)), {}),
    "skipped samples": (lambda _: spoil(coco(40)), {"on_error": "skip"}),
    "a store of every type": (lambda folder: make_store(folder / "coco.h5"), {"encoding": "original"}),
}


def make_store(path: Path) -> Path:
    if not path.exists():
        packstore.convert(coco(40), path, split="train")
    return path


@pytest.mark.slow
@pytest.mark.sampled(2, per="name")
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", SAMPLES)
def test_whatever_was_cut_short_goes_on(tmp_path: Path, name: str, suffix: str) -> None:
    make, options = SAMPLES[name]
    whole = packstore.convert(make(tmp_path), tmp_path / f"whole{suffix}", **options)
    cut(make(tmp_path), tmp_path / f"out{suffix}", **options)
    report = packstore.convert(make(tmp_path), tmp_path / f"out{suffix}", **options)
    assert 0 < report.resumed <= 24
    assert report.skipped == whole.skipped
    assert len(report.skipped) == (2 if name == "skipped samples" else 0)
    assert report.manifest.dataset_digest == whole.manifest.dataset_digest


@pytest.mark.slow
@pytest.mark.parametrize("shard_size", [None, 4000])
def test_large_arrays_go_on_to_the_byte(
    tmp_path: Path, shard_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an LMDB keeps them record by record."""
    monkeypatch.setattr(column_module, "_WHOLE_BYTES", 200)
    samples = [sample | {"array": np.full((4, 5), i, np.float32)} for i, sample in enumerate(coco(40))]
    options: dict[str, Any] = {"split": "train", "shard_size": shard_size}
    packstore.convert(samples, tmp_path / "whole.lmdb", **options)
    out = tmp_path / "out.lmdb"
    cut(samples, out, **options)
    assert 0 < packstore.convert(samples, out, **options).resumed <= 24
    with packstore.open(out) as store:
        assert next(store.parts()).manifest.column("array").one_by_one
        assert (store.item("array", 39) == 39).all()
    assert content(out) == content(tmp_path / "whole.lmdb")


def flip_one(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0x10
    file.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damage", "most"),
    [
        *((f"{name}.values", flip_one, 11) for name in ("boxes", "mask", "mask_shape")),
        ("captions.offsets", flip_one, 11),
        ("note.values", Path.unlink, 1),
        ("image_id.values", lambda file: file.write_bytes(file.read_bytes()[:1]), 1),
    ],
)
def test_damaged_values_end_what_is_taken_over(
    tmp_path: Path, name: str, damage: Callable[[Path], object], most: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole, out = tmp_path / "whole.h5", tmp_path / "out.h5"
    packstore.convert(coco(60), whole, split="train")
    cut(coco(60), out, 12, split="train")
    damage(list_runs(work_path(out))[-1] / COLUMNS / name)
    caplog.set_level(logging.INFO)
    report = packstore.convert(coco(60), out, split="train", workers=1)
    assert report.resumed <= most
    if damage is flip_one:
        assert report.resumed > 0
        assert f"going on from record {report.resumed}" in caplog.text
    assert content(out) == content(whole)


def test_what_is_left_can_be_removed(tmp_path: Path) -> None:
    cut(coco(60), tmp_path / "out.h5", 12)
    (leftover,) = find_leftovers(tmp_path)
    remove_leftover(leftover)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_iterable_starts_afresh_and_says_so(tmp_path: Path) -> None:
    error = cut(iter(coco(40)), tmp_path / "out.h5")
    assert list(tmp_path.iterdir()) == []
    assert error.__notes__ == [
        "an iterable cannot be read from the middle: nothing is kept, and the same call starts afresh"
    ]
    assert packstore.convert(iter(coco(40)), tmp_path / "out.h5").resumed == 0


@pytest.mark.slow
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
    cut(coco(40), tmp_path / "out.h5")
    with caplog.at_level(logging.WARNING, "packstore"):
        report = packstore.convert(change(coco(40)), tmp_path / "out.h5")
    assert report.resumed == 0
    assert "starting afresh" in caplog.text
    assert any(part in caplog.text for part in message.split("|"))


@pytest.mark.slow
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
