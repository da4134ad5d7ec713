"""Folders of data sets, and what people keep beside images: which of it is read, and which raises a question."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import torch

from packstore import SourceError
from packstore.sources import open_source
from tests.internals import Answer, Role
from tests.makers.annotated import coco, fill, jpeg, mask, voc_xml, yolo
from tests.makers.command import run
from tests.makers.images import tiny
from tests.makers.layouts import make_layout, tar
from tests.makers.sources import look, question, refused

PHOTOS: dict[str, str | bytes] = {f"{label}/{n}.jpg": jpeg(n) for label in "ab" for n in range(3)}
JUNK: dict[str, str | bytes] = {"README.md": "# it", ".DS_Store": b"\0", "__MACOSX/._x": b"\0", "empty/.keep": b""}


def test_an_image_folder_a_folder_deeper_is_no_class(tmp_path: Path) -> None:
    fill(
        tmp_path / "download/set",
        {f"{split}/{name}": data for split in ("train", "val") for name, data in PHOTOS.items()},
    )
    asked = question(tmp_path / "download")
    assert "no dataset itself, but to hold set (an image folder)" in str(asked)
    assert asked.answers == (Answer(source=tmp_path / "download/set"), Answer(("--source", "imagefolder")))
    assert look(tmp_path / "download", kind="imagefolder").columns[0].classes == ("set",)


def test_one_class_is_no_question(tmp_path: Path) -> None:
    for name in ("cat", "train"):
        fill(tmp_path / name, {f"{name}/{n}.jpg": jpeg(n) for n in range(3)})
        assert look(tmp_path / name).kind == "imagefolder"


@pytest.mark.parametrize("name", ["coco", "yolo", "cub200", "stl10"])
def test_what_lies_deeper_beside_other_things(name: str, tmp_path: Path) -> None:
    make = {"coco": coco, "yolo": yolo}.get(name) or partial(make_layout, name)
    place = make(tmp_path / "top/inner")
    fill(tmp_path / "top", JUNK)
    (answer,) = question(tmp_path / "top").answers
    assert answer.source is not None
    with closing(open_source(answer.source)) as given, closing(open_source(place)) as direct:
        assert (given.kind, dict(given.survey().splits)) == (direct.kind, dict(direct.survey().splits))


def test_archives_in_a_folder(tmp_path: Path) -> None:
    fill(tmp_path / "set", PHOTOS)
    folder = fill(tmp_path / "download", JUNK)
    shutil.make_archive(str(folder / "set"), "zip", tmp_path, "set")
    assert question(folder).answers == (Answer(source=folder / "set.zip"),)


@pytest.mark.slow
def test_two_data_sets_in_one_folder(tmp_path: Path) -> None:
    coco(tmp_path / "both/first")
    yolo(tmp_path / "both/second")
    asked = question(tmp_path / "both")
    assert "first (COCO), second (YOLO)" in str(asked)
    assert [answer.source for answer in asked.answers] == [tmp_path / "both/first", tmp_path / "both/second"]


@pytest.mark.slow
def test_folders_beside_splits_with_the_same_folders_may_be_splits(tmp_path: Path) -> None:
    names = ("gallery", "query", "train")
    fill(tmp_path / "set", {f"{name}/{c}/{n}.jpg": jpeg(n) for name in names for c in "ab" for n in range(3)})
    asked = question(tmp_path / "set")
    assert asked.answers[0] == Answer(("--splits", "gallery=/gallery,query=/query,train=/train"))
    fill(tmp_path / "other", {f"{name}/{n}.jpg": jpeg(n) for name in ("masks", "train") for n in range(3)})
    assert not any("--splits" in answer.options for answer in question(tmp_path / "other").answers)


def test_a_folder_with_an_icon_of_each_class_is_a_question(tmp_path: Path) -> None:
    files = {f"{name}/{n}.jpg": jpeg(n) for name in ("ash", "oak") for n in range(4)}
    fill(tmp_path / "set", {**files, "thumbs/ash.jpg": jpeg(5), "thumbs/oak.jpg": jpeg(6)})
    asked = question(tmp_path / "set")
    assert "an image of each of the others (thumbs)" in str(asked)
    assert {("--ignore", "/thumbs"), ("--source", "imagefolder")} <= {answer.options for answer in asked.answers}
    fill(tmp_path / "counted", {f"{name}/{n}.jpg": jpeg(n) for name in "012" for n in range(2)})
    assert look(tmp_path / "counted").columns[0].classes == ("0", "1", "2")


@pytest.mark.parametrize(
    "names",
    [
        ["train2017"],
        ["trainA", "trainB", "testA", "testB"],
        ["train_A", "train_B"],
        ["fold0", "fold1"],
        ["x_train_HR", "x_train_LR", "x_valid_HR"],
    ],
)
def test_folders_that_seem_to_be_splits_are_no_classes(names: list[str], tmp_path: Path) -> None:
    fill(tmp_path / "set", {f"{name}/{n}.jpg": jpeg(n) for name in names for n in range(3)})
    asked = question(tmp_path / "set")
    assert "seem to be splits" in str(asked)
    places = [tmp_path / "set" / name for name in sorted(names)]
    splits = Answer(("--splits", ",".join(f"{name}=/{name}" for name in sorted(names))))
    classes = [Answer(("--source", "imagefolder"))] * ("fold0" in names)  # no classes called train and test
    given = [Answer(source=place) for place in places]
    assert [*asked.answers] == [*[splits] * (len(names) > 1), *classes, *given]  # those that keep all first
    for place in places:
        assert look(place).found == ("flat", 3)
    if len(names) == 1:
        return  # in an archive, that is the root
    caught = question(Path(shutil.make_archive(str(tmp_path / "x"), "zip", tmp_path / "set")), "seem to be splits")
    assert [*caught.answers] == [splits, *classes]


def test_classes_beside_something_like_a_split(tmp_path: Path) -> None:
    fill(tmp_path, {f"{name}/1.jpg": jpeg(1) for name in ("train2017", "plane")})
    assert look(tmp_path).columns[0].classes == ("plane", "train2017")


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz"])
def test_archives_of_what_is_no_image(suffix: str, tmp_path: Path) -> None:
    fill(tmp_path / "set", {"data/train-00000-of-00001.parquet": b"PAR1" + bytes(64), "README.md": "# it"})
    kind = {".zip": "zip", ".tar": "tar", ".tar.gz": "gztar"}[suffix]
    path = Path(shutil.make_archive(str(tmp_path / "packed"), kind, tmp_path, "set"))
    refused(SourceError, path, r"holds no images .*: archives of other data are .*: unpack it")


def test_an_archive_of_one_split_keeps_it(tmp_path: Path) -> None:
    archive = tmp_path / "set.tar"
    archive.write_bytes(tar({f"train/{label}/{n}.png": tiny(n) for label in "ab" for n in range(2)}))
    survey = look(archive)
    assert (dict(survey.splits), survey.columns[0].classes) == ({"train": 4}, ("a", "b"))


@pytest.mark.slow
def test_questions_are_answered_by_the_commands_that_are_printed(tmp_path: Path) -> None:
    """Whole lines, for a shell, also where names need quotes; each of them packs."""
    folder = fill(tmp_path / "my download/a set", {f"train/{name}": data for name, data in PHOTOS.items()}).parent
    out = tmp_path / "it's.lmdb"
    asked = run("convert", folder, out, "--check", "none")
    assert asked.returncode == 2
    lines = [line.strip() for line in asked.stderr.splitlines() if line.startswith("  packstore ")]
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line)
        assert (words[0], words[3:6]) == ("packstore", [str(out), "--check", "none"])
        assert run(*words[1:], "--overwrite").returncode == 0
    told = run("info", folder).stderr.splitlines()
    assert run(*shlex.split(told[-1])[1:]).returncode == 0


def test_a_model_beside_images_is_no_store(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(3)}, tmp_path / "model.pt")
    (tmp_path / "notes.md").write_text("x")
    caught = refused(SourceError, tmp_path, "holds no images")
    assert "a packstore store" not in str(caught)


def test_what_lies_deeper_beside_another_folder(tmp_path: Path) -> None:
    """A repository with programs, whose set is ``data/images`` beside ``data/raw``."""
    files: dict[str, str | bytes] = {f"data/images/train/{n}.jpg": jpeg(n) for n in range(4)}
    files |= {f"data/images/train/{n}.xml": voc_xml(str(n), ("ant", (1, 2, 3, 4), 0)) for n in range(4)}
    files |= {"data/raw/notes.md": "x", "train.py": "x", "demo/a.jpg": jpeg(9)}
    survey = look(fill(tmp_path, files))
    assert (survey.kind, survey.splits) == ("voc", {"train": 4})
    assert "demo/a.jpg" in survey.ledger.names(Role.LEFT)


@pytest.mark.parametrize("place", ["augmented/flip", "more/v/w", "extra"])
@pytest.mark.parametrize("count", [2, 3, 6])
def test_a_folder_with_the_classes_inside_is_no_class(place: str, count: int, tmp_path: Path) -> None:
    inside: dict[str, str | bytes] = {f"{place}/{label}/{n}.jpg": jpeg(n) for label in "ab" for n in range(count)}
    asked = question(fill(tmp_path, PHOTOS | inside))
    ignored = f"/{place.partition('/')[0]}"
    assert ("--ignore", ignored) in {answer.options for answer in asked.answers}
    assert look(tmp_path, ignore=ignored).columns[0].classes == ("a", "b")


def test_folders_with_the_same_classes_in_another_case_are_no_classes(tmp_path: Path) -> None:
    names = [
        f"{folder}/{n}.jpg" for folder in ("drawings/cat", "drawings/dog", "layers/Cat", "layers/Dog") for n in "01"
    ]
    fill(tmp_path, {name: jpeg(n) for n, name in enumerate(names)})
    assert "same folders of images in each (cat, dog)" in str(question(tmp_path))


def test_a_folder_of_other_files_is_no_class(tmp_path: Path) -> None:
    fill(tmp_path, {**PHOTOS, "arrays/x.npy": b"array"})
    survey = look(tmp_path).survey
    assert survey.columns[0].classes == ("a", "b")
    assert survey.ledger.passed_over == {"not images (.npy)": 1}


@pytest.mark.parametrize(("beside", "asked"), [(3, False), (30, True), (10, False), (11, True)])
def test_images_beside_classes_are_a_question_if_they_are_many(beside: int, asked: bool, tmp_path: Path) -> None:
    files = {f"top{n}.jpg": jpeg(n) for n in range(beside)}
    fill(tmp_path, files | {f"{name}/{name}{n}.jpg": jpeg(50 + n) for name in ("ant", "bee") for n in range(20)})
    if not asked:
        assert look(tmp_path).records == 40
        return
    caught = question(tmp_path, f"{beside} images beside its folders")
    assert ("--source", "imagefolder") in [answer.options for answer in caught.answers]


CATS = {f"{name}/{n:04}.jpg": "" for name in ("cat", "dog") for n in range(30)}
NUMBERED = {f"IMG_{n:04}.jpg": "" for n in range(30)}
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
LOGS = ("cat/", "jpg"), ("logs/", "log"), ("logs/", "txt")
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
    "a configuration of numbers, and images of numbers": {
        "config.json": '{"batch": 32, "epochs": 90, "workers": 8, "seeds": [1, 2, 3]}',
        **{f"cat/{n}.jpg": "" for n in range(100)},
    },
    "as many logs as images": {
        f"{folder}/{n}.{end}": ""
        for folder, end in (("cat", "jpg"), ("logs", "log"), ("logs", "txt"))
        for n in range(20)
    },
    "as many losses as images": {
        "losses.csv": "epoch,loss\n" + "".join(f"{n},0.5\n" for n in range(20)),
        **{f"cat/{n}.jpg": "" for n in range(20)},
    },
    "as many classes as images": {
        "classes.txt": "\n".join(f"class{n}" for n in range(20)),
        **{f"c{n}/only.jpg": "" for n in range(20)},
    },
    "thumbnails in a folder": {**CATS, **{f"thumbs/{n}.jpg": "" for n in range(5)}},
    "settings of a tool for labels": {**CATS, "label_config.xml": "<View>\n" * 40, "labelmap.txt": "x\n" * 40},
    "synsets": {**CATS, "words.txt": "n01 tench\nn02 shark", "wnids.txt": "n01\nn02"},
    "words of splits": {f"{name}/{n}.jpg": "" for name in ("bullet_train", "test_tube", "cat") for n in range(9)},
    "words at the end": {f"{name}/{name}_{n}_{end}.jpg": "" for name in "ab" for n, end in enumerate("cdefgh")},
    "names that end like masks": {"cat/red_label.jpg": "", "cat/blue_label.jpg": "", "cat/plain.jpg": ""},
    "unlabelled splits": {f"{split}/images/{split}{n}.jpg": "" for split in ("train", "val") for n in range(9)},
}


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("base", ["classes", "flat"])
def test_ordinary_folders_raise_no_question(base: str, name: str, tmp_path: Path) -> None:
    files = {**(CATS if base == "classes" else NUMBERED), **ORDINARY[name]}
    if base == "classes" and not any("/" in file for file in ORDINARY[name]):
        files |= {f"cat/{file}": text for file, text in ORDINARY[name].items()}
    source = open_source(fill(tmp_path, files))
    assert source.kind == ("flat" if base == "flat" else "imagefolder")
    assert source.survey().ledger.total == len(files)


@pytest.mark.parametrize("name", CLASSES)
def test_folders_that_may_be_classes_raise_no_question(name: str, tmp_path: Path) -> None:
    source = open_source(fill(tmp_path, CLASSES[name]) / ("101_ObjectCategories" if name == "Caltech-101" else ""))
    assert source.kind == "imagefolder"
    assert not [name for name in source.survey().ledger.names(Role.LEFT) if name.endswith(".jpg")]


def numbered(
    folder: str, count: int = 24, end: str = ".jpg", start: str = "", content: str | bytes = ""
) -> dict[str, str | bytes]:
    return {f"{folder}/{start}{n:05}{end}": content for n in range(count)}


NO_CLASSES: dict[str, tuple[dict[str, str], str]] = {
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
    caught = question(root, re.escape(named))
    assert "emove" not in str(caught)
    assert caught.answers
    for answer in caught.answers:
        options = dict(zip(answer.options[::2], answer.options[1::2], strict=True))
        if options.keys() <= {"--source"}:
            with_it = open_source(answer.source or root, kind=options.get("--source"))
            assert with_it.survey().ledger.total


def test_no_answer_is_lost(tmp_path: Path) -> None:
    root = fill(tmp_path / "set", numbered("depth"))
    caught = question(root)
    assert Answer(source=root / "depth") in caught.answers
