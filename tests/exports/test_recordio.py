"""Exports as RecordIO of MXNet: the contract, and a reader of the published layout."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import packstore
from packstore.stores import open_store
from packstore.testing import ExportSuite
from tests.internals import LONGEST, MAGIC, convert
from tests.internals import recordio_frame_record as frame_record
from tests.makers.annotated import without_export_manifest
from tests.makers.images import tiny


class TestRecordio(ExportSuite):
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

    def test_it_is_recordio_without_the_manifest(self, store: Path, tmp_path: Path) -> None:
        out = self.destination(tmp_path)
        self.export(store, out)
        without_export_manifest(out)
        assert self.import_back(out, tmp_path).origin.kind == "recordio"
        with open_store(store) as reader, open_store(tmp_path / "again-0.h5") as other:
            assert other.manifest.splits == reader.manifest.splits
            for i in range(len(reader)):
                assert other.key(i) == reader.key(i)
                assert other.item("label", i) == reader.item("label", i)
                assert bytes(other.read(i)) == bytes(reader.read(i))


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
