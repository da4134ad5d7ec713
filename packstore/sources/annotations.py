"""Finds annotations beside images, which would be lost if the images were packed alone.

Decides by all names of a tree, see :mod:`.contents`: files that name images or have as many rows (lists, CSV, JSON),
files and folders with the stems of images (captions, boxes, masks), and names that annotation tools use.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.images.sniff import IS_LFS_POINTER, LFS_POINTER
from packstore.sources.archives import open_tree
from packstore.sources.base import SPLIT_ORDER
from packstore.sources.contents import Contents, FolderContents, NameSet, list_contents, stem_of, summarize_folder
from packstore.sources.folder_names import Names
from packstore.sources.ignoring import escape_pattern
from packstore.sources.labels import LabelsFile
from packstore.sources.listing import IMAGE_SUFFIXES, SYSTEM_NAMES
from packstore.sources.tree import Tree

_NPY_ROWS = re.compile(rb"\x93NUMPY.{0,80}'shape': \((\d+)", re.S)
_TEXT = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".xml", ".yaml", ".yml", ".lst", ".odgt", ".names")
_SHEETS = (".csv", ".tsv", ".jsonl", ".ndjson")
_ROWS = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".lst")
_OPAQUE = (".mat", ".parquet", ".arrow", ".feather", ".npz")
"""Files of these kinds are not opened: beside images they contain labels."""
_NO_SIDECARS = (
    *("", ".pth", ".pt", ".ckpt", ".bin", ".onnx", ".safetensors", ".h5", ".hdf5", ".pkl", ".log", ".py", ".ipynb"),
    *(".sh", ".md", ".html", ".htm", ".css", ".js", ".zip", ".tar", ".gz", ".rar", ".7z", ".db", ".ini", ".pdf"),
    *(".md5", ".sha1", ".sha256", ".xmp", ".aae", ".thm", ".mp4", ".mov", ".avi", ".mkv", ".wav", ".mp3", ".lnk"),
    *(".bak", ".tmp", ".swp", ".lock", ".url", ".psd", ".xcf", ".blend", ".obj", ".mtl", ".svg", ".eps", ".m"),
)
"""Suffixes of files that are not annotations even with the stem of an image: models, scripts, films."""
_ANNOTATORS = re.compile(
    r"[._]*(metadata|labels?|annotations?(\.coco)?|captions?|_?classes|image_labels|class_labels)"
    r"\.(csv|tsv|jsonl?|parquet|xml)|data\.ya?ml|via[_-].*\.(json|csv)|(instances|captions|person_keypoints|panoptic)_"
    r".*\.json|(gt|det)\.txt|vott.*\.json|.*-export\.(json|csv)|project-\d+-at-.*\.(json|csv)|.*\.(odgt|vott)",
)
"""File names of annotation tools and publishers."""
_NO_ANNOTATION = re.compile(
    r"(readme|licen[cs]e|copying|citation|changelog|changes|history|notice|authors|contributing|requirements|"
    r"environment|setup|pyproject|package(-lock)?|tsconfig|makefile|dockerfile|robots|todo|packstore)\b.*",
)
_CONFIGS = re.compile(r"(config|settings|params|hparams|args|hyp|opt|options|history|metrics|results?|losses?)[._].*")
_CLASS_LISTS = re.compile(r".*(class|names|words|vocab|synset|wnid|categor).*")
_WORK = re.compile(r"logs?|runs?|checkpoints?|ckpts?|weights|wandb|mlruns|tensorboard|lightning_logs|__pycache__")
_FRACTION = re.compile(rb"[-+]?\d*\.\d+(e[-+]?\d+)?", re.I)
_COUNTER = re.compile(rb"0|[1-9]\d{0,3}")
"""Small numbers, which may count epochs or sizes as well as images."""
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
_KEPT = re.compile(r"(.*/)?(annotations?|labels?)/[^/]*[.]json")
_NAMED = 4
_BYTES, _WHOLE = 1 << 18, 64 << 20
"""Bytes read from the beginning of a text, and of a text whose rows are counted."""
_MENTIONS, _ROWED, _LONG = 3, 20, 8
_ALIKE = 64
"""Maximum number of files of one suffix in a folder that are read; more are judged by stems and number."""
_LISTED = re.compile(rb"^\S*\.(?:jpe?g|png|bmp|gif|tiff?|webp|pgm|ppm)\b", re.I | re.M)
"""A line that begins with an image."""
_WORD = re.compile(rb"[^\s,;:\"'\[\]{}()<>|=/\\]+")
_FIELD = re.compile(rb"[^,;\t\r\n\"'/\\]+")


class Finding(NamedTuple):
    """Suspected annotation of images.

    Attributes:
        phrase: Description for people: ``"metadata.csv"``.
        patterns: Patterns for ``--ignore``.
        folder: Its folder; None for images.
    """

    phrase: str
    patterns: tuple[str, ...]
    folder: str | None = None


def annotated_error(path: Path, kind: str) -> AmbiguousSourceError:
    """Returns the error for a folder of the given kind with annotations that the kind does not read."""
    tree = open_tree(path)
    found = [] if tree is None else find_all(tree)
    return _question(path, f"holds more than images: {_shorten_list([each.phrase for each in found])}", kind, found)


def ambiguous_source(path: Path, why: str, ignore: Sequence[str] = ()) -> AmbiguousSourceError:
    """Returns the error for a folder of images that may be something else; ``why`` continues its name."""
    return _question(path, why, "imagefolder", [Finding("", tuple(ignore))] if ignore else [])


def _shorten_list(phrases: Sequence[str]) -> str:
    more = f" and {len(phrases) - _NAMED} more" if len(phrases) > _NAMED else ""
    return ", ".join(phrases[:_NAMED]) + more


def _question(path: Path, why: str, kind: str, found: Sequence[Finding]) -> AmbiguousSourceError:
    tree = open_tree(path)
    contents = Contents({}) if tree is None else list_contents(tree)
    masks = _masks(contents)
    alone, answers = _alone(path, kind, contents)
    labels = _labels_files(path, contents) if path.is_dir() else []
    patterns = list(dict.fromkeys(pattern for each in found for pattern in each.patterns))
    ignore = ""
    if patterns and len(patterns) <= _NAMED:
        answers = [*answers, Answer(_ignoring(patterns))]
        ignore = "; leave it out on purpose with " + " ".join(f"--ignore {pattern!r}" for pattern in patterns)
        if len(patterns) > 1 and {*patterns} <= {
            *(_mask_pattern(contents, masks, place) for place in masks),
            *_tail_patterns(contents),
        }:
            answers += [Answer(_ignoring([other for other in patterns if other != kept])) for kept in patterns]
            ignore += ", or all but one of them"
    return AmbiguousSourceError(
        f"{printable(str(path))} {why}. Pack the images alone {alone}; "
        "give labels in a CSV file (columns file,label) with --labels; or pack all of it from Python "
        f"(packstore guide packing){ignore}",
        [*labels, *answers],
        path,
    )


def _ignoring(patterns: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for pattern in patterns for part in ("--ignore", pattern))


def _labels_files(path: Path, contents: Contents) -> list[Answer]:
    """Proposes ``--labels`` for the first CSV files, each with the folder below which it names images."""
    folders = list(contents.folders.values())
    files = [(folder.path, name) for folder in folders for name in _first(folder, ".csv")]
    found = []
    for folder, name in files[:_NAMED]:
        file = path / folder / name
        try:
            first = next(LabelsFile(file).rows(), None)
        except SourceError:
            continue
        places = dict.fromkeys((path, *(path / each.path for each in folders if each.images.count)))
        place = None if first is None else next((each for each in places if (each / first.file).is_file()), None)
        if place is not None:
            found.append(Answer(("--labels", str(file)), None if place == path else place))
    return found


def _first(folder: FolderContents, suffix: str) -> tuple[str, ...]:
    return folder.others[suffix].first if suffix in folder.others else ()


def find_annotations(tree: Tree) -> list[str]:
    """Describes the suspected annotations of the images of ``tree``, one phrase each (``"metadata.csv"``)."""
    return [each.phrase for each in find_all(tree)]


def find_further(tree: Tree) -> list[str]:
    """Does :func:`find_annotations` without masks."""
    contents = list_contents(tree)
    return [each.phrase for each in _unique(_further(tree, contents, contents.folders.values()))]


def find_all(tree: Tree) -> list[Finding]:
    """Finds all suspected annotations of the images of ``tree``: masks, pairs of images, and other files."""
    contents = list_contents(tree)
    places = _masks(contents)
    masks = [Finding(phrase, (_mask_pattern(contents, places, place),)) for place, phrase in places.items()]
    holding = {place for path, each in contents.folders.items() if each.images.count for place in _at_and_above(path)}
    further = (_widen(each, holding) for each in _further(tree, contents, contents.folders.values()))
    return _unique([*masks, *_pairs(contents, places), *_tails(contents), *further])


def _widen(finding: Finding, holding: Collection[str]) -> Finding:
    """Widens a finding's pattern to its whole folder if that contains no images and would become an empty class."""
    above = [place for place in _at_and_above(finding.folder or "") if place not in holding]
    return finding._replace(patterns=(_pattern(above[-1]),)) if above else finding


def find_left(tree: Tree, paths: Iterable[str]) -> list[Finding]:
    """Finds suspected annotations among the files of ``tree`` that a source leaves out: other files, and folders of
    masks of which it uses none."""
    whole = list_contents(tree)
    by_folder: dict[str, list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        hidden = name[0] == "." and not _ANNOTATORS.fullmatch(name.lower())
        if not hidden and name.lower() not in SYSTEM_NAMES and folder in whole.folders:
            by_folder.setdefault(folder, []).append(name)
    left = Contents(
        {folder: summarize_folder(folder, Names(sorted(names)), hidden=True) for folder, names in by_folder.items()}
    )
    counts = {folder: each.images.count for folder, each in left.folders.items()}
    masks = [
        Finding(phrase, (_pattern(place),))
        for place, phrase in _masks(whole).items()
        if counts.get(place) == whole.folders[place].images.count and not DRAWN.fullmatch(place)
    ]
    return _unique([*masks, *_further(tree, whole, left.folders.values())])


def find_other_images(tree: Tree, paths: Iterable[str], keys: Callable[[], Iterable[str]]) -> list[Finding]:
    """Finds folders of images among the files of ``tree`` that a source leaves out, and samples, whose ``keys`` are
    paths, that differ from others by the ending of their names."""
    contents = list_contents(tree)
    left = (path.rpartition("/")[0] for path in paths if path.lower().endswith(IMAGE_SUFFIXES))
    folders = Counter(folder for folder in left if folder in contents.folders)
    whole = {folder for folder, count in folders.items() if count == contents.folders[folder].images.count}
    others = (
        Finding(f"{count} images in {printable(folder)}", (_pattern(folder),) if folder in whole else (), folder)
        for folder, count in sorted(folders.items())
        if folder
    )
    tails = [tail for tail in _tails(contents) if any(fnmatch(key, tail.patterns[0]) for key in keys())]
    return _unique([*others, *tails])


def _unique(found: Iterable[Finding]) -> list[Finding]:
    return list({each.phrase: each for each in found}.values())


def _further(tree: Tree, images: Contents, others: Iterable[FolderContents]) -> Iterator[Finding]:
    others = list(others)
    known = images.stems()
    yield from _sidecars(images, others, known)
    splits = [f.images.stems for f in images.folders.values() if f.images.count and f.path.lower() in SPLIT_ORDER]
    counts = _image_counts(images)
    for folder in others:
        for suffix, names in folder.others.items():
            few = names.count <= _ALIKE
            if suffix not in _NO_SIDECARS and names.count in counts and not _is_work(folder.path):
                yield Finding(
                    f"as many {suffix} files as images in {_printable_folder(folder.path)}",
                    _suffix_patterns(images, folder, suffix),
                    folder.path,
                )
            for name in names.first:
                path = f"{folder.path}/{name}" if folder.path else name
                why = _annotates(tree, path, suffix, few, known, splits, counts) if len(known) else None
                if why is not None:
                    yield Finding(printable(path) + why, (escape_pattern(path),), folder.path)


def _annotates(
    tree: Tree,
    path: str,
    suffix: str,
    few: bool,
    known: NDArray[np.int64],
    splits: Sequence[NDArray[np.int64]],
    counts: frozenset[int],
) -> str | None:
    """Says in what way a file annotates images, ``""`` for by its name; None if it does not."""
    name = path.rpartition("/")[2].lower()
    if _NO_ANNOTATION.fullmatch(name):
        return None
    text = few and suffix in _TEXT
    if text and tree.start(path, len(LFS_POINTER)) == LFS_POINTER:
        return f" (it {IS_LFS_POINTER})"
    log = _CONFIGS.fullmatch(name) and suffix not in (".json", ".jsonl")
    if text and not log and _mentions(tree.start(path, _BYTES), [known, *(splits if suffix in _SHEETS else ())]):
        return " (it names the images)"
    if _ANNOTATORS.fullmatch(name) or (suffix in _OPAQUE and few):
        return ""
    if suffix == ".npy":
        header = _NPY_ROWS.match(tree.start(path, _BYTES))
        many = header is not None and int(header[1]) in counts
        return " (it has as many rows as there are images)" if many else None
    if few and not text and (suffix not in _NO_SIDECARS or not suffix):  # .idx, .dat, .info …
        start = tree.start(path, _BYTES)
        listed = suffix or 2 * len(_LISTED.findall(start)) >= start.count(b"\n")  # a list, and not notes
        return " (it names the images)" if listed and b"\0" not in start and _mentions(start, [known]) else None
    if not text:
        return None
    if _KEPT.fullmatch(path.lower()) and not np.isin(hash(stem_of(path.rpartition("/")[2])), known):
        return ""
    if not _CONFIGS.fullmatch(name) and not _CLASS_LISTS.fullmatch(name) and _rows(tree, path, suffix) & counts:
        return " (it has as many rows as there are images)"
    return None


def _image_counts(contents: Contents) -> frozenset[int]:
    """How many images there are in all, and in each of the top folders; from twenty on, a chance is small."""
    by_top: dict[str, int] = {}
    for folder in contents.folders.values():
        top = folder.path.split("/")[0]
        by_top[top] = by_top.get(top, 0) + folder.images.count
    return frozenset(count for count in (contents.images, *by_top.values()) if count >= _ROWED)


def _rows(tree: Tree, path: str, suffix: str) -> frozenset[int]:
    """How many rows a table has, with and without a header; or how many items a JSON list or object."""
    if suffix == ".json":
        try:
            value = json.loads(tree.start(path, _WHOLE))
        except (ValueError, RecursionError):
            return frozenset()
        return frozenset([len(value)] if isinstance(value, (list, dict)) else [])
    if suffix not in _ROWS:
        return frozenset()
    text = tree.start(path, _WHOLE).strip()
    lines = text.count(b"\n") + 1
    return frozenset([lines, lines - 1] if text else [])


def _alone(path: Path, kind: str, contents: Contents) -> tuple[str, list[Answer]]:
    """How the images are packed without what lies beside them: an option, or the folders to name instead."""
    masks = _masks(contents)
    holding = [
        folder.path
        for folder in contents.folders.values()
        if folder.images.count and not any(f"{folder.path}/".startswith(f"{mask}/") for mask in masks)
    ]
    if any(_tails(contents)):
        return f"once the masks lie elsewhere (--source {kind} packs both)", []
    if not holding:
        return "once they are there (masks and annotations seem to be all)", []
    shared = takewhile(lambda part: part.lower() not in SPLIT_ORDER, os.path.commonpath(holding or [""]).split("/"))
    if common := "/".join(shared):
        return f"from their folder, {_place(path, common)}", _instead(path, [common])
    tops = {place.split("/")[0] for place in holding}
    others = set(contents.folders[""].folders) - tops if contents.folders else set()
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


def _printable_folder(folder: str) -> str:
    """Formats a folder for messages."""
    return printable(folder) or "the folder itself"


def _pattern(folder: str, suffix: str = "") -> str:
    """What ``--ignore`` takes for a folder, or for the files of a suffix in it."""
    path = escape_pattern(folder) if folder else ""
    if not suffix:
        return f"{path}/" if "/" not in path else path
    return f"{path}/*{suffix}"


def _mask_pattern(contents: Contents, masks: Collection[str], place: str) -> str:
    """What ``--ignore`` takes for a folder of masks: its name, if there are several of this name and all hold masks."""
    name = place.rpartition("/")[2]
    alike = [path for path in contents.folders if path.rpartition("/")[2] == name]
    return f"{escape_pattern(name)}/" if len(alike) > 1 and set(alike) <= set(masks) else _pattern(place)


def _sidecars(images: Contents, folders: Iterable[FolderContents], known: NDArray[np.int64]) -> Iterator[Finding]:
    """Files that lie under the stems of images: beside these, or in a folder of their own."""
    for folder in folders:
        beside = images.folders[folder.path].images.count if folder.path in images.folders else 0
        enough = max(1, min(_MENTIONS, beside or len(known)))
        for suffix, names in folder.others.items():
            if _is_work(folder.path):
                continue
            if len(known) and suffix not in _NO_SIDECARS and names.count_shared(known) >= enough:
                phrase = f"a {suffix} file for each image in {_printable_folder(folder.path)}"
                yield Finding(phrase, _suffix_patterns(images, folder, suffix), folder.path)


def _suffix_patterns(whole: Contents, left: FolderContents, suffix: str) -> tuple[str, ...]:
    """What ``--ignore`` takes for the files of a suffix that are left in a folder; nothing if others there are read."""
    there = whole.folders[left.path].others.get(suffix) if left.path in whole.folders else None
    return (_pattern(left.path, suffix),) if there is None or there.count == left.others[suffix].count else ()


def _is_work(folder: str) -> bool:
    """Whether programs keep their files there, which are numbered as images are."""
    return any(map(_WORK.fullmatch, folder.lower().split("/")))


def _masks(contents: Contents) -> dict[str, str]:
    """Folders of masks, each with the phrase that says so.

    They hold images under the stems of another folder's images, or lie beside a folder of images, and their names say
    what they are. Equal stems alone mean nothing: in many sets each class counts from 1.
    """
    found: dict[str, str] = {}
    holding = [(folder, folder.name) for folder in contents.folders.values() if folder.images.count]
    pair = len(holding) == 2
    masks = [(each, name) for each, name in holding if _MASKS.fullmatch(name) or (pair and not _IMAGES.fullmatch(name))]
    for mask, name in masks:
        above = mask.path.rpartition("/")[0]
        beside = [each for each in holding if each[0].path.rpartition("/")[0] == above]
        for image, other in (*beside, *holding):
            if mask is image or not (_MASKS.fullmatch(name) or _IMAGES.fullmatch(other)):
                continue
            if _MASKS.fullmatch(other) or _counts_alike(contents, mask, image):
                continue
            if 2 * mask.images.count_shared(image.images) >= len(image.images.stems):
                found[mask.path] = (
                    f"{printable(mask.path)} has files of the same names as {_printable_folder(image.path)}"
                )
                break
    by_path = {folder.path: folder for folder, _ in holding}
    for mask, _ in holding:
        parts = mask.path.split("/")
        for n, part in enumerate(parts[:-1]):  # masks/cat beside cat
            own = by_path.get("/".join((*parts[:n], *parts[n + 1 :]))) if _MASKS.fullmatch(part.lower()) else None
            if own is not None and 2 * mask.images.count_shared(own.images) >= len(own.images.stems):
                place = "/".join(parts[: n + 1])
                found[place] = f"{printable(place)} has files of the same names as {printable(own.path)}"
    with_images = {place for folder, _ in holding for place in _at_and_above(folder.path)}
    for folder in contents.folders.values():
        below = [f"{folder.path}/{name}" if folder.path else name for name in folder.folders]
        below = [path for path in below if path in with_images]
        images = [path for path in below if _IMAGES.fullmatch(path.rpartition("/")[2].lower())]
        for path in below:
            known = any(f"{each}/".startswith(f"{path}/") for each in found)
            if images and path not in images and not known and _MASKS.fullmatch(path.rpartition("/")[2].lower()):
                found[path] = f"{printable(path)} beside {printable(images[0])}"
    return found


def _counts_alike(contents: Contents, mask: FolderContents, image: FolderContents) -> bool:
    """Whether further folders beside these two have the same names as well, as classes have that count from 1."""
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


def _at_and_above(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


def _pairs(contents: Contents, known: Collection[str]) -> Iterator[Finding]:
    """Two folders side by side that hold two images of each sample, by their names and those of their images; not
    those of which one is ``known``, and so named already."""
    holding = {folder.path.lower(): folder for folder in contents.folders.values() if folder.images.count}
    for path, one in holding.items():
        above, slash, name = path.rpartition("/")
        for first, second in _PAIRS:
            other = holding.get(f"{above}{slash}{second}") if name == first else None
            if other is None or one.path in known or other.path in known:
                continue
            if 2 * one.images.count_shared(other.images) >= len(one.images.stems):
                phrase = f"{printable(one.path)} and {printable(other.path)} have files of the same names"
                yield Finding(phrase, (_pattern(other.path),))


def _tails(contents: Contents) -> Iterator[Finding]:
    """Images in one folder that differ by a word at the end of their names: ``a_mask.png`` beside ``a.jpg``, or
    ``a_sat.jpg`` beside ``a_mask.png``, for nine in ten of them."""
    for folder in contents.folders.values():
        if not folder.tails:
            continue
        stems, where = folder.images.stems, printable(folder.path) or "the folder itself"
        tails = {tail: NameSet(len(bases), bases, ()) for tail, bases in folder.tails.items()}
        paired = {tail: bases.count_shared(stems) for tail, bases in tails.items()}
        single = len(stems) - sum(paired.values())
        for tail, count in paired.items():
            enough = (
                min(_MENTIONS, len(stems) // 2) if _BESIDE.fullmatch(tail) else max(_MENTIONS, -(-9 * single // 10))
            )
            if count and count >= enough:
                mask = next((name for name in folder.images.first if _ends(name, tail)), f"…_{tail}")
                image = stem_of(mask)[: -len(tail)].rstrip(" _.-")
                phrase = f"masks beside their images in {where} ({printable(stem_of(mask))}, {printable(image)})"
                yield Finding(phrase, (f"*{stem_of(mask)[len(image) :]}.*",))
        large = [tail for tail, bases in tails.items() if bases.count >= _MENTIONS and not paired[tail]]
        for n, one in enumerate(large):
            for other in large[n + 1 :]:
                both = tails[one].count_shared(tails[other])
                most = max(tails[one].count, tails[other].count)
                if 10 * both >= 9 * most and 20 * both >= 9 * len(stems):
                    image, mask = sorted((one, other), key=lambda tail: (_BESIDE.fullmatch(tail) is not None, tail))
                    phrase = f"images that differ by the end of their names in {where} (…_{image}, …_{mask})"
                    yield Finding(phrase, (f"*{mask}.*",))


def _tail_patterns(contents: Contents) -> set[str]:
    return {pattern for finding in _tails(contents) for pattern in finding.patterns}


def _ends(name: str, tail: str) -> bool:
    return stem_of(name).lower().endswith(tail)


def _mentions(text: bytes, groups: Sequence[NDArray[np.int64]]) -> bool:
    """Whether the beginning of a file names images of some group, by their stems: three of them, two that are long, or
    all if there are fewer; small numbers count only where they name half of a group. A table is often of one split
    alone, so each is a group."""
    words = {word.strip() for pattern in (_WORD, _FIELD) for word in pattern.findall(text)}
    words = {word for word in words if not _FRACTION.fullmatch(word)}
    counters = {word for word in words if _COUNTER.fullmatch(word)}
    named, counted = (_hashes(each) for each in (words - counters, counters))
    long = _hashes({word for word in words - counters if len(word) >= _LONG})
    for group in groups:
        hits = int(np.isin(named, group).sum())
        if len(group) and (
            hits >= min(_MENTIONS, len(group))
            or int(np.isin(long, group).sum()) > 1
            or 2 * (hits + int(np.isin(counted, group).sum())) >= len(group)
        ):
            return True
    return False


def _hashes(words: Collection[bytes]) -> NDArray[np.int64]:
    hashes = {hash(os.path.splitext(word.decode("utf-8", "surrogateescape"))[0]) for word in words}  # noqa: PTH122
    return np.fromiter(hashes, np.int64, len(hashes))
