"""The contract of a format, the container that stores lie in: LMDB, HDF5, ``.pth`` or a plug-in.

A format is one object of :class:`Format` and one line in :data:`packstore.core.registry.FORMATS`. It has two abstract
methods; everything else has a correct default that a format overrides for speed or for what it can do more.
``packstore.testing.StoreSuite`` is this contract as tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import StoreError, printable
from packstore.core.manifest import Column, Manifest
from packstore.core.shards import shard_name
from packstore.stores.base import Reader, Writer
from packstore.stores.manifest_recovery import RecoveredManifest
from packstore.stores.scavenge import Scavenged


class Format(ABC):
    """One format. Its module must not import the format's library: methods do when they need it.

    Attributes:
        name: What manifests and ``--format`` call it: ``hdf5``.
        title: What messages call it: ``HDF5``.
        suffixes: Lower-case suffixes of its stores: ``(".h5", ".hdf5")``. The first one names shards.
        magic: What its files begin with.
        files: Names of the files of a store that is a directory, the one with the data first. Empty for one file.
        default_encoding: The encoding that ``convert`` takes without ``--encoding``; None keeps the source's.
        padding: Where an image takes much more room than it has bytes, a sentence that says why; else empty.
        overhead_bytes: What a store takes beyond images and columns, for an estimate.
        quick_read_back: Whether the quick structure check is enough for a file that was just written, because columns
            and images are compared by their digests anyway. False where only the full one proves what lies around them.
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
    def open(self, path: Path, descriptor: int | None = None) -> Reader:
        """Opens a store that is not sharded, or a shard.

        Args:
            path: Of the store.
            descriptor: Of its :meth:`data_file` where the caller has opened that already; the file may have no name
                any more. The caller closes it.

        Raises:
            StoreError: It cannot be opened, or is not what it should be.
        """

    @abstractmethod
    def new_writer(self, path: Path, image: Column) -> Writer:
        """A writer to ``path``, which must not exist. ``image`` describes the image column."""

    def recognises(self, path: Path, start: bytes) -> bool:
        """Whether what lies at ``path`` looks like this format. ``start`` is the first 512 bytes of a file, and empty
        for a directory."""
        if self.files:
            return path.is_dir() and self.data_file(path).is_file()
        return bool(self.magic) and start.startswith(self.magic)

    def read_manifest(self, path: Path) -> Manifest:
        """The manifest of a store that is not sharded. Raises :class:`StoreError`."""
        with self.open(path) as reader:
            return reader.manifest

    def data_file(self, path: Path) -> Path:
        """The file that holds the data of the store at ``path``: the store itself, or one in its directory."""
        return path / self.files[0] if self.files else path

    def shard_name(self, number: int) -> str:
        """The name of a shard in its store's directory."""
        return shard_name(number, self.suffixes[0])

    def stored_bytes(self, size: int) -> int:
        """Bytes on disk of an image of ``size`` bytes, for an estimate."""
        return size

    def partial_images(self, path: Path, sizes: NDArray[np.uint64]) -> Callable[[int], memoryview]:
        """The images of a file that a killed writer left, as a function of their number in the file.

        Args:
            path: The file, or a store's directory.
            sizes: ``uint64``, the size in bytes of each image that the writer was given.

        Raises:
            StoreError: There is nothing to read. The function raises it too, for an image that is not there; the
                caller proves what it returns by a checksum.
            OSError: The file cannot be opened.
        """
        raise StoreError(f"{printable(str(path))}: {self.title} cannot be read before it is complete")

    def scavenge(self, path: Path, data: memoryview, found: RecoveredManifest | None) -> Scavenged:
        """What lies in the file of a store, which may be damaged anywhere.

        Args:
            path: Of the store, for messages.
            data: All bytes of its :meth:`data_file`.
            found: Its manifest, where that is known; never None for a format of one file.

        Raises:
            StoreError: Nothing can be found.
        """
        raise StoreError(f"{printable(str(path))}: packstore cannot get records out of a damaged {self.title} file")
