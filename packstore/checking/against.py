"""``verify --against``: compares a store with its source.

Files and rows of the source are also counted with other programs than packstore's readers, so that a fault of those
readers shows. Folders are walked, archives listed by :mod:`zipfile` and :mod:`tarfile`, Parquet and HDF5 read by their
libraries.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import lzma
import os
import posixpath
import tarfile
import zipfile
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.checking import VerifyOptions
from packstore.checking.reports import Difference, try_key
from packstore.checking.source_records import SourceRecords, reading_source
from packstore.checking.store_check import COMPARED_RECORDS, Batch, ValueGetter, open_files
from packstore.core.columns import NUMPY_DTYPE, Buffer
from packstore.core.errors import PackstoreError, SourceError, StoreError, printable
from packstore.sources.base import Entry, Sample, Source
from packstore.sources.ledger import Role
from packstore.stores import Reader
from packstore.stores.keys import KeyIndex
from packstore.stores.places import place_of

_CAPPED = 256
"""Most suffixes that a ledger counts."""
ROWS = "rows"
"""Key of the number of rows of all tables; with a colon and an array's name, of the rows of that array in all files."""
_TABLES, _ARRAYS = (".parquet",), (".h5", ".hdf5", ".he5", ".hdf")
_NOT_AN_ARCHIVE = ".npz"
"""A zip that readers treat as one file."""
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_LONGEST_SUFFIX = 12
_FAULTS = (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError, RuntimeError)


class SourceComparison(SourceRecords):
    """Compares the records of an open store with the entries of a source, and their order, columns, classes, and
    lists and counts of files.

    Finds an entry's record by the hash of its key. A missing record is therefore a single difference, and the records
    after it still match. Leaves out samples that packing skipped. Memory is 17 bytes a record.
    """

    def __init__(self, source: Source, reader: Reader, options: VerifyOptions) -> None:
        super().__init__(source, reader.manifest, options)
        self.reader = reader
        self.splits = {s.name: s for s in self.manifest.splits}
        self.labels = {c.name for c in self.survey.columns if self.manifest.has_column(c.name)}
        self._seen = np.zeros(len(reader), np.bool_)
        self._in_order = True
        self._counts_agree = False

    def compare_summaries(self) -> Iterator[Difference]:
        """Yields differences that show without reading records: in lists of files, counts of files and rows, columns,
        classes.

        Raises :class:`SourceError` if the source's files cannot be counted.
        """
        yield from self._compare_ledgers()
        yield from self._compare_counts()
        yield from self._compare_columns()

    def batch_records(self) -> Iterator[Batch]:
        """Yields batches of the source's entries with their records, in the source's order.

        A batch also has the entries without a record. The last batches have the records without an entry. Notes for
        :meth:`compare_coverage` which records had an entry, and if their order is the source's.
        """
        # Records are found by key, so one that is missing does not shift those behind it.
        index = KeyIndex(self._hash_keys())
        previous = -1
        for entries in self._batch_entries():
            located = [(index.find(entry.key), entry) for entry in entries]
            records = [record for record, _ in located if record is not None]
            for record in records:
                self._in_order = self._in_order and record > previous
                previous = record
            self._seen[records] = True
            # Two entries with one key have the same record, which is read once.
            yield Batch([*dict.fromkeys(records)], located)
        missing = np.flatnonzero(~self._seen).tolist()
        for start in range(0, len(missing), COMPARED_RECORDS):
            yield Batch(missing[start : start + COMPARED_RECORDS])

    def compare_batch(self, batch: Batch, images: Mapping[int, Buffer], value: ValueGetter) -> Iterator[Difference]:
        """Compares a batch's records with their entries; yields the differences in labels, splits, values and images.

        An entry without a record is a difference, too. Skips records that are not in ``images``. Reads the source's
        samples and encodes their images. Thread-safe.

        Args:
            batch: One of :meth:`batch_records`.
            images: The images of its undamaged records.
            value: Returns the value of a column and a record.
        """
        for record, entry in batch.entries:
            if record is None:
                yield Difference(f"the source has {printable(entry.key)}, the store does not")
            elif record in images:
                for what in self._compare_record(record, entry, images[record], value):
                    yield Difference(what, record, entry.key)

    def compare_coverage(self) -> Iterator[Difference]:
        """Yields the records that the source lacks, and one difference if the order differs.

        Call it after :meth:`batch_records` has ended.
        """
        for record in np.flatnonzero(~self._seen).tolist():
            yield Difference("the store has this record, the source does not", record, try_key(self.reader, record))
        if not self._in_order:
            yield Difference("the records are in another order than in the source")

    def _compare_ledgers(self) -> Iterator[Difference]:
        """Yields a difference if the source's files differ from the manifest's in number or name."""
        then, now = self.manifest.origin.files, self.survey.ledger
        # Without a list of files on both sides, or for another kind of source, there is nothing to compare.
        if then is None or not now.total or self.manifest.origin.kind != self.source.kind:
            return
        # Only compares the files to pack or read.
        roles = (Role.PACKED, Role.ANNOTATION, Role.EVIDENCE)
        same = (then.packed, then.annotation, then.evidence) == tuple(map(now.count, roles))
        # If the source has another name (an archive of the folder, or a folder in it), paths begin differently.
        renamed = self.manifest.origin.name != self.source.path.resolve().name
        if not same or (then.used != now.used and not renamed):
            read = now.count(Role.ANNOTATION) + now.count(Role.EVIDENCE)
            yield Difference(
                f"the source has other files than when it was packed: {now.count(Role.PACKED):,} to pack and {read:,} "
                f"to read, then {then.packed:,} and {then.annotation + then.evidence:,}"
            )

    def _compare_counts(self) -> Iterator[Difference]:
        """Counts the source's files with other programs; yields the differences from packstore's own list."""
        path, ledger = self.source.path, self.survey.ledger
        # A single file says nothing about listing. A full ledger counts its rarest suffixes together.
        if place_of(path).remote or ledger.total < 2 or ("" in ledger.suffixes and len(ledger.suffixes) >= _CAPPED):
            return
        counts = count_independently(path)
        rows = counts.get(ROWS)
        files = {suffix: count for suffix, count in counts.items() if not suffix.startswith(ROWS)}
        self._counts_agree = True
        for suffix in sorted(files.keys() | ledger.suffixes.keys()):
            count, known = files.get(suffix, 0), ledger.suffixes.get(suffix, 0)
            if count != known:
                self._counts_agree = False
                what = f"{suffix} files" if suffix else "files without a suffix"
                yield Difference(f"the source holds {count:,} {printable(what)}, of which packstore has seen {known:,}")
        # A row of a table is only sure to be a sample if nothing of the source was left out.
        whole = self.source.kind == "parquet" and self.split is None and not ledger.left
        if whole and rows not in (None, self.survey.records):
            self._counts_agree = False
            yield Difference(f"the tables have {rows:,} rows, of which packstore has seen {self.survey.records:,}")

    @property
    def ledger_summary(self) -> str | None:
        """Text with the numbers of files in the source and of files left out. None for a source without files.

        Says if other files are left out than at packing. After :meth:`compare_summaries`, also says if an independent
        count agrees.
        """
        then, now = self.manifest.origin.files, self.survey.ledger
        if not now.total:
            return None
        left = now.count(Role.LEFT)
        summary = f"{now.total:,} files in the source, {left:,} of them left out"
        changed = then is not None and self.split is None and then.others != now.others
        if self._counts_agree:
            summary += "; an independent count agrees"
        if then is not None and changed:
            others = "others" if then.left == left else f"{then.left:,}"
            summary += f" (when it was packed, {others} were left out)"
        return summary

    def has_same_shards(self) -> bool:
        """Returns whether the source is a store with the same splits and the same shards.

        Compares the shards' SHA-256 in the two manifests and opens no shard. False if the store was packed from one
        split.
        """
        other, own = self.survey.store, self.manifest
        if other is None or self.split is not None or other.shards is None or own.shards is None:
            return False
        # Equal digests prove equal records, so no shard has to be opened.
        digests = own.shards.table["digest"], other.shards.table["digest"]
        return np.array_equal(*digests) and own.splits == other.splits

    def _compare_columns(self) -> Iterator[Difference]:
        """Yields missing columns, and columns whose classes differ from those of the source."""
        for column in self.survey.columns:
            if not self.manifest.has_column(column.name):
                yield Difference(f"the source has a column {column.name!r}, the store does not")
            elif self.manifest.column(column.name).classes != column.classes:
                yield Difference(f"the classes of {column.name!r} differ from the source's")
        if self.manifest.has_column("label") and not self.survey.columns:
            yield Difference(
                "the store has labels, the source has none: say what they were packed from with --labels CSV"
            )

    def _hash_keys(self) -> NDArray[np.uint64]:
        """Returns the hash of each record's key, or 0 if it cannot be read, which other checks report."""
        hashes = np.zeros(len(self.reader), np.uint64)
        self._seen[:] = True
        for file in open_files(self.reader):
            # Records of shards that do not open stay marked as seen: nothing reads them.
            self._seen[file.start : file.start + len(file.reader)] = False
            with suppress(StoreError):
                keys = file.reader.ragged_column("key")
                for i in range(len(file.reader)):
                    with suppress(StoreError):
                        hashes[file.start + i] = xxh3_64_intdigest(keys[i])
        return hashes

    def _batch_entries(self) -> Iterator[list[Entry]]:
        """Yields the source's entries in batches, without those that packing skipped."""
        with reading_source(self.source):
            entries = self.source.fetch(self.list_entries())
            while batch := list(islice(entries, COMPARED_RECORDS)):
                yield batch

    def _compare_record(self, record: int, entry: Entry, stored: Buffer, value_of: ValueGetter) -> Iterator[str]:
        """Yields a text for each difference of a record from its entry: labels, split, other values, image."""
        try:
            for column, value in zip(self.survey.labels, entry.labels, strict=True):
                # Columns that the store lacks were reported once, for the whole store.
                own = int(value_of(column.name, record)) if column.name in self.labels else value
                if own != value:
                    yield f"{column.name} is {own}, in the source {value}"
        except StoreError as error:
            yield f"cannot be compared: {error}"
            return
        split = self.splits.get(entry.split)
        if (self.splits or entry.split) and (split is None or not split.start <= record < split.stop):
            yield f"not in split {printable(entry.split)!r}, where the source has it"
        try:
            content = self.source.read(entry)
        except PackstoreError as error:
            yield f"cannot be compared, since the source's sample cannot be read: {error}"
            return
        try:
            yield from self._compare_values(record, self.convert_sample(entry.key, content), value_of)
            image = content.image if isinstance(content, Sample) else content
            # Fixed shapes are in the manifest, others in this column.
            shape = value_of("shape", record) if self.manifest.has_column("shape") else None
            difference = self.encoder.compare(entry.key, image, stored, shape)
        except PackstoreError as error:
            difference = f"cannot be compared: {error}"
        if difference is not None:
            yield difference

    def _compare_values(self, record: int, values: Mapping[str, Any], value_of: ValueGetter) -> Iterator[str]:
        """Yields a text for each column of the store whose value differs from ``values``."""
        for name, value in values.items():
            column = self.manifest.column(name) if name in self.labels else None
            if column is None:
                continue
            own = value_of(name, record)
            wanted = value if column.kind == "ragged" else np.asarray(value, NUMPY_DTYPE[column.dtype]).tobytes()
            if (own if column.kind == "ragged" else own.tobytes()) != wanted:
                yield f"its {name} differs from the source's"


def count_independently(path: Path) -> dict[str, int]:
    """Counts the files at ``path`` by suffix (see :func:`suffix_of`), or the files in an archive at ``path``.

    Outside archives also counts the rows of Parquet and HDF5 files, under :data:`ROWS`. For a tar inside a tar, counts
    its content instead. Counts a name that occurs twice in an archive once. Memory is 8 bytes an entry; for zip, some
    600 bytes in :mod:`zipfile`.

    Raises :class:`SourceError` if a library finds damage.
    """
    try:
        if path.is_dir():
            return _count_files(_walk_files(path))
        if path.suffix.lower() != _NOT_AN_ARCHIVE and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return _count_paths_by_suffix(info.filename for info in archive.infolist() if not info.is_dir())
        if _is_tar(path):
            with _open_decompressed(path) as stream:
                return _count_paths_by_suffix(_list_tar_names(stream, ""))
        return _count_files([path])
    except _FAULTS as error:
        raise SourceError(f"{printable(str(path))} cannot be counted: {printable(str(error))}") from None


def suffix_of(name: str) -> str:
    """Returns the last suffix in lower case with its dot, or ``""`` without one.

    A hidden name such as ``.x``, a number, and more than 12 characters are no suffix.
    """
    stem, _, suffix = posixpath.basename(name).rpartition(".")
    return f".{suffix.lower()}" if stem and 0 < len(suffix) <= _LONGEST_SUFFIX and not suffix.isdigit() else ""


def _walk_files(path: Path) -> Iterator[Path]:
    """Yields all files below a folder; follows links, but not to a folder that contains the link."""
    for folder, inside, names in os.walk(path, followlinks=True):
        here = Path(folder)
        inside[:] = [
            name
            for name in inside
            if not ((here / name).is_symlink() and here.resolve().is_relative_to((here / name).resolve()))
        ]
        yield from (here / name for name in names)


def _count_files(files: Iterable[Path]) -> dict[str, int]:
    """Counts files by suffix, and the rows of Parquet and HDF5 files, see :data:`ROWS`."""
    counts: Counter[str] = Counter()
    for file in files:
        suffix = suffix_of(file.name)
        counts[suffix] += 1
        if suffix in _TABLES:
            counts[ROWS] += int(importlib.import_module("pyarrow.parquet").read_metadata(file).num_rows)
        elif suffix in _ARRAYS:
            counts.update(_count_array_rows(file))
    return dict(counts)


def _count_paths_by_suffix(names: Iterable[str]) -> dict[str, int]:
    """Counts paths by suffix; counts equal paths once."""
    hashes: defaultdict[str, array[int]] = defaultdict(lambda: array("Q"))
    for name in names:
        # A later member of an archive replaces an earlier one with the same path.
        plain = posixpath.normpath(f"/{name}").lstrip("/")
        hashes[suffix_of(plain)].append(xxhash.xxh3_64_intdigest(plain.encode("utf-8", "surrogateescape")))
    return {suffix: len(np.unique(np.frombuffer(some, np.uint64))) for suffix, some in hashes.items()}


def _list_tar_names(stream: IO[bytes] | Any, folder: str) -> Iterator[str]:
    """Yields the file names in a tar, prefixed by ``folder``; for a tar inside it, the names in that."""
    with tarfile.open(
        fileobj=stream, mode="r|", ignore_zeros=True, encoding="utf-8", errors="surrogateescape"
    ) as archive:
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined] # else it keeps all of them in memory
            # ImageNet's training set is a tar of tars.
            if member.isreg() and not member.issparse() and not folder and member.name.endswith(".tar"):
                yield from _list_tar_names(archive.extractfile(member), f"{member.name[:-4]}/")
            elif not member.isdir():
                yield folder + member.name


def _is_tar(path: Path) -> bool:
    """Tells if a file is a tar, plain or compressed."""
    with _open_decompressed(path) as stream:
        try:
            return stream.read(tarfile.BLOCKSIZE)[257:262] == b"ustar"
        except _FAULTS:
            return False


@contextmanager
def _open_decompressed(path: Path) -> Iterator[IO[bytes] | Any]:
    """Opens a file for reading; decompresses gzip, bzip2, xz and zstandard."""
    with ExitStack() as opened:
        file: Any = opened.enter_context(path.open("rb"))
        start = file.peek(6)[:6]
        if start.startswith(b"\x1f\x8b"):
            file = opened.enter_context(gzip.GzipFile(fileobj=file))
        elif start.startswith(b"BZh"):
            file = opened.enter_context(bz2.BZ2File(file))
        elif start.startswith(b"\xfd7zXZ\0"):
            file = opened.enter_context(lzma.LZMAFile(file))
        elif start.startswith(_ZSTANDARD):
            import zstandard

            file = opened.enter_context(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
        yield file


def _count_array_rows(file: Path) -> dict[str, int]:
    """Returns the first dimension of each dataset of an HDF5 file, by :data:`ROWS`, a colon and its name."""
    import h5py

    counts: dict[str, int] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.shape:
            counts[f"{ROWS}:{name}"] = int(item.shape[0])

    with h5py.File(file, "r", locking=False) as opened:
        opened.visititems(visit)
    return counts
