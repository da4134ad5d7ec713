"""``packstore convert``."""

from __future__ import annotations

import gc
import math
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.colour import bold, yellow
from packstore.cli.common import (
    ImageSize,
    StorePath,
    describe_conversions,
    describe_ledger,
    describe_normalization,
    describe_skipped,
    echo_rows,
    format_classes,
    format_source_options,
    human_bytes,
    pluralize,
    progress_bar,
    shell_quote,
)
from packstore.cli.options import Command, Option, OptionsOf, cache_options, dry_run_option, quiet_option
from packstore.cli.source_info import describe_column, describe_targets, user_columns
from packstore.core.errors import SampleError, SourceError, printable
from packstore.core.modes import RGB
from packstore.core.registry import ENCODINGS, FORMATS
from packstore.core.urls import UrlPath

if TYPE_CHECKING:
    from packstore.packing.plan import Plan
    from packstore.packing.report import ConvertReport

EXIT_SKIPPED = 3
_LISTED = 10
_FEW_IMAGES_A_FILE = 0.5


@click.command(cls=Command, short_help="Pack a dataset into a store.")
@click.argument("source", type=StorePath())
@click.argument("dest", type=StorePath())
@OptionsOf("packstore.packing.options:ConvertOptions", {"size": ImageSize()})
@click.option(
    "--link", "link", flag_value="absolute", cls=Option, group="Store",
    help="Copy no images: store links to them (file, offset, length), and read them from SOURCE.",
)  # fmt: skip
@click.option(
    "--link-relative", "link", flag_value="relative", cls=Option, group="Store",
    help="As --link, with paths relative to DEST's folder.",
)  # fmt: skip
@dry_run_option
@quiet_option()
@cache_options
def convert(source: Path, dest: Path, dry_run: bool, quiet: bool, **options: Any) -> None:
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
    from packstore.packing.conversion import run_plan
    from packstore.packing.options import ConvertOptions
    from packstore.packing.plan import make_plan

    # A conversion creates many small objects and hardly any cycles: collecting them took 7% of packing 50,000 files.
    options["link"] = {None: False, "absolute": True}.get(options["link"], options["link"])
    gc.freeze()
    gc.set_threshold(100_000)
    try:
        with progress_bar(quiet) as progress:
            plan = make_plan(source, dest, ConvertOptions(**options), progress)
            with closing(plan.source):
                report = None if dry_run else run_plan(plan, progress)
    except SampleError as error:
        raise SourceError(
            f"{printable(str(source))}/{error}; repair or remove it, or leave bad files out with --on-error skip"
        ) from error
    if report is None:
        echo_rows(describe_plan(plan))
        return
    if not quiet:
        echo_rows(describe_report(report))
        click.echo(f"prove it with: {verify_command(report, source, options['labels'], options['source_kind'])}")
    if report.skipped:
        if quiet:
            click.echo(
                f"{dest}: {pluralize(len(report.skipped), 'sample')} skipped; see packstore info {shell_quote(dest)}",
                err=True,
            )
        raise click.exceptions.Exit(EXIT_SKIPPED)


def describe_plan(plan: Plan) -> str:
    """Formats the plan of a conversion as the text that ``--dry-run`` prints."""
    survey, encode = plan.survey, plan.encode
    encoding = ENCODINGS[encode.encoding]
    shape = ""
    if plan.shape:
        height, width, channels = plan.shape
        planes = encoding.layout == "CHW"
        shape = f", {channels} x {height} x {width} (CHW)" if planes else f", {height} x {width} x {channels} (HWC)"
    lines = [
        f"source       {printable(str(plan.source.path))} ({plan.source.kind}), {human_bytes(survey.image_bytes)}",
        f"destination  {printable(str(plan.destination))} ({FORMATS[plan.format].title})",
        f"encoding     {encode.encoding}{shape}",
    ]
    if encode.reading.mode != RGB.name:
        lines.append(f"mode         {encode.reading.pixels}")
    if plan.auto_normalize:
        lines.append("normalise    mean and standard deviation of the training split, to be computed")
    elif encode.normalization:
        lines.append(f"normalise    {describe_normalization(encode.normalization)}")
    lines.append(f"records      {survey.records:,}")
    lines += [f"  {name:<10} {count:,}" for name, count in survey.splits.items() if name]
    lines += [f"{column.name:<12} {describe_column(column)}" for column in user_columns(survey.columns)]
    lines += [f"files        {text}" for text in describe_ledger(survey.ledger)]
    if plan.shards is not None:
        limit, by_samples = plan.shards.limit, plan.shards.by == "samples"
        most = pluralize(limit, "image") if by_samples else f"{human_bytes(limit)} of the source"
        lines.append(f"shards       of at most {most}, one split each")
    free = "" if plan.free_bytes is None else f" ({human_bytes(plan.free_bytes)} free)"
    lines.append(f"estimate     {human_bytes(plan.estimate_bytes)}{free}")
    lines.append("nothing was written (--dry-run)")
    return "\n".join(lines)


def describe_report(report: ConvertReport) -> str:
    """Formats the report of a conversion as text, with advice on encoding, size, masks and orientation.

    Opens the store for the rows on shapes and links.
    """
    manifest = report.manifest
    seconds = max(report.seconds, 1e-9)
    rate = f"{manifest.records / seconds:,.0f} images/s, {report.source_bytes / 1e6 / seconds:,.0f} MB/s"
    ratio = report.disk_bytes / max(1, report.source_bytes)
    lines = [
        f"{printable(str(report.destination))}: {bold(pluralize(manifest.records, 'record'))} "
        f"({manifest.encoding} in {FORMATS[manifest.format].title})"
    ]
    if manifest.image.mode is not None:
        lines.append(f"  mode     {manifest.image.pixels}")
    if manifest.splits:
        lines.append("  splits   " + ", ".join(f"{s.name} {len(s):,}" for s in manifest.splits))
    if manifest.classes is not None:
        lines.append(f"  classes  {format_classes(manifest.classes)}")
    lines += [f"  {name:<8}{' ' * (1 + (len(name) > 8))}{text}" for name, text in describe_targets(manifest.columns)]
    if manifest.has_column("label") and manifest.classes is None:
        kind = manifest.column("label").type
        lines.append(f"  labels   {'numbers, without class names' if manifest.has_label else f'none, but {kind}'}")
    if manifest.shards:
        lines.append(f"  shards   {len(manifest.shards)}")
    lines.append(
        f"  bytes    {bold(human_bytes(report.disk_bytes))} on disk, {ratio:.2f} of the images' "
        f"{human_bytes(report.source_bytes)} in the source"
    )
    if (saving := _describe_uint8_size(report)) is not None:
        lines.append(f"           {saving}")
    if (shape := _read_common_shape(report)) is not None:
        height, width = shape[:2]
        size = height if height == width else f"{height}x{width}"
        lines.append(
            f"  {yellow('shapes')}   every image is {height} x {width}: --size {size} stores them as one array, "
            "which the loader can hold in memory"
        )
    lines.append(f"  time     {seconds:.1f} s ({rate})")
    if manifest.is_linked:
        lines += [f"  links    {text}" for text in describe_links(report)]
    if report.resumed:
        lines.append(f"  resumed  {pluralize(report.resumed, 'record')} taken over from an interrupted run")
    lines += [f"  files    {text}" for text in describe_ledger(report.ledger, skipped=len(report.skipped))]
    if report.kept:
        lines.append(
            f"  as is    {pluralize(sum(report.kept.values()), 'progressive file')} that cannot become baseline:"
        )
        kept = list(report.kept.items())[:_LISTED]
        lines += [f"    {printable(reason)}: {pluralize(count, 'file')}" for reason, count in kept]
        if len(report.kept) > _LISTED:
            lines.append(f"    … and {len(report.kept) - _LISTED:,} other reasons")
    if report.palette:
        lines += _describe_palette(report.palette)
    if report.oriented:
        lines.append(f"  EXIF     {_describe_orientation(report)}")
    for number, text in enumerate(describe_conversions(report.unified)):
        lines.append(f"  {'' if number else 'unified':<8} {text}")
    lines += [f"  {yellow('note')}     {text}" for text in report.notes]
    lines += describe_skipped(report.skipped)
    return "\n".join(lines)


def describe_links(report: ConvertReport) -> list[str]:
    """Opens a new linked store, and returns a line about the files that it links to.

    A second line warns if training opens a small file for each image.
    """
    from packstore.stores.linked import link_folder, list_linked_files
    from packstore.stores.opening import open_reader

    with open_reader(report.destination) as reader:
        places = list_linked_files(reader, link_folder(reader.path))
    lines = [f"to {pluralize(len(places), 'file')}, which must stay where they are"]
    if len(places) > _FEW_IMAGES_A_FILE * report.manifest.records:
        lines.append("training still opens a small file for each image; without --link it opens only the store")
    return lines


def verify_command(report: ConvertReport, source: Path, labels: Path | None, source_kind: str | None) -> str:
    """Returns the command that compares a new store with its source. The store has all other options of its packing."""
    command = f"packstore verify {shell_quote(report.destination)} --against {shell_quote(source)}"
    return command + format_source_options({"labels": labels, "source_kind": source_kind})


def _describe_uint8_size(report: ConvertReport) -> str | None:
    """Returns a sentence on the size with uint8 instead of floating point. Returns None for other encodings, for modes
    that uint8 does not hold, and if the source is a store."""
    manifest = report.manifest
    image = manifest.image
    is_float = ENCODINGS[manifest.encoding].layout == "CHW"
    if not is_float or image.pixels.dtype != "uint8" or manifest.origin.kind == "store":
        return None
    pixels = manifest.records * math.prod(image.shape)
    smaller = report.disk_bytes - image.nbytes + pixels
    return f"--encoding uint8 takes {human_bytes(smaller)} and is normalised when loading"


def _read_common_shape(report: ConvertReport) -> list[int] | None:
    """Returns the shape of all images if they share one in a store that allows several. Returns None otherwise.

    Reads the column ``shape``. Returns None also for stores to which ``--size`` does not apply: of files, at URLs, or
    with masks, boxes and the like.
    """
    from packstore.stores.opening import open_reader

    manifest = report.manifest
    if manifest.holds_files or manifest.image.kind == "fixed" or isinstance(report.destination, UrlPath):
        return None
    if any(column.traits.moves or column.traits.has_images for column in manifest.columns if column.name != "image"):
        return None
    with open_reader(report.destination) as reader:
        shapes = reader.fixed_column("shape")
        shape: list[int] = shapes[0].tolist()
        return shape if (shapes == shapes[0]).all() else None


def _describe_palette(classes: tuple[str, ...]) -> list[str]:
    """Returns two lines that warn: all images of some classes are PNG files with a palette, and may be masks.

    ``classes``: names of these classes; ``("",)`` for all images.
    """
    named = ", ".join(printable(name) for name in classes[:_LISTED]) + (", …" if len(classes) > _LISTED else "")
    where = f" of {pluralize(len(classes), 'class', 'classes')} ({named})" if classes != ("",) else ""
    return [
        f"  {yellow('palette')}  all images{where} are PNG with a palette: are they masks?",
        "           They load as colours and not as indices; see packstore guide packing",
    ]


def _describe_orientation(report: ConvertReport) -> str:
    """Returns a phrase: how many images have an EXIF orientation, and if the orientation was applied."""
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
