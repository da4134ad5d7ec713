"""MDS shards: what their own library wrote, and what can be wrong with them.

``tests/corpus/mds`` was written by mosaicml-streaming 0.13.0: ``MDSWriter`` with a column of each encoding, five
samples of ``train`` in two shards, and two of ``val``, compressed by Zstandard. Its files are called otherwise there.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packstore import PackedDataset, convert, verify
from packstore.sources import Entry, open_source
from packstore.testing import SourceSuite
from tests.internals import SampleError, SourceError
from tests.makers.annotated import fill
from tests.makers.images import tiny
from tests.makers.sources import not_packed

WRITTEN = Path(__file__).parents[1] / "corpus" / "mds"
SIZES = {"int": 8, "uint8": 1, "float32": 4}


def shard(encodings: dict[str, str], samples: list[dict[str, bytes]]) -> tuple[bytes, dict[str, Any]]:
    """A shard of values as they are encoded, and what the index says of it."""
    names = sorted(encodings)
    sizes = [SIZES.get(encodings[name]) for name in names]
    said = {"version": 2, "format": "mds", "compression": None, "hashes": [], "size_limit": None, "zip_data": None,
            "column_names": names, "column_encodings": [encodings[name] for name in names], "column_sizes": sizes,
            "samples": len(samples)}  # fmt: skip
    parts = []
    for sample in samples:
        unsaid = [len(sample[name]) for name, size in zip(names, sizes, strict=True) if size is None]
        parts.append(np.array(unsaid, "<u4").tobytes() + b"".join(sample[name] for name in names))
    described = json.dumps(said).encode()
    offsets = np.cumsum([4 * (len(parts) + 2) + len(described), *map(len, parts)])
    data = np.array([len(parts), *offsets], "<u4").tobytes() + described + b"".join(parts)
    return data, said | {"raw_data": {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}}


def write(folder: Path, encodings: dict[str, str], values: list[dict[str, bytes]], **change: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    data, said = shard(encodings, values)
    fill(folder, {"shard.00000.mds": data, "index.json": json.dumps({"version": 2, "shards": [said | change]})})
    return folder


def plain(n: int) -> dict[str, bytes]:
    return {"image": tiny(n), "label": (n % 3).to_bytes(8, "little")}


PLAIN = {"image": "jpeg", "label": "int"}


class TestMds(SourceSuite):
    kind = "mds"
    bytes_per_sample = 400
    undecodable_keys = False

    def make(self, folder: Path, samples: int) -> Path:
        write(folder / "train", PLAIN, [plain(n) for n in range(samples - 2)])
        write(folder / "val", PLAIN, [plain(n) for n in range(samples - 2, samples)])
        return folder

    def change(self, path: Path) -> None:
        write(path / "val", PLAIN, [plain(n) for n in range(2)])

    def spoil(self, path: Path, entry: Entry) -> bool:
        with (path / "train" / "shard.00000.mds").open("r+b") as file:
            file.seek(entry.ref[1])
            file.write(b"\xff\xff")  # the size of the image
        return True


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """What the library wrote, under its own names."""
    root = tmp_path / "set"
    for split in ("train", "val"):
        (root / split).mkdir(parents=True)
        shutil.copy(WRITTEN / f"{split}-index.json", root / split / "index.json")
    for file in WRITTEN.glob("shard.*"):
        shutil.copy(file, root / "train")
    shutil.copy(WRITTEN / "val-shard.00000.mds.zstd", root / "val" / "shard.00000.mds.zstd")
    return root


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".lmdb", ".h5", ".pth"])
def test_what_the_library_wrote(suffix: str, written: Path, tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    path = tmp_path / f"out{suffix}"
    report = convert(written, path, encoding="original")
    assert report.manifest.origin.kind == "mds"
    assert [(split.name, len(split)) for split in report.manifest.splits] == [("train", 5), ("val", 2)]
    assert report.ledger.members == {"columns of list[png]": 1}
    names = (
        "image",
        "label",
        "caption",
        "meta",
        "score",
        "small",
        "digits",
        "real",
        "exact",
        "blob",
        "fixed",
        "dynamic",
    )
    items = [
        item
        for split in ("train", "val")
        for item in PackedDataset(path, split, columns=(*names, "any", "key"), output="bytes")
    ]
    for n, item in enumerate(items):
        image, label, caption, meta, score, small, digits, real, exact, blob, fixed, dynamic, some, key = item
        assert bytes(image) == tiny(n)
        assert (label, caption, meta, score, small) == (n % 3, f"é{n}", {"n": [n]}, n / 2, n)
        assert (digits, real, exact, bytes(blob)) == (10**n, n / 10, f"{1.1 * n:.2f}", bytes([255, n]))
        assert np.array_equal(fixed, np.arange(6).reshape(2, 3) + n)
        assert np.array_equal(dynamic, np.arange(n + 1))
        assert np.array_equal(some, np.full((n + 1, 2), n))
        assert key == (f"train/{n:010}" if n < 5 else f"val/{n - 5:010}")
    thumb = PackedDataset(path, "val", columns=("thumb",), output="numpy")[1]
    assert np.array_equal(thumb, np.full((2, 2, 1), 6))
    assert verify(path, against=written).problems == ()


def test_pickles_are_refused(tmp_path: Path) -> None:
    samples = [plain(n) | {"x": b"cos\nsystem\n(S'touch ran'\ntR."} for n in range(2)]
    with pytest.raises(SourceError, match="x holds pickles, which packstore does not run"):
        open_source(write(tmp_path / "set", PLAIN | {"x": "pkl"}, samples))


def test_bytes_that_are_images(tmp_path: Path) -> None:
    samples = [{"img": tiny(n), "other": tiny(n + 9), "raw": b"\0%d" % n} for n in range(3)]
    encodings = dict.fromkeys(("img", "other", "raw"), "bytes")
    convert(write(tmp_path / "set", encodings, samples), tmp_path / "x.h5")
    ds = PackedDataset(tmp_path / "x.h5", columns=("image", "other", "raw"), output="bytes")
    assert [tuple(map(bytes, item)) for item in ds] == [(tiny(n), tiny(n + 9), b"\0%d" % n) for n in range(3)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"samples": 3}, r"found 2 samples in \d+ bytes; index\.json says 3"),
        ({"samples": 1 << 40}, "index.json says 1099511627776"),
        ({"samples": -1}, "index.json says -1"),
        ({"samples": float("inf")}, "cannot be read"),
        ({"raw_data": {"basename": "../x.mds", "bytes": 7}}, "cannot be read: the name"),
        ({"raw_data": {"basename": "x.mds", "bytes": 7}}, r"x\.mds is missing"),
        ({"raw_data": {"basename": "x"}, "zip_data": {"basename": "y"}}, "y is missing"),
        ({"raw_data": 3}, "cannot be read"),
        ({"format": "json"}, "expected mds 2"),
        ({"column_encodings": ["jpeg", "what"]}, "the encoding 'what'"),
        ({"column_encodings": ["jpeg", "ndarray:complex64"]}, "the encoding 'ndarray:complex64'"),
        ({"column_encodings": ["jpeg", "ndarray:int8:-1"]}, "the encoding 'ndarray:int8:-1'"),
        ({"column_names": ["a", "a"]}, "holds no images, but a"),
        ({"column_names": ["label", "image"], "column_encodings": ["str", "int"]}, "holds no images, but label, image"),
    ],
)
def test_wrong_indexes(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "set", PLAIN, [plain(n) for n in range(2)], **change)
    not_packed(SourceError, path, tmp_path / "x.h5", said, source_kind="mds")


@pytest.mark.parametrize(
    ("encoding", "good", "bad", "said"),
    [
        ("str", b"t", b"\xff", "utf-8"),
        ("json", b"1", b"{", "x: is not valid JSON: Expecting"),
        ("json", b"1", b"[" * 100_000, "x: "),
        ("str_int", b"1", b"1" * 30, "'x'"),
        ("str_float", b"1", b"one", "could not convert"),
        ("ndarray:int16", b"\x04\x02\1\0\2\0", b"\x04\x03\1\0\2\0", r"expected an array int16 of shape \(3,\)"),
        ("ndarray:int16", b"\x04\x02\1\0\2\0", b"\x07\xff", "an unknown dtype or shape"),
        ("ndarray", b"\x11\x04\x02\1\0\2\0", b"\x63\x04\x02\1\0\2\0", "an unknown dtype"),
        ("ndarray", b"\x11\x04\x02\1\0\2\0", b"", "an unknown dtype"),
        ("pil", b"\1\0\0\0\1\0\0\0\1\0\0\0L\7", b"\1\0\0\0\1\0\0\0\4\0\0\0CMYK\0\0\0\0", "mode CMYK"),
        ("pil", b"\1\0\0\0\1\0\0\0\1\0\0\0L\7", b"\xff\xff\xff\xff\xff\xff\0\0\1\0\0\0L\7", "expected an array uint8"),
        ("pil", b"\1\0\0\0\1\0\0\0\1\0\0\0L\7", b"\1", "mode"),
    ],
)
def test_a_bad_sample_is_named(encoding: str, good: bytes, bad: bytes, said: str, tmp_path: Path) -> None:
    samples = [plain(n) | {"x": good if n != 25 else bad} for n in range(30)]
    path = write(tmp_path / "set", PLAIN | {"x": encoding}, samples)
    caught = not_packed(SampleError, path, tmp_path / "x.h5", said)
    assert caught.key == f"{25:010}"
    assert str(caught).isprintable()


def test_a_first_sample_that_its_values_do_not_fill(tmp_path: Path) -> None:
    path = write(
        tmp_path / "set", {"image": "jpeg", "raw": "bytes"}, [{"image": tiny(n), "raw": b"r"} for n in range(2)]
    )
    with (path / "shard.00000.mds").open("r+b") as file:
        file.seek(4)
        file.seek(int.from_bytes(file.read(4), "little"))
        file.write((9).to_bytes(4, "little"))  # of the image
    not_packed(SampleError, path, tmp_path / "x.h5", r"a sample of \d+ bytes has values of \d+")
    assert convert(path, tmp_path / "x.h5", on_error="skip").manifest.records == 1


@pytest.mark.parametrize("offset", [0, 0xFFFFFFFF])
def test_offsets_that_lead_elsewhere(offset: int, tmp_path: Path) -> None:
    path = write(tmp_path / "set", PLAIN, [plain(n) for n in range(4)])
    with (path / "shard.00000.mds").open("r+b") as file:
        file.seek(4 * 3)
        file.write(offset.to_bytes(4, "little"))
    not_packed(SampleError, path, tmp_path / "x.h5", r"a sample is from byte .* where none can be")
    assert convert(path, tmp_path / "x.h5", on_error="skip").manifest.records == 2


def test_an_index_whose_format_comes_late(tmp_path: Path) -> None:
    index = write(tmp_path / "set", PLAIN, [plain(1)]) / "index.json"
    index.write_text(json.dumps({"comment": "x" * (1 << 17), **json.loads(index.read_text())}))
    assert convert(tmp_path / "set", tmp_path / "x.h5").manifest.records == 1


def test_an_index_of_something_else(tmp_path: Path) -> None:
    fill(tmp_path, {"set/index.json": '{"shards": 3}'})
    not_packed(SourceError, tmp_path / "set", tmp_path / "x.h5", "holds no images")
