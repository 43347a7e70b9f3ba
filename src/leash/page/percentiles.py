"""Percentiles of histograms: counts by bucket, without trailing zeros."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from leash.consumer.durations import BOUNDS
from leash.units import SECOND


def between(known: Sequence[int], now: Sequence[int], then: Sequence[int]) -> list[int]:
    """What is `known`, and what came from `then` to `now`."""
    return [
        first + max(0, second - third) for first, second, third in zip_longest(known, now, then, fillvalue=0)
    ]


def percentile(counts: Sequence[int], part: float) -> float | None:
    """The bound, in seconds, that this fraction of the messages did not exceed. None: no messages."""
    wanted = part * sum(counts)
    passed = 0
    for at, count in enumerate(counts):
        passed += count
        if count and passed >= wanted:
            return BOUNDS[min(at, len(BOUNDS) - 1)] / SECOND
    return None
