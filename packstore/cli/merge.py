"""``packstore merge``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.colour import bold, yellow
from packstore.cli.common import (
    StorePath,
    format_column_classes,
    human_bytes,
    pluralize,
    progress_bar,
    shell_quote,
)
from packstore.cli.options import Command, OptionsOf, cache_options, dry_run_option, quiet_option
from packstore.core.errors import printable
from packstore.core.registry import FORMATS

if TYPE_CHECKING:
    from packstore.packing.composing import Composition
    from packstore.packing.merge import MergeReport


class ClassNames(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.2 on
    """Class names: ``cat,dog``, or the name of a text file with one name a line."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """Reads the lines of the file ``value``, without empty ones. If there is no such file, splits ``value`` at
        commas.

        Fails for a file that cannot be read, or is not text in UTF-8. Returns a list unchanged.
        """
        if isinstance(value, list):
            return value
        if not Path(value).is_file():
            return [name.strip() for name in str(value).split(",")]
        try:
            return [line.strip() for line in Path(value).read_text("utf-8-sig").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            self.fail(f"{printable(str(value))} cannot be read as text: {error}", param, ctx)


@click.command(cls=Command, short_help="Merge several stores into one.")
@click.argument("stores", nargs=-1, required=True, type=StorePath())
@click.option("-o", "--out", "destination", required=True, type=StorePath(), help="The new store.")
@OptionsOf("packstore.packing.composing_options:MergeOptions", {"classes": ClassNames()})
@dry_run_option
@quiet_option()
@cache_options
def merge(stores: tuple[Path, ...], destination: Path, dry_run: bool, quiet: bool, **options: Any) -> None:
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
    with progress_bar(quiet) as progress, ExitStack() as stack:
        plan, duplicates = plan_merge(stores, destination, MergeOptions(**options), stack)
        if dry_run:
            click.echo(describe_plan(plan, duplicates))
            return
        report = write_composition(plan, progress, started, duplicates)
    if not quiet:
        click.echo(describe_report(report))


def describe_plan(plan: Composition, duplicates: int = 0) -> str:
    """Formats the plan of a merge or select as the text that ``--dry-run`` prints.

    Raises errors like :meth:`Composition.check_writable`. ``duplicates``: number of records that are left out.
    """
    plan.check_writable()
    lines = [
        f"destination  {printable(str(plan.destination))} ({FORMATS[plan.base.format].title}, {plan.base.encoding})",
        f"records      {plan.records:,}",
    ]
    splits: dict[str, int] = {}
    for piece in plan.pieces:
        splits[piece.split] = splits.get(piece.split, 0) + piece.count
    lines += [f"  {printable(name):<10} {count:,}" for name, count in splits.items() if name]
    lines += [f"moved        {said}" for said in describe_moves(plan.moved)]
    for column in plan.columns:
        if column.classes is not None:
            lines.append(f"classes      {format_column_classes(column.name, column.classes)}")
    lines.append(
        f"reused       {pluralize(plan.linked_shard_count, 'shard')} with {pluralize(plan.linked_count, 'record')}"
    )
    lines.append(f"copied       {pluralize(plan.copied_count, 'record')}, about {human_bytes(plan.estimate_bytes)}")
    if duplicates:
        lines.append(f"duplicates   {pluralize(duplicates, 'record')} left out")
    lines.append("nothing was written (--dry-run)")
    return "\n".join(lines)


def describe_report(report: MergeReport) -> str:
    """Formats the report of a merge or select as text, with the command that verifies the store."""
    manifest = report.manifest
    lines = [
        f"{printable(str(report.destination))}: {bold(pluralize(manifest.records, 'record'))} "
        f"({manifest.encoding} in {FORMATS[manifest.format].title})"
    ]
    if manifest.splits:
        lines.append("  splits   " + ", ".join(f"{printable(s.name)} {len(s):,}" for s in manifest.splits))
    lines += [f"  {yellow('moved')}    {said}" for said in describe_moves(report.moved)]
    for column in manifest.columns:
        if column.classes is not None:
            lines.append(f"  classes  {format_column_classes(column.name, column.classes)}")
    if report.linked:
        lines.append(f"  reused   {pluralize(report.linked, 'shard')} unchanged")
    if report.copied:
        lines.append(f"  copied   {pluralize(report.copied, 'record')}")
    if report.duplicates:
        lines.append(f"  {yellow('left out')} {pluralize(report.duplicates, 'record')} with keys of an earlier store")
    lines.append(f"  time     {report.seconds:.1f} s")
    lines.append(f"prove it with: packstore verify {shell_quote(report.destination)}")
    return "\n".join(lines)


def describe_moves(moved: Mapping[tuple[str, str], int]) -> list[str]:
    """Returns a line for each pair of splits between which records move, with their number."""
    return [
        f"{pluralize(count, 'record')} from {printable(old)} to {printable(new)}" for (old, new), count in moved.items()
    ]
