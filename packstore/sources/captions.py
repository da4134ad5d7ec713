"""Reads images with a file of captions: ``captions.csv``, ``.tsv``, ``.jsonl``, and the files of Flickr8k and
Flickr30k.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.errors import Answer, SourceError, printable
from packstore.core.fields import Field, Image, Json, Text
from packstore.core.plainjson import load_json
from packstore.sources.annotations import find_further_files
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import clean_path, find_base_folder, join, read_lines, read_text
from packstore.sources.encodings import convert_start
from packstore.sources.ignoring import ignore_paths
from packstore.sources.listed import ListedSource, ListedValues
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.questions import ask, join_few
from packstore.sources.rows import in_packing_order
from packstore.sources.spread import find_image_places
from packstore.sources.tree import Tree

_NAME = re.compile(r"captions?[.](csv|tsv|txt|jsonl)|results[.]csv|(?!.*lemma).*[.]token([.]txt)?", re.I)
_SETS = re.compile(r"flickr_8k[.](train|dev|test)images[.]txt", re.I)
_KNOWN = re.compile(r"(.*/)?(flickr_?8k|flickr_?30k|crowdflower|expertannotations)[^/]*", re.I)
_FILES = ("file", "file_name", "filename", "image", "image_name", "image_path", "path")
_CAPTIONS = ("caption", "captions", "text", "comment", "description", "sentence")
_NUMBERS = ("comment_number", "caption_number", "caption_id", "index", "")
"""Columns that only count."""
_SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".token")
_SUFFIX = "|".join(re.escape(suffix) for suffix in IMAGE_SUFFIXES)
_LINE = re.compile(
    rf"(.+)#\d+\t(.*)|(.+?)\|\s*\d+\s*\|?\s*(.*)|(.+?(?:{_SUFFIX}))\s*[,\t|;]\s*(.*)",  # Flickr30k lacks one |
    re.I,
)
"""A line of a file without a header: an image and its caption, as in Flickr8k, in Flickr30k, or with a separator."""
_HEADER = "image_name|comment_number|comment"
_START = 1 << 16


class _CaptionLine(NamedTuple):
    """One caption: name of the image as in the file, caption, and split, ``""`` for none."""

    file: str
    caption: str
    split: str = ""


class CaptionsSource(ListedSource):
    """The images that a file of captions names, in the order of their first captions.

    If each image has one caption, it is in the column ``caption``. Else the column ``captions`` has a list of texts.
    Splits come from a column ``split``, or from Flickr8k's lists of images. Captions of images in none of these lists
    are left out, and counted. A malformed line, and an image in two splits, raise :class:`SourceError`."""

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
        self._left_out = 0
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

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts the captions of images that are in none of Flickr8k's lists."""
        return {"captions of images in none of the sets": self._left_out} if self._left_out else {}

    def _list_captions(self) -> Iterator[tuple[str, str, str]]:
        """Yields image, caption and split of each line. Counts the captions of images in none of Flickr8k's lists."""
        listed = {
            line: split for split, place in self._sets.items() for _, line in read_lines(self.tree, place, paths=True)
        }
        for name, caption, own in _read_captions(self.tree, self._file):
            split = listed.get(name, None if self._sets else own)
            if split is None:
                self._left_out += 1
            else:
                yield name, caption, split


def _read_captions(tree: Tree, file: str) -> Iterator[_CaptionLine]:
    """Yields the captions of a file, with clean paths of images. Raises :class:`SourceError` for a malformed line, with
    the number of the last good line."""
    data = read_text(tree, file)
    last = 0
    try:
        for number, line in _parse_lines(file, data):
            yield line._replace(file=clean_path(line.file))
            last = number
    except (ValueError, csv.Error) as error:
        raise SourceError(f"{tree.name(file)}, after line {last}: {printable(str(error))}") from None


def _parse_lines(file: str, data: bytes) -> Iterator[tuple[int, _CaptionLine]]:
    """Yields line number and caption of each line. Files are JSON Lines, tables, or Flickr's files. Raises
    :class:`ValueError` or :class:`csv.Error` for a malformed line."""
    text = io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", errors="surrogateescape", newline="")
    if file.lower().endswith(".jsonl"):
        for number, raw in enumerate(io.BytesIO(data), 1):
            if raw.strip():
                yield from ((number, line) for line in _parse_record(load_json(raw, "not JSON")))
    elif not _has_bare_lines(data[:_START]):
        yield from _parse_table(text, "\t" if file.lower().endswith(".tsv") else ",")
    else:
        for number, each in enumerate(map(str.strip, text), 1):
            match = _LINE.fullmatch(each)
            if match is None and each and each.replace(" ", "") != _HEADER:
                raise ValueError(f"{each[:60]!r} has no image and caption")
            if match is not None and each.replace(" ", "") != _HEADER:
                name, caption = (part.strip() for part in match.groups() if part is not None)
                yield number, _CaptionLine(name, caption if match[5] is None else _strip_quotes(caption))


def _parse_table(text: Iterable[str], delimiter: str) -> Iterator[tuple[int, _CaptionLine]]:
    """Yields line number and caption of each row of a table with a header; skips blank rows. If the last column has
    captions, they may have unquoted commas. Raises :class:`ValueError` for an unknown header, and for too few or too
    many values. Raises :class:`csv.Error` for quotes that do not match."""
    rows = csv.reader(text, delimiter=delimiter, strict=True)
    header = next(rows, [])
    columns, width = _find_columns(header), len(header)
    if columns is None:
        raise ValueError("the header is neither file,caption nor file,caption,split")
    for row in filter(None, rows):
        if len(row) > width and columns[1] == width - 1:  # commas of a caption that is not quoted
            row[width - 1 :] = [delimiter.join(row[width - 1 :])]
        if len(row) <= max(columns):
            raise ValueError(f"{len(row)} values, fewer than the header has")
        if len(row) > width:
            raise ValueError(f"{len(row)} values, more than the header has: quote captions that have commas")
        yield rows.line_num, _CaptionLine(*(row[n].strip() for n in columns))


def _parse_record(record: Any) -> Iterator[_CaptionLine]:
    """Yields the captions in an object with a file, one or several captions, and optionally a split and counters.
    Raises :class:`ValueError` for any other value."""
    columns = _find_columns([*record]) if isinstance(record, dict) else None
    if columns is None:
        raise ValueError("expected an object with a file, a caption or captions, and optionally a split")
    file, captions, *split = (list(record.values())[n] for n in columns)
    for caption in captions if isinstance(captions, list) else [captions]:
        if not all(isinstance(value, str) for value in (file, caption, *split)):
            raise ValueError("a file, a caption or a split is not a text")
        yield _CaptionLine(file, caption, *split)


def _find_columns(header: Sequence[str]) -> list[int] | None:
    """Returns the positions of file, caption and, if there is one, split in a header. Returns None unless there is
    exactly one file and one caption. Also returns None if another column is neither a split nor a counter."""
    names = [name.strip().lower() for name in header]
    files = [n for n, name in enumerate(names) if name in _FILES]
    captions = [n for n, name in enumerate(names) if name in _CAPTIONS]
    rest = [n for n, name in enumerate(names) if n not in (*files, *captions) and name not in _NUMBERS]
    if len(files) != 1 or len(captions) != 1 or [names[n] for n in rest] not in ([], ["split"]):
        return None
    return [*files, *captions, *rest]


def _has_bare_lines(start: bytes) -> bool:
    """Tells if a file begins with an image and its caption, or with Flickr30k's header, and so is no table."""
    line = _first_line(start)
    return line.replace(" ", "") == _HEADER or _LINE.fullmatch(line) is not None


def find_caption_files(tree: Tree) -> list[str]:
    """Finds files of captions by their names and first bytes: at the top, then in the folders there."""
    return [path for path in _list_named_files(tree) if _begins_like_captions(path, tree.first_bytes(path, _START))]


def _list_named_files(tree: Tree) -> Iterator[str]:
    """Yields files at the top, and in folders there, that have a name of caption files."""
    for folder in ("", *(name for name in tree.names("").folders if not is_passed_over(name))):
        for name in tree.names(folder).ending(*_SUFFIXES):
            if _NAME.fullmatch(name):
                yield join(folder, name)


def _begins_like_captions(path: str, start: bytes) -> bool:
    """Tells if a file begins like captions: with a header, or with an image and its caption. For JSON Lines, only looks
    for the name of a column of captions."""
    if path.lower().endswith(".jsonl"):
        return b'"' in start and any(f'"{name}"'.encode() in start for name in _CAPTIONS)
    separator = "\t" if path.lower().endswith(".tsv") else ","
    return _has_bare_lines(start) or _find_columns(_first_line(start).split(separator)) is not None


def _first_line(start: bytes) -> str:
    """Returns the first line of a text, stripped."""
    return convert_start(start).split(b"\n")[0].decode("utf-8", "replace").removeprefix("\ufeff").strip()


def _strip_quotes(caption: str) -> str:
    """Removes quotes around a whole caption; leaves other captions as they are. Raises :class:`csv.Error` for quotes
    that do not match."""
    quoted = len(caption) > 1 and caption[0] == caption[-1] == '"'
    row = next(csv.reader([caption], strict=True)) if quoted else []
    return row[0] if len(row) == 1 else caption


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
    """Recognises a folder by its first file of captions.

    - ``CERTAIN``: some image that the file names exists.
    - ``PARTIAL``: it does, and further files annotate the images, except known files of Flickr's data sets.
    - ``PARTIAL``: the file is malformed.
    - ``NO``: anything else.
    """
    tree = open_tree(path)
    files = [] if tree is None else find_caption_files(tree)
    if tree is None or not files:
        return Certainty.NO
    try:
        images = list(dict.fromkeys(line.file for line in _read_captions(tree, files[0])))
        if _find_images(tree, files[0], images) is None:
            return Certainty.NO
    except SourceError:
        return Certainty.PARTIAL
    further = [each.file or "" for each in find_further_files(tree)]
    return Certainty.PARTIAL if any(f not in files and not _KNOWN.fullmatch(f) for f in further) else Certainty.CERTAIN


KIND = Kind(
    "captions",
    "images with captions.csv, .tsv or .jsonl, or Flickr's captions",
    _recognise,
    CaptionsSource,
    in_objects=True,
)
