"""``packstore export``."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.colour import bold
from packstore.cli.common import (
    StorePath,
    human_bytes,
    pluralize,
    progress_bar,
    shell_quote,
    suggest_packing,
)
from packstore.cli.options import Command, OptionsOf, cache_options, dry_run_option, quiet_option
from packstore.core.errors import printable
from packstore.core.urls import UrlPath

if TYPE_CHECKING:
    from packstore.exports.plan import ExportPlan
    from packstore.exports.run import ExportReport


@click.command(cls=Command, short_help="Write a store in another program's format.")
@click.argument("store", type=StorePath())
@click.argument("dest", type=StorePath())
@OptionsOf("packstore.exports.options:ExportOptions")
@dry_run_option
@quiet_option()
@cache_options
def export(store: Path, dest: Path, dry_run: bool, quiet: bool, **options: Any) -> None:
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
    from packstore.core.errors import UsageError
    from packstore.exports.options import ExportOptions
    from packstore.exports.plan import plan_export
    from packstore.exports.run import run_export
    from packstore.exports.to_url import local_destination

    started = time.monotonic()
    with progress_bar(quiet) as progress, ExitStack() as stack:
        if not isinstance(store, UrlPath) and not store.exists():
            raise UsageError(f"{printable(str(store))}: no such file or directory")
        with suggest_packing(store):
            path, publish = stack.enter_context(local_destination(dest, overwrite=options["overwrite"]))
            plan = plan_export(store, path, ExportOptions(**options), stack)
        if dry_run:
            click.echo(describe_plan(replace(plan, destination=dest)))
            return
        if not quiet:
            for loss in plan.losses:
                click.echo(f"other readers of {plan.kind.name} do not get: {loss}", err=True)
        report = run_export(plan, progress, started)
        publish(progress)
        report = replace(report, destination=dest)
    if not quiet:
        click.echo(describe_report(report, store, bare=options["bare"]))


def describe_plan(plan: ExportPlan) -> str:
    """Formats the plan of an export as the text that ``--dry-run`` prints."""
    manifest = plan.manifest
    lines = [
        f"store        {printable(str(plan.reader.path))}, {manifest.records:,} records ({manifest.encoding})",
        f"destination  {printable(str(plan.destination))} ({plan.kind.name}: {plan.kind.help})",
    ]
    if plan.options.encode:
        lines.append(f"encode       {plan.options.encode}{', without loss' if plan.options.encode == 'png' else ''}")
    lines += [f"  {printable(split.name):<10} {len(split):,}" for split in manifest.splits]
    if plan.shard_bytes is not None:
        lines.append(f"shards       of about {human_bytes(plan.shard_bytes)}, one split each")
    lines += [f"not in it    {loss}" for loss in plan.losses]
    if plan.losses and not plan.options.bare:
        lines.append("             (packstore.json keeps them for packstore convert)")
    lines.append(f"estimate     {human_bytes(plan.estimate_bytes)} ({human_bytes(plan.free_bytes)} free)")
    lines.append("nothing was written (--dry-run)")
    return "\n".join(lines)


def describe_report(report: ExportReport, store: Path, *, bare: bool = False) -> str:
    """Formats the report of an export as text, with the command that verifies it unless ``bare``."""
    lines = [
        f"{printable(str(report.destination))}: {bold(pluralize(report.manifest.records, 'record'))} ({report.kind})"
    ]
    if report.shards:
        lines.append(f"  shards   {report.shards:,}")
    lines.append(f"  bytes    {human_bytes(report.disk_bytes)} on disk")
    if report.resumed:
        lines.append(f"  resumed  {pluralize(report.resumed, 'record')} taken over from an interrupted run")
    lines.append(f"  time     {report.seconds:.1f} s")
    if not bare:
        lines.append(
            f"prove it with: packstore verify {shell_quote(store)} --against {shell_quote(report.destination)}"
        )
    return "\n".join(lines)
