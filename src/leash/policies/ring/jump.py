"""Hash to bucket: jump consistent hashing, drawn from Erlang's exs1024 generator.

A hash seeds the generator with only its low 21 bits. So the whole function for n buckets is one table of 2^21
entries, and two rings can be compared for all possible keys.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SEEDS = 1 << 21
MASK = SEEDS - 1
MOST_BUCKETS = (1 << 31) - 1

_LONG = (1 << 64) - 1
_SPREAD = (2097131, 2097133, 2097143)
"""The three primes just below 2^21 with which `rand:seed` spreads a small seed."""
_FILL = 2685821657736338717
_STAR = 1181783497276652981
_SLICE = 1 << 14
"""Seeds processed at once: 16 words of state each, so that a slice stays in the processor's cache."""
_FEW = _SLICE
"""Columns up to this length are computed without a table, which takes about 0.4 s; a seed takes 0.2 us."""


def bucket(seed: int, n: int) -> int:
    """The bucket of one hash, out of n."""
    state, at = _state(seed & MASK), 0
    found, following = -1, 0
    while following < n:
        found = following
        s0 = state[at]
        at = at + 1 & 15
        s1 = state[at]
        s1 ^= s1 << 31 & _LONG
        state[at] = drawn = s0 ^ s0 >> 30 ^ s1 ^ s1 >> 11
        # As Erlang: to a double first (which may round up to 1.0), then one division, then cut off.
        following = int((found + 1) / (float(drawn * _STAR & _LONG) / 2.0**64))
    return found


def _state(seed: int) -> list[int]:
    b1, b2, b3 = ((seed + 1) * prime & MASK for prime in _SPREAD)
    word = b1 << 43 | b2 << 22 | b3 << 1 | 1
    state = []
    for _ in range(16):
        word ^= word >> 12
        word ^= word << 25 & _LONG
        word ^= word >> 27
        state.append(word * _FILL & _LONG)
    state.reverse()
    return state


def buckets(seeds: NDArray[np.uint32], n: int) -> NDArray[np.integer]:
    """The bucket, out of n, of every seed in a column."""
    return _slice(seeds.astype(np.uint64), n) if len(seeds) <= _FEW else table(n).take(seeds)


def bindings(seeds: NDArray[np.uint32], weights: tuple[int, ...]) -> NDArray[np.integer]:
    """The binding of every seed in a column; each binding in turn owns as many buckets as its weight."""
    if len(seeds) <= _FEW:
        return _owner(buckets(seeds, sum(weights)), weights)
    return owners(weights).take(seeds)


@lru_cache(maxsize=8)
def table(n: int) -> NDArray[np.integer]:
    """The bucket of every seed, read-only: 2 MiB for up to 256 buckets, 4 for up to 65,536, then 8."""
    found = np.empty(SEEDS, np.min_scalar_type(n - 1))
    for low in range(0, SEEDS, _SLICE):
        found[low : low + _SLICE] = _slice(np.arange(low, low + _SLICE, dtype=np.uint64), n)
    found.setflags(write=False)
    return found


@lru_cache(maxsize=8)
def owners(weights: tuple[int, ...]) -> NDArray[np.integer]:
    """The binding of every seed, read-only."""
    found = _owner(table(sum(weights)), weights).astype(np.min_scalar_type(len(weights) - 1))
    found.setflags(write=False)
    return found


def _owner(numbers: NDArray[np.integer], weights: tuple[int, ...]) -> NDArray[np.integer]:
    return np.searchsorted(np.cumsum(weights, dtype=np.int64), numbers, side="right")


def _slice(seeds: NDArray[np.uint64], n: int) -> NDArray[np.int64]:
    """`bucket` for many seeds: all draw in step, and those that jumped past the end drop out."""
    state = _states(seeds)
    buckets = np.zeros(len(seeds), np.int64)
    live = np.arange(len(seeds))
    found = np.zeros(len(seeds))
    s0, at = state[0], 0
    while len(live):
        at = at + 1 & 15
        s1 = state[at].take(live)
        s1 ^= s1 << np.uint64(31)
        s1 ^= s1 >> np.uint64(11)
        s1 ^= s0 ^ s0 >> np.uint64(30)
        state[at][live] = s1
        following = np.floor((found + 1.0) / ((s1 * np.uint64(_STAR)).astype(np.float64) / 2.0**64))
        inside = following < n
        live, found, s0 = live[inside], following[inside], s1[inside]
        buckets[live] = found
    return buckets


def _states(seeds: NDArray[np.uint64]) -> list[NDArray[np.uint64]]:
    b1, b2, b3 = ((seeds + np.uint64(1)) * np.uint64(prime) & np.uint64(MASK) for prime in _SPREAD)
    word = b1 << np.uint64(43) | b2 << np.uint64(22) | b3 << np.uint64(1) | np.uint64(1)
    state = []
    for _ in range(16):
        word ^= word >> np.uint64(12)
        word ^= word << np.uint64(25)
        word ^= word >> np.uint64(27)
        state.append(word * np.uint64(_FILL))
    state.reverse()
    return state
