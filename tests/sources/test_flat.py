"""Flat folders: without labels, and with a labels file in all the ways in which it can be wrong."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packstore import convert, verify
from packstore.sources import Entry, Source, open_source
from tests.conftest import SharedData
from tests.internals import SourceError
from tests.makers.annotated import fill, jpeg
from tests.makers.images import tiny
from tests.makers.sources import FileSuite, look, question, refused

FILES = ("b.jpg", "a.jpg", "sub/c.png", "sub/deep/d.JPEG")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return fill(tmp_path / "root", {name: b"x" * number for number, name in enumerate(FILES, 1)})


def labelled(folder: Path, text: str | bytes) -> Source:
    path = folder.parent / "labels.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_source(folder, labels=path)


def failure(folder: Path, text: str | bytes) -> str:
    with pytest.raises(SourceError) as caught, closing(labelled(folder, text)) as source:
        source.survey()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def listed(source: Source, split: str | None = None) -> list[tuple[str, str, tuple[int, ...]]]:
    labels = source.options.labels is not None
    return [
        (entry.key, entry.split, (int(source.read(entry).values["label"]),) if labels else ())
        for entry in source.entries(split)
    ]


class TestFlat(FileSuite):
    kind = "flat"
    many = 2000
    undecodable_keys = True
    bytes_per_sample = 400  # the names, sizes and times of one directory

    def make(self, folder: Path, samples: int) -> Path:
        for number in range(samples):
            (folder / f"{number}\udcff.png").write_bytes(tiny(number))
        return folder

    def change(self, path: Path) -> None:
        (path / "0\udcff.png").rename(path / "0.png")

    def spoil(self, path: Path, entry: Entry) -> bool:
        (path / entry.key).unlink()
        os.mkfifo(path / entry.key)
        return True


class TestFlatWithLabels(TestFlat):
    bytes_per_sample = 400
    undecodable_keys = False

    def make(self, folder: Path, samples: int) -> Path:
        names = [f"{number % 5}/{number}ä.png" for number in range(samples)]
        splits = ("test", "train", "extra")
        lines = [f"./{name},class {number % 3},{splits[number % 3]}" for number, name in enumerate(names)]
        fill(folder, {"labels.csv": "\n".join(["file,label,split", *lines])})
        return fill(folder / "photos", {name: tiny(number) for number, name in enumerate(names)})

    def options(self, path: Path) -> Mapping[str, Any]:
        return {"labels": path.parent / "labels.csv"}

    def change(self, path: Path) -> None:
        """Exchanges two labels, which leaves the size of the file."""
        file = path.parent / "labels.csv"
        file.write_bytes(file.read_bytes().replace(b"class 1", b"class 2", 1))


def test_images_without_labels(tmp_path: Path) -> None:
    for name in ("b.jpg", "a.PNG", ".hidden.jpg", "Thumbs.db", "notes.txt"):
        (tmp_path / name).write_bytes(b"image")
    source = open_source(tmp_path)
    survey = source.survey()
    assert source.kind == "flat"
    assert listed(source) == [("a.PNG", "", ()), ("b.jpg", "", ())]
    assert source.read(next(source.entries())) == b"image"
    assert (dict(survey.splits), survey.columns, survey.encoding) == ({"": 2}, (), "original")
    assert (survey.size_bytes, survey.size_counts, survey.key_bytes) == (10, {64: 2}, 10)
    assert dict(survey.ledger.passed_over) == {"hidden": 1, "system files": 1, "not images (.txt)": 1}
    with pytest.raises(SourceError, match="has no split 'train'; splits: it has none"):
        source.survey("train")
    with pytest.raises(SourceError, match="has no split"):
        source.entries("train")


def test_folders_without_images_do_not_make_an_image_folder(tmp_path: Path) -> None:
    source = open_source(fill(tmp_path, {"a.jpg": b"image", "tools/make.py": b"pass"}))
    assert source.kind == "flat"
    assert dict(source.survey().ledger.passed_over) == {"not images (.py)": 1}


def test_images_in_subfolders_are_counted_when_flat_is_forced(images: Path) -> None:
    assert open_source(images).kind == "imagefolder"
    source = open_source(images, kind="flat")
    assert [key for key, _, _ in listed(source)] == ["a.jpg", "b.jpg"]
    assert dict(source.survey().ledger.passed_over) == {"images in subfolders": 2}


def test_an_empty_folder(tmp_path: Path) -> None:
    refused(SourceError, tmp_path, "holds no images", kind="flat")
    (tmp_path / "a.wmf").write_bytes(b"image")
    said = r"no images \(passed over: 1 not images \(\.wmf\)\): give a folder of images"
    refused(SourceError, tmp_path, said, kind="flat")
    fill(tmp_path, {"cat/1.jpg": b"image"})
    with closing(open_source(tmp_path, kind="flat")) as source:  # images at any depth, without labels
        assert (source.survey().records, listed(source)) == (1, [("cat/1.jpg", "", ())])


def test_names_become_sorted_classes_in_the_files_order(images: Path) -> None:
    source = labelled(images, "file,label\nsub/c.png,dog\nb.jpg,cat\n\nsub/deep/d.JPEG,dog\n")
    assert source.kind == "flat"
    assert listed(source) == [("sub/c.png", "", (1,)), ("b.jpg", "", (0,)), ("sub/deep/d.JPEG", "", (1,))]
    survey = source.survey()
    assert [(c.name, c.classes) for c in survey.columns] == [("label", ("cat", "dog"))]
    assert dict(survey.splits) == {"": 3}
    assert survey.size_bytes == 1 + 3 + 4
    assert survey.key_bytes == len("sub/c.png" + "b.jpg" + "sub/deep/d.JPEG")
    assert dict(survey.ledger.passed_over) == {"images that the labels file does not name": 1}
    assert [source.read(entry).image for entry in source.entries()] == [b"xxx", b"x", b"xxxx"]
    assert [entry.size_bytes for entry in source.entries()] == [3, 1, 4]


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        (("7", " 10 ", "0"), True),
        ((f"{2**63 - 1}", "7"), True),
        ((f"{2**63}", "7"), False),
        (("-1", "7"), False),
        (("10", "9", "none", "-1"), False),
        (("7", "007", "7"), False),
        (("01", "1", "01"), False),
        (("001", "002", "010"), False),
        (("+1", "1", "-1"), False),
        (("1", "1.0", "1e0"), False),
        (("0", "-0", "00"), False),
    ],
)
def test_labels_are_numbers_or_names_of_classes(labels: tuple[str, ...], numbers: bool, images: Path) -> None:
    """Labels of other digits are other classes."""
    source = labelled(
        images, "\n".join(["label,file", *(f"{label},{file}" for label, file in zip(labels, FILES, strict=False))])
    )
    classes = source.survey().columns[0].classes
    found = [number for _, _, (number,) in listed(source)]
    if numbers:
        assert (classes, found) == (None, [*map(int, labels)])
    else:
        assert classes == tuple(sorted({*labels}))
        assert tuple(classes[number] for number in found) == labels


def test_a_line_that_is_repeated_is_packed_once(images: Path) -> None:
    source = labelled(images, "file,label\nb.jpg,1\na.jpg,7\n./b.jpg,1\nb.jpg,1\n")
    assert [key for key, _, _ in listed(source)] == ["b.jpg", "a.jpg"]


def test_splits_come_in_their_order(images: Path) -> None:
    text = "file,label,split\na.jpg,x,zoo\nb.jpg,y,Test\nsub/c.png,x,train\nsub/deep/d.JPEG,z,test\n"
    source = labelled(images, text)
    assert list(source.survey().splits.items()) == [("train", 1), ("test", 2), ("zoo", 1)]
    assert listed(source) == [
        ("sub/c.png", "train", (0,)),
        ("b.jpg", "test", (1,)),
        ("sub/deep/d.JPEG", "test", (2,)),
        ("a.jpg", "zoo", (0,)),
    ]
    one = source.survey("TEST")
    assert (dict(one.splits), one.columns[0].classes) == ({"test": 2}, ("x", "y", "z"))
    assert dict(one.ledger.passed_over) == {"images that are not of this split": 2}
    assert [key for key, _, _ in listed(source, "test")] == ["b.jpg", "sub/deep/d.JPEG"]
    with pytest.raises(SourceError, match="has no split 'val'; splits: train, test, zoo"):
        source.entries("val")


def test_dialects(images: Path) -> None:
    (images / 'odd, "name"\nhere.jpg').write_bytes(b"o")
    source = labelled(images, '\ufeffFile, Label \r\n"odd, ""name""\nhere.jpg",big dog \r\n./sub//c.png,"cat"\r\n')
    assert listed(source) == [('odd, "name"\nhere.jpg', "", (0,)), ("sub/c.png", "", (1,))]
    assert source.survey().columns[0].classes == ("big dog", "cat")


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("a.jpg,cat\nb.jpg,dog\n", 2, "no column file: a.jpg,cat; expected file,label"),
        ("file,colour\na.jpg,cat\n", 2, "no column label: file,colour"),
        ("file,label,file\na.jpg,cat,b.jpg\n", 1, "a column twice"),
        ("file,label\na.jpg,cat\nb.jpg\n", 3, "1 fields, the first line has 2"),
        ("file,label\na.jpg,cat,dog\n", 2, "3 fields, the first line has 2"),
        ("file,label\na.jpg, \n", 2, "an empty cell"),
        ("file,label,split\na.jpg,cat,\n", 2, "an empty cell"),
        ("file,label\n,cat\n", 2, "an empty cell"),
        ("file,label\nmissing.jpg,0\n", 2, "missing.jpg in"),
        ("file,label\na.jpg/b.jpg,0\n", 2, "Not a directory"),
        ("file,label\n/etc/passwd,0\n", 2, "not a path within the source"),
        ("file,label\n../labels.csv,0\n", 2, "not a path within the source"),
        ("file,label\nsub/../a.jpg,0\n", 2, "not a path within the source"),
        ("file,label\n.,0\n", 2, "not a path within the source"),
        ("file,label\n./,0\n", 2, "not a path within the source"),
        ("file,label\na\0.jpg,0\n", 2, "a NUL byte"),
        ("file,label\na.jpg,0\nb.jpg,1\nsub/c.png,2\n./a.jpg,3\n", 5, "a.jpg is '3', and '0' in"),
        ("file,label\na.jpg,7\na.jpg,007\n", 3, "a.jpg is '007', and '7' in"),
        ('file,label\n"a.jpg,cat\n', 2, "not CSV"),
        ('file,label\n"a.jpg"x,cat\n', 2, "not CSV"),
        (f"file,label\n{'n' * 200_000},cat\n", 2, "not CSV: field larger"),
        ("file,label\n" + "n" * 300 + ",cat\n", 2, "File name too long"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(images: Path, text: str, line: int, expected: str) -> None:
    message = failure(images, text)
    assert f"labels.csv, line {line}: " in message
    assert expected in message


def test_a_labels_file_that_names_nothing(images: Path) -> None:
    assert "names no files" in failure(images, "file,label\n")
    assert "names no files" in failure(images, "")
    refused(SourceError, images, r"none\.csv: no such file", labels=images / "none.csv")
    refused(SourceError, images, r"labels are in \.csv", labels=images)


def test_too_many_splits(images: Path) -> None:
    rows = "".join(f"{number}.jpg,0,split{number}\n" for number in range(200))
    assert "more than 100 splits" in failure(images, "file,label,split\n" + rows)


@pytest.mark.parametrize("header", ["filename,class", "image,label", "x,image_path,category", "Y,Img"])
def test_columns_have_other_names(images: Path, header: str) -> None:
    names = header.lower().split(",")
    values = [{"filename": f, "image": f, "image_path": f, "img": f, "x": "1"} for f in ("b.jpg", "a.jpg")]
    lines = [",".join(value.get(name, "cat") for name in names) for value in values]
    source = labelled(images, "\n".join([header, *lines, lines[0]]) + "\n")
    assert source.survey().records == 2
    assert [key for key, _, _ in listed(source)] == ["b.jpg", "a.jpg"]


def test_the_labels_file_in_the_folder_is_not_passed_over(images: Path) -> None:
    fill(images, {"labels.csv": "file,label\na.jpg,1\n", "other.csv": ""})
    ignored = open_source(images, kind="flat", labels=images / "labels.csv").survey().ledger.passed_over
    assert dict(ignored) == {"images that the labels file does not name": 3, "not images (.csv)": 1}


def test_a_labels_file_that_names_an_ignored_image(images: Path) -> None:
    path = images.parent / "labels.csv"
    path.write_text("file,label\na.jpg,cat\n")
    with pytest.raises(SourceError, match=r"labels\.csv, line 2: a\.jpg in .*: left out by --ignore"):
        open_source(images, labels=path, ignore=["a.jpg"]).survey()


def test_a_labels_file_that_is_a_pipe(images: Path) -> None:
    os.mkfifo(images.parent / "labels.csv")
    with pytest.raises(SourceError, match=r"labels\.csv is not a file but a folder, a pipe, a socket or a device"):
        open_source(images, labels=images.parent / "labels.csv").survey()


WORD = st.text(st.characters(codec="utf-8", exclude_characters="/\0\\:"), min_size=1, max_size=6)


@pytest.mark.slow
@given(rows=st.lists(st.tuples(WORD, WORD, st.sampled_from(["train", "test", "x"])), min_size=1, max_size=12))
def test_what_the_csv_module_writes_is_read(
    rows: list[tuple[str, str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = [row for row in rows if row[0] == row[0].strip() and row[0] not in (".", "..") and row[1].strip()]
    rows = list({row[0]: row for row in rows}.values())
    if not rows:
        return
    root = tmp_path_factory.mktemp("flat")
    for file, _, _ in rows:
        (root / file).write_bytes(b"image")
    path = root.parent / f"{root.name}.csv"
    with path.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([("file", "label", "split"), *rows])
    source = open_source(root, labels=path)
    survey = source.survey()
    found = listed(source)
    assert [key for key, _, _ in found] == [r[0] for split in survey.splits for r in rows if r[2] == split]
    by_key = {file: (label.strip(), split) for file, label, split in rows}
    classes = survey.columns[0].classes
    for key, split, (number,) in found:
        assert (classes[number] if classes is not None else number, split) == (
            by_key[key] if classes is not None else (int(by_key[key][0]), by_key[key][1])
        )


@pytest.mark.slow
def test_a_labels_file_for_a_real_image_folder(shared_data: SharedData, tmp_path: Path) -> None:
    root = shared_data / "imagenet-600"
    folder_source = open_source(root)
    classes = folder_source.survey().columns[0].classes
    assert classes is not None
    lines = [f"{e.key},{classes[e.labels[0]]},{e.split}" for e in folder_source.entries()]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label,split", *lines]))
    source = open_source(root, labels=tmp_path / "labels.csv")
    assert listed(source) == [entry[:3] for entry in folder_source.entries()]
    assert (source.survey().splits, source.survey().columns) == (
        folder_source.survey().splits,
        folder_source.survey().columns,
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 300])
def test_the_only_folder_of_images_is_no_class_if_it_is_called_so(size: int, tmp_path: Path) -> None:
    root = fill(tmp_path / "set", {f"images/{n:04}.jpg": jpeg(n) for n in range(size)} | {"README.md": "# negatives"})
    seen = look(root)
    assert seen.found == ("flat", size)
    assert seen.entries[0].key == "images/0000.jpg"
    convert(root, tmp_path / "x.lmdb")
    verify(tmp_path / "x.lmdb", against=root)
    assert look(root, kind="imagefolder").columns[0].classes == ("images",)
    fill(root, {"images.csv": "".join(f"{n:04}.jpg,cat\n" for n in range(size))})
    assert look(root).kind == "table"
    fill(root, {"cats/1.jpg": jpeg(1)})
    question(root, ignore=["*.csv"])
