"""Conversions to URLs: the same bytes as by one machine, whoever is killed, and whatever is done twice."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import packstore
from packstore.objects import ObjectStore, open_objects
from tests.internals import (
    GRACE_SECONDS,
    ConvertOptions,
    DestinationError,
    LocalRunner,
    ProcessRunner,
    Progress,
    SampleError,
    ShardTable,
    SharedJob,
    SharedRun,
    SourceError,
    StoreError,
    TaskReceipt,
    UsageError,
    driver,
    find_newest_version,
    find_unneeded,
)
from tests.internals import remote_publish as publish_module
from tests.internals import scratch as scratch_module
from tests.makers.clusters import KillingObjects, Twice, assert_same, drive, expected_objects, objects_at, plan_for
from tests.makers.command import run
from tests.makers.datasets import make_folder
from tests.makers.images import tiny

PASSING: dict[str, Any] = {"shard_size": 30_000}
ENCODINGS: dict[str, dict[str, Any]] = {
    "original": {"encoding": "original", **PASSING},
    "original without index": {"encoding": "original", "index": False, **PASSING},
    "baseline": {"encoding": "original", "progressive": "baseline", **PASSING},
    "jpeg": {"encoding": "jpeg", "resize": 32, "shard_size": 4000},
    "uint8": {"encoding": "uint8", "size": 16, "shard_size": 5 * 768},
    "ragged": {"encoding": "uint8", "max_side": 40, "shard_size": 20_000},
    "float16": {"encoding": "float16", "size": 16, "shard_size": 7000, "normalize": "auto"},
    "bfloat16": {"encoding": "bfloat16", "size": 16, "shard_size": 7000},
    "float32": {"encoding": "float32", "size": 16, "shard_size": 14000},
}
SUFFIXES = ("lmdb", "h5", "pth")


class EndOfDriverError(BaseException):
    """Ends a driver as a kill does: nothing is tidied up at the destination."""


@pytest.fixture(scope="module")
def folder_to_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("photos"), per_class=4)


@pytest.fixture(scope="module")
def whole(folder_to_pack: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one machine makes of it."""
    store = tmp_path_factory.mktemp("whole") / "x.h5"
    packstore.convert(folder_to_pack, store, **PASSING)
    return store


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"{(tmp_path / 'objects').as_uri()}/x.h5"


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where tasks have their folders; workers that are killed leave theirs."""
    path = tmp_path / "scratch"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return path


def dying(after: int) -> Callable[[Progress], None]:
    """Progress that ends the driver at its call number ``after`` in the stage of packing."""
    calls = iter(range(after + 1))

    def progress(report: Progress) -> None:
        if report.stage == "pack" and next(calls) == after:
            raise EndOfDriverError

    return progress


def begin(folder: Path, url: str, after: int = 1, **options: Any) -> None:
    """Runs a driver that dies at its call of progress number ``after``."""
    with pytest.raises(EndOfDriverError):
        drive(folder, url, dying(after), **PASSING, **options)


@pytest.mark.slow
def test_the_same_bytes(folder_to_pack: Path, whole: Path, url: str) -> None:
    report = packstore.convert(folder_to_pack, url, **PASSING)
    assert_same(url, whole)
    local = packstore.convert(folder_to_pack, whole.parent / "again.h5", **PASSING)
    assert report.manifest == local.manifest
    assert str(report.destination) == url
    for name in ("source_bytes", "skipped", "ledger", "kept", "palette", "oriented", "resumed"):
        assert getattr(report, name) == getattr(local, name), name
    with packstore.open(url) as remote, packstore.open(whole) as there:
        assert [bytes(remote.read(i)) for i in range(len(remote))] == [bytes(there.read(i)) for i in range(len(there))]


@pytest.mark.slow
@pytest.mark.sampled(2, fast=0)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_same_bytes_by_processes(folder_to_pack: Path, tmp_path: Path, encoding: str, suffix: str) -> None:
    options = ENCODINGS[encoding]
    store, url = tmp_path / f"x.{suffix}", f"{tmp_path.as_uri()}/objects/x.{suffix}"
    packstore.convert(folder_to_pack, store, **options)
    packstore.convert(folder_to_pack, url, cluster="processes:2", workers=1, **options)
    assert_same(url, store)


def test_folders_of_tasks_are_left_alone_while_these_run(scratch: Path) -> None:
    """A task removes what killed ones left, and no other's folder, at whatever moment it looks."""
    (scratch / "packstore-convert-x-foreign").mkdir()
    left = scratch / "packstore-convert-x-left"
    left.mkdir()
    (left / scratch_module._SCRATCH_LOCK).touch()
    real, seen = fcntl.flock, []

    def looking(file: Any, operation: int) -> None:
        if not operation & fcntl.LOCK_NB:
            scratch_module._remove_scratch(scratch, "packstore-convert-x-")
            seen.append(sorted(path.name.rpartition("-")[0] for path in scratch.iterdir()))
        real(file, operation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", looking)
        with scratch_module.scratch_folder("convert-x") as folder, scratch_module.scratch_folder("convert-x") as other:
            assert folder.is_dir()
            assert other.is_dir()
    assert seen == [["packstore-convert-x", "packstore-new"], ["packstore-convert-x"] * 2 + ["packstore-new"]]
    assert [path.name for path in scratch.iterdir()] == ["packstore-convert-x-foreign"]


@pytest.mark.slow
@pytest.mark.parametrize(("part", "after"), [("shards/", False), ("done/", False), ("done/", True)])
def test_a_worker_is_killed(
    folder_to_pack: Path, whole: Path, url: str, tmp_path: Path, part: str, after: bool
) -> None:
    """Before it uploads, before its receipt, and after."""
    objects = KillingObjects(url, tmp_path / "kills", part, after=after)
    drive(folder_to_pack, url, objects=objects, cluster="processes:2", workers=1, **PASSING)
    assert (tmp_path / "kills" / "killed").exists()
    assert_same(url, whole)


@pytest.mark.slow
def test_a_task_that_kills_every_worker(folder_to_pack: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = SharedJob(plan_for(folder_to_pack, url, **PASSING), SharedRun(open_objects(url), "convert-x"))
    assert job.plan.shards is not None
    entries = next(job.plan.shards.split_entries(job.plan.source.entries()))
    with ProcessRunner(job, 1) as runner:
        monkeypatch.setattr(ProcessRunner, "_start_worker", _start_dead(ProcessRunner._start_worker))
        runner.submit(0, entries)
        ((number, result),) = runner.wait()
    assert number == 0
    assert isinstance(result, StoreError)
    assert "3 workers in turn ended by SIGKILL while they packed shard 0; the system does that" in str(result)


def _start_dead(start: Any) -> Any:
    def started(self: ProcessRunner) -> Any:
        worker = start(self)
        worker.process.send_signal(signal.SIGKILL)
        return worker

    return started


@pytest.mark.slow
def test_memory_of_a_worker_is_bounded(tmp_path: Path) -> None:
    """Whatever the size of its range: a shard of 72 MB takes a fraction of that."""
    image = tiny(1)
    (tmp_path / "photos" / "a").mkdir(parents=True)
    for number in range(72):
        (tmp_path / "photos" / "a" / f"{number}.png").write_bytes(image + number.to_bytes(4, "big") * (1 << 18))
    tracemalloc.start()
    try:
        report = drive(tmp_path / "photos", f"{tmp_path.as_uri()}/x.h5", shard_size="4GiB", workers=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.manifest.shards is not None
    assert len(report.manifest.shards) == 1
    assert report.manifest.image.nbytes > 72 << 20
    assert peak < 32 << 20


@pytest.mark.slow
def test_each_task_twice(folder_to_pack: Path, whole: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LocalRunner", Twice)
    drive(folder_to_pack, url, **PASSING)
    assert_same(url, whole)


@pytest.mark.slow
def test_a_driver_ends_at_every_receipt(
    folder_to_pack: Path, whole: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each goes on from the receipts of those before, and packs one shard more."""
    packed: list[int] = []
    submit = LocalRunner.submit

    def counted(self: LocalRunner, number: int, entries: Any) -> None:
        packed.append(number)
        submit(self, number, entries)

    monkeypatch.setattr(LocalRunner, "submit", counted)
    with packstore.open(whole) as reader:
        shards = len(reader.manifest.shards or ())
    for lives in range(shards):
        begin(folder_to_pack, url)
        assert len([name for name in objects_at(url) if "/done/" in name]) == lives + 1
        assert not any("versions/" in name for name in objects_at(url))
    report = drive(folder_to_pack, url, **PASSING)
    assert packed == list(range(shards))
    assert report.resumed == report.manifest.records
    assert_same(url, whole)


_DRIVER = """
import sys, packstore
packstore.convert(sys.argv[1], sys.argv[2], shard_size=30_000, cluster="processes:2", workers=1)
"""


@pytest.mark.slow
def test_a_driver_is_killed(folder_to_pack: Path, whole: Path, url: str) -> None:
    """Its workers end what they have begun, and then themselves; another driver goes on meanwhile."""
    with subprocess.Popen([sys.executable, "-c", _DRIVER, str(folder_to_pack), url]) as process:
        while not any("/done/" in name for name in objects_at(url)) and process.poll() is None:
            pass
        process.kill()
    drive(folder_to_pack, url, **PASSING)
    # A worker that was left may still create its last receipt; what is committed is the same.
    committed = {name: data for name, data in objects_at(url).items() if not name.startswith("_work/")}
    other = f"{url}/again.h5"
    drive(folder_to_pack, other, **PASSING)
    assert committed == objects_at(other)


@pytest.mark.slow
@pytest.mark.parametrize("when", [1, 2, -1])
def test_two_drivers(folder_to_pack: Path, whole: Path, url: str, when: int) -> None:
    """The second runs from its beginning to its end while the first waits for a receipt."""
    reports: list[Any] = []
    calls = 0

    def progress(report: Progress) -> None:
        nonlocal calls
        if report.stage == "pack":
            last = report.done == report.total
            calls += 1
            if not reports and (last if when == -1 else calls == when + 1):
                reports.append(drive(folder_to_pack, url, **PASSING))

    first = drive(folder_to_pack, url, progress, **PASSING)
    assert first.manifest == reports[0].manifest
    assert_same(url, whole)


@pytest.mark.slow
def test_two_drivers_write_the_plan(
    folder_to_pack: Path, whole: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second writes it after the first has seen none."""
    read, ended = SharedRun.read_object, []

    def late(self: SharedRun, name: str) -> bytes | None:
        found = read(self, name)
        if name == self.plan_name and not ended:
            ended.append(1)
            begin(folder_to_pack, url)
        return found

    monkeypatch.setattr(SharedRun, "read_object", late)
    report = drive(folder_to_pack, url, **PASSING)
    assert report.resumed > 0
    assert_same(url, whole)


@pytest.mark.slow
@pytest.mark.parametrize("deleted", [False, True], ids=["all is left", "receipts are gone"])
def test_killed_after_it_had_published(
    folder_to_pack: Path, whole: Path, url: str, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    """The store is there, and so is the run: the same command ends it, and no second version comes of it."""
    monkeypatch.setattr(SharedRun, "remove_objects", _raise_end)
    with pytest.raises(EndOfDriverError):
        drive(folder_to_pack, url, **PASSING)
    monkeypatch.undo()
    objects = open_objects(url)
    if deleted:
        objects.delete([name for name in objects_at(url) if "/done/" in name])
    report = drive(folder_to_pack, url, **PASSING)
    assert report.resumed == report.manifest.records
    assert_same(url, whole)


def _raise_end(self: SharedRun) -> None:
    raise EndOfDriverError


@pytest.mark.slow
def test_a_receipt_that_differs(folder_to_pack: Path, url: str) -> None:
    """Two machines that compute otherwise: the error names both digests, and nothing is published."""
    begin(folder_to_pack, url)
    objects = open_objects(url)
    (name,) = (name for name in objects_at(url) if "/done/" in name)
    ours = TaskReceipt.from_json(objects.get(name), name)
    assert ours.shard is not None
    theirs = dataclasses.replace(ours, shard=dataclasses.replace(ours.shard, digest="ab" * 32))
    objects.delete([name])

    def progress(report: Progress) -> None:
        if report.stage == "pack":  # after it has looked for receipts
            objects.create(name, theirs.to_json())

    with pytest.raises(StoreError, match=r"shard 0 .* came out differently on two machines") as caught:
        drive(folder_to_pack, url, progress, **PASSING)
    assert ours.shard.digest in str(caught.value)
    assert "ab" * 32 in str(caught.value)
    assert not any(name.startswith("versions/") for name in objects_at(url))


@pytest.mark.slow
def test_other_software_is_refused(
    folder_to_pack: Path, whole: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packstore, "__version__", "0.0.9")
    begin(folder_to_pack, url)
    monkeypatch.undo()
    before = objects_at(url)
    with pytest.raises(
        DestinationError, match=r"another conversion to it was begun \(packstore was 0\.0\.9, is [\d.]+\).*--restart"
    ):
        drive(folder_to_pack, url, **PASSING)
    assert objects_at(url) == before
    drive(folder_to_pack, url, restart=True, **PASSING)
    # The versions of software are in each shard, so what the other one has made is there and of no use.
    committed = expected_objects(whole)
    assert {name: data for name, data in objects_at(url).items() if name in committed} == committed


def test_a_machine_with_other_software(folder_to_pack: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = pickle.dumps(SharedJob(plan_for(folder_to_pack, url, **PASSING), SharedRun(open_objects(url), "convert-x")))
    assert isinstance(pickle.loads(job), SharedJob)
    monkeypatch.setattr(packstore, "__version__", "9.9")
    with pytest.raises(StoreError, match=r"other software than the plan: packstore 9\.9 instead of [\d.]+; install"):
        pickle.loads(job)


@pytest.mark.slow
def test_a_source_that_changed_is_refused(tmp_path: Path, url: str) -> None:
    folder = make_folder(tmp_path / "photos")
    begin(folder, url)
    file = next(folder.rglob("*.png"))
    os.utime(file, ns=(1, 1))
    with pytest.raises(DestinationError, match=r"another conversion to it was begun \(.*\)"):
        drive(folder, url, **PASSING)


@pytest.mark.slow
def test_a_source_that_changes_meanwhile(tmp_path: Path, url: str) -> None:
    folder = make_folder(tmp_path / "photos")

    def progress(report: Progress) -> None:
        if report.stage == "pack" and not report.done:
            sorted(folder.rglob("*.png"))[-1].unlink()

    with pytest.raises(SourceError):
        drive(folder, url, progress, **PASSING)
    assert not any(name.startswith("versions/") for name in objects_at(url))


@pytest.mark.slow
def test_keys_that_come_twice(tmp_path: Path, url: str, folder_to_pack: Path) -> None:
    image = next(folder_to_pack.rglob("*.jpg"))
    data = [{"image": image, "key": f"{i % 7}"} for i in range(9)]
    messages = []
    for destination in (tmp_path / "x.h5", url):
        with pytest.raises(StoreError, match="records 0 and 7 have the same key '0'") as caught:
            packstore.convert(data, destination, shard_size=10_000)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert not any(name.startswith("versions/") for name in objects_at(url))


@pytest.mark.slow
def test_bad_samples(tmp_path: Path, url: str) -> None:
    """The first one is raised, as by one machine; or all are left out, and shards behind an empty one move up."""
    folder = make_folder(tmp_path / "photos", per_class=5)
    options = {"shard_size": 8000}
    good = packstore.convert(folder, tmp_path / "good.h5", **options).manifest
    assert good.shards is not None
    with packstore.open(tmp_path / "good.h5") as reader:
        shards = [[part.key(i) for i in range(len(part))] for part in reader.parts()]
    for key in (shards[1][0], shards[2][-1], *shards[3], shards[5][-1]):
        (folder / key).write_bytes(bytes((folder / key).stat().st_size))
    first = min((key for shard in shards for key in shard if not (folder / key).read_bytes()[0]), key=_place(shards))
    with pytest.raises(SampleError) as caught:
        drive(folder, url, cluster="processes:2", workers=1, **options)
    assert caught.value.key == first
    report = drive(folder, url, on_error="skip", **options)
    local = packstore.convert(folder, tmp_path / "x.h5", on_error="skip", **options)
    assert tuple(report.tally.skipped) == local.skipped
    assert report.manifest == local.manifest
    assert_same(url, tmp_path / "x.h5")


def _place(shards: list[list[str]]) -> Callable[[str], int]:
    keys = [key for shard in shards for key in shard]
    return keys.index


def test_all_samples_are_bad(tmp_path: Path, url: str) -> None:
    folder = make_folder(tmp_path / "photos", per_class=1)
    for file in folder.rglob("*.*"):
        file.write_bytes(bytes(100))
    with pytest.raises(SourceError, match="all 6 images were skipped, so there is nothing to pack"):
        drive(folder, url, on_error="skip", **PASSING)


def test_skipped_samples_are_raised_by_a_run_that_may_not_skip(tmp_path: Path, url: str) -> None:
    folder = make_folder(tmp_path / "photos", per_class=1)
    bad = folder / "train" / "ant" / "000.jpg"
    bad.write_bytes(bytes(bad.stat().st_size))
    begin(folder, url, on_error="skip")
    with pytest.raises(SampleError, match=r"train/ant/000\.jpg"):
        drive(folder, url, **PASSING)


@pytest.mark.slow
def test_a_store_is_there(folder_to_pack: Path, whole: Path, url: str) -> None:
    drive(folder_to_pack, url, **PASSING)
    with pytest.raises(DestinationError, match="exists already; choose another URL, or --overwrite"):
        drive(folder_to_pack, url, **PASSING)
    assert_same(url, whole)
    drive(folder_to_pack, url, overwrite=True, shard_size=60_000)
    assert {name for name in objects_at(url) if name.startswith("versions/")} == {
        "versions/000000001.json",
        "versions/000000002.json",
    }


@pytest.mark.slow
def test_ctrl_c_ends_the_workers(folder_to_pack: Path, whole: Path, url: str, scratch: Path) -> None:
    def progress(report: Progress) -> None:
        if report.stage == "pack" and report.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(folder_to_pack, url, progress, cluster="processes:2", workers=1, **PASSING)
    assert not list(scratch.iterdir())
    assert any("/done/" in name for name in objects_at(url))
    report = drive(folder_to_pack, url, **PASSING)
    assert report.resumed > 0
    assert_same(url, whole)


@pytest.mark.slow
def test_progress_counts_samples(folder_to_pack: Path, url: str) -> None:
    reports: list[Progress] = []
    drive(folder_to_pack, url, reports.append, **PASSING)
    packed = [report for report in reports if report.stage == "pack"]
    assert [report.done for report in packed] == sorted(report.done for report in packed)
    assert packed[0].done == 0
    assert packed[-1].done == packed[-1].total == 24
    assert packed[-1].done_bytes == sum(file.stat().st_size for file in folder_to_pack.rglob("*.*"))


@pytest.mark.parametrize("cluster", ["", "processes", "processes:0", "processes:-1", "processes:x", "ray:", "slurm"])
def test_clusters_that_are_none(cluster: str) -> None:
    with pytest.raises(UsageError, match="cluster should be 'processes:N'"):
        ConvertOptions(cluster=cluster)


def test_what_a_cluster_cannot_do(folder_to_pack: Path, url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a cluster writes to an object store.* file:///"):
        packstore.convert(folder_to_pack, tmp_path / "x.h5", cluster="processes:2")
    with pytest.raises(UsageError, match="a cluster reads paths"):
        packstore.convert([{"image": b""}], url, cluster="processes:2")
    with pytest.raises(UsageError, match="an iterable can be read only once"):
        packstore.convert(iter([{"image": next(folder_to_pack.rglob("*.jpg"))}]), url)


@pytest.mark.slow
def test_a_damaged_receipt_or_plan(folder_to_pack: Path, whole: Path, url: str) -> None:
    begin(folder_to_pack, url)
    (receipt,) = (name for name in objects_at(url) if "/done/" in name)
    objects = open_objects(url)
    data = objects.get(receipt)
    for wrong in (b"", b"[]", b"{}", data[:-9], data.replace(b'"number":0', b'"number":1'), b"\xff"):
        objects.put(receipt, wrong)
        with pytest.raises(StoreError, match=r"done/000000.json is damaged .* delete it"):
            drive(folder_to_pack, url, **PASSING)
    objects.put(receipt, data)
    (plan,) = (name for name in objects_at(url) if name.endswith("plan.json"))
    data = objects.get(plan)
    for wrong in (b"", b"[]", b"{}", data.replace(b'"cuts":[', b'"cuts":[1,'), data[:-1]):
        objects.put(plan, wrong)
        with pytest.raises(StoreError, match="is not a conversion"):
            drive(folder_to_pack, url, **PASSING)
    objects.put(plan, data)
    drive(folder_to_pack, url, **PASSING)
    assert_same(url, whole)


@pytest.mark.slow
def test_shards_that_are_gone(folder_to_pack: Path, whole: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an earlier driver are packed again; one that goes before the end is missed, and nothing is published."""
    begin(folder_to_pack, url, 2)
    objects = open_objects(url)
    gone = sorted(name for name in objects_at(url) if name.startswith("shards/"))[0]
    objects.delete([gone])
    with monkeypatch.context() as patch:
        upload_table = publish_module.upload_table

        def cleaned(objects: ObjectStore, table: ShardTable) -> None:
            objects.delete([gone])
            upload_table(objects, table)

        patch.setattr(publish_module, "upload_table", cleaned)
        with pytest.raises(StoreError, match=f"{gone} no longer exists; run this again"):
            drive(folder_to_pack, url, **PASSING)
    assert find_newest_version(objects) == 0
    drive(folder_to_pack, url, **PASSING)
    assert_same(url, whole)


@pytest.mark.slow
def test_receipts_of_other_tasks(folder_to_pack: Path, url: str) -> None:
    begin(folder_to_pack, url)
    (name,) = (name for name in objects_at(url) if "/done/" in name)
    objects = open_objects(url)
    receipt = TaskReceipt.from_json(objects.get(name), name)
    objects.put(name.replace("000000", "000001"), receipt.to_json())
    with pytest.raises(StoreError, match=r"000001.json is another shard's receipt; delete it"):
        drive(folder_to_pack, url, **PASSING)
    objects.delete([name.replace("000000", "000001")])
    receipt.tally.entries += 1
    objects.put(name, receipt.to_json())
    with pytest.raises(StoreError, match=r"000000.json does not fit the plan; use --restart"):
        drive(folder_to_pack, url, **PASSING)


@pytest.mark.slow
def test_clean_removes_what_an_interrupted_run_left(folder_to_pack: Path, url: str) -> None:
    """A plan, receipts, and shards that nobody needs any more."""
    begin(folder_to_pack, url, 2)
    objects, later = open_objects(url), time.time() + 2 * GRACE_SECONDS
    left = objects_at(url)
    assert len(left) > 4
    assert "a conversion is running, or was interrupted; the same command resumes it" in run("info", url).stderr
    drive(folder_to_pack, url, shard_size=60_000)
    found = find_unneeded(objects, later)
    assert not found.foreign
    needless = {info.name for info in found.objects}
    assert needless == left.keys()
