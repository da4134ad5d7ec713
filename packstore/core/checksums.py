"""The checksums of a store, each defined here and nowhere else.

=================  =======  ===========================================  =====================
proves             hash     over                                         kept in
=================  =======  ===========================================  =====================
a record's image   XXH3-64  its bytes                                    column ``checksum``
its other fields   XXH3-64  its row                                      column ``row_checksum``
a column           SHA-256  all its values                               the manifest
all records        see      their checksums and row checksums            the manifest
a shard            SHA-256  its file                                     the table of shards
the table          SHA-256  its file                                     the manifest
the manifest       SHA-256  its JSON without this digest                 itself
=================  =======  ===========================================  =====================

The digest of a column says that a byte in it is wrong; only a checksum a record says whose. A *row* holds, for every
column but ``image``, ``checksum``, ``row_checksum``, ``seek_index`` and ``link_…`` and in the manifest's order, the
record's bytes of a fixed column, or of a ragged one the XXH3-64 of the value as eight bytes; all little-endian.

The digest of a fixed column is the SHA-256 of its values, little-endian and in C order. That of a ragged one is the
SHA-256 of two SHA-256, one after the other: of its ``int64`` offsets (N + 1 of them, from 0) and of its bytes.

The digest of all records has to be the same however they are shared out to files, and that of a store has to follow
from those of its shards. So it is no hash of their sequence but a polynomial: see :func:`records_digest`. Like the
checksums it stands on, it finds what happens by chance, and not what somebody computes in order to deceive.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.core.column import LINK_COLUMNS, SEEK_INDEX, Column
from packstore.core.column import ROW_CHECKSUM as ROW_CHECKSUM
from packstore.core.columns import Buffer, ColumnData, OneByOne, OneByOneArray, Ragged

_NOT_IN_ROWS = ("image", "checksum", ROW_CHECKSUM.name, SEEK_INDEX.name, *(column.name for column in LINK_COLUMNS))
_PRIME = (1 << 127) - 1
_BASE = int.from_bytes(hashlib.sha256(b"packstore").digest()[:15], "big")
_RECORDS_AT_ONCE = 1 << 10
_STEP_BYTES = 1 << 24
"""A column is hashed in steps, since its values may have to be copied for it."""


image_checksum = xxh3_64_intdigest
"""The checksum of an image at rest."""


def value_hashes(values: Iterable[Buffer], count: int) -> NDArray[np.uint64]:
    """The XXH3-64 of each of ``count`` values."""
    return np.fromiter(map(xxh3_64_intdigest, values), np.uint64, count)


def row_columns(columns: Iterable[Column]) -> list[Column]:
    """The columns of which a row consists, in their order."""
    return [column for column in columns if column.name not in _NOT_IN_ROWS]


def row_checksum(columns: Iterable[Column], fields: Mapping[str, Any]) -> int:
    """The row checksum of one record.

    Args:
        columns: All columns of the store.
        fields: By name, the record's value in each column of :func:`row_columns`: a scalar or array of the column's
            dtype, or the bytes of a ragged value. None for a value that cannot be read: then the row lacks it, and its
            checksum is not the stored one.
    """
    return xxh3_64_intdigest(b"".join(_row_bytes(column, fields[column.name]) for column in row_columns(columns)))


def _row_bytes(column: Column, value: Any) -> bytes:
    if value is None:
        return b""
    if column.kind == "ragged":
        return xxh3_64_intdigest(value).to_bytes(8, "little")
    array = np.asarray(value)
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def row_checksums(columns: Iterable[Column], values: Mapping[str, NDArray[Any]], count: int) -> NDArray[np.uint64]:
    """The row checksums of many records at once.

    Args:
        columns: All columns of the store.
        values: By name, of each column in :func:`row_columns`: for a fixed one the values, ``(count, *column.shape)``
            in the column's dtype; for a ragged one their :func:`value_hashes`.
        count: How many records.

    Returns:
        ``uint64``, shape ``(count,)``.
    """
    parts = []
    for column in row_columns(columns):
        array = values[column.name]
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        parts.append(little.reshape(count, -1).view(np.uint8) if little.size else np.empty((count, 0), np.uint8))
    width = sum(part.shape[1] for part in parts)
    if not width:
        return np.full(count, xxh3_64_intdigest(b""), np.uint64)
    rows: list[bytes] = np.concatenate(parts, axis=1).view(f"V{width}").ravel().tolist()
    return value_hashes(rows, count)


def records_digest(checksums: NDArray[np.uint64], rows: NDArray[np.uint64]) -> str:
    """The digest of records in their order: the sum of ``r[i] * b ** (n - 1 - i)`` modulo ``2 ** 127 - 1``.

    ``r[i]`` is ``checksum + 2 ** 64 * row checksum`` of record ``i`` of ``n``, and ``b`` the first 15 bytes of the
    SHA-256 of ``packstore``, as a big-endian number.

    Args:
        checksums: ``uint64``, of their images.
        rows: ``uint64``, of their rows, also in a store that does not keep these.

    Returns:
        32 hexadecimal digits.
    """
    digest, powers = 0, _powers()
    limbs = np.stack([checksums, rows], axis=1).astype("<u8", copy=False).view("<u2")  # (n, 8): 16 bits each
    for start in range(0, len(limbs), _RECORDS_AT_ONCE):
        part = limbs[start : start + _RECORDS_AT_ONCE].astype(np.float64)
        sums = part.T @ powers[-len(part) :]  # exact: at most 2 ** 10 products below 2 ** 32
        total = sum(int(value) << 16 * (i + j) for (i, j), value in np.ndenumerate(sums))
        digest = (digest * pow(_BASE, len(part), _PRIME) + total) % _PRIME
    return f"{digest:032x}"


@cache
def _powers() -> NDArray[np.float64]:
    """The powers of ``_BASE`` modulo ``_PRIME``, the highest first; ``(_RECORDS_AT_ONCE, 8)``, 16 bits each."""
    powers = [1]
    while len(powers) < _RECORDS_AT_ONCE:
        powers.append(powers[-1] * _BASE % _PRIME)
    data = b"".join(power.to_bytes(16, "little") for power in reversed(powers))
    return np.frombuffer(data, "<u2").reshape(-1, 8).astype(np.float64)


def joined_records_digest(parts: Iterable[tuple[str, int]]) -> str:
    """The digest of records that follow each other, from the digest and the number of those in each part."""
    digest = 0
    for part, records in parts:
        digest = (digest * pow(_BASE, records, _PRIME) + int(part, 16)) % _PRIME
    return f"{digest:032x}"


def column_digest(values: ColumnData) -> str:
    """The digest of a column of one file."""
    data = hashlib.sha256()
    if isinstance(values, OneByOneArray):
        for value in values:
            data.update(value.data)
        return data.hexdigest()
    if not isinstance(values, Ragged):
        _hash(data, values)
        return data.hexdigest()
    offsets = hashlib.sha256(bytes(8))
    if isinstance(values, OneByOne):
        ends, end = array("q"), 0
        for raw in values:
            data.update(raw)
            end += len(raw)
            ends.append(end)
        _hash(offsets, np.frombuffer(ends, np.int64))
    else:
        # The first offset should be 0; adding it makes the digest differ where it is not.
        _hash(offsets, values.offsets[1:], int(values.offsets[0]))
        _hash(data, values.data)
    return ragged_digest(offsets.digest(), data.digest())


def ragged_digest(offsets_sha256: bytes, data_sha256: bytes) -> str:
    """The digest of a ragged column whose offsets and bytes were hashed as they came."""
    return hashlib.sha256(offsets_sha256 + data_sha256).hexdigest()


def _hash(sha: Any, array: NDArray[Any], add: int = 0) -> None:
    little = array.dtype.newbyteorder("<")
    step = max(1, _STEP_BYTES // max(1, array.nbytes // max(1, len(array))))
    for start in range(0, len(array), step):
        piece = np.ascontiguousarray(array[start : start + step] + add if add else array[start : start + step], little)
        sha.update(piece.reshape(-1).view(np.uint8).data)


def file_digest(path: Path) -> tuple[int, str]:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest
