"""Where YOLO's images and names of classes are: ``data.yaml``, or the folders ``images`` and ``labels`` alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from packstore.core.errors import AmbiguousSourceError, SourceError, printable
from packstore.core.yamltext import load_yaml
from packstore.sources.base import SPLIT_ORDER
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


@dataclass
class Layout:
    """What is where.

    Attributes:
        splits: By name, its folders of images and lists of images (``.txt``), in packing order; ``""`` without splits.
        classes: Names of the classes, or None where no file has any.
        points: Number of keypoints of an object, and 2 or 3 numbers each; None without keypoints.
        files: The files that say so.
        ignored: What is left out, by reason.
        labels: Folder of all files of labels, if they lie in one and the images in several; else None.
    """

    splits: dict[str, list[str]]
    classes: tuple[str, ...] | None = None
    points: tuple[int, int] | None = None
    files: list[str] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    labels: str | None = None


def descriptions(tree: Tree) -> list[str]:
    """The files like ``data.yaml`` at the top, and Darknet's like ``obj.data`` there or in ``data``, by their first
    bytes."""
    found = []
    for folder in _DATA_FOLDERS:
        for name in tree.names(folder).ending(".data", ".yaml", ".yml"):
            path, lower = join(folder, name), name.lower()
            signs = _DATA if lower.endswith(".data") else ()
            signs = _DESCRIBES if not folder and lower.endswith((".yaml", ".yml")) else signs
            if signs and all(each.search(tree.start(path, _START)) for each in signs):
                found.append(path)
    return found


def folders_of_images(tree: Tree, named: bool = False) -> dict[str, list[str]]:
    """The folders of images by split that have one of labels beside them: ``images/train``, ``train/images`` or
    ``images``; or that hold the labels themselves, and a file of class names unless the classes are ``named``
    elsewhere."""
    names = tree.names("").folders
    found = {name.lower(): [f"{name}/images"] for name in names if name.lower() in SPLIT_ORDER
             and is_folder(tree, f"{name}/images") and is_folder(tree, f"{name}/labels")}  # fmt: skip
    if not found and is_folder(tree, "images") and is_folder(tree, "labels"):
        inside = tree.names("images").folders
        known = {re.sub(r"[_-]?(19|20)\d\d$", "", name.lower()): [f"images/{name}"] for name in inside}
        found = known if known and all(split in SPLIT_ORDER for split in known) else {"": ["images"]}
    if not found and is_file(tree, _CLASS_FILES[0]) and has_yolo_beside(tree, ""):
        found = {"": [""]}  # as LabelImg leaves them
    if not found:  # as Roboflow exports them for Darknet
        found = {name.lower(): [name] for name in names if name.lower() in SPLIT_ORDER
                 and (named or is_file(tree, f"{name}/{_DARKNET}")) and has_yolo_beside(tree, name)}  # fmt: skip
    return {split: found[split] for split in in_packing_order(found)}


def scattered_images(tree: Tree, within: list[str] | None = None) -> dict[str, list[str]]:
    """The folders of images by split, if all files of labels lie in the one folder ``labels``; none otherwise.

    Raises :class:`AmbiguousSourceError` if several groups of folders have the images, unless one is ``within`` folders
    that are named elsewhere.
    """
    names = tree.names(_LABELS)
    stems = [name[:-4] for name in names.ending(".txt") if f"{_LABELS}/{name}" not in _CLASS_FILES]
    if names.folders or not stems or not holds_yolo_labels(tree, _LABELS):
        return {}
    there = {name.rpartition(".")[0] for name in tree.names("images").ending(*IMAGE_SUFFIXES)}
    if there.intersection(stems):
        return {}
    return places_by_split(find_spread(tree, stems, _LABELS, stems=True, within=within) or ())


def read_layout(tree: Tree) -> Layout:
    """The layout of a source. Raises :class:`SourceError`."""
    files = descriptions(tree)
    if len(files) > 1:
        named = " and ".join(map(printable, files))
        raise AmbiguousSourceError(f"{tree.name()} has {named}, which both describe it: leave only one in the folder")
    if not files:
        scattered = scattered_images(tree)
        layout = Layout(scattered or folders_of_images(tree), labels=_LABELS if scattered else None)
        yaml = [name for name in ("data.yaml", "dataset.yaml") if is_file(tree, name)]
        if yaml:
            layout.classes, layout.points = _classes(tree, yaml[0], _document(tree, yaml[0]))
            layout.files = yaml
        else:
            beside = [join(place, _DARKNET) for places in layout.splits.values() for place in places]
            layout.files = [name for name in (*_CLASS_FILES, *beside) if is_file(tree, name)][:1]
            layout.classes = _named_in(tree, layout.files[0]) if layout.files else None
        return layout
    if files[0].lower().endswith(".data"):
        return _darknet(tree, files[0])
    document = _document(tree, files[0])
    layout = Layout({}, *_classes(tree, files[0], document), files)
    places = {
        split: [(value, _resolve(tree, document.get("path"), value)) for value in _listed_in(document.get(split))]
        for split in _SPLITS
    }
    layout = _with_splits(tree, layout, places)
    images = scattered_images(tree, [place for places in layout.splits.values() for place in places])
    layout.labels = _LABELS if images else None
    return layout


def _with_splits(tree: Tree, layout: Layout, wanted: Mapping[str, list[tuple[Any, str | None]]]) -> Layout:
    """The layout with the splits whose places, each with what names it, are there. Raises :class:`SourceError` where
    none is."""
    missing_places = []
    for split, places in wanted.items():
        if not places:
            continue
        found = [place for _, place in places if place is not None]
        if len(found) < len(places):
            missing = printable(str(next(value for value, place in places if place is None))[:80])
            missing_places.append(f"{split}: {missing}")
            layout.ignored[f"splits whose images are not there ({split}: {missing})"] += 1
        elif found in layout.splits.values():
            layout.ignored[f"splits with the images of another ({split})"] += 1
        else:
            layout.splits[split] = found
    if not layout.splits:  # paths of another machine
        folders = folders_of_images(tree, named=True)
        lists = layout.files[0].lower().endswith(".data")
        if lists or all(_is_absolute(value) for places in wanted.values() for value, _ in places):
            layout.splits = folders
            layout.ignored.clear()
    if not layout.splits:
        shown = ", ".join(missing_places) or "it names none"
        raise SourceError(f"{tree.name(layout.files[0])}: no images are where it says: {shown}")
    return layout


def _is_absolute(value: Any) -> bool:
    return isinstance(value, str) and (value.startswith(("/", "\\")) or value[1:2] == ":")


def _listed_in(wanted: Any) -> list[Any]:
    return wanted if isinstance(wanted, list) else [] if wanted is None or wanted == "" else [wanted]


def _darknet(tree: Tree, file: str) -> Layout:
    """The layout that a file like ``obj.data`` says: lists of images by split, and a file of names. Its paths are those
    of a working directory that nobody knows: the longest end of each that is there counts."""
    values: dict[str, str] = {}
    for _, line in read_lines(tree, file, paths=True):
        name, equals, value = (part.strip() for part in line.partition("="))
        if equals and value and name[0] not in "#;":
            values[name] = value
    names = _end_of(tree, values.get("names", ""))
    if names is None:
        raise SourceError(
            f"{tree.name(file)}: the names of the classes ({printable(values['names'][:80])}) are missing"
        )
    classes = _named_in(tree, names)
    if values.get("classes", str(len(classes))) != str(len(classes)):
        raise SourceError(
            f"{tree.name(file)}: classes is {printable(values['classes'][:40])}, but there are {len(classes)} names"
        )
    places: dict[str, list[tuple[Any, str | None]]] = {
        split: [(values[split], _end_of(tree, values[split], ".txt"))] for split in _DATA_SPLITS if split in values
    }
    used = {place for listed_in in places.values() for _, place in listed_in}
    for split in _DATA_SPLITS:  # a list that is there and the file does not name
        beside = join(file.rpartition("/")[0], f"{split}.txt")
        if any(used) and split not in places and beside not in used and is_file(tree, beside):
            places[split] = [(beside, beside)]
    return _with_splits(tree, Layout({}, classes, None, [file, names]), places)


def _end_of(tree: Tree, path: str, suffix: str = "") -> str | None:
    """The longest end of a path at which there is a file with a suffix."""
    parts = _parts(path) if path.endswith(suffix) else []
    return next((end for n in range(len(parts)) if is_file(tree, end := "/".join(parts[n:]))), None)


def listed(tree: Tree, file: str) -> Iterator[str]:
    """The images that a list names, by their paths in the tree. Raises :class:`SourceError`.

    They are relative to the folder of the list or of the source, or absolute where they once lay: then as much of the
    beginning is left out, of all alike, as makes the first that is there.
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


def _document(tree: Tree, file: str) -> dict[Any, Any]:
    try:
        document = load_yaml(read_text(tree, file, _MAX_YAML))
    except ValueError as error:
        raise SourceError(f"{tree.name(file)} {error}") from None
    if not isinstance(document, dict):
        raise SourceError(f"{tree.name(file)} holds no names and values")
    return document


def _classes(tree: Tree, file: str, document: dict[Any, Any]) -> tuple[tuple[str, ...] | None, tuple[int, int] | None]:
    """Names of classes and shape of keypoints. Raises :class:`SourceError`."""
    where, names, count = tree.name(file), document.get("names"), document.get("nc")
    if isinstance(names, dict):
        numbers = [*names]
        if not all(type(number) is int for number in numbers) or sorted(numbers) != [*range(len(numbers))]:
            raise SourceError(f"{where}: names should be numbered from 0 without gaps")
        names = [names[number] for number in sorted(numbers)]
    if names is not None and (not isinstance(names, list) or not all(_scalar(name) for name in names)):
        raise SourceError(f"{where}: names should be a list of names, or names by number")
    if names is not None and type(count) is int and count != len(names):
        raise SourceError(f"{where}: nc is {count}, but there are {len(names)} names")
    classes = None if not names else number_repeated_names([*map(str, names)], range(len(names)))
    shape = document.get("kpt_shape")
    if shape is None:
        return classes, None
    if not isinstance(shape, list) or len(shape) != 2 or type(shape[0]) is not int or shape[1] not in (2, 3):
        raise SourceError(f"{where}: kpt_shape is {printable(str(shape)[:40])}; expected [points, 2] or [points, 3]")
    if not 1 <= shape[0] <= _NAMES:
        raise SourceError(f"{where}: kpt_shape has {shape[0]} points; expected 1 to {_NAMES}")
    return classes, (shape[0], shape[1])


def _scalar(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and str(value) != ""


def _named_in(tree: Tree, file: str) -> tuple[str, ...]:
    names = [line for _, line in islice(read_lines(tree, file), _MAX_CLASSES)]
    return number_repeated_names(names, range(len(names)))


def _resolve(tree: Tree, path: Any, value: Any) -> str | None:
    """A folder or list that ``data.yaml`` names: relative to its ``path``, to the source, or without what leads out of
    it. Of an absolute one, and of one that leads out (``../name-of-the-folder/images/train``), the longest end that is
    there, of two names at least."""
    if not isinstance(value, str):
        return None
    absolute = value.startswith("/") or value[1:2] == ":"
    parts = _parts(value)
    before = [] if absolute or not isinstance(path, str) else _parts(path)
    whole = [*before, *parts]
    last = len(before) + (max(0, len(parts) - 2) if absolute or value.startswith("..") else 0)
    for start in range(last + 1):
        place = "/".join(whole[start:])
        if (place or not absolute) and (is_folder(tree, place) or (place.endswith(".txt") and is_file(tree, place))):
            return place
    return None


def _parts(text: str) -> list[str]:
    """The parts of a path; what leads upwards from its beginning is left out."""
    parts: list[str] = []
    for part in text.replace("\\", "/").split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in ("", ".", ".."):
            parts.append(part)
    return parts
