"""Exports as shards of records (WebDataset, MDS, RecordIO, TFRecord): the contract, and what others read."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packstore
from packstore.stores import open_store
from packstore.testing import ExportSuite
from packstore.testing.exports import pixels_of
from packstore.testing.records import make_records, write
from tests.internals import LONGEST, MAGIC, TfdsExport, UsageError, convert, export, mds
from tests.internals import recordio_frame_record as frame_record
from tests.makers.images import tiny
from tests.makers.streaming import streaming_module
from tests.makers.typed import COLUMNS, make_typed


def samples(path: Path) -> list[tuple[str, dict[str, bytes]]]:
    """The samples of a shard as WebDataset's ``group_by_keys`` makes them: files of one key, up to the first dot of the
    file's name, that follow each other."""
    with tarfile.open(path) as tar:
        members = [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]

    def key(member: tuple[str, bytes]) -> str:
        folder, slash, base = member[0].rpartition("/")
        return folder + slash + base.partition(".")[0]

    groups = groupby(members, key)
    return [(k, {name.rpartition("/")[2].partition(".")[2]: data for name, data in group}) for k, group in groups]


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("typed")
    return make_typed(folder / "typed.lmdb", [column.name for column in COLUMNS], 6)


def test_each_value_is_a_file_that_others_know(typed: Any, tmp_path: Path) -> None:
    export(typed.path, tmp_path / "out", to="webdataset")
    (shard,) = (tmp_path / "out").glob("*.tar")
    found = samples(shard)
    assert len(found) == 6
    with open_store(typed.path) as reader:
        for i, ((_, files), values) in enumerate(zip(found, typed.values, strict=True)):
            assert files["png"] == bytes(reader.read(i))
            assert int(files["cls"]) == values["label"]
            assert files["mask.png"] == values["mask"]
            assert np.array_equal(np.load(io.BytesIO(files["raw.npy"])), values["raw"])
            assert np.array_equal(np.load(io.BytesIO(files["boxes.npy"])), values["boxes"])
            assert json.loads(files["info.json"]) == values["info"]
            assert files.get("caption.txt") == (values["caption"] and values["caption"].encode())
            assert files["blob.bin"] == values["blob"]
            assert ("depth.png" in files) == (values["depth"] is not None)
    assert (tmp_path / "out/classnames.txt").read_text() == "ant\nbee\ncat\n"


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_library_reads_it(typed: Any, tmp_path: Path) -> None:
    """With version 1.0.2, which leaves its shards open."""
    webdataset = pytest.importorskip("webdataset")
    export(typed.path, tmp_path / "out", to="webdataset")
    (shard,) = (tmp_path / "out").glob("*.tar")
    found = list(webdataset.WebDataset(str(shard), shardshuffle=False).decode("rgb8"))
    assert [sample["cls"] for sample in found] == [values["label"] for values in typed.values]
    assert all(np.array_equal(s["png"], image) for s, image in zip(found, typed.images, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ragged", "typed"])
def test_strange_keys_stay_in_the_shard_and_apart(tmp_path: Path, kind: str) -> None:
    records = make_records(kind, count=11)
    keys = ["../../x.jpg", "/etc/passwd", "a/../b", "x.y.z", "x", "x.jpg", ".hidden"]
    keys += ["__meta__", "a\0b", "y/" * 900, "X"]
    records.values["key"] = keys
    write(tmp_path / "in.lmdb", records)
    export(tmp_path / "in.lmdb", tmp_path / "out", to="webdataset")
    names, found = [], 0
    for shard in sorted((tmp_path / "out").glob("*.tar")):
        with tarfile.open(shard) as tar:
            names += tar.getnames()
            assert all(member.mtime == 0 and not member.pax_headers for member in tar)
        found += len(samples(shard))
    assert found == 11
    assert all(name and ".." not in name and name[0] != "/" and name.isprintable() for name in names)
    assert not any(name.rpartition("/")[2].startswith((".", "__")) for name in names)
    again = convert(tmp_path / "out", tmp_path / "again.lmdb", check="none")
    with open_store(tmp_path / "again.lmdb") as reader:
        assert [reader.key(i) for i in range(again.manifest.records)] == keys


def test_shards_are_of_about_one_size_and_of_one_split(tmp_path: Path) -> None:
    records = make_records("ragged", count=9, sizes=[400] * 9)
    write(tmp_path / "in.lmdb", records)
    report = export(tmp_path / "in.lmdb", tmp_path / "out", to="webdataset", shard_size=1000)
    names = sorted(path.name for path in (tmp_path / "out").glob("*.tar"))
    assert names == ["train-000000.tar", "train-000001.tar", "val-000000.tar"]
    assert report.shards == 3


class WithoutManifest:
    """A test of kinds that are sources like any other without ``packstore.json``."""

    kind: str
    keys = "key"

    def test_it_is_what_it_is_without_the_manifest(self: Any, store: Path, tmp_path: Path) -> None:
        out = self.destination(tmp_path)
        self.export(store, out)
        for file in out.glob("packstore.*"):
            file.unlink()
        again = self.import_back(out, tmp_path)
        assert again.origin.kind == self.kind
        with open_store(store) as reader, open_store(tmp_path / "again-0.h5") as other:
            assert again.splits == reader.manifest.splits
            for i in range(len(reader)):
                assert other.item(self.keys, i) == reader.key(i)
                assert other.item("label", i) == reader.item("label", i)
                assert bytes(other.read(i)) == bytes(reader.read(i))


class TestMds(WithoutManifest, ExportSuite):
    kind = "mds"
    keys = "key_"

    def test_streaming_reads_it(self, store: Path, tmp_path: Path) -> None:
        """Of the extra ``interop``."""
        reading = streaming_module("streaming.base.format.mds.reader")
        out = self.destination(tmp_path)
        self.export(store, out, shard_size=3000)
        with open_store(store) as reader:
            for split in reader.manifest.splits:
                samples = list(_samples(reading, out, split.name))
                assert len(samples) == len(split)
                for number, sample in zip(range(split.start, split.stop), samples, strict=True):
                    assert sample["key"] == reader.key(number)
                    assert sample["label"] == reader.item("label", number)
                    assert np.array_equal(np.asarray(sample["image"].convert("RGB")), pixels_of(reader.read(number)))

    def test_streaming_reads_columns_of_every_type(self, tmp_path: Path) -> None:
        """Of the extra ``interop``."""
        reading = streaming_module("streaming.base.format.mds.reader")
        encodings = streaming_module("streaming.base.format.mds.encodings")
        write(tmp_path / "in.lmdb", make_records("typed", count=9))
        out = self.destination(tmp_path)
        self.export(tmp_path / "in.lmdb", out)
        with open_store(tmp_path / "in.lmdb") as reader, pytest.MonkeyPatch.context() as patch:
            for encoding in ("jpeg", "png", "str"):  # those of this store cannot be decoded
                patch.setitem(encodings._encodings, encoding, encodings.Bytes)
            for split in reader.manifest.splits:
                samples = _samples(reading, out, split.name)
                for number, sample in zip(range(split.start, split.stop), samples, strict=True):
                    for column in (column for column in reader.manifest.columns if column.name in sample):
                        value = reader.item(column.name, number)
                        if column.type in ("array", "boxes", "labels", "keypoints") and value is not None:
                            assert np.asarray(sample[column.name]).tobytes() == np.asarray(value).tobytes(), column.name

    def test_a_shard_that_is_too_large(self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mds, "_MAX_SHARD_BYTES", 1000)
        with pytest.raises(UsageError, match="give a smaller --shard-size"):
            self.export(store, self.destination(tmp_path))


def _samples(reading: Any, folder: Path, split: str) -> list[dict[str, Any]]:
    index = json.loads((folder / split / "index.json").read_text())
    readers = [reading.MDSReader.from_json(str(folder), split, shard) for shard in index["shards"]]
    return [reader[i] for reader in readers for i in range(reader.samples)]


class TestRecordio(WithoutManifest, ExportSuite):
    kind = "recordio"

    def test_a_reader_of_the_layout_finds_all(self, store: Path, tmp_path: Path) -> None:
        """By the index, as ``MXIndexedRecordIO.read_idx`` and ``unpack`` of ``mxnet/recordio.py`` do; mxnet needs
        NumPy 1."""
        out = self.destination(tmp_path)
        self.export(store, out)
        with open_store(store) as reader:
            for split in reader.manifest.splits:
                data = (out / f"{split.name}-000000.rec").read_bytes()
                index = [line.split("\t") for line in (out / f"{split.name}-000000.idx").read_text().splitlines()]
                names = [line.split("\t") for line in (out / f"{split.name}-000000.lst").read_text().splitlines()]
                assert len(index) == len(names) == len(split)
                for i, number in enumerate(range(split.start, split.stop)):
                    place = int(index[i][1])
                    magic, word = struct.unpack_from("<II", data, place)
                    record = data[place + 8 : place + 8 + word]
                    flag, label, identity, _ = struct.unpack_from("<IfQQ", record)
                    assert (magic, word >> 29, flag, identity) == (0xCED7230A, 0, 0, int(index[i][0]))
                    assert label == reader.item("label", number) == float(names[i][1])
                    assert names[i][2] == reader.key(number)
                    assert record[24:] == bytes(reader.read(number))

    def test_labels_that_float32_does_not_hold(self, tmp_path: Path) -> None:
        with packstore.Writer(tmp_path / "in.lmdb", fields={"image": "image", "label": "label"}) as writer:
            for n in range(3):
                writer.add(key=f"{n}", image=tiny(n), label=(1 << 24) + n)
        digest = packstore.PackedDataset(tmp_path / "in.lmdb").manifest.dataset_digest
        report = self.export(tmp_path / "in.lmdb", tmp_path / "out")
        assert any("'label'" in line for line in report.losses)
        assert self.import_back(tmp_path / "out", tmp_path).dataset_digest == digest


def test_a_record_too_long() -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return LONGEST + 1

    with pytest.raises(ValueError, match="longer than"):
        frame_record(Long())


def test_images_that_hold_the_magic_number(tmp_path: Path) -> None:
    for n, where in enumerate([[0], [1], [4, 8], [5], [16], [3, 12], [20]]):
        data = bytearray(tiny(n) + bytes(24 + n))
        start = len(tiny(n)) + -len(tiny(n)) % 4
        for at in where:
            data[start + at : start + at + 4] = MAGIC[: max(0, len(data) - start - at)]
        folder = tmp_path / "images" / "a"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{n}.png").write_bytes(data)
    digest = convert(tmp_path / "images", tmp_path / "in.lmdb").manifest.dataset_digest
    packstore.export(tmp_path / "in.lmdb", tmp_path / "out", to="recordio")
    words = np.frombuffer((tmp_path / "out" / "000000.rec").read_bytes(), "<u4")
    flags = {int(words[i + 1]) >> 29 for i in np.flatnonzero(words == 0xCED7230A)}
    assert {0, 1, 3} <= flags
    assert convert(tmp_path / "out", tmp_path / "x.h5").manifest.dataset_digest == digest


class TestTfds(WithoutManifest, ExportSuite):
    kind = "tfds"

    def test_tensorflow_datasets_reads_it(self, store: Path, tmp_path: Path) -> None:
        """Of the extra ``interop``."""
        tfds = pytest.importorskip("tensorflow_datasets")
        out = self.destination(tmp_path)
        self.export(store, out, shard_size=3000)
        builder = tfds.builder_from_directory(out)
        assert builder.info.features["label"].names == ["cat", "dog: big"]
        with open_store(store) as reader:
            for split in reader.manifest.splits:
                records = list(tfds.as_numpy(builder.as_dataset(split=split.name)))
                assert builder.info.splits[split.name].num_examples == len(split) == len(records)
                for number, record in zip(range(split.start, split.stop), records, strict=True):
                    assert record["key"].decode() == reader.key(number)
                    assert record["label"] == reader.item("label", number)
                    difference = record["image"].astype(int) - pixels_of(reader.read(number))
                    assert abs(difference).max() < 40  # of two decoders of JPEG
        pair = next(iter(tfds.as_numpy(builder.as_dataset(split="train", as_supervised=True))))
        assert (pair[0].shape, pair[1]) == ((20, 30, 3), 0)

    def test_tensorflow_datasets_reads_columns_of_every_type(self, tmp_path: Path) -> None:
        """Of the extra ``interop``. Images are arrays, since those of this store cannot be decoded."""
        tfds = pytest.importorskip("tensorflow_datasets")
        write(tmp_path / "in.lmdb", make_records("typed", count=9))
        out = self.destination(tmp_path)
        self.export(tmp_path / "in.lmdb", out)
        builder = tfds.builder_from_directory(out)
        images = [name for name, it in builder.info.features.items() if type(it).__name__ == "Image"]
        decoders = dict.fromkeys(images, tfds.decode.SkipDecoding())
        with open_store(tmp_path / "in.lmdb") as reader:
            for split in reader.manifest.splits:
                records = tfds.as_numpy(builder.as_dataset(split=split.name, decoders=decoders))
                for number, record in zip(range(split.start, split.stop), records, strict=True):
                    for column in reader.manifest.columns:
                        if column.type in ("array", "boxes", "labels") and column.name in record:
                            value = reader.item(column.name, number)
                            if value is not None:
                                assert record[column.name].tobytes() == np.asarray(value).tobytes(), column.name

    def test_its_classes_and_what_is_learned_are_described(self, store: Path, tmp_path: Path) -> None:
        self.export(store, tmp_path / "out")
        (tmp_path / "out" / "packstore.json").unlink()
        items = [{"featureKey": "image"}, {"featureKey": "label"}]
        assert json.loads((tmp_path / "out/dataset_info.json").read_text())["supervisedKeys"]["tuple"] == {
            "items": items
        }
        assert self.import_back(tmp_path / "out", tmp_path).classes == ("cat", "dog: big")

    def test_boxes_and_missing_values_without_the_manifest(self, tmp_path: Path) -> None:
        fields = {
            "image": "image",
            "boxes": "boxes",
            "labels": packstore.Labels(("a", "b")),
            "text": packstore.Text(optional=True),
        }
        with packstore.Writer(tmp_path / "in.lmdb", fields=fields) as writer:
            for n in range(4):
                boxes = np.arange(4 * n, dtype=np.float32).reshape(n, 4) + 0.1
                text = None if n == 2 else f"t{n}"
                writer.add(key=f"{n}", image=tiny(n), boxes=boxes, labels=[i % 2 for i in range(n)], text=text)
        self.export(tmp_path / "in.lmdb", tmp_path / "out")
        (tmp_path / "out" / "packstore.json").unlink()
        convert(tmp_path / "out", tmp_path / "x.h5")
        ds = packstore.PackedDataset(tmp_path / "x.h5", "train", columns=("boxes", "labels", "text", "text_valid"))
        for n, (boxes, labels, text, valid) in enumerate(ds):
            assert np.array_equal(boxes, np.arange(4 * n, dtype=np.float32).reshape(n, 4) + np.float32(0.1))
            assert labels.tolist() == [i % 2 for i in range(n)]
            assert (text, bool(valid)) == (("" if n == 2 else f"t{n}"), n != 2)

    def test_splits_that_tensorflow_would_not_take(self, tmp_path: Path) -> None:
        for split in ("train", "val"):
            (tmp_path / "images" / split / "a").mkdir(parents=True)
            (tmp_path / "images" / split / "a" / "0.png").write_bytes(tiny(len(split)))
        manifest = convert(tmp_path / "images", tmp_path / "in.lmdb").manifest
        splits = [replace(split, name=name) for split, name in zip(manifest.splits, ("all", "v 1/ä"), strict=True)]
        kind = TfdsExport(tmp_path, replace(manifest, splits=tuple(splits)), None, recoded=False)  # type: ignore[arg-type]
        names = {"all": "packstore-all_.tfrecord-00003", "v 1/ä": "packstore-v_1__.tfrecord-00003"}
        for split, name in names.items():
            assert kind.write_shard(3, split, ()) == name
        assert "names of splits: other characters than letters and digits become _" in kind.losses()
