"""Plans an append: which records of a source are added to a store, and how they are encoded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.columns import CROWD, SEEK_INDEX
from packstore.core.errors import SourceError, StoreError, UsageError, join_names, printable
from packstore.core.manifest import Column, Manifest
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.shards import TABLE_ROW
from packstore.images.reading import OF_SOURCES, Reading
from packstore.packing import AppendOptions, ConvertOptions, ReadingOptions
from packstore.packing.added_source import AddedSource, count_identical_samples
from packstore.packing.composing import (
    NO_LIMIT,
    Composition,
    LinkedShards,
    copy_split,
    largest_shard_bytes,
    list_linkable_shards,
)
from packstore.packing.encoding import drop_record_counts, read_column_answers, restore_encode_options
from packstore.packing.plan import Plan, options_to_record, plan_source
from packstore.packing.run import Run
from packstore.sources import add_source_to_questions, ask_about_left, recorded_companions, take_frames
from packstore.sources.base import Source, Survey
from packstore.sources.frames import ClipsSource
from packstore.sources.store import StoreSource
from packstore.stores import Reader
from packstore.stores.assembly import ShardList, merge_classes
from packstore.stores.lenses import join_answers
from packstore.stores.linked import read_link_values, relative_link_folder
from packstore.stores.opening import open_reader, read_manifest
from packstore.stores.places import place_of


@dataclass(frozen=True, slots=True)
class AppendPlan:
    """Plan of an append.

    Attributes:
        store: The store.
        manifest: Its manifest.
        columns: Its columns after the append, with all classes.
        source: The opened source, adapted to the store.
        options: The options.
        request: Source and options, by which the same command is recognised when it runs again.
        addition: What makes the new shards: the conversion of samples, or the links to shards and copies of records of
            a store with equal columns. None if there is nothing to add.
        added: Number of records by split, bad samples included.
        duplicates: Number of samples that are left out because the store has their keys.
        estimate_bytes: Estimated growth of the store on disk.
    """

    store: Path
    manifest: Manifest
    columns: tuple[Column, ...]
    source: AddedSource
    options: AppendOptions
    request: Mapping[str, Any]
    addition: Plan | Composition | None = None
    added: Mapping[str, int] = field(default_factory=dict)
    duplicates: int = 0
    estimate_bytes: int = 0

    @property
    def linked(self) -> int:
        """Number of shards that are linked unchanged."""
        return self.addition.linked_shard_count if isinstance(self.addition, Composition) else 0


def plan_append(
    store: Path,
    source: Path,
    options: AppendOptions,
    progress: ProgressCallback = no_progress,
    place: Path | None = None,
) -> AppendPlan:
    """Plans an append: opens source and store, and compares columns, classes and keys.

    Writes nothing. The caller closes the plan's source. ``place`` is the path at which the samples will be packed; None
    for a dry run. With ``on_duplicate="unchecked"``, no keys are read. With ``raise``, the :class:`SourceError` says
    how many of the samples whose keys the store has already are equal to the store's.
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
        added = AddedSource(opened, columns, split_of, survey, manifest.digest, options.key_prefix)
        plan = AppendPlan(store, manifest, columns, added, options, _make_request(opened, survey, options))
        beside = Path(tempfile.gettempdir()) if place_of(store).remote else store.parent
        place = beside / f".{store.name}.added" if place is None else place
        if options.on_duplicate != "unchecked":
            with open_reader(store) as reader:
                keys = added.find_duplicates(reader)
                if keys and options.on_duplicate == "raise":
                    same = count_identical_samples(reader, _plan_conversion(plan, place, progress), keys, progress)
                    raise _make_duplicates_error(plan, keys, same)
            added.left_out = frozenset(keys)
        rest = added.survey()
        plan = replace(plan, added=rest.splits, duplicates=survey.records - rest.records)
        if not rest.records:
            return replace(plan, added={})
        if isinstance(opened, StoreSource):
            join_answers([(str(store), manifest), (str(source), opened.manifest)])
            if not options.key_prefix and _can_copy(plan, opened.manifest):
                composition = _link_shards(plan, opened.reader) or _plan_copies(plan, opened.reader)
                nbytes = composition.estimate_bytes if composition.copied_count else 0
                return replace(plan, addition=composition, estimate_bytes=nbytes)
        conversion = _plan_conversion(plan, place, progress)
        asked = replace(manifest, options=options_to_record(conversion))
        join_answers([(str(store), manifest), (str(source), asked)])  # before anything is packed
        return replace(plan, addition=conversion, estimate_bytes=conversion.estimate_bytes)
    except BaseException:
        opened.close()
        raise


def _open_source(source: Path, options: AppendOptions, manifest: Manifest) -> Source:
    """Opens the source, with the store's recorded options where this append gives none."""
    if options.source_kind is None and not (options.pair or options.sidecar or options.masks):
        pair, sidecar, masks = recorded_companions(manifest, source)
        options = replace(options, pair=pair, sidecar=sidecar, masks=masks)
    opened = options.open_source(
        source,
        columns=options.source_columns,
        frames=str(options.frames) if options.frames in OF_SOURCES else None,
        skip_bad=options.on_error == "skip",
        crowds=True if manifest.has_column(CROWD) else None,
    )
    opened.follow_store(manifest)
    recorded = manifest.options.get("frames")
    # Recorded frames do not apply to a store or an export of one.
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
    """Returns what identifies the source and the records that this append takes from it."""
    request = {"source": source.resume_key(), "split": options.split, "stamp": source.stamp()}
    request["key_prefix"] = options.key_prefix
    return request | {"samples": dict(survey.splits), "bytes": survey.size_bytes}


def _resolve_source_split(source: Source, split: str | None) -> str | None:
    """Returns the split of the source to read, or None for all of it."""
    if split is None:
        return None
    names = list(source.survey().splits)
    return None if names == [""] else split  # then ``split`` is one of the store's


def _make_split_mapping(
    manifest: Manifest, survey: Survey, split: str | None, source: str, store: str
) -> Callable[[str], str]:  # fmt: skip
    """Returns a function that maps a split of the source to a split of the store."""
    own = [s.name for s in manifest.splits]
    named = [name for name in survey.splits if name]
    # Only the store has splits: all records go to ``split``.
    if own and not named:
        if split is None:
            raise UsageError(
                f"{printable(source)} has no splits, and {printable(store)} has: say with --split which of them its "
                f"records go to ({', '.join(map(printable, own))}, or a new one)"
            )
        return lambda _: split
    # Only the source has splits: one of them is taken, and its name is dropped.
    if not own and named:
        if split is None or len(named) > 1:
            raise UsageError(
                f"{printable(source)} has the splits {', '.join(map(printable, named))}, and {printable(store)} has "
                "none: take one of them with --split"
            )
        return lambda _: ""
    if not own and split is not None:
        raise UsageError(f"neither {printable(source)} nor {printable(store)} has splits: leave --split out")
    return lambda name: name  # both have splits, or neither: names stay the same


def _merge_columns(manifest: Manifest, survey: Survey, store: str, source: str) -> tuple[Column, ...]:
    """Returns the store's columns, with the source's classes appended."""
    given = {column.name: column for column in survey.columns}
    columns = []
    # Columns that only the source has are ignored.
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
        count = "1 class" if len(classes) == 1 else f"{len(classes):,} classes"
        raise StoreError(
            f"{printable(source)} has {count} of {printable(name)!r} that {printable(store)} lacks "
            f"({join_names(classes)}); rename them if they are typing errors, or leave out --no-new-classes to add them"
        )


def _can_copy(plan: AppendPlan, other: Manifest) -> bool:
    """Tells if another store's records can be copied without encoding them again."""
    manifest, exif = plan.manifest, "exif_transpose"
    own, others = (
        {c.name: replace(c, classes=None).declaration for c in each} for each in (plan.columns, other.columns)
    )
    # Only classes may differ. None: the store does not record ``progressive``.
    return (
        (other.encoding, other.normalization) == (manifest.encoding, manifest.normalization)
        and bool(other.options.get(exif)) == bool(manifest.options.get(exif))
        and manifest.options.get("progressive") in (None, other.options.get("progressive"))
        and own == others
    )


def _link_shards(plan: AppendPlan, reader: Reader) -> Composition | None:
    """Returns links to the source's shards for the store, or None if they have to be copied."""
    manifest, split = plan.manifest, plan.options.split
    if plan.source.left_out or relative_link_folder(manifest, plan.store) is not None:
        return None
    added = list_linkable_shards(reader, manifest.format, plan.columns)
    if added is None:
        return None
    if split is not None and reader.manifest.splits:
        added = added.take_shards([number for number, runs in enumerate(added.runs) if split in dict(runs)])
        if any(len(runs) > 1 for runs in added.runs):  # it also holds records of splits that were not requested
            return None
    runs = [tuple((plan.source.split_of(name), count) for name, count in runs) for runs in added.runs]
    added = replace(added, runs=runs)
    # A shard of the store with several splits will be rewritten as one shard per split.
    names = [split.name for split in manifest.splits] or [""]
    own = ShardList(np.zeros(len(names), TABLE_ROW), [""] * len(names), [((name, 1),) for name in names])
    # The records of a split have to stay together.
    if ShardList.join(own, added).group_by_split(names) is None:
        return None
    return Composition(plan.store, reader.manifest, plan.columns, [LinkedShards(added, None, reader.manifest)])


def _plan_copies(plan: AppendPlan, reader: Reader) -> Composition:
    """Plans copies of the records to add, with their class numbers mapped to the store's."""
    other = reader.manifest
    names = [split.name for split in other.splits if plan.options.split in (None, split.name)] or [""]
    pieces = [
        copy_split(reader, name, plan.source.split_of(name), plan.columns, plan.source.left_out) for name in names
    ]
    base = replace(other, format=plan.manifest.format)
    if sum(piece.count for piece in pieces) != other.records:  # nobody has counted a part of the records
        base = replace(base, options=drop_record_counts(other), skipped=())
    links = partial(read_link_values, folder=relative_link_folder(plan.manifest, plan.store))
    size = _max_shard_bytes(plan)
    return Composition(plan.store, base, plan.columns, pieces, shard_size=size, links=links)


def _make_duplicates_error(plan: AppendPlan, keys: set[str], same: int) -> SourceError:
    """Makes the error for keys that the store has already; ``same`` of these samples have equal content."""
    some = join_names(sorted(keys), 3)
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


def _plan_conversion(plan: AppendPlan, destination: Path, progress: ProgressCallback) -> Plan:
    """Plans the conversion of samples to new shards."""
    conversion = plan_source(plan.source, destination, _make_convert_options(plan), progress)
    _refuse_other_columns(plan, conversion)
    # The records are lost only when they are in the store.
    return replace(conversion, relative_link_folder=relative_link_folder(plan.manifest, plan.store), keeps_receipt=True)


def _make_convert_options(plan: AppendPlan) -> ConvertOptions:
    """Makes the options of a conversion that encodes records like the store's."""
    manifest, options = plan.manifest, plan.options
    opened = plan.source.source
    other = opened.manifest if isinstance(opened, StoreSource) else None
    encode = restore_encode_options(manifest)
    shape: dict[str, Any] = {"progressive": encode.progressive}
    # Images of a store with the same encoding stay as they are.
    if other is None or other.encoding != manifest.encoding:
        quality = manifest.options.get("quality")
        shape |= {
            "size": encode.size,
            "fit": encode.fit if encode.size is not None else None,
            "resize": encode.resize,
            "max_side": encode.max_side,
            "quality": quality if type(quality) is int else None,
            "normalize": manifest.normalization or ("none" if manifest.holds_floats else None),
            "exif_transpose": encode.exif_transpose,
        }  # fmt: skip
    answered = Reading.restore(None, manifest.options)
    given = {each.name: getattr(options, each.name) for each in fields(ReadingOptions)} | {
        "depth": options.depth or answered.depth,
        "alpha": options.alpha or answered.alpha,
        "frames": options.frames if options.frames is not None else answered.frames,
        "pixels": options.pixels or ("pillow" if answered.by_pillow else None),
        "shard_size": _max_shard_bytes(plan),
    }
    return ConvertOptions(
        encoding=manifest.encoding,
        format=manifest.format,
        restart=options.restart,
        overwrite=True,  # of what another append has packed
        max_pixels=options.max_pixels,
        index=manifest.has_column(SEEK_INDEX.name),
        link=manifest.is_linked,
        mode=manifest.image.pixels.name,
        columns=_collect_column_answers(plan),
        **given | shape,
    )


def _collect_column_answers(plan: AppendPlan) -> tuple[str, ...]:
    """Returns the options of single columns, the store's and this append's, as ``COLUMN.NAME=VALUE``."""
    recorded = read_column_answers(plan.manifest)
    given = plan.options.column_answers.items()
    own = {f"{column}.{name}": value for column, answers in given for name, value in answers.items()}
    # This append's options replace the store's.
    return tuple(f"{name}={value}" for name, value in (recorded | own).items())


def _max_shard_bytes(plan: AppendPlan) -> int:
    """Returns the maximum bytes of images in a new shard: as asked, or as in the store's largest shard."""
    # A store of one file has no shards, so no limit.
    return plan.options.shard_bytes or largest_shard_bytes(plan.manifest) or NO_LIMIT


def _refuse_other_columns(plan: AppendPlan, conversion: Plan) -> None:
    """Raises :class:`StoreError` if the new records would not fit the columns and settings of the store."""
    manifest = plan.manifest
    made = {column.name: column for column in Run(conversion).columns}
    names = list(made)
    for column in plan.columns:
        other = made.pop(column.name, None)
        if other is None:
            raise StoreError(f"{printable(str(plan.store))} has a column {column.name!r}, the source has none")
        if other.declaration != column.declaration:
            raise StoreError(
                f"column {column.name!r} of {printable(str(plan.store))} holds {_describe_column(column)}, of the "
                f"source {_describe_column(other)}"
            )
    if made:
        raise StoreError(f"the source has a column {next(iter(made))!r}, {printable(str(plan.store))} has none")
    if names != [column.name for column in plan.columns]:
        own = ", ".join(column.name for column in plan.columns)
        raise StoreError(f"the columns of the source are in another order ({', '.join(names)}; the store has {own})")
    settings = conversion.encode.normalization, conversion.encode.exif_transpose
    if settings != (manifest.normalization, bool(manifest.options.get("exif_transpose"))):
        raise StoreError(
            f"normalisation or EXIF handling of the source's images differs from {printable(str(plan.store))}"
        )


def _describe_column(column: Column) -> str:
    """Returns a column's type, dtype, shape and axes as text for an error."""
    shape = " x ".join(map(str, column.shape)) or "one value"
    return f"{column.type}, {column.kind} {column.dtype} {shape}" + (f" ({column.layout})" if column.layout else "")
