"""A token bucket in whole numbers: whether a message may go now and, if not, when.

A rate of p/q tokens per second earns p units per nanosecond, where one token is q * 10^9 units. Only the
result of `wait` is rounded, up to a whole nanosecond; the cap leaves p - 1 units of room above the burst, so
that the overshoot of this rounding is kept and a million waits end where one exact division would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from leash.errors import ConfigError
from leash.policies.exact_numbers import Number, per_second, whole
from leash.units import SECOND


class TokenBucket:
    """`rate` tokens a second, at most `burst` at once; it starts full.

    In any interval of t nanoseconds it admits at most burst + rate * (t + 1 ns). A cost above the burst is
    admitted when the bucket is full and leaves a debt, so it delays what follows instead of waiting
    forever.
    """

    __slots__ = ("_burst", "_cap", "_last", "_level", "_p", "_rate", "_unit")

    def __init__(self, rate: Number, burst: int) -> None:
        self._last: int | None = None
        self._shape(per_second("rate", rate), whole("burst", burst, 1))
        self._level = self._burst * self._unit

    def _shape(self, rate: Fraction, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._p = rate.numerator
        self._unit = rate.denominator * SECOND
        self._cap = burst * self._unit + self._p - 1

    @property
    def rate(self) -> Fraction:
        return self._rate

    @property
    def burst(self) -> int:
        return self._burst

    def _sync(self, now: int) -> None:
        last = self._last
        if last is not None and now > last:
            level = self._level + self._p * (now - last)
            self._level = level if level < self._cap else self._cap
            self._last = now

    def take(self, now: int, cost: int = 1) -> bool:
        """Take `cost` tokens if there are that many."""
        if not self.ready(now, cost):
            return False
        self._spend(now, cost)
        return True

    def ready(self, now: int, cost: int = 1) -> bool:
        """True if `take` would succeed."""
        if cost.__class__ is not int or cost < 0:
            cost = whole("cost", cost, 0)
        self._sync(now)
        return self._level >= (cost if cost < self._burst else self._burst) * self._unit

    def _spend(self, now: int, cost: int) -> None:
        self._level -= int(cost) * self._unit  # a numpy integer would overflow
        if self._last is None:  # the first take starts the clock
            self._last = now

    def wait(self, now: int, cost: int = 1) -> int:
        """Nanoseconds until `take` would succeed; 0 if it would now."""
        if cost.__class__ is not int or cost < 0:
            cost = whole("cost", cost, 0)
        self._sync(now)
        need = cost if cost < self._burst else self._burst
        missing = need * self._unit - self._level
        return -(-missing // self._p) if missing > 0 else 0

    def refund(self, now: int, tokens: int) -> None:
        """Return tokens that were taken and not used; never above the cap."""
        tokens = whole("tokens", tokens, 0)
        self._sync(now)
        self._level = min(self._cap, self._level + tokens * self._unit)

    def available(self, now: int) -> int:
        """Whole tokens that could be taken now."""
        self._sync(now)
        return min(self._burst, max(0, self._level // self._unit))

    def level(self, now: int) -> float:
        """The number of tokens, for a gauge; below 0 is debt."""
        self._sync(now)
        return self._level / self._unit

    def set_rate(self, now: int, rate: Number, burst: int | None = None) -> None:
        """Change the rate; tokens already earned stay, up to the new burst.

        A higher burst fills over time. Between rates with different denominators the level is rounded down,
        by less than a billionth of a token.
        """
        fresh = per_second("rate", rate)
        size = self._burst if burst is None else whole("burst", burst, 1)
        self._sync(now)
        self._last = now if self._last is None else self._last
        level, unit = self._level, self._unit
        self._shape(fresh, size)
        self._carry(level, unit)

    def _carry(self, level: int, unit: int) -> None:
        self._level = min(self._cap, level * self._unit // unit)

    def state(self) -> dict[str, int | None]:
        """Plain numbers for a checkpoint; `last` is None before the first take."""
        return {"level": self._level, "unit": self._unit, "last": self._last}

    def restore(self, now: int, state: Mapping[str, int | None]) -> None:
        """Adopt a saved level, with this bucket's own rate and burst.

        The time since then earns tokens. If the clock is behind the saved time, earning starts now.
        """
        level, unit, last = state.get("level"), state.get("unit"), state.get("last")
        if isinstance(level, int) and isinstance(unit, int) and isinstance(last, int | None) and unit > 0:
            self._carry(level, unit)
        else:
            raise ConfigError("state", state, "what TokenBucket.state() returned")
        self._last = None if last is None else min(last, now)


def take_all(now: int, buckets: Sequence[TokenBucket | None], cost: int = 1) -> bool:
    """Take from every bucket, or from none, such as a lane's and the total's. None stands for no limit."""
    for bucket in buckets:
        if bucket is not None and not bucket.ready(now, cost):
            return False
    for bucket in buckets:
        if bucket is not None:
            bucket._spend(now, cost)
    return True


def wait_all(now: int, buckets: Sequence[TokenBucket | None], cost: int = 1) -> int:
    """Nanoseconds until `take_all` would succeed."""
    return max((bucket.wait(now, cost) for bucket in buckets if bucket is not None), default=0)
