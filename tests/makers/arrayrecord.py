"""ArrayRecord files: of records, uncompressed; and as the corpus keeps those of the library."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from packstore.core.protobuf import encode_varint
from packstore.images.engine import highway_hash

BLOCK = 1 << 16
SIGNATURE = bytes.fromhex(
    "83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9"
    "0000000000000000e19f13c0e9b1c3727300000000000000" + 16 * "0"
)
MAGIC = 0x71930E704FDAE05E


def expanded(data: bytes) -> bytes:
    """A file of the corpus as it was written: there, each block has its length before it, and no zeros at its end."""
    blocks, at = [], 0
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "little")
        blocks.append(data[at + 2 : at + 2 + size].ljust(BLOCK, b"\0"))
        at += 2 + size
    return b"".join(blocks)


def chunk(records: Sequence[bytes], kind: bytes = b"r") -> bytes:
    """A chunk, without headers of blocks."""
    sizes, values = b"".join(encode_varint(len(record)) for record in records), b"".join(records)
    data = b"\0" + encode_varint(len(sizes)) + sizes + values
    count = len(records).to_bytes(7, "little")
    return hashed(struct.pack("<QQQc7sQ", 0, len(data), 0, kind, count, len(values)) + data)


def hashed(chunk: bytes) -> bytes:
    """A chunk with the hashes that it should have."""
    its = highway_hash(chunk[40:]).to_bytes(8, "little")
    head = chunk[8:16] + its + chunk[24:40]
    return highway_hash(head).to_bytes(8, "little") + head + chunk[40:]


def message(*numbers: int) -> bytes:
    """A message whose fields are whole numbers, from the first on."""
    return b"".join(encode_varint(field << 3) + encode_varint(number) for field, number in enumerate(numbers, 1))


def write_arrayrecord(path: Path, records: Sequence[bytes], group: int = 3) -> Path:
    """A file of records, so many a chunk."""
    out, entries = bytearray(), []

    def put(data: bytes) -> int:
        start = len(out)
        while data:
            if len(out) % BLOCK == 0:
                out.extend(bytes(24))
            part = data[: BLOCK - len(out) % BLOCK]
            out.extend(part)
            data = data[len(part) :]
        return start

    put(SIGNATURE[24:])
    out[:24] = SIGNATURE[:24]
    for at in range(0, len(records), group):
        some = records[at : at + group]
        entries.append(message(put(chunk(some)), sum(map(len, some)), len(some)))
    about = message(1, len(entries), len(records))
    footer = put(chunk([b"\x0a" + encode_varint(len(about)) + about, *entries]))
    out.extend(bytes(-len(out) % BLOCK))
    put(chunk([message(footer, MAGIC)] * 3))
    out.extend(bytes(-len(out) % BLOCK))
    path.write_bytes(out)
    return path
