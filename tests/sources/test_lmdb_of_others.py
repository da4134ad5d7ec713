"""LMDBs of others, made by lmdb as their publishers' programs make them.

``caffe.proto`` is written by hand here: Caffe itself is not to be had.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from packstore import PackedDataset, convert, verify
from packstore.sources import Entry, open_source
from packstore.testing import SourceSuite
from tests.internals import PackstoreError, SampleError, SourceError
from tests.makers.images import tiny
from tests.makers.sources import look, not_packed, prove, question, refused
from tests.makers.torchvision import import_torchvision

RNG = np.random.default_rng(8)


def write(path: Path, entries: dict[bytes, bytes], *, subdir: bool = True) -> Path:
    environment = lmdb.open(str(path), map_size=1 << 24, subdir=subdir)
    with environment.begin(write=True) as transaction:
        for key, value in entries.items():
            transaction.put(key, value)
    environment.close()
    return path


def data_file(path: Path) -> Path:
    return path / "data.mdb" if path.is_dir() else path


def spoil_value(path: Path, value: bytes) -> None:
    """Overwrites the beginning of a value."""
    file = data_file(path)
    data = file.read_bytes()
    assert data.count(value) == 1
    file.write_bytes(data.replace(value, b"x" * len(value)))


def pickled(number: int, protocol: int = 4) -> bytes:
    return pickle.dumps((tiny(number), number % 3), protocol)


def folder2lmdb(path: Path, samples: int, *, subdir: bool = False, protocol: int = 4) -> Path:
    entries = {b"%d" % n: pickled(n, protocol) for n in range(samples)}
    keys = [b"%d" % n for n in range(samples)]
    entries |= {b"__keys__": pickle.dumps(keys, protocol), b"__len__": pickle.dumps(len(keys), protocol)}
    return write(path, entries, subdir=subdir)


class TestFolder2Lmdb(SourceSuite):
    kind = "folder2lmdb"
    exact_sizes = False
    undecodable_keys = False

    def make(self, folder: Path, samples: int) -> Path:
        return folder2lmdb(folder / "data.lmdb", samples)

    def change(self, path: Path) -> None:
        write(path, {b"0": pickled(77)}, subdir=False)

    def spoil(self, path: Path, entry: Entry) -> bool:
        number = entry.ref[1]
        spoil_value(path, pickled(number))
        return True


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_folder2lmdb_by_splits_in_the_order_of_numbers(protocol: int, tmp_path: Path) -> None:
    for split, count in (("train", 12), ("val", 3)):
        folder2lmdb(tmp_path / "set" / f"{split}.lmdb", count, protocol=protocol) if split == "val" else None
        (tmp_path / "set").mkdir(exist_ok=True)
        folder2lmdb(tmp_path / "set" / f"{split}.lmdb", count, subdir=split == "train", protocol=protocol)
    report = prove(tmp_path / "set", tmp_path / "o.lmdb")
    assert [(s.name, len(s)) for s in report.manifest.splits] == [("train", 12), ("val", 3)]
    ds = PackedDataset(tmp_path / "o.lmdb", "train", output="bytes")
    assert [(bytes(image), label) for image, label in ds] == [
        (tiny(n), n % 3) for n in range(12)
    ]  # not 0, 1, 10, 11, 2


def test_pickles_are_never_run(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "ran"),))

    path = folder2lmdb(tmp_path / "a.lmdb", 4)
    for bad in (Bad(), (tiny(1), Bad()), [tiny(1)], (tiny(1), "cat"), ("text", 1), {"a": 1}):
        write(path, {b"2": pickle.dumps(bad)}, subdir=False)
        caught = not_packed(SampleError, path, tmp_path / "o.h5", r"pickle")
        assert caught.key == "0000000002"
    write(path, {b"__len__": pickle.dumps(Bad())}, subdir=False)
    not_packed(SourceError, path, tmp_path / "o.h5", "it is a pickle")
    assert not (tmp_path / "ran").exists()


def test_pyarrows_serialize_is_refused_with_advice(tmp_path: Path) -> None:
    entries = {b"0": b"\0\0\0\0\1", b"__keys__": b"\0\0", b"__len__": b"\0\0\0\0\0"}
    path = write(tmp_path / "a.lmdb", entries)
    refused(SourceError, path, r"of pyarrow\? Write it again with pickle")


def test_lengths_and_keys_that_lie(tmp_path: Path) -> None:
    path = folder2lmdb(tmp_path / "a.lmdb", 4)
    for count in (3, 5, -1, 10**18, "four"):
        write(path, {b"__len__": pickle.dumps(count)}, subdir=False)
        not_packed(SourceError, path, tmp_path / "o.h5", "__len__ should be 4, the number of samples")
    write(path, {b"07": b"", b"__len__": pickle.dumps(5)}, subdir=False)
    not_packed(SampleError, path, tmp_path / "o.h5", "'4' is missing in the LMDB")


def ocr(path: Path, samples: int) -> Path:
    entries = {b"num-samples": b"%d" % samples}
    for n in range(1, samples + 1):
        entries |= {b"image-%09d" % n: tiny(n), b"label-%09d" % n: f"Wört {n}".encode()}
    return write(path, entries)


class TestOcr(SourceSuite):
    kind = "ocr"
    exact_sizes = False
    undecodable_keys = False

    def make(self, folder: Path, samples: int) -> Path:
        return ocr(folder / "data", samples)

    def change(self, path: Path) -> None:
        write(path, {b"label-000000001": b"other"})

    def spoil(self, path: Path, entry: Entry) -> bool:
        spoil_value(path, f"Wört {entry.ref[1]}".encode())
        data = data_file(path).read_bytes()
        data_file(path).write_bytes(data.replace(b"x" * len(f"Wört {entry.ref[1]}".encode()), b"\xff" * 7, 1))
        return True


def test_ocr_becomes_text(tmp_path: Path) -> None:
    path = ocr(tmp_path / "a", 3)
    write(path, {b"wordbox-000000001": b"1"})
    convert(path, tmp_path / "o.lmdb")
    ds = PackedDataset(tmp_path / "o.lmdb", columns=("key", "image", "text"), output="bytes")
    expected = [(f"image-{n:09}", tiny(n), f"Wört {n}") for n in (1, 2, 3)]
    assert [(key, bytes(image), text) for key, image, text in ds] == expected
    for count in (b"2", b"4", b"x"):
        write(path, {b"num-samples": count})
        not_packed(SourceError, path, tmp_path / "p.lmdb", "num-samples is")


def test_ocr_without_a_label_or_an_image(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {b"num-samples": b"3", b"image-000000001": tiny(1), b"image-000000003": tiny(3)})
    write(path, {b"label-000000002": b"b", b"label-000000003": b"c"})
    report = convert(path, tmp_path / "o.h5", on_error="skip")
    assert [(each.key, each.reason) for each in report.skipped] == [
        ("image-000000001", "'label-000000001' is missing in the LMDB"),
        ("image-000000002", "'image-000000002' is missing in the LMDB"),
    ]


def basicsr(path: Path, samples: int) -> Path:
    names = [f"0801_s{n:03}" for n in range(samples)]
    write(path, {name.encode(): tiny(n) for n, name in enumerate(names)})
    (path / "meta_info.txt").write_text("".join(f"{name}.png (2,3,3) 1\n" for name in reversed(names)))
    return path


class TestBasicSr(SourceSuite):
    kind = "basicsr"
    exact_sizes = False
    undecodable_keys = False
    bytes_per_sample = 300

    def make(self, folder: Path, samples: int) -> Path:
        return basicsr(folder / "data.lmdb", samples)

    def change(self, path: Path) -> None:
        write(path, {b"0801_s001": tiny(99)})


def test_basicsr_in_the_order_of_its_list(tmp_path: Path) -> None:
    path = basicsr(tmp_path / "DIV2K.lmdb", 3)
    convert(path, tmp_path / "o.lmdb")
    ds = PackedDataset(tmp_path / "o.lmdb", columns=("key", "image"), output="bytes")
    assert [(key, bytes(image)) for key, image in ds] == [(f"0801_s{n:03}.png", tiny(n)) for n in (2, 1, 0)]
    listed = (path / "meta_info.txt").read_text()
    for wrong, said in ((listed + "x.png (2,3,3) 1\n", "lists 4"), (listed * 2, "line 4"), (listed + "\n", "line 4")):
        (path / "meta_info.txt").write_text(wrong)
        not_packed(SourceError, path, tmp_path / "p.lmdb", said)


@pytest.mark.parametrize("make", [ocr, basicsr])
def test_equal_keys_of_several_lmdbs(make: Callable[[Path, int], Path], tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for split, count in (("train", 3), ("val", 2)):
        make(tmp_path / "set" / f"{split}.lmdb", count)
    report = convert(tmp_path / "set", tmp_path / "o.lmdb")
    assert [(each.name, len(each)) for each in report.manifest.splits] == [("train", 3), ("val", 2)]
    own = look(tmp_path / "set" / "val.lmdb").keys
    ds = PackedDataset(tmp_path / "o.lmdb", "val", columns=("key", "image"), output="bytes")
    assert [key for key, _ in ds] == [f"val/{key}" for key in own]
    assert verify(tmp_path / "o.lmdb", decode=False, against=tmp_path / "set").ok


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def datum(data: bytes, shape: tuple[int, ...] = (), label: int = 0, *, encoded: bool = False) -> bytes:
    found = b"".join(varint(field << 3) + varint(size) for field, size in zip((1, 2, 3), shape, strict=False))
    found += varint(4 << 3 | 2) + varint(len(data)) + data + varint(5 << 3) + varint(label)
    return found + (varint(7 << 3) + b"\1" if encoded else b"")


class TestCaffe(SourceSuite):
    kind = "caffe"
    exact_sizes = False
    undecodable_keys = True

    def make(self, folder: Path, samples: int) -> Path:
        entries = {b"%08d_a.png" % n: datum(tiny(n), label=n % 3, encoded=True) for n in range(samples - 1)}
        return write(folder / "data", entries | {b"%08d_\xff.png" % samples: datum(tiny(9999), encoded=True)})

    def change(self, path: Path) -> None:
        write(path, {b"00000001_a.png": datum(tiny(1), label=9, encoded=True)})

    def spoil(self, path: Path, entry: Entry) -> bool:
        spoil_value(path, datum(tiny(2), label=2, encoded=True))
        return True


@pytest.mark.parametrize(("name", "red_first"), [("ilsvrc12_train_lmdb", False), ("cifar10_train_lmdb", True)])
def test_caffes_raw_pixels(name: str, red_first: bool, tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (3, 5, 4, 3), dtype=np.uint8)
    planes = images.transpose(0, 3, 1, 2) if red_first else images[..., ::-1].transpose(0, 3, 1, 2)
    path = write(tmp_path / name, {b"%08d" % n: datum(planes[n].tobytes(), (3, 5, 4), 7 + n) for n in range(3)})
    convert(path, tmp_path / "o.h5")
    ds = PackedDataset(tmp_path / "o.h5", output="numpy")
    for n, (image, label) in enumerate(ds):
        assert label == 7 + n
        assert np.array_equal(image, images[n])
    write(path, {b"00000001": datum(b"123", (3, 5, 4))})
    not_packed(SampleError, path, tmp_path / "p.h5", "has 3 bytes of pixels, expected 3 x 5 x 4")


def test_caffes_splits_and_gray_pixels(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("test", 2)):
        gray = {b"%08d" % n: datum(bytes(range(n, n + 6)), (1, 2, 3), n) for n in range(count)}
        write(tmp_path / "mnist" / f"mnist_{split}_lmdb", gray) if (tmp_path / "mnist").is_dir() else None
        (tmp_path / "mnist").mkdir(exist_ok=True)
        write(tmp_path / "mnist" / f"mnist_{split}_lmdb", gray)
    with closing(open_source(tmp_path / "mnist")) as source:
        assert dict(source.survey().splits) == {"train": 3, "test": 2}
        image = source.image(next(source.entries("test")))
        assert np.array_equal(image[..., 0], [[0, 1, 2], [3, 4, 5]])
    (tmp_path / "mnist" / "mnist_test_lmdb").rename(tmp_path / "mnist" / "other_lmdb")
    question(tmp_path / "mnist", "whose names do not have one split each")


LSUN = ("bedroom", "bridge", "church_outdoor", "classroom", "conference_room", "dining_room", "kitchen", "living_room",
        "restaurant", "tower")  # fmt: skip


def lsun(root: Path, classes: tuple[str, ...], count: int) -> Path:
    root.mkdir(exist_ok=True)
    for c, name in enumerate(classes):
        for s, split in enumerate(("train", "val")):
            keys = sorted(RNG.bytes(20).hex().encode() for _ in range(count))
            entries = {key: tiny(1000 * c + 100 * s + n) for n, key in enumerate(keys)}
            write(root / f"{name}_{split}_lmdb", entries)
    return root


class TestLsun(SourceSuite):
    kind = "lsun"
    undecodable_keys = False

    def make(self, folder: Path, samples: int) -> Path:
        for c, name in enumerate(("tower", "bridge")):
            write(folder / f"{name}_train_lmdb", {b"%040d" % n: tiny(5000 * c + n) for n in range(samples // 2)})
        return folder

    def change(self, path: Path) -> None:
        write(path / "tower_train_lmdb", {b"%040d" % 1: tiny(1234)})


@pytest.mark.slow  # torchvision takes seconds to import, and leaves its cache's files open
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_equality_with_torchvisions_lsun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = lsun(tmp_path / "lsun", LSUN, 3)
    write(root / "test_lmdb", {b"%040d" % n: tiny(9000 + n) for n in range(2)})
    convert(root, tmp_path / "o.lmdb")
    monkeypatch.chdir(tmp_path)  # it keeps a cache in the working directory
    for split in ("train", "val"):
        theirs = import_torchvision().datasets.LSUN(str(root), classes=split)
        ours = PackedDataset(tmp_path / "o.lmdb", split, output="numpy")
        assert [f"{name}_{split}" for name in ours.classes or ()] == list(theirs.classes)
        for (image, label), (expected, target) in zip(ours, (theirs[n] for n in range(len(theirs))), strict=True):
            assert label == target
            assert np.array_equal(image, np.asarray(expected))
    test = PackedDataset(tmp_path / "o.lmdb", "test", columns=("image", "label"), output="bytes")
    assert [(bytes(image), label) for image, label in test] == [(tiny(9000), None), (tiny(9001), None)]
    assert verify(tmp_path / "o.lmdb", against=root).problems == ()


def test_one_class_of_lsun(tmp_path: Path) -> None:
    lsun(tmp_path, ("church_outdoor",), 2)
    survey = look(tmp_path / "church_outdoor_val_lmdb")
    assert (dict(survey.splits), survey.columns[0].classes) == ({"val": 2}, ("church_outdoor",))


def test_stores_of_our_own_and_other_lmdbs(tmp_path: Path) -> None:
    convert(ocr(tmp_path / "a", 3), tmp_path / "o.lmdb")
    assert look(tmp_path / "o.lmdb").kind == "store"
    write(tmp_path / "unknown", {b"k%d" % n: b"value" for n in range(4)})
    refused(PackstoreError, tmp_path / "unknown", "manifest")
