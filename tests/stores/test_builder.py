"""Building and publishing: what all formats share, and what must never be lost."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packstore import Manifest
from packstore.stores import StoreBuilder, format_of, is_store, open_store
from packstore.testing.records import (
    ORIGIN,
    Records,
    append,
    assert_holds,
    begin,
    interrupt_write,
    listing,
    make_records,
    write,
)
from tests.internals import (
    Column,
    ColumnSpool,
    DestinationError,
    ManifestError,
    Ragged,
    StoreError,
    read_owner,
    store_keys,
)
from tests.internals import builder_publish as publish

SUFFIXES = [".lmdb", ".h5", ".pth"]


@pytest.fixture(params=["renameat2", "plain renames", "no links"])
def renames(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The three ways to move a store to its destination."""
    if request.param != "renameat2":
        monkeypatch.setattr(publish, "_renameat2", lambda *_: False)
    if request.param == "no links":

        def refuse(*_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
    return str(request.param)


# Telling what is there


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".lmdb", ".h5", ".pth"])
def test_opening_loads_no_library(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"x{suffix}", make_records())
    program = (
        "import sys; from packstore.stores import open_store; open_store(sys.argv[1]); "
        "print([m for m in ('torch', 'h5py', 'lmdb', 'PIL') if m in sys.modules])"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / f"x{suffix}")]
    assert subprocess.run(arguments, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.lmdb", "lmdb"),
        *((name, "hdf5") for name in ("a.h5", "a.HDF5")),
        *((name, "pth") for name in ("a.pth", "a.b.pt")),
        *((name, None) for name in ("lmdb", "a.zip", "", ".lmdb")),
    ],
)
def test_format_of(name: str, format: str | None) -> None:
    assert format_of(name) == format


def make_odd(directory: Path, what: str) -> str:
    path = directory / "odd"
    if what == "empty file":
        path.touch()
    elif what == "text":
        path.write_text("hello, this is no store")
    elif what == "directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "dangling link":
        path.symlink_to("nowhere")
    elif what == "link to itself":
        path.symlink_to(path)
    elif what == "data.mdb":
        write(directory / "x.lmdb", make_records())
        return str(directory / "x.lmdb" / "data.mdb")
    elif what == "null byte":
        return "odd\0path"
    elif what == "long":
        return "x" * 5000
    elif what == "below a file":
        path.touch()
        return str(path / "below")
    return str(path)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("missing", "does not exist"),
        ("empty file", "is an empty file"),
        ("text", "is not a store: it begins with b'hello, t'"),
        ("directory", "is a directory without data"),
        ("fifo", "is neither a file nor a directory"),
        ("dangling link", "does not exist"),
        ("link to itself", "does not exist|cannot be opened"),
        ("data.mdb", "is part of a store; name the directory"),
        ("null byte", "does not exist|cannot be opened"),
        ("long", "cannot be opened|does not exist"),
        ("below a file", "does not exist"),
    ],
)
def test_odd_paths(tmp_path: Path, what: str, message: str) -> None:
    path = make_odd(tmp_path, what)
    assert not is_store(path)
    with pytest.raises(StoreError, match=message) as caught:
        open_store(path)
    assert "\n" not in str(caught.value)


# Destinations


def test_unusable_arguments(tmp_path: Path) -> None:
    records = make_records()
    with pytest.raises(StoreError, match="shard size must be at least 1 byte, got 0"):
        begin(tmp_path / "x", records, format="hdf5", shard_size=0)
    with pytest.raises(ManifestError, match="encoding"):
        StoreBuilder(tmp_path / "x", Manifest("hdf5", "no name", 0, tuple(records.columns), ORIGIN))
    with pytest.raises(ManifestError, match="column names"):
        StoreBuilder(tmp_path / "x", Manifest("hdf5", "original", 0, tuple(records.columns[1:]), ORIGIN))
    assert listing(tmp_path) == set()


@pytest.mark.parametrize("name", ["/", "..", "a/..", "no/such/x.h5", "file/x.h5"])
def test_destinations_that_cannot_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DestinationError, match=r"cannot be the name of a store|does not exist; make it first"):
        begin(tmp_path / name if name != "/" else Path("/"), make_records(), format="hdf5")
    assert listing(tmp_path) == {"file"}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("target", ["store", "nowhere", "directory"])
def test_symbolic_links_are_refused(tmp_path: Path, suffix: str, overwrite: bool, target: str) -> None:
    write(tmp_path / "store", make_records(), format="hdf5")
    (tmp_path / "directory").mkdir()
    path = tmp_path / f"out{suffix}"
    path.symlink_to(target)
    before = listing(tmp_path)
    with pytest.raises(DestinationError, match="is a symbolic link"):
        begin(path, make_records(), overwrite=overwrite)
    assert listing(tmp_path) == before


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("what", ["text", "empty directory", "directory", "LMDB", "HDF5", "damaged store", "fifo"])
def test_overwrite_replaces_nothing_foreign(tmp_path: Path, suffix: str, what: str) -> None:
    path = tmp_path / f"out{suffix}"
    if what == "text":
        path.write_text("a novel")
    elif what == "empty directory":
        path.mkdir()
    elif what == "directory":
        path.mkdir()
        (path / "manifest.json").write_text("{}")
    elif what == "LMDB":
        with lmdb.open(str(path)) as env, env.begin(write=True) as txn:
            txn.put(b"mine", b"mine")
    elif what == "HDF5":
        with h5py.File(path, "w") as file:
            file["mine"] = 1
    elif what == "fifo":
        os.mkfifo(path)
    else:
        write(path, make_records(), format="hdf5")
        path.write_bytes(path.read_bytes()[:-1])
    before = listing(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(DestinationError, match="not a packstore store, which packstore never replaces") as caught:
            begin(path, make_records(), overwrite=overwrite)
        assert "--overwrite" not in str(caught.value)
    assert listing(tmp_path) == before


@pytest.mark.parametrize("shard_size", [None, 3000])
@pytest.mark.parametrize("early", [True, False])
def test_overwrite_never_deletes_what_lies_in_a_store(tmp_path: Path, shard_size: int | None, early: bool) -> None:
    path = tmp_path / "out.lmdb"
    old, new = make_records(seed=1), make_records(seed=2)
    write(path, old, shard_size=shard_size)
    inside = path / "shard-00000.lmdb" if shard_size else path
    notes = inside / "notes.txt"
    if early:
        notes.write_text("mine")
        with pytest.raises(DestinationError, match=r"also holds 'notes\.txt'"):
            begin(path, new, overwrite=True)
    else:
        builder = begin(path, new, overwrite=True)
        append(builder, new)
        notes.write_text("mine")
        with pytest.raises(DestinationError, match=r"also holds 'notes\.txt'"):
            builder.commit()
    assert notes.read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["out.lmdb"]
    assert_holds(open_store(path), old)
    notes.unlink()
    (inside / "lock.mdb").touch()  # what LMDB programs leave
    write(path, new, overwrite=True)
    assert listing(tmp_path) == {"out.lmdb", "out.lmdb/data.mdb"}


@pytest.mark.slow
@pytest.mark.sampled(fast=3)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_overwrite_by_all_ways(tmp_path: Path, suffix: str, renames: str) -> None:
    path = tmp_path / f"out{suffix}"
    for seed, shard_size in ((1, None), (2, None), (3, 3000), (4, 3000), (5, None)):
        records = make_records(seed=seed)
        write(path, records, overwrite=True, shard_size=shard_size)
        assert_holds(open_store(path), records)
        assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("what", ["file", "directory", "link"])
def test_what_appears_meanwhile_is_kept(tmp_path: Path, suffix: str, overwrite: bool, what: str, renames: str) -> None:
    path = tmp_path / f"out{suffix}"
    records = make_records()
    builder = begin(path, records, overwrite=overwrite)
    append(builder, records)
    if what == "file":
        path.write_text("mine")
    elif what == "directory":
        path.mkdir()
        (path / "mine").touch()
    else:
        path.symlink_to("nowhere")
    before = listing(path) if what == "directory" else path.lstat().st_ino
    with pytest.raises(DestinationError, match=r"exists already|is not a packstore store|is a symbolic link"):
        builder.commit()
    assert (listing(path) if what == "directory" else path.lstat().st_ino) == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_appears_in_the_last_moment_is_kept(
    tmp_path: Path, suffix: str, renames: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last check and the rename: the kernel's no-replace, the link, or a last look."""
    path = tmp_path / f"out{suffix}"
    real = publish._rename_new

    def late(source: Path, destination: Path) -> None:
        destination.write_text("mine")
        real(source, destination)

    monkeypatch.setattr(publish, "_rename_new", late)
    with pytest.raises(DestinationError, match="File exists"):
        write(path, make_records())
    assert path.read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_destination_exchanged_in_the_last_moment_is_put_back(
    tmp_path: Path, renames: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.h5"
    write(path, make_records(seed=1))
    real, first = publish.exchange_paths, True

    def late(a: Path, b: Path) -> None:
        nonlocal first
        if first:
            first = False
            b.rename(tmp_path / "away")
            b.write_text("mine")
        real(a, b)

    monkeypatch.setattr(publish, "exchange_paths", late)
    with pytest.raises(DestinationError, match="changed by somebody else"):
        write(path, make_records(seed=2), overwrite=True)
    assert path.read_text() == "mine"
    assert {p.name for p in tmp_path.iterdir()} == {"out.h5", "away"}


def test_a_failing_second_rename_is_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, old = tmp_path / "out.h5", make_records(seed=1)
    write(path, old)
    monkeypatch.setattr(publish, "_renameat2", lambda *_: False)
    real, calls = Path.rename, 0

    def failing(self: Path, target: Any) -> Path:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(5, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(DestinationError, match="Input/output error"):
        write(path, make_records(seed=2), overwrite=True)
    assert_holds(open_store(path), old)
    assert listing(tmp_path) == {"out.h5"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(DestinationError, match="Permission denied"):
        begin(tmp_path / "x.h5", make_records())


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("shard_size", [None, 3000])
def test_permissions_follow_the_umask(tmp_path: Path, suffix: str, shard_size: int | None) -> None:
    mask = os.umask(0o027)
    try:
        write(tmp_path / f"x{suffix}", make_records(), shard_size=shard_size)
    finally:
        os.umask(mask)
    for path in (p for p in tmp_path.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o750 if path.is_dir() else 0o640), path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_staging_is_hidden_and_recognisable(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / ("é" * 120 + suffix)  # nearly as long as a name can be
    records = make_records()
    with begin(path, records) as builder:
        append(builder, records)
        (work,) = tmp_path.iterdir()
        assert work.name.startswith(".é")
        assert work.name.endswith(".packstore")
        owner = read_owner(work)
        assert owner is not None
        assert (owner.destination, owner.pid) == (path.name, os.getpid())
        assert not is_store(work)
        assert not path.exists()
        builder.commit()
    assert list(tmp_path.iterdir()) == [path]


# Values


def bad_values() -> list[tuple[dict[str, Any], str]]:
    good: dict[str, Any] = {"images": [bytes(60)], "label": [0], "key": ["k"]}
    return [
        (good | {"images": [bytes(59)]}, r"record 7 has 59 bytes, not 60 \(uint8 \(5, 4, 3\)\)"),
        (good | {"images": [bytes(60), b""], "label": [0, 0], "key": ["k", "l"]}, "record 8 has 0 bytes"),
        (good | {"images": ["text"]}, "'image' must be bytes"),
        (good | {"images": [memoryview(bytes(120))[::2]]}, "contiguous"),
        (good | {"label": [3]}, r"3 classes \(0 to 2\), got labels from 3 to 3"),
        (good | {"label": [-1]}, "got labels from -1"),
        (good | {"label": [2**63]}, "label"),
        (good | {"label": [2**70]}, "label"),
        (good | {"label": [0.5]}, "float64"),
        (good | {"label": ["a"]}, "label"),
        (good | {"label": [[0], [0, 1]]}, "label"),
        (good | {"label": [0, 1]}, r"needs shape \(1,\), got \(2,\)"),
        (good | {"label": [[0]]}, r"needs shape \(1,\), got \(1, 1\)"),
        (good | {"key": []}, "needs 1 values"),
        (good | {"key": [7]}, "key"),
        (good | {"key": ["\ud800"]}, "cannot be stored"),
        (good | {"other": [1]}, "columns .* are needed"),
        ({"images": [bytes(60)], "label": [0]}, "columns .* are needed"),
        (good | {"checksums": np.zeros(2, np.uint64)}, "checksum"),
        (good | {"checksums": np.zeros(1, np.float32)}, "checksum"),
    ]


@pytest.mark.parametrize(("values", "message"), bad_values())
def test_values_that_do_not_fit_add_nothing(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    records = make_records("uint8")
    path = tmp_path / "x.h5"
    with begin(path, records) as builder:
        append(builder, records)
        values = dict(values)
        images, sums = values.pop("images"), values.pop("checksums", None)
        with pytest.raises(StoreError, match=message):
            builder.append(images, values, "val", sums)
        builder.commit()
    assert_holds(open_store(path), records)


def test_shapes_must_be_those_of_the_images(tmp_path: Path) -> None:
    records = make_records("ragged-uint8")
    with begin(tmp_path / "x.h5", records) as builder:
        images, values = records.part(0, 3)
        values["shape"] = [[1, 2, 3], [2, 3, 3], [3, 4, 4]]
        with pytest.raises(StoreError, match=r"record 2 has 36 bytes, not shape \[3 4 4\]"):
            builder.append(images, values, "")
    without = [c for c in records.columns if c.name != "shape"]
    with pytest.raises(ManifestError, match="'shape' column"):
        StoreBuilder(tmp_path / "x.h5", Manifest("hdf5", "uint8", 0, tuple(without), ORIGIN))


def test_splits_follow_each_other(tmp_path: Path) -> None:
    records = make_records("uint8", 4)
    with begin(tmp_path / "a.h5", records) as builder:
        for i, split in enumerate(("train", "val", "val")):
            builder.append(*records.part(i, i + 1), split)
        with pytest.raises(StoreError, match="records of split 'train' must follow each other; 'val' began"):
            builder.append(*records.part(3, 4), "train")
        with pytest.raises(StoreError, match="all records have a split or none"):
            builder.append(*records.part(3, 4), "")
        splits = builder.commit().splits
        assert [(s.name, s.start, s.stop) for s in splits] == [("train", 0, 1), ("val", 1, 3)]
    with begin(tmp_path / "b.h5", records) as builder:
        builder.append(*records.part(0, 1), "")
        with pytest.raises(StoreError, match="all records have a split or none"):
            builder.append(*records.part(1, 2), "train")
        builder.append([], {"label": [], "key": []}, "")
        assert builder.commit().splits == ()


def test_no_records(tmp_path: Path) -> None:
    with begin(tmp_path / "x.h5", make_records()) as builder, pytest.raises(StoreError, match="no records"):
        builder.commit()
    assert listing(tmp_path) == set()


def test_commit_and_abort_once(tmp_path: Path) -> None:
    records = make_records()
    with begin(tmp_path / "x.h5", records) as builder:
        append(builder, records)
        builder.commit()
        with pytest.raises(StoreError, match="committed or aborted"):
            builder.commit()
        builder.abort()
    assert_holds(open_store(tmp_path / "x.h5"), records)
    with pytest.raises(ValueError, match="stop"):
        interrupt_write(tmp_path / "y.h5", records, ValueError("stop"))
    assert listing(tmp_path) == {"x.h5"}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("shard_size", [None, 100])
def test_duplicate_keys(tmp_path: Path, suffix: str, shard_size: int | None) -> None:
    records = make_records("uint8")
    keys = [*records.values["key"][:6], "caf\udce9.JPEG"]
    records = Records("uint8", records.columns, records.images, {**records.values, "key": keys}, records.splits)
    with pytest.raises(StoreError, match=r"records 2 and 6 have the same key 'caf\\+udce9.JPEG'"):
        write(tmp_path / f"x{suffix}", records, shard_size=shard_size)
    assert listing(tmp_path) == set()


@given(
    keys=st.lists(st.binary(max_size=2), min_size=1, max_size=40),
    spread=st.sampled_from([1, 2, 5, 2**64 - 1]),
    at_once=st.sampled_from([1, 3, 100]),
)
def test_duplicate_keys_are_found_whatever_the_hashes(keys: list[bytes], spread: int, at_once: int) -> None:
    """With few buckets or many, with hashes that collide or do not: exactly when there are two of a kind."""
    hashes = np.array([hash(k) % spread * (2**64 // spread) % 2**64 for k in keys], np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_keys, "_KEYS_AT_ONCE", at_once)
        if len(set(keys)) == len(keys):
            store_keys.refuse_duplicates(hashes, keys.__getitem__)
            return
        with pytest.raises(StoreError, match="have the same key") as raised:
            store_keys.refuse_duplicates(hashes, keys.__getitem__)
    first, second = map(int, re.findall(r"\d+", str(raised.value))[:2])
    assert first < second
    assert keys[first] == keys[second]


@given(values=st.lists(st.binary(max_size=9), max_size=30), cut=st.tuples(st.integers(0, 30), st.integers(0, 30)))
def test_a_range_of_a_spool_is_a_column_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, values: list[bytes], cut: tuple[int, int]
) -> None:
    directory = tmp_path_factory.mktemp("spool")
    start, stop = (min(n, len(values)) for n in sorted(cut))
    column = Column("key", "ragged", "uint8", type="text")
    spools = [ColumnSpool(column, directory) for _ in range(2)]
    for spool, part in zip(spools, (values, values[start:stop]), strict=True):
        for value in part:
            spool.append(spool.convert_values([value], 1), 1)
    whole, alone = spools
    some, all_of_it = whole.map_values(start, stop), alone.map_values(0, stop - start)
    assert isinstance(some, Ragged)
    assert isinstance(all_of_it, Ragged)
    assert whole.describe_values(start, stop, some) == alone.describe_values(0, stop - start, all_of_it)
    for spool in spools:
        spool.close()
    assert [bytes(v) for v in some] == values[start:stop]
    assert listing(directory) == set()


# Nothing disturbed is published, and nothing is left

DISTURBED = "does not hold what was written"


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("shard_size", [None, 3000])
@pytest.mark.parametrize("name", ["label", "key", "checksum", "keyhash"])
def test_a_disturbed_spool_is_never_published(tmp_path: Path, suffix: str, shard_size: int | None, name: str) -> None:
    """As a C library does that prints to a descriptor which is the spool's."""
    records = make_records()
    with begin(tmp_path / f"x{suffix}", records, shard_size=shard_size) as builder:
        append(builder, records)
        file = builder._spools[name]._data.file
        file.flush()
        os.pwrite(file.fileno(), b"warning", 3)
        # A shard is read back before the spools are looked at.
        with pytest.raises(StoreError, match=f"{name}.*{DISTURBED}|record 0 .* reads back differently"):
            builder.commit()
    assert listing(tmp_path) == set()


@pytest.mark.parametrize("suffix", [".h5", ".pth"])
def test_disturbed_offsets_of_the_images(tmp_path: Path, suffix: str) -> None:
    records = make_records()
    with begin(tmp_path / f"x{suffix}", records) as builder:
        append(builder, records)
        writer: Any = builder._files.list_writers()[0]
        file = writer._ends.file
        file.flush()
        os.ftruncate(file.fileno(), 8)
        with pytest.raises(StoreError, match="was changed by somebody else"):
            builder.commit()
    assert listing(tmp_path) == set()


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_file_takes_the_place_of_a_closed_standard_stream(tmp_path: Path, suffix: str) -> None:
    program = (
        "import os, sys; from pathlib import Path; from packstore.testing.records import *\n"
        "from packstore.stores import open_store\n"
        "records, path = make_records(), Path(sys.argv[1])\n"
        "write(path.with_name('first' + path.suffix), records)\n"  # imports
        "for fd in range(3): os.close(fd)\n"
        "builder = begin(path, records); append(builder, records)\n"
        "taken = [fd for fd in range(3) if os.path.exists(f'/proc/self/fd/{fd}')]\n"
        "builder.commit()\n"
        "os._exit(10 + len(taken))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program, tmp_path / f"x{suffix}"], cwd=root, check=False)
    assert done.returncode == 10
    assert_holds(open_store(tmp_path / f"x{suffix}"), make_records())


FULL_DISK = """
import resource, sys
from pathlib import Path
from packstore.core.errors import DestinationError
from packstore.testing.records import begin, make_records
path, shard_size = Path(sys.argv[1]), int(sys.argv[2]) or None
failed = 0
for limit in (1000, 4096, 9000, 12288, 20000, 40000, 70000, 100000, 150000, 200000, 250000, 299999, 300500, 310000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for batch in (50, 3000):
        try:
            with begin(path, make_records(), format=sys.argv[3], shard_size=shard_size) as builder:
                for start in range(0, 3000, batch):
                    keys = [f"{i:0100d}" for i in range(start, start + batch)]
                    builder.append([b"0123456789"] * batch, {"label": [0] * batch, "key": keys}, "")
                builder.commit()
        except DestinationError as error:
            failed += 1
            assert str(path) in str(error) and "\\n" not in str(error) and "\\t" not in str(error), error
            assert "File too large: the limit is" in str(error) and "(ulimit -f); raise it" in str(error), error
            assert list(path.parent.iterdir()) == [], (limit, batch)
        else:
            path.rename(path.parent.parent / f"done-{limit}-{batch}")
print(failed)
"""


@pytest.mark.slow
@pytest.mark.parametrize("shard_size", [0, 20_000])
@pytest.mark.parametrize(("suffix", "format"), [(".lmdb", "lmdb"), (".h5", "hdf5"), (".pth", "pth")])
def test_writes_that_fail_anywhere_leave_nothing(tmp_path: Path, suffix: str, format: str, shard_size: int) -> None:
    """A limit to the size of a file makes writes fail as a full disk does: buffered ones too, which fail at a close.

    With development mode nothing that fails when it is collected goes unseen."""
    (tmp_path / "in").mkdir()
    arguments = [str(tmp_path / "in" / f"x{suffix}"), str(shard_size), format]
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", FULL_DISK, *arguments],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert int(done.stdout) >= 10


def test_discarding_what_was_never_made_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(DestinationError, match=r"cannot write .*x\.h5: Read-only file system"):
        begin(tmp_path / "x.h5", make_records())
    assert caplog.text == ""


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("shard_size", [None, 3000])
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("environment", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_paths_that_are_not_utf8(
    tmp_path: Path, suffix: str, shard_size: int | None, environment: dict[str, str]
) -> None:
    program = (
        "import os, sys; from pathlib import Path; from packstore.testing.records import *\n"
        "from packstore.stores import open_store\n"
        f"records, path, n = make_records(), Path(os.fsdecode({os.fsencode(tmp_path)!r})), {shard_size}\n"
        f"for name in (b'q\\xff{suffix}', b'\\xc3\\xbc{suffix}'):\n"
        "    write(path / os.fsdecode(name), records, shard_size=n)\n"
        "    assert_holds(open_store(path / os.fsdecode(name)), records)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, env=os.environ | environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {os.fsencode(p.name) for p in tmp_path.iterdir()} == {
        name + suffix.encode() for name in (b"q\xff", "ü".encode())
    }
