#!/usr/bin/env python3
"""Instance segmentation: what masks of objects cost, beside the same crops without, and beside torchvision.

    pip install pycocotools
    .venv/bin/python tools/bench/instances.py --images IMAGES [--count 400] [--repeats 7] [--threads 2]

IMAGES is a folder of JPEG files. They are resized to 640 x 480 pixels, as COCO's photos have, and each gets 7 objects
with a polygon of 30 corners. In one run, in turn, with a warm page cache, random resized crops to 224 with a flip,
batches of 16 in random order:

- images alone; with boxes and labels; with polygons; with masks, by an LMDB and `--threads` threads.
- torchvision: a map dataset that decodes with Pillow, makes masks with pycocotools and crops with `transforms.v2`, as
  the reference for detection does, in a DataLoader with as many workers.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import interleaved, machine, table, timed
from PIL import Image
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop
from tests.makers.torchvision import import_torchvision

WIDTH, HEIGHT, OBJECTS, CORNERS, SIZE, BATCH = 640, 480, 7, 30, 224, 16
CROP = [RandomResizedCrop(SIZE), RandomHorizontalFlip()]


def make_polygon(rng: np.random.Generator) -> list[float]:
    middle, radius = rng.uniform((60, 60), (WIDTH - 60, HEIGHT - 60)), rng.uniform(20, 120)
    angles = np.linspace(0, 2 * np.pi, CORNERS, endpoint=False)
    ring = middle + (radius * rng.uniform(0.7, 1.0, CORNERS))[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)
    return [float(n) for n in np.round(np.clip(ring, 0, (WIDTH, HEIGHT)), 2).ravel()]


def make_set(images: Path, folder: Path, count: int) -> None:
    """Writes the photos and their polygons to `folder`, and packs them."""
    rng, fields = np.random.default_rng(0), {"image": "image", "boxes": "boxes"}
    described: dict[str, Any] = {"labels": packstore.Labels(of="boxes"), "segments": packstore.Segments(of="boxes")}
    polygons = {}
    with packstore.Writer(folder / "set.lmdb", {**fields, **described}) as writer:
        for number, file in enumerate(sorted(images.rglob("*.[jJ][pP]*[gG]"))[:count]):
            path = folder / f"{number:06}.jpg"
            with Image.open(file) as image:
                image.convert("RGB").resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(path, quality=92)
            polygons[path.name] = rings = [make_polygon(rng) for _ in range(OBJECTS)]
            corners = [np.reshape(ring, (-1, 2)) for ring in rings]
            boxes = [[*ring.min(0), *ring.max(0)] for ring in corners]
            labels = rng.integers(0, 80, OBJECTS)
            writer.add(key=path.name, image=path, boxes=boxes, labels=labels, segments=[[ring] for ring in rings])
    (folder / "polygons.json").write_text(json.dumps(polygons))


class Reference(Dataset[Any]):
    """Items as torchvision's reference for detection makes them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.polygons = folder, json.loads((folder / "polygons.json").read_text())
        self.names = sorted(self.polygons)
        from torchvision.transforms import v2

        self.transforms = v2.Compose([
            v2.ToImage(), v2.RandomResizedCrop((SIZE, SIZE), antialias=True), v2.RandomHorizontalFlip(),
            v2.SanitizeBoundingBoxes(),
        ])  # fmt: skip

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: int) -> Any:
        from pycocotools import mask as coco
        from torchvision import tv_tensors

        name = self.names[number]
        with Image.open(io.BytesIO((self.folder / name).read_bytes())) as image:
            picture = image.convert("RGB")
        runs = [coco.merge(coco.frPyObjects([ring], HEIGHT, WIDTH)) for ring in self.polygons[name]]
        masks = torch.from_numpy(np.stack([coco.decode(each) for each in runs]))
        corners = [np.reshape(ring, (-1, 2)) for ring in self.polygons[name]]
        boxes = tv_tensors.BoundingBoxes(
            [[*ring.min(0), *ring.max(0)] for ring in corners], format="XYXY", canvas_size=(HEIGHT, WIDTH)
        )
        target = {"boxes": boxes, "labels": torch.zeros(OBJECTS, dtype=torch.int64), "masks": tv_tensors.Mask(masks)}
        return self.transforms(picture, target)


def read(loader: Any) -> None:
    for _ in loader:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    import_torchvision()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        make_set(given.images, folder, given.count)
        jobs: dict[str, Callable[[], float]] = {}
        for name, columns, form in (
            ("images alone", ("image",), "masks"),
            ("boxes and labels", ("image", "boxes", "labels"), "masks"),
            ("polygons", ("image", "boxes", "labels", "segments"), "polygons"),
            ("masks", ("image", "boxes", "labels", "segments"), "masks"),
        ):
            dataset = PackedDataset(folder / "set.lmdb", columns=columns)
            options: dict[str, Any] = {"shuffle": True, "augment": CROP, "segments": form, "workers": given.threads}
            jobs[name] = partial(timed, partial(read, PackedLoader(dataset, BATCH, **options)))
        reference = Reference(folder)
        # Workers are started once, as persistent ones are.
        loader = DataLoader(reference, BATCH, True, num_workers=given.threads, collate_fn=list, persistent_workers=True)
        jobs["torchvision, masks"] = partial(timed, partial(read, loader))
        seconds = interleaved(jobs, given.repeats)
        count = len(reference)
    print(machine())
    rows = [
        (name, f"{count / took:,.0f}", f"{seconds['images alone'] / took:.2f}",
         f"{seconds['torchvision, masks'] / took:.1f}")
        for name, took in seconds.items()
    ]  # fmt: skip
    print(table(("batches of", "images/s", "share of images alone", "times torchvision"), rows))


if __name__ == "__main__":
    main()
