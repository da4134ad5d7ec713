"""LMDBs of other programs: BasicSR, Caffe, folder2lmdb, LSUN and OCR.

The first keys and values of an LMDB tell its kind. Pages are read with the bounds-checked reader of packstore's own
stores, not by LMDB.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Field, Image, Label, Text
from packstore.images.sniff import begins_like_image, excess_pixels_message, max_file_bytes
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.dataset import index_key
from packstore.sources.ignoring import visible_paths
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.records.wire import Message
from packstore.sources.refusals import first_bytes
from packstore.sources.rows import Row, RowSource, in_packing_order
from packstore.sources.splits import find_split
from packstore.stores.lmdb.pages import DATA_FILE, PageError, Pages, TreeEntry
from packstore.stores.pth.pickle_machine import PickleError, interpret_plain_pickle

_MAGIC = b"\xde\xc0\xef\xbe\x01\0\0\0"
_MAGIC_AT = 16
# Keys that tell a packstore store from a foreign LMDB.
_OWN = (b"manifest", b"row_checksum")


class Database:
    """Open LMDB of another program. Opening raises :class:`SourceError` for any other file, and for damaged header
    pages. Other pages are checked when they are read; a damaged one raises :class:`ValueError`.

    Attributes:
        path: Path as given: a directory with ``data.mdb``, or the file itself.
        file: Path of the file.
        entries: Number of entries.
    """

    def __init__(self, path: Path) -> None:
        """Opens the file. Raises :class:`SourceError` if ``path`` is no LMDB, or its header pages are damaged."""
        self.path = path
        self.file = path / DATA_FILE if path.is_dir() else path
        try:
            with self.file.open("rb") as file:
                self._pages = Pages(file.fileno())
        except (PageError, OSError) as error:
            raise SourceError(f"{printable(str(path))} is not a readable LMDB, or is damaged: {error}") from None
        self.entries = self._pages.tree.entries

    def walk_entries(self) -> Iterator[TreeEntry]:
        """Yields the keys in sorted order, each with the size of its value."""
        for item in self._pages.walk_entries():
            if isinstance(item, str):
                raise ValueError(f"it is damaged: {item}")
            yield item

    def has_mostly(self, test: Callable[[bytes], bool]) -> bool:
        """Tells if more than half of the first 4 values, in the order of keys, pass a test."""
        passed = [test(self.read_value(key) or b"") for key, _ in islice(self.walk_entries(), 4)]
        return 2 * sum(passed) > len(passed)

    def read_value(self, key: bytes) -> bytes | None:
        """Reads the value of a key; returns None if the key is missing."""
        try:
            value = self._pages.find_value(key)
        except PageError as error:
            raise ValueError(f"it is damaged: {error}") from None
        return None if value is None else value.tobytes()


class LmdbSource(RowSource):
    """Base of sources with one LMDB of another program, or several in a folder. Several are named by split:
    ``train.lmdb``, ``ilsvrc12_val_lmdb``.

    Opening raises :class:`SourceError` if there is no LMDB, for another kind of LMDB, and for damage in first pages.
    Raises :class:`AmbiguousSourceError` if the names of several do not have one split each.

    Attributes:
        columns: The fields, by name.
    """

    columns: ClassVar[Mapping[str, Field]] = {"image": Image(), "label": Label()}

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        found = self.find_databases(path)
        if not found:
            raise SourceError(f"{printable(str(path))} holds no LMDB")
        self._splits = [split for split, _ in found]
        self.databases = [Database(each) for _, each in found]
        try:
            wrong = next((each.path for each in self.databases if not self.is_of_kind(each)), None)
        except ValueError as error:
            raise SourceError(f"{printable(str(path))}: {error}") from None
        if wrong is not None:
            raise SourceError(f"{printable(str(wrong))} is no LMDB of {self.kind}")
        self.max_bytes = max_file_bytes(options.max_pixels)

    @classmethod
    @abstractmethod
    def is_of_kind(cls, database: Database) -> bool:
        """Tells by its first entries if a database is of this kind."""

    def fields(self) -> Mapping[str, Field]:
        """Declares :attr:`columns`."""
        return self.columns

    def walk_samples(self, database: Database, split: str) -> Iterator[tuple[str, Any, int, int]]:
        """Yields key, reference, size of the image and size of the other values of each sample of a database. In this
        base, each entry is a sample. Raises :class:`ValueError` for entries that the format does not have."""
        for key, size in database.walk_entries():
            yield self.make_key(database, split, key.decode("utf-8", "surrogateescape")), key, size, 8

    @abstractmethod
    def read_sample_values(self, database: Database, ref: Any) -> dict[str, Any]:
        """Reads the values of a sample. Raises :class:`ValueError` if it is missing, damaged or too large."""

    @classmethod
    def find_databases(cls, path: Path) -> list[tuple[str, Path]]:
        """Finds split and path of the LMDBs at a path, in packing order; returns ``[]`` if there are none.

        A path that is an LMDB itself has the split ``""``. Raises :class:`AmbiguousSourceError` unless each of several
        LMDBs has a split of its own in its name.
        """
        databases = [("" if each == path else find_split(each.name), each) for each in _find_lmdbs(path)]
        if len(databases) > 1 and len({split for split, _ in databases} - {""}) != len(databases):
            raise AmbiguousSourceError(
                f"{printable(str(path))} holds several LMDBs, whose names do not have one split each",
                [Answer(source=each) for _, each in databases],
                lists_answers=True,
            )
        order = in_packing_order(split for split, _ in databases)
        return sorted(databases, key=lambda each: order.index(each[0]))

    @classmethod
    def recognise(cls, path: Path, options: SourceOptions) -> Certainty:
        """Returns ``CERTAIN`` if all LMDBs at ``path`` are of this kind and none is a packstore store, else ``NO``.
        Raises :class:`AmbiguousSourceError` for several LMDBs unless each is named after a split of its own."""
        try:
            databases = [Database(each) for each in _find_lmdbs(path)]
            # A store of packstore is an LMDB, too.
            is_own = any(each.read_value(key) is not None for each in databases for key in _OWN)
            fits = not is_own and all(map(cls.is_of_kind, databases))
        except (SourceError, ValueError, PermissionError):
            return Certainty.NO  # stores and the general kinds tell the fault
        return Certainty.CERTAIN if fits and cls.find_databases(path) else Certainty.NO

    def splits(self) -> Sequence[str]:
        """Returns the splits of the databases, in packing order; ``[""]`` for a single database without split."""
        return list(dict.fromkeys(self._splits))

    def rows(self, split: str) -> Iterator[Row]:
        """Yields a row for each sample of the databases of a split. Raises :class:`SourceError` for a damaged page, and
        entries that the format does not have."""
        for number, database in enumerate(self.databases):
            if self._splits[number] == split:
                try:
                    for key, ref, size, rest in self.walk_samples(database, split):
                        yield Row(key, (number, ref), size, rest)
                except ValueError as error:
                    raise SourceError(f"{printable(str(database.path))}: {printable(str(error))}") from None

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads the values of a row by :meth:`read_sample_values`."""
        number, own = ref
        return self.read_sample_values(self.databases[number], own)

    def make_key(self, database: Database, split: str, key: str) -> str:
        """Makes the key of a sample from split and key in its LMDB: several LMDBs may have equal keys."""
        return f"{split}/{key}" if split else key

    def read_file(self, database: Database, key: bytes) -> bytes:
        """Reads a value that is a file. Raises :class:`ValueError` if it is missing or damaged, or too large for an
        image within ``max_pixels``."""
        data = database.read_value(key)
        if data is None:
            raise ValueError(f"{printable(repr(key)[1:])} is missing in the LMDB")
        if len(data) > self.max_bytes:
            raise ValueError(f"has {len(data)} bytes, more than the {self.max_bytes} of an image within max_pixels")
        return data

    def files(self) -> list[Path]:
        """Lists the LMDB files."""
        return [each.file for each in self.databases]


def _find_lmdbs(path: Path) -> list[Path]:
    """Lists the LMDBs at a path: itself, or those in the folder, sorted."""
    if _is_lmdb(path):
        return [path]
    paths = []
    for each in visible_paths(path) if path.is_dir() else ():
        name, is_folder = each.name.lower(), each.is_dir()
        if name.startswith("."):
            continue
        if (is_folder or name.endswith((".lmdb", ".mdb", "_lmdb"))) and _is_lmdb(each):
            paths.append(each)
        elif is_folder or name.endswith(IMAGE_SUFFIXES):
            # With images or other folders beside them, the LMDBs are not the dataset.
            return []
    return sorted(paths)


def _is_lmdb(path: Path) -> bool:
    """Tells by the magic number if a path is an LMDB: the file itself, or a directory with ``data.mdb``."""
    file = path / DATA_FILE if path.is_dir() else path
    return first_bytes(file, _MAGIC_AT + len(_MAGIC))[_MAGIC_AT:] == _MAGIC


_LIST = "meta_info.txt"
_LINE = re.compile(r"(.+) \((\d{1,9}), ?(\d{1,9})(?:, ?\d)?\) \d+")


class BasicSrSource(LmdbSource):
    """LMDBs of BasicSR (https://github.com/XPixelGroup/BasicSR, ``docs/DatasetPreparation.md``).

    Keys are names of PNG files without the suffix. ``meta_info.txt`` lists them, and decides the order:
    ``baboon.png (480,500,3) 1``."""

    kind = "basicsr"
    columns: ClassVar = {"image": Image()}

    @classmethod
    def is_of_kind(cls, database: Database) -> bool:
        """Tells if ``meta_info.txt`` beside the database has a first line of BasicSR's."""
        line = first_bytes(database.path / _LIST, 4096).decode("utf-8", "replace").partition("\n")[0]
        return _LINE.fullmatch(line.rstrip("\r")) is not None

    def walk_samples(self, database: Database, split: str) -> Iterator[tuple[str, Any, int, int]]:
        """Yields a sample for each line of the list, with the size of its pixels. The LMDB must have as many
        entries."""
        names = set[str]()
        with (database.path / _LIST).open(encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                match = _LINE.fullmatch(line.rstrip("\n"))
                if match is None or match[1] in names:
                    raise ValueError(
                        f"line {len(names) + 1} of {_LIST} is not: name (height,width,channels) compression"
                    )
                names.add(match[1])
                yield self.make_key(database, split, match[1]), match[1], int(match[2]) * int(match[3]) * 3, 0
        if len(names) != database.entries:
            raise ValueError(f"{_LIST} lists {len(names)} images; the LMDB has {database.entries}")

    def read_sample_values(self, database: Database, ref: Any) -> dict[str, Any]:
        """Reads the image of a line. Its key in the LMDB is the file name up to the first dot."""
        return {"image": self.read_file(database, ref.split(".")[0].encode("utf-8", "surrogateescape"))}

    def files(self) -> list[Path]:
        """Lists the LMDB files and the lists."""
        return [*super().files(), *(database.path / _LIST for database in self.databases)]


_DATA, _FLOATS, _BYTES = 4, 6, 2
# Fields of a message: channels, height, width, label, and if the image is a file.
_NUMBERS = (1, 2, 3, 5, 7)


class _Datum(NamedTuple):
    """Parsed ``Datum`` message.

    Attributes:
        shape: Channels, height and width.
        data: The image.
        label: Class number.
        encoded: The image is a file, not pixels.
    """

    shape: tuple[int, int, int]
    data: bytes
    label: int
    encoded: bool


class CaffeSource(LmdbSource):
    """LMDBs of Caffe, whose values are ``Datum`` messages (``caffe.proto``), with the keys and order of the LMDB.

    A message has an image file, or pixels as channels x height x width. Pixels are in the order blue, green, red, or
    red first if the LMDB has ``cifar`` in its name. A message without a label has class 0. Floating-point numbers, and
    pixels of other than 1 or 3 channels, are bad samples.
    """

    kind = "caffe"

    @classmethod
    def is_of_kind(cls, database: Database) -> bool:
        """Tells if more than half of the first 4 values are messages with an image."""
        return database.has_mostly(_is_image_datum)

    def fields(self) -> Mapping[str, Field]:
        """Declares image (files or pixels, as in the first message) and label."""
        values = (self.databases[0].read_value(key) or b"" for key, _ in self.databases[0].walk_entries())
        has_files = next(parse_datum(value).encoded for value in values if _is_image_datum(value))
        return {"image": Image("original" if has_files else "uint8"), "label": Label()}

    def read_sample_values(self, database: Database, ref: Any) -> dict[str, Any]:
        """Reads image and label; the image is a file, or pixels ``(H, W, C)``, red first."""
        datum = parse_datum(self.read_file(database, ref))
        if datum.encoded:
            return {"image": datum.data, "label": datum.label}
        channels, height, width = datum.shape
        reason = excess_pixels_message(width, height, self.options.max_pixels)
        if reason is not None:
            raise ValueError(reason)
        if channels not in (1, 3) or len(datum.data) != channels * height * width or not datum.data:
            raise ValueError(f"it has {len(datum.data)} bytes of pixels, expected {channels} x {height} x {width}")
        planes = np.frombuffer(datum.data, np.uint8).reshape(channels, height, width)
        red_first = channels == 1 or "cifar" in database.path.name.lower()
        pixels = planes if red_first else planes[::-1]
        return {"image": np.ascontiguousarray(pixels.transpose(1, 2, 0)), "label": datum.label}


def _is_image_datum(data: bytes) -> bool:
    """Tells if a value is a valid message with an image file or with pixels; False for any other value."""
    try:
        datum = parse_datum(data)
    except ValueError:
        return False
    return bool(datum.data) and (begins_like_image(datum.data[:16]) if datum.encoded else bool(datum.shape[0]))


def parse_datum(data: bytes) -> _Datum:
    """Parses a message; a missing number, such as the label, is 0. Raises :class:`ValueError` if ``data`` is no
    ``Datum``, or has floating-point numbers."""
    message, numbers, content = Message.from_bytes(data), dict.fromkeys(_NUMBERS, 0), b""
    for field, wire, start, stop in message.fields(0, len(data)):
        if field in _NUMBERS and wire == 0:
            numbers[field] = message.read_varint(start, stop)[0]
        elif field == _DATA and wire == _BYTES:
            content = data[start:stop]
        elif field == _FLOATS:
            raise ValueError("it holds floating point numbers, which are no pixels")
        else:
            raise ValueError(f"it has a field {field} that a Datum does not have")
    *shape, label, encoded = numbers.values()
    return _Datum((shape[0], shape[1], shape[2]), content, label - (label >> 63 << 64), bool(encoded))


_LENGTH, _KEYS = b"__len__", b"__keys__"
_MAX_OPERATIONS = 1000


class Folder2LmdbSource(LmdbSource):
    """LMDBs of folder2lmdb (https://github.com/Lyken17/Efficient-PyTorch, ``tools/folder2lmdb.py``). Listing raises
    :class:`SourceError` for a wrong ``__len__``.

    The keys ``0``, ``1`` … have pickles of ``(file, label)``; ``__len__`` has their number. A missing number is a bad
    sample. Pickles are read by :mod:`packstore.stores.pth.pickle_machine`, and never run."""

    kind = "folder2lmdb"

    @classmethod
    def is_of_kind(cls, database: Database) -> bool:
        """Tells if the keys ``__len__`` and ``__keys__`` exist."""
        return database.read_value(_LENGTH) is not None and database.read_value(_KEYS) is not None

    def walk_samples(self, database: Database, split: str) -> Iterator[tuple[str, Any, int, int]]:
        """Yields a sample for each number, with the mean size of all. ``__len__`` must be the number of entries, less
        two: with another key, a number is missing, which is a bad sample."""
        count = _load_pickle(database.read_value(_LENGTH) or b"")
        if type(count) is not int or count != database.entries - 2:
            raise ValueError(f"__len__ should be {database.entries - 2:,}, the number of samples")
        size = database.file.stat().st_size // max(1, count)
        for index in range(count):
            yield index_key(split, index), index, size, 8

    def read_sample_values(self, database: Database, ref: Any) -> dict[str, Any]:
        """Reads image file and label from the pickle, without running it."""
        value = _load_pickle(self.read_file(database, b"%d" % ref))
        image, label = value if type(value) in (tuple, list) and len(value) == 2 else (None, None)
        if type(image) is not bytes or type(label) is not int:
            raise ValueError("its pickle is no pair of the bytes of a file and a label")
        return {"image": image, "label": label}


def _load_pickle(data: bytes) -> Any:
    """Parses a pickle of plain values and bytes; runs nothing from it."""
    try:
        return interpret_plain_pickle(data, {}, _MAX_OPERATIONS)
    except PickleError as error:
        raise ValueError(f"it is {printable(str(error))}; of pyarrow? Write it again with pickle") from None


CLASSES = (
    *("bedroom", "bridge", "church_outdoor", "classroom", "conference_room", "dining_room", "kitchen", "living_room"),
    *("restaurant", "tower"),
)
_NAME = re.compile(rf"(?:({'|'.join(CLASSES)})_(train|val)|(test))_lmdb")


class LsunSource(LmdbSource):
    """LSUN (https://github.com/fyu/lsun): an LMDB for each class and split, ``bedroom_train_lmdb``, and ``test_lmdb``.

    Labels and the order of samples are those of ``torchvision.datasets.LSUN``: classes in the publisher's order. The
    key of a sample is split, class and key in the LMDB. Images of ``test`` have no label."""

    kind = "lsun"

    @classmethod
    def is_of_kind(cls, database: Database) -> bool:
        """Tells if the database has a name of LSUN's. More than half of its first 4 values also have to be images."""
        return _parse_name(database.path)[0] != "" and database.has_mostly(lambda data: begins_like_image(data[:16]))

    @classmethod
    def find_databases(cls, path: Path) -> list[tuple[str, Path]]:
        """Finds the LMDBs with names of LSUN's; ignores others. Sorts them by split, then in the publisher's order of
        classes."""
        entries = [(*named, each) for each in _find_lmdbs(path) if (named := _parse_name(each))[0]]
        order = in_packing_order(split for split, _, _ in entries)
        entries.sort(key=lambda each: (order.index(each[0]), CLASSES.index(each[1]) if each[1] else -1))
        return [(split, each) for split, _, each in entries]

    @property
    def _classes(self) -> tuple[str, ...]:
        """Classes that have a database, in the publisher's order."""
        return tuple(name for name in CLASSES if any(each.path.name.startswith(name) for each in self.databases))

    def fields(self) -> Mapping[str, Field]:
        """Declares image and label. In ``test`` the label is missing; if there is no other split, declares the image
        alone."""
        label = {"label": Label(self._classes, optional="test" in self.splits())} if self._classes else {}
        return {"image": Image(), **label}

    def make_key(self, database: Database, split: str, key: str) -> str:
        """Puts split and class before the key in the LMDB; ``test`` stands for no class."""
        return f"{split}/{_parse_name(database.path)[1] or 'test'}/{key}"

    def read_sample_values(self, database: Database, ref: Any) -> dict[str, Any]:
        """Reads the image, and as ``label`` the class in the name of its LMDB. An image of ``test`` has no label."""
        _, name = _parse_name(database.path)
        label = {"label": self._classes.index(name)} if name else {}
        return {"image": self.read_file(database, ref), **label}


def _parse_name(path: Path) -> tuple[str, str]:
    """Returns split and class in the name of an LMDB of LSUN's; both may be empty."""
    match = _NAME.fullmatch(path.name)
    return (match[2] or match[3], match[1] or "") if match else ("", "")


class OcrSource(LmdbSource):
    """LMDBs of images with texts, for OCR: MJSynth, SynthText
    (https://github.com/clovaai/deep-text-recognition-benchmark). Leaves out other entries.

    Keys are ``image-%09d`` and ``label-%09d`` from 1 on, and ``num-samples``. The label is a text. Listing raises
    :class:`SourceError` if ``num-samples`` is wrong."""

    kind = "ocr"
    columns: ClassVar = {"image": Image(), "text": Text()}

    @classmethod
    def is_of_kind(cls, database: Database) -> bool:
        """Tells if the keys ``num-samples`` and ``image-000000001`` exist."""
        return database.read_value(b"num-samples") is not None and database.read_value(b"image-%09d" % 1) is not None

    def walk_samples(self, database: Database, split: str) -> Iterator[tuple[str, Any, int, int]]:
        """Yields a sample for each number, with the mean size of all."""
        text = database.read_value(b"num-samples") or b""
        count = int(text) if text.isdigit() and len(text) <= 9 else 0
        if database.read_value(b"image-%09d" % count) is None or database.read_value(b"image-%09d" % (count + 1)):
            raise ValueError(f"num-samples is {printable(repr(text[:40])[1:])}, which is not the number of images")
        size = database.file.stat().st_size // max(1, count)
        for number in range(1, count + 1):
            yield self.make_key(database, split, f"image-{number:09}"), number, size, 16

    def read_sample_values(self, database: Database, ref: Any) -> dict[str, Any]:
        """Reads image and text."""
        text = self.read_file(database, b"label-%09d" % ref)
        return {"image": self.read_file(database, b"image-%09d" % ref), "text": text.decode("utf-8")}


LSUN = Kind("lsun", "LMDBs of LSUN", LsunSource.recognise, LsunSource)
FOLDER2LMDB = Kind("folder2lmdb", "an LMDB of folder2lmdb", Folder2LmdbSource.recognise, Folder2LmdbSource)
OCR = Kind("ocr", "an LMDB of images and their texts, for OCR", OcrSource.recognise, OcrSource)
BASICSR = Kind("basicsr", "an LMDB of BasicSR", BasicSrSource.recognise, BasicSrSource)
CAFFE = Kind("caffe", "an LMDB of Caffe", CaffeSource.recognise, CaffeSource)
