"""ILSVRC as downloaded and as Kaggle has it: labels are those of ``torchvision.datasets.ImageNet``, by its own code."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packstore import PackedDataset
from packstore.sources import Source, open_source
from packstore.testing import SourceSuite
from tests.conftest import SharedData
from tests.internals import SampleError, SourceError
from tests.makers.annotated import fill
from tests.makers.command import run
from tests.makers.images import tiny
from tests.makers.layouts import devkit, make_layout, tar, train_tar
from tests.makers.sources import FileSuite, look, prove, question, refused
from tests.makers.torchvision import import_torchvision

TRAIN, VAL, DEVKIT = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"


class TestIlsvrc(SourceSuite):
    """The tars and the devkit in a folder."""

    kind = "ilsvrc"
    undecodable_keys = False
    bytes_per_sample = 400
    many = 400

    def make(self, folder: Path, samples: int) -> Path:
        return make_layout("ilsvrc", folder, samples)

    def change(self, path: Path) -> None:
        os.utime(path / TRAIN, ns=(1, 1))


class TestKaggle(FileSuite):
    """Kaggle's folder."""

    kind = "ilsvrc"
    bytes_per_sample = 400
    many = 400

    def make(self, folder: Path, samples: int) -> Path:
        return make_layout("kaggle", folder, samples)

    def change(self, path: Path) -> None:
        file = path / "LOC_val_solution.csv"
        file.write_text(file.read_text().replace("1 2 3", "2 2 3"))


def rows(source: Source, split: str | None = None) -> list[tuple[str, dict[str, Any]]]:
    return [(entry.key, dict(source.read(entry).values)) for entry in source.entries(split)]  # type: ignore[union-attr]


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``torchvision.datasets``, which takes archives of any MD5."""
    found = import_torchvision().datasets
    monkeypatch.setattr(found.imagenet, "check_integrity", lambda path, md5=None: Path(path).is_file())
    return found


def theirs(root: Path, split: str, torchvision: Any) -> tuple[list[tuple[str, int]], Any]:
    """Path and label of all images, as torchvision has them, which unpacks the archives in ``root``."""
    data = torchvision.ImageNet(root, split)
    return [(Path(path).relative_to(root).as_posix(), label) for path, label in data.samples], data


def test_the_archives_are_those_of_torchvision(tmp_path: Path, torchvision: Any) -> None:
    folder = make_layout("ilsvrc", tmp_path)
    with closing(open_source(folder)) as source:
        assert (source.kind, source.evidence) == ("ilsvrc", TRAIN)
        survey = source.survey()
        assert dict(survey.splits) == {"train": 8, "val": 4}
        found = {split: rows(source, split) for split in survey.splits}
        images = {entry.key: source.image(entry) for entry in source.entries()}
    for split, its in found.items():
        expected, data = theirs(folder, split, torchvision)
        assert [(key, values["label"]) for key, values in its] == expected
        assert survey.columns[0].classes == tuple(data.wnids)
        assert [values["name"].split(", ") for _, values in its] == [list(data.classes[n]) for _, n in expected]
        assert all((folder / key).read_bytes() == images[key] for key, _ in its)
    # What torchvision has unpacked beside the archives is read instead of them.
    seen = look(folder)
    assert seen.ledger.left == {"not images (.tar)": 2, "not images (.bin)": 1}
    assert seen.keys == list(images)
    shutil.rmtree(folder / "train")
    with closing(open_source(folder)) as source:
        assert (source.kind, [(key, values["label"]) for key, values in rows(source)]) == (
            "ilsvrc", [(key, values["label"]) for its in found.values() for key, values in its]
        )  # fmt: skip


def test_each_archive_may_be_unpacked(tmp_path: Path) -> None:
    folder = make_layout("ilsvrc", tmp_path / "all")
    with closing(open_source(folder)) as source:
        expected = rows(source)
    seen = look(folder / VAL)
    assert (seen.kind, seen.columns) == ("flat", ())
    assert look(folder / TRAIN).kind == "imagefolder"
    with tarfile.open(folder / DEVKIT) as archive:
        archive.extractall(folder, filter="data")
    (folder / DEVKIT).unlink()
    with closing(open_source(folder)) as source:
        assert rows(source) == expected
    (folder / "val").mkdir()
    with tarfile.open(folder / VAL) as archive:
        archive.extractall(folder / "val", filter="data")
    (folder / VAL).unlink()
    for kept in (expected, [row for row in expected if row[0].startswith("val/")]):
        with closing(open_source(folder)) as source:
            assert rows(source) == kept
            assert source.survey().ledger.left == {"not images (.txt)": 1}  # unpacked images are packed
        (folder / TRAIN).unlink(missing_ok=True)


@pytest.mark.parametrize("unpacked", [False, True])
def test_archives_without_the_devkit_are_a_question(unpacked: bool, tmp_path: Path) -> None:
    folder = make_layout("ilsvrc", tmp_path)
    (folder / DEVKIT).unlink()
    if unpacked:
        with tarfile.open(folder / VAL) as archive:
            archive.extractall(folder / "val", filter="data")
        (folder / VAL).unlink()
        (folder / TRAIN).unlink()
    question(folder, r"looks like ILSVRC .*, without ILSVRC2012_devkit_t12 or")


def test_validation_images_in_folders_of_classes_are_an_image_folder(tmp_path: Path) -> None:
    for n, name in enumerate(("cat", "dog")):
        fill(tmp_path, {f"{name}/ILSVRC2012_val_{n + 1:08}.JPEG": tiny(n)})
    seen = look(tmp_path)
    assert (seen.kind, seen.columns[0].classes) == ("imagefolder", ("cat", "dog"))


def test_test_images_have_no_labels(tmp_path: Path) -> None:
    folder = make_layout("ilsvrc", tmp_path)
    (folder / "ILSVRC2012_img_test_v10102019.tar").write_bytes(tar({"test/ILSVRC2012_test_00000001.JPEG": tiny(77)}))
    prove(folder, tmp_path / "x.lmdb")
    data = PackedDataset(tmp_path / "x.lmdb", "test", columns=("key", "label", "name"))
    assert list(data) == [("test/ILSVRC2012_test_00000001.JPEG", None, None)]


BROKEN: dict[str, tuple[bytes | Callable[[], bytes] | None, bytes | None, str]] = {
    "fewer labels than images": (lambda: devkit({"n01000000": "a"}, ["n01000000"]), None, "is unknown"),
    "no devkit": (gzip.compress(tar({"x/readme.txt": b"text"})), None, r"meta\.mat cannot be read"),
    "a devkit that ends": (gzip.compress(tar({"x/readme.txt": b"text"}))[:-9], None, "damaged"),
    "an image that is none of them": (None, tar({"ILSVRC2012_val_00000001.JPEG": tiny(1), "b.JPEG": tiny(2)}), "b.JP"),
    "a damaged tar": (None, b"x" * 2000, "img_val.tar"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_one_line(name: str, tmp_path: Path) -> None:
    kit, val, said = BROKEN[name]
    folder = make_layout("ilsvrc", tmp_path)
    if kit is not None:
        (folder / DEVKIT).write_bytes(kit() if callable(kit) else kit)
    if val is not None:
        (folder / VAL).write_bytes(val)

    def read_all() -> None:
        with closing(open_source(folder)) as source:
            source.survey()
            rows(source)

    with pytest.raises(SourceError, match=said) as caught:
        read_all()
    assert not isinstance(caught.value, SampleError)
    assert str(caught.value).isprintable()


def test_the_tables_of_kaggle(tmp_path: Path, torchvision: Any) -> None:
    folder = make_layout("kaggle", tmp_path)
    with closing(open_source(folder)) as source:
        assert source.kind == "ilsvrc"
        survey = source.survey()
        assert dict(survey.splits) == {"train": 6, "val": 4, "test": 2}
        train, val, test = (rows(source, split) for split in ("train", "val", "test"))
    images = folder / "ILSVRC/Data/CLS-LOC"
    data = torchvision.ImageFolder(images / "train")
    assert [(key, values["label"]) for key, values in train] == [
        (Path(path).relative_to(folder).as_posix(), label) for path, label in data.samples
    ]
    assert survey.columns[0].classes == tuple(data.classes)
    assert train[0][1]["boxes"] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert train[0][1]["labels"] == [0, 0]
    assert (train[2][1]["boxes"], train[2][1]["labels"], train[2][1]["name"]) == (None, None, "shark, white shark")
    assert [(key[-6:-5], values["label"]) for key, values in val] == [("6", 3), ("7", 0), ("8", 1), ("9", 2)]
    assert all(values == dict.fromkeys(values) for _, values in test)
    prove(folder, tmp_path / "x.h5")


@pytest.mark.parametrize(
    "line", ["", "ILSVRC2012_val_00000006", "ILSVRC2012_val_00000006,n09 1 2 3 4", "x,n01000000 1"]
)
def test_tables_of_kaggle_that_are_missing_or_broken(line: str, tmp_path: Path) -> None:
    folder = make_layout("kaggle", tmp_path)
    table = folder / "LOC_val_solution.csv"
    table.write_text(f"ImageId,PredictionString\n{line}\n") if line else table.unlink()
    refused(SourceError, folder, r"LOC_val_solution\.csv has (the|no) line" if line else "has no line of")
    (folder / "LOC_synset_mapping.txt").unlink()
    question(folder, r"looks like ILSVRC .*, without .*LOC_synset_mapping\.txt")


@pytest.mark.slow
def test_real_images_in_one_command(shared_data: SharedData, tmp_path: Path, torchvision: Any) -> None:
    """Of 600 images of ImageNet, the archives as they are downloaded; then the command; then torchvision's labels."""
    data, root = shared_data / "imagenet-600", tmp_path / "downloaded"
    root.mkdir()
    train = {f"{file.parent.name}/{file.name}": file.read_bytes() for file in sorted((data / "train").glob("*/*"))}
    (root / TRAIN).write_bytes(train_tar(train))
    files = sorted((data / "val").glob("*/*"), key=lambda file: file.name)  # so that classes are mixed
    names = [f"ILSVRC2012_val_{n:08}.JPEG" for n in range(1, len(files) + 1)]
    (root / VAL).write_bytes(tar({name: file.read_bytes() for name, file in zip(names, files, strict=True)}))
    wnids = sorted({file.parent.name for file in files}, reverse=True)
    (root / DEVKIT).write_bytes(devkit({wnid: f"a {wnid}" for wnid in wnids}, [file.parent.name for file in files]))
    done = run("convert", str(root), str(tmp_path / "imagenet.lmdb"))
    assert done.returncode == 0, done.stderr
    for split in ("train", "val"):
        expected, _ = theirs(root, split, torchvision)
        packed = PackedDataset(tmp_path / "imagenet.lmdb", split, columns=("key", "label", "image"), output="bytes")
        assert [(key, label) for key, label, _ in packed] == expected
        assert all((root / key).read_bytes() == bytes(image) for key, _, image in packed)
