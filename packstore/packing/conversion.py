"""``convert``: packs a source into a store, verifies it, and publishes it when it is complete."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from packstore.core.errors import UsageError
from packstore.core.fields import Field, parse_fields
from packstore.core.files import check_space
from packstore.core.manifest import Manifest, Skipped
from packstore.core.options import argument, option, progress_option, take_options, takes
from packstore.core.progress import ProgressCallback, no_progress, progress_callback
from packstore.core.registry import import_and_call
from packstore.core.urls import check_paths, location
from packstore.images.image_files import UNIFIED
from packstore.images.orientation import readers_transpose
from packstore.packing import ConvertOptions
from packstore.packing.encoding import EXIF_ORIENTED
from packstore.packing.frames import OTHER_SIZE
from packstore.packing.header_survey import ask_about_lossy_image
from packstore.packing.plan import Plan, ShardCuts, check_new_store, make_plan, plan_source
from packstore.packing.run import Packed, Run, refuse_changed_source, with_statistics
from packstore.sources.base import SourceOptions
from packstore.sources.ledger import Ledger
from packstore.stores import StoreBuilder
from packstore.stores.opening import open_reader
from packstore.stores.places import place_of
from packstore.stores.places.receipts import Tally
from packstore.stores.records import disk_bytes


@dataclass(frozen=True, slots=True, repr=False)
class ConvertReport:
    """Result of a conversion.

    Attributes:
        destination: The store.
        manifest: Its manifest.
        tally: Counts of the samples, including those of an interrupted run.
        disk_bytes: Bytes that the store takes on disk.
        seconds: From the survey to the published store.
        ledger: Every file of the source with its role; empty if the source has no files of its own.
        resumed: Number of records that an interrupted run had packed.
        palette: Classes whose images are all PNG files with a palette, which may be masks; ``""`` stands for a whole
            dataset without classes.
        notes: Remarks of the source for the user, see :class:`packstore.sources.base.Survey`.
    """

    destination: Path
    manifest: Manifest
    tally: Tally
    disk_bytes: int
    seconds: float
    ledger: Ledger
    resumed: int = 0
    palette: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def source_bytes(self) -> int:
        """Bytes of the images that were read."""
        return self.tally.source_bytes

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Samples left out by policy."""
        return tuple(self.tally.skipped)

    @property
    def kept(self) -> Mapping[str, int]:
        """Number of progressive files that could not be made baseline and were kept unchanged, by reason."""
        return self.tally.kept

    @property
    def oriented(self) -> int:
        """Number of images whose EXIF orientation asks for a rotation or flip. :attr:`orientation` says if it was
        applied."""
        return int(self.manifest.options.get(EXIF_ORIENTED) or 0)

    @property
    def unified(self) -> Mapping[str, int]:
        """Number of images of other modes converted to the store's without loss, by kind of conversion
        (:data:`packstore.images.image_files.UNIFIED`)."""
        return read_conversion_counts(self.manifest)

    @property
    def orientation(self) -> Literal["not applied", "applied", "applied when loading"]:
        """Says if the EXIF orientation is applied: not at all, at packing, or at loading."""
        if not self.manifest.options.get("exif_transpose"):
            return "not applied"
        return "applied when loading" if readers_transpose(self.manifest) else "applied"

    def __repr__(self) -> str:
        more = f", {len(self.skipped):,} skipped" if self.skipped else ""
        if self.oriented and self.orientation == "not applied":
            more += f", {self.oriented:,} with an EXIF orientation that is not applied"
        return (
            f"<ConvertReport of {str(self.destination)!r}: {self.manifest.records:,} records, "
            f"{self.disk_bytes / 1e6:,.1f} MB, {self.seconds:.1f} s{more}>"
        )


def read_conversion_counts(manifest: Manifest) -> dict[str, int]:
    """Reads from the manifest how many images were converted without loss, by kind of conversion (:data:`UNIFIED`).

    Leaves out kinds without a count.
    """
    return {name: count for name in UNIFIED if isinstance(count := manifest.options.get(name), int)}


def _describe_rounding(manifest: Manifest) -> list[str]:
    """Describes in one line how a 16-bit floating point encoding rounds images of more than 8 bits."""
    bits, mode = {"float16": 11, "bfloat16": 8}.get(manifest.encoding), manifest.image.pixels
    if bits is None or mode.dtype == "uint8":
        return []
    return [f"{manifest.encoding} rounds values of {mode.dtype} to {bits} bits; --encoding float32 keeps 24"]


def describe_other_sizes(manifest: Manifest, first: str = "") -> list[str]:
    """Describes the records whose annotations state another size than their image has, in one line. ``first``: the
    first of them, in words. Empty if there are none."""
    if not (count := manifest.options.get(OTHER_SIZE)):
        return []
    example = f" ({first})" if first else ""
    return [
        f"annotations of {count:,} of {manifest.records:,} images state another size than the image has{example}: they "
        "may have been made for other copies of the images; compare both before you train (packstore view)"
    ]


def _describe_convention(plan: Plan, manifest: Manifest) -> list[str]:
    """Describes in which frame annotations of turned photos are taken to count, if the source's format decided it."""
    frame = plan.source.annotation_frame("jpeg")
    moved = manifest.options.get("exif_oriented") and any(column.frame is not None for column in manifest.columns)
    if frame is None or not moved or plan.options.annotation_frame is not None:
        return []
    other = {"upright": "stored", "stored": "upright"}[frame]
    return [
        f"annotations of turned photos are taken to count in the {frame} image, as in tools of "
        f"{manifest.origin.kind}; if not: --annotation-frame {other}"
    ]


def _find_palette_classes(plan: Plan, packed: Packed) -> tuple[str, ...]:
    """Returns the classes whose images are all palette PNGs, or ``("",)`` if a store without classes has only these."""
    manifest, palette, labels = packed.manifest, packed.tally.palette, packed.labels
    if not palette:
        return ()
    if manifest.classes is None:
        return ("",) if palette.total() == manifest.records else ()
    # The tally counts by labels of entries, but here the samples bring them.
    if "label" in plan.survey.sampled:
        return ()
    if labels is None:
        with open_reader(plan.destination) as reader:
            numbers = reader.fixed_column("label")
            labels = Counter({str(label): int(count) for label, count in enumerate(np.bincount(numbers))})
    return tuple(name for label, name in enumerate(manifest.classes) if 0 < labels[str(label)] == palette[str(label)])


_SMALL_FILE = 16 << 10
_run_on_cluster = import_and_call("packstore.packing.distribute.driver:run_on_cluster")
"""Runs a plan whose destination is a URL: by processes, by ray, or here."""


class MapStyle(Protocol):
    """Dataset whose samples are read by index. It also needs ``__len__``, which torch's ``Dataset`` does not
    declare."""

    def __getitem__(self, index: Any, /) -> Any: ...


@dataclass(frozen=True)
class ConvertArguments(ConvertOptions):
    """Arguments of :func:`packstore.convert`."""

    source: str | os.PathLike[str] | Mapping[str, Any] | Iterable[Any] | MapStyle = field(
        metadata=argument(
            "The path of an image folder, a flat folder, CIFAR-10 or CIFAR-100 in any published layout, or a store. Or "
            "a URL (``s3://bucket/imagenet``) of a store or a folder of images, also of COCO, YOLO, VOC … Or a "
            "dataset: a ``Dataset`` or ``IterableDataset`` of torch, a list or a generator of samples, or a dict of "
            "such datasets by split. A sample of a dataset is a dict of values by name, with its key under ``key``; or "
            "``(image, label)``; or ``(image, target)`` with a dict as target; or the image alone. A sample without a "
            "key gets its index as key. An ``ImageFolder`` without a transform is packed from its files, not decoded."
        )
    )
    destination: str | os.PathLike[str] = field(
        metadata=argument(
            "Path or URL of the store; its suffix chooses the format. At a URL (``s3://``, ``gs://``, ``az://``, "
            "``file:///``) a store always has shards. An interrupted run resumes there after the last complete shard."
        )
    )
    _: KW_ONLY
    fields: Mapping[str, Field | str] | None = option(
        None,
        'Declarations of a dataset\'s values by name, such as ``{"image": "image", "label": '
        "packstore.Label(classes)}``; other values are left out. None infers them from the first samples. A later "
        "sample that does not fit is a bad sample.",
    )
    progress: bool | ProgressCallback = progress_option()


@takes(ConvertArguments)
def convert(arguments: ConvertArguments) -> ConvertReport:
    """Packs ``source`` into a new store at ``destination``, and verifies it.

    The store appears under its name only when it is complete. A run that was killed keeps its records in a hidden
    directory beside it. A run that failed keeps them if it took more than a few seconds. The same call resumes from
    there.

    Returns:
        Manifest, bytes, seconds, skipped samples, and the ledger of the source.

    Raises:
        UsageError: Unknown options, or options that contradict each other or the source.
        SourceError: The source cannot be read, or changed during the run; :class:`SampleError` for one bad sample.
        DestinationError: The destination exists, cannot be written or has too little space.
        StoreError: Writing failed.
    """
    started = time.monotonic()
    options = take_options(ConvertOptions, vars(arguments))  # without progress: a cluster pickles them
    with progress_callback(arguments.progress) as report:
        if isinstance(arguments.source, (str, os.PathLike)):
            if arguments.fields is not None:
                raise UsageError("fields declare the values of a dataset; a path has its own fields")
            check_paths(arguments.labels)
            plan = make_plan(location(arguments.source), location(arguments.destination), options, report)
        else:
            plan = _plan_dataset(arguments.source, location(arguments.destination), options, arguments.fields, report)
        with closing(plan.source):
            return run_plan(plan, report, started)


def _plan_dataset(
    data: Any,
    destination: Path,
    options: ConvertOptions,
    fields: Mapping[str, Field | str] | None,
    progress: ProgressCallback,
) -> Plan:
    """Plans the conversion of a dataset, or of a dict of datasets by split."""
    for_paths = (options.source_kind, options.labels, options.image_key, options.label_key, options.layout)
    patterns = (options.ignore, options.splits, options.source_columns, options.pair, options.sidecar, options.masks)
    if any(patterns) or any(value is not None for value in for_paths):
        raise UsageError(
            "source_kind, labels, image_key, label_key, layout, ignore, splits, columns, pair, sidecar and masks are "
            "for paths, not for a dataset"
        )
    by_split = isinstance(data, Mapping)
    if by_split and not all(isinstance(name, str) and name for name in data):
        raise UsageError("a dict of datasets has the names of the splits as its keys")
    if by_split and not data:
        raise UsageError("a dict of datasets is empty; give at least one split")
    check_new_store(destination, options)  # before samples are read
    if options.cluster is not None:
        raise UsageError("a cluster reads paths, which each of its machines opens; a dataset is in this process alone")
    from packstore.sources.dataset import DatasetSource

    source = DatasetSource(
        data if by_split else {options.split or "": data},
        SourceOptions(max_pixels=options.max_pixels, skip_bad=options.on_error == "skip"),
        fields=None if fields is None else parse_fields(fields),  # None infers them
        encoding=options.encoding,
        workers=options.workers,
    )
    options = replace(options, encoding=source.choose_encoding(options.encoding))
    return plan_source(source, destination, options, progress)


def run_plan(plan: Plan, progress: ProgressCallback = no_progress, started: float | None = None) -> ConvertReport:
    """Runs a plan of :func:`packstore.packing.plan.make_plan`: packs, verifies, publishes and reports.

    At a URL, a cluster or one local worker packs the store. Resumes an interrupted run; returns at once if that run had
    published. If this run fails, it keeps the packed records for the next run. A note on the error says where they are.

    Keeps no records of links, or of an iterable that can be read only once.

    Args:
        plan: The plan.
        progress: Called after each batch.
        started: ``time.monotonic`` at the start; None for now.

    Raises:
        SourceError: The source changed meanwhile, or all its samples were skipped.
        SampleError: A bad sample, unless ``on_error`` is ``skip``.
        DestinationError: There is too little space.
    """
    started = time.monotonic() if started is None else started
    pack = _run_on_cluster if place_of(plan.destination).remote else _pack_locally
    packed = pack(plan, progress)
    manifest = packed.manifest
    return ConvertReport(
        destination=plan.destination,
        manifest=manifest,
        tally=packed.tally,
        disk_bytes=disk_bytes(plan.destination) if packed.nbytes is None else packed.nbytes,
        seconds=time.monotonic() - started,
        ledger=plan.survey.ledger,
        resumed=packed.resumed,
        palette=_find_palette_classes(plan, packed),
        notes=(
            *plan.survey.notes,
            *_describe_rounding(manifest),
            *_describe_convention(plan, manifest),
            *describe_other_sizes(manifest, packed.other_size),
        ),
    )


def _pack_locally(plan: Plan, progress: ProgressCallback) -> Packed:
    """Packs the source into a store at a local path, and publishes it."""
    check_space(plan.destination, plan.estimate_bytes)
    options, survey, source = plan.options, plan.survey, plan.source
    workers = options.workers or source.workers()
    plan = with_statistics(plan, workers, progress)
    run = Run(plan)
    if plan.encoder.passes_through and not plan.index and not place_of(source.path).remote:
        # Reading a small file is system calls and Python: threads would only wait for each other's GIL. Measured for
        # 50,000 files of 2 KB on 2 cores: 0.92 s with one thread beside the writing one, 1.08 s with two. With larger
        # files the writing thread has as much to do as a core can: 600 of 110 KB take 68 ms so, and 79 ms with two; but
        # with links it has little to do.
        small = survey.size_bytes < _SMALL_FILE * survey.records
        workers = options.workers or (1 if small else max(1, workers - (not options.link)))
    stamp, total = source.stamp(), survey.records if survey.counted else None
    identity = run.conversion_identity if survey.resumable and not options.link else None
    if identity is not None:
        published = place_of(plan.destination).finish_published_run(identity, overwrite=options.overwrite)
        if published is not None:
            return Packed(published, Tally(), published.records)
    builder = StoreBuilder(
        plan.destination,
        run.base,
        overwrite=options.overwrite,
        sharded=plan.shards is not None,
        identity=identity,
        restart=options.restart,
        keeps_receipt=plan.keeps_receipt,
    )
    try:
        with builder:
            entries = source.entries(options.split)
            with ask_about_lossy_image(source, survey, options, plan.encode.reading):
                run.pack(builder, entries, workers, progress, total, ShardCuts(plan.shards) if plan.shards else None)
            refuse_changed_source(plan, stamp, run.tally)
            inherited = survey.store.skipped if survey.store else ()
            skipped = (*inherited, *run.tally.skipped)
            manifest = builder.commit(counted=run.tally.counted, skipped=skipped, position=run.make_position)
    except BaseException as error:
        if builder.kept and not plan.keeps_receipt:  # an append says itself where its work is
            error.add_note(builder.kept)
        elif identity is None:
            error.add_note(
                "nothing is kept of linking: the same call starts afresh"
                if options.link
                else "an iterable cannot be read from the middle: nothing is kept, and the same call starts afresh"
            )
        raise
    return Packed(manifest, run.tally, run.resumed, other_size=plan.aligner.other_size)
