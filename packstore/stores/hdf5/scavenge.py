"""Gets records out of a damaged HDF5 file.

The HDF5 library decides where datasets go, always in the same way: it lays out a sparse file for the same manifest.
"""

from __future__ import annotations

import tempfile

from packstore.stores.hdf5.store import dataset_places
from packstore.stores.manifest_recovery import RecoveredManifest
from packstore.stores.scavenge import Scavenged, scavenge_by_places


def scavenge(data: memoryview, found: RecoveredManifest) -> Scavenged:
    """The columns and images of an HDF5 file, from its bytes and its manifest."""
    with tempfile.TemporaryFile() as file:
        return scavenge_by_places(data, found, dataset_places(file, found.manifest))
