"""Finds COCO's files of annotations, their splits and folders; joins those of a split by image in a temporary file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.sources.annotation_formats.parsing import clean_image_path, is_flagged, match_images, parse_id
from packstore.sources.annotation_formats.spool import Spool
from packstore.sources.beside import find_base_folder, join, read_json, read_whole
from packstore.sources.ignoring import ignore_paths
from packstore.sources.listing import is_passed_over
from packstore.sources.rows import in_packing_order
from packstore.sources.splits import find_split
from packstore.sources.tree import Tree

_MAX_BYTES = 4 << 30
_BBOX, _KEYPOINTS = 4, 3
_LARGEST = 1e30
_CATEGORIES = {"instances": "objects", "keypoints": "objects", "panoptic": "panoptic", "stuff": "stuff"}
_SHAPES = {"bbox", "segmentation", "keypoints", "area"}
_START = 1 << 16
_PROBED, _WHOLE = 16, 1 << 30
_NAME = re.compile(
    r"(?:(instances|captions|person_keypoints|keypoints|panoptic|stuff|images?_info)(?=[_.-]))?[_-]?(.*?)[.]json"
)
_NO_SPLIT = frozenset({"", "annotation", "annotations", "annotations.coco", "coco", "default", "instances", "labels"})
_LISTS = re.compile(rb'"(?:images|annotations|categories)"\s*:\s*\[')
_ENTRIES = re.compile(rb'"(?:coco_url|file_name|image_id|category_id|supercategory)"\s*:')
_OF_ONE_IMAGE = re.compile(rb'"image"\s*:\s*\{')
"""Matches a file of one image, as in SA-1B, which is not COCO's."""
_BESIDE = ("annotations", "Annotations", "annotation", "labels", "coco")
_KINDS = {"person_keypoints": "keypoints", "images_info": "image_info", "": "instances"}
READ_ORDER = ("instances", "keypoints", "captions", "stuff", "panoptic", "image_info")
"""Kinds of files, in reading order."""


@dataclass(frozen=True, slots=True)
class AnnotationFile:
    """File of annotations, and the facts in its name.

    Attributes:
        path: Path in the tree.
        kind: One of :data:`READ_ORDER`.
        split: Name of the split, ``""`` if there is none.
        token: Part of the file's name after the kind, mostly the split with a year: ``train2017``.
        named: True if the kind is in the file's name.
    """

    path: str
    kind: str
    split: str
    token: str
    named: bool = True


def find_annotation_files(tree: Tree) -> list[AnnotationFile]:
    """Finds COCO's files of annotations, by names and first bytes. Looks in the top folder and in the folders directly
    in it, except hidden ones. Returns ``[]`` if there are none."""
    folders = ["", *_BESIDE]
    folders += [name for name in tree.names("").folders if name not in folders and not is_passed_over(name)]
    return [file for folder in folders for file in _find_in_folder(tree, folder)]


def separate_copies(tree: Tree, files: list[AnnotationFile]) -> tuple[list[AnnotationFile], list[AnnotationFile]]:
    """Separates files from copies; returns both lists. A copy has the bytes of an earlier file of the same split and
    kind."""
    own: list[AnnotationFile] = []
    copies: list[AnnotationFile] = []
    for file in files:
        alike = (each for each in own if (each.split, each.kind) == (file.split, file.kind))
        (copies if any(_have_same_bytes(tree, each.path, file.path) for each in alike) else own).append(file)
    return own, copies


def _have_same_bytes(tree: Tree, one: str, other: str) -> bool:
    """Tells if two files have the same content."""
    return tree.stat(one).size == tree.stat(other).size and read_whole(tree, one) == read_whole(tree, other)


def group_by_split(tree: Tree, files: list[AnnotationFile]) -> dict[str, dict[str, AnnotationFile]]:
    """Groups files by split, in packing order, and then by kind.

    If two files of one kind have the same split, their tokens (``train2014``, ``train2017``) become the splits. If a
    split has neither instances nor keypoints, its file of stuff counts as instances. Raises
    :class:`AmbiguousSourceError` if two files of one kind have the same token. Also raises it if only some of the files
    have a split.
    """
    counts = Counter((file.split, file.kind) for file in files)
    shared = {split for (split, _), count in counts.items() if count > 1}
    groups: dict[str, dict[str, AnnotationFile]] = {}
    for file in files:
        split = file.token if file.split in shared else file.split
        kinds = groups.setdefault(split, {})
        other = kinds.setdefault(file.kind, file)
        if other is not file:
            raise _several_files_error(
                tree, [each for each in files if (each.token, each.kind) == (file.token, file.kind)]
            )
    if len(groups) > 1 and "" in groups:
        odd = list(groups[""].values())
        others = [file for kinds in groups.values() for file in kinds.values() if file not in odd]
        raise AmbiguousSourceError(
            f"{tree.name(odd[0].path)}: its name has no split, but others have one: rename it "
            "(instances_train.json), or take it out of the folder",
            [Answer(ignore_paths(file.path for file in each)) for each in (odd, others)],
        )
    for kinds in groups.values():
        if "stuff" in kinds and not {"instances", "keypoints"} & kinds.keys():
            kinds["instances"] = replace(kinds.pop("stuff"), kind="instances")
    order = in_packing_order(groups)
    return {split: {kind: groups[split][kind] for kind in READ_ORDER if kind in groups[split]} for split in order}


def _several_files_error(tree: Tree, files: list[AnnotationFile]) -> AmbiguousSourceError:
    """Returns the error for several files of one kind and split. If two of them share a folder, each answer keeps one
    file and ignores the others. Else each answer opens one of the folders."""
    named = " and ".join(printable(file.path) for file in files)
    folders = [file.path.rpartition("/")[0] for file in files]
    answers = [Answer(source=Path(tree.root, folder)) for folder in folders if folder and Path(tree.root).is_dir()]
    if len(set(folders)) < len(folders):
        answers = [Answer(ignore_paths(each.path for each in files if each is not kept)) for kept in files]
        return AmbiguousSourceError(
            f"{tree.name()} is annotated twice, by {named}, whose names have no split: leave one out with --ignore",
            answers,
        )
    return AmbiguousSourceError(
        f"{tree.name()} has {named}, whose names have no split: give one of their folders", answers
    )


def find_image_folder(tree: Tree, file: AnnotationFile, names: list[str]) -> str | None:
    """Finds the folder with most of the images ``names``; of equal folders, the first. Looks in folders beside and
    above the file, with usual names such as ``images`` or the split. Returns None if no folder has any of the
    images."""
    beside = file.path.rpartition("/")[0]
    above = beside.rpartition("/")[0]
    wanted = dict.fromkeys(filter(None, (file.token, file.split)))
    bases = dict.fromkeys((beside, above, join(beside, "images"), join(above, "images")))
    dated = [name for base in bases for name in tree.names(base).folders if _is_named_by_split(name, file.split)]
    wanted |= dict.fromkeys(dated)
    places = [place for name in wanted for place in (name, f"images/{name}", f"{name}/images")]
    places += ["images", "image", "img", "imgs", "data", "JPEGImages", ""]
    return find_base_folder(tree, names, [join(base, place) for base in (beside, above) for place in places])


def find_mask_folder(tree: Tree, file: AnnotationFile, names: Iterable[str], end: str = "") -> str | None:
    """Finds the folder with most of the masks ``names`` of an annotation file; returns None if no folder has any.

    The folder's name is that of the file without suffix, plus ``end``. The folder is beside the file, one level above,
    or in ``images`` in one of these. Without ``end``, it may also be the file's own folder.
    """
    beside = file.path.rpartition("/")[0]
    stem = file.path.rpartition("/")[2].rpartition(".")[0]
    above = beside.rpartition("/")[0]
    places = [join(base, f"{name}{end}") for base in (beside, above) for name in (stem, f"images/{stem}")]
    return find_base_folder(tree, names, [*places, *(() if end else (beside,))])


def _is_named_by_split(folder: str, split: str) -> bool:
    """Tells if a folder's name is the split with a number or a word for images: ``train2017``, ``train_images``. False
    for an empty split."""
    return bool(split) and re.fullmatch(rf"{re.escape(split)}[_-]?(\d+|images?|imgs?)", folder.lower()) is not None


def _find_in_folder(tree: Tree, folder: str) -> Iterator[AnnotationFile]:
    """Yields the files of annotations in a folder: JSON objects with one of COCO's lists.

    - The list has to begin in the first 64 KiB of a file. For a file with COCO's name, the first 1 GiB is searched.
    - Without a kind in its name, a file also needs a value such as ``image_id`` in the first 64 KiB.
    - Files of a single image are skipped.
    - If the folder has more than 16 JSON files, only files with COCO's names count.
    """
    names = [name for name in tree.names(folder).ending(".json") if name[0] != "." or _has_coco_name(name)]
    if len(names) > _PROBED:  # a file for each image
        names = [name for name in names if _has_coco_name(name)]
    for name in names:
        path = join(folder, name)
        start = tree.first_bytes(path, _START)
        if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{":
            continue
        if not _LISTS.search(start) and not (_has_coco_name(name) and _LISTS.search(tree.first_bytes(path, _WHOLE))):
            continue
        if _OF_ONE_IMAGE.search(start):
            continue
        match = _NAME.fullmatch(name.lower().lstrip("."))
        kind, token = (match[1] or "", match[2]) if match else ("", "")
        if not kind and not _ENTRIES.search(start):
            continue
        yield AnnotationFile(path, _KINDS.get(kind, kind), _find_split(kind, token, folder), token, bool(kind))


def _has_coco_name(name: str) -> bool:
    """Tells if a file has a name as COCO or Roboflow writes it; a dot may precede the name."""
    match = _NAME.fullmatch(name.lower().lstrip("."))
    return match is not None and (match[1] is not None or match[2] == "annotations.coco") and name[:2] != "._"


def _find_split(kind: str, token: str, folder: str) -> str:
    """Returns the split of a file of annotations. ``token`` is the part of the file's name after the kind. Takes the
    first of these that exists:

    - the split in ``token``
    - ``token`` without its year, if the name has a kind, and ``token`` is no word such as ``default``
    - the split in the folder's name
    - ``""``
    """
    known = find_split(token)
    if known or (kind and token not in _NO_SPLIT):
        return known or re.sub(r"[_-]?(19|20)\d\d$", "", token)
    return find_split(folder.rpartition("/")[2])


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
        facts: ``boxes``, ``crowds``, ``lone points`` (keypoints without a box) and ``shapes`` (of any kind), if any
            annotation has them. Without ``shapes``, annotations are classes of whole images.
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
        self.facts: set[str] = set()
        self.most = 0
        self.category_ids: dict[str, tuple[str, Counter[int | str | None]]] = {}
        self._names: list[bytes] = []
        images: dict[Any, dict[str, Any]] = {}
        for file in files.values():
            self._read_file(file, images)
        self._spool = Spool(tree.name(), self._take_entries_by_id(images))

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
            for each in annotations:
                self.facts |= {"shapes"} if each.keys() & _SHAPES else set()
                self.facts |= {"boxes"} if each.get("bbox") else {"lone points"} if each.get("keypoints") else set()
            self.facts |= {"crowds"} if any(parse_crowds(annotations)) else set()
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
                image["file_name"] = clean_image_path(name)
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
        annotations = _read_list(where, document, "annotations")
        listed = ((each.get("id"), each.pop("image_id", None), each) for each in annotations)
        for annotation, entries in match_images(where, listed, images):
            if entries is None:
                self.ignored["annotations of images that are not listed"] += 1
            else:
                yield annotation, entries

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
                annotation["file_name"] = clean_image_path(str(annotation.get("file_name")))
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
