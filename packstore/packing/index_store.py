"""``index``: adds a seek index to a store of image files."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from packstore.core.column import LINK_COLUMNS, SEEK_INDEX
from packstore.core.errors import UsageError, printable
from packstore.core.files import refuse_empty
from packstore.core.manifest import Manifest
from packstore.core.progress import ProgressCallback, progress_callback
from packstore.core.urls import location
from packstore.packing.rewriting import rewrite_store
from packstore.stores.opening import open_reader
from packstore.stores.places import place_of


@dataclass(frozen=True, slots=True, repr=False)
class IndexReport:
    """Result of adding a seek index.

    Attributes:
        path: The store.
        manifest: Its manifest, as it is now.
        written: False if the store already had an index and nothing was written.
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
    """Adds a seek index to a store of image files. With it loaders can decode a crop without decoding the whole image.

    Copies the store beside itself, checks each record, and replaces the store when the copy is complete. The result has
    the same bytes as a store that was packed with an index. A store at a URL is written on this machine first and
    uploaded as a new version. Programs that have the store open keep reading the old one.

    Args:
        store: The store, a path or a URL.
        progress: True for a bar, in a terminal or a notebook; or a function that is called after each batch.

    Returns:
        The report. If the store has an index, nothing is written, and leftovers of a killed run are deleted.

    Raises:
        UsageError: The store's encoding is not ``original``.
        StoreError: The store does not open; :class:`CorruptRecordError` for a damaged record.
        DestinationError: The disk has no room for the copy.
    """
    refuse_empty(store)
    place = location(store)
    started = time.monotonic()
    with open_reader(place) as reader, progress_callback(progress) as report:
        manifest = reader.manifest
        if manifest.encoding != "original":
            raise UsageError(
                f"{printable(str(place))} has the encoding {manifest.encoding}; a seek index is for original"
            )
        written = not manifest.has_column(SEEK_INDEX.name)
        if written:
            links = {column.name for column in LINK_COLUMNS}  # they are the last, as convert writes them
            columns = sorted((*manifest.columns, SEEK_INDEX), key=lambda column: column.name in links)
            manifest = rewrite_store(reader, columns, "index", report)
        else:
            place_of(place).remove_finished_work()
    return IndexReport(place, manifest, written, time.monotonic() - started)
