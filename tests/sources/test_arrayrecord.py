"""ArrayRecord files: what their own library wrote, and what can be wrong with them.

``tests/corpus/arrayrecord`` was written by array_record 0.8.6 with ``group_size`` 1 to 4 and the compression that each
is called after: seven examples with an image, a label and a file's name. Zeros at the ends of blocks are left out, see
:func:`tests.makers.arrayrecord.expanded`.
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packstore import PackedDataset, convert
from packstore.testing import SourceSuite
from tests.internals import SampleError, SourceError, write_example
from tests.makers.arrayrecord import BLOCK, expanded, write_arrayrecord
from tests.makers.images import tiny
from tests.makers.sources import look, not_packed, prove

pytest.importorskip("array_record")
CORPUS = Path(__file__).parents[1] / "corpus"


def example(n: int, **more: Any) -> bytes:
    return write_example({"image": [tiny(n)], "label": np.array([n % 3]), "filename": [b"%04d.png" % n], **more})


def written(name: str, folder: Path) -> Path:
    path = folder / f"{name}.array_record"
    path.write_bytes(expanded((CORPUS / "arrayrecord" / f"{name}.blocks").read_bytes()))
    return path


class TestArrayRecord(SourceSuite):
    kind = "arrayrecord"
    bytes_per_sample = 400
    undecodable_keys = False

    def make(self, folder: Path, samples: int) -> Path:
        for name, numbers in {"train": range(samples - 2), "val": range(samples - 2, samples)}.items():
            write_arrayrecord(folder / f"a-{name}.array_record", [example(n) for n in numbers], 1)
        return folder

    def change(self, path: Path) -> None:
        file = path / "a-val.array_record"
        file.write_bytes(file.read_bytes())


@pytest.mark.parametrize("name", ["zstd", "uncompressed", "padded", "brotli", "snappy", "transposed"])
def test_what_the_library_wrote(name: str, tmp_path: Path) -> None:
    path = written(name, tmp_path)
    manifest = prove(path, tmp_path / "x.lmdb").manifest
    assert (manifest.origin.kind, manifest.records) == ("arrayrecord", 7)
    ds = PackedDataset(tmp_path / "x.lmdb", output="bytes")
    assert [(bytes(image), label) for image, label in ds] == [(tiny(n), n % 3) for n in range(7)]
    seen = look(path)
    assert seen.keys == [f"{n:04}.png" for n in range(7)]


@pytest.mark.slow
def test_records_over_several_blocks(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    blobs = [random.bytes(size) for size in (0, 65_400, 65_512, 65_536, 200_000)]
    records = [example(n, blob=[blob]) for n, blob in enumerate(blobs)]
    for group in (1, 2, 5):
        convert(write_arrayrecord(tmp_path / "own", records, group), tmp_path / "x.h5", overwrite=True)
        ds = PackedDataset(tmp_path / "x.h5", columns=("image", "blob"), output="bytes")
        assert [(bytes(image), bytes(blob)) for image, blob in ds] == [(tiny(n), blob) for n, blob in enumerate(blobs)]


def test_a_dataset_of_tensorflow_datasets(tmp_path: Path) -> None:
    folder = tmp_path / "1.0.0"
    folder.mkdir()
    written("zstd", tmp_path).rename(folder / "d-train.array_record-00000-of-00001")
    info = {"name": "d", "version": "1.0.0", "fileFormat": "array_record"}
    (folder / "dataset_info.json").write_text(json.dumps(info | {"splits": [{"name": "train", "shardLengths": ["7"]}]}))
    image = {"image": {"dtype": "uint8", "encodingFormat": "png", "shape": {"dimensions": ["-1", "-1", "3"]}}}
    features = {"image": image, "label": {"classLabel": {"numClasses": "3"}}, "filename": {"text": {}}}
    (folder / "features.json").write_text(json.dumps({"featuresDict": {"features": features}}))
    (folder / "label.labels.txt").write_text("ant\nbee\ncat\n")
    manifest = convert(folder, tmp_path / "x.h5").manifest
    assert (manifest.origin.kind, manifest.classes) == ("tfds", ("ant", "bee", "cat"))
    ds = PackedDataset(tmp_path / "x.h5", split="train", output="bytes")
    assert [(bytes(image), label) for image, label in ds] == [(tiny(n), n % 3) for n in range(7)]


@pytest.mark.parametrize(
    ("name", "said"), [("empty", "hold no records"), ("other", "none of its records is a tf.train.Example")]
)
def test_what_is_not_read(name: str, said: str, tmp_path: Path) -> None:
    caught = not_packed(SourceError, written(name, tmp_path), tmp_path / "x.h5", said)
    assert "\n" not in str(caught)


def test_files_that_are_cut_off(tmp_path: Path) -> None:
    whole = write_arrayrecord(tmp_path / "x.array_record", [example(n) for n in range(5)]).read_bytes()
    for size in (64, 1000, BLOCK, 2 * BLOCK - 1):
        (tmp_path / "x.array_record").write_bytes(whole[:size])
        caught = not_packed(SourceError, tmp_path / "x.array_record", tmp_path / "x.h5", "cannot be read: ")
        assert "\n" not in str(caught)


@pytest.mark.parametrize("place", [0, 30, 100])
def test_a_chunk_that_is_damaged(place: int, tmp_path: Path) -> None:
    """Its records are bad samples; the others are packed, and their columns are what they were."""
    path = write_arrayrecord(tmp_path / "x.array_record", [example(n) for n in range(9)])
    whole = bytearray(path.read_bytes())
    whole[whole.index(b"0003.png") + place] ^= 0xFF
    path.write_bytes(whole)
    not_packed(SampleError, path, tmp_path / "y.h5", r"x\.array_record: record 3: ")
    report = convert(path, tmp_path / "x.h5", on_error="skip")
    assert (report.manifest.records, len(report.skipped)) == (6, 3)
    assert [column.nullable for column in report.manifest.columns if column.name == "label"] == [False]


def test_the_library_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written("zstd", tmp_path)
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    not_packed(SourceError, path, tmp_path / "x.h5", r"zstd\.array_record: pip install 'packstore\[arrayrecord\]'")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zstd", "uncompressed"])
def test_damage_in_what_the_library_wrote_is_seen(name: str, tmp_path: Path) -> None:
    path = written(name, tmp_path)
    whole = path.read_bytes()
    begin, end = 64, len((CORPUS / "arrayrecord" / f"{name}.blocks").read_bytes()) - 300
    for at in range(begin, end, 37):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            report = convert(path, tmp_path / "x.h5", on_error="skip", overwrite=True)
        except SourceError:
            continue  # the index, or all that there is
        assert len(report.skipped) == 7 - report.manifest.records
        assert report.skipped


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_are_refused_and_not_unpickled(protocol: int, tmp_path: Path) -> None:
    records = [pickle.dumps({"image": tiny(n), "label": n}, protocol) for n in range(3)]
    write_arrayrecord(tmp_path / "a.array_record", records, 1)
    with pytest.raises(SourceError, match=r"none of its records is a tf\.train\.Example"):
        convert(tmp_path / "a.array_record", tmp_path / "x.h5")
