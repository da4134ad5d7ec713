"""Instructions of decoding JPEG files by the engine and by libjpeg-turbo, counted by qemu; ``tools/arm count`` runs it.

Whole images; and crops as of RandomResizedCrop, resized to 224 x 224, with the seek index and without.

    qemu-aarch64 -plugin instructions.so,out=COUNTS python instructions.py COUNTS FILE...
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from packstore.images.engine import Requests, get_engine

MAX_PIXELS = 1 << 28


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


def main(counts: Path, files: list[bytes]) -> None:
    engine = get_engine()
    sizes = Requests(files).sizes()
    files, sizes = [f for f, known in zip(files, sizes[:, 0] > 0, strict=True) if known], sizes[sizes[:, 0] > 0]
    indexes, crops = engine.make_indexes(files), boxes(sizes)
    out = np.empty((len(files), 224, 224, 3), np.uint8)

    def count(work: Callable[[], None]) -> float:
        """Millions of instructions an image, of the second time."""
        work()
        os.getppid()
        work()
        os.getppid()
        begin, end = map(int, counts.read_text().split()[-2:])
        return (end - begin) / len(files) / 1e6

    def whole() -> None:
        for file, (height, width) in zip(files, sizes.tolist(), strict=True):
            requests = Requests([file])
            box = np.array([[0, 0, height, width]])
            requests.want(box, box[:, 2:], box, None, np.empty((1, height, width, 3), np.uint8))
            assert not engine.run(requests, 0, 1, MAX_PIXELS).any()

    def turbo() -> None:
        for file in files:
            simplejpeg.decode_jpeg(file, fastdct=False, fastupsample=False)

    def cropped(indexes: list[bytes] | None) -> None:
        requests = Requests(files, indexes=indexes)
        windows = np.tile([0, 0, 224, 224], (len(files), 1))
        requests.want(crops, windows[:, 2:], windows, None, out)
        assert not engine.run(requests, 0, len(files), MAX_PIXELS).any()

    base = count(turbo)
    print(f"{platform.machine()}, {len(files)} files, millions of instructions each: libjpeg-turbo, whole {base:.2f}")
    for name, work in (
        ("whole", whole),
        ("crops", lambda: cropped(None)),
        ("crops with index", lambda: cropped(indexes)),
        ("the index itself", lambda: engine.make_indexes(files) and None),
    ):
        found = count(work)
        print(f"  {name}: {found:.2f}, {found / base:.2f} of libjpeg-turbo")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name).read_bytes() for name in sys.argv[2:]])
