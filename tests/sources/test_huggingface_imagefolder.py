"""Image folders with metadata, and splits by a card. What is expected is what datasets 5.2.0 read of the same folders,
but where a test says otherwise.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import packstore
from packstore import PackedDataset, convert, verify
from packstore.sources import open_source
from tests.internals import PackstoreError, SampleError, SourceError
from tests.makers.images import encode, tiny
from tests.makers.sources import FileSuite, look, not_packed, prove, refused

yaml = pytest.importorskip("yaml")


@pytest.fixture
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store outside the source."""
    return tmp_path_factory.mktemp("out") / "x.h5"


def write(folder: Path, files: Mapping[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def images(*names: str) -> dict[str, bytes]:
    return {name: tiny(number) for number, name in enumerate(names)}


def jsonl(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


class TestHfImageFolder(FileSuite):
    kind = "hf_imagefolder"
    bytes_per_sample = 400

    def make(self, folder: Path, samples: int) -> Path:
        for split, numbers in {"train": range(2, samples), "test": range(2)}.items():
            names = [f"{n:05}.png" for n in numbers]
            lines = "".join(f"{name},{n % 3}\n" for n, name in zip(numbers, names, strict=True))
            write(folder / split, {"metadata.csv": "file_name,label\n" + lines})
            for n, name in zip(numbers, names, strict=True):
                (folder / split / name).write_bytes(tiny(n))
        return folder

    def change(self, path: Path) -> None:
        file = path / "test" / "metadata.csv"
        file.write_text(file.read_text().replace(",1", ",2"))

    def test_a_sample_that_cannot_be_read_is_named(self, path: Path) -> None:
        with closing(self.open(path)) as source:
            spoiled = list(source.entries())[2]
        self.spoil(path, spoiled)
        with closing(self.open(path)) as source:
            for entry in source.entries():
                if entry.key != spoiled.key:
                    source.read(entry)
                    continue
                with pytest.raises(SampleError, match="No such file"):
                    source.read(entry)


CSV = """file_name,label,size,caption,ok,code
b.png,bee,1.5,"two, or more",True,007
a.png,ant,2,,False,008
sub/a.png,bee,,NA,True,9
"""


# Not datasets: it makes numbers of 007 and 008, a missing text of NA, and no classes of the names.
def test_csv(tmp_path: Path, out: Path) -> None:
    write(tmp_path, {**images("a.png", "b.png", "c.png", "sub/a.png"), "metadata.csv": CSV, "notes.txt": "x"})
    report = prove(tmp_path, out)
    manifest = report.manifest
    assert (manifest.origin.kind, manifest.splits, manifest.classes) == ("hf_imagefolder", (), ("ant", "bee"))
    assert report.ledger.passed_over == {"images that the metadata do not name": 1, "not images (.txt)": 1}
    columns = ("key", "image", "label", "size", "caption", "ok", "code")
    rows = list(PackedDataset(out, columns=columns, output="bytes"))
    assert rows == [
        ("b.png", tiny(1), 1, 1.5, "two, or more", True, "007"),
        ("a.png", tiny(0), 0, 2.0, None, False, "008"),
        ("sub/a.png", tiny(3), 1, None, "NA", True, "9"),
    ]


def test_jsonl_with_several_images_a_row(tmp_path: Path, out: Path) -> None:
    mask = encode(Image.frombytes("L", (3, 2), bytes(6)), "PNG")
    rows = [
        {"left_file_name": "a.png", "image_file_name": "b.png", "mask_file_name": "m.png", "tags": [1, 2], "n": 1},
        {
            "left_file_name": None,
            "image_file_name": "a.png",
            "mask_file_name": "m.png",
            "tags": [],
            "n": -5,
            "x": {"y": 1},
        },
    ]
    write(tmp_path, {**images("a.png", "b.png"), "m.png": mask, "metadata.jsonl": jsonl(*rows)})
    manifest = convert(tmp_path, out).manifest
    assert [manifest.column(name).type for name in ("left", "mask")] == ["image", "mask"]
    found = list(PackedDataset(out, columns=("image", "left", "mask", "tags", "n", "x"), output="bytes"))
    plain = [[value.tolist() if hasattr(value, "tolist") else value for value in row] for row in found]
    assert [row[3:] for row in plain] == [[[1, 2], 1, None], [[], -5, {"y": 1}]]
    assert [row[:2] for row in plain] == [[tiny(1), tiny(0)], [tiny(0), None]]
    assert convert(tmp_path, out, overwrite=True).ledger.passed_over == {}


def test_parquet(tmp_path: Path, out: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    features = {"label": {"names": ["ant", "bee"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    found = pa.table({"file_name": ["b.png", "a.png"], "label": [1, -1], "when": pa.array([0, 1], pa.timestamp("s"))})
    write(tmp_path, images("a.png", "b.png"))
    pq.write_table(found.replace_schema_metadata(metadata), tmp_path / "metadata.parquet")
    assert convert(tmp_path, out).manifest.classes == ("ant", "bee")
    assert list(PackedDataset(out, columns=("image", "label", "when"), output="bytes")) == [
        (tiny(1), 1, "1970-01-01T00:00:00"), (tiny(0), None, "1970-01-01T00:00:01"),
    ]  # fmt: skip


def test_parquet_without_rows_beside_one_with_rows(tmp_path: Path, out: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    found = pa.table({"file_name": ["a.png"], "n": pa.array([3], pa.int16())})
    for folder, rows in (("x", 0), ("y", 1)):
        write(tmp_path / "set" / folder, images("a.png"))
        pq.write_table(found.slice(0, rows), tmp_path / "set" / folder / "metadata.parquet")
    columns = convert(tmp_path / "set", out).manifest.columns
    assert [(each.name, each.dtype) for each in columns if each.name == "n"] == [("n", "int16")]


def test_an_image_in_several_rows(tmp_path: Path, out: Path) -> None:
    rows = jsonl(*({"file_name": name, "text": f"{n}"} for n, name in enumerate(("a.png", "b.png", "a.png", "a.png"))))
    convert(write(tmp_path, {**images("a.png", "b.png"), "metadata.jsonl": rows}), out)
    found = list(PackedDataset(out, columns=("key", "text"), output="bytes"))
    assert found == [("a.png", "0"), ("b.png", "1"), ("a.png#1", "2"), ("a.png#2", "3")]
    assert verify(out, against=tmp_path).problems == ()


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train/metadata.csv", "train/a.png", "val/metadata.csv", "val/a.png"], ["train", "validation"]),
        # datasets before 4.0, with metadata above the folders of the splits
        (["metadata.csv", "train/a.png", "test/a.png"], ["train", "test"]),
        (["x/metadata.csv", "x/a.png", "y/metadata.csv", "y/b.png"], []),
        (["metadata.csv", "train_1.png", "my-test-1.png"], ["train", "test"]),
        # not datasets, which makes one image of "test" a split and loses the others
        (["metadata.csv", "cat.png", "test tube.png"], []),
    ],
)
def test_names_tell_the_splits(names: list[str], splits: list[str], tmp_path: Path, out: Path) -> None:
    files: dict[str, bytes | str] = {**images(*(name for name in names if name.endswith(".png")))}
    for name in names:
        if name.endswith(".csv"):
            folder = name[: -len("metadata.csv")]
            files[name] = "file_name\n" + "".join(
                f"{n[len(folder) :]}\n" for n in files if n.startswith(folder) and n[-3:] == "png"
            )
    manifest = convert(write(tmp_path, files), out).manifest
    assert [split.name for split in manifest.splits] == splits
    assert manifest.records == sum(name.endswith(".png") for name in names)


def test_folders_of_no_split_beside_splits(tmp_path: Path) -> None:
    names = "file_name\ntrain/a.png\nextra/a.png\n"
    write(tmp_path, {**images("train/a.png", "extra/a.png"), "metadata.csv": names})
    survey = look(tmp_path).survey
    assert survey.splits == {"train": 1, "unassigned": 1}
    assert "1 of the samples have no split" in survey.notes[0]


CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/one/**
  - split: rest
    path:
    - data/two/*.png
    - data/three/**
{more}---
# A set
"""


# Not datasets: it leaves out the labels of the first splits, as long as these are all of one class.
@pytest.mark.parametrize(("more", "classes"), [("", ("one", "three", "two")), ("  drop_labels: true\n", None)])
def test_splits_of_the_card(more: str, classes: tuple[str, ...] | None, tmp_path: Path, out: Path) -> None:
    names = ("data/one/a.png", "data/three/b.png", "data/two/c.png", "data/four/d.png")
    write(tmp_path, {**images(*names), "README.md": CARD.format(more=more)})
    report = convert(tmp_path, out)
    assert (report.manifest.origin.kind, report.manifest.classes) == ("hf_imagefolder", classes)
    assert [(split.name, split.stop) for split in report.manifest.splits] == [("train", 1), ("rest", 3)]
    assert report.ledger.passed_over == {"images of no split": 1}
    if classes is not None:
        assert [label for _, label in PackedDataset(out, "rest", output="bytes")] == [1, 2]


def test_images_on_several_levels_have_no_labels(tmp_path: Path, out: Path) -> None:
    names = ("data/one/a.png", "data/three/deep/b.png", "data/two/c.png")
    write(tmp_path, {**images(*names), "README.md": CARD.format(more="")})
    assert not convert(tmp_path, out).manifest.has_column("label")


def test_images_and_a_column_of_the_same_name(tmp_path: Path) -> None:
    rows = jsonl({"file_name": "a.png", "x_file_name": "b.png", "x": "one"}, {"file_name": "b.png", "x": "two"})
    write(tmp_path, {**images("a.png", "b.png"), "metadata.jsonl": rows})
    with closing(open_source(tmp_path)) as source:
        source.survey()
        first, second = (source.read(each).values for each in source.entries())
    assert (first["x"], second["x"], first["x_"], second["x_"]) == ("one", "two", tiny(1), None)


def test_a_column_of_splits_is_kept_as_a_column(tmp_path: Path) -> None:
    text = "file_name,split\n" + "".join(f"{n}.png,{'train' if n < 3 else 'test'}\n" for n in range(5))
    write(tmp_path, {**images(*(f"{n}.png" for n in range(5))), "metadata.csv": text})
    seen = look(tmp_path)
    assert seen.splits == {"": 5}
    assert seen.each("split")[2:4] == ["train", "test"]


def test_an_archive(tmp_path: Path, out: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for name, data in {**images("a.png", "b.png"), "metadata.csv": "file_name,n\na.png,1\nb.png,2\n"}.items():
            archive.writestr(f"set/{name}", data)
    convert(tmp_path / "set.zip", out)
    assert [int(n) for n in PackedDataset(out, columns=("n",))] == [1, 2]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"metadata.csv": "file_name\na.png\n", "metadata.jsonl": jsonl({"file_name": "a.png"})},
            "several formats",
        ),
        ({"metadata.csv": "file_name\n../a.png\n"}, r"line 2: file_name names '\.\./a\.png'"),
        ({"metadata.csv": "file_name\n/etc/passwd\n"}, "not a path within the source"),
        ({"metadata.csv": "file_name\nfile:///etc/passwd\n"}, "expected a path"),
        ({"metadata.jsonl": jsonl({"file_name": 5})}, "expected a path"),
        ({"metadata.csv": "file_name,n\n,1\n"}, "no file_name"),
        ({"metadata.csv": "file_name,n,n\na.png,1,2\n"}, "a column twice"),
        ({"metadata.csv": "file_name,n\na.png,1,2\n"}, "3 fields, the first line has 2"),
        ({"metadata.csv": b"file_name,n\na.png,\xff\n"}, "line 2: not UTF-8"),
        ({"metadata.csv": "file_name\n"}, "no rows"),
        ({"metadata.jsonl": '{"file_name": "a.png"}\n{"file_'}, "line 2: not JSON"),
        ({"metadata.jsonl": '{"file_name": "a.png"}\n[1]\n'}, "line 2: no object"),
        ({"metadata.jsonl": '{"file_name": "a.png"}\n' + "[" * 99999}, "line 2: not JSON"),
        ({"metadata.jsonl": jsonl({"file_name": "a.png", "more_file_names": "a.png"})}, "expected a list"),
        ({"metadata.jsonl": jsonl({"file_name": "a.png", "more_file_names": [5]})}, "expected a path"),
        ({"metadata.jsonl": jsonl({"file_names": []})}, "no file_names"),
        ({"metadata.csv": "file_names\na.png\n"}, "expected a list"),
    ],
)
def test_metadata_that_cannot_be_used(files: dict[str, bytes | str], said: str, tmp_path: Path, out: Path) -> None:
    write(tmp_path, {**images("a.png"), **files})
    not_packed(PackstoreError, tmp_path, out, said, source_kind="hf_imagefolder")


@pytest.mark.parametrize(
    "card",
    [
        "---\nconfigs: 5\n---\n",
        "---\nconfigs: [\n---\n",
        "---\nconfigs:\n- data_files: {a: b}\n---\n",
        "---\nconfigs: &a [*a]\n---\n",
    ],
)
def test_cards_that_cannot_be_followed(card: str, tmp_path: Path) -> None:
    write(tmp_path, {**images("a/1.png", "b/2.png"), "README.md": card})
    refused(SourceError, tmp_path, r"README\.md: its head")


def test_what_is_left_to_other_kinds(tmp_path: Path) -> None:
    for name, more in {"a": {"metadata.csv": "id,species\n1,x\n"}, "b": {"labels.csv": "file,label\n"}}.items():
        write(tmp_path / name, {**images("x/1.png", "y/2.png"), **more})
        refused(SourceError, tmp_path / name, "would be packed without")
    write(tmp_path / "c", {**images("x/1.png", "y/2.png"), "README.md": "---\nlicense: mit\n---\n# Hello\n"})
    assert look(tmp_path / "c").kind == "imagefolder"


@pytest.mark.parametrize("main", [True, False])
def test_lists_of_images_in_a_row(main: bool, tmp_path: Path, out: Path) -> None:
    """Beside a file_name they are a column; without one the first of each is the image."""
    names = ["a.png", "b.png", "c.png"]
    lists = [names, names[:1], names[1:]]
    rows = [({"file_name": names[n]} if main else {}) | {"file_names": each, "n": n} for n, each in enumerate(lists)]
    files = images(*names)
    write(tmp_path, {**files, "metadata.jsonl": jsonl(*rows)})
    manifest = convert(tmp_path, out, source_kind="hf_imagefolder").manifest
    assert manifest.origin.files is not None
    assert manifest.origin.files.left == 0
    with packstore.open(out) as reader:
        found = [reader.item("images" if main else "further_images", n) for n in range(3)]
        first = [bytes(reader.read(n)) for n in range(3)]
    assert first == [files[names[n] if main else each[0]] for n, each in enumerate(lists)]
    assert found == [[files[name] for name in (each if main else each[1:])] for each in lists]
