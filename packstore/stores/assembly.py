"""Assembles stores from existing shards: links each unchanged, and writes only a new manifest and table.

It builds a :class:`ShardList` from tables alone, without opening a shard.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import StoreError, printable
from packstore.core.files import MANIFEST_FILE
from packstore.core.manifest import Column, Manifest, Skipped, Split
from packstore.core.proof import file_digest, join_records_digests
from packstore.core.registry import FORMATS
from packstore.core.shards import TABLE_ROW, Shard, ShardTable, shard_name, shards_to_rows
from packstore.core.urls import ShardPlace, UrlPath
from packstore.stores.format import Format, encode_manifest

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)

SplitRun = tuple[str, int]
"""Name of a split, and a number of consecutive records in it."""


@dataclasses.dataclass(frozen=True)
class ShardList:
    """Shards in order, in any directories or at URLs.

    Attributes:
        rows: A :data:`packstore.core.shards.TABLE_ROW` for each shard. Its ``number`` is that in the shard's name.
        places: Path or URL of each shard.
        runs: For each shard, its splits in order, each with its number of consecutive records. A store without splits
            has the split ``""``.
    """

    rows: NDArray[Any]
    places: list[ShardPlace]
    runs: list[tuple[SplitRun, ...]]

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def join(cls, *lists: ShardList) -> ShardList:
        """Joins lists one after the other; the shards keep their numbers. Without lists, returns an empty one."""
        return cls(
            np.concatenate([np.zeros(0, TABLE_ROW), *(each.rows for each in lists)]),
            [place for each in lists for place in each.places],
            [runs for each in lists for runs in each.runs],
        )

    def take_shards(self, chosen: Sequence[int]) -> ShardList:
        """Returns a list of the shards at these positions, in their order."""
        return ShardList(self.rows[list(chosen)], [self.places[i] for i in chosen], [self.runs[i] for i in chosen])

    def renumber(self, numbers: Iterable[int]) -> ShardList:
        """Returns the same shards with other numbers, which give them other names. Raises :class:`ValueError` if there
        are too few numbers.
        """
        rows = self.rows.copy()
        rows["number"] = np.fromiter(numbers, np.uint64, len(rows))
        return dataclasses.replace(self, rows=rows)

    def group_by_split(self, order: Iterable[str] = ()) -> ShardList | None:
        """Reorders the shards to make the records of each split consecutive. Keeps the order within a split.

        The splits in ``order`` come first, then the others by first occurrence. Returns None if a shard with records
        of several splits makes this impossible.
        """
        place = {name: i for i, name in enumerate(dict.fromkeys([*order, *self.split_names()]))}
        # A shard that ends one split and begins the next goes between them.
        keys = [(place[runs[0][0]], len(runs) > 1) for runs in self.runs]
        chosen = sorted(range(len(keys)), key=keys.__getitem__)
        last: dict[str, int] = {}
        for number in chosen:
            for name, _ in self.runs[number]:
                if last.get(name, -1) > number:
                    return None
                last[name] = number
        parts = self.take_shards(chosen)
        return parts if parts.split_ranges() is not None else None

    def split_names(self) -> list[str]:
        """Returns the names of all splits in order of first occurrence."""
        return list(dict.fromkeys(name for runs in self.runs for name, _ in runs))

    def split_ranges(self) -> tuple[Split, ...] | None:
        """Returns the splits as ranges of records, without the split ``""``.

        Returns None if the records of a split are not consecutive.
        """
        starts: list[tuple[str, int]] = []  # each split and its first record
        start = 0
        for name, count in (run for runs in self.runs for run in runs):
            if not starts or starts[-1][0] != name:
                starts.append((name, start))
            start += count
        if len(dict(starts)) != len(starts):
            return None
        stops = [first for _, first in starts[1:]] + [start]
        return tuple(Split(name, first, stop) for (name, first), stop in zip(starts, stops, strict=True) if name)


def list_shards(path: Path, manifest: Manifest, places: list[ShardPlace] | None = None) -> ShardList:
    """Lists the shards of a store. A store of one file is one shard: reads the whole file for its SHA-256.

    ``places``: paths or URLs of its shards, from :meth:`packstore.stores.records.PartTable.places`; None for a local
    store. Not used for a store of one file.
    """
    if manifest.shards is None:
        format: Format = FORMATS[manifest.format]
        nbytes, digest = file_digest(format.data_file(path))
        name = format.shard_name(0)
        sizes = manifest.records, nbytes, manifest.image.nbytes
        rows = shards_to_rows([Shard(name, *sizes, manifest.records_digest, digest, manifest.digest)])
        return ShardList(rows, [os.fspath(path)], list_runs(manifest))
    places = [f"{path}/{name}" for name in manifest.shards.names()] if places is None else places
    return ShardList(manifest.shards.table, places, list_runs(manifest))


def list_runs(manifest: Manifest) -> list[tuple[SplitRun, ...]]:
    """Lists for each shard of a store its splits in order, each with its number of records; ``""`` without splits. A
    store of one file is one shard."""
    starts = [0, manifest.records] if manifest.shards is None else manifest.shards.starts.tolist()
    return [
        tuple(
            (name, min(last, stop) - max(first, start))
            for name, first, last in manifest.ranges
            if first < stop and last > start
        )
        for start, stop in pairwise(starts)
    ]


def build_sharded_manifest(
    base: Manifest,
    parts: ShardList,
    columns: Sequence[Column],
    *,
    options: Mapping[str, str | int | float | bool | None] | None = None,
    skipped: Sequence[Skipped] = (),
    versions: Mapping[str, str] | None = None,
) -> Manifest:
    """Builds the manifest of a store that consists of the shards ``parts``.

    Args:
        base: Manifest from which all other fields are taken.
        parts: The shards, each with its number in the new store.
        columns: All columns with the bytes of all records; their digests are left out.
        options: Options of all records; None takes those of ``base``.
        skipped: Entries that were left out. Those of ``base`` are not taken.
        versions: Versions of the software that wrote the shards; None takes those of ``base``.

    Raises:
        StoreError: The records of a split are not consecutive.
    """
    splits = parts.split_ranges()
    if splits is None:
        raise StoreError(f"the records of a split are not consecutive: {', '.join(parts.split_names())}")
    rows = np.ascontiguousarray(parts.rows)
    digests = (digest.tobytes().hex() for digest in rows["records_digest"])
    return dataclasses.replace(
        base,
        records=int(rows["records"].sum()),
        columns=tuple(dataclasses.replace(column, digest=None) for column in columns),
        splits=splits,
        options=base.options if options is None else options,
        skipped=tuple(skipped),
        versions=base.versions if versions is None else versions,
        records_digest=join_records_digests(zip(digests, rows["records"].tolist(), strict=True)),
        shards=ShardTable.from_rows(rows, FORMATS[base.format].suffixes[0]),
    )


def link_shards(parts: ShardList, directory: Path, format: Format) -> int:
    """Hard-links each shard into ``directory`` under its number. Copies shards that cannot be linked, and downloads
    shards at URLs.

    Returns the number of shards copied or downloaded, which are synced. Raises :class:`FileExistsError` for a name that
    is taken, :class:`StoreError` if a download fails, and other :class:`OSError`.
    """
    copied, suffix, inner = 0, format.suffixes[0], format.files[:1]
    root = os.fspath(directory)
    digests = (bytes(digest).hex() for digest in parts.rows["digest"].tolist())
    for number, place, digest in zip(parts.rows["number"].tolist(), parts.places, digests, strict=True):
        name = f"{root}/{shard_name(number, suffix)}"
        for file in inner:
            os.mkdir(name)  # noqa: PTH102 - thousands of times, and a Path takes longer than the call
            name = f"{name}/{file}"
        if isinstance(place, UrlPath):
            from packstore.stores.remote_objects import download_shard

            download_shard(place, Path(name), digest)
            copied += 1
            continue
        shard = "/".join((place, *inner))
        try:
            os.link(shard, name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with open(shard, "rb") as source, open(name, "xb") as target:  # noqa: PTH123
                shutil.copyfileobj(source, target, 1 << 22)
                target.flush()
                os.fsync(target.fileno())
            copied += 1
    return copied


def write_manifest_and_table(directory: Path, manifest: Manifest) -> None:
    """Writes the table and the manifest of a sharded store and reads both back. Raises :class:`StoreError` if they
    differ.
    """
    table = manifest.shard_table
    for name, content in ((table.file, table.table.tobytes()),
                          (MANIFEST_FILE, encode_manifest(manifest))):  # fmt: skip
        (directory / name).write_bytes(content)
        if (directory / name).read_bytes() != content:
            raise differs_error(printable(str(directory)), name)


def differs_error(shown: str, what: str) -> StoreError:
    """Returns the error for ``what`` of the file ``shown``, which reads back differently than written."""
    return StoreError(
        f"{what} of {shown} reads back differently than written: the disk, the memory or the file system is faulty; "
        "nothing is published"
    )


def merge_classes(name: str, columns: Sequence[tuple[str, Column]]) -> tuple[str, ...] | None:
    """Returns the classes of column ``name`` over several stores: first those of the first store, then each new one.

    Returns None if the column holds plain numbers in all of them.

    Args:
        name: The column's name.
        columns: For each store or source, its name in messages and its column.

    Raises:
        StoreError: One has names of classes and another plain numbers.
    """
    names: dict[str, None] = {}
    for place, column in columns:
        if (column.classes is None) != (columns[0][1].classes is None):
            some, first = (f"{len(c.classes):,} classes" if c.classes is not None else "plain numbers"
                           for c in (column, columns[0][1]))  # fmt: skip
            raise StoreError(
                f"column {name!r} holds {first} in {printable(columns[0][0])} and {some} in {printable(place)}: "
                "their labels cannot be compared"
            )
        names |= dict.fromkeys(column.classes or ())
    return None if columns[0][1].classes is None else tuple(names)
