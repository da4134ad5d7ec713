"""What lies beside images and would be lost with them packed alone is found; what only looks so is not."""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from packstore import AmbiguousSourceError, convert, verify
from packstore.sources import ask_about_left, open_source
from tests.internals import FolderTree, find_all_annotations
from tests.makers.annotated import fill, jpeg, mask, voc_xml
from tests.makers.images import encode, picture

Files = dict[str, str | bytes]


def phrases(tree: FolderTree) -> list[str]:
    """A phrase for each suspected annotation of the images of a tree."""
    return [each.phrase for each in find_all_annotations(tree)]


LAYOUTS: dict[str, tuple[Mapping[str, str | bytes], str]] = {
    "hugging face": (
        {"train/metadata.csv": "file_name,label\na.jpg,cat\nb.jpg,dog\n", "train/a.jpg": "", "train/b.jpg": ""},
        "metadata.csv",
    ),
    "jsonl": ({"metadata.jsonl": "", "a.jpg": ""}, "metadata.jsonl"),
    "maps": ({"images/a.png": "", "images/b.png": "", "geojson/Buildings_a.geojson": "{}"}, "Buildings_a.geojson"),
    "patches": (
        {f"{place}/{place}_{name}": "" for place in ("one", "two", "six") for name in ("B.png", "C.png", "of.json")},
        ".json files in 3 of 3 folders of images",
    ),
    "as many texts as images": (
        {f"images/{n}.jpg": "" for n in range(20)} | {f"texts/{n + 100:x}_t.txt": "" for n in range(20)},
        "a .txt file for each image in texts",
    ),
    "coco": (
        {
            "train2017/000000000009.jpg": "",
            "train2017/000000000025.jpg": "",
            "annotations/instances_train2017.json": '{"images": [{"id": 9, "file_name": "000000000009.jpg"}, '
            '{"id": 25, "file_name": "000000000025.jpg"}], "annotations": []}',
        },
        "instances_train2017.json (it names the images)",
    ),
    "yolo": (
        {
            "images/train/a.jpg": "",
            "images/train/b.jpg": "",
            "labels/train/a.txt": "0 .5 .5 .1 .1",
            "labels/train/b.txt": "",
            "data.yaml": "names: [x]",
        },
        "a .txt file for each image in labels/train",
    ),
    "voc": (
        {
            "JPEGImages/2007_1.jpg": "",
            "JPEGImages/2007_2.jpg": "",
            "Annotations/2007_1.xml": "<annotation/>",
            "Annotations/2007_2.xml": "<annotation/>",
            "ImageSets/Main/train.txt": "2007_1\n2007_2\n",
        },
        "a .xml file for each image in Annotations",
    ),
    "segmentation": (
        {f"images/{name}.jpg": jpeg(1) for name in "ab"} | {f"masks/{name}.png": mask(1) for name in "ab"},
        "masks/a.png goes with images/a.jpg",
    ),
    "segmentation in splits": (
        {"train/img/a.jpg": jpeg(1), "train/gt/a.png": mask(1), "val/img/b.jpg": jpeg(2), "val/gt/b.png": mask(2)},
        "train/gt/a.png goes with train/img/a.jpg",
    ),
    "cub": (
        {
            "images/001.Albatross/Albatross_1.jpg": "",
            "images/001.Albatross/Albatross_2.jpg": "",
            "images/002.Auklet/Auklet_1.jpg": "",
            "images.txt": "1 001.Albatross/Albatross_1.jpg\n2 001.Albatross/Albatross_2.jpg\n"
            "3 002.Auklet/Auklet_1.jpg\n",
            "image_class_labels.txt": "1 1\n2 1\n3 2\n",
        },
        "images.txt (it names the images)",
    ),
    "flowers": (
        {"jpg/image_1.jpg": "", "jpg/image_2.jpg": "", "imagelabels.mat": "", "setid.mat": ""},
        "imagelabels.mat",
    ),
    "food": (
        {
            "images/pie/1005649.jpg": "",
            "images/pie/1011328.jpg": "",
            "images/ribs/1000000.jpg": "",
            "meta/train.txt": "pie/1005649\nribs/1000000\npie/1011328\n",
            "meta/classes.txt": "pie\nribs\n",
        },
        "meta/train.txt (it names the images)",
    ),
    "tiny imagenet": (
        {
            "train/n01/images/n01_0.JPEG": "",
            "train/n01/n01_boxes.txt": "n01_0.JPEG\t0\t0\t62\t62\n",
            "val/images/val_0.JPEG": "",
            "val/images/val_1.JPEG": "",
            "val/val_annotations.txt": "val_0.JPEG\tn01\t0\nval_1.JPEG\tn01\t0\n",
        },
        "val/val_annotations.txt (it names the images)",
    ),
    "two cameras": (
        {
            f"{split}/{side}/{number}.png": encode(picture("RGB", 40, 30 + shift, number), "PNG")
            for split in ("train", "val")
            for shift, side in enumerate(("Left", "right"))
            for number in range(3)
        },
        "train/right/0.png goes with train/Left/0.png",
    ),
    "coco in full": (
        {
            **{f"train2017/{number:012}.jpg": "" for number in range(9)},
            **{f"val2017/{number:012}.jpg": "" for number in range(9, 12)},
            "annotations/instances_train2017.json": '{"images": [{"id": 1, "file_name": "000000000001.jpg"}], '
            '"annotations": []}',
        },
        "annotations/instances_train2017.json",
    ),
    "cityscapes": (
        {
            f"{kind}/train/aachen/aachen_{number}_{kind}{tail}.png": content
            for kind, tail, content in (("leftImg8bit", "", jpeg(1)), ("gtFine", "_labelIds", mask(1)))
            for number in range(3)
        },
        "_gtFine_labelIds.png goes with leftImg8bit/",
    ),
    "masks in the same folder": (
        {f"{number}.jpg": jpeg(1) for number in range(4)} | {f"{number}_mask.png": mask(1) for number in range(4)},
        "0_mask.png goes with 0.jpg",
    ),
    "texts beside": ({"a.jpg": "", "a.txt": "{cat}", "b.jpg": "", "b.txt": "{dog}"}, "a .txt file for each image"),
}

READ = {
    "hugging face": "hf_imagefolder",
    "voc": "voc",
    "coco": "coco",
    "coco in full": "coco",
    "yolo": "yolo",
    "segmentation": "companions",
    "segmentation in splits": "companions",
    "cityscapes": "published",
    "masks in the same folder": "companions",
}
"""Layouts that a kind reads with all that annotates them."""

INNOCENT: dict[str, dict[str, str]] = {
    "classes that count from 1": {f"{name}/{i}.jpg": "" for name in ("cat", "dog", "cow") for i in range(9)},
    "two classes": {f"{name}/{i}.jpg": "" for name in ("ants", "bees") for i in range(9)},
    "a list of classes": {"cat/1.jpg": "", "cat/2.jpg": "", "cat/3.jpg": "", "classes.txt": "cat\ndog\n"},
    "a readme": {"cat/a.jpg": "", "cat/b.jpg": "", "README.md": "a b", "readme.txt": "a b", "LICENSE.txt": "a"},
    "a script": {"cat/a.jpg": "", "make.py": "a", "cat/notes.md": "a"},
    "hidden": {"cat/a.jpg": "", ".labels.csv": "a,1", ".git/config.txt": "a"},
    "masks as a class": {"masks/1.jpg": "", "faces/2.jpg": "", "masks/3.jpg": "", "faces/4.jpg": ""},
    "names that end like masks": {"cat/red_label.jpg": "", "cat/blue_label.jpg": "", "cat/plain.jpg": ""},
    "a table of numbers": {"cat/1.jpg": "", "dog/2.jpg": "", "dog/3.jpg": "", "losses.csv": "1,0.5\n"},
    "left and right": {"left/1.jpg": "", "left/2.jpg": "", "right/3.jpg": "", "right/4.jpg": ""},
    "nothing": {},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_annotations_are_found(name: str, tmp_path: Path) -> None:
    files, expected = LAYOUTS[name]
    found = phrases(FolderTree(fill(tmp_path, files)))
    assert any(expected in phrase for phrase in found), found


@pytest.mark.parametrize("name", INNOCENT)
def test_what_is_none_is_not_found(name: str, tmp_path: Path) -> None:
    assert phrases(FolderTree(fill(tmp_path, INNOCENT[name]))) == []


def test_the_look_is_bounded(tmp_path: Path) -> None:
    """What lies near the top is found, however many folders there are."""
    for number in range(400):
        (tmp_path / f"{number:03}" / "deep").mkdir(parents=True)
        (tmp_path / f"{number:03}" / "deep" / f"x{number}.jpg").touch()
    (tmp_path / "zzz.mat").touch()
    assert phrases(FolderTree(tmp_path)) == ["zzz.mat"]


def test_odd_names_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    Path(str(tmp_path), "cat", "a\udcff.jpg").touch()
    Path(str(tmp_path), "b\udcff\n.csv").write_bytes(b"a\xff.jpg")
    (tmp_path / "loop").symlink_to(tmp_path)
    (found,) = phrases(FolderTree(tmp_path))
    assert "\n" not in found
    assert found.isprintable()


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    fill(tmp_path, {"images/a.jpg": "", "annotations.json": pointer, "train.json": pointer, "README.txt": pointer})
    found = phrases(FolderTree(tmp_path))
    assert [phrase.partition(" (it is a pointer of Git LFS")[0] for phrase in found] == [
        "annotations.json",
        "train.json",
    ]
    assert all("git lfs pull" in phrase for phrase in found)


def test_a_pipe_beside_images_is_not_waited_for(tmp_path: Path) -> None:
    fill(tmp_path, {"cat/a.jpg": "", "cat/b.jpg": ""})
    os.mkfifo(tmp_path / "labels of cats.csv")
    assert phrases(FolderTree(tmp_path)) == []


@pytest.mark.slow
def test_real_folders(demo_folder: Path, shared_data: Path) -> None:
    assert phrases(FolderTree(demo_folder)) == []
    assert phrases(FolderTree(shared_data / "imagenet-600")) == []


@pytest.mark.parametrize("name", READ)
def test_what_a_kind_reads_is_no_question(name: str, tmp_path: Path) -> None:
    with closing(open_source(fill(tmp_path, LAYOUTS[name][0]))) as source:
        assert source.kind == READ[name]


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in READ])
def test_a_folder_with_annotations_is_a_question(name: str, tmp_path: Path) -> None:
    """Exit code 2 (a usage error), what was seen, and what packs the images alone: that does."""
    files, expected = LAYOUTS[name]
    root = fill(tmp_path, files)
    with pytest.raises(AmbiguousSourceError) as caught:
        open_source(root)
    message = str(caught.value)
    assert expected.removesuffix(" (it names the images)") in message or "more" in message
    reading = ("--ignore", "--sidecar", "--pair", "--masks", "--splits")
    found = [answer for answer in caught.value.answers if not answer.options or answer.options[0] not in reading]
    assert re.search("would be packed without|looks like|seem to belong", message)
    alone = [answer for answer in found if answer.options[1:] not in (("table",),)]
    sources = [open_source(each.source or root, kind=each.options[1] if each.options else None) for each in alone]
    if not alone:  # those that leave the annotations out
        ignoring = [answer.options[1::2] for answer in caught.value.answers if {*answer.options[::2]} == {"--ignore"}]
        sources = [open_source(root, ignore=patterns) for patterns in ignoring]
    assert all(answer.note for answer in alone)
    assert all(str(answer.options[1] if answer.options else answer.source) in message for answer in alone)
    packed = [entry.key.rpartition("/")[2] for source in sources for entry in source.entries()]
    masks = re.compile(r"(^|/)(masks|gt|gtFine)/")
    images = [file for file in files if file.lower().endswith((".jpg", ".jpeg", ".png")) and not masks.search(file)]
    assert {*packed} == {image.rpartition("/")[2] for image in images}


def test_a_folder_within_an_archive_cannot_be_given(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"images/{n}.png": encode(picture(seed=n), "PNG") for n in range(3)}
    files |= {f"depth/{n}.png": encode(picture("L", seed=n), "PNG") for n in range(3)}
    archive = shutil.make_archive(str(tmp_path / "set"), "zip", fill(tmp_path / "set", files))
    with pytest.raises(AmbiguousSourceError, match="goes with") as caught:
        open_source(Path(archive))
    assert all(answer.source is None for answer in caught.value.answers)


@pytest.mark.slow
def test_depth_in_folders_of_scenes_can_be_kept_or_ignored(tmp_path: Path) -> None:
    for k in range(6):
        for n in range(3):
            names = {"rgb": picture(seed=9 * k + n), "depth": picture("L", seed=9 * k + n)}
            fill(tmp_path, {f"scene{k}/{part}/{n}.png": encode(image, "PNG") for part, image in names.items()})
    with pytest.raises(AmbiguousSourceError) as caught:
        open_source(tmp_path)
    answers = {answer.options: answer.note for answer in caught.value.answers}
    assert "--pair" in next(iter(answers))
    assert "leaves out 18 images" in answers["--ignore", "depth/", "--source", "imagefolder"]


def test_a_folder_called_images_among_classes_is_a_question(tmp_path: Path) -> None:
    fill(tmp_path, {f"{name}/{n}.jpg": "" for name in ("cat", "dog", "images") for n in range(9)})
    with pytest.raises(AmbiguousSourceError, match="a folder called images, and others"):
        open_source(tmp_path)


@pytest.mark.parametrize("name", INNOCENT)
def test_other_folders_open_unasked(name: str, tmp_path: Path) -> None:
    open_source(fill(tmp_path, {"cat/z.jpg": "", **INNOCENT[name]}))


def test_images_that_were_packed_alone_are_verified_against_their_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "cub" / "cat").mkdir(parents=True, exist_ok=True)
        (tmp_path / "cub" / "cat" / f"{name}.jpg").write_bytes(encode(picture(), "JPEG"))
    (tmp_path / "cub" / "images.txt").write_text("1 cat/a.jpg\n2 cat/b.jpg\n")
    with pytest.raises(AmbiguousSourceError, match=r"images\.txt \(it names the images\)"):
        convert(tmp_path / "cub", tmp_path / "x.lmdb")
    convert(tmp_path / "cub", tmp_path / "x.lmdb", source_kind="imagefolder")
    assert verify(tmp_path / "x.lmdb", against=tmp_path / "cub").ok


def test_masks_in_folders_of_classes_are_no_class(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"{label}/{n}.jpg": jpeg(n) for label in ("cat", "dog") for n in range(3)}
    files |= {f"masks/{label}/{n}.png": mask(n) for label in ("cat", "dog") for n in range(3)}
    with pytest.raises(AmbiguousSourceError, match=r"masks/cat/0\.png goes with cat/0\.jpg"):
        open_source(fill(tmp_path, files))


@pytest.mark.parametrize(
    ("more", "said", "kinds"),
    [
        (
            {f"labels/{name}.txt": "0 0.5 0.5 0.1 0.1\n" for name in "ab"},
            r"a \.txt file for each image in labels",
            {"voc", "yolo"},
        ),
        ({f"masks/{name}.png": mask(1) for name in "ab"}, "masks/a.png goes with images/a.jpg", {"voc"}),
        (
            {"boxes.csv": "file,xmin,ymin,xmax,ymax,label\na.jpg,1,1,2,2,cat\nb.jpg,1,1,2,2,cat\n"},
            "boxes.csv",
            {"voc", "table"},
        ),
    ],
)
def test_two_kinds_of_labels_are_a_question(
    more: dict[str, str | bytes], said: str, kinds: set[str], tmp_path: Path
) -> None:
    """All kinds that can read the path are answers."""
    files: dict[str, str | bytes] = {f"images/{name}.jpg": jpeg(n) for n, name in enumerate("ab")}
    files |= {f"annotations/{name}.xml": voc_xml(name, ("cat", (1, 1, 2, 2), 0)) for name in "ab"}
    with (
        pytest.raises(AmbiguousSourceError, match=said) as caught,
        closing(open_source(fill(tmp_path, {**files, **more}))) as source,
    ):
        ask_about_left(source, source.survey())
    assert kinds <= {answer.options[-1] for answer in caught.value.answers if answer.options[-2:-1] == ("--source",)}


def plain(*labels: str, count: int = 20) -> Files:
    return {f"{label}/{label}_{n}.jpg": "" for label in labels or ("cat", "dog") for n in range(count)}


ORDINARY: dict[str, Files] = {
    "a readme that names a few": {"README.md": "![](cat/cat_1.jpg) ![](cat/cat_2.jpg) ![](cat/cat_3.jpg)", **plain()},
    "a readme in text": {"README.txt": "cat_1.jpg cat_2.jpg cat_3.jpg cat_4.jpg", **plain()},
    "a licence": {"LICENSE": "MIT", "LICENSE.txt": "cat_1 cat_2 cat_3", **plain()},
    "a configuration": {"config.json": '{"lr": 1, "epochs": 3, "size": [2, 4]}', **plain(count=5)},
    "a configuration of numbers, and images of numbers": {
        "config.json": '{"batch": 32, "epochs": 90, "workers": 8, "seeds": [1, 2, 3]}',
        **{f"cat/{n}.jpg": "" for n in range(100)},
    },
    "logs": {**{f"logs/{n}.log": "loss 1" for n in range(20)}, **{f"logs/{n}.txt": "1" for n in range(20)},
             **{f"cat/{n}.jpg": "" for n in range(20)}, "train.log": "epoch 1"},
    "a table of losses": {"losses.csv": "epoch,loss\n" + "".join(f"{n},0.5\n" for n in range(20)),
                          **{f"cat/{n}.jpg": "" for n in range(20)}},
    "checkpoints": {**{f"checkpoints/{n}.pth": "" for n in range(20)}, **{f"samples/{n}.png": "" for n in range(20)}},
    "a model": {"model.h5": "", "best.pt": "", "model.onnx": "", **plain()},
    "thumbnails beside": {f"{n}{end}.jpg": "" for n in range(30) for end in ("", "_thumb")},
    "thumbnails in a folder": {**plain(), **{f"thumbs/{n}.jpg": "" for n in range(5)}},
    "copies": {**{f"{n}.jpg": "" for n in range(20)}, **{f"{n} copy.jpg": "" for n in range(20)}},
    "downloaded twice": {f"{n}{end}.jpg": "" for n in range(20) for end in ("", " (1)", " (2)")},
    "caltech 101": {f"{label}/image_{n:04}.jpg": "" for label in ("accordion", "BACKGROUND_Google", "wild_cat", "Faces")
                    for n in range(1, 41)},
    "frames": {f"{clip}/x_{n}.jpg": "" for clip in ("run", "walk") for n in range(1, 11)},
    "frames of one folder": {f"x_{n}.jpg": "" for n in range(1, 11)},
    "classes that count alike": {f"{n}/{i:04}.jpg": "" for n in range(10) for i in range(30)},
    "notebooks": {"explore.ipynb": '{"cells": ["cat_1.jpg"]}', "fig1.ipynb": "{}", **plain()},
    "programs": {"train.py": "cat_1.jpg", "run.sh": "", "utils/data.py": "x = 1", **plain()} | {"utils/x.jpg": ""},
    "plots of programs": {f"plot_{name}.{end}": "" for name in "abc" for end in ("py", "png")},
    "requirements": {"requirements.txt": "\n".join(f"p{n}==1" for n in range(40)), **plain()},
    "an environment": {"environment.yml": "dependencies:\n- python", **plain()},
    "system files": {".DS_Store": "", "cat/Thumbs.db": "", "__MACOSX/cat/._cat_1.jpg": "", **plain()},
    "git": {".git/config": "", ".git/objects/ab/cd": "", ".gitignore": "*.pth", ".gitattributes": "", **plain()},
    "tensorboard": {"runs/x/events.out.tfevents.1.host": "", **{f"samples/{n}.png": "" for n in range(5)}},
    "a list of classes": {"classes.txt": "cat\ndog\n", "labels.txt": "0 cat\n1 dog\n", **plain()},
    "as many classes as images": {"classes.txt": "\n".join(f"class{n}" for n in range(20)),
                                  **{f"c{n}/only.jpg": "" for n in range(20)}},
    "settings of a tool for labels": {"label_config.xml": "<View>\n" * 40, "labelmap.txt": "x\n" * 40, **plain()},
    "synsets": {"words.txt": "n01 tench\nn02 shark", "wnids.txt": "n01\nn02", **plain("n01", "n02")},
    "videos beside photos": {f"IMG_{n:04}.{end}": "" for n in range(20) for end in ("JPG", "MOV")},
    "raw photos": {f"IMG_{n:04}.{end}": "" for n in range(20) for end in ("JPG", "XMP")},
    "checksums": {"md5sums.md5": "a  cat/cat_1.jpg", **plain()},
    "a page": {"index.html": "<img src=cat_1.jpg><img src=cat_2.jpg><img src=cat_3.jpg>", **plain()},
    "left and right hands": {f"{side}/{side}_{n}.jpg": "" for side in ("left", "right") for n in range(20)},
    "masks and faces": {f"{label}/{label}{n}.jpg": "" for label in ("with_mask", "without_mask") for n in range(20)},
    "trains": {f"{label}/{n}.jpg": "" for label in ("bullet_train", "test_tube", "cat", "dog") for n in range(9)},
    "words at the end": {f"{label}/{label}_{n}_{end}.jpg": "" for label in "ab" for n, end in enumerate("cdefgh")},
}  # fmt: skip


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_folders_raise_no_question(name: str, tmp_path: Path) -> None:
    with closing(open_source(fill(tmp_path, ORDINARY[name]))) as source:
        assert source.kind in ("imagefolder", "flat")
        assert phrases(FolderTree(tmp_path)) == []


@pytest.mark.parametrize("size", [3, 300])
@pytest.mark.parametrize("name", ["positives.idx", "info.dat", "bg", "boxes.info"])
def test_texts_of_any_suffix_that_name_images_are_a_question(name: str, size: int, tmp_path: Path) -> None:
    files: Files = {f"cat/{n}.jpg": jpeg(n) for n in range(size)} | {"dog/x.jpg": jpeg(1)}
    root = fill(tmp_path, files | {f"cat/{name}": "".join(f"cat/{n}.jpg 1 {n} 42 45 19\n" for n in range(size))})
    with pytest.raises(AmbiguousSourceError, match="it names the images"):
        open_source(root)
    (root / "cat" / name).write_bytes(bytes(range(256)) * 9)
    with closing(open_source(root)) as source:
        assert source.kind == "imagefolder"


def npy(array: list[int]) -> bytes:
    np.save(file := io.BytesIO(), array)
    return file.getvalue()


LINES = "".join(f"{n % 3}\n" for n in range(24))
ROWS: dict[str, str | bytes] = {
    "labels.npy": npy([0] * 24),
    "y.npy": npy([0] * 24),
    "labels.txt": LINES,
    "targets.csv": f"class\n{LINES}",
    "formulas.lst": LINES.strip(),
    "values.yaml": LINES,
    "y.json": "[1, 2, 3, 4" + ", 5" * 20 + "]",
    "columns.json": '{"labels": [' + "1, " * 23 + '1], "names": ["cat", "dog"]}',
}


@pytest.mark.parametrize("folders", [("",), ("images/",), ("cat/", "dog/"), ("train/", "val/"), ("images/", "masks/")])
@pytest.mark.parametrize("name", ROWS)
def test_files_with_a_row_for_each_image_are_a_question(name: str, folders: tuple[str, ...], tmp_path: Path) -> None:
    """Also with a row for each image of a split, or of one of two folders."""
    whole = folders in (("",), ("images/",), ("cat/", "dog/"))
    files: Files = {f"{place}p{n}.jpg": "" for place in folders for n in range(24 // len(folders) if whole else 24)}
    found = phrases(FolderTree(fill(tmp_path, files | {name: ROWS[name]})))
    assert f"{name} (it has as many rows as there are images)" in found


@pytest.mark.parametrize(("rows", "name", "asked"), [(5, "labels.txt", True), (5, "notes.txt", False)])
def test_few_rows_are_a_question_in_files_of_labels(rows: int, name: str, asked: bool, tmp_path: Path) -> None:
    files: Files = {f"{n}.jpg": "" for n in range(rows)} | {name: "a word\n" * rows}
    assert bool(phrases(FolderTree(fill(tmp_path, files)))) is asked


def test_arrays_beside_images_are_a_question(tmp_path: Path) -> None:
    with pytest.raises(AmbiguousSourceError, match=r"points\.npz"):
        open_source(fill(tmp_path, {"a.jpg": jpeg(0), "b.jpg": jpeg(1), "points.npz": b"PK"}))


def test_notes_without_a_suffix_that_name_images_are_no_question(tmp_path: Path) -> None:
    notes = "What was tried:\n\n" + "".join(f"best of the run:\n  score of cat/{n}.jpg is 0.{n}\n" for n in range(9))
    root = fill(tmp_path, {f"cat/{n}.jpg": jpeg(n) for n in range(9)} | {"dog/x.jpg": jpeg(1), "tests of May": notes})
    with closing(open_source(root)) as source:
        assert source.kind == "imagefolder"


@pytest.mark.parametrize("further", [(), ("overlay",), ("overlay", "other")])
def test_masks_whose_names_have_one_word_more_are_no_class(further: tuple[str, ...], tmp_path: Path) -> None:
    halves = encode(PIL.Image.fromarray(np.repeat([[0] * 9 + [255] * 7], 8, axis=0).astype(np.uint8)), "JPEG")
    for n in range(6):
        for folder, name in (("raw", f"{n}-photo"), ("masks", f"{n}-photo_mask"), *((f, f"{n}-{f}") for f in further)):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / f"{name}.jpg").write_bytes(halves if folder == "masks" else jpeg(n))
    if further:
        with pytest.raises(AmbiguousSourceError, match=r"0-photo_mask\.jpg goes with raw/0-photo\.jpg"):
            open_source(tmp_path)
    else:
        with closing(open_source(tmp_path)) as source:
            assert source.evidence == "mask: raw/{s}.*=masks/{s}_mask.jpg"
    with closing(open_source(tmp_path, kind="imagefolder")) as source:
        assert source.survey().records == 6 * (2 + len(further))


def test_a_table_with_three_lines_of_names_is_a_question(tmp_path: Path) -> None:
    """As DeepLabCut writes it."""
    lines = ["scorer,Ann,Ann", "bodyparts,snout,snout", "coords,x,y"]
    lines += [f"labeled-data/mouse/img{n:03}.png,{n}.5,{n}.25" for n in range(5)]
    fill(tmp_path, {f"img{n:03}.png": encode(picture("RGB", seed=n), "PNG") for n in range(5)})
    fill(tmp_path, {"CollectedData_Ann.csv": "\n".join(lines)})
    with pytest.raises(AmbiguousSourceError, match=r"CollectedData_Ann\.csv"), closing(open_source(tmp_path)) as source:
        ask_about_left(source, source.survey())
