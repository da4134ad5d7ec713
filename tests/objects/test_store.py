"""What every object store promises: memory, a local directory, S3."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import pytest

from packstore import objects as store_module
from packstore.objects import ConflictError, MissingObjectError, ObjectStore, RemoteError, open_objects
from tests.internals import UsageError
from tests.internals import direct as direct_module


@pytest.fixture(params=["memory", "file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    url = {
        "memory": lambda: f"memory://{tmp_path.name}/inner",
        "file": lambda: f"file://{tmp_path}/made late",
        "s3": lambda: request.getfixturevalue("s3") + "/with space/ä",
    }[request.param]()
    return open_objects(url)


def names(store: ObjectStore, prefix: str = "") -> list[str]:
    return sorted(info.name for info in store.list(prefix))


@pytest.mark.slow
def test_objects_are_created_once(store: ObjectStore) -> None:
    assert store.create("a/b", b"hello") is True
    assert store.create("a/b", b"hello") is False
    with pytest.raises(ConflictError, match="a/b exists already, with other content") as caught:
        store.create("a/b", b"hellO")
    assert caught.value.name == "a/b"
    assert store.get("a/b") == b"hello"
    assert names(store) == ["a/b"]


def test_parts_of_objects(store: ObjectStore) -> None:
    store.create("x", b"0123456789")
    assert [store.get("x", 2, 5), store.get("x", 7), store.get("x", 8, 99), store.get("x", 3, 3)] == [
        b"234",
        b"789",
        b"89",
        b"",
    ]
    assert store.get("x", None, 4) == b"0123"
    with pytest.raises(RemoteError, match="x cannot be read"):
        store.get("x", 11, 12)


def test_head(store: ObjectStore) -> None:
    store.create("x", b"123")
    info = store.head("x")
    assert (info.name, info.nbytes) == ("x", 3)
    store.put("x", b"456")
    assert store.head("x").etag != info.etag
    assert store.get("x") == b"456"


def test_listing_by_prefix(store: ObjectStore) -> None:
    assert names(store) == []
    for name in ("a", "ab/c", "ab/d", "b"):
        store.create(name, name.encode())
    assert names(store) == ["a", "ab/c", "ab/d", "b"]
    assert names(store, "a") == ["a", "ab/c", "ab/d"]
    assert names(store, "ab/") == ["ab/c", "ab/d"]
    assert names(store, "ab/d") == ["ab/d"]
    assert names(store, "c/") == []


def test_deleting(store: ObjectStore) -> None:
    store.create("a", b"1")
    store.delete(["a", "was never"])
    assert names(store) == []
    assert store.create("a", b"2") is True


def test_missing_objects(store: ObjectStore) -> None:
    for call in (store.get, store.head, lambda name: list(store.stream(name))):
        with pytest.raises(MissingObjectError, match="no/thing does not exist"):
            call("no/thing")


def test_empty_objects(store: ObjectStore) -> None:
    assert store.create("empty", b"") is True
    assert store.get("empty") == b""
    assert list(store.stream("empty")) == []


@pytest.mark.slow
@pytest.mark.parametrize("copies", [True, False])
def test_objects_in_parts(store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: bool) -> None:
    """With what S3 copies at once, and with more: it has no way to put either at once."""
    if not copies:
        monkeypatch.setattr(direct_module, "_COPY_BYTES", 100)
    monkeypatch.setattr(direct_module, "_SINGLE_BYTES", 100)
    monkeypatch.setattr(direct_module, "_PART_BYTES", 5 << 20)
    file = tmp_path / "big"
    file.write_bytes(os.urandom(12 << 20))
    assert store.create("big", file) is True
    assert store.create("big", file) is False
    assert b"".join(store.stream("big")) == file.read_bytes()
    with file.open("r+b") as opened:
        opened.write(b"something else")
    with pytest.raises(ConflictError, match="big exists already"):
        store.create("big", file)
    assert names(store) == ["big"]


@pytest.mark.parametrize("name", ["a//b", "../a", "a/./b"])
def test_names_that_are_none(store: ObjectStore, name: str) -> None:
    with pytest.raises(RemoteError, match="cannot be read"):
        store.get(name)


def test_pickling(store: ObjectStore) -> None:
    store.create("a", b"1")
    other = pickle.loads(pickle.dumps(store))
    assert other.url == store.url
    assert other.get("a") == b"1"


def test_reading_makes_no_directory(tmp_path: Path) -> None:
    assert list(open_objects(f"file://{tmp_path}/none").list()) == []
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://host/x", r"URLs of ftp:// are not supported; these are: s3://, gs://"),
        ("s3://", "needs a bucket"),
        ("s3://key:secret@bucket/x", "holds a user name or a password"),
        ("https://host/x?X-Amz-Signature=1", "has a query"),
        ("folder", "is not a URL"),
    ],
)
def test_urls_that_are_refused(url: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        open_objects(url)
    assert "secret" not in str(caught.value)


def test_urls() -> None:
    assert open_objects(Path("s3://bucket/x/")).url == "s3://bucket/x"
    assert open_objects("file:///a/b/").url == open_objects("file:/a/b").url == "file:///a/b"
    assert open_objects("https://host:80/a%20b").url == "https://host:80/a%20b"


def test_without_obstore_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setattr(store_module, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"s3:// URLs need obstore: pip install 'packstore\[remote\]'"):
        open_objects("s3://bucket/x").get("a")
    with pytest.raises(UsageError, match="URLs need obstore"):
        next(open_objects("memory://x/y").stream("a"))
