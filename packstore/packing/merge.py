"""``merge``, ``link`` and ``index``: copy whole stores, joined, with other links, or with a seek index."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import LINK_COLUMNS, SEEK_INDEX
from packstore.core.errors import StoreError, UsageError, join_names, printable
from packstore.core.files import FileState, refuse_nested_paths
from packstore.core.manifest import Column, Manifest
from packstore.core.options import argument, progress_option, takes
from packstore.core.parallel import default_workers, ordered_map
from packstore.core.progress import Progress, ProgressCallback, progress_callback
from packstore.core.proof import Proof
from packstore.core.urls import UrlPath, location
from packstore.packing import MergeOptions
from packstore.packing.composing import (
    NO_LIMIT,
    Composition,
    LinkGetter,
    Piece,
    copy_shards,
    copy_split,
    describe_stores_origin,
    largest_shard_bytes,
    link_whole_shards,
    list_linkable_shards,
)
from packstore.packing.encoding import record_counts, same_encoding_options
from packstore.packing.plan import resolve_format
from packstore.stores import Reader
from packstore.stores.keys import find_repeated_keys
from packstore.stores.lenses import join_answers, join_columns
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
class MergeReport:
    """Result of ``merge`` or ``select``.

    Attributes:
        destination: The new store.
        manifest: Its manifest.
        linked: Number of shards that were hard-linked unchanged; on another disk, copied.
        copied: Number of records that were copied.
        duplicates: Number of records left out because another store has their keys.
        seconds: How long it took.
        moved: Number of records that ``select`` moved, by (old split, new split).
    """

    destination: Path
    manifest: Manifest
    linked: int
    copied: int
    duplicates: int
    seconds: float
    moved: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"<MergeReport of {str(self.destination)!r}: {self.manifest.records:,} records, {self.linked:,} shards "
            f"reused, {self.copied:,} records copied, {self.seconds:.1f} s>"
        )


@dataclass(frozen=True)
class MergeArguments(MergeOptions):
    """Arguments of :func:`packstore.merge`."""

    stores: Sequence[str | os.PathLike[str]] = field(
        metadata=argument(
            "Paths or URLs of two or more stores with the same encoding and columns. The new store has the columns in "
            "the first store's order."
        )
    )
    destination: str | os.PathLike[str] = field(
        metadata=argument("Path or URL of the new store; its suffix chooses the format.")
    )
    _: KW_ONLY
    progress: bool | ProgressCallback = progress_option()


@takes(MergeArguments)
def merge(arguments: MergeArguments) -> MergeReport:
    """Combines several stores into one new store. In each split, the records of the first store come first, then those
    of the second, and so on.

    The new store is a directory of shards. Shards that have its format and class numbers are hard-linked into it; the
    remaining records are copied unchanged.

    Returns:
        The report.

    Raises:
        StoreError: A store does not open, or the stores differ in encoding or columns; :class:`CorruptRecordError` for
            a bad record.
        DestinationError: The destination exists, is in one of the stores, or cannot be written.
        UsageError: There are fewer than two stores, or an argument is wrong.
    """
    started = time.monotonic()
    if isinstance(arguments.stores, str | os.PathLike):
        raise UsageError(f"merge takes a list of stores, got {os.fspath(arguments.stores)!r}")
    with progress_callback(arguments.progress) as report, ExitStack() as stack:
        plan = plan_merge([*map(location, arguments.stores)], location(arguments.destination), arguments, stack)
        return write_composition(plan, report, started)


def write_composition(plan: Composition, progress: ProgressCallback, started: float) -> MergeReport:
    """Writes and publishes the store of a composition; returns the report."""
    manifest = plan.write_store(progress)
    seconds = time.monotonic() - started
    linked, copied = plan.linked_shard_count, plan.copied_count
    return MergeReport(plan.destination, manifest, linked, copied, plan.duplicates, seconds, plan.moved)


def plan_merge(paths: Sequence[Path], destination: Path, options: MergeOptions, stack: ExitStack) -> Composition:
    """Plans a merge.

    The new manifest keeps the options that all stores share, and all options of reading image files. Adds up the
    counts of records. Opens the stores, which ``stack`` closes; writes nothing. Raises the errors of :func:`merge`.
    """
    if len(paths) < 2:
        raise UsageError("merge takes two stores or more")
    for path in paths:
        refuse_nested_paths(destination, path)
    format = resolve_format(destination, options.format)
    readers = [stack.enter_context(open_reader(path)) for path in paths]
    columns = _merge_columns(readers, options.classes)
    left_out = _find_duplicates(readers, options.on_duplicate)
    first = readers[0].manifest
    names = list(dict.fromkeys(split.name for reader in readers for split in reader.manifest.splits)) or [""]
    linkable = [
        # A shard with records to leave out cannot be linked.
        None if gone else list_linkable_shards(reader, format, columns)
        for reader, gone in zip(readers, left_out, strict=True)
    ]
    pieces: list[Piece] = []
    for name in names:
        for reader, shards, gone in zip(readers, linkable, left_out, strict=True):
            if not name or any(split.name == name for split in reader.manifest.splits):
                pieces += link_whole_shards(copy_split(reader, name, name, columns, gone), shards)
    counts = Counter[str]()
    for reader in readers:
        counts.update(record_counts(reader.manifest))
    answers = join_answers([(str(reader.path), reader.manifest) for reader in readers])
    # The new manifest only states options that hold for all records.
    same = {k: v for k, v in first.options.items() if all(r.manifest.options.get(k) == v for r in readers)}
    skipped = tuple(s for reader in readers for s in reader.manifest.skipped)
    base = replace(
        first, format=format, origin=describe_stores_origin(readers), options=same | answers | counts, skipped=skipped
    )
    size = largest_shard_bytes(first) or NO_LIMIT
    return Composition(
        destination,
        base,
        columns,
        pieces,
        shard_size=size,
        overwrite=options.overwrite,
        duplicates=sum(map(len, left_out)),
    )


def _merge_columns(readers: Sequence[Reader], classes: Sequence[str] | None) -> tuple[Column, ...]:
    """Joins the columns of all stores in the order of the first store, with the classes of all."""
    first = readers[0]
    for reader in readers[1:]:
        mine, other = first.manifest, reader.manifest
        # Files keep their own sizes; pixels of one store should be alike.
        if mine.encoding == other.encoding and not mine.holds_files and not same_encoding_options(mine, other):
            both = f"{printable(str(first.path))} and {printable(str(reader.path))}"
            raise StoreError(f"the images of {both} were resized in different ways; convert one of them first")
    columns = join_columns(readers)
    if all(reader.manifest.is_linked for reader in readers):
        columns = (*columns, *LINK_COLUMNS)
    if classes is None:
        return columns
    if not first.manifest.has_column("label"):
        raise UsageError("classes gives the order of the classes of 'label', and the stores have no column 'label'")
    return tuple(
        replace(c, classes=_check_class_order(c.classes, classes)) if c.name == "label" else c for c in columns
    )


def _check_class_order(merged: tuple[str, ...] | None, classes: Sequence[str]) -> tuple[str, ...]:
    """Returns ``classes`` as a tuple if it names every class of ``merged`` once; it may name further classes."""
    if merged is None:
        raise UsageError("classes gives the order of names, and the labels of the stores are plain numbers")
    repeated = next((name for i, name in enumerate(classes) if name in classes[:i]), None)
    if repeated is not None:
        raise UsageError(f"classes names {printable(repeated)!r} twice")
    missing = [name for name in merged if name not in set(classes)]
    if missing:
        lacking = f"{len(missing):,} ({join_names(missing)})"
        raise UsageError(f"classes should name every class of the stores; it lacks {lacking}")
    return tuple(classes)


def _find_duplicates(readers: Sequence[Reader], policy: str) -> list[set[str]]:
    """Returns for each store the keys to leave out because an earlier store has them."""
    left_out: list[set[str]] = [set() for _ in readers]
    if policy == "unchecked":
        return left_out
    repeated = find_repeated_keys(readers)
    if policy == "raise":
        # Millions of keys are counted, not kept.
        some = [key for _, key in islice(repeated, 3)]
        count = len(some) + sum(1 for _ in repeated)
        if count:
            names = ", ".join(map(printable, some)) + (", …" if count > len(some) else "")
            raise StoreError(
                f"{count:,} keys are in more than one store ({names}); --on-duplicate skip keeps the first"
            )
    for number, key in repeated:
        left_out[number].add(key)
    return left_out


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
