"""Annotation formats as generators, by family.

- :mod:`.tools`: formats of labelling tools
- :mod:`.videos`: frames with tracks
- :mod:`.texts`: text in scenes, receipts and forms
- :mod:`.published`: formats of published sets and of training code
- :mod:`.voc`: Pascal VOC, with its masks and sets

A format is a generator that yields what one annotation has, see :mod:`.shapes`. Its decorator finds the files:
:func:`beside` for a file of annotations for each image, or :func:`.documents.document` for files about many images. All
annotations are read once, when :mod:`.source` declares the columns, since classes and columns depend on the whole
dataset. :mod:`.parsing` has what generators parse with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packstore.core.errors import SourceError, printable
from packstore.sources.annotation_formats.source import AnnotatedSource, Format, ReadParts, make_decorator
from packstore.sources.base import Kind, SourceOptions
from packstore.sources.beside import join
from packstore.sources.contents import list_contents, stem_of
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.rows import FileRow, InTree, in_packing_order
from packstore.sources.splits import find_splits_of_folders, is_split
from packstore.sources.spread import find_spread
from packstore.sources.tree import Tree

_LOOKED_AT = 16


@dataclass(frozen=True, kw_only=True)
class SidecarFormat(Format):
    """Format with a file of annotations for each image.

    Attributes:
        folders: Pairs of folder names: of images, and of annotations. ``("", "")`` means one folder for both.
        patterns: Names of the files of annotations, with ``{stem}`` or ``{name}`` of the image.
    """

    folders: Sequence[tuple[str, str]]
    patterns: Sequence[str] = ("{stem}.json",)

    @property
    def extensions(self) -> frozenset[str]:
        """Extensions that mark annotations beside an image of the same name. Empty if annotations are never in the
        images' folder."""
        patterns = self.patterns if ("", "") in self.folders else ()
        return frozenset(each.removeprefix("{stem}.") for each in patterns if each.startswith("{stem}."))

    def list_names(self, image: str) -> list[str]:
        """Lists the names that the file of annotations of an image may have."""
        stem = image.rpartition(".")[0]
        return [pattern.replace("{stem}", stem).replace("{name}", image) for pattern in self.patterns]

    def annotates_images(self, tree: Tree, images: str, folder: str) -> bool:
        """Tells if ``folder`` has annotations of this format for images in the folder ``images``. At least one file of
        annotations must not be empty, and half of the first 16 such files must match the signature."""
        there = set(tree.names(folder).files)
        pictures = tree.names(images).ending(*IMAGE_SUFFIXES)
        files = (join(folder, name) for image in pictures for name in self.list_names(image) if name in there)
        begins = (self.begins(tree, file) for file in files)
        found = [*islice((each for each in begins if each is not None), _LOOKED_AT)]
        return 0 < len(found) <= 2 * sum(found)

    def find(self, tree: Tree) -> Sequence[AnnotatedFolder]:
        """Finds the folders of images that have annotations, with their splits; ``[]`` if there are none.

        Adds folders of images without annotations if they have the same name as those with annotations, or else if they
        lie beside those and are named like a split. The split is a folder in the path that is named like a split. If
        there is none, it is a word in the names of the folders, if each has one: ``VisDrone2019-DET-train``.
        """
        contents = list_contents(tree).folders
        suffixes = {f".{pattern.rpartition('.')[2].lower()}" for pattern in self.patterns}
        with_files = {path for path, each in contents.items() if suffixes & each.others.keys()}
        pairs: dict[str, str | None] = {}
        names, parents, unpaired = set[str](), set[str](), []
        for path in (path for path, each in contents.items() if each.images.count and with_files):
            places = ((images, place) for images, other in self.folders for place in _list_places(path, images, other))
            usable = (each for each in places if each[1] in with_files and self.annotates_images(tree, path, each[1]))
            if (match := next(usable, None)) is None:
                unpaired.append(path)
            else:
                pairs[path] = match[1]
                names |= {match[0].lower()} - {""}
                parents |= set() if match[0] else {path.rpartition("/")[0]}
        if ("", "") in self.folders:
            further = with_files - {*pairs.values()}
            for path, place in _pair_by_stems(tree, unpaired, further, suffixes, self.annotates_images):
                parents.add(path.rpartition("/")[0])
                pairs[path] = place
        taken = {*pairs, *pairs.values()}
        for path in unpaired:
            words, (above, _, name) = path.lower().split("/"), path.rpartition("/")
            if path not in taken and (names.intersection(words) or (above in parents and is_split(name))):
                pairs[path] = None
        splits = find_splits_of_folders(pairs, some=True)
        return [AnnotatedFolder(path, place, splits.get(path, "")) for path, place in pairs.items()]


class AnnotatedFolder(NamedTuple):
    """Folder of images, folder of their annotations (None if it is missing), and split."""

    images: str
    annotations: str | None
    split: str


def _pair_by_stems(
    tree: Tree,
    images: Iterable[str],
    places: Collection[str | None],
    suffixes: Collection[str],
    is_annotated: Callable[[Tree, str, str], bool],
) -> list[tuple[str, str]]:
    """Pairs each folder of images with the folder whose annotation files have the same stems."""
    folders = list_contents(tree).folders
    notes = {
        path: np.unique(np.concatenate([each.others[suffix].stems for suffix in suffixes & each.others.keys()]))
        for path, each in folders.items()
        if path in places and not each.images.count
    }
    owners: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    for path in images:
        own, parts = folders[path].images, {*path.split("/")}
        shared = {place: own.count_shared(stems) for place, stems in notes.items()}
        ranks = [
            (count, len(parts & {*place.split("/")}), place)
            for place, count in shared.items()
            # Half of the images need a file, or half of the files an image.
            if 0 < min(own.count, len(notes[place])) <= 2 * count
        ]
        # Ties go to the folder whose path has most parts in common with the images'.
        count, _, place = max(ranks, default=(0, 0, ""))
        if count and is_annotated(tree, path, place):
            owners.setdefault(place, []).append(path)
            counts[place] += count
    for place, paths in owners.items():
        # Several folders have the same stems: some may be copies of others.
        if counts[place] > len(notes[place]):
            stems = [stem_of(name) for name in tree.names(place).ending(*suffixes)]
            kept = find_spread(tree, stems, place, stems=True, within=paths) or paths[:1]
            owners[place] = [path for path in paths if path in kept]
    return [(path, place) for place, paths in owners.items() for path in paths]


def _list_places(path: str, images: str, annotations: str) -> Iterator[str]:
    """Yields the folders that may have the annotations for the images in ``path``, such as ``labels/a`` for
    ``images/a``.
    """
    if not images:
        yield join(path, annotations) if annotations else path
        return
    parts = path.split("/")
    # The last folder called ``images`` is the likeliest one to replace.
    for n in reversed(range(len(parts))):
        if parts[n].lower() == images.lower():
            yield "/".join((*parts[:n], *([annotations] if annotations else []), *parts[n + 1 :]))


class SidecarSource(AnnotatedSource):
    """Source of a format with a file of annotations for each image, in the images' folder or in another.

    An image without such a file has no annotation. Opening raises :class:`SourceError` if there is no annotation at
    all.
    """

    format: SidecarFormat

    def __init__(self, path: Path, options: SourceOptions, format: SidecarFormat) -> None:
        super().__init__(path, options, format)
        self._folders = format.find(self.tree)
        places = dict.fromkeys(each.annotations for each in self._folders if each.annotations is not None)
        if not self._folders:
            raise SourceError(f"{printable(str(path))} has no images with annotations of {format.title}")
        self.evidence = f"annotations of {format.title} in " + ", ".join(printable(p) or "the folder" for p in places)

    def splits(self) -> Sequence[str]:
        """Returns the splits in packing order; ``""`` for folders without split."""
        return in_packing_order(folder.split for folder in self._folders)

    def list_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each image of a split, sorted by folder. Its value ``raw`` is the image's file of
        annotations, if that exists."""
        for images, folder, own in sorted(self._folders, key=lambda each: each.images):
            if own != split:
                continue
            there = frozenset(self.tree.names(folder).files) if folder is not None else frozenset()
            for image in self.tree.list(images).images:
                names = [name for name in self.format.list_names(image) if name in there]
                raw = {"raw": InTree(join(folder or "", names[0]), optional=True)} if names else {}
                yield FileRow(join(images, image), raw)

    def describing_files(self) -> Iterable[str]:
        """Returns no file: each file of annotations belongs to one image."""
        return ()

    def find_annotation_file(self, ref: Any) -> str:
        """Returns the path of the image's file of annotations; empty without one."""
        raw = ref[-1].get("raw")
        return raw.file if isinstance(raw, InTree) else ""

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns the reason for a file of annotations without an image. For other files, returns the usual reason, or
        None."""
        suffixes = tuple(pattern[pattern.rindex(".") :] for pattern in self.format.patterns)
        if name.lower().endswith(suffixes) and folder in {each.annotations for each in self._folders}:
            return "annotations without an image"
        return super().reason_to_leave_out(folder, name)


def beside(help: str, **options: Any) -> Callable[[ReadParts], Kind]:
    """Decorates the generator of a format with a file of annotations for each image: makes the kind of its name.
    ``options`` are the other attributes of :class:`SidecarFormat`. Recognition is certain of each path with images
    and their annotations.
    """
    return make_decorator(SidecarFormat, SidecarSource, help=help, **options)
