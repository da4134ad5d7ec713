"""``packstore repair``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.common import (
    LocalPath,
    StorePath,
    pluralize,
    progress_bar,
    suggest_packing,
)
from packstore.cli.options import Command, OptionsOf, cache_options, json_option, quiet_option
from packstore.cli.verify import describe_problem
from packstore.core.errors import printable

if TYPE_CHECKING:
    from packstore.checking.repair_report import RepairReport, ShardCounts

EXIT_PARTIAL = 3
_LISTED = 50


@click.command(cls=Command, short_help="Replace the damaged records of a store from its source.")
@click.argument("damaged", type=StorePath())
@click.option(
    "--from", "source", type=StorePath(), required=True, metavar="SOURCE",
    help="The source of the store, or another store of the same images.",
)  # fmt: skip
@click.option(
    "--out", type=LocalPath(), metavar="FIXED",
    help="The new store; leave it out if DAMAGED is a URL.",
)  # fmt: skip
@OptionsOf("packstore.checking.options:RepairOptions")
@json_option
@quiet_option("No progress bar; print only if records are lost.")
@cache_options
def repair(damaged: Path, source: Path, out: Path | None, as_json: bool, quiet: bool, **options: Any) -> None:
    """Write a repaired copy of DAMAGED to FIXED, with its damaged records replaced from SOURCE.

    A record from SOURCE is used only if it has the checksum that DAMAGED holds for it; an image that has
    changed is refused by name. Images are encoded again with the options in the store's manifest. If all
    damaged records are replaced, FIXED is byte for byte the undamaged store; otherwise nothing is written
    (see --partial). DAMAGED is only read. If it does not open at all, use packstore salvage.
    If DAMAGED is a URL, its damaged and missing shards are replaced in place by their original bytes, as
    many as SOURCE allows.
    Exits with 0 if nothing is lost, 1 if records are lost, 3 if FIXED was written without them.

    \b
    Examples:
      packstore repair imagenet.lmdb --from imagenet/ --out fixed.lmdb
      packstore repair imagenet.h5 --from imagenet-copy.lmdb --out fixed.h5
      packstore repair s3://bucket/imagenet.lmdb --from imagenet.lmdb
      packstore repair a.pth --from a/ --labels a.csv --out b.pth --partial
    """
    from packstore.checking.repair import repair as run

    with suggest_packing(damaged), progress_bar(quiet or as_json) as progress:
        report = run(damaged, source, out, **options, progress=progress)
    if as_json:
        click.echo(json.dumps(report_to_json(report), indent=2))
    elif report.lost or not quiet:
        click.echo(describe_report(report))
    if report.lost:
        raise click.exceptions.Exit(1 if report.destination is None else EXIT_PARTIAL)


def report_to_json(report: RepairReport) -> dict[str, Any]:
    """Converts the report to JSON values: all its attributes, with paths as text."""
    plain = asdict(report)
    return plain | {name: None if plain[name] is None else str(plain[name]) for name in ("damaged", "destination")}


def describe_report(report: RepairReport) -> str:
    """Formats the report as text: at most 50 replaced and 50 lost records, and counts. For an undamaged store, returns
    one sentence."""
    damaged = printable(str(report.damaged))
    if not report.problem_count:
        return f"{damaged}: undamaged, so nothing was written"
    lines = [f"replaced  {describe_problem(problem)}" for problem in report.replaced[:_LISTED]]
    if len(report.replaced) > _LISTED:
        lines.append(f"replaced  … and {len(report.replaced) - _LISTED:,} more (--json lists them)")
    lines += [f"lost      {describe_problem(problem)}" for problem in report.lost[:_LISTED]]
    if len(report.lost) > _LISTED:
        lines.append(f"lost      … and {len(report.lost) - _LISTED:,} more (--json lists them)")
    if report.shards is not None:
        return "\n".join([*lines, _describe_shards(report.problem_count, report.shards, damaged)])
    counts = f"{report.copied:,} copied, {len(report.replaced):,} replaced, {len(report.lost):,} lost"
    if report.destination is None:
        lines.append(f"{damaged}: {counts}; nothing was written (--partial writes the rest)")
        return "\n".join(lines)
    same = "; the digest is that of the undamaged store" if report.identical else ""
    lines.append(f"{printable(str(report.destination))}: {pluralize(report.copied + len(report.replaced), 'record')}, "
                 f"{counts}{same}")  # fmt: skip
    return "\n".join(lines)


def _describe_shards(damaged: int, shards: ShardCounts, url: str) -> str:
    """Formats what was done to the damaged shards of a store at a URL, and what to do about the lost ones."""
    counts = f"{url}: {pluralize(damaged, 'damaged shard')}, {shards.replaced:,} replaced in place"
    if not shards.lost:
        return f"{counts}; the digest is that of the undamaged store"
    return (
        f"{counts}, {shards.lost:,} lost with {pluralize(shards.lost_records, 'record')}; repair again --from a source "
        "that has them, or pack the store again: packstore convert SOURCE URL --overwrite"
    )
