"""Lanes that are slow beside the others leave half of the workers to those.

A handler cannot be interrupted. So by the time a quiet lane gets a message, a lane whose messages take fifty
times as long may have all workers, though no other lane was waiting when it got them. By time it is owed more
than half of them only while no other lane has work; the price is that it does not get it even then.
"""

from __future__ import annotations

from leash.flow.lane import LaneState

SLOWER = 10
"""A lane is slow if its messages take this many times as long as those of the others."""


class SlowLanes:
    """What all lanes took, and so what the others of one lane did."""

    __slots__ = ("_most", "_served", "_work")

    def __init__(self, workers: int) -> None:
        self._most = max(1, -(-workers // 2))
        self._served = self._work = 0

    def served(self, count: int, service: int) -> None:
        """Messages of some lane took `service` ns together."""
        self._served += count
        self._work += service

    def allows(self, lane: LaneState) -> bool:
        """True if another worker may begin with a message of this lane."""
        if lane.in_work < self._most or not self._slow(lane):
            return True
        lane.dries += 1  # it sits out: nobody owes it anything for that
        return False

    def _slow(self, lane: LaneState) -> bool:
        others = self._served - lane.served
        return others > 0 and lane.service * others > SLOWER * (self._work - lane.work)
