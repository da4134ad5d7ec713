"""Exports as MDS shards: the contract, and what the library reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packstore.stores import open_store
from packstore.testing import ExportSuite
from packstore.testing.export_base import pixels_of
from packstore.testing.records import make_records, write
from tests.internals import UsageError, mds
from tests.makers.streaming import streaming_module


class TestMds(ExportSuite):
    kind = "mds"

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

    def test_it_is_mds_without_the_manifest(self, store: Path, tmp_path: Path) -> None:
        out = self.destination(tmp_path)
        self.export(store, out)
        (out / "packstore.json").unlink()
        assert self.import_back(out, tmp_path).origin.kind == "mds"
        with open_store(store) as reader, open_store(tmp_path / "again-0.h5") as other:
            assert other.manifest.splits == reader.manifest.splits
            for i in range(len(reader)):
                assert other.item("key_", i) == reader.key(i)
                assert other.item("label", i) == reader.item("label", i)
                assert bytes(other.read(i)) == bytes(reader.read(i))

    def test_a_shard_that_is_too_large(self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mds, "_MAX_SHARD_BYTES", 1000)
        with pytest.raises(UsageError, match="give a smaller --shard-size"):
            self.export(store, self.destination(tmp_path))


def _samples(reading: Any, folder: Path, split: str) -> list[dict[str, Any]]:
    index = json.loads((folder / split / "index.json").read_text())
    readers = [reading.MDSReader.from_json(str(folder), split, shard) for shard in index["shards"]]
    return [reader[i] for reader in readers for i in range(reader.samples)]
