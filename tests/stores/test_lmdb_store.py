"""LMDB: the contract, and what is its own."""

from __future__ import annotations

import gc
import io
import random
import re
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packstore.stores import is_store, open_store
from packstore.testing import StoreSuite
from packstore.testing.records import (
    ORIGIN,
    Records,
    assert_holds,
    expected_columns,
    flip,
    listing,
    make_records,
    write,
)
from tests.conftest import ROOT
from tests.internals import (
    Column,
    DestinationError,
    Manifest,
    Pages,
    Ragged,
    Reader,
    RecordLookup,
    StoreError,
    TreeEntry,
    read_ahead,
)
from tests.internals import writer as lmdb_writer
from tests.makers.sanitizers import build_sanitized
from tests.makers.tiers import SEED


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def change(path: Path, **entries: bytes | None) -> None:
    """Puts or deletes entries with plain lmdb, no lock file left."""
    gc.collect()
    with lmdb.open(str(path), lock=False, map_size=1 << 30) as env, env.begin(write=True) as txn:
        for name, value in entries.items():
            key = name.removeprefix("_").encode()
            assert txn.delete(key) if value is None else txn.put(key, value)


def spanned(reader: Reader) -> list[memoryview]:
    """The images that are located together; none if one cannot be."""
    try:
        data, starts, sizes = reader.table.open(0).locate(np.arange(len(reader)))
    except StoreError:
        return []
    return [data[start : start + size] for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)]


def one_by_one(path: Path, records: Any) -> list[bytes] | None:
    """The images of some records; None where one cannot be read."""
    with open_store(path) as reader:
        try:
            return [bytes(reader.view(record)) for record in records.tolist()]
        except StoreError:
            return None


class TestLmdb(StoreSuite):
    format = "lmdb"
    PLAIN_READER = """
import io, json, sys
import lmdb, numpy
with lmdb.open(sys.argv[1], readonly=True, lock=False) as env, env.begin() as txn:
    manifest = txn.get(b"manifest").decode()
    count = json.loads(manifest)["records"]
    array = lambda name: numpy.load(io.BytesIO(txn.get(name)), allow_pickle=False)
    at, raw = array(b"key/offsets"), array(b"key/bytes")
    print(json.dumps({"images": [txn.get(b"%010d" % i).hex() for i in range(count)], "label": array(b"label").tolist(),
                      "key": [raw[a:b].tobytes().hex() for a, b in zip(at[:-1], at[1:])],
                      "checksum": array(b"checksum").tolist(), "manifest": manifest}))
"""

    def write_plain(self, path: Path, manifest: Manifest, records: Records, data: dict[str, Any]) -> None:
        with lmdb.open(str(path), lock=False, map_size=1 << 24) as env, env.begin(write=True) as txn:
            txn.put(b"manifest", manifest.to_json().encode())
            for name, values in data.items():
                if manifest.column(name).one_by_one:
                    for i in range(len(records)):
                        whole = isinstance(values, tuple)
                        value = values[0][values[1][i] : values[1][i + 1]] if whole else values[i].tobytes()
                        txn.put(b"%s/%010d" % (name.encode(), i), value)
                elif isinstance(values, tuple):
                    txn.put(f"{name}/bytes".encode(), npy(np.frombuffer(values[0], np.uint8)))
                    txn.put(f"{name}/offsets".encode(), npy(values[1]))
                else:
                    txn.put(name.encode(), npy(values))
            for i in reversed(range(len(records))):
                txn.put(b"%010d" % i, records.images[i])

    def test_only_the_data_file(self, path: Path) -> None:
        write(path, make_records())
        open_store(path).read(0)
        assert listing(path) == {"data.mdb"}

    @pytest.mark.slow
    def test_it_is_compact_and_without_holes(self, path: Path, tmp_path: Path) -> None:
        records = make_records("ragged", 3000, sizes=[2500 + i % 1500 for i in range(3000)])
        manifest = write(path, records)
        copy = tmp_path / "copy"
        copy.mkdir()
        with lmdb.open(str(path), readonly=True, lock=False) as env:
            env.copy(str(copy), compact=True)
        size = (path / "data.mdb").stat().st_size
        assert size <= (copy / "data.mdb").stat().st_size + 24 * 4096
        assert (path / "data.mdb").stat().st_blocks * 512 >= size
        assert manifest.records == 3000

    @pytest.mark.parametrize("map_size", [1 << 16, 1 << 20])
    def test_the_map_grows(self, tmp_path: Path, map_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever is put when the map is full is put again: nothing lost, nothing twice."""
        monkeypatch.setattr(lmdb_writer, "_TXN_BYTES", 40_000)
        records = make_records("ragged", 500, sizes=[(i * 37) % 6000 for i in range(500)])
        columns, data = expected_columns(records)
        manifest = Manifest("lmdb", "original", len(records), columns, ORIGIN)
        writer = lmdb_writer.LmdbWriter(tmp_path / "x.lmdb", records.columns[0], map_size=map_size)
        for start in range(0, 500, 50):
            writer.append(records.images[start : start + 50])
        spooled = {c.name: data[c.name] for c in columns[1:] if c.kind == "fixed"}
        spooled["key"] = Ragged(data["key"][1], np.frombuffer(data["key"][0], np.uint8))
        writer.seal(manifest, spooled)
        with open_store(tmp_path / "x.lmdb") as reader:
            assert_holds(reader, records)
            assert list(reader.check_structure()) == []

    def test_a_value_that_is_too_large(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lmdb_writer, "_MAX_VALUE", 5000)
        with pytest.raises(StoreError, match="record 4 has 9000 bytes; LMDB holds up to 5000"):
            write(path, make_records())
        assert listing(path.parent) == set()

    def test_too_many_records(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The checksums of all are one value: refused with the record that is too many, not at the end."""
        assert 8 * (lmdb_writer._MAX_RECORDS + 1) + 1024 <= lmdb_writer._MAX_VALUE
        monkeypatch.setattr(lmdb_writer, "_MAX_RECORDS", 6)
        with pytest.raises(StoreError, match="LMDB holds up to 6 records a file; use a shard size"):
            write(path, make_records())
        assert listing(path.parent) == set()
        write(path, make_records(count=6))

    def test_a_full_disk(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Full:
            def __init__(self, env: Any) -> None:
                self.env = env

            def begin(self, write: bool) -> Any:
                raise lmdb.DiskError("mdb_txn_commit: No space left on device")

            def __getattr__(self, name: str) -> Any:
                return getattr(self.env, name)

        real = lmdb.open
        monkeypatch.setattr(lmdb_writer.lmdb, "open", lambda *a, **k: Full(real(*a, **k)))
        with pytest.raises(DestinationError, match="No space left"):
            write(path, make_records())
        assert listing(path.parent) == set()

    def test_foreign(self, path: Path) -> None:
        with lmdb.open(str(path), lock=False) as env, env.begin(write=True) as txn:
            txn.put(b"a", b"b")
        with pytest.raises(StoreError, match="is an LMDB without a packstore manifest"):
            open_store(path)
        assert not is_store(path)
        gc.collect()
        (path / "data.mdb").write_bytes(bytes(10000))
        with pytest.raises(StoreError, match="cannot be opened as an LMDB"):
            open_store(path)

    def test_open_elsewhere_in_the_process(self, path: Path) -> None:
        records = make_records()
        write(path, records)
        with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as txn:
            assert_holds(open_store(path), records)
            assert txn.get(b"%010d" % 2) == records.images[2]

    def test_an_empty_data_file(self, path: Path) -> None:
        path.mkdir()
        (path / "data.mdb").touch()
        with pytest.raises(StoreError, match=r"out\.lmdb is damaged or truncated: .*data\.mdb is empty"):
            open_store(path)

    def test_image_is_no_column(self, path: Path) -> None:
        write(path, make_records("uint8"))
        with pytest.raises(StoreError, match="one by one"):
            open_store(path).column("image")

    @pytest.mark.parametrize(
        ("entries", "problem"),
        [
            ({"_0000000003": None, "zzz": b""}, "its entry is missing"),
            ({"_0000000006": None, "zzz": b""}, "its entry is missing"),
            ({"_0000000000": None, "zzz": b""}, "its entry is missing"),
            ({"_0000000003": None, "zzz": b""}, "entry b'zzz' does not belong to the store"),
            ({"_0000000003": None, "_0000000007": b""}, "entry b'0000000007' does not belong to the store"),
            ({"checksum": None, "zzz": b""}, "entry b'checksum' is missing"),
            ({"_0000000002": b"short"}, "its entry has 5 bytes, expected 60"),
        ],
    )
    def test_entries(self, path: Path, entries: dict[str, bytes | None], problem: str) -> None:
        write(path, make_records("uint8"))
        change(path, **entries)
        reader = open_store(path)
        assert problem in {p.what for p in reader.check_structure()}
        assert problem in {p.what for p in reader.check_structure(quick=True)}

    def test_a_missing_or_short_record_is_an_error(self, path: Path) -> None:
        write(path, make_records("uint8"))
        change(path, _0000000003=None, _0000000004=b"short", zzz=b"")
        reader = open_store(path)
        for index, message in ((3, "record 3 .* is missing"), (4, "record 4 .* has 5 bytes")):
            with pytest.raises(StoreError, match=message):
                reader.read(index)

    def test_number_of_entries(self, path: Path) -> None:
        write(path, make_records())
        change(path, extra=b"")
        with pytest.raises(StoreError, match="has 13 entries, its manifest says 12"):
            open_store(path)

    @pytest.mark.parametrize("value", [b"", b"nonsense", npy(np.zeros(7, np.int32)), npy(np.zeros(6, np.int64))])
    def test_a_column_that_is_something_else(self, path: Path, value: bytes) -> None:
        write(path, make_records())
        change(path, label=value)
        with pytest.raises(StoreError, match="column 'label'"):
            open_store(path).column("label")

    @pytest.mark.slow
    def test_damaged_sizes_of_named_values_never_reach_lmdb(self, path: Path) -> None:
        """LMDB believes a size, and touches all of it: a flip in one ended the process."""
        records = make_records()
        write(path, records)
        file = path / "data.mdb"
        whole = file.read_bytes()
        for key in (b"manifest", b"key/bytes"):
            caught = 0
            # All copies: earlier transactions leave old pages behind, where a flip does nothing.
            for found in re.finditer(re.escape(len(key).to_bytes(2, "little") + key), whole):
                for bit in range(48):  # size and flags come before the key's size
                    position, mask = found.start() - 6 + bit // 8, 1 << bit % 8
                    flip(file, position, mask)
                    try:
                        assert_holds(open_store(path), records)
                    except StoreError:
                        caught += 1
                    flip(file, position, mask)
            assert caught == 48

    @pytest.mark.slow
    @pytest.mark.sampled(1)
    @pytest.mark.parametrize("sizes", [[40], [5000], [0, 3000, 9000]])
    def test_many_records_at_once_are_those_one_by_one(self, path: Path, sizes: list[int]) -> None:
        """Also of a damaged file: what is wrong, or the same bytes."""
        count = 700
        write(path, make_records("ragged", count, sizes=(sizes * count)[:count]), batch=100)
        file = path / "data.mdb"
        whole = file.read_bytes()
        rng = np.random.default_rng(1)
        asked = rng.permutation(count)[:100]
        with file.open("rb") as opened:
            starts, sizes_found, located = RecordLookup(Pages(opened.fileno()), b"").locate(asked)
        assert located == len(asked)
        found = zip(starts.tolist(), sizes_found.tolist(), strict=True)
        assert [whole[start : start + size] for start, size in found] == one_by_one(path, asked)
        inner = [p for p in range(2, len(whole) // 4096) if whole[p * 4096 + 10] in (1, 2)]
        outcomes = Counter[str]()
        positions = [p * 4096 + int(o) for p in inner for o in [*range(24), *rng.integers(24, 4096, 20)]]
        for position in rng.choice(positions, min(len(positions), 150), replace=False).tolist():
            flip(file, position, 1 << position % 8)
            with suppress(StoreError), open_store(path) as reader:
                expected = one_by_one(path, asked)
                try:
                    together: list[bytes] | None = [bytes(view) for view in reader.views(asked)]
                except StoreError:
                    together = None
                assert together == expected
                outcomes["damage" if expected is None else "bytes"] += 1
            flip(file, position, 1 << position % 8)
        assert min(outcomes["damage"], outcomes["bytes"]) > 2

    @pytest.mark.slow
    @pytest.mark.parametrize("count", [1, 2, 200, 20_000])
    def test_our_way_through_the_pages_is_lmdbs(self, path: Path, count: int) -> None:
        write(path, make_records("ragged", count, sizes=[i % 3 for i in range(count)]), batch=1000)
        with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as txn:
            expected = list(txn.cursor())
        with (path / "data.mdb").open("rb") as file:
            pages = Pages(file.fileno())
        assert list(pages.walk_entries()) == [TreeEntry(key, len(value)) for key, value in expected]
        images = RecordLookup(pages, b"")
        for index, value in enumerate(v for k, v in expected if k.isdigit()):
            assert images.find_value(index) == value
        for index in (count, 10**10 - 1, 10**10, 2**63 - 1):
            assert images.find_value(index) is None
        for key, value in expected:
            found = pages.find_value(key)
            assert found is not None
            assert found.tobytes() == value
        for key in (b"", b"0", b"00000000000", b"0000000000x", b"a", b"labem", b"zzz"):
            assert pages.find_value(key) is None

    @pytest.mark.slow
    @pytest.mark.sampled(1)
    @pytest.mark.parametrize("sizes", [[3] * 300, [5000, 0, 40, 700] * 6], ids=["many", "long"])
    def test_the_engine_finds_what_python_finds(
        self, path: Path, sizes: list[int], no_engine: Callable[[], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Faults of a damaged file, and the images where it has none."""
        write(path, make_records("ragged", len(sizes), sizes=sizes))
        file = path / "data.mdb"
        data = bytearray(file.read_bytes())
        rng = random.Random(5)
        # Headers and entries, where a byte means something; the rest of a page is values.
        places = [page + i for page in range(0, len(data), 4096) for i in (*range(24), *range(4000, 4096, 3))]

        def findings() -> tuple[list[Any], list[bytes]] | None:
            """What the structure's check says, quick and whole; the images, up to the first that cannot be read."""
            with suppress(StoreError), open_store(path) as reader:
                problems = [list(reader.check_structure(quick=quick)) for quick in (False, True)]
                images = spanned(reader)
                for index, image in enumerate(images):
                    assert image == reader.view(index)
                return problems, list(map(bytes, images)) if not any(problems) else []
            return None

        changed: list[bytes] = []
        for place in rng.sample(places, min(len(places), 200)):
            copy = data.copy()
            copy[place] ^= 1 << rng.randrange(8)
            changed.append(bytes(copy))
        found = [[file.write_bytes(each), findings()][1] for each in (data, *changed)]
        no_engine()
        assert found == [[file.write_bytes(each), findings()][1] for each in (data, *changed)]
        assert found[0] is not None
        assert found[0][0] == [[], []]
        assert len(found[0][1]) == len(sizes)
        assert sum(each is not None and any(each[0]) for each in found) > 10

    def test_a_branch_key_by_which_lookups_miss_records(self, path: Path) -> None:
        """The entries themselves are in order; only the way to some is wrong."""
        write(path, make_records("ragged", 400, sizes=[40] * 400))
        file = path / "data.mdb"
        data = bytearray(file.read_bytes())
        with open_store(path) as reader:
            assert list(reader.check_structure()) == []
        branch = max(p for p in range(2, len(data) // 4096) if data[p * 4096 + 10 : p * 4096 + 12] == b"\x01\0") * 4096
        node = branch + struct.unpack_from("<H", data, branch + 18)[0] + 8
        first = int(data[node : node + 10])
        data[node : node + 10] = b"%010d" % (first + 3)
        file.write_bytes(data)
        with open_store(path) as reader:
            message = f"lookups do not find key {b'%010d' % first!r}: the key {b'%010d' % (first + 3)!r}"
            assert [p.what for p in reader.check_structure()] == [f"{message} in a branch page leads elsewhere"]
            with pytest.raises(StoreError, match=f"record {first} .* is missing"):
                reader.view(first)

    @pytest.mark.parametrize(
        ("at", "value", "what"),
        [(10, 0, "header page 0 has flags"), (4096 + 10, 9, "header page 1 has flags"),
         (4096 + 40, 1, "header page 1 says that pages have"), (4096 + 88, 1, "values of 1 bytes"),
         (4096 + 92, 2, "header page 1 says that the tree has flags 0x2"), (92, 8, "flags 0x8")],
    )  # fmt: skip
    def test_header_pages_that_lmdb_itself_would_misread(self, path: Path, at: int, value: int, what: str) -> None:
        write(path, make_records("ragged", 5, sizes=[3] * 5))
        file = path / "data.mdb"
        data = bytearray(file.read_bytes())
        data[at] = value
        file.write_bytes(data)
        with open_store(path) as reader:
            for quick in (False, True):
                assert any(what in problem.what for problem in reader.check_structure(quick=quick))

    def test_a_page_of_many_nodes_with_one_long_key(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What they would have as keys together is a hundred times the file."""
        write(path, make_records("ragged", 400, sizes=[3] * 400))
        file = path / "data.mdb"
        data = bytearray(file.read_bytes())
        with file.open("rb") as opened:
            pages = Pages(opened.fileno())
        leaf = next(p for p in range(2, len(data) // 4096) if data[p * 4096 + 10 : p * 4096 + 12] == b"\x02\0")
        start, lower = leaf * 4096, 16 + 2 * 300
        data[start + 12 : start + 16] = struct.pack("<HH", lower, lower)
        data[start + 16 : start + lower] = struct.pack("<H", lower) * 300
        data[start + lower : start + lower + 8] = struct.pack("<HHHH", 0, 0, 0, 3000)
        file.write_bytes(data)
        assert pages.tree.entries > 300
        with open_store(path) as reader:
            assert spanned(reader) == []
            problems = list(reader.check_structure())
        assert any(f"page {leaf} has a key of 3000 bytes" in problem.what for problem in problems)
        assert max(len(problem.what) for problem in problems) < 300

    def test_two_transactions_a_shard_and_suspended_writers(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lmdb_writer, "_TXN_BYTES", 3000)
        records = make_records("ragged", 60, sizes=[i * 41 for i in range(60)])
        write(path, records, shard_size=20_000)
        with open_store(path) as reader:
            assert_holds(reader, records)
            assert list(reader.check_structure()) == []

    def test_columns_over_the_map_are_aligned(self, path: Path) -> None:
        columns = (*make_records().columns, Column("weight", "fixed", "float32", (2,)))
        records = make_records("ragged", 400, sizes=[1] * 400)
        weights = np.arange(800, dtype=np.float32).reshape(400, 2)
        records = Records("original", columns, records.images, {**records.values, "weight": weights}, records.splits)
        write(path, records)
        reader = open_store(path)
        for name in ("label", "checksum", "weight"):
            assert reader.fixed_column(name).flags.aligned
        assert np.array_equal(reader.fixed_column("weight"), weights)


def test_closing_frees_the_maps(tmp_path: Path) -> None:
    write(tmp_path / "a.lmdb", make_records())
    reader = open_store(tmp_path / "a.lmdb")
    view, maps, file = reader.view(0), Path("/proc/self/maps"), str(tmp_path / "a.lmdb" / "data.mdb")
    assert maps.read_text().count(file) == 2
    reader.close()
    gc.collect()
    assert maps.read_text().count(file) == 1
    del view
    gc.collect()
    assert file not in maps.read_text()


def test_what_is_needed_soon_may_be_said_of_any_value(tmp_path: Path) -> None:
    """Of records within a page and of pages of their own, of none, and of what is not of this map."""
    records = make_records("ragged", 40, sizes=[0, 9, 5000, 200_000] * 10)
    write(tmp_path / "a.lmdb", records)
    write(tmp_path / "s.lmdb", records, shard_size=300_000)
    for name in ("a.lmdb", "s.lmdb"):
        with open_store(tmp_path / name) as reader:
            for i in range(40):
                view = reader.view(i)
                if isinstance(view, memoryview):
                    read_ahead(view)
                assert bytes(view) == bytes(records.images[i])
    read_ahead(memoryview(b"elsewhere"))


KEYS = st.binary(min_size=1, max_size=30) | st.integers(0, 300).map(lambda n: b"mask/%010d" % n)


@given(st.dictionaries(KEYS, st.binary(max_size=90) | st.integers(2000, 9000).map(bytes), min_size=1, max_size=200))
def test_any_lmdb_is_read_as_lmdb_reads_it(content: dict[bytes, bytes]) -> None:
    """With gaps between records, and after deletions."""
    with tempfile.TemporaryDirectory() as folder, lmdb.open(folder, lock=False, map_size=1 << 24) as env:
        for keep in (content, dict(list(content.items())[1::2]) or content):
            with env.begin(write=True) as txn:
                for key in content.keys() - keep.keys():
                    txn.delete(key)
                for key, value in keep.items():
                    txn.put(key, value)
            with (Path(folder) / "data.mdb").open("rb") as file:
                pages = Pages(file.fileno())
            assert list(pages.walk_entries()) == [TreeEntry(key, len(keep[key])) for key in sorted(keep)]
            for key in (*content, b"", b"\0", b"mask/", b"\xff" * 40):
                found = pages.find_value(key)
                assert (None if found is None else found.tobytes()) == keep.get(key)
            masks = RecordLookup(pages, b"mask/")
            assert [masks.find_value(n) for n in range(301)] == [keep.get(b"mask/%010d" % n) for n in range(301)]


@pytest.mark.parametrize("transaction", [1 << 14, 4 << 20])
def test_suspended_or_not_it_has_the_same_bytes(
    tmp_path: Path, transaction: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_writer, "_TXN_BYTES", transaction)
    records = make_records("ragged", 90, sizes=[100 * (i % 60) for i in range(90)])
    columns, data = expected_columns(records)
    manifest = Manifest("lmdb", records.encoding, len(records), columns, ORIGIN)
    values = {n: Ragged(v[1], np.frombuffer(v[0], "u1")) if isinstance(v, tuple) else v for n, v in data.items()}
    for name in ("kept", "suspended"):
        writer = lmdb_writer.LmdbWriter(tmp_path / name, records.columns[0])
        writer.append(records.images)
        if name == "suspended":
            writer.suspend()
        writer.seal(manifest, values)
    assert (tmp_path / "kept/data.mdb").read_bytes() == (tmp_path / "suspended/data.mdb").read_bytes()


def run_fuzzer(tmp_path: Path, request: pytest.FixtureRequest, count: int, seed: int) -> int:
    """Drives the walk with damaged files; sanitizers end it at the first fault. Returns how many files are sound."""
    program = build_sanitized("lmdb_fuzz", request)
    contents: list[dict[bytes, bytes]] = [
        {b"manifest": b"{}"},
        {b"%010d" % i: bytes(5000 * (i % 3)) for i in range(40)} | {b"manifest": bytes(9000)},
        {prefix + b"%010d" % i: bytes(i % 90) for i in range(400) for prefix in (b"", b"mask/")} | {b"manifest": b""},
        {b"k" * 300 + b"%04d" % i: b"" for i in range(300)},
    ]
    for number, content in enumerate(contents):
        with lmdb.open(str(tmp_path / str(number)), lock=False, map_size=1 << 20) as env, env.begin(write=True) as txn:
            txn.cursor().putmulti(content.items())
    seeds = [*tmp_path.glob("*/data.mdb"), *(ROOT / "tests" / "corpus" / "lmdb").iterdir()]
    done = subprocess.run([program, str(count), str(seed), *seeds], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    tried, sound = map(int, done.stdout.split())
    assert tried == count
    return sound


@pytest.mark.slow
def test_sanitizers_find_nothing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    assert 400 < run_fuzzer(tmp_path, request, 2000, SEED) < 1900


@pytest.mark.soak
def test_sanitizers_find_nothing_in_a_million(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    assert run_fuzzer(tmp_path, request, 1_000_000, 2)
