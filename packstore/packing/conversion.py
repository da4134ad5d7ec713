"""``convert``: packs a source into a store, verifies it, and publishes it when it is complete."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from packstore.core.arguments import take_options
from packstore.core.errors import SourceError, UsageError, printable
from packstore.core.fields import Field, parse_fields
from packstore.core.files import check_paths, refuse_empty
from packstore.core.manifest import Normalization, Skipped
from packstore.core.progress import Progress, ProgressCallback, no_progress, progress_callback
from packstore.core.urls import UrlPath, location
from packstore.images.encode import Encoder
from packstore.images.normalization import MeanAndStd
from packstore.images.sniff import MAX_PIXELS
from packstore.packing.batches import PackedBatch
from packstore.packing.options import ConvertOptions
from packstore.packing.plan import Plan, check_destination, check_space, make_plan, plan_source, resolve_format
from packstore.packing.records import append_batch, describe_store, list_store_columns, pack_batches
from packstore.packing.report import ConvertReport, find_palette_classes, make_report
from packstore.packing.resume import PositionTracker, ResumedRecords, conversion_identity
from packstore.packing.shard_rule import ShardCuts
from packstore.packing.statistics import with_statistics
from packstore.sources.base import SourceOptions
from packstore.sources.dataset import DatasetSource, MapStyle
from packstore.stores import create_store
from packstore.stores.builder.interrupted import finish_published_run

_SMALL_FILE = 16 << 10


def convert(
    source: str | os.PathLike[str] | Mapping[str, Any] | Iterable[Any] | MapStyle,
    destination: str | os.PathLike[str],
    *,
    source_kind: str | None = None,
    labels: str | os.PathLike[str] | None = None,
    image_key: str | None = None,
    label_key: str | None = None,
    layout: str | None = None,
    ignore: str | Sequence[str] = (),
    columns: str | Sequence[str] = (),
    fields: Mapping[str, Field | str] | None = None,
    split: str | None = None,
    format: str | None = None,
    encoding: str | None = None,
    size: int | tuple[int, int] | None = None,
    fit: Literal["crop", "pad", "squash"] | None = None,
    resize: int | None = None,
    max_side: int | None = None,
    quality: int | None = None,
    normalize: str | Normalization | MeanAndStd | None = None,
    exif_transpose: bool = False,
    check: Literal["header", "decode", "none"] = "header",
    on_error: Literal["raise", "skip"] = "raise",
    overwrite: bool = False,
    restart: bool = False,
    shard_size: int | str | None = None,
    workers: int | None = None,
    decoder: str = "auto",
    max_pixels: int = MAX_PIXELS,
    cluster: str | None = None,
    index: bool | None = None,
    link: bool | Literal["relative"] = False,
    progressive: Literal["baseline"] | None = None,
    mode: str | None = None,
    depth: str | None = None,
    alpha: str | None = None,
    frames: int | str | None = None,
    progress: bool | ProgressCallback = False,
) -> ConvertReport:
    """Packs ``source`` into a new store at ``destination``.

    The store appears under its name only when it is complete. A run that was killed keeps its records in a hidden
    directory beside it, and so does a run that failed after more than a few seconds. The same call resumes from there.

    Args:
        source: The path of an image folder, a flat folder, CIFAR-10 or CIFAR-100 in any published layout, or a store.
            Or a URL (``s3://bucket/imagenet``) of a store or a folder of images, also of COCO, YOLO, VOC … Or a
            dataset: a ``Dataset`` or ``IterableDataset`` of torch, a list or a generator of samples, or a dict of such
            datasets by split. A sample of a dataset is a dict of values by name, with its key under ``key``; or
            ``(image, label)``; or ``(image, target)`` with a dict as target; or the image alone. A sample without a key
            gets its index as key. An ``ImageFolder`` without a transform is packed from its files, not decoded.
        destination: Path or URL of the store; its suffix chooses the format. At a URL (``s3://``, ``gs://``, ``az://``,
            ``file:///``) a store always has shards. An interrupted run resumes there after the last complete shard.
        source_kind: Kind of the source, such as ``imagefolder``; None recognises it.
        labels: CSV with the columns ``file,label`` and optionally ``split``.
        image_key: Name of the array with the images, in a source of named arrays (HDF5, npz …); None finds it.
        label_key: Name of the array with the class numbers, in such a source.
        layout: Order of the images' axes in such a source: ``NHWC``, ``NCHW`` or ``NHW``. For boxes in Parquet and
            Arrow: their convention, one of :data:`packstore.sources.boxes.CONVENTIONS` (``xyxy``, ``xywh`` …), or
            ``json`` to keep them unchanged.
        ignore: Patterns of files and folders to leave out, in the syntax of ``.gitignore``: ``*.txt``, ``masks/``.
        columns: Meanings of a table's columns that their values do not tell: ``["image=photo", "label=kind",
            "boxes=x1,y1,x2,y2"]``. Also options of a single column of further image files, ``mode``, ``depth``,
            ``alpha`` and ``frames``: ``["near.depth=keep", "thermal.depth=scale"]``.
        fields: Declarations of a dataset's values by name, such as ``{"image": "image", "label":
            packstore.Label(classes)}``; other values are left out. None infers them from the first samples. A later
            sample that does not fit is a bad sample.
        split: Pack only this split; for a single dataset, the name of its split.
        format: ``lmdb``, ``hdf5`` or ``pth``; None takes the destination's suffix.
        encoding: ``original``, ``jpeg``, ``uint8``, ``float16``, ``bfloat16``, ``float32``, or the name of a plug-in.
            None keeps the encoding of a source that is a store; else takes ``original`` for LMDB and HDF5, ``float16``
            for ``.pth``.
        size: ``S`` or ``(height, width)`` of tensor encodings.
        fit: How an image of another aspect ratio is made to fit ``size``: ``crop``, ``pad`` or ``squash``; None for
            ``crop``.
        resize: Shorter side to which ``jpeg`` shrinks images; None does not.
        max_side: Maximum of the longer side, for ``jpeg`` and ragged ``uint8``; None for no limit.
        quality: JPEG quality, 1 … 100; None for 90, and to keep the records of a ``jpeg`` store unchanged.
        normalize: ``imagenet``, ``cifar10``, ``cifar100``, ``auto``, ``none``, or ``M,M,M/S,S,S``. Or means and
            standard deviations of pixels scaled to 0 … 1: ``([m, m, m], [s, s, s])``. None chooses.
        exif_transpose: Apply the EXIF orientation. Pixels are rotated now; files that ``original`` keeps are rotated
            when they are loaded. A store whose files are transposed at loading stays such a store.
        check: How thoroughly each file is checked: ``header``, ``decode`` or ``none``.
        on_error: ``raise`` stops at a bad sample, ``skip`` leaves it out and notes it in the manifest.
        overwrite: Replace an existing store.
        restart: Discard the records of an interrupted run.
        shard_size: About how many bytes of images a shard has, as a number or as text (``2MB``). Shards are cut before
            packing, by the sizes in the source, see :class:`packstore.packing.shard_rule.ShardRule`. None for a store
            of one file; at a URL, for 256 MiB.
        workers: Number of threads; None for one per core, or 32 if the source is a URL. For a map-style dataset also
            the number of processes that read it, if it is 2 or more; None for one per core from 1,024 samples on.
        decoder: Name of the decoder, see :func:`packstore.images.decoders.get_decoder`.
        max_pixels: Limit of an image's pixels. An image with more is a bad sample. A file is a bad sample, too, if it
            has more than 8 bytes per allowed pixel plus 64 MiB. Both are rejected before they are read or decoded. This
            bounds the memory: a decoding thread takes up to 20 bytes per allowed pixel (3.6 GB by default).
        cluster: Workers that pack shards, if the destination is a URL: ``processes:N`` on this machine, ``ray`` on it,
            or ``ray:ADDRESS``, a cluster whose machines see ``source`` under this path. ``workers`` is then the number
            of threads of each worker. None for this process. The store is the same to the byte.
        index: Add a seek index to each baseline JPEG file of ``original``. With it loaders decode little more than the
            crop. It takes 0.8% of the bytes. None adds it if packstore's JPEG engine is available.
        link: Leave the images in their files. The store keeps file, offset and length of each image, and reads the
            images from there. For sources whose images are bytes of uncompressed files on this machine. An interrupted
            run cannot be resumed.
        progressive: ``baseline`` rewrites progressive JPEG files of ``original`` as baseline files with the same pixels
            and metadata: their crops decode many times faster. Each file is decoded before and after. None keeps the
            files.
        mode: Mode of all images, such as ``RGB``, ``L`` (gray) or ``I;16``, see :class:`packstore.core.modes.Mode`;
            ``keep`` for the mode of the first image, which all others must share. None reads image files as 8-bit RGB,
            and keeps arrays unchanged. A file that exceeds the mode ends the run with a :class:`UsageError`, unless
            ``depth``, ``alpha`` or ``frames`` says how to convert it. The same call with one of these resumes the run.
        depth: Conversion of values of more than 8 bits: ``keep`` (the mode of the first image), ``scale`` (from the
            range of their dtype; floating point from 0 … 1), ``clip`` (above 255 to 255) or ``window:LO,HI``.
        alpha: ``keep``, ``drop`` or ``over:COLOUR`` (``black``, ``white``, ``#rrggbb``).
        frames: Frames of files that have several. ``first``, or the number of a frame from 0. ``all``: each frame
            becomes a record of pixels, with the key ``name#number``. ``clips``: each file, or each folder of numbered
            frames, becomes a record with the column ``clip``, an array of its frames.
        progress: True for a progress bar, in a terminal or a notebook; or a function that is called after each batch.

    Returns:
        Manifest, bytes, seconds, skipped samples, and the ledger of the source.

    Raises:
        UsageError: Unknown options, or options that contradict each other or the source.
        SourceError: The source cannot be read, or changed during the run; :class:`SampleError` for one bad sample.
        DestinationError: The destination cannot be written or has too little space.
        StoreError: Writing failed.
    """
    options = take_options(ConvertOptions, locals())
    started = time.monotonic()
    with progress_callback(progress) as report:
        if isinstance(source, (str, os.PathLike)):
            if fields is not None:
                raise UsageError("fields declare the values of a dataset; a path has its own fields")
            refuse_empty(source, destination)
            check_paths(labels)
            plan = make_plan(location(source), location(destination), options, report)
        else:
            refuse_empty(destination)
            plan = _plan_dataset(source, location(destination), options, fields, report)
        with closing(plan.source):
            return run_plan(plan, report, started)


def _plan_dataset(
    data: Any,
    destination: Path,
    options: ConvertOptions,
    fields: Mapping[str, Field | str] | None,
    progress: ProgressCallback,
) -> Plan:
    """Plans the conversion of a dataset, or of a dict of datasets by split. ``fields`` None infers the fields.

    Raises :class:`UsageError` for options that only paths have, and for a cluster. Raises it also for an empty dict,
    and for a split whose name is empty or no text.
    """
    for_paths = (options.source_kind, options.labels, options.image_key, options.label_key, options.layout)
    if options.ignore or options.source_columns or any(value is not None for value in for_paths):
        raise UsageError(
            "source_kind, labels, image_key, label_key, layout, ignore and columns are for paths, not for a dataset"
        )
    by_split = isinstance(data, Mapping)
    if by_split and not all(isinstance(name, str) and name for name in data):
        raise UsageError("a dict of datasets has the names of the splits as its keys")
    if by_split and not data:
        raise UsageError("a dict of datasets is empty; give at least one split")
    resolve_format(destination, options.format)  # before samples are read
    check_destination(destination, options)
    if options.cluster is not None:
        raise UsageError("a cluster reads paths, which each of its machines opens; a dataset is in this process alone")
    source = DatasetSource(
        data if by_split else {options.split or "": data},
        SourceOptions(max_pixels=options.max_pixels, skip_bad=options.on_error == "skip"),
        fields=None if fields is None else parse_fields(fields),
        encoding=options.encoding,
        workers=options.workers,
    )
    options = replace(options, encoding=source.choose_encoding(options.encoding))
    return plan_source(source, destination, options, progress)


def run_plan(plan: Plan, progress: ProgressCallback = no_progress, started: float | None = None) -> ConvertReport:
    """Runs a plan of :func:`packstore.packing.plan.make_plan`: packs, verifies, publishes and reports.

    At a URL, a cluster or one local worker packs the store. Resumes an interrupted run; returns at once if that run had
    published. If this run fails, it keeps the packed records for the next run. A note on the error says where they are.

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
    if isinstance(plan.destination, UrlPath):
        from packstore.cluster.driver import run_on_cluster

        return run_on_cluster(plan, progress, started)
    check_space(plan)
    workers = plan.options.workers or plan.source.workers()
    plan = with_statistics(plan, workers, progress)
    encoder = plan.make_encoder()
    if encoder.passes_through and not plan.index and not isinstance(plan.source.path, UrlPath):
        # Reading a small file is system calls and Python: threads would only wait for each other's GIL. Measured for
        # 50,000 files of 2 KB on 2 cores: 0.92 s with one thread beside the writing one, 1.08 s with two. With larger
        # files the writing thread has as much to do as a core can: 600 of 110 KB take 68 ms so, and 79 ms with two; but
        # with links it has little to do.
        small = plan.survey.size_bytes < _SMALL_FILE * plan.survey.records
        workers = plan.options.workers or (1 if small else max(1, workers - (not plan.options.link)))
    columns = list_store_columns(plan, encoder)
    survey = plan.survey
    kept, counted = Counter[str](), Counter[str]()
    source_bytes, total = 0, survey.records if survey.counted else None
    stamp = plan.source.stamp()
    identity = conversion_identity(plan, encoder, columns) if survey.resumable and not plan.options.link else None
    if identity is not None:
        published = finish_published_run(plan.destination, identity, overwrite=plan.options.overwrite)
        if published is not None:
            return make_report(plan, published, 0, started, (), published.records)
    builder = create_store(
        plan.destination,
        format=plan.format,
        encoding=plan.encode.encoding,
        columns=columns,
        overwrite=plan.options.overwrite,
        sharded=plan.shards is not None,
        identity=identity,
        restart=plan.options.restart,
    )
    try:
        with builder:
            describe_store(builder, plan, encoder)
            progress(Progress("pack", 0, total, 0))
            resumed = ResumedRecords(plan, builder)
            reached = PositionTracker(resumed.position)
            cuts = ShardCuts(plan.shards) if plan.shards else None
            for packed in _replay_then_pack(plan, encoder, resumed, workers):
                append_batch(builder, packed, survey, cuts)
                reached.add_entries(packed.seen, packed.skipped, packed.oriented, packed.palette, packed.unified)
                kept.update(packed.kept)
                builder.checkpoint(reached.make_position)
                source_bytes += packed.source_bytes
                progress(Progress("pack", reached.consumed, total, source_bytes))
            if total is not None and reached.consumed != total:
                raise SourceError(
                    f"{plan.source.path} changed while it was packed: {total} images at first, {reached.consumed} in "
                    "the end; run the conversion again when nothing writes to it"
                )
            if plan.source.stamp() != stamp:
                raise SourceError(f"{plan.source.path} changed while it was packed; pack it when nothing writes to it")
            if reached.consumed == len(reached.skipped):
                raise SourceError(
                    f"{plan.source.path}: all {reached.consumed} images were skipped, so there is nothing to pack"
                )
            if reached.oriented:
                counted["exif_oriented"] = reached.oriented
            counted.update(reached.unified)
            skipped = (*_inherit_skipped(plan), *reached.skipped)
            manifest = builder.commit(counted=counted, skipped=skipped, position=reached.make_position)
    except BaseException as error:
        if builder.kept is not None:
            error.add_note(
                f"what is packed so far is kept in {printable(str(builder.kept))}: the same command goes on from "
                "there, and packstore clean removes it"
            )
        elif identity is None:
            error.add_note(
                "nothing is kept of linking: the same call starts afresh"
                if plan.options.link
                else "an iterable cannot be read from the middle: nothing is kept, and the same call starts afresh"
            )
        raise
    report = make_report(plan, manifest, source_bytes, started, tuple(reached.skipped), resumed.records)
    return replace(report, kept=dict(kept), palette=find_palette_classes(plan, manifest, reached.palette))


def _replay_then_pack(plan: Plan, encoder: Encoder, resumed: ResumedRecords, workers: int) -> Iterator[PackedBatch]:
    """Yields the records of an interrupted run as batches, then packs the remaining entries and yields their
    batches."""
    yield from resumed
    yield from pack_batches(plan, encoder, resumed.rest, workers)


def _inherit_skipped(plan: Plan) -> tuple[Skipped, ...]:
    """Returns the skipped samples in the manifest of a source that is a store; nothing for other sources."""
    return plan.survey.store.skipped if plan.survey.store else ()
