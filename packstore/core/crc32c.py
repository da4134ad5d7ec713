"""CRC-32C (Castagnoli; RFC 3720, appendix B.4) as TFRecord keeps it."""

from __future__ import annotations

import google_crc32c

_MASK = 0xA282EAD8


def masked_crc32c(data: bytes) -> int:
    """Computes the CRC-32C of ``data`` and masks it like TensorFlow: rotates it and adds a constant.

    See ``tensorflow/core/lib/hash/crc32c.h``.
    """
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
