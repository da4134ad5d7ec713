"""YOLO (https://docs.ultralytics.com/datasets/): images, each with a ``.txt`` file that has a line for each object.

A line is ``class cx cy width height``, as fractions of the image's sides; or ``class x y x y …``, a polygon or an
oriented box; or, with ``kpt_shape`` in ``data.yaml``, a box followed by keypoints. Sides are those of the upright
image, after its EXIF orientation, as in Ultralytics.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, SourceError, printable
from packstore.core.fields import Boxes, Field, Image, Json, Keypoints, Labels
from packstore.core.yamltext import is_yaml_null, load_yaml, parse_yaml_int
from packstore.images.orientation import upright_size
from packstore.images.sniff import HeaderError
from packstore.sources.annotation_formats.parsing import as_list
from packstore.sources.annotation_formats.shapes import bounding_box, box_from_centre
from packstore.sources.annotation_formats.voc import FORMAT as VOC
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import (
    clean_path,
    has_yolo_beside,
    holds_yolo_labels,
    is_file,
    is_folder,
    join,
    number_repeated_names,
    parse_finite,
    read_lines,
    read_text,
    read_whole,
)
from packstore.sources.coco.documents import find_annotation_files
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.rows import FileRow, FileRowSource, InTree, in_packing_order
from packstore.sources.schema import RELATIVE
from packstore.sources.splits import find_split, find_split_folders, lower_known_split
from packstore.sources.spread import find_spread, places_by_split
from packstore.sources.tree import Tree

# Limits of coordinates, as in Ultralytics; beyond them the sample is bad.
_LEAST, _MOST = -0.01, 1.01
# Words of a line with a box.
_BOX = 5
_PROBED, _LEAST_LINES, _MOST_LINES, _TOLERANCE = 64, 3, 4096, 0.005
_BOM = b"\xef\xbb\xbf"
_MAX_CLASS, _MAX_CLASSES, _MAX_POINTS = 1 << 31, 1 << 20, 256
_MAX_LABELS, _MAX_YAML, _START = 64 << 20, 1 << 20, 1 << 16
_SPLITS = ("train", "val", "valid", "test")
_DESCRIBES = (re.compile(rb"^\s*(names|nc)\s*[:=]", re.M), re.compile(rb"^\s*(train|val|valid|test)\s*[:=]", re.M))
_DESCRIBED = (".yaml", ".yml", ".data")
_CLASS_FILES = ("classes.txt", "labels/classes.txt", "obj.names", "data/obj.names")
_LABELS, _DARKNET, _NAMES = "labels", "_darknet.labels", "file of names"
_IN_IMAGES = re.compile(r"^((?:.*/)?)images((?:_[^/]*)?/)")


@dataclass
class YoloLayout:
    """Layout of a YOLO data set: places of its images, and its classes.

    Attributes:
        splits: Folders of images and lists of images (``.txt``) by split, in packing order; ``""`` without splits.
        classes: Names of the classes; None if no file has any.
        points: Number of keypoints of an object, and of numbers in each, 2 or 3; None without keypoints.
        files: Files that describe the data set.
        is_scattered: The folder ``labels`` has the labels of the images in all folders.
        is_mirrored: ``labels`` has a folder for each folder of images: ``train/a.jpg``, ``labels/train/a.txt``.
        notes: Facts for people about splits that are left out.
    """

    splits: dict[str, list[str]]
    classes: tuple[str, ...] | None = None
    points: tuple[int, int] | None = None
    files: list[str] = field(default_factory=list)
    is_scattered: bool = False
    is_mirrored: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def places(self) -> list[str]:
        """Folders and lists of images of all splits."""
        return [place for places in self.splits.values() for place in places]

    def label_path(self, image: str) -> str:
        """Returns the path of the file of labels of an image."""
        path = _label_path(image)
        if self.is_scattered:
            return join(_LABELS, path.rpartition("/")[2])
        return join(_LABELS, path) if self.is_mirrored else path


class YoloSource(FileRowSource):
    """Source of the images that ``data.yaml`` names, or of the folders ``images`` with ``labels`` beside them.

    An image without a file of labels has 0 boxes. A split whose images are missing is left out. The columns:

    - ``boxes`` and ``labels``. The box of a polygon is the smallest around it.
    - ``keypoints``, if ``data.yaml`` has ``kpt_shape``, or :func:`_infer_points` finds them in the lines.
    - ``polygons``, if a line has one: its numbers as in the file, fractions of the sides; None for an object with a
      box.

    Opening raises :class:`SourceError` if no images are found. Listing raises it for an image that is listed twice. A
    box or polygon with a fraction below -0.01 or above 1.01 makes a bad sample.
    """

    kind = "yolo"
    left_images = "images that no list names"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._layout = _read_layout(self.tree)
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
            columns["polygons"] = Json(shapes=True)
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
            del values["polygons"]
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
        """Yields the paths of the images of a split, from lists and folders. Raises :class:`SourceError` for a path
        out of the source."""
        for place in self._layout.splits[split]:
            if place.endswith(".txt"):
                yield from _read_image_list(self.tree, place)
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
        """True if a line has a polygon; always False with keypoints.

        Reads files of labels up to the first such line. Skips files that are missing or unreadable.
        """
        return not self._layout.points and any(len(words) > _BOX for words in self._label_lines())

    def _label_lines(self, most: int | None = None) -> Iterator[list[bytes]]:
        """Yields the words of each line in the files of labels of the first ``most`` images."""
        for image in islice(chain.from_iterable(map(self._list_images, self._layout.splits)), most):
            with suppress(SourceError):  # it is missing, or reported as a bad sample when it is read
                text = read_whole(self.tree, self._layout.label_path(image), _MAX_LABELS)
                yield from filter(None, map(bytes.split, text.removeprefix(_BOM).splitlines()))


def _infer_points(rows: Sequence[Sequence[bytes]]) -> tuple[int, int] | None:
    """Finds the number of keypoints of an object, and of numbers in each, from the words of lines; None without
    keypoints.

    All of three or more lines must have as many numbers: a box within the image, and points in the box. Points have a
    third number if that is 0, 1 or 2 in all lines. Polygons of one length fit this only by chance.
    """
    count = len(rows[0]) - _BOX if rows else 0
    if len(rows) < _LEAST_LINES or count < 2 or any(len(words) != count + _BOX for words in rows):
        return None
    try:
        values = np.array([[float(word) for word in words[1:]] for words in rows])
    except ValueError:
        return None
    centre, half = values[:, None, :2], values[:, None, 2:4] / 2 + _TOLERANCE
    if (np.abs(centre - 0.5) + half > 0.5 + 3 * _TOLERANCE).any():
        return None
    for numbers in (3, 2):
        if count % numbers:
            continue
        points = values[:, 4:].reshape(len(values), -1, numbers)
        visible: NDArray[np.bool_] = np.all(points[..., 2:], axis=-1, keepdims=True)
        flagged = np.isin(points[..., 2:], (0, 1, 2)).all()
        if flagged and (~visible | (np.abs(points[..., :2] - centre) <= half)).all():
            return count // numbers, numbers
    return None


def _parse_label_lines(text: bytes, width: int, height: int, points: tuple[int, int] | None) -> dict[str, Any]:
    """Parses a file of labels to ``boxes``, ``labels``, ``polygons`` and, with ``points``, ``keypoints``.

    Boxes and keypoints are in pixels, polygons stay fractions. An object with a box has None as polygon.

    ``width`` and ``height`` are those of the upright image. Raises :class:`ValueError` with the number of a wrong line.
    """
    sides = (width, height)
    values: dict[str, list[Any]] = {"boxes": [], "labels": [], **({"keypoints": []} if points else {}), "polygons": []}
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
        values["boxes"].append([place * side for place, side in zip(corners, sides * 2, strict=True)])
        values["labels"].append(int(label))
        values["polygons"].append(places if is_polygon else None)
        if points:
            rows = [places[n : n + points[1]] for n in range(4, len(places), points[1])]
            values["keypoints"].append([[row[0] * width, row[1] * height, *row[2:]] for row in rows])
    return values


def _check_count(count: int, points: tuple[int, int] | None) -> None:
    """Raises :class:`ValueError` if a line cannot have ``count`` numbers after the class."""
    if count != 4 + (points[0] * points[1] if points else 0) and (points or count < 6 or count % 2):
        kinds = f"{points[0]} keypoints of {points[1]}" if points else "a polygon of 6 or more"
        raise ValueError(f"{count} numbers after the class; expected a box of 4, or {kinds} (kpt_shape in data.yaml)")


def _find_descriptions(tree: Tree) -> list[str]:
    """Finds files like ``data.yaml`` at the top, else Darknet's ``obj.data`` there or in ``data``, by their first
    bytes."""
    names = (
        name for folder in ("", "data") for name in map(partial(join, folder), tree.names(folder).ending(*_DESCRIBED))
    )
    found = [name for name in names if all(each.search(tree.first_bytes(name, _START)) for each in _DESCRIBES)]
    return [name for name in found if not name.endswith(".data") and "/" not in name] or found


def _find_image_folders(tree: Tree, named: bool = False) -> dict[str, list[str]]:
    """Finds folders of images by split, in packing order; ``{}`` if there are none. A folder counts in four cases:

    - A folder of labels is beside it: ``images/train``, ``train/images``, ``images``, or ``images_a`` and ``labels_a``.
    - Labels are at the top with the images, and ``classes.txt``, as from LabelImg.
    - A folder of labels has its name: ``train`` and ``labels/train``.
    - Labels are in it, and names of classes as Roboflow exports them for Darknet; or ``named``: they are elsewhere.

    The folder ``images/train2017`` is the split ``train``. If some folder in ``images`` has no name of a split, all of
    ``images`` is the split ``""``.
    """
    splits = find_split_folders(tree.names("").folders)
    folders = {
        split: [f"{name}/images"]
        for name, split in splits.items()
        if is_folder(tree, f"{name}/images") and is_folder(tree, f"{name}/labels")
    }
    if not folders and is_folder(tree, "images") and is_folder(tree, _LABELS):
        inside = tree.names("images").folders
        known = find_split_folders(inside)
        whole = not inside or len(known) < len(inside)
        folders = {"": ["images"]} if whole else {split: [f"images/{name}"] for name, split in known.items()}
    if not folders:
        for name in tree.names("").folders:
            if name.startswith("images_") and is_folder(tree, name.replace("images", _LABELS, 1)):
                folders.setdefault(find_split(name), []).append(name)
    if not folders and is_file(tree, _CLASS_FILES[0]) and has_yolo_beside(tree, ""):
        folders = {"": [""]}
    if not folders:
        mirrored = {name: split for name, split in splits.items() if is_folder(tree, f"{_LABELS}/{name}")}
        folders = {split: [name] for name, split in mirrored.items()} if _has_mirrored_labels(tree, [*mirrored]) else {}
    if not folders:
        own = [name for name in splits if named or is_file(tree, f"{name}/{_DARKNET}")]
        folders = {splits[name]: [name] for name in own if has_yolo_beside(tree, name)}
    return {split: folders[split] for split in in_packing_order(folders)}


def _has_mirrored_labels(tree: Tree, places: Sequence[str]) -> bool:
    """Tells if ``labels`` has a folder for each folder of images, some with YOLO labels, and none has labels in it."""
    if not places or any("images" in place.split("/") or place.endswith(".txt") for place in places):
        return False
    folders = [join(_LABELS, place) for place in places]
    return (
        all(is_folder(tree, folder) for folder in folders)
        and any(holds_yolo_labels(tree, folder) for folder in folders)
        and not any(has_yolo_beside(tree, place) for place in places)
    )


def _find_scattered_images(tree: Tree, within: list[str] | None = None) -> dict[str, list[str]]:
    """Finds the folders of images by split, if the labels of all images lie in the one folder ``labels``.

    Returns ``{}`` otherwise, and if the folder ``images`` itself has some of the images. Looks only at the folders
    ``within``; None looks at all. Raises :class:`AmbiguousSourceError` if several groups of folders have the images.
    """
    names = tree.names(_LABELS)
    stems = [name[:-4] for name in names.ending(".txt") if f"{_LABELS}/{name}" not in _CLASS_FILES]
    if names.folders or not stems or not holds_yolo_labels(tree, _LABELS):
        return {}
    there = {name.rpartition(".")[0] for name in tree.names("images").ending(*IMAGE_SUFFIXES)}
    if there.intersection(stems):
        return {}
    return places_by_split(find_spread(tree, stems, _LABELS, stems=True, within=within) or ())


def _read_layout(tree: Tree) -> YoloLayout:
    """Reads the layout of a source from ``data.yaml``. Without it, finds the folders of images, and reads names of
    classes from ``classes.txt``. The layout has no splits if there are no such folders.

    Raises :class:`SourceError` if these files are invalid, or the images they name are missing. Raises
    :class:`AmbiguousSourceError` for several descriptions.
    """
    files = _find_descriptions(tree)
    if len(files) > 1:
        named = " and ".join(map(printable, files))
        raise AmbiguousSourceError(f"{tree.name()} has {named}, which both describe it: leave only one in the folder")
    if files:
        document = (_read_darknet if files[0].endswith(".data") else _read_yaml)(tree, files[0])
        layout = YoloLayout({}, *_parse_classes(tree, files[0], document), [*files, *document.pop(_NAMES, [])])
        _add_splits(tree, layout, document)
    else:
        layout = YoloLayout(_find_scattered_images(tree) or _find_image_folders(tree))
        beside = (join(place, _DARKNET) for place in layout.places)
        names = ("data.yaml", "dataset.yaml", *_CLASS_FILES, *beside)
        layout.files = [name for name in names if is_file(tree, name)][:1]
        if layout.files and layout.files[0].endswith(".yaml"):  # without splits
            document = _read_yaml(tree, layout.files[0])
            layout.classes, layout.points = _parse_classes(tree, layout.files[0], document)
        elif layout.files:
            layout.classes = _read_names(tree, layout.files[0])
    layout.is_scattered = bool(_find_scattered_images(tree, layout.places))
    layout.is_mirrored = not layout.is_scattered and _has_mirrored_labels(tree, layout.places)
    return layout


def _add_splits(tree: Tree, layout: YoloLayout, document: Mapping[str, Any]) -> None:
    """Adds the splits of ``data.yaml`` to a layout. Leaves out a split whose images are missing, or are those of
    another split, with a note. Raises :class:`SourceError` if no images are found."""
    file = printable(layout.files[0])
    wanted = {split: as_list(document.get(split)) for split in _SPLITS}
    for split, values in wanted.items():
        places = {str(value): _resolve_place(tree, document.get("path"), value) for value in values}
        found = [place for place in places.values() if place is not None]
        if len(found) < len(places):
            missing = printable(next(value for value, place in places.items() if place is None)[:80])
            layout.notes.append(f"the split {split} of {file} is left out: its {missing} is missing")
        elif found in layout.splits.values():
            layout.notes.append(f"the split {split} of {file} is left out: it has the images of another")
        elif found:
            layout.splits[split] = found
    absolute = all(re.match(r"[/\\]|.:", str(value)) for values in wanted.values() for value in values)
    # Paths of another machine: its folders may be here under their usual names.
    if absolute and not layout.splits and (usual := _find_image_folders(tree, named=True)):
        layout.splits, layout.notes = usual, []
    if not layout.splits:
        reasons = "; ".join(layout.notes) or "it names none"
        raise SourceError(f"{tree.name(layout.files[0])}: its images are missing: {reasons}")
    if not any(place.endswith(".txt") for place in layout.places):  # which may name images of any folder
        _add_unlisted_splits(tree, layout, document)


def _add_unlisted_splits(tree: Tree, layout: YoloLayout, document: Mapping[str, Any]) -> None:
    """Adds labelled folders that ``data.yaml`` does not list, with a note for each, if their paths differ from a listed
    one in the part that is its split: ``images/extra`` beside ``images/train``. Splits that it does list stay."""
    for parts in [place.split("/") for place in layout.places]:
        for number, part in enumerate(parts):
            for name in tree.names("/".join(parts[:number])).folders if find_split(part) else ():
                beside, split = "/".join((*parts[:number], name, *parts[number + 1 :])), lower_known_split(name)
                if document.get(split) or beside in layout.places or not is_folder(tree, beside):
                    continue
                if _has_labels(tree, beside):
                    layout.splits[split] = [beside]
                    said = f"does not list {printable(beside)}, which has labels: it is the split {printable(split)}"
                    layout.notes.append(f"{printable(layout.files[0])} {said}")
    layout.splits = {split: layout.splits[split] for split in in_packing_order(layout.splits)}


def _label_path(image: str) -> str:
    """Returns the usual path of the file of labels of an image: the last folder ``images`` becomes ``labels``, and
    ``images_a`` becomes ``labels_a``.

    Without a folder ``images``, the file is beside the image.
    """
    path = _IN_IMAGES.sub(rf"\1{_LABELS}\2", image)
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{name.rpartition('.')[0] or name}.txt"


def _has_labels(tree: Tree, images: str) -> bool:
    """Tells if a folder of images has YOLO labels in it or beside it."""
    folder = _label_path(join(images, "x.jpg")).rpartition("/")[0]
    if images and folder == images and holds_yolo_labels(tree, join(_LABELS, images)):
        return True
    return has_yolo_beside(tree, images) if folder == images else holds_yolo_labels(tree, folder)


def _read_image_list(tree: Tree, file: str) -> Iterator[str]:
    """Yields the paths of the images of a list. Paths are relative to the list's folder or to the source.

    Cuts paths of another machine: the first image that exists without its leading folders decides how many folders are
    cut. As many are cut from all later paths. The images may be missing.

    Raises :class:`SourceError` for a path out of the source.
    """
    beside = file.rpartition("/")[0]
    drop, base = -1, ""
    for number, line in read_lines(tree, file, paths=True):
        try:
            path = clean_path(line.lstrip("/"))
        except ValueError as error:
            raise SourceError(f"{tree.name(file)}, line {number} {error}") from None
        parts = path.split("/")
        if drop < 0:
            choices = [(count, folder) for count in range(len(parts)) for folder in dict.fromkeys((beside, ""))]
            there = (each for each in choices if is_file(tree, join(each[1], "/".join(parts[each[0] :]))))
            drop, base = next(there, (-1, beside))
        yield join(base, "/".join(parts[max(0, drop) :]))


def _read_yaml(tree: Tree, file: str) -> dict[str, Any]:
    """Reads a file like ``data.yaml`` to a dictionary. Raises :class:`SourceError` for any other content, and over 1
    MiB."""
    text = read_text(tree, file, _MAX_YAML)
    try:
        document = load_yaml(text)
    except ValueError as error:
        raise SourceError(f"{tree.name(file)} {error}") from None
    if not isinstance(document, dict):
        raise SourceError(f"{tree.name(file)} holds no names and values")
    return {name: None if is_yaml_null(value) else value for name, value in document.items()}


def _read_darknet(tree: Tree, file: str) -> dict[str, Any]:
    """Reads a file like Darknet's ``obj.data`` as the content of a ``data.yaml``. Its paths begin at an unknown folder:
    the longest end of each that exists counts. Raises :class:`SourceError` without a file of names."""
    lines = (line.partition("=") for _, line in read_lines(tree, file, paths=True))
    said = {name.strip(): value.strip() for name, _, value in lines}

    def find(name: str) -> str | None:
        parts = _split_path(said.get(name, ""))
        return next((end for n in range(len(parts)) if is_file(tree, end := "/".join(parts[n:]))), said.get(name))

    names = find("names") or ""
    if not is_file(tree, names):
        raise SourceError(f"{tree.name(file)}: its file of names is missing: {printable(names[:80])}")
    content: dict[str, Any] = {"names": [*_read_names(tree, names)], "nc": said.get("classes"), _NAMES: [names]}
    return content | {split: find(split) for split in _SPLITS}


def _parse_classes(
    tree: Tree, file: str, document: dict[str, Any]
) -> tuple[tuple[str, ...] | None, tuple[int, int] | None]:
    """Parses names of classes and shape of keypoints from the content of ``data.yaml``. Either is None if it is
    missing.

    Adds numbers to names that occur twice. Raises :class:`SourceError` for invalid values.
    """

    def fail(name: str, expected: str) -> SourceError:
        found = printable(str(document.get(name))[:40])
        return SourceError(f"{tree.name(file)}: {name} is {found}; expected {expected}")

    names, count, shape = document.get("names"), document.get("nc"), document.get("kpt_shape")
    if isinstance(names, dict):
        by_number = {parse_yaml_int(number): name for number, name in names.items()}
        names = [by_number.get(number) for number in range(len(names))]
    if names is not None and (not isinstance(names, list) or not all(isinstance(each, str) and each for each in names)):
        raise fail("names", "a list of names, or names by number from 0 without gaps")
    if names is not None and not is_yaml_null(count) and parse_yaml_int(count) != len(names):
        raise fail("nc", f"{len(names)}, the number of names")
    classes = number_repeated_names(names, range(len(names))) if names else None
    if shape is None:
        return classes, None
    points, each = map(parse_yaml_int, shape) if isinstance(shape, list) and len(shape) == 2 else (None, None)
    if points is None or each not in (2, 3) or not 1 <= points <= _MAX_POINTS:
        raise fail("kpt_shape", f"[points, 2] or [points, 3], and at most {_MAX_POINTS} points")
    return classes, (points, each)


def _read_names(tree: Tree, file: str) -> tuple[str, ...]:
    """Reads names of classes, one a line. Adds numbers to names that occur twice."""
    names = [line for _, line in islice(read_lines(tree, file), _MAX_CLASSES + 1)]
    if len(names) > _MAX_CLASSES:
        raise SourceError(f"{tree.name(file)} has more than {_MAX_CLASSES:,} names of classes")
    return number_repeated_names(names, range(len(names)))


def _resolve_place(tree: Tree, path: Any, value: Any) -> str | None:
    """Finds a folder or list that ``data.yaml`` names, relative to its ``path`` or to the source. Returns None if it is
    missing.

    An absolute path, or one out of the source, may be of another machine. Tries its ends of two names or more, the
    longest first.
    """
    if not isinstance(value, str):
        return None
    absolute = value.startswith("/") or value[1:2] == ":"
    parts = _split_path(value)
    before = [] if absolute or not isinstance(path, str) else _split_path(path)
    last = len(before) + (max(0, len(parts) - 2) if absolute or value.startswith("..") else 0)
    places = ["/".join([*before, *parts][start:]) for start in range(last + 1)]
    places = [place for place in places if place or not absolute]
    return next(
        (each for each in places if is_folder(tree, each) or (each.endswith(".txt") and is_file(tree, each))), None
    )


def _split_path(text: str) -> list[str]:
    """Splits a path into its parts and resolves ``..``. Drops each ``..`` that would lead out of the source."""
    parts: list[str] = []
    for part in text.replace("\\", "/").split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in ("", ".", ".."):
            parts.append(part)
    return parts


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises YOLO in a folder or archive: a file like ``data.yaml``, or labels in or beside a folder of images.

    - ``CERTAIN`` if there are no other annotations.
    - ``PARTIAL`` if annotations of COCO or Pascal VOC are there too: each may cover only some images.
    - ``NO`` for other paths.

    Raises :class:`AmbiguousSourceError` if it is unclear which folders hold the images of a folder ``labels``.
    """
    tree = open_tree(path)
    if tree is None:
        return Certainty.NO
    places = (place for places in _find_image_folders(tree).values() for place in places)
    labelled = any(_has_labels(tree, place) for place in places) or _find_scattered_images(tree)
    if not _find_descriptions(tree) and not labelled:
        return Certainty.NO
    others = find_annotation_files(tree) or VOC.find(tree)
    return Certainty.PARTIAL if others else Certainty.CERTAIN


KIND = Kind("yolo", "YOLO: images and labels, with data.yaml", _recognise, YoloSource, in_objects=True)
