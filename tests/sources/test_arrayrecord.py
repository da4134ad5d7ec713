"""ArrayRecord files: what their own library wrote, and what can be wrong with them.

``tests/corpus/arrayrecord`` was written by array_record 0.8.6 with ``group_size`` 1 to 4 and the compression that each
is called after: seven examples with an image, a label and a file's name. Zeros at the ends of blocks are left out, see
:func:`tests.makers.arrayrecord.expanded`. ``tests/corpus/riegeli/large.xz`` has five with 70,000 bytes beside, so that
headers of blocks lie within records.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packstore import PackedDataset, convert, verify
from packstore.core.errors import SampleError, SourceError
from packstore.core.protobuf import write_example
from packstore.images.engine import highway_hash
from packstore.sources import open_source
from packstore.testing import SourceSuite
from tests.makers.arrayrecord import BLOCK, chunk, expanded, hashed, write_arrayrecord
from tests.makers.images import tiny

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


@pytest.mark.parametrize("name", ["zstd", "uncompressed", "padded"])
def test_what_the_library_wrote(name: str, tmp_path: Path) -> None:
    path = written(name, tmp_path)
    manifest = convert(path, tmp_path / "x.lmdb").manifest
    assert (manifest.origin.kind, manifest.records) == ("arrayrecord", 7)
    ds = PackedDataset(tmp_path / "x.lmdb", output="bytes")
    assert [(bytes(image), label) for image, label in ds] == [(tiny(n), n % 3) for n in range(7)]
    with closing(open_source(path)) as source:
        assert [entry.key for entry in source.entries()] == [f"{n:04}.png" for n in range(7)]
    assert verify(tmp_path / "x.lmdb", against=path).problems == ()


def test_records_over_several_blocks(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(lzma.decompress((CORPUS / "riegeli" / "large.xz").read_bytes()))
    convert(path, tmp_path / "x.h5")
    ds = PackedDataset(tmp_path / "x.h5", columns=("image", "blob"), output="bytes")
    assert [(bytes(image), bytes(blob)) for image, blob in ds] == [(tiny(n), bytes(70000 + n)) for n in range(5)]
    random = np.random.default_rng(1)
    blobs = [random.bytes(size) for size in (0, 65_400, 65_512, 65_536, 200_000)]
    records = [example(n, blob=[blob]) for n, blob in enumerate(blobs)]
    for group in (1, 2, 5):
        convert(write_arrayrecord(tmp_path / "own", records, group), tmp_path / "x.h5", overwrite=True)
        ds = PackedDataset(tmp_path / "x.h5", columns=("image", "blob"), output="bytes")
        assert [bytes(blob) for _, blob in ds] == blobs


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
    ("name", "said"),
    [
        ("brotli", "in the compression 'b', which packstore does not read"),
        ("snappy", "in the compression 's', which packstore does not read"),
        ("transposed", "a chunk of type 't'"),
        ("empty", "hold no records"),
        ("other", "none of its records is a tf.train.Example"),
    ],
)
def test_what_is_not_read(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises((SampleError, SourceError), match=said) as caught:
        convert(written(name, tmp_path), tmp_path / "x.h5")
    assert "\n" not in str(caught.value)


def test_files_that_are_cut_off(tmp_path: Path) -> None:
    whole = write_arrayrecord(tmp_path / "x.array_record", [example(n) for n in range(5)]).read_bytes()
    for size in (64, 1000, BLOCK, 2 * BLOCK - 1):
        (tmp_path / "x.array_record").write_bytes(whole[:size])
        with pytest.raises(SourceError, match="cannot be read: it") as caught:
            convert(tmp_path / "x.array_record", tmp_path / "x.h5")
        assert "\n" not in str(caught.value)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("sound", [False, True], ids=["as it is", "with its hashes"])
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (8, b"\xff" * 4),
        (24, b"t"),
        (25, b"\2"),
        (32, b"\xff" * 6),
        (40, b"?"),
        (41, b"\x7f"),
        (0, b"12345678"),
        (16, b"12345678"),
        (90, b"!"),
    ],
)
def test_a_chunk_that_is_damaged(place: int, value: bytes, sound: bool, tmp_path: Path) -> None:
    """Its records are bad samples; the others are packed, and their columns are what they were. Whatever its hashes
    say, nothing in it is believed."""
    if sound and place in (0, 16, 90):
        pytest.skip("nothing but a hash shows it")
    whole = write_arrayrecord(tmp_path / "x.array_record", [example(n) for n in range(9)]).read_bytes()
    good = chunk([example(n) for n in range(3, 6)])
    bad = good[:place] + value + good[place + len(value) :]
    (tmp_path / "x.array_record").write_bytes(whole.replace(good, hashed(bad) if sound else bad))
    with pytest.raises(SampleError, match=r"x\.array_record: record 3: "):
        convert(tmp_path / "x.array_record", tmp_path / "y.h5")
    report = convert(tmp_path / "x.array_record", tmp_path / "x.h5", on_error="skip", overwrite=True)
    assert (report.manifest.records, len(report.skipped)) == (6, 3)
    assert [column.nullable for column in report.manifest.columns if column.name == "label"] == [False]


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


def test_the_hash_is_that_of_the_reference() -> None:
    """What the library wrote has hashes of a few sizes; others were computed by the algorithm in Python."""
    data = bytes(range(97))
    hashes = b"".join(highway_hash(data[:size]).to_bytes(8, "little") for size in range(98))
    assert hashlib.sha256(hashes).hexdigest() == "703364522875b0b588b21e4b50f44290515551bdbabe86adbf057b944237c757"
    # The first chunk of each file of Riegeli: its own hash, no data, the hash of none, its type.
    header = bytes.fromhex("91bac23c9287e1a90000000000000000e19f13c0e9b1c3727300000000000000" + 16 * "0")
    assert highway_hash(header[8:]).to_bytes(8, "little") == header[:8]
    assert highway_hash(b"").to_bytes(8, "little") == header[16:24]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_are_refused_and_not_unpickled(protocol: int, tmp_path: Path) -> None:
    records = [pickle.dumps({"image": tiny(n), "label": n}, protocol) for n in range(3)]
    write_arrayrecord(tmp_path / "a.array_record", records, 1)
    with pytest.raises(SourceError, match=r"none of its records is a tf.train.Example: one begins with b'.x80"):
        convert(tmp_path / "a.array_record", tmp_path / "x.h5")
