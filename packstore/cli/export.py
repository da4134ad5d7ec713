"""``packstore export``."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.common import StorePath, shell_quote, suggest_packing
from packstore.cli.options import Command, OptionsOf, Output, cache_options, output_options
from packstore.cli.rows import Rows, bold, human_bytes, if_any, pluralize
from packstore.core.errors import UsageError, printable

if TYPE_CHECKING:
    from packstore.exports.plan import ExportPlan
    from packstore.exports.run import ExportReport


@click.command(cls=Command, short_help="Write a store in another program's format.")
@click.argument("store", type=StorePath())
@click.argument("dest", type=StorePath())
@OptionsOf("packstore.exports.options:ExportOptions")
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
    from packstore.exports.options import ExportOptions
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
            output.show(plan_rows(replace(plan, destination=dest)))
            return
        if not output.silent:
            for loss in plan.losses:
                click.echo(f"other readers of {plan.kind.name} do not get: {loss}", err=True)
        report = run_export(plan, progress, started)
        draft.publish(progress)
        report = replace(report, destination=dest)
    output.show(report_rows(report, store, bare=options["bare"]))


def plan_rows(plan: ExportPlan) -> Rows:
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


def report_rows(report: ExportReport, store: Path, *, bare: bool = False) -> Rows:
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
