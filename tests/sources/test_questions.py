"""What a question about a source offers as answers: each of them packs, without a further question."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from packstore import AmbiguousSourceError
from packstore.core.errors import Answer
from packstore.sources import open_source
from tests.makers.all_layouts import LAYOUTS, Make, corpus, without
from tests.makers.annotated import CATS, coco, coco_image, fill, jpeg, mask, voc, yolo
from tests.makers.layouts import make_layout

IMAGES: dict[str, str | bytes] = {f"images/{n}.jpg": jpeg(n) for n in range(3)}


def labelled(prefix: str) -> Make:
    lines = "".join(f"{prefix}{n}.jpg,{'ab'[n % 2]}\n" for n in range(3))
    return lambda root: fill(root / "set", {**IMAGES, "labels.csv": f"file,label\n{lines}"})


def hdf5(**shapes: tuple[int, ...]) -> Make:
    def make(root: Path) -> Path:
        with h5py.File(root / "a.h5", "w") as file:
            for name, shape in shapes.items():
                file[name] = np.zeros(shape, np.uint8)
        return root / "a.h5"

    return make


def half_written(root: Path) -> Path:
    with h5py.File(root / "a.h5", "w") as file:
        file.create_dataset("images", (4, 8, 8, 3), "u1", chunks=(1, 8, 8, 3))[:2] = 1
    return root / "a.h5"


def configurations(root: Path) -> Path:
    each = "- config_name: {0}\n  data_files:\n  - split: train\n    path: {0}/train-*\n"
    shutil.copytree(corpus("parquet")(root), root / "hub/a")
    shutil.move(root / "parquet", root / "hub/b")
    return fill(root / "hub", {"README.md": f"---\nconfigs:\n{each.format('a/data')}{each.format('b/data')}---\n"})


def two_years(root: Path) -> Path:
    voc(root)
    shutil.copytree(root / "VOCdevkit/VOC2012", root / "VOCdevkit/VOC2007")
    return root


def both(root: Path) -> Path:
    return fill(coco(root), {"labels/train2017/1.txt": "0 0.5 0.5 0.1 0.1\n", "images/train2017/1.jpg": jpeg(0)})


def panoptic(root: Path) -> Path:
    said = {"images": [coco_image(n) for n in range(3)], "annotations": [], "categories": CATS}
    names = [f"{n:012}" for n in range(3)]
    return fill(root, {
        "annotations/panoptic_val2017.json": json.dumps(said), **{f"val2017/{name}.jpg": jpeg(1) for name in names},
        **{f"annotations/panoptic_val2017/{name}.png": mask(1) for name in names},
    })  # fmt: skip


ASKED: dict[str, Make] = {
    "labels.csv": labelled("images/"),
    "labels.csv that names files of another folder": labelled(""),
    "configurations": configurations,
    "splits with and without classes": lambda root: fill(root, {"train/a/0.jpg": jpeg(0), "test/1.jpg": jpeg(1)}),
    "splits beside others": lambda root: fill(root, {"train/a/0.jpg": jpeg(0), "x/1.jpg": jpeg(1)}),
    "axes": hdf5(images=(4, 3, 3, 3)),
    "arrays of images": hdf5(images_left=(4, 8, 8, 3), images_right=(4, 8, 8, 3)),
    "arrays of labels": hdf5(images=(4, 8, 8, 3), fine_labels=(4,), coarse_labels=(4,)),
    "images that were never written": half_written,
    "years of Pascal VOC": two_years,
    "COCO and YOLO": both,
    "panoptic masks alone": panoptic,
    "two data sets": lambda root: [coco(root / "a"), yolo(root / "b"), root][-1],
    "ILSVRC's images for validation": lambda root: without(
        lambda r: make_layout("ilsvrc", r), "ILSVRC2012_devkit_t12.tar.gz"
    )(root) / "ILSVRC2012_img_val.tar",
    "a missing shard": without(
        corpus("tfrecord"), "slim-train-00001-of-00002", "plain.tfrec", "detection.tfrecord.zlib"
    ),
    **{name: make for name, (kind, make) in LAYOUTS.items() if kind is None},
}  # fmt: skip
UNANSWERED = {"STL-10 without labels", "downsampled ImageNet without a batch"}
"""A file has to be fetched first."""


def opened(answer: Answer, path: Path) -> tuple[Path, dict[str, Any], str | None]:
    """What an answer makes of the command line: source, keywords of :func:`open_source`, split."""
    words = dict(zip(answer.options[::2], answer.options[1::2], strict=True))
    given: dict[str, Any] = {name.removeprefix("--").replace("-", "_"): value for name, value in words.items()}
    if "ignore" in given:
        given["ignore"] = answer.options[1::2]
    if "source" in given:
        given["kind"] = given.pop("source")
    if given.pop("on_error", "raise") == "skip":
        given["skip_bad"] = True
    split = given.pop("split", None)
    return answer.source or path, given, split


@pytest.mark.parametrize("name", ASKED)
def test_each_answer_packs(name: str, tmp_path: Path) -> None:
    path = ASKED[name](tmp_path)
    with pytest.raises(AmbiguousSourceError) as caught, closing(open_source(path)) as source:
        source.survey()
    assert caught.value.source == path
    assert caught.value.answers or name in UNANSWERED
    for answer in caught.value.answers:
        place, given, split = opened(answer, path)
        with closing(open_source(place, **given)) as source:
            assert source.survey(split).records
