"""Plans an append: which records of a source are added to a store, and how they are encoded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.column import CROWD
from packstore.core.errors import SourceError, StoreError, UsageError, printable
from packstore.core.manifest import Column, Manifest
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.shards import TABLE_ROW
from packstore.images.reading import OF_SOURCES, Reading
from packstore.packing.added_source import AddedSource
from packstore.packing.append_conversion import plan_conversion
from packstore.packing.column_answers import split_column_options
from packstore.packing.composing import list_linkable_shards
from packstore.packing.growing import AppendPlan
from packstore.packing.keys import StoreKeys, find_repeated_keys
from packstore.packing.known_records import count_identical_samples
from packstore.packing.options import AppendOptions
from packstore.packing.recorded_options import options_to_record
from packstore.sources import add_source_to_questions, ask_about_left, recorded_companions, take_frames
from packstore.sources.base import Source, Survey
from packstore.sources.frames import ClipsSource
from packstore.sources.store import StoreSource
from packstore.stores.base import Reader
from packstore.stores.builder.assembly import ShardList, merge_classes
from packstore.stores.linked import relative_link_folder
from packstore.stores.opening import open_reader, read_manifest
from packstore.stores.places import place_of
from packstore.stores.unify import join_answers


def plan_append(
    store: Path,
    source: Path,
    options: AppendOptions,
    progress: ProgressCallback = no_progress,
    place: Path | None = None,
) -> AppendPlan:
    """Plans an append: opens source and store, compares columns, classes and keys. Writes nothing.

    The caller closes the plan's source. Reads no keys if ``on_duplicate`` is ``unchecked``. If it is ``raise``, reads
    the samples whose keys the store has. The :class:`SourceError` then says how many of them have the same content.

    Raises the errors of :func:`packstore.append`.

    ``place``: path at which the samples will be packed; None for a dry run.
    """
    if source.resolve() == store.resolve():  # for a URL, the URL itself
        raise UsageError(f"{printable(str(store))} cannot be appended to itself")
    manifest = read_manifest(store)
    opened = _open_source(source, options, manifest)
    try:
        survey = opened.survey(_resolve_source_split(opened, options.split), progress)
        with add_source_to_questions(opened.path, opened.options, options.source_kind):
            ask_about_left(opened, survey)
        split_of = _make_split_mapping(manifest, survey, options.split, str(source), str(store))
        columns = _merge_columns(manifest, survey, str(store), str(source))
        if options.no_new_classes:
            _refuse_new_classes(new_classes(manifest.columns, columns), str(store), str(source))
        request = _make_request(opened, survey, options)
        plan = AppendPlan(
            store, manifest, columns, opened, None, None, frozenset(), {}, 0, 0, options, request, split_of
        )
        wrapped = AddedSource(opened, plan.columns, split_of, survey, manifest.digest, options.key_prefix)
        beside = Path(tempfile.gettempdir()) if place_of(store).remote else store.parent
        where = beside / f".{store.name}.added" if place is None else place
        if options.on_duplicate != "unchecked":
            with open_reader(store) as reader:
                keys = _find_duplicates(reader, wrapped)
                if keys and options.on_duplicate == "raise":
                    conversion = plan_conversion(plan, wrapped, where, progress)
                    same = count_identical_samples(reader, conversion, keys, progress)
                    raise _make_duplicates_error(plan, keys, same)
                wrapped.leave_out(keys)
        rest = wrapped.survey()
        duplicates = survey.records - rest.records
        plan = replace(
            plan, added=rest.splits, duplicates=duplicates, left_out=frozenset(wrapped.left_out)
        )  # fmt: skip
        if not rest.records:
            return replace(plan, added={})
        if isinstance(opened, StoreSource):
            join_answers([(str(store), manifest), (str(source), opened.manifest)])
            if not options.key_prefix and _can_copy(plan, opened.manifest):
                linked = None if duplicates else _list_linkable_shards(plan, opened.reader)
                nbytes = 0
                if linked is None:
                    whole = sum(column.nbytes for column in opened.manifest.columns)
                    nbytes = whole * rest.records // opened.manifest.records
                return replace(plan, linked=linked, estimate_bytes=nbytes)
        conversion = plan_conversion(plan, wrapped, where, progress)
        asked = replace(manifest, options=options_to_record(conversion))
        join_answers([(str(store), manifest), (str(source), asked)])  # before anything is packed
        return replace(plan, conversion=conversion, estimate_bytes=conversion.estimate_bytes)
    except BaseException:
        opened.close()
        raise


def _open_source(source: Path, options: AppendOptions, manifest: Manifest) -> Source:
    """Opens the source. Takes ``frames``, and patterns of files that belong to images, from the options, else from the
    store's manifest.

    Does not take it from the manifest if the source is a store, or an export of one.
    A source of clips also takes ``depth`` and ``alpha`` from the options, else from the manifest.
    """
    if options.source_kind is None and not (options.pair or options.sidecar or options.masks):
        pair, sidecar, masks = recorded_companions(manifest, source)
        options = replace(options, pair=pair, sidecar=sidecar, masks=masks)
    opened = options.open_source(
        source,
        columns=split_column_options(options.columns)[0],
        frames=str(options.frames) if options.frames in OF_SOURCES else None,
        skip_bad=options.on_error == "skip",
        crowds=True if manifest.has_column(CROWD) else None,
    )
    opened.follow_store(manifest)
    recorded = manifest.options.get("frames")
    if options.frames is None and opened.store_manifest is None and isinstance(recorded, str):
        opened = take_frames(opened, recorded)
    if isinstance(opened, ClipsSource):
        answered = Reading.restore(manifest.image.mode, manifest.options)
        opened.read_as(replace(answered, depth=options.depth or answered.depth, alpha=options.alpha or answered.alpha))
    return opened


def read_request(source: Path, options: AppendOptions, store: Path) -> dict[str, Any]:
    """Opens and surveys the source; returns the request: JSON values that identify source and options.

    The same command with an unchanged source has an equal request.
    """
    with closing(_open_source(source, options, read_manifest(store))) as opened:
        return _make_request(opened, opened.survey(_resolve_source_split(opened, options.split)), options)


def _make_request(source: Source, survey: Survey, options: AppendOptions) -> dict[str, Any]:
    """Returns the request of an opened source: its identity, split, stamp, key prefix, samples by split, and bytes."""
    request = {"source": source.identity(), "split": options.split, "stamp": source.stamp()}
    request["key_prefix"] = options.key_prefix
    return request | {"samples": dict(survey.splits), "bytes": survey.size_bytes}


def _resolve_source_split(source: Source, split: str | None) -> str | None:
    """Returns the split of the source to read: ``split``, or None for all of a source without splits."""
    if split is None:
        return None
    names = list(source.survey().splits)
    return None if names == [""] else split


def _make_split_mapping(
    manifest: Manifest, survey: Survey, split: str | None, source: str, store: str
) -> Callable[[str], str]:  # fmt: skip
    """Returns a function that maps a split of the source to a split of the store.

    - Both have splits: names stay the same.
    - Only the store has splits: all become ``split``.
    - The store has none: all become ``""``.

    Raises :class:`UsageError` in these cases:
    - Only the store has splits, and ``split`` names none.
    - Only the source has splits, and ``split`` does not name one.
    - Neither has splits, and ``split`` names one.
    """
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


def _merge_columns(manifest: Manifest, survey: Survey, store: str, source: str) -> tuple[Column, ...]:
    """Returns the store's columns, with the source's classes appended. Ignores columns that only the source has.

    Raises :class:`StoreError` if the classes cannot be joined.
    """
    given = {column.name: column for column in survey.columns}
    columns = []
    for column in manifest.columns:
        other = given.get(column.name)
        if other is not None and column.traits.has_classes:
            column = replace(column, classes=merge_classes(column.name, [(store, column), (source, other)]))
        columns.append(column)
    return tuple(columns)


def new_classes(before: Sequence[Column], after: Sequence[Column]) -> dict[str, tuple[str, ...]]:
    """Returns the classes that ``after`` has and ``before`` lacks, by column. Leaves out columns without new
    classes."""
    added = {a.name: (a.classes or ())[len(b.classes or ()) :] for b, a in zip(before, after, strict=True)}
    return {name: classes for name, classes in added.items() if classes}


def _refuse_new_classes(added: Mapping[str, tuple[str, ...]], store: str, source: str) -> None:
    """Raises :class:`StoreError` if ``added`` has a class."""
    for name, classes in added.items():
        some = ", ".join(map(printable, classes[:10])) + (", …" if len(classes) > 10 else "")
        count = "1 class" if len(classes) == 1 else f"{len(classes):,} classes"
        raise StoreError(
            f"{printable(source)} has {count} of {printable(name)!r} that {printable(store)} lacks ({some}); "
            "rename them if they are typing errors, or leave out --no-new-classes to add them"
        )


def _can_copy(plan: AppendPlan, other: Manifest) -> bool:
    """Tells if another store's records can be copied without encoding them again.

    Encoding, normalisation, EXIF handling and columns must be equal; classes may differ. ``progressive`` must be equal
    if the destination's manifest has it.
    """
    manifest, exif = plan.manifest, "exif_transpose"
    own, others = (
        {c.name: replace(c, classes=None).declaration for c in each} for each in (plan.columns, other.columns)
    )
    return (
        (other.encoding, other.normalization) == (manifest.encoding, manifest.normalization)
        and bool(other.options.get(exif)) == bool(manifest.options.get(exif))
        and manifest.options.get("progressive") in (None, other.options.get("progressive"))
        and own == others
    )


def _list_linkable_shards(plan: AppendPlan, reader: Reader) -> ShardList | None:
    """Lists the shards of the source, an open store, with the splits that they get in the destination.

    Returns None in these cases:
    - They cannot be linked, see :func:`list_linkable_shards`.
    - The destination has relative links.
    - A shard also contains records of a split that is not requested.
    - The records of a split would not stay together.
    """
    manifest, split = plan.manifest, plan.options.split
    if relative_link_folder(manifest, plan.store) is not None:
        return None
    added = list_linkable_shards(reader, manifest.format, plan.columns)
    if added is None:
        return None
    if split is not None and reader.manifest.splits:
        added = added.take_shards([number for number, runs in enumerate(added.runs) if split in dict(runs)])
        if any(len(runs) > 1 for runs in added.runs):
            return None
    runs = [tuple((plan.split_of(name), count) for name, count in runs) for runs in added.runs]
    added = replace(added, runs=runs)
    # A shard of the store with several splits will be rewritten as one shard per split.
    names = [split.name for split in manifest.splits] or [""]
    own = ShardList(np.zeros(len(names), TABLE_ROW), [""] * len(names), [((name, 1),) for name in names])
    return None if (own + added).group_by_split(names) is None else added


def _find_duplicates(reader: Reader, source: AddedSource) -> set[str]:
    """Returns the keys that both source and store have."""
    if source.store is not None:
        return set(find_repeated_keys([reader, source.store]))
    keys = StoreKeys(reader)
    return {entry.key for entry in source.entries() if entry.key in keys}


def _make_duplicates_error(plan: AppendPlan, keys: set[str], same: int) -> SourceError:
    """Makes the error for keys that the store has already; ``same`` of these samples have equal content."""
    some = ", ".join(printable(key) for key in sorted(keys)[:3]) + (", …" if len(keys) > 3 else "")
    differ = len(keys) - same
    comparison = (
        f"{same:,} with the same content and {differ:,} with other content" if differ else "all with the same content"
    )
    prefix = "--key-prefix PREFIX adds these samples under other keys"
    return SourceError(
        f"{printable(str(plan.store))} has {len(keys):,} of the keys of {printable(str(plan.source.path))} already, "
        f"{comparison} ({some}); "
        + (prefix if differ else f"leave these samples out with --on-duplicate skip; {prefix}")
    )
