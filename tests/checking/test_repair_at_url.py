"""``repair`` of a store at a URL: damaged and missing shards are replaced by the very bytes that they had."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import packstore
from packstore.core.errors import DestinationError, UsageError
from packstore.core.urls import UrlPath
from packstore.stores.remote.publish import upload_store
from tests.makers.command import run
from tests.makers.datasets import make_folder

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
                first = int(reader.part_starts[number])
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
def test_a_shard_of_which_nothing_is_left(stores: Stores, how: str) -> None:
    """The source alone does not say what was in it; the store that was uploaded does."""
    stores.damage(how)
    report = packstore.repair(str(stores.url), stores.photos)
    assert (report.destination, len(report.lost)) == (None, 1)
    done = run("repair", str(stores.url), "--from", stores.photos)
    assert (done.returncode, "1 lost" in done.stdout) == (1, True)
    upload_store(stores.local, stores.url, overwrite=True)
    assert stores.is_whole()


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
