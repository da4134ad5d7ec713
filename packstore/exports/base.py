"""The contract of an export: a store written in a foreign format, shard by shard.

A kind is one file with a subclass of :class:`Export`, and one line: in :data:`packstore.core.registry.EXPORTS`, or an
entry point of the group ``packstore.exports``. :class:`packstore.testing.ExportSuite` is this contract as tests. What
all kinds share (reading and proving records, resuming, publishing, the export manifest) is in :mod:`.run`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.column import INTERNAL, Column
from packstore.core.columns import from_rest
from packstore.core.errors import UsageError
from packstore.core.export_manifest import MANIFEST_FILE, ExportManifest
from packstore.core.files import open_file, sync_tree
from packstore.core.manifest import Manifest
from packstore.images.sniff import HeaderError, sniff
from packstore.stores.base import Reader

EXTENSIONS = {
    "jpeg": "jpg", "png": "png", "gif": "gif", "bmp": "bmp", "webp": "webp", "tiff": "tif", "pnm": "ppm",
    "avif": "avif", "heif": "heic",
}  # fmt: skip
"""The usual extension of a file by what :func:`packstore.images.sniff.sniff` calls it."""


BLOCK_BYTES = 4096
"""Disks give files whole blocks."""


@dataclass(frozen=True)
class Record:
    """A record to write, proven by its checksums.

    Attributes:
        number: In the store, from 0.
        key: Whole, as in the store; bytes that are not UTF-8 are surrogates.
        split: Name of its split; ``""`` in a store without splits.
        image: The bytes of an image file; or an array, ``(H, W, 3)`` uint8, or ``(3, H, W)`` floats as the store has
            them (bfloat16 as uint16 bit patterns).
        at_rest: Values of all other columns but the checksums, as they lie in the store.
        columns: By name, all columns of the store.
        kept: Names of columns that a writer adds because the format cannot hold just this value exactly: it goes into
            the record's line. Only for kinds whose records have lines, because :attr:`Export.keeps_keys` is False.
    """

    number: int
    key: str
    split: str
    image: bytes | NDArray[Any]
    at_rest: Mapping[str, Any]
    columns: Mapping[str, Column] = field(repr=False)
    kept: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> Any:
        """The value of a column, see :meth:`packstore.stores.Reader.item`; None where it has none."""
        column = self.columns[name]
        if not self.present(name):
            return None
        has_shape = column.kind == "ragged" and column.layout is not None
        shape = tuple(self.at_rest[column.shape_name].tolist()) if has_shape else None
        return from_rest(column, self.at_rest[name], shape)

    def present(self, name: str) -> bool:
        """Whether it has a value in a column."""
        column = self.columns[name]
        return not column.nullable or bool(self.at_rest[column.valid_name])

    @cached_property
    def extension(self) -> str:
        """What the image's file is called: ``jpg``, ``png`` …; ``npy`` for an array, ``bin`` for no known kind."""
        return "npy" if isinstance(self.image, np.ndarray) else extension_of(self.image)


def extension_of(data: bytes) -> str:
    """The extension of an image file by its content: ``jpg``, ``png`` …, or ``bin``."""
    try:
        return EXTENSIONS[sniff(data).kind]
    except HeaderError:
        return "bin"


class ShardWriter(ABC):
    """Writes consecutive records of one split (of all, for an export of one file).

    Attributes:
        file: The file that holds them, by its path in the export with ``/``; None where each record has its own, or
            where the export is one file.
    """

    file: str | None = None

    @abstractmethod
    def add(self, record: Record) -> Mapping[str, str]:
        """Writes a record. Returns what its line in ``packstore.rows.jsonl`` has to say besides: ``{"file": path}``
        where it has a file of its own."""

    @abstractmethod
    def close(self) -> None:
        """Ends the shard; the caller makes it durable."""

    def abort(self) -> None:
        """Closes files after an error. Deletes nothing."""
        return


class Export(ABC):
    """One kind of export, for one run.

    Attributes:
        name: Its name in the registry, for ``--to``.
        help: What it is, in a few words: ``tar shards of WebDataset``.
        suffixes: Suffixes of destinations that mean this kind, in lower case: ``(".zip",)``.
        source: The kind of source that imports it.
        one_file: It is one file and no folder. Its shards are its records up to where it was made durable.
        holds: What images it can hold just as they are: ``files`` (of any kind), ``uint8``, ``floats``.
        keeps_keys: The format itself holds whole keys, and its source gives them.
        shard_bytes: About how many bytes of images a shard has unless the user says; None where ``shard_size`` is not
            for it, because each record is a file of its own.
        path: Where it is written: the staged folder, which exists, or the staged file.
        manifest: Of what is written; after ``--encode`` with the new encoding.
        reader: The store, for what concerns all records: labels, keys.
        recoded: Images are not those of the store but encoded anew.
        bare: Leave out ``packstore.json`` and ``packstore.rows.jsonl``.
        export_manifest: The future content of ``packstore.json``, without the shards and digests that are not known
            yet; set before the first shard.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str]
    one_file: ClassVar[bool] = False
    holds: ClassVar[frozenset[str]] = frozenset({"files"})
    keeps_keys: ClassVar[bool] = False
    shard_bytes: ClassVar[int | None] = 1 << 30

    bare: bool = False
    export_manifest: ExportManifest

    def __init__(self, path: Path, manifest: Manifest, reader: Reader, *, recoded: bool) -> None:
        """Writes nothing. Raises :class:`UsageError` for a store that this kind cannot hold."""
        self.path = path
        self.manifest = manifest
        self.reader = reader
        self.recoded = recoded

    @abstractmethod
    def held(self) -> Sequence[str]:
        """Names of the columns (besides the image) whose values the format itself holds exactly, and its source gives
        back exactly. The others are kept in ``packstore.rows.jsonl``."""

    def shown(self) -> Sequence[str]:
        """Names of the columns that other readers find in the format; those that are held, unless it says others."""
        return self.held()

    @abstractmethod
    def losses(self) -> Sequence[str]:
        """What others than packstore do not get from the format, a line each: ``names of classes``. Columns that are
        not :meth:`shown` are said without it."""

    @abstractmethod
    def begin(self, number: int, split: str) -> ShardWriter:
        """The writer of shard ``number`` of a split, counted from 0. What an interrupted run has left of it is
        written over."""

    def go_on(self, size: int) -> None:
        """Of an export of one file: opens what an interrupted run has left, of which ``size`` bytes are done. Called
        before the first :meth:`begin`, with :attr:`export_manifest`."""
        raise NotImplementedError(f"{type(self).__name__} is one file and cannot go on after an interruption")

    def overhead(self) -> int:
        """About how many bytes a record takes on disk besides those of its image, of the values that are held, and of
        its line in ``packstore.rows.jsonl``: for the estimate."""
        return 40 if self.shard_bytes is not None else self.filling(BLOCK_BYTES)

    def finish(self, export_manifest: ExportManifest, lines: Path | None) -> ExportManifest:
        """Writes what comes after all shards: class lists, an index; then the export manifest.

        Args:
            export_manifest: With all shards.
            lines: The file of all record lines if :attr:`ExportManifest.rows`; it lies in the export already, unless
                that is one file.

        Returns:
            The export manifest as it was written: with :attr:`ExportManifest.files`.
        """
        if not self.bare:
            with open_file(self.path / MANIFEST_FILE, "wb") as file:
                file.write(export_manifest.to_json().encode("ascii") + b"\n")
        return export_manifest

    def undo_finish(self) -> None:
        """Gives shards back the names that :meth:`begin` gave them, where an interrupted :meth:`finish` has given them
        others. Called before all else."""
        return

    def abort(self) -> None:
        """Closes files that are open from shard to shard, after an error. Deletes nothing; idempotent."""
        return

    def sync(self, shard: ShardWriter) -> None:
        """Makes a finished shard durable."""
        if shard.file is not None:
            sync_tree(self.path / shard.file)

    @classmethod
    def read_export_manifest(cls, path: Path) -> ExportManifest | None:
        """Reads the export manifest of an export of one file; None if ``path`` is no such export.

        Raises :class:`ManifestError` or :class:`OSError`."""
        raise NotImplementedError(f"{cls.__name__} is one file and does not say where its export manifest is")

    @property
    def key_bytes(self) -> int:
        """Bytes of a key, on average."""
        return self.manifest.column("key").nbytes // max(1, self.manifest.records)

    def filling(self, block: int) -> int:
        """Bytes that fill the last block of an image's file, on average."""
        return max(block // 2, block - self.manifest.image.nbytes // max(1, self.manifest.records))

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns with values for users: without the image, what packing makes itself, and companions."""
        columns = [column for column in self.manifest.columns if column.name not in INTERNAL]
        companions = {each.name for column in columns for each in column.companions}
        return tuple(column for column in columns if column.name not in companions)


def refuse_columns(kind: type[Export], columns: Sequence[Column], why: str) -> None:
    """Raises :class:`UsageError` where there are ``columns`` that a kind of export cannot hold."""
    if columns:
        names = ", ".join(repr(column.name) for column in columns)
        raise UsageError(
            f"{kind.name} cannot hold the columns {names}: {why}; leave them out with packstore select --drop-column"
        )
