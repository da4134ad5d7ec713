"""Archives, record files and arrays at URLs: fetched once into the cache, and the same as on this machine."""

from __future__ import annotations

import io
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packstore
from packstore.cache import default_cache
from packstore.objects import ObjectInfo, ObjectStore, open_objects
from packstore.sources import open_source
from tests.internals import AmbiguousSourceError, SourceError, copies, location
from tests.makers.annotated import fill, mask
from tests.makers.by_name import BY_NAME
from tests.makers.clusters import assert_same
from tests.makers.images import tiny
from tests.makers.layouts import tar
from tests.makers.s3 import Double, Fault, upload
from tests.makers.sources import not_packed, prove, refused

OPTIONS: dict[str, Any] = {"shard_size": 3_000}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache that is used, empty."""
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders lie."""
    path = tmp_path / "scratch"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A WebDataset of three shards with six samples each."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for shard in range(3):
        numbers = range(6 * shard, 6 * shard + 6)
        members = {
            f"{n:05}.{end}": tiny(n) if end == "png" else b"%d" % (n % 6) for n in numbers for end in ("png", "cls")
        }
        (folder / f"train-{shard:06}.tar").write_bytes(tar(members))
    return folder


@pytest.fixture
def raw(s3_double: Double, shards: Path, cache: Path) -> str:
    url = upload(shards, "s3://bucket/raw/shards")
    s3_double.requests.clear()
    return url


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is fetched whole."""
    names: list[str] = []
    proven = copies._stream_and_prove

    def counting(store: ObjectStore, info: ObjectInfo) -> Iterator[bytes | memoryview]:
        names.append(info.name)
        return proven(store, info)

    monkeypatch.setattr(copies, "_stream_and_prove", counting)
    return names


@pytest.mark.slow
def test_each_object_is_fetched_once(raw: str, shards: Path, tmp_path: Path, fetched: list[str]) -> None:
    """Whatever is asked of the source, and by however many."""
    names = sorted(f"raw/shards/{path.name}" for path in shards.iterdir())
    reports: list[Any] = []
    report = prove(raw, tmp_path / "x.lmdb", progress=reports.append)
    assert report.manifest.origin.kind == "webdataset"
    assert [each.done for each in reports if each.stage == "fetch"] == [1, 2, 3]
    assert sorted(fetched) == names
    assert packstore.verify(tmp_path / "x.lmdb", against=shards).ok
    assert sorted(fetched) == names


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [None, "processes:2"])
def test_from_s3_to_s3(s3: str, shards: Path, cache: Path, tmp_path: Path, cluster: str | None) -> None:
    """A folder of shards, and one archive, against moto."""
    upload(shards, f"{s3}/raw")
    for source in ("", "/train-000001.tar"):
        here, there = tmp_path / f"x{len(source)}.lmdb", f"{s3}/packed{len(source)}.lmdb"
        packstore.convert(f"{shards}{source}", here, **OPTIONS)
        upload_name = f"{s3}/raw{source}"
        packstore.convert(upload_name, there, cluster=cluster, workers=1, **OPTIONS)
        assert packstore.verify(there, against=f"{shards}{source}").ok
        packstore.convert(upload_name, tmp_path / f"y{len(source)}.lmdb", **OPTIONS)
        assert_same(there, tmp_path / f"y{len(source)}.lmdb")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["503", "cut", "flipped", "slow"])
def test_faults_cost_time_alone(s3_double: Double, raw: str, shards: Path, tmp_path: Path, kind: str) -> None:
    s3_double.faults.append(Fault(kind, "GET", r"\.tar$", times=2))
    report = packstore.convert(raw, tmp_path / "x.lmdb", source_kind="webdataset")
    assert s3_double.faults[0].times == 0
    assert report.manifest.dataset_digest == packstore.convert(shards, tmp_path / "y.lmdb").manifest.dataset_digest


def test_what_reads_differently_each_time_is_refused(s3_double: Double, raw: str) -> None:
    s3_double.faults.append(Fault("flipped", "GET", "000001.tar$", times=1000))
    with pytest.raises(SourceError, match=r"^s3://bucket/raw/shards/train-000001.tar reads differently each time"):
        open_source(location(raw), kind="webdataset")


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "-2"], ids=["encrypted by KMS", "uploaded in parts"])
def test_etags_that_are_no_digests(
    s3_double: Double, raw: str, shards: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str
) -> None:
    """What reads the same twice is taken."""
    monkeypatch.setattr("tests.makers.s3._etag", lambda data: f'"{len(data):032x}{end}"')
    s3_double.faults.append(Fault("flipped", "GET", "000001.tar$"))
    report = packstore.convert(raw, tmp_path / "x.lmdb", source_kind="webdataset")
    assert report.manifest.dataset_digest == packstore.convert(shards, tmp_path / "y.lmdb").manifest.dataset_digest
    assert s3_double.faults[0].times == 0


@pytest.mark.slow
def test_an_object_that_is_replaced(s3_double: Double, raw: str, tmp_path: Path) -> None:
    """Before its copy is whole, or before the store is."""
    name = "raw/shards/train-000001.tar"
    with closing(open_source(location(raw))) as source:
        stamp = source.stamp()
        assert stamp
        s3_double.objects[name] += b"\0"
        with pytest.raises(SourceError, match="s3://bucket/raw/shards has changed since it was fetched"):
            source.stamp()
    with closing(open_source(location(raw))) as source:
        assert source.stamp() != stamp


def test_no_room(s3_double: Double, raw: str, fetched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched of what has no room."""
    total = sum(len(data) for name, data in s3_double.objects.items())
    monkeypatch.setenv("PACKSTORE_CACHE_SIZE", "10kB")
    refused(SourceError, location(raw), rf"needs {total:,} bytes of the 10,000 that the cache .* may hold; give it")
    assert fetched == []


def test_copies_stay_as_long_as_the_source_is_open(raw: str, cache: Path, tmp_path: Path, scratch: Path) -> None:
    source = open_source(location(raw))
    entries = list(source.entries())
    assert default_cache().clean() == 0
    assert len(list(scratch.iterdir())) == 1
    assert len([source.image(entry) for entry in entries]) == 18
    source.close()
    source.close()
    assert list(scratch.iterdir()) == []
    assert default_cache().clean() > 0


@pytest.mark.parametrize(
    "name", ["x/../y.tar", "x//y.tar", "x/./y.tar", "x/y\0.tar", "a.tar/b.tar", f"{'x' * 300}.tar"]
)
def test_names_that_no_file_can_have(s3_double: Double, cache: Path, name: str) -> None:
    s3_double.objects |= {f"odd/{name}": b"1", "odd/a.tar": b"2"}
    refused(
        SourceError,
        location("s3://bucket/odd"),
        r"^s3://bucket/odd.*(empty path segment|illegal character|cannot be copied)",
    )
    assert not (cache.parent / "y.tar").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["403", "503", "silent"])
def test_a_store_that_fails(
    s3_double: Double, raw: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from tests.internals import connection

    monkeypatch.setattr(connection, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.4)
    s3_double.faults.append(Fault(kind, "GET", r"\.tar$", times=1000))
    with pytest.raises(SourceError, match=f"^{raw}/train-00000..tar cannot be read: [^\n]*$"):
        packstore.convert(raw, tmp_path / "x.lmdb", on_error="skip")


def test_messages_name_urls(s3_double: Double, cache: Path, tmp_path: Path) -> None:
    """Of what is damaged, and of a question, whose answer is a command."""
    s3_double.objects["bad/x.npz"] = b"PK\x03\x04 and no more"
    caught = refused(SourceError, location("s3://bucket/bad/x.npz"), r"^s3://bucket/bad/x.npz")
    assert str(tmp_path) not in str(caught)


def test_the_name_of_a_further_file(s3_double: Double, cache: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for folder in ("rgb", "depth"):
            archive.writestr(f"{folder}/1.png", tiny(1))
    pair = "rgb/{s}.*=depth/{s}.*"
    s3_double.objects["pairs.zip"] = packed.getvalue()
    with closing(open_source(location("s3://bucket/pairs.zip"), pair=pair)) as source:
        (entry,) = source.entries()
        assert source.further_file_name(entry, "depth", 0) == "depth/1.png"


@pytest.mark.slow
def test_annotations_left_in_an_archive_are_asked_about(s3_double: Double, cache: Path, tmp_path: Path) -> None:
    root = fill(BY_NAME["YOLO"](tmp_path, 4), {f"masks/train/a{n:05}.png": mask(n) for n in range(4)})
    s3_double.objects["yolo.zip"] = Path(shutil.make_archive(str(tmp_path / "yolo"), "zip", root)).read_bytes()
    url = "s3://bucket/yolo.zip"
    caught = not_packed(AmbiguousSourceError, url, tmp_path / "out.lmdb", rf"^{url} .*masks/.* goes with")
    assert str(caught.source) == url
    assert packstore.convert(url, tmp_path / "out.lmdb", ignore=["masks/"]).manifest.records


@pytest.mark.slow
def test_an_export_is_known_as_one(s3_double: Double, cache: Path, tmp_path: Path) -> None:
    packstore.convert([{"image": np.zeros((4, 4, 3), np.uint8)}], tmp_path / "in.lmdb", encoding="uint8")
    packstore.export(tmp_path / "in.lmdb", tmp_path / "out.zip", encode="png")
    s3_double.objects["out.zip"] = (tmp_path / "out.zip").read_bytes()
    with (
        closing(open_source(location("s3://bucket/out.zip"))) as there,
        closing(open_source(tmp_path / "out.zip")) as here,
    ):
        assert there.store_manifest == here.store_manifest is not None


@pytest.mark.slow
def test_arrays_and_a_name_for_them(s3_double: Double, cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=np.zeros((3, 8, 8, 3), np.uint8), b=np.ones((3, 8, 8, 3), np.uint8), y=np.arange(3))
    open_objects("s3://bucket/").create("x.npz", path)
    here = packstore.convert(path, tmp_path / "here.lmdb", image_key="b", label_key="y", encoding="uint8")
    there = packstore.convert(
        "s3://bucket/x.npz", tmp_path / "there.lmdb", image_key="b", label_key="y", encoding="uint8"
    )
    assert there.manifest.dataset_digest == here.manifest.dataset_digest
    assert packstore.verify(tmp_path / "there.lmdb", against="s3://bucket/x.npz").ok
