"""Proposes answers to any question about a folder or archive; :mod:`.answers` tries them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from packstore.core.errors import AmbiguousSourceError, Answer, printable
from packstore.sources.annotations import find_image_companions, find_other_annotations
from packstore.sources.archives import open_tree
from packstore.sources.base import Kind, SourceOptions
from packstore.sources.beside import join
from packstore.sources.companion_patterns import PAIR, SIDECAR, Companion
from packstore.sources.contents import Contents, list_contents
from packstore.sources.ignoring import ignore_paths, ignore_patterns
from packstore.sources.pairing import NO_SIDECARS, find_companions
from packstore.sources.questions import PLAIN_KINDS, ask, join_phrases, name_splits
from packstore.sources.sidecars import tell_type
from packstore.sources.splits import MEANINGS, SPLIT_ORDER, find_split
from packstore.sources.tree import Tree

_NAMED, _TOPS, _TEXTS, _BYTES = 4, 8, 16, 1 << 16
_OWN = "original"
"""Name of the split of images beside a folder of their copies."""


def ask_about_companions(path: Path, plain: Kind, *kinds: Kind) -> AmbiguousSourceError:
    """Returns the question about files that seem to belong to images: to read them, to leave them out, to pack other
    forms of images as samples of the ``plain`` kind, or ``kinds``."""
    tree = open_tree(path)
    found = [] if tree is None else find_companions(tree)
    shown = ", ".join(f"{printable(each.phrase)} ({each.count} of {each.images})" for each in found[:_NAMED])
    ignored = Answer(ignore_patterns(dict.fromkeys(each.ignore for each in found)))
    suspects = [] if tree is None else find_other_annotations(tree)
    noted = f"; and holds {join_phrases(suspects)}" if suspects else ""
    samples = [plain] if any(each.option == PAIR for each in found) else []
    why = f"has files that seem to belong to its images by their names: {shown}{noted}"
    return ask(path, why, *_read_companions(found), ignored, *samples, *kinds)


def has_sidecars(tree: Tree) -> bool:
    """Tells if files other than images seem to belong to images."""
    return any(each.option == SIDECAR for each in find_companions(tree))


def propose(place: Path, tree: Tree, options: SourceOptions, alone: bool) -> Iterator[Answer]:
    """Yields answers, those that keep most first. With ``alone``, also to pack one of the folders alone."""
    contents = list_contents(tree)
    if not any(options.companions.values()):
        yield from _read_companions(find_companions(tree))
        yield from _read_sidecars(tree, contents)
    plain = () if find_image_companions(tree) else PLAIN_KINDS
    if not options.splits:
        yield from _name_splits(contents, bool(plain) and not find_other_annotations(tree))
        yield from _separate_copies(contents)
    if place.is_dir():
        yield from _use_labels(place, contents)
    yield from _choose_folders(place, contents, alone)
    yield from (Answer(("--source", name)) for name in plain if alone)


def _read_companions(found: Sequence[Companion]) -> Iterator[Answer]:
    """Yields the answers that read all companions, and only those that are certain. If folders of different images
    belong to one, first yields the answer by which this one belongs to them."""
    pairs = [each.text.partition("=")[::2] for each in found]
    apart = len(found) > 1 and sum(each.count for each in found) <= found[0].images
    if apart and all(each.option == PAIR for each in found) and len({images for images, _ in pairs}) == 1:
        yield Answer(tuple(chain.from_iterable(("--pair", f"{files}={images}") for images, files in pairs)))
    certain = [each for each in found if each.certain]
    for some in (found, certain if len(certain) < len(found) else []):
        if some:
            yield Answer(tuple(chain.from_iterable(each.arguments for each in some)))


def _read_sidecars(tree: Tree, contents: Contents) -> Iterator[Answer]:
    """Yields the answer that reads the files beside images that have their stems, by suffix."""
    options: list[str] = []
    files: dict[str, list[str]] = {}
    for folder in contents.folders.values():
        for suffix, names in folder.others.items():
            if suffix not in NO_SIDECARS and names.count_shared(folder.images):
                files.setdefault(suffix, []).extend(join(folder.path, name) for name in names.first[:_TEXTS])
    for suffix, some in files.items():
        type = tell_type(suffix, [tree.first_bytes(file, _BYTES) for file in some[:_TEXTS]], tree.encoding)
        options += ["--sidecar", f"{{s}}{suffix}={type}"] if type is not None else []
    if options:
        yield Answer(tuple(options))


def _name_splits(contents: Contents, flat: bool) -> Iterator[Answer]:
    """Yields the answers that take the words of splits in the names of the top folders: with the classes in them, and
    with ``flat`` without labels."""
    tops = {path.split("/")[0] for path, each in contents.folders.items() if path and each.images.count}
    splits = {name: find_split(name) for name in sorted(tops)}
    if splits and all(splits.values()) and len({*map(MEANINGS.get, splits.values())}) > 1:
        ordered = dict(sorted(splits.items(), key=lambda item: (SPLIT_ORDER.index(item[1]), item[0])))
        yield name_splits(ordered)
        if flat:
            yield name_splits(ordered, "--source", "flat")


def _separate_copies(contents: Contents) -> Iterator[Answer]:
    """Yields the answer that makes copies of the classes a split of their own."""
    images = [path for path, folder in contents.folders.items() if folder.images.count]
    base = os.path.commonpath(images) if images else ""
    classes = [path for path in images if path and path.rpartition("/")[0] == base]
    copies = {
        path: path.rpartition("/")[2]
        for path, folder in contents.folders.items()
        if path != base and sum(join(base, name) in images for name in folder.folders) > 1
    }
    if 1 < len(classes) <= _TOPS and copies and _OWN not in copies.values():
        yield name_splits({**dict.fromkeys(classes, _OWN), **copies})


def _use_labels(place: Path, contents: Contents) -> Iterator[Answer]:
    """Yields ``--labels`` for the first CSV files, which name the images from the top or from their folder on."""
    folders = contents.folders.values()
    tables = {each.path: each.others[".csv"].first for each in folders if ".csv" in each.others}
    files = [place / folder / name for folder, names in tables.items() for name in names]
    places = dict.fromkeys((place, *(place / each.path for each in folders if each.images.count)))
    for file in files[:_NAMED]:
        for base in [*places][: _NAMED + 1]:
            yield Answer(("--labels", str(file)), None if base == place else base)


def _choose_folders(place: Path, contents: Contents, alone: bool) -> Iterator[Answer]:
    """Yields the answers that leave out a folder which is no class of several, and with ``alone``, that pack it
    alone."""
    images = {path: folder.images.count for path, folder in contents.folders.items() if folder.images.count}
    base = os.path.commonpath(images) if images else ""
    counts: Counter[str] = Counter()
    for path, count in images.items():
        counts["/".join(path.split("/")[: len(base.split("/")) + bool(base)])] += count
    alike = Counter(path in images for path in counts)
    for path in filter(None, counts) if 1 < len(counts) <= _TOPS else ():
        if 2 * counts[path] < counts.total() and 2 * alike[path in images] <= len(counts):
            yield Answer(ignore_paths([path]))
        if alone and place.is_dir():
            yield Answer(source=place / path)
    if alone and base and place.is_dir():
        yield Answer(source=place / base)
