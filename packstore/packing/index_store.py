"""``index``: gives a store of image files its seek index."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from packstore.core.column import SEEK_INDEX
from packstore.core.errors import UsageError, printable
from packstore.core.files import check_paths, refuse_empty
from packstore.core.manifest import Manifest
from packstore.core.progress import Progress, ProgressCallback, progress_callback
from packstore.core.urls import UrlPath, location
from packstore.packing.copying import copy_records
from packstore.packing.plan import counted_options
from packstore.stores import create_store, open_store
from packstore.stores.base import Reader
from packstore.stores.builder.interrupted import remove_published_run


@dataclass(frozen=True, slots=True, repr=False)
class IndexReport:
    """What adding a seek index did.

    Attributes:
        path: The store.
        manifest: Its manifest, as it is now.
        written: Whether anything was to be done: False if the store had an index.
        seconds: How long it took.
    """

    path: Path
    manifest: Manifest
    written: bool
    seconds: float

    def __repr__(self) -> str:
        done = f"index added in {self.seconds:.1f} s" if self.written else "had an index"
        return f"<IndexReport of {str(self.path)!r}: {self.manifest.records:,} records, {done}>"


def add_index(store: str | os.PathLike[str], *, progress: bool | ProgressCallback = False) -> IndexReport:
    """Gives a store of image files a seek index, by which loaders decode of a crop little more than it needs.

    The store is written again beside itself, each record checked, and takes its place when it is complete: it has the
    bytes that it would have if it had been packed with an index. Programs that have it open keep reading the old one.

    Args:
        store: The store, a path.
        progress: True for a bar, in a terminal or a notebook; or a function that is called after each batch.

    Returns:
        What was done; nothing if the store has an index.

    Raises:
        UsageError: The store lies at a URL, or its encoding is not ``original``.
        StoreError: The store does not open; :class:`CorruptRecordError` for a damaged record.
        DestinationError: There is no room for it.
    """
    refuse_empty(store)
    place = location(store)
    if isinstance(place, UrlPath):
        raise UsageError(f"{printable(str(place))}: at a URL nothing is written again; convert it with --index")
    check_paths(store)
    started = time.monotonic()
    with open_store(place) as reader, progress_callback(progress) as report:
        manifest = reader.manifest
        if manifest.encoding != "original":
            raise UsageError(
                f"{printable(str(place))} has the encoding {manifest.encoding}; a seek index is for original"
            )
        written = not manifest.has_column(SEEK_INDEX.name)
        if written:
            manifest = _write(reader, report)
        else:
            remove_published_run(place)
    return IndexReport(place, manifest, written, time.monotonic() - started)


def _write(reader: Reader, progress: ProgressCallback) -> Manifest:
    manifest, done, done_bytes = reader.manifest, 0, 0

    def copied(records: int, nbytes: int) -> None:
        nonlocal done, done_bytes
        done, done_bytes = done + records, done_bytes + nbytes
        progress(Progress("index", done, manifest.records, done_bytes))

    starts = [0] if manifest.shards is None else manifest.shards.starts[:-1].tolist()
    splits = [(split.name, split.start, split.stop) for split in manifest.splits] or [("", 0, manifest.records)]
    with create_store(
        reader.path,
        format=manifest.format,
        encoding=manifest.encoding,
        columns=(*manifest.columns, SEEK_INDEX),
        sharded=manifest.shards is not None,
        overwrite=True,
    ) as builder:
        counted = counted_options(manifest)
        builder.describe(
            origin=manifest.origin,
            normalization=manifest.normalization,
            options={name: value for name, value in manifest.options.items() if name not in counted},
            versions=manifest.versions,
        )
        for start, stop in pairwise([*starts, manifest.records]):
            if start:
                builder.cut()
            for name, first, last in splits:
                records = np.arange(max(first, start), min(last, stop))
                if len(records):
                    copy_records(reader, records, builder, name, copied=copied)
        return builder.commit(counted=counted, skipped=manifest.skipped)
