"""The checksums of a store, each defined here and nowhere else; and :class:`Proof`, which compares records with them.

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

A column's digest tells that a byte of the column is wrong; only the record checksums tell in which record. A *row*
concatenates a record's values of all columns in the manifest's order, except ``image``, ``checksum``,
``row_checksum``, ``seek_index`` and ``link_…``: the bytes of a fixed value, or the XXH3-64 of a ragged value as eight
bytes; all little-endian.

The digest of a fixed column is the SHA-256 of its values, little-endian and in C order. The digest of a ragged column
is the SHA-256 of two concatenated SHA-256: of its ``int64`` offsets (N + 1 of them, from 0) and of its bytes.

The digest of all records must not depend on how they are divided into shards, and must follow from the digests of the
shards. So it is a polynomial and not a hash of the sequence, see :func:`records_digest`. Like the checksums it is
computed from, it detects accidental changes, not deliberate forgeries.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.core.columns import DERIVED, NUMPY_DTYPE, Buffer, Column, ColumnData, LazyArray, LazyRagged, Ragged
from packstore.core.columns import ROW_CHECKSUM as ROW_CHECKSUM
from packstore.core.errors import ROW_CHECKSUM_NOUN, CorruptRecordError, StoreError

_NOT_IN_ROWS = ("image", "checksum", ROW_CHECKSUM.name, *DERIVED)
_IMAGE_NOUN = "checksum of its image"
_PRIME = (1 << 127) - 1
_BASE = int.from_bytes(hashlib.sha256(b"packstore").digest()[:15], "big")
_RECORDS_AT_ONCE = 1 << 10
_STEP_BYTES = 1 << 24
"""A column is hashed in steps of so many bytes, since hashing may copy its values."""


image_checksum = xxh3_64_intdigest
"""Computes the checksum of a stored image."""


def hash_values(values: Iterable[Buffer], count: int) -> NDArray[np.uint64]:
    """Computes the XXH3-64 of each of ``count`` values."""
    return np.fromiter(map(xxh3_64_intdigest, values), np.uint64, count)


def row_columns(columns: Iterable[Column]) -> list[Column]:
    """Returns the columns that the row checksum covers, in order: all but image, checksums, seek index and links."""
    return [column for column in columns if column.name not in _NOT_IN_ROWS]


def row_checksum(columns: Iterable[Column], fields: Mapping[str, Any]) -> int:
    """Computes the row checksum of one record.

    Args:
        columns: All columns of the store.
        fields: The record's value in each column of :func:`row_columns`, by name: a scalar or array of the column's
            dtype, or the bytes of a ragged value. None for an unreadable value; the result then differs from the stored
            checksum.
    """
    return xxh3_64_intdigest(b"".join(_row_bytes(column, fields[column.name]) for column in row_columns(columns)))


def _row_bytes(column: Column, value: Any) -> bytes:
    """Returns the bytes of a value in its row: the hash of a ragged value, nothing for None."""
    if value is None:
        return b""
    if column.kind == "ragged":
        # A hash marks where the value ends; bytes alone could be shifted between two columns.
        return xxh3_64_intdigest(value).to_bytes(8, "little")
    array = np.asarray(value)
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def row_checksums(columns: Iterable[Column], values: Mapping[str, NDArray[Any]], count: int) -> NDArray[np.uint64]:
    """Computes the row checksums of many records at once.

    Args:
        columns: All columns of the store.
        values: For each column of :func:`row_columns`, by name: the values of a fixed column, ``(count,
            *column.shape)`` in its dtype; the :func:`hash_values` of a ragged column.
        count: Number of records.

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
    return hash_values(rows, count)


def records_digest(checksums: NDArray[np.uint64], rows: NDArray[np.uint64]) -> str:
    """Computes the digest of records in order: 32 hexadecimal digits.

    It is the sum of ``r[i] * b ** (n - 1 - i)`` modulo ``2 ** 127 - 1``. ``r[i]`` is ``checksum + 2 ** 64 * row
    checksum`` of record ``i`` of ``n``. ``b`` is the first 15 bytes of the SHA-256 of ``packstore``, as a big-endian
    number.

    Args:
        checksums: Image checksums, ``uint64``.
        rows: Row checksums, ``uint64``, even if the store does not keep them.
    """
    digest, powers = 0, _compute_powers()
    limbs = np.stack([checksums, rows], axis=1).astype("<u8", copy=False).view("<u2")  # (n, 8): 16 bits each
    for start in range(0, len(limbs), _RECORDS_AT_ONCE):
        part = limbs[start : start + _RECORDS_AT_ONCE].astype(np.float64)
        sums = part.T @ powers[-len(part) :]  # exact: at most 2 ** 10 products below 2 ** 32
        total = sum(int(value) << 16 * (i + j) for (i, j), value in np.ndenumerate(sums))
        # A polynomial of the checksums, so that digests of shards join without reading them.
        digest = (digest * pow(_BASE, len(part), _PRIME) + total) % _PRIME
    return f"{digest:032x}"


@cache
def _compute_powers() -> NDArray[np.float64]:
    """Computes the powers of ``_BASE`` modulo ``_PRIME``, highest first, in limbs of 16 bits: ``(_RECORDS_AT_ONCE,
    8)``."""
    powers = [1]
    while len(powers) < _RECORDS_AT_ONCE:
        powers.append(powers[-1] * _BASE % _PRIME)
    data = b"".join(power.to_bytes(16, "little") for power in reversed(powers))
    return np.frombuffer(data, "<u2").reshape(-1, 8).astype(np.float64)


def join_records_digests(parts: Iterable[tuple[str, int]]) -> str:
    """Computes the digest of all records of consecutive shards. ``parts`` has digest and number of records of each
    shard."""
    digest = 0
    for part, records in parts:
        digest = (digest * pow(_BASE, records, _PRIME) + int(part, 16)) % _PRIME
    return f"{digest:032x}"


def column_digest(values: ColumnData) -> str:
    """Computes the SHA-256 digest of a column of one file, as in the manifest. Reads all its values.

    Raises :class:`StoreError` if a value that is read on access cannot be read.
    """
    data = hashlib.sha256()
    if isinstance(values, LazyArray):
        for value in values:
            data.update(value.data)
        return data.hexdigest()
    if not isinstance(values, Ragged):
        _hash_array(data, values)
        return data.hexdigest()
    # Offsets begin with 0.
    offsets = hashlib.sha256(bytes(8))
    if isinstance(values, LazyRagged):
        ends, end = array("q"), 0
        for raw in values:
            data.update(raw)
            end += len(raw)
            ends.append(end)
        _hash_array(offsets, np.frombuffer(ends, np.int64))
    else:
        # The first offset should be 0; adding it changes the digest if it is not.
        _hash_array(offsets, values.offsets[1:], int(values.offsets[0]))
        _hash_array(data, values.data)
    return digest_ragged(offsets.digest(), data.digest())


def digest_ragged(offsets_sha256: bytes, data_sha256: bytes) -> str:
    """Computes the digest of a ragged column from the SHA-256 of its offsets and of its bytes."""
    return hashlib.sha256(offsets_sha256 + data_sha256).hexdigest()


def _hash_array(sha: Any, array: NDArray[Any], add: int = 0) -> None:
    """Feeds an array to a hash, in little-endian pieces; adds ``add`` to each value."""
    little = array.dtype.newbyteorder("<")
    step = max(1, _STEP_BYTES // max(1, array.nbytes // max(1, len(array))))
    for start in range(0, len(array), step):
        piece = np.ascontiguousarray(array[start : start + step] + add if add else array[start : start + step], little)
        sha.update(piece.reshape(-1).view(np.uint8).data)


def file_digest(path: Path) -> tuple[int, str]:
    """Reads a file; returns its size and its SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


class Comparison(NamedTuple):
    """A stored checksum, and the one that was computed from what was read.

    Attributes:
        found: The computed checksum; None if the record cannot be read.
        expected: The stored checksum.
        why: Why the record cannot be read, else empty.
    """

    found: int | None
    expected: int
    why: str = ""

    @property
    def differs(self) -> bool:
        """True if the record cannot be read, or does not match its checksum."""
        return self.found != self.expected


class Proof:
    """Compares images and fields with the checksums of their records. Thread-safe if ``value`` is.

    ``compare_…`` returns both checksums; ``check_…`` raises :class:`CorruptRecordError`, which names the record's key.
    *Fields* are a record's values of the columns that the row checksum covers. A field that could not be read is None,
    and differs.

    Attributes:
        columns: The columns that the row checksum covers, in order.
        has_rows: Whether the store has row checksums; very old stores lack them.
    """

    def __init__(self, columns: Iterable[Column], value: Callable[[str, int], Any]) -> None:
        """
        Args:
            columns: All columns of the store, or of one of its files.
            value: Returns the stored value of a column for a record, such as :meth:`Reader.value` of a reader that
                checks nothing. It is called for checksums and keys.
        """
        columns = tuple(columns)
        self.columns = row_columns(columns)
        self.has_rows = any(column.name == ROW_CHECKSUM.name for column in columns)
        self._value = value

    def compare_image(self, record: int, image: Buffer, expected: int | None = None) -> Comparison:
        """Compares an image with the checksum of a record. ``expected``: the checksum, if it was read already."""
        return Comparison(image_checksum(image), int(self._value("checksum", record)) if expected is None else expected)

    def compare_fields(self, record: int, fields: Mapping[str, Any]) -> Comparison:
        """Compares fields with the row checksum of a record. Without row checksums, compares with the stored fields.

        ``fields`` may have values of other columns, too.
        """
        if self.has_rows:
            expected = int(self._value(ROW_CHECKSUM.name, record))
        else:
            expected = row_checksum(self.columns, {c.name: self._value(c.name, record) for c in self.columns})
        return Comparison(row_checksum(self.columns, fields), expected)

    def check_image(self, record: int, image: Buffer, expected: int | None = None) -> None:
        """Raises :class:`CorruptRecordError` if an image does not match the checksum of a record.

        ``expected``: the checksum, if it was read already.
        """
        wanted = int(self._value("checksum", record)) if expected is None else expected
        if (found := image_checksum(image)) != wanted:
            raise self.error(int(record), Comparison(found, wanted))

    def check_fields(self, record: int, fields: Mapping[str, Any]) -> None:
        """Raises :class:`CorruptRecordError` if fields do not match the row checksum of a record."""
        if (comparison := self.compare_fields(record, fields)).differs:
            raise self.error(record, comparison, ROW_CHECKSUM_NOUN)

    def check_images(self, records: Sequence[int], images: Iterable[Buffer], checksums: NDArray[np.uint64]) -> None:
        """Raises :class:`CorruptRecordError` for the first of ``records`` whose image does not match its checksum.

        ``checksums``: those of ``records``.
        """
        self._check_first(records, hash_values(images, len(records)), checksums, _IMAGE_NOUN)

    def check_rows(self, records: Sequence[int], values: Mapping[str, Any], rows: NDArray[np.uint64]) -> None:
        """Raises :class:`CorruptRecordError` for the first of ``records`` whose fields do not match its row checksum.

        Args:
            records: Numbers of the records.
            values: Their values by column: an array for a fixed column, a sequence for a ragged one.
            rows: Their row checksums.
        """
        count = len(records)
        hashes = {c.name: hash_values(values[c.name], count) for c in self.columns if c.kind == "ragged"}
        self._check_first(records, row_checksums(self.columns, {**values, **hashes}, count), rows, ROW_CHECKSUM_NOUN)

    def _check_first(
        self, records: Sequence[int], found: NDArray[np.uint64], expected: NDArray[np.uint64], noun: str
    ) -> None:
        """Raises the error of the first record whose checksums differ."""
        for i in np.flatnonzero(found != expected)[:1].tolist():
            raise self.error(int(records[i]), Comparison(int(found[i]), int(expected[i])), noun)

    def error(self, record: int, comparison: Comparison, noun: str = _IMAGE_NOUN) -> CorruptRecordError:
        """Returns the error for a record that differs. ``noun`` names the checksum."""
        try:
            key = bytes(self._value("key", record)).decode("utf-8", "surrogateescape")
        except (StoreError, IndexError):
            key = "its key is damaged, too"
        return CorruptRecordError(record, key, f"{comparison.expected:016x}", f"{comparison.found or 0:016x}", noun)


def find_different_image(images: Iterable[Buffer], checksums: Iterable[int]) -> int | None:
    """Returns the place of the first image that does not match its checksum, or None."""
    for place, (image, checksum) in enumerate(zip(images, checksums, strict=True)):
        if image_checksum(image) != checksum:
            return place
    return None


def compare_rows(
    columns: Iterable[Column], data: Mapping[str, Any], rows: NDArray[np.uint64], start: int = 0
) -> dict[int, Comparison]:
    """Compares stored fields of consecutive records with their row checksums. Returns those that differ, by number.

    Args:
        columns: All columns of the store.
        data: Columns that the row checksum covers, by name, as a reader returns them.
        rows: Row checksums of the records from ``start`` on.
        start: The first record.
    """
    sums, unreadable = compute_rows(columns, data, start, start + len(rows))
    return {
        record: Comparison(None if record in unreadable else found, expected, unreadable.get(record, ""))
        for record, (found, expected) in enumerate(zip(sums.tolist(), rows.tolist(), strict=True), start)
        if found != expected or record in unreadable
    }


def compute_rows(
    columns: Iterable[Column], data: Mapping[str, Any], start: int, stop: int
) -> tuple[NDArray[np.uint64], dict[int, str]]:
    """Computes the row checksums of the records ``start`` to ``stop - 1`` from stored fields.

    ``data``: columns that the row checksum covers, by name, as a reader returns them.

    Returns:
        The checksums, ``(stop - start,)``, and why a record cannot be read, by number. The checksum of such a record
        means nothing.
    """
    count = stop - start
    unreadable: dict[int, str] = {}
    values: dict[str, NDArray[Any]] = {}
    covered = row_columns(columns)
    for column in covered:
        whole = data[column.name]
        if isinstance(whole, np.ndarray):
            values[column.name] = whole[start:stop]
            continue
        if isinstance(whole, Ragged):
            try:
                values[column.name] = hash_values(whole.iterate(start, stop), count)
                continue
            except StoreError:  # then one by one, to learn which
                pass
        items: dict[int, Any] = {}
        for record in range(start, stop):
            try:
                items[record] = whole[record]
            except StoreError as error:
                unreadable[record] = str(error)
        if column.kind == "ragged":
            values[column.name] = hash_values((items.get(record, b"") for record in range(start, stop)), count)
        else:
            nothing = next(iter(items.values()), np.zeros(0, NUMPY_DTYPE[column.dtype]))
            values[column.name] = np.stack([items.get(record, nothing) for record in range(start, stop)])
    return row_checksums(covered, values, count), unreadable
