"""Readers that check the records they return: ``checksums="always"``, and what the others have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.checksums import ROW_CHECKSUM, column_digest, image_checksum, row_checksum, row_columns
from packstore.core.columns import NUMPY_DTYPE, Buffer, ColumnData
from packstore.core.errors import CorruptRecordError, StoreError, printable
from packstore.core.manifest import Column
from packstore.core.progress import ProgressCallback, no_progress
from packstore.stores.base import Problem, Reader


def no_class(column: Column, data: Any) -> int | None:
    """The first number that is none of the classes, in values of a column of class numbers at rest; or None."""
    numbers: NDArray[Any] = (
        np.asarray(data) if column.kind == "fixed" else np.frombuffer(data, NUMPY_DTYPE[column.dtype])
    )
    if not numbers.size or 0 <= int(numbers.min()) <= int(numbers.max()) < len(column.classes or ()):
        return None
    return int(numbers[(numbers < 0) | (numbers >= len(column.classes or ()))].flat[0])


class CheckedReader(Reader):
    """Wraps a reader and checks each record when it is read: its image, label, key and all other fields.

    An image that does not match its checksum, and fields that do not match the record's row checksum, raise
    :class:`CorruptRecordError`. Whole columns are handed out as they are, since one bad label must not keep all others
    back, except in a store without row checksums: there a column must have its digest, or :class:`StoreError` says so.
    """

    checks_records = True

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader.path, reader.manifest)
        self._reader = reader
        self.nbytes = reader.nbytes
        columns = reader.manifest.columns
        self._row = row_columns(columns) if reader.manifest.has_column(ROW_CHECKSUM.name) else None
        self._sound: set[str] = set()

    def read(self, index: int) -> Buffer:
        return self._checked(index, self._reader.read(index))

    def view(self, index: int) -> Buffer:
        return self._checked(index, self._reader.view(index))

    def column(self, name: str) -> ColumnData:
        if name == "image":
            raise StoreError("checksums='always' reads images one by one, so they are no array")
        if self._row is None:
            self.check_column(name)
        return self._reader.column(name)

    def value(self, name: str, index: int) -> Any:
        if self._row is None:
            self.check_column(name)
        return self._reader.value(name, index)

    def values(self, name: str, records: NDArray[np.int64]) -> NDArray[Any]:
        if self._row is None:
            self.check_column(name)
        return self._reader.values(name, records)

    def part(self, number: int) -> Reader:
        return self._reader.part(number)

    def at_hand(self, numbers: Iterable[int]) -> NDArray[np.bool_]:
        return self._reader.at_hand(numbers)

    def doubt(self, index: int) -> None:
        self._reader.doubt(index)

    @property
    def part_starts(self) -> NDArray[np.int64]:
        return self._reader.part_starts

    def places(self) -> list[str]:
        return self._reader.places()

    @property
    def unchecked(self) -> Reader:
        return self._reader

    def faults(self, records: NDArray[np.int64], names: Iterable[str]) -> dict[int, StoreError]:
        found = super().faults(records, names)
        for record in records.tolist():
            try:
                self.check_fields(record)
            except CorruptRecordError as error:
                found[record] = error
        return found

    def key(self, index: int) -> str:
        self.check_fields(index)
        return self._reader.key(index)

    def check_column(self, name: str) -> None:
        self._check_digest(name)

    def _check_digest(self, name: str) -> None:
        if name in self._sound:
            return
        for part in self._reader.parts():
            expected, found = part.manifest.column(name).digest, column_digest(part.column(name))
            if found != expected:
                raise StoreError(
                    f"column {name!r} of {printable(str(part.path))} is damaged: its SHA-256 is {found}, expected "
                    f"{expected}; packstore repair takes what is damaged from the source"
                )
        self._sound.add(name)

    def check_fields(self, index: int) -> None:
        self._check_row(index, {})

    def _check_row(self, index: int, values: Mapping[str, Any]) -> None:
        """As :meth:`check_fields`, for some ``values`` of the record that were read already."""
        if self._row is None:
            for column in self.manifest.columns[1:]:
                self._check_digest(column.name)
            return
        expected = int(self._reader.value(ROW_CHECKSUM.name, index))
        fields = {c.name: values[c.name] if c.name in values else self._field(c, index) for c in self._row}
        found = row_checksum(self._row, fields)
        if found != expected:
            what = "row checksum (label, key, other fields)"
            key = self._key(index)
            self.doubt(index)
            raise CorruptRecordError(index, key, f"{expected:016x}", f"{found:016x}", what)
        for column in self._row:
            wrong = no_class(column, fields[column.name]) if column.classes is not None else None
            if wrong is not None:
                raise self.no_class(column, index, wrong)

    def check_image(self, index: int, data: Buffer, expected: int | None = None) -> None:
        """Raises :class:`CorruptRecordError` where ``data``, the image of a record, does not match its checksum, which
        is ``expected`` where the caller has it already."""
        if expected is None:
            expected = int(self._reader.value("checksum", index))
        found = image_checksum(data)
        if found != expected:
            key = self._key(index)
            self.doubt(index)
            raise CorruptRecordError(index, key, f"{expected:016x}", f"{found:016x}")

    def close(self) -> None:
        self._reader.close()

    def check_files(self) -> None:
        self._reader.check_files()

    def check_structure(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        return self._reader.check_structure(quick=quick, progress=progress)

    def _checked(self, index: int, data: Buffer) -> Buffer:
        self.check_fields(index)
        self.check_image(index, data)
        return data

    def _field(self, column: Column, index: int) -> Any:
        """The value of a record; None where its offsets are damaged."""
        try:
            return self._reader.value(column.name, index)
        except StoreError:
            return None

    def _key(self, index: int) -> str:
        try:
            return self._reader.key(index)
        except (StoreError, IndexError):
            return "its key is damaged, too"
