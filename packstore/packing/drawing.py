"""Random draws of records by their keys.

A draw depends on the keys alone: each record gets the XXH3-64 of its key with the seed, and the records with the lowest
numbers are taken. The order of the records and the shards have no influence. A draw stays stable when records are
added.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.core.errors import StoreError, UsageError, printable
from packstore.stores.base import Reader


def hash_keys_with_seed(reader: Reader, records: NDArray[np.int64], seed: int, what: str) -> NDArray[np.uint64]:
    """Hashes the key of each record with the seed and the draw's purpose ``what``: ``uint64 (N,)``.

    The order of these numbers is the order of a random draw.
    """
    salt = what.encode("ascii") + b"\0"
    keys = (salt + bytes(reader.value("key", record)) for record in records.tolist())
    return np.fromiter((xxh3_64_intdigest(key, seed=seed) for key in keys), np.uint64, len(records))


def read_class_numbers(reader: Reader, records: NDArray[np.int64], by_class: bool) -> NDArray[np.int64]:
    """Returns the class number of each record, -1 for a record without a label.

    Without ``by_class``, returns 0 for all records and reads nothing. Else raises :class:`UsageError` if the store has
    no column ``label`` of one class a record.
    """
    if not by_class:
        return np.zeros(len(records), np.int64)
    if not reader.manifest.has_column("label"):
        raise UsageError(f"{printable(str(reader.path))} has no column 'label', so nothing can be drawn by class")
    if not reader.manifest.has_label:
        raise UsageError(f"{printable(str(reader.path))}: 'label' is not one class a record, which this needs")
    labels: NDArray[np.int64] = reader.values("label", records).astype(np.int64)
    if reader.manifest.has_column("label_valid"):
        labels[~reader.values("label_valid", records)] = -1  # a class of their own
    return labels


def draw_splits(
    records: NDArray[np.int64],
    groups: NDArray[np.int64],
    draws: NDArray[np.uint64],
    shares: Mapping[str, float],
    what: str,
) -> dict[str, NDArray[np.int64]]:
    """Draws splits like :func:`draw_parts`. Raises :class:`StoreError` if a split would be empty, but not if there are
    no records.

    ``what`` names the records in the message.
    """
    parts = draw_parts(records, groups, draws, shares)
    empty = next((name for name in shares if name not in parts), None)
    if empty is not None and len(records):
        raise StoreError(
            f"the split {printable(empty)!r} would be empty: it is to have {shares[empty]:g} of {len(records):,} {what}"
        )
    return parts


def draw_parts(
    records: NDArray[np.int64], groups: NDArray[np.int64], draws: NDArray[np.uint64], shares: Mapping[str, float]
) -> dict[str, NDArray[np.int64]]:
    """Divides records at random into parts. Each group of records gets the same shares, as far as whole numbers allow.

    Args:
        records: Numbers of the records.
        groups: Number of each record's group, such as its class.
        draws: Random number of each record; a group is cut in their order.
        shares: Share of each part by name. They must add up to 1, which is not checked.

    Returns:
        Numbers of the records of each part by name, ascending, without empty parts.
    """
    order = np.lexsort((draws, groups))
    names, weights = list(shares), np.array(list(shares.values()))
    counts = np.unique(groups, return_counts=True)[1]
    # The rounding error of a group is carried to the next, so that the total has its shares too.
    taken: dict[str, list[NDArray[np.int64]]] = {name: [] for name in names}
    owed = np.zeros(len(names))
    start = 0
    for count in counts.tolist():
        owed += weights * count
        whole_numbers = _round_to_total(owed, count)
        owed -= whole_numbers
        stops = start + np.cumsum(whole_numbers)
        for name, first, last in zip(names, [start, *stops[:-1]], stops, strict=True):
            taken[name].append(records[order[int(first) : int(last)]])
        start += count
    parts = {name: np.sort(np.concatenate(some)) for name, some in taken.items() if some}
    return {name: some for name, some in parts.items() if len(some)}


def _round_to_total(wanted: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Rounds ``wanted`` to non-negative whole numbers that add up to ``total``.

    Rounds down, then adds 1 to the numbers with the largest remainders.
    """
    floors = np.maximum(np.floor(wanted + 1e-9), 0).astype(np.int64)
    while int(floors.sum()) > total:
        floors[int(np.argmax(floors - wanted))] -= 1
    while int(floors.sum()) < total:
        floors[int(np.argmax(wanted - floors))] += 1
    return floors
