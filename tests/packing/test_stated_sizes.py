"""Sizes of the image that annotations state: what is said if the image has another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from packstore import convert, verify
from tests.internals import UsageError
from tests.makers import oriented
from tests.makers.command import run

_STATING = ("coco", "voc", "labelme", "cvat", "datumaro", "csv_with_sizes", "supervisely", "metadata")
_BOXES: dict[str, dict[str, Any]] = {
    "csv_with_sizes": {"layout": "xyxy"},
    "csv_without_sizes": {"layout": "xyxy"},
    "metadata": {"layout": "xywh"},
}


def make(root: Path, name: str, orientation: int, scale: int) -> Path:
    """One photo, annotated in a copy of it that is ``scale`` times as large."""
    photo = oriented.describe_photo("jpg", orientation, "stored")
    photo = photo._replace(
        width=scale * photo.width, height=scale * photo.height, box=tuple(scale * n for n in photo.box)
    )
    for path, data in oriented.FORMATS[name](photo, oriented.make_photo("jpg", orientation)).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


@pytest.mark.sampled(8, fast=1)
@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("name", _STATING)
def test_a_size_that_fits_no_frame_is_told(name: str, orientation: int, tmp_path: Path) -> None:
    source = make(tmp_path / "set", name, orientation, 2)
    report = convert(source, tmp_path / "a.lmdb", annotation_frame="stored", **_BOXES.get(name, {}))
    (note,) = (each for each in report.notes if "another size" in each)
    assert note.startswith("annotations of 1 of 1 images state another size than the image has (")
    assert "a.jpg states 128 x 80, and its image is 64 x 40" in note or "80 x 128, and its image is 40 x 64" in note
    assert "annotations of 1 of 1 images state another size" in run("info", tmp_path / "a.lmdb").stdout
    assert not verify(tmp_path / "a.lmdb", against=source).problems


@pytest.mark.sampled(8, fast=1)
@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("name", [name for name in oriented.FORMATS if name != "csv_of_runs"])
def test_nothing_is_told_of_a_size_that_fits(name: str, orientation: int, tmp_path: Path) -> None:
    source = make(tmp_path / "set", name, orientation, 1)
    report = convert(source, tmp_path / "a.lmdb", annotation_frame="stored", **_BOXES.get(name, {}))
    assert not [each for each in report.notes if "another size" in each]
    assert "another size" not in run("info", tmp_path / "a.lmdb").stdout


@pytest.mark.parametrize("destination", ["a.lmdb", "file"])
def test_they_are_counted_wherever_the_store_is_written(destination: str, tmp_path: Path) -> None:
    source = make(tmp_path / "set", "coco", 1, 2)
    document = json.loads((source / "train/_annotations.coco.json").read_text())
    photo = (source / "train/a.jpg").read_bytes()
    for number in range(2, 6):  # one fits, the others do not
        (source / f"train/{number}.jpg").write_bytes(photo)
        size = {"width": 64, "height": 40} if number == 4 else {}
        document["images"].append(document["images"][0] | {"id": number, "file_name": f"{number}.jpg", **size})
        document["annotations"].append(document["annotations"][0] | {"id": number, "image_id": number})
    (source / "train/_annotations.coco.json").write_text(json.dumps(document))
    place = (tmp_path / "a.lmdb").as_uri() if destination == "file" else tmp_path / destination
    (note,) = (each for each in convert(source, place).notes if "another size" in each)
    assert note.startswith("annotations of 4 of 5 images")


@pytest.mark.parametrize("kind", ["classes", "flat", "table"])
def test_a_frame_of_no_annotations_is_refused(kind: str, tmp_path: Path) -> None:
    source = tmp_path / "set"
    for name in ("a/1.jpg", "b/2.jpg") if kind == "classes" else ("1.jpg", "2.jpg"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(oriented.make_photo("jpg", 6))
    if kind == "table":
        (source / "data.csv").write_text("file_name,label\n1.jpg,ant\n2.jpg,bee\n")
    said = r"annotation_frame is for boxes, points, masks .* leave it out"
    with pytest.raises(UsageError, match=said):
        convert(source, tmp_path / "a.lmdb", annotation_frame="upright")
    convert(source, tmp_path / "a.lmdb")
    with pytest.raises(UsageError, match=said):
        verify(tmp_path / "a.lmdb", against=source, annotation_frame="upright")


@pytest.mark.parametrize("name", ["coco_without_sizes", "createml", "kitti", "csv_without_sizes"])
def test_info_shows_the_question_that_convert_asks(name: str, tmp_path: Path) -> None:
    source = make(tmp_path / "set", name, 3, 1)
    layout = ("--layout", _BOXES[name]["layout"]) if name in _BOXES else ()
    asked = run("convert", source, tmp_path / "a.lmdb", *layout)
    assert asked.returncode == 2
    shown = run("info", source, *layout).stdout
    question = next(line for line in shown.splitlines() if line.startswith("question"))
    assert "nothing tells if its annotations" in question
    assert question.split(None, 1)[1] in asked.stderr.replace("\n", " ")
    for frame in ("upright", "stored"):
        assert f"set.lmdb{''.join(f' {each}' for each in layout)} --annotation-frame {frame}" in shown
    assert "nothing tells" in json.loads(run("info", source, *layout, "--json").stdout)["question"]


@pytest.mark.parametrize("name", ["yolo", "voc"])
def test_info_shows_no_question_that_convert_does_not_ask(name: str, tmp_path: Path) -> None:
    source = make(tmp_path / "set", name, 6, 1)
    assert "\nquestion" not in run("info", source).stdout
    assert json.loads(run("info", source, "--json").stdout)["question"] is None
