"""XML of Pascal VOC outside its development kit, and boxes that count pixels from zero."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packstore import AmbiguousSourceError, PackedDataset, append, convert, export, verify
from packstore.sources import Entry, ask_about_left, open_source
from tests.internals import VOC_CLASSES as CLASSES
from tests.internals import Role, UsageError, read_manifest
from tests.makers.annotated import fill, jpeg, voc, voc_xml
from tests.makers.command import run
from tests.makers.sources import FileSuite, look, prove, question, refused


def beside(root: Path, images: str, xml: str, samples: int = 6, label: str = "apple") -> Path:
    """Images with an object each; of one of three, there is no annotation."""
    files: dict[str, str | bytes] = {}
    for n in range(samples):
        files[f"{images}/{n:04}.jpg"] = jpeg(n)
        if n % 3 != 2:
            files[f"{xml}/{n:04}.xml"] = voc_xml(f"{n:04}", (label, (1, 2, 3, 4), 0))
    return fill(root, files)


class TestVocBeside(FileSuite):
    kind = "voc"
    bytes_per_sample = 400

    def make(self, folder: Path, samples: int) -> Path:
        return beside(folder, "train", "train", samples)

    def change(self, path: Path) -> None:
        (path / "train/0001.xml").write_text(voc_xml("0001"))

    def spoil(self, path: Path, entry: Entry) -> bool:
        (path / entry.key).with_suffix(".xml").write_text("<annotation>")
        return True


@pytest.mark.parametrize(
    ("images", "xml", "splits"),
    [
        (".", ".", {"": 6}),
        ("images", "annotations", {"": 6}),
        ("train", "train", {"train": 6}),
        ("train/images", "train/annotations", {"train": 6}),
        ("JPEGIMG", "Annotations", {"": 6}),
        ("val/fotos", "val/boxes of them", {"val": 6}),
        ("images", "annotations/xmls", {"": 6}),
        ("pictures", "notes/voc/all", {"": 6}),
        ("train/images", "train/annotations/xml", {"train": 6}),
        ("data/img", "notes/xml", {"": 6}),
        ("JPEGImages", "annotations/xmls", {"": 6}),
        ("JPEGImages", "Annotations/xmls", {"": 6}),
        ("JPEGImages", "labels", {"": 6}),
        ("val/data/img", "val/notes/xml", {"val": 6}),
    ],
)
def test_where_annotations_may_lie(images: str, xml: str, splits: dict[str, int], tmp_path: Path) -> None:
    seen = look(beside(tmp_path, images, xml))
    assert seen.kind == "voc"
    survey = seen
    assert (dict(survey.splits), dict(survey.ledger.passed_over)) == (splits, {})
    assert next(column.classes for column in survey.columns if column.name == "labels") == ("apple",)
    values = seen.values
    assert values[0]["boxes"] == [[0, 1, 3, 4]]
    assert [each["labels"] for each in values] == [[0], [0], None] * 2


@pytest.mark.parametrize("samples", [8, 80])
@pytest.mark.parametrize(
    ("place", "numbers"),
    [("annotations", ""), ("annotations", " 1 2 1"), ("annotations/xmls", " -1"), ("ImageSets/Main", "")],
)
def test_lists_beside_the_annotations_are_sets(place: str, numbers: str, samples: int, tmp_path: Path) -> None:
    root = beside(tmp_path / "set", "images", "annotations/xmls", samples)
    own = {"trainval": range(samples - 2), "test": range(samples - 2, samples)}
    lists = {f"{place}/{name}.txt": "".join(f"{n:04}{numbers}\n" for n in some) for name, some in own.items()}
    with closing(open_source(fill(root, lists))) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        assert (source.kind, survey.splits) == ("voc", {"trainval": samples - 2, "test": 2})
        assert survey.ledger.count(Role.LEFT) == 0
        assert [entry.key for entry in source.entries("test")] == [f"images/{n:04}.jpg" for n in own["test"]]


def test_a_list_of_other_names_is_no_set(tmp_path: Path) -> None:
    root = beside(tmp_path, "images", "annotations/xmls")
    fill(root, {"annotations/train.txt": "0000\nanother\n"})
    assert look(root, kind="voc").splits == {"": 6}


@pytest.mark.parametrize("other", ["masks", "overlays"])
def test_other_pictures_of_the_same_names_are_not_taken_for_the_images(other: str, tmp_path: Path) -> None:
    """They are left, or the user is asked."""
    root = beside(tmp_path, "pictures", "annotations/xmls")
    fill(root, {f"{other}/{n:04}.jpg": jpeg(20 + n) for n in range(6)})
    if other == "overlays":
        question(root, "are in overlays, and in pictures")
        return
    seen = look(root, kind="voc")
    assert seen.keys == [f"pictures/{n:04}.jpg" for n in range(6)]


def test_images_in_folders_of_no_split_are_packed_together(tmp_path: Path) -> None:
    beside(beside(tmp_path / "classes", "cat", "cat"), "dog", "dog")
    seen = look(tmp_path / "classes")
    assert (seen.kind, seen.splits) == ("voc", {"": 12})
    root = beside(beside(beside(tmp_path / "splits", ".", ".", 3), "train", "train"), "valid", "valid", 3)
    assert look(root).splits == {"train": 6, "valid": 3, "unassigned": 3}


def test_what_is_kept(tmp_path: Path) -> None:
    root = beside(beside(tmp_path / "set", "train", "train", label="cat"), "valid", "valid", 2, "dog")
    fill(root, {"train/0009.xml": voc_xml("9"), "train/notes.txt": "x", "README.roboflow.txt": "by hand"})
    prove(root, tmp_path / "x.h5")
    data = PackedDataset(
        tmp_path / "x.h5", "valid", columns=("key", "boxes", "labels", "json", "image"), output="bytes"
    )
    key, boxes, labels, document, image = data[0]
    assert (key, bytes(image)) == ("valid/0000.jpg", jpeg(0))
    assert np.array_equal(boxes, [[0, 1, 3, 4]])
    assert labels.tolist() == [CLASSES.index("dog")]
    assert document["annotation"]["object"][0]["truncated"] == "1"
    assert dict(open_source(root).survey().ledger.passed_over) == {
        "annotations without an image": 1,
        "not images (.txt)": 2,
    }


def test_other_annotations_beside_them_are_a_question(tmp_path: Path) -> None:
    fill(beside(tmp_path, ".", "."), {"labels.csv": "file,label\n0000.jpg,a\n0001.jpg,b\n"})
    question(tmp_path, r"labels\.csv")


def test_other_xml_files_are_not_taken(tmp_path: Path) -> None:
    fill(tmp_path, {**{f"{n}.jpg": jpeg(n) for n in range(3)}, **{f"{n}.xml": "<metadata/>" for n in range(3)}})
    question(tmp_path, r"a \.xml file for each image")


def test_names_with_blanks_in_lists_of_the_development_kit(tmp_path: Path) -> None:
    base = voc(tmp_path) / "VOCdevkit/VOC2012"
    fill(
        base,
        {"JPEGImages/my image 1.jpg": jpeg(7), "Annotations/my image 1.xml": voc_xml("7", ("cat", (1, 1, 2, 2), 0))},
    )
    (base / "ImageSets/Main/train.txt").write_text("my image 1\r\n2007_000001\n2007_000000\n")
    with closing(open_source(tmp_path)) as source:
        samples = [(entry.key.rpartition("/")[2], source.read(entry)) for entry in source.entries("train")]
        assert [name for name, _ in samples] == ["my image 1.jpg", "2007_000001.jpg", "2007_000000.jpg"]


@pytest.mark.parametrize("folder", ["images/{}", "{}_images", "{}"])
def test_one_folder_of_annotations_for_the_folders_of_splits(folder: str, tmp_path: Path) -> None:
    names = [f"{folder.format(split)}/{n}.jpg" for split, numbers in (("train", "abcd"), ("val", "e")) for n in numbers]
    files: dict[str, str | bytes] = {name: jpeg(n) for n, name in enumerate(names)}
    notes = {f"Annotations/{n}.xml": voc_xml(n, ("apple", (1, 2, 3, 4), 0)) for n in "abde"}  # c has none
    root = fill(tmp_path / "set", files | notes)
    manifest = prove(root, tmp_path / "x.lmdb").manifest
    assert {split.name: split.stop - split.start for split in manifest.splits} == {"train": 4, "val": 1}
    ds = PackedDataset(tmp_path / "x.lmdb", "train", columns=("key", "boxes"))
    assert [None if boxes is None else len(boxes) for _, boxes in ds] == [1, 1, None, 1]


Box = tuple[float, ...]
ORDINARY: Box = (3, 2, 9, 7)


def development_kit(boxes: list[Box]) -> dict[str, str | bytes]:
    """``JPEGImages`` with ``Annotations``; the last image is of ``val``."""
    files: dict[str, str | bytes] = {}
    for n, box in enumerate(boxes):
        files |= {f"JPEGImages/{n}.jpg": jpeg(n), f"Annotations/{n}.xml": voc_xml(f"{n}", ("cat", box, 0))}
    names = [f"{n}\n" for n in range(len(boxes))]
    return files | {"ImageSets/Main/train.txt": "".join(names[:-1]), "ImageSets/Main/val.txt": names[-1]}


def in_folders(images: str, xml: str) -> Callable[[list[Box]], dict[str, str | bytes]]:
    """Makes files in two folders; the last image is of the folder ``valid`` if the first name has a split."""

    def make(boxes: list[Box]) -> dict[str, str | bytes]:
        files: dict[str, str | bytes] = {}
        for n, box in enumerate(boxes):
            places = [p.replace("train", "valid") if n == len(boxes) - 1 else p for p in (images, xml)]
            files |= {f"{places[0]}/{n}.jpg": jpeg(n), f"{places[1]}/{n}.xml": voc_xml(f"{n}", ("cat", box, 0))}
        return files

    return make


LAYOUTS = {
    "development kit": development_kit,
    "beside": in_folders(".", "."),
    "annotations": in_folders("images", "annotations"),
    "splits": in_folders("train", "train"),
}


def read_boxes(path: Path, **options: Any) -> tuple[list[Any], tuple[str, ...], str | None]:
    """All boxes, notes of the survey, and the layout."""
    with closing(open_source(path, **options)) as source:
        assert source.kind == "voc"
        notes = source.survey().notes
        boxes = [source.read(entry).values["boxes"][0] for entry in source.entries()]  # type: ignore[union-attr]
        return boxes, notes, source.options.layout


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "proof", [(0, 2, 9, 7), (3, 0, 9, 7), (0.0, 0.0, 16.0, 8.0), (0.25, 2, 9, 7), ("0.00", 2, 9, 7)]
)
@pytest.mark.parametrize("archive", [False, True])
def test_a_box_at_zero_in_any_file_proves_it(layout: str, proof: Box, archive: bool, tmp_path: Path) -> None:
    root = fill(tmp_path / "set", LAYOUTS[layout]([ORDINARY, ORDINARY, ORDINARY, proof]))
    if archive:
        root = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", root))
    boxes, notes, decided = read_boxes(root)
    assert boxes == [list(ORDINARY)] * 3 + [[float(each) for each in proof]]
    assert decided == "xyxy"
    (note,) = notes
    assert "a box is at 0, so all boxes count pixels from 0" in note
    assert "--layout voc" in note


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("box", [(1, 1, 16, 8), (-1, 2, 9, 7), (0, 0, 0, 0), (1.5, 2, 9, 7)])
def test_other_boxes_count_from_one(layout: str, box: Box, tmp_path: Path) -> None:
    boxes, notes, decided = read_boxes(fill(tmp_path, LAYOUTS[layout]([ORDINARY, ORDINARY, box])))
    assert boxes == [[2, 1, 9, 7], [2, 1, 9, 7], [box[0] - 1, box[1] - 1, *box[2:]]]
    assert (notes, decided) == ((), "voc")


@pytest.mark.parametrize("said", ["voc", "xyxy"])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_option_decides(layout: str, first: int, said: str, tmp_path: Path) -> None:
    root = fill(tmp_path / "set", LAYOUTS[layout]([ORDINARY, (first, 2, 9, 7)]))
    off = 1 if said == "voc" else 0
    expected = [[3 - off, 2 - off, 9, 7], [first - off, 2 - off, 9, 7]]
    assert read_boxes(root, layout=said) == (expected, (), said)
    convert(root, tmp_path / "x.lmdb", layout=said)
    assert read_manifest(tmp_path / "x.lmdb").options["layout"] == said
    assert verify(tmp_path / "x.lmdb", against=root).problems == ()  # as it was packed


@pytest.mark.parametrize("said", ["xywh", "json", "cxcywhn"])
def test_other_layouts_are_refused(said: str, tmp_path: Path) -> None:
    root = fill(tmp_path, development_kit([ORDINARY, ORDINARY]))
    refused(UsageError, root, f"layout is {said}, but boxes of Pascal VOC are voc, .* or xyxy", layout=said)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
def test_a_store_records_how_its_files_count(first: int, tmp_path: Path) -> None:
    """Later boxes of the same tool need not be at 0."""
    root = fill(tmp_path / "set", in_folders("train", "train")([ORDINARY, (first, 2, 9, 7)]))
    done = run("convert", root, tmp_path / "x.lmdb")
    assert done.returncode == 0
    assert ("a box is at 0" in done.stdout + done.stderr) == (first == 0)
    assert read_manifest(tmp_path / "x.lmdb").options["layout"] == ("voc" if first else "xyxy")
    (root / "valid/1.xml").unlink()
    assert read_boxes(root / "train")[2] == "voc"
    (root / "valid/1.jpg").unlink()
    fill(root, {"valid/1.jpg": jpeg(1), "valid/1.xml": voc_xml("1", ("cat", (1, 2, 9, 7), 0))})
    differs = {problem.record for problem in verify(tmp_path / "x.lmdb", against=root).problems}
    assert differs == ({1} if first == 0 else set())  # not record 0, whose file is the same


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
def test_what_is_appended_counts_like_the_store(first: int, tmp_path: Path) -> None:
    root = fill(tmp_path / "set", in_folders("train", "train")([ORDINARY, (first, 2, 9, 7)]))
    convert(root, tmp_path / "x.h5")
    more = fill(tmp_path / "more", {"train/9.jpg": jpeg(9), "train/9.xml": voc_xml("9", ("cat", ORDINARY, 0))})
    append(tmp_path / "x.h5", more)
    export(tmp_path / "x.h5", tmp_path / "out", to="coco")
    boxes = [each["bbox"][:2] for each in _read_coco(tmp_path / "out", "train")]
    assert boxes == [[3 - first, 2 - first]] * 2


@pytest.mark.slow
def test_a_source_that_counts_otherwise_is_not_appended_unasked(tmp_path: Path) -> None:
    root = fill(tmp_path / "set", in_folders("train", "train")([ORDINARY, ORDINARY]))
    convert(root, tmp_path / "x.h5")
    more = fill(tmp_path / "more", {"train/9.jpg": jpeg(9), "train/9.xml": voc_xml("9", ("cat", (0, 2, 9, 7), 0))})
    with pytest.raises(AmbiguousSourceError, match=r"more has a box at 0") as caught:
        append(tmp_path / "x.h5", more)
    assert [answer.options for answer in caught.value.answers] == [("--layout", "xyxy"), ("--layout", "voc")]
    append(tmp_path / "x.h5", more, layout="xyxy")
    export(tmp_path / "x.h5", tmp_path / "out", to="coco")
    assert [each["bbox"][:2] for each in _read_coco(tmp_path / "out", "train")] == [[2, 1], [0, 2]]


def test_tables_may_count_as_pascal_voc(tmp_path: Path) -> None:
    fill(tmp_path, {"a.jpg": jpeg(0), "t.csv": "file,label,xmin,ymin,xmax,ymax\na.jpg,cat,3,2,9,7\n"})
    for layout, box in {"voc": [2, 1, 9, 7], "xyxy": [3, 2, 9, 7]}.items():
        seen = look(tmp_path, layout=layout)
        sample = seen.read(0)
        assert sample.values["boxes"].tolist() == [box]


def _read_coco(folder: Path, split: str) -> list[Any]:
    """The annotations of a split in an export, by image."""
    document = json.loads((folder / f"annotations/instances_{split}.json").read_text())
    return sorted(document["annotations"], key=lambda each: each["image_id"])
