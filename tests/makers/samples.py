"""Small datasets with more than images and labels, like COCO and VOC."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.makers.datasets import pixels
from tests.makers.images import encode

COCO_CLASSES = ("person", "dog", "kite")
VOC_CLASSES = ("background", "aeroplane", "bicycle", "bird")


def jpeg(seed: int, height: int = 24, width: int = 32) -> bytes:
    return encode(Image.fromarray(pixels(height, width, seed)), "JPEG", quality=90)


def palette_png(indices: np.ndarray) -> bytes:
    """A PNG with a palette, whose indices are the values of a mask."""
    image = Image.fromarray(indices.astype(np.uint8), "P")
    image.putpalette([channel for index in range(256) for channel in (index, 255 - index, index // 2)])
    return encode(image, "PNG")


def coco(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Samples like COCO's: a JPEG file, boxes with labels, captions, a mask (an array) of the same size, an id; some
    without boxes, and some without a caption."""
    rng = np.random.default_rng(seed)
    samples = []
    for i in range(count):
        height, width, boxes = 20 + i % 3, 30 + i % 4, int(rng.integers(0, 4)) if i else 2
        corners = np.sort(rng.random((boxes, 2, 2)), axis=1).reshape(boxes, 4) * (width, height, width, height)
        samples.append(
            {
                "key": f"{seed:02}/{i:012}",
                "image": jpeg(100 * seed + i, height, width),
                "boxes": corners.astype(np.float32),
                "labels": rng.integers(0, len(COCO_CLASSES), boxes),
                "captions": [f"a picture of number {i}", "ein Bild \u00fc"],
                "mask": rng.integers(0, 90, (height, width), np.uint8),
                "image_id": 1000 * seed + i,
                "note": None if i % 3 else f"note {i}",
            }
        )
    return samples


class Voc:
    """A map-style dataset of files like VOC's: paths of JPEG images and palette PNG masks, boxes and labels."""

    def __init__(self, root: Path, count: int = 10) -> None:
        self.root = root
        self._count = count
        for name in ("JPEGImages", "SegmentationClass"):
            (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            height, width = 16 + i % 5, 20 + i % 3
            self.image(i).write_bytes(jpeg(i, height, width))
            indices = np.random.default_rng(i).integers(0, len(VOC_CLASSES), (height, width))
            self.mask(i).write_bytes(palette_png(indices))

    def image(self, index: int) -> Path:
        return self.root / "JPEGImages" / f"2007_{index:06}.jpg"

    def mask(self, index: int) -> Path:
        return self.root / "SegmentationClass" / f"2007_{index:06}.png"

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.__getitem__, range(self._count))

    def __getitem__(self, index: Any) -> Any:
        boxes = [[1.0, 2.0, 10.5, 12.0 + n] for n in range(index % 3 + 1)]
        return {
            "image": self.image(index),
            "mask": self.mask(index),
            "boxes": boxes,
            "labels": [VOC_CLASSES[1 + n % 3] for n in range(len(boxes))],
        }


def same(found: Any, wanted: Any) -> bool:
    """Whether a value that was read is the one that was written; lists of numbers come back as arrays."""
    if isinstance(wanted, Path):
        return bool(found == wanted.read_bytes())
    if isinstance(found, np.ndarray):
        return np.array_equal(found, np.asarray(wanted))
    return type(found) is type(wanted) and bool(found == wanted)
