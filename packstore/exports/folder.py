"""Exports with images as files, and the paths of these files: ``split/class/name``."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest, xxh3_128_hexdigest

from packstore.core.files import open_file, sync_file_system
from packstore.core.manifest import Manifest
from packstore.exports.base import Export, Record, safe_name, shorten_name
from packstore.images.sniff import SUFFIXES
from packstore.stores import Reader

IMAGE_SUFFIXES = frozenset({*SUFFIXES.values(), "jpeg", "tiff", "pgm", "pbm", "heif", "j2k", "jpx", "jpf"})
_SUFFIXES = IMAGE_SUFFIXES | {"txt", "json", "xml"}
"""Suffixes of images, and of label files that have an image's name (YOLO, LabelMe, Pascal VOC)."""
_YEAR = re.compile(r"(19|20)\d\d$")
"""The year that COCO appends to names of splits: ``train2017``."""
_SAME = {
    "jpeg": "jpg",
    "tiff": "tif",
    "pgm": "ppm",
    "pbm": "ppm",
    "heif": "heic",
    **dict.fromkeys(("j2k", "jpx", "jpf"), "jp2"),
}
_LONGEST = 1000
"""Most bytes of a path below its class: systems take 1,024 or 4,096 for the full path."""
UNLABELLED = "unlabelled"
"""The folder of images whose label is missing."""


class FilesExport(Export):
    """Base of exports that hold images as files in folders of splits and classes.

    Files have the names in their keys, made safe. Labels are only in the names of folders, so no column is exact.
    """

    source = "exported"

    def write_shard(self, number: int, split: str, records: Iterable[Record]) -> None:
        """Writes each record by :meth:`write_record`. Ignores ``number`` and ``split``: shards leave no trace."""
        for record in records:
            self.write_record(record)

    @abstractmethod
    def write_record(self, record: Record) -> None:
        """Writes the files of a record, and sets :attr:`Record.line`."""

    def visible_columns(self) -> Sequence[str]:
        """Returns ``label`` if classes are folders, else none. Reads all labels."""
        return ("label",) if self.class_folders.names is not None else ()

    def losses(self) -> Sequence[str]:
        """Returns the texts of :meth:`ClassFolders.losses`, and a text on the order of records and on keys. Reads all
        labels."""
        return [*self.class_folders.losses(), "the order of the records, and keys whose names no file can have"]

    @cached_property
    def class_folders(self) -> ClassFolders:
        """Folder names of the classes. Creating them reads all labels."""
        return ClassFolders(self.manifest, self.reader)

    @cached_property
    def record_paths(self) -> RecordPaths:
        """Callable that returns the path of a record's file. Creating it reads all keys and labels."""
        recoded = self.recoded or not self.manifest.holds_files
        return RecordPaths(self.manifest, self.reader, self.split_folders, self.class_folders, recoded=recoded)

    @cached_property
    def split_folders(self) -> dict[str, str]:
        """Maps each split to the name of its folder."""
        names = [split.name for split in self.manifest.splits]
        return dict(zip(names, make_distinct([safe_name(name) for name in names]), strict=True))


class FolderExport(FilesExport):
    """Base of exports of a folder with a file for each image, and perhaps further files for it."""

    shard_bytes = None

    def sync(self, file: str | None) -> None:
        """Flushes the whole file system, since each image is a file."""
        sync_file_system(self.path)

    def write_record(self, record: Record) -> None:
        """Writes the image and the files beside it."""
        data, path = image_file(record), self.image_path(record)
        self.write_file(path, data)
        record.line.update({"file": path, **self.write_beside(record, path, data)})

    def image_path(self, record: Record) -> str:
        """Returns the path of a record's image in the export."""
        return self.record_paths(record)

    def write_beside(self, record: Record, image: str, data: bytes) -> Mapping[str, str]:
        """Writes further files of a record. Returns entries of its line in ``packstore.rows.jsonl``.

        By default writes none. ``image``: path of its image in the export. ``data``: the image.
        """
        return {}

    def write_file(self, path: str, data: bytes) -> None:
        """Writes the file ``path`` of the export; replaces a file that exists. Creates its folder if needed."""
        folder = path.rpartition("/")[0]
        if folder not in self._folders:
            (self.path / folder).mkdir(parents=True, exist_ok=True)
            self._folders.add(folder)
        with open_file(self.path / path, "wb") as file:
            file.write(data)

    @cached_property
    def _folders(self) -> set[str]:
        """Folders that exist."""
        return set()


class ImageFolderExport(FolderExport):
    """A folder with a file for each image, in folders of splits and classes."""

    name = "imagefolder"
    help = "an image folder, root/split/class/file"


def image_file(record: Record) -> bytes:
    """Returns the image file of a record. An array fails an assertion."""
    assert not isinstance(record.image, np.ndarray)
    return record.image


class ClassFolders:
    """Folder names of the classes of the column ``label``. Reads all labels.

    Without names of classes, folders are numbers with leading zeros.

    Attributes:
        names: Folder name by class number. None in a store without labels. Without names of classes, None also if a
            label is below 0, or 2^20 or more.
        missing: Name of the folder of images whose label is missing.
        renamed: Number of classes whose folder has another name than the class.
        labels: Class number of each record, -1 for a missing label; None if ``names`` is.
    """

    def __init__(self, manifest: Manifest, reader: Reader) -> None:
        self.names: list[str] | None = None
        self.missing = UNLABELLED
        self.renamed = 0
        self.labels: NDArray[np.int64] | None = None
        self._counts: list[NDArray[np.int64]] = []
        if not manifest.has_label:
            return
        labels = reader.fixed_column("label")
        if manifest.classes is not None:
            self.names = make_distinct([safe_name(name) for name in manifest.classes])
            self.renamed = sum(a != b for a, b in zip(self.names, manifest.classes, strict=True))
        else:
            lowest, most = int(labels.min()), int(labels.max())
            if lowest < 0 or most >= 1 << 20:
                return  # not class numbers
            self.names = [f"{number:0{len(str(most))}}" for number in range(most + 1)]
        while self.missing in self.names:
            self.missing += "_"
        valid = (
            reader.fixed_column("label_valid") if manifest.column("label").nullable else np.ones(len(labels), np.bool_)
        )
        self.labels = np.where(valid, labels, -1)
        self._counts = [
            np.bincount(labels[start:stop][valid[start:stop]], minlength=len(self.names))
            for _, start, stop in manifest.ranges
        ]

    def losses(self) -> list[str]:
        """Returns a text for each loss with torchvision's ``ImageFolder``, which numbers folders by name. Returns none
        without labels.

        Losses are numbers and names of classes, missing labels, and classes without images.
        """
        if self.names is None:
            return []
        lost = []
        if sorted(self.names) != self.names:
            lost.append("numbers of classes: readers number folders in the order of their names")
        if self.renamed:
            lost.append(f"names of {self.renamed:,} classes: they cannot be names of folders, so they are changed")
        if self.labels is not None and (self.labels < 0).any():
            lost.append(f"missing labels: such images are in a folder {self.missing!r}, which readers take for a class")
        empty = max(int((counts == 0).sum()) for counts in self._counts)
        if empty:
            lost.append(f"classes without images ({empty:,} in a split): readers number only folders that exist")
        return lost


class RecordPaths:
    """Chooses the path of each record's file: ``split/class/name``. Paths are unique even if case is ignored.

    Unsafe characters are escaped. Long names end with a hash. A repeated path gets ``~`` and the record's number.
    """

    def __init__(
        self, manifest: Manifest, reader: Reader, splits: Mapping[str, str], classes: ClassFolders, *, recoded: bool
    ) -> None:
        """``splits``: folders of the splits. ``recoded``: files are re-encoded, and suffixes in keys may be wrong.
        Reads all keys and labels."""
        self.classes = classes
        self._splits = splits
        self._recoded = recoded
        self._ranges = manifest.ranges
        self._repeated = self._unique_suffixes(reader)

    def __call__(self, record: Record) -> str:
        """Returns the path of a record's file, with ``/``.

        Keeps the key's suffix if it is a suffix of images. The suffix of a re-encoded file must also fit the content.
        Otherwise adds the usual suffix of the content.
        """
        label = self._read_label(record)
        stem, suffix = _split_suffix(self._build_stem(record.key, record.split, label))
        kept = suffix.lower() and not (self._recoded and _SAME.get(suffix.lower(), suffix.lower()) != record.extension)
        stem += self._repeated.get(record.number, "")
        return f"{_shorten_file_name(stem)}.{suffix if kept else record.extension}"

    def _read_label(self, record: Record) -> int | None:
        """Returns the label of a record, -1 if it is missing, or None in a store without labels."""
        if self.classes.names is None:
            return None
        return int(record.stored["label"]) if record.has_value("label") else -1

    def _build_stem(self, key: str, split: str, label: int | None) -> str:
        """Returns the path for a key, with the folders of its split and class."""
        # A key that begins with these folders does not get them twice.
        folders, parts = [], key.split("/")
        if split:
            folders.append(self._splits[split])
            if len(parts) > 2 and sorted(map(str.lower, parts[:2])) == sorted([split.lower(), "images"]):
                del parts[:2]  # YOLO's images/train
            elif len(parts) > 1 and split.lower() in (parts[0].lower(), _YEAR.sub("", parts[0].lower())):
                parts.pop(0)
        if label is not None and self.classes.names is not None:
            folder = self.classes.names[label] if label >= 0 else self.classes.missing  # -1: missing
            folders.append(folder)
            if len(parts) > 1 and safe_name(parts[0]) == folder:
                parts.pop(0)
        rest = "/".join(map(safe_name, parts))
        if len(rest.encode()) > _LONGEST:
            rest = xxh3_128_hexdigest(key.encode("utf-8", "surrogateescape"))
        return "/".join([*folders, rest])

    def _unique_suffixes(self, reader: Reader) -> dict[int, str]:
        """Maps records to suffixes that make their paths unique; most records need none."""
        # Paths are compared without file extensions, which may change.
        hashes = np.empty(len(reader), np.uint64)
        folders, folder = set[int](), ""
        for number, stem in enumerate(self._list_stems(reader)):
            hashes[number] = _hash_path(stem)  # 8 bytes a record, not the path
            if not stem.startswith(f"{folder}/") or "/" in stem[len(folder) + 1 :]:
                folder = stem.rpartition("/")[0]
                folders.update(_hash_file_like_folders(folder))
        # A record needs a suffix if a folder or an earlier record has its path.
        blocked = np.flatnonzero(np.isin(hashes, np.array(sorted(folders), np.uint64))).tolist()
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        again = {*order[1:][hashes[1:] == hashes[:-1]].tolist(), *blocked}
        suffixes: dict[int, str] = {}
        for number, stem in enumerate(self._list_stems(reader)) if again else ():
            if number in again:
                added = f"~{number}"
                while _contains_sorted(hashes, _hash_path(stem + added)) or _hash_path(stem + added) in folders:
                    added += "~"
                suffixes[number] = added
        return suffixes

    def _list_stems(self, reader: Reader) -> Iterator[str]:
        """Yields the paths of all records in order, without image suffixes."""
        labels = self.classes.labels
        for split, start, stop in self._ranges:
            for number in range(start, stop):
                label = None if labels is None else int(labels[number])
                yield _split_suffix(self._build_stem(reader.key(number), split, label))[0]


def make_distinct(names: Sequence[str]) -> list[str]:
    """Returns ``names``, with ``~`` and a number appended to each that repeats an earlier one. Ignores case."""
    used: set[str] = set()
    unique_names = []
    for name in names:
        unique, count = name, 1
        while unique.casefold() in used:
            count += 1
            unique = f"{name}~{count}"
        used.add(unique.casefold())
        unique_names.append(unique)
    return unique_names


def _split_suffix(path: str) -> tuple[str, str]:
    """Splits a path into stem and image suffix, which is ``""`` if it has none."""
    stem, dot, suffix = path.rpartition(".")
    if not dot or suffix.lower() not in IMAGE_SUFFIXES or stem.endswith("/") or not stem:
        return path, ""
    return stem, suffix


def _shorten_file_name(stem: str) -> str:
    """Shortens the file name in a path, but not its folders, if it is too long for file systems."""
    folder, slash, name = stem.rpartition("/")
    return f"{folder}{slash}{shorten_name(name)}"


def _hash_path(stem: str) -> int:
    """Hashes a path with its file name shortened, ignoring case."""
    return xxh3_64_intdigest(_shorten_file_name(stem).casefold().encode("utf-8", "surrogatepass"))


def _hash_file_like_folders(folder: str) -> Iterator[int]:
    """Yields hashes, without suffix, of a folder and its parents that are named like files of an export."""
    while folder:
        stem, _, suffix = folder.rpartition(".")
        if suffix.lower() in _SUFFIXES:
            yield _hash_path(stem)
        folder = folder.rpartition("/")[0]


def _contains_sorted(hashes: NDArray[np.uint64], value: int) -> bool:
    """Tells if the sorted array ``hashes`` contains ``value``."""
    at = int(np.searchsorted(hashes, np.uint64(value)))
    return at < len(hashes) and int(hashes[at]) == value
