"""Compares records with their checksums. Readers, packing, links, repair and the page all use :class:`Proof`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.checksums import ROW_CHECKSUM, hash_values, image_checksum, row_checksum, row_checksums, row_columns
from packstore.core.column import Column
from packstore.core.columns import NUMPY_DTYPE, Buffer, Ragged
from packstore.core.errors import ROW_CHECKSUM_NOUN, CorruptRecordError, StoreError

_IMAGE_NOUN = "checksum of its image"


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
        if (comparison := self.compare_image(record, image, expected)).differs:
            raise self.error(record, comparison)

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
