"""Finds YOLO's images and names of classes: from ``data.yaml``, or the folders ``images`` and ``labels`` alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, SourceError, printable
from packstore.core.yamltext import is_yaml_null, load_yaml, parse_yaml_int
from packstore.sources.annotation_formats.parsing import as_list
from packstore.sources.beside import (
    clean_path,
    has_yolo_beside,
    holds_yolo_labels,
    is_file,
    is_folder,
    join,
    number_repeated_names,
    read_lines,
    read_text,
)
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.rows import in_packing_order
from packstore.sources.splits import find_split, find_split_folders
from packstore.sources.spread import find_spread, places_by_split
from packstore.sources.tree import Tree

_SPLITS = ("train", "val", "test")
_START, _NAMES = 1 << 16, 256
_DESCRIBES = (re.compile(rb"^(names|nc)\s*:", re.M), re.compile(rb"^(train|val|test)\s*:", re.M))
_CLASS_FILES = ("classes.txt", "labels/classes.txt", "obj.names", "data/obj.names")
_LABELS = "labels"
_DARKNET = "_darknet.labels"
_DATA_FOLDERS = ("", "data", "cfg", "build/darknet/x64/data")
_DATA = (re.compile(rb"^[ \t]*train[ \t]*=", re.M), re.compile(rb"^[ \t]*names[ \t]*=", re.M))
_DATA_SPLITS = ("train", "valid", "val", "test")
_MAX_YAML = 1 << 20
_MAX_CLASSES = 1 << 20
LEAST_LINES, _TOLERANCE = 3, 0.005
"""Fewest lines that tell something by their equal lengths."""


@dataclass
class YoloLayout:
    """Layout of a YOLO data set: places of its images, and its classes.

    Attributes:
        splits: Folders of images and lists of images (``.txt``) by split, in packing order; ``""`` without splits.
        classes: Names of the classes; None if no file has any.
        points: Number of keypoints of an object, and of numbers in each, 2 or 3; None without keypoints.
        files: Files that describe the data set.
        labels: The folder ``labels``, if it has the labels of the images in all folders; else None.
        is_mirrored: ``labels`` has a folder for each folder of images: ``train/a.jpg``, ``labels/train/a.txt``.
        notes: Facts for people about splits that no file lists, and those that are left out.
    """

    splits: dict[str, list[str]]
    classes: tuple[str, ...] | None = None
    points: tuple[int, int] | None = None
    files: list[str] = field(default_factory=list)
    labels: str | None = None
    is_mirrored: bool = False
    notes: list[str] = field(default_factory=list)


def find_descriptions(tree: Tree) -> list[str]:
    """Finds the files that describe the data set, by their first bytes.

    These are YAML files like ``data.yaml`` in the top folder, and Darknet's ``obj.data``. The latter may also lie in
    folders such as ``data``.
    """
    paths = []
    for folder in _DATA_FOLDERS:
        for name in tree.names(folder).ending(".data", ".yaml", ".yml"):
            path, lower = join(folder, name), name.lower()
            signs = _DATA if lower.endswith(".data") else ()
            signs = _DESCRIBES if not folder and lower.endswith((".yaml", ".yml")) else signs
            if signs and all(each.search(tree.first_bytes(path, _START)) for each in signs):
                paths.append(path)
    return paths


def find_image_folders(tree: Tree, named: bool = False) -> dict[str, list[str]]:
    """Finds folders of images by split, in packing order; ``{}`` if there are none. A folder counts in three cases:

    - A folder of labels is beside it: ``images/train``, ``train/images`` or ``images``.
    - A folder of labels has its name: ``train`` and ``labels/train``.
    - Labels are in it, and the classes have names in a file. ``named``: they have names elsewhere.

    The folder ``images/train2017`` is the split ``train``. If some folder in ``images`` has no name of a split, all of
    ``images`` is the split ``""``.
    """
    names = tree.names("").folders
    splits = find_split_folders(names)
    folders = {split: [f"{name}/images"] for name, split in splits.items()
               if is_folder(tree, f"{name}/images") and is_folder(tree, f"{name}/labels")}  # fmt: skip
    if not folders and is_folder(tree, "images") and is_folder(tree, "labels"):
        inside = tree.names("images").folders
        known = find_split_folders(inside)
        whole = not inside or len(known) < len(inside)
        folders = {"": ["images"]} if whole else {split: [f"images/{name}"] for name, split in known.items()}
    if not folders and is_file(tree, _CLASS_FILES[0]) and has_yolo_beside(tree, ""):
        folders = {"": [""]}  # as from LabelImg
    if not folders:
        mirrored = {split: [name] for name, split in splits.items() if is_folder(tree, f"{_LABELS}/{name}")}
        folders = mirrored if has_mirrored_labels(tree, mirrored) else {}
    if not folders:  # as Roboflow exports them for Darknet
        folders = {split: [name] for name, split in splits.items()
                   if (named or is_file(tree, f"{name}/{_DARKNET}")) and has_yolo_beside(tree, name)}  # fmt: skip
    return {split: folders[split] for split in in_packing_order(folders)}


def has_mirrored_labels(tree: Tree, splits: Mapping[str, list[str]]) -> bool:
    """Tells if ``labels`` has a folder for each folder of images, some with YOLO labels, and none has labels in it."""
    places = [place for folders in splits.values() for place in folders]
    if not places or any("images" in place.split("/") or place.endswith(".txt") for place in places):
        return False
    folders = [join(_LABELS, place) for place in places]
    return (
        all(is_folder(tree, folder) for folder in folders)
        and any(holds_yolo_labels(tree, folder) for folder in folders)
        and not any(has_yolo_beside(tree, place) for place in places)
    )


def find_scattered_images(tree: Tree, within: list[str] | None = None) -> dict[str, list[str]]:
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


def read_layout(tree: Tree) -> YoloLayout:
    """Reads the layout of a source from ``data.yaml`` or ``obj.data``.

    Without these, finds the folders of images. Reads names of classes from a YAML file or a list such as
    ``classes.txt``. The layout has no splits if there are no such folders.

    Raises :class:`SourceError` if these files are invalid, or the images they name are missing. Raises
    :class:`AmbiguousSourceError` for several descriptions.
    """
    files = find_descriptions(tree)
    if len(files) > 1:
        named = " and ".join(map(printable, files))
        raise AmbiguousSourceError(f"{tree.name()} has {named}, which both describe it: leave only one in the folder")
    if not files:
        layout = _read_undescribed(tree)
    elif files[0].lower().endswith(".data"):
        layout = _read_darknet(tree, files[0])
    else:
        document = _read_yaml(tree, files[0])
        places = {
            split: [(each, _resolve_place(tree, document.get("path"), each)) for each in as_list(document.get(split))]
            for split in _SPLITS
        }
        layout = _add_splits(tree, YoloLayout({}, *_parse_classes(tree, files[0], document), files), places)
    scattered = find_scattered_images(tree, [place for folders in layout.splits.values() for place in folders])
    layout.labels = _LABELS if scattered else None
    layout.is_mirrored = not scattered and has_mirrored_labels(tree, layout.splits)
    return layout


def _read_undescribed(tree: Tree) -> YoloLayout:
    """Finds the folders of images, and reads names of classes from a YAML file or a list such as ``classes.txt``."""
    layout = YoloLayout(find_scattered_images(tree) or find_image_folders(tree))
    yaml = [name for name in ("data.yaml", "dataset.yaml") if is_file(tree, name)]
    if yaml:
        return YoloLayout(layout.splits, *_parse_classes(tree, yaml[0], _read_yaml(tree, yaml[0])), yaml)
    beside = [join(place, _DARKNET) for places in layout.splits.values() for place in places]
    layout.files = [name for name in (*_CLASS_FILES, *beside) if is_file(tree, name)][:1]
    layout.classes = _read_names(tree, layout.files[0]) if layout.files else None
    return layout


def _add_splits(tree: Tree, layout: YoloLayout, wanted: Mapping[str, list[tuple[Any, str | None]]]) -> YoloLayout:
    """Adds splits to a layout and returns it. Leaves out a split whose images are missing, or are those of another
    split.

    Notes these. If no split is left, takes the usual folders instead: the paths may be of another machine. Does so only
    for ``obj.data``, or if all paths are absolute. Raises :class:`SourceError` if no images are found.

    Args:
        tree: The source.
        layout: Layout without splits; changed.
        wanted: By split, places as a file names them, each with its path, or None if it is missing.
    """
    file = layout.files[0]
    for split, places in wanted.items():
        paths = [place for _, place in places if place is not None]
        if len(paths) < len(places):
            missing = printable(str(next(value for value, place in places if place is None))[:80])
            layout.notes.append(f"the split {split} of {printable(file)} is left out: its {missing} is missing")
        elif paths in layout.splits.values():
            layout.notes.append(f"the split {split} of {printable(file)} is left out: it has the images of another")
        elif paths:
            layout.splits[split] = paths
    values = [value for places in wanted.values() for value, _ in places]
    # paths of another machine
    foreign = all(isinstance(value, str) and re.match(r"[/\\]|.:", value) for value in values)
    foreign |= file.lower().endswith(".data")
    if foreign and not layout.splits and (usual := find_image_folders(tree, named=True)):
        layout.splits, layout.notes = usual, []
    if not layout.splits:
        reasons = "; ".join(layout.notes) or "it names none"
        raise SourceError(f"{tree.name(file)}: its images are missing: {reasons}")
    _add_unlisted_splits(tree, layout, wanted)
    return layout


def _add_unlisted_splits(tree: Tree, layout: YoloLayout, wanted: Mapping[str, Any]) -> None:
    """Adds labelled splits in usual folders that a description does not list, with a note for each: also folders
    whose paths differ from a listed one in the part that is its split. Adds none beside lists of images, which may name
    images of any folder."""
    listed = [place for places in layout.splits.values() for place in places]
    if any(place.endswith(".txt") for place in listed):
        return
    for split, places in (*find_image_folders(tree, named=True).items(), *_find_siblings(tree, listed)):
        known = any(f"{one}/".startswith(f"{other}/") for one in places for other in listed)
        if split and not known and not wanted.get(split) and any(has_labels(tree, place) for place in places):
            layout.splits[split] = places
            listed += places
            layout.notes.append(
                f"{printable(layout.files[0])} does not list {printable(places[0])}, which has labels: it is the split "
                f"{split}"
            )
    layout.splits = {split: layout.splits[split] for split in in_packing_order(layout.splits)}


def _find_siblings(tree: Tree, listed: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields the folders whose paths differ from a listed one in the part that is a split, each with that part:
    ``images/extra`` beside ``images/train``."""
    for place in listed:
        parts = place.split("/")
        for number, part in enumerate(parts):
            for name in tree.names("/".join(parts[:number])).folders if find_split(part) else ():
                sibling = "/".join((*parts[:number], name, *parts[number + 1 :]))
                if not is_passed_over(name) and is_folder(tree, sibling):
                    yield name, [sibling]


def label_path(image: str) -> str:
    """Returns the path of the file of labels of an image: the last folder ``images`` becomes ``labels``.

    Without a folder ``images``, the file is beside the image.
    """
    before, separator, after = f"/{image}".rpartition("/images/")
    path = f"{before}/labels/{after}"[1:] if separator else image
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{name.rpartition('.')[0] or name}.txt"


def has_labels(tree: Tree, images: str) -> bool:
    """Tells if a folder of images has YOLO labels in it or beside it."""
    folder = label_path(join(images, "x.jpg")).rpartition("/")[0]
    if images and folder == images and holds_yolo_labels(tree, join(_LABELS, images)):
        return True
    return has_yolo_beside(tree, images) if folder == images else holds_yolo_labels(tree, folder)


def infer_points(rows: Sequence[Sequence[bytes]]) -> tuple[int, int] | None:
    """Finds the number of keypoints of an object, and of numbers in each, from the words of lines; None without
    keypoints.

    All of three or more lines must have as many numbers: a box within the image, and points in the box. Points have a
    third number if that is 0, 1 or 2 in all lines. Polygons of one length fit this only by chance.
    """
    count = len(rows[0]) - 5 if rows else 0
    if len(rows) < LEAST_LINES or count < 2 or any(len(words) != count + 5 for words in rows):
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


def _read_darknet(tree: Tree, file: str) -> YoloLayout:
    """Reads the layout from a file like ``obj.data``: lists of images by split, and a file of names.

    Its paths are relative to an unknown working directory. The longest end of a path that exists is used. A list that
    lies beside the file, such as ``test.txt``, also counts if some named list exists.

    Raises :class:`SourceError` if names of classes or images are missing.
    """
    lines = (line.partition("=") for _, line in read_lines(tree, file, paths=True) if line[0] not in "#;")
    values = {name.strip(): value.strip() for name, equals, value in lines if equals and value.strip()}
    names = _find_path_end(tree, values.get("names", ""))
    classes = () if names is None else _read_names(tree, names)
    if names is None or values.get("classes", str(len(classes))) != str(len(classes)):
        raise SourceError(
            f"{tree.name(file)}: found {len(classes)} names of classes in {printable(values.get('names', '')[:80])}, "
            f"expected {printable(values.get('classes', 'a file of names')[:40])}"
        )
    places: dict[str, list[tuple[Any, str | None]]] = {
        split: [(values[split], _find_path_end(tree, values[split]) if values[split].endswith(".txt") else None)]
        for split in _DATA_SPLITS
        if split in values
    }
    used = {place for listed_in in places.values() for _, place in listed_in}
    for split in _DATA_SPLITS:  # a list that exists, but is not named in the file
        beside = join(file.rpartition("/")[0], f"{split}.txt")
        if any(used) and split not in places and beside not in used and is_file(tree, beside):
            places[split] = [(beside, beside)]
    return _add_splits(tree, YoloLayout({}, classes, None, [file, names]), places)


def read_image_list(tree: Tree, file: str) -> Iterator[str]:
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


def _parse_classes(
    tree: Tree, file: str, document: dict[str, Any]
) -> tuple[tuple[str, ...] | None, tuple[int, int] | None]:
    """Parses names of classes and shape of keypoints from the content of ``data.yaml``. Either is None if it is
    missing.

    Adds numbers to names that occur twice. Raises :class:`SourceError` for invalid values, and for a number of names
    other than ``nc``.
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
    if points is None or each not in (2, 3) or not 1 <= points <= _NAMES:
        raise fail("kpt_shape", f"[points, 2] or [points, 3], and at most {_NAMES} points")
    return classes, (points, each)


def _read_names(tree: Tree, file: str) -> tuple[str, ...]:
    """Reads names of classes, one a line. Adds numbers to names that occur twice.

    Raises :class:`SourceError` for more than 1,048,576 names.
    """
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


def _find_path_end(tree: Tree, path: str) -> str | None:
    """Finds the longest end of a path that is an existing file; returns None if there is none."""
    parts = _split_path(path)
    return next((end for n in range(len(parts)) if is_file(tree, end := "/".join(parts[n:]))), None)


def _split_path(text: str) -> list[str]:
    """Splits a path into its parts and resolves ``..``. Drops each ``..`` that would lead out of the source."""
    parts: list[str] = []
    for part in text.replace("\\", "/").split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in ("", ".", ".."):
            parts.append(part)
    return parts
