"""Formats whose files hold many samples each. A format states where its records are and decodes one; this module finds
the files (shards), reads them at any place from any thread, and indexes records that have to be walked.
"""

from __future__ import annotations

import os
import re
import threading
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.files import Location, beyond_standard_streams, read_bounded
from packstore.core.plainjson import load_json
from packstore.sources.archives import open_tree
from packstore.sources.archives.index import OpenFile
from packstore.sources.archives.tar import TAR_FAULTS, decompress_to_temporary
from packstore.sources.base import Certainty, SourceOptions
from packstore.sources.dataset import index_key
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.records.wire import Message
from packstore.sources.rows import PROBED, Row, RowSource, in_packing_order
from packstore.sources.splits import find_split, find_split_folders

# Name of the file that names the shards of MDS and LitData.
INDEX = "index.json"
# Maximum number of its bytes.
MAX_INDEX = 1 << 28
_OPEN = 8
_TRIED = 4
# Name of a shard by TensorFlow's ``ShardedFile``, with its number and the number of all.
_OF = re.compile(r"(.*?)[-_.]?(\d{3,6})-of-(\d{3,6})(\..*)?")


class ShardSource(RowSource):
    """Base of sources whose rows are in shards: files of many samples of one split. Rows without a key of their own
    have split and number as key. Opening raises :class:`SourceError` if there are no shards.

    Attributes:
        unit: Word for a shard, for people.
        suffixes: Suffixes of shards.
        shards: Split and path of each shard, in the order of reading.
    """

    unit = "shard"
    suffixes: tuple[str, ...] = ()
    shards: Sequence[tuple[str, Path]]

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.shards = self.list_shards()
        if not self.shards:
            raise SourceError(f"{printable(str(path))} holds no {self.unit}s")
        self.evidence = f"{len(self.shards)} {self.unit}{'s' * (len(self.shards) != 1)}"

    def list_shards(self) -> list[tuple[str, Path]]:
        """Lists split and path of each shard, see :func:`find_shards`."""
        return find_shards(self.path, self.suffixes, self.is_shard)

    @classmethod
    def is_shard(cls, path: Path) -> bool:
        """Tells by its first bytes if a file is a shard; False in this base and for an unreadable file."""
        return False

    @classmethod
    def recognise(cls, path: Path, options: SourceOptions) -> Certainty:
        """Certain if ``path`` is a shard, or a folder of shards without images in it; possible if only names fit.
        Tests at most 8 files of a folder and of its folders of splits: 4 with a suffix, and 4 without. One shard
        suffices.
        """
        tree = open_tree(path) if path.is_dir() else None
        if tree is not None and tree.names("").ending(*IMAGE_SUFFIXES):
            return Certainty.NO
        found = [path] if tree is None else [file for _, file in _list_possible_shards(path, cls.suffixes)]
        named, others = [file for file in found if file.suffix], [file for file in found if not file.suffix]
        files = [file for file in [*named[:_TRIED], *others[:_TRIED]] if file.is_file()]
        for file in files:
            with suppress(SourceError):  # it cannot be read
                if cls.is_shard(file):
                    return Certainty.CERTAIN
        fits = any(file.name.lower().endswith(cls.suffixes) for file in files)
        return Certainty.POSSIBLE if fits else Certainty.NO

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

    def read_first_samples(self) -> list[dict[str, Any]]:
        """Reads the first 16 samples of each split, without those that cannot be read. Raises
        :class:`AmbiguousSourceError` for a text in an unknown encoding."""
        samples = []
        for row in chain.from_iterable(islice(self.rows(split), PROBED) for split in self.splits()):
            try:
                samples.append(dict(self.read_values(row.ref)))
            except AmbiguousSourceError:
                raise
            except (ValueError, OSError):
                continue  # reported when it is read
        return samples


@contextmanager
def refuse_damage(path: Path) -> Iterator[None]:
    """Converts the errors that damaged content of the file ``path`` causes within the block to
    :class:`SourceError`."""
    try:
        yield
    except SourceError:
        raise  # it names the file, also one that is a ValueError
    except (LookupError, TypeError, AttributeError, SyntaxError, *TAR_FAULTS) as error:
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise SourceError(f"{printable(str(path))} cannot be read: {printable(str(reason))}") from None


def find_shards(
    path: Path, suffixes: tuple[str, ...], is_shard: Callable[[Path], bool] = lambda path: False
) -> list[tuple[str, Path]]:
    """Finds the shards in a folder and in its folders ``train``, ``val`` …, with their splits, in the order of
    reading. A file is one shard without a split, and is not tested.

    The folder, or a part of the shard's name, names a split: ``imagenet-train-000042.tar``. Skips hidden files.

    Args:
        path: A file or a folder.
        suffixes: Suffixes of shards.
        is_shard: Tells if a file without a known suffix is a shard. Called if the file's name has no suffix, or is
            numbered.

    Raises:
        SourceError: Some shards have a split and others have none.
    """
    if path.is_file():
        return [("", path)]
    shards = [
        (split, file)
        for split, file in _list_possible_shards(path, suffixes)
        if file.is_file() and (file.name.lower().endswith(suffixes) or is_shard(file))
    ]
    without = [file for split, file in shards if not split]
    if without and len(without) < len(shards):
        raise SourceError(f"{printable(str(without[0]))}: its name has no split, but those of other shards have")
    return shards


def _list_possible_shards(path: Path, suffixes: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """Yields split and path of each file in a folder, and its folders of splits, that may be a shard by its name."""
    tree = open_tree(path) if path.is_dir() else None
    if tree is None:
        return
    splits = find_split_folders(filter(find_split, tree.names("").folders))
    for folder in ("", *splits):
        for name in sorted(tree.names(folder).files):
            fits = name.lower().endswith(suffixes) or "." not in name[1:] or ("-of-" in name and _OF.fullmatch(name))
            if fits and not is_passed_over(name):
                yield splits[folder] if folder else find_split(name), path / folder / name


def refuse_missing_shards(path: Path, kind: str, files: Iterable[Path]) -> None:
    """Raises :class:`AmbiguousSourceError` if names such as ``train-00001-of-00004`` say that there are further
    shards."""
    numbers: dict[tuple[Path, str, int, str], set[int]] = {}
    for file in files:
        if (of := _OF.fullmatch(file.name)) is not None:
            numbers.setdefault((file.parent, of[1], int(of[3]), of[4] or ""), set()).add(int(of[2]))
    for (_, stem, total, suffix), its in numbers.items():
        missing = next((number for number in range(total) if number not in its), None)
        if missing is not None:
            raise AmbiguousSourceError(
                f"{printable(str(path))} lacks {total - len(its):,} of the shards that its files say there are, "
                f"{printable(f'{stem}-{missing:05}-of-{total:05}{suffix}')} among them: fetch them, or pack those that "
                f"there are with --source {kind}",
                [Answer(("--source", kind))],
                path,
            )


def find_indexes(path: Path) -> list[tuple[str, Path]]:
    """Finds ``index.json`` in a folder, or in its folders named after splits; returns split and path of each. Returns
    ``[]`` if there is none, or the folder cannot be listed."""
    if (path / INDEX).is_file():
        return [("", path / INDEX)]
    tree = open_tree(path) if path.is_dir() else None
    splits = {} if tree is None else find_split_folders(tree.names("").folders)
    return [(split, path / name / INDEX) for name, split in splits.items() if (path / name / INDEX).is_file()]


def find_named_file(folder: Path, name: object) -> Path:
    """Returns the file that an index in ``folder`` names. Raises :class:`ValueError` for a name that is no plain file
    name, and for a missing file."""
    if not isinstance(name, str) or "/" in name or "\0" in name or name in ("", ".", ".."):
        raise ValueError(f"the name {name!r:.80}")
    if not (folder / name).is_file():
        raise ValueError(f"its file {name} is missing")
    return folder / name


def read_index(index: Path, most: int = MAX_INDEX) -> dict[str, Any]:
    """Reads the JSON object in an index file; does not check its content.

    Raises :class:`SourceError` if the file is missing or cannot be read, has no JSON object, or has more than ``most``
    bytes.
    """
    with refuse_damage(index):
        content = load_json(read_bounded(index, most), "it is not valid JSON")
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
        return content


class OpenFiles:
    """Opens files by number, for reads at any offset; thread-safe. Keeps the 8 last used files open.

    Opening a compressed file decompresses it to a temporary file. Opening it again decompresses it again.
    """

    def __init__(self, paths: Sequence[Path], compression: Callable[[Path], str | None] = lambda _: None) -> None:
        self.paths, self._compression = paths, compression
        self._cached = lru_cache(_OPEN)(lambda number: self.open_file(self.paths[number]))
        self._plain: dict[int, bool] = {}
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> OpenFile:
        """Returns file ``number``, open and decompressed. Opens the file if necessary. Raises :class:`SourceError` for
        a missing file, or a damaged compressed one."""
        with self._lock:
            return self._cached(number)

    def open_file(self, path: Path) -> OpenFile:
        """Opens a file. Decompresses a compressed file to a temporary file. Raises :class:`SourceError` if it cannot be
        read, or is damaged."""
        with refuse_damage(path):
            kind = self._compression(path)
            if kind is not None:
                with decompress_to_temporary(path, kind, printable(str(path))) as content:
                    return OpenFile(os.dup(content.fileno()))
            with beyond_standard_streams():
                return OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))

    def locate_span(self, number: int, start: int, size: int) -> Location | None:
        """Locates ``size`` bytes of a file from ``start`` on. Returns None if the file was decompressed, or has been
        replaced. The first call for a file opens it; later calls do not look for a replacement."""
        path = self.paths[number]
        if number not in self._plain:
            opened, lying = os.fstat(self[number].descriptor), path.stat()
            self._plain[number] = (opened.st_dev, opened.st_ino) == (lying.st_dev, lying.st_ino)
        return Location(str(path.absolute()), start, within=size) if self._plain[number] else None

    def close(self) -> None:
        """Closes all files; reading opens them again. A file that a thread reads closes when the thread is done."""
        with self._lock:
            self._cached.cache_clear()


class Record(NamedTuple):
    """Record of a shard that has not been read yet.

    Attributes:
        place: Place in its file, as the format counts.
        length: Length, as the format counts.
        image_bytes: Bytes of the main image.
        value_bytes: Estimated bytes of the other values.
        key: The record's own key; None if it has none.
        fault: Reason why it cannot be read; empty if it can.
    """

    place: int
    length: int
    image_bytes: int = 0
    value_bytes: int = 0
    key: str | None = None
    fault: str = ""


class RecordSource(ShardSource):
    """Base of sources whose shards are files of records.

    Attributes:
        opened: The shards, open and decompressed.
    """

    opened: OpenFiles

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.opened = self.open_files([file for _, file in self.shards])

    def open_files(self, paths: Sequence[Path]) -> OpenFiles:
        """Returns a reader of the shards."""
        return OpenFiles(paths)

    @abstractmethod
    def records(self, number: int) -> Iterator[Record]:
        """Yields the records of shard ``number``."""

    @abstractmethod
    def read_record(self, number: int, place: int, length: int) -> dict[str, Any]:
        """Reads and decodes the record at ``place`` of the shard ``number``, by column.

        Raises :class:`ValueError`, :class:`OverflowError` or :class:`RecursionError` if it is damaged."""

    @abstractmethod
    def find_image(self, number: int, place: int, length: int) -> tuple[int, int] | None:
        """Returns offset and size of bytes that contain the main image. Returns None if these are not plain bytes of
        the file. Raises :class:`ValueError` for a damaged record."""

    def shard_rows(self, number: int, keys: Iterator[str]) -> Iterator[Row]:
        """Yields a row for each record; reading that of a record with a fault raises an error.

        Takes one of ``keys`` for each record, and uses it if the record has no key of its own."""
        for place, length, size, further, key, fault in self.records(number):
            ref = (number, place, length, fault) if fault else (number, place, length)
            generated = next(keys)
            yield Row(generated if key is None else key, ref, size, further)

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads and decodes a record, by column. Raises :class:`ValueError`, with the name of the file, if it is
        damaged."""
        number, place, length, *faults = ref
        try:
            for fault in faults:
                raise ValueError(fault)
            return self.read_record(number, place, length)
        except (ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{self.shards[number][1].name}: {error}") from error

    def locate_row(self, ref: Any) -> Location | None:
        """Locates the main image, or a record that contains it. Returns None if its bytes are not plain bytes of the
        file, or the record cannot be read."""
        number, place, length, *faults = ref
        with suppress(ValueError):  # reported when it is read
            span = None if faults else self.find_image(number, place, length)
            return None if span is None else self.opened.locate_span(number, *span)
        return None

    def close(self) -> None:
        """Closes the source and its open shards; reading opens them again."""
        super().close()
        self.opened.close()


class DamageError(ValueError):
    """Damage after which the rest of a file of records cannot be read.

    Attributes:
        at: Offset of the damage in bytes.
    """

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(f"byte {at}: {reason}; the rest of this file cannot be read")
        self.at = at


class RecordFiles(OpenFiles):
    """Reader of files of records that have to be walked."""

    @abstractmethod
    def walk_records(self, number: int) -> Iterator[tuple[int, int, Message | None]]:
        """Yields place, size and message of each record of file ``number``; the message of a damaged record is None.
        Raises :class:`DamageError` if the rest of the file cannot be read, and :class:`SourceError` if no record can
        be read."""

    @abstractmethod
    def read_record(self, number: int, place: int, length: int) -> bytes:
        """Reads the data of a record. Raises :class:`ValueError` for a damaged record."""

    def is_sound(self, number: int, place: int, length: int) -> bool:
        """Tells if a record is undamaged. Reads all of it."""
        with suppress(ValueError):
            self.read_record(number, place, length)
            return True
        return False


@dataclass(slots=True)
class RecordIndex:
    """Index of the records of a shard. A record takes 24 bytes and its key.

    Attributes:
        numbers: Place, length and size of the main image of each record in turn.
        keys: Keys of the records; None for records without one, and for damaged ones.
        damaged: Where and why the rest of the file cannot be read; None if it can.
    """

    numbers: array[int] = field(default_factory=lambda: array("q"))
    keys: list[str | None] = field(default_factory=list)
    damaged: Record | None = None


class WalkedSource(RecordSource):
    """Base of sources whose shards have no table of their records. The first use of :attr:`index` walks all records.

    If a record has a wrong length, the rest of its file is one bad sample."""

    opened: RecordFiles

    @abstractmethod
    def open_files(self, paths: Sequence[Path]) -> RecordFiles:
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

    def records(self, number: int) -> Iterator[Record]:
        """Yields each record. If the rest of a shard is damaged, yields one more. If :attr:`has_keys`, a record without
        a key has file name and place as key."""
        has_keys, index, name = self.has_keys, self.index[number], self.shards[number][1].name
        numbers = iter(index.numbers)
        for place, length, size, key in zip(numbers, numbers, numbers, index.keys, strict=True):
            own = (f"{name}#{place}" if key is None else key) if has_keys else None
            yield Record(place, length, size, length - size, own)
        if index.damaged is not None:
            yield index.damaged

    def read_record(self, number: int, place: int, length: int) -> dict[str, Any]:
        """Reads and decodes a record, by column."""
        return self.decode_record(self.opened.read_record(number, place, length))

    def find_image(self, number: int, place: int, length: int) -> tuple[int, int] | None:
        """Returns place and length of the record, which contains the image."""
        return place, length

    @cached_property
    def index(self) -> list[RecordIndex]:
        """Indexes of the shards. The first use walks all records. Raises :class:`SourceError` if there are none."""
        indexes = [self.index_file(number) for number in range(len(self.shards))]
        if not any(index.keys or index.damaged for index in indexes):
            raise SourceError(f"{printable(str(self.path))}: its files hold no records")
        self.check_index(indexes)
        return indexes

    def check_index(self, indexes: Sequence[RecordIndex]) -> None:
        """Raises :class:`SourceError` if the records are not of this format; does nothing in this base."""

    def index_file(self, number: int) -> RecordIndex:
        """Indexes the records of file ``number`` up to the first wrong length."""
        index = RecordIndex()
        try:
            for place, length, message in self.opened.walk_records(number):
                size, key = (length, None) if message is None else self.index_record(number, place, message)
                index.numbers.extend((place, length, size))
                index.keys.append(key)
        except DamageError as damage:
            index.damaged = Record(damage.at, -1, fault=str(damage))
        return index
