"""``index``: gives a store of image files its seek index."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from packstore.core.column import LINK_COLUMNS, SEEK_INDEX
from packstore.core.errors import UsageError, printable
from packstore.core.files import check_paths, refuse_empty
from packstore.core.manifest import Manifest
from packstore.core.progress import ProgressCallback, progress_callback
from packstore.core.urls import UrlPath, location
from packstore.packing.rewriting import rewrite
from packstore.stores import open_store
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
    bytes that it would have if it had been packed with an index. At a URL it is written on this machine first, and
    becomes a new version. Programs that have the store open keep reading the old one.

    Args:
        store: The store, a path or a URL.
        progress: True for a bar, in a terminal or a notebook; or a function that is called after each batch.

    Returns:
        What was done; nothing if the store has an index.

    Raises:
        UsageError: Its encoding is not ``original``.
        StoreError: The store does not open; :class:`CorruptRecordError` for a damaged record.
        DestinationError: There is no room for it.
    """
    refuse_empty(store)
    place = location(store)
    if not isinstance(place, UrlPath):
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
            links = {column.name for column in LINK_COLUMNS}  # they are the last, as convert writes them
            columns = sorted((*manifest.columns, SEEK_INDEX), key=lambda column: column.name in links)
            manifest = rewrite(reader, columns, "index", report)
        elif not isinstance(place, UrlPath):
            remove_published_run(place)
    return IndexReport(place, manifest, written, time.monotonic() - started)
