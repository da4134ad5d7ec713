"""Compares records with their checksums when they are read: lenses for ``checksums="always"`` and ``"auto"``."""

from __future__ import annotations

import bisect
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.core.columns import NUMPY_DTYPE, Buffer, ColumnData, Ragged
from packstore.core.errors import CorruptRecordError, StoreError, UnreachableError, printable
from packstore.core.manifest import Column
from packstore.core.proof import Proof, column_digest
from packstore.stores.parts import Lens, Rows, decode_key
from packstore.stores.records import PartTable, Records

ARRAY_SHARE = 16
"""One in this many arrays that are read is compared with its checksum. Items of 224 x 224 uint8 pixels then take 2 to 3
percent more processor time; with 8 it would be 4 to 6 percent."""
MOST_KEPT_BYTES = 64 << 20
"""Bytes of the largest column that is kept in memory."""
MOST_KEPT_HASHES = 1 << 22
"""Most hashes kept in memory for a larger column: 32 MiB."""

_NEW, _SOUND, _BY_ROWS = 0, 1, 2
_T = TypeVar("_T")


def check_digest(part: Rows, name: str) -> None:
    """Raises :class:`StoreError` if a column of a store's file does not match its digest."""
    expected, found = part.manifest.column(name).digest, column_digest(part.column(name))
    if found != expected:
        raise StoreError(
            f"column {name!r} of {printable(str(part.path))} is damaged: its SHA-256 is {found}, expected {expected}; "
            "packstore repair restores it from the source"
        )


def find_invalid_class(column: Column, data: Any) -> int | None:
    """Returns the first class number among the stored values ``data`` that has no class, or None."""
    numbers: NDArray[Any] = (
        np.asarray(data) if column.kind == "fixed" else np.frombuffer(data, NUMPY_DTYPE[column.dtype])
    )
    if not numbers.size or 0 <= int(numbers.min()) <= int(numbers.max()) < len(column.classes or ()):
        return None
    return int(numbers[(numbers < 0) | (numbers >= len(column.classes or ()))].flat[0])


def read_again_if_damaged(table: PartTable, record: int, read: Callable[[int], _T]) -> _T:
    """Returns ``read(record)``. If it raises :class:`StoreError` and the record's file is a cached copy, reads again
    from a copy that is verified, or fetched again.
    """
    try:
        return read(record)
    except UnreachableError:
        raise
    except StoreError:
        if not table.can_refetch:
            raise
        table.mark_suspect(int(table.find([record])[0]))
        return read(record)


class Proven(Lens):
    """Compares all that is read of a record with its checksums.

    - :meth:`view` checks the image and all fields: label, key and others.
    - :meth:`key` checks all fields.
    - Other values and columns are not checked: one bad label would make all others unreadable. Call
      :meth:`check_fields` or :meth:`find_faults` for these.

    Raises :class:`CorruptRecordError` for an image that does not match its checksum, for fields that do not match the
    row checksum, and for a class number without a class.

    A store without row checksums is checked column by column instead: all these methods raise :class:`StoreError` if a
    column does not match its digest.
    """

    def __init__(self, store: Records) -> None:
        super().__init__(store.rows)
        self.has_image_array = False
        self._table = store.table
        self._proof = Proof(self.manifest.columns, self.rows.value)
        self._sound: set[str] = set()

    def view(self, index: int) -> Buffer:
        return read_again_if_damaged(self._table, index, self._read_image)

    def views(self, records: NDArray[np.int64]) -> list[Buffer]:
        return [self.view(record) for record in records.tolist()]

    def read_stored_image(self, index: int) -> Buffer:
        return self.view(index)

    def _read_image(self, index: int) -> Buffer:
        """Returns the image after checking it and the record's fields."""
        data = self.rows.view(index)
        self._check_row(index, {})
        self._proof.check_image(index, data)
        return data

    def prove_image(self, index: int) -> Buffer:
        """Returns the image after comparing it with its checksum, but not the record's fields.

        Raises :class:`CorruptRecordError` if it does not match.
        """

        def read(record: int) -> Buffer:
            image = self.rows.view(record)
            self._proof.check_image(record, image)
            return image

        return read_again_if_damaged(self._table, index, read)

    def prove_fields(self, index: int) -> dict[str, Any]:
        """Returns a record's values of the columns that the row checksum covers, compared with it.

        These are all columns but image, checksums, seek index and links. Raises :class:`CorruptRecordError` if the
        values do not match; checks nothing in an old store without row checksums.
        """

        def read(record: int) -> dict[str, Any]:
            row = {column.name: self.rows.value(column.name, record) for column in self._proof.columns}
            if self._proof.has_rows:
                self._proof.check_fields(record, row)
            return row

        return read_again_if_damaged(self._table, index, read)

    def column(self, name: str) -> ColumnData:
        """Returns a whole column unchecked. In a store without row checksums, checks its digest before.

        Raises :class:`StoreError` for ``image`` and for a wrong digest.
        """
        if name == "image":
            raise StoreError("checksums='always' reads images one by one, so they are no array")
        if not self._proof.has_rows:
            self._check_digest(name)
        return self.rows.column(name)

    def value(self, name: str, index: int) -> Any:
        if not self._proof.has_rows:
            self._check_digest(name)
        return self.rows.value(name, index)

    def key(self, index: int) -> str:
        self.check_fields(index)
        return self.rows.key(index)

    def values(self, name: str, records: NDArray[np.int64]) -> NDArray[Any]:
        if not self._proof.has_rows:
            self._check_digest(name)
        return self.rows.values(name, records)

    def find_faults(self, records: NDArray[np.int64], names: Iterable[str]) -> dict[int, StoreError]:
        """Returns the faults of some records: class numbers without a class in the columns ``names``, and whatever
        :meth:`check_fields` finds in any column.
        """
        errors = Rows.find_faults(self, records, names)
        for record in records.tolist():
            try:
                self.check_fields(record)
            except CorruptRecordError as error:
                errors[record] = error
        return errors

    def verify_column(self, name: str) -> None:
        self._check_digest(name)

    def _check_digest(self, name: str) -> None:
        """Raises :class:`StoreError` if a column does not match its digest."""
        if name not in self._sound:
            for start in self._table.starts.tolist():

                def check(start: int) -> None:
                    check_digest(self._table.open(int(self._table.find([start])[0])), name)

                read_again_if_damaged(self._table, start, check)
            self._sound.add(name)

    def check_fields(self, index: int) -> None:
        """Raises :class:`CorruptRecordError` for a wrong row checksum, and for a class number without a class.

        In a store without row checksums, raises :class:`StoreError` if any column does not match its digest.
        """
        read_again_if_damaged(self._table, index, lambda i: self._check_row(i, {}))

    def _check_row(self, index: int, values: Mapping[str, Any]) -> None:
        """Does what :meth:`check_fields` does in one try, with ``values`` that are read already."""
        if not self._proof.has_rows:
            for column in self.manifest.columns[1:]:
                self._check_digest(column.name)
            return
        row = self._proof.columns
        fields = {c.name: values[c.name] if c.name in values else self._read_value_or_none(c, index) for c in row}
        self._proof.check_fields(index, fields)
        for column in row:
            wrong = find_invalid_class(column, fields[column.name]) if column.classes is not None else None
            if wrong is not None:
                raise self.class_error(column, index, wrong)

    def _read_value_or_none(self, column: Column, index: int) -> Any:
        """Returns the value of a record, or None if it cannot be read, such as for damaged offsets."""
        try:
            return self.rows.value(column.name, index)
        except StoreError:
            return None


class SparinglyProven(Proven):
    """Makes the checks that cost little compared to reading and decoding.

    - Image files: compares each with its checksum whenever it is read.
    - Arrays: compares the array with its checksum at one of :data:`ARRAY_SHARE` reads of the record. Each process
      begins to count at a random number. Worker processes that live for one epoch do not always check the same records.
    - Small columns: on first use, copies the values of a file of the store, and compares the copy with the column's
      digest and its range of classes. Returns values from the copy, which later changes of the file cannot affect.
    - Other columns: compares the record with its row checksum when a value is read first, and keeps the value's hash,
      up to :data:`MOST_KEPT_HASHES` hashes. Compares the hash at later reads.

    A small column has up to :data:`MOST_KEPT_BYTES` and no large values (:attr:`Column.one_by_one`). A small column
    that does not match is checked like the other ones.

    An image is checked in the map, and decoded from the same map right afterwards.
    """

    def __init__(self, store: Records) -> None:
        super().__init__(store)
        self.has_image_array = store.has_image_array
        self._all_images = self.manifest.holds_files
        self._starts: list[int] = self._table.starts.tolist()
        self._kept: dict[str, _ColumnCopy] = {}
        self._lock = threading.Lock()
        self._proven: dict[str, NDArray[Any]] = {}  # proven copies of fixed columns, in a store of one file
        self._checksums: memoryview[int] | None = None
        # Number of reads of each record, modulo 256; the system allocates pages on first write.
        self._reads = np.zeros(0 if self._all_images else len(self), np.uint8)
        self._count = self._reads.data  # access to its items costs a tenth of the array's
        self._first = random.SystemRandom().randrange(ARRAY_SHARE)

    def _read_image(self, index: int) -> Buffer:
        """Returns the image of a record, and checks it: files always, arrays at one of 16 reads."""
        data = self.rows.view(index)
        if not self._all_images:
            reads = self._count[index]
            self._count[index] = (reads + 1) & 255
            if (index + reads + self._first) % ARRAY_SHARE:
                return data
        self._proof.check_image(index, data, self._read_checksum(index))
        return data

    def check_images(self, records: NDArray[np.int64], images: NDArray[Any]) -> None:
        """Counts a read of each record, and checks the images at one of 16 reads of the record.

        Raises :class:`CorruptRecordError` for the first damaged image.
        """
        reads = self._reads[records]
        self._reads[records] = reads + np.uint8(1)
        for row in np.flatnonzero((records + reads + self._first) % ARRAY_SHARE == 0).tolist():
            record = int(records[row])
            self._proof.check_image(record, images[row].data)

    def column(self, name: str) -> ColumnData:
        """Returns a whole column. The first call compares it with its digest, but not ``image``."""
        if name != "image":
            self._check_digest(name)
        return self.rows.column(name)

    def key(self, index: int) -> str:
        return decode_key(self.value("key", index))

    def value(self, name: str, index: int) -> Any:
        """Returns the value from the checked copy of its column. Without such a copy, checks the record."""
        proven = self._proven.get(name)
        if proven is not None:
            return proven[index]
        kept = self._kept.get(name) or self._get_column_copy(name)
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        part = bisect.bisect_right(self._starts, index) - 1
        if kept.state[part] != _SOUND and not self._ensure_copied(kept, part):
            return read_again_if_damaged(self._table, index, partial(self._read_and_prove, kept))
        return kept.shown[index] if kept.fixed else kept.ragged[part][index - self._starts[part]]

    def _read_and_prove(self, kept: _ColumnCopy, index: int) -> Any:
        """Reads a value and checks its record's fields, unless an earlier read proved the same bytes."""
        try:
            value = self.rows.value(kept.column.name, index)
        except StoreError:
            self._check_row(index, {})  # names the record and its key
            raise
        turn, slot = divmod(index, len(kept.hashes))
        own = (xxh3_64_intdigest(value) + turn) % (1 << 64) or 1  # ``turn`` distinguishes records that share a slot
        # another value than the last one proven in this slot
        if kept.hashes[slot] != own:
            self._check_row(index, {kept.column.name: value})
            kept.hashes[slot] = own
        return value

    def values(self, name: str, records: NDArray[np.int64]) -> NDArray[Any]:
        """Returns the values from the checked copy of the column. Reads all unchecked if a value is in no such copy."""
        kept = self._kept.get(name) or self._get_column_copy(name)
        if len(self._find_unproven(kept, records)) or not kept.fixed:
            return self.rows.values(name, records)  # find_faults reports which of them are damaged
        values: NDArray[Any] = kept.values[records]
        return values

    def find_faults(self, records: NDArray[np.int64], names: Iterable[str]) -> dict[int, StoreError]:
        """Checks by row checksum the records whose values are in no checked copy of a column.

        In a store without row checksums, raises :class:`StoreError` if any column is damaged.
        """
        errors: dict[int, StoreError] = {}
        for name in names:
            kept = self._kept.get(name) or self._get_column_copy(name)
            for record in records[self._find_unproven(kept, records)].tolist():
                try:
                    read_again_if_damaged(self._table, record, partial(self._read_and_prove, kept))
                except CorruptRecordError as error:
                    errors.setdefault(record, error)
        return errors

    def verify_column(self, name: str) -> None:
        """Does nothing: values are checked when they are read."""

    def _read_checksum(self, index: int) -> int:
        """Returns the checksum of an image."""
        # Not checked itself: no image matches a damaged checksum.
        if len(self._starts) > 1 or self._table.can_refetch:
            return int(self.rows.value("checksum", index))
        if self._checksums is None:
            # A memoryview, for fast access to items. Cast from bytes, since an LMDB's values may be unaligned.
            self._checksums = self.rows.fixed_column("checksum").view(np.uint8).data.cast("Q")
        return self._checksums[index]

    def _get_column_copy(self, name: str) -> _ColumnCopy:
        """Returns the copy of a column in memory, at first without values."""
        column = self.manifest.column(name)
        with self._lock:
            return self._kept.setdefault(name, _ColumnCopy(column, self.manifest.records, len(self._starts)))

    def _find_unproven(self, kept: _ColumnCopy, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the positions in ``records`` of records whose values are in no checked copy of the column."""
        if len(self._starts) == 1:
            return np.arange(0 if self._ensure_copied(kept, 0) else len(records))
        parts = self._table.find(records)
        # copies the column first from each file that has not been tried
        for part in np.unique(parts[kept.state[parts] == _NEW]).tolist():
            self._ensure_copied(kept, part)
        return np.flatnonzero(kept.state[parts] != _SOUND)

    def _ensure_copied(self, kept: _ColumnCopy, part: int) -> bool:
        """Returns whether the copy of a column's values in one file is sound."""
        if kept.state[part] == _NEW:  # the first call copies and checks them
            self._table.open(part)  # outside the lock: fetching may take long
            with self._lock:
                if kept.state[part] == _NEW:
                    kept.state[part] = _SOUND if self._copy_sound(kept, part) else _BY_ROWS
                    if kept.state[part] == _SOUND and kept.fixed and len(self._starts) == 1:
                        self._proven[kept.column.name] = kept.shown
        return bool(kept.state[part] == _SOUND)

    def _copy_sound(self, kept: _ColumnCopy, part: int) -> bool:
        """Does :meth:`_copy_and_prove`, once more for a shard that can be fetched again."""
        try:
            sound = self._copy_and_prove(kept, part)
        except UnreachableError:
            raise
        except StoreError:
            if not self._table.can_refetch:
                raise
            sound = False
        if sound or not self._table.can_refetch:
            return sound
        self._table.mark_suspect(part)  # the next opening verifies the cached copy, or fetches it again
        return self._copy_and_prove(kept, part)

    def _copy_and_prove(self, kept: _ColumnCopy, number: int) -> bool:
        """Copies a column's values in one file, and returns whether they match its digest and classes."""
        column, part, start = kept.column, self._table.open(number), self._starts[number]
        data = part.column(column.name)
        copy: ColumnData
        if isinstance(data, Ragged):
            copy = Ragged(data.offsets.copy(), data.data.copy())
            copy.data.flags.writeable = False
            kept.ragged[number] = copy
        else:
            copy = kept.values[start : start + len(data)]
            copy[...] = data
        flat = copy.data if isinstance(copy, Ragged) else copy
        if column.classes is not None and find_invalid_class(column, flat) is not None:
            return False
        return column_digest(copy) == part.manifest.column(column.name).digest


class _ColumnCopy:
    """Copy of a column in memory, file by file as needed.

    Attributes:
        column: The column.
        fixed: Whether it is a fixed column.
        values: Values of a fixed column; the system allocates pages on first write.
        shown: The same array, read-only.
        ragged: Values of a ragged column, by file of the store.
        state: For each file of the store: not copied yet, copied and sound, or to be checked record by record.
    """

    @cached_property
    def hashes(self) -> NDArray[np.uint64]:
        """XXH3-64 of values whose row checksum matched; 0 for others.

        In a store of over 4,194,304 records, several records share a slot. The slot has the hash of the last record
        that was read. The others are checked by row checksum again.
        """
        return np.zeros(min(self._records, MOST_KEPT_HASHES), np.uint64)

    def __init__(self, column: Column, records: int, parts: int) -> None:
        self.column = column
        self._records = records
        self.fixed = column.kind == "fixed"
        small = column.nbytes <= MOST_KEPT_BYTES and column.name != "image" and not column.one_by_one
        rows = records if self.fixed and small else 0
        self.values = np.empty((rows, *column.shape), NUMPY_DTYPE[column.dtype])
        self.shown = self.values.view()
        self.shown.flags.writeable = False
        self.ragged: list[Any] = [None] * parts
        self.state = np.full(parts, _NEW if small else _BY_ROWS, np.uint8)


class DamagedCopies:
    """Has cached copies of shards verified in which damage was found, each once, for code that reads many records.

    Attributes:
        can_refetch: Whether the store has cached copies.
    """

    def __init__(self, reader: Records) -> None:
        self._table = reader.table
        self._seen: set[int] = set()
        self.can_refetch = self._table.can_refetch

    def refetch(self, errors: Iterable[BaseException], records: NDArray[np.int64]) -> bool:
        """Marks the shards of the records in ``errors`` as suspect. Returns whether reading again may help: one of them
        had not been marked before.

        Ignores errors that are no damage. An error without a record stands for all of ``records``, which were read.
        """
        if not self.can_refetch:
            return False
        parts = set[int]()
        for error in errors:
            cause = error if isinstance(error, StoreError) else error.__cause__
            if isinstance(cause, StoreError) and not isinstance(cause, UnreachableError):
                record = getattr(error, "record", None)
                damaged = records if record is None else np.array([record])
                parts |= set(self._table.find(damaged).tolist())
        new = parts - self._seen
        for part in new:
            self._table.mark_suspect(part)
        self._seen |= new
        return bool(new)
