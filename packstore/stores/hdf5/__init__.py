"""HDF5: write, read, check and scavenge."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from packstore.core.registry import import_and_call
from packstore.stores.format import Format
from packstore.stores.parts import map_consecutive_images

if TYPE_CHECKING:
    from packstore.stores.scavenge import RecoveredManifest, ScavengedData


class Hdf5(Format):
    """One file of contiguous datasets."""

    name = "hdf5"
    title = "HDF5"
    suffixes = (".h5", ".hdf5")
    magic = b"\x89HDF\r\n\x1a\n"
    quick_read_back = True

    open = import_and_call("packstore.stores.hdf5.store:Hdf5Part")
    new_writer = import_and_call("packstore.stores.hdf5.writer:Hdf5Writer")
    read_manifest = import_and_call("packstore.stores.hdf5.store:read_manifest")

    def open_partial_file(self, path: Path, sizes: NDArray[np.uint64]) -> Callable[[int], memoryview]:
        """Maps the file and returns a function that views an image. The images lie one after another in the file."""
        from packstore.stores.hdf5.writer import IMAGES_START

        return map_consecutive_images(path, IMAGES_START, sizes)

    def scavenge(self, path: Path, data: memoryview, recovered: RecoveredManifest | None) -> ScavengedData:
        """Recovers columns and images at the offsets that follow from the manifest ``recovered``, which is required.

        The HDF5 library always places datasets in the same way: an empty file of the same layout shows their offsets.
        """
        from packstore.stores.hdf5.writer import compute_dataset_offsets
        from packstore.stores.scavenge import scavenge_arrays

        assert recovered is not None
        with tempfile.TemporaryFile() as file:
            return scavenge_arrays(data, recovered, compute_dataset_offsets(file, recovered.manifest))


FORMAT = Hdf5()
