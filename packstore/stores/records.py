"""Records of a store one by one, each proven by its checksums: for whoever hands them on."""

from __future__ import annotations

from typing import Any

from packstore.core.checksums import ROW_CHECKSUM, image_checksum, row_checksum, row_columns
from packstore.core.columns import Buffer
from packstore.core.errors import CorruptRecordError
from packstore.stores.base import Reader


class ProvenRecords:
    """Reads the records of an open store; from any thread.

    A reader that checks (``checksums="always"``) does so for each value anew; here a row is read and checked once."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._columns = reader.manifest.columns
        self._row = row_columns(self._columns)
        self._rows_are_checked = reader.manifest.has_column(ROW_CHECKSUM.name)

    def image(self, record: int) -> Buffer:
        """The image at rest. Raises :class:`CorruptRecordError` when it does not match its checksum."""
        data = self.reader.read(record)
        found, expected = image_checksum(data), int(self.reader.value("checksum", record))
        if found != expected:
            raise self._corrupt(record, expected, found)
        return data

    def row(self, record: int) -> dict[str, Any]:
        """The values at rest of all columns but the image and the checksums. Raises :class:`CorruptRecordError` when
        they do not match the row checksum, where the store has such."""
        row = {column.name: self.reader.value(column.name, record) for column in self._row}
        if self._rows_are_checked:
            found, expected = row_checksum(self._columns, row), int(self.reader.value(ROW_CHECKSUM.name, record))
            if found != expected:
                raise self._corrupt(record, expected, found)
        return row

    def _corrupt(self, record: int, expected: int, found: int) -> CorruptRecordError:
        return CorruptRecordError(record, self.reader.key(record), f"{expected:016x}", f"{found:016x}")
