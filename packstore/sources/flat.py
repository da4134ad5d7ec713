"""A flat folder: images without labels, or images that a labels file names."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from packstore.core.errors import NotInSourceError, SampleError, SourceError, printable
from packstore.core.manifest import Column
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.images.sniff import max_file_bytes
from packstore.sources.base import Entry, Source, Survey, paged, stamp_of
from packstore.sources.labels import Contents, LabelsFile, Row, number_of, split_name
from packstore.sources.listing import (
    NO_FILE,
    NO_SOURCE,
    Files,
    Identity,
    ancestry,
    key_size,
    list_directory,
    no_images,
    reason_for,
    walk,
)

_REPORT_EVERY = 5000
_IN_SUBFOLDERS = "images in subfolders"


class FlatSource(Source):
    """The images that lie directly in a folder, sorted by name; or, with a labels file, those that it names, in its
    order, at any depth.

    Without a labels file there is no label column. With one, labels that are all integers are class numbers as they
    stand (``classes`` is None); otherwise all are names, numbered in sorted order.
    """

    kind = "flat"

    def __init__(self, path: Path, labels: Path | None = None) -> None:
        super().__init__(path)
        self._root = str(path.absolute())
        self._files = Files(self._root)
        self._labels = None if labels is None else LabelsFile(labels)
        self._contents: Contents | None = None

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """See :meth:`Source.survey`. Raises :class:`SourceError` for an empty folder, and for a labels file with a
        line that is wrong (naming it) or that names no files at all."""
        if self._labels is not None:
            return self._survey_labelled(self._labels, split, progress)
        self._choose(("",), split)
        ignored: Counter[str] = Counter()
        listing = list_directory(self._root, ignored)
        self._count_others(listing.directories, (*ancestry(self._root), listing.identity), ignored)
        if not listing.images:
            name = printable(str(self.path))
            if ignored[_IN_SUBFOLDERS]:
                raise SourceError(f"{name}: its images lie in subfolders: use --source imagefolder")
            raise SourceError(no_images(name, ignored, NO_SOURCE))
        limit = max_file_bytes(self.max_pixels)  # what is larger will not be read
        sizes = [size for size in listing.sizes if 0 < size <= limit]
        progress(Progress("scan", len(listing.images), len(listing.images), sum(sizes)))
        return Survey(
            splits={"": len(listing.images)},
            columns=(),
            encoding="original",
            shape=None,
            size_bytes=sum(sizes),
            paged_bytes=sum(map(paged, sizes)),
            key_bytes=sum(map(key_size, listing.images)),
            ignored=dict(ignored),
        )

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """See :meth:`Source.entries`. ``ref`` is None, or tells that the entry is no file."""
        if self._labels is not None:
            contents = self._learn(self._labels)
            return self._labelled(self._labels, contents, self._choose(contents.splits, split))
        self._choose(("",), split)
        return self._unlabelled()

    def close(self) -> None:
        """See :meth:`Source.close`."""
        self._files.close()

    def read(self, entry: Entry) -> bytes:
        """The bytes of the file. Raises :class:`SampleError` when it cannot be read or is not a file."""
        if entry.ref is not None:
            raise SampleError(entry.key, "is not a file but a pipe, a socket or a device")
        limit = max_file_bytes(self.max_pixels)
        return self._files.read(entry.key, entry.size_bytes, entry.modified_ns, limit)

    def stamp(self) -> str:
        return stamp_of([self._labels.path]) if self._labels is not None else ""

    def _unlabelled(self) -> Iterator[Entry]:
        listing = list_directory(self._root)
        numbers = zip(listing.images, listing.sizes, listing.modified, listing.changed, strict=True)
        for name, size, modified, changed in numbers:
            yield Entry(name, "", (), max(size, 0), NO_FILE if size < 0 else None, modified, changed)

    def _labelled(self, labels: LabelsFile, contents: Contents, splits: Sequence[str]) -> Iterator[Entry]:
        numbers = None if contents.classes is None else {name: n for n, name in enumerate(contents.classes)}
        for split in splits:
            for row in labels.rows():
                if row.split != split:
                    continue
                label = number_of(row.label) if numbers is None else numbers.get(row.label)
                if label is None:
                    raise SourceError(
                        f"{labels.where(row.line)}: label {printable(row.label[:80])} is new: the file changed"
                    )
                size, ref, modified, changed = self._size(labels, row)
                yield Entry(row.file, split, (label,), size, ref, modified, changed)

    def _survey_labelled(self, labels: LabelsFile, split: str | None, progress: ProgressCallback) -> Survey:
        contents = self._learn(labels)
        splits = dict.fromkeys(self._choose(contents.splits, split), 0)
        size_bytes = paged_bytes = key_bytes = records = 0
        limit = max_file_bytes(self.max_pixels)
        for row in labels.rows():
            size, *_ = self._size(labels, row)
            if row.split not in splits:
                continue
            size = size if size <= limit else 0
            splits[row.split] += 1
            size_bytes += size
            paged_bytes += paged(size)
            key_bytes += key_size(row.file)
            records += 1
            if records % _REPORT_EVERY == 0:
                progress(Progress("scan", records, len(contents.hashes), size_bytes))
        progress(Progress("scan", records, records, size_bytes))
        return Survey(
            splits=splits,
            columns=(Column("label", "fixed", "int64", classes=contents.classes),),
            encoding="original",
            shape=None,
            size_bytes=size_bytes,
            paged_bytes=paged_bytes,
            key_bytes=key_bytes,
            ignored=self._unnamed(labels, contents),
        )

    def _unnamed(self, labels: LabelsFile, contents: Contents) -> dict[str, int]:
        """What lies in the folder and is not in the labels file, by reason."""
        ignored: Counter[str] = Counter()
        for directory, listing in walk(self._root, "", ancestry(self._root), ignored):
            prefix = f"{directory}/" if directory else ""
            unnamed = len(listing.images) - contents.count_named([prefix + name for name in listing.images])
            if unnamed:
                ignored["images that the labels file does not name"] += unnamed
        own = reason_for(labels.path.name)
        if ignored[own] and labels.path.resolve().is_relative_to(self.path.resolve()):
            ignored[own] -= 1  # the labels file itself is used, not passed over
        return dict(+ignored)

    def _learn(self, labels: LabelsFile) -> Contents:
        if self._contents is None:
            self._contents = labels.contents()
        return self._contents

    def _count_others(self, directories: list[str], above: tuple[Identity, ...], ignored: Counter[str]) -> None:
        for name in sorted(directories):
            for _, listing in walk(self._root, name, above, ignored):
                if listing.images:
                    ignored[_IN_SUBFOLDERS] += len(listing.images)

    def _choose(self, splits: tuple[str, ...], split: str | None) -> tuple[str, ...]:
        if split is None:
            return splits
        split = split_name(split)
        if not split or split not in splits:
            there = ", ".join(printable(name) for name in splits if name) or "it has none"
            raise NotInSourceError(f"{printable(str(self.path))} has no split {printable(split)!r}; splits: {there}")
        return (split,)

    def _size(self, labels: LabelsFile, row: Row) -> tuple[int, int | None, int, int]:
        """Size, ``ref``, times of modification and of change. Raises :class:`SourceError` when it does not exist."""
        try:
            found = os.stat(f"{self._root}/{row.file}")  # noqa: PTH116 - one call for each of many files
        except OSError as error:
            raise SourceError(
                f"{labels.where(row.line)}: {printable(row.file)} in {printable(str(self.path))}: "
                f"{error.strerror or error}; files are named from that folder on"
            ) from None
        if stat.S_ISDIR(found.st_mode):
            raise SourceError(f"{labels.where(row.line)}: {printable(row.file)} is a folder, not an image")
        if not stat.S_ISREG(found.st_mode):
            return 0, NO_FILE, 0, 0
        return found.st_size, None, found.st_mtime_ns, found.st_ctime_ns
