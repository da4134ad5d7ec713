"""Each layout gives one answer at any size, whatever its names sort like, as a folder and in archives."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packstore import AmbiguousSourceError
from packstore.sources import ask_about_left, open_source
from tests.internals import Role
from tests.makers.annotated import jpeg, mask, voc_xml
from tests.makers.images import encode

Files = dict[str, str | bytes]
JPEG, MASK = jpeg(1), mask(1)
DEPTH = encode(Image.fromarray(np.arange(128, dtype=np.uint16).reshape(8, 16) * 500), "PNG")
SIZES = [
    3,
    pytest.param(300, marks=pytest.mark.slow),
    pytest.param(3000, marks=pytest.mark.slow),
    pytest.param(30_000, marks=pytest.mark.soak),
]
WAYS = ["folder", "zip", "tar"]


def names(count: int, hashed: bool) -> list[str]:
    """Names in an order that has nothing to do with their numbers, or in that of their numbers."""
    return [hashlib.sha1(b"%d" % n).hexdigest() if hashed else f"img{n:06}" for n in range(count)]


def coco(folder: str, stems: list[str]) -> str:
    images = [{"id": n, "file_name": f"{stem}.jpg", "width": 8, "height": 8} for n, stem in enumerate(stems)]
    boxes = [
        {"id": n, "image_id": n, "category_id": 1, "bbox": [0, 0, 2, 2], "area": 4, "iscrowd": 0}
        for n in range(len(stems))
    ]
    return json.dumps({"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "cat"}]})


def panoptic(stems: list[str]) -> str:
    document = json.loads(coco("", stems))
    segments = [{"id": 1, "category_id": 1, "area": 4, "bbox": [0, 0, 2, 2], "iscrowd": 0}]
    entries = [{"image_id": n, "file_name": f"{s}.png", "segments_info": segments} for n, s in enumerate(stems)]
    return json.dumps(document | {"annotations": entries})


def images(folder: str, stems: list[str], suffix: str = ".jpg") -> Files:
    prefix = f"{folder}/" if folder else ""
    return {f"{prefix}{stem}{suffix}": JPEG for stem in stems}


def roboflow(stems: list[str], name: str = "_annotations.coco.json") -> Files:
    files: Files = {}
    for split, own in (("train", stems[::2]), ("valid", stems[1::2])):
        files |= images(split, own) | {f"{split}/{name}": coco(split, own)}
    return files


def yolo(stems: list[str]) -> Files:
    labels: Files = {f"train/labels/{stem}.txt": "0 0.5 0.5 0.1 0.1\n" for stem in stems}
    return images("train/images", stems) | labels | {"data.yaml": "train: /path/\nnames: [cat]\n"}


READ: dict[str, tuple[str, tuple[str, ...], Callable[[list[str]], Files]]] = {
    "Roboflow's COCO": ("coco", ("boxes", "labels", "json"), roboflow),
    "a table without a header": (
        "table",
        ("label",),
        lambda stems: images("", stems) | {"labels.csv": "".join(f"{s},cat\n" for s in stems)},
    ),
    "Roboflow's COCO, hidden": (
        "coco",
        ("boxes", "labels", "json"),
        lambda stems: roboflow(stems, ".annotations.coco.json"),
    ),
    "COCO": (
        "coco",
        ("boxes", "labels", "json"),
        lambda stems: images("train2017", stems) | {"annotations/custom_train.json": coco("", stems)},
    ),
    "COCO's panoptic masks": (
        "coco",
        ("segment_ids", "segment_labels", "panoptic_mask", "json"),
        lambda stems: (
            images("val2017", stems)
            | {f"annotations/panoptic_val2017/{stem}.png": MASK for stem in stems}
            | {"annotations/panoptic_val2017.json": panoptic(stems)}
        ),
    ),
    "COCO beside its images": (
        "coco",
        ("boxes", "labels", "json"),
        lambda stems: images("", stems) | {"middle.json": coco("", stems)},
    ),
    "VOC": (
        "voc",
        ("boxes", "labels", "difficult", "json"),
        lambda stems: (
            images("JPEGImages", stems) | {f"Annotations/{s}.xml": voc_xml(s, ("cat", (1, 1, 2, 2), 0)) for s in stems}
        ),
    ),
    "XML in annots": (
        "voc",
        ("boxes", "labels", "difficult", "json"),
        lambda stems: (
            images("images", stems) | {f"annots/{s}.xml": voc_xml(s, ("cat", (1, 1, 2, 2), 0)) for s in stems}
        ),
    ),
    "LabelMe": (
        "labelme",
        ("boxes", "json"),
        lambda stems: images("", stems) | {f"{s}.json": '{"shapes": []}' for s in stems},
    ),
    "XML beside": (
        "voc",
        ("boxes", "labels", "difficult", "json"),
        lambda stems: images("", stems) | {f"{s}.xml": voc_xml(s, ("cat", (1, 1, 2, 2), 0)) for s in stems},
    ),
    "YOLO": ("yolo", ("boxes", "labels"), yolo),
    "YOLO beside": (
        "yolo",
        ("boxes", "labels"),
        lambda stems: (
            images("", stems) | {f"{s}.txt": "0 0.5 0.5 0.1 0.1\n" for s in stems} | {"classes.txt": "cat\ndog\n"}
        ),
    ),
    "captions": (
        "captions",
        ("caption",),
        lambda stems: (
            images("", stems) | {"captions.csv": "file,caption\n" + "".join(f"{s}.jpg,a cat\n" for s in stems)}
        ),
    ),
    "captions as text": (
        "caption_files",
        ("caption",),
        lambda stems: images("", stems) | {f"{s}.txt": "a cat" for s in stems},
    ),
    "metadata": (
        "hf_imagefolder",
        ("text",),
        lambda stems: (
            images("train", stems)
            | {"train/metadata.csv": "file_name,text\n" + "".join(f"{s}.jpg,a cat\n" for s in stems)}
        ),
    ),
    "masks": (
        "companions",
        ("mask",),
        lambda stems: images("images", stems) | {f"masks/{stem}.png": MASK for stem in stems},
    ),
    "image and label": (
        "companions",
        ("mask",),
        lambda stems: (
            images("train/image", stems) | {f"train/label/{stem}.png": MASK for stem in stems} | images("test", ["t"])
        ),
    ),
    "masks beside": (
        "companions",
        ("mask",),
        lambda stems: images("", stems) | {f"{stem}_mask.png": MASK for stem in stems},
    ),
    "classes": ("imagefolder", ("label",), lambda stems: images("cat", stems) | images("dog", stems[::2])),
    "flat": ("flat", (), lambda stems: images("", stems)),
}
ASKED: dict[str, tuple[str, Callable[[list[str]], Files]]] = {
    "texts of numbers": (".txt file", lambda stems: images("", stems) | {f"{s}.txt": "cat 1 2 3 4" for s in stems}),
    "VIA": (
        "via_project.json",
        lambda stems: images("", stems) | {"via_project.json": json.dumps({f"{s}.jpg1": {} for s in stems})},
    ),
    "VoTT": (
        "vott-json-export.json",
        lambda stems: images("", stems) | {"vott-json-export.json": json.dumps({"assets": {s: {} for s in stems}})},
    ),
    "depth": (
        "depth",
        lambda stems: images("rgb", stems) | {f"depth/{stem}.png": DEPTH for stem in stems},
    ),
}  # fmt: skip


def make(root: Path, files: Files, way: str) -> Path:
    if way == "folder":
        root.mkdir()
        for folder in {name.rpartition("/")[0] for name in files}:
            (root / folder).mkdir(parents=True, exist_ok=True)
        kept: dict[str | bytes, Path] = {}
        for name, content in files.items():
            if content in kept and len(kept) < 4:
                os.link(kept[content], root / name)
                continue
            (root / name).write_bytes(content.encode() if isinstance(content, str) else content)
            kept[content] = root / name
        return root
    path = root.with_suffix(f".{way}")
    with zipfile.ZipFile(path, "w") if way == "zip" else tarfile.open(path, "w") as archive:
        for name, data in members(files):
            if isinstance(archive, zipfile.ZipFile):
                archive.writestr(name, data)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return path


def members(files: Files) -> Iterator[tuple[str, bytes]]:
    for name, content in files.items():
        yield name, content.encode() if isinstance(content, str) else content


def opened(path: Path) -> Any:
    with closing(open_source(path)) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        return source.kind, survey


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("name", READ)
def test_a_layout_is_read_at_any_size(name: str, count: int, hashed: bool, way: str, tmp_path: Path) -> None:
    kind, columns, layout = READ[name]
    files = layout(names(count, hashed))
    if way == "tar" and name == "captions as text":  # files of one key in a tar are a sample of WebDataset
        kind, columns = "webdataset", ("text",)
    found, survey = opened(make(tmp_path / "set", files, way))
    assert found == kind
    assert {column.name for column in survey.columns if "valid" not in column.name} == set(columns)
    assert survey.records == sum(name.endswith(".jpg") for name in files)
    assert survey.ledger.count(Role.LEFT) == 0
    assert survey.ledger.total == (1 if kind == "webdataset" else len(files))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("name", ASKED)
def test_a_layout_that_is_not_read_is_asked_about_at_any_size(
    name: str, count: int, hashed: bool, way: str, tmp_path: Path
) -> None:
    said, layout = ASKED[name]
    path = make(tmp_path / "set", layout(names(count, hashed)), way)
    if way == "tar" and name == "texts of numbers":  # a sample of WebDataset, with all of its text
        assert [column.name for column in opened(path)[1].columns] == ["text"]
        return
    with pytest.raises(AmbiguousSourceError) as caught:
        opened(path)
    assert said in str(caught.value)
