"""ILSVRC 2012 as downloaded: ``ILSVRC2012_img_{train,val,test}.tar`` and ``ILSVRC2012_devkit_t12.tar.gz``.

Labels are torchvision's: the index of a class's wnid in the sorted list. The devkit has other numbers, and its
``meta.mat`` also lists the classes above these in the hierarchy. Each tar may be unpacked into a folder ``train`` or
``val``. The training tar alone, and folders of classes, are read as image folders. Kaggle's layout is in :mod:`.sets`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.errors import AmbiguousSourceError, Answer, SampleError, SourceError, printable
from packstore.core.fields import Label
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, Source, SourceOptions
from packstore.sources.beside import is_folder, join
from packstore.sources.found import Files, Found, FoundSource
from packstore.sources.ledger import Claims
from packstore.sources.listing import is_passed_over
from packstore.sources.named import open_tree_or_none, walk_lone_folders
from packstore.sources.named.mat import get_struct_fields, to_texts, to_whole_number
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
_DEVKITS = ("ILSVRC2012_devkit_t12", "ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_devkit_t12.tar")
_META, _TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"
_VAL = re.compile(r"(?:.*/)?ILSVRC2012_val_(\d{8})\.JPEG")
_WNID = re.compile(r"n\d{8}")


class _Part(NamedTuple):
    """Location of the images of a split.

    Attributes:
        path: The tar, or the folder of the whole set.
        folder: Folder of the images in it; ``""`` for the top.
        in_classes: The images lie in folders of classes.
    """

    path: Path
    folder: str = ""
    in_classes: bool = False


class _Layout(NamedTuple):
    """Location of ILSVRC at a path.

    Attributes:
        parts: Location of the images of each split that is there.
        devkit: Path of the devkit; None if there is none.
    """

    parts: Mapping[str, _Part]
    devkit: Path | None = None

    @property
    def needs_devkit(self) -> bool:
        """True if validation images lie outside of folders of classes. Only the devkit has their labels then."""
        return "val" in self.parts and not self.parts["val"].in_classes


def _delegate(method: str) -> Any:
    """Makes a method that calls that of the tree to which a path belongs."""

    def call(tree: _JoinedTree, path: str, *arguments: Any) -> Any:
        inner, place = tree.find(path)
        return getattr(inner, method)(place, *arguments)

    return call


class _JoinedTree(Tree):
    """Folders of other trees, each under a name of its own."""

    def __init__(self, path: Path, parts: Mapping[str, tuple[Tree, str]]) -> None:
        self.root = str(path)
        self._parts = parts

    def find(self, path: str) -> tuple[Tree, str]:
        """Returns the tree of a path, and the path in it. Raises :class:`OSError` for an unknown name."""
        name, _, rest = path.partition("/")
        if name not in self._parts:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        tree, folder = self._parts[name]
        return tree, f"{folder}/{rest}".strip("/")

    list = _delegate("list")
    read_names = _delegate("names")
    stat_any = _delegate("stat")
    read_first_bytes = _delegate("first_bytes")
    read_part = _delegate("read_part")
    read = _delegate("read")
    locate = _delegate("locate")

    def close(self) -> None:
        for tree, _ in self._parts.values():
            tree.close()


class IlsvrcSource(FoundSource):
    """Source of ILSVRC 2012 as downloaded: the splits that exist, with one list of classes.

    Keys are the paths to which torchvision unpacks: ``val/n01440764/ILSVRC2012_val_00000293.JPEG``. The column ``name``
    has the name of the class, if there is a devkit. Images come class by class, test images in the order of names.

    Opening raises :class:`SourceError` for a path without these images. It raises :class:`AmbiguousSourceError` for
    validation images without the devkit, which has their labels.
    """

    kind = "ilsvrc"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._layout = _find_layout(path)
        if not self._layout.parts:
            raise SourceError(
                f"{printable(str(path))} is not ILSVRC as downloaded: expected {_TARS['train'][0]}, {_TARS['val'][0]} "
                f"and {_DEVKITS[1]}, or Kaggle's folder with ILSVRC/Data/CLS-LOC"
            )
        _require_devkit(path, self._layout)
        self._own, parts = self.tree, {}
        for split, part in self._layout.parts.items():
            tree = self._own if part.path == path else _open_required(part.path, "tar that can be read")
            parts[split] = tree, part.folder or (split if is_folder(tree, split) else "")
        if self._layout.devkit is not None:
            parts["devkit"] = _open_required(self._layout.devkit, "devkit of ILSVRC"), ""
        self.tree = self._joined = _JoinedTree(path, parts)
        self.evidence = ", ".join(printable(file.name) for file in self.files())

    def generate(self, files: Files) -> Iterator[Found]:
        """Yields folders of classes and of test images, and validation images by class.

        Raises :class:`SourceError` for a validation image that the devkit does not label.
        """
        parts, names, truth = self._layout.parts, dict[str, str](), list[str]()
        if self._layout.devkit is not None:
            names, truth = _read_devkit(files)
        folders = {split: files.folders(split) if part.in_classes else [] for split, part in parts.items()}
        labelled = truth if self._layout.needs_devkit else []
        wnids = sorted({*labelled, *chain.from_iterable(folders.values())})
        files.columns["label"] = Label(wnids)
        values = {wnid: {"label": wnid} | ({"name": names.get(wnid, wnid)} if names else {}) for wnid in wnids}
        for split in files.each_split(*parts):
            if parts[split].in_classes:
                for wnid in folders[split]:
                    yield Found(f"{split}/{wnid}", split, values[wnid], is_folder=True)
            elif split != "val":
                yield Found(split, split, is_folder=True)
            else:
                pairs = ((self._find_wnid(truth, name), name) for name in self.tree.list(split).images)
                for wnid, name in sorted(pairs):
                    yield Found(f"{split}/{name}", split, values[wnid], f"{split}/{wnid}/{name}")

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads an image and its values. Raises :class:`ValueError` if the image cannot be read."""
        try:
            return super().read_values(ref)
        except SampleError as error:  # it names the path, which may differ from the key
            raise ValueError(error.reason) from None

    def files(self) -> Iterator[Path]:
        """Yields the tars or folders of images, and the devkit's files."""
        yield from dict.fromkeys(part.path for part in self._layout.parts.values())
        devkit = self._layout.devkit
        if devkit is not None:
            yield from (devkit / _META, devkit / _TRUTH) if devkit.is_dir() else (devkit,)

    # Its files are tars, not what they hold.
    stamp, claim_files = RowSource.stamp, RowSource.claim_files
    list_all_files = Source.list_all_files

    def claim_row(self, claims: Claims, row: Row) -> None:
        """Claims an image that is a file of its own."""
        tree, file = self._joined.find(row.ref[0])
        if tree is self._own and row.ref[1] >= 0:
            claims.claim(file)

    def _find_wnid(self, truth: Sequence[str], name: str) -> str:
        """Returns the wnid of a validation image. Raises :class:`SourceError` if the devkit does not label it."""
        match = _VAL.fullmatch(name)
        if match is None or not 1 <= int(match[1]) <= len(truth):
            raise SourceError(
                f"{printable(str(self.path))}: {printable(name)} is not one of the {len(truth):,} validation images "
                "that the devkit labels"
            )
        return truth[int(match[1]) - 1]


def _read_devkit(files: Files) -> tuple[dict[str, str], list[str]]:
    """Reads the names of classes by wnid, and the wnid of each validation image. Only synsets without children are
    classes."""
    shown, synsets = files.mat(f"devkit/{_META}", "synsets")
    fields = get_struct_fields(shown, synsets, ("ILSVRC2012_ID", "num_children", "WNID", "words"))
    numbers, children = ([to_whole_number(shown, each) for each in column] for column in fields[:2])
    wnids, words = (to_texts(shown, column) for column in fields[2:])
    leaves = [n for n, count in enumerate(children) if count == 0]
    by_number = {str(numbers[n]): wnids[n] for n in leaves}
    return {wnids[n]: words[n] for n in leaves}, [by_number[number] for (number,) in files.lines(f"devkit/{_TRUTH}")]


def _open_required(path: Path, expected: str) -> Tree:
    """Opens a folder or an archive. Raises :class:`SourceError` for anything else."""
    tree = open_tree(path)
    if tree is None:
        raise SourceError(f"{printable(str(path))} is no {expected}")
    return tree


def _find_devkit(folder: Path) -> Path | None:
    """Finds the devkit in a folder, unpacked or not; returns None if there is none."""
    return next((folder / name for name in _DEVKITS if (folder / name).exists()), None)


def _find_layout(path: Path) -> _Layout:
    """Finds the splits and the devkit at ``path``; prefers an unpacked folder to a tar.

    If ``path`` itself holds the validation images, also looks for the devkit in the folder above. Beside a devkit, the
    archive of validation images may have any name with ``val``. Returns an empty layout if there is nothing of ILSVRC.
    """
    tree = open_tree_or_none(path)
    places = ("",) if path.is_dir() else ("", "val")
    if tree is not None and any(_has_val_images(tree, place) for place in places):
        return _Layout({"val": _Part(path)}, _find_devkit(path) or _find_devkit(path.parent))
    if tree is None or not path.is_dir():
        return _Layout({})
    devkit, names, parts = _find_devkit(path), tree.names(""), dict[str, _Part]()
    for split, tars in _TARS.items():
        inside = tree.names(split).folders if split in names.folders and split != "test" else []
        in_classes = any(map(_WNID.fullmatch, inside))
        files = [name for name in tars if name in names.files]
        if devkit is not None and split == "val" and not files:
            files = [name for name in names.files if "val" in name.lower() and _holds_val_images(path / name)]
        if in_classes or (split == "val" and _has_val_images(tree, split)):
            parts[split] = _Part(path, split, in_classes)
        elif files:
            parts[split] = _Part(path / files[0], in_classes=split == "train")
    return _Layout(parts, devkit)


def _holds_val_images(path: Path) -> bool:
    """Tells if a file is an archive with validation images at its top or in its folder ``val``."""
    tree = open_tree_or_none(path)
    return tree is not None and any(_has_val_images(tree, place) for place in ("", "val"))


def _has_val_images(tree: Tree, folder: str) -> bool:
    """Tells if a folder of a tree directly contains validation images."""
    return any(map(_VAL.fullmatch, tree.names(folder).files))


def _find_stray_val(tree: Tree) -> str | None:
    """Finds a folder of validation images without classes, which an image folder would take for a class or a split.

    The folder is named like a split, or is the only folder. Looks three levels deep, while each level has one folder.
    Returns None if there is none.
    """
    for folder in walk_lone_folders(tree):
        inside = [name for name in tree.names(folder).folders if not is_passed_over(name)]
        for name in inside:
            alone = len(inside) == 1 and not _WNID.fullmatch(name)
            if (alone or is_split(name)) and _has_val_images(tree, join(folder, name)):
                return join(folder, name)
    return None


def _require_devkit(path: Path, layout: _Layout) -> None:
    """Raises :class:`AmbiguousSourceError` for validation images without a devkit. Its answer is to pack the training
    images alone. Without training images, it is to pack without labels."""
    if not layout.needs_devkit or layout.devkit is not None:
        return
    if "train" in layout.parts:
        part = layout.parts["train"]
        raise _missing_devkit_error(path, "", [Answer(source=part.path / part.folder)])
    part = layout.parts["val"]
    tree = open_tree_or_none(part.path)
    kind = "flat" if tree is not None and _has_val_images(tree, "") else "imagefolder"
    raise _missing_devkit_error(path, "", [Answer(("--source", kind), None if part.path == path else part.path)])


def _missing_devkit_error(path: Path, folder: str, answers: list[Answer]) -> AmbiguousSourceError:
    """Returns the error for validation images without labels in ``folder`` of ``path``."""
    where = f" in {printable(folder)}" if folder else ""
    return AmbiguousSourceError(
        f"{printable(str(path))} holds the validation images of ILSVRC{where} without their labels: put {_DEVKITS[1]} "
        "beside them",
        answers,
    )


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises Kaggle's layout or the downloads. A plain image folder is neither.

    Raises :class:`SourceError` for archives of ILSVRC within an archive. Raises :class:`AmbiguousSourceError` for
    validation images without labels, and if Kaggle's layout lacks a file.
    """
    certainty = kaggle.recognise(path, options)
    if certainty is not Certainty.NO:
        return certainty
    layout = _find_layout(path)
    tree = None if "val" in layout.parts else open_tree_or_none(path)
    if tree is not None and path.is_file() and any(n.startswith(_ARCHIVES) for n in tree.names("").files):
        raise SourceError(f"{printable(str(path))} holds archives of ILSVRC: unpack it, and give the folder")
    if tree is not None and (folder := _find_stray_val(tree)) is not None:
        give = [Answer(source=path / folder)] if path.is_dir() else []
        raise _missing_devkit_error(path, folder, [*give, Answer(("--source", "imagefolder"))])
    if all(part.in_classes and part.path.is_dir() for part in layout.parts.values()):
        return Certainty.NO
    _require_devkit(path, layout)
    return Certainty.CERTAIN


def _open_layout(path: Path, options: SourceOptions) -> Source:
    """Opens Kaggle's layout, if it is there, or else the downloads."""
    found = kaggle.recognise(path, options) is Certainty.CERTAIN
    return kaggle.open(path, options) if found else IlsvrcSource(path, options)


KIND = Kind("ilsvrc", "ILSVRC 2012 as downloaded", _recognise, _open_layout, in_objects=True)
