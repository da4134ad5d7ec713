"""A store at a server that fails: the right bytes, or one line."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import packstore
from packstore.core.errors import StoreError, UsageError
from packstore.core.urls import UrlPath
from packstore.objects import RemoteError, connection, open_objects
from packstore.stores import open_store
from packstore.stores.remote.head import newest_version
from packstore.stores.remote.publish import upload_store
from packstore.testing.records import assert_holds, make_records, write
from tests.makers.s3 import Double, Fault

URL = UrlPath("s3://bucket/x.h5")
RECORDS = make_records("uint8", 12)
ALWAYS = 1 << 30


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SILENCE_SECONDS", 0.5)
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


@pytest.mark.parametrize("where", ["versions/0", "tables/", "shards/"])
@pytest.mark.parametrize("kind", ["503", "cut", "flipped"])
def test_reading_goes_on(server: Double, kind: str, where: str) -> None:
    server.faults.append(Fault(kind, "GET", where, times=2))
    with open_store(URL) as reader:
        assert_holds(reader, RECORDS)
    assert server.faults[0].times == 0


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
    assert newest_version(open_objects(URL)) == 1
    with open_store(URL) as reader:
        assert_holds(reader, RECORDS)


def test_writing_that_stays_impossible_commits_nothing(s3_double: Double, path: Path) -> None:
    s3_double.faults.append(Fault("403", "PUT", "shards/", ALWAYS))
    with pytest.raises(RemoteError, match="cannot be written"):
        upload_store(path, URL)
    assert newest_version(open_objects(URL)) == 0


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
