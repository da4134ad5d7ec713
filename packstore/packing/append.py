"""``append``: puts the records of a source into a store that is there, as new shards beside the old ones."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from packstore.core.arguments import text_or_none, true_or_false
from packstore.core.errors import DestinationError, SourceError, StoreError, UsageError, printable
from packstore.core.files import check_paths
from packstore.core.manifest import Column, Manifest, Skipped
from packstore.core.progress import Progress, ProgressCallback, no_progress, progress_callback
from packstore.core.sizes import parse_bytes
from packstore.images.sniff import MAX_PIXELS
from packstore.packing.added_source import AddedSource
from packstore.packing.conversion import _columns, run_plan
from packstore.packing.copying import copy_records
from packstore.packing.keys import StoreKeys, repeated_keys
from packstore.packing.merge import renumbering
from packstore.packing.plan import ConvertOptions, Plan, counted_options, encode_options, plan_of
from packstore.sources import open_source
from packstore.sources.base import Source, Survey
from packstore.sources.store import StoreSource
from packstore.stores import create_store, open_store
from packstore.stores.base import Reader
from packstore.stores.builder.assembly import Parts, head_of, merged_classes, no_parts, parts_of
from packstore.stores.builder.growth import grow
from packstore.stores.builder.work_directory import ADDED, KEPT, WorkDirectory, work_path
from packstore.stores.opening import read_manifest
from packstore.stores.ownership import remove_unfinished
from packstore.stores.sharded import same_columns

_log = logging.getLogger(__name__)

OnDuplicate = Literal["raise", "skip", "unchecked"]
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True, repr=False)
class AppendReport:
    """What was put into a store.

    Attributes:
        store: The store.
        manifest: Its manifest now.
        added: How many records it has more, by split; ``""`` where it has no splits.
        duplicates: Samples left out because the store has their keys.
        skipped: Bad samples left out by policy.
        linked: Shards that were taken over as they are; no byte of them was read or written.
        rewritten: Records of the store that had to be written again, because their shard held several splits.
        seconds: How long it took.
    """

    store: Path
    manifest: Manifest
    added: Mapping[str, int]
    duplicates: int
    skipped: tuple[Skipped, ...]
    linked: int
    rewritten: int
    seconds: float

    def __repr__(self) -> str:
        return (
            f"<AppendReport of {str(self.store)!r}: {sum(self.added.values()):,} records more, "
            f"{self.manifest.records:,} now, {self.seconds:.1f} s>"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AppendOptions:
    """The keyword arguments of :func:`packstore.append`, which describes them; validated."""

    split: str | None = None
    source_kind: str | None = None
    labels: str | os.PathLike[str] | None = None
    on_duplicate: OnDuplicate = "raise"
    on_error: Literal["raise", "skip"] = "raise"
    check: Literal["header", "decode", "none"] = "header"
    shard_size: int | str | None = None
    restart: bool = False
    workers: int | None = None
    decoder: str = "auto"
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        text_or_none(split=self.split, source_kind=self.source_kind)
        true_or_false(restart=self.restart)
        if self.on_duplicate not in ("raise", "skip", "unchecked"):
            raise UsageError(f"on_duplicate should be 'raise', 'skip' or 'unchecked', got {self.on_duplicate!r}")


@dataclass(frozen=True, slots=True)
class AppendPlan:
    """What is to be done for :func:`packstore.append`.

    Attributes:
        store: The store.
        manifest: Its manifest.
        columns: Its columns afterwards: with all classes.
        source: The opened source.
        way: ``link`` its shards or ``copy`` its records, where it is a store like this one, or ``convert`` its samples.
        conversion: How its samples become records; None where they are not converted.
        left_out: Keys of samples that are left out because the store has them.
        added: Records by split; with bad samples among them.
        duplicates: Samples that are left out because the store has their keys.
        estimate_bytes: About how much the store grows.
        options: As given.
        request: What tells this command from another.
        split_of: Gives the split of the store for one of the source.
    """

    store: Path
    manifest: Manifest
    columns: tuple[Column, ...]
    source: Source
    way: Literal["link", "copy", "convert"]
    conversion: Plan | None
    left_out: frozenset[str]
    added: Mapping[str, int]
    duplicates: int
    estimate_bytes: int
    options: AppendOptions
    request: Mapping[str, Any]
    split_of: Callable[[str], str] = field(repr=False)


def append(
    store: str | os.PathLike[str],
    source: str | os.PathLike[str],
    *,
    split: str | None = None,
    source_kind: str | None = None,
    labels: str | os.PathLike[str] | None = None,
    on_duplicate: OnDuplicate = "raise",
    on_error: Literal["raise", "skip"] = "raise",
    check: Literal["header", "decode", "none"] = "header",
    shard_size: int | str | None = None,
    restart: bool = False,
    workers: int | None = None,
    decoder: str = "auto",
    max_pixels: int = MAX_PIXELS,
    progress: bool | ProgressCallback = False,
) -> AppendReport:
    """Puts the records of ``source`` into ``store``, encoded as those that it has, as new shards beside the old ones.

    Who opens the store meanwhile sees the old one, and afterwards the new one. A store of one file becomes a directory
    whose first shard is that file. Classes that the store does not have get the next numbers.

    Args:
        store: The store.
        source: What :func:`packstore.convert` takes. The shards of a store with the same encoding are linked.
        split: Only this split of ``source``; where that has no splits, the split of the store that its records go to.
        source_kind: Kind of the source instead of recognising it.
        labels: CSV with the columns ``file,label`` and optionally ``split``.
        on_duplicate: What to do with a key that the store has: ``raise``, or ``skip`` the sample. ``unchecked`` reads
            no keys, for a caller who knows that all differ.
        on_error: ``raise`` stops at a bad sample, ``skip`` leaves it out and notes it in the manifest.
        check: ``header``, ``decode`` or ``none``: how thoroughly each file is checked.
        shard_size: About how many bytes of images a new shard has, as for :func:`packstore.convert`; None for as many
            as the store's largest shard, and for a store of one file a shard for each split.
        restart: Do not go on from an interrupted run.
        workers: Threads; None for one a core.
        decoder: Name of the decoder.
        max_pixels: As for :func:`packstore.convert`.
        progress: True for a bar, in a terminal or a notebook; or a function that is called after each batch.

    Returns:
        What was added.

    Raises:
        StoreError: The store does not open, or the columns or classes of the source do not fit it.
        SourceError: The source cannot be read, or has keys that the store has.
        DestinationError: The store cannot be written, or another process writes to it.
    """
    options = AppendOptions(
        split=split,
        source_kind=source_kind,
        labels=labels,
        on_duplicate=on_duplicate,
        on_error=on_error,
        check=check,
        shard_size=shard_size,
        restart=restart,
        workers=workers,
        decoder=decoder,
        max_pixels=max_pixels,
    )
    started = time.monotonic()
    with progress_callback(progress) as report:
        return append_source(Path(store), Path(source), options, report, started)


def append_source(
    store: Path, source: Path, options: AppendOptions, progress: ProgressCallback, started: float | None = None
) -> AppendReport:
    """See :func:`append`."""
    started = time.monotonic() if started is None else started
    check_paths(store, source)
    read_manifest(store)  # so that nothing is made where there is no store
    if store.is_symlink():  # by its two names, two processes would write to it at once
        raise DestinationError(f"{printable(str(store))} is a symbolic link; name the path that it points to")
    work = WorkDirectory(store)
    try:
        finished = work.finished_growth()
        work.undo_swap()
        if finished is not None and finished == _request(source, options):
            return AppendReport(store, read_manifest(store), {}, 0, (), 0, 0, time.monotonic() - started)
        plan = plan_append(store, source, options, progress, work.path / ADDED)
        with closing(plan.source):
            report = _run(plan, work, progress, started)
    except BaseException:
        if work_path(work.path / ADDED).exists():  # another run can go on from there
            work.release()
        raise
    finally:
        work.remove()
    return report


def plan_append(
    store: Path,
    source: Path,
    options: AppendOptions,
    progress: ProgressCallback = no_progress,
    place: Path | None = None,
) -> AppendPlan:
    """Examines both and writes nothing; the caller closes the plan's source. See :func:`append` for errors.

    ``place`` is where the samples are to be packed to; None for a dry run."""
    if source.resolve() == store.resolve():
        raise UsageError(f"{printable(str(store))} cannot be appended to itself")
    manifest = read_manifest(store)
    opened = _open(source, options)
    try:
        survey = opened.survey(_taken(opened, options.split), progress)
        split_of = _splits(manifest, survey, options.split, str(source), str(store))
        columns = _merged_columns(manifest, survey, str(store), str(source))
        request = _told(opened, survey, options)
        plan = AppendPlan(
            store, manifest, columns, opened, "convert", None, frozenset(), {}, 0, 0, options, request, split_of
        )
        other = opened.manifest if isinstance(opened, StoreSource) else None
        wrapped = AddedSource(opened, plan.columns, split_of, survey, manifest.digest)
        if options.on_duplicate != "unchecked":
            with open_store(store) as reader:
                wrapped.leave_out(_duplicates(reader, wrapped))
        found = wrapped.survey()
        duplicates = survey.records - found.records
        if duplicates and options.on_duplicate == "raise":
            raise _duplicate_keys(plan, sorted(wrapped.left_out))
        plan = replace(
            plan, added=found.splits, duplicates=duplicates, left_out=frozenset(wrapped.left_out)
        )  # fmt: skip
        if not found.records:
            return replace(plan, added={})
        if other is not None and not duplicates and _linkable(plan, other):
            return replace(plan, way="link")
        if other is not None and _alike(plan, other):
            nbytes = sum(column.nbytes for column in other.columns) * found.records // other.records
            return replace(plan, way="copy", estimate_bytes=nbytes)
        where = store.parent / f".{store.name}.added" if place is None else place
        conversion = plan_of(wrapped, where, _convert_options(plan), progress)
        _refuse_other_columns(plan, conversion)
        return replace(plan, conversion=conversion, estimate_bytes=conversion.estimate_bytes)
    except BaseException:
        opened.close()
        raise


def _open(source: Path, options: AppendOptions) -> Source:
    return open_source(
        source,
        kind=options.source_kind,
        labels=options.labels,
        max_pixels=options.max_pixels,
        skip_bad=options.on_error == "skip",
    )


def _request(source: Path, options: AppendOptions) -> dict[str, Any]:
    """What tells one command from another, for a run that was killed at the very end; values as JSON has them."""
    with closing(_open(source, options)) as opened:
        return _told(opened, opened.survey(_taken(opened, options.split)), options)


def _told(source: Source, survey: Survey, options: AppendOptions) -> dict[str, Any]:
    found = {"source": os.fsdecode(source.path.resolve()), "split": options.split, "stamp": source.stamp()}
    return found | {"samples": dict(survey.splits), "bytes": survey.size_bytes}


def _taken(source: Source, split: str | None) -> str | None:
    """The split to take of a source; None for all of one that has none."""
    if split is None:
        return None
    names = list(source.survey().splits)
    return None if names == [""] else split


def _splits(
    manifest: Manifest, survey: Survey, split: str | None, source: str, store: str
) -> Callable[[str], str]:  # fmt: skip
    """Gives the split of the store for one of the source. Raises :class:`UsageError` where they do not go together."""
    own = [s.name for s in manifest.splits]
    named = [name for name in survey.splits if name]
    if own and not named:
        if split is None:
            raise UsageError(
                f"{printable(source)} has no splits, and {printable(store)} has: say with --split which of them its "
                f"records go to ({', '.join(map(printable, own))}, or a new one)"
            )
        return lambda _: split
    if not own and named:
        if split is None or len(named) > 1:
            raise UsageError(
                f"{printable(source)} has the splits {', '.join(map(printable, named))}, and {printable(store)} has "
                "none: take one of them with --split"
            )
        return lambda _: ""
    if not own and split is not None:
        raise UsageError(f"neither {printable(source)} nor {printable(store)} has splits: leave --split out")
    return lambda name: name


def _merged_columns(manifest: Manifest, survey: Survey, store: str, source: str) -> tuple[Column, ...]:
    """The columns of the store with the classes of the source, too."""
    given = {column.name: column for column in survey.columns}
    columns = []
    for column in manifest.columns:
        other = given.get(column.name)
        if other is not None and column.type in ("label", "labels"):
            column = replace(column, classes=merged_classes(column.name, [(store, column), (source, other)]))
        columns.append(column)
    return tuple(columns)


def _alike(plan: AppendPlan, other: Manifest) -> bool:
    """Whether the records of another store can be taken as they are, but for the numbers of classes."""
    manifest, exif = plan.manifest, "exif_transpose"
    return (
        (other.encoding, other.normalization) == (manifest.encoding, manifest.normalization)
        and bool(other.options.get(exif)) == bool(manifest.options.get(exif))
        and [replace(c, classes=None).declared for c in other.columns]
        == [replace(c, classes=None).declared for c in plan.columns]
    )


def _linkable(plan: AppendPlan, other: Manifest) -> bool:
    """Whether the shards of another store can be taken as they are."""
    same = other.format == plan.manifest.format and same_columns(other.columns, plan.columns)
    return same and _alike(plan, other) and _taken_parts(plan, other) is not None


def _taken_parts(plan: AppendPlan, other: Manifest, parts: Parts | None = None) -> list[int] | None:
    """Which shards of a store are those of the split that is asked for; None where one holds others, too."""
    split = plan.options.split
    if split is None or not other.splits:
        return list(range(1 if other.shards is None else len(other.shards)))
    if other.shards is None:
        return [0] if [s.name for s in other.splits if len(s)] == [split] else None
    chosen = other.split(split)
    starts = other.shards.starts
    first, last = (int(np.searchsorted(starts, edge)) for edge in (chosen.start, chosen.stop))
    whole = starts[first] == chosen.start and starts[last] == chosen.stop
    return list(range(first, last)) if whole else None


def _convert_options(plan: AppendPlan) -> ConvertOptions:
    """How samples become records like those of the store."""
    manifest, options = plan.manifest, plan.options
    other = plan.source.manifest if isinstance(plan.source, StoreSource) else None
    shape: dict[str, Any] = {}
    if other is None or other.encoding != manifest.encoding:
        encode = encode_options(manifest)
        quality = manifest.options.get("quality")
        shape = {
            "size": encode.size,
            "fit": encode.fit if encode.size is not None else None,
            "resize": encode.resize,
            "max_side": encode.max_side,
            "quality": quality if type(quality) is int else None,
            "normalize": manifest.normalization or ("none" if manifest.holds_floats else None),
            "exif_transpose": encode.exif_transpose,
        }  # fmt: skip
    return ConvertOptions(
        encoding=manifest.encoding,
        format=manifest.format,
        shard_size=_shard_bytes(plan),
        check=options.check,
        on_error=options.on_error,
        restart=options.restart,
        workers=options.workers,
        decoder=options.decoder,
        max_pixels=options.max_pixels,
        **shape,
    )


def _shard_bytes(plan: AppendPlan) -> int:
    """Bytes of images a new shard."""
    size, shards = plan.options.shard_size, plan.manifest.shards
    if isinstance(size, str):
        return parse_bytes(size)
    if size is None:
        return _NO_LIMIT if shards is None else max(1, int(shards.table["image_nbytes"].max()))
    return size


def _refuse_other_columns(plan: AppendPlan, conversion: Plan) -> None:
    """Raises :class:`StoreError` where the records would not be like those of the store."""
    manifest = plan.manifest
    made = {column.name: column for column in _columns(conversion.encoder(), conversion)}
    names = list(made)
    for column in plan.columns:
        other = made.pop(column.name, None)
        if other is None:
            raise StoreError(f"{printable(str(plan.store))} has a column {column.name!r}, the source has none")
        if other.declared != column.declared:
            raise StoreError(
                f"column {column.name!r} of {printable(str(plan.store))} holds {_described(column)}, of the source "
                f"{_described(other)}"
            )
    if made:
        raise StoreError(f"the source has a column {next(iter(made))!r}, {printable(str(plan.store))} has none")
    if names != [column.name for column in plan.columns]:
        own = ", ".join(column.name for column in plan.columns)
        raise StoreError(f"the columns of the source are in another order ({', '.join(names)}; the store has {own})")
    found = conversion.encode.normalization, conversion.encode.exif_transpose
    if found != (manifest.normalization, bool(manifest.options.get("exif_transpose"))):
        raise StoreError(
            f"the images of the source are normalised or turned otherwise than those of {printable(str(plan.store))}"
        )


def _described(column: Column) -> str:
    shape = " x ".join(map(str, column.shape)) or "one value"
    return f"{column.type}, {column.kind} {column.dtype} {shape}" + (f" ({column.layout})" if column.layout else "")


def _run(plan: AppendPlan, work: WorkDirectory, progress: ProgressCallback, started: float) -> AppendReport:
    manifest, store = plan.manifest, plan.store
    added: Parts | None = None
    other: Manifest | None = None
    skipped: tuple[Skipped, ...] = ()
    remove_unfinished(work.path / KEPT)
    if os.path.lexists(work.path / ADDED):
        if plan.conversion is not None:
            _log.warning("starting afresh: an interrupted run had packed all samples, and not put them into the store")
        remove_unfinished(work.path / ADDED)
    if plan.conversion is not None:
        report = run_plan(plan.conversion, progress)
        other, skipped = report.manifest, report.skipped
        added = parts_of(work.path / ADDED, other)
    elif plan.added and isinstance(plan.source, StoreSource):
        other = plan.source.manifest
        if plan.way == "link":
            chosen = _taken_parts(plan, other)
            assert chosen is not None
            added = _renamed(parts_of(plan.source.path, other).take(chosen), plan.split_of)
        else:
            other = _copy(plan, plan.source.reader, work.path / ADDED, progress)
            added = parts_of(work.path / ADDED, other)
        skipped = other.skipped
    if added is None or other is None:
        return AppendReport(store, manifest, {}, plan.duplicates, (), 0, 0, time.monotonic() - started)
    own = parts_of(store, manifest)
    first_new = int(own.rows["number"].max()) + 1
    order = [split.name for split in manifest.splits]
    parts, rewritten = _joined(own, added, first_new).by_split(order), 0
    if parts is None:
        rewritten, again = _write_again(plan, own, work, progress)
        parts = _joined(again, added, first_new).by_split(order)
        assert parts is not None
    totals = [replace(c, nbytes=c.nbytes + _nbytes(other, c, added, plan)) for c in plan.columns]
    options = dict(manifest.options)
    whole = int(added.rows["records"].sum()) == other.records  # else nobody has counted its part
    for name, count in counted_options(other).items() if whole else ():
        options[name] = int(options.get(name) or 0) + count
    head = head_of(
        manifest,
        parts,
        totals,
        options=options,
        skipped=(*manifest.skipped, *skipped),
        versions=_versions(manifest, other),
    )
    progress(Progress("publish", 0, 1, 0))
    grow(work, store, manifest, head, parts, first_new, plan.request)
    counts = Counter[str]()
    for name, count in (run for runs in added.runs for run in runs):
        counts[name] += count
    linked = len(added) if plan.way == "link" else 0
    return AppendReport(
        store, head, dict(counts), plan.duplicates, skipped, linked, rewritten, time.monotonic() - started
    )


def _copy(plan: AppendPlan, reader: Reader, path: Path, progress: ProgressCallback) -> Manifest:
    """Copies the records of a store that is like this one to new shards, with this one's numbers of classes."""
    other, total = reader.manifest, sum(plan.added.values())
    done = done_bytes = 0

    def copied(records: int, nbytes: int) -> None:
        nonlocal done, done_bytes
        done, done_bytes = done + records, done_bytes + nbytes
        progress(Progress("copy", done, total, done_bytes))

    labels = renumbering(other.columns, plan.columns)
    with create_store(
        path,
        format=plan.manifest.format,
        encoding=other.encoding,
        columns=[replace(column, nbytes=0, digest=None) for column in plan.columns],
        shard_size=_shard_bytes(plan),
    ) as builder:
        options = {k: v for k, v in other.options.items() if k not in counted_options(other)}
        builder.describe(
            origin=other.origin, normalization=other.normalization, options=options, versions=other.versions
        )
        ranges = [(s.name, s.start, s.stop) for s in other.splits if plan.options.split in (None, s.name)]
        for name, start, stop in ranges or [("", 0, other.records)]:
            records = np.arange(start, stop)
            if plan.left_out:
                records = records[[reader.key(i) not in plan.left_out for i in records.tolist()]]
            copy_records(reader, records, builder, plan.split_of(name), labels, copied)
        return builder.commit(counted=counted_options(other) if total == other.records else {})


def _joined(own: Parts, added: Parts, first_new: int) -> Parts:
    """The store's own shards, and those that are added under the numbers that follow."""
    own_numbers = own.rows["number"].tolist()
    first = max(first_new, max(own_numbers) + 1)
    return own + added.numbered(range(first, first + len(added)))


def _renamed(parts: Parts, split_of: Callable[[str], str]) -> Parts:
    return replace(parts, runs=[tuple((split_of(name), count) for name, count in runs) for runs in parts.runs])


def _write_again(
    plan: AppendPlan, own: Parts, work: WorkDirectory, progress: ProgressCallback
) -> tuple[int, Parts]:  # fmt: skip
    """Writes the shards that hold several splits again, one for each. Returns how many records that were, and all
    shards of the store as they are then."""
    manifest = plan.manifest
    mixed = [number for number, runs in enumerate(own.runs) if len(runs) > 1]
    ends = own.rows["records"].cumsum().tolist()
    total = sum(int(own.rows["records"][number]) for number in mixed)
    done = 0

    def copied(records: int, nbytes: int) -> None:
        nonlocal done
        done += records
        progress(Progress("copy", done, total, nbytes))

    with (
        open_store(plan.store) as reader,
        create_store(
            work.path / KEPT,
            format=manifest.format,
            encoding=manifest.encoding,
            columns=[replace(c, nbytes=0, digest=None) for c in manifest.columns],
            sharded=True,
        ) as builder,
    ):
        for number in mixed:
            start = ends[number] - int(own.rows["records"][number])
            for name, count in own.runs[number]:
                builder.cut()
                copy_records(reader, np.arange(start, start + count), builder, name, copied=copied)
                start += count
        written = builder.commit(
            origin=manifest.origin,
            normalization=manifest.normalization,
            options={k: v for k, v in manifest.options.items() if k not in counted_options(manifest)},
            versions=manifest.versions,
        )
    fresh = parts_of(work.path / KEPT, written)
    first = int(own.rows["number"].max()) + 1
    fresh = fresh.numbered(range(first, first + len(fresh)))
    parts, place = no_parts(), 0
    for number in range(len(own)):
        if number in mixed:
            count = len(own.runs[number])
            parts += fresh.take(range(place, place + count))
            place += count
        else:
            parts += own.take([number])
    return total, parts


def _nbytes(other: Manifest, column: Column, added: Parts, plan: AppendPlan) -> int:
    """Bytes of the values of a column in what is added."""
    whole = other.column(column.name).nbytes
    if column.kind == "fixed":
        return column.record_nbytes * int(added.rows["records"].sum())
    if column.name == "image":
        return int(added.rows["image_nbytes"].sum())
    if int(added.rows["records"].sum()) == other.records:
        return whole
    assert isinstance(plan.source, StoreSource)
    return sum(read_manifest(Path(place)).column(column.name).nbytes for place in added.places)


def _versions(manifest: Manifest, other: Manifest) -> dict[str, str]:
    """Of both; where they differ, one after the other."""
    versions = dict(manifest.versions)
    for name, version in other.versions.items():
        known = versions.setdefault(name, version).split(", ")
        if version not in known:
            versions[name] = ", ".join([*known, version])
    return versions


def _duplicates(reader: Reader, source: AddedSource) -> set[str]:
    """The keys of a source that a store has."""
    if source.store is not None:
        return set(repeated_keys([reader, source.store]))
    keys = StoreKeys(reader)
    return {entry.key for entry in source.entries() if entry.key in keys}


def _duplicate_keys(plan: AppendPlan, keys: list[str]) -> SourceError:
    some = ", ".join(printable(key) for key in keys[:3]) + (", …" if len(keys) > 3 else "")
    return SourceError(
        f"{printable(str(plan.store))} has {len(keys):,} of the keys of {printable(str(plan.source.path))} already "
        f"({some}); leave these samples out with --on-duplicate skip"
    )
