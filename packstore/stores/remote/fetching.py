"""Fetches the parts of an open store ahead of reading, or of several stores that are read as one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from packstore.cache import Cache
from packstore.stores.base import Reader
from packstore.stores.concatenation import ConcatReader
from packstore.stores.remote.reader import FetchCounts, RemoteReader


class FetchingReader(Protocol):
    """Fetches parts (files) of one or several stores, by their numbers in the reader of these stores."""

    @property
    def cache(self) -> Cache:
        """The cache of the parts."""

    @property
    def all_counts(self) -> list[FetchCounts]:
        """Statistics of the fetches of each store."""

    @property
    def part_nbytes(self) -> NDArray[np.int64]:
        """Bytes of each part; 0 for a part on this machine."""

    def prefetch(self, number: int) -> None:
        """Fetches a part into the cache, unless it is there. Raises :class:`StoreError` if that fails."""

    def release_shards(self, numbers: Collection[int]) -> None:
        """Closes parts, which the cache may evict from now on."""

    def refuse_requests(self) -> AbstractContextManager[None]:
        """Aborts pending requests, and refuses new ones until the context ends."""


def as_fetching(reader: Reader) -> FetchingReader | None:
    """Returns an object that can fetch the parts (files) of a reader before they are read.

    Returns None if all its stores are on this machine.
    """
    reader = reader.unchecked_reader
    if isinstance(reader, RemoteReader):
        return reader
    if isinstance(reader, ConcatReader) and any(isinstance(store, RemoteReader) for store in reader.stores):
        return _ConcatFetchingReader(reader)
    return None


class _ConcatFetchingReader:
    """Fetches parts of several stores that are read as one, by their numbers in the joined store."""

    def __init__(self, reader: ConcatReader) -> None:
        self._origins = reader.part_origins
        self._stores = [store for store in reader.stores if isinstance(store, RemoteReader)]

    @property
    def cache(self) -> Cache:
        """The cache, which all stores at URLs share."""
        return self._stores[0].cache

    @property
    def all_counts(self) -> list[FetchCounts]:
        """Statistics of the fetches of each store at a URL. Leaves out stores on this machine."""
        return [store.counts for store in self._stores]

    @property
    def part_nbytes(self) -> NDArray[np.int64]:
        """Bytes of each part; 0 for a part of a store on this machine."""
        sizes = {store: store.part_nbytes.tolist() for store in self._stores}
        return np.array([sizes[store][n] if store in sizes else 0 for store, n in self._origins], np.int64)

    def prefetch(self, number: int) -> None:
        """Fetches a part of a store at a URL. Does nothing for a part on this machine."""
        store, own = self._origins[number]
        if isinstance(store, RemoteReader):
            store.prefetch(own)

    def release_shards(self, numbers: Collection[int]) -> None:
        """Closes parts of stores at URLs. Ignores parts on this machine."""
        origins = [self._origins[number] for number in numbers]
        for store in self._stores:
            store.release_shards([own for owner, own in origins if owner is store])

    @contextmanager
    def refuse_requests(self) -> Iterator[None]:
        """Aborts pending requests, and refuses new ones of all stores until the context ends."""
        with ExitStack() as refused:
            for store in self._stores:
                refused.enter_context(store.refuse_requests())
            yield
