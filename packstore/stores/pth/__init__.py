"""``.pth``: write, read, check and scavenge, without torch."""

from __future__ import annotations

import re
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

_TORCH_ENTRY = re.compile(rb"data[.]pkl|data/\d+")


class Pth(Format):
    """One zip file in torch's own layout."""

    name = "pth"
    title = ".pth"
    suffixes = (".pth", ".pt")
    magic = b"PK\x03\x04"
    default_encoding = "float16"

    open = import_and_call("packstore.stores.pth.store:PthPart")
    new_writer = import_and_call("packstore.stores.pth.store:PthWriter")
    read_manifest = import_and_call("packstore.stores.pth.store:read_manifest")

    def recognises(self, path: Path, start: bytes) -> bool:
        """Returns whether a file is a zip with one of the suffixes, or with a first entry of torch.

        Such an entry is ``NAME/data.pkl`` or ``NAME/data/0``.
        """
        name = start[30 : 30 + int.from_bytes(start[26:28], "little")]
        by_torch = _TORCH_ENTRY.fullmatch(name.partition(b"/")[2]) is not None
        return start.startswith(self.magic) and (by_torch or path.suffix.lower() in self.suffixes)

    def open_partial_file(self, path: Path, sizes: NDArray[np.uint64]) -> Callable[[int], memoryview]:
        """Maps the file and returns a function that views an image. The images lie one after another in the file."""
        from packstore.stores.pth.store import IMAGES_START

        return map_consecutive_images(path, IMAGES_START, sizes)

    def scavenge(self, path: Path, data: memoryview, recovered: RecoveredManifest | None) -> ScavengedData:
        """Recovers columns and images at the offsets that follow from the manifest ``recovered``, which is required.

        The entries follow each other in the order of the manifest's columns.
        """
        from packstore.stores.pth.zip import compute_content_start
        from packstore.stores.scavenge import list_array_sizes, scavenge_arrays

        assert recovered is not None
        starts: dict[str, int] = {}
        position = 0
        for number, (name, size) in enumerate(list_array_sizes(recovered.manifest)):
            starts[name] = compute_content_start(position, f"archive/data/{number}")
            position = starts[name] + size
        return scavenge_arrays(data, recovered, starts)


FORMAT = Pth()
