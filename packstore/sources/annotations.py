"""Finds annotations beside images: what packing the images alone would lose without a word.

A look at a bounded number of names, never a full listing. It finds files that name images (lists, CSV, JSON), files
under the stems of images (captions, boxes), folders of masks, and files that hold nothing but annotations (``.mat``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.sources.archives import open_tree
from packstore.sources.base import SPLIT_ORDER
from packstore.sources.labels import LabelsFile
from packstore.sources.listing import IMAGE_SUFFIXES, SYSTEM_NAMES
from packstore.sources.tree import Tree

_TEXT = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".xml", ".yaml", ".yml", ".lst")
_SHEETS = (".csv", ".tsv", ".jsonl", ".ndjson")
_OPAQUE = (".mat", ".parquet", ".arrow", ".feather")
"""Files of these kinds are not opened: beside images they hold their labels."""
_SIDECARS = (".txt", ".json", ".xml", ".caption", ".yaml", ".npy", ".npz", ".mat", ".cls")
_METADATA = re.compile(
    r"(metadata|labels?|annotations?|captions?|_annotations\.coco)\.(csv|tsv|jsonl?|parquet)|data\.ya?ml"
)
_MASKS = re.compile(
    r"(.*[_-])?(masks?|labels?|annotations?|segmentations?(class|object)?|seg|gt(fine|coarse)?|ground_?truth|"
    r"trimaps?|depths?|panoptic|stuff)([_-].*)?"
)
_IMAGES = re.compile(r"(images?|imgs?|jpegimages|leftimg8bit|inputs?|photos?|pictures?|rgb)")
_BESIDE = re.compile(r"(.+)[_-](masks?|labels?|seg|segmentation|gt|ground_?truth|trimap|depth|matte)")
_PAIRS = (
    ("left", "right"), ("input", "target"), ("inputs", "targets"), ("input", "output"), ("inputs", "outputs"),
    ("source", "target"), ("before", "after"), ("low", "high"), ("lr", "hr"), ("lq", "gt"), ("blur", "sharp"),
    ("noisy", "clean"), ("image_2", "image_3"), ("rgb", "thermal"), ("vis", "ir"),
)  # fmt: skip
"""Names of two folders whose images of one name are one sample: stereo, restoration, change detection."""
_KEPT = re.compile(r"(.*/)?(annotations?|labels?)/[^/]*[.]json")
_NAMED = 4
_FOLDERS, _NAMES, _FILES, _BYTES = 256, 256, 64, 1 << 18
"""At most so many folders are looked at, names in each, files read, and bytes of each of these."""
_MENTIONS = 3
_WORD = re.compile(rb"[^\s,;:\"'\[\]{}()<>|=/\\]+")


@dataclass(slots=True)
class _Folder:
    """Names in a folder: at most :data:`_NAMES` of each."""

    path: str
    images: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)


def annotated(path: Path, kind: str) -> AmbiguousSourceError:
    """The error for a folder of the given kind with annotations, which it does not read."""
    tree = open_tree(path)
    folders = [] if tree is None else list(_look(tree))
    found = [] if tree is None else _all_annotations(tree, folders)
    some = ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
    return _question(path, f"holds more than images: {some}", kind, folders)


def asked(path: Path, why: str) -> AmbiguousSourceError:
    """The error for a folder of images that is not certain to be what it seems; ``why`` continues its name."""
    tree = open_tree(path)
    return _question(path, why, "imagefolder", [] if tree is None else list(_look(tree)))


def _question(path: Path, why: str, kind: str, folders: list[_Folder]) -> AmbiguousSourceError:
    alone, answers = _alone(path, kind, folders)
    labels = _labels_files(path, folders) if path.is_dir() else []
    return AmbiguousSourceError(
        f"{printable(str(path))} {why}. Pack the images alone {alone}; "
        "give labels in a CSV file (columns file,label) with --labels; or pack all of it from Python "
        "(packstore guide packing)",
        [*labels, *answers],
        path,
    )


def _labels_files(path: Path, folders: list[_Folder]) -> list[Answer]:
    """The labels files for ``--labels`` among the first CSV files, each with the folder from which on it names
    images."""
    files = [(folder.path, name) for folder in folders for name in folder.others if name.lower().endswith(".csv")]
    found = []
    for folder, name in files[:_NAMED]:
        file = path / folder / name
        try:
            first = next(LabelsFile(file).rows(), None)
        except SourceError:
            continue
        places = dict.fromkeys((path, *(path / each.path for each in folders if each.images)))
        place = None if first is None else next((each for each in places if (each / first.file).is_file()), None)
        if place is not None:
            found.append(Answer(("--labels", str(file)), None if place == path else place))
    return found


def find_annotations(tree: Tree) -> list[str]:
    """What seems to annotate the images of ``tree``: a phrase each (``"metadata.csv"``), none where nothing does."""
    return _all_annotations(tree, list(_look(tree)))


def find_further(tree: Tree) -> list[str]:
    """Like :func:`find_annotations`, without masks."""
    return _further(tree, list(_look(tree)))


def _all_annotations(tree: Tree, folders: list[_Folder]) -> list[str]:
    found = [*_masks(folders).values(), *_pairs(folders), *_masks_beside(folders), *_further(tree, folders)]
    return list(dict.fromkeys(found))


def _further(tree: Tree, folders: list[_Folder]) -> list[str]:
    found = [*_sidecars(folders)]
    known = {stem for folder in folders for stem in _stems(folder.images)}
    splits = [_stems(folder.images) for folder in folders if folder.images and folder.path.lower() in SPLIT_ORDER]
    read = 0
    for folder in folders:
        for name in folder.others:
            path = f"{folder.path}/{name}" if folder.path else name
            lower, shown = name.lower(), printable(path)
            if _METADATA.fullmatch(lower) or (lower.endswith(_OPAQUE) and len(folder.others) < _NAMES):
                found.append(shown)
            elif lower.endswith(_TEXT) and read < _FILES and not lower.startswith(("readme", "license")):
                read += 1
                if _mentions(tree.start(path, _BYTES), [known, *(splits if lower.endswith(_SHEETS) else ())]):
                    found.append(f"{shown} (it names the images)")
                elif _KEPT.fullmatch(path.lower()) and _stem(name) not in known:
                    found.append(shown)
    return list(dict.fromkeys(found))


def _alone(path: Path, kind: str, folders: list[_Folder]) -> tuple[str, list[Answer]]:
    """How the images are packed without what lies beside them: an option, or the folders to name instead."""
    masks = _masks(folders)
    holding = [
        folder.path
        for folder in folders
        if folder.images and not any(f"{folder.path}/".startswith(f"{mask}/") for mask in masks)
    ]
    if any(_masks_beside(folders)):
        return f"once the masks lie elsewhere (--source {kind} packs both)", []
    if not holding:
        return "once they are there (masks and annotations seem to be all)", []
    shared = takewhile(lambda part: part.lower() not in SPLIT_ORDER, os.path.commonpath(holding or [""]).split("/"))
    if common := "/".join(shared):
        return f"from their folder, {_place(path, common)}", _instead(path, [common])
    tops = {place.split("/")[0] for place in holding}
    others = set(folders[0].folders) - tops if folders else set()
    if holding == [""]:
        return "with --source flat", [Answer(("--source", "flat"))]
    if not masks and (not others or all(top.lower() in SPLIT_ORDER for top in tops)):
        return f"with --source {kind}", [Answer(("--source", kind))]
    if len(holding) <= _NAMED:
        places = ", ".join(_place(path, place) for place in holding)
        return f"from their folders: {places}", _instead(path, holding)
    return f"with --source {kind}, once the rest is out of the folder", []


def _instead(path: Path, folders: list[str]) -> list[Answer]:
    """Folders below ``path`` to give instead; in an archive nobody can give them."""
    return [Answer(source=path / folder) for folder in folders] if path.is_dir() else []


def _place(path: Path, folder: str) -> str:
    """A folder below ``path`` as it is to be given; of an archive, as it will be called once that is unpacked."""
    return printable(str(path / folder) if path.is_dir() else f"{folder} (unpack the archive)")


def _look(tree: Tree) -> Iterator[_Folder]:
    """The folders of ``tree`` breadth first, so that what lies near the top is seen in any case."""
    waiting = [""]
    for path in islice(_growing(waiting), _FOLDERS):
        folder = _Folder(path)
        for name, is_directory in tree.names(path):
            if name[0] == "." or name.lower() in SYSTEM_NAMES:
                continue
            if is_directory:
                folder.folders.append(name)
            elif name.lower().endswith(IMAGE_SUFFIXES):
                folder.images.append(name)
            else:
                folder.others.append(name)
        for names in (folder.images, folder.others, folder.folders):
            names.sort()
            del names[_NAMES:]
        yield folder
        waiting += [f"{path}/{name}" if path else name for name in folder.folders]


def _growing(items: list[str]) -> Iterator[str]:
    """The items of a list that may grow meanwhile."""
    number = 0
    while number < len(items):
        yield items[number]
        number += 1


def _stems(names: list[str]) -> set[str]:
    return {_stem(name) for name in names}


def _stem(name: str) -> str:
    return name.rpartition(".")[0] or name


def _sidecars(folders: list[_Folder]) -> Iterator[str]:
    """Files that lie under the stems of images: beside these, or in a folder of their own."""
    stems = {stem for folder in folders for stem in _stems(folder.images)}
    if not stems:
        return
    for folder in folders:
        files = [name for name in folder.others if name.lower().endswith(_SIDECARS)]
        if len(_stems(files) & stems) >= max(1, min(_MENTIONS, len(stems)), len(files) // 2):
            suffix = os.path.splitext(files[0])[1]  # noqa: PTH122
            place = printable(folder.path) or "the folder itself"
            yield f"a {suffix} file for each image in {place}"


def _masks(folders: list[_Folder]) -> dict[str, str]:
    """Folders of masks, each with the phrase that says so.

    They hold images under the stems of another folder's images, or lie beside a folder of images, and their names say
    what they are. Equal stems alone mean nothing: in many sets each class counts from 1.
    """
    found: dict[str, str] = {}
    holding = [(folder, folder.path.rpartition("/")[2].lower()) for folder in folders if folder.images]
    masks = [(folder, name) for folder, name in holding if len(holding) == 2 or _MASKS.fullmatch(name)]
    for mask, name in masks:
        for image, other in holding:
            if mask is image or not (_MASKS.fullmatch(name) or _IMAGES.fullmatch(other)):
                continue
            if _MASKS.fullmatch(other) and not _MASKS.fullmatch(name):
                continue
            common = _stems(mask.images) & _stems(image.images)
            if 2 * len(common) >= len(image.images):
                beside = printable(image.path) or "the folder itself"
                found[mask.path] = f"{printable(mask.path)} has files of the same names as {beside}"
                break
    by_path = {folder.path: folder for folder, _ in holding}
    for mask, _ in holding:
        parts = mask.path.split("/")
        for n, part in enumerate(parts[:-1]):  # masks/cat beside cat
            own = by_path.get("/".join((*parts[:n], *parts[n + 1 :]))) if _MASKS.fullmatch(part.lower()) else None
            if own is not None and 2 * len(_stems(mask.images) & _stems(own.images)) >= len(own.images):
                place = "/".join(parts[: n + 1])
                found[place] = f"{printable(place)} has files of the same names as {printable(own.path)}"
    with_images = {place for folder, _ in holding for place in _at_and_above(folder.path)}
    for folder in folders:
        below = [f"{folder.path}/{name}" if folder.path else name for name in folder.folders]
        below = [path for path in below if path in with_images]
        images = [path for path in below if _IMAGES.fullmatch(path.rpartition("/")[2].lower())]
        for path in below:
            known = any(f"{each}/".startswith(f"{path}/") for each in found)
            if images and not known and _MASKS.fullmatch(path.rpartition("/")[2].lower()):
                found[path] = f"{printable(path)} beside {printable(images[0])}"
    return found


def _at_and_above(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


def _pairs(folders: list[_Folder]) -> Iterator[str]:
    """Two folders side by side that hold two images of each sample, by their names and those of their images."""
    holding = {folder.path.lower(): folder for folder in folders if folder.images}
    for path, one in holding.items():
        above, slash, name = path.rpartition("/")
        for first, second in _PAIRS:
            other = holding.get(f"{above}{slash}{second}") if name == first else None
            if other is not None and 2 * len(_stems(one.images) & _stems(other.images)) >= len(one.images):
                yield f"{printable(one.path)} and {printable(other.path)} have files of the same names"


def _masks_beside(folders: list[_Folder]) -> Iterator[str]:
    """Masks that lie in the folder of their images: ``a_mask.png`` beside ``a.jpg``."""
    for folder in folders:
        stems = _stems(folder.images)
        parts = [(stem, _BESIDE.fullmatch(stem.lower())) for stem in sorted(stems)]
        pairs = [(stem, stem[: part.end(1)]) for stem, part in parts if part and stem[: part.end(1)] in stems]
        if pairs and len(pairs) >= min(_MENTIONS, len(stems) // 2):
            mask, image = map(printable, pairs[0])
            yield f"masks beside their images in {printable(folder.path) or 'the folder itself'} ({mask}, {image})"


def _mentions(text: bytes, groups: list[set[str]]) -> bool:
    """Whether the beginning of a file names images of some group, by their stems: three of them, or all where there are
    fewer. A table is often of one split alone, so each is a group."""
    words = {os.path.splitext(word.decode("utf-8", "surrogateescape"))[0] for word in _WORD.findall(text)}  # noqa: PTH122
    return any(len(words & group) >= min(_MENTIONS, len(group)) for group in groups if group)
