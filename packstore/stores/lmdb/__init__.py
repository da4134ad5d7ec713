"""LMDB: write, read, check and scavenge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from packstore.core.manifest import Column, Manifest
from packstore.stores.format import FileWriter, Format
from packstore.stores.lmdb.pages import DATA_FILE
from packstore.stores.parts import Part

if TYPE_CHECKING:
    from packstore.stores.scavenge import RecoveredManifest, ScavengedData


class Lmdb(Format):
    """A directory with ``data.mdb``, and ``lock.mdb`` once any program has opened it with locks."""

    name = "lmdb"
    title = "LMDB"
    suffixes = (".lmdb",)
    files = (DATA_FILE, "lock.mdb")
    padding = "LMDB keeps values over 2 kB in whole 4 KiB pages"
    overhead_bytes = 49152  # each transaction leaves a few unused pages
    quick_read_back = True
    scavenges_sound_stores = True  # pages that the tree no longer names may hold records

    def open(self, path: Path, descriptor: int | None = None) -> Part:
        from packstore.stores.lmdb.store import LmdbPart

        return LmdbPart(path, descriptor)

    def new_writer(self, path: Path, image: Column) -> FileWriter:
        from packstore.stores.lmdb.writer import LmdbWriter

        return LmdbWriter(path, image)

    def read_manifest(self, path: Path) -> Manifest:
        from packstore.stores.lmdb.store import read_manifest

        return read_manifest(path)

    def estimate_disk_bytes(self, size: int) -> int:
        """Returns the bytes on disk of an image.

        Above about 2 KB these are whole 4 KiB pages with a header of 16 bytes. A smaller record takes its share of a
        leaf page: it needs 20 bytes more (10 of key, 8 of header, 2 of index), and a page holds as many as fit.
        """
        if size > 2020:
            return -(-(size + 16) // 4096) * 4096
        return 4096 // (4080 // (size + 20))

    def open_partial_file(self, path: Path, sizes: NDArray[np.uint64]) -> Callable[[int], memoryview]:
        """Opens the images of finished transactions. Does not use ``sizes``."""
        from packstore.stores.lmdb.store import open_partial_file

        return open_partial_file(path)

    def scavenge(self, path: Path, data: memoryview, recovered: RecoveredManifest | None) -> ScavengedData:
        """Recovers columns and images by looking at every page. Needs no manifest."""
        from packstore.stores.lmdb.scavenge import scavenge

        return scavenge(data, recovered)


FORMAT = Lmdb()
