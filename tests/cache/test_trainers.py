"""Trainers that share a small cache, or a damaged one: they get the batches of a local store, or one line."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import packstore
from packstore.cache import Cache
from packstore.stores import open_store
from tests.internals import CacheFullError, StoreError, UrlPath, location, upload_store
from tests.makers.caching import used_bytes

PATIENCE = 120.0
SHARDS, SIDE, RECORDS = 12, 32, 240


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A store of a dozen shards."""
    path = tmp_path / "x.h5"
    images = [(np.full((SIDE, SIDE, 3), number, np.uint8), number % 7) for number in range(RECORDS)]
    packstore.convert(images, path, encoding="uint8", shard_size=RECORDS * (SIDE * SIDE * 3 + 100) // SHARDS)
    return path


@pytest.fixture
def url(local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UrlPath:
    """The same store in a bucket, with a cache of 1 GB."""
    url = location(f"{(tmp_path / 'bucket').as_uri()}/x.h5")
    assert isinstance(url, UrlPath)
    upload_store(local, url)
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PACKSTORE_CACHE_SIZE", "1GB")
    return url


def train(path: Path, rank: int, report: Path) -> str:
    """The digest of two epochs' batches of one of four ranks, or an error; a byte of the report for each batch."""
    found = hashlib.sha256()
    try:
        dataset = packstore.PackedDataset(path)
        loader = packstore.PackedLoader(
            dataset, 8, shuffle="lanes", window=4, seed=3, rank=rank, world_size=4, workers=1, resident=False
        )
        with report.open("ab", buffering=0) as file:
            for epoch in range(2):
                loader.set_epoch(epoch)
                for images, labels in loader:
                    found.update(images.numpy().tobytes() + labels.numpy().tobytes())
                    file.write(b".")
    except StoreError as error:
        return str(error)
    return found.hexdigest()


def trainer(path: Path, rank: int, folder: Path) -> None:
    said = train(path, rank, folder / f"{rank}.batches")
    (folder / f"{rank}.said").write_text(said)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_trainers_in_a_small_cache(
    local: Path, url: UrlPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    with open_store(local) as reader:
        assert reader.manifest.shards is not None
        shards = list(reader.manifest.shards)
    cache = Cache(tmp_path / "cache", int(share * sum(shard.nbytes for shard in shards)))
    monkeypatch.setenv("PACKSTORE_CACHE_SIZE", f"{cache.budget}B")
    expected = [train(local, rank, tmp_path / "local.batches") for rank in range(4)]
    context = multiprocessing.get_context("fork")

    def start(rank: int) -> multiprocessing.process.BaseProcess:
        process = context.Process(target=trainer, args=(url, rank, tmp_path))
        process.start()
        return process

    processes = [start(rank) for rank in range(4)]
    end = time.monotonic() + PATIENCE
    while processes[0].is_alive() and not (tmp_path / "0.batches").exists():
        assert time.monotonic() < end
        time.sleep(0.005)
    if processes[0].is_alive():
        os.kill(int(processes[0].pid or 0), signal.SIGKILL)
        processes[0].join()
        processes[0] = start(0)
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
        assert process.exitcode == 0
    for rank in range(4):
        said = (tmp_path / f"{rank}.said").read_text()
        assert said == expected[rank] or "is too small: an object needs" in said, said
    assert used_bytes(cache) <= cache.budget


@pytest.mark.slow
def test_one_shard_too_large_for_the_cache_is_said(url: UrlPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKSTORE_CACHE_SIZE", "10kB")
    with open_store(url) as reader:
        assert reader.manifest.shards is not None
        nbytes = reader.manifest.shards[0].nbytes
        with pytest.raises(
            CacheFullError, match=f"needs {nbytes:,} bytes, it may hold 10,000; give it {nbytes:,} with"
        ):
            reader.read(0)


@pytest.mark.slow
def test_a_damaged_copy_is_fetched_again(local: Path, url: UrlPath, tmp_path: Path) -> None:
    with open_store(url) as reader, open_store(local) as beside:
        assert bytes(reader.read(0)) == bytes(beside.read(0))
    (copy,) = (tmp_path / "cache" / "whole").iterdir()
    copy.write_bytes(bytes(copy.stat().st_size))
    with open_store(url) as reader, open_store(local) as beside:
        assert bytes(reader.read(0)) == bytes(beside.read(0))
