#!/usr/bin/env python3
"""Makes large photos for the other benches: 12 megapixels, 4:2:0, quality 90.

    .venv/bin/python tools/bench/photos.py IMAGES OUT [--count 24] [--noise 8]
    .venv/bin/python tools/bench/peers.py --images OUT --only jpeg --peers packstore DALI
    .venv/bin/python tools/bench/loader.py --images OUT --only gray

Enlarges images of IMAGES to 4,000 x 3,000 pixels, and adds noise, since enlarged images have fewer details than those
of a camera: deviation 0 gives 0.9 bits a pixel, 5 gives 2.2 and 8 gives 2.9. Writes two classes, OUT/0 and OUT/1, and
prints the bits a pixel.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = 4000, 3000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--noise", type=float, default=8, help="standard deviation, of 255")
    arguments = parser.parse_args()
    for name in "01":
        (arguments.out / name).mkdir(parents=True)
    random, nbytes = np.random.default_rng(0), 0
    paths = sorted(path for path in arguments.images.rglob("*") if path.is_file())[: arguments.count]
    for number, path in enumerate(paths):
        pixels = np.asarray(Image.open(path).convert("RGB").resize(SIZE, Image.Resampling.BICUBIC)).astype(np.float32)
        pixels += random.normal(0, arguments.noise, (*pixels.shape[:2], 1)).astype(np.float32)
        photo = arguments.out / "01"[number % 2] / f"{number:03}.jpg"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(photo, quality=90, subsampling="4:2:0")
        nbytes += photo.stat().st_size
    print(f"{len(paths)} photos, {8 * nbytes / len(paths) / (SIZE[0] * SIZE[1]):.2f} bits a pixel")


if __name__ == "__main__":
    main()
