"""``packstore append``, ``index`` and ``link``: they change a store in place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.common import StorePath, exit_if_skipped, name_bad_sample, shell_quote
from packstore.cli.options import (
    Command,
    OptionsOf,
    Output,
    cache_options,
    output_options,
)
from packstore.cli.rows import Rows, bold, format_column_classes, human_bytes, if_any, pluralize, yellow
from packstore.core.errors import printable

if TYPE_CHECKING:
    from packstore.packing.append import AppendReport
    from packstore.packing.append_plan import AppendPlan


@click.command(cls=Command, short_help="Add records to a store.")
@click.argument("store", type=StorePath())
@click.argument("source", type=StorePath())
@OptionsOf("packstore.packing.options:AppendOptions")
@output_options(dry_run=True)
@cache_options
def append(store: Path, source: Path, output: Output, **options: Any) -> None:
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
    with name_bad_sample(source), output.progress_bar() as progress:
        if output.dry_run:
            plan = plan_append(store, source, chosen, progress)
            plan.source.close()
            output.show(plan_rows(plan))
            return
        report = append_source(store, source, chosen, progress)
    rows = append_rows(report)
    rows.add_lines(f"prove it with: packstore verify {shell_quote(store)}")
    output.show(rows)
    exit_if_skipped(store, report.skipped, output.quiet)


def plan_rows(plan: AppendPlan) -> Rows:
    """Makes the rows of ``--dry-run``."""
    from packstore.packing.append_plan import new_classes

    rows, store, records = Rows(12), str(plan.store), plan.manifest.records
    rows.add("store", f"{printable(store)}, {pluralize(records, 'record')} now", store=store, records=records)
    path, kind = str(plan.source.path), plan.source.kind
    rows.add("source", f"{printable(path)} ({kind})", source=path, kind=kind)
    rows.add("adds", pluralize(sum(plan.added.values()), "record"), added=dict(plan.added))
    for name, count in plan.added.items():
        rows.add(f"  {name:<10}", *([f"{count:,}"] if name else []))
    added = new_classes(plan.manifest.columns, plan.columns)
    rows.add("new classes", *map(format_column_classes, added, added.values()), new_classes=added)
    rows.add("duplicates", *if_any(plan.duplicates, "sample", " left out"), duplicates=plan.duplicates)
    linked, size = plan.linked > 0, plan.estimate_bytes
    said = "hard links only: the shards are reused unchanged" if linked else human_bytes(size)
    rows.add("estimate", said, estimate_bytes=0 if linked else size)
    rows.add_lines("nothing was written (--dry-run)")
    return rows


def append_rows(report: AppendReport) -> Rows:
    """Makes the rows of a finished append: records, new classes, shards, and samples left out or skipped."""
    rows, store, added = Rows(8, "  "), str(report.store), sum(report.added.values())
    records, shards = report.manifest.records, len(report.manifest.shards or ()) or 1
    title = f"{printable(store)}: {bold(pluralize(added, 'record') + ' added')}, {pluralize(records, 'record')} now"
    rows.add_lines(title, store=store, records=records)
    rows.values |= {"dataset_digest": report.manifest.dataset_digest, "seconds": report.seconds}
    rows.add("added", added=dict(report.added))
    if any(report.added):
        rows.add("added", ", ".join(f"{printable(name)} {count:,}" for name, count in report.added.items()))
    elif not added and not report.duplicates and not report.skipped:
        rows.add_lines("  nothing to do: the interrupted run had finished")
    new = report.new_classes
    rows.add(yellow("new classes"), *map(format_column_classes, new, new.values()), new_classes=dict(new))
    rows.add("shards", f"{shards}", shards=shards)
    rows.add("reused", *if_any(report.linked, "shard", " unchanged"), linked=report.linked)
    copied = if_any(report.rewritten, "record", " of a shard with several splits, to one shard for each")
    rows.add("copied", *copied, copied=report.rewritten)
    left_out = if_any(report.duplicates, "sample", " with keys of the store; their content was not compared")
    rows.add(yellow("left out"), *left_out, duplicates=report.duplicates)
    rows.add_skipped(report.skipped)
    return rows


@click.command(cls=Command, short_help="Add a seek index to a store: crops decode faster.")
@click.argument("store", type=StorePath())
@output_options()
def index(store: Path, output: Output) -> None:
    """Add a seek index to STORE, so that a crop decodes little more of a JPEG than it needs.

    The encoding of STORE must be original. Writes a new store beside STORE, checks each record, then replaces
    STORE; until then both take space. At a URL, adds a new version. Image files stay byte for byte the same.

    \b
    Examples:
      packstore index imagenet.lmdb
      packstore index s3://bucket/imagenet.lmdb
    """
    from packstore.packing.rewriting import add_index

    with output.progress_bar() as progress:
        report = add_index(store, progress=progress)
    count, rows = report.manifest.records, Rows()
    said = f"{pluralize(count, 'record')} indexed" if report.written else "has a seek index already"
    rows.add_lines(f"{printable(str(store))}: {said}", store=str(store), records=count, written=report.written)
    output.show(rows)


@click.command(cls=Command, short_help="Update the links of a linked store.")
@click.argument("store", type=StorePath())
@click.option("--rebase", nargs=2, metavar="OLD NEW", help="Files have moved from folder OLD to NEW; both may be URLs.")
@click.option("--relative", "links", flag_value="relative", help="Make links relative to the folder of STORE.")
@click.option("--absolute", "links", flag_value="absolute", help="Make links absolute paths.")
@output_options()
def link(store: Path, rebase: tuple[str, str] | None, output: Output, **options: Any) -> None:
    """Update the links of STORE, which "packstore convert --link" wrote, after its files were moved.

    All files must exist at the new paths. If a file's size or modification time differs, its images are read
    and compared with their checksums. Writes a new store beside STORE, then replaces STORE.

    \b
    Examples:
      packstore link train.lmdb --rebase /old/shards /data/shards
      packstore link train.lmdb --rebase s3://bucket/shards /data/shards
      packstore link train.lmdb --relative       to move STORE and files together
    """
    from packstore.packing.rewriting import relink

    if not rebase and options["links"] is None:
        raise click.UsageError("give the change: --rebase OLD NEW, --relative or --absolute")
    with output.progress_bar() as progress:
        report = relink(store, rebase=rebase or None, progress=progress, **options)
    rows, compared = Rows(), f"; {pluralize(report.proven, 'image')} compared" if report.proven else ""
    files = f"links to {pluralize(report.files, 'file')}, {report.moved:,} of them moved"
    rows.add_lines(f"{printable(str(store))}: {files}{compared}", store=str(store))
    rows.values |= {"files": report.files, "moved": report.moved, "compared": report.proven}
    output.show(rows)
