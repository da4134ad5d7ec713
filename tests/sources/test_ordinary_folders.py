"""What people keep beside images raises no question; folders whose names are no classes, and images of which some are
said of others, do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from packstore import AmbiguousSourceError
from packstore.sources import open_source
from tests.internals import Answer, Role
from tests.makers.annotated import fill, jpeg, mask

CATS = {f"{name}/{n:04}.jpg": "" for name in ("cat", "dog") for n in range(30)}
PHOTOS = {f"IMG_{n:04}.jpg": "" for n in range(30)}
LOG = "".join(f"epoch {n} loss 0.{n} saved epoch_{n}.pth\n" for n in range(40))
README = "# A set\n![a cat](cat/0001.jpg) ![a dog](dog/0002.jpg) ![another](cat/0003.jpg) IMG_0001 IMG_0002 IMG_0003\n"

ORDINARY: dict[str, dict[str, str]] = {
    "nothing else": {},
    "a readme with pictures": {"README.md": README},
    "a readme as text": {"readme.txt": README},
    "a readme of Roboflow": {"README.dataset.txt": README, "README.roboflow.txt": README},
    "licence": {"LICENSE": "MIT", "LICENCE.txt": "IMG_0001 IMG_0002 IMG_0003", "COPYING": "x"},
    "citation": {"CITATION.cff": "a: b", "AUTHORS.txt": "A", "changelog.txt": "0001 0002 0003"},
    "a configuration": {"config.json": json.dumps({"lr": 0.1, "size": 224}), "config.yaml": "lr: 0.1"},
    "parameters": {"hparams.yaml": "a: 1", "args.json": "{}", "settings.ini": "[a]"},
    "a log": {"train.log": LOG, "log.txt": LOG, "stdout.txt": LOG},
    "metrics": {"metrics.csv": "epoch,loss\n" + "".join(f"{n},0.{n}\n" for n in range(30)), "results.json": "[1, 2]"},
    "checkpoints": {f"epoch_{n}.pth": "" for n in range(5)} | {"best.pt": "", "model.ckpt": "", "model.onnx": ""},
    "checkpoints beside samples": {f"epoch_{n}.{s}": "" for n in range(5) for s in ("png", "pth")},
    "scripts": {"train.py": README, "prepare.sh": README, "explore.ipynb": README, "utils.m": README},
    "requirements": {
        "requirements.txt": "torch\nnumpy\n",
        "environment.yml": "name: x",
        "setup.py": "",
        "Makefile": "",
    },
    "packages": {"package.json": "{}", "package-lock.json": "{}", "tsconfig.json": "{}"},
    "macOS": {".DS_Store": "x", "._IMG_0001.jpg": "x", "__MACOSX/._a.jpg": "x"},
    "Windows": {"Thumbs.db": "x", "desktop.ini": "x", "cat/Thumbs.db": "x"},
    "git": {".git/config": "x", ".git/index": README, ".gitignore": "*.pth", ".gitattributes": "*.jpg"},
    "an editor": {".vscode/settings.json": "{}", ".idea/x.xml": README, "cat/a.txt~": "x", "notes.bak": "x"},
    "TensorBoard": {"runs/events.out.tfevents.1": "x", "events.out.tfevents.2": "x"},
    "archives": {"images.zip": "x", "old.tar.gz": "x", "images.zip.md5": "0001 0002 0003"},
    "checksums": {"checksums.md5": README, "SHA256SUMS": README, "files.sha256": README},
    "copies": {f"IMG_{n:04} (1).jpg": "" for n in range(30)} | {f"IMG_{n:04} - copy.jpg": "" for n in range(30)},
    "frames": {f"x_{n}.jpg": "" for n in range(1, 11)} | {f"y_{n}.jpg": "" for n in range(1, 11)},
    "thumbnails": {f"IMG_{n:04}_thumb.jpg": "" for n in range(30)},
    "sizes": {f"IMG_{n:04}_640x480.jpg": "" for n in range(30)},
    "films": {f"IMG_{n:04}.mov": "" for n in range(30)},
    "sidecars of a raw converter": {f"IMG_{n:04}.xmp": "" for n in range(30)},
    "a web page": {"index.html": README, "style.css": "a{}", "script.js": README, "cat/index.html": README},
    "papers": {"paper.pdf": "x", "slides.pptx": "x", "notes.docx": "x"},
    "a list of classes": {"classes.txt": "cat\ndog\n", "class_names.txt": "cat\ndog\n"},
    "a few words": {"notes.txt": "to do: more of these\n", "todo.md": "- x"},
}
CLASSES: dict[str, dict[str, str]] = {
    "classes that count alike": {f"{name}/{n:04}.jpg": "" for name in ("a", "b", "masks") for n in range(30)},
    "masks or none": {f"{name}/{n}.jpg": "" for name in ("mask", "no_mask") for n in range(30)},
    "with and without": {f"{name}/{n}{name[:3]}.jpg": "" for name in ("with_mask", "without_mask") for n in range(9)},
    "Caltech-101": {
        f"101_ObjectCategories/{name}/image_{n:04}.jpg": ""
        for name in ("accordion", "BACKGROUND_Google")
        for n in range(9)
    },
    "numbers": {f"{digit}/{n}.png": "" for digit in range(10) for n in range(3)},
    "films by class": {
        f"{name}/v_{name}_{v}/{n}.jpg": "" for name in ("Dive", "Golf") for v in range(3) for n in range(9)
    },
    "hands": {f"{name}/{n}{name}.jpg": "" for name in ("left", "right") for n in range(30)},
    "sittings of a class": {
        f"{place}/{n}.jpg": "" for place in ("open", "fist", "left-hand/1", "left-hand/2") for n in range(9)
    },
    "years of the only other class": {
        f"{place}/{n}.jpg": "" for place in ("oak", "elm/2019", "elm/2020") for n in "12"
    },
    "unlabelled splits": {f"{split}/images/{split}{n}.jpg": "" for split in ("train", "val") for n in range(9)},
}


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("base", ["classes", "flat"])
def test_ordinary_folders_raise_no_question(base: str, name: str, tmp_path: Path) -> None:
    files = {**(CATS if base == "classes" else PHOTOS), **ORDINARY[name]}
    if base == "classes" and not any("/" in file for file in ORDINARY[name]):
        files |= {f"cat/{file}": text for file, text in ORDINARY[name].items()}
    source = open_source(fill(tmp_path, files))
    assert source.kind == ("flat" if base == "flat" else "imagefolder")
    assert source.survey().ledger.total == len(files)


@pytest.mark.parametrize("name", CLASSES)
def test_folders_that_may_be_classes_raise_no_question(name: str, tmp_path: Path) -> None:
    source = open_source(fill(tmp_path, CLASSES[name]) / ("101_ObjectCategories" if name == "Caltech-101" else ""))
    assert source.kind == "imagefolder"
    assert source.survey().ledger.count(Role.LEFT) == 0


def numbered(
    folder: str, count: int = 24, end: str = ".jpg", start: str = "", content: str | bytes = ""
) -> dict[str, str | bytes]:
    return {f"{folder}/{start}{n:05}{end}": content for n in range(count)}


NO_CLASSES: dict[str, tuple[dict[str, str], str]] = {
    "Market-1501": (
        {
            **numbered("bounding_box_train", start="0002_c1s1_"),
            **numbered("bounding_box_test", start="0003_c1s1_"),
            **numbered("query", start="0004_c1s1_"),
            **numbered("gt_bbox", start="0005_"),
            **numbered("gt_query", 3, ".mat"),
            "readme.txt": "",
        },
        "gt_query",
    ),
    "MARS": (numbered("bbox_train/0001") | numbered("bbox_test/0002", start="2"), "not those of classes"),
    "MOTS": ({**numbered("train/images/0002"), **numbered("train/instances/0002", end=".png")}, "instances"),
    "KITTI segmentation": (
        {
            **numbered("training/image_2", end="_10.png"),
            **numbered("training/instance", end="_10.png"),
            **numbered("training/semantic", end="_10.png"),
            **numbered("testing/image_2", end="_11.png"),
        },
        "training/instance",
    ),
    "xView2": (
        {
            **numbered("train/images", end="_pre_disaster.png"),
            **numbered("train/images", end="_post_disaster.png"),
            **numbered("train/targets", end="_pre_disaster_target.png"),
            **numbered("train/labels", end="_pre_disaster.json"),
        },
        "train/labels",
    ),
    "OSCD": (
        {
            f"images/{city}/{time}/B{n:02}.tif": ""
            for city in ("paris", "rome")
            for time in ("imgs_1", "imgs_2")
            for n in range(9)
        },
        "imgs_1",
    ),
    "ICDAR": (
        {
            **numbered("ch4_training_images", start="img_"),
            **numbered("ch4_training_gt", end=".txt", start="gt_img_"),
            **numbered("ch4_test_images", start="img_"),
        },
        "ch4_training_gt",
    ),
    "CHASEDB1": (
        {f"Image_{n:02}{end}": "" for n in range(28) for end in (".jpg", "_1stHO.png", "_2ndHO.png")},
        "_1stHO",
    ),
    "two of each": ({f"{n:03}_{end}.jpg": "" for n in range(12) for end in ("sat", "mask")}, "_mask"),
    "cameras": ({f"{n:03}_{end}.jpg": "" for n in range(12) for end in ("front", "back")}, "_front"),
    "a set and examples of it": (
        {
            **{f"Dataset/{digit}/IMG_{digit}{n}.jpg": "" for digit in range(10) for n in range(9)},
            **{f"Examples/example_{n}.jpg": "" for n in range(9)},
        },
        "folders of such folders (Dataset)",
    ),
    "domains": (
        {f"{base}/{name}/{base}{n}.jpg": "" for base in ("art", "real") for name in ("cat", "dog") for n in "12"},
        "same folders of images",
    ),
    "a lone folder images": (numbered("images"), "images"),
    "an unlabelled split and its masks": (
        {**numbered("train", content=jpeg(1)), **numbered("train_masks", end=".png", content=mask(1))}, "",
    ),
}  # fmt: skip


READ = {
    "an unlabelled split and its masks": "companions", "a lone folder images": "flat",
    "KITTI segmentation": "published",
}  # fmt: skip


@pytest.mark.parametrize("name", NO_CLASSES)
def test_folders_that_are_no_classes_are_a_question(name: str, tmp_path: Path) -> None:
    files, named = NO_CLASSES[name]
    root = fill(tmp_path / "set", files)
    if name in READ:
        source = open_source(root)
        assert source.kind == READ[name]
        assert source.survey().ledger.count(Role.LEFT) == 0
        return
    with pytest.raises(AmbiguousSourceError, match=re.escape(named)) as caught:
        open_source(root)
    assert "emove" not in str(caught.value)
    assert caught.value.answers
    for answer in caught.value.answers:
        options = dict(zip(answer.options[::2], answer.options[1::2], strict=True))
        if options.keys() <= {"--source"}:
            with_it = open_source(answer.source or root, kind=options.get("--source"))
            assert with_it.survey().ledger.total


def test_no_answer_is_lost(tmp_path: Path) -> None:
    root = fill(tmp_path / "set", numbered("depth"))
    with pytest.raises(AmbiguousSourceError) as caught:
        open_source(root)
    assert Answer(source=root / "depth") in caught.value.answers
