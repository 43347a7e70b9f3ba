"""Does more credit bring more messages? Where it does not, something else is the limit: the broker, say."""

from __future__ import annotations

from typing import NamedTuple

_FIRST, _LONGEST = 16, 1024
"""Starved epochs to sit out after growth that brought nothing: first, and at most."""


class Pace(NamedTuple):
    """Messages in a time, under a window."""

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
        """One starved epoch more; True while growing has to wait."""
        self._sit_out = max(0, self._sit_out - 1)
        return self._sit_out > 0

    def refuse(self, pace: Pace) -> int | None:
        """Before growing again from `pace`: the window to go back to instead, or None.

        A worker that starves gets messages in proportion to its window. Twice the credit, still starved, and
        not even a quarter more messages: then credit was not what lacked.
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
