"""Stores at URLs: seen in the page, on a sheet, in a notebook and by an audit, without fetching more than is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import packstore
from packstore.augment import RandomHorizontalFlip
from packstore.objects import ObjectStore, RemoteError
from packstore.stores import open_store
from tests.conftest import Need
from tests.internals import (
    SHARDS,
    RemoteShards,
    SheetOptions,
    StoreError,
    UnreachableError,
    UrlPath,
    find_parts_within,
    location,
    sheet,
    spread_local_records,
    upload_store,
)
from tests.internals import site as site_module
from tests.makers.command import run
from tests.makers.datasets import make_folder
from tests.makers.viewing import AVAILABLE, ask, client_of

pytestmark = pytest.mark.slow

SECRETS = {"AWS_ACCESS_KEY_ID": "AKIA-the-key-of-somebody", "AWS_SECRET_ACCESS_KEY": "the-secret-of-somebody"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PACKSTORE_CACHE_SIZE", "100MB")
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 records of two splits and three classes, in a shard for every few of them."""
    root = tmp_path_factory.mktemp("local")
    packstore.convert(make_folder(root / "photos"), root / "x.lmdb", shard_size=3000)
    return root / "x.lmdb"


@pytest.fixture
def url(local: Path, tmp_path: Path) -> UrlPath:
    found = location((tmp_path / "bucket").as_uri() + "/x.lmdb")
    assert isinstance(found, UrlPath)
    upload_store(local, found)
    return found


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the shards that are fetched."""
    made: list[str] = []
    stream = ObjectStore.stream

    def noted(self: ObjectStore, name: str) -> Iterator[bytes]:
        if name.startswith(SHARDS):
            made.append(name)
        return stream(self, name)

    monkeypatch.setattr(ObjectStore, "stream", noted)
    return made


def shard_files(url: UrlPath) -> list[Path]:
    return sorted((Path("/" + str(url).removeprefix("file:///")) / SHARDS).iterdir())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)


@pytest.mark.usefixtures("cache")
def test_what_lies_here_is_known_and_spread_evenly(url: UrlPath) -> None:
    with open_store(url) as reader:
        assert isinstance(reader.table, RemoteShards)
        starts = [*reader.table.starts.tolist(), len(reader)]
        assert len(starts) > 4
        assert not reader.table.are_local(range(len(starts) - 1)).any()
        assert spread_local_records(reader, 0, len(reader), 8).tolist() == []
        reader.key(starts[1])
        reader.table.prefetch(2)
        here = [number in (1, 2) for number in range(len(starts) - 1)]
        assert reader.table.are_local(range(len(starts) - 1)).tolist() == here
        both = [*range(starts[1], starts[3])]
        assert spread_local_records(reader, 0, len(reader), 100).tolist() == both
        assert spread_local_records(reader, starts[1] + 1, starts[2], 100).tolist() == both[1 : starts[2] - starts[1]]
        assert spread_local_records(reader, 0, len(reader), 2).tolist() == [both[0], both[-1]]
        assert find_parts_within(reader, starts[1], starts[2]) == range(1, 2)
        assert find_parts_within(reader, starts[1], starts[2] + 1) == range(1, 3)
        assert find_parts_within(reader, 5, 5) == range(0)


class TestView:
    @pytest.fixture(autouse=True)
    def _installed(self, need: Need) -> None:
        need("starlette", AVAILABLE)

    def test_only_what_is_seen_is_fetched(self, url: UrlPath, local: Path, fetched: list[str]) -> None:
        with client_of(url) as client, open_store(local) as reader:
            store = ask(client, "/api/store")
            assert (store["name"], store["path"]) == ("x.lmdb", str(url))
            assert store["absent_bytes"] == sum(path.stat().st_size for path in shard_files(url))
            rows = ask(client, "/api/rows", start=0, stop=24)["rows"]
            assert [row["record"] for row in rows] == [*range(24)]
            assert all(row["absent"] for row in rows)
            assert ask(client, "/api/sizes")["seen"] == 0
            assert ask(client, "/api/classes")["seen"] == 0
            assert fetched == []
            assert client.get("/thumbnail/96/0").status == 200
            assert len(fetched) == 1
            rows = ask(client, "/api/rows", start=0, stop=24)["rows"]
            first = int(reader.table.starts[1])
            assert [row.get("key") for row in rows] == [reader.key(n) if n < first else None for n in range(24)]
            assert ask(client, "/api/sizes")["seen"] == first
            assert ask(client, "/api/classes")["seen"] == first
            record = ask(client, "/api/record/0")
            assert all(checksum["ok"] for checksum in record["checksums"])
            assert len(fetched) == 1
            assert ask(client, "/api/sizes", all=1)["seen"] == 24
            assert ask(client, "/api/classes")["seen"] == 24
            assert sorted(fetched) == sorted(f"{SHARDS}{path.name}" for path in shard_files(url))

    def test_python_and_command_name_the_url(self, url: UrlPath) -> None:
        with client_of(url) as client:
            record = ask(client, "/api/record/3")
            assert f"packstore.PackedDataset({str(url)!r}" in record["python"]
            assert record["command"].startswith(f"packstore select {url} -o ")
            assert ask(client, "/api/rows", start=0, stop=1)["command"] == f"packstore select {url} -o part.lmdb"
            loaded = ask(client, "/api/loaded/3", augment="RandomHorizontalFlip()")
            assert f"packstore.PackedDataset({str(url)!r}" in loaded["python"]

    def test_it_needs_no_more_than_was_asked_for(self, url: UrlPath, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(site_module, "_MOST_FETCHED", 1000)
        with client_of(url) as client:
            for asked in ({"q": "a"}, {"class": "1"}, {"sort": "key"}, {"sort": "bytes"}):
                answer = client.get("/api/rows", start=0, stop=1, **asked)
                assert answer.status == 400
                assert "not on this machine" in answer.json()["error"]
            ask(client, "/api/sizes", all=1)
            assert ask(client, "/api/rows", start=0, stop=1, sort="bytes")["count"] == 24

    def test_a_damaged_shard_is_shown_as_such(self, url: UrlPath, fetched: list[str]) -> None:
        flip(shard_files(url)[0])
        with client_of(url) as client:
            for _ in range(3):
                answer = client.get("/thumbnail/96/0")
                assert answer.status == 422
                assert "came damaged" in answer.json()["error"]
            assert len(fetched) == 3, "those of one attempt"
            assert ask(client, "/api/store")["marks"] == {"damaged": 1}
            record = ask(client, "/api/record/0")
            assert record["marks"] == ["damaged"]
            assert not record["checksums"][0]["ok"]
            assert client.get("/thumbnail/96/23").status == 200
            assert ask(client, "/api/verify")["problems"] > 0

    def test_a_shard_that_cannot_be_fetched_is_not_damaged(self, url: UrlPath, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(self: ObjectStore, name: str) -> Iterator[bytes]:
            raise RemoteError(f"{name} cannot be read: no connection")
            yield b""

        with client_of(url) as client, monkeypatch.context() as without:
            without.setattr(ObjectStore, "stream", broken)
            answer = client.get("/thumbnail/96/0")
            assert answer.status == 503
            assert "no connection" in answer.json()["error"]
            assert ask(client, "/api/store")["marks"] == {}
            without.undo()
            monkeypatch.setattr("packstore.stores.remote_shards._AGAIN_SECONDS", 0)
            assert client.get("/thumbnail/96/0").status == 200

    def test_no_credentials_are_in_any_answer(self, url: UrlPath, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in SECRETS.items():
            monkeypatch.setenv(name, value)

        def broken(self: ObjectStore, name: str) -> Iterator[bytes]:
            raise RemoteError("access is denied")
            yield b""

        with client_of(url) as client:
            monkeypatch.setattr(ObjectStore, "stream", broken)
            for path in ("/api/store", "/api/rows?start=0&stop=9", "/api/record/0", "/thumbnail/96/0", "/", "/page.js"):
                text = client.get(path).content.decode()
                assert not any(value in text for value in SECRETS.values())


@pytest.mark.parametrize("far", range(3))
@pytest.mark.parametrize("check", [packstore.verify, packstore.audit, partial(packstore.audit, pixels=True)])
def test_an_outage_is_an_error_and_no_damage(
    url: UrlPath, monkeypatch: pytest.MonkeyPatch, check: Any, far: int
) -> None:
    stream, begun = ObjectStore.stream, []

    def broken(self: ObjectStore, name: str) -> Iterator[bytes]:
        if name.startswith("shards/"):
            begun.append(name)
        if len(begun) > far:
            raise RemoteError(f"{name} cannot be read: no connection")
        return stream(self, name)

    with monkeypatch.context() as without:
        without.setattr(ObjectStore, "stream", broken)
        with pytest.raises(UnreachableError, match=r"cannot be fetched: .* no connection"):
            check(url)
    assert check(url).ok if check is packstore.verify else not check(url).counts.get("damaged")


def test_a_failed_fetch_is_not_tried_again_at_once(url: UrlPath, fetched: list[str], monkeypatch: Any) -> None:
    flip(shard_files(url)[0])
    with open_store(url) as reader:
        for _ in range(3):
            with pytest.raises(StoreError, match="came damaged") as caught:
                reader.read(0)
            assert not isinstance(caught.value, UnreachableError)
        assert len(fetched) == 3
        monkeypatch.setattr("packstore.stores.remote_shards._AGAIN_SECONDS", 0)
        with pytest.raises(StoreError, match="came damaged"):
            reader.read(0)
        assert len(fetched) == 6


def test_a_notebook_fetches_nothing(url: UrlPath, fetched: list[str]) -> None:
    with open_store(url) as reader:
        shards = len(reader.table.starts)
        html = reader._repr_html_()
        assert "<img" not in html
        assert f"0 of {shards} shards are on this machine" in html
        assert "<b>Records</b> file:///" in html
        assert fetched == []
        reader.key(0)
        html = reader._repr_html_()
        assert "<img" in html
        assert f"1 of {shards} shards are on this machine" in html
    dataset = packstore.PackedDataset(url, "train")
    loader = packstore.PackedLoader(dataset, 2, augment=[RandomHorizontalFlip()])
    for thing in (dataset, loader):
        assert "<img" in thing._repr_html_()
    assert len(fetched) == 1


def test_a_sheet_is_drawn_from_few_shards(
    url: UrlPath, tmp_path: Path, fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sheet, "_MOST_FETCHED", 2)
    options = SheetOptions(per_class=2)
    with open_store(url, "always") as reader:
        rows = sheet.choose_rows(reader, options)
        assert len({*fetched}) == 2
        assert rows == sheet.choose_rows(reader, options)
        assert rows
        assert not any("(" in row.title for row in rows), "no counts of what nobody has seen"
    sheet.write_sheet(url, tmp_path / "sheet.png", options)
    assert len({*fetched}) == 2
    assert (tmp_path / "sheet.png").stat().st_size > 1000


def test_a_sheet_shows_a_damaged_shard(url: UrlPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheet, "_MOST_FETCHED", 100)
    flip(shard_files(url)[0])
    with open_store(url, "always") as reader:
        rows = sheet.choose_rows(reader, SheetOptions(per_class=100))
        assert rows[0] == sheet.SheetRow("cannot be read", (0,))
        cell = sheet.CellMaker(reader, SheetOptions())[0]
        assert cell.image is None
        assert "came damaged" in cell.fault


def test_an_audit_of_a_url_finds_what_that_of_the_store_finds(url: UrlPath, local: Path) -> None:
    there, here = packstore.audit(url, pixels=True), packstore.audit(local, pixels=True)
    assert (there.counts, there.findings) == (here.counts, here.findings)
    assert json.loads(there.to_json())["path"] == str(url)
    flip(shard_files(url)[0])
    with open_store(url) as reader:
        (next(iter(reader.table.cache.root.rglob(reader.manifest.shards[0].digest)))).unlink()  # type: ignore[attr-defined, index]
    assert packstore.audit(url).counts["damaged"] == 1


def test_the_commands_take_urls(url: UrlPath, tmp_path: Path) -> None:
    assert run("sheet", str(url), tmp_path / "sheet.png").returncode == 0
    audited = run("audit", str(url), "--json", tmp_path / "audit.json", "-q")
    assert audited.returncode == 0, audited.stderr
    assert json.loads((tmp_path / "audit.json").read_text())["path"] == str(url)
    missing = run("view", f"{url}-not", "--no-browser")
    assert missing.returncode == 2
    assert re.search("file://.*x.lmdb-not", missing.stderr)
