"""Card of a dataset: the YAML at the head of ``README.md``, with its splits and the names of its classes.

https://huggingface.co/docs/hub/datasets-manual-configuration
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.yamltext import is_yaml_bool, is_yaml_null, load_yaml, parse_yaml_int

CARD = "README.md"
_MAX_BYTES = 8 << 20
_HEAD = re.compile(rb"\A(?:\xef\xbb\xbf)?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_BEGIN = re.compile(rb"\A(?:\xef\xbb\xbf)?---[ \t]*\r?\n")
_PATTERN = re.compile(r"[*?[]")
_SHOWN = 8
_RELEVANT = re.compile(rb"^(configs|dataset_info)\s*:", re.MULTILINE)


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


def read_card(folder: Path) -> Card:
    """Reads the dataset card, ``README.md``, in a folder. Returns an empty card if the folder has no card.

    Raises :class:`SourceError` if the card cannot be read, or if its head is malformed or longer than 8 MiB. Raises
    :class:`AmbiguousSourceError` for several configurations without a default.
    """
    path = folder / CARD
    if not path.is_file():
        return Card()
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES)
        return parse_card(data, folder)
    except AmbiguousSourceError:
        raise
    except (OSError, ValueError) as error:
        raise SourceError(f"{printable(str(path))}: its head {error}") from error


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
