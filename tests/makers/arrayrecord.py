"""ArrayRecord files: of records, written by their library; and as the corpus keeps those of the library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

BLOCK = 1 << 16


def expanded(data: bytes) -> bytes:
    """A file of the corpus as it was written: there, each block has its length before it, and no zeros at its end."""
    blocks, at = [], 0
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "little")
        blocks.append(data[at + 2 : at + 2 + size].ljust(BLOCK, b"\0"))
        at += 2 + size
    return b"".join(blocks)


def write_arrayrecord(path: Path, records: Sequence[bytes], group: int = 3) -> Path:
    """A file of uncompressed records, so many a chunk."""
    library = pytest.importorskip("array_record.python.array_record_module")
    writer = library.ArrayRecordWriter(str(path), f"group_size:{group},uncompressed")
    for record in records:
        writer.write(record)
    writer.close()
    return path
