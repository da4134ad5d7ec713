"""Formats whose files hold many samples each. A format states where its records are and decodes one; this module finds
the files (shards), reads them at any place from any thread, and indexes records that have to be walked.
"""

from __future__ import annotations

import os
import re
import threading
from abc import abstractmethod
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count, islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.files import beyond_standard_streams, read_bounded
from packstore.core.plainjson import load_json
from packstore.core.protobuf import Message
from packstore.sources.archives import open_tree
from packstore.sources.archives.index import OpenFile
from packstore.sources.archives.tar import decompress_to_temporary
from packstore.sources.base import Certainty, SourceOptions
from packstore.sources.dataset import index_key
from packstore.sources.ignoring import visible_paths
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.rows import Row, RowSource, in_packing_order
from packstore.sources.splits import find_split, find_split_folders
from packstore.stores.link_files import Location

INDEX = "index.json"
"""Name of the file that names the shards of MDS and LitData."""
MAX_INDEX = 1 << 28
"""Maximum number of its bytes."""
_OPEN = 8
_NAMED_MISSING = 1000
_TRIED = 4
_OF = re.compile(r"(.*?)[-_.]?(\d{3,6})-of-(\d{3,6})(\..*)?")
"""Name of a shard by TensorFlow's ``ShardedFile``, with its number and the number of all."""


class ShardSource(RowSource):
    """Base of sources whose rows are in shards: files of many samples of one split. Rows without a key of their own
    have split and number as key.

    Attributes:
        shards: Split and path of each shard, in the order of reading.
    """

    shards: Sequence[tuple[str, Path]]

    @abstractmethod
    def shard_rows(self, number: int, keys: Iterator[str]) -> Iterator[Row]:
        """Yields the rows of shard ``number``. Takes one of ``keys`` for each row. Uses that key only if the row has no
        key of its own."""

    def splits(self) -> Sequence[str]:
        """Returns the splits of all shards, in packing order."""
        return in_packing_order(split for split, _ in self.shards)

    def rows(self, split: str) -> Iterator[Row]:
        """Yields the rows of all shards of a split; generates keys for rows without their own."""
        keys = (index_key(split, number) for number in count())
        numbers = (number for number, (its, _) in enumerate(self.shards) if its == split)
        return chain.from_iterable(self.shard_rows(number, keys) for number in numbers)

    def files(self) -> Iterator[Path]:
        """Yields the paths of the shards."""
        return (path for _, path in self.shards)


@dataclass(frozen=True)
class FoundShards:
    """Shards at a path, and names of shards that are absent.

    Attributes:
        files: Split and path of each, in the order of reading.
        missing: Names of absent shards, derived from those of others: ``train-00002-of-00004``; at most 1,000 of a set.
    """

    files: list[tuple[str, Path]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def find_shards(
    path: Path, suffixes: tuple[str, ...], is_shard: Callable[[Path], bool] = lambda path: False
) -> FoundShards:
    """Finds the shards in a folder and in its folders ``train``, ``val`` …. A file is one shard without a split, and is
    not tested.

    The folder, or a part of the shard's name, names a split: ``imagenet-train-000042.tar``. Skips hidden files.

    Args:
        path: A file or a folder.
        suffixes: Suffixes of shards.
        is_shard: Tells if a file without a known suffix is a shard. Called if the file's name has no suffix, or is
            numbered.

    Raises:
        SourceError: The folder cannot be listed, or some shards have a split and others have none.
    """
    if path.is_file():
        return FoundShards([("", path)])
    shards = FoundShards()
    counted: dict[tuple[Path, str, int, str], set[int]] = {}
    try:
        top = sorted(visible_paths(path), key=attrgetter("name"))
        splits = find_split_folders(each.name for each in top if find_split(each.name) and each.is_dir())
        for folder in (path, *(path / name for name in splits)):
            for file in top if folder is path else sorted(visible_paths(folder), key=attrgetter("name")):
                of = _OF.fullmatch(file.name) if "-of-" in file.name else None
                named = file.name.lower().endswith(suffixes)
                if is_passed_over(file.name) or not (named or of or not file.suffix):
                    continue  # by its name alone, since there may be any number of files
                if not file.is_file() or not (named or is_shard(file)):
                    continue
                if of:
                    counted.setdefault((folder, of[1], int(of[3]), of[4] or ""), set()).add(int(of[2]))
                shards.files.append((find_split(file.name) if folder is path else splits[folder.name], file))
    except OSError as error:
        raise SourceError(f"{printable(str(path))} cannot be listed: {error.strerror or error}") from None
    for (_, stem, total, suffix), numbers in counted.items():
        gone = (n for n in range(total) if n not in numbers)
        shards.missing.extend(f"{stem}-{n:05}-of-{total:05}{suffix}" for n in islice(gone, _NAMED_MISSING))
    without = [file for split, file in shards.files if not split]
    if without and len(without) < len(shards.files):
        raise SourceError(f"{printable(str(without[0]))}: its name has no split, but those of other shards have")
    return shards


def recognise_shards(path: Path, suffixes: tuple[str, ...], is_shard: Callable[[Path], bool]) -> Certainty:
    """Certain if ``path`` is a shard, or a folder of shards without images directly in it; else ``NO``. Tests only the
    files of :func:`list_first_shards`, at most 8. One shard suffices."""
    if path.is_dir() and folder_has_images(path):
        return Certainty.NO
    files = [path] if path.is_file() else list_first_shards(path, suffixes)
    return Certainty.CERTAIN if any(map(is_shard, files)) else Certainty.NO


def list_first_shards(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Lists possible shards in a folder and its folders of splits. Lists up to 4 files with names of shards, and up to
    4 without a suffix. Returns ``[]`` if ``path`` is no folder."""
    tree = open_tree(path)
    if tree is None:
        return []
    splits = find_split_folders(tree.names("").folders)
    files = [path / folder / name for folder in ("", *splits) for name in tree.names(folder).files]
    files = [file for file in files if not is_passed_over(file.name)]
    named = [file for file in files if file.name.lower().endswith(suffixes) or _OF.fullmatch(file.name)]
    return [file for file in [*named[:_TRIED], *[file for file in files if not file.suffix][:_TRIED]] if file.is_file()]


def refuse_missing_shards(path: Path, kind: str, missing: Sequence[str]) -> None:
    """Raises :class:`AmbiguousSourceError` if the list ``missing`` is not empty."""
    if missing:
        raise AmbiguousSourceError(
            f"{printable(str(path))} lacks {len(missing)} of the shards that its files say there are, "
            f"{printable(missing[0])} among them: fetch them, or pack those that there are with --source {kind}",
            [Answer(("--source", kind))],
            path,
        )


def folder_has_images(path: Path) -> bool:
    """Tells if images are directly in a folder. False if ``path`` is no folder."""
    tree = open_tree(path)
    return tree is not None and len(tree.names("").ending(*IMAGE_SUFFIXES)) > 0


def find_indexes(path: Path) -> list[tuple[str, Path]]:
    """Finds ``index.json`` in a folder, or in its folders named after splits; returns split and path of each. Returns
    ``[]`` if there is none, or the folder cannot be listed."""
    if (path / INDEX).is_file():
        return [("", path / INDEX)]
    if not path.is_dir():
        return []
    try:
        splits = find_split_folders(each.name for each in visible_paths(path))
    except OSError:
        return []
    return [(split, path / name / INDEX) for name, split in splits.items() if (path / name / INDEX).is_file()]


def check_file_name(name: object) -> str:
    """Returns ``name`` if it is a plain file name, without a folder. Raises :class:`ValueError` for any other."""
    if not isinstance(name, str) or "/" in name or "\0" in name or name in ("", ".", ".."):
        raise ValueError(f"the name {name!r:.80}")
    return name


def read_index(index: Path, most: int = MAX_INDEX) -> dict[str, Any]:
    """Reads the JSON object in an index file; does not check its content.

    Raises :class:`SourceError` if the file is missing or cannot be read, has no JSON object, or has more than ``most``
    bytes.
    """
    if not index.is_file():
        raise SourceError(f"{printable(str(index))} is missing, or no file")
    try:
        content = load_json(read_bounded(index, most), "it is not valid JSON")
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{printable(str(index))} cannot be read: {printable(str(error))}") from None
    if not isinstance(content, dict):
        raise SourceError(f"{printable(str(index))} cannot be read: it is not a JSON object")
    return content


class OpenFiles:
    """Opens files by number, for reads at any offset; thread-safe. Keeps the 8 last used files open.

    Opening a compressed file decompresses it to a temporary file. Opening it again decompresses it again.
    """

    def __init__(self, paths: Sequence[Path], compression: Callable[[Path], str | None] = lambda _: None) -> None:
        self._paths, self._compression = paths, compression
        self._open: OrderedDict[int, OpenFile] = OrderedDict()
        self._plain: dict[int, bool] = {}
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> OpenFile:
        """Returns file ``number``, open and decompressed. Opens the file if necessary. Keeps at most 8 files, and drops
        the file that was used longest ago. Raises :class:`SourceError` for a missing file, or a damaged compressed
        one."""
        with self._lock:
            file = self._open.pop(number, None) or self._open_file(self._paths[number])
            self._open[number] = file
            if len(self._open) > _OPEN:
                self._open.popitem(last=False)
        return file

    def _open_file(self, path: Path) -> OpenFile:
        """Opens a file. Decompresses a compressed file to a temporary file. Raises :class:`SourceError` if it cannot be
        read, or is damaged."""
        try:
            kind = self._compression(path)
            if kind is not None:
                with decompress_to_temporary(path, kind, printable(str(path))) as content:
                    return OpenFile(os.dup(content.fileno()))
            with beyond_standard_streams():
                return OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError as error:
            raise SourceError(f"{printable(str(path))} cannot be read: {error.strerror or error}") from None

    def locate_span(self, number: int, start: int, size: int) -> Location | None:
        """Locates ``size`` bytes of a file from ``start`` on. Returns None if the file was decompressed, or has been
        replaced. The first call for a file opens it; later calls do not look for a replacement."""
        path = self._paths[number]
        if number not in self._plain:
            opened, lying = os.fstat(self[number].descriptor), path.stat()
            self._plain[number] = (opened.st_dev, opened.st_ino) == (lying.st_dev, lying.st_ino)
        return Location(str(path.absolute()), start, within=size) if self._plain[number] else None

    def close(self) -> None:
        """Closes all files; reading opens them again. A file that a thread reads closes when the thread is done."""
        with self._lock:
            self._open.clear()


class DamageError(ValueError):
    """Damage after which the rest of a file of records cannot be read.

    Attributes:
        at: Offset of the damage in bytes.
    """

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at


class RecordFiles:
    """Reader of numbered files of records that have to be walked.

    Attributes:
        paths: The files.
        opened: The files, open and decompressed.
        fault: Message for a damaged record, with placeholders for file name and offset.
        compression: Detects the compression of a file; None for none.
    """

    fault = "{}, byte {}: the record does not match its checksum"
    compression: Callable[[Path], str | None] = staticmethod(lambda _: None)

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self.opened = OpenFiles(paths, self.compression)

    @abstractmethod
    def walk_records(self, number: int) -> Iterator[tuple[int, int, Message | None]]:
        """Yields place, size and message of each record of file ``number``; the message of a damaged record is None.
        Raises :class:`DamageError` if the rest of the file cannot be read, and :class:`SourceError` if no record can
        be read."""

    @abstractmethod
    def read_record(self, number: int, place: int, length: int) -> bytes | None:
        """Reads the data of a record. Returns None for a damaged record."""

    def locate_span(self, number: int, place: int, length: int) -> Location | None:
        """Locates the data of a record. Returns None if they are not plain bytes of the file."""
        return self.opened.locate_span(number, place, length)

    def close(self) -> None:
        """Closes all files; reading opens them again."""
        self.opened.close()


@dataclass(slots=True)
class RecordIndex:
    """Index of the records of a shard. A record takes 24 bytes and its key.

    Attributes:
        places: Place of each record.
        lengths: Bytes of the record.
        sizes: Bytes of the main image.
        keys: Keys of the records; None for records without one, and for damaged ones.
        damaged: Offset and reason if the rest of the file cannot be read.
    """

    places: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    keys: list[str | None] = field(default_factory=list)
    damaged: tuple[int, str] | None = None


class WalkedSource(ShardSource):
    """Base of sources whose shards have no table of their records. The first use of :attr:`index` walks all records.

    If a record has a wrong length, the rest of its file is one bad sample."""

    def __init__(self, path: Path, options: SourceOptions, shards: Sequence[tuple[str, Path]]) -> None:
        super().__init__(path, options)
        self.shards = shards
        self.record_files = self.open_records([file for _, file in shards])

    @abstractmethod
    def open_records(self, paths: Sequence[Path]) -> RecordFiles:
        """Returns the reader of the shards' records."""

    @abstractmethod
    def index_record(self, number: int, place: int, message: Message) -> tuple[int, str | None]:
        """Returns the size of the image in an undamaged record of file ``number``, and the record's key if it has one.
        Collects what the columns depend on."""

    @abstractmethod
    def decode_record(self, data: bytes) -> dict[str, Any]:
        """Decodes a record, by column. Raises :class:`ValueError` for a value that does not fit its column."""

    @cached_property
    def has_keys(self) -> bool:
        """True if rows have the keys of their records, from :attr:`index`; False in this base."""
        return False

    def shard_rows(self, number: int, keys: Iterator[str]) -> Iterator[Row]:
        """Yields a row for each record. If the rest of a shard is damaged, yields one more row, and reading that row
        raises an error. If :attr:`has_keys`, a record without a key has file name and place as key."""
        has_keys, index, name = self.has_keys, self.index[number], self.shards[number][1].name
        records = zip(index.places, index.lengths, index.sizes, index.keys, strict=True)
        for place, length, size, own in records:
            key = next(keys)
            if has_keys:
                key = f"{name}#{place}" if own is None else own
            yield Row(key, (number, place, length), size, length - size)
        if index.damaged is not None:
            at, reason = index.damaged
            yield Row(f"{next(keys)}…", (number, at, -1, f"{name}, byte {at}: {reason}"), 0)

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads and decodes a record. Raises :class:`ValueError` if it is damaged, or a value does not fit its
        column."""
        number, place, length, *reason = ref
        if reason:
            raise ValueError(f"{reason[0]}; the rest of this file cannot be read")
        data = self.record_files.read_record(number, place, length)
        if data is None:
            raise ValueError(self.record_files.fault.format(self.shards[number][1].name, place))
        return self.decode_record(data)

    def locate_row(self, ref: Any) -> Location | None:
        """Locates the data of the record that has the image. Returns None if these data are not plain bytes of the
        file, or cannot be read."""
        number, place, length, *reason = ref
        return None if reason else self.record_files.locate_span(number, place, length)

    def close(self) -> None:
        """Closes the source and its open shards."""
        super().close()
        self.record_files.close()

    @cached_property
    def index(self) -> list[RecordIndex]:
        """Indexes of the shards. The first use walks all records. Raises :class:`SourceError` if there are none."""
        indexes = [self.index_file(number) for number in range(len(self.shards))]
        if not any(len(index.places) or index.damaged for index in indexes):
            raise SourceError(f"{printable(str(self.path))}: its files hold no records")
        self.check_index(indexes)
        return indexes

    def check_index(self, indexes: Sequence[RecordIndex]) -> None:
        """Raises :class:`SourceError` if the records are not of this format; does nothing in this base."""

    def index_file(self, number: int) -> RecordIndex:
        """Indexes the records of file ``number`` up to the first wrong length."""
        index = RecordIndex()
        try:
            for place, length, message in self.record_files.walk_records(number):
                size, key = (length, None) if message is None else self.index_record(number, place, message)
                index.places.append(place)
                index.lengths.append(length)
                index.sizes.append(size)
                index.keys.append(key)
        except DamageError as damage:
            index.damaged = damage.at, str(damage)
        return index
