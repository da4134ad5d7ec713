"""The table of shards, and the digest that follows from those of shards."""

from __future__ import annotations

import hashlib
import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from tests.internals import (
    SHARD,
    TABLE_ROW,
    ManifestError,
    Shard,
    ShardTable,
    join_records_digests,
    records_digest,
    shard_name,
    shards_to_rows,
)


def shard(number: int) -> Shard:
    sha = hashlib.sha256(str(number).encode()).hexdigest()
    return Shard(shard_name(number, ".h5"), number + 1, 1000 + number, 900, sha[:32], sha, sha[::-1])


def test_both_ways(tmp_path: Path) -> None:
    shards = [shard(i) for i in range(5)]
    table = ShardTable.from_shards(shards, ".h5")
    data = table.table.tobytes()
    assert len(data) == table.nbytes == 5 * TABLE_ROW.itemsize == 560
    assert hashlib.sha256(data).hexdigest() == table.digest
    assert table.file == f"table-{table.digest[:12]}.shards"
    read = ShardTable(5, table.digest, ".h5").parse_rows(data)
    assert read == table
    assert list(read) == shards == read[:]
    assert read[-1] == shards[4]
    assert read[1:3] == shards[1:3]
    assert read.starts.tolist() == [0, 1, 3, 6, 10, 15]
    with pytest.raises(IndexError):
        read[5]
    with pytest.raises(ManifestError, match="was not read"):
        ShardTable(5, table.digest, ".h5")[0]
    (tmp_path / table.file).write_bytes(data)
    assert (np.fromfile(tmp_path / table.file, TABLE_ROW) == shards_to_rows(shards)).all()


def test_names_go_by_number_and_not_by_place() -> None:
    shards = [shard(3), shard(0), shard(7)]
    table = ShardTable.from_shards(shards, ".h5")
    assert table.names() == [s.name for s in shards] == [table.name(i) for i in range(3)]
    assert [*table] == shards
    data = shards_to_rows([shard(1), shard(2), shard(1)]).tobytes()
    with pytest.raises(ManifestError, match="names a shard twice"):
        ShardTable(3, hashlib.sha256(data).hexdigest(), ".h5").parse_rows(data)


def test_every_changed_byte_is_found() -> None:
    table = ShardTable.from_shards([shard(i) for i in range(3)], ".h5")
    data = table.table.tobytes()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << random.Random(place).randrange(8)
        with pytest.raises(ManifestError, match="table of shards is damaged"):
            table.parse_rows(bytes(changed))
    for cut in (b"", data[:-1], data + b"x"):
        with pytest.raises(ManifestError, match="bytes, expected 336"):
            table.parse_rows(cut)


@pytest.mark.parametrize(
    ("field", "value"),
    [*itertools.product(("number", "records", "nbytes", "image_nbytes"), (2**62, 2**63, 2**64 - 1)), ("records", 0)],
)
def test_a_row_that_cannot_be(field: str, value: int) -> None:
    rows = shards_to_rows([shard(i) for i in range(3)])
    rows[1][field] = value
    data = rows.tobytes()
    with pytest.raises(ManifestError, match="impossible row 1"):
        ShardTable(3, hashlib.sha256(data).hexdigest(), ".h5").parse_rows(data)


@pytest.mark.parametrize(
    ("number", "name"), [(0, "00000"), (99_999, "99999"), (100_000, "100000"), (10**7, "10000000")]
)
def test_names_go_on(number: int, name: str) -> None:
    assert shard_name(number, ".lmdb") == f"shard-{name}.lmdb"
    found = SHARD.fullmatch(f"shard-{name}.lmdb")
    assert found is not None
    assert int(found["number"]) == number


@pytest.mark.parametrize(
    "name", ["shard-0000.h5", "shard-000000.h5", "shard-012345.h5", "shard-00000", "shard-00000.h5/x"]
)
def test_what_is_no_name(name: str) -> None:
    assert SHARD.fullmatch(name) is None


def test_the_digest_of_records_does_not_depend_on_where_they_are_cut() -> None:
    rng = np.random.default_rng(3)
    checksums, rows = rng.integers(0, 2**64, (2, 50), np.uint64)
    whole = records_digest(checksums, rows)
    for cuts in ([0, 50], [0, 1, 50], [0, 7, 7, 20, 49, 50], [*range(51)]):
        pairs = list(itertools.pairwise(cuts))
        parts = ((records_digest(checksums[a:b], rows[a:b]), b - a) for a, b in pairs)
        assert join_records_digests(parts) == whole
    others = [np.flip(checksums), np.roll(checksums, 1), checksums ^ np.uint64(1), checksums[:-1]]
    assert len({records_digest(o, rows[: len(o)]) for o in others} | {whole}) == 5
    assert records_digest(rows, checksums) != whole
