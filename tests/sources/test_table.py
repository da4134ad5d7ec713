"""Images and a table that names them: the column of images is told by the files, all rows are looked at, nothing is
lost silently."""

from __future__ import annotations

import functools
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from packstore import AmbiguousSourceError, convert, export, verify
from packstore.sources import open_source
from packstore.testing import SourceSuite
from tests.internals import Role, SourceError, UsageError
from tests.makers.annotated import fill, jpeg, voc_xml
from tests.makers.images import encode, tiny
from tests.makers.sources import look, not_packed, prove, question, refused
from tests.makers.sources import rows_of_table as rows


def make(folder: Path, images: list[str] | range, tables: dict[str, str | bytes]) -> Path:
    """A folder of images of 32 x 24 pixels and tables."""
    names = [f"im{n:02}.png" for n in images] if isinstance(images, range) else images
    return fill(folder, {name: plain(n) for n, name in enumerate(names)} | tables)


@functools.cache
def plain(number: int) -> bytes:
    return encode(Image.new("RGB", (32, 24), (number % 256, number // 256, 0)), "PNG")


def left(path: Path, **options: Any) -> dict[str, int]:
    return dict(look(path, **options).ledger.passed_over)


class TestTable(SourceSuite):
    """CSV with a class and a number."""

    kind = "table"
    bytes_per_sample = 900
    undecodable_keys = False
    many = 2000

    def make(self, folder: Path, samples: int) -> Path:
        lines = [f"im{n:05}.png,{'ab'[n % 2]},{n}" for n in range(samples)]
        return make(folder, [f"im{n:05}.png" for n in range(samples)], {"t.csv": "\n".join(["file,label,age", *lines])})

    def change(self, path: Path) -> None:
        with closing(self.open(path)) as source:
            first = next(source.entries())
        (path / first.key).write_bytes(tiny(99_999))


def test_kaggle(tmp_path: Path) -> None:
    ids = [f"{n:04x}c1" for n in range(12)]
    names = [*(f"train/{i}.png" for i in ids[:8]), *(f"test/{i}.png" for i in ids[8:])]
    path = make(tmp_path, names, {
        "train.csv": "id,breed\n" + "".join(f"{i},{'ab'[n % 2]}\n" for n, i in enumerate(ids[:8])),
        "sample_submission.csv": "id,a,b\n" + "".join(f"{i},0.5,0.5\n" for i in ids[8:]),
    })  # fmt: skip
    found = rows(path)
    assert list(found) == [f"train/{i}.png" for i in ids[:8]]
    assert found["train/0001c1.png"] == {"label": "b", "split": "train"}
    assert left(path) == {"images that no row names": 4}


def test_test_images_of_the_same_names_are_not_those_of_train(tmp_path: Path) -> None:
    names = [f"{split}/{n}.png" for split in ("test", "train") for n in range(8)]
    path = make(tmp_path, names, {
        "train.csv": "id,kind\n" + "".join(f"{n},{'ab'[n % 2]}\n" for n in range(9)),
        "test.csv": "id\n",
    })  # fmt: skip
    found = rows(path)
    assert list(found) == [f"train/{n}.png" for n in range(8)]
    assert left(path)["rows of train.csv without an image"] == 1


def test_rows_of_a_missing_split_take_no_other_images(tmp_path: Path) -> None:
    """``train/3.png`` is not ``test/3.png``."""
    lines = [f"train/{n}.png,{n % 2}" for n in range(6)] + [f"val/{n}.png,1" for n in range(3)]
    path = make(tmp_path, [f"train/{n}.png" for n in range(6)], {"all.csv": "path,label\n" + "\n".join(lines)})
    assert len(rows(path)) == 6
    assert left(path)["rows of all.csv without an image"] == 3


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "json", "txt", "parquet"])
@pytest.mark.parametrize("folder", ["", "images/"])
def test_formats_agree(tmp_path: Path, suffix: str, folder: str) -> None:
    table = [(f"{folder}im{n:02}.png", n % 3) for n in range(9)]
    if suffix == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")

        sink = pyarrow.BufferOutputStream()
        columns = {"image": [f for f, _ in table], "label": [label for _, label in table]}
        parquet.write_table(pyarrow.table(columns), sink)
        text: Any = sink.getvalue().to_pybytes()
    else:
        objects = [json.dumps({"image": file, "label": label}) for file, label in table]
        sep = {"csv": ",", "tsv": "\t", "txt": " "}.get(suffix, "")
        text = {
            "json": f"[{','.join(objects)}]",
            "jsonl": "\n".join(objects),
            "txt": "\n".join(f"{file} {label}" for file, label in table),
        }.get(suffix, "\n".join(sep.join(map(str, row)) for row in [("image", "label"), *table]))
    path = make(tmp_path, [file for file, _ in table], {f"list.{suffix}": text})
    assert rows(path) == {file: {"label": label} for file, label in table}


READ: dict[str, tuple[str, list[str], dict[int, dict[str, Any]]]] = {
    "a header": ("file,kind", list("xyxy"), {0: {"label": "x"}, 3: {"label": "y"}}),
    "no header": ("", list("xyxy"), {0: {"label": "x"}, 3: {"label": "y"}}),
    "several labels": (
        "Image Index,Finding Labels,Age", ["A|B,0", "A,1", "B|C,2", "No Finding,3"],
        {0: {"labels": ["A", "B"], "age": 0}, 3: {"labels": ["No Finding"], "age": 3}},
    ),
    "labels in quotes": (
        "image,tags", ['"a,b"', "a", "b", '"a,c"', '"b,c"', "c"], {0: {"labels": ["a", "b"]}, 1: {"labels": ["a"]}},
    ),
    "lists of names and of numbers": (
        "image,tags", ['"[1, 2]"', "\"['cat', 'dog']\"", '"[]"'],
        {0: {"labels": ["1", "2"]}, 1: {"labels": ["cat", "dog"]}, 2: {"labels": None}},
    ),
    "commas in names of classes": (
        "image,label", ['"tench, Tinca"', '"goldfish, Carassius"'] * 2,
        {1: {"label": "goldfish, Carassius"}, 2: {"label": "tench, Tinca"}},
    ),
    "one class a row": (
        "image,MEL,NV,BCC", ["1.0,0.0,0.0", "0.0,1.0,0.0", "0.0,0.0,1.0"] * 2,
        {0: {"label": "MEL"}, 5: {"label": "BCC"}},
    ),
    "regression": (
        "file,age,gaze_x,gaze_y", [f"{n},{n / 8},{-n / 4}" for n in range(5)],
        {2: {"age": 2, "gaze_x": 0.25, "gaze_y": -0.5}},
    ),
    "points": (
        "image_id,nose_x,nose_y,left_x,left_y,right_x,right_y", ["0,4,5,6,7,8", "1,4,5,6,,", *["2,4,5,6,7,8"] * 2],
        {1: {"keypoints": [[1, 4, 2], [5, 6, 2], [0, 0, 0]], "keypoint_labels": ["nose", "left", "right"]}},
    ),
    "numbered points, which are no box": (
        "image_id,x0,y0,x1,y1,x2,y2", [f"{n},4,5,6,7,8" for n in range(4)],
        {1: {"keypoints": [[1, 4], [5, 6], [7, 8]], "keypoint_labels": ["0", "1", "2"]}},
    ),
    "a column of splits": (
        "image,label,split", ["0,train", "1,train", "0,train", "1,test", "0,test"],
        {0: {"label": 0, "split": "train"}, 4: {"label": 0, "split": "test"}},
    ),
    "the last row decides": (
        "file,label,age", [*(f"{'ab'[n % 2]},{n}" for n in range(39)), "c,1.5"],
        {2: {"label": "a", "age": 2.0}, 39: {"label": "c", "age": 1.5}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_what_columns_mean(name: str, tmp_path: Path) -> None:
    header, cells, expected = READ[name]
    lines = [header] * bool(header) + [f"im{n:02}.png,{cell}" for n, cell in enumerate(cells)]
    found = rows(make(tmp_path, range(len(cells)), {"t.csv": "\n".join(lines)}))
    assert len(found) == len(cells)
    assert {n: found[f"im{n:02}.png"] for n in expected} == expected


POSITIONS = (
    "filename,width,height,class,xmin,ymin,xmax,ymax\nim00.png,32,24,cat,1,2,10,12\nim01.png,32,24,dog,0,0,30,20\n"
)
CHEST = "Path,Sex,Edema,Fracture,Lesion,Pneumonia\nset/im00.png,M,1.0,,0.0,-1.0\nset/im01.png,M,,,,1.0\n"
LISTED = [{"image": "im00.png", "bbox": [[1, 2, 3, 4], [0, 0, 2, 2]], "label": ["cat", "dog"]}, {"image": "im01.png"}]
TABLES: dict[str, tuple[list[str] | range, str, str, dict[str, Any], dict[str, dict[str, Any]]]] = {
    "names with blanks": (
        ["a b.png", "c.png", "d e f.png"], "list.txt", "a b.png 0\nc.png 1\nd e f.png 0\n", {},
        {"a b.png": {"label": 0}, "c.png": {"label": 1}, "d e f.png": {"label": 0}},
    ),
    "paths of another machine": (
        ["pics/im00.png", "pics/im01.png"], "labels.csv", "image,label\nC:\\x\\im00.png,1\nC:\\x\\im01.png,0\n", {},
        {"pics/im00.png": {"label": 1}, "pics/im01.png": {"label": 0}},
    ),
    "numbers beside names": (
        range(4), "t.csv", "file,label,age\n" + "".join(f"im{n:02}.png,{'7Q'[n == 2]},1\n" for n in range(4)), {},
        {f"im{n:02}.png": {"label": "7Q"[n == 2], "age": 1} for n in range(4)},
    ),
    "numbers beside names of boxes": (
        range(4), "t.csv", "".join(f"im{n:02}.png,20,10,30,20,{'7Q'[n == 2]}\n" for n in range(4)), {"layout": "xyxy"},
        {f"im{n:02}.png": {"boxes": [[20, 10, 30, 20]], "labels": ["7Q"[n == 2]]} for n in range(4)},
    ),
    "one column a class": (
        [f"train/im{n:02}.png" for n in range(8)], "train/_classes.csv", "filename, cat, dog, owl\n" + "".join(
            f"im{n:02}.png, {n & 1}, {n >> 1 & 1}, {n >> 2}\n" for n in range(8)), {},
        {"train/im03.png": {"labels": ["cat", "dog"], "split": "train"},
         "train/im00.png": {"labels": [], "split": "train"}},
    ),
    "uncertain classes": (
        range(4), "train.csv", CHEST + "set/im02.png,M,0.0,1.0,-1.0,\nset/im03.png,M,0.0,0.0,0.0,0.0\n", {},
        {"im00.png": {"labels": ["Edema"], "uncertain": ["Pneumonia"], "unmentioned": ["Fracture"], "sex": "M",
                      "split": "train"}},
    ),
    "rows of boxes": (
        range(2), "_annotations.csv", POSITIONS + "im00.png,32,24,dog,4,4,9,9\n", {},
        {"im00.png": {"boxes": [[1, 2, 10, 12], [4, 4, 9, 9]], "labels": ["cat", "dog"], "width": 32, "height": 24},
         "im01.png": {"boxes": [[0, 0, 30, 20]], "labels": ["dog"], "width": 32, "height": 24}},
    ),
    "RetinaNet; the sizes of the images exclude xywh": (
        range(3), "annotations.csv", "im00.png,20,10,30,20,cat\nim00.png,25,15,31,23,dog\nim01.png,,,,,\n"
        "im02.png,12,14,31,22,cat\n", {},
        {"im00.png": {"boxes": [[20, 10, 30, 20], [25, 15, 31, 23]], "labels": ["cat", "dog"]},
         "im01.png": {"boxes": [], "labels": []}},
    ),
    "Open Images, in fractions": (
        range(2), "train-bbox.csv", "ImageID,LabelName,XMin,XMax,YMin,YMax,IsOccluded\nim00,/m/1,0.25,0.5,0.5,1.0,0\n"
        "im01,/m/2,0,0.5,0,0.5,1\n", {},
        {"im00.png": {"boxes": [[8, 12, 16, 24]], "labels": ["/m/1"], "isoccluded": 0, "split": "train"}},
    ),
    "boxes and classes in cells": (
        range(2), "t.csv", "image,where,what\nim00.png,\"[[1,2,3,4],[0,0,2,2]]\",\"['cat', 'dog']\"\nim01.png,[],[]\n",
        {"columns": ["boxes=where", "label=what"], "layout": "xyxy"},
        {"im00.png": {"boxes": [[1, 2, 3, 4], [0, 0, 2, 2]], "labels": ["cat", "dog"]},
         "im01.png": {"boxes": [], "labels": []}},
    ),
    "boxes and classes in lines": (
        range(2), "t.jsonl", "\n".join(map(json.dumps, LISTED)), {"layout": "xyxy"},
        {"im00.png": {"boxes": [[1, 2, 3, 4], [0, 0, 2, 2]], "labels": ["cat", "dog"]}},
    ),
    "several rows an image": (
        range(2), "t.csv", "image,label,score\nim00.png,a,1\nim01.png,b,2\nim00.png,b,3\nim01.png,b,2\n", {},
        {"im00.png": {"labels": ["a", "b"], "score": [1, 3]}, "im01.png": {"labels": ["b", "b"], "score": [2, 2]}},
    ),
    "y beside x is no label": (
        range(6), "labels.csv", "image_name,x,y\n" + "".join(f"im{n:02}.png,{n},{n % 2}\n" for n in range(6)), {},
        {"im03.png": {"x": 3, "y": 1}},
    ),
    "columns without a name, as pandas writes an index": (
        range(6), "points.csv", ",0,1,2\n" + "".join(f"im{n:02}.png,{n},5,{n + 0.5}\n" for n in range(6)), {},
        {"im03.png": {"column0": 3, "column1": 5, "column2": 3.5}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_what_tables_say(name: str, tmp_path: Path) -> None:
    images, file, text, options, expected = TABLES[name]
    found = rows(make(tmp_path, images, {file: text}), **options)
    assert len(found) == len(images)
    assert {key: found[key] for key in expected} == expected


def test_columns_without_a_name_are_given_by_their_numbers(tmp_path: Path) -> None:
    make(tmp_path, range(6), {"points.csv": ",0,1,2\n" + "".join(f"im{n:02}.png,{n},5,{n}.5\n" for n in range(6))})
    assert rows(tmp_path, columns=["image=column 1", "label=0"])["im03.png"]["label"] == 3


def test_numbers_beside_names_are_names(tmp_path: Path) -> None:
    missing = make(tmp_path, range(4), {"t.csv": "file,label\n" + "".join(
        f"im{n:02}.png,{['7', 'NA'][n == 2]}\n" for n in range(4))})  # fmt: skip
    assert [values["label"] for values in rows(missing).values()] == ["7", "7", "NA", "7"]
    assert look(missing).columns[0].classes is None  # the number 10 would become the class of 1


@pytest.mark.parametrize("labels", [("7", "007", "7", "1"), ("01", "02", "01", "02"), ("7", "07", "cat", "NA")])
@pytest.mark.parametrize("table", ["t.csv", "t.tsv", "t.jsonl", "list.txt", "metadata.csv", "boxes.csv"])
def test_labels_of_other_digits_are_other_classes(table: str, labels: tuple[str, ...], tmp_path: Path) -> None:
    names = [f"im{n:02}.png" for n in range(4)]
    header = {"boxes.csv": "file,label,xmin,ymin,xmax,ymax", "metadata.csv": "file_name,label", "list.txt": ""}
    gap, more = {"t.tsv": "\t", "list.txt": " "}.get(table, ","), ",1,2,3,4" if table == "boxes.csv" else ""
    lines = [f"{name}{gap}{label}{more}" for name, label in zip(names, labels, strict=True)]
    if table == "t.jsonl":
        lines = [json.dumps({"file": name, "label": label}) for name, label in zip(names, labels, strict=True)]
    else:
        lines = [each for each in (header.get(table, f"file{gap}label"), *lines) if each]
    path = make(tmp_path, names, {table: "\n".join(lines)})
    options = {"columns": ["label=2"]} if table == "list.txt" else {}
    with closing(open_source(path, **options)) as source:
        column = next(column for column in source.survey().columns if column.name in ("label", "labels"))
        values = [source.read(entry).values[column.name] for entry in source.entries()]  # type: ignore[union-attr]
    assert column.classes == tuple(sorted({*labels}))
    assert tuple(column.classes[int(np.ravel(each)[0])] for each in values) == labels


def test_convention_is_asked(tmp_path: Path) -> None:
    text = 'file,bbox\nim00.png,"[1, 2, 3, 4]"\nim01.png,"[0, 0, 2, 2]"\n'
    path = make(tmp_path, range(2), {"t.csv": text})
    caught = question(path, "--layout")
    assert ("--layout", "xywh") in [answer.options for answer in caught.answers]
    assert rows(path, layout="xywh")["im00.png"]["boxes"] == [[1, 2, 4, 6]]


CELLS = {
    "json": ("[1, 2, 3, 4]", "[[1, 2, 3, 4], [0, 0, 2, 2]]", "[]"),
    "blanks": ("1 2 3 4", "1 2 3 4; 0 0 2 2", "no_box"),
    "commas": ("1,2,3,4", "1,2,3,4;0,0,2,2", ""),
    "python": ("(1, 2, 3, 4)", "[(1, 2, 3, 4), (0, 0, 2, 2)]", "[]"),
}


@pytest.mark.parametrize("form", CELLS)
def test_boxes_in_a_cell(form: str, tmp_path: Path) -> None:
    """Global Wheat: ``[834.0, 222.0, 56.0, 36.0]``, a row each; its second edition has all boxes in a cell."""
    cells = [cell.replace('"', '""') for cell in CELLS[form]]
    text = "image,bbox,label\n" + "".join(
        f'im{n:02}.png,"{cell}",{label}\n' for n, (cell, label) in enumerate(zip(cells, ("a", "b", ""), strict=True))
    )
    path = make(tmp_path, range(3), {"t.csv": text})
    found = rows(path, layout="xywh")
    assert found == {
        "im00.png": {"boxes": [[1, 2, 4, 6]], "labels": ["a"]},
        "im01.png": {"boxes": [[1, 2, 4, 6], [0, 0, 2, 2]], "labels": ["b", "b"]},
        "im02.png": {"boxes": [], "labels": []},
    }


def test_numbers_that_are_no_boxes_are_kept(tmp_path: Path) -> None:
    for n, cell in enumerate(
        ("[1, 2, 3]", "[1, 2, 3, x]", "[[1, 2, 3, 4], 5]", "{'xmin': 1, 'ymin': 2, 'xmax': 3, 'ymax': 4}")
    ):
        text = f'image,bbox\nim00.png,"[1, 2, 3, 4]"\nim01.png,"{cell}"\n'
        found = rows(make(tmp_path / str(n), range(2), {"t.csv": text}))
        assert found["im01.png"] == {"bbox": cell}


def test_a_table_of_each_split(tmp_path: Path) -> None:
    tables = {f"{split}.csv": f"image,label\n{split}/a.png,x\n{split}/b.png,y\n" for split in ("train", "val")}
    path = make(tmp_path, [f"{split}/{n}.png" for split in ("train", "val") for n in "ab"], tables)
    assert [(key, each["split"]) for key, each in rows(path).items()] == [
        ("train/a.png", "train"), ("train/b.png", "train"), ("val/a.png", "val"), ("val/b.png", "val"),
    ]  # fmt: skip


def test_two_tables_of_the_same_images_are_asked_about(tmp_path: Path) -> None:
    path = make(
        tmp_path, range(4), {n: "f,l\n" + "".join(f"im{i:02}.png,{i}\n" for i in range(4)) for n in ("a.csv", "b.csv")}
    )
    question(path, r"a\.csv and by b\.csv")
    assert len(rows(path, ignore=["/a.csv"])) == 4


def test_further_images(tmp_path: Path) -> None:
    text = "image,after,changed\n" + "".join(f"im{n:02}.png,t2/x{n}.png,{n % 2}\n" for n in range(4))
    path = make(tmp_path, [*(f"im{n:02}.png" for n in range(4)), *(f"t2/x{n}.png" for n in range(4))], {"t.csv": text})
    found = rows(path)
    assert list(found) == [f"im{n:02}.png" for n in range(4)]
    assert found["im01.png"]["after"] == (path / "t2/x1.png").read_bytes()
    assert left(path) == {}


def test_columns_are_given(tmp_path: Path) -> None:
    text = "first,second,a,b,c,d,what\n" + "".join(
        f"l/im{n:02}.png,r/jm{n:02}.png,1,2,{n + 3},9,{'pq'[n % 2]}\n" for n in range(6)
    )
    path = make(tmp_path, [f"{k}m{n:02}.png" for k in ("l/i", "r/j") for n in range(6)], {"t.csv": text})
    caught = question(path, "--column image=COL")
    assert caught.answers[0].options == ("--column", "image=first")
    found = rows(path, columns=["image=second", "label=what", "boxes=a,b,c,d"], layout="xyxy")
    assert found["r/jm02.png"]["boxes"] == [[1, 2, 5, 9]]
    assert found["r/jm02.png"]["labels"] == ["p"]
    refused(UsageError, path, "no column nope", columns=["image=first", "label=nope"])
    refused(UsageError, path, "expected image=COL", columns=["picture=first"])


@pytest.mark.slow
def test_copies_and_exports_are_compared_without_the_options_of_the_source(tmp_path: Path) -> None:
    lines = [f"im{n:02}.png,{'ab'[n % 2]}" for n in range(4)]
    source = make(tmp_path / "in", range(4), {"t.csv": "\n".join(["file,kind", *lines]), "notes.json": "{}"})
    store = tmp_path / "store.h5"
    convert(source, store, columns="labels=kind", ignore="*.json")
    convert(store, tmp_path / "copy.lmdb")
    for to in ("webdataset", "imagefolder"):
        export(store, tmp_path / to, to=to)
    for each in (source, *(tmp_path / name for name in ("copy.lmdb", "webdataset", "imagefolder"))):
        assert verify(store, against=each).ok


def test_numbers_that_images_are_called_by_are_no_images(tmp_path: Path) -> None:
    """A column of classes 0 to 9, and images ``0.png`` to ``9.png`` elsewhere."""
    names = [*(f"im{n:02}.png" for n in range(30)), *(f"icons/{n}.png" for n in range(10))]
    text = "file,label\n" + "".join(f"im{n:02}.png,{n % 10}\n" for n in range(30))
    assert rows(make(tmp_path, names, {"t.csv": text}))["im13.png"] == {"label": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"file,label\nim00.png,a\nim01.png,\xff\n", r"t\.csv, line 3: not UTF-8"),
        (b"file,label\nim00.png,a\nim01.png,b\0\n", r"t\.csv, line 3: has a NUL byte"),
        (b'file,label\nim00.png,a\nim01.png,"b\n', r"t\.csv, line 3: not CSV: a quote is not closed"),
        (b"file,label\nim00.png,a\nim01.png," + b"x" * (10 << 20), r"t\.csv, line 3: 10,485,769 bytes in a line"),
        (b"file,label\nim00.png,a\nim01.png,b,c\n", r"t\.csv, line 3: 3 fields, the first line has 2"),
        (b"file,xmin,ymin,xmax,ymax\nim00.png,1,2,3,4\nim01.png,1,2,nan,4\n", r"t\.csv, line 3: .*xmax is 'nan'"),
        (b"file,xmin,ymin,xmax,ymax\nim00.png,1,2,3,4\nim01.png,1,2,,4\n", r"t\.csv, line 3: .*xmax is ''"),
        (b"file,file\nim00.png,a\nim01.png,b\n", r"t\.csv, line 1: the header has a column twice"),
    ],
)  # fmt: skip
def test_damaged_tables(tmp_path: Path, text: bytes, message: str) -> None:
    path = make(tmp_path, range(2), {"t.csv": text})
    refused(SourceError, path, message)


def test_paths_that_lead_out_are_rows_without_an_image(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(tiny(1))
    text = "file,label\n../secret.png,a\n/etc/passwd,b\nim00.png,a\nim01.png,b\n"
    path = make(tmp_path / "set", range(2), {"t.csv": text})
    assert list(rows(path)) == ["im00.png", "im01.png"]
    assert left(path) == {"rows of t.csv without an image": 2}


def test_classes_and_columns_reach_the_store(tmp_path: Path) -> None:
    text = "file,label,age\n" + "".join(f"im{n:02}.png,{'ab'[n % 2]},{n}\n" for n in range(6))
    path = make(tmp_path / "set", range(6), {"t.csv": text})
    convert(path, tmp_path / "out.lmdb")
    columns = {column.name: column for column in look(tmp_path / "out.lmdb").columns}
    assert columns["label"].classes == ("a", "b")
    assert columns["age"].dtype == "int64"


_CELL = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\r\n", exclude_categories=["Cs", "Zs", "Cc"]), max_size=8
)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(_CELL, st.integers(2, 2**40)), min_size=2, max_size=8))
def test_cells_come_back(tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[str, int]]) -> None:
    """Whatever the texts are: they, or JSON Lines of the same table, give the same values."""
    folder = tmp_path_factory.mktemp("table")
    lines = [json.dumps({"file": f"im{n:02}.png", "note": text, "n": number}) for n, (text, number) in enumerate(cells)]
    path = make(folder, range(len(cells)), {"t.jsonl": "\n".join(lines)})
    found = rows(path)
    assert [each["n"] for each in found.values()] == [number for _, number in cells]
    assert [each.get("note") or "" for each in found.values()] == [text for text, _ in cells]


def test_a_table_of_losses_names_no_images(tmp_path: Path) -> None:
    """Whatever images are called: epochs are no names."""
    names = [f"{kind}/{n}.png" for kind in ("cat", "dog") for n in range(6)]
    text = "epoch,loss,label\n" + "".join(f"{n},{n / 3},{n % 2}\n" for n in range(6))
    caught = question(make(tmp_path, names, {"log.csv": text}))
    assert ("--source", "table") not in [answer.options for answer in caught.answers]


def test_a_table_of_few_images_is_a_question(tmp_path: Path) -> None:
    """Most images would be left."""
    names = [f"{kind}/{kind}{n}.png" for kind in ("cat", "dog") for n in range(6)]
    path = make(tmp_path, names, {"best.csv": "file,score\ncat/cat1.png,3\ndog/dog2.png,4\ndog/dog3.png,1\n"})
    caught = question(path)
    assert ("--source", "table") in [answer.options for answer in caught.answers]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1_000, pytest.param(200_000, marks=pytest.mark.soak)])
def test_large_tables(tmp_path: Path, size: int) -> None:
    """All rows are read, whatever the first ones are; memory is some hundred bytes a row."""
    import tracemalloc

    names = [f"im{n:06}.png" for n in range(size)]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    lines = [f"{name},{n},{'a' if n < size - 1 else 'b'}" for n, name in enumerate(names)]
    (tmp_path / "t.csv").write_text("\n".join(["file,age,label", *lines]))
    tracemalloc.start()
    seen = look(tmp_path)
    label = next(column for column in seen.columns if column.name == "label")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert label.classes == ("a", "b")
    assert seen.records == size
    assert peak < (64 << 20) + 1200 * size


@pytest.mark.parametrize(
    ("file", "lines"),
    [
        ("train.txt", ["0.png 0", "1.png 1", "0.png 0", "2.png 0", "0.png 0"]),
        ("t.csv", ["file,label,age", "0.png,cat,3", "1.png,dog,4", "2.png,cat,3", "0.png,cat,3"]),
        ("t.csv", ["file,label", "0.png,cat", "1.png,dog", "2.png,cat", "0.png,dog"]),
        ("t.csv", ["file,x1,y1,x2,y2", *(f"{n}.png,0,0,1,1" for n in (0, 1, 2, 0))]),
    ],
)
def test_rows_that_are_repeated_are_packed_once(file: str, lines: list[str], tmp_path: Path) -> None:
    root = make(tmp_path, [f"{n}.png" for n in range(3)], {file: "\n".join(lines) + "\n"})
    seen = look(root)
    assert (seen.records, len(seen.entries)) == (3, 3)


def test_images_of_the_same_names_in_two_folders_are_a_question(tmp_path: Path) -> None:
    names = [f"{side}/x{n}.png" for side in ("left", "right") for n in range(6)]
    text = "id,label\n" + "".join(f"x{n},{n % 2}\n" for n in range(6))
    path = make(tmp_path, names, {"t.csv": text})
    caught = question(path, "images in left or right")
    assert [answer.options for answer in caught.answers] == [("--ignore", "/left/"), ("--ignore", "/right/")]
    assert list(rows(path, ignore=["/left/"])) == [f"right/x{n}.png" for n in range(6)]


@pytest.mark.slow
def test_images_of_the_same_names_in_many_folders(tmp_path: Path) -> None:
    """The folder in a row tells which is meant, in however many folders there is one of the name."""
    names = [f"k{kind:03}/{n}.png" for kind in range(80) for n in range(2)]
    text = "path,score\n" + "".join(f"{name},{n}\n" for n, name in enumerate(names))
    found = rows(make(tmp_path, names, {"t.csv": text}))
    assert {name: each["score"] for name, each in found.items()} == {name: n for n, name in enumerate(names)}


def test_a_table_of_all_rows_beside_those_of_the_splits_is_a_question(tmp_path: Path) -> None:
    lines = [f"im{n:02}.png,cat,1,2,{3 + n % 9},8\n" for n in range(6)]
    header = "filename,class,xmin,ymin,xmax,ymax\n"
    parts = {"all": lines, "train_labels": lines[2:], "test_labels": lines[:2]}
    root = make(tmp_path, range(6), {f"{name}.csv": header + "".join(some) for name, some in parts.items()})
    caught = question(root, r"is named by all\.csv and by")
    assert ("--ignore", "/all.csv") in [answer.options for answer in caught.answers]
    assert look(root, ignore=["/all.csv"]).splits == {"train": 4, "test": 2}


def test_xml_files_beside_a_table_are_one_more_answer(tmp_path: Path) -> None:
    notes = {f"annotations/im{n:02}.xml": voc_xml(f"im{n:02}", ("cat", (1, 2, 3, 4), 0)) for n in range(5)}
    lines = "filename,class,xmin,ymin,xmax,ymax\n" + "".join(f"im{n:02}.png,cat,1,2,3,4\n" for n in range(5))
    root = make(tmp_path, [f"images/im{n:02}.png" for n in range(5)], {"labels.csv": lines, **notes})
    caught = question(root, "--source voc")
    assert {answer.options for answer in caught.answers[1:]} == {("--source", "table"), ("--source", "voc")}


def test_a_folder_of_which_some_images_are_named_is_not_to_be_ignored(tmp_path: Path) -> None:
    lines = {split: [f"{split}{n}.png,{n}\n" for n in range(4)] for split in ("train", "test")}
    tables: dict[str, str | bytes] = {f"{split}.csv": "name,age\n" + "".join(each) for split, each in lines.items()}
    images = [f"{split}/{split}{n}.png" for split, count in (("train", 4), ("test", 9)) for n in range(count)]
    caught = question(make(tmp_path, images, tables), "could be images with a table")
    [answer] = caught.answers
    assert (answer.options, "leaves out 5 images" in answer.note) == (("--source", "table"), True)


@pytest.mark.slow
@pytest.mark.parametrize("samples", [3, 300])
def test_tables_of_the_same_images_with_other_columns_are_one(samples: int, tmp_path: Path) -> None:
    """ISIC: classes in one table and metadata in another, in another order."""
    names = [f"ISIC_{n:07}" for n in range(samples)]
    classes = "image,MEL,NV,BCC,AK\n" + "".join(
        f"{name},{','.join(str(float(n % 4 == k)) for k in range(4))}\n" for n, name in enumerate(names)
    )
    facts = "image,age,sex\n" + "".join(f"{name},{20 + n},{'mf'[n % 2]}\n" for n, name in enumerate(names))
    lines = facts.splitlines(keepends=True)
    path = make(
        tmp_path, [f"in/{name}.png" for name in names],
        {"GroundTruth.csv": classes, "Metadata.csv": "".join([lines[0], *reversed(lines[1:])])},
    )  # fmt: skip
    found = rows(path)
    assert list(found) == [f"in/{name}.png" for name in names]
    assert found[f"in/{names[2]}.png"] == {"label": "BCC", "age": 22, "sex": "m"}
    assert left(path) == {}
    (path / "Metadata.csv").write_text("".join([lines[0], *lines[2:], "in/other,5,m\n"]))
    (path / "in/other.png").write_bytes((path / f"in/{names[0]}.png").read_bytes())
    question(path, r"not the same|is named by")


def test_a_row_for_each_mask_of_an_image(tmp_path: Path) -> None:
    """Open Images' segmentation: the masks are no main images, and none of them is lost."""
    lines = [f"m/im{n:02}_{k}.png,im{n:02},/m/{k},0.5" for n in range(4) for k in range(1 + n % 3)]
    text = "MaskPath,ImageID,LabelName,PredictedIoU\n" + "\n".join(lines)
    masks = [line.partition(",")[0] for line in lines]
    path = make(
        tmp_path, [*(f"im{n:02}.png" for n in range(4)), *masks],
        {"train-annotations-object-segmentation.csv": text, "class-descriptions.csv": "/m/0,Cat\n/m/1,Dog\n/m/2,Cow\n"},
    )  # fmt: skip
    found = rows(path)
    assert list(found) == [f"im{n:02}.png" for n in range(4)]
    assert [len(found[f"im{n:02}.png"]["maskpath"]) for n in range(4)] == [1, 2, 3, 1]
    assert found["im02.png"]["maskpath"][1] == (path / "m/im02_1.png").read_bytes()
    assert found["im02.png"]["labels"] == ["Cat", "Dog", "Cow"]
    assert left(path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("samples", [3, 200])
def test_paths_of_another_machine_go_by_their_ends(samples: int, tmp_path: Path) -> None:
    """CheXpert: the same name in a folder of each study of each patient, and a folder above that is not here."""
    names = [f"train/patient{n:05}/study1/view1_frontal.png" for n in range(samples)]
    text = "Path,Sex,Age\n" + "".join(f"CheXpert-v1.0-small/{name},Male,{n}\n" for n, name in enumerate(names))
    found = rows(make(tmp_path, names, {"train.csv": text}))
    assert {name: each["age"] for name, each in found.items()} == {name: n for n, name in enumerate(names)}


def _open_images(root: Path, hierarchy: str) -> Path:
    head = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax\n"
    lines = [f"im{n:02},xclick,/m/{k + 1},1,0.25,0.5,0.5,1.0\n" for n in range(4) for k in range(n)]
    names = "/m/1,Animal\n/m/2,Cat\n/m/3,Tail\n/m/4,Pet\n"
    tables = {"train-annotations-bbox.csv": head + "".join(lines), "class-descriptions-boxable.csv": names}
    return make(root, range(4), tables | {"bbox_labels_600_hierarchy.json": hierarchy})


def test_boxes_of_open_images_have_the_names_of_their_classes(tmp_path: Path) -> None:
    path = _open_images(tmp_path, "{}")
    assert rows(path)["im03.png"]["labels"] == ["Animal", "Cat", "Tail"]
    assert left(path)["not images (.json)"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("samples", [4, 200])
def test_a_table_of_images_goes_with_one_of_their_boxes(samples: int, tmp_path: Path) -> None:
    """Open Images: an image without a box is a sample with 0 boxes, and has what its own table says."""
    path = _open_images(tmp_path, "{}")
    head = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax\n"
    names = [f"im{n:02}" for n in range(samples)]
    make(path, [f"{name}.png" for name in names], {})
    lines = [f"{name},xclick,/m/{k + 1},1,0.25,0.5,0.5,1.0\n" for n, name in enumerate(names) for k in range(n % 3)]
    (path / "train-annotations-bbox.csv").write_text(head + "".join(lines))
    facts = "ImageID,Subset,Title,Rotation\n" + "".join(
        f"{name},train,title {name},{n}\n" for n, name in enumerate(names)
    )
    (path / "train-images-with-rotation.csv").write_text(facts)
    found = rows(path)
    assert {key: len(values["boxes"]) for key, values in found.items()} == {
        f"{name}.png": n % 3 for n, name in enumerate(names)}  # fmt: skip
    assert [found[f"{name}.png"]["rotation"] for name in names] == [*range(samples)]
    assert (found["im02.png"]["title"], found["im03.png"]["labels"]) == ("title im02", [])
    (path / "train-images-with-rotation.csv").write_text(facts.replace("im02,", "im97,"))
    question(path)


def test_lists_beside_lists_of_splits(tmp_path: Path) -> None:
    """``quiz.lst`` has the form of ``train.lst``, so it is a split."""
    names = {"train": range(6), "validate": range(6, 9), "quiz": range(9, 11)}
    lists = {f"{name}.lst": "".join(f"{n} im{n} basic\n" for n in some) for name, some in names.items()}
    fill(tmp_path / "set", {**lists, **{f"images/im{n}.png": jpeg(n) for n in range(11)}})
    assert dict(look(tmp_path / "set").splits) == {"train": 6, "validate": 3, "quiz": 2}


def test_images_without_a_split_beside_those_of_a_split(tmp_path: Path) -> None:
    texts = {"train.csv": range(4), "more/list.csv": range(4, 6)}
    for name, some in texts.items():
        make(tmp_path / "set", some, {name: "file,x\n" + "".join(f"im{n:02}.png,{n}\n" for n in some)})
    survey = look(tmp_path / "set")
    assert dict(survey.splits) == {"train": 4, "unassigned": 2}
    assert "2 of the samples have no split, unlike the others: it is unassigned" in survey.notes
    assert [entry.key for entry in survey.of("unassigned")] == ["im04.png", "im05.png"]
    prove(tmp_path / "set", tmp_path / "x.lmdb")


@pytest.mark.slow
@pytest.mark.parametrize("line", ["{0}", "{0}.png", "{0} {0}", "{0}.png {0}"])
def test_a_list_of_words_has_no_header(line: str, tmp_path: Path) -> None:
    """Beside Pascal VOC's XML, the list is a question, whatever its first line is."""
    names = ["anna", "bert", "carl"]
    text = "".join(line.format(name) + "\n" for name in names)
    path = make(tmp_path, [f"{name}.png" for name in names], {"alle.txt": text})
    assert list(rows(path, kind="table")) == [f"{name}.png" for name in names]
    fill(path, {f"{name}.xml": voc_xml(name, ("cat", (1, 2, 3, 4), 0)) for name in names})
    not_packed(AmbiguousSourceError, path, tmp_path.with_suffix(".lmdb"), r"alle\.txt|a \.xml file for each image")


@pytest.mark.parametrize("header", ["", "file\n"])
def test_lists_of_each_class_are_not_joined(header: str, tmp_path: Path) -> None:
    lists = {kind: [f"{kind}/{kind}{n}.png" for n in range(4)] for kind in ("cat", "dog")}
    tables: dict[str, str | bytes] = {f"{kind}.csv": header + "\n".join(each) for kind, each in lists.items()}
    path = make(tmp_path, [*lists["cat"], *lists["dog"]], tables)
    question(path, "names the images")
    assert [each["split"] for each in rows(path, kind="table").values()] == ["cat"] * 4 + ["dog"] * 4


@pytest.mark.parametrize("suffix", [".txt", ".csv"])
@pytest.mark.parametrize("names", [("part_a", "part_b"), ("learn", "check", "fold3")])
def test_tables_alike_are_splits_whatever_their_names(names: tuple[str, ...], suffix: str, tmp_path: Path) -> None:
    header = "file,value\n" if suffix == ".csv" else ""
    for number, name in enumerate(names):
        images = [f"images/{name}{n}.jpg" for n in range(3 + number)]
        table = header + "".join(f"{image}{',' if header else ' '}{n}\n" for n, image in enumerate(images))
        fill(tmp_path, {f"{name}{suffix}": table, **{image: jpeg(n) for n, image in enumerate(images)}})
    with closing(open_source(tmp_path)) as source:
        assert source.survey().splits == {name: 3 + number for number, name in enumerate(names)}
        for name in names:
            assert {Path(entry.key).name[: len(name)] for entry in source.entries(name)} == {name}


def test_folders_decide_before_the_names_of_tables(tmp_path: Path) -> None:
    for kind in ("birds", "fish"):
        images = [f"{split}/{kind}{n}.jpg" for split in ("train", "val") for n in range(3)]
        fill(tmp_path, {f"{kind}.csv": "file,value\n" + "".join(f"{image},1\n" for image in images)})
        fill(tmp_path, {image: jpeg(n) for n, image in enumerate(images)})
    assert look(tmp_path).splits == {"train": 6, "val": 6}


def test_lists_of_one_column_are_asked_about_with_a_line_that_makes_splits(tmp_path: Path) -> None:
    for name in ("part_a", "part_b"):
        images = [f"images/{name}{n}.jpg" for n in range(3)]
        fill(tmp_path, {f"{name}.txt": "\n".join(images), **{image: jpeg(n) for n, image in enumerate(images)}})
    caught = question(tmp_path)
    first = caught.answers[0]
    assert first.options == ("--source", "table")
    assert first.note == "6 samples, part_a 3, part_b 3, without labels; leaves out nothing"


@pytest.mark.parametrize("numbers", [(0, 1, 2), (5, 1, 2)])
def test_a_table_of_classes_that_names_an_icon_of_each(numbers: tuple[int, ...], tmp_path: Path) -> None:
    classes = dict(zip(("Pear", "Apple", "Milk"), numbers, strict=True))
    files: dict[str, str | bytes] = {}
    for split in ("train", "val"):
        paths = [(f"{split}/{name}/{n}.jpg", classes[name]) for name in classes for n in range(3)]
        files |= {path: jpeg(0) for path, _ in paths}
        files[f"{split}.txt"] = "".join(f"{path}, {number}, 7\n" for path, number in paths)
    rows = "".join(f"{name},{number},{number // 3},/icons/{name}.jpg\n" for name, number in classes.items())
    files |= {"classes.csv": "Class Name,Class ID,Group,Icon\n" + rows, **{f"icons/{n}.jpg": jpeg(1) for n in classes}}
    fill(tmp_path, files)
    with closing(open_source(tmp_path)) as source:
        survey = source.survey()
        assert dict(survey.splits) == {"train": 9, "val": 9}
        label = next(column for column in survey.columns if column.name == "label")
        assert label.classes == (("Pear", "Apple", "Milk") if numbers[0] == 0 else None)
        read = {entry.key: source.read(entry).values["label"] for entry in source.entries()}  # type: ignore[union-attr]
        assert {key.split("/")[1]: int(value) for key, value in read.items()} == classes
        assert [*survey.ledger.names(Role.LEFT)] == [f"icons/{name}.jpg" for name in sorted(classes)]
        assert "classes.csv" in set(survey.ledger.names(Role.ANNOTATION))


def test_some_landmarks_lie_outside_their_picture(tmp_path: Path) -> None:
    rows = [[(7 * n + k) % 50 + 5 for k in range(20)] for n in range(8)]
    rows[0][0] = rows[1][3] = -3
    header = ",".join(["image_name", *(f"part_{k}_{axis}" for k in range(10) for axis in "xy")])
    lines = [f"{n}.jpg,{','.join(map(str, row))}" for n, row in enumerate(rows)]
    fill(tmp_path, {"landmarks.csv": "\n".join([header, *lines]) + "\n", **{f"{n}.jpg": jpeg(n) for n in range(8)}})
    assert "keypoints" in [*look(tmp_path).classes]


@pytest.mark.parametrize("suffix", [".lst", ".txt"])
@pytest.mark.parametrize("line", ["{0} im{0}.png basic", "im{0}.png", "im{0} 1"])
def test_lists_of_splits(line: str, suffix: str, tmp_path: Path) -> None:
    files = {f"images/im{n}.png": jpeg(n) for n in range(9)}
    lists = {"train": range(5), "validate": range(5, 7), "test": range(7, 9)}
    texts = {f"{name}{suffix}": "".join(line.format(n) + "\n" for n in numbers) for name, numbers in lists.items()}
    seen = look(fill(tmp_path, files | texts))
    assert seen.splits == {"train": 5, "validate": 2, "test": 2}
    assert {entry.key: entry.split for entry in seen.entries} == {
        f"images/im{n}.png": name for name, numbers in lists.items() for n in numbers
    }


def test_lists_of_images_in_class_folders_are_no_tables(tmp_path: Path) -> None:
    files = {f"{name}/{name}{n}.png": jpeg(n) for name in ("cat", "dog") for n in range(4)}
    texts = {
        f"{s}.txt": "".join(f"{c}/{c}{n}.png\n" for c in ("cat", "dog") for n in r)
        for s, r in (("train", (0, 1, 2)), ("test", (3,)))
    }
    question(fill(tmp_path, files | texts), "names the images")


def test_tables_of_different_images_with_different_columns_are_not_joined(tmp_path: Path) -> None:
    tables: dict[str, str | bytes] = {
        f"{kind}.csv": f"file,{kind}_age\n" + "".join(f"{kind}{n}.png,{n}\n" for n in range(3))
        for kind in ("cat", "dog")
    }
    found = rows(make(tmp_path, [f"{kind}{n}.png" for kind in ("cat", "dog") for n in range(3)], tables))
    assert found["cat1.png"] == {"cat_age": 1, "dog_age": None, "split": "cat"}
