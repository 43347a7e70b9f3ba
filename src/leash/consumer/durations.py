"""How long messages waited and were worked on, as histograms: of each worker its own, so that none waits.

A worker notes when each message ended and hands over a batch at a time. Nearly always a batch as a whole
falls into one bucket, and is counted at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from leash.units import MS

BOUNDS = tuple(ms * MS for ms in (1, 5, 10, 25, 50, 100, 250, 500, 1000, 5000, 30_000, 300_000))
"""In ns. A message counts in the first bucket whose bound it does not exceed, else in one after the last."""


class Histogram:
    """Counts by bucket, and the sum of all, in ns."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0

    def add(self, each: int, count: int = 1) -> None:
        self.counts[bisect_left(BOUNDS, each)] += count
        self.total += each * count


class Durations:
    """The histograms of one queue and one worker."""

    __slots__ = ("handled", "waited")

    def __init__(self) -> None:
        self.waited = Histogram()
        self.handled = Histogram()

    def batch(self, begin: int, spans: list[tuple[int, int]]) -> None:
        """Messages that were worked on one after the other from `begin` on: when each arrived and ended."""
        count, end = len(spans), spans[-1][1]
        brief = end - begin <= BOUNDS[0]
        if brief:
            self.handled.counts[0] += count
            self.handled.total += end - begin
            longest, shortest = end - spans[0][0], begin - spans[-1][0]
            if (bucket := bisect_left(BOUNDS, longest)) == bisect_left(BOUNDS, shortest):
                self.waited.counts[bucket] += count
                self.waited.total += begin - end + sum([ended - arrived for arrived, ended in spans])
                return
        at = begin
        for arrived, ended in spans:
            self.waited.add(at - arrived)
            if not brief:
                self.handled.add(ended - at)
            at = ended

    def together(self, begin: int, end: int, arrived: Iterable[int]) -> None:
        """Messages that went to a batch handler: each took as long as the call did."""
        for each in arrived:
            self.waited.add(begin - each)
            self.handled.add(end - begin)


class Times(NamedTuple):
    """A histogram as plain numbers."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    """Messages by bucket: the bounds are `leash.consumer.durations.BOUNDS`, in ns, and one more without."""
    seconds: float = 0.0
    """The sum."""


NONE = Times()


def merged(parts: Iterable[Histogram]) -> Times:
    """The sums over all workers."""
    used = [part for part in parts if any(part.counts)]
    if not used:
        return NONE
    counts = map(sum, zip(*[part.counts for part in used], strict=True))
    return Times(tuple(counts), sum([part.total for part in used]) / 1e9)
