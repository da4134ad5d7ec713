"""The recipes of the checksums, reckoned here with hashlib and xxhash alone, as somebody without packstore would."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from tests.internals import (
    ROW_CHECKSUM,
    Column,
    Comparison,
    CorruptRecordError,
    Proof,
    Ragged,
    StoreError,
    column_digest,
    compare_rows,
    file_digest,
    find_different_image,
    hash_values,
    records_digest,
    row_checksum,
    row_checksums,
    row_columns,
)

COLUMNS = (
    Column("image", "ragged", "uint8", type="image"),
    Column("label", "fixed", "int64", type="label"),
    Column("box", "fixed", "float32", (2, 2)),
    Column("empty", "fixed", "uint8", (0,)),
    Column("key", "ragged", "uint8", type="text"),
    Column("checksum", "fixed", "uint64"),
    ROW_CHECKSUM,
)


def ragged(*values: bytes) -> Ragged:
    offsets = np.array([0, *np.cumsum([len(value) for value in values])], np.int64)
    return Ragged(offsets, np.frombuffer(b"".join(values), np.uint8))


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i8", "<f4", ">f4"])
def test_digest_of_a_fixed_column(dtype: str) -> None:
    values = np.arange(24, dtype=dtype).reshape(4, 3, 2)
    little = values.astype(values.dtype.newbyteorder("<")).tobytes()
    assert column_digest(values) == sha(little).hex()
    assert column_digest(np.asfortranarray(values)) == sha(little).hex()


@pytest.mark.parametrize("records", [0, 1, 2, 1023, 1024, 1025, 3000])
def test_digest_of_records(records: int) -> None:
    drawn = np.random.default_rng(records).integers(0, 1 << 64, (2, records), np.uint64)
    base, prime = int.from_bytes(sha(b"packstore")[:15], "big"), 2**127 - 1
    for checksums, rows in (drawn, np.full_like(drawn, 2**64 - 1), np.zeros_like(drawn)):
        numbers = [int(c) + (int(r) << 64) for c, r in zip(checksums, rows, strict=True)]
        expected = sum(n * pow(base, records - 1 - i, prime) for i, n in enumerate(numbers)) % prime
        assert records_digest(checksums, rows) == records_digest(checksums.astype(">u8"), rows) == f"{expected:032x}"


def test_digest_of_a_fixed_column_without_values() -> None:
    assert column_digest(np.empty((0, 2), "<i4")) == column_digest(np.empty((5, 0), "<i4")) == sha(b"").hex()


def test_digest_of_a_ragged_column() -> None:
    expected = sha(sha(np.array([0, 1, 1, 4], "<i8").tobytes()) + sha(b"abcd")).hex()
    assert column_digest(ragged(b"a", b"", b"bcd")) == expected
    shifted = ragged(b"a", b"", b"bcd")
    shifted.offsets[0] = 1
    assert column_digest(shifted) != expected


def test_large_columns_are_hashed_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    values, texts = np.arange(1000), ragged(*(b"x" * i for i in range(60)))
    expected = column_digest(values), column_digest(texts)
    monkeypatch.setattr("packstore.core.proof._STEP_BYTES", 100)
    assert (column_digest(values), column_digest(texts)) == expected


def test_row_checksums() -> None:
    labels, boxes = np.array([3, -1]), np.arange(8, dtype="<f4").reshape(2, 2, 2)
    keys = [b"one.png", b"two.png"]
    fields: list[dict[str, Any]] = [
        {"label": labels[i], "box": boxes[i], "empty": np.empty(0, "u1"), "key": keys[i]} for i in range(2)
    ]
    rows = [
        int(labels[i]).to_bytes(8, "little", signed=True) + boxes[i].tobytes() + xxh3_64_digest(keys[i])[::-1]
        for i in range(2)
    ]
    expected = [xxh3_64_intdigest(row) for row in rows]
    assert [column.name for column in row_columns(COLUMNS)] == ["label", "box", "empty", "key"]
    assert [row_checksum(COLUMNS, each) for each in fields] == expected
    values = {"label": labels, "box": boxes, "empty": np.empty((2, 0), "u1"), "key": hash_values(keys, 2)}
    assert row_checksums(COLUMNS, values, 2).tolist() == expected
    swapped = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in values.items()}
    assert row_checksums(COLUMNS, swapped, 2).tolist() == expected
    assert row_checksum(COLUMNS, fields[0] | {"key": None}) != expected[0]
    assert row_checksums(COLUMNS[:1], {}, 3).tolist() == [xxh3_64_intdigest(b"")] * 3 == [row_checksum((), {})] * 3


def test_digest_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert file_digest(tmp_path / "a") == (3, sha(b"abc").hex())


def values_of(**columns: Any) -> Callable[[str, int], Any]:
    def value(name: str, record: int) -> Any:
        if columns[name] is None:
            raise StoreError(f"{name} cannot be read")
        return columns[name][record]

    return value


def test_proof() -> None:
    images, boxes, keys = [b"one", b"two"], np.arange(8, dtype="<f4").reshape(2, 2, 2), [b"1.png", b"2.png"]
    fields = {"label": np.array([3, -1]), "box": boxes, "empty": np.empty((2, 0), "u1"), "key": keys}
    each = [{name: values[i] for name, values in fields.items()} for i in range(2)]
    checksums = np.array([xxh3_64_intdigest(image) for image in images], np.uint64)
    rows = np.array([row_checksum(COLUMNS, one) for one in each], np.uint64)
    proof = Proof(COLUMNS, values_of(checksum=checksums, row_checksum=rows, **fields))
    old = Proof(COLUMNS[:-1], values_of(checksum=checksums, **fields))
    assert (proof.has_rows, old.has_rows) == (True, False)
    for i in range(2):
        proof.check_image(i, images[i])
        proof.check_fields(i, each[i])
        assert proof.compare_image(i, images[1 - i]) == Comparison(int(checksums[1 - i]), int(checksums[i]))
        assert old.compare_fields(i, each[i]) == Comparison(int(rows[i]), int(rows[i]))
        assert old.compare_fields(i, each[1 - i]).differs
        assert proof.compare_fields(i, each[i] | {"box": None}).differs
    proof.check_images([0, 1], images, checksums)
    proof.check_rows([0, 1], fields, rows)
    assert find_different_image(images, checksums.tolist()) is None
    assert find_different_image([b"one", b"2"], checksums.tolist()) == 1
    with pytest.raises(CorruptRecordError, match=r"record 7 \(2\.png\) is damaged: checksum of its image"):
        Proof(COLUMNS, values_of(key=[b"2.png"] * 8)).check_images([6, 7], [b"one", b"2"], checksums)
    with pytest.raises(CorruptRecordError, match=r"record 0 \(1\.png\) is damaged: row checksum"):
        proof.check_rows([0, 1], fields | {"label": np.array([4, -1])}, rows)
    with pytest.raises(CorruptRecordError, match="its key is damaged, too"):
        Proof(COLUMNS, values_of(checksum=checksums, key=None)).check_image(1, b"2")


def test_rows_that_differ() -> None:
    class Unreadable(list[Any]):
        def __getitem__(self, i: Any) -> Any:
            if i == 1:
                raise StoreError("value 1 is lost")
            return super().__getitem__(i)

    columns = (COLUMNS[0], COLUMNS[1], COLUMNS[4])
    data = {"label": np.arange(4), "key": [b"a", b"b", b"c", b"d"]}
    rows = np.array([row_checksum(columns, {n: values[i] for n, values in data.items()}) for i in range(4)], np.uint64)
    assert compare_rows(columns, data, rows) == {}
    rows[3] += np.uint64(1)
    expected = {3: Comparison(int(rows[3]) - 1, int(rows[3]))}
    assert compare_rows(columns, data, rows) == compare_rows(columns, data, rows[2:], 2) == expected
    lost = compare_rows(columns, data | {"key": Unreadable(data["key"])}, rows)
    assert lost == {1: Comparison(None, int(rows[1]), "value 1 is lost")} | expected
