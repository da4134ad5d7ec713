"""Reads images with a text file each, ``a.jpg`` and ``a.txt`` or ``a.caption``: the layout of diffusers, kohya and
others.

Recognised after reading all texts: lines of numbers, JSON and XML are other annotations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packstore.core.errors import AmbiguousSourceError, SourceError, printable
from packstore.core.fields import Field, Image, Text
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import join, read_whole
from packstore.sources.contents import list_contents, stem_of
from packstore.sources.encodings import try_utf8
from packstore.sources.file_rows import FileRow, FileRowSource, InTree
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.rows import in_packing_order
from packstore.sources.splits import find_splits_of_folders, is_split
from packstore.sources.tree import Tree

_SUFFIXES = (".txt", ".caption", ".cap")
_MAX_BYTES, _MANY_NUMBERS = 1 << 16, 4
_REPEATS = re.compile(r"\d+_.+")
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?", re.I)
_NO_TEXT = re.compile(r"\s*(<.*>|\[.*\]|\{.*\})\s*\Z|.*\0", re.S)
"""XML and JSON, whole or not; a prompt may begin with ``[trigger]``, ``{red|blue}`` or ``<lora:owl:1>``."""


class CaptionFilesSource(FileRowSource):
    """Images with a column ``caption``, which is None for an image without a text.

    If folders of images have several names other than those of splits, the column ``folder`` has the name. There are
    splits only if each folder of images is in a folder of a split. The constructor reads all texts. It raises
    :class:`SourceError` for a tree without caption files, and the errors of :func:`find_caption_suffix`."""

    kind = "caption_files"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        suffix = find_caption_suffix(self.tree)
        if suffix is None:
            raise SourceError(f"{printable(str(path))} has no images with a text each (a.jpg, a.txt)")
        self._suffix = suffix
        holding = [folder for folder, _ in self._list_images()]
        self._splits = find_splits_of_folders(holding)
        self._folders = len({name for folder in holding if not is_split(name := folder.rpartition("/")[2])}) > 1
        self.evidence = f"a file {suffix} for images in {len(holding):,} folders"

    def splits(self) -> Sequence[str]:
        """Returns the splits in packing order; ``("",)`` unless each folder of images is in a split."""
        return in_packing_order(self._splits.values()) or ("",)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields ``image``, ``caption``, and ``folder`` if images are in folders of several names."""
        return {"image": Image(), "caption": Text(optional=True), **({"folder": Text()} if self._folders else {})}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields one row for each image of a split, with the path of its caption file. That file may be missing."""
        for folder, images in self._list_images():
            if self._splits.get(folder, "") != split:
                continue
            more = {"folder": folder.rpartition("/")[2]} if self._folders else {}
            for name in images:
                text = InTree(join(folder, stem_of(name) + self._suffix), optional=True)
                yield FileRow(join(folder, name), {"caption": text, **more})

    def read_values(self, ref: object) -> Mapping[str, object]:
        """Reads ``image``, ``caption`` and, if declared, ``folder``. The caption is decoded and stripped; None if its
        file is missing."""
        values = dict(super().read_values(ref))
        text = values["caption"]
        return values | {"caption": text.decode("utf-8-sig").strip() if isinstance(text, bytes) else None}

    def describing_files(self) -> Iterable[str]:
        """Returns no files: the texts are values of the samples."""
        return ()

    def _list_images(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Yields each folder with images, and their names."""
        for folder, listing in self.tree.walk("", self.tree.above, None, self.options.skip_bad):
            if listing.images:
                yield folder, listing.images


def find_caption_suffix(tree: Tree) -> str | None:
    """Returns the suffix of the caption files in a tree, or None. Reads all texts.

    At least half of the images must have such a file, and all these files must be captions. Returns None if there are
    caption files with two suffixes. Raises :class:`AmbiguousSourceError` if the texts are captions of an unknown
    encoding. Raises :class:`SourceError` if a text cannot be read, or is not in the encoding that the user has named.
    """
    counts = dict.fromkeys(_SUFFIXES, 0)
    images = 0
    for folder in list_contents(tree).folders.values():
        images += folder.images.count
        for suffix in _SUFFIXES:
            if suffix in folder.others:
                counts[suffix] += folder.images.count_shared(folder.others[suffix])
    suffixes = [suffix for suffix, count in counts.items() if count]
    if len(suffixes) != 1 or 2 * counts[suffixes[0]] < images:
        return None
    fault = None
    for path, raw in _read_texts(tree, suffixes[0]):
        text, wrong = try_utf8(raw, tree.encoding, tree.name(path))
        fault = fault or wrong
        if not is_caption(text):
            return None
    if fault is not None:
        raise fault
    return suffixes[0]


def _read_texts(tree: Tree, suffix: str) -> Iterator[tuple[str, bytes]]:
    """Yields path and bytes of the text file of each image that has one. For a file too large for a caption, yields a
    NUL byte in place of its bytes."""
    for folder, names in tree.folders(is_passed_over):
        there = frozenset(names.ending(suffix))
        stems = dict.fromkeys(stem_of(name) + suffix for name in names.ending(*IMAGE_SUFFIXES))
        for name in stems:
            if name in there:
                path = join(folder, name)
                data = read_whole(tree, path, _MAX_BYTES) if tree.stat(path).size <= _MAX_BYTES else b"\0"
                yield path, data


def is_caption(raw: bytes) -> bool:
    """Tells if a text is a caption, or empty. A caption is UTF-8 with letters, neither XML nor JSON, and has no line of
    four or more numbers."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return False
    if not text.strip():
        return True
    if _NO_TEXT.match(text) or not any(map(str.isalpha, text)):
        return False
    lines = (re.split(r"[\s,;:|]+", line) for line in text.splitlines())
    return all(sum(_NUMBER.fullmatch(word) is not None for word in words) < _MANY_NUMBERS for words in lines)


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Certain if :func:`find_caption_suffix` finds captions, else ``NO``. Partial if several folders of images may be
    classes: they are neither splits nor repeats of kohya (``10_cat``). Raises :class:`AmbiguousSourceError` for
    captions of an unknown encoding."""
    tree = open_tree(path)
    try:
        if tree is None or find_caption_suffix(tree) is None:
            return Certainty.NO
    except AmbiguousSourceError:
        raise
    except SourceError:
        return Certainty.NO
    holding = [folder for folder, each in list_contents(tree).folders.items() if each.images.count]
    splits = find_splits_of_folders(holding)
    plain = {f for f in holding if f not in splits and not _REPEATS.fullmatch(f.rpartition("/")[2])}
    return Certainty.CERTAIN if len(plain) < 2 else Certainty.PARTIAL


KIND = Kind(
    "caption_files",
    "images with a text each: a.jpg and a.txt",
    _recognise,
    CaptionFilesSource,
    in_objects=True,
)
