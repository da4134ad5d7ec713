"""Locates the images of many records at once with numpy, in a quarter of the Python time of one lookup a record.

:func:`locate_images` makes every check of :meth:`packstore.stores.lmdb.pages.RecordLookup.find_value`, and returns None
if one fails. The caller then looks the records up one by one, which reports the fault.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.stores.lmdb.pages import BIG, HEADER, KEY_SIZE, LEAF, NODE, PageError, Pages

MOST_ENTRIES = 10**7
"""Most entries of a tree whose leaf pages are listed: for more it would take over a tenth of a second."""

_POWERS_OF_TEN = 10 ** np.arange(KEY_SIZE - 1, -1, -1)

Numbers = NDArray[np.int64]


class LeafTable(NamedTuple):
    """The leaf pages of a tree in order, and two views of the file.

    Attributes:
        firsts: ``int64``, for each page the lowest record number that it can hold; ascending, with repeats.
        pages: ``int64``, page numbers.
        words: The file as 2-byte numbers.
        long_words: The file as 8-byte numbers.
    """

    firsts: Numbers
    pages: Numbers
    words: NDArray[np.uint16]
    long_words: Numbers


def list_leaves(pages: Pages) -> LeafTable | None:
    """Lists the leaf pages. Returns None if the tree has over ten million entries.

    Returns None also if a page number or a branch page is damaged.
    """
    tree = pages.tree
    if tree.entries > MOST_ENTRIES:
        return None
    try:
        firsts, numbers = pages.record_lookup(b"").list_leaves(tree.entries)
    except PageError:
        return None
    if not ((numbers >= 2) & (numbers <= tree.last_page)).all():
        return None
    data = pages.map[: (tree.last_page + 1) * tree.page_size]
    return LeafTable(firsts, numbers, data.view("<u2"), data.view("<i8"))


def locate_images(pages: Pages, leaves: LeafTable, records: Numbers) -> tuple[Numbers, Numbers] | None:
    """Returns the images' offsets in the file and their sizes in bytes, both ``int64``. None if any check fails.

    ``records``: no negative numbers; this is not checked.
    """
    tree, words = pages.tree, leaves.words
    size = tree.page_size
    leaf = np.searchsorted(leaves.firsts, records, "right") - 1
    page = leaves.pages[leaf]
    start = page * size
    pointer_at = HEADER.size + 2 * (records - leaves.firsts[leaf])
    word = start >> 1
    is_leaf = (leaves.long_words[start >> 3] == page) & (words[word + 5] == LEAF)
    if not (is_leaf & (pointer_at + 2 <= words[word + 6]) & (words[word + 6] <= size)).all():
        return None
    node = words[(start + pointer_at) >> 1].astype(np.int64)  # its offset in the page, then its place in the file
    if not ((node % 2 == 0) & (node <= size - NODE.size - KEY_SIZE)).all():
        return None
    node += start
    word = node >> 1
    big = words[word + 2] == BIG
    if not ((words[word + 3] == KEY_SIZE) & (big | (words[word + 2] == 0))).all():
        return None
    digits = pages.map[(node + NODE.size)[:, None] + np.arange(KEY_SIZE)] - np.uint8(ord("0"))
    if not ((digits <= 9).all() and (digits.astype(np.int64) @ _POWERS_OF_TEN == records).all()):
        return None
    sizes = words[word].astype(np.int64) | words[word + 1].astype(np.int64) << 16
    values = node + NODE.size + KEY_SIZE
    if not (values + np.where(big, 8, sizes) <= start + size).all():
        return None
    if big.any():
        pointers = values[big]
        first = pages.map[pointers[:, None] + np.arange(8)].view("<i8").reshape(-1)
        if not ((first >= 2) & (first <= tree.last_page)).all():
            return None
        values[big] = first * size + HEADER.size
        if not (values + sizes <= (tree.last_page + 1) * size)[big].all():
            return None
    return values, sizes
