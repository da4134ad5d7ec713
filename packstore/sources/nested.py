"""Datasets within a folder that is none: what people download often lies a folder deeper, or in an archive."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from packstore.core.errors import PackstoreError
from packstore.sources.archives import open_tree
from packstore.sources.base import SPLIT_ORDER, Kind
from packstore.sources.ignoring import is_ignored
from packstore.sources.listing import is_image_name, is_passed_over
from packstore.sources.remote import RemotePath

_LOOKED_AT, _TRIED, _DEPTH = 256, 16, 3
_LIKE_SPLIT = re.compile(
    rf"({'|'.join(SPLIT_ORDER)}|unlabell?ed)([_-]?(\d+|images?|imgs?|data|set|[ab]))*|folds?[_-]?\d+"
)


def find_within(path: Path, certain: Callable[[Path], Kind | None]) -> list[tuple[Path, Kind]]:
    """What lies in a folder, or alone in a folder there, and is certain to be of a kind. A bounded look; ``certain``
    says what a path is, and may raise :class:`PackstoreError` for what is damaged."""
    found = []
    for place in _visible(path)[:_TRIED]:
        inside = place
        for _ in range(_DEPTH):
            try:
                kind = certain(inside)
            except PackstoreError:
                break
            if kind is not None:
                found.append((inside, kind))
                break
            further = _visible(inside)
            if len(further) != 1:
                break
            inside = further[0]
    return found


def only_folder(path: Path) -> Path | None:
    """The only folder in a folder, where that has no name of a split and holds folders and no images itself; beside it,
    there may be files that are no images."""
    folders = [place for place in _visible(path) if place.is_dir()]
    if len(folders) != 1 or folders[0].name.lower() in SPLIT_ORDER:
        return None
    inside = _visible(folders[0])
    bare = all(is_image_name(place.name) is not True for place in (*inside, *_visible(path)))
    return folders[0] if bare and any(place.is_dir() for place in inside) else None


def folders_like_splits(path: Path) -> list[str]:
    """The names of the folders in a folder or an archive, where all begin like those of splits (``train2017``,
    ``test_images``, ``trainA``) or are folds, and one at least is not that of a split; else none."""
    tree = open_tree(path)
    found = [] if tree is None else tree.names("")
    names = sorted(name for name, is_directory in found if is_directory and not is_passed_over(name))
    lower = [name.lower() for name in names]
    if all(map(_LIKE_SPLIT.fullmatch, lower)) and not all(name in SPLIT_ORDER for name in lower):
        return names
    return []


def _visible(path: Path) -> list[Path]:
    """Some of what lies in a folder, sorted, without what is hidden; nothing where it cannot be listed."""
    try:
        if isinstance(path, RemotePath):
            names = [place.name for place in islice(path.iterdir(), _LOOKED_AT)]
        else:
            with os.scandir(path) as entries:
                names = [entry.name for entry in islice(entries, _LOOKED_AT)]
    except OSError:
        return []
    return [path / name for name in sorted(names) if not is_passed_over(name) and not is_ignored(path / name)]
