"""Base of sources whose samples are rows: an image and other values by name, read by a reference.

Most foreign formats are such sources: a kind yields the rows of each split and reads the values of one; this module
counts rows, declares columns and checks values. Images of rows may be files of a folder or an archive.
"""

from __future__ import annotations

import errno
import marshal
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import xxhash

from packstore.core.columns import CROWD
from packstore.core.errors import SampleError, SourceError, UsageError, printable
from packstore.core.fields import Field, Labels
from packstore.core.files import Location
from packstore.core.manifest import Column, Manifest
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.images.sniff import HeaderError, max_file_bytes
from packstore.sources.archives import open_required_tree
from packstore.sources.base import Entry, Sample, Source, SourceOptions, Survey, round_up_size, stamp_files
from packstore.sources.beside import join, raise_suffix
from packstore.sources.encodings import is_text, to_utf8
from packstore.sources.ledger import Claims, Role, list_files
from packstore.sources.listing import IMAGE_SUFFIXES, Listing, key_size
from packstore.sources.schema import FieldError, Schema, make_schema
from packstore.sources.splits import SPLIT_ORDER, UNASSIGNED
from packstore.sources.tree import FileStat

PROBED = 16
"""Number of rows of each split that are read to tell files from pixels."""
_REPORT_EVERY = 5000
_NO_SIZES: Mapping[str, int] = MappingProxyType({})
# Names of files that list classes or describe the data set, but no single image.
_EVIDENCE = re.compile(
    r"(readme.*|licen[cs]e.*|.*class(es)?(_?names?)?[.]txt|.*[.]names|.*[.]data|data[.]ya?ml|wnids[.]txt|words[.]txt|"
    r".*synset.*|dataset_infos?[.]json)",
    re.I,
)


class Row(NamedTuple):
    """Sample that has not been read yet.

    Attributes:
        key: Unique in the source.
        ref: Reference for :meth:`RowSource.read_values`: plain values, valid for any opening of the same source.
        size_bytes: Size of the main image in the source.
        value_bytes: Estimated bytes of the other values.
        modified_ns: Latest time of modification of its files.
        changed_ns: Latest time of change of its files.
        sizes: Bytes of the other values that are files, by name.
    """

    key: str
    ref: Any
    size_bytes: int
    value_bytes: int = 0
    modified_ns: int = 0
    changed_ns: int = 0
    sizes: Mapping[str, int] = _NO_SIZES


class RecordForm(NamedTuple):
    """Form of the records that rows become. The fields have the meanings of :class:`packstore.sources.base.Survey`."""

    columns: tuple[Column, ...]
    encoding: str
    mode: str | None
    shape: tuple[int, ...] | None
    store: Manifest | None


class RowSource(Source):
    """Source whose samples are rows. Its columns come from the declared fields and the first 16 rows of each split.

    Attributes:
        shape: ``(H, W, 3)`` if all main images are arrays of one shape, else None.
    """

    shape: tuple[int, ...] | None = None

    @abstractmethod
    def splits(self) -> Sequence[str]:
        """Returns the names of the splits in packing order, see :func:`in_packing_order`; ``("",)`` in a source
        without splits. Beside other names, rows of ``""`` get the split :data:`UNASSIGNED`."""

    @abstractmethod
    def fields(self) -> Mapping[str, Field]:
        """Returns the field of each value by name, in order, the main image included. The schema calls it once."""

    def notes(self) -> tuple[str, ...]:
        """Returns facts for :attr:`Survey.notes`; none in this base."""
        return ()

    @abstractmethod
    def rows(self, split: str) -> Iterator[Row]:
        """Yields the rows of a split, lazily, the same at each call."""

    @abstractmethod
    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads the values of a row by the names of :meth:`fields`. Values need not have the stored form of their
        columns. Missing values are left out or None. May contain
        :data:`~packstore.sources.schema.RELATIVE`. Thread-safe. Raises :class:`SampleError`, :class:`ValueError` or
        :class:`OSError` for a row that cannot be read."""

    def files(self) -> Iterable[Path]:
        """Returns the files of the source: in this base, its path alone. :meth:`stamp` changes when one of these files
        changes."""
        return (self.path,)

    def claim_row(self, claims: Claims, row: Row) -> None:
        """Claims the row's own files; none in this base."""

    def claim_files(self, claims: Claims) -> None:
        """Claims :meth:`files` as packed."""
        self.claim_paths(claims, self.files())

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Counts the rows of one split, or of all, and their bytes. Claims their files, and takes the columns from the
        schema. Raises :class:`SourceError` if there are no rows, and :class:`NotInSourceError` for an unknown
        split."""
        splits = dict.fromkeys(self._choose_splits(split), 0)
        total = size_bytes = key_bytes = value_bytes = 0
        size_counts: Counter[int] = Counter()
        sizes: Counter[str] = Counter()
        claims = Claims()
        for name in splits:
            before = total
            for row in self._yield_rows(_row_split(name)):
                self.claim_row(claims, row)
                key, _, size, further, _, _, files = row
                total += 1
                size_bytes += size
                value_bytes += further
                if files:
                    sizes.update(files)
                size_counts[round_up_size(size)] += 1
                key_bytes += key_size(key)
                if total % _REPORT_EVERY == 0:
                    progress(Progress("scan", total, None, size_bytes))
            splits[name] = total - before
        if not total:
            raise SourceError(f"{printable(str(self.path))} holds no samples, so there is nothing to pack")
        progress(Progress("scan", total, total, size_bytes))
        form = self._record_form()
        notes = self.notes()
        if rest := splits.get(UNASSIGNED):
            notes = (*notes, f"{rest:,} of the samples have no split, unlike the others: it is {UNASSIGNED}")
        return Survey(
            splits=splits,
            **form._asdict(),
            size_bytes=size_bytes,
            size_counts=size_counts,
            key_bytes=key_bytes,
            sampled=frozenset(column.name for column in form.columns),
            value_bytes=value_bytes,
            further_bytes=sum(sizes[column.name] for column in form.columns if column.holds_images),
            ledger=self.ledger(claims, split),
            notes=notes,
        )

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """Yields an entry for each row of one split, or of all."""
        return chain.from_iterable(map(self._make_entries, self._choose_splits(split)))

    def read(self, entry: Entry) -> Sample:
        """Reads a sample by :meth:`read_sample`. Converts its :class:`OSError` and :class:`ValueError` to
        :class:`SampleError` with the entry's key."""
        try:
            return self.read_sample(entry)
        except (OSError, ValueError) as error:
            raise SampleError(entry.key, printable(str(error))) from error

    def locate(self, entry: Entry) -> Location | None:
        """Locates the main image by :meth:`locate_row`; None if its place is unknown."""
        return self.locate_row(entry.ref)

    def locate_row(self, ref: Any) -> Location | None:
        """Locates the main image of a row, see :meth:`Source.locate`. This base returns None: no place is known."""
        return None

    def stamp(self) -> str:
        """Returns size and times of all :meth:`files`. Raises :class:`SourceError` if one is missing."""
        return stamp_files(self.files())

    @cached_property
    def schema(self) -> Schema:
        """Schema that converts rows to records. Made once, from the fields and the first 16 rows of each split, without
        rows that cannot be read. Raises :class:`SourceError` if fields and rows do not fit each other."""
        declared = self._with_crowds(self.fields())
        probes = chain.from_iterable(islice(self.rows(split), PROBED) for split in self.splits())
        samples = []
        for row in probes:
            with suppress(OSError, ValueError, SampleError):  # reported when it is read
                samples.append(self._read_declared_values(row.ref))
        try:
            return make_schema(samples or [{}], declared, picks=False, max_pixels=self.options.max_pixels)
        except UsageError as error:  # the user declared nothing: the source is not of this kind
            raise SourceError(f"{printable(str(self.path))}: {error}") from error

    def _with_crowds(self, fields: Mapping[str, Field]) -> dict[str, Field]:
        """Adds the column of crowd regions behind the labels, or removes it, as the option ``crowds`` says."""
        kept = {name: field for name, field in fields.items() if name != CROWD or self.options.crowds is not False}
        if self.options.crowds is not True or CROWD in kept or "boxes" not in kept:
            return kept
        place = [*kept].index("labels" if "labels" in kept else "boxes") + 1
        pairs = [*kept.items()]
        return dict([*pairs[:place], (CROWD, Labels(of="boxes", optional=True)), *pairs[place:]])

    def _read_declared_values(self, ref: Any) -> dict[str, Any]:
        """Reads the values of a row, with flags of crowd regions as the option ``crowds`` says."""
        values = dict(self.read_values(ref))
        if self.options.crowds is False:
            values.pop(CROWD, None)
        elif self.options.crowds and values.get("boxes") is not None:
            values.setdefault(CROWD, [0] * len(values["boxes"]))
        return values

    def _choose_splits(self, split: str | None) -> Sequence[str]:
        """Returns the name of one split, or the names of all for None."""
        splits = self.splits()
        if len(splits) > 1 and "" in splits:
            splits = [*filter(None, splits), UNASSIGNED]
        if split is None:
            return splits
        # A lower-case split may be given in upper case.
        name = split if split in splits else split.lower()
        if name not in splits or not name:
            raise self.unknown_split_error(split, splits)
        return (name,)

    def _make_entries(self, split: str) -> Iterator[Entry]:
        """Makes an entry for each row of a split."""
        for key, ref, size, _, modified, changed, _ in self._yield_rows(_row_split(split)):
            yield Entry(key, split, (), size, ref, modified, changed)

    def _yield_rows(self, split: str) -> Iterator[Row]:
        """Yields the rows of a split with the keys of their records: the rows' own keys in this base."""
        return self.rows(split)

    def read_sample(self, entry: Entry) -> Sample:
        """Reads a row, and converts it to a sample by the schema. Raises the errors of :meth:`read_values`. Raises
        :class:`SampleError` for a row without an image, and :class:`ValueError` for a value that does not fit the
        schema."""
        values = self._read_declared_values(entry.ref)
        if values.get(self.schema.main) is None:
            raise SampleError(entry.key, "has no image")
        return self.schema.make_sample(entry.key, self.schema.assign_names(values))

    def _record_form(self) -> RecordForm:
        """Returns columns, encoding, mode and shape of the records, by the schema; no manifest."""
        return RecordForm(self.schema.columns, self.schema.encoding, self.schema.mode, self.shape, None)


def _row_split(split: str) -> str:
    """Returns ``""`` for :data:`UNASSIGNED`, and the name of any other split unchanged."""
    return "" if split == UNASSIGNED else split


def in_packing_order(splits: Iterable[str]) -> tuple[str, ...]:
    """Returns the different names of splits in packing order. First come names of :data:`SPLIT_ORDER`, whatever their
    case. Other names follow alphabetically."""
    places = {name: n for n, name in enumerate(SPLIT_ORDER)}
    return tuple(sorted(set(splits), key=lambda name: (places.get(name.lower(), len(places)), name)))


class FileRow(NamedTuple):
    """Row whose image is a file.

    Attributes:
        file: Path of the main image in the tree.
        values: The other values. A value that is a file is an :class:`InTree`. A value of several files is a list of
            :class:`InTree`.
        key: Key of the row; None for the path.
        is_folder: The row stands for all images below the folder ``file``, each with these values and no further files.
    """

    file: str
    values: Mapping[str, Any]
    key: str | None = None
    is_folder: bool = False


class InTree(NamedTuple):
    """Value that is the content of a file in the tree.

    Attributes:
        file: Path in the tree.
        optional: If the file is missing, so is the value; else the sample is bad.
        size_bytes: Size, set in the source's copy of the value; -1 before, and if the file is missing.
        modified_ns: Time of modification, set in the source's copy of the value.
    """

    file: str
    optional: bool = False
    size_bytes: int = -1
    modified_ns: int = 0


class TreeRowSource(RowSource):
    """Source whose rows are in files of a folder or an archive. Raises :class:`SourceError` for any other path.

    Attributes:
        tree: The folder or archive.
    """

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.tree = open_required_tree(path)
        self._max_bytes = max_file_bytes(options.max_pixels)

    @abstractmethod
    def describing_files(self) -> Iterable[str]:
        """Returns the files of the tree that describe images. :meth:`stamp` changes when one of these files changes."""

    def claim_files(self, claims: Claims) -> None:
        """Claims the describing files: class lists and the like as evidence, others as annotations."""
        for file in self.describing_files():
            claims.claim(file, Role.EVIDENCE if _EVIDENCE.fullmatch(file.rpartition("/")[2]) else Role.ANNOTATION)

    def list_all_files(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Lists the files of the folder or archive."""
        return list_files(self.tree)

    def _stat_inside(self, file: str) -> FileStat:
        """Returns size and times of a file that a list names."""
        if "\0" in file or (".." in file and ".." in file.split("/")):
            raise OSError(errno.EINVAL, "is not a path within the source")
        return self.tree.stat(file)

    def _stat_or_missing(self, file: str) -> FileStat:
        """Returns size and times of a file that a list names; the size is -1 if it is missing."""
        try:
            return self._stat_inside(file)
        except OSError:
            return FileStat(-1)

    def stamp(self) -> str:
        """Returns the stamp of the tree, and size and times of the describing files. Raises :class:`SourceError` if one
        is missing."""
        parts = [self.tree.stamp()]
        for file in self.describing_files():
            try:
                status = self.tree.stat(file)
            except OSError as error:
                raise SourceError(f"{self.tree.name(file)} cannot be reached: {error.strerror or error}") from None
            parts.append(f"{status.size}@{status.modified_ns}/{status.changed_ns}")
        return " ".join(filter(None, parts))

    def close(self) -> None:
        """Closes the tree, too."""
        super().close()
        self.tree.close()


class FileRowSource(TreeRowSource):
    """Source whose main images are files of a folder or an archive, with their paths as keys.

    A row with a missing file is a bad sample, unless the file is an optional value. Values that are texts are converted
    to UTF-8. If the file of a value is missing, the same name with its suffix in upper case is tried.

    Attributes:
        main: Name of the main image.
    """

    main = "image"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._repeated: dict[str, tuple[int, str]] = {}

    def notes(self) -> tuple[str, ...]:
        """Returns a note if :meth:`skip_repeated` skipped rows."""
        count = sum(count for count, _ in self._repeated.values())
        if not count:
            return ()
        first = next(first for count, first in self._repeated.values() if count)
        lines = f"{count:,} line{'s' * (count > 1)}"
        return (f"the lists repeat {lines}, such as {printable(first)}; each image is packed once",)

    def skip_repeated(self, split: str, rows: Iterable[FileRow]) -> Iterator[FileRow]:
        """Yields the rows of a split, equal ones once. Takes some 100 bytes of memory for each row."""
        seen: set[bytes] = set()
        count, first = 0, ""
        for row in rows:
            plain: Any = row[:]
            try:
                content = marshal.dumps(plain, 0)  # in half the time of repr
            except ValueError:  # a value of another type, such as InTree
                content = repr(row).encode("utf-8", "surrogatepass")
            digest = xxhash.xxh3_128_digest(content)
            if digest in seen:
                count, first = count + 1, first or row.file
                continue
            seen.add(digest)
            yield row
        self._repeated[split] = count, first

    @abstractmethod
    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split, lazily, the same at each call; their values are plain."""

    def rows(self, split: str) -> Iterator[Row]:
        """Yields the rows of :meth:`file_rows` with sizes of their files, and the latest of their times. Reading the
        row of a missing main image fails."""
        for row in self.file_rows(split):
            if row.is_folder:
                for folder, listing in self.tree.walk(row.file, self.tree.above, None, self.options.skip_bad):
                    yield from self._make_folder_rows(folder, listing, dict(row.values))
            else:
                yield self._make_sized_row(row)

    def _make_folder_rows(self, folder: str, listing: Listing, values: dict[str, Any]) -> Iterator[Row]:
        """Makes a row for each image in a listed folder, without asking for sizes and times again."""
        facts = zip(listing.images, listing.sizes, listing.modified, listing.changed, strict=True)
        for name, size, modified, changed in facts:
            file = join(folder, name)
            if size > 0:
                yield Row(file, (file, size, modified, values), size, 0, modified, changed)
            else:  # a broken link, a cycle
                yield self._make_sized_row(FileRow(file, values))

    def _make_sized_row(self, row: FileRow) -> Row:
        """Makes a row with sizes and times of its files."""
        file, values, key, _ = row
        key = file if key is None else key
        try:
            status = self._stat_inside(file)
        except OSError as error:
            return Row(key, (file, -1, 0, error.strerror or str(error)), 0)
        rest = dict(values)
        sizes: dict[str, int] = {}
        modified, changed = status.modified_ns, status.changed_ns
        for name, value in values.items():
            if type(value) in _FILES and (files := _list_files_of(value)):
                there = [self._stat_value(each) for each in files]
                filled = [each._replace(size_bytes=at.size, modified_ns=at.modified_ns) for each, at in there]
                rest[name] = filled[0] if isinstance(value, InTree) else filled
                sizes[name] = sum(max(0, at.size) for _, at in there)
                modified = max(modified, *(at.modified_ns for _, at in there))
                changed = max(changed, *(at.changed_ns for _, at in there))
        ref = (file, status.size, status.modified_ns, rest)
        return Row(key, ref, max(0, status.size), sum(sizes.values()), modified, changed, sizes)

    def _stat_value(self, value: InTree) -> tuple[InTree, FileStat]:
        """Returns a value that is a file, with the file's size (-1 if it is missing) and times."""
        status = self._stat_or_missing(value.file)
        if status.size >= 0:
            return value, status
        # ``a.png`` may be called ``a.PNG``.
        other = value._replace(file=raise_suffix(value.file))
        there = self._stat_or_missing(other.file)
        return (value, status) if there.size < 0 else (other, there)

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads the main image and all values that are files, texts as UTF-8; other values stay as they are. A missing
        optional file becomes None. Raises :class:`ValueError` for any other missing file, and :class:`SampleError` for
        a file that cannot be read."""
        file, size, modified, rest = ref
        if size < 0:
            raise ValueError(rest if isinstance(rest, str) else "is not a file")
        values = {name: self._read_value(value) for name, value in rest.items()}
        return {self.main: self.tree.read(file, size, modified, self._max_bytes), **values}

    def read_sample(self, entry: Entry) -> Sample:
        """Reads a sample, as the base does. For a bad value that was read from a file, raises :class:`ValueError` with
        the path of that file, and for any other value with that of its annotation."""
        try:
            return super().read_sample(entry)
        except FieldError as error:
            file = self.further_file_name(entry, error.field, error.item or 0)
            if file is None:
                raise
            # The message needs the bad file: the key is the path of the main image, which may be good.
            raise ValueError(f"{error.field}: its {printable(file)}: {error.reason}") from error

    def locate_row(self, ref: Any) -> Location | None:
        """Locates the file of the main image; None if it is compressed or at a URL."""
        return self.tree.locate(ref[0])

    def further_file_name(self, entry: Entry, column: str, number: int) -> str | None:
        """Returns the path of the file that has a value of the row: the value itself, or the row's annotation.
        Returns None for the main image, and if no such file is known.
        """
        *_, rest = entry.ref
        files = _list_files_of(rest.get(column)) if isinstance(rest, Mapping) else ()
        if number < len(files):
            return files[number].file
        return None if column == self.main else self.find_annotation_file(entry.ref) or None

    def find_annotation_file(self, ref: Any) -> str:
        """Returns the path of the file with the annotation of a row, for messages: here, its only file that is no
        image. Empty if there is none, and for several.
        """
        rest = ref[-1].values() if isinstance(ref[-1], Mapping) else ()
        files = [each.file for value in rest for each in _list_files_of(value) if each.size_bytes >= 0]
        texts = [file for file in files if not file.lower().endswith(IMAGE_SUFFIXES)]
        return texts[0] if len(texts) == 1 else ""

    @contextmanager
    def name_annotation_file(self, ref: Any) -> Iterator[None]:
        """Adds the path of the annotation of a row to each :class:`ValueError` in the block."""
        try:
            yield
        except ValueError as error:
            file = self.find_annotation_file(ref)
            if not file or isinstance(error.__cause__, HeaderError):  # which is of the image
                raise
            raise ValueError(f"its {printable(file)}: {error}") from error

    def claim_row(self, claims: Claims, row: Row) -> None:
        """Claims the row's files: images as packed, others as annotations. Skips missing files, and claims none if the
        main image is missing."""
        file, size, _, rest = row.ref
        if size >= 0:
            claims.claim(file)
            for each in chain.from_iterable(map(_list_files_of, rest.values())):
                if each.size_bytes >= 0:
                    picture = each.file.lower().endswith(IMAGE_SUFFIXES)
                    claims.claim(each.file, Role.PACKED if picture else Role.ANNOTATION)

    def _read_value(self, value: Any) -> Any:
        """Reads the file that a value names, or each file of a list; any other value stays."""
        if not isinstance(value, InTree):
            return [self._read_value(each) for each in value] if _list_files_of(value) else value
        if value.size_bytes >= 0:
            data = self.tree.read(value.file, value.size_bytes, value.modified_ns, self._max_bytes)
            try:
                return to_utf8(data, self.tree.encoding, self.tree.name(value.file)) if is_text(value.file) else data
            except SourceError as error:
                raise ValueError(str(error)) from None
        if value.optional:
            return None
        raise ValueError(f"its {printable(value.file)} is missing or is not a file")


_FILES = (InTree, list)


def _list_files_of(value: Any) -> Sequence[InTree]:
    """Returns the files that a value consists of; empty for a plain value."""
    if isinstance(value, InTree):
        return (value,)
    return value if isinstance(value, list) and value and isinstance(value[0], InTree) else ()
