"""Training from a store at a URL: lanes, shards fetched ahead, what stats() says, worker processes, several ranks."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import packstore
from packstore import Mix, PackedDataset, PackedLoader, UsageError, concat
from tests.internals import RemoteShards, UrlPath, location, upload_store
from tests.makers.datasets import make_cifar10

COLUMNS = ("image", "key")
NewCache = Callable[[str, int], None]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 records of ``train`` in 50 shards, 40 of ``test`` in 10."""
    root = tmp_path_factory.mktemp("local")
    packstore.convert(make_cifar10(root, 40), root / "c.pth", encoding="uint8", shard_size=4 * 3072)
    return root / "c.pth"


@pytest.fixture(scope="module")
def url(local: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    place = location(f"{(tmp_path_factory.mktemp('remote') / 'c.pth').as_uri()}")
    assert isinstance(place, UrlPath)
    upload_store(local, place)
    return str(place)


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


def keys(loader: PackedLoader) -> list[list[str]]:
    return [list(keys) for _, keys in loader]


def joined(parts: Sequence[list[list[str]]]) -> list[list[str]]:
    """The global batches, of the batches of each rank."""
    return [[key for part in step for key in part] for step in zip(*parts, strict=True)]


def shard_bytes(path: str | Path) -> list[int]:
    with packstore.open(path) as reader:
        table = reader.manifest.shards
        assert table is not None
        return [int(n) for n in table.table["nbytes"]]


def remote_of(loader: PackedLoader) -> RemoteShards:
    table = loader.dataset.reader.table
    assert isinstance(table, RemoteShards)
    return table


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"shuffle": "full"}, {"shuffle": "lanes", "window": 6}, {"sampler": [5, 3]}])
def test_batches_are_those_of_the_local_store(local: Path, url: str, options: dict[str, Any]) -> None:
    pairs = zip(loader_of(url, **options), loader_of(local, **options), strict=True)
    for (images, names), (expected, expected_names) in pairs:
        assert torch.equal(images, expected)
        assert names == expected_names


@pytest.mark.slow
def test_lanes_are_the_default(local: Path, url: str) -> None:
    lanes = loader_of(local, shuffle="lanes")
    default = loader_of(url, shuffle=True)
    assert default.state_dict() == lanes.state_dict()
    assert keys(default) == keys(lanes)
    assert loader_of(local, shuffle=True).state_dict()["shuffle"] == "full"
    assert loader_of(url, shuffle=True, block=8).state_dict()["shuffle"] == "full"
    loader_of(url, shuffle=True, window=3)


@pytest.mark.slow
def test_stats_say_what_was_fetched(local: Path, url: str) -> None:
    loader = loader_of(url, shuffle=True)
    keys(loader)
    stats = loader.stats()
    train = sum(shard_bytes(url)[:50])
    assert stats["fetched_bytes"] == train
    assert stats["cache_hits"] + stats["cache_misses"] >= 50  # several threads may come for the same shard
    assert stats["fetch_wait_seconds"] >= 0
    loader.reset_stats()
    keys(loader)
    stats = loader.stats()
    # The cache has room for all, and all shards are open.
    assert [stats[name] for name in ("cache_hits", "cache_misses", "fetched_bytes")] == [0, 0, 0]
    again = loader_of(url, shuffle=True)  # by another reader, from the same cache
    keys(again)
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
    reader = remote_of(loader)
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
    reader, total = remote_of(loader), sum(shard_bytes(url)[:50])
    for _ in range(3000):
        if reader.counts.fetched_bytes == total:
            break
        time.sleep(0.01)
    assert reader.counts.fetched_bytes == total
    loader.reset_stats()
    assert len(list(batches)) == 49
    assert loader.stats()["cache_misses"] == 0


@pytest.mark.slow
def test_a_fetch_that_hangs_holds_up_no_batch(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(RemoteShards, "prefetch", lambda *_: gate.wait(60))
    loader = loader_of(url, 4, shuffle=True, window=5)
    try:
        assert sorted(key for batch in keys(loader) for key in batch) == sorted(PackedDataset(url, "train").keys)
        assert not gate.is_set()
    finally:
        gate.set()
    assert loader.stats()["cache_misses"] == 50


@pytest.mark.slow
def test_a_window_that_does_not_fit_is_told(url: str, new_cache: NewCache, caplog: pytest.LogCaptureFixture) -> None:
    new_cache("tiny", 6 * max(shard_bytes(url)))
    with caplog.at_level(logging.WARNING):
        whole = keys(loader_of(url, 20, shuffle=True, window=20))
    assert sorted(key for batch in whole for key in batch) == sorted(PackedDataset(url, "train").keys)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "the cache has room for" in message
    assert "lower window=" in message
    caplog.clear()
    keys(loader_of(url, 4, shuffle=True, window=2))
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
            epoch += [key for batch in keys(loader) for key in batch]
        fetched += loader.stats()["fetched_bytes"]
    assert all(len(set(epoch)) == len(epoch) == 200 for epoch in seen)
    assert fetched <= 3 * 1.3 * sum(nbytes[:50])


@pytest.mark.slow
def test_the_next_epoch_begins_with_shards_that_are_there(url: str, new_cache: NewCache) -> None:
    new_cache("small", 16 * max(shard_bytes(url)))
    loader = loader_of(url, 4, shuffle=True, window=4, prefetch=1, workers=1)
    for _ in loader:
        pass
    reads = loader._epochs.list_shard_reads(1)
    assert reads is not None
    needed = [int(shard) for shard in reads.shards[reads.first == 0]]
    for _ in range(3000):
        if remote_of(loader).are_local(needed).all():
            break
        time.sleep(0.01)
    loader.reset_stats()
    next(iter(loader))
    assert loader.stats()["cache_misses"] == 0


@pytest.mark.slow
def test_shards_are_fetched_ahead_of_what_becomes_resident(
    local: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packstore.training.loader.resident._LOADED_BYTES", 8 * 3072)
    loader, expected = (loader_of(path, shuffle="lanes", resident=True) for path in (url, local))
    ahead, prefetch = list[int](), RemoteShards.prefetch

    def noted(table: RemoteShards, number: int) -> None:
        ahead.append(number)
        prefetch(table, number)

    monkeypatch.setattr(RemoteShards, "prefetch", noted)
    for (images, names), (wanted, wanted_names) in zip(loader, expected, strict=True):
        assert torch.equal(images, wanted)
        assert names == wanted_names
    assert ahead
    assert set(ahead) <= set(range(50))
    assert loader.stats()["fetched_bytes"] == sum(shard_bytes(url)[:50])


@pytest.mark.slow
def test_an_epoch_goes_on_with_three_ranks(url: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "window": 12}
    whole = keys(loader_of(url, 12, **options))
    two = [loader_of(url, 6, rank=rank, world_size=2, **options) for rank in range(2)]
    iterators = [iter(loader) for loader in two]
    given = joined([[list(next(iterator)[1]) for _ in range(5)] for iterator in iterators])
    three = [loader_of(url, 4, rank=rank, world_size=3, **options) for rank in range(3)]
    for loader in three:
        loader.load_state_dict(two[0].state_dict())
    assert given + joined([keys(loader) for loader in three]) == whole
    fetched = [loader.stats()["fetched_bytes"] for loader in three]
    assert sum(fetched) == 0  # all in the cache of the two


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_of_a_dataloader(local: Path, s3: str, method: str) -> None:
    place = location(f"{s3}/c.pth")
    assert isinstance(place, UrlPath)
    upload_store(local, place)
    dataset, expected = PackedDataset(f"{s3}/c.pth", "test"), PackedDataset(local, "test")
    image, label = dataset[3]  # the parent has used the object store, too
    assert torch.equal(image, expected[3][0])
    assert label == expected[3][1]
    loader = DataLoader(dataset, 8, num_workers=2, multiprocessing_context=method)
    images, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
    wanted, targets = expected[:]
    assert torch.equal(images, wanted)
    assert torch.equal(labels, targets)


@pytest.mark.slow
def test_another_process_reads_the_version_that_the_dataset_was_made_of(local: Path, tmp_path: Path) -> None:
    """Somebody appends, and replaces the store, while an epoch is under way."""
    place = location((tmp_path / "bucket" / "c.pth").as_uri())
    assert isinstance(place, UrlPath)
    upload_store(local, place)
    dataset, expected = PackedDataset(place, "test"), PackedDataset(local, "test")
    packstore.append(place, make_cifar10(tmp_path, 8), on_duplicate="skip")
    grown = PackedDataset(place, "test")
    other = pickle.loads(pickle.dumps(dataset))
    dataset.close()
    for again in (dataset, other):
        assert len(again) == len(expected)
        assert all(torch.equal(again[item][0], expected[item][0]) for item in (0, 7, 39))
    packstore.convert(make_cifar10(tmp_path / "others", 3), tmp_path / "other.pth", encoding="uint8", shard_size=3072)
    upload_store(tmp_path / "other.pth", place, overwrite=True)
    dataset.close()
    assert torch.equal(dataset[20][0], expected[20][0])
    assert len(PackedDataset(place, "test")) < len(expected) <= len(grown)


def _train(rank: int, address: str, url: str, out: Any) -> None:
    """One of two ranks: five batches, then its state."""
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    loader = loader_of(url, 6, shuffle=True, window=12)
    iterator = iter(loader)
    found = [list(next(iterator)[1]) for _ in range(5)]
    total = torch.tensor([float(loader.stats()["fetched_bytes"])])
    torch.distributed.all_reduce(total)
    out.put((rank, found, loader.state_dict(), float(total)))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_with_gloo_and_then_three(local: Path, s3: str, tmp_path: Path) -> None:
    url = f"{s3}/c.pth"
    place = location(url)
    assert isinstance(place, UrlPath)
    upload_store(local, place)
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    address = (tmp_path / "rendezvous").as_uri()
    ranks = [context.Process(target=_train, args=(rank, address, url, out)) for rank in range(2)]
    for process in ranks:
        process.start()
    results = sorted((out.get(timeout=120) for _ in ranks), key=lambda result: result[0])
    for process in ranks:
        process.join(240)
        assert process.exitcode == 0
    whole = keys(loader_of(local, 12, shuffle="lanes", window=12))
    given = [[key for _, found, _, _ in results for key in found[step]] for step in range(5)]
    assert given == whole[:5]
    three = [loader_of(url, 4, shuffle=True, window=12, rank=rank, world_size=3) for rank in range(3)]
    for loader in three:
        loader.load_state_dict(results[0][2])
    assert given + joined([keys(loader) for loader in three]) == whole


# Several stores -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 records of ``train`` in 20 shards, in another format."""
    root = tmp_path_factory.mktemp("second")
    packstore.convert(make_cifar10(root, 20), root / "s.lmdb", encoding="uint8", shard_size=5 * 3072)
    return root / "s.lmdb"


@pytest.fixture(scope="module")
def second_url(second: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    place = location((tmp_path_factory.mktemp("remote") / "s.lmdb").as_uri())
    assert isinstance(place, UrlPath)
    upload_store(second, place)
    return str(place)


def mixing(weights: dict[Any, float], batch_size: int = 10, epoch: int = 300, **options: Any) -> PackedLoader:
    mix = Mix(weights, "train", columns=COLUMNS, epoch=epoch)
    return PackedLoader(mix, batch_size, **{"shuffle": True, "resident": False, "workers": 2, "seed": 3} | options)


@pytest.mark.slow
def test_a_mix_of_urls_has_the_shares_and_records_of_the_local_one(
    local: Path, second: Path, url: str, second_url: str
) -> None:
    remote, near = mixing({url: 2, second_url: 1}, window=4), mixing({local: 2, second: 1})
    assert isinstance(remote.dataset, Mix)
    assert remote.dataset.draws == (200, 100)
    # In an epoch each record comes once, and so the order of its shards tells nothing.
    assert Counter(k for batch in keys(remote) for k in batch) == Counter(k for batch in keys(near) for k in batch)
    assert keys(remote) != keys(mixing({local: 2, second: 1}))
    full = mixing({url: 2, second_url: 1}, shuffle="full")
    assert keys(full) == keys(mixing({local: 2, second: 1}))
    assert keys(mixing({url: 2, second_url: 1}, shuffle=False)) == keys(mixing({local: 2, second: 1}, shuffle=False))
    with pytest.raises(UsageError, match="window is of shuffle='lanes' or of block"):
        mixing({local: 2, second: 1}, window=4)


@pytest.mark.slow
def test_each_store_of_a_mix_is_fetched_ahead(url: str, second: Path, second_url: str) -> None:
    """With time between batches, no thread waits for a shard but those of the first batch."""
    loader = mixing({url: 1, second_url: 1, second: 1}, prefetch=1, window=3, epoch=120)
    batches = iter(loader)
    next(batches)
    reads = loader._epochs.list_shard_reads(0)
    fetching = loader.dataset.reader.table
    assert reads is not None
    assert fetching.cache is not None
    assert {0, 1} == {int(part >= 50) for part in reads.shards}  # of both remote stores; the local one is not fetched
    sizes = fetching.part_nbytes
    assert (sizes[reads.shards] > 0).all()
    for _ in range(3000):
        here = loader.dataset.reader.unchecked_reader.table.are_local(range(len(sizes)))
        if (
            here[reads.shards].all() and sum(each.fetched_bytes for each in fetching.all_counts) == sizes[here].sum()
        ):  # no thread has to wait
            break
        time.sleep(0.01)
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
    assert fetching.cache is not None
    for _ in loader:
        assert sum(entry.nbytes for entry in fetching.cache.entries()) <= fetching.cache.budget


@pytest.mark.slow
def test_ranks_and_resuming_change_nothing_of_a_mix_of_urls(url: str, second_url: str) -> None:
    whole = keys(mixing({url: 3, second_url: 1}, 12, window=3))
    for ranks in (2, 3):
        parts = [mixing({url: 3, second_url: 1}, 12 // ranks, window=3, rank=r, world_size=ranks) for r in range(ranks)]
        assert joined([keys(part) for part in parts]) == whole
    begun = mixing({url: 3, second_url: 1}, 6, window=3, rank=1, world_size=2)
    batches = iter(begun)
    next(batches)
    resumed = mixing({url: 3, second_url: 1}, 12, window=3)
    resumed.load_state_dict(begun.state_dict())
    assert keys(resumed) == whole[1:]
    with pytest.raises(UsageError, match="state has window 3"):
        mixing({url: 3, second_url: 1}, 12, window=5).load_state_dict(begun.state_dict())
    full = mixing({url: 3, second_url: 1}, 12, shuffle="full")
    with pytest.raises(UsageError, match="state has shards"):
        full.load_state_dict(begun.state_dict() | {"window": None})


@pytest.mark.slow
def test_stores_one_after_another_are_fetched_ahead(
    local: Path, second: Path, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [f"{s3}/{path.name}" for path in (local, second)]
    for path, place in zip((local, second), urls, strict=True):
        to = location(place)
        assert isinstance(to, UrlPath)
        upload_store(path, to)
    ahead, prefetch = list[tuple[str, int]](), RemoteShards.prefetch

    def noted(table: RemoteShards, number: int) -> None:
        ahead.append((table.path.name, number))
        prefetch(table, number)

    monkeypatch.setattr(RemoteShards, "prefetch", noted)
    loader, expected = (
        PackedLoader(concat(paths, "train", columns=COLUMNS), 10, shuffle=shuffle, resident=False)
        for paths, shuffle in ((urls, True), ((local, second), "lanes"))
    )
    assert loader.state_dict() == expected.state_dict()
    assert keys(loader) == keys(expected)
    assert {name for name, _ in ahead} == {local.name, second.name}
    stats = loader.stats()
    assert stats["fetched_bytes"] == sum(shard_bytes(local)[:50]) + sum(shard_bytes(second)[:20])
