"""Retries are at most a share of successes: when much fails, they must not be what keeps it failing.

One retry a second is free, or what fails alone would never get its tries.
"""

from __future__ import annotations

from leash.errors import ConfigError
from leash.policies.exact_numbers import Number, fraction
from leash.units import SECOND

SAVED = 100
"""The most retries that successes save up: after a quiet day it is a hundred in a row and not a flood."""


class RetryBudget:
    """In any time, at most `SAVED` retries, `share` of the successes, and one a second."""

    __slots__ = ("_free", "_level", "_most", "_per_success", "_retry", "share")

    def __init__(self, share: Number) -> None:
        allowed = "the share of successes that may be retries, above 0 and up to 1, such as 0.1"
        self.share = fraction("budget", share, allowed)
        if not 0 < self.share <= 1:
            raise ConfigError("budget", share, allowed)
        self._per_success, self._retry = self.share.numerator, self.share.denominator
        self._most = SAVED * self._retry
        self._level = 0
        self._free: int | None = None  # when the next free one may go

    def succeeded(self, count: int = 1) -> None:
        self._level = min(self._most, self._level + count * self._per_success)

    def take(self, now: int) -> bool:
        """May a message be tried again now?"""
        if self._level >= self._retry:
            self._level -= self._retry
            return True
        if self._free is None or now >= self._free:
            self._free = now + SECOND
            return True
        return False
