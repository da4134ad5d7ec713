"""What `peers.py` found, as Markdown, JSON and a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common import table

HEADER = [
    "",
    "images/s",
    "runs",
    "packstore is … times as fast",
    "cores busy",
    "peak memory MB",
    "packing s",
    "MB on disk",
    "KB a record",
    "cold images/s",
]


def markdown(results: dict[str, Any]) -> str:
    """A section a workload."""
    parts = [f"# packstore beside others\n\n{results['machine']}. {results['how']}"]
    for workload in results["workloads"]:
        parts.append(f"## {workload['title']}\n\n{workload['work']}\n\n{_rows(workload)}")
        parts += [f"skipped: {s['name']} ({s['reason']})" for s in workload["skipped"]]
    if results["scale"]:
        parts.append(f"## As the number of records grows\n\n{_scale(results['scale'])}")
    return "\n\n".join(parts) + "\n"


def _rows(workload: dict[str, Any]) -> str:
    rows = workload["rows"]
    ours = max((row["images_per_second"] for row in rows if row["ours"]), default=None)
    lines = []
    for row in rows:
        times = "" if row["ours"] or ours is None else f"{ours / row['images_per_second']:.2f}"
        lines.append(
            [
                f"*{row['label']}*" if row["limit"] else row["label"],
                f"{row['images_per_second']:,.0f}",
                f"{min(row['runs']):,.0f} – {max(row['runs']):,.0f}",
                times,
                f"{row['cores_busy']:.2f}",
                f"{row['memory_mb']:,.0f}",
                "" if row["packing_s"] is None else f"{row['packing_s']:.2f}",
                "" if row["bytes"] is None else f"{row['bytes'] / 1e6:,.1f}",
                "" if row["bytes"] is None else f"{row['bytes'] / workload['images'] / 1e3:,.1f}",
                "" if row["cold"] is None else f"{row['cold']:,.0f}",
            ]
        )
    return table(HEADER, lines)


def _scale(rows: list[dict[str, Any]]) -> str:
    header = [
        "records",
        "format",
        "open ms",
        "with the first batch ms",
        "images/s",
        "memory MB",
        "MB on disk",
        "packing s",
    ]
    lines = [
        [
            f"{row['records']:,}",
            row["format"],
            f"{row['open_ms']:.1f}",
            f"{row['first_batch_ms']:.1f}",
            f"{row['images_per_second']:,.0f}",
            f"{row['memory_mb']:.1f}",
            f"{row['bytes'] / 1e6:,.1f}",
            f"{row['packing_s']:.1f}",
        ]
        for row in rows
    ]
    return table(header, lines)


def write(results: dict[str, Any], folder: Path) -> list[Path]:
    """Writes `peers.md`, `peers.json` and, where matplotlib is installed, `peers.png`; the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "peers.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "peers.md").write_text(markdown(results))
    written = [folder / "peers.json", folder / "peers.md"]
    if results["workloads"] and _plot(results, folder / "peers.png"):
        written.append(folder / "peers.png")
    return written


PANELS = {
    "images_per_second": "images/s",
    "bytes": "MB on disk",
    "memory_mb": "peak memory, MB",
    "packing_s": "packing, s",
}


def _plot(results: dict[str, Any], path: Path) -> bool:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    workloads = results["workloads"]
    heights = [max(2, len(workload["rows"])) for workload in workloads]
    figure = Figure(figsize=(18, 1.4 * len(workloads) + 0.42 * sum(heights)), layout="constrained")
    axes = figure.subplots(len(workloads), len(PANELS), squeeze=False, height_ratios=heights)
    for line, workload in zip(axes, workloads, strict=True):
        for axis, (field, title) in zip(line, PANELS.items(), strict=True):
            values = [(row[field] or 0) / (1e6 if field == "bytes" else 1) for row in workload["rows"]]
            colors = ["C0" if row["ours"] else "0.8" if row["limit"] else "C1" for row in workload["rows"]]
            bars = axis.barh(range(len(values)), values, color=colors)
            axis.bar_label(bars, [f"{v:,.0f}" if v >= 10 else f"{v:.2g}" if v else "" for v in values], padding=3)
            axis.set_yticks(range(len(values)), [row["label"] if axis is line[0] else "" for row in workload["rows"]])
            axis.invert_yaxis()
            axis.margins(x=0.18)
            axis.set_title(f"{workload['title']}: {title}" if axis is line[0] else title, fontsize=10)
    figure.savefig(path, dpi=110)
    return True
