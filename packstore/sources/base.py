"""The contract of a source: survey it, list its entries in a fixed order, read any entry from any thread.

A source is one file with a :class:`Kind`, and one line: in :data:`packstore.core.registry.SOURCES`, or an entry point
of the group ``packstore.sources``. :class:`packstore.testing.SourceSuite` is this contract as tests.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from packstore.core.arguments import text_or_none
from packstore.core.columns import ImageData
from packstore.core.errors import NotInSourceError, SourceError, UsageError, printable
from packstore.core.manifest import Column, Manifest
from packstore.core.parallel import default_workers
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.urls import UrlPath
from packstore.images.sniff import MAX_PIXELS
from packstore.sources.arrays.flat import is_layout
from packstore.sources.boxes import CONVENTIONS, NOT_CONVERTED
from packstore.sources.ignoring import check_patterns, ignore_rules
from packstore.sources.ledger import Claims, Ledger, Role, list_files, make_ledger
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.tree import FolderTree
from packstore.stores.link_files import Location

_REMOTE_WORKERS = 32


class Certainty(IntEnum):
    """What a kind says of a path.

    ``CERTAIN``: the path is of this kind; no further kind is asked. ``PARTIAL``: it is, but something in it would be
    left out, so the user is asked unless another kind is certain. ``POSSIBLE``: nothing contradicts it, and nothing
    proves it; the first such kind opens the path when there is no better one, and says what is missing. ``NO``: it is
    not.
    """

    NO = 0
    POSSIBLE = 1
    PARTIAL = 2
    CERTAIN = 3


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How to open a source.

    Attributes:
        labels: A CSV file with the columns ``file,label`` and optionally ``split``; for kinds that take one.
        max_pixels: An image file too large for an image of so many pixels is not read; see
            :func:`packstore.images.sniff.max_file_bytes`.
        named: The user named the kind: it decides where the path alone is ambiguous.
        skip_bad: Bad samples are skipped, so that a cycle of links is a bad sample and does not end the listing.
        image_key: Name of the array that holds the images; for kinds whose samples lie in named arrays.
        label_key: Name of the array that holds the class numbers; likewise.
        layout: Order of the axes of that array: ``NHWC``, ``NCHW``, ``NHW``, ``HWCN`` …; likewise. Of tables with
            boxes, their convention, see :data:`packstore.sources.boxes.CONVENTIONS`; ``json`` keeps them as JSON.
        ignore: Patterns of files and folders that are treated as not there, see
            :class:`packstore.sources.ignoring.IgnoreRules`.
        columns: Meanings of the columns of a table, ``image=COL``; see :mod:`packstore.sources.table.columns`.
        frames: ``all``: each frame of an image file is a sample, see :class:`packstore.sources.frames.FramesSource`.
    """

    labels: Path | None = None
    max_pixels: int = MAX_PIXELS
    named: bool = False
    skip_bad: bool = False
    image_key: str | None = None
    label_key: str | None = None
    layout: str | None = None
    ignore: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    frames: str | None = None

    def __post_init__(self) -> None:
        text_or_none(**self.array_names)
        check_patterns(self.ignore)
        if self.layout is not None and not self.says_boxes and not is_layout(self.layout):
            raise UsageError(
                f"layout should name the axes N (samples), H, W and C (channels) in their order, such as NHWC or NCHW; "
                f"with sizes, NHW:28x28, of images that lie flat; or, of boxes in tables, be {', '.join(CONVENTIONS)} "
                f"or {NOT_CONVERTED}; got {self.layout!r}"
            )
        if type(self.max_pixels) is not int or self.max_pixels < 1:
            raise UsageError(f"max_pixels should be a whole number of at least 1, got {self.max_pixels!r}")

    @property
    def says_boxes(self) -> bool:
        """``layout`` is one of boxes in tables."""
        return self.layout in (*CONVENTIONS, NOT_CONVERTED)

    @property
    def array_names(self) -> dict[str, str | None]:
        """What is for kinds whose samples lie in named arrays."""
        return {"image_key": self.image_key, "label_key": self.label_key, "layout": self.layout}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of source, as the registry holds it.

    Attributes:
        name: Its name in the registry, for ``--source`` and in manifests.
        help: What it is, in a few words: ``a folder of images``.
        recognise: Whether a path is of this kind. Looks no further than it must, and raises :class:`SourceError` only
            where it is sure that the path is meant for it, and is broken or ambiguous.
        open: Opens a path. Raises :class:`SourceError` where it is not of this kind.
        takes_labels: It uses :attr:`SourceOptions.labels`; other kinds are never given any.
        takes_arrays: Likewise :attr:`SourceOptions.array_names`, those of boxes aside.
        takes_boxes: Likewise a ``layout`` of boxes.
        takes_columns: Likewise :attr:`SourceOptions.columns`.
        in_objects: It also reads folders in object stores: all that it reads, it reads through its tree.
    """

    name: str
    help: str
    recognise: Callable[[Path, SourceOptions], Certainty]
    open: Callable[[Path, SourceOptions], Source]
    takes_labels: bool = False
    takes_arrays: bool = False
    takes_boxes: bool = False
    takes_columns: bool = False
    in_objects: bool = False

    def reads(self, path: Path) -> bool:
        """Whether it reads where ``path`` lies: on this machine, or in an object store."""
        return self.in_objects or not isinstance(path, UrlPath)

    def takes(self, options: SourceOptions) -> bool:
        """Whether it uses all that is given of what only some kinds use."""
        given = any(value is not None for value in options.array_names.values())
        if options.columns and not self.takes_columns:
            return False
        if options.says_boxes:
            return self.takes_boxes and options.labels is None and options.image_key is options.label_key is None
        return (options.labels is None or self.takes_labels) and (not given or self.takes_arrays)


class Entry(NamedTuple):
    """A sample before its image is read.

    Attributes:
        key: Relative path with ``/`` (undecodable bytes as surrogates) or id, unique in the source.
        split: Name of its split; ``""`` in a source without splits.
        labels: Class numbers, in the order of ``Survey.columns``.
        size_bytes: Size of the image as it lies in the source.
        ref: Whatever the source needs to read it: plain values, which another opening of the same source understands.
        modified_ns: Time of modification (``st_mtime_ns``) of the image's own file; 0 where it has none.
        changed_ns: Time of change (``st_ctime_ns``) of that file. Nobody can set it back, so it alone shows that two
            files of one size and age were exchanged.
    """

    key: str
    split: str
    labels: tuple[int, ...]
    size_bytes: int
    ref: Any
    modified_ns: int = 0
    changed_ns: int = 0


class Sample(NamedTuple):
    """A sample that has more than an image and the labels of its entry.

    Attributes:
        image: The main image.
        values: By name, the value of every column of :attr:`Survey.sampled`: as users give it, see
            :func:`packstore.core.columns.to_stored`, or None for a missing one; without companions.
        key: Its key where that shows only now; None for the entry's.
        at_rest: The values are those of a store: bytes and arrays as they lie at rest, companions among them.
        number: Its index in its split, by which a program knows it; None where nobody does.
    """

    image: ImageData
    values: Mapping[str, Any]
    key: str | None = None
    at_rest: bool = False
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """What a source holds, from one pass over its listing (no image is read).

    Attributes:
        splits: Number of samples by split, in packing order (see :data:`SPLIT_ORDER`; others follow by name); the only
            name is ``""`` in a source without splits.
        columns: All columns but the main image's, in order. Of labels that the listing knows, fixed int64 with their
            classes; and those of :attr:`sampled`, with their companions.
        encoding: What :meth:`Source.read` returns: ``original`` for image files, ``uint8`` or another dtype for arrays
            ``(H, W, C)``; a store's own encoding.
        mode: Name of the mode of arrays, as in :attr:`packstore.core.column.Column.mode`; None for RGB of 8 bits.
        shape: Shape that all arrays share, or None for files and ragged stores.
        size_bytes: Bytes of all images as they lie in the source.
        size_counts: How many images have which size, rounded up by :func:`rounded_size`: formats that pad images
            estimate from it what they will take.
        key_bytes: Bytes of all keys together.
        ledger: Every file of the source with its role; empty for a store, and for samples that are no files.
        store: The manifest when the source is a packstore store.
        sampled: Names of the columns whose values come with each :class:`Sample`; the others are ``Entry.labels``.
        value_bytes: About how many bytes these values have.
        gives_keys: Samples may have keys that the listing does not know.
        counted: The numbers of samples are known. If not, ``splits`` has 0 for each, and the source is read once.
        resumable: Its entries can be listed again, so that an interrupted conversion can go on.
        notes: Further facts that a person should know before sharing the store.
    """

    splits: Mapping[str, int]
    columns: tuple[Column, ...]
    encoding: str
    shape: tuple[int, ...] | None
    size_bytes: int
    size_counts: Mapping[int, int]
    key_bytes: int
    store: Manifest | None = None
    sampled: frozenset[str] = frozenset()
    value_bytes: int = 0
    gives_keys: bool = False
    counted: bool = True
    resumable: bool = True
    mode: str | None = None
    ledger: Ledger = field(default_factory=Ledger)
    notes: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        return sum(self.splits.values())

    @property
    def labels(self) -> tuple[Column, ...]:
        """The columns of ``Entry.labels``, in their order."""
        return tuple(column for column in self.columns if column.name not in self.sampled)


class Source(ABC):
    """Where samples come from.

    Listing is lazy and deterministic. Memory does not grow with the number of samples, but for one directory's names
    and a few bytes a sample.

    Attributes:
        kind: The name of its :class:`Kind`.
        normalization: Name of the mean and standard deviation by which floating point records are normalised, unless
            the user chooses others.
        path: The source as the user named it.
        options: How it was opened.
        evidence: What it was recognised by, for people: ``features.json and 2 shards``; empty where its kind says all.
    """

    kind: str
    normalization: str = "imagenet"
    evidence: str = ""
    left_images: ClassVar[str] = "images that are no samples"
    """Why images are left, for the ledger."""
    asks_about_left: ClassVar[bool] = True
    """Whether files that it leaves may be annotations that nobody has thought of; not so in published data sets."""

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self.path = path
        self.options = options

    @abstractmethod
    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Counts what :meth:`entries` yields for ``split`` (all splits for None). The class list is that of the whole
        source. Raises :class:`SourceError` when there is nothing to pack, and :class:`NotInSourceError` for an unknown
        split, naming those that there are."""

    @abstractmethod
    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """The samples, split after split in the survey's order; the same at each call as long as nothing changes. Needs
        no survey before it. Raises for an unknown split at once, as :meth:`survey` does."""

    @abstractmethod
    def read(self, entry: Entry) -> ImageData | Sample:
        """The image of an entry that this or another opening of the source has listed, with the values of
        :attr:`Survey.sampled` where there are such. Called from several threads at once. Raises :class:`SampleError`
        with the entry's key when it cannot be read."""

    def read_together(self, entries: Sequence[Entry]) -> Sequence[ImageData | None]:
        """What :meth:`read` returns of each, where they are read faster together; None for what it is to be called for:
        the others, and all that is wrong with one."""
        return [None] * len(entries)

    def image(self, entry: Entry) -> ImageData:
        """The image alone of what :meth:`read` returns."""
        found = self.read(entry)
        return found.image if isinstance(found, Sample) else found

    def locate(self, entry: Entry) -> Location | None:
        """Where the bytes lie that :meth:`read` returns as the image: in a file on this machine or in an object; None
        if they are no plain range of one. Called before :meth:`read`, from several threads."""
        return None

    def fetch(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """The same entries, ready for :meth:`read`: what one thread, or other processes, have to do for them first."""
        return entries

    def workers(self) -> int:
        """How many threads read it best: more than there are cores where each waits for a server."""
        return _REMOTE_WORKERS if isinstance(self.path, UrlPath) else default_workers()

    def nbytes(self, entry: Entry) -> int:
        """About how many bytes an entry of :meth:`fetch` has."""
        return entry.size_bytes

    def some(self, split: str | None, records: int, count: int) -> Iterator[Entry]:
        """``count`` of the source's ``records``, spread over them, ready for :meth:`read`."""
        step = max(1, records // count)
        return islice(self.entries(split), 0, count * step, step)

    def identity(self) -> str:
        """What tells this source from others, for going on with an interrupted conversion."""
        names = [f" {name}={value}" for name, value in self.options.array_names.items() if value is not None]
        names += [f" ignore={pattern}" for pattern in self.options.ignore]
        names += [f" column={each}" for each in self.options.columns]
        return os.fsencode(self.path.resolve()).decode("utf-8", "backslashreplace") + "".join(names)

    def stamp(self) -> str:
        """Changes when the source changes in a way that its entries do not show; empty where they show every change.
        Raises :class:`SourceError` when the source has vanished."""
        return ""

    def listed_files(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Lists all files of the source for its ledger: each folder, and the names of its files."""
        if self.path.is_dir():
            return list_files(FolderTree(self.path))
        return iter([("", [self.path.name])] if self.path.is_file() else [])

    def claim_files(self, claims: Claims) -> None:
        """Claims the files that the source uses besides those that its survey has claimed."""
        return

    def left_reason(self, folder: str, name: str) -> str | None:
        """Says why a file is left; None for what its name says."""
        return self.left_images if name.lower().endswith(IMAGE_SUFFIXES) else None

    def expects_left(self, path: str) -> bool:
        """Whether a file that it leaves is one that its layout always has, so that nobody is asked about it."""
        return False

    def left_members(self) -> Mapping[str, int]:
        """Counts what is left of what lies in packed files (records, arrays, columns), by reason."""
        return {}

    def ledger(self, claims: Claims, split: str | None = None) -> Ledger:
        """Lists all files and gives each its role. ``split`` is the one that was surveyed, None for all."""
        self.claim_files(claims)
        others = None if split is None else "images that are not of this split"
        rules = ignore_rules(self.options.ignore)
        return make_ledger(
            self.listed_files(),
            claims,
            lambda folder, name: (
                rules.reason(folder, name)
                or (others if name.lower().endswith(IMAGE_SUFFIXES) else None)
                or self.left_reason(folder, name)
            ),
            self.left_members(),
        )

    def claim_paths(self, claims: Claims, paths: Iterable[Path], role: Role = Role.PACKED) -> None:
        """Claims files on disk, by their paths relative to the source. Others are none of its files."""
        for path in paths:
            if path == self.path:
                claims.claim(path.name, role)
            elif path.is_relative_to(self.path):
                claims.claim(path.relative_to(self.path).as_posix(), role)

    def close(self) -> None:
        """Releases open files. Idempotent. Images that were read stay valid; reading again may raise
        :class:`PackstoreError`."""
        return

    def no_split(self, split: str, splits: Iterable[str]) -> NotInSourceError:
        """The error for an unknown split; ``splits`` are those that there are."""
        known = ", ".join(printable(name) for name in splits if name) or "it has none"
        return NotInSourceError(f"{printable(str(self.path))} has no split {printable(split)!r}; splits: {known}")


def stamp_of(paths: Iterable[Path]) -> str:
    """A stamp of files: their sizes, times of modification and of change. Raises :class:`SourceError` when one is
    gone."""
    parts = []
    for path in paths:
        try:
            found = path.stat()
        except OSError as error:
            raise SourceError(f"{printable(str(path))} cannot be reached: {error.strerror or error}") from None
        parts.append(f"{found.st_size}@{found.st_mtime_ns}/{found.st_ctime_ns}")
    return " ".join(parts)


SPLIT_ORDER = ("train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval")
"""Directory names that are splits rather than classes, in the order in which splits are packed."""


def readable_sizes(sizes: Sequence[int], max_bytes: int) -> Sequence[int]:
    """Leaves out the sizes of files that are not read: no files, empty ones, and those of more than ``max_bytes``."""
    if sizes and min(sizes) > 0 and max(sizes) <= max_bytes:
        return sizes
    return [size for size in sizes if 0 < size <= max_bytes]


def count_sizes(sizes: Iterable[int]) -> Counter[int]:
    """Counts sizes, rounded as :func:`rounded_size` does."""
    return Counter([-(-size // 64) * 64 for size in sizes])


def rounded_size(size: int) -> int:
    """``size`` rounded up to 64 bytes, so that :attr:`Survey.size_counts` stays small for any number of images."""
    return -(-size // 64) * 64
