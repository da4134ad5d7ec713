"""The order of records: a pure function of (seed, epoch, rank, world size).

No list is shuffled and no state is kept. :func:`permute` computes any part of an epoch by itself, so batch 40,000 costs
as much as batch 0, a resume needs no replay, and ranks agree without communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.training.random_draws import MASK, Array, Draws, key

MAX_LENGTH = 2**31
"""Most records that an order is made for."""

_SORTED = 1024  # up to here a permutation is made by sorting, in 20 µs; a Feistel network needs room to mix
_ROUNDS = 6
_CHUNK = 65536  # elements, to stay in a core's L2 cache: 10 million in 0.07 s; in parts of 16,384 0.1 s

_ORDER, _BLOCKS, _TAIL, _WINDOW = range(-4, 0)  # streams, apart from those of the augmentations (0, 1, …)


def permute(positions: Array, length: int, seed: int, epoch: int, stream: int = _ORDER) -> Array:
    """The values at ``positions`` of a random permutation of [0, ``length``).

    Each position is worked out by itself: a Feistel network over (high, low) digits, the low one binary and the high
    one of any radix, so that at most one in ``sqrt(length)`` values falls outside and goes round again (cycle walking:
    Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). Up to 1,024 records it is the permutation that
    sorts their random bits.

    Args:
        positions: int64 numpy array or torch tensor, each in [0, ``length``), not checked. On a CUDA device the host
            waits for it, so let it be a whole epoch there rather than a batch.
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
        return _by_sorting(positions, length, seed, epoch, stream)
    network = _Network.of(length, seed, epoch, stream)
    if not isinstance(positions, np.ndarray):
        return network.walk(positions)
    result = np.empty(positions.shape, np.int64)
    flat, out = positions.reshape(-1), result.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        # 32-bit wrapping arithmetic gives the same bits as masked int64, in half the memory.
        out[start : start + _CHUNK] = network.walk(flat[start : start + _CHUNK].astype(np.uint32))
    return result


def _by_sorting(positions: Array, length: int, seed: int, epoch: int, stream: int) -> Array:
    if isinstance(positions, np.ndarray):
        records: Array = np.arange(length, dtype=np.int64)
    else:
        records = positions.new_ones(length).cumsum(0) - 1
    # Draws are a bijection of record numbers below 2**32: no two are equal, so every sort gives the same.
    return Draws(seed, epoch, records, stream).bits(0).argsort()[positions]


@dataclass(frozen=True)
class _Network:
    length: int
    shift: int
    radix: int
    keys: tuple[int, ...]

    @classmethod
    def of(cls, length: int, seed: int, epoch: int, stream: int) -> _Network:
        shift = (length - 1).bit_length() // 2
        keys = tuple(key(seed, epoch, stream, i) & MASK for i in range(_ROUNDS))
        return cls(length, shift, -(-length // (1 << shift)), keys)

    def walk(self, values: Array) -> Array:
        """``values`` in the permutation, int64 from int64 or uint32 from uint32."""
        values = self._once(values)
        outside = values >= self.length
        while outside.any():
            values[outside] = self._once(values[outside])
            outside = values >= self.length
        return values

    def _once(self, values: Array) -> Array:
        high, low = values >> self.shift, values & ((1 << self.shift) - 1)
        for i in range(0, _ROUNDS, 2):
            low ^= _round(high, self.keys[i]) & ((1 << self.shift) - 1)
            step = _round(low, self.keys[i + 1])
            step *= self.radix  # both below 2**16 (the radix at most 2**16), so this fits
            step >>= 16
            high += step
            # high modulo radix. Unsigned, what is below the radix wraps to something huge; else one comparison.
            if high.dtype == np.uint32:
                np.minimum(high, high - np.uint32(self.radix), out=high)
            else:
                high -= self.radix * (high >= self.radix)
        high <<= self.shift
        high |= low
        return high


def _round(digit: Array, round_key: int) -> Array:
    """16 bits that depend on a digit below 2**16."""
    value = digit ^ (np.uint32(round_key) if digit.dtype == np.uint32 else round_key)
    value *= 0x21F0AAAD
    value &= MASK
    value ^= value >> 15
    value *= 0x735A2D97
    value &= MASK
    value >>= 16
    return value


@dataclass(frozen=True, eq=False)
class Order:
    """The batches of every epoch, for one rank.

    An epoch is a sequence of records. Global batch ``b`` is its part ``[b * G, (b + 1) * G)`` with
    ``G = batch_size * world_size``, and each rank takes a contiguous share of it. So the same global batches come out
    of any number of ranks, ranks see disjoint records, and all have equally many batches.

    What remains after the last full global batch is the tail, of ``r < G`` records. ``drop_last`` leaves it out: a
    function of the global batch alone. Otherwise it is one more batch, split as evenly as can be (the first ranks get
    one record more); if ``r < world_size``, so that some rank would get nothing, ``r`` ranks get one record more in the
    last full batch instead. Then no record is left out, or repeated to fill up, and all ranks take as many steps.

    Args:
        length: Records of the dataset, at most 2**31.
        batch_size: Records a batch, of one rank.
        seed: Any integer.
        shuffle: Whether an epoch is a random permutation; else records come in their order.
        drop_last: Whether to leave out the tail.
        rank: Number of this rank.
        world_size: Number of ranks.
        block: Shuffle for storage that is slow to seek: blocks of this many consecutive records come in random order,
            and records are shuffled within windows of ``window`` consecutive blocks of that order. None shuffles all.
            Needs ``shuffle``.
        window: Blocks a window: a reader that holds this many, and two more, reads each block once.
        indices: Record numbers to draw from instead of all, as a one-dimensional array of integers; repetitions are
            allowed. Blocks are then of consecutive entries of it.

    Raises:
        UsageError: A number out of range; ``block`` without ``shuffle``; ``indices`` that are not integers or outside.
    """

    length: int
    batch_size: int
    seed: int = 0
    shuffle: bool = False
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    block: int | None = None
    window: int = 16
    indices: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if self.indices is not None:
            object.__setattr__(self, "indices", _check_indices(self.indices, self.length))
        if not 0 <= self.length <= MAX_LENGTH or self.count > MAX_LENGTH:
            raise UsageError(f"an order has 0 … {MAX_LENGTH:,} records, got {max(self.length, self.count):,}")
        if self.batch_size < 1:
            raise UsageError(f"batch_size should be at least 1, got {self.batch_size}")
        if not 0 <= self.rank < self.world_size:
            raise UsageError(f"rank should be 0 … world_size - 1, got rank {self.rank} of {self.world_size}")
        if self.block is not None and not self.shuffle:
            raise UsageError(f"block={self.block} says how to shuffle; add shuffle=True, or leave it out")
        if self.block is not None and self.block < 1:
            raise UsageError(f"block should be at least 1 record, got {self.block}")
        if self.window < 1:
            raise UsageError(f"window should be at least 1 block, got {self.window}")

    @property
    def count(self) -> int:
        """Records of an epoch, over all ranks, before anything is left out."""
        return self.length if self.indices is None else len(self.indices)

    @property
    def global_batch_size(self) -> int:
        """Records of a full batch, over all ranks."""
        return self.batch_size * self.world_size

    @property
    def dropped(self) -> int:
        """Records that an epoch leaves out, over all ranks."""
        if not self.batches():
            return self.count
        return self.count % self.global_batch_size if self.drop_last else 0

    def batches(self, epoch: int = 0) -> int:
        """Batches of an epoch, the same number on every rank."""
        full, tail = divmod(self.count, self.global_batch_size)
        return full + (tail >= self.world_size and not self.drop_last)

    def bounds(self, number: int) -> tuple[int, int]:
        """Start and stop of this rank's batch ``number`` in the epoch's sequence.

        Raises :class:`UsageError` for a batch that the epoch does not have.
        """
        if not 0 <= number < self.batches():
            raise UsageError(f"no batch {number}: an epoch has {self.batches()} batches")
        start = number * self.global_batch_size
        last = number == self.batches() - 1 and not self.drop_last
        size = self.count - start if last else self.global_batch_size
        share, more = divmod(size, self.world_size)
        start += self.rank * share + min(self.rank, more)
        return start, start + share + (self.rank < more)

    def position(self, batches: int) -> int:
        """How many records the first ``batches`` batches of an epoch have, over all ranks."""
        whole = self.count - self.dropped
        return min(batches * self.global_batch_size, whole) if batches < self.batches() else whole

    def batches_before(self, position: int) -> int:
        """The batches that have the first ``position`` records; the last one may have more."""
        whole = self.count - self.dropped
        return min(-(-position // self.global_batch_size), self.batches()) if position < whole else self.batches()

    def batch(self, epoch: int, number: int) -> NDArray[np.int64]:
        """The records of this rank's batch ``number``, int64 ``(B,)`` with numbers in [0, ``length``).

        Its cost depends on the batch size only. Raises as :meth:`bounds`.
        """
        records: NDArray[np.int64] = self.sequence(epoch, np.arange(*self.bounds(number), dtype=np.int64))
        return records

    def sequence(self, epoch: int, positions: Array) -> Array:
        """The records that come at ``positions`` of the sequence of all ranks, each in [0, :attr:`count`).

        int64, a numpy array or a torch tensor as ``positions`` is, on its device. With torch and ``block`` or
        ``indices``, and on a CUDA device in any case, the host waits: ask for a whole epoch then, rather than a batch.
        """
        if isinstance(positions, np.ndarray):
            return self._numpy_sequence(epoch, positions)
        if self.block is None and self.indices is None:
            shuffled = self.shuffle and len(positions)  # of no records there is no permutation
            return permute(positions, self.count, self.seed, epoch) if shuffled else positions
        import torch

        return torch.from_numpy(self._numpy_sequence(epoch, positions.cpu().numpy())).to(positions.device)

    def _numpy_sequence(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        if positions.size and self.block is not None:
            positions = self._in_blocks(epoch, positions, self.block)
        elif positions.size and self.shuffle:
            positions = permute(positions, self.count, self.seed, epoch)
        return positions if self.indices is None else self.indices[positions]

    def _in_blocks(self, epoch: int, positions: NDArray[np.int64], block: int) -> NDArray[np.int64]:
        # Within windows first: which place of the sequence of shuffled blocks comes at each position?
        span = block * self.window
        places = np.empty_like(positions)
        windows = positions // span
        for window in np.unique(windows).tolist():
            inside = windows == window
            start = window * span
            size = min(span, self.count - start)
            places[inside] = start + permute(
                positions[inside] - start, size, key(self.seed, _WINDOW), epoch, stream=window
            )
        # The blocks in random order, with the short one at the end of the records at a random place between them.
        full, rest = divmod(self.count, block)
        if full == 0:
            return places
        at = int(Draws(self.seed, epoch, np.zeros(1, np.int64), _TAIL).integers(full + 1, 0)[0]) * block
        in_rest = (places >= at) & (places < at + rest)
        moved = np.where(places < at, places, np.maximum(places - rest, 0))
        blocks = permute(moved // block, full, self.seed, epoch, _BLOCKS)
        return np.where(in_rest, places - at + full * block, blocks * block + moved % block)


def _check_indices(indices: Any, length: int) -> NDArray[np.int64]:
    array = np.asarray(indices)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise UsageError(f"indices should be a one-dimensional array of integers, got {array.dtype} {array.shape}")
    if array.size and not (array.min() >= 0 and array.max() < length):
        raise UsageError(
            f"indices should be in [0, {length}), got {array.min()} … {array.max()}; negative ones are not counted back"
        )
    result = array.astype(np.int64)
    result.flags.writeable = False
    return result
