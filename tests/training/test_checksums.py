"""What ``checksums="auto"``, the default of datasets and loaders, finds of damage, and what it lets pass."""

from __future__ import annotations

import functools
import logging
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import packstore
from packstore import CorruptRecordError, Manifest, PackedDataset, PackedLoader, StoreError
from packstore.augment import RandomCrop, RandomHorizontalFlip, RandomResizedCrop
from packstore.stores import StoreBuilder, open_store
from packstore.testing.records import make_records, write
from tests.internals import ARRAY_SHARE, ChecksumPolicy, Column, Origin, Part, SparinglyProven, proven
from tests.internals import base as column_module
from tests.makers.stores import change, overwrite

SUFFIXES = ("lmdb", "h5", "pth")
FLIPS = 150
CLASSES = ("ant", "bee", "cat")
CROP: list[Any] = [RandomResizedCrop(16), RandomHorizontalFlip()]

Pack = Callable[..., Path]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150 JPEG files, no two alike, three of each class."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(7)
    for number in range(FLIPS):
        folder = root / f"c{number // 3:02d}"
        folder.mkdir(exist_ok=True)
        small = Image.fromarray(rng.integers(0, 256, (6, 6, 3), np.uint8))
        small.resize((24, 20)).save(folder / f"{number:03d}.jpg", quality=80)
    return root


@pytest.fixture(scope="module")
def packed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    @functools.cache
    def make(suffix: str, encoding: str, shard_size: int | None) -> Path:
        path = tmp_path_factory.mktemp("packed") / f"{encoding}.{suffix}"
        size = 20 if encoding in ("uint8", "float16") else None
        packstore.convert(photos, path, encoding=encoding, size=size, shard_size=shard_size)
        return path

    return make


@pytest.fixture
def pack(packed: Pack, tmp_path: Path) -> Pack:
    """A copy of the photos, packed, that may be damaged."""

    def make(suffix: str, encoding: str = "original", shard_size: int | None = None) -> Path:
        store = packed(suffix, encoding, shard_size)
        if store.is_file():
            return Path(shutil.copy(store, tmp_path))
        return Path(shutil.copytree(store, tmp_path / store.name))

    return make


def set_label(path: Path, record: int, label: int) -> None:
    with open_store(path) as reader:
        parts = [part.fixed_column("label").copy() for part in reader.parts()]
    for part in parts:
        if record < len(part):
            changed = part.copy()
            changed[record] = label
            return overwrite(path, part.tobytes(), changed.tobytes())
        record -= len(part)
    raise IndexError(record)


def flip_a_bit(path: Path, record: int, share: float) -> None:
    """Changes a bit of an image, at this share of its bytes."""
    with open_store(path) as reader:
        image = bytes(reader.read(record))
    change(path, image, int(share * len(image)), 1 << record % 8)


def damaged_in(read: Callable[[], object]) -> int | None:
    """The damaged record that a function finds."""
    try:
        read()
    except CorruptRecordError as error:
        return error.record
    return None


# Images ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.sampled(2, fast=1)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("encoding", ["original", "jpeg"])
def test_a_flipped_bit_anywhere_in_a_jpeg_is_found(
    pack: Pack, suffix: str, sharded: bool, encoding: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = pack(suffix, encoding, shard_size=40_000 if sharded else None)
    for record in range(FLIPS):
        flip_a_bit(path, record, record / FLIPS)
    dataset = PackedDataset(path)
    assert bool(dataset.manifest.shards) == sharded
    for record in range(FLIPS):
        with pytest.raises(CorruptRecordError) as caught:
            dataset[record]
        assert caught.value.record == record
    for chosen in (dataset, pickle.loads(pickle.dumps(dataset))):
        loader = PackedLoader(chosen, 16, shuffle=True, augment=CROP, on_error="skip")
        with caplog.at_level(logging.WARNING, "packstore"):
            assert sum(len(labels) for _, labels in loader) == 0
        assert loader.stats()["skipped"] == FLIPS
    assert all("is damaged: checksum of its image" in message for message in caplog.messages)
    unchecked_reader = PackedDataset(path, checksums="never", output="bytes")
    assert len([unchecked_reader[record] for record in range(FLIPS)]) == FLIPS


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("output", ["tensor", "pil", "bytes"])
def test_the_error_names_record_key_and_what_to_do(pack: Pack, suffix: str, output: Any) -> None:
    path = pack(suffix)
    flip_a_bit(path, 70, 0.9)
    dataset = PackedDataset(path, output=output)
    dataset[69], dataset[71]
    reads: list[Callable[[], object]] = [lambda: dataset[70], lambda: dataset[69:72], lambda: dataset.show(70)]
    if output == "tensor":
        reads += [lambda: list(PackedLoader(dataset, 8, augment=CROP))]
    for read in reads:
        with pytest.raises(CorruptRecordError) as caught:
            read()
        with open_store(path) as reader:
            assert caught.value.expected == f"{int(reader.value('checksum', 70)):016x}"
        for part in ("record 70", "c23/070.jpg", caught.value.found, "packstore verify", "packstore repair"):
            assert part in str(caught.value)


def test_damaged_images_are_skipped_as_undecodable_ones_are(pack: Pack) -> None:
    path = pack("h5")
    for record in (0, 3, 149):
        flip_a_bit(path, record, 0.8)
    dataset = PackedDataset(path, columns=("image", "key"))
    loader = PackedLoader(dataset, 10, augment=CROP, on_error="skip")
    keys = [key for _, keys in loader for key in keys]
    assert keys == [key for record, key in enumerate(dataset.keys) if record not in (0, 3, 149)]
    assert loader.stats()["skipped"] == 3


# Arrays ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.sampled(2, per="suffix")
@pytest.mark.parametrize("record", [0, 101])
@pytest.mark.parametrize(("suffix", "options"), [("lmdb", {}), ("h5", {}), ("pth", {}), ("h5", {"shard_size": 60_000})])
@pytest.mark.parametrize("augment", [[], CROP], ids=["plain", "crop"])
def test_a_streamed_array_is_checked_every_sixteenth_epoch(
    pack: Pack, suffix: str, options: Any, augment: list[Any], record: int
) -> None:
    path = pack(suffix, "uint8", **options)
    flip_a_bit(path, record, 0.5)
    loader = PackedLoader(PackedDataset(path), 16, shuffle=True, augment=augment, resident=False)
    found = []
    for epoch in range(ARRAY_SHARE + 3):
        loader.set_epoch(epoch)
        if damaged_in(lambda: list(loader)) == record:
            found.append(epoch)
    assert found == [epoch for epoch in range(ARRAY_SHARE + 3) if (record + epoch) % ARRAY_SHARE == 0]


def test_epochs_share_arrays_out(pack: Pack) -> None:
    dataset = PackedDataset(pack("pth", "uint8"))
    records = np.random.default_rng(1).permutation(FLIPS)[:100]

    def rows(epoch: int, every: bool = False, checksums: Any = "auto") -> list[int]:
        return [
            *ChecksumPolicy(dataset.reader, checksums, ("image", "label")).choose_checksums(records, epoch, every).rows
        ]

    assert sorted(row for epoch in range(ARRAY_SHARE) for row in rows(epoch)) == list(range(100))
    assert all(rows(epoch) == rows(epoch + ARRAY_SHARE) for epoch in range(3))
    assert max(len(rows(epoch)) for epoch in range(ARRAY_SHARE)) <= 100 // 8
    assert rows(0, every=True) == rows(0, checksums="always") == list(range(100))
    assert rows(0, every=True, checksums="never") == []


@pytest.mark.parametrize(("suffix", "options"), [("lmdb", {}), ("pth", {}), ("pth", {"shard_size": 60_000})])
@pytest.mark.parametrize("way", ["items", "batches", "items of a DataLoader"])
def test_an_item_of_an_array_is_checked_every_sixteenth_time(pack: Pack, suffix: str, options: Any, way: str) -> None:
    path = pack(suffix, "float16", **options)
    flip_a_bit(path, 50, 0.5)
    found = 0
    for _process in range(2):  # each begins at another read
        dataset = PackedDataset(path)
        reads: dict[str, Callable[[], object]] = {
            "items": lambda: dataset[50],  # noqa: B023
            "batches": lambda: dataset[48:53],  # noqa: B023
            "items of a DataLoader": lambda: dataset.__getitems__([49, 50]),  # noqa: B023
        }
        for _ in range(2 * ARRAY_SHARE):
            found += damaged_in(reads[way]) == 50
        dataset[[0, 1]]
    assert found == 4


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("augment", [[], [RandomCrop(20, padding=2)]], ids=["plain", "padded"])
def test_resident_images_are_checked_while_they_are_loaded(
    pack: Pack, suffix: str, augment: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    path = pack(suffix, "uint8")
    with open_store(path) as reader:
        plain = np.stack([reader.array(record) for record in range(FLIPS)])
    flip_a_bit(path, 50, 0.5)
    set_label(path, 3, 2)
    with pytest.raises(CorruptRecordError, match=r"record 3 \(c01/003.jpg\)"):
        list(PackedLoader(PackedDataset(path), 16, resident=True, augment=augment))
    dataset = PackedDataset(path, columns=("image", "label", "key"))
    loader = PackedLoader(dataset, 16, resident=True, augment=augment, on_error="skip")
    with caplog.at_level(logging.WARNING, "packstore"):
        batches = list(loader)
    left = np.setdiff1d(np.arange(FLIPS), [3, 50])
    assert [len(labels) for _, labels, _ in batches] == [15, 16, 16, 15, *[16] * 5, 6]
    assert torch.cat([labels for _, labels, _ in batches]).tolist() == (left // 3).tolist()
    assert [key[4:7] for _, _, keys in batches for key in keys] == [f"{number:03d}" for number in left]
    assert sum("skipped: record" in message for message in caplog.messages) == 2
    assert loader.stats()["skipped"] == 2
    if not augment:
        images = torch.cat([images for images, _, _ in batches])
        assert np.array_equal(images.permute(0, 2, 3, 1).numpy(), plain[left])
    only = PackedLoader(dataset, 1, resident=True, augment=augment, on_error="skip", indices=[3, 4])
    assert [len(labels) for _, labels, _ in only] == [0, 1]


# Labels and other columns ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.sampled(9)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("encoding", ["original", "uint8"])
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("label", [2, -38])
def test_an_altered_label_is_found(pack: Pack, suffix: str, encoding: str, sharded: bool, label: int) -> None:
    path = pack(suffix, encoding, shard_size=60_000 if sharded else None)
    set_label(path, 40, label)

    def opened() -> PackedDataset:
        return PackedDataset(path, columns=("image", "label"))

    dataset, labels = opened(), PackedDataset(path, columns=("label",))
    reads: list[Callable[[], object]] = [
        lambda: dataset[40], lambda: dataset[39:42], lambda: dataset.targets, lambda: list(dataset.samples),
        lambda: labels[40], lambda: labels[[1, 40]], lambda: opened()[40], lambda: opened().targets,
        lambda: list(PackedLoader(opened(), 16, augment=CROP, resident=False)),
    ]  # fmt: skip
    if encoding == "uint8":
        reads += [lambda mode=mode: list(PackedLoader(opened(), 16, resident=mode)) for mode in (False, True)]
    for read in reads:
        with pytest.raises(CorruptRecordError) as caught:
            read()
        assert caught.value.record == 40
        assert caught.value.key == "c13/040.jpg"
    assert (dataset[39][1], dataset[41][1], dataset[149][1]) == (13, 13, 49)  # one does not keep the others back
    for resident in (False, True) if encoding == "uint8" else (False,):
        loader = PackedLoader(opened(), 16, augment=[] if resident else CROP, on_error="skip", resident=resident)
        assert torch.cat([labels for _, labels in loader]).tolist() == [n // 3 for n in range(FLIPS) if n != 40]


@pytest.mark.parametrize("checksums", ["auto", "always", "never"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_label_that_is_no_class_does_not_pass(tmp_path: Path, suffix: str, checksums: Any) -> None:
    """In a store whose checksums are right, since it was packed like that."""
    columns = [
        Column("image", "fixed", "uint8", (4, 4, 3), layout="HWC", type="image"),
        Column("label", "fixed", "int64", classes=CLASSES, type="label"),
        Column("key", "ragged", "uint8", type="text"),
        Column("checksum", "fixed", "uint64"),
        Column("row_checksum", "fixed", "uint64"),
    ]
    path = tmp_path / f"a.{suffix}"
    format = {"h5": "hdf5"}.get(suffix, suffix)
    with StoreBuilder(path, Manifest(format, "uint8", 0, tuple(columns), Origin("test", "labels"))) as builder:
        spool = builder._spools["label"]
        spool.column = replace(columns[1], classes=None)  # it would refuse them
        images = [bytes([i]) * 48 for i in range(20)]
        labels = [7 if i == 5 else -1 if i == 11 else i % 3 for i in range(20)]
        builder.append(images, {"label": np.array(labels), "key": [f"k{i}" for i in range(20)]}, "")
        spool.column = columns[1]
        builder.commit()
    dataset = PackedDataset(path, checksums=checksums)
    words = r"record {} \(k{}\) is damaged: its label is {}, expected one from 0 to 2; packstore verify"
    for record in (5, 11):
        for read in (lambda: dataset[record], lambda: dataset[record : record + 1]):  # noqa: B023
            with pytest.raises(CorruptRecordError, match=words.format(record, record, labels[record])):
                read()
    with pytest.raises(CorruptRecordError, match=words.format(5, 5, 7)):
        dataset.targets  # noqa: B018
    for resident in (False, True):
        with pytest.raises(CorruptRecordError, match=words.format(5, 5, 7)):
            list(PackedLoader(dataset, 6, resident=resident))
        loader = PackedLoader(dataset, 6, resident=resident, on_error="skip")
        assert torch.cat([labels for _, labels in loader]).tolist() == [n for n in labels if n in (0, 1, 2)]
    assert dataset[4][1] == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("kept", [True, False])
def test_columns_are_what_was_packed(
    pack: Pack, suffix: str, sharded: bool, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of columns too large to be kept in memory, whose records are checked one by one."""
    if not kept:
        monkeypatch.setattr(proven, "MOST_KEPT_BYTES", 100)
    path = pack(suffix, shard_size=40_000 if sharded else None)
    columns = ("label", "key", "checksum", "row_checksum")
    plain, checked = (PackedDataset(path, columns=columns, checksums=checksums) for checksums in ("never", "auto"))
    some = [149, 0, 70, 70, 3]
    assert [checked[i] for i in some] == [plain[i] for i in some]
    for ours, theirs in zip(checked[some], plain[some], strict=True):
        assert ours.tolist() == theirs.tolist() if isinstance(ours, torch.Tensor) else ours == theirs
    assert checked.targets == plain.targets
    assert list(checked.keys) == list(plain.keys)
    set_label(path, 3, 5)
    if kept:  # it was read before, and what was proven stays
        assert checked[3] == checked[-147]
        assert checked[3][0] == 1
        assert checked.targets == [n // 3 for n in range(FLIPS)]
    else:
        checked.close()
        assert checked[4] == plain[4]
        with pytest.raises(CorruptRecordError, match=r"record 3 .* row checksum"):
            checked[3]
        with pytest.raises(CorruptRecordError, match=r"record 3 .* row checksum"):
            checked[[4, 3]]


@pytest.mark.slow
def test_one_item_opens_one_shard(pack: Pack) -> None:
    path = pack("h5", shard_size=20_000)
    dataset = PackedDataset(path, columns=("image", "label", "key"))
    reader = dataset.reader
    sharded: Any = reader.table
    assert len(sharded.starts) > 3
    dataset[0]
    assert list(sharded._open) == [0]
    with pytest.raises(IndexError):
        reader.value("label", FLIPS)
    with pytest.raises(IndexError):
        reader.value("label", -1)


def test_readers_say_what_they_are(pack: Pack) -> None:
    path = pack("lmdb")
    with open_store(path, "auto") as checked, open_store(path) as plain:
        assert checked.unchecked_reader.unchecked_reader is checked.unchecked_reader
        assert checked.key(3) == plain.key(3)
        assert checked.fixed_column("label").tolist() == plain.fixed_column("label").tolist()
        assert bytes(checked.read(3)) == bytes(plain.read(3))
        with pytest.raises(KeyError):
            checked.value("nothing", 0)
    set_label(path, 3, 5)
    with open_store(path, "auto") as checked, pytest.raises(StoreError, match="column 'label'"):
        checked.column("label")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", ["a_mask", "a_float32"])
def test_a_large_value_that_was_proven_is_checked_by_itself(
    tmp_path: Path, suffix: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time with all fields of its record, then alone; what happens to it afterwards is seen all the same."""
    monkeypatch.setattr(proven, "MOST_KEPT_BYTES", 100)
    monkeypatch.setattr(column_module, "_WHOLE_BYTES", 100)
    path = tmp_path / f"typed.{suffix}"
    records = make_records("typed", 6, sizes=range(9, 15))
    write(path, records)
    value = bytes(records.values[name][3])
    asked: list[str] = []
    read = Part.value
    monkeypatch.setattr(Part, "value", lambda self, name, i: (asked.append(name), read(self, name, i))[1])
    with open_store(path, "auto") as reader:
        assert bytes(reader.value(name, 3)) == value
        assert {name, "a_text", "row_checksum"} <= set(asked)
        faults = np.array([3]), [name]
        for read_again in (lambda: bytes(reader.value(name, 3)) == value, lambda: not reader.find_faults(*faults)):
            asked.clear()
            assert read_again()
            assert asked == [name]
        change(path, value, 5, 1)
        with pytest.raises(CorruptRecordError, match=r"record 3 .* row checksum"):
            reader.value(name, 3)
        assert {*reader.find_faults(np.array([2, 3]), [name])} == {3}


@pytest.mark.slow
def test_values_that_share_a_slot_of_hashes_are_all_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they are equal: what proved one says nothing of the other."""
    monkeypatch.setattr(proven, "MOST_KEPT_BYTES", 10)
    monkeypatch.setattr(proven, "MOST_KEPT_HASHES", 3)
    path = tmp_path / "a.h5"
    records = make_records("typed", 6, sizes=range(9, 15))
    write(path, records)
    with open_store(path, "auto") as reader:
        checked: list[int] = []
        check = SparinglyProven._check_row
        monkeypatch.setattr(
            SparinglyProven, "_check_row", lambda self, i, known: (checked.append(i), check(self, i, known))[1]
        )
        labels = records.values["label"]
        assert labels[0] == labels[3]
        for turn in ([0], [0], [3], [3], [0], [1, 2, 4, 5]):
            assert reader.find_faults(np.array(turn), ["label"]) == {}
        assert checked == [0, 3, 0, 1, 2, 4, 5]
        assert [int(reader.value("label", number)) for number in range(6)] == list(labels)
