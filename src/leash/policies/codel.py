"""CoDel (RFC 8289): whether a lane's delay is standing, in messages instead of packets and whole nanoseconds.

A queue that empties now and then is doing its job, however long it gets. Only a delay that stays above the
target for a whole interval is excess, and is shed a little faster each time: interval / sqrt(count) apart.
"""

from __future__ import annotations

from math import isqrt

from leash.errors import ConfigError
from leash.policies.exact_numbers import whole

_MEMORY = 16
"""Intervals for which the last pace of shedding is remembered (RFC 8289, section 5.5)."""


class CoDel:
    """Judges the heads of one lane, in order, as they leave its buffer.

    What a verdict does is up to `Shedder`.
    """

    __slots__ = (
        "_drop_next",
        "_first_above",
        "_last_count",
        "_now",
        "_set_interval",
        "_shed_last",
        "count",
        "dropping",
        "interval",
        "sheds",
        "target",
    )

    def __init__(self, target: int, interval: int) -> None:
        self.target = whole("target", target, 1)
        self.interval = self._set_interval = whole("interval", interval, 1)
        if target > interval:
            raise ConfigError("target", target, f"at most the interval, {interval} ns")
        self.dropping = False
        self.count = 0
        """Sheds since the delay became standing; sets the pace."""
        self.sheds = 0
        """Verdicts so far."""
        self._first_above: int | None = None
        self._drop_next = 0
        self._last_count = 0
        self._shed_last = False
        self._now: int | None = None

    def judge(self, now: int, sojourn: int, remaining: int) -> bool:
        """True: shed this head, then judge the next one at the same `now`.

        `remaining` messages are behind this head.
        """
        if self._now is not None and now < self._now:
            now = self._now
        self._now = now
        if sojourn < self.target or remaining <= 1:
            self._first_above = None
            self.dropping = self._shed_last = False
            return False
        if self._first_above is None:
            self._first_above = now + self.interval
            return False
        if not self.dropping:
            return now >= self._first_above and self._enter(now)
        if self._shed_last:
            self._drop_next += self._pace()
            self._shed_last = False
        if now < self._drop_next:
            return False
        self.count += 1
        self.sheds += 1
        self._shed_last = True
        return True

    def _enter(self, now: int) -> bool:
        recent = self.count - self._last_count
        resume = recent > 1 and now - self._drop_next < _MEMORY * self.interval
        self.count = self._last_count = recent if resume else 1
        self._drop_next = now + self._pace()
        self.dropping = True
        self.sheds += 1
        return True

    def _pace(self) -> int:
        return isqrt(self.interval * self.interval // self.count)

    def retarget(self, target: int) -> None:
        """Judge by another target from now on (see `target_in_force`).

        The interval is never shorter than the target.
        """
        self.target = whole("target", target, 1)
        self.interval = max(self._set_interval, self.target)


def target_in_force(target: int, round_time: int, designed_wait: int) -> int:
    """The configured target plus the wait by design: for the lane's turn, and as work held ready."""
    return max(target, -(-3 * (round_time + designed_wait) // 2))
