"""``packstore merge`` and ``packstore select``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.common import KINDS, Parsed, StorePath, shell_quote
from packstore.cli.options import (
    Command,
    OptionsOf,
    Output,
    cache_options,
    output_options,
)
from packstore.cli.rows import Rows, format_column_classes, format_splits, human_bytes, if_any, pluralize, yellow
from packstore.core.errors import UsageError, printable
from packstore.core.registry import FORMATS

if TYPE_CHECKING:
    from packstore.core.manifest import Column
    from packstore.packing.composing import Composition
    from packstore.packing.merge import MergeReport


def _parse_class_names(text: str) -> list[str]:
    """Reads class names from the lines of the file ``text``. If there is no such file, splits ``text`` at commas."""
    if not Path(text).is_file():
        return [name.strip() for name in text.split(",")]
    try:
        return [line.strip() for line in Path(text).read_text("utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{printable(text)} cannot be read as text: {error}") from error


def _parse_shares(text: str) -> dict[str, float]:
    """Parses ``train=0.9,val=0.1`` to shares by split. Does not check the size of a share."""
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.rpartition("=")
        name = name.strip()
        if name in shares:
            raise UsageError(f"{text!r} has the split {name!r} twice: give each split one share")
        try:
            shares[name] = float(share)
        except ValueError:
            name = ""
        if not name:
            raise UsageError(f"{text!r} should be splits with their shares, such as train=0.9,val=0.1")
    return shares


_out_option = click.option("-o", "--out", "destination", required=True, type=StorePath(), help="The new store.")


@click.command(cls=Command, short_help="Merge several stores into one.")
@click.argument("stores", nargs=-1, required=True, type=StorePath())
@_out_option
@OptionsOf("packstore.packing.composing_options:MergeOptions", {"classes": Parsed("names", _parse_class_names)})
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
    from packstore.packing.composing_options import MergeOptions
    from packstore.packing.merge import plan_merge, write_composition

    started = time.monotonic()
    with output.progress_bar() as progress, ExitStack() as stack:
        plan, duplicates = plan_merge(stores, destination, MergeOptions(**options), stack)
        if output.dry_run:
            rows = plan_rows(plan, duplicates)
        else:
            rows = report_rows(write_composition(plan, progress, started, duplicates))
    output.show(rows)


@click.command(cls=Command, short_help="Write a new store with some records of a store.")
@click.argument("store", type=StorePath())
@_out_option
@OptionsOf(
    "packstore.packing.composing_options:SelectOptions",
    {"splits": Parsed("shares", _parse_shares), "drop_kinds": KINDS},
)
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
    from packstore.packing.composing_options import SelectOptions
    from packstore.packing.merge import write_composition
    from packstore.packing.select import plan_select

    started = time.monotonic()
    with output.progress_bar() as progress, ExitStack() as stack:
        plan = plan_select(store, destination, SelectOptions(**options), stack, progress)
        rows = plan_rows(plan) if output.dry_run else report_rows(write_composition(plan, progress, started))
    output.show(rows)


def plan_rows(plan: Composition, duplicates: int = 0) -> Rows:
    """Makes the rows of ``--dry-run``. ``duplicates``: number of records that are left out.

    Raises errors like :meth:`Composition.check_writable`.
    """
    plan.check_writable()
    base, splits = plan.base, plan.count_by_split()
    rows = Rows(12)
    title = f"{printable(str(plan.destination))} ({FORMATS[base.format].title}, {base.encoding})"
    rows.add("destination", title, destination=str(plan.destination), format=base.format, encoding=base.encoding)
    rows.add("records", f"{plan.records:,}", records=plan.records, splits=splits)
    for name, count in splits.items():
        rows.add(f"  {printable(name):<10}", *([f"{count:,}"] if name else []))
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
    rows.add("duplicates", *if_any(duplicates, "record", " left out"), duplicates=duplicates)
    rows.add_lines("nothing was written (--dry-run)")
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
