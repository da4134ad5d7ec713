"""A report as a picture; needs matplotlib, which is an extra."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from packstore.core.errors import UsageError
from packstore.diagnose.bench import BenchReport

KINDS = (".png", ".svg", ".pdf")


def check(path: Path) -> None:
    """Whether :func:`plot` can write ``path``. Raises :class:`UsageError` that says what is missing."""
    if path.suffix.lower() not in KINDS:
        raise UsageError(f"--plot writes {', '.join(KINDS)}, got {path.name!r}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot: there is no directory {path.absolute().parent}")
    _pyplot()


def plot(report: BenchReport, path: Path) -> None:
    """Draws the rates of the stages, and of the other ways of packing that were tried, into ``path``."""
    figure_class = _pyplot()
    panels = 2 if report.trials else 1
    figure = figure_class(figsize=(9, 3.2 * panels), layout="constrained")
    axes = figure.subplots(panels, 1, squeeze=False)[:, 0]
    names = [stage.name for stage in report.stages]
    _bars(axes[0], names, [stage.one for stage in report.stages], -0.2, "1 thread")
    _bars(axes[0], names, [stage.all for stage in report.stages], 0.2, f"{report.rates.threads} threads")
    axes[0].set_xscale("log")
    axes[0].set_title(f"{report.path.name}: {report.augment}; limit: {report.verdict.stage}")
    if report.rates.target is not None:
        axes[0].axvline(report.rates.target, color="black", linestyle="--", label="target")
    axes[0].legend()
    if report.trials:
        tried = [trial.how or "as it is" for trial in report.trials]
        _bars(axes[1], tried, [trial.images_per_second for trial in report.trials], 0, None)
        axes[1].set_title("a sample packed in other ways, end to end")
    for axis in axes:
        axis.invert_yaxis()
        axis.margins(x=0.15)  # for the figures beside the bars
        axis.set_xlabel("images/s")
    figure.savefig(path)


def _bars(axis: Any, names: list[str], values: list[float | None], offset: float, label: str | None) -> None:
    rows = [(number + offset, value) for number, value in enumerate(values) if value is not None]
    bars = axis.barh([row for row, _ in rows], [value for _, value in rows], 0.38 if offset else 0.6, label=label)
    axis.bar_label(bars, fmt="{:,.0f}", padding=3)
    axis.set_yticks(range(len(names)), names)


def _pyplot() -> Any:
    try:
        # Not pyplot: a figure of its own needs no display and leaves the user's settings alone.
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise UsageError(f"--plot needs matplotlib ({error}): pip install matplotlib") from None
