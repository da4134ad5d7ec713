"""MNIST's idx files in their published layout, with what torchvision makes of them."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packstore import PackedDataset, convert, verify
from packstore.sources import open_source
from packstore.testing import SourceSuite
from tests.internals import PackstoreError, SampleError, SourceError
from tests.makers.annotated import fill
from tests.makers.sources import look, not_packed, question, refused
from tests.makers.torchvision import import_torchvision

RNG = np.random.default_rng(7)
TYPES = {"|u1": 8, ">i4": 12}


def idx(array: Any) -> bytes:
    head = bytes([0, 0, TYPES[array.dtype.str], array.ndim])
    return head + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(folder: Path, name: str, images: Any, labels: Any, kind: str = "idx1-ubyte", *, zipped: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for what, array in (("images-idx3-ubyte", images), (f"labels-{kind}", labels)):
        data, path = idx(array), folder / f"{name}-{what}{'.gz' if zipped else ''}"
        path.write_bytes(gzip.compress(data, mtime=0) if zipped else data)


def made(count: int, classes: int = 10) -> tuple[Any, Any]:
    return RNG.integers(0, 256, (count, 28, 28), dtype=np.uint8), RNG.integers(0, classes, count).astype(np.uint8)


class TestIdx(SourceSuite):
    kind = "idx"
    undecodable_keys = False

    def make(self, folder: Path, samples: int) -> Path:
        numbers = np.arange(samples, dtype=np.uint32)
        x, y = numbers.view(np.uint8).reshape(samples, 2, 2), (numbers % 10).astype(np.uint8)
        write(folder, "train", x[4:], y[4:], zipped=True)
        write(folder, "t10k", x[:4], y[:4])
        return folder

    def change(self, path: Path) -> None:
        write(path, "t10k", np.ones((4, 2, 2), np.uint8), np.zeros(4, np.uint8))


@pytest.fixture
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where stores go: not into the source."""
    return tmp_path_factory.mktemp("out")


@pytest.mark.slow  # torchvision takes seconds to import
@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST", "KMNIST"])
def test_equality_with_torchvision(name: str, tmp_path: Path, out: Path) -> None:
    for split, count in (("train", 9), ("t10k", 4)):
        write(tmp_path / name / "raw", split, *made(count))
        write(tmp_path / name / "raw", split, *made(1), zipped=True)  # as downloads leave them: the plain ones count
    convert(tmp_path, out / "o.lmdb") if name == "MNIST" else convert(tmp_path / name, out / "o.lmdb")
    for train in (True, False):
        theirs = getattr(import_torchvision().datasets, name)(tmp_path, train=train)
        ours = PackedDataset(out / "o.lmdb", "train" if train else "test", output="numpy")
        assert list(ours.classes or ()) == theirs.classes
        assert [label for _, label in ours] == theirs.targets.tolist()
        for (image, _), expected in zip(ours, theirs.data.numpy(), strict=True):
            assert np.array_equal(image, expected[..., None])
    assert verify(out / "o.lmdb", against=tmp_path / name).problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["byclass", "bymerge", "balanced", "letters", "digits", "mnist"])
def test_equality_with_torchvisions_emnist(name: str, tmp_path: Path, out: Path) -> None:
    raw = tmp_path / "EMNIST" / "raw"
    for each in (name, "other"):
        for split, count in (("train", 5), ("test", 3)):
            write(raw, f"emnist-{each}-{split}", *made(count, 10))
    question(tmp_path, f"--image-key emnist-{name}")
    convert(tmp_path, out / "o.h5", image_key=name)
    convert(tmp_path, out / "up.h5", image_key=f"emnist-{name}", layout="NWH")
    theirs = import_torchvision().datasets.EMNIST(tmp_path, split=name, train=True)
    ours, upright = (PackedDataset(out / file, "train", output="numpy") for file in ("o.h5", "up.h5"))
    assert list(ours.classes or ()) == theirs.classes
    assert [label for _, label in ours] == theirs.targets.tolist()
    for (image, _), (turned, _), expected in zip(ours, upright, theirs.data.numpy(), strict=True):
        assert np.array_equal(image[..., 0], expected)
        assert np.array_equal(turned[..., 0], expected.T)
    assert verify(out / "up.h5", against=tmp_path).problems == ()


@pytest.mark.slow
def test_equality_with_torchvisions_qmnist(tmp_path: Path, out: Path) -> None:
    labels = RNG.integers(0, 10, (5, 8)).astype(">i4")
    write(tmp_path / "QMNIST" / "raw", "qmnist-train", made(5)[0], labels, "idx2-int", zipped=True)
    convert(tmp_path, out / "o.h5")
    for file in list((tmp_path / "QMNIST" / "raw").iterdir()):
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
    theirs = import_torchvision().datasets.QMNIST(tmp_path, what="train", compat=True)
    ours = PackedDataset(out / "o.h5", "train", columns=("image", "label", "nist"), output="numpy")
    assert list(ours.classes or ()) == theirs.classes
    for n, (image, label, nist) in enumerate(ours):
        assert np.array_equal(image[..., 0], theirs.data[n].numpy())
        assert label == int(theirs.targets[n][0])
        assert np.array_equal(nist, labels[n])


def test_classes_go_by_the_folder_and_are_never_guessed(tmp_path: Path) -> None:
    for folder, first in (("fashion-mnist", "T-shirt/top"), ("kmnist", "o"), ("my mnist", "0 - zero"), ("data", None)):
        write(tmp_path / folder, "train", *made(3))
        seen = look(tmp_path / folder)
        classes = seen.columns[0].classes
        assert (classes[0] if classes else None) == first
        assert dict(seen.splits) == {"train": 3}


def test_names_with_a_dot_as_some_programs_unpack_them(tmp_path: Path) -> None:
    x, y = made(3)
    fill(tmp_path, {"train-images.idx3-ubyte": idx(x), "train-labels.idx1-ubyte": idx(y)})
    seen = look(tmp_path)
    assert seen.kind == "idx"
    assert seen.each("label") == y.tolist()


def test_two_data_sets_are_a_question(tmp_path: Path) -> None:
    for name in ("MNIST", "KMNIST"):
        write(tmp_path / name / "raw", "train", *made(3))
    question(tmp_path, r"holds 2 data sets. .*give .*KMNIST/raw; or give .*MNIST/raw")


def test_what_does_not_go_together(tmp_path: Path) -> None:
    x, y = made(4)
    write(tmp_path, "train", x, y[:3])
    refused(SourceError, tmp_path, "different lengths")
    write(tmp_path, "train", y, x)
    refused(SourceError, tmp_path, "is no array of images")
    write(tmp_path, "train", x, y)
    for options in ({"label_key": "y"}, {"layout": "NHWC"}):
        with pytest.raises(SourceError, match="has its own labels: --label-key is not used, and --layout may be NHW"):
            open_source(tmp_path, **options)  # type: ignore[arg-type]
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    refused(SourceError, tmp_path, "the labels of train are missing")
    (tmp_path / "none").mkdir()
    refused(SourceError, tmp_path / "none", r"none: it is not a folder of idx files", kind="idx")


@pytest.mark.parametrize("zipped", [False, True])
def test_damaged_files(zipped: bool, tmp_path: Path, out: Path) -> None:
    write(tmp_path, "train", *made(4), zipped=zipped)
    path = tmp_path / f"train-images-idx3-ubyte{'.gz' if zipped else ''}"
    whole = path.read_bytes()
    for size in (0, 3, 12, 40, len(whole) - 5, len(whole) - 1):
        path.write_bytes(whole[:size])
        not_packed(PackstoreError, tmp_path, out / "o.h5", r"is no idx file|damaged|header says|cannot be|cut off")
    if zipped:
        data = bytearray(whole)
        data[-6] ^= 1
        path.write_bytes(data)
        not_packed(SampleError, tmp_path, out / "o.h5", "is damaged")
    raw = bytearray(gzip.decompress(whole) if zipped else whole)
    for at, value in ((2, 7), (3, 0), (3, 200), (0, 1), (4, 255), (7, 3)):
        changed = bytes(raw[:at]) + bytes([value]) + bytes(raw[at + 1 :])
        path.write_bytes(gzip.compress(changed) if zipped else changed)
        not_packed(PackstoreError, tmp_path, out / "o.h5")
