"""What people download lies a folder deeper, in an archive, or beside other things: a question that names what to give,
and never a class called ``download``.
"""

from __future__ import annotations

import shlex
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import torch

from packstore import AmbiguousSourceError, SourceError
from packstore.sources import open_source
from tests.internals import Answer, Role
from tests.makers.annotated import coco, fill, jpeg, voc_xml, yolo
from tests.makers.command import run
from tests.makers.images import tiny
from tests.makers.layouts import make_layout, tar

PHOTOS: dict[str, str | bytes] = {f"{label}/{n}.jpg": jpeg(n) for label in "ab" for n in range(3)}
JUNK: dict[str, str | bytes] = {"README.md": "# it", ".DS_Store": b"\0", "__MACOSX/._x": b"\0", "empty/.keep": b""}


def question(path: Path) -> AmbiguousSourceError:
    with pytest.raises(AmbiguousSourceError) as caught, closing(open_source(path)) as source:
        source.survey()
    assert str(caught.value).isprintable()
    return caught.value


def test_an_image_folder_a_folder_deeper_is_no_class(tmp_path: Path) -> None:
    fill(
        tmp_path / "download/set",
        {f"{split}/{name}": data for split in ("train", "val") for name, data in PHOTOS.items()},
    )
    asked = question(tmp_path / "download")
    assert "no dataset itself, but to hold set (an image folder)" in str(asked)
    assert asked.answers == (Answer(source=tmp_path / "download/set"), Answer(("--source", "imagefolder")))
    with closing(open_source(tmp_path / "download", kind="imagefolder")) as source:
        assert source.survey().columns[0].classes == ("set",)


def test_one_class_is_no_question(tmp_path: Path) -> None:
    for name in ("cat", "train"):
        fill(tmp_path / name, {f"{name}/{n}.jpg": jpeg(n) for n in range(3)})
        with closing(open_source(tmp_path / name)) as source:
            assert source.kind == "imagefolder"


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


def test_two_data_sets_in_one_folder(tmp_path: Path) -> None:
    coco(tmp_path / "both/first")
    yolo(tmp_path / "both/second")
    asked = question(tmp_path / "both")
    assert "first (COCO), second (YOLO)" in str(asked)
    assert [answer.source for answer in asked.answers] == [tmp_path / "both/first", tmp_path / "both/second"]


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
    with closing(open_source(tmp_path / "counted")) as source:
        assert source.survey().columns[0].classes == ("0", "1", "2")


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
        with closing(open_source(place)) as source:
            assert (source.kind, source.survey().records) == ("flat", 3)
    if len(names) == 1:
        return  # in an archive, that is the root
    with pytest.raises(AmbiguousSourceError, match="seem to be splits") as caught:
        open_source(Path(shutil.make_archive(str(tmp_path / "x"), "zip", tmp_path / "set")))
    assert [*caught.value.answers] == [splits, *classes]


def test_classes_beside_something_like_a_split(tmp_path: Path) -> None:
    fill(tmp_path, {f"{name}/1.jpg": jpeg(1) for name in ("train2017", "plane")})
    with closing(open_source(tmp_path)) as source:
        assert source.survey().columns[0].classes == ("plane", "train2017")


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz"])
def test_archives_of_what_is_no_image(suffix: str, tmp_path: Path) -> None:
    fill(tmp_path / "set", {"data/train-00000-of-00001.parquet": b"PAR1" + bytes(64), "README.md": "# it"})
    kind = {".zip": "zip", ".tar": "tar", ".tar.gz": "gztar"}[suffix]
    path = Path(shutil.make_archive(str(tmp_path / "packed"), kind, tmp_path, "set"))
    with pytest.raises(SourceError, match=r"holds no images .*: archives of other data are .*: unpack it"):
        open_source(path)


def test_an_archive_of_one_split_keeps_it(tmp_path: Path) -> None:
    archive = tmp_path / "set.tar"
    archive.write_bytes(tar({f"train/{label}/{n}.png": tiny(n) for label in "ab" for n in range(2)}))
    with closing(open_source(archive)) as source:
        survey = source.survey()
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
    with pytest.raises(SourceError, match="holds no images") as caught, closing(open_source(tmp_path)) as source:
        source.survey()
    assert "a packstore store" not in str(caught.value)


def test_what_lies_deeper_beside_another_folder(tmp_path: Path) -> None:
    """A repository with programs, whose set is ``data/images`` beside ``data/raw``."""
    files: dict[str, str | bytes] = {f"data/images/train/{n}.jpg": jpeg(n) for n in range(4)}
    files |= {f"data/images/train/{n}.xml": voc_xml(str(n), ("ant", (1, 2, 3, 4), 0)) for n in range(4)}
    files |= {"data/raw/notes.md": "x", "train.py": "x", "demo/a.jpg": jpeg(9)}
    with closing(open_source(fill(tmp_path, files))) as source:
        survey = source.survey()
        assert (source.kind, survey.splits) == ("voc", {"train": 4})
        assert "demo/a.jpg" in survey.ledger.names(Role.LEFT)


@pytest.mark.parametrize("place", ["augmented/flip", "more/v/w", "extra"])
@pytest.mark.parametrize("count", [2, 3, 6])
def test_a_folder_with_the_classes_inside_is_no_class(place: str, count: int, tmp_path: Path) -> None:
    inside: dict[str, str | bytes] = {f"{place}/{label}/{n}.jpg": jpeg(n) for label in "ab" for n in range(count)}
    asked = question(fill(tmp_path, PHOTOS | inside))
    ignored = f"/{place.partition('/')[0]}"
    assert ("--ignore", ignored) in {answer.options for answer in asked.answers}
    with closing(open_source(tmp_path, ignore=ignored)) as source:
        assert source.survey().columns[0].classes == ("a", "b")


def test_folders_with_the_same_classes_in_another_case_are_no_classes(tmp_path: Path) -> None:
    names = [
        f"{folder}/{n}.jpg" for folder in ("drawings/cat", "drawings/dog", "layers/Cat", "layers/Dog") for n in "01"
    ]
    fill(tmp_path, {name: jpeg(n) for n, name in enumerate(names)})
    assert "same folders of images in each (cat, dog)" in str(question(tmp_path))


def test_a_folder_of_other_files_is_no_class(tmp_path: Path) -> None:
    fill(tmp_path, {**PHOTOS, "arrays/x.npy": b"array"})
    with closing(open_source(tmp_path)) as source:
        survey = source.survey()
    assert survey.columns[0].classes == ("a", "b")
    assert survey.ledger.passed_over == {"not images (.npy)": 1}


@pytest.mark.parametrize(("beside", "asked"), [(3, False), (30, True), (10, False), (11, True)])
def test_images_beside_classes_are_a_question_if_they_are_many(beside: int, asked: bool, tmp_path: Path) -> None:
    files = {f"top{n}.jpg": jpeg(n) for n in range(beside)}
    fill(tmp_path, files | {f"{name}/{name}{n}.jpg": jpeg(50 + n) for name in ("ant", "bee") for n in range(20)})
    if not asked:
        with closing(open_source(tmp_path)) as source:
            assert source.survey().records == 40
        return
    with pytest.raises(AmbiguousSourceError, match=f"{beside} images beside its folders") as caught:
        open_source(tmp_path)
    assert ("--source", "imagefolder") in [answer.options for answer in caught.value.answers]
