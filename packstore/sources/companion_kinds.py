"""Layouts of companions with columns of their own: captions, folders of modalities, and masks with their palettes."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Text
from packstore.sources.annotations import find_further_files
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import is_file, join, read_lines
from packstore.sources.columns import make_column_names
from packstore.sources.companion_patterns import MASKS, PAIR, SIDECAR, CompanionPattern, parse_pattern
from packstore.sources.companions import CompanionsSource
from packstore.sources.contents import list_contents, stem_of
from packstore.sources.listing import IMAGE_SUFFIXES, is_image_name
from packstore.sources.mask_pairs import MaskPair, OtherSizeError, find_pairs, has_other_endings, list_unpaired_folders
from packstore.sources.pairing import PROSE, find_companions
from packstore.sources.palettes import (
    Palette,
    declare_mask_columns,
    find_matching_palette,
    find_palette,
    read_mask_columns,
)
from packstore.sources.rows import FileRow
from packstore.sources.splits import find_split_folders, find_splits_of_folders
from packstore.sources.tree import Tree
from packstore.sources.values import looks_like_mask

_REPEATS = re.compile(r"\d+_.+")
"""Folders of kohya, whose number tells how often to repeat their images."""
_MAIN = (
    *("image", "images", "img", "imgs", "rgb", "color", "colour", "vis", "visible", "before", "pre", "left"),
    *("input", "a"),
)
_MODALITIES = re.compile(
    r"images?|imgs?|rgb|colou?r|vis(ible)?|left|right|before|after|pre|post|inputs?|targets?|outputs?|depths?|nir|s?wir|"
    r"[nl]wir|thermal|infrared|ir|sar|opt(ical)?|s[12]|pan|ms|normals?|albedo|disparit(y|ies)|flow|edges?|mattes?|"
    r"heatmaps?|low|high|l[rq]|hr|gt|blur|sharp|noisy|clean|masks?|labels?|semantic|instances?|t[12]|lidar|radar|a|b",
    re.I,
)
_IMAGES, _MASKS = ("image", "images", "img", "imgs"), re.compile(r"masks?|labels?|annotations?|gt|ground_?truth", re.I)
_MOST_MODALITIES = 32
_MEANINGS = re.compile(r".*(class|label|categor|palette|colou?r).*[.](txt|csv|tsv|json|ya?ml|xml|names)", re.I)
_SCENES = "sceneCategories.txt"
"""ADE20K's file with the scene of each image."""


class _NamedSource(CompanionsSource):
    """Base of companions whose columns have names of their own."""

    left_companions: str | None = None

    @abstractmethod
    def find_columns(self) -> Mapping[str, Sequence[CompanionPattern]]:
        """Returns the patterns of each column."""

    def _find_patterns(self) -> tuple[CompanionPattern, ...]:
        """Returns the patterns of all columns."""
        self._found = self.find_columns()
        return tuple(chain.from_iterable(self._found.values()))

    def _name_columns(self) -> Mapping[str, Sequence[CompanionPattern]]:
        """Returns the columns."""
        return self._found


class CaptionFilesSource(_NamedSource):
    """Images with a text each, ``a.jpg`` and ``a.txt`` or ``a.caption``, in the column ``caption``: the layout of
    diffusers and kohya. The folder of an image is a text, too."""

    kind = "caption_files"
    folder_texts = True

    def find_columns(self) -> Mapping[str, Sequence[CompanionPattern]]:
        """Returns the only column. Raises :class:`SourceError` if there are no texts."""
        pattern = _find_captions(self.tree)
        if pattern is None:
            raise SourceError(f"{printable(str(self.path))} has no images with a text each (a.jpg, a.txt)")
        return {"caption": (pattern,)}


def _find_captions(tree: Tree) -> CompanionPattern | None:
    """Returns the pattern of the only texts that have the stems of at least half of the images; else None."""
    contents = list_contents(tree)
    counts = {
        suffix: sum(
            each.images.count_shared(each.others[suffix]) for each in contents.folders.values() if suffix in each.others
        )
        for suffix in PROSE
    }
    suffixes = [suffix for suffix, count in counts.items() if count]
    if len(suffixes) != 1 or 2 * counts[suffixes[0]] < contents.image_count:
        return None
    return parse_pattern(SIDECAR, f"{{s}}.*={{s}}{suffixes[0]}=text")


def _recognise_captions(path: Path, options: SourceOptions) -> Certainty:
    """Certain if at least half of the images have a text, and all texts are for people, else ``NO``. Partial if several
    folders of images may be classes. Raises :class:`AmbiguousSourceError` for texts of an unknown encoding."""
    tree = open_tree(path)
    if tree is None or _find_captions(tree) is None:
        return Certainty.NO
    if not CaptionFilesSource(path, options).has_plain_texts():
        return Certainty.NO
    if any(each.option != SIDECAR for each in find_companions(tree)):
        return Certainty.NO  # masks or further images would be samples
    holding = [folder for folder, each in list_contents(tree).folders.items() if each.images.count]
    splits = find_splits_of_folders(holding)
    plain = {f for f in holding if f not in splits and not _REPEATS.fullmatch(f.rpartition("/")[2])}
    return Certainty.CERTAIN if len(plain) < 2 else Certainty.PARTIAL


class ModalitiesSource(_NamedSource):
    """Images in several folders side by side: those of the main folder are ``image``, and each other folder is a column
    with its images of the same names.

    The main folder has a usual name, such as ``rgb``; else it is the first by name without a name of masks.
    """

    kind = "modalities"
    left_images = left_companions = "images without a main image of the same name"

    def find_columns(self) -> Mapping[str, Sequence[CompanionPattern]]:
        """Returns a column for each folder but the main one. Raises :class:`SourceError` if there are no such folders,
        if a split lacks the main one, and for two images of one stem."""
        groups = find_modality_folders(self.tree, named=True)
        if not groups:
            raise SourceError(
                f"{printable(str(self.path))} has no folders side by side with images of the same names (rgb, depth)"
            )
        names = dict.fromkeys(name for folders in groups.values() for name in folders)
        known = (name for known in _MAIN for name in names if name.lower() == known)
        main = next(known, min(names, key=lambda name: (looks_like_mask(name.lower()), name)))
        if any(main not in folders for folders in groups.values()):
            raise SourceError(f"{printable(str(self.path))}: only some splits have a folder {printable(main)}")
        self._refuse_equal_stems([join(place, name) for place, folders in groups.items() for name in folders])
        return {
            column: [_make_pattern(_choose_option(name), f"{main}/{{s}}.*", f"{name}/{{s}}.*")]
            for name, column in make_column_names((name for name in names if name != main), ["image"]).items()
        }

    def _refuse_equal_stems(self, folders: Iterable[str]) -> None:
        """Raises :class:`SourceError` for a folder with two images of one stem."""
        contents = list_contents(self.tree).folders
        for folder in folders:
            if contents[folder].images.count > len(contents[folder].images.stems):
                stems = Counter(map(stem_of, self.tree.names(folder).ending(*IMAGE_SUFFIXES)))
                name = printable(stems.most_common(1)[0][0])
                raise SourceError(f"{self.tree.name(folder)} has two images called {name}: rename one")


def _make_pattern(option: str, images: str, files: str, type: str = "image") -> CompanionPattern:
    """Makes a pattern of folders, whose names may have characters that the options do not take."""
    return CompanionPattern(option, f"{images}={files}", images, files, type)


def _choose_option(folder: str) -> str:
    """Returns the option for a folder of modalities: its files decide between images and masks, unless its name says
    that they are images."""
    named = not looks_like_mask(folder.lower()) and all(map(_MODALITIES.fullmatch, folder.split("/")))
    return PAIR if named else MASKS


def find_modality_folders(tree: Tree, named: bool) -> dict[str, tuple[str, ...]]:
    """Finds folders of images side by side, by the folder that contains them: the root, or the folder of a split.

    There are 2 to 32 side by side. The first folder and each other share at least half of the names of either. All
    together have all images of the tree; else returns an empty dict. A folder of masks without images counts as the
    folders in it. Unless the user has ``named`` the kind, all have names of modalities, or one is called ``images``.
    """
    contents = list_contents(tree).folders
    groups: dict[str, tuple[str, ...]] = {}
    used = 0
    splits = find_split_folders(contents[""].folders)
    for place, folder in contents.items():
        if place and place not in splits:
            continue
        # A link to a folder above is among the names, but not among the contents.
        children = [name for name in folder.folders if join(place, name) in contents]
        children += [
            f"{name}/{each}"
            for name in children
            if _MASKS.fullmatch(name) and not contents[join(place, name)].images.count
            for each in contents[join(place, name)].folders
            if join(place, f"{name}/{each}") in contents
        ]
        there = {name: contents[join(place, name)].images for name in children}
        inside = [name for name, images in there.items() if images.count]
        modalities = all(map(_MODALITIES.fullmatch, inside)) or any(name.lower() in _IMAGES for name in inside)
        if not 2 <= len(inside) <= _MOST_MODALITIES or not (named or modalities):
            continue
        sets = [there[name] for name in inside]
        if all(2 * each.count_shared(sets[0]) >= max(len(each.stems), len(sets[0].stems)) for each in sets):
            groups[place] = tuple(inside)
            used += sum(each.count for each in sets)
    return groups if used == list_contents(tree).image_count else {}


def _recognise_modalities(path: Path, options: SourceOptions) -> Certainty:
    """Partial if folders side by side have images of the same names, else ``NO``."""
    # Never certain: classes may count from 1, too.
    tree = open_tree(path)
    return Certainty.PARTIAL if tree is not None and find_modality_folders(tree, options.named) else Certainty.NO


class SegmentationSource(_NamedSource):
    """Images with masks in the column ``mask``, in folders with usual names.

    Cityscapes also has ``instance_mask``, ``train_mask`` and ``polygons``, ADE20K ``scene``, if their files exist. With
    a palette, coloured masks become class numbers, and ``mask_labels`` lists the classes in each mask.

    In each folder the constructor compares the sizes of the first four masks with the same ending with those of their
    images; in Cityscapes, of none.
    """

    kind = "segmentation"
    left_images = "images in other folders"

    def find_columns(self) -> Mapping[str, Sequence[CompanionPattern]]:
        """Returns the columns of existing masks. Raises :class:`SourceError` if there are no folders of masks, and for
        masks of another size than their images."""
        try:
            self._pairs = find_pairs(self.tree)
        except OtherSizeError as error:
            raise SourceError(f"{printable(str(self.path))} {error}") from None
        if not self._pairs:
            raise SourceError(
                f"{printable(str(self.path))} has no folders of images and masks of the same names (images, masks)"
            )
        columns: dict[str, list[CompanionPattern]] = {}
        for pair in self._pairs.values():
            images = join(pair.images, f"{{s}}{pair.tail}.*")
            for name, end in pair.ends.items():
                option, type = (SIDECAR, "json") if end.endswith(".json") else (MASKS, "mask")
                for each in (end, *(pair.further if name == "mask" else ())):
                    files = join(pair.masks, f"{{s}}{each}")
                    columns.setdefault(name, []).append(_make_pattern(option, images, files, type))
        return columns

    def _name_columns(self) -> Mapping[str, Sequence[CompanionPattern]]:
        """Returns the columns of which there are files."""
        found = super()._name_columns()
        return {column: each for column, each in found.items() if next(self._list_files(each), None) is not None}

    def _find_split(self, folder: str) -> str | None:
        """Returns the split of a folder of images; None for another folder."""
        inside = (n for n, pair in self._pairs.items() if not pair.images or f"{folder}/".startswith(f"{pair.images}/"))
        return next(inside, None)

    def _find_splits(self, folders: Iterable[str]) -> dict[str, str]:
        """Returns the splits of the pairs of folders."""
        return {folder: split for folder in folders if (split := self._find_split(folder))}

    def _holds_samples(self, folder: str) -> bool:
        """Tells if a folder is one of images."""
        return self._find_split(folder) is not None

    def _name_folders(self, folders: Iterable[str]) -> dict[str, str]:
        """Returns the names of class folders; none for Cityscapes, whose folders are cities."""
        return {} if "polygons" in self._found else super()._name_folders(folders)

    def _declare_more(self) -> dict[str, Field]:
        """Returns the fields of palette and scenes."""
        palette = {} if self._palette is None else declare_mask_columns(self._palette)
        return palette | ({"scene": Text(optional=True)} if self._scenes else {})

    @cached_property
    def _palette(self) -> Palette | None:
        """Palette that fits the masks; None if there is none."""
        if "mask" not in self._columns:
            return None
        masks = self._declare("mask", self._columns["mask"])
        return find_matching_palette(self.tree, _folders_to_search_for_palette(self._pairs), masks)

    def _make_row(self, folder: str, image: str) -> FileRow:
        """Returns the row of an image, with its masks and its scene."""
        row = super()._make_row(folder, image)
        scene = {"scene": self._scenes.get(stem_of(image.rpartition("/")[2]))} if self._scenes else {}
        return row._replace(values={**row.values, **scene})

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads the image and its masks, and converts masks by the palette. Raises :class:`ValueError` for damaged
        polygons, and for colours or values that the palette lacks."""
        values = dict(super().read_values(ref))
        if self._palette is not None and values.get("mask") is not None:
            values |= read_mask_columns(self._palette, values["mask"], self.options.max_pixels)
        return values

    def describing_files(self) -> Iterable[str]:
        """Returns the files of the palette, and ADE20K's list of scenes."""
        palettes = () if self._palette is None else self._palette.files
        return (*palettes, *((_SCENES,) if self._scenes else ()))

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns the reason why a file is left out. Has own reasons for names of the values of masks, and for images
        in folders of masks. For other files, returns that of the base."""
        if _MEANINGS.fullmatch(name):
            return "names of the values of masks, which a store does not keep"
        if is_image_name(name) and any(f"{folder}/".startswith(f"{pair.masks}/") for pair in self._pairs.values()):
            return "images in folders of masks without an image of the same name"
        return super().reason_to_leave_out(folder, name)

    @cached_property
    def _scenes(self) -> dict[str, str]:
        """Scene of each image, by its name without suffix; empty without ADE20K's list."""
        if not is_file(self.tree, _SCENES):
            return {}
        pairs = (line.partition(" ") for _, line in read_lines(self.tree, _SCENES))
        return {name: scene.strip() for name, _, scene in pairs if scene}


def _recognise_masks(path: Path, options: SourceOptions) -> Certainty:
    """Certain for images paired with masks by name, else ``NO``. Partial if further files annotate images, or if there
    are further images. Raises :class:`AmbiguousSourceError` for masks that differ in size from their images."""
    tree = open_tree(path)
    try:
        pairs = {} if tree is None else find_pairs(tree)
    except OtherSizeError as error:
        from packstore.sources.annotation_questions import ambiguous_source_error

        raise ambiguous_source_error(path, str(error)) from None
    if tree is None or not pairs:
        return Certainty.NO
    palette = find_palette(tree, _folders_to_search_for_palette(pairs))
    known = (_SCENES, *(palette.files if palette is not None else ()))
    polygons = [pair.masks for pair in pairs.values() if "polygons" in pair.ends]
    further = [
        each
        for each in find_further_files(tree)
        if each.file not in known and (each.file or not any(f"{each.folder}/".startswith(f"{p}/") for p in polygons))
    ]
    odd = further or list_unpaired_folders(tree, pairs) or any(has_other_endings(tree, pair) for pair in pairs.values())
    return Certainty.PARTIAL if odd else Certainty.CERTAIN


def _folders_to_search_for_palette(pairs: Mapping[str, MaskPair]) -> list[str]:
    """Lists the folders in which a palette may be: the root, the folders of masks, and their parents."""
    masks = [pair.masks for pair in pairs.values()]
    return ["", *(place.rpartition("/")[0] for place in masks), *masks]


CAPTION_FILES = Kind(
    "caption_files",
    "images with a text each: a.jpg and a.txt",
    _recognise_captions,
    CaptionFilesSource,
    in_objects=True,
)
MODALITIES = Kind(
    "modalities",
    "folders side by side with images of the same names: rgb, depth, nir",
    _recognise_modalities,
    ModalitiesSource,
    in_objects=True,
)
SEGMENTATION = Kind(
    "segmentation",
    "images with masks of the same names (images, masks)",
    _recognise_masks,
    SegmentationSource,
    in_objects=True,
)
