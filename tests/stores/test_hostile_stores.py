"""Stores from strangers: whatever lies there, opening it says what is wrong, in bounded time and memory, and runs
nothing. What opens all the same can be read, verified, converted and described without any other error."""

from __future__ import annotations

import copy
import io
import os
import pickle
import random
import shutil
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest

from packstore import PackedDataset, PackedLoader, convert, verify
from packstore.stores import StoreBuilder, open_store
from tests.internals import (
    MAX_JSON_BYTES,
    Column,
    Manifest,
    ManifestError,
    Origin,
    PackstoreError,
    PickleError,
    StoreError,
    hash_lookup3,
    read_manifest,
    unpickle,
)
from tests.makers.command import run
from tests.makers.datasets import make_folder
from tests.makers.fuzz_targets import _repair_manifest, signed
from tests.makers.hostile import LESS_MEMORY, in_child
from tests.makers.hostile_stores import plain_manifest, put_manifest, survives

pytestmark = pytest.mark.slow

SUFFIXES = (".lmdb", ".h5", ".pth")
ENCODINGS = {
    "original": {"encoding": "original"},
    "uint8": {"encoding": "uint8"},
    "float16": {"encoding": "float16", "size": 4},
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store of each format and encoding, and sharded ones, by name: for copying only."""
    root = tmp_path_factory.mktemp("stores")
    source = make_folder(root / "source", splits=("train", "val"), per_class=1, size=None)
    for suffix in SUFFIXES:
        for encoding, options in ENCODINGS.items():
            convert(source, root / f"{encoding}{suffix}", **options)  # type: ignore[arg-type]
        convert(source, root / f"sharded{suffix}", encoding="uint8", shard_size=15_000)
    return root


@pytest.fixture
def store(stores: Path, tmp_path: Path) -> Callable[[str], Path]:
    """``store("uint8.h5")`` is a copy of that store."""

    def copied(name: str) -> Path:
        source, path = stores / name, tmp_path / name
        if path.is_dir():
            shutil.rmtree(path)
        shutil.copytree(source, path) if source.is_dir() else shutil.copy(source, path)
        return path

    return copied


# --- manifests that lie -----------------------------------------------------------------------------------------------

_HUGE = 2**62


def _column(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    return next(c for c in manifest["columns"] if c["name"] == name)  # type: ignore[no-any-return]


def _set(*path: Any) -> Callable[[dict[str, Any]], None]:
    *way, last, value = path

    def change(manifest: dict[str, Any]) -> None:
        place: Any = manifest
        for step in way:
            place = _column(manifest, step[1:]) if isinstance(step, str) and step.startswith("@") else place[step]
        place[last] = value

    return change


def _records(count: Any) -> Callable[[dict[str, Any]], None]:
    """Another number of records, and all that has to go with it."""

    def change(manifest: dict[str, Any]) -> None:
        old = manifest["records"]
        manifest["records"] = count
        manifest["splits"] = []
        for column in manifest["columns"]:
            if column["kind"] == "fixed":
                column["nbytes"] = column["nbytes"] // old * count

    return change


def _tiny_column(manifest: dict[str, Any]) -> None:
    """An array without elements, whose other dimensions overflow any integer."""
    _column(manifest, "label").update(shape=[0] + [2**39] * 7, nbytes=0, classes=None)


LIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "more records": _records(7),
    "fewer records": _records(5),
    "no records": _records(0),
    "ten billion records": _records(10**10),
    "2**62 records": _records(_HUGE),
    "-1 records": _records(-1),
    "half a record": _set("records", 1.5),
    "records not a number": _set("records", float("nan")),
    "records as text": _set("records", "6"),
    "records true": _set("records", True),
    "an enormous shape": _set("@label", "shape", [2**39] * 8),
    "an enormous shape of nothing": _tiny_column,
    "a negative shape": _set("@label", "shape", [-1]),
    "a huge column": _set("@key", "nbytes", _HUGE),
    "a negative column": _set("@key", "nbytes", -1),
    "another dtype": _set("@label", "dtype", "float32"),
    "an object dtype": _set("@label", "dtype", "O"),
    "a ragged label": _set("@label", "kind", "ragged"),
    "a fixed key": _set("@key", "kind", "fixed"),
    "a column that leads out": _set("@label", "name", "../../etc/passwd"),
    "a column with a path": _set("@label", "name", "key/bytes"),
    "a column called manifest": _set("@label", "name", "manifest"),
    "a column that is not there": _set("@label", "name", "other"),
    "a column twice": lambda m: m["columns"].append(copy.deepcopy(m["columns"][1])),
    "no key": lambda m: m["columns"].remove(_column(m, "key")),
    "no checksum": lambda m: m["columns"].remove(_column(m, "checksum")),
    "no image": lambda m: m["columns"].pop(0),
    "ten thousand columns": lambda m: m["columns"].extend(
        {**_column(m, "checksum"), "name": f"c{i}"} for i in range(10_000)
    ),
    "no columns": _set("columns", []),
    "fewer classes": lambda m: _column(m, "label").update(classes=["a"]),
    "a class twice": lambda m: _column(m, "label").update(classes=["a", "a", "b"]),
    "a class that is a number": lambda m: _column(m, "label").update(classes=[1, 2, 3]),
    "splits over each other": _set(
        "splits", [{"name": "a", "start": 0, "stop": 6}, {"name": "b", "start": 3, "stop": 6}]
    ),
    "a split backwards": _set("splits", [{"name": "a", "start": 6, "stop": 0}]),
    "a split beyond the end": _set("splits", [{"name": "a", "start": 0, "stop": _HUGE}]),
    "a split that leads out": _set("splits", [{"name": "../x\x1b[2J", "start": 0, "stop": 6}]),
    "another encoding": _set("encoding", "float32"),
    "another format": _set("format", "lmdb2"),
    "a newer version": _set("format_version", 2**70),
    "version true": _set("format_version", True),
    "no version": _set("format_version", 0),
    "a mean that is none": _set("normalization", {"mean": [float("inf")] * 3, "std": [1, 1, 1]}),
    "a deviation of nothing": _set("normalization", {"mean": [0, 0, 0], "std": [0, 0, 0]}),
    "a table that leads out": _set("shards", {"length": 1, "digest": "0" * 64, "suffix": ".h5/../../x"}),
    "shards of its own": _set("shards", {"length": 1, "digest": "0" * 64, "suffix": ".h5"}),
    "very many shards": _set("shards", {"length": 10**12, "digest": "0" * 64, "suffix": ".h5"}),
    "a digest of records that is none": _set("records_digest", "x" * 32),
    "options that are none": _set("options", {"size": "no size", "resize": -1, "max_side": 2**70, "quality": "x"}),
    "options in depth": _set("options", {"size": [[[]]]}),
    "a name that leads out": _set("origin", "name", "../../x\n"),
    "another field": _set("extra", 1),
    "a field less": lambda m: m.pop("skipped"),
    "many skipped": _set("skipped", [{"key": "k\n\x1b", "reason": "r"}] * 3_000),
}


@pytest.mark.sampled(60)
@pytest.mark.parametrize("name", [*(f"uint8{suffix}" for suffix in SUFFIXES), "sharded.h5"])
@pytest.mark.parametrize("lie", LIES)
def test_manifests_that_lie(lie: str, name: str, store: Callable[[str], Path]) -> None:
    path = store(name)
    manifest = plain_manifest(path)
    LIES[lie](manifest)
    put_manifest(path, signed(manifest))
    survives(path)


HARMLESS = {
    *("a split that leads out", "a name that leads out", "options that are none", "many skipped"),
    "fewer classes",
}


def test_lies_that_are_told_from_the_file_are_refused(store: Callable[[str], Path]) -> None:
    opened, messages = set(), []
    for lie, tell in LIES.items():
        path = store("uint8.pth")
        manifest = plain_manifest(path)
        tell(manifest)
        put_manifest(path, signed(manifest))
        try:
            open_store(path).close()
            opened.add(lie)
        except StoreError as error:
            messages.append(str(error))
    assert opened == HARMLESS
    assert all(message.isprintable() and len(message) < 1000 for message in messages)


@pytest.mark.parametrize("name", [f"{e}{s}" for s in SUFFIXES for e in (*ENCODINGS, "sharded")])
def test_manifests_with_odd_values_anywhere(name: str, store: Callable[[str], Path]) -> None:
    rng = random.Random(name)
    path = store(name)
    text = read_manifest(path).to_json().encode()
    for _ in range(12):
        put_manifest(path, _repair_manifest(_repair_manifest(text, rng), rng))
        survives(path)


JSON = {
    "empty": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a number of a million digits": b'{"format_version":' + b"9" * 1_000_000 + b"}",
    "an enormous exponent": b'{"format_version":1e999999999}',
    "not a number": b'{"format_version":NaN}',
    "UTF-16": '{"format_version":1}'.encode("utf-16"),
    "no UTF-8": b'{"format_version":1,"x":"\xff"}',
    "half a character": b'{"format_version":1,"x":"\\ud800"}',
    "a name twice": b'{"format_version":1,"format_version":1}',
    "very many values": b'{"a":[' + b"1," * 5_000_000 + b"1]}",
    "very many lists": b"[" + b"[]," * 5_000_000 + b"[]]",
}


@pytest.mark.parametrize("what", JSON)
def test_json_that_is_no_manifest(what: str, store: Callable[[str], Path]) -> None:
    with pytest.raises(ManifestError):
        Manifest.from_json(JSON[what])
    path = store("sharded.pth")
    put_manifest(path, JSON[what])
    assert not survives(path)


def test_a_name_twice_is_no_manifest_even_with_its_digest(store: Callable[[str], Path]) -> None:
    text = read_manifest(store("uint8.h5")).to_json()
    with pytest.raises(ManifestError, match="a name appears twice"):
        Manifest.from_json(text.replace('"records":6', '"records":7,"records":6'))


def test_a_manifest_of_gigabytes_is_not_read(store: Callable[[str], Path]) -> None:
    path = store("sharded.lmdb")
    with (path / "manifest.json").open("wb") as file:
        file.truncate(4 << 30)
    code = """
import sys
from packstore.stores import open_store
from packstore.core.errors import StoreError
import packstore.stores.folder
less_memory(400 << 20)
try:
    open_store(sys.argv[1])
except StoreError as error:
    print(error)
"""
    assert f"more than {MAX_JSON_BYTES}" in in_child(LESS_MEMORY + code, path)


# --- what lies in a directory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("what", ["pipe", "device", "directory", "another shard", "link to itself", "store of shards"])
def test_shards_that_are_something_else(what: str, suffix: str, store: Callable[[str], Path]) -> None:
    path = store(f"sharded{suffix}")
    shard = path / f"shard-00000{suffix}"
    shutil.rmtree(shard) if shard.is_dir() else shard.unlink()
    inside = shard
    if suffix == ".lmdb" and what not in ("directory", "store of shards"):
        shard.mkdir()
        inside = shard / "data.mdb"
    if what == "pipe":
        os.mkfifo(inside)
    elif what == "device":
        inside.symlink_to("/dev/zero")
    elif what == "directory":
        shard.mkdir()
    elif what == "another shard":
        inside.symlink_to(sorted(path.glob("shard-*"))[-1])
    elif what == "link to itself":
        inside.symlink_to(inside.name)
    else:
        shard.symlink_to(path)
    with pytest.raises(StoreError):
        open_store(path).read(0)
    report = verify(path)  # neither waits for the pipe nor reads the device for ever
    assert report.problem_count
    assert {problem.shard for problem in report.problems} == {shard.name}


@pytest.mark.parametrize("name", ["manifest.json", "data.mdb"])
def test_directories_with_pipes_and_devices(name: str, tmp_path: Path) -> None:
    for make in (os.mkfifo, lambda p: p.symlink_to("/dev/zero"), lambda p: p.symlink_to(p.name), Path.mkdir):
        path = tmp_path / "x.lmdb"
        path.mkdir()
        make(path / name)
        assert not survives(path)
        shutil.rmtree(path)


# --- .pth -------------------------------------------------------------------------------------------------------------


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch hacked",)


PICKLES: dict[str, bytes] = {
    "a call of os.system": pickle.dumps({"manifest": Evil()}, 2),
    "a call, by name of the stack": pickle.dumps({"manifest": Evil()}, 4),
    "a call of eval": b"c__builtin__\neval\n(X\x10\x00\x00\x00open('x','w')...tR.",
    "an instance": b"(S'touch hacked'\nios\nsystem\n.",
    "an object": b"(cos\nsystem\nX\x05\x00\x00\x00touchoR.",
    "a state": b"cos\nsystem\n}X\x01\x00\x00\x00aK\x01sb.",
    "an extension": b"\x82\x01.",
    "a persistent name": b"Pname\n.",
    "protocol 255": b"\x80\xff}.",
    "a memo of four billion": b"\x80\x02}r\xff\xff\xff\xff.",
    "text of four gigabytes": b"\x80\x02X\xff\xff\xff\xff.",
    "text of exabytes": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "a number of gigabytes": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "deep tuples": b"\x80\x02" + b"N" + b"\x85" * 150_000 + b".",
    "deep dicts": b"\x80\x02" + b"}X\x01\x00\x00\x00a" * 50_000 + b"}" + b"s" * 50_000 + b".",
    "very many values": b"\x80\x02(" + b"N" * 300_000 + b"t.",
    "a set in a frame": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff\x8f.",
    "nothing": b"",
    "no end": b"\x80\x02}",
    "an empty stack": b"\x80\x02.",
    "a tensor that calls": pickle.dumps({"image": Evil(), "manifest": "{}"}, 2),
    "a call of torch's": b"ctorch.storage\n_load_from_bytes\n(U\x01xtR.",
}
# A few large tuples, used over and over as shape and stride.
_LARGE = b"(" + b"K\x01" * 60_000 + b"tq\x00"
PICKLES["large tuples, over and over"] = (
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x01("
    b"(X\x07\x00\x00\x00storagectorch\nByteStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQq\x02"
    b"K\x00" + _LARGE + b"h\x00\x89NtRq\x03" + b"h\x01(h\x02K\x00h\x00h\x00\x89NtR" * 9_000 + b"."
)


@pytest.mark.parametrize("what", PICKLES)
def test_pickles_that_are_programs(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with suppress(PickleError):  # or it describes something, and nothing is run
        unpickle(PICKLES[what])
    with zipfile.ZipFile("x.pth", "w") as archive:
        archive.writestr("archive/data.pkl", PICKLES[what])
        archive.writestr("archive/version", "3\n")
    with pytest.raises(StoreError):
        open_store("x.pth")
    with pytest.raises(PackstoreError):
        convert("x.pth", "out.h5")
    assert {p.name for p in tmp_path.iterdir()} == {"x.pth"}


def _zip(entries: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in entries:
            info = zipfile.ZipInfo(name)
            padding = -(buffer.tell() + 30 + len(name) + 4) % 64  # as torch does
            info.extra = b"FB" + padding.to_bytes(2, "little") + bytes(padding)
            archive.writestr(info, data, method)
    return buffer.getvalue()


def _entries(path: Path) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        return [(info.filename, archive.read(info)) for info in archive.infolist()]


def _patched(data: bytes, name: str, where: int, value: bytes, *, central: bool = True) -> bytes:
    """The header of an entry with some of its bytes exchanged."""
    out = bytearray(data)
    signature, size = (b"PK\1\2", 46) if central else (b"PK\3\4", 30)
    at = -1
    while (at := out.find(signature, at + 1)) >= 0:
        if out[at + size :].startswith(name.encode()):
            out[at + where : at + where + len(value)] = value
    return bytes(out)


ZIPS: dict[str, Callable[[list[tuple[str, bytes]]], bytes]] = {
    "compressed": lambda e: _zip(e, zipfile.ZIP_DEFLATED),
    "one name twice": lambda e: _zip([*e[:-1], e[0], e[-1]]),
    "two pickles": lambda e: _zip([*e, ("other/data.pkl", b"}.")]),
    "no pickle": lambda e: _zip([x for x in e if not x[0].endswith("data.pkl")]),
    "a storage less": lambda e: _zip([x for x in e if not x[0].endswith("data/1")]),
    "a storage cut off": lambda e: _zip([(n, d[:-8] if n.endswith("data/0") else d) for n, d in e]),
    "big-endian": lambda e: _zip([(n, b"big" if n.endswith("byteorder") else d) for n, d in e]),
    "another name in the entry": lambda e: _patched(_zip(e), "archive/data/0", 30, b"archive/data/9", central=False),
    "compressed says the entry": lambda e: _patched(_zip(e), "archive/data/0", 8, b"\x08\x00", central=False),
    "encrypted": lambda e: _patched(_zip(e), "archive/data/0", 8, b"\x01\x00"),
    "over another entry": lambda e: _patched(_zip(e), "archive/data/1", 42, b"\0\0\0\0"),
    "beyond the end": lambda e: _patched(_zip(e), "archive/data/1", 42, b"\xf0\xff\xff\x7f"),
    "larger than the file": lambda e: _patched(_zip(e), "archive/data/0", 20, b"\xf0\xff\xff\x7f" * 2),
    "sizes that differ": lambda e: _patched(_zip(e), "archive/data/0", 24, b"\x01\x00\x00\x00"),
    "zip64 without its field": lambda e: _patched(_zip(e), "archive/data/0", 20, b"\xff" * 8),
    "very many entries": lambda e: _zip([*e, *((f"archive/x{i}", b"") for i in range(11_000))]),
    "no directory": lambda e: _zip(e)[:-22],
    "a directory of gigabytes": lambda e: _zip(e)[:-10] + b"\xff\xff\xff\x7f" + _zip(e)[-6:],
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("what", ZIPS)
def test_zips_that_are_not_as_torch_writes_them(what: str, store: Callable[[str], Path]) -> None:
    path = store("original.pth")
    path.write_bytes(_zip(_entries(path)))
    assert open_store(path)
    path.write_bytes(ZIPS[what](_entries(path)))
    with pytest.raises(StoreError):
        open_store(path)


# --- HDF5 -------------------------------------------------------------------------------------------------------------


def test_reading_hdf5_does_without_the_library(store: Callable[[str], Path]) -> None:
    code = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        assert name.split(".")[0] != "h5py", name
sys.meta_path.insert(0, Refused())
from packstore import verify
for path in sys.argv[1:]:
    print(verify(path, decode=True).ok)
"""
    assert in_child(code, store("original.h5"), store("sharded.h5")).split() == ["True"] * 2


@pytest.mark.parametrize("count", [1, 100, 3_000])
@pytest.mark.parametrize("columns", [0, 3, 60, 400])
def test_manifests_and_columns_of_any_number(count: int, columns: int, tmp_path: Path) -> None:
    """More than eight links, and attributes of 64 KiB, lie in heaps of HDF5, which are read without it."""
    path = tmp_path / "x.h5"
    classes = tuple(f"a class with quite a long name, number {i}" for i in range(count))
    extra = [Column(f"column_{i}", "fixed", "int64") for i in range(columns)]
    base = [
        Column("image", "ragged", "uint8", type="image"),
        Column("label", "fixed", "int64", classes=classes, type="label"),
    ]
    all_columns = [*base, Column("key", "ragged", "uint8", type="text"), Column("checksum", "fixed", "uint64"), *extra]
    with StoreBuilder(path, Manifest("hdf5", "original", 0, tuple(all_columns), Origin("flat", "x"))) as builder:
        values = {c.name: np.array([int(c.name[7:])]) for c in extra}
        builder.append([b"x"], {"label": np.array([0]), "key": [b"k"], **values}, "train")
        manifest = builder.commit()
    with open_store(path) as reader, h5py.File(path) as file:
        assert reader.manifest == manifest
        assert reader.manifest.to_json().encode() == file.attrs["manifest"]
        for column in extra:
            assert reader.fixed_column(column.name).tolist() == file[column.name][:].tolist()


ATTRIBUTES: dict[str, Callable[[Any], object]] = {
    "variable-length text": lambda f: f.attrs.create("manifest", "text", dtype=h5py.string_dtype()),
    "array of texts": lambda f: f.attrs.create("manifest", np.array([b"a", b"b"])),
    "number": lambda f: f.attrs.create("manifest", 7),
    "compound": lambda f: f.attrs.create("manifest", np.zeros((), [("a", "i4"), ("b", "S9")])),
    "reference": lambda f: f.attrs.create("manifest", f.ref, dtype=h5py.ref_dtype),
    "empty": lambda f: f.attrs.create("manifest", h5py.Empty("S4")),
}


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_hdf5_attributes_of_other_types(kind: str, store: Callable[[str], Path]) -> None:
    path = store("uint8.h5")
    with h5py.File(path, "r+", libver=("v108", "v108")) as file:
        del file.attrs["manifest"]
        ATTRIBUTES[kind](file)
    with pytest.raises(StoreError):
        open_store(path)


def _named(file: Any, data: Any) -> Any:
    file["t"] = data.dtype
    return file["t"]


def _virtual(file: Any, data: Any) -> None:
    layout = h5py.VirtualLayout(data.shape, data.dtype)
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", data.shape)
    file.create_virtual_dataset("label", layout)


DATASETS: dict[str, Callable[[Any, Any], object]] = {
    "virtual": _virtual,
    "chunked": lambda f, data: f.create_dataset("label", data=data, chunks=(2,)),
    "compressed": lambda f, data: f.create_dataset("label", data=data, compression="gzip"),
    "checksummed": lambda f, data: f.create_dataset("label", data=data, fletcher32=True),
    "outside": lambda f, data: f.create_dataset("label", data.shape, data.dtype, external=[("/etc/passwd", 0, 48)]),
    "soft link": lambda f, data: f.__setitem__("label", h5py.SoftLink("/key")),
    "external link": lambda f, data: f.__setitem__("label", h5py.ExternalLink("/etc/passwd", "/x")),
    "a group": lambda f, data: f.create_group("label"),
    "the root itself": lambda f, data: f.__setitem__("label", f["/"]),
    "compound": lambda f, data: f.create_dataset("label", data=np.zeros(len(data), [("a", "i8")])),
    "variable-length": lambda f, data: f.create_dataset("label", data=["x"] * len(data), dtype=h5py.string_dtype()),
    "big-endian": lambda f, data: f.create_dataset("label", data=data.astype(">i8")),
    "an enumeration": lambda f, data: f.create_dataset("label", data=data, dtype=h5py.enum_dtype({"a": 0}, "i8")),
    "a named type": lambda f, data: f.create_dataset("label", data=data, dtype=_named(f, data)),
    "unlimited": lambda f, data: f.create_dataset("label", data=data, maxshape=(None,)),
    "one value": lambda f, data: f.create_dataset("label", data=data[0]),
    "another dtype": lambda f, data: f.create_dataset("label", data=data.astype("i4")),
    "without space": lambda f, data: f.create_dataset("label", data=h5py.Empty("i8")),
}  # fmt: skip


@pytest.mark.parametrize("libver", ["v108", "v110", "latest"])
@pytest.mark.parametrize("what", DATASETS)
def test_hdf5_datasets_of_other_kinds(what: str, libver: str, store: Callable[[str], Path]) -> None:
    path = store("uint8.h5")
    with h5py.File(path, "r+", libver=("v110" if what == "virtual" else libver, "latest")) as file:
        data = file["label"][:]
        del file["label"]
        DATASETS[what](file, data)
    with pytest.raises(StoreError, match=r"label|a dataspace is broken"):
        open_store(path)


def _reseal(data: bytearray, start: int, end: int) -> None:
    data[end : end + 4] = hash_lookup3(bytes(data[start:end])).to_bytes(4, "little")


def test_hdf5_headers_that_go_in_circles(store: Callable[[str], Path]) -> None:
    """A continuation that leads to itself, with a checksum that is right; a superblock that leads anywhere."""
    path = store("original.h5")
    whole = path.read_bytes()
    data = bytearray(whole)
    root = struct.unpack_from("<Q", data, 36)[0]
    at = data.index(b"\x10\x10\0", root)
    begin, size = struct.unpack_from("<QQ", data, at + 4)
    data[begin + 4 : begin + 24] = b"\x10\x10\0\0" + struct.pack("<QQ", begin, size)
    _reseal(data, begin, begin + size - 4)
    path.write_bytes(data)
    with pytest.raises(StoreError, match="does not end"):
        open_store(path)
    for address in (0, 8, 48, len(whole), len(whole) - 3, 2**63, 2**64 - 1):
        data = bytearray(whole)
        data[36:44] = struct.pack("<Q", address)
        _reseal(data, 0, 44)
        path.write_bytes(data)
        if address != root:
            with pytest.raises(StoreError):
                open_store(path)


def test_a_flipped_bit_in_a_header_of_hdf5_is_noticed(store: Callable[[str], Path]) -> None:
    path = store("original.h5")
    whole = path.read_bytes()
    root = struct.unpack_from("<Q", whole, 36)[0]
    for at in (*range(8, 48), *range(root, root + 120)):
        data = bytearray(whole)
        data[at] ^= 4
        path.write_bytes(data)
        with pytest.raises(StoreError):
            open_store(path)


# --- LMDB -------------------------------------------------------------------------------------------------------------


def _lmdb(path: Path, change: Callable[[bytearray], None]) -> None:
    data = bytearray((path / "data.mdb").read_bytes())
    change(data)
    (path / "data.mdb").write_bytes(data)


def _newest_meta(data: bytearray) -> int:
    return max((0, 4096), key=lambda page: struct.unpack_from("<Q", data, page + 144)[0])


def test_an_lmdb_whose_tree_is_a_maze(tmp_path: Path) -> None:
    """A page that is its own child over 32 levels: more ways through it than could ever be walked."""
    path = tmp_path / "x.lmdb"
    columns = [
        Column("image", "ragged", "uint8", type="image"),
        Column("key", "ragged", "uint8", type="text"),
        Column("checksum", "fixed", "uint64"),
    ]
    with StoreBuilder(path, Manifest("lmdb", "original", 0, tuple(columns), Origin("flat", "x"))) as builder:
        builder.append([b"x" * 40] * 3000, {"key": [b"%d" % i for i in range(3000)]}, "")
        builder.commit()

    def change(data: bytearray) -> None:
        meta = _newest_meta(data) + 88
        depth, root = struct.unpack_from("<H", data, meta + 6)[0], struct.unpack_from("<Q", data, meta + 40)[0]
        assert depth == 2
        struct.pack_into("<H", data, meta + 6, 32)
        page = root * 4096
        for pointer in range(page + 16, page + struct.unpack_from("<H", data, page + 12)[0], 2):
            node = page + struct.unpack_from("<H", data, pointer)[0]
            struct.pack_into("<HHH", data, node, root & 0xFFFF, root >> 16, 0)

    _lmdb(path, change)
    with pytest.raises(StoreError):
        open_store(path)
    from tests.internals import Pages

    with (path / "data.mdb").open("rb") as file:
        assert any("twice" in str(item) for item in Pages(file.fileno()).walk_entries())


def test_an_lmdb_that_names_a_page_very_many_times(store: Callable[[str], Path]) -> None:
    """Each of two pages has as many pointers as fit, all to one entry: 2,000 times 2,000 ways into a page. The file
    is said to be as long as that takes, which holes cost nothing."""
    path = store("original.lmdb")

    def page(number: int, child: int) -> bytes:
        count = (4096 - 16 - 8) // 2
        header = struct.pack("<QHHHH", number, 0, 1, 16 + 2 * count, 4088)
        return header + struct.pack("<H", 4088) * count + struct.pack("<HHHH", child, 0, 0, 0)

    def change(data: bytearray) -> None:
        meta = _newest_meta(data)
        last = struct.unpack_from("<Q", data, meta + 136)[0]
        data[(last + 1) * 4096 :] = page(last + 1, last + 2) + page(last + 2, last + 2)
        struct.pack_into("<H", data, meta + 94, 3)
        struct.pack_into("<QQ", data, meta + 128, last + 1, 3000)

    _lmdb(path, change)
    os.truncate(path / "data.mdb", 3001 * 4096)
    from tests.internals import Pages

    tracemalloc.start()
    try:
        with (path / "data.mdb").open("rb") as file:
            assert sum("twice" in str(item) for item in Pages(file.fileno()).walk_entries()) > 2000
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_an_lmdb_with_duplicates_and_databases_in_it(tmp_path: Path) -> None:
    for dupsort in (False, True):
        path = tmp_path / f"{dupsort}.lmdb"
        with lmdb.open(str(path), max_dbs=2, map_size=1 << 20) as env:
            inner = env.open_db(b"manifest", dupsort=dupsort)
            with env.begin(write=True) as txn:
                for i in range(10):
                    txn.put(b"manifest", b"%d" % i, db=inner, dupdata=dupsort)
        with pytest.raises(StoreError):
            open_store(path)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("field", [(0, 4), (4, 2), (6, 2), (8, 8), (16, 8), (24, 8), (32, 8), (40, 8)])
@pytest.mark.parametrize("value", [0, 1, 2, 3, 33, 65_535, 2**31, 2**48, 2**63, 2**64 - 1])
def test_lmdb_headers_that_lie(field: tuple[int, int], value: int, store: Callable[[str], Path]) -> None:
    path = store("uint8.lmdb")
    at, width = field
    _lmdb(
        path,
        lambda data: data.__setitem__(
            slice(_newest_meta(data) + 88 + at, _newest_meta(data) + 88 + at + width),
            (value % 256**width).to_bytes(width, "little"),
        ),
    )
    survives(path)


def test_an_lmdb_that_claims_more_entries_than_it_has_bytes(store: Callable[[str], Path]) -> None:
    path = store("original.lmdb")
    manifest = plain_manifest(path)
    _records(10**10)(manifest)
    put_manifest(path, signed(manifest))
    _lmdb(path, lambda data: struct.pack_into("<Q", data, _newest_meta(data) + 88 + 32, 10**10 + 13))
    with pytest.raises(StoreError, match=r"\d+ entries in \d+ bytes"):
        open_store(path)


# --- columns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["uint8.h5", "sharded.h5"])
@pytest.mark.parametrize(
    "shape", [(-1, -1, 3), (0, 0, 0), (2**31 - 1, 2**31 - 1, 3), (-4, -48, 3), (1, 1, 1), (40, 48, -3)]
)
def test_sizes_of_images_that_lie(shape: tuple[int, ...], name: str, store: Callable[[str], Path]) -> None:
    path = store(name)
    file = path / "shard-00000.h5" if path.is_dir() else path
    with h5py.File(file, "r+", libver=("v108", "v108")) as opened:
        opened["shape"][0] = shape
    with open_store(path) as reader, pytest.raises(StoreError, match="holds"):
        reader.array(0)
    with pytest.raises(PackstoreError):
        PackedDataset(path, split="train")[0]
    with pytest.raises(PackstoreError):
        list(PackedLoader(PackedDataset(path, split="train"), batch_size=2))
    survives(path)


OFFSETS = {
    "backwards": [0, 900, 100, 950, 960, 970],
    "negative": [0, -5, 10, 20, 30, 40],
    "beyond the end": [0, 10, 2**62, 20, 30, 40],
    "over each other": [0, 500, 10, 500, 10, 500],
    "from elsewhere": [7, 10, 20, 30, 40, 50],
}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("column", ["image", "key"])
@pytest.mark.parametrize("what", OFFSETS)
def test_offsets_that_lie(what: str, column: str, suffix: str, store: Callable[[str], Path]) -> None:
    path = store(f"original{suffix}")
    if suffix == ".lmdb" and column == "image":
        pytest.skip("an LMDB keeps images apart: it has no offsets of them")
    with open_store(path) as reader:
        offsets = np.array(reader.ragged_column(column).offsets)
    old = offsets.tobytes()
    offsets[: len(OFFSETS[what])] = OFFSETS[what]
    file = path / "data.mdb" if path.is_dir() else path
    file.write_bytes(file.read_bytes().replace(old, offsets.tobytes()))
    if survives(path):
        assert not verify(path).ok
        assert not verify(path, quick=True).ok


@pytest.mark.parametrize("suffix", [".h5", ".pth"])
def test_offsets_that_begin_elsewhere_are_refused_at_once(suffix: str, store: Callable[[str], Path]) -> None:
    path = store(f"original{suffix}")
    with open_store(path) as reader:
        offsets = np.array(reader.ragged_column("key").offsets)
    old = offsets.tobytes()
    offsets[0] = 7
    path.write_bytes(path.read_bytes().replace(old, offsets.tobytes()))
    with pytest.raises(StoreError, match=r"column 'key' has offsets from 7 to \d+, not from 0 to \d+"):
        open_store(path)


# --- the command line -------------------------------------------------------------------------------------------------


def test_the_command_line_says_it_on_one_line(store: Callable[[str], Path], tmp_path: Path) -> None:
    lying = store("uint8.h5")
    manifest = plain_manifest(lying)
    manifest["records"] = _HUGE
    put_manifest(lying, signed(manifest))
    evil = tmp_path / "x\n\x1b[31m.pth"
    evil.write_bytes(_zip([("archive/data.pkl", PICKLES["a call of os.system"])]))
    for path in (lying, evil):
        for command in (["info"], ["verify"], ["verify", "--quick"], ["convert"]):
            arguments = [*command, path, *([tmp_path / "o.h5"] if command == ["convert"] else [])]
            done = run(*arguments, cwd=tmp_path)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.count("\n") == 1
            assert done.stderr.rstrip("\n").isprintable()
    assert not (tmp_path / "hacked").exists()
