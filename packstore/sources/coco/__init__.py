"""COCO (https://cocodataset.org/#format-data): folders of images, and JSON files with their annotations.

Category ids are not class numbers: classes are numbered from 0 in the order of ids. Boxes are ``x, y, width, height``
from the corner of the first pixel, so ``xyxy`` is ``(x, y, x + width, y + height)``. Opening takes several times the
size of a file of annotations in memory; afterwards a temporary file holds its content.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from packstore.core.column import CROWD
from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Array, Boxes, Field, Image, Json, Keypoints, Label, Labels
from packstore.sources.annotation_formats.parsing import check_most_match, clean_image_path, match_images, parse_id
from packstore.sources.annotation_formats.spool import SpooledEntry, SpooledSource
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import holds_yolo_labels, infer_mask_field, is_file, join, number_repeated_names
from packstore.sources.coco import documents
from packstore.sources.ledger import Claims, Role
from packstore.sources.rows import FileRow, InTree
from packstore.sources.splits import find_split_in_path
from packstore.sources.spread import places_by_split

_CATEGORIES = {"instances": "objects", "keypoints": "objects", "panoptic": "panoptic", "stuff": "stuff"}
"""Kind of the categories in each kind of file."""
_ENTRIES = {"captions": "captions", "stuff": "stuff", "panoptic": "panoptic"}
"""Name of an image's entries from each kind of file; ``annotations`` from others."""
_UNREAD = "files of annotations of images that are missing"
_SHAPES = {"bbox", "segmentation", "keypoints", "area"}


class CocoSource(SpooledSource):
    """Images of ``instances_*.json``, ``person_keypoints_*.json``, ``captions_*.json`` and ``panoptic_*.json``, joined
    by split.

    Columns, for files of annotations that exist:

    - ``boxes`` and ``labels``; ``keypoints`` if all categories have the same number
    - ``keypoints`` and ``keypoint_labels`` instead if no annotation has a box
    - ``iscrowd`` if any box is a crowd or a region to ignore
    - ``label`` instead if no annotation has a box or a shape, as in iNaturalist; ``tags`` if such an image has several
      labels
    - ``captions``: a list of texts
    - ``panoptic_mask`` with ``segment_ids`` and ``segment_labels``
    - ``stuff_labels`` and ``stuff_mask``
    - ``json``: entries of the image and of its annotations, without image ids and captions

    An image without annotations has 0 boxes. In a split without a file of objects, ``boxes`` is missing.

    Leaves out a split without any of its images. Splits have names without their year, if possible. Opening raises
    :class:`AmbiguousSourceError` if splits share an image, name a category differently, or have two files of a kind.
    Also raises it if only some files, or only some folders of images, name a split. Opening raises :class:`SourceError`
    if there are no annotations or no images, or if a file is damaged.
    """

    kind = "coco"
    left_images = "images that no annotations name"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        files, self._copies = documents.separate_copies(self.tree, documents.find_annotation_files(self.tree))
        groups = documents.group_by_split(self.tree, files)
        if not groups:
            raise SourceError(f"{printable(str(path))} has no annotations of COCO (annotations/instances_train.json)")
        self._paths: dict[str, list[str]] = {}  # of the files of a split, by the first of them
        self._unread: dict[str, str] = {}  # first image of each file
        self._ignored: Counter[str] = Counter()
        self._names: dict[str, dict[int, str]] = {"objects": {}, "panoptic": {}, "stuff": {}}
        self._category_ids: dict[str, tuple[str, Counter[int | str | None]]] = {}  # by file
        self._masks: dict[str, dict[int, bytes]] = {}
        self._kinds, self._facts, self._points, self._most_tags = set[str](), set[str](), set[int](), 0
        self.spool_entries(chain.from_iterable(self._read_split(*each, len(groups) == 1) for each in groups.items()))
        if not self._splits:
            file, image = next(iter(self._unread.items()))
            raise SourceError(f"{self.tree.name()}: the images of {printable(file)} are missing: {printable(image)}")
        for file, (kind, counts) in self._category_ids.items():
            unmatched = [number for number in counts.elements() if number not in self._names[kind]]
            check_most_match(self.tree.name(file), "category_id", unmatched, counts.total(), sorted(self._names[kind]))
        short = {split: next(iter(files.values())).split for split, files in groups.items()}
        short = {split: short.get(split) or split for split in self._splits}
        unique = {name for name, count in Counter(short.values()).items() if count == 1}
        self._splits = [name if name in unique else split for split, name in short.items()]
        self._files = [*chain(*self._paths.values())]
        self.evidence = ", ".join(map(printable, self._files))
        ids = {kind: sorted(names) for kind, names in self._names.items()}
        names = {kind: [self._names[kind][each] for each in some] for kind, some in ids.items()}
        self._classes = {kind: number_repeated_names(names[kind], some) for kind, some in ids.items()}
        self._numbers = {kind: {each: n for n, each in enumerate(some)} for kind, some in ids.items()}
        self._points_alone = "lone points" in self._facts and "boxes" not in self._facts and self._point_count > 0
        self._most_tags = 0 if "shapes" in self._facts else self._most_tags

    @property
    def _point_count(self) -> int:
        """Number of keypoints of each object; 0 if there are none, or if categories differ."""
        return max(self._points) if len(self._points) == 1 else 0

    def _read_split(
        self, split: str, files: Mapping[str, documents.AnnotationFile], is_only: bool
    ) -> Iterator[SpooledEntry]:
        """Reads the files of a split, given by kind, and yields an entry for each image in the order of ids, as
        torchvision's ``CocoDetection``. Leaves out files whose images are missing.

        The values have by name what the files have about the image: ``image``, and any of ``annotations``,
        ``captions``, ``stuff`` and ``panoptic``.
        """
        images: dict[Any, dict[str, Any]] = {}
        contents = {kind: documents.read_document(self.tree, file) for kind, file in files.items()}
        for kind, document in contents.items():
            for image in document["images"]:
                known = images.setdefault(parse_id(image["id"]), {"image": image})["image"]
                if known["file_name"] != image["file_name"]:
                    both = f"{documents.describe_entry(known)} and {documents.describe_entry(image)}"
                    raise SourceError(f"{self.tree.name(files[kind].path)}: two images have one id: {both}")
        ids = sorted(images, key=lambda each: (isinstance(each, str), each))
        first, paths = next(iter(files.values())), [file.path for file in files.values()]
        places, names = documents.find_image_places(
            self.tree, first, [images[each]["image"]["file_name"] for each in ids]
        )
        if places is None:
            self._unread |= dict.fromkeys(paths, next(iter(names), "none are named"))
            return
        self._paths[first.path] = paths
        self._kinds |= files.keys()
        points = [self._add_annotations(file, contents.pop(kind), images) for kind, file in files.items()]
        self._points |= {max(points)} if {"instances", "keypoints"} & files.keys() else set()
        masks = self._find_masks(files, names, [images[each] for each in ids])
        folders = [join(folder, name).rpartition("/")[0] for folder, name in zip(places, names, strict=True)]
        splits = self._find_folder_splits(first.path, {*folders}) if is_only and not split else {}
        for n, (number, folder, name) in enumerate(zip(ids, folders, names, strict=True)):
            entries = images.pop(number)
            self._note_facts(entries.get("annotations", ()))
            self._facts |= {"segments"} if "panoptic" in entries else set()
            for column, paths_of_masks in masks.items():
                if mask := paths_of_masks[n].encode("utf-8", "surrogateescape"):
                    self._masks.setdefault(column, {})[len(self._images)] = mask
            yield SpooledEntry(join(folder, name.rpartition("/")[2]), splits.get(folder, split), first.path, entries)

    def _add_annotations(
        self, file: documents.AnnotationFile, document: Any, images: Mapping[Any, dict[str, Any]]
    ) -> int:
        """Adds the annotations of a file to their images, without ``image_id``. Keypoints are merged into the object
        with the same id, or else become an object themselves. Leaves out and counts annotations of unlisted images.

        Returns the number of keypoints, if it is the same for all categories, else 0. Raises :class:`SourceError` for
        an ``image_id`` that is no id, and at the end if most annotations are left out.
        """
        where, name = self.tree.name(file.path), _ENTRIES.get(file.kind, "annotations")
        category_ids: Counter[int | str | None] = Counter()
        points = self._add_categories(where, document, _CATEGORIES[file.kind]) if file.kind in _CATEGORIES else 0
        if file.kind == "image_info" or "annotations" not in document:
            return points
        for image in document.get("images", ()):
            images[parse_id(image["id"])].setdefault(name, [])
        objects: dict[Any, dict[str, Any]] = {}
        if file.kind == "keypoints":
            earlier = (each for entries in images.values() for each in entries.get("annotations", ()))
            objects = {number: each for each in earlier if (number := parse_id(each.get("id"))) is not None}
        listed = ((each.get("id"), each.pop("image_id", None), each) for each in document["annotations"])
        for annotation, entries in match_images(where, listed, images):
            if entries is None:
                self._ignored["annotations of images that are not listed"] += 1
                continue
            category_ids[parse_id(annotation.get("category_id"))] += 1
            if (known := objects.get(parse_id(annotation.get("id")))) is not None:
                known.update(annotation)
            else:
                entries[name].append(annotation)
        if file.kind in ("instances", "keypoints", "stuff"):
            self._category_ids[file.path] = _CATEGORIES[file.kind], category_ids
        licenses = document.get("licenses")
        self._ignored["licenses"] += len(licenses) if isinstance(licenses, list) else 0
        return points

    def _add_categories(self, where: str, document: Any, kind: str) -> int:
        """Adds the categories of a file, and counts their values other than id and name. Returns the number of
        keypoints, if it is the same for all, else 0.

        Raises :class:`SourceError` for a category without a number or a name, and :class:`AmbiguousSourceError` for two
        names of one id.
        """
        counts = set()
        for category in document.get("categories", ()):
            number, name, points = parse_id(category.get("id")), category.get("name"), category.get("keypoints")
            if not isinstance(number, int) or not isinstance(name, str):
                raise SourceError(
                    f"{where}: a category without a number or a name: {documents.describe_entry(category)}"
                )
            if (known := self._names[kind].setdefault(number, name)) != name:
                raise AmbiguousSourceError(
                    f"{where}: category {number} is {printable(name)!r}, and elsewhere {printable(known)!r}: leave one "
                    "of the files in the folder"
                )
            counts.add(len(points) if isinstance(points, list) else 0)
            self._ignored.update(f"values {printable(key)!r} of categories" for key in category.keys() - {"id", "name"})
        return counts.pop() if len(counts) == 1 else 0

    def _note_facts(self, annotations: Sequence[Any]) -> None:
        """Notes if annotations of an image have boxes, keypoints alone, shapes of any kind or flags of crowds."""
        for each in annotations:
            self._facts |= {"shapes"} if each.keys() & _SHAPES else set()
            self._facts |= {"boxes"} if each.get("bbox") else {"lone points"} if each.get("keypoints") else set()
        self._facts |= {"crowds"} if any(documents.parse_crowds(annotations)) else set()
        self._most_tags = max(self._most_tags, len(annotations))

    def _find_masks(
        self, files: Mapping[str, documents.AnnotationFile], names: Iterable[str], images: Iterable[dict[str, Any]]
    ) -> dict[str, list[str]]:
        """Finds the panoptic masks of images, and their masks of stuff. Returns paths by column, ``""`` for an image
        without a mask. Leaves out a column whose folder is missing; counts panoptic masks that are missing.

        Replaces the lists of panoptic masks of ``images`` by their only elements. Raises :class:`SourceError` for an
        image with two, and for a path out of the source.
        """
        found = {}
        if "panoptic" in files:
            masks = [_take_panoptic_mask(self.tree.name(files["panoptic"].path), entries) for entries in images]
            found["panoptic_mask"] = (
                documents.find_mask_folder(self.tree, files["panoptic"], filter(None, masks)),
                masks,
            )
        stuff = next((file for file in files.values() if file.path.rpartition("/")[2].startswith("stuff")), None)
        if stuff is not None:
            masks = [f"{posixpath.splitext(name)[0]}.png" for name in names]
            found["stuff_mask"] = documents.find_mask_folder(self.tree, stuff, masks, "_pixelmaps"), masks
        if "panoptic_mask" in found and found["panoptic_mask"][0] is None:
            self._ignored["panoptic masks that are missing"] += len([*filter(None, found["panoptic_mask"][1])])
        return {
            column: [join(folder, mask) if mask else "" for mask in masks]
            for column, (folder, masks) in found.items()
            if folder is not None
        }

    def _find_folder_splits(self, file: str, folders: Collection[str]) -> dict[str, str]:
        """Returns the split of each folder of images, if a file without a split names them all.

        If only some folders name a split, raises :class:`AmbiguousSourceError`. If the user has named the kind of
        source, returns an empty dict instead.
        """
        splits = places_by_split(folders)
        if splits.keys() - {""}:
            return {folder: split for split, some in splits.items() for folder in some}
        if not self.options.named and (known := sorted(filter(find_split_in_path, folders))):
            other = next(folder for folder in sorted(folders) if not find_split_in_path(folder))
            raise AmbiguousSourceError(
                f"{self.tree.name()}: {printable(file)} has images of a split in {printable(known[0])}, and others in "
                f"{printable(other) or 'the top folder'}, whose name has no split: --source coco packs all without "
                "splits",
                [Answer(("--source", "coco"))],
            )
        return {}

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
            if "crowds" in self._facts:
                columns[CROWD] = Labels(of="boxes", optional=True)
            if self._point_count:
                columns["keypoints"] = Keypoints(3, of="boxes", points=self._point_count, optional=True)
        if "captions" in self._kinds:
            columns["captions"] = Json(optional=True)
        if "segments" in self._facts:
            columns["segment_ids"] = Array("int64", ragged=True, optional=True)
            columns["segment_labels"] = Labels(classes["panoptic"], of=False, optional=True)
        if classes["stuff"]:
            columns["stuff_labels"] = Labels(classes["stuff"], of=False, optional=True)
        for column, masks in self._masks.items():
            files = (mask.decode("utf-8", "surrogateescape") for mask in masks.values())
            columns[column] = infer_mask_field(self.tree, (file for file in files if is_file(self.tree, file)))
        return columns | {"json": Json(shapes=True)}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each image of a split, with its files of masks."""
        for row in self.entry_rows(split):
            masks = {column: of[row.values["entry"]] for column, of in self._masks.items() if row.values["entry"] in of}
            files = {
                column: InTree(mask.decode("utf-8", "surrogateescape"), optional=column != "panoptic_mask")
                for column, mask in masks.items()
            }
            yield row._replace(values={**row.values, **files})

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads an image with its masks, and converts its annotations to columns. Classes of whole images become
        ``label`` or ``tags``. ``json`` has all entries, without the captions.

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
        """Converts the entries of an image to columns. Removes its captions from them. Raises :class:`ValueError` for
        invalid annotations."""
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
                values |= {CROWD: documents.parse_crowds(annotations)} if "crowds" in self._facts else {}
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
        if "stuff" in entries:
            values["stuff_labels"] = documents.parse_labels(entries["stuff"], self._numbers["stuff"])
        return values

    def describing_files(self) -> Iterable[str]:
        """Lists the files of annotations that are read."""
        return self._files

    def claim_files(self, claims: Claims) -> None:
        """Claims the files of annotations, and as evidence also copies of them."""
        super().claim_files(claims)
        for file in self._copies:
            claims.claim(file.path, Role.EVIDENCE)

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns the reason why a file is left out, or None for the usual reason by its name. Files of annotations
        whose images are missing have a reason of their own, and images that no annotations name."""
        unread = join(folder, name) in self._unread
        return _UNREAD if unread else super().reason_to_leave_out(folder, name)

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts parts of files of annotations that no column holds, by reason: licenses, annotations of images that
        are not listed, and others."""
        return dict(+self._ignored)


def _take_panoptic_mask(where: str, entries: dict[str, Any]) -> str:
    """Returns the path of an image's panoptic mask, ``""`` without one; replaces the list of masks by its only element.
    Raises :class:`SourceError` for several masks, and for a path out of the source."""
    masks = entries.pop("panoptic", [])
    if not masks:
        return ""
    try:
        if len(masks) > 1:
            raise ValueError(
                f"two panoptic masks of {documents.describe_entry(entries['image'])}, and an image has one"
            )
        masks[0]["file_name"] = name = clean_image_path(str(masks[0].get("file_name")))
    except ValueError as error:
        raise SourceError(f"{where} {error}") from None
    entries["panoptic"] = masks[0]
    return name


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Returns ``CERTAIN`` for a folder or archive with COCO's files of annotations, else ``NO``. With YOLO's labels
    beside them, returns ``PARTIAL``: each format may cover only some splits."""
    tree = open_tree(path)
    if tree is None or not documents.find_annotation_files(tree):
        return Certainty.NO
    return Certainty.PARTIAL if holds_yolo_labels(tree, "labels") else Certainty.CERTAIN


KIND = Kind("coco", "COCO: images with annotations/instances_*.json", _recognise, CocoSource, in_objects=True)
