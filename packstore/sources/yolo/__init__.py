"""YOLO (https://docs.ultralytics.com/datasets/): images, each with a ``.txt`` file that has a line for each object.

A line is ``class cx cy width height``, as fractions of the image's sides; or ``class x y x y …``, a polygon or an
oriented box; or, with ``kpt_shape`` in ``data.yaml``, a box followed by keypoints. Sides are those of the upright
image, after its EXIF orientation, as in Ultralytics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Boxes, Field, Image, Keypoints, Labels, Segments
from packstore.images.orientation import upright_size
from packstore.images.sniff import HeaderError
from packstore.sources.annotation_formats.shapes import bounding_box, box_from_centre
from packstore.sources.annotation_formats.voc import FORMAT as VOC
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import join, parse_finite, read_whole
from packstore.sources.coco.documents import find_annotation_files
from packstore.sources.rows import FileRow, FileRowSource, InTree
from packstore.sources.schema import RELATIVE
from packstore.sources.yolo.layout import (
    find_descriptions,
    find_image_folders,
    find_scattered_images,
    has_labels,
    read_image_list,
    read_layout,
)

# Limits of coordinates, as in Ultralytics; beyond them the sample is bad.
_LEAST, _MOST = -0.01, 1.01
# Words of a line with a box.
_BOX = 5
_PROBED, _LEAST_LINES, _MOST_LINES, _TOLERANCE = 64, 3, 4096, 0.005
_BOM = b"\xef\xbb\xbf"
_MAX_CLASS, _MAX_LABELS = 1 << 31, 64 << 20


class YoloSource(FileRowSource):
    """Source of the images that ``data.yaml`` names, or of the folders ``images`` with ``labels`` beside them.

    An image without a file of labels has 0 boxes. A split whose images are missing is left out. The columns:

    - ``boxes`` and ``labels``. The box of a polygon is the smallest around it.
    - ``keypoints``, if ``data.yaml`` has ``kpt_shape``, or :func:`_infer_points` finds them in the lines.
    - ``segments``, if a line has a polygon: its numbers as in the file, fractions of the sides; None for an object with
      a box.

    Opening raises :class:`SourceError` if no images are found. Listing raises it for an image that is listed twice. A
    box or polygon with a fraction below -0.01 or above 1.01 makes a bad sample.
    """

    kind = "yolo"
    left_images = "images that no list names"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._layout = read_layout(self.tree)
        if not self._layout.splits:
            raise SourceError(f"{printable(str(path))} has no data.yaml, and no folders images and labels")
        if self._layout.points is None and (found := _infer_points([*islice(self._label_lines(_PROBED), _MOST_LINES)])):
            self._layout.points = found
            said = f"no file has kpt_shape; by the lines, each box has {found[0]} keypoints of {found[1]} numbers"
            self._layout.notes.append(said)
        described = f"{', '.join(map(printable, self._layout.files))}; " if self._layout.files else ""
        self.evidence = f"{described}images in {', '.join(map(printable, self._layout.places))} with labels beside them"

    def splits(self) -> Sequence[str]:
        """Returns the splits in packing order. Lists all images at the first call.

        Raises :class:`SourceError` for an image in two splits.
        """
        return self._checked_splits

    def fields(self) -> Mapping[str, Field]:
        """Returns the field of each column. Without keypoints, reads files of labels up to the first with a polygon."""
        columns: dict[str, Field] = {
            "image": Image(),
            "boxes": Boxes(),
            "labels": Labels(self._layout.classes, of="boxes"),
        }
        if self._layout.points:
            points, numbers = self._layout.points
            columns["keypoints"] = Keypoints(numbers, of="boxes", points=points)
        elif self._has_polygons:
            columns["segments"] = Segments(of="boxes", fractions=True)
        return columns

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each image of a split, with the path of its file of labels. This file may be missing."""
        files = ((image, InTree(self._layout.label_path(image), optional=True)) for image in self._list_images(split))
        yield from self.skip_repeated(split, (FileRow(image, {"labels": file}) for image, file in files))

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads an image and parses its labels. Boxes and keypoints are in pixels, polygons as in the file.

        Raises :class:`ValueError` for an invalid line, and for an image of unknown size.
        """
        values = dict(super().read_values(ref))
        try:
            width, height = upright_size(values["image"])
        except HeaderError as error:
            raise ValueError(error.reason) from error
        with self.name_annotation_file(ref):
            values |= _parse_label_lines(values["labels"] or b"", width, height, self._layout.points)
        if not self._has_polygons:
            del values["segments"]
        return values | {RELATIVE: True}

    def annotation_frame(self, kind: str) -> str | None:
        """Returns ``upright`` for JPEG and TIFF: Ultralytics swaps the sides of a JPEG by its EXIF orientation
        (``exif_size`` in ``ultralytics/data/utils.py``), and all its readers turn a TIFF. OpenCV, with which it reads
        images, turns other kinds only in recent versions."""
        return "upright" if kind in ("jpeg", "tiff") else None

    def describing_files(self) -> Iterable[str]:
        """Returns the files that describe the data set, and the lists of images."""
        return [*self._layout.files, *(place for place in self._layout.places if place.endswith(".txt"))]

    def notes(self) -> tuple[str, ...]:
        """Adds notes about splits that are left out."""
        return (*super().notes(), *self._layout.notes)

    def _list_images(self, split: str) -> Iterator[str]:
        """Yields the paths of the images of a split, from lists and folders."""
        for place in self._layout.splits[split]:
            if place.endswith(".txt"):
                yield from read_image_list(self.tree, place)
                continue
            for folder, listing in self.tree.walk(place, self.tree.above, None, self.options.skip_bad):
                yield from (join(folder, name) for name in listing.images)

    @cached_property
    def _checked_splits(self) -> tuple[str, ...]:
        """Splits in packing order, after a search for images in two of them."""
        seen: dict[str, str] = {}
        for split in self._layout.splits:
            for image in self._list_images(split):
                if seen.setdefault(image, split) != split:
                    raise SourceError(
                        f"{self.tree.name(image)} is in {printable(seen[image])} and again in {printable(split)}"
                    )
        return tuple(self._layout.splits)

    @cached_property
    def _has_polygons(self) -> bool:
        """True if a line has a polygon; always False with keypoints."""
        return not self._layout.points and any(len(words) > _BOX for words in self._label_lines())

    def _label_lines(self, most: int | None = None) -> Iterator[list[bytes]]:
        """Yields the words of each line in the files of labels of the first ``most`` images."""
        for image in islice(chain.from_iterable(map(self._list_images, self._layout.splits)), most):
            with suppress(SourceError):  # it is missing, or reported as a bad sample when it is read
                text = read_whole(self.tree, self._layout.label_path(image), _MAX_LABELS)
                yield from filter(None, map(bytes.split, text.removeprefix(_BOM).splitlines()))


def _infer_points(rows: Sequence[Sequence[bytes]]) -> tuple[int, int] | None:
    """Returns the number of keypoints of an object, and of numbers in each, by the words of lines; or None."""
    count = len(rows[0]) - _BOX if rows else 0
    if len(rows) < _LEAST_LINES or count < 2 or any(len(words) != count + _BOX for words in rows):
        return None
    try:
        values = np.array([[float(word) for word in words[1:]] for words in rows])
    except ValueError:
        return None
    centre, half = values[:, None, :2], values[:, None, 2:4] / 2 + _TOLERANCE
    # A box within the image and points within the box: polygons of one length fit that only by chance.
    if (np.abs(centre - 0.5) + half > 0.5 + 3 * _TOLERANCE).any():
        return None
    for numbers in (3, 2):
        if count % numbers:
            continue
        points = values[:, 4:].reshape(len(values), -1, numbers)
        visible: NDArray[np.bool_] = np.all(points[..., 2:], axis=-1, keepdims=True)
        # A third number is the visibility.
        flagged = np.isin(points[..., 2:], (0, 1, 2)).all()
        if flagged and (~visible | (np.abs(points[..., :2] - centre) <= half)).all():
            return count // numbers, numbers
    return None


def _parse_label_lines(text: bytes, width: int, height: int, points: tuple[int, int] | None) -> dict[str, Any]:
    """Parses a file of labels to ``boxes``, ``labels``, ``segments`` and, with ``points``, ``keypoints``, by the sides
    of the upright image.
    """
    sides = (width, height)
    values: dict[str, list[Any]] = {"boxes": [], "labels": [], **({"keypoints": []} if points else {}), "segments": []}
    for number, line in enumerate(text.removeprefix(_BOM).splitlines(), 1):
        words = line.split()
        if not words:
            continue
        try:
            label, *places = [parse_finite(word.decode("ascii")) for word in words]
            if not 0 <= label < _MAX_CLASS or label != int(label):
                raise ValueError(f"the class is {label}")
            _check_count(len(places), points)
            is_polygon = points is None and len(places) > 4
            outline = places if is_polygon else places[:4]
            outside = next((place for place in outline if not _LEAST <= place <= _MOST), None)
            if outside is not None:
                raise ValueError(f"found {outside}; expected fractions of the image's sides, 0 to 1")
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        corners = bounding_box(outline) if is_polygon else box_from_centre(*outline)
        # Boxes and keypoints are in pixels, polygons stay fractions.
        values["boxes"].append([place * side for place, side in zip(corners, sides * 2, strict=True)])
        values["labels"].append(int(label))
        values["segments"].append([places] if is_polygon else None)
        if points:
            rows = [places[n : n + points[1]] for n in range(4, len(places), points[1])]
            values["keypoints"].append([[row[0] * width, row[1] * height, *row[2:]] for row in rows])
    return values


def _check_count(count: int, points: tuple[int, int] | None) -> None:
    """Raises :class:`ValueError` if a line cannot have ``count`` numbers after the class."""
    if count != 4 + (points[0] * points[1] if points else 0) and (points or count < 6 or count % 2):
        kinds = f"{points[0]} keypoints of {points[1]}" if points else "a polygon of 6 or more"
        raise ValueError(f"{count} numbers after the class; expected a box of 4, or {kinds} (kpt_shape in data.yaml)")


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises YOLO in a folder or archive: a file like ``data.yaml``, or labels in or beside a folder of images."""
    tree = open_tree(path)
    if tree is None:
        return Certainty.NO
    places = (place for places in find_image_folders(tree).values() for place in places)
    labelled = any(has_labels(tree, place) for place in places) or find_scattered_images(tree)
    if not find_descriptions(tree) and not labelled:
        return Certainty.NO
    others = find_annotation_files(tree) or VOC.find(tree)
    # Annotations of COCO or Pascal VOC and those of YOLO may each cover only some images.
    return Certainty.PARTIAL if others else Certainty.CERTAIN


KIND = Kind("yolo", "YOLO: images and labels, with data.yaml", _recognise, YoloSource, in_objects=True)
