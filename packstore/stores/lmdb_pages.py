"""LMDB's own structure, read page by page without LMDB.

LMDB keeps no checksums and follows what its pages say, so a damaged size or page number can end the process instead of
raising. This walk touches every branch and leaf page (and, when asked, the header of every overflow run) with bounds
checks, and says what is wrong. The format is that of LMDB 0.9, ``lmdb.h`` version 1, on 64-bit little-endian machines
(``mdb.c``: ``MDB_page``, ``MDB_node``, ``MDB_meta``).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct("<QHHHH")  # page number, pad, flags, lower, upper
_OVERFLOW = struct.Struct("<QHHI")  # page number, pad, flags, number of pages
_META = struct.Struct("<16xIIQQ")  # magic, version, address, map size
_DB = struct.Struct("<IHHQQQQQ")  # pad, flags, depth, branch, leaf and overflow pages, entries, root
_NODE = struct.Struct("<HHHH")  # low and high half of the size (or page number), flags, key size
_META_DB, _META_END = 40, 136
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW_PAGE = 1, 2, 4
_BIG = 1
_NONE = 2**64 - 1


class Damage(Exception):  # noqa: N818 - stays inside this module
    """What is wrong with a page."""


class Value(NamedTuple):
    """One entry of the tree: its key and the size of its value."""

    key: bytes
    size: int


@dataclass(frozen=True, slots=True)
class _Tree:
    page_size: int
    last_page: int
    root: int
    depth: int
    entries: int
    map_size: int


def walk(path: Path, *, overflow: bool) -> Iterator[Value | str]:
    """All entries of an LMDB's main database in order, and between them one line for each thing that is wrong.

    Args:
        path: Its ``data.mdb``.
        overflow: Also look at the header of each value that has pages of its own.
    """
    with path.open("rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                tree = _newest_tree(data)
                found = 0
                last = b""
                for item in _subtree(data, tree, tree.root, 1, overflow):
                    if isinstance(item, Value):
                        found += 1
                        if item.key <= last:
                            yield f"key {item.key!r} follows {last!r}"
                        last = item.key
                    yield item
                if found != tree.entries:
                    yield f"the tree has {found} entries, its header says {tree.entries}"
        except (Damage, ValueError) as damage:  # ValueError: an empty file cannot be mapped
            yield str(damage)


def _newest_tree(data: mmap.mmap) -> _Tree:
    if len(data) < 2 * 4096:
        raise Damage(f"data.mdb has {len(data)} bytes, less than its two header pages")
    newest: tuple[int, _Tree] | None = None
    page_size = _DB.unpack_from(data, _META_DB)[0]
    if page_size < 512 or page_size > 65536 or page_size & (page_size - 1):
        raise Damage(f"the page size is {page_size}")
    for page in (0, 1):
        start = page * page_size
        if start + _META_END + 16 > len(data):
            raise Damage("data.mdb ends inside its header pages")
        magic, version, _, map_size = _META.unpack_from(data, start)
        if (magic, version) != (_MAGIC, _VERSION):
            raise Damage(f"header page {page} has magic {magic:#x} and version {version}")
        _, _, depth, _, _, _, entries, root = _DB.unpack_from(data, start + _META_DB + _DB.size)
        last_page, txn = struct.unpack_from("<QQ", data, start + _META_END)
        if newest is None or txn > newest[0]:
            newest = txn, _Tree(page_size, last_page, root, depth, entries, map_size)
    assert newest is not None
    tree = newest[1]
    if (tree.last_page + 1) * page_size > len(data):
        raise Damage(f"data.mdb has {len(data)} bytes, its header says {(tree.last_page + 1) * page_size}")
    if tree.root == _NONE and tree.entries:
        raise Damage("the tree has no root")
    return tree


def _subtree(data: mmap.mmap, tree: _Tree, page: int, level: int, overflow: bool) -> Iterator[Value | str]:
    """Entries below a page. A page that cannot be followed is one line; the walk goes on behind it."""
    try:
        flags, nodes = _nodes(data, tree, page)
        if flags != (_LEAF if level == tree.depth else _BRANCH):
            raise Damage(f"page {page} at level {level} of {tree.depth} has flags {flags:#x}")
    except Damage as damage:
        yield str(damage)
        return
    for node in nodes:
        low, high, node_flags, key_size = _NODE.unpack_from(data, node)
        if flags == _BRANCH:
            yield from _subtree(data, tree, low | high << 16 | node_flags << 32, level + 1, overflow)
            continue
        size = low | high << 16
        value = node + _NODE.size + key_size
        end = page * tree.page_size + tree.page_size
        inline = 8 if node_flags & _BIG else size
        if node_flags not in (0, _BIG) or value + inline > end:
            yield f"an entry of page {page} has flags {node_flags:#x}, a key of {key_size} and a value of {size} bytes"
            continue
        key = data[node + _NODE.size : value]
        if node_flags & _BIG:
            problem = _check_overflow(data, tree, int.from_bytes(data[value : value + 8], "little"), size, overflow)
            if problem:
                yield f"the value of {key!r} {problem}"
        yield Value(key, size)


def _nodes(data: mmap.mmap, tree: _Tree, page: int) -> tuple[int, list[int]]:
    """Flags and positions of the nodes of a branch or leaf page."""
    if not 2 <= page <= tree.last_page:
        raise Damage(f"the tree names page {page} of {tree.last_page + 1}")
    start = page * tree.page_size
    number, _, flags, lower, upper = _HEADER.unpack_from(data, start)
    if number != page:
        raise Damage(f"page {page} says that it is page {number}")
    if lower < _HEADER.size or lower % 2 or not lower <= upper <= tree.page_size:
        raise Damage(f"page {page} has the bounds {lower} and {upper}")
    pointers = struct.unpack_from(f"<{(lower - _HEADER.size) // 2}H", data, start + _HEADER.size)
    if any(not upper <= p <= tree.page_size - _NODE.size for p in pointers):
        raise Damage(f"page {page} has an entry outside of itself")
    return flags, [start + p for p in pointers]


def _check_overflow(data: mmap.mmap, tree: _Tree, page: int, size: int, header: bool) -> str | None:
    pages = (_HEADER.size - 1 + size) // tree.page_size + 1
    if page < 2 or page + pages - 1 > tree.last_page:
        return f"has {size} bytes from page {page} on, past the last page {tree.last_page}"
    if header:
        number, _, flags, count = _OVERFLOW.unpack_from(data, page * tree.page_size)
        if (number, flags) != (page, _OVERFLOW_PAGE) or count < pages:
            return f"has {size} bytes on page {page}, which says it is page {number}, flags {flags:#x}, of {count}"
    return None
