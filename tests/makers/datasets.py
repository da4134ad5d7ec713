"""Small datasets for tests of whole conversions: image folders and CIFAR-10 as it is published."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.makers.images import encode

CLASSES = ("ant", "bee", "cat")
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def pixels(height: int, width: int, seed: int) -> NDArray[np.uint8]:
    """A smooth picture with some noise, RGB: compresses like a photo and differs with every seed."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [np.sin(x / rng.uniform(4, 30) + seed) + np.cos(y / rng.uniform(4, 30) + c) for c in range(3)]
    picture = np.stack(waves, -1) * 55 + 127 + rng.normal(0, 4, (height, width, 3))
    return np.clip(picture, 0, 255).astype(np.uint8)


def write_image(path: Path, height: int, width: int, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_encoded(path.suffix.lower(), height, width, seed))


@functools.cache
def _encoded(suffix: str, height: int, width: int, seed: int) -> bytes:
    options = {"quality": 92} if suffix in (".jpg", ".jpeg") else {}
    return encode(Image.fromarray(pixels(height, width, seed)), Image.registered_extensions()[suffix], **options)


def make_folder(
    root: Path,
    splits: tuple[str, ...] = ("train", "val"),
    per_class: int = 4,
    size: tuple[int, int] | None = None,
    suffixes: tuple[str, ...] = (".jpg", ".png"),
) -> Path:
    """``root/[split/]class/NNN.suffix``; sizes differ unless ``size`` (height, width) is given."""
    seed = 0
    for split in splits or ("",):
        for name in CLASSES:
            for i in range(per_class):
                seed += 1
                height, width = size or (40 + 7 * (seed % 5), 48 + 11 * (seed % 4))
                write_image(root / split / name / f"{i:03}{suffixes[i % len(suffixes)]}", height, width, seed)
    return root


def make_cifar10(root: Path, per_batch: int = 20) -> Path:
    """``root/cifar-10-batches-py`` with five small training batches and a test batch; returns that directory."""
    out = root / "cifar-10-batches-py"
    out.mkdir(parents=True)
    rng = np.random.default_rng(7)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        data = rng.integers(0, 256, (per_batch, 3072), np.uint8)
        labels = [int(v) for v in rng.integers(0, 10, per_batch)]
        names = [b"x_%d.png" % i for i in range(per_batch)]
        batch = {b"batch_label": name.encode(), b"labels": labels, b"data": data, b"filenames": names}
        (out / name).write_bytes(pickle.dumps(batch, protocol=2))
    meta = {b"num_cases_per_batch": per_batch, b"label_names": [c.encode() for c in CIFAR10_CLASSES], b"num_vis": 3072}
    (out / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    return out
