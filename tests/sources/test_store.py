"""Stores and exports of packstore as sources."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import pytest

import packstore
from packstore import Manifest
from packstore.sources import Entry, open_source
from packstore.stores import StoreBuilder
from packstore.testing import SourceSuite
from tests.internals import (
    ROW_CHECKSUM,
    Column,
    CorruptRecordError,
    Origin,
    Sample,
    SourceError,
    StoreError,
    StoreSource,
    convert,
    export,
)
from tests.makers.annotated import fill
from tests.makers.images import tiny
from tests.makers.sources import not_packed, refused

KEY, CHECKSUM = Column("key", "ragged", "uint8", type="text"), Column("checksum", "fixed", "uint64")
LABEL = Column("label", "fixed", "int64", classes=("cat", "dog"), type="label")
COARSE = Column("coarse_label", "fixed", "int64", type="label")
WEIGHT = Column("weight", "fixed", "float32")
FILES = Column("image", "ragged", "uint8", type="image")
SUFFIX = {"lmdb": ".lmdb", "hdf5": ".h5", "pth": ".pth"}

every_format = pytest.mark.parametrize("format", SUFFIX)


def write(
    path: Path,
    format: str,
    image: Column,
    images: list[bytes],
    *,
    encoding: str = "original",
    more: tuple[Column, ...] = (LABEL, COARSE, WEIGHT),
    values: dict[str, Any] | None = None,
    splits: tuple[str, ...] = ("train", "val"),
    shard_size: int | None = None,
) -> Path:
    """A store with as many records a split as there are images."""
    columns = (image, *more, KEY, CHECKSUM)
    with StoreBuilder(
        path, Manifest(format, encoding, 0, tuple(columns), Origin("imagefolder", "folder")), shard_size=shard_size
    ) as builder:
        for split in splits or ("",):
            count = len(images)
            given: dict[str, Any] = {
                "key": [f"{split}/\udcff{number}" for number in range(count)],
                "label": np.arange(count) % 2,
                "coarse_label": np.arange(count) * 10,
                "weight": np.zeros(count),
                **(values or {}),
            }
            builder.append(images, {c.name: given[c.name] for c in columns if c.name in given}, split)
        builder.commit()
    return path


class StoreSourceSuite(SourceSuite):
    kind = "store"
    has_files = False  # its manifest and checksums say what it holds
    exact_sizes = False  # of ragged images the mean stands for each
    suffix: str
    more: dict[str, Any]

    def make(self, folder: Path, samples: int) -> Path:
        for number in range(samples):
            image = folder / "photos" / ("train", "val")[number % 2] / f"{number % 3}" / f"{number}\udcff.png"
            image.parent.mkdir(parents=True, exist_ok=True)
            image.write_bytes(tiny(number))
        packstore.convert(folder / "photos", folder / f"store{self.suffix}", **self.more)
        return folder / f"store{self.suffix}"

    def change(self, path: Path) -> None:
        moved = next((path.parent / "photos").rglob("0*.png"))
        moved.rename(moved.with_name("new.png"))
        packstore.convert(path.parent / "photos", path, overwrite=True, **self.more)

    def spoil(self, path: Path, entry: Entry) -> bool:
        with packstore.open(path) as store:
            record = bytes(store.read(entry.ref))
        for file in [path] if path.is_file() else sorted(path.iterdir()):
            data = bytearray(file.read_bytes())
            places = [found.start() for found in re.finditer(re.escape(record), data)]
            for at in places:  # LMDB leaves old copies of pages
                data[at + len(record) // 2] ^= 1
            if places:
                file.write_bytes(data)
                return True
        raise AssertionError("the record lies in no file")


class TestLmdbSource(StoreSourceSuite):
    suffix, more = ".lmdb", {}


class TestHdf5ShardsSource(StoreSourceSuite):
    suffix, more = ".h5", {"shard_size": 100_000}

    def make(self, folder: Path, samples: int) -> Path:
        self.more = {"shard_size": max(500, samples * 20)}
        return super().make(folder, samples)


class TestPthSource(StoreSourceSuite):
    suffix, more = ".pth", {"encoding": "float16"}
    exact_sizes = True


@every_format
@pytest.mark.parametrize("shard_size", [None, 5])
def test_files_with_labels_and_splits(tmp_path: Path, format: str, shard_size: int | None) -> None:
    images = [b"one", b"", b"three" * 1000]
    source = open_source(write(tmp_path / f"s{SUFFIX[format]}", format, FILES, images, shard_size=shard_size))
    assert isinstance(source, StoreSource)
    assert source.kind == "store"
    survey = source.survey()
    assert dict(survey.splits) == {"train": 3, "val": 3}
    assert survey.sampled == {"weight"}
    assert [(c.name, c.classes) for c in survey.labels] == [("label", ("cat", "dog")), ("coarse_label", None)]
    assert (survey.encoding, survey.shape) == ("original", None)
    assert survey.size_bytes == 2 * 5003
    assert survey.store == source.reader.manifest
    assert survey.key_bytes == 3 * len(b"train/\xff0") + 3 * len(b"val/\xff0")
    entries = list(source.entries())
    assert [(e.key, e.split, e.labels, e.ref) for e in entries] == [
        (f"{split}/\udcff{number}", split, (number % 2, number * 10), record * 3 + number)
        for record, split in enumerate(("train", "val"))
        for number in range(3)
    ]
    assert [source.image(entry) for entry in entries] == images * 2
    assert all(type(source.image(entry)) is bytes for entry in entries)
    sample = source.read(entries[0])
    assert isinstance(sample, Sample)
    assert (sample.image, dict(sample.values), sample.key, sample.at_rest) == (images[0], {"weight": 0.0}, None, True)
    assert list(source.entries("val")) == entries[3:]
    one = source.survey("val")
    assert (dict(one.splits), one.size_bytes, one.key_bytes) == ({"val": 3}, 5003, 3 * len(b"val/\xff0"))
    with pytest.raises(SourceError, match="has no split 'test'; splits: train, val"):
        source.entries("test")
    source.close()
    source.close()


@every_format
def test_arrays_of_one_shape(tmp_path: Path, format: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), np.uint8)
    image = Column("image", "fixed", "uint8", (5, 6, 3), layout="HWC", type="image")
    path = write(tmp_path / "s", format, image, [p.tobytes() for p in pixels], encoding="uint8", splits=())
    source = open_source(path, kind="store")
    survey = source.survey()
    assert (dict(survey.splits), survey.encoding, survey.shape) == ({"": 4}, "uint8", (5, 6, 3))
    assert survey.size_bytes == 4 * 90
    arrays = [source.image(entry) for entry in source.entries()]
    np.testing.assert_array_equal(np.stack([np.asarray(a) for a in arrays]), pixels)
    assert {entry.size_bytes for entry in source.entries()} == {90}
    source.close()
    np.testing.assert_array_equal(np.asarray(arrays[0]), pixels[0])  # an image outlives its source


@every_format
def test_arrays_of_different_shapes(tmp_path: Path, format: str) -> None:
    rng = np.random.default_rng(0)
    pixels = [rng.integers(0, 256, (height, 4, 3), np.uint8) for height in (1, 7, 3)]
    path = write(
        tmp_path / "s",
        format,
        Column("image", "ragged", "uint8", layout="HWC", type="image"),
        [p.tobytes() for p in pixels],
        encoding="uint8",
        more=(Column("shape", "fixed", "int32", (3,)),),
        values={"shape": [p.shape for p in pixels]},
    )
    source = open_source(path)
    survey = source.survey()
    assert (survey.shape, survey.columns) == (None, ())
    entries = list(source.entries("val"))
    assert [e.labels for e in entries] == [()] * 3
    for entry, expected in zip(entries, pixels, strict=True):
        np.testing.assert_array_equal(np.asarray(source.image(entry)), expected)


@pytest.mark.parametrize("encoding", ["float16", "bfloat16", "float32"])
def test_floats_keep_their_bits(tmp_path: Path, encoding: str) -> None:
    image = Column("image", "fixed", encoding, (3, 2, 2), layout="CHW", type="image")
    rows = [bytes(range(n, n + image.record_nbytes)) for n in (0, 50)]
    source = open_source(write(tmp_path / "s.pth", "pth", image, rows, encoding=encoding))
    arrays = [np.asarray(source.image(entry)) for entry in source.entries("train")]
    assert [a.tobytes() for a in arrays] == rows
    assert arrays[0].shape == (3, 2, 2)
    assert arrays[0].dtype == {"float16": "<f2", "bfloat16": "<u2", "float32": "<f4"}[encoding]


@every_format
def test_a_damaged_record_is_told(tmp_path: Path, format: str) -> None:
    images = [b"the quick brown fox" * 300, b"jumps over the lazy dog" * 300]
    path = write(tmp_path / "s", format, FILES, images, splits=("train",))
    data = path / "data.mdb" if path.is_dir() else path
    blob = bytearray(data.read_bytes())
    blob[blob.index(b"lazy dog")] ^= 1
    data.write_bytes(blob)
    source = open_source(path)
    good, bad = source.entries()
    assert source.image(good) == images[0]
    with pytest.raises(CorruptRecordError, match=r"record 1 \(train/\\udcff1\) is damaged") as caught:
        source.read(bad)
    assert (caught.value.record, caught.value.key) == (1, "train/\udcff1")


def test_a_damaged_label_is_told_if_samples_have_no_other_values(tmp_path: Path) -> None:
    more = (LABEL, ROW_CHECKSUM)
    path = write(tmp_path / "s.h5", "hdf5", FILES, [b"one", b"two"], more=more, splits=("train",))
    with h5py.File(path, "r+") as file:
        file["label"][1] = 0
    source = open_source(path)
    good, bad = source.entries()
    assert source.read(good) == b"one"
    with pytest.raises(CorruptRecordError, match="row checksum"):
        source.read(bad)


def test_what_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"not LMDB")
    fill(tmp_path, {"x.h5": b"\x89HDF\r\n\x1a\n and nothing more", "x.pth": b"PK\x03\x04 and nothing more"})
    for path in (tmp_path, tmp_path / "x.h5", tmp_path / "x.pth"):
        refused(StoreError, path)
    (tmp_path / "text").write_text("text")
    refused(StoreError, tmp_path / "text", kind="store")


def test_an_image_folder_with_a_file_called_manifest_json_is_no_store(tmp_path: Path) -> None:
    fill(tmp_path, {"a/1.jpg": b"image"})
    (tmp_path / "manifest.json").write_text("{}")
    assert open_source(tmp_path).kind == "imagefolder"


class _Exported(SourceSuite):
    kind = "exported"
    bytes_per_sample = 400
    to: ClassVar[str]

    def make(self, folder: Path, samples: int) -> Path:
        root = folder.parent / f"{folder.name}-images"
        for i in range(samples):
            path = root / ("train", "val")[i % 3 == 2] / ("cat", "dog")[i % 2] / f"{i:05}\udce9.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(tiny(i))
        store = folder.parent / f"{folder.name}.lmdb"
        convert(root, store, check="none")
        export(store, folder / "out", to=self.to)
        shutil.rmtree(root)
        return folder / "out"

    def change(self, path: Path) -> None:
        rows = path / "packstore.rows.jsonl"
        rows.write_bytes(rows.read_bytes().replace(b'"key":"train/cat', b'"key":"train/cow'))


class TestFolder(_Exported):
    to = "imagefolder"

    def spoil(self, path: Path, entry: Entry) -> bool:
        found = path / entry.ref[1][0]
        found.unlink()
        return True

    def enlarge(self, path: Path, entry: Entry) -> bool:
        with (path / entry.ref[1][0]).open("r+b") as file:
            file.truncate(200 << 20)
        return True


class TestZip(_Exported):
    to = "zip"

    def change(self, path: Path) -> None:
        other = path.parent / "other"
        other.mkdir()
        shutil.move(self.make(other, 14), path)


class TestShards(_Exported):
    kind = "webdataset"
    to = "webdataset"


@pytest.mark.slow
def test_what_the_manifest_says_is_not_taken_on_trust(tmp_path: Path) -> None:
    suite = TestFolder()
    (tmp_path / "x").mkdir()
    path = suite.make(tmp_path / "x", 6)
    rows = path / "packstore.rows.jsonl"
    good = rows.read_text()
    hostile: Mapping[str, Any] = {
        "file": ["/etc/passwd", "../x", "", "a\0b", "\ud800", 5, None],
        "key": [5, "\ud800"],
        "values": [[], {"label": "x"}, {"label": 2**70}, {"label": 99}, {}],
    }
    first, rest = good.split("\n", 1)
    for name, values in hostile.items():
        for value in values:
            rows.write_text(json.dumps(json.loads(first) | {name: value}) + "\n" + rest)
            not_packed(SourceError, path, tmp_path / "never.lmdb")
    rows.unlink()
    refused(SourceError, path, r"packstore\.rows\.jsonl")
