"""Exports as TFRecord of TensorFlow Datasets: the contract."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import packstore
from packstore.stores import open_store
from packstore.testing import ExportSuite
from packstore.testing.export_base import pixels_of
from packstore.testing.records import make_records, write
from tests.internals import TfdsExport, convert
from tests.makers.images import tiny


class TestTfds(ExportSuite):
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

    def test_it_is_a_dataset_without_the_manifest(self, store: Path, tmp_path: Path) -> None:
        out = self.destination(tmp_path)
        self.export(store, out)
        (out / "packstore.json").unlink()
        items = [{"featureKey": "image"}, {"featureKey": "label"}]
        assert json.loads((out / "dataset_info.json").read_text())["supervisedKeys"] == {"tuple": {"items": items}}
        again = self.import_back(out, tmp_path)
        assert again.origin.kind == "tfds"
        with open_store(store) as reader, open_store(tmp_path / "again-0.h5") as other:
            assert again.classes == reader.manifest.classes
            assert again.splits == reader.manifest.splits
            for i in range(len(reader)):
                assert other.key(i) == reader.key(i)
                assert other.item("label", i) == reader.item("label", i)
                assert bytes(other.read(i)) == bytes(reader.read(i))

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
            with closing(kind.begin(3, split)) as shard:
                assert shard.file == name
        assert "names of splits: other characters than letters and digits become _" in kind.losses()
