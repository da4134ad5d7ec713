"""CRC-32C (Castagnoli; RFC 3720, appendix B.4): by ``google-crc32c`` where its compiled half is, else by numpy."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78  # reflected
_LANE = 256
"""Bytes that are taken one after the other; lanes of so many are taken side by side."""
_MASK = 0xA282EAD8


def crc32c(data: bytes) -> int:
    """The CRC-32C of ``data``."""
    return _fastest()(data)


def masked_crc32c(data: bytes) -> int:
    """The CRC-32C as TFRecord keeps it (``tensorflow/core/lib/hash/crc32c.h``): turned, and with a constant added."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


@cache
def _fastest() -> Callable[[bytes], int]:
    try:
        with warnings.catch_warnings():  # it warns where it is not compiled
            warnings.simplefilter("ignore")
            library = importlib.import_module("google_crc32c")
    except ImportError:
        return by_numpy
    found: Callable[[bytes], int] = library.value
    return found if library.implementation == "c" else by_numpy


def by_numpy(data: bytes) -> int:
    """:func:`crc32c` without a library.

    The register starts as ones, which is the same as zeros and the first four bytes inverted; then zeros before the
    data change nothing, so that all lanes are full. Two neighbours become one: the left register moves on by the
    length of the right, and both are added."""
    if len(data) < 4:
        crc = 0xFFFFFFFF
        for byte in data:
            crc = int(_table()[(crc ^ byte) & 255]) ^ crc >> 8
        return crc ^ 0xFFFFFFFF
    rows = -(-len(data) // _LANE)
    padded = np.zeros(rows * _LANE, np.uint8)
    padded[-len(data) :] = np.frombuffer(data, np.uint8)
    padded[len(padded) - len(data) :][:4] ^= 255
    columns = padded.reshape(rows, _LANE).T.astype(np.uint32, order="C")
    crcs, table = np.zeros(rows, np.uint32), _table()
    for column in columns:
        crcs = table[(crcs ^ column) & 255] ^ crcs >> np.uint32(8)
    shift = _lane_shift()
    while len(crcs) > 1:
        if len(crcs) % 2:
            crcs = np.concatenate([np.zeros(1, np.uint32), crcs])
        crcs = _shifted(shift, crcs[::2]) ^ crcs[1::2]
        shift = _shifted(shift, shift)
    return int(crcs[0]) ^ 0xFFFFFFFF


@cache
def _table() -> NDArray[np.uint32]:
    """What each byte does to the register."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = table >> np.uint32(1) ^ np.where(table & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    return table


@cache
def _lane_shift() -> NDArray[np.uint32]:
    """Where each of the register's bits ends up when zeros of a lane's length follow."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    for _ in range(_LANE):
        bits = _table()[bits & 255] ^ bits >> np.uint32(8)
    return bits


def _shifted(shift: NDArray[np.uint32], crcs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    out = np.zeros_like(crcs)
    for bit in range(32):
        out ^= np.where(crcs >> np.uint32(bit) & 1, shift[bit], np.uint32(0))
    return out
