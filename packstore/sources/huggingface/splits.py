"""Splits of the files in a folder, by the rules of ``datasets`` (``datasets/data_files.py``), and the card.

The card decides: the YAML at the head of ``README.md``, which also names classes
(https://huggingface.co/docs/hub/datasets-manual-configuration). Else names such as
``data/train-00000-of-00002.parquet``; else the words in :data:`_WORDS`, in the names of folders or of files.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.yamltext import is_yaml_bool, is_yaml_null, load_yaml, parse_yaml_int
from packstore.sources.beside import join
from packstore.sources.ignoring import is_ignored
from packstore.sources.tree import Tree

CARD = "README.md"
_MAX_BYTES, _LEVELS, _SHOWN = 8 << 20, 4, 8
_HEAD = re.compile(rb"\A(?:\xef\xbb\xbf)?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_BEGIN = re.compile(rb"\A(?:\xef\xbb\xbf)?---[ \t]*\r?\n")
_PATTERN = re.compile(r"[*?[]")
_RELEVANT = re.compile(rb"^(configs|dataset_info)\s*:", re.MULTILINE)
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHARD = re.compile(r"(\w+(?:\.\w+)*)-(\d{5})-of-(\d{5})[^/]*\.[^/]*")
_SPLIT_OF_WORD = {word: split for split, words in _WORDS.items() for word in words}
_BETWEEN = re.compile("[-._ 0-9/]+")

FindSplits = Callable[[str], tuple[str, ...]]
"""Function that returns all splits of a file by its path."""


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

    Raises :class:`SourceError` if its head is malformed or longer than 8 MiB. Raises :class:`AmbiguousSourceError` for
    several configurations without a default.
    """
    try:
        return parse_card(tree.first_bytes(CARD, _MAX_BYTES), path)
    except AmbiguousSourceError:
        raise
    except ValueError as error:
        raise SourceError(f"{tree.name(CARD)}: its head {error}") from error


def parse_card(data: bytes, folder: Path) -> Card:
    """Parses the settings of a card's default configuration. Returns an empty card if its head states no data files and
    no features.

    ``folder``: the card's folder, for errors. Raises :class:`ValueError` for a malformed head. Raises
    :class:`AmbiguousSourceError` for several configurations without a default.
    """
    head = _HEAD.match(data)
    if head is None and len(data) >= _MAX_BYTES and _BEGIN.match(data):
        raise ValueError(f"has no end within {_MAX_BYTES:,} bytes")
    if head is None or _RELEVANT.search(head[1]) is None:
        return Card()
    content = load_yaml(head[1])
    if not isinstance(content, dict):
        raise ValueError("is no mapping")
    configs = _read_mappings(content.get("configs"), "configs")
    chosen = _choose_config(configs, folder)
    name = chosen.get("config_name", "default")
    infos = _read_mappings(content.get("dataset_info"), "dataset_info")
    named = [info for info in infos if info.get("config_name", "default") == name]
    info = named[0] if named else infos[0] if len(infos) == 1 and not configs else {}
    drop_labels = chosen.get("drop_labels")
    return Card(
        _read_data_files(chosen.get("data_files"), chosen.get("data_dir")),
        _read_features(info.get("features")),
        next((known for known in (True, False) if is_yaml_bool(drop_labels, known)), None),
    )


def _read_mappings(value: Any, name: str) -> list[dict[str, Any]]:
    """Returns the mappings in a member: none, one, or a list. Raises :class:`ValueError` for anything else."""
    mappings = value if isinstance(value, list) else [] if is_yaml_null(value) else [value]
    if not all(isinstance(each, dict) for each in mappings):
        raise ValueError(f"has {name} that are no mappings")
    return mappings


def _choose_config(configs: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Returns the configuration that ``datasets`` loads by default: the only one, or the one that is marked or named as
    the default.

    Returns an empty one if there are none. Raises :class:`AmbiguousSourceError` for several without a default.
    """
    names = [str(config.get("config_name")) for config in configs]
    if len(configs) < 2:
        return configs[0] if configs else {}
    for config, name in zip(configs, names, strict=True):
        if is_yaml_bool(config.get("default"), True) or name == "default":
            return config
    some = ", ".join(map(printable, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")
    raise AmbiguousSourceError(
        f"{printable(str(folder))} has {len(configs)} configurations ({some}), none of them the default: "
        "give the folder or the files of one",
        [Answer(source=place) for config in configs[:_SHOWN] if (place := _config_folder(config, folder)) is not None],
    )


def _config_folder(config: dict[str, Any], folder: Path) -> Path | None:
    """Returns the folder that holds all files of a configuration.

    Returns None if that is the folder of the card, or does not exist. Returns None also for a malformed configuration.
    """
    try:
        files = _read_data_files(config.get("data_files"), config.get("data_dir"))
    except ValueError:
        return None
    patterns = [pattern for its in (files or {}).values() for pattern in its]
    parts = [takewhile(lambda part: not _PATTERN.search(part), pattern.split("/")[:-1]) for pattern in patterns]
    common = os.path.commonpath(["/".join(each) or "." for each in parts]) if parts else "."
    place = folder / common
    return place if common not in ("", ".") and place.is_dir() else None


def _read_data_files(value: Any, data_dir: Any) -> dict[str, list[str]] | None:
    """Reads the patterns of each split (``datasets.data_files.sanitize_patterns``). Patterns without a split belong to
    ``train``.

    Without patterns, takes all files of ``data_dir`` as ``train``. Returns None if both are missing. Raises
    :class:`ValueError` for malformed entries, and for patterns that lead out of the folder.
    """
    data_dir = None if is_yaml_null(data_dir) else data_dir
    if is_yaml_null(value):
        return None if data_dir is None else {"train": [_prefix_data_dir(f"{data_dir}/**", None)]}
    entries = value if isinstance(value, list) else [value]
    by_split: dict[str, list[str]] = {}
    for entry in entries:
        split, paths = (entry.get("split"), entry.get("path")) if isinstance(entry, dict) else ("train", entry)
        patterns = paths if isinstance(paths, list) else [paths]
        good = all(isinstance(pattern, str) for pattern in patterns)
        if not isinstance(split, str) or not good or (isinstance(entry, dict) and split in by_split):
            raise ValueError(f"has data_files without split and path: {printable(repr(entry))[:100]}")
        by_split.setdefault(split, []).extend(_prefix_data_dir(pattern, data_dir) for pattern in patterns)
    return by_split


def _prefix_data_dir(pattern: Any, data_dir: Any) -> str:
    """Puts ``data_dir`` before a pattern, unless the pattern begins with it. Does nothing if ``data_dir`` is no text.

    Raises :class:`ValueError` for a URL, and for a pattern that leads out of the card's folder.
    """
    if "://" in pattern or pattern.startswith("/") or ".." in pattern.split("/"):
        raise ValueError(f"has data_files outside its folder: {printable(pattern)[:100]}")
    return (
        f"{data_dir.strip('/')}/{pattern}"
        if isinstance(data_dir, str) and not pattern.startswith(data_dir)
        else pattern
    )


def _read_features(value: Any) -> dict[str, Any]:
    """Converts the list of features in a card (``datasets.Features._to_yaml_list``) to the form that Parquet schemas
    have.

    Skips features other than images, files and classes. Raises :class:`ValueError` for classes that are not numbered
    from 0.
    """
    features = {}
    for each in value if isinstance(value, list) else []:
        if isinstance(each, dict) and isinstance(each.get("name"), str):
            feature = _read_feature(each)
            if feature is not None:
                features[each["name"]] = feature
    return features


def _read_feature(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """Converts a feature of an image, another file or a class, or a list of such. Returns None for other features.

    Raises :class:`ValueError` for classes that are not numbered from 0.
    """
    inner = next((item[name] for name in ("list", "sequence", "large_list") if name in item), None)
    if inner is not None:
        feature = _read_feature(inner if isinstance(inner, dict) else {"dtype": inner})
        return None if feature is None else {"_type": "List", "feature": feature}
    dtype = item.get("dtype", item)
    if isinstance(dtype, str):
        kind = {"image": "Image", "audio": "Audio", "video": "Video", "pdf": "Pdf", "nifti": "Nifti"}.get(dtype)
        return None if kind is None else {"_type": kind}
    label = dtype.get("class_label") if isinstance(dtype, dict) else None
    names = label.get("names") if isinstance(label, dict) else None
    if isinstance(names, dict):
        by_number = {parse_yaml_int(number): name for number, name in names.items()}
        if by_number.keys() != {*range(len(names))}:
            raise ValueError("has names of classes that are not numbered from 0")
        names = [by_number[number] for number in range(len(names))]
    if isinstance(names, list) and not all(isinstance(name, str) for name in names):
        raise ValueError("has names of classes that are no texts")
    return {"_type": "ClassLabel", "names": names} if isinstance(names, list) else None


def list_folder_files(path: Path) -> Iterator[str]:
    """Yields the relative paths of the files in a folder and below, sorted within each folder. Follows no links to
    folders.

    Leaves out hidden and ignored files, and folders such as ``__pycache__``. Raises :class:`SourceError` if a folder
    cannot be listed.
    """

    def refuse(error: OSError) -> None:
        raise SourceError(f"{printable(str(error.filename))} cannot be listed: {error.strerror or error}") from None

    for folder, folders, files in os.walk(path, onerror=refuse):
        place = Path(folder)
        folders[:] = sorted(each for each in folders if not _is_special(each) and not is_ignored(place / each))
        for name in sorted(files):
            if name[0] != "." and not is_ignored(place / name):
                yield (place / name).relative_to(path).as_posix()


def list_upper_files(tree: Tree, *suffixes: str) -> Iterator[str]:
    """Yields the files of some suffixes in the upper four levels of folders, those near the top first.

    Leaves out hidden files, and folders such as ``__pycache__``.
    """
    folders = [""]
    for _ in range(_LEVELS):
        below: list[str] = []
        for folder in folders:
            names = tree.names(folder)
            below += [join(folder, name) for name in names.folders if not _is_special(name)]
            yield from (join(folder, name) for name in names.ending(*suffixes) if name[0] != ".")
        folders = below


def _is_special(folder: str) -> bool:
    """Tells if a folder is hidden, or like ``__pycache__``."""
    return folder.startswith((".", "__"))


def group_by_split(path: Path | str, names: Sequence[str], card: Card) -> dict[str, list[str]]:
    """Groups the names of files by split. The card decides, or else words in the names. If neither does, the split of
    all is ``""``.

    Leaves out files that match no pattern. Raises :class:`SourceError` for a file of two splits, and for a split of the
    card without files.
    """
    if card.data_files is not None:
        groups = _group_names(names, card.find_splits)
        empty = next((split for split in card.data_files if split not in groups), None)
        if empty is not None:
            wanted = ", ".join(map(printable, card.data_files[empty]))
            raise SourceError(
                f"{printable(str(path))}: no file matches {wanted}, the pattern in its card for {printable(empty)!r}"
            )
    else:
        shards = _group_names(names, _find_split_of_shard)
        groups = (
            _group_names([name for name in names if re.fullmatch(r"data/[^/]*", name)], _find_split_of_shard)
            or (shards if sum(map(len, shards.values())) == len(names) else {})
            or _group_names(names, find_splits_of_folder)
            or _group_names(names, find_splits_of_name)
            or {"": list(names)}
        )
    for name, count in Counter(name for files in groups.values() for name in files).items():
        if count > 1:
            twice = " and ".join(printable(split) for split, files in groups.items() if name in files)
            raise SourceError(
                f"{printable(str(path))}: the name of {printable(name)} fits the splits {twice}: rename it"
            )
    return {split: sorted(files) for split, files in groups.items()}


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


def choose_words(list_files: Callable[[], Iterable[str]], shown: str, path: Path) -> FindSplits | None:
    """Chooses the function that gives each file exactly one split: by words in the names of folders, or else of files.

    Returns None if neither does. Raises :class:`AmbiguousSourceError` if words in the names of folders give only some
    files exactly one split.

    Args:
        list_files: Lists the paths of all files.
        shown: Name of the source, for messages.
        path: Path of the source.
    """
    for find in (find_splits_of_folder, find_splits_of_name):
        examples: dict[int, str] = {}
        for file in list_files():
            examples.setdefault(len(find(file)), file)
        if examples.keys() == {1}:
            return find
        if find is find_splits_of_folder and examples.keys() != {0}:
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
    """Returns the split in a name such as ``train-00000-of-00002.parquet``; ``()`` for other names."""
    shard = _SHARD.fullmatch(name.rpartition("/")[2])
    return () if shard is None else (shard[1],)


def _group_names(names: Sequence[str], find: FindSplits) -> dict[str, list[str]]:
    """Groups the names of files by split. Leaves out names without a split."""
    groups: dict[str, list[str]] = {}
    for name in names:
        for split in find(name):
            groups.setdefault(split, []).append(name)
    return groups
