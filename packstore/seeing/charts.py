"""Charts in one style, drawn by matplotlib, which is an optional dependency."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packstore.core.errors import UsageError, printable

KINDS = (".png", ".svg", ".pdf")
COLORS = ("#0969da", "#e16f24", "#2da44e", "#8250df", "#bf3989", "#656d76")
"""Colours of the first series, the second …; people with colour blindness can distinguish them."""
_INK, _GRID = "#1f2328", "#d8dee4"


def check_chart(path: Path) -> None:
    """Raises :class:`UsageError` if no chart can be written to ``path``: wrong suffix, no directory, no matplotlib."""
    if path.suffix.lower() not in KINDS:
        raise UsageError(f"--plot writes {', '.join(KINDS)}, got {printable(path.name)!r}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot: there is no directory {printable(str(path.absolute().parent))}")
    _import_figure()


def new_chart(
    title: str, rows: int, columns: int = 1, *, width: float = 9, height: float = 3.2
) -> tuple[Any, list[Any]]:
    """Creates an empty figure of ``rows`` x ``columns`` panels. Returns the figure and its axes, row by row.

    ``width`` of the figure and ``height`` of a row are in inches. Raises :class:`UsageError` without matplotlib.
    """
    figure = _import_figure()(figsize=(width, height * rows), layout="constrained")
    figure.suptitle(_escape(title), color=_INK, fontweight="bold", x=0.01, ha="left")
    axes = [*figure.subplots(rows, columns, squeeze=False).flat]
    for axis in axes:
        axis.set_axisbelow(True)
        axis.grid(color=_GRID, linewidth=0.8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(_GRID)
        axis.tick_params(colors=_INK, labelsize=9, length=0)
    return figure, axes


def set_titles(axis: Any, title: str, *, x: str = "", y: str = "") -> None:
    """Sets the title of a panel and the labels of its axes."""
    axis.set_title(_escape(title), loc="left", fontsize=10, color=_INK)
    axis.set_xlabel(x, fontsize=9, color=_INK)
    axis.set_ylabel(y, fontsize=9, color=_INK)


def draw_bars(
    axis: Any, names: Sequence[str], series: Sequence[tuple[str | None, Sequence[float | None]]], text: str = "{:,.0f}"
) -> None:
    """Draws horizontal bars: for each name, a bar of each series. Writes the value at each bar. Draws a legend if a
    series has a label.

    Args:
        axis: The panel.
        names: Names at the left.
        series: Label and values of each series, at least one series. Label None: not in the legend. Value None: no bar.
        text: Format of a bar's value.
    """
    thickness = 0.76 / len(series)
    for number, (label, values) in enumerate(series):
        offset = (number - (len(series) - 1) / 2) * thickness
        rows = [(row + offset, value) for row, value in enumerate(values) if value is not None]
        places, lengths = [row for row, _ in rows], [value for _, value in rows]
        drawn = axis.barh(places, lengths, thickness * 0.94, label=label, color=COLORS[number % len(COLORS)])
        axis.bar_label(drawn, fmt=text, padding=3, fontsize=8, color=_INK)
    axis.set_yticks(range(len(names)), [_escape(name) for name in names])
    axis.grid(visible=False, axis="y")
    axis.invert_yaxis()
    axis.margins(x=0.15)  # for the figures beside the bars
    if any(label for label, _ in series):
        draw_legend(axis)


def draw_legend(axis: Any) -> None:
    """Draws the legend above the panel, at the right."""
    count = len(axis.get_legend_handles_labels()[1])
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=min(count, 4), frameon=False, fontsize=9, borderpad=0)


def save_chart(figure: Any, path: Path) -> None:
    """Writes a figure to ``path``; replaces the file. The suffix decides the format. Raises :class:`OSError` if it
    cannot be written."""
    figure.savefig(path, dpi=144)


def _escape(text: str) -> str:
    """Makes text printable, and escapes dollar signs, which begin a formula in matplotlib."""
    return printable(text).replace("$", r"\$")


def _import_figure() -> Any:
    """Returns matplotlib's class of figures. Raises :class:`UsageError` if matplotlib is not installed."""
    try:
        # Not pyplot: a figure of its own needs no display and leaves the user's settings alone.
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise UsageError(f"--plot needs matplotlib ({error}): pip install matplotlib") from None
