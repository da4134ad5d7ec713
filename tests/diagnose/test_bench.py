"""``packstore bench``: the arithmetic with rates that are made up; runs over every encoding, none of them timed."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import packstore
from packstore.cli import cli
from packstore.training.augment import RandomCrop, RandomResizedCrop
from tests.internals import (
    AUGMENTS,
    BenchOptions,
    BenchReport,
    Clock,
    CorruptRecordError,
    DecodeError,
    EndToEnd,
    PackedDataset,
    PackstoreError,
    Progress,
    Rates,
    Trial,
    UsageError,
    _format_verdict,
    advise,
    bench,
    bench_report_rows,
    check_chart,
    choose_candidates,
    choose_random_records,
    compute_core_seconds,
    compute_efficiency,
    compute_loader_decode_rate,
    count_cores_for,
    find_ceilings,
    find_limiting_stage,
    make_augmentation,
    measure_reading,
    no_progress,
    trials,
)
from tests.makers import annotated
from tests.makers.datasets import make_folder, write_image

# One core: 1 ms to decode, 0.25 ms to augment, next to nothing to read.
JPEG = Rates(
    threads=2, cores=2, read_first=80e3, read_again=80e3, read=40e3, decode=1000, augment=4000, copy=64e3, loader=1550
)
QUICK: dict[str, Any] = {"seconds": 0.01, "batch_size": 4, "workers": 2, "size": 32}


# Arithmetic ---------------------------------------------------------------------------------------------------------


def test_decoding_is_the_limit_until_copying_is() -> None:
    verdict = find_limiting_stage(JPEG)
    assert verdict.stage == "decode"
    assert verdict.shares["decode"] == pytest.approx(1 / (1 + 0.25 + 0.025))
    assert sum(verdict.shares.values()) == pytest.approx(1)
    # 2 cores give 2 / 1.275 ms = 1,569 images/s at most, of which the loader reaches 1,550.
    assert compute_efficiency(JPEG) == pytest.approx(1550 * 1.275e-3 / 2)
    assert verdict.then == "copy"
    assert verdict.cores == count_cores_for(64e3, JPEG) == 83  # 64,000 / 775 a core = 82.6


def test_a_target_says_how_many_cores_are_needed() -> None:
    rates = replace(JPEG, target=4000.0)
    verdict = find_limiting_stage(rates)
    assert (verdict.stage, verdict.then, verdict.cores) == ("decode", "model", 6)  # 4,000 / 775 = 5.2
    (advice,) = advise(rates, verdict, [], format="lmdb", payload_bytes=1e5, disk_bytes=1e5)
    assert "6 cores" in advice.what


def test_a_target_that_is_reached_leaves_nothing_to_do() -> None:
    rates = replace(JPEG, target=1000.0)
    verdict = find_limiting_stage(rates)
    assert verdict.stage == "model"
    trials = [Trial("", 1500, 100), Trial("--encoding uint8", 9000, 500)]
    (advice,) = advise(rates, verdict, trials, format="hdf5", payload_bytes=1e5, disk_bytes=1e5)
    assert "nothing for loading" in advice.what


def test_a_disk_that_gives_less_than_the_cores_is_the_limit() -> None:
    rates = replace(JPEG, read_first=500.0, disk_share=1.0, loader=450.0)
    verdict = find_limiting_stage(rates)
    assert (verdict.stage, verdict.then, verdict.then_rate) == ("read", "read", 500.0)
    assert verdict.cores == 1
    trials = [
        Trial("", 1500, 100),
        Trial("--encoding jpeg --resize 256", 1500, 25),
        Trial("--encoding uint8", 9000, 500),
    ]
    found = advise(rates, verdict, trials, format="lmdb", payload_bytes=1e5, disk_bytes=1e5)
    # What has fewer bytes helps a disk; what is quicker to decode does not.
    assert [advice.options for advice in found] == ["--encoding jpeg --resize 256", "", ""]
    assert "page cache" in found[1].what
    assert "block=1024" in found[2].what
    assert found[0].why == "0.25 times the bytes; the pixels stay the same"
    # A store that stays in the page cache waits for the disk once.
    assert find_limiting_stage(replace(rates, held=True)).stage == "decode"


def test_the_page_cache_is_no_ceiling_and_a_quick_disk_neither() -> None:
    assert not replace(JPEG, read_first=500.0, disk_share=0.1).from_disk
    assert not replace(JPEG, disk_share=1.0).from_disk
    assert set(find_ceilings(JPEG)) == {"copy"}
    assert set(find_ceilings(replace(JPEG, read_first=500.0, disk_share=1.0, target=5.0))) == {"copy", "read", "model"}


def test_augmenting_or_copying_is_the_limit_where_it_is_slowest() -> None:
    assert find_limiting_stage(replace(JPEG, decode=None, loader=6000.0)).stage == "augment"
    measure_copying = replace(JPEG, copy=900.0, on_gpu=True, loader=880.0)
    assert find_limiting_stage(measure_copying).stage == "copy"
    (advice,) = advise(
        measure_copying, find_limiting_stage(measure_copying), [], format="pth", payload_bytes=1, disk_bytes=1
    )
    assert "resident=True" in advice.what


def test_what_is_resident_has_no_stages() -> None:
    rates = replace(JPEG, resident=True, loader=1e6)
    verdict = find_limiting_stage(rates)
    assert (verdict.stage, verdict.shares, verdict.cores, verdict.then) == ("loader", {}, None, None)
    assert find_limiting_stage(replace(rates, target=100.0)).stage == "model"


def test_more_threads_are_advised_only_where_there_are_cores_for_them() -> None:
    rates = replace(JPEG, threads=2, cores=8)
    (advice,) = advise(rates, find_limiting_stage(rates), [], format="lmdb", payload_bytes=1e5, disk_bytes=1e5)
    assert advice.what == "use more threads: workers=8"
    assert advise(JPEG, find_limiting_stage(JPEG), [], format="lmdb", payload_bytes=1e5, disk_bytes=1e5) == []


def test_a_packing_is_advised_when_it_was_faster_the_fastest_first() -> None:
    trials = [
        Trial("", 1000, 100),
        Trial("--encoding jpeg --resize 256", 1600, 25, changes="they shrink"),
        Trial("--encoding original --index", 1100, 101),
        Trial("--encoding uint8", 8000, 150, "resident"),
    ]
    found = advise(JPEG, find_limiting_stage(JPEG), trials, format="lmdb", payload_bytes=1e5, disk_bytes=1e5)
    assert [advice.options for advice in found] == ["--encoding uint8", "--encoding jpeg --resize 256"]
    assert found[0].why == "8.0 times as fast on a sample, 1.5 times the bytes; the pixels stay the same"
    assert found[1].why == "1.6 times as fast on a sample, 0.25 times the bytes; they shrink"
    assert "device memory" in found[0].what


def test_small_records_in_lmdb_are_said_to_waste_the_disk() -> None:
    for format, disk, count in (("lmdb", 4096, 1), ("lmdb", 3000, 0), ("hdf5", 4096, 0)):
        assert (
            len(advise(JPEG, find_limiting_stage(JPEG), [], format=format, payload_bytes=2200, disk_bytes=disk))
            == count
        )


def test_a_loader_far_below_its_stages_says_so() -> None:
    rates = replace(JPEG, loader=500.0)
    assert (
        "nothing else runs"
        in advise(rates, find_limiting_stage(rates), [], format="pth", payload_bytes=1, disk_bytes=1)[-1].what
    )


positive = st.floats(1, 1e7)
ANY_RATES = st.builds(
    Rates,
    threads=st.integers(1, 256),
    cores=st.integers(1, 256),
    read_first=positive,
    read_again=positive,
    read=positive,
    decode=st.none() | positive,
    augment=st.none() | positive,
    copy=positive,
    loader=positive,
    disk_share=st.floats(0, 2),
    held=st.booleans(),
    target=st.none() | positive,
    on_gpu=st.booleans(),
    resident=st.booleans(),
)


@given(ANY_RATES)
def test_the_line_on_cores_knows_the_target(rates: Rates) -> None:
    report = SimpleNamespace(verdict=find_limiting_stage(rates), rates=rates)
    lines = _format_verdict(cast("BenchReport", report))
    (cores,) = [line for line in lines if line.startswith("cores")] or [""]
    assert (cores == "") == rates.resident
    if rates.target is not None:
        assert "give --" not in cores
        missed = not rates.resident and max(rates.loader, *find_ceilings(rates).values()) < rates.target
        assert ("no number of cores is enough" in cores) >= missed


@given(ANY_RATES)
def test_there_is_a_verdict_for_any_rates(rates: Rates) -> None:
    verdict = find_limiting_stage(rates)
    assert verdict.why
    if rates.resident:
        return
    assert verdict.stage in {*compute_core_seconds(rates), "copy", "read", "model"}
    assert sum(verdict.shares.values()) == pytest.approx(1)
    assert verdict.then_rate == min(find_ceilings(rates).values())
    assert verdict.cores is not None
    # As many cores give the rate, and one fewer does not.
    a_core = compute_efficiency(rates) / sum(compute_core_seconds(rates).values())
    assert verdict.cores * a_core >= verdict.then_rate * (1 - 1e-6)
    assert verdict.cores == 1 or (verdict.cores - 1) * a_core < verdict.then_rate * (1 + 1e-6)
    assert (verdict.stage == "model") == (rates.target is not None and rates.loader >= rates.target)
    advise(rates, verdict, [], format="lmdb", payload_bytes=1, disk_bytes=1)


def test_decoding_of_a_part_is_what_the_threads_spent_without_the_augmenting() -> None:
    def spent(seconds: float) -> EndToEnd:
        return EndToEnd(0, 0, seconds, "streaming")

    assert compute_loader_decode_rate(1000, 4000, spent(1.2e-3)) == pytest.approx(1000 / 0.95)
    assert compute_loader_decode_rate(1000, 4000, spent(0.75e-3)) == pytest.approx(2000)
    assert compute_loader_decode_rate(1000, 4000, spent(9e-3)) == 1000  # never less than whole images give
    assert compute_loader_decode_rate(1000, 4000, spent(0.2e-3)) == pytest.approx(100_000)  # never nothing
    assert compute_loader_decode_rate(1000, None, spent(0)) == 1000


# What is measured ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder_to_time(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("bench") / "images", per_class=3)


STORES: dict[str, tuple[str, dict[str, Any]]] = {
    "original": ("a.lmdb", {}),
    "jpeg": ("a.h5", {"encoding": "jpeg", "resize": 40}),
    "uint8 of any size": ("a.h5", {"encoding": "uint8"}),
    "uint8 of one size": ("a.pth", {"encoding": "uint8", "size": 32}),
    "float16": ("a.pth", {"encoding": "float16", "size": 40}),
    "bfloat16": ("a.lmdb", {"encoding": "bfloat16", "size": 32}),
    "shards": ("a.lmdb", {"shard_size": 20_000}),
    "without an index": ("a.lmdb", {"index": False}),
}


@pytest.mark.slow
def test_operations_as_text_and_boxes(tmp_path: Path) -> None:
    packstore.convert(annotated.yolo(tmp_path / "yolo"), tmp_path / "a.lmdb")  # some images have no boxes
    text = "RandomResizedCrop(8), RandomHorizontalFlip()"
    options = BenchOptions(split="train", augment=text, tries=False, **QUICK | {"size": None})
    report = bench(tmp_path / "a.lmdb", options)
    assert report.augment == text
    for wrong in ({"augment": "flip"}, {"augment": "Resize()"}, {"augment": text, "size": 8}):
        with pytest.raises(UsageError, match=r"RandomResizedCrop\(224\)|Resize\(\)|size= is for"):
            BenchOptions(**wrong)


@pytest.mark.slow
@pytest.mark.parametrize("augment", AUGMENTS)
@pytest.mark.parametrize("kind", STORES)
def test_every_encoding(kind: str, augment: str, folder_to_time: Path, tmp_path: Path) -> None:
    name, options = STORES[kind]
    path = packstore.convert(folder_to_time, tmp_path / name, **options).destination
    report = bench(path, BenchOptions(split="train", augment=augment, tries=False, **QUICK))
    assert report.records == 9
    assert (report.rates.decode is None) == (options.get("encoding", "original") in ("uint8", "float16", "bfloat16"))
    names = [stage.name for stage in report.stages]
    assert names[0] == "read"
    assert names[-2:] == ["copy", "end to end"]
    assert all(rate is None or rate > 0 for stage in report.stages for rate in (stage.one, stage.all))
    assert report.rates.resident == ("size" in options)
    check_json(report)
    assert report.verdict.why in bench_report_rows(report).text


def check_json(report: BenchReport) -> None:
    found = json.loads(json.dumps(bench_report_rows(report).values))
    assert set(found) == {
        *("path", "split", "format", "encoding", "records", "record_bytes", "disk_bytes_per_record", "image_size"),
        *("augment", "options", "rates", "stages", "verdict", "trials", "advice"),
    }
    assert found["rates"]["loader"] > 0
    assert set(found["verdict"]) == {"stage", "why", "shares", "cores", "then", "then_rate"}
    assert all(set(stage) == {"name", "one", "all", "note"} for stage in found["stages"])


@pytest.mark.slow
def test_other_operations_of_a_trial_are_told(tmp_path: Path) -> None:
    """Small files are cropped to 224 by the question, and their pixels of one size to that."""
    for number in range(6):
        write_image(tmp_path / "images" / "a" / f"{number}.jpg", 32, 32, number)
    path = packstore.convert(tmp_path / "images", tmp_path / "small.lmdb", index=False).destination
    report = bench(path, BenchOptions(**QUICK))
    now, *others = report.trials
    assert now.augment == ""
    told = {trial.how: trial.augment for trial in others}
    assert told["--encoding uint8 --size 32x32"] == "random crop to 32 (padding 4) and flip"
    assert told["--encoding original --index"] == ""
    assert "random crop to 32 (padding 4) and flip" in " ".join(bench_report_rows(report).text.split())


def test_a_store_of_one_record(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "images", splits=(), per_class=1)
    for extra in ("bee", "cat"):
        for file in (folder / extra).iterdir():
            file.unlink()
        (folder / extra).rmdir()
    path = packstore.convert(folder, tmp_path / "one.h5").destination
    report = bench(path, BenchOptions(tries=False, **{**QUICK, "workers": 1}))
    assert report.records == 1
    assert "1 record," in bench_report_rows(report).text


@pytest.mark.slow
def test_samples_are_packed_in_other_ways_and_nothing_stays_behind(
    folder_to_time: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packstore.convert(folder_to_time, tmp_path / "a.lmdb").destination
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    stages: list[str] = []
    report = bench(path, BenchOptions(split="train", **{**QUICK, "size": 20}), lambda p: stages.append(p.stage))
    ways = [trial.how for trial in report.trials]
    assert ways[0] == ""
    assert ways[-2:] == ["--encoding jpeg --resize 23", "--encoding uint8 --resize 23"]
    assert report.trials[-1].record_bytes > report.trials[-2].record_bytes
    assert stages[0] == "read"
    assert stages[-1] == "try --encoding uint8 --resize 23"
    assert list((tmp_path / "scratch").iterdir()) == []
    check_json(report)
    assert "tried with 9 images" in bench_report_rows(report).text


def test_candidates_depend_on_the_images(folder_to_time: Path, tmp_path: Path) -> None:
    def ways(manifest: Any, sizes: list[tuple[int, int]], crop: int | None) -> list[str]:
        return [c.how for c in choose_candidates(manifest, sizes, crop) if "--index" not in c.how]

    files = packstore.convert(folder_to_time, tmp_path / "a.lmdb").manifest
    assert ways(files, [(500, 375), (400, 600)], 224) == [
        "--encoding jpeg --resize 256",
        "--encoding uint8 --resize 256",
    ]
    assert ways(files, [(260, 300)], 224) == ["--encoding uint8"]  # not much larger than what is kept
    assert ways(files, [(500, 375)], None) == ["--encoding uint8"]  # whole images: shrinking would change them
    assert ways(files, [(32, 32)] * 3, 32) == ["--encoding uint8 --size 32x32"]
    assert ways(files, [], 224) == []
    pixels = packstore.convert(folder_to_time, tmp_path / "a.h5", encoding="uint8").manifest
    assert ways(pixels, [(500, 375)], 224) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simclr", "detr"])
def test_recipes_with_views_and_of_many_sizes_are_measured(folder_to_time: Path, tmp_path: Path, name: str) -> None:
    packstore.convert(folder_to_time, tmp_path / "a.lmdb")
    report = bench(
        tmp_path / "a.lmdb", BenchOptions(split="train", augment=name, tries=False, **QUICK | {"size": None})
    )
    stages = [stage.name for stage in report.stages]
    assert ("view views × 2" in stages) == (name == "simclr")
    assert "augment" in stages
    assert all(stage.one is None or stage.one > 0 for stage in report.stages)
    assert report.rates.loader > 0


@pytest.mark.slow
def test_the_augmentation_is_what_training_would_do(folder_to_time: Path, tmp_path: Path) -> None:
    def of(name: str, options: BenchOptions, **how: Any) -> Any:
        manifest = packstore.convert(folder_to_time, tmp_path / name, overwrite=True, **how).manifest
        return make_augmentation(manifest, options)[0].get("augment", ())

    assert of("a.lmdb", BenchOptions())[0] == RandomResizedCrop(224)
    assert of("a.h5", BenchOptions(), encoding="uint8", size=32)[0] == RandomCrop(32, padding=4)
    assert of("a.h5", BenchOptions(size=16), encoding="uint8", size=32)[0] == RandomResizedCrop(16)
    assert of("a.h5", BenchOptions(augment="none"), encoding="uint8", size=32) == ()
    assert len(of("a.lmdb", BenchOptions(augment="none"))) == 1


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "images", splits=(), per_class=1, suffixes=(".jpg",))
    path = packstore.convert(folder, tmp_path / "a.h5").destination
    data = bytearray(path.read_bytes())
    start = data.index((folder / "bee" / "000.jpg").read_bytes())
    data[start : start + 200] = bytes(200)
    path.write_bytes(data)
    with pytest.raises((DecodeError, CorruptRecordError), match=r"record 1 .*bee/000\.jpg"):
        bench(path, BenchOptions(tries=False, **QUICK))


def test_reading_ends_with_the_store_and_covers_it(folder_to_time: Path, tmp_path: Path) -> None:
    path = packstore.convert(folder_to_time, tmp_path / "a.lmdb").destination
    dataset = PackedDataset(path, "val")
    assert sorted(choose_random_records(dataset, 100)) == list(range(9, 18))
    assert len(choose_random_records(dataset, 4)) == len(set(choose_random_records(dataset, 4))) <= 4
    found = measure_reading(Clock(0.01, 1, no_progress), dataset, 3)
    assert min(found.first, found.again, found.one) > 0


def test_the_clock_ends_when_there_is_no_more_work() -> None:
    told: list[Progress] = []
    calls: list[int] = []

    def work(number: int) -> int:
        calls.append(number)
        return 1 if number < 5 else 0

    assert Clock(60.0, 3, told.append).measure_rate("stage", work, threads=2) > 0
    assert sorted(calls) == list(range(7))
    assert told == [Progress("stage", 0, 3, 0)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers should be a whole number of at least 1, got 0"),
        ({"seconds": 0.0}, "seconds should be above 0"),
        ({"target": -1.0}, "target should be above 0"),
        ({"target": float("nan")}, "target should be a finite number .*, got nan"),
        ({"augment": "some"}, "augment should be crop, none or operations: .*RandomHorizontalFlip.*got 'some'"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BenchOptions(**options)


def test_torch_has_its_threads_back(folder_to_time: Path, tmp_path: Path) -> None:
    path = packstore.convert(folder_to_time, tmp_path / "a.pth", encoding="uint8", size=32).destination
    before = torch.get_num_threads()
    bench(path, BenchOptions(split="train", **QUICK))
    assert torch.get_num_threads() == before


# The command --------------------------------------------------------------------------------------------------------


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "packstore", "bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ))


@pytest.mark.slow
def test_the_command(folder_to_time: Path, tmp_path: Path) -> None:
    path = packstore.convert(folder_to_time, tmp_path / "a.lmdb").destination
    done = run(path, "--seconds", "0.01", "--batch-size", "8", "--step-ms", "4", "--json", "--no-tries")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["split"] == "train"  # of several splits the one that is trained with
    assert found["options"]["target"] == pytest.approx(2000)
    for arguments, message in (
        (["--step-ms", "1", "--target", "1"], "give one of them"),
        (["--split", "test"], "no split 'test'; splits: train, val"),
        (["--plot", tmp_path / "x.txt"], "--plot writes .png"),
        (["--plot", tmp_path / "gone" / "x.png"], "there is no directory"),
    ):
        failed = CliRunner().invoke(cli, ["bench", str(path), *map(str, arguments)])
        assert failed.exit_code == 2 or isinstance(failed.exception, UsageError)
        assert message in f"{failed.output} {failed.exception}"


def test_a_plot_without_matplotlib_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PackstoreError, match=r"pip install matplotlib"):
        check_chart(tmp_path / "a.png")


@pytest.mark.slow
def test_a_plot(folder_to_time: Path, tmp_path: Path) -> None:
    from tests.internals import plot_report

    pytest.importorskip("matplotlib")

    path = packstore.convert(folder_to_time, tmp_path / "a.lmdb").destination
    plot_report(bench(path, BenchOptions(split="train", **QUICK)), tmp_path / "a.png")
    from PIL import Image

    with Image.open(tmp_path / "a.png") as image:
        assert np.asarray(image).std() > 1


# tools/bench/peers.py ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_table_of_peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools" / "bench"))
    report = importlib.import_module("peers_report")

    def row(label: str, rate: float, **more: Any) -> dict[str, Any]:
        runs = {"images_per_second": rate, "runs": [rate, rate + 1], "cores_busy": 2.0, "memory_mb": 300.0}
        kind = {"label": label, "ours": label.startswith("packstore"), "limit": label.startswith("bare")}
        return {**runs, **kind, "packing_s": None, "bytes": None, "cold": None, **more}

    rows = [
        row("packstore", 900.0, bytes=5e7, packing_s=0.5, cold=70.0),
        row("packstore s", 1500.0),
        row("other", 500.0),
    ]
    workload = {"title": "JPEG", "work": "crop", "images": 500, "rows": [*rows, row("bare", 2000.0)]}
    scale = dict.fromkeys(("open_ms", "first_batch_ms", "images_per_second", "memory_mb", "bytes", "packing_s"), 2.5)
    results = {
        "machine": "2 cores",
        "how": "medians",
        "workloads": [{**workload, "skipped": [{"name": "gone", "reason": "not installed"}]}],
        "scale": [{"records": 10_000, "format": "lmdb", **scale}],
    }
    lines = report.markdown(results).splitlines()
    assert "| packstore | 900 | 900 – 901 |  | 2.00 | 300 | 0.50 | 50.0 | 100.0 | 70 |" in lines
    assert any(line.startswith("| other | 500 | 500 – 501 | 3.00 |") for line in lines)  # by the best of ours
    assert any(line.startswith("| *bare* | 2,000 |") for line in lines)
    assert "skipped: gone (not installed)" in lines
    assert "| 10,000 | lmdb | 2.5 | 2.5 | 2 | 2.5 | 0.0 | 2.5 |" in lines
    assert json.loads(report.write(results, tmp_path / "out")[0].read_text()) == results


@pytest.mark.slow
@pytest.mark.parametrize("indexed", [True, False])
def test_the_sample_is_packed_as_the_store_is(
    folder_to_time: Path, tmp_path: Path, indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def convert(*paths: Any, **options: Any) -> Any:
        asked.append(options.get("index"))
        return packstore.convert(*paths, **options)

    monkeypatch.setattr(trials, "convert", convert)
    path = packstore.convert(folder_to_time, tmp_path / "a.lmdb", index=indexed).destination
    report = bench(path, BenchOptions(split="train", **{**QUICK, "size": 20}))
    assert asked[0] == indexed
    assert ("--encoding original --index" in [trial.how for trial in report.trials]) == (not indexed)
