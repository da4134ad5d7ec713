"""RecordIO files: the layout of dmlc and MXNet, and what can be wrong with them.

mxnet does not import beside NumPy 2, so ``tests/corpus/recordio`` was written from its published source
(``dmlc-core/src/recordio.cc``, ``mxnet/recordio.py``, ``tools/im2rec.py``) by :func:`rec` and :func:`faces`:
``plain.rec`` with records in parts, ``arrays.rec`` with three labels each, ``faces.rec`` as
InsightFace's ``face2rec2.py``.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packstore import PackedDataset, convert
from packstore.sources import Entry
from packstore.testing import SourceSuite
from tests.internals import SampleError, SourceError
from tests.makers.annotated import fill
from tests.makers.images import tiny
from tests.makers.sources import not_packed, prove

WRITTEN = Path(__file__).parents[1] / "corpus" / "recordio"
MAGIC = 0xCED7230A


def packed(image: bytes, *labels: float, identity: int = 0, further: int = 0) -> bytes:
    """``mxnet.recordio.pack``: one label in the header, several after it."""
    if len(labels) == 1:
        return struct.pack("<IfQQ", 0, labels[0], identity, further) + image
    return struct.pack(f"<IfQQ{len(labels)}f", len(labels), 0, identity, further, *labels) + image


def one(image: bytes, label: float, identity: int = 0) -> bytes:
    """An array of one label."""
    return struct.pack("<IfQQf", 1, 0, identity, 0, label) + image


def rec(*records: bytes) -> bytes:
    """``RecordIOWriter::WriteRecord``, word by word."""
    out = bytearray()

    def part(flag: int, data: bytes) -> None:
        out.extend(struct.pack("<II", MAGIC, flag << 29 | len(data)) + data + bytes(-len(data) % 4))

    for data in records:
        start = 0
        for at in range(0, len(data) // 4 * 4, 4):
            if struct.unpack_from("<I", data, at)[0] == MAGIC:
                part(2 if start else 1, data[start:at])
                start = at + 4
        part(3 if start else 0, data[start:])
    return bytes(out)


def faces() -> bytes:
    """Five images of two identities, and the records of both after them; labels of images have two numbers."""
    images = [packed(tiny(n), n // 3, 1, identity=n + 1) for n in range(5)]
    identities = [packed(b"", 1, 4, identity=6), packed(b"", 4, 6, identity=7)]
    return rec(packed(b"", 6, 8), *images, *identities)


class TestRecordio(SourceSuite):
    kind = "recordio"
    bytes_per_sample = 400
    undecodable_keys = False

    def make(self, folder: Path, samples: int) -> Path:
        for name, numbers in {"train": range(samples - 2), "val": range(samples - 2, samples)}.items():
            (folder / f"{name}.rec").write_bytes(rec(*(packed(tiny(n), n % 3, identity=n) for n in numbers)))
            (folder / f"{name}.lst").write_text("".join(f"{n}\t{n % 3}\ta/{n}.png\n" for n in numbers))
        return folder

    def change(self, path: Path) -> None:
        text = (path / "val.lst").read_text()
        (path / "val.lst").write_text(text.replace("a/", "b/"))

    def spoil(self, path: Path, entry: Entry) -> bool:
        with (path / "train.rec").open("r+b") as file:
            file.seek(entry.ref[1] + 8)
            file.write(struct.pack("<I", 99))  # labels that it does not have
        return True


def test_what_the_layout_says(tmp_path: Path) -> None:
    prove(WRITTEN / "plain.rec", tmp_path / "x.lmdb")
    ds = PackedDataset(tmp_path / "x.lmdb", columns=("label", "image"), output="bytes")
    expected = [tiny(0), tiny(1), *(_with_magic(n) for n in (2, 3))]
    assert [(label, bytes(image)) for label, image in ds] == list(zip((0, 1, 0, 1), expected, strict=True))


def _with_magic(n: int) -> bytes:
    """An image with magic numbers after its end; the header before it takes 24 bytes."""
    image = tiny(n) + bytes(-len(tiny(n)) % 4)
    return image + struct.pack("<III", MAGIC, MAGIC, 7) + struct.pack("<I", MAGIC) * (n == 3)


def test_arrays_of_labels(tmp_path: Path) -> None:
    convert(WRITTEN / "arrays.rec", tmp_path / "x.h5")
    assert [label.tolist() for label in PackedDataset(tmp_path / "x.h5", columns=("label",))] == [
        [n, 0.5, -1] for n in range(4)
    ]


def test_labels_of_differing_number_and_fractions(tmp_path: Path) -> None:
    (tmp_path / "a.rec").write_bytes(rec(*(packed(tiny(n), *range(n + 2)) for n in range(3))))
    convert(tmp_path / "a.rec", tmp_path / "a.h5")
    assert [x.tolist() for x in PackedDataset(tmp_path / "a.h5", columns=("label",))] == [
        [0, 1],
        [0, 1, 2],
        [0, 1, 2, 3],
    ]
    (tmp_path / "b.rec").write_bytes(rec(*(packed(tiny(n), n / 2) for n in range(3))))
    convert(tmp_path / "b.rec", tmp_path / "b.h5")
    assert list(PackedDataset(tmp_path / "b.h5", columns=("label",))) == [0, 0.5, 1]


def test_a_magic_number_in_the_header_of_a_record(tmp_path: Path) -> None:
    (tmp_path / "x.rec").write_bytes(rec(*(packed(tiny(n), n, identity=MAGIC) for n in range(3))))
    convert(tmp_path / "x.rec", tmp_path / "x.h5")
    ds = PackedDataset(tmp_path / "x.h5", columns=("label", "id", "image"), output="bytes")
    assert [(label, number, bytes(image)) for label, number, image in ds] == [(n, MAGIC, tiny(n)) for n in range(3)]


def test_faces_are_without_the_records_of_identities(tmp_path: Path) -> None:
    report = convert(WRITTEN / "faces.rec", tmp_path / "x.h5")
    assert report.ledger.passed_over == {"records without an image (of InsightFace)": 3}
    ds = PackedDataset(tmp_path / "x.h5", columns=("label", "labels", "image"), output="bytes")
    assert [(label, labels.tolist()) for label, labels, _ in ds] == [(n // 3, [n // 3, 1]) for n in range(5)]
    assert [bytes(image) for *_, image in ds] == [tiny(n) for n in range(5)]


@pytest.mark.parametrize(("at", "said"), [(0, "no record begins here"), (7, "cut off|no record begins")])
def test_a_damaged_record_ends_its_file(at: int, said: str, tmp_path: Path) -> None:
    whole = [packed(tiny(n), n % 3, identity=n) for n in range(6)]
    data = bytearray(rec(*whole))
    place = len(rec(*whole[:4]))
    data[place + at] ^= 0xFF
    (tmp_path / "x.rec").write_bytes(data)
    with pytest.raises(SampleError, match=rf"x\.rec: byte {place}: ({said}).*the rest of this file"):
        convert(tmp_path / "x.rec", tmp_path / "x.h5")
    assert convert(tmp_path / "x.rec", tmp_path / "x.h5", on_error="skip").manifest.records == 4


def test_the_label_of_a_damaged_record_does_not_change_the_column(tmp_path: Path) -> None:
    records = [packed(tiny(n), n % 3, identity=n) for n in range(6)]
    records[2] = struct.pack("<I", 9999) + records[2][4:]  # labels that it does not have
    (tmp_path / "x.rec").write_bytes(rec(*records))
    manifest = convert(tmp_path / "x.rec", tmp_path / "x.h5", on_error="skip").manifest
    assert (manifest.records, manifest.has_label) == (5, True)


@pytest.mark.parametrize("left", [1, 7, 8, 40, -40])
def test_a_file_that_is_cut_off(left: int, tmp_path: Path) -> None:
    whole = rec(*(packed(tiny(n), n % 3) for n in range(3)))
    (tmp_path / "x.rec").write_bytes((whole + whole)[: len(whole) + left])
    not_packed(SampleError, tmp_path / "x.rec", tmp_path / "x.h5", r"the file ends within a record|is cut off")


@pytest.mark.parametrize("line", ["x\t0\ta.png", "0 0 a.png", "0\t0\t", "1\t0\tb.png\n1\t0\tc.png"])
def test_a_list_that_is_none(line: str, tmp_path: Path) -> None:
    fill(tmp_path, {"x.rec": rec(packed(tiny(0), 0)), "x.lst": f"{line}\n"})
    not_packed(SourceError, tmp_path / "x.rec", tmp_path / "x.h5", r"x\.lst cannot be read: .* is not a line of a list")


def keys(path: Path, tmp_path: Path, **options: Any) -> list[str]:
    convert(path, tmp_path / "x.h5", **options)
    return list(PackedDataset(tmp_path / "x.h5", columns=("key",)))


LISTS = {
    "a line is missing": {"x": "0\t0\ta.png\n2\t0\tc.png\n"},
    "many are": {"x": "7\t0\ta.png\n"},
    "a path twice": {"x": "0\t0\ta.png\n1\t0\tb.png\n2\t0\ta.png\n"},
    "a path twice, in two lists": dict.fromkeys("xy", "0\t0\ta.png\n1\t0\tb.png\n2\t0\tc.png\n"),
    "a list is missing": {"x": "0\t0\ta.png\n1\t0\tb.png\n2\t0\tc.png\n", "y": ""},
}


@pytest.mark.parametrize("case", LISTS)
def test_a_list_that_does_not_name_each_record_once_is_not_used(case: str, tmp_path: Path) -> None:
    lists = LISTS[case]
    path = tmp_path / "set"
    path.mkdir()
    for name, text in lists.items():
        (path / f"{name}.rec").write_bytes(rec(*(packed(tiny(n), 0, identity=n) for n in range(3))))
        if text:
            (path / f"{name}.lst").write_text(text)
    report = convert(path, tmp_path / "x.h5", source_kind="recordio")
    assert report.ledger.passed_over["lines of lists that are not used"] == "".join(lists.values()).count("\n")
    assert list(PackedDataset(tmp_path / "x.h5", columns=("key",))) == [f"{n:010}" for n in range(3 * len(lists))]


def test_lines_of_a_list_without_a_record_are_counted(tmp_path: Path) -> None:
    """im2rec leaves out images that it cannot read."""
    (tmp_path / "x.rec").write_bytes(rec(*(packed(tiny(n), 0, identity=n) for n in (0, 2))))
    (tmp_path / "x.lst").write_text("".join(f"{n}\t0\t{n}.png\n" for n in range(4)))
    report = convert(tmp_path / "x.rec", tmp_path / "x.h5")
    assert report.ledger.passed_over == {"lines of lists that are not used": 2}
    assert list(PackedDataset(tmp_path / "x.h5", columns=("key",))) == ["0.png", "2.png"]


HEADERS = {
    "as face2rec2.py": ([packed(b"", 6, 8)], [packed(b"", 1, 4), packed(b"", 4, 6)]),
    "the first alone": ([packed(b"", 6, 8)], []),
}


@pytest.mark.parametrize("labels", ["a number", "an array of one", "an array of two"])
@pytest.mark.parametrize("case", HEADERS)
def test_headers_of_faces_are_no_samples_and_labels_are_classes(case: str, labels: str, tmp_path: Path) -> None:
    first, last = HEADERS[case]
    make = {"a number": packed, "an array of one": one, "an array of two": lambda image, n: packed(image, n, 1)}[labels]
    (tmp_path / "x.rec").write_bytes(rec(*first, *(make(tiny(n), n // 3) for n in range(5)), *last))
    report = convert(tmp_path / "x.rec", tmp_path / "x.h5")
    assert report.ledger.passed_over == {"records without an image (of InsightFace)": len(first + last)}
    assert report.manifest.column("label").classes is None
    assert [column.name for column in report.manifest.columns if column.name == "labels"] == (
        ["labels"] if labels == "an array of two" else []
    )
    ds = PackedDataset(tmp_path / "x.h5", columns=("label", "image"), output="bytes")
    assert [(label, bytes(image)) for label, image in ds] == [(n // 3, tiny(n)) for n in range(5)]


@pytest.mark.parametrize("empty", [[0], [2], [4], [3, 4], [0, 2]])
def test_images_that_are_empty_are_bad_samples(empty: list[int], tmp_path: Path) -> None:
    data = rec(*(packed(b"" if n in empty else tiny(n), 0, identity=n) for n in range(5)))
    (tmp_path / "x.rec").write_bytes(data)
    report = convert(tmp_path / "x.rec", tmp_path / "x.h5", on_error="skip")
    assert [int(bad.key) for bad in report.skipped] == empty


def test_a_list_of_insightface(tmp_path: Path) -> None:
    """Its first column says whether faces are aligned; the record of a line has its number."""
    fill(tmp_path, {"x.rec": faces(), "x.lst": "".join(f"1\t/data/{n // 3}/{n}.jpg\t{n // 3}\n" for n in range(5))})
    assert keys(tmp_path / "x.rec", tmp_path) == [f"data/{n // 3}/{n}.jpg" for n in range(5)]


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "x.rec").write_bytes(b"text" * 10)
    not_packed(SourceError, tmp_path / "x.rec", tmp_path / "x.h5", "no record begins here")
    assert np.frombuffer(rec(b""), "<u4").tolist() == [MAGIC, 0]
