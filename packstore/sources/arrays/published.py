"""Published sets of pixels, with splits and labels as in torchvision: CIFAR, STL-10, SVHN, downsampled ImageNet."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Field, Label
from packstore.sources.archives import open_required_tree, open_tree
from packstore.sources.arrays.choosing import ArrayRoles, SplitArrays
from packstore.sources.arrays.files import open_mat, open_numpy_file
from packstore.sources.arrays.pickles import build_array, open_pickle, parse_dict
from packstore.sources.arrays.source import ArraySource, name_path
from packstore.sources.arrays.stored import ArrayInfo, ColumnArray, OpenArrays, StoredArray
from packstore.sources.base import Kind
from packstore.sources.beside import is_file, read_text, read_whole
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
    of range.

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

    @classmethod
    @abstractmethod
    def find_parts(cls, path: Path) -> Parts:
        """Finds split and path of each file of pixels; ``[]`` if the set is not there."""

    def read_class_names(self) -> dict[str, tuple[str, ...] | None]:
        """Reads :attr:`classes`; this base knows no names."""
        return {"label": None}

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Tells if there are files of pixels. False for a damaged archive and a folder that cannot be listed, which the
        general kinds report."""
        try:
            return bool(cls.find_parts(path))
        except AmbiguousSourceError:
            raise
        except (SourceError, OSError):
            return False

    def list_files(self) -> list[Path]:
        """Lists the files of :meth:`find_parts`, and reads the names of the classes. Raises :class:`SourceError` if
        there are no files."""
        self.parts = self.find_parts(self.path)
        if not self.parts:
            raise SourceError(f"it is not {self.title}")
        self._folder = self.parts[0][1].parent
        self._place = next(each for each in (self._folder, *self._folder.parents) if each.exists())
        self.classes = self.read_class_names()
        return [file for _, file in self.parts]

    @cached_property
    def _tree(self) -> Tree:
        """The folder of the first file, or its archive; opened at the first use."""
        return open_required_tree(self._place)

    def _inside(self, name: str) -> str:
        """Returns the path of a file in the tree by its name in the folder of the first file."""
        return (self._folder / name).relative_to(self._place).as_posix()

    def files(self) -> Sequence[Path]:
        """Returns the files of the set, or the archive."""
        if not self._folder.is_dir():
            return (self.path,)
        return [*self._files, *(file for name in self.beside if (file := self._folder / name).exists())]

    def add_labels(self, opened: OpenArrays, columns: Mapping[str, NDArray[Any]], first: int = 0) -> None:
        """Adds arrays of labels that begin at ``first``, less ``first``. Raises :class:`SourceError` or
        :class:`ValueError` unless they are whole numbers of classes, one for each image."""
        length = opened.arrays["image"].info.shape[self.layout.index("N")]
        for name, values in columns.items():
            labels, classes = to_whole_numbers(name, values) - first, self.classes[name]
            count = 1000 if classes is None else len(classes)
            if len(labels) != length:
                raise ValueError(f"{len(labels):,} labels for {length:,} images")
            wrong = np.flatnonzero((labels < 0) | (labels >= count))
            if len(wrong):
                number = labels[wrong[0]] + first
                raise ValueError(f"row {wrong[0]}: {name} {number} is out of range from {first} to {first + count - 1}")
            opened.add(name, labels)

    def _find_unwritten(self) -> tuple[list[NDArray[np.bool_]], int]:
        """Returns nothing: files of pixels have no chunks, and some are slow to open."""
        return [], 0

    def assign_columns(self, infos: Sequence[Sequence[ArrayInfo]]) -> ArrayRoles:
        """Makes each array the column of its name. Raises :class:`SourceError` for images of different sizes."""
        order = tuple(self.layout.index(letter) for letter in "HWC" if letter in self.layout)
        parts, sizes = [], set()
        for number, (split, _) in enumerate(self.parts):
            columns = {info.name: ColumnArray(number, info) for info in infos[number]}
            columns["image"] = replace(columns["image"], axis=self.layout.index("N"), order=order)
            parts.append(SplitArrays(split, columns["image"].length, columns))
            sizes.add(tuple(columns["image"].info.shape[axis] for axis in order))
        if len(sizes) > 1:
            raise SourceError(f"its files hold images of the sizes {sorted(sizes)}: give one folder")
        splits = in_packing_order(part.split for part in parts)
        parts.sort(key=lambda part: splits.index(part.split))
        return ArrayRoles(tuple(parts), None, ())

    def make_column(self, name: str, chosen: ColumnArray) -> tuple[Field, Callable[[Any], Any]]:
        """Declares the columns of labels, and others as the base does."""
        return (Label(self.classes[name]), int) if name in self.classes else super().make_column(name, chosen)

    def close(self) -> None:
        """Closes the source and its folder or archive."""
        super().close()
        if (tree := self.__dict__.pop("_tree", None)) is not None:
            tree.close()


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


class CifarSource(PixelSource):
    """Base of CIFAR-10 and CIFAR-100 as published (https://www.cs.toronto.edu/~kriz/cifar.html): python or binary, in a
    folder or an archive. All layouts give the same samples.

    Images are uint8 ``(32, 32, 3)`` RGB. Keys are ``train/00000``, ``train/00001`` …, in the order of the batches.
    Memory holds the pixels of at most two batches beside the cached blocks.

    Attributes:
        columns: Key of each label column in a python batch and in the python meta file. Binary rows have the columns in
            reverse order.
    """

    columns: ClassVar[Mapping[str, tuple[str, str]]]
    max_open = 2
    key_digits = 5

    @classmethod
    def find_parts(cls, path: Path) -> Parts:
        """Finds split and path of each batch, which may be in an archive. Raises as :func:`find_cifar` does."""
        found = find_cifar(path, cls.kind)
        return [] if found is None else [(split, found[1] / name) for split, name in found[0].batches]

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Tells if a path holds this dataset, and no other of CIFAR."""
        return super().matches(path) and find_cifar(path, None) is not None

    @property
    def _is_binary(self) -> bool:
        """True if batches are rows of bytes."""
        return self.parts[0][1].suffix == ".bin"

    def read_class_names(self) -> dict[str, tuple[str, ...] | None]:
        """Reads the names of the classes of each label column. Raises :class:`SourceError` or :class:`ValueError` for
        damage, and if a file of the layout is missing, or in the archive twice."""
        batches = [file.name for _, file in self.parts]
        self.beside = next(each.meta for each in LAYOUTS if [name for _, name in each.batches] == batches)
        missing = [name for name in (*self.beside, *batches) if not is_file(self._tree, self._inside(name))]
        if missing or self._tree.replaced:
            raise SourceError(f"it is {self.kind} without {', '.join(missing) or 'files that are there once'}")
        classes: dict[str, tuple[str, ...] | None] = {}
        for number, (column, (_, key)) in enumerate(self.columns.items()):
            file = self.beside[number if self._is_binary else 0]
            data = read_whole(self._tree, self._inside(file), _MAX_BYTES)
            with name_path(self._folder / file):
                names = data.splitlines() if self._is_binary else parse_dict(data).get(key)
                if not isinstance(names, list) or not all(isinstance(each, (bytes, str)) for each in names):
                    raise ValueError(f"found {type(names).__name__}, expected a list of names")
                texts = [each.decode("utf-8") if isinstance(each, bytes) else each for each in names]
                classes[column] = tuple(filter(None, map(str.strip, texts)))
        return classes

    def open_arrays(self, opened: OpenArrays, path: Path) -> None:
        """Reads a batch: rows of labels and pixels, or a pickle, which is not run."""
        data, count = read_whole(self._tree, self._inside(path.name), _MAX_BYTES), len(self.columns)
        if self._is_binary:
            if len(data) % (count + _PIXELS):
                raise ValueError(f"{len(data)} bytes are not whole rows of {count + _PIXELS}: it is cut off")
            rows = np.frombuffer(data, np.uint8).reshape(-1, count + _PIXELS)
            pixels, labels = rows[:, count:], [*rows[:, :count].T[::-1]]
        else:
            batch = parse_dict(data)
            pixels = build_array(batch.get("data"))
            labels = [build_array(batch.get(key)) for key, _ in self.columns.values()]
        if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
            raise ValueError(f"data of {pixels.dtype} {pixels.shape}, expected uint8 (rows, {_PIXELS})")
        opened.add("image", pixels.reshape(-1, 3, 32, 32))
        self.add_labels(opened, dict(zip(self.columns, labels, strict=True)))


class Cifar10Source(CifarSource):
    """CIFAR-10, with the column ``label``."""

    kind = normalization = "cifar10"
    title = "cifar10: cifar-10-batches-py/ or cifar-10-batches-bin/, or an archive of it"
    columns: ClassVar = {"label": ("labels", "label_names")}


class Cifar100Source(CifarSource):
    """CIFAR-100, with the columns ``label`` (fine) and ``coarse_label``."""

    kind = normalization = "cifar100"
    title = "cifar100: cifar-100-python/ or cifar-100-binary/, or an archive of it"
    columns: ClassVar = {
        "label": ("fine_labels", "fine_label_names"),
        "coarse_label": ("coarse_labels", "coarse_label_names"),
    }


def find_cifar(path: Path, kind: str | None) -> tuple[CifarLayout, Path] | None:
    """Finds a CIFAR dataset of a ``kind``, or of either for None. Returns its layout and directory, or None.

    ``path`` may be the dataset's directory, its archive, or a folder that holds one of these. The directory may be in
    an archive; an archive beside its own directory does not count. A directory has a layout if it has its name, or a
    meta file and one batch: other files may be missing.

    Raises :class:`AmbiguousSourceError` if a folder holds several, :class:`SourceError` for a damaged archive, and
    :class:`OSError` if the folder cannot be listed.
    """
    layouts = [layout for layout in LAYOUTS if kind in (None, layout.kind)]
    tree, found = open_tree(path), dict[Path, tuple[CifarLayout, Path]]()
    if tree is None:
        return None
    for base in ("", *tree.names("").folders):
        name = PurePosixPath(tree.top, base).name or path.resolve().name
        there = set(tree.names(base).files)
        for layout in layouts:
            has_files = layout.meta[0] in there and any(batch in there for _, batch in layout.batches)
            if has_files or name == layout.directory:
                found[path / base] = layout, path / base
    unpacked = [layout for layout, _ in found.values()]
    for archive in [path / layout.archive for layout in layouts if layout not in unpacked]:
        if archive.is_file() and (inside := find_cifar(archive, kind)):
            found[archive] = inside
    if len(found) > 1:
        answers = [Answer(source=place) for place in found]
        raise AmbiguousSourceError(f"{printable(str(path))} holds several of CIFAR", answers, lists_answers=True)
    return next(iter(found.values()), None)


class Stl10Source(PixelSource):
    """STL-10 (https://cs.stanford.edu/~acoates/stl10/) in a folder or an archive: ``train_X.bin``, ``train_y.bin`` …,
    column by column. ``unlabeled`` has no labels."""

    kind = "stl10"
    title = "STL-10: it has no train_X.bin, test_X.bin"
    layout = "NCWH"
    beside = ("train_y.bin", "test_y.bin")

    @classmethod
    def find_parts(cls, path: Path) -> Parts:
        """Finds the files of pixels of ``train``, ``test`` and ``unlabeled``. Raises :class:`AmbiguousSourceError` if
        files of labels are missing."""
        tree = open_tree(path)
        base = None if tree is None else find_marked_folder(tree, ("train_X.bin", "test_X.bin"))
        if tree is None or base is None:
            return []
        if missing := [name for name in cls.beside if not has_path(tree, base, name)]:
            raise _incomplete_error(path, "STL-10", missing)
        files = [(split, f"{split}_X.bin") for split in ("train", "test", "unlabeled")]
        return [(split, path / base / name) for split, name in files if has_path(tree, base, name)]

    def read_class_names(self) -> dict[str, tuple[str, ...] | None]:
        """Reads ``class_names.txt`` if it exists."""
        file = self._inside("class_names.txt")
        if not is_file(self._tree, file):
            return {"label": None}
        names = tuple(read_text(self._tree, file).decode("utf-8-sig").split())
        return {"label": names}

    def open_arrays(self, opened: OpenArrays, path: Path) -> None:
        """Opens the pixels and labels of a split."""
        tree, file, split = self._tree, self._inside(path.name), path.name.removesuffix("_X.bin")
        length, rest = divmod(tree.stat(file).size, 3 * 96 * 96)
        if rest:
            raise ValueError("it ends within an image: it is cut off")
        tree.read_part(file, 0, 1)  # raises for a compression that is not read in parts
        info = ArrayInfo("image", (length, 3, 96, 96))
        opened.arrays["image"] = StoredArray(info, lambda size, offset: tree.read_part(file, offset, size))
        if split != "unlabeled":
            labels = np.frombuffer(read_whole(tree, self._inside(f"{split}_y.bin")), np.uint8)
            self.add_labels(opened, {"label": labels}, 1)


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
        names = {split: f"{split}_32x32.mat" for split in ("train", "test", "extra")}
        found = [(split, path / name if path.is_dir() else path) for split, name in names.items()]
        return [
            (split, file) for split, file in found if file.name == names[split] and first_bytes(file, 6) == b"MATLAB"
        ]

    def read_class_names(self) -> dict[str, tuple[str, ...] | None]:
        """Returns the digits 0 to 9."""
        return {"label": tuple("0123456789")}

    def open_arrays(self, opened: OpenArrays, path: Path) -> None:
        """Opens the pixels and labels of a MAT file; label 10 becomes the digit 0."""
        open_mat(opened, path)
        images, labels = opened.arrays.pop("X", None), opened.arrays.pop("y", None)
        if images is None or labels is None or images.info.dtype != "u1" or images.info.shape[:3] != (32, 32, 3):
            raise ValueError("it has no uint8 array X of 32 x 32 x 3 x n, or no array y")
        opened.arrays.clear()
        opened.put("image", images, shape=(*images.info.shape, 1)[:4])  # MATLAB drops a last axis of 1
        self.add_labels(opened, {"label": labels.read_all()}, 1)
        opened.add("label", (opened.arrays["label"].read_all() + 1) % 10)


_BATCHES = (*(f"train_data_batch_{number}" for number in range(1, 11)), "val_data")
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

    @classmethod
    def find_parts(cls, path: Path) -> Parts:
        """Finds split and file of each batch that begins like one, in order; prefers a pickle to an ``.npz``. Raises
        :class:`AmbiguousSourceError` if only some training batches exist, and :class:`OSError` if the folder cannot be
        listed."""
        there: dict[str, Path] = {}
        inside = [each for each in list_folders(path) if _FOLDER.fullmatch(each.name)] if path.is_dir() else []
        for file in (
            folder / f"{name}{end}" for folder in [path, *inside] for name in _BATCHES for end in ("", ".npz")
        ):
            if file.stem not in there and first_bytes(file, 4).startswith((b"\x80", b"PK\x03\x04")):
                there[file.stem] = file
        missing = [name for name in _BATCHES[:-1] if name not in there]
        if 0 < len(missing) < len(_BATCHES) - 1:
            raise _incomplete_error(path, "downsampled ImageNet", missing)
        return [("val" if name == "val_data" else "train", there[name]) for name in _BATCHES if name in there]

    def files(self) -> Sequence[Path]:
        """Returns the batches, and ``map_clsloc.txt`` if it exists."""
        return [file for file in (*super().files(), self.path / "map_clsloc.txt") if file.is_file()]

    def read_class_names(self) -> dict[str, tuple[str, ...] | None]:
        """Returns the wnids in the first MiB of ``map_clsloc.txt``, if that file exists. Raises :class:`SourceError` if
        their numbers are not 1, 2, 3 …"""
        file = self.path / "map_clsloc.txt"
        if not file.is_file():
            return {"label": None}
        lines = [line.split() for line in first_bytes(file, 1 << 20).decode("utf-8", "replace").splitlines()]
        if [line[1:2] for line in lines] != [[str(number)] for number in range(1, len(lines) + 1)]:
            raise SourceError(f"{printable(str(file))} does not number its classes from 1 on")
        return {"label": tuple(line[0] for line in lines)}

    def open_arrays(self, opened: OpenArrays, path: Path) -> None:
        """Opens the pixels and labels of a batch."""
        (open_numpy_file if path.suffix == ".npz" else open_pickle)(opened, path)
        data, labels = opened.arrays.get("data"), opened.arrays.get("labels")
        if not isinstance(data, StoredArray) or labels is None or data.info.dtype != np.uint8 or data.fortran:
            raise ValueError(f"data of {data and data.info.dtype}, expected uint8, and labels")
        shape = data.info.shape
        side = math.isqrt(shape[1] // 3) if len(shape) == 2 else 0
        if 3 * side * side != shape[-1] or not side:
            raise ValueError(f"data of the shape {shape}, expected (images, 3 x side x side)")
        opened.arrays.clear()
        opened.put("image", data, shape=(shape[0], 3, side, side))
        self.add_labels(opened, {"label": labels.read_all()}, 1)


def _incomplete_error(path: Path, title: str, missing: Sequence[str]) -> AmbiguousSourceError:
    """Makes the error for a set without some of its files."""
    shown = printable(str(path))
    return AmbiguousSourceError(f"{shown} looks like {title}, without {', '.join(missing)}: download it again")


CIFAR10 = Kind("cifar10", "CIFAR-10 as downloaded, a folder or .tar.gz", Cifar10Source.recognise, Cifar10Source)
CIFAR100 = Kind("cifar100", "CIFAR-100 as downloaded, a folder or .tar.gz", Cifar100Source.recognise, Cifar100Source)
STL10 = Kind("stl10", "STL-10 as published", Stl10Source.recognise, Stl10Source)
SVHN = Kind("svhn", "SVHN, cropped digits, as published", SvhnSource.recognise, SvhnSource)
IMAGENET32 = Kind("imagenet32", "downsampled ImageNet as published", ImageNet32Source.recognise, ImageNet32Source)
