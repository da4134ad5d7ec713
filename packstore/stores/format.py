"""The contract of a format, the container that holds a store: LMDB, HDF5, ``.pth`` or a plug-in.

A format is one object of :class:`Format` and one line in :data:`packstore.core.registry.FORMATS`. It has two abstract
methods; everything else has a correct default, which a format may override to be faster or to do more.
``packstore.testing.StoreSuite`` tests this contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import Buffer, WholeColumn
from packstore.core.errors import ManifestError, StoreError, printable
from packstore.core.manifest import Column, Manifest
from packstore.core.shards import shard_name
from packstore.stores.parts import Part

if TYPE_CHECKING:
    from packstore.stores.scavenge import RecoveredManifest, ScavengedData


class FileWriter(ABC):
    """Writes one file of one format: images in :meth:`append`, everything else in :meth:`seal`.

    Writes to no other path. :class:`packstore.stores.build.StoreBuilder` handles the work directory, shards and
    splits. Memory does not grow with the number of records.
    """

    def __init__(self, path: Path, image: Column) -> None:
        """``image`` describes the image column. Its ``nbytes`` is not known yet."""
        self.path = path
        self.image = image

    @abstractmethod
    def append(self, images: Sequence[Buffer]) -> None:
        """Appends the images of records in order. In a fixed column each has exactly ``image.record_nbytes`` bytes."""

    def suspend(self) -> None:
        """Closes files after the last record is appended. :meth:`seal` or :meth:`abort` follows later. Does nothing by
        default.

        A store of many shards may seal all of them at the end, and cannot keep so many files open.
        """
        return

    @abstractmethod
    def seal(self, manifest: Manifest, columns: Mapping[str, WholeColumn]) -> None:
        """Writes all other columns and the manifest, and closes the file. The caller syncs it."""

    def check_synced(self) -> None:
        """Raises the :class:`OSError` of an earlier sync in the background. Call it after syncing the sealed file.

        Linux reports a failed write only once: the later sync does not fail.
        """
        return

    @abstractmethod
    def abort(self) -> None:
        """Closes files without flushing them. Idempotent, also after :meth:`seal`. Deletes nothing.

        After a failed write, a flush would fail the same way and hide the cause.
        """


class Format(ABC):
    """A format of stores. Its module must not import the format's library: methods import it when they need it.

    Attributes:
        name: Its name in manifests and for ``--format``: ``hdf5``.
        title: Its name in messages: ``HDF5``.
        suffixes: Lower-case suffixes of its stores: ``(".h5", ".hdf5")``. Shards get the first one.
        magic: First bytes of its files.
        files: Names of the files of a store that is a directory, the data file first. Empty for a single file.
        default_encoding: The encoding that ``convert`` uses without ``--encoding``; None keeps the source's.
        padding: Sentence that says why an image takes much more room than its bytes; empty if it does not.
        overhead_bytes: Bytes that a store takes beyond images and columns, for an estimate.
        quick_read_back: Whether the quick structure check is enough for a file just written. False if only the full
            check covers the bytes around columns and images, whose digests are compared anyway.
        scavenges_sound_stores: Whether :meth:`scavenge` can find more than a reader in a store that opens.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    magic: bytes = b""
    files: tuple[str, ...] = ()
    default_encoding: str | None = None
    padding: str = ""
    overhead_bytes: int = 8192
    quick_read_back: bool = False
    scavenges_sound_stores: bool = False

    @abstractmethod
    def open(self, path: Path, descriptor: int | None = None) -> Part:
        """Opens a store that is not sharded, or a shard.

        Args:
            path: Path of the store.
            descriptor: An open descriptor of its :meth:`data_file`, or None; the file may already be unlinked. The
                caller closes it.

        Raises:
            StoreError: It cannot be opened, or is not a valid store.
        """

    @abstractmethod
    def new_writer(self, path: Path, image: Column) -> FileWriter:
        """Creates a writer to ``path``, which must not exist. ``image`` describes the image column."""

    def recognises(self, path: Path, start: bytes) -> bool:
        """Returns whether ``path`` looks like this format.

        By default that is a file that begins with :attr:`magic`, or a directory with the data file. ``start``: the
        first 512 bytes of a file, empty for a directory.
        """
        if self.files:
            return path.is_dir() and self.data_file(path).is_file()
        return bool(self.magic) and start.startswith(self.magic)

    def read_manifest(self, path: Path) -> Manifest:
        """Reads the manifest of a store that is not sharded. By default opens the store. Raises :class:`StoreError`."""
        part = self.open(path)
        part.close()
        return part.manifest

    def data_file(self, path: Path) -> Path:
        """Returns the file that holds the data of the store at ``path``: the store itself, or one in its directory."""
        return path / self.files[0] if self.files else path

    def shard_name(self, number: int) -> str:
        """Returns the name of a shard in its store's directory: ``shard-00003.h5``."""
        return shard_name(number, self.suffixes[0])

    def estimate_disk_bytes(self, size: int) -> int:
        """Estimates the bytes on disk of an image of ``size`` bytes. By default returns ``size``."""
        return size

    def open_partial_file(self, path: Path, sizes: NDArray[np.uint64]) -> Callable[[int], memoryview]:
        """Opens a file that a killed writer left. Returns a function that reads an image by its number in the file.

        That function raises :class:`StoreError` for a missing image. It checks no image: the caller compares checksums.

        Args:
            path: The file, or a store's directory.
            sizes: ``uint64``, the size in bytes of each image that the writer was given.

        Raises:
            StoreError: There is nothing to read, or the format does not support this, which is the default.
            OSError: The file cannot be opened.
        """
        raise StoreError(f"{printable(str(path))}: {self.title} cannot be read before it is complete")

    def scavenge(self, path: Path, data: memoryview, recovered: RecoveredManifest | None) -> ScavengedData:
        """Recovers columns and images from the file of a store, which may be damaged anywhere.

        Args:
            path: Path of the store, for messages.
            data: All bytes of its :meth:`data_file`.
            recovered: Its manifest, if known; never None for a format of one file.

        Raises:
            StoreError: Nothing can be found, or the format does not support this, which is the default.
        """
        raise StoreError(f"{printable(str(path))}: packstore cannot get records out of a damaged {self.title} file")


def parse_manifest(text: str | bytes, path: Path) -> Manifest:
    """Parses the manifest in ``text``. Raises :class:`ManifestError` that names ``path``."""
    try:
        return Manifest.from_json(text)
    except ManifestError as error:
        raise ManifestError(f"{printable(str(path))}: {error}") from None


def parse_own_manifest(text: str | bytes, path: Path, format: str, kind: str) -> Manifest:
    """Parses the manifest in a file of ``format``, which messages call ``kind``: ``an LMDB``.

    Raises :class:`StoreError` if it is damaged, or describes a store of another format or with shards.
    """
    manifest = parse_manifest(text, path)
    if manifest.format != format or manifest.shards:
        described = f"{'sharded ' if manifest.shards else ''}{manifest.format}"
        raise StoreError(f"{printable(str(path))} is {kind}, but its manifest describes a {described} store")
    return manifest


def encode_manifest(manifest: Manifest) -> bytes:
    """Returns the manifest as JSON with a line break, the content of a sharded store's manifest file."""
    return f"{manifest.to_json()}\n".encode("ascii")


def unreadable_error(path: Path, kind: str, reason: object) -> StoreError:
    """Returns the error for a file that is recognised as ``kind`` (``"an LMDB"``) but cannot be opened.

    The message has the first line of ``reason``, at most 200 characters.
    """
    first = str(reason).strip().partition("\n")[0]
    return StoreError(
        f"{printable(str(path))} is damaged or truncated: it cannot be opened as {kind} ({printable(first)[:200]}); "
        "restore it from a copy or pack it again"
    )
