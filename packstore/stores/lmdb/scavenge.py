"""Recovers records from a damaged LMDB by looking at every page, since the branch pages may be damaged.

A leaf page holds whole entries. The key of an entry is a column's name, a record number, or both. After the key is the
value, or the number of the page at which a long value begins. The file may still hold older copies of a page: a record
can have several candidates. A long image whose entry is lost is recognised by its checksum.
"""

from __future__ import annotations

import math
import re
import struct
from array import array
from collections.abc import Iterator
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from packstore.core.columns import NUMPY_DTYPE, Buffer, ColumnData, guess_column, make_lazy_column, parse_fixed_value
from packstore.core.errors import StoreError
from packstore.core.manifest import Column
from packstore.core.proof import column_digest
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
from packstore.stores.lmdb.store import HEADER_BYTES, read_npy_header
from packstore.stores.scavenge import (
    RecoveredManifest,
    ScavengedData,
    choose_manifest,
    find_manifest,
    view_column,
)

_PAGE = 4096
_PAGES_AT_ONCE = 1 << 14
_NPY = b"\x93NUMPY"
_NUMBERED = re.compile(rb"((?:[a-z][a-z0-9_]{0,63}/)?)(\d{10})")
_MAX_TRIED = 1000


def scavenge(_: Path, data: memoryview, hint: RecoveredManifest | None) -> ScavengedData:
    """Recovers the columns and images of a ``data.mdb`` from its bytes, by looking at every page.

    The manifest is ``hint``, which is known from elsewhere, or else the last one in an entry. If its digest does not
    match, :func:`find_manifest` searches the whole file for a better one. Without a manifest, the highest record number
    gives the number of records.
    """
    scan = _PageScan(data)
    texts = scan.named.get("manifest", ())
    from_entry = hint or choose_manifest(bytes(text) for text in reversed(texts))
    recovered = from_entry if from_entry is not None and from_entry.proven else find_manifest(data) or from_entry
    records = scan.records if recovered is None else recovered.manifest.records
    columns = scan.recover_columns(recovered, records)
    alternatives = {name: partial(scan.list_value_candidates, column) for name, column in scan.one_by_one.items()}
    return ScavengedData(recovered, columns, records, scan.images, scan.find_orphans, alternatives)


class _PageScan:
    """Scans every page of a file, and keeps the place of everything that looks like an entry.

    These include older copies, and entries of pages with damaged marks. Creating the scan reads the file.

    Attributes:
        named: Values of entries without a record number, by key, in file order.
        one_by_one: The recovered columns with an entry per record, by name.
        images: Returns the candidates for a record's image.
        numbered: Names of columns with an entry per record that were found.
        records: One more than the highest record number of an image.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._size = _read_page_size(data)
        self.named: dict[str, list[memoryview]] = {}
        self._arrays: list[int] = []
        self._long_values: dict[int, int] = {}  # first page of each long value, and its pages
        self.one_by_one: dict[str, Column] = {}  # the recovered columns with an entry per record
        entries: dict[bytes, array[int]] = {b"": array("q")}
        for page in self._find_leaves():
            for prefix, *entry in self._parse_leaf(page):
                entries.setdefault(prefix, array("q")).extend(entry)
        self._places: dict[bytes, NDArray[np.int64]] = {}
        for prefix, numbers in entries.items():
            rows = np.array(numbers, np.int64).reshape(-1, 3)  # record, start, size
            self._places[prefix] = rows[np.argsort(rows[:, 0], kind="stable")].T
        self.images = partial(self.list_candidates, b"")
        self.numbered = {prefix[:-1].decode("ascii") for prefix in self._places if prefix}
        self.records = int(self._places[b""][0, -1]) + 1 if len(entries[b""]) else 0

    def list_candidates(self, prefix: bytes, record: int) -> list[Buffer]:
        """Returns the values with key ``prefix`` and ``record``, in file order. Some may be older copies."""
        places = self._places[prefix]
        first, last = np.searchsorted(places[0], [record, record + 1])
        return [self._data[start : start + size] for start, size in places[1:, first:last].T.tolist()]

    def find_orphans(self, sums: set[int]) -> Iterator[tuple[int, Buffer]]:
        """Yields checksum and bytes of each long value that no entry names and whose checksum is in ``sums``."""
        known = {page for places in self._places.values() for page in (places[1] // self._size).tolist()}
        for page, count in self._long_values.items():
            if page in known or not sums:
                continue
            start, end = page * self._size + HEADER.size, (page + count) * self._size
            # The lost entry had its length: it ends anywhere in its last page.
            least = max(start, end - self._size)
            running = xxh3_64(self._data[start:least])
            for stop in range(least, min(end, len(self._data)) + 1):
                if running.intdigest() in sums:
                    yield running.intdigest(), self._data[start:stop]
                    break
                running.update(self._data[stop : stop + 1])

    def recover_columns(self, recovered: RecoveredManifest | None, records: int) -> dict[str, ColumnData]:
        """Returns the columns that can be recovered. Without a manifest, guesses the columns from their arrays.

        - Column with an entry per record: reads its values on access. Adds it to :attr:`one_by_one`.
        - Column with several copies: takes the one with the manifest's digest, else the last. Tries at most 1,000
          arrays whose entry is lost.
        """
        columns: dict[str, ColumnData] = {}
        wanted = self._guess_columns(records) if recovered is None else recovered.manifest.columns[1:]
        for column in wanted:
            if column.name in self.numbered and (recovered is None or column.one_by_one):
                self.one_by_one[column.name] = column
                columns[column.name] = make_lazy_column(column, records, partial(self._read_last_value, column))
                continue
            chosen: ColumnData | None = None
            for data in self._build_column_candidates(column, records):
                chosen = data
                if column.digest is not None and column_digest(data) == column.digest:
                    break
            else:
                # Its entry, or the pointer to it, is damaged: only the digest identifies the array.
                loose = self._build_column_candidates(column, records, loose=True)
                tried = islice(loose, _MAX_TRIED if column.digest else 0)
                chosen = next((data for data in tried if column_digest(data) == column.digest), chosen)
            if chosen is not None:
                columns[column.name] = chosen
        return columns

    def list_value_candidates(self, column: Column, record: int) -> list[Any]:
        """Returns candidates for a record's value in a column with an entry per record, in stored form."""
        candidates = self._list_raw_values(column, record)
        return [parse_fixed_value(column, raw) for raw in candidates] if column.kind == "fixed" else [*candidates]

    def _list_raw_values(self, column: Column, record: int) -> list[Buffer]:
        """Returns the candidates for a record's value as bytes."""
        candidates = self.list_candidates(f"{column.name}/".encode("ascii"), record)
        # A fixed value of another size is no candidate.
        return [raw for raw in candidates if column.kind == "ragged" or len(raw) == column.record_nbytes]

    def _read_last_value(self, column: Column, record: int) -> Buffer:
        """Returns the last candidate for a record's value, or raises :class:`StoreError` if there is none."""
        candidates = self._list_raw_values(column, record)
        if not candidates:
            raise StoreError(f"no entry for the {column.name} of record {record} was found")
        return candidates[-1]  # older copies come first

    def _find_leaves(self) -> Iterator[int]:
        """Notes where long values are, and yields the numbers of pages that are or may be leaves."""
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
            # A page without a valid mark may be a leaf, too.
            leaf = (flags == LEAF) | (right & ~np.isin(flags, (BRANCH, OVERFLOW_PAGE, META_PAGE)))
            yield from (first + np.flatnonzero(leaf)).tolist()

    def _parse_leaf(self, page: int) -> Iterator[tuple[bytes, int, int, int]]:
        """Yields (prefix, record, start, size) of each plausible entry of a leaf page with a record number."""
        start = page * self._size
        end = start + self._size
        # Whatever looks like a .npy header: its entry may be damaged.
        self._arrays += [start + match.start() for match in re.finditer(re.escape(_NPY), self._data[start:end])]
        lower = HEADER.unpack_from(self._data, start)[3]
        if not HEADER.size < lower <= self._size or lower % 2:
            lower = self._size  # the bound is damaged: try the whole page
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
            elif key[:1].isalpha() and key.isascii():  # an array of a column, or the manifest: noted
                self.named.setdefault(key.decode("ascii"), []).append(self._data[value : value + size])

    def _build_column_candidates(self, column: Column, records: int, *, loose: bool = False) -> Iterator[ColumnData]:
        """Yields each possible content of a column, made from found arrays of its sizes."""
        expected = [column.nbytes, 8 * (records + 1)]
        # The array is at the end of the value, even if the header before it is damaged.
        pieces = [
            [
                value[len(value) - size :]
                # loose arrays are within leaf pages, and may belong to any column
                for value in (self._find_loose_arrays(size) if loose else self._find_arrays(name, size))
                if len(value) > size
            ]
            for name, size in zip(column.array_names, expected, strict=False)
        ]
        for arrays in product(*pieces):
            yield view_column(column, records, dict(zip(column.array_names, arrays, strict=True)))

    def _find_arrays(self, name: str, size: int) -> Iterator[memoryview]:
        """Yields candidates for the array ``name`` of ``size`` bytes, with their ``.npy`` headers."""
        # any long value that begins like an array: its entry may be lost
        for page in self._long_values:
            start = page * self._size + HEADER.size
            if self._data[start : start + len(_NPY)] == _NPY:
                header = 10 + int.from_bytes(self._data[start + 8 : start + 10], "little")
                if start + header + size <= len(self._data):
                    yield self._data[start : start + header + size]
        yield from self.named.get(name, ())

    def _find_loose_arrays(self, size: int) -> Iterator[memoryview]:
        """Yields candidates for an array of ``size`` bytes anywhere in a leaf page, with their headers."""
        for start in self._arrays:
            header = 10 + int.from_bytes(self._data[start + 8 : start + 10], "little")
            stop = start + header + size
            if stop <= (start // self._size + 1) * self._size:
                yield self._data[start:stop]

    def _guess_columns(self, records: int) -> list[Column]:
        """Derives the columns of a store without a manifest from the names and headers of their arrays."""
        columns = []
        names = {dtype.str: name for name, dtype in NUMPY_DTYPE.items() if name != "bfloat16"}
        # The type of columns with an entry per record is lost: they become ragged bytes.
        columns += [guess_column(name, "ragged", "uint8") for name in sorted(self.numbered)]
        for name, values in self.named.items():
            if name.endswith("/offsets") or name == "manifest":
                continue
            try:
                shape, _, dtype, _ = read_npy_header(bytes(values[-1][:HEADER_BYTES]))
            except ValueError:  # unreadable header
                continue
            if name.endswith("/bytes") and len(shape) == 1:
                columns.append(guess_column(name.removesuffix("/bytes"), "ragged", "uint8", nbytes=shape[0]))
            elif dtype.str in names and shape[:1] == (records,):
                nbytes = dtype.itemsize * math.prod(shape)
                columns.append(guess_column(name, "fixed", names[dtype.str], shape[1:], nbytes))
        return columns


def _read_page_size(data: memoryview) -> int:
    """Returns the page size that the first header page states, or 4096 if that size is impossible."""
    size = int.from_bytes(data[40:44], "little")
    return size if 512 <= size <= 65536 and not size & (size - 1) else _PAGE
