"""Formats of LMDBs of other programs: BasicSR, Caffe, folder2lmdb, LSUN and OCR.

The first keys and values of an LMDB tell its kind. Pages are read with the bounds-checked reader of packstore's own
stores, not by LMDB.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Image, Label, Text
from packstore.core.pickle_machine import PickleError, interpret_plain_pickle
from packstore.core.protobuf import Message
from packstore.images.sniff import begins_like_image, excess_pixels_message
from packstore.sources.base import Kind, SourceOptions
from packstore.sources.dataset import index_key
from packstore.sources.lmdbs import Database, LmdbSource, find_lmdbs, is_lmdb
from packstore.sources.rows import in_packing_order

_LIST = "meta_info.txt"
_LINE = re.compile(r"(.+) \((\d+), ?(\d+)(?:, ?(\d+))?\) \d+")


class BasicSrSource(LmdbSource):
    """LMDBs of BasicSR (https://github.com/XPixelGroup/BasicSR, ``docs/DatasetPreparation.md``).

    Keys are names of PNG files without the suffix. ``meta_info.txt`` lists them, and decides the order:
    ``baboon.png (480,500,3) 1``."""

    kind = "basicsr"
    columns: ClassVar = {"image": Image()}

    @classmethod
    def is_of_kind(cls, database: Database) -> bool:
        """Tells if ``meta_info.txt`` beside the database has a first line of BasicSR's."""
        file = database.path / _LIST
        if not file.is_file():
            return False
        with file.open(encoding="utf-8", errors="replace") as lines:
            return _LINE.fullmatch(lines.readline(4096).rstrip("\n")) is not None

    def walk_samples(self, database: Database, split: str) -> Iterator[tuple[str, Any, int, int]]:
        """Yields a sample for each line of the list, with the size of its pixels. Raises :class:`SourceError` for an
        invalid or repeated line, and if the LMDB has more or fewer entries."""
        file, seen = database.path / _LIST, set[str]()
        with file.open(encoding="utf-8", errors="surrogateescape") as lines:
            for number, line in enumerate(lines, 1):
                match = _LINE.fullmatch(line.rstrip("\n"))
                if match is None:
                    raise SourceError(
                        f"{printable(str(file))}: line {number} is not: name (height,width,channels) compression"
                    )
                if match[1] in seen:
                    raise SourceError(f"{printable(str(file))} lists {printable(match[1])} twice")
                seen.add(match[1])
                pixels = int(match[2][:9]) * int(match[3][:9]) * int((match[4] or "1")[:2])
                yield self.make_key(database, split, match[1]), match[1], pixels, 0
        if len(seen) != database.entries:
            raise SourceError(f"{printable(str(file))} lists {len(seen)} images; the LMDB has {database.entries}")

    def read_sample_values(self, database: Database, ref: Any) -> dict[str, Any]:
        """Reads the image of a line. Its key in the LMDB is the file name up to the first dot."""
        return {"image": self.read_image(database, ref.split(".")[0].encode("utf-8", "surrogateescape"))}

    def files(self) -> list[Path]:
        """Lists the LMDB files and the lists."""
        return [*super().files(), *(database.path / _LIST for database in self.databases)]


_DATA, _FLOATS, _BYTES = 4, 6, 2
_NUMBERS = (1, 2, 3, 5, 7)
"""Fields of a message: channels, height, width, label, and if the image is a file."""


class _Datum(NamedTuple):
    """Parsed ``Datum`` message.

    Attributes:
        shape: Channels, height and width.
        data: Begin and end of the image in the message.
        label: Class number.
        encoded: The image is a file, not pixels.
    """

    shape: tuple[int, int, int]
    data: tuple[int, int]
    label: int
    encoded: bool


class CaffeSource(LmdbSource):
    """LMDBs of Caffe, whose values are ``Datum`` messages (``caffe.proto``). Keys and order are those of the LMDB.

    A message has an image file, or pixels as channels x height x width in the order blue, green, red; red first if the
    LMDB has ``cifar`` in its name. A message without a label has class 0. Messages of floating-point numbers are bad
    samples. So are pixels of other than 1 or 3 channels."""

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

    def make_key(self, database: Database, split: str, key: str) -> str:
        """Puts the split before the key in the LMDB."""
        return f"{split}/{key}" if split else key

    def read_sample_values(self, database: Database, ref: Any) -> dict[str, Any]:
        """Reads image and label; the image is a file, or pixels ``(H, W, C)``, red first."""
        data = database.read_value(ref)
        if data is None:
            raise ValueError("it is not in the LMDB")
        datum = parse_datum(data)
        content = data[slice(*datum.data)]
        if datum.encoded:
            return {"image": self.check_size(content), "label": datum.label}
        channels, height, width = datum.shape
        reason = excess_pixels_message(width, height, self.options.max_pixels)
        if reason is not None:
            raise ValueError(reason)
        if channels not in (1, 3) or len(content) != channels * height * width or not content:
            raise ValueError(f"it has {len(content)} bytes of pixels, expected {channels} x {height} x {width}")
        planes = np.frombuffer(content, np.uint8).reshape(channels, height, width)
        red_first = channels == 1 or "cifar" in database.path.name.lower()
        pixels = planes if red_first else planes[::-1]
        return {"image": np.ascontiguousarray(pixels.transpose(1, 2, 0)), "label": datum.label}


def _is_image_datum(data: bytes) -> bool:
    """Tells if a value is a valid message with an image file or with pixels; False for any other value."""
    try:
        datum = parse_datum(data)
    except ValueError:
        return False
    start, stop = datum.data
    return start < stop and (begins_like_image(data[start : start + 16]) if datum.encoded else bool(datum.shape[0]))


def parse_datum(data: bytes) -> _Datum:
    """Parses a message; a missing number, such as the label, is 0. Raises :class:`ValueError` if ``data`` is no
    ``Datum``, or has floating-point numbers."""
    message, numbers, place = Message.from_bytes(data), dict.fromkeys(_NUMBERS, 0), (0, 0)
    for field, wire, start, stop in message.fields(0, len(data)):
        if field in _NUMBERS and wire == 0:
            numbers[field] = message.read_varint(start, stop)[0]
        elif field == _DATA and wire == _BYTES:
            place = start, stop
        elif field == _FLOATS:
            raise ValueError("it holds floating point numbers, which are no pixels")
        else:
            raise ValueError(f"it has a field {field} that a Datum does not have")
    *shape, label, encoded = numbers.values()
    return _Datum((shape[0], shape[1], shape[2]), place, label - (label >> 63 << 64), bool(encoded))


_LENGTH, _KEYS = b"__len__", b"__keys__"
_MAX_OPERATIONS = 1000


class Folder2LmdbSource(LmdbSource):
    """LMDBs of folder2lmdb (https://github.com/Lyken17/Efficient-PyTorch, ``tools/folder2lmdb.py``). Listing raises
    :class:`SourceError` for other keys and a wrong ``__len__``.

    The keys ``0``, ``1`` … have pickles of ``(file, label)``; ``__len__`` has their number. A missing number is a bad
    sample. Pickles are read by :mod:`packstore.core.pickle_machine`, and never run."""

    kind = "folder2lmdb"

    @classmethod
    def is_of_kind(cls, database: Database) -> bool:
        """Tells if the keys ``__len__`` and ``__keys__`` exist."""
        return database.read_value(_LENGTH) is not None and database.read_value(_KEYS) is not None

    def walk_samples(self, database: Database, split: str) -> Iterator[tuple[str, Any, int, int]]:
        """Yields a sample for each number, with the mean size of all. ``__len__`` must be the number of entries, less
        two: with another key, a number is missing, which is a bad sample."""
        shown, found = printable(str(database.path)), database.entries - 2
        try:
            count = _load_pickle(database.read_value(_LENGTH) or b"")
        except ValueError as error:
            raise SourceError(f"{shown}: __len__: {error}; of pyarrow? Write it again with pickle") from None
        if type(count) is not int or count != found:
            raise SourceError(f"{shown}: __len__ should be {found:,}, the number of samples")
        size = database.file.stat().st_size // max(1, count)
        for index in range(count):
            yield index_key(split, index), index, size, 8

    def read_sample_values(self, database: Database, ref: Any) -> dict[str, Any]:
        """Reads image file and label from the pickle, without running it."""
        data = database.read_value(b"%d" % ref)
        if data is None:
            raise ValueError(f"number {ref} is missing")
        value = _load_pickle(self.check_size(data))
        image, label = value if type(value) in (tuple, list) and len(value) == 2 else (None, None)
        if type(image) is not bytes or type(label) is not int:
            raise ValueError("its pickle is no pair of the bytes of a file and a label")
        return {"image": image, "label": label}


def _load_pickle(data: bytes) -> Any:
    """Parses a pickle of plain values and bytes; runs nothing from it. Raises :class:`ValueError` for a damaged pickle,
    one of more than 1,000 operations, and one that calls any function."""
    try:
        return interpret_plain_pickle(data, {}, _MAX_OPERATIONS)
    except PickleError as error:
        raise ValueError(f"it is {printable(str(error))}") from None


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
        return _parse_name(database.path) is not None and database.has_mostly(lambda data: begins_like_image(data[:16]))

    @classmethod
    def find_databases(cls, path: Path) -> list[tuple[str, Path]]:
        """Finds the LMDBs with names of LSUN's, at ``path`` or in the folder ``path``; ignores others. Sorts them by
        split, then in the publisher's order of classes."""
        places = [path] if is_lmdb(path) else find_lmdbs(path)
        entries = [(*named, each) for each in places if (named := _parse_name(each))]
        order = in_packing_order(split for split, _, _ in entries)
        entries.sort(key=lambda each: (order.index(each[0]), CLASSES.index(each[1]) if each[1] else -1))
        return [(split, each) for split, _, each in entries]

    @property
    def _classes(self) -> tuple[str, ...]:
        """Classes that have a database, in the publisher's order."""
        present = {named[1] for database in self.databases if (named := _parse_name(database.path))}
        return tuple(name for name in CLASSES if name in present)

    def fields(self) -> Mapping[str, Field]:
        """Declares image and label. In ``test`` the label is missing; if there is no other split, declares the image
        alone."""
        if not self._classes:
            return {"image": Image()}
        return {"image": Image(), "label": Label(self._classes, optional="test" in self.splits())}

    def make_key(self, database: Database, split: str, key: str) -> str:
        """Puts split and class before the key in the LMDB; ``test`` stands for no class."""
        _, name = _parse_name(database.path) or ("", "")
        return f"{split}/{name or 'test'}/{key}"

    def read_sample_values(self, database: Database, ref: Any) -> dict[str, Any]:
        """Reads the image, and as ``label`` the class in the name of its LMDB. An image of ``test`` has no label."""
        _, name = _parse_name(database.path) or ("", "")
        label = {"label": self._classes.index(name)} if name else {}
        return {"image": self.read_image(database, ref), **label}


def _parse_name(path: Path) -> tuple[str, str] | None:
    """Returns split and class in the name of an LMDB of LSUN's; no class for ``test``. Returns None for other names."""
    match = _NAME.fullmatch(path.name)
    return match and (match[2] or match[3], match[1] or "")


class OcrSource(LmdbSource):
    """LMDBs of images with texts, for OCR: MJSynth, SynthText
    (https://github.com/clovaai/deep-text-recognition-benchmark). Leaves out other entries, and counts them.

    Keys are ``image-%09d`` and ``label-%09d`` from 1 on, and ``num-samples``. The label is a text. Listing raises
    :class:`SourceError` if an image is missing, or ``num-samples`` is wrong."""

    kind = "ocr"

    columns: ClassVar = {"image": Image(), "text": Text()}

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._others: dict[Path, int] = {}

    @classmethod
    def is_of_kind(cls, database: Database) -> bool:
        """Tells if the keys ``num-samples`` and ``image-000000001`` exist."""
        return database.read_value(b"num-samples") is not None and database.read_value(b"image-%09d" % 1) is not None

    def walk_samples(self, database: Database, split: str) -> Iterator[tuple[str, Any, int, int]]:
        """Yields a sample for each image, and counts the other entries."""
        count, images, others = database.read_value(b"num-samples") or b"", 0, 0
        for key, size in database.walk_entries():
            if key.startswith(b"image-"):
                images += 1
                if key != b"image-%09d" % images:
                    raise SourceError(f"{printable(str(database.path))}: image {images} is missing")
                yield self.make_key(database, split, key.decode("ascii")), images, size, 16
            elif key != b"num-samples" and not _is_label(key, images):  # images are before labels
                others += 1
        self._others[database.path] = others
        if count.strip().lstrip(b"0") != b"%d" % images:
            raise SourceError(
                f"{printable(str(database.path))}: num-samples is {printable(repr(count[:40])[1:])}, but there are "
                f"{images} images"
            )

    def count_left_parts(self) -> Mapping[str, int]:
        """Returns the number of entries besides image, label and ``num-samples``, as the listing has counted them, by
        reason. Returns ``{}`` if there are none."""
        return +Counter({"entries besides image, label and num-samples": sum(self._others.values())})

    def read_sample_values(self, database: Database, ref: Any) -> dict[str, Any]:
        """Reads image and text."""
        text = database.read_value(b"label-%09d" % ref)
        if text is None:
            raise ValueError(f"label-{ref:09} is missing")
        return {"image": self.read_image(database, b"image-%09d" % ref), "text": text.decode("utf-8")}


def _is_label(key: bytes, images: int) -> bool:
    """Tells if ``key`` is the key of a label, with a number from 1 to ``images``."""
    number = key.removeprefix(b"label-")
    return number.isdigit() and 1 <= int(number) <= images and key == b"label-%09d" % int(number)


def _make_kind(help: str, source: type[LmdbSource]) -> Kind:
    """Makes the kind of a format."""
    return Kind(source.kind, help, source.recognise, source)


LSUN = _make_kind("LMDBs of LSUN", LsunSource)
FOLDER2LMDB = _make_kind("an LMDB of folder2lmdb", Folder2LmdbSource)
OCR = _make_kind("an LMDB of images and their texts, for OCR", OcrSource)
BASICSR = _make_kind("an LMDB of BasicSR", BasicSrSource)
CAFFE = _make_kind("an LMDB of Caffe", CaffeSource)
