"""Recovers records from a damaged ``.pth``, whose entries follow each other in the order of the manifest's columns."""

from __future__ import annotations

from packstore.stores.manifest_recovery import RecoveredManifest
from packstore.stores.pth.layout import compute_content_start
from packstore.stores.scavenge import ScavengedData, list_array_sizes, scavenge_arrays


def scavenge(data: memoryview, recovered: RecoveredManifest) -> ScavengedData:
    """Recovers the columns and images of a ``.pth`` from its bytes, at the offsets that follow from its manifest."""
    starts: dict[str, int] = {}
    position = 0
    for number, (name, size) in enumerate(list_array_sizes(recovered.manifest)):
        starts[name] = compute_content_start(position, f"archive/data/{number}")
        position = starts[name] + size
    return scavenge_arrays(data, recovered, starts)
