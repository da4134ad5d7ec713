"""Draws random numbers with uniform, normal, gamma, beta and Dirichlet distributions, as pure functions of a record's
draws; numpy on the host. The argument ``draw`` is the number of the first 32-bit draw that a function uses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packstore.training.random_draws import Draws

Floats = NDArray[np.float64]

_TRIES = 8
"""Number of rejection attempts in :func:`gamma`; all fail with a probability below 1e-10."""

GAMMA_DRAWS = 3 * _TRIES + 1
"""Number of draws that :func:`gamma` uses."""


def uniform(draws: Draws, low: float, high: float, draw: int) -> Floats:
    """Draws uniform numbers in [``low``, ``high``), float64 ``(B,)``."""
    values: Floats = draws.uniform(draw) * (high - low) + low
    return values


def chance(draws: Draws, p: float, draw: int) -> NDArray[np.bool_]:
    """Draws bool ``(B,)``: True with probability ``p``."""
    happens: NDArray[np.bool_] = draws.bits(draw) < round(p * 2**32)
    return happens


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
