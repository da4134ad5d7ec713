"""Gets records out of a damaged LMDB: looks at every page, since the pages that lead to others may be broken.

A leaf page holds whole entries: the key (ten digits for a record, letters for a column, both for a value of a column
that lies record by record) and the value, or the number of the page where a long value begins. Older copies of a page
may still lie in the file, so a record can have several places. A long image whose entry is lost is found by its
checksum.
"""

from __future__ import annotations

import math
import re
import struct
from array import array
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from packstore.core.checksums import column_digest
from packstore.core.column import guessed
from packstore.core.columns import NUMPY_DTYPE, Buffer, ColumnData, fixed_value, one_by_one
from packstore.core.errors import StoreError
from packstore.core.manifest import Column
from packstore.stores.lmdb.npy import HEADER_BYTES, read_header
from packstore.stores.lmdb.pages import (
    BIG,
    BRANCH,
    HEADER,
    LEAF,
    MAX_KEY_SIZE,
    META_PAGE,
    NODE,
    OVERFLOW_PAGE,
)
from packstore.stores.manifest_recovery import RecoveredManifest, best_manifest, find_manifest
from packstore.stores.scavenge import Scavenged, array_names, column_from_bytes

_PAGE = 4096
_PAGES_AT_ONCE = 1 << 14
_NPY = b"\x93NUMPY"
_NUMBERED = re.compile(rb"((?:[a-z][a-z0-9_]{0,63}/)?)(\d{10})")
_MAX_TRIED = 1000


def scavenge(data: memoryview, hint: RecoveredManifest | None) -> Scavenged:
    """The columns and images of a ``data.mdb``, from its bytes."""
    scan = _Scan(data)
    texts = scan.named.get("manifest", ())
    named = hint or best_manifest(bytes(text) for text in reversed(texts))
    found = named if named is not None and named.proven else find_manifest(data) or named
    records = scan.records if found is None else found.manifest.records
    columns = scan.columns(found, records)
    alternatives = {name: partial(scan.values, column) for name, column in scan.one_by_one.items()}
    return Scavenged(found, columns, records, scan.images, scan.orphans, alternatives)


class _Scan:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._size = _page_size(data)
        self.named: dict[str, list[memoryview]] = {}
        self._arrays: list[int] = []
        self._long_values: dict[int, int] = {}  # first page of each long value, and its pages
        self.one_by_one: dict[str, Column] = {}  # of the columns that were found
        entries: dict[bytes, array[int]] = {b"": array("q")}
        for page in self._candidates():
            for prefix, *entry in self._entries(page):
                entries.setdefault(prefix, array("q")).extend(entry)
        self._places: dict[bytes, NDArray[np.int64]] = {}
        for prefix, numbers in entries.items():
            found = np.array(numbers, np.int64).reshape(-1, 3)
            self._places[prefix] = found[np.argsort(found[:, 0], kind="stable")].T
        self.images = partial(self.candidates, b"")
        self.numbered = {prefix[:-1].decode("ascii") for prefix in self._places if prefix}
        self.records = int(self._places[b""][0, -1]) + 1 if len(entries[b""]) else 0

    def candidates(self, prefix: bytes, record: int) -> list[Buffer]:
        """Candidates for a record's image, or its value of a column by the prefix of its keys, in file order."""
        places = self._places[prefix]
        first, last = np.searchsorted(places[0], [record, record + 1])
        return [self._data[start : start + size] for start, size in places[1:, first:last].T.tolist()]

    def orphans(self, sums: set[int]) -> Iterator[tuple[int, Buffer]]:
        """Long values that no entry leads to and that have one of these checksums."""
        known = {page for places in self._places.values() for page in (places[1] // self._size).tolist()}
        for page, count in self._long_values.items():
            if page in known or not sums:
                continue
            start, end = page * self._size + HEADER.size, (page + count) * self._size
            # Its length was in the lost entry: it ends somewhere in its last page.
            least = max(start, end - self._size)
            running = xxh3_64(self._data[start:least])
            for stop in range(least, min(end, len(self._data)) + 1):
                if running.intdigest() in sums:
                    yield running.intdigest(), self._data[start:stop]
                    break
                running.update(self._data[stop : stop + 1])

    def columns(self, found: RecoveredManifest | None, records: int) -> dict[str, ColumnData]:
        """The columns that were found: the copy with the manifest's digest, or else the last."""
        columns: dict[str, ColumnData] = {}
        wanted = self._described(records) if found is None else found.manifest.columns[1:]
        for column in wanted:
            if column.name in self.numbered and (found is None or column.one_by_one):
                self.one_by_one[column.name] = column
                columns[column.name] = one_by_one(column, records, partial(self._value, column))
                continue
            chosen: ColumnData | None = None
            for data in self._copies(column, records):
                chosen = data
                if column.digest is not None and column_digest(data) == column.digest:
                    break
            else:
                # Its entry, or the pointer to it, is damaged: only the digest tells the right array.
                for data in islice(self._copies(column, records, adrift=True), _MAX_TRIED if column.digest else 0):
                    if column_digest(data) == column.digest:
                        chosen = data
                        break
            if chosen is not None:
                columns[column.name] = chosen
        return columns

    def values(self, column: Column, record: int) -> list[Any]:
        """Candidates for the value of a record in a column that lies record by record, as :func:`one_by_one` gives
        them."""
        found = self._raw_values(column, record)
        return [fixed_value(column, raw) for raw in found] if column.kind == "fixed" else [*found]

    def _raw_values(self, column: Column, record: int) -> list[Buffer]:
        found = self.candidates(f"{column.name}/".encode("ascii"), record)
        return [raw for raw in found if column.kind == "ragged" or len(raw) == column.record_nbytes]

    def _value(self, column: Column, record: int) -> Buffer:
        found = self._raw_values(column, record)
        if not found:
            raise StoreError(f"nothing says where the {column.name} of record {record} lies")
        return found[-1]

    def _candidates(self) -> Iterator[int]:
        """Pages marked as leaves, and pages without any valid mark."""
        total = len(self._data) // self._size
        raw: NDArray[np.uint8] = np.frombuffer(self._data, np.uint8, total * self._size).reshape(total, self._size)
        for first in range(0, total, _PAGES_AT_ONCE):
            heads = np.ascontiguousarray(raw[first : first + _PAGES_AT_ONCE, : HEADER.size])
            number = heads.view("<u8")[:, 0]
            flags = heads.view("<u2")[:, 5]
            right = number == np.arange(first, first + len(heads))
            for page in np.flatnonzero(right & (flags == OVERFLOW_PAGE)).tolist():
                count = int(heads[page, 12:16].view("<u4")[0])
                self._long_values[first + page] = min(max(count, 1), total - first - page)
            leaf = (flags == LEAF) | (right & ~np.isin(flags, (BRANCH, OVERFLOW_PAGE, META_PAGE)))
            yield from (first + np.flatnonzero(leaf)).tolist()

    def _entries(self, page: int) -> Iterator[tuple[bytes, int, int, int]]:
        """(prefix, record, start, size) of each entry of a leaf page that can be one; named ones go to ``named``."""
        start = page * self._size
        end = start + self._size
        self._arrays += [start + match.start() for match in re.finditer(re.escape(_NPY), self._data[start:end])]
        lower = HEADER.unpack_from(self._data, start)[3]
        if not HEADER.size < lower <= self._size or lower % 2:
            lower = self._size  # up to the last thing that looks like an entry
        for (pointer,) in struct.iter_unpack("<H", self._data[start + HEADER.size : start + lower]):
            node = start + pointer
            if not HEADER.size < pointer <= self._size - NODE.size:
                continue
            low, high, flags, key_size = NODE.unpack_from(self._data, node)
            value, size = node + NODE.size + key_size, low | high << 16
            if key_size > MAX_KEY_SIZE or value > end or flags not in (0, BIG):
                continue
            key = bytes(self._data[node + NODE.size : value])
            if flags == BIG:
                if value + 8 > end:
                    continue
                value = int.from_bytes(self._data[value : value + 8], "little") * self._size + HEADER.size
                if value < 2 * self._size or value + size > len(self._data):
                    continue
            elif value + size > end:
                continue
            numbered = _NUMBERED.fullmatch(key)
            if numbered is not None:
                yield numbered[1], int(numbered[2]), value, size
            elif key[:1].isalpha() and key.isascii():
                self.named.setdefault(key.decode("ascii"), []).append(self._data[value : value + size])

    def _copies(self, column: Column, records: int, *, adrift: bool = False) -> Iterator[ColumnData]:
        expected = [column.nbytes, 8 * (records + 1)]
        # The array is at the end of the value, even if the header before it is damaged.
        pieces = [
            [
                value[len(value) - size :]
                for value in (self._adrift(size) if adrift else self._values(name, size))
                if len(value) > size
            ]
            for name, size in zip(array_names(column), expected, strict=False)
        ]
        for first in pieces[0]:
            for second in pieces[1] if len(pieces) > 1 else [first]:
                yield column_from_bytes(column, records, [first, second])

    def _values(self, name: str, size: int) -> Iterator[memoryview]:
        """Candidates for the array ``name``: long values without an entry, then those with one."""
        for page in self._long_values:
            start = page * self._size + HEADER.size
            if self._data[start : start + len(_NPY)] == _NPY:
                header = 10 + int.from_bytes(self._data[start + 8 : start + 10], "little")
                if start + header + size <= len(self._data):
                    yield self._data[start : start + header + size]
        yield from self.named.get(name, ())

    def _adrift(self, size: int) -> Iterator[memoryview]:
        """Candidates for an array of ``size`` bytes, anywhere in a leaf page."""
        for start in self._arrays:
            header = 10 + int.from_bytes(self._data[start + 8 : start + 10], "little")
            stop = start + header + size
            if stop <= (start // self._size + 1) * self._size:
                yield self._data[start:stop]

    def _described(self, records: int) -> list[Column]:
        """The columns as their own headers describe them, where there is no manifest."""
        columns = []
        names = {dtype.str: name for name, dtype in NUMPY_DTYPE.items() if name != "bfloat16"}
        columns += [guessed(name, "ragged", "uint8") for name in sorted(self.numbered)]
        for name, values in self.named.items():
            if name.endswith("/offsets") or name == "manifest":
                continue
            try:
                shape, _, dtype, _ = read_header(bytes(values[-1][:HEADER_BYTES]))
            except ValueError:
                continue
            if name.endswith("/bytes") and len(shape) == 1:
                columns.append(guessed(name.removesuffix("/bytes"), "ragged", "uint8", nbytes=shape[0]))
            elif dtype.str in names and shape[:1] == (records,):
                nbytes = dtype.itemsize * math.prod(shape)
                columns.append(guessed(name, "fixed", names[dtype.str], shape[1:], nbytes))
        return columns


def _page_size(data: memoryview) -> int:
    """The page size as the first header page has it, or the usual one."""
    found = int.from_bytes(data[40:44], "little")
    return found if 512 <= found <= 65536 and not found & (found - 1) else _PAGE
