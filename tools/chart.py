#!/usr/bin/env python3
"""Draws .github/rates.svg, the chart of the README, from the tables of the guide's page `measuring`.

    python tools/chart.py

Run it after changing a figure there; a test compares the two.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "packstore" / "guide" / "measuring.md"
CHART = ROOT / ".github" / "rates.svg"

PANELS = (
    ("JPEG files as they are", "Photos: JPEG files, random resized crop to 224 and flip"),
    ("CIFAR-10, random crop and flip, batches of 512", "CIFAR-10: random crop and flip"),
)
"""For each panel the first column's header of its table, and the title."""
BARE = "two bare threads"
"""Rows that begin so are no loader's."""

WIDTH, LABELS, ROW, BAR, EDGE = 720, 214, 22, 14, 18
FIGURES = 84  # room to the right of the longest bar
# The chart brings its own background, so that text and background fit each other wherever a page shows it.
STYLE = """
  text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .title { font-weight: 600 } .note { fill: #59636e; font-size: 12px }
  .page { fill: #ffffff; stroke: #d1d9e0 } .other { fill: #afb8c1 } .ours { fill: #0969da }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .note { fill: #9198a1 }
    .page { fill: #0d1117; stroke: #3d444d } .other { fill: #656c76 } .ours { fill: #4493f8 }
  }
"""


def rows_of(page: str, header: str) -> list[tuple[str, int]]:
    """Names and images a second of the loaders in the table whose first column is called ``header``.

    Raises:
        ValueError: There is not exactly one such table with a column ``images/s``, or a row has no figure.
    """
    found = re.findall(rf"^\| {re.escape(header)} \|(.*)\n\|[-|]+\|\n((?:\|.*\n?)+)", page, re.MULTILINE)
    if len(found) != 1:
        raise ValueError(f"{len(found)} tables begin with {header!r}; one is needed")
    heads, body = found[0]
    column = [cell.strip() for cell in heads.split("|")].index("images/s") + 1
    rows = []
    for line in body.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        figure = re.match(r"[\d,]+", cells[column])
        if figure is None:
            raise ValueError(f"no figure in {line!r}")
        if not cells[0].startswith(BARE):
            rows.append((cells[0].replace("`", ""), int(figure[0].replace(",", ""))))
    return rows


def draw(page: str) -> str:
    """The chart as SVG, of the text of the page ``measuring``."""
    measured = re.search(r"^(\d+ cores \([^)]*\)).*?(\d{4}-\d\d-\d\d)", page, re.MULTILINE)
    if measured is None:
        raise ValueError("no line says on what it was measured, and when")
    parts, top = [], EDGE + 14
    for header, title in PANELS:
        rows = rows_of(page, header)
        most = max(rate for _, rate in rows)
        parts.append(f'<text class="title" x="{EDGE}" y="{top}">{escape(title)}</text>')
        top += 10
        for name, rate in rows:
            length = max(1.0, round((WIDTH - LABELS - FIGURES - EDGE) * rate / most, 1))
            kind = "ours" if name.startswith("packstore") else "other"
            base = top + BAR - 3
            parts.append(f'<text x="{LABELS - 8}" y="{base}" text-anchor="end">{escape(short(name))}</text>')
            parts.append(f'<rect class="{kind}" x="{LABELS}" y="{top}" width="{length}" height="{BAR}" rx="2"/>')
            parts.append(f'<text x="{LABELS + length + 6:.1f}" y="{base}">{rate:,}</text>')
            top += ROW
        top += 26
    note = f"Images a second on {measured[1]}, measured {measured[2]}. No GPU. Longer is better."
    parts.append(f'<text class="note" x="{EDGE}" y="{top - 8}">{escape(" ".join(note.split()))}</text>')
    height = top + 8
    frame = f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    label = 'role="img" aria-label="Images a second of packstore and other loaders"'
    return "\n".join([f"{head} {label}>", f"<style>{STYLE}</style>", frame, *parts, "</svg>", ""])


def short(name: str) -> str:
    """A loader's name as it fits beside its bar."""
    for words in (" and DataLoader", " Streaming", ", fused crop", " on the CPU"):
        name = name.replace(words, "")
    return name


if __name__ == "__main__":
    CHART.write_text(draw(PAGE.read_text("utf-8")), "utf-8")
