"""Reads files beside images: their lists, labels and masks, in a folder or an archive."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SampleError, SourceError, printable
from packstore.core.fields import Image, Mask
from packstore.core.plainjson import load_json
from packstore.images.sniff import HeaderError, sniff
from packstore.sources.encodings import to_utf8
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.tree import Tree

_HEADER = 1 << 12
_COLOUR_AT, _ONE_CHANNEL = 25, (0, 3)  # of a PNG's header; gray, palette
_TEXT_BYTES = 256 << 20
_YOLO_LINE = re.compile(rb"\s*\d+(\.0+)?([ \t]+-?[0-9.]+(e-?\d+)?){4,}\s*")
_LOOKED_AT = 64
_SHOWN = 80
# Most paths, which :func:`clean_path` returns at a third of the time.
_CLEAN = re.compile(r"[A-Za-z0-9_ -]+(?:[./][A-Za-z0-9_ -]+)*")


def is_folder(tree: Tree, path: str) -> bool:
    """Tells if a directory is at ``path``; False if nothing can be reached there."""
    try:
        return tree.stat(path).is_directory
    except OSError:
        return False


def is_file(tree: Tree, path: str) -> bool:
    """Tells if a regular file is at ``path``, and not a pipe or a device; False if nothing can be reached there."""
    try:
        return tree.stat(path).size >= 0
    except OSError:
        return False


def find_file(tree: Tree, path: str) -> str:
    """Finds a file whose suffix may be in upper case. If ``a.png`` is missing and ``a.PNG`` exists, returns ``a.PNG``.
    Else returns ``path``."""
    other = raise_suffix(path)
    return other if not is_file(tree, path) and is_file(tree, other) else path


def raise_suffix(path: str) -> str:
    """Returns a path with its suffix in upper case; a path without a suffix stays."""
    stem, dot, suffix = path.rpartition(".")
    return path if "/" in suffix or not dot else stem + dot + suffix.upper()


def join(folder: str, name: str) -> str:
    """Joins a folder, ``""`` for the root of a tree, and a name."""
    return f"{folder}/{name}" if folder else name


def clean_path(text: str) -> str:
    """Cleans a path from a list of files: replaces ``\\`` by ``/``, and removes empty parts and ``.``. Raises
    :class:`ValueError` if the path is empty or absolute, or has ``..``, a null character or a lone surrogate."""
    if _CLEAN.fullmatch(text):
        return text
    text.encode("utf-8", "surrogateescape")  # raises for a lone surrogate, which no file name has
    parts = [part for part in text.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or ".." in parts or "\0" in text or text.startswith(("/", "\\")) or text[1:2] == ":":
        raise ValueError(f"names {printable(text[:80])!r}, which is not a path within the source")
    return "/".join(parts)


def parse_finite(text: str) -> float:
    """Parses a number. Raises :class:`ValueError` for other texts, infinity and NaN."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"found {printable(text[:40])!r}, which is not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"found {printable(text[:40])!r}, which is not a coordinate")
    return number


def read_whole(tree: Tree, file: str, max_bytes: int = _TEXT_BYTES) -> bytes:
    """Reads all bytes of a file that describes images. Raises :class:`SourceError` if it cannot be read, or has more
    than ``max_bytes``."""
    try:
        status = tree.stat(file)
        return tree.read(file, status.size, status.modified_ns, max_bytes)
    except OSError as error:
        raise SourceError(f"{tree.name(file)} cannot be read: {error.strerror or error}") from None
    except SampleError as error:
        size = f"has {status.size} bytes; at most {max_bytes} are read" if status.size > max_bytes else error.reason
        raise SourceError(f"{tree.name(file)} {size}") from None


def read_text(tree: Tree, file: str, max_bytes: int = _TEXT_BYTES) -> bytes:
    """Reads a text file, and converts it to UTF-8. Raises :class:`SourceError` if it cannot be read or is too large,
    and :class:`AmbiguousSourceError` for an unknown encoding."""
    return to_utf8(read_whole(tree, file, max_bytes), tree.encoding, tree.name(file))


def read_lines(tree: Tree, file: str, paths: bool = False) -> Iterator[tuple[int, str]]:
    """Yields number and stripped text of each line that is not blank. With ``paths``, lines are file names. Unless the
    user has named an encoding, their undecodable bytes become surrogates. Raises the errors of :func:`read_text`."""
    text = read_whole(tree, file) if paths and tree.encoding is None else read_text(tree, file)
    begin, number = 0, 0
    while begin < len(text):
        end = text.find(b"\n", begin)
        end = len(text) if end < 0 else end
        number += 1
        if line := text[begin:end].strip():
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape")
        begin = end + 1


def read_json(tree: Tree, file: str, max_bytes: int) -> Any:
    """Reads a JSON file into memory. Raises :class:`SourceError` if it is not JSON, and the errors of
    :func:`read_text`."""
    data = read_text(tree, file, max_bytes)
    try:
        return load_json(data)
    except ValueError as error:
        raise SourceError(f"{tree.name(file)} {printable(str(error))}") from None


def infer_mask_field(tree: Tree, files: Iterable[str]) -> Mask | Image:
    """Returns the optional field for a column of masks, by the first file with an image's header.

    Returns :class:`Mask` for a PNG with one channel, and if no file has such a header. Returns :class:`Image` for any
    other file."""
    for file in files:
        start = tree.first_bytes(file, _HEADER)
        try:
            kind = sniff(start).kind
        except HeaderError:
            continue
        return Mask(optional=True) if kind == "png" and start[_COLOUR_AT] in _ONE_CHANNEL else Image(optional=True)
    return Mask(optional=True)


def find_suffixes_other_than_jpg(tree: Tree, folder: str, names: Iterable[str]) -> dict[str, str]:
    """Returns the suffix of each image by its stem. Leaves out images with exactly ``.jpg``. Raises
    :class:`SourceError` if two of ``names`` differ only by their suffixes, which makes a list of stems ambiguous."""
    others: dict[str, str] = {}
    plain = set()
    for name in names:
        stem, dot, suffix = name.rpartition(".")
        if stem in plain or stem in others:
            raise SourceError(f"{tree.name(folder)} has two images called {printable(stem)}: rename one")
        if dot + suffix == ".jpg":
            plain.add(stem)
        elif dot + suffix.lower() in IMAGE_SUFFIXES:
            others[stem] = dot + suffix
    return others


def number_repeated_names(names: Sequence[str], numbers: Sequence[int]) -> tuple[str, ...]:
    """Makes names of classes unique: repeated names get their class numbers, ``crane (134)``. If another class already
    has such a name, all names get their numbers."""
    counts = Counter(names)
    candidates = tuple(
        f"{name} ({number})" if counts[name] > 1 else name for name, number in zip(names, numbers, strict=True)
    )
    return (
        candidates
        if len(set(candidates)) == len(candidates)
        else tuple(f"{name} ({number})" for name, number in zip(candidates, numbers, strict=True))
    )


def find_base_folder(tree: Tree, paths: Iterable[str], folders: Iterable[str]) -> str | None:
    """Finds the folder with the largest number of existing ``paths``. If several have as many, returns the first.
    Returns None if no path exists in any folder."""
    wanted: dict[str, set[str]] = {}
    for path in paths:
        within, _, name = path.rpartition("/")
        wanted.setdefault(within, set()).add(name)
    hits = {
        folder: sum(
            len(names.intersection(tree.names(join(folder, within) if within else folder).files))
            for within, names in wanted.items()
        )
        for folder in dict.fromkeys(each.rstrip("/") for each in folders)
    }
    best = max(hits, key=hits.__getitem__)
    return best if hits[best] else None


def holds_yolo_labels(tree: Tree, folder: str) -> bool:
    """Tells if the first ``.txt`` file with content begins with a line of YOLO labels. Such a line is a class, and four
    or more numbers. Looks in the folder and the folders below it, in 64 at most. Skips ``classes.txt``."""
    waiting = [folder]
    for place in waiting:  # grows within the loop
        names = tree.names(place)
        waiting += [join(place, name) for name in names.folders[: _LOOKED_AT - len(waiting)]]
        for name in names.files:
            named = name.endswith(".txt") and name != "classes.txt"
            if named and (line := tree.first_bytes(join(place, name), _HEADER).split(b"\n")[0]):
                return _YOLO_LINE.fullmatch(line) is not None
    return False


def has_yolo_beside(tree: Tree, folder: str) -> bool:
    """Tells if images have YOLO labels in the same folder. Looks at the text files of the first 64 images. True if the
    first text file with content begins with a line of such labels."""
    images = tree.names(folder).ending(*IMAGE_SUFFIXES)[:_LOOKED_AT]
    starts = (tree.first_bytes(join(folder, f"{name.rpartition('.')[0]}.txt"), _HEADER) for name in images)
    first = next((start.split(b"\n")[0] for start in starts if start.strip()), b"")
    return _YOLO_LINE.fullmatch(first) is not None


class TextTable:
    """Lines of a text file, in fields; finds lines by their first field. Skips blank lines.

    Reading a line raises :class:`SourceError` for a null character, and for a path out of the source. Memory holds the
    text and, after the first look-up, 16 bytes a line.
    """

    def __init__(self, name: str, data: bytes, separator: str | None = None, skip: int = 0) -> None:
        """Keeps the content of a file; parses nothing yet.

        Args:
            name: Name of the file, for messages.
            data: Its content.
            separator: Divides the fields of a line; None for any white space.
            skip: Number of lines to skip at the beginning.
        """
        self.name = name
        self._data = data
        self._separator = separator
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
        self._starts = np.concatenate((np.zeros(1, np.int64), ends + 1))[skip:]

    def __iter__(self) -> Iterator[list[str]]:
        """Yields the fields of each line that is not blank."""
        yield from filter(None, map(self._split_line, self._starts))

    def find_lines(self, key: str) -> Iterator[list[str]]:
        """Yields the fields of all lines whose first field is ``key``. The first call reads all lines to index them."""
        hashes, starts = self._line_index
        first, last = (np.searchsorted(hashes, hash(key), side) for side in ("left", "right"))
        yield from (fields for fields in map(self._split_line, starts[first:last]) if fields[:1] == [key])

    @cached_property
    def _line_index(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Hashes of the first fields of all lines, sorted, and the offsets of their lines."""
        firsts = (self._split_line(start)[:1] for start in self._starts)
        hashes = np.fromiter((hash(first[0]) if first else 0 for first in firsts), np.int64, len(self._starts))
        order = np.argsort(hashes, kind="stable")
        return hashes[order], self._starts[order]

    def _split_line(self, start: int) -> list[str]:
        """Splits the line at an offset into fields without white space around them."""
        end = self._data.find(b"\n", start)
        line = self._data[start : end if end >= 0 else None].decode("utf-8", "surrogateescape")
        fields = line.split()
        if fields and self._separator is not None:
            fields = [field.strip() for field in line.rstrip("\r").split(self._separator)]
        if "\0" in line or (".." in line and any(".." in field.split("/") for field in fields)):
            shown = printable(" ".join(fields)[:_SHOWN])
            raise SourceError(f"{self.name} has the line {shown!r}; expected paths within the source")
        return fields
