"""``packstore info`` of a source: what it was recognised as and why, before anything is packed."""

from __future__ import annotations

import json
import shlex
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import packstore
from packstore.sources import Entry, Source, SourceOptions, Survey, open_source
from tests.internals import Column, sample_keys, source_rows
from tests.makers.annotated import fill, jpeg
from tests.makers.command import run
from tests.makers.datasets import make_cifar10, make_folder

pytestmark = pytest.mark.slow


def rows(text: str) -> dict[str, str]:
    """The rows by name; those without one go on with the row above, behind a bar."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition("  ")
        if name:
            last = name if name != "split" else f"split {value.strip().partition(':')[0]}"
            found[last] = value.strip()
        else:
            found[last] += f" | {line.strip()}"
    return found


def test_modes_of_a_few_headers(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number, dtype in enumerate((np.uint8, np.uint16, np.uint16)):
        Image.fromarray(np.zeros((4, 4), dtype)).save(tmp_path / "a" / f"{number}.png")
    with closing(open_source(tmp_path)) as source:
        said = rows((found := source_rows(source, source.survey(), "")).text)
        assert said["modes"] == "L in 1, I;16 in 2 (by the headers of 3 files)"
        assert found.values["modes_of_some"] == {"L": 1, "I;16": 2}


def test_an_image_folder(photos: Path, tmp_path: Path) -> None:
    (photos / "notes.txt").write_text("passed over")
    done = run("info", photos, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = rows(done.stdout)
    assert said["source"] == "an image folder, whose folders are classes (imagefolder)"
    assert said["known by"] == "folders of images in train, val"
    assert said["column image"] == "image files, packed byte for byte"
    assert said["files"].endswith("1 left out: notes.txt")
    packstore.convert(photos, tmp_path / "store.h5")
    with packstore.open(tmp_path / "store.h5") as reader:
        manifest = reader.manifest
        splits = {f"split {split.name}": f"{split.name}: {len(split)} samples" for split in manifest.splits}
        assert {name: value for name, value in said.items() if name.startswith("split ")} == splits
        assert (
            said["column label"]
            == f"label: classes {len(manifest.classes or ())} ({', '.join(manifest.classes or ())})"
        )
        firsts = [reader.key(split.start) for split in manifest.splits]
        assert said["key"].split(" | ") == [*firsts, reader.key(1)][:3]
    assert shlex.split(said["pack it"]) == ["packstore", "convert", str(photos), "my photos.lmdb"]
    assert run(*shlex.split(said["pack it"])[1:], cwd=tmp_path).returncode == 0


def test_as_json(photos: Path) -> None:
    done = run("info", photos, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["kind"] == "imagefolder"
    assert facts["records"] == sum(facts["splits"].values())
    assert facts["columns"][0]["name"] == "label"
    assert len(facts["sample_keys"]) == 3
    assert {"path", "help", "evidence", "image_bytes", "encoding", "shape", "ledger"} <= set(facts)


def test_of_arrays(tmp_path: Path) -> None:
    make_cifar10(tmp_path)
    said = rows(run("info", tmp_path / "cifar-10-batches-py").stdout)
    assert said["source"] == "CIFAR-10 as downloaded, a folder or .tar.gz (cifar10)"
    assert said["column image"] == "uint8 of shape 32 x 32 x 3"


def test_options_are_those_of_convert_and_in_its_command(photos: Path, tmp_path: Path) -> None:
    labels = tmp_path / "the labels.csv"
    first = next((photos / "train").rglob("*.png")).relative_to(photos)
    labels.write_text(f"file,label\n{first},3\n")
    done = run("info", photos, "--labels", labels, "--source", "flat", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = rows(done.stdout)
    assert said["known by"] == "the labels in the labels.csv"
    assert said["column label"] == "label: numbers, without class names"
    assert run(*shlex.split(said["pack it"])[1:], cwd=tmp_path).returncode == 0
    done = run("info", photos, "--source", "webdataset")
    assert (done.returncode, done.stdout) == (1, "")
    assert "holds no tar shards" in done.stderr


def test_a_store_as_a_source(photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "a.lmdb")
    assert "a packstore store (store)" in run("info", tmp_path / "a.lmdb", "--source", "store").stdout
    assert "a packstore store (store)" not in run("info", tmp_path / "a.lmdb").stdout


def test_the_data_file_of_a_store(photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "a.lmdb")
    done = run("info", tmp_path / "a.lmdb" / "data.mdb")
    assert done.returncode == 1
    assert f"is the data file of an LMDB: give its directory, {tmp_path / 'a.lmdb'}\n" in done.stderr


def test_what_is_neither_a_store_nor_a_source(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("hello world")
    done = run("info", tmp_path / "text.txt")
    assert done.returncode == 1
    assert "neither a store nor a source that packstore reads (see packstore guide sources)" in done.stderr
    done = run("info", tmp_path / "missing")
    assert done.returncode == 2
    assert "missing does not exist" in done.stderr


def test_a_question_is_asked_before_anything_else(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "b")
    (tmp_path / "b" / "annotations.csv").write_text("file_name,label\n")
    done = run("info", tmp_path / "b", "--json")
    assert done.returncode == 2
    assert "annotations.csv" in json.loads(done.stdout)["question"]
    assert "annotations.csv" in done.stderr
    commands = [line for line in done.stderr.splitlines()[1:] if not line.startswith("  # ")]
    base = f"  packstore info {tmp_path / 'b'} --json"
    assert f"{base} --source imagefolder" in commands


class _Rows(Source):
    kind = "flat"
    evidence = "a\x1b file"

    def survey(self, split: str | None = None, progress: object = None) -> Survey:
        boxes = Column("boxes", "ragged", "float32", (4,), type="boxes", coordinates="xyxy", nullable=True)
        classes = tuple(f"c{n}" for n in range(12))
        columns = (
            boxes,
            *boxes.companions,
            Column("labels", "ragged", "int64", classes=classes, type="labels", parallel="boxes"),
            Column("depth", "fixed", "float32", (2, 3)),
        )
        return Survey({"train": 1, "a\nb": 2}, columns, "uint8", None, 5, {}, 9, sampled=frozenset(("depth",)))

    def entries(self, split: str | None = None) -> list[Entry]:  # type: ignore[override]
        keys = {"train": ["t\x07"], "a\nb": ["x", "y"]}
        return [Entry(key, name, (), 1, None) for name in keys if split in (None, name) for key in keys[name]]

    def read(self, entry: Entry) -> bytes:
        raise NotImplementedError("info reads no image")


def test_columns_and_hostile_names() -> None:
    source = _Rows(Path("x"), SourceOptions())
    report = source_rows(source, source.survey(), "")
    said = report.text
    assert all(line.isprintable() for line in said.splitlines())
    found = rows(said)
    assert found["column boxes"] == "boxes: left, top, right, bottom in pixels; may be missing"
    classes = "c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, …"
    assert found["column labels"] == f"labels: classes 12 ({classes}), one for each row of boxes"
    assert found["column depth"] == "array: float32, 2 x 3"
    assert "column boxes_valid" not in found
    assert found["key"] == r"t\x07 | x | y"
    facts = json.loads(json.dumps(report.values))
    assert [column["name"] for column in facts["columns"]] == ["boxes", "labels", "depth"]
    assert facts["sample_keys"] == ["t\x07", "x", "y"]


def test_samples_that_can_be_had_once_are_not_used_up() -> None:
    source = _Rows(Path("x"), SourceOptions())
    survey = Survey({"": 0}, (), "original", None, 0, {}, 0, counted=False, resumable=False)
    assert sample_keys(source, survey) == []
    found = source_rows(source, survey, "")
    assert rows(found.text)["samples"] == "not known before all are read"
    assert found.values["records"] is None


def test_columns_of_a_table(tmp_path: Path) -> None:
    """Which column means what is said, and the command that is shown gives the same answers again."""
    photos = make_folder(tmp_path / "photos", splits=(), per_class=4)
    names = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.*"))
    lines = "".join(f"{name},{n},{'xy'[n % 2]}\n" for n, name in enumerate(names))
    (photos / "list.csv").write_text(f"photo,weight,seen\n{lines}")
    done = run("info", photos, "--column", "image=photo", "--column", "label=seen", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = rows(done.stdout)
    assert said["known by"] == "list.csv with the columns image=photo, label=seen"
    assert said["column label"] == "label: classes 2 (x, y)"
    assert said["pack it"].endswith("--column image=photo --column label=seen")
    packed = run(*shlex.split(said["pack it"])[1:], cwd=tmp_path)
    assert packed.returncode == 0, packed.stderr
    checked = run("verify", "photos.lmdb", "--against", "photos", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("depth", [False, True])
def test_a_file_that_names_images_is_named_in_commands(depth: bool, tmp_path: Path) -> None:
    """Not its folder, which has another list; nor for a kind that does not read the file."""
    files: dict[str, str | bytes] = {f"data/images/{n}.jpg": jpeg(n) for n in range(4)}
    files |= {f"data/depth/{n}.jpg": jpeg(n) for n in range(4 * depth)}
    for name in ("wiki_demo.txt", "other.txt"):
        files[f"data/{name}"] = "".join(f"images/{n}.jpg word{n}\n" for n in range(4))
    fill(tmp_path, files)
    done = run("info", "data/wiki_demo.txt", cwd=tmp_path)
    if not depth:
        assert rows(done.stdout)["pack it"] == "packstore convert data/wiki_demo.txt wiki_demo.lmdb"
        assert run(*shlex.split(rows(done.stdout)["pack it"])[1:], cwd=tmp_path).returncode == 0
        return
    commands = [line.strip() for line in done.stderr.splitlines()[1:] if not line.startswith("  # ")]
    file = "packstore info data/wiki_demo.txt"
    assert commands == [f"{file} --source table", "packstore info data --source imagefolder"]
    for command in commands[:1]:
        said = rows(run(*shlex.split(command)[1:], cwd=tmp_path).stdout)
        assert said["known by"].startswith("wiki_demo.txt")
        assert said["pack it"].startswith("packstore convert data/wiki_demo.txt wiki_demo.lmdb --")
