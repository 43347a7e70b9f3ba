"""What `leash consume` has seen of its consumer: now, at the look before, and what went wrong lately."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from leash.consumer.stats import Stats

RECENT = 9.5
"""Seconds: what `leash page` calls the last 10 s, less what a look every 10 s may come early."""


class Wrong(NamedTuple):
    """How many messages of a queue failed, and how many of these were parked."""

    failed: int = 0
    parked: int = 0


class Looks:
    """Of one consumer; the latest is `now`."""

    now: Stats
    before: Stats | None = None
    """None at the first look."""

    def __init__(self, *looks: Stats) -> None:
        self._counted: deque[tuple[float, dict[str, Wrong]]] = deque([(0.0, {})])
        for each in looks:
            self.add(each)

    def add(self, now: Stats) -> None:
        self.before = getattr(self, "now", None)
        self.now = now
        # Whole stats of all looks would be much to keep for thousands of queues.
        self._counted.append((now.seconds, _wrong(now)))
        while len(self._counted) > 2 and now.seconds - self._counted[1][0] >= RECENT:
            self._counted.popleft()

    def lately(self, queue: str) -> Wrong:
        """In the last 10 s, or since the look before if that is longer ago."""
        then, now = (self._counted[at][1].get(queue, Wrong()) for at in (0, -1))
        return Wrong(now.failed - then.failed, now.parked - then.parked)


def _wrong(stats: Stats) -> dict[str, Wrong]:
    found = {
        name: Wrong(each.counts.get("failed", 0), each.counts.get("parked", 0))
        for name, each in stats.queues.items()
    }
    return {name: wrong for name, wrong in found.items() if any(wrong)}
