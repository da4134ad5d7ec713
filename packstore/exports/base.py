"""The contract of an export: it writes a store in a foreign format, shard by shard.

A kind of export (a format) is one file with a subclass of :class:`Export`, and one line: in
:data:`packstore.core.registry.EXPORTS`, or an entry point of the group ``packstore.exports``.
:class:`packstore.testing.ExportSuite` tests this contract. :mod:`.run` does the work that all kinds share: it reads
records and verifies their checksums, resumes, publishes, and fills the export manifest (``packstore.json``).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_hexdigest

from packstore.core.columns import Column, from_stored, list_user_columns
from packstore.core.files import drop, open_file, sync_tree
from packstore.core.manifest import Manifest
from packstore.images.sniff import image_suffix
from packstore.stores import Reader
from packstore.stores.export_manifest import MANIFEST_FILE, ExportManifest

BLOCK_BYTES = 4096
"""Size of a block of a file system: a small file takes a whole one."""


@dataclass(frozen=True)
class Record:
    """A record to write; its checksums were verified.

    Attributes:
        number: Its number in the store, from 0.
        key: The full key; bytes that are not UTF-8 are surrogates.
        split: Name of its split; ``""`` in a store without splits.
        image: The bytes of an image file, or an array. Arrays of integers are ``(H, W, C)``. Arrays of floats are ``(C,
            H, W)`` in the store's dtype; bfloat16 is uint16 bit patterns.
        stored: Stored values by column name, without the image and the checksums.
        columns: All columns of the store, by name.
        inexact: Names that the export adds: columns of :meth:`Export.exact_columns` whose value in this record the
            format cannot hold exactly. These values go into the record's line in ``packstore.rows.jsonl``. Without
            effect if :attr:`Export.keeps_keys` is True, since records then have no lines.
        line: Entries that the export adds to the record's line: ``{"file": path}`` if the record is a file of its own,
            with further entries of the kind.
    """

    number: int
    key: str
    split: str
    image: bytes | NDArray[Any]
    stored: Mapping[str, Any]
    columns: Mapping[str, Column] = field(repr=False)
    inexact: set[str] = field(default_factory=set)
    line: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """Returns the value of a column as :meth:`packstore.stores.Reader.item` does, or None if it is missing.
        Raises :class:`KeyError` for a column that the store lacks."""
        column = self.columns[name]
        if not self.has_value(name):
            return None
        return from_stored(column, self.stored[name], self.shape_of(column) if has_varying_shapes(column) else None)

    def shape_of(self, column: Column) -> tuple[int, ...]:
        """Returns the shape of the record's value if arrays of the column may differ in shape, else the column's."""
        return tuple(self.stored[column.shape_name].tolist()) if has_varying_shapes(column) else column.shape

    def stored_bytes(self, name: str) -> bytes:
        """Returns the stored value of a column as bytes."""
        raw = self.stored[name]
        return raw if isinstance(raw, bytes) else np.asarray(raw).tobytes()

    def has_value(self, name: str) -> bool:
        """Tells if the record has a value in a column. True for every column without missing values."""
        column = self.columns[name]
        return not column.nullable or bool(self.stored[column.valid_name])

    @property
    def image_bytes(self) -> bytes:
        """The image file, or the bytes of the array."""
        return self.image.tobytes() if isinstance(self.image, np.ndarray) else self.image

    @cached_property
    def extension(self) -> str:
        """File extension of the image by its content, such as ``jpg``. It is ``npy`` for an array, and ``bin`` for an
        unknown image."""
        return "npy" if isinstance(self.image, np.ndarray) else image_suffix(self.image)


def has_varying_shapes(column: Column) -> bool:
    """Tells if the arrays of a column may differ in shape. The store then keeps a shape with each."""
    return column.kind == "ragged" and column.layout is not None


class Export(ABC):
    """One kind of export; an instance writes one export.

    Attributes:
        name: Its name in the registry, for ``--to``.
        help: Description in a few words: ``tar shards of WebDataset``.
        suffixes: Suffixes of destinations that mean this kind, in lower case: ``(".zip",)``.
        source: The kind of source that imports it.
        one_file: The export is one file and not a folder. Its shards are parts of that file.
        image_forms: Forms of images that it holds unchanged: ``files`` (of any kind), ``uint8``, ``floats``.
        keeps_keys: The format itself holds full keys, and its source returns them.
        shard_bytes: Default of the user's ``shard_size``: bytes of images after which a shard ends. None if each record
            is a file of its own; planning an export then refuses ``shard_size``.
        path: The folder to write into, which exists, or the file to create.
        manifest: Manifest of the written records; after ``--encode`` with the new encoding.
        reader: The store, for facts about all records: labels, keys.
        recoded: Images are re-encoded: their bytes are not those of the store.
        bare: Leave out ``packstore.json`` and ``packstore.rows.jsonl``.
        export_manifest: The future content of ``packstore.json``, set before the first shard. Shards and digests are
            still missing.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str]
    one_file: ClassVar[bool] = False
    image_forms: ClassVar[frozenset[str]] = frozenset({"files"})
    keeps_keys: ClassVar[bool] = False
    shard_bytes: ClassVar[int | None] = 1 << 30

    bare: bool = False
    export_manifest: ExportManifest

    def __init__(self, path: Path, manifest: Manifest, reader: Reader, *, recoded: bool) -> None:
        """Writes nothing. Overrides raise :class:`UsageError` for a store that the kind cannot hold; this base refuses
        none."""
        self.path = path
        self.manifest = manifest
        self.reader = reader
        self.recoded = recoded

    def exact_columns(self) -> Sequence[str]:
        """Returns the names of the columns that the format holds and its source returns exactly, without the image. By
        default none.

        Values of other columns go into ``packstore.rows.jsonl``.
        """
        return ()

    def visible_columns(self) -> Sequence[str]:
        """Returns the names of the columns that other readers than packstore get from the format. By default
        :meth:`exact_columns`."""
        return self.exact_columns()

    def describe_hidden(self, name: str) -> str:
        """Describes a column that is not in :meth:`visible_columns`, for the report. By default its quoted name.

        A kind may add which part of the column is written.
        """
        return repr(name)

    @abstractmethod
    def losses(self) -> Sequence[str]:
        """Returns a text for each part of the store that other readers do not get, such as ``names of classes``.

        Leaves out columns that :meth:`visible_columns` lacks: the report adds them.
        """

    def array_losses(self) -> list[str]:
        """Returns the losses that all formats of arrays share: bfloat16 values, and normalisation."""
        visible = {"image", *self.visible_columns()}
        lost = []
        if any(column.dtype == "bfloat16" and column.name in visible for column in self.manifest.columns):
            lost.append("bfloat16 values: they are their bit patterns as uint16")
        if self.manifest.normalization is not None:
            lost.append("mean and standard deviation by which the arrays were normalised")
        return lost

    @abstractmethod
    def write_shard(self, number: int, split: str, records: Iterable[Record]) -> str | None:
        """Writes all ``records`` as shard ``number`` of a split, from 0. In an export of one file, a shard may hold
        records of several splits. Overwrites leftovers of an interrupted run.

        Sets :attr:`Record.line` and :attr:`Record.inexact` of each record before it takes the next.

        Returns:
            Path of the shard's file in the export, with ``/``. None if each record is a file of its own, or if the
            export is one file. The caller then makes the shard durable with :meth:`sync`.
        """

    @contextmanager
    def open_files(self, *files: str) -> Iterator[list[IO[bytes]]]:
        """Creates files of the export, and closes them at the end of a ``with``. After an error they stay
        incomplete."""
        opened: list[IO[bytes]] = []
        try:
            for file in files:
                opened.append(open_file(self.path / file, "wb"))  # if one fails, those before it are closed
            yield opened
            for each in opened:
                each.close()
        except BaseException:
            for each in opened:
                if not each.closed:
                    drop(each)
            raise

    def resume(self, size: int) -> None:
        """Reopens an export of one file. Keeps the ``size`` bytes that an interrupted run has completed, and cuts off
        the rest.

        Called before the first shard, when :attr:`export_manifest` is set. Kinds of one file must override it: this
        base raises :class:`NotImplementedError`.
        """
        raise NotImplementedError(f"{type(self).__name__} is one file and cannot resume")

    def overhead(self) -> int:
        """Estimates the bytes on disk of a record without its image, its values of :meth:`exact_columns` and its line
        in ``packstore.rows.jsonl``.

        By default 40. If each image is a file: the unused part of its last block.
        """
        return 40 if self.shard_bytes is not None else self.estimate_block_padding(BLOCK_BYTES)

    def documents(self, export_manifest: ExportManifest, lines: Path | None) -> Mapping[str, Iterable[bytes]]:
        """Returns the contents, in pieces, of the files that follow all shards, such as class lists, by path.

        By default there are none. Arguments: see :meth:`finish`.
        """
        return {}

    def finish(self, export_manifest: ExportManifest, lines: Path | None) -> ExportManifest:
        """Writes the files that :meth:`documents` returns, and the export manifest unless :attr:`bare`.

        Args:
            export_manifest: The export manifest with all shards.
            lines: The file of all record lines; None if :attr:`ExportManifest.rows` is False. It lies in the export's
                folder already. If the export is one file, it lies elsewhere.

        Returns:
            The export manifest as written, with :attr:`ExportManifest.files`.
        """
        files = self.documents(export_manifest, lines)
        for path, pieces in files.items():
            (self.path / path).parent.mkdir(parents=True, exist_ok=True)
            with open_file(self.path / path, "wb") as out:
                out.writelines(pieces)
        export_manifest = replace(export_manifest, files=(*export_manifest.files, *files))
        if not self.bare:
            with open_file(self.path / MANIFEST_FILE, "wb") as out:
                out.write(export_manifest.to_json().encode("ascii") + b"\n")
        return export_manifest

    def undo_finish(self) -> None:
        """Gives shards their first names again if an interrupted :meth:`finish` has renamed them.

        Called first when a run resumes. By default does nothing.
        """
        return

    def abort(self) -> None:
        """Closes files that stay open between shards, after an error. Deletes nothing. May be called twice. By default
        does nothing."""
        return

    def sync(self, file: str | None) -> None:
        """Makes a finished shard durable. By default flushes its ``file`` to disk; does nothing if that is None."""
        if file is not None:
            sync_tree(self.path / file)

    @classmethod
    def read_export_manifest(cls, path: Path) -> ExportManifest | None:
        """Reads the export manifest from an export of one file. Returns None if ``path`` is no such export.

        ``path`` may be an object at a URL, of which each read fetches a part. An override has to use
        ``path.open("rb")``.

        Raises :class:`ManifestError` or :class:`OSError`. Kinds of one file must override it: this base raises
        :class:`NotImplementedError`.
        """
        raise NotImplementedError(f"{cls.__name__} is one file, so it has to override read_export_manifest")

    def rename_splits(self, rename: Callable[[str], str]) -> dict[str, str]:
        """Maps each split to a unique name: ``rename(split)``, with ``_`` appended if another split has that name.

        A store without splits is ``train``.
        """
        names: dict[str, str] = {}
        for split in self.manifest.splits:
            name = rename(split.name)
            while name in names.values():
                name += "_"
            names[split.name] = name
        return names or {"": "train"}

    @property
    def mean_key_bytes(self) -> int:
        """Mean bytes of a key, rounded down; 0 without records."""
        return self.manifest.column("key").nbytes // max(1, self.manifest.records)

    def estimate_block_padding(self, block: int) -> int:
        """Estimates the mean unused bytes in the last block of an image's file, for blocks of ``block`` bytes.

        This is half a block, or more if images are smaller than that.
        """
        return max(block // 2, block - self.manifest.image.nbytes // max(1, self.manifest.records))

    @cached_property
    def columns(self) -> list[Column]:
        """The user's columns."""
        return list_user_columns(self.manifest.columns)


def name_shard(split: str, number: int, extension: str) -> str:
    """Returns the usual name of a shard: ``train-000000.tar``; ``000000.tar`` in a store without splits."""
    return f"{safe_name(split)}-{number:06}.{extension}" if split else f"{number:06}.{extension}"


def name_folder(split: str) -> str:
    """Returns the name of a split's folder; empty for ``""``, a store without splits."""
    return safe_name(split) if split else ""


_LONGEST = 200
"""Most bytes of a name: file systems take 255, and an extension may follow."""
_BAD = re.compile(r'[\x00-\x1f\x7f%/\\:*?"<>|\ud800-\udfff]')
"""Characters to escape: control characters, those that Windows refuses, slashes, bytes that are not UTF-8, and ``%``,
which begins an escape."""


def safe_name(text: str) -> str:
    """Converts ``text`` to the name of a file or folder. Different texts get different names. Common names are
    unchanged.

    Unsafe characters become ``%`` and their code, like in URLs. A long name is cut, and ends with a hash of the whole
    name.
    """
    name = _BAD.sub(_percent_encode, text)
    if name in ("", ".", ".."):
        name = name.replace(".", "%2E") or "%"
    return shorten_name(name)


def can_be_lines(names: Sequence[str]) -> bool:
    """Tells if each name can be a line of a text file: printable, not empty, without space at its ends."""
    return all(name.strip() == name != "" and name.isprintable() for name in names)


def can_be_strings(names: Sequence[str]) -> bool:
    """Tells if each name can be a string in other languages: no NUL, and no byte that is not UTF-8."""
    return not any(re.search("[\0\ud800-\udfff]", name) for name in names)


def shorten_name(name: str) -> str:
    """Returns ``name`` if it has at most 200 bytes in UTF-8. Otherwise returns its beginning and a hash of the whole
    name."""
    raw = name.encode("utf-8", "surrogateescape")
    if len(raw) <= _LONGEST:
        return name
    kept = raw[: _LONGEST - 17].decode("utf-8", "ignore")
    return f"{kept}-{xxh3_64_hexdigest(raw)}"


def _percent_encode(match: re.Match[str]) -> str:
    """Returns ``%`` and the hexadecimal code of the matched character."""
    code = ord(match[0])
    # A surrogate gets the code of the byte that it replaces.
    return f"%{code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code:02X}"
