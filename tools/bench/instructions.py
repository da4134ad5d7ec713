"""Instructions of decoding JPEG files by the engine and by libjpeg-turbo, counted by qemu; ``tools/arm count`` runs it.

Whole images; and crops as of RandomResizedCrop, resized to 224 x 224, with the seek index and without; in RGB, and in
gray: of files in colour their luma alone.

    qemu-aarch64 -plugin instructions.so,out=COUNTS python instructions.py COUNTS FILE...
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from packstore.images.engine import Requests, get_engine

MAX_PIXELS = 1 << 28
MODES = {"RGB": 3, "gray": 1}


def boxes(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Top, left, height and width of a crop of 8 to 100% of each image, ``(N, 4)``."""
    rng, found = np.random.default_rng(0), []
    for height, width in sizes.tolist():
        while True:
            area, ratio = height * width * rng.uniform(0.08, 1), np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
            w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
            if 0 < w <= width and 0 < h <= height:
                break
        found.append((rng.integers(height - h + 1), rng.integers(width - w + 1), h, w))
    return np.array(found, np.int64)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", type=Path, help="file that the plug-in of qemu writes")
    parser.add_argument("files", type=Path, nargs="+", help="JPEG files")
    return parser.parse_args()


def main(counts: Path, files: list[bytes]) -> None:
    engine = get_engine()
    sizes = Requests(files).read_sizes()
    files, sizes = [f for f, known in zip(files, sizes[:, 0] > 0, strict=True) if known], sizes[sizes[:, 0] > 0]
    indexes, lengths, crops = engine.make_indexes(files), engine.make_indexes(files, True), boxes(sizes)

    def count(work: Callable[[], None]) -> float:
        """Millions of instructions an image, of the second time."""
        work()
        os.getppid()
        work()
        os.getppid()
        begin, end = map(int, counts.read_text().split()[-2:])
        return (end - begin) / len(files) / 1e6

    def whole(channels: int) -> None:
        for file, (height, width) in zip(files, sizes.tolist(), strict=True):
            requests = Requests([file])
            box = np.array([[0, 0, height, width]])
            requests.set_outputs(box, box[:, 2:], box, None, np.empty((1, height, width, channels), np.uint8))
            assert not engine.run(requests, 0, 1, MAX_PIXELS).any()

    def turbo(channels: int) -> None:
        for file in files:
            simplejpeg.decode_jpeg(file, "RGB" if channels == 3 else "GRAY", fastdct=False, fastupsample=False)

    def cropped(channels: int, indexes: list[bytes] | None) -> None:
        requests = Requests(files, indexes=indexes)
        windows = np.tile([0, 0, 224, 224], (len(files), 1))
        out = np.empty((len(files), 224, 224, channels), np.uint8)
        requests.set_outputs(crops, windows[:, 2:], windows, None, out)
        assert not engine.run(requests, 0, len(files), MAX_PIXELS).any()

    works: dict[str, Callable[[int], None]] = {
        "libjpeg-turbo, whole": turbo,
        "whole": whole,
        "crops": lambda channels: cropped(channels, None),
        "crops with index": lambda channels: cropped(channels, indexes),
        "crops with lengths of chroma": lambda channels: cropped(channels, lengths),
    }
    print(f"{platform.machine()}, {len(files)} files, millions of instructions each")
    for name, work in works.items():
        rgb, gray = (count(lambda channels=channels, work=work: work(channels)) for channels in MODES.values())
        print(f"  {name}: RGB {rgb:.2f}, gray {gray:.2f}, RGB / gray {rgb / gray:.2f}")
    print(f"  the index itself: {count(lambda: engine.make_indexes(files) and None):.2f}")


if __name__ == "__main__":
    arguments = parse_arguments()
    main(arguments.counts, [file.read_bytes() for file in arguments.files])
