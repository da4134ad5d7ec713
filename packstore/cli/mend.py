"""``packstore repair`` and ``packstore salvage``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.check import format_problem
from packstore.cli.common import LocalPath, StorePath, shell_quote, suggest_packing
from packstore.cli.options import Command, OptionsOf, Output, cache_options, output_options
from packstore.cli.rows import Rows, pluralize
from packstore.core.errors import printable

if TYPE_CHECKING:
    from packstore.checking.reports import RepairReport, SalvageReport

EXIT_LOST, EXIT_PARTIAL = 1, 3
"""Nothing was written; the new store lacks records."""


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
@output_options(quiet="No progress bar; print only if records are lost.")
@cache_options
def repair(damaged: Path, source: Path, out: Path | None, output: Output, **options: Any) -> None:
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

    with suggest_packing(damaged), output.progress_bar() as progress:
        report = run(damaged, source, out, **options, progress=progress)
    output.show(repair_rows(report), needed=bool(report.lost))
    if report.lost:
        raise click.exceptions.Exit(EXIT_LOST if report.destination is None else EXIT_PARTIAL)


@click.command(cls=Command, short_help="Recover the undamaged records of a broken store.")
@click.argument("damaged", type=LocalPath())
@click.option("--out", type=LocalPath(), required=True, metavar="FIXED", help="The new store.")
@click.option("--unproven", is_flag=True, help="Also take records without a checksum to prove them, and list them.")
@output_options(quiet="No progress bar; print only if records are missing.")
def salvage(damaged: Path, out: Path, output: Output, **options: Any) -> None:
    """Write every undamaged record of DAMAGED to FIXED, even if its index or manifest is broken.

    Repairs a damaged manifest with the help of its digest. Finds records without an index, by scanning the
    pages of an LMDB or the data of HDF5 and .pth files. Checksums prove each record. Missing records are
    listed here and in the manifest of FIXED. DAMAGED is only read. If the source still exists and DAMAGED
    opens, packstore repair recovers more.
    Exits with 0 if every record was recovered, 3 if some are missing, 1 if there are none.

    \b
    Examples:
      packstore salvage broken.lmdb --out rest.lmdb
      packstore salvage broken.pth --out rest.pth --unproven
      packstore salvage shards/ --out rest/ --json | jq .missing
    """
    from packstore.checking.salvage import salvage as run

    with suggest_packing(damaged), output.progress_bar() as progress:
        report = run(damaged, out, **options, progress=progress)
    output.show(salvage_rows(report), needed=not report.complete)
    if not report.complete:
        raise click.exceptions.Exit(EXIT_LOST if report.destination is None else EXIT_PARTIAL)


def repair_rows(report: RepairReport) -> Rows:
    """Makes the rows of a repair: at most 50 replaced and 50 lost records, and counts. The JSON has all attributes."""
    rows, damaged, place = Rows(9), printable(str(report.damaged)), report.destination
    rows.values = asdict(report) | {"damaged": str(report.damaged), "destination": place and str(place)}
    if not report.problem_count:
        rows.add_lines(f"{damaged}: undamaged, so nothing was written")
        return rows
    rows.add_some("replaced", [*map(format_problem, report.replaced)], len(report.replaced))
    rows.add_some("lost", [*map(format_problem, report.lost)], len(report.lost))
    same = "; the digest is that of the undamaged store"
    if (shards := report.shards) is not None:
        said = f"{pluralize(report.problem_count, 'damaged shard')}, {shards.replaced:,} replaced in place"
        lost = (
            f", {shards.lost:,} lost with {pluralize(shards.lost_records, 'record')}; repair again --from a source "
            "that has them, or pack the store again: packstore convert SOURCE URL --overwrite"
        )
        rows.add_lines(f"{damaged}: {said}{lost if shards.lost else same}")
        return rows
    counts = f"{report.copied:,} copied, {len(report.replaced):,} replaced, {len(report.lost):,} lost"
    if place is None:
        rows.add_lines(f"{damaged}: {counts}; nothing was written (--partial writes the rest)")
    else:
        total = pluralize(report.copied + len(report.replaced), "record")
        rows.add_lines(f"{printable(str(place))}: {total}, {counts}{same if report.identical else ''}")
    return rows


def salvage_rows(report: SalvageReport) -> Rows:
    """Makes the rows of a salvage: notes, at most 50 unproven and 50 missing records, counts.

    Adds the command that verifies a complete store.
    """
    rows, place = Rows(9), report.destination
    rows.values |= {"damaged": str(report.damaged), "destination": place and str(place), "complete": report.complete}
    rows.add("note", *map(printable, report.notes), notes=report.notes, recovered=report.recovered)
    for name, problems, count in (
        ("unproven", report.unproven, report.unproven_count),
        ("missing", report.missing, report.missing_count),
    ):
        rows.add_some(name, [*map(format_problem, problems)], count)
        rows.values |= {f"{name}_count": count, name: [asdict(problem) for problem in problems]}
    missing = f"{report.missing_count:,} missing"
    if not (report.complete or report.missing_count or report.unproven_count):
        missing = "an unknown number missing"
    counts = f"{report.recovered:,} recovered, {missing}"
    if report.unproven_count:
        counts += f"; {report.unproven_count:,} of the recovered have no checksum to prove them"
    if place is None:
        rows.add_lines(f"{printable(str(report.damaged))}: {counts}; nothing was written")
    else:
        rows.add_lines(f"{printable(str(place))}: {pluralize(report.recovered, 'record')}, {counts}")
    if place is not None and report.complete:
        rows.add_lines(f"prove it with: packstore verify {shell_quote(place)}")
    return rows
