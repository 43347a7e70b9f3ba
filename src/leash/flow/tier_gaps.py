"""When a lower tier may work while a higher one's messages are in flight.

Not at once. Most gaps between a tier's messages are short, and work begun in one keeps a worker, the network
and the broker from the higher tier. A longer gap is used once a message of the lower tier, which may still be
in work when the gap ends, would take only a small part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leash.flow.lane import LaneState
from leash.units import MS

if TYPE_CHECKING:
    from leash.flow.flow import Flow
    from leash.flow.picking import Grant

LEAST = 50 * MS
PART = 40
"""A gap is used once it has lasted this long, and this many times as long as one message takes."""


class Gap:
    """The time in which workers find no work although messages of a lower tier are here."""

    __slots__ = ("_flow", "_opens", "_since", "_tier", "_used")

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._since: int | None = None
        self._opens = self._tier = 0
        self._used = False

    def waits(self, now: int) -> bool:
        """True if lower tiers wait for a higher one now."""
        return self._since is None or now < self._opens

    def begin(self, now: int) -> None:
        """A worker found no work."""
        flow = self._flow
        held = flow.rounds.held
        if self._since is not None or not held:
            return
        self._tier = tier = flow.lanes[held[0]].tier
        longest = max([_expected(flow, lane) for lane in flow.lanes.values() if lane.tier > tier], default=0)
        if longest:
            self._since, self._used = now, False
            self._opens = flow.sidelines.gap = now + max(LEAST, PART * longest)

    def served(self, waited: bool, grants: list[Grant], since: int | None) -> int | None:
        """Work went out; returns since when workers have been without messages of its tier.

        For the higher tier's window, work in the gap counts as waiting.
        """
        if self._since is None:
            return since
        higher = any(grant.lane.tier <= self._tier for grant in grants)
        if self._lasts() and not higher:
            self._used = self._used or not waited
            return since
        begun, self._since = self._since, None
        self._flow.sidelines.gap = None
        return begun if self._used and higher else since

    def _lasts(self) -> bool:
        held = self._flow.rounds.held
        return bool(held) and self._flow.lanes[held[0]].tier <= self._tier


def _expected(flow: Flow, lane: LaneState) -> int:
    """How long a message of this lane takes, in ns."""
    return (lane.service or flow.service) if lane.buffer else 0
