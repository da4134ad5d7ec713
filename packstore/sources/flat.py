"""Reads a flat folder: images without labels, or images that a labels file names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from packstore.core.errors import SourceError, printable
from packstore.core.manifest import Column
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.sources.annotations import describe_annotations
from packstore.sources.archives import open_tree
from packstore.sources.base import (
    Certainty,
    Entry,
    Kind,
    SourceOptions,
    Survey,
    readable_sizes,
    round_up_size,
    round_up_sizes,
    stamp_files,
)
from packstore.sources.beside import join
from packstore.sources.contents import accept_arrays, find_lone_image_folder
from packstore.sources.folder import FolderSource
from packstore.sources.labels import LabelRow, LabelsFile, LabelsSummary, parse_number
from packstore.sources.ledger import Claims, Role
from packstore.sources.listing import (
    IMAGE_SUFFIXES,
    NO_FILE,
    NO_SOURCE,
    key_size,
    no_images_message,
)
from packstore.sources.splits import lower_known_split

_REPORT_EVERY = 5000


class FlatSource(FolderSource):
    """Images directly in a folder, or images that a labels file names.

    Without a labels file, images are sorted by name, and have no labels. If the folder has only one folder of images,
    with a generic name (``images``), its images are the samples. Without images, ``.npy`` files are the images.

    With a labels file, images are at any depth, in the order of the file. If all labels are integers, they are class
    numbers without names. Otherwise all are names of classes, numbered in sorted order. A labels file that names a
    missing image is refused."""

    kind = "flat"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.tree = accept_arrays(self.tree)
        self._labels = None if options.labels is None else LabelsFile(options.labels)
        self.by_suffix = self._labels is None
        self._summary: LabelsSummary | None = None
        self._folder = (find_lone_image_folder(self.tree) if self._labels is None else None) or ""
        where = f"images in {printable(self._folder)} and nowhere else" if self._folder else "images at its top"
        self.evidence = where if options.labels is None else f"the labels in {options.labels.name}"

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Counts samples. Raises :class:`NotInSourceError` for an unknown split. Raises :class:`SourceError`

        - for a folder without images directly in it;
        - for a labels file that names no file or a missing file, or has a malformed line.
        """
        if self._labels is not None:
            return self._survey_labelled(self._labels, split, progress)
        self._choose_splits(("",), split)
        with self.tree.cache_names():
            return self._survey_unlabelled(progress)

    def _survey_unlabelled(self, progress: ProgressCallback) -> Survey:
        """Surveys the images of the folder. Raises :class:`SourceError` if no image is directly in it."""
        ignored: Counter[str] = Counter()
        listing = self.tree.list(self._folder, ignored)
        if not listing.images:
            above = (*self.tree.above, listing.identity)
            if any(self.tree.holds_images(name, above) for name in sorted(listing.directories)):
                raise SourceError(f"{self.name()}: its images are in subfolders: use --source imagefolder")
            raise SourceError(no_images_message(self.name(), ignored, NO_SOURCE))
        sizes = readable_sizes(listing.sizes, self.max_bytes)
        progress(Progress("scan", len(listing.images), len(listing.images), sum(sizes)))
        claims = Claims()
        claims.claim_all(self._folder, listing.images)
        return Survey(
            splits={"": len(listing.images)},
            columns=(),
            encoding="original",
            shape=None,
            size_bytes=sum(sizes),
            size_counts=Counter(round_up_sizes(sizes)),
            key_bytes=sum(key_size(join(self._folder, name)) for name in listing.images),
            ledger=self.ledger(claims),
        )

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """Yields the images of the folder, or those that the labels file names. The first call reads the whole labels
        file, and raises :class:`SourceError` if it is malformed. Raises :class:`NotInSourceError` for an unknown
        split."""
        if self._labels is not None:
            summary = self._summarise_once(self._labels)
            return self._yield_labelled(self._labels, summary, self._choose_splits(summary.splits, split))
        self._choose_splits(("",), split)
        return self._yield_unlabelled()

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns a reason for images: they are in subfolders, or not in the labels file. None for other files."""
        if name.lower().endswith(IMAGE_SUFFIXES):
            return "images in subfolders" if self._labels is None else "images that the labels file does not name"
        return None

    def claim_files(self, claims: Claims) -> None:
        """Claims the labels file, if there is one."""
        if self._labels is not None:
            self.claim_paths(claims, [self._labels.path.absolute()], Role.ANNOTATION)

    def stamp(self) -> str:
        """Returns the stamp of an archive, and size and times of the labels file; empty for a folder without one."""
        labels = stamp_files([self._labels.path]) if self._labels is not None else ""
        return " ".join(filter(None, (super().stamp(), labels)))

    def _yield_unlabelled(self) -> Iterator[Entry]:
        """Yields an entry for each image directly in the folder."""
        listing = self.tree.list(self._folder)
        numbers = zip(listing.images, listing.sizes, listing.modified, listing.changed, strict=True)
        for name, size, modified, changed in numbers:
            yield Entry(
                join(self._folder, name), "", (), max(size, 0), NO_FILE if size < 0 else None, modified, changed
            )

    def _yield_labelled(self, labels: LabelsFile, summary: LabelsSummary, splits: Sequence[str]) -> Iterator[Entry]:
        """Yields the entries of splits in the order of the labels file. Raises :class:`SourceError` if an image is
        missing, or a label is new because the file has changed."""
        numbers = None if summary.classes is None else {name: n for n, name in enumerate(summary.classes)}
        for split in splits:
            for row in labels.rows():
                if row.split != split:
                    continue
                label = parse_number(row.label) if numbers is None else numbers.get(row.label)
                if label is None:
                    raise SourceError(
                        f"{labels.name_line(row.line)}: label {printable(row.label[:80])} is new: the file changed"
                    )
                size, ref, modified, changed = self._stat_image(labels, row)
                yield Entry(row.file, split, (label,), size, ref, modified, changed)

    def _survey_labelled(self, labels: LabelsFile, split: str | None, progress: ProgressCallback) -> Survey:
        """Surveys the images of one split, or of all, in the labels file. Raises :class:`SourceError` for a missing
        image, also in other splits than ``split``."""
        summary = self._summarise_once(labels)
        splits = dict.fromkeys(self._choose_splits(summary.splits, split), 0)
        size_bytes = key_bytes = records = 0
        size_counts: Counter[int] = Counter()
        claims = Claims()
        for row in labels.rows():
            size, *_ = self._stat_image(labels, row)
            if row.split not in splits:
                continue
            claims.claim(row.file)
            size = size if size <= self.max_bytes else 0  # larger ones are not read
            splits[row.split] += 1
            size_bytes += size
            size_counts[round_up_size(size)] += 1
            key_bytes += key_size(row.file)
            records += 1
            if records % _REPORT_EVERY == 0:
                progress(Progress("scan", records, summary.rows, size_bytes))
        progress(Progress("scan", records, records, size_bytes))
        return Survey(
            splits=splits,
            columns=(Column("label", "fixed", "int64", classes=summary.classes, type="label"),),
            encoding="original",
            shape=None,
            size_bytes=size_bytes,
            size_counts=size_counts,
            key_bytes=key_bytes,
            ledger=self.ledger(claims, split),
        )

    def _summarise_once(self, labels: LabelsFile) -> LabelsSummary:
        """Returns the summary of the labels file, which is read at the first call."""
        if self._summary is None:
            self._summary = labels.summarise()
        return self._summary

    def _choose_splits(self, splits: tuple[str, ...], split: str | None) -> tuple[str, ...]:
        """Returns all splits, or the given split. A usual name (``train``) may be in upper case. Raises
        :class:`NotInSourceError` if it is unknown."""
        if split is None:
            return splits
        split = lower_known_split(split)
        if not split or split not in splits:
            raise self.unknown_split_error(split, splits)
        return (split,)

    def _stat_image(self, labels: LabelsFile, row: LabelRow) -> tuple[int, int | None, int, int]:
        """Returns size, ``ref``, time of modification and time of change of a row's file. ``ref`` is None for a regular
        file, else :data:`NO_FILE`. Raises :class:`SourceError` if the file is missing, or a folder."""
        try:
            status = self.tree.stat(row.file)
        except OSError as error:
            if self.tree.rules.hides(row.file):
                raise SourceError(
                    f"{labels.name_line(row.line)}: {printable(row.file)} is left out by --ignore; remove its line"
                ) from None
            raise SourceError(
                f"{labels.name_line(row.line)}: {printable(row.file)} in {self.name()}: "
                f"{error.strerror or error}; files are named from that folder on"
            ) from None
        if status.is_directory:
            raise SourceError(f"{labels.name_line(row.line)}: {printable(row.file)} is a folder, not an image")
        return max(status.size, 0), None if status.size >= 0 else NO_FILE, status.modified_ns, status.changed_ns


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises a folder of images.

    - ``CERTAIN``: there is a labels file.
    - ``CERTAIN``: images are directly in the folder, or only in a folder of a generic name (``images``).
    - ``PARTIAL``: such images and annotations.
    - ``POSSIBLE``: any other folder.
    - ``NO``: no folder and no archive.
    """
    if options.labels is not None:
        return Certainty.CERTAIN
    tree = open_tree(path)
    if tree is None:
        return Certainty.NO
    if not tree.list("").images and find_lone_image_folder(tree) is None:
        return Certainty.POSSIBLE
    return Certainty.PARTIAL if describe_annotations(tree) else Certainty.CERTAIN


KIND = Kind(
    "flat",
    "a folder of images, with labels in a CSV file or none",
    _recognise,
    FlatSource,
    takes_labels=True,
    in_objects=True,
)
