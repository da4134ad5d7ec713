"""Sources that are damaged, or that change while they repair a store or are compared with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import packstore
from tests.internals import SourceError
from tests.internals import repair_module as repairing
from tests.makers.datasets import write_image
from tests.makers.stores import change, damage, files_of

SUFFIXES = ("lmdb", "h5", "pth")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for number, name in enumerate(("ant/a", "ant/b", "bee/c", "bee/d", "bee/e", "cat/f")):
        write_image(root / f"{name}.png", 10 + number % 3, 11, number)
    return root


def copy(store: Path, name: str) -> Path:
    new = store.with_name(f"{name}{store.suffix}")
    shutil.copytree(store, new) if store.is_dir() else shutil.copy(store, new)
    return new


CHANGES: dict[str, Callable[[Path], object]] = {
    "changed": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "deleted": lambda file: file.unlink(),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:40]),
    "another image": lambda file: write_image(file, 9, 9, 99),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("shard_size", [None, 700])
@pytest.mark.parametrize("partial", [False, True])
def test_a_source_that_changes_during_the_repair(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
    what: str,
    shard_size: Any,
    partial: bool,
) -> None:
    store = tmp_path / f"bad.{suffix}"
    packstore.convert(photos, store, encoding="original", shard_size=shard_size)
    damage(store, [1, 3], [])
    real = repairing._Repair._write_store

    def write(self: Any, lost: Any) -> None:
        CHANGES[what](photos / "ant" / "b.png")
        real(self, lost)

    monkeypatch.setattr(repairing._Repair, "_write_store", write)
    with pytest.raises(
        SourceError, match=r"the source .*photos has changed during the repair: record 1 \(ant/b\.png\)"
    ):
        packstore.repair(store, photos, tmp_path / "fixed", partial=partial)
    assert sorted(p.name for p in tmp_path.iterdir()) == [store.name, "photos"]


def test_a_linked_file_that_changes_during_the_repair(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, copied = tmp_path / "bad.lmdb", tmp_path / "copied"
    shutil.copytree(photos, copied)
    packstore.convert(photos, store, link=True)
    (photos / "ant" / "b.png").write_bytes(b"x" * 300)
    real = repairing._Repair._write_store

    def write(self: Any, lost: Any) -> None:
        (copied / "ant" / "b.png").unlink()
        real(self, lost)

    monkeypatch.setattr(repairing._Repair, "_write_store", write)
    with pytest.raises(SourceError, match="has changed during the repair"):
        packstore.repair(store, copied, tmp_path / "fixed.lmdb")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.lmdb", "copied", "photos"]


def damage_offsets(store: Path, column: str = "key") -> None:
    """Makes the offsets of two keys impossible."""
    with packstore.open(store) as reader:
        offsets = [part.ragged_column(column).offsets.tobytes() for part in reader.parts()]
    change(store, max(offsets, key=len), 8 + 6)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("columns", [[], ["label"], ["key"]], ids=str)
def test_a_damaged_donor_is_named(photos: Path, tmp_path: Path, suffix: str, columns: list[str]) -> None:
    good = tmp_path / f"good.{suffix}"
    packstore.convert(photos, good, encoding="original")
    bad, donor = copy(good, "bad"), copy(good, "donor")
    damage(bad, [1], columns)
    damage_offsets(donor)
    with pytest.raises(SourceError, match=rf"the source .*donor\.{suffix} cannot be read: "):
        packstore.repair(bad, donor, tmp_path / f"fixed.{suffix}")
    with pytest.raises(SourceError, match=rf"the source .*donor\.{suffix} cannot be read: "):
        packstore.verify(good, against=donor)
    assert not (tmp_path / f"fixed.{suffix}").exists()


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_records_of_a_donor_are_passed_over(photos: Path, tmp_path: Path, suffix: str) -> None:
    good = tmp_path / f"good.{suffix}"
    packstore.convert(photos, good, encoding="original")
    bad, donor = copy(good, "bad"), copy(good, "donor")
    damage(bad, [1, 3], [])
    damage(donor, [3], ["label"], 4)
    report = packstore.repair(bad, donor, tmp_path / f"fixed.{suffix}", partial=True)
    assert ([p.record for p in report.replaced], [p.record for p in report.lost]) == ([1], [3])
    assert "the source's image cannot be used" in report.lost[0].what
    found = packstore.verify(good, against=donor).problems
    assert {p.record for p in found} == {3, 4}
    assert any("the source's sample cannot be read" in p.what for p in found)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("what", "shard_size"),
    [("offsets", None), ("offsets", 700), ("label", None), ("label", 700), ("lost shard", 700)],
)
def test_damage_of_the_compared_store_is_reported(
    photos: Path, tmp_path: Path, suffix: str, what: str, shard_size: int | None
) -> None:
    good = tmp_path / f"good.{suffix}"
    packstore.convert(photos, good, encoding="original", shard_size=shard_size)
    bad = copy(good, "bad")
    if what == "offsets":
        damage_offsets(bad)
    elif what == "label":
        damage(bad, [], ["label"], 0)
    else:
        files_of(bad / f"shard-00001.{suffix}")[0].unlink()
    for source in (photos, good):
        report = packstore.verify(bad, against=source)
        assert report.problem_count > report.differences
        assert packstore.verify(good, against=photos).ok
