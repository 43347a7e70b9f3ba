"""How often a failing message is tried, and how long it waits in between."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from leash.errors import ConfigError
from leash.policies.exact import whole
from leash.units import nanoseconds

LONGEST_WAIT = 4_294_967
"""Seconds: a retry queue's `x-message-ttl` is at most 2**32 - 1 ms."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failing message is tried. Every distinct wait needs its own queue on the broker.

    Arguments:
        tries: The number of tries, including the first. Default: 5.
        delay: Seconds before the second try. Default: 2.
        factor: Each wait is this many times as long as the one before. Default: 1.
        cap: The longest wait in seconds, unless `delay` is longer. Default: 3600.
    """

    tries: int = 5
    delay: float = 2.0
    factor: float = 1.0
    cap: float = 3600.0

    def __post_init__(self) -> None:
        whole("tries", self.tries, 1)
        nanoseconds("delay", self.delay, LONGEST_WAIT)
        nanoseconds("cap", self.cap, LONGEST_WAIT)
        numeric = isinstance(self.factor, int | float) and not isinstance(self.factor, bool)
        if not numeric or not 1 <= self.factor <= 1000:
            raise ConfigError("factor", self.factor, "a number from 1 to 1000")

    def wait(self, failures: int) -> int | None:
        """Milliseconds to wait after this many failures, one of `waits`; None: no more tries."""
        failures = max(1, failures)  # from a header, which any publisher may write
        if failures >= self.tries:
            return None
        try:
            growth = float(self.factor) ** min(failures - 1, 200)
        except OverflowError:
            growth = sys.float_info.max
        return round(1000 * min(self.delay * growth, max(self.cap, self.delay)))

    def waits(self) -> list[int]:
        """Every distinct wait, in milliseconds."""
        found: list[int] = []
        for failures in range(1, min(self.tries, 1000)):
            wait = self.wait(failures)
            if wait is not None and wait not in found:
                found.append(wait)
        return found
