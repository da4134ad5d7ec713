"""Regions that are no ordinary objects, as each format marks them: one column says so, and boxes stay all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packstore import PackedDataset, convert, verify
from packstore.sources import open_source
from tests.makers.annotated import coco_image, fill, jpeg
from tests.makers.annotation_formats import images

Files = Mapping[str, str | bytes]
FLAGS = [0, 1, 0]
BOX = [1, 2, 4, 4]


def coco(flag: str, values: list[Any]) -> Files:
    annotations = [
        {"id": n, "image_id": 0, "category_id": 1, "bbox": BOX, "area": 1} | ({} if value is None else {flag: value})
        for n, value in enumerate(values)
    ]
    categories = [{"id": 1, "name": "a"}]
    document = {"images": [coco_image(0)], "annotations": annotations, "categories": categories}
    name = document["images"][0]["file_name"]
    return {f"train/{name}": jpeg(0), "train/_annotations.coco.json": json.dumps(document)}


def kitti() -> Files:
    lines = [f"{name} 0 0 0 1 2 5 6 1 1 1 1 1 1 1\n" for name in ("Car", "DontCare", "Car")]
    return images(1, "training/image_2/", ".png") | {"training/label_2/a00000.txt": "".join(lines)}


def visdrone(lines: list[str]) -> Files:
    return images(1, "images/") | {"annotations/a00000.txt": "\n".join(lines)}


def widerface() -> Files:
    faces = "".join(f"1 2 4 4 0 0 0 {flag} 0 0\n" for flag in FLAGS)
    text = f"0--Parade/a.jpg\n3\n{faces}"
    return {"WIDER_train/images/0--Parade/a.jpg": jpeg(0), "wider_face_split/wider_face_train_bbx_gt.txt": text}


def crowdhuman(things: list[dict[str, Any]]) -> Files:
    line = {"ID": "a00000", "gtboxes": [{"tag": "person", "fbox": BOX, "vbox": BOX, "hbox": BOX} | t for t in things]}
    return images(1, "Images/") | {"annotation_train.odgt": json.dumps(line)}


def mot() -> Files:
    lines = "".join(f"1,{n},2,3,4,4,{1 - flag},1,0.5\n" for n, flag in enumerate(FLAGS))
    return {"train/MOT17-02/img1/000001.jpg": jpeg(0), "train/MOT17-02/gt/gt.txt": lines}


def mots() -> Files:
    lines = "".join(f"1 {n} {10 if flag else 2} 8 16 :4400000f2\n" for n, flag in enumerate(FLAGS))
    return {"train/MOTS20-02/img1/000001.jpg": jpeg(0), "train/MOTS20-02/gt/gt.txt": lines}


def bdd100k(name: str) -> Files:
    box = {"x1": 1, "y1": 2, "x2": 5, "y2": 6}
    labels = [{"category": "car", "box2d": box, "attributes": {name: bool(flag)}} for flag in FLAGS]
    frames = json.dumps([{"name": "a00000.jpg", "labels": labels}])
    return images(1, "images/100k/train/") | {"labels/det_20/det_train.json": frames}


def datumaro() -> Files:
    things = [
        {"id": n, "type": "bbox", "bbox": BOX, "label_id": 0, "attributes": {"is_crowd": bool(flag)}, "group": 0}
        for n, flag in enumerate(FLAGS)
    ]
    items = [{"id": "a00000", "annotations": things, "image": {"path": "a00000.jpg"}}]
    categories = {"label": {"labels": [{"name": "a", "parent": ""}]}}
    return images(1, "images/train/") | {
        "annotations/train.json": json.dumps({"info": {}, "categories": categories, "items": items})
    }


def fiftyone(name: str) -> Files:
    things = [
        {"_cls": "Detection", "label": "a", "bounding_box": [0.1, 0.2, 0.3, 0.4], name: bool(flag)} for flag in FLAGS
    ]
    sample = {"filepath": "data/a00000.jpg", "tags": [], "gt": {"_cls": "Detections", "detections": things}}
    return images(1, "data/") | {"samples.json": json.dumps({"samples": [sample]}), "metadata.json": "{}"}


def openmmlab() -> Files:
    things = [{"bbox": [1, 2, 5, 6], "bbox_label": 0, "ignore_flag": flag} for flag in FLAGS]
    document = {"metainfo": {"classes": ["a"]}, "data_list": [{"img_path": "a00000.jpg", "instances": things}]}
    return images(1, "images/") | {"annotations/train.json": json.dumps(document)}


def table(name: str, file: str = "boxes.csv") -> Files:
    rows = "".join(f"a00000.jpg,a,1,2,5,6,{flag}\n" for flag in FLAGS)
    return images(2) | {file: f"filename,class,xmin,ymin,xmax,ymax,{name}\n{rows}a00001.jpg,a,1,2,14,6,0\n"}


def open_images() -> Files:
    head = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction"
    rows = "".join(f"a00000,xclick,/m/1,1,0.1,0.5,0.2,0.6,0,0,{flag},0\n" for flag in FLAGS)
    rows += "a00001,xclick,/m/1,1,0.1,0.5,0.2,0.6,0,0,0,0\n"
    return images(2, "train/") | {
        "train-annotations-bbox.csv": f"{head}\n{rows}",
        "class-descriptions-boxable.csv": "/m/1,a\n/m/2,b\n",
    }


def hugging_face(name: str, flags: list[Any]) -> Files:
    objects = {"bbox": [[1, 2, 5, 6], [2, 1, 15, 8], [1, 2, 5, 7]], "category": [0, 0, 0], name: flags}
    rows = [{"file_name": "a00000.jpg", "objects": objects, "width": 16, "height": 8}]
    return images(1) | {"metadata.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows)}


SETS: dict[str, Callable[[], Files]] = {
    "coco": lambda: coco("iscrowd", [0, 1, None]),
    "coco, true": lambda: coco("iscrowd", [False, True, False]),
    "coco, text": lambda: coco("iscrowd", ["0", "1", "false"]),
    "coco, ignore": lambda: coco("ignore", FLAGS),
    "kitti": kitti,
    "visdrone, class": lambda: visdrone(["1,2,4,4,1,4,0,0", "1,2,4,4,1,0,0,0", "1,2,4,4,1,4,0,0"]),
    "visdrone, score": lambda: visdrone(["1,2,4,4,1,4,0,0", "1,2,4,4,0,4,0,0", "1,2,4,4,1,4,0,0"]),
    "widerface": widerface,
    "crowdhuman, mask": lambda: crowdhuman([{}, {"tag": "mask"}, {}]),
    "crowdhuman, ignore": lambda: crowdhuman([{"extra": {"ignore": n}} for n in FLAGS]),
    "mot": mot,
    "mots": mots,
    "bdd100k": lambda: bdd100k("crowd"),
    "datumaro": datumaro,
    "fiftyone": lambda: fiftyone("iscrowd"),
    "fiftyone, open images": lambda: fiftyone("IsGroupOf"),
    "openmmlab": openmmlab,
    "table": lambda: table("iscrowd"),
    "table, words": lambda: table("is_crowd"),
    "open images": open_images,
    "hugging face": lambda: hugging_face("iscrowd", FLAGS),
    "hugging face, bool": lambda: hugging_face("is_crowd", [False, True, False]),
}


@pytest.mark.parametrize("name", SETS)
def test_a_region_that_is_no_object_is_flagged(name: str, tmp_path: Path) -> None:
    root = fill(tmp_path / "set", SETS[name]())
    options = {"layout": "xyxy"} if name.startswith("hugging face") else {}
    convert(root, tmp_path / "x.lmdb", **options)
    assert verify(tmp_path / "x.lmdb", against=root).problems == ()
    columns = ("image", "boxes", "iscrowd")
    _, boxes, flags = PackedDataset(tmp_path / "x.lmdb", columns=columns, keep_crowds=True)[0]
    assert flags.tolist() == FLAGS
    assert len(boxes) == 3
    assert len(PackedDataset(tmp_path / "x.lmdb", columns=columns)[0][1]) == 2


PLAIN: dict[str, Callable[[], Files]] = {
    "coco": lambda: coco("iscrowd", [0, 0, 0]),
    "coco, without": lambda: coco("iscrowd", [None, None, None]),
    "crowdhuman": lambda: crowdhuman([{"extra": {"ignore": 0}}]),
    "visdrone": lambda: visdrone(["1,2,4,4,1,4,0,0"]),
}


@pytest.mark.parametrize("name", PLAIN)
def test_sets_without_such_regions_have_no_column(name: str, tmp_path: Path) -> None:
    with closing(open_source(fill(tmp_path / "set", PLAIN[name]()))) as source:
        assert "iscrowd" not in [column.name for column in source.survey().columns]


def test_flags_of_tables_that_mark_nothing_stay_what_they_were(tmp_path: Path) -> None:
    files = dict(table("iscrowd"))
    files["boxes.csv"] = str(files["boxes.csv"]).replace(",1\n", ",0\n")
    with closing(open_source(fill(tmp_path / "set", files))) as source:
        columns = {column.name: column for column in source.survey().columns}
    assert columns["iscrowd"].parallel is None
