"""Reads a flat folder: images without labels, or images that a labels file names."""

from __future__ import annotations

import csv
import os
import re
import stat
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
import xxhash

from packstore.core.errors import NotInSourceError, SourceError, printable
from packstore.core.manifest import Column
from packstore.core.progress import Progress, ProgressCallback, no_progress
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
from packstore.sources.columns import FILE_COLUMNS, LABEL_COLUMNS
from packstore.sources.contents import accept_arrays, find_lone_image_folder
from packstore.sources.encodings import active_encoding, detect_encoding, to_utf8
from packstore.sources.folder import FolderSource
from packstore.sources.ledger import Claims, Role
from packstore.sources.listing import IMAGE_SUFFIXES, NO_FILE, NO_SOURCE, key_size, no_images_message
from packstore.sources.splits import MEANINGS, lower_known_split
from packstore.sources.tree import describe_mode

_REPORT_EVERY = 5000
_INTEGER = re.compile("(-?)(0|[1-9][0-9]*)")
_MAX_LABEL = (1 << 63) - 1
_SHOWN = 80
_MAX_SPLITS = 100
_MAX_LINE = 1 << 20


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
        lines = f"{summary.repeated:,} line{'s' * (summary.repeated > 1)}"
        repeats = f"{printable(labels.path.name)} repeats {lines}; each image is packed once"
        notes = (repeats,) if summary.repeated else ()
        return Survey(
            splits=splits,
            columns=(Column("label", "fixed", "int64", classes=summary.classes, type="label"),),
            encoding="original",
            shape=None,
            size_bytes=size_bytes,
            size_counts=size_counts,
            key_bytes=key_bytes,
            ledger=self.ledger(claims, split),
            notes=notes,
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


class LabelRow(NamedTuple):
    """Line of a labels file.

    Attributes:
        line: Number of the line, from 1. A row of several lines has the number of the last.
        file: Path relative to the folder, with ``/``, without ``.`` and empty parts.
        label: The label, stripped.
        split: Name of the split; ``""`` without that column.
    """

    line: int
    file: str
    label: str
    split: str


@dataclass(frozen=True, slots=True)
class LabelsSummary:
    """Summary of a labels file.

    Attributes:
        classes: Sorted class names; None if all labels are class numbers.
        splits: Names of the splits in packing order; ``("",)`` without that column.
        rows: Number of rows without repeated ones.
        repeated: Number of lines that repeat a file.
    """

    classes: tuple[str, ...] | None
    splits: tuple[str, ...]
    rows: int
    repeated: int


class LabelsFile:
    """Labels file. Each use reads the file from the start. Rows are not kept in memory; :meth:`summarise` takes 8 bytes
    for each row. Malformed lines, paths that may lead out of the folder, pipes and devices raise
    :class:`SourceError`."""

    def __init__(self, path: Path) -> None:
        """Reads nothing yet. Later uses decode texts as UTF-8, UTF-16 with its mark, or the encoding that ``--column
        encoding=NAME`` names."""
        self.path = path
        self._given_encoding = active_encoding()
        self._repeats: set[int] = set()
        """Lines that repeat a file with the same label and split; known after :meth:`summarise`."""

    def name_line(self, line: int) -> str:
        """Formats file and line for messages."""
        return f"{printable(str(self.path))}, line {line}"

    def rows(self) -> Iterator[LabelRow]:
        """Yields all rows in the file's order. After :meth:`summarise`, leaves out rows that repeat a file.

        Raises :class:`NotInSourceError` for a missing file. Raises :class:`SourceError` for a file that cannot be read,
        and for a malformed row. The message about a row names its line.
        """
        try:
            encoding = self._encoding
            escaped = "surrogateescape" if encoding == "utf-8-sig" else "strict"
            with open(self.path, encoding=encoding, errors=escaped, newline="", opener=self._open_regular) as file:
                reader = csv.reader(self._read_lines(file), strict=True)
                try:
                    yield from self._parse_rows(reader)
                except csv.Error as error:
                    raise SourceError(f"{self.name_line(reader.line_num)}: not CSV: {error}") from None
        except FileNotFoundError:
            raise NotInSourceError(f"{printable(str(self.path))}: no such file") from None
        except OSError as error:
            raise SourceError(f"{printable(str(self.path))} cannot be read: {error.strerror or error}") from None

    @cached_property
    def _encoding(self) -> str:
        """Encoding of the file. The first use reads all bytes. Raises :class:`OSError` if the file cannot be read."""
        with open(self.path, "rb", opener=self._open_regular) as file:
            return detect_encoding(iter(lambda: file.read(_MAX_LINE), b""), self._given_encoding)

    def _read_lines(self, file: TextIO) -> Iterator[str]:
        """Yields the lines of the file. Raises :class:`SourceError` for a line that is too long for CSV, or not in the
        given encoding."""
        for number in count(1):
            try:
                line = file.readline(_MAX_LINE)
            except UnicodeError:  # Python decodes ahead of the line
                where = f"{self.name_line(number)} or after it"
                raise SourceError(f"{where}: neither UTF-8 nor {self._encoding}") from None
            if len(line) == _MAX_LINE:
                raise SourceError(
                    f"{self.name_line(number)}: longer than {_MAX_LINE:,} characters, so this is not a CSV file"
                )
            if not line:
                return
            yield line

    def _open_regular(self, path: str, flags: int) -> int:
        """Opens a file without waiting for a pipe, and returns its descriptor. Raises :class:`SourceError` for pipes
        and devices. Accepts a folder, which ``open()`` itself refuses."""
        descriptor = os.open(path, flags | os.O_NONBLOCK)
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # open() itself refuses a folder
            os.close(descriptor)
            raise SourceError(
                f"{printable(path)} is not a file but {describe_mode(mode)}; "
                "labels are read several times: save them to a file"
            )
        return descriptor

    def _parse_rows(self, reader: Iterator[list[str]]) -> Iterator[LabelRow]:
        """Yields rows by the columns of the header. Skips blank lines, and the lines in :attr:`_repeats`. Raises
        :class:`SourceError` for a malformed header or row."""
        header = [name.strip().lower() for name in next(reader, [])]
        columns = [next((name for name in names if name in header), None) for names in (FILE_COLUMNS, LABEL_COLUMNS)]
        if None in columns or len(set(header)) < len(header):
            found = _shorten(",".join(header)) or "an empty line"
            missing = "file" if columns[0] is None else "label" if columns[1] is None else None
            wrong = f"no column {missing}" if missing else "a column twice"
            hint = ", with commas" if ";" in found or "\t" in found else ""
            raise SourceError(
                f"{self.name_line(1)}: the header has {wrong}: {found}; expected file,label or file,label,split{hint}"
            )
        file, label = (header.index(name) for name in columns if name is not None)
        split = header.index("split") if "split" in header else None
        for fields in reader:
            if not fields:
                continue  # a blank line
            line: int = reader.line_num  # type: ignore[attr-defined]
            if line in self._repeats:
                continue
            if len(fields) != len(header):
                raise SourceError(f"{self.name_line(line)}: {len(fields)} fields, the header has {len(header)}")
            yield LabelRow(
                line,
                self._parse_file(line, fields[file]),
                self._strip_required(line, "label", fields[label]),
                "" if split is None else lower_known_split(self._strip_required(line, "split", fields[split])),
            )

    def _strip_required(self, line: int, column: str, value: str) -> str:
        """Strips a value. Raises :class:`SourceError` for an empty value, and :class:`AmbiguousSourceError` for a value
        in an unknown encoding."""
        value = value.strip()
        if not value:
            raise SourceError(f"{self.name_line(line)}: the {column} is empty")
        if not value.isascii():
            to_utf8(value.encode("utf-8", "surrogateescape"), None, self.name_line(line))
        return value

    def _parse_file(self, line: int, value: str) -> str:
        """Returns the path of a file without ``.`` and empty parts. Raises :class:`SourceError` for an empty path, and
        for one that may lead out of the folder."""
        if not value.strip():
            raise SourceError(f"{self.name_line(line)}: the file is empty")
        if "\0" in value:
            raise SourceError(f"{self.name_line(line)}: a NUL byte in the file name {_shorten(value)}")
        if value.startswith("/"):
            raise SourceError(
                f"{self.name_line(line)}: {_shorten(value)} is absolute; expected a path inside the folder"
            )
        if "/" not in value and value not in (".", ".."):
            return value
        parts = [part for part in value.split("/") if part not in ("", ".")]
        if ".." in parts or not parts:
            raise SourceError(f"{self.name_line(line)}: {_shorten(value)} may lead out of the folder")
        return "/".join(parts)

    def summarise(self) -> LabelsSummary:
        """Summarises the whole file, and remembers which lines repeat a file.

        Labels are class numbers only if all are. Reads the file up to three times. Raises :class:`SourceError`

        - for no rows, or more than 100 splits;
        - for a class number below 0 or beyond 64 bits;
        - for a file with different labels or splits;
        - for the reasons of :meth:`rows`.
        """
        names: set[str] = set()
        splits: set[str] = set()
        hashes = array("Q")
        numbers = False
        outside: LabelRow | None = None
        for row in self.rows():
            hashes.append(hash_path(row.file))
            if row.split not in splits:
                splits.add(row.split)
                if len(splits) > _MAX_SPLITS:
                    raise SourceError(
                        f"{self.name_line(row.line)}: more than {_MAX_SPLITS} splits; is this column a split?"
                    )
            number = parse_number(row.label)
            if number is None:
                names.add(row.label)
                continue
            numbers = True
            if outside is None and not 0 <= number <= _MAX_LABEL:
                outside = row
        if not hashes:
            raise SourceError(f"{printable(str(self.path))} names no files")
        if names and numbers:  # then labels that look like numbers are names, too
            names.update(row.label for row in self.rows())
        if outside is not None and not names:
            raise SourceError(
                f"{self.name_line(outside.line)}: label {_shorten(outside.label)} is out of range, expected 0 to "
                f"{_MAX_LABEL}"
            )
        ordered = np.sort(np.frombuffer(hashes, np.uint64))
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            self._repeats = self._find_repeats({int(value) for value in twice})
        known = {name: number for number, name in enumerate(MEANINGS)}
        return LabelsSummary(
            tuple(sorted(names)) if names else None,
            tuple(sorted(splits, key=lambda name: (known.get(name, len(known)), name))),
            len(ordered) - len(self._repeats),
            len(self._repeats),
        )

    def _find_repeats(self, suspects: set[int]) -> set[int]:
        """Returns the numbers of lines that repeat a file. ``suspects`` are hashes that occur twice. Raises
        :class:`SourceError` for a file with different labels or splits."""
        first: dict[str, LabelRow] = {}
        repeats = set()
        for row in self.rows():
            if hash_path(row.file) not in suspects:
                continue
            known = first.setdefault(row.file, row)  # files of equal hashes may differ
            if known is row:
                continue
            if known[2:] != row[2:]:
                raise SourceError(
                    f"{self.name_line(row.line)}: {printable(row.file)} is named again as {printable(row.label)!r}, "
                    f"first on line {known.line} as {printable(known.label)!r}"
                )
            repeats.add(row.line)
        return repeats


def parse_number(label: str) -> int | None:
    """Parses ``label`` as an integer in its usual form. Returns None for a name, and for another form, such as ``007``.
    Returns 2^64 or -2^64 for any number of 20 or more digits."""
    # Python takes quadratic time to parse digits, and refuses many.
    match = _INTEGER.fullmatch(label)
    if match is None:
        return None
    size = int(match[2]) if len(match[2]) < 20 else 1 << 64
    return -size if match[1] == "-" else size


def _shorten(text: str) -> str:
    """Formats a text for messages, cut after 80 characters."""
    return printable(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def hash_path(file: str) -> int:
    """Hashes a file's relative path with XXH3-64."""
    return xxhash.xxh3_64_intdigest(file.encode("utf-8", "surrogatepass"))


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises a folder of images.

    - ``CERTAIN``: there is a labels file.
    - ``CERTAIN``: images are directly in the folder, or only in a folder of a generic name (``images``).
    - ``POSSIBLE``: any other folder.
    - ``NO``: no folder and no archive.
    """
    if options.labels is not None:
        return Certainty.CERTAIN
    tree = open_tree(path)
    if tree is None:
        return Certainty.NO
    found = tree.list("").images or find_lone_image_folder(tree) is not None
    return Certainty.CERTAIN if found else Certainty.POSSIBLE


KIND = Kind(
    "flat",
    "a folder of images, with labels in a CSV file or none",
    _recognise,
    FlatSource,
    takes_labels=True,
    in_objects=True,
)
