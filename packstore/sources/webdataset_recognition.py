"""Recognises tars whose files of one name are a sample."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from packstore.core.errors import SourceError
from packstore.core.registry import SOURCES
from packstore.sources.archives import open_tree
from packstore.sources.archives.tar import TAR_FAULTS, is_tar, read_first_names
from packstore.sources.base import Certainty, SourceOptions
from packstore.sources.beside import join
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.needs import PresentNames
from packstore.sources.records import find_shards
from packstore.sources.refusals import first_bytes
from packstore.sources.webdataset_files import LABELS, has_image, has_image_pair, is_hidden, split_key

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2")
_LOOKED_AT = 64
"""Number of files of the first shard that recognition reads."""
_LOOKED_AT_MOST = 1 << 16
"""Number of files that it reads if the first are no pairs."""
_CLASS_LISTS = frozenset(("classes", "labels/classes", "obj", "data/obj"))
"""Keys of YOLO's lists of classes: ``classes.txt``, ``obj.names``."""
_NUMBERED = re.compile(r"(^|[-_])\d{3,}([.]|$)")


def recognise_webdataset(path: Path, options: SourceOptions) -> Certainty:
    """Recognises tars by the first 64 files of the first tar, or by more if these are no pairs. A key is a file's path
    without its extensions.

    - ``CERTAIN``: at least half of the keys have an image and another known file. If the files are in several folders,
      each key must have a label: folders alone may be classes.
    - ``PARTIAL``: several numbered tars of images alone.
    - ``POSSIBLE``: a folder of tars of which the first is damaged. Also tars that :func:`find_shards` refuses.
    - ``NO``: anything else. Also a folder with images beside the tars, a tar of a kind with annotations beside each
      image (LabelMe), and a tar with YOLO's list of classes.
    """
    try:
        shards = find_shards(path, SUFFIXES).files
    except SourceError:
        return Certainty.POSSIBLE
    if not shards or not is_tar(first_bytes(shards[0][1], 512)):
        return Certainty.NO
    if path.is_dir() and any(name.lower().endswith(IMAGE_SUFFIXES) for name in os.listdir(path)):
        return Certainty.NO
    try:
        names = read_first_names(shards[0][1], _LOOKED_AT)
    except (*TAR_FAULTS, SourceError):
        return Certainty.POSSIBLE if path.is_dir() else Certainty.NO  # opening it reports what is wrong
    samples = _group_names(names)
    if not _are_mostly_pairs(samples) and len(names) == _LOOKED_AT:  # the files of a sample may lie apart
        samples = _group_names(_list_names(shards[0][1]))
    extensions = frozenset[str]().union(*samples.values())
    if path.is_file() and samples.keys() & _CLASS_LISTS:
        return Certainty.NO
    if path.is_file() and _is_of_sidecar_kind(path, options, extensions):
        return Certainty.NO
    pairs = any(map(has_image_pair, samples.values()))
    folders = {key.rpartition("/")[0] for key in samples}
    numbered = len(shards) > 1 and all(_NUMBERED.search(shard.name) for _, shard in shards)
    if numbered and samples and len(folders) == 1 and not pairs:
        return Certainty.PARTIAL if all(map(has_image, samples.values())) else Certainty.NO
    sure = len(folders) == 1 or all(each & LABELS for each in samples.values())
    return Certainty.CERTAIN if sure and _are_mostly_pairs(samples) else Certainty.NO


def _group_names(names: Iterable[str]) -> dict[str, set[str]]:
    """Groups names of files by key. Returns the extensions of each key."""
    samples: dict[str, set[str]] = {}
    for name in names:
        if not is_hidden(name):
            key, extension = split_key(name)
            samples.setdefault(key, set()).add(extension)
    return samples


def _are_mostly_pairs(samples: Mapping[str, set[str]]) -> bool:
    """Tells if at least half of the samples have an image and another known file."""
    return 2 * sum(map(has_image_pair, samples.values())) >= len(samples) > 0


def _list_names(shard: Path) -> Iterator[str]:
    """Yields the names of at most 65,536 files of a tar. Yields none if the tar cannot be read: opening it reports
    why."""
    try:
        tree = open_tree(shard)
    except SourceError:
        return
    paths = (
        (join(folder, name) for folder, names in tree.folders(is_passed_over) for name in names.files)
        if tree is not None
        else ()
    )
    yield from islice(paths, _LOOKED_AT_MOST)


def _is_of_sidecar_kind(path: Path, options: SourceOptions, extensions: frozenset[str]) -> bool:
    """Tells if an archive is certainly of a kind with annotations beside each image (LabelMe).

    ``extensions``: those in the archive. Kinds whose annotations have none of these extensions are not asked."""
    kinds = (kind for kind in SOURCES.values(PresentNames(path).may_be) if kind.sidecar_extensions & extensions)
    return any(kind.recognise(path, options) is Certainty.CERTAIN for kind in kinds)
