"""Damage of any kind, anywhere in a small store, is noticed, and named where it lies in a record."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import packstore
from packstore import Manifest
from packstore.stores import StoreBuilder, open_store
from packstore.testing.records import append, make_records, write
from tests.internals import CorruptRecordError, Origin, StoreError, build_headers
from tests.internals import base as column_module
from tests.makers import modes
from tests.makers.stores import damage
from tests.makers.tiers import turns
from tests.makers.tools import load_tool

SUFFIXES = ("lmdb", "h5", "pth")
_ROOM = 96
"""At most so many bytes has what HDF5 notes of the free space in a heap of names; only a writer reads it. (HDF5 file
format specification, version 3.0, III.H: free-space header and section information.)"""


flips: Any = load_tool("flip")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images of a few pixels, of two sizes, in two splits and two classes."""
    root = tmp_path_factory.mktemp("tiny") / "photos"
    rng = np.random.default_rng(5)
    for number, name in enumerate(
        ("train/ant/a", "train/ant/b", "train/bee/c", "train/bee/d", "val/ant/e", "val/bee/f")
    ):
        path = root / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (2 + number % 2, 3, 3), np.uint8)).save(path)
    return root


ENCODINGS: dict[str, dict[str, Any]] = {
    "original": {"encoding": "original"},
    "jpeg": {"encoding": "jpeg"},
    "uint8": {"encoding": "uint8", "size": 3},
    "uint8-ragged": {"encoding": "uint8"},
    "float16": {"encoding": "float16", "size": 2},
    "typed": {},
    "large": {},
}
OF_MODES = {f"{mode} as {encoding}": (mode, encoding) for mode, some in modes.ENCODINGS.items() for encoding in some}
STORES = [
    (suffix, encoding) for suffix in SUFFIXES for encoding in ENCODINGS if encoding != "large" or suffix == "lmdb"
]


@pytest.fixture(autouse=True)
def few_bytes_are_many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a store called large, an LMDB keeps every column that may lie so record by record."""
    if getattr(request.node, "callspec", None) and request.node.callspec.params.get("encoding") == "large":
        monkeypatch.setattr(column_module, "_WHOLE_BYTES", 40)


def pack(source: Path, out: Path, encoding: str, shard_size: int | None = None) -> Any:
    if encoding in ("typed", "large"):  # every type of column
        write(out, make_records("typed", 6, sizes=range(9, 15)), shard_size=shard_size)
    elif encoding in OF_MODES:
        mode, name = OF_MODES[encoding]
        options = modes.convert_options(mode, name)
        packstore.convert(modes.make_samples(mode, name, 6), out, shard_size=shard_size, encoding=name, **options)
    else:
        packstore.convert(source, out, shard_size=shard_size, **ENCODINGS[encoding])
    return flips.Store(out)


@pytest.fixture(scope="module")
def packed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Any]:
    """A store by suffix and encoding, packed once: whoever changes bytes of it changes them back."""

    @cache
    def get(suffix: str, encoding: str) -> Any:
        return pack(source, tmp_path_factory.mktemp("packed") / f"a.{suffix}", encoding)

    return get


BLOCK, SLICES, INSIDE = 64, 120, 8


def telling_places(store: Any, first: int, rng: random.Random) -> Iterator[int]:
    """Each byte of each ``SLICES``-th block, with two exceptions.

    Of a block that nobody reads, which shows when all its bytes are inverted, one byte is enough: most of a small LMDB
    is free space and pages that are no longer used. And of those bytes inside a value of a record that are not near its
    ends, each eighth is: they count for nothing but checksums.
    """
    blocks, begin = [], 0
    for size in store.sizes:
        blocks += [range(n, min(n + BLOCK, begin + size)) for n in range(begin, begin + size, BLOCK)]
        begin += size
    for block in blocks[first::SLICES]:
        if flips.judge_changed(store, *store.at(block[0]), len(block), 0xFF) == "idle":
            yield rng.choice(block)
            continue
        for place in block:
            near = {store.record_at(*store.at(min(max(0, place + n), begin - 1))) for n in (-INSIDE, 0, INSIDE)}
            if None in near or len(near) > 1 or rng.randrange(8) == 0:
                yield place


def places_in_records(store: Any) -> list[int]:
    return [place for place in range(sum(store.sizes)) if store.record_at(*store.at(place)) is not None]


@pytest.mark.slow
@pytest.mark.sampled(2, per="suffix")
@pytest.mark.parametrize(("suffix", "encoding"), [*STORES, *product(SUFFIXES, OF_MODES)])
def test_bytes_of_records_and_beside_them(
    source: Path, tmp_path: Path, rng: random.Random, suffix: str, encoding: str
) -> None:
    store = pack(source, tmp_path / f"a.{suffix}", encoding)
    tally, places = flips.Tally(), places_in_records(store)
    assert len(places) >= 6 * 12  # images of some bytes, at least
    places = rng.sample(places, min(len(places), 120))  # JPEG has large headers
    for place in places:
        flips.flip(store, place, rng.randrange(1, 256), tally)
    # Offsets' ends keep the store from opening. A page that an LMDB no longer uses may hold a copy of a record.
    assert tally.counts["named"] >= max((len(places) - tally.counts["idle"]) * 0.9, len(places) / 2), tally.shown
    for place in rng.sample(range(sum(store.sizes)), 60):
        flips.flip(store, place, rng.randrange(1, 256), tally)
    assert tally.counts["missed"] == tally.counts["unnamed"] == 0, tally.shown
    assert packstore.verify(store.path).ok, "the flips were not undone"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.sampled(1, per="suffix")
@pytest.mark.parametrize("turn", turns(SLICES // 3))
@pytest.mark.parametrize(("suffix", "encoding"), STORES)
def test_every_byte(
    packed: Callable[[str, str], Any], rng: random.Random, suffix: str, encoding: str, turn: int
) -> None:
    """In each ``SLICES``-th block; in soak in all."""
    store = packed(suffix, encoding)
    tally = flips.Tally()
    for first in range(turn - 1, SLICES, SLICES // 3) if turn else [rng.randrange(SLICES)]:
        for place in telling_places(store, first, rng):
            flips.flip(store, place, rng.randrange(1, 256), tally)
    assert tally.counts["missed"] == tally.counts["unnamed"] == 0, tally.shown
    idle = [int(line.split()[3]) for line in tally.shown if line.startswith("idle")]
    if suffix == "pth":
        assert not idle, tally.shown
    if (
        suffix == "h5"
    ):  # zeros in front of a large dataset, which begins at a multiple of 4096; room that writers look for
        content = store.path.read_bytes()
        room = {mark.start() + n for mark in re.finditer(b"FSHD|FSSE", content) for n in range(_ROOM)}
        assert not any(content[offset] for offset in idle if offset not in room), tally.shown
    assert packstore.verify(store.path).ok, "the flips were not undone"


@pytest.mark.slow
@pytest.mark.sampled(1, per="suffix")
@pytest.mark.parametrize("turn", range(6))
@pytest.mark.parametrize(
    ("suffix", "encoding", "shard_size"),
    [*((suffix, *kind) for suffix in SUFFIXES for kind in (("uint8", 60), ("typed", 30))), ("lmdb", "large", 30)],
)
def test_bytes_of_a_sharded_store(
    source: Path, tmp_path: Path, rng: random.Random, suffix: str, encoding: str, shard_size: int, turn: int
) -> None:
    store = pack(source, tmp_path / f"a.{suffix}", encoding, shard_size)
    assert len(list(store.path.glob("shard-*"))) > 2
    tally = flips.Tally()
    total = sum(store.sizes)
    assert store.files[0].name == "manifest.json"
    for position in (*rng.sample(range(total), 10), store.sizes[0] - 1):  # also the line's end in it
        flips.flip(store, position, rng.randrange(1, 256), tally)
    assert tally.counts["missed"] == tally.counts["unnamed"] == 0, tally.shown
    assert tally.counts["idle"] == 0, tally.shown


def test_the_tally_sees_what_is_missed(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = pack(source, tmp_path / "a.h5", "uint8")
    position = next(p for p in range(store.sizes[0]) if store.record_at(*store.at(p)) is not None)
    whole = packstore.verify(store.path)
    monkeypatch.setattr(packstore, "verify", lambda *args, **options: whole)
    tally = flips.Tally()
    flips.flip(store, position, 1, tally)
    assert tally.counts == {"missed": 1}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("image", "checksum "),
        ("label", "its label is damaged: row checksum"),
        ("key", "its key is damaged: row checksum"),
        ("checksum", "its stored checksum is damaged"),
        ("row_checksum", "its stored row checksum is damaged"),
    ],
)
def test_what_is_damaged_is_said(source: Path, tmp_path: Path, suffix: str, column: str, words: str) -> None:
    out = tmp_path / f"a.{suffix}"
    packstore.convert(source, out, encoding="original")
    damage(out, [4] if column == "image" else [], [] if column == "image" else [column], 4, 1)
    found = [p for p in packstore.verify(out).problems if p.record is not None]
    assert [(p.record, p.key) for p in found] == [(4, f"val/ant/e.pn{'f' if column == 'key' else 'g'}")]
    assert found[0].what.startswith(words)


def test_a_damaged_checksum_and_a_damaged_image_are_told_apart(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.h5"
    packstore.convert(source, out, encoding="original")
    damage(out, [1], ["checksum"], 4)
    told = {p.record: p.what for p in packstore.verify(out).problems}
    # With both there is no proof which it was in either.
    assert told.keys() == {1, 4}
    assert all(what.startswith("its stored checksum or its image is damaged: checksum ") for what in told.values())


def test_a_store_without_row_checksums(tmp_path: Path) -> None:
    """Older stores have none: a damaged label is then found by its column's digest, without a record."""
    records = make_records("uint8", 7)
    with StoreBuilder(
        tmp_path / "a.h5", Manifest("hdf5", records.encoding, 0, tuple(records.columns), Origin("flat", "somewhere"))
    ) as builder:
        append(builder, records)
        builder.commit()
    assert packstore.verify(tmp_path / "a.h5").ok
    damage(tmp_path / "a.h5", [], ["label"], 3)
    problems = packstore.verify(tmp_path / "a.h5").problems
    assert [(p.record, p.what.split(":")[0]) for p in problems] == [(None, "column 'label' is damaged")]
    with open_store(tmp_path / "a.h5", "always") as reader, pytest.raises(StoreError, match="column 'label'"):
        reader.read(0)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_shards_missing_duplicated_and_extra(source: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"a.{suffix}"
    packstore.convert(source, out, encoding="uint8", size=3, shard_size=60)
    shards = sorted(out.glob("shard-*"))
    spare = tmp_path / "spare"

    def problems(quick: bool) -> str:
        return " | ".join(f"{p.shard}: {p.what}" for p in packstore.verify(out, quick=quick).problems)

    def copy(one: Path, other: Path) -> None:
        shutil.copytree(one, other) if one.is_dir() else shutil.copy(one, other)

    def remove(one: Path) -> None:
        shutil.rmtree(one) if one.is_dir() else one.unlink()

    for quick in (False, True):
        shards[1].rename(spare)
        assert f"{shards[1].name}: " in problems(quick)  # missing
        report = packstore.verify(out, quick=quick)
        assert [p.shard for p in report.problems if p.lost] == [shards[1].name]
        assert f" of {report.manifest.records} records" in report.checks[2]  # of the others, and not of all
        copy(shards[0], shards[1])
        assert f"{shards[1].name}: " in problems(quick)  # another one twice
        remove(shards[1])
        spare.rename(shards[1])
        copy(shards[1], out / f"shard-00077.{shards[1].suffix[1:]}")
        assert "shard-00077" in problems(quick)  # left over
        remove(out / f"shard-00077.{shards[1].suffix[1:]}")
        assert problems(quick) == ""


def test_layout_is_what_zipfile_writes(source: Path, tmp_path: Path) -> None:
    import zipfile

    packstore.convert(source, tmp_path / "a.pth", encoding="original")
    data = (tmp_path / "a.pth").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.pth") as archive:
        entries = archive.infolist()
    covered = sum(entry.file_size for entry in entries)
    for what, start, expected in build_headers(entries):
        assert data[start : start + len(expected)] == expected, what
        covered += len(expected)
    assert covered == len(data)


# --- checksums="always" -----------------------------------------------------------------------------------------------


@pytest.fixture(params=SUFFIXES)
def broken(request: pytest.FixtureRequest, source: Path, tmp_path: Path) -> Path:
    """A store whose record 1 has a damaged image, and record 3 a damaged label."""
    out = tmp_path / f"a.{request.param}"
    packstore.convert(source, out, encoding="uint8", size=3)
    damage(out, [1], ["label"], 3, 1)
    return out


@pytest.mark.parametrize("output", ["tensor", "numpy", "bytes", "pil"])
def test_damaged_records_raise_when_asked_for(broken: Path, output: Any) -> None:
    plain = packstore.PackedDataset(broken, "train", output=output, checksums="never")
    checked = packstore.PackedDataset(broken, "train", output=output, checksums="always")
    for record in (1, 3):
        plain[record]
        for access in (record, [0, record], slice(record, record + 1)):
            with pytest.raises(CorruptRecordError) as caught:
                checked[access]
            assert caught.value.record == record
            assert caught.value.key == ("train/ant/b.png", "train/bee/d.png")[record // 2]
            assert caught.value.found != caught.value.expected
            for part in (str(record), caught.value.key, caught.value.found, caught.value.expected):
                assert part in str(caught.value)
    checked[0], checked[2], checked[[0, 2]]
    with pytest.raises(CorruptRecordError):
        checked.__getitems__([0, 1])


def test_labels_and_keys_are_checked_without_images(broken: Path) -> None:
    labels = packstore.PackedDataset(broken, "train", columns=("label",), checksums="always")
    assert labels[1] == 0  # the damaged image is not read
    with pytest.raises(CorruptRecordError):
        labels[3]
    with pytest.raises(StoreError, match="column 'label'"):
        labels.targets  # noqa: B018
    assert len(list(labels.keys)) == 4
    with pytest.raises(packstore.UsageError, match="checksums should be"):
        packstore.PackedDataset(broken, "train", checksums="sometimes")  # type: ignore[arg-type]


@pytest.mark.parametrize("resident", [False, True])
def test_the_loader_checks_and_skips(broken: Path, resident: bool) -> None:
    def loader(checksums: Any, **options: Any) -> packstore.PackedLoader:
        dataset = packstore.PackedDataset(broken, "train", checksums=checksums)
        return packstore.PackedLoader(dataset, 4, resident=resident, **options)

    assert sum(len(labels) for _, labels in loader("never")) == 4
    with pytest.raises(CorruptRecordError) as caught:
        list(loader("always"))
    assert caught.value.record == 1
    if not resident:
        assert sum(len(labels) for _, labels in loader("always", on_error="skip")) == 2


def test_checks_travel_to_other_processes(broken: Path) -> None:
    import pickle

    dataset = pickle.loads(pickle.dumps(packstore.PackedDataset(broken, "train", checksums="always")))
    with pytest.raises(CorruptRecordError) as caught:
        dataset[1]
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.record) == (str(caught.value), 1)


# --- quick ------------------------------------------------------------------------------------------------------------


def test_quick_reads_no_image_and_says_so(broken: Path) -> None:
    report = packstore.verify(broken, quick=True)
    assert [p.record for p in report.problems] == [3]
    assert report.quick
    assert report.checked_bytes == 0
    assert "no image was read" in " ".join(report.checks)
    with pytest.raises(packstore.UsageError, match="leave one out"):
        packstore.verify(broken, quick=True, decode=True)
