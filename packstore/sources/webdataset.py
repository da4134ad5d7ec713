"""Reads WebDataset: tar shards in which files of equal names are a sample (https://github.com/webdataset/webdataset).

A sample's key is the path of its files up to the first dot of the file name; the rest names the value. Its files
usually follow each other; those that lie apart in a shard are joined. Values are decoded like by the library's
``basichandlers``, except that pickles are refused.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.core.export_manifest import StoredBytes
from packstore.core.fields import Bytes, Field, Images, Label
from packstore.core.registry import SOURCES
from packstore.images.sniff import max_file_bytes
from packstore.sources.archives import open_required_tree
from packstore.sources.archives.tar import TAR_FAULTS, OpenTar, is_tar, read_first_names
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import join
from packstore.sources.columns import ANY, FILE, ValueType, choose_main_image, guess, make_column_name
from packstore.sources.encodings import active_encoding
from packstore.sources.exported import ExportedRows, open_with
from packstore.sources.ledger import Claims, Role
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.needs import PresentNames
from packstore.sources.records import ShardSource, find_shards
from packstore.sources.records.facts import read_class_names
from packstore.sources.refusals import first_bytes
from packstore.sources.rows import Row
from packstore.sources.webdataset_files import (
    LABELS,
    ShardIndex,
    ask_about_dots,
    content_kind,
    decode_file,
    find_key_end,
    has_image_pair,
    is_hidden,
    make_own_column,
    make_usual_column,
    read_shard_index,
    refuse_scattered_samples,
    split_key,
)
from packstore.stores.link_files import Location

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2")
_LOOKED_AT = 64
"""Number of files of the first shard that recognition reads."""
_LOOKED_AT_MOST = 1 << 16
"""Number of files that it reads if the first are no pairs."""
_CLASS_LISTS = frozenset(("classes", "labels/classes", "obj", "data/obj"))
"""Keys of YOLO's lists of classes: ``classes.txt``, ``obj.names``."""
_NUMBERED = re.compile(r"(^|[-_])\d{3,}([.]|$)")
_CLASSES = "classnames.txt"
_TYPES = {"image": FILE, "number": ANY, "array": ANY}
"""Types of columns by the kind of their files; others have the name of the kind."""
_EXPORTED = {"cls": "label", "txt": "text", "json": "json"}
"""Columns in exports of packstore by extension. All other columns are named before a dot, except the image."""
_MAX_VALUE = 1 << 30
_OPEN_SHARDS = 4
_FURTHER = "further_images"
_PLACE = re.compile(r"(?:([^.]*[^.\d][^.]*)\.)?(\d{1,6})\.[^.]+")


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
    _keeps_names = False
    """Names of files keep their bytes in any encoding."""

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._key_end = find_key_end(options.columns)
        self._encoding = active_encoding()
        self._extensions: list[str] = []  # of files, by number
        self._open = lru_cache(_OPEN_SHARDS)(lambda number: OpenTar(self.shards[number][1]))

    def shard_rows(self, number: int, keys: Iterator[str]) -> Iterator[Row]:
        """Yields a row for each sample of a shard, with the sample's own key. Sizes are those in the headers. The first
        call reads the headers of all files in all shards."""
        assert self._shard_indexes
        main = {extension for extension in self._extensions if self._column_of(extension) == self._main}
        for key, files in self._list_samples(number):
            size = modified = rest = 0
            has_main, sizes = False, Counter[str]()
            for extension, _, nbytes, changed in files:
                if not has_main and extension in main:
                    size, modified, has_main = nbytes, changed, True
                else:
                    rest += nbytes
                    sizes[self._column_of(extension).partition(".")[0]] += nbytes  # a file of a list has pages.0
            yield Row(key, (number, files), size, rest, modified, sizes=sizes)

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads and decodes the files of a sample, by column. A list of numbered files becomes one value. Raises
        :class:`ValueError` for a damaged or too large file, and for two files of one column."""
        shard, files = ref
        raw: dict[str, Any] = {}  # a file of a list has column and number: view.1
        for extension, place, size, _ in files:
            limit = max_file_bytes(self.options.max_pixels) if content_kind(extension) == "image" else _MAX_VALUE
            name = self._column_of(extension)
            if size > limit or name in raw:
                raise ValueError(
                    f".{extension} is there twice, or has {size} bytes, more than {limit} within max_pixels"
                )
            raw[name] = self._read_value(extension, name, self._open(shard).read(place, size))
        return self._join_lists(raw)

    def _join_lists(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Joins the files of each list, ``view.0``, ``view.1`` …, to one list. Changes and returns ``raw``. Raises
        :class:`ValueError` if a number is missing."""
        for name, optional in self._list_columns.items():
            files = {file: raw.pop(file) for file in [*raw] if file.startswith(f"{name}.")}
            numbered = [f"{name}.{number}" for number in range(len(files))]
            if files.keys() != {*numbered}:
                raise ValueError(f"its files {', '.join(sorted(files))} are not numbered from 0, as a list is")
            if files or not optional:
                raw[name] = [files[each] for each in numbered]
        return raw

    @cached_property
    def _list_columns(self) -> dict[str, bool]:
        """Columns whose values are lists of files, by name; True if a sample may have no list."""
        return dict.fromkeys((name.partition(".")[0] for name in self._places.values() if "." in name), False)

    def locate_row(self, ref: Any) -> Location | None:
        """Locates the main image in its tar. Returns None for a compressed tar, and for a sample without that image."""
        shard, files = ref
        if self._open(shard).compressed:
            return None
        path = str(self.shards[shard][1].absolute())
        places = (place for extension, place, *_ in files if self._column_of(extension) == self._main)
        return next((Location(path, place) for place in places), None)

    def _column_of(self, extension: str) -> str:
        """Returns the column of files with an extension; ``view.1`` for number 1 of the list ``view``."""
        return self._columns[extension]

    def _read_value(self, extension: str, name: str, data: bytes) -> Any:
        """Decodes the content of a file of column ``name`` by its extension. Raises :class:`ValueError` for damaged
        content."""
        return decode_file(extension, data, self._encoding)

    def claim_files(self, claims: Claims) -> None:
        """Claims the shards, and the list of class names as evidence."""
        super().claim_files(claims)
        self.claim_paths(claims, [self.path / _CLASSES], Role.EVIDENCE)

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts the hidden files, links and devices in all tars, by reason."""
        return sum((members.left for members in self._shard_indexes), Counter[str]())

    def close(self) -> None:
        """Closes all open shards; reading opens them again."""
        super().close()
        self._open.cache_clear()

    def _list_samples(self, number: int) -> Iterator[tuple[str, tuple[tuple[str, int, int, int], ...]]]:
        """Yields key and files of each sample of a shard. A file is a tuple of extension, offset, size and time of
        modification."""
        members, names = self._shard_indexes[number], self._extensions
        numbers = iter(members.files)
        files = zip(map(names.__getitem__, numbers), numbers, numbers, numbers, strict=True)
        for key, count in zip(members.keys, members.counts, strict=True):
            yield key, tuple(islice(files, count))

    def _count_extensions(self, indexes: Sequence[ShardIndex] = ()) -> Counter[tuple[str, ...]]:
        """Counts samples with the same extensions, by these extensions."""
        counts: Counter[tuple[str, ...]] = Counter()
        for index in indexes or self._shard_indexes:
            for numbers, count in index.alike.items():
                counts[tuple(self._extensions[number] for number in numbers)] += count
        return counts

    @cached_property
    def _shard_indexes(self) -> list[ShardIndex]:
        """Indexes of all shards. The first use reads the headers of all members. Raises :class:`SourceError` for a
        damaged shard, pickles, and no samples in any shard."""
        numbers: dict[str, int] = {}
        indexes = [
            read_shard_index(
                self._open(shard), path, numbers, self._key_end, self._encoding, keeps_names=self._keeps_names
            )
            for shard, (_, path) in enumerate(self.shards)
        ]
        self._extensions = list(numbers)
        pickles = next((name for name in self._extensions if content_kind(name) == "pickle"), None)
        if pickles is not None:
            raise SourceError(
                f"{printable(str(self.path))} holds pickles (.{printable(pickles)}), which packstore does not run: "
                "write the shards again with .json, .npy or .txt"
            )
        if not any(members.keys for members in indexes):
            raise SourceError(f"{printable(str(self.path))}: its shards hold no samples")
        self._check_samples(indexes)
        return indexes

    def _check_samples(self, indexes: Sequence[ShardIndex]) -> None:
        """Raises :class:`SourceError` if the files of a sample are in several shards. Raises
        :class:`AmbiguousSourceError` if the dots of names seem to belong to the keys, and no option says which."""
        kinds = {extension: content_kind(extension) for extension in self._extensions}
        refuse_scattered_samples([path for _, path in self.shards], indexes, [*kinds.values()])
        if self._key_end is None:
            largest = max((max(index.counts, default=0), n) for n, index in enumerate(indexes))[1]
            sizes = indexes[largest].counts
            example = indexes[largest].keys[max(range(len(sizes)), key=sizes.__getitem__)]
            ask_about_dots(self.path, self._count_extensions(indexes), kinds, example)

    @cached_property
    def _columns(self) -> dict[str, str]:
        """Column of each extension, by :func:`make_usual_column`. If a sample has two files of that column, or the
        column files of several kinds, uses :func:`make_own_column` instead. Numbered images in lists have
        :attr:`_places`."""
        assert self._shard_indexes
        columns = {
            extension: make_usual_column(extension) for extension in self._extensions if extension not in self._places
        }
        kinds: dict[str, set[str]] = {}
        for extension, name in columns.items():
            kinds.setdefault(name, set()).add(content_kind(extension))
        shared = {name for name, its in kinds.items() if len(its) > 1}
        for extensions in self._count_extensions():
            names = Counter(columns[extension] for extension in set(extensions) if extension in columns)
            shared.update(name for name, count in names.items() if count > 1)
        columns = {ext: make_own_column(ext) if name in shared else name for ext, name in columns.items()}
        columns |= self._places
        # the order of files that lie apart means nothing
        return dict(sorted(columns.items())) if any(index.joined for index in self._shard_indexes) else columns

    @cached_property
    def _places(self) -> dict[str, str]:
        """Column and number, ``view.1``, of each extension of a numbered image (``0.jpg``, ``view.1.png``) in a list.

        See :func:`_find_lists` for the lists. If all images are in lists, the first image of the only list is
        ``image``. If all images are in several lists, the value is empty."""
        lists = _find_lists(self._count_extensions())
        split = {extension: _split_number(extension) for extension in self._extensions}
        numbered = {extension: its for extension, its in split.items() if its is not None and its[0] in lists}
        main = any(content_kind(each) == "image" and each not in numbered for each in self._extensions)
        if not main and len(lists) > 1:
            return {}
        places = {}
        for extension, (name, number) in numbered.items():
            place = number - lists[name] - (not main)
            column = (name if main else f"further_{name}") if name else _FURTHER
            places[extension] = "image" if place < 0 else f"{make_column_name(column)}.{place}"
        return places

    def fields(self) -> dict[str, Field]:
        """Returns the field of each column. The extensions of all files and the values of the first 16 samples decide.
        A column that a sample lacks is optional, except the main image. Raises the errors of :meth:`_main` and
        :meth:`_declare_column`."""
        have: Counter[str] = Counter()
        total = 0
        for extensions, count in self._count_extensions().items():
            have.update(dict.fromkeys((self._columns[extension] for extension in extensions), count))
            total += count
        samples = self.read_first_samples()
        declared: dict[str, Field] = {}
        for extension, column in self._columns.items():
            name, _, place = column.partition(".")
            if place:
                declared[name] = Images()
            elif name not in declared:
                given = [raw[name] for raw in samples if raw.get(name) is not None]
                declared[name] = self._declare_column(extension, name, given)
                if have[name] < total and name != self._main:
                    declared[name] = replace(declared[name], optional=True)
        return declared

    @cached_property
    def _main(self) -> str:
        """Column of the main image: ``image``, else see :func:`choose_main_image`. Raises :class:`SourceError` if there
        is none."""
        images = [name for each, name in self._columns.items() if content_kind(each) == "image" and "." not in name]
        return "image" if "image" in images else choose_main_image(self.path, images, sorted(self._extensions)[:8])

    def _declare_column(self, extension: str, name: str, given: Sequence[Any]) -> Field:
        """Returns the field of a column, by the kind of its files. For numbers and arrays, ``given`` has some values;
        without any, the column has bytes. Raises :class:`SourceError` for values that fit no field, and for class names
        that cannot be read."""
        kind = content_kind(extension)
        if kind == "label":
            folder = self.path if self.path.is_dir() else self.path.parent
            return Label(read_class_names(folder / _CLASSES) if name == "label" else None)
        if kind == "bytes" or (kind in ("number", "array") and not given):
            return Bytes()
        try:
            return guess(name, ValueType(_TYPES.get(kind, kind)), given)
        except ValueError as error:
            raise SourceError(f"{printable(str(self.path))}: .{printable(extension)}: {error}") from error


def _split_number(extension: str) -> tuple[str, int] | None:
    """Splits the extension of a numbered image into name and number. ``view.1.png`` becomes ``view`` and 1, and
    ``1.png`` becomes ``""`` and 1. Returns None for other extensions."""
    match = _PLACE.fullmatch(extension)
    return (match[1] or "", int(match[2])) if match and content_kind(extension) == "image" else None


def _find_lists(counts: Iterable[tuple[str, ...]]) -> dict[str, int]:
    """Finds numbered images that are lists, by the extensions of each sample. Returns the first number of each list, 0
    or 1, by name.

    The images of a list are numbered without gaps, and samples have different numbers of them.
    """
    numberings: dict[str, set[tuple[int, ...]]] = {}
    for extensions in counts:
        for name, group in groupby(sorted(filter(None, map(_split_number, extensions))), key=itemgetter(0)):
            numberings.setdefault(name, set()).add(tuple(number for _, number in group))
    firsts = {name: min(map(min, sets)) for name, sets in numberings.items() if len({*map(len, sets)}) > 1}
    return {
        name: first
        for name, first in firsts.items()
        if first in (0, 1) and all(each == (*range(first, first + len(each)),) for each in numberings[name])
    }


class ExportedWebDataset(ExportedRows, WebDatasetSource):
    """Tar shards that packstore exported. Files are named after the store's columns: ``cls``, ``txt``, ``json``, or
    ``column.ext``, and ``column.0.ext`` … for lists."""

    _main = "image"
    _keeps_names = True  # keys may be any bytes; the lines of the records have them

    _places: Mapping[str, str] = {}  # type: ignore[assignment]

    def _check_samples(self, indexes: Sequence[ShardIndex]) -> None:
        """Does nothing: the export manifest tells what is a sample."""

    @cached_property
    def _list_columns(self) -> dict[str, bool]:
        """Columns whose values are lists of files, by name; True if a record may have no list."""
        return {column.name: column.nullable for column in self.columns_at_rest if column.form == "files"}

    def _column_of(self, extension: str) -> str:
        """Returns the column of files with an extension, by the names that exports give.

        - ``name.ext``: ``name``.
        - ``name.0.ext``: ``name.0`` if ``name`` is a list.
        - ``cls``, ``txt``, ``json``: the usual column.
        - Any other extension: ``image``.
        """
        first, dot, rest = extension.partition(".")
        if first in self._list_columns:
            return f"{first}.{rest.rpartition('.')[0]}"  # a file of the list
        return first if dot else _EXPORTED.get(extension, "image")

    def _read_value(self, extension: str, name: str, data: bytes) -> Any:
        """Returns the value of a file: an array or a label decoded, anything else as stored bytes.

        Raises :class:`ValueError` for a damaged array or label.
        """
        is_list = name.partition(".")[0] in self._list_columns
        if extension.rpartition(".")[2] == "npy" and not is_list:
            return decode_file("npy", data)
        if name == "image" or is_list:
            return data
        is_label = self.export_manifest.manifest.column(name).traits.extension == "cls"
        return decode_file("cls", data) if is_label else StoredBytes(data)


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises tars by the first 64 files of the first tar, or by more if these are no pairs. A key is a file's path
    without its extensions.

    - ``CERTAIN``: at least half of the keys have an image and another known file. If the files are in several folders,
      each key must have a label: folders alone may be classes.
    - ``PARTIAL``: several numbered tars of images alone.
    - ``POSSIBLE``: a folder of tars of which the first is damaged. Also tars that :func:`find_shards` refuses.
    - ``NO``: anything else. Also a folder with images beside the tars, a tar of a kind with annotations beside each
      image (LabelMe), and a tar with YOLO's list of classes.
    """
    try:
        shards = find_shards(path, SUFFIXES)
    except SourceError:
        return Certainty.POSSIBLE
    if not shards or not is_tar(first_bytes(shards[0][1], 512)):
        return Certainty.NO
    if path.is_dir() and any(name.lower().endswith(IMAGE_SUFFIXES) for name in os.listdir(path)):
        return Certainty.NO
    try:
        names = read_first_names(shards[0][1], _LOOKED_AT)
    except (*TAR_FAULTS, SourceError):
        return Certainty.POSSIBLE if path.is_dir() else Certainty.NO  # opening it reports what is wrong
    samples, mostly_pairs = _group_names(names)
    if not mostly_pairs and len(names) == _LOOKED_AT:  # the files of a sample may lie apart
        samples, mostly_pairs = _group_names(_list_names(shards[0][1]))
    extensions = frozenset[str]().union(*samples.values())
    if path.is_file() and (samples.keys() & _CLASS_LISTS or _is_of_sidecar_kind(path, options, extensions)):
        return Certainty.NO
    pairs = any(map(has_image_pair, samples.values()))
    folders = {key.rpartition("/")[0] for key in samples}
    numbered = len(shards) > 1 and all(_NUMBERED.search(shard.name) for _, shard in shards)
    if numbered and samples and len(folders) == 1 and not pairs:
        images = (any(content_kind(each) == "image" for each in extensions) for extensions in samples.values())
        return Certainty.PARTIAL if all(images) else Certainty.NO
    sure = len(folders) == 1 or all(each & LABELS for each in samples.values())
    return Certainty.CERTAIN if sure and mostly_pairs else Certainty.NO


def _group_names(names: Iterable[str]) -> tuple[dict[str, set[str]], bool]:
    """Groups names of files by key. Returns the extensions of each key, and True if at least half of the keys have an
    image and another known file."""
    samples: dict[str, set[str]] = {}
    for name in names:
        if not is_hidden(name):
            key, extension = split_key(name)
            samples.setdefault(key, set()).add(extension)
    return samples, 2 * sum(map(has_image_pair, samples.values())) >= len(samples) > 0


def _list_names(shard: Path) -> Iterator[str]:
    """Yields the names of at most 65,536 files of a tar. Yields none if the tar cannot be read: opening it reports
    why."""
    with suppress(SourceError):
        tree = open_required_tree(shard)
        paths = (join(folder, name) for folder, names in tree.folders(is_passed_over) for name in names.files)
        yield from islice(paths, _LOOKED_AT_MOST)


def _is_of_sidecar_kind(path: Path, options: SourceOptions, extensions: frozenset[str]) -> bool:
    """Tells if an archive is certainly of a kind with annotations beside each image (LabelMe).

    ``extensions``: those in the archive. Kinds whose annotations have none of these extensions are not asked."""
    kinds = (kind for kind in SOURCES.values(PresentNames(path).may_be) if kind.sidecar_extensions & extensions)
    return any(kind.recognise(path, options) is Certainty.CERTAIN for kind in kinds)


_open = open_with(WebDatasetSource, ExportedWebDataset)
KIND = Kind("webdataset", "tar shards of WebDataset", _recognise, _open, takes_key=True)
