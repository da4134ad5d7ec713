"""Records that do not match their checksums: compares them, and tells if the record or the checksum is damaged."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.checksums import column_digest, hash_values, row_checksums, row_columns
from packstore.core.columns import NUMPY_DTYPE, ColumnData, Ragged
from packstore.core.errors import StoreError
from packstore.core.manifest import Column


class Mismatch(NamedTuple):
    """A record that does not match its stored checksum.

    Attributes:
        found: The record's actual checksum; None if the record cannot be read.
        expected: The stored checksum.
        why: Why the record cannot be read, else empty.
    """

    found: int | None
    expected: int
    why: str = ""


def compute_row_checksums(
    columns: tuple[Column, ...], data: dict[str, ColumnData], start: int, stop: int
) -> dict[int, tuple[int | None, str]]:
    """Computes the row checksums of records ``start`` to ``stop - 1`` from their present fields.

    Args:
        columns: Columns of the store.
        data: Stored values of the columns that a row checksum covers, by name.
        start: The first record.
        stop: One after the last record.

    Returns:
        For each record its checksum and an empty string. If a field cannot be read: None and the reason.
    """
    count = stop - start
    unreadable: dict[int, str] = {}
    values: dict[str, NDArray[Any]] = {}
    for column in row_columns(columns):
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
        for i in range(start, stop):
            try:
                items[i] = whole[i]
            except StoreError as error:
                unreadable[i] = str(error)
        if column.kind == "ragged":
            values[column.name] = hash_values((items.get(i, b"") for i in range(start, stop)), count)
        else:
            nothing = next(iter(items.values()), np.zeros(0, NUMPY_DTYPE[column.dtype]))
            values[column.name] = np.stack([items.get(i, nothing) for i in range(start, stop)])
    sums = row_checksums(columns, values, count).tolist()
    return {
        i: (None, unreadable[i]) if i in unreadable else (checksum, "")
        for i, checksum in zip(range(start, stop), sums, strict=True)
    }


def are_checksums_damaged(stored: NDArray[Any], bad: dict[int, Mismatch], column: Column) -> bool:
    """Returns whether the stored column of checksums is damaged, and not the records ``bad`` that differ from it.

    Puts the actual checksums of these records into the column: if the column then matches its digest, it was damaged.
    Returns False if one of the records cannot be read.
    """
    if any(mismatch.found is None for mismatch in bad.values()):
        return False
    corrected = np.array(stored)
    for i, mismatch in bad.items():
        corrected[i] = mismatch.found
    return column_digest(corrected) == column.digest


def describe_damaged_checksum(name: str, mismatch: Mismatch) -> str:
    """Returns the text of a problem: the stored checksum ``name`` is damaged, the record is not."""
    return f"its stored {name} is damaged: {mismatch.expected:016x}, should be {mismatch.found or 0:016x}"


def describe_mismatch(mismatch: Mismatch, name: str) -> str:
    """Returns the text of a problem: a record's checksum ``name``, and the expected one.

    If the record cannot be read, returns the reason instead.
    """
    return mismatch.why or f"{name} {mismatch.found or 0:016x}, expected {mismatch.expected:016x}"
