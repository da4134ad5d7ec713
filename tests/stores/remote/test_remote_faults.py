"""A store at a server that fails: the right bytes, or one line."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import packstore
from packstore.objects import RemoteError, open_objects
from packstore.stores import open_store
from packstore.testing.records import assert_holds, make_records, write
from tests.internals import (
    DestinationError,
    MissingStoreError,
    StoreError,
    UrlPath,
    UsageError,
    connection,
    find_newest_version,
    upload_store,
)
from tests.makers.s3 import Double, Fault

URL = UrlPath("s3://bucket/x.h5")
RECORDS = make_records("uint8", 12)
ALWAYS = 1 << 30


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RETRY_SECONDS", 1.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "x.h5", RECORDS, shard_size=200)
    return tmp_path / "x.h5"


@pytest.fixture
def server(s3_double: Double, path: Path) -> Double:
    upload_store(path, URL)
    s3_double.requests.clear()
    return s3_double


@pytest.mark.slow
@pytest.mark.parametrize("where", ["versions/0", "tables/", "shards/"])
@pytest.mark.parametrize("kind", ["503", "cut", "flipped"])
def test_reading_goes_on(server: Double, kind: str, where: str) -> None:
    server.faults.append(Fault(kind, "GET", where, times=2))
    with open_store(URL) as reader:
        assert_holds(reader, RECORDS)
    assert server.faults[0].times == 0


@pytest.mark.usefixtures("_impatient")
@pytest.mark.sampled(5, fast=2)
@pytest.mark.parametrize("where", ["versions/0", "tables/", "shards/"])
@pytest.mark.parametrize("kind", ["503", "403", "expired", "flipped"])
def test_what_stays_wrong_is_one_line(server: Double, kind: str, where: str) -> None:
    server.faults.append(Fault(kind, "GET", where, ALWAYS))
    with pytest.raises(StoreError) as caught, open_store(URL) as reader:
        reader.read(0)
    assert "\n" not in str(caught.value)
    assert "s3://bucket/x.h5" in str(caught.value)
    server.faults.clear()
    with open_store(URL) as reader:
        assert_holds(reader, RECORDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["503", "lost", "cut"])
@pytest.mark.parametrize("where", ["versions/0", "tables/", "shards/", r"manifest\.json"])
def test_writing_goes_on(s3_double: Double, path: Path, kind: str, where: str) -> None:
    """A reply that is lost makes the next try find what it has made itself."""
    s3_double.faults.append(Fault(kind, "PUT", where))
    upload_store(path, URL)
    assert find_newest_version(open_objects(URL)) == 1
    with open_store(URL) as reader:
        assert_holds(reader, RECORDS)


def test_writing_that_stays_impossible_commits_nothing(s3_double: Double, path: Path) -> None:
    s3_double.faults.append(Fault("403", "PUT", "shards/", ALWAYS))
    with pytest.raises(RemoteError, match="cannot be written"):
        upload_store(path, URL)
    assert find_newest_version(open_objects(URL)) == 0


def test_a_server_that_overwrites_is_refused(s3_double: Double, path: Path) -> None:
    s3_double.conditional = False
    with pytest.raises(RemoteError, match="absent"):
        upload_store(path, URL)
    assert not [name for name in s3_double.objects if "versions" in name]


def test_verifying_asks_for_each_object_once(server: Double) -> None:
    assert packstore.verify(URL, quick=True).ok
    assert [name for method, name in server.requests if method == "GET" and "/shards/" in name] == []
    assert packstore.verify(URL).ok
    fetched = [name for method, name in server.requests if method == "GET" and "/shards/" in name]
    assert len(fetched) == len(set(fetched)) == len([name for name in server.objects if "/shards/" in name])


@pytest.mark.slow
@pytest.mark.parametrize("copied", [False, True])
def test_reading_by_http(server: Double, path: Path, copied: bool) -> None:
    """Nothing can be listed there, so the hint says which version is the newest; or it is that of a plain copy."""
    if copied:
        server.objects.clear()
        for file in path.iterdir():
            server.objects[f"x.h5/{file.name}"] = file.read_bytes()
    url = f"http://127.0.0.1:{server.port}/bucket/x.h5"
    server.requests.clear()
    with open_store(url) as reader:
        assert len(server.requests) <= 4
        assert_holds(reader, RECORDS)
    assert packstore.verify(url).ok
    assert packstore.verify(url, quick=True).ok
    del server.objects[next(name for name in server.objects if "shard-00001" in name)]
    (problem,) = packstore.verify(url, quick=True).problems
    assert problem.shard == "shard-00001.h5"
    for call in (lambda: packstore.append(url, path), lambda: packstore.select(path, url)):
        with pytest.raises(DestinationError, match="is read only"):
            call()


def test_http_without_a_store(s3_double: Double) -> None:
    with pytest.raises(MissingStoreError, match="there is no store"):
        open_store(f"http://127.0.0.1:{s3_double.port}/bucket/x.h5")


@pytest.mark.parametrize("call", [packstore.open, packstore.PackedDataset, packstore.verify])
def test_no_credentials(s3_double: Double, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Any) -> None:
    """Said at once, and not after the cloud's metadata service was asked for long."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    before = time.monotonic()
    with pytest.raises((StoreError, UsageError), match="no credentials") as caught:
        call("s3://bucket/x.h5")
    assert time.monotonic() - before < 5
    assert "\n" not in str(caught.value)
