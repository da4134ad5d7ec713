"""TensorFlow's wire formats: Protocol Buffers, ``tf.train.Example`` in it
(``tensorflow/core/example/{example,feature}.proto``), and the frame of a TFRecord around each example
(https://www.tensorflow.org/tutorials/load_data/tfrecord).

A :class:`Message` reads only the parts that are asked for. Most of a record's bytes are its image, which is often not
needed. The library ``protobuf`` would parse, and copy, all of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import google_crc32c
import numpy as np
from numpy.typing import NDArray

HEADER, CHECK = 12, 4
"""Bytes before and after the data of a TFRecord: its length (64 bits) and the masked CRC-32C of that; the CRC of the
data."""
_CRC_MASK = 0xA282EAD8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIRST, _SECOND = 1 << 3 | _BYTES, 2 << 3 | _BYTES
"""Tags of the first and the second field, of bytes."""
_WINDOW = 1 << 11
_HIGH = bytes(range(128, 256))
_MAX_FEATURES = 4096
PACKED = ("float16", "bfloat16", "float64")
"""dtypes that an example cannot hold as numbers, since its floats are float32: exports write their bytes."""
_KINDS: dict[int, Literal["bytes", "floats", "ints"]] = {1: "bytes", 2: "floats", 3: "ints"}


class Message:
    """Message in a file or in memory. Reads bytes on demand, at least 2 KiB at once.

    Keeps the first bytes and the piece that was read last. Positions count from the first byte.

    Attributes:
        size: Size of the message in bytes.
    """

    def __init__(self, size: int, read: Callable[[int, int], bytes], start: bytes = b"") -> None:
        """``read(size, at)`` returns ``size`` bytes from position ``at`` on; ``start`` holds the first bytes."""
        self.size = size
        self._read = read
        self._start = start  # kept while :attr:`_data` moves on to bytes behind an image
        self._data, self._from = start, 0

    @classmethod
    def from_bytes(cls, data: bytes) -> Message:
        """Creates a message from bytes in memory."""
        return cls(len(data), lambda size, at: data[at : at + size], data)

    def get(self, start: int, stop: int) -> bytes:
        """Returns the bytes from ``start`` to ``stop - 1``. Reads at least 2 KiB if they are not in memory.

        Raises :class:`ValueError` if the message ends earlier.
        """
        if 0 <= start <= stop <= len(self._start) and stop <= self.size:
            return self._start[start:stop]
        if not 0 <= start <= stop <= self.size:
            raise ValueError("it ends within a value")
        low = start - self._from
        if low < 0 or stop - self._from > len(self._data):
            self._data, self._from, low = (
                self._read(min(max(stop - start, _WINDOW), self.size - start), start),
                start,
                0,
            )
            if len(self._data) < stop - start:
                raise ValueError("it is cut off")
        return self._data[low : low + stop - start]

    def read_varint(self, at: int, stop: int) -> tuple[int, int]:
        """Reads a varint of up to 64 bits; returns its value and the position after it.

        Raises :class:`ValueError` if it does not end within 10 bytes or before ``stop``.
        """
        low = at - self._from
        if at < stop and 0 <= low < len(self._data) and self._data[low] < 128:
            return self._data[low], at + 1
        data = self.get(at, min(at + 10, stop))
        value = 0
        for place, byte in enumerate(data):
            value |= (byte & 127) << 7 * place
            if byte < 128:
                return value & 0xFFFFFFFFFFFFFFFF, at + place + 1
        raise ValueError("it has a number without an end")

    def fields(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """Yields number, wire type, start and end of each field's value between ``start`` and ``stop``.

        Raises :class:`ValueError` if the bytes are not a message.
        """
        while start < stop:
            tag, start = self.read_varint(start, stop)
            wire = tag & 7
            if wire == _BYTES:
                length, start = self.read_varint(start, stop)
            elif wire == _VARINT:
                length = self.read_varint(start, stop)[1] - start
            elif wire in (_FIXED64, _FIXED32):
                length = 8 if wire == _FIXED64 else 4
            else:
                raise ValueError(f"it has a field of wire type {wire}")
            if length > stop - start:
                raise ValueError("it has a value that is longer than itself")
            yield tag >> 3, wire, start, start + length
            start += length

    def parse_short_feature(self, at: int, stop: int) -> tuple[str, Feature, int] | None:
        """Parses the feature at ``at`` if it has the usual form; returns its name, its values and its end.

        The usual form has less than 128 bytes, the name first, and all values in one field. Returns None for any other
        form, and if the bytes are not in memory; reads nothing. Raises :class:`ValueError` if the name is not UTF-8.
        """
        data, low = self._data, at - self._from
        if low < 0 or len(data) < low + 2:
            return None
        end = low + 2 + data[low + 1]
        if data[low] != _FIRST or data[low + 1] > 127 or end > len(data) or at + end - low > stop or end < low + 6:
            return None
        # The length of each nested message must lead to the same end.
        value = low + 4 + data[low + 3]
        if data[low + 2] != _FIRST or value + 4 > end or data[value] != _SECOND or value + 2 + data[value + 1] != end:
            return None
        kind = _KINDS.get(data[value + 2] >> 3) if data[value + 2] & 7 == _BYTES else None
        if kind is None or value + 4 + data[value + 3] != end:
            return None
        feature = Feature(kind)
        if data[value + 3]:
            size = end - value - 6
            if size < 0 or data[value + 4] != _FIRST or data[value + 5] != size or (kind == "floats" and size % 4):
                return None
            feature.spans.append((_BYTES, at + value + 6 - low, at + end - low))
        return data[low + 4 : value].decode("utf-8"), feature, at + end - low


@dataclass(slots=True)
class Feature:
    """Location of a feature's values in a message.

    Attributes:
        kind: Type of the values; empty if there are none.
        spans: Wire type, start and end of each run of values.
    """

    kind: Literal["bytes", "floats", "ints", ""] = ""
    spans: list[tuple[int, int, int]] = field(default_factory=list)

    def count(self, message: Message) -> int:
        """Counts the values. Reads the bytes of packed integers, since their sizes differ."""
        if self.kind == "bytes":
            return len(self.spans)
        total = 0
        for wire, start, stop in self.spans:
            if wire != _BYTES:
                total += 1
            elif self.kind == "floats":
                total += (stop - start) // 4
            else:
                total += len(message.get(start, stop).translate(None, _HIGH))  # each ends with a low byte
        return total

    def bytes(self, message: Message) -> list[bytes]:
        """Reads values of the kind ``bytes``."""
        return [message.get(start, stop) for _, start, stop in self.spans]

    def numbers(self, message: Message) -> NDArray[np.float32] | NDArray[np.int64]:
        """Reads values of the kind ``floats`` as float32, or of ``ints`` as int64. Raises :class:`ValueError` if they
        are damaged."""
        if self.kind == "floats":
            data = b"".join(message.get(start, stop) for _, start, stop in self.spans)
            return np.frombuffer(data, "<f4").astype(np.float32)
        values: list[int] = []
        for _, start, stop in self.spans:
            data, value, shift = message.get(start, stop), 0, 0
            for byte in data:
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    values.append(value & 0xFFFFFFFFFFFFFFFF)
                    value = shift = 0
                elif shift > 63:
                    raise ValueError("it has a number without an end")
            if shift:
                raise ValueError("it has a number without an end")
        return np.array(values, np.uint64).view(np.int64)


def read_example(message: Message) -> dict[str, Feature]:
    """Locates the features of a ``tf.train.Example`` by name. Of several features with the same name, keeps the last.

    Raises :class:`ValueError` for any other message, and for more than 4,096 features.
    """
    features: dict[str, Feature] = {}
    for number, wire, start, stop in message.fields(0, message.size):
        if number == 2 and wire == _BYTES:
            raise ValueError("it is a SequenceExample, of which no images are known")
        if number != 1 or wire != _BYTES:
            raise ValueError("it is no tf.train.Example")
        for name, feature in _iterate_features(message, start, stop):
            features[name] = feature
            if len(features) > _MAX_FEATURES:
                raise ValueError(f"it has more than {_MAX_FEATURES} features")
    return features


def _iterate_features(message: Message, at: int, stop: int) -> Iterator[tuple[str, Feature]]:
    """Yields name and location of each feature in a ``tf.train.Features`` message."""
    while at < stop:
        short = message.parse_short_feature(at, stop)
        if short is not None:
            name, feature, at = short
            yield name, feature
            continue
        entry, wire, low, at = next(message.fields(at, stop))
        if entry == 1 and wire == _BYTES:
            yield _parse_entry(message, low, at)


def _parse_entry(message: Message, start: int, stop: int) -> tuple[str, Feature]:
    """Parses a map entry; returns name and location of a feature, both empty if they are missing."""
    name, feature = "", Feature()
    for number, wire, low, high in message.fields(start, stop):
        if number == 1 and wire == _BYTES:
            if high - low > 1024:
                raise ValueError("it has a feature of a name too long")
            name = message.get(low, high).decode("utf-8")
        elif number == 2 and wire == _BYTES:
            feature = _parse_feature(message, low, high)
    return name, feature


def _parse_feature(message: Message, start: int, stop: int) -> Feature:
    """Locates the values of a ``tf.train.Feature``."""
    feature = Feature()
    for number, wire, low, high in message.fields(start, stop):
        kind = _KINDS.get(number)
        if kind is None or wire != _BYTES:
            continue
        if kind != feature.kind:  # the last field of a oneof wins
            feature = Feature(kind)
        for each, inner, first, last in message.fields(low, high):
            if each != 1:
                continue
            if inner not in ((_BYTES,) if kind == "bytes" else (_BYTES, _FIXED32 if kind == "floats" else _VARINT)):
                raise ValueError(f"it has {kind} of wire type {inner}")
            if kind == "floats" and (last - first) % 4:
                raise ValueError("it has floats that are cut off")
            feature.spans.append((inner, first, last))
    return feature


def write_example(features: Mapping[str, Sequence[bytes] | NDArray[np.float32] | NDArray[np.int64]]) -> bytes:
    """Encodes a ``tf.train.Example`` of lists of bytes, and arrays of float32 and int64.

    Sorts the features by name: equal features give equal bytes.
    """
    entries = []
    for name in sorted(features):
        values = features[name]
        if isinstance(values, np.ndarray):
            floats = values.dtype.kind == "f"
            data = values.astype("<f4").tobytes() if floats else b"".join(encode_varint(int(n)) for n in values.flat)
            kind, listed = (2 if floats else 3), _encode_field(1, data) if data else b""
        else:
            kind, listed = 1, b"".join(_encode_field(1, value) for value in values)
        feature = _encode_field(kind, listed)
        entries.append(_encode_field(1, _encode_field(1, name.encode()) + _encode_field(2, feature)))
    return _encode_field(1, b"".join(entries))


def encode_varint(number: int) -> bytes:
    """Encodes a 64-bit number as a varint; a negative number as its two's complement."""
    number &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _encode_field(number: int, data: bytes) -> bytes:
    """Encodes a field of bytes: tag, length, data."""
    return encode_varint(number << 3 | _BYTES) + encode_varint(len(data)) + data


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


def masked_crc32c(data: bytes) -> int:
    """Computes the CRC-32C of ``data`` and masks it like ``tensorflow/core/lib/hash/crc32c.h``: rotates it and adds a
    constant."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _CRC_MASK) & 0xFFFFFFFF
