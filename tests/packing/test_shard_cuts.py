"""Shards end where the plan says, whatever was packed before them; any process makes any shard, to the byte."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import packstore
from packstore.stores import open_store
from tests.internals import ConvertOptions, Entry, Plan, ShardCuts, ShardRule, make_plan, pack_shard
from tests.makers.command import run_program
from tests.makers.datasets import make_folder
from tests.makers.stores import content

SUFFIXES = (".lmdb", ".h5", ".pth")
PASSING: dict[str, Any] = {"encoding": "original", "shard_size": 8000}
ENCODING: dict[str, Any] = {"encoding": "jpeg", "resize": 32, "shard_size": 3000}
PIXELS: dict[str, Any] = {"encoding": "uint8", "size": 16, "shard_size": 5 * 768}
FLOATS: dict[str, Any] = {"encoding": "float16", "size": 16, "shard_size": 5000, "normalize": "auto"}

PROGRAM = """
import sys, json
from pathlib import Path
from packstore.core.progress import no_progress
from packstore.packing import ConvertOptions
from packstore.packing.plan import make_plan
from packstore.packing.run import pack_shard
from packstore.packing.run import with_statistics
source, store, options, folder, *numbers = sys.argv[1:]
for number in map(int, numbers):
    plan = with_statistics(make_plan(Path(source), Path(store), ConvertOptions(**json.loads(options))), 1, no_progress)
    entries = [*plan.shards.split_entries(plan.source.entries())][number]
    pack_shard(plan, entries, Path(folder, f"{number}{Path(store).suffix}"))
"""


def entries(*sizes: int, splits: str = "") -> Iterator[Entry]:
    return (
        Entry(str(i), split.strip(), (), size, i)
        for i, (size, split) in enumerate(zip(sizes, splits or " " * 99, strict=False))
    )


def cut(rule: ShardRule, some: Iterator[Entry]) -> list[int]:
    cuts = ShardCuts(rule)
    return [int(entry.key) for entry in some if cuts.begins_shard(entry)]


def test_the_rule() -> None:
    assert cut(ShardRule("bytes", 10), entries(4, 6, 1, 20, 1, 9, 1)) == [0, 2, 3, 4, 6]
    assert cut(ShardRule("samples", 3), entries(4, 6, 1, 20, 1, 9, 1)) == [0, 3, 6]
    assert cut(ShardRule("samples", 3), entries(1, 1, 1, 1, 1, 1, 1, splits="aabbbba")) == [0, 2, 5, 6]
    rule = ShardRule("bytes", 10)
    assert [[int(e.key) for e in shard] for shard in rule.split_entries(entries(4, 6, 1, 20, 1))] == [
        [0, 1],
        [2],
        [3],
        [4],
    ]
    assert list(rule.split_entries(entries())) == []


def test_the_rule_of_a_size() -> None:
    assert ShardRule.for_size(1000, 300, []) == ShardRule("samples", 3)
    assert ShardRule.for_size(10, 300, []) == ShardRule("samples", 1)
    assert ShardRule.for_size(1000, None, []) == ShardRule("bytes", 1000)
    assert ShardRule.for_size(1000, None, [(200, 90), (100, 60)]) == ShardRule("bytes", 2000)
    assert ShardRule.for_size(1000, None, [(0, 0)]) == ShardRule("bytes", 1000)


@pytest.fixture(scope="module")
def folder_to_cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("photos"), per_class=5)


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("options", [PASSING, ENCODING, PIXELS, FLOATS], ids=lambda o: o["encoding"])
def test_shards_in_any_order_each_in_a_process_of_its_own(
    folder_to_cut: Path, tmp_path: Path, suffix: str, options: dict[str, Any], rng: random.Random
) -> None:
    whole = tmp_path / f"whole{suffix}"
    manifest = packstore.convert(folder_to_cut, whole, **options).manifest
    assert manifest.shards is not None
    count = len(manifest.shards)
    assert count > 3
    numbers = rng.sample(range(count), 2)
    for number in numbers:
        arguments = [
            str(folder_to_cut),
            str(tmp_path / f"other{suffix}"),
            json.dumps(options),
            str(tmp_path),
            str(number),
        ]
        done = run_program(PROGRAM, *arguments)
        assert done.returncode == 0, done.stderr
        packed = content(tmp_path / f"{number}{suffix}")
        assert list(packed.values()) == list(content(whole / manifest.shards.name(number)).values())


@pytest.mark.sampled(2, fast=0)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("options", [PASSING, ENCODING], ids=lambda o: o["encoding"])
def test_all_shards_of_a_plan_are_the_store(
    folder_to_cut: Path, tmp_path: Path, suffix: str, options: dict[str, Any]
) -> None:
    whole = tmp_path / f"whole{suffix}"
    manifest = packstore.convert(folder_to_cut, whole, **options).manifest
    assert manifest.shards is not None
    plan = make_plan(folder_to_cut, tmp_path / f"other{suffix}", ConvertOptions(**options))
    shards = shards_of(plan)
    assert len(shards) == len(manifest.shards)
    for number in reversed(range(len(shards))):
        shard, tally = pack_shard(plan, shards[number], tmp_path / manifest.shards.name(number))
        assert shard is not None
        assert tally.source_bytes == sum(entry.size_bytes for entry in shards[number])
        packed = content(tmp_path / manifest.shards.name(number))
        assert list(packed.values()) == list(content(whole / manifest.shards.name(number)).values())


def shards_of(plan: Plan) -> list[list[Entry]]:
    """The entries of each shard."""
    assert plan.shards is not None
    return list(plan.shards.split_entries(plan.source.entries()))


def cuts_of(path: Path) -> list[list[str]]:
    """The keys in each shard."""
    with open_store(path) as reader:
        return [[part.key(i) for i in range(len(part))] for part in reader.parts()]


@pytest.mark.slow
def test_skipped_samples_move_no_cut(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "photos", per_class=5)
    packstore.convert(folder, tmp_path / "all.h5", **PASSING)
    before = cuts_of(tmp_path / "all.h5")
    assert len(before) > 4
    bad = [before[1][0], before[2][-1], *before[3]]  # the first of one shard, the last of another, and one as a whole
    for key in bad:
        (folder / key).write_bytes(bytes((folder / key).stat().st_size))
    packstore.convert(folder, tmp_path / "some.h5", **PASSING, on_error="skip")
    after = [[key for key in shard if key not in bad] for shard in before]
    assert cuts_of(tmp_path / "some.h5") == [shard for shard in after if shard]
    plan = make_plan(folder, tmp_path / "other.h5", ConvertOptions(**PASSING, on_error="skip"))
    shards = shards_of(plan)
    assert pack_shard(plan, shards[0], tmp_path / "0.h5")[0] is not None
    nothing, tally = pack_shard(plan, shards[3], tmp_path / "3.h5")
    assert nothing is None
    assert [skipped.key for skipped in tally.skipped] == before[3]


def test_a_shard_holds_one_split(folder_to_cut: Path, tmp_path: Path) -> None:
    packstore.convert(folder_to_cut, tmp_path / "x.h5", shard_size="1GB")
    assert [{key.partition("/")[0] for key in shard} for shard in cuts_of(tmp_path / "x.h5")] == [{"train"}, {"val"}]
