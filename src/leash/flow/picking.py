"""Whose messages go next: the round robin's tickets, within what tokens and order allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leash.flow.lane import BUSY, THROTTLED, LaneState

if TYPE_CHECKING:
    from leash.flow.flow import Flow


class Grant(NamedTuple):
    """So many messages of a lane in a row, and what it was charged for them."""

    lane: LaneState
    size: int
    estimate: int


def grants(flow: Flow, now: int, limit: int, time: int | None) -> list[Grant]:
    """Up to `limit` messages, or as many as keep a worker busy for about `time` ns."""
    if flow.cost != "count":
        return _by_cost(flow, now, limit, time)
    found = []
    rounds, lanes = flow.rounds, flow.lanes
    while limit > 0:
        ticket = rounds.take(limit)
        if ticket is None:
            flow.sidelines.hold(now)
            break
        lane = lanes[ticket[0]]
        count = granted = ticket[1]
        if count > lane.most:
            count = lane.most
        if lane.limited:
            count = _admit(flow, now, lane, count)
        if count < granted:
            rounds.settle(ticket, count, dry=False)
            rounds.offer(lane.name, granted - count)
            if lane.evidence:  # offering took it for messages that were on their way
                rounds.expect(lane.name, lane.evidence)
        found.append(Grant(lane, count, count))
        limit -= count
        if time is not None:
            time -= count * (lane.service or flow.service)
            if time <= 0:
                break
    return found


def _by_cost(flow: Flow, now: int, limit: int, time: int | None) -> list[Grant]:
    """Where messages differ in cost: a pick for each, put together where a lane's are in a row."""
    found: list[Grant] = []
    ahead: dict[str, int] = {}

    def estimate(name: str) -> int:
        lane = flow.lanes[name]
        if flow.cost == "given":
            return lane.buffer[ahead.get(name, 0)][3]
        return max(1, lane.service // 1000)

    while limit > 0 and (time is None or time > 0):
        ticket = flow.rounds.pick(cost=estimate)
        if ticket is None:
            flow.sidelines.hold(now)
            break
        name, cost = ticket
        lane = flow.lanes[name]
        ahead[name] = ahead.get(name, 0) + 1
        if lane.limited:
            _admit(flow, now, lane, 1)
        flow.watch.cost(name, cost)
        if found and found[-1].lane is lane:
            found[-1] = Grant(lane, found[-1].size + 1, found[-1].estimate + cost)
        else:
            found.append(Grant(lane, 1, cost))
        limit -= 1
        if time is not None:
            time -= lane.service or flow.service
    return found


def _admit(flow: Flow, now: int, lane: LaneState, count: int) -> int:
    """How many of `count` may go: at least one, for a lane that may not is blocked."""
    if lane.ordered:
        count = 1
        flow.sidelines.block(lane, BUSY)
    bucket = lane.bucket
    if bucket is None:
        return count
    if lane.allowed is None:
        lane.allowed = max(1, bucket.available(now))
    if count >= lane.allowed:
        count = lane.allowed
        flow.sidelines.block(lane, THROTTLED)  # `Flow.take` finds out until when
    lane.allowed -= count
    return count
