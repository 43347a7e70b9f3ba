"""Which lane's messages go next: the round robin's tickets, as far as tokens and order allow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from leash.flow import failing_lanes
from leash.flow.budgets import admit, permitted
from leash.flow.lane import BUSY, THROTTLED, LaneState
from leash.policies.fair.rounds import Ticket

if TYPE_CHECKING:
    from leash.flow.flow import Flow


class Grant(NamedTuple):
    """A number of messages of one lane in a row, and what it was charged for them."""

    lane: LaneState
    size: int
    estimate: int


def grants(flow: Flow, now: int, limit: int, time: int | None, patient: bool = True) -> list[Grant]:
    """Up to `limit` messages, or as many as keep a worker busy for about `time` ns.

    `patient`: lower tiers wait while a higher one's messages are in flight.

    Tokens are for messages that start now: a batch takes at most a millisecond's worth of a lane's tokens,
    and if that is one message, it goes first.
    """
    if flow.guaranteed and any(lane.limited for lane in flow.lanes.values()):
        # A returned pick would still count for its tier.
        limit = min(limit, 1)
    if flow.cost != "count":
        return _by_cost(flow, now, limit, time, patient)
    chosen: list[Grant] = []
    rounds, lanes = flow.rounds, flow.lanes
    eligible = _eligible(flow)
    while limit > 0:
        ticket = rounds.take(limit, eligible, patient)
        if ticket is None:
            flow.sidelines.hold(now)
            break
        lane = lanes[ticket[0]]
        count = granted = ticket[1]
        if count > lane.most:
            count = lane.most
        if lane.limited:
            count = _admit(flow, now, lane, count, not chosen)
        if count < granted:
            give_back(flow, lane, ticket, count, granted - count)
        if not count:
            break
        chosen.append(Grant(lane, count, count))
        limit -= count
        if time is not None:
            time -= count * (lane.service or flow.service)
            if time <= 0:
                break
    return chosen


def _by_cost(flow: Flow, now: int, limit: int, time: int | None, patient: bool) -> list[Grant]:
    """Grants if messages differ in cost: one pick for each message, merged for runs of one lane."""
    granted: list[Grant] = []
    ahead: dict[str, int] = {}

    def estimate(name: str) -> int:
        lane = flow.lanes[name]
        if flow.cost == "given":
            return lane.buffer[ahead.get(name, 0)][3]
        return max(1, lane.service // 1000)

    eligible = _eligible(flow)
    while limit > 0 and (time is None or time > 0):
        ticket = flow.rounds.pick(eligible, estimate, patient)
        if ticket is None:
            flow.sidelines.hold(now)
            break
        name, cost = ticket
        lane = flow.lanes[name]
        if lane.limited and not _admit(flow, now, lane, 1, not granted):
            give_back(flow, lane, ticket, 0, 1)
            break
        ahead[name] = ahead.get(name, 0) + 1
        flow.watch.cost(name, cost)
        if granted and granted[-1].lane is lane:
            granted[-1] = Grant(lane, granted[-1].size + 1, granted[-1].estimate + cost)
        else:
            granted.append(Grant(lane, 1, cost))
        limit -= 1
        if time is not None:
            time -= lane.service or flow.service
    return granted


def _eligible(flow: Flow) -> Callable[[str], bool] | None:
    """Which lanes may be picked; None: all."""
    if flow.slow is None:
        return partial(permitted, flow) if flow.purses else None
    slow, lanes = flow.slow, flow.lanes
    if flow.purses:
        return lambda name: slow.allows(lanes[name]) and permitted(flow, name)
    return lambda name: slow.allows(lanes[name])


def _admit(flow: Flow, now: int, lane: LaneState, count: int, first: bool) -> int:
    """How many of `count` may go with this batch; 0: wait for the next one."""
    bucket = lane.bucket
    if lane.ordered or lane.single:
        count = 1
    if bucket is not None:
        if lane.allowed is None:
            if lane.at_once == 1 and not first:
                return 0
            lane.allowed = max(1, min(bucket.available(now), lane.at_once))
        if count >= lane.allowed:
            count = lane.allowed
            if bucket.available(now) <= lane.at_once:
                flow.sidelines.block(lane, THROTTLED)  # `Flow.take` sets the timer
    if lane.purses:
        count = admit(now, lane, count)  # at least 1, or the lane would not have been picked
    if lane.allowed is not None:
        lane.allowed -= count
    if lane.ordered:
        flow.sidelines.block(lane, BUSY)
    if lane.single:
        failing_lanes.sent(flow, now, lane)
    return count


def give_back(flow: Flow, lane: LaneState, ticket: Ticket, cost: int, messages: int) -> None:
    """Return the unused part of a ticket."""
    flow.rounds.settle(ticket, cost, dry=False)
    flow.rounds.offer(lane.name, messages)
    if lane.evidence:  # offering counted them as messages in flight
        flow.rounds.expect(lane.name, lane.evidence)
