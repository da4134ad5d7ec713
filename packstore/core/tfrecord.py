"""Writes TFRecord (https://www.tensorflow.org/tutorials/load_data/tfrecord) and ``tf.train.Example``."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from packstore.core.crc32c import masked_crc32c

PACKED = ("float16", "bfloat16", "float64")
"""dtypes that an example cannot hold as numbers, since its floats are float32: exports write their bytes."""
_DELIMITED = 2  # a wire type of Protocol Buffers


def frame_record(data: bytes) -> bytes:
    """Frames data as a record: length (64 bits), masked CRC-32C of the length, data, masked CRC-32C of the data."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _crc(length), data, _crc(data)))


def _crc(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))


def write_example(features: Mapping[str, Sequence[bytes] | NDArray[np.float32] | NDArray[np.int64]]) -> bytes:
    """Encodes a ``tf.train.Example`` of lists of bytes, and arrays of float32 and int64. Sorts the features, so that
    equal features give equal bytes."""
    entries = []
    for name in sorted(features):
        values = features[name]
        if isinstance(values, np.ndarray):
            floats = values.dtype.kind == "f"
            data = values.astype("<f4").tobytes() if floats else b"".join(varint(int(n)) for n in values.flat)
            kind, listed = (2 if floats else 3), _delimited(1, data) if data else b""
        else:
            kind, listed = 1, b"".join(_delimited(1, value) for value in values)
        feature = _delimited(kind, listed)
        entries.append(_delimited(1, _delimited(1, name.encode()) + _delimited(2, feature)))
    return _delimited(1, b"".join(entries))


def varint(number: int) -> bytes:
    """Encodes a 64-bit number as a varint; negative numbers as two's complement."""
    number &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _delimited(number: int, data: bytes) -> bytes:
    return varint(number << 3 | _DELIMITED) + varint(len(data)) + data
