"""``repair``: what is damaged comes back from sources, even if those are damaged or change meanwhile."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import packstore
from tests.internals import DestinationError, SourceError, StoreError, UsageError
from tests.internals import repair_module as repairing
from tests.makers.command import commands, run
from tests.makers.datasets import write_image
from tests.makers.images import encode, picture
from tests.makers.stores import change, content, damage, files_of
from tests.makers.tiers import examples

SUFFIXES = ("lmdb", "h5", "pth")
ENCODINGS: dict[str, dict[str, Any]] = {
    "original": {"encoding": "original"},
    "jpeg": {"encoding": "jpeg", "resize": 9},
    "uint8": {"encoding": "uint8", "size": 8},
    "uint8-ragged": {"encoding": "uint8"},
    "float16": {"encoding": "float16", "size": 6},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "photos"
    for number, name in enumerate(
        ("train/ant/a", "train/ant/b", "train/bee/c", "train/bee/d", "val/ant/e", "val/bee/f")
    ):
        write_image(root / f"{name}.png", 10 + number % 3, 11, number)
    return root


def digest(path: Path) -> str:
    return hashlib.sha256(repr(sorted(content(path).items())).encode()).hexdigest()


@pytest.mark.slow
@pytest.mark.sampled(9, fast=1)
@pytest.mark.parametrize("shard_size", [None, 700])
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_repaired_store_is_the_original(
    source: Path, tmp_path: Path, suffix: str, encoding: str, shard_size: int | None
) -> None:
    good, bad = tmp_path / f"good.{suffix}", tmp_path / f"bad.{suffix}"
    packstore.convert(source, good, shard_size=shard_size, **ENCODINGS[encoding])
    shutil.copytree(good, bad) if good.is_dir() else shutil.copy(good, bad)
    damage(bad, [0, 4], ["key", *(["shape"] if encoding == "uint8-ragged" and shard_size is None else [])])
    damage(bad, [], ["row_checksum"], 1)
    if shard_size is None:  # in a small shard, the bytes of a column also occur elsewhere
        damage(bad, [], ["label", "checksum"], 5)
    before = digest(bad)
    report = packstore.repair(bad, source, tmp_path / "fixed")
    assert content(tmp_path / "fixed") == content(good)
    assert report.identical
    assert {p.record for p in report.replaced} >= {0, 3, 4, *([] if shard_size else [5])}
    assert report.copied == 6 - len(report.replaced)
    assert not report.lost
    assert digest(bad) == before, "the damaged store was written to"
    # From another store, too, even one in another format.
    again = packstore.repair(bad, good, tmp_path / "again")
    assert again.identical
    assert content(tmp_path / "again") == content(good)


@pytest.fixture(scope="module")
def make_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Packs four images, which are beside the store in ``photos``. Each suffix and encoding is packed once."""
    root = tmp_path_factory.mktemp("any")
    for number in range(4):
        write_image(root / "photos" / "ant" / f"{number}.png", 5, 6, number)

    @cache
    def make(suffix: str, encoding: str) -> Path:
        store = root / f"{encoding}.{suffix}"
        packstore.convert(root / "photos", store, encoding=encoding)
        return store

    return make


@pytest.mark.slow
@examples(12)
@given(data=st.data())
def test_any_damage_that_opens_is_repaired_or_refused(
    make_store: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    """Round trip: what is written is the original or nothing, whatever bytes are changed."""
    suffix = data.draw(st.sampled_from(SUFFIXES))
    good = make_store(suffix, data.draw(st.sampled_from(["original", "uint8"])))
    root = tmp_path_factory.mktemp("bad")
    bad, photos = root / f"bad.{suffix}", good.parent / "photos"
    shutil.copytree(good, bad) if good.is_dir() else shutil.copy(good, bad)
    file = bad / "data.mdb" if bad.is_dir() else bad
    raw = bytearray(file.read_bytes())
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    for _ in range(data.draw(st.integers(1, 6))):
        raw[rng.randrange(len(raw))] ^= rng.randrange(1, 256)
    file.write_bytes(raw)
    try:
        report = packstore.repair(bad, photos, root / "fixed")
    except StoreError:
        assert not (root / "fixed").exists()
        return
    if report.destination is None:
        assert not (root / "fixed").exists()
        assert report.lost or packstore.verify(bad).ok
    else:
        assert content(root / "fixed") == content(good)


def test_a_changed_source_does_not_slip_in(source: Path, tmp_path: Path) -> None:
    copy, store = tmp_path / "photos", tmp_path / "a.lmdb"
    shutil.copytree(source, copy)
    packstore.convert(copy, store)
    damage(store, [0, 1], [])
    write_image(copy / "train" / "ant" / "b.png", 11, 11, 77)
    report = packstore.repair(store, copy, tmp_path / "fixed.lmdb")
    assert [(p.record, p.key) for p in report.lost] == [(1, "train/ant/b.png")]
    assert "it is another image" in report.lost[0].what
    assert report.destination is None
    assert not (tmp_path / "fixed.lmdb").exists()
    partial = packstore.repair(store, copy, tmp_path / "fixed.lmdb", partial=True)
    assert partial.destination is not None
    assert not partial.identical
    assert packstore.verify(tmp_path / "fixed.lmdb").ok
    with packstore.open(tmp_path / "fixed.lmdb") as reader:
        assert len(reader) == 5
        assert [(s.key, s.reason[:23]) for s in reader.manifest.skipped] == [
            ("train/ant/b.png", "the source's image has ")
        ]
        assert [len(s) for s in reader.manifest.splits] == [3, 2]


def test_a_label_that_has_changed_in_the_source_is_refused(source: Path, tmp_path: Path) -> None:
    copy, store = tmp_path / "photos", tmp_path / "a.h5"
    shutil.copytree(source, copy)
    packstore.convert(copy, store)
    damage(store, [], ["label"])
    (copy / "train" / "bee" / "d.png").rename(copy / "train" / "ant" / "d.png")
    report = packstore.repair(store, copy, tmp_path / "fixed.h5")
    assert [p.record for p in report.lost] == [3]
    assert "no sample with its key" in report.lost[0].what


def test_a_donor_with_an_unreadable_column_replaces_nothing(source: Path, tmp_path: Path) -> None:
    store, donor = tmp_path / "a.h5", tmp_path / "b.lmdb"
    packstore.convert(source, store, encoding="uint8")
    packstore.convert(source, donor, encoding="uint8")
    damage(store, [2], ["key"])
    file = donor / "data.mdb"
    data = file.read_bytes()
    assert data.count(b"'descr': '<i4'") == 1, "the column shape alone has this type"
    file.write_bytes(data.replace(b"'descr': '<i4'", b"'scrap': '<i4'"))
    report = packstore.repair(store, donor, tmp_path / "fixed.h5", partial=True)
    assert [p.record for p in report.lost] == [2, 3]
    assert report.copied == 4


@pytest.mark.slow
def test_what_cannot_be_repaired(source: Path, tmp_path: Path) -> None:
    store = tmp_path / "a.h5"
    packstore.convert(source, store)
    report = packstore.repair(store, source, tmp_path / "fixed.h5")
    assert (report.problem_count, report.destination) == (0, None)
    assert not (tmp_path / "fixed.h5").exists()
    with pytest.raises(DestinationError, match="one lies in the other"):
        packstore.repair(store, source, store)
    with pytest.raises(DestinationError, match="one lies in the other"):
        packstore.repair(store, source, source / "fixed.h5")
    (tmp_path / "taken.h5").write_bytes(b"mine")
    with pytest.raises(DestinationError, match="exists already"):
        packstore.repair(store, source, tmp_path / "taken.h5")
    for name, format in (("fixed.lmdb", "LMDB"), ("fixed.PTH", ".pth")):
        with pytest.raises(DestinationError, match=f"has the suffix of {format}, but the new store will be HDF5"):
            packstore.repair(store, source, tmp_path / name)
        with pytest.raises(DestinationError, match=f"has the suffix of {format}, but the new store will be HDF5"):
            packstore.salvage(store, tmp_path / name)
    with pytest.raises(DestinationError, match=r"exists already; choose another name$"):
        packstore.salvage(store, tmp_path / "taken.h5")
    (tmp_path / "loop").symlink_to("loop")
    for write in (packstore.salvage, lambda store, out: packstore.repair(store, source, out)):
        with pytest.raises(DestinationError, match="loop exists already"):
            write(store, tmp_path / "loop")
    (tmp_path / "loop").unlink()
    raw = bytearray(store.read_bytes())
    raw[20] ^= 1
    store.write_bytes(raw)
    with pytest.raises(StoreError, match="packstore salvage"):
        packstore.repair(store, source, tmp_path / "fixed.h5")
    packstore.convert(source, tmp_path / "u.h5", encoding="uint8", size=6)
    packstore.convert(source, tmp_path / "f.h5", encoding="float16", size=6)
    damage(tmp_path / "u.h5", [0], [])
    with pytest.raises(UsageError, match="cannot be compared"):
        packstore.repair(tmp_path / "u.h5", tmp_path / "f.h5", tmp_path / "fixed.h5")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.h5", "f.h5", "taken.h5", "u.h5"]


def test_images_of_too_many_pixels_are_refused(source: Path, tmp_path: Path) -> None:
    store = tmp_path / "a.h5"
    packstore.convert(source, store, encoding="uint8", size=8)
    whole = digest(store)
    damage(store, [0], [])  # of 10 x 11 pixels
    report = packstore.repair(store, source, tmp_path / "fixed.h5", max_pixels=109)
    assert "more than the limit of 109" in report.lost[0].what
    assert report.destination is None
    packstore.repair(store, source, tmp_path / "fixed.h5", max_pixels=110)
    assert digest(tmp_path / "fixed.h5") == whole


@pytest.mark.slow
def test_the_command(source: Path, tmp_path: Path) -> None:
    store, fixed = tmp_path / "a.pth", tmp_path / "fixed.pth"
    packstore.convert(source, store, encoding="original")
    good = store.read_bytes()
    damage(store, [5], ["label"])
    done = run("repair", store, "--from", source, "--out", fixed)
    assert done.returncode == 0, done.stderr
    assert (
        "replaced  record 3 (train/bee/d.png): label and key\nreplaced  record 5 (val/bee/f.png): image\n"
        in done.stdout
    )
    assert done.stdout.endswith("6 records, 4 copied, 2 replaced, 0 lost; the digest is that of the undamaged store\n")
    assert fixed.read_bytes() == good
    whole = run("repair", fixed, "--from", source, "--out", tmp_path / "more.pth")
    assert (whole.returncode, "undamaged, so nothing was written" in whole.stdout) == (0, True)
    (tmp_path / "less" / "train" / "ant").mkdir(parents=True)
    shutil.copy(source / "train" / "ant" / "a.png", tmp_path / "less" / "train" / "ant" / "a.png")
    lost = run("repair", store, "--from", tmp_path / "less", "--out", tmp_path / "more.pth", "--json")
    plain = json.loads(lost.stdout)
    assert (lost.returncode, plain["destination"], [p["record"] for p in plain["lost"]]) == (1, None, [3, 5])
    partial = run("repair", store, "--from", tmp_path / "less", "--out", tmp_path / "more.pth", "--partial")
    assert partial.returncode == 3, partial.stderr
    assert "lost      record 5 (val/bee/f.png): the source has no sample" in partial.stdout
    assert "Examples:" in (commands()["repair"].help or "")


@pytest.mark.parametrize("number", [0, -1, 2.0, "3", True])
@pytest.mark.parametrize("name", ["workers", "max_pixels"])
def test_numbers_that_are_none(name: str, number: Any) -> None:
    for function, paths in ((packstore.repair, "abc"), (packstore.verify, "a"), (packstore.convert, "ab")):
        with pytest.raises(UsageError, match=f"{name} should be a whole number of at least 1"):
            function(*paths, **{name: number})
        with pytest.raises(UsageError, match="max_pixels"):
            function(*paths, workers=None, max_pixels=None)


def test_counts_of_the_whole_store_stay_out_of_the_shards(tmp_path: Path) -> None:
    """``exif_oriented`` counts all records: only the head of a sharded store has it."""
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    for number, mode in enumerate(("RGB", "RGB", "CMYK", "RGB")):
        image = picture(mode, 64 + number, 48)
        (tmp_path / "photos" / "cat" / f"{number}.jpg").write_bytes(encode(image, "JPEG", exif=exif))
    good, bad, fixed = (tmp_path / f"{name}.lmdb" for name in ("good", "bad", "fixed"))
    report = packstore.convert(tmp_path / "photos", good, shard_size=4000)
    assert report.manifest.options["exif_oriented"] == 4
    shutil.copytree(good, bad)
    shard = next(bad.glob("shard-00001*")) / "data.mdb"
    data = bytearray(shard.read_bytes())
    with packstore.open(good) as store:
        place = max(data.find(bytes(store.read(record))) for record in range(4))
    data[place + 300] ^= 1
    shard.write_bytes(data)
    assert not packstore.verify(bad).ok
    assert packstore.repair(bad, tmp_path / "photos", fixed).identical
    assert digest(fixed) == digest(good)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for number, name in enumerate(("ant/a", "ant/b", "bee/c", "bee/d", "bee/e", "cat/f")):
        write_image(root / f"{name}.png", 10 + number % 3, 11, number)
    return root


def copy(store: Path, name: str) -> Path:
    new = store.with_name(f"{name}{store.suffix}")
    shutil.copytree(store, new) if store.is_dir() else shutil.copy(store, new)
    return new


CHANGES: dict[str, Callable[[Path], object]] = {
    "changed": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "deleted": lambda file: file.unlink(),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:40]),
    "another image": lambda file: write_image(file, 9, 9, 99),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("shard_size", [None, 700])
@pytest.mark.parametrize("partial", [False, True])
def test_a_source_that_changes_during_the_repair(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
    what: str,
    shard_size: Any,
    partial: bool,
) -> None:
    store = tmp_path / f"bad.{suffix}"
    packstore.convert(photos, store, encoding="original", shard_size=shard_size)
    damage(store, [1, 3], [])
    real = repairing._Repair._write_store

    def write(self: Any, lost: Any) -> None:
        CHANGES[what](photos / "ant" / "b.png")
        real(self, lost)

    monkeypatch.setattr(repairing._Repair, "_write_store", write)
    with pytest.raises(
        SourceError, match=r"the source .*photos has changed during the repair: record 1 \(ant/b\.png\)"
    ):
        packstore.repair(store, photos, tmp_path / "fixed", partial=partial)
    assert sorted(p.name for p in tmp_path.iterdir()) == [store.name, "photos"]


def test_a_linked_file_that_changes_during_the_repair(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, copied = tmp_path / "bad.lmdb", tmp_path / "copied"
    shutil.copytree(photos, copied)
    packstore.convert(photos, store, link=True)
    (photos / "ant" / "b.png").write_bytes(b"x" * 300)
    real = repairing._Repair._write_store

    def write(self: Any, lost: Any) -> None:
        (copied / "ant" / "b.png").unlink()
        real(self, lost)

    monkeypatch.setattr(repairing._Repair, "_write_store", write)
    with pytest.raises(SourceError, match="has changed during the repair"):
        packstore.repair(store, copied, tmp_path / "fixed.lmdb")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.lmdb", "copied", "photos"]


def damage_offsets(store: Path, column: str = "key") -> None:
    """Makes the offsets of two keys impossible."""
    with packstore.open(store) as reader:
        offsets = [part.ragged_column(column).offsets.tobytes() for part in reader.parts()]
    change(store, max(offsets, key=len), 8 + 6)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("columns", [[], ["label"], ["key"]], ids=str)
def test_a_damaged_donor_is_named(photos: Path, tmp_path: Path, suffix: str, columns: list[str]) -> None:
    good = tmp_path / f"good.{suffix}"
    packstore.convert(photos, good, encoding="original")
    bad, donor = copy(good, "bad"), copy(good, "donor")
    damage(bad, [1], columns)
    damage_offsets(donor)
    with pytest.raises(SourceError, match=rf"the source .*donor\.{suffix} cannot be read: "):
        packstore.repair(bad, donor, tmp_path / f"fixed.{suffix}")
    with pytest.raises(SourceError, match=rf"the source .*donor\.{suffix} cannot be read: "):
        packstore.verify(good, against=donor)
    assert not (tmp_path / f"fixed.{suffix}").exists()


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_records_of_a_donor_are_passed_over(photos: Path, tmp_path: Path, suffix: str) -> None:
    good = tmp_path / f"good.{suffix}"
    packstore.convert(photos, good, encoding="original")
    bad, donor = copy(good, "bad"), copy(good, "donor")
    damage(bad, [1, 3], [])
    damage(donor, [3], ["label"], 4)
    report = packstore.repair(bad, donor, tmp_path / f"fixed.{suffix}", partial=True)
    assert ([p.record for p in report.replaced], [p.record for p in report.lost]) == ([1], [3])
    assert "the source's image cannot be used" in report.lost[0].what
    found = packstore.verify(good, against=donor).problems
    assert {p.record for p in found} == {3, 4}
    assert any("the source's sample cannot be read" in p.what for p in found)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("what", "shard_size"), [("offsets", None), ("offsets", 700), ("label", None), ("label", 700), ("lost shard", 700)]
)
def test_damage_of_the_compared_store_is_reported(
    photos: Path, tmp_path: Path, suffix: str, what: str, shard_size: int | None
) -> None:
    good = tmp_path / f"good.{suffix}"
    packstore.convert(photos, good, encoding="original", shard_size=shard_size)
    bad = copy(good, "bad")
    if what == "offsets":
        damage_offsets(bad)
    elif what == "label":
        damage(bad, [], ["label"], 0)
    else:
        files_of(bad / f"shard-00001.{suffix}")[0].unlink()
    for source in (photos, good):
        report = packstore.verify(bad, against=source)
        assert report.problem_count > report.differences
        assert packstore.verify(good, against=photos).ok
