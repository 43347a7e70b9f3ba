"""Virtual time: events in order, in whole nanoseconds. Simultaneous events are ordered by rank, then as
added.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

AT_BROKER, AT_CLIENT, DONE, WAKE = range(4)
"""Ranks: at one instant a message arrives before a worker looks for it, as in the formulas."""


class Clock:
    """A heap of events. `messages` counts the events of single messages, to measure speed."""

    __slots__ = ("_events", "_serial", "messages", "now")

    def __init__(self) -> None:
        self._events: list[tuple[int, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0
        self.now = 0
        self.messages = 0

    def at(self, when: int, rank: int, action: Callable[..., None], *arguments: Any) -> None:
        self._serial += 1
        heappush(self._events, (when, rank, self._serial, action, arguments))

    def run(self, until: int) -> None:
        """Run until that time."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, _, action, arguments = heappop(events)
            action(*arguments)
        self.now = until


class Wire:
    """One direction of a connection: everything takes `delay`, in order."""

    __slots__ = ("_clock", "_last", "_rank", "delay")

    def __init__(self, clock: Clock, delay: int, rank: int) -> None:
        self._clock = clock
        self._rank = rank
        self._last = 0
        self.delay = delay

    def send(self, action: Callable[..., None], *arguments: Any) -> None:
        arrives = self._clock.now + self.delay
        if arrives < self._last:
            arrives = self._last
        self._last = arrives
        self._clock.at(arrives, self._rank, action, *arguments)
