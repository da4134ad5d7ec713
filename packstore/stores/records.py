"""Reads the records of a store one by one and proves each by its checksums, for code that passes them on."""

from __future__ import annotations

from typing import Any

from packstore.core.checksums import ROW_CHECKSUM, image_checksum, row_checksum, row_columns
from packstore.core.columns import Buffer
from packstore.core.errors import ROW_CHECKSUM_NOUN, CorruptRecordError
from packstore.stores.base import Reader


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
        row = {column.name: self.reader.value(column.name, record) for column in self._row}
        if self._rows_are_checked:
            found, expected = row_checksum(self._columns, row), int(self.reader.value(ROW_CHECKSUM.name, record))
            if found != expected:
                key = self.reader.key(record)
                raise CorruptRecordError(record, key, f"{expected:016x}", f"{found:016x}", ROW_CHECKSUM_NOUN)
        return row
