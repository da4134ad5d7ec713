"""Forms of values: stored, and in batches; bytes of their elements."""

from __future__ import annotations

from typing import Literal

Buffer = bytes | bytearray | memoryview
"""Bytes of one record."""

Form = Literal["file", "files", "text", "bytes", "numbers"]
"""The form of stored values: an image file, several of them, UTF-8, other bytes, or numbers."""

Collation = Literal["stack", "rows", "objects", "planes", "images", "image_lists"]
"""Collation of the values of a batch in a loader.

- ``stack``: numbers of one shape become one tensor.
- ``rows``: any number of rows a record become a list of tensors, a padded tensor, or a multi-hot tensor of classes.
- ``objects``: Python objects become a list.
- ``planes``: arrays and mask files on the pixels of the main image become one tensor; if they differ in shape, a list
  or a padded tensor.
- ``images``: images are decoded and augmented like the main image, and become one tensor.
- ``image_lists``: lists of images are decoded, and become a list of lists.
"""

ITEM_SIZE = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
"""Bytes of one element by dtype name, for all dtypes that a column may have. Stored values are little-endian."""
