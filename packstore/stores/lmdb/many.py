"""The places of many records' images at once, as arrays, in a quarter of the Python that they take one by one.

It demands all that :meth:`packstore.stores.lmdb.pages.Numbered.value` looks at. Where something differs it says
nothing, and the reads one by one say what is wrong.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.stores.lmdb.pages import BIG, HEADER, KEY_SIZE, LEAF, NODE, PageError, Pages

MOST_ENTRIES = 10**7
"""Of a larger tree the pages are not listed: it would take more than a tenth of a second."""

_FIGURES = 10 ** np.arange(KEY_SIZE - 1, -1, -1)

Numbers = NDArray[np.int64]


class Leaves(NamedTuple):
    """The leaf pages of a tree in order.

    Attributes:
        firsts: ``int64``, the first record that can lie in each; not decreasing.
        pages: ``int64``, their numbers.
        words: The file as numbers of two bytes.
        long_words: The file as numbers of eight bytes.
    """

    firsts: Numbers
    pages: Numbers
    words: NDArray[np.uint16]
    long_words: Numbers


def leaves_of(pages: Pages) -> Leaves | None:
    """The leaf pages; None where there are too many, or a branch page is damaged."""
    tree = pages.tree
    if tree.entries > MOST_ENTRIES:
        return None
    try:
        firsts, numbers = pages.numbered(b"").leaves(tree.entries)
    except PageError:
        return None
    if not ((numbers >= 2) & (numbers <= tree.last_page)).all():
        return None
    data = pages.map[: (tree.last_page + 1) * tree.page_size]
    return Leaves(firsts, numbers, data.view("<u2"), data.view("<i8"))


def places_of(pages: Pages, leaves: Leaves, records: Numbers) -> tuple[Numbers, Numbers] | None:
    """Where in the file the images of ``records`` begin and how many bytes they have, ``int64``; None where one is not
    as LMDB leaves it."""
    tree, words = pages.tree, leaves.words
    size = tree.page_size
    leaf = np.searchsorted(leaves.firsts, records, "right") - 1
    page = leaves.pages[leaf]
    start = page * size
    place = HEADER.size + 2 * (records - leaves.firsts[leaf])
    half = start >> 1
    good = (leaves.long_words[start >> 3] == page) & (words[half + 5] == LEAF)
    if not (good & (place + 2 <= words[half + 6]) & (words[half + 6] <= size)).all():
        return None
    node = words[(start + place) >> 1].astype(np.int64)
    if not ((node % 2 == 0) & (node <= size - NODE.size - KEY_SIZE)).all():
        return None
    node += start
    half = node >> 1
    big = words[half + 2] == BIG
    if not ((words[half + 3] == KEY_SIZE) & (big | (words[half + 2] == 0))).all():
        return None
    figures = pages.map[(node + NODE.size)[:, None] + np.arange(KEY_SIZE)] - np.uint8(ord("0"))
    if not ((figures <= 9).all() and (figures.astype(np.int64) @ _FIGURES == records).all()):
        return None
    sizes = words[half].astype(np.int64) | words[half + 1].astype(np.int64) << 16
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
