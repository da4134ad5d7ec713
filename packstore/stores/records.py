"""Reads the records of a store one by one and proves each by its checksums, for code that passes them on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.checksums import ROW_CHECKSUM, column_digest, image_checksum, row_checksum, row_columns
from packstore.core.columns import Buffer
from packstore.core.errors import ROW_CHECKSUM_NOUN, CorruptRecordError, StoreError, UnreachableError, printable
from packstore.stores.base import Reader

_T = TypeVar("_T")


def read_again_if_damaged(reader: Reader, record: int, read: Callable[[int], _T]) -> _T:
    """Returns ``read(record)``. If it raises :class:`StoreError` and the record's shard is a cached copy, reads again
    from a copy that is verified, or fetched again.
    """
    try:
        return read(record)
    except UnreachableError:
        raise
    except StoreError:
        if not reader.can_refetch:
            raise
        reader.mark_suspect(record)
        return read(record)


def check_digest(part: Reader, name: str) -> None:
    """Raises :class:`StoreError` if a column of a store's file does not match its digest."""
    expected, found = part.manifest.column(name).digest, column_digest(part.column(name))
    if found != expected:
        raise StoreError(
            f"column {name!r} of {printable(str(part.path))} is damaged: its SHA-256 is {found}, expected {expected}; "
            "packstore repair restores it from the source"
        )


class DamagedCopies:
    """Has cached copies of shards verified in which damage was found, each once, for code that reads many records.

    Attributes:
        can_refetch: Whether the store has cached copies.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._seen: set[int] = set()
        self.can_refetch = reader.can_refetch

    def refetch(self, errors: Iterable[BaseException], records: NDArray[np.int64]) -> bool:
        """Marks the shards of the records in ``errors`` as suspect. Returns whether reading again may help: one of them
        had not been marked before.

        Ignores errors that are no damage. An error without a record stands for all of ``records``, which were read.
        """
        if not self.can_refetch:
            return False
        starts, parts = self._reader.part_starts, set[int]()
        for error in errors:
            cause = error if isinstance(error, StoreError) else error.__cause__
            if isinstance(cause, StoreError) and not isinstance(cause, UnreachableError):
                record = getattr(error, "record", None)
                damaged = records if record is None else np.array([record])
                parts |= set((np.searchsorted(starts, damaged, "right") - 1).tolist())
        for part in parts - self._seen:
            self._reader.mark_suspect(int(starts[part]))
        new = bool(parts - self._seen)
        self._seen |= parts
        return new


class ProvenRecords:
    """Reads the records of an open store from any thread, and compares each with its checksums.

    :meth:`read_row` reads and checks all values of a record but the image at once. A reader with ``checksums="always"``
    would check them all again for each value. Rows of a store without row checksums are not checked.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._columns = reader.manifest.columns
        self._row = row_columns(self._columns)
        self._rows_are_checked = reader.manifest.has_column(ROW_CHECKSUM.name)

    def read_image(self, record: int) -> Buffer:
        """Returns the stored image. Raises :class:`CorruptRecordError` if it does not match its checksum."""
        return read_again_if_damaged(self.reader, record, self._read_image)

    def _read_image(self, record: int) -> Buffer:
        """Does :meth:`read_image` without reading again."""
        data = self.reader.read(record)
        found, expected = image_checksum(data), int(self.reader.value("checksum", record))
        if found != expected:
            raise CorruptRecordError(record, self.reader.key(record), f"{expected:016x}", f"{found:016x}")
        return data

    def read_row(self, record: int) -> dict[str, Any]:
        """Returns a record's values of the columns that the row checksum covers.

        These are all columns but image, checksums, seek index and links. Raises :class:`CorruptRecordError` if the
        values do not match the row checksum; checks nothing in an old store without row checksums.
        """
        return read_again_if_damaged(self.reader, record, self._read_row)

    def _read_row(self, record: int) -> dict[str, Any]:
        """Does :meth:`read_row` without reading again."""
        row = {column.name: self.reader.value(column.name, record) for column in self._row}
        if self._rows_are_checked:
            found, expected = row_checksum(self._columns, row), int(self.reader.value(ROW_CHECKSUM.name, record))
            if found != expected:
                key = self.reader.key(record)
                raise CorruptRecordError(record, key, f"{expected:016x}", f"{found:016x}", ROW_CHECKSUM_NOUN)
        return row
