"""The lanes' windows: informed of events, given shares of the credit, and changed."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from leash.flow.decisions import SetWindow
from leash.flow.lane import Entry, LaneState
from leash.policies.codel import target_in_force
from leash.policies.window import Change
from leash.policies.window.credit import MOST

if TYPE_CHECKING:
    from leash.flow.flow import Flow

PERCENT = 100
NO_TIER = 1 << 62


def observe(flow: Flow, now: int, lane: LaneState, entries: list[Entry], since: int | None) -> None:
    window = lane.window
    if window is None:
        return
    arrived, epoch = entries[0][1], window.epoch
    fresh = len(entries) if entries[0][2] == epoch else sum(entry[2] == epoch for entry in entries)
    if fresh:
        lane.settling -= fresh
        idle = 0
        if since is not None and arrived > since and lane.fed is not None and lane.fed >= arrived:
            lane.idled += now - since
            if lane.idled >= lane.service:  # the gain of one more credit: less may be noise
                idle, lane.idled = lane.idled, 0
        change = window.observe(now, len(lane.buffer), fresh, 1 if idle else 0, idle)
        if change is not None:
            set_window(flow, lane, change)


def set_window(flow: Flow, lane: LaneState, change: Change) -> None:
    """Carry out a change; a smaller window may also return messages."""
    window = lane.window
    assert window is not None
    resume = None
    if change.window < lane.credit:
        on_their_way = -(-flow.workers * (flow.sidelines.round_trip or 0) // max(1, window.service or 1))
        resume = min(change.window, on_their_way + 1)
    excess = lane.in_work + len(lane.buffer) - change.window
    lane.credit, lane.reason = change
    lane.renewing = True
    lane.settling = change.window + excess if excess > 0 else change.window
    flow.decisions.append(SetWindow(lane.name, *change, window.epoch, resume))
    if excess > 0 and lane.shedder.mode in ("return", "drop"):
        _return_excess(flow, lane, excess)


def share_credit(flow: Flow) -> None:
    """Tell the windows which lanes compete, how long a round is and what a batch needs; and tell CoDel how
    long messages wait by design.
    """
    active: dict[int, list[LaneState]] = {}
    for lane in flow.lanes.values():
        if lane.waiting:
            active.setdefault(lane.tier, []).append(lane)
    flow.top = min(active, default=NO_TIER)
    flow.active = sum(map(len, active.values()))
    parts = _parts(flow, active)
    quanta, round_times = {}, {}
    for tier, percent in parts.items():
        lanes = active.get(tier, [])
        quanta[tier] = sum(lane.quantum for lane in lanes)
        work = sum(lane.quantum * lane.service for lane in lanes)
        alone = percent == PERCENT and len(lanes) == 1
        round_times[tier] = 0 if alone else PERCENT * work // (percent * flow.workers)
    for lane in flow.lanes.values():
        wait, tier = 0, lane.tier
        waiting = lane.waiting
        rivals = quanta[tier] if waiting else quanta[tier] + lane.quantum
        lane.least = min(MOST, -(-flow.budget.batch * lane.quantum // rivals))
        if lane.window is not None:
            lane.window.quanta, lane.window.percent = rivals, parts[tier]
            lane.window.least, lane.window.round_time = lane.least, round_times[tier]
            if not waiting and lane.served and not lane.in_work:
                continue  # nothing waits here
            wait = lane.window.designed_wait()
        lane.codel.retarget(target_in_force(lane.spec.target, round_times[tier], wait))
        # A gap in the stream of messages recurs once per round trip: look for longer than that.
        lane.codel.interval = max(lane.codel.interval, 2 * (flow.sidelines.round_trip or 0))


def _parts(flow: Flow, active: Collection[int]) -> dict[int, int]:
    """The percentage of the pool that each tier can count on while it has work."""
    tiers = sorted({lane.tier for lane in flow.lanes.values()})
    reserved = sum(flow.guaranteed.get(tier, 0) for tier in active)
    parts = {}
    for tier in tiers:
        own = flow.guaranteed.get(tier, 0)
        if tier == flow.top:
            own += PERCENT - reserved
        parts[tier] = own or PERCENT  # a lower tier has all of it once the higher ones are done
    return parts


def _return_excess(flow: Flow, lane: LaneState, excess: int) -> None:
    """Return messages beyond the new window, newest first, as far as the shedding mode allows."""
    withdrawn = 0
    while lane.buffer and withdrawn < excess:
        message = lane.buffer[-1][0]
        action = lane.shedder.decide(True, consumers=lane.consumers, redelivered=flow.redelivered(message))
        if action.kind != "return":
            break
        lane.buffer.pop()
        withdrawn += 1
        flow.shed(lane, message, "return", action.reason)
    flow.withdraw(lane, withdrawn)
