"""Pairs folders of images with folders of masks, by the names of folders and files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import printable
from packstore.images.orientation import read_annotation_orientation, swaps_sides
from packstore.images.sniff import HeaderError, sniff
from packstore.sources.beside import is_file, join
from packstore.sources.contents import list_contents, stem_of
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.mask_folders import DRAWN
from packstore.sources.rows import in_packing_order
from packstore.sources.splits import find_split, find_split_folders, is_split
from packstore.sources.tree import Tree

_IMAGES = re.compile(r"images?|imgs?|jpegimages|inputs?|photos?|pictures?|rgb|701_stillsraw_full", re.I)
_MASKS = re.compile(
    r"(masks?|labels?|annotations?|segmentations?|seg|gt|ground_?truth|trimaps?|(\d\w\w_)?manual)([_-]?png)?"
    r"|labeledapproved_full",
    re.I,
)
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_IMAGE_WORD = re.compile(r"images?|imgs?|jpegimages|photos?|pictures?")
_MASK_WORD = re.compile(r"masks?|labels?|annot(ation)?s?|seg|segmentations?|gt|(ground)?truth|trimaps?")
_BESIDE_SPLIT = ("{}_masks", "{}_mask", "{}_labels", "{}_label", "{}annot", "{}_annot", "{}_gt")
_IMAGE_TAILS = ("", "_image", "_img", "_rgb", "_sat")
_MASK_TAILS = (
    *("", "_mask", "-mask", "_masks", "_label", "_labels", "_seg", "_segmentation", "_gt", "_L", "_matte"),
    *("_1stHO", "_2ndHO", "_manual1", "_manual2"),  # CHASEDB1 and DRIVE, by two observers
)
_MASK_SUFFIXES = (".png", ".gif", ".tif", ".tiff", ".bmp", ".jpg", ".jpeg", ".PNG", ".JPG")
_CITYSCAPES = {
    "mask": "_{}_labelIds.png",
    "instance_mask": "_{}_instanceIds.png",
    "train_mask": "_{}_labelTrainIds.png",
    "polygons": "_{}_polygons.json",
}
_FEW = 4
_HEADER, _MAX_BYTES = 1 << 16, 1 << 30


class OtherSizeError(ValueError):
    """Masks differ in size from their images; the message follows the name of the folder."""


@dataclass(frozen=True, slots=True)
class MaskPair:
    """Folder of images and folder of their masks.

    Example: the image ``a_photo.jpg`` with the mask ``a_mask.png`` has the tail ``_photo`` and the end ``_mask.png``.

    Attributes:
        images: Folder of images.
        masks: Folder of masks, with the same subfolders.
        tail: Text that ends the image names before their suffix, and that the mask names lack.
        ends: Text that ends the mask names, with suffix, by column.
        further: Further ends of mask names, which differ from that in ``ends`` only by their suffix.
    """

    images: str
    masks: str
    tail: str
    ends: Mapping[str, str]
    further: tuple[str, ...] = ()

    def mask_stem(self, image: str) -> str:
        """Returns the path of an image's mask without its ending."""
        stem = (image[len(self.images) + 1 :] if self.images else image).rpartition(".")[0]
        return join(self.masks, stem.removesuffix(self.tail))

    def is_mask(self, file: str) -> bool:
        """Tells if a file in the folder of images is a mask. False if masks are in another folder."""
        return self.images == self.masks and any(map(file.endswith, (*self.ends.values(), *self.further)))


def find_pairs(tree: Tree) -> dict[str, MaskPair]:
    """Finds the folders of images and masks by split, in packing order.

    A split whose images have no masks is kept: its folder of masks is a name that does not exist. For Cityscapes, the
    names of its folders suffice. Raises :class:`OtherSizeError` if masks differ in size from their images;
    :func:`_pair_folders` compares only some. Returns an empty mapping

    - if there are no pairs, or several ways to pair folders;
    - if a split cannot be paired.
    """
    folders = _list_folders(tree, "")
    by_split: dict[str, MaskPair | None] = {}
    for kind in ("gtFine", "gtCoarse"):
        if {"leftImg8bit", kind} <= set(folders):
            ends = {name: end.format(kind) for name, end in _CITYSCAPES.items()}
            return {split: MaskPair(f"leftImg8bit/{split}", f"{kind}/{split}", "_leftImg8bit", ends)
                    for split in in_packing_order(_list_folders(tree, "leftImg8bit"))}  # fmt: skip
    splits = find_split_folders(folders)
    text = "\0".join(folders).lower()
    named = _MASKS.search(text) or _MASK_WORD.search(text)  # thousands of classes are not read name by name
    pair = _pair_by_names(tree, "") if named else None
    if named and pair is None and not any(map(is_split, folders)) and (by_name := _pair_by_split_names(tree, folders)):
        return by_name
    if pair is not None:
        inside = _list_folders(tree, pair.images)
        found = find_split_folders(inside)
        if inside and len(found) == len(inside):
            by_split = {
                split: _pair_folders(tree, f"{pair.images}/{name}", f"{pair.masks}/{name}")
                for name, split in found.items()
            }
        else:
            by_split[""] = pair
    elif splits:
        for name, split in splits.items():
            beside = [place for place in (end.format(name) for end in _BESIDE_SPLIT) if place in folders]
            by_split[split] = _pair_by_names(tree, name) or _pair_folders(
                tree, name, beside[0] if len(beside) == 1 else name
            )
        _add_splits_without_masks(tree, splits, by_split)
    else:
        by_split[""] = _pair_folders(tree, "", "")
    if len(by_split) < len(splits):
        return {}
    known = next(filter(None, by_split.values()), None)
    if known is not None and pair is not None:  # a split whose images have no masks, such as many test splits
        for split in [split for split, each in by_split.items() if each is None]:
            place = next(name for name, its in found.items() if its == split)
            images, masks = (join(top.rpartition("/")[0], place) for top in (known.images, known.masks))
            if not next(_find_images_below(tree, masks), None):
                by_split[split] = replace(known, images=images, masks=masks)
    pairs = {split: each for split, each in by_split.items() if each is not None}
    return {split: pairs[split] for split in in_packing_order(pairs)} if len(pairs) == len(by_split) else {}


def _add_splits_without_masks(tree: Tree, splits: Mapping[str, str], found: dict[str, MaskPair | None]) -> None:
    """Adds a pair to ``found`` for each split that has neither a pair nor folders. The new pair is like that of another
    split. Adds none if no split has a pair. ``splits``: split of each folder."""
    # Many test splits have no masks.
    known = next(filter(None, found.values()), None)
    for name, split in splits.items():
        if known is None or found[split] is not None or _list_folders(tree, name):
            continue
        if known.images == known.masks:
            found[split] = replace(known, images=name, masks=name)
        elif known.masks.startswith(f"{known.images.rpartition('/')[0]}/"):
            place = join(name, known.masks.rpartition("/")[2])
            found[split] = replace(known, images=name, masks=place, tail="")


def list_unpaired_folders(tree: Tree, pairs: Mapping[str, MaskPair]) -> list[str]:
    """Lists folders with images beside the folders of the pairs. Skips folders that contain a folder of a pair or are
    in one, and folders of drawn masks (``visualization``)."""
    used = [place for pair in pairs.values() for place in (pair.images, pair.masks)]
    bases = {place.rpartition("/")[0] for place in used if place} | {""}
    beside = {join(base, name) for base in bases for name in _list_folders(tree, base)}
    beside = {place for place in beside if not DRAWN.fullmatch(place)}
    free = (place for place in sorted(beside) if not any(_contain_each_other(place, each) for each in used))
    return [place for place in free if next(_find_images_below(tree, place), None)]


def _contain_each_other(one: str, other: str) -> bool:
    """Tells if one folder contains the other, or both are equal. ``""`` contains all."""
    return not one or not other or f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _pair_by_names(tree: Tree, base: str) -> MaskPair | None:
    """Pairs the folders in ``base`` whose names mean images and masks. Returns None unless there is one of each, and
    their files pair up."""
    names = _list_folders(tree, base)
    images, masks = (
        [name for name in names if known.fullmatch(name)]
        or [name for name in names if _read_folder_name(name)[0] == role]
        for known, role in ((_IMAGES, "image"), (_MASKS, "mask"))
    )
    if len(images) != 1 or len(masks) != 1:
        return None
    return _pair_folders(tree, join(base, images[0]), join(base, masks[0]))


def _read_folder_name(name: str) -> tuple[str | None, str]:
    """Returns role and split of a folder, by the words of its name. The role is ``image``, ``mask`` or None. The split
    is ``""`` if there is none, or no role."""
    words = [word.lower() for word in _WORDS.findall(name)]
    role = next((r for r, p in (("mask", _MASK_WORD), ("image", _IMAGE_WORD)) if any(map(p.fullmatch, words))), None)
    return role, "" if role is None else find_split(name)


def _pair_by_split_names(tree: Tree, folders: Sequence[str]) -> dict[str, MaskPair]:
    """Pairs folders whose names contain split and role: ``images_train``, ``masks_train``. A split without a folder of
    masks gets a folder that does not exist. Returns an empty mapping for other names, and if a folder of masks cannot
    be paired."""
    by_role: dict[str | None, dict[str, str]] = {"image": {}, "mask": {}}
    for name in folders:
        role, split = _read_folder_name(name)
        if role is not None and (not split or split in by_role[role]):
            return {}
        by_role.setdefault(role, {})[split] = name
    images, masks = by_role["image"], by_role["mask"]
    by_split = {split: _pair_folders(tree, name, masks[split]) for split, name in images.items() if split in masks}
    pairs = {split: pair for split, pair in by_split.items() if pair is not None}
    if not pairs or len(pairs) < len(masks):
        return {}
    known = next(iter(pairs.values()))
    pairs |= {
        split: replace(known, images=name, masks=f"{name}_masks")
        for split, name in images.items()
        if split not in masks
    }
    return {split: pairs[split] for split in in_packing_order(pairs)}


def _pair_folders(tree: Tree, images: str, masks: str) -> MaskPair | None:
    """Pairs a folder of images with a folder of masks. In one folder for both, masks have other endings than images.

    Returns None unless at least half of the images have a mask. Also returns None for one folder that contains folders,
    which may be classes. Compares the sizes of the first four masks of each ending with those of their images. Raises
    :class:`OtherSizeError` if sizes differ for all possible endings.
    """
    if images == masks and _list_folders(tree, images):
        return None  # folders may be classes
    if images == masks and not _has_mask_endings(tree, images):
        return None
    some = list(_find_images_below(tree, images))
    few = some[:: max(1, len(some) // _FEW)]
    odd = ""
    tails = _MASK_TAILS[images == masks :] if images == masks else (*_MASK_TAILS, *_find_common_endings(tree, masks))
    image_tails = _IMAGE_TAILS if images == masks else (*_IMAGE_TAILS, *_find_common_endings(tree, images))
    listed: list[str] | None = None
    for tail in image_tails:
        for mask_tail, suffix in ((mask_tail, suffix) for mask_tail in tails for suffix in _MASK_SUFFIXES):
            pair = MaskPair(images, masks, tail, {"mask": mask_tail + suffix})
            if not any(is_file(tree, pair.mask_stem(image) + mask_tail + suffix) for image in few):
                continue
            listed = list(_find_images_below(tree, masks)) if listed is None else listed
            suffixes = dict.fromkeys((suffix, *sorted({f".{name.rpartition('.')[2]}" for name in listed})))
            ends = [mask_tail + each for each in suffixes]
            pair = replace(pair, further=tuple(ends[1:]))
            named = [image for image in some if not pair.is_mask(image)]
            hits = [
                np.isin(_hash_names(pair.mask_stem(image) + end for image in named), _hash_names(listed))
                for end in ends
            ]
            pair = replace(pair, further=tuple(end for end, hit in zip(ends[1:], hits[1:], strict=True) if hit.any()))
            if hits[0].any() and 2 * int(np.logical_or.reduce(hits).sum()) >= len(named):
                first = [
                    (image, pair.mask_stem(image) + end)
                    for end, hit in zip(ends, hits, strict=True)
                    for image in list(compress(named, hit))[:_FEW]
                ]
                differing = next((each for each in first if not _have_same_size(tree, *each)), None)
                if differing is None:
                    return pair
                odd = odd or f"has {printable(differing[1])} of another size than {printable(differing[0])}"
    if odd:
        raise OtherSizeError(odd)
    return None


def _has_mask_endings(tree: Tree, folder: str) -> bool:
    """Tells if some images in a folder have names like masks of other images there: ``a_mask.png`` for ``a.jpg``. False
    for several such endings, since an image then may have several masks."""
    contents = list_contents(tree).folders.get(folder)
    if contents is None:
        return False
    ends = {tail[1:].lower() for tail in _MASK_TAILS if tail} & contents.tails.keys()
    return sum(bool(np.isin(contents.tails[end], contents.images.stems).any()) for end in ends) == 1 or (
        len(ends) == 1 and len(contents.tails) > 1
    )


def _find_common_endings(tree: Tree, folder: str) -> list[str]:
    """Returns the endings that nine in ten images in a folder have: ``_training``."""
    contents = list_contents(tree).folders.get(folder)
    if contents is None:
        return []
    common = [tail for tail, bases in contents.tails.items() if 10 * len(bases) >= 9 * contents.images.count]
    stems = [stem_of(name) for name in contents.images.first]
    return [next(stem[-len(tail) - 1 :] for stem in stems if stem.lower().endswith(tail)) for tail in common]


def _hash_names(names: Iterable[str]) -> NDArray[np.int64]:
    """Returns the hashes of names, in order."""
    return np.fromiter(map(hash, names), np.int64)


def _find_images_below(tree: Tree, top: str) -> Iterator[str]:
    """Yields the paths of images in and below a folder, folder by folder, without hidden ones."""
    waiting = [top]
    for folder in waiting:  # grows within the loop
        names = tree.names(folder)
        waiting += [join(folder, name) for name in names.folders if not is_passed_over(name)]
        yield from (join(folder, name) for name in names.ending(*IMAGE_SUFFIXES) if name[0] != ".")


def _have_same_size(tree: Tree, image: str, mask: str) -> bool:
    """Tells if image and mask have the same size, by their headers. The mask may also have the size of the upright
    image. True if a header cannot be read."""
    try:
        one, other = sniff(tree.first_bytes(image, _HEADER)), sniff(tree.first_bytes(mask, _HEADER))
    except HeaderError:
        return True
    if (one.width, one.height) == (other.width, other.height):
        return True
    # The whole file: some kinds have EXIF at its end.
    swapped = (one.width, one.height) == (other.height, other.width)
    return swapped and swaps_sides(read_annotation_orientation(tree.first_bytes(image, _MAX_BYTES)))


def _list_folders(tree: Tree, base: str) -> list[str]:
    """Lists the names of the visible folders in a folder."""
    return [name for name in tree.names(base).folders if not is_passed_over(name)]


def has_other_endings(tree: Tree, pair: MaskPair) -> bool:
    """Tells if the folder of images has further images of its samples: ``a_edge.png`` beside ``a.jpg``. At least three
    images must have the same ending. Nine in ten of them must be beside an image without it."""
    contents = list_contents(tree).folders.get(pair.images)
    if contents is None:
        return False
    used = {end.rpartition(".")[0][1:].lower() for end in pair.ends.values()} | {pair.tail[1:].lower()}
    stems = contents.images.stems
    return any(
        10 * int(np.isin(bases, stems).sum()) >= 9 * len(bases) > 18
        for tail, bases in contents.tails.items()
        if tail not in used
    )
