"""CIFAR-10 and CIFAR-100 in all published layouts: equal samples from each, and nothing executed from a pickle."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from packstore.sources import Source, open_source
from packstore.testing import SourceSuite
from tests.internals import (
    Sample,
    SourceError,
    inflating,
    parse_dict,
    published,
    stored,
)
from tests.makers.annotated import fill
from tests.makers.sources import refused

CIFAR10 = [b"airplane", b"automobile", b"bird", b"cat", b"deer", b"dog", b"frog", b"horse", b"ship", b"truck"]
FINE = [b"fine %d" % number for number in range(100)]
COARSE = [b"coarse %d" % number for number in range(20)]
ROWS = 7


def python2(value: Any) -> bytes:
    """The body of a pickle as Python 2's cPickle wrote the published files, protocol 2: byte strings, and arrays
    through numpy.core.multiarray."""
    if isinstance(value, dict):
        return b"}(" + b"".join(python2(k) + python2(v) for k, v in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(python2, value)) + b"e"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    dtype = b"cnumpy\ndtype\n" + python2(value.dtype.str[1:].encode()) + b"K\0K\1\x87R"
    dtype += b"(K\3" + python2(value.dtype.str[:1].encode()) + b"NNN" + b"J\xff\xff\xff\xff" * 2 + b"K\0tb"
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\1b\x87R"
    shape = b"(" + b"".join(map(python2, value.shape)) + b"t"
    return made + b"(K\1" + shape + dtype + b"\x89" + python2(value.tobytes()) + b"tb"


def dump_python2(value: dict[bytes, Any]) -> bytes:
    return b"\x80\2" + python2(value) + b"."


DUMPS: dict[str, Callable[[dict[bytes, Any]], bytes]] = {
    "python2": dump_python2,
    **{f"protocol {n}": lambda value, n=n: pickle.dumps(value, protocol=n) for n in (2, 3, 4, 5)},
    "text keys": lambda value: pickle.dumps({key.decode(): item for key, item in value.items()}, protocol=4),
}


def batches(kind: str, rows: int = ROWS) -> list[tuple[str, NDArray[np.uint8], NDArray[np.uint8]]]:
    """(name, planes ``(rows, 3072)``, labels ``(rows, columns)``), the same at each call."""
    rng = np.random.default_rng(1)
    names = [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"] if kind == "cifar10" else ["train", "test"]
    limits = (10,) if kind == "cifar10" else (100, 20)
    return [
        (
            name,
            rng.integers(0, 256, (rows, 3072), np.uint8),
            np.stack([rng.integers(0, limit, rows, np.uint8) for limit in limits], 1),
        )
        for name in names
    ]


def python_files(
    kind: str, dump: Callable[[dict[bytes, Any]], bytes] = dump_python2, rows: int = ROWS
) -> dict[str, bytes]:
    keys = (b"labels",) if kind == "cifar10" else (b"fine_labels", b"coarse_labels")
    files = {
        name: dump(
            {
                b"batch_label": name.encode(),
                **{key: [int(label) for label in labels[:, c]] for c, key in enumerate(keys)},
                b"data": pixels,
                b"filenames": [b"%d.png" % row for row in range(rows)],
            }
        )
        for name, pixels, labels in batches(kind, rows)
    }
    if kind == "cifar10":
        return {
            "batches.meta": dump({b"num_cases_per_batch": rows, b"label_names": CIFAR10, b"num_vis": 3072}),
            **files,
        }
    return {"file.txt~": b"", "meta": dump({b"fine_label_names": FINE, b"coarse_label_names": COARSE}), **files}


def binary_files(kind: str, rows: int = ROWS) -> dict[str, bytes]:
    files = {
        f"{name}.bin": np.concatenate([labels[:, ::-1], pixels], axis=1).tobytes()
        for name, pixels, labels in batches(kind, rows)
    }
    if kind == "cifar10":
        return {"readme.html": b"<html>", "batches.meta.txt": b"\n".join(CIFAR10) + b"\n\n", **files}
    return {"fine_label_names.txt": b"\n".join(FINE), "coarse_label_names.txt": b"\r\n".join(COARSE) + b"\n", **files}


def files_of(kind: str, binary: bool, rows: int = ROWS) -> dict[str, bytes]:
    return binary_files(kind, rows) if binary else python_files(kind, rows=rows)


DIRECTORIES = {
    (kind, binary): f"cifar-{kind[5:]}-" + (last if binary else first)
    for kind, first, last in (("cifar10", "batches-py", "batches-bin"), ("cifar100", "python", "binary"))
    for binary in (False, True)
}

ARCHIVES = {
    (kind, binary): f"cifar-{kind[5:]}-{'binary' if binary else 'python'}.tar.gz" for kind, binary in DIRECTORIES
}


def make(parent: Path, kind: str, binary: bool = False, files: dict[str, bytes] | None = None) -> Path:
    """The directory of a layout below ``parent``."""
    return fill(parent / DIRECTORIES[kind, binary], files or files_of(kind, binary))


def pack(directory: Path, path: Path) -> Path:
    """The ``.tar.gz`` of a directory; the published ones have their members in no order."""
    with tarfile.open(path, "w:gz") as tar:
        tar.add(directory, directory.name, recursive=False)
        for name in sorted(os.listdir(directory), key=lambda name: name[::-1]):
            tar.add(directory / name, f"{directory.name}/{name}")
    return path


def contents(source: Source) -> list[tuple[Any, ...]]:
    out = []
    for entry in source.entries():
        sample = source.read(entry)
        assert isinstance(sample, Sample)
        image = np.asarray(sample.image)
        out.append((entry.key, entry.split, (*sample.values.values(),), entry.size_bytes, image.tobytes()))
    return out


def expected(kind: str) -> list[tuple[Any, ...]]:
    """What every layout gives, worked out from the published description alone."""
    out: list[tuple[Any, ...]] = []
    number = {"train": 0, "test": 0}
    for name, pixels, labels in batches(kind):
        split = "test" if "test" in name else "train"
        for row in range(ROWS):
            image = np.stack([pixels[row, 1024 * c : 1024 * (c + 1)].reshape(32, 32) for c in range(3)], -1)
            key = f"{split}/{number[split]:05d}"
            out.append((key, split, tuple(int(v) for v in labels[row]), 3072, image.tobytes()))
            number[split] += 1
    return out


def failure(path: Path, kind: str | None = None) -> str:
    caught = refused(SourceError, path, kind=kind)
    return str(caught)


class TestCifar10(SourceSuite):
    kind = "cifar10"
    binary = False
    undecodable_keys = False
    bytes_per_sample = 250  # the labels of a batch, as Python's integers

    @pytest.fixture(autouse=True)
    def small_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stored, "_BLOCK_BYTES", 2 * 3072)
        monkeypatch.setattr(stored, "_KEPT_BYTES", 3 * 2 * 3072)

    def make(self, folder: Path, samples: int) -> Path:
        rows = -(-samples // len(batches(self.kind, 1)))
        return make(folder, self.kind, self.binary, files_of(self.kind, self.binary, rows))

    def change(self, path: Path) -> None:
        data = bytearray((path / "test_batch").read_bytes())
        data[len(data) // 2] ^= 1
        (path / "test_batch").write_bytes(data)


class TestCifar100Archive(TestCifar10):
    kind = "cifar100"
    binary = True

    def make(self, folder: Path, samples: int) -> Path:
        return pack(super().make(folder / "unpacked", samples), folder / "cifar.tar.gz")

    def change(self, path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[:4] + b"\1\2\3\4" + data[8:])  # the time at which it was compressed


@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("where", ["directory", "parent", "archive", "archive's parent", "another name"])
def test_every_layout_gives_the_same(tmp_path: Path, kind: str, binary: bool, where: str) -> None:
    path = make(tmp_path / "x", kind, binary)
    if where == "parent":
        path = path.parent
    elif where == "archive":
        path = pack(path, tmp_path / "some.tgz")
    elif where == "archive's parent":
        (tmp_path / "download").mkdir()
        path = pack(path, tmp_path / "download" / ARCHIVES[kind, binary]).parent
    elif where == "another name":
        path = path.rename(tmp_path / "renamed")
    source = open_source(path)
    assert source.kind == kind
    assert contents(source) == expected(kind)
    survey = source.survey()
    train = 5 * ROWS if kind == "cifar10" else ROWS
    assert list(survey.splits.items()) == [("train", train), ("test", ROWS)]
    assert (survey.encoding, survey.shape, survey.store) == ("uint8", (32, 32, 3), None)
    assert survey.size_bytes == survey.records * 3072
    assert survey.size_counts == {3072: survey.records}
    assert survey.key_bytes == sum(len(entry.key) for entry in source.entries())
    columns = {column.name: column.classes for column in survey.columns}
    if kind == "cifar10":
        assert columns == {"label": tuple(name.decode() for name in CIFAR10)}
    else:
        assert columns == {
            "label": tuple(name.decode() for name in FINE),
            "coarse_label": tuple(name.decode() for name in COARSE),
        }
    assert [e.key for e in source.entries("test")] == [f"test/{row:05d}" for row in range(ROWS)]
    assert dict(source.survey("test").splits) == {"test": ROWS}
    source.close()
    source.close()


@pytest.mark.parametrize("dump", DUMPS.values(), ids=DUMPS)
@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
def test_pickles_of_all_pythons(tmp_path: Path, kind: str, dump: Callable[[dict[bytes, Any]], bytes]) -> None:
    assert contents(open_source(make(tmp_path, kind, files=python_files(kind, dump)))) == expected(kind)


def test_images_are_rgb_arrays_nobody_can_write_to(tmp_path: Path) -> None:
    source = open_source(make(tmp_path, "cifar10"))
    image = source.image(next(source.entries()))
    assert isinstance(image, np.ndarray)
    assert (image.dtype, image.shape, image.flags.c_contiguous) == (np.uint8, (32, 32, 3), True)
    with pytest.raises(ValueError, match="read-only"):
        image[0] = 0


def test_memory_is_bounded_and_any_order_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_BLOCK_BYTES", 3 * 3072)
    monkeypatch.setattr(stored, "_KEPT_BYTES", 2 * 3 * 3072)
    source = open_source(pack(make(tmp_path, "cifar10"), tmp_path / "c.tar.gz"))
    assert isinstance(source, published.CifarSource)
    wanted = expected("cifar10")
    entries = list(source.entries())
    for index in np.random.default_rng(0).permutation(len(entries)):
        image = source.image(entries[index])
        assert isinstance(image, np.ndarray)
        assert image.tobytes() == wanted[index][-1]
        assert len(source._blocks._open) <= 2
        assert source._blocks._kept_bytes <= 4 * 3 * 3072  # at least two blocks a column


def test_which_one_is_meant(tmp_path: Path) -> None:
    directory = make(tmp_path, "cifar10")
    pack(directory, tmp_path / "cifar-10-python.tar.gz")
    assert contents(open_source(tmp_path)) == expected("cifar10")  # the download beside what was unpacked from it
    make(tmp_path, "cifar100", True)
    text = failure(tmp_path)
    assert "holds several of CIFAR. Answers: " in text
    assert open_source(tmp_path, kind="cifar100").kind == "cifar100"
    assert open_source(tmp_path, kind="cifar10").kind == "cifar10"
    make(tmp_path, "cifar10", True)
    assert "holds several of CIFAR" in failure(tmp_path, "cifar10")


@pytest.mark.slow
def test_a_forced_kind_that_is_not_there(tmp_path: Path) -> None:
    directory = make(tmp_path, "cifar10")
    text = failure(directory, "cifar100")
    assert "is not cifar100: cifar-100-python/ or cifar-100-binary/" in text
    (tmp_path / "a.txt").write_text("text")
    assert "is not cifar10" in failure(tmp_path / "a.txt", "cifar10")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("archive", [False, True])
def test_missing_files_are_named(tmp_path: Path, kind: str, binary: bool, archive: bool) -> None:
    for name in binary_files(kind) if binary else python_files(kind):
        if name in ("readme.html", "file.txt~"):
            continue
        directory = make(tmp_path / name, kind, binary)
        (directory / name).unlink()
        text = failure(pack(directory, tmp_path / name / "c.tar.gz") if archive else directory)
        assert f"is {kind} without {name}" in text


def test_labels_out_of_range_are_named_with_their_row(tmp_path: Path) -> None:
    rows = bytearray(binary_files("cifar10")["data_batch_3.bin"])
    rows[2 * 3073] = 10
    high = {b"data": zeros(3), b"labels": [0, 9, 10]}
    low = {b"data": zeros(3), b"fine_labels": [0, 1, 1], b"coarse_labels": [0, 1, -1]}
    for kind, binary, name, content, said in (
        ("cifar10", True, "data_batch_3.bin", bytes(rows), "label 10 is out of range from 0 to 9"),
        ("cifar10", False, "data_batch_3", dump_python2(high), "label 10 is out of range from 0 to 9"),
        ("cifar100", False, "test", dump_python2(low), "coarse_label -1 is out of range"),
    ):
        text = failure(make(tmp_path / f"{kind} {name}", kind, binary, {**files_of(kind, binary), name: content}))
        assert name in text
        assert f"row 2: {said}" in text


def test_a_binary_file_that_is_cut_off(tmp_path: Path) -> None:
    files = binary_files("cifar10")
    files["test_batch.bin"] = files["test_batch.bin"][:-1]
    text = failure(make(tmp_path, "cifar10", True, files))
    assert "21510 bytes are not whole rows of 3073: it is cut off" in text


def test_no_rows_at_all(tmp_path: Path) -> None:
    files = {name: b"" if name.endswith(".bin") else data for name, data in binary_files("cifar10").items()}
    assert "holds no samples" in failure(make(tmp_path, "cifar10", True, files))


def zeros(rows: int = 2) -> NDArray[np.uint8]:
    return np.zeros((rows, 3072), np.uint8)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({b"labels": [1, 2]}, "NoneType, expected an array"),
        ({b"data": zeros(), b"labels": [1]}, "1 labels for 2 images"),
        ({b"data": zeros(), b"labels": np.array([0.5, 1])}, "something else instead of whole numbers"),
        ({b"data": zeros(), b"labels": None}, "NoneType, expected an array"),
        ({b"data": zeros(), b"labels": [1, b"2"]}, "list, expected an array or a list of integers"),
        ({b"data": zeros(), b"labels": [1, 2**70]}, "an integer beyond 64 bits"),
        ({b"data": zeros().reshape(2, 3, 32, 32), b"labels": [1, 2]}, "expected uint8 (rows, 3072)"),
        ({b"data": zeros().astype(np.int64), b"labels": [1, 2]}, "expected uint8 (rows, 3072)"),
        ({b"data": zeros().astype(np.float32), b"labels": [1, 2]}, "an array of dtype 'f4'"),
        ({b"data": zeros().astype(object), b"labels": [1, 2]}, "an array of dtype 'O8'"),
        ({b"data": np.zeros(2, [("a", "u1")]), b"labels": [1, 2]}, "an array of dtype 'V1'"),
        ({b"data": b"\0" * 6144, b"labels": [1, 2]}, "bytes, expected an array"),
    ],
)
def test_batches_of_wrong_shapes_and_types(tmp_path: Path, batch: dict[bytes, Any], expected: str) -> None:
    files = python_files("cifar10")
    files["data_batch_2"] = pickle.dumps(batch, protocol=2)
    text = failure(make(tmp_path, "cifar10", files=files))
    assert "data_batch_2 cannot be read" in text
    assert expected in text


def test_labels_may_be_an_array(tmp_path: Path) -> None:
    files = python_files("cifar10")
    pixels, labels = batches("cifar10")[1][1:]
    batch = {b"data": np.asfortranarray(pixels), b"labels": labels[:, 0].astype(">i8")}
    files["data_batch_2"] = pickle.dumps(batch, protocol=2)
    assert contents(open_source(make(tmp_path, "cifar10", files=files))) == expected("cifar10")


class Runs:
    """Pickles as a call of anything."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self.call = (call, args)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def hostile() -> dict[str, bytes]:
    """Pickles that try to do something, as the value of ``data``."""
    touch = "touch /tmp/packstore-was-here"
    protocol_2, far = b"\x80\2}U\4data", b"\x8a\x08\0\0\0\0\0\0\0\x40"
    dtype = b"cnumpy\ndtype\n(U\2u1tR"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85U\1btR"
    return {
        "os.system": pickle.dumps({"data": Runs(os.system, touch)}),
        "eval": pickle.dumps({"data": Runs(eval, "1")}, protocol=0),
        "exec": pickle.dumps({"data": Runs(exec, "1")}, protocol=4),
        "getattr": pickle.dumps({"data": Runs(getattr, "", "__class__")}),
        "codec": pickle.dumps({"data": Runs(__import__("_codecs").encode, "a", "rot13")}),
        "codec of a name": pickle.dumps({"data": Runs(__import__("_codecs").encode, "a", "zip")}),
        "numpy.load": pickle.dumps({"data": Runs(np.load, "/etc/passwd")}),
        "ndarray": protocol_2 + b"cnumpy\nndarray\nK\x01\x85Rs.",
        "dotted": b"\x80\4}\x8c\4data\x8c\5numpy\x8c\x10ndarray.__class__\x93s.",
        "object array": protocol_2 + array + b"(K\1K\1\x85cnumpy\ndtype\n(U\2O8tR\x89]K\1atbs.",
        "huge shape": protocol_2 + array + b"(K\1\x8a\x08" + b"\0" * 7 + b"\x10\x85" + dtype + b"\x89U\1atbs.",
        "negative shape": protocol_2 + array + b"(K\1J\xff\xff\xff\xff\x85" + dtype + b"\x89U\1atbs.",
        "overflowing shape": protocol_2 + array + b"(K\1" + far * 2 + b"\x86" + dtype + b"\x89U\0tbs.",
        "huge item": protocol_2 + array + b"(K\1K\1\x85" + dtype + b"(K\3U\1|NNNJ\0\0\0\x40K\1K\0tb\x89U\1atbs.",
        "subarray dtype": protocol_2 + dtype + b"(K\3U\1|" + dtype + b"NNK\1K\1K\0tbs.",
        "fields dtype": protocol_2 + dtype + b"(K\3U\1|N}}K\1K\1K\0tbs.",
        "dtype of a tuple": protocol_2 + b"cnumpy\ndtype\n((U\2u1K\1ttRs.",
        "change of a function": protocol_2 + b"cnumpy\ndtype\n}U\x0c__defaults__Nsbs.",
        "slots of a function": protocol_2 + b"cnumpy\ndtype\nN}U\5_callcnumpy\nndarray\ns\x86bs.",
        "state of no array": protocol_2 + array + b"K\1bs.",
        "persistent id": b"\x80\2}U\4dataU\1aQs.",
        "extension": b"\x80\2}U\4data\x82\1s.",
        "no dictionary": pickle.dumps([1, 2]),
        "instance": b"(ios\nsystem\n.",
        "unhashable key": b"\x80\2}]K\1s.",
        "stack underflow": b"\x80\2as.",
        "long digits": b"I" + b"9" * 5000 + b"\n.",
        "text": b"<html>not found</html>",
        "empty": b"",
        "cut off": pickle.dumps({"data": zeros()})[:-100],
    }


@pytest.mark.parametrize("name", hostile())
def test_hostile_pickles_do_nothing(tmp_path: Path, name: str) -> None:
    files = python_files("cifar10")
    files["data_batch_4"] = hostile()[name]
    text = failure(make(tmp_path, "cifar10", files=files))
    assert "data_batch_4 cannot be read" in text
    assert not Path("/tmp/packstore-was-here").exists()
    files = python_files("cifar10")  # and nothing in this process was changed by it
    assert contents(open_source(make(tmp_path / "again", "cifar10", files=files))) == expected("cifar10")


def test_a_hostile_meta_file(tmp_path: Path) -> None:
    files = python_files("cifar10")
    files["batches.meta"] = hostile()["os.system"]
    assert "a pickle that asks for posix.system" in failure(make(tmp_path, "cifar10", files=files))
    for names in (None, [1], [b"\xff"]):
        files["batches.meta"] = pickle.dumps({"label_names": names})
        assert "batches.meta: " in failure(make(tmp_path / f"{names}", "cifar10", files=files))
    files["batches.meta"] = pickle.dumps({"label_names": []})
    assert "is out of range from 0 to -1" in failure(make(tmp_path / "none", "cifar10", files=files))


def long_programs() -> dict[str, tuple[bytes, str]]:
    """Programs that call nothing, and yet would take the stack, the memory or for ever."""
    start, text = b"\x80\2}(", b"X" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20)
    encode = b"h\0h\1U\6latin1\x86R"
    return {
        "deep key": (start + b")" + b"\x85" * 1_000_000 + b"K\1u.", "a key of type tuple"),
        "key that doubles": (start + b")" + b"q\0h\0\x86" * 100 + b"K\1u.", "a key of type tuple"),
        "far memo": (b"\x80\2}r" + struct.pack("<I", 1 << 28) + b"0.", "instruction POP 0x30"),
        "deep value": (start + b"U\4data" + b")" + b"\x85" * 100_000 + b"u.", "tuple, expected an array"),
        "deep lists": (start + b"U\4data" + b"]" * 100_000 + b"a" * 99_999 + b"u.", "list, expected an array"),
        "list in itself": (start + b"U\4data]q\0h\0au.", "list, expected an array"),
        "integer key": (
            start + b"\x8b" + struct.pack("<i", 1 << 17) + b"\1" * (1 << 17) + b"K\1u.",
            "instruction LONG4 0x8b",
        ),
        "small integer key": (start + b"\x8a\xff" + b"\1" * 255 + b"K\1u.", "a key of type int"),
        "long key": (
            start + b"T" + struct.pack("<I", 1000) + b"a" * 1000 + b"K\1u.",
            "a key of type bytes, expected a short name",
        ),
        "many objects": (start + b"}" * 3_000_000 + b"u.", "more than 2,000,000 operations"),
        "bytes from one text": (
            b"\x80\2c_codecs\nencode\nq\0" + text + b"q\x010" + encode * 100_000 + b".",
            "instruction POP 0x30",
        ),
        "more bytes than the file": (
            b"\x80\2](c_codecs\nencode\nq\0" + text + b"q\1" + encode * 100_000 + b"e.",
            "makes more bytes than it holds",
        ),
        "claims of 2 GB": (start + b"U\4dataT\xff\xff\xff\x7f", "cut off"),
        "claims of 8 EB": (start + b"U\4data\x8e" + b"\xff" * 7 + b"\x7f", "cut off"),
    }


@pytest.mark.sampled(6, fast=1)
@pytest.mark.parametrize("name", long_programs())
def test_programs_without_end_are_refused_soon(tmp_path: Path, name: str) -> None:
    program, why = long_programs()[name]
    files = python_files("cifar10")
    files["data_batch_4"] = program
    text = failure(make(tmp_path, "cifar10", files=files))
    assert "data_batch_4 cannot be read" in text
    assert why in text


def test_a_far_index_of_the_memo_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        assert parse_dict(b"\x80\2}r" + struct.pack("<I", (1 << 32) - 1) + b".") == {}
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_pickles_say_is_printed_safely(tmp_path: Path) -> None:
    files = python_files("cifar10")
    files["data_batch_4"] = b"\x80\2c\x1b[2J\nx\n."
    assert "asks for \\x1b[2J.x" in failure(make(tmp_path, "cifar10", files=files))


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    directory = make(tmp_path, "cifar10", True)
    os.truncate(directory / "data_batch_2.bin", 1 << 40)
    assert "1099511627776 bytes; at most" in failure(directory)


@pytest.mark.parametrize("keep", [0, 1, 5, 100, 0.5, 0.9, -4, -1])
def test_an_archive_that_is_cut_off(tmp_path: Path, keep: float) -> None:
    path = pack(make(tmp_path, "cifar10"), tmp_path / "c.tar.gz")
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    text = failure(path)
    assert {0: "is an empty file", 1: "nor a source that packstore reads"}.get(
        keep, "the compressed data is cut off"
    ) in text


def test_an_archive_with_a_wrong_checksum(tmp_path: Path) -> None:
    path = pack(make(tmp_path, "cifar10"), tmp_path / "c.tar.gz")
    data = bytearray(path.read_bytes())
    data[-8] ^= 1
    path.write_bytes(data)
    assert "Error -3 while decompressing data: incorrect data check" in failure(path)


@pytest.mark.parametrize(
    "header",
    [
        {"GNU.sparse.map": "abc"},
        {"GNU.sparse.realsize": "q"},
        {"GNU.sparse.size": "q"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "size": "512"},
        {"size": "9" * 400},
        {"size": "-1\x1b[2J"},
        {"mtime": "1e999", "uid": "nan"},
    ],
)
def test_an_archive_with_broken_headers(tmp_path: Path, header: dict[str, str]) -> None:
    directory = make(tmp_path, "cifar10")
    path = tmp_path / "c.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        tar.add(directory / "batches.meta", "cifar-10-batches-py/batches.meta")
        tar.add(directory / "data_batch_1", "cifar-10-batches-py/data_batch_1")
        member = tar.gettarinfo(directory / "data_batch_2", "cifar-10-batches-py/data_batch_2")
        member.pax_headers = header
        tar.addfile(member, io.BytesIO((directory / "data_batch_2").read_bytes()))
    text = failure(path)
    assert text.isprintable()


@pytest.mark.slow
def test_an_archive_of_nothing_but_headers_of_headers(tmp_path: Path) -> None:
    """And a header that asks for more than there is."""
    header = tarfile.TarInfo("././@LongLink")
    header.type = tarfile.GNUTYPE_LONGNAME
    blocks = []
    for header.size in (10, 1 << 40):
        blocks.append(header.tobuf(tarfile.GNU_FORMAT) + b"x" * 512)
    for number, data in enumerate((blocks[0] * 5000, tarfile.TarInfo("a").tobuf() + blocks[0] * 5000, blocks[1])):
        path = tmp_path / f"{number}.tar.gz"
        path.write_bytes(gzip.compress(data))
        assert "is not a readable tar, or is damaged" in failure(path)


def test_a_gzip_file_is_read_in_full_wherever_its_chunks_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that ends where a chunk of the file ends looks to ``tarfile`` like the end of the archive."""
    monkeypatch.setattr(inflating, "_CHUNK", 37)
    assert contents(open_source(pack(make(tmp_path, "cifar10"), tmp_path / "c.tar.gz"))) == expected("cifar10")


def test_an_archive_of_something_else(tmp_path: Path) -> None:
    path = pack(fill(tmp_path / "folder", {f"{n}.txt": b"x" for n in range(100)}), tmp_path / "x.tar.gz")
    assert "holds no images (passed over: 100 not images (.txt))" in failure(path)
    path.write_bytes(gzip.compress(b"not a tar at all" * 100))
    assert "is not a readable tar, or is damaged" in failure(path)


def test_archives_with_odd_members(tmp_path: Path) -> None:
    directory = make(tmp_path, "cifar10")
    path = tmp_path / "c.tar.gz"

    def write(*odd: tarfile.TarInfo) -> Path:
        with tarfile.open(path, "w:gz") as tar:
            for member in odd:
                tar.addfile(member, io.BytesIO())
            for name in os.listdir(directory):
                tar.add(directory / name, f"./cifar-10-batches-py/{name}")
        return path

    link = tarfile.TarInfo("./cifar-10-batches-py/other")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    assert contents(open_source(write(link))) == expected("cifar10")
    link.name = "./cifar-10-batches-py/data_batch_1"
    assert "without files that are there once" in failure(write(link))
    assert "without files that are there once" in failure(write(tarfile.TarInfo("./cifar-10-batches-py/test_batch")))
    outside = tarfile.TarInfo("../cifar-10-batches-py/data_batch_1")
    assert "../cifar-10-batches-py/data_batch_1 leads out of the archive" in failure(write(outside))


def test_a_member_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "_MAX_BYTES", 1000)
    assert "at most 1000 are read" in failure(pack(make(tmp_path, "cifar10"), tmp_path / "c.tar.gz"))


@given(
    parts=st.lists(st.binary(max_size=400), min_size=1, max_size=3),
    seeks=st.lists(st.tuples(st.integers(0, 1300), st.integers(0, 300)), max_size=12),
    padding=st.integers(0, 3),
)
def test_a_gzip_file_reads_alike_everywhere(
    parts: list[bytes], seeks: list[tuple[int, int]], padding: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("gzip") / "x.gz"
    path.write_bytes(b"".join(map(gzip.compress, parts)) + b"\0" * padding)
    whole = b"".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflating, "_CHUNK", 17)
        patch.setattr(inflating, "_STEP", 50)
        with closing(inflating.GzipReader(path)) as reader:
            for position, size in seeks:
                assert reader.seek(position) == min(position, len(whole))
                got = b""
                while len(got) < size and (part := reader.read(size - len(got))):
                    got += part
                assert got == whole[position : position + size]


def test_the_published_layouts_of_real_images(tmp_path: Path) -> None:
    """CIFAR-10 as it is published, python and binary, where the environment says in which folder both lie."""
    root = Path(os.environ.get("PACKSTORE_TEST_CIFAR", ""))
    if not (root / "cifar-10-batches-bin").is_dir():
        pytest.skip("PACKSTORE_TEST_CIFAR names no folder with CIFAR-10 in its published layouts")
    python = open_source(root / "cifar-10-batches-py")
    binary = open_source(root / "cifar-10-batches-bin")
    assert python.survey() == binary.survey()
    assert dict(python.survey().splits) == {"train": 50_000, "test": 10_000}
    entries = list(python.entries())
    assert entries == list(binary.entries())
    for entry in entries[::997]:
        np.testing.assert_array_equal(np.asarray(python.read(entry)), np.asarray(binary.read(entry)))
