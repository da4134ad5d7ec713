"""Images for people: small versions of them, and their masks, boxes and points drawn over them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from packstore.core.errors import DecodeError, printable
from packstore.core.manifest import Column, Manifest
from packstore.images.decoders import get_decoder
from packstore.images.sniff import MAX_PIXELS
from packstore.seeing.colors import color_of
from packstore.stores.base import Reader
from packstore.training.item_options import choose_orientation
from packstore.training.pictures import Pictures, at_record, stored_bytes
from packstore.training.values import Values

Pixels = NDArray[np.uint8]
Size = tuple[int, int]

DRAWN = ("mask", "boxes", "keypoints")
"""Types of columns that :func:`overlay` draws."""

_MASK_OPACITY = 0.45
_NO_CLASS = 255
"""What masks of 8 bits have, by convention, where a pixel is of no class: it is drawn grey."""
_TEXT_SHARE, _LEAST_TEXT = 24, 9
_CPU = torch.device("cpu")


def pictures_of(
    manifest: Manifest, name: str = "image", exif_transpose: bool | None = None, max_pixels: int = MAX_PIXELS
) -> Pictures:
    """How images of the column ``name`` become pictures; ``dataset.pictures`` is the same for a dataset's.

    Raises :class:`UsageError` as :class:`packstore.PackedDataset` does for ``exif_transpose``."""
    turned = choose_orientation(manifest, exif_transpose)
    decoder = get_decoder(max_pixels=max_pixels)
    return Pictures(manifest.column(name), decoder, turned, manifest.normalization, None, _CPU)


def thumbnail(pictures: Pictures, reader: Reader, record: int, side: int) -> Pixels | None:
    """The image of a record, at most ``side`` pixels wide and high, never enlarged: uint8 ``(h, w, 3)``, RGB.

    A large JPEG is scaled while it is decoded. Normalisation is undone. None where the record has no image.

    Raises:
        DecodeError: It cannot be decoded; names the record and its key.
        StoreError: It is damaged.
    """
    column = pictures.column
    if column.nullable and not reader.present(column.name, record):
        return None
    if column.layout is not None:
        image = pictures.pil(reader, record)
    else:
        data = stored_bytes(reader, column, record)
        try:
            image = Image.fromarray(pictures.decoder.decode_small(data, side, exif_transpose=pictures.exif_transpose))
        except DecodeError as error:
            raise at_record(error, reader, record, column.name) from None
    image.thumbnail((side, side), reducing_gap=2.0)
    return np.asarray(image)


def drawn_values(reader: Reader, record: int, which: Collection[str] | None = None) -> dict[str, Any]:
    """What :func:`overlay` needs of a record: masks as arrays ``(H, W)``, boxes with their class numbers, keypoints.
    Leaves out what the record lacks.

    Args:
        reader: The store.
        record: Number of the record.
        which: Names of columns to draw; None for all.

    Raises:
        StoreError: A value is damaged; :class:`DecodeError` for a mask that cannot be decoded.
    """
    chosen = drawn_columns(reader.manifest, which)
    boxes = {column.name for column in chosen if column.type == "boxes"}
    with_boxes = [c for c in reader.manifest.columns if c.type == "labels" and c.parallel in boxes]
    values = {c.name: Values(c, _CPU).of("numpy", reader, record) for c in [*chosen, *with_boxes]}
    return {name: value for name, value in values.items() if value is not None}


def drawn_columns(manifest: Manifest, which: Collection[str] | None = None) -> list[Column]:
    """Columns that :func:`overlay` can draw: of those in ``which``, or of all."""
    return [c for c in manifest.columns if c.type in DRAWN and (which is None or c.name in which)]


def overlay(
    image: Pixels,
    values: Mapping[str, Any],
    columns: Sequence[Column],
    which: Collection[str] | None = None,
    size: Size | None = None,
) -> Pixels:
    """``image`` with masks, boxes and keypoints over it, each class in a colour of its own.

    Args:
        image: uint8 ``(h, w, 3)``; stays as it is.
        values: Arrays by column, as :func:`drawn_values` gives them, or as a dataset's items have them. A mask may have
            any size: it is stretched over the image. Boxes and points that are not finite are left out.
        columns: The columns of the store, or those in ``values``.
        which: Names of columns to draw; None for all.
        size: Height and width in which boxes and points count; None for those of ``image``.

    Returns:
        uint8 ``(h, w, 3)``.
    """
    height, width = image.shape[:2]
    shown = Image.fromarray(np.ascontiguousarray(image))
    whole_height, whole_width = size or (height, width)
    scale = np.array((width / max(1, whole_width), height / max(1, whole_height)), np.float64)
    chosen = [c for c in columns if c.type in DRAWN and c.name in values and (which is None or c.name in which)]
    for column in sorted(chosen, key=lambda c: DRAWN.index(c.type)):
        value = np.asarray(values[column.name])
        if column.type == "mask":
            shown = _with_mask(shown, value)
        elif column.type == "boxes":
            labels = next((c for c in columns if c.parallel == column.name and c.type == "labels"), None)
            numbers = values.get(labels.name) if labels is not None else None
            names = labels.classes if labels is not None else None
            _draw_boxes(shown, value.reshape(-1, 2, 2) * scale, numbers, names)
        else:
            _draw_points(shown, value, scale)
    return np.asarray(shown)


def _with_mask(image: Image.Image, mask: NDArray[Any]) -> Image.Image:
    """Value 0, which is the background in most datasets, is left as it is."""
    if mask.ndim != 2 or not mask.size:
        return image
    width, height = image.size
    rows = np.arange(height) * mask.shape[0] // height
    columns = np.arange(width) * mask.shape[1] // width
    small = mask[rows[:, None], columns[None]]
    numbers, where = np.unique(small, return_inverse=True)
    palette = np.array([(128,) * 3 if n == _NO_CLASS else color_of(int(n)) for n in numbers], np.float32)
    pixels = np.asarray(image, np.float32)
    covered = (small != 0)[..., None] * np.float32(_MASK_OPACITY)
    mixed = pixels * (1 - covered) + palette[where.reshape(small.shape)] * covered
    return Image.fromarray(mixed.round().astype(np.uint8))


def _draw_boxes(image: Image.Image, corners: NDArray[Any], numbers: Any, names: Sequence[str] | None) -> None:
    """``corners`` float64 ``(n, 2, 2)``: left, top, right, bottom in pixels of ``image``."""
    draw = ImageDraw.Draw(image)
    line = max(1, round(min(image.size) / 200))
    font = _font(max(_LEAST_TEXT, min(image.size) // _TEXT_SHARE))
    given = [] if numbers is None else np.asarray(numbers).tolist()
    limit = 4.0 * max(image.size)  # a box far outside would take the drawing long
    for row, box in enumerate(corners):
        if not np.isfinite(box).all():
            continue
        (left, right), (top, bottom) = np.sort(np.clip(box, -limit, limit), 0).T.tolist()
        number = given[row] if row < len(given) else None
        color = color_of(0 if number is None else number)
        draw.rectangle((left, top, right, bottom), outline=color, width=line)
        if number is None:
            continue
        text = printable(names[number]) if names is not None and 0 <= number < len(names) else str(number)
        area = draw.textbbox((0, 0), text[:40], font=font)
        x = min(max(0.0, left), max(0.0, image.width - area[2]))
        y = top - area[3] if top >= area[3] else max(0.0, top)
        draw.rectangle((x, y, x + area[2] + 1, y + area[3]), fill=color)
        draw.text((x + 1, y), text[:40], fill="black", font=font)


def _draw_points(image: Image.Image, value: NDArray[Any], scale: NDArray[np.float64]) -> None:
    """``value`` ``(n, k)`` or ``(n, points, k)``; of an object's points those that are not labelled are left out."""
    draw = ImageDraw.Draw(image)
    radius = max(1.5, min(image.size) / 120)
    objects = value.reshape(len(value), -1, value.shape[-1]) if value.size else value[:0].reshape(0, 1, 2)
    for number, points in enumerate(objects):
        for point in points:
            x, y = point[:2] * scale
            hidden = len(point) == 3 and point[2] == 1
            if not np.isfinite((x, y)).all() or (len(point) == 3 and point[2] <= 0):
                continue
            fill = None if hidden else color_of(number)
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill, outline="white")


@lru_cache(16)
def _font(size: int) -> Any:
    return ImageFont.load_default(size)
