"""Waiting longer each time: the one way in which Leash tries again."""

from __future__ import annotations

import random


class Backoff:
    """Seconds to wait before the next try: they double from `first` to `longest`.

    Up to half of each is left out at random, lest all who wait for the same thing come at the same moment.
    """

    def __init__(self, first: float, longest: float) -> None:
        self._first = self._wait = first
        self._longest = longest

    def next(self) -> float:
        wait, self._wait = self._wait, min(2 * self._wait, self._longest)
        return wait * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """It worked: the next wait is the first again."""
        self._wait = self._first
