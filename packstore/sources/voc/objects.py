"""XML files of Pascal VOC: their folders, and what they contain.

Boxes in its files count pixels from 1, and include both corners. Here the left edge of the first pixel is 0, so a box
is ``(xmin - 1, ymin - 1, xmax, ymax)``: it covers the same pixels, and its width is their number. Files of other tools
(CVAT, Datumaro, Roboflow) count from 0: their boxes are ``(xmin, ymin, xmax, ymax)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from packstore.core.errors import AmbiguousSourceError, SourceError, printable
from packstore.core.fields import Boxes, Field, Image, Json, Labels
from packstore.core.plainxml import load_xml
from packstore.sources.beside import join, parse_finite, read_text
from packstore.sources.boxes import VOC
from packstore.sources.contents import FolderContents, list_contents, stem_of
from packstore.sources.encodings import convert_start
from packstore.sources.rows import in_packing_order
from packstore.sources.splits import find_splits_of_folders, is_split
from packstore.sources.spread import find_spread
from packstore.sources.tree import Tree

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
"""The classes of Pascal VOC, numbered as in its development kit, from 0."""
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_MAX_CLASSES = 1 << 16
_USUAL = ("JPEGImages", "Images", "images", "img", "imgs")
"""Names of folders of images."""
_START, _LOOKED_AT = 512, 64
Pairs = dict[str, list[tuple[str, str | None]]]
"""Folders of images and of their XML files (None without) by split, in packing order."""


def declare_annotation_fields(classes: Sequence[str]) -> dict[str, Field]:
    """Returns the fields of the image, and of the columns of :func:`parse_annotation`."""
    return {
        "image": Image(),
        "boxes": Boxes(optional=True),
        "labels": Labels(classes, of="boxes", optional=True),
        "difficult": Labels(of="boxes", optional=True),
        "json": Json(optional=True),
    }


@dataclass(frozen=True, slots=True)
class AnnotationFacts:
    """Facts about all XML files of a source.

    Attributes:
        files: Number of files that could be read.
        classes: Pascal VOC's 20 classes if there are no others, else the names, sorted.
        from_zero: Path of the first file with a box that proves that the files count from 0; empty for none.
    """

    files: int
    classes: tuple[str, ...]
    from_zero: str


def read_facts(tree: Tree, files: Iterable[str]) -> AnnotationFacts:
    """Reads all annotations. Skips damaged files. Raises :class:`SourceError` for more than 65,536 classes, and
    :class:`AmbiguousSourceError` for a file of unknown encoding."""
    names: set[str] = set()
    count, from_zero = 0, ""
    for file in files:
        try:
            document = load_xml(read_text(tree, file))[1]
            objects = _as_list(document["object"])
            count += 1
            names.update(map(_class_name, objects))
            if not from_zero and any(counts_from_zero(parse_box(each)) for each in objects):
                from_zero = file
        except AmbiguousSourceError:
            raise  # of the encoding
        except (SourceError, ValueError, KeyError, TypeError):
            continue  # reported as a bad sample when it is read
        if len(names) > _MAX_CLASSES:
            raise SourceError(f"{tree.name()}: its annotations name more than {_MAX_CLASSES} classes")
    return AnnotationFacts(count, CLASSES if names <= set(CLASSES) else tuple(sorted(names)), from_zero)


def counts_from_zero(box: Sequence[float]) -> bool:
    """Tells if a box, as written, is one that no file has that counts from 1: it begins within 0 to 1."""
    left, top, right, bottom = box
    return (0 <= left < 1 or 0 <= top < 1) and left < right and top < bottom  # four zeros are no box


def parse_annotation(data: bytes, convention: str = VOC) -> dict[str, Any]:
    """Parses an XML file to its columns. ``convention``: ``voc``, or ``xyxy`` if boxes count from 0. Raises
    :class:`ValueError` for an invalid file. The columns:

    - ``boxes``: corners in pixels from 0.
    - ``labels``: names of classes.
    - ``difficult``: numbers, 0 if missing.
    - ``json``: the whole file as ``{"annotation": …}``; its ``object`` is always a list.
    """
    root, document = load_xml(data)
    document = {} if document == "" else document  # <annotation/>: an image without objects
    if root != "annotation" or not isinstance(document, dict):
        raise ValueError(f"its annotation has the root {printable(root)!r} without content; expected 'annotation'")
    document["object"] = objects = _as_list(document.get("object", []))
    first = 1 if convention == VOC else 0
    return {
        "boxes": [[left - first, top - first, right, bottom] for left, top, right, bottom in map(parse_box, objects)],
        "labels": [_class_name(each) for each in objects],
        "difficult": [int(_get_text(each, "difficult", "0")) for each in objects],
        "json": {"annotation": document},
    }


def _as_list(value: Any) -> list[Any]:
    """Returns a list unchanged, and any other value in a list."""
    return value if isinstance(value, list) else [value]


def _get_text(value: Any, name: str, default: str | None = None) -> str:
    """Returns the text of the element ``name``; empty if the element is. With a ``default``, a missing or empty element
    has the default.

    Raises :class:`ValueError` if the element occurs several times. Raises it also if the element is missing and there
    is no default.
    """
    text = value.get(name, default) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise ValueError(f"an object of its annotation has {'several values' if text else 'no value'} of {name!r}")
    return text or default or text


def _class_name(value: Any) -> str:
    """Returns the name of an object's class. Raises :class:`ValueError` if it is missing or empty."""
    name = _get_text(value, "name")
    if not name:
        raise ValueError("an object of its annotation has an empty name")
    return name


def parse_box(value: Any) -> list[float]:
    """Parses the box of an ``object`` to left, top, right, bottom as they are written. Raises :class:`ValueError` for a
    corner that is missing or not a finite number."""
    box = value.get("bndbox") if isinstance(value, dict) else None  # <object/> is a text
    return [parse_finite(_get_text(box, corner)) for corner in _CORNERS]


def find_folder_pairs(tree: Tree) -> Pairs:
    """Pairs folders of images with folders of XML files by split, in packing order. Returns ``{}`` if there are none.

    Images belong to the XML files in their own folder, or else to those in a folder without images that has the stems
    of most; of equal ones, in the folder whose path has most in common. At least half of the images of a folder need an
    XML file, unless the only XML files are beside their images. Each split needs a single folder of XML files, since
    several could also be classes. Images at the top count only if there are no splits, and then alone. Images in
    deeper folders, but for folders of splits, are those of another dataset, unless they are all images and the XML
    files are outside the folder at the top: ``data/img`` and ``notes/xml``.

    Raises :class:`AmbiguousSourceError` if several groups of folders have the images of one folder of XML files.
    """
    folders = list_contents(tree).folders
    with_files = (path for path, each in folders.items() if ".xml" in each.others)
    noted = [path for path in islice(with_files, _LOOKED_AT) if _has_annotations(tree, folders[path])]
    alone = [path for path in noted if not folders[path].images.count]
    pairs: dict[str, str] = {}
    holding = {_without_splits(path) for path, each in folders.items() if each.images.count} if noted else set()
    for path, folder in folders.items() if noted else ():
        above = [not is_split(part) for part in path.split("/")]
        if any(above[:-1]) if path in noted else sum(above) > 1 and len(holding) > 1:
            continue
        top = _without_splits(path).partition("/")[0] if sum(above) > 1 else None
        outside = [xml for xml in alone if _without_splits(xml).partition("/")[0] != top]
        counts = {
            xml: folder.images.count_shared(folders[xml].others[".xml"])
            for xml in ([path] if path in noted else outside if folder.images.count else [])
        }
        parts = {*path.split("/")}
        ranks = [(count, len(parts & {*xml.split("/")}), xml) for xml, count in counts.items()]
        best = max(ranks)[-1] if ranks else ""
        only = noted == [path] and counts[path] == folder.others[".xml"].count
        if only or 0 < folder.images.count <= 2 * counts.get(best, 0):
            pairs[path] = best
    for xml in alone:
        pairs = _choose_folders(tree, pairs, xml, folders)
    splits = find_splits_of_folders(filter(None, pairs))
    if pairs.get("") == "":
        pairs = {path: xml for path, xml in pairs.items() if path} if splits else {"": ""}
    found: dict[str, dict[str, str]] = {}
    for path, xml in sorted(pairs.items()):
        found.setdefault(splits.get(path, ""), {})[path] = xml
    several = any(len({*some.values()}) > 1 for some in found.values())
    return {} if several else {split: [*found[split].items()] for split in in_packing_order(found)}


def _without_splits(path: str) -> str:
    """Returns a path without its folders of splits."""
    return "/".join(part for part in path.split("/") if not is_split(part))


def _choose_folders(
    tree: Tree, pairs: dict[str, str], xml: str, folders: Mapping[str, FolderContents]
) -> dict[str, str]:
    """Returns the pairs without folders whose images are also in others that belong to the same XML files. Of several
    such folders, one with a usual name remains; else those that :func:`find_spread` finds."""
    own = [path for path, each in pairs.items() if each == xml]
    notes = folders[xml].others[".xml"]
    if sum(folders[path].images.count_shared(notes) for path in own) <= notes.count:
        return pairs
    usual = [path for name in _USUAL for path in own if path.rpartition("/")[2] == name]
    stems = [stem_of(name) for name in tree.names(xml).ending(".xml")]
    kept = usual[:1] or find_spread(tree, stems, xml, stems=True, within=own) or own[:1]
    return {path: each for path, each in pairs.items() if each != xml or path in kept}


def _has_annotations(tree: Tree, folder: FolderContents) -> bool:
    """Tells by its beginning if the first XML file of a folder is an annotation of Pascal VOC. MIT's LabelMe has
    polygons instead of boxes: False."""
    start = convert_start(tree.first_bytes(join(folder.path, folder.others[".xml"].first[0]), _START))
    return b"<annotation" in start and b"LabelMe Webtool" not in start
