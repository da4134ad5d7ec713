"""FFCV's .beton files: what its own writer wrote, and what can be wrong with them.

``tests/corpus/ffcv`` was written by ``ffcv.writer`` of ffcv 1.0.1 (the sources of the main branch, 2024-05-06), whose
fields and allocator run without its compiled half, which only decodes. ``sample.beton`` has a field of each kind and
images as ``smart`` with ``smart_threshold=600`` writes them: pixels up to that size, JPEG beyond. ``raw.beton`` has
pixels alone. Both are compressed by xz, since a page has 2 MiB.
"""

from __future__ import annotations

import io
import lzma
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from packstore import PackedDataset, convert, verify
from packstore.sources import Entry
from packstore.testing import SourceSuite
from tests.internals import SampleError, SourceError
from tests.makers.beton import write_beton
from tests.makers.images import tiny
from tests.makers.sources import not_packed

WRITTEN = Path(__file__).parents[1] / "corpus" / "ffcv"
FIELDS = {"image": "image", "label": "int"}


def pixels(n: int) -> NDArray[np.uint8]:
    y, x = np.mgrid[: 10 + n, : 12 + 2 * n]
    return np.stack([(x * 9 + n * 20) % 256, (y * 11) % 256, (x + y + n) * 5 % 256], -1).astype(np.uint8)


def sample(n: int) -> dict[str, Any]:
    return {"image": (tiny(n), 1, 1), "label": n % 3}


def unpacked(name: str, folder: Path) -> Path:
    (folder / name).write_bytes(lzma.decompress((WRITTEN / f"{name}.xz").read_bytes()))
    return folder / name


class TestBeton(SourceSuite):
    kind = "beton"
    bytes_per_sample = 400
    undecodable_keys = False

    def make(self, folder: Path, samples: int) -> Path:
        write_beton(folder / "train.beton", FIELDS, [sample(n) for n in range(samples - 2)])
        write_beton(folder / "val.beton", FIELDS, [sample(n) for n in range(samples - 2, samples)])
        return folder

    def change(self, path: Path) -> None:
        write_beton(path / "val.beton", FIELDS, [sample(n) for n in range(2)])

    def spoil(self, path: Path, entry: Entry) -> bool:
        with (path / "train.beton").open("r+b") as file:
            file.seek(24 + 2 * 1041 + 24 * entry.ref[1] + 5)  # where its image lies
            file.write(b"\xff" * 4)
        return True


@pytest.mark.slow
def test_what_ffcv_wrote(tmp_path: Path) -> None:
    path = unpacked("sample.beton", tmp_path)
    manifest = convert(path, tmp_path / "x.lmdb").manifest
    assert manifest.origin.kind == "beton"
    names = ("label", "score", "blob", "about", "vector")
    ds = PackedDataset(tmp_path / "x.lmdb", columns=("image", *names), output="bytes")
    assert len(ds) == 6
    written = path.read_bytes()
    for n, (image, label, score, blob, about, vector) in enumerate(ds):
        assert (label, score, about) == (n % 3, n / 4, {"n": n, "text": "bär"})
        assert bytes(blob) == b"bytes %d" % n + bytes([n, 255])
        assert np.array_equal(vector, np.arange(6).reshape(2, 3) * n)
        found = np.asarray(Image.open(io.BytesIO(bytes(image))))
        if pixels(n).nbytes > 600:
            assert bytes(image).startswith(b"\xff\xd8\xff")
            assert bytes(image) in written
            assert np.abs(found.astype(int) - pixels(n)).mean() < 20
        else:
            assert np.array_equal(found, pixels(n))
    assert verify(tmp_path / "x.lmdb", against=path).problems == ()


def test_pixels_alone(tmp_path: Path) -> None:
    convert(unpacked("raw.beton", tmp_path), tmp_path / "x.h5", encoding="uint8")
    ds = PackedDataset(tmp_path / "x.h5", output="numpy")
    assert [label for _, label in ds] == [0, 1, 0, 1, 0, 1]
    for n, (image, _) in enumerate(ds):
        assert np.array_equal(image, pixels(0) + n)


def test_several_images_and_splits(tmp_path: Path) -> None:
    fields = {"image": "image", "mask": "image", "y": "int"}
    folder = tmp_path / "set"
    folder.mkdir()
    for split in ("train", "val"):
        samples = [{"image": (tiny(n), 1, 1), "mask": (tiny(n + 9), 1, 1), "y": n} for n in range(3)]
        write_beton(folder / f"cifar_{split}.beton", fields, samples)
    (folder / "notes.txt").write_text("x")
    report = convert(folder, tmp_path / "x.lmdb")
    assert [(split.name, len(split)) for split in report.manifest.splits] == [("train", 3), ("val", 3)]
    assert report.ledger.passed_over == {"not images (.txt)": 1}
    image, mask, y = PackedDataset(tmp_path / "x.lmdb", split="val", columns=("image", "mask", "y"), output="bytes")[2]
    assert (bytes(image), bytes(mask), y) == (tiny(2), tiny(11), 2)


def _changed(path: Path, at: int, form: str, value: Any) -> Path:
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, at, value)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("at", "form", "value", "said"),
    [
        (0, "<H", 1, "not one of FFCV: version 1"),
        (2, "<H", 0, "not one of FFCV"),
        (2, "<H", 9, "not FFCV's|do not fit|it is cut off"),
        (4, "<I", 4095, "not one of FFCV"),
        (8, "<Q", 1 << 60, "do not fit"),
        (8, "<Q", 0, "0 samples .* do not fit"),
        (16, "<Q", 0, "was not written to its end"),
        (16, "<Q", 1 << 62, "do not fit"),
        (16, "<Q", 2200, "3 samples .* do not fit"),
        (24, "<B", 255, "'image', 'label'. are of the types .255, 1., which are not FFCV's"),
        (24, "<B", 1, "holds no images, but image, label"),
        (25, "<B", 0, "not FFCV's"),
    ],
)
def test_headers_that_are_wrong(at: int, form: str, value: int, said: str, tmp_path: Path) -> None:
    path = _changed(write_beton(tmp_path / "x.beton", FIELDS, [sample(n) for n in range(3)]), at, form, value)
    caught = not_packed(SourceError, path, tmp_path / "x.h5", said)
    assert "\n" not in str(caught)


@pytest.mark.parametrize(
    ("at", "form", "value", "said"),
    [
        (0, "<B", 7, "image: an image of .* in mode 7, which cannot be read"),
        (5, "<Q", 100, "image: 0 bytes were written at byte 100, where a file"),
        (5, "<Q", 1 << 63, "image: 0 bytes were written"),
    ],
)
def test_rows_that_are_wrong(at: int, form: str, value: int, said: str, tmp_path: Path) -> None:
    path = write_beton(tmp_path / "x.beton", FIELDS, [sample(n) for n in range(3)])
    _changed(path, 24 + 2 * 1041 + 24 + at, form, value)
    not_packed((SampleError, SourceError), path, tmp_path / "x.h5", said, encoding="original")


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [(1, 0, "0 x 10 pixels"), (1, 65535, "360 bytes were written"), (3, 65535, "360 bytes were written")],
)
def test_pixels_that_are_wrong(at: int, value: int, said: str, tmp_path: Path) -> None:
    path = _changed(unpacked("raw.beton", tmp_path), 24 + 2 * 1041 + 24 + at, "<H", value)
    not_packed((SampleError, SourceError), path, tmp_path / "x.h5", said, encoding="uint8")


def test_arrays_that_are_wrong(tmp_path: Path) -> None:
    fields = {"image": "image", "box": "array", "more": "json"}
    samples = [{"image": (tiny(n), 1, 1), "box": np.zeros((2, 2), np.float32), "more": [n]} for n in range(2)]
    good = write_beton(tmp_path / "x.beton", fields, samples).read_bytes()
    for old, new, said in (
        (b'[["", "<f4"]]', b'[["", "<O8"]]', "cannot be read"),
        (b'[["", "<f4"]]', b"[" * 13, "cannot be read"),
        (struct.pack("<2Q", 2, 2), struct.pack("<2Q", 1 << 40, 1 << 40), "arrays of '<f4'"),
    ):
        (tmp_path / "x.beton").write_bytes(good.replace(old, new))
        not_packed(SourceError, tmp_path / "x.beton", tmp_path / "x.h5", said)
    (tmp_path / "x.beton").write_bytes(good.replace(b"[1]\0", b"[1}\0"))
    not_packed(SampleError, tmp_path / "x.beton", tmp_path / "x.h5", r"x\.beton: more: ", encoding="original")


def test_files_of_different_fields(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    write_beton(folder / "train.beton", FIELDS, [sample(0)])
    write_beton(folder / "val.beton", {"image": "image", "class": "int"}, [{"image": (tiny(1), 1, 1), "class": 1}])
    not_packed(SourceError, folder, tmp_path / "x.h5", "its files have different fields")
