"""Pascal VOC (http://host.robots.ox.ac.uk/pascal/VOC/): XML files of images, and its kit with sets and masks.

The XML files are beside the images, as from LabelImg and Roboflow, or in any folder whose files have the stems of the
images (``annotations/xmls``). The kit has ``JPEGImages``, ``Annotations``, ``ImageSets``, ``SegmentationClass`` and
``SegmentationObject``.

Boxes in the files count pixels from 1, and include both corners. Here the left edge of the first pixel is 0, so a box
is ``(xmin - 1, ymin - 1, xmax, ymax)``: it covers the same pixels, and its width is their number. Files of other tools
(CVAT, Datumaro, Roboflow) count from 0: their boxes are ``(xmin, ymin, xmax, ymax)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, UsageError, printable
from packstore.core.fields import Field
from packstore.core.manifest import Manifest
from packstore.sources.annotation_formats import AnnotatedFolder, SidecarFormat, SidecarSource, parsing, shapes
from packstore.sources.annotation_formats.shapes import Parts, Picture
from packstore.sources.annotation_formats.source import FurtherFile, make_kind
from packstore.sources.base import SourceOptions
from packstore.sources.beside import clean_path, find_suffixes_other_than_jpg, is_folder, join, read_lines
from packstore.sources.boxes import CORNERS, VOC
from packstore.sources.contents import list_contents, path_and_parents, stem_of
from packstore.sources.ignoring import ignore_paths
from packstore.sources.ledger import Claims, Role
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.palettes import Palette, declare_mask_columns, find_palette, read_mask_columns
from packstore.sources.rows import FileRow, InTree, in_packing_order
from packstore.sources.splits import is_split
from packstore.sources.tree import Tree

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
"""The classes of Pascal VOC, numbered as in its development kit, from 0."""
_IMAGES = "JPEGImages"
_MASKS = {"mask": "SegmentationClass", "object_mask": "SegmentationObject"}
# Matches the numbers behind the name of an image.
_FLAGS = re.compile(r"(\s+[+-]?\d+)+$")
_SETS = ("ImageSets/Main", "ImageSets/Segmentation", "ImageSets")


def parse_annotation(data: bytes) -> dict[str, Any]:
    """Parses an XML file to ``{"annotation": …}``, structured as by torchvision's ``VOCDetection``; its ``object`` is
    always a list. Raises :class:`ValueError` for another file."""
    root, document = parsing.load_xml(data)
    document = document or {}  # <annotation/>: an image without objects
    if root != "annotation" or not isinstance(document, dict):
        raise ValueError(f"its annotation has the root {printable(root)!r} without content; expected 'annotation'")
    return {"annotation": {**document, "object": parsing.as_list(document.get("object"))}}


def list_boxes(content: Any) -> list[list[float]]:
    """Lists the boxes of an annotation as they are written: left, top, right, bottom. Raises :class:`ValueError` for an
    object without one."""
    corners = ("xmin", "ymin", "xmax", "ymax")
    try:
        return [parsing.get_floats(each["bndbox"], *corners) for each in content["annotation"]["object"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"an object of its annotation has no bndbox with {', '.join(corners)}") from error


def read_parts(content: Any, _: Picture) -> Parts:
    """Each object has its class, its box as it is written, and ``difficult``, 0 if it is missing."""
    for each, corners in zip(content["annotation"]["object"], list_boxes(content), strict=True):
        yield shapes.box(each["name"], corners, difficult=int(each.get("difficult") or 0))


@dataclass(frozen=True, kw_only=True)
class _VocFormat(SidecarFormat):
    """Pascal VOC, whose kit may have masks instead of XML files."""

    def find(self, tree: Tree) -> Sequence[AnnotatedFolder]:
        """Finds the folders of images as the base, or those of a kit with masks alone."""
        paths = [path for path in list_contents(tree).folders if path.rpartition("/")[2] == _IMAGES]
        masks = ((path, join(path.rpartition("/")[0], folder)) for path in paths for folder in _MASKS.values())
        masked = dict.fromkeys(path for path, folder in masks if tree.names(folder).ending(".png"))
        return super().find(tree) or [AnnotatedFolder(path, None, "") for path in masked]


class VocSource(SidecarSource):
    """Adds what the kit of Pascal VOC has beside XML files and masks.

    - Splits are the sets of ``ImageSets/Main``, or else those of ``ImageSets/Segmentation`` or ``ImageSets``.
      ``trainval`` is left out beside ``train`` and ``val``, since it is their union. A folder of images that is no kit
      has the lists beside its XML files, or one level above: ``annotations/trainval.txt`` with ``annotations/xmls``.
    - If CVAT's ``labelmap.txt`` fits the masks, ``mask`` has class numbers instead of colours, with ``mask_labels``.

    A box with a corner at 0 proves that the files count from 0, since none can have it that counts from 1. Then all
    boxes are kept as they are written. ``layout`` answers instead: ``voc`` or ``xyxy``.

    Opening raises :class:`UsageError` for another layout, :class:`AmbiguousSourceError` for several kits and for an
    image in two sets, and :class:`SourceError` for a list that names no path.
    """

    def __init__(self, path: Path, options: SourceOptions, format: SidecarFormat) -> None:
        if options.layout not in (None, VOC, CORNERS):
            raise UsageError(
                f"layout is {options.layout}, but boxes of Pascal VOC are {VOC}, counted from 1 with both corners, or "
                f"{CORNERS}, counted from 0"
            )
        super().__init__(path, options, format)
        self._says_layout, self._at_zero = options.layout is not None, False
        self._kit, images = self._find_kit()
        self.expected += [join(self._kit, f"{folder}Npy/") for folder in _MASKS.values()]  # LabelMe's copies of masks
        places = [join(self._kit, place) for place in _SETS]
        if not images and len(self._folders) == 1:  # no kit
            images, xml = self._folders[0].images, self._folders[0].annotations or ""
            places = [xml, xml.rpartition("/")[0]]
        self._lists = self._find_lists(images, places)
        self._sets = self._read_sets(images)
        if self._sets:
            self.left_images = "images in none of the sets"  # type: ignore[misc]
            self.evidence += f" and the sets {', '.join(in_packing_order(self._sets))}"
        if not self._says_layout and any(each.annotations is not None for each in self._folders):
            self.fields()  # parses all annotations
            self.options = replace(self.options, layout=CORNERS if self._at_zero else VOC)

    def _find_kit(self) -> tuple[str, str]:
        """Returns the folder of the kit and that of its images; empty texts if there is none."""
        kits: dict[str, str] = {}
        for place in sorted({path for each in self._folders for path in path_and_parents(each.images)}):
            above, _, name = place.rpartition("/")
            is_inside = any(place.startswith(f"{images}/") for images in kits.values())
            # The images are in ``JPEGImages``, or in any folder beside ``ImageSets``.
            if not is_inside and (name == _IMAGES or is_folder(self.tree, join(above, "ImageSets"))):
                kits[above] = place
        if len(kits) > 1:
            each = " or ".join(map(self.tree.name, kits))
            answers = [Answer(source=Path(self.path, kit)) for kit in kits] if self.path.is_dir() else []
            raise AmbiguousSourceError(
                f"{self.tree.name()} holds several sets of Pascal VOC: give one of them, {each}", answers
            )
        return next(iter(kits.items()), ("", ""))

    def _find_lists(self, images: str, places: Sequence[str]) -> dict[str, str]:
        """Finds the list of images of each split, in the first of ``places`` that has any."""
        stems = {stem_of(name) for name in self.tree.names(images).ending(*IMAGE_SUFFIXES)}
        for folder in places:
            names = (name for name in self.tree.names(folder).ending(".txt") if is_split(name[:-4]))
            lists = {name[:-4].lower(): join(folder, name) for name in names}
            # Elsewhere, a text called ``train.txt`` may be anything, so most of its lines must name images.
            if "ImageSets" not in folder:
                lines = {
                    name: [_FLAGS.sub("", line) for _, line in read_lines(self.tree, lists[name])] for name in lists
                }
                lists = {name: lists[name] for name in lists if 2 * len(stems & {*lines[name]}) > len(lines[name])}
            if {"train", "val"} <= lists.keys():
                lists.pop("trainval", None)
            if lists:
                return lists
        return {}

    def _read_sets(self, images: str) -> dict[str, list[str]]:
        """Reads the images of each split, whose lists name them without suffix, in the folder ``images``."""
        folders = self.tree.folders(is_passed_over, images) if self._lists else ()
        names = (join(place, name) for place, listed in folders for name in listed.ending(*IMAGE_SUFFIXES))
        suffixes = find_suffixes_other_than_jpg(self.tree, images, names)
        sets: dict[str, list[str]] = {split: [] for split in self._lists}
        owners: dict[str, str] = {}
        for split, file in self._lists.items():
            for number, line in read_lines(self.tree, file, paths=True):
                try:
                    image = join(images, clean_path(line if "ImageSets" in file else _FLAGS.sub("", line)))
                except ValueError as error:
                    raise SourceError(f"{self.tree.name(file)}, line {number}: {error}") from None
                if (first := owners.setdefault(image, file)) != file:
                    union = join(file.rpartition("/")[0], "trainval.txt")  # takes the place of a list that is left out
                    kit, found, _ = file.partition("ImageSets/")
                    whole = {kit + found} if found else {first, file, union}
                    raise AmbiguousSourceError(
                        f"{self.tree.name()}: {printable(line)} is in two sets, {printable(first)} and "
                        f"{printable(file)}: remove it from one, or leave a list out with --ignore",
                        [
                            Answer(ignore_paths(sorted(each)))
                            for each in (whole, {first, union} - {file}, {file, union} - {first})
                        ],
                    )
                sets[split].append(image + suffixes.get(image, ".jpg"))
        return sets

    def splits(self) -> Sequence[str]:
        """Returns the sets in packing order, else the splits of the images' folders."""
        return in_packing_order(self._sets) or super().splits()

    def fields(self) -> Mapping[str, Field]:
        """Returns the columns of the base, and those of a palette."""
        return {**super().fields(), **(declare_mask_columns(self._palette) if self._palette is not None else {})}

    @cached_property
    def _palette(self) -> Palette | None:
        """Palette that fits the masks, of colours or of values; None if there is none."""
        masks = super().fields().get("mask")
        return None if masks is None else find_palette(self.tree, [self._kit], masks)

    def list_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a set, in the order of its list, or those of the folders of a split."""
        return self.skip_repeated(split, self._list_set(split)) if self._sets else super().list_rows(split)

    def _list_set(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a set."""
        places = {each.images: each.annotations for each in self._folders}
        for image in self._sets[split]:
            folder, _, name = image.rpartition("/")
            files = [join(places[folder] or "", each) for each in self.format.list_names(name) if places.get(folder)]
            yield FileRow(image, {"raw": InTree(files[0], optional=True)} if files else {})

    def parse_columns(self, item: Any, picture: Picture) -> dict[str, Any]:
        """Parses an annotation; moves boxes that count from 1 to 0."""
        values = super().parse_columns(item, picture)
        self._at_zero |= any(map(_counts_from_zero, values["boxes"]))
        first = 0 if self.options.layout == CORNERS else 1
        values["boxes"] = [[left - first, top - first, *others] for left, top, *others in values["boxes"]]
        return values

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads an image with its masks and annotation. With a palette, adds the columns of class numbers."""
        values = dict(super().read_values(ref))
        if self._palette is not None and values["mask"] is not None:
            values |= read_mask_columns(self._palette, values["mask"], self.options.max_pixels)
        return values

    def follow_store(self, manifest: Manifest) -> None:
        """Reads boxes as those of the store were read, unless ``layout`` is given or the store is of another kind.

        Raises :class:`AmbiguousSourceError` if a box proves that the files count from 0, but those of the store were
        read as counting from 1.
        """
        recorded = CORNERS if manifest.options.get("layout") == CORNERS else VOC
        if self._says_layout or self.options.layout in (None, recorded) or manifest.origin.kind != self.kind:
            return
        if self._at_zero:
            raise AmbiguousSourceError(
                f"{self.tree.name()} has a box at 0, so it counts pixels from 0, but the boxes of the store were read "
                f"as counted from 1. If they count from 0, too, convert them again with --layout {CORNERS}; else say "
                "how this source counts",
                [Answer(("--layout", each)) for each in (CORNERS, VOC)],
                self.path,
            )
        self.options = replace(self.options, layout=recorded)

    def notes(self) -> tuple[str, ...]:
        """Adds a note if the boxes were found to count from 0."""
        note = f"a box is at 0, so all boxes count pixels from 0; --layout {VOC} reads them as counted from 1"
        found = self._at_zero and not self._says_layout and self.options.layout == CORNERS
        return (*super().notes(), *([note] if found else []))

    def describing_files(self) -> Iterable[str]:
        """Returns the lists of images and the files of the palette."""
        return [*self._lists.values(), *(self._palette.files if self._palette is not None else ())]

    def claim_files(self, claims: Claims) -> None:
        """Claims the files that are read, and as evidence all other lists of the kit, such as those of a single
        class."""
        super().claim_files(claims)
        for folder, names in self.tree.folders(is_passed_over, join(self._kit, "ImageSets")):
            claims.claim_all(folder, names.ending(".txt"), Role.EVIDENCE)


def _counts_from_zero(box: Sequence[float]) -> bool:
    """Tells if a box begins at 0 or below 1, which no file has that counts pixels from 1."""
    left, top, right, bottom = box
    return (0 <= left < 1 or 0 <= top < 1) and left < right and top < bottom  # four zeros are no box


FORMAT = _VocFormat(
    kind="voc",
    help="Pascal VOC: JPEGImages with Annotations",
    folders=[("", ""), (_IMAGES, "Annotations")],
    patterns=("{stem}.xml",),
    files=[FurtherFile(column, (f"../{folder}/{{stem}}.png",)) for column, folder in _MASKS.items()],
    # MIT's LabelMe and FAIR1M have polygons instead of boxes.
    signature=rb"(?s)\A(?!.*(LabelMe Webtool|<objects>)).*<annotation",
    read_parts=read_parts,
    parse=parse_annotation,
    classes=CLASSES,
    takes_boxes=True,
)
voc = make_kind(FORMAT, VocSource)
