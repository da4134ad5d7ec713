"""Data sets of one photo with an orientation, whose annotations count in a chosen frame: stored pixels, or upright.

The truth is in the pixels: the object is red, everything else is dark noise. Each writer here follows the documentation
of its format, and uses nothing of packstore.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.makers.annotated import fill
from tests.makers.images import encode

ORIENTATIONS = tuple(range(1, 9))
FRAMES = ("stored", "upright")
_WIDTH, _HEIGHT = 64, 40
_BOX = (8, 4, 32, 20)
"""Left, top, right, bottom in the upright image."""
_INVERSE = {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270, 3: Image.Transpose.ROTATE_180,
            2: Image.Transpose.FLIP_LEFT_RIGHT, 4: Image.Transpose.FLIP_TOP_BOTTOM,
            5: Image.Transpose.TRANSPOSE, 7: Image.Transpose.TRANSVERSE}  # fmt: skip
"""The operation of Pillow that makes the stored pixels of each orientation from upright ones (EXIF 2.3, tag 274)."""
_KINDS = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "tif": "TIFF", "avif": "AVIF"}
KINDS = (*_KINDS, "heic")


class Photo(NamedTuple):
    """A photo, and where its object is in one frame.

    Attributes:
        name: Name of its file.
        width: Width in the frame of the annotations.
        height: Height in that frame.
        box: Left, top, right, bottom of the object in that frame.
    """

    name: str
    width: int
    height: int
    box: tuple[int, int, int, int]

    @property
    def mask(self) -> NDArray[np.uint8]:
        """1 in the object, else 0."""
        values = np.zeros((self.height, self.width), np.uint8)
        left, top, right, bottom = self.box
        values[top:bottom, left:right] = 1
        return values


def make_photo(kind: str, orientation: int) -> bytes:
    """A file of 64 x 40 pixels when upright, whose object is red."""
    pixels = np.repeat(np.random.default_rng(0).integers(0, 100, (_HEIGHT, _WIDTH, 1), np.uint8), 3, axis=2)
    left, top, right, bottom = _BOX
    pixels[top:bottom, left:right] = 230, 30, 30
    upright = Image.fromarray(pixels)
    if kind == "heic":
        out = io.BytesIO()
        pytest.importorskip("pillow_heif").from_pillow(upright).save(out, quality=95)
        return out.getvalue()
    stored = upright if orientation == 1 else upright.transpose(_INVERSE[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.init()
    if _KINDS[kind] not in Image.SAVE:
        pytest.skip(f"this Pillow writes no {_KINDS[kind]}")
    options: dict[str, Any] = {"jpg": {"quality": 95, "subsampling": 0}, "webp": {"lossless": True}}.get(kind, {})
    options |= {"tiffinfo": {0x0112: orientation}} if kind == "tif" else {"exif": exif}
    return encode(stored, _KINDS[kind], **options)


def describe_photo(kind: str, orientation: int, frame: str) -> Photo:
    """The place of the object in a frame of the photo."""
    mask = np.zeros((_HEIGHT, _WIDTH), np.uint8)
    left, top, right, bottom = _BOX
    mask[top:bottom, left:right] = 1
    if frame == "stored" and orientation != 1 and kind != "heic":
        mask = np.asarray(Image.fromarray(mask).transpose(_INVERSE[orientation]))
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
    return Photo(f"a.{kind}", mask.shape[1], mask.shape[0], box)


Files = dict[str, bytes]


def _polygon(photo: Photo) -> list[float]:
    left, top, right, bottom = photo.box
    return [left, top, right, top, right, bottom, left, bottom]


def yolo(photo: Photo, image: bytes) -> Files:
    left, top, right, bottom = photo.box
    centre = (left + right) / 2 / photo.width, (top + bottom) / 2 / photo.height
    line = (0, *centre, (right - left) / photo.width, (bottom - top) / photo.height)
    return {
        f"images/train/{photo.name}": image,
        "labels/train/a.txt": " ".join(map(str, line)).encode(),
        "data.yaml": b"train: images/train\nnames: [thing]\n",
    }


def yolo_polygons(photo: Photo, image: bytes) -> Files:
    sides = (photo.width, photo.height) * 4
    values = [value / side for value, side in zip(_polygon(photo), sides, strict=True)]
    return yolo(photo, image) | {"labels/train/a.txt": " ".join(map(str, (0, *values))).encode()}


def coco(photo: Photo, image: bytes, sized: bool = True) -> Files:
    left, top, right, bottom = photo.box
    entry = {"id": 1, "file_name": photo.name} | ({"width": photo.width, "height": photo.height} if sized else {})
    bbox = [left, top, right - left, bottom - top]
    polygon = {"segmentation": [_polygon(photo)], "area": bbox[2] * bbox[3], "iscrowd": 0}
    points = {"keypoints": [left, top, 2, right - 1, bottom - 1, 2], "num_keypoints": 2}
    document = {
        "images": [entry],
        "categories": [{"id": 1, "name": "thing", "keypoints": ["first", "last"], "skeleton": []}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": bbox, **polygon, **points}],
    }
    return {f"train/{photo.name}": image, "train/_annotations.coco.json": json.dumps(document).encode()}


def coco_without_sizes(photo: Photo, image: bytes) -> Files:
    return coco(photo, image, sized=False)


def voc(photo: Photo, image: bytes) -> Files:
    left, top, right, bottom = photo.box
    box = f"<xmin>{left + 1}</xmin><ymin>{top + 1}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax>"
    size = f"<size><width>{photo.width}</width><height>{photo.height}</height><depth>3</depth></size>"
    shape = f"<object><name>thing</name><difficult>0</difficult><bndbox>{box}</bndbox></object>"
    text = f"<annotation><filename>{photo.name}</filename>{size}{shape}</annotation>"
    return {f"JPEGImages/{photo.name}": image, "Annotations/a.xml": text.encode()}


def labelme(photo: Photo, image: bytes) -> Files:
    flat = _polygon(photo)
    shape = {"label": "thing", "points": [flat[n : n + 2] for n in range(0, 8, 2)], "shape_type": "polygon"}
    sizes = {"imageWidth": photo.width, "imageHeight": photo.height}
    document = {"version": "5.4.1", "flags": {}, "shapes": [shape], "imagePath": photo.name, "imageData": None, **sizes}
    return {photo.name: image, "a.json": json.dumps(document).encode()}


def createml(photo: Photo, image: bytes) -> Files:
    left, top, right, bottom = photo.box
    place = {"x": (left + right) / 2, "y": (top + bottom) / 2, "width": right - left, "height": bottom - top}
    entry = {"image": photo.name, "annotations": [{"label": "thing", "coordinates": place}]}
    return {photo.name: image, "_annotations.createml.json": json.dumps([entry]).encode()}


def cvat(photo: Photo, image: bytes) -> Files:
    left, top, right, bottom = photo.box
    box = f'<box label="thing" xtl="{left}" ytl="{top}" xbr="{right}" ybr="{bottom}" occluded="0"/>'
    entry = f'<image id="0" name="{photo.name}" width="{photo.width}" height="{photo.height}">{box}</image>'
    text = f'<?xml version="1.0" encoding="utf-8"?><annotations><version>1.1</version><meta/>{entry}</annotations>'
    return {f"images/{photo.name}": image, "annotations.xml": text.encode()}


def datumaro(photo: Photo, image: bytes) -> Files:
    left, top, right, bottom = photo.box
    shape = {"id": 0, "type": "bbox", "label_id": 0, "bbox": [left, top, right - left, bottom - top], "attributes": {}}
    media = {"path": photo.name, "size": [photo.height, photo.width]}
    item = {"id": "a", "annotations": [shape], "attr": {}, "image": media}
    labels = {"label": {"labels": [{"name": "thing"}], "attributes": []}}
    document = {"info": {}, "categories": labels, "items": [item]}
    return {f"images/train/{photo.name}": image, "annotations/train.json": json.dumps(document).encode()}


def label_studio(photo: Photo, image: bytes) -> Files:
    left, top, right, bottom = photo.box
    value = {"x": left * 100 / photo.width, "y": top * 100 / photo.height, "rectanglelabels": ["thing"], "rotation": 0}
    value |= {"width": (right - left) * 100 / photo.width, "height": (bottom - top) * 100 / photo.height}
    sides = {"original_width": photo.width, "original_height": photo.height}
    result = {"value": value, "type": "rectanglelabels", "from_name": "l", "to_name": "i", **sides}
    task = {"id": 1, "data": {"image": f"/data/upload/{photo.name}"}, "annotations": [{"result": [result]}]}
    return {photo.name: image, "export.json": json.dumps([task]).encode()}


def csv_with_sizes(photo: Photo, image: bytes) -> Files:
    row = (f"images/{photo.name}", photo.width, photo.height, "thing", *photo.box)
    text = f"filename,width,height,class,xmin,ymin,xmax,ymax\n{','.join(map(str, row))}\n"
    return {f"images/{photo.name}": image, "annotations.csv": text.encode()}


def csv_without_sizes(photo: Photo, image: bytes) -> Files:
    row = (f"images/{photo.name}", "thing", *photo.box)
    text = f"filename,class,xmin,ymin,xmax,ymax\n{','.join(map(str, row))}\n"
    return {f"images/{photo.name}": image, "annotations.csv": text.encode()}


def csv_of_runs(photo: Photo, image: bytes) -> Files:
    """Kaggle's ``EncodedPixels``: pairs of start and length, column by column, from 1."""
    edges = np.flatnonzero(np.diff(photo.mask.T.reshape(-1), prepend=0, append=0))
    runs = " ".join(f"{start + 1} {stop - start}" for start, stop in edges.reshape(-1, 2).tolist())
    return {f"train/{photo.name}": image, "train.csv": f"ImageId,EncodedPixels\n{photo.name},{runs}\n".encode()}


def kitti(photo: Photo, image: bytes) -> Files:
    line = ("thing", 0.0, 0, 0.0, *map(float, photo.box), *[0.0] * 7)
    return {f"image_2/{photo.name}": image, "label_2/a.txt": " ".join(map(str, line)).encode()}


def supervisely(photo: Photo, image: bytes) -> Files:
    left, top, right, bottom = photo.box
    points = {"exterior": [[left, top], [right, bottom]], "interior": []}
    entry = {"classTitle": "thing", "geometryType": "rectangle", "points": points, "tags": []}
    document = {"description": "", "tags": [], "size": {"height": photo.height, "width": photo.width}}
    meta = {"classes": [{"title": "thing", "shape": "rectangle", "color": "#FF0000"}], "tags": []}
    return {
        "meta.json": json.dumps(meta).encode(),
        f"ds/img/{photo.name}": image,
        f"ds/ann/{photo.name}.json": json.dumps(document | {"objects": [entry]}).encode(),
    }


def metadata(photo: Photo, image: bytes) -> Files:
    left, top, right, bottom = photo.box
    objects = {"bbox": [[left, top, right - left, bottom - top]], "categories": ["thing"]}
    entry = {"file_name": photo.name, "width": photo.width, "height": photo.height, "objects": objects}
    return {f"train/{photo.name}": image, "train/metadata.jsonl": json.dumps(entry).encode()}


def pair_twice(photo: Photo, image: bytes, mask: bytes) -> Files:
    """Twice, since one pair of names may be chance."""
    second = photo.name.replace("a.", "b.", 1)
    return {f"images/{photo.name}": image, f"images/{second}": image, "masks/a.png": mask, "masks/b.png": mask}


def masks(photo: Photo, image: bytes) -> Files:
    return pair_twice(photo, image, encode(Image.fromarray(photo.mask), "PNG"))


def palette_masks(photo: Photo, image: bytes) -> Files:
    mask = Image.fromarray(photo.mask)
    mask.putpalette([0, 0, 0, 200, 100, 50])
    return pair_twice(photo, image, encode(mask, "PNG", bits=1))


FORMATS: Mapping[str, Callable[[Photo, bytes], Files]] = {
    each.__name__: each
    for each in (
        yolo, yolo_polygons, coco, coco_without_sizes, voc, labelme, createml, cvat, datumaro, label_studio,
        csv_with_sizes, csv_without_sizes, csv_of_runs, kitti, supervisely, metadata, masks, palette_masks,
    )
}  # fmt: skip


def make_set(root: Path, name: str, kind: str, orientation: int, frame: str) -> Path:
    """Writes the data set of a format: one photo of a kind, whose annotations count in ``frame``."""
    return fill(root, FORMATS[name](describe_photo(kind, orientation, frame), make_photo(kind, orientation)))


def find_red(image: Any) -> NDArray[np.bool_]:
    """The object's pixels in an image ``(3, H, W)`` of 0 … 255."""
    pixels = np.asarray(image).astype(int)
    return (pixels[0] > 130) & (pixels[1] < 110)
