"""``packstore salvage``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.common import LocalPath, pluralize, progress_bar, shell_quote, suggest_packing
from packstore.cli.options import json_option, quiet_option
from packstore.cli.verify import describe_problem
from packstore.core.errors import printable

if TYPE_CHECKING:
    from packstore.checking.salvage import SalvageReport

EXIT_NOTHING, EXIT_MISSING = 1, 3
_LISTED = 50


@click.command(short_help="Recover the undamaged records of a broken store.")
@click.argument("damaged", type=LocalPath())
@click.option("--out", type=LocalPath(), required=True, metavar="FIXED", help="The new store.")
@click.option("--unproven", is_flag=True, help="Also take records without a checksum to prove them, and list them.")
@json_option
@quiet_option("No progress bar; print only if records are missing.")
def salvage(damaged: Path, out: Path, as_json: bool, quiet: bool, **options: Any) -> None:
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

    with suggest_packing(damaged), progress_bar(quiet or as_json) as progress:
        report = run(damaged, out, **options, progress=progress)
    if as_json:
        click.echo(json.dumps(report_to_json(report), indent=2))
    elif not (report.complete and quiet):
        click.echo(describe_report(report))
    if not report.complete:
        raise click.exceptions.Exit(EXIT_NOTHING if report.destination is None else EXIT_MISSING)


def report_to_json(report: SalvageReport) -> dict[str, Any]:
    """Converts the report to JSON values: all its attributes except the manifest, with paths as text."""
    return {
        "damaged": str(report.damaged),
        "destination": None if report.destination is None else str(report.destination),
        "complete": report.complete,
        "notes": list(report.notes),
        "recovered": report.recovered,
        "unproven_count": report.unproven_count,
        "unproven": [asdict(problem) for problem in report.unproven],
        "missing_count": report.missing_count,
        "missing": [asdict(problem) for problem in report.missing],
    }


def describe_report(report: SalvageReport) -> str:
    """Formats the report as text: notes, at most 50 unproven and 50 missing records, counts. For a complete store, adds
    the command that verifies it."""
    lines = [f"note      {printable(note)}" for note in report.notes]
    for name, problems, count in (
        ("unproven", report.unproven, report.unproven_count),
        ("missing", report.missing, report.missing_count),
    ):
        lines += [f"{name:<9} {describe_problem(problem)}" for problem in problems[:_LISTED]]
        if count > _LISTED:
            lines.append(f"{name:<9} … and {count - _LISTED:,} more (--json lists them)")
    missing = f"{report.missing_count:,} missing"
    if not (report.complete or report.missing_count or report.unproven_count):
        missing = "an unknown number missing"
    counts = f"{report.recovered:,} recovered, {missing}"
    if report.unproven_count:
        counts += f"; {report.unproven_count:,} of the recovered have no checksum to prove them"
    if report.destination is None:
        lines.append(f"{printable(str(report.damaged))}: {counts}; nothing was written")
        return "\n".join(lines)
    lines.append(f"{printable(str(report.destination))}: {pluralize(report.recovered, 'record')}, {counts}")
    if report.complete:
        lines.append(f"prove it with: packstore verify {shell_quote(report.destination)}")
    return "\n".join(lines)
