"""Finds annotations beside images, which would be lost if the images were packed alone.

Decides by all names of a tree, see :mod:`.contents`, and by content: files that name images or have as many rows as
there are images (lists, CSV, JSON), files and folders with the stems of images (captions, boxes, masks), and usual
file names of annotation tools.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import printable
from packstore.core.plainjson import load_json
from packstore.images.sniff import IS_LFS_POINTER, LFS_POINTER
from packstore.sources.companion_patterns import MASKS, SIDECAR, Companion, parse_pattern
from packstore.sources.contents import Contents, list_contents, path_and_parents, stem_of, summarize_folder
from packstore.sources.folder_names import Names
from packstore.sources.ignoring import escape_pattern
from packstore.sources.listing import SYSTEM_NAMES
from packstore.sources.pairing import NO_SIDECARS, find_companions, is_work_folder
from packstore.sources.splits import is_split
from packstore.sources.tree import Tree

# Paths of drawn annotations.
_DRAWN = re.compile(r"(?i)(.*/)?[^/]*(visuali[sz]ations?|overlays?)/.*")
# End of the phrase about a file that names images.
NAMES_IMAGES = " (it names the images)"
_SHEETS = (".csv", ".tsv", ".jsonl", ".ndjson")
_TEXT = (*_SHEETS, ".txt", ".lst", ".json", ".xml", ".yaml", ".yml", ".odgt", ".names", ".npy")
# Suffixes of files that are annotations whatever they contain.
_OPAQUE = (".mat", ".parquet", ".arrow", ".feather", ".npz")
# File names of annotation tools and publishers.
_ANNOTATORS = re.compile(
    r"[._]*(metadata|labels?|annotations?(\.coco)?|captions?|_?classes|image_labels|class_labels)"
    r"\.(csv|tsv|jsonl?|parquet|xml)|data\.ya?ml|via[_-].*\.(json|csv)|(instances|captions|person_keypoints|panoptic)_"
    r".*\.json|(gt|det)([_-].*)?\.txt|vott.*\.json|.*-export\.(json|csv)|project-\d+-at-.*\.(json|csv)|.*\.(odgt|vott|geojson)",
)
NO_ANNOTATION = re.compile(
    r"(readme|licen[cs]e|copying|citation|changelog|changes|history|notice|authors|contributing|requirements|"
    r"environment|setup|pyproject|package(-lock)?|tsconfig|makefile|dockerfile|robots|todo|packstore)\b.*",
)
_CONFIGS = re.compile(r"(config|settings|params|hparams|args|hyp|opt|options|history|metrics|results?|losses?)[._].*")
_LABELS = re.compile(r".*(label|target|caption|annotation|truth).*")
_CLASS_LISTS = re.compile(r".*(class|names|words|vocab|synset|wnid|categor|label_?map).*")
_FRACTION = re.compile(rb"[-+]?\d*\.\d+(e[-+]?\d+)?", re.I)
# Small numbers, which may count epochs or sizes as well as images.
_COUNTER = re.compile(rb"0|[1-9]\d{0,3}")
_KEPT = re.compile(r"(.*/)?(annotations?|labels?)/[^/]*[.]json")
# Maximum number of bytes read from a text, and from a text whose rows are counted.
_BYTES, _COUNTED_BYTES = 1 << 18, 16 << 20
_MENTIONS, _FEWEST_ROWS, _LARGE_PART = 3, 20, 8
# Maximum number of files of one suffix in a folder that are read; of more, only stems and number count.
_ALIKE = 64
_WORD = re.compile(rb"[^\s,;:\"'\[\]{}()<>|=/\\]+")
_FIELD = re.compile(rb"[^,;\t\r\n\"'/\\]+")
_NPY_ROWS = re.compile(rb"\x93NUMPY.{0,80}'shape': \((\d+)", re.S)
_FIRST_WORD = re.compile(rb"^\S+", re.M)


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


def _folder_pattern(folder: str, suffix: str = "") -> str:
    """Returns the ``--ignore`` pattern for a folder, or for the files of a suffix in it."""
    path = escape_pattern(folder) if folder else ""
    if not suffix:
        return f"{path}/" if "/" not in path else path
    return f"{path}/*{suffix}"


def find_all_annotations(tree: Tree) -> list[SuspectedAnnotation]:
    """Finds all suspected annotations of the images of ``tree``: images that belong to images, and other files."""
    return _drop_repeated([*map(_make_suspect, find_image_companions(tree)), *find_other_annotations(tree)])


def find_other_annotations(tree: Tree) -> list[SuspectedAnnotation]:
    """Finds all suspected annotations of the images of ``tree`` that are no images."""
    contents = list_contents(tree)
    if not any(each.others for each in contents.folders.values()):
        return []
    holding = {
        place for path, each in contents.folders.items() if each.images.count for place in path_and_parents(path)
    }
    return _drop_repeated(_widen_pattern(each, holding) for each in _find_annotation_files(tree, contents, contents))


def find_image_companions(tree: Tree) -> list[Companion]:
    """Finds images that belong to images, without folders of drawings (``visualization``)."""
    found = find_companions(tree)
    return [each for each in found if each.option != SIDECAR and not _DRAWN.fullmatch(each.example[1])]


def holds_masks(tree: Tree, folder: str) -> bool:
    """Tells if the first image in a folder is a mask of another image."""
    first = list_contents(tree).folders[folder].images.first[:1]
    masks = (parse_pattern(each.option, each.text) for each in find_image_companions(tree) if each.option == MASKS)
    return any(pattern.matches_file(f"{folder}/{name}") for pattern in masks for name in first)


def _make_suspect(companion: Companion) -> SuspectedAnnotation:
    """Makes a suspected annotation of images that belong to images."""
    return SuspectedAnnotation(printable(companion.phrase), (companion.ignore,))


def _widen_pattern(suspect: SuspectedAnnotation, holding: Collection[str]) -> SuspectedAnnotation:
    """Widens the pattern of a suspect to the highest folder above it that has no images."""
    # A folder without images would be an empty class.
    above = [place for place in path_and_parents(suspect.folder or "") if place not in holding]
    return suspect._replace(patterns=(_folder_pattern(above[-1]),)) if above else suspect


def find_left_annotations(tree: Tree, paths: Iterable[str]) -> list[SuspectedAnnotation]:
    """Finds suspected annotations among the files that a source leaves out: images that belong to images, and other
    files. Skips files of the operating system and folders of drawings. Skips hidden files, unless they are named as
    annotations are (``.labels.json``)."""
    whole = list_contents(tree)
    by_folder: dict[str, list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        hidden = name[:2] == "._" or (name[0] == "." and not _ANNOTATORS.fullmatch(name.lower()))
        if not hidden and name.lower() not in SYSTEM_NAMES and folder in whole.folders:
            by_folder.setdefault(folder, []).append(name)
    left = Contents(
        {folder: summarize_folder(folder, Names(sorted(names)), hidden=True) for folder, names in by_folder.items()}
    )
    masks = [
        _make_suspect(each)
        for each in find_image_companions(tree)
        if (place := each.example[1].rpartition("/"))[2] in by_folder.get(place[0], ())
    ]
    return _drop_repeated([*masks, *_find_annotation_files(tree, whole, left)])


def _drop_repeated(found: Iterable[SuspectedAnnotation]) -> list[SuspectedAnnotation]:
    """Returns suspected annotations without repeated phrases, the last of each."""
    return list({each.phrase: each for each in found}.values())


def _find_annotation_files(tree: Tree, whole: Contents, left: Contents) -> Iterator[SuspectedAnnotation]:
    """Yields the files in ``left`` that may annotate the images in ``whole``."""
    known = whole.hash_image_stems()
    splits = [f.images.stems for f in whole.folders.values() if f.images.count and is_split(f.path)]
    counts: Counter[str] = Counter()  # of images in and below each folder
    for path, each in whole.folders.items():
        counts.update(dict.fromkeys(("", *path_and_parents(path)), each.images.count))
    large = {n for place, n in counts.items() if _LARGE_PART * n >= counts[""] or is_split(place.rpartition("/")[2])}
    holding = [path for path, each in whole.folders.items() if each.images.count and not is_work_folder(path)]
    # JSON or XML beside at least half of the folders of images is suspicious, whatever its names.
    for suffix in (".json", ".xml"):
        having = sum(suffix in left.folders[path].others for path in holding if path in left.folders)
        if having > 1 and 2 * having >= len(holding):
            phrase = f"{suffix} files in {having:,} of {len(holding):,} folders of images"
            yield SuspectedAnnotation(phrase, (f"*{suffix}",))
    for folder in left.folders.values() if len(known) else ():
        there = whole.folders[folder.path]
        # Three files with stems of images suffice, and fewer in a folder of fewer images.
        enough = max(1, min(_MENTIONS, there.images.count or len(known)))
        place = printable(folder.path) or "the folder itself"
        sizes = large | {counts[folder.path]}
        for suffix, names in folder.others.items():
            all_left = suffix not in there.others or there.others[suffix].count == names.count
            patterns = (_folder_pattern(folder.path, suffix),) if all_left else ()
            # Logs, models, scripts, archives and films often have the names of images by chance.
            alike = suffix not in NO_SIDECARS and not is_work_folder(folder.path)
            as_many = names.count >= _FEWEST_ROWS and names.count in sizes
            if alike and (as_many or names.count_shared(known) >= enough):
                yield SuspectedAnnotation(f"a {suffix} file for each image in {place}", patterns, folder.path)
            # ``first`` has at most 64 files of a suffix.
            for path in (posixpath.join(folder.path, name) for name in names.first):
                why = _annotation_phrase(tree, path, suffix, names.count <= _ALIKE, known, splits, sizes)
                if why is not None:
                    yield SuspectedAnnotation(printable(path) + why, (escape_pattern(path),), folder.path, path)


def _annotation_phrase(
    tree: Tree,
    path: str,
    suffix: str,
    few: bool,
    known: NDArray[np.int64],
    splits: Sequence[NDArray[np.int64]],
    sizes: Set[int],
) -> str | None:
    """Returns why a file may annotate images, such as ``" (it names the images)"``; None if it does not."""
    name = path.rpartition("/")[2].lower()
    if NO_ANNOTATION.fullmatch(name):
        return None
    # An empty phrase means that the name of the file says enough.
    named = "" if _ANNOTATORS.fullmatch(name) or (few and suffix in _OPAQUE) else None
    text = suffix in _TEXT
    # Files are only read if there are few of them.
    if not few or (suffix in NO_SIDECARS and suffix):
        return named
    start = tree.first_bytes(path, _BYTES)
    if not suffix and b"\0" not in start:  # a list has images first in its lines, unlike notes
        start = b"\n".join(_FIRST_WORD.findall(start))
    if text and start.startswith(LFS_POINTER):
        return f" (it {IS_LFS_POINTER})"
    is_config = _CONFIGS.fullmatch(name) is not None
    is_list = not is_config or suffix in (".json", ".jsonl") if text else b"\0" not in start
    if is_list and _mentions_stems(start, [known, *(splits if suffix in _SHEETS else ())]):
        return NAMES_IMAGES
    if named is not None or not text:
        return named
    if _KEPT.fullmatch(path.lower()) and not np.isin(hash(stem_of(path.rpartition("/")[2])), known):
        return ""
    if is_config or suffix == ".xml" or _CLASS_LISTS.fullmatch(name):
        return None
    rows = max(sizes & _count_rows(tree, path, suffix), default=0)
    enough = rows >= (2 if _LABELS.fullmatch(name) else _FEWEST_ROWS)  # fewer may be chance
    return " (it has as many rows as there are images)" if enough else None


def _count_rows(tree: Tree, path: str, suffix: str) -> set[int]:
    """Returns the possible numbers of rows of a file: of an array, of lines, or of JSON's lists."""
    text = tree.first_bytes(path, _COUNTED_BYTES if suffix != ".npy" else _BYTES).strip()
    if array := _NPY_ROWS.match(text):
        return {int(array[1])}
    if suffix != ".json":
        lines = text.count(b"\n") + 1
        # The first line may be a header.
        return {lines, lines - 1}
    try:
        value = load_json(text)
    except ValueError:
        return set()
    parts = [value, *value.values()] if isinstance(value, dict) else [value]
    return {len(part) for part in parts if isinstance(part, (list, dict))}


def _mentions_stems(text: bytes, groups: Sequence[NDArray[np.int64]]) -> bool:
    """Tells if ``text`` names enough images of one of ``groups``, each the hashes of its images' stems."""
    words = {word.strip() for pattern in (_WORD, _FIELD) for word in pattern.findall(text)}
    words = {word for word in words if not _FRACTION.fullmatch(word)}
    # Numbers below 10,000 occur in any text.
    counters = {word for word in words if _COUNTER.fullmatch(word)}
    named, counted = (_hash_stems_of(each) for each in (words - counters, counters))
    # Each split is a group, too: a table is often about one split.
    for group in groups:
        hits = int(np.isin(named, group).sum())
        if len(group) and (
            # Counters only count as stems if half of the group is named.
            hits >= min(_MENTIONS, len(group)) or 2 * (hits + int(np.isin(counted, group).sum())) >= len(group)
        ):
            return True
    return False


def _hash_stems_of(words: Collection[bytes]) -> NDArray[np.int64]:
    """Hashes words without their suffixes, each once."""
    hashes = {hash(os.path.splitext(word.decode("utf-8", "surrogateescape"))[0]) for word in words}  # noqa: PTH122
    return np.fromiter(hashes, np.int64, len(hashes))
