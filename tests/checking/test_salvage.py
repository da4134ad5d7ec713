"""``salvage`` gets every undamaged record out of what is left of a store, and nothing that is not as it was."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import packstore
from packstore.stores import StoreBuilder, open_store
from packstore.testing.records import append, make_records
from tests.internals import (
    Column,
    DestinationError,
    Manifest,
    Normalization,
    Origin,
    PackstoreError,
    Split,
    StoreError,
    UsageError,
    correct_manifest,
    find_manifest,
    manifest_recovery,
)
from tests.makers.command import run
from tests.makers.datasets import write_image
from tests.makers.images import encode, picture
from tests.makers.stores import change, content, damage
from tests.makers.tiers import examples

SUFFIXES = ("lmdb", "h5", "pth")
Content = dict[str, tuple[bytes, int]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("salvage") / "photos"
    for number in range(12):
        split, name = ("train", "val")[number // 8], ("ant", "bee")[number // 4 % 2]
        write_image(root / split / name / f"{number:02}.png", 20 + number % 3, 33, number)
    return root


def held(path: Path) -> Content:
    """Image and label of every record by key."""
    with open_store(path) as reader:
        labels = reader.fixed_column("label")
        return {reader.key(i): (bytes(reader.read(i)), int(labels[i])) for i in range(len(reader))}


def data_file(store: Path) -> Path:
    return store / "data.mdb" if store.is_dir() else store


def copy(store: Path, to: Path) -> Path:
    shutil.copytree(store, to) if store.is_dir() else shutil.copy(store, to)
    return to


def overwrite(file: Path, start: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(start)
        opened.write(data)


# --- the manifest -----------------------------------------------------------------------------------------------------


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    names = draw(st.lists(st.text(max_size=8), unique=True, max_size=4))
    count = draw(st.integers(1, 50))
    columns = (
        Column("image", "fixed", "float16", (3, 4, 4), "CHW", nbytes=96 * count, type="image"),
        Column("label", "fixed", "int64", classes=tuple(names), nbytes=8 * count, digest="a" * 64, type="label"),
        Column("key", "ragged", "uint8", nbytes=9 * count, digest="b" * 64, type="text"),
        Column("checksum", "fixed", "uint64", nbytes=8 * count, digest="c" * 64),
    )
    splits = draw(st.sampled_from([(), (Split("train", 0, count),)]))
    norm = draw(st.sampled_from([None, Normalization((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))]))
    versions = draw(st.dictionaries(st.sampled_from(["packstore", "decoder"]), st.text(max_size=5)))
    return Manifest("pth", "float16", count, columns, Origin("flat", "x"), splits, norm, {"size": 4}, versions)


@pytest.mark.slow
@examples(25)
@given(manifest=manifests(), data=st.data())
def test_a_manifest_with_one_changed_byte_is_corrected(manifest: Manifest, data: Any) -> None:
    text = bytearray(manifest.to_json().encode("ascii"))
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] ^= data.draw(st.integers(1, 255))
    found = find_manifest(b"\x89 junk {\x00" + bytes(text) + b"\x00\xff junk }}")
    assert found is not None, (place, bytes(text))
    assert found.manifest == manifest
    assert found.proven


@pytest.mark.slow
def test_what_cannot_be_corrected_is_not_called_proven() -> None:
    records = make_records("uint8", 4)
    blank = [dataclasses.replace(c, nbytes=c.record_nbytes * 4) for c in records.columns]
    text = Manifest("hdf5", "uint8", 4, tuple(blank), Origin("flat", "somewhere")).to_json().encode("ascii")
    two = text.replace(b'"somewhere"', b'"somewhexy"')
    found = correct_manifest(two)
    assert found is not None
    assert (found.proven, found.state, found.manifest.origin.name) == (False, "unproven", "somewhexy")
    assert correct_manifest(text[:-30]) is None
    assert find_manifest(b"nothing of the kind") is None
    assert correct_manifest(text).state == "intact"  # type: ignore[union-attr]


@pytest.mark.slow
def test_what_looks_like_very_many_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(manifest_recovery, "correct_manifest", lambda text: tried.append(len(text)))
    for text in (b'{"columns"', b'{"columns":1,"versions":{}}', b'{"columns":[{"classes"'):
        data = text * 3000
        assert sum(map(len, manifest_recovery._find_manifest_texts(data))) <= 8 * len(data)
        assert manifest_recovery.find_manifest(data) is None
    assert len(tried) < 100


# --- a file -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["original", "uint8", "float16"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_store_with_a_broken_beginning_and_end(source: Path, tmp_path: Path, suffix: str, encoding: str) -> None:
    """LMDB's header pages, HDF5's superblock and root, the zip's directory and the pickle's end."""
    good = tmp_path / f"good.{suffix}"
    packstore.convert(source, good, encoding=encoding, size=None if encoding == "original" else 16)
    bad = copy(good, tmp_path / f"bad.{suffix}")
    file = data_file(bad)
    start, size = {"lmdb": (0, 8192), "h5": (0, 90), "pth": (file.stat().st_size - 1000, 1000)}[suffix]
    overwrite(file, start, b"\xa5" * size)
    before = content(bad)
    with pytest.raises(StoreError):
        open_store(bad)
    report = packstore.salvage(bad, tmp_path / "fixed")
    assert report.complete
    assert (report.recovered, report.missing_count) == (12, 0)
    assert any("cannot be opened" in note or "not a store" in note for note in report.notes), report.notes
    assert content(tmp_path / "fixed") == content(good)
    assert content(bad) == before, "the damaged store was written to"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_pixels_of_16_bits_and_different_sizes(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "scans").mkdir()
    for number in range(4):
        Image.new("I;16", (9 + number, 12), 4000 + number).save(tmp_path / "scans" / f"{number}.png")
    store = tmp_path / f"a.{suffix}"
    packstore.convert(tmp_path / "scans", store, encoding="uint16", mode="keep")
    report = packstore.salvage(store, tmp_path / "fixed")
    assert (report.recovered, report.missing_count) == (4, 0)
    with open_store(store) as whole, open_store(tmp_path / "fixed") as fixed:
        assert fixed.manifest.dataset_digest == whole.manifest.dataset_digest


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_records_are_left_out_and_listed(source: Path, tmp_path: Path, suffix: str) -> None:
    store = tmp_path / f"a.{suffix}"
    packstore.convert(source, store, encoding="original")
    good = held(store)
    damage(store, [1, 9], ["label"], bits=1)  # another class
    manifest = b'{"columns":[{"classes"'
    raw = data_file(store).read_bytes()
    place = raw.find(manifest)
    while place >= 0:  # LMDB may keep an old copy
        overwrite(data_file(store), place + 30, b"?")
        place = raw.find(manifest, place + 1)
    report = packstore.salvage(store, tmp_path / "fixed")
    assert {p.record for p in report.missing} == {1, 3, 9}
    assert {p.key for p in report.missing} == {"train/ant/01.png", "train/ant/03.png", "val/ant/09.png"}
    assert not report.complete
    assert any("corrected" in note for note in report.notes)
    saved = held(tmp_path / "fixed")
    assert saved == {key: value for key, value in good.items() if key not in {p.key for p in report.missing}}
    assert packstore.verify(tmp_path / "fixed").ok
    with open_store(tmp_path / "fixed") as reader:
        assert [(s.name, len(s)) for s in reader.manifest.splits] == [("train", 6), ("val", 3)]
        assert {s.key for s in reader.manifest.skipped} == {p.key for p in report.missing}
        assert reader.manifest.classes == ("ant", "bee")
    again = packstore.salvage(store, tmp_path / "all", unproven=True)
    assert (again.recovered, again.missing_count) == (12, 0) or again.missing_count == 1  # a label may be no class
    assert again.unproven_count == again.recovered - 9
    assert not again.complete


@pytest.fixture(scope="module")
def make_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Packs five images. Each suffix, encoding and size of shards is packed once."""
    root = tmp_path_factory.mktemp("any")
    for number in range(5):
        write_image(root / "photos" / ("ant", "bee")[number % 2] / f"{number}.png", 24, 25, number)

    @cache
    def make(suffix: str, encoding: str, shard_size: int | None) -> Path:
        store = root / f"{encoding}-{shard_size}.{suffix}"
        packstore.convert(root / "photos", store, encoding=encoding, shard_size=shard_size)
        return store

    return make


@pytest.mark.slow
@examples(12)
@given(data=st.data())
def test_nothing_wrong_gets_in(
    make_store: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    """Whatever is destroyed, what is saved is what was there, and every record is saved or missed."""
    suffix = data.draw(st.sampled_from(SUFFIXES))
    encoding = data.draw(st.sampled_from(["original", "uint8"]))
    whole = make_store(suffix, encoding, data.draw(st.sampled_from([None, 3000])))
    root = tmp_path_factory.mktemp("bad")
    good, store = held(whole), copy(whole, root / f"a.{suffix}")
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    files = [p for p in ([store] if store.is_file() else sorted(store.rglob("*"))) if p.is_file()]
    for _ in range(data.draw(st.integers(1, 3))):
        file = rng.choice(files)
        content = bytearray(file.read_bytes())
        match data.draw(st.sampled_from(["flip", "zeros", "noise", "cut", "gone"])):
            case "flip":
                content[rng.randrange(len(content))] ^= rng.randrange(1, 256)
            case "cut":
                del content[rng.randrange(len(content)) :]
            case "gone" if len(files) > 2:
                content = bytearray(b"!")
            case how:
                start, size = rng.randrange(len(content)), rng.choice([50, 600, 5000])
                size = min(size, len(content) - start)
                content[start : start + size] = bytes(size) if how == "zeros" else rng.randbytes(size)
        file.write_bytes(content or b"!")
    try:
        report = packstore.salvage(store, root / "fixed")
    except PackstoreError:
        assert not (root / "fixed").exists()
        return
    if report.destination is None:
        assert report.recovered == 0
        assert not (root / "fixed").exists()
        return
    assert packstore.verify(root / "fixed").ok
    saved = held(root / "fixed")
    assert len(saved) == report.recovered
    names = packstore.open(root / "fixed").manifest.classes
    for key, (image, label) in saved.items():
        assert good[key][0] == image
        assert good[key][1] == label or names is None
    assert report.complete == (len(saved) == len(good))


# --- LMDB -------------------------------------------------------------------------------------------------------------


def leaf_pages(data: bytes) -> list[int]:
    return [p for p in range(2, len(data) // 4096) if data[p * 4096 + 10 : p * 4096 + 12] == b"\2\0"]


@pytest.mark.slow
def test_lmdb_values_without_an_entry_are_found_by_their_checksum(tmp_path: Path) -> None:
    for number in range(150):  # more than a leaf page has entries
        write_image(tmp_path / "photos" / f"{number:03}.png", 33, 40, number)
    packstore.convert(tmp_path / "photos", tmp_path / "a.lmdb")
    good = content(tmp_path / "a.lmdb")
    file = tmp_path / "a.lmdb" / "data.mdb"
    for page in leaf_pages(file.read_bytes()):
        if b"0000000000" in file.read_bytes()[page * 4096 : page * 4096 + 4096]:
            overwrite(file, page * 4096, bytes(4096))
    with open_store(tmp_path / "a.lmdb") as reader, pytest.raises(StoreError):
        reader.read(0)
    report = packstore.salvage(tmp_path / "a.lmdb", tmp_path / "fixed.lmdb")
    assert (report.complete, report.recovered) == (True, 150)
    assert content(tmp_path / "fixed.lmdb") == good


@pytest.mark.parametrize("name", [b"label", b"shape", b"key/bytes", b"key/offsets", b"checksum"])
@pytest.mark.parametrize("back", [0, 2, 7])
def test_lmdb_columns_without_an_entry_are_found_by_their_digest(tmp_path: Path, name: bytes, back: int) -> None:
    """Small columns lie in the leaf pages: one changed byte of a key, or of what is before it, hides one."""
    records = make_records("ragged-uint8", 9)
    store = tmp_path / "a.lmdb"
    with StoreBuilder(
        store, Manifest("lmdb", "uint8", 0, tuple(records.columns), Origin("flat", "somewhere"))
    ) as builder:
        append(builder, records)
        builder.commit()
    data = (store / "data.mdb").read_bytes()
    damaged = bytearray(data)
    place = data.find(b"\0" + name + b"\x93NUMPY") + 1
    while place > 0:  # in older copies of the page, too
        damaged[place - back] ^= 0x40
        place = data.find(b"\0" + name + b"\x93NUMPY", place) + 1
    assert damaged != data
    (store / "data.mdb").write_bytes(damaged)
    assert packstore.salvage(store, tmp_path / "b.lmdb").recovered == 9


def test_lmdb_without_any_manifest(source: Path, tmp_path: Path) -> None:
    packstore.convert(source, tmp_path / "a.lmdb")
    good, file = held(tmp_path / "a.lmdb"), tmp_path / "a.lmdb" / "data.mdb"
    raw = file.read_bytes()
    place = raw.find(b'{"columns"')
    while place >= 0:
        overwrite(file, place, bytes(2500))
        place = raw.find(b'{"columns"', place + 1)
    report = packstore.salvage(tmp_path / "a.lmdb", tmp_path / "fixed.lmdb")
    assert held(tmp_path / "fixed.lmdb") == good
    assert any("its manifest is lost" in note for note in report.notes)
    with open_store(tmp_path / "fixed.lmdb") as reader:
        assert (reader.manifest.encoding, reader.manifest.classes, reader.manifest.splits) == ("original", None, ())


# --- shards -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=SUFFIXES)
def sharded(request: pytest.FixtureRequest, source: Path, tmp_path: Path) -> Path:
    out = tmp_path / f"a.{request.param}"
    packstore.convert(source, out, encoding="original", shard_size=6000)
    assert len(list(out.glob("shard-*"))) >= 3
    return out


def test_shards_without_the_manifest_of_the_whole(sharded: Path, tmp_path: Path) -> None:
    good = content(sharded)
    (sharded / "manifest.json").unlink()
    report = packstore.salvage(sharded, tmp_path / "fixed")
    assert (report.recovered, report.missing_count) == (12, 0)
    assert any("manifest.json" in note for note in report.notes)
    assert content(tmp_path / "fixed") == good


@pytest.mark.slow
def test_a_missing_shard(sharded: Path, tmp_path: Path) -> None:
    good = held(sharded)
    second = sorted(sharded.glob("shard-*"))[1]
    shutil.rmtree(second) if second.is_dir() else second.unlink()
    report = packstore.salvage(sharded, tmp_path / "fixed")
    assert report.missing_count == 12 - report.recovered > 0
    assert {(p.shard, p.what) for p in report.missing} == {(second.name, "its shard is missing")}
    saved = held(tmp_path / "fixed")
    assert saved.items() <= good.items()
    assert len(saved) == report.recovered
    (sharded / "manifest.json").write_text("{")  # and nothing says how many records the missing one had
    report = packstore.salvage(sharded, tmp_path / "again")
    assert not report.complete
    assert held(tmp_path / "again") == saved
    assert any("its number of records is unknown" in note for note in report.notes)


def test_shards_that_belong_elsewhere(sharded: Path, source: Path, tmp_path: Path) -> None:
    first, second, *_ = sorted(sharded.glob("shard-*"))
    good = held(sharded)
    spare = tmp_path / "spare"
    first.rename(spare)
    second.rename(first)
    spare.rename(second)
    report = packstore.salvage(sharded, tmp_path / "fixed")
    assert {p.shard for p in report.missing} == {first.name, second.name}
    assert held(tmp_path / "fixed").items() <= good.items()


# --- what is refused --------------------------------------------------------------------------------------------------


def test_unproven_records_repeat_no_key(source: Path, tmp_path: Path) -> None:
    store = tmp_path / "a.h5"
    packstore.convert(source, store, encoding="original")
    change(store, b"train/ant/03.png", 11, 1)  # 02.png
    report = packstore.salvage(store, tmp_path / "fixed", unproven=True)
    assert [(p.record, p.what) for p in report.missing] == [(3, "another record has the same key")]
    assert (report.recovered, report.unproven_count) == (11, 0)
    assert packstore.verify(tmp_path / "fixed").ok


def test_what_cannot_be_salvaged(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        packstore.salvage(tmp_path / "none.h5", tmp_path / "fixed.h5")
    (tmp_path / "noise.h5").write_bytes(random.Random(0).randbytes(20000))
    with pytest.raises(StoreError, match="no readable manifest"):
        packstore.salvage(tmp_path / "noise.h5", tmp_path / "fixed.h5")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="holds no store"):
        packstore.salvage(tmp_path / "empty", tmp_path / "fixed.h5")
    packstore.convert(source, tmp_path / "a.lmdb")
    with pytest.raises(DestinationError, match="one lies in the other"):
        packstore.salvage(tmp_path / "a.lmdb", tmp_path / "a.lmdb" / "fixed.lmdb")
    assert not (tmp_path / "fixed.h5").exists()


@pytest.mark.slow
def test_pipes_and_endless_files_in_place_of_a_store(source: Path, tmp_path: Path) -> None:
    """Nobody waits for a pipe to be written to, and no file is read just because it says that it is a manifest."""
    packstore.convert(source, tmp_path / "a.h5", shard_size=2000)
    for name in ("shard-00001.h5", "manifest.json"):
        (tmp_path / "a.h5" / name).unlink()
        os.mkfifo(tmp_path / "a.h5" / name)
    os.mkfifo(tmp_path / "pipe.h5")
    for name, code in (("a.h5", 3), ("pipe.h5", 1)):
        done = run("salvage", tmp_path / name, "--out", tmp_path / f"of-{name}")
        assert done.returncode == code
        assert "neither a file nor a link to one" in done.stdout + done.stderr
    (tmp_path / "a.h5" / "manifest.json").unlink()
    with (tmp_path / "a.h5" / "manifest.json").open("wb") as file:
        file.truncate(1 << 40)
    assert packstore.salvage(tmp_path / "a.h5", tmp_path / "rest.h5").recovered


def test_a_store_without_row_checksums(tmp_path: Path) -> None:
    """There a sound column proves all its values, and a damaged one none."""
    records = make_records("uint8", 7)
    store = tmp_path / "a.h5"
    with StoreBuilder(
        store, Manifest("hdf5", "uint8", 0, tuple(records.columns), Origin("flat", "somewhere"))
    ) as builder:
        append(builder, records)
        builder.commit()
    assert packstore.salvage(store, tmp_path / "one.h5").complete
    label = np.array(records.values["label"], "<i8").tobytes()
    place = store.read_bytes().find(label)
    overwrite(store, place, b"\2")
    report = packstore.salvage(store, tmp_path / "two.h5")
    assert (report.recovered, report.missing_count, report.destination) == (0, 7, None)
    report = packstore.salvage(store, tmp_path / "two.h5", unproven=True)
    assert (report.recovered, report.unproven_count) == (7, 7)


@pytest.mark.slow
def test_the_command(source: Path, tmp_path: Path) -> None:
    store = tmp_path / "a.h5"
    packstore.convert(source, store)
    overwrite(store, 8, b"\xff\xff")
    done = run("salvage", store, "--out", tmp_path / "fixed.h5")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2].endswith("fixed.h5: 12 records, 12 recovered, 0 missing")
    damage(tmp_path / "fixed.h5", [4], [])
    some = run("salvage", tmp_path / "fixed.h5", "--out", tmp_path / "some.h5")
    assert some.returncode == 3
    assert "missing   record 4 (train/bee/04.png): its image has another checksum\n" in some.stdout
    plain = run("salvage", tmp_path / "fixed.h5", "--out", tmp_path / "more.h5", "--json")
    report = json.loads(plain.stdout)
    assert (plain.returncode, report["recovered"], [p["record"] for p in report["missing"]]) == (3, 11, [4])
    nothing = run("salvage", tmp_path, "--out", tmp_path.parent / "nothing.h5")
    assert nothing.returncode == 1
    assert "one lies in the other" in nothing.stderr or "holds no store" in nothing.stderr


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False], ids=["damaged", "no manifest"])
def test_counts_stay_out_of_the_shards_and_the_exif_wish_is_kept(tmp_path: Path, whole: bool) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    for number in range(4):
        data = encode(picture("RGB", 64 + number, 48), "JPEG", exif=exif)
        (tmp_path / "photos" / "cat" / f"{number}.jpg").write_bytes(data)
    bad, fixed = tmp_path / "bad.h5", tmp_path / "fixed.h5"
    packstore.convert(tmp_path / "photos", bad, shard_size=2000, exif_transpose=True)
    if not whole:
        (bad / "manifest.json").unlink()
    options = packstore.salvage(bad, fixed).manifest.options
    assert options["exif_transpose"] is True
    assert options.get("exif_oriented") == (4 if whole else None)
    assert packstore.PackedDataset(fixed).exif_transpose
    shards = sorted(fixed.glob("shard-*"))
    assert len(shards) > 1
    for shard in shards:
        with packstore.open(shard) as store:
            assert "exif_oriented" not in store.manifest.options
            assert store.manifest.options["exif_transpose"] is True
