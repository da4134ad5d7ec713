"""``repair`` of a store at a URL: damaged and missing shards are replaced by the very bytes that they had."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import packstore
from tests.internals import DestinationError, UrlPath, UsageError, upload_store
from tests.makers.command import run
from tests.makers.datasets import make_folder

pytestmark = pytest.mark.slow

DAMAGES = ["flipped", "truncated", "missing"]


class Stores:
    """A store on this machine, and the same at a URL."""

    def __init__(self, root: Path, suffix: str) -> None:
        self.photos = make_folder(root / "photos", per_class=6)
        self.local = root / f"x{suffix}"
        pixels: dict[str, Any] = {"encoding": "uint8", "size": 16}
        packstore.convert(
            self.photos, self.local, split="train", shard_size=6000, **({} if suffix == ".lmdb" else pixels)
        )
        self.url = UrlPath(f"{(root / 'bucket').as_uri()}/x{suffix}")
        upload_store(self.local, self.url)
        self.shards = sorted((root / "bucket" / f"x{suffix}" / "shards").iterdir())
        self.whole = {file: file.read_bytes() for file in self.shards}
        assert len(self.shards) > 1

    def damage(self, how: str, number: int = 1) -> None:
        file = self.shards[number]
        data = bytearray(file.read_bytes())
        if how == "missing":
            file.unlink()
        elif how == "truncated":
            os.truncate(file, 64)
        else:  # within an image
            with packstore.open(self.local) as reader:
                first = int(reader.table.starts[number])
                place = bytes(data).find(bytes(reader.view(first))[-40:])
            data[place + 20] ^= 4
            file.write_bytes(data)
        assert not packstore.verify(self.url).ok

    def is_whole(self) -> bool:
        return {file: file.read_bytes() for file in sorted(self.shards[0].parent.iterdir())} == self.whole


@pytest.fixture(params=[".lmdb", ".h5", ".pth"])
def stores(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    return Stores(tmp_path, request.param)


@pytest.mark.parametrize("how", DAMAGES)
def test_from_a_store_that_has_the_shard(stores: Stores, how: str) -> None:
    stores.damage(how)
    report = packstore.repair(str(stores.url), stores.local)
    assert (report.problem_count, report.lost, report.identical) == (1, (), True)
    assert [problem.shard for problem in report.replaced] == [stores.shards[1].name[:11] + stores.local.suffix]
    assert stores.is_whole()
    assert packstore.verify(stores.url, against=stores.local).problems == ()
    assert packstore.repair(str(stores.url), stores.local).problem_count == 0


def test_from_the_source(stores: Stores) -> None:
    stores.damage("flipped")
    report = packstore.repair(str(stores.url), stores.photos)
    assert (report.lost, len(report.replaced), report.identical) == ((), 1, True)
    with packstore.open(stores.local) as reader:
        assert report.replaced[0].key == reader.key(report.replaced[0].record or 0)
    assert stores.is_whole()


@pytest.mark.parametrize("how", ["truncated", "missing"])
@pytest.mark.parametrize("numbers", [[0], [1], [-1], [0, -1], "all"], ids=str)
def test_shards_of_which_nothing_is_left_are_packed_again(stores: Stores, how: str, numbers: Any) -> None:
    for number in range(len(stores.shards)) if numbers == "all" else numbers:
        stores.damage(how, number)
    report = packstore.repair(str(stores.url), stores.photos)
    count = report.problem_count
    assert (report.lost, report.identical, report.shards) == ((), True, (count, 0, 0))
    assert {problem.what for problem in report.replaced} == {"packed again from the source"}
    assert stores.is_whole()


@pytest.mark.parametrize("how", ["one is missing", "one is new", "one has changed", "another order"])
def test_another_source_packs_no_shard_again(stores: Stores, how: str) -> None:
    """Shards that the source can restore are replaced all the same, and the report says so."""
    stores.damage("missing", 0)
    stores.damage("flipped", 1)
    first, *_, last = sorted((stores.photos / "train").rglob("*.*"))
    if how == "one is missing":
        first.unlink()
    elif how == "one is new":
        shutil.copy(last, last.with_name("zzz" + last.suffix))
    elif how == "one has changed":
        shutil.copy(sorted(first.parent.glob(f"*{first.suffix}"))[-1], first)
    else:
        first.rename(first.with_name("zzz" + first.suffix))
    report = packstore.repair(str(stores.url), stores.photos)
    assert report.destination is None
    with packstore.open(stores.local) as reader:
        records = len(reader.part(0))
    assert report.shards == (1, 1, records)
    (lost,) = report.lost
    assert lost.what.startswith(f"{records} records: ")
    assert [problem.shard for problem in report.replaced] == [f"shard-00001{stores.local.suffix}"]
    assert "1 shards replaced, 1 lost" in repr(report)
    stores.damage("flipped", 1)
    done = run("repair", str(stores.url), "--from", stores.photos)
    assert done.returncode == 1
    summary = done.stdout.splitlines()[-1]
    assert f"2 damaged shards, 1 replaced in place, 1 lost with {records} record" in summary
    assert "nothing was written" not in done.stdout
    assert "--partial" not in done.stdout
    assert json.loads(run("repair", str(stores.url), "--from", stores.photos, "--json").stdout)["shards"] == [
        0,
        1,
        records,
    ]
    assert packstore.repair(str(stores.url), stores.local).identical
    assert stores.is_whole()


@pytest.mark.parametrize("gone", ["truncated", "missing"])
@pytest.mark.parametrize("number", [0, -1])
def test_a_lost_shard_keeps_no_other_from_being_packed_again(stores: Stores, gone: str, number: int) -> None:
    with packstore.open(stores.local) as reader:
        key, records = reader.key(int(reader.table.starts[1])), len(reader.part(1))
    stores.damage(gone, number)
    stores.damage("flipped", 1)
    (photo,) = (path for path in (stores.photos / "train").rglob("*.*") if path.as_posix().endswith(key))
    photo.unlink()
    shutil.rmtree(os.environ["PACKSTORE_CACHE"])  # it may hold the shards as they were
    report = packstore.repair(str(stores.url), stores.photos)
    assert report.shards == (1, 1, records)
    (lost,), (replaced,) = report.lost, report.replaced
    assert (lost.shard or "")[:11] == stores.shards[1].name[:11]
    assert "the source has no sample with its key" in lost.what
    assert replaced.what == "packed again from the source"
    assert stores.shards[number].read_bytes() == stores.whole[stores.shards[number]]


def test_skipped_samples_and_appended_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples of a missing shard are those that no other shard has, whatever packing left out."""
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    photos = make_folder(tmp_path / "photos", per_class=6)
    sorted((photos / "train").rglob("*.*"))[2].write_bytes(b"")
    url = UrlPath(f"{(tmp_path / 'bucket').as_uri()}/x.lmdb")
    packstore.convert(photos, str(url), split="train", shard_size=6000, encoding="original", on_error="skip")
    packstore.append(str(url), photos, split="val")
    folder = tmp_path / "bucket" / "x.lmdb" / "shards"
    whole = {path: path.read_bytes() for path in folder.iterdir()}
    for path in sorted(whole)[:2]:
        path.unlink()
    report = packstore.repair(str(url), photos)
    assert (report.lost, report.shards) == ((), (2, 0, 0))
    assert {path: path.read_bytes() for path in folder.iterdir()} == whole


def test_the_command(stores: Stores) -> None:
    stores.damage("flipped")
    done = run("repair", str(stores.url), "--from", stores.local)
    assert (done.returncode, "the digest is that of the undamaged store" in done.stdout) == (0, True)
    assert stores.is_whole()


def test_what_cannot_be(tmp_path: Path) -> None:
    url = (tmp_path / "nothing.lmdb").as_uri()
    with pytest.raises(UsageError, match="is repaired in place"):
        packstore.repair(url, tmp_path, tmp_path / "out.lmdb")
    with pytest.raises(UsageError, match="give a destination"):
        packstore.repair(tmp_path / "x.lmdb", tmp_path)
    with pytest.raises(DestinationError, match="holds no store that packstore published there"):
        packstore.repair(url, tmp_path)
    with pytest.raises(DestinationError, match="is read only"):
        packstore.repair("http://127.0.0.1:9/x.lmdb", tmp_path)
