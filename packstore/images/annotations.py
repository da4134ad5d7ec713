"""Annotations of an image: moves them between its two frames, and encodes masks as run lengths.

The *stored* frame is that of the pixels as a file stores them, the *upright* frame that of the image after its
orientation (EXIF, or the tag of a TIFF) is applied.

Run lengths are those of COCO (https://cocodataset.org/#format-data): column by column, beginning with the background.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.column_types.segments import decode_run_lengths
from packstore.core.columns import UPRIGHT, from_stored, is_moved, shape_to_stored, to_stored
from packstore.core.manifest import Column
from packstore.images.masks import decode_mask, open_mask, read_mask_header
from packstore.images.orientation import swaps_sides, turn_points, upright

_INVERSE = {6: 8, 8: 6}
"""Orientations that are not their own inverse."""


def make_turn(orientation: int, stored_size: tuple[int, int], to: str) -> Turn:
    """Makes the move from one frame of an image to the other. ``stored_size``: width and height of the stored pixels.
    ``to``: the frame that values are moved to."""
    if to == UPRIGHT:
        return Turn(orientation, *stored_size)
    width, height = stored_size[::-1] if swaps_sides(orientation) else stored_size
    return Turn(_INVERSE.get(orientation, orientation), width, height)


class Turn:
    """Moves values with an image that is turned by an EXIF orientation. Satisfies
    :class:`~packstore.core.column_types.forms.RowMoves`, and keeps all rows.

    Attributes:
        orientation: The orientation, 1 … 8.
        width: Width of the image before it is turned.
        height: Height of the image before it is turned.
    """

    def __init__(self, orientation: int, width: int, height: int) -> None:
        self.orientation, self.width, self.height = orientation, width, height

    def move_boxes(self, boxes: NDArray[Any], images: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Moves boxes ``(N, 4)``: left, top, right, bottom."""
        corners = self._move(np.asarray(boxes).reshape(-1, 2, 2), 0)
        moved = np.concatenate([corners.min(1), corners.max(1)], 1)
        return moved.astype(boxes.dtype), np.ones(len(boxes), np.bool_)

    def move_points(self, points: NDArray[Any], images: NDArray[np.int64]) -> NDArray[Any]:
        """Moves points ``(N, …, k)``. Points that are not visible stay as they are."""
        moved = np.array(points)
        moved[..., :2] = self._move(points[..., :2], 1)
        return np.where(points[..., 2:3] == 0, points, moved) if points.shape[-1] == 3 else moved

    def move_polygon(self, flat: list[float]) -> list[float]:
        """Moves a polygon ``x, y, x, y …`` in pixels."""
        moved: list[float] = self._move(np.array(flat, np.float64).reshape(-1, 2), 0).ravel().tolist()
        return moved

    def move_pixels(self, array: NDArray[Any]) -> NDArray[Any]:
        """Moves an array whose last two axes are height and width."""
        planes = np.moveaxis(array.reshape(-1, *array.shape[-2:]), 0, -1)
        moved = np.moveaxis(upright(planes, self.orientation), -1, 0)
        return np.ascontiguousarray(moved).reshape(*array.shape[:-2], *moved.shape[1:])

    def move_mask_file(self, data: bytes) -> bytes:
        """Moves a mask in a PNG file. The result is a PNG file with the same values and palette."""
        from PIL import Image

        header = read_mask_header(data)
        image = open_mask(data, header)
        # Values come from the decoder: Pillow scales gray of 2 and 4 bits when it loads it, and not when it saves it.
        moved = Image.fromarray(self.move_pixels(decode_mask(data, header)))
        if image.mode == "P":
            moved.putpalette(image.getpalette("RGB") or [])
        out = io.BytesIO()
        moved.save(out, "PNG")
        return out.getvalue()

    def move_value(self, column: Column, value: Any) -> Any:
        """Moves a value of any column, as :func:`packstore.core.columns.to_stored` takes it. None, and values without
        coordinates or pixels, stay as they are. Raises :class:`ValueError` for a value that does not fit the
        column, and :class:`DecodeError` for a damaged mask."""
        if value is None or not is_moved(column):
            return value
        if column.traits.lies_on_image:
            file = column.layout is None
            return self.move_mask_file(bytes(value)) if file else self.move_pixels(np.asarray(value))
        if column.traits.is_object:
            # YOLO's polygons were a JSON column before there were segments.
            return self._move_shapes(value, column.coordinates == "fractions" or column.name == "polygons")
        rows = np.asarray(from_stored(column, to_stored(column, value)))
        return column.traits.move_rows(column, rows, np.zeros(len(rows), np.int64), self)[0]

    def move_stored_values(self, columns: Mapping[str, Column], values: Mapping[str, Any]) -> dict[str, Any]:
        """Moves the values of a record in stored form, companions included. Returns all values by name."""
        moved = dict(values)
        for name, column in columns.items():
            if not is_moved(column) or (column.nullable and not values[column.valid_name]):
                continue
            has_shape = column.kind == "ragged" and column.layout is not None
            shape = tuple(np.asarray(values[column.shape_name]).tolist()) if has_shape else None
            value = self.move_value(column, from_stored(column, values[name], shape))
            moved[name] = to_stored(column, value)
            if has_shape:
                moved[column.shape_name] = shape_to_stored(column, value)
        return moved

    def _move(self, points: NDArray[Any], last: int) -> NDArray[np.float64]:
        """Moves points ``(…, 2)`` as pixels are moved."""
        # last is 0 for edges of pixels; 1 for numbers of pixels, which end one earlier.
        return turn_points(np.asarray(points, np.float64), self.orientation, self.width - last, self.height - last)

    def _move_shapes(self, value: Any, fractions: bool) -> Any:
        """Moves segments, in pixels or fractions of the sides; and shapes in JSON, as COCO's annotations have them."""
        if isinstance(value, dict):
            image = value.get("image")
            if isinstance(image, dict) and swaps_sides(self.orientation) and {"width", "height"} <= image.keys():
                value = value | {"image": image | {"width": image["height"], "height": image["width"]}}
            return {name: self._move_coco_entries(each) for name, each in value.items()}
        if not isinstance(value, list):
            return value
        rings = Turn(self.orientation, 1, 1) if fractions else self
        return [self._move_segmentation(each, rings) for each in value]

    def _move_coco_entries(self, value: Any) -> Any:
        """Moves a list of annotations in COCO's form, or the segments of a panoptic mask."""
        if isinstance(value, list):
            return [self._move_coco(each) for each in value]
        if isinstance(value, dict) and isinstance(segments := value.get("segments_info"), list):
            return value | {"segments_info": [self._move_coco(each) for each in segments]}
        return value

    def _move_coco(self, entry: Any) -> Any:
        """Moves boxes, segmentation and keypoints of an annotation in COCO's form."""
        if not isinstance(entry, dict):
            return entry
        moved = dict(entry)
        if "segmentation" in entry:
            moved["segmentation"] = self._move_segmentation(entry["segmentation"], self)
        # With the names of COCO-WholeBody (https://github.com/jin-s13/COCO-WholeBody), such as face_box and foot_kpts.
        for name, value in entry.items():
            if not isinstance(value, list) or not all(isinstance(n, (int, float)) for n in value):
                continue
            if name == "bbox" or (name.endswith("_box") and len(value) == 4):
                left, top, right, bottom = self.move_polygon([*value[:2], value[0] + value[2], value[1] + value[3]])
                moved[name] = [min(left, right), min(top, bottom), abs(right - left), abs(bottom - top)]
            elif value and len(value) % 3 == 0 and (name == "keypoints" or name.endswith("_kpts")):
                points = np.array(value, np.float64).reshape(-1, 3)
                moved[name] = self.move_points(points, np.zeros(0, np.int64)).ravel().tolist()
        return moved

    def _move_segmentation(self, shape: Any, rings: Turn) -> Any:
        """Moves a shape in the form of segments or of COCO, its coordinates by ``rings``. Returns anything else
        unchanged."""
        if isinstance(shape, list):
            is_ring = shape and not isinstance(shape[0], list)
            return rings.move_polygon(shape) if is_ring else [rings.move_polygon(each) for each in shape]
        if isinstance(shape, dict) and "even_odd" in shape:
            return {"even_odd": [rings.move_polygon(each) for each in shape["even_odd"]]}
        if isinstance(shape, dict) and {"size", "counts"} <= shape.keys():
            mask = np.zeros((self.height, self.width), np.uint8)
            fill_run_lengths(shape, mask)
            moved = self.move_pixels(mask)
            return shape | {"size": [*moved.shape], "counts": encode_run_lengths(moved != 0)}
        return shape


def compute_run_lengths_box(counts: Sequence[int], height: int, width: int) -> list[float]:
    """Computes left, top, right and bottom of a mask's pixels; zeros if it has none.

    Raises :class:`ValueError` if the run lengths do not add up to the image's pixels.
    """
    lengths = np.asarray(counts, np.int64)
    if height < 1 or width < 1 or (lengths < 0).any() or int(lengths.sum()) != height * width:
        raise ValueError(f"run lengths do not add up to the {height} x {width} pixels of the image")
    ends = np.cumsum(lengths)
    begin, last = (ends - lengths)[1::2][lengths[1::2] > 0], ends[1::2][lengths[1::2] > 0] - 1
    if not len(begin):
        return [0.0, 0.0, 0.0, 0.0]
    spans = (
        begin // height < last // height
    ).any()  # a run continues from the bottom of a column at the top of the next
    top, bottom = (0, height) if spans else (int((begin % height).min()), int((last % height).max()) + 1)
    return [float(begin[0] // height), float(top), float(last[-1] // height + 1), float(bottom)]


def fill_run_lengths(segmentation: dict[str, Any], mask: NDArray[np.uint8]) -> None:
    """Sets the pixels of run lengths in ``mask`` to 1.

    Raises :class:`ValueError` unless they have the mask's size and fill it exactly.
    """
    if list(segmentation.get("size", ())) != list(mask.shape):
        raise ValueError(f"run lengths of size {segmentation.get('size')!r:.40} in an image {mask.shape}")
    counts = segmentation.get("counts")
    if isinstance(counts, (str, bytes)):
        lengths = np.asarray(decode_run_lengths(counts.encode() if isinstance(counts, str) else counts), np.int64)
    else:
        lengths = np.asarray(counts)
        if lengths.ndim != 1 or (lengths.dtype.kind not in "iu" and len(lengths)):
            raise ValueError("run lengths are neither a list of whole numbers nor a string")
    if (lengths < 0).any() or (lengths > mask.size).any() or int(lengths.sum()) != mask.size:
        raise ValueError(f"run lengths do not add up to the {mask.size} pixels of the image")
    values = np.arange(len(lengths), dtype=np.int64) & 1
    mask |= np.repeat(values.astype(np.uint8), lengths.astype(np.int64)).reshape(mask.shape[::-1]).T


def clip_ring(points: NDArray[np.float64], sides: Sequence[float]) -> NDArray[np.float64]:
    """Clips a ring, ``(N, 2)``, x and y, to a rectangle: top, left, bottom, right. Returns no points if it is outside.

    Cuts along one side after the other (Sutherland and Hodgman, 1974).
    """
    top, left, bottom, right = sides
    for axis, limit, sign in ((0, left, 1), (0, right, -1), (1, top, 1), (1, bottom, -1)):
        depth = sign * (points[:, axis] - limit)
        if (depth >= 0).all():
            continue
        following, behind = np.roll(points, -1, 0), np.roll(depth, -1)
        crosses = (depth < 0) != (behind < 0)
        share = np.divide(depth, depth - behind, where=crosses, out=np.zeros_like(depth))
        cuts = points + share[:, None] * (following - points)
        cuts[:, axis] = limit
        points = np.stack([points, cuts], 1).reshape(-1, 2)[np.stack([depth >= 0, crosses], 1).ravel()]
    return points


def decode_bitmap(png: bytes) -> NDArray[np.bool_]:
    """Decodes a PNG whose alpha, or else any other channel, is a mask. Raises :class:`ValueError` for a damaged one."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(png)) as image:
            pixels = np.asarray(image.getchannel("A") if "A" in image.getbands() else image)
    except (OSError, SyntaxError) as error:
        raise ValueError(f"a bitmap cannot be decoded: {error}") from None
    shown: NDArray[np.bool_] = np.asarray(pixels if pixels.ndim == 2 else pixels.any(2)) != 0
    return shown


def encode_run_lengths(mask: NDArray[np.bool_], corner: tuple[int, int] = (0, 0), sides: Any = None) -> list[int]:
    """Encodes a mask as COCO's run lengths: column by column, beginning with the background.

    Args:
        mask: Mask ``(H, W)``, or a part of it that has all its pixels.
        corner: Top and left of the part.
        sides: Height and width of the whole mask; None for those of ``mask``.
    """
    height, width = mask.shape if sides is None else sides
    columns, rows = np.nonzero(mask.T)
    flat = (columns + corner[1]) * height + rows + corner[0]
    breaks = np.flatnonzero(np.diff(flat) != 1)
    edges = np.sort(np.concatenate([flat[:1], flat[breaks] + 1, flat[breaks + 1], flat[-1:] + 1]))
    lengths: list[int] = np.diff([0, *edges.tolist(), height * width]).tolist()
    return lengths if lengths[-1] else lengths[:-1]
