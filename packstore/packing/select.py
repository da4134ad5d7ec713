"""``select``: makes a new store from some records of a store, with other splits, classes or fewer columns.

A random draw depends on the keys alone: each record gets the XXH3-64 of its key with the seed, and the records with the
lowest numbers are taken. The order of the records and the shards have no influence. A draw stays stable when records
are added.
"""

from __future__ import annotations

import csv
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.core.columns import LINK_COLUMNS
from packstore.core.errors import StoreError, UsageError, printable
from packstore.core.files import refuse_nested_paths
from packstore.core.findings import records_to_drop
from packstore.core.manifest import Column, Manifest
from packstore.core.options import argument, progress_option, takes
from packstore.core.progress import Progress, ProgressCallback, progress_callback
from packstore.core.urls import check_paths, location
from packstore.packing import SelectOptions
from packstore.packing.composing import (
    Composition,
    CopiedRecords,
    LinkedShards,
    Piece,
    describe_stores_origin,
    largest_shard_bytes,
    link_whole_shards,
    list_linkable_shards,
)
from packstore.packing.encoding import EXIF_ORIENTED, drop_record_counts
from packstore.packing.merge import MergeReport, write_composition
from packstore.packing.plan import resolve_format
from packstore.packing.where import FileRecords, Where, parse_where
from packstore.stores import Reader
from packstore.stores.opening import open_reader

_NEEDED = ("image", "key", "checksum", "row_checksum", "shape", *(column.name for column in LINK_COLUMNS))


@dataclass(frozen=True)
class SelectArguments(SelectOptions):
    """Arguments of :func:`packstore.select`."""

    store: str | os.PathLike[str] = field(metadata=argument("Path or URL of the store, which is not changed."))
    destination: str | os.PathLike[str] = field(
        metadata=argument("Path or URL of the new store; its suffix chooses the format.")
    )
    _: KW_ONLY
    progress: bool | ProgressCallback = progress_option()


@takes(SelectArguments)
def select(arguments: SelectArguments) -> MergeReport:
    """Makes a new store from some records of a store; copies records unchanged, hard-links whole shards.

    Returns:
        The report.

    Raises:
        UsageError: The condition is wrong, or a class, column or split does not exist.
        StoreError: The store does not open, or no record is chosen; :class:`CorruptRecordError` for a damaged one.
        DestinationError: The destination exists, or cannot be written.
    """
    started = time.monotonic()
    check_paths(arguments.drop)
    with progress_callback(arguments.progress) as report, ExitStack() as stack:
        plan = plan_select(location(arguments.store), location(arguments.destination), arguments, stack, report)
        return write_composition(plan, report, started)


def plan_select(
    path: Path, destination: Path, options: SelectOptions, stack: ExitStack, progress: ProgressCallback
) -> Composition:
    """Plans a selection: checks paths and options, and chooses the records.

    If records are left out, the new manifest has no counts of records and no skipped samples. Opens the store, which
    ``stack`` closes; writes nothing. Raises the errors of :func:`select`.
    """
    refuse_nested_paths(destination, path)
    format = resolve_format(destination, options.format)
    reader = stack.enter_context(open_reader(path))
    manifest = reader.manifest
    where = parse_where(options.where, manifest) if options.where is not None else None
    columns, labels, gone = _select_columns(manifest, options)
    if options.whole_shards:
        pieces = _select_shards(reader, where, options, format)
    else:
        chosen = _choose_records(reader, where, gone, options, progress)
        link = manifest.shards is not None and options.shard_size is None
        parts = list_linkable_shards(reader, format, columns) if link else None
        copies = (CopiedRecords(reader, records, split, labels) for split, records in chosen.items())
        pieces = [piece for copied in copies for piece in link_whole_shards(copied, parts)]
    kept = sum(piece.count for piece in pieces)
    oriented = {k: v for k, v in manifest.options.items() if k == EXIF_ORIENTED}  # counted again while copying
    base = replace(
        manifest,
        format=format,
        origin=describe_stores_origin([reader]),
        options=manifest.options if kept == len(reader) else drop_record_counts(manifest) | oriented,
        skipped=manifest.skipped if kept == len(reader) else (),
    )
    size = options.shard_bytes or largest_shard_bytes(manifest)
    moved = _count_moves(manifest, pieces) if options.splits is not None else {}
    return Composition(destination, base, columns, tuple(pieces), size is not None, size, options.overwrite, moved)


def _count_moves(manifest: Manifest, pieces: Sequence[Piece]) -> dict[tuple[str, str], int]:
    """Counts the records that change their split, by (old split, new split)."""
    counts = Counter[tuple[str, str]]()
    for piece in pieces:
        if isinstance(piece, CopiedRecords):
            for split in manifest.splits:
                inside = (piece.records >= split.start) & (piece.records < split.stop)
                counts[split.name, piece.split] += int(np.count_nonzero(inside))
        else:
            for runs, new in zip(piece.parts.runs, piece.new_parts.runs, strict=True):
                for name, count in runs:
                    counts[name, new[0][0]] += count
    return {(old, new): count for (old, new), count in counts.items() if count and old and old != new}


def _select_columns(
    manifest: Manifest, options: SelectOptions
) -> tuple[tuple[Column, ...], dict[str, NDArray[np.int64]], list[int]]:
    """Returns the new columns, the new class numbers by column, and the old class numbers whose records to leave
    out."""
    dropped = set(options.drop_columns)
    needed = {*_NEEDED, *(companion.name for column in manifest.columns for companion in column.companions)}
    for name in options.drop_columns:
        if name in needed or not manifest.has_column(name):
            there = ", ".join(c.name for c in manifest.columns if c.name not in needed)
            raise UsageError(f"no column {printable(name)!r} that can be left out; there are: {there or 'none'}")
        dropped |= {companion.name for companion in manifest.column(name).companions}
    columns = [column for column in manifest.columns if column.name not in dropped]
    for column in columns:
        if column.parallel in dropped:
            raise UsageError(f"column {column.name!r} goes with {column.parallel!r}: leave both out, or none")
    if options.relabel is None:
        return tuple(columns), {}, []
    place = next((i for i, column in enumerate(columns) if column.name == "label"), None)
    if place is None or columns[place].classes is None:
        raise UsageError("relabel needs a column 'label' with names of classes")
    classes = columns[place].classes or ()
    names = options.relabel if isinstance(options.relabel, Mapping) else _read_relabel(Path(options.relabel))
    unknown = [name for name in names if name not in classes]
    if unknown:
        raise UsageError(f"relabel names a class that the store lacks: {printable(unknown[0])!r}")
    renamed = [names.get(name, name) for name in classes]
    new = tuple(dict.fromkeys(name for name in renamed if name))
    numbers = np.array([new.index(name) if name else 0 for name in renamed], np.int64)
    columns[place] = replace(columns[place], classes=new)
    return tuple(columns), {"label": numbers}, [i for i, name in enumerate(renamed) if not name]


def _read_relabel(path: Path) -> dict[str, str]:
    """Reads new class names from a CSV file with the columns ``old,new``."""
    shown = printable(str(path))
    names: dict[str, str] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            if next(rows, None) != ["old", "new"]:
                raise UsageError(f"{shown} should begin with the line old,new")
            for number, row in enumerate(rows, 2):
                if row and (len(row) != 2 or row[0] in names):
                    raise UsageError(f"{shown}, line {number}: expected a class, once, and its new name; got {row}")
                names.update([(row[0], row[1])] if row else [])
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{shown} is not a CSV file in UTF-8: {error}") from error
    return names


def _choose_records(
    reader: Reader, where: Where | None, gone: Sequence[int], options: SelectOptions, progress: ProgressCallback
) -> dict[str, NDArray[np.int64]]:
    """Chooses records by the condition, the audit report and random draws; returns their ascending numbers by new
    split."""
    manifest = reader.manifest
    chosen: NDArray[np.int64] = np.arange(len(reader))
    if where is not None and where.columns <= {"split"} and not gone:
        # The name of the split is enough, so no file is opened.
        ranges = [np.arange(s.start, s.stop) for s in manifest.splits if where(FileRecords(reader, [s.name]))[0]]
        chosen = np.concatenate([chosen[:0], *ranges])
    elif where is not None or gone:
        masks, start = [], 0
        # ``""`` in a store without splits.
        names = [split.name for split in manifest.splits for _ in range(len(split))] or [""] * len(reader)
        for part in reader.parts():
            rows = FileRecords(part, names[start : start + len(part)])
            mask = np.ones(len(part), np.bool_) if where is None else where(rows)
            if gone:
                mask = mask & ~np.isin(read_class_numbers(part, np.arange(len(part)), True), gone)
            masks.append(mask)
            start += len(part)
            progress(Progress("select", start, len(reader), 0))
        chosen = np.flatnonzero(np.concatenate(masks))
    if options.drop is not None:
        digest = manifest.dataset_digest
        dropped = records_to_drop(Path(options.drop), options.drop_kinds, digest, len(reader))
        chosen = np.setdiff1d(chosen, dropped, assume_unique=True)
    chosen = _draw_sample(reader, chosen, options)
    if options.splits is not None:
        groups = read_class_numbers(reader, chosen, options.stratify)
        order = hash_keys_with_seed(reader, chosen, options.seed, "splits")
        return draw_splits(chosen, groups, order, options.splits, "records")
    if not manifest.splits:
        return {"": chosen}
    by_split = {s.name: chosen[(chosen >= s.start) & (chosen < s.stop)] for s in manifest.splits}
    return {name: records for name, records in by_split.items() if len(records)}  # without empty splits


def _draw_sample(reader: Reader, chosen: NDArray[np.int64], options: SelectOptions) -> NDArray[np.int64]:
    """Draws records at random: at most ``per_class`` of each class, then ``sample`` of these."""
    if options.per_class is not None:
        groups = read_class_numbers(reader, chosen, True)  # no label is one class
        draws = hash_keys_with_seed(reader, chosen, options.seed, "per class")
        order = np.lexsort((draws, groups))
        _, firsts = np.unique(groups[order], return_index=True)
        ranks = np.arange(len(order)) - np.repeat(firsts, np.diff([*firsts, len(order)]))
        chosen = np.sort(chosen[order[ranks < options.per_class]])
    if options.sample is not None and options.sample < len(chosen):
        # With ``stratify``, each class keeps its share.
        groups = read_class_numbers(reader, chosen, options.stratify)
        draws = hash_keys_with_seed(reader, chosen, options.seed, "sample")
        share = options.sample / len(chosen)
        taken = draw_parts(chosen, groups, draws, {"taken": share, "left": 1 - share})
        chosen = taken.get("taken", chosen[:0])
    elif options.sample is not None and options.sample > len(chosen):
        raise StoreError(f"a sample of {options.sample:,} records is asked for, and there are {len(chosen):,}")
    return chosen


def _select_shards(reader: Reader, where: Where | None, options: SelectOptions, format: str) -> list[Piece]:
    """Chooses whole shards by the condition on their split, and returns links to them."""
    manifest = reader.manifest
    shown = printable(str(reader.path))
    parts = None if manifest.shards is None else list_linkable_shards(reader, format, manifest.columns)
    if manifest.shards is None or parts is None:
        raise UsageError(f"whole shards can only be taken of a directory of shards, in its own format; {shown} is none")
    if where is not None and not where.columns <= {"split"}:
        raise UsageError("with whole shards a condition can only ask for splits: split == train")
    mixed = next((i for i, runs in enumerate(parts.runs) if len(runs) > 1), None)
    if mixed is not None:
        raise UsageError(f"{manifest.shards.name(mixed)} holds records of several splits; leave whole shards out")
    names = [runs[0][0] for runs in parts.runs]
    kept = {name: where is None or bool(where(FileRecords(reader, [name]))[0]) for name in set(names)}
    numbers = np.array([i for i, name in enumerate(names) if kept[name]], np.int64)
    if options.splits is None:
        by_split = {name: [i for i in numbers.tolist() if names[i] == name] for name in dict.fromkeys(names)}
    else:
        digests = [parts.rows["records_digest"][i].tobytes() for i in numbers.tolist()]
        # Draws by the digests of the records, so no shard is opened.
        draws = np.array([xxh3_64_intdigest(digest, seed=options.seed) for digest in digests], np.uint64)
        shared = draw_splits(numbers, np.zeros(len(numbers), np.int64), draws, options.splits, "shards")
        by_split = {name: some.tolist() for name, some in shared.items()}
    return [LinkedShards(parts.take_shards(some), name, manifest) for name, some in by_split.items() if some]


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
    """Rounds ``wanted`` to non-negative whole numbers that add up to ``total``."""
    floors = np.maximum(np.floor(wanted + 1e-9), 0).astype(np.int64)
    while int(floors.sum()) > total:
        floors[int(np.argmax(floors - wanted))] -= 1
    while int(floors.sum()) < total:
        floors[int(np.argmax(wanted - floors))] += 1  # largest remainder first
    return floors
