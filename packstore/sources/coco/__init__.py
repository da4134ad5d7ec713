"""COCO (https://cocodataset.org/#format-data): folders of images, and JSON files with their annotations.

Category ids are not class numbers: classes are numbered from 0 in the order of ids. Boxes are ``x, y, width, height``
from the corner of the first pixel, so ``xyxy`` is ``(x, y, x + width, y + height)``. Opening takes several times the
size of a file of annotations in memory; afterwards a temporary file holds its content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from packstore.core.columns import CROWD
from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Array, Boxes, Field, Image, Json, Keypoints, Label, Labels, Segments
from packstore.sources.annotation_formats.parsing import check_most_match, clean_image_path, match_images, parse_id
from packstore.sources.annotation_formats.spool import SpooledEntry, SpooledSource
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import holds_yolo_labels, infer_mask_field, is_file, join, number_repeated_names
from packstore.sources.coco import documents
from packstore.sources.ignoring import ignore_paths
from packstore.sources.rows import FileRow, InTree
from packstore.sources.splits import find_splits_of_folders

_UNREAD = "files of annotations of images that are missing"
_SHAPES = {"bbox", "segmentation", "keypoints", "area"}


class CocoSource(SpooledSource):
    """Images of ``instances_*.json``, ``person_keypoints_*.json``, ``captions_*.json`` and ``panoptic_*.json``, joined
    by split.

    Columns, for files of annotations that exist:

    - ``boxes`` and ``labels``; ``keypoints`` if all categories with keypoints have the same number
    - ``keypoints`` and ``keypoint_labels`` instead if no annotation has a box
    - ``segments`` if any annotation has a segmentation
    - ``iscrowd`` if any box is a crowd or a region to ignore
    - ``label`` instead if no annotation has a box or a shape, as in iNaturalist; ``tags`` if such an image has several
      labels
    - ``captions``: a list of texts
    - ``panoptic_mask`` with ``segment_ids`` and ``segment_labels``
    - ``json``: entries of the image and of its annotations, without image ids, segmentations and captions

    An image without annotations has 0 boxes. In a split without a file of objects, ``boxes`` is missing.

    Leaves out a split without any of its images. Splits have names without their year, if possible. Opening raises
    :class:`AmbiguousSourceError` if splits share an image, name a category differently, or have two files of a kind.
    Opening raises :class:`SourceError` if there are no annotations or no images, or if a file is damaged.
    """

    kind = "coco"
    left_images = "images that no annotations name"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        groups = documents.group_by_split(self.tree, documents.find_annotation_files(self.tree))
        if not groups:
            raise SourceError(f"{printable(str(path))} has no annotations of COCO (annotations/instances_train.json)")
        self._paths: dict[str, list[str]] = {}  # of the files of a split, by the first of them
        self._unread: dict[str, str] = {}  # first image of each file
        self._ignored: Counter[str] = Counter()
        self._names: dict[str, dict[int, str]] = {"objects": {}, "panoptic": {}}
        self._named_by: dict[tuple[str, int], str] = {}  # the first file with a category
        self._category_ids: dict[str, Counter[int | str | None]] = {}  # of objects, by file
        self._masks: dict[int, bytes] = {}  # panoptic ones, by number of image
        self._kinds, self._points = set[str](), set[int]()
        self._has_shapes = self._has_boxes = self._has_crowds = self._has_segments = False
        self._most_tags = 0
        self.spool_entries(chain.from_iterable(self._read_split(*each) for each in groups.items()))
        if not self._splits:
            file, image = next(iter(self._unread.items()))
            raise SourceError(f"{self.tree.name()}: the images of {printable(file)} are missing: {printable(image)}")
        for file, counts in self._category_ids.items():
            unmatched = [number for number in counts.elements() if number not in self._names["objects"]]
            check_most_match(self.tree.name(file), "category_id", unmatched, counts.total())
        short = {split: next(iter(files.values())).split for split, files in groups.items()}
        short = {split: short.get(split) or split for split in self._splits}
        unique = {name for name, count in Counter(short.values()).items() if count == 1}
        self._splits = [name if name in unique else split for split, name in short.items()]
        self._files = [*chain(*self._paths.values())]
        self.evidence = ", ".join(map(printable, self._files))
        ids = {kind: sorted(names) for kind, names in self._names.items()}
        self._classes = {
            kind: number_repeated_names([self._names[kind][each] for each in some], some) for kind, some in ids.items()
        }
        self._numbers = {kind: {each: n for n, each in enumerate(some)} for kind, some in ids.items()}
        self._most_tags = 0 if self._has_shapes else self._most_tags
        self._point_count = max(self._points) if len(self._points) == 1 else 0
        self._points_alone = self._has_shapes and not self._has_boxes and self._point_count > 0

    def _read_split(self, split: str, files: Mapping[str, documents.AnnotationFile]) -> Iterator[SpooledEntry]:
        """Reads the files of a split, given by kind, and yields an entry for each image."""
        images: dict[Any, dict[str, Any]] = {}
        contents = {kind: documents.read_document(self.tree, file) for kind, file in files.items()}
        for kind, document in contents.items():
            for image in document.get("images", ()):
                known = images.setdefault(parse_id(image["id"]), {"image": image})["image"]
                if known["file_name"] != image["file_name"]:
                    both = f"{documents.describe_entry(known)} and {documents.describe_entry(image)}"
                    raise SourceError(f"{self.tree.name(files[kind].path)}: two images have one id: {both}")
        # The order of torchvision's ``CocoDetection``.
        ids = sorted(images, key=lambda each: (isinstance(each, str), each))
        first, paths = next(iter(files.values())), [file.path for file in files.values()]
        places, names = documents.find_image_places(
            self.tree, first, [images[each]["image"]["file_name"] for each in ids]
        )
        if places is None:  # the images of these files are missing
            self._unread |= dict.fromkeys(paths, next(iter(names), "none are named"))
            return
        self._paths[first.path] = paths
        self._kinds |= files.keys()
        for kind, file in files.items():
            self._add_annotations(file, contents.pop(kind), images)
        masks = self._find_panoptic_masks(files["panoptic"], images) if "panoptic" in files else {}
        folders = [join(folder, name).rpartition("/")[0] for folder, name in zip(places, names, strict=True)]
        splits = {} if split else find_splits_of_folders(folders, some=True)
        for number, folder, name in zip(ids, folders, names, strict=True):
            entries = images.pop(number)
            annotations = entries.get("annotations", ())
            self._has_shapes |= any(each.keys() & _SHAPES for each in annotations)
            self._has_boxes |= any(each.get("bbox") for each in annotations)
            self._has_segments |= any(each.get("segmentation") is not None for each in annotations)
            self._has_crowds |= any(documents.parse_crowds(annotations))
            self._most_tags = max(self._most_tags, len(annotations))
            if number in masks:
                self._masks[len(self._images)] = masks[number].encode("utf-8", "surrogateescape")
            # ``entries`` has by kind what the files say about the image: ``image``, ``annotations``, ``captions`` ….
            yield SpooledEntry(join(folder, name.rpartition("/")[2]), splits.get(folder, split), first.path, entries)

    def _add_annotations(
        self, file: documents.AnnotationFile, document: Any, images: Mapping[Any, dict[str, Any]]
    ) -> None:
        """Adds the annotations of a file to the entries of their images."""
        where, name = self.tree.name(file.path), file.kind if file.kind in ("captions", "panoptic") else "annotations"
        if file.kind in ("instances", "keypoints", "panoptic"):
            self._add_categories(file.path, document, "panoptic" if file.kind == "panoptic" else "objects")
        if file.kind == "image_info" or "annotations" not in document:
            return
        for image in document["images"]:
            images[parse_id(image["id"])].setdefault(name, [])
        objects: dict[Any, dict[str, Any]] = {}
        if file.kind == "keypoints":
            earlier = (each for entries in images.values() for each in entries.get("annotations", ()))
            objects = {number: each for each in earlier if (number := parse_id(each.get("id"))) is not None}
        category_ids: Counter[int | str | None] = Counter()
        listed = ((each.get("id"), each.pop("image_id", None), each) for each in document["annotations"])
        # Raises at the end if most annotations are of images that are not listed.
        for annotation, entries in match_images(where, listed, images):
            if entries is None:
                self._ignored["annotations of images that are not listed"] += 1
                continue
            category_ids[parse_id(annotation.get("category_id"))] += 1
            # Keypoints belong to the object with their id, or are an object themselves.
            if (known := objects.get(parse_id(annotation.get("id")))) is not None:
                known.update(annotation)
            else:
                entries[name].append(annotation)
        if name == "annotations":
            self._category_ids[file.path] = category_ids

    def _add_categories(self, file: str, document: Any, kind: str) -> None:
        """Adds the categories of a file."""
        where = self.tree.name(file)
        for category in document.get("categories", ()):
            number, name, points = parse_id(category.get("id")), category.get("name"), category.get("keypoints")
            if not isinstance(number, int) or not isinstance(name, str):
                raise SourceError(
                    f"{where}: a category without a number or a name: {documents.describe_entry(category)}"
                )
            first = self._named_by.setdefault((kind, number), file)
            if (known := self._names[kind].setdefault(number, name)) != name:
                raise AmbiguousSourceError(
                    f"{where}: category {number} is {printable(name)!r}, and elsewhere {printable(known)!r}: leave one "
                    "of the files in the folder",
                    [Answer(ignore_paths([each])) for each in (first, file) if first != file],
                )
            self._points |= {len(points)} if points and isinstance(points, list) else set()

    def _find_panoptic_masks(
        self, file: documents.AnnotationFile, images: Mapping[Any, dict[str, Any]]
    ) -> dict[Any, str]:
        """Returns the path of each panoptic mask by image, and replaces the lists of panoptic annotations by their only
        elements.
        """
        masks = {}
        for number, entries in images.items():
            try:
                if len(found := entries.pop("panoptic", [])) > 1:
                    raise ValueError(f"two panoptic masks of {documents.describe_entry(entries['image'])}")
                for entry in found:
                    masks[number] = entry["file_name"] = clean_image_path(str(entry.get("file_name")))
                    entries["panoptic"] = entry
            except ValueError as error:
                raise SourceError(f"{self.tree.name(file.path)}: {error}") from None
        folder = documents.find_mask_folder(self.tree, file, masks.values())
        if folder is None:  # all masks are missing, for example if only the annotations were downloaded
            self._ignored["panoptic masks that are missing"] += len(masks)
            return {}
        return {number: join(folder, mask) for number, mask in masks.items()}

    def fields(self) -> Mapping[str, Field]:
        """Declares the columns that the annotations of any split need. Opens masks to see if they have one channel."""
        columns: dict[str, Field] = {"image": Image()}
        classes = self._classes
        if self._most_tags:
            several = self._most_tags > 1
            labels = Labels(classes["objects"], of=False, optional=True)
            columns |= {"tags": labels} if several else {"label": Label(classes["objects"], optional=True)}
        elif self._points_alone:
            columns["keypoints"] = Keypoints(3, of=False, points=self._point_count, optional=True)
            columns["keypoint_labels"] = Labels(classes["objects"], of=False, optional=True)
        elif self._kinds & {"instances", "keypoints"}:
            columns |= {"boxes": Boxes(optional=True), "labels": Labels(classes["objects"], of="boxes", optional=True)}
            if self._has_crowds:
                columns[CROWD] = Labels(of="boxes", optional=True)
            if self._has_segments:
                columns["segments"] = Segments(of="boxes", optional=True)
            if self._point_count:
                columns["keypoints"] = Keypoints(3, of="boxes", points=self._point_count, optional=True)
        if "captions" in self._kinds:
            columns["captions"] = Json(optional=True)
        if "panoptic" in self._kinds:
            columns["segment_ids"] = Array("int64", ragged=True, optional=True)
            columns["segment_labels"] = Labels(classes["panoptic"], of=False, optional=True)
        if self._masks:
            files = (mask.decode("utf-8", "surrogateescape") for mask in self._masks.values())
            columns["panoptic_mask"] = infer_mask_field(self.tree, (file for file in files if is_file(self.tree, file)))
        return columns | {"json": Json(shapes=True)}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each image of a split, with its panoptic mask."""
        for row in self.entry_rows(split):
            mask = self._masks.get(row.values["entry"])
            files = {} if mask is None else {"panoptic_mask": InTree(mask.decode("utf-8", "surrogateescape"))}
            yield row._replace(values={**row.values, **files})

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads an image with its masks, and converts its annotations to columns. Classes of whole images become
        ``label`` or ``tags``. ``json`` has all entries, without the captions and segmentations.

        A column is left out if the split has no such annotations. Raises :class:`ValueError` for invalid annotations.
        """
        values = dict(super().read_values(ref))
        entries = self.read_entry(values.pop("entry"))
        with self.name_annotation_file(ref):
            return values | self._parse_entries(entries) | {"json": entries}

    def find_annotation_file(self, ref: Any) -> str:
        """Returns the paths of the files that have the entries of a row."""
        return " or ".join(self._paths[super().find_annotation_file(ref)])

    def _parse_entries(self, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Converts the entries of an image to columns, and removes its captions from them."""
        values: dict[str, Any] = {}
        if (annotations := entries.get("annotations")) is not None:
            labels = documents.parse_labels(annotations, self._numbers["objects"])
            points = documents.parse_keypoints(annotations, self._point_count) if self._point_count else []
            if self._most_tags:
                values |= {"tags": labels} if self._most_tags > 1 else {"label": labels[0] if labels else None}
            elif self._points_alone:
                values |= {"keypoints": points, "keypoint_labels": labels}
            else:
                values |= {"boxes": documents.parse_boxes(annotations), "labels": labels}
                values |= {"segments": documents.take_segments(annotations)} if self._has_segments else {}
                values |= {CROWD: documents.parse_crowds(annotations)} if self._has_crowds else {}
                values |= {"keypoints": points} if self._point_count else {}
        if "captions" in entries:
            values["captions"] = [each.pop("caption", None) for each in entries["captions"]]
            if not all(isinstance(text, str) for text in values["captions"]):
                raise ValueError("one of its captions is no text")
        if "panoptic" in entries:
            values["segment_ids"] = documents.parse_segment_ids(entries["panoptic"])
            values["segment_labels"] = documents.parse_labels(
                entries["panoptic"]["segments_info"], self._numbers["panoptic"]
            )
        return values

    def describing_files(self) -> Iterable[str]:
        """Lists the files of annotations that are read."""
        return self._files

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns the reason why a file is left out, or None for the usual reason by its name. Files of annotations
        whose images are missing have a reason of their own, and images that no annotations name."""
        unread = join(folder, name) in self._unread
        return _UNREAD if unread else super().reason_to_leave_out(folder, name)

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts annotations of images that are not listed, and panoptic masks that are missing."""
        return dict(+self._ignored)


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises a folder or archive with COCO's files of annotations."""
    tree = open_tree(path)
    if tree is None or not documents.find_annotation_files(tree):
        return Certainty.NO
    # Each format may cover only some splits.
    return Certainty.PARTIAL if holds_yolo_labels(tree, "labels") else Certainty.CERTAIN


KIND = Kind("coco", "COCO: images with annotations/instances_*.json", _recognise, CocoSource, in_objects=True)
