"""Finds COCO's files of annotations, their splits and folders; reads them and parses their entries."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packstore.core.column_types.segments import is_shape
from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.sources import spread
from packstore.sources.annotation_formats.parsing import clean_image_path, is_flagged, parse_id
from packstore.sources.beside import find_base_folder, join, read_json
from packstore.sources.listing import is_passed_over
from packstore.sources.rows import in_packing_order
from packstore.sources.splits import find_split
from packstore.sources.spread import list_usual_folders
from packstore.sources.tree import Tree

_MAX_BYTES = 4 << 30
_LARGEST = 1e30
# Most folders of another machine to remove from the names of images.
_CUT = 3
_START = 1 << 16
_PROBED = 16
_NAME = re.compile(
    r"(?:(instances|captions|person_keypoints|keypoints|panoptic|stuff|images?_info)(?=[_.-]))?[_-]?(.*?)[.]json"
)
_NO_SPLIT = frozenset({"", "annotation", "annotations", "annotations.coco", "coco", "default", "instances", "labels"})
_LISTS = re.compile(rb'"(?:images|annotations|categories)"\s*:\s*\[')
_ENTRIES = re.compile(rb'"(?:coco_url|file_name|image_id|category_id|supercategory)"\s*:')
# Matches a file of one image, as in SA-1B, which is not COCO's.
_OF_ONE_IMAGE = re.compile(rb'"image"\s*:\s*\{')
_BESIDE = ("annotations", "Annotations", "annotation", "labels", "coco")
_KINDS = {"person_keypoints": "keypoints", "images_info": "image_info", "": "instances"}
# Kinds of files, in reading order.
_READ_ORDER = ("instances", "keypoints", "captions", "stuff", "panoptic", "image_info")


@dataclass(frozen=True, slots=True)
class AnnotationFile:
    """File of annotations, and the facts in its name.

    Attributes:
        path: Path in the tree.
        kind: One of :data:`_READ_ORDER`.
        split: Name of the split, ``""`` if there is none.
        token: Part of the file's name after the kind, mostly the split with a year: ``train2017``.
    """

    path: str
    kind: str
    split: str
    token: str


def find_annotation_files(tree: Tree) -> list[AnnotationFile]:
    """Finds COCO's files of annotations, by names and first bytes. Looks in the top folder and in the folders directly
    in it, except hidden ones. Returns ``[]`` if there are none."""
    folders = ["", *_BESIDE]
    folders += [name for name in tree.names("").folders if name not in folders and not is_passed_over(name)]
    return [file for folder in folders for file in _find_in_folder(tree, folder)]


def group_by_split(tree: Tree, files: list[AnnotationFile]) -> dict[str, dict[str, AnnotationFile]]:
    """Groups files by split, in packing order, and then by kind.

    If two files of one kind have the same split, their tokens (``train2014``, ``train2017``) become the splits. A file
    of stuff counts as instances, and is left out beside other objects. Raises :class:`AmbiguousSourceError` if two
    files of one kind have the same token.
    """
    counts = Counter((file.split, file.kind) for file in files)
    shared = {split for (split, _), count in counts.items() if count > 1}
    groups: dict[str, dict[str, AnnotationFile]] = {}
    for file in files:
        kinds = groups.setdefault(file.token if file.split in shared else file.split, {})
        if (other := kinds.setdefault(file.kind, file)) is not file:
            folders = [each.path.rpartition("/")[0] for each in (other, file)]
            are_apart = len({*folders}) == 2 and Path(tree.root).is_dir()
            raise AmbiguousSourceError(
                f"{tree.name()} is annotated by {printable(other.path)} and {printable(file.path)}, whose names have "
                "no split: give one of their folders, or leave all but one out with --ignore",
                [Answer(source=Path(tree.root, folder)) for folder in folders if folder and are_apart],
            )
    for kinds in groups.values():
        stuff = kinds.pop("stuff", None)
        if stuff is not None and not {"instances", "keypoints"} & kinds.keys():
            kinds["instances"] = replace(stuff, kind="instances")
    order = in_packing_order(groups)
    return {split: {kind: groups[split][kind] for kind in _READ_ORDER if kind in groups[split]} for split in order}


def find_image_places(tree: Tree, file: AnnotationFile, names: list[str]) -> tuple[list[str] | None, list[str]]:
    """Finds the folder of each image that a file names, see :func:`packstore.sources.spread.find_image_places`.

    Returns the folders, or None if no folder has any image, and the names in them. If no usual folder has any, tries
    the names without their first folder, then without two, then three, while all names differ.
    """
    splits = dict.fromkeys(filter(None, (file.token, file.split)))
    folders, shorter = list_usual_folders(tree, file.path, splits.keys()), names
    for _ in range(_CUT + 1):
        all_differ = shorter is names or len({*shorter}) == len(names)
        folder = find_base_folder(tree, shorter, folders) if all_differ else None
        if folder is not None or not all("/" in name for name in shorter):
            break
        shorter = [name.partition("/")[2] for name in shorter]
    names = names if folder is None else shorter
    return spread.find_image_places(tree, names, file.path, folder, {file.split} - {""}), names


def find_mask_folder(tree: Tree, file: AnnotationFile, names: Iterable[str]) -> str | None:
    """Finds the folder with most of the masks ``names`` of an annotation file; returns None if no folder has any.

    The folder's name is that of the file without suffix. The folder is beside the file, one level above, or in
    ``images`` in one of these. It may also be the file's own folder.
    """
    beside = file.path.rpartition("/")[0]
    stem = file.path.rpartition("/")[2].rpartition(".")[0]
    bases = (beside, beside.rpartition("/")[0])
    return find_base_folder(
        tree, names, [*(join(base, f"{top}{stem}") for base in bases for top in ("", "images/")), beside]
    )


def _find_in_folder(tree: Tree, folder: str) -> Iterator[AnnotationFile]:
    """Yields the annotation files in a folder: JSON objects that begin with one of COCO's lists."""
    names = [name for name in tree.names(folder).ending(".json") if name[0] != "." or _has_coco_name(name)]
    if len(names) > _PROBED:  # a file for each image
        names = [name for name in names if _has_coco_name(name)]
    for name in names:
        path = join(folder, name)
        # Files may be gigabytes, so the first 64 KiB decide.
        start = tree.first_bytes(path, _START)
        if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{":
            continue
        if not _LISTS.search(start) or _OF_ONE_IMAGE.search(start):
            continue
        match = _NAME.fullmatch(name.lower().lstrip("."))
        kind, token = (match[1] or "", match[2]) if match else ("", "")
        # Other JSON has lists called ``images``, too, but no values such as ``image_id``.
        if not kind and not _ENTRIES.search(start):
            continue
        yield AnnotationFile(path, _KINDS.get(kind, kind), _find_split(kind, token, folder), token)


def _has_coco_name(name: str) -> bool:
    """Tells if a file has a name as COCO or Roboflow writes it; a dot may precede the name."""
    match = _NAME.fullmatch(name.lower().lstrip("."))
    return match is not None and (match[1] is not None or match[2] == "annotations.coco") and name[:2] != "._"


def _find_split(kind: str, token: str, folder: str) -> str:
    """Returns the split of a file by ``token``, the part of its name after the kind, or by its folder."""
    known = find_split(token)
    if known or (kind and token not in _NO_SPLIT):
        # ``val2017`` is ``val``, and an unknown ``token`` is a split of its own.
        return known or re.sub(r"[_-]?(19|20)\d\d$", "", token)
    return find_split(folder.rpartition("/")[2])


def read_document(tree: Tree, file: AnnotationFile) -> dict[str, Any]:
    """Reads a file. The names of its images become clean paths.

    Raises :class:`SourceError` if the file is not COCO's, or an image has no id or no name."""
    where = tree.name(file.path)
    document = read_json(tree, file.path, _MAX_BYTES)
    for name in ("images", "annotations", "categories"):
        entries = document.get(name, None if name == "images" else []) if isinstance(document, dict) else None
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise SourceError(f"{where} is no file of COCO: its {name!r} is no list of objects")
    for image in document["images"]:
        url = image.get("coco_url")  # LVIS has no file names, and these paths
        name = image.get("file_name", "/".join(url.split("/")[-2:]) if isinstance(url, str) else None)
        try:
            if parse_id(image.get("id")) is None:
                raise ValueError("has no id")
            image["file_name"] = clean_image_path(name)
        except ValueError as error:
            raise SourceError(f"{where}: the image {describe_entry(image)}: {error}") from None
    result: dict[str, Any] = document
    return result


def parse_boxes(annotations: Iterable[Any]) -> list[list[float]]:
    """Converts the boxes of annotations from ``xywh`` to ``xyxy``. Raises :class:`ValueError` if an annotation has no
    box of 4 numbers."""
    boxes = (_parse_coordinates(annotation, "bbox", 4) for annotation in annotations)
    return [[left, top, left + width, top + height] for left, top, width, height in boxes]


def parse_crowds(annotations: Iterable[Any]) -> list[int]:
    """Returns 1 for each annotation with the flag ``iscrowd`` or ``ignore``, else 0. ``ignore`` is CityPersons', and
    that of MMDetection (https://github.com/open-mmlab/mmdetection, ``CocoDataset``)."""
    return [int(is_flagged(each, "iscrowd", "ignore")) for each in annotations]


def parse_labels(annotations: Iterable[Any], numbers: Mapping[Any, int]) -> list[int]:
    """Converts the category ids of annotations to class numbers, by ``numbers``. Raises :class:`ValueError` for an
    unknown id."""
    labels = [numbers.get(parse_id(each.get("category_id"))) for each in annotations]
    for label, annotation in zip(labels, annotations, strict=True):
        if label is None:
            raise _entry_error(annotation, "category_id", "one of the categories")
    return [label for label in labels if label is not None]


def parse_keypoints(annotations: Iterable[Any], points: int) -> list[list[list[float]]]:
    """Returns the keypoints ``(points, 3)`` of each annotation. Without keypoints they are zeros, which mean "not
    labelled". Raises :class:`ValueError` for another number of keypoints, and for values that are no coordinates."""
    keypoints = []
    for annotation in annotations:
        known = "keypoints" in annotation
        flat = _parse_coordinates(annotation, "keypoints", 3 * points) if known else [0.0] * (3 * points)
        keypoints.append([flat[n : n + 3] for n in range(0, len(flat), 3)])
    return keypoints


def take_segments(annotations: Sequence[dict[str, Any]]) -> list[Any]:
    """Removes the segmentations of an image from its annotations, and returns them as segments. One that is no shape
    stays where it is."""
    return [each.pop("segmentation") if is_shape(each.get("segmentation", 0)) else None for each in annotations]


def parse_segment_ids(annotation: Any) -> list[int]:
    """Returns the ids of the segments of a panoptic mask. Raises :class:`ValueError` if ``segments_info`` is no list of
    segments with whole numbers as ids."""
    segments = annotation.get("segments_info")
    listed = segments if isinstance(segments, list) else ()
    ids = (parse_id(each.get("id")) for each in listed if isinstance(each, dict))
    whole = [each for each in ids if isinstance(each, int)]
    if not isinstance(segments, list) or len(whole) < len(segments):
        raise _entry_error(annotation, "segments_info", "a list of segments with ids")
    return whole


def _parse_coordinates(annotation: Any, name: str, count: int) -> list[float]:
    """Returns ``count`` numbers of an annotation."""
    values = annotation.get(name)
    fits = isinstance(values, list) and len(values) == count
    if not fits or not all(isinstance(each, (int, float)) and abs(each) < _LARGEST for each in values):
        raise _entry_error(annotation, name, f"{count} numbers")
    return [*map(float, values)]


def _entry_error(annotation: Any, name: str, expected: str) -> ValueError:
    """Returns the error for a value of an annotation."""
    found = f"annotation {annotation.get('id')!r:.40} has the {name} {annotation.get(name)!r:.60}"
    return ValueError(f"{found}; expected {expected}")


def describe_entry(entry: dict[str, Any]) -> str:
    """Returns an entry's file name for messages, or the whole entry without one: the first 80 characters."""
    return printable(f"{entry.get('file_name', entry)!r:.80}")
