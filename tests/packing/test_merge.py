"""``merge`` and ``select``: records byte for byte, shards as they are, the digest of one conversion."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import packstore
from packstore.stores import open_store
from tests.internals import (
    CorruptRecordError,
    DestinationError,
    Proven,
    SelectOptions,
    Shards,
    StoreError,
    StoreSource,
    UsageError,
    composing,
    merge_report_rows,
    read_manifest,
)
from tests.makers.command import run
from tests.makers.datasets import make_folder
from tests.makers.stores import content, damage

pytestmark = pytest.mark.slow

SUFFIXES = (".lmdb", ".h5", ".pth")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("photos") / "all", per_class=6)


@pytest.fixture(scope="module")
def stores(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``whole`` and, as its classes, ``first`` (ant, bee) and ``second`` (cat), of every suffix, and sharded ``_s``."""
    place = tmp_path_factory.mktemp("stores")
    for name, classes in (("first", ("ant", "bee")), ("second", ("cat",))):
        for split in ("train", "val"):
            for each in classes:
                shutil.copytree(photos / split / each, place / f"{name}-photos" / split / each)
    for name, folder in (("whole", photos), ("first", place / "first-photos"), ("second", place / "second-photos")):
        for suffix in SUFFIXES:
            packstore.convert(folder, place / f"{name}{suffix}", encoding="original")
            packstore.convert(folder, place / f"{name}_s{suffix}", encoding="original", shard_size=16_000)
    return place


def records(path: Path) -> list[tuple[str, str, bytes]]:
    """Key, class and image of each record."""
    with open_store(path) as reader:
        assert packstore.verify(path).problems == ()
        classes = reader.manifest.classes
        assert classes is not None
        labels = reader.fixed_column("label").tolist()
        return [(reader.key(i), classes[labels[i]], bytes(reader.read(i))) for i in range(len(reader))]


def digest(path: Path) -> str:
    with open_store(path) as reader:
        return reader.manifest.dataset_digest


@pytest.mark.sampled(3, fast=0)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("first", ["first", "first_s"])
@pytest.mark.parametrize("second", ["second", "second_s"])
def test_merged_is_as_if_converted_at_once(
    stores: Path, tmp_path: Path, suffix: str, first: str, second: str
) -> None:  # fmt: skip
    out = tmp_path / f"out{suffix}"
    report = packstore.merge([stores / f"{first}{suffix}", stores / f"{second}{suffix}"], out)
    assert records(out) == records(stores / f"whole{suffix}")
    assert digest(out) == digest(stores / f"whole{suffix}")
    with open_store(out) as a, open_store(stores / f"whole{suffix}") as b:
        assert [c.nbytes for c in a.manifest.columns] == [c.nbytes for c in b.manifest.columns]
        if first == "first_s":
            assert report.linked == len(open_store(stores / f"{first}{suffix}").manifest.shards or ())
        assert report.copied == (0 if first == "first_s" else 24) + 12  # the number of cat is another one
    assert [p.name for p in tmp_path.iterdir()] == [out.name]


def test_shards_are_linked_without_being_opened(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    for split in ("train", "val"):
        packstore.convert(photos, tmp_path / f"{split}.lmdb", split=split, shard_size=3000)
    before = {path.stat().st_ino for path in tmp_path.rglob("data.mdb")}
    monkeypatch.setattr(Shards, "open", lambda *_: pytest.fail("a shard is opened"))
    report = packstore.merge(
        [tmp_path / "train.lmdb", tmp_path / "val.lmdb"], tmp_path / "out.lmdb", on_duplicate="unchecked"
    )
    monkeypatch.undo()
    assert report.copied == 0
    assert {path.stat().st_ino for path in (tmp_path / "out.lmdb").rglob("data.mdb")} == before
    packstore.convert(photos, tmp_path / "whole.lmdb")
    assert digest(tmp_path / "out.lmdb") == digest(tmp_path / "whole.lmdb")


def test_stores_that_do_not_fit(photos: Path, stores: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "pixels.h5", encoding="uint8", size=16)
    packstore.convert(photos, tmp_path / "others.h5", encoding="uint8", size=24)
    packstore.convert(photos / "train", tmp_path / "train.h5")
    (tmp_path / "flat").mkdir()
    shutil.copy2(photos / "train/ant/000.jpg", tmp_path / "flat/a.jpg")
    packstore.convert(tmp_path / "flat", tmp_path / "flat.h5")
    for pair, message in (
        (
            (stores / "first.h5", tmp_path / "pixels.h5"),
            "differ in encoding: original, uint8; convert one of them first",
        ),
        ((tmp_path / "pixels.h5", tmp_path / "others.h5"), "were resized in different ways"),
        ((stores / "first.h5", tmp_path / "train.h5"), "has splits and the other has none"),
        ((tmp_path / "flat.h5", tmp_path / "train.h5"), "have different columns: only one of them has label"),
    ):
        with pytest.raises(StoreError, match=message):
            packstore.merge(pair, tmp_path / "out.h5")
    with pytest.raises(UsageError, match="merge takes two stores or more"):
        packstore.merge([tmp_path / "flat.h5"], tmp_path / "out.h5")
    with pytest.raises(UsageError, match="takes a list of stores"):
        packstore.merge(str(tmp_path / "flat.h5"), tmp_path / "out.h5")
    with pytest.raises(DestinationError, match="one lies in the other"):
        packstore.merge([stores / "first.h5", stores / "second.h5"], stores / "first.h5", overwrite=True)
    assert not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize(
    ("images", "columns", "message"), [([5], [], "checksum of its image"), ([], ["label"], r"row checksum \(label")]
)
def test_damage_is_not_copied(
    stores: Path, tmp_path: Path, images: list[int], columns: list[str], message: str
) -> None:
    shutil.copy2(stores / "second.pth", tmp_path / "bad.pth")
    damage(tmp_path / "bad.pth", images, columns)
    with pytest.raises((CorruptRecordError, IndexError)):
        packstore.merge([stores / "first.h5", tmp_path / "bad.pth"], tmp_path / "out.h5")
    with pytest.raises(CorruptRecordError, match=message):
        packstore.select(tmp_path / "bad.pth", tmp_path / "out.h5")
    with open_store(tmp_path / "bad.pth") as reader:
        records = Proven(reader)
        with pytest.raises(CorruptRecordError, match=message):
            [(records.prove_image(number), records.prove_fields(number)) for number in range(len(reader))]
    assert [p.name for p in tmp_path.iterdir()] == ["bad.pth"]


def test_nothing_is_replaced_unasked(stores: Path, tmp_path: Path) -> None:
    pair = [stores / "first_s.h5", stores / "second_s.h5"]
    packstore.merge(pair, tmp_path / "out.h5")
    before = content(tmp_path / "out.h5")
    with pytest.raises(DestinationError, match="exists already"):
        packstore.merge(pair, tmp_path / "out.h5")
    dry = run("merge", *pair, "-o", tmp_path / "out.h5", "--dry-run")
    assert (dry.returncode, "exists already" in dry.stderr) == (1, True)
    assert content(tmp_path / "out.h5") == before
    packstore.merge(pair, tmp_path / "out.h5", overwrite=True)
    assert digest(tmp_path / "out.h5") == digest(stores / "whole.h5")


# select


@pytest.mark.parametrize("name", ["whole", "whole_s"])
def test_a_condition(photos: Path, stores: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "val.h5"
    packstore.select(stores / f"{name}.h5", out, where="split == val")
    assert (open_store(out).manifest.shards is None) == (name == "whole")
    packstore.convert(photos, tmp_path / "direct.h5", split="val")
    assert digest(out) == digest(tmp_path / "direct.h5")


def test_whole_shards_are_linked_and_the_rest_is_copied(stores: Path, tmp_path: Path) -> None:
    report = packstore.select(stores / "whole_s.h5", tmp_path / "out.h5", where="key != 'train/bee/001.png'")
    assert report.linked > 2
    assert 0 < report.copied < 12
    assert records(tmp_path / "out.h5") == [r for r in records(stores / "whole_s.h5") if r[0] != "train/bee/001.png"]
    assert packstore.select(stores / "whole_s.h5", tmp_path / "all.h5").copied == 0
    assert digest(tmp_path / "all.h5") == digest(stores / "whole_s.h5")


def keys(path: Path, split: str | None = None) -> list[str]:
    with open_store(path) as reader:
        chosen = reader.split(split)
        return [reader.key(i) for i in range(chosen.start, chosen.stop)]


@pytest.mark.parametrize("options", [{"sample": 10}, {"per_class": 3}, {"splits": {"a": 0.5, "b": 0.5}}])
def test_what_is_drawn_depends_on_the_seed_alone(stores: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    found = []
    for number, (name, seed) in enumerate((("whole.h5", 0), ("whole_s.h5", 0), ("whole.lmdb", 0), ("whole.h5", 1))):
        out = tmp_path / f"{number}.h5"
        packstore.select(stores / name, out, seed=seed, **options)
        found.append((keys(out), digest(out)))
    assert found[0] == found[1] == found[2] != found[3]


def test_samples(stores: Path, tmp_path: Path) -> None:
    packstore.select(stores / "whole.h5", tmp_path / "a.h5", sample=10)
    assert len(keys(tmp_path / "a.h5")) == 10
    packstore.select(stores / "whole.h5", tmp_path / "b.h5", sample=9, stratify=True)
    assert Counter(name for _, name, _ in records(tmp_path / "b.h5")) == {"ant": 3, "bee": 3, "cat": 3}
    packstore.select(stores / "whole.h5", tmp_path / "c.h5", per_class=2)
    assert Counter(name for _, name, _ in records(tmp_path / "c.h5")) == {"ant": 2, "bee": 2, "cat": 2}
    packstore.select(stores / "whole.h5", tmp_path / "d.h5", sample=36)
    assert digest(tmp_path / "d.h5") == digest(stores / "whole.h5")
    with pytest.raises(StoreError, match="a sample of 37 records is asked for, and there are 36"):
        packstore.select(stores / "whole.h5", tmp_path / "e.h5", sample=37)
    with pytest.raises(StoreError, match="no records are chosen"):
        packstore.select(stores / "whole.h5", tmp_path / "e.h5", where="key == nothing")
    assert not (tmp_path / "e.h5").exists()


@pytest.mark.parametrize("stratify", [False, True])
def test_new_splits(stores: Path, tmp_path: Path, stratify: bool) -> None:
    shares = {"train": 0.5, "val": 0.25, "test": 0.25}
    packstore.select(stores / "whole.h5", tmp_path / "x.h5", splits=shares, stratify=stratify)
    with open_store(tmp_path / "x.h5") as reader:
        assert [(s.name, len(s)) for s in reader.manifest.splits] == [("train", 18), ("val", 9), ("test", 9)]
        labels = reader.fixed_column("label").tolist()
    assert sorted(keys(tmp_path / "x.h5")) == sorted(keys(stores / "whole.h5"))
    if stratify:
        assert Counter(labels[:18]) == {0: 6, 1: 6, 2: 6}
        assert Counter(labels[18:27]) == Counter(labels[27:]) == {0: 3, 1: 3, 2: 3}
    assert keys(tmp_path / "x.h5", "val") != sorted(keys(stores / "whole.h5"))[18:27]


def test_a_split_without_records_is_refused(stores: Path, tmp_path: Path) -> None:
    """It would vanish without a word."""
    shares = {"train": 0.999, "val": 0.001}
    with pytest.raises(StoreError, match=r"the split 'val' would be empty: it is to have 0.001 of \d+ records"):
        packstore.select(stores / "whole.h5", tmp_path / "x.h5", splits=shares)
    with pytest.raises(StoreError, match=r"the split 'val' would be empty: it is to have 0.001 of \d+ shards"):
        packstore.select(stores / "whole_s.h5", tmp_path / "x.h5", splits=shares, whole_shards=True)
    assert list(tmp_path.iterdir()) == []


def test_whole_shards(stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shards, "open", lambda *_: pytest.fail("a shard is opened"))
    shares = {"train": 0.7, "val": 0.3}
    report = packstore.select(stores / "whole_s.lmdb", tmp_path / "x.lmdb", whole_shards=True, splits=shares)
    monkeypatch.undo()
    assert report.copied == 0
    assert sorted(records(tmp_path / "x.lmdb")) == sorted(records(stores / "whole_s.lmdb"))
    assert [s.name for s in report.manifest.splits] == ["train", "val"]
    report = packstore.select(stores / "whole_s.h5", tmp_path / "y.h5", whole_shards=True, where="split == val")
    assert keys(tmp_path / "y.h5") == keys(stores / "whole_s.h5", "val")
    read: list[Path] = []
    monkeypatch.setattr(composing, "read_manifest", lambda path: (read.append(path), read_manifest(path))[1])
    for split in ("train", "val"):
        read.clear()
        place = tmp_path / f"{split}_only.lmdb"
        report = packstore.select(stores / "whole_s.lmdb", place, whole_shards=True, where=f"split == {split}")
        with open_store(stores / "whole_s.lmdb") as whole:
            assert whole.manifest.shards is not None
            # Of the shards that are taken, or of all others: of the fewer.
            assert 0 < len(read) == min(report.linked, len(whole.manifest.shards) - report.linked)
        with open_store(place) as chosen:
            columns = chosen.manifest.columns
            sizes = {c.name: sum(p.manifest.column(c.name).nbytes for p in chosen.parts()) for c in columns}
            assert sizes == {c.name: c.nbytes for c in columns}
    for store, options, message in (
        ("whole.h5", {}, "can only be taken of a directory of shards"),
        ("whole_s.h5", {"where": "label == cat"}, "can only ask for splits"),
        ("whole_s.h5", {"sample": 3}, "only where, splits and seed go with it"),
    ):
        with pytest.raises(UsageError, match=message):
            packstore.select(stores / store, tmp_path / "z.h5", whole_shards=True, **options)


def test_other_classes(stores: Path, tmp_path: Path) -> None:
    (tmp_path / "map.csv").write_text("old,new\nant,insect\nbee,insect\n")
    packstore.select(stores / "whole_s.h5", tmp_path / "a.h5", relabel=tmp_path / "map.csv")
    assert packstore.open(tmp_path / "a.h5").manifest.classes == ("insect", "cat")
    renamed = [(key, {"cat": "cat"}.get(name, "insect"), data) for key, name, data in records(stores / "whole.h5")]
    assert records(tmp_path / "a.h5") == renamed
    packstore.select(stores / "whole.h5", tmp_path / "b.h5", relabel={"ant": ""})
    assert records(tmp_path / "b.h5") == [r for r in records(stores / "whole.h5") if r[1] != "ant"]
    assert packstore.open(tmp_path / "b.h5").manifest.classes == ("bee", "cat")
    for text, message in (
        ("old;new\n", "should begin with the line old,new"),
        ("old,new\nant\n", "line 2: expected a class"),
        ("old,new\nant,a\nant,b\n", "line 3: expected a class, once"),
        ("old,new\nant2,a\n", "a class that the store lacks: 'ant2'"),
    ):
        (tmp_path / "map.csv").write_text(text)
        with pytest.raises(UsageError, match=message):
            packstore.select(stores / "whole.h5", tmp_path / "c.h5", relabel=tmp_path / "map.csv")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splits": {"a": 0.5, "b": 0.4}}, "should add up to 1"),
        ({"splits": {}}, "should add up to 1"),
        ({"splits": {"a": 1.5, "b": -0.5}}, "each share of a split should be above 0, got .*-0.5"),
        ({"splits": {"a": 0, "b": 1}}, "each share of a split should be above 0"),
        ({"splits": {"a": 0.5, "": 0.5}}, "each split needs a name"),
        ({"stratify": True}, "give one of them"),
        ({"seed": -1}, "seed"),
        ({"sample": 0}, "sample"),
        ({"drop_columns": "mask"}, "should be a list of names"),
        ({"where": 3}, "where"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SelectOptions(**options)


def test_comparing_with_a_store_of_the_same_shards_opens_none_of_it(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.h5"
    packstore.merge([stores / "first_s.h5", stores / "second_s.h5"], other)
    packstore.select(other, tmp_path / "same.h5")
    monkeypatch.setattr(StoreSource, "entries", lambda *_: pytest.fail("its records are listed"))
    report = packstore.verify(tmp_path / "same.h5", against=other)
    assert report.ok, report.problems
    monkeypatch.undo()
    packstore.select(tmp_path / "same.h5", tmp_path / "less.h5", where="key != 'val/cat/005.png'")
    assert packstore.verify(tmp_path / "less.h5", against=tmp_path / "same.h5").differences == 1


def test_the_order_of_classes(tmp_path: Path, photos: Path) -> None:
    a, b = tmp_path / "a.h5", tmp_path / "b.h5"
    packstore.convert(photos, tmp_path / "all.h5")
    packstore.select(tmp_path / "all.h5", a, where="label == cat", relabel={"ant": "", "bee": ""})
    packstore.select(tmp_path / "all.h5", b, where="label == ant", relabel={"cat": "", "bee": ""})
    merged = packstore.merge([a, b], tmp_path / "plain.h5").manifest
    assert merged.classes == ("cat", "ant")
    done = run("merge", a, b, "-o", tmp_path / "given.h5", "--classes", "ant,bee,cat")
    assert "classes  label: 3 (ant, bee, cat)" in done.stdout
    assert packstore.verify(tmp_path / "given.h5").ok
    with open_store(tmp_path / "given.h5") as reader:
        assert reader.manifest.classes == ("ant", "bee", "cat")
        for i in range(len(reader)):
            assert ("ant", "bee", "cat")[int(reader.value("label", i))] in reader.key(i)
    (tmp_path / "names.txt").write_text("ant\ncat\n")
    run("merge", a, b, "-o", tmp_path / "file.h5", "--classes", tmp_path / "names.txt")
    assert read_manifest(tmp_path / "file.h5").classes == ("ant", "cat")
    for given, said in ((["ant"], "lacks 1 .cat."), (["ant", "cat", "ant"], "'ant' twice"), ("ant", "a list of names")):
        with pytest.raises(UsageError, match=said):
            packstore.merge([a, b], tmp_path / "no.h5", classes=given)


@pytest.mark.parametrize("whole_shards", [False, True])
def test_records_that_change_their_split_are_counted(tmp_path: Path, photos: Path, whole_shards: bool) -> None:
    store = tmp_path / "x.h5"
    packstore.convert(photos, store, shard_size=3000)
    old = dict(zip(*keys_and_splits(store), strict=True))
    report = packstore.select(
        store, tmp_path / "y.h5", splits={"train": 0.5, "val": 0.5}, whole_shards=whole_shards, seed=1
    )
    new = dict(zip(*keys_and_splits(tmp_path / "y.h5"), strict=True))
    moves = Counter((old[key], new[key]) for key in new if old[key] != new[key])
    assert report.moved == moves
    assert moves["val", "train"]
    assert f"{moves['val', 'train']} records from val to train" in merge_report_rows(report).text
    assert not packstore.select(store, tmp_path / "z.h5", sample=3).moved


def keys_and_splits(path: Path) -> tuple[list[str], list[str]]:
    with open_store(path) as reader:
        splits = [name for split in reader.manifest.splits for name in [split.name] * len(split)]
        return [reader.key(i) for i in range(len(reader))], splits
