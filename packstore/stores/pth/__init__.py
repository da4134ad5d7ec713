"""``.pth``: write, read, check and scavenge, without torch."""

from __future__ import annotations

import re
from pathlib import Path

from packstore.core.registry import import_and_call
from packstore.stores.format import Format

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
    open_partial_file = import_and_call("packstore.stores.pth.store:open_partial_file")
    scavenge = import_and_call("packstore.stores.pth.store:scavenge")

    def recognises(self, path: Path, start: bytes) -> bool:
        """Returns whether a file is a zip with one of the suffixes, or with a first entry of torch.

        Such an entry is ``NAME/data.pkl`` or ``NAME/data/0``.
        """
        name = start[30 : 30 + int.from_bytes(start[26:28], "little")]
        by_torch = _TORCH_ENTRY.fullmatch(name.partition(b"/")[2]) is not None
        return start.startswith(self.magic) and (by_torch or path.suffix.lower() in self.suffixes)


FORMAT = Pth()
