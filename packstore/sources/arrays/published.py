"""Published sets of pixels, with splits and labels as in torchvision: CIFAR, STL-10, SVHN, downsampled ImageNet."""

from __future__ import annotations

import math
import os
import re
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Field, Label
from packstore.core.progress import ProgressCallback, no_progress
from packstore.sources.archives import open_required_tree, open_tree
from packstore.sources.arrays.choosing import ArrayRoles, SplitArrays
from packstore.sources.arrays.files import OpenMat, open_numpy_file
from packstore.sources.arrays.pickles import BatchError, OpenPickle, build_array, parse_dict, parse_name_list
from packstore.sources.arrays.source import ArraySource
from packstore.sources.arrays.stored import ArrayInfo, ColumnArray, OpenArrays, StoredArray
from packstore.sources.base import Entry, Kind, SourceOptions, Survey
from packstore.sources.beside import TextTable, is_file, read_text, read_whole
from packstore.sources.found import has_path
from packstore.sources.listing import list_folders
from packstore.sources.named import find_marked_folder
from packstore.sources.named.mat import to_whole_numbers
from packstore.sources.refusals import first_bytes
from packstore.sources.rows import in_packing_order
from packstore.sources.tree import Tree

Parts = list[tuple[str, Path]]


class PixelSource(ArraySource):
    """Base of published sets of pixels. Each file of pixels gives an array ``image``, and arrays of labels and other
    columns.

    Opening raises :class:`SourceError` for a path of another layout, for a missing or damaged file, and for labels out
    of range. If all further columns are labels with names, entries have them, and only images are read.

    Attributes:
        title: The publisher's name for it, and the files to expect, for messages.
        layout: Order of the axes of the images in the files.
        parts: Split and path of each file of pixels; the path may be in an archive.
        beside: Names of further files of the set, in the folder of the first.
        classes: Names of the classes of each column of labels; None if they are unknown.
    """

    title: ClassVar[str]
    layout = "NCHW"
    gaps_are_bad = False
    beside: Sequence[str] = ()

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self._labels: dict[Path, NDArray[np.int64]] = {}
        super().__init__(path, options)
        self.evidence = ", ".join(dict.fromkeys(file.name for _, file in self.parts))

    @classmethod
    @abstractmethod
    def find_parts(cls, path: Path) -> Parts:
        """Finds split and path of each file of pixels; ``[]`` if the set is not there."""

    @abstractmethod
    def open_pixels(self, path: Path) -> OpenArrays:
        """Opens a file of pixels. Raises :class:`SourceError`, :class:`OSError` or :class:`ValueError` for damage and
        another content."""

    def read_class_names(self) -> dict[str, tuple[str, ...] | None]:
        """Reads :attr:`classes`; this base knows no names."""
        return {"label": None}

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Tells if there are files of pixels. False for a damaged archive and a folder that cannot be listed, which the
        general kinds report."""
        try:
            return cls.is_there(path)
        except AmbiguousSourceError:
            raise
        except (SourceError, OSError):
            return False

    @classmethod
    def is_there(cls, path: Path) -> bool:
        """Tells if :meth:`find_parts` finds files. Raises as it does."""
        return bool(cls.find_parts(path))

    def list_files(self) -> list[Path]:
        """Lists the files of :meth:`find_parts`, and reads the names of the classes. Raises :class:`SourceError` if
        there are no files."""
        self.parts = self.find_parts(self.path)
        if not self.parts:
            raise SourceError(f"{printable(str(self.path))} is not {self.title}")
        self._folder = self.parts[0][1].parent
        self.classes = self.read_class_names()
        return [file for _, file in self.parts]

    @cached_property
    def _tree(self) -> Tree:
        """The folder of the first file, or its archive; opened at the first use."""
        return open_required_tree(self._place)

    @property
    def _place(self) -> Path:
        """The folder of the first file, or its archive."""
        return next(each for each in (self._folder, *self._folder.parents) if each.exists())

    def _inside(self, name: str) -> str:
        """Returns the path of a file in the tree by its name in the folder of the first file."""
        return (self._folder / name).relative_to(self._place).as_posix()

    def files(self) -> Sequence[Path]:
        """Returns the files of the set, or the archive."""
        if not self._folder.is_dir():
            return (self._place,)
        return [*self._files, *(file for name in self.beside if (file := self._folder / name).exists())]

    def open_file(self, path: Path) -> OpenArrays:
        """Opens a file of pixels. Raises :class:`SourceError` for damage, and labels out of range."""
        try:
            return self.open_pixels(path)
        except SourceError:
            raise
        except (OSError, ValueError) as error:
            raise SourceError(f"{printable(str(path))}: {printable(str(error))}") from None

    def add_labels(
        self, opened: OpenArrays, path: Path, shown: str, columns: Mapping[str, NDArray[Any]], first: int = 0
    ) -> None:
        """Adds arrays of labels that begin at ``first``, less ``first``. Raises :class:`SourceError` unless they are
        whole numbers of classes, one for each image. ``shown``: their file, for messages."""
        length = opened.arrays["image"].info.shape[self.layout.index("N")]
        for name, values in columns.items():
            labels, classes = to_whole_numbers(shown, values), self.classes[name]
            count = 1000 if classes is None else len(classes)
            if len(labels) != length:
                raise SourceError(f"{shown} has {len(labels):,} labels for {length:,} images")
            wrong = np.flatnonzero((labels < first) | (labels >= first + count))
            if len(wrong):
                raise SourceError(
                    f"{shown}, row {wrong[0]}: {name} {labels[wrong[0]]} is out of range, expected a number below "
                    f"{first + count}; it has labels from {labels.min()} to {labels.max()}"
                )
            opened.add(name, labels - first)
        self._labels[path] = np.stack([opened.arrays[name].read_all() for name in columns], axis=1)

    def _find_unwritten(self) -> tuple[list[NDArray[np.bool_]], int]:
        """Returns nothing: files of pixels have no chunks, and some are slow to open."""
        return [], 0

    def assign_columns(self, infos: Sequence[Sequence[ArrayInfo]]) -> tuple[ArrayRoles, None]:
        """Makes each array the column of its name. Returns the roles."""
        order = tuple(self.layout.index(letter) for letter in "HWC" if letter in self.layout)
        parts = []
        for number, (split, _) in enumerate(self.parts):
            columns = {info.name: ColumnArray(number, info) for info in infos[number]}
            columns["image"] = replace(columns["image"], axis=self.layout.index("N"), order=order)
            parts.append(SplitArrays(split, columns["image"].length, columns))
        splits = in_packing_order(part.split for part in parts)
        parts.sort(key=lambda part: splits.index(part.split))
        names = {name for part in parts for name in part.columns}
        is_labelled = len(self._labels) == len(parts) and all(self.classes.values())
        self._has_labels_alone = is_labelled and names == {"image", *self.classes}
        return ArrayRoles(tuple(parts), None, ()), None

    def _declare_field(self, name: str, chosen: ColumnArray) -> Field:
        """Declares the columns of labels, and others as the base does."""
        return Label(self.classes[name]) if name in self.classes else super()._declare_field(name, chosen)

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        survey = super().survey(split, progress)
        return replace(survey, sampled=frozenset(), value_bytes=0) if self._has_labels_alone else survey

    def _make_entries(self, split: str) -> Iterator[Entry]:
        """Makes an entry for each row of a split, with its labels if there are no other columns."""
        if not self._has_labels_alone:
            yield from super()._make_entries(split)
            return
        labels = chain.from_iterable(self._labels[file].tolist() for name, file in self.parts if name == split)
        for (key, ref, size, *_), values in zip(self.rows(split), labels, strict=True):
            yield Entry(key, split, tuple(values), size, ref)

    def read_sample(self, entry: Entry) -> Any:
        """Returns the image alone, ``(H, W, C)`` and read-only, if its entry has the other values. Else returns a
        sample."""
        if not self._has_labels_alone:
            return super().read_sample(entry)
        number, row = entry.ref
        return self._blocks.read_row(self._roles.parts[number].columns["image"], row, 1)

    def close(self) -> None:
        """Closes the source and its folder or archive."""
        super().close()
        if "_tree" in self.__dict__:
            self._tree.close()
            del self._tree  # with the decompressed copy of an archive


_MAX_BYTES = 1 << 28  # the largest published file, CIFAR-100's train, has 155 MB
_PIXELS = 3072


class CifarLayout(NamedTuple):
    """Published layout of CIFAR: names of its files.

    Attributes:
        kind: ``cifar10`` or ``cifar100``.
        directory: Name of the directory.
        archive: Name of the download.
        meta: Files with the names of the classes.
        batches: (split, file name) of all batches in order; rows of bytes if the name ends in ``.bin``, else pickles.
    """

    kind: str
    directory: str
    archive: str
    meta: tuple[str, ...]
    batches: tuple[tuple[str, str], ...]

    @property
    def binary(self) -> bool:
        """True if batches are rows of bytes."""
        return self.batches[0][1].endswith(".bin")

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files."""
        return (*self.meta, *(name for _, name in self.batches))

    def matches_directory(self, directory: str, names: Collection[str]) -> bool:
        """Tells if a directory has this layout. Its name suffices, or a meta file and one batch: other files may be
        missing."""
        there = set(names)
        return directory == self.directory or (self.meta[0] in there and any(name in there for _, name in self.batches))


_TEN = (*(("train", f"data_batch_{number}") for number in range(1, 6)), ("test", "test_batch"))
_HUNDRED = (("train", "train"), ("test", "test"))
_META, _NAMES = ("batches.meta.txt",), ("fine_label_names.txt", "coarse_label_names.txt")
_TEN_BINARY, _HUNDRED_BINARY = (tuple((split, f"{name}.bin") for split, name in each) for each in (_TEN, _HUNDRED))
LAYOUTS = (
    CifarLayout("cifar10", "cifar-10-batches-py", "cifar-10-python.tar.gz", ("batches.meta",), _TEN),
    CifarLayout("cifar10", "cifar-10-batches-bin", "cifar-10-binary.tar.gz", _META, _TEN_BINARY),
    CifarLayout("cifar100", "cifar-100-python", "cifar-100-python.tar.gz", ("meta",), _HUNDRED),
    CifarLayout("cifar100", "cifar-100-binary", "cifar-100-binary.tar.gz", _NAMES, _HUNDRED_BINARY),
)


def _describe_layouts(kind: str) -> str:
    """Describes what to expect of a dataset, for messages."""
    expected = " or ".join(f"{each.directory}/ or {each.archive}" for each in LAYOUTS if each.kind == kind)
    return f"{kind}: expected {expected}, or a folder that holds one of them"


class CifarSource(PixelSource):
    """Base of CIFAR-10 and CIFAR-100 as published (https://www.cs.toronto.edu/~kriz/cifar.html): python or binary, in a
    folder or an archive. All layouts give the same samples.

    Images are uint8 ``(32, 32, 3)`` RGB. Keys are ``train/00000``, ``train/00001`` …, in the order of the batches.
    Memory holds all labels, and the pixels of at most two batches beside the cached blocks.

    Attributes:
        columns: Key of each label column in a python batch and in the python meta file. Binary rows have the columns in
            reverse order.
    """

    columns: ClassVar[Mapping[str, tuple[str, str]]]
    max_open = 2
    key_digits = 5

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.normalization = self.kind
        if not any(map(len, self._labels.values())):
            raise SourceError(f"{printable(str(path))} holds no images: its batches are empty; download it again")

    @classmethod
    def find_parts(cls, path: Path) -> Parts:
        """Finds split and path of each batch, which may be in an archive. Raises as :func:`find_cifar` does."""
        found = find_cifar(path, cls.kind)
        return [] if found is None else [(split, found[1] / name) for split, name in found[0].batches]

    @classmethod
    def is_there(cls, path: Path) -> bool:
        """Tells if a path holds this dataset, and no other of CIFAR. Raises as :func:`find_cifar` does."""
        found = find_cifar(path, None)
        return found is not None and found[0].kind == cls.kind

    def read_class_names(self) -> dict[str, tuple[str, ...] | None]:
        """Reads the names of the classes of each label column. Raises :class:`SourceError` for damage, and if a file of
        the layout is missing, too large for CIFAR, or in the archive twice."""
        names = [file.name for _, file in self.parts]
        self._layout = next(
            each for each in LAYOUTS if each.kind == self.kind and [name for _, name in each.batches] == names
        )
        self.beside = self._layout.meta
        self._refuse_odd_files()
        classes: dict[str, tuple[str, ...] | None] = {}
        for number, (column, (_, key)) in enumerate(self.columns.items()):
            file = self._layout.meta[number if self._layout.binary else 0]
            data = read_whole(self._tree, self._inside(file), _MAX_BYTES)
            try:
                if self._layout.binary:
                    lines = data.decode("utf-8").splitlines()
                    classes[column] = tuple(line.strip() for line in lines if line.strip())
                else:
                    classes[column] = parse_name_list(parse_dict(data).get(key))
            except ValueError as error:
                raise SourceError(f"{printable(str(self._folder / file))}: {printable(str(error))}") from None
        return classes

    def open_pixels(self, path: Path) -> OpenArrays:
        """Reads a batch. Raises :class:`SourceError` for labels out of range, and :class:`ValueError` for damage."""
        data = read_whole(self._tree, self._inside(path.name), _MAX_BYTES)
        pixels, labels = (self._parse_binary_batch if self._layout.binary else self._parse_python_batch)(data)
        opened = OpenArrays()
        opened.add("image", pixels.reshape(-1, 3, 32, 32))
        self.add_labels(opened, path, printable(str(path)), dict(zip(self.columns, labels, strict=True)))
        return opened

    def _refuse_odd_files(self) -> None:
        """Raises :class:`SourceError` if a file is missing, too large for CIFAR, or in the archive twice."""
        missing, place = [], printable(str(self._place))
        for name in sorted(self._layout.files):
            size = self._tree.stat(self._inside(name)).size if is_file(self._tree, self._inside(name)) else -1
            if size > _MAX_BYTES:
                raise SourceError(f"{printable(str(self._folder / name))}: {size} bytes; that is not CIFAR")
            missing += [name] if size < 0 else []
        if missing:
            raise SourceError(f"{place} is {self.kind} without {', '.join(missing)}: download it again")
        if self._tree.replaced:
            raise SourceError(f"{place} has files that are there twice; that is not CIFAR")

    def _parse_binary_batch(self, data: bytes) -> tuple[NDArray[np.uint8], list[NDArray[Any]]]:
        """Parses rows of labels and pixels. Returns pixels, uint8 ``(rows, 3072)`` in planes, and the columns of
        labels. Raises :class:`BatchError` if the batch is cut off."""
        labels = len(self.columns)
        row = labels + _PIXELS
        if len(data) % row:
            raise BatchError(f"{len(data)} bytes are not whole rows of {row}: it is cut off; download it again")
        rows = np.frombuffer(data, np.uint8).reshape(-1, row)
        return rows[:, labels:], [*rows[:, :labels].T[::-1]]

    def _parse_python_batch(self, data: bytes) -> tuple[NDArray[np.uint8], list[NDArray[Any]]]:
        """Parses a batch that is a pickle, without running it, to the same values. Raises :class:`BatchError` for any
        other content."""
        batch = parse_dict(data)
        pixels: NDArray[Any] = build_array(batch.get("data"))
        if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
            raise BatchError(f"data of {pixels.dtype} {pixels.shape}, expected uint8 (rows, {_PIXELS})")
        columns = {key: build_array(batch.get(key)) for key, _ in self.columns.values()}
        for key, column in columns.items():
            if column.shape != (len(pixels),):
                raise BatchError(f"{key} of shape {column.shape} for {len(pixels)} images")
            if column.dtype.kind not in "iu":
                raise BatchError(f"{key} of {column.dtype}, expected whole numbers")
        return pixels, [*columns.values()]


class Cifar10Source(CifarSource):
    """CIFAR-10, with the column ``label``."""

    kind = "cifar10"
    title = _describe_layouts(kind)
    columns: ClassVar = {"label": ("labels", "label_names")}


class Cifar100Source(CifarSource):
    """CIFAR-100, with the columns ``label`` (fine) and ``coarse_label``."""

    kind = "cifar100"
    title = _describe_layouts(kind)
    columns: ClassVar = {
        "label": ("fine_labels", "fine_label_names"),
        "coarse_label": ("coarse_labels", "coarse_label_names"),
    }


def find_cifar(path: Path, kind: str | None) -> tuple[CifarLayout, Path] | None:
    """Finds a CIFAR dataset. ``path`` may be its directory, its archive, or a folder that holds one of these. An
    archive does not count if its directory is in the same folder.

    Returns the layout, and the directory, which may be in an archive. Returns None if there is no CIFAR. Raises
    :class:`AmbiguousSourceError` if a folder holds several, :class:`SourceError` for a damaged archive, and
    :class:`OSError` if the folder cannot be listed. ``kind``: None takes either.
    """
    layouts = [layout for layout in LAYOUTS if kind in (None, layout.kind)]
    if path.is_file():
        tree = open_tree(path)
        if tree is None:
            return None
        for base in ("", *tree.names("").folders):
            names = tree.names(base).files
            for layout in layouts:
                if layout.matches_directory(PurePosixPath(tree.top, base).name, names):
                    return layout, path / base
        return None
    names = os.listdir(path)
    for layout in layouts:
        if layout.matches_directory(path.resolve().name, names):
            return layout, path
    directories = [layout for layout in layouts if layout.directory in names and (path / layout.directory).is_dir()]
    archives = {layout.archive for layout in layouts} - {layout.archive for layout in directories}
    places = [path / layout.directory for layout in directories]
    places += [path / name for name in sorted(archives.intersection(names))]
    if len(places) > 1:
        listed = ", ".join(printable(place.name) for place in places)
        answers = [Answer(source=place) for place in places]
        raise AmbiguousSourceError(f"{printable(str(path))} holds {listed}: give the path of one of them", answers)
    return find_cifar(places[0], kind) if places else None


class Stl10Source(PixelSource):
    """STL-10 (https://cs.stanford.edu/~acoates/stl10/) in a folder or an archive: ``train_X.bin``, ``train_y.bin`` …,
    column by column. ``unlabeled`` has no labels; ``folds`` are the predefined folds of a training image."""

    kind = "stl10"
    title = "STL-10: it has no train_X.bin, test_X.bin"
    layout = "NCWH"
    beside = ("train_y.bin", "test_y.bin")

    @classmethod
    def find_parts(cls, path: Path) -> Parts:
        """Finds the files of pixels of ``train``, ``test`` and ``unlabeled``. Raises :class:`AmbiguousSourceError` if
        files of labels are missing."""
        tree, markers = open_tree(path), ("train_X.bin", "test_X.bin")
        base = None if tree is None else find_marked_folder(tree, markers)
        if tree is None or base is None:
            return []
        if missing := [name for name in ("train_y.bin", "test_y.bin") if not has_path(tree, base, name)]:
            raise AmbiguousSourceError(
                f"{printable(str(path))} looks like STL-10 ({', '.join(markers)}), without {', '.join(missing)}: "
                "download it again"
            )
        files = [(split, f"{split}_X.bin") for split in ("train", "test", "unlabeled")]
        return [(split, path / base / name) for split, name in files if has_path(tree, base, name)]

    def read_class_names(self) -> dict[str, tuple[str, ...] | None]:
        """Reads ``class_names.txt`` if it exists. Raises :class:`SourceError` unless it has ten different names."""
        file = self._inside("class_names.txt")
        if not is_file(self._tree, file):
            return {"label": None}
        lines = read_text(self._tree, file).decode("utf-8-sig").split("\n")
        names = tuple(line.strip() for line in lines if line.strip())
        if len(set(names)) != 10:
            raise SourceError(f"{self._tree.name(file)} has {len(set(names))} names; expected 10")
        return {"label": names}

    def open_pixels(self, path: Path) -> OpenArrays:
        """Opens the pixels, labels and folds of a split. Raises :class:`SourceError` for a file that is cut off, and
        wrong labels or folds. Raises :class:`ValueError` for pixels that an archive compresses by other than
        deflate."""
        tree, file, opened = self._tree, self._inside(path.name), OpenArrays()
        split = path.name.removesuffix("_X.bin")
        length, rest = divmod(tree.stat(file).size, 3 * 96 * 96)
        if rest:
            raise SourceError(f"{tree.name(file)} ends within an image: it is cut off; download it again")
        tree.read_part(file, 0, 1)
        info = ArrayInfo("image", (length, 3, 96, 96))
        opened.arrays["image"] = StoredArray(info, lambda size, offset: tree.read_part(file, offset, size))
        if split != "unlabeled":
            name = self._inside(f"{split}_y.bin")
            labels = np.frombuffer(read_whole(tree, name), np.uint8)
            self.add_labels(opened, path, tree.name(name), {"label": labels}, 1)
        if split == "train" and is_file(tree, folds := self._inside("fold_indices.txt")):
            opened.add("folds", self._read_folds(folds, length))
        return opened

    def _read_folds(self, file: str, length: int) -> NDArray[np.bool_]:
        """Reads the folds of the training images, bool ``(length, 10)``. Raises :class:`SourceError` for an invalid
        file."""
        folds = np.zeros((length, 10), np.bool_)
        table = TextTable(self._tree.name(file), read_whole(self._tree, file))
        lines = list(table)
        if len(lines) != 10:
            raise SourceError(f"{table.name} has {len(lines)} folds; expected 10")
        for fold, line in enumerate(lines):
            for text in line:
                image = table.parse_int(text, "numbers of images", line)
                if not 0 <= image < length:
                    table.refuse_line([text], f"one of {length:,} images")
                folds[image, fold] = True
        return folds


class SvhnSource(PixelSource):
    """SVHN, cropped digits (http://ufldl.stanford.edu/housenumbers/): one of ``train_32x32.mat``, ``test_32x32.mat``
    and ``extra_32x32.mat``, or a folder with some of them. The label 10 is the digit 0, and 0 here."""

    kind = "svhn"
    title = "SVHN: expected train_32x32.mat, test_32x32.mat or extra_32x32.mat"
    layout = "HWCN"

    @classmethod
    def find_parts(cls, path: Path) -> Parts:
        """Finds split and file of those that exist, and begin as MAT files. Raises :class:`SourceError` if a file
        cannot be read."""
        found = []
        for split in ("train", "test", "extra"):
            name = f"{split}_32x32.mat"
            file = path / name if path.is_dir() else path
            if file.name == name and first_bytes(file, 6) == b"MATLAB":
                found.append((split, file))
        return found

    def read_class_names(self) -> dict[str, tuple[str, ...] | None]:
        """Returns the digits 0 to 9."""
        return {"label": tuple("0123456789")}

    def open_pixels(self, path: Path) -> OpenArrays:
        """Opens the pixels and labels of a MAT file. Raises :class:`SourceError` for damage, labels other than 1 to 10,
        and arrays of another shape or dtype."""
        shown = printable(str(path))
        with OpenMat(path) as opened:
            images, labels = opened.arrays.pop("X", None), opened.arrays.pop("y", None)
            if images is None or labels is None or images.info.dtype != "u1" or images.info.shape[:3] != (32, 32, 3):
                raise SourceError(f"{shown} has no uint8 array X of 32 x 32 x 3 x n, or no array y")
            opened.arrays.clear()
            opened.put("image", images, shape=(*images.info.shape, 1)[:4])  # MATLAB drops a last axis of 1
            self.add_labels(opened, path, shown, {"label": labels.read_all()}, 1)
            self._labels[path] = (self._labels[path] + 1) % 10
            opened.add("label", self._labels[path][:, 0])
            return opened


_BATCHES = tuple(f"train_data_batch_{number}" for number in range(1, 11))
_FOLDER = re.compile(r"imagenet(8|16|32|64)_(train|val)(_npz)?", re.IGNORECASE)


class ImageNet32Source(PixelSource):
    """Downsampled ImageNet (https://image-net.org/download-images.php, "ImageNet32"): 8, 16, 32 or 64 pixels a side.

    ``train_data_batch_1`` to ``10`` and ``val_data`` are in a folder, or in its folders ``Imagenet32_train`` and
    ``Imagenet32_val``. Each is a pickle, or an ``.npz`` of that name, of ``data`` and ``labels``. Labels begin at 0
    here, in the devkit's order of classes, not that of sorted wnids. Pickles are parsed, never executed; their pixels
    stay in the file.
    """

    kind = "imagenet32"
    title = "downsampled ImageNet: it has no train_data_batch_1 or val_data"
    max_open = 12

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        sides = sorted({part.columns["image"].info.shape[-1] for part in self._roles.parts})
        if len(sides) > 1:
            self.close()
            raise SourceError(f"{printable(str(path))} holds images of {sides} pixels: give one folder")

    @classmethod
    def find_parts(cls, path: Path) -> Parts:
        """Finds split and file of each batch, in order; prefers a pickle to an ``.npz``. Raises
        :class:`AmbiguousSourceError` if only some training batches exist, and :class:`OSError` if the folder cannot be
        listed."""
        there: dict[str, Path] = {}
        inside = [each for each in list_folders(path) if _FOLDER.fullmatch(each.name)] if path.is_dir() else []
        for folder in [path, *inside]:
            for name in (*_BATCHES, "val_data"):
                for file in (folder / name, folder / f"{name}.npz"):
                    if name not in there and file.is_file():
                        there[name] = file
        missing = [name for name in _BATCHES if name not in there]
        if 0 < len(missing) < len(_BATCHES) and all(map(_may_be_batch, there.values())):
            raise AmbiguousSourceError(
                f"{printable(str(path))} looks like downsampled ImageNet, without {', '.join(missing)}: "
                "download it again"
            )
        names = [name for name in (*_BATCHES, "val_data") if name in there]
        return [("val" if name == "val_data" else "train", there[name]) for name in names]

    @classmethod
    def is_there(cls, path: Path) -> bool:
        """Tells if there are batches, by their names and first bytes."""
        return super().is_there(path) and all(_may_be_batch(file) for _, file in cls.find_parts(path))

    def files(self) -> Sequence[Path]:
        """Returns the batches, and ``map_clsloc.txt`` if it exists."""
        return [file for file in (*super().files(), self.path / "map_clsloc.txt") if file.is_file()]

    def read_class_names(self) -> dict[str, tuple[str, ...] | None]:
        """Returns the wnids in the first MiB of ``map_clsloc.txt`` by number, if that file exists. Raises
        :class:`SourceError` if the numbers are not 1, 2, 3 …, or a wnid occurs twice."""
        file = self.path / "map_clsloc.txt"
        if not file.is_file():
            return {"label": None}
        table = TextTable(printable(str(file)), first_bytes(file, 1 << 20))
        wnids = {}
        for line in table:
            if len(line) < 2:
                table.refuse_line(line, "a wnid and a number")
            wnids[table.parse_int(line[1], "a wnid and a number", line)] = line[0]
        if sorted(wnids) != list(range(1, len(wnids) + 1)) or len(set(wnids.values())) != len(wnids):
            raise SourceError(f"{table.name} does not number its classes from 1 on")
        return {"label": tuple(wnids[number] for number in range(1, len(wnids) + 1))}

    def open_pixels(self, path: Path) -> OpenArrays:
        """Opens the pixels and labels of a batch. Raises :class:`SourceError` for a label that is no class, and
        :class:`ValueError` for damage, another shape or dtype."""
        with open_numpy_file(path) if path.suffix == ".npz" else OpenPickle(path) as opened:
            data, labels = opened.arrays.get("data"), opened.arrays.get("labels")
            if not isinstance(data, StoredArray) or labels is None or data.info.dtype != np.uint8 or data.fortran:
                raise BatchError(f"data of {data and data.info.dtype}, expected uint8, and labels")
            shape = data.info.shape
            side = math.isqrt(shape[1] // 3) if len(shape) == 2 else 0
            if 3 * side * side != shape[-1] or not side:
                raise BatchError(f"data of the shape {shape}, expected (images, 3 x side x side)")
            opened.arrays.clear()
            opened.put("image", data, shape=(shape[0], 3, side, side))
            self.add_labels(opened, path, printable(str(path)), {"label": labels.read_all()}, 1)
            return opened


def _may_be_batch(file: Path) -> bool:
    """Tells if a file begins like a pickle or an ``.npz``."""
    return first_bytes(file, 4).startswith((b"\x80", b"PK\x03\x04"))


CIFAR10 = Kind("cifar10", "CIFAR-10 as downloaded, a folder or .tar.gz", Cifar10Source.recognise, Cifar10Source)
CIFAR100 = Kind("cifar100", "CIFAR-100 as downloaded, a folder or .tar.gz", Cifar100Source.recognise, Cifar100Source)
STL10 = Kind("stl10", "STL-10 as published", Stl10Source.recognise, Stl10Source)
SVHN = Kind("svhn", "SVHN, cropped digits, as published", SvhnSource.recognise, SvhnSource)
IMAGENET32 = Kind(
    "imagenet32",
    "downsampled ImageNet (32 x 32, 64 x 64 …) as published",
    ImageNet32Source.recognise,
    ImageNet32Source,
)
