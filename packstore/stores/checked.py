"""A reader that checks all it returns (``checksums="always"``), and the base of the one that checks less."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.checksums import ROW_CHECKSUM, image_checksum, row_checksum, row_columns
from packstore.core.columns import NUMPY_DTYPE, Buffer, ColumnData
from packstore.core.errors import ROW_CHECKSUM_NOUN, CorruptRecordError, StoreError
from packstore.core.manifest import Column
from packstore.stores.base import Reader
from packstore.stores.delegating import DelegatingReader
from packstore.stores.records import check_digest, read_again_if_damaged


def find_invalid_class(column: Column, data: Any) -> int | None:
    """Returns the first class number among the stored values ``data`` that has no class, or None."""
    numbers: NDArray[Any] = (
        np.asarray(data) if column.kind == "fixed" else np.frombuffer(data, NUMPY_DTYPE[column.dtype])
    )
    if not numbers.size or 0 <= int(numbers.min()) <= int(numbers.max()) < len(column.classes or ()):
        return None
    return int(numbers[(numbers < 0) | (numbers >= len(column.classes or ()))].flat[0])


class CheckedReader(DelegatingReader):
    """Wraps a reader and checks records when they are read.

    - :meth:`read` and :meth:`view` check the image and all fields: label, key and others.
    - :meth:`key` checks all fields.
    - :meth:`value`, :meth:`values` and :meth:`column` check nothing: one bad label would make all others unreadable.
      Call :meth:`check_fields` or :meth:`find_faults` for these.

    Raises :class:`CorruptRecordError` for an image that does not match its checksum, for fields that do not match the
    row checksum, and for a class number without a class.

    A store without row checksums is checked column by column instead: all these methods raise :class:`StoreError` if a
    column does not match its digest.
    """

    checks_records = True

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        columns = reader.manifest.columns
        self._row = row_columns(columns) if reader.manifest.has_column(ROW_CHECKSUM.name) else None
        self._sound: set[str] = set()

    def read(self, index: int) -> Buffer:
        """Returns the image after checking it and the record's fields. Raises :class:`CorruptRecordError`."""
        return read_again_if_damaged(self, index, lambda i: self._verify_record(i, self._reader.read(i)))

    def view(self, index: int) -> Buffer:
        """Returns a view of the image after checking it and the record's fields. Raises :class:`CorruptRecordError`."""
        return read_again_if_damaged(self, index, lambda i: self._verify_record(i, self._reader.view(i)))

    def column(self, name: str) -> ColumnData:
        """Returns a whole column unchecked. In a store without row checksums, checks its digest before.

        Raises :class:`StoreError` for ``image`` and for a wrong digest.
        """
        if name == "image":
            raise StoreError("checksums='always' reads images one by one, so they are no array")
        if self._row is None:
            self.verify_column(name)
        return self._reader.column(name)

    def value(self, name: str, index: int) -> Any:
        """Returns the value unchecked. In a store without row checksums, checks the column's digest before.

        Raises :class:`StoreError` for a wrong digest.
        """
        if self._row is None:
            self.verify_column(name)
        return self._reader.value(name, index)

    def values(self, name: str, records: NDArray[np.int64]) -> NDArray[Any]:
        """Returns the values unchecked. In a store without row checksums, checks the column's digest before.

        Raises :class:`StoreError` for a wrong digest.
        """
        if self._row is None:
            self.verify_column(name)
        return self._reader.values(name, records)

    @property
    def unchecked_reader(self) -> Reader:
        """The wrapped reader."""
        return self._reader

    def find_faults(self, records: NDArray[np.int64], names: Iterable[str]) -> dict[int, StoreError]:
        """Returns the faults of some records, by record number.

        Finds class numbers without a class in the columns ``names``, and whatever :meth:`check_fields` finds in any
        column. In a store without row checksums, raises :class:`StoreError` if any column is damaged.
        """
        errors = super().find_faults(records, names)
        for record in records.tolist():
            try:
                self.check_fields(record)
            except CorruptRecordError as error:
                errors[record] = error
        return errors

    def key(self, index: int) -> str:
        """Returns the key after checking the record's fields. Raises :class:`CorruptRecordError`."""
        self.check_fields(index)
        return self._reader.key(index)

    def verify_column(self, name: str) -> None:
        """Raises :class:`StoreError` if a column does not match its digest. Checks a sound column only once."""
        self._check_digest(name)

    def _check_digest(self, name: str) -> None:
        """Does what :meth:`verify_column` does here, even if a subclass overrides that method."""
        if name in self._sound:
            return

        starts = self._reader.part_starts.tolist()
        for start in starts:
            read_again_if_damaged(self, start, lambda start: check_digest(self._reader.part(starts.index(start)), name))
        self._sound.add(name)

    def check_fields(self, index: int) -> None:
        """Raises :class:`CorruptRecordError` for a wrong row checksum, and for a class number without a class.

        In a store without row checksums, raises :class:`StoreError` if any column does not match its digest.
        """
        read_again_if_damaged(self, index, lambda i: self._check_row(i, {}))

    def _check_row(self, index: int, values: Mapping[str, Any]) -> None:
        """Does what :meth:`check_fields` does, without reading again.

        ``values``: fields of the record that the caller has read already.
        """
        if self._row is None:
            for column in self.manifest.columns[1:]:
                self._check_digest(column.name)
            return
        expected = int(self._reader.value(ROW_CHECKSUM.name, index))
        fields = {c.name: values[c.name] if c.name in values else self._read_value_or_none(c, index) for c in self._row}
        found = row_checksum(self._row, fields)
        if found != expected:
            key = self._try_key(index)
            raise CorruptRecordError(index, key, f"{expected:016x}", f"{found:016x}", ROW_CHECKSUM_NOUN)
        for column in self._row:
            wrong = find_invalid_class(column, fields[column.name]) if column.classes is not None else None
            if wrong is not None:
                raise self.class_error(column, index, wrong)

    def check_image(self, index: int, data: Buffer, expected: int | None = None) -> None:
        """Raises :class:`CorruptRecordError` if ``data``, the image of a record, does not match its checksum.

        ``expected``: the checksum, if the caller has read it already.
        """
        if expected is None:
            expected = int(self._reader.value("checksum", index))
        found = image_checksum(data)
        if found != expected:
            raise CorruptRecordError(index, self._try_key(index), f"{expected:016x}", f"{found:016x}")

    def _verify_record(self, index: int, data: Buffer) -> Buffer:
        """Returns ``data``, a record's image, after checking it and the record's fields. Raises
        :class:`CorruptRecordError`.
        """
        self._check_row(index, {})
        self.check_image(index, data)
        return data

    def _read_value_or_none(self, column: Column, index: int) -> Any:
        """Returns the value of a record, or None if it cannot be read, such as for damaged offsets."""
        try:
            return self._reader.value(column.name, index)
        except StoreError:
            return None

    def _try_key(self, index: int) -> str:
        """Returns the key of a record, or the words "its key is damaged, too" for a message."""
        try:
            return self._reader.key(index)
        except (StoreError, IndexError):
            return "its key is damaged, too"
