"""Splits of the files in a folder, by the rules of ``datasets`` (``datasets/data_files.py``).

A card decides; else names such as ``data/train-00000-of-00002.parquet``; else the words in :data:`_WORDS`, in the names
of folders or of files.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
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
_SHOWN = 8

Patterns = Mapping[str, Sequence[str]]
"""Patterns of the files of each split."""
IN_FOLDER: Patterns = {
    split: [pattern for word in words for pattern in (
        f"**/{word}/**", f"**/{word}{_NEAR}*/**", f"**/*{_NEAR}{word}/**", f"**/*{_NEAR}{word}{_NEAR}*/**",
    )]
    for split, words in _WORDS.items()
}  # fmt: skip
"""Patterns of the files of each split: a word in the name of a folder."""
IN_NAME: Patterns = {
    split: [pattern for word in words for pattern in (f"**/{word}{_NEAR}*", f"**/*{_NEAR}{word}{_NEAR}*")]
    for split, words in _WORDS.items()
}
"""Patterns of the files of each split: a word in the name of the file."""


def list_folder_files(path: Path) -> Iterator[str]:
    """Yields the relative paths of the files in a folder and below, sorted within each folder. Links to folders count
    as files.

    Leaves out hidden and ignored files, and folders such as ``__pycache__``. Raises :class:`SourceError` if a folder
    cannot be listed.
    """
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        names = sorted(_list_visible(path / folder))
        prefix = f"{folder}/" if folder else ""
        yield from (prefix + name for name, is_folder in names if not is_folder)
        waiting += [prefix + name for name, is_folder in reversed(names) if is_folder]


def list_files_ending(path: Path, *suffixes: str) -> list[str]:
    """Returns the sorted relative paths of files with some suffixes in a folder or archive.

    Looks at most three levels deep. Leaves out hidden files, and folders such as ``__pycache__``. Returns an empty list
    for any other path.
    """
    tree = open_tree(path)
    if tree is None:
        return []
    files: list[str] = []
    folders = [""]
    for _ in range(4):
        below: list[str] = []
        for folder in folders:
            names, prefix = tree.names(folder), f"{folder}/" if folder else ""
            files += [prefix + name for name in names.ending(*suffixes) if name[0] != "."]
            below += [prefix + name for name in names.folders if not name.startswith((".", "__"))]
        folders = below
    return sorted(files)


def group_by_split(path: Path | str, names: Sequence[str], card: Card) -> dict[str, list[str]]:
    """Groups the names of files by split. The card decides, or else words in the names. If neither does, the split of
    all is ``""``.

    Leaves out files that match no pattern. Raises :class:`SourceError` for a file of two splits, and for a split of the
    card without files.
    """
    if card.data_files is not None:
        groups = _group_by_patterns(names, card.data_files)
        empty = next((split for split, files in groups.items() if not files), None)
        if empty is not None:
            wanted = ", ".join(map(printable, card.data_files[empty]))
            raise SourceError(
                f"{printable(str(path))}: no file matches {wanted}, the pattern in its card for {printable(empty)!r}"
            )
    else:
        groups = _group_by_shard_names([name for name in names if re.fullmatch(r"data/[^/]*", name)])
        groups = groups or _group_by_shard_names(names, all_of_them=True)
        groups = (
            groups or _group_by_patterns(names, IN_FOLDER) or _group_by_patterns(names, IN_NAME) or {"": list(names)}
        )
    for name, count in Counter(name for files in groups.values() for name in files).items():
        if count > 1:
            twice = " and ".join(printable(split) for split, files in groups.items() if name in files)
            raise SourceError(
                f"{printable(str(path))}: the name of {printable(name)} fits the splits {twice}: rename it"
            )
    return {split: sorted(files) for split, files in groups.items() if files}


def refuse_missing_shards(path: Path, names: Sequence[str]) -> None:
    """Raises :class:`SourceError` for fewer shards than their names state, such as ``train-00001-of-00002.parquet``
    alone."""
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
                f"missing, first number {first:05}: download them, or give each of the existing files by itself"
            )


def choose_word_patterns(list_files: Callable[[], Iterable[str]], shown: str, path: Path) -> Patterns | None:
    """Chooses the patterns that give each file exactly one split. These are words in the names of folders, or else of
    files.

    Returns None if neither do. Raises :class:`AmbiguousSourceError` if words in the names of folders give only some
    files exactly one split.

    Args:
        list_files: Lists the paths of all files.
        shown: Name of the source, for messages.
        path: Path of the source.
    """
    for patterns in (IN_FOLDER, IN_NAME):
        examples: dict[int, str] = {}
        for file in list_files():
            examples.setdefault(len(find_splits(file, patterns)), file)
        if examples.keys() == {1}:
            return patterns
        if patterns is IN_FOLDER and examples.keys() != {0}:
            one = examples.get(0) or examples[max(examples)]
            tops = sorted({file.partition("/")[0] for file in list_files() if "/" in file})
            raise AmbiguousSourceError(
                f"{shown}: folders tell the split of some images, but {printable(one)} is of "
                f"{'none' if 0 in examples else 'several'}: name the files of each split in the card's data_files, "
                "or give one of the folders",
                [Answer(source=path / top) for top in tops[:_SHOWN] if path.is_dir()],
                path,
            )
    return None


def find_splits(file: str, patterns: Patterns) -> tuple[str, ...]:
    """Returns all splits whose patterns match the path of a file."""
    if patterns is IN_FOLDER:
        return _find_splits_of_folder(file.rpartition("/")[0])
    return tuple(split for split, its in patterns.items() if any(matches_pattern(pattern, file) for pattern in its))


@lru_cache(1 << 12)
def _find_splits_of_folder(folder: str) -> tuple[str, ...]:
    """Returns all splits whose patterns in :data:`IN_FOLDER` match the files in a folder."""
    return tuple(
        split for split, its in IN_FOLDER.items() if any(matches_pattern(pattern, f"{folder}/x") for pattern in its)
    )


def matches_pattern(pattern: str, name: str) -> bool:
    """Tells if the path of a file matches a pattern. In it, ``**`` stands for any number of folders; at the end, for
    all files below."""
    parts, inside = pattern.removeprefix("./").split("/"), name.split("/")
    places = {0}  # indices in ``inside`` at which the parts of the pattern so far may end
    for part in parts[:-1]:
        if part == "**":
            places = set(range(min(places, default=len(inside)), len(inside)))
        else:
            places = {place + 1 for place in places if place < len(inside) and fnmatchcase(inside[place], part)}
    if parts[-1] == "**":
        return any(place < len(inside) for place in places)
    return len(inside) - 1 in places and fnmatchcase(inside[-1], parts[-1])


def _list_visible(folder: Path) -> Iterator[tuple[str, bool]]:
    """Yields the names in a folder that are not hidden or ignored, each with True for a folder. Links to folders count
    as files.

    Leaves out folders such as ``__pycache__``, too. Raises :class:`SourceError` if the folder cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                hidden = entry.name[0] == "." or (is_folder and entry.name.startswith("__"))
                if not hidden and not is_ignored(folder / entry.name):
                    yield entry.name, is_folder
    except OSError as error:
        raise SourceError(f"{printable(str(folder))} cannot be listed: {error.strerror or error}") from None


def _group_by_shard_names(names: Sequence[str], *, all_of_them: bool = False) -> dict[str, list[str]]:
    """Groups names such as ``train-00000-of-00002.parquet`` by split. Leaves out other names.

    ``all_of_them``: returns an empty mapping if there are other names.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        shard = _SHARD.fullmatch(name.rpartition("/")[2])
        if shard is not None:
            groups.setdefault(shard[1], []).append(name)
        elif all_of_them:
            return {}
    return groups


def _group_by_patterns(names: Sequence[str], patterns: Patterns) -> dict[str, list[str]]:
    """Groups names by the patterns of splits, empty splits included. Returns an empty mapping if no name matches."""
    groups = {
        split: [name for name in names if any(matches_pattern(pattern, name) for pattern in its)]
        for split, its in patterns.items()
    }
    return groups if any(groups.values()) else {}
