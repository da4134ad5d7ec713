"""Training from a store at a URL: lanes, shards fetched ahead, what stats() says, worker processes, several ranks."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import packstore
from packstore import Mix, PackedDataset, PackedLoader, UsageError, concat
from tests.internals import RemoteShards, UrlPath, upload_store
from tests.makers.batches import check_order, flat_keys, join_ranks, joined, keys_of, run_ranks, same
from tests.makers.datasets import make_cifar10

COLUMNS = ("image", "key")
NewCache = Callable[[str, int], None]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 records of ``train`` in 50 shards, 40 of ``test`` in 10."""
    root = tmp_path_factory.mktemp("local")
    packstore.convert(make_cifar10(root, 40), root / "c.pth", encoding="uint8", shard_size=4 * 3072)
    return root / "c.pth"


def upload(store: Path, url: str, **options: Any) -> str:
    upload_store(store, UrlPath(url), **options)
    return url


@pytest.fixture(scope="module")
def url(local: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return upload(local, (tmp_path_factory.mktemp("remote") / "c.pth").as_uri())


@pytest.fixture(autouse=True)
def new_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NewCache:
    """Lets what is opened from now on use another cache, of so many bytes."""

    def make(name: str, budget: int) -> None:
        monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / name))
        monkeypatch.setenv("PACKSTORE_CACHE_SIZE", str(budget))

    make("cache", 100_000_000)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return make


def loader_of(path: str | Path, batch_size: int = 10, split: str = "train", **options: Any) -> PackedLoader:
    dataset = PackedDataset(path, split, columns=COLUMNS)
    return PackedLoader(dataset, batch_size, **{"resident": False, "workers": 2} | options)


def shard_bytes(path: str | Path) -> list[int]:
    with packstore.open(path) as reader:
        return reader.manifest.shards.table["nbytes"].tolist()


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits until shards are there that threads fetch ahead."""
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come to that in 30 s")


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"shuffle": "full"}, {"shuffle": "lanes", "window": 6}, {"sampler": [5, 3]}])
def test_batches_are_those_of_the_local_store(local: Path, url: str, options: dict[str, Any]) -> None:
    assert same(loader_of(url, **options), loader_of(local, **options))


@pytest.mark.slow
def test_lanes_are_the_default(local: Path, url: str) -> None:
    lanes = loader_of(local, shuffle="lanes")
    default = loader_of(url, shuffle=True)
    assert default.state_dict() == lanes.state_dict()
    assert keys_of(default) == keys_of(lanes)
    assert loader_of(local, shuffle=True).state_dict()["shuffle"] == "full"
    assert loader_of(url, shuffle=True, block=8).state_dict()["shuffle"] == "full"
    loader_of(url, shuffle=True, window=3)


@pytest.mark.slow
def test_stats_say_what_was_fetched(local: Path, url: str) -> None:
    loader = loader_of(url, shuffle=True)
    list(loader)
    stats = loader.stats()
    train = sum(shard_bytes(url)[:50])
    assert stats["fetched_bytes"] == train
    assert stats["cache_hits"] + stats["cache_misses"] >= 50  # several threads may come for the same shard
    assert stats["fetch_wait_seconds"] >= 0
    loader.reset_stats()
    list(loader)
    stats = loader.stats()
    # The cache has room for all, and all shards are open.
    assert [stats[name] for name in ("cache_hits", "cache_misses", "fetched_bytes")] == [0, 0, 0]
    again = loader_of(url, shuffle=True)  # by another reader, from the same cache
    list(again)
    stats = again.stats()
    assert stats["cache_hits"] >= 50
    assert (stats["cache_misses"], stats["fetched_bytes"]) == (0, 0)
    assert "fetched_bytes" not in loader_of(local).stats()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"shuffle": True, "window": 4}, {"shuffle": False}])
def test_a_small_cache_is_enough(url: str, options: dict[str, Any], new_cache: NewCache) -> None:
    nbytes = shard_bytes(url)
    new_cache("small", 14 * max(nbytes))
    loader = loader_of(url, 4, **options)
    reader = loader.dataset.reader.table
    for _ in loader:
        time.sleep(0.01)  # so that much is fetched ahead: what was read leaves before that
        assert sum(entry.nbytes for entry in reader.cache.entries()) <= reader.cache.budget
    assert loader.stats()["fetched_bytes"] <= 1.3 * sum(nbytes[:50])


@pytest.mark.slow
def test_shards_to_come_are_there_before_they_are_needed(url: str) -> None:
    """With time between batches, no thread waits for a shard but those of the first window."""
    loader = loader_of(url, 4, shuffle=True, window=5, prefetch=1)
    batches = iter(loader)
    next(batches)
    reader, total = loader.dataset.reader.table, sum(shard_bytes(url)[:50])
    wait_until(lambda: reader.counts.fetched_bytes == total)
    loader.reset_stats()
    assert len(list(batches)) == 49
    assert loader.stats()["cache_misses"] == 0


@pytest.mark.slow
def test_a_fetch_that_hangs_holds_up_no_batch(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(RemoteShards, "prefetch", lambda *_: gate.wait(60))
    loader = loader_of(url, 4, shuffle=True, window=5)
    try:
        assert sorted(flat_keys(loader)) == sorted(PackedDataset(url, "train").keys)
        assert not gate.is_set()
    finally:
        gate.set()
    assert loader.stats()["cache_misses"] == 50


@pytest.mark.slow
def test_a_window_that_does_not_fit_is_told(url: str, new_cache: NewCache, caplog: pytest.LogCaptureFixture) -> None:
    new_cache("tiny", 6 * max(shard_bytes(url)))
    with caplog.at_level(logging.WARNING):
        whole = flat_keys(loader_of(url, 20, shuffle=True, window=20))
    assert sorted(whole) == sorted(PackedDataset(url, "train").keys)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "the cache has room for" in message
    assert "lower window=" in message
    caplog.clear()
    list(loader_of(url, 4, shuffle=True, window=2))
    assert not caplog.records


@pytest.mark.slow
def test_eight_nodes_fetch_each_shard_about_once_an_epoch(url: str, new_cache: NewCache) -> None:
    """Each has a cache of its own, with room for a fraction of the store. 50 shards, of 4 records."""
    nbytes = shard_bytes(url)
    fetched, seen = 0.0, list[list[str]]([[], [], []])
    for rank in range(8):
        new_cache(f"node {rank}", 9 * max(nbytes))
        loader = loader_of(url, 2, shuffle=True, window=16, rank=rank, world_size=8)
        for epoch in seen:
            epoch += flat_keys(loader)
        fetched += loader.stats()["fetched_bytes"]
    assert all(len(set(epoch)) == len(epoch) == 200 for epoch in seen)
    assert fetched <= 3 * 1.3 * sum(nbytes[:50])


@pytest.mark.slow
def test_the_next_epoch_begins_with_shards_that_are_there(url: str, new_cache: NewCache) -> None:
    new_cache("small", 16 * max(shard_bytes(url)))
    loader = loader_of(url, 4, shuffle=True, window=4, prefetch=1, workers=1)
    list(loader)
    reads = loader._epochs.order.list_shard_reads(1)
    needed = [int(shard) for shard in reads.shards[reads.first == 0]]
    wait_until(lambda: loader.dataset.reader.table.are_local(needed).all())
    loader.reset_stats()
    next(iter(loader))
    assert loader.stats()["cache_misses"] == 0


@pytest.mark.slow
def test_shards_are_fetched_ahead_of_what_becomes_resident(
    local: Path, url: str, monkeypatch: pytest.MonkeyPatch, ahead: list[tuple[str, int]]
) -> None:
    monkeypatch.setattr("packstore.training.loader.resident._LOADED_BYTES", 8 * 3072)
    loader, expected = (loader_of(path, shuffle="lanes", resident=True) for path in (url, local))
    assert same(loader, expected)
    assert ahead
    assert {number for _, number in ahead} <= set(range(50))
    assert loader.stats()["fetched_bytes"] == sum(shard_bytes(url)[:50])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_of_a_dataloader(local: Path, s3: str, method: str) -> None:
    dataset, expected = PackedDataset(upload(local, f"{s3}/c.pth"), "test"), PackedDataset(local, "test")
    assert same(dataset[3], expected[3])  # the parent has used the object store, too
    loader = DataLoader(dataset, 8, num_workers=2, multiprocessing_context=method)
    assert same(joined(loader), expected[:])


@pytest.mark.slow
def test_another_process_reads_the_version_that_the_dataset_was_made_of(local: Path, tmp_path: Path) -> None:
    """Somebody appends, and replaces the store, while an epoch is under way."""
    place = upload(local, (tmp_path / "bucket" / "c.pth").as_uri())
    dataset, expected = PackedDataset(place, "test"), PackedDataset(local, "test")
    packstore.append(place, make_cifar10(tmp_path, 8), on_duplicate="skip")
    grown = PackedDataset(place, "test")
    other = pickle.loads(pickle.dumps(dataset))
    dataset.close()
    for again in (dataset, other):
        assert len(again) == len(expected)
        assert all(torch.equal(again[item][0], expected[item][0]) for item in (0, 7, 39))
    packstore.convert(make_cifar10(tmp_path / "others", 3), tmp_path / "other.pth", encoding="uint8", shard_size=3072)
    upload(tmp_path / "other.pth", place, overwrite=True)
    dataset.close()
    assert torch.equal(dataset[20][0], expected[20][0])
    assert len(PackedDataset(place, "test")) < len(expected) <= len(grown)


def _train(rank: int, url: str) -> Any:
    """One of two ranks: five batches, then its state."""
    loader = loader_of(url, 6, shuffle=True, window=12)
    iterator = iter(loader)
    found = [list(next(iterator)[1]) for _ in range(5)]
    total = torch.tensor([float(loader.stats()["fetched_bytes"])])
    torch.distributed.all_reduce(total)
    return found, loader.state_dict()


@pytest.mark.slow
def test_two_ranks_with_gloo_and_then_three(local: Path, s3: str, tmp_path: Path) -> None:
    url = upload(local, f"{s3}/c.pth")
    results = run_ranks(_train, (tmp_path / "rendezvous").as_uri(), url)
    whole = list(loader_of(local, 12, shuffle="lanes", window=12))
    given = [[key for found, _ in results for key in found[step]] for step in range(5)]
    assert given == keys_of(whole[:5])

    def make(rank: int, world_size: int) -> PackedLoader:
        loader = loader_of(url, 4, shuffle=True, window=12, rank=rank, world_size=world_size)
        loader.load_state_dict(results[0][1])
        return loader

    assert same(join_ranks(make, 3), whole[5:])


# Several stores -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 records of ``train`` in 20 shards, in another format."""
    root = tmp_path_factory.mktemp("second")
    packstore.convert(make_cifar10(root, 20), root / "s.lmdb", encoding="uint8", shard_size=5 * 3072)
    return root / "s.lmdb"


@pytest.fixture(scope="module")
def second_url(second: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return upload(second, (tmp_path_factory.mktemp("remote") / "s.lmdb").as_uri())


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Lists the shards that are fetched ahead: the name of the store, and the number."""
    found, prefetch = list[tuple[str, int]](), RemoteShards.prefetch

    def noted(table: RemoteShards, number: int) -> None:
        found.append((table.path.name, number))
        prefetch(table, number)

    monkeypatch.setattr(RemoteShards, "prefetch", noted)
    return found


def mixing(weights: dict[Any, float], batch_size: int = 10, epoch: int = 300, **options: Any) -> PackedLoader:
    mix = Mix(weights, "train", columns=COLUMNS, epoch=epoch)
    return PackedLoader(mix, batch_size, **{"shuffle": True, "resident": False, "workers": 2, "seed": 3} | options)


@pytest.mark.slow
def test_a_mix_of_urls_has_the_shares_and_records_of_the_local_one(
    local: Path, second: Path, url: str, second_url: str
) -> None:
    urls, paths = {url: 2, second_url: 1}, {local: 2, second: 1}
    remote = mixing(urls, window=4)
    assert isinstance(remote.dataset, Mix)
    assert remote.dataset.draws == (200, 100)
    # In an epoch each record comes once, and so the order of its shards tells nothing.
    assert Counter(flat_keys(remote)) == Counter(flat_keys(mixing(paths)))
    assert keys_of(remote) != keys_of(mixing(paths))
    assert keys_of(mixing(urls, shuffle="full")) == keys_of(mixing(paths))
    assert keys_of(mixing(urls, shuffle=False)) == keys_of(mixing(paths, shuffle=False))
    with pytest.raises(UsageError, match="window is of shuffle='lanes' or of block"):
        mixing(paths, window=4)


@pytest.mark.slow
def test_each_store_of_a_mix_is_fetched_ahead(url: str, second: Path, second_url: str) -> None:
    """With time between batches, no thread waits for a shard but those of the first batch."""
    loader = mixing({url: 1, second_url: 1, second: 1}, prefetch=1, window=3, epoch=120)
    batches = iter(loader)
    next(batches)
    reads = loader._epochs.order.list_shard_reads(0)
    fetching = loader.dataset.reader.table
    assert {0, 1} == {int(part >= 50) for part in reads.shards}  # of both remote stores; the local one is not fetched
    sizes = fetching.part_nbytes
    assert (sizes[reads.shards] > 0).all()

    def is_done() -> bool:
        here = loader.dataset.reader.unchecked_reader.table.are_local(range(len(sizes)))
        fetched = sum(each.fetched_bytes for each in fetching.all_counts)
        return bool(here[reads.shards].all() and fetched == sizes[here].sum())  # no thread has to wait

    wait_until(is_done)
    loader.reset_stats()
    assert len(list(batches)) == 11
    assert loader.stats()["cache_misses"] == 0
    assert loader.stats()["cache_hits"] > 0


@pytest.mark.soak
def test_a_mix_needs_no_more_cache_than_its_windows(url: str, second_url: str, new_cache: NewCache) -> None:
    most = max(shard_bytes(url) + shard_bytes(second_url))
    new_cache("small", 24 * most)
    # The places of records are drawn within 1,024, so of each store are there the shards of so many.
    loader = mixing({url: 1, second_url: 1}, 50, epoch=4000, window=2)
    fetching = loader.dataset.reader.table
    for _ in loader:
        assert sum(entry.nbytes for entry in fetching.cache.entries()) <= fetching.cache.budget


@pytest.mark.slow
def test_ranks_and_resuming_change_nothing_of_a_mix_of_urls(url: str, second_url: str) -> None:
    make = partial(mixing, {url: 3, second_url: 1}, window=3)
    check_order(make, 12, (2, 3))
    state = make(6, rank=1, world_size=2).state_dict()
    with pytest.raises(UsageError, match="state has window 3"):
        make(12, window=5).load_state_dict(state)
    full = mixing({url: 3, second_url: 1}, 12, shuffle="full")
    with pytest.raises(UsageError, match="state has shards"):
        full.load_state_dict(state | {"window": None})


@pytest.mark.slow
def test_stores_one_after_another_are_fetched_ahead(
    local: Path, second: Path, s3: str, ahead: list[tuple[str, int]]
) -> None:
    urls = [upload(path, f"{s3}/{path.name}") for path in (local, second)]
    loader, expected = (
        PackedLoader(concat(paths, "train", columns=COLUMNS), 10, shuffle=shuffle, resident=False)
        for paths, shuffle in ((urls, True), ((local, second), "lanes"))
    )
    assert loader.state_dict() == expected.state_dict()
    assert keys_of(loader) == keys_of(expected)
    assert {name for name, _ in ahead} == {local.name, second.name}
    stats = loader.stats()
    assert stats["fetched_bytes"] == sum(shard_bytes(local)[:50]) + sum(shard_bytes(second)[:20])
