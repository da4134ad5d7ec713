"""Pascal VOC (http://host.robots.ox.ac.uk/pascal/VOC/): JPEGImages with Annotations, ImageSets and masks.

Boxes in its files are described in :mod:`packstore.sources.voc.objects`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Field, Image
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, Source, SourceOptions
from packstore.sources.beside import (
    clean_path,
    find_suffixes_other_than_jpg,
    infer_mask_field,
    is_file,
    is_folder,
    join,
    read_lines,
)
from packstore.sources.file_rows import FileRow, InTree
from packstore.sources.ledger import Claims, Role
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.palettes import Palette, declare_mask_columns, find_matching_palette, read_mask_columns
from packstore.sources.rows import in_packing_order
from packstore.sources.splits import is_split
from packstore.sources.tree import Tree
from packstore.sources.voc.beside import VocBesideSource, recognise_beside
from packstore.sources.voc.objects import CLASSES, declare_annotation_fields
from packstore.sources.voc.source import AnnotatedVocSource

__all__ = ["CLASSES", "KIND", "VocSource"]

_MASKS = {"mask": "SegmentationClass", "object_mask": "SegmentationObject"}
_COPIES = "masks as numpy arrays, the numbers of the mask beside"
"""LabelMe also writes each mask as an array, in ``SegmentationClassNpy``, formerly in ``SegmentationClass``."""
_UNION = "trainval"
_IMAGES = ("JPEGImages", "Images", "images")
_LOOKED_AT = 64
_FLAG = re.compile(r"\s+[+-]?[01]$")
"""Flag after the name of an image, in lists of a class."""


class VocSource(AnnotatedVocSource):
    """Source of the images of a folder with ``JPEGImages``, or of a folder that holds a single such folder.

    Splits are the sets of ``ImageSets/Main``. If it has none, they are those of ``ImageSets/Segmentation``,
    ``ImageSets`` or ``Main``, the first that has any. Without sets, takes all images. Leaves out ``trainval`` beside
    ``train`` and ``val``, since it is their union.

    The columns; if an image lacks the file, their values are missing:

    - ``boxes``, ``labels`` and ``difficult`` from the annotation.
    - ``json``: the whole annotation, structured as by torchvision's ``VOCDetection``.
    - ``mask`` and ``object_mask``: the files. If CVAT's ``labelmap.txt`` fits, ``mask`` has class numbers instead of
      colours, with ``mask_labels``.

    Opening raises :class:`AmbiguousSourceError` for several folders with ``JPEGImages``. Listing raises
    :class:`SourceError` for an image in two sets, and for two images that differ only by their suffix.
    """

    left_images = "images in none of the sets"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._base = _find_voc_folder(self.tree) or ""
        self._images = _find_image_folder(self.tree, self._base) or _IMAGES[0]
        self._sets = _find_sets(self.tree, self._base)
        self._annotated = is_folder(self.tree, self._join_base("Annotations"))
        self._masks = {
            name: folder
            for name, known in _MASKS.items()
            if (folder := _find_mask_folder(self.tree, self._base, known))
        }
        parts = [self._images, *(["Annotations"] if self._annotated else []), *self._masks.values()]
        sets = (
            f" and the sets {', '.join(in_packing_order(self._sets))} of {self._set_folders[0]}" if self._sets else ""
        )
        self.evidence = f"{', '.join(parts)}{sets}"
        self.decide_convention()

    def splits(self) -> Sequence[str]:
        """Returns the sets in packing order, or ``("",)``; reads all sets first.

        Raises :class:`SourceError` for an image in several sets, or twice in one. Raises it also for images that differ
        only by their suffixes.
        """
        self._odd_suffixes  # noqa: B018 - raises for images in several sets
        return in_packing_order(self._sets) or ("",)

    def fields(self) -> Mapping[str, Field]:
        """Returns the field of each column. Opens the first masks, and reads all annotations for their classes."""
        columns: dict[str, Field] = {"image": Image()}
        for name, folder in self._masks.items():
            columns[name] = self._infer_mask_field(folder)
        columns |= declare_mask_columns(self._palette) if self._palette is not None else {}
        if self._annotated:
            columns |= declare_annotation_fields(self.facts.classes)
        return columns

    def _infer_mask_field(self, folder: str) -> Field:
        """Returns the field of the masks in a folder, by the first readable image of its first 64 files.

        If none of these is readable, returns a :class:`Mask`.
        """
        names = self.tree.names(self._join_base(folder)).files
        return infer_mask_field(self.tree, (self._join_base(folder, name) for name in names[:_LOOKED_AT]))

    @cached_property
    def _palette(self) -> Palette | None:
        """Palette that fits the masks, of colours or of values; None if there is none."""
        folder = self._masks.get("mask")
        return (
            None if folder is None else find_matching_palette(self.tree, [self._base], self._infer_mask_field(folder))
        )

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split. Raises :class:`SourceError` for a path out of the source, and for all errors
        of :meth:`splits`."""
        suffixes = self._odd_suffixes
        for stem in self._list_stems(split):
            values: dict[str, Any] = {
                name: InTree(self._join_base(folder, f"{stem}.png"), optional=True)
                for name, folder in self._masks.items()
            }
            if self._annotated:
                values["json"] = InTree(self._join_base("Annotations", f"{stem}.xml"), optional=True)
            yield FileRow(self._join_base(self._images, f"{stem}{suffixes.get(stem, '.jpg')}"), values)

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads an image with its masks, and parses its annotation. With a palette, adds the columns of class numbers.

        Raises :class:`ValueError` for an invalid annotation or mask.
        """
        values = dict(super().read_values(ref))
        if self._palette is not None and values["mask"] is not None:
            values |= read_mask_columns(self._palette, values["mask"], self.options.max_pixels)
        return values

    def describing_files(self) -> Iterable[str]:
        """Returns the paths of the lists of images and of the files of the palette."""
        return [*self._sets.values(), *(self._palette.files if self._palette is not None else ())]

    def claim_files(self, claims: Claims) -> None:
        """Claims the files that are read. Claims all other lists in the folders of sets as evidence, such as those
        of a single class."""
        super().claim_files(claims)
        used, places = set(self.describing_files()), dict.fromkeys((self._join_base("ImageSets"), *self._set_folders))
        for folder, names in (each for place in places for each in self.tree.folders(is_passed_over, place)):
            lists = (name for name in names.files if name.endswith(".txt") and join(folder, name) not in used)
            claims.claim_all(folder, lists, Role.EVIDENCE)

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns the reason for LabelMe's copies of masks, and for images in none of the sets. None for other
        files."""
        return _COPIES if self.expects_left(join(folder, name)) else super().reason_to_leave_out(folder, name)

    def expects_left(self, path: str) -> bool:
        """Tells if a file is LabelMe's copy, as a numpy array, of a mask that is there."""
        folder, _, name = path.rpartition("/")
        masks = (
            place
            for place in self._masks.values()
            if folder in (self._join_base(place.removesuffix("PNG") + end) for end in ("", "Npy"))
        )
        return name.endswith(".npy") and any(is_file(self.tree, self._join_base(p, f"{name[:-4]}.png")) for p in masks)

    def _join_base(self, *parts: str) -> str:
        """Joins parts to a path below the folder of the data set."""
        return join(self._base, "/".join(parts))

    @property
    def _set_folders(self) -> list[str]:
        """Folder of the sets, in a list; empty without sets."""
        return [next(iter(self._sets.values())).rpartition("/")[0]] if self._sets else []

    def _list_stems(self, split: str) -> Iterator[str]:
        """Yields the names of the images of a split, without suffixes. Removes the flag 0, 1 or -1 behind a name in a
        list.

        Without sets, yields all images. Raises :class:`SourceError` for a path out of the source.
        """
        if not self._sets:
            yield from (name.rpartition(".")[0] for name in self.tree.list(self._join_base(self._images)).images)
            return
        for number, line in read_lines(self.tree, self._sets[split], paths=True):
            try:
                yield clean_path(line if self._is_name_without_flag(line) else _FLAG.sub("", line))
            except ValueError as error:
                raise SourceError(f"{self.tree.name(self._sets[split])}, line {number}: {error}") from None

    def _is_name_without_flag(self, stem: str) -> bool:
        """Tells if a line with blanks is the whole name of an existing image. Such a line has no flag at its end."""
        return " " in stem and any(
            is_file(self.tree, self._join_base(self._images, stem + end)) for end in IMAGE_SUFFIXES
        )

    @cached_property
    def _odd_suffixes(self) -> dict[str, str]:
        """Suffix of each image that does not end in ``.jpg``, by the image's name without suffix.

        Raises :class:`SourceError` for an image in several sets, or twice in one. Raises it also for images that differ
        only by their suffixes.
        """
        folder = self._join_base(self._images)
        folders = self.tree.folders(is_passed_over, folder)
        images = (
            join(place, name)[len(folder) + 1 :] for place, names in folders for name in names.ending(*IMAGE_SUFFIXES)
        )
        suffixes = find_suffixes_other_than_jpg(self.tree, folder, images)
        if self._sets:
            seen: set[str] = set()
            for file in self._sets:
                for stem in self._list_stems(file):
                    if stem in seen:
                        raise SourceError(
                            f"{self.tree.name(self._set_folders[0])}: {printable(stem)} is in two sets, or twice"
                        )
                    seen.add(stem)
        return suffixes


def _find_voc_folder(tree: Tree) -> str | None:
    """Finds the data set's folder: the root, or the only folder with ``JPEGImages`` in the root or in its
    ``VOCdevkit``.

    Returns its path, ``""`` for the root, or None if there is none. Raises :class:`AmbiguousSourceError` for several.
    """
    if _find_image_folder(tree, "") is not None:
        return ""
    above = "VOCdevkit" if is_folder(tree, "VOCdevkit") else ""
    folders = [
        join(above, name) for name in tree.names(above).folders if is_folder(tree, join(above, f"{name}/JPEGImages"))
    ]
    if len(folders) > 1:
        each = " or ".join(tree.name(base) for base in folders)
        answers = [Answer(source=Path(tree.root, base)) for base in folders] if Path(tree.root).is_dir() else []
        raise AmbiguousSourceError(f"{tree.name()} holds several sets of Pascal VOC: give one of them, {each}", answers)
    return folders[0] if folders else None


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


def _find_sets(tree: Tree, base: str) -> dict[str, str]:
    """Finds the list of images of each split, in the first folder that has any. Returns paths by split; ``{}`` without
    lists.

    Only lists named like a known split count. Leaves out ``trainval`` beside ``train`` and ``val``.
    """
    for place in ("ImageSets/Main", "ImageSets/Segmentation", "ImageSets", "Main"):
        folder = join(base, place)
        names = (name for name in tree.names(folder).files if name.endswith(".txt"))
        lists = {name[:-4].lower(): join(folder, name) for name in names if is_split(name[:-4])}
        if {"train", "val"} <= lists.keys():
            lists.pop(_UNION, None)
        if lists:
            return lists
    return {}


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises Pascal VOC. Returns

    - ``CERTAIN`` for ``JPEGImages`` with XML files or masks;
    - ``CERTAIN`` for XML files beside images, or ``PARTIAL`` if other annotations are there too;
    - ``NO`` for other paths.

    Raises :class:`AmbiguousSourceError` for several folders with ``JPEGImages``. Raises it also if several groups of
    folders have the images of one folder of XML files.
    """
    tree = open_tree(path)
    if tree is None:
        return Certainty.NO
    base = _find_voc_folder(tree)
    if base is None:
        return recognise_beside(tree)
    folders = tree.folders(is_passed_over, join(base, "Annotations"))
    annotated = any(name.endswith(".xml") for _, names in folders for name in names.files)
    masks = any(_find_mask_folder(tree, base, folder) for folder in _MASKS.values())
    return Certainty.CERTAIN if annotated or masks else Certainty.NO


def _open_voc(path: Path, options: SourceOptions) -> Source:
    """Opens a folder with ``JPEGImages`` as :class:`VocSource`, any other as :class:`VocBesideSource`."""
    tree = open_tree(path)
    return (
        VocBesideSource(path, options) if tree is None or _find_voc_folder(tree) is None else VocSource(path, options)
    )


KIND = Kind(
    *("voc", "Pascal VOC: JPEGImages with Annotations", _recognise, _open_voc),
    takes_boxes=True,
    in_objects=True,
    sidecar_extensions=frozenset({"xml"}),
)
