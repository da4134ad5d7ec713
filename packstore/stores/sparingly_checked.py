"""A reader that checks what costs little: ``checksums="auto"``."""

from __future__ import annotations

import bisect
import random
import threading
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.core.checksums import column_digest
from packstore.core.columns import NUMPY_DTYPE, Buffer, ColumnData, Ragged
from packstore.core.errors import CorruptRecordError, StoreError
from packstore.core.manifest import Column
from packstore.stores.base import Reader
from packstore.stores.checked import CheckedReader, no_class

ARRAY_SHARE = 16
"""Of the arrays that are read, one in so many is compared with its checksum. Items of 224 x 224 uint8 pixels then take
2 to 3 percent more processor time; with 8, 4 to 6 percent."""
MOST_KEPT_BYTES = 64 << 20
"""The largest column that is kept in memory."""
MOST_KEPT_HASHES = 1 << 22
"""Of so many records a column that is larger has its hashes in memory, 32 MiB."""

_NEW, _SOUND, _BY_ROWS = 0, 1, 2


class SparinglyCheckedReader(CheckedReader):
    """Wraps a reader, and checks as much as costs next to nothing beside reading and decoding.

    - Image files: each that is read, against its checksum.
    - Arrays: each record at one of :data:`ARRAY_SHARE` reads. At which, is drawn for each process, so that worker
      processes that live for an epoch do not check the same ones all the time.
    - All other columns: the first time that one is needed of a file of the store, its values of that file are copied,
      and the copy is compared with the column's digest and the range of its classes. From then on values come from the
      copy, so what happens to the file afterwards does no harm. A column that does not match, or of more than
      :data:`MOST_KEPT_BYTES`, is checked record by record: the first time by the row checksum, which needs all columns
      of the record, from then on by the hash that the value had then, for :data:`MOST_KEPT_HASHES` records at a time.

    An image is compared as the file shows it at that moment; it is decoded right afterwards, from the same map.
    """

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self.has_image_array = reader.has_image_array
        self._all_images = reader.manifest.holds_files
        self._starts: list[int] = reader.part_starts.tolist()
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()
        self._proven: dict[str, NDArray[Any]] = {}  # fixed columns of a store of one file, once they are kept
        self._checksums: memoryview[int] | None = None
        # How often each record was read, modulo 256; in pages that the system gives when they are first written to.
        self._reads = np.zeros(0 if self._all_images else len(reader), np.uint8)
        self._count = self._reads.data  # an item of it costs a tenth of one of the array
        self._first = random.SystemRandom().randrange(ARRAY_SHARE)

    def read(self, index: int) -> Buffer:
        return self._checked(index, self._reader.read(index))

    def view(self, index: int) -> Buffer:
        return self._checked(index, self._reader.view(index))

    def check_images(self, records: NDArray[np.int64], images: NDArray[Any]) -> None:
        reads = self._reads[records]
        self._reads[records] = reads + np.uint8(1)
        for row in np.flatnonzero((records + reads + self._first) % ARRAY_SHARE == 0).tolist():
            self.check_image(int(records[row]), images[row].data)

    def column(self, name: str) -> ColumnData:
        if name != "image":
            self._check_digest(name)
        return self._reader.column(name)

    def value(self, name: str, index: int) -> Any:
        proven = self._proven.get(name)
        if proven is not None:
            return proven[index]
        kept = self._kept.get(name) or self._keep(name)
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        part = bisect.bisect_right(self._starts, index) - 1
        if kept.state[part] != _SOUND and not self._is_sound(kept, part):
            return self._proven_by_row(kept, index)
        return kept.shown[index] if kept.fixed else kept.ragged[part][index - self._starts[part]]

    def _proven_by_row(self, kept: _Kept, index: int) -> Any:
        try:
            value = self._reader.value(kept.column.name, index)
        except StoreError:
            self.check_fields(index)  # names the record and its key
            raise
        turn, slot = divmod(index, len(kept.hashes))
        found = (xxh3_64_intdigest(value) + turn) % (1 << 64) or 1  # records that share a slot are told apart by turn
        if kept.hashes[slot] != found:
            self._check_row(index, {kept.column.name: value})
            kept.hashes[slot] = found
        return value

    def values(self, name: str, records: NDArray[np.int64]) -> NDArray[Any]:
        kept = self._kept.get(name) or self._keep(name)
        if len(self._by_rows(kept, records)) or not kept.fixed:
            return self._reader.values(name, records)  # faults tells which of them are damaged
        values: NDArray[Any] = kept.values[records]
        return values

    def key(self, index: int) -> str:
        return bytes(self.value("key", index)).decode("utf-8", "surrogateescape")

    def faults(self, records: NDArray[np.int64], names: Iterable[str]) -> dict[int, StoreError]:
        found: dict[int, StoreError] = {}
        for name in names:
            kept = self._kept.get(name) or self._keep(name)
            for record in records[self._by_rows(kept, records)].tolist():
                try:
                    self._proven_by_row(kept, record)
                except CorruptRecordError as error:
                    found.setdefault(record, error)
        return found

    def check_column(self, name: str) -> None:
        """Nothing: values are checked when they are read."""

    def array(self, index: int) -> NDArray[Any]:
        array = self._reader.array(index)
        if self._is_due(index):
            self.check_image(index, array.data, self._expected(index))
        return array

    def _checked(self, index: int, data: Buffer) -> Buffer:
        if self._all_images or self._is_due(index):
            self.check_image(index, data, self._expected(index))
        return data

    def _is_due(self, index: int) -> bool:
        """Whether an array that is read is to be checked."""
        reads = self._count[index]
        self._count[index] = (reads + 1) & 255
        return not (index + reads + self._first) % ARRAY_SHARE

    def _expected(self, index: int) -> int:
        """The checksum of an image. Nothing proves it: where it is damaged, the image does not match it."""
        if len(self._starts) > 1:
            return int(self._reader.value("checksum", index))
        if self._checksums is None:
            # Of a memoryview, too. Through bytes, since the values of an LMDB do not begin at a multiple of 8.
            self._checksums = self._reader.fixed("checksum").view(np.uint8).data.cast("Q")
        return self._checksums[index]

    def _keep(self, name: str) -> _Kept:
        column = self.manifest.column(name)
        with self._lock:
            return self._kept.setdefault(name, _Kept(column, len(self), len(self._starts)))

    def _by_rows(self, kept: _Kept, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places in ``records`` of those whose value has to be proven by the row checksum."""
        if len(self._starts) == 1:
            return np.arange(0 if self._is_sound(kept, 0) else len(records))
        parts = np.searchsorted(self._starts, records, "right") - 1
        for part in np.unique(parts[kept.state[parts] == _NEW]).tolist():
            self._is_sound(kept, part)
        return np.flatnonzero(kept.state[parts] != _SOUND)

    def _is_sound(self, kept: _Kept, part: int) -> bool:
        """Whether the values that the column has in a file of the store are kept, after the first call for it."""
        if kept.state[part] == _NEW:
            self._reader.part(part)  # fetching it may take long, and need not keep other threads waiting
            with self._lock:
                if kept.state[part] == _NEW:
                    kept.state[part] = _SOUND if self._prove(kept, part) else _BY_ROWS
                    if kept.state[part] == _SOUND and kept.fixed and len(self._starts) == 1:
                        self._proven[kept.column.name] = kept.shown
        return bool(kept.state[part] == _SOUND)

    def _prove(self, kept: _Kept, part: int) -> bool:
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
        if column.classes is not None and no_class(column, flat) is not None:
            return False
        return column_digest(copy) == reader.manifest.column(column.name).digest


class _Kept:
    """A column in memory, as far as it was needed.

    Attributes:
        column: What it is.
        fixed: Whether it is a fixed column.
        values: Of a fixed column; in pages that the system gives when they are first written to.
        shown: The same, read-only.
        ragged: Of a ragged one, those of each file of the store.
        state: Of each file of the store, what is known of it.
    """

    @cached_property
    def hashes(self) -> NDArray[np.uint64]:
        """The XXH3-64 of values that were proven by their rows, 0 of others. In very large stores several records share
        a slot, which is of the last one; the others are proven by their rows again."""
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
