"""Exports as COCO and YOLO: the contract, what others read, and the same dataset with and without packstore.json."""

from __future__ import annotations

import io
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import packstore
from packstore.sources import open_source
from packstore.testing.exports import picture
from tests.internals import StoreError, UsageError, Writer, convert, export, load_yaml
from tests.makers.annotated import coco, fill, jpeg, without_export_manifest, yolo


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("coco", "the column 'json' (but area, iscrowd and other entries of its objects are written)"),
        ("yolo", "shapes of objects with run lengths: they become boxes"),
        ("cvat", "shapes of objects with several polygons or run lengths: they become boxes"),
        ("voc", "'segments'"),
    ],
)
def test_what_is_lost_of_coco_is_said(to: str, said: str, tmp_path: Path) -> None:
    convert(coco(tmp_path / "set"), tmp_path / "in.lmdb")
    losses = export(tmp_path / "in.lmdb", tmp_path / to, to=to).losses
    assert any(said in loss for loss in losses)


def samples(path: Path, kind: str) -> dict[str, dict[str, Any]]:
    with closing(open_source(path)) as source:
        assert source.kind == kind
        return {entry.key.rpartition("/")[2]: dict(source.read(entry).values) for entry in source.entries()}


def test_the_bare_files_of_coco_keep_what_is_its_own(tmp_path: Path) -> None:
    convert(coco(tmp_path / "set"), tmp_path / "in.lmdb")
    export(tmp_path / "in.lmdb", tmp_path / "out", to="coco")
    before, after = samples(tmp_path / "set", "coco"), samples(without_export_manifest(tmp_path / "out"), "coco")
    for name, values in before.items():
        found, image = after[name], after[name]["json"]["image"]
        assert (image["width"], image["height"], image["file_name"]) == (16, 8, name)
        for column in ("keypoints", "captions", "segments"):
            assert found[column] == values[column]
        for old, new in zip(values["json"]["annotations"], found["json"]["annotations"], strict=True):
            assert all(old[key] == new[key] for key in ("area", "iscrowd", "bbox"))


def test_the_bare_files_of_yolo_keep_its_polygons(tmp_path: Path) -> None:
    root = fill(yolo(tmp_path / "set"), {"labels/val/00004.txt": "1 0.5 0.5 0.25 0.5\n0 0.2 0.5 0.5 0.1 1 0.7\n"})
    convert(root, tmp_path / "in.lmdb")
    export(tmp_path / "in.lmdb", tmp_path / "out", to="yolo")
    before, after = samples(root, "yolo"), samples(without_export_manifest(tmp_path / "out"), "yolo")
    assert any(values.get("segments") for values in before.values())
    assert [values.get("segments", []) for values in before.values()] == [
        values.get("segments", []) for values in after.values()
    ]
    assert sorted(file.relative_to(tmp_path / "out").as_posix() for file in (tmp_path / "out").rglob("*.txt")) == [
        f"labels/{split}/{n:05}.txt" for split, numbers in (("train", range(4)), ("val", (4, 5))) for n in numbers
    ]
    description = load_yaml((tmp_path / "out/data.yaml").read_bytes())
    assert description == {"train": "images/train", "val": "images/val", "names": {"0": "cat", "1": "dog"}}


@pytest.mark.slow
def test_keypoints_of_yolo(tmp_path: Path) -> None:
    root = yolo(tmp_path / "set")
    fill(root, {"data.yaml": "train: images/train\nval: images/val\nnames: [a, b]\nkpt_shape: [2, 3]\n"})
    for name in ("train/00001", "val/00004"):
        (root / f"labels/{name}.txt").write_text("1 .5 .5 .25 .5 .5 .25 2 0 1 0\n")
    digest = convert(root, tmp_path / "in.lmdb").manifest.dataset_digest
    export(tmp_path / "in.lmdb", tmp_path / "out", to="yolo")
    assert convert(without_export_manifest(tmp_path / "out"), tmp_path / "again.lmdb").manifest.records == 6
    before, after = samples(root, "yolo"), samples(tmp_path / "out", "yolo")
    assert before["00001.jpg"] == after["00001.jpg"]
    export(tmp_path / "in.lmdb", tmp_path / "coco", to="coco")
    assert convert(tmp_path / "coco", tmp_path / "third.lmdb").manifest.dataset_digest == digest
    found = samples(without_export_manifest(tmp_path / "coco"), "coco")["00001.jpg"]
    assert np.array_equal(np.float32(found["keypoints"]), np.float32(before["00001.jpg"]["keypoints"]))


def store_of(path: Path, boxes: list[Any], classes: Any = ("a", "b")) -> Path:
    fields: dict[str, Any] = {
        "image": "image",
        "boxes": packstore.Boxes(optional=True),
        "labels": packstore.Labels(classes, of="boxes", optional=True),
    }
    with Writer(path, fields=fields) as writer:
        for number, each in enumerate(boxes):
            labels = None if each is None else [1] * len(each)
            writer.add(key=f"{number}.jpg", image=picture(number), boxes=each, labels=labels)
    return path


def test_boxes_beyond_the_image_and_none(tmp_path: Path) -> None:
    """Images are 30 x 20 pixels."""
    store = store_of(tmp_path / "in.lmdb", [[[-10, 5, 40, 10], [50, 50, 60, 60]], None, []])
    export(store, tmp_path / "yolo", to="yolo")
    assert (tmp_path / "yolo/labels/0.txt").read_text() == "1 0.5 0.375 1.0 0.25\n"
    assert not (tmp_path / "yolo/labels/1.txt").exists()
    assert (tmp_path / "yolo/labels/2.txt").read_text() == ""
    export(store, tmp_path / "coco", to="coco")
    document = json.loads((tmp_path / "coco/annotations/instances.json").read_text())
    assert [entry["bbox"] for entry in document["annotations"]] == [[-10, 5, 50, 5], [50, 50, 10, 10]]
    assert [entry["file_name"] for entry in document["images"]] == ["0.jpg", "1.jpg", "2.jpg"]
    assert document["categories"] == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


def test_classes_without_names_are_numbers(tmp_path: Path) -> None:
    store = store_of(tmp_path / "in.lmdb", [[[1, 2, 3, 4]]], classes=None)
    export(store, tmp_path / "coco", to="coco")
    document = json.loads((tmp_path / "coco/annotations/instances.json").read_text())
    assert document["categories"] == [{"id": 1, "name": "0"}, {"id": 2, "name": "1"}]
    export(store, tmp_path / "yolo", to="yolo")
    assert load_yaml((tmp_path / "yolo/data.yaml").read_bytes())["names"] == {"0": "0", "1": "1"}


def test_names_of_classes_that_yaml_would_change(tmp_path: Path) -> None:
    names = ["\N{GRINNING FACE}", "no", 'say "ü"', "a: b # c", "1", "", "tab\t\\"]
    store = store_of(tmp_path / "in.lmdb", [[[1, 2, 3, 4]]], classes=names)
    export(store, tmp_path / "yolo", to="yolo")
    assert load_yaml((tmp_path / "yolo/data.yaml").read_bytes())["names"] == {
        str(number): name for number, name in enumerate(names)
    }


@pytest.mark.parametrize("to", ["coco", "yolo", "voc"])
def test_a_huge_class_number_without_a_name_is_refused(to: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"image": "image", "boxes": "boxes", "labels": packstore.Labels(of="boxes")}
    with Writer(tmp_path / "in.lmdb", fields=fields) as writer:
        writer.add(key="a.jpg", image=picture(1), boxes=[[0, 0, 4, 8]], labels=[2**40])
    with pytest.raises(UsageError, match=r"class numbers up to 1,099,511,627,776 without names"):
        export(tmp_path / "in.lmdb", tmp_path / to, to=to)
    assert [file.name for file in tmp_path.iterdir()] == ["in.lmdb"]
    export(tmp_path / "in.lmdb", tmp_path / "out", to="masks")  # names no classes


def test_an_image_on_its_side(tmp_path: Path) -> None:
    from PIL import Image

    from tests.makers.images import encode
    from tests.makers.images import picture as smooth

    exif = Image.Exif()
    exif[0x0112] = 6
    fields: dict[str, Any] = {"image": "image", "boxes": "boxes"}
    with Writer(tmp_path / "in.lmdb", fields=fields, annotation_frame="upright") as writer:
        writer.add(key="a.jpg", image=encode(smooth(width=16, height=8), "JPEG", exif=exif), boxes=[[0, 0, 4, 8]])
    export(tmp_path / "in.lmdb", tmp_path / "yolo", to="yolo")
    assert (tmp_path / "yolo/labels/a.txt").read_text() == "0 0.25 0.25 0.5 0.5\n"
    export(tmp_path / "in.lmdb", tmp_path / "coco", to="coco")
    document = json.loads((tmp_path / "coco/annotations/instances.json").read_text())
    assert (document["images"][0]["width"], document["images"][0]["height"]) == (16, 8)
    assert document["annotations"][0]["bbox"] == [0, 4, 8, 4]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_pycocotools_reads_it(tmp_path: Path) -> None:
    module = pytest.importorskip("pycocotools.coco")
    convert(coco(tmp_path / "set"), tmp_path / "in.lmdb")
    export(tmp_path / "in.lmdb", tmp_path / "out", to="coco")
    found = module.COCO(str(tmp_path / "out/annotations/instances_train.json"))
    (first, second) = found.loadAnns(found.getAnnIds(imgIds=[2]))
    assert (first["bbox"], second["iscrowd"]) == ([1.5, 1, 4.5, 6.5], 1)
    assert found.annToMask(second).sum() == 20


def test_polygons_beyond_the_image_are_clipped_for_yolo(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"image": "image", "boxes": "boxes", "segments": packstore.Segments(of="boxes")}
    with Writer(tmp_path / "in.lmdb", fields=fields) as writer:
        rings = [[2, 2, 6, 2, 6, 6], [10, 2, 20, 2, 20, 6, 10, 6]]
        boxes = [[2, 2, 6, 6], [10, 2, 16, 6]]
        writer.add(key="a.jpg", image=jpeg(1), boxes=boxes, segments=[[ring] for ring in rings])
    export(tmp_path / "in.lmdb", tmp_path / "out", to="yolo", bare=True)
    [(_, values)] = samples(tmp_path / "out", "yolo").items()
    assert values["segments"][0] == [[2 / 16, 2 / 8, 6 / 16, 2 / 8, 6 / 16, 6 / 8]]
    assert np.reshape(values["segments"][1], (-1, 2)).max() == 1


def test_run_lengths_that_do_not_fill_a_photo_are_named(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"image": "image", "boxes": "boxes", "segments": packstore.Segments(of="boxes")}
    with Writer(tmp_path / "in.lmdb", fields=fields, annotation_frame="stored") as writer:
        shapes = [{"size": [8, 16], "counts": [5, 5]}]
        photo = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.open(io.BytesIO(jpeg(1))).save(photo, "JPEG", exif=exif)
        writer.add(key="a.jpg", image=photo.getvalue(), boxes=[[2, 2, 6, 6]], segments=shapes)
    with pytest.raises(StoreError, match=r"record 0 \(a.jpg\) cannot be turned upright: run lengths do not add up"):
        export(tmp_path / "in.lmdb", tmp_path / "out", to="yolo")
