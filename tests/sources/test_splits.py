"""Splits from the names of folders and files, and splits that are chosen."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest

import packstore
from packstore import AmbiguousSourceError, SourceError, UsageError
from packstore.sources import open_source
from tests.internals import (
    SPLIT_ORDER,
    NotInSourceError,
    Role,
    check_splits,
    find_meanings,
    find_split,
    find_split_folders,
    find_split_in_path,
    find_split_of_file,
    find_splits_of_folder,
    find_splits_of_folders,
    is_split_value,
    lower_known_split,
)
from tests.makers.annotated import fill, jpeg
from tests.makers.sources import look, not_packed, prove, question

NAMES = {
    **{word: word for word in SPLIT_ORDER},
    "Train": "train",
    "VAL": "val",
    "Holdout": "holdout",
    "Evaluation": "evaluation",
    "hold-out": "holdout",
    "train2017": "train",
    "val_2014": "val",
    "test1": "test",
    "TrainImages": "train",
    "val-images": "val",
    "training_set": "training",
    "trainset": "train",
    "testdata": "test",
    "test_dev": "test",
    "dev-test": "test",
    "seg_train": "train",
    "ILSVRC2012_val": "val",
    "VOC_trainval": "trainval",
    "train_val": "trainval",
    "train_images": "train",
    "images_train": "train",
    "original.validation": "validation",
}
NOT_SPLITS = (
    "",
    "trains",
    "trainer",
    "contest",
    "attest",
    "interval",
    "latest",
    "devkit",
    "train_test",
    "images",
    "dévalué",
)


@pytest.mark.parametrize("name", NAMES)
def test_every_function_reads_the_same_split_from_a_name(name: str) -> None:
    split = NAMES[name]
    assert find_split(name) == split
    assert find_split_in_path(name) == find_split_in_path(f"x/{name}/images") == split
    assert find_split_of_file(f"{name}.json") == find_split_of_file(f"{name}/annotations.json") == split
    others = (re.sub(split, other, name.lower()) for other in ("train", "test"))
    assert next(filter(None, (find_splits_of_folders([name, other]) for other in others)))[name] == split


@pytest.mark.parametrize("name", NOT_SPLITS)
def test_a_part_of_a_word_is_no_split(name: str) -> None:
    assert (find_split(name), find_split_in_path(name), find_meanings(name)) == ("", "", set())
    assert find_split_folders([name, "test"]) == {"test": "test"}


@pytest.mark.parametrize("name", ["dev", "eval", "valid", "testing", "train2017", "val-images"])
def test_hugging_face_reads_what_datasets_reads(name: str) -> None:
    alias = {"train": "train", "val": "validation", "test": "test"}
    assert find_splits_of_folder(f"{name}/x") == tuple(alias[meaning] for meaning in find_meanings(name))


@pytest.mark.parametrize(
    "names",
    [
        ("train_data", "test_data"),
        ("seg_train", "seg_test"),
        ("training_set", "val"),
        ("Train", "Holdout"),
        ("train2017", "val2017", "test2017"),
        ("TrainImages", "ValImages"),
        ("train", "test_images"),
    ],
)
def test_names_that_differ_in_the_split_alone_are_splits(names: tuple[str, ...]) -> None:
    assert find_split_folders(names) == {name: find_split(name) for name in names}


@pytest.mark.parametrize(
    "names",
    [
        ("test_tubes", "cats"),
        ("test_tubes", "train_tracks", "evaluation_boards"),
        ("trains", "tests"),
        ("train2014", "train2017", "val2014"),
        ("trainA", "trainB", "testA", "testB"),
        ("train_a", "train_b"),
        ("train_rgb", "train_depth", "test_rgb", "test_depth"),
    ],
)
def test_classes_do_not_become_splits(names: tuple[str, ...]) -> None:
    assert find_split_folders(names) == {}


def test_a_folder_called_as_a_split_decides_over_longer_names() -> None:
    assert find_split_folders(["train", "val", "train_masks", "val_masks"]) == {"train": "train", "val": "val"}
    assert find_split_folders(["Train", "train"]) == {"Train": "train", "train": "train"}


def test_folders_at_one_level_decide_together() -> None:
    assert find_splits_of_folders(["x/seg_train/a", "x/seg_test/a"]) == {
        "x/seg_train/a": "train",
        "x/seg_test/a": "test",
    }
    assert find_splits_of_folders(["test_tubes", "train_tracks"]) == {}
    assert find_splits_of_folders(["train/a", "other/a"]) == {}
    assert find_splits_of_folders(["coco/train2017", "val2017"]) == {"coco/train2017": "train", "val2017": "val"}


def test_names_of_splits_in_a_column_keep_their_words() -> None:
    assert all(map(is_split_value, ("Training", "PublicTest", "private test", "Holdout", "train2017", "val")))
    assert not any(map(is_split_value, ("", "cat", "test tube", "train station", "contest", "train test")))
    assert [lower_known_split(name) for name in ("TRAIN", "Holdout", "Train2017")] == ["train", "holdout", "Train2017"]


@pytest.mark.parametrize(
    "names",
    [
        ("train", "validate", "test"),
        ("training_set", "test_set"),
        ("train_data", "test_data"),
        ("Train", "Holdout"),
        ("Training", "Validation", "Evaluation"),
        ("train", "dev", "eval"),
        ("my_train", "my_test"),
    ],
)
def test_split_words(names: tuple[str, ...], tmp_path: Path) -> None:
    fill(tmp_path, {f"{name}/{label}/{n}.jpg": jpeg(n) for name in names for label in ("cat", "dog") for n in range(2)})
    survey = look(tmp_path)
    assert dict(survey.splits) == {find_split(name): 4 for name in names}
    assert survey.columns[0].classes == ("cat", "dog")
    entries = [entry for split in survey.splits for entry in survey.of(split)]
    assert len(entries) == survey.records


@pytest.mark.parametrize("names", [("test_tubes", "trains", "evaluation_boards"), ("train_tracks", "test_tubes")])
def test_classes_with_words_of_splits_stay_classes(names: tuple[str, ...], tmp_path: Path) -> None:
    fill(tmp_path, {f"{name}/{n}.jpg": jpeg(n) for name in names for n in range(3)})
    assert look(tmp_path).columns[0].classes == tuple(sorted(names))


@pytest.mark.parametrize("names", [("train2017", "val2017"), ("train", "test1"), ("test_images", "train_images")])
def test_splits_of_images_without_classes(names: tuple[str, ...], tmp_path: Path) -> None:
    fill(tmp_path, {f"{name}/{n}.jpg": jpeg(n) for name in names for n in range(3)})
    survey = look(tmp_path)
    assert (dict(survey.splits), survey.columns) == ({find_split(name): 3 for name in names}, ())


@pytest.mark.parametrize("other", ["iconic-images", "seg_pred"])
def test_a_further_folder_of_the_same_classes(other: str, tmp_path: Path) -> None:
    """The first answer keeps all folders as splits; none makes classes of splits."""
    names = ("seg_train", "seg_test") if other == "seg_pred" else ("train", "val", "test")
    fill(tmp_path, {f"{name}/{label}/1.jpg": jpeg(1) for name in (*names, other) for label in ("cat", "dog")})
    caught = question(tmp_path, f"folders with images .{other}")
    second, first, *others = caught.answers
    assert first.options == ("--ignore", f"/{other}")
    pairs = [*((find_split(name), name) for name in names), (other, other)]
    assert second.options == ("--splits", ",".join(f"{split}=/{name}" for split, name in pairs))
    looked = look(tmp_path, splits=second.options[1])
    assert dict(looked.splits) == {split: 2 for split, _ in pairs}
    assert {each.options for each in others} == {("--split", find_split(name)) for name in names}
    seen = look(tmp_path, ignore=first.options[1])
    assert dict(seen.splits) == {find_split(name): 2 for name in names}


def test_a_folder_of_a_split_that_repeats_its_name(tmp_path: Path) -> None:
    names = ("seg_train", "seg_test")
    fill(tmp_path, {f"{name}/{name}/{label}/1.jpg": jpeg(1) for name in names for label in ("cat", "dog")})
    survey = look(tmp_path)
    assert (dict(survey.splits), survey.columns[0].classes) == ({"train": 2, "test": 2}, ("cat", "dog"))


@pytest.mark.parametrize("names", [("my_train", "final_test"), ("test_tubes", "train_tracks"), ("part1", "part2")])
def test_folders_of_the_same_folders_are_a_question(names: tuple[str, ...], tmp_path: Path) -> None:
    """They may be splits, or classes that were seen from two sides."""
    fill(tmp_path, {f"{name}/{side}/{n}.jpg": jpeg(n) for name in names for side in ("front", "back") for n in (1, 2)})
    caught = question(tmp_path, r"several folders with the same|not those of classes")
    line = next(each.options for each in caught.answers if each.options[:1] == ("--splits",))
    survey = look(tmp_path, splits=line[1])
    assert dict(survey.splits) == dict.fromkeys(sorted(names), 4)
    assert survey.columns[0].classes == ("back", "front")


def classes_in(path: Path, *folders: str, labels: tuple[str, ...] = ("cat", "dog")) -> Path:
    return fill(
        path, {f"{folder}/{label}/{n}.jpg": jpeg(n) for folder in folders for label in labels for n in range(2)}
    )


def splits_of(path: Path, splits: str | list[str], **options: object) -> dict[str, list[str]]:
    """Keys by split, after the survey's numbers were compared with the entries."""
    with closing(open_source(path, splits=splits, **options)) as source:  # type: ignore[arg-type]
        survey = source.survey()
        keys = {split: [entry.key for entry in source.entries(split)] for split in survey.splits}
        assert {split: len(its) for split, its in keys.items()} == dict(survey.splits)
        assert [entry.key for entry in source.entries()] == [key for its in keys.values() for key in its]
        for split in survey.splits:
            one = source.survey(split)
            assert (one.records, one.ledger.count(Role.PACKED)) == (len(keys[split]), len(keys[split]))
            assert one.size_bytes == sum(entry.size_bytes for entry in source.entries(split))
        return keys


def test_named_folders_are_splits_and_no_classes(tmp_path: Path) -> None:
    classes_in(tmp_path, "a", "b", "c")
    with closing(open_source(tmp_path, splits="train=a,test=b,TEST=c")) as source:
        survey = source.survey()
        assert (dict(survey.splits), survey.columns[0].classes) == ({"train": 4, "test": 8}, ("cat", "dog"))
        assert source.evidence == "folders of images in a, b, c"
        assert {entry.labels for entry in source.entries("test")} == {(0,), (1,)}
        with pytest.raises(NotInSourceError, match="has no split 'val'; splits: train, test"):
            source.survey("val")
    with pytest.raises(AmbiguousSourceError, match=r"folders with images \(c\)") as caught:
        splits_of(tmp_path, ["train=a", "test=b"])
    assert [answer.options for answer in caught.value.answers] == [("--splits", "c=/c"), ("--ignore", "/c")]
    assert {*splits_of(tmp_path, "train=a,test=b", ignore="/c")} == {"train", "test"}


def test_folders_below_the_top(tmp_path: Path) -> None:
    classes_in(tmp_path, "data/one", "data/two")
    survey = look(tmp_path, splits="train=data/one,val=data/two")
    assert (dict(survey.splits), survey.columns[0].classes) == ({"train": 4, "val": 4}, ("cat", "dog"))


def test_files_of_classes(tmp_path: Path) -> None:
    fill(tmp_path / "set", {f"{label}/{n}.jpg": jpeg(n) for label in ("cat", "dog") for n in range(2)})
    keys = splits_of(tmp_path / "set", "val=0.jpg,train=*.jpg")
    assert keys == {"val": ["cat/0.jpg", "dog/0.jpg"], "train": ["cat/1.jpg", "dog/1.jpg"]}


def test_samples_without_a_match_are_said(tmp_path: Path) -> None:
    fill(tmp_path, {f"{name}.jpg": jpeg(n) for n, name in enumerate(("a1", "a2", "b1", "c1"))})
    assert splits_of(tmp_path, "train=a*,val=b*") == {
        "train": ["a1.jpg", "a2.jpg"],
        "val": ["b1.jpg"],
        "unassigned": ["c1.jpg"],
    }
    seen = look(tmp_path, splits="train=a*,val=b*")
    assert seen.notes == ("no pattern of splits matches 1 of the samples: their split is unassigned",)


def test_a_pattern_without_a_match_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path, {"a.jpg": jpeg(0)})
    with pytest.raises(SourceError, match=r"no sample matches 'val=x\*' of splits; .* such as a\.jpg"):
        splits_of(tmp_path, "train=*.jpg,val=x*")


@pytest.mark.parametrize("wrong", ["train", "=a", "train=", "train=a,val=", "train=[", 3, ["train", 3], "train=a,b=!c"])
def test_unusable_options(wrong: object, tmp_path: Path) -> None:
    fill(tmp_path / "in", {"a.jpg": jpeg(0)})
    not_packed(UsageError, tmp_path / "in", tmp_path / "x.lmdb", r"splits|ignore", splits=wrong)


def test_patterns_are_divided_at_names() -> None:
    assert check_splits("Train=a,b,VAL=c/*") == ("train=a,b", "val=c/*")
    assert check_splits(["fold one=a", "x=[a,b]"]) == ("fold one=a", "x=[a,b]")


def test_tables_and_annotations(tmp_path: Path) -> None:
    fill(tmp_path / "table", {"x.csv": "file,label\na.jpg,cat\nb.jpg,dog\n", "a.jpg": jpeg(0), "b.jpg": jpeg(1)})
    assert splits_of(tmp_path / "table", "train=a.jpg,val=b.jpg") == {"train": ["a.jpg"], "val": ["b.jpg"]}


def test_the_store_keeps_them(tmp_path: Path) -> None:
    classes_in(tmp_path / "set", "a", "b")
    store = tmp_path / "x.lmdb"
    prove(tmp_path / "set", store, splits=["train=a", "val=b"])
    with packstore.open(store) as reader:
        manifest = reader.manifest
    assert [(split.name, split.start, split.stop) for split in manifest.splits] == [("train", 0, 4), ("val", 4, 8)]
    assert json.loads(str(manifest.options["splits"])) == ["train=a", "val=b"]
    assert not packstore.verify(store, against=tmp_path / "set", splits="train=b,val=a").ok
    not_packed(UsageError, store, tmp_path / "y.lmdb", "leave splits out", splits="train=a")
