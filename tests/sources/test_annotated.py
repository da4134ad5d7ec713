"""Formats of annotations: the contract of a source for each, what each keeps, and files of other tools."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from packstore import PackedDataset, convert, verify
from packstore.core.errors import AmbiguousSourceError, SampleError, SourceError
from packstore.core.registry import SOURCES
from packstore.sources import Entry, ask_about_left, open_source
from packstore.sources.annotation_formats.source import AnnotatedSource
from packstore.sources.ledger import Role
from packstore.testing import SourceSuite
from tests.makers.annotated import fill, jpeg, mask

Files = dict[str, str | bytes]
CORPUS = Path(__file__).parents[1] / "corpus/annotated"


def images(samples: int, folder: str = "", suffix: str = ".jpg") -> Files:
    """Images of 16 x 8 pixels called ``a00000``, ``a00001`` …"""
    return {f"{folder}a{n:05}{suffix}": jpeg(n) for n in range(samples)}


def labelme(samples: int) -> Files:
    shapes = [
        {"label": "dog", "points": [[1, 2], [5, 6]], "shape_type": "rectangle", "flags": {}, "group_id": 3},
        {"label": "cat", "points": [[0, 0], [4, 0], [4, 3.5]], "shape_type": "polygon"},
        {"label": "cat", "points": [[8, 4], [8, 6]], "shape_type": "circle"},
        {"label": "eye", "points": [[3, 1]], "shape_type": "point"},
    ]
    files = images(samples)
    for n in range(samples):
        if n % 5 != 4:
            head = {
                "version": "5.4.1",
                "flags": {"night": n % 2 == 1},
                "imagePath": f"a{n:05}.jpg",
                "imageData": "/9j/",
            }
            files[f"a{n:05}.json"] = json.dumps({**head, "shapes": shapes[: 1 + n % 4]})
    return files


def cvat(samples: int) -> Files:
    box = '<box label="dog" occluded="1" xtl="1" ytl="2" xbr="5" ybr="6"><attribute name="age">3</attribute></box>'
    turned = '<box label="dog" xtl="2" ytl="3" xbr="6" ybr="5" rotation="90"/>'
    rest = '<polygon label="cat" points="0,0;4,0;4,3.5"/><points label="eye" points="3,1;4,1"/>'
    runs = '<mask label="cat" rle="1,2,3" left="1" top="2" width="3" height="2"/>'
    each = "".join(
        f'<image id="{n}" name="a{n:05}.jpg" width="16" height="8">{[box, turned, rest, runs][n % 4]}</image>'
        for n in range(samples)
    )
    labels = "".join(f"<label><name>{name}</name></label>" for name in ("dog", "cat", "eye", "unused"))
    head = f"<version>1.1</version><meta><task><labels>{labels}</labels></task></meta>"
    return {**images(samples, "images/"), "annotations.xml": f"<annotations>{head}{each}</annotations>"}


def via(samples: int) -> Files:
    def region(label: str, **shape: Any) -> Any:
        return {"shape_attributes": shape, "region_attributes": {"class": label, "note": "x"}}

    regions = [
        region("dog", name="rect", x=1, y=2, width=4, height=4),
        region("cat", name="polygon", all_points_x=[0, 4, 4], all_points_y=[0, 0, 3.5]),
        region("cat", name="circle", cx=8, cy=4, r=2),
        region("eye", name="point", cx=3, cy=1),
    ]
    metadata = {
        f"a{n:05}.jpg9": {"filename": f"a{n:05}.jpg", "size": 9, "regions": regions[: n % 5], "file_attributes": {}}
        for n in range(samples)
    }
    project = {"_via_settings": {}, "_via_img_metadata": metadata, "_via_attributes": {}}
    return {**images(samples), "via_project.json": json.dumps(project)}


def label_studio(samples: int) -> Files:
    def result(kind: str, **value: Any) -> Any:
        return {"type": kind, "value": value, "original_width": 16, "original_height": 8, "from_name": "x"}

    results = [
        result("rectanglelabels", x=25, y=50, width=50, height=25, rotation=0, rectanglelabels=["dog"]),
        result("polygonlabels", points=[[0, 0], [25, 0], [25, 50]], polygonlabels=["cat"]),
        result("ellipselabels", x=50, y=50, radiusX=10, radiusY=25, rotation=0, ellipselabels=["cat"]),
        result("keypointlabels", x=50, y=50, width=1, keypointlabels=["eye"]),
    ]
    tasks = [
        {
            "id": n,
            "data": {"image": f"/data/upload/1/a{n:05}.jpg"},
            "annotations": [{"id": n, "was_cancelled": False, "result": results[: n % 5]}],
            "predictions": [],
        }
        for n in range(samples)
    ]
    return {**images(samples, "images/"), "project-1-at-2024-01-01-00-00-abcdef.json": json.dumps(tasks)}


def kitti(samples: int) -> Files:
    line = "Car 0.00 0 -1.58 1.00 2.00 5.00 6.00 1.65 1.67 3.64 -0.65 1.71 46.70 -1.59\n"
    other = "DontCare -1 -1 -10 0 0 4 3.5 -1 -1 -1 -1000 -1000 -1000 -10\n"
    files = images(samples - 1, "training/image_2/", ".png") | {"testing/image_2/a.png": jpeg(samples)}
    return files | {f"training/label_2/a{n:05}.txt": [line, line + other, ""][n % 3] for n in range(samples - 1)}


def createml(samples: int) -> Files:
    files: Files = {}
    for split, numbers in (("train", range(samples - 2)), ("valid", range(samples - 2, samples))):
        box = {"x": 3, "y": 4, "width": 4, "height": 4}
        listed = [
            {"image": f"a{n:05}.jpg", "annotations": [{"label": "dog", "coordinates": box}] * (n % 3)} for n in numbers
        ]
        files |= {f"{split}/a{n:05}.jpg": jpeg(n) for n in numbers}
        files[f"{split}/_annotations.createml.json"] = json.dumps(listed)
    return files


def datumaro(samples: int) -> Files:
    things = [
        {"id": 0, "type": "bbox", "label_id": 1, "bbox": [1, 2, 4, 4], "attributes": {"x": 1}, "group": 0},
        {"id": 1, "type": "polygon", "label_id": 0, "points": [0, 0, 4, 0, 4, 3.5]},
        {"id": 2, "type": "points", "label_id": 0, "points": [3, 1], "visibility": [2]},
        {"id": 3, "type": "mask", "label_id": 0, "bbox": [0, 0, 1, 2], "rle": {"size": [8, 16], "counts": "023m3"}},
    ]
    items = [
        {"id": f"a{n:05}", "annotations": things[: n % 5], "image": {"path": f"a{n:05}.jpg", "size": [8, 16]}}
        for n in range(samples)
    ]
    names = [{"name": name, "parent": "", "attributes": []} for name in ("dog", "cat")]
    document = {"info": {}, "categories": {"label": {"labels": names, "attributes": []}}, "items": items}
    return {**images(samples, "images/train/"), "annotations/train.json": json.dumps(document)}


def fiftyone(samples: int) -> Files:
    labels = {
        f"a{n:05}": [{"label": n % 2, "bounding_box": [0.25, 0.5, 0.5, 0.25], "confidence": 0.5}] * (n % 3) or None
        for n in range(samples)
    }
    document = {"classes": ["dog", "cat"], "labels": labels}
    return {**images(samples, "data/"), "labels.json": json.dumps(document)}


def supervisely(samples: int) -> Files:
    bitmap = base64.b64encode(zlib.compress(mask(1))).decode()
    things = [
        {"classTitle": "dog", "geometryType": "rectangle", "points": {"exterior": [[1, 2], [5, 6]], "interior": []}},
        {"classTitle": "cat", "geometryType": "polygon",
         "points": {"exterior": [[0, 0], [4, 0], [4, 3.5]], "interior": []}},
        {"classTitle": "cat", "geometryType": "bitmap", "bitmap": {"data": bitmap, "origin": [1, 2]}},
        {"classTitle": "eye", "geometryType": "point", "points": {"exterior": [[3, 1]], "interior": []}},
    ]  # fmt: skip
    meta = {"classes": [{"title": name, "shape": "any"} for name in ("eye", "dog", "cat")], "tags": []}
    files = {**images(samples, "set/img/"), "meta.json": json.dumps(meta)}
    for n in range(samples):
        document = {"size": {"height": 8, "width": 16}, "tags": [], "objects": things[: n % 5]}
        files[f"set/ann/a{n:05}.jpg.json"] = json.dumps(document)
    return files


def vott(samples: int) -> Files:
    box = {"left": 1, "top": 2, "width": 4, "height": 4}
    region = {"id": "r", "type": "RECTANGLE", "tags": ["dog"], "boundingBox": box, "points": []}
    assets = {
        f"{n}": {
            "asset": {"id": f"{n}", "name": f"a{n:05}.jpg", "path": "file:C:/x.jpg"},
            "regions": [region] * (n % 3),
        }
        for n in range(samples)
    }
    document = {"name": "x", "tags": [{"name": "cat"}, {"name": "dog"}], "assets": assets}
    return {**images(samples), "vott-json-export/x-export.json": json.dumps(document)}


def sa1b(samples: int) -> Files:
    thing = {"id": 4, "bbox": [1, 2, 4, 4], "segmentation": {"size": [8, 16], "counts": "023m3"}, "area": 2}
    files = images(samples)
    for n in range(samples):
        image = {"image_id": n, "file_name": f"a{n:05}.jpg", "width": 16, "height": 8}
        files[f"a{n:05}.json"] = json.dumps({"image": image, "annotations": [thing] * (n % 3)})
    return files


def dota(samples: int) -> Files:
    lines = ["imagesource:x\ngsd:0.1\n", "2 0 4 3 2 6 0 3 large-vehicle 1\n", "0 0 4 0 4 4 0 4 plane 0\n"]
    files = images(samples, "train/images/", ".png")
    return files | {f"train/labelTxt/a{n:05}.txt": "".join(lines[: 1 + n % 3]) for n in range(samples)}


def visdrone(samples: int) -> Files:
    lines = ["1,2,4,4,1,4,0,0\n", "0,0,4,3,0,0,0,0,\n"]
    files = images(samples, "VisDrone2019-DET-train/images/")
    notes = "VisDrone2019-DET-train/annotations"
    return files | {f"{notes}/a{n:05}.txt": "".join(lines[: n % 3]) for n in range(samples)}


def widerface(samples: int) -> Files:
    lines = [
        f"0--Parade/a{n:05}.jpg\n{n % 3}\n" + ("1 2 4 4 0 0 0 0 0 0 \n" * (n % 3) or "0 0 0 0 0 0 0 0 0 0 \n")
        for n in range(samples)
    ]
    files = images(samples, "WIDER_train/images/0--Parade/")
    return files | {"wider_face_split/wider_face_train_bbx_gt.txt": "".join(lines)}


def bdd100k(samples: int) -> Files:
    things = [
        {"id": "1", "category": "car", "box2d": {"x1": 1, "y1": 2, "x2": 5, "y2": 6}, "attributes": {"occluded": True}},
        {"id": "2", "category": "area", "poly2d": [{"vertices": [[0, 0], [4, 0], [4, 3.5]], "types": "LLL",
                                                    "closed": True}]},
        {"id": "3", "category": "lane", "poly2d": [{"vertices": [[0, 0], [4, 0]], "types": "LL", "closed": False}]},
    ]  # fmt: skip
    frames = [
        {"name": f"a{n:05}.jpg", "attributes": {"weather": "clear"}, "labels": things[: 1 + n % 3]}
        for n in range(samples)
    ]
    return {**images(samples, "images/100k/train/"), "labels/det_20/det_train.json": json.dumps(frames)}


def crowdhuman(samples: int) -> Files:
    box = {"tag": "person", "fbox": [1, 2, 4, 4], "vbox": [1, 2, 3, 3], "hbox": [1, 2, 1, 1], "extra": {"box_id": 0}}
    lines = [json.dumps({"ID": f"a{n:05}", "gtboxes": [box, {**box, "tag": "mask"}][: n % 3]}) for n in range(samples)]
    return {**images(samples, "Images/"), "annotation_train.odgt": "\n".join(lines) + "\n"}


def mot(samples: int) -> Files:
    lines = [f"{n + 1},{k + 3},2,3,4,4,1,{k + 1},0.5\n" for n in range(samples) for k in range(n % 3)]
    files = {f"train/MOT17-02/img1/{n + 1:06}.jpg": jpeg(n) for n in range(samples)}
    info = "[Sequence]\nname=MOT17-02\nimDir=img1\n"
    return files | {"train/MOT17-02/gt/gt.txt": "".join(lines), "train/MOT17-02/seqinfo.ini": info}


def icdar(samples: int) -> Files:
    lines = ["\ufeff2,0,4,3,2,6,0,3,a, b\n", "0,0,4,0,4,4,0,4,###\n"]
    files = {f"img_{n}.jpg": jpeg(n) for n in range(samples)}
    return files | {f"gt_img_{n}.txt": "".join(lines[: 1 + n % 2]) for n in range(samples)}


def funsd(samples: int) -> Files:
    words = [{"box": [1, 2, 3, 6], "text": "a"}]
    field = {"box": [1, 2, 5, 6], "text": "a b", "label": "question", "words": words, "linking": [[0, 1]], "id": 0}
    files = images(samples, "training_data/images/", ".png")
    notes = "training_data/annotations"
    return files | {f"{notes}/a{n:05}.json": json.dumps({"form": [field] * (n % 3)}) for n in range(samples)}


MAKERS: dict[str, Callable[[int], Files]] = {
    "labelme": labelme,
    "cvat": cvat,
    "via": via,
    "label_studio": label_studio,
    "kitti": kitti,
    "createml": createml,
    "datumaro": datumaro,
    "fiftyone": fiftyone,
    "supervisely": supervisely,
    "vott": vott,
    "sa1b": sa1b,
    "dota": dota,
    "visdrone": visdrone,
    "widerface": widerface,
    "bdd100k": bdd100k,
    "crowdhuman": crowdhuman,
    "mot": mot,
    "icdar": icdar,
    "funsd": funsd,
}
KINDS = list(MAKERS)


class AnnotatedSuite(SourceSuite):
    """The suite for a kind of :data:`MAKERS`."""

    undecodable_keys = False
    bytes_per_sample = 600
    many = 500
    damages = 12

    def make(self, folder: Path, samples: int) -> Path:
        return fill(folder, MAKERS[self.kind](samples))

    def change(self, path: Path) -> None:
        notes = (each for each in sorted(path.rglob("*")) if each.suffix in (".json", ".xml", ".txt", ".odgt"))
        file = next(each for each in notes if each.name != "meta.json")
        file.write_text(file.read_text() + "\n")

    def spoil(self, path: Path, entry: Entry) -> bool:
        (path / entry.key).rename(path.parent / "gone")
        (path / entry.key).symlink_to("nowhere")
        return True

    def enlarge(self, path: Path, entry: Entry) -> bool:
        with (path / entry.key).open("r+b") as file:
            file.truncate((64 << 20) + 100)
        return True


for _kind in KINDS:
    _name = f"Test{_kind.title().replace('_', '')}"
    globals()[_name] = type(_name, (AnnotatedSuite,), {"kind": _kind, "__module__": __name__})


def read_all(path: Path) -> dict[str, Any]:
    """The values of each sample by key, as lists."""
    with closing(open_source(path)) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        classes = {column.name: column.classes for column in survey.columns if column.classes}
        found = {}
        for entry in source.entries():
            values = dict(source.read(entry).values)
            for name, names in classes.items():
                value = values.get(name)
                if value is not None:
                    values[name] = [names[n] for n in value] if isinstance(value, list) else names[value]
            found[entry.key] = values
        return found


DOG, CAT, EYE = [1, 2, 5, 6], [0, 0, 4, 3.5], [3, 1]
TRIANGLE = [[0, 0, 4, 0, 4, 3.5]]
WHOLE: dict[str, tuple[str, list[Any], list[str], list[Any] | None]] = {
    "labelme": ("a00003.jpg", [DOG, CAT, [6, 2, 10, 6]], ["dog", "cat", "cat"], [None, TRIANGLE, None]),
    "via": ("a00004.jpg", [DOG, CAT, [6, 2, 10, 6]], ["dog", "cat", "cat"], [None, TRIANGLE, None]),
    "cvat": ("images/a00002.jpg", [CAT], ["cat"], [TRIANGLE]),
    "label_studio": (
        "images/a00004.jpg",
        [[4, 4, 12, 6], [0, 0, 4, 4], [6.4, 2, 9.6, 6]],
        ["dog", "cat", "cat"],
        [None, [[0, 0, 4, 0, 4, 4]], None],
    ),
    "kitti": ("training/image_2/a00001.png", [DOG, CAT], ["Car", "DontCare"], None),
    "createml": ("train/a00002.jpg", [DOG, DOG], ["dog", "dog"], None),
    "datumaro": (
        "images/train/a00004.jpg",
        [DOG, CAT, [0, 0, 1, 2]],
        ["cat", "dog", "dog"],
        [None, TRIANGLE, {"size": [8, 16], "counts": "023m3"}],
    ),
    "fiftyone": ("data/a00002.jpg", [[4, 4, 12, 6]] * 2, ["dog", "dog"], None),
    "supervisely": ("set/img/a00004.jpg", [DOG, CAT, [1, 2, 17, 10]], ["dog", "cat", "cat"], [None, TRIANGLE, None]),
    "vott": ("a00002.jpg", [DOG, DOG], ["dog", "dog"], None),
    "dota": (
        "train/images/a00002.png",
        [[0, 0, 4, 6], [0, 0, 4, 4]],
        ["large-vehicle", "plane"],
        [[[2, 0, 4, 3, 2, 6, 0, 3]], [[0, 0, 4, 0, 4, 4, 0, 4]]],
    ),
    "visdrone": (
        "VisDrone2019-DET-train/images/a00002.jpg",
        [DOG, [0, 0, 4, 3]],
        ["car", "ignored regions"],
        None,
    ),
    "widerface": ("WIDER_train/images/0--Parade/a00002.jpg", [DOG, DOG], [], None),
    "bdd100k": ("images/100k/train/a00002.jpg", [DOG, CAT], ["car", "area"], [None, TRIANGLE]),
    "crowdhuman": ("Images/a00002.jpg", [DOG, DOG], ["person", "mask"], None),
    "mot": ("train/MOT17-02/img1/000003.jpg", [DOG, DOG], ["pedestrian", "person on vehicle"], None),
    "icdar": ("img_1.jpg", [[0, 0, 4, 6], [0, 0, 4, 4]], [], [[[2, 0, 4, 3, 2, 6, 0, 3]], [[0, 0, 4, 0, 4, 4, 0, 4]]]),
    "funsd": ("training_data/images/a00002.png", [DOG, DOG], ["question", "question"], None),
    "sa1b": ("a00002.jpg", [DOG, DOG], [], [{"size": [8, 16], "counts": "023m3"}] * 2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept(kind: str, tmp_path: Path) -> None:
    found = read_all(fill(tmp_path, MAKERS[kind](8)))
    key, boxes, labels, segmentations = WHOLE[kind]
    values = found[key]
    assert [list(box) for box in values["boxes"]] == [pytest.approx(box) for box in boxes]
    assert values.get("labels", []) == labels
    assert values.get("segmentations") == segmentations
    assert values["json"]


def test_points_tags_and_turned_boxes_are_kept(tmp_path: Path) -> None:
    for kind in ("labelme", "via", "cvat", "datumaro", "supervisely", "label_studio"):
        found = read_all(fill(tmp_path / kind, MAKERS[kind](8)))
        values = next(values for values in found.values() if values.get("keypoints"))
        expected = [8, 4] if kind == "label_studio" else EYE
        assert list(values["keypoints"][0]) == expected
        assert values["keypoint_labels"][0] in ("eye", "dog")
    night = read_all(tmp_path / "labelme")
    assert [values["label"] if values.get("json") else None for values in night.values()][:5] == [
        None, "night", None, "night", None]  # fmt: skip
    assert "imageData" not in night["a00000.jpg"]["json"]
    turned = read_all(tmp_path / "cvat")["images/a00001.jpg"]
    assert turned["boxes"][0] == pytest.approx([3, 2, 5, 6])
    assert turned["segmentations"][0][0] == pytest.approx([5, 2, 5, 6, 3, 6, 3, 2])
    runs = read_all(tmp_path / "cvat")["images/a00003.jpg"]["segmentations"][0]
    assert runs == {"size": [8, 16], "counts": [18, 1, 7, 1, 101]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("samples", [6, 40, pytest.param(400, marks=pytest.mark.slow)])
def test_each_size_gives_the_same_answer(kind: str, samples: int, tmp_path: Path) -> None:
    """A strange file that sorts last changes nothing, and is in the ledger."""
    root = fill(tmp_path, {**MAKERS[kind](samples), "zzz.odd": "odd"})
    with closing(open_source(root)) as source:
        survey = source.survey()
        assert (source.kind, survey.records) == (kind, samples)
        assert list(survey.ledger.names(Role.LEFT)) == ["zzz.odd"]
        assert survey.ledger.total == sum(1 for file in root.rglob("*") if file.is_file())
        ask_about_left(source, survey)
        for entry in source.entries():
            source.read(entry)


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_of_it_has_all(kind: str, tmp_path: Path) -> None:
    root = fill(tmp_path / "set", MAKERS[kind](8))
    convert(root, tmp_path / "x.h5")
    assert verify(tmp_path / "x.h5", against=root).problems == ()
    with closing(open_source(root)) as source:
        splits = dict.fromkeys(entry.split for entry in source.entries())
    key, boxes, *_ = WHOLE[kind]
    by_key = {}
    for split in splits:
        found = PackedDataset(tmp_path / "x.h5", split or None, columns=("key", "boxes"))
        by_key |= {found[n][0]: found[n][1] for n in range(len(found))}
    assert by_key[key].tolist() == [pytest.approx(box) for box in boxes]


@pytest.mark.parametrize("kind", KINDS)
def test_other_annotations_beside_it_are_asked_about(kind: str, tmp_path: Path) -> None:
    files = MAKERS[kind](8)
    pictures = [name for name in files if name.endswith((".jpg", ".png"))]
    further: Files = {f"further/{Path(name).stem}.txt": "1 2 3" for name in pictures}
    root = fill(tmp_path, files | further)
    with pytest.raises(AmbiguousSourceError, match="further"), closing(open_source(root)) as source:
        ask_about_left(source, source.survey())


HOSTILE = (
    "[]",
    "{}",
    "null",
    "[[]]",
    '[{"a": 1}]',
    '{"a": ',
    "[" * 100_000,
    '{"shapes": [{"label": 1}]}',
    "\0",
    "<a/>",
)


def test_words_and_tracks_go_with_their_boxes(tmp_path: Path) -> None:
    found = {kind: read_all(fill(tmp_path / kind, MAKERS[kind](6))) for kind in ("icdar", "funsd", "mot")}
    assert found["icdar"]["img_1.jpg"]["texts"] == ["a, b", None]
    assert found["icdar"]["img_1.jpg"]["json"] == ["2,0,4,3,2,6,0,3,a, b", "0,0,4,0,4,4,0,4,###"]
    assert found["funsd"]["training_data/images/a00002.png"]["texts"] == ["a b", "a b"]
    assert found["mot"]["train/MOT17-02/img1/000003.jpg"]["track"] == [3, 4]
    assert found["mot"]["train/MOT17-02/img1/000001.jpg"]["boxes"] == []


def problem(root: Path, kind: str) -> str | None:
    """What is said of a source or of its samples that cannot be read; None if nothing is."""
    try:
        with closing(open_source(root, kind=kind)) as source:
            source.survey()
            for entry in source.entries():
                source.read(entry)
    except (SourceError, SampleError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_an_annotation_holds_only_our_errors_come(kind: str, tmp_path: Path) -> None:
    """But for lists of nothing, and files that are left since they are none of the format."""
    files = MAKERS[kind](6)
    notes = [name for name in files if not name.endswith((".jpg", ".png", ".ini"))]
    for number, text in enumerate(HOSTILE):
        root = fill(tmp_path / f"{number}", {**files, notes[-1]: text})
        assert problem(root, kind) or text in ("[]", "{}"), text


def corners(left: float, top: float, width: float, height: float) -> list[float]:
    return [left, top, left + width, top + height]


def read_independently(kind: str, root: Path) -> dict[str, list[tuple[str | None, list[float]]]]:
    """Class and box of the objects of each image, by the name of its file, as the format's own words say: by other
    code than packstore's."""
    found: dict[str, list[tuple[str | None, list[float]]]] = {}
    for file in sorted(root.rglob("*")):
        own: list[tuple[str | None, list[float]]] = []
        if kind == "kitti" and file.suffix == ".txt":
            words = [line.split() for line in file.read_text().splitlines()]
            found[f"{file.stem}.png"] = [(each[0], [*map(float, each[4:8])]) for each in words]
        elif kind == "dota" and file.suffix == ".txt":
            for each in (line.split() for line in file.read_text().splitlines()):
                xs, ys = [*map(float, each[0:8:2])], [*map(float, each[1:8:2])]
                own.append((each[8], [min(xs), min(ys), max(xs), max(ys)]))
            found[f"{file.stem}.jpg"] = own
        elif kind == "vott" and file.suffix == ".json":
            for asset in json.loads(file.read_text())["assets"].values():
                boxes = [(each["tags"], each["boundingBox"]) for each in asset["regions"]]
                found[asset["asset"]["name"]] = [
                    (tags[0] if tags else "(none)", corners(b["left"], b["top"], b["width"], b["height"]))
                    for tags, b in boxes
                ]
        elif kind == "createml" and file.suffix == ".json":
            for image in json.loads(file.read_text()):
                for each in image["annotations"]:
                    c = each["coordinates"]
                    box = corners(c["x"] - c["width"] / 2, c["y"] - c["height"] / 2, c["width"], c["height"])
                    found.setdefault(image["image"], []).append((each["label"], box))
        elif kind == "sa1b" and file.suffix == ".json":
            document = json.loads(file.read_text())
            boxes = [(None, corners(*each["bbox"])) for each in document["annotations"]]
            found[document["image"]["file_name"]] = boxes
        elif kind == "widerface" and file.suffix == ".txt":
            lines = file.read_text().split("\n")
            for number, line in enumerate(lines):
                if line.endswith(".jpg"):
                    faces = lines[number + 2 : number + 2 + int(lines[number + 1])]
                    own = [(None, corners(*map(float, face.split()[:4]))) for face in faces]
                    found[line.rpartition("/")[2]] = own
    return found


@pytest.mark.parametrize("kind", ["kitti", "dota", "vott", "createml", "sa1b", "widerface"])
def test_files_of_other_tools_are_read_as_others_read_them(kind: str) -> None:
    expected = read_independently(kind, CORPUS / kind)
    with closing(open_source(CORPUS / kind)) as source:
        assert source.kind == kind
        labels = next((c.classes for c in source.survey().columns if c.name == "labels"), None)
        seen = {}
        for entry in source.entries():
            values = source.read(entry).values
            names: list[str | None] = [labels[n] for n in values.get("labels") or ()] if labels else []
            boxes = values.get("boxes") or []
            pairs = zip(names or [None] * len(boxes), [pytest.approx([*box]) for box in boxes], strict=True)
            seen[entry.key.rpartition("/")[2]] = list(pairs)
    assert seen.keys() >= expected.keys()
    assert {name: seen[name] for name in expected} == expected
    assert sum(map(len, expected.values())) > 0


@pytest.mark.parametrize("name", ["cvat_project", "cvat_task", "cvat_video"])
def test_files_of_cvat_are_read_as_an_xml_library_reads_them(name: str) -> None:
    (file,) = (CORPUS / name).glob("*.xml")
    boxes = sorted(
        [float(each.get(side, "")) for side in ("xtl", "ytl", "xbr", "ybr")]
        for each in ElementTree.parse(file).iter("box")
        if each.get("outside") != "1"
    )
    polygons = sum(1 for _ in ElementTree.parse(file).iter("polygon"))
    with closing(open_source(CORPUS / name)) as source:
        samples = [source.read(entry).values for entry in source.entries()]
        found = [[*box] for values in samples for box in values["boxes"]]
        shapes = [each for values in samples for each in values.get("segmentations", ()) if each is not None]
        assert source.survey().ledger.count(Role.LEFT) == 0
    assert len(shapes) == polygons
    assert all(box in found for box in boxes)
    assert len(found) == len(boxes) + polygons


def test_files_of_datumaro_are_read_whole() -> None:
    with closing(open_source(CORPUS / "datumaro")) as source:
        samples = {entry.key: source.read(entry).values for entry in source.entries()}
        assert dict(source.survey().splits) == {"train": 2, "validation": 1, "test": 1}
    for split in ("train", "validation", "test"):
        document = json.loads((CORPUS / f"datumaro/annotations/{split}.json").read_text())
        for item in document["items"]:
            values = samples[f"images/{split}/{item['image']['path'].rpartition('/')[2]}"]
            assert values["json"] == item
            assert values["tags"] == [a["label_id"] for a in item["annotations"] if a["type"] == "label"]


def test_names_lead_nowhere_else(tmp_path: Path) -> None:
    for name in ("../a00000.jpg", "../../etc/passwd", "x/../../a.jpg"):
        listed = json.dumps([{"image": name, "annotations": []}])
        root = fill(tmp_path, {**images(3), "_annotations.createml.json": listed})
        with pytest.raises(SourceError, match="no path within the source"):
            open_source(root)


def guide_rows() -> dict[str, list[str]]:
    """The table of the guide: the cells of each kind."""
    text = (resources.files("packstore") / "guide/sources.md").read_text("utf-8")
    table = text.partition("## Annotation formats")[2].partition("\n- ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:3] == "| `"]
    return {row[0].strip("`"): row[1:] for row in rows if row[0] != "`--source`"}


def test_the_guide_lists_every_kind_with_its_columns_and_the_order_of_its_classes(tmp_path: Path) -> None:
    rows = guide_rows()
    assert list(rows) == KINDS
    for kind, (files, columns, order, _) in rows.items():
        root = fill(tmp_path / kind, MAKERS[kind](8))
        with closing(open_source(root)) as source:
            found = {column.name: column.classes for column in source.survey().columns}
            names = [name for name in found if not name.endswith("_valid")]
            assert isinstance(source, AnnotatedSource)
            assert names == re.findall(r"`(\w+)`", columns), kind
            assert files.startswith(source.title), kind
            classes = found.get("labels") or found.get("label")
            listed = type(source).class_order is not AnnotatedSource.class_order
            assert order == ("none" if classes is None else "listed" if listed else "sorted"), kind
            assert order != "sorted" or list(classes or ()) == sorted(classes or ())
            assert "`label`" not in columns or source.kind in ("labelme", "widerface")


def test_every_kind_is_registered_and_tested() -> None:
    own = {
        name
        for name in SOURCES.built_in
        if type(SOURCES[name].open).__module__ and "annotation_formats" in str(SOURCES[name].open)
    }
    assert own == set(KINDS)
