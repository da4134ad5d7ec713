"""Annotations of a COCO split, joined from several files by image, and kept in a temporary file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.sources.annotation_formats.parsing import check_most_match, is_flagged, parse_id, parse_image_id
from packstore.sources.annotation_formats.spool import Spool
from packstore.sources.beside import clean_path, read_json
from packstore.sources.coco.files import AnnotationFile
from packstore.sources.ignoring import ignore_paths
from packstore.sources.tree import Tree

_MAX_BYTES = 4 << 30
_BBOX, _KEYPOINTS = 4, 3
_LARGEST = 1e30
_CATEGORIES = {"instances": "objects", "keypoints": "objects", "panoptic": "panoptic", "stuff": "stuff"}
_SHAPES = {"bbox", "segmentation", "keypoints", "area"}


class SplitAnnotations:
    """Annotations of the images of a split, joined from all files, in a temporary file.

    Reading takes the JSON of all files in memory. Afterwards each image takes some 40 bytes, and its name. Opening
    raises :class:`SourceError` for an invalid file, and if the temporary file cannot be written. Opening raises
    :class:`AmbiguousSourceError` for two panoptic masks of an image.

    Attributes:
        categories: Names of categories by id: for ``objects``, ``panoptic`` segments, and ``stuff``.
        masks: File names of panoptic masks, by the number of the image.
        points: Number of keypoints of each object; 0 if there are none, or if categories differ.
        annotated: True if there is a file of instances or keypoints, even without annotations.
        captioned: True if there is a file of captions, even an empty one.
        ignored: Number of values that are left out, by reason.
        crowds: True if an annotation is a crowd or a region to ignore.
        boxes: True if an annotation has a box.
        points_alone: True if an annotation has keypoints and no box.
        boxed: True if an annotation has a box or a shape. If False, annotations are classes of whole images.
        most: Largest number of annotations of an image.
        files: Paths of the files.
        category_ids: By file, kind of its categories and number of annotations with each ``category_id``.
    """

    def __init__(self, tree: Tree, files: Mapping[str, AnnotationFile]) -> None:
        """Reads ``files``, given by kind. Raises :class:`SourceError` if they are not COCO's, or contradict each
        other."""
        self._tree = tree
        self.files = [file.path for file in files.values()]
        self.categories: dict[str, dict[int, str]] = {"objects": {}, "panoptic": {}, "stuff": {}}
        self.masks: dict[int, bytes] = {}
        self.points = 0
        self.annotated, self.captioned = bool({"instances", "keypoints"} & files.keys()), "captions" in files
        self.ignored: Counter[str] = Counter()
        self.boxed, self.crowds, self.most = False, False, 0
        self.boxes, self.points_alone = False, False
        self.category_ids: dict[str, tuple[str, Counter[int | str | None]]] = {}
        self._names: list[bytes] = []
        images: dict[Any, dict[str, Any]] = {}
        for file in files.values():
            self._read_file(file, images)
        try:
            self._spool = Spool(self._take_entries_by_id(images))
        except OSError as error:
            raise SourceError(
                f"{tree.name()}: its annotations cannot be written to a temporary file: {error.strerror}"
            ) from None

    def __len__(self) -> int:
        return len(self._names)

    def walk_image_names(self) -> Iterator[str]:
        """Yields the file names of the images in the order of their ids, as torchvision's ``CocoDetection``."""
        return (name.decode("utf-8", "surrogateescape") for name in self._names)

    def rename_images(self, names: Iterable[str]) -> None:
        """Replaces the file names of all images, in their order."""
        self._names = [name.encode("utf-8", "surrogateescape") for name in names]

    def entry_size(self, number: int) -> int:
        """Returns the size of an image's entries in the temporary file, in bytes."""
        return self._spool.value_size(number)

    def read_entry(self, number: int) -> dict[str, Any]:
        """Reads the entries of an image by name: ``image``, and any of ``annotations``, ``captions``, ``panoptic`` and
        ``stuff``. Thread-safe."""
        entries: dict[str, Any] = self._spool.read_value(number)
        return entries

    def close(self) -> None:
        """Removes the temporary file. Idempotent."""
        self._spool.close()

    def _take_entries_by_id(self, images: dict[Any, dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yields the entries of each image in the order of ids, and removes them from ``images``. Records the image's
        file name, its mask and facts about its annotations. Raises :class:`SourceError` if two images have one file
        name."""
        seen: set[bytes] = set()
        for image_id in sorted(images, key=lambda each: (isinstance(each, str), each)):
            entries = images.pop(image_id)
            name = str(entries["image"]["file_name"]).encode("utf-8", "surrogateescape")
            if name in seen:
                shown = _describe_entry(entries["image"])
                raise SourceError(f"{self._tree.name()}: two images have the file name {shown}")
            seen.add(name)
            if "panoptic" in entries:
                self.masks[len(self._names)] = entries["panoptic"]["file_name"].encode("utf-8", "surrogateescape")
            self._names.append(name)
            annotations = entries.get("annotations", ())
            self.most = max(self.most, len(annotations))
            self.boxed = self.boxed or any(each.keys() & _SHAPES for each in annotations)
            self.crowds = self.crowds or any(parse_crowds(annotations))
            self.boxes = self.boxes or any(each.get("bbox") for each in annotations)
            self.points_alone = self.points_alone or any(map(_has_points_alone, annotations))
            yield entries

    def _read_file(self, file: AnnotationFile, images: dict[Any, dict[str, Any]]) -> None:
        """Reads a file. Adds its images and annotations to ``images`` (by id), and its categories to
        :attr:`categories`.

        Image names become clean paths, and licenses are counted as left out. Raises :class:`SourceError` if the file is
        not COCO's, or contradicts earlier files. Also raises it if ``annotations`` are missing that the file's name
        promises. Raises :class:`AmbiguousSourceError` for a second panoptic mask of an image.
        """
        where = self._tree.name(file.path)
        document = read_json(self._tree, file.path, _MAX_BYTES)
        if not isinstance(document, dict):
            raise SourceError(f"{where} is no file of COCO: found {type(document).__name__}, expected an object")
        for image in _read_list(where, document, "images"):
            image_id, name = parse_id(image.get("id")), image.get("file_name", _name_from_url(image.get("coco_url")))
            if not isinstance(name, str) or image_id is None:
                raise SourceError(f"{where}: an image without an id or a file name: {_describe_entry(image)}")
            try:
                image["file_name"] = clean_path(_strip_absolute(name))
            except ValueError as error:
                raise SourceError(f"{where} {error}") from None
            known = images.setdefault(image_id, {"image": image})["image"]
            if known is not image and known["file_name"] != image["file_name"]:
                raise SourceError(
                    f"{where}: two images have the id {image_id!r:.40}: {_describe_entry(known)} and "
                    f"{_describe_entry(image)}"
                )
        if file.kind in _CATEGORIES:
            self._read_categories(where, document, self.categories[_CATEGORIES[file.kind]])
        if file.kind in ("instances", "stuff", "panoptic") and "annotations" not in document:
            if file.named:
                raise SourceError(
                    f"{where} lists images, but no annotations, which its name promises: fetch it again, or leave "
                    f"it out with --ignore '/{printable(file.path)}'"
                )
            return  # a list of images alone
        if file.kind == "panoptic":
            self._add_panoptic_masks(file, where, document, images)
        elif file.kind != "image_info":
            self._add_annotations(file, where, document, images)
        self.ignored["licenses"] += len(document["licenses"]) if isinstance(document.get("licenses"), list) else 0

    def _add_annotations(
        self, file: AnnotationFile, where: str, document: Any, images: dict[Any, dict[str, Any]]
    ) -> None:
        """Adds the annotations of a file to their images, without ``image_id``. Keypoints are merged into the object
        with the same id, or else become an object themselves. Leaves out and counts annotations of unlisted images."""
        name = file.kind if file.kind in ("captions", "stuff") else "annotations"
        for image in _read_list(where, document, "images"):
            images[parse_id(image["id"])].setdefault(name, [])
        objects: dict[Any, dict[str, Any]] = {}
        if file.kind == "keypoints":
            earlier = (each for entries in images.values() for each in entries.get("annotations", ()))
            objects = {number: each for each in earlier if (number := parse_id(each.get("id"))) is not None}
        category_ids: Counter[int | str | None] = Counter()
        for annotation, entries in self._match_images(where, document, images):
            if file.kind in _CATEGORIES:
                category_ids[parse_id(annotation.get("category_id"))] += 1
            known = objects.get(parse_id(annotation.get("id")))
            if known is not None:
                known.update(annotation)
            else:
                entries[name].append(annotation)
        if file.kind in _CATEGORIES:
            self.category_ids[file.path] = _CATEGORIES[file.kind], category_ids

    def _match_images(
        self, where: str, document: Any, images: dict[Any, dict[str, Any]]
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yields each annotation of a file, without ``image_id``, with the entries of its image. Leaves out and counts
        annotations of unlisted images. Raises :class:`SourceError` for an ``image_id`` that is no id, and at the end if
        most annotations are left out."""
        annotations, unmatched = _read_list(where, document, "annotations"), []
        for annotation in annotations:
            image_id = annotation.pop("image_id", None)
            entries = images.get(parse_image_id(where, image_id, annotation.get("id")))
            if entries is None:
                unmatched.append(image_id)
            else:
                yield annotation, entries
        check_most_match(where, "image_id", unmatched, len(annotations), images)
        self.ignored["annotations of images that are not listed"] += len(unmatched)

    def _add_panoptic_masks(
        self, file: AnnotationFile, where: str, document: Any, images: dict[Any, dict[str, Any]]
    ) -> None:
        """Adds the entries of panoptic masks to their images, without ``image_id``. Leaves out and counts masks of
        unlisted images. Raises :class:`AmbiguousSourceError` for a second mask of an image, and :class:`SourceError`
        for a path out of the source."""
        for annotation, entries in self._match_images(where, document, images):
            if "panoptic" in entries:
                raise AmbiguousSourceError(
                    f"{where} has two panoptic masks of {_describe_entry(entries['image'])}, and an image has one: "
                    "leave the file out with --ignore",
                    [Answer(ignore_paths([file.path]))],
                )
            try:
                annotation["file_name"] = clean_path(_strip_absolute(str(annotation.get("file_name"))))
            except ValueError as error:
                raise SourceError(f"{where} {error}") from None
            entries["panoptic"] = annotation

    def _read_categories(self, where: str, document: dict[str, Any], categories: dict[int, str]) -> None:
        """Adds the categories of a file to ``categories``, and counts their values other than id and name.

        If all categories have the same number of keypoints, increases :attr:`points` to this number. Raises
        :class:`SourceError` for a category without a number or a name, and for two names of one id.
        """
        counts = set()
        further: Counter[str] = Counter()
        for category in _read_list(where, document, "categories"):
            number, name = parse_id(category.get("id")), category.get("name")
            if not isinstance(number, int) or not isinstance(name, str):
                raise SourceError(f"{where}: a category without a number or a name: {_describe_entry(category)}")
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


def parse_boxes(annotations: Iterable[Any]) -> list[list[float]]:
    """Converts the boxes of annotations from ``xywh`` to ``xyxy``. Raises :class:`ValueError` if an annotation has no
    box of 4 numbers."""
    boxes = []
    for annotation in annotations:
        box = annotation.get("bbox")
        if _has_points_alone(annotation):
            raise ValueError(
                f"annotation {annotation.get('id')!r:.40} has keypoints and no bbox, and other annotations have one: "
                "add the bbox, or remove every bbox to pack keypoints without boxes"
            )
        if not isinstance(box, list) or len(box) != _BBOX or not all(map(_is_coordinate, box)):
            raise ValueError(f"annotation {annotation.get('id')!r:.40} has the bbox {box!r:.60}; expected 4 numbers")
        left, top, width, height = map(float, box)
        boxes.append([left, top, left + width, top + height])
    return boxes


def _has_points_alone(annotation: Mapping[str, Any]) -> bool:
    """Tells if an annotation has keypoints and no box."""
    return bool(annotation.get("keypoints")) and not annotation.get("bbox")


def parse_crowds(annotations: Iterable[Any]) -> list[int]:
    """Returns 1 for each annotation with the flag ``iscrowd`` or ``ignore``, else 0. ``ignore`` is CityPersons', and
    that of MMDetection (https://github.com/open-mmlab/mmdetection, ``CocoDataset``)."""
    return [int(is_flagged(each, "iscrowd", "ignore")) for each in annotations]


def parse_segments(annotation: Any) -> list[Any]:
    """Returns the ``segments_info`` of a panoptic mask. Raises :class:`ValueError` if it is no list of segments with
    whole numbers as ids."""
    segments = annotation.get("segments_info")
    if not isinstance(segments, list) or not all(
        isinstance(each, dict) and isinstance(parse_id(each.get("id")), int) for each in segments
    ):
        raise ValueError(
            f"its panoptic mask has the segments_info {segments!r:.60}; expected a list of segments with ids"
        )
    return segments


def parse_labels(annotations: Iterable[Any], numbers: Mapping[Any, int]) -> list[int]:
    """Converts the category ids of annotations to class numbers, by ``numbers``. Raises :class:`ValueError` for an
    unknown id."""
    labels = []
    for annotation in annotations:
        category = parse_id(annotation.get("category_id"))
        if category not in numbers:
            raise ValueError(
                f"annotation {annotation.get('id')!r:.40} has the category_id {annotation.get('category_id')!r:.40}, "
                "which is not in categories"
            )
        labels.append(numbers[category])
    return labels


def parse_keypoints(annotations: Iterable[Any], points: int) -> list[list[list[float]]]:
    """Returns the keypoints ``(points, 3)`` of each annotation. Without keypoints they are zeros, which mean "not
    labelled". Raises :class:`ValueError` for another number of keypoints, and for values that are no coordinates."""
    keypoints = []
    for annotation in annotations:
        flat = annotation.get("keypoints", [0] * (_KEYPOINTS * points))
        if not isinstance(flat, list) or len(flat) != _KEYPOINTS * points or not all(map(_is_coordinate, flat)):
            raise ValueError(
                f"annotation {annotation.get('id')!r:.40} should have {points} keypoints of 3 numbers each"
            )
        keypoints.append([flat[n : n + _KEYPOINTS] for n in range(0, len(flat), _KEYPOINTS)])
    return keypoints


def _read_list(where: str, document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Returns the list of objects ``name`` of a document; ``[]`` if it is missing. Raises :class:`SourceError` for any
    other value."""
    entries = document.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SourceError(f"{where} is no file of COCO: its {name!r} is no list of objects")
    return entries


def _name_from_url(url: Any) -> str | None:
    """Returns the last two parts of an image's URL: LVIS has no file names, and its images have these paths. Returns
    None if ``url`` is no text."""
    return "/".join(url.split("/")[-2:]) if isinstance(url, str) else None


def _is_coordinate(value: Any) -> bool:
    """Tells if a value is a number between -1e30 and 1e30; False for NaN."""
    return isinstance(value, (int, float)) and abs(value) < _LARGEST  # NaN is not


def _describe_entry(entry: dict[str, Any]) -> str:
    """Returns an entry's file name for messages, or the whole entry without one: the first 80 characters."""
    return printable(f"{entry.get('file_name', entry)!r:.80}")


def _strip_absolute(name: str) -> str:
    """Returns the last part of an absolute path, which was valid on another machine. Returns other paths unchanged."""
    absolute = name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:[\\/]", name)
    return re.split(r"[\\/]", name)[-1] if absolute else name
