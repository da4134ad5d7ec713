"""Reads LMDB's pages without LMDB, with bounds checks, over a map of the file.

LMDB has no checksums and trusts its pages. py-lmdb touches every page of a value before it returns the value: a damaged
size or page number can crash the process instead of raising an error. Its views also dangle once another thread closes
the environment.

:meth:`Pages.walk_entries` checks every branch and leaf page, on request also the header of every overflow run, and
reports the faults.

The format is that of LMDB 0.9, ``lmdb.h`` version 1, on 64-bit little-endian machines (``mdb.c``: ``MDB_page``,
``MDB_node``, ``MDB_meta``).
"""

from __future__ import annotations

import bisect
import mmap
import os
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import MappedValues

HEADER = struct.Struct("<QHHHH")  # page number, pad, flags, lower, upper
_OVERFLOW = struct.Struct("<QHHI")  # page number, pad, flags, number of pages
_META = struct.Struct("<16xIIQQ")  # magic, version, address, map size
_DB = struct.Struct("<IHHQQQQQ")  # pad, flags, depth, branch, leaf and overflow pages, entries, root
NODE = struct.Struct("<HHHH")  # low and high half of the size (or page number), flags, key size
DATA_FILE = "data.mdb"
KEY_SIZE = 10
MAX_KEY_SIZE = 511  # MDB_MAXKEYSIZE of nearly every build
_META_DB, _META_END = 40, 136
_MAGIC, _VERSION = 0xBEEFC0DE, 1
BRANCH, LEAF, OVERFLOW_PAGE, META_PAGE = 1, 2, 4, 8
"""Flags of a page."""
BIG = 1
"""Flag of a node whose value has overflow pages of its own."""


def estimate_bytes_on_disk(size: int) -> int:
    """Returns the bytes that LMDB takes on disk for a record of ``size`` bytes.

    Above about 2 KB these are whole 4 KiB pages with a header of 16 bytes. A smaller record takes its share of a leaf
    page: it needs 20 bytes more (10 of key, 8 of header, 2 of index), and a page holds as many as fit.
    """
    if size > 2020:
        return -(-(size + 16) // 4096) * 4096
    return 4096 // (4080 // (size + 20))


class PageError(Exception):
    """A page is damaged; the message says how. :class:`LmdbReader` raises :class:`StoreError` instead."""


class TreeEntry(NamedTuple):
    """One entry of the tree: its key and the size of its value."""

    key: bytes
    size: int


@dataclass(frozen=True, slots=True)
class TreeHeader:
    """Facts about the main database's tree, from a header page.

    Attributes:
        page_size: Bytes of a page.
        last_page: Number of the last page in use.
        root: Number of the root page.
        depth: Levels of the tree, at least 1.
        entries: Number of entries.
        map_size: Most bytes that the writer had reserved.
    """

    page_size: int
    last_page: int
    root: int
    depth: int
    entries: int
    map_size: int


class Pages:
    """Maps a ``data.mdb`` into memory and finds values in its main database. Ignores named databases.

    Methods raise :class:`PageError` for damaged pages. Works from several threads, and in forked processes.

    Attributes:
        map: The whole file, ``uint8``; arrays over it keep the map alive.
        tree: Facts about the tree, from the newer header page.
        entries: Number of entries, from the same page.
        find_image: Returns the image of a record; see :meth:`RecordLookup.find_value`.
    """

    def __init__(self, descriptor: int) -> None:
        """Maps the file and reads its header pages.

        Raises :class:`PageError` if the file is no LMDB, has an empty tree, or is shorter than its header says.
        """
        if not os.fstat(descriptor).st_size:
            raise PageError("data.mdb is empty")
        self._data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        self.tree = _read_newest_tree(self._data)
        self.map: NDArray[np.uint8] = np.frombuffer(self._data, np.uint8)
        self.entries = self.tree.entries
        self._random = _map_without_readahead(descriptor)
        self._random_at = _memory_address(memoryview(self._random))
        self._lookups: dict[bytes, RecordLookup] = {}
        self.find_image = self.record_lookup(b"").find_value

    def record_lookup(self, prefix: bytes) -> RecordLookup:
        """Returns the lookup of values whose keys are ``prefix`` and a record number. Keeps it for later calls."""
        lookup = self._lookups.get(prefix)
        if lookup is None:
            lookup = self._lookups[prefix] = RecordLookup(self._data, self._random, self.tree, prefix)
        return lookup

    def will_need(self, value: memoryview) -> None:
        """Asks the system to read all of a value that :attr:`find_image` returned.

        Without that, the value would be read page by page: its map has no readahead. Ignores other memory.
        """
        if hasattr(mmap, "MADV_WILLNEED") and len(value):
            start = (_memory_address(value) - self._random_at) // mmap.PAGESIZE * mmap.PAGESIZE
            stop = _memory_address(value) - self._random_at + len(value)
            if 0 <= start < stop <= len(self._random):  # else the value comes from the map that find uses
                self._random.madvise(mmap.MADV_WILLNEED, start, stop - start)

    def find_value(self, key: bytes) -> NDArray[np.uint8] | None:
        """Returns the value of ``key`` as a view of the map, or None if there is no such key.

        Reads a page for each level of the tree. Raises :class:`PageError` if one is damaged.
        """
        place = _find_value(self._data, self.tree, key)
        return None if place is None else self.map[place[0] : place[0] + place[1]]

    def find_header_faults(self) -> Iterator[str]:
        """Yields a line for each fault of the header pages that this reader ignores, but LMDB may not."""
        size = self.tree.page_size
        for page in (0, 1):
            start = page * size
            flags = HEADER.unpack_from(self._data, start)[2]
            pads = [_DB.unpack_from(self._data, start + _META_DB + i * _DB.size)[:2] for i in (0, 1)]
            if flags != META_PAGE:
                yield f"header page {page} has flags {flags:#x}"
            if pads[0][0] != size:
                yield f"header page {page} says that pages have {pads[0][0]} bytes, not {size}"
            if pads[1] != (0, 0):
                pad, flags = pads[1]
                yield f"header page {page} says that the tree has flags {flags:#x} and values of {pad} bytes"

    def walk_entries(self, *, overflow: bool) -> Iterator[TreeEntry | str]:
        """Yields all entries in key order, and a line of text for each fault.

        Faults are damaged pages, damaged entries, keys out of order, and a wrong number of entries. A damaged page or
        entry is left out.

        Args:
            overflow: Also check the header of each value that has overflow pages.
        """
        count = 0
        last = b""
        # A page that two others name would be walked twice, and a damaged tree could take exponential time.
        seen: set[int] = set()
        for item in _walk_subtree(self._data, self.tree, self.tree.root, 1, overflow, seen):
            if isinstance(item, TreeEntry):
                count += 1
                if item.key <= last:
                    yield f"key {item.key!r} follows {last!r}"
                last = item.key
            yield item
        if count != self.entries:
            yield f"the tree has {count} entries, its header says {self.entries}"


class RecordLookup:
    """Looks up values by record number, for images or a column whose keys are a prefix and ten digits.

    Faster than :meth:`Pages.find_value`: keeps branch pages parsed, and computes a record's place in a leaf page from
    the first record of the page. If the record is not there, searches by its key.
    """

    def __init__(self, data: mmap.mmap, random: mmap.mmap, tree: TreeHeader, prefix: bytes) -> None:
        self._data = data
        self._views = memoryview(random)
        self._address = np.frombuffer(random, np.uint8).ctypes.data
        self._tree = tree
        self._prefix = prefix
        self._key = prefix + b"%010d"
        self._node = struct.Struct(f"<HHHH{len(prefix) + KEY_SIZE}s")
        self._branches: dict[int, _Branch] = {}

    def list_leaves(self, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns for each leaf page, in order, the first record that it can hold and its number, both ``int64``.

        Raises:
            PageError: A branch page is damaged, or there are more than ``most`` leaf pages.
        """
        firsts, pages = [0], [self._tree.root]
        for level in range(1, self._tree.depth):
            above = zip(firsts, pages, strict=True)
            firsts, pages = [], []
            for first, page in above:
                branch = _parse_branch(self._data, self._tree, page, level, first, self._prefix)
                firsts += branch.firsts
                pages += branch.children
                if len(pages) > most:
                    raise PageError(f"the tree has more than {most} pages at level {level + 1}")
        return np.maximum.accumulate(np.array(firsts, np.int64)), np.array(pages, np.int64)

    def view_values(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> MappedValues:
        """Returns views of parts of the file, by offset and size in bytes. Checks no bounds."""
        return MappedValues(self._views, self._address, starts, sizes)

    def find_value(self, index: int) -> memoryview | None:
        """Returns the value of record ``index``, or None if there is none. The view keeps its map alive.

        Raises :class:`PageError` if a page on the way is damaged. Does not check the header of overflow pages.
        """
        data, tree, node = self._views, self._tree, self._node
        page, first = tree.root, 0
        for level in range(1, tree.depth):
            branch = self._branches.get(page)
            if branch is None:
                branch = self._branches[page] = _parse_branch(self._data, tree, page, level, first, self._prefix)
            place = bisect.bisect_right(branch.firsts, index) - 1
            page, first = branch.children[place], branch.firsts[place]
        size = tree.page_size
        start = page * size
        if not 2 <= page <= tree.last_page:
            raise PageError(f"the tree names page {page} of {tree.last_page + 1}")
        number, _, flags, lower, _ = HEADER.unpack_from(data, start)
        place = start + HEADER.size + 2 * (index - first)
        if number == page and flags == LEAF and place + 2 <= start + lower <= start + size:
            at = data[place] | data[place + 1] << 8
            if at <= size - node.size:
                low, high, kind, key_size, key = node.unpack_from(data, start + at)
                if key == self._key % index and key_size == len(key):
                    value = start + at + node.size
                    nbytes = low | high << 16
                    if not kind and value + nbytes <= start + size:
                        return data[value : value + nbytes]
                    if kind == BIG and value + 8 <= start + size:
                        # The header of the overflow pages is left to the walk: reading it here would wait for the
                        # disk under the GIL, and the value does not depend on it.
                        value = int.from_bytes(data[value : value + 8], "little") * size + HEADER.size
                        if 2 * size <= value <= value + nbytes <= (tree.last_page + 1) * size:
                            return data[value : value + nbytes]
        # Not at the computed place: values before it are missing, or a page is damaged, which _find_value reports.
        location = _find_value(self._data, tree, self._key % index)
        return None if location is None else memoryview(self._data)[location[0] : location[0] + location[1]]


class _Branch(NamedTuple):
    """A parsed branch page.

    Attributes:
        firsts: For each child page, the first record that it can hold.
        children: Numbers of the child pages.
    """

    firsts: array[int]
    children: array[int]


def _parse_branch(data: mmap.mmap, tree: TreeHeader, page: int, level: int, first: int, prefix: bytes) -> _Branch:
    """Parses branch page ``page``. Raises :class:`PageError` if the page is damaged.

    ``first``: first record that the page can hold.
    """
    nodes = _read_node_offsets(data, tree, page, level)
    # The key of the first node is empty or meaningless.
    firsts = array("q", [first, *(_first_record_from(_read_key(data, node), prefix) for node in nodes[1:])])
    return _Branch(firsts, array("q", [_read_child_page(data, node) for node in nodes]))


def _first_record_from(key: bytes, prefix: bytes) -> int:
    """Returns the first record whose key is not before ``key``, any bytes.

    A record's key is ``prefix`` and ten digits. Returns 10,000,000,000 if all records have keys before ``key``.
    """
    if not key.startswith(prefix):
        return 0 if key < prefix else 10**KEY_SIZE
    key = key[len(prefix) :]
    digits = len(key) - len(key.lstrip(b"0123456789"))
    if digits >= KEY_SIZE:
        return int(key[:KEY_SIZE]) + (len(key) > KEY_SIZE)
    low = int(key[:digits].ljust(KEY_SIZE, b"0"))
    return low + (10 ** (KEY_SIZE - digits) if key[digits:] > b"9" else 0)


def _find_value(data: mmap.mmap, tree: TreeHeader, key: bytes) -> tuple[int, int] | None:
    """Returns offset and size of the value of ``key``, or None if there is no such key.

    Reads a page for each level of the tree. Raises :class:`PageError` if one is damaged.
    """
    page = tree.root
    for level in range(1, tree.depth + 1):
        nodes = _read_node_offsets(data, tree, page, level)
        # The first key of a branch page counts as smaller than all others.
        place = bisect.bisect_right(nodes, key, level < tree.depth, key=lambda node: _read_key(data, node)) - 1
        if place < 0:
            return None
        if level < tree.depth:
            page = _read_child_page(data, nodes[place])
    node = nodes[place]
    return _locate_value(data, tree, page, node) if _read_key(data, node) == key else None


def _memory_address(view: memoryview) -> int:
    """Returns the address of a view's first byte in memory."""
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def _map_without_readahead(descriptor: int) -> mmap.mmap:
    """Maps the file, without readahead if the system allows that. Random access to small records would waste it."""
    data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_RANDOM"):
        data.madvise(mmap.MADV_RANDOM)
    return data


def _read_newest_tree(data: mmap.mmap) -> TreeHeader:
    """Reads both header pages and returns the tree of the newer one.

    Raises :class:`PageError` for another format, an empty or too deep tree, or a file that is too short.
    """
    if len(data) < 2 * 4096:
        raise PageError(f"data.mdb has {len(data)} bytes, less than its two header pages")
    newest: tuple[int, TreeHeader] | None = None
    page_size = _DB.unpack_from(data, _META_DB)[0]
    if page_size < 512 or page_size > 65536 or page_size & (page_size - 1):
        raise PageError(f"the page size is {page_size}")
    for page in (0, 1):
        start = page * page_size
        if start + _META_END + 16 > len(data):
            raise PageError("data.mdb ends inside its header pages")
        magic, version, _, map_size = _META.unpack_from(data, start)
        if (magic, version) != (_MAGIC, _VERSION):
            raise PageError(f"header page {page} has magic {magic:#x} and version {version}")
        _, _, depth, _, _, _, entries, root = _DB.unpack_from(data, start + _META_DB + _DB.size)
        last_page, txn = struct.unpack_from("<QQ", data, start + _META_END)
        if newest is None or txn > newest[0]:
            newest = txn, TreeHeader(page_size, last_page, root, depth, entries, map_size)
    assert newest is not None
    tree = newest[1]
    if (tree.last_page + 1) * page_size > len(data):
        raise PageError(f"data.mdb has {len(data)} bytes, its header says {(tree.last_page + 1) * page_size}")
    if not 1 <= tree.depth <= 32:
        raise PageError(f"the tree is {tree.depth} pages deep" if tree.entries else "it is empty")
    return tree


def _walk_subtree(
    data: mmap.mmap, tree: TreeHeader, page: int, level: int, overflow: bool, seen: set[int]
) -> Iterator[TreeEntry | str]:
    """Yields the entries below a page in key order, and a line of text for each damaged page or entry.

    A page that is already in ``seen`` counts as damaged. Adds all other pages to ``seen``.
    """
    try:
        nodes = _read_node_offsets(data, tree, page, level)
        if page in seen:
            raise PageError(f"the tree names page {page} twice")
        seen.add(page)
    except PageError as error:
        yield str(error)
        return
    for node in nodes:
        if level < tree.depth:
            yield from _walk_subtree(data, tree, _read_child_page(data, node), level + 1, overflow, seen)
            continue
        try:
            size = _locate_value(data, tree, page, node, overflow)[1]
        except PageError as error:
            yield str(error)
            continue
        yield TreeEntry(_read_key(data, node), size)


def _read_node_offsets(data: mmap.mmap, tree: TreeHeader, page: int, level: int) -> list[int]:
    """Returns the offsets in the file of the nodes of a page: a leaf at the last level, else a branch.

    Raises :class:`PageError` unless header, pointers and keys of the page are valid.
    """
    if not 2 <= page <= tree.last_page:
        raise PageError(f"the tree names page {page} of {tree.last_page + 1}")
    start = page * tree.page_size
    end = start + tree.page_size
    number, _, flags, lower, upper = HEADER.unpack_from(data, start)
    if number != page:
        raise PageError(f"page {page} says that it is page {number}")
    if flags != (BRANCH if level < tree.depth else LEAF):
        raise PageError(f"page {page} at level {level} of {tree.depth} has flags {flags:#x}")
    if lower <= HEADER.size or lower % 2 or not lower <= upper <= tree.page_size:
        raise PageError(f"page {page} has the bounds {lower} and {upper}")
    pointers = struct.unpack_from(f"<{(lower - HEADER.size) // 2}H", data, start + HEADER.size)
    nodes = [start + p for p in pointers]
    for pointer, node in zip(pointers, nodes, strict=True):
        if not upper <= pointer <= tree.page_size - NODE.size:
            raise PageError(f"page {page} points to an entry outside the page")
        key_size = NODE.unpack_from(data, node)[3]
        if key_size > MAX_KEY_SIZE or node + NODE.size + key_size > end:
            raise PageError(f"page {page} has a key of {key_size} bytes, which is too long or ends outside the page")
    return nodes


def _read_key(data: mmap.mmap, node: int) -> bytes:
    """Returns the key of a node."""
    start = node + NODE.size
    return data[start : start + NODE.unpack_from(data, node)[3]]


def _read_child_page(data: mmap.mmap, node: int) -> int:
    """Returns the number of the page that a branch node points to."""
    low, high, top, _ = NODE.unpack_from(data, node)
    return int(low | high << 16 | top << 32)


def _locate_value(data: mmap.mmap, tree: TreeHeader, page: int, node: int, header: bool = True) -> tuple[int, int]:
    """Returns offset and size of the value of a leaf node.

    Raises :class:`PageError` if the value exceeds its page or the file. ``header``: also check the header of its
    overflow pages.
    """
    low, high, flags, key_size = NODE.unpack_from(data, node)
    size = low | high << 16
    start = node + NODE.size + key_size
    if flags not in (0, BIG) or start + (8 if flags else size) > (page + 1) * tree.page_size:
        raise PageError(
            f"an entry of page {page} has flags {flags:#x}, a key of {key_size} and a value of {size} bytes"
        )
    if not flags:
        return start, size
    first = int.from_bytes(data[start : start + 8], "little")
    pages = (HEADER.size - 1 + size) // tree.page_size + 1
    shown = f"the value of {_read_key(data, node)!r} has {size} bytes from page {first} on"
    if first < 2 or first + pages - 1 > tree.last_page:
        raise PageError(f"{shown}, past the last page {tree.last_page}")
    if header:
        number, _, kind, count = _OVERFLOW.unpack_from(data, first * tree.page_size)
        if (number, kind) != (first, OVERFLOW_PAGE) or count < pages:
            raise PageError(f"{shown}, which says it is page {number}, flags {kind:#x}, of {count}")
    return first * tree.page_size + HEADER.size, size
