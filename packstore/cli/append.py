"""``packstore append``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.colour import bold, yellow
from packstore.cli.common import (
    StorePath,
    describe_skipped,
    format_column_classes,
    human_bytes,
    pluralize,
    progress_bar,
    shell_quote,
)
from packstore.cli.convert import EXIT_SKIPPED
from packstore.cli.options import Command, OptionsOf, cache_options, dry_run_option, quiet_option
from packstore.core.errors import SampleError, SourceError, printable

if TYPE_CHECKING:
    from packstore.packing.append import AppendReport
    from packstore.packing.growing import AppendPlan


@click.command(cls=Command, short_help="Add records to a store.")
@click.argument("store", type=StorePath())
@click.argument("source", type=StorePath())
@OptionsOf("packstore.packing.options:AppendOptions")
@dry_run_option
@quiet_option()
@cache_options
def append(store: Path, source: Path, dry_run: bool, quiet: bool, **options: Any) -> None:
    """Add the records of SOURCE to STORE, encoded like the records of STORE.

    SOURCE is any source of packstore convert. The records go into new shards beside the old ones; a store of one file
    becomes a directory of shards. Readers of STORE see the old store until the new one is complete. Classes that STORE
    lacks get the next numbers. To resume an interrupted run, give the same command again.

    \b
    Examples:
      packstore append imagenet.lmdb new-photos/               classes by name
      packstore append imagenet.lmdb last-week/ --split train  without splits
      packstore append imagenet.lmdb more.lmdb --on-duplicate skip
      packstore append imagenet.lmdb w48/ --split train --key-prefix w48/
      packstore append imagenet.lmdb w48/ --split train --no-new-classes
      packstore append imagenet.lmdb new-photos/ --dry-run
    """
    from packstore.packing.append import append_source
    from packstore.packing.append_plan import plan_append
    from packstore.packing.options import AppendOptions

    chosen = AppendOptions(**options)
    try:
        with progress_bar(quiet) as progress:
            if dry_run:
                plan = plan_append(store, source, chosen, progress)
                plan.source.close()
                click.echo(describe_plan(plan))
                return
            report = append_source(store, source, chosen, progress)
    except SampleError as error:
        raise SourceError(
            f"{printable(str(source))}/{error}; repair or remove it, or leave bad files out with --on-error skip"
        ) from error
    if not quiet:
        click.echo(describe_report(report))
        click.echo(f"prove it with: packstore verify {shell_quote(store)}")
    if report.skipped:
        if quiet:
            skipped = pluralize(len(report.skipped), "file")
            click.echo(f"{printable(str(store))}: {skipped} skipped; see packstore info {shell_quote(store)}", err=True)
        raise click.exceptions.Exit(EXIT_SKIPPED)


def describe_plan(plan: AppendPlan) -> str:
    """Formats the plan of an append as the text that ``--dry-run`` prints."""
    from packstore.packing.append_plan import new_classes

    lines = [
        f"store        {printable(str(plan.store))}, {pluralize(plan.manifest.records, 'record')} now",
        f"source       {printable(str(plan.source.path))} ({plan.source.kind})",
        f"adds         {pluralize(sum(plan.added.values()), 'record')}",
    ]
    lines += [f"  {name:<10} {count:,}" for name, count in plan.added.items() if name]
    added = new_classes(plan.manifest.columns, plan.columns)
    lines += [f"new classes  {said}" for said in map(format_column_classes, added, added.values())]
    if plan.duplicates:
        lines.append(f"duplicates   {pluralize(plan.duplicates, 'sample')} left out")
    if plan.linked is not None:
        lines.append("estimate     hard links only: the shards are reused unchanged")
    else:
        lines.append(f"estimate     {human_bytes(plan.estimate_bytes)}")
    lines.append("nothing was written (--dry-run)")
    return "\n".join(lines)


def describe_report(report: AppendReport) -> str:
    """Formats the report of an append as text: records, new classes, shards, and samples left out or skipped."""
    added = sum(report.added.values())
    total = pluralize(report.manifest.records, "record")
    lines = [f"{printable(str(report.store))}: {bold(pluralize(added, 'record') + ' added')}, {total} now"]
    if any(report.added):
        lines.append("  added    " + ", ".join(f"{printable(name)} {count:,}" for name, count in report.added.items()))
    elif not added and not report.duplicates and not report.skipped:
        lines.append("  nothing to do: the interrupted run had finished")
    for name, classes in report.new_classes.items():
        lines.append(f"  {yellow('new classes')} {format_column_classes(name, classes)}")
    lines.append(f"  shards   {len(report.manifest.shards or ()) or 1}")
    if report.linked:
        lines.append(f"  reused   {pluralize(report.linked, 'shard')} unchanged")
    if report.rewritten:
        lines.append(
            f"  copied   {pluralize(report.rewritten, 'record')} of a shard with several splits, to one shard for each"
        )
    if report.duplicates:
        left_out = f"{pluralize(report.duplicates, 'sample')} with keys of the store; their content was not compared"
        lines.append(f"  {yellow('left out')} {left_out}")
    lines += describe_skipped(report.skipped)
    return "\n".join(lines)
