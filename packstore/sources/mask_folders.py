"""Finds images that belong to other images: folders of masks, pairs of folders, and masks beside their images."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from packstore.core.errors import printable
from packstore.sources.contents import (
    Contents,
    FolderContents,
    NameSet,
    path_and_parents,
    stem_of,
)
from packstore.sources.ignoring import escape_pattern

_MASKS = re.compile(
    r"(.*[_-])?(masks?|labels?|annot(ation)?s?|segmentations?(class|object)?|seg|gt(fine|coarse)?|ground_?truth|"
    r"trimaps?|depths?|panoptic|stuff|targets?|instances?|semantic(_rgb)?|1st_manual|2nd_manual|manual|nir|thermal|"
    r"infrared|normals?|albedo|disparit(y|ies)|flow|edges?|mattes?|heatmaps?)([_-].*)?|(train|val|test)annot"
)
_IMAGES = re.compile(r"(images?(_\d)?|imgs?|jpegimages|leftimg8bit|inputs?|photos?|pictures?|rgb|colou?r|sat|frames?)")
_BESIDE = re.compile(
    r"(masks?|labels?|seg|segmentation|gt|truth|groundtruth|trimap|depth|matte|target|alpha|instance|semantic)\d*"
)
DRAWN = re.compile(r"(?i).*(visuali[sz]ations?|overlays?)")
"""Names of folders with drawn annotations."""
_PAIRS = (
    ("left", "right"), ("input", "target"), ("inputs", "targets"), ("input", "output"), ("inputs", "outputs"),
    ("source", "target"), ("before", "after"), ("low", "high"), ("lr", "hr"), ("lq", "gt"), ("blur", "sharp"),
    ("noisy", "clean"), ("image_2", "image_3"), ("rgb", "thermal"), ("vis", "ir"), ("pre", "post"), ("t1", "t2"),
    ("rgb", "nir"), ("vis", "nir"), ("visible", "infrared"), ("imgs_1", "imgs_2"),
)  # fmt: skip
"""Names of two folders whose images of equal name form one sample: stereo, restoration, change detection."""
_LEAST_NAMED = 3
_MOST_COMPARED = 64
"""Maximum number of folders that are not side by side with a folder of masks, and are compared with it."""


class SuspectedAnnotation(NamedTuple):
    """Suspected annotation of images.

    Attributes:
        phrase: Description for people: ``"metadata.csv"``.
        patterns: Patterns for ``--ignore``.
        folder: Folder of annotation files; None for images, and for files of many folders.
        file: Path of a single annotation file, else None.
    """

    phrase: str
    patterns: tuple[str, ...]
    folder: str | None = None
    file: str | None = None


def printable_folder(folder: str) -> str:
    """Formats a folder for messages; the root of a tree as ``the folder itself``."""
    return printable(folder) or "the folder itself"


def folder_pattern(folder: str, suffix: str = "") -> str:
    """Returns the ``--ignore`` pattern for a folder, or for the files of a suffix in it."""
    path = escape_pattern(folder) if folder else ""
    if not suffix:
        return f"{path}/" if "/" not in path else path
    return f"{path}/*{suffix}"


def mask_ignore_patterns(contents: Contents, masks: Collection[str]) -> dict[str, str]:
    """Returns the ``--ignore`` pattern for each folder of masks. It is the folder's name if several folders have it and
    all of them are in ``masks``. Else it is the folder's path."""
    all_names, mask_names = (Counter(path.rpartition("/")[2] for path in paths) for paths in (contents.folders, masks))
    patterns = {}
    for place in masks:
        name = place.rpartition("/")[2]
        shared = all_names[name] > 1 and all_names[name] == mask_names[name]
        patterns[place] = f"{escape_pattern(name)}/" if shared else folder_pattern(place)
    return patterns


def find_masks(contents: Contents) -> dict[str, str]:
    """Finds folders of masks by their names and the names of their files. Returns a phrase about each, by path.

    A folder of masks has a usual name (``masks``). Besides, one of these is true:

    - Its files have the stems of half of another folder's images, perhaps with a word at their end.
    - A folder beside it has a usual name of images.

    If only two folders have images, and one is called ``images``, the other needs no usual name. Of ``masks/cat``
    beside ``cat``, returns ``masks``. Equal stems alone prove nothing: in many datasets each class counts from 1.
    """
    phrases: dict[str, str] = {}
    holding = [(folder, folder.name) for folder in contents.folders.values() if folder.images.count]
    by_parent: dict[str, list[tuple[FolderContents, str]]] = defaultdict(list)
    for each in holding:
        by_parent[each[0].path.rpartition("/")[0]].append(each)
    pair = len(holding) == 2
    masks = [(each, name) for each, name in holding if _MASKS.fullmatch(name) or (pair and not _IMAGES.fullmatch(name))]
    for mask, name in masks:
        for image, other in (*by_parent[mask.path.rpartition("/")[0]], *holding[:_MOST_COMPARED]):
            if mask is image or not (_MASKS.fullmatch(name) or _IMAGES.fullmatch(other)):
                continue
            if _MASKS.fullmatch(other) or _are_numbered_alike(contents, mask, image):
                continue
            word = _find_mask_word(mask, image)
            if word is not None and _MASKS.fullmatch(name):
                phrases[mask.path] = (
                    f"{printable_folder(mask.path)} has files of the same names as "
                    f"{printable_folder(image.path)}, with {printable(word)} at their end"
                )
                break
            if 2 * mask.images.count_shared(image.images) >= len(image.images.stems):
                phrases[mask.path] = (
                    f"{printable_folder(mask.path)} has files of the same names as {printable_folder(image.path)}"
                )
                break
    by_path = {folder.path: folder for folder, _ in holding}
    for mask, _ in holding:
        parts = mask.path.split("/")
        for n, part in enumerate(parts[:-1]):  # masks/cat beside cat
            own = by_path.get("/".join((*parts[:n], *parts[n + 1 :]))) if _MASKS.fullmatch(part.lower()) else None
            if own is not None and 2 * mask.images.count_shared(own.images) >= len(own.images.stems):
                place = "/".join(parts[: n + 1])
                phrases[place] = f"{printable(place)} has files of the same names as {printable(own.path)}"
    with_images = {place for folder, _ in holding for place in path_and_parents(folder.path)}
    known = {place for each in phrases for place in path_and_parents(each)}
    for folder in contents.folders.values():
        below = [f"{folder.path}/{name}" if folder.path else name for name in folder.folders]
        below = [path for path in below if path in with_images]
        images = [path for path in below if _IMAGES.fullmatch(path.rpartition("/")[2].lower())]
        for path in below:
            if (
                images
                and path not in images
                and path not in known
                and _MASKS.fullmatch(path.rpartition("/")[2].lower())
            ):
                phrases[path] = f"{printable(path)} beside {printable(images[0])}"
                known.update(path_and_parents(path))
    return phrases


def _find_mask_word(mask: FolderContents, image: FolderContents) -> str | None:
    """Returns the word that ends the names of masks: ``mask`` for ``raw/a.jpg`` and ``masks/a_mask.jpg``. Returns None
    unless at least half of the images have such a mask."""
    stems = image.images.stems
    counts = {word: int(np.isin(stems, parts).sum()) for word, parts in mask.tails.items()}
    return next((word for word, count in counts.items() if len(stems) and 2 * count >= len(stems)), None)


def _are_numbered_alike(contents: Contents, mask: FolderContents, image: FolderContents) -> bool:
    """Tells if a third folder beside these two has files of the same names. If so, the folders are classes that count
    from 1, not images and masks. A third folder with a usual name of images or masks does not count. False if the two
    folders are not side by side."""
    above = mask.path.rpartition("/")[0]
    if image.path.rpartition("/")[0] != above or not mask.path:
        return False
    for name in contents.folders[above].folders:
        other = contents.folders.get(f"{above}/{name}" if above else name)
        if other is None or other is mask or other is image or not other.images.count:
            continue
        named = any(pattern.fullmatch(other.name) for pattern in (_MASKS, _IMAGES))
        named = named or {other.path[-2:], image.path[-2:]} == {"/A", "/B"}  # two times, with a mask of changes
        if not named and 2 * other.images.count_shared(image.images) >= len(image.images.stems):
            return True
    return False


def find_image_pairs(contents: Contents, known: Collection[str]) -> Iterator[SuspectedAnnotation]:
    """Yields a suspected annotation for each two folders with two images of each sample: ``left``, ``right``. The
    folders are side by side, have usual names, and half of their stems are equal. The pattern ignores the second
    folder. Skips pairs with a folder in ``known``."""
    holding = {folder.path.lower(): folder for folder in contents.folders.values() if folder.images.count}
    for path, one in holding.items():
        above, slash, name = path.rpartition("/")
        for first, second in _PAIRS:
            other = holding.get(f"{above}{slash}{second}") if name == first else None
            if other is None or one.path in known or other.path in known:
                continue
            if 2 * one.images.count_shared(other.images) >= len(one.images.stems):
                phrase = f"{printable(one.path)} and {printable(other.path)} have files of the same names"
                yield SuspectedAnnotation(phrase, (folder_pattern(other.path),))


def find_masks_by_ending(contents: Contents) -> Iterator[SuspectedAnnotation]:
    """Yields suspected annotations: masks in the folder of their images, by the ends of names.

    Examples are ``a_mask.png`` beside ``a.jpg``, and ``a_mask.png`` beside ``a_sat.jpg``. Nine in ten images must have
    such a mask. Beside ``a.jpg``, fewer suffice for a usual word of masks.
    """
    for folder in contents.folders.values():
        if not folder.tails:
            continue
        stems, where = folder.images.stems, printable(folder.path) or "the folder itself"
        tails = {tail: NameSet(len(bases), bases, ()) for tail, bases in folder.tails.items()}
        bases = np.concatenate([*folder.tails.values()])  # one search for all tails: a folder may have dozens
        ends = np.cumsum([len(each) for each in folder.tails.values()])
        shared = np.concatenate([[0], np.cumsum(np.isin(bases, stems, kind="sort"))])[[0, *ends]]
        paired = dict(zip(folder.tails, np.diff(shared).tolist(), strict=True))
        single = len(stems) - sum(paired.values())
        for tail, count in paired.items():
            enough = (
                min(_LEAST_NAMED, len(stems) // 2)
                if _BESIDE.fullmatch(tail)
                else max(_LEAST_NAMED, -(-9 * single // 10))
            )
            if count and count >= enough:
                mask = next((name for name in folder.images.first if _stem_ends_with(name, tail)), f"…_{tail}")
                image = stem_of(mask)[: -len(tail)].rstrip(" _.-")
                phrase = f"masks beside their images in {where} ({printable(stem_of(mask))}, {printable(image)})"
                yield SuspectedAnnotation(phrase, (f"*{stem_of(mask)[len(image) :]}.*",))
        least = max(_LEAST_NAMED, 9 * len(stems) / 20)
        large = [tail for tail, bases in tails.items() if bases.count >= least and not paired[tail]]
        for n, one in enumerate(large):
            for other in large[n + 1 :]:
                both = tails[one].count_shared(tails[other])
                most = max(tails[one].count, tails[other].count)
                if 10 * both >= 9 * most and both >= least:
                    image, mask = sorted((one, other), key=lambda tail: (_BESIDE.fullmatch(tail) is not None, tail))
                    phrase = f"images that differ by the end of their names in {where} (…_{image}, …_{mask})"
                    yield SuspectedAnnotation(phrase, (f"*{mask}.*",))


def list_ending_patterns(contents: Contents) -> set[str]:
    """Returns the ``--ignore`` patterns of images that :func:`find_masks_by_ending` finds."""
    return {pattern for suspect in find_masks_by_ending(contents) for pattern in suspect.patterns}


def _stem_ends_with(name: str, tail: str) -> bool:
    """Tells if a name without its suffix ends with ``tail``, which is in lower case. The case of the name does not
    matter."""
    return stem_of(name).lower().endswith(tail)
