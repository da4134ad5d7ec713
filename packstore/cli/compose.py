"""``packstore append``, ``index`` and ``link``, which change a store in place, ``merge`` and ``select``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.common import KINDS, Parsed, StorePath, exit_if_skipped, name_bad_sample, shell_quote
from packstore.cli.options import Command, OptionsOf, Output, cache_options, output_options
from packstore.cli.rows import Rows, bold, format_column_classes, format_splits, human_bytes, if_any, pluralize, yellow
from packstore.core.errors import UsageError, printable
from packstore.core.registry import FORMATS

if TYPE_CHECKING:
    from packstore.core.manifest import Column
    from packstore.packing.append import AppendReport
    from packstore.packing.append_plan import AppendPlan
    from packstore.packing.composing import Composition
    from packstore.packing.merge import MergeReport


@click.command(cls=Command, short_help="Add records to a store.")
@click.argument("store", type=StorePath())
@click.argument("source", type=StorePath())
@OptionsOf("packstore.packing:AppendOptions")
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
    from packstore.packing import AppendOptions
    from packstore.packing.append import append_source
    from packstore.packing.append_plan import plan_append

    chosen = AppendOptions(**options)
    with name_bad_sample(source), output.progress_bar() as progress:
        if output.dry_run:
            plan = plan_append(store, source, chosen, progress)
            plan.source.close()
            output.show(append_plan_rows(plan))
            return
        report = append_source(store, source, chosen, progress)
    rows = append_rows(report)
    rows.add_lines(f"prove it with: packstore verify {shell_quote(store)}")
    output.show(rows)
    exit_if_skipped(store, report.skipped, output.quiet)


def append_plan_rows(plan: AppendPlan) -> Rows:
    """Makes the rows of ``--dry-run``."""
    from packstore.packing.append_plan import new_classes

    rows, store, records = Rows(12), str(plan.store), plan.manifest.records
    rows.add("store", f"{printable(store)}, {pluralize(records, 'record')} now", store=store, records=records)
    path, kind = str(plan.source.path), plan.source.kind
    rows.add("source", f"{printable(path)} ({kind})", source=path, kind=kind)
    rows.add("adds", pluralize(sum(plan.added.values()), "record"), added=dict(plan.added))
    rows.add_splits(plan.added)
    added = new_classes(plan.manifest.columns, plan.columns)
    rows.add("new classes", *map(format_column_classes, added, added.values()), new_classes=added)
    rows.add("duplicates", *if_any(plan.duplicates, "sample", " left out"), duplicates=plan.duplicates)
    linked, size = plan.linked > 0, plan.estimate_bytes
    said = "hard links only: the shards are reused unchanged" if linked else human_bytes(size)
    rows.add("estimate", said, estimate_bytes=0 if linked else size)
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
    from packstore.packing.merge import add_index

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
    from packstore.packing.merge import relink

    if not rebase and options["links"] is None:
        raise click.UsageError("give the change: --rebase OLD NEW, --relative or --absolute")
    with output.progress_bar() as progress:
        report = relink(store, rebase=rebase or None, progress=progress, **options)
    rows, compared = Rows(), f"; {pluralize(report.proven, 'image')} compared" if report.proven else ""
    files = f"links to {pluralize(report.files, 'file')}, {report.moved:,} of them moved"
    rows.add_lines(f"{printable(str(store))}: {files}{compared}", store=str(store))
    rows.values |= {"files": report.files, "moved": report.moved, "compared": report.proven}
    output.show(rows)


def _parse_class_names(text: str) -> list[str]:
    """Reads class names from the lines of the file ``text``, or else splits ``text`` at commas."""
    if not Path(text).is_file():
        return [name.strip() for name in text.split(",")]
    try:
        return [line.strip() for line in Path(text).read_text("utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{printable(text)} cannot be read as text: {error}") from error


def _parse_shares(text: str) -> dict[str, float]:
    """Parses ``train=0.9,val=0.1`` to shares by split."""
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.rpartition("=")
        name = name.strip()
        if name in shares:
            raise UsageError(f"{text!r} has the split {name!r} twice: give each split one share")
        try:
            shares[name] = float(share)  # its size is not checked here
        except ValueError:
            name = ""
        if not name:
            raise UsageError(f"{text!r} should be splits with their shares, such as train=0.9,val=0.1")
    return shares


_out_option = click.option("-o", "--out", "destination", required=True, type=StorePath(), help="The new store.")


@click.command(cls=Command, short_help="Merge several stores into one.")
@click.argument("stores", nargs=-1, required=True, type=StorePath())
@_out_option
@OptionsOf("packstore.packing:MergeOptions", {"classes": Parsed("names", _parse_class_names)})
@output_options(dry_run=True)
@cache_options
def merge(stores: tuple[Path, ...], destination: Path, output: Output, **options: Any) -> None:
    """Merge STORES into a new store, OUT. They must have one encoding and the same columns; they are not changed.

    In each split the records of the first store come first. OUT is a directory of shards. Shards of STORES that need
    no change are hard-linked and take no space; other records are copied byte for byte. Classes are matched by name.

    \b
    Examples:
      packstore merge monday.lmdb tuesday.lmdb -o week.lmdb
      packstore merge a/ b/ c/ -o all.lmdb --on-duplicate skip
      packstore merge a.h5 b.h5 -o both.h5 --classes cat,dog,owl --dry-run
      packstore merge a.lmdb b.lmdb -o s3://bucket/both.lmdb
    """
    from packstore.packing import MergeOptions
    from packstore.packing.merge import plan_merge, write_composition

    started = time.monotonic()
    with output.progress_bar() as progress, ExitStack() as stack:
        plan = plan_merge(stores, destination, MergeOptions(**options), stack)
        rows = plan_rows(plan) if output.dry_run else report_rows(write_composition(plan, progress, started))
    output.show(rows)


@click.command(cls=Command, short_help="Write a new store with some records of a store.")
@click.argument("store", type=StorePath())
@_out_option
@OptionsOf("packstore.packing:SelectOptions", {"splits": Parsed("shares", _parse_shares), "drop_kinds": KINDS})
@output_options(dry_run=True)
@cache_options
def select(store: Path, destination: Path, output: Output, **options: Any) -> None:
    """Copy some records of STORE, byte for byte, to a new store, OUT. STORE is not changed.

    CONDITION compares key, split, label or another column of single values: == != < <= > >=, in (a, b), like "n01*";
    with and, or, not and parentheses. --where applies first, then --per-class, --sample and --split. The same --seed
    draws the same records. More in packstore guide growing.

    \b
    Examples:
      packstore select all.lmdb -o pets.lmdb --where 'label in (cat, dog)'
      packstore select all.lmdb -o small.lmdb --per-class 50
      packstore select all.lmdb -o split.lmdb --split train=0.9,val=0.1 --stratify
      packstore select all.lmdb -o coarse.lmdb --relabel names.csv
      packstore select all.lmdb -o a.lmdb --drop audit.json --drop-kinds leakage
      packstore select all.lmdb -o s3://bucket/all.lmdb
    """
    from packstore.packing import SelectOptions
    from packstore.packing.merge import write_composition
    from packstore.packing.select import plan_select

    started = time.monotonic()
    with output.progress_bar() as progress, ExitStack() as stack:
        plan = plan_select(store, destination, SelectOptions(**options), stack, progress)
        rows = plan_rows(plan) if output.dry_run else report_rows(write_composition(plan, progress, started))
    output.show(rows)


def plan_rows(plan: Composition) -> Rows:
    """Makes the rows of ``--dry-run``.

    Raises errors like :meth:`Composition.check_writable`.
    """
    plan.check_writable()
    base, splits = plan.base, plan.count_by_split()
    rows = Rows(12)
    title = f"{printable(str(plan.destination))} ({FORMATS[base.format].title}, {base.encoding})"
    rows.add("destination", title, destination=str(plan.destination), format=base.format, encoding=base.encoding)
    rows.add("records", f"{plan.records:,}", records=plan.records, splits=splits)
    rows.add_splits(splits)
    _add_moves(rows, "moved", plan.moved)
    _add_classes(rows, plan.columns)
    linked, copied = plan.linked_shard_count, plan.copied_count
    rows.add(
        "reused",
        f"{pluralize(linked, 'shard')} with {pluralize(plan.records - plan.copied_count, 'record')}",
        linked=linked,
    )
    size = plan.estimate_bytes
    rows.add("copied", f"{pluralize(copied, 'record')}, about {human_bytes(size)}", copied=copied, estimate_bytes=size)
    rows.add("duplicates", *if_any(plan.duplicates, "record", " left out"), duplicates=plan.duplicates)
    return rows


def report_rows(report: MergeReport) -> Rows:
    """Makes the rows of a finished merge or select, and the command that verifies the store."""
    manifest, rows = report.manifest, Rows(8, "  ")
    rows.add_store(report.destination, manifest)
    rows.add("splits", *format_splits(manifest))
    _add_moves(rows, yellow("moved"), report.moved)
    _add_classes(rows, manifest.columns)
    rows.add("reused", *if_any(report.linked, "shard", " unchanged"), linked=report.linked)
    rows.add("copied", *if_any(report.copied, "record"), copied=report.copied)
    left_out = if_any(report.duplicates, "record", " with keys of an earlier store")
    rows.add(yellow("left out"), *left_out, duplicates=report.duplicates)
    rows.add("time", f"{report.seconds:.1f} s", seconds=report.seconds)
    rows.add_lines(f"prove it with: packstore verify {shell_quote(report.destination)}")
    return rows


def _add_moves(rows: Rows, name: str, moved: Mapping[tuple[str, str], int]) -> None:
    """Adds a row for each pair of splits between which records move, with their number."""
    for (old, new), count in moved.items():
        rows.add(name, f"{pluralize(count, 'record')} from {printable(old)} to {printable(new)}")
    rows.add(name, moved=[{"from": old, "to": new, "records": count} for (old, new), count in moved.items()])


def _add_classes(rows: Rows, columns: Sequence[Column]) -> None:
    """Adds a row for each column with class names."""
    named = {column.name: column.classes for column in columns if column.classes is not None}
    rows.add("classes", *map(format_column_classes, named, named.values()), classes=named)
