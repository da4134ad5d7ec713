"""``--ignore``: what a pattern matches is treated as not there by every kind, and stays so for ``verify``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from packstore import AmbiguousSourceError, SampleError, SourceError, UsageError, append, convert, repair, verify
from packstore.sources import open_source
from tests.internals import (
    IGNORED,
    Listing,
    active_rules,
    apply_ignore_rules,
    compile_ignore_rules,
    ignore_paths,
    is_ignored,
    location,
)
from tests.makers.all_layouts import corpus
from tests.makers.annotated import fill, jpeg, mask
from tests.makers.command import run
from tests.makers.images import tiny
from tests.makers.s3 import Double, upload

FILES: dict[str, str | bytes] = {
    **{f"{label}/{number}.png": tiny(number) for label in ("cat", "dog") for number in range(4)},
    **{f"extra/cat/{number}.png": tiny(number) for number in range(4)},
    **{f"{label}/{number}.txt": "a cat" for label in ("cat", "dog") for number in range(4)},
}
PATTERNS = ("*.txt", "/extra")


@pytest.mark.parametrize(
    ("pattern", "hidden", "seen"),
    [
        ("*.txt", ["a.txt", "x/a.txt", "x.txt/b.jpg"], ["a.txt2", "atxt", "x/a.jpg"]),
        ("masks", ["masks", "masks/a.png", "train/masks/a.png"], ["masks2/a.png", "a/mask"]),
        ("masks/", ["masks/a.png", "x/masks/y/a.png"], ["masks", "x/masks"]),
        ("train/masks", ["train/masks/a.png", "train/masks"], ["masks", "x/train/masks/a.png"]),
        ("/a.csv", ["a.csv"], ["x/a.csv"]),
        ("**/gt/*.png", ["gt/a.png", "x/y/gt/a.png"], ["gt/x/a.jpg", "gt/a.jpg"]),
        ("gt/**", ["gt/a.png", "gt/x/a.png"], ["gt", "x/gt/a.png"]),
        ("[!a]_?.jpg", ["b_1.jpg", "x/c_2.jpg"], ["a_1.jpg", "b_12.jpg", "b_/.jpg"]),
        (r"a\*b", ["a*b"], ["aXb"]),
        ("[[]1].jpg", ["[1].jpg"], ["1.jpg"]),
    ],
)
def test_patterns_are_those_of_gitignore(pattern: str, hidden: Sequence[str], seen: Sequence[str]) -> None:
    rules = compile_ignore_rules((pattern,))
    assert [path for path in hidden if not rules.hides(path)] == []
    assert [path for path in seen if rules.hides(path)] == []
    assert rules.ignore_reason("", hidden[0]) == IGNORED
    assert rules.ignore_reason("", seen[0]) is None


@pytest.mark.parametrize(
    "pattern", ["", "/", "*", "**", "**/*", "!a", "#a", "a/../b", "./a", "a//b", "[a", "[]", "[z-a]", "a\0"]
)
def test_what_is_no_pattern_is_refused(pattern: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a pattern"):
        open_source(fill(tmp_path, FILES), ignore=[pattern])


@pytest.mark.parametrize("given", [[1], 1, None, {"a": 1}])
def test_patterns_are_text(given: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ignore should be patterns"):
        open_source(fill(tmp_path, FILES), ignore=given)  # type: ignore[arg-type]


@pytest.mark.parametrize("packed", ["folder", "zip", "tar"])
def test_a_tree_without_what_is_ignored(packed: str, tmp_path: Path) -> None:
    root = fill(tmp_path / "set", FILES)
    path = root if packed == "folder" else Path(shutil.make_archive(str(tmp_path / "set"), packed, root))
    with pytest.raises(AmbiguousSourceError):
        open_source(path)
    with closing(open_source(path, ignore=PATTERNS)) as source:
        assert source.kind == "imagefolder"
        survey = source.survey()
    assert survey.labels[0].classes == ("cat", "dog")
    assert survey.records == 8
    assert survey.ledger.left == {IGNORED: 12}
    assert survey.ledger.total == len(FILES)


def test_one_pattern_is_text() -> None:
    assert compile_ignore_rules(("a",)).hides("a")


def test_a_store_remembers_what_was_ignored(tmp_path: Path) -> None:
    root, store = fill(tmp_path / "set", FILES), tmp_path / "x.lmdb"
    convert(root, store, ignore=PATTERNS)
    report = verify(store, against=root)
    assert report.ok, report.problems
    append(
        store, fill(tmp_path / "more", {"cat/9.png": tiny(77), "dog/9.txt": "", "dog/10.png": tiny(78)}), ignore="*.txt"
    )
    again = tmp_path / "again.lmdb"
    convert(root, again, ignore=PATTERNS)
    data = again / "data.mdb"
    data.write_bytes(data.read_bytes().replace(tiny(2), tiny(2)[:-1] + b"!"))
    assert repair(again, root, tmp_path / "whole.lmdb").replaced
    assert verify(tmp_path / "whole.lmdb", against=root).ok


@pytest.mark.slow
def test_the_command_line(tmp_path: Path) -> None:
    root = fill(tmp_path / "set", FILES)
    given = [word for pattern in PATTERNS for word in ("--ignore", pattern)]
    assert run("info", root).returncode == 2
    told = run("info", root, *given, "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["records"] == 8
    assert "--ignore '*.txt' --ignore /extra" in run("info", root, *given).stdout
    assert run("convert", root, tmp_path / "x.lmdb", *given).returncode == 0
    assert run("verify", tmp_path / "x.lmdb", "--against", root).returncode == 0
    assert run("verify", tmp_path / "x.lmdb", "--ignore", "a").returncode == 2


@pytest.mark.parametrize(
    ("name", "patterns"),
    [
        ("tfrecord", ["detection*", "plain.tfrec"]),
        ("tfrecord", ["slim-*", "detection*"]),
        ("webdataset", ["odd.tar"]),
    ],
)
def test_kinds_that_list_by_themselves(name: str, patterns: list[str], tmp_path: Path) -> None:
    path = corpus(name)(tmp_path)
    if patterns[0].startswith("odd"):
        fill(path, {patterns[0]: "of another kind"})
    with pytest.raises((SourceError, SampleError)), closing(open_source(path)) as source:
        source.survey()
    with closing(open_source(path, ignore=patterns)) as source:
        assert source.survey().records


def test_masks_and_labels_that_are_ignored_are_no_question(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"images/{n}.jpg": jpeg(n) for n in range(4)}
    files |= {f"masks/{n}.png": mask(n) for n in range(4)} | {f"labels/{n}.txt": "0 .5 .5 .1 .1" for n in range(4)}
    root = fill(tmp_path, files)
    with closing(open_source(root, ignore=["masks"])) as source:
        assert source.kind == "yolo"
    with closing(open_source(root, ignore=["labels"])) as source:
        assert source.kind == "companions"
    with closing(open_source(root / "images", ignore=["labels"])) as source:
        assert source.kind == "flat"


def test_a_listing_keeps_sizes_in_step(tmp_path: Path) -> None:
    root = fill(tmp_path, {f"{n}.png": bytes(n + 1) for n in range(20)})
    with closing(open_source(root, kind="flat", ignore=["1?.png"])) as source:
        listing: Listing = source.tree.list("")  # type: ignore[attr-defined]
    assert dict(zip(listing.images, listing.sizes, strict=True)) == {f"{n}.png": n + 1 for n in range(10)}


@pytest.mark.slow
def test_a_bucket_without_what_is_ignored(s3_double: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listed as it lies there, or copied first."""
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    url = upload(fill(tmp_path / "set", FILES), "s3://bucket/set")
    with closing(open_source(location(url), ignore=PATTERNS)) as source:
        survey = source.survey()
    assert (source.kind, survey.records, survey.ledger.left) == ("imagefolder", 8, {IGNORED: 12})
    url = upload(fill(tmp_path / "shards", {"odd.tar": "x"}), "s3://bucket/shards")
    upload(corpus("webdataset")(tmp_path), "s3://bucket/shards")
    with closing(open_source(location(url), ignore="odd.tar")) as source:
        assert (source.kind, source.survey().ledger.left) == ("webdataset", {IGNORED: 1})


@pytest.mark.slow
def test_processes_of_a_cluster_ignore_the_same(s3_double: Double, tmp_path: Path) -> None:
    root = fill(tmp_path / "set", FILES)
    made = [run("convert", root, "s3://bucket/x.lmdb", "--shard-size", "300B", "--cluster", "processes:2",
                *(word for pattern in PATTERNS for word in ("--ignore", pattern)))]  # fmt: skip
    assert made[0].returncode == 0, made[0].stderr
    alone = convert(root, tmp_path / "x.lmdb", ignore=PATTERNS, shard_size=300)
    told = json.loads(run("info", "s3://bucket/x.lmdb", "--json").stdout)
    assert told["dataset_digest"] == alone.manifest.dataset_digest


def test_another_pattern_is_another_conversion(tmp_path: Path) -> None:
    """An interrupted run with one pattern is not resumed with another."""
    root = fill(tmp_path / "set", FILES)
    opened = [open_source(root, ignore=patterns) for patterns in (PATTERNS, ["*.txt", "extra/"])]
    assert opened[0].resume_key() != opened[1].resume_key()


def test_patterns_of_a_part_of_the_source_are_those_from_its_top(tmp_path: Path) -> None:
    rules = compile_ignore_rules(("a/b.txt", "c"))
    with apply_ignore_rules(tmp_path, rules):
        inside = active_rules(tmp_path / "a")
        assert (inside.hides("b.txt"), inside.hides("x.txt"), inside.hides("c")) == (True, False, True)
        assert not active_rules(tmp_path.parent)
        assert not is_ignored(tmp_path.parent / "c")


def test_arguments_ignore_exactly_the_paths() -> None:
    patterns = ignore_paths(["a[1].json", "b/*.csv"])[1::2]
    rules = compile_ignore_rules(patterns)
    hidden = [path for path in ("a[1].json", "a1.json", "b/*.csv", "b/x.csv", "c/a[1].json") if rules.hides(path)]
    assert hidden == ["a[1].json", "b/*.csv"]
    assert ignore_paths(["a", "b"])[::2] == ("--ignore", "--ignore")
