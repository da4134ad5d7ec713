"""Records of TFRecord (https://www.tensorflow.org/tutorials/load_data/tfrecord).

A record is a length (64 bits), the masked CRC-32C of the length, the data, and the masked CRC-32C of the data.
"""

from __future__ import annotations

import struct

from packstore.core.crc32c import masked_crc32c

HEADER, CHECK = 12, 4
"""Bytes before the data of a record, and after them."""


def frame_record(data: bytes) -> bytes:
    """Returns the bytes of a TFRecord record that contains ``data``."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _format_crc(length), data, _format_crc(data)))


def parse_record_length(header: bytes, left: int) -> int:
    """Checks the CRC in a record's header, and returns the length of the data.

    ``left`` is the number of bytes in the file from the header's start on. Raises :class:`ValueError` if the header is
    damaged or the record is cut off: no later record can be located.
    """
    if len(header) < HEADER:
        raise ValueError("the file ends within the header of a record")
    length, check = struct.unpack_from("<QI", header)
    if masked_crc32c(header[:8]) != check:
        raise ValueError("the length of a record does not match its checksum")
    if length > left - HEADER - CHECK:
        raise ValueError(f"a record of {length} bytes is cut off")
    return int(length)


def verify_data(data: bytes, length: int) -> bytes | None:
    """Returns the first ``length`` bytes of ``data`` if the four bytes after them are their CRC, else None."""
    body, check = data[:length], data[length:]
    return body if len(check) == CHECK and _format_crc(body) == check else None


def _format_crc(data: bytes) -> bytes:
    """Returns the masked CRC-32C of data as four bytes."""
    return struct.pack("<I", masked_crc32c(data))
