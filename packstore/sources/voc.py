"""Pascal VOC (http://host.robots.ox.ac.uk/pascal/VOC/): JPEGImages with Annotations, ImageSets and masks.

Also its XML files without its folders: beside the images, as from LabelImg and Roboflow, or in any folder whose files
have the stems of the images (``annotations``, ``annotations/xmls``).

Boxes in its files count pixels from 1, and include both corners. Here the left edge of the first pixel is 0, so a box
is ``(xmin - 1, ymin - 1, xmax, ymax)``: it covers the same pixels, and its width is their number. Files of other tools
(CVAT, Datumaro, Roboflow) count from 0: their boxes are ``(xmin, ymin, xmax, ymax)``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, UsageError, printable
from packstore.core.fields import Boxes, Field, Image, Json, Labels
from packstore.core.manifest import Manifest
from packstore.core.plainxml import load_xml
from packstore.sources.annotation_formats.source import AnnotatedFolder, SidecarFormat, find_folders
from packstore.sources.annotations import find_all_annotations
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import (
    clean_path,
    find_suffixes_other_than_jpg,
    infer_mask_field,
    is_file,
    is_folder,
    join,
    parse_finite,
    read_lines,
    read_text,
)
from packstore.sources.boxes import CORNERS, VOC
from packstore.sources.contents import list_contents, stem_of
from packstore.sources.ignoring import ignore_paths
from packstore.sources.ledger import Claims, Role
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.palettes import Palette, declare_mask_columns, find_matching_palette, read_mask_columns
from packstore.sources.rows import FileRow, FileRowSource, InTree, in_packing_order
from packstore.sources.splits import is_split
from packstore.sources.tree import Tree

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
"""The classes of Pascal VOC, numbered as in its development kit, from 0."""
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_MAX_CLASSES = 1 << 16
Pairs = dict[str, list[tuple[str, str | None]]]
"""Folders of images and of their XML files (None without) by split, in packing order."""
_MASKS = {"mask": "SegmentationClass", "object_mask": "SegmentationObject"}
_COPIES = "masks as numpy arrays, the numbers of the mask beside"
"""LabelMe also writes each mask as an array, in ``SegmentationClassNpy``, formerly in ``SegmentationClass``."""
_UNION = "trainval"
_IMAGES = ("JPEGImages", "Images", "images")
_SETS = ("ImageSets/Main", "ImageSets/Segmentation", "ImageSets", "Main")
_LOOKED_AT = 64
_FLAGS = re.compile(r"(\s+[+-]?\d+)+$")
"""Numbers after the name of an image: a flag in lists of a class, class and species in those of pets."""


class VocSource(FileRowSource):
    """Source of images with XML files of Pascal VOC, and with masks.

    - In a folder with ``JPEGImages``, or a folder that holds a single such folder, splits are the sets of
      ``ImageSets/Main``. If it has none, they are those of ``ImageSets/Segmentation``, ``ImageSets`` or ``Main``, the
      first that has any. Without sets, takes all images. Leaves out ``trainval`` beside ``train`` and ``val``, since it
      is their union.
    - Elsewhere, folders of images are paired with the folders of XML files, see :func:`find_folder_pairs`.

    The columns; if an image lacks the file, their values are missing:

    - ``boxes``, ``labels`` and ``difficult`` from the annotation.
    - ``json``: the whole annotation, structured as by torchvision's ``VOCDetection``.
    - ``mask`` and ``object_mask``: the files. If CVAT's ``labelmap.txt`` fits, ``mask`` has class numbers instead of
      colours, with ``mask_labels``.

    A box with a corner at 0 proves that the files count from 0, since none can have it that counts from 1. Then all
    boxes are kept as they are written. ``layout`` answers instead: ``voc`` or ``xyxy``. Opening reads all XML files
    without this answer.

    Opening raises :class:`UsageError` for another layout, :class:`AmbiguousSourceError` for several folders with
    ``JPEGImages``, and :class:`SourceError` if nothing is found. Listing raises :class:`AmbiguousSourceError` for an
    image in two sets, and :class:`SourceError` for two images that differ only by their suffix.
    """

    kind = "voc"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        if options.layout not in (None, VOC, CORNERS):
            raise UsageError(
                f"layout is {options.layout}, but boxes of Pascal VOC are {VOC}, counted from 1 with both corners, or "
                f"{CORNERS}, counted from 0"
            )
        super().__init__(path, options)
        self._says_layout = options.layout is not None
        self._base = _find_voc_folder(self.tree)
        self._masks: dict[str, str] = {}
        if self._base is None:
            self._pairs = find_folder_pairs(self.tree)
            if not self._pairs:
                raise SourceError(
                    f"{printable(str(path))} has no folder JPEGImages, as in Pascal VOC, and no XML files of "
                    "annotations beside its images, or in annotations beside images"
                )
            places = dict.fromkeys(xml for pairs in self._pairs.values() for _, xml in pairs)
            parts = ["XML files in " + ", ".join(printable(xml or "") or "the folder" for xml in places)]
        else:
            base, images = self._base, _find_image_folder(self.tree, self._base) or _IMAGES[0]
            xml = join(base, "Annotations")
            self._pairs = {"": [(join(base, images), xml if is_folder(self.tree, xml) else None)]}
            masks = {name: _find_mask_folder(self.tree, base, known) for name, known in _MASKS.items()}
            self._masks = {name: join(base, folder) for name, folder in masks.items() if folder}
            annotated = ["Annotations"] if is_folder(self.tree, xml) else []
            parts = [images, *annotated, *(folder.rpartition("/")[2] for folder in self._masks.values())]
            self.left_images = "images in none of the sets"  # type: ignore[misc]
        self._sets = _find_sets(self.tree, self._base, self._pairs)
        folder = f" and the sets {', '.join(in_packing_order(self._sets))} of {self._set_folder}" if self._sets else ""
        self.evidence = ", ".join(parts) + folder
        if self.options.layout is None and self.facts.files:
            self.options = replace(self.options, layout=CORNERS if self.facts.from_zero else VOC)

    def splits(self) -> Sequence[str]:
        """Returns the sets in packing order, else the splits of the images' folders; reads all sets first.

        Raises :class:`AmbiguousSourceError` for an image in several sets, and :class:`SourceError` for images that
        differ only by their suffixes.
        """
        if self._sets or self._base is not None:
            self._odd_suffixes  # noqa: B018 - raises
        return in_packing_order(self._sets) or tuple(self._pairs)

    def fields(self) -> Mapping[str, Field]:
        """Returns the field of each column. Opens the first masks, and reads all annotations for their classes."""
        columns: dict[str, Field] = {"image": Image()}
        for name, folder in self._masks.items():
            columns[name] = self._infer_mask_field(folder)
        columns |= declare_mask_columns(self._palette) if self._palette is not None else {}
        annotated = any(xml is not None for pairs in self._pairs.values() for _, xml in pairs)
        if annotated:
            columns |= {
                "boxes": Boxes(optional=True),
                "labels": Labels(self.facts.classes, of="boxes", optional=True),
                "difficult": Labels(of="boxes", optional=True),
                "json": Json(optional=True),
            }
        return columns

    def _infer_mask_field(self, folder: str) -> Field:
        """Returns the field of the masks in a folder, by the first readable image of its first 64 files.

        If none of these is readable, returns a :class:`Mask`.
        """
        return infer_mask_field(self.tree, (join(folder, name) for name in self.tree.names(folder).files[:_LOOKED_AT]))

    @cached_property
    def facts(self) -> AnnotationFacts:
        """Facts about the XML files of all splits. Reads all of them."""
        rows = (row for split in self.splits() for row in self.file_rows(split))
        return read_facts(self.tree, (row.values["json"].file for row in rows if "json" in row.values))

    @cached_property
    def _palette(self) -> Palette | None:
        """Palette that fits the masks, of colours or of values; None if there is none."""
        folder = self._masks.get("mask")
        if folder is None:
            return None
        return find_matching_palette(self.tree, [self._base or ""], self._infer_mask_field(folder))

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split; those that a list repeats once. Raises :class:`SourceError` for a path out of the
        source, and for all errors of :meth:`splits`."""
        rows = self._make_rows(split)
        return self.skip_repeated(split, rows) if self._sets else rows

    def _make_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of the images in a list, or in the folders of a split."""
        for images, xml in self._pairs["" if self._sets else split]:
            stems = self._list_stems(self._sets[split]) if self._sets else ()
            listed = (f"{stem}{self._odd_suffixes.get(stem, '.jpg')}" for stem in stems)
            for name in listed if self._sets else self.tree.list(images).images:
                stem = stem_of(name)
                values: dict[str, Any] = {
                    column: InTree(join(folder, f"{stem}.png"), optional=True) for column, folder in self._masks.items()
                }
                if xml is not None:
                    values["json"] = InTree(join(xml, f"{stem}.xml"), optional=True)
                yield FileRow(join(images, name), values)

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads an image with its masks, and parses its annotation. With a palette, adds the columns of class numbers.

        Raises :class:`ValueError` for an invalid annotation or mask.
        """
        values = dict(super().read_values(ref))
        if values.get("json") is not None:
            with self.name_annotation_file(ref):
                values |= parse_annotation(values["json"], self.options.layout or VOC)
        if self._palette is not None and values["mask"] is not None:
            values |= read_mask_columns(self._palette, values["mask"], self.options.max_pixels)
        return values

    def follow_store(self, manifest: Manifest) -> None:
        """Reads boxes as those of the store were read. Does nothing if ``layout`` is given, or if the store is of
        another kind. Raises :class:`AmbiguousSourceError` if a box proves that the files count from 0, and those of the
        store were read as from 1."""
        recorded = CORNERS if manifest.options.get("layout") == CORNERS else VOC
        decided = not self._says_layout and self.options.layout not in (None, recorded)
        if not decided or manifest.origin.kind != self.kind:
            return
        if self.facts.from_zero:
            raise AmbiguousSourceError(
                f"{self.tree.name(self.facts.from_zero)} has a box at 0, so it counts pixels from 0, but the boxes of "
                f"the store were read as counted from 1. If they count from 0, too, convert them again with --layout "
                f"{CORNERS}; else say how this source counts",
                [Answer(("--layout", each)) for each in (CORNERS, VOC)],
                self.path,
            )
        self.options = replace(self.options, layout=recorded)

    def notes(self) -> tuple[str, ...]:
        """Adds a note if the boxes were found to count from 0."""
        if self._says_layout or self.options.layout != CORNERS or not self.facts.from_zero:
            return super().notes()
        return (
            *super().notes(),
            f"{printable(self.facts.from_zero)} has a box at 0, so all boxes count pixels from 0 and are kept as "
            f"they are written; --layout {VOC} reads them as counted from 1",
        )

    def describing_files(self) -> Iterable[str]:
        """Returns the paths of the lists of images and of the files of the palette."""
        return [*self._sets.values(), *(self._palette.files if self._palette is not None else ())]

    def claim_files(self, claims: Claims) -> None:
        """Claims the files that are read. Claims all other lists in the folders of sets as evidence, such as those
        of a single class."""
        super().claim_files(claims)
        if self._base is None:
            return
        used, folders = set(self.describing_files()), [join(self._base, "ImageSets")]
        folders += [self._set_folder] if self._sets else []
        for folder, names in (
            each for place in dict.fromkeys(folders) for each in self.tree.folders(is_passed_over, place)
        ):
            lists = (name for name in names.files if name.endswith(".txt") and join(folder, name) not in used)
            claims.claim_all(folder, lists, Role.EVIDENCE)

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns the reason for LabelMe's copies of masks, for annotations without an image, and for images in none of
        the sets. None for other files."""
        if self.expects_left(join(folder, name)):
            return _COPIES
        notes = {xml for pairs in self._pairs.values() for _, xml in pairs} if self._base is None else ()
        if name.lower().endswith(".xml") and folder in notes:
            return "annotations without an image"
        return super().reason_to_leave_out(folder, name)

    def expects_left(self, path: str) -> bool:
        """Tells if a file is LabelMe's copy, as a numpy array, of a mask that is there."""
        folder, _, name = path.rpartition("/")
        masks = [each for each in self._masks.values() if each.removesuffix("PNG") == folder.removesuffix("Npy")]
        return name.endswith(".npy") and any(is_file(self.tree, join(each, f"{name[:-4]}.png")) for each in masks)

    @property
    def _set_folder(self) -> str:
        """Folder of the sets."""
        return next(iter(self._sets.values())).rpartition("/")[0]

    def _list_stems(self, file: str) -> Iterator[str]:
        """Yields the names of the images of a set, without suffixes and the numbers behind a name. Raises
        :class:`SourceError` for a path out of the source."""
        [(images, _)] = self._pairs[""]
        for number, line in read_lines(self.tree, file, paths=True):
            try:
                yield clean_path(_remove_numbers(self.tree, images, line))
            except ValueError as error:
                raise SourceError(f"{self.tree.name(file)}, line {number}: {error}") from None

    def _list_paths_to_ignore(self, *sets: str) -> list[list[str]]:
        """Lists the paths whose absence leaves no sets, and for each of ``sets`` those that leave out this one."""
        union, folder = join(self._set_folder, f"{_UNION}.txt"), join(self._base or "", "ImageSets")
        unions = [union] if is_file(self.tree, union) else []  # would take the place of the set left out
        whole = [folder] if is_folder(self.tree, folder) else sorted({*self._sets.values(), *unions})
        return [whole, *(sorted({each, *unions}) for each in sets)]

    @cached_property
    def _odd_suffixes(self) -> dict[str, str]:
        """Suffix of each image that does not end in ``.jpg``, by the image's name without suffix.

        Raises :class:`AmbiguousSourceError` for an image in several sets; the answers leave out these sets, or all.
        Raises :class:`SourceError` for images that differ only by their suffixes.
        """
        [(folder, _)] = self._pairs[""]
        start, folders = len(folder) + 1 if folder else 0, self.tree.folders(is_passed_over, folder)
        images = (join(place, name)[start:] for place, names in folders for name in names.ending(*IMAGE_SUFFIXES))
        suffixes = find_suffixes_other_than_jpg(self.tree, folder, images)
        seen: dict[str, str] = {}
        for file in self._sets.values():
            for stem in self._list_stems(file):
                if (first := seen.setdefault(stem, file)) != file:
                    raise AmbiguousSourceError(
                        f"{self.tree.name(self._set_folder)}: {printable(stem)} is in two sets, {printable(first)} and "
                        f"{printable(file)}: remove it from one, or leave lists out with --ignore",
                        [Answer(ignore_paths(each)) for each in self._list_paths_to_ignore(first, file)],
                    )
        return suffixes


def _find_voc_folder(tree: Tree) -> str | None:
    """Finds the data set's folder: the root, or the only folder with ``JPEGImages`` in the root or in its
    ``VOCdevkit``.

    Returns its path, ``""`` for the root, or None if there is none. Raises :class:`AmbiguousSourceError` for several.
    """
    images = _find_image_folder(tree, "")
    if images is not None:
        masks = any(_find_mask_folder(tree, "", name) for name in _MASKS.values())
        deeper = not (masks or _has_files(tree, "Annotations", ".xml")) and _has_files(tree, images, *IMAGE_SUFFIXES)
        return None if deeper and find_folder_pairs(tree) else ""  # annotations/xmls
    above = "VOCdevkit" if is_folder(tree, "VOCdevkit") else ""
    folders = [
        join(above, name) for name in tree.names(above).folders if is_folder(tree, join(above, f"{name}/JPEGImages"))
    ]
    if len(folders) > 1:
        each = " or ".join(tree.name(base) for base in folders)
        answers = [Answer(source=Path(tree.root, base)) for base in folders] if Path(tree.root).is_dir() else []
        raise AmbiguousSourceError(f"{tree.name()} holds several sets of Pascal VOC: give one of them, {each}", answers)
    return folders[0] if folders else None


def _has_files(tree: Tree, folder: str, *suffixes: str) -> bool:
    """Tells if files with one of some suffixes are directly in a folder."""
    return is_folder(tree, folder) and bool(tree.names(folder).ending(*suffixes))


def _find_image_folder(tree: Tree, base: str) -> str | None:
    """Finds the name of the folder of images; None if there is none.

    It is ``JPEGImages``. Beside ``ImageSets`` and ``Annotations``, it may also be ``Images`` or ``images``.
    """
    whole = all(is_folder(tree, join(base, name)) for name in ("ImageSets", "Annotations"))
    return next((name for name in _IMAGES[: None if whole else 1] if is_folder(tree, join(base, name))), None)


def _find_mask_folder(tree: Tree, base: str, name: str) -> str | None:
    """Finds the name of the folder of masks: ``name``, or ``{name}PNG`` as from LabelMe; None if both are missing.

    If both exist, takes the first that holds PNG files, or else ``name``.
    """
    folders = [folder for folder in (name, f"{name}PNG") if is_folder(tree, join(base, folder))]
    return next(
        (each for each in folders if tree.names(join(base, each)).ending(".png")), folders[0] if folders else None
    )


def _find_sets(tree: Tree, base: str | None, pairs: Pairs) -> dict[str, str]:
    """Finds the list of images of each split, in the first folder that has any. Returns paths by split; ``{}`` without
    lists.

    Only lists named like a known split count. Leaves out ``trainval`` beside ``train`` and ``val``. For a single folder
    of images without ``JPEGImages``, also looks near its XML files, for lists whose lines name these images.
    """
    places = [join(base or "", place) for place in _SETS]
    if base is None:
        if [*pairs] != [""] or len(pairs[""]) != 1:
            return {}
        [(_, xml)] = pairs[""]
        places += [xml or "", posixpath.dirname(xml or "")]
    for folder in places:
        names = (name for name in tree.names(folder).files if name.endswith(".txt") and is_split(name[:-4]))
        lists = {name[:-4].lower(): join(folder, name) for name in names}
        if base is None:
            lists = {split: file for split, file in lists.items() if _names_images(tree, file, pairs[""][0][0])}
        if {"train", "val"} <= lists.keys():
            lists.pop(_UNION, None)
        if lists:
            return lists
    return {}


def _names_images(tree: Tree, file: str, images: str) -> bool:
    """Tells if each of the first 64 lines of a list is the name of an image without suffix."""
    stems = {stem_of(name) for name in tree.names(images).ending(*IMAGE_SUFFIXES)}
    lines = [line for _, line in islice(read_lines(tree, file, paths=True), _LOOKED_AT)]
    return bool(lines) and all(_remove_numbers(tree, images, line) in stems for line in lines)


def _remove_numbers(tree: Tree, images: str, line: str) -> str:
    """Returns a line of a list without the numbers at its end, unless the whole line is the name of an image."""
    if " " in line and any(is_file(tree, join(images, line + suffix)) for suffix in IMAGE_SUFFIXES):
        return line
    return _FLAGS.sub("", line)


class AnnotationFacts(NamedTuple):
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
            names.update(_get_text(each, "name") for each in objects)
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
        "labels": [_get_text(each, "name") for each in objects],
        "difficult": [int(_get_text(each, "difficult", "0")) for each in objects],
        "json": {"annotation": document},
    }


def _as_list(value: Any) -> list[Any]:
    """Returns a list unchanged, and any other value in a list."""
    return value if isinstance(value, list) else [value]


def _get_text(value: Any, name: str, default: str = "") -> str:
    """Returns the text of the element ``name``, or ``default`` if the element is missing or empty. Raises
    :class:`ValueError` if there is no text, and if the element occurs several times."""
    text = (value.get(name) if isinstance(value, dict) else None) or default
    if not text or not isinstance(text, str):
        raise ValueError(f"an object of its annotation has {'several values' if text else 'no value'} of {name!r}")
    return text


def parse_box(value: Any) -> list[float]:
    """Parses the box of an ``object`` to left, top, right, bottom as they are written. Raises :class:`ValueError` for a
    corner that is missing or not a finite number."""
    box = value.get("bndbox") if isinstance(value, dict) else None  # <object/> is a text
    return [parse_finite(_get_text(box, corner)) for corner in _CORNERS]


_FORMAT = SidecarFormat(
    kind="voc",
    help="Pascal VOC: XML files of images",
    folders=[("", "")],
    patterns=("{stem}.xml",),
    signature=rb"(?s)\A(?!.*LabelMe Webtool).*<annotation",  # MIT's LabelMe has polygons instead of boxes
    read_parts=lambda content, picture: iter(()),
)


def find_folder_pairs(tree: Tree) -> Pairs:
    """Pairs folders of images with folders of XML files by split, as :func:`find_folders`, in packing order. Returns
    ``{}`` if there are none.

    Each split needs a single folder of XML files, since several could also be classes. Images at the top count only if
    there are no splits, and then alone. Images in deeper folders, but for folders of splits, are those of another
    dataset, unless they are all images and the XML files are elsewhere. Raises :class:`AmbiguousSourceError` if several
    groups of folders have the images of one folder of XML files.
    """
    folders = [each for each in find_folders(tree, _FORMAT) if each.annotations is not None]
    if not folders:
        return {}
    holding = {_drop_splits(path) for path, each in list_contents(tree).folders.items() if each.images.count}
    some = [each for each in folders if each.images or each.annotations]
    folders = some if len(some) == len(folders) or any(each.split for each in some) else [AnnotatedFolder("", "", "")]
    pairs: dict[str, list[tuple[str, str | None]]] = {}
    for images, xml, split in sorted(folders, key=lambda each: each.images):
        *above, _ = images.split("/")
        if all(map(is_split, above)) if images == xml else "/" not in _drop_splits(images) or len(holding) == 1:
            pairs.setdefault(split, []).append((images, xml))
    several = any(len({xml for _, xml in some}) > 1 for some in pairs.values())
    return {} if several else {split: pairs[split] for split in in_packing_order(pairs)}


def _drop_splits(path: str) -> str:
    """Returns a path without its folders of splits."""
    return "/".join(part for part in path.split("/") if not is_split(part))


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises Pascal VOC. Returns

    - ``CERTAIN`` for ``JPEGImages`` with XML files or masks;
    - ``CERTAIN`` for other folders of images and XML files, or ``PARTIAL`` if other annotations are there too;
    - ``NO`` for other paths.

    Raises :class:`AmbiguousSourceError` for several folders with ``JPEGImages``. Raises it also if several groups of
    folders have the images of one folder of XML files.
    """
    tree = open_tree(path)
    if tree is None:
        return Certainty.NO
    base = _find_voc_folder(tree)
    if base is not None:
        folders = tree.folders(is_passed_over, join(base, "Annotations"))
        annotated = any(name.endswith(".xml") for _, names in folders for name in names.files)
        masks = any(_find_mask_folder(tree, base, folder) for folder in _MASKS.values())
        return Certainty.CERTAIN if annotated or masks else Certainty.NO
    pairs = find_folder_pairs(tree)
    if not pairs:
        return Certainty.NO
    sets = _find_sets(tree, None, pairs).values()
    further = [each for each in find_all_annotations(tree) if ".xml" not in each.phrase and each.file not in sets]
    return Certainty.PARTIAL if further else Certainty.CERTAIN


KIND = Kind(
    *("voc", "Pascal VOC: JPEGImages with Annotations", _recognise, VocSource),
    takes_boxes=True,
    in_objects=True,
    sidecar_extensions=frozenset({"xml"}),
)
