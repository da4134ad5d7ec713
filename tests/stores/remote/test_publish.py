"""Writing stores to URLs: every byte as on this machine, one winner of a race, nothing of a killed run."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packstore
from packstore.objects import ObjectStore, RemoteError, open_objects
from packstore.stores import open_store
from packstore.testing.records import assert_holds, flip, listing, make_records, write
from tests.internals import (
    ENCODINGS,
    DestinationError,
    LostRaceError,
    SourceError,
    StoreError,
    TarWriter,
    UrlPath,
    append_report_rows,
    create_version,
    find_newest_version,
    location,
    make_upload_folder,
    parse_version_number,
    upload_store,
    version_name,
)
from tests.internals import append as append_module
from tests.internals import remote_publish as publish_module

pytestmark = pytest.mark.slow


@pytest.fixture(params=["file", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL below which nothing lies."""
    if request.param == "s3":
        url: str = request.getfixturevalue("s3")
        return url
    return (tmp_path / "bucket").as_uri()


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where stores are made that go to a URL; in the end it is empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def at(text: str) -> UrlPath:
    url = location(text)
    assert isinstance(url, UrlPath)
    return url


def test_a_head_that_is_too_large(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{place}/x.h5"
    upload_store(local(tmp_path), at(url))
    monkeypatch.setattr("packstore.stores.remote_objects._MOST_BYTES", 100)
    with pytest.raises(
        StoreError, match=r"versions/000000001.json has more than 100 bytes, so it cannot be a manifest"
    ):
        open_store(url)


def test_numbers_of_versions() -> None:
    assert [parse_version_number(version_name(number)) for number in (1, 999_999_999)] == [1, 999_999_999]
    assert parse_version_number("versions/000000000.json") is None
    with pytest.raises(StoreError, match="there is no version after number 999,999,999"):
        version_name(1_000_000_000)


def test_the_local_path_of_a_store_at_a_url(tmp_path: Path) -> None:
    url = (tmp_path / "bucket").as_uri() + "/x.h5"
    upload_store(local(tmp_path), at(url))
    with pytest.raises(StoreError, match=f"is a store in the layout of object stores; open it as {url}$"):
        open_store(tmp_path / "bucket/x.h5")
    with pytest.raises(StoreError, match=f"open it as {url}$"):
        packstore.convert(tmp_path / "bucket/x.h5", tmp_path / "y.lmdb")
    assert packstore.verify(url).ok


def local(tmp_path: Path, name: str = "x.h5", seed: int = 0, count: int = 12, **options: Any) -> Path:
    path = tmp_path / "local" / name
    path.parent.mkdir(exist_ok=True)
    write(path, make_records("uint8", count, seed), **({"shard_size": 200} | options))
    return path


def photos(tmp_path: Path, name: str, color: int) -> Path:
    """A source with the classes ant and bee, whose keys are those of its name."""
    from PIL import Image

    for label in ("ant", "bee"):
        for i in range(3):
            path = tmp_path / name / "train" / label / f"{name}-{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (color, i, len(label))).save(path)
    return tmp_path / name


def test_a_store_is_uploaded(place: str, tmp_path: Path) -> None:
    path, url = local(tmp_path), at(f"{place}/x.h5")
    progress: list[Any] = []
    head = upload_store(path, url, progress=progress.append)
    assert head.dataset_digest == open_store(path).manifest.dataset_digest
    assert head.digest == open_store(path).manifest.digest
    assert_holds(open_store(url), make_records("uint8", 12))
    assert progress[-1].done == progress[-1].total == len(head.shards or ())
    objects = open_objects(url)
    names = {info.name for info in objects.list()}
    assert len(names) == 3 + len(head.shards or ())
    files = {file.name[:11]: file.read_bytes() for file in path.iterdir() if file.name.startswith("shard-")}
    assert {name[7:18]: objects.get(name) for name in names if name.startswith("shards/")} == files
    assert packstore.verify(url, against=path).ok


@pytest.mark.sampled(5, fast=0)
@pytest.mark.parametrize("encoding", [*ENCODINGS.built_in])
@pytest.mark.parametrize("suffix", ["lmdb", "h5", "pth"])
def test_every_format_and_encoding(tmp_path: Path, suffix: str, encoding: str) -> None:
    """The bytes of the shards, the digest and what a dataset gives are those of the local store."""
    path, url = tmp_path / f"x.{suffix}", f"{(tmp_path / 'bucket').as_uri()}/x.{suffix}"
    arrays = encoding not in ("original", "jpeg")
    options: dict[str, Any] = {"size": 8} if arrays else {}
    source: Any = photos(tmp_path, "first", 1)
    if encoding in ("uint16", "int16", "int32"):  # which photos have not
        rng = np.random.default_rng(0)
        images = rng.integers(0, 4096, (12, 9, 8, 3)).astype(encoding)
        source = {"train": [{"image": image, "label": n % 2, "key": f"{n}"} for n, image in enumerate(images)]}
    packstore.convert(source, path, encoding=encoding, shard_size=300, **options)
    packstore.select(path, url)
    here, there = (packstore.PackedDataset(place, "train", columns=["image", "label", "key"]) for place in (path, url))
    assert there.manifest.dataset_digest == here.manifest.dataset_digest
    for (image, *rest), (other, *others) in zip(here, there, strict=True):
        assert image.equal(other)
        assert rest == others
    shards = [open_objects(url).get(info.name) for info in open_objects(url).list("shards/")]
    inner = ["*/data.mdb"] if suffix == "lmdb" else ["shard-*"]
    assert sorted(shards) == sorted(file.read_bytes() for name in inner for file in path.glob(name))
    assert packstore.verify(url, against=path).ok


def test_a_copy_of_a_local_store_is_not_changed(tmp_path: Path) -> None:
    path = local(tmp_path)
    copy = shutil.copytree(path, tmp_path / "copy.h5")
    before = listing(copy)
    for overwrite in (False, True):
        with pytest.raises(DestinationError, match=r"holds a manifest\.json and no versions"):
            upload_store(path, at(copy.as_uri()), overwrite=overwrite)
    with pytest.raises(DestinationError, match="is a copy of a local store"):
        packstore.append(copy.as_uri(), path)
    assert listing(copy) == before


def test_http_is_read_only(tmp_path: Path) -> None:
    with pytest.raises(DestinationError, match="is read only"):
        upload_store(local(tmp_path), at("http://127.0.0.1:9/x.h5"))


@pytest.mark.parametrize("fails", range(6))
def test_a_run_that_is_killed_leaves_nothing_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """At every object that it creates; the same command then makes the same store."""
    path, url = local(tmp_path, count=6), at(f"{(tmp_path / 'bucket').as_uri()}/x.h5")
    create, made = ObjectStore.create, 0

    def killed(self: ObjectStore, name: str, data: bytes | Path) -> bool:
        nonlocal made
        if made == fails:
            raise KeyboardInterrupt
        made += 1
        return create(self, name, data)

    monkeypatch.setattr(ObjectStore, "create", killed)
    monkeypatch.setattr(publish_module, "_AT_ONCE", 1)
    total = len(open_store(path).manifest.shards or ()) + 2
    if fails < total:
        with pytest.raises(KeyboardInterrupt):
            upload_store(path, url)
        assert find_newest_version(open_objects(url)) == 0
    made = -1000
    upload_store(path, url)
    assert_holds(open_store(url), make_records("uint8", 6))
    assert len([*open_objects(url).list()]) == total + 1


def test_what_was_uploaded_before_is_proven(tmp_path: Path) -> None:
    """An object that is there under the right name and has other bytes is replaced."""
    path, url = local(tmp_path), at(f"{(tmp_path / 'bucket').as_uri()}/x.h5")
    upload_store(path, url)
    shard = next((tmp_path / "bucket" / "x.h5" / "shards").iterdir())
    flip(shard, 500)
    assert not packstore.verify(url).ok
    upload_store(path, url, overwrite=True)
    assert packstore.verify(url, against=path).problems == ()


def test_a_local_shard_that_changed_is_not_uploaded(tmp_path: Path) -> None:
    path, url = local(tmp_path), at(f"{(tmp_path / 'bucket').as_uri()}/x.h5")
    flip(next(path.glob("shard-*")), 500)
    with pytest.raises(StoreError, match="has changed since it was written"):
        upload_store(path, url)
    assert find_newest_version(open_objects(url)) == 0


def test_one_of_many_commits_wins(place: str, tmp_path: Path) -> None:
    """Sixteen writers of the same version, each with another store."""
    url = f"{place}/x.h5"
    heads = [upload_store(local(tmp_path, f"{i}.h5", i, 3), at(f"{place}/{i}.h5")) for i in range(4)]
    outcomes: list[object] = []
    barrier = threading.Barrier(4)

    def write_version(i: int) -> None:
        barrier.wait()
        try:
            outcomes.append(create_version(open_objects(url), heads[i], 0))
        except LostRaceError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=write_version, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(outcome == 1 for outcome in outcomes) == 1
    assert sum(isinstance(outcome, LostRaceError) for outcome in outcomes) == 3


def test_a_hint_that_cannot_be_written_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(self: ObjectStore, name: str, data: bytes) -> None:
        raise RemoteError("no")

    monkeypatch.setattr(ObjectStore, "put", refused)
    url = at(f"{(tmp_path / 'bucket').as_uri()}/x.h5")
    upload_store(local(tmp_path), url)
    assert "its hint is not" in caplog.text
    assert_holds(open_store(url), make_records("uint8", 12))


def test_selecting_and_merging(place: str, tmp_path: Path, temporary: Path) -> None:
    """Between paths and URLs in every direction: the same stores."""
    packstore.convert(photos(tmp_path, "first", 1), tmp_path / "a.lmdb", shard_size=200)
    packstore.convert(photos(tmp_path, "second", 2), tmp_path / "b.lmdb", shard_size=200)
    packstore.merge([tmp_path / "a.lmdb", tmp_path / "b.lmdb"], tmp_path / "c.lmdb")
    expected = open_store(tmp_path / "c.lmdb").manifest.dataset_digest
    packstore.select(tmp_path / "a.lmdb", f"{place}/a.lmdb")
    report = packstore.merge([f"{place}/a.lmdb", tmp_path / "b.lmdb"], f"{place}/c.lmdb")
    assert str(report.destination) == f"{place}/c.lmdb"
    assert report.manifest.dataset_digest == expected
    packstore.merge([f"{place}/a.lmdb", tmp_path / "b.lmdb"], tmp_path / "d.lmdb")
    assert open_store(tmp_path / "d.lmdb").manifest.dataset_digest == expected
    where = "label == ant"
    packstore.select(f"{place}/c.lmdb", tmp_path / "ants.h5", where=where)
    packstore.select(tmp_path / "c.lmdb", f"{place}/ants.h5", where=where)
    found = [open_store(ants).manifest.dataset_digest for ants in (tmp_path / "ants.h5", f"{place}/ants.h5")]
    assert found[0] == found[1]
    with pytest.raises(DestinationError, match="one lies in the other"):
        packstore.select(f"{place}/a.lmdb", f"{place}/a.lmdb")
    assert listing(temporary) <= {make_upload_folder(at(place)).parent.name}


def test_whole_shards_of_a_url(tmp_path: Path) -> None:
    """Of some shards, the bytes of ragged columns are known to none but these."""
    path, url = tmp_path / "x.lmdb", f"{(tmp_path / 'bucket').as_uri()}/x.lmdb"
    write(path, make_records("ragged", 12), shard_size=4000)
    upload_store(path, at(url))
    for store, out in ((path, tmp_path / "a.lmdb"), (url, tmp_path / "b.lmdb"), (url, f"{url}.val.lmdb")):
        packstore.select(store, out, where="split == val", whole_shards=True)
    manifests = [open_store(out).manifest for out in (tmp_path / "a.lmdb", tmp_path / "b.lmdb", f"{url}.val.lmdb")]
    assert len({manifest.dataset_digest for manifest in manifests}) == 1
    assert len({str(manifest.columns) for manifest in manifests}) == 1


def test_exporting(place: str, tmp_path: Path) -> None:
    path, url = tmp_path / "a.lmdb", f"{place}/a.lmdb"
    packstore.convert(photos(tmp_path, "first", 1), path, shard_size=200)
    packstore.select(path, url)
    packstore.export(url, tmp_path / "b.zip")
    assert packstore.verify(url, against=tmp_path / "b.zip").ok
    packstore.convert(tmp_path / "b.zip", tmp_path / "b.lmdb")
    assert open_store(tmp_path / "b.lmdb").manifest.dataset_digest == open_store(path).manifest.dataset_digest


class TestExportingTo:
    @pytest.fixture
    def store(self, tmp_path: Path) -> Path:
        packstore.convert(photos(tmp_path, "first", 1), tmp_path / "a.lmdb", shard_size=200)
        return tmp_path / "a.lmdb"

    @pytest.mark.parametrize("to", [None, "tar", "webdataset", "imagefolder", "parquet"])
    def test_a_url(self, store: Path, to: str | None, place: str, tmp_path: Path, temporary: Path) -> None:
        """The objects are the files of an export to this machine; nothing is left in the temporary directory."""
        name = {None: "b.zip", "tar": "b.tar"}.get(to, "b")
        url = f"{place}/{name}"
        report = packstore.export(store, url, to=to)
        assert str(report.destination) == url
        packstore.export(store, tmp_path / name, to=to)
        objects = open_objects(at(place))
        there = {info.name: objects.get(info.name) for info in objects.list(name)}
        files = [tmp_path / name] if (tmp_path / name).is_file() else (tmp_path / name).rglob("*")
        here = {file.relative_to(tmp_path).as_posix(): file.read_bytes() for file in files if file.is_file()}
        assert there == here
        assert [*temporary.iterdir()] == []
        packstore.convert(url, tmp_path / "again.lmdb")
        assert open_store(tmp_path / "again.lmdb").manifest.dataset_digest == open_store(store).manifest.dataset_digest
        with pytest.raises(DestinationError, match="exists already; choose another URL, or --overwrite"):
            packstore.export(store, url, to=to)
        packstore.export(store, url, to=to, overwrite=True)
        assert {info.name: objects.get(info.name) for info in objects.list(name)} == here

    def test_what_is_there(self, store: Path, tmp_path: Path) -> None:
        place = (tmp_path / "bucket").as_uri()
        open_objects(at(place)).create("b/mine.txt", b"mine")
        for overwrite in (False, True):
            with pytest.raises(DestinationError, match="holds 1 objects that are not an export of packstore"):
                packstore.export(store, f"{place}/b", to="webdataset", overwrite=overwrite)
        open_objects(at(place)).create("mine.zip", b"mine")
        tar = TarWriter(out := io.BytesIO())
        tar.add("packstore.json", b"{}")
        tar.close()
        open_objects(at(place)).create("mine.tar", out.getvalue())
        for name in ("mine.zip", "mine.tar"):
            before = open_objects(at(place)).get(name)
            with pytest.raises(DestinationError, match=f"{name} is not an export of packstore, so it is not replaced"):
                packstore.export(store, f"{place}/{name}", overwrite=True)
            assert open_objects(at(place)).get(name) == before
        with pytest.raises(DestinationError, match="is read only"):
            packstore.export(store, "http://127.0.0.1:9/b", to="webdataset")

    @pytest.mark.parametrize("to", ["webdataset", "imagefolder"])
    def test_an_object_beside_an_export_is_not_deleted(self, store: Path, to: str, tmp_path: Path) -> None:
        url = (tmp_path / "bucket/b").as_uri()
        packstore.export(store, url, to=to)
        objects = open_objects(at(url))
        objects.create("mine.txt", b"mine")
        for text, match in ((None, "also holds 'mine.txt'"), (b"{}", "is not an export of packstore")):
            if text is not None:
                objects.put("packstore.json", text)
            there = {info.name: objects.get(info.name) for info in objects.list()}
            with pytest.raises(DestinationError, match=match):
                packstore.export(store, url, to=to, overwrite=True)
            assert {info.name: objects.get(info.name) for info in objects.list()} == there

    def test_an_upload_that_fails_leaves_nothing(
        self, store: Path, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        objects, create = type(open_objects(at(tmp_path.as_uri()))), 0

        def fails(self: Any, name: str, data: Any) -> bool:
            nonlocal create
            create += 1
            if create == 3:
                raise KeyboardInterrupt
            return bool(created(self, name, data))

        created = objects.create
        monkeypatch.setattr(objects, "create", fails)
        with pytest.raises(KeyboardInterrupt):
            packstore.export(store, (tmp_path / "bucket/b").as_uri(), to="imagefolder")
        assert [*open_objects(at((tmp_path / "bucket").as_uri())).list()] == []
        assert [*temporary.iterdir()] == []


class TestAppend:
    @pytest.fixture
    def stores(self, place: str, tmp_path: Path) -> tuple[Path, str]:
        """The same store here and there."""
        packstore.convert(photos(tmp_path, "first", 1), tmp_path / "a.lmdb", shard_size=200)
        packstore.select(tmp_path / "a.lmdb", f"{place}/a.lmdb")
        return tmp_path / "a.lmdb", f"{place}/a.lmdb"

    def test_a_source(self, stores: tuple[Path, str], tmp_path: Path, temporary: Path) -> None:
        second = photos(tmp_path, "second", 2)
        reports = [packstore.append(store, second) for store in stores]
        assert str(reports[1].store) == stores[1]
        assert reports[0].added == reports[1].added == {"train": 6}
        assert reports[0].manifest.dataset_digest == reports[1].manifest.dataset_digest
        assert packstore.verify(stores[1], against=stores[0]).ok
        with pytest.raises(SourceError, match="has 6 of the keys"):
            packstore.append(stores[1], second)
        assert packstore.append(stores[1], second, on_duplicate="skip").added == {}
        assert find_newest_version(open_objects(stores[1])) == 2
        assert listing(temporary) <= {make_upload_folder(at(stores[1])).parent.name}

    @pytest.mark.parametrize("committed", [True, False])
    def test_killed_and_repeated(
        self,
        stores: tuple[Path, str],
        tmp_path: Path,
        temporary: Path,
        monkeypatch: pytest.MonkeyPatch,
        committed: bool,
    ) -> None:
        """When the version is there, or just before: the second run succeeds, and a third finds duplicates."""
        second, url = photos(tmp_path, "second", 2), stores[1]
        publish = publish_module.upload_and_publish

        def killed(*arguments: Any) -> int:
            if committed:
                publish(*arguments)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("packstore.stores.places.remote.upload_and_publish", killed)
            with pytest.raises(KeyboardInterrupt):
                packstore.append(url, second)
        report = packstore.append(url, second)
        assert report.added == ({} if committed else {"train": 6})
        assert ("the interrupted run had finished" in append_report_rows(report).text) is committed
        assert find_newest_version(open_objects(url)) == 2
        assert report.manifest.digest == open_store(url).manifest.digest
        with pytest.raises(SourceError, match="has 6 of the keys"):
            packstore.append(url, second)
        assert listing(temporary) <= {make_upload_folder(at(url)).parent.name}

    def test_stores(self, stores: tuple[Path, str], place: str, tmp_path: Path) -> None:
        """Linked where they lie, here or there."""
        packstore.convert(photos(tmp_path, "second", 2), tmp_path / "b.lmdb", shard_size=200)
        packstore.select(tmp_path / "b.lmdb", f"{place}/b.lmdb")
        reports = [packstore.append(stores[0], f"{place}/b.lmdb"), packstore.append(stores[1], tmp_path / "b.lmdb")]
        assert reports[0].linked == reports[1].linked > 1
        assert reports[0].manifest.dataset_digest == reports[1].manifest.dataset_digest
        packstore.convert(photos(tmp_path, "third", 3), tmp_path / "c.lmdb", shard_size=200)
        packstore.select(tmp_path / "c.lmdb", f"{place}/c.lmdb")
        reports = [packstore.append(store, f"{place}/c.lmdb") for store in stores]
        assert reports[0].manifest.dataset_digest == reports[1].manifest.dataset_digest
        assert packstore.verify(stores[1]).ok

    def test_a_shard_of_several_splits(self, place: str, tmp_path: Path) -> None:
        """A store of one file is one there; appending makes one of each split."""
        records, more = make_records("uint8", 12), make_records("uint8", 8, 1)
        more.values["key"] = [f"more-{i}" for i in range(8)]
        write(tmp_path / "more.h5", more)
        write(tmp_path / "a.h5", records)
        upload_store(tmp_path / "a.h5", at(f"{place}/a.h5"))
        for store in (tmp_path / "a.h5", f"{place}/a.h5"):
            assert packstore.append(store, tmp_path / "more.h5").rewritten == 12
        digests = [open_store(store).manifest.dataset_digest for store in (tmp_path / "a.h5", f"{place}/a.h5")]
        assert digests[0] == digests[1]
        assert packstore.verify(f"{place}/a.h5").ok

    @pytest.mark.parametrize("new_class", [False, True])
    def test_who_loses_the_race_goes_on_behind(
        self, stores: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_class: bool
    ) -> None:
        """Where the other brings no new class, nothing is packed again."""
        second, third = photos(tmp_path, "second", 2), photos(tmp_path, "third", 3)
        if new_class:
            (second / "train" / "ant").rename(second / "train" / "aardvark")
        url = stores[1]
        publish, raced, packed = publish_module.upload_and_publish, False, 0
        pack = append_module._make_shards

        def late(*arguments: Any) -> int:
            nonlocal raced
            if not raced:
                raced = True
                packstore.append(url, second)
            return publish(*arguments)

        def counted(*arguments: Any) -> Any:
            nonlocal packed
            packed += 1
            return pack(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr("packstore.stores.places.remote.upload_and_publish", late)
            patch.setattr(append_module, "_make_shards", counted)
            packstore.append(url, third)
        assert packed == (3 if new_class else 2)
        assert find_newest_version(open_objects(url)) == 3
        packstore.append(stores[0], second)
        packstore.append(stores[0], third)
        assert open_store(url).manifest.dataset_digest == open_store(stores[0]).manifest.dataset_digest
        assert packstore.verify(url).ok

    def test_who_loses_the_race_rewrites_shards_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        url = f"file://{tmp_path}/bucket/a.lmdb"
        names = ["first", "second", "third"]
        first, second, third = (photos(tmp_path, name, color) for color, name in enumerate(names))
        for folder in (first, third):
            shutil.copytree(folder / "train", folder / "val")
        (second / "train").rename(second / "test")
        packstore.convert(first, tmp_path / "a.lmdb")
        upload_store(tmp_path / "a.lmdb", at(url))
        publish, raced = publish_module.upload_and_publish, False

        def late(*arguments: Any) -> int:
            nonlocal raced
            if not raced:
                raced = True
                assert packstore.append(url, second).rewritten == 0
            return publish(*arguments)

        monkeypatch.setattr("packstore.stores.places.remote.upload_and_publish", late)
        assert packstore.append(url, third).rewritten == 12
        assert open_store(url).manifest.splits[2].name == "test"
        assert packstore.verify(url).ok

    @pytest.mark.sampled(1, fast=0)
    def test_several_at_once(self, stores: tuple[Path, str], tmp_path: Path) -> None:
        """Each is there in the end, whole, and once."""
        names = ["second", "third", "fourth"]
        sources = [photos(tmp_path, name, color) for color, name in enumerate(names)]
        command = [sys.executable, "-m", "packstore", "append", stores[1]]
        runs = [subprocess.Popen([*command, str(source), "--quiet"], stderr=subprocess.PIPE) for source in sources]
        assert [(run.communicate()[1], run.returncode) for run in runs] == [(b"", 0)] * 3
        for source in sources:
            packstore.append(stores[0], source)
        keys = [sorted(map(reader.key, range(len(reader)))) for reader in map(open_store, stores)]
        assert keys[0] == keys[1]
        assert find_newest_version(open_objects(stores[1])) == 4
        assert packstore.verify(stores[1]).ok

    def test_keys_that_the_winner_has_brought(
        self, stores: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        second, url = photos(tmp_path, "second", 2), stores[1]
        publish, raced = publish_module.upload_and_publish, False

        def late(*arguments: Any) -> int:
            nonlocal raced
            if not raced:
                raced = True
                packstore.append(url, photos(tmp_path / "again", "second", 5))
            return publish(*arguments)

        monkeypatch.setattr("packstore.stores.places.remote.upload_and_publish", late)
        with pytest.raises(SourceError, match="has 6 of the keys"):
            packstore.append(url, second)
        assert find_newest_version(open_objects(url)) == 2
