"""``packstore repair``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.common import PixelCount, progress_bar, quantity
from packstore.cli.verify import describe_problem
from packstore.core.errors import printable
from packstore.images.sniff import MAX_PIXELS

if TYPE_CHECKING:
    from packstore.checking.repair import RepairReport

EXIT_PARTIAL = 3
_LISTED = 50


@click.command(short_help="Replace what is damaged in a store from its source.")
@click.argument("damaged", type=click.Path(path_type=Path))
@click.option(
    "--from", "source", type=click.Path(path_type=Path), required=True, metavar="SOURCE",
    help="What the store was packed from, or another store of the same images.",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="FIXED", help="Where the new store goes."
)
@click.option("--partial", is_flag=True, help="Write FIXED even when records are lost, without these; exits with 3.")
@click.option("--labels", type=click.Path(path_type=Path), metavar="CSV", help="The labels file, as in convert.")
@click.option("--source", "source_kind", metavar="KIND", help="Kind of the source, forced as in convert.")
@click.option(
    "--max-pixels", type=PixelCount(), default=MAX_PIXELS, show_default=True, metavar="N",
    help="Refuse images of SOURCE that claim more, e.g. 50M.",
)  # fmt: skip
@click.option("--workers", type=click.IntRange(1), help="Threads.  [default: one a core]")
@click.option("--decoder", default="auto", show_default=True, metavar="NAME", help="Decoder to use.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar; print what is lost only.")
def repair(damaged: Path, source: Path, out: Path, as_json: bool, quiet: bool, **options: Any) -> None:
    """Write a whole store to FIXED: the records of DAMAGED, with those that are damaged taken from SOURCE.

    A record is taken from SOURCE only when it has the checksum that DAMAGED has for it: an image that has changed
    since is refused, by name. Images are encoded again by the options in the store's manifest. When every record
    could be replaced, FIXED is what DAMAGED was, byte for byte; when not, nothing is written (see --partial).
    DAMAGED is only read. When it does not open at all, use packstore salvage.
    Exits with 0 when FIXED is whole (or DAMAGED is, and there is nothing to do), with 1 when records are lost.

    \b
    Examples:
      packstore repair imagenet.lmdb --from imagenet/ --out fixed.lmdb
      packstore repair imagenet.h5 --from imagenet-copy.lmdb --out fixed.h5
      packstore repair a.pth --from a/ --labels a.csv --out b.pth --partial
    """
    from packstore.checking.repair import RepairOptions
    from packstore.checking.repair import repair as run

    with progress_bar(quiet or as_json) as progress:
        report = run(damaged, source, out, RepairOptions(**options), progress=progress)
    if as_json:
        click.echo(json.dumps(to_json(report), indent=2))
    elif report.lost or not quiet:
        click.echo(describe(report))
    if report.lost:
        raise click.exceptions.Exit(1 if report.destination is None else EXIT_PARTIAL)


def to_json(report: RepairReport) -> dict[str, Any]:
    """The report as JSON values."""
    plain = asdict(report)
    return plain | {name: None if plain[name] is None else str(plain[name]) for name in ("damaged", "destination")}


def describe(report: RepairReport) -> str:
    """The report for people."""
    damaged = printable(str(report.damaged))
    if not report.problem_count:
        return f"{damaged}: whole, so there is nothing to repair; nothing was written"
    lines = [f"replaced  {describe_problem(problem)}" for problem in report.replaced[:_LISTED]]
    if len(report.replaced) > _LISTED:
        lines.append(f"replaced  … and {len(report.replaced) - _LISTED:,} more (--json lists them)")
    lines += [f"lost      {describe_problem(problem)}" for problem in report.lost[:_LISTED]]
    if len(report.lost) > _LISTED:
        lines.append(f"lost      … and {len(report.lost) - _LISTED:,} more (--json lists them)")
    counts = f"{report.copied:,} copied, {len(report.replaced):,} replaced, {len(report.lost):,} lost"
    if report.destination is None:
        lines.append(f"{damaged}: {counts}; nothing was written (--partial writes the rest)")
        return "\n".join(lines)
    same = "; it is what it was, to the digest" if report.identical else ""
    lines.append(f"{printable(str(report.destination))}: {quantity(report.copied + len(report.replaced), 'record')}, "
                 f"{counts}{same}")  # fmt: skip
    return "\n".join(lines)
