"""Charts in one style, drawn by matplotlib, which is an optional dependency."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError, printable
from packstore.core.manifest import Manifest
from packstore.seeing.facts import ImageHeaders, read_headers, read_labels
from packstore.stores import Reader

KINDS = (".png", ".svg", ".pdf")
COLORS = ("#0969da", "#e16f24", "#2da44e", "#8250df", "#bf3989", "#656d76")
"""Colours of the first series, the second …; people with colour blindness can distinguish them."""
_INK, _GRID = "#1f2328", "#d8dee4"
_ROW_INCHES = 3.2


def check_chart(path: Path) -> None:
    """Raises :class:`UsageError` if no chart can be written to ``path``: wrong suffix, no directory, no matplotlib."""
    if path.suffix.lower() not in KINDS:
        raise UsageError(f"--plot writes {', '.join(KINDS)}, got {printable(path.name)!r}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot: there is no directory {printable(str(path.absolute().parent))}")
    _import_figure()


def new_chart(title: str, rows: int, columns: int = 1, *, width: float = 9) -> tuple[Any, list[Any]]:
    """Creates an empty figure of ``rows`` x ``columns`` panels. Returns the figure and its axes, row by row.

    ``width`` of the figure is in inches. Raises :class:`UsageError` without matplotlib.
    """
    figure = _import_figure()(figsize=(width, _ROW_INCHES * rows), layout="constrained")
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
    """Returns matplotlib's class of figures."""
    try:
        # Not pyplot: a figure of its own needs no display and leaves the user's settings alone.
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise UsageError(f"--plot needs matplotlib ({error}): pip install matplotlib") from None


_MOST_CLASSES = 24
"""Most classes that are drawn as bars; more are drawn as a curve."""
_MOST_COLUMNS = 12
_MOST_IMAGES = 5000
"""Most images whose headers are read, spread evenly."""


def plot_store(reader: Reader, path: Path) -> None:
    """Writes the chart of a store to ``path``; replaces the file.

    Raises :class:`UsageError` without matplotlib, and :class:`OSError` if the file cannot be written.

    It shows the records of each class, sizes and bytes of images, and the 12 largest columns. Without a class for each
    record, it shows the records of each split.

    Reads all labels, and the headers of at most 5,000 evenly spread images. Fetches their shards if the store is at a
    URL.
    """
    manifest = reader.manifest
    labelled = manifest.has_label
    figure, axes = new_chart(f"{reader.path.name}: {len(reader):,} records, {manifest.encoding}", 2, 2, width=11)
    if labelled:
        _draw_classes(axes[0], manifest, read_labels(reader, manifest.column("label"), _ignore_progress))
    else:
        names = [name or "all" for name, _, _ in manifest.ranges]
        draw_bars(axes[0], names, [(None, [stop - start for _, start, stop in manifest.ranges])])
        set_titles(axes[0], "records of each split", x="records")
    headers = read_headers(reader, _choose_images(len(reader)), _ignore_progress)
    _draw_sizes(axes[1], headers)
    _draw_bytes(axes[2], headers)
    columns = sorted(manifest.columns, key=lambda column: -column.nbytes)[:_MOST_COLUMNS]
    draw_bars(
        axes[3], [column.name for column in columns], [(None, [column.nbytes / 1e6 for column in columns])], "{:,.3g}"
    )
    set_titles(axes[3], "bytes of each column", x="MB")
    save_chart(figure, path)


def _choose_images(count: int) -> NDArray[np.int64]:
    """Returns the numbers of the images to draw: all of ``count``, or 5,000 evenly spread ones."""
    return np.linspace(0, count - 1, min(count, _MOST_IMAGES)).astype(np.int64)


def _ignore_progress(done: int) -> None:
    """Ignores a progress report."""


def _draw_classes(axis: Any, manifest: Manifest, labels: NDArray[np.int32]) -> None:
    """Draws the number of records of each class, by split; a curve without names if there are many classes."""
    length = len(manifest.classes) if manifest.classes is not None else int(labels.max(initial=-1)) + 1
    counted = []
    for name, start, stop in manifest.ranges:
        some = labels[start:stop]
        # Leaves out labels that are missing or not among the classes.
        counted.append((name, np.bincount(some[(some >= 0) & (some < length)], minlength=length)))
    if length <= _MOST_CLASSES:
        names = list(manifest.classes) if manifest.classes is not None else [str(n) for n in range(length)]
        draw_bars(axis, names, [(name or None, counts.tolist()) for name, counts in counted])
        set_titles(axis, "records of each class", x="records")
        return
    # Too many classes for bars: draws a curve.
    for number, (name, counts) in enumerate(counted):
        axis.plot(np.sort(counts)[::-1], label=name, color=COLORS[number % len(COLORS)], drawstyle="steps-mid")
    axis.set_ylim(bottom=0)
    set_titles(axis, f"records of each of {length:,} classes, largest first", x="class", y="records")
    if manifest.splits:
        draw_legend(axis)


def _draw_sizes(axis: Any, headers: ImageHeaders) -> None:
    """Draws the width and height of images as points."""
    known = (headers.width > 0) & (headers.height > 0)
    axis.scatter(headers.width[known], headers.height[known], s=9, alpha=0.35, color=COLORS[0], linewidths=0)
    sides = np.concatenate([headers.width[known], headers.height[known]])
    # A few very large images would squeeze the others into a corner.
    if sides.size and sides.max() > 20 * max(1, np.median(sides)):
        axis.set_xscale("log")
        axis.set_yscale("log")
    else:
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
    set_titles(axis, f"sizes of {int(known.sum()):,} images", x="width, pixels", y="height, pixels")


def _draw_bytes(axis: Any, headers: ImageHeaders) -> None:
    """Draws a histogram of the bytes of images."""
    sizes = headers.nbytes[headers.nbytes > 0] / 1000
    if sizes.size:
        low, high = float(sizes.min()), float(sizes.max())
        edges = np.geomspace(low, high * 1.001, 41) if high > 20 * low else np.linspace(0, high * 1.001, 41)
        axis.hist(sizes, edges, color=COLORS[0])
        if high > 20 * low:
            axis.set_xscale("log")
    set_titles(axis, "bytes of an image", x="kB", y="images")
