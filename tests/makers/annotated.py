"""Small datasets with labels beside their images, in the layouts in which they are published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from tests.makers.images import encode, picture


def fill(root: Path, files: dict[str, str | bytes]) -> Path:
    """Writes files below ``root``."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def jpeg(seed: int, width: int = 16, height: int = 8) -> bytes:
    """A small JPEG file; another one for each seed."""
    return encode(picture(width=width, height=height, seed=seed), "JPEG")


def mask(seed: int, width: int = 16, height: int = 8, mode: str = "P") -> bytes:
    """A PNG file whose pixels are class numbers, 255 for none; with a palette, in gray (``L``) or in colour."""
    values = (np.arange(seed, seed + width * height) % 21).astype(np.uint8).reshape(height, width)
    values[0] = 255
    image = Image.fromarray(values)
    if mode == "P":
        image = image.copy()
        image.putpalette(list(range(256)) * 3)
    return encode(image if mode in "PL" else image.convert(mode), "PNG")


def voc_xml(name: str, *objects: tuple[str, tuple[float, ...], int]) -> str:
    """An annotation of Pascal VOC; each object has its class, its box as in the file, and whether it is difficult."""
    each = "".join(
        f"<object><name>{label}</name><pose>Left</pose><truncated>1</truncated><difficult>{difficult}</difficult>"
        f"<bndbox><xmin>{a}</xmin><ymin>{b}</ymin><xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for label, (a, b, c, d), difficult in objects
    )
    size = "<size><width>16</width><height>8</height><depth>3</depth></size>"
    return f"<annotation>\n<folder>VOC2012</folder><filename>{name}.jpg</filename>{size}{each}\n</annotation>\n"


def voc(root: Path, samples: int = 6) -> Path:
    """A development kit of Pascal VOC: sets train, val and trainval; two of three images have masks."""
    files: dict[str, str | bytes] = {}
    names = [f"2007_{n:06}" for n in range(samples)]
    for n, name in enumerate(names):
        base = "VOCdevkit/VOC2012"
        files[f"{base}/JPEGImages/{name}.jpg"] = jpeg(n)
        objects = [("cat", (1, 1, 16, 8), 0), ("tvmonitor", (2.5, 3, 4, 8), n % 2)][: n % 3]
        files[f"{base}/Annotations/{name}.xml"] = voc_xml(name, *objects)
        if n % 3:
            files[f"{base}/SegmentationClass/{name}.png"] = mask(n)
            files[f"{base}/SegmentationObject/{name}.png"] = mask(n + 1)
    sets = {"train": names[:-2], "val": names[-2:], "trainval": names}
    for split, chosen in sets.items():
        files[f"VOCdevkit/VOC2012/ImageSets/Main/{split}.txt"] = "".join(f"{name}\n" for name in chosen)
        files[f"VOCdevkit/VOC2012/ImageSets/Main/cat_{split}.txt"] = "".join(f"{name} -1\n" for name in chosen)
        masked = [name for name in chosen if names.index(name) % 3]
        files[f"VOCdevkit/VOC2012/ImageSets/Segmentation/{split}.txt"] = "".join(f"{name}\n" for name in masked)
    return fill(root, files)
