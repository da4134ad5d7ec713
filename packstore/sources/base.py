"""The contract of a source: survey it once, list its entries in a fixed order, read any entry from any thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.columns import ImageData
from packstore.core.errors import SourceError, printable
from packstore.core.manifest import Column, Manifest
from packstore.core.progress import ProgressCallback, no_progress
from packstore.images.sniff import MAX_PIXELS


class Entry(NamedTuple):
    """A sample before its image is read.

    Attributes:
        key: Relative path with ``/`` (undecodable bytes as surrogates) or id, unique in the source.
        split: Name of its split; ``""`` in a source without splits.
        labels: Class numbers, in the order of ``Survey.columns``.
        size_bytes: Size of the image as it lies in the source.
        ref: Whatever the source needs to read it.
        modified_ns: When the image's own file was last modified, in nanoseconds; 0 where it is not a file of its own.
        changed_ns: When anything of that file was changed last, its name included, which nobody can set back: two files
            of one size and age that were exchanged show by nothing else.
    """

    key: str
    split: str
    labels: tuple[int, ...]
    size_bytes: int
    ref: Any
    modified_ns: int = 0
    changed_ns: int = 0


@dataclass(frozen=True, slots=True)
class Survey:
    """What a source holds, from one pass over its listing (no image is read).

    Attributes:
        splits: Number of samples by split, in the order in which they are to be packed (train, val, test, others by
            name); the only name is ``""`` in a source without splits.
        columns: The label columns (``label`` first), each fixed int64 with its classes; empty without labels.
        encoding: What :meth:`Source.read` yields: ``original`` for image files, ``uint8`` for arrays; for a store its
            own encoding.
        shape: Shape that all arrays share, or None for files and ragged stores.
        size_bytes: Bytes of all images as they lie in the source.
        paged_bytes: The same with each image rounded up to whole 4 KiB pages, as LMDB keeps larger values.
        key_bytes: Bytes of all keys together.
        ignored: Number of files passed over, by reason (``hidden``, ``not images (.txt)`` ...), in the plural.
        store: The manifest when the source is a packstore store.
    """

    splits: Mapping[str, int]
    columns: tuple[Column, ...]
    encoding: str
    shape: tuple[int, ...] | None
    size_bytes: int
    paged_bytes: int
    key_bytes: int
    ignored: Mapping[str, int] = field(default_factory=dict)
    store: Manifest | None = None

    @property
    def records(self) -> int:
        return sum(self.splits.values())


class Source(ABC):
    """Where samples come from.

    Listing is lazy and deterministic; memory does not grow with the number of samples beyond one directory's names.

    Attributes:
        kind: ``imagefolder``, ``flat``, ``cifar10``, ``cifar100`` or ``store``.
        path: The source as the user named it.
        max_pixels: Files of more bytes than an image of so many pixels can have are not read; see
            :func:`packstore.images.sniff.max_file_bytes`.
    """

    kind: str
    max_pixels: int = MAX_PIXELS

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Counts what :meth:`entries` will yield for ``split`` (all splits for None). The class list is that of the
        whole source. Raises :class:`SourceError` when there is nothing to pack, or for an unknown split (naming
        those that there are)."""

    @abstractmethod
    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """The samples, split after split in the survey's order; the same at each call as long as nothing changes."""

    @abstractmethod
    def read(self, entry: Entry) -> ImageData:
        """The image of an entry. Called from several threads at once. Raises :class:`SampleError` with the entry's
        key when it cannot be read."""

    def stamp(self) -> str:
        """What tells whether the source has changed, beyond what its entries say: the same at each call as long as it
        has not. Empty where the entries say it all. Raises :class:`SourceError` when it has vanished."""
        return ""

    def close(self) -> None:
        """Releases open files. Idempotent."""
        return


def stamp_of(paths: Iterable[Path]) -> str:
    """A stamp of some files: sizes, times of modification and change. Raises :class:`SourceError` when one is gone."""
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


def paged(size: int) -> int:
    """Bytes that LMDB takes for a value of ``size``.

    Above about 2 KB these are whole 4 KiB pages with a header of 16 bytes; below, a share of a leaf page, which holds
    as many entries (10 bytes of key, 8 of header, 2 of index) as fit.
    """
    if size > 2020:
        return -(-(size + 16) // 4096) * 4096
    return 4096 // (4080 // (size + 20))
