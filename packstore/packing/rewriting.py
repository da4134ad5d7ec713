"""``link`` and ``index``: rewrite a store in place with other links, or with a seek index."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import LINK_COLUMNS, SEEK_INDEX
from packstore.core.errors import StoreError, UsageError, printable
from packstore.core.files import FileState
from packstore.core.manifest import Column, Manifest
from packstore.core.parallel import default_workers, ordered_map
from packstore.core.progress import Progress, ProgressCallback, progress_callback
from packstore.core.proof import Proof
from packstore.core.urls import UrlPath, location
from packstore.packing.composing import Composition, LinkGetter, copy_shards
from packstore.stores import Reader
from packstore.stores.linked import (
    LinkedFiles,
    derive_object_state,
    is_url_link,
    link_folder,
    list_linked_files,
    make_relative_link,
    read_file_state,
    read_link_values,
    relative_link_folder,
    short_reason,
)
from packstore.stores.opening import open_reader
from packstore.stores.places import place_of

_STEP = 64  # records that a thread compares at a time


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
    started = time.monotonic()
    place = location(store)
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
            manifest = _rewrite_store(reader, columns, "index", report)
        else:
            place_of(place).remove_finished_work()
    return IndexReport(place, manifest, written, time.monotonic() - started)


@dataclass(frozen=True, slots=True, repr=False)
class RelinkReport:
    """Result of :func:`relink`.

    Attributes:
        path: The store.
        manifest: Its new manifest.
        files: Number of files that the links name.
        moved: Number of these files whose path has changed.
        proven: Number of images that were read and compared with their checksums. Images of files whose size and time
            are unchanged are not read.
        seconds: Duration.
    """

    path: Path
    manifest: Manifest
    files: int
    moved: int
    proven: int
    seconds: float

    def __repr__(self) -> str:
        return f"<RelinkReport of {str(self.path)!r}: {self.files:,} files, {self.moved:,} of them moved>"


def relink(
    store: str | os.PathLike[str],
    *,
    rebase: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None = None,
    links: Literal["absolute", "relative"] | None = None,
    progress: bool | ProgressCallback = False,
) -> RelinkReport:
    """Rewrites a linked store with new links.

    Use it after the files were moved, or to make the store movable together with them. All files must exist at the new
    paths. Images of files whose size or time of modification has changed are read and compared with their checksums.
    The new store replaces the old one when it is complete.

    Args:
        store: The store, a path or a URL.
        rebase: Old and new folder, file or URL.
        links: ``absolute`` paths, or paths ``relative`` to the folder of the store; None keeps the kind.
        progress: True for a bar, in a terminal or a notebook; or a function that is called after each batch.

    Raises:
        UsageError: The store is not linked, none of its files is in the old folder, or ``links`` is another word.
        StoreError: A file is missing, or its bytes have changed.
        DestinationError: The disk has no room for the new store.
    """
    place = location(store)
    if links not in (None, "absolute", "relative"):
        raise UsageError(f"links should be 'absolute' or 'relative', got {links!r}")
    moves = None if rebase is None else (_absolute_path(rebase[0]), _absolute_path(rebase[1]))
    started = time.monotonic()
    with open_reader(place) as reader, progress_callback(progress) as report:
        manifest, shown = reader.manifest, printable(str(place))
        if not manifest.is_linked:
            raise UsageError(f"{shown} holds its images, so it has no links; convert --link makes a linked store")
        own = link_folder(reader.path)
        places = {old: _move_path(old, moves) for old in list_linked_files(reader.parts(), own)}
        moved = sum(old != new for old, new in places.items())
        if moves is not None and not moved:
            some = ", ".join(printable(old) for old in [*places][:3])
            raise UsageError(f"no file of {shown} lies in {printable(moves[0])}; it points to {some}")
        states = {new: _read_file_state(new) for new in places.values()}
        proven = _verify_changed_files(reader, places, states, report)
        asked = manifest.options.get("link") if links is None else links
        folder = own if asked == "relative" else None

        def new_links(reader: Reader, records: NDArray[np.int64]) -> dict[str, Any]:
            values = read_link_values(reader, records)
            files = [places[old] for old in values["link_file"]]
            values["link_file_bytes"] = np.array([states[file].nbytes for file in files], np.int64)
            values["link_file_modified"] = np.array([states[file].modified for file in files], np.int64)
            values["link_file"] = files if folder is None else [make_relative_link(file, folder) for file in files]
            return values

        options = {"link": "absolute" if folder is None else "relative"}
        manifest = _rewrite_store(reader, manifest.columns, "link", report, new_links, options)
    return RelinkReport(place, manifest, len(states), moved, proven, time.monotonic() - started)


def _absolute_path(path: str | os.PathLike[str]) -> str:
    """Makes a path absolute and removes ``..``, without resolving symbolic links; a URL stays unchanged."""
    place = location(path)
    return str(place) if place_of(place).remote else os.path.abspath(place)  # noqa: PTH100 - it removes `..`


def _move_path(place: str, moves: tuple[str, str] | None) -> str:
    """Replaces the folder ``moves[0]`` at the beginning of a path by ``moves[1]``, and leaves other paths unchanged."""
    if moves is None or not f"{place}/".startswith(f"{moves[0].rstrip('/')}/"):
        return place
    return f"{moves[1].rstrip('/')}{place[len(moves[0].rstrip('/')) :]}"


def _read_file_state(place: str) -> FileState:
    """Returns the size and modification time of a file or object."""
    try:
        if not is_url_link(place):
            return read_file_state(place)
        from packstore.objects import open_objects

        url = UrlPath(place)
        return derive_object_state(open_objects(url.parent).head(url.name))
    except (OSError, ValueError) as error:
        raise StoreError(f"{printable(place)} cannot be read ({short_reason(error)}); nothing was changed") from None


def _verify_changed_files(
    reader: Reader, places: dict[str, str], states: dict[str, FileState], progress: ProgressCallback
) -> int:
    """Compares images in files whose size or time has changed with their checksums, and returns how many it read."""
    files, proof = LinkedFiles(), Proof(reader.manifest.columns, reader.value)

    def check(first: int) -> int:
        records = np.arange(first, min(first + _STEP, len(reader)))
        values = read_link_values(reader, records)
        count = 0
        for i, record in enumerate(records.tolist()):
            # ``places`` has the new path by the old one, ``states`` the present size and time by the new path.
            place = places[values["link_file"][i]]
            if states[place] == (values["link_file_bytes"][i], values["link_file_modified"][i]):
                continue
            start, length = int(values["link_offset"][i]), int(values["link_length"][i])
            try:
                data = files.open(place).data[start : start + length]
            except (OSError, ValueError) as error:
                raise StoreError(f"{printable(place)} cannot be read ({error}); nothing was changed") from None
            if len(data) != length or proof.compare_image(record, data).differs:
                raise StoreError(
                    f"record {record} ({printable(reader.key(record))}) is not what lies in {printable(place)}, bytes "
                    f"{start:,} to {start + length:,}: that is another file than was linked; nothing was changed"
                )
            count += 1
        return count

    proven = 0
    for number, count in enumerate(ordered_map(check, range(0, len(reader), _STEP), default_workers()), 1):
        proven += count
        progress(Progress("compare", min(number * _STEP, len(reader)), len(reader), 0))
    return proven


def _rewrite_store(
    reader: Reader,
    columns: Sequence[Column],
    stage: str,
    progress: ProgressCallback,
    links: LinkGetter | None = None,
    options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Replaces an open store by a copy with the same shards and splits, and returns the copy's manifest."""
    manifest = reader.manifest
    base = replace(manifest, options={**manifest.options, **(options or {})})
    # By default the copy keeps the old links.
    links = links or partial(read_link_values, folder=relative_link_folder(manifest, reader.path))
    # Readers that are open keep the old store.
    return Composition(
        reader.path,
        base,
        tuple(columns),
        copy_shards(reader),
        sharded=manifest.shards is not None,
        overwrite=True,
        links=links,
        stage=stage,
    ).write_store(progress)
