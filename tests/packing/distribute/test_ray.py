"""One pass on a real Ray: started here, on this machine's loopback address alone."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import packstore
from packstore.objects import open_objects
from tests.internals import RayRunner, SampleError, SharedJob, SharedRun, StoreError, TaskReceipt, UsageError
from tests.makers.clusters import KillingObjects, NamingObjects, assert_same, drive, objects_at, plan_for
from tests.makers.datasets import make_folder

pytestmark = pytest.mark.slow

PASSING: dict[str, Any] = {"shard_size": 30_000}


@pytest.fixture(scope="session", autouse=True)
def _environment() -> None:
    """Sets what Ray reads once in a process, when it is first imported."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 32}


@pytest.fixture(scope="session")
def _ray() -> Iterator[Any]:
    ray: Any = pytest.importorskip("ray")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # a short path: sockets lie in it
        ray.init(
            "local",
            num_cpus=2,
            object_store_memory=80 << 20,
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        yield ray
        ray.shutdown()
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"{(tmp_path / 'objects').as_uri()}/x.h5"


@pytest.mark.usefixtures("_ray")
def test_a_pass_on_ray(tmp_path: Path, url: str) -> None:
    """A worker is killed before a receipt; the bytes are those of one machine, and each task has a name."""
    folder = make_folder(tmp_path / "photos")
    packstore.convert(folder, tmp_path / "x.h5", **PASSING)
    objects = KillingObjects(url, tmp_path / "kills", "done/")
    report = drive(folder, url, objects=objects, cluster="ray", **PASSING)
    assert (tmp_path / "kills" / "killed").exists()
    assert_same(url, tmp_path / "x.h5")
    assert report.manifest == packstore.convert(folder, tmp_path / "y.h5", **PASSING).manifest

    other = f"{url}/named.h5"
    drive(folder, other, objects=NamingObjects(other, tmp_path / "names"), cluster="ray", **PASSING)
    shards = len(report.manifest.shards or ())
    names = {path.read_text() for path in (tmp_path / "names").iterdir()}
    assert names == {f"packstore shard {number + 1} of {shards}: {other}" for number in range(shards)}


@pytest.mark.usefixtures("_ray")
def test_failures_on_ray(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path / "photos", per_class=2)
    bad = folder / "train" / "bee" / "000.jpg"
    bad.write_bytes(bytes(bad.stat().st_size))
    with pytest.raises(SampleError) as caught:
        packstore.convert(folder, url, cluster="ray", **PASSING)
    assert caught.value.key == "train/bee/000.jpg"
    assert not any(name.startswith("versions/") for name in objects_at(url))

    job = SharedJob(plan_for(folder, url, on_error="skip", **PASSING), SharedRun(open_objects(url), "convert-x"))
    shards = job.plan.shards
    assert shards is not None
    with RayRunner(job, 1, "") as runner:
        runner.submit(0, next(shards.split_entries(job.plan.source.entries())))
        ((number, receipt),) = runner.wait()
    assert number == 0
    assert isinstance(receipt, TaskReceipt)
    monkeypatch.setattr(packstore, "__version__", "9.9")  # the workers have another one
    with RayRunner(job, 1, "") as runner:
        runner.submit(0, next(shards.split_entries(job.plan.source.entries())))
        ((_, result),) = runner.wait()
    assert isinstance(result, StoreError)
    assert "instead of 9.9" in str(result)


def _read(dataset: bytes, environment: dict[str, str]) -> list[tuple[bytes, int]]:
    """All that a pickled dataset has, in a worker that was started before the server."""
    os.environ |= environment
    opened = pickle.loads(dataset)
    return [(image.numpy().tobytes(), int(label)) for image, label in map(opened.__getitem__, range(len(opened)))]


@pytest.mark.usefixtures("_ray")
def test_reading_from_ray_tasks(tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that share a cache get what this process gets."""
    ray: Any = pytest.importorskip("ray")
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    packstore.convert(make_folder(tmp_path / "photos", per_class=2), f"{s3}/x.h5", shard_size=30_000)
    dataset = pickle.dumps(packstore.PackedDataset(f"{s3}/x.h5", split="train"))
    expected = _read(dataset, {})
    environment = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "PACKSTORE_"))}
    task: Any = ray.remote(num_cpus=1)(_read)
    found = ray.get([task.remote(dataset, environment) for _ in range(2)], timeout=120)
    assert len(expected) > 0
    assert found == [expected, expected]


def test_no_cluster_at_an_address(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ray: Any = pytest.importorskip("ray")

    def init(address: str, **options: Any) -> None:
        raise ConnectionError(f"could not find any running Ray instance at {address}")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(UsageError, match=r"no Ray cluster at 127\.0\.0\.1:9: could not find"):
        packstore.convert(make_folder(tmp_path / "photos", per_class=1), url, cluster="ray:127.0.0.1:9")
