"""``packstore.concat`` and ``Mix``: several stores as one dataset, in exact proportions and the same order anywhere."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import packstore
from packstore import CorruptRecordError, Mix, PackedDataset, PackedLoader, StoreError, UsageError
from packstore.training.mixture import FetchedShards, Mixture, shared_out
from packstore.training.random_draws import MASK
from tests.makers.datasets import write_image
from tests.makers.stores import damage

STORES = {"a.lmdb": ("ant", "bee"), "b.h5": ("bee", "cat"), "c.pth": ("dog",)}
COUNTS = {"a.lmdb": 5, "b.h5": 3, "c.pth": 4}
"""Images of each class of a store, in each split."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("concat")
    for number, (name, classes) in enumerate(STORES.items()):
        for split in ("train", "val")[: 1 if name == "c.pth" else 2]:
            for place, kind in enumerate(classes):
                (root / name[0] / split / kind).mkdir(parents=True)
                for i in range(COUNTS[name]):
                    write_image(
                        root / name[0] / split / kind / f"{name[0]}{i}.png", 8, 8, 100 * number + 10 * place + i
                    )
        packstore.convert(root / name[0], root / name, encoding="uint8", size=8)
    return root


def paths(folder: Path) -> list[Path]:
    return [folder / name for name in STORES]


@pytest.mark.parametrize("checksums", ["auto", "always", "never"])
def test_records_follow_each_other_with_classes_and_splits_by_name(folder: Path, checksums: Any) -> None:
    columns = ("image", "label", "key")
    ds = packstore.concat(paths(folder), "train", columns=columns, checksums=checksums)
    assert ds.classes == ["ant", "bee", "cat", "dog"]
    expected = [
        (image, part.classes[label], key)
        for part in (PackedDataset(path, "train", columns=columns) for path in paths(folder))
        for image, label, key in part  # type: ignore[attr-defined]
    ]
    assert len(ds) == len(expected) == 20
    for i, (image, name, key) in enumerate(expected):
        found = ds[i]
        assert torch.equal(found[0], image)
        assert (ds.classes[found[1]], found[2]) == (name, key)
    images, labels, keys = ds[[19, 0, 12]]
    assert [ds.classes[i] for i in labels] == [expected[i][1] for i in (19, 0, 12)]
    assert keys == [expected[i][2] for i in (19, 0, 12)]
    assert torch.equal(images[0], expected[19][0])
    assert [ds.classes[i] for i in ds.targets] == [name for _, name, _ in expected]
    assert list(ds.keys) == [key for _, _, key in expected]
    assert len(packstore.concat(paths(folder), "val")) == 16
    again = pickle.loads(pickle.dumps(ds))
    assert again[15][1:] == ds[15][1:]


def test_a_loader_gives_what_that_of_the_merged_store_gives(folder: Path, tmp_path: Path) -> None:
    packstore.merge(paths(folder), tmp_path / "merged.h5", on_duplicate="unchecked")
    options: dict[str, Any] = {"columns": ("image", "label", "key")}
    both = (
        packstore.concat(paths(folder), "train", **options),
        PackedDataset(tmp_path / "merged.h5", "train", **options),
    )
    assert both[0].classes == both[1].classes
    for resident in (True, False):
        one, other = (list(PackedLoader(ds, 6, shuffle=True, seed=3, resident=resident)) for ds in both)
        for (images, labels, keys), (images_2, labels_2, keys_2) in zip(one, other, strict=True):
            assert torch.equal(images, images_2)
            assert labels.tolist() == labels_2.tolist()
            assert keys == keys_2


def test_lanes_go_by_the_files_of_all_stores(folder: Path) -> None:
    ds = packstore.concat(paths(folder), "train", columns=("image", "key"))
    loader = PackedLoader(ds, 5, shuffle="lanes", window=1, resident=False)
    assert ds.reader.part_starts.tolist() == [0, 10, 16, 20, 30][: len(ds.reader.part_starts)]
    assert Counter(key for _, keys in loader for key in keys) == Counter(ds.keys)


def test_a_damaged_record_has_its_number_in_all(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.h5"
    other.write_bytes((folder / "b.h5").read_bytes())
    damage(other, [2], [])
    ds = packstore.concat([folder / "a.lmdb", other], "train", checksums="always")
    with pytest.raises(CorruptRecordError, match="record 12 ") as error:
        ds[12]
    assert error.value.record == 12
    assert ds.reader.key(12) == error.value.key
    with pytest.raises(CorruptRecordError, match="record 12 "):
        list(PackedLoader(ds, 4, resident=False))
    loader = PackedLoader(ds, 4, resident=False, on_error="skip")
    assert sum(len(labels) for _, labels in loader) == 15
    assert loader.stats()["skipped"] == 1


def test_what_does_not_fit_is_refused(folder: Path, tmp_path: Path) -> None:
    packstore.convert(folder / "a", tmp_path / "files.h5")
    with pytest.raises(StoreError, match="hold uint8 and original"):
        packstore.concat([folder / "a.lmdb", tmp_path / "files.h5"], "train")
    with pytest.raises(UsageError, match="name one with split=: train, val"):
        packstore.concat(paths(folder))
    with pytest.raises(UsageError, match="should be a list of paths"):
        packstore.concat(str(folder / "a.lmdb"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="one store or more"):
        packstore.concat([])
    with pytest.raises(UsageError, match=r"c\.pth has no records in the split"):
        Mix(paths(folder), "val")
    for weight in (0, -1, float("nan"), True, "2"):
        with pytest.raises(UsageError, match="weights should be positive numbers"):
            Mix({folder / "a.lmdb": weight, folder / "b.h5": 1}, "train")
    with pytest.raises(UsageError, match="raise its weight or epoch="):
        Mix({folder / "a.lmdb": 1e9, folder / "b.h5": 1}, "train")
    with pytest.raises(UsageError, match="temperature should be a positive number"):
        Mix(paths(folder), "train", temperature=0)
    mix = Mix(paths(folder), "train")
    for options in ({"block": 2, "shuffle": True}, {"indices": [1]}, {"sampler": [1]}, {"shuffle": "lanes"}):
        with pytest.raises(UsageError, match="a Mix decides on the order"):
            PackedLoader(mix, 1, **options)  # type: ignore[arg-type]


# Mixtures -----------------------------------------------------------------------------------------------------------


def keys(loader: PackedLoader, epochs: int = 1) -> list[list[str]]:
    return [list(keys) for _ in range(epochs) for _, keys in loader]


def test_an_epoch_has_exact_shares_and_every_record_comes_in_turn(folder: Path) -> None:
    mix = Mix(
        {folder / "a.lmdb": 3, folder / "b.h5": 1, folder / "c.pth": 0.5}, "train", columns=("image", "key"), epoch=18
    )
    assert mix.draws == (12, 4, 2)
    loader = PackedLoader(mix, 6, shuffle=True, seed=5)
    assert len(loader) == 3
    epochs = [Counter(key for batch in keys(loader) for key in batch) for _ in range(6)]
    for epoch in epochs:
        assert Counter(key.split("/")[-1][0] for key in epoch.elements()) == {"a": 12, "b": 4, "c": 2}
    seen = sum(epochs, Counter())
    # 24 draws of the 6 records of b are each of them four times; 12 of the 4 of c, three times.
    assert {count for key, count in seen.items() if key.split("/")[-1][0] == "b"} == {4}
    assert {count for key, count in seen.items() if key.split("/")[-1][0] == "c"} == {3}
    assert {count for key, count in seen.items() if key.split("/")[-1][0] == "a"} <= {7, 8}


def test_temperature_evens_weights_out(folder: Path) -> None:
    assert Mix(paths(folder), "train").draws == (10, 6, 4)
    assert Mix(paths(folder), "train", temperature=1e9, epoch=30).draws == (10, 10, 10)
    assert Mix({folder / "a.lmdb": 9, folder / "b.h5": 1}, "train", temperature=2, epoch=40).draws == (30, 10)


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_and_resuming_change_nothing(folder: Path, shuffle: bool, resident: bool) -> None:
    def loader(ranks: int, rank: int) -> PackedLoader:
        weights = {folder / "a.lmdb": 2, folder / "b.h5": 3, folder / "c.pth": 1}
        mix = Mix(weights, "train", columns=("image", "key"), epoch=36)
        return PackedLoader(mix, 12 // ranks, shuffle=shuffle, seed=2, rank=rank, world_size=ranks, resident=resident)

    def items(loader: PackedLoader) -> Iterator[list[str]]:
        return (keys for _, keys in loader)

    one = loader(1, 0)
    whole = [list(batch) for _ in range(2) for batch in items(one)]
    for ranks in (2, 3):
        parts = [loader(ranks, rank) for rank in range(ranks)]
        steps = zip(*map(items, parts), strict=True)
        assert [[key for part in step for key in part] for step in steps] == whole[:3]
    begun = loader(2, 0)
    assert len(list(islice(items(begun), 1))) == 1
    resumed = loader(1, 0)
    resumed.load_state_dict(begun.state_dict())
    assert [list(batch) for _ in range(2) for batch in items(resumed)] == whole[1:]
    other = PackedLoader(Mix({folder / "a.lmdb": 1, folder / "b.h5": 1}, "train"), 12)
    with pytest.raises(UsageError, match="the loader's state has dataset"):
        other.load_state_dict(begun.state_dict())


def test_a_state_is_of_its_weights(folder: Path) -> None:
    one, other = (
        PackedLoader(Mix({folder / "a.lmdb": weight, folder / "b.h5": 1}, "train"), 4, shuffle=True)
        for weight in (1, 2)
    )
    with pytest.raises(UsageError, match="the loader's state has mixture"):
        other.load_state_dict(one.state_dict())


SIZES = st.lists(st.integers(1, 3000), min_size=1, max_size=5)


@given(SIZES, st.data())
def test_shares_are_exact_at_any_place(sizes: list[int], data: st.DataObject) -> None:
    draws = tuple(data.draw(st.lists(st.integers(1, 4000), min_size=len(sizes), max_size=len(sizes))))
    mixture = Mixture(tuple(sizes), draws)
    seed, shuffle = data.draw(st.integers(0, 99)), data.draw(st.booleans())
    edges = np.cumsum([0, *sizes])
    seen = np.zeros(sum(sizes), np.int64)
    for epoch in range(2):
        ids = mixture.ids(np.arange(mixture.count), seed, epoch, shuffle)
        assert len(np.unique(ids)) == len(ids)
        records = ids & MASK
        stores = np.searchsorted(edges, records, "right") - 1
        assert np.bincount(stores, minlength=len(sizes)).tolist() == list(draws)
        np.add.at(seen, records, 1)
        window = mixture._window
        for start in range(0, mixture.count, window):
            counts = np.bincount(stores[: start + window], minlength=len(sizes))
            exact = np.array(draws) * min(start + window, mixture.count) / mixture.count
            assert (abs(counts - exact) <= 1).all()
        # Any part of the sequence is worked out by itself.
        some = data.draw(st.lists(st.integers(0, mixture.count - 1), min_size=1, max_size=20))
        assert mixture.ids(np.array(some, np.int64), seed, epoch, shuffle).tolist() == ids[some].tolist()
    for first, stop in pairwise(edges):
        assert seen[first:stop].max() - seen[first:stop].min() <= 1


@given(SIZES, st.data())
def test_stores_that_are_fetched_come_shard_by_shard(sizes: list[int], data: st.DataObject) -> None:
    draws = tuple(data.draw(st.lists(st.integers(1, 4000), min_size=len(sizes), max_size=len(sizes))))
    fetched, parts, first_part = {}, [], 0
    for store, size in enumerate(sizes):
        cuts = data.draw(st.lists(st.integers(0, size), max_size=9))
        starts = np.array(sorted([0, *cuts]), np.int64)
        if data.draw(st.booleans()):
            fetched[store] = FetchedShards(first_part, starts)
        parts.append(starts + sum(sizes[:store]))
        first_part += len(starts)
    mixture = Mixture(tuple(sizes), draws, fetched)
    seed, shuffle, shards = data.draw(st.integers(0, 9)), data.draw(st.booleans()), data.draw(st.integers(1, 4))
    batch = data.draw(st.integers(1, 700))
    edges, seen = np.cumsum([0, *sizes]), np.zeros(sum(sizes), np.int64)
    for epoch in range(2):
        records = mixture.ids(np.arange(mixture.count), seed, epoch, shuffle, shards) & MASK
        np.add.at(seen, records, 1)
        reads = mixture.reads(seed, epoch, shuffle, batch, shards)
        if not fetched:
            assert reads is None
            continue
        assert reads is not None
        assert (np.diff(reads.first) >= 0).all()
        spans: dict[int, list[tuple[int, int]]] = {}
        for part, first, last in zip(*(column.tolist() for column in reads), strict=True):
            spans.setdefault(part, []).append((first, last))
        of_parts = np.searchsorted(np.concatenate(parts), records, "right") - 1
        stores = np.searchsorted(edges, records, "right") - 1
        for place in np.flatnonzero(np.isin(stores, [*fetched])).tolist():
            assert any(first <= place // batch <= last for first, last in spans[int(of_parts[place])])
    for first, stop in pairwise(edges):
        assert seen[first:stop].max() - seen[first:stop].min() <= 1


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8), st.integers(1, 10**6))
def test_draws_add_up_and_are_nearest_to_the_weights(weights: list[float], count: int) -> None:
    assume(min(weights) / sum(weights) * count >= 1)
    draws = shared_out(weights, count)
    assert sum(draws) == count
    assert all(
        abs(part - weight / sum(weights) * count) < 1 + 1e-6 for part, weight in zip(draws, weights, strict=True)
    )


def test_lists_of_labels_are_of_the_classes_of_all(tmp_path: Path) -> None:
    given = {"a.lmdb": (("x", "y"), [[0, 1], []]), "b.h5": (("z", "y"), [[1], [0, 1, 1]])}
    for name, (classes, lists) in given.items():
        columns = {"image": packstore.Image("uint8"), "tags": packstore.Labels(classes=classes)}
        with packstore.Writer(tmp_path / name, columns) as writer:
            for i, labels in enumerate(lists):
                writer.add(key=f"{name}{i}", image=np.zeros((4, 4, 3), np.uint8), tags=labels)
    ds = packstore.concat([tmp_path / name for name in given], columns=("tags", "image"))
    assert ds.manifest.column("tags").classes == ("x", "y", "z")
    expected = [[0, 1], [], [1], [2, 1, 1]]
    assert [ds[i][0].tolist() for i in range(4)] == expected
    assert [list(np.frombuffer(value, "<i8")) for value in (ds.reader.ragged("tags")[i] for i in range(4))] == expected
    ((tags, _),) = PackedLoader(ds, 4)
    assert [labels.tolist() for labels in tags] == expected
