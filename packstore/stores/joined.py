"""Reads several open stores as one: joins their columns and classes, and brings their images to one encoding."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.column import join_hidden_boxes
from packstore.core.columns import Buffer
from packstore.core.errors import StoreError
from packstore.core.manifest import Column, Manifest, Split
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.proof import join_records_digests
from packstore.core.urls import ShardPlace
from packstore.stores.lenses import Renumbered, join_columns
from packstore.stores.parts import Part, Problem, Rows
from packstore.stores.records import Chain, PartTable, Records


class RecordRange(NamedTuple):
    """Consecutive records of one of the joined stores.

    Attributes:
        store: Number of the store.
        first: Number of the first record in that store.
        start: Number of the first record in the joined store.
        length: Number of records.
    """

    store: int
    first: int
    start: int
    length: int


class JoinedTable(PartTable):
    """The files of several stores that are read as one. A file with several splits is listed several times.

    Attributes:
        ranges: The ranges of records, in order.
        stores: The table of each store.
    """

    def __init__(self, path: Path, manifest: Manifest, stores: Sequence[PartTable], ranges: list[RecordRange]) -> None:
        self.stores = stores
        self.ranges = ranges
        self._origins: list[tuple[int, int]] = []  # number of the store, number of the file in it
        starts: list[int] = []
        for run in ranges:
            own = stores[run.store].starts
            first, last = stores[run.store].find([run.first, run.first + run.length - 1]).tolist()
            for number in range(first, last + 1):
                starts.append(run.start + max(0, int(own[number]) - run.first))
                self._origins.append((run.store, number))
        super().__init__(path, manifest, np.array(starts, np.int64))
        self.can_refetch = any(store.can_refetch for store in stores)
        self.cache = next((store.cache for store in stores if store.cache is not None), None)
        self.all_counts = [counts for store in stores for counts in store.all_counts]
        sizes = [stores[store].part_nbytes[number] for store, number in self._origins]
        self.part_nbytes = np.array(sizes, np.int64)

    def open(self, number: int) -> Part:
        store, local = self._origins[number]
        return self.stores[store].open(local)

    def places(self) -> list[ShardPlace]:
        places = [store.places() for store in self.stores]
        return [places[store][local] for store, local in self._origins]

    def check_files(self) -> None:
        for store in self.stores:
            store.check_files()

    def disk_bytes(self) -> int:
        return sum(store.disk_bytes() for store in self.stores)

    def mark_suspect(self, number: int) -> None:
        store, local = self._origins[number]
        self.stores[store].mark_suspect(local)

    def are_local(self, numbers: Iterable[int]) -> NDArray[np.bool_]:
        chosen = [*numbers]
        local = np.ones(len(chosen), np.bool_)
        for store, (places, own) in self._group(chosen).items():
            local[places] = self.stores[store].are_local(own)
        return local

    def prefetch(self, number: int) -> None:
        store, local = self._origins[number]
        self.stores[store].prefetch(local)

    def release(self, numbers: Collection[int]) -> None:
        for store, (_, own) in self._group(numbers).items():
            self.stores[store].release(own)

    @contextmanager
    def refuse_requests(self) -> Iterator[None]:
        with ExitStack() as refused:
            for store in self.stores:
                refused.enter_context(store.refuse_requests())
            yield

    def faults(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Yields the faults of all stores. Record numbers count within each store, not within the joined store."""
        for store in self.stores:
            yield from store.faults(quick=quick, progress=progress)

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def _group(self, numbers: Iterable[int]) -> dict[int, tuple[list[int], list[int]]]:
        """Groups files by store: their positions in ``numbers``, and their numbers in the store."""
        groups: dict[int, tuple[list[int], list[int]]] = {}
        for place, number in enumerate(numbers):
            store, local = self._origins[number]
            places, own = groups.setdefault(store, ([], []))
            places.append(place)
            own.append(local)
        return groups


class _Joined(Chain):
    """Reads the splits of several stores one after the other. Each store checks its own records."""

    def __init__(self, table: JoinedTable, stores: Sequence[Rows]) -> None:
        ranges = table.ranges
        starts, firsts = [run.start for run in ranges], [run.first for run in ranges]
        super().__init__(table.path, table.manifest, (starts, firsts), lambda number: stores[ranges[number].store])
        self._stores = stores
        self.converts_images = any(rows.converts_images for rows in stores)

    def read_stored_image(self, index: int) -> Buffer:
        return self._read(index, lambda rows, local: rows.read_stored_image(local))

    def find_faults(self, records: NDArray[np.int64], names: Iterable[str]) -> dict[int, StoreError]:
        errors: dict[int, StoreError] = {}
        names = [*names]
        for number, _, local in self._group(records):
            for record, error in self._open(number).find_faults(local, names).items():
                self._renumber(error, self._shifts[number])
                errors[record + self._shifts[number]] = error
        return errors

    def check_fields(self, index: int) -> None:
        self._read(index, lambda rows, local: rows.check_fields(local))

    def verify_column(self, name: str) -> None:
        for rows in self._stores:
            rows.verify_column(name)


def join_stores(readers: Sequence[Records]) -> Records:
    """Reads open stores as one: each split has the records of the first store, then those of the second, and so on.

    Columns are joined as by ``merge``: classes are matched by name, and class numbers are those of the joined classes.
    A number without a class becomes -1. The manifest has the first store's options and skipped samples. Closing the
    result closes all stores.

    Raises:
        StoreError: The stores do not fit together.
    """
    columns = join_columns(readers)
    ranges = [*_list_ranges(readers)]
    path = Path(" + ".join(str(reader.path) for reader in readers))
    manifest = _join_manifests([reader.manifest for reader in readers], columns, ranges)
    table = JoinedTable(path, manifest, [reader.table for reader in readers], ranges)

    def join(stores: Sequence[Records]) -> Rows:
        return _Joined(table, [Renumbered(store.rows, columns) for store in stores])

    unchecked = [reader.unchecked_reader for reader in readers]
    checks = any(plain is not reader for plain, reader in zip(unchecked, readers, strict=True))
    return Records(table, join(readers), Records(table, join(unchecked)) if checks else None)


def _join_manifests(
    manifests: Sequence[Manifest], columns: Sequence[Column], ranges: Sequence[RecordRange]
) -> Manifest:
    """Builds the manifest of the joined store."""
    splits: dict[str, Split] = {}
    if manifests[0].splits:
        for run in ranges:
            name = next(s.name for s in manifests[run.store].splits if s.start == run.first and len(s))
            start = splits[name].start if name in splits else run.start
            splits[name] = Split(name, start, run.start + run.length)
    given = [(column, [manifest.column(column.name) for manifest in manifests]) for column in columns]
    whole = (
        replace(column, nbytes=sum(each.nbytes for each in parts), hides_boxes=join_hidden_boxes(parts))
        for column, parts in given
    )
    # all else, such as options and skipped samples, is the first store's
    return replace(
        manifests[0],
        records=sum(manifest.records for manifest in manifests),
        columns=tuple(whole),
        splits=tuple(splits.values()),
        records_digest=join_records_digests((m.records_digest, m.records) for m in manifests),
        shards=None,
    )


def _list_ranges(readers: Sequence[Records]) -> Iterator[RecordRange]:
    """Yields the nonempty ranges of the joined store: split by split, then store by store."""
    names = dict.fromkeys(split.name for reader in readers for split in reader.manifest.splits)
    start = 0
    for name in names or (None,):
        for number, reader in enumerate(readers):
            if name is None or any(split.name == name for split in reader.manifest.splits):
                split = reader.split(name)
                if len(split):
                    yield RecordRange(number, split.start, start, len(split))
                    start += len(split)
