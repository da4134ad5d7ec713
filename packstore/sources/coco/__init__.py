"""COCO (https://cocodataset.org/#format-data): folders of images, and JSON files with their annotations.

Category ids are not class numbers: classes are numbered from 0 in the order of ids. Boxes are ``x, y, width, height``
from the corner of the first pixel, so ``xyxy`` is ``(x, y, x + width, y + height)``. Opening takes several times the
size of a file of annotations in memory; afterwards a temporary file holds its content.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.column import CROWD
from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Array, Boxes, Field, Image, Json, Keypoints, Label, Labels
from packstore.sources.annotation_formats.parsing import check_most_match, parse_id
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import holds_yolo_labels, infer_mask_field, is_file, join, number_repeated_names
from packstore.sources.coco.documents import (
    AnnotationFile,
    SplitAnnotations,
    find_annotation_files,
    find_image_folder,
    find_mask_folder,
    group_by_split,
    parse_boxes,
    parse_crowds,
    parse_keypoints,
    parse_labels,
    parse_segments,
    separate_copies,
)
from packstore.sources.ledger import Claims, Role
from packstore.sources.listing import is_passed_over
from packstore.sources.rows import FileRow, FileRowSource, InTree, Row, in_packing_order
from packstore.sources.splits import find_split_in_path
from packstore.sources.spread import find_image_places, places_by_split

_CUT = 3
"""Most folders of another machine to remove from the names of images."""


class _CocoSplit(NamedTuple):
    """Split: its images, annotations and folders.

    Attributes:
        folder: Folder of its images.
        documents: Images with their annotations.
        masks: Folders of its masks, by column.
        places: Folder of each image in ``documents``, if the images are in several folders; else None.
        chosen: Name of a split, if ``documents`` has several: images in folders of other splits are left out. None:
            no image is left out.
    """

    folder: str
    documents: SplitAnnotations
    masks: Mapping[str, str]
    places: Sequence[str] | None = None
    chosen: str | None = None

    def iter_images(self) -> Iterator[tuple[int, str, str]]:
        """Yields number in ``documents``, folder and name of each image of the split."""
        for number, name in enumerate(self.documents.walk_image_names()):
            folder = self.folder if self.places is None else self.places[number]
            if self.chosen is None or self.chosen == find_split_in_path(_holding_folder(folder, name)):
                yield number, folder, name


class CocoSource(FileRowSource):
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
        files, self._copies = separate_copies(self.tree, find_annotation_files(self.tree))
        splits = group_by_split(self.tree, files)
        if not splits:
            raise SourceError(f"{printable(str(path))} has no annotations of COCO (annotations/instances_train.json)")
        self._unread: dict[str, str] = {}
        self._splits: dict[str, _CocoSplit] = {}
        try:
            for split, kinds in splits.items():
                documents = SplitAnnotations(self.tree, kinds)
                self._splits[split] = _CocoSplit("", documents, {})  # closed with the others
                first = next(iter(kinds.values()))
                folders = self._find_image_folders(first, documents)
                if folders is None:
                    del self._splits[split]
                    documents.close()
                    self._unread |= {
                        file.path: "files of annotations of images that are missing" for file in kinds.values()
                    }
                    continue
                folder, places = (folders, None) if isinstance(folders, str) else ("", folders)
                self._splits[split] = _CocoSplit(folder, documents, self._find_masks(kinds, documents), places)
            if not self._splits:
                raise SourceError(self._missing_images_message(first, next(documents.walk_image_names(), "")))
            self._shorten_split_names(splits)
            self._split_by_folders()
            self._refuse_shared_images()
            categories = {kind: self._merge_categories(kind) for kind in ("objects", "panoptic", "stuff")}
            self._check_category_ids(categories)
        except BaseException:
            self.close()
            raise
        self.evidence = ", ".join(map(printable, self._files))
        self._classes = {kind: number_repeated_names([*names.values()], [*names]) for kind, names in categories.items()}
        self._numbers = {kind: {each: n for n, each in enumerate(names)} for kind, names in categories.items()}
        documents_of_all = [each.documents for each in self._splits.values()]
        facts = set[str]().union(*(each.facts for each in documents_of_all))
        points = {documents.points for documents in documents_of_all if documents.annotated}
        self._points = points.pop() if len(points) == 1 else 0
        self._has_crowds = "crowds" in facts
        self._points_alone = bool(self._points) and "lone points" in facts and "boxes" not in facts
        self._most_tags = 0 if "shapes" in facts else max(each.most for each in documents_of_all)

    def _find_image_folders(self, file: AnnotationFile, documents: SplitAnnotations) -> str | list[str] | None:
        """Finds the folder of the images, or of each of them, see :func:`find_image_places`."""
        folder, names = self._find_main_folder(file, documents)
        return find_image_places(self.tree, names, file.path, folder, {file.split} - {""})

    def _find_main_folder(self, file: AnnotationFile, documents: SplitAnnotations) -> tuple[str | None, list[str]]:
        """Finds the folder that has most of the images; returns the folder, or None, and the names of the images.

        If no folder has any, tries the names without their first folder, then without two, then three, while all names
        differ. Renames the images in ``documents`` to the names that exist.
        """
        names = list(documents.walk_image_names())
        folder = find_image_folder(self.tree, file, names)
        for cut in range(1, _CUT + 1):
            if folder is not None or any(name.count("/") < cut for name in names):
                break
            shorter = [name.split("/", cut)[cut] for name in names]
            folder = find_image_folder(self.tree, file, shorter) if len(set(shorter)) == len(names) else None
            if folder is not None:
                names = shorter
                documents.rename_images(shorter)
        return folder, names

    def _find_masks(self, files: Mapping[str, AnnotationFile], documents: SplitAnnotations) -> dict[str, str]:
        """Finds the folders of panoptic masks and of masks of stuff, by column. Leaves out a column whose folder is
        missing; for panoptic masks, adds their number to ``documents.ignored``."""
        folders: dict[str, str | None] = {}
        if documents.masks:
            names = [name.decode("utf-8", "surrogateescape") for name in documents.masks.values()]
            folders["panoptic_mask"] = find_mask_folder(self.tree, files["panoptic"], names)
            if folders["panoptic_mask"] is None:
                documents.ignored["panoptic masks that are missing"] += len(names)
        stuff = next((file for file in files.values() if file.path.rpartition("/")[2].startswith("stuff")), None)
        if stuff is not None:
            folders["stuff_mask"] = find_mask_folder(
                self.tree, stuff, map(_png_name, documents.walk_image_names()), "_pixelmaps"
            )
        return {column: folder for column, folder in folders.items() if folder is not None}

    def splits(self) -> Sequence[str]:
        """Returns the splits in packing order."""
        return tuple(self._splits)

    def fields(self) -> Mapping[str, Field]:
        """Declares the columns that the annotations of any split need. Opens masks to see if they have one channel."""
        columns: dict[str, Field] = {"image": Image()}
        classes, documents = self._classes, [each.documents for each in self._splits.values()]
        if self._most_tags:
            several = self._most_tags > 1
            labels = Labels(classes["objects"], of=False, optional=True)
            columns |= {"tags": labels} if several else {"label": Label(classes["objects"], optional=True)}
        elif self._points_alone:
            columns["keypoints"] = Keypoints(3, of=False, points=self._points, optional=True)
            columns["keypoint_labels"] = Labels(classes["objects"], of=False, optional=True)
        elif any(each.annotated for each in documents):
            columns |= {"boxes": Boxes(optional=True), "labels": Labels(classes["objects"], of="boxes", optional=True)}
            if self._has_crowds:
                columns[CROWD] = Labels(of="boxes", optional=True)
            if self._points:
                columns["keypoints"] = Keypoints(3, of="boxes", points=self._points, optional=True)
        if any(each.captioned for each in documents):
            columns["captions"] = Json(optional=True)
        if any(each.masks for each in documents):
            columns["segment_ids"] = Array("int64", ragged=True, optional=True)
            columns["segment_labels"] = Labels(classes["panoptic"], of=False, optional=True)
        if classes["stuff"]:
            columns["stuff_labels"] = Labels(classes["stuff"], of=False, optional=True)
        for column in dict.fromkeys(column for each in self._splits.values() for column in each.masks):
            rows = chain.from_iterable(map(self.file_rows, self._splits))
            files = (row.values[column].file for row in rows if column in row.values)
            columns[column] = infer_mask_field(self.tree, (file for file in files if is_file(self.tree, file)))
        return columns | {"json": Json(shapes=True)}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each image of a split. Its values are its files of masks, and ``entry``: split, and number
        in ``documents``."""
        part = self._splits[split]
        documents, masks = part.documents, part.masks
        for number, folder, name in part.iter_images():
            values: dict[str, Any] = {"entry": (split, number)}
            if number in documents.masks and "panoptic_mask" in masks:
                mask = documents.masks[number].decode("utf-8", "surrogateescape")
                values["panoptic_mask"] = InTree(join(masks["panoptic_mask"], mask))
            if "stuff_mask" in masks:
                values["stuff_mask"] = InTree(join(masks["stuff_mask"], _png_name(name)), optional=True)
            yield FileRow(join(folder, name), values)

    def rows(self, split: str) -> Iterator[Row]:
        """Yields the rows of a split, with the bytes of their annotations added to ``value_bytes``."""
        part = self._splits[split]
        for (number, *_), row in zip(part.iter_images(), super().rows(split), strict=True):
            yield row._replace(value_bytes=row.value_bytes + part.documents.entry_size(number))

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads an image with its masks, and converts its annotations to columns. Classes of whole images become
        ``label`` or ``tags``. ``json`` has all entries, without the captions.

        A column is left out if the split has no such annotations. Raises :class:`ValueError` for invalid annotations.
        """
        values = dict(super().read_values(ref))
        split, number = values.pop("entry")
        document = self._splits[split].documents.read_entry(number)
        with self.name_annotation_file(ref):
            return values | self._parse_document(document) | {"json": document}

    def find_annotation_file(self, ref: Any) -> str:
        """Returns the paths of the files that have the entries of a row."""
        return " or ".join(self._splits[ref[3]["entry"][0]].documents.files)

    def _parse_document(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Converts the entries of an image to columns. Removes its captions from them. Raises :class:`ValueError` for
        invalid annotations."""
        values: dict[str, Any] = {}
        annotations = document.get("annotations")
        if annotations is not None and self._most_tags:
            labels = parse_labels(annotations, self._numbers["objects"])
            values |= {"tags": labels} if self._most_tags > 1 else {"label": labels[0] if labels else None}
        elif annotations is not None and self._points_alone:
            values["keypoints"] = parse_keypoints(annotations, self._points)
            values["keypoint_labels"] = parse_labels(annotations, self._numbers["objects"])
        elif annotations is not None:
            values["boxes"] = parse_boxes(annotations)
            values["labels"] = parse_labels(annotations, self._numbers["objects"])
            values |= {CROWD: parse_crowds(annotations)} if self._has_crowds else {}
            if self._points:
                values["keypoints"] = parse_keypoints(annotations, self._points)
        if "captions" in document:
            captions = document["captions"]
            values["captions"] = [each.pop("caption", None) for each in captions]
            if not all(isinstance(text, str) for text in values["captions"]):
                raise ValueError("one of its captions is no text")
        if "panoptic" in document:
            segments = parse_segments(document["panoptic"])
            values["segment_ids"] = [parse_id(each["id"]) for each in segments]
            values["segment_labels"] = parse_labels(segments, self._numbers["panoptic"])
        if "stuff" in document:
            values["stuff_labels"] = parse_labels(document["stuff"], self._numbers["stuff"])
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
        path = join(folder, name)
        return self._unread.get(path) or super().reason_to_leave_out(folder, name)

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts parts of files of annotations that no column holds, by reason: licenses, annotations of images that
        are not listed, and others."""
        counts: Counter[str] = Counter()
        for documents in dict.fromkeys(each.documents for each in self._splits.values()):
            counts.update(documents.ignored)
        return dict(+counts)

    def close(self) -> None:
        """Closes the source, and removes the temporary files of annotations."""
        for each in self._splits.values():
            each.documents.close()
        super().close()

    def _shorten_split_names(self, files: Mapping[str, Mapping[str, AnnotationFile]]) -> None:
        """Shortens the names of splits, ``train2017`` to ``train``. A name stays if another split (``train2014``) would
        have the same short name. Sorts the splits in packing order. Lists in ``_files`` the files of annotations of the
        splits that are left."""
        plain = {split: next(iter(files[split].values())).split for split in self._splits}
        counts = Counter(plain.values())
        names = {name if name and counts[name] == 1 else split: split for split, name in plain.items()}
        self._files = [file.path for split in names.values() for file in files[split].values()]
        self._splits = {name: self._splits[names[name]] for name in in_packing_order(names)}

    def _split_by_folders(self) -> None:
        """Replaces a single unnamed split by the splits in the names of its folders of images.

        If only some folders name a split, raises :class:`AmbiguousSourceError`. If the user has named the kind of
        source, changes nothing instead.
        """
        (name, only), *others = self._splits.items()
        if name or others:
            return
        folders = {_holding_folder(folder, image) for _, folder, image in only.iter_images()}
        splits = places_by_split(folders)
        if splits.keys() - {""}:
            self._splits = {split: only._replace(chosen=split) for split in splits}
        elif not self.options.named and (known := sorted(filter(find_split_in_path, folders))):
            other = next(folder for folder in sorted(folders) if not find_split_in_path(folder))
            raise AmbiguousSourceError(
                f"{self.tree.name()}: {printable(self._files[0])} has images of a split in {printable(known[0])}, and "
                f"others in {printable(other) or 'the top folder'}, whose name has no split: --source coco packs all "
                "without splits",
                [Answer(("--source", "coco"))],
            )

    def _missing_images_message(self, file: AnnotationFile, name: str) -> str:
        """Returns the message for a file of annotations without images. The message has the folders where images were
        expected, and the place of the first image, if that is in the source. For an empty ``name``, it says that the
        file names no images."""
        said = f"{self.tree.name()}: the images of {printable(file.path)} are missing"
        if not name:
            return f"{said}: it names none"
        last = name.rpartition("/")[2]
        folders = (folder for folder, names in self.tree.folders(is_passed_over) if last in names.files)
        place = next(folders, None)
        lies = "is nowhere in this source" if place is None else f"is in {printable(place) or 'the top folder'}"
        looked = f"beside the file, in images, data and JPEGImages, and in folders named {file.split or 'like a split'}"
        return f"{said}. The first, {printable(name)}, {lies}; it was looked for {looked}"

    def _refuse_shared_images(self) -> None:
        """Raises :class:`AmbiguousSourceError` if two splits have the same image file, since keys are unique."""
        folders = Counter(each.folder for each in self._splits.values())
        scattered = any(each.places is not None for each in self._splits.values())
        seen: dict[str, str] = {}
        for split, each in self._splits.items():
            for _, folder, name in each.iter_images() if scattered or folders[each.folder] > 1 else ():
                other = seen.setdefault(join(folder, name), split)
                if other != split:
                    raise AmbiguousSourceError(
                        f"{self.tree.name(join(folder, name))} is in {printable(other)} and in {printable(split)}: "
                        "leave one of the two files of annotations out of the folder"
                    )

    def _merge_categories(self, kind: str) -> dict[int, str]:
        """Merges the categories of all splits, sorted by id. Raises :class:`AmbiguousSourceError` if the names of an id
        differ."""
        categories: dict[int, str] = {}
        for split, each in self._splits.items():
            for number, name in each.documents.categories[kind].items():
                if categories.setdefault(number, name) != name:
                    raise AmbiguousSourceError(
                        f"{self.tree.name()}: category {number} is {printable(name)!r} in {printable(split)}, and "
                        f"{printable(categories[number])!r} in another split: leave one of the files in the folder"
                    )
        return dict(sorted(categories.items()))

    def _check_category_ids(self, categories: Mapping[str, Mapping[int, str]]) -> None:
        """Raises :class:`SourceError` if most annotations of a file have the ``category_id`` of no category. If only
        some have, each is an error of its image."""
        for each in self._splits.values():
            for file, (kind, counts) in each.documents.category_ids.items():
                unmatched = [number for number in counts.elements() if number not in categories[kind]]
                known = categories[kind]
                check_most_match(self.tree.name(file), "category_id", unmatched, counts.total(), known)


def _holding_folder(folder: str, name: str) -> str:
    """Returns the folder that directly holds an image, whose path below ``folder`` is ``name``."""
    return join(folder, name).rpartition("/")[0]


def _png_name(name: str) -> str:
    """Replaces the suffix of a file name, if it has one, by ``.png``."""
    return f"{posixpath.splitext(name)[0]}.png"


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Returns ``CERTAIN`` for a folder or archive with COCO's files of annotations, else ``NO``. With YOLO's labels
    beside them, returns ``PARTIAL``: each format may cover only some splits."""
    tree = open_tree(path)
    if tree is None or not find_annotation_files(tree):
        return Certainty.NO
    return Certainty.PARTIAL if holds_yolo_labels(tree, "labels") else Certainty.CERTAIN


KIND = Kind("coco", "COCO: images with annotations/instances_*.json", _recognise, CocoSource, in_objects=True)
