"""Keys of stores, by which records that are there twice are found. Memory is 16 bytes a record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.stores.base import Reader


class StoreKeys:
    """Whether a store has a key. Not for a store that changes."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        hashes = key_hashes([reader])
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]

    def __contains__(self, key: str) -> bool:
        wanted = np.uint64(xxh3_64_intdigest(key.encode("utf-8", "surrogateescape")))
        place = int(np.searchsorted(self._hashes, wanted))
        while place < len(self._hashes) and self._hashes[place] == wanted:
            if self._reader.key(int(self._order[place])) == key:
                return True
            place += 1
        return False


def key_hashes(readers: Iterable[Reader]) -> NDArray[np.uint64]:
    """``uint64``, the XXH3-64 of each key of these stores, in order."""
    readers = list(readers)
    keys = (key for reader in readers for part in reader.parts() for key in part.ragged("key"))
    return np.fromiter(map(xxh3_64_intdigest, keys), np.uint64, sum(map(len, readers)))


def repeated_keys(readers: Sequence[Reader]) -> Iterator[str]:
    """Keys that more than one record of these stores has, each once for every record but its first."""
    hashes = key_hashes(readers)
    ordered = np.sort(hashes)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(repeated):
        return
    ends = np.cumsum([len(reader) for reader in readers])
    seen: set[str] = set()
    for record in np.flatnonzero(np.isin(hashes, repeated)).tolist():
        number = int(np.searchsorted(ends, record, "right"))
        key = readers[number].key(record - int(ends[number]) + len(readers[number]))
        if key in seen:
            yield key
        seen.add(key)


def some_of(keys: Iterable[str], count: int = 3) -> tuple[list[str], int]:
    """The first ``count`` keys, and how many there are."""
    iterator = iter(keys)
    first = list(islice(iterator, count))
    return first, len(first) + sum(1 for _ in iterator)
