"""Damage in a column of any type: ``verify`` names the record, ``repair`` mends it, ``salvage`` saves all others."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

import packstore
from packstore.stores import open_store
from packstore.testing.records import flip, make_records, write
from tests.internals import StoreError
from tests.internals import base as column_module
from tests.makers.stores import content
from tests.makers.tools import load_tool

SUFFIXES = ("lmdb", "h5", "pth")
RECORDS = make_records("typed", 9, sizes=range(9, 18))
RECORD = 3
"""The record that is damaged; none of its values is missing."""
COLUMNS = [column.name for column in RECORDS.columns if column.name not in ("a_int8", "key")]
"""One has no bytes. A key occurs in many places."""

flips: Any = load_tool("flip")


class Stores(dict[str, Any]):
    """The whole stores by name, each made when it is asked for: ``good.lmdb``, ``shards.h5``."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def __missing__(self, name: str) -> Any:
        write(self.root / name, RECORDS, shard_size=60 if "shards" in name else None)
        self[name] = flips.Store(self.root / name)
        return self[name]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return Stores(tmp_path_factory.mktemp("typed"))


def damaged(good: Any, to: Path, column: str) -> Path:
    """A copy with a changed byte in the value that the record has in a column."""
    shutil.copytree(good.path, to) if good.path.is_dir() else shutil.copy(good.path, to)
    for file, regions in good._regions.items():
        for start, stop, record, name in regions:
            if (record, name) == (RECORD, column):
                flip(to / file.relative_to(good.path) if to.is_dir() else to, (start + stop) // 2, 0x40)
                return to
    pytest.skip("its values occur in many places")


@pytest.fixture
def few_bytes_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """An LMDB keeps every column that may lie so record by record, of whatever size."""
    monkeypatch.setattr(column_module, "_WHOLE_BYTES", 40)


@pytest.mark.slow
@pytest.mark.sampled(2, per="kind")
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("kind", ["large", "large shards"])
def test_a_damaged_value_of_a_large_column(
    stores: dict[str, Any], tmp_path: Path, kind: str, column: str, few_bytes_are_many: None
) -> None:
    test_a_damaged_value(stores, tmp_path, "lmdb", kind, column)


@pytest.mark.slow
@pytest.mark.usefixtures("few_bytes_are_many")
@pytest.mark.parametrize("what", ["gone", "longer", "shorter"])
def test_a_value_of_a_large_array_that_is_none(stores: dict[str, Any], tmp_path: Path, what: str) -> None:
    """The record is named, all others are saved, and another store of the same records mends it."""
    bad, key = tmp_path / "bad.lmdb", b"a_float32/%010d" % RECORD
    shutil.copytree(stores["large.lmdb"].path, bad)
    with lmdb.open(str(bad), lock=False, map_size=1 << 24) as env, env.begin(write=True) as txn:
        value = txn.get(key)
        txn.put(key, value + b"x" if what == "longer" else value[:-1])
        if what == "gone":  # another takes its place, so that the count is right
            txn.delete(key)
            txn.put(b"a_float32/%010d" % len(RECORDS), value)
    for quick in (False, True):
        problems = packstore.verify(bad, quick=quick).problems
        assert {problem.record for problem in problems} - {None} == {RECORD}, problems
    with open_store(bad) as reader:
        with pytest.raises(StoreError, match="a_float32"):
            reader.item("a_float32", RECORD)
        assert reader.value("a_float32", RECORD + 1).shape == (2, 3)
    saved = packstore.salvage(bad, tmp_path / "saved.lmdb")
    # Old pages of the file still hold the value, which the row checksum proves.
    assert {problem.record for problem in saved.missing} <= {RECORD}
    assert packstore.repair(bad, stores["good.h5"].path, tmp_path / "fixed.lmdb").identical
    assert content(tmp_path / "fixed.lmdb") == content(stores["large.lmdb"].path)


@pytest.mark.slow
@pytest.mark.sampled(1, per="suffix")
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("kind", ["good", "shards"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_damaged_value(stores: dict[str, Any], tmp_path: Path, suffix: str, kind: str, column: str) -> None:
    good = stores[f"{kind}.{suffix}"].path
    bad = damaged(stores[good.name], tmp_path / f"bad.{suffix}", column)
    report = packstore.verify(bad)
    assert {problem.record for problem in report.problems} - {None} == {RECORD}
    assert any(column in problem.what for problem in report.problems) or column in ("image", "checksum", "row_checksum")
    donor = stores[f"good.{SUFFIXES[SUFFIXES.index(suffix) - 1]}"]
    repaired = packstore.repair(bad, donor.path, tmp_path / "fixed")
    assert repaired.identical
    assert content(tmp_path / "fixed") == content(good)
    saved = packstore.salvage(bad, tmp_path / "saved")
    assert {problem.record for problem in saved.missing} <= {RECORD}
    with open_store(tmp_path / "saved") as reader:
        found = {reader.key(i): values(reader, i) for i in range(len(reader))}
    with open_store(good) as reader:
        wanted = {reader.key(i): values(reader, i) for i in range(len(reader))}
        assert found == {key: value for key, value in wanted.items() if key in found}
        assert len(found) == len(wanted) - len(saved.missing)


def values(reader: Any, record: int) -> dict[str, bytes]:
    """All values of a record at rest."""
    rest = {column.name: reader.value(column.name, record) for column in reader.manifest.columns[1:]}
    return {"image": bytes(reader.read(record))} | {
        name: value.tobytes() if isinstance(value, (np.ndarray, np.generic)) else bytes(value)
        for name, value in rest.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["large.lmdb", *(f"good.{suffix}" for suffix in SUFFIXES)])
def test_a_store_with_a_broken_beginning_and_end(
    stores: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest, name: str
) -> None:
    if name == "large.lmdb":
        request.getfixturevalue("few_bytes_are_many")
    good = stores[name].path
    suffix = good.suffix[1:]
    bad = tmp_path / f"bad.{suffix}"
    shutil.copytree(good, bad) if good.is_dir() else shutil.copy(good, bad)
    file = bad / "data.mdb" if bad.is_dir() else bad
    data = bytearray(file.read_bytes())
    start, stop = {"lmdb": (0, 8192), "h5": (0, 90), "pth": (len(data) - 1000, len(data))}[suffix]
    data[start:stop] = b"\xa5" * (stop - start)
    file.write_bytes(data)
    report = packstore.salvage(bad, tmp_path / "fixed")
    assert report.complete
    assert content(tmp_path / "fixed") == content(good)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_quick_leaves_out_what_is_large(stores: dict[str, Any], tmp_path: Path, suffix: str) -> None:
    good = stores[f"good.{suffix}"]
    bad = damaged(good, tmp_path / f"bad.{suffix}", "a_mask")
    report = packstore.verify(bad, quick=True)
    assert report.ok
    assert "no a_mask" in " ".join(report.checks)
    bad = damaged(good, tmp_path / f"worse.{suffix}", "boxes")
    assert not packstore.verify(bad, quick=True).ok


@pytest.mark.slow
@pytest.mark.usefixtures("few_bytes_are_many")
@pytest.mark.parametrize("name", ["raw_mask", "a_float32"])
def test_lmdb_other_copies_of_a_value_are_tried(stores: dict[str, Any], tmp_path: Path, name: str) -> None:
    """A page that is no longer used may hold a damaged copy of a value, behind the one that is read."""
    bad = tmp_path / "bad.lmdb"
    shutil.copytree(stores["large.lmdb"].path, bad)
    file = bad / "data.mdb"
    data = file.read_bytes()
    page = next(
        data[at : at + 4096]
        for at in range(8192, len(data), 4096)
        if data[at + 10 : at + 12] == b"\2\0" and f"{name}/0000000003".encode() in data[at : at + 4096]
    )
    value = bytes(RECORDS.values[name][RECORD])
    assert value in page
    copy = page.replace(value, bytes([value[0] ^ 1]) + value[1:])
    file.write_bytes(data + copy)
    assert packstore.salvage(bad, tmp_path / "fixed").complete


@pytest.mark.slow
@pytest.mark.parametrize("name", ["boxes", "a_mask", "a_float64", "a_text_valid"])
def test_against_another_store(stores: dict[str, Any], tmp_path: Path, name: str) -> None:
    """Every value is compared, and the record and the column are named where one differs."""
    store = stores["good.h5"].path
    assert packstore.verify(store, against=stores["shards.pth"].path).ok
    values = {**RECORDS.values, name: RECORDS.values[name].copy()}
    changed = values[name]
    if name == "boxes":
        changed[RECORD] = bytes(len(changed[RECORD]))
    elif name == "a_mask":
        changed[RECORD] = b"another"
    else:  # another number, or a value that is missing
        changed[RECORD] = 0.25 if name == "a_float64" else False
        if name == "a_text_valid":
            values["a_text"] = [b"" if i == RECORD else v for i, v in enumerate(values["a_text"])]
    write(tmp_path / "other.lmdb", dataclasses.replace(RECORDS, values=values))
    report = packstore.verify(store, against=tmp_path / "other.lmdb")
    assert {problem.record for problem in report.problems} == {RECORD}
    assert any(name.removesuffix("_valid") in problem.what for problem in report.problems)
