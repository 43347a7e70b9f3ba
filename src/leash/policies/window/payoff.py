"""Checks whether more credit brings more messages; if not, something else is the limit, like the broker."""

from __future__ import annotations

from typing import NamedTuple

_FIRST, _LONGEST = 16, 1024
"""Starved epochs to sit out after growth without effect: first, and at most."""


class Pace(NamedTuple):
    """A number of messages in a time, under a window of which acks hold nothing back."""

    window: int
    messages: int
    span: int


class Payoff:
    """Watches a window while it grows."""

    __slots__ = ("_before", "_patience", "_sit_out")

    def __init__(self) -> None:
        self._before: Pace | None = None
        self._patience = self._sit_out = 0

    def sits_out(self) -> bool:
        """Count one more starved epoch; True while growing has to wait."""
        self._sit_out = max(0, self._sit_out - 1)
        return self._sit_out > 0

    def refuse(self, pace: Pace) -> int | None:
        """Before growing again from `pace`: the window to go back to instead, or None.

        A starving worker gets messages in proportion to its window. If twice the credit leaves it starving,
        with less than a quarter more messages, then credit was not the limit.
        """
        before = self._before
        if before is None or pace.window < 2 * before.window:
            self._before = before or pace
            return None
        if 4 * pace.messages * before.span >= 5 * before.messages * pace.span:
            self._before = pace
            return None
        self._before = None
        self._patience = self._sit_out = min(_LONGEST, 2 * self._patience or _FIRST)
        return before.window
