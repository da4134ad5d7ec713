#!/usr/bin/env python3
"""Draws sheets of every operation and recipe of packstore.augment: its name, the plain image, and what becomes of it.

    .venv/bin/python tools/operation_sheets.py STORE FOLDER [--split train] [--records 0 1] [--draws 6]

Writes operations.png, sampling.png and recipes.png, to be looked at; `screenshots.py --operations FOLDER` does the same
for its drawn shapes. An operation that is exported and is not on a sheet is an error.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

import packstore.augment as A  # noqa: N812
from packstore import PackedDataset, PackedLoader
from packstore.training.augment.sizes import BatchBoxes
from packstore.training.augment.unequal import DrawnOperations

SIDE, TEXT, GAP = 128, 250, 4
SQUARE = [A.Resize(SIDE, interpolation="bicubic"), A.CenterCrop(SIDE)]
OPERATIONS: tuple[Any, ...] = (
    A.ColorJitter(0.4, 0.4, 0.4),
    A.ColorJitter(hue=0.5),
    A.Grayscale(),
    A.RandomGrayscale(0.5),
    A.RandomInvert(0.5),
    A.RandomPosterize(2, 0.5),
    A.RandomSolarize(128, 0.5),
    A.RandomAutocontrast(0.5),
    A.RandomEqualize(0.5),
    A.RandomAdjustSharpness(8, 0.5),
    A.RandomChannelPermutation(),
    A.RandomPhotometricDistort(p=1.0),
    A.GaussianBlur(9, (0.1, 3.0)),
    A.GaussianNoise(sigma=0.15),
    A.RandomHorizontalFlip(),
    A.RandomVerticalFlip(),
    A.RandomRotation(30, interpolation="bilinear"),
    A.RandomAffine(15, (0.1, 0.1), (0.8, 1.2), 15, interpolation="bilinear", fill=(90, 90, 90)),
    A.RandomPerspective(p=1.0),
    A.RandAugment(),
    A.TrivialAugmentWide(),
    A.AutoAugment("imagenet"),
    A.AutoAugment("cifar10"),
    A.AutoAugment("svhn"),
    A.AugMix(),
    A.TimmAugment("rand-m9-mstd0.5-inc1"),
    A.TimmAugment("augmix-m5"),
    A.ThreeAugment(),
    A.RandomErasing(1.0),
    A.RandomErasing(1.0, value="random"),
    A.RandomErasing(1.0, scale=(0.02, 0.05), value="color", count=(2, 6)),
    A.Cutout(48),
    A.RandomApply([A.RandomInvert(1.0)], 0.5),
    A.RandomChoice([A.Grayscale(), A.RandomSolarize(128, 1.0), A.GaussianBlur(9, 2.0)]),
    A.RandomOrder([A.RandomInvert(0.5), A.RandomSolarize(128, 0.5), A.ColorJitter(0.4)]),
    A.Compose([A.RandomPosterize(3, 1.0), A.GaussianBlur(5, 1.0)]),
)
SAMPLING: tuple[Any, ...] = (
    *([A.RandomResizedCrop(SIDE, (0.1, 0.5), interpolation=name)] for name in ("bilinear", "nearest", "bicubic")),
    *([A.RandomResizedCrop(SIDE, (0.1, 0.5), interpolation=name)] for name in ("box", "lanczos", "random")),
    [A.RandomResizedCrop(SIDE, (0.1, 0.5), antialias=False)],
    [A.Resize((SIDE, SIDE), interpolation="nearest")],
    [A.Resize((SIDE, SIDE), antialias=False)],
    [A.Resize((SIDE, SIDE), interpolation="lanczos")],
    [*SQUARE, A.RandomCrop(SIDE, padding=32, padding_mode="reflect")],
    [*SQUARE, A.RandomCrop(SIDE, padding=32, fill=128)],
    [*SQUARE, A.Pad((4, 8, 16, 32), padding_mode="edge")],
    [A.RandomResize(SIDE // 2, 2 * SIDE), A.RandomCrop(SIDE, pad_if_needed=True)],
    [A.RandomShortestSize((SIDE // 2, SIDE), 2 * SIDE), A.RandomCrop(SIDE, pad_if_needed=True)],
    [A.ScaleJitter(SIDE), A.RandomCrop(SIDE, pad_if_needed=True)],
    [A.RandomZoomOut((124, 116, 104), p=1.0)],
    [A.RandomIoUCrop(min_scale=0.5)],
    [A.Resize(160), A.RandomSizeCrop(64, 128)],
)
NO_PICTURES = {"Albumentations", "InPlace", "PerImage", "Operation"}
"""Classes that are operations of the user's."""


def check_all_are_shown() -> None:
    """Raises AssertionError if an exported operation is on no sheet."""
    shown = {type(operation).__name__ for operation in (*OPERATIONS, *(part for row in SAMPLING for part in row))}
    classes = {name for name in A.__all__ if isinstance(getattr(A, name), type)}
    missing = {name for name in classes if issubclass(getattr(A, name), A.Operation)} - shown - NO_PICTURES
    assert not missing, f"no sheet shows {', '.join(sorted(missing))}"


def draws_of(dataset: PackedDataset, record: int, count: int, **options: Any) -> list[NDArray[np.uint8]]:
    """What a loader gives of a record ``count`` times; of several views each view; of a list that needs boxes, with one
    around the middle of the image."""
    if any(isinstance(op, A.RandomIoUCrop) for op in options.get("augment", ())):
        image = dataset[record][None]
        height, width = image.shape[2:]
        box = np.array([[width / 4, height / 4, width * 3 / 4, height * 3 / 4]], np.float32)
        boxes, ids = BatchBoxes(box.repeat(count, 0), np.arange(count)), np.arange(count) << 32 | record
        course = DrawnOperations(np.array([[height, width]] * count), options["augment"], A.Draws(0, 0, ids), boxes)
        return [course.run_on_image(row, image)[0].permute(1, 2, 0).numpy() for row in range(count)]
    if "augment" in options:
        options["collate"] = {"image": "list"}
    loader = PackedLoader(dataset, count, sampler=[record] * count, output="numpy", channels_last=True, **options)
    images = next(iter(loader))
    if not isinstance(images, dict):
        return list(images)
    return [crop for crops in images.values() for crop in crops[0]]


def row_of(dataset: PackedDataset, records: Sequence[int], draws: int, **options: Any) -> list[NDArray[np.uint8]]:
    """For each record the plain image and what becomes of it."""
    found = []
    for record in records:
        found += draws_of(dataset, record, 1, augment=SQUARE)
        found += draws_of(dataset, record, draws, **options)
    return found


def sheet(rows: Iterator[tuple[str, list[NDArray[np.uint8]]]]) -> Image.Image:
    """Names and images as one picture; small images are enlarged by whole factors."""
    made = list(rows)
    columns = max(len(images) for _, images in made)
    picture = Image.new("RGB", (TEXT + columns * (SIDE + GAP), len(made) * (SIDE + GAP)), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(12)
    for number, (name, images) in enumerate(made):
        top = number * (SIDE + GAP)
        lines = textwrap.wrap(name, 36)[:8]
        draw.multiline_text((2, top), "\n".join(lines), "black", font)
        for column, image in enumerate(images):
            factor = max(1, SIDE // max(image.shape[:2]))
            shown = Image.fromarray(image.repeat(factor, 0).repeat(factor, 1))
            shown.thumbnail((SIDE, SIDE), Image.Resampling.BOX)
            picture.paste(shown, (TEXT + column * (SIDE + GAP), top))
    return picture


def draw_operation_sheets(store: Path, out: Path, split: str | None, records: Sequence[int], draws: int) -> None:
    """Writes the sheets of a store's records into a folder."""
    check_all_are_shown()
    dataset = PackedDataset(store, split, columns=("image",))

    def recipes() -> Iterator[tuple[str, list[NDArray[np.uint8]]]]:
        for name in A.RECIPES:
            recipe = A.recipe(name)
            chain = [A.Resize(32), A.CenterCrop(32), *recipe] if name == "cifar-airbench" else recipe
            options = {"augment": chain} if recipe.views is None else {"views": recipe.views}
            yield name, row_of(dataset, records, draws, **options)

    out.mkdir(parents=True, exist_ok=True)
    sheets = {
        "operations": ((repr(op), row_of(dataset, records, draws, augment=[*SQUARE, op])) for op in OPERATIONS),
        "sampling": ((repr(chain), row_of(dataset, records, draws, augment=chain)) for chain in SAMPLING),
        "recipes": recipes(),
    }
    for name, rows in sheets.items():
        sheet(rows).save(out / f"{name}.png")
        print(out / f"{name}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--split")
    parser.add_argument("--records", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--draws", type=int, default=6)
    given = parser.parse_args()
    draw_operation_sheets(given.store, given.out, given.split, given.records, given.draws)


if __name__ == "__main__":
    main()
