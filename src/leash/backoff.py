"""Waiting longer after each try: the only backoff in Leash."""

from __future__ import annotations

import random


class Backoff:
    """Seconds to wait before the next try: they double from `first` to `longest`.

    Up to half of each is left out at random, so that processes that wait for the same event spread out.
    """

    def __init__(self, first: float, longest: float) -> None:
        self._first = self._wait = first
        self._longest = longest

    def next(self) -> float:
        wait, self._wait = self._wait, min(2 * self._wait, self._longest)
        return wait * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start over with the first wait, after a success."""
        self._wait = self._first
