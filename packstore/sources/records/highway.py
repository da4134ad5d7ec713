"""HighwayHash (https://arxiv.org/abs/1612.06257), 64 bits, with the key of Riegeli: the checksum of its chunks."""

from __future__ import annotations

import struct

from packstore.images import engine

_KEY = (0x2F696C6567656952, 0x0A7364726F636572, 0x2F696C6567656952, 0x0A7364726F636572)
_FIRST = (
    (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3),
    (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377),
)
_PACKET = struct.Struct("<4Q")
_HALF, _WHOLE = (1 << 32) - 1, (1 << 64) - 1
_LOW, _HIGH = (3, 12, 2, 5, 14, 1, 15, 0), (11, 4, 10, 13, 9, 6, 8, 7)
_PAIR = struct.Struct("<2Q")


def highway_hash(data: bytes) -> int:
    """The hash of ``data``; without the compiled engine at some megabytes a second."""
    found = engine.highway_hash(data)
    return _State().digest(data) if found is None else found


class _State:
    def __init__(self) -> None:
        self._mul0, self._mul1 = map(list, _FIRST)
        self._v0 = [first ^ key for first, key in zip(self._mul0, _KEY, strict=True)]
        self._v1 = [first ^ _swapped(key) for first, key in zip(self._mul1, _KEY, strict=True)]

    def digest(self, data: bytes) -> int:
        """The hash; once."""
        whole = len(data) - len(data) % _PACKET.size
        for lanes in _PACKET.iter_unpack(memoryview(data)[:whole]):
            self._update(lanes)
        if whole < len(data):
            self._update_rest(data[whole:])
        for _ in range(4):
            first, second, third, fourth = map(_swapped, self._v0)
            self._update((third, fourth, first, second))
        return (self._v0[0] + self._v1[0] + self._mul0[0] + self._mul1[0]) & _WHOLE

    def _update(self, lanes: tuple[int, ...]) -> None:
        v0, v1, mul0, mul1 = self._v0, self._v1, self._mul0, self._mul1
        for i in range(4):
            v1[i] = (v1[i] + mul0[i] + lanes[i]) & _WHOLE
            mul0[i] ^= (v1[i] & _HALF) * (v0[i] >> 32)
            v0[i] = (v0[i] + mul1[i]) & _WHOLE
            mul1[i] ^= (v0[i] & _HALF) * (v1[i] >> 32)
        for of, to in ((v1, v0), (v0, v1)):
            for i in (0, 2):
                pair = _PAIR.pack(of[i], of[i + 1])
                low, high = bytes([pair[n] for n in _LOW]), bytes([pair[n] for n in _HIGH])
                to[i] = (to[i] + int.from_bytes(low, "little")) & _WHOLE
                to[i + 1] = (to[i + 1] + int.from_bytes(high, "little")) & _WHOLE

    def _update_rest(self, rest: bytes) -> None:
        size = len(rest)
        for i in range(4):
            self._v0[i] = (self._v0[i] + (size << 32) + size) & _WHOLE
            self._v1[i] = _turned(self._v1[i] >> 32, size) << 32 | _turned(self._v1[i] & _HALF, size)
        packet, whole, left = bytearray(_PACKET.size), size & ~3, size & 3
        packet[:whole] = rest[:whole]
        if size & 16:
            packet[28:] = rest[-4:]
        elif left:
            packet[16:19] = rest[whole], rest[whole + left // 2], rest[-1]
        self._update(_PACKET.unpack(packet))


def _swapped(value: int) -> int:
    return value >> 32 | (value & _HALF) << 32


def _turned(half: int, count: int) -> int:
    return (half << count | half >> 32 - count) & _HALF
