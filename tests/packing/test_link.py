"""``convert --link``: stores whose images stay where they are."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import packstore
from packstore.augment import RandomResizedCrop
from packstore.stores import open_store
from tests.internals import (
    FolderSource,
    PackstoreError,
    SampleError,
    SourceError,
    StoreError,
    UsageError,
    list_linked_files,
)
from tests.makers.linked import make_files, make_more, make_source, spoil

pytestmark = pytest.mark.slow

FORMATS = ("lmdb", "h5", "pth")
CONTAINERS = ("folder", "tar", "zip", "webdataset")


def link(source: Path, store: Path, **options: object) -> Path:
    packstore.convert(source, store, link=True, encoding="original", **options)  # type: ignore[arg-type]
    return store


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("index", [True, False])
def test_it_is_the_packed_dataset(tmp_path: Path, format: str, container: str, index: bool) -> None:
    source = make_source(tmp_path, container)
    linked = link(source, tmp_path / f"linked.{format}", index=index)
    packed = tmp_path / f"packed.{format}"
    packstore.convert(source, packed, encoding="original", index=index)
    with open_store(linked) as a, open_store(packed) as b:
        assert a.manifest.dataset_digest == b.manifest.dataset_digest
        assert a.manifest.image.nbytes == b.manifest.image.nbytes
        assert [bytes(a.read(i)) for i in range(len(a))] == [bytes(b.read(i)) for i in range(len(b))]
        assert [bytes(v) for v in a.views(np.arange(len(a)))] == [bytes(b.read(i)) for i in range(len(b))]
    assert packstore.verify(linked, decode=True).ok
    assert packstore.verify(linked, against=source).ok
    copy = tmp_path / f"copy.{format}"
    packstore.convert(linked, copy, encoding="original")
    with open_store(copy) as reader, open_store(packed) as b:
        assert not reader.manifest.is_linked
        assert reader.manifest.dataset_digest == b.manifest.dataset_digest
    shutil.rmtree(tmp_path / "files")
    source.unlink(missing_ok=True)
    assert packstore.verify(copy).ok
    assert not packstore.verify(linked).ok


@pytest.mark.parametrize("container", CONTAINERS)
def test_plain_bytes_lie_where_the_columns_say(tmp_path: Path, container: str) -> None:
    source = make_source(tmp_path, container)
    with open_store(link(source, tmp_path / "a.lmdb")) as reader:
        for i in range(len(reader)):
            with Path(os.fsdecode(bytes(reader.value("link_file", i)))).open("rb") as file:
                file.seek(int(reader.value("link_offset", i)))
                assert file.read(int(reader.value("link_length", i))) == bytes(reader.read(i))


def loaded(store: Path) -> list[torch.Tensor]:
    loader = packstore.PackedLoader(
        packstore.PackedDataset(store), 3, augment=RandomResizedCrop(32), shuffle=True, seed=3, workers=2
    )
    return [batch[0].clone() for batch in loader]


def test_loader_gives_the_same_batches(tmp_path: Path) -> None:
    source = make_source(tmp_path, "tar")
    packstore.convert(source, tmp_path / "packed.lmdb")
    linked, packed = (loaded(path) for path in (link(source, tmp_path / "a.lmdb"), tmp_path / "packed.lmdb"))
    assert len(linked) == len(packed) > 0
    assert all(map(torch.equal, linked, packed))


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("container", ["folder", "tar"])
@pytest.mark.parametrize("how", ["deleted", "moved", "truncated", "directory", "flipped", "same time"])
def test_source_that_changes_is_an_error_with_a_name(tmp_path: Path, container: str, how: str, opened: bool) -> None:
    source = make_source(tmp_path, container)
    store = link(source, tmp_path / "a.lmdb")
    file = source if container == "tar" else source / "class0" / "0.jpg"
    record = 0 if container == "folder" else 5
    with open_store(store, "auto") as reader:
        key = reader.key(record)
        if opened:
            reader.read(record)
        spoil(file, how)
        with pytest.raises(StoreError, match=key):
            reader.read(record)
    with open_store(store, "auto") as reader, pytest.raises(StoreError, match=key):
        reader.read(record)
    report = packstore.verify(store)
    assert not report.ok
    assert any(key in (problem.key or "") for problem in report.problems)
    if how != "same time":
        assert [problem.what for problem in report.problems if problem.what.startswith("its file ")]
    assert not any("record" in problem.what for problem in report.problems)
    with pytest.raises(PackstoreError, match=r"class\d/\d.jpg"):
        packstore.convert(store, tmp_path / "copy.lmdb")


def test_a_file_in_a_zip_without_its_header_is_an_error_with_a_name(tmp_path: Path) -> None:
    source = make_source(tmp_path, "zip")
    data = bytearray(source.read_bytes())
    data[data.find(b"PK\x03\x04", 4)] = 0
    source.write_bytes(data)
    with pytest.raises(SampleError, match="cannot be read from the archive: there is no file at byte"):
        link(source, tmp_path / "a.lmdb")


def test_touched_and_longer_files_are_read_if_their_bytes_are_the_same(tmp_path: Path) -> None:
    source = make_source(tmp_path, "tar")
    store = link(source, tmp_path / "a.lmdb")
    with source.open("ab") as file:
        file.write(bytes(512))
    os.utime(source, (1, 1))
    assert packstore.verify(store).ok


def test_compressed_archive_is_refused(tmp_path: Path) -> None:
    folder = make_files(tmp_path / "files")
    shutil.make_archive(str(tmp_path / "a"), "gztar", folder)
    shutil.make_archive(str(tmp_path / "b"), "zip", folder)
    for source in (tmp_path / "a.tar.gz", tmp_path / "b.zip"):
        with pytest.raises(UsageError, match="cannot be linked"):
            link(source, tmp_path / "store.lmdb")
        assert not (tmp_path / "store.lmdb").exists()


@pytest.mark.parametrize(
    "options", [{"encoding": "uint8", "size": 8}, {"encoding": "jpeg"}, {"progressive": "baseline"}]
)
def test_options_that_make_other_bytes_are_refused(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="link"):
        packstore.convert(make_files(tmp_path / "files"), tmp_path / "a.lmdb", link=True, **options)  # type: ignore[arg-type]


def test_select_and_index_keep_links(tmp_path: Path) -> None:
    source = make_source(tmp_path, "tar")
    store = link(source, tmp_path / "a.lmdb", index=False)
    packstore.add_index(store)
    packstore.select(store, tmp_path / "few.lmdb", where="label == class1")
    for path, count in ((store, 6), (tmp_path / "few.lmdb", 3)):
        assert packstore.verify(path, decode=True).ok
        with open_store(path) as reader:
            assert len(reader) == count
            assert reader.manifest.is_linked
    with open_store(store) as one, open_store(link(source, tmp_path / "indexed.lmdb")) as other:
        assert one.manifest.has_column("seek_index")
        assert [c.name for c in one.manifest.columns] == [c.name for c in other.manifest.columns]
    packstore.append(store, make_more(tmp_path / "more", 20))
    assert packstore.verify(store, decode=True).ok
    with pytest.raises(UsageError, match=r"can be left out; there are: label, seek_index$"):
        packstore.select(store, tmp_path / "less.lmdb", drop_columns=["link_offset"])


def test_salvage_refuses(tmp_path: Path) -> None:
    store = link(make_source(tmp_path, "folder"), tmp_path / "a.lmdb")
    with pytest.raises(UsageError, match="linked"):
        packstore.salvage(store, tmp_path / "out.lmdb")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("how", [True, "relative"])
def test_append_merge_and_select_are_those_of_packed_stores(tmp_path: Path, format: str, how: object) -> None:
    first, second = make_source(tmp_path, "tar"), make_more(tmp_path / "more", 20)
    stores = {}
    for name, options in (("linked", {"link": how}), ("packed", {})):
        folder = tmp_path / name
        folder.mkdir()
        for number, source in enumerate((first, second)):
            packstore.convert(source, folder / f"{number}.{format}", encoding="original", **options)
        packstore.append(folder / f"0.{format}", second)  # a source
        packstore.merge([folder / f"{i}.{format}" for i in (0, 1)], folder / f"few.{format}", on_duplicate="skip")
        (folder / "elsewhere").mkdir()
        packstore.select(folder / f"few.{format}", folder / "elsewhere" / f"few.{format}", where="label == class1")
        packstore.convert(first, folder / f"again.{format}", encoding="original", **options)
        packstore.append(folder / f"again.{format}", folder / f"1.{format}")  # a store
        stores[name] = [folder / f"{n}.{format}" for n in ("0", "few", "elsewhere/few", "again")]
    for linked, packed in zip(stores["linked"], stores["packed"], strict=True):
        with open_store(linked) as a, open_store(packed) as b:
            assert a.manifest.is_linked
            assert a.manifest.dataset_digest == b.manifest.dataset_digest
            assert a.manifest.image.nbytes == b.manifest.image.nbytes
            found = [bytes(v) for v in a.views(np.arange(len(a))[::-1])][::-1]
            assert found == [bytes(b.read(i)) for i in range(len(b))]
            links = [os.fsdecode(bytes(a.value("link_file", i))) for i in range(len(a))]
            assert all(name.startswith("/") is (how is True) for name in links)
        assert packstore.verify(linked, decode=True).ok
    mixed = tmp_path / f"mixed.{format}"
    packstore.merge([stores["linked"][0], tmp_path / "packed" / f"1.{format}"], mixed, on_duplicate="skip")
    with open_store(mixed) as reader:
        assert not reader.manifest.is_linked
        assert len(reader) == 10
    assert packstore.verify(mixed).ok


def test_links_to_one_file_are_counted_together() -> None:
    """packstore writes one link for a file; another program may write several."""
    columns: dict[str, Any] = {
        "link_file": [b"a.tar", b"/data/a.tar", b"x/../a.tar", b"b.tar"],
        "link_offset": np.array([0, 500, 10, 20]),
        "link_length": np.array([5, 6, 7, 8]),
    }
    reader = Mock()
    reader.parts.return_value = [Mock(fixed_column=columns.__getitem__, ragged_column=columns.__getitem__)]
    assert list_linked_files(reader.parts(), Path("/data")) == {"/data/a.tar": (3, 506), "/data/b.tar": (1, 28)}


@pytest.mark.parametrize("format", FORMATS)
def test_shards_are_linked_too(tmp_path: Path, format: str) -> None:
    source = make_source(tmp_path, "tar")
    store = link(source, tmp_path / f"a.{format}", shard_size=20_000)
    with open_store(store) as reader:
        assert reader.manifest.shards is not None
        assert len(reader.manifest.shards) > 2
        assert reader.manifest.image.nbytes == sum(len(reader.read(i)) for i in range(len(reader)))
    assert packstore.verify(store, decode=True, against=source).ok
    assert len(loaded(store)) == 2
    spoil(source, "truncated")
    assert not packstore.verify(store, quick=True).ok
    with open_store(store) as reader, pytest.raises(StoreError, match=f"record 5 .{re.escape(reader.key(5))}.: its"):
        reader.read(5)  # numbers are those of the store, not of the shard


def test_relative_links_move_with_their_files(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    source = make_source(tmp_path / "here", "tar")
    packstore.convert(source, tmp_path / "here" / "a.lmdb", link="relative")
    (tmp_path / "here").rename(tmp_path / "there")
    assert packstore.verify(tmp_path / "there" / "a.lmdb").ok
    shutil.move(tmp_path / "there" / "a.lmdb", tmp_path / "a.lmdb")
    with open_store(tmp_path / "a.lmdb") as reader, pytest.raises(StoreError, match=r"source\.tar.*rebase"):
        reader.read(0)
    report = packstore.relink(tmp_path / "a.lmdb", rebase=(tmp_path, tmp_path / "there"), links="absolute")
    assert (report.files, report.moved, report.proven) == (1, 1, 0)
    assert packstore.verify(tmp_path / "a.lmdb").ok


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_relative_links_begin_where_the_store_lies(tmp_path: Path, format: str, sharded: bool) -> None:
    (tmp_path / "disk" / "sets").mkdir(parents=True)
    make_source(tmp_path / "disk", "folder").rename(tmp_path / "disk" / "files")
    (tmp_path / "sets").symlink_to(tmp_path / "disk" / "sets")
    (tmp_path / "short").symlink_to(tmp_path / "disk")
    (tmp_path / "elsewhere").mkdir()
    store = tmp_path / "disk" / "sets" / f"a.{format}"
    options = {"encoding": "original", "shard_size": 2000 if sharded else None}
    packstore.convert(tmp_path / "short" / "files", tmp_path / "sets" / store.name, link="relative", **options)  # type: ignore[arg-type]
    (tmp_path / "elsewhere" / store.name).symlink_to(store)
    for way in ("disk/sets", "sets", "elsewhere"):
        assert packstore.verify(tmp_path / way / store.name, decode=True).ok
        packstore.select(
            tmp_path / way / store.name, tmp_path / "elsewhere" / f"few.{format}", sample=2, overwrite=True
        )
        assert packstore.verify(tmp_path / "elsewhere" / f"few.{format}").ok
    packstore.relink(tmp_path / "sets" / store.name)
    assert packstore.verify(store).ok
    (tmp_path / "disk").rename(tmp_path / "new")  # neither needs the links that it was named by
    assert packstore.verify(tmp_path / "new" / "sets" / store.name).ok


@pytest.mark.parametrize("container", ["tar", "folder"])
def test_relinked_store_reads_the_moved_files(tmp_path: Path, container: str) -> None:
    source = make_source(tmp_path, container)
    store = link(source, tmp_path / "a.lmdb")
    with open_store(store) as reader:
        digest = reader.manifest.dataset_digest
    moved = tmp_path / "elsewhere" / source.name
    moved.parent.mkdir()
    source.rename(moved)
    count = "6 images" if container == "tar" else "1 image"
    problem = packstore.verify(store, quick=True).problems[0].what
    assert f", which has {count}, cannot be read" in problem
    assert "name its new place (packstore link --rebase)" in problem
    if container == "tar":
        os.utime(moved, (5, 5))
    report = packstore.relink(store, rebase=(source, moved))
    assert report.proven == (6 if container == "tar" else 0)
    with open_store(store) as reader:
        assert reader.manifest.dataset_digest == digest
    assert packstore.verify(store, decode=True).ok
    spoil(moved if container == "tar" else moved / "class0" / "0.jpg", "flipped")
    before = (store / "data.mdb").read_bytes()
    with pytest.raises(StoreError, match="another file"):
        packstore.relink(store, links="relative")
    assert (store / "data.mdb").read_bytes() == before


def test_relinking_what_is_not_there_is_refused(tmp_path: Path) -> None:
    source = make_source(tmp_path, "tar")
    store = link(source, tmp_path / "a.lmdb")
    with pytest.raises(UsageError, match="points to"):
        packstore.relink(store, rebase=("/nowhere", tmp_path))
    with pytest.raises(StoreError, match="nothing was changed"):
        packstore.relink(store, rebase=(tmp_path, tmp_path / "missing"))
    packstore.convert(source, tmp_path / "packed.lmdb")
    with pytest.raises(UsageError, match="no links"):
        packstore.relink(tmp_path / "packed.lmdb", links="relative")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("damage", ["link_offset", "link_file", "link_file_modified", "label", "the source"])
def test_repair_links_again(tmp_path: Path, format: str, damage: str) -> None:
    source = make_source(tmp_path, "tar")
    store = link(source, tmp_path / f"a.{format}")
    with open_store(store) as reader:
        digest = reader.manifest.dataset_digest
        if damage == "the source":
            value = b""
        elif damage == "link_file":
            value = bytes(reader.value(damage, 2))
        else:
            value = reader.column(damage)[:].tobytes()
    again = tmp_path / "again" / "source.tar"
    again.parent.mkdir()
    shutil.copy(source, again)
    if damage == "the source":
        spoil(source, "flipped")
    else:
        file = store / "data.mdb" if format == "lmdb" else store
        data = bytearray(file.read_bytes())
        for place in [found.start() for found in re.finditer(re.escape(value), data)]:  # LMDB leaves old copies
            data[place + 1] ^= 1
        file.write_bytes(data)
    assert not packstore.verify(store).ok
    report = packstore.repair(store, again, tmp_path / f"whole.{format}")
    assert not report.lost
    assert packstore.verify(tmp_path / f"whole.{format}", decode=True, against=again).ok
    with open_store(tmp_path / f"whole.{format}") as reader:
        assert reader.manifest.is_linked
        assert reader.manifest.dataset_digest == digest


@pytest.mark.parametrize("change", [lambda file: os.utime(file, (1, 1)), Path.unlink], ids=["touched", "gone"])
def test_a_file_that_changes_while_it_is_linked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    folder = make_files(tmp_path / "files")
    read = FolderSource.read

    def read_and_change(self: Any, entry: Any) -> Any:
        found = read(self, entry)
        if entry.key == "class1/5.jpg":
            change(folder / "class0" / "0.jpg")
        return found

    monkeypatch.setattr(FolderSource, "read", read_and_change)
    monkeypatch.setattr(FolderSource, "read_together", lambda self, entries: [None] * len(entries))
    with pytest.raises(SourceError, match="changed while"):
        link(folder, tmp_path / "a.lmdb")
    assert not (tmp_path / "a.lmdb").exists()


@pytest.mark.parametrize("format", FORMATS)
def test_flipped_bytes_of_the_store_are_found(tmp_path: Path, format: str, rng: random.Random) -> None:
    """Whatever is flipped: what is read is the image, or an error."""
    store = link(make_source(tmp_path, "tar"), tmp_path / f"a.{format}")
    with open_store(store) as reader:
        images = [bytes(reader.read(i)) for i in range(len(reader))]
    file = store / "data.mdb" if format == "lmdb" else store
    data = file.read_bytes()
    for place in [rng.randrange(len(data)) for _ in range(60)]:
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        file.write_bytes(flipped)
        try:
            with open_store(store, "auto") as reader:
                for i, image in enumerate(images):
                    with suppress(StoreError):
                        assert bytes(reader.read(i)) == image
        except StoreError:
            pass


@pytest.mark.parametrize("target", ["webdataset", "imagefolder", "parquet"])
def test_exports_and_audits_are_those_of_the_packed_store(tmp_path: Path, target: str) -> None:
    source = make_source(tmp_path, "tar")
    link(source, tmp_path / "linked.lmdb")
    packstore.convert(source, tmp_path / "packed.lmdb")
    for name in ("linked", "packed"):
        packstore.export(tmp_path / f"{name}.lmdb", tmp_path / name, to=target)
    exported = [
        {
            file.relative_to(tmp_path / name): file.read_bytes()
            for file in (tmp_path / name).rglob("*")
            if file.is_file()
        }
        for name in ("linked", "packed")
    ]
    notes = {path for path in exported[0] if path.name == "packstore.json"}  # with the origin's columns
    assert exported[0].keys() == exported[1].keys()
    assert all(exported[0][path] == exported[1][path] for path in exported[0].keys() - notes)
    packstore.convert(tmp_path / "linked", tmp_path / "back.lmdb")
    with open_store(tmp_path / "back.lmdb") as back, open_store(tmp_path / "packed.lmdb") as packed:
        assert back.manifest.dataset_digest == packed.manifest.dataset_digest
    found = [packstore.audit(tmp_path / f"{name}.lmdb") for name in ("linked", "packed")]
    assert [str(f) for f in found[0].findings] == [str(f) for f in found[1].findings]
