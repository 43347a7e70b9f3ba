"""How many tokens a budget has, how many permits each is worth, and how long one is set aside after its use.

The rule: all tokens together are worth the burst, and each comes back `period` after it was taken. So t
seconds admit at most burst * (floor(t / period) + 1), which is at most burst + rate * t. The period is
rounded up to a whole millisecond, the broker's unit, so the rate is never exceeded.

A broker easily turns a few hundred tokens per second. Faster budgets have tokens worth several permits.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import NamedTuple

TURNS = 200
"""The most tokens per second that a wheel turns, unless its burst is too small for larger tokens."""

MOST_TOKENS = 10_000
"""A larger burst has tokens of several permits, even at a slow rate."""


class Shape(NamedTuple):
    """The tokens of a wheel. With a period of 0 they are held during the work."""

    worths: tuple[int, ...]
    """What each token is worth."""
    period: int
    """In ms."""

    @property
    def burst(self) -> int:
        return sum(self.worths)

    @property
    def worth(self) -> int:
        """What the largest token is worth."""
        return max(self.worths)


def shape_of(rate: Fraction | None, burst: int) -> Shape:
    """The tokens for `rate` permits per second; None: `burst` permits are held at the same time."""
    if rate is None:
        return Shape((1,) * burst, 0)
    worth = max(1, ceil(rate / TURNS), -(-burst // MOST_TOKENS))
    count = max(1, -(-burst // worth))
    worths = tuple(burst * (at + 1) // count - burst * at // count for at in range(count))
    return Shape(worths, max(1, ceil(burst * 1000 / rate)))
