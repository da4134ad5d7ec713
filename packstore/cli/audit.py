"""``packstore audit``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.common import KINDS, LocalPath, StorePath, progress_bar, suggest_packing
from packstore.cli.options import Command, OptionsOf, cache_options, quiet_option
from packstore.cli.rows import Rows, bold, pluralize, red
from packstore.core.errors import printable

if TYPE_CHECKING:
    from packstore.checking.audit import AuditReport, Finding

_LISTED = 5
_KEYS = 3


@click.command(cls=Command, short_help="Find leaks between splits, conflicting labels, odd images, wrong boxes.")
@click.argument("store", type=StorePath())
@OptionsOf("packstore.checking.options:AuditOptions")
@click.option("--fail-on", type=KINDS, default=(), metavar="KINDS", help="Exit with 1 on leakage,conflict,… or any.")
@click.option(
    "--json", "json_file", type=LocalPath(), metavar="FILE", help="Write the report as JSON, too; - prints it."
)
@quiet_option("No progress bar; print only the findings of --fail-on.")
@cache_options
def audit(store: Path, fail_on: tuple[str, ...], json_file: Path | None, quiet: bool, **options: Any) -> None:
    """Find mistakes in STORE that spoil training: the same image in two splits or under two labels, classes
    that are empty or in one split only, wrong boxes.

    Reads checksums and labels, which takes seconds. With --pixels it also decodes every image, and finds
    images that are nearly equal, flat, tiny, truncated or not upright, and masks of another size.
    packstore guide seeing lists all kinds of findings.
    Exits with 1 if there is a finding of the kinds in --fail-on, otherwise with 0.

    \b
    Examples:
      packstore audit imagenet.lmdb
      packstore audit imagenet.lmdb --pixels --json audit.json
      packstore audit cifar.lmdb --fail-on leakage,conflict       in CI
      packstore select imagenet.lmdb -o clean.lmdb --drop audit.json
    """
    from packstore.checking.audit import audit as run

    to_stdout = json_file == Path("-")
    if json_file is not None and not json_file.absolute().parent.is_dir():  # refused before the store is read
        raise click.UsageError(f"--json: there is no directory {printable(str(json_file.absolute().parent))}")
    with suggest_packing(store), progress_bar(quiet or to_stdout) as progress:
        report = run(store, **options, progress=progress)
    if to_stdout:
        click.echo(report.to_json())
    else:
        if json_file is not None:
            json_file.write_text(report.to_json() + "\n", "utf-8")
        report_rows(report, fail_on if quiet else None, fail_on).echo()
    failed = any(report.counts.get(kind) for kind in fail_on)
    raise click.exceptions.Exit(1 if failed else 0)


def report_rows(report: AuditReport, only: tuple[str, ...] | None = None, failing: tuple[str, ...] = ()) -> Rows:
    """Makes the rows of an audit: checks, the first findings of each kind, and the total.

    Args:
        report: Report of an audit.
        only: Kinds to list, without checks and total. None lists all.
        failing: Kinds to print in red.
    """
    from packstore.core.findings import list_kinds

    kinds, rows = list_kinds(), Rows(8)
    if only is None:
        rows.add("checked", *report.checks)
    for kind, count in report.counts.items():
        if only is None or kind in only:
            mark = red(kind) if kind in failing else bold(kind)
            rows.add_lines(f"{mark}  {pluralize(count, 'finding')}: {kinds[kind]}")
            listed = [_format_finding(finding) for finding in report.of(kind)[:_LISTED]]
            rows.add_some(None, listed, count, _LISTED)
    if only is None:
        total = sum(report.counts.values())
        summary = pluralize(total, "finding") if total else "nothing found"
        more = "" if report.pixels else "; --pixels looks at the images too"
        records = pluralize(report.records, "record")
        rows.add_lines(f"{printable(str(report.path))}: {bold(summary)} ({records}{more})")
    return rows


def _format_finding(finding: Finding) -> str:
    """Formats a finding on one line, with the first of its records and their keys."""
    pairs = zip(finding.records[:_KEYS], finding.keys, strict=False)
    where = ", ".join(f"{record} ({'?' if key is None else printable(key)})" for record, key in pairs)
    more = f" and {len(finding.records) - _KEYS:,} more" if len(finding.records) > _KEYS else ""
    what = printable(finding.what)
    return f"record {where}{more}: {what}" if where else what
