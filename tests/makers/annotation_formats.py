"""Images with annotations in each format that packstore reads, tiny; and sets whose file names say all."""

from __future__ import annotations

import base64
import csv
import io
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.makers.annotated import Files, fill, jpeg, mask


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


def via_csv(samples: int) -> Files:
    """The same as VIA's export as CSV: a line a region, and one for an image without any."""
    head = "filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,region_attributes\n"
    document = json.loads(str(via(samples)["via_project.json"]))["_via_img_metadata"]
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    for each in document.values():
        regions = each["regions"]
        for number, region in enumerate(regions or [{"shape_attributes": {}, "region_attributes": {}}]):
            parts = map(json.dumps, (region["shape_attributes"], region["region_attributes"]))
            lines.writerow([each["filename"], each["size"], "{}", len(regions), number, *parts])
    return {**images(samples), "via_export_csv.csv": head + out.getvalue()}


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
    return sequence("MOT17-02", samples, "".join(lines))


def sequence(name: str, samples: int, truth: str) -> Files:
    """A sequence of the MOT challenges."""
    files: Files = {f"train/{name}/img1/{n + 1:06}.jpg": jpeg(n) for n in range(samples)}
    info = f"[Sequence]\nname={name}\nimDir=img1\n"
    return files | {f"train/{name}/gt/gt.txt": truth, f"train/{name}/seqinfo.ini": info}


DOG_RUNS = ":4400000f2"
"""COCO's string of a mask whose pixels fill the box 1, 2, 5, 6 of an image of 16 x 8: 10 pixels, 4 of it, 4, 4 …"""


def mots(samples: int) -> Files:
    lines = [f"{n + 1} {2000 + k} 2 8 16 {DOG_RUNS}\n" for n in range(samples) for k in range(n % 3)]
    return sequence("MOTS20-02", samples, "".join(lines))


def kitti_mots(samples: int) -> Files:
    """As KITTI has them: images, text and masks apart, a sequence each; more sequences than files that are probed."""
    files: Files = {}
    for sequence in range(min(20, samples)):
        own = range(sequence, samples, min(20, samples))
        files |= {f"training/image_02/{sequence:04}/{n:06}.png": jpeg(n) for n in own}
        files |= {f"instances/{sequence:04}/{n:06}.png": mask(n, mode="L") for n in own}
        files[f"instances_txt/{sequence:04}.txt"] = "".join(f"{n} 1001 1 8 16 {DOG_RUNS}\n" for n in own)
    return files


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


def mlt(samples: int) -> Files:
    lines = ["\ufeff2,0,4,3,2,6,0,3,Latin,a, b\n", "0,0,4,0,4,4,0,4,None,###\n"]
    files = {f"ImagesPart1/tr_img_{n:05}.jpg": jpeg(n) for n in range(samples)}
    return files | {f"train_gt_t13/tr_img_{n:05}.txt": "".join(lines[: 1 + n % 2]) for n in range(samples)}


def sroie(samples: int) -> Files:
    files: Files = {}
    for n in range(samples):
        files[f"train/img/X{n:03}.jpg"] = jpeg(n)
        files[f"train/box/X{n:03}.txt"] = "1,2,5,2,5,6,1,6,TOTAL, 1\n" * (1 + n % 2)
        files[f"train/entities/X{n:03}.txt"] = json.dumps({"company": "A", "total": str(n)})
    return files


def cord(samples: int) -> Files:
    quad = {"x1": 1, "y1": 2, "x2": 5, "y2": 2, "x3": 5, "y3": 6, "x4": 1, "y4": 6}
    line = {"words": [{"quad": quad, "text": "a"}], "category": "menu.nm"}
    notes = {f"train/json/receipt_{n:05}.json": json.dumps({"valid_line": [line] * (n % 3)}) for n in range(samples)}
    return notes | {f"train/image/receipt_{n:05}.png": jpeg(n) for n in range(samples)}


def textocr(samples: int) -> Files:
    names = [f"a{n:05}" for n in range(samples)]
    shown = {name: {"id": name, "set": "train", "file_name": f"train/{name}.jpg"} for name in names}
    words = {
        f"{name}_{k}": {"image_id": name, "bbox": [1, 2, 4, 4], "utf8_string": "w", "points": [1, 2, 5, 2, 5, 6, 1, 6]}
        for n, name in enumerate(names) for k in range(n % 3)
    }  # fmt: skip
    return images(samples, "train_images/") | {"TextOCR_0.1_train.json": json.dumps({"imgs": shown, "anns": words})}


def art(samples: int) -> Files:
    word = {"transcription": "w", "points": [[1, 2], [5, 2], [5, 6], [1, 6]], "illegibility": False}
    names = {f"a{n:05}": [word, {**word, "transcription": "###"}][: 1 + n % 2] for n in range(samples)}
    return images(samples, "train_images/") | {"train_labels.json": json.dumps(names)}


def line_boxes(samples: int) -> Files:
    lines = "".join(f"a{n:05}.jpg{' 1,2,5,6,2' * (n % 3)}\n" for n in range(samples))
    return images(samples, "train/") | {"train/_annotations.txt": lines, "train/_classes.txt": "cat\ncow\ndog\n"}


def openmmlab(samples: int) -> Files:
    word = {"bbox": [1, 2, 5, 6], "bbox_label": 1, "polygon": [1, 2, 5, 2, 5, 6, 1, 6], "text": "w", "ignore": False}
    listed = [{"img_path": f"a{n:05}.jpg", "instances": [word] * (n % 3)} for n in range(samples)]
    head = {"dataset_type": "TextDetDataset", "category": [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}]}
    return images(samples, "imgs/") | {"textdet_train.json": json.dumps({"metainfo": head, "data_list": listed})}


def wildreceipt(samples: int) -> Files:
    word = {"box": [1, 2, 5, 2, 5, 6, 1, 6], "text": "w", "label": 1}
    lines = [
        json.dumps({"file_name": f"there/a{n:05}.jpg", "height": 8, "width": 16, "annotations": [word] * (1 + n % 2)})
        for n in range(samples)
    ]
    return images(samples, "image_files/") | {"class_list.txt": "0 Ignore\n1 dog", "train.txt": "\n".join(lines)}


def imglab(samples: int) -> Files:
    dog = "<box top='2' left='1' width='4' height='4'><label>dog</label><part name='eye' x='3' y='1'/></box>"
    crowd = "<box top='0' left='0' width='4' height='3.5' ignore='1'><label>cat</label></box>"
    each = [
        f"<image file='pics\\a{n:05}.jpg' width='16' height='8'>{dog * (n % 3 > 0)}{crowd * (n % 3 > 1)}</image>"
        for n in range(samples)
    ]
    head = "<?xml version='1.0' encoding='ISO-8859-1'?>\n<?xml-stylesheet type='text/xsl' href='image.xsl'?>\n"
    text = f"{head}<dataset>\n<name>imglab dataset</name>\n<images>\n{''.join(each)}</images>\n</dataset>\n"
    return images(samples, "pics/") | {"faces.xml": text}


MAKERS: dict[str, Callable[[int], Files]] = {
    make.__name__: make
    for make in (
        labelme, cvat, via, label_studio, kitti, createml, datumaro, fiftyone, supervisely, vott, sa1b, dota, visdrone,
        widerface, bdd100k, crowdhuman, mot, mots, icdar, funsd, mlt, sroie, cord, textocr, art, line_boxes, openmmlab,
        wildreceipt, imglab,
    )
}  # fmt: skip


PATHS = {
    "market1501": ("bounding_box_train/{n:04}_c{c}s3_{n:06}_00.jpg", "bounding_box_test/-1_c{c}s1_{n:06}_01.jpg"),
    "dukemtmc": ("bounding_box_train/{n:04}_c{c}_f{n:07}.jpg", "bounding_box_test/{n:04}_c{c}_f{n:07}.jpg"),
    "mars": ("bbox_train/{n:04}/{n:04}C{c}T0001F001.jpg", "bbox_test/00-1/00-1C{c}T{n:04}F201.jpg"),
    "omniglot": (
        "images_background/Greek/character{c:02}/{n:04}_01.png",
        "images_evaluation/Oriya/character{c:02}/{n:04}_20.png",
    ),
}


def make_folder_set(kind: str, root: Path, samples: int) -> Path:
    train, test = PATHS[kind]
    return fill(root, {(train if n % 2 == 0 else test).format(n=n, c=1 + n % 3): jpeg(n) for n in range(samples)})
