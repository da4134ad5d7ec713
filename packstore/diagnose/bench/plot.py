"""Chart of a report of ``bench``."""

from __future__ import annotations

from pathlib import Path

from packstore.diagnose.bench import BenchReport
from packstore.seeing.charts import draw_bars, draw_legend, new_chart, save_chart, set_titles


def plot_report(report: BenchReport, path: Path) -> None:
    """Writes a chart of the rates of all stages, and of any trials, to ``path``; replaces the file. Raises
    :class:`UsageError` without matplotlib."""
    title = f"{report.path.name}: {report.augment}; limit: {report.verdict.stage}"
    figure, axes = new_chart(title, 2 if report.trials else 1)
    series = [
        ("1 thread", [stage.one for stage in report.stages]),
        (f"{report.rates.threads} threads", [stage.all for stage in report.stages]),
    ]
    draw_bars(axes[0], [stage.name for stage in report.stages], series)
    axes[0].set_xscale("log")
    set_titles(axes[0], "each stage by itself, and the whole loader", x="images/s")
    if report.rates.target is not None:
        axes[0].axvline(report.rates.target, color="black", linestyle="--", label="target")
        draw_legend(axes[0])
    if report.trials:
        tried = [trial.how or "as it is" for trial in report.trials]
        draw_bars(axes[1], tried, [(None, [trial.images_per_second for trial in report.trials])])
        set_titles(axes[1], "a sample packed in other ways, end to end", x="images/s")
    save_chart(figure, path)
