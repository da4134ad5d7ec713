"""The manifest: the JSON that describes a store, as frozen dataclasses that read and write it.

Every store has exactly one manifest; a sharded store also has one for each shard. Its size does not depend on the
number of records: opening a store takes milliseconds. It is written as canonical JSON (sorted keys, no spaces, ASCII).
Its field ``digest`` is the SHA-256 of all other fields.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from packstore.core.columns import (
    CHECKSUM,
    DERIVED,
    ITEM_SIZE,
    KEY,
    LINK_COLUMNS,
    MAX_ARRAY_BYTES,
    ROW_CHECKSUM,
    SEEK_INDEX,
    check,
)
from packstore.core.columns import Column as Column
from packstore.core.errors import ManifestError
from packstore.core.modes import MAX_CHANNELS
from packstore.core.plainjson import build_unique_dict, encode_with_digest, from_plain, load_json, sha256_json, to_plain
from packstore.core.registry import ENCODINGS, FORMATS
from packstore.core.shards import MAX_RECORDS, RECORDS_DIGEST, ShardTable

FORMAT_VERSION = 2
"""Version of the store layouts; the only one that this version writes and reads."""

_ENCODING_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_MAX_COLUMNS = 1000
MAX_JSON_BYTES = 64 << 20
"""Most bytes of a manifest. A thousand class names take about 30 KB, a skipped file takes about 100 bytes."""
_FORMER_ENCODING = "seekable"  # JPEG files rewritten by packstore 0.1; they are read like other files
_MAX_JSON_VALUES = 4_000_000
"""Most values in a manifest; each takes up to about 100 bytes of memory."""


def _is_finite(number: float) -> bool:
    """Tells if a number is finite and not too large for a float."""
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer that is too large for a float
        return False


@dataclass(frozen=True, slots=True)
class Split:
    """A named, contiguous range of records: ``start`` to ``stop - 1``.

    Raises :class:`ManifestError` for an empty name or an impossible range.
    """

    name: str
    start: int
    stop: int

    def __post_init__(self) -> None:
        check(self.name != "", "split name", self.name)
        check(0 <= self.start <= self.stop, "split range", (self.start, self.stop))

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Normalization:
    """Mean and standard deviation of each channel, for pixels scaled to 0 … 1.

    - Pixels of 8 bits become ``(x / 255 - mean) / std``.
    - Pixels of 16 bits become ``(x / 65535 - mean) / std``.
    - Pixels without an upper bound are not scaled: ``(x - mean) / std``.

    Raises :class:`ManifestError` for values that are not finite, deviations that are not positive, different lengths,
    no or too many channels, and if black or white would become infinite.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("mean", "std"):  # lists are accepted, too
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check(0 < len(self.mean) <= MAX_CHANNELS and all(map(_is_finite, self.mean)), "mean", self.mean)
        alike = len(self.std) == len(self.mean)
        check(alike and all(_is_finite(s) and s > 0 for s in self.std), "std", self.std)
        # Normalised black and white must be finite, too.
        extremes = [((x - m) / s) for m, s in zip(self.mean, self.std, strict=True) for x in (0.0, 1.0)]
        check(all(map(_is_finite, extremes)), "mean and std", (self.mean, self.std))


NORMALIZATIONS = {
    "imagenet": Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": Normalization((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": Normalization((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
"""The usual mean and standard deviation of well-known training sets."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that the conversion left out, and the reason."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class FileCounts:
    """Numbers of a source's files by role (packed, read, left), and digests of their names.

    Attributes:
        packed: Number of files whose content is packed.
        annotation: Number of files read for annotations.
        evidence: Number of class lists, cards and the like.
        left: Number of files that are not kept.
        used: Digest of names and roles of all files except the left ones.
        others: Digest of the names of the left files.
    """

    packed: int
    annotation: int
    evidence: int
    left: int
    used: str
    others: str


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of the records.

    Attributes:
        kind: Kind of the source: ``imagefolder``, ``flat``, ``cifar10``, ``cifar100``, ``store``.
        name: Base name of the source (not its full path, so that equal sources give equal stores).
        ignored: Number of files, and of members of files, that were not used.
        digest: Dataset digest of a store as the source; else None.
        files: The source's ledger; None if it has no files of its own, and in stores of packstore before 0.2.
    """

    kind: str
    name: str
    ignored: int = 0
    digest: str | None = None
    files: FileCounts | None = field(default=None, metadata={"optional": True})


@dataclass(frozen=True, repr=False)  # without slots, so that its digests can be kept
class Manifest:
    """Description of a store. Raises :class:`ManifestError` for values that are impossible or contradict each other.

    Attributes:
        format: Name of the container's format: ``lmdb``, ``hdf5``, ``pth`` or a plug-in's.
        encoding: Encoding of the images: a name of :data:`packstore.core.registry.ENCODINGS`, or of a plug-in. Reading
            does not need the plug-in, since the image column describes the stored form.
        records: Number of records.
        columns: All columns, ``image`` first.
        splits: Splits that together cover all records in order; empty if the source has none.
        normalization: Normalisation applied at packing, for floating point encodings; else None.
        options: The conversion's options that shaped the records, as JSON scalars.
        origin: The source of the records.
        versions: Versions of the software that wrote the store.
        skipped: Samples left out by ``on_error="skip"``.
        records_digest: Digest of all records in order, see :func:`packstore.core.proof.records_digest`.
        shards: Table of the files of a sharded store; None if the store is one file.
        format_version: Version of the layout.
    """

    format: str
    encoding: str
    records: int
    columns: tuple[Column, ...]
    origin: Origin
    splits: tuple[Split, ...] = ()
    normalization: Normalization | None = None
    options: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    records_digest: str = "0" * 32
    shards: ShardTable | None = None
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        check(self.format in FORMATS, "format", self.format)
        check(_ENCODING_NAME.fullmatch(self.encoding) is not None, "encoding", self.encoding)
        check(0 <= self.records <= MAX_RECORDS, "number of records", self.records)
        names = [c.name for c in self.columns]
        check(len(names) <= _MAX_COLUMNS, "number of columns", len(names))
        check(len(set(names)) == len(names), "column names", names)
        check(bool(names) and names[0] == "image" and {"key", "checksum"} <= set(names), "column names", names)
        _check_columns(self.encoding, {c.name: c for c in self.columns})
        normalized = self.normalization is not None
        check(not normalized or self.holds_floats, "normalization of the encoding", self.encoding)
        if self.normalization is not None:
            check(len(self.normalization.mean) == self.image.pixels.channels, "mean", self.normalization.mean)
        for column in self.columns:
            if column.kind == "fixed":
                largest = math.prod(max(n, 1) for n in column.shape) * ITEM_SIZE[column.dtype] * max(self.records, 1)
                check(largest < MAX_ARRAY_BYTES, f"size of {column.name}", column.shape)
                check(column.nbytes == column.record_nbytes * self.records, f"size of {column.name}", column.nbytes)
        check(len({s.name for s in self.splits}) == len(self.splits), "split names", self.splits)
        edges = [0, *(s.stop for s in self.splits)]
        check(all(s.start == e for s, e in zip(self.splits, edges, strict=False)), "split ranges", self.splits)
        check(not self.splits or edges[-1] == self.records, "split ranges", self.splits)
        check(RECORDS_DIGEST.fullmatch(self.records_digest) is not None, "records digest", self.records_digest)
        if self.shards is not None and self.shards.rows is not None:
            found = int(self.shards.starts[-1]), int(self.shards.rows["image_nbytes"].sum())
            check(found == (self.records, self.image.nbytes), "table of shards: records and bytes of images", found)

    def __repr__(self) -> str:
        classes = "" if self.classes is None else f", {len(self.classes):,} classes"
        shards = f" in {len(self.shards):,} shards" if self.shards else ""
        return f"<Manifest: {self.records:,} records, {self.encoding} in {self.format}{shards}{classes}>"

    def column(self, name: str) -> Column:
        """Returns the column with this name. Raises :class:`KeyError` for an unknown name; the message lists the
        columns."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"no column {name!r}; columns: {', '.join(c.name for c in self.columns)}")

    def blank(self, columns: Iterable[Column] | None = None) -> Manifest:
        """Returns the manifest of a store without records that has this one's facts, and these or its own columns."""
        chosen = self.columns if columns is None else columns
        blank = tuple(column.blank() for column in chosen)
        facts = {name: getattr(self, name) for name in ("normalization", "options", "versions")}
        return Manifest(self.format, self.encoding, 0, blank, self.origin, **facts)

    def has_column(self, name: str) -> bool:
        """Tells if there is a column of this name."""
        return any(c.name == name for c in self.columns)

    @property
    def image(self) -> Column:
        """Column of the main image."""
        return self.columns[0]

    @property
    def image_bytes(self) -> int:
        """Bytes of all images: of the main column and of further ones, but not of masks."""
        return self.image.nbytes + sum(column.nbytes for column in self.columns[1:] if column.holds_images)

    @property
    def holds_files(self) -> bool:
        """True if images are stored as files and not as arrays."""
        return self.image.layout is None

    @property
    def mean_nbytes(self) -> int:
        """Mean bytes of a record in all columns; at least 1."""
        return max(1, sum(column.nbytes for column in self.columns) // max(1, self.records))

    @property
    def is_linked(self) -> bool:
        """True if the store links to images in other files, see :mod:`packstore.stores.linked`."""
        return any(column.name == LINK_COLUMNS[0].name for column in self.columns)

    @cached_property
    def container_columns(self) -> tuple[Column, ...]:
        """Columns as the container holds them. In a linked store the image column has no bytes."""
        return (replace(self.image, nbytes=0), *self.columns[1:]) if self.is_linked else self.columns

    @property
    def shard_table(self) -> ShardTable:
        """:attr:`shards` of a store that is known to be sharded."""
        assert self.shards is not None
        return self.shards

    @property
    def holds_floats(self) -> bool:
        """True if images are stored as ``CHW`` arrays of normalised floating point values."""
        return self.image.layout == "CHW"

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names of the column ``label``. None without such a column, or if its classes have no names."""
        return self.column("label").classes if self.has_column("label") else None

    @property
    def has_label(self) -> bool:
        """True if the column ``label`` has one class a record. False without it, and if it has lists of classes or
        text."""
        return any(column.name == "label" and column.holds_class for column in self.columns)

    @property
    def ranges(self) -> list[tuple[str, int, int]]:
        """Name, first record and end of each split; all records under the name ``""`` without splits."""
        return [(split.name, split.start, split.stop) for split in self.splits] or [("", 0, self.records)]

    def split(self, name: str) -> Split:
        """Returns the split with this name. Raises :class:`KeyError` for an unknown name; the message lists the
        splits."""
        for split in self.splits:
            if split.name == name:
                return split
        raise KeyError(f"no split {name!r}; splits: {', '.join(s.name for s in self.splits) or 'none'}")

    @cached_property
    def dataset_digest(self) -> str:
        """SHA-256 of the dataset: encoding, columns, splits, normalisation and the digest of the records.

        Container, sharding, seek index and links do not change it: equal datasets in two formats have equal digests.
        """
        d = to_plain(self)
        names = ("encoding", "records", "splits", "normalization", "records_digest")
        columns = [
            # What follows from container, links or seek index is left out, so that equal datasets have equal digests.
            {k: v for k, v in column.items() if k not in ("nbytes", "digest", "frame", "hides_boxes")}
            for column in d["columns"]
            if column["name"] not in DERIVED
        ]
        return sha256_json({k: d[k] for k in names} | {"columns": columns})

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the manifest. Its JSON has it in the field ``digest``."""
        return sha256_json(to_plain(self))

    def to_json(self) -> str:
        """Formats the manifest as canonical JSON, with the digest of all other fields in ``digest``.

        Raises :class:`ManifestError` if the text exceeds 64 MiB.
        """
        text = encode_with_digest(to_plain(self)).decode("ascii")
        if len(text) > MAX_JSON_BYTES:
            raise ManifestError(f"the manifest would have {len(text)} bytes, more than {MAX_JSON_BYTES}")
        return text

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """Parses JSON and checks its digest and values. Reads the encoding ``seekable`` of packstore 0.1 as
        ``original`` or ``jpeg``.

        Raises :class:`ManifestError` for text that :meth:`to_json` cannot have written, and for a newer or older
        layout. Memory is bounded: some 500 MB for the worst hostile input.
        """
        if len(text) > MAX_JSON_BYTES:
            raise ManifestError(f"the manifest has {len(text)} bytes, more than {MAX_JSON_BYTES}")
        raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        # Two bytes of a hostile text may take a hundred in memory.
        separators = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
        if separators > _MAX_JSON_VALUES:
            raise ManifestError(f"the manifest has more than {_MAX_JSON_VALUES} values")
        try:
            plain = load_json(text, "is not JSON", object_pairs_hook=build_unique_dict)
        except ValueError as error:
            raise ManifestError(f"the manifest {error}") from None
        if not isinstance(plain, dict):
            raise ManifestError(f"the manifest is not a JSON object but {type(plain).__name__}")
        version = plain.get("format_version")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise ManifestError(f"the manifest has no valid format_version: {version!r}")
        if version > FORMAT_VERSION:
            raise ManifestError(
                f"the store has format version {version}, this packstore reads up to {FORMAT_VERSION}: "
                "upgrade packstore"
            )
        if version < FORMAT_VERSION:
            raise ManifestError(f"the store has layout {version}, written by an older packstore; pack it again")
        digest = plain.pop("digest", None)
        try:
            # Canonical text is hashed directly; other text is converted to the canonical form first.
            rest = raw.rstrip().replace(f'"digest":"{digest}",'.encode("ascii", "replace"), b"", 1)
            found = digest if hashlib.sha256(rest).hexdigest() == digest else sha256_json(plain)
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"the manifest cannot be read: {error}") from None
        if digest != found:
            raise ManifestError(f"the manifest is damaged: its SHA-256 is {found}, expected {digest!r}")
        if plain.get("encoding") == _FORMER_ENCODING:
            plain = _replace_former_encoding(plain)
        manifest = from_plain(cls, plain, "manifest")
        manifest.__dict__["digest"] = digest  # computing it again would take half the time of opening a shard
        return manifest


def _replace_former_encoding(plain: dict[str, Any]) -> dict[str, Any]:
    """Returns a manifest's JSON with ``jpeg`` or ``original`` instead of ``seekable``, which only packstore 0.1
    wrote."""
    options = plain.get("options")
    if not isinstance(options, dict):
        return plain
    resized = any(options.get(name) is not None for name in ("size", "resize", "max_side"))
    # Files that were not resized have the quality of the source.
    gone = ("not_seekable",) if resized else ("not_seekable", "quality")
    kept = {name: value for name, value in options.items() if name not in gone}
    return plain | {"encoding": "jpeg" if resized else "original", "options": kept}


def _check_columns(encoding: str, columns: Mapping[str, Column]) -> None:
    """Raises :class:`ManifestError` for columns that do not fit the encoding or each other."""
    image = columns["image"]
    good = image.holds_one_image
    if encoding in ENCODINGS.built_in:  # those that hold arrays have the names of their dtypes
        arrays = image.layout is not None
        good = good and arrays == (encoding in ITEM_SIZE) and (not arrays or image.dtype == encoding)
    check(good, f"image column for the encoding {encoding}", image)
    for known in (KEY, CHECKSUM, ROW_CHECKSUM, SEEK_INDEX, *LINK_COLUMNS):
        found = columns.get(known.name, known)
        check(found.declaration == known.declaration, f"column {known.name!r}", found)
    linked = sum(column.name in columns for column in LINK_COLUMNS)
    check(linked in (0, len(LINK_COLUMNS)), "number of columns of links", linked)
    check(not linked or (image.layout is None and encoding == "original"), "encoding of a linked store", encoding)
    for column in columns.values():
        for needed in column.companions:
            there = columns.get(needed.name)
            good = there is not None and there.declaration == needed.declaration
            check(good, f"{needed.name!r} column, which {column.name!r} needs", there)
        if column.parallel is not None:
            objects = columns.get(column.parallel)
            good = objects is not None and objects.traits.rows_are_objects
            check(good, f"column of boxes for {column.name!r}", column.parallel)
            assert objects is not None
            rows = column.nbytes // column.record_nbytes, objects.nbytes // objects.record_nbytes
            same = column.traits.is_object or rows[0] == rows[1]  # rows of objects have no fixed size
            check(same, f"number of rows of {column.name!r} and {objects.name!r}", rows)
