"""Stores of more shards than may be open, their table, and what no shard knows."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packstore
from packstore.stores import open_store
from packstore.testing.records import append, assert_holds, begin, flip, make_records, write
from tests.internals import STORE_MANIFEST_FILE as MANIFEST_FILE
from tests.internals import TABLE_ROW, CorruptRecordError, Ragged, Shards, StoreError, sharded

SUFFIXES = (".lmdb", ".h5", ".pth")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """At most this many shards may be open at a time."""
    monkeypatch.setattr(sharded, "_MOST_OPEN", 2)
    monkeypatch.setattr(sharded, "_FEWEST_OPEN", 2)
    return 2


def opened(path: Path) -> Any:
    reader = open_store(path)
    assert isinstance(reader.table, Shards)
    return reader


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write(tmp_path / "x.h5", make_records("uint8"), shard_size=1)
    (found,) = (tmp_path / "x.h5").glob("table-*.shards")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ragged", "uint8", "float16", "ragged-uint8"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_more_shards_than_may_be_open(tmp_path: Path, few: int, suffix: str, encoding: str) -> None:
    records = make_records(encoding)
    write(tmp_path / f"x{suffix}", records, shard_size=1)
    with opened(tmp_path / f"x{suffix}") as reader:
        views = [reader.view(i) for i in range(len(reader))]
        assert len(reader.table._open) <= few
        assert_holds(reader, records)
        assert len(reader.table._open) <= few
        assert list(reader.check_structure()) == []
        reader.check_files()
    assert [bytes(view) for view in views] == records.images
    assert packstore.verify(tmp_path / f"x{suffix}").ok


@pytest.mark.parametrize("shard_size", [1, 120, 10**6])
@pytest.mark.parametrize("bounded", [False, True])
def test_values_of_some_records(tmp_path: Path, shard_size: int, bounded: bool, request: pytest.FixtureRequest) -> None:
    if bounded:
        request.getfixturevalue("few")
    records = make_records("uint8")
    write(tmp_path / "x.h5", records, shard_size=shard_size)
    write(tmp_path / "one.h5", records)
    chosen = np.array([6, 0, 3, 3, 5, 0, 1])
    with opened(tmp_path / "x.h5") as reader, open_store(tmp_path / "one.h5") as one:
        for column in reader.manifest.columns[1:]:
            expected = one.column(column.name)
            for i in range(len(reader)):
                value = reader.value(column.name, i)
                assert bytes(value) == bytes(expected[i]) if isinstance(expected, Ragged) else value == expected[i]
            if not isinstance(expected, Ragged):
                for some in (chosen, chosen[:1], chosen[:0]):
                    found = reader.values(column.name, some)
                    assert found.dtype == expected.dtype
                    assert np.array_equal(found, expected[some])
        for wrong in ([-1], [7], [0, 7]):
            with pytest.raises(IndexError):
                reader.values("label", np.array(wrong))
        with pytest.raises(KeyError, match="no column 'x'"):
            reader.values("x", chosen)


@pytest.mark.parametrize("method", ["view", "views", "value", "values"])
def test_an_error_has_the_number_of_the_record_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    write(tmp_path / "x.h5", make_records("uint8"), shard_size=120)  # two records each

    def fail(*_: Any) -> None:
        raise CorruptRecordError(1, "key", "a", "b")

    with opened(tmp_path / "x.h5") as reader:
        records = np.full(64 * len(reader.table.starts), 3)  # enough for reading them together
        arguments = {"view": (3,), "views": (records,), "value": ("label", 3), "values": ("label", records)}
        monkeypatch.setattr(reader.table.open(1), method, fail)
        with pytest.raises(CorruptRecordError, match="record 3 "):
            getattr(reader, method)(*arguments[method])


def test_those_used_longest_ago_are_let_go(tmp_path: Path, few: int) -> None:
    write(tmp_path / "x.h5", make_records("uint8"), shard_size=1)
    with opened(tmp_path / "x.h5") as reader:
        for number in (0, 1, 0, 2):
            reader.read(number)
        assert set(reader.table._open) == {0, 2}


@pytest.mark.slow
def test_replaced_while_not_all_shards_are_open(tmp_path: Path, few: int) -> None:
    records = make_records("uint8")
    other = dataclasses.replace(records, images=[*records.images[1:], records.images[0]])
    path = tmp_path / "x.h5"
    write(path, records, shard_size=1)
    with opened(path) as old:
        old.read(0)
        write(path, other, shard_size=1, overwrite=True)
        assert bytes(old.read(0)) == records.images[0]  # it is open
        for record in range(1, 7):
            with pytest.raises(StoreError, match="replaced by another store; open it again"):
                old.read(record)
        with pytest.raises(StoreError, match="replaced by another store"):
            old.values("label", np.arange(7))


EPOCH = """
import resource, sys, torch, packstore
from packstore.training import loader
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
ds = packstore.PackedDataset(sys.argv[1], split="train")
found = [labels for _, labels in packstore.PackedLoader(ds, 64, shuffle=True, resident=False, workers=2)]
print(sum(map(len, found)), ds.reader.table.bounded)
"""


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_epoch_with_few_open_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    write(path, make_records("uint8", 100), shard_size=1)
    done = subprocess.run([sys.executable, "-c", EPOCH, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "67 True\n"


VERIFY = """
import resource, sys, packstore
from packstore.checking.verification import verify
import packstore.stores.lmdb, packstore.stores.hdf5, packstore.stores.pth
resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
try:
    verify(sys.argv[1], quick=True)
except packstore.UsageError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_limit_of_open_files_is_not_taken_for_damage(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    write(path, make_records("uint8", 40), shard_size=1)
    done = subprocess.run([sys.executable, "-c", VERIFY, str(path)], capture_output=True, text=True, check=True)
    assert "Too many open files: raise the limit (ulimit -n), or pack larger shards" in done.stdout


@pytest.mark.slow
def test_every_changed_byte_in_the_table_is_found_and_nothing_is_lost(table: Path) -> None:
    path, total = table.parent, table.stat().st_size
    assert total == 7 * TABLE_ROW.itemsize
    for place in range(0, total, 13):
        flip(table, place)
        with pytest.raises(StoreError, match=rf"{table.name}: the table of shards is damaged"):
            open_store(path)
        flip(table, place)
    open_store(path).close()
    for number, place in enumerate((0, 8, 30, 70, total - 1)):
        flip(table, place)
        report = packstore.salvage(path, path.with_name(f"saved{number}.h5"))
        assert (report.recovered, report.missing_count) == (7, 0)
        assert any("the table of shards is damaged" in note for note in report.notes)
        flip(table, place)


@pytest.mark.slow
def test_a_lost_shard_and_a_damaged_table(table: Path) -> None:
    """Where the sum of the records is right, the table still tells how many the shard had."""
    flip(table, 40)
    (table.parent / "shard-00002.h5").unlink()
    report = packstore.salvage(table.parent, table.parent.with_name("saved.h5"))
    assert (report.recovered, report.missing_count) == (6, 1)
    assert report.missing[0].record == 2


@pytest.mark.slow
@pytest.mark.parametrize("what", ["missing", "cut", "longer", "a directory"])
def test_a_table_that_is_none(table: Path, what: str) -> None:
    content = table.read_bytes()
    table.unlink()
    if what == "a directory":
        table.mkdir()
    elif what != "missing":
        table.write_bytes(content[:-1] if what == "cut" else content + b"x")
    with pytest.raises(StoreError, match=r"table-[0-9a-f]{12}\.shards"):
        open_store(table.parent)
    assert packstore.salvage(table.parent, table.parent.with_name("saved.h5")).recovered == 7


def test_another_table_is_not_the_stores(table: Path) -> None:
    other = table.with_name("table-0123456789ab.shards")
    other.write_bytes(table.read_bytes())
    with open_store(table.parent) as reader:
        assert list(reader.check_structure()) == []
    assert [p.what for p in packstore.verify(table.parent).problems] == [f"{other.name!r} does not belong to the store"]
    with pytest.raises(packstore.DestinationError, match="also holds 'table-0123456789ab"):
        write(table.parent, make_records("uint8"), overwrite=True)


def test_counts_of_all_records_are_in_no_shard(tmp_path: Path) -> None:
    """So a shard has the same bytes whatever comes after it."""
    records = make_records("uint8")
    with begin(tmp_path / "x.h5", records, shard_size=120) as builder:
        append(builder, records)
        manifest = builder.commit(counted={"b": 2})
    assert manifest.options == {"b": 2}
    with opened(tmp_path / "x.h5") as reader:
        assert reader.manifest == manifest
        assert [part.manifest.options for part in reader.parts()] == [{}] * len(reader.manifest.shards or ())
    with begin(tmp_path / "one.h5", records) as builder:
        append(builder, records)
        assert builder.commit(counted={"b": 2}).options == {"b": 2}


def test_a_store_of_the_layout_before(tmp_path: Path) -> None:
    write(tmp_path / "x.h5", make_records("uint8"), shard_size=120)
    file = tmp_path / "x.h5" / MANIFEST_FILE
    file.write_bytes(b'{"digest":"0","format_version":1,"shards":[]}')
    with pytest.raises(StoreError, match="written by an older packstore; pack it again"):
        open_store(tmp_path / "x.h5")
