"""Reads an image folder: ``root/class/…/file``, or ``root/split/class/…/file``, nested to any depth.

Classes, labels and the order of files are those of torchvision's ``ImageFolder``. Top folders with names of splits
(``train``, ``val`` …) are splits, which share one list of classes; see :data:`packstore.sources.splits.SPLIT_ORDER`,
and :mod:`.splits` for other folders beside them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from packstore.core.errors import Answer, SourceError, printable
from packstore.core.manifest import Column
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Entry, Kind, SourceOptions, Survey, readable_sizes, round_up_size
from packstore.sources.contents import accept_arrays, find_lone_image_folder
from packstore.sources.folder import FolderSource
from packstore.sources.ignoring import escape_pattern, ignore_paths, ignore_patterns
from packstore.sources.ledger import Claims
from packstore.sources.listing import (
    IS_CYCLE,
    NO_SOURCE,
    SAMPLE_SUFFIXES,
    Identity,
    Listing,
    is_passed_over,
    key_size,
    no_images_message,
)
from packstore.sources.questions import ask, join_few, name_splits
from packstore.sources.splits import find_splits

_FEWEST_CLASSES = 5
_KEPT_FILES = 250_000  # about 25 MB of names; listing as many again takes 0.6 s
_MOST_IGNORED = 16
# Names of a folder that is not a class if it is the only one in each split.
_LONE = re.compile(r"images?(_0?\d)?|imgs?|jpegimages|photos?|pictures?|frames?")


@dataclass(frozen=True, slots=True)
class SplitFolder:
    """Folder of one split, or the root of a source without splits.

    Attributes:
        split: Name of the split; ``""`` without splits.
        directory: Path relative to the root; ``""`` for the root itself.
        classes: Class directories, sorted; empty if there are none. Images beside them are then left out.
        images: Number of images directly in it.
        above: Identities of its directory and of those above it.
    """

    split: str
    directory: str
    classes: tuple[str, ...]
    images: int
    above: tuple[Identity, ...]

    @property
    def is_unlabelled(self) -> bool:
        """True if images are directly in the folder, and class folders are not."""
        return not self.classes and self.images > 0


class ImageFolderSource(FolderSource):
    """Image folder as torchvision's ``ImageFolder`` reads it, with splits.

    - Images beside class folders are left out. A split with images but no class folders has no labels. Such a split
      cannot be packed together with labelled splits.
    - Beside other folders of images, splits can be packed one by one. If the user names the kind, all folders are
      classes instead.
    - A folder of other files alone is no class. The only folder of each split is no class if it has a name like
      ``images``. If the user names the kind, both are classes.
    - A class without images in any split is refused.
    - In a folder without images, ``.npy`` files are the images.
    """

    kind = "imagefolder"
    left_images = "images beside the class folders"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.tree = accept_arrays(self.tree)
        self._listed: dict[str, list[tuple[str, str, Listing]]] = {}
        """Listings of the last survey by folder of a split, for :meth:`entries`."""

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Counts samples: lists all directories, with one ``stat`` a file.

        Raises :class:`AmbiguousSourceError` for labelled beside unlabelled splits, and for images both in splits and in
        other folders. Raises :class:`NotInSourceError` for an unknown split. Raises :class:`SourceError`

        - for a folder or split without images, and a class without images in all splits;
        - for two folders of one split, and an unreadable directory;
        - for a cycle of links, unless bad samples are skipped.
        """
        with self.tree.cache_names():
            survey = self._survey_folders(split, progress)
        classes = next((len(each.classes or ()) for each in survey.columns if each.name == "label"), 0)
        if classes < _FEWEST_CLASSES or 2 * survey.records >= 3 * classes:
            return survey
        note = f"{classes:,} classes of hardly more than one image each; --source flat packs the images without labels"
        return replace(survey, notes=(*survey.notes, note))

    def _survey_folders(self, split: str | None, progress: ProgressCallback) -> Survey:
        """Surveys the folders for :meth:`survey`, sets the evidence, and keeps listings for :meth:`entries`."""
        ignored: Counter[str] = Counter()
        self._listed = {}
        folders = self._list_split_folders(ignored, split)
        chosen = self._choose_folders(folders, split)
        classes = _list_classes(folders)
        per_class: Counter[str] = Counter()
        splits: dict[str, int] = {}
        size_bytes = key_bytes = 0
        size_counts: Counter[int] = Counter()
        claims = Claims()
        for folder in chosen:
            before = sum(splits.values())
            count = 0
            for label, directory, listing in self._list_and_keep(folder, ignored):
                sizes = readable_sizes(listing.sizes, self.max_bytes)
                size_bytes += sum(sizes)
                size_counts.update(map(round_up_size, sizes))
                key_bytes += key_size("".join(listing.images))
                key_bytes += len(listing.images) * (key_size(directory) + 1 if directory else 0)
                per_class[label] += len(listing.images)
                claims.claim_all(directory, listing.images)
                count += len(listing.images)
                progress(Progress("scan", before + count, None, size_bytes))
            if folder.split and not count:
                advice = "remove this split, or pack another one with --split"
                raise SourceError(no_images_message(self.name(folder.directory), ignored, advice))
            splits[folder.split] = splits.get(folder.split, 0) + count
        if not classes and not any(splits):
            self._refuse_without_folders(splits[""], ignored)
        labelled = any(folder.classes for folder in chosen)
        names = ", ".join(folder.directory for folder in folders if folder.split)
        what = "folders of images" if labelled else "images without class folders"
        self.evidence = self.evidence or (f"{what} in {names}" if names else what)
        if labelled:
            self._refuse_empty_classes(classes, per_class, [f for f in folders if f not in chosen], ignored)
        return Survey(
            splits=splits,
            columns=(Column("label", "fixed", "int64", classes=classes, type="label"),) if labelled else (),
            encoding="original",
            shape=None,
            size_bytes=size_bytes,
            size_counts=size_counts,
            key_bytes=key_bytes,
            ledger=self.ledger(claims, split),
        )

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """Yields the images of one split, or of all, class by class.

        Uses the listings that the last survey kept, and lists other directories again. Errors of
        :meth:`_list_split_folders` and :meth:`_choose_folders` are raised by the call itself, not at the first image.
        """
        folders = self._list_split_folders(Counter(), split)
        chosen = self._choose_folders(folders, split)
        numbers = {name: number for number, name in enumerate(_list_classes(folders))}
        return self._yield_entries(chosen, numbers)

    def _yield_entries(self, chosen: Sequence[SplitFolder], numbers: dict[str, int]) -> Iterator[Entry]:
        """Yields the entries of the chosen split folders; ``numbers`` maps class names to numbers."""
        for folder in chosen:
            split = folder.split
            for label, directory, listing in self._listed.get(folder.directory) or self._list_directories(
                folder, Counter()
            ):
                # A link that is a cycle has no class.
                labels = (numbers.get(label, 0),) if folder.classes else ()
                prefix = f"{directory}/" if directory else ""
                for image, size, modified, changed in zip(
                    listing.images, listing.sizes, listing.modified, listing.changed, strict=True
                ):
                    yield (
                        Entry(prefix + image, split, labels, size, None, modified, changed)
                        if size >= 0
                        else Entry(prefix + image, split, labels, 0, size)
                    )

    def _list_split_folders(self, ignored: Counter[str], split: str | None) -> list[SplitFolder]:
        """Lists the folders of all splits in packing order, or the root alone; counts in ``ignored`` what is left."""
        above = self.tree.above
        root = self.tree.list("", ignored)
        loose, above = len(root.images), (*above, root.identity)
        root = replace(root, directories=[name for name in root.directories if name not in self._other_folders])
        split_folders = find_splits(self.tree, root.directories, above, self.options.splits)
        if split_folders is not None and split_folders.others:
            # A user who names the kind wants all folders as classes.
            if self.options.named and not self.options.splits:
                split_folders = None
            elif split is None:
                named = {} if self.options.splits else split_folders.splits
                lines = [name_splits({**named, **{name: name for name in split_folders.others}})]
                lines += [Answer(ignore_paths(split_folders.others))]
                lines += [Answer(("--split", split)) for split in named.values()]
                known, beside = join_few(sorted(split_folders.splits)), join_few(split_folders.others)
                # Without ``split``, the other folders would be lost silently.
                raise ask(self.path, f"holds splits ({known}) and beside them folders with images ({beside})", *lines)
        if split_folders is None:
            ignored += Counter({"images beside the class folders": loose if root.directories else 0})
            return [SplitFolder("", "", tuple(sorted(root.directories)), loose, above)]
        ignored += Counter(
            {
                "images beside the split folders": loose,
                "folders without images": len(split_folders.empty),
                "folders beside the splits": len(split_folders.others),
            }
        )
        folders: list[SplitFolder] = []
        for directory, split in split_folders.splits.items():
            twice = next((each for each in folders if each.split == split), None)
            if twice is not None and not self.options.splits:
                raise SourceError(
                    f"{self.name(directory)} and {self.name(twice.directory)} are the same split: rename one"
                )
            folder = self._list_folder(split, directory, above, ignored)
            if folder.above[-1] in above:
                raise SourceError(f"{self.name(directory)} {IS_CYCLE}: remove it, or leave it out with --ignore")
            ignored += Counter({"images beside the class folders": folder.images if folder.classes else 0})
            folders.append(folder)
        return _join_class_folders(self._enter_image_folders(folders, ignored))

    def _list_folder(
        self, split: str, directory: str, above: tuple[Identity, ...], ignored: Counter[str]
    ) -> SplitFolder:
        """Lists the folder of a split; ``above`` are the identities of the folders above it."""
        inside = self.tree.list(directory, ignored)
        classes = tuple(sorted(inside.directories))
        return SplitFolder(split, directory, classes, len(inside.images), (*above, inside.identity))

    @cached_property
    def _other_folders(self) -> frozenset[str]:
        """Top folders that are no classes: they have files, but no images."""
        if self.options.named:  # all are classes
            return frozenset()
        root = self.tree.list("")
        return frozenset(filter(partial(self._has_other_files, (*self.tree.above, root.identity)), root.directories))

    def _has_other_files(self, above: tuple[Identity, ...], name: str) -> bool:
        """Tells if a top folder has files, but no images."""
        # Listing reports a cycle of links.
        if self.tree.names(name).common_suffix.lower() in SAMPLE_SUFFIXES or self.tree.identity(name) in above:
            return False
        if self.tree.holds_images(name, above):
            return False
        return any(names.text for _, names in self.tree.folders(is_passed_over, name))

    def _enter_image_folders(self, folders: list[SplitFolder], ignored: Counter[str]) -> list[SplitFolder]:
        """Replaces ``train`` by ``train/images``, and ``seg_train`` by ``seg_train/seg_train``, if all splits have only
        such folders.
        """
        used = [folder for folder in folders if folder.classes or folder.images]
        names = {folder.classes for folder in used}
        repeated = all(folder.classes == (folder.directory.rpartition("/")[2],) for folder in used)
        lone = len(names) == 1 and len(used[0].classes) == 1 and _LONE.fullmatch(used[0].classes[0].lower())
        # A user who names the kind wants these folders as classes.
        if self.options.named or not used or not (lone or repeated):
            return folders
        return [
            self._list_folder(each.split, f"{each.directory}/{each.classes[0]}", each.above, ignored)
            if each.classes
            else each
            for each in folders
        ]

    def _choose_folders(self, folders: list[SplitFolder], split: str | None) -> list[SplitFolder]:
        """Returns the folder of one split, in any case of letters, or all folders for None."""
        if split is not None:
            chosen = [folder for folder in folders if folder.split == split.lower()] if split else []
            if not chosen:
                raise self.unknown_split_error(split, [folder.split for folder in folders])
            return chosen
        unlabelled = [folder.split for folder in folders if folder.is_unlabelled]
        labelled = [folder.split for folder in folders if folder.classes]
        if unlabelled and labelled:
            apart = {
                f"{folder.directory}/{name}".lstrip("/") if name else folder.directory: name or folder.split
                for folder in folders
                for name in folder.classes or [""]
            }
            why = f"has images in class folders in {join_few(labelled)}, and images without in {join_few(unlabelled)}"
            lines = [name_splits(apart)] if len(apart) <= _MOST_IGNORED and not self.options.splits else []
            raise ask(self.path, why, *lines, *(Answer(("--split", folder.split)) for folder in folders))
        return folders

    def _list_and_keep(self, folder: SplitFolder, ignored: Counter[str]) -> Iterator[tuple[str, str, Listing]]:
        """Yields from :meth:`_list_directories`, and keeps the listings for :meth:`entries` if there is room."""
        room = _KEPT_FILES - sum(len(listing.images) for kept in self._listed.values() for *_, listing in kept)
        listed: list[tuple[str, str, Listing]] = []
        for each in self._list_directories(folder, ignored):
            room -= len(each[2].images)
            if room >= 0:
                listed.append(each)
            yield each
        if room >= 0:
            self._listed[folder.directory] = listed

    def _list_directories(self, folder: SplitFolder, ignored: Counter[str]) -> Iterator[tuple[str, str, Listing]]:
        """Yields class, path and listing of each directory of a split, in order; the class may be ``""``."""
        if not folder.classes:
            yield "", folder.directory, self.tree.list(folder.directory)
            return
        prefix = f"{folder.directory}/" if folder.directory else ""
        for name in folder.classes:
            for directory, listing in self.tree.walk(prefix + name, folder.above, ignored, self.options.skip_bad):
                yield name, directory, listing

    def _refuse_without_folders(self, images: int, ignored: Counter[str]) -> None:
        """Raises :class:`SourceError` for a folder without class folders: it has ``images`` images, or none."""
        if images:
            raise SourceError(f"{self.name()} holds {images} images but no class folders: pack it with --source flat")
        raise SourceError(no_images_message(self.name(), ignored, NO_SOURCE))

    def _refuse_empty_classes(
        self, classes: Sequence[str], per_class: Counter[str], others: Sequence[SplitFolder], ignored: Counter[str]
    ) -> None:
        """Raises :class:`AmbiguousSourceError` if a class has no image in any split."""
        empty = [name for name in classes if not per_class[name]]
        # Splits that are not packed may have images of the class.
        for folder in others:
            prefix = f"{folder.directory}/"
            for name in [n for n in empty if n in folder.classes]:
                if self.tree.holds_images(prefix + name, folder.above):
                    empty.remove(name)
        if empty:
            named = ", ".join(repr(printable(name)) for name in empty[:5]) + (" …" if len(empty) > 5 else "")
            passed = ", ".join(f"{count:,} {reason}" for reason, count in ignored.most_common(5))
            patterns = [f"{escape_pattern(name)}/" for name in empty]
            may_ignore = len(empty) < len(classes) and len(empty) <= _MOST_IGNORED
            why = f"has {len(empty)} of {len(classes)} class folders without images: {named}"
            lines = [Answer(ignore_patterns(patterns))] if may_ignore else []
            raise ask(self.path, f"{why}{f' (passed over in all folders: {passed})' if passed else ''}", *lines)


def _join_class_folders(folders: list[SplitFolder]) -> list[SplitFolder]:
    """Joins the folders of a split that are classes themselves: ``--splits own=/cat,own=/dog,copies=/copies``."""
    # They have images directly in them, while other splits have class folders.
    bare: dict[tuple[str, str], list[SplitFolder]] = {}
    for folder in folders if any(each.classes for each in folders) else ():
        if folder.is_unlabelled:
            bare.setdefault((folder.split, folder.directory.rpartition("/")[0]), []).append(folder)
    for (split, parent), inside in bare.items():
        if len(inside) > 1:
            names = tuple(sorted(each.directory.rpartition("/")[2] for each in inside))
            joined = SplitFolder(split, parent, names, 0, inside[0].above[:-1])
            folders = [joined if each is inside[0] else each for each in folders if each not in inside[1:]]
    return folders


def _list_classes(folders: Sequence[SplitFolder]) -> tuple[str, ...]:
    """Returns the sorted names of all classes."""
    return tuple(sorted({name for folder in folders for name in folder.classes}))


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises a folder of class folders: certain if a folder in it contains an image."""
    tree = open_tree(path)
    if tree is None:
        return Certainty.NO
    tree = accept_arrays(tree)
    root = tree.list("")
    above = (*tree.above, root.identity)
    if any(tree.holds_images(name, above) for name in sorted(root.directories)):
        # A single folder of a generic name, such as ``images``, is no class.
        if not options.named and find_lone_image_folder(tree) is not None:
            return Certainty.NO
        return Certainty.CERTAIN
    # Folders without images: opening them raises an error that names them.
    return Certainty.POSSIBLE if root.directories and not root.images else Certainty.NO


KIND = Kind("imagefolder", "an image folder, whose folders are classes", _recognise, ImageFolderSource, in_objects=True)
