"""What a store holds, as a chart: classes by split, sizes and bytes of images, bytes of columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.manifest import Manifest
from packstore.seeing.charts import COLORS, bars, legend, new_chart, save_chart, titled
from packstore.seeing.view.facts import Headers, read_headers, read_labels
from packstore.stores.base import Reader

_MOST_CLASSES = 24
"""Classes with bars of their own; more are a curve."""
_MOST_COLUMNS = 12
_MOST_IMAGES = 5000
"""Images whose headers are read, spread evenly."""


def plot_store(reader: Reader, path: Path) -> None:
    """Draws the store into ``path``; reads the labels, and headers of up to 5,000 images."""
    manifest = reader.manifest
    labelled = manifest.has_column("label")
    figure, axes = new_chart(f"{reader.path.name}: {len(reader):,} records, {manifest.encoding}", 2, 2, width=11)
    if labelled:
        _classes(axes[0], manifest, read_labels(reader, manifest.column("label"), _unheard))
    else:
        splits = [(split.name, len(split)) for split in manifest.splits] or [("all", len(reader))]
        bars(axes[0], [name for name, _ in splits], [(None, [count for _, count in splits])])
        titled(axes[0], "records of each split", x="records")
    step = max(1, len(reader) // _MOST_IMAGES)
    headers = read_headers(reader, np.arange(0, len(reader), step, dtype=np.int64), _unheard)
    _sizes(axes[1], headers)
    _bytes(axes[2], headers)
    columns = sorted(manifest.columns, key=lambda column: -column.nbytes)[:_MOST_COLUMNS]
    bars(axes[3], [column.name for column in columns], [(None, [column.nbytes / 1e6 for column in columns])], "{:,.3g}")
    titled(axes[3], "bytes of each column", x="MB")
    save_chart(figure, path)


def _unheard(done: int) -> None:
    """Ignores how far reading is."""


def _classes(axis: Any, manifest: Manifest, labels: NDArray[np.int32]) -> None:
    splits = [(s.name, s.start, s.stop) for s in manifest.splits] or [("all", 0, len(labels))]
    length = len(manifest.classes) if manifest.classes is not None else int(labels.max(initial=-1)) + 1
    counted = []
    for name, start, stop in splits:
        some = labels[start:stop]
        counted.append((name, np.bincount(some[(some >= 0) & (some < length)], minlength=length)))
    if length <= _MOST_CLASSES:
        names = list(manifest.classes) if manifest.classes is not None else [str(n) for n in range(length)]
        bars(axis, names, [(name if manifest.splits else None, counts.tolist()) for name, counts in counted])
        titled(axis, "records of each class", x="records")
        return
    for number, (name, counts) in enumerate(counted):
        axis.plot(np.sort(counts)[::-1], label=name, color=COLORS[number % len(COLORS)], drawstyle="steps-mid")
    axis.set_ylim(bottom=0)
    titled(axis, f"records of each of {length:,} classes, largest first", x="class", y="records")
    if manifest.splits:
        legend(axis)


def _sizes(axis: Any, headers: Headers) -> None:
    known = (headers.width > 0) & (headers.height > 0)
    axis.scatter(headers.width[known], headers.height[known], s=9, alpha=0.35, color=COLORS[0], linewidths=0)
    sides = np.concatenate([headers.width[known], headers.height[known]])
    if sides.size and sides.max() > 20 * max(1, np.median(sides)):
        axis.set_xscale("log")
        axis.set_yscale("log")
    else:
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
    titled(axis, f"sizes of {int(known.sum()):,} images", x="width, pixels", y="height, pixels")


def _bytes(axis: Any, headers: Headers) -> None:
    sizes = headers.nbytes[headers.nbytes > 0] / 1000
    if sizes.size:
        low, high = float(sizes.min()), float(sizes.max())
        edges = np.geomspace(low, high * 1.001, 41) if high > 20 * low else np.linspace(0, high * 1.001, 41)
        axis.hist(sizes, edges, color=COLORS[0])
        if high > 20 * low:
            axis.set_xscale("log")
    titled(axis, "bytes of an image", x="kB", y="images")
