"""HDF5: write, read, check and scavenge."""

from __future__ import annotations

from packstore.core.registry import import_and_call
from packstore.stores.format import Format


class Hdf5(Format):
    """One file of contiguous datasets."""

    name = "hdf5"
    title = "HDF5"
    suffixes = (".h5", ".hdf5")
    magic = b"\x89HDF\r\n\x1a\n"
    quick_read_back = True

    open = import_and_call("packstore.stores.hdf5.store:Hdf5Part")
    new_writer = import_and_call("packstore.stores.hdf5.store:Hdf5Writer")
    read_manifest = import_and_call("packstore.stores.hdf5.store:read_manifest")
    open_partial_file = import_and_call("packstore.stores.hdf5.store:open_partial_file")
    scavenge = import_and_call("packstore.stores.hdf5.store:scavenge")


FORMAT = Hdf5()
