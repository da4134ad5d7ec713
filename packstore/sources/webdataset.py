"""Reads WebDataset: tar shards in which files of equal names are a sample (https://github.com/webdataset/webdataset).

A sample's key is the path of its files up to the first dot of the file name; the rest, its extension, names the value.
Files of a sample usually follow each other; those that lie apart in a shard are joined. Values are decoded like by the
library's ``basichandlers``, except that pickles are refused.
"""

from __future__ import annotations

import io
import os
import re
import tokenize
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, UsageError, printable
from packstore.core.fields import Bytes, Field, Images, Label
from packstore.core.files import Location
from packstore.core.plainjson import load_json, parse_float64
from packstore.core.registry import SOURCES
from packstore.images.sniff import max_file_bytes
from packstore.sources.archives.tar import TAR_FAULTS, OpenTar, is_tar, read_first_names, states_utf8
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.columns import ANY, FILE, ValueType, choose_main_image, guess_field, make_column_name
from packstore.sources.encodings import KEY, active_encoding, decode_names, to_utf8
from packstore.sources.exported import ExportedRows, open_with
from packstore.sources.ledger import Claims, Role
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.needs import PresentNames
from packstore.sources.records import ShardSource, find_shards
from packstore.sources.records.facts import read_class_names
from packstore.sources.refusals import first_bytes
from packstore.sources.rows import Row
from packstore.stores.export_manifest import StoredBytes

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2")
_LABELS = frozenset(("cls", "class"))
# Kinds of content by the last part of an extension; others are bytes.
_KINDS = {
    **dict.fromkeys((suffix[1:] for suffix in IMAGE_SUFFIXES), "image"),
    **dict.fromkeys((*_LABELS, *(f"cls{digit}" for digit in "0123456789")), "label"),
    **dict.fromkeys(("txt", "text", "transcript"), "text"),
    **dict.fromkeys(("json", "jsn"), "json"),
    **dict.fromkeys(("count", "index", "inx", "id"), "number"),
    **dict.fromkeys(("pyd", "pickle", "pkl", "pth", "pt"), "pickle"),
    "npy": "array",
}
# Types of columns by the kind of their files; others have the name of the kind.
_TYPES = {"image": FILE, "number": ANY, "array": ANY}
# Columns in exports of packstore by extension. All other columns are named before a dot, except the image.
_EXPORTED = {"cls": "label", "txt": "text", "json": "json"}
# Number of files of the first shard that recognition looks at.
# Of more names if the first are no pairs: a tar may have all images before all texts.
_LOOKED_AT = (1000, 1 << 16)
# Keys of YOLO's lists of classes: ``classes.txt``, ``obj.names``.
_CLASS_LISTS = frozenset(("classes", "labels/classes", "obj", "data/obj"))
_NUMBERED = re.compile(r"(^|[-_])\d{3,}([.]|$)")
_PLACE = re.compile(r"(?:([^.]*[^.\d][^.]*)\.)?(\d{1,6})\.[^.]+")
_CLASSES = "classnames.txt"
_FIRST_DOT, _LAST_DOT = "first-dot", "last-dot"
_MAX_VALUE = 1 << 30
_OPEN_SHARDS = 4
# Most columns of images that raise no question about the dots of names.
_MANY = 8


class ShardIndex(NamedTuple):
    """Index of the samples of a shard. A sample takes 8 bytes, 32 bytes for each file, and its key.

    Attributes:
        keys: Keys of the samples.
        counts: Number of files of each sample.
        files: Four numbers for each file: its extension, offset, size and time of modification.
        left: Number of members that are not part of a sample, by reason.
        stated: Keys that the tar states to be UTF-8.
    """

    keys: list[str]
    counts: array[int]
    files: array[int]
    left: Counter[str]
    stated: set[bytes]

    def samples(self) -> Iterator[tuple[str, tuple[tuple[int, ...], ...]]]:
        """Yields key and files of each sample. A file is a tuple of its four numbers."""
        numbers = iter(self.files)
        files = zip(numbers, numbers, numbers, numbers, strict=True)
        return ((key, tuple(islice(files, count))) for key, count in zip(self.keys, self.counts, strict=True))


class WebDatasetSource(ShardSource):
    """Tar shards, see :func:`find_shards`. A file ``classnames.txt`` beside them has a class name on each line.

    Columns depend on all extensions, see :meth:`_columns`. If samples have different numbers of numbered images, these
    images are a list. Hidden files, links and devices are left out and counted. Opening raises :class:`SourceError` for
    a path without tars. The first use reads the headers of all files in all shards, and refuses pickles. At most four
    shards are open at a time.
    """

    kind = "webdataset"
    unit = "tar shard"
    suffixes = SUFFIXES

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._key_end = next((each.removeprefix(KEY) for each in options.columns if each.startswith(KEY)), "")
        if self._key_end not in ("", _FIRST_DOT, _LAST_DOT):
            said = printable(self._key_end)
            raise UsageError(f"--column {KEY}{said}: expected {KEY}{_FIRST_DOT} or {KEY}{_LAST_DOT}")
        self._encoding = active_encoding()
        self._open = lru_cache(_OPEN_SHARDS)(lambda number: OpenTar(self.shards[number][1]))

    def shard_rows(self, number: int, keys: Iterator[str]) -> Iterator[Row]:
        """Yields a row for each sample of a shard, with the sample's own key. Sizes are those in the headers. The first
        call reads the headers of all files in all shards."""
        columns, main = self._columns, self._main
        for key, numbers in self._shard_indexes[number].samples():
            size = modified = 0
            has_main, sizes = False, Counter[str]()
            files = tuple([(self._extensions[which], at, length, time) for which, at, length, time in numbers])
            for extension, _, nbytes, changed in files:
                name = columns[extension]
                if name == main and not has_main:
                    size, modified, has_main = nbytes, changed, True
                else:
                    sizes[name.partition(".")[0]] += nbytes  # a file of a list has pages.0
            yield Row(key, (number, files), size, sizes.total(), modified, sizes=sizes)

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads and decodes the files of a sample, by column. A list of numbered files becomes one value. Raises
        :class:`ValueError` for a damaged or too large file, for two files of one column, and for a list with a gap."""
        shard, files = ref
        raw: dict[str, Any] = {}  # a file of a list has column and number: view.1
        for extension, place, size, _ in files:
            name, kind = self._columns[extension], content_kind(extension)
            limit = max_file_bytes(self.options.max_pixels) if kind == "image" else _MAX_VALUE
            if size > limit or name in raw:
                raise ValueError(
                    f".{extension} is there twice, or has {size} bytes, more than {limit} within max_pixels"
                )
            raw[name] = self._read_value(extension, name, self._open(shard).read(place, size))
        for name, optional in self._list_columns.items():
            listed = {file: raw.pop(file) for file in [*raw] if file.startswith(f"{name}.")}
            numbered = [f"{name}.{number}" for number in range(len(listed))]
            if listed.keys() != {*numbered}:
                raise ValueError(f"its files {', '.join(sorted(listed))} are not numbered without a gap, as a list is")
            if listed or not optional:
                raw[name] = [listed[each] for each in numbered]
        return raw

    @cached_property
    def _list_columns(self) -> dict[str, bool]:
        """Columns whose values are lists of files, by name; True if a sample may have no list."""
        return dict.fromkeys((name.partition(".")[0] for name in self._columns.values() if "." in name), False)

    def locate_row(self, ref: Any) -> Location | None:
        """Locates the main image in its tar. Returns None for a compressed tar, and for a sample without that image."""
        shard, files = ref
        if self._open(shard).compressed:
            return None
        path = str(self.shards[shard][1].absolute())
        places = (place for extension, place, *_ in files if self._columns[extension] == self._main)
        return next((Location(path, place) for place in places), None)

    def _read_value(self, extension: str, name: str, data: bytes) -> Any:
        """Decodes the content of a file of column ``name`` by its extension."""
        return decode_file(extension, data, self._encoding)

    def claim_files(self, claims: Claims) -> None:
        """Claims the shards, and the list of class names as evidence."""
        super().claim_files(claims)
        self.claim_paths(claims, [self.path / _CLASSES], Role.EVIDENCE)

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts the hidden files, links and devices in all tars, by reason."""
        return sum((index.left for index in self._shard_indexes), Counter[str]())

    def close(self) -> None:
        """Closes all open shards; reading opens them again."""
        super().close()
        self._open.cache_clear()

    @cached_property
    def _shard_indexes(self) -> list[ShardIndex]:
        """Indexes of all shards; the first use reads the headers of all members."""
        numbers: dict[str, int] = {}
        last_dot = self._key_end == _LAST_DOT
        indexes = [_read_index(self._open(n), path, numbers, last_dot) for n, (_, path) in enumerate(self.shards)]
        if self.store_manifest is None:  # in exports, keys may be any bytes
            for index, (_, path) in zip(indexes, self.shards, strict=True):
                keys = [key.encode("utf-8", "surrogateescape") for key in index.keys]
                index.keys[:] = map(
                    bytes.decode, decode_names(keys, index.stated, self._encoding, printable(str(path)))
                )
        pickles = next((name for name in numbers if content_kind(name) == "pickle"), None)
        if pickles is not None:
            raise SourceError(
                f"{printable(str(self.path))} holds pickles (.{printable(pickles)}), which packstore does not run: "
                "write the shards again with .json, .npy or .txt"
            )
        if not numbers:
            raise SourceError(f"{printable(str(self.path))}: its shards hold no samples")
        self._numbers = numbers
        return indexes

    @cached_property
    def _extensions(self) -> list[str]:
        """Extensions of all files, by number."""
        assert self._shard_indexes
        return list(self._numbers)

    @cached_property
    def _alike(self) -> Counter[tuple[str, ...]]:
        """Number of samples with the same extensions, by these: questions about all samples need no loop over them."""
        counts: Counter[tuple[int, ...]] = Counter()
        for index in self._shard_indexes:
            counts.update(tuple([number for number, *_ in files]) for _, files in index.samples())
        alike = {tuple(self._extensions[number] for number in numbers): count for numbers, count in counts.items()}
        return Counter(alike)

    @cached_property
    def _columns(self) -> dict[str, str]:
        """Column of each extension: ``image`` for ``jpg``, ``left`` for ``left.jpg`` …."""
        if not self._key_end and _may_end_later(self._alike):
            raise self._make_question()
        places = self._find_places()
        columns = {each: _make_usual_column(each) for each in sorted(self._extensions) if each not in places}
        kinds: dict[str, set[str]] = {}
        for extension, name in columns.items():
            kinds.setdefault(name, set()).add(content_kind(extension))
        # Extensions that would share a column keep their own names: ``png`` for the masks beside ``jpg``.
        shared = {name for name, its in kinds.items() if len(its) > 1}
        for extensions in self._alike:
            names = Counter(columns[extension] for extension in {*extensions} if extension in columns)
            shared.update(name for name, count in names.items() if count > 1)
        for extension, name in columns.items():
            if name in shared:
                own = make_column_name(extension)
                columns[extension] = f"{own}_" if own == "image" else own
        return columns | places

    def _make_question(self) -> AmbiguousSourceError:
        """Makes the question which dot of a file's name ends the key, with an example."""
        largest = max(self._shard_indexes, key=lambda index: max(index.counts, default=0))
        example = largest.keys[largest.counts.index(max(largest.counts))]
        most = max(self._alike, key=len)
        shown = ", ".join(sorted(printable(f".{each}") for each in most)[:4])
        return AmbiguousSourceError(
            f"{printable(str(self.path))}: in WebDataset a key ends at the first dot of a file's name, so up to "
            f"{len(most)} files are one sample: {printable(example)} with {shown} …. If such dots belong to the names, "
            f"end keys at the last dot with --column {KEY}{_LAST_DOT}; if not, say --column {KEY}{_FIRST_DOT}",
            [Answer(("--column", f"{KEY}{end}")) for end in (_LAST_DOT, _FIRST_DOT)],
            self.path,
        )

    def _find_places(self) -> dict[str, str]:
        """Returns column and number, such as ``view.1``, of each extension of images that form a list (``0.jpg`` …)."""
        matches = {each: _PLACE.fullmatch(each) for each in self._extensions if content_kind(each) == "image"}
        split = {each: (match[1] or "", int(match[2])) for each, match in matches.items() if match}
        sizes: dict[str, set[int]] = {}
        for extensions in self._alike:
            for name, size in Counter(split[each][0] for each in extensions if each in split).items():
                sizes.setdefault(name, set()).add(size)
        # Samples have different numbers of images of a list.
        listed = {each: its for each, its in split.items() if len(sizes[its[0]]) > 1}
        # If all images are in one list, its first image is the main one.
        main = len(listed) < len(matches)
        if not main and len({name for name, _ in listed.values()}) > 1:
            return {}
        places = {}
        for extension, (name, number) in listed.items():
            place = number - min(first for its, first in listed.values() if its == name) - (not main)
            column = (name if main else f"further_{name}") if name else "further_images"
            places[extension] = "image" if place < 0 else f"{make_column_name(column)}.{place}"
        return places

    def fields(self) -> dict[str, Field]:
        """Returns the field of each column. The extensions of all files and the values of the first 16 samples decide.
        A column that a sample lacks is optional, except the main image. Raises the errors of :meth:`_columns`,
        :meth:`_main` and :meth:`_declare_column`."""
        have: Counter[str] = Counter()
        for extensions, count in self._alike.items():
            have.update(dict.fromkeys((self._columns[extension] for extension in extensions), count))
        samples = self.read_first_samples()
        declared: dict[str, Field] = {}
        for extension, column in self._columns.items():
            name, _, place = column.partition(".")
            if place:
                declared[name] = Images()
            elif name not in declared:
                given = [raw[name] for raw in samples if raw.get(name) is not None]
                declared[name] = self._declare_column(extension, name, given)
                if have[name] < self._alike.total() and name != self._main:
                    declared[name] = replace(declared[name], optional=True)
        return declared

    @cached_property
    def _main(self) -> str:
        """Column of the main image: ``image``, else see :func:`choose_main_image`."""
        images = [name for each, name in self._columns.items() if content_kind(each) == "image" and "." not in name]
        return "image" if "image" in images else choose_main_image(self.path, images, sorted(self._extensions)[:8])

    def _declare_column(self, extension: str, name: str, given: Sequence[Any]) -> Field:
        """Returns the field of a column by the kind of its files; numbers and arrays need the values ``given``."""
        kind = content_kind(extension)
        if kind == "label":
            folder = self.path if self.path.is_dir() else self.path.parent
            return Label(read_class_names(folder / _CLASSES) if name == "label" else None)
        if kind == "bytes" or (kind in ("number", "array") and not given):
            return Bytes()
        try:
            return guess_field(name, ValueType(_TYPES.get(kind, kind)), given)
        except ValueError as error:
            raise SourceError(f"{printable(str(self.path))}: .{printable(extension)}: {error}") from error


def _read_index(tar: OpenTar, path: Path, numbers: dict[str, int], last_dot: bool) -> ShardIndex:
    """Reads the index of a shard from the headers of its members, and adds new extensions to ``numbers``."""
    keys: dict[str, int] = {}
    stated: set[bytes] = set()
    files, owners, left = array("q"), array("q"), Counter[str]()
    try:
        for member in tar.walk_members():
            if member.isreg() and not _is_hidden(member.name):
                key, extension = split_key(member.name, last_dot)
                if not key.isascii() and states_utf8(member):
                    stated.add(key.encode())
                modified = int(member.mtime) * 10**9 if 0 <= member.mtime < 2**33 else 0
                owners.append(keys.setdefault(key, len(keys)))
                number = numbers.setdefault(extension, len(numbers))
                files.extend((number, member.offset_data, member.size, modified))
            elif not member.isdir():
                left["hidden members" if member.isreg() else "members that are links or devices"] += 1
    except TAR_FAULTS as error:
        raise SourceError(f"{printable(str(path))} is not a readable tar, or it is damaged: {error}") from None
    # Files of one key are a sample, wherever they lie.
    order = np.argsort(np.array(owners, np.int64), kind="stable")
    joined = np.array(files, np.int64).reshape(-1, 4)[order]
    counts = np.bincount(np.array(owners, np.int64), minlength=len(keys))
    return ShardIndex(list(keys), array("q", counts.tobytes()), array("q", joined.tobytes()), left, stated)


def split_key(name: str, last_dot: bool = False) -> tuple[str, str]:
    """Splits a path into key and extension, at the first or last dot of the file's name. Removes ``./`` at the start of
    the path. The extension is in lower case."""
    folder, slash, base = name.removeprefix("./").rpartition("/")
    stem, _, extension = base.rpartition(".") if last_dot and "." in base else base.partition(".")
    return f"{folder}{slash}{stem}", extension.lower()


def _may_end_later(alike: Mapping[tuple[str, ...], int]) -> bool:
    """Tells if dots may belong to the keys, as in ``v1.0.jpg`` and ``v1.0.cls``."""
    images: set[str] = set()
    for extensions in alike:
        plain = any("." not in each for each in extensions)
        parts: dict[str, set[bool]] = {}
        for extension in extensions:
            if content_kind(extension) != "bytes":
                parts.setdefault(extension.rpartition(".")[0], set()).add(content_kind(extension) == "image")
        paired = [part for part, found in parts.items() if part and len(found) > 1]
        # Words beside a file without dots are columns: ``left.jpg`` and ``left.json`` beside ``json``.
        if any(part[0].isdigit() or not plain for part in paired):
            return True
        if not plain:
            images.update(each for each in extensions if content_kind(each) == "image")
    # So many images are hardly one sample.
    return len(images) > _MANY


def _is_hidden(name: str) -> bool:
    """Tells if a member is hidden: its name begins with a dot or two underscores."""
    return name.rpartition("/")[2].startswith((".", "__"))


def content_kind(extension: str) -> str:
    """Returns the kind of content of a file, by the last part of its extension. Kinds are ``image``, ``label``,
    ``text``, ``json``, ``number``, ``pickle`` and ``array``; ``bytes`` for all others."""
    return _KINDS.get(extension.rpartition(".")[2], "bytes")


def _make_usual_column(extension: str) -> str:
    """Returns the usual column of files with an extension."""
    first, _, last = extension.rpartition(".")
    kind = content_kind(extension)
    name = first or (kind if kind in ("image", "label", "text", "json") else last)
    # The column ``image`` is for images only.
    return "image_" if name == "image" != kind else make_column_name(name)


def decode_file(extension: str, data: bytes, encoding: str | None = None) -> Any:
    """Decodes the content of a file by its extension. Decodes numbers, texts, JSON and ``.npy``; other content stays
    bytes. Raises :class:`ValueError` for damaged content, and :class:`AmbiguousSourceError` for a text in an unknown
    encoding.

    ``encoding``: Encoding of texts that are not UTF-8; None if the user has named none.
    """
    kind = content_kind(extension)
    if kind in ("text", "json"):
        data = to_utf8(data, encoding, f".{extension}")
    try:
        return _DECODERS[kind](data) if kind in _DECODERS else data
    except (*TAR_FAULTS, TypeError, SyntaxError, tokenize.TokenError) as error:
        raise ValueError(f".{extension}: {error}") from None


def _parse_number(data: bytes) -> int:
    """Parses a number of 64 bits."""
    text = data.decode("utf-8").strip()
    if not re.fullmatch(r"[+-]?\d{1,19}", text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise ValueError(f"found {text[:40]!r}, expected a number")
    return int(text)


# Decoders by kind of content.
_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "label": _parse_number, "number": _parse_number, "text": bytes.decode,
    "json": partial(load_json, parse_float=parse_float64),
    "array": lambda data: np.lib.format.read_array(io.BytesIO(data), allow_pickle=False),
}  # fmt: skip


class ExportedWebDataset(ExportedRows, WebDatasetSource):
    """Tar shards that packstore exported. Files are named after the store's columns: ``cls``, ``txt``, ``json``, or
    ``column.ext``, and ``column.0.ext`` … for lists."""

    _main = "image"

    @cached_property
    def _list_columns(self) -> dict[str, bool]:
        """Columns whose values are lists of files, by name; True if a record may have no list."""
        return {column.name: column.nullable for column in self.columns_at_rest if column.form == "files"}

    @cached_property
    def _columns(self) -> dict[str, str]:
        """Column of each extension, by the names that exports give: ``name.ext``, or ``name.0.ext`` in lists."""
        columns = {}
        for extension in self._extensions:
            name, dot, rest = extension.partition(".")
            column = name if dot else _EXPORTED.get(extension, "image")
            columns[extension] = f"{name}.{rest.rpartition('.')[0]}" if name in self._list_columns else column
        return columns

    def _read_value(self, extension: str, name: str, data: bytes) -> Any:
        """Returns the value of a file: an array or a label decoded, anything else as stored bytes."""
        is_list = name.partition(".")[0] in self._list_columns
        if extension.rpartition(".")[2] == "npy" and not is_list:
            return decode_file("npy", data)
        if name == "image" or is_list:
            return data
        is_label = self.export_manifest.manifest.column(name).traits.extension == "cls"
        return decode_file("cls", data) if is_label else StoredBytes(data)


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises tars by the names in the first tar: keys with an image and another known file, or with two images."""
    try:
        shards = find_shards(path, SUFFIXES)
    except SourceError:
        return Certainty.POSSIBLE
    if not shards or not is_tar(first_bytes(shards[0][1], 512)):
        return Certainty.NO
    # Images beside the tars are another dataset.
    if path.is_dir() and any(name.lower().endswith(IMAGE_SUFFIXES) for name in os.listdir(path)):
        return Certainty.NO
    try:
        for most in _LOOKED_AT:
            samples: dict[str, set[str]] = {}
            names = read_first_names(shards[0][1], most)
            for key, extension in (split_key(name) for name in names if not _is_hidden(name)):
                samples.setdefault(key, set()).add(extension)
            pairs = sum(map(_has_pair, samples.values()))
            if 2 * pairs >= len(samples) or len(names) < most:
                break
    except (*TAR_FAULTS, SourceError):
        return Certainty.POSSIBLE if path.is_dir() else Certainty.NO  # opening it reports what is wrong
    extensions = frozenset[str]().union(*samples.values())
    if path.is_file():
        # Kinds with annotations beside each image (LabelMe) have such pairs, too, and so has YOLO.
        kinds = (kind for kind in SOURCES.values(PresentNames(path).may_be) if kind.sidecar_extensions & extensions)
        if samples.keys() & _CLASS_LISTS or any(kind.recognise(path, options) is Certainty.CERTAIN for kind in kinds):
            return Certainty.NO
    folders = {key.rpartition("/")[0] for key in samples}
    numbered = len(shards) > 1 and all(_NUMBERED.search(shard.name) for _, shard in shards)
    if numbered and samples and len(folders) == 1 and not pairs:
        images = (any(content_kind(each) == "image" for each in its) for its in samples.values())
        return Certainty.PARTIAL if all(images) else Certainty.NO
    # Folders alone may be classes.
    sure = len(folders) == 1 or all(each & _LABELS for each in samples.values())
    return Certainty.CERTAIN if sure and 2 * pairs >= len(samples) > 0 else Certainty.NO


def _has_pair(extensions: set[str]) -> bool:
    """Tells if a sample has an image and another known file, or two images."""
    images = {name for name in extensions if content_kind(name) == "image"}
    others = {name.rpartition(".")[2] for name in extensions - images}
    return bool(images) and (len(images) > 1 or not others.isdisjoint((*_KINDS, "npz")))


_open = open_with(WebDatasetSource, ExportedWebDataset)
KIND = Kind("webdataset", "tar shards of WebDataset", _recognise, _open, takes_key=True)
