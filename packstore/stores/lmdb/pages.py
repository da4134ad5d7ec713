"""Finds, locates and walks the values of a mapped ``data.mdb`` without LMDB, in the engine (``lmdb.c``).

LMDB has no checksums and trusts its pages. py-lmdb touches every page of a value before it returns the value: a damaged
size or page number can crash the process instead of raising an error. Its views also dangle once another thread closes
the environment. Here every number of the file is checked before it is used.

Where the engine cannot be loaded, :mod:`packstore.stores.lmdb.nodes` does the same in Python: it is here anyway to say
what is wrong with a page, and a damaged file is then as harmless as with the engine.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from packstore.core import compiled
from packstore.stores.lmdb import nodes
from packstore.stores.lmdb.nodes import Gap, PageError, Tree, TreeEntry, WalkedColumn, WrongSize

DATA_FILE = "data.mdb"
_ROWS = 1 << 10
_NODES = 1 << 16
"""Nodes that one call of the engine visits: the walk then reports its progress."""
_MISSING, _PAGE, _VALUE, _TWICE, _ORDER, _UNREACHABLE, _ENTRY, _GAP, _SIZE = range(1, 10)  # enum lmdb_code of lmdb.h
_Value = ctypes.c_int64 * 5
"""``struct lmdb_value``: start, size, page, level or node, and code."""


class _Lookup(ctypes.Structure):
    """``struct lmdb_lookup``."""

    _fields_ = compiled.list_fields("lmdb_lookup", lmdb_tree=Tree)


class _Walk(ctypes.Structure):
    """``struct lmdb_walk``."""

    _fields_ = compiled.list_fields("lmdb_walk", lmdb_tree=Tree)


class Pages:
    """Maps a ``data.mdb`` into memory and finds values in its main database. Ignores named databases.

    Methods raise :class:`PageError` for damaged pages. Works from several threads, and in forked processes.

    Attributes:
        map: The whole file, ``uint8``; arrays over it keep the map alive.
        tree: Facts about the tree, from the newer header page.
    """

    def __init__(self, descriptor: int) -> None:
        """Maps the file and reads its header pages.

        Raises :class:`PageError` if the file is no LMDB, has an empty tree, or is shorter than its header says.
        """
        if not os.fstat(descriptor).st_size:
            raise PageError("data.mdb is empty")
        data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        self.tree = nodes.read_newest_tree(data)
        self.map: NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        # Values of single records come from a map of its own, without readahead: it would be wasted on random access.
        self.random = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            self.random.madvise(mmap.MADV_RANDOM)

    def find_value(self, key: bytes) -> NDArray[np.uint8] | None:
        """Returns the value of ``key`` as a view of the map, or None if there is no such key.

        Reads a page for each level of the tree, and the header of overflow pages.
        """
        library = compiled.load_once()[0]
        if library is None:
            place = nodes.find_value(self.tree, key)
        else:
            value = _Value()
            library.packstore_engine_find_lmdb_value(ctypes.byref(self.tree), key, len(key), value)
            place = self.read_result(value)
        return None if place is None else self.map[place[0] : place[0] + place[1]]

    def read_result(self, value: ctypes.Array[ctypes.c_int64]) -> tuple[int, int] | None:
        """Returns offset and size that the engine has found. None for a missing key."""
        start, size, page, where, code = value
        if code == _MISSING:
            return None
        if code:
            raise PageError(self._describe_fault(code, page % 2**64, where))
        return start, size

    def walk(
        self, columns: ctypes.Array[WalkedColumn], records: int, *, overflow: bool, report: Callable[[], None]
    ) -> Iterator[TreeEntry | Gap | WrongSize | str]:
        """Walks through the whole tree, in the order of keys, and compares it with what is expected.

        Counts the values of ``columns``. Yields entries that do not belong to them, gaps, values of a wrong size, and a
        line of text for each fault: damaged pages and entries, keys out of order, a wrong number of entries.

        Args:
            columns: Images, and columns with an entry for each record.
            records: Number of records.
            overflow: Also check the header of each value that has overflow pages.
            report: Called now and then.
        """
        library = compiled.load_once()[0]
        if library is None:
            yield from nodes.walk(self.tree, columns, records, overflow)
            return
        seen, rows = np.zeros(self.tree.last_page // 8 + 1, np.uint8), np.empty((_ROWS, 4), np.uint64)
        walk = _Walk(self.tree, seen.ctypes.data, ctypes.addressof(columns), len(columns), records, overflow)
        while not walk.ended:
            count = library.packstore_engine_walk_lmdb(ctypes.byref(walk), rows.ctypes.data, _ROWS, _NODES)
            for code, a, b, c in rows[:count].tolist():
                if code == _ENTRY:
                    yield TreeEntry(nodes.read_key(self.tree, a), c)
                elif code in (_GAP, _SIZE):
                    yield Gap(a, b, c) if code == _GAP else WrongSize(a, b, c)
                else:
                    yield self._describe_fault(code, a, b)
            report()
        if walk.entries != self.tree.entries:
            yield nodes.describe_count(walk.entries, self.tree.entries)

    def walk_entries(self) -> Iterator[TreeEntry | str]:
        """Yields all entries in key order, and a line of text for each fault."""
        for item in self.walk((WalkedColumn * 0)(), 0, overflow=False, report=lambda: None):
            assert isinstance(item, TreeEntry | str)  # without columns there is nothing else
            yield item

    def _describe_fault(self, code: int, page: int, where: int) -> str:
        """Returns the fault that the engine has found at a page or, for two kinds, at a node."""
        if code in (_ORDER, _UNREACHABLE):
            describe = nodes.describe_order if code == _ORDER else nodes.describe_unreachable
            return describe(nodes.read_key(self.tree, page), nodes.read_key(self.tree, where))
        if code == _TWICE:  # without reading its nodes again: a hostile file names pages millions of times
            return f"the tree names page {page} twice"
        try:
            if code == _VALUE:
                nodes.locate_value(self.tree, page, where)
            else:
                nodes.read_nodes(self.tree, page, where)
        except PageError as error:
            return str(error)
        return f"page {page} has changed while it was checked"


class RecordLookup:
    """Locates values whose keys are a prefix and a record number in ten digits.

    Attributes:
        pages: Pages of the file.
        data: The map of the file without readahead, in which the values are.
        address: Address of its first byte in memory.
    """

    def __init__(self, pages: Pages, prefix: bytes) -> None:
        self.pages = pages
        self._key = prefix + b"%010d"
        self.data = memoryview(pages.random)
        self.address = np.frombuffer(pages.random, np.uint8).ctypes.data
        self._lookup = _Lookup(pages.tree, len(prefix), prefix)
        self._lookup.tree.address = self.address
        self._lookup_at = ctypes.addressof(self._lookup)
        library = compiled.load_with_gil()
        self._locate_one = None if library is None else library.packstore_engine_locate_lmdb_record

    def find_value(self, record: int) -> memoryview | None:
        """Returns the value of a record, or None if there is none. The view keeps its map alive.

        Raises :class:`PageError` if a page on the way is damaged. Reads no overflow pages of sound files, which would
        wait for the disk under the GIL.
        """
        if self._locate_one is None:
            place = nodes.find_value(self.pages.tree, self._key % record)
        else:
            value = _Value()
            if self._locate_one(self._lookup_at, record, value):
                start: int = value[0]
                return self.data[start : start + value[1]]
            place = self.pages.read_result(value)
        return None if place is None else self.data[place[0] : place[0] + place[1]]

    def locate(self, records: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Returns the offsets and sizes of values, and how many have been located: all before the first fault."""
        places = np.empty((2, len(records)), np.int64)
        starts, sizes = places
        library = compiled.load_once()[0]
        if library is not None:
            numbers, value = np.ascontiguousarray(records, np.int64), _Value()
            at, nbytes = places.ctypes.data, starts.nbytes
            count = library.packstore_engine_locate_lmdb_records(
                self._lookup_at, numbers.ctypes.data, len(numbers), at, at + nbytes, value
            )
            return starts, sizes, count
        for count, record in enumerate(records.tolist()):
            try:
                place = nodes.find_value(self.pages.tree, self._key % record)
            except PageError:
                place = None
            if place is None:
                return starts, sizes, count
            places[:, count] = place
        return starts, sizes, len(records)
