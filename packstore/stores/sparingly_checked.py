"""A reader that makes the checks that cost little: ``checksums="auto"``."""

from __future__ import annotations

import bisect
import random
import threading
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.core.checksums import column_digest
from packstore.core.columns import NUMPY_DTYPE, Buffer, ColumnData, Ragged
from packstore.core.errors import CorruptRecordError, StoreError, UnreachableError
from packstore.core.manifest import Column
from packstore.stores.base import Reader
from packstore.stores.checked import CheckedReader, find_invalid_class
from packstore.stores.records import read_again_if_damaged

ARRAY_SHARE = 16
"""One in this many arrays that are read is compared with its checksum. Items of 224 x 224 uint8 pixels then take 2 to 3
percent more processor time; with 8 it would be 4 to 6 percent."""
MOST_KEPT_BYTES = 64 << 20
"""Bytes of the largest column that is kept in memory."""
MOST_KEPT_HASHES = 1 << 22
"""Most hashes kept in memory for a larger column: 32 MiB."""

_NEW, _SOUND, _BY_ROWS = 0, 1, 2


class SparinglyCheckedReader(CheckedReader):
    """Wraps a reader, and makes the checks that cost little compared to reading and decoding.

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

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self.has_image_array = reader.has_image_array
        self._all_images = reader.manifest.holds_files
        self._starts: list[int] = reader.part_starts.tolist()
        self._kept: dict[str, _ColumnCopy] = {}
        self._lock = threading.Lock()
        self._proven: dict[str, NDArray[Any]] = {}  # proven copies of fixed columns, in a store of one file
        self._checksums: memoryview[int] | None = None
        # Number of reads of each record, modulo 256; the system allocates pages on first write.
        self._reads = np.zeros(0 if self._all_images else len(reader), np.uint8)
        self._count = self._reads.data  # access to its items costs a tenth of the array's
        self._first = random.SystemRandom().randrange(ARRAY_SHARE)

    def check_images(self, records: NDArray[np.int64], images: NDArray[Any]) -> None:
        """Counts a read of each record, and checks the images at one of 16 reads of the record.

        Raises :class:`CorruptRecordError` for the first damaged image.
        """
        reads = self._reads[records]
        self._reads[records] = reads + np.uint8(1)
        for row in np.flatnonzero((records + reads + self._first) % ARRAY_SHARE == 0).tolist():
            self.check_image(int(records[row]), images[row].data)

    def column(self, name: str) -> ColumnData:
        """Returns a whole column. The first call compares it with its digest, but not ``image``.

        Raises :class:`StoreError` if the digest differs.
        """
        if name != "image":
            self._check_digest(name)
        return self._reader.column(name)

    def value(self, name: str, index: int) -> Any:
        """Returns the value from the checked copy of its column. Without such a copy, checks the record.

        Raises :class:`IndexError` for a number without a record, else the errors of :meth:`_read_and_prove`.
        """
        proven = self._proven.get(name)
        if proven is not None:
            return proven[index]
        kept = self._kept.get(name) or self._get_column_copy(name)
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        part = bisect.bisect_right(self._starts, index) - 1
        if kept.state[part] != _SOUND and not self._ensure_copied(kept, part):
            return read_again_if_damaged(self, index, lambda i: self._read_and_prove(kept, i))
        return kept.shown[index] if kept.fixed else kept.ragged[part][index - self._starts[part]]

    def _read_and_prove(self, kept: _ColumnCopy, index: int) -> Any:
        """Reads a value, and compares its hash with that of an earlier read.

        If no hash is kept or the hashes differ, checks the record's fields, which may raise, and keeps the new hash.
        """
        try:
            value = self._reader.value(kept.column.name, index)
        except StoreError:
            self._check_row(index, {})  # names the record and its key
            raise
        turn, slot = divmod(index, len(kept.hashes))
        own = (xxh3_64_intdigest(value) + turn) % (1 << 64) or 1  # ``turn`` distinguishes records that share a slot
        if kept.hashes[slot] != own:
            self._check_row(index, {kept.column.name: value})
            kept.hashes[slot] = own
        return value

    def values(self, name: str, records: NDArray[np.int64]) -> NDArray[Any]:
        """Returns the values from the checked copy of the column. If a value is in no such copy, reads all unchecked.

        :meth:`find_faults` reports the damaged ones.
        """
        kept = self._kept.get(name) or self._get_column_copy(name)
        if len(self._find_unproven(kept, records)) or not kept.fixed:
            return self._reader.values(name, records)  # find_faults reports which of them are damaged
        values: NDArray[Any] = kept.values[records]
        return values

    def key(self, index: int) -> str:
        """Returns the key from the checked copy of the column, like :meth:`value`."""
        return bytes(self.value("key", index)).decode("utf-8", "surrogateescape")

    def find_faults(self, records: NDArray[np.int64], names: Iterable[str]) -> dict[int, StoreError]:
        """Checks by row checksum the records whose values are in no checked copy of a column.

        Returns the first fault of each record. In a store without row checksums, raises :class:`StoreError` if any
        column is damaged.
        """
        errors: dict[int, StoreError] = {}
        for name in names:
            kept = self._kept.get(name) or self._get_column_copy(name)
            for record in records[self._find_unproven(kept, records)].tolist():
                try:
                    read_again_if_damaged(self, record, partial(self._read_and_prove, kept))
                except CorruptRecordError as error:
                    errors.setdefault(record, error)
        return errors

    def verify_column(self, name: str) -> None:
        """Does nothing: values are checked when they are read."""

    def array(self, index: int) -> NDArray[Any]:
        """Returns the array, checked at one of 16 reads of the record.

        Raises :class:`CorruptRecordError` if it does not match its checksum.
        """
        return read_again_if_damaged(self, index, self._read_array)

    def _read_array(self, index: int) -> NDArray[Any]:
        """Reads the array, and checks it if its turn has come."""
        array = self._reader.array(index)
        if self._count_read(index):
            self.check_image(index, array.data, self._read_checksum(index))
        return array

    def read(self, index: int) -> Buffer:
        """Returns the image, checked if it is a file, or at one of 16 reads of the record.

        Raises :class:`CorruptRecordError` if it does not match its checksum.
        """
        return self._read_checked(index, self._reader.read)

    def view(self, index: int) -> Buffer:
        """Returns a view of the image, checked like :meth:`read`."""
        return self._read_checked(index, self._reader.view)

    def _read_checked(self, index: int, read: Callable[[int], Buffer]) -> Buffer:
        """Returns ``read(index)``, and counts a read of an array. Checks the image if its turn has come."""
        if not (self._all_images or self._count_read(index)):
            return read_again_if_damaged(self, index, read)
        return read_again_if_damaged(self, index, lambda i: self._verify_record(i, read(i)))

    def mark_suspect(self, index: int) -> None:
        """Also drops the column of checksums that is kept of a store of one file."""
        self._checksums = None
        super().mark_suspect(index)

    def _verify_record(self, index: int, data: Buffer) -> Buffer:
        """Returns the image ``data`` after checking it. Raises :class:`CorruptRecordError` if it does not match its
        checksum."""
        self.check_image(index, data, self._read_checksum(index))
        return data

    def _count_read(self, index: int) -> bool:
        """Counts a read of an array. Returns whether this read is the one of 16 that is checked."""
        reads = self._count[index]
        self._count[index] = (reads + 1) & 255
        return not (index + reads + self._first) % ARRAY_SHARE

    def _read_checksum(self, index: int) -> int:
        """Returns the checksum of an image, itself unchecked. An image does not match a damaged checksum."""
        if len(self._starts) > 1:
            return int(self._reader.value("checksum", index))
        if self._checksums is None:
            # A memoryview, for fast access to items. Cast from bytes, since an LMDB's values may be unaligned.
            self._checksums = self._reader.fixed_column("checksum").view(np.uint8).data.cast("Q")
        return self._checksums[index]

    def _get_column_copy(self, name: str) -> _ColumnCopy:
        """Returns the copy of a column in memory. The first call makes one without values."""
        column = self.manifest.column(name)
        with self._lock:
            return self._kept.setdefault(name, _ColumnCopy(column, len(self), len(self._starts)))

    def _find_unproven(self, kept: _ColumnCopy, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the positions in ``records`` of records whose values are in no checked copy of the column.

        Before that, copies the column from each file that has some of ``records`` and is not copied yet.
        """
        if len(self._starts) == 1:
            return np.arange(0 if self._ensure_copied(kept, 0) else len(records))
        parts = np.searchsorted(self._starts, records, "right") - 1
        for part in np.unique(parts[kept.state[parts] == _NEW]).tolist():
            self._ensure_copied(kept, part)
        return np.flatnonzero(kept.state[parts] != _SOUND)

    def _ensure_copied(self, kept: _ColumnCopy, part: int) -> bool:
        """Returns whether the copy of a column's values in one file is sound. The first call copies and checks them."""
        if kept.state[part] == _NEW:
            self._reader.part(part)  # outside the lock: fetching may take long
            with self._lock:
                if kept.state[part] == _NEW:
                    kept.state[part] = _SOUND if self._copy_sound(kept, part) else _BY_ROWS
                    if kept.state[part] == _SOUND and kept.fixed and len(self._starts) == 1:
                        self._proven[kept.column.name] = kept.shown
        return bool(kept.state[part] == _SOUND)

    def _copy_sound(self, kept: _ColumnCopy, part: int) -> bool:
        """Does :meth:`_copy_and_prove`. If that fails in a cached copy of a shard, has it fetched again and retries."""
        try:
            sound = self._copy_and_prove(kept, part)
        except UnreachableError:
            raise
        except StoreError:
            if not self.can_refetch:
                raise
            sound = False
        if sound or not self.can_refetch:
            return sound
        self.mark_suspect(self._starts[part])
        return self._copy_and_prove(kept, part)

    def _copy_and_prove(self, kept: _ColumnCopy, part: int) -> bool:
        """Copies a column's values in one file. Returns whether they match the column's digest and classes."""
        column, reader, start = kept.column, self._reader.part(part), self._starts[part]
        data = reader.column(column.name)
        copy: ColumnData
        if isinstance(data, Ragged):
            copy = Ragged(data.offsets.copy(), data.data.copy())
            copy.data.flags.writeable = False
            kept.ragged[part] = copy
        else:
            copy = kept.values[start : start + len(data)]
            copy[...] = data
        flat = copy.data if isinstance(copy, Ragged) else copy
        if column.classes is not None and find_invalid_class(column, flat) is not None:
            return False
        return column_digest(copy) == reader.manifest.column(column.name).digest


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
