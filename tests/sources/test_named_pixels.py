"""STL-10, SVHN and downsampled ImageNet: pixels, labels and splits are those of torchvision, or of numpy."""

from __future__ import annotations

import os
import pickle
import shutil
import tarfile
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packstore import PackedDataset, convert
from packstore.sources import Source, open_source
from packstore.testing import SourceSuite
from tests.internals import Sample, SampleError, SourceError
from tests.makers.annotated import fill
from tests.makers.layouts import STL10, Files, imagenet32, make_layout, mat, pixels
from tests.makers.sources import question, refused
from tests.makers.torchvision import import_torchvision


class _Suite(SourceSuite):
    undecodable_keys = False
    bytes_per_sample = 400
    many = 400
    changed = ""

    def make(self, folder: Path, samples: int) -> Path:
        return make_layout(self.kind, folder, samples)

    def change(self, path: Path) -> None:
        os.utime(path / self.changed, ns=(1, 1))


class TestStl10(_Suite):
    kind = "stl10"
    many = 200
    changed = "train_y.bin"


class TestSvhn(_Suite):
    kind = "svhn"
    changed = "test_32x32.mat"


class TestImageNet32(_Suite):
    kind = "imagenet32"
    changed = "Imagenet8_val/val_data"


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``torchvision.datasets``, which takes files of any MD5."""
    found = import_torchvision().datasets
    for name in ("stl10", "svhn"):
        monkeypatch.setattr(getattr(found, name), "check_integrity", lambda path, md5=None: Path(path).is_file())
    return found


def samples(source: Source, split: str | None = None) -> list[tuple[Any, Any]]:
    """Image and further values of each sample, whether its entry has these or they are read."""
    columns, found = [column.name for column in source.survey(split).columns], []
    for entry in source.entries(split):
        read = source.read(entry)
        values = read.values if isinstance(read, Sample) else dict(zip(columns, entry.labels, strict=True))
        found.append((source.image(entry), values))
    return found


@pytest.mark.parametrize("form", ["folder", "above", "tar.gz", "zip"])
def test_stl10_is_that_of_torchvision(form: str, tmp_path: Path, torchvision: Any) -> None:
    folder = make_layout("stl10", tmp_path / "set")
    path = {
        "folder": folder,
        "above": folder.parent,
        "tar.gz": tmp_path / "stl10_binary.tar.gz",
        "zip": tmp_path / "x.zip",
    }[form]
    if form == "tar.gz":
        with tarfile.open(path, "w:gz") as archive:
            archive.add(folder, folder.name)
    if form == "zip":
        shutil.make_archive(str(tmp_path / "x"), "zip", folder.parent, folder.name)  # deflates
    with closing(open_source(path)) as source:
        assert source.kind == "stl10"
        for split in ("train", "test", "unlabeled"):
            theirs, ours = torchvision.STL10(tmp_path / "set", split), samples(source, split)
            assert len(ours) == len(theirs)
            for (image, values), (their_image, label) in zip(ours, theirs, strict=True):
                assert np.array_equal(image, np.asarray(their_image))
                assert values["label"] == (None if label == -1 else label)
        assert source.survey().columns[0].classes == STL10


def test_svhn_is_that_of_torchvision(tmp_path: Path, torchvision: Any) -> None:
    folder = make_layout("svhn", tmp_path)
    with closing(open_source(folder)) as source:
        assert [*source.survey().splits] == ["train", "test", "extra"]
        for split in ("train", "test", "extra"):
            theirs = torchvision.SVHN(tmp_path, split)
            ours = samples(source, split)
            assert [values["label"] for _, values in ours] == theirs.labels.tolist()
            assert all(np.array_equal(ours[n][0], np.asarray(theirs[n][0])) for n in range(len(ours)))
        assert 0 in [values["label"] for _, values in samples(source)]
    with closing(open_source(folder / "test_32x32.mat")) as source:  # one of them alone
        assert dict(source.survey().splits) == {"test": 2}
    from scipy.io import loadmat, savemat

    found = loadmat(folder / "train_32x32.mat")
    savemat(folder / "train_32x32.mat", {"y": found["y"], "X": found["X"]})  # not compressed
    with closing(open_source(folder)) as source:
        theirs = torchvision.SVHN(tmp_path, "train")
        assert all(
            np.array_equal(image, np.asarray(theirs[n][0])) for n, (image, _) in enumerate(samples(source, "train"))
        )


@pytest.mark.parametrize("npz", [False, True])
def test_downsampled_imagenet(npz: bool, tmp_path: Path) -> None:
    folder, files = imagenet32(24, npz)
    write(tmp_path / folder, files)
    with closing(open_source(tmp_path / folder)) as source:
        assert (source.kind, dict(source.survey().splits)) == ("imagenet32", {"train": 22, "val": 2})
        order = [n for k in range(10) for n in range(k + 2, 24, 10)]
        for split, numbers in (("train", order), ("val", [0, 1])):
            for (image, values), number in zip(samples(source, split), numbers, strict=True):
                assert np.array_equal(image, pixels(number, 8))
                assert values["label"] == number % 3
        assert source.survey().columns[0].classes == ("n03000000", "n01000000", "n02000000")
    (tmp_path / folder / "map_clsloc.txt").unlink()
    convert(tmp_path / folder, tmp_path / "x.h5", encoding="uint8")
    packed = PackedDataset(tmp_path / "x.h5", "val", output="pil")
    assert packed.classes == []
    assert all(np.array_equal(np.asarray(packed[n][0]), pixels(n, 8)) for n in range(2))
    assert isinstance(packed[0][0], Image.Image)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_pickles_of_other_protocols(protocol: int, tmp_path: Path) -> None:
    """Protocol 2 of Python 3 writes bytes as text, which is said where it is not small."""
    data = np.stack([pixels(n, 64).transpose(2, 0, 1).ravel() for n in range(8)])
    (tmp_path / "val_data").write_bytes(pickle.dumps({"data": data, "labels": [*range(1, 9)]}, protocol=protocol))
    if protocol == 2:
        refused(SourceError, tmp_path, "val_data cannot be read as imagenet32: a text of")
        return
    source = open_source(tmp_path)
    assert all(np.array_equal(image, pixels(n, 64)) for n, (image, _) in enumerate(samples(source)))
    source.close()


def test_a_pickle_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "val_data").write_bytes(b"\x80\x03cos\nsystem\nX\x05\0\0\0touchq\x85R.")
    refused(SourceError, tmp_path, r"asks for os\.system")


def write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        fill(folder, {name: content})


@pytest.mark.parametrize(
    ("kind", "lost", "said"),
    [
        ("stl10", "train_y.bin", "looks like STL-10, without train_y.bin"),
        ("stl10", "test_y.bin", "looks like STL-10, without test_y.bin"),
        ("imagenet32", "Imagenet8_train/train_data_batch_7", "looks like downsampled .* without train_data_batch_7:"),
        ("imagenet32", "Imagenet8_train/train_data_batch_1", "looks like downsampled .* without train_data_batch_1:"),
    ],
)
def test_what_lacks_something_is_a_question(kind: str, lost: str, said: str, tmp_path: Path) -> None:
    folder = make_layout(kind, tmp_path)
    (folder / lost).unlink()
    question(folder, said)
    refused(SourceError, folder, r"without|has no", kind=kind)


def batch(**changes: Any) -> bytes:
    whole = {"data": np.zeros((2, 192), np.uint8), "labels": [1, 2], "mean": np.zeros(192)} | changes
    return pickle.dumps({name: value for name, value in whole.items() if value is not None}, protocol=3)


X, Y = np.zeros((32, 32, 3, 2), np.uint8), np.ones((2, 1), np.uint8)
BROKEN: dict[str, tuple[str, str, Any, str]] = {
    "half an image": ("stl10", "train_X.bin", bytes(30_000), "cut off"),
    "more labels": ("stl10", "test_y.bin", b"\1" * 9, "9 labels for 4 images"),
    "the label 0": ("stl10", "test_y.bin", bytes(4), "label 0 is out of range"),
    "no names": ("stl10", "class_names.txt", b"a\nb\n", "out of range from 1 to 2"),
    "no y": ("svhn", "test_32x32.mat", mat(X=X), "no array y"),
    "X of floats": ("svhn", "test_32x32.mat", mat(X=X + 0.5, y=Y), "no uint8 array X"),
    "the label 11": ("svhn", "test_32x32.mat", mat(X=X, y=Y * 11), "label 11 is out of range"),
    "half a label": ("svhn", "test_32x32.mat", mat(X=X, y=Y * 1.5), "instead of whole numbers"),
    "a file that ends": ("svhn", "test_32x32.mat", mat(X=X, y=Y)[:-9], "too early"),
    "a wrong checksum": ("svhn", "test_32x32.mat", mat(y=Y, X=X)[:-2] + b"xx", "incorrect data check"),
    "not square": ("imagenet32", "Imagenet8_val/val_data", batch(data=np.zeros((2, 190), np.uint8)), "190"),
    "another size": ("imagenet32", "Imagenet8_val/val_data", batch(data=np.zeros((2, 48), np.uint8)), "of the sizes"),
    "floats": ("imagenet32", "Imagenet8_val/val_data", batch(data=np.zeros((2, 192))), "float64"),
    "no data": ("imagenet32", "Imagenet8_val/val_data", batch(data=None), "NoneType"),
    "text as labels": ("imagenet32", "Imagenet8_val/val_data", batch(labels="ab"), "str"),
    "labels from 0": ("imagenet32", "Imagenet8_val/val_data", batch(labels=[0, 1]), "label 0 is out of range"),
    "a pickle that ends": ("imagenet32", "Imagenet8_val/val_data", batch()[:-20], "cut off"),
    "a damaged list of names": ("imagenet32", "map_clsloc.txt", b"n01 2\n", "from 1 on"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_one_line(name: str, tmp_path: Path) -> None:
    kind, file, content, said = BROKEN[name]
    folder = make_layout(kind, tmp_path)
    (folder / file).write_bytes(content)
    caught = refused(SourceError, folder, said)
    assert str(caught).isprintable()
    assert not isinstance(caught, SampleError)


def test_pixels_that_are_cut_off_meanwhile_are_bad_samples(tmp_path: Path) -> None:
    folder = make_layout("stl10", tmp_path)
    with closing(open_source(folder)) as source:
        entries = list(source.entries("test"))
        os.truncate(folder / "test_X.bin", 3 * 96 * 96)
        with pytest.raises(SampleError, match="ends before image"):
            source.read(entries[-1])


def test_a_deflated_zip_is_read_at_any_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packstore.sources.inflating._STEP", 1 << 16)
    folder = make_layout("stl10", tmp_path / "set")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 3 * 96 * 96), np.uint8)
    (folder / "unlabeled_X.bin").write_bytes(pixels.tobytes())
    path = Path(shutil.make_archive(str(tmp_path / "x"), "zip", folder))
    with closing(open_source(path)) as source:
        entries = list(source.entries("unlabeled"))
        for n in (39, 0, 17, 38, 1):
            assert np.array_equal(source.image(entries[n]), pixels[n].reshape(3, 96, 96).transpose(2, 1, 0))


def test_a_deflated_zip_that_is_damaged_is_one_line(tmp_path: Path) -> None:
    folder = make_layout("stl10", tmp_path / "set")
    path = Path(shutil.make_archive(str(tmp_path / "x"), "zip", folder))
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("unlabeled_X.bin")
    data = bytearray(path.read_bytes())
    middle = info.header_offset + 100
    data[middle : middle + info.compress_size - 200] = b"\xff" * (info.compress_size - 200)
    path.write_bytes(data)
    with closing(open_source(path)) as source:
        good, bad = list(source.entries("train")), list(source.entries("unlabeled"))
        source.read(good[0])
        with pytest.raises(SampleError, match="it is damaged"):
            source.read(bad[-1])


def test_none_of_them(tmp_path: Path) -> None:
    for kind in ("stl10", "svhn", "imagenet32"):
        refused(SourceError, tmp_path, r"is not ", kind=kind)
    shutil.copy(__file__, tmp_path / "train_32x32.mat")
    (tmp_path / "val_data").write_text("text")
    refused(SourceError, tmp_path, "holds no images")
