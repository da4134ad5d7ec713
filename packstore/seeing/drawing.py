"""Draws thumbnails of images, and values over them: masks, boxes, keypoints, and shapes of other column types."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFont

from packstore.core.column_types.forms import RowClasses
from packstore.core.columns import Buffer, read_row_classes
from packstore.core.errors import DecodeError, printable
from packstore.core.manifest import Column, Manifest
from packstore.images.decoders import get_decoder
from packstore.images.masks import class_color
from packstore.images.orientation import read_orientation, swaps_sides
from packstore.images.reading import Reading, Window, to_display
from packstore.images.sniff import MAX_PIXELS, HeaderError, sniff
from packstore.stores import Reader
from packstore.training.item_options import choose_orientation
from packstore.training.pictures import ImageReader, locate_error, read_stored_bytes
from packstore.training.values import ValueReader

Pixels = NDArray[np.uint8]
Size = tuple[int, int]

_MASK_OPACITY = 0.45
_NO_CLASS = 255
"""Value that means "no class" in 8-bit masks by convention; drawn grey."""
_TEXT_SHARE, _LEAST_TEXT = 24, 9
_MOST_COMPARED = 100
"""Number of earlier name labels that a new label must not overlap."""
_CPU = torch.device("cpu")


def make_image_reader(
    manifest: Manifest, name: str = "image", exif_transpose: bool | None = None, max_pixels: int = MAX_PIXELS
) -> ImageReader:
    """Creates a reader that decodes the images of column ``name`` to RGB pictures.

    ``exif_transpose``: turn images upright by their EXIF orientation; None decides as the store does. Raises
    :class:`UsageError` if images without EXIF make another choice impossible.
    """
    turned = choose_orientation(manifest, exif_transpose)
    column = manifest.column(name)
    reading = Reading.of_column(column, manifest.options)
    decoder = get_decoder(max_pixels=max_pixels, reading=reading)
    return ImageReader(column, decoder, turned, manifest.normalization, None, _CPU)


def make_thumbnail(
    pictures: ImageReader, reader: Reader, record: int, side: int, window: Window | None = None
) -> Pixels | None:
    """Returns a record's image with sides of at most ``side`` pixels, never enlarged: uint8 ``(h, w, 3)``, RGB.

    Scales a large JPEG while decoding it. Undoes normalisation. Shows values beyond 8 bits through ``window``, see
    :mod:`packstore.images.reading`. Returns None if the record has no image.

    Raises:
        DecodeError: The image cannot be decoded. The message names the record and its key.
        StoreError: The image is damaged.
    """
    column = pictures.column
    if column.nullable and not reader.has_value(column.name, record):
        return None
    if column.layout is not None:
        image = pictures.read_for_display(reader, record, window)
    else:
        try:
            return _decode_thumbnail(pictures, read_stored_bytes(reader, column, record), side, window)
        except DecodeError as error:
            raise locate_error(error, reader, record, column.name) from None
    image.thumbnail((side, side), reducing_gap=2.0)
    return np.asarray(image)


def _decode_thumbnail(pictures: ImageReader, data: Buffer, side: int, window: Window | None) -> Pixels:
    """Decodes an image file and shrinks it to at most ``side`` pixels."""
    pixels = pictures.decoder.decode_small(data, side, exif_transpose=pictures.exif_transpose)
    image = Image.fromarray(to_display(pixels, pictures.mode, window))
    image.thumbnail((side, side), reducing_gap=2.0)
    return np.asarray(image)


def make_further_thumbnails(
    pictures: ImageReader, reader: Reader, record: int, side: int, most: int, window: Window | None = None
) -> tuple[list[Pixels], int]:
    """Returns thumbnails of the first ``most`` images of a record's list, and the number of images left. See
    :func:`make_thumbnail`.

    Returns no thumbnails, and 0, for a missing list. Raises :class:`DecodeError` for an image that cannot be decoded,
    and :class:`StoreError` for a damaged list.
    """
    column = pictures.column
    if column.nullable and not reader.has_value(column.name, record):
        return [], 0
    files = reader.item(column.name, record)
    thumbnails = []
    for number, file in enumerate(files[:most]):
        try:
            thumbnails.append(_decode_thumbnail(pictures, file, side, window))
        except DecodeError as error:
            raise locate_error(error, reader, record, f"{column.name}[{number}]") from None
    return thumbnails, len(files) - len(thumbnails)


def stack_images_below(image: Pixels, further: Sequence[Pixels]) -> Pixels:
    """Returns ``image`` with ``further`` images in a row below it, a pixel apart, on white. Returns ``image`` itself
    if there are none."""
    if not further:
        return image
    width = max(image.shape[1], sum(each.shape[1] + 1 for each in further) - 1)
    height = image.shape[0] + 1 + max(each.shape[0] for each in further)
    whole = np.full((height, width, 3), 255, np.uint8)
    whole[: image.shape[0], : image.shape[1]] = image
    top, left = image.shape[0] + 1, 0
    for each in further:
        whole[top : top + each.shape[0], left : left + each.shape[1]] = each
        left += each.shape[1] + 1
    return whole


def read_drawn_values(reader: Reader, record: int, which: Collection[str] | None = None) -> dict[str, Any]:
    """Reads the values of a record that :func:`draw_values` draws, by column. Leaves out missing values.

    Values are masks ``(H, W)``, boxes, keypoints and the like, and the class numbers of their rows.

    Args:
        reader: The store.
        record: Number of the record.
        which: Names of columns to draw; None for all.

    Raises:
        StoreError: A value is damaged.
        DecodeError: A mask cannot be decoded.
    """
    chosen = list_drawable_columns(reader.manifest, which)
    names = {column.name for column in chosen}
    classes = [c for c in reader.manifest.columns if c.traits.has_classes and c.parallel in names]
    values = {c.name: ValueReader(c, _CPU).read("numpy", reader, record) for c in [*chosen, *classes]}
    return {name: value for name, value in values.items() if value is not None}


def draw_record(
    image: Pixels,
    reader: Reader,
    record: int,
    exif_transpose: bool,
    which: Collection[str] | None = None,
    names: bool = True,
) -> Pixels:
    """Draws a record's values, such as boxes, over its thumbnail, see :func:`draw_values`.

    Raises the errors of :func:`read_drawn_values` and :func:`image_size`. The other arguments are those of
    :func:`draw_values` and :func:`image_size`.
    """
    values = read_drawn_values(reader, record, which)
    return draw_values(image, values, reader.manifest.columns, which, image_size(reader, record, exif_transpose), names)


def image_size(reader: Reader, record: int, exif_transpose: bool) -> Size:
    """Returns height and width of a record's image as it is shown: upright with ``exif_transpose``. Reads only the
    header of a file.

    Raises :class:`StoreError` if the record cannot be read, and :class:`DecodeError` if it is no image.
    """
    layout = reader.manifest.image.layout
    if layout is not None:
        shape = reader.array(record).shape
        return shape[:2] if layout == "HWC" else shape[1:]
    data = reader.view(record)
    try:
        info = sniff(data)
    except HeaderError as error:
        raise DecodeError(f"the image {error.reason}") from None
    turned = exif_transpose and swaps_sides(read_orientation(data, info))
    return (info.width, info.height) if turned else (info.height, info.width)


def list_drawable_columns(manifest: Manifest, which: Collection[str] | None = None) -> list[Column]:
    """Returns the columns that :func:`draw_values` can draw. If ``which`` is given, returns only those in ``which``.

    Leaves out masks of floating point, whose values are no classes.
    """
    return [c for c in manifest.columns if c.traits.draws(c) and (which is None or c.name in which)]


def draw_values(
    image: Pixels,
    values: Mapping[str, Any],
    columns: Sequence[Column],
    which: Collection[str] | None = None,
    size: Size | None = None,
    names: bool = True,
) -> Pixels:
    """Draws values over ``image`` as their column types do, see :meth:`ColumnType.draw`. Returns a new image.

    Masks and boxes have a colour for each class, keypoints a colour for each object.

    Args:
        image: uint8 ``(h, w, 3)``; not changed.
        values: Arrays by column, from :func:`read_drawn_values` or from a dataset's item. A mask is stretched over the
            image. Boxes and points that are not finite are left out.
        columns: Columns that describe ``values``. Columns without a value are ignored.
        which: Names of columns to draw; None for all.
        size: Height and width to which coordinates of boxes and points refer; None for those of ``image``.
        names: Draw the names of classes at boxes.

    Returns:
        uint8 ``(h, w, 3)``.
    """
    canvas = _PictureCanvas(image, size or image.shape[:2], names)
    chosen = [c for c in columns if c.traits.drawn_as and c.name in values and (which is None or c.name in which)]
    for column in sorted(chosen, key=lambda c: c.traits.layer):
        classes = read_row_classes(column, columns, values.get)
        value = values[column.name]
        column.traits.draw(canvas, column, value if isinstance(value, list) else np.asarray(value), classes)
    return np.asarray(canvas.picture)


class _PictureCanvas:
    """Draws the shapes of values into a copy of a thumbnail, :attr:`picture`.

    Blends masks over the picture. Draws boxes, also with names of classes, and points. Leaves out boxes and points that
    are not finite.
    """

    def __init__(self, image: Pixels, size: Size, names: bool) -> None:
        """Copies the thumbnail ``image``.

        ``size``: height and width to which coordinates refer. ``names``: draw the names of classes at boxes.
        """
        height, width = image.shape[:2]
        self.picture = Image.fromarray(np.ascontiguousarray(image))
        self._scale = np.array((width / max(1, size[1]), height / max(1, size[0])), np.float64)
        self._names = names

    def draw_mask(self, mask: NDArray[Any]) -> None:
        self.picture = _blend_mask(self.picture, mask)

    def draw_boxes(self, boxes: NDArray[Any], classes: RowClasses | None = None) -> None:
        numbers = None if classes is None else classes.numbers
        names = [] if classes is None or not self._names else [*map(printable, classes.texts)]
        _draw_boxes(self.picture, boxes.reshape(-1, 2, 2) * self._scale, numbers, names)

    def draw_rings(
        self,
        objects: Sequence[Sequence[Sequence[float]]],
        outlined: Sequence[bool],
        holed: Sequence[bool],
        fractions: bool,
        classes: RowClasses | None = None,
    ) -> None:
        scale = np.array(self.picture.size) if fractions else self._scale
        given = [] if classes is None else np.asarray(classes.numbers).tolist()
        limit = 4.0 * max(self.picture.size)  # as for boxes
        for number, (rings, is_outlined, has_holes) in enumerate(zip(objects, outlined, holed, strict=True)):
            corners = [(np.reshape(ring, (-1, 2)) * scale).clip(-limit, limit) for ring in rings if len(ring) > 2]
            lines = [[*map(tuple, ring.tolist())] for ring in corners]
            color = class_color(given[number] if number < len(given) else number)
            area = _fill_rings(lines, self.picture.size, has_holes)
            self.picture.paste(color, mask=area.convert("L").point(lambda value: round(value * _MASK_OPACITY)))
            for line in lines if is_outlined else ():
                ImageDraw.Draw(self.picture).polygon(line, outline=color)

    def draw_points(self, points: NDArray[Any]) -> None:
        _draw_points(self.picture, points, self._scale)


def text_color_on(color: tuple[int, int, int]) -> tuple[int, int, int]:
    """Returns black or white, whichever has more contrast on the RGB ``color``. The contrast is at least 4.5 to 1
    (WCAG)."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (c / 255 for c in color)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)


def _blend_mask(image: Image.Image, mask: NDArray[Any]) -> Image.Image:
    """Blends a mask over an image, stretched to the image's size, each class in its own colour."""
    if mask.ndim != 2 or not mask.size:
        return image
    width, height = image.size
    rows = np.arange(height) * mask.shape[0] // height
    columns = np.arange(width) * mask.shape[1] // width
    small = mask[rows[:, None], columns[None]]
    numbers, places = np.unique(small, return_inverse=True)
    palette = np.array([(128,) * 3 if n == _NO_CLASS else class_color(int(n)) for n in numbers], np.float32)
    pixels = np.asarray(image, np.float32)
    covered = (small != 0)[..., None] * np.float32(_MASK_OPACITY)  # 0 is usually the background
    mixed = pixels * (1 - covered) + palette[places.reshape(small.shape)] * covered
    return Image.fromarray(mixed.round().astype(np.uint8))


def _fill_rings(rings: Sequence[Any], size: tuple[int, int], even_odd: bool) -> Image.Image:
    """Returns a mask of 1 bit with the areas of rings. With ``even_odd``, rings inside others are holes."""
    area = Image.new("1", size)
    for ring in rings:
        one = Image.new("1", size) if even_odd else area
        ImageDraw.Draw(one).polygon(ring, fill=1)
        area = ImageChops.logical_xor(area, one) if even_odd else area
    return area


def _draw_boxes(image: Image.Image, corners: NDArray[Any], numbers: Any, names: Sequence[str]) -> None:
    """Draws boxes and their names into ``image``; ``corners`` are in pixels, ``(n, 2, 2)``."""
    draw = ImageDraw.Draw(image)
    line = max(1, round(min(image.size) / 200))
    font = default_font(max(_LEAST_TEXT, min(image.size) // _TEXT_SHARE))
    given = [] if numbers is None else np.asarray(numbers).tolist()  # class numbers for the colours
    labels: list[_DrawnName] = []
    limit = 4.0 * max(image.size)  # drawing a box far outside would take long
    for row, box in enumerate(corners):
        if not np.isfinite(box).all():
            continue
        (left, right), (top, bottom) = np.sort(np.clip(box, -limit, limit), 0).T.tolist()
        number = given[row] if row < len(given) else None
        color = class_color(0 if number is None else number)
        draw.rectangle((left, top, right, bottom), outline=color, width=line)
        if row < len(names):
            room = min(image.width - 4, max(right - left, image.width / 2))  # longer names would cover other boxes
            text = fit_text(draw, names[row][:40], room, font)
            labels.append(_place_label(font.getbbox(text), text, color, box, image.size, labels))
    for label in labels:
        draw.rectangle((label.left, label.top, label.right, label.bottom), fill=label.color)
        draw.text((label.left + 2, label.top), label.text, fill=text_color_on(label.color), font=font)


class _DrawnName(NamedTuple):
    """A drawn name and its background rectangle, in pixels."""

    left: float
    top: float
    right: float
    bottom: float
    text: str
    color: tuple[int, int, int]


def _place_label(
    area: Sequence[float],
    text: str,
    color: tuple[int, int, int],
    box: NDArray[Any],
    size: tuple[int, int],
    others: Sequence[_DrawnName],
) -> _DrawnName:
    """Places a name above its box, inside it or below it, where it overlaps no other name."""
    (left, above), (_, below) = np.sort(box, 0).tolist()
    wide, tall = area[2] + 3, area[3] + 1  # ``area`` is the text's bounding box in the font
    # Keeps the name inside the image.
    x = max(0.0, min(left, size[0] - wide - 1.0))
    tops = [max(0.0, min(y, size[1] - tall - 1.0)) for y in (above - tall - 1, above, below)]
    labels = [_DrawnName(x, y, x + wide, y + tall, text, color) for y in tops]
    free = (one for one in labels if not any(_labels_overlap(one, other) for other in others[-_MOST_COMPARED:]))
    return next(free, labels[0])  # above the box if all three places overlap


def _labels_overlap(one: _DrawnName, other: _DrawnName) -> bool:
    """Tells if two labels touch or overlap."""
    across = one.left <= other.right and other.left <= one.right
    return across and one.top <= other.bottom and other.top <= one.bottom


def fit_text(draw: ImageDraw.ImageDraw, text: str, width: float, font: Any, more: str = "…") -> str:
    """Returns ``text`` if it is at most ``width`` pixels wide. Otherwise cuts it and appends ``more``; at least one
    letter stays."""
    if draw.textlength(text, font=font) <= width:
        return text
    while len(text) > 1 and draw.textlength(text + more, font=font) > width:
        text = text[:-1]
    return text + more


def _draw_points(image: Image.Image, value: NDArray[Any], scale: NDArray[np.float64]) -> None:
    """Draws keypoints ``(n, k)`` or ``(n, points, k)`` into ``image``, each object in its own colour."""
    draw = ImageDraw.Draw(image)
    radius = max(1.5, min(image.size) / 120)
    objects = value.reshape(len(value), -1, value.shape[-1]) if value.size else value[:0].reshape(0, 1, 2)
    for number, points in enumerate(objects):
        for point in points:
            x, y = point[:2] * scale
            # The third value: 0 is unlabelled, which is not drawn; 1 is hidden, which is hollow.
            hidden = len(point) == 3 and point[2] == 1
            if not np.isfinite((x, y)).all() or (len(point) == 3 and point[2] <= 0):
                continue
            fill = None if hidden else class_color(number)
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill, outline="white")


@lru_cache(16)
def default_font(size: int) -> Any:
    """Returns Pillow's font in a size. Caches 16 fonts.

    Before Pillow 10.1 the font has one size and only Latin letters: :class:`_LatinFont`.
    """
    try:
        return ImageFont.load_default(size)
    except TypeError:
        return _LatinFont(ImageFont.load_default())


class _LatinFont:
    """Bitmap font of Latin letters. Draws a question mark for other characters instead of failing. Its methods ignore
    further arguments of Pillow's."""

    def __init__(self, font: Any) -> None:
        self._font = font

    def getmask(self, text: str, mode: str = "", *_: Any, **__: Any) -> Any:
        """Draws the mask of ``text``, after replacing characters that are not Latin."""
        return self._font.getmask(_replace_non_latin(text), mode)

    def getbbox(self, text: str, *_: Any, **__: Any) -> Any:
        """Returns the bounding box of ``text``, after replacing characters that are not Latin."""
        return self._font.getbbox(_replace_non_latin(text))

    def getlength(self, text: str, *_: Any, **__: Any) -> Any:
        """Returns the width of ``text``, after replacing characters that are not Latin."""
        return self._font.getlength(_replace_non_latin(text))


def _replace_non_latin(text: str) -> str:
    """Replaces ``…`` by three dots, and other characters beyond Latin-1 by question marks."""
    return text.replace("…", "...").encode("latin-1", "replace").decode("latin-1")
