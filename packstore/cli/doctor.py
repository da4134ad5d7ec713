"""``packstore doctor``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.common import LocalPath
from packstore.cli.rows import Rows, pluralize, wrap_text, yellow
from packstore.core.files import url_message

if TYPE_CHECKING:
    from packstore.core.progress import Progress
    from packstore.diagnose.doctor import Report


@click.command(short_help="Examine the installation and the machine.")
@click.argument("path", type=LocalPath(), required=False)
@click.option("--no-disk", is_flag=True, help="Skip the disk measurement, which writes and removes a file of 64 MB.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def doctor(path: Path | None, no_disk: bool, as_json: bool) -> None:
    """Examine the installation and the machine, and mark problems that make loading slow or fail.

    Reports versions, JPEG decoders and their speed, GPU and page-locked memory, cores, memory, limits,
    and the disk of PATH (the current directory by default). Broken libraries are reported too. Exits with
    0 even if there are problems. For all commands, the environment variable PACKSTORE_TURBOJPEG may name
    another libturbojpeg than the system's.

    \b
    Examples:
      packstore doctor
      packstore doctor /data/imagenet.lmdb
      packstore doctor --no-disk --json
    """
    from packstore.diagnose.doctor import examine

    if path is not None and (said := url_message(path)):
        raise click.UsageError(f"{said}: doctor examines this machine")
    shown = not as_json and sys.stderr.isatty()

    def status(report: Progress) -> None:
        if shown:
            click.echo(f"\r\x1b[Kexamining {report.stage} …", err=True, nl=False)

    try:
        report = examine(path, disk=not no_disk, progress=status)
    finally:
        if shown:
            click.echo("\r\x1b[K", err=True, nl=False)
    report_rows(report).echo(as_json)


def report_rows(report: Report) -> Rows:
    """Makes the lines of a report: facts by section, and the number of problems, each below its fact.

    Wraps lines to the terminal's width, at most 120 characters. The JSON has ``value``, ``text`` and ``problem`` of
    each fact by section and name, and ``problem_count``.
    """
    rows, sections = Rows(), dict[str, dict[str, Any]]()
    width = max(len(fact.name) for fact in report.facts)
    columns = min(120, shutil.get_terminal_size((100, 24)).columns or 100)
    for fact in report.facts:
        if fact.section not in sections:
            rows.add_lines(*([""] if sections else []), fact.section)
        text = fact.text or str(fact.value)
        entry = {"value": fact.value, "text": text, "problem": fact.problem}
        sections.setdefault(fact.section, {})[fact.name] = entry
        rows.add_lines(*wrap_text(f"  {fact.name:<{width}}  ", text, columns))
        if fact.problem is not None:
            first, *rest = wrap_text(f"{'!':>{width + 2}}  ", fact.problem, columns)
            rows.add_lines(first.replace("!", yellow("!"), 1), *rest)
    count = len(report.problems)
    verdict = f"{pluralize(count, 'problem')}, marked with !" if count else "no problems"
    rows.add_lines("", verdict, sections=sections, problem_count=count)
    return rows
