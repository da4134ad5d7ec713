"""LMDB: write, read, check and scavenge."""

from __future__ import annotations

from packstore.core.registry import import_and_call
from packstore.stores.format import Format
from packstore.stores.lmdb.pages import DATA_FILE


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

    open = import_and_call("packstore.stores.lmdb.store:LmdbPart")
    new_writer = import_and_call("packstore.stores.lmdb.writer:LmdbWriter")
    open_partial_file = import_and_call("packstore.stores.lmdb.store:open_partial_file")
    read_manifest = import_and_call("packstore.stores.lmdb.store:read_manifest")
    scavenge = import_and_call("packstore.stores.lmdb.scavenge:scavenge")

    def estimate_disk_bytes(self, size: int) -> int:
        """Returns the bytes on disk of an image.

        Above about 2 KB these are whole 4 KiB pages with a header of 16 bytes. A smaller record takes its share of a
        leaf page: it needs 20 bytes more (10 of key, 8 of header, 2 of index), and a page holds as many as fit.
        """
        if size > 2020:
            return -(-(size + 16) // 4096) * 4096
        return 4096 // (4080 // (size + 20))


FORMAT = Lmdb()
