"""``packstore doctor``."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.colour import yellow
from packstore.cli.common import LocalPath, pluralize, wrap_text
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
    click.echo(json.dumps(report_to_json(report), indent=2) if as_json else describe_report(report))


def report_to_json(report: Report) -> dict[str, Any]:
    """Converts the facts to JSON values: ``sections`` and ``problem_count``.

    ``sections`` has ``value``, ``text`` and ``problem`` of each fact by section and name.
    """
    sections: dict[str, Any] = {}
    for fact in report.facts:
        entry = {"value": fact.value, "text": fact.text or str(fact.value), "problem": fact.problem}
        sections.setdefault(fact.section, {})[fact.name] = entry
    return {"sections": sections, "problem_count": len(report.problems)}


def describe_report(report: Report) -> str:
    """Formats the report as text: facts by section, and the number of problems. A problem follows its fact, with an
    exclamation mark.

    Wraps lines to the terminal's width, at most 120 characters.
    """
    width = max(len(fact.name) for fact in report.facts)
    columns = min(120, shutil.get_terminal_size((100, 24)).columns or 100)
    lines: list[str] = []
    section = None
    for fact in report.facts:
        if fact.section != section:
            section = fact.section
            lines += ["", section] if lines else [section]
        lines += wrap_text(f"  {fact.name:<{width}}  ", fact.text or str(fact.value), columns)
        if fact.problem is not None:
            first, *rest = wrap_text(f"{'!':>{width + 2}}  ", fact.problem, columns)
            lines += [first.replace("!", yellow("!"), 1), *rest]
    count = len(report.problems)
    verdict = "no problems" if not count else f"{pluralize(count, 'problem')}, marked with !"
    return "\n".join([*lines, "", verdict])
