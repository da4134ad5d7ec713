"""Small stores with columns of every type: in the manner of COCO and of VOC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packstore import Manifest
from packstore.stores import StoreBuilder
from tests.internals import CHECKSUM, KEY, ROW_CHECKSUM, Column, Origin, shape_to_stored, to_stored
from tests.makers.images import encode

IMAGE = Column("image", "ragged", "uint8", type="image")
ORIGIN = Origin("made", "typed")
CLASSES = ("ant", "bee", "cat")
SIZE = (44, 52)

COLUMNS = (
    Column("label", "fixed", "int64", classes=CLASSES, type="label"),
    Column("mask", "ragged", "uint8", type="mask"),
    Column("raw", "ragged", "uint8", layout="HW", type="mask"),
    Column("deep", "ragged", "uint16", layout="HW", type="mask"),
    Column("boxes", "ragged", "float32", (4,), type="boxes", coordinates="xyxy"),
    Column("labels", "ragged", "int64", type="labels", classes=CLASSES, parallel="boxes"),
    Column("points", "ragged", "float32", (2, 3), type="keypoints", coordinates="xyv", parallel="boxes"),
    Column("corners", "ragged", "float32", (2,), type="keypoints", coordinates="xy"),
    Column("tags", "ragged", "int64", type="labels", classes=CLASSES),
    Column("caption", "ragged", "uint8", type="text", nullable=True),
    Column("info", "ragged", "uint8", type="json"),
    Column("blob", "ragged", "uint8", type="bytes"),
    Column("vector", "fixed", "float16", (5,)),
    Column("brain", "fixed", "bfloat16", (2,)),
    Column("weight", "fixed", "float64", nullable=True),
    Column("image_id", "fixed", "int64"),
    Column("crowd", "fixed", "bool"),
    Column("track", "ragged", "int16", (2,)),
    Column("right", "ragged", "uint8", type="image"),
    Column("depth", "ragged", "uint8", type="mask", nullable=True),
)
"""Columns beside the image, of every type."""


SHAPES: tuple[list[Any], ...] = (
    [],
    [None, [], [[0, 0, 3.25, 0, 3, 4]], [[0.1, 0, 1 / 3, 0, 3, 4], [1e8, -1e8]]],
    [{"even_odd": [[0, 0, 4, 0, 4, 4], [1, 1, 2, 1, 2, 2]]}, {"size": [5, 4], "counts": [0, 20]}],
    [{"size": [5, 4], "counts": "1a"}, [list(range(5000))]],
)
"""Values of segments."""


@dataclass
class Typed:
    """Records, and the store that holds them.

    Attributes:
        images: uint8 ``(H, W, 3)`` each, at rest as PNG.
        values: Of each record, by column; None for a missing one.
        path: The store.
    """

    images: list[NDArray[np.uint8]] = field(default_factory=list)
    values: list[dict[str, Any]] = field(default_factory=list)
    path: Path = Path()


def png(values: NDArray[Any], palette: bool = False) -> bytes:
    """A PNG file of an image or of a mask, which has a palette perhaps."""
    image = Image.fromarray(values)
    if palette:
        image = _with_palette(values)
    return encode(image, "PNG")


def _with_palette(values: NDArray[Any]) -> Image.Image:
    image = Image.new("P", values.shape[::-1])
    image.putpalette([n * 7 % 256 for n in range(768)])
    image.putdata(values.ravel().tolist())
    return image


def record(seed: int, size: tuple[int, int] | None = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
    """An image and the values of :data:`COLUMNS`; every third has no boxes, every other one no caption.

    A pixel in row y and column x is ``(3 y, 3 x, more than 0)``, and the masks are ``y // 8 * 16 + x // 8``.
    """
    rng = np.random.default_rng(seed)
    height, width = size or (int(rng.integers(40, 60)), int(rng.integers(40, 60)))
    rows, columns = np.mgrid[:height, :width]
    image = np.stack([rows * 3, columns * 3, (rows + columns + seed) % 255 + 1], -1).astype(np.uint8)
    mask = (rows // 8 * 16 + columns // 8).astype(np.uint8)
    count = 0 if seed % 3 == 2 else int(rng.integers(1, 5))
    corner = rng.uniform(0, (width - 12, height - 12), (count, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(4, 12, (count, 2))], 1).astype(np.float32)
    points = np.concatenate([boxes.reshape(-1, 2, 2), np.full((count, 2, 1), 2)], -1).astype(np.float32)
    values = {
        "label": seed % 3,
        "mask": png(mask, palette=True),
        "raw": mask,
        "deep": mask.astype(np.uint16) * 200,
        "boxes": boxes,
        "labels": rng.integers(0, 3, count),
        "points": points,
        "corners": np.array([[0, 0], [width, height]], np.float32),
        "tags": rng.permutation(3)[: seed % 4],
        "caption": None if seed % 2 else f"a small picture, number {seed} ☺",
        "info": {"id": seed, "of": ["a", None, 1.5]},
        "blob": bytes(range(seed % 7)),
        "vector": rng.normal(size=5).astype(np.float16),
        "brain": np.array([1.5, -seed], np.float32),
        "weight": None if seed % 2 else seed / 3,
        "image_id": 1000 + seed,
        "crowd": seed % 2 == 0,
        "track": rng.integers(-9, 9, (seed % 3, 2)).astype(np.int16),
        "right": png(image[:, ::-1].copy()),
        "depth": None if seed % 2 else png(mask.astype(np.uint16) * 250),
    }
    return image, values


def make_typed(
    path: Path,
    names: Sequence[str],
    count: int = 8,
    *,
    size: tuple[int, int] | None = None,
    encoding: str = "original",
    columns: Sequence[Column] = COLUMNS,
    **options: Any,
) -> Typed:
    """A store of ``count`` records with the columns ``names``; ``encoding`` ``uint8`` needs a ``size``.

    Args:
        path: Where; its suffix says the format.
        names: Columns beside image and key.
        count: Number of records.
        size: Height and width of all images; None for sizes that differ.
        encoding: ``original`` (PNG) or ``uint8``.
        columns: Where the columns are looked up.
        options: For :class:`packstore.stores.StoreBuilder`."""
    chosen = [column for column in columns if column.name in names]
    image = IMAGE
    if encoding == "uint8":
        assert size is not None
        image = Column("image", "fixed", "uint8", (*size, 3), layout="HWC", type="image")
    others = [needed for column in chosen for needed in column.companions]
    format = {".lmdb": "lmdb", ".h5": "hdf5", ".pth": "pth"}[path.suffix]
    made = Typed(path=path)
    all_columns = [image, *chosen, KEY, CHECKSUM, ROW_CHECKSUM, *others]
    with StoreBuilder(path, Manifest(format, encoding, 0, tuple(all_columns), ORIGIN), **options) as builder:
        for number in range(count):
            pixels, values = record(number, size)
            made.images.append(pixels)
            made.values.append(values)
            append(builder, image, chosen, number, pixels, values)
        builder.commit()
    return made


def spoilt(path: Path, changes: dict[int, dict[str, Any]], names: Sequence[str], image: Sequence[int] = ()) -> Typed:
    """A store of four records with these values at rest; the images ``image`` are no images."""
    columns = [column for column in COLUMNS if column.name in names]
    made = Typed(path=path)
    all_columns = [IMAGE, *columns, KEY, CHECKSUM, *(c for x in columns for c in x.companions)]
    with StoreBuilder(path, Manifest("hdf5", "original", 0, tuple(all_columns), ORIGIN)) as builder:
        for number in range(4):
            pixels, values = record(number, (44, 52))
            at_rest: dict[str, Any] = {"key": [f"{number:04}.png"]}
            for column in columns:
                found = changes.get(number, {}).get(column.name)
                at_rest[column.name] = [to_stored(column, values[column.name]) if found is None else found]
                if column.kind == "fixed":
                    at_rest[column.name] = np.stack(at_rest[column.name])
            builder.append([b"none" if number in image else png(pixels)], at_rest, "")
            made.values.append(values)
        builder.commit()
    return made


def append(
    builder: Any, image: Column, columns: Sequence[Column], number: int, pixels: NDArray[Any], values: dict[str, Any]
) -> None:
    """Adds one record to a store that is being built."""
    at_rest: dict[str, Any] = {"key": [f"{number:04}.png"]}
    for column in columns:
        value = values[column.name]
        at_rest[column.name] = [to_stored(column, value)]
        if column.kind == "fixed":
            at_rest[column.name] = np.stack(at_rest[column.name])
        if column.nullable:
            at_rest[column.valid_name] = np.array([value is not None])
        if column.kind == "ragged" and column.layout is not None:
            at_rest[column.shape_name] = shape_to_stored(column, value)[None]
    builder.append([png(pixels) if image.layout is None else pixels.tobytes()], at_rest, "")
