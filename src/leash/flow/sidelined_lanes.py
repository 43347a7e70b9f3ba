"""Lanes that sit out, and rounds that wait for a lane: the timers that let them go on."""

from __future__ import annotations

from heapq import heappop, heappush

from leash.flow import hold_states
from leash.flow.hold_states import Hold
from leash.flow.lane import OPEN, THROTTLED, WAITING, LaneState
from leash.policies.fair import DeficitRoundRobin
from leash.units import MS

HOLD_LEAST, HOLD_TRIPS = 50 * MS, 4
"""A round waits for a lane at most this long, or this many round trips."""

EXCUSED = 10
"""This many times longer for a good reason: the lane consumes again, which a quorum queue must agree on
first; or the broker does not answer a probe; or it has messages, and we have credit: then they are in flight,
however slow.
"""

ASK_AFTER = 4
"""A lane that a round waits for is probed after this part of the patience."""


class Sidelines:
    """Timers are whole nanoseconds; one that is no longer needed fires without effect."""

    def __init__(self, rounds: DeficitRoundRobin, lanes: dict[str, LaneState]) -> None:
        self._rounds = rounds
        self._lanes = lanes
        self._timers: list[tuple[int, int, str]] = []
        self._serial = 0
        self.gap: int | None = None  # when lower tiers no longer wait for a higher one
        self.round_trip: int | None = None
        self.slowest = 0  # the longest round trip: a busy broker is no reason to give up on a lane

    @property
    def patience(self) -> int:
        return max(HOLD_LEAST, HOLD_TRIPS * self.slowest)

    def patience_for(self, lane: LaneState) -> int:
        on_the_way = lane.hold in (Hold.SEEN, Hold.CONFIRMED) and lane.in_work < lane.credit and not lane.sole
        return self.patience * (EXCUSED if lane.renewing or lane.probing or on_the_way else 1)

    @property
    def next(self) -> int | None:
        """When the next timer is due."""
        due = self._timers[0][0] if self._timers else None
        return due if self.gap is None else self.gap if due is None else min(due, self.gap)

    def block(self, lane: LaneState, why: int) -> None:
        if not lane.blocks:
            self._rounds.block(lane.name)
        if why & (THROTTLED | OPEN) & ~lane.blocks:
            lane.dries += (
                1  # it sits out, if only from one look to the next: nobody owes it anything for that
            )
        lane.blocks |= why

    def unblock(self, lane: LaneState, why: int) -> None:
        if lane.blocks & why:
            lane.blocks &= ~why
            if not lane.blocks:
                self._rounds.unblock(lane.name)

    def until(self, at: int, lane: LaneState) -> None:
        self._serial += 1
        heappush(self._timers, (at, self._serial, lane.name))

    def throttle(self, now: int, lane: LaneState) -> None:
        """Let a lane sit out until it has a token."""
        wait = lane.bucket.wait(now) if lane.bucket is not None else 0
        if wait:
            self.block(lane, THROTTLED)
            self.until(now + wait, lane)
        else:
            self.unblock(lane, THROTTLED)

    def hold(self, now: int) -> None:
        """A worker found no work: if a round waits for lanes, limit that wait."""
        for name in self._rounds.held:
            lane = self._lanes[name]
            if lane.held_since is None and (lane.coming or self._rounds.holds_up(name)):
                hold_states.begin(lane, now)
                lane.ask_at = now + self.patience // ASK_AFTER
                self.until(lane.ask_at, lane)

    def fire(self, now: int) -> tuple[list[LaneState], list[LaneState]]:
        """Fire due timers; returns the lanes to probe, and those that a round waited for in vain."""
        doubtful, in_vain = [], []
        if self.gap is not None and self.gap <= now:
            self.gap = None
        while self._timers and self._timers[0][0] <= now:
            lane = self._lanes.get(heappop(self._timers)[2])
            if lane is None:
                continue
            if lane.blocks & THROTTLED:
                self.throttle(now, lane)
            if lane.blocks & WAITING and lane.wakes is not None and lane.wakes <= now:
                self.unblock(lane, WAITING)
            if lane.blocks & OPEN and lane.probe_at is not None and lane.probe_at <= now:
                self.unblock(lane, OPEN)
            if lane.held_since is not None and lane.ask_at <= now:  # not a timer of an earlier hold
                if hold_states.ask(lane):  # even if late: the answer decides when to probe again
                    doubtful.append(lane)
                    self.until(lane.held_since + EXCUSED * self.patience, lane)
                elif lane not in doubtful and lane.held_since + self.patience_for(lane) <= now:
                    in_vain.append(lane)  # never unasked, if timers of two holds fire late and together
        return doubtful, in_vain
