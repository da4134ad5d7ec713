"""Splits of the files in a folder, by the rules of ``datasets`` (``datasets/data_files.py``), and the card.

The card decides: the YAML at the head of ``README.md``, which also names classes
(https://huggingface.co/docs/hub/datasets-manual-configuration). Else names such as
``data/train-00000-of-00002.parquet``; else the words in :data:`_WORDS`, in the names of folders or of files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, join_names, printable
from packstore.sources.beside import join
from packstore.sources.tree import Tree
from packstore.sources.yamltext import is_yaml_bool, is_yaml_null, load_yaml, parse_yaml_int
from packstore.stores.export_manifest import stays_in_folder

CARD = "README.md"
# Levels of folders that are searched to recognise a folder.
LEVELS = 4
_MAX_BYTES, _SHOWN = 8 << 20, 8
_HEAD = re.compile(rb"\A(?:\xef\xbb\xbf)?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_RELEVANT = re.compile(rb"^(configs|dataset_info)\s*:", re.MULTILINE)
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHARD = re.compile(r"data/(\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_SPLIT_OF_WORD = {word: split for split, words in _WORDS.items() for word in words}
_BETWEEN = re.compile("[-._ 0-9/]+")
# Types of features that are files, by their names in cards.
_FILES = {"image": "Image", "audio": "Audio", "video": "Video", "pdf": "Pdf", "nifti": "Nifti"}

# Function that returns all splits of a file by its path.
FindSplits = Callable[[str], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Card:
    """Settings in the head of a dataset card: the ``README.md`` of a dataset of the Hugging Face Hub.

    Attributes:
        data_files: Patterns of the files of each split; None if the card states none.
        features: Features of the columns of images, other files and classes; other columns are left out.
        drop_labels: True if names of folders are no classes, False if they are; None if the card states neither.
    """

    data_files: dict[str, list[str]] | None = None
    features: Mapping[str, Any] = field(default_factory=dict)
    drop_labels: bool | None = None

    def find_splits(self, file: str) -> tuple[str, ...]:
        """Returns all splits whose patterns match the path of a file."""
        patterns = (self.data_files or {}).items()
        return tuple(split for split, its in patterns if any(matches_pattern(pattern, file) for pattern in its))


def read_card(tree: Tree, path: Path) -> Card:
    """Reads the dataset card, ``README.md``, of a tree at a path. Returns an empty card if there is none.

    Raises :class:`SourceError` if its head is malformed. Raises :class:`AmbiguousSourceError` for several
    configurations without a default.
    """
    try:
        return _parse_card(tree.first_bytes(CARD, _MAX_BYTES), path)
    except AmbiguousSourceError:
        raise
    except ValueError as error:
        raise SourceError(f"{tree.name(CARD)}: its head {error}") from error


def _parse_card(data: bytes, folder: Path) -> Card:
    """Parses the settings of a card's default configuration; empty ones if its head states nothing relevant."""
    head = _HEAD.match(data)
    if head is None or _RELEVANT.search(head[1]) is None:
        return Card()
    content = load_yaml(head[1])
    if not isinstance(content, dict):
        raise ValueError("is no mapping")
    configs = _read_mappings(content, "configs")
    chosen = _choose_config(configs, folder)
    name = chosen.get("config_name", "default")
    infos = _read_mappings(content, "dataset_info")
    named = [info for info in infos if info.get("config_name", "default") == name]
    info = named[0] if named else infos[0] if len(infos) == 1 and not configs else {}
    drop_labels = chosen.get("drop_labels")
    return Card(
        _read_data_files(chosen),
        _read_features(info.get("features")),
        next((known for known in (True, False) if is_yaml_bool(drop_labels, known)), None),
    )


def _read_mappings(content: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Returns the mappings in a member: none, one, or a list."""
    value: Any = content.get(name)
    mappings: list[Any] = value if isinstance(value, list) else [] if is_yaml_null(value) else [value]
    if not all(isinstance(each, dict) for each in mappings):
        raise ValueError(f"has {name} that are no mappings")
    return mappings


def _choose_config(configs: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Returns the configuration that ``datasets`` loads by default; an empty one if there are none."""
    names = [str(config.get("config_name")) for config in configs]
    if len(configs) < 2:
        return configs[0] if configs else {}
    for config, name in zip(configs, names, strict=True):
        if is_yaml_bool(config.get("default"), True) or name == "default":
            return config
    raise AmbiguousSourceError(
        f"{printable(str(folder))} has {len(configs)} configurations ({join_names(names, _SHOWN)}), none of "
        "them the default: give the folder or the files of one",
        [Answer(source=folder / name) for name in names[:_SHOWN] if stays_in_folder(name) and (folder / name).is_dir()],
    )


def _read_data_files(config: Mapping[str, Any]) -> dict[str, list[str]] | None:
    """Reads the patterns of each split; None if a configuration names no files."""
    value, data_dir = config.get("data_files"), config.get("data_dir")
    prefix = "" if is_yaml_null(data_dir) else f"{str(data_dir).strip('/')}/"
    if is_yaml_null(value):
        if not prefix:
            return None
        # A ``data_dir`` alone means all its files.
        value = "**"
    by_split: dict[str, list[str]] = {}
    for entry in value if isinstance(value, list) else [value]:
        # Patterns without a split are ``train``.
        given = entry if isinstance(entry, dict) else {"split": "train", "path": entry}
        split: Any = given.get("split")
        paths: Any = given.get("path")
        for path in paths if isinstance(paths, list) else [paths]:
            pattern = str(path) if str(path).startswith(prefix) else f"{prefix}{path}"
            is_text = isinstance(split, str) and isinstance(path, str)
            if not is_text or not stays_in_folder(pattern.removeprefix("./")):
                raise ValueError(f"has data_files without split and path in its folder: {printable(repr(entry))[:100]}")
            by_split.setdefault(split, []).append(pattern)
    return by_split


def _read_features(value: Any) -> dict[str, Any]:
    """Converts the features of files and classes in a card to the form that Parquet schemas have."""
    features: dict[str, Any] = {}
    for each in value if isinstance(value, list) else []:
        name, dtype = (each.get("name"), each.get("dtype")) if isinstance(each, dict) else (None, None)
        label = dtype.get("class_label") if isinstance(dtype, dict) else None
        if isinstance(label, dict):
            features[str(name)] = {"_type": "ClassLabel", "names": _read_class_names(label.get("names"))}
        elif isinstance(dtype, str) and dtype in _FILES:
            features[str(name)] = {"_type": _FILES[dtype]}
    return features


def _read_class_names(names: Any) -> list[str]:
    """Returns the names of classes in a list, or in a mapping by number."""
    if isinstance(names, dict):
        by_number = {parse_yaml_int(number): name for number, name in names.items()}
        names = [by_number.get(number) for number in range(len(names))]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("has classes that are no texts numbered from 0")
    return names


def list_files(tree: Tree, *suffixes: str, levels: int | None = None) -> Iterator[str]:
    """Yields the files of some suffixes, those near the top first; only those in the upper ``levels`` of folders.

    Leaves out hidden files, and folders such as ``__pycache__``.
    """
    for folder, names in tree.folders(lambda name: name.startswith((".", "__"))):
        if levels is not None and folder and folder.count("/") + 1 >= levels:
            return
        yield from (join(folder, name) for name in names.ending(*suffixes) if name[0] != ".")


def group_by_split(tree: Tree, names: Collection[str], card: Card) -> dict[str, list[str]]:
    """Groups the names of files by split. The card decides, or else their names. If neither does, the split of all is
    ``""``.

    Leaves out files of no split. Raises :class:`SourceError` for a file of two splits, and for a split of the card
    without files.
    """
    if card.data_files is not None:
        find: FindSplits = card.find_splits
    elif any(map(_SHARD.fullmatch, names)):
        find = _find_split_of_shard
    else:
        find = choose_words(names) or (lambda name: ("",))
    groups: dict[str, list[str]] = {split: [] for split in card.data_files or ()}
    for name in sorted(names):
        split = find_only_split(tree, name, find)
        if split is not None:
            groups.setdefault(split, []).append(name)
    empty = next((split for split, files in groups.items() if not files), None)
    if empty is not None:
        raise SourceError(f"{tree.name()}: no file matches the patterns in its card for {printable(empty)!r}")
    return groups


def find_only_split(tree: Tree, file: str, find: FindSplits) -> str | None:
    """Returns the split of a file; None for none. Raises :class:`SourceError` for several."""
    splits = find(file)
    if len(splits) > 1:
        raise SourceError(f"{tree.name(file)} is of several splits: {' and '.join(map(printable, splits))}")
    return splits[0] if splits else None


def choose_words(files: Collection[str]) -> FindSplits | None:
    """Chooses the function that finds splits by words: in the names of folders, or else in the names of files.
    Returns None if no file has one either.
    """
    return next((find for find in (find_splits_of_folder, find_splits_of_name) if any(map(find, files))), None)


def find_splits_of_folder(file: str) -> tuple[str, ...]:
    """Returns all splits that words in the names of a file's folders mean."""
    return _find_words(file.rpartition("/")[0])


def find_splits_of_name(file: str) -> tuple[str, ...]:
    """Returns all splits that words in the name of a file mean."""
    return _find_words(file.rpartition("/")[2])


@lru_cache(1 << 12)
def _find_words(text: str) -> tuple[str, ...]:
    """Returns all splits that words in a text mean, in the order of :data:`_WORDS`."""
    found = {_SPLIT_OF_WORD.get(word) for word in _BETWEEN.split(text)}
    return tuple(split for split in _WORDS if split in found)


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


def _find_split_of_shard(name: str) -> tuple[str, ...]:
    """Returns the split in a name such as ``data/train-00000-of-00002.parquet``; ``()`` for other names."""
    shard = _SHARD.fullmatch(name)
    return () if shard is None else (shard[1],)
