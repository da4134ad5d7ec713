"""Pascal VOC's XML files that count pixels from 0: a box at 0 proves it, for all boxes of the source."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packstore import AmbiguousSourceError, append, convert, export, verify
from packstore.sources import open_source
from tests.internals import UsageError, read_manifest
from tests.makers.annotated import fill, jpeg, voc_xml
from tests.makers.command import run

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
    with pytest.raises(UsageError, match=f"layout is {said}, but boxes of Pascal VOC are voc, .* or xyxy"):
        open_source(root, layout=said)


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


@pytest.mark.parametrize("first", [0, 1])
def test_what_is_appended_counts_like_the_store(first: int, tmp_path: Path) -> None:
    root = fill(tmp_path / "set", in_folders("train", "train")([ORDINARY, (first, 2, 9, 7)]))
    convert(root, tmp_path / "x.h5")
    more = fill(tmp_path / "more", {"train/9.jpg": jpeg(9), "train/9.xml": voc_xml("9", ("cat", ORDINARY, 0))})
    append(tmp_path / "x.h5", more)
    export(tmp_path / "x.h5", tmp_path / "out", to="coco")
    boxes = [each["bbox"][:2] for each in _read_coco(tmp_path / "out", "train")]
    assert boxes == [[3 - first, 2 - first]] * 2


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
        with closing(open_source(tmp_path, layout=layout)) as source:
            sample = source.read(next(source.entries()))
            assert sample.values["boxes"].tolist() == [box]  # type: ignore[union-attr]


def _read_coco(folder: Path, split: str) -> list[Any]:
    """The annotations of a split in an export, by image."""
    document = json.loads((folder / f"annotations/instances_{split}.json").read_text())
    return sorted(document["annotations"], key=lambda each: each["image_id"])
