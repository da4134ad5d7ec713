"""Formats with a file of annotations for many images: found by name and first bytes, and kept in a temporary file."""

from __future__ import annotations

import re
from abc import abstractmethod
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.sources.annotation_formats.objects import load_json
from packstore.sources.annotation_formats.source import AnnotatedSource
from packstore.sources.annotation_formats.spool import Spool
from packstore.sources.archives import open_tree
from packstore.sources.base import SPLIT_ORDER, Certainty, Kind, SourceOptions
from packstore.sources.beside import clean_path, find_base_folder, join, read_text
from packstore.sources.encodings import convert_start
from packstore.sources.listing import is_passed_over
from packstore.sources.rows import FileRow, Row, in_packing_order
from packstore.sources.tree import Tree

_MAX_BYTES = 4 << 30
_START, _NAMED = 1 << 16, 4
_IMAGES = (
    "images",
    "data",
    "img",
    "imgs",
    "JPEGImages",
    "Images",
    "obj_train_data",
    "upload",
    "media",
    "images/100k",
    "",
)


class Entry(NamedTuple):
    """What a file of annotations says of an image.

    Attributes:
        name: Of the image: a path, or what it was called on another machine.
        raw: For :meth:`AnnotatedSource.parse`; anything that JSON holds.
        split: Its split; None for that of the file.
        further: Names of further images that it is about.
        called: Its id, for messages.
    """

    name: str
    raw: Any
    split: str | None = None
    further: Sequence[str] = ()
    called: str = ""


class DocumentSource(AnnotatedSource):
    """A source with one file of annotations, or one for each split.

    Images lie where the file names them: relative to it, to folders beside it, or under their bare names anywhere, if
    only one image there is called so. Images that no file names are left.

    Attributes:
        names: Matches the names of its files.
        signature: What the beginning of each has.
        deep: So many folders below the top they may lie.
        most: So many may lie in a folder; more are files for each image.
        repeats: An image may have several entries, which are samples of their own: their keys end in ``#1`` ….
        absent: What entries are counted as whose images are not here; empty if these are bad samples.
        most_further: Most further images of an entry.
    """

    left_images = "images that no annotations name"
    names: ClassVar[re.Pattern[str]] = re.compile(r".*\.json", re.I)
    signature: ClassVar[re.Pattern[bytes]]
    deep: ClassVar[int] = 2
    most: ClassVar[int] = 16
    repeats: ClassVar[bool] = False
    absent: ClassVar[str] = ""
    most_further = 0

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.ignored: Counter[str] = Counter()
        self.first_ignored: defaultdict[str, list[str]] = defaultdict(list)
        self._files = self.find_files(self.tree)
        if not self._files:
            raise SourceError(f"{printable(str(path))} has no annotations of {self.title}")
        self._images: list[bytes] = []
        self._splits: list[str] = []
        self._split_of = bytearray()
        self._earlier = array("q")  # entries about the same image
        try:
            self._spool = Spool(self._read_all())
        except OSError as error:
            raise SourceError(f"{self.tree.name()}: its annotations need a temporary file: {error.strerror}") from None
        self.evidence = ", ".join(map(printable, self._files))

    @abstractmethod
    def entries_of(self, file: str, document: Any) -> Iterator[Entry]:
        """What a file says of each image. Counts in ``ignored`` what no entry has. May raise anything that reading a
        document of another shape raises."""

    def ignore(self, reason: str, called: str) -> None:
        """Counts an entry that is left out, and keeps the first few ids."""
        self.ignored[reason] += 1
        if called and len(self.first_ignored[reason]) < _NAMED:
            self.first_ignored[reason].append(called)

    def load(self, data: bytes) -> Any:
        """The document of a file. Raises :class:`ValueError`."""
        return load_json(data)

    @classmethod
    def find_files(cls, tree: Tree) -> list[str]:
        """The files of annotations, by their names and first bytes; with them those of the same name in other folders,
        which are damaged if they begin otherwise."""
        paths = [path for folder in _folders(tree, cls.deep) for path in _candidates(tree, folder, cls.names, cls.most)]
        found = {path for path in paths if cls.signature.search(convert_start(tree.start(path, _START)))}
        names = {path.rpartition("/")[2] for path in found}
        return [path for path in paths if path in found or path.rpartition("/")[2] in names]

    def _read_all(self) -> Iterator[Any]:
        """Yields further images and raw annotation of each entry, and notes names and splits."""
        seen: dict[bytes, str] = {}
        times: Counter[bytes] = Counter()
        for file in self._files:
            where = self.tree.name(file)
            try:
                entries = list(self.entries_of(file, self.load(read_text(self.tree, file, _MAX_BYTES))))
                of = [entry for entry in entries for _ in (entry.name, *entry.further)]
                names = [_plain_name(name) for entry in entries for name in (entry.name, *entry.further)]
            except AmbiguousSourceError:
                raise
            except (
                ValueError,
                KeyError,
                TypeError,
                AttributeError,
                IndexError,
                OverflowError,
                RecursionError,
            ) as error:
                found = f"{type(error).__name__}: {printable(str(error))[:200]}"
                raise SourceError(f"{where} is not as {self.title} has it ({found})") from None
            paths = self._resolve(file, names, of)
            there = self._files_of(paths) if self.absent else {}
            places = iter(paths)
            for entry in entries:
                name, *further = islice(places, 1 + len(entry.further))
                if self.absent and not all(_is_in(there, each) for each in (name, *further)):
                    self.ignore(self.absent, entry.called)
                    continue
                image = name.encode("utf-8", "surrogateescape")
                if image in seen:
                    raise self._twice(name, seen[image], file)
                self._earlier.append(times[image])
                if self.repeats:
                    times[image] += 1
                else:
                    seen[image] = file
                self.most_further = max(self.most_further, len(further))
                split = (split_of_file(file) if entry.split is None else entry.split).lower()
                if split not in self._splits:
                    self._splits.append(split)
                if len(self._splits) > 255:
                    raise SourceError(f"{where}: more than 255 splits")
                self._images.append(image)
                self._split_of.append(self._splits.index(split))
                yield [further, entry.raw]

    def _twice(self, image: str, first: str, second: str) -> SourceError:
        if first == second:
            return SourceError(f"{self.tree.name(first)} names {printable(image)} twice")
        answers = [Answer(("--ignore", f"/{each}")) for each in (first, second)]
        return AmbiguousSourceError(
            f"{self.tree.name(image)} is annotated twice, by {printable(first)} and {printable(second)}: leave one "
            "out with --ignore",
            answers,
        )

    def _resolve(self, file: str, names: Sequence[str], entries: Sequence[Entry]) -> list[str]:
        """Where images lie that a file names; the name below its folder for one that is not there. Images of a split
        that an entry says may lie in a folder of its name."""
        beside = file.rpartition("/")[0]
        above = beside.rpartition("/")[0]
        split = split_of_file(file)
        bases = [join(base, place) if place else base for base in (beside, above) for place in _IMAGES]
        folders = [*(join(base, split) for base in bases if split), *bases]
        deeper = [join(entry.split or "", name) for entry, name in zip(entries, names, strict=True)]
        found = self._below(names, folders)
        if any(entry.split for entry in entries):
            pairs = zip(found, self._below(deeper, folders), strict=True)
            found = [own if self._lies(own) else other for other, own in pairs]
        there = {} if self.absent else self._files_of(found)
        parts = [path.rpartition("/") for path in found]
        absent = [(n, folder) for n, (folder, _, name) in enumerate(parts) if there and name not in there[folder]]
        # An image that is gone from the folder that its name says is not the one of another folder.
        missing = [n for n, folder in absent if "/" not in names[n] or not there[folder]]
        if missing:
            wanted: dict[str, list[str]] = {names[n].rpartition("/")[2]: [] for n in missing}
            for place, listed in self.tree.folders(is_passed_over):
                for name in wanted.keys() & set(listed.files):
                    wanted[name].append(join(place, name))
            for n in missing:
                places = wanted[names[n].rpartition("/")[2]]
                found[n] = places[0] if len(places) == 1 else found[n]
        return found

    def _files_of(self, paths: Iterable[str]) -> dict[str, frozenset[str]]:
        """The names of files in the folders of paths."""
        return {each: frozenset(self.tree.names(each).files) for each in {path.rpartition("/")[0] for path in paths}}

    def _below(self, names: Sequence[str], folders: Sequence[str]) -> list[str]:
        folder = (find_base_folder(self.tree, names, folders) if names else None) or ""
        return [join(folder, name) for name in names]

    def _lies(self, path: str) -> bool:
        return path.rpartition("/")[2] in self.tree.names(path.rpartition("/")[0]).files

    def splits(self) -> Sequence[str]:
        return in_packing_order(self._splits) or ("",)

    def file_rows(self, split: str) -> Iterator[FileRow]:
        if split in self._splits:
            number = self._splits.index(split)
            for image in np.flatnonzero(np.frombuffer(self._split_of, np.uint8) == number).tolist():
                name, earlier = self._images[image].decode("utf-8", "surrogateescape"), self._earlier[image]
                yield FileRow(name, {"entry": image}, f"{name}#{earlier}" if earlier else None)

    def rows(self, split: str) -> Iterator[Row]:
        for row in super().rows(split):
            entry = row.ref[3]["entry"] if isinstance(row.ref[3], Mapping) else None
            yield row if entry is None else row._replace(value_bytes=row.value_bytes + self._spool.size(entry))

    def raw(self, values: dict[str, Any]) -> Any:
        return self._spool.read(values.pop("entry"))[1]

    def further_of(self, entry: int) -> list[str]:
        """Paths of the further images of an entry."""
        found: list[str] = self._spool.read(entry)[0]
        return found

    def raws(self) -> Iterator[Any]:
        return (self._spool.read(number)[1] for number in range(len(self._spool)))

    def describing_files(self) -> Iterable[str]:
        return self._files

    def count_left_members(self) -> Mapping[str, int]:
        return dict(+self.ignored)

    def close(self) -> None:
        if hasattr(self, "_spool"):
            self._spool.close()
        super().close()


def _is_in(there: Mapping[str, frozenset[str]], path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return name in there[folder]


def _folders(tree: Tree, deep: int) -> Iterator[str]:
    """The top folder, and those up to ``deep`` levels below, without hidden ones."""
    level = [""]
    for depth in range(deep + 1):
        yield from level
        if depth < deep:
            level = [
                join(each, name) for each in level for name in tree.names(each).folders if not is_passed_over(name)
            ]


def _candidates(tree: Tree, folder: str, names: re.Pattern[str], most: int) -> list[str]:
    """Files in a folder whose names fit; of more than ``most``, as of one for each image, none."""
    suffix = re.search(r"\\[.](\w+)$", names.pattern)
    listed = tree.names(folder).ending(f".{suffix[1]}") if suffix else tree.names(folder).files
    found = [name for name in listed if names.fullmatch(name) and not is_passed_over(name)]
    return [join(folder, name) for name in found] if len(found) <= most else []


def _plain_name(name: Any) -> str:
    """A path of an image within the source, of what a tool wrote; a path of another machine or of the web becomes its
    last part. Raises :class:`ValueError` for one that leads out of the source."""
    if not isinstance(name, str):
        raise ValueError(f"found {name!r:.60} as the name of an image")
    bare = name
    if re.match(r"\w{2,}:|[A-Za-z]:[\\/]|[\\/]", name):
        bare = re.split(r"[\\/]", re.split(r"[?#](?!d=)", name)[0])[-1]
    return clean_path(bare)


def split_of_file(file: str) -> str:
    """The split that the name of a file says, or else one of its folders; ``""`` for none."""
    *folders, name = file.lower().split("/")
    words = [*re.split(r"[_.\-\s]+", name)[:-1], *reversed(folders)]
    return next((word for word in words if word in SPLIT_ORDER), "")


def document_kind(source: type[DocumentSource], help: str) -> Kind:
    """The kind of a format, which is certain of a path where it finds files of it; what it leaves is asked about."""

    def recognise(path: Path, options: SourceOptions) -> Certainty:
        tree = open_tree(path)
        return Certainty.CERTAIN if tree is not None and source.find_files(tree) else Certainty.NO

    return Kind(source.kind, help, recognise, source, in_objects=True)
