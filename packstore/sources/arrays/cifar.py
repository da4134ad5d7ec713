"""CIFAR-10 and CIFAR-100 in their published layouts (https://www.cs.toronto.edu/~kriz/cifar.html): python or binary, in
a folder or an archive.

Keys are ``train/00000``, ``train/00001`` …, in the order of the batches. All layouts give the same samples.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, compress
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Label
from packstore.core.progress import ProgressCallback, no_progress
from packstore.sources.archives import open_required_tree
from packstore.sources.archives.tar import TAR_FAULTS, is_tar, read_first_names
from packstore.sources.arrays.pickles import BatchError, build_array, parse_dict, parse_name_list
from packstore.sources.arrays.pixels import PixelSource
from packstore.sources.arrays.stored import ColumnArray, StoredArrays
from packstore.sources.base import Entry, Kind, SourceOptions, Survey
from packstore.sources.beside import is_file, join, read_whole
from packstore.sources.refusals import first_bytes
from packstore.sources.tree import Tree

_MAX_BYTES = 1 << 28  # the largest published file, CIFAR-100's train, has 155 MB
_PIXELS = 3072
_LOOKED_AT = 64


class CifarLayout(NamedTuple):
    """Published layout of CIFAR: names of its files.

    Attributes:
        kind: ``cifar10`` or ``cifar100``.
        binary: Its batches are rows of bytes, not pickles.
        directory: Name of the directory.
        archive: Name of the download.
        batches: (split, file name) of all batches in order.
        meta: Files with the names of the classes.
    """

    kind: str
    binary: bool
    directory: str
    archive: str
    batches: tuple[tuple[str, str], ...]
    meta: tuple[str, ...]

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
LAYOUTS = (
    CifarLayout("cifar10", False, "cifar-10-batches-py", "cifar-10-python.tar.gz", _TEN, ("batches.meta",)),
    CifarLayout(
        *("cifar10", True, "cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
        *(tuple((split, f"{name}.bin") for split, name in _TEN), ("batches.meta.txt",)),
    ),
    CifarLayout("cifar100", False, "cifar-100-python", "cifar-100-python.tar.gz", _HUNDRED, ("meta",)),
    CifarLayout(
        *("cifar100", True, "cifar-100-binary", "cifar-100-binary.tar.gz"),
        *((("train", "train.bin"), ("test", "test.bin")), ("fine_label_names.txt", "coarse_label_names.txt")),
    ),
)


def _describe_layouts(kind: str) -> str:
    """Describes what to expect of a dataset, for messages."""
    expected = " or ".join(f"{each.directory}/ or {each.archive}" for each in LAYOUTS if each.kind == kind)
    return f"{kind}: expected {expected}, or a folder that holds one of them"


class CifarSource(PixelSource):
    """Base of the two datasets, with the splits ``train`` and ``test``.

    Images are uint8 ``(32, 32, 3)`` RGB, read-only. Memory holds all labels, and the pixels of at most two batches
    beside the cached blocks.

    Attributes:
        columns: Key of each label column in a python batch and in the python meta file. Binary rows have the columns in
            reverse order.
    """

    columns: ClassVar[Mapping[str, tuple[str, str]]]
    max_open = 2

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self._labels: dict[Path, NDArray[np.int64]] = {}
        super().__init__(path, options)
        self.normalization = self.kind
        if not any(map(len, self._labels.values())):
            raise SourceError(f"{printable(str(path))} holds no images: its batches are empty; download it again")

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Tells if a path holds this dataset, and no other of CIFAR. Raises as :func:`find_cifar` does."""
        found = find_cifar(path, None)
        return found is not None and found[0].kind == cls.kind

    @classmethod
    def find_parts(cls, path: Path) -> list[tuple[str, Path]]:
        """Finds split and path of each batch. Raises as :func:`find_cifar` does."""
        found = find_cifar(path, cls.kind)
        return [] if found is None else [(split, found[1] / name) for split, name in found[0].batches]

    def list_files(self) -> list[Path]:
        """Lists the batches, and reads the names of the classes. Raises :class:`SourceError` if there are none, and as
        :meth:`_refuse_odd_files` does."""
        files = super().list_files()
        names = [file.name for file in files]
        self._layout = next(
            each for each in LAYOUTS if each.kind == self.kind and [name for _, name in each.batches] == names
        )
        self._folder = files[0].parent
        self._place = self._folder if self._folder.is_dir() else next(p for p in files[0].parents if p.is_file())
        inside = self._folder.relative_to(self._place).parts  # the tree may begin in one of these folders
        bases = ["/".join(inside[depth:]) for depth in range(len(inside) + 1)]
        holds_any = (any(is_file(self._tree, join(base, name)) for name in self._layout.files) for base in bases)
        self._base = next(compress(bases, holds_any), "")
        self._refuse_odd_files()
        self._names = self._read_meta()
        return files

    @cached_property
    def _tree(self) -> Tree:
        """The folder or archive, opened at the first use."""
        return open_required_tree(self._place)

    def files(self) -> Sequence[Path]:
        """Returns the files of the layout, or the archive."""
        return [self._place / name for name in self._layout.files] if self._place.is_dir() else (self._place,)

    def read_class_names(self) -> tuple[str, ...]:
        """Returns the names of the classes of the column ``label``."""
        return self._names["label"]

    def make_key(self, split: str, index: int) -> str:
        """Makes a key with five digits."""
        return f"{split}/{index:05d}"

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Counts samples, whose entries have the labels. Raises :class:`NotInSourceError` for an unknown split."""
        return replace(super().survey(split, progress), sampled=frozenset(), value_bytes=0)

    def _make_entries(self, split: str) -> Iterator[Entry]:
        """Makes an entry with labels for each row of a split."""
        labels = chain.from_iterable(self._labels[file].tolist() for name, file in self.parts if name == split)
        for row, values in zip(self.rows(split), labels, strict=True):
            yield Entry(row.key, split, tuple(values), _PIXELS, row.ref)

    def read(self, entry: Entry) -> NDArray[np.uint8]:  # type: ignore[override] # its entry has the other values
        """Returns the image, uint8 ``(32, 32, 3)`` RGB, read-only. Raises :class:`SourceError` for an unreadable
        batch."""
        number, row = entry.ref
        image: NDArray[np.uint8] = self._blocks.read_row(self._roles.parts[number].columns["image"], row, 1)
        return image

    def open_file(self, path: Path) -> StoredArrays:
        """Reads a batch. Raises :class:`SourceError` for damage, and for labels out of range."""
        opened, shown = StoredArrays(), printable(str(path))
        parse = self._parse_binary_batch if self._layout.binary else self._parse_python_batch
        try:
            pixels, labels = parse(self._read(path.name))
        except BatchError as error:
            raise SourceError(f"{shown}: {printable(str(error))}") from None
        opened.add_images(
            (len(pixels), 3, 32, 32),
            lambda size, offset: pixels[offset // _PIXELS : (offset + size) // _PIXELS].tobytes(),
        )
        for column, (name, classes) in enumerate(self._names.items()):
            wrong = np.flatnonzero((labels[:, column] < 0) | (labels[:, column] >= len(classes)))
            if len(wrong):
                raise SourceError(
                    f"{shown}, row {wrong[0]}: {name} {labels[wrong[0], column]} is out of range, expected a number "
                    f"below {len(classes)}"
                )
            opened.add(name, labels[:, column])
        self._labels[path] = labels
        return opened

    def close(self) -> None:
        """Closes the source and its folder or archive."""
        super().close()
        if "_tree" in self.__dict__:
            self._tree.close()
            del self._tree  # with the decompressed copy of an archive

    def _declare_field(self, name: str, chosen: ColumnArray) -> Field:
        """Declares the columns of labels, and others as the base does."""
        return Label(self._names[name]) if name in self._names else super()._declare_field(name, chosen)

    def _refuse_odd_files(self) -> None:
        """Raises :class:`SourceError` if a file is missing, too large for CIFAR, or in the archive twice."""
        missing = []
        for name in self._layout.files:
            try:
                size = self._tree.stat(join(self._base, name)).size
            except OSError:
                size = -1
            if size > _MAX_BYTES:
                raise SourceError(f"{printable(str(self._folder / name))}: {size} bytes; that is not CIFAR")
            missing += [name] if size < 0 else []
        if missing:
            names = ", ".join(sorted(missing))
            raise SourceError(f"{printable(str(self._place))} is {self.kind} without {names}: download it again")
        if self._tree.replaced:
            raise SourceError(f"{printable(str(self._place))} has files that are there twice; that is not CIFAR")

    def _read(self, name: str) -> bytes:
        """Reads a file of the layout. Raises :class:`SourceError` if it cannot be read."""
        return read_whole(self._tree, join(self._base, name), _MAX_BYTES)

    def _read_meta(self) -> dict[str, tuple[str, ...]]:
        """Reads the names of the classes of each label column. Raises :class:`SourceError` for damage."""
        names = {}
        for number, (column, (_, key)) in enumerate(self.columns.items()):
            file = self._layout.meta[number if self._layout.binary else 0]
            try:
                if self._layout.binary:
                    lines = self._read(file).decode("utf-8").splitlines()
                    names[column] = tuple(line.strip() for line in lines if line.strip())
                else:
                    names[column] = parse_name_list(parse_dict(self._read(file)).get(key))
            except (BatchError, UnicodeDecodeError) as error:
                raise SourceError(f"{printable(str(self._folder / file))}: {printable(str(error))}") from None
        return names

    def _parse_binary_batch(self, data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Parses rows of labels and pixels. Returns pixels, uint8 ``(rows, 3072)`` in planes, and labels, int64
        ``(rows, label columns)``. Raises :class:`BatchError` if the batch is cut off."""
        labels = len(self._names)
        row = labels + _PIXELS
        if len(data) % row:
            raise BatchError(f"{len(data)} bytes are not whole rows of {row}: it is cut off; download it again")
        rows = np.frombuffer(data, np.uint8).reshape(-1, row)
        return rows[:, labels:], rows[:, :labels][:, ::-1].astype(np.int64)

    def _parse_python_batch(self, data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
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
        return pixels, np.stack([*columns.values()], axis=1).astype(np.int64)


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
    :class:`SourceError` if a folder holds several or cannot be listed. ``kind``: None takes either.
    """
    layouts = [layout for layout in LAYOUTS if kind in (None, layout.kind)]
    if path.is_file():
        return _find_in_archive(path, layouts)
    try:
        names = set(os.listdir(path))
    except OSError as error:
        raise SourceError(f"{printable(str(path))} cannot be listed: {error.strerror or error}") from None
    for layout in layouts:
        if layout.matches_directory(path.resolve().name, names):
            return layout, path
    directories = [layout for layout in layouts if layout.directory in names and (path / layout.directory).is_dir()]
    archives = {layout.archive for layout in layouts} - {layout.archive for layout in directories}
    places = [path / layout.directory for layout in directories] + [path / name for name in sorted(archives & names)]
    if len(places) > 1:
        listed = ", ".join(printable(place.name) for place in places)
        raise SourceError(f"{printable(str(path))} holds {listed}: give the path of one of them")
    return find_cifar(places[0], kind) if places else None


def _find_in_archive(path: Path, layouts: Sequence[CifarLayout]) -> tuple[CifarLayout, Path] | None:
    """Finds a layout by the first 64 files of a tar; the first suffices if its folder has the published name. Returns
    None for any other file, and for a damaged tar, which the general kinds report."""
    if not is_tar(first_bytes(path, 512)):
        return None
    for count in (1, _LOOKED_AT):
        try:
            files = [*map(PurePosixPath, read_first_names(path, count))]
        except (*TAR_FAULTS, SourceError):
            return None
        for folder in dict.fromkeys(file.parent for file in files):
            names = [file.name for file in files if file.parent == folder]
            for layout in layouts:
                if layout.matches_directory(folder.name, names):
                    return layout, path / folder
    return None


CIFAR10 = Kind("cifar10", "CIFAR-10 as downloaded, a folder or .tar.gz", Cifar10Source.recognise, Cifar10Source)
CIFAR100 = Kind("cifar100", "CIFAR-100 as downloaded, a folder or .tar.gz", Cifar100Source.recognise, Cifar100Source)
