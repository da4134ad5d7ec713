"""MNIST's idx files, plain or gzip: MNIST, Fashion-MNIST, KMNIST, EMNIST and QMNIST as they are published.

Splits, labels, names of classes and pixels are those of ``torchvision.datasets.mnist``. EMNIST's images are transposed,
as published; ``layout="NWH"`` turns them upright. The format is described at http://yann.lecun.com/exdb/mnist: two
zeros, the type, the number of axes, their sizes, the numbers, all big-endian.
"""

from __future__ import annotations

import math
import re
import string
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Array, Field
from packstore.sources.arrays.choosing import ArrayRoles, SplitArrays
from packstore.sources.arrays.source import ArraySource
from packstore.sources.arrays.stored import (
    ArrayInfo,
    ColumnArray,
    ReadRange,
    StoredArray,
    StoredArrays,
    VerifiedReader,
    read_at,
)
from packstore.sources.base import Kind
from packstore.sources.ignoring import visible_paths
from packstore.sources.inflating import GzipReader
from packstore.sources.listing import list_folders
from packstore.sources.refusals import first_bytes

_NAME = re.compile(
    r"(?:(?P<set>[a-z]+(?:-[a-z]+)?)-)?(?P<split>train|t10k|test)-(?P<what>images|labels)[-.]idx(?P<axes>\d)-"
    r"(?P<type>ubyte|int)(?P<gz>\.gz)?"
)
_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MAX_AXES, _MAX_RATIO = 8, 1100
_GZIP = b"\x1f\x8b"

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_MNIST = tuple(f"{number} - {name}" for number, name in enumerate(_DIGITS))
_FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_KMNIST = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
_ALL = sorted(string.digits + string.ascii_letters)
_MERGED = tuple(letter for letter in _ALL if letter not in "cijklmopsuvwxyz")
_EMNIST = {
    "byclass": tuple(_ALL),
    "bymerge": _MERGED,
    "balanced": _MERGED,
    "letters": ("N/A", *string.ascii_lowercase),
    "digits": tuple(string.digits),
    "mnist": tuple(string.digits),
}


class IdxSource(ArraySource):
    """Samples of the idx files of one data set. The files are in the folder, in its ``raw``, or in the ``raw`` of a
    folder in it (``MNIST/raw``).

    Columns: ``image``, ``label``, and for QMNIST ``nist``, all eight numbers of a label. Opening raises
    :class:`AmbiguousSourceError` for several data sets. Opening raises :class:`SourceError` for damaged headers, wrong
    sizes, and a split without images or labels. The content of a gzip file is verified at its first read.
    """

    kind = "idx"
    suffixes = ("-ubyte", "-int", "-ubyte.gz", "-int.gz")
    files_name = "idx files"

    def open_file(self, path: Path) -> StoredArrays:
        """Opens an idx file. Raises :class:`SourceError` for a wrong header or size."""
        return _OpenIdx(path)

    @classmethod
    def find_files(cls, path: Path) -> list[Path]:
        """Finds the idx files, without gzip copies of plain files; ``[]`` if there are none. Raises
        :class:`AmbiguousSourceError` if several folders hold such files."""
        folders = _find_idx_folders(path)
        if len(folders) > 1:
            names = " or ".join(printable(str(folder)) for folder in folders)
            raise AmbiguousSourceError(
                f"{printable(str(path))} holds {len(folders)} data sets: give {names}",
                [Answer(source=folder) for folder in folders],
            )
        files: dict[str, Path] = {}
        for folder in folders:
            for file in sorted(visible_paths(folder)):  # x before x.gz
                if _match_name(file):
                    files.setdefault(file.name.removesuffix(".gz"), file)
        return list(files.values())

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Tells if :func:`_find_idx_folders` finds folders. False if a folder cannot be listed."""
        try:
            return bool(_find_idx_folders(path))
        except PermissionError:
            return False  # the general kinds name the folder that cannot be listed

    def assign_roles(self, infos: Sequence[Sequence[ArrayInfo]]) -> ArrayRoles:
        """Assigns images, labels and splits by the names of the files. The option ``image_key`` chooses one of several
        data sets.

        Raises :class:`AmbiguousSourceError` if a folder holds several data sets (EMNIST's) without ``image_key``, or
        none of that name. Raises :class:`SourceError` for any ``label_key``, and for a ``layout`` other than NHW and
        NWH.
        """
        shown, options = printable(str(self.path)), self.options
        if options.label_key is not None or options.layout not in (None, "NHW", "NWH"):
            raise SourceError(
                f"{shown} has its own labels: --label-key is not used, and --layout may be NHW or NWH (transposed)"
            )
        sets = sorted({match["set"] or "" for match in map(_match_name, self.files()) if match})
        if options.image_key is not None:
            sets = [name for name in sets if options.image_key in (name, name.removeprefix("emnist-"))]
        if len(sets) != 1:
            asked = " or ".join(f"--image-key {name}" for name in sets or ["mnist"])
            raise AmbiguousSourceError(
                f"{shown} holds several data sets: say which by {asked}",
                [Answer(("--image-key", name)) for name in sets],
            )
        self._data_set = sets[0]
        parts = []
        for split, names in (("train", ("train",)), ("test", ("t10k", "test"))):
            arrays = {}
            for number, file in enumerate(self.files()):
                match = _match_name(file)
                if match and (match["set"] or "") == self._data_set and match["split"] in names:
                    arrays[match["what"]] = (number, infos[number][0])
            if arrays:
                parts.append(self._assign_part(split, arrays))
        used = {chosen.file for part in parts for chosen in part.columns.values()}
        rest = tuple(each[0] for number, each in enumerate(infos) if number not in used)
        return ArrayRoles(tuple(parts), None, rest)

    def _assign_part(self, split: str, arrays: dict[str, tuple[int, ArrayInfo]]) -> SplitArrays:
        """Makes the columns of a split from its arrays ``images`` and ``labels``. QMNIST's labels become the column
        ``nist`` as well. Raises :class:`SourceError` if an array is missing, or has a wrong dtype or number of axes."""
        missing = next((what for what in ("images", "labels") if what not in arrays), None)
        if missing is not None:
            raise SourceError(f"{printable(str(self.path))}: the {missing} of {split} are missing")
        (file, images), (label_file, labels) = arrays["images"], arrays["labels"]
        if len(images.shape) != 3 or images.dtype != "u1":
            raise SourceError(f"{printable(str(self.path))}: {images.shown} is no array of images")
        if labels.dtype.kind not in "ui" or len(labels.shape) not in (1, 2) or not all(labels.shape[1:]):
            raise SourceError(f"{printable(str(self.path))}: {labels.shown} is no array of labels")
        turned = self.options.layout == "NWH"
        columns = {
            "image": ColumnArray(file, images, 0, (2, 1) if turned else (1, 2)),
            "label": ColumnArray(label_file, labels),
        }
        if len(labels.shape) == 2:
            columns["nist"] = columns["label"]
        return SplitArrays(split, images.shape[0], columns)

    def _declare_field(self, name: str, chosen: ColumnArray) -> Field:
        """Declares QMNIST's column ``nist`` as an array, and other columns as the base does."""
        return (
            Array(chosen.info.dtype.name, chosen.info.shape[1:])
            if name == "nist"
            else super()._declare_field(name, chosen)
        )

    def make_converter(self, name: str, chosen: ColumnArray) -> Callable[[Any], Any]:
        """Makes the converter as the base does. The first of QMNIST's eight numbers is the class."""
        convert = super().make_converter(name, chosen)
        return (lambda value: convert(np.reshape(value, -1)[:1])) if name == "label" else convert

    @cached_property
    def _classes(self) -> tuple[str, ...] | None:
        """Names of classes, by the names of the files or of the two folders above them. None if these name no data
        set."""
        if self._data_set.startswith("emnist-"):
            return _EMNIST.get(self._data_set.removeprefix("emnist-"))
        if self._data_set == "qmnist":
            return _MNIST
        folder = self._files[0].parent.resolve()
        for name in (folder.name, folder.parent.name):
            for said, classes in (
                ("fashion", _FASHION),
                ("kmnist", _KMNIST),
                ("kuzushiji", _KMNIST),
                ("mnist", _MNIST),
            ):
                if said in name.lower():
                    return classes
        return None  # the files of all these data sets have the same names


class _OpenIdx(StoredArrays):
    """Open idx file, plain or gzip: one array, called ``numbers``. Opening raises :class:`SourceError` for a wrong
    header or size. Of a gzip file, opening only refuses a size that no gzip could hold; the first read of values
    verifies size and checksum."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._shown = printable(str(path))
        with self:
            self.arrays["numbers"] = self._open_array(path)

    def _open_array(self, path: Path) -> StoredArray:
        """Opens the only array of the file. Raises :class:`SourceError` for a wrong header or size."""
        read: ReadRange
        zipped = first_bytes(path, 2) == _GZIP
        if zipped:
            reader = GzipReader(path)
            self.closing.callback(reader.close)
            read = partial(reader.read_at, name=self._shown)
        else:
            read = partial(read_at, self.open_descriptor(path))
        try:
            start = read(4, 0)
            dtype, axes = _DTYPES.get(start[2]), start[3]
            if start[:2] != b"\0\0" or dtype is None or not 1 <= axes <= _MAX_AXES:
                raise ValueError(f"it begins with {start!r}")
            shape = struct.unpack(f">{axes}I", read(4 * axes, 4))
        except (OSError, ValueError) as error:
            raise SourceError(f"{self._shown} is no idx file: {printable(str(error))}") from None
        info = ArrayInfo("", "numbers", shape, np.dtype(dtype), alone=True)
        place, size, file_size = 4 + 4 * axes, math.prod(shape) * info.dtype.itemsize, path.stat().st_size
        if not zipped and file_size != place + size:
            raise SourceError(f"{self._shown} has {file_size:,} bytes; its header says {place + size:,}")
        if size > file_size * _MAX_RATIO:
            raise SourceError(f"{self._shown} has {file_size:,} bytes, which cannot hold the {size:,} of its header")
        if zipped:
            read = VerifiedReader(read, partial(self._verify_gzip, reader, place + size))
        return StoredArray(info, read, place)

    def _verify_gzip(self, reader: GzipReader, size: int) -> None:
        """Decompresses the whole file. Raises :class:`ValueError` if its checksum is wrong, or its content does not
        have ``size`` bytes."""
        try:
            reader.seek(size)
            more, found = len(reader.read(1)), reader.tell()
        except (zlib.error, EOFError) as error:
            raise ValueError(f"{self._shown} is damaged: {error}") from None
        if more or found != size:
            raise ValueError(f"{self._shown} holds {found:,} bytes or more; its header says {size:,}")


def _match_name(path: Path) -> re.Match[str] | None:
    """Matches a file's name with the pattern of idx files (``train-images-idx3-ubyte.gz``). Returns None for other
    names, and for a path that is no file."""
    match = _NAME.fullmatch(path.name)
    return match if match and path.is_file() else None


def _find_idx_folders(path: Path) -> list[Path]:
    """Finds the folders with idx files: ``path``, else its ``raw``, else the ``raw`` of each folder in it. Returns
    ``[]`` if there are none."""
    if not path.is_dir():
        return []
    for places in ([path], [path / "raw"], [each / "raw" for each in list_folders(path)]):
        folders = [place for place in places if place.is_dir() and any(map(_match_name, visible_paths(place)))]
        if folders:
            return folders
    return []


KIND = Kind("idx", "MNIST's idx files", IdxSource.recognise, IdxSource, takes_arrays=True)
