"""Stores put together from shards that lie ready: each is linked as it is, and only the manifest and the table are new.

What a store of many shards is made of, :class:`Parts`, comes from tables alone: no shard is opened for it.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.checksums import file_digest, join_records_digests
from packstore.core.errors import StoreError, printable
from packstore.core.manifest import Column, Manifest, Skipped, Split
from packstore.core.registry import FORMATS
from packstore.core.shards import TABLE_ROW, Shard, ShardTable, shard_name, shards_to_rows
from packstore.core.urls import UrlPath, location
from packstore.stores.format import Format
from packstore.stores.remote.transfer import download

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)

Run = tuple[str, int]
"""The name of a split, and how many records of it follow each other."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """Shards in order, wherever they lie.

    Attributes:
        rows: :data:`packstore.core.shards.TABLE_ROW`, one a shard; its number is the one it has where it lies.
        places: Path of each shard; or its URL, where it is to be fetched from.
        runs: The splits of each, in order; ``""`` is the split of a store that has none.
    """

    rows: NDArray[Any]
    places: list[str]
    runs: list[tuple[Run, ...]]

    def __len__(self) -> int:
        return len(self.rows)

    def __add__(self, other: Parts) -> Parts:
        rows = np.concatenate([self.rows, other.rows])
        return Parts(rows, [*self.places, *other.places], [*self.runs, *other.runs])

    def take(self, chosen: Sequence[int]) -> Parts:
        """Some of them, in the order given."""
        return Parts(self.rows[list(chosen)], [self.places[i] for i in chosen], [self.runs[i] for i in chosen])

    def numbered(self, numbers: Iterable[int]) -> Parts:
        """The same shards under other numbers."""
        rows = self.rows.copy()
        rows["number"] = np.fromiter(numbers, np.uint64, len(rows))
        return dataclasses.replace(self, rows=rows)

    def by_split(self, order: Iterable[str] = ()) -> Parts | None:
        """The same shards so that the records of each split follow each other; within a split their order stays.

        Splits are in the order of ``order``, others after them as they come. None where a shard with records of several
        splits is in the way."""
        place = {name: i for i, name in enumerate(dict.fromkeys([*order, *self.split_names()]))}
        # One that ends a split and begins the next lies between them.
        keys = [(place[runs[0][0]], len(runs) > 1) for runs in self.runs]
        chosen = sorted(range(len(keys)), key=keys.__getitem__)
        last: dict[str, int] = {}
        for number in chosen:
            for name, _ in self.runs[number]:
                if last.get(name, -1) > number:
                    return None
                last[name] = number
        parts = self.take(chosen)
        return parts if parts.splits() is not None else None

    def split_names(self) -> list[str]:
        """The names of all splits, in the order in which they come."""
        return list(dict.fromkeys(name for runs in self.runs for name, _ in runs))

    def splits(self) -> tuple[Split, ...] | None:
        """The splits as ranges; None where the records of one do not follow each other."""
        found: list[tuple[str, int]] = []  # each split and where it begins
        start = 0
        for name, count in (run for runs in self.runs for run in runs):
            if not found or found[-1][0] != name:
                found.append((name, start))
            start += count
        if len(dict(found)) != len(found):
            return None
        stops = [first for _, first in found[1:]] + [start]
        return tuple(Split(name, first, stop) for (name, first), stop in zip(found, stops, strict=True) if name)


def no_parts() -> Parts:
    return Parts(np.zeros(0, TABLE_ROW), [], [])


def parts_of(path: Path, manifest: Manifest, places: list[str] | None = None) -> Parts:
    """The shards of a store; one that is a single file is its own only shard, and is read once for its SHA-256.

    ``places`` is where its shards lie, see :meth:`packstore.stores.base.Reader.places`; None for those of a store on
    this machine."""
    if manifest.shards is None:
        format: Format = FORMATS[manifest.format]
        nbytes, digest = file_digest(format.data_file(path))
        name = format.shard_name(0)
        sizes = manifest.records, nbytes, manifest.image.nbytes
        rows = shards_to_rows([Shard(name, *sizes, manifest.records_digest, digest, manifest.digest)])
        return Parts(rows, [os.fspath(path)], [_runs(manifest.splits, 0, manifest.records)])
    starts = manifest.shards.starts.tolist()
    runs = [_runs(manifest.splits, *edges) for edges in pairwise(starts)]
    places = [f"{path}/{name}" for name in manifest.shards.names()] if places is None else places
    return Parts(manifest.shards.table, places, runs)


def _runs(splits: Sequence[Split], start: int, stop: int) -> tuple[Run, ...]:
    if not splits:
        return (("", stop - start),)
    inside = ((s.name, min(s.stop, stop) - max(s.start, start)) for s in splits if s.start < stop and s.stop > start)
    return tuple(run for run in inside if run[1] > 0)


def head_of(
    base: Manifest,
    parts: Parts,
    columns: Sequence[Column],
    *,
    options: Mapping[str, str | int | float | bool | None] | None = None,
    skipped: Sequence[Skipped] = (),
    versions: Mapping[str, str] | None = None,
) -> Manifest:
    """The manifest of a store of these shards.

    Args:
        base: What else it says is as in this one.
        parts: The shards, each under the number that it is to have.
        columns: All columns with the bytes of all records.
        options: Those of all records; None for those of ``base``.
        skipped: What was left out.
        versions: Of the software that wrote them; None for those of ``base``.

    Raises:
        StoreError: The records of a split do not follow each other.
    """
    splits = parts.splits()
    if splits is None:
        raise StoreError(f"the records of a split do not follow each other: {', '.join(parts.split_names())}")
    rows = np.ascontiguousarray(parts.rows)
    digests = (digest.tobytes().hex() for digest in rows["records_digest"])
    table = ShardTable(
        len(rows), hashlib.sha256(rows.data).hexdigest(), FORMATS[base.format].suffixes[0], rows
    )  # fmt: skip
    return dataclasses.replace(
        base,
        records=int(rows["records"].sum()),
        columns=tuple(dataclasses.replace(column, digest=None) for column in columns),
        splits=splits,
        options=base.options if options is None else options,
        skipped=tuple(skipped),
        versions=base.versions if versions is None else versions,
        records_digest=join_records_digests(zip(digests, rows["records"].tolist(), strict=True)),
        shards=table,
    )


def link_parts(parts: Parts, directory: Path, format: Format, made: list[Path] | None = None) -> int:
    """Gives each shard its name in ``directory`` too: by a link, or a copy where links cannot be and of a URL.

    ``made`` gets each name as it is made. Returns how many were copied. Raises :class:`FileExistsError` for a name that
    is taken, and :class:`OSError`."""
    copied, suffix, inner = 0, format.suffixes[0], format.files[:1]
    root = os.fspath(directory)
    digests = (bytes(digest).hex() for digest in parts.rows["digest"].tolist())
    for number, place, digest in zip(parts.rows["number"].tolist(), parts.places, digests, strict=True):
        name = f"{root}/{shard_name(number, suffix)}"
        if made is not None:
            made.append(Path(name))
        url = location(place) if "://" in place else None
        for file in inner:
            os.mkdir(name)  # noqa: PTH102 - thousands of times, and a Path takes longer than the call
            place, name = f"{place}/{file}", f"{name}/{file}"
        if isinstance(url, UrlPath):
            download(url, Path(name), digest)
            copied += 1
            continue
        try:
            os.link(place, name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with open(place, "rb") as source, open(name, "xb") as target:  # noqa: PTH123
                shutil.copyfileobj(source, target, 1 << 22)
                target.flush()
                os.fsync(target.fileno())
            copied += 1
    return copied


def merged_classes(name: str, columns: Sequence[tuple[str, Column]]) -> tuple[str, ...] | None:
    """The classes of column ``name`` in several stores together: those of the first in their order, then the others'.

    Args:
        name: Of the column.
        columns: What each store or source is called, and its column.

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
                "labels of the one say nothing in the other"
            )
        names |= dict.fromkeys(column.classes or ())
    return None if columns[0][1].classes is None else tuple(names)
