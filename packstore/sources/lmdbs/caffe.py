"""LMDBs of Caffe, whose values are ``Datum`` messages (``caffe.proto``).

A message has an image file, or pixels as channels x height x width in the order blue, green, red. Keys and order are
those of the LMDB, as in Caffe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from packstore.core.fields import Field, Image, Label
from packstore.core.protobuf import Message
from packstore.images.sniff import begins_like_image, excess_pixels_message
from packstore.sources.base import Kind
from packstore.sources.lmdbs.base import Database, LmdbSource, decode_key
from packstore.sources.rows import Row

_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOATS, _ENCODED = range(1, 8)
_NUMBERS = (_CHANNELS, _HEIGHT, _WIDTH, _LABEL, _ENCODED)
_BYTES = 2


class _Datum(NamedTuple):
    """Parsed ``Datum`` message.

    Attributes:
        shape: Channels, height and width.
        data: Begin and end of the image in the message.
        label: Class number.
        encoded: The image is a file, not pixels.
    """

    shape: tuple[int, int, int]
    data: tuple[int, int]
    label: int
    encoded: bool


class CaffeSource(LmdbSource):
    """Source of Caffe's LMDBs. Pixels are stored blue first, and returned red first. If the LMDB has ``cifar`` in its
    name, they are stored red first. A message without a label has class 0. Messages of floating-point numbers are bad
    samples. So are pixels of other than 1 or 3 channels."""

    kind = "caffe"

    @classmethod
    def is_of_kind(cls, database: Database) -> bool:
        """Tells if more than half of the first 4 values are messages with an image."""
        are_images = [_is_image_datum(value) for _, value in database.read_first_entries()]
        return 2 * sum(are_images) > len(are_images)

    @cached_property
    def _has_files(self) -> bool:
        """True if the first message with an image has a file, False if it has pixels."""
        return next(
            parse_datum(value).encoded for _, value in self.databases[0].read_first_entries() if _is_image_datum(value)
        )

    def fields(self) -> Mapping[str, Field]:
        """Declares image (files or pixels, as in the first message) and label."""
        return {"image": Image("original" if self._has_files else "uint8"), "label": Label()}

    def rows(self, split: str) -> Iterator[Row]:
        """Yields a row for each entry. The row's key is the key in the LMDB, after the split's name if there is one.
        The row's size is the size of the message."""
        for number, database in self.list_databases(split):
            for key, size in database.walk_entries():
                text = decode_key(key)
                yield Row(f"{split}/{text}" if split else text, (number, key), size, 8)

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads image and label; the image is a file, or pixels ``(H, W, C)``, red first. Raises :class:`ValueError`
        for a damaged message, a missing or too large image, and other than 1 or 3 channels."""
        number, key = ref
        data = self.databases[number].read_value(key)
        if data is None:
            raise ValueError("it is not in the LMDB")
        datum = parse_datum(data)
        content = data[slice(*datum.data)]
        if datum.encoded:
            return {"image": self.check_size(content), "label": datum.label}
        channels, height, width = datum.shape
        reason = excess_pixels_message(width, height, self.options.max_pixels)
        if reason is not None:
            raise ValueError(reason)
        if channels not in (1, 3) or len(content) != channels * height * width or not content:
            raise ValueError(f"it has {len(content)} bytes of pixels, expected {channels} x {height} x {width}")
        planes = np.frombuffer(content, np.uint8).reshape(channels, height, width)
        red_first = channels == 1 or "cifar" in self.databases[number].path.name.lower()
        pixels = planes if red_first else planes[::-1]
        return {"image": np.ascontiguousarray(pixels.transpose(1, 2, 0)), "label": datum.label}


def _is_image_datum(data: bytes) -> bool:
    """Tells if a value is a valid message with an image file or with pixels; False for any other value."""
    try:
        datum = parse_datum(data)
    except ValueError:
        return False
    start, stop = datum.data
    return start < stop and (begins_like_image(data[start : start + 16]) if datum.encoded else bool(datum.shape[0]))


def parse_datum(data: bytes) -> _Datum:
    """Parses a message; a missing number, such as the label, is 0. Raises :class:`ValueError` if ``data`` is no
    ``Datum``, or has floating-point numbers."""
    message, numbers, place = Message.from_bytes(data), dict.fromkeys(_NUMBERS, 0), (0, 0)
    for field, wire, start, stop in message.fields(0, len(data)):
        if field in _NUMBERS and wire == 0:
            numbers[field] = message.read_varint(start, stop)[0]
        elif field == _DATA and wire == _BYTES:
            place = start, stop
        elif field == _FLOATS:
            raise ValueError("it holds floating point numbers, which are no pixels")
        else:
            raise ValueError(f"it has a field {field} that a Datum does not have")
    shape = numbers[_CHANNELS], numbers[_HEIGHT], numbers[_WIDTH]
    label = numbers[_LABEL] - (1 << 64 if numbers[_LABEL] >= 1 << 63 else 0)
    return _Datum(shape, place, label, bool(numbers[_ENCODED]))


KIND = Kind(CaffeSource.kind, "an LMDB of Caffe", CaffeSource.recognise, CaffeSource)
