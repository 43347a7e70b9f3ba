"""When to ask the broker how many messages a queue has, and what the answer means.

The answer is evidence: while a queue is known to have messages, rounds wait for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leash.flow import hold_states
from leash.flow.decisions import Probe
from leash.flow.hold_states import Hold
from leash.flow.lane import PAUSED, LaneState
from leash.flow.sidelined_lanes import HOLD_LEAST
from leash.units import MS

if TYPE_CHECKING:
    from leash.flow.flow import Flow

EVERY = 1_000 * MS
EACH = MS
"""Lanes with work ask no more often than this, all together, unless a round waits for one."""
A_TICK, SEEN = 5, 500
"""Lanes that are probed, and looked at, at one tick."""


def ask(flow: Flow, now: int, lane: LaneState, reason: str) -> None:
    lane.probe_gap = lane.probe_gap or HOLD_LEAST
    lane.probe_after = now + flow.sidelines.patience  # until the answer arrives
    if not lane.blocks & PAUSED and not lane.probing:
        lane.probing = True
        flow.decisions.append(Probe(lane.name, reason))


class Patrol:
    """Probes the lanes that were not probed for a while: each once in `EVERY`, at most `A_TICK` at a time.

    A lane with work asks by itself when it may run dry, and the broker sends an idle one its next message
    unasked. So this is for the numbers of lanes that sit out, and of those that others consume.
    """

    def __init__(self) -> None:
        self._left: list[LaneState] = []

    def look(self, flow: Flow, now: int) -> None:
        """At every tick."""
        asked = seen = 0
        if not self._left:
            self._left = list(flow.lanes.values())[::-1]
        while self._left and asked < A_TICK and seen < SEEN:
            lane = self._left.pop()
            seen += 1
            if lane.probe_after is None or now - lane.probe_after >= EVERY:
                asked += lane.probe_after is not None
                ask(flow, now, lane, "a second went by")


def answered(
    flow: Flow,
    now: int,
    lane: LaneState,
    ready: int,
    consumers: int,
    round_trip: int,
    slowest: int | None,
) -> None:
    sidelines = flow.sidelines
    lane.depth, lane.consumers = ready, consumers
    lane.probing = False
    if lane.held_since is not None and ready:
        hold_states.found(lane)
        sidelines.until(max(now, lane.held_since + sidelines.patience), lane)
    elif not ready and lane.hold is not Hold.DOUBTED:
        hold_states.end(lane)
    sidelines.round_trip = round_trip
    sidelines.slowest = round_trip if slowest is None else slowest
    if lane.window is not None:
        lane.window.round_trip = round_trip
    lane.probe_gap = min(EVERY, 2 * lane.probe_gap) if not ready else 0
    lane.probe_after = now + max(lane.probe_gap, sidelines.patience, flow.active * EACH)
    if lane.blocks & PAUSED or lane.hold is Hold.DOUBTED:
        ready = 0
    # Messages that left the queue before it was counted may still be in flight; they count against `ready`.
    lane.evidence = ready and ready + max(0, lane.credit - len(lane.buffer) - lane.in_work)
    flow.rounds.expect(lane.name, lane.evidence)


def out_of_time(flow: Flow, now: int) -> None:
    """Fire due timers: resume lanes, probe lanes that rounds wait for, and give up on some."""
    doubtful, in_vain = flow.sidelines.fire(now)
    for lane in doubtful:
        ask(flow, now, lane, "a round waits for it")
    for lane in in_vain:
        if lane.held_since is None:
            continue
        waited = (now - lane.held_since) // MS
        hold_states.give_up(lane)
        lane.evidence = 0
        lane.expired += 1
        lane.dries += 1
        flow.rounds.expect(lane.name, 0)
        lane.renewing = False
        ask(flow, now, lane, f"nothing arrived for {waited} ms although its queue had messages")
