"""A conversion of samples with many columns that was cut short goes on with the values that it had, to the byte."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import packstore
from tests.internals import COLUMNS, Progress, find_leftovers, journal, list_runs, remove_leftover, work_path
from tests.internals import batches as record_packing
from tests.makers.samples import coco
from tests.makers.stores import content


class CutError(BaseException):
    """What ends a run."""


class Samples:
    """A map-style dataset that notes which samples were read."""

    def __init__(self) -> None:
        self.samples = coco(60)
        self.read: set[int] = set()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read.add(index)
        return self.samples[index]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(record_packing, "PASS_RECORDS", 3)
    monkeypatch.setattr(record_packing, "DECODE_RECORDS", 3)


def convert(out: Path, cut: int | None = None, **options: Any) -> tuple[packstore.ConvertReport | None, set[int]]:
    def progress(report: Progress) -> None:
        if cut is not None and report.stage == "pack" and report.done >= cut:
            raise CutError

    samples, report = Samples(), None
    try:
        report = packstore.convert(samples, out, split="train", progress=progress, workers=1, **options)
    except CutError:
        assert not out.exists()
    return report, samples.read


def run_of(out: Path) -> Path:
    return list_runs(work_path(out))[-1]


@pytest.mark.slow
@pytest.mark.sampled(1, per="suffix")
@pytest.mark.parametrize("suffix", [".lmdb", ".h5", ".pth"])
@pytest.mark.parametrize("options", [{"shard_size": 3000}, {"encoding": "uint8", "shard_size": 8000}, {}])
def test_it_goes_on_with_the_values_that_it_had(tmp_path: Path, suffix: str, options: dict[str, Any]) -> None:
    whole = tmp_path / f"whole{suffix}"
    convert(whole, **options)
    out = tmp_path / f"out{suffix}"
    convert(out, 45, **options)
    report, read = convert(out, **options)
    assert content(out) == content(whole)
    assert report is not None
    if suffix == ".lmdb" and not options:  # all of it is less than a transaction
        assert report.resumed == 0
        return
    assert report.resumed >= 40
    assert len(read & set(range(report.resumed))) <= 32  # those that are looked at to see what they are
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([whole.name, out.name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["boxes.values", "captions.offsets", "mask.values", "mask_shape.values"])
def test_a_damaged_value_ends_what_is_taken_over(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    whole, out = tmp_path / "whole.h5", tmp_path / "out.h5"
    convert(whole)
    convert(out, 12)
    file = run_of(out) / COLUMNS / name
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0x10
    file.write_bytes(data)
    caplog.set_level(logging.INFO)
    report, _ = convert(out)
    assert report is not None
    assert 0 < report.resumed < 12
    assert f"going on from record {report.resumed}" in caplog.text
    assert content(out) == content(whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["note.values", "image_id.values"])
def test_values_that_are_gone_or_short(tmp_path: Path, name: str) -> None:
    whole, out = tmp_path / "whole.h5", tmp_path / "out.h5"
    convert(whole)
    for change in (Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:1])):
        convert(out, 12)
        change(run_of(out) / COLUMNS / name)
        report, _ = convert(out)
        assert report is not None
        assert report.resumed < 2
        assert content(out) == content(whole)
        out.unlink()


def test_what_is_left_can_be_removed(tmp_path: Path) -> None:
    convert(tmp_path / "out.h5", 12)
    (leftover,) = find_leftovers(tmp_path)
    remove_leftover(leftover)
    assert list(tmp_path.iterdir()) == []
