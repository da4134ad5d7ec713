#!/usr/bin/env python3
"""Takes the pictures of the guide's page `seeing`: .github/sheet.png, view-grid.png and so on, all in .github.

    .venv/bin/python tools/screenshots.py [--out .github] [--chromium /usr/bin/chromium] [--operations FOLDER]

Draws a store of shapes with masks, boxes and keypoints, shows it by ``packstore view``, and reduces what Chromium shows
to 256 colours, since pictures in a repository should be small. Needs playwright and Chromium. With
`--operations FOLDER` it draws only the sheets of `operation_sheets.py`, of every operation and recipe.
"""

from __future__ import annotations

import argparse
import io
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from operation_sheets import draw_operation_sheets
from PIL import Image, ImageDraw, ImageFilter
from playwright.sync_api import sync_playwright

import packstore
from packstore.seeing.sheet import write_sheet
from packstore.seeing.sheet_options import SheetOptions

CLASSES = ("circle", "square", "star", "triangle")
RECORDS = 240
LOADED = "#record=47&loader=1&augment=RandomResizedCrop((300, 400), scale=(0.4, 1.0))&seed=2"
SHOTS = {
    "view-grid": (1000, 640, "light", "#sort=pixels&desc=1", "#place-0 img"),
    "view-record": (1000, 640, "dark", LOADED, ".loader input"),
    "view-overview": (1000, 640, "light", "#view=overview", ".classes"),
}
"""Width and height in pixels, colours, address, and what has to be there, by name."""


def scene(seed: int) -> dict[str, Any]:
    """A drawn picture of one to five shapes, and its columns."""
    rng = np.random.default_rng(seed)
    width, height = int(rng.choice([320, 400, 480, 640])), int(rng.choice([240, 320, 400]))
    image = Image.new("RGB", (width, height), tuple(rng.integers(120, 240, 3).tolist()))
    mask = Image.new("L", (width, height))
    boxes, labels, points = [], [], []
    for _ in range(int(rng.integers(1, 6))):
        label, radius = int(rng.choice(4, p=(0.4, 0.3, 0.2, 0.1))), float(rng.uniform(24, 70))
        x, y = float(rng.uniform(radius, width - radius)), float(rng.uniform(radius, height - radius))
        corners = outline(label, radius, x, y, float(rng.uniform(0, 2 * math.pi)))
        ImageDraw.Draw(image).polygon(corners, fill=tuple(rng.integers(30, 230, 3).tolist()))
        ImageDraw.Draw(mask).polygon(corners, fill=label + 1)
        across, down = np.array(corners).T
        boxes.append([max(0, across.min()), max(0, down.min()), min(width, across.max()), min(height, down.max())])
        labels.append(label)
        points.append([[x, y, 2]])
    out, mask_file = io.BytesIO(), io.BytesIO()
    image.filter(ImageFilter.GaussianBlur(0.8)).save(out, "JPEG", quality=int(rng.integers(70, 95)))
    mask.save(mask_file, "PNG")
    return {
        "image": out.getvalue(),
        "label": max(labels, key=labels.count),
        "mask": mask_file.getvalue(),
        "boxes": np.array(boxes, np.float32),
        "shapes": np.array(labels, np.int64),
        "centres": np.array(points, np.float32),
    }


def outline(label: int, radius: float, x: float, y: float, turn: float) -> list[tuple[float, float]]:
    """The corners of a shape."""
    count = (48, 4, 10, 3)[label]
    reach = [radius * (0.45 if label == 2 and n % 2 else 1) for n in range(count)]
    angles = [turn + 2 * math.pi * n / count for n in range(count)]
    return [(x + r * math.cos(a), y + r * math.sin(a)) for r, a in zip(reach, angles, strict=True)]


def make_store(path: Path) -> None:
    fields = {
        "image": "image",
        "label": packstore.Label(CLASSES),
        "mask": packstore.Mask(),
        "boxes": packstore.Boxes(),
        "shapes": packstore.Labels(CLASSES, of="boxes"),
        "centres": packstore.Keypoints(3, of="boxes", points=1),
    }
    with packstore.Writer(path, fields) as writer:
        for number in range(RECORDS):
            split = "train" if number < RECORDS * 5 // 6 else "val"
            writer.add(key=f"{split}/scene-{number:04}.jpg", split=split, **scene(number))


def draw_sheet(store: Path, out: Path) -> None:
    write_sheet(store, out / "sheet.png", SheetOptions(columns=["mask", "boxes"], side=112))
    with Image.open(out / "sheet.png") as picture:
        save(picture.convert("RGB"), out / "sheet.png")


def save(picture: Image.Image, file: Path) -> None:
    picture.quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)
    print(f"{file}: {file.stat().st_size:,} bytes")


def shoot(store: Path, out: Path, chromium: str) -> None:
    command = [sys.executable, "-m", "packstore", "view", str(store), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            for name, (width, height, theme, state, ready) in SHOTS.items():
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
                page.goto(address + state)
                page.wait_for_selector(ready)
                page.wait_for_load_state("networkidle")
                picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
                save(picture, out / f"{name}.png")
                page.close()
        finally:
            browser.close()
            server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / ".github")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--operations", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        make_store(Path(place) / "shapes.lmdb")
        if options.operations is not None:
            draw_operation_sheets(Path(place) / "shapes.lmdb", options.operations, "train", (46, 47), 5)
            return
        draw_sheet(Path(place) / "shapes.lmdb", options.out)
        shoot(Path(place) / "shapes.lmdb", options.out, options.chromium)


if __name__ == "__main__":
    main()
