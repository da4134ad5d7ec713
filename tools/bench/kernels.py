"""What each step of a program costs, in one thread, beside decoding with crop and flip.

    tools/bench/kernels.py [IMAGES] [--side 224] [--repeats 9]

IMAGES is a folder of JPEG files; without it only the steps are timed. Times are processor time of the thread, which
other work on the machine disturbs the least: medians of runs in turn. The ratio is what remains of the images a second.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from common import table

from packstore.images.engine import Requests, get_engine
from packstore.images.programs import INTERPOLATIONS, Code, Program, join_programs, pack_warp_flags, step
from packstore.training.augment import RandomResizedCrop
from packstore.training.augment.base import Crops
from packstore.training.random_draws import Draws

COUNT = 16
"""Images that are treated at a time."""


def chains() -> dict[str, Program]:
    """Programs of all images, by name."""
    n = COUNT
    found = {code.name.lower(): step(n, code, 1.4) for code in (Code.BRIGHTNESS, Code.CONTRAST, Code.SATURATION)}
    jitter = list(found.values())
    found["hue"] = step(n, Code.HUE, 0.07)
    found["jitter"] = join_programs(jitter, n)
    found["jitter, hue"] = join_programs([*jitter, found["hue"]], n)
    for code in (Code.GRAY, Code.INVERT, Code.AUTOCONTRAST, Code.EQUALIZE, Code.MIRROR, Code.FLIP):
        found[code.name.lower()] = step(n, code)
    found["posterize"], found["solarize"] = step(n, Code.POSTERIZE, 4), step(n, Code.SOLARIZE, 128)
    found["permute"], found["sharpness"] = step(n, Code.PERMUTE, 2, 0, 1), step(n, Code.SHARPNESS, 1.9)
    for size, sigma in ((3, 1.0), (23, 0.5), (23, 2.0)):
        found[f"blur {size}, sigma {sigma:g}"] = step(n, Code.BLUR, size, size, sigma, sigma)
    matrix = (0.9, 0.2, 3, -0.2, 0.9, 4)
    for number, name in enumerate(INTERPOLATIONS):
        found[f"affine, {name}"] = step(n, Code.AFFINE, *matrix, flags=pack_warp_flags(number, (1, 2, 3)))
    for number, name in enumerate(INTERPOLATIONS[1:], 1):  # as timm has them
        flags = pack_warp_flags(number, (1, 2, 3), "edge")
        found[f"shear rows, {name}"] = step(n, Code.AFFINE, 1, 0.2, 3, 0, 1, 0, flags=flags)
        found[f"shear columns, {name}"] = step(n, Code.AFFINE, 1, 0, 0, 0.2, 1, 3, flags=flags)
        found[f"rotate, {name}"] = step(n, Code.AFFINE, 0.98, 0.2, 0, -0.2, 0.98, 0, flags=flags)
    found["perspective, bilinear"] = step(n, Code.PERSPECTIVE, 1, 0.1, 2, 0.1, 1, 3, 1e-4, 1e-4, flags=1)
    found["erase"] = step(n, Code.ERASE, 60, 50, 90, 100, 1, 2, 3)
    found["erase, random pixels"] = step(n, Code.ERASE, 60, 50, 90, 100, 1, 2, 3, flags=1)
    found["noise"] = step(n, Code.NOISE, 0, 25, 1, 2, flags=1)
    parts = [step(n, Code.KEEP, 0.4), *(step(n, Code.ADD, 0.2) for _ in range(3)), step(n, Code.MIX)]
    found["sum of three chains"] = join_programs(parts, n)
    return found


def timed(function: Callable[[], object]) -> float:
    """Microseconds of the thread's processor time an image."""
    start = time.thread_time()
    function()
    return (time.thread_time() - start) / COUNT * 1e6


def decoding(folder: Path, side: int) -> Callable[[], object]:
    """Decodes COUNT files as ``RandomResizedCrop`` and a flip have them."""
    engine = get_engine()
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg"))
    files = [path.read_bytes() for path in paths[:: max(1, len(paths) // COUNT)][:COUNT]]
    requests = Requests(files)
    crops = RandomResizedCrop(side).plan_crops(Crops.full(requests.read_sizes()), Draws(0, 0, np.arange(len(files))))
    flips = np.arange(len(files)) % 2 == 0
    requests.set_outputs(crops.box, crops.size, crops.window, flips, np.empty((len(files), side, side, 3), np.uint8))
    return lambda: engine.run(requests, 0, len(files), 1 << 30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="?", type=Path)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    engine = get_engine()
    coarse = np.random.default_rng(0).integers(0, 256, (COUNT, 8, 8, 3), np.uint8)
    images = coarse.repeat(options.side // 8 + 1, 1).repeat(options.side // 8 + 1, 2)
    images = np.ascontiguousarray(images[:, : options.side, : options.side])
    images ^= np.random.default_rng(1).integers(0, 16, images.shape, np.uint8)
    work, programs = images.copy(), chains()
    decode = None if options.images is None else decoding(options.images, options.side)
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    base: list[float] = []
    for _ in range(options.repeats):
        if decode is not None:
            base.append(timed(decode))
        for name, program in programs.items():
            work[:] = images
            seconds[name].append(timed(lambda program=program: engine.augment(work, program)))
    rows = [["crop and flip", f"{median(base):.0f}", "1.00"]] if base else []
    for name, times in seconds.items():
        ratio = f"{median(base) / (median(base) + median(times)):.2f}" if base else ""
        rows.append([name, f"{median(times):.0f}", ratio])
    print(f"\n## Steps on images of {options.side} x {options.side}, one thread\n")
    print(table(["step", "µs an image", "images a second beside crop and flip"], rows))


if __name__ == "__main__":
    main()
