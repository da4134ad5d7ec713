"""Chunks of LitData: what their own library wrote, and what can be wrong with them.

``tests/corpus/litdata`` was written by litdata 0.2.76: ``BinaryWriter(chunk_size=3)`` with five dicts of values of
most formats that are read.
"""

from __future__ import annotations

import json
import struct
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packstore import PackedDataset, convert, verify
from packstore.sources import Entry
from packstore.testing import SourceSuite
from tests.internals import SampleError, SourceError
from tests.makers.images import tiny
from tests.makers.layouts import zstd
from tests.makers.sources import not_packed

WRITTEN = Path(__file__).parents[1] / "corpus" / "litdata"


def write(folder: Path, formats: dict[str, str], items: list[dict[str, bytes]], **config: Any) -> Path:
    """A chunk of values as they are encoded."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [struct.pack(f"<{len(item)}I", *map(len, item.values())) + b"".join(item.values()) for item in items]
    ends = np.cumsum([4 * (len(parts) + 2), *map(len, parts)])
    (folder / "chunk-0-0.bin").write_bytes(np.array([len(parts), *ends], "<u4").tobytes() + b"".join(parts))
    leaf = {"type": None, "context": None, "children_spec": []}
    spec = {"type": "builtins.dict", "context": json.dumps(list(formats)), "children_spec": [leaf] * len(formats)}
    said = {"compression": None, "data_format": list(formats.values()), "data_spec": json.dumps([1, spec])}
    chunks = [{"chunk_bytes": int(ends[-1]), "chunk_size": len(parts), "filename": "chunk-0-0.bin"}]
    (folder / "index.json").write_text(json.dumps({"chunks": chunks, "config": said | config}))
    return folder


def plain(n: int) -> dict[str, bytes]:
    return {"image": tiny(n), "label": (n % 3).to_bytes(8, "little")}


PLAIN = {"image": "jpeg", "label": "int"}


class TestLitdata(SourceSuite):
    kind = "litdata"
    bytes_per_sample = 400
    undecodable_keys = False

    def make(self, folder: Path, samples: int) -> Path:
        write(folder / "train", PLAIN, [plain(n) for n in range(samples - 2)])
        write(folder / "val", PLAIN, [plain(n) for n in range(samples - 2, samples)])
        return folder

    def change(self, path: Path) -> None:
        write(path / "val", PLAIN, [plain(n) for n in range(2)])

    def spoil(self, path: Path, entry: Entry) -> bool:
        with (path / "train" / "chunk-0-0.bin").open("r+b") as file:
            file.seek(entry.ref[1])
            file.write(b"\xff\xff")  # the size of the image
        return True


def test_what_the_library_wrote(tmp_path: Path) -> None:
    convert(WRITTEN, tmp_path / "x.lmdb")
    names = ("image", "label", "name", "score", "flag", "small", "grid")
    ds = PackedDataset(tmp_path / "x.lmdb", columns=names, output="bytes")
    for n, (image, label, name, score, flag, small, grid) in enumerate(ds):
        assert (bytes(image), label, name, score, flag) == (tiny(n), n % 3, f"é{n}", n / 2, n % 2)
        assert np.array_equal(small, np.arange(n + 1, dtype=np.float32))
        assert np.array_equal(grid, np.full((n + 1, 2), n))
    assert len(ds) == 5
    pil = PackedDataset(tmp_path / "x.lmdb", columns=("pil",), output="numpy")[3]
    assert np.array_equal(pil, np.full((2, 2, 1), 3))
    assert verify(tmp_path / "x.lmdb", against=WRITTEN).problems == ()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"encryption": {"algorithm": "fernet"}}, "it is encrypted, which packstore does not read"),
        ({"data_format": ["jpeg", "video"]}, "the format 'video'"),
        ({"data_format": ["jpeg", "pickle"]}, "label holds pickles, which packstore does not run"),
        ({"data_format": ["jpeg"]}, "its items are .* of 2 values"),
        ({"data_format": ["jpeg", "no_header_numpy:99"]}, "the format 'no_header_numpy:99'"),
        ({"data_spec": "[1]"}, "cannot be read"),
        ({"data_spec": None}, "cannot be read"),
        ({"data_spec": "[" * 100_000}, "cannot be read"),
    ],
)
def test_wrong_indexes(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "set", PLAIN, [plain(n) for n in range(2)], **config)
    not_packed(SourceError, path, tmp_path / "x.h5", said)


@pytest.mark.parametrize(
    ("form", "good", "bad", "said"),
    [
        ("int", bytes(8), b"", "found 0 bytes, expected one number int64"),
        ("float", bytes(8), bytes(4), "expected one number float64"),
        ("numpy", struct.pack("<3I", 4, 1, 1) + b"x", struct.pack("<3I", 99, 1, 1) + b"x", "an unknown dtype"),
        ("numpy", struct.pack("<3I", 4, 1, 1) + b"x", struct.pack("<3I", 4, 1, 1 << 31), "expected an array uint8"),
        ("no_header_numpy:9", bytes(8), bytes(7), "x: "),
    ],
)
def test_a_bad_item_is_named(form: str, good: bytes, bad: bytes, said: str, tmp_path: Path) -> None:
    items = [plain(n) | {"x": good if n != 25 else bad} for n in range(30)]
    caught = not_packed(SampleError, write(tmp_path / "set", PLAIN | {"x": form}, items), tmp_path / "x.h5", said)
    assert caught.key == f"{25:010}"


def compressed(folder: Path, name: str = "zstd", count: int = 10) -> Path:
    path = write(folder, PLAIN, [plain(n) for n in range(count)], compression=name)
    chunk = path / f"chunk-0-0.{name}.bin"
    chunk.write_bytes(zstd((path / "chunk-0-0.bin").read_bytes()))
    (path / "chunk-0-0.bin").unlink()
    text = (path / "index.json").read_text()
    (path / "index.json").write_text(text.replace("chunk-0-0.bin", chunk.name))
    return path


@pytest.mark.parametrize("name", ["zstd", "zstd:7"])
def test_chunks_compressed_by_zstandard(name: str, tmp_path: Path) -> None:
    path = compressed(tmp_path / "set", name)
    report = convert(path, tmp_path / "x.lmdb")
    expected = convert(write(tmp_path / "plain", PLAIN, [plain(n) for n in range(10)]), tmp_path / "y.lmdb").manifest
    assert report.manifest.dataset_digest == expected.dataset_digest
    assert verify(tmp_path / "x.lmdb", against=path).problems == ()


class TestCompressedLitdata(TestLitdata):
    def make(self, folder: Path, samples: int) -> Path:
        compressed(folder / "train", count=samples - 2)
        write(folder / "val", PLAIN, [plain(n) for n in range(samples - 2, samples)])
        return folder

    def spoil(self, path: Path, entry: Entry) -> bool:
        return False


def test_chunks_compressed_item_by_item_are_refused(tmp_path: Path) -> None:
    """``pack_sample_zstd`` of the library."""
    path = write(tmp_path / "set", PLAIN, [plain(n) for n in range(4)], compression="zstd", compression_level="sample")
    chunk = (path / "chunk-0-0.bin").read_bytes()
    packed = [zstd(chunk[a:b]) for a, b in pairwise(np.frombuffer(chunk, "<u4", 5, 4))]
    ends = np.cumsum([4 * 6, *map(len, packed)])
    (path / "chunk-0-0.bin").write_bytes(np.array([4, *ends], "<u4").tobytes() + b"".join(packed))
    not_packed(SampleError, path, tmp_path / "x.h5", r"a sample of \d+ bytes has values of")


def test_chunks_that_grow_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packstore.sources.archives.tar._BOMB_BYTES", 1 << 20)
    path = compressed(tmp_path / "set")
    (chunk,) = path.glob("*.bin")
    chunk.write_bytes(zstd(bytes(64 << 20)))
    not_packed(SourceError, path, tmp_path / "x.h5", r"chunk-0-0.*\.bin is refused: it decompresses")


def test_zstandard_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compressed(tmp_path / "set")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(SourceError, match=r"chunk-0-0.*is compressed by Zstandard: pip install 'packstore\[zstd\]'"):
        convert(path, tmp_path / "x.h5")
