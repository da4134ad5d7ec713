"""Plans the conversion of samples to records like those of a store to which they are appended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from packstore.core.arguments import convert_size
from packstore.core.column import SEEK_INDEX
from packstore.core.errors import StoreError, printable
from packstore.core.manifest import Column
from packstore.core.modes import is_reading_option
from packstore.core.progress import ProgressCallback
from packstore.images.reading import Reading
from packstore.packing.added_source import AddedSource
from packstore.packing.column_answers import split_column_options
from packstore.packing.growing import AppendPlan
from packstore.packing.merge import largest_shard_bytes
from packstore.packing.options import ConvertOptions
from packstore.packing.plan import Plan, plan_source
from packstore.packing.recorded_options import restore_encode_options
from packstore.packing.run import Run
from packstore.sources.store import StoreSource
from packstore.stores.linked import relative_link_folder

_NO_LIMIT = 1 << 60


def plan_conversion(plan: AppendPlan, source: AddedSource, destination: Path, progress: ProgressCallback) -> Plan:
    """Plans the conversion of samples to new shards. Raises :class:`StoreError` if their records would not fit the
    store."""
    conversion = plan_source(source, destination, _make_convert_options(plan), progress)
    _refuse_other_columns(plan, conversion)
    return replace(conversion, relative_link_folder=relative_link_folder(plan.manifest, plan.store))


def _make_convert_options(plan: AppendPlan) -> ConvertOptions:
    """Makes the options of a conversion whose records are encoded like the store's.

    Images of a store with the same encoding stay as they are: the options have no size, quality, normalisation and EXIF
    handling.
    """
    manifest, options = plan.manifest, plan.options
    other = plan.source.manifest if isinstance(plan.source, StoreSource) else None
    encode = restore_encode_options(manifest)
    shape: dict[str, Any] = {"progressive": encode.progressive}
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
    return ConvertOptions(
        encoding=manifest.encoding,
        format=manifest.format,
        shard_size=max_shard_bytes(plan),
        check=options.check,
        on_error=options.on_error,
        restart=options.restart,
        workers=options.workers,
        decoder=options.decoder,
        max_pixels=options.max_pixels,
        index=manifest.has_column(SEEK_INDEX.name),
        link=manifest.is_linked,
        mode=manifest.image.pixels.name,
        depth=options.depth or answered.depth,
        alpha=options.alpha or answered.alpha,
        frames=options.frames if options.frames is not None else answered.frames,
        pixels=options.pixels or ("pillow" if answered.by_pillow else None),
        annotation_frame=options.annotation_frame,
        columns=_collect_column_answers(plan),
        **shape,
    )


def _collect_column_answers(plan: AppendPlan) -> tuple[str, ...]:
    """Returns the options of single columns, as ``COLUMN.NAME=VALUE``. This append's options replace the store's."""
    recorded = {name: value for name, value in plan.manifest.options.items() if "." in name and is_reading_option(name)}
    given = split_column_options(plan.options.columns)[1]
    own = {f"{column}.{name}": value for column, answers in given.items() for name, value in answers.items()}
    return tuple(f"{name}={value}" for name, value in (recorded | own).items())


def max_shard_bytes(plan: AppendPlan) -> int:
    """Returns the maximum bytes of images of a new shard.

    It is the option, else the size of the store's largest shard. If the store is one file, returns a number that no
    shard reaches.
    """
    size = convert_size(plan.options.shard_size)
    return size if size is not None else largest_shard_bytes(plan.manifest) or _NO_LIMIT


def _refuse_other_columns(plan: AppendPlan, conversion: Plan) -> None:
    """Raises :class:`StoreError` if the new records would not fit the store.

    Columns, their order, normalisation and EXIF handling must be equal.
    """
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
