"""Reads images paired with masks by name: ``images/a.jpg`` and ``masks/a.png``, and the variants of Cityscapes, ADE20K
and others.

Mask files stay unchanged, unless a palette maps their colours to classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Image, Json, Mask, Text
from packstore.core.plainjson import load_json
from packstore.sources.annotations import find_further_files
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import find_file, infer_mask_field, is_file, join, read_lines
from packstore.sources.listing import is_image_name
from packstore.sources.mask_pairs import MaskPair, OtherSizeError, find_pairs, has_other_endings, list_unpaired_folders
from packstore.sources.palettes import (
    Palette,
    declare_mask_columns,
    find_matching_palette,
    find_palette,
    read_mask_columns,
)
from packstore.sources.rows import FileRow, FileRowSource, InTree

_MEANINGS = re.compile(r".*(class|label|categor|palette|colou?r).*[.](txt|csv|tsv|json|ya?ml|xml|names)", re.I)
_SCENES = "sceneCategories.txt"
"""ADE20K's file with the scene of each image."""
_PROBED = 32


class SegmentationSource(FileRowSource):
    """Images with masks in the column ``mask``. The value is missing for an image without a mask.

    Cityscapes also has ``instance_mask``, ``train_mask`` and ``polygons``, ADE20K ``scene``, if their files exist. With
    a palette, coloured masks become class numbers, and ``mask_labels`` lists the classes in each mask.

    The constructor raises :class:`SourceError` for a tree without such masks, and for masks of another size than their
    images. In each folder it compares the sizes of the first four masks with the same ending. In Cityscapes it compares
    none.
    """

    kind = "segmentation"
    left_images = "images in other folders"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._there: dict[str, frozenset[str]] = {}
        try:
            self._pairs = find_pairs(self.tree)
        except OtherSizeError as error:
            raise SourceError(f"{printable(str(path))} {error}") from None
        if not self._pairs:
            raise SourceError(
                f"{printable(str(path))} has no folders of images and masks of the same names (images, masks)"
            )
        first = next(iter(self._pairs.values()))
        image, mask = f"{first.images}/…{first.tail}", f"{first.masks}/…{first.ends['mask']}"
        self.evidence = f"{printable(image)} and {printable(mask)} under the same names"

    def splits(self) -> Sequence[str]:
        """Returns the splits in packing order; ``("",)`` without splits."""
        return tuple(self._pairs)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of the image, each existing kind of mask, and the columns of palette and scenes."""
        columns: dict[str, Field] = {"image": Image()}
        for name in dict.fromkeys(name for pair in self._pairs.values() for name in pair.ends):
            rows = chain.from_iterable(map(self.file_rows, self._pairs))
            files = (find_file(self.tree, row.values[name].file) for row in rows if name in row.values)
            some = list(islice((file for file in files if is_file(self.tree, file)), _PROBED))
            if some:
                masks = self._declare_masks() if name == "mask" else infer_mask_field(self.tree, some)
                columns[name] = Json(optional=True) if name == "polygons" else masks
        columns |= declare_mask_columns(self._palette) if self._palette is not None else {}
        return columns | ({"scene": Text(optional=True)} if self._scenes else {})

    @cached_property
    def _palette(self) -> Palette | None:
        """Palette that fits the masks; None if there is none."""
        return find_matching_palette(self.tree, _folders_to_search_for_palette(self._pairs), self._declare_masks())

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each image of a split that is not a mask. The row has the paths of possible masks, and the
        scene of the image."""
        pair = self._pairs[split]
        for image in self._walk_images(pair.images):
            if not pair.is_mask(image):
                base = pair.mask_stem(image)
                values: dict[str, Any] = {name: InTree(base + end, optional=True) for name, end in pair.ends.items()}
                if pair.further:
                    values["mask"] = InTree(self._find_mask_file(pair, base), optional=True)
                if self._scenes:
                    values["scene"] = self._scenes.get(image.rpartition("/")[2].rpartition(".")[0])
                yield FileRow(image, values)

    def _find_mask_file(self, pair: MaskPair, base: str) -> str:
        """Returns the path of an image's mask in a folder whose masks have several suffixes. If there is no mask,
        returns the first possible path."""
        folder = base.rpartition("/")[0]
        if folder not in self._there:
            self._there[folder] = frozenset(self.tree.names(folder).files)
        ends = (pair.ends["mask"], *pair.further)
        names = (end for end in ends if (base + end).rpartition("/")[2] in self._there[folder])
        return base + next(names, ends[0])

    def _declare_masks(self) -> Mask | Image:
        """Returns the field of the masks. If their suffixes differ, and some are not PNG, the field is of images. Else
        the first masks decide, see :func:`infer_mask_field`."""
        rows = chain.from_iterable(map(self.file_rows, self._pairs))
        files = (find_file(self.tree, row.values["mask"].file) for row in rows)
        if any(pair.further for pair in self._pairs.values()) and not all(
            file.lower().endswith(".png") for file in files
        ):
            return Image(optional=True)
        return infer_mask_field(self.tree, islice((file for file in files if is_file(self.tree, file)), _PROBED))

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads the image and its masks; a missing mask is None. Parses polygons, and converts masks by the palette.
        Leaves out kinds of masks that no image has. Raises :class:`ValueError` for damaged polygons, and for colours or
        values that the palette lacks."""
        values = {name: value for name, value in super().read_values(ref).items() if name in self._field_names}
        if values.get("polygons") is not None:
            try:
                values["polygons"] = load_json(values["polygons"], "are no JSON")
            except ValueError as error:
                raise ValueError(f"its polygons {error}") from None
        if self._palette is not None and values["mask"] is not None:
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

    @cached_property
    def _field_names(self) -> frozenset[str]:
        """Names of all declared columns, see :meth:`fields`."""
        return frozenset(self.fields())

    def _walk_images(self, top: str) -> Iterator[str]:
        """Yields the paths of images below a folder, in the order of the source."""
        for folder, listing in self.tree.walk(top, self.tree.above, None, self.options.skip_bad):
            yield from (join(folder, name) for name in listing.images)


def _recognise(path: Path, options: SourceOptions) -> Certainty:
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


KIND = Kind(
    "segmentation",
    "images with masks of the same names (images, masks)",
    _recognise,
    SegmentationSource,
    in_objects=True,
)
