"""``packstore convert`` and ``export``."""

from __future__ import annotations

import gc
import math
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.common import (
    IMAGE_SIZE,
    StorePath,
    exit_if_skipped,
    format_source_options,
    name_bad_sample,
    shell_quote,
    suggest_packing,
)
from packstore.cli.info import INTERNAL_MEANINGS, format_column, user_columns
from packstore.cli.options import Command, Option, OptionsOf, Output, cache_options, output_options
from packstore.cli.rows import (
    LISTED,
    Rows,
    bold,
    format_classes,
    format_conversions,
    format_ledger,
    format_normalization,
    format_splits,
    human_bytes,
    if_any,
    ledger_values,
    pluralize,
    yellow,
)
from packstore.core.errors import UsageError, join_names, printable
from packstore.core.modes import RGB
from packstore.core.registry import ENCODINGS, FORMATS

if TYPE_CHECKING:
    from packstore.core.manifest import Manifest
    from packstore.exports.plan import ExportPlan
    from packstore.exports.run import ExportReport
    from packstore.packing.conversion import ConvertReport
    from packstore.packing.plan import Plan


_FEW_IMAGES_A_FILE = 0.5


@click.command(cls=Command, short_help="Pack a dataset into a store.")
@click.argument("source", type=StorePath())
@click.argument("dest", type=StorePath())
@OptionsOf("packstore.packing:ConvertOptions", {"size": IMAGE_SIZE})
@click.option(
    "--link", "link", flag_value="absolute", cls=Option, group="Store",
    help="Copy no images: store links to them (file, offset, length), and read them from SOURCE.",
)  # fmt: skip
@click.option(
    "--link-relative", "link", flag_value="relative", cls=Option, group="Store",
    help="As --link, with paths relative to DEST's folder.",
)  # fmt: skip
@output_options(dry_run=True)
@cache_options
def convert(source: Path, dest: Path, output: Output, **options: Any) -> None:
    """Pack SOURCE into a new store at DEST.

    SOURCE is a file, a folder, an archive (.zip, .tar, .tar.gz …), a store, or the URL of a folder
    or a store:

    \b
      classes     root/class/…, root/{train,val,test}/class/…, or --labels CSV
      tables      CSV, JSON, Parquet, lists of images: --column image=COL
      detection   COCO, Pascal VOC, YOLO …
      published   ILSVRC, CIFAR-10, CIFAR-100, CelebA, ADE20K …
      containers  WebDataset, Parquet, TFRecord, RecordIO, MDS, HDF5, Zarr …
      bridges     torchvision:NAME:ROOT, datasets:PATH, tfds:NAME:DATA_DIR,
                  datumaro:FORMAT:PATH, fiftyone:NAME

    "packstore guide sources" lists all. "packstore info SOURCE" shows how a source is recognised.

    The suffix of DEST chooses the format: .lmdb, .h5, .hdf5, .pth or .pt. DEST appears when it is complete.
    To resume an interrupted run, give the same command again.

    \b
    Examples:
      packstore convert imagenet/ imagenet.lmdb                 byte for byte
      packstore convert shards/ linked.lmdb --link              no copy of images
      packstore convert imagenet/ small.lmdb --encoding jpeg --resize 256
      packstore convert imagenet/ i224.h5 --encoding uint8 --size 224
      packstore convert ILSVRC2012_img_train.tar train.lmdb     an archive
      packstore convert cifar-10-python.tar.gz cifar.pth        float16
      packstore convert s3://bucket/imagenet imagenet.lmdb      an object store
      packstore convert torchvision:OxfordIIITPet:data pet.lmdb
      packstore convert photos/ photos.lmdb --labels labels.csv --on-error skip
      packstore convert imagenet.lmdb imagenet.h5               another format
    """
    from packstore.packing import ConvertOptions
    from packstore.packing.conversion import run_plan
    from packstore.packing.plan import make_plan

    # A conversion creates many small objects and hardly any cycles: collecting them took 7% of packing 50,000 files.
    options["link"] = {None: False, "absolute": True}.get(options["link"], options["link"])
    gc.freeze()
    gc.set_threshold(100_000)
    with name_bad_sample(source), output.progress_bar() as progress:
        plan = make_plan(source, dest, ConvertOptions(**options), progress)
        with closing(plan.source):
            report = None if output.dry_run else run_plan(plan, progress)
    if report is None:
        output.show(plan_rows(plan))
        return
    if output.as_json or not output.quiet:  # the rows of a report open the store
        rows = report_rows(report)
        command = f"packstore verify {shell_quote(report.destination)} --against {shell_quote(source)}"
        # The store knows all other options of its packing.
        known = {name: options[name] for name in ("labels", "source_kind")}
        rows.add_lines(f"prove it with: {command}{format_source_options(known)}")
        output.show(rows)
    exit_if_skipped(dest, report.skipped, output.quiet)


def plan_rows(plan: Plan) -> Rows:
    """Makes the rows of ``--dry-run``."""
    survey, encode, rows = plan.survey, plan.encode, Rows(12)
    shape = ""
    if plan.shape:
        height, width, channels = plan.shape
        planes = ENCODINGS[encode.encoding].layout == "CHW"
        shape = f", {channels} x {height} x {width} (CHW)" if planes else f", {height} x {width} x {channels} (HWC)"
    path, kind, size = str(plan.source.path), plan.source.kind, survey.image_bytes
    rows.add("source", f"{printable(path)} ({kind}), {human_bytes(size)}", source=path, kind=kind, source_bytes=size)
    place = str(plan.destination)
    rows.add("destination", f"{printable(place)} ({FORMATS[plan.format].title})", destination=place, format=plan.format)
    rows.add("encoding", f"{encode.encoding}{shape}", encoding=encode.encoding, shape=plan.shape)
    mode = encode.reading.mode
    rows.add("mode", *([str(encode.reading.pixels)] if mode != RGB.name else []), mode=mode)
    if plan.auto_normalize:
        rows.add("normalise", "mean and standard deviation of the training split, to be computed")
    elif encode.normalization:
        rows.add("normalise", format_normalization(encode.normalization))
    splits = {name: count for name, count in survey.splits.items() if name}
    rows.add("records", f"{survey.records:,}", records=survey.records, splits=splits)
    rows.add_splits(splits)
    for column in user_columns(survey.columns):
        rows.add(column.name, format_column(column))
    rows.add("files", *format_ledger(survey.ledger), ledger=ledger_values(survey.ledger))
    if plan.shards is not None:
        limit, by_samples = plan.shards.limit, plan.shards.by == "samples"
        most = pluralize(limit, "image") if by_samples else f"{human_bytes(limit)} of the source"
        rows.add("shards", f"of at most {most}, one split each")
    size, free = plan.estimate_bytes, plan.free_bytes
    left = "" if free is None else f" ({human_bytes(free)} free)"
    rows.add("estimate", f"{human_bytes(size)}{left}", estimate_bytes=size, free_bytes=free)
    return rows


def report_rows(report: ConvertReport) -> Rows:
    """Makes the rows of a finished conversion, with advice on encoding, size, masks and orientation.

    Opens the store for the rows on shapes and links.
    """
    manifest, rows = report.manifest, Rows(8, "  ")
    rows.add_store(report.destination, manifest)
    mode = manifest.image.mode
    rows.add("mode", *([str(manifest.image.pixels)] if mode is not None else []), mode=mode)
    rows.add("splits", *format_splits(manifest))
    if manifest.classes is not None:
        rows.add("classes", format_classes(manifest.classes))
    _add_targets(rows, manifest)
    if manifest.shards:
        rows.add("shards", f"{len(manifest.shards)}")
    disk, read = report.disk_bytes, report.source_bytes
    ratio = f"{disk / max(1, read):.2f} of the images' {human_bytes(read)} in the source"
    rows.add("bytes", f"{bold(human_bytes(disk))} on disk, {ratio}", disk_bytes=disk, source_bytes=read)
    _add_advice(rows, report)
    seconds = max(report.seconds, 1e-9)
    rate = f"{manifest.records / seconds:,.0f} images/s, {read / 1e6 / seconds:,.0f} MB/s"
    rows.add("time", f"{seconds:.1f} s ({rate})", seconds=report.seconds)
    if manifest.is_linked:
        _add_links(rows, report)
    taken_over = if_any(report.resumed, "record", " taken over from an interrupted run")
    rows.add("resumed", *taken_over, resumed=report.resumed)
    rows.add("files", *format_ledger(report.ledger, len(report.skipped)), ledger=ledger_values(report.ledger))
    kept = if_any(sum(report.kept.values()), "progressive file", " that cannot become baseline:")
    rows.add("as is", *kept, kept=dict(report.kept))
    reasons = [f"{printable(reason)}: {pluralize(count, 'file')}" for reason, count in report.kept.items()]
    rows.add_some(None, reasons, len(reasons), LISTED, indent="    ", others="other reasons")
    _add_palette(rows, report.palette)
    turned = [_format_orientation(report)] if report.oriented else []
    rows.add("EXIF", *turned, oriented=report.oriented, orientation=report.orientation)
    for number, text in enumerate(format_conversions(report.unified)):
        rows.add("" if number else "unified", text)
    rows.add(yellow("note"), *report.notes, notes=report.notes, unified=dict(report.unified))
    rows.add_skipped(report.skipped)
    return rows


def _add_targets(rows: Rows, manifest: Manifest) -> None:
    """Adds a row for each user column but image, label and key, and one for labels without names."""
    beside = [c for c in user_columns(manifest.columns) if c.name not in ("image", "label", "key", *INTERNAL_MEANINGS)]
    for column in beside:
        rows.add(f"{column.name}{' ' * (len(column.name) > 8)}", format_column(column))
    if not manifest.has_column("label"):
        rows.add("labels", *([] if beside else ["none"]))
    elif manifest.classes is None:
        kind = manifest.column("label").type
        rows.add("labels", "numbers, without class names" if manifest.has_label else f"none, but {kind}")


def _add_links(rows: Rows, report: ConvertReport) -> None:
    """Opens a new linked store and adds rows on the files that it links to."""
    from packstore.stores.linked import link_folder, list_linked_files
    from packstore.stores.opening import open_reader

    with open_reader(report.destination) as reader:
        count = len(list_linked_files(reader.parts(), link_folder(reader.path)))
    rows.add("links", f"to {pluralize(count, 'file')}, which must stay where they are", linked_files=count)
    if count > _FEW_IMAGES_A_FILE * report.manifest.records:
        rows.add("links", "training still opens a small file for each image; without --link it opens only the store")


def _add_advice(rows: Rows, report: ConvertReport) -> None:
    """Adds rows that advise ``--encoding uint8`` or ``--size`` if they would help."""
    manifest, image = report.manifest, report.manifest.image
    is_float = ENCODINGS[manifest.encoding].layout == "CHW"
    if is_float and image.pixels.dtype == "uint8" and manifest.origin.kind != "store":
        smaller = report.disk_bytes - image.nbytes + manifest.records * math.prod(image.shape)
        rows.add("", f"--encoding uint8 takes {human_bytes(smaller)} and is normalised when loading")
    if (shape := _read_common_shape(report)) is not None:
        height, width = shape[:2]
        size = height if height == width else f"{height}x{width}"
        advice = f"--size {size} stores them as one array, which the loader can hold in memory"
        rows.add(yellow("shapes"), f"every image is {height} x {width}: {advice}")


def _read_common_shape(report: ConvertReport) -> list[int] | None:
    """Returns the shape that all images of a store of varying shapes share, or None."""
    from packstore.stores.opening import open_reader
    from packstore.stores.places import place_of

    manifest = report.manifest
    # ``--size`` does not apply to stores of files, at URLs, or with masks, boxes and the like.
    if manifest.holds_files or manifest.image.kind == "fixed" or place_of(report.destination).remote:
        return None
    if any(column.traits.moves or column.traits.has_images for column in manifest.columns if column.name != "image"):
        return None
    with open_reader(report.destination) as reader:
        shapes = reader.fixed_column("shape")
        shape: list[int] = shapes[0].tolist()
        return shape if (shapes == shapes[0]).all() else None


def _add_palette(rows: Rows, classes: tuple[str, ...]) -> None:
    """Warns if all images of some classes are PNG files with a palette, which may be masks."""
    rows.add("palette", palette=classes)
    # ``("",)`` means all images of the store.
    if classes:
        some = f" of {pluralize(len(classes), 'class', 'classes')} ({join_names(classes)})" if classes != ("",) else ""
        rows.add(yellow("palette"), f"all images{some} are PNG with a palette: are they masks?")
        rows.add("", "They load as colours and not as indices; see packstore guide packing")


def _format_orientation(report: ConvertReport) -> str:
    """Returns a phrase on how many images have an EXIF orientation, and if it was applied."""
    some = f"{report.oriented:,} of {pluralize(report.manifest.records, 'image')}"
    verb = "has" if report.oriented == 1 else "have"
    frames = (column.frame for column in report.manifest.columns if column.traits.moves)
    frame = next(filter(None, frames), None)
    of = f", and annotations were brought to the {frame} image" if frame is not None else ""
    if unmoved := [column.name for column in report.manifest.columns if column.hides_boxes and column.frame is None]:
        of += f"; coordinates in {', '.join(unmoved)} (JSON) stay as they are"
    if report.orientation == "not applied":
        return f"{some} {verb} an EXIF orientation that is not applied{of}; --exif-transpose turns them upright"
    return f"{some} {verb} an EXIF orientation, {report.orientation}{of}"


@click.command(cls=Command, short_help="Write a store in another program's format.")
@click.argument("store", type=StorePath())
@click.argument("dest", type=StorePath())
@OptionsOf("packstore.exports:ExportOptions")
@output_options(dry_run=True)
@cache_options
def export(store: Path, dest: Path, output: Output, **options: Any) -> None:
    """Write STORE to DEST in another program's format. STORE is not changed.

    The suffix of DEST, or --to, chooses the format; packstore guide exporting lists them. Images stay byte for byte
    unless --encode is given. packstore convert DEST restores the same dataset: packstore.json holds all that the
    format cannot. Other readers ignore that file; what they do not get is listed before anything is written.

    \b
    Examples:
      packstore export imagenet.lmdb imagenet.zip
      packstore export imagenet.lmdb shards/ --to webdataset --shard-size 500MB
      packstore export pixels.h5 images/ --to imagefolder --encode png
      packstore export boxes.lmdb cvat/ --to cvat --bare
      packstore convert shards/ again.lmdb
      packstore export s3://bucket/imagenet.lmdb imagenet.zip
      packstore export imagenet.lmdb s3://bucket/shards --to webdataset
    """
    from packstore.exports import ExportOptions
    from packstore.exports.plan import plan_export
    from packstore.exports.run import run_export
    from packstore.stores.places import place_of

    started = time.monotonic()
    with output.progress_bar() as progress, ExitStack() as stack:
        if place_of(store).is_empty():
            raise UsageError(f"{printable(str(store))}: no such file or directory")
        with suggest_packing(store):
            draft = stack.enter_context(place_of(dest).new_export(overwrite=options["overwrite"]))
            plan = plan_export(store, draft.path, ExportOptions(**options), stack)
        if output.dry_run:
            output.show(export_plan_rows(replace(plan, destination=dest)))
            return
        if not output.silent:
            for loss in plan.losses:
                click.echo(f"other readers of {plan.kind.name} do not get: {loss}", err=True)
        report = run_export(plan, progress, started)
        draft.publish(progress)
        report = replace(report, destination=dest)
    output.show(export_report_rows(report, store, bare=options["bare"]))


def export_plan_rows(plan: ExportPlan) -> Rows:
    """Makes the rows of ``--dry-run``."""
    manifest, rows, path = plan.manifest, Rows(12), str(plan.reader.path)
    rows.add("store", f"{printable(path)}, {manifest.records:,} records ({manifest.encoding})", store=path)
    rows.values |= {"records": manifest.records, "encoding": manifest.encoding}
    place, kind, encode = str(plan.destination), plan.kind, plan.options.encode
    rows.add("destination", f"{printable(place)} ({kind.name}: {kind.help})", destination=place, kind=kind.name)
    if encode:
        rows.add("encode", f"{encode}{', without loss' if encode == 'png' else ''}")
    splits = {split.name: len(split) for split in manifest.splits}
    rows.add_splits(splits)
    rows.add("splits", splits=splits)
    if plan.shard_bytes is not None:
        rows.add("shards", f"of about {human_bytes(plan.shard_bytes)}, one split each")
    rows.add("not in it", *plan.losses, losses=plan.losses)
    if plan.losses and not plan.options.bare:
        rows.add("", "(packstore.json keeps them for packstore convert)")
    size, free = plan.estimate_bytes, plan.free_bytes
    rows.add("estimate", f"{human_bytes(size)} ({human_bytes(free)} free)", estimate_bytes=size, free_bytes=free)
    return rows


def export_report_rows(report: ExportReport, store: Path, *, bare: bool = False) -> Rows:
    """Makes the rows of a finished export, with the command that verifies it unless ``bare``."""
    rows, place, records = Rows(8, "  "), report.destination, report.manifest.records
    title = f"{printable(str(place))}: {bold(pluralize(records, 'record'))} ({report.kind})"
    rows.add_lines(title, destination=str(place), kind=report.kind, records=records, losses=report.losses)
    rows.add("shards", *([f"{report.shards:,}"] if report.shards else []), shards=report.shards)
    rows.add("bytes", f"{human_bytes(report.disk_bytes)} on disk", disk_bytes=report.disk_bytes)
    taken_over = if_any(report.resumed, "record", " taken over from an interrupted run")
    rows.add("resumed", *taken_over, resumed=report.resumed)
    rows.add("time", f"{report.seconds:.1f} s", seconds=report.seconds)
    if not bare:
        rows.add_lines(f"prove it with: packstore verify {shell_quote(store)} --against {shell_quote(place)}")
    return rows
