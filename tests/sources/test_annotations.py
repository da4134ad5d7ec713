"""What lies beside images and would be lost with them packed alone is found; what only looks so is not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from packstore import AmbiguousSourceError
from tests.internals import FolderTree, find_all_annotations
from tests.makers.annotated import fill, jpeg, mask, voc_xml
from tests.makers.images import encode, npy, picture
from tests.makers.sources import look, not_packed, prove, question

Files = dict[str, str | bytes]


def phrases(tree: FolderTree) -> list[str]:
    """A phrase for each suspected annotation of the images of a tree."""
    return [each.phrase for each in find_all_annotations(tree)]


@pytest.mark.slow
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


def test_a_folder_within_an_archive_cannot_be_given(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"images/{n}.png": encode(picture(seed=n), "PNG") for n in range(3)}
    files |= {f"depth/{n}.png": encode(picture("L", seed=n), "PNG") for n in range(3)}
    archive = shutil.make_archive(str(tmp_path / "set"), "zip", fill(tmp_path / "set", files))
    caught = question(Path(archive), "goes with")
    assert all(answer.source is None for answer in caught.answers)


@pytest.mark.slow
def test_depth_in_folders_of_scenes_can_be_kept_or_ignored(tmp_path: Path) -> None:
    for k in range(6):
        for n in range(3):
            names = {"rgb": picture(seed=9 * k + n), "depth": picture("L", seed=9 * k + n)}
            fill(tmp_path, {f"scene{k}/{part}/{n}.png": encode(image, "PNG") for part, image in names.items()})
    caught = question(tmp_path)
    answers = {answer.options: answer.note for answer in caught.answers}
    assert "--pair" in next(iter(answers))
    assert "leaves out 18 images" in answers["--ignore", "depth/", "--source", "imagefolder"]


def test_a_folder_called_images_among_classes_is_a_question(tmp_path: Path) -> None:
    fill(tmp_path, {f"{name}/{n}.jpg": "" for name in ("cat", "dog", "images") for n in range(9)})
    question(tmp_path, "a folder called images, and others")


def test_images_that_were_packed_alone_are_verified_against_their_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        fill(tmp_path, {f"cub/cat/{name}.jpg": encode(picture(), "JPEG")})
    (tmp_path / "cub" / "images.txt").write_text("1 cat/a.jpg\n2 cat/b.jpg\n")
    not_packed(AmbiguousSourceError, tmp_path / "cub", tmp_path / "x.lmdb", r"images\.txt \(it names the images\)")
    prove(tmp_path / "cub", tmp_path / "x.lmdb", source_kind="imagefolder")


def test_masks_in_folders_of_classes_are_no_class(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"{label}/{n}.jpg": jpeg(n) for label in ("cat", "dog") for n in range(3)}
    files |= {f"masks/{label}/{n}.png": mask(n) for label in ("cat", "dog") for n in range(3)}
    question(fill(tmp_path, files), r"masks/cat/0\.png goes with cat/0\.jpg")


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
    caught = question(fill(tmp_path, {**files, **more}), said)
    assert kinds <= {answer.options[-1] for answer in caught.answers if answer.options[-2:-1] == ("--source",)}


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 300])
@pytest.mark.parametrize("name", ["positives.idx", "info.dat", "bg", "boxes.info"])
def test_texts_of_any_suffix_that_name_images_are_a_question(name: str, size: int, tmp_path: Path) -> None:
    files: Files = {f"cat/{n}.jpg": jpeg(n) for n in range(size)} | {"dog/x.jpg": jpeg(1)}
    root = fill(tmp_path, files | {f"cat/{name}": "".join(f"cat/{n}.jpg 1 {n} 42 45 19\n" for n in range(size))})
    question(root, "it names the images")
    (root / "cat" / name).write_bytes(bytes(range(256)) * 9)
    assert look(root).kind == "imagefolder"


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
    question(fill(tmp_path, {"a.jpg": jpeg(0), "b.jpg": jpeg(1), "points.npz": b"PK"}), r"points\.npz")


def test_notes_without_a_suffix_that_name_images_are_no_question(tmp_path: Path) -> None:
    notes = "What was tried:\n\n" + "".join(f"best of the run:\n  score of cat/{n}.jpg is 0.{n}\n" for n in range(9))
    root = fill(tmp_path, {f"cat/{n}.jpg": jpeg(n) for n in range(9)} | {"dog/x.jpg": jpeg(1), "tests of May": notes})
    assert look(root).kind == "imagefolder"


@pytest.mark.parametrize("further", [(), ("overlay",), ("overlay", "other")])
def test_masks_whose_names_have_one_word_more_are_no_class(further: tuple[str, ...], tmp_path: Path) -> None:
    halves = encode(PIL.Image.fromarray(np.repeat([[0] * 9 + [255] * 7], 8, axis=0).astype(np.uint8)), "JPEG")
    for n in range(6):
        for folder, name in (("raw", f"{n}-photo"), ("masks", f"{n}-photo_mask"), *((f, f"{n}-{f}") for f in further)):
            fill(tmp_path, {f"{folder}/{name}.jpg": halves if folder == "masks" else jpeg(n)})
    if further:
        question(tmp_path, r"0-photo_mask\.jpg goes with raw/0-photo\.jpg")
    else:
        assert look(tmp_path).evidence == "mask: raw/{s}.*=masks/{s}_mask.jpg"
    assert look(tmp_path, kind="imagefolder").records == 6 * (2 + len(further))


def test_a_table_with_three_lines_of_names_is_a_question(tmp_path: Path) -> None:
    """As DeepLabCut writes it."""
    lines = ["scorer,Ann,Ann", "bodyparts,snout,snout", "coords,x,y"]
    lines += [f"labeled-data/mouse/img{n:03}.png,{n}.5,{n}.25" for n in range(5)]
    fill(tmp_path, {f"img{n:03}.png": encode(picture("RGB", seed=n), "PNG") for n in range(5)})
    fill(tmp_path, {"CollectedData_Ann.csv": "\n".join(lines)})
    question(tmp_path, r"CollectedData_Ann\.csv")
