"""The contract of a source: survey it, list its entries in a fixed order, read any entry from any thread.

A source is one file with a :class:`Kind`, and one line: in :data:`packstore.core.registry.SOURCES`, or an entry point
of the group ``packstore.sources``. :class:`packstore.testing.SourceSuite` is this contract as tests.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from packstore.core.columns import ImageData
from packstore.core.errors import NotInSourceError, SourceError, UsageError, printable
from packstore.core.files import Location
from packstore.core.manifest import Column, Manifest
from packstore.core.options import check_texts
from packstore.core.parallel import default_workers
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.urls import UrlPath, check_paths
from packstore.images.reading import Reading
from packstore.images.sniff import MAX_PIXELS
from packstore.sources.companion_patterns import OPTIONS, check_companions
from packstore.sources.encodings import KEY, check_columns
from packstore.sources.ignoring import check_patterns, compile_ignore_rules
from packstore.sources.ledger import Claims, Ledger, Role, list_files, make_ledger
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.splits import check_splits
from packstore.sources.tree import FolderTree

_REMOTE_WORKERS = 32
# Check of each option that is texts, by its name.
TEXT_OPTIONS: Mapping[str, Callable[[object], tuple[str, ...]]] = {
    "ignore": check_patterns,
    "splits": check_splits,
    "columns": check_columns,
    **{name: partial(check_companions, name) for name in OPTIONS},
}


class Certainty(IntEnum):
    """Certainty of a kind that a path is of this kind.

    - ``CERTAIN``: the path is of this kind, and recognition ends.
    - ``PARTIAL``: the path is of this kind, but the kind would leave something out. Unless another kind is certain, the
      user is asked.
    - ``POSSIBLE``: nothing proves or disproves the kind. Without a better kind, the first possible kind opens the path,
      and reports what is missing.
    - ``NO``: the path is not of this kind.
    """

    NO = 0
    POSSIBLE = 1
    PARTIAL = 2
    CERTAIN = 3


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options with which a source is opened. Raises :class:`UsageError` for an unusable ``max_pixels``, ``layout`` or
    pattern to ignore, and for names of arrays that are no text. Other options are checked where a source uses them.

    Attributes:
        labels: A CSV file with the columns ``file,label`` and optionally ``split``; for kinds that take one.
        max_pixels: Largest image in pixels. Files larger than :func:`packstore.images.sniff.max_file_bytes` of it are
            not read.
        named: The user has named the kind, so an ambiguous path raises no question.
        skip_bad: Bad samples are skipped. A cycle of links is then a bad sample, and does not end the listing.
        image_key: Name of the array with the images, for kinds that read named arrays.
        label_key: Name of the array with the class numbers, for the same kinds.
        layout: Order of the axes of the image array: ``NHWC``, ``NCHW``, ``NHW``, ``HWCN`` …. In tables with boxes, the
            convention of the boxes, see :data:`packstore.sources.boxes.CONVENTIONS`; ``json`` keeps boxes as JSON. In
            Pascal VOC, ``voc`` for boxes that count from 1, ``xyxy`` from 0.
        ignore: Patterns of files and folders to treat as absent, see
            :class:`packstore.sources.ignoring.IgnoreRules`.
        splits: Patterns of the files of splits, ``train=images/a``; see
            :class:`packstore.sources.splits.SplitPatterns`.
        columns: Meanings of the columns of a table, ``image=COL``; see :mod:`packstore.sources.table.columns`.
        frames: ``all``: each frame of an image file is a sample, see :class:`packstore.sources.frames.FramesSource`;
            ``clips`` or ``clips:files``: each file or folder is a sample, see
            :class:`packstore.sources.frames.ClipsSource`.
        crowds: The column ``iscrowd`` of boxes is declared: True, also if no box is a crowd, as a store that has the
            column needs it; False, never, for a store that was packed before there was one; None, if any is a crowd.
        pair: Patterns of further images, see :mod:`packstore.sources.companion_patterns`.
        sidecar: Patterns of files with a value for each image.
        masks: Patterns of masks.
    """

    labels: Path | None = None
    max_pixels: int = MAX_PIXELS
    named: bool = False
    skip_bad: bool = False
    image_key: str | None = None
    label_key: str | None = None
    layout: str | None = None
    ignore: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    frames: str | None = None
    crowds: bool | None = None
    pair: tuple[str, ...] = ()
    sidecar: tuple[str, ...] = ()
    masks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_texts(**self.array_names)
        for name, check in TEXT_OPTIONS.items():
            object.__setattr__(self, name, check(getattr(self, name)))
        if self.labels is not None:
            check_paths(self.labels)
            object.__setattr__(self, "labels", Path(self.labels))
        if self.layout is not None and not self.says_boxes:
            from packstore.sources.arrays.stored import parse_layout
            from packstore.sources.boxes import CONVENTIONS, NOT_CONVERTED, VOC

            if parse_layout(self.layout) is None:
                raise UsageError(
                    "layout should name the axes N (samples), H, W and C (channels) in their order, such as NHWC or "
                    "NCHW; with sizes, NHW:28x28, of flattened images; or, of boxes in tables, be "
                    f"{', '.join(CONVENTIONS)}, {VOC} or {NOT_CONVERTED}; got {self.layout!r}"
                )
        if type(self.max_pixels) is not int or self.max_pixels < 1:
            raise UsageError(f"max_pixels should be a whole number of at least 1, got {self.max_pixels!r}")

    @property
    def says_boxes(self) -> bool:
        """True if ``layout`` is a convention of boxes."""
        if self.layout is None:
            return False
        from packstore.sources.boxes import CONVENTIONS, NOT_CONVERTED, VOC

        return self.layout in (*CONVENTIONS, VOC, NOT_CONVERTED)

    @property
    def given(self) -> list[str]:
        """Names of the given options that only some kinds use."""
        names = ("labels", *self.array_names, "columns", *OPTIONS)
        return [name for name in names if getattr(self, name)]

    @property
    def companions(self) -> dict[str, tuple[str, ...]]:
        """Patterns of files that belong to images, by option."""
        return {name: getattr(self, name) for name in OPTIONS}

    @property
    def array_names(self) -> dict[str, str | None]:
        """Options for kinds that read named arrays, by name: None for one that is not given."""
        return {"image_key": self.image_key, "label_key": self.label_key, "layout": self.layout}


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of source, as registered.

    Attributes:
        name: Its name in the registry, for ``--source`` and in manifests.
        help: Description in a few words: ``a folder of images``.
        recognise: Tells if a path is of this kind. Reads no more than necessary. Raises :class:`SourceError` only if
            the path is certainly meant for this kind, and is damaged or ambiguous.
        open: Opens a path. Raises :class:`SourceError` if it is not of this kind.
        takes_labels: The kind uses :attr:`SourceOptions.labels`, which is None for all other kinds.
        takes_arrays: The kind uses :attr:`SourceOptions.array_names`, except for a ``layout`` of boxes.
        takes_boxes: The kind uses a ``layout`` of boxes.
        takes_columns: The kind uses :attr:`SourceOptions.columns`, except for ``key=``.
        takes_key: The kind uses ``key=`` in :attr:`SourceOptions.columns`.
        takes_companions: The kind uses :attr:`SourceOptions.companions`.
        in_objects: The kind also reads folders in object stores, entirely through its tree.
        sidecar_extensions: Extensions, without the first dot, of annotation files beside their image with its name. An
            archive of such files looks like WebDataset.
    """

    name: str
    help: str
    recognise: Callable[[Path, SourceOptions], Certainty]
    open: Callable[[Path, SourceOptions], Source]
    takes_labels: bool = False
    takes_arrays: bool = False
    takes_boxes: bool = False
    takes_columns: bool = False
    takes_key: bool = False
    takes_companions: bool = False
    in_objects: bool = False
    sidecar_extensions: frozenset[str] = frozenset()

    def reads(self, path: Path) -> bool:
        """Tells if this kind can read at the place of ``path``: on this machine, or in an object store."""
        return self.in_objects or not isinstance(path, UrlPath)

    def find_unused(self, options: SourceOptions) -> list[str]:
        """Returns the names of the given options that this kind does not use, among labels, arrays, boxes, columns and
        companions. A layout of boxes goes with neither labels nor names of arrays."""
        arrays = self.takes_arrays and not options.says_boxes
        used = {
            "labels": self.takes_labels and not options.says_boxes,
            "image_key": arrays,
            "label_key": arrays,
            "layout": self.takes_boxes if options.says_boxes else arrays,
            "columns": all(self.takes_key if each.startswith(KEY) else self.takes_columns for each in options.columns),
            **dict.fromkeys(OPTIONS, self.takes_companions),
        }
        return [name for name in options.given if not used[name]]

    def takes(self, options: SourceOptions) -> bool:
        """Tells if this kind uses all given options, see :meth:`find_unused`."""
        return not self.find_unused(options)


class Entry(NamedTuple):
    """Sample whose image has not been read yet.

    Attributes:
        key: Relative path with ``/`` (undecodable bytes as surrogates) or id, unique in the source.
        split: Name of its split; ``""`` in a source without splits.
        labels: Class numbers, in the order of ``Survey.columns``.
        size_bytes: Size of the image in the source.
        ref: Reference for reading it: plain values, valid for any opening of the same source.
        modified_ns: Time of modification (``st_mtime_ns``) of the image's own file; 0 without one.
        changed_ns: Time of change (``st_ctime_ns``) of that file. Programs cannot set this time. Therefore only this
            time shows that two files of equal size and age were exchanged.
    """

    key: str
    split: str
    labels: tuple[int, ...]
    size_bytes: int
    ref: Any
    modified_ns: int = 0
    changed_ns: int = 0


class Sample(NamedTuple):
    """Sample with more values than an image and the labels of its entry.

    Attributes:
        image: The main image.
        values: Value of every column of :attr:`Survey.sampled`, by name; None if missing. A value is an argument of
            :func:`packstore.core.columns.to_stored`, which adds the companions.
        key: Its key, if it is known only after reading; None for the entry's key.
        at_rest: The values already are in stored form, companions included.
        number: Index in its split, in sources that are Python datasets; else None.
        unified: Conversions of its images by the source, see :data:`packstore.images.image_files.UNIFIED`.
        relative: The source has multiplied fractions with the sides of the upright image to get coordinates.
        stated_size: Width and height of the image that the source states without a column for them; else None.
        upright_values: Values of columns that differ from those in :attr:`values` if the source counts in the upright
            image and not in the stored one, such as run lengths; None if none do.
    """

    image: ImageData
    values: Mapping[str, Any]
    key: str | None = None
    at_rest: bool = False
    number: int | None = None
    unified: tuple[str, ...] = ()
    relative: bool = False
    stated_size: tuple[int, int] | None = None
    upright_values: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """Content of a source, from one pass over its listing; no image is read.

    Attributes:
        splits: Number of samples by split, in packing order: first the names of
            :data:`packstore.sources.splits.SPLIT_ORDER`, then others by name. In a source without splits, the only name
            is ``""``.
        columns: All columns except the main image, in order. Those of ``Entry.labels`` are fixed int64 with classes.
            The others are the columns of :attr:`sampled` with their companions.
        encoding: Encoding of the images that :meth:`Source.read` returns. ``original`` for image files, the dtype for
            arrays ``(H, W, C)``, its own encoding for a store.
        mode: Name of the mode of arrays, as in :attr:`packstore.core.columns.Column.mode`; None for RGB of 8 bits.
        shape: Shape that all arrays share, or None for files and ragged stores.
        size_bytes: Bytes of all main images in the source.
        size_counts: Number of images by size, rounded up by :func:`round_up_size`. Formats that pad images use it to
            estimate the size of a store.
        key_bytes: Bytes of all keys together.
        ledger: Every file of the source with its role; empty for a store, and for samples that are no files.
        store: The manifest when the source is a packstore store.
        sampled: Names of the columns whose values come with each :class:`Sample`; the others are ``Entry.labels``.
        value_bytes: Estimated bytes of the values of :attr:`sampled`.
        further_bytes: Bytes of the images among these values, in the source.
        gives_keys: Samples may have keys that are known only after reading.
        counted: The numbers of samples are known. If not, ``splits`` has 0 for each, and the source can be read only
            once.
        resumable: Its entries can be listed again, so that an interrupted conversion can resume.
        notes: Further facts that a person should know before using or sharing the store.
        value_range: Least and greatest value that arrays of whole numbers can have; None for the range of their dtype.
        uses_all_bits: Whole numbers may use the whole range of their dtype. False for scans, which use an unknown part
            of the range.
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
    further_bytes: int = 0
    gives_keys: bool = False
    counted: bool = True
    resumable: bool = True
    mode: str | None = None
    ledger: Ledger = field(default_factory=Ledger)
    notes: tuple[str, ...] = ()
    value_range: tuple[int, int] | None = None
    uses_all_bits: bool = True

    @property
    def records(self) -> int:
        """Number of samples in all splits."""
        return sum(self.splits.values())

    @property
    def image_bytes(self) -> int:
        """Bytes of all images in the source, further ones included."""
        return self.size_bytes + self.further_bytes

    @property
    def labels(self) -> tuple[Column, ...]:
        """Columns of ``Entry.labels``, in order."""
        return tuple(column for column in self.columns if column.name not in self.sampled)


class Source(ABC):
    """Base of all sources: lists samples and reads them.

    Listing is lazy and deterministic. Listing keeps in memory the names of one directory, and a few bytes for each
    sample.

    Attributes:
        kind: The name of its :class:`Kind`.
        normalization: Name of the default mean and standard deviation for floating point records.
        path: The path as given by the user.
        options: Options with which it was opened.
        evidence: Files by which it was recognised, for people: ``features.json and 2 shards``; empty if the kind says
            enough.
    """

    kind: str
    normalization: str = "imagenet"
    evidence: str = ""
    # Reason for images that are left out, for the ledger.
    left_images: ClassVar[str] = "images that are no samples"
    # Raises a question about left files that may be annotations; False for published data sets.
    asks_about_left: ClassVar[bool] = True
    read_like_store: ClassVar[bool] = False
    """Options for its pixels are those of a store to which it is appended, and need not have an effect."""

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self.path = path
        self.options = options

    @property
    def store_manifest(self) -> Manifest | None:
        """Manifest of the store that the source is, or was exported from. None for all other sources."""
        return None

    @abstractmethod
    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Counts the samples that :meth:`entries` yields for ``split`` (None: all splits). The class list is that of
        the whole source. Raises :class:`SourceError` if there is nothing to pack, and :class:`NotInSourceError`,
        which lists the splits, for an unknown split."""

    @abstractmethod
    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """Yields the samples, split after split in the survey's order; the same at each call unless the source
        changes. Needs no survey before. Raises at once for an unknown split, as :meth:`survey` does."""

    @abstractmethod
    def read(self, entry: Entry) -> ImageData | Sample:
        """Reads the image of an entry, and the values of :attr:`Survey.sampled` if there are any. Another opening of
        the source may have listed the entry. Thread-safe. Raises :class:`SampleError` with the entry's key if it
        cannot be read."""

    def read_together(self, entries: Sequence[Entry]) -> Sequence[ImageData | None]:
        """Reads several entries at once, if that is faster. Returns None for each entry that :meth:`read` must read,
        bad ones included. This base returns None for all entries."""
        return [None] * len(entries)

    def image(self, entry: Entry) -> ImageData:
        """Reads an entry, and returns its image without its other values. Raises the errors of :meth:`read`."""
        sample = self.read(entry)
        return sample.image if isinstance(sample, Sample) else sample

    def annotation_frame(self, kind: str) -> str | None:
        """Returns the frame, ``stored`` or ``upright``, in which the format's own tools count coordinates and draw
        masks. ``kind`` is that of the image file, such as ``jpeg``. Returns None if the format has no such
        convention.
        """
        return None

    def further_file_name(self, entry: Entry, column: str, number: int) -> str | None:
        """Returns the name of file ``number`` of a further column, for messages. Returns None if it has no name, and
        always in this base."""
        return None

    def locate(self, entry: Entry) -> Location | None:
        """Locates the bytes of the image that :meth:`read` returns: in a file on this machine, or in an object. Returns
        None if they are not one range of a file, and always in this base. Called before :meth:`read`. Thread-safe."""
        return None

    def fetch(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """Yields entries ready for :meth:`read`. Does the work that must happen in one thread, or in other processes.
        This base yields the entries unchanged."""
        return entries

    def workers(self) -> int:
        """Returns the best number of reading threads: 32 for a URL, whose server is waited for, else the number of
        cores.
        """
        return _REMOTE_WORKERS if isinstance(self.path, UrlPath) else default_workers()

    def nbytes(self, entry: Entry) -> int:
        """Estimates the bytes of an entry that :meth:`fetch` has prepared: in this base, the size of its image."""
        return entry.size_bytes

    def pick_entries(self, split: str | None, records: int, count: int) -> Iterator[Entry]:
        """Yields ``count`` entries of the source, ready for :meth:`read`; fewer if the source has fewer. The step is
        ``records // count``, so the last entries may be left out."""
        # Spread over the source: neighbours are often alike.
        step = max(1, records // count)
        return islice(self.entries(split), 0, count * step, step)

    def follow_store(self, manifest: Manifest) -> None:
        """Takes over what a store recorded about its source, unless the options say it: this source will be appended
        to it. Does nothing in this base.
        """
        return

    def read_as(self, reading: Reading) -> bool:
        """Takes over how images will be read, and tells if that changes the survey. False in this base."""
        return False

    def resume_key(self) -> str:
        """Returns a text that identifies this source when an interrupted conversion resumes. The text has the path, and
        the options for arrays, ``ignore``, ``splits``, ``columns`` and companions."""
        names = [f" {name}={value}" for name, value in self.options.array_names.items() if value is not None]
        names += [f" ignore={pattern}" for pattern in self.options.ignore]
        names += [f" splits={each}" for each in self.options.splits]
        names += [f" column={each}" for each in self.options.columns]
        names += [f" {name}={each}" for name, given in self.options.companions.items() for each in given]
        return os.fsencode(self.path.resolve()).decode("utf-8", "backslashreplace") + "".join(names)

    def stamp(self) -> str:
        """Returns a text that changes if the source changes in a way that its entries do not show. The text is empty
        if the entries show every change. Raises :class:`SourceError` if the source has vanished.
        """
        return ""

    def list_all_files(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Lists all files of the source for its ledger: each folder, and the names of its files. For a source that is
        one file, lists folder ``""`` with its name. Lists none if the path does not exist."""
        if self.path.is_dir():
            return list_files(FolderTree(self.path))
        return iter([("", [self.path.name])] if self.path.is_file() else [])

    def claim_files(self, claims: Claims) -> None:
        """Adds to ``claims`` the files that the source uses and its survey has not claimed. The ledger counts files
        without a claim as left out. Adds none in this base."""
        return

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns the reason why a file is left out; None for the usual reason. This base returns :attr:`left_images`
        for images, else None."""
        return self.left_images if name.lower().endswith(IMAGE_SUFFIXES) else None

    def expects_left(self, path: str) -> bool:
        """Tells if a left file always belongs to the layout, and therefore raises no question. False in this base."""
        return False

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts the records, rows, arrays or columns in packed files that the source leaves out, by reason. Returns an
        empty dict in this base."""
        return {}

    def ledger(self, claims: Claims, split: str | None = None) -> Ledger:
        """Lists all files, and assigns each file its role by ``claims``. First adds the files of :meth:`claim_files` to
        the claims. Files that ``--ignore`` hides are left out for that reason. If only one ``split`` was surveyed,
        images without a claim are left out as images of other splits."""
        self.claim_files(claims)
        others = None if split is None else "images that are not of this split"
        rules = compile_ignore_rules(self.options.ignore)
        return make_ledger(
            self.list_all_files(),
            claims,
            lambda folder, name: (
                rules.ignore_reason(folder, name)
                or (others if name.lower().endswith(IMAGE_SUFFIXES) else None)
                or self.reason_to_leave_out(folder, name)
            ),
            self.count_left_parts(),
        )

    def claim_paths(self, claims: Claims, paths: Iterable[Path], role: Role = Role.PACKED) -> None:
        """Claims files on disk by their paths relative to the source; skips paths outside of it."""
        for path in paths:
            if path == self.path:
                claims.claim(path.name, role)
            elif path.is_relative_to(self.path):
                claims.claim(path.relative_to(self.path).as_posix(), role)

    def close(self) -> None:
        """Closes open files. Idempotent. Images that were read stay valid; reading again may raise
        :class:`PackstoreError`."""
        return

    def unknown_split_error(self, split: str, splits: Iterable[str]) -> NotInSourceError:
        """Returns the error for an unknown split; ``splits`` are the known ones."""
        known = ", ".join(printable(name) for name in splits if name) or "it has none"
        return NotInSourceError(f"{printable(str(self.path))} has no split {printable(split)!r}; splits: {known}")


def stamp_files(paths: Iterable[Path]) -> str:
    """Returns a text with sizes, times of modification and of change of files. Raises :class:`SourceError` if one is
    missing."""
    parts = []
    for path in paths:
        try:
            status = path.stat()
        except OSError as error:
            raise SourceError(f"{printable(str(path))} cannot be reached: {error.strerror or error}") from None
        parts.append(f"{status.st_size}@{status.st_mtime_ns}/{status.st_ctime_ns}")
    return " ".join(parts)


def readable_sizes(sizes: Sequence[int], max_bytes: int) -> Sequence[int]:
    """Returns the sizes without those of files that cannot be read: missing, empty, or of more than ``max_bytes``."""
    # The usual case needs no copy of a list of millions.
    if sizes and min(sizes) > 0 and max(sizes) <= max_bytes:
        return sizes
    return [size for size in sizes if 0 < size <= max_bytes]


def round_up_size(size: int) -> int:
    """Rounds ``size`` up to a multiple of 64 bytes. This keeps :attr:`Survey.size_counts` small."""
    return -(-size // 64) * 64
