"""Reads folders side by side whose images of equal names are one sample: ``rgb/1.png``, ``depth/1.png``, ``nir/1.png``.

Folders of classes that count from 1 look alike, so this raises a question unless the user names the kind; and only
if all folders have names of modalities, or one is called ``images``, which is not a class. If the user names the
kind, the folders may have any names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Image, Mask
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import infer_mask_field, join
from packstore.sources.columns import make_column_names
from packstore.sources.contents import list_contents, stem_of
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.rows import FileRow, FileRowSource, InTree, in_packing_order
from packstore.sources.splits import find_split, find_split_folders
from packstore.sources.tree import Tree
from packstore.sources.values import looks_like_mask

_MAIN = (
    "image",
    "images",
    "img",
    "imgs",
    "rgb",
    "color",
    "colour",
    "vis",
    "visible",
    "before",
    "pre",
    "left",
    "input",
    "a",
)
_NAMES = re.compile(
    r"images?|imgs?|rgb|colou?r|vis(ible)?|left|right|before|after|pre|post|inputs?|targets?|outputs?|depths?|nir|s?wir|"
    r"[nl]wir|thermal|infrared|ir|sar|opt(ical)?|s[12]|pan|ms|normals?|albedo|disparit(y|ies)|flow|edges?|mattes?|"
    r"heatmaps?|low|high|l[rq]|hr|gt|blur|sharp|noisy|clean|masks?|labels?|semantic|instances?|t[12]|lidar|radar|a|b",
    re.I,
)
_IMAGES, _MASKS = ("image", "images", "img", "imgs"), re.compile(r"masks?|labels?|annotations?|gt|ground_?truth", re.I)
_MOST, _PROBED = 32, 32


class ModalitiesSource(FileRowSource):
    """Source of images in several folders. Images of the main folder are ``image``. Each folder beside it is a column,
    with its images of the same names; None for a missing one.

    The main folder has a usual name, such as ``rgb``; else it is the first by name without a name of masks. A tree
    without such folders, and a split without the main folder, are refused. Images of other folders without a main image
    are left out.
    """

    kind = "modalities"
    left_images = "images without a main image of the same name"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._groups = find_modality_folders(self.tree, named=True)
        if not self._groups:
            raise SourceError(
                f"{printable(str(path))} has no folders side by side with images of the same names (rgb, depth)"
            )
        names = dict.fromkeys(name for folders in self._groups.values() for name in folders)
        known = (name for known in _MAIN for name in names if name.lower() == known)
        self._main = next(known, min(names, key=lambda name: (looks_like_mask(name.lower()), name)))
        if any(self._main not in folders for folders in self._groups.values()):
            raise SourceError(f"{printable(str(path))}: only some splits have a folder {printable(self._main)}")
        others = [name for name in names if name != self._main]
        self._column_of = dict(make_column_names(others, ["image"]))
        self.evidence = f"images in {printable(self._main)}, with those in {', '.join(map(printable, others))}"

    def splits(self) -> Sequence[str]:
        """Returns the splits whose folders contain the modalities, in packing order; ``""`` for the root."""
        return in_packing_order(map(find_split, self._groups))

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of the main image, and of a column for each other folder."""
        return {"image": Image(), **{called: self._declare_modality(name) for name, called in self._column_of.items()}}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields one row for each main image. The row has the images of the same stem in other folders. Raises
        :class:`SourceError` for two images of one stem in a folder."""
        for place, folders in self._groups.items():
            if find_split(place) != split:
                continue
            files = {name: self._list_by_stem(join(place, name)) for name in folders}
            for stem, file in files[self._main].items():
                beside = {
                    self._column_of[name]: InTree(join(join(place, name), files[name][stem]), optional=True)
                    for name in folders
                    if name != self._main and stem in files[name]
                }
                yield FileRow(join(join(place, self._main), file), beside)

    def _list_by_stem(self, folder: str) -> dict[str, str]:
        """Lists the images of a folder by stem. Raises :class:`SourceError` for two of one stem."""
        files: dict[str, str] = {}
        for file in self.tree.names(folder).ending(*IMAGE_SUFFIXES):
            if files.setdefault(stem_of(file), file) != file:
                raise SourceError(
                    f"{self.tree.name(folder)} has two images called {printable(stem_of(file))}: rename one"
                )
        return files

    def describing_files(self) -> Iterable[str]:
        """Returns no files: only the names of folders describe the images."""
        return ()

    def _declare_modality(self, name: str) -> Image | Mask:
        """Returns the field of a folder's column. A folder with a name of modalities, but not of masks, has images.
        Else the first files of the folder decide between images and masks."""
        if not looks_like_mask(name.lower()) and all(map(_NAMES.fullmatch, name.split("/"))):
            return Image(optional=True)
        places = [join(place, name) for place, folders in self._groups.items() if name in folders]
        return infer_mask_field(
            self.tree,
            (join(each, file) for each in places for file in self.tree.names(each).ending(*IMAGE_SUFFIXES)[:_PROBED]),
        )


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
        modalities = all(map(_NAMES.fullmatch, inside)) or any(name.lower() in _IMAGES for name in inside)
        if not 2 <= len(inside) <= _MOST or not (named or modalities):
            continue
        sets = [there[name] for name in inside]
        if all(2 * each.count_shared(sets[0]) >= max(len(each.stems), len(sets[0].stems)) for each in sets):
            groups[place] = tuple(inside)
            used += sum(each.count for each in sets)
    return groups if used == list_contents(tree).image_count else {}


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Partial if folders side by side have images of the same names, else ``NO``."""
    # Never certain: classes may count from 1, too.
    tree = open_tree(path)
    return Certainty.PARTIAL if tree is not None and find_modality_folders(tree, options.named) else Certainty.NO


KIND = Kind(
    "modalities",
    "folders side by side with images of the same names: rgb, depth, nir",
    _recognise,
    ModalitiesSource,
    in_objects=True,
)
