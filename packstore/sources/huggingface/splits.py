"""Which files of a folder make up which split, as ``datasets`` finds out (``datasets/data_files.py``).

A card decides; else names such as ``data/train-00000-of-00002.parquet``; else the words in :data:`_WORDS`, in the names
of folders or of files.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from packstore.core.errors import SourceError, printable
from packstore.sources.archives import open_tree
from packstore.sources.huggingface.card import Card
from packstore.sources.ignoring import is_ignored

_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHARD = re.compile(r"(\w+(?:\.\w+)*)-(\d{5})-of-(\d{5})[^/]*\.[^/]*")
_NEAR = "[-._ 0-9]"
IN_FOLDER = {
    split: [pattern for word in words for pattern in (
        f"**/{word}/**", f"**/{word}{_NEAR}*/**", f"**/*{_NEAR}{word}/**", f"**/*{_NEAR}{word}{_NEAR}*/**",
    )]
    for split, words in _WORDS.items()
}  # fmt: skip
"""Patterns of the files of each split, by words in the names of folders."""
IN_NAME = {
    split: [pattern for word in words for pattern in (f"**/{word}{_NEAR}*", f"**/*{_NEAR}{word}{_NEAR}*")]
    for split, words in _WORDS.items()
}
"""Likewise, by words in the names of files."""


def folder_files(path: Path) -> Iterator[str]:
    """The files in a folder and below, by their paths from it on, sorted within each folder; without those that are
    hidden or in folders such as ``__pycache__``."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        names = sorted(_names(path / folder))
        prefix = f"{folder}/" if folder else ""
        yield from (prefix + name for name, is_folder in names if not is_folder)
        waiting += [prefix + name for name, is_folder in reversed(names) if is_folder]


def files_ending(path: Path, *suffixes: str) -> list[str]:
    """The files of some suffixes that :func:`folder_files` lists, up to three levels below the folder."""
    tree = open_tree(path)
    if tree is None:
        return []
    found: list[str] = []
    folders = [""]
    for _ in range(4):
        below: list[str] = []
        for folder in folders:
            names, prefix = tree.names(folder), f"{folder}/" if folder else ""
            found += [prefix + name for name in names.ending(*suffixes) if name[0] != "."]
            below += [prefix + name for name in names.folders if not name.startswith((".", "__"))]
        folders = below
    return sorted(found)


def files_by_split(path: Path | str, names: Sequence[str], card: Card) -> dict[str, list[str]]:
    """The files of each split in order; one split, ``""``, where nothing tells any.

    Raises :class:`SourceError` for a file of two splits, and for a card that names none of the files."""
    if card.data_files is not None:
        found = _by_patterns(names, card.data_files)
        empty = next((split for split, files in found.items() if not files), None)
        if empty is not None:
            wanted = ", ".join(map(printable, card.data_files[empty]))
            raise SourceError(
                f"{printable(str(path))}: no file is {wanted}, which its card has for {printable(empty)!r}"
            )
    else:
        found = _by_shards([name for name in names if re.fullmatch(r"data/[^/]*", name)])
        found = found or _by_shards(names, all_of_them=True)
        found = found or _by_patterns(names, IN_FOLDER) or _by_patterns(names, IN_NAME) or {"": list(names)}
    for name, count in Counter(name for files in found.values() for name in files).items():
        if count > 1:
            twice = " and ".join(printable(split) for split, files in found.items() if name in files)
            raise SourceError(f"{printable(str(path))}: {printable(name)} is of {twice} by its name: rename it")
    return {split: sorted(files) for split, files in found.items() if files}


def check_whole(path: Path, names: Sequence[str]) -> None:
    """Raises :class:`SourceError` where files such as ``train-00001-of-00002.parquet`` are missing."""
    there: dict[tuple[str, str, str], set[int]] = {}
    for name in names:
        folder, _, base = name.rpartition("/")
        shard = _SHARD.fullmatch(base)
        if shard is not None:
            there.setdefault((folder, shard[1], shard[3]), set()).add(int(shard[2]))
    for (folder, split, total), numbers in there.items():
        missing = int(total) - len(numbers)
        if missing > 0:
            first = next(number for number in range(int(total)) if number not in numbers)
            prefix = f"{folder}/" if folder else ""
            raise SourceError(
                f"{printable(str(path))}: {missing} of {int(total)} files {printable(prefix + split)}-…-of-{total} are "
                f"missing, first number {first:05}: download them, or give the files that there are one by one"
            )


def matches(pattern: str, name: str) -> bool:
    """Whether the path of a file is one that a pattern stands for; ``**`` stands for any number of folders."""
    parts, inside = pattern.removeprefix("./").split("/"), name.split("/")
    places = {0}  # in ``inside``, where what the parts so far stand for may end
    for part in parts[:-1]:
        if part == "**":
            places = set(range(min(places, default=len(inside)), len(inside)))
        else:
            places = {place + 1 for place in places if place < len(inside) and fnmatchcase(inside[place], part)}
    if parts[-1] == "**":
        return any(place < len(inside) for place in places)
    return len(inside) - 1 in places and fnmatchcase(inside[-1], parts[-1])


def _names(folder: Path) -> Iterator[tuple[str, bool]]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                hidden = entry.name[0] == "." or (is_folder and entry.name.startswith("__"))
                if not hidden and not is_ignored(folder / entry.name):
                    yield entry.name, is_folder
    except OSError as error:
        raise SourceError(f"{printable(str(folder))} cannot be listed: {error.strerror or error}") from None


def _by_shards(names: Sequence[str], *, all_of_them: bool = False) -> dict[str, list[str]]:
    """By names such as ``train-00000-of-00002.parquet``; none unless, if so asked, all are such names."""
    found: dict[str, list[str]] = {}
    for name in names:
        shard = _SHARD.fullmatch(name.rpartition("/")[2])
        if shard is not None:
            found.setdefault(shard[1], []).append(name)
        elif all_of_them:
            return {}
    return found


def _by_patterns(names: Sequence[str], patterns: dict[str, list[str]]) -> dict[str, list[str]]:
    found = {
        split: [name for name in names if any(matches(pattern, name) for pattern in its)]
        for split, its in patterns.items()
    }
    return found if any(found.values()) else {}
