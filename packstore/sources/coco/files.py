"""COCO's files of annotations: which there are, and which split each is of."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from packstore.core.errors import AmbiguousSourceError, Answer, printable
from packstore.sources.base import SPLIT_ORDER
from packstore.sources.beside import find_base_folder, join, read_whole
from packstore.sources.listing import is_passed_over
from packstore.sources.rows import in_packing_order
from packstore.sources.tree import Tree

_START = 1 << 16
_PROBED, _WHOLE = 16, 1 << 30
_NAME = re.compile(
    r"(?:(instances|captions|person_keypoints|keypoints|panoptic|stuff|images?_info)(?=[_.-]))?[_-]?(.*?)[.]json"
)
_NO_SPLIT = frozenset({"", "annotation", "annotations", "annotations.coco", "coco", "default", "instances", "labels"})
_LISTS = re.compile(rb'"(?:images|annotations|categories)"\s*:\s*\[')
_ENTRIES = re.compile(rb'"(?:file_name|image_id|category_id|supercategory)"\s*:')
_OF_ONE_IMAGE = re.compile(rb'"image"\s*:\s*\{')
"""A file that has one image, as those of SA-1B, is none of COCO."""
_BESIDE = ("annotations", "Annotations", "annotation", "labels", "coco")
_KINDS = {"person_keypoints": "keypoints", "images_info": "image_info", "": "instances"}
READ = ("instances", "keypoints", "captions", "stuff", "panoptic", "image_info")
"""Kinds of files, in the order in which they are read."""


@dataclass(frozen=True, slots=True)
class AnnotationFile:
    """A file of annotations.

    Attributes:
        path: In the tree.
        kind: One of :data:`READ`.
        split: Its split, ``""`` for none.
        token: As its name writes the split: ``train2017``.
        named: Its name says its kind.
    """

    path: str
    kind: str
    split: str
    token: str
    named: bool = True


def find_files(tree: Tree) -> list[AnnotationFile]:
    """The files of annotations, by their names and first bytes: at the top, and in the folders there."""
    folders = ["", *_BESIDE]
    folders += [name for name in tree.names("").folders if name not in folders and not is_passed_over(name)]
    return [file for folder in folders for file in _in_folder(tree, folder)]


def part_copies(tree: Tree, files: list[AnnotationFile]) -> tuple[list[AnnotationFile], list[AnnotationFile]]:
    """Parts files from those whose bytes are the ones of an earlier file of the same split and kind."""
    own: list[AnnotationFile] = []
    copies: list[AnnotationFile] = []
    for file in files:
        alike = (each for each in own if (each.split, each.kind) == (file.split, file.kind))
        (copies if any(_same_bytes(tree, each.path, file.path) for each in alike) else own).append(file)
    return own, copies


def _same_bytes(tree: Tree, one: str, other: str) -> bool:
    return tree.stat(one).size == tree.stat(other).size and read_whole(tree, one) == read_whole(tree, other)


def by_split(tree: Tree, files: list[AnnotationFile]) -> dict[str, dict[str, AnnotationFile]]:
    """The files of each split by kind, in packing order. Where a split would have two of a kind, the names of the files
    are its splits: nothing says that they are the same. Stuff without objects stands for these. Raises
    :class:`AmbiguousSourceError` where these are no splits either, or only some name a split."""
    counts = Counter((file.split, file.kind) for file in files)
    shared = {split for (split, _), count in counts.items() if count > 1}
    found: dict[str, dict[str, AnnotationFile]] = {}
    for file in files:
        split = file.token if file.split in shared else file.split
        kinds = found.setdefault(split, {})
        other = kinds.setdefault(file.kind, file)
        if other is not file:
            raise _several(tree, [each for each in files if (each.token, each.kind) == (file.token, file.kind)])
    if len(found) > 1 and "" in found:
        odd = list(found[""].values())
        others = [file for kinds in found.values() for file in kinds.values() if file not in odd]
        raise AmbiguousSourceError(
            f"{tree.name(odd[0].path)}: its name says no split, but others do: rename it (instances_train.json), or "
            "take it out of the folder",
            [Answer(_ignoring(each)) for each in (odd, others)],
        )
    for kinds in found.values():
        if "stuff" in kinds and not {"instances", "keypoints"} & kinds.keys():
            kinds["instances"] = replace(kinds.pop("stuff"), kind="instances")
    order = in_packing_order(found)
    return {split: {kind: found[split][kind] for kind in READ if kind in found[split]} for split in order}


def _several(tree: Tree, files: list[AnnotationFile]) -> AmbiguousSourceError:
    """The question about files of one name in several folders, each of which may be a data set."""
    named = " and ".join(printable(file.path) for file in files)
    folders = [file.path.rpartition("/")[0] for file in files]
    answers = [Answer(source=Path(tree.root, folder)) for folder in folders if folder and Path(tree.root).is_dir()]
    if len(set(folders)) < len(folders):
        answers = [_without(files, kept) for kept in files]
        return AmbiguousSourceError(
            f"{tree.name()} is annotated twice, by {named}, whose names say no split: leave one out with --ignore",
            answers,
        )
    return AmbiguousSourceError(
        f"{tree.name()} has {named}, whose names say no split: give one of their folders", answers
    )


def _without(files: list[AnnotationFile], kept: AnnotationFile) -> Answer:
    """The answer that leaves out all files but one."""
    return Answer(_ignoring([file for file in files if file is not kept]))


def _ignoring(files: list[AnnotationFile]) -> tuple[str, ...]:
    return tuple(part for file in files for part in ("--ignore", f"/{file.path}"))


def image_folder(tree: Tree, file: AnnotationFile, names: list[str]) -> str | None:
    """The folder to which the ``names`` of images of a file are relative; None where none of them is anywhere."""
    beside = file.path.rpartition("/")[0]
    above = beside.rpartition("/")[0]
    wanted = dict.fromkeys(filter(None, (file.token, file.split)))
    bases = dict.fromkeys((beside, above, join(beside, "images"), join(above, "images")))
    dated = [name for base in bases for name in tree.names(base).folders if _is_of(name, file.split)]
    wanted |= dict.fromkeys(dated)
    places = [place for name in wanted for place in (name, f"images/{name}", f"{name}/images")]
    places += ["images", "image", "img", "imgs", "data", "JPEGImages", ""]
    return find_base_folder(tree, names, [join(base, place) for base in (beside, above) for place in places])


def has_all(tree: Tree, folder: str, names: list[str]) -> bool:
    """Tells if a folder has all ``names`` of images of a file."""
    there: dict[str, frozenset[str]] = {}
    for path in names:
        within, _, name = path.rpartition("/")
        place = join(folder, within) if within else folder
        if place not in there:
            there[place] = frozenset(tree.names(place).files)
        if name not in there[place]:
            return False
    return bool(names)


def mask_folder(tree: Tree, file: AnnotationFile, names: Iterable[str], end: str = "") -> str | None:
    """The folder of the masks of a file of annotations, which is called like it, with an ``end``; None for none."""
    beside = file.path.rpartition("/")[0]
    stem = file.path.rpartition("/")[2].rpartition(".")[0]
    above = beside.rpartition("/")[0]
    places = [join(base, f"{name}{end}") for base in (beside, above) for name in (stem, f"images/{stem}")]
    return find_base_folder(tree, names, [*places, *(() if end else (beside,))])


def _is_of(folder: str, split: str) -> bool:
    """Whether a folder is called like a split and a year: ``train2017``."""
    return bool(split) and re.fullmatch(rf"{re.escape(split)}[_-]?(\d+|images?|imgs?)", folder.lower()) is not None


def _in_folder(tree: Tree, folder: str) -> Iterator[AnnotationFile]:
    found = [name for name in tree.names(folder).ending(".json") if name[0] != "." or _is_named(name)]
    if len(found) > _PROBED:  # a file for each image
        found = [name for name in found if _is_named(name)]
    for name in found:
        path = join(folder, name)
        start = tree.start(path, _START)
        if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{":
            continue
        if not _LISTS.search(start) and not (_is_named(name) and _LISTS.search(tree.start(path, _WHOLE))):
            continue
        if _OF_ONE_IMAGE.search(start):
            continue
        match = _NAME.fullmatch(name.lower().lstrip("."))
        kind, token = (match[1] or "", match[2]) if match else ("", "")
        if not kind and not _ENTRIES.search(start):
            continue
        yield AnnotationFile(path, _KINDS.get(kind, kind), _split_of(kind, token, folder), token, bool(kind))


def _is_named(name: str) -> bool:
    """Whether a file is called as COCO's are, or as Roboflow calls them, hidden or not."""
    match = _NAME.fullmatch(name.lower().lstrip("."))
    return match is not None and (match[1] is not None or match[2] == "annotations.coco") and name[:2] != "._"


def _split_of(kind: str, token: str, folder: str) -> str:
    name = re.sub(r"[_-]?(19|20)\d\d$", "", token)
    known = next((part for part in re.split(r"[_.-]", name) if part in SPLIT_ORDER), "")
    if known or (kind and token not in _NO_SPLIT):
        return known or name
    last = folder.rpartition("/")[2].lower()
    return last if last in SPLIT_ORDER else ""
