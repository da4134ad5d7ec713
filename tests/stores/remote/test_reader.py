"""Reading a store at a URL: what it holds, what it costs, and what happens when something there is wrong."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packstore
from packstore.cache import Cache
from packstore.objects import ObjectStore, open_objects
from packstore.stores import open_store
from packstore.testing.records import KINDS, Records, assert_holds, flip, make_records, write
from tests.internals import (
    TABLE_ROW,
    CacheFullError,
    ManifestError,
    RemoteShards,
    ShardTable,
    StoreError,
    UrlPath,
    encode_manifest,
    location,
    read_head,
    shard_object_names,
    table_name,
    upload_store,
    version_name,
)

FORMATS = {"lmdb": "lmdb", "hdf5": "h5", "pth": "pth"}


def put(bucket: Path, tmp_path: Path, records: Records, format: str = "hdf5", **options: Any) -> UrlPath:
    """A store of these records at a URL; by default in several shards."""
    name = f"x.{FORMATS[format]}"
    path = tmp_path / "local" / name
    path.parent.mkdir(exist_ok=True)
    write(path, records, **({"shard_size": 4000} | options))
    url = location(f"{bucket.as_uri()}/{name}")
    assert isinstance(url, UrlPath)
    upload_store(path, url)
    return url


def opened(url: UrlPath) -> Any:
    """Returns the reader; its table is that of a store at a URL, with counts."""
    reader = open_store(url)
    assert isinstance(reader.table, RemoteShards)
    return reader


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that are made, as they are made."""
    made: list[str] = []

    def count(name: str) -> None:
        real = getattr(ObjectStore, name)

        def counted(self: ObjectStore, *arguments: Any, **options: Any) -> Any:
            made.append(f"{name} {arguments[0]}")
            return real(self, *arguments, **options)

        monkeypatch.setattr(ObjectStore, name, counted)

    for name in ("get", "stream", "read", "head", "list", "list_directory", "create", "put"):
        count(name)
    return made


@pytest.mark.sampled(9, fast=4)
@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", FORMATS)
def test_holds_what_the_local_store_holds(bucket: Path, tmp_path: Path, format: str, kind: str, sharded: bool) -> None:
    records = make_records(kind, 12)
    url = put(bucket, tmp_path, records, format, shard_size=900 if sharded else None)
    local = open_store(tmp_path / "local" / url.name)
    with opened(url) as reader:
        assert reader.manifest.dataset_digest == local.manifest.dataset_digest
        assert (len(reader.manifest.shards or ()) > 1) == sharded
        assert_holds(reader, records)
        assert [*reader.check_structure()] == []
        assert [*reader.check_structure(quick=True)] == []
    assert packstore.verify(url).ok
    objects = sorted(p for p in (bucket / url.name / "shards").iterdir())
    files = sorted(p for p in (tmp_path / "local" / url.name).rglob("*") if p.suffix in (".mdb", ".h5", ".pth"))
    files = files if sharded or format == "lmdb" else [tmp_path / "local" / url.name]
    assert [p.read_bytes() for p in objects] == [p.read_bytes() for p in files]


@pytest.mark.parametrize("shards", [1, 20_000])
def test_opening_takes_few_requests(bucket: Path, tmp_path: Path, requests: list[str], shards: int) -> None:
    url = put(bucket, tmp_path, make_records("uint8", 4), shard_size=None)
    if shards > 1:  # a table as long as that of many shards, of which none is there
        head = read_head(open_objects(url)).manifest
        assert head.shards is not None
        rows = np.repeat(head.shards.table, shards)
        rows["number"] = np.arange(shards)
        table = ShardTable(shards, hashlib.sha256(rows.tobytes()).hexdigest(), head.shards.suffix, rows)
        replaced = _with_table(head, table)
        (bucket / url.name / table_name(table)).write_bytes(rows.tobytes())
        (bucket / url.name / version_name(2)).write_bytes(encode_manifest(replaced))
    requests.clear()
    with opened(url) as reader:
        assert len(reader.manifest.shards or ()) == shards
        reader.check_files()
        assert len(requests) <= 3


def _with_table(head: Any, table: ShardTable) -> Any:
    import dataclasses

    count = len(table)
    columns = tuple(dataclasses.replace(c, nbytes=c.nbytes * count) for c in head.columns)
    return dataclasses.replace(head, records=head.records * count, columns=columns, splits=(), shards=table)


def test_a_shard_is_fetched_once_and_when_it_is_needed(bucket: Path, tmp_path: Path, requests: list[str]) -> None:
    records = make_records("uint8", 12)
    url = put(bucket, tmp_path, records, shard_size=200)
    with opened(url) as reader:
        requests.clear()
        assert bytes(reader.read(0)) == records.images[0]
        assert len(requests) == 1
        assert bytes(reader.read(1)) == records.images[1]
        assert reader.table.counts.misses == 1
        nbytes = reader.table.counts.fetched_bytes
        assert nbytes > 0
        reader.table.prefetch(1)
        reader.table.prefetch(1)
        assert len(requests) == 2
        assert reader.table.counts.fetched_bytes > nbytes
        # Only who reads counts: the second shard was there when it was wanted.
        assert (reader.table.counts.misses, reader.table.counts.hits) == (1, 0)
        reader.part(1)
        assert (reader.table.counts.misses, reader.table.counts.hits) == (1, 1)
        assert len(requests) == 2
    requests.clear()
    with opened(url) as again:
        requests.clear()
        assert bytes(again.read(0)) == records.images[0]
        assert requests == []


@pytest.mark.slow
def test_a_cache_smaller_than_the_store(bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = make_records("uint8", 40)
    url = put(bucket, tmp_path, records, shard_size=200)
    head = read_head(open_objects(url)).manifest
    assert head.shards is not None
    largest = int(head.shards.table["nbytes"].max())
    monkeypatch.setenv("PACKSTORE_CACHE_SIZE", str(2 * largest))
    with opened(url) as reader:
        views = [reader.view(i) for i in range(len(reader))]
        assert [bytes(view) for view in views] == records.images
        assert_holds(reader, records)
        assert sum(entry.nbytes for entry in reader.table.cache.entries()) <= 2 * largest
    assert packstore.verify(url).ok
    monkeypatch.setenv("PACKSTORE_CACHE_SIZE", str(largest // 2))
    with opened(url) as reader, pytest.raises(CacheFullError, match=r"needs [0-9,]+ bytes"):
        reader.read(0)


@pytest.mark.slow
def test_waiting_for_room_that_another_reader_holds_ends(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the reader that waits has let go of its own shards; and a dropped reader holds nothing."""
    url = put(bucket, tmp_path, make_records("uint8", 40), shard_size=200)
    table = read_head(open_objects(url)).manifest.shards
    assert table is not None
    monkeypatch.setenv("PACKSTORE_CACHE_SIZE", str(int(table.table["nbytes"][:2].sum())))
    for name in ("_PATIENCE_SECONDS", "_MOST_PATIENCE_SECONDS"):
        monkeypatch.setattr(f"packstore.stores.remote_shards.{name}", 0.05)
    holding = open_store(url)
    held = [holding.view(0), holding.view(len(holding) // 2)]
    with opened(url) as reader:
        with pytest.raises(CacheFullError, match=r"needs [0-9,]+ bytes"):
            reader.read(len(reader) - 1)
        del held, holding
        assert len(bytes(reader.read(len(reader) - 1))) > 0


def test_refused_requests_are_made_after_an_error(bucket: Path, tmp_path: Path) -> None:
    records = make_records("uint8", 4)
    with opened(put(bucket, tmp_path, records)) as reader:
        with pytest.raises(StoreError, match="interrupted"), reader.table.refuse_requests():
            reader.read(0)
        assert_holds(reader, records)


@pytest.mark.sampled(1, fast=0)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader(bucket: Path, tmp_path: Path, method: str) -> None:
    """Forked after the parent has used the object store."""
    import torch

    records = make_records("uint8", 12)
    url = put(bucket, tmp_path, records, shard_size=200)
    dataset = packstore.PackedDataset(url, "train")
    expected = [dataset[i][0] for i in range(len(dataset))]
    shutil.rmtree(tmp_path / "cache")
    context: Any = multiprocessing.get_context(method)
    loader = torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context=context)
    images = torch.cat([images for images, _ in loader])
    assert torch.equal(images, torch.stack(expected))


@pytest.mark.parametrize("format", FORMATS)
def test_a_copied_store_of_shards(bucket: Path, tmp_path: Path, format: str, requests: list[str]) -> None:
    records, name = make_records("ragged", 12), f"copy.{FORMATS[format]}"
    write(tmp_path / name, records, shard_size=4000)
    shutil.copytree(tmp_path / name, bucket / name)
    with opened(UrlPath(f"{bucket.as_uri()}/{name}")) as reader:
        assert len(requests) == 3
        assert reader.table.head is None
        assert_holds(reader, records)
        assert [*reader.check_structure()] == []


@pytest.mark.parametrize("format", FORMATS)
def test_a_copied_store_of_one_file(bucket: Path, tmp_path: Path, format: str, requests: list[str]) -> None:
    records, name = make_records("ragged", 12), f"copy.{FORMATS[format]}"
    write(tmp_path / name, records)
    copy = shutil.copytree if format == "lmdb" else shutil.copy
    bucket.mkdir()
    copy(tmp_path / name, bucket / name)
    url = f"{bucket.as_uri()}/{name}"
    with packstore.open(url) as reader:
        assert len(requests) <= 5  # four, and the one object
        assert_holds(reader, records)
        assert [*reader.check_structure()] == []
        assert reader.disk_bytes() == sum(
            p.stat().st_size for p in (bucket / name, *bucket.rglob("*.mdb")) if p.is_file()
        )
    assert packstore.verify(url).ok
    flip(next(p for p in (*bucket.rglob("*.mdb"), bucket / name) if p.is_file()), 3000)


class TestDamage:
    """Each is an error that names the object, or the right bytes; never others."""

    @pytest.fixture
    def records(self) -> Records:
        return make_records("uint8", 12)

    @pytest.fixture
    def url(self, bucket: Path, tmp_path: Path, records: Records) -> UrlPath:
        return put(bucket, tmp_path, records, shard_size=200)

    @pytest.fixture
    def shards(self, bucket: Path, url: UrlPath) -> list[Path]:
        table = read_head(open_objects(url)).manifest.shards
        assert table is not None
        return [bucket / url.name / name for name in shard_object_names(table)]

    def test_a_flipped_bit(self, url: UrlPath, shards: list[Path], records: Records) -> None:
        flip(shards[0], shards[0].stat().st_size // 2)
        with opened(url) as reader:
            with pytest.raises(StoreError, match=r"shard shard-00000\.h5 of file:///.* cannot be fetched: .*SHA-256"):
                reader.read(0)
            assert bytes(reader.read(11)) == records.images[11]
        report = packstore.verify(url)
        assert {problem.shard for problem in report.problems} == {"shard-00000.h5"}

    def test_a_flipped_bit_of_a_shard_that_is_cached(self, url: UrlPath, shards: list[Path], records: Records) -> None:
        """Reading does not see it, and verifying does: it is about what is at the URL."""
        with opened(url) as reader:
            assert_holds(reader, records)
        flip(shards[0], shards[0].stat().st_size // 2)
        with opened(url) as reader:
            assert_holds(reader, records)
        (problem,) = packstore.verify(url).problems
        assert problem.shard == "shard-00000.h5"
        assert "its SHA-256 is" in problem.what

    def test_truncated(self, url: UrlPath, shards: list[Path]) -> None:
        os.truncate(shards[0], shards[0].stat().st_size - 1)
        with opened(url) as reader, pytest.raises(StoreError, match=r"shard-00000\.h5"):
            reader.read(0)
        (problem,) = packstore.verify(url, quick=True).problems
        assert "bytes, expected" in problem.what

    def test_missing(self, url: UrlPath, shards: list[Path]) -> None:
        shards[0].unlink()
        with opened(url) as reader, pytest.raises(StoreError, match=r"shard shard-00000\.h5 of file:///.* is missing"):
            reader.read(0)
        for quick in (True, False):
            (problem,) = packstore.verify(url, quick=quick).problems
            assert problem.lost
            assert "is missing" in problem.what

    def test_a_cached_shard_that_is_damaged(self, url: UrlPath, records: Records, cache: Cache) -> None:
        with opened(url) as reader:
            reader.read(0)
        (path,) = (path for path in cache.root.rglob("*") if path.is_file() and path.stat().st_size > 500)
        flip(path, path.stat().st_size // 2)
        with opened(url) as reader:
            assert_holds(reader, records)
            assert reader.table.counts.misses == len(reader.manifest.shards or ())

    def test_a_damaged_head(self, url: UrlPath, bucket: Path) -> None:
        flip(bucket / url.name / version_name(1), 200)
        with pytest.raises(ManifestError, match=r"versions/000000001\.json: the manifest is"):
            open_store(url)

    def test_a_damaged_table(self, url: UrlPath, bucket: Path) -> None:
        (path,) = (bucket / url.name / "tables").iterdir()
        flip(path, 50)
        with pytest.raises(ManifestError, match=r"tables/[0-9a-f]{64}\.shards: the table of shards is damaged"):
            open_store(url)
        path.unlink()
        with pytest.raises(StoreError, match=r"its table of shards, .*, is missing"):
            open_store(url)

    @pytest.mark.parametrize("field", [name for name in TABLE_ROW.names or () if name != "number"])
    def test_a_table_that_lies(self, url: UrlPath, bucket: Path, field: str) -> None:
        """With the right digest, and rows that are not of the shards."""
        head = read_head(open_objects(url)).manifest
        assert head.shards is not None
        rows = head.shards.table.copy()
        if field in ("records", "image_nbytes"):  # of the same sum, else the head says so
            rows[field][:2] += np.array([1, -1]).astype(np.uint64)
        elif field == "nbytes":
            rows[field][0] += 1
        else:
            rows[field][0, 0] ^= 1
        table = ShardTable(len(rows), hashlib.sha256(rows.tobytes()).hexdigest(), head.shards.suffix, rows)
        import dataclasses

        (bucket / url.name / table_name(table)).write_bytes(rows.tobytes())
        (bucket / url.name / version_name(2)).write_bytes(encode_manifest(dataclasses.replace(head, shards=table)))
        with opened(url) as reader, pytest.raises(StoreError):
            [reader.read(record) for record in range(len(reader))]
        assert not packstore.verify(url).ok

    def test_a_hint_that_is_old(self, url: UrlPath, bucket: Path, records: Records) -> None:
        (bucket / url.name / "manifest.json").write_text(json.dumps({"format_version": 1}))
        with opened(url) as reader:
            assert_holds(reader, records)

    @pytest.mark.slow
    def test_replaced_while_it_is_read(self, url: UrlPath, bucket: Path, tmp_path: Path, records: Records) -> None:
        with opened(url) as reader:
            assert bytes(reader.read(0)) == records.images[0]
            write(tmp_path / "other.h5", make_records("uint8", 12, seed=1), shard_size=200)
            upload_store(tmp_path / "other.h5", url, overwrite=True)
            assert_holds(reader, records)
        assert_holds(opened(url), make_records("uint8", 12, seed=1))

    @pytest.mark.slow
    def test_replaced_and_cleaned_while_it_is_read(
        self, url: UrlPath, shards: list[Path], tmp_path: Path, records: Records
    ) -> None:
        with opened(url) as reader:
            assert bytes(reader.read(0)) == records.images[0]
            write(tmp_path / "other.h5", make_records("uint8", 12, seed=1), shard_size=200)
            upload_store(tmp_path / "other.h5", url, overwrite=True)
            for path in shards:
                path.unlink()
            with pytest.raises(StoreError, match="has been replaced by another store"):
                reader.read(11)
