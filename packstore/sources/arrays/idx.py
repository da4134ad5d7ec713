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
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.sources.arrays.choosing import ask
from packstore.sources.arrays.published import Parts, PixelSource
from packstore.sources.arrays.stored import ArrayInfo, OpenArrays, ReadRange, StoredArray, verify_first
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
_CLASSES = {"fashion": _FASHION, "kmnist": _KMNIST, "kuzushiji": _KMNIST, "mnist": _MNIST}
_EMNIST = {
    "byclass": tuple(_ALL),
    "bymerge": _MERGED,
    "balanced": _MERGED,
    "letters": ("N/A", *string.ascii_lowercase),
    "digits": tuple(string.digits),
    "mnist": tuple(string.digits),
}


class IdxSource(PixelSource):
    """Samples of the idx files of one data set. The files are in the folder, in its ``raw``, or in the ``raw`` of a
    folder in it (``MNIST/raw``).

    Columns: ``image``, ``label``, and for QMNIST ``nist``, all eight numbers of a label. Opening raises
    :class:`AmbiguousSourceError` for several data sets, of which ``image_key`` chooses one. Opening raises
    :class:`SourceError` for damaged headers, wrong sizes, a split without images or labels, any ``label_key``, and a
    ``layout`` other than NHW and NWH. The content of a gzip file is verified at its first read.
    """

    kind = "idx"
    title = "a folder of idx files such as train-images-idx3-ubyte.gz"

    @classmethod
    def find_parts(cls, path: Path) -> Parts:
        """Finds split and path of all idx files, without gzip copies of plain files. Raises
        :class:`AmbiguousSourceError` if several folders hold such files."""
        folders = _find_idx_folders(path)
        if len(folders) > 1:
            answers = [Answer(source=folder) for folder in folders]
            question = f"{printable(str(path))} holds {len(folders)} data sets"
            raise AmbiguousSourceError(question, answers, lists_answers=True)
        files: dict[str, tuple[str, Path]] = {}
        for folder in folders:
            for file in sorted(visible_paths(folder)):  # x before x.gz
                if match := _match_name(file):
                    split = "train" if match["split"] == "train" else "test"
                    files.setdefault(file.name.removesuffix(".gz"), (split, file))
        return list(files.values())

    def list_files(self) -> list[Path]:
        """Lists the files of images of a data set. Also finds their files of labels."""
        if self.options.label_key is not None or self.options.layout not in (None, "NHW", "NWH"):
            raise SourceError("it has its own labels: --label-key is not used, and --layout may be NHW or NWH")
        self.layout = self.options.layout or "NHW"
        super().list_files()
        sets: dict[str, dict[str, dict[str, Path]]] = {}
        for split, file in self.parts:
            if match := _match_name(file):
                sets.setdefault(match["set"] or "", {}).setdefault(split, {})[match["what"]] = file
        key = self.options.image_key
        chosen = sorted(name for name in sets if key in (None, name, name.removeprefix("emnist-")))
        if len(chosen) != 1:
            raise ask("it holds several data sets", "--image-key", chosen or sorted(sets))
        splits = sets[chosen[0]]
        for split, files in splits.items():
            if missing := {"images", "labels"} - files.keys():
                raise SourceError(f"the {missing.pop()} of {split} are missing")
        self.parts = [(split, splits[split]["images"]) for split in ("train", "test") if split in splits]
        self._label_files = {files["images"]: files["labels"] for files in splits.values()}
        self.beside = [file.name for file in self._label_files.values()]
        self.classes = {"label": _find_class_names(chosen[0], self._folder)}
        return [file for _, file in self.parts]

    def open_arrays(self, opened: OpenArrays, path: Path) -> None:
        """Opens a file of images and its file of labels."""
        images, labels = _open_array(opened, path), _open_array(opened, self._label_files[path])
        if len(images.info.shape) != 3 or images.info.dtype != "u1":
            raise ValueError("it is no array of images")
        shape = labels.info.shape
        if labels.info.dtype.kind not in "ui" or len(shape) not in (1, 2) or not all(shape[1:]):
            raise ValueError("its file of labels is no array of labels")
        opened.put("image", images)
        opened.put("label", labels)
        if len(shape) == 2:  # QMNIST: the first number is the class
            opened.add("nist", labels.read_all())
            opened.add("label", opened.arrays["nist"].read_all()[:, 0])


def _find_class_names(data_set: str, folder: Path) -> tuple[str, ...] | None:
    """Finds the names of the classes by the names of the files, or of the two folders above them."""
    if data_set.startswith("emnist-"):
        return _EMNIST.get(data_set.removeprefix("emnist-"))
    folder = folder.resolve()
    # The files of MNIST, Fashion-MNIST and KMNIST have the same names, so folders decide.
    names = ("mnist",) if data_set == "qmnist" else (folder.name.lower(), folder.parent.name.lower())
    return next((_CLASSES[word] for name in names for word in _CLASSES if word in name), None)


def _open_array(opened: OpenArrays, path: Path) -> StoredArray:
    """Opens the array of an idx file, plain or gzip, until ``opened`` is closed."""
    reader = opened.enter_context(closing(GzipReader(path))) if first_bytes(path, 2) == _GZIP else None
    read: ReadRange = opened.open_plain(path) if reader is None else reader.read_at
    start = read(4, 0)
    dtype, axes = _DTYPES.get(start[2]), start[3]
    if start[:2] != b"\0\0" or dtype is None or not 1 <= axes <= _MAX_AXES:
        raise ValueError(f"{path.name} is no idx file: it begins with {start!r}")
    shape = struct.unpack(f">{axes}I", read(4 * axes, 4))
    info = ArrayInfo(path.name, shape, np.dtype(dtype))
    place, file_size = 4 + 4 * axes, path.stat().st_size
    size = place + math.prod(shape) * info.dtype.itemsize
    # The size of a gzip file is only bounded here; the first read of values verifies it, with the checksum.
    if size != file_size and (reader is None or size > file_size * _MAX_RATIO):
        raise ValueError(f"{path.name} has {file_size:,} bytes; its header says {size:,}")
    if reader is not None:
        read = verify_first(path.name, read, size, end=partial(reader.seek, size + 1))
    return StoredArray(info, read, place)


def _match_name(path: Path) -> re.Match[str] | None:
    """Matches the name of a file with the pattern of idx files (``train-images-idx3-ubyte.gz``)."""
    match = _NAME.fullmatch(path.name)
    return match if match and path.is_file() else None


def _find_idx_folders(path: Path) -> list[Path]:
    """Finds the folders with idx files: ``path``, its ``raw``, and the ``raw`` of each folder in it."""
    if not path.is_dir():
        return []
    places = [path, path / "raw", *(each / "raw" for each in list_folders(path))]
    return [each for each in places if each.is_dir() and any(map(_match_name, visible_paths(each)))]


KIND = Kind("idx", "MNIST's idx files", IdxSource.recognise, IdxSource, takes_arrays=True)
