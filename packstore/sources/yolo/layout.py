"""Finds the images, labels and classes of a YOLO data set, from its description or from usual folders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from packstore.core.errors import AmbiguousSourceError, SourceError, printable
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
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.rows import in_packing_order
from packstore.sources.splits import find_split, find_split_folders, lower_known_split
from packstore.sources.spread import find_spread, places_by_split
from packstore.sources.tree import Tree
from packstore.sources.yamltext import is_yaml_null, load_yaml, parse_yaml_int

_MAX_CLASSES, _MAX_POINTS = 1 << 20, 256
_MAX_YAML, _START = 1 << 20, 1 << 16
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


def find_descriptions(tree: Tree) -> list[str]:
    """Finds files like ``data.yaml`` at the top, else Darknet's ``obj.data`` there or in ``data``, by their first
    bytes."""
    names = (
        name for folder in ("", "data") for name in map(partial(join, folder), tree.names(folder).ending(*_DESCRIBED))
    )
    found = [name for name in names if all(each.search(tree.first_bytes(name, _START)) for each in _DESCRIBES)]
    return [name for name in found if not name.endswith(".data") and "/" not in name] or found


def find_image_folders(tree: Tree, named: bool = False) -> dict[str, list[str]]:
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
    """Tells if ``labels`` has a folder of labels for each folder of images, and no labels directly in it."""
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

    Looks only at the folders ``within``, or at all for None. Returns ``{}`` if the labels lie elsewhere, or the folder
    ``images`` itself has some of the images. Raises :class:`AmbiguousSourceError` if several groups of folders have the
    images.
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
    """Reads the layout of a source from ``data.yaml``. Without it, finds the folders of images, and reads names of
    classes from ``classes.txt``. The layout has no splits if there are no such folders.

    Raises :class:`SourceError` if these files are invalid, or the images they name are missing. Raises
    :class:`AmbiguousSourceError` for several descriptions.
    """
    files = find_descriptions(tree)
    if len(files) > 1:
        named = " and ".join(map(printable, files))
        raise AmbiguousSourceError(f"{tree.name()} has {named}, which both describe it: leave only one in the folder")
    if files:
        document = (_read_darknet if files[0].endswith(".data") else _read_yaml)(tree, files[0])
        layout = YoloLayout({}, *_parse_classes(tree, files[0], document), [*files, *document.pop(_NAMES, [])])
        _add_splits(tree, layout, document)
    else:
        layout = YoloLayout(find_scattered_images(tree) or find_image_folders(tree))
        beside = (join(place, _DARKNET) for place in layout.places)
        names = ("data.yaml", "dataset.yaml", *_CLASS_FILES, *beside)
        layout.files = [name for name in names if is_file(tree, name)][:1]
        if layout.files and layout.files[0].endswith(".yaml"):  # without splits
            document = _read_yaml(tree, layout.files[0])
            layout.classes, layout.points = _parse_classes(tree, layout.files[0], document)
        elif layout.files:
            layout.classes = _read_names(tree, layout.files[0])
    layout.is_scattered = bool(find_scattered_images(tree, layout.places))
    layout.is_mirrored = not layout.is_scattered and _has_mirrored_labels(tree, layout.places)
    return layout


def _add_splits(tree: Tree, layout: YoloLayout, document: Mapping[str, Any]) -> None:
    """Adds the splits of ``data.yaml`` to a layout, and a note for each split that is left out."""
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
    if absolute and not layout.splits and (usual := find_image_folders(tree, named=True)):
        layout.splits, layout.notes = usual, []
    if not layout.splits:
        reasons = "; ".join(layout.notes) or "it names none"
        raise SourceError(f"{tree.name(layout.files[0])}: its images are missing: {reasons}")
    if not any(place.endswith(".txt") for place in layout.places):  # which may name images of any folder
        _add_unlisted_splits(tree, layout, document)


def _add_unlisted_splits(tree: Tree, layout: YoloLayout, document: Mapping[str, Any]) -> None:
    """Adds labelled folders that ``data.yaml`` does not list, such as ``images/extra`` beside ``images/train``."""
    for parts in [place.split("/") for place in layout.places]:
        for number, part in enumerate(parts):
            for name in tree.names("/".join(parts[:number])).folders if find_split(part) else ():
                beside, split = "/".join((*parts[:number], name, *parts[number + 1 :])), lower_known_split(name)
                if document.get(split) or beside in layout.places or not is_folder(tree, beside):
                    continue
                if has_labels(tree, beside):
                    layout.splits[split] = [beside]
                    said = f"does not list {printable(beside)}, which has labels: it is the split {printable(split)}"
                    layout.notes.append(f"{printable(layout.files[0])} {said}")
    layout.splits = {split: layout.splits[split] for split in in_packing_order(layout.splits)}


def _label_path(image: str) -> str:
    """Returns the usual path of the file of labels of an image: ``labels/a.txt`` for ``images/a.jpg``."""
    # The last folder ``images`` counts; ``images_a`` becomes ``labels_a``. Without one, the file is beside the image.
    path = _IN_IMAGES.sub(rf"\1{_LABELS}\2", image)
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{name.rpartition('.')[0] or name}.txt"


def has_labels(tree: Tree, images: str) -> bool:
    """Tells if a folder of images has YOLO labels in it or beside it."""
    folder = _label_path(join(images, "x.jpg")).rpartition("/")[0]
    if images and folder == images and holds_yolo_labels(tree, join(_LABELS, images)):
        return True
    return has_yolo_beside(tree, images) if folder == images else holds_yolo_labels(tree, folder)


def read_image_list(tree: Tree, file: str) -> Iterator[str]:
    """Yields the paths of the images of a list, which are relative to the list's folder or to the source.

    Paths may be of another machine. The first image that exists without some leading folders decides how many folders
    are cut from all paths. Images may be missing. Raises :class:`SourceError` for a path out of the source.
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
    """Reads a file like ``data.yaml`` to a dictionary."""
    text = read_text(tree, file, _MAX_YAML)
    try:
        document = load_yaml(text)
    except ValueError as error:
        raise SourceError(f"{tree.name(file)} {error}") from None
    if not isinstance(document, dict):
        raise SourceError(f"{tree.name(file)} holds no names and values")
    return {name: None if is_yaml_null(value) else value for name, value in document.items()}


def _read_darknet(tree: Tree, file: str) -> dict[str, Any]:
    """Reads a file like Darknet's ``obj.data`` as the content of a ``data.yaml``."""
    lines = (line.partition("=") for _, line in read_lines(tree, file, paths=True))
    said = {name.strip(): value.strip() for name, _, value in lines}

    def find(name: str) -> str | None:
        # Paths begin at an unknown folder: the longest end that exists counts.
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
    """Parses names of classes and shape of keypoints from the content of ``data.yaml``; either may be None."""

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
    """Reads names of classes, one a line, and numbers equal ones."""
    names = [line for _, line in islice(read_lines(tree, file), _MAX_CLASSES + 1)]
    if len(names) > _MAX_CLASSES:
        raise SourceError(f"{tree.name(file)} has more than {_MAX_CLASSES:,} names of classes")
    return number_repeated_names(names, range(len(names)))


def _resolve_place(tree: Tree, path: Any, value: Any) -> str | None:
    """Finds a folder or list that ``data.yaml`` names, relative to its ``path`` or to the source."""
    if not isinstance(value, str):
        return None
    absolute = value.startswith("/") or value[1:2] == ":"
    parts = _split_path(value)
    before = [] if absolute or not isinstance(path, str) else _split_path(path)
    # An absolute path, or one out of the source, may be of another machine: its ends are tried, the longest first.
    last = len(before) + (max(0, len(parts) - 2) if absolute or value.startswith("..") else 0)
    places = ["/".join([*before, *parts][start:]) for start in range(last + 1)]
    places = [place for place in places if place or not absolute]
    return next(
        (each for each in places if is_folder(tree, each) or (each.endswith(".txt") and is_file(tree, each))), None
    )


def _split_path(text: str) -> list[str]:
    """Splits a path into its parts, and resolves or drops each ``..``."""
    parts: list[str] = []
    for part in text.replace("\\", "/").split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in ("", ".", ".."):
            parts.append(part)
    return parts
