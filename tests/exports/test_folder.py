"""Exports as image folders, tars and export_archives: the contract, and what others read."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packstore
from packstore.stores import open_store
from packstore.testing.exports import Stop, picture
from tests.internals import Writer, convert, export, export_archives, run
from tests.makers.torchvision import import_torchvision

HOSTILE = [
    *("../../x.jpg", "/etc/x.png", "a/./b.jpg", "a\0b", "", "X.JPG", "x.jpg", "x.png", "a:b*?"),
    "n" * 300,
    "y/" * 600,
]
CLASSES = ["../up", "cat", "Cat", "", ".", "/abs", "c" * 300]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A store whose keys and names of classes are what they should not be."""

    path = tmp_path / "in" / "hostile.lmdb"
    path.parent.mkdir()
    fields: dict[str, Any] = {"image": "image", "label": packstore.Label(CLASSES)}
    with Writer(path, fields=fields) as writer:
        for i, key in enumerate(HOSTILE):
            writer.add(key=key, image=picture(i), label=i % len(CLASSES))
    return path


def tree(root: Path) -> dict[str, bytes]:
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


@pytest.mark.parametrize("kind", ["imagefolder", "tar", "zip"])
def test_nothing_gets_out_whatever_keys_and_classes_are(hostile: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "deep" / "er" / "out"
    out.parent.mkdir(parents=True)
    export(hostile, out, to=kind)
    if kind == "imagefolder":
        names = list(tree(out))
    elif kind == "tar":
        with tarfile.open(out) as tar:
            names = tar.getnames()
    else:
        with zipfile.ZipFile(out) as opened:
            names = opened.namelist()
    assert set(tmp_path.rglob("*")) - set(out.rglob("*")) == {
        *(tmp_path / name for name in ("in", "deep", "deep/er", "deep/er/out")),
        hostile,
        *hostile.iterdir(),
    }
    assert len(names) == len(HOSTILE) + 2
    assert len({name.casefold() for name in names}) == len(names)
    for name in names:
        assert not {"", ".", ".."} & set(name.split("/"))
        assert name.isprintable()
        assert max(map(len, name.split("/"))) <= 255
    convert(out, tmp_path / "again.lmdb")
    with open_store(hostile) as old, open_store(tmp_path / "again.lmdb") as new:
        assert new.manifest.dataset_digest == old.manifest.dataset_digest


NESTED = [
    *("a.jpg", "a.jpg/b.jpg", "a.jpg/b.jpg/c.png", "A.JPG/d.jpg", "e", "e.png/f.jpg", "g.png", "g.jpg/h/i.jpg"),
    *("a~0.jpg/j.jpg", "k.png/l.jpg", "k.txt/m.jpg", "v1.0/n.jpg", "v1.jpg"),
]


@pytest.mark.parametrize("kind", ["imagefolder", "tar", "zip", "coco", "yolo"])
def test_a_file_where_a_folder_has_to_be_gets_another_name(kind: str, tmp_path: Path) -> None:
    boxed = kind in ("coco", "yolo")
    fields: dict[str, Any] = {"image": "image"}
    if boxed:
        fields |= {"boxes": packstore.Boxes("xyxy"), "labels": packstore.Labels(["cat"])}
    with Writer(tmp_path / "in.lmdb", fields=fields) as writer:
        for i, key in enumerate(NESTED):
            more = {"boxes": np.array([[0, 0, 2, 2]]), "labels": [0]} if boxed else {}
            writer.add(key=key, image=picture(i), **more)
    export(tmp_path / "in.lmdb", tmp_path / "out", to=kind)
    place = tmp_path / "out"
    if kind in ("tar", "zip"):
        place = tmp_path / "unpacked"
        shutil.unpack_archive(tmp_path / "out", place, kind)
    assert len(list(place.rglob("*.[jp][pn]g"))) - sum(path.is_dir() for path in place.rglob("*.[jp][pn]g")) == len(
        NESTED
    )
    names = {str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()}
    if not boxed:
        assert {"a~0.jpg", "g~6.png", "v1.jpg", "v1.0/n.jpg"} - names == {"a~0.jpg"}
    for again in (tmp_path / "out", place):
        convert(again, tmp_path / "again.lmdb", overwrite=True)
        with open_store(tmp_path / "in.lmdb") as old, open_store(tmp_path / "again.lmdb") as new:
            assert new.manifest.dataset_digest == old.manifest.dataset_digest
            assert [new.key(n) for n in range(len(new))] == NESTED


@pytest.fixture
def cats_and_dogs(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    for i in range(8):
        path = root / ("train", "val")[i % 2] / ("cat", "dog")[i // 2 % 2] / f"{i}.{('jpg', 'JPEG')[i % 3 == 0]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(i))
    return root


def test_the_export_of_a_packed_folder_is_that_folder(cats_and_dogs: Path, tmp_path: Path) -> None:
    convert(cats_and_dogs, tmp_path / "in.lmdb")
    export(tmp_path / "in.lmdb", tmp_path / "out", to="imagefolder")
    export(tmp_path / "in.lmdb", tmp_path / "out.tar")
    export(tmp_path / "in.lmdb", tmp_path / "out.zip")
    with tarfile.open(tmp_path / "out.tar") as tar:
        assert tar.getnames()[0] == "packstore.json"
        tar.extractall(tmp_path / "tar", filter="data")
    with zipfile.ZipFile(tmp_path / "out.zip") as opened:
        assert opened.testzip() is None
        opened.extractall(tmp_path / "zip")
    for name in ("out", "tar", "zip"):
        found = tree(tmp_path / name)
        assert set(found) - set(tree(cats_and_dogs)) == {"packstore.json", "packstore.rows.jsonl"}
        assert {file: data for file, data in found.items() if not file.startswith("packstore.")} == tree(cats_and_dogs)


@pytest.mark.slow
def test_torchvision_reads_the_same_labels(cats_and_dogs: Path, tmp_path: Path) -> None:
    datasets = import_torchvision().datasets
    convert(cats_and_dogs, tmp_path / "in.lmdb")
    report = export(tmp_path / "in.lmdb", tmp_path / "out", to="imagefolder")
    assert not any("classes" in loss for loss in report.losses)
    with open_store(tmp_path / "in.lmdb") as reader:
        for split in reader.manifest.splits:
            found = datasets.ImageFolder(tmp_path / "out" / split.name)
            assert tuple(found.classes) == reader.manifest.classes
            assert [label for _, label in found.samples] == reader.fixed_column("label")[
                split.start : split.stop
            ].tolist()


def test_what_torchvision_would_number_otherwise_is_said(tmp_path: Path) -> None:

    for name, classes, labels in (
        ("order", ["b", "a"], [0, 1]),
        ("empty", ["a", "b", "c"], [0, 2]),
        ("missing", ["a", "b: c"], [0, None, 1]),
    ):
        fields: dict[str, Any] = {"image": "image", "label": packstore.Label(classes, optional=name == "missing")}
        with Writer(tmp_path / f"{name}.lmdb", fields=fields) as writer:
            for i, label in enumerate(labels):
                writer.add(key=f"{i}.jpg", image=picture(i), label=label)
    said = {
        name: "\n".join(export(tmp_path / f"{name}.lmdb", tmp_path / name, to="imagefolder").losses)
        for name in ("order", "empty", "missing")
    }
    assert "readers number folders in the order of their names" in said["order"]
    assert "classes without images (1 in a split)" in said["empty"]
    assert "names of 1 classes: they cannot be names of folders" in said["missing"]
    assert "such images are in a folder 'unlabelled'" in said["missing"]
    for said_of in (said["order"], said["empty"]):
        assert "unlabelled" not in said_of
        assert "called otherwise" not in said_of


def test_a_large_zip_has_fields_of_zip64(cats_and_dogs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = convert(cats_and_dogs, tmp_path / "in.lmdb").manifest.dataset_digest
    monkeypatch.setattr(export_archives, "_LARGE", 900)
    monkeypatch.setattr(export_archives, "_MANY", 3)
    export(tmp_path / "in.lmdb", tmp_path / "out.zip")
    with zipfile.ZipFile(tmp_path / "out.zip") as opened:
        assert opened.testzip() is None
        assert 45 in {info.extract_version for info in opened.infolist()}
    assert convert(tmp_path / "out.zip", tmp_path / "again.lmdb").manifest.dataset_digest == digest
    monkeypatch.setattr(run, "_CHUNK_RECORDS", 3)
    monkeypatch.setattr(run, "_REPORT_EVERY", 1)
    with pytest.raises(KeyboardInterrupt):
        export(tmp_path / "in.lmdb", tmp_path / "later.zip", progress=Stop(6))
    assert export(tmp_path / "in.lmdb", tmp_path / "later.zip").resumed == 6
    assert (tmp_path / "later.zip").read_bytes() == (tmp_path / "out.zip").read_bytes()
