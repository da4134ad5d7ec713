"""``packstore demo``, ``doctor`` and ``bench``."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.common import LocalPath, StorePath, progress_bar, shell_quote, suggest_packing
from packstore.cli.options import Command, OptionsOf, cache_options, everything_option, json_option, plot_option
from packstore.cli.rows import Rows, human_bytes, pluralize, wrap_text, yellow
from packstore.core.errors import UsageError, printable
from packstore.core.options import check_numbers
from packstore.core.registry import FORMATS
from packstore.core.urls import url_message

if TYPE_CHECKING:
    from packstore.core.progress import Progress
    from packstore.diagnose.bench.run import BenchReport
    from packstore.diagnose.doctor import Report


@click.command(short_help="Create a small image folder to experiment with.")
@click.argument("directory", type=LocalPath(), default=Path("packstore-demo"))
def demo(directory: Path) -> None:
    """Create DIRECTORY (packstore-demo by default), a small image folder with the splits train and val.

    The images are drawn, not downloaded: JPEG of several kinds, PNG, BMP, WebP, GIF and TIFF.

    \b
    Examples:
      packstore demo
      packstore convert packstore-demo demo.lmdb
      packstore verify demo.lmdb --decode --against packstore-demo
    """
    from packstore.diagnose.demo import make_demo

    make_demo(directory)
    files = sum(1 for p in directory.rglob("*") if p.is_file())
    made = f"{printable(str(directory))}: {pluralize(files, 'file')}"
    click.echo(f"{made}; now try: packstore convert {shell_quote(directory)} demo.lmdb")


@click.command(short_help="Examine the installation and the machine.")
@click.argument("path", type=LocalPath(), required=False)
@click.option("--no-disk", is_flag=True, help="Skip the disk measurement, which writes and removes a file of 64 MB.")
@everything_option
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
    doctor_rows(report).echo(as_json)


def doctor_rows(report: Report) -> Rows:
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


@click.command(cls=Command, short_help="Measure what limits training with a store.")
@click.argument("path", type=StorePath())
@OptionsOf(
    "packstore.diagnose.bench:BenchOptions",
    {"seconds": click.FloatRange(0, 600, min_open=True), "target": click.FloatRange(0, min_open=True)},
)
@click.option(
    "--recipe", metavar="NAME",
    help="Augment by a recipe of packstore.augment, such as timm-rsb-a2, and measure the cost of each operation.",
)  # fmt: skip
@click.option(
    "--device", default="auto", show_default=True, metavar="NAME",
    help="cpu, cuda, cuda:1 …; auto: a GPU if there is one.",
)  # fmt: skip
@click.option(
    "--step-ms", type=click.FloatRange(0, min_open=True), metavar="MS",
    help="Instead of --target: the model's time for a batch.",
)  # fmt: skip
@click.option("--no-tries", is_flag=True, help="Do not try other encodings.")
@plot_option("Draw the rates: .png, .svg or .pdf.")
@json_option
@cache_options
def bench(
    path: Path,
    recipe: str | None,
    device: str,
    step_ms: float | None,
    no_tries: bool,
    plot: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure what limits training with the store at PATH on this machine, and advise what to change.

    Times reading, decoding, augmenting and copying one by one, then the whole loader. Names the slowest
    stage, and how many cores it takes until another stage is slower. For a store of image files, also packs a
    sample with other encodings in a temporary directory and loads it. Leaves the store unchanged. Run it on
    an idle machine.

    \b
    Examples:
      packstore bench imagenet.lmdb
      packstore bench imagenet.lmdb --target 3000     the GPU takes 3,000 images/s
      packstore bench imagenet.lmdb --step-ms 85      the GPU takes 85 ms a batch
      packstore bench cifar.pth --batch-size 512 --seconds 1
      packstore bench imagenet.lmdb --cold --plot rates.png
      packstore bench imagenet.lmdb --recipe timm-rsb-a2
    """
    from packstore.diagnose.bench import BenchOptions
    from packstore.diagnose.bench.run import bench as run

    if step_ms is not None:
        check_numbers("--step-ms", step_ms)
        if step_ms <= 0:
            raise UsageError(f"--step-ms should be above 0, got {step_ms:g}")
        if options["target"] is not None:
            raise click.UsageError("--target and --step-ms mean the same: give one of them")
        options["target"] = options["batch_size"] / step_ms * 1000
    if recipe is not None:
        from packstore.augment import recipe as find_recipe

        if options["augment"] != "crop":
            raise click.UsageError("--recipe and --augment both choose the operations: give one of them")
        find_recipe(recipe)  # raises if there is none of that name
        options["augment"] = recipe
    usual = _find_training_split(path)
    options["split"] = options["split"] or usual
    chosen = BenchOptions(device=_resolve_device(device), tries=not no_tries, **options)
    with progress_bar(as_json, count_stages=True) as progress:
        report = run(path, chosen, progress)
    if plot is not None:
        from packstore.diagnose.bench.run import plot_report

        plot_report(report, plot)
    bench_rows(report).echo(as_json)


def _find_training_split(path: Path) -> str | None:
    """Returns ``train`` if this is one of several splits of the store, else None."""
    from packstore.stores.opening import open_reader

    with suggest_packing(path), open_reader(path) as reader:
        names = [split.name for split in reader.manifest.splits]
    return "train" if len(names) > 1 and "train" in names else None


def _resolve_device(name: str) -> str:
    """Returns the device ``name``; ``auto`` is ``cuda`` if there is a GPU, else ``cpu``."""
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def bench_rows(report: BenchReport) -> Rows:
    """Makes the lines of a report: rates of stages, the limit, trials, and advice with commands. In a terminal, wraps
    lines to its width. Rates are images a second."""
    rows = Rows()
    m, rates = report.manifest, report.rates
    height, width = report.sizes
    split = f" ({printable(report.split)})" if report.split else ""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1000
    what = (
        f"{report.path}{split}: {pluralize(report.records, 'record')}, {m.encoding} in "
        f"{FORMATS[m.format].title}, {human_bytes(report.record_bytes)} each, median {width} x {height} pixels"
    )
    how = (
        f"{report.augment}, batches of {report.options.batch_size}, {pluralize(rates.threads, 'thread')} on "
        f"{pluralize(rates.cores, 'core')}, to {report.options.device}"
    )
    wide = max(12, *(len(stage.name) + 1 for stage in report.stages))
    lines = [*wrap_text("", what, columns), *wrap_text("", how, columns), ""]
    many_threads = pluralize(rates.threads, "thread") if rates.threads > 1 else ""
    lines.append(f"{'images/s':<{wide}}{'1 thread':>11}{many_threads:>12}")
    for stage in report.stages:
        many = stage.all if rates.threads > 1 or stage.one is None else None
        figures = f"{stage.name:<{wide}}{_format_rate(stage.one):>11}{_format_rate(many):>12}   "
        lines += [line.rstrip() for line in wrap_text(figures, stage.note, columns)]
    lines += ["", *(line for row in _format_verdict(report) for line in wrap_text(row[:9], row[9:], columns))]
    if report.trials:
        now = report.trials[0]
        shown = min(128, report.records)
        lines += ["", f"tried with {pluralize(shown, 'image')}, images/s end to end:"]
        for trial in report.trials:
            gain = f"{trial.images_per_second / now.images_per_second:.2f} x" if trial is not now else ""
            mode = " (resident)" if trial.mode == "resident" else ""
            mode += f", {trial.augment}" if trial.augment else ""
            figures = f"  {trial.how or 'as it is':<32}{_format_rate(trial.images_per_second):>10}{gain:>9}   "
            note = f"{human_bytes(trial.record_bytes)} a record{mode}"
            lines += [line.rstrip() for line in wrap_text(figures, note, columns)]
    lines += ["", "what to do:"]
    for advice in report.advice:
        lines += [*wrap_text("- ", advice.what, columns), *wrap_text("  ", advice.why, columns)]
        if advice.options:
            lines.append(f"  packstore convert {shell_quote(report.path)} NEW.lmdb {advice.options}")
    if not report.advice:
        lines.append("- nothing: no measurement suggests a change")
    rows.add_lines(*lines)
    rows.values = {
        "path": str(report.path),
        "split": report.split,
        "format": m.format,
        "encoding": m.encoding,
        "records": report.records,
        "record_bytes": report.record_bytes,
        "disk_bytes_per_record": report.disk_bytes,
        "image_size": report.sizes,
        "augment": report.augment,
        "options": asdict(report.options),
        "rates": {**asdict(rates), "from_disk": rates.from_disk},
        "stages": [asdict(stage) for stage in report.stages],
        "verdict": asdict(report.verdict),
        "trials": [asdict(trial) for trial in report.trials],
        "advice": [asdict(advice) for advice in report.advice],
    }
    return rows


def _format_verdict(report: BenchReport) -> list[str]:
    """Formats rows on the slowest stage, on the cores that are enough, and on a missed target."""
    verdict, rates = report.verdict, report.rates
    names = {"model": "the model", "loader": "assembling batches", "read": "reading"}
    lines = [f"limit    {names.get(verdict.stage, verdict.stage)}: {verdict.why}"]
    if verdict.then == "copy" and not rates.on_gpu and rates.target is None:
        lines.append("cores    give --target or --step-ms to learn how many cores are enough")
    elif verdict.cores is not None and verdict.then is not None and verdict.then_rate is not None:
        after = {
            "model": "the model takes",
            "copy": "copying allows" if rates.on_gpu else "memory allows",
            "read": "the disk allows",
        }[verdict.then]
        enough = f"{pluralize(verdict.cores, 'core')} for the {verdict.then_rate:,.0f} images/s that {after}"
        if rates.target is not None and max(verdict.then_rate, rates.loader) < rates.target:
            enough += f"; no number of cores is enough for {rates.target:,.0f}"
        lines.append(f"cores    reading, decoding and augmenting need {enough}")
    if rates.target is not None and rates.loader < rates.target:
        lines.append(f"target   {rates.loader / rates.target:.0%} of {rates.target:,.0f} images/s")
    return lines


def _format_rate(value: float | None) -> str:
    """Formats a rate without decimals, and None as an empty text."""
    return "" if value is None else f"{value:,.0f}"
