"""Random numbers without a generator: each a pure function of (seed, epoch, record, stream, draw).

A record's crop in epoch 7 is then the same whichever thread, rank or device works it out, alone or in a batch, before
or after a resume: there is no state that could be in another place. Everything is int64 arithmetic that never
overflows (a 32-bit value times a constant below 2**31), so numpy and torch, CPU and CUDA, give the same bits.

The 32-bit mixing function is two rounds of xorshift and multiply with the constants ``[16 21f0aaad 15 735a2d97 15]``,
the least biased of that shape with both factors below 2**31 (github.com/skeeto/hash-prospector, "Best two-round
functions": mean avalanche bias 0.107 of an ideal 0). Keys are made by splitmix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", 2014).

Here ``Array`` is a numpy array or a torch tensor; torch itself is not imported.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.training.arguments import KnownArguments

Array = Any
"""A numpy array or a torch tensor on any device; functions return the kind that they are given."""

MASK = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_GOLDEN = 0x9E3779B9  # 2**32 divided by the golden ratio: multiples of it spread evenly
_HIGH = 0x2C1B3C6D  # factor of the upper halves of record numbers


def mix_bits(value: Any) -> Any:
    """Hashes a 32-bit value to another 32-bit value. A bijection of [0, 2**32).

    Works on Python integers, and on numpy arrays and torch tensors of int64.
    """
    if isinstance(value, np.ndarray):
        return _mix_bits_in_place(value.astype(np.uint32)).astype(np.int64)
    value = value ^ (value >> 16)
    value = (value * 0x21F0AAAD) & MASK
    value = value ^ (value >> 15)
    value = (value * 0x735A2D97) & MASK
    return value ^ (value >> 15)


def _mix_bits_in_place(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Computes :func:`mix_bits` of a uint32 array in place, and returns that array."""
    shifted = np.right_shift(bits, _SIXTEEN)  # few calls of numpy, which are what takes time
    np.bitwise_xor(bits, shifted, bits)
    for factor in _FACTORS:
        np.multiply(bits, factor, bits)
        np.right_shift(bits, _FIFTEEN, shifted)
        np.bitwise_xor(bits, shifted, bits)
    return bits


_SIXTEEN, _FIFTEEN = np.uint32(16), np.uint32(15)
_FACTORS = np.uint32(0x21F0AAAD), np.uint32(0x735A2D97)


@lru_cache(4096)
def derive_key(*words: int) -> int:
    """Computes a 64-bit key that depends on all of ``words`` (integers, modulo 2**64) and on their order. Cached."""
    state = 0
    for word in words:
        state = ((state ^ (word & _MASK64)) + 0x9E3779B97F4A7C15) & _MASK64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
        state ^= state >> 31
    return state


def to_float64(value: Array) -> Array:
    """Converts ``value`` to float64."""
    return value.astype(np.float64) if isinstance(value, np.ndarray) else value.double()


def to_int64(value: Array) -> Array:
    """Converts ``value`` to int64, truncated toward zero."""
    return value.astype(np.int64) if isinstance(value, np.ndarray) else value.long()


def with_occurrences(records: NDArray[np.int64]) -> NDArray[np.int64]:
    """Makes an id of each of ``records``, which are numbers from 0 to 2**32 - 1.

    The id is the record plus 2**32 times the number of its earlier occurrences in the array. ``id & MASK`` is the
    record. Returns ``records`` itself if none repeats.
    """
    if not len(records) or np.bincount(records).max() == 1:
        return records
    return records + (_count_earlier(records) << 32)


def _count_earlier(records: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts for each entry how many earlier entries are the same record."""
    order = np.argsort(records, kind="stable")
    first = np.flatnonzero(np.diff(records[order], prepend=-1))
    counts = np.diff(first, append=len(records))
    earlier = np.empty_like(records)
    earlier[order] = np.arange(len(records)) - np.repeat(first, counts)
    return earlier


class OccurrenceCounter:
    """Makes ids as :func:`with_occurrences` for a long sequence, part by part. Counts each record's occurrences."""

    def __init__(self, records: int) -> None:
        """
        Args:
            records: Upper bound of record numbers, exclusive.
        """
        self._counts = np.zeros(records, np.int64)

    def make_ids(self, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the ids of the next part of the sequence. Remembers how often its records have occurred."""
        ids: NDArray[np.int64] = records + ((self._counts[records] + _count_earlier(records)) << 32)
        np.add.at(self._counts, records, 1)
        return ids


@dataclass(frozen=True, eq=False, repr=False)
class Draws(KnownArguments):
    """Random numbers of some records in one epoch. Each is computed by the number of its draw, without a state.

    Args:
        seed: Any integer, taken modulo 2**64.
        epoch: Number of the epoch.
        records: Record numbers, or ids of :func:`with_occurrences`: a one-dimensional int64 numpy array or torch
            tensor. All results are on its device.
        stream: Number of the consumer. Streams are independent. Augmentations use their index in the user's list.
        on_cpu: The same records as a numpy array, if they are on a device: :meth:`on_host` then copies nothing.
    """

    seed: int
    epoch: int
    records: Array
    stream: int = 0
    on_cpu: NDArray[np.int64] | None = None

    def __repr__(self) -> str:
        return f"<Draws of {len(self):,} records: seed {self.seed}, epoch {self.epoch}, stream {self.stream}>"

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: slice | Array) -> Draws:
        """Returns the draws of some of the records: of a slice, or at an array of indices."""
        return Draws(self.seed, self.epoch, self.records[index], self.stream)

    def replace(self, *, epoch: int | None = None, stream: int | None = None) -> Draws:
        """Returns the draws of the same records in another epoch or stream. None keeps the present epoch or stream."""
        draws = Draws(
            self.seed,
            self.epoch if epoch is None else epoch,
            self.records,
            self.stream if stream is None else stream,
            self.on_cpu,
        )
        if isinstance(self.records, np.ndarray):
            draws.__dict__["_record_halves"] = self._record_halves  # worked out once for all streams
        return draws

    def on_host(self) -> Draws:
        """Returns these draws with numpy records. Returns the same object if they are numpy already.

        Otherwise copies the records, and waits for the device, unless :attr:`on_cpu` has them.
        """
        if isinstance(self.records, np.ndarray):
            return self
        records = self.records.cpu().numpy() if self.on_cpu is None else self.on_cpu
        return dataclasses.replace(self, records=records, on_cpu=None)

    def child(self, number: int) -> Draws:
        """Returns draws of the same records for part ``number`` of an operation. They are independent of all others."""
        return self.replace(stream=derive_key(self.stream, number + 1))

    def bits(self, draw: int, count: int | None = None) -> Array:
        """Draws 32 random bits per record, as int64 ``(B,)`` in [0, 2**32).

        Args:
            draw: Number of the draw, not negative.
            count: Return draws ``draw`` … ``draw + count - 1`` at once, as ``(count, B)``.
        """
        return to_int64(self._draw_bits(draw, count))

    def _draw_bits(self, draw: int, count: int | None = None) -> Array:
        """Draws as :meth:`bits`, but returns uint32 for numpy records."""
        key, base = self._key_and_bits
        if isinstance(base, np.ndarray):
            if count is None:
                return _mix_bits_in_place(base ^ np.uint32(mix_bits((key + draw * _GOLDEN) & MASK)))
            steps = np.arange(draw, draw + count, dtype=np.uint32) * np.uint32(_GOLDEN)
            steps += np.uint32(key)
            return _mix_bits_in_place(base ^ _mix_bits_in_place(steps)[:, None])
        if count is None:
            return mix_bits(base ^ mix_bits((key + draw * _GOLDEN) & MASK))
        numbers = base.new_ones(count).cumsum(0) + (draw - 1)  # arange on its device, without importing torch
        return mix_bits(base[None] ^ mix_bits((key + numbers * _GOLDEN) & MASK)[:, None])

    def uniform(self, draw: int, count: int | None = None) -> Array:
        """Draws uniform numbers, float64 in [0, 1) with a resolution of 2**-32. Shapes are as in :meth:`bits`."""
        return to_float64(self._draw_bits(draw, count)) * 2.0**-32

    def integers(self, high: Any, draw: int, count: int | None = None) -> Array:
        """Draws uniform integers, int64 in [0, ``high``). Shapes are as in :meth:`bits`.

        A value's probability is off by at most 2**-32: multiplication and shift (Lemire, "Fast random integer
        generation in an interval", 2019) without his rejection.

        Args:
            high: 1 … 2**31: an integer, or an array with an integer per record. Arrays are not checked, because that
                would wait for the device.
            draw: As for :meth:`bits`.
            count: As for :meth:`bits`.

        Raises:
            UsageError: ``high`` is an integer outside 1 … 2**31.
        """
        if isinstance(high, int) and not 0 < high <= 2**31:
            raise UsageError(f"the number of choices should be 1 … 2**31, got {high}")
        return (self.bits(draw, count) * high) >> 32

    @cached_property
    def _key_and_bits(self) -> tuple[int, Array]:
        """The key that enters each draw with the draw's number, and 32 random bits of each record."""
        stream = derive_key(self.seed, self.epoch, self.stream)
        key, low_key, records = stream >> 32, stream & MASK, self.records
        if isinstance(records, np.ndarray):
            low, high = self._record_halves
            base = _mix_bits_in_place(low ^ np.uint32(low_key))
            return key, base if high is None else base ^ high
        return key, mix_bits((records & MASK) ^ low_key) ^ (((records >> 32) * _HIGH) & MASK)

    @cached_property
    def _record_halves(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32] | None]:
        """Lower 32 bits of the record numbers, and their upper 32 bits times a constant; None if those are all zero."""
        high = self.records >> 32
        return self.records.astype(np.uint32), high.astype(np.uint32) * np.uint32(_HIGH) if high.any() else None


Floats = NDArray[np.float64]

_TRIES = 8
"""Number of rejection attempts in :func:`gamma`; all fail with a probability below 1e-10."""

GAMMA_DRAWS = 3 * _TRIES + 1
"""Number of draws that :func:`gamma` uses."""


def uniform(draws: Draws, low: float, high: float, draw: int) -> Floats:
    """Draws uniform numbers in [``low``, ``high``), float64 ``(B,)``."""
    values: Floats = draws.uniform(draw) * (high - low) + low
    return values


def chance(draws: Draws, p: float, draw: int) -> Array:
    """Draws bool ``(B,)``: True with probability ``p``."""
    return draws.bits(draw) < round(p * 2**32)


def normal(draws: Draws, draw: int) -> Floats:
    """Draws standard normal numbers, float64 ``(B,)``. Uses the draws ``draw`` and ``draw + 1``."""
    return box_muller(*draws.uniform(draw, 2))


def box_muller(first: Floats, second: Floats) -> Floats:
    """Converts pairs of uniform numbers in [0, 1) to standard normal numbers (Box and Muller, 1958)."""
    values: Floats = np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second)
    return values


def permutation(draws: Draws, count: int, draw: int) -> NDArray[np.int64]:
    """Draws a random order of ``count`` items per record, int64 ``(B, count)``. Uses ``count`` draws."""
    order: NDArray[np.int64] = np.argsort(draws.bits(draw, count), axis=0, kind="stable").T
    return order


def gamma(draws: Draws, shape: float, draw: int) -> Floats:
    """Draws gamma distributed numbers of scale 1, float64 ``(B,)``. Uses :data:`GAMMA_DRAWS` draws from ``draw`` on.

    Marsaglia and Tsang, "A simple method for generating gamma variables" (2000), with its boost for ``shape`` < 1. If
    all eight attempts of a record are rejected, it gets a constant near the mean.
    """
    # For a shape below 1: Gamma(shape) is Gamma(shape + 1) * U ** (1 / shape).
    raised = shape + 1 if shape < 1 else shape
    # Names as in the paper.
    d = raised - 1 / 3
    c = 1 / np.sqrt(9 * d)
    result = np.full(len(draws), d)
    open_rows = np.ones(len(draws), np.bool_)
    for attempt in range(_TRIES):
        at = draw + 3 * attempt
        x = normal(draws, at)
        v = (1 + c * x) ** 3
        with np.errstate(divide="ignore", invalid="ignore"):
            fits = open_rows & (v > 0) & (np.log(draws.uniform(at + 2)) < 0.5 * x * x + d - d * v + d * np.log(v))
        result[fits] = d * v[fits]
        open_rows &= ~fits
    if shape < 1:
        result *= (1 - draws.uniform(draw + 3 * _TRIES)) ** (1 / shape)
    return result


def beta(draws: Draws, alpha: float, draw: int) -> Floats:
    """Draws numbers with distribution Beta(``alpha``, ``alpha``), float64 ``(B,)``. Uses 2 × :data:`GAMMA_DRAWS` draws.

    If ``alpha`` is so small that a number would be 0 / 0, it becomes 0 or 1 at random.
    """
    first, second = gamma(draws, alpha, draw), gamma(draws, alpha, draw + GAMMA_DRAWS)
    total = first + second
    # With a very small alpha both may be rounded to 0; then it is one end or the other.
    return np.where(total > 0, first / np.where(total > 0, total, 1), draws.bits(draw) & 1)


def dirichlet(draws: Draws, alpha: float, count: int, draw: int) -> Floats:
    """Draws ``count`` weights that sum to 1 from the symmetric Dirichlet(``alpha``), float64 ``(B, count)``.

    The weights are equal if ``alpha`` is so small that all round to 0. Uses ``count`` draws if ``alpha`` is 1, else
    ``count`` × :data:`GAMMA_DRAWS`.
    """
    if alpha == 1:
        parts = -np.log1p(-draws.uniform(draw, count)).T
    else:
        parts = np.stack([gamma(draws, alpha, draw + n * GAMMA_DRAWS) for n in range(count)], 1)
    total = parts.sum(1, keepdims=True)
    return np.where(total > 0, parts / np.where(total > 0, total, 1), 1 / count)


def log_uniform(uniform: Array, low: float, high: float) -> Array:
    """Maps uniform numbers in [0, 1) to log-uniform numbers between ``low`` and ``high``, float64.

    Uses only additions and multiplications: unlike exp, they are bit-exact across numpy and torch, CPU and GPU. The
    relative error is below 1e-14.
    """
    middle, half = math.sqrt(low * high), math.log(high / low) / 2
    halvings = max(0, math.ceil(math.log2(half / 0.25))) if half > 0.25 else 0
    exponent = (uniform * 2 - 1) * (half / 2**halvings)
    result = exponent * 0 + 1 / math.factorial(11)
    for n in range(10, -1, -1):  # Taylor's series by Horner's scheme; 0.25**12 / 12! is 1e-16
        result *= exponent
        result += 1 / math.factorial(n)
    for _ in range(halvings):
        result *= result
    result *= middle
    return result


def draw_box_sides(
    draws: Draws,
    draw: int,
    count: int,
    *,
    total: Array,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    parts: Array | None = None,
) -> tuple[Array, Array]:
    """Draws boxes of random area and aspect ratio for each image, ``count`` attempts, int64 ``(count, B)``.

    Returns the sides ``sqrt(area * ratio)`` and ``sqrt(area / ratio)``, rounded. Uses 2 × ``count`` draws from ``draw``
    on.

    Args:
        draws: Draws of B records.
        draw: Number of the first draw.
        count: Number of attempts.
        total: Areas of the images, ``(B,)``, or one for all.
        scale: Smallest and largest area, as fractions of ``total``. Drawn uniformly.
        ratio: Smallest and largest aspect ratio. Its logarithm is drawn uniformly.
        parts: Divide each image's areas by this number, ``(B,)``; None for 1.
    """
    low, high = scale
    uniform = draws.uniform(draw, 2 * count)
    areas = total * (uniform[0::2] * (high - low) + low)
    if parts is not None:
        areas = areas / parts
    ratios = log_uniform(uniform[1::2], *ratio)
    return to_int64(((areas * ratios) ** 0.5).round()), to_int64(((areas / ratios) ** 0.5).round())


def pick_first_fitting(fits: Array, heights: Array, widths: Array) -> tuple[Array, Array, Array]:
    """Returns height and width of the first attempt that fits, and whether one does, for each image.

    All are ``(count, B)``: a row is an attempt. If none fits, height and width are meaningless.
    """
    if isinstance(fits, np.ndarray):
        chosen = fits.argmax(0), np.arange(fits.shape[1])
        return heights[chosen], widths[chosen], fits.any(0)
    index = fits.byte().argmax(0)[None]
    return heights.gather(0, index)[0], widths.gather(0, index)[0], fits.any(0)
