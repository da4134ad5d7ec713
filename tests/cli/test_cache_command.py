"""``packstore cache``: what it lists and removes."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from packstore.cache import Cache
from packstore.stores import open_store
from packstore.testing.records import make_records, write
from tests.internals import UrlPath, human_bytes, location, upload_store
from tests.makers.command import run


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """With three objects of 1,000 bytes."""
    made = Cache(tmp_path / "cache", 10_000)
    for content in (b"a" * 1000, b"b" * 1000, b"c" * 1000):
        os.close(made.open(hashlib.sha256(content).hexdigest(), 1000, lambda data=content: [data]))
    return made


@pytest.mark.slow
def test_list(cache: Cache) -> None:
    held = os.open(cache.root / "whole" / cache.entries()[0].name, os.O_RDONLY)
    done = run("cache", "list", "--cache", cache.root, "--cache-size", "5kB")
    assert (done.returncode, done.stderr) == (0, "")
    *rows, total = done.stdout.splitlines()
    assert [row.split()[:3] for row in rows] == [[entry.name, "1", "kB"] for entry in cache.entries()]
    assert total == f"{cache.root}: 3 objects, 3 kB of 5 kB"
    os.close(held)
    descriptor = cache.open(cache.entries()[0].name, 1000, list)
    facts = json.loads(run("cache", "list", "--cache", cache.root, "--json").stdout)
    assert (facts["cache"], facts["used"]) == (str(cache.root), 3000)
    assert [each["in_use"] for each in facts["objects"]] == [False, False, True]
    os.close(descriptor)


@pytest.mark.slow
def test_clean(cache: Cache) -> None:
    descriptor = cache.open(cache.entries()[0].name, 1000, list)
    done = run("cache", "clean", "--cache", cache.root, "--keep", "2kB")
    assert done.stdout == f"{cache.root}: removed 1 kB, 2 kB are left\n"
    assert run("cache", "clean", "--cache", cache.root).stdout == f"{cache.root}: removed 1 kB, 1 kB are left\n"
    os.close(descriptor)
    assert cache.clean() == 1000


@pytest.mark.slow
def test_a_cache_that_is_not_there_is_empty(tmp_path: Path) -> None:
    for command, said in (("list", "0 objects, 0 B of 1 GB"), ("clean", "removed 0 B, 0 B are left")):
        done = run("cache", command, "--cache", tmp_path / "none", "--cache-size", "1GB")
        assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'none'}: {said}\n")
    assert not (tmp_path / "none").exists()


@pytest.fixture
def there(s3: str, tmp_path: Path) -> str:
    """A store of several shards in S3."""
    write(tmp_path / "x.h5", make_records("ragged", 12), shard_size=4000)
    url = location(f"{s3}/x.h5")
    assert isinstance(url, UrlPath)
    upload_store(tmp_path / "x.h5", url)
    return str(url)


@pytest.mark.slow
def test_prefetch(there: str, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 10**6)
    with open_store(tmp_path / "x.h5") as reader:
        assert reader.manifest.shards is not None
        shards = list(reader.manifest.shards)
    options = (there, "--cache", cache.root, "--cache-size", "1MB")
    done = run("cache", "prefetch", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{cache.root}: {len(shards)} shards fetched, ")
    assert done.stdout.endswith("; 0 were there already\n")
    assert {(entry.name, entry.nbytes) for entry in cache.entries()} == {(each.digest, each.nbytes) for each in shards}
    listed = run("cache", "list", "--cache", cache.root).stdout.splitlines()
    if cache.entries()[0].url is not None:  # the file system has attributes
        assert all(line.startswith(f"{there}/") for line in listed[:-1])
        assert len({line.split()[0] for line in listed[:-1]}) == len(shards)
    (cache.root / "whole" / shards[0].digest).unlink()
    done = run("cache", "prefetch", *options)
    assert f"1 shard fetched, {human_bytes(shards[0].nbytes)}; {len(shards) - 1} were there" in done.stdout
    assert run("cache", "prefetch", *options, "-q").stdout == ""
    total = sum(each.nbytes for each in shards)
    done = run("cache", "prefetch", there, "--cache", tmp_path / "small", "--cache-size", f"{total - 1}B")
    assert done.returncode == 1
    assert f"the store needs {total:,} bytes, it may hold {total - 1:,}; give it more with" in done.stderr
    assert not (tmp_path / "small").exists()


def test_what_is_on_this_machine_is_not_cached(tmp_path: Path) -> None:
    done = run("cache", "prefetch", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is on this machine; only stores at URLs are cached" in done.stderr


@pytest.mark.slow
def test_options_come_before_the_environment(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "none"))
    monkeypatch.setenv("PACKSTORE_CACHE_SIZE", "7MB")
    assert "none: 0 objects, 0 B of 7 MB" in run("cache", "list").stdout
    assert "cache: 3 objects, 3 kB of 7 MB" in run("cache", "list", "--cache", cache.root).stdout
    monkeypatch.setenv("PACKSTORE_CACHE_SIZE", "much")
    done = run("cache", "list")
    assert (done.returncode, "PACKSTORE_CACHE_SIZE: 'much' is not a size" in done.stderr) == (2, True)
    assert "of 5 MB" in run("cache", "list", "--cache-size", "5MB").stdout


def test_options_end_with_the_command(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that runs the command in its own process keeps its environment."""
    from packstore.cli import cli

    monkeypatch.delenv("PACKSTORE_CACHE", raising=False)
    monkeypatch.setenv("PACKSTORE_CACHE_SIZE", "7MB")
    cli.main(["cache", "list", "--cache", str(cache.root), "--cache-size", "1MB"], standalone_mode=False)
    assert "PACKSTORE_CACHE" not in os.environ
    assert os.environ["PACKSTORE_CACHE_SIZE"] == "7MB"
