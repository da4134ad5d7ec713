"""LMDB's own structure, read page by page without LMDB.

LMDB keeps no checksums and follows what its pages say: a damaged size or page number can end the process instead of
raising (py-lmdb touches every page of a value before it returns it). Its views own nothing: after a close in another
thread they point nowhere. So packstore reads over a map of its own, with bounds checks. :meth:`Pages.walk` looks at
every branch and leaf page (and, when asked, the header of every overflow run) and says what is wrong.

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

from packstore.core.columns import Placed

HEADER = struct.Struct("<QHHHH")  # page number, pad, flags, lower, upper
_OVERFLOW = struct.Struct("<QHHI")  # page number, pad, flags, number of pages
_META = struct.Struct("<16xIIQQ")  # magic, version, address, map size
_DB = struct.Struct("<IHHQQQQQ")  # pad, flags, depth, branch, leaf and overflow pages, entries, root
NODE = struct.Struct("<HHHH")  # low and high half of the size (or page number), flags, key size
DATA_FILE = "data.mdb"
KEY_SIZE = 10
MAX_KEY_SIZE = 511  # LMDB's own, as it is built nearly everywhere
_META_DB, _META_END = 40, 136
_MAGIC, _VERSION = 0xBEEFC0DE, 1
BRANCH, LEAF, OVERFLOW_PAGE, META_PAGE = 1, 2, 4, 8
"""Flags of a page."""
BIG = 1
"""Flag of a node whose value has overflow pages of its own."""


def value_bytes(size: int) -> int:
    """Bytes that LMDB takes for a record of ``size`` bytes.

    Above about 2 KB these are whole 4 KiB pages with a header of 16 bytes; below, a share of a leaf page, which holds
    as many entries (10 bytes of key, 8 of header, 2 of index) as fit.
    """
    if size > 2020:
        return -(-(size + 16) // 4096) * 4096
    return 4096 // (4080 // (size + 20))


class PageError(Exception):
    """A page is damaged; says how. The reader turns it into a StoreError or a Problem."""


class Value(NamedTuple):
    """One entry of the tree: its key and the size of its value."""

    key: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Tree:
    """What a header page says of the main database's tree."""

    page_size: int
    last_page: int
    root: int
    depth: int
    entries: int
    map_size: int


class Pages:
    """The main database of one ``data.mdb``, mapped.

    Attributes:
        map: The whole file, ``uint8``; arrays over it hold the map by themselves.
        tree: What the header says of the tree.
        entries: Number of entries, from the header.
        record: Returns the value of a record (its key is ten digits); see :meth:`Numbered.value`.

    Safe to use from several threads: kept branch pages are only ever added. A fork does no harm.
    """

    def __init__(self, descriptor: int) -> None:
        """Reads the header pages only. Raises :class:`PageError`."""
        if not os.fstat(descriptor).st_size:
            raise PageError("data.mdb is empty")
        self._data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        self.tree = _newest_tree(self._data)
        self.map: NDArray[np.uint8] = np.frombuffer(self._data, np.uint8)
        self.entries = self.tree.entries
        self._random = _random_map(descriptor)
        self._random_at = _address(memoryview(self._random))
        self._numbered: dict[bytes, Numbered] = {}
        self.record = self.numbered(b"").value

    def numbered(self, prefix: bytes) -> Numbered:
        """The values whose keys are ``prefix`` and ten digits."""
        found = self._numbered.get(prefix)
        if found is None:
            found = self._numbered[prefix] = Numbered(self._data, self._random, self.tree, prefix)
        return found

    def will_need(self, value: memoryview) -> None:
        """Asks the system to fetch what :meth:`record` returned: without readahead it would come page by page."""
        if hasattr(mmap, "MADV_WILLNEED") and len(value):
            start = (_address(value) - self._random_at) // mmap.PAGESIZE * mmap.PAGESIZE
            stop = _address(value) - self._random_at + len(value)
            if 0 <= start < stop <= len(self._random):  # else it is of the other map, from find
                self._random.madvise(mmap.MADV_WILLNEED, start, stop - start)

    def find(self, key: bytes) -> NDArray[np.uint8] | None:
        """The value of ``key`` over the map, or None. Reads one page a level. Raises :class:`PageError`."""
        place = _find(self._data, self.tree, key)
        return None if place is None else self.map[place[0] : place[0] + place[1]]

    def header_faults(self) -> Iterator[str]:
        """Faults of the header pages that matter to LMDB but not here, one line each."""
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

    def walk(self, *, overflow: bool) -> Iterator[Value | str]:
        """All entries in order, and between them a line for each fault.

        Args:
            overflow: Also look at the header of each value that has pages of its own.
        """
        found = 0
        last = b""
        # A page that two others name would be walked twice; a tree of such pages would never end.
        seen: set[int] = set()
        for item in _subtree(self._data, self.tree, self.tree.root, 1, overflow, seen):
            if isinstance(item, Value):
                found += 1
                if item.key <= last:
                    yield f"key {item.key!r} follows {last!r}"
                last = item.key
            yield item
        if found != self.entries:
            yield f"the tree has {found} entries, its header says {self.entries}"


class Numbered:
    """The values of one column, or of the images: their keys are a prefix and ten digits.

    Faster than :meth:`Pages.find`: branch pages are kept as numbers, and since such keys follow each other in a leaf
    page, its first one tells the place of all.
    """

    def __init__(self, data: mmap.mmap, random: mmap.mmap, tree: Tree, prefix: bytes) -> None:
        self._data = data
        self._views = memoryview(random)
        self._address = np.frombuffer(random, np.uint8).ctypes.data
        self._tree = tree
        self._prefix = prefix
        self._key = prefix + b"%010d"
        self._node = struct.Struct(f"<HHHH{len(prefix) + KEY_SIZE}s")
        self._branches: dict[int, _Branch] = {}

    def leaves(self, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first number that can lie in each leaf page, and the page's number, in order.

        Raises :class:`PageError` for a damaged branch page, and where there are more than ``most`` leaf pages."""
        firsts, pages = [0], [self._tree.root]
        for level in range(1, self._tree.depth):
            above = zip(firsts, pages, strict=True)
            firsts, pages = [], []
            for first, page in above:
                branch = _branch(self._data, self._tree, page, level, first, self._prefix)
                firsts += branch.firsts
                pages += branch.children
                if len(pages) > most:
                    raise PageError(f"the tree has more than {most} pages at level {level + 1}")
        return np.maximum.accumulate(np.array(firsts, np.int64)), np.array(pages, np.int64)

    def views(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> Placed:
        """Parts of the file, which lie in it."""
        return Placed(self._views, self._address, starts, sizes)

    def value(self, index: int) -> memoryview | None:
        """The value number ``index``, or None. The view holds its map by itself. Raises :class:`PageError`."""
        data, tree, node = self._views, self._tree, self._node
        page, first = tree.root, 0
        for level in range(1, tree.depth):
            branch = self._branches.get(page)
            if branch is None:
                branch = self._branches[page] = _branch(self._data, tree, page, level, first, self._prefix)
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
                        # The walk checks the header of the value's pages. Reading it here would wait for the disk
                        # under the GIL, and nothing depends on it.
                        value = int.from_bytes(data[value : value + 8], "little") * size + HEADER.size
                        if 2 * size <= value <= value + nbytes <= (tree.last_page + 1) * size:
                            return data[value : value + nbytes]
        found = _find(self._data, tree, self._key % index)  # values are missing in between, or it says what is damaged
        return None if found is None else memoryview(self._data)[found[0] : found[0] + found[1]]


class _Branch(NamedTuple):
    """A branch page as numbers.

    Attributes:
        firsts: For each page below it, the first value that can lie there; not decreasing.
        children: The page's number.
    """

    firsts: array[int]
    children: array[int]


def _branch(data: mmap.mmap, tree: Tree, page: int, level: int, first: int, prefix: bytes) -> _Branch:
    """The branch page ``page``, whose values begin with number ``first``. Raises :class:`PageError`."""
    nodes = _nodes(data, tree, page, level)
    # The key of a page's first node is empty or does not matter.
    firsts = array("q", [first, *(_first_number(_key(data, node), prefix) for node in nodes[1:])])
    return _Branch(firsts, array("q", [_child(data, node) for node in nodes]))


def _first_number(key: bytes, prefix: bytes) -> int:
    """The first number whose key (``prefix`` and ten digits) is not before ``key``, which may be anything."""
    if not key.startswith(prefix):
        return 0 if key < prefix else 10**KEY_SIZE
    key = key[len(prefix) :]
    digits = len(key) - len(key.lstrip(b"0123456789"))
    if digits >= KEY_SIZE:
        return int(key[:KEY_SIZE]) + (len(key) > KEY_SIZE)
    low = int(key[:digits].ljust(KEY_SIZE, b"0"))
    return low + (10 ** (KEY_SIZE - digits) if key[digits:] > b"9" else 0)


def _find(data: mmap.mmap, tree: Tree, key: bytes) -> tuple[int, int] | None:
    """Position and size of the value of ``key``, or None. Reads one page a level. Raises :class:`PageError`."""
    page = tree.root
    for level in range(1, tree.depth + 1):
        nodes = _nodes(data, tree, page, level)
        # The first key of a branch page counts as smaller than all others.
        place = bisect.bisect_right(nodes, key, level < tree.depth, key=lambda node: _key(data, node)) - 1
        if place < 0:
            return None
        if level < tree.depth:
            page = _child(data, nodes[place])
    node = nodes[place]
    return _value(data, tree, page, node) if _key(data, node) == key else None


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def _random_map(descriptor: int) -> mmap.mmap:
    """A map of the file without readahead, which random access to small records would only waste."""
    data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_RANDOM"):
        data.madvise(mmap.MADV_RANDOM)
    return data


def _newest_tree(data: mmap.mmap) -> Tree:
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
        magic, version, _, map_size = _META.unpack_from(data, start)
        if (magic, version) != (_MAGIC, _VERSION):
            raise PageError(f"header page {page} has magic {magic:#x} and version {version}")
        _, _, depth, _, _, _, entries, root = _DB.unpack_from(data, start + _META_DB + _DB.size)
        last_page, txn = struct.unpack_from("<QQ", data, start + _META_END)
        if newest is None or txn > newest[0]:
            newest = txn, Tree(page_size, last_page, root, depth, entries, map_size)
    assert newest is not None
    tree = newest[1]
    if (tree.last_page + 1) * page_size > len(data):
        raise PageError(f"data.mdb has {len(data)} bytes, its header says {(tree.last_page + 1) * page_size}")
    if not 1 <= tree.depth <= 32:
        raise PageError(f"the tree is {tree.depth} pages deep" if tree.entries else "it is empty")
    return tree


def _subtree(
    data: mmap.mmap, tree: Tree, page: int, level: int, overflow: bool, seen: set[int]
) -> Iterator[Value | str]:
    """Entries below a page. A page that cannot be followed, or was ``seen`` before, yields a line and is passed."""
    try:
        nodes = _nodes(data, tree, page, level)
        if page in seen:
            raise PageError(f"the tree names page {page} twice")
        seen.add(page)
    except PageError as error:
        yield str(error)
        return
    for node in nodes:
        if level < tree.depth:
            yield from _subtree(data, tree, _child(data, node), level + 1, overflow, seen)
            continue
        try:
            size = _value(data, tree, page, node, overflow)[1]
        except PageError as error:
            yield str(error)
            continue
        yield Value(_key(data, node), size)


def _nodes(data: mmap.mmap, tree: Tree, page: int, level: int) -> list[int]:
    """Positions of the nodes of a branch or leaf page; the keys of all lie inside of it."""
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
            raise PageError(f"page {page} has an entry outside of itself")
        key_size = NODE.unpack_from(data, node)[3]
        if key_size > MAX_KEY_SIZE or node + NODE.size + key_size > end:
            raise PageError(f"page {page} has a key of {key_size} bytes, too long, or one that reaches out of it")
    return nodes


def _key(data: mmap.mmap, node: int) -> bytes:
    start = node + NODE.size
    return data[start : start + NODE.unpack_from(data, node)[3]]


def _child(data: mmap.mmap, node: int) -> int:
    low, high, top, _ = NODE.unpack_from(data, node)
    return int(low | high << 16 | top << 32)


def _value(data: mmap.mmap, tree: Tree, page: int, node: int, header: bool = True) -> tuple[int, int]:
    """Position and size of the value of a leaf's node. Raises :class:`PageError` when it cannot lie there."""
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
    shown = f"the value of {_key(data, node)!r} has {size} bytes from page {first} on"
    if first < 2 or first + pages - 1 > tree.last_page:
        raise PageError(f"{shown}, past the last page {tree.last_page}")
    if header:
        number, _, kind, count = _OVERFLOW.unpack_from(data, first * tree.page_size)
        if (number, kind) != (first, OVERFLOW_PAGE) or count < pages:
            raise PageError(f"{shown}, which says it is page {number}, flags {kind:#x}, of {count}")
    return first * tree.page_size + HEADER.size, size
