"""ILSVRC 2012 as downloaded: ``ILSVRC2012_img_{train,val,test}.tar`` and ``ILSVRC2012_devkit_t12.tar.gz``.

Labels are torchvision's: the index of a class's wnid in the sorted list. The devkit has other numbers, and its
``meta.mat`` also lists the classes above these in the hierarchy. Each tar may be unpacked into a folder ``train`` or
``val``. The training tar alone, and folders of classes, are read as image folders. Kaggle's layout is in :mod:`.sets`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from packstore.core.errors import AmbiguousSourceError, Answer, SampleError, SourceError, printable
from packstore.core.fields import Field, Image, Label, Text
from packstore.images.sniff import max_file_bytes
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, Source, SourceOptions
from packstore.sources.beside import is_folder, join
from packstore.sources.folder_names import Names
from packstore.sources.listing import Listing, is_passed_over
from packstore.sources.named.ilsvrc_devkit import DEVKITS, META, TRUTH, Devkit, find_devkit, read_devkit
from packstore.sources.named.sets import kaggle
from packstore.sources.rows import Row, RowSource
from packstore.sources.splits import is_split
from packstore.sources.tree import Tree

_TARS = {
    "train": ("ILSVRC2012_img_train.tar",),
    "val": ("ILSVRC2012_img_val.tar",),
    "test": ("ILSVRC2012_img_test_v10102019.tar", "ILSVRC2012_img_test.tar"),
}
_ARCHIVES = ("ILSVRC2012_img_", "ILSVRC2012_devkit_")
"""Beginnings of the names of its archives."""
_VAL = re.compile(r"(?:.*/)?ILSVRC2012_val_(\d{8})\.JPEG")
_WNID = re.compile(r"n\d{8}")
_DEPTH = 3


@dataclass(frozen=True)
class _SplitImages:
    """Location of the images of a split.

    Attributes:
        path: The tar, or the folder of the whole set.
        folder: Folder of the images in it; ``""`` for the top.
        in_classes: The images lie in folders of classes.
    """

    path: Path
    folder: str
    in_classes: bool

    @property
    def prefix(self) -> str:
        """Path of :attr:`folder` with a slash; ``""`` for the top."""
        return f"{self.folder}/" if self.folder else ""


@dataclass
class _Layout:
    """Location of ILSVRC at a path.

    Attributes:
        splits: Location of the images of each split that is there.
        devkit: Path of the devkit; None if there is none.
    """

    splits: dict[str, _SplitImages] = field(default_factory=dict)
    devkit: Path | None = None

    @property
    def needs_devkit(self) -> bool:
        """True if validation images lie outside of folders of classes. Only the devkit has their labels then."""
        return "val" in self.splits and not self.splits["val"].in_classes

    @property
    def is_image_folder(self) -> bool:
        """True if all splits are unpacked folders of classes, or there are none."""
        return all(part.in_classes and part.path.is_dir() for part in self.splits.values())


class IlsvrcSource(RowSource):
    """Source of ILSVRC 2012 as downloaded: the splits that exist, with one list of classes.

    Keys are the paths to which torchvision unpacks: ``val/n01440764/ILSVRC2012_val_00000293.JPEG``. The column ``name``
    has the name of the class, if there is a devkit.

    Opening raises :class:`SourceError` for a path without these images. It raises :class:`AmbiguousSourceError` for
    validation images without the devkit, which has their labels.
    """

    kind = "ilsvrc"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        try:
            self._layout = _find_layout(path)
        except OSError as error:
            raise SourceError(f"{printable(str(path))} cannot be listed: {error.strerror or error}") from None
        if not self._layout.splits:
            raise SourceError(
                f"{printable(str(path))} is not ILSVRC as downloaded: expected {_TARS['train'][0]}, {_TARS['val'][0]} "
                f"and {DEVKITS[1]}, or Kaggle's folder with ILSVRC/Data/CLS-LOC"
            )
        if self._layout.needs_devkit and self._layout.devkit is None:
            raise _missing_devkit_error(path, self._layout)
        self._trees: dict[Path, Tree] = {}
        for split, part in self._layout.splits.items():
            tree = self._trees.get(part.path) or open_tree(part.path)
            if tree is None:
                raise SourceError(f"{printable(str(part.path))} is no tar that can be read")
            self._trees[part.path] = tree
            if not part.folder and is_folder(tree, split):
                self._layout.splits[split] = replace(part, folder=split)
        self.evidence = ", ".join(printable(file.name) for file in self.files())
        self._max_bytes = max_file_bytes(options.max_pixels)

    def splits(self) -> tuple[str, ...]:
        """Returns those of ``train``, ``val`` and ``test`` that exist at the path."""
        return tuple(self._layout.splits)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of image and label; without classes, only that of the image. Adds the class name with a
        devkit.

        If there are test images, label and name are optional.
        """
        optional = "test" in self._layout.splits
        declared: dict[str, Field] = {"image": Image()}
        if not self._classes:
            return declared
        declared["label"] = Label(self._classes, optional=optional)
        return declared | ({"name": Text(optional=optional)} if self._devkit is not None else {})

    def rows(self, split: str) -> Iterator[Row]:
        """Yields the rows class by class, as torchvision does. Yields test images in the order of names.

        Raises :class:`SourceError` for a validation image that the devkit does not label.
        """
        part = self._layout.splits[split]
        tree = self._trees[part.path]
        if part.in_classes:
            for label, wnid in enumerate(self._classes):
                if wnid in self._class_folders[split]:
                    for folder, listing in tree.walk(f"{part.prefix}{wnid}", tree.above, None, self.options.skip_bad):
                        yield from self._make_rows(split, folder, listing, [label] * len(listing.images))
            return
        listing = tree.list(part.folder)
        labels: list[int | None] = [self._find_label(name) if split == "val" else None for name in listing.images]
        order = sorted(range(len(labels)), key=lambda n: (labels[n] or 0, listing.images[n]))
        yield from self._make_rows(split, part.folder, listing, labels, order)

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads an image and its ``label``; with a devkit also its ``name``. A test image has neither value.

        The name is the wnid if the devkit does not name the class. Raises :class:`ValueError` if the image cannot be
        read.
        """
        split, file, size, modified, label = ref
        try:
            image = self._trees[self._layout.splits[split].path].read(file, size, modified, self._max_bytes)
        except SampleError as error:  # it names the path, which may differ from the key
            raise ValueError(error.reason) from None
        if label is None:
            return {"image": image}
        values = {"image": image, "label": label}
        if self._devkit is not None:
            values["name"] = self._devkit.names.get(self._classes[label], self._classes[label])
        return values

    def files(self) -> Iterator[Path]:
        """Yields the tars or folders of images, and the devkit's files."""
        yield from dict.fromkeys(part.path for part in self._layout.splits.values())
        devkit = self._layout.devkit
        if devkit is not None:
            yield from (devkit / META, devkit / TRUTH) if devkit.is_dir() else (devkit,)

    def close(self) -> None:
        """Closes all archives and folders."""
        for tree in self._trees.values():
            tree.close()

    def _make_rows(
        self, split: str, folder: str, listing: Listing, labels: list[Any], order: list[int] | None = None
    ) -> Iterator[Row]:
        """Yields the rows of a folder's images. Keys are ``SPLIT/WNID/NAME``, without the wnid if there is no label.

        ``labels``: class number of each image, or None. ``order``: numbers of the images to yield; None keeps the order
        of the listing.
        """
        prefix = f"{folder}/" if folder else ""
        for n in range(len(labels)) if order is None else order:
            name, size, modified, changed, label = (
                *(listing.images[n], listing.sizes[n], listing.modified[n], listing.changed[n]),
                labels[n],
            )
            key = f"{split}/{name}" if label is None else f"{split}/{self._classes[label]}/{name}"
            ref = (split, prefix + name, size, modified, label)
            yield Row(key, ref, max(0, size), 0, modified, changed)

    def _find_label(self, name: str) -> int:
        """Returns the class number of a validation image. Raises :class:`SourceError` if the devkit does not label
        it."""
        match, devkit = _VAL.fullmatch(name), self._devkit
        if match is None or devkit is None or not 1 <= int(match[1]) <= len(devkit.truth):
            labels = 0 if devkit is None else len(devkit.truth)
            raise SourceError(
                f"{printable(str(self.path))}: {printable(name)} is not one of the {labels:,} validation images that "
                "the devkit labels"
            )
        return self._class_numbers[devkit.truth[int(match[1]) - 1]]

    @cached_property
    def _class_numbers(self) -> dict[str, int]:
        """Class number by wnid."""
        return {wnid: number for number, wnid in enumerate(self._classes)}

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        """Sorted wnids of the folders of classes. If validation images lie outside of such folders, the devkit's
        wnids count, too."""
        truth = self._devkit.truth if self._devkit is not None and self._layout.needs_devkit else []
        return tuple(sorted({*truth, *(wnid for split in self._layout.splits for wnid in self._class_folders[split])}))

    @cached_property
    def _class_folders(self) -> dict[str, frozenset[str]]:
        """Names of the folders of classes, by split. A split without such folders has none."""
        return {
            split: frozenset(self._trees[part.path].list(part.folder).directories if part.in_classes else ())
            for split, part in self._layout.splits.items()
        }

    @cached_property
    def _devkit(self) -> Devkit | None:
        """Content of the devkit; None without one. Raises :class:`SourceError` if it is damaged."""
        return None if self._layout.devkit is None else read_devkit(self._layout.devkit)


def _find_layout(path: Path) -> _Layout:
    """Finds the splits and the devkit at ``path``; prefers an unpacked folder to a tar.

    If ``path`` itself holds the validation images, also looks for the devkit in the folder above. Beside a devkit, the
    archive of validation images may have any name with ``val``.

    Returns an empty layout if there is nothing of ILSVRC. Raises :class:`OSError` if a folder cannot be listed.
    """
    layout = _Layout()
    if not path.is_dir():
        if _is_val_archive(path):
            layout.splits["val"] = _SplitImages(path, "", in_classes=False)
            layout.devkit = find_devkit(path.parent)
        return layout
    if _is_val_folder(path):
        layout.splits["val"] = _SplitImages(path, "", in_classes=False)
        layout.devkit = find_devkit(path) or find_devkit(path.parent)
        return layout
    for split, tars in _TARS.items():
        tar = next((path / name for name in tars if (path / name).is_file()), None)
        if split != "test" and (path / split).is_dir():
            in_classes = any(map(_WNID.fullmatch, _list_top_names(path / split).folders))
            if in_classes or _is_val_folder(path / split):
                layout.splits[split] = _SplitImages(path, split, in_classes)
        elif tar is not None:
            layout.splits[split] = _SplitImages(tar, "", in_classes=split == "train")
    layout.devkit = find_devkit(path)
    if layout.devkit is not None and "val" not in layout.splits:
        files = (path / name for name in _list_top_names(path).files if "val" in name.lower())
        archive = next((file for file in files if file.is_file() and _is_val_archive(file)), None)
        if archive is not None:
            layout.splits["val"] = _SplitImages(archive, "", in_classes=False)
    return layout


def _is_val_folder(path: Path) -> bool:
    """Tells if a folder directly contains validation images."""
    return any(map(_VAL.fullmatch, _list_top_names(path).files))


def _list_top_names(folder: Path) -> Names:
    """Lists the names directly in a folder or an archive; empty for any other path."""
    tree = open_tree(folder)
    return Names() if tree is None else tree.names("")


def _is_val_archive(path: Path) -> bool:
    """Tells if a file is an archive of validation images, at its top or in its folder ``val``."""
    tree = _open_or_none(path)
    return tree is not None and any(_has_val_images(tree, folder) for folder in ("", "val"))


def _open_or_none(path: Path) -> Tree | None:
    """Opens a folder or an archive as a tree; returns None if it is neither, or damaged."""
    try:
        return open_tree(path)
    except SourceError:
        return None  # the general kinds report the error


def _has_val_images(tree: Tree, folder: str) -> bool:
    """Tells if a folder of a tree directly contains validation images."""
    return any(map(_VAL.fullmatch, tree.names(folder).files))


def _find_stray_val(tree: Tree) -> str | None:
    """Finds a folder of validation images without classes, which an image folder would take for a class or a split.

    The folder is named like a split, or is the only folder. Looks three levels deep, while each level has one folder.
    Returns None if there is none.
    """
    folder = ""
    for _ in range(_DEPTH):
        inside = [name for name in tree.names(folder).folders if not is_passed_over(name)]
        for name in inside:
            alone = len(inside) == 1 and not _WNID.fullmatch(name)
            if (alone or is_split(name)) and _has_val_images(tree, join(folder, name)):
                return join(folder, name)
        if len(inside) != 1:
            return None
        folder = join(folder, inside[0])
    return None


def _missing_devkit_error(path: Path, layout: _Layout) -> AmbiguousSourceError:
    """Returns the error for validation images without a devkit.

    Its answer is to pack the training images alone. Without training images, it is to pack without labels.
    """
    if "train" in layout.splits:
        part = layout.splits["train"]
        alone = f"or give {printable(str(part.path / part.folder))} to pack the training images alone"
        answer = Answer(source=part.path / part.folder)
    else:
        part = layout.splits["val"]
        tree = _open_or_none(part.path)
        kind = "flat" if tree is not None and _has_val_images(tree, "") else "imagefolder"
        alone = f"or pack them without labels with --source {kind}"
        answer = Answer(("--source", kind), None if part.path == path else part.path)
    return AmbiguousSourceError(
        f"{printable(str(path))} holds the validation images of ILSVRC without their labels: put {DEVKITS[1]} beside "
        f"them, {alone}",
        [answer],
    )


def _stray_val_error(path: Path, folder: str) -> AmbiguousSourceError:
    """Returns the error for a folder that :func:`_find_stray_val` found.

    Its answers: give that folder, unless it is in an archive; or pack folders as classes.
    """
    place, options = path / folder, [Answer(("--source", "imagefolder"))]
    give = f"unpack it, and give {printable(folder)}"
    if path.is_dir():
        give, options = f"give {printable(str(place))}", [Answer(source=place), *options]
    return AmbiguousSourceError(
        f"{printable(str(path))} holds the validation images of ILSVRC in {printable(folder)}, without labels: "
        f"{give} with {DEVKITS[1]} beside it, or pack folders as classes with --source imagefolder",
        options,
    )


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises Kaggle's layout or the downloads. A plain image folder is neither, nor a path that cannot be listed.

    Raises :class:`SourceError` for archives of ILSVRC within an archive. Raises :class:`AmbiguousSourceError` for
    validation images without labels, and if Kaggle's layout lacks a file.
    """
    certainty = kaggle.recognise(path, options)
    if certainty is not Certainty.NO:
        return certainty
    try:
        layout = _find_layout(path)
    except OSError:
        return Certainty.NO  # the general kinds report the error
    tree = None if "val" in layout.splits else _open_or_none(path)
    if tree is not None and path.is_file() and any(n.startswith(_ARCHIVES) for n in tree.names("").files):
        raise SourceError(f"{printable(str(path))} holds archives of ILSVRC: unpack it, and give the folder")
    if tree is not None and (folder := _find_stray_val(tree)) is not None:
        raise _stray_val_error(path, folder)
    if layout.is_image_folder:
        return Certainty.NO
    if layout.needs_devkit and layout.devkit is None:
        raise _missing_devkit_error(path, layout)
    return Certainty.CERTAIN


def _open_layout(path: Path, options: SourceOptions) -> Source:
    """Opens Kaggle's layout, if it is there, or else the downloads."""
    found = kaggle.recognise(path, options) is Certainty.CERTAIN
    return kaggle.open(path, options) if found else IlsvrcSource(path, options)


KIND = Kind("ilsvrc", "ILSVRC 2012 as downloaded", _recognise, _open_layout, in_objects=True)
