"""Finds records with equal keys, within a store or across stores. Takes 16 bytes of memory a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from packstore.core.columns import Buffer
from packstore.core.errors import StoreError, printable
from packstore.stores.records import Records

_K = TypeVar("_K", str, bytes)
_KEYS_AT_ONCE = 1 << 22  # 32 MiB of hashes


class KeyIndex:
    """Finds the places of keys by their hashes; ``in`` tells if a key has one."""

    def __init__(self, hashes: NDArray[np.uint64], read_key: Callable[[int], str] | None = None) -> None:
        """
        Args:
            hashes: Those of :func:`hash_keys`.
            read_key: Returns the key at a place, to tell apart different keys with equal hashes. None ignores those.
        """
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]
        self._read_key = read_key

    def __contains__(self, key: str) -> bool:
        return self.find(key) is not None

    def find(self, key: str) -> int | None:
        """Returns the first place of a key, or None."""
        wanted = np.uint64(xxh3_64_intdigest(encode_key(key)))
        first, last = (int(np.searchsorted(self._hashes, wanted, side)) for side in ("left", "right"))
        places = self._order[first:last].tolist()
        return next((place for place in places if self._read_key is None or self._read_key(place) == key), None)


def encode_key(key: str) -> bytes:
    """Encodes a key as UTF-8, as stores do. A surrogate becomes the byte that it stands for."""
    return key.encode("utf-8", "surrogateescape")


def hash_keys(readers: Iterable[Records]) -> NDArray[np.uint64]:
    """Hashes all keys of the stores with XXH3-64, in order: ``uint64 (N,)``."""
    readers = list(readers)
    keys = (key for reader in readers for part in reader.parts() for key in part.ragged_column("key"))
    return np.fromiter(map(xxh3_64_intdigest, keys), np.uint64, sum(map(len, readers)))


def find_repeated_keys(readers: Sequence[Records]) -> Iterator[tuple[int, str]]:
    """Yields number of the store and key of each record whose key an earlier record of the stores has."""
    ends = np.cumsum([len(reader) for reader in readers])

    def read_key(record: int) -> str:
        number = int(np.searchsorted(ends, record, "right"))
        return readers[number].key(record - int(ends[number]) + len(readers[number]))

    for _, record, key in _find_repeats(hash_keys(readers), read_key):
        yield int(np.searchsorted(ends, record, "right")), key


def refuse_duplicates(hashes: NDArray[np.uint64], read_key: Callable[[int], Buffer]) -> None:
    """Raises :class:`StoreError` naming two records with the same key, if there are any.

    Args:
        hashes: ``uint64`` hash of each key.
        read_key: Returns the key of a record; called only for keys with equal hashes.
    """
    for first, record, key in _find_repeats(hashes, lambda record: bytes(read_key(record))):
        shown = printable(key.decode("utf-8", "surrogateescape"))
        raise StoreError(f"records {first} and {record} have the same key {shown!r}; keys must be unique")


def _find_repeats(hashes: NDArray[np.uint64], read_key: Callable[[int], _K]) -> Iterator[tuple[int, int, _K]]:
    """Yields first record, record and key of each record whose key an earlier one has."""
    buckets = 1
    while len(hashes) // buckets > _KEYS_AT_ONCE:  # bounds memory
        buckets *= 2
    for bucket in range(buckets):
        chosen = hashes
        if buckets > 1:
            chosen = hashes[hashes >> np.uint64(65 - buckets.bit_length()) == bucket]
        chosen = np.sort(chosen)
        repeated = chosen[1:][chosen[1:] == chosen[:-1]]
        seen: dict[_K, int] = {}
        for record in np.flatnonzero(np.isin(hashes, repeated)).tolist() if len(repeated) else ():
            key = read_key(record)
            first = seen.setdefault(key, record)
            if first != record:
                yield first, record, key


def digest_keys(keys: Iterable[bytes | memoryview], count: int) -> NDArray[np.uint64]:
    """Digests each key with XXH3-128: ``uint64 (count, 2)``."""
    return np.frombuffer(b"".join(map(xxh3_128_digest, keys)), ">u8").astype(np.uint64).reshape(count, 2)


def list_double_keys(digests: Mapping[int, NDArray[np.uint64]]) -> list[tuple[int, int]]:
    """Lists the records with the key of an earlier record, and for each the first record with that key.

    ``digests``: those of :func:`digest_keys` for some ranges of records, by the first record of the range.
    """
    if not digests:
        return []
    numbers = np.concatenate([np.arange(start, start + len(some)) for start, some in digests.items()])
    rows = np.concatenate([*digests.values()])
    order = np.lexsort((rows[:, 1], rows[:, 0]))  # stable: equal digests stay in the order of records
    ordered = rows[order]
    again = np.zeros(len(order), np.bool_)
    again[1:] = (ordered[1:] == ordered[:-1]).all(axis=1)
    firsts = order[~again][np.cumsum(~again)[again] - 1]
    return sorted(zip(numbers[order[again]].tolist(), numbers[firsts].tolist(), strict=True))
