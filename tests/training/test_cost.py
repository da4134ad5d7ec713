"""What reading a store at a URL costs: counted here, and compared with what is computed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import packstore
from packstore.stores import open_store
from packstore.testing.records import make_records, write
from tests.internals import Cost, UrlPath, compute_costs, upload_store
from tests.makers.command import run
from tests.makers.datasets import make_folder


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a bucket, beside an empty cache."""
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PACKSTORE_CACHE_SIZE", "100MB")
    return tmp_path / "bucket"


@pytest.fixture
def url(bucket: Path, tmp_path: Path) -> UrlPath:
    write(tmp_path / "x.h5", make_records("uint8", 40), shard_size=240)
    url = UrlPath(f"{bucket.as_uri()}/x.h5")
    upload_store(tmp_path / "x.h5", url)
    return url


def by_name(url: UrlPath, budget: int, nodes: int = 1) -> dict[str, Cost]:
    with open_store(url) as reader:
        return {cost.what: cost for cost in compute_costs(reader.manifest, reader.disk_bytes(), budget, nodes)}


@pytest.mark.slow
def test_an_epoch_that_fits_into_the_cache(url: UrlPath) -> None:
    found = by_name(url, 10**9)
    with open_store(url) as reader:
        for record in range(len(reader)):
            reader.read(record)
        counted = reader.table.counts
    for order in ("in lanes", "full shuffle"):
        cost = found[f"first epoch, {order}, cache empty"]
        assert (cost.requests, cost.nbytes) == (counted.misses, counted.fetched_bytes)
    assert found["each epoch after that"] == Cost("each epoch after that", 0, 0)


@pytest.mark.slow
def test_an_epoch_in_a_random_order_that_does_not_fit(tmp_path: Path) -> None:
    """Compared with a cache of whole shards that forgets what was used longest ago; the order of one epoch says little,
    so over several."""
    manifest = write(tmp_path / "x.h5", make_records("uint8", 320), shard_size=2400)
    shards = len(manifest.shards)
    total = int(manifest.shards.table["nbytes"].sum())
    found = {cost.what: cost for cost in compute_costs(manifest, 0, total * 3 // 4)}
    cost = found["epoch in full shuffle, about"]
    rng, held, missed = np.random.default_rng(0), list[int](), 0
    for _ in range(20):
        for record in rng.permutation(manifest.records).tolist():
            shard = int(np.searchsorted(manifest.shards.starts, record, "right")) - 1
            missed += shard not in held
            held = [*(other for other in held if other != shard), shard][-(shards * 3 // 4) :]
    assert cost.requests == pytest.approx(missed / 20, rel=0.15)
    assert cost.nbytes == cost.requests * (total // shards)


def test_many_nodes(url: UrlPath) -> None:
    one, many = by_name(url, 10**9), by_name(url, 10**9, 8)
    lanes, shuffle = "first epoch, in lanes, cache empty", "first epoch, full shuffle, cache empty"
    assert many[lanes] == one[lanes]
    assert many[shuffle].nbytes == 8 * one[shuffle].nbytes
    assert many["open"].requests == 24


@pytest.mark.slow
def test_the_command(url: UrlPath, tmp_path: Path) -> None:
    done = run("info", url, "--cost")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["with", "a", "cache", "of", "100", "MB", "requests", "bytes"]
    assert lines[1].split()[:2] == ["open", "3"]
    done = run("info", url, "--cost", "--nodes", "8", "--cache-size", "1kB")
    assert "on 8 nodes, each with a cache of 1 kB" in done.stdout
    assert "epoch in full shuffle, about" in done.stdout
    windows = [run("info", url, "--cost", "--cache-size", "20kB", "--batch-size", n).stdout for n in ("1", "64")]
    assert len(set(windows)) == 2
    plain = json.loads(run("info", url, "--json", "--cost").stdout)
    assert plain["path"] == str(url)
    assert plain["class_counts"] is None
    assert {"what": "open", "requests": 3, "nbytes": plain["cost"][0]["nbytes"]} == plain["cost"][0]
    assert "a record" in run("info", url).stdout
    write(tmp_path / "one.lmdb", make_records("uint8", 4))
    assert "verify --quick" in run("info", tmp_path / "one.lmdb", "--cost").stdout


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_an_epoch_in_lanes_fetches_what_is_said(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """A loader with its default window, and a cache of a part of the store: what is fetched, counted."""
    packstore.convert(make_folder(tmp_path / "photos", per_class=40), tmp_path / "y.lmdb", split="train",
                      source_kind="imagefolder", encoding="uint8", size=16, shard_size=2500)  # fmt: skip
    url = UrlPath(f"{bucket.as_uri()}/y.lmdb")
    upload_store(tmp_path / "y.lmdb", url)
    manifest = open_store(url).manifest
    total = int(manifest.shards.table["nbytes"].sum())
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PACKSTORE_CACHE_SIZE", str(int(total * share)))
    said = next(
        c for c in compute_costs(manifest, 0, int(total * share), batch_size=8) if c.what.startswith("epoch in lanes")
    )
    dataset = packstore.PackedDataset(url)
    loader = packstore.PackedLoader(dataset, 8, shuffle=True, resident=False, workers=1)
    assert sum(len(labels) for _, labels in loader) == manifest.records
    assert said.what == f"epoch in lanes, window {loader._epochs.order.window}"
    table = dataset.reader.table
    assert table.counts.fetched_bytes <= said.nbytes + total * share  # beside what the next epoch needs first
    assert table.counts.fetched_bytes >= total
    assert said.nbytes < 1.5 * total
