"""``packstore.concat`` and ``Mix``: several stores as one dataset, in exact proportions and the same order anywhere."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

import packstore
from packstore import CorruptRecordError, Mix, PackedDataset, PackedLoader, StoreError, UsageError
from packstore.augment import CenterCrop, ColorJitter, RandomHorizontalFlip, RandomResizedCrop, Resize
from tests.internals import MASK, FetchedShards, Mixture, apportion
from tests.makers.batches import check_order, flat_keys, go_on, same
from tests.makers.datasets import pixels, write_image
from tests.makers.stores import damage

STORES = {"a.lmdb": ("ant", "bee"), "b.h5": ("bee", "cat"), "c.pth": ("dog",)}
COUNTS = {"a.lmdb": 5, "b.h5": 3, "c.pth": 4}
"""Images of each class of a store, in each split."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def paths(root: Path) -> list[Path]:
    return [root / name for name in STORES]


@pytest.mark.parametrize("checksums", ["auto", "always", "never"])
def test_records_follow_each_other_with_classes_and_splits_by_name(root: Path, checksums: Any) -> None:
    columns = ("image", "label", "key")
    ds = packstore.concat(paths(root), "train", columns=columns, checksums=checksums)
    assert ds.classes == ["ant", "bee", "cat", "dog"]
    expected = [
        (image, ds.classes.index(part.classes[label]), key)
        for part in (PackedDataset(path, "train", columns=columns) for path in paths(root))
        for image, label, key in part
    ]
    assert len(ds) == len(expected) == 20
    assert same(ds, expected)
    images, labels, keys = zip(*(expected[i] for i in (19, 0, 12)), strict=True)
    assert same(ds[[19, 0, 12]], (torch.stack(images), torch.tensor(labels), keys))
    assert ds.targets == [label for _, label, _ in expected]
    assert list(ds.keys) == [key for _, _, key in expected]
    assert len(packstore.concat(paths(root), "val")) == 16
    assert same(pickle.loads(pickle.dumps(ds))[15], ds[15])


def test_a_loader_gives_what_that_of_the_merged_store_gives(root: Path, tmp_path: Path) -> None:
    packstore.merge(paths(root), tmp_path / "merged.h5", on_duplicate="unchecked")
    options: dict[str, Any] = {"columns": ("image", "label", "key")}
    one = packstore.concat(paths(root), "train", **options)
    other = PackedDataset(tmp_path / "merged.h5", "train", **options)
    assert one.classes == other.classes
    for resident in (True, False):
        assert same(*(PackedLoader(ds, 6, shuffle=True, seed=3, resident=resident) for ds in (one, other)))


def test_lanes_go_by_the_files_of_all_stores(root: Path) -> None:
    ds = packstore.concat(paths(root), "train", columns=("image", "key"))
    loader = PackedLoader(ds, 5, shuffle="lanes", window=1, resident=False)
    assert ds.reader.table.starts.tolist() == [0, 10, 16, 20, 30][: len(ds.reader.table.starts)]
    assert Counter(key for _, keys in loader for key in keys) == Counter(ds.keys)


def test_a_damaged_record_has_its_number_in_all(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.h5"
    other.write_bytes((root / "b.h5").read_bytes())
    damage(other, [2], [])
    ds = packstore.concat([root / "a.lmdb", other], "train", checksums="always")
    with pytest.raises(CorruptRecordError, match="record 12 ") as error:
        ds[12]
    assert error.value.record == 12
    assert ds.reader.key(12) == error.value.key
    with pytest.raises(CorruptRecordError, match="record 12 "):
        list(PackedLoader(ds, 4, resident=False))
    loader = PackedLoader(ds, 4, resident=False, on_error="skip")
    assert sum(len(labels) for _, labels in loader) == 15
    assert loader.stats()["skipped"] == 1


def test_what_does_not_fit_is_refused(root: Path, tmp_path: Path) -> None:
    packstore.convert(root / "a", tmp_path / "float.pth", encoding="float16", size=8)
    with pytest.raises(StoreError, match="hold float16 and uint8: the images of the first are normalised"):
        packstore.concat([root / "a.lmdb", tmp_path / "float.pth"], "train")
    with pytest.raises(UsageError, match="name one with split=: train, val"):
        packstore.concat(paths(root))
    with pytest.raises(UsageError, match="should be a list of paths"):
        packstore.concat(str(root / "a.lmdb"))
    with pytest.raises(UsageError, match="one store or more"):
        packstore.concat([])
    with pytest.raises(UsageError, match=r"c\.pth has no records in the split"):
        Mix(paths(root), "val")
    for weight in (0, -1, float("nan"), True, "2"):
        with pytest.raises(UsageError, match="weights should be "):
            Mix({root / "a.lmdb": weight, root / "b.h5": 1}, "train")
    with pytest.raises(UsageError, match="raise its weight or epoch="):
        Mix({root / "a.lmdb": 1e9, root / "b.h5": 1}, "train")
    with pytest.raises(UsageError, match="temperature should be "):
        Mix(paths(root), "train", temperature=0)
    mix = Mix(paths(root), "train")
    for options in ({"block": 2, "shuffle": True}, {"indices": [1]}, {"sampler": [1]}, {"shuffle": "lanes"}):
        with pytest.raises(UsageError, match="a Mix decides on the order"):
            PackedLoader(mix, 1, **options)


# Mixtures -----------------------------------------------------------------------------------------------------------


def test_an_epoch_has_exact_shares_and_every_record_comes_in_turn(root: Path) -> None:
    mix = Mix({root / "a.lmdb": 3, root / "b.h5": 1, root / "c.pth": 0.5}, "train", columns=("image", "key"), epoch=18)
    assert mix.draws == (12, 4, 2)
    loader = PackedLoader(mix, 6, shuffle=True, seed=5)
    assert len(loader) == 3
    epochs = [Counter(flat_keys(loader)) for _ in range(6)]
    for epoch in epochs:
        assert Counter(key.split("/")[-1][0] for key in epoch.elements()) == {"a": 12, "b": 4, "c": 2}
    # 24 draws of the 6 records of b are each of them four times; 12 of the 4 of c, three times.
    for store, counts in (("a", {7, 8}), ("b", {4}), ("c", {3})):
        assert {count for key, count in sum(epochs, Counter()).items() if key.split("/")[-1][0] == store} <= counts


@pytest.mark.slow
def test_temperature_evens_weights_out(root: Path) -> None:
    assert Mix(paths(root), "train").draws == (10, 6, 4)
    assert Mix(paths(root), "train", temperature=1e9, epoch=30).draws == (10, 10, 10)
    assert Mix({root / "a.lmdb": 9, root / "b.h5": 1}, "train", temperature=2, epoch=40).draws == (30, 10)
    for weights in ({root / "a.lmdb": 9, root / "b.h5": 8}, {root / "a.lmdb": 0.9, root / "b.h5": 0.8}):
        with pytest.raises(UsageError, match="has none of a store"):  # as (9 / 8) ** 1000 is
            Mix(weights, "train", temperature=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_and_resuming_change_nothing(root: Path, shuffle: bool, resident: bool) -> None:
    weights = {root / "a.lmdb": 2, root / "b.h5": 3, root / "c.pth": 1}

    def make(batch_size: int, **options: Any) -> PackedLoader:
        mix = Mix(weights, "train", columns=("image", "key"), epoch=36)
        return PackedLoader(mix, batch_size, shuffle=shuffle, seed=2, resident=resident, **options)

    check_order(make, 12, (2, 3))
    assert same(go_on(make(6, rank=0, world_size=2), make(12)), list(make(12))[1:])
    other = PackedLoader(Mix({root / "a.lmdb": 1, root / "b.h5": 1}, "train"), 12)
    with pytest.raises(UsageError, match="the loader's state has dataset"):
        other.load_state_dict(make(12).state_dict())


def test_a_state_is_of_its_weights(root: Path) -> None:
    one, other = (
        PackedLoader(Mix({root / "a.lmdb": weight, root / "b.h5": 1}, "train"), 4, shuffle=True) for weight in (1, 2)
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
        ids = mixture.ids_at(np.arange(mixture.count), seed, epoch, shuffle)
        assert len(np.unique(ids)) == len(ids)
        records = ids & MASK
        stores = np.searchsorted(edges, records, "right") - 1
        assert np.bincount(stores, minlength=len(sizes)).tolist() == list(draws)
        np.add.at(seen, records, 1)
        window = mixture._window_records
        for start in range(0, mixture.count, window):
            counts = np.bincount(stores[: start + window], minlength=len(sizes))
            exact = np.array(draws) * min(start + window, mixture.count) / mixture.count
            assert (abs(counts - exact) <= 1).all()
        # Any part of the sequence is worked out by itself.
        some = data.draw(st.lists(st.integers(0, mixture.count - 1), min_size=1, max_size=20))
        assert mixture.ids_at(np.array(some, np.int64), seed, epoch, shuffle).tolist() == ids[some].tolist()
    for first, stop in pairwise(edges):
        assert seen[first:stop].max() - seen[first:stop].min() <= 1


@pytest.mark.slow
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
        records = mixture.ids_at(np.arange(mixture.count), seed, epoch, shuffle, shards) & MASK
        np.add.at(seen, records, 1)
        reads = mixture.list_shard_reads(seed, epoch, shuffle, batch, shards)
        if not fetched:
            assert reads is None
            continue
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
    draws = apportion(weights, count)
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
    assert [
        list(np.frombuffer(value, "<i8")) for value in (ds.reader.ragged_column("tags")[i] for i in range(4))
    ] == expected
    ((tags, _),) = PackedLoader(ds, 4)
    assert [labels.tolist() for labels in tags] == expected


# Several encodings --------------------------------------------------------------------------------------------------


def write_jpegs(root: Path, classes: str, count: int, gray: bool = False) -> Path:
    for number, kind in enumerate(classes):
        for i in range(count):
            path = root / kind / f"{root.name}{number * count + i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            seed = 31 * number + i + len(root.name)
            image = Image.fromarray(pixels(20 + 3 * i, 30 + 2 * number, seed))
            (image.convert("L") if gray else image).save(path, quality=95)
    return root


@pytest.fixture(scope="module")
def encodings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Stores of JPEG files, untouched and resized, and of pixels of one size and of several."""
    root = tmp_path_factory.mktemp("encodings")
    found = {}
    options: dict[str, dict[str, Any]] = {
        "files.lmdb": {},
        "small.h5": {"encoding": "jpeg", "max_side": 24},
        "square.h5": {"encoding": "uint8", "size": 24},
        "pixels.lmdb": {"encoding": "uint8", "max_side": 26},
    }
    for name, chosen in options.items():
        found[name] = root / name
        packstore.convert(write_jpegs(root / name.partition(".")[0], "ab", 4), found[name], **chosen)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("checksums", ["auto", "always", "never"])
def test_files_and_pixels_are_read_as_by_each_store(encodings: dict[str, Path], checksums: Any) -> None:
    columns = ("image", "label", "key")
    ds = packstore.concat([*encodings.values()], columns=columns, checksums=checksums)
    expected = [item for path in encodings.values() for item in PackedDataset(path, columns=columns)]
    assert len(ds) == len(expected) == 32
    assert same(ds, expected)
    assert len(packstore.concat([*encodings.values()], output="bytes")[17][0]) > 0


AUGMENTS: dict[str, list[Any]] = {
    "crop": [RandomResizedCrop(16), RandomHorizontalFlip()],
    "resize": [Resize((18, 22))],
    "colour": [Resize(20), CenterCrop(16), ColorJitter(0.4, 0.4, 0.4, 0.1)],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", AUGMENTS)
def test_a_loader_crops_each_as_a_loader_of_its_store(encodings: dict[str, Path], name: str) -> None:
    """A single batch without shuffling, so that each record has the number it has in the joined dataset."""
    options: dict[str, Any] = {"augment": AUGMENTS[name], "normalize": "imagenet", "seed": 4}
    ds = packstore.concat([*encodings.values()])
    ((images, labels),) = PackedLoader(ds, 32, **options)
    assert images.shape[:2] == (32, 3)
    assert images.dtype == torch.float32
    assert labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1] * 4
    for first, path in zip(range(0, 32, 8), encodings.values(), strict=True):
        # Random numbers go by the record: those of a dataset that begins with as many others.
        alone = packstore.concat([encodings["files.lmdb"]] * (first // 8) + [path])
        part = list(PackedLoader(alone, 8, **options))[-1][0]
        assert torch.equal(images[first : first + 8], part)


@pytest.mark.slow
def test_order_and_resuming_of_a_mix_of_encodings(encodings: dict[str, Path]) -> None:
    weights = {encodings["files.lmdb"]: 2, encodings["square.h5"]: 1, encodings["pixels.lmdb"]: 1}

    def make(batch_size: int, **options: Any) -> PackedLoader:
        mix = Mix(weights, columns=("image", "key"))
        return PackedLoader(mix, batch_size, shuffle=True, seed=1, augment=[RandomResizedCrop(12)], **options)

    check_order(make, 6, (2,))
    assert all(images.shape[1:] == (3, 12, 12) and images.dtype == torch.uint8 for images, _ in make(6))


@pytest.mark.slow
def test_damage_is_found_in_pixels_that_are_read_as_files(encodings: dict[str, Path], tmp_path: Path) -> None:
    other = tmp_path / "square.h5"
    other.write_bytes(encodings["square.h5"].read_bytes())
    damage(other, [3], [])
    ds = packstore.concat([encodings["files.lmdb"], other])
    augment = [RandomResizedCrop(12)]
    with pytest.raises(CorruptRecordError, match="record 11 "):
        list(PackedLoader(ds, 4, augment=augment))
    skipping = PackedLoader(ds, 4, augment=augment, on_error="skip")
    assert sum(len(labels) for _, labels in skipping) == 15
    trusting = packstore.concat([encodings["files.lmdb"], other], checksums="never")
    assert sum(len(labels) for _, labels in PackedLoader(trusting, 4, augment=augment)) == 16


@pytest.mark.slow
def test_floats_of_one_normalisation_are_read_as_float32(tmp_path: Path) -> None:
    source = write_jpegs(tmp_path / "photos", "ab", 3)
    names = [f"{encoding}.{suffix}" for encoding, suffix in zip(FLOATS, ("pth", "h5", "lmdb"), strict=True)]
    for name, encoding in zip(names, FLOATS, strict=True):
        packstore.convert(source, tmp_path / name, encoding=encoding, size=8, normalize="imagenet")
    ds = packstore.concat([tmp_path / name for name in names])
    expected = torch.cat([PackedDataset(tmp_path / name)[:][0] for name in names])
    for resident in (True, False):
        ((images, _),) = PackedLoader(ds, 18, resident=resident)
        assert images.dtype == torch.float32
        assert torch.equal(images, expected)
    assert torch.equal(torch.stack([ds[i][0] for i in range(18)]), expected)
    packstore.convert(source, tmp_path / "plain.pth", encoding="float16", size=8, normalize="cifar10")
    with pytest.raises(StoreError, match="differ in normalisation"):
        packstore.concat([tmp_path / "float32.lmdb", tmp_path / "plain.pth"])
    packstore.convert(source, tmp_path / "large.pth", encoding="float16", size=9, normalize="imagenet")
    with pytest.raises(StoreError, match=r"column 'image' of .* differs in its declaration"):
        packstore.concat([tmp_path / "float32.lmdb", tmp_path / "large.pth"])


FLOATS = ("float16", "bfloat16", "float32")


@pytest.mark.slow
def test_images_that_would_be_read_in_different_ways_are_refused(encodings: dict[str, Path], tmp_path: Path) -> None:
    gray = write_jpegs(tmp_path / "gray", "ab", 2, gray=True)
    packstore.convert(gray, tmp_path / "gray.lmdb", encoding="uint8", size=8, mode="L")
    with pytest.raises(StoreError, match="modes RGB and L; convert one of them with --mode"):
        packstore.concat([encodings["files.lmdb"], tmp_path / "gray.lmdb"])
    packstore.convert(gray, tmp_path / "files.lmdb", mode="L")
    both = packstore.concat([tmp_path / "gray.lmdb", tmp_path / "files.lmdb"])
    assert both[0][0].shape == (1, 8, 8)
    assert torch.equal(both[5][0], PackedDataset(tmp_path / "files.lmdb")[1][0])
    packstore.convert(write_jpegs(tmp_path / "up", "ab", 2), tmp_path / "up.lmdb", exif_transpose=True)
    with pytest.raises(StoreError, match="EXIF rotation"):
        packstore.concat([tmp_path / "up.lmdb", encodings["square.h5"]])
    deep = tmp_path / "deep" / "a" / "0.png"
    deep.parent.mkdir(parents=True)
    Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 900).save(deep)
    for depth in ("scale", "clip"):
        packstore.convert(tmp_path / "deep", tmp_path / f"{depth}.lmdb", mode="L", depth=depth)
    with pytest.raises(StoreError, match="are read with depth scale and clip"):
        packstore.concat([tmp_path / "scale.lmdb", tmp_path / "clip.lmdb"])
    packstore.convert(tmp_path / "deep", tmp_path / "deep.lmdb", encoding="uint16", size=8, mode="I;16")
    packstore.convert(tmp_path / "deep", tmp_path / "larger.lmdb", encoding="uint16", size=9, mode="I;16")
    with pytest.raises(StoreError, match="holds uint16 pixels of mode I;16, which cannot be read together"):
        packstore.concat([tmp_path / "deep.lmdb", tmp_path / "larger.lmdb"])
