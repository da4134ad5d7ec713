"""Reads images with captions: ``captions.csv``, ``.tsv``, ``.jsonl`` and the files of Flickr8k and Flickr30k, or a text
for each image, as diffusers and kohya have them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packstore.core.errors import Answer, SourceError, printable
from packstore.core.fields import Field, Image, Json, Text
from packstore.sources.annotations import find_other_annotations
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import clean_path, find_base_folder, join, read_lines
from packstore.sources.columns import CAPTION_COLUMNS
from packstore.sources.companion_patterns import SIDECAR, CompanionPattern, parse_pattern
from packstore.sources.companions import CompanionsSource
from packstore.sources.contents import list_contents, suffix_of
from packstore.sources.encodings import convert_start
from packstore.sources.ignoring import ignore_paths
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.pairing import PROSE, find_companions
from packstore.sources.questions import ask, join_few
from packstore.sources.rows import in_packing_order
from packstore.sources.splits import find_splits_of_folders
from packstore.sources.spread import find_image_places
from packstore.sources.table.images import ListedSource, ListedValues
from packstore.sources.table.reading import read_table
from packstore.sources.tree import Tree

_NAME = re.compile(r"captions?[.](csv|tsv|txt|jsonl)|results[.]csv|(?!.*lemma).*[.]token([.]txt)?", re.I)
_SETS = re.compile(r"flickr_8k[.](train|dev|test)images[.]txt", re.I)
_KNOWN = re.compile(r"(.*/)?(flickr_?8k|flickr_?30k|crowdflower|expertannotations)[^/]*", re.I)
_FILES = ("file", "file_name", "filename", "image", "image_name", "image_path", "path")
# Columns that only count.
_NUMBERS = ("comment_number", "caption_number", "caption_id", "index", "")
_SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".token")
_SUFFIX = "|".join(re.escape(suffix) for suffix in IMAGE_SUFFIXES)
# A line of a file without a header: an image and its caption, as in Flickr8k, in Flickr30k, or with a separator.
_LINE = re.compile(
    rf"(.+)#\d+\t(.*)|(.+?)\|\s*\d+\s*\|?\s*(.*)|(.+?(?:{_SUFFIX}))\s*[,\t|;]\s*(.*)",  # Flickr30k lacks one |
    re.I,
)
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_HEADER = "image_name|comment_number|comment"
_START = 1 << 16
# Folders of kohya, whose number tells how often to repeat their images.
_REPEATS = re.compile(r"\d+_.+")


class CaptionsSource(ListedSource):
    """The images that a file of captions names, in the order of their first captions.

    If each image has one caption, it is in the column ``caption``. Else the column ``captions`` has a list of texts.
    Splits come from a column ``split``, or from Flickr8k's lists of images. A malformed
    line, and an image in two splits, raise :class:`SourceError`."""

    kind = "captions"
    left_images = "images without a caption"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        """Reads the captions into a temporary file.

        Raises:
            AmbiguousSourceError: There are several files of captions.
            SourceError: There is none, or the only one names no image that exists.
        """
        super().__init__(path, options)
        files = find_caption_files(self.tree)
        if len(files) > 1:
            lines = (Answer(ignore_paths([other for other in files if other != each])) for each in files)
            raise ask(path, f"has several files of captions: {join_few(files)}", *lines)
        if not files:
            raise SourceError(
                f"{self.tree.name()} has no captions.csv, .tsv, .txt or .jsonl with a header such as file,caption, or "
                "an image and its caption on each line"
            )
        self._file = files[0]
        self._sets = _find_split_lists(self.tree, self._file)
        listed = ListedValues(self.tree, self.tree.name(self._file), self._list_captions())
        self.listed, self.assigned = listed, listed.splits
        self._several = bool(self.listed.images_with_several())
        names = [self.listed.image_path(image) for image in range(self.listed.image_count)]
        places = _find_images(self.tree, self._file, names)
        if places is None:
            raise SourceError(f"{self.tree.name(self._file)}: it names no image that is there")
        self._places = [places] * len(names) if isinstance(places, str) else places
        folders = [each or "the folder itself" for each in sorted({*self._places})]
        self.evidence = f"{printable(self._file)} and the images in {join_few(folders)}"

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields ``image`` and ``caption``, a text; or ``captions``, a list, if some image has several."""
        return {"image": Image(), **({"captions": Json()} if self._several else {"caption": Text()})}

    def file_of(self, image: int) -> str:
        return join(self._places[image], self.listed.image_path(image))

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads ``image``, and its ``captions`` or ``caption`` from the temporary file. Raises :class:`ValueError` once
        the source is closed."""
        values = dict(super().read_values(ref))
        captions = self.listed.values_of(values.pop("entry"))
        return values | ({"captions": captions} if self._several else {"caption": captions[0]})

    def describing_files(self) -> Iterable[str]:
        """Returns the file of captions, and Flickr8k's lists of images."""
        return (self._file, *self._sets.values())

    def _list_captions(self) -> Iterator[tuple[str, str, str]]:
        """Yields image, caption and split of each line."""
        listed = {
            line: split for split, place in self._sets.items() for _, line in read_lines(self.tree, place, paths=True)
        }
        for name, caption, split in _read_captions(self.tree, self._file):
            yield name, caption, listed.get(name, split)


def _read_captions(tree: Tree, file: str) -> Iterator[tuple[str, str, str]]:
    """Yields the path of the image, caption and split of each line of a file; the split may be ``""``."""
    lines = _read_bare_lines(tree, file) if _has_bare_lines(tree, file) else _read_table(tree, file)
    for place, image, caption, split in lines:
        try:
            yield clean_path(image), caption, split
        except ValueError as error:
            raise SourceError(f"{place}: {error}") from None


def _read_bare_lines(tree: Tree, file: str) -> Iterator[tuple[str, str, str, str]]:
    """Yields place, image, caption and no split of each line of a file without a header, or with Flickr30k's."""
    for number, line in read_lines(tree, file):
        match, place = _LINE.fullmatch(line), f"{tree.name(file)}, line {number}"
        if line.replace(" ", "") == _HEADER:
            continue
        if match is None:
            raise SourceError(f"{place}: {printable(line[:60])!r} has no image and caption")
        image, caption = (part.strip() for part in match.groups() if part is not None)
        is_quoted = match[5] is not None and _QUOTED.fullmatch(caption) is not None
        yield place, image, caption[1:-1].replace('""', '"') if is_quoted else caption, ""


def _read_table(tree: Tree, file: str) -> Iterator[tuple[str, str, str, str]]:
    """Yields place, image, caption or list of captions, and split of each row of a table with a header."""
    for place, cells in read_table(tree, file, header=True):
        columns = _find_columns(cells)
        image, captions, *split = (cells[name] for name in columns or cells)
        for caption in captions if isinstance(captions, list) else [captions]:
            if columns is None or not all(isinstance(value, str) for value in (image, caption, *split)):
                raise SourceError(f"{place}: expected texts: a file, a caption or captions, and optionally a split")
            yield place, image, caption, "".join(split)


def _find_columns(header: Iterable[str]) -> list[str] | None:
    """Returns the columns of files, captions and, if there is one, splits; None if others have a meaning."""
    names = {name: name.strip().lower() for name in header}
    files = [name for name, plain in names.items() if plain in _FILES]
    captions = [name for name, plain in names.items() if plain in CAPTION_COLUMNS]
    rest = [name for name in names if name not in (*files, *captions) and names[name] not in _NUMBERS]
    if len(files) != 1 or len(captions) != 1 or [names[name] for name in rest] not in ([], ["split"]):
        return None
    return [*files, *captions, *rest]


def _has_bare_lines(tree: Tree, file: str) -> bool:
    """Tells if a file begins with an image and its caption, or with Flickr30k's header, and so is no table."""
    start = convert_start(tree.first_bytes(file, _START)).split(b"\n")[0].decode("utf-8", "replace").strip()
    return start.replace(" ", "") == _HEADER or _LINE.fullmatch(start) is not None


def find_caption_files(tree: Tree) -> list[str]:
    """Finds files of captions by their names and first lines: at the top, then in the folders there."""
    folders = ["", *(name for name in tree.names("").folders if not is_passed_over(name))]
    named = [join(folder, name) for folder in folders for name in tree.names(folder).ending(*_SUFFIXES)]
    return [file for file in named if _NAME.fullmatch(file.rpartition("/")[2]) and _begins_like_captions(tree, file)]


def _begins_like_captions(tree: Tree, file: str) -> bool:
    """Tells if a file begins with a header or an object of captions, or with an image and its caption."""
    if _has_bare_lines(tree, file):
        return True
    try:
        first = next(read_table(tree, file, header=False, data=tree.first_bytes(file, _START)), None)
    except SourceError:
        return False
    if first is None:
        return False
    return _find_columns(first.cells if suffix_of(file) == ".jsonl" else first.cells.values()) is not None


def _find_images(tree: Tree, file: str, images: Sequence[str]) -> str | list[str] | None:
    """Finds the folder of the images that a file names, or the folder of each, see :func:`find_image_places`."""
    names = tree.names("").folders
    nested = [join(name, inner) for name in names for inner in ("images", name)]  # as Flickr8k's zip has it
    folder = find_base_folder(tree, images, ["", file.rpartition("/")[0], *names, *nested])
    return find_image_places(tree, images, file, folder)


def _find_split_lists(tree: Tree, file: str) -> dict[str, str]:
    """Finds Flickr8k's lists of images beside its captions, by split; empty if there are none."""
    folder = file.rpartition("/")[0]
    names = tree.names(folder).files
    lists = {match[1].lower(): join(folder, name) for name in names if (match := _SETS.fullmatch(name))}
    return {split: lists[split] for split in in_packing_order(lists)}


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises a folder by its first file of captions, if an image that the file names exists."""
    tree = open_tree(path)
    files = [] if tree is None else find_caption_files(tree)
    if tree is None or not files:
        return Certainty.NO
    try:
        images = list(dict.fromkeys(image for image, _, _ in _read_captions(tree, files[0])))
        if _find_images(tree, files[0], images) is None:
            return Certainty.NO
    except SourceError:
        # It is malformed.
        return Certainty.PARTIAL
    # Flickr's data sets have known further files.
    further = [each.file or "" for each in find_other_annotations(tree)]
    return Certainty.PARTIAL if any(f not in files and not _KNOWN.fullmatch(f) for f in further) else Certainty.CERTAIN


class CaptionFilesSource(CompanionsSource):
    """Images with a text each, ``a.jpg`` and ``a.txt`` or ``a.caption``, in the column ``caption``. The folder of an
    image is a text, too."""

    kind = "caption_files"
    folder_texts = True

    def _find_patterns(self) -> tuple[CompanionPattern, ...]:
        """Returns the pattern of the texts."""
        pattern = _find_captions(self.tree)
        if pattern is None:
            raise SourceError(f"{printable(str(self.path))} has no images with a text each (a.jpg, a.txt)")
        return (pattern,)

    def _name_columns(self) -> Mapping[str, Sequence[CompanionPattern]]:
        """Returns the only column."""
        return {"caption": self._patterns}


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


def _recognise_files(path: Path, options: SourceOptions) -> Certainty:
    """Recognises images with a text each, if all texts are for people."""
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
    # Several folders of images may be classes.
    return Certainty.CERTAIN if len(plain) < 2 else Certainty.PARTIAL


CAPTIONS = Kind(
    "captions",
    "images with captions.csv, .tsv or .jsonl, or Flickr's captions",
    _recognise,
    CaptionsSource,
    in_objects=True,
)
CAPTION_FILES = Kind(
    "caption_files",
    "images with a text each: a.jpg and a.txt",
    _recognise_files,
    CaptionFilesSource,
    in_objects=True,
)
