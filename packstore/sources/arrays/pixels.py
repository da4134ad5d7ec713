"""Published sets of pixels: STL-10, SVHN and downsampled ImageNet, with splits and labels as in torchvision."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, SourceError, printable
from packstore.sources.archives import open_required_tree, open_tree
from packstore.sources.arrays.choosing import ArrayRoles, SplitArrays
from packstore.sources.arrays.mat import OpenMat
from packstore.sources.arrays.npz import open_numpy_file
from packstore.sources.arrays.pickles import BatchError, OpenPickle
from packstore.sources.arrays.source import ArraySource
from packstore.sources.arrays.stored import ArrayInfo, ColumnArray, StoredArrays
from packstore.sources.base import Kind, SourceOptions
from packstore.sources.beside import TextTable, join, read_text, read_whole
from packstore.sources.found import has_path
from packstore.sources.listing import list_folders
from packstore.sources.named import find_marked_folder
from packstore.sources.refusals import first_bytes
from packstore.sources.rows import in_packing_order


class PixelSource(ArraySource):
    """Base of published sets of pixels. Each file has an array ``image``, and arrays of labels and other columns.

    Opening reads all labels. It raises :class:`SourceError` for a path of another layout, for a missing or damaged
    file, and for labels out of range.

    Attributes:
        title: The publisher's name for it, and the files to expect, for messages.
        layout: Order of the axes of the images in the files.
    """

    title: ClassVar[str]
    layout = "NCHW"
    gaps_are_bad = False

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.evidence = ", ".join(dict.fromkeys(file.name for _, file in self.parts))

    @classmethod
    @abstractmethod
    def find_parts(cls, path: Path) -> list[tuple[str, Path]]:
        """Finds split and path of each file of pixels; ``[]`` if the set is not there."""

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Tells if there are files of pixels. False if a folder cannot be listed, which the general kinds report."""
        try:
            return bool(cls.find_parts(path))
        except OSError:
            return False

    def read_class_names(self) -> tuple[str, ...] | None:
        """Reads the names of the classes; None if they are unknown, and in this base."""
        return None

    def list_files(self) -> list[Path]:
        """Lists the files of :meth:`find_parts`. Raises :class:`SourceError` if there are none."""
        self.parts = self.find_parts(self.path)
        if not self.parts:
            raise SourceError(f"{printable(str(self.path))} is not {self.title}")
        return [file for _, file in self.parts]

    def _find_unwritten(self) -> tuple[list[NDArray[np.bool_]], int]:
        """Returns nothing: files of pixels have no chunks, and some are slow to open."""
        return [], 0

    def assign_columns(self, infos: Sequence[Sequence[ArrayInfo]]) -> tuple[ArrayRoles, tuple[str, ...] | None]:
        """Makes each array the column of its name. Returns the roles, and the names of the classes."""
        axis, order = (
            self.layout.index("N"),
            tuple(self.layout.index(letter) for letter in "HWC" if letter in self.layout),
        )
        parts = []
        for number, (split, _) in enumerate(self.parts):
            columns = {info.name: ColumnArray(number, info) for info in infos[number]}
            columns["image"] = replace(columns["image"], axis=axis, order=order)
            parts.append(SplitArrays(split, columns["image"].length, columns))
        splits = in_packing_order(part.split for part in parts)
        parts.sort(key=lambda part: splits.index(part.split))
        return ArrayRoles(tuple(parts), None, ()), self.read_class_names()


class Stl10Source(PixelSource):
    """STL-10 (https://cs.stanford.edu/~acoates/stl10/) in a folder or an archive: ``train_X.bin``, ``train_y.bin`` …,
    column by column. ``unlabeled`` has no labels; ``folds`` are the predefined folds of a training image."""

    kind = "stl10"
    title = "STL-10: it has no train_X.bin, test_X.bin"
    layout = "NCWH"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self._tree = open_required_tree(path)
        super().__init__(path, options)

    @classmethod
    def find_parts(cls, path: Path) -> list[tuple[str, Path]]:
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

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Tells if there are files of pixels. False for a damaged archive, which the general kinds report."""
        try:
            return super().matches(path)
        except AmbiguousSourceError:
            raise
        except SourceError:
            return False

    @property
    def _base(self) -> str:
        """Folder of the set in the tree."""
        folder = self.parts[0][1].parent.relative_to(self.path).as_posix()
        return "" if folder == "." else folder

    def files(self) -> Sequence[Path]:
        """Returns the files of pixels and labels; of an archive, only its path."""
        if not self.path.is_dir():
            return (self.path,)
        labels = [file.with_name(f"{split}_y.bin") for split, file in self.parts]
        return [file for file in (*super().files(), *labels) if file.exists()]

    def read_class_names(self) -> tuple[str, ...] | None:
        """Reads ``class_names.txt``; None if there is no such file. Raises :class:`SourceError` unless it has ten
        different names."""
        if not has_path(self._tree, self._base, "class_names.txt"):
            return None
        file = join(self._base, "class_names.txt")
        lines = read_text(self._tree, file).decode("utf-8-sig").split("\n")
        names = tuple(line.strip() for line in lines if line.strip())
        if len(set(names)) != 10:
            raise SourceError(f"{self._tree.name(file)} has {len(set(names))} names; expected 10")
        return names

    def open_file(self, path: Path) -> StoredArrays:
        """Opens the pixels, labels and folds of a split. Raises :class:`SourceError` for a file that is cut off, wrong
        labels or folds, and pixels that an archive compresses by other than deflate."""
        tree, file, opened = self._tree, path.relative_to(self.path).as_posix(), StoredArrays()
        split = path.name.removesuffix("_X.bin")
        length, rest = divmod(tree.stat(file).size, 3 * 96 * 96)
        if rest:
            raise SourceError(f"{tree.name(file)} ends within an image: it is cut off; download it again")
        try:
            tree.read_part(file, 0, 1)
        except ValueError as error:
            raise SourceError(f"{tree.name(file)}: {error}") from None
        opened.add_images((length, 3, 96, 96), lambda size, offset: tree.read_part(file, offset, size))
        if split != "unlabeled":
            name = join(self._base, f"{split}_y.bin")
            raw = np.frombuffer(read_whole(tree, name), np.uint8).astype(np.int64)
            opened.add("label", _renumber_from_zero(tree.name(name), raw, length, 10))
        if split == "train" and has_path(tree, self._base, "fold_indices.txt"):
            opened.add("folds", self._read_folds(join(self._base, "fold_indices.txt"), length))
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

    def close(self) -> None:
        """Closes the source and its folder or archive."""
        super().close()
        self._tree.close()


class SvhnSource(PixelSource):
    """SVHN, cropped digits (http://ufldl.stanford.edu/housenumbers/): one of ``train_32x32.mat``, ``test_32x32.mat``
    and ``extra_32x32.mat``, or a folder with some of them. The label 10 is the digit 0, and 0 here."""

    kind = "svhn"
    title = "SVHN: expected train_32x32.mat, test_32x32.mat or extra_32x32.mat"
    layout = "HWCN"

    @classmethod
    def find_parts(cls, path: Path) -> list[tuple[str, Path]]:
        """Finds split and file of those that exist, and begin as MAT files. Raises :class:`SourceError` if a file
        cannot be read."""
        found = []
        for split in ("train", "test", "extra"):
            name = f"{split}_32x32.mat"
            file = path / name if path.is_dir() else path
            if file.name == name and first_bytes(file, 6) == b"MATLAB":
                found.append((split, file))
        return found

    def read_class_names(self) -> tuple[str, ...]:
        """Returns the digits 0 to 9."""
        return tuple("0123456789")

    def open_file(self, path: Path) -> StoredArrays:
        """Opens the pixels and labels of a MAT file. Raises :class:`SourceError` for damage, labels other than 1 to 10,
        and arrays of another shape or dtype."""
        shown = printable(str(path))
        with OpenMat(path) as opened:
            images, labels = opened.arrays.get("X"), opened.arrays.get("y")
            if images is None or labels is None or images.info.dtype != "u1" or images.info.shape[:3] != (32, 32, 3):
                raise SourceError(f"{shown} has no uint8 array X of 32 x 32 x 3 x n, or no array y")
            shape = (*images.info.shape, 1)[:4]  # MATLAB drops a last axis of 1
            try:
                raw = opened.read_rows("y", 0, 0, labels.info.shape[0]).ravel()
            except (OSError, ValueError) as error:
                raise SourceError(f"{shown} cannot be read: {printable(str(error))}") from None
            numbers = raw.astype(np.int64)
            if not np.array_equal(numbers, raw):
                raise SourceError(f"{shown} has labels that are not whole numbers")
            opened.arrays = {"image": replace(images, info=replace(images.info, name="image", shape=shape))}
            opened.add("label", (_renumber_from_zero(shown, numbers, shape[3], 10) + 1) % 10)
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
    def find_parts(cls, path: Path) -> list[tuple[str, Path]]:
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
    def matches(cls, path: Path) -> bool:
        """Tells if there are batches, by their names and first bytes."""
        return super().matches(path) and all(_may_be_batch(file) for _, file in cls.find_parts(path))

    def files(self) -> Sequence[Path]:
        """Returns the batches, and ``map_clsloc.txt`` if it exists."""
        return [file for file in (*super().files(), self.path / "map_clsloc.txt") if file.is_file()]

    def read_class_names(self) -> tuple[str, ...] | None:
        """Returns the wnids in the first MiB of ``map_clsloc.txt`` by number; None without that file. Raises
        :class:`SourceError` if the numbers are not 1, 2, 3 …, or a wnid occurs twice."""
        file = self.path / "map_clsloc.txt"
        if not file.is_file():
            return None
        table = TextTable(printable(str(file)), first_bytes(file, 1 << 20))
        wnids = {}
        for line in table:
            if len(line) < 2:
                table.refuse_line(line, "a wnid and a number")
            wnids[table.parse_int(line[1], "a wnid and a number", line)] = line[0]
        if sorted(wnids) != list(range(1, len(wnids) + 1)) or len(set(wnids.values())) != len(wnids):
            raise SourceError(f"{table.name} does not number its classes from 1 on")
        return tuple(wnids[number] for number in range(1, len(wnids) + 1))

    def open_file(self, path: Path) -> StoredArrays:
        """Opens the pixels and labels of a batch. Raises :class:`SourceError` for damage, another shape or dtype, and a
        label that is no class."""
        shown = printable(str(path))
        try:
            opened = open_numpy_file(path) if path.suffix == ".npz" else OpenPickle(path)
            with opened:
                data, labels = opened.arrays.get("data"), opened.arrays.get("labels")
                if data is None or labels is None or data.info.dtype != np.uint8 or data.fortran:
                    raise BatchError(f"data of {data and data.info.dtype}, expected uint8, and labels")
                raw = opened.read_rows("labels", 0, 0, labels.info.shape[0]).astype(np.int64)
                shape = data.info.shape
                side = math.isqrt(shape[1] // 3) if len(shape) == 2 else 0
                if 3 * side * side != shape[-1] or not side:
                    raise BatchError(f"data of the shape {shape}, expected (images, 3 x side x side)")
                opened.arrays = {}
                opened.add_images((shape[0], 3, side, side), data.read, data.offset)
                classes = len(self.read_class_names() or ()) or 1000
                opened.add("label", _renumber_from_zero(shown, raw, shape[0], classes))
        except SourceError:
            raise
        except (BatchError, OSError, ValueError) as error:
            raise SourceError(f"{shown}: {printable(str(error))}") from None
        return opened


def _may_be_batch(file: Path) -> bool:
    """Tells if a file begins like a pickle or an ``.npz``."""
    return first_bytes(file, 4).startswith((b"\x80", b"PK\x03\x04"))


def _renumber_from_zero(shown: str, labels: NDArray[np.int64], length: int, classes: int) -> NDArray[np.int64]:
    """Returns a copy of labels that begin at 1, less 1. Raises :class:`SourceError` unless there are ``length`` labels,
    all from 1 to ``classes``."""
    if len(labels) != length:
        raise SourceError(f"{shown} has {len(labels):,} labels for {length:,} images")
    if length and not 1 <= labels.min() <= labels.max() <= classes:
        raise SourceError(f"{shown} has labels from {labels.min()} to {labels.max()}; expected 1 to {classes:,}")
    return labels - 1


STL10 = Kind("stl10", "STL-10 as published", Stl10Source.recognise, Stl10Source)
SVHN = Kind("svhn", "SVHN, cropped digits, as published", SvhnSource.recognise, SvhnSource)
IMAGENET32 = Kind(
    "imagenet32",
    "downsampled ImageNet (32 x 32, 64 x 64 …) as published",
    ImageNet32Source.recognise,
    ImageNet32Source,
)
