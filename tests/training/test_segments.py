"""Segments in batches: their masks and polygons move with the image, as masks of the whole image would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import packstore
from packstore import PackedDataset, PackedLoader, augment, coco_masks

HEIGHT, WIDTH, COUNT = 48, 64, 6
REACH = 3  # pixels of a result that is enlarged at most twice


def outlines(rng: np.random.Generator) -> list[Any]:
    """Shapes of eight objects: polygons of one to three rings, and run lengths, some beyond the image."""
    shapes: list[Any] = []
    for number in range(8):
        if number % 4 == 3:
            mask = rng.random((HEIGHT, WIDTH)) < 0.3
            flat = mask.T.ravel()
            edges = np.flatnonzero(np.diff(flat, prepend=0))
            counts = np.diff([0, *edges.tolist(), mask.size]).tolist()
            shapes.append({"size": [HEIGHT, WIDTH], "counts": counts})
            continue
        rings = []
        for _ in range(1 + number % 3):
            middle, angles = rng.uniform(0, [WIDTH, HEIGHT]), np.sort(rng.uniform(0, 7, 9))
            ring = middle + rng.uniform(3, 30) * np.stack([np.cos(angles), np.sin(angles)], 1)
            rings.append(np.round(ring, number % 3).ravel().tolist())
        shapes.append(rings)
    return shapes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[NDArray[np.uint8]]]:
    """A store with a column of segments, and one of all their masks; and the masks of each record."""
    path, rng, masks = tmp_path_factory.mktemp("segments") / "a.lmdb", np.random.default_rng(0), []
    fields = {
        "image": packstore.Image("uint8"),
        "shapes": packstore.Segments(),
        "masks": packstore.Array("uint8", spatial="CHW"),
    }
    with packstore.Writer(path, fields) as writer:
        for _ in range(COUNT):
            shapes = outlines(rng)
            masks.append(coco_masks(shapes, HEIGHT, WIDTH))
            image = rng.integers(0, 255, (HEIGHT, WIDTH, 3), dtype=np.uint8)
            writer.add(image=image, shapes=shapes, masks=masks[-1])
    return path, masks


EXACT: dict[str, list[Any]] = {
    "none": [],
    "flip": [augment.RandomHorizontalFlip(0.5)],
    "crop": [augment.RandomCrop(32)],
    "crop and flip": [augment.RandomCrop((20, 40)), augment.RandomHorizontalFlip(0.5)],
    "flip, crop, flip": [
        augment.RandomHorizontalFlip(0.5),
        augment.RandomCrop((20, 40)),
        augment.RandomHorizontalFlip(0.5),
    ],
    "padded": [augment.RandomCrop(64, padding=16)],
    "warped": [augment.RandomAffine(30, (0.1, 0.1), (0.8, 1.2), 10)],
    "perspective and crop": [augment.RandomPerspective(0.5, 1.0), augment.RandomCrop(32)],
}
RESIZED: dict[str, list[Any]] = {
    "resized crop": [augment.RandomResizedCrop((24, 40), scale=(0.4, 1.0)), augment.RandomHorizontalFlip(0.5)],
    "enlarged": [augment.Resize((96, 128)), augment.RandomCrop(50)],
    "zoomed out": [augment.RandomZoomOut(side_range=(1.0, 2.0), p=1.0), augment.Resize((48, 64))],
}


def load(made: tuple[Path, Any], operations: list[Any], **options: Any) -> Any:
    dataset = PackedDataset(made[0], columns=("image", "shapes", "masks"))
    options = {"seed": 5, "segments": "masks", "collate": {"masks": "list"}} | options
    [batch] = PackedLoader(dataset, COUNT, augment=operations, **options)
    return batch


@pytest.mark.parametrize("name", EXACT)
def test_masks_are_those_of_the_whole_image(made: tuple[Path, Any], name: str) -> None:
    """Filling and moving, in either order, gives the same pixels: of run lengths and of polygons."""
    _, masks, wholes = load(made, EXACT[name])
    for mask, whole in zip(masks, wholes, strict=True):
        assert mask.dtype == torch.bool
        assert torch.equal(mask, whole != 0)
    assert sum(int(mask.sum()) for mask in masks) > 1000


@pytest.mark.parametrize("name", RESIZED)
def test_resized_masks_differ_only_at_outlines(made: tuple[Path, Any], name: str) -> None:
    """Run lengths are exact. A polygon's pixels differ by at most a pixel of the image and one of the result."""
    _, masks, wholes = load(made, RESIZED[name])
    for mask, whole in zip(masks, wholes, strict=True):
        assert torch.equal(mask[3::4], whole[3::4] != 0)
        # An outline may also lie beyond the edge of the result.
        both = torch.nn.functional.pad(torch.stack([whole, 1 - whole]).float(), [REACH] * 4, value=1.0)
        near = torch.nn.functional.max_pool2d(both, 2 * REACH + 1, 1)
        differs = mask != (whole != 0)
        assert not (differs & ~near.all(0)).any()
        assert differs.sum() < 0.15 * mask.numel()
