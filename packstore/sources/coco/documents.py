"""What COCO's files of annotations say of each image, kept in a temporary file and found by number."""

from __future__ import annotations

import json
import os
import re
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.sources.archives.index import OpenFile
from packstore.sources.beside import clean_path, read_json
from packstore.sources.coco.files import AnnotationFile
from packstore.sources.tree import Tree

_MAX_BYTES = 4 << 30
_BBOX, _KEYPOINTS = 4, 3
_LARGEST = 1e30
_CATEGORIES = {"instances": "objects", "keypoints": "objects", "panoptic": "panoptic", "stuff": "stuff"}
_SHAPES = {"bbox", "segmentation", "keypoints", "area"}


class Documents:
    """The images of a split, each with what all files say of it.

    While they are read, the JSON of one file is in memory; afterwards some 40 bytes an image and its name.

    Attributes:
        categories: Names of categories by id, in the order of ids: of objects, of ``panoptic`` segments, of ``stuff``.
        masks: Files of the panoptic masks of images that have one, by the number of the image.
        points: Number of keypoints of each object; 0 for none, or where categories differ.
        annotated: Objects were looked for in these images.
        captioned: There are captions.
        ignored: What is not kept, by reason.
        boxed: An annotation has a box or a shape; without, as in iNaturalist, they are classes of whole images.
        most: Most annotations of an image.
    """

    def __init__(self, tree: Tree, files: Mapping[str, AnnotationFile]) -> None:
        """``files`` by kind. Raises :class:`SourceError` where they are not COCO's, or do not go together."""
        self._tree = tree
        self.categories: dict[str, dict[int, str]] = {"objects": {}, "panoptic": {}, "stuff": {}}
        self.masks: dict[int, bytes] = {}
        self.points = 0
        self.annotated, self.captioned = bool({"instances", "keypoints"} & files.keys()), "captions" in files
        self.ignored: Counter[str] = Counter()
        self.boxed, self.most = False, 0
        self._names: list[bytes] = []
        self._ends = array("q", [0])
        images: dict[Any, dict[str, Any]] = {}
        for file in files.values():
            self._read(file, images)
        try:
            self._file: OpenFile | None = self._written(images)
        except OSError as error:
            raise SourceError(f"{tree.name()}: its annotations need a temporary file: {error.strerror}") from None

    def __len__(self) -> int:
        return len(self._names)

    def names(self) -> Iterator[str]:
        """The file names of the images, in the order of their ids, which is that of torchvision's ``CocoDetection``."""
        return (name.decode("utf-8", "surrogateescape") for name in self._names)

    def name_otherwise(self, names: Iterable[str]) -> None:
        """Gives the images other file names, in their order."""
        self._names = [name.encode("utf-8", "surrogateescape") for name in names]

    def size(self, number: int) -> int:
        """Bytes of what is said of an image."""
        return self._ends[number + 1] - self._ends[number]

    def read(self, number: int) -> dict[str, Any]:
        """What is said of an image: ``image``, ``annotations`` and ``captions``. From any thread."""
        if self._file is None:
            raise ValueError("its source is closed")
        found: dict[str, Any] = json.loads(self._file.read(self.size(number), self._ends[number]))
        return found

    def close(self) -> None:
        """Removes the temporary file."""
        self._file = None

    def _written(self, images: dict[Any, dict[str, Any]]) -> OpenFile:
        """A temporary file with what is said of each image. Empties ``images``."""
        seen: set[bytes] = set()
        end = 0
        with tempfile.TemporaryFile() as file:
            for image_id in sorted(images, key=lambda each: (isinstance(each, str), each)):
                found = images.pop(image_id)
                name = str(found["image"]["file_name"]).encode("utf-8", "surrogateescape")
                if name in seen:
                    raise SourceError(f"{self._tree.name()}: two images have the file name {_shown(found['image'])}")
                seen.add(name)
                if "panoptic" in found:
                    self.masks[len(self._names)] = found["panoptic"]["file_name"].encode("utf-8", "surrogateescape")
                self._names.append(name)
                annotations = found.get("annotations", ())
                self.most = max(self.most, len(annotations))
                self.boxed = self.boxed or any(each.keys() & _SHAPES for each in annotations)
                end += file.write(json.dumps(found, separators=(",", ":")).encode("ascii"))
                self._ends.append(end)
            file.flush()
            return OpenFile(os.dup(file.fileno()))

    def _read(self, file: AnnotationFile, images: dict[Any, dict[str, Any]]) -> None:
        where = self._tree.name(file.path)
        document = read_json(self._tree, file.path, _MAX_BYTES)
        if not isinstance(document, dict):
            raise SourceError(f"{where} is no file of COCO: found {type(document).__name__}, expected an object")
        for image in _entries(where, document, "images"):
            image_id, name = image.get("id"), image.get("file_name", _of_url(image.get("coco_url")))
            if not isinstance(name, str) or not isinstance(image_id, (int, str)):
                raise SourceError(f"{where}: an image without an id or a file name: {_shown(image)}")
            try:
                image["file_name"] = clean_path(_of_other_machine(name))
            except ValueError as error:
                raise SourceError(f"{where} {error}") from None
            known = images.setdefault(image_id, {"image": image})["image"]
            if known is not image and known["file_name"] != image["file_name"]:
                raise SourceError(
                    f"{where}: two images have the id {image_id!r:.40}: {_shown(known)} and {_shown(image)}"
                )
        if file.kind in _CATEGORIES:
            self._read_categories(where, document, self.categories[_CATEGORIES[file.kind]])
        if file.kind in ("instances", "stuff", "panoptic") and "annotations" not in document:
            if file.named:
                raise SourceError(
                    f"{where} lists images and no annotations, which its name promises: fetch it again, or leave it "
                    f"out with --ignore '/{printable(file.path)}'"
                )
            return  # a list of images alone
        if file.kind == "panoptic":
            self._sort_masks(file, where, document, images)
        elif file.kind != "image_info":
            self._sort(file, where, document, images)
        self.ignored["licenses"] += len(document["licenses"]) if isinstance(document.get("licenses"), list) else 0

    def _sort(self, file: AnnotationFile, where: str, document: Any, images: dict[Any, dict[str, Any]]) -> None:
        """Adds the annotations of a file to their images."""
        name = file.kind if file.kind in ("captions", "stuff") else "annotations"
        for image in _entries(where, document, "images"):
            images[image["id"]].setdefault(name, [])
        if file.kind == "keypoints":
            objects = {each.get("id"): each for found in images.values() for each in found["annotations"]}
        for annotation in _entries(where, document, "annotations"):
            found = images.get(annotation.pop("image_id", None)) if _hashable(annotation.get("image_id")) else None
            if found is None:
                self.ignored["annotations of images that are not listed"] += 1
                continue
            known = objects.get(annotation.get("id")) if file.kind == "keypoints" else None
            if known is not None:
                known.update(annotation)
            else:
                found[name].append(annotation)

    def _sort_masks(self, file: AnnotationFile, where: str, document: Any, images: dict[Any, dict[str, Any]]) -> None:
        """Adds to each image the entry of its panoptic mask."""
        for annotation in _entries(where, document, "annotations"):
            found = images.get(annotation.pop("image_id", None)) if _hashable(annotation.get("image_id")) else None
            if found is None:
                self.ignored["annotations of images that are not listed"] += 1
                continue
            if "panoptic" in found:
                raise AmbiguousSourceError(
                    f"{where} has two masks of {_shown(found['image'])}, and a panoptic file has one of each image: "
                    "leave it out with --ignore",
                    [Answer(("--ignore", f"/{file.path}"))],
                )
            try:
                annotation["file_name"] = clean_path(_of_other_machine(str(annotation.get("file_name"))))
            except ValueError as error:
                raise SourceError(f"{where} {error}") from None
            found["panoptic"] = annotation

    def _read_categories(self, where: str, document: dict[str, Any], categories: dict[int, str]) -> None:
        counts = set()
        further: Counter[str] = Counter()
        for category in _entries(where, document, "categories"):
            number, name = category.get("id"), category.get("name")
            if type(number) is not int or not isinstance(name, str):
                raise SourceError(f"{where}: a category without a number or a name: {_shown(category)}")
            if categories.setdefault(number, name) != name:
                raise SourceError(
                    f"{where}: two categories have the id {number}: {printable(name)!r} and "
                    f"{printable(categories[number])!r}"
                )
            keypoints = category.get("keypoints")
            counts.add(len(keypoints) if isinstance(keypoints, list) else 0)
            further.update(key for key in category if key not in ("id", "name"))
        self.ignored.update({f"values {printable(key)!r} of categories": count for key, count in further.items()})
        self.points = max(self.points, counts.pop() if len(counts) == 1 else 0)


def boxes_of(annotations: Iterable[Any]) -> list[list[float]]:
    """``xyxy`` of annotations, whose boxes are ``xywh``. Raises :class:`ValueError`."""
    found = []
    for annotation in annotations:
        box = annotation.get("bbox")
        if not isinstance(box, list) or len(box) != _BBOX or not all(map(_finite, box)):
            raise ValueError(f"annotation {annotation.get('id')!r:.40} has the bbox {box!r:.60}; expected 4 numbers")
        left, top, width, height = map(float, box)
        found.append([left, top, left + width, top + height])
    return found


def segments_of(annotation: Any) -> list[Any]:
    """The segments of a panoptic mask, whose ids are its colours: red + 256 green + 65,536 blue. Raises
    :class:`ValueError`."""
    found = annotation.get("segments_info")
    if not isinstance(found, list) or not all(isinstance(each, dict) and type(each.get("id")) is int for each in found):
        raise ValueError(f"its panoptic mask has the segments_info {found!r:.60}; expected a list of segments with ids")
    return found


def labels_of(annotations: Iterable[Any], numbers: Mapping[int, int]) -> list[int]:
    """Class numbers of annotations; ``numbers`` has them by category. Raises :class:`ValueError`."""
    found = []
    for annotation in annotations:
        category = annotation.get("category_id")
        if not _hashable(category) or category not in numbers:
            raise ValueError(
                f"annotation {annotation.get('id')!r:.40} has the category_id {category!r:.40}, which is no category"
            )
        found.append(numbers[category])
    return found


def keypoints_of(annotations: Iterable[Any], points: int) -> list[list[list[float]]]:
    """``(points, 3)`` of each annotation; zeros, which is "not labelled", where it has none. Raises
    :class:`ValueError`."""
    found = []
    for annotation in annotations:
        flat = annotation.get("keypoints", [0] * (_KEYPOINTS * points))
        if not isinstance(flat, list) or len(flat) != _KEYPOINTS * points or not all(map(_finite, flat)):
            raise ValueError(f"annotation {annotation.get('id')!r:.40} has no {points} keypoints of 3 numbers each")
        found.append([flat[n : n + _KEYPOINTS] for n in range(0, len(flat), _KEYPOINTS)])
    return found


def _entries(where: str, document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    entries = document.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SourceError(f"{where} is no file of COCO: its {name!r} is no list of objects")
    return entries


def _of_url(url: Any) -> str | None:
    """The folder and name of an image of LVIS, which names only where it comes from (``lvis.LVIS.download``)."""
    return "/".join(url.split("/")[-2:]) if isinstance(url, str) else None


def _hashable(value: Any) -> bool:
    return isinstance(value, (int, str))


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) < _LARGEST  # NaN is not


def _shown(entry: dict[str, Any]) -> str:
    return printable(f"{entry.get('file_name', entry)!r:.80}")


def _of_other_machine(name: str) -> str:
    """The last part of an absolute path, which leads nowhere here; another one as it is."""
    absolute = name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:[\\/]", name)
    return re.split(r"[\\/]", name)[-1] if absolute else name
