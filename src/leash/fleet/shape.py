"""How many tokens a budget has, how many permits each is worth, and how long one is set aside after its use.

The rule: all tokens together are worth the burst, and each comes back `period` after it was taken. So t
seconds admit at most burst * (floor(t / period) + 1), which is at most burst + rate * t. The period is
rounded up to a whole millisecond, the broker's unit, so the rate is never exceeded.

A broker turns a few hundred tokens a second without effort. Faster budgets have tokens worth several permits.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import NamedTuple

TURNS = 200
"""Tokens a second that a wheel turns at most, unless its burst is too small for tokens of several permits."""

MOST_TOKENS = 10_000
"""A burst of more than that has tokens of several permits, however slow the rate is."""


class Shape(NamedTuple):
    """A wheel, or, with a period of 0, tokens that are held while somebody is at work."""

    worths: tuple[int, ...]
    """What each token is worth."""
    period: int
    """In ms."""

    @property
    def burst(self) -> int:
        return sum(self.worths)

    @property
    def worth(self) -> int:
        """Of the largest token."""
        return max(self.worths)


def shape_of(rate: Fraction | None, burst: int) -> Shape:
    """`rate` permits a second; None: `burst` are held at the same time."""
    if rate is None:
        return Shape((1,) * burst, 0)
    worth = max(1, ceil(rate / TURNS), -(-burst // MOST_TOKENS))
    count = max(1, -(-burst // worth))
    worths = tuple(burst * (at + 1) // count - burst * at // count for at in range(count))
    return Shape(worths, max(1, ceil(burst * 1000 / rate)))
