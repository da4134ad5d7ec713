"""Finds, locates and walks the values of a mapped ``data.mdb`` without LMDB, in the engine (``lmdb.c``).

LMDB has no checksums and trusts its pages. py-lmdb touches every page of a value before it returns the value: a damaged
size or page number can crash the process instead of raising an error. Its views also dangle once another thread closes
the environment. Here every number of the file is checked before it is used.

The engine only tells where a fault is. Functions in Python say what is wrong with that page. Where the engine cannot be
loaded, they read everything: more slowly, but with the same checks.

The format is that of LMDB 0.9, ``lmdb.h`` version 1, on 64-bit little-endian machines (``mdb.c``: ``MDB_page``,
``MDB_node``, ``MDB_meta``).
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core import compiled

HEADER = struct.Struct("<QHHHH")  # page number, pad, flags, lower, upper
NODE = struct.Struct("<HHHH")  # low and high half of the size (or page number), flags, key size
KEY_SIZE = 10
MAX_KEY_SIZE = 511  # MDB_MAXKEYSIZE of nearly every build
BRANCH, LEAF, OVERFLOW_PAGE, META_PAGE = 1, 2, 4, 8
"""Flags of a page."""
BIG = 1
"""Flag of a node whose value has overflow pages of its own."""
_OVERFLOW = struct.Struct("<QHHI")  # page number, pad, flags, number of pages
_META = struct.Struct("<16xIIQQ")  # magic, version, address, map size
_DB = struct.Struct("<IHHQQQQQ")  # pad, flags, depth, branch, leaf and overflow pages, entries, root
_META_DB, _META_END = 40, 136
_MAGIC, _VERSION = 0xBEEFC0DE, 1


class PageError(Exception):
    """A page is damaged; the message says how. :class:`LmdbPart` raises :class:`StoreError` instead."""


class TreeEntry(NamedTuple):
    """An entry of the tree: its key and the size of its value."""

    key: bytes
    size: int


class Gap(NamedTuple):
    """Records without an entry in a column: index of the column, first record, and the record after the last."""

    column: int
    first: int
    end: int


class WrongSize(NamedTuple):
    """A value of another size than its column states: index of the column, record, and size in bytes."""

    column: int
    record: int
    size: int


class WalkedColumn(ctypes.Structure):
    """``struct lmdb_column`` of ``lmdb.h``: the images, or a column with an entry for each record, during a walk.

    Attributes:
        prefix: Of the keys.
        width: Bytes of each value; -1 for values of any size.
        next: The record expected next.
        nbytes: Bytes of the values so far.
    """

    prefix: bytes
    width: int
    next: int
    nbytes: int
    _fields_ = compiled.list_fields("lmdb_column")


class Tree(ctypes.Structure):
    """The main database of a mapped file, as the newer of the two header pages describes it: ``struct lmdb_tree``.

    Attributes:
        data: The map.
        address: Address of its first byte.
        page_size: Bytes of a page.
        depth: Levels of the tree, at least 1.
        last_page: Number of the last page in use.
        root: Number of the root page.
        entries: Number of entries.
    """

    data: mmap.mmap
    address: int
    page_size: int
    depth: int
    last_page: int
    root: int
    entries: int
    _fields_ = compiled.list_fields("lmdb_tree")


def read_newest_tree(data: mmap.mmap) -> Tree:
    """Reads both header pages and returns the tree of the newer one.

    Raises :class:`PageError` for another format, an empty or too deep tree, or a file that is too short.
    """
    if len(data) < 2 * 4096:
        raise PageError(f"data.mdb has {len(data)} bytes, less than its two header pages")
    newest: tuple[int, Tree] | None = None
    page_size = _DB.unpack_from(data, _META_DB)[0]
    if page_size < 512 or page_size > 65536 or page_size & (page_size - 1):
        raise PageError(f"the page size is {page_size}")
    for page in (0, 1):
        start = page * page_size
        if start + _META_END + 16 > len(data):
            raise PageError("data.mdb ends inside its header pages")
        magic, version, _, _ = _META.unpack_from(data, start)
        if (magic, version) != (_MAGIC, _VERSION):
            raise PageError(f"header page {page} has magic {magic:#x} and version {version}")
        _, _, depth, _, _, _, entries, root = _DB.unpack_from(data, start + _META_DB + _DB.size)
        last_page, transaction = struct.unpack_from("<QQ", data, start + _META_END)
        if newest is None or transaction > newest[0]:
            newest = transaction, Tree(None, page_size, depth, last_page, root)
            newest[1].entries = entries
    assert newest is not None
    tree = newest[1]
    tree.data, tree.address = data, np.frombuffer(data, np.uint8).ctypes.data
    if (tree.last_page + 1) * page_size > len(data):
        raise PageError(f"data.mdb has {len(data)} bytes, its header says {(tree.last_page + 1) * page_size}")
    if not 1 <= tree.depth <= 32:
        raise PageError(f"the tree is {tree.depth} pages deep" if tree.entries else "it is empty")
    return tree


def find_header_faults(tree: Tree) -> Iterator[str]:
    """Yields a line for each fault of the header pages that this reader ignores, but LMDB may not."""
    for page in (0, 1):
        start = page * tree.page_size
        flags = HEADER.unpack_from(tree.data, start)[2]
        pads = [_DB.unpack_from(tree.data, start + _META_DB + i * _DB.size)[:2] for i in (0, 1)]
        if flags != META_PAGE:
            yield f"header page {page} has flags {flags:#x}"
        if pads[0][0] != tree.page_size:
            yield f"header page {page} says that pages have {pads[0][0]} bytes, not {tree.page_size}"
        if pads[1] != (0, 0):
            pad, flags = pads[1]
            yield f"header page {page} says that the tree has flags {flags:#x} and values of {pad} bytes"


def find_value(tree: Tree, key: bytes) -> tuple[int, int] | None:
    """Returns offset and size of the value of ``key``, or None if there is no such key.

    Reads a page for each level of the tree. Raises :class:`PageError` if one is damaged.
    """
    page = tree.root
    for level in range(1, tree.depth + 1):
        nodes = read_nodes(tree, page, level)
        # The first key of a branch page counts as smaller than all others.
        place = bisect.bisect_right(nodes, key, level < tree.depth, key=lambda node: read_key(tree, node)) - 1
        if place < 0:
            return None
        if level < tree.depth:
            page = read_child(tree, nodes[place])
    node = nodes[place]
    return locate_value(tree, page, node) if read_key(tree, node) == key else None


def _walk_tree(
    tree: Tree, columns: ctypes.Array[WalkedColumn], records: int, overflow: bool
) -> Iterator[TreeEntry | Gap | WrongSize | str]:
    """Does :meth:`Pages.walk` in Python."""
    count, last, lowest = 0, b"", b""
    numbered = {column.prefix: (which, column) for which, column in enumerate(columns)}
    for item in _walk_nodes(tree, overflow, tree.root, 1, set()):
        if isinstance(item, str):
            yield item
            continue
        key, size = item
        if size is None:  # in a branch page
            if key <= last:
                yield describe_unreachable(last, key)
            lowest = key
            continue
        count += 1
        if key <= last:
            yield describe_order(key, last)
        if key < lowest:
            yield describe_unreachable(key, lowest)
        last, lowest = key, b""
        which, column = numbered.get(key[:-KEY_SIZE], (-1, None))
        digits = key[-KEY_SIZE:]
        is_number = len(digits) == KEY_SIZE and digits.isdigit()
        if column is None or not is_number or not column.next <= int(digits) < records:
            yield TreeEntry(key, size)
            continue
        record = int(digits)
        if record > column.next:
            yield Gap(which, column.next, record)
        if column.width not in (-1, size):
            yield WrongSize(which, record, size)
        column.next, column.nbytes = record + 1, column.nbytes + size
    if count != tree.entries:
        yield describe_count(count, tree.entries)


def describe_order(key: bytes, last: bytes) -> str:
    """Returns the fault of an entry whose key is not after the key before."""
    return f"key {key!r} follows {last!r}"


def describe_unreachable(key: bytes, branch: bytes) -> str:
    """Returns the fault of an entry that lookups do not find, because of a key in a branch page."""
    return f"lookups do not find key {key!r}: the key {branch!r} in a branch page leads elsewhere"


def describe_count(count: int, stated: int) -> str:
    """Returns the fault of a tree with another number of entries than its header states."""
    return f"the tree has {count} entries, its header says {stated}"


def _walk_nodes(
    tree: Tree, overflow: bool, page: int, level: int, seen: set[int]
) -> Iterator[tuple[bytes, int | None] | str]:
    """Yields the faults of a subtree as text, and its entries in key order as key and size."""
    try:
        nodes = read_nodes(tree, page, level)
        if page in seen:  # else a damaged tree could take exponential time
            raise PageError(f"the tree names page {page} twice")
        seen.add(page)
    except PageError as error:
        yield str(error)
        return
    for number, node in enumerate(nodes):
        if level < tree.depth:
            if number:  # the first key of a branch page has no meaning
                # no size: the key of a branch page, before the entries of the page that it leads to
                yield read_key(tree, node), None
            yield from _walk_nodes(tree, overflow, read_child(tree, node), level + 1, seen)
            continue
        try:
            size = locate_value(tree, page, node, overflow)[1]
        except PageError as error:
            yield str(error)
            continue
        yield read_key(tree, node), size


def read_nodes(tree: Tree, page: int, level: int) -> list[int]:
    """Returns the offsets in the file of the nodes of a page: a leaf at the last level, else a branch.

    Raises :class:`PageError` unless header, pointers and keys of the page are valid.
    """
    if not 2 <= page <= tree.last_page:
        raise PageError(f"the tree names page {page} of {tree.last_page + 1}")
    start = page * tree.page_size
    end = start + tree.page_size
    number, _, flags, lower, upper = HEADER.unpack_from(tree.data, start)
    if number != page:
        raise PageError(f"page {page} says that it is page {number}")
    if flags != (BRANCH if level < tree.depth else LEAF):
        raise PageError(f"page {page} at level {level} of {tree.depth} has flags {flags:#x}")
    if lower <= HEADER.size or lower % 2 or not lower <= upper <= tree.page_size:
        raise PageError(f"page {page} has the bounds {lower} and {upper}")
    pointers = struct.unpack_from(f"<{(lower - HEADER.size) // 2}H", tree.data, start + HEADER.size)
    nodes = [start + pointer for pointer in pointers]
    for pointer, node in zip(pointers, nodes, strict=True):
        if not upper <= pointer <= tree.page_size - NODE.size:
            raise PageError(f"page {page} points to an entry outside the page")
        key_size = NODE.unpack_from(tree.data, node)[3]
        if key_size > MAX_KEY_SIZE or node + NODE.size + key_size > end:
            raise PageError(f"page {page} has a key of {key_size} bytes, which is too long or ends outside the page")
    return nodes


def read_key(tree: Tree, node: int) -> bytes:
    """Returns the key of a node; ``b""`` for node 0, which stands for none."""
    start = node + NODE.size
    return tree.data[start : start + NODE.unpack_from(tree.data, node)[3]] if node else b""


def read_child(tree: Tree, node: int) -> int:
    """Returns the number of the page that a branch node points to."""
    low, high, top, _ = NODE.unpack_from(tree.data, node)
    return int(low | high << 16 | top << 32)


def locate_value(tree: Tree, page: int, node: int, header: bool = True) -> tuple[int, int]:
    """Returns offset and size of the value of a leaf node.

    Raises :class:`PageError` if the value exceeds its page or the file. ``header``: also check the header of its
    overflow pages.
    """
    low, high, flags, key_size = NODE.unpack_from(tree.data, node)
    size = low | high << 16
    start = node + NODE.size + key_size
    if flags not in (0, BIG) or start + (8 if flags else size) > (page + 1) * tree.page_size:
        raise PageError(
            f"an entry of page {page} has flags {flags:#x}, a key of {key_size} and a value of {size} bytes"
        )
    if not flags:
        return start, size
    first = int.from_bytes(tree.data[start : start + 8], "little")
    pages = (HEADER.size - 1 + size) // tree.page_size + 1
    shown = f"the value of {read_key(tree, node)!r} has {size} bytes from page {first} on"
    if first < 2 or first + pages - 1 > tree.last_page:
        raise PageError(f"{shown}, past the last page {tree.last_page}")
    if header:
        number, _, kind, count = _OVERFLOW.unpack_from(tree.data, first * tree.page_size)
        if (number, kind) != (first, OVERFLOW_PAGE) or count < pages:
            raise PageError(f"{shown}, which says it is page {number}, flags {kind:#x}, of {count}")
    return first * tree.page_size + HEADER.size, size


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
        self.tree = read_newest_tree(data)
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
            place = find_value(self.tree, key)
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
            yield from _walk_tree(self.tree, columns, records, overflow)
            return
        seen, rows = np.zeros(self.tree.last_page // 8 + 1, np.uint8), np.empty((_ROWS, 4), np.uint64)
        walk = _Walk(self.tree, seen.ctypes.data, ctypes.addressof(columns), len(columns), records, overflow)
        while not walk.ended:
            count = library.packstore_engine_walk_lmdb(ctypes.byref(walk), rows.ctypes.data, _ROWS, _NODES)
            for code, a, b, c in rows[:count].tolist():
                if code == _ENTRY:
                    yield TreeEntry(read_key(self.tree, a), c)
                elif code in (_GAP, _SIZE):
                    yield Gap(a, b, c) if code == _GAP else WrongSize(a, b, c)
                else:
                    yield self._describe_fault(code, a, b)
            report()
        if walk.entries != self.tree.entries:
            yield describe_count(walk.entries, self.tree.entries)

    def walk_entries(self) -> Iterator[TreeEntry | str]:
        """Yields all entries in key order, and a line of text for each fault."""
        for item in self.walk((WalkedColumn * 0)(), 0, overflow=False, report=lambda: None):
            assert isinstance(item, TreeEntry | str)  # without columns there is nothing else
            yield item

    def _describe_fault(self, code: int, page: int, where: int) -> str:
        """Returns the fault that the engine has found at a page or, for two kinds, at a node."""
        if code in (_ORDER, _UNREACHABLE):
            describe = describe_order if code == _ORDER else describe_unreachable
            return describe(read_key(self.tree, page), read_key(self.tree, where))
        if code == _TWICE:  # without reading its nodes again: a hostile file names pages millions of times
            return f"the tree names page {page} twice"
        try:
            if code == _VALUE:
                locate_value(self.tree, page, where)
            else:
                read_nodes(self.tree, page, where)
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
            place = find_value(self.pages.tree, self._key % record)
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
                place = find_value(self.pages.tree, self._key % record)
            except PageError:
                place = None
            if place is None:
                return starts, sizes, count
            places[:, count] = place
        return starts, sizes, len(records)
