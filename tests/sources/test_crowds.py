"""Crowds among objects, and parity: files of other tools are read as these tools read them."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from packstore import PackedDataset, coco_masks
from packstore.sources import ask_about_left, open_source
from tests.internals import Role
from tests.makers.annotated import coco_image, fill, jpeg
from tests.makers.annotation_formats import images
from tests.makers.parity import FORMATS, LABELS, read
from tests.makers.sources import look, prove

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
    prove(root, tmp_path / "x.lmdb", **options)
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
    assert "iscrowd" not in [*look(fill(tmp_path / "set", PLAIN[name]())).classes]


def test_flags_of_tables_that_mark_nothing_stay_what_they_were(tmp_path: Path) -> None:
    files = dict(table("iscrowd"))
    files["boxes.csv"] = str(files["boxes.csv"]).replace(",1\n", ",0\n")
    columns = {column.name: column for column in look(fill(tmp_path / "set", files)).columns}
    assert columns["iscrowd"].parallel is None


THEIR_WARNINGS = pytest.mark.filterwarnings("ignore")
CORPUS = Path(__file__).parents[1] / "corpus/parity"
EXPECTED: dict[str, Any] = json.loads((CORPUS / "expected.json").read_text())
HEIGHT, WIDTH = 24, 32


def ours(path: Path) -> dict[str, Any]:
    """Class and box of each object, and pixels of each class, by the stem of the image; as :func:`read` has them."""
    found = {}
    with closing(open_source(path)) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        assert survey.ledger.count(Role.LEFT) == 0 or path.name.startswith("voc_detection")  # its map of colours
        classes = {column.name: column.classes for column in survey.columns if column.classes}
        for entry in source.entries():
            values = dict(source.read(entry).values)  # type: ignore[union-attr]
            names = [classes["labels"][n] for n in values.get("labels") or ()]
            boxes = [
                [name, *np.round(box, 3).tolist()] for name, box in zip(names, values.get("boxes") or (), strict=True)
            ]
            found[Path(entry.key).stem] = {"boxes": sorted(boxes), "pixels": pixels_of(values, names, classes)}
    return found


def pixels_of(values: dict[str, Any], names: list[str], classes: dict[str, Any]) -> dict[str, int]:
    if values.get("panoptic_mask") is not None:
        image = np.asarray(PIL.Image.open(io.BytesIO(values["panoptic_mask"]))).astype(int) @ [1, 256, 65536]
        labels = [classes["segment_labels"][n] for n in values["segment_labels"]]
        return {name: int((image == n).sum()) for name, n in zip(labels, values["segment_ids"], strict=True)}
    if values.get("mask_labels") is not None:
        shown = {classes["mask_labels"][n]: int((values["mask"] == n).sum()) for n in values["mask_labels"]}
        return {name: count for name, count in shown.items() if name != LABELS[0]}
    runs = [(name, shape) for name, shape in zip(names, values.get("segments") or (), strict=False) if
            isinstance(shape, dict)]  # fmt: skip
    counts: Counter[str] = Counter()
    for name, segmentation in runs:
        counts[name] += int(coco_masks([segmentation], HEIGHT, WIDTH).sum())
    return dict(counts)


@pytest.mark.parametrize("name", FORMATS)
def test_what_datumaro_wrote_is_read_as_it_reads_it(name: str) -> None:
    expected = EXPECTED[name]
    found = ours(CORPUS / name)
    if name.startswith("mot"):  # Datumaro takes corners as from 0, MOTChallenge's own tools as from 1
        expected = {f"{int(key):06}": value for key, value in expected.items()}
        for value in found.values():
            value["boxes"] = [[label, *(n + 1 for n in box)] for label, *box in value["boxes"]]
    if name.startswith("voc"):  # Pascal VOC counts from 1, which Datumaro passes over
        for value in found.values():
            value["boxes"] = [[label, left + 1, top + 1, *rest] for label, left, top, *rest in value["boxes"]]
    if name.startswith("voc_segmentation"):
        found = {key: {**value, "boxes": []} for key, value in found.items()}  # which Datumaro does not read there
    assert found == expected
    assert any(value["boxes"] or value["pixels"] for value in expected.values())


@THEIR_WARNINGS
@pytest.mark.parametrize("name", FORMATS)
def test_datumaro_still_reads_them_so(name: str) -> None:
    pytest.importorskip("datumaro")
    assert read(CORPUS / name, FORMATS[name]) == EXPECTED[name]


@THEIR_WARNINGS
@pytest.mark.parametrize("name", ["coco_instances-polygons", "coco_instances-masks"])
def test_masks_of_coco_are_those_of_pycocotools(name: str) -> None:
    coco = pytest.importorskip("pycocotools.coco")
    for split in ("train", "val"):
        theirs = coco.COCO(str(CORPUS / name / f"annotations/instances_{split}.json"))
        with closing(open_source(CORPUS / name)) as source:
            for entry in source.entries(split):
                document = source.read(entry).values["json"]  # type: ignore[union-attr]
                shapes = [each["segmentation"] for each in document["annotations"]]
                masks = coco_masks(shapes, HEIGHT, WIDTH)
                expected = [theirs.annToMask(each) for each in theirs.imgToAnns[document["image"]["id"]]]
                assert np.array_equal(masks, np.stack(expected))


@THEIR_WARNINGS
@pytest.mark.parametrize("name", ["coco_instances-boxes", "voc_detection-boxes"])
def test_boxes_are_those_of_supervision(name: str) -> None:
    """It moves the corners of Pascal VOC to 0, too."""
    supervision = pytest.importorskip("supervision")
    place = CORPUS / name
    if name.startswith("coco"):
        found = supervision.DetectionDataset.from_coco(
            str(place / "images/train"), str(place / "annotations/instances_train.json")
        )
    else:
        found = supervision.DetectionDataset.from_pascal_voc(str(place / "JPEGImages"), str(place / "Annotations"))
    expected = {
        Path(path).stem: sorted(
            [found.classes[label], *np.round(box, 3).tolist()]
            for label, box in zip(found.annotations[path].class_id, found.annotations[path].xyxy, strict=True)
        )
        for path in found.image_paths
    }
    read_here = {key: value["boxes"] for key, value in ours(place).items() if key in expected}
    assert len(expected) >= 3
    assert read_here == expected
