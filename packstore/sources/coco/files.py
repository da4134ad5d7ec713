"""Finds COCO's files of annotations, and their splits and folders."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from packstore.core.errors import AmbiguousSourceError, Answer, printable
from packstore.sources.beside import find_base_folder, join, read_whole
from packstore.sources.ignoring import ignore_paths
from packstore.sources.listing import is_passed_over
from packstore.sources.rows import in_packing_order
from packstore.sources.splits import find_split
from packstore.sources.tree import Tree

_START = 1 << 16
_PROBED, _WHOLE = 16, 1 << 30
_NAME = re.compile(
    r"(?:(instances|captions|person_keypoints|keypoints|panoptic|stuff|images?_info)(?=[_.-]))?[_-]?(.*?)[.]json"
)
_NO_SPLIT = frozenset({"", "annotation", "annotations", "annotations.coco", "coco", "default", "instances", "labels"})
_LISTS = re.compile(rb'"(?:images|annotations|categories)"\s*:\s*\[')
_ENTRIES = re.compile(rb'"(?:coco_url|file_name|image_id|category_id|supercategory)"\s*:')
_OF_ONE_IMAGE = re.compile(rb'"image"\s*:\s*\{')
"""Matches a file of one image, as in SA-1B, which is not COCO's."""
_BESIDE = ("annotations", "Annotations", "annotation", "labels", "coco")
_KINDS = {"person_keypoints": "keypoints", "images_info": "image_info", "": "instances"}
READ_ORDER = ("instances", "keypoints", "captions", "stuff", "panoptic", "image_info")
"""Kinds of files, in reading order."""


@dataclass(frozen=True, slots=True)
class AnnotationFile:
    """File of annotations, and the facts in its name.

    Attributes:
        path: Path in the tree.
        kind: One of :data:`READ_ORDER`.
        split: Name of the split, ``""`` if there is none.
        token: Part of the file's name after the kind, mostly the split with a year: ``train2017``.
        named: True if the kind is in the file's name.
    """

    path: str
    kind: str
    split: str
    token: str
    named: bool = True


def find_annotation_files(tree: Tree) -> list[AnnotationFile]:
    """Finds COCO's files of annotations, by names and first bytes. Looks in the top folder and in the folders directly
    in it, except hidden ones. Returns ``[]`` if there are none."""
    folders = ["", *_BESIDE]
    folders += [name for name in tree.names("").folders if name not in folders and not is_passed_over(name)]
    return [file for folder in folders for file in _find_in_folder(tree, folder)]


def separate_copies(tree: Tree, files: list[AnnotationFile]) -> tuple[list[AnnotationFile], list[AnnotationFile]]:
    """Separates files from copies; returns both lists. A copy has the bytes of an earlier file of the same split and
    kind."""
    own: list[AnnotationFile] = []
    copies: list[AnnotationFile] = []
    for file in files:
        alike = (each for each in own if (each.split, each.kind) == (file.split, file.kind))
        (copies if any(_have_same_bytes(tree, each.path, file.path) for each in alike) else own).append(file)
    return own, copies


def _have_same_bytes(tree: Tree, one: str, other: str) -> bool:
    """Tells if two files have the same content."""
    return tree.stat(one).size == tree.stat(other).size and read_whole(tree, one) == read_whole(tree, other)


def group_by_split(tree: Tree, files: list[AnnotationFile]) -> dict[str, dict[str, AnnotationFile]]:
    """Groups files by split, in packing order, and then by kind.

    If two files of one kind have the same split, their tokens (``train2014``, ``train2017``) become the splits. If a
    split has neither instances nor keypoints, its file of stuff counts as instances. Raises
    :class:`AmbiguousSourceError` if two files of one kind have the same token. Also raises it if only some of the files
    have a split.
    """
    counts = Counter((file.split, file.kind) for file in files)
    shared = {split for (split, _), count in counts.items() if count > 1}
    groups: dict[str, dict[str, AnnotationFile]] = {}
    for file in files:
        split = file.token if file.split in shared else file.split
        kinds = groups.setdefault(split, {})
        other = kinds.setdefault(file.kind, file)
        if other is not file:
            raise _several_files_error(
                tree, [each for each in files if (each.token, each.kind) == (file.token, file.kind)]
            )
    if len(groups) > 1 and "" in groups:
        odd = list(groups[""].values())
        others = [file for kinds in groups.values() for file in kinds.values() if file not in odd]
        raise AmbiguousSourceError(
            f"{tree.name(odd[0].path)}: its name has no split, but others have one: rename it "
            "(instances_train.json), or take it out of the folder",
            [Answer(ignore_paths(file.path for file in each)) for each in (odd, others)],
        )
    for kinds in groups.values():
        if "stuff" in kinds and not {"instances", "keypoints"} & kinds.keys():
            kinds["instances"] = replace(kinds.pop("stuff"), kind="instances")
    order = in_packing_order(groups)
    return {split: {kind: groups[split][kind] for kind in READ_ORDER if kind in groups[split]} for split in order}


def _several_files_error(tree: Tree, files: list[AnnotationFile]) -> AmbiguousSourceError:
    """Returns the error for several files of one kind and split. If two of them share a folder, each answer keeps one
    file and ignores the others. Else each answer opens one of the folders."""
    named = " and ".join(printable(file.path) for file in files)
    folders = [file.path.rpartition("/")[0] for file in files]
    answers = [Answer(source=Path(tree.root, folder)) for folder in folders if folder and Path(tree.root).is_dir()]
    if len(set(folders)) < len(folders):
        answers = [Answer(ignore_paths(each.path for each in files if each is not kept)) for kept in files]
        return AmbiguousSourceError(
            f"{tree.name()} is annotated twice, by {named}, whose names have no split: leave one out with --ignore",
            answers,
        )
    return AmbiguousSourceError(
        f"{tree.name()} has {named}, whose names have no split: give one of their folders", answers
    )


def find_image_folder(tree: Tree, file: AnnotationFile, names: list[str]) -> str | None:
    """Finds the folder with most of the images ``names``; of equal folders, the first. Looks in folders beside and
    above the file, with usual names such as ``images`` or the split. Returns None if no folder has any of the
    images."""
    beside = file.path.rpartition("/")[0]
    above = beside.rpartition("/")[0]
    wanted = dict.fromkeys(filter(None, (file.token, file.split)))
    bases = dict.fromkeys((beside, above, join(beside, "images"), join(above, "images")))
    dated = [name for base in bases for name in tree.names(base).folders if _is_named_by_split(name, file.split)]
    wanted |= dict.fromkeys(dated)
    places = [place for name in wanted for place in (name, f"images/{name}", f"{name}/images")]
    places += ["images", "image", "img", "imgs", "data", "JPEGImages", ""]
    return find_base_folder(tree, names, [join(base, place) for base in (beside, above) for place in places])


def find_mask_folder(tree: Tree, file: AnnotationFile, names: Iterable[str], end: str = "") -> str | None:
    """Finds the folder with most of the masks ``names`` of an annotation file; returns None if no folder has any.

    The folder's name is that of the file without suffix, plus ``end``. The folder is beside the file, one level above,
    or in ``images`` in one of these. Without ``end``, it may also be the file's own folder.
    """
    beside = file.path.rpartition("/")[0]
    stem = file.path.rpartition("/")[2].rpartition(".")[0]
    above = beside.rpartition("/")[0]
    places = [join(base, f"{name}{end}") for base in (beside, above) for name in (stem, f"images/{stem}")]
    return find_base_folder(tree, names, [*places, *(() if end else (beside,))])


def _is_named_by_split(folder: str, split: str) -> bool:
    """Tells if a folder's name is the split with a number or a word for images: ``train2017``, ``train_images``. False
    for an empty split."""
    return bool(split) and re.fullmatch(rf"{re.escape(split)}[_-]?(\d+|images?|imgs?)", folder.lower()) is not None


def _find_in_folder(tree: Tree, folder: str) -> Iterator[AnnotationFile]:
    """Yields the files of annotations in a folder: JSON objects with one of COCO's lists.

    - The list has to begin in the first 64 KiB of a file. For a file with COCO's name, the first 1 GiB is searched.
    - Without a kind in its name, a file also needs a value such as ``image_id`` in the first 64 KiB.
    - Files of a single image are skipped.
    - If the folder has more than 16 JSON files, only files with COCO's names count.
    """
    names = [name for name in tree.names(folder).ending(".json") if name[0] != "." or _has_coco_name(name)]
    if len(names) > _PROBED:  # a file for each image
        names = [name for name in names if _has_coco_name(name)]
    for name in names:
        path = join(folder, name)
        start = tree.first_bytes(path, _START)
        if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{":
            continue
        if not _LISTS.search(start) and not (_has_coco_name(name) and _LISTS.search(tree.first_bytes(path, _WHOLE))):
            continue
        if _OF_ONE_IMAGE.search(start):
            continue
        match = _NAME.fullmatch(name.lower().lstrip("."))
        kind, token = (match[1] or "", match[2]) if match else ("", "")
        if not kind and not _ENTRIES.search(start):
            continue
        yield AnnotationFile(path, _KINDS.get(kind, kind), _find_split(kind, token, folder), token, bool(kind))


def _has_coco_name(name: str) -> bool:
    """Tells if a file has a name as COCO or Roboflow writes it; a dot may precede the name."""
    match = _NAME.fullmatch(name.lower().lstrip("."))
    return match is not None and (match[1] is not None or match[2] == "annotations.coco") and name[:2] != "._"


def _find_split(kind: str, token: str, folder: str) -> str:
    """Returns the split of a file of annotations. ``token`` is the part of the file's name after the kind. Takes the
    first of these that exists:

    - the split in ``token``
    - ``token`` without its year, if the name has a kind, and ``token`` is no word such as ``default``
    - the split in the folder's name
    - ``""``
    """
    known = find_split(token)
    if known or (kind and token not in _NO_SPLIT):
        return known or re.sub(r"[_-]?(19|20)\d\d$", "", token)
    return find_split(folder.rpartition("/")[2])
