"""Splits by patterns: ``--splits train=PATTERN,val=PATTERN``."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

import packstore
from packstore import AmbiguousSourceError, SourceError, UsageError
from packstore.sources import open_source
from tests.internals import NotInSourceError, Role, check_splits
from tests.makers.annotated import fill, jpeg


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
    with closing(open_source(tmp_path, splits="train=data/one,val=data/two")) as source:
        survey = source.survey()
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
    with closing(open_source(tmp_path, splits="train=a*,val=b*")) as source:
        assert source.survey().notes == ("no pattern of splits matches 1 of the samples: their split is unassigned",)


def test_a_pattern_without_a_match_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path, {"a.jpg": jpeg(0)})
    with pytest.raises(SourceError, match=r"no sample matches 'val=x\*' of splits; .* such as a\.jpg"):
        splits_of(tmp_path, "train=*.jpg,val=x*")


@pytest.mark.parametrize("wrong", ["train", "=a", "train=", "train=a,val=", "train=[", 3, ["train", 3], "train=a,b=!c"])
def test_unusable_options(wrong: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"splits|ignore"):
        packstore.convert(tmp_path, tmp_path / "x.lmdb", splits=wrong)  # type: ignore[arg-type]


def test_patterns_are_divided_at_names() -> None:
    assert check_splits("Train=a,b,VAL=c/*") == ("train=a,b", "val=c/*")
    assert check_splits(["fold one=a", "x=[a,b]"]) == ("fold one=a", "x=[a,b]")


def test_tables_and_annotations(tmp_path: Path) -> None:
    fill(tmp_path / "table", {"x.csv": "file,label\na.jpg,cat\nb.jpg,dog\n", "a.jpg": jpeg(0), "b.jpg": jpeg(1)})
    assert splits_of(tmp_path / "table", "train=a.jpg,val=b.jpg") == {"train": ["a.jpg"], "val": ["b.jpg"]}


def test_the_store_keeps_them(tmp_path: Path) -> None:
    classes_in(tmp_path / "set", "a", "b")
    store = tmp_path / "x.lmdb"
    packstore.convert(tmp_path / "set", store, splits=["train=a", "val=b"])
    with packstore.open(store) as reader:
        manifest = reader.manifest
    assert [(split.name, split.start, split.stop) for split in manifest.splits] == [("train", 0, 4), ("val", 4, 8)]
    assert json.loads(str(manifest.options["splits"])) == ["train=a", "val=b"]
    assert packstore.verify(store, against=tmp_path / "set").ok
    assert not packstore.verify(store, against=tmp_path / "set", splits="train=b,val=a").ok
    with pytest.raises(UsageError, match="leave splits out"):
        packstore.convert(store, tmp_path / "y.lmdb", splits="train=a")
