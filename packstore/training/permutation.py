"""Random permutations that are computed position by position, without shuffled lists or state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.images.engine import permute_in_place
from packstore.training.random_draws import MASK, Array, Draws, derive_key

MAX_LENGTH = 2**31
"""Maximum number of records of an order."""
MIXTURE, DECK, ORDER, BLOCKS, TAIL, WINDOW = range(-6, 0)
"""Streams of random numbers, distinct from those of augmentations (0, 1, …). Streams below ``MIXTURE`` belong to the
stores of a mixture."""

_SORTED = 1024  # up to here a permutation is made by sorting, in 20 µs; a Feistel network needs room to mix
_ROUNDS = 6


def permute(positions: Array, length: int, seed: int, epoch: int, stream: int = ORDER) -> Array:
    """Computes the values at ``positions`` of a random permutation of [0, ``length``).

    Each position is computed by itself, by a Feistel network. For a ``length`` of at most 1,024, the permutation is the
    order of random bits instead.

    Args:
        positions: int64 numpy array or torch tensor, each in [0, ``length``), not checked. On a CUDA device the host
            waits for the result: permute a whole epoch there rather than a batch.
        length: 1 … 2**31.
        seed: Any integer.
        epoch: Number of the epoch.
        stream: Number of the permutation, if there are several.

    Returns:
        int64, of the shape, kind and device of ``positions``.

    Raises:
        UsageError: ``length`` is out of range.
    """
    if not 0 < length <= MAX_LENGTH:
        raise UsageError(f"an order needs 1 … {MAX_LENGTH:,} records, got {length:,}")
    if length <= _SORTED:
        return _permute_by_sorting(positions, length, seed, epoch, stream)
    network = _FeistelNetwork.derive(length, seed, epoch, stream)
    if not isinstance(positions, np.ndarray):
        return network.permute_values(positions)
    result: NDArray[np.int64] = np.array(positions, np.int64, order="C")
    if permute_in_place(result, length, network.shift, network.radix, network.keys):
        return result
    # 32-bit wrapping arithmetic gives the same bits as masked int64, in half the memory.
    return network.permute_values(positions.astype(np.uint32)).astype(np.int64)


def permute_within(
    places: NDArray[np.int64],
    windows: NDArray[np.int64],
    sizes: NDArray[np.int64],
    seed: int,
    epoch: int,
    stream: int = WINDOW,
) -> NDArray[np.int64]:
    """Computes the values at ``places`` of many permutations, one for each window.

    Args:
        places: ``(n,)``, each in [0, size of its window), not checked.
        windows: ``(n,)``, number of the window of each place, in [0, 2**31).
        sizes: ``(n,)``, size of that window, 1 … 2**31.
        seed: Any integer.
        epoch: Number of the epoch.
        stream: Number of the permutations, if there are several in a window.

    Returns:
        ``(n,)``, each in [0, size of its window).
    """
    result = np.empty_like(places)  # of all windows together: one by one, each would cost 60 µs
    small = sizes <= _SORTED
    for chosen, permuted in ((small, _permute_within_by_sorting), (~small, _permute_within_by_network)):
        if chosen.any():
            result[chosen] = permuted(places[chosen], windows[chosen], sizes[chosen], seed, epoch, stream)
    return result


def _permute_within_by_sorting(
    places: NDArray[np.int64],
    windows: NDArray[np.int64],
    sizes: NDArray[np.int64],
    seed: int,
    epoch: int,
    stream: int,
) -> NDArray[np.int64]:
    """Computes :func:`permute_within` for windows of up to 1,024, by sorting a random number for each place."""
    numbers, first, which = np.unique(windows, return_index=True, return_inverse=True)
    stops = np.cumsum(sizes[first])
    starts = stops - sizes[first]
    owner = np.repeat(np.arange(len(numbers)), sizes[first])
    inside = np.arange(stops[-1]) - starts[owner]
    bits = Draws(seed, epoch, numbers[owner] << 32 | inside, stream).bits(0)
    # No two draws of a window are equal, so every sort gives the same.
    chosen: NDArray[np.int64] = inside[np.argsort(owner << 32 | bits)][starts[which] + places]
    return chosen


def _permute_within_by_network(
    places: NDArray[np.int64],
    windows: NDArray[np.int64],
    sizes: NDArray[np.int64],
    seed: int,
    epoch: int,
    stream: int,
) -> NDArray[np.int64]:
    """Computes :func:`permute_within` for large windows, by a Feistel network for each."""
    shift = np.frexp((sizes - 1).astype(np.float64))[1] // 2  # half of the bits
    radix = -(-sizes >> shift)
    keys = Draws(seed, epoch, windows, stream).bits(0, _ROUNDS)
    network = _FeistelNetwork(*(part.astype(np.uint32) for part in (sizes, shift, radix, keys)))
    walked: NDArray[np.int64] = network.permute_values(places.astype(np.uint32)).astype(np.int64)
    return walked


def _permute_by_sorting(positions: Array, length: int, seed: int, epoch: int, stream: int) -> Array:
    """Computes :func:`permute` for short sequences, by sorting a random number for each record."""
    if isinstance(positions, np.ndarray):
        records: Array = np.arange(length, dtype=np.int64)
    else:
        records = positions.new_ones(length).cumsum(0) - 1
    # Draws are a bijection of record numbers below 2**32: no two are equal, so every sort gives the same.
    return Draws(seed, epoch, records, stream).bits(0).argsort()[positions]


@dataclass(frozen=True)
class _FeistelNetwork:
    """Keyed permutation of [0, ``length``), over a high and a low digit.

    Its attributes may be arrays, for a network per value. The low digit is binary, and the high digit has any radix. At
    most one in ``sqrt(length)`` values falls outside the range.

    Attributes:
        length: Number of values.
        shift: Number of bits of the low digit.
        radix: Radix of the high digit.
        keys: Keys of the rounds, ``(rounds,)``; with one network per value ``(rounds, n)``.
    """

    length: Any
    shift: Any
    radix: Any
    keys: Any

    @classmethod
    def derive(cls, length: int, seed: int, epoch: int, stream: int) -> _FeistelNetwork:
        """Creates the network for one length, with keys from seed, epoch and stream."""
        shift = (length - 1).bit_length() // 2
        keys = tuple(derive_key(seed, epoch, stream, i) & MASK for i in range(_ROUNDS))
        return cls(length, shift, -(-length // (1 << shift)), keys)

    def permute_values(self, values: Array) -> Array:
        """Permutes ``values`` in [0, ``length``), int64 to int64 or uint32 to uint32.

        A result outside the range is encrypted again until it is inside (cycle walking: Black and Rogaway, "Ciphers
        with arbitrary finite domains", 2002).
        """
        values = self._encrypt(values)
        outside = values >= self.length
        while outside.any():
            values[outside] = self._select_keys(outside)._encrypt(values[outside])
            outside = values >= self.length
        return values

    def _select_keys(self, chosen: Array) -> _FeistelNetwork:
        """Returns the network for the ``chosen`` values."""
        # All values share one network.
        if isinstance(self.length, int):
            return self
        return _FeistelNetwork(self.length[chosen], self.shift[chosen], self.radix[chosen], self.keys[:, chosen])

    def _encrypt(self, values: Array) -> Array:
        """Permutes numbers below ``radix << shift`` by rounds of a Feistel network."""
        high, low = values >> self.shift, values & ((1 << self.shift) - 1)
        for i in range(0, _ROUNDS, 2):
            low ^= _hash_digit(high, self.keys[i]) & ((1 << self.shift) - 1)
            step = _hash_digit(low, self.keys[i + 1])
            step *= self.radix  # both below 2**16 (the radix at most 2**16), so this fits
            step >>= 16
            high += step
            # high modulo radix: unsigned values below the radix wrap to huge ones, so the minimum is right.
            if high.dtype == np.uint32:
                np.minimum(high, high - np.uint32(self.radix), out=high)
            else:
                high -= self.radix * (high >= self.radix)
        high <<= self.shift
        high |= low
        return high


def _hash_digit(digit: Array, round_key: Any) -> Array:
    """Hashes a digit below 2**16 with a round's key, to 16 bits."""
    wraps = digit.dtype == np.uint32
    value = digit ^ (np.uint32(round_key) if wraps else round_key)
    value *= 0x21F0AAAD
    if not wraps:
        value &= MASK
    value ^= value >> 15
    value *= 0x735A2D97
    if not wraps:
        value &= MASK
    value >>= 16
    return value
