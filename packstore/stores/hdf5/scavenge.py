"""Getting records out of a damaged HDF5 file: HDF5 itself decides where datasets go, but always alike, so it is asked
with a file of holes."""

from __future__ import annotations

import tempfile

from packstore.stores.hdf5.store import dataset_places
from packstore.stores.manifest_recovery import RecoveredManifest
from packstore.stores.scavenge import Scavenged, scavenge_by_places


def scavenge(data: memoryview, found: RecoveredManifest) -> Scavenged:
    """What lies in an HDF5 file with this manifest, of which ``data`` are the bytes."""
    with tempfile.TemporaryFile() as file:
        return scavenge_by_places(data, found, dataset_places(file, found.manifest))
