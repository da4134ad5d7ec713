"""Paths of image files in folders of splits and classes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest, xxh3_128_hexdigest

from packstore.core.manifest import Manifest
from packstore.exports.base import EXTENSIONS, Record
from packstore.exports.names import safe_name, shortened
from packstore.stores.base import Reader

IMAGE_SUFFIXES = frozenset({*EXTENSIONS.values(), "jpeg", "tiff", "pgm", "pbm", "heif"})
_SUFFIXES = IMAGE_SUFFIXES | {"txt"}
"""Those of files that are called as images are: boxes of YOLO."""
_YEAR = re.compile(r"(19|20)\d\d$")
"""What COCO adds to names of splits: ``train2017``."""
_SAME = {"jpeg": "jpg", "tiff": "tif", "pgm": "ppm", "pbm": "ppm", "heif": "heic"}
_LONGEST = 1000
"""Bytes of a path below its class: systems take 1,024 or 4,096 for the whole."""
WITHOUT = "unlabelled"
"""The folder of images whose label is missing."""


class ClassFolders:
    """The folders of classes.

    Attributes:
        names: By number of the class; None in a store without labels.
        missing: The folder of images whose label is missing.
        renamed: How many classes have other names than their folders.
        has_missing: There are images whose label is missing.
    """

    def __init__(self, manifest: Manifest, reader: Reader) -> None:
        self.names: list[str] | None = None
        self.missing = WITHOUT
        self.renamed = 0
        self.has_missing = False
        self._counts: list[NDArray[np.int64]] = []
        if not manifest.has_column("label") or manifest.column("label").type != "label":
            return
        labels = reader.fixed("label")
        if manifest.classes is not None:
            self.names = distinct([safe_name(name) for name in manifest.classes])
            self.renamed = sum(a != b for a, b in zip(self.names, manifest.classes, strict=True))
        else:
            lowest, most = int(labels.min()), int(labels.max())
            if lowest < 0 or most >= 1 << 20:
                return  # no numbers of classes
            self.names = [f"{number:0{len(str(most))}}" for number in range(most + 1)]
        while self.missing in self.names:
            self.missing += "_"
        ranges = [(split.start, split.stop) for split in manifest.splits] or [(0, len(labels))]
        valid = reader.fixed("label_valid") if manifest.column("label").nullable else np.ones(len(labels), np.bool_)
        self.has_missing = not valid.all()
        self._counts = [np.bincount(labels[a:b][valid[a:b]], minlength=len(self.names)) for a, b in ranges]

    def losses(self) -> list[str]:
        """What torchvision's ``ImageFolder``, which numbers the folders that there are by name, makes of them."""
        if self.names is None:
            return []
        lost = []
        if sorted(self.names) != self.names:
            lost.append("numbers of classes: readers number folders in the order of their names")
        if self.renamed:
            lost.append(f"names of {self.renamed:,} classes: their folders are called otherwise, as folders can be")
        if self.has_missing:
            lost.append(f"missing labels: such images are in a folder {self.missing!r}, which readers take for a class")
        empty = max(int((counts == 0).sum()) for counts in self._counts)
        if empty:
            lost.append(f"classes without images ({empty:,} in a split): readers number the folders that there are")
        return lost


class Paths:
    """The path of each record's file: ``split/class/name``, with ``/``; no two are the same, whatever their case."""

    def __init__(self, manifest: Manifest, reader: Reader, *, recoded: bool) -> None:
        """``recoded``: the files are no longer those whose names the keys may be."""
        self.classes = ClassFolders(manifest, reader)
        names = [split.name for split in manifest.splits]
        self._splits = dict(zip(names, distinct([safe_name(name) for name in names]), strict=True))
        self._recoded = recoded or not manifest.holds_files
        self._ends = [(split.stop, split.name) for split in manifest.splits] or [(manifest.records, "")]
        self._repeated = self._find_repeated(reader)

    def __call__(self, record: Record) -> str:
        """The path of a record's file."""
        label = self._label(record)
        stem, suffix = _parted(self._stem(record.key, record.split, label))
        kept = suffix.lower() and not (self._recoded and _SAME.get(suffix.lower(), suffix.lower()) != record.extension)
        stem += self._repeated.get(record.number, "")
        return f"{_cut(stem)}.{suffix if kept else record.extension}"

    def _label(self, record: Record) -> int | None:
        if self.classes.names is None:
            return None
        return int(record.at_rest["label"]) if record.present("label") else -1

    def _stem(self, key: str, split: str, label: int | None) -> str:
        """The path of a key, with the folders of its split and class before it where they are not there."""
        folders, parts = [], key.split("/")
        if split:
            folders.append(self._splits[split])
            if len(parts) > 2 and sorted(map(str.lower, parts[:2])) == sorted([split.lower(), "images"]):
                del parts[:2]  # as YOLO has them
            elif len(parts) > 1 and split.lower() in (parts[0].lower(), _YEAR.sub("", parts[0].lower())):
                parts.pop(0)
        if label is not None and self.classes.names is not None:
            folder = self.classes.names[label] if label >= 0 else self.classes.missing
            folders.append(folder)
            if len(parts) > 1 and safe_name(parts[0]) == folder:
                parts.pop(0)
        rest = "/".join(map(safe_name, parts))
        if len(rest.encode()) > _LONGEST:
            rest = xxh3_128_hexdigest(key.encode("utf-8", "surrogateescape"))
        return "/".join([*folders, rest])

    def _find_repeated(self, reader: Reader) -> dict[int, str]:
        """What is added to the names of records whose files would have that of an earlier one, or of a folder, by
        record. Without their suffixes, since these may change: 8 bytes a record."""
        hashes = np.empty(len(reader), np.uint64)
        labels = valid = None
        if self.classes.names is not None:
            labels = reader.fixed("label")
            valid = reader.fixed("label_valid") if reader.manifest.column("label").nullable else None
        folders, folder = set[int](), ""
        for number, stem in enumerate(self._stems(reader, labels, valid)):
            hashes[number] = _hash(stem)
            if not stem.startswith(f"{folder}/") or "/" in stem[len(folder) + 1 :]:
                folder = stem.rpartition("/")[0]
                folders.update(_hashes_like_files(folder))
        blocked = np.flatnonzero(np.isin(hashes, np.array(sorted(folders), np.uint64))).tolist()
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        again = {*order[1:][hashes[1:] == hashes[:-1]].tolist(), *blocked}
        found: dict[int, str] = {}
        for number, stem in enumerate(self._stems(reader, labels, valid)) if again else ():
            if number in again:
                added = f"~{number}"
                while _is_in(hashes, _hash(stem + added)) or _hash(stem + added) in folders:
                    added += "~"
                found[number] = added
        return found

    def _stems(
        self, reader: Reader, labels: NDArray[np.int64] | None, valid: NDArray[np.bool_] | None
    ) -> Sequence[str] | map[str]:
        def stem(number: int) -> str:
            split = next(name for stop, name in self._ends if number < stop)
            label = None if labels is None else int(labels[number]) if valid is None or valid[number] else -1
            return _parted(self._stem(reader.key(number), split, label))[0]

        return map(stem, range(len(reader)))


def distinct(names: Sequence[str]) -> list[str]:
    """``names``, of which those that others have already, in whatever case, get a number."""
    used: set[str] = set()
    found = []
    for name in names:
        unique, count = name, 1
        while unique.casefold() in used:
            count += 1
            unique = f"{name}~{count}"
        used.add(unique.casefold())
        found.append(unique)
    return found


def _parted(path: str) -> tuple[str, str]:
    """A path and the suffix of an image file that it ends with; empty where it ends with none."""
    stem, dot, suffix = path.rpartition(".")
    if not dot or suffix.lower() not in IMAGE_SUFFIXES or stem.endswith("/") or not stem:
        return path, ""
    return stem, suffix


def _cut(stem: str) -> str:
    folder, slash, name = stem.rpartition("/")
    return f"{folder}{slash}{shortened(name)}"


def _hash(stem: str) -> int:
    return xxh3_64_intdigest(_cut(stem).casefold().encode("utf-8", "surrogatepass"))


def _hashes_like_files(folder: str) -> Iterator[int]:
    """Of a folder and those above it that are called like files of an export: their hashes as those of files."""
    while folder:
        stem, _, suffix = folder.rpartition(".")
        if suffix.lower() in _SUFFIXES:
            yield _hash(stem)
        folder = folder.rpartition("/")[0]


def _is_in(hashes: NDArray[np.uint64], value: int) -> bool:
    """Whether a number is among sorted ones."""
    at = int(np.searchsorted(hashes, np.uint64(value)))
    return at < len(hashes) and int(hashes[at]) == value
