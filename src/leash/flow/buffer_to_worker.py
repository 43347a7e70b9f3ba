"""Messages leave a buffer for a worker, or return: tokens are taken, CoDel judges, the window is informed.

A lane's policies are informed once about all its turns in one batch; the messages go out turn by turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leash.flow.decisions import Dispatch
from leash.flow.depths import ask
from leash.flow.lane import BUSY, THROTTLED, Entry, LaneState
from leash.flow.picking import Grant, give_back
from leash.flow.shedding import judge, judge_dropping
from leash.flow.windows import observe
from leash.policies.fair.rounds import Ticket

if TYPE_CHECKING:
    from leash.flow.flow import Flow


def leave_in_turn(flow: Flow, now: int, granted: list[Grant], since: int | None) -> list[Dispatch]:
    """What to dispatch for these grants; the worker has waited since `since`, if not None."""
    counts: dict[LaneState, list[int]] = {}
    for lane, count, estimate in granted:
        sums = counts.get(lane)
        if sums is None:
            counts[lane] = [count, estimate]
        else:
            sums[0] += count
            sums[1] += estimate
    left: dict[LaneState, list[Any]] = {}
    for lane, (count, estimate) in counts.items():
        left[lane] = _leave(flow, now, lane, count, estimate, since)
        since = None
    if len(granted) == 1:
        lane, count, estimate = granted[0]
        return _dispatch(lane, left[lane], count, estimate)
    out: list[Dispatch] = []
    at = dict.fromkeys(left, 0)
    for lane, count, estimate in granted:
        begin = at[lane]
        at[lane] = begin + count
        out += _dispatch(lane, left[lane][begin : begin + count], count, estimate)
    return out


def _dispatch(lane: LaneState, messages: list[Any], count: int, estimate: int) -> list[Dispatch]:
    if not messages:
        return []
    if len(messages) < count:  # the rest was dropped, without cost
        estimate = estimate * len(messages) // count
    return [Dispatch(lane.name, messages, estimate, lane.until)]


def _leave(flow: Flow, now: int, lane: LaneState, count: int, estimate: int, since: int | None) -> list[Any]:
    """Take messages out of a lane's buffer, and inform its policies."""
    buffer = lane.buffer
    pop = buffer.popleft
    entries = [pop() for _ in range(count)]
    flow.buffered -= count
    left = len(buffer)
    lane.promised = 0
    if lane.bucket is not None:
        lane.allowed = None
        lane.bucket.take(now, count)
        if lane.blocks & THROTTLED:
            flow.sidelines.throttle(now, lane)
    if lane.shedder.mode != "drop":
        judge(now, lane, entries, left)
    else:
        entries = judge_dropping(flow, now, lane, entries)
        if len(entries) < count:
            estimate = _refund(flow, now, lane, count - len(entries), estimate, entries)
    if not left and not lane.evidence:
        lane.dries += 1
        if lane.probe_after is not None and now >= lane.probe_after:
            ask(flow, now, lane, "it ran dry")
    if not entries:
        return entries
    observe(flow, now, lane, entries, since)
    lane.in_work += len(entries)
    flow.in_work += len(entries)
    lane.charged += estimate
    lane.wait += (now - entries[0][1]) * len(entries)
    return [entry[0] for entry in entries]


def _refund(flow: Flow, now: int, lane: LaneState, dropped: int, estimate: int, kept: list[Entry]) -> int:
    """Refund what dropped messages were charged."""
    if flow.cost == "given":
        cost = sum(entry[3] for entry in kept)
    else:
        cost = estimate * len(kept) // (len(kept) + dropped)
    flow.rounds.settle(Ticket(lane.name, estimate), cost, dry=False)
    if lane.bucket is not None:
        lane.bucket.refund(now, dropped)
        flow.sidelines.throttle(now, lane)
    for purse in lane.purses:  # those of a rate are lost
        purse.permits.release(dropped)
    if lane.ordered and not kept:
        flow.sidelines.unblock(lane, BUSY)
    return cost


def come_back(flow: Flow, now: int, dispatch: Dispatch, messages: list[Any], arrived: list[int]) -> Dispatch:
    """Put the last `messages` of a dispatch, which were not begun, back in front; returns the rest of it."""
    name, given, estimate, until = dispatch
    lane = flow.lanes[name]
    count = len(messages)
    cost = estimate * count // len(given)
    each = cost // count
    lane.buffer.extendleft(
        (message, at, -1, each, at) for message, at in zip(reversed(messages), reversed(arrived), strict=True)
    )
    flow.buffered += count
    lane.in_work -= count
    flow.in_work -= count
    lane.charged -= cost
    for purse in lane.purses:
        purse.back(now, messages, until)
    give_back(flow, lane, Ticket(name, cost), 0, count)
    if lane.bucket is not None:
        lane.bucket.refund(now, count)
        flow.sidelines.throttle(now, lane)
    if flow.total is not None:
        flow.total.refund(now, count)
    if lane.ordered:  # its only message in work: `Flow.done` hears of none, and would leave it busy for good
        flow.sidelines.unblock(lane, BUSY)
    return Dispatch(name, given[: len(given) - count], estimate - cost, until)
