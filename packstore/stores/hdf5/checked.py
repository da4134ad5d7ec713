"""Bounds-checked access to the bytes of an HDF5 file, and the hash function of HDF5's checksums."""

from __future__ import annotations

import struct

UNDEFINED = 0xFFFFFFFFFFFFFFFF
"""HDF5's undefined address."""
_MASK = 0xFFFFFFFF


class Hdf5Error(Exception):
    """The file is damaged; the message says where.

    :mod:`packstore.stores.hdf5.store` raises :class:`packstore.core.errors.StoreError` instead.
    """


class UnsupportedHdf5Error(Hdf5Error):
    """The file uses a feature of HDF5 that packstore never writes; the message names it."""


class FileBytes:
    """The bytes of a file: ``data``, and slices of it with bounds checks."""

    def __init__(self, data: memoryview) -> None:
        self.data = data

    def read_slice(self, start: int, size: int, what: str) -> memoryview:
        """Returns a view of ``size`` bytes from ``start`` on.

        Raises :class:`Hdf5Error` that names the structure ``what`` if the slice exceeds the file.
        """
        if not 0 <= start <= start + size <= len(self.data):
            raise Hdf5Error(f"its {what} lies outside the file (at byte {start})")
        return self.data[start : start + size]


def hash_lookup3(data: bytes | memoryview) -> int:
    """Computes Bob Jenkins' lookup3 hash (``hashlittle`` with initial value 0), HDF5's checksum of its structures."""
    size = len(data)
    a = b = c = (0xDEADBEEF + size) & _MASK
    if not size:
        return c
    words: tuple[int, ...] = struct.unpack(
        f"<{(size + 11) // 12 * 3}I", bytes(data).ljust((size + 11) // 12 * 12, b"\0")
    )
    for i in range(0, len(words) - 3, 3):
        a, b, c = (a + words[i]) & _MASK, (b + words[i + 1]) & _MASK, c + words[i + 2] & _MASK
        a = (a - c & _MASK) ^ (c << 4 & _MASK | c >> 28)
        c = c + b & _MASK
        b = (b - a & _MASK) ^ (a << 6 & _MASK | a >> 26)
        a = a + c & _MASK
        c = (c - b & _MASK) ^ (b << 8 & _MASK | b >> 24)
        b = b + a & _MASK
        a = (a - c & _MASK) ^ (c << 16 & _MASK | c >> 16)
        c = c + b & _MASK
        b = (b - a & _MASK) ^ (a << 19 & _MASK | a >> 13)
        a = a + c & _MASK
        c = (c - b & _MASK) ^ (b << 4 & _MASK | b >> 28)
        b = b + a & _MASK
    a, b, c = (a + words[-3]) & _MASK, (b + words[-2]) & _MASK, (c + words[-1]) & _MASK
    c = ((c ^ b) - (b << 14 & _MASK | b >> 18)) & _MASK
    a = ((a ^ c) - (c << 11 & _MASK | c >> 21)) & _MASK
    b = ((b ^ a) - (a << 25 & _MASK | a >> 7)) & _MASK
    c = ((c ^ b) - (b << 16 & _MASK | b >> 16)) & _MASK
    a = ((a ^ c) - (c << 4 & _MASK | c >> 28)) & _MASK
    b = ((b ^ a) - (a << 14 & _MASK | a >> 18)) & _MASK
    return ((c ^ b) - (b << 24 & _MASK | b >> 8)) & _MASK
