"""MNIST's idx files, plain or gzip: MNIST, Fashion-MNIST, KMNIST, EMNIST and QMNIST as they are published.

Splits, labels, names of classes and pixels are those of ``torchvision.datasets.mnist``. EMNIST's images are transposed,
as published; ``layout="NWH"`` turns them upright. The format is described at http://yann.lecun.com/exdb/mnist: two
zeros, the type, the number of axes, their sizes, the numbers, all big-endian.
"""

from __future__ import annotations

import math
import os
import re
import string
import struct
import zlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Array, Field
from packstore.sources.arrays.choosing import ArrayRoles, ColumnArray, SplitArrays
from packstore.sources.arrays.source import ArraySource
from packstore.sources.arrays.stored import ArrayInfo, OpenArrays, read_at
from packstore.sources.base import Certainty, Kind, SourceOptions
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

    @classmethod
    def open_file(cls, path: Path, folder: Path) -> OpenArrays:
        """Opens an idx file. Ignores ``folder``. Raises :class:`SourceError` for a wrong header or size."""
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

    def convert_value(self, name: str, chosen: ColumnArray, value: Any) -> Any:
        """Converts a row as the base does. The first of QMNIST's eight numbers is the class."""
        return super().convert_value(name, chosen, np.reshape(value, -1)[:1] if name == "label" else value)

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


class _OpenIdx(OpenArrays):
    """Open idx file, plain or gzip: one array, called ``numbers``. Opening raises :class:`SourceError` for a wrong
    header or size. Of a gzip file, opening only refuses an impossible size."""

    def __init__(self, path: Path) -> None:
        self._shown = printable(str(path))
        self._zipped = GzipReader(path) if first_bytes(path, 2) == _GZIP else None
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._whole = False
        try:
            self._info, self._place = self._parse_header()
        except BaseException:
            self.close()
            raise

    def _parse_header(self) -> tuple[ArrayInfo, int]:
        """Parses the header; returns the array, and the offset of its numbers. Raises :class:`SourceError` for another
        header, and if the file's size does not fit. A gzip file is only refused if no gzip could hold so much."""
        try:
            start = self._read_bytes(4, 0)
            dtype, axes = _DTYPES.get(start[2]), start[3]
            if start[:2] != b"\0\0" or dtype is None or not 1 <= axes <= _MAX_AXES:
                raise ValueError(f"it begins with {start!r}")
            shape = struct.unpack(f">{axes}I", self._read_bytes(4 * axes, 4))
        except (OSError, ValueError) as error:
            raise SourceError(f"{self._shown} is no idx file: {printable(str(error))}") from None
        info = ArrayInfo("", "numbers", shape, np.dtype(dtype), alone=True)
        place, size = 4 + 4 * axes, math.prod(shape) * info.dtype.itemsize
        file_size = os.fstat(self._descriptor).st_size
        if self._zipped is None and file_size != place + size:
            raise SourceError(f"{self._shown} has {file_size:,} bytes; its header says {place + size:,}")
        if size > file_size * _MAX_RATIO:
            raise SourceError(f"{self._shown} has {file_size:,} bytes, which cannot hold the {size:,} of its header")
        return info, place

    def list_arrays(self) -> list[ArrayInfo]:
        """Describes the only array of the file."""
        return [self._info]

    def read_rows(self, name: str, axis: int, start: int, stop: int) -> NDArray[Any]:
        """Reads rows ``start`` to ``stop`` of the only array along its first axis; ignores ``axis``. The first read of
        a gzip file decompresses all of it, and verifies its checksum. Raises :class:`ValueError` for a damaged file."""
        info = self._info
        row = math.prod(info.shape[1:]) * info.dtype.itemsize
        if self._zipped is not None and not self._whole:
            self._verify_gzip(self._zipped, self._place + row * info.shape[0])
        data = self._read_bytes(row * (stop - start), self._place + row * start)
        return np.frombuffer(data, info.dtype).reshape(stop - start, *info.shape[1:])

    def _verify_gzip(self, zipped: GzipReader, size: int) -> None:
        """Decompresses the whole file, and notes that it is verified. Raises :class:`ValueError` if its checksum is
        wrong, or its content does not have ``size`` bytes."""
        try:
            zipped.seek(size)
            more, found = len(zipped.read(1)), zipped.tell()
        except (zlib.error, EOFError) as error:
            raise ValueError(f"{self._shown} is damaged: {error}") from None
        if more or found != size:
            raise ValueError(f"{self._shown} holds {found:,} bytes or more; its header says {size:,}")
        self._whole = True

    def _read_bytes(self, size: int, place: int) -> bytes:
        """Reads exactly ``size`` bytes at offset ``place`` of the decompressed content. Raises :class:`ValueError` if
        they are damaged or missing."""
        if self._zipped is None:
            return read_at(self._descriptor, size, place)
        return self._zipped.read_at(size, place, self._shown)

    def close(self) -> None:
        """Closes the file, and its decompressor. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            if self._zipped is not None:
                self._zipped.close()


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


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Returns ``CERTAIN`` if :func:`_find_idx_folders` finds folders, without opening the files. Else returns ``NO``,
    also if a folder cannot be listed."""
    try:
        return Certainty.CERTAIN if _find_idx_folders(path) else Certainty.NO
    except PermissionError:
        return Certainty.NO  # the general kinds name the folder that cannot be listed


KIND = Kind(IdxSource.kind, "MNIST's idx files", _recognise, IdxSource, takes_arrays=True)
