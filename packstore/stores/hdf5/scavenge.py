"""Recovers records from a damaged HDF5 file.

The HDF5 library always places datasets in the same way. An empty file that it writes for the same manifest shows the
offsets of the datasets in the damaged file.
"""

from __future__ import annotations

import tempfile

from packstore.stores.hdf5.store import compute_dataset_offsets
from packstore.stores.manifest_recovery import RecoveredManifest
from packstore.stores.scavenge import ScavengedData, scavenge_arrays


def scavenge(data: memoryview, recovered: RecoveredManifest) -> ScavengedData:
    """Recovers the columns and images of an HDF5 file from its bytes and manifest.

    Finds the offsets of the datasets by writing a temporary HDF5 file of the same layout without data.
    """
    with tempfile.TemporaryFile() as file:
        return scavenge_arrays(data, recovered, compute_dataset_offsets(file, recovered.manifest))
